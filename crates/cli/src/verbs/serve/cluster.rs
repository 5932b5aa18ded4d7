//! `onefold serve` for a store of the cluster engine, in a folder or on Ceph: its volumes, with
//! workers inside.
//!
//! *Crash argument:* what was acknowledged is durable in the object store; volumes that were open
//! are looked through when they are attached again. A server whose volume was taken over is fenced:
//! nothing of it is applied any more, and it ends.

use std::{
    path::PathBuf,
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

use onefold::parts::cluster_work::ClusterWork;

use onefold_backend::{signals::StopSignals, systemd::Service};
use onefold_cluster::{ClusterExports, Mode, Settings};
use onefold_core::{Error, Exports, Kind, Volume, VolumeInfo};

use super::options::{CLIENT_GRACE, Options, listen, note};
use crate::verbs::worker::Workers;
use onefold::parts::cluster_store::{Backing, Url};
use onefold_console::{address::uri, failure::Failure, size::counted};
use parking_lot::Mutex;

/// Serves until a signal comes.
pub(super) fn run(options: &Options, url: &Url, service: Service) -> Result<(), Failure> {
    let limits = options.limits()?;
    let shown = url.to_string();
    let mode = match (options.read_only, options.take_over) {
        (true, _) => Mode::Read,
        (false, true) => Mode::TakeOver,
        (false, false) => Mode::Own,
    };
    let usual = match url {
        Url::Folder(folder) => Some(socket(folder)),
        Url::Rados(..) if options.nbd.is_empty() && service.sockets.is_empty() => {
            return Err(Failure::usage(
                "say with --nbd where clients connect, as --nbd unix:/run/onefold.sock",
            ));
        }
        Url::Rados(..) => None,
    };
    let backing = Backing::open(url, options.pace.timeout())?;
    let settings = Settings {
        cache_bytes: options.cache_bytes.0,
        dedup: options.dedup.into(),
        ..options.pace.settings()
    };
    let session = backing.session(settings).map_err(|e| e.context(&shown))?;

    // Until here a signal ends the process at once: a cluster may answer late.
    let mut signals = StopSignals::install()?;
    let (end, ended) = mpsc::channel();
    let fenced = end.clone();
    let mut work = ClusterWork::start(Arc::new(session), mode, move |error| {
        // The other side is gone only when the server is ending anyway.
        let _ = fenced.send(Some(error));
    })?;
    let exports = work.exports().clone();
    let mut server = options
        .server(Arc::new(Told { exports: exports.clone(), said: Mutex::default() }), limits)?;
    let listeners = listen(options, usual, service.sockets, &mut server)?;
    let workers = Workers::start(&backing, options.workers, &options.pace)?;
    server.start()?;
    let waiting = std::thread::Builder::new().name("signals".into()).spawn(move || {
        signals.wait();
        let _ = end.send(None);
        // Kept until the end of the process, so that a second signal ends it at once.
        std::thread::park();
    });
    waiting.map_err(|e| Error::from_io("cannot start a thread for signals", e))?;

    let volumes = exports.list();
    let uris: Vec<String> = volumes
        .iter()
        .flat_map(|volume| listeners.iter().map(|listener| uri(listener, &volume.name)))
        .take(16)
        .collect();
    match uris.is_empty() {
        true => tracing::info!(
            "serving {shown} at {}; it has no volumes yet (onefold volume create)",
            listeners.join(" and ")
        ),
        false => tracing::info!("serving {shown}: {}", uris.join("  ")),
    }
    note(service.notifier.ready(&format!(
        "serving {} of {shown} at {}",
        counted(volumes.len() as u64, "volume"),
        listeners.join(" and ")
    )));
    let lost = ended.recv().ok().flatten();
    match &lost {
        Some(error) => tracing::error!("{error}; stopping"),
        None => tracing::info!("stopping"),
    }
    note(service.notifier.stopping());
    let gone = server.stop(CLIENT_GRACE);
    work.stop_tending();
    workers.stop();
    let closed = gone.and_then(|()| work.close());
    if let Some(error) = lost {
        return Err(error.into());
    }
    closed?;
    tracing::info!("closed {shown}");
    Ok(())
}

/// The volumes, for clients. When this server lacks the right to one, its log says so, too: the
/// operator who can change rights does not see what clients are told.
struct Told {
    exports: Arc<ClusterExports>,
    /// When the log said so last: clients decide how often they ask.
    said: Mutex<Option<Instant>>,
}

/// Time between two lines of the log about rights that this server lacks.
const SAID_AGAIN: Duration = Duration::from_secs(60);

impl Exports for Told {
    fn list(&self) -> Vec<VolumeInfo> {
        self.exports.list()
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Volume>, Error> {
        self.exports.open(name).inspect_err(|error| {
            let mut said = self.said.lock();
            if error.kind() == Kind::Denied && said.is_none_or(|at| at.elapsed() >= SAID_AGAIN) {
                *said = Some(Instant::now());
                tracing::warn!("{error}");
            }
        })
    }
}

/// Where a store is served when nobody says so: beside its folder.
fn socket(folder: &std::path::Path) -> PathBuf {
    let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    let mut name = folder.as_os_str().to_owned();
    name.push(".sock");
    name.into()
}
