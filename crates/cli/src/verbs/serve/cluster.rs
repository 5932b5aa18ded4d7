//! `onefold serve` for a store of the cluster engine, in a folder or on Ceph: its volumes, with
//! workers inside.
//!
//! *Crash argument:* what was acknowledged is durable in the object store; volumes that were open
//! are looked through when they are attached again. A server whose volume was taken over is fenced:
//! nothing of it is applied any more, and it ends.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc,
    },
    time::{Duration, Instant},
};

use onefold::parts::cluster_work::ClusterWork;

use onefold_backend::{
    process,
    signals::StopSignals,
    systemd::{Notifier, Service},
};
use onefold_cluster::{ClusterExports, Mode, Settings};
use onefold_core::{Error, Exports, Kind, Volume, VolumeInfo};

use onefold_serve::nbd;
use parking_lot::Mutex;
use serde_json::json;

use super::{
    looked::Looked,
    options::{CLIENT_GRACE, LOOK_EVERY, Options, listen, note, show},
    site::Reporter,
    trust::Trust,
};
use crate::{report::Nbd, verbs::worker::Workers};
use onefold::parts::cluster_store::{Backing, Url};
use onefold_console::{address::uri, failure::Failure, size::counted};

/// Serves until a signal comes.
pub(super) fn run(
    options: &Options,
    url: &Url,
    service: Service,
    trust: &Trust,
) -> Result<(), Failure> {
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
    let session = match options.read_only {
        true => backing.reading_session(settings),
        false => backing.session(settings),
    };
    let session = session.map_err(|e| e.context(&shown))?;

    // Until here a signal ends the process at once: a cluster may answer late.
    let mut signals = StopSignals::install()?;
    let (end, ended) = mpsc::channel();
    let fenced = end.clone();
    let session = Arc::new(session);
    let stopping = Arc::new(AtomicBool::new(false));
    let mut work = ClusterWork::start(session.clone(), mode, move |error| {
        // The other side is gone only when the server is ending anyway.
        let _ = fenced.send(Some(error));
    })?;
    let exports = work.exports().clone();
    let told = Arc::new(Told {
        exports: exports.clone(),
        said: Mutex::default(),
        patience: if options.standby { STANDBY } else { Duration::ZERO },
        stopping: stopping.clone(),
    });
    let mut server = options.server(told, limits, trust)?;
    let listeners = listen(options, usual, service.sockets, &mut server)?;
    let workers = Workers::start(&backing, options.workers(), &options.pace)?;
    let server = Arc::new(Mutex::new(Some(server)));
    let looked = Looked::start(options, &session, &exports)?;
    let mut pages = show(options, reporter(&shown, &listeners, &server, &looked), trust)?;
    if let Some(server) = server.lock().as_mut() {
        server.start()?;
    }
    pages.start()?;
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
    let lost = wait(&ended, &backing, &service.notifier);
    match &lost {
        Some(error) => tracing::error!("{error}; stopping"),
        None => tracing::info!("stopping"),
    }
    note(service.notifier.stopping());
    stopping.store(true, Relaxed);
    drop(pages);
    looked.stop();
    let server = server.lock().take();
    let gone = server.map_or(Ok(()), |server| server.stop(CLIENT_GRACE));
    work.stop_tending();
    workers.stop();
    let closed = gone.and_then(|()| work.close());
    if let Some(error) = lost.or_else(|| backing.stopped().map(taken_no_more)) {
        return Err(error.into());
    }
    closed?;
    tracing::info!("closed {shown}");
    Ok(())
}

/// Waits for a signal, or for the error that ends the server. A folder that takes no more writes is
/// told of, and read on.
fn wait(
    ended: &mpsc::Receiver<Option<Error>>,
    backing: &Backing,
    notifier: &Notifier,
) -> Option<Error> {
    let mut told = false;
    loop {
        match ended.recv_timeout(LOOK_EVERY) {
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            ended => return ended.ok().flatten(),
        }
        if let Some(error) = backing.stopped().filter(|_| !told).map(taken_no_more) {
            told = true;
            tracing::error!("{error}; reads go on");
            note(notifier.status(&format!("READING ONLY: {error}")));
        }
    }
}

fn taken_no_more(error: Error) -> Error {
    error.context("the store takes no more writes until it is opened again")
}

/// Makes reports from what the server has in memory. Keys that `onefold status` has, too, mean the
/// same there.
fn reporter(
    store: &str,
    listeners: &[String],
    server: &Arc<Mutex<Option<nbd::Server>>>,
    looked: &Looked,
) -> Reporter {
    let (store, listeners) = (store.to_owned(), listeners.to_vec());
    let (server, last, begun) = (server.clone(), looked.last(), Instant::now());
    Box::new(move || {
        let nbd = server.lock().as_ref().map(|server| Nbd::from(server.statistics()));
        let mut report = json!({
            "engine": "cluster",
            "store": store,
            "server": {
                "pid": std::process::id(),
                "version": env!("CARGO_PKG_VERSION"),
                "uptime_seconds": begun.elapsed().as_secs(),
                "listeners": listeners,
                "cpu_seconds": process::cpu_time().as_secs_f64(),
                "nbd": nbd,
            },
        });
        if let (Some(report), Some(looked)) = (report.as_object_mut(), last.lock().clone()) {
            report.extend(looked);
        }
        Ok(report)
    })
}

/// The volumes, for clients. When this server lacks the right to one, its log says so, too: the
/// operator who can change rights does not see what clients are told.
struct Told {
    exports: Arc<ClusterExports>,
    /// When the log said so last: clients decide how often they ask.
    said: Mutex<Option<Instant>>,
    /// How long a client waits for a volume that another server writes.
    patience: Duration,
    stopping: Arc<AtomicBool>,
}

/// How long a client of a standby waits: another server's right to a volume, which it may have renewed just
/// now, and as long again for a cluster that is slow.
const STANDBY: Duration = Duration::from_secs(20);

/// Between two looks whether another server still has a volume.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

impl Told {
    /// Opens a volume, which another server may still write for a while.
    fn open_in_time(&self, name: &str) -> Result<Arc<dyn Volume>, Error> {
        let begun = Instant::now();
        loop {
            match self.exports.open(name) {
                Err(error)
                    if error.kind() == Kind::Busy
                        && begun.elapsed() < self.patience
                        && !self.stopping.load(Relaxed) =>
                {
                    std::thread::sleep(LOOK_AGAIN);
                }
                opened => {
                    if opened.is_ok() && begun.elapsed() >= LOOK_AGAIN {
                        tracing::info!(
                            "took volume '{}', after {:.1} s",
                            name.escape_debug(),
                            begun.elapsed().as_secs_f64()
                        );
                    }
                    return opened;
                }
            }
        }
    }
}

/// Time between two lines of the log about rights that this server lacks.
const SAID_AGAIN: Duration = Duration::from_secs(60);

impl Exports for Told {
    fn list(&self) -> Vec<VolumeInfo> {
        self.exports.list()
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Volume>, Error> {
        self.open_in_time(name).inspect_err(|error| {
            let mut said = self.said.lock();
            if error.kind() == Kind::Denied && said.is_none_or(|at| at.elapsed() >= SAID_AGAIN) {
                *said = Some(Instant::now());
                tracing::warn!("{error}");
            }
        })
    }

    fn shared_name(&self, name: &str) -> String {
        self.exports.shared_name(name)
    }

    fn limits(&self, name: &str) -> Option<onefold_core::VolumeLimits> {
        self.exports.limits(name)
    }
}

/// Where a store is served when nobody says so: beside its folder.
fn socket(folder: &std::path::Path) -> PathBuf {
    let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    let mut name = folder.as_os_str().to_owned();
    name.push(".sock");
    name.into()
}
