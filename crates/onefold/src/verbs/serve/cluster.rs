//! `onefold serve FOLDER`: the volumes of a store of the cluster engine, with workers inside.
//!
//! *Crash argument:* what was acknowledged is durable in the folder; volumes that were open are looked through when they are attached again.

use std::{
    path::PathBuf,
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

use onefold_backend::{EmbeddedStore, signals::StopSignals, systemd::Service};
use onefold_cluster::{ClusterExports, Mode, Session};
use onefold_core::{Error, Exports, Kind};
use onefold_serve::nbd;

use super::{
    CLIENT_GRACE, Options,
    address::{self, Address, uri},
    listen, note,
};
use crate::{failure::Failure, verbs::cluster::Workers};

/// How often locks are renewed: three times a lease.
const RENEW: Duration = Duration::from_secs(10);

/// Between two looks for work on the volumes that are open.
const TEND: Duration = Duration::from_millis(200);

/// Serves until a signal comes.
pub(super) fn run(options: &Options, service: Service, mut signals: StopSignals) -> Result<(), Failure> {
    let limits = options.limits()?;
    let shown = options.store.display().to_string();
    let store = EmbeddedStore::open(&options.store)?;
    let session = Session::open(Arc::new(store.session()), options.pace.settings()).map_err(|e| e.context(&shown))?;
    let exports = Arc::new(ClusterExports::new(Arc::new(session), Mode::Own));

    let mut server = nbd::Server::new(exports.clone(), limits);
    let usual = service.sockets.is_empty().then(|| Address::Unix(socket(&options.store)));
    let mut listeners = listen(options, usual, &mut server)?;
    for socket in service.sockets {
        listeners.push(address::of_socket(&socket.fd));
        server.add_listener(socket.fd).map_err(|e| e.context(format!("socket {} from the service manager", socket.name)))?;
    }
    let workers = Workers::start(&store, options.workers, &options.pace)?;
    server.start()?;
    let (stop, stopped) = mpsc::channel();
    let tended = exports.clone();
    let tender = std::thread::Builder::new().name("volumes".into()).spawn(move || tend(&tended, &stopped));
    let tender = tender.map_err(|e| Error::from_io("cannot start a thread for the volumes", e))?;

    let volumes = exports.list();
    let uris: Vec<String> =
        volumes.iter().flat_map(|volume| listeners.iter().map(|listener| uri(listener, &volume.name))).take(16).collect();
    match uris.is_empty() {
        true => tracing::info!("serving {shown} at {}; it has no volumes yet (onefold cluster volume create)", listeners.join(" and ")),
        false => tracing::info!("serving {shown}: {}", uris.join("  ")),
    }
    note(service.notifier.ready(&format!("serving {} volumes of {shown} at {}", volumes.len(), listeners.join(" and "))));
    signals.wait();
    tracing::info!("stopping");
    note(service.notifier.stopping());
    let gone = server.stop(CLIENT_GRACE);
    drop(stop);
    // Their panics, if any, were printed.
    let _ = tender.join();
    workers.stop();
    gone.and_then(|()| exports.close())?;
    tracing::info!("closed {shown}");
    Ok(())
}

/// Where a store is served when nobody says so: beside its folder.
fn socket(folder: &std::path::Path) -> PathBuf {
    let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    let mut name = folder.as_os_str().to_owned();
    name.push(".sock");
    name.into()
}

/// Does what is due for volumes that are open, until the other side of `stopped` is gone.
fn tend(exports: &ClusterExports, stopped: &mpsc::Receiver<()>) {
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
            Err(error) => {
                tracing::warn!("{error}");
                RENEW / 10
            }
        };
    }
}
