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

use onefold_backend::{signals::StopSignals, systemd::Service};
use onefold_cluster::{ClusterExports, Mode, Settings};
use onefold_core::{Error, Exports, Kind, Volume, VolumeInfo};

use super::options::{CLIENT_GRACE, Options, listen, note};
use crate::verbs::cluster::{Backing, Url, Workers};
use onefold_console::address::uri;
use onefold_console::failure::Failure;

/// How often locks are renewed: three times a lease.
const RENEW: Duration = Duration::from_secs(10);

/// Between two looks for work on the volumes that are open.
const TEND: Duration = Duration::from_millis(200);

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
    let exports = Arc::new(ClusterExports::new(Arc::new(session), mode));

    // Until here a signal ends the process at once: a cluster may answer late.
    let mut signals = StopSignals::install()?;
    let mut server = options.server(Arc::new(Told(exports.clone())), limits)?;
    let listeners = listen(options, usual, service.sockets, &mut server)?;
    let workers = Workers::start(&backing, options.workers, &options.pace)?;
    server.start()?;
    let (stop, stopped) = mpsc::channel();
    let (end, ended) = mpsc::channel();
    let (tended, fenced) = (exports.clone(), end.clone());
    let tender = std::thread::Builder::new().name("volumes".into()).spawn(move || {
        if let Err(error) = tend(&tended, &stopped) {
            // The other side is gone only when the server is ending anyway.
            let _ = fenced.send(Some(error));
        }
    });
    let tender = tender.map_err(|e| Error::from_io("cannot start a thread for the volumes", e))?;
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
            "serving {shown} at {}; it has no volumes yet (onefold cluster volume create)",
            listeners.join(" and ")
        ),
        false => tracing::info!("serving {shown}: {}", uris.join("  ")),
    }
    note(service.notifier.ready(&format!(
        "serving {} volumes of {shown} at {}",
        volumes.len(),
        listeners.join(" and ")
    )));
    let lost = ended.recv().ok().flatten();
    match &lost {
        Some(error) => tracing::error!("{error}; stopping"),
        None => tracing::info!("stopping"),
    }
    note(service.notifier.stopping());
    let gone = server.stop(CLIENT_GRACE);
    drop(stop);
    // Their panics, if any, were printed.
    let _ = tender.join();
    workers.stop();
    let closed = gone.and_then(|()| exports.close());
    if let Some(error) = lost {
        return Err(error.into());
    }
    closed?;
    tracing::info!("closed {shown}");
    Ok(())
}

/// The volumes, for clients. That we have not the right to one is said in our log, too: who can
/// mend that does not see what clients are told.
struct Told(Arc<ClusterExports>);

impl Exports for Told {
    fn list(&self) -> Vec<VolumeInfo> {
        self.0.list()
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Volume>, Error> {
        self.0.open(name).inspect_err(|error| {
            if error.kind() == Kind::Denied {
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

/// Does what is due for volumes that are open, until the other side of `stopped` is gone, or an
/// error after which nothing is taken from us any more.
fn tend(exports: &ClusterExports, stopped: &mpsc::Receiver<()>) -> Result<(), Error> {
    let mut renewed = Instant::now();
    let mut pause = TEND;
    let mut published = Instant::now();
    while stopped.recv_timeout(pause).is_err_and(|error| error == mpsc::RecvTimeoutError::Timeout) {
        let mut due = || -> Result<bool, Error> {
            if renewed.elapsed() >= RENEW {
                exports.renew()?;
                renewed = Instant::now();
            }
            if published.elapsed() >= Duration::from_secs(1) {
                exports.publish();
                published = Instant::now();
            }
            exports.tend()
        };
        pause = match due() {
            Ok(true) => Duration::ZERO,
            Ok(false) => TEND,
            Err(error) if error.kind() == Kind::NoSpace => TEND,
            Err(error) if error.kind() == Kind::Stopped => return Err(error),
            Err(error) => {
                tracing::warn!("{error}");
                RENEW / 10
            }
        };
    }
    Ok(())
}
