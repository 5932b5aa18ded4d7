//! `onefold serve`: a store at work, from opening to an orderly end.
//!
//! Up: sockets of the service manager, the store's lock and recovery, signals, its threads, the
//! control socket, NBD; then ready. Down, in the opposite order: NBD clients are answered and sent
//! away, commands end, everything is made durable, the store is marked clean.
//!
//! *Crash argument:* the process may end at any point, as after a power cut: the store recovers
//! when it is opened again.

mod append_only;
mod archive;
mod auditor;
mod cluster;
mod commands;
mod limited;
mod looked;
mod maintenance;
mod options;
mod site;
mod trust;
mod vhost;

use std::{
    path::PathBuf,
    sync::{Arc, mpsc},
};

use onefold_backend::{
    random::random_bytes,
    signals::{Stop, StopSignals},
    systemd::{Notifier, Service, Socket},
};
use onefold_block::{Settings, StoreExports};
use onefold_console::address::uri;
use onefold_core::{Error, Kind, Result};
use onefold_serve::{
    http,
    nbd::{self, Limits},
};
use parking_lot::Mutex;

pub(crate) use self::options::Options;
use self::{
    commands::{Commands, FoundSpace},
    options::{CLIENT_GRACE, LOOK_EVERY, URIS_MAX, let_in, listen, note, show},
    trust::Trust,
};
use onefold::parts::{
    Found, control,
    store_file::{StoreFile, WorkingStore},
    witness,
};
use onefold_console::{
    failure::Failure,
    size::{Size, counted, grouped},
};

/// Looks between two lines of status for the service manager.
const LOOKS_PER_STATUS: u32 = 30;

/// Serves until a signal comes.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let service = Service::take()?;
    let (settings, limits) = (options.settings()?, options.limits()?);
    let_in(options, &service.sockets)?;
    // Before the store is opened: that may take long, and a file may be missing.
    let trust = Trust::read(
        options.tls.as_deref(),
        options.access.as_deref(),
        options.audit.as_deref(),
        service.notifier.is_there(),
    )?;
    let ended = work(options, service, &trust, (settings, limits));
    trust.ended(&options.store);
    ended
}

/// Works on the store until a signal comes.
fn work(
    options: &Options,
    service: Service,
    trust: &Trust,
    (settings, limits): (Settings, Limits),
) -> Result<(), Failure> {
    let file = match Found::at(&options.store)? {
        Found::Archive(directory) => {
            options.not_standing_by()?;
            options.not_packing()?;
            witness::is_not_for(&options.store);
            return archive::run(options, &directory, service, trust);
        }
        Found::Block(file) => {
            options.not_of_archives()?;
            options.not_standing_by()?;
            file
        }
        Found::Cluster(url) => {
            options.not_of_archives()?;
            options.not_packing()?;
            witness::is_not_for(&options.store);
            return cluster::run(options, &url, service, trust);
        }
    };

    note(service.notifier.status("opening the store"));
    let working = file.work(settings)?;
    // Until here a signal ends the process at once: opening may take long, and a store survives it
    // like any crash.
    let signals = StopSignals::install()?;
    if !options.one_tenant {
        working.store().engine().keep_tenants_apart(random_bytes()?);
    }
    let recovered = working.store().status();
    tracing::debug!(
        "epoch {}, {} records to carry into the tables",
        recovered.epoch,
        grouped(recovered.uncommitted_records)
    );

    let doors = match Doors::open(options, &file, &working, service.sockets, limits, trust) {
        Ok(doors) => doors,
        Err(failure) => {
            // No client is connected yet, so the store is closed as it was found. The error to tell
            // is the one that kept the server from listening.
            let _ = working.close();
            return Err(failure);
        }
    };
    say_ready(&file, &working, &doors.listeners, &service.notifier);
    let well = attend(signals, &working, &service.notifier);
    note(service.notifier.stopping());
    let ended = end(working, doors.close());
    match &ended {
        Ok(()) => tracing::info!("closed {}", file.path().display()),
        Err(error) => tracing::error!("{}: {error}", file.path().display()),
    }
    if well {
        Ok(ended?)
    } else {
        Err(Failure::new(format!("{}: a thread of the store failed", file.path().display())))
    }
}

/// Where a store is served when nobody says so: beside its file; for a device, in `/run`.
fn default_socket(file: &StoreFile) -> PathBuf {
    if file.is_device() {
        let name = file.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
        return PathBuf::from(format!("/run/onefold-{name}.sock"));
    }
    let mut path = file.path().as_os_str().to_owned();
    path.push(".sock");
    path.into()
}

/// Where clients and commands come in.
struct Doors {
    /// Shared with the commands, which tell its counts.
    server: Arc<Mutex<Option<nbd::Server>>>,
    control: control::Server,
    pages: http::Server,
    /// Where clients connect, as they type it, without a volume.
    listeners: Vec<String>,
}

impl Doors {
    fn open(
        options: &Options,
        file: &StoreFile,
        working: &WorkingStore,
        sockets: Vec<Socket>,
        limits: Limits,
        trust: &Trust,
    ) -> Result<Doors, Failure> {
        let store = working.store();
        let mut server = options.server(Arc::new(StoreExports(store.clone())), limits, trust)?;
        let listeners = listen(options, Some(default_socket(file)), sockets, &mut server)?;
        let server = Arc::new(Mutex::new(Some(server)));
        let found = FoundSpace::default();
        let commands = || {
            let (file, server) = (file.clone(), server.clone());
            Commands::new(file, options, working, server, &listeners, found.clone())
        };
        let shown = commands();
        let mut pages = show(options, Box::new(move || shown.report_at_once()), trust)?;
        let control = control::Server::start(&file.control_name(), commands(), trust.heard())?;
        if let Some(server) = server.lock().as_mut() {
            server.start()?;
        }
        pages.start()?;
        Ok(Doors { server, control, pages, listeners })
    }

    /// Answers what has arrived, and lets nobody in any more.
    fn close(self) -> Result<()> {
        drop(self.pages);
        let server = self.server.lock().take();
        let clients = server.map_or(Ok(()), |server| server.stop(CLIENT_GRACE));
        let commands = match self.control.stop() {
            true => Ok(()),
            false => Err(Error::new(Kind::Busy, "a command is still at work")),
        };
        clients.and(commands).map_err(|e| e.context("at the end"))
    }
}

fn say_ready(file: &StoreFile, working: &WorkingStore, listeners: &[String], notifier: &Notifier) {
    let volumes = working.store().status().volumes;
    let shown = file.path().display();
    let mut uris: Vec<String> = volumes
        .iter()
        .flat_map(|volume| listeners.iter().map(|listener| uri(listener, &volume.name)))
        .take(URIS_MAX)
        .collect();
    let more = volumes.len() * listeners.len() - uris.len();
    if more > 0 {
        uris.push(format!("and {more} more (onefold volume list)"));
    }
    match uris.is_empty() {
        true => tracing::info!(
            "serving {shown} at {}; it has no volumes yet (onefold volume create)",
            listeners.join(" and ")
        ),
        false => tracing::info!("serving {shown}: {}", uris.join("  ")),
    }
    note(notifier.ready(&format!(
        "serving {} of {shown} at {}",
        counted(volumes.len() as u64, "volume"),
        listeners.join(" and ")
    )));
}

/// Waits for a signal, and watches the store meanwhile. False when the store's threads failed.
fn attend(mut signals: StopSignals, working: &WorkingStore, notifier: &Notifier) -> bool {
    let (tell, heard) = mpsc::channel();
    let waiting = std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        // The other side is gone only when the server is ending anyway.
        let _ = tell.send(signals.wait());
        // Kept until the end of the process, so that a second signal ends it at once.
        std::thread::park();
    });
    if let Err(error) = waiting {
        tracing::error!("cannot start a thread for signals: {error}");
        return false;
    }
    let (mut stopped, mut looks) = (false, 0);
    loop {
        match heard.recv_timeout(LOOK_EVERY) {
            Ok(Stop::Terminate) => {
                tracing::info!("stopping: SIGTERM");
                return true;
            }
            Ok(Stop::Interrupt) => {
                tracing::info!("stopping: interrupted");
                return true;
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => return false,
            Err(mpsc::RecvTimeoutError::Timeout) => {}
        }
        if working.is_broken() {
            tracing::error!("a thread of the store ended by itself; stopping");
            return false;
        }
        if let Some(reason) = working.store().engine().stopped()
            && !stopped
        {
            stopped = true;
            tracing::error!("{reason}; reads go on");
            note(notifier.status(&format!("READING ONLY: {reason}")));
        }
        looks += 1;
        if looks % LOOKS_PER_STATUS == 0 && !stopped {
            let status = working.store().status();
            let free = Size(status.free_blocks * 4096);
            let volumes = counted(status.volumes.len() as u64, "volume");
            note(notifier.status(&format!("{volumes}, {free} free")));
        }
    }
}

/// Makes everything durable and closes the store, unless somebody still uses it.
fn end(working: WorkingStore, quiet: Result<()>) -> Result<()> {
    match quiet {
        Ok(()) => working.close(),
        Err(busy) => {
            working.store().flush()?;
            Err(busy)
        }
    }
}
