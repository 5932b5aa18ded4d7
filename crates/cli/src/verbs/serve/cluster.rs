//! `onefold serve` for a store of the cluster engine, in a folder or on Ceph: its volumes, with
//! workers inside.
//!
//! *Crash argument:* what was acknowledged is durable in the object store; volumes that were open
//! are looked through when they are attached again. A server whose volume was taken over is fenced:
//! nothing of it is applied any more, and it ends.

use std::{
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc,
    },
    time::{Duration, Instant},
};

use onefold::parts::cluster_work::{ClusterWork, Heart};

use onefold_backend::{
    process,
    signals::StopSignals,
    systemd::{Notifier, Service, Socket},
};
use onefold_cluster::{ClusterExports, Found, Gateway, Mode, Named, Session, Settings, Standby};
use onefold_core::{Error, Exports, Kind, Volume, VolumeInfo};

use onefold_serve::nbd;
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    looked::Looked,
    options::{CLIENT_GRACE, LOOK_EVERY, Options, is_taken, listen_when_free, note, show},
    site::Reporter,
    trust::Trust,
};
use crate::{
    report::Nbd,
    verbs::{
        status,
        volume::{self, guard},
        worker::Workers,
    },
};
use onefold::parts::{
    cluster_store::{Backing, Url, control_name},
    control::{self, Request, Served, Tell},
};
use onefold_console::{
    address::{Address, uri},
    failure::Failure,
    size::counted,
};

/// Serves until a signal comes.
pub(super) fn run(
    options: &Options,
    url: &Url,
    service: Service,
    trust: &Trust,
) -> Result<(), Failure> {
    let Service { mut sockets, notifier } = service;
    if options.standby && !sockets.is_empty() {
        return Err(Failure::usage(
            "a server that stands by listens when it takes over: say where with --nbd, not by a socket of \
             the service manager",
        ));
    }
    if options.standby {
        // A group that does not exist is better known now than at the takeover.
        for address in options.nbd.iter().chain(&options.http) {
            if let Address::Unix(_, door) = address {
                door.reach()?;
            }
        }
    }
    if options.standby && !options.vhost.is_empty() {
        return Err(Failure::usage(
            "--vhost can't be used with --standby: a virtual machine would see errors at a takeover; let it \
             connect by NBD, which connects again",
        ));
    }
    if options.nbd.is_empty() && sockets.is_empty() && matches!(url, Url::Rados(..)) {
        return Err(Failure::usage(
            "say with --nbd where clients connect, as --nbd unix:/run/onefold.sock",
        ));
    }
    let mut stops = if options.standby { Some(Stops::install()?) } else { None };
    loop {
        // What was sent before is of the server that this one was.
        if stops.as_ref().is_some_and(Stops::is_asked) {
            return Ok(());
        }
        let sockets = std::mem::take(&mut sockets);
        match serve(options, url, sockets, &notifier, trust, &mut stops)? {
            End::Asked => return Ok(()),
            End::Lost(error) if options.stand_by_again => {
                tracing::warn!("{error}; standing by again");
            }
            End::Lost(error) => return Err(error.into()),
        }
    }
}

/// Serves once: as long as nobody else takes over.
fn serve(
    options: &Options,
    url: &Url,
    sockets: Vec<Socket>,
    notifier: &Notifier,
    trust: &Trust,
    stops: &mut Option<Stops>,
) -> Result<End, Failure> {
    let limits = options.limits()?;
    let shown = url.to_string();
    let mode = match (options.read_only, options.take_over) {
        (true, _) => Mode::Read,
        (false, true) => Mode::TakeOver,
        (false, false) => Mode::Own,
    };
    let usual = match url {
        Url::Folder(folder) => Some(socket(folder)),
        Url::Rados(..) => None,
    };
    let Some(backing) = open(options, url, notifier, stops.as_ref())? else {
        return Ok(End::Asked);
    };
    let settings = Settings {
        cache_bytes: options.cache_bytes.0,
        dedup: options.dedup.into(),
        ..options.pace.settings()
    };
    let session = match options.read_only {
        true => backing.reading_session(settings),
        false => backing.session(settings),
    };
    let session = Arc::new(session.map_err(|e| e.context(&shown))?);

    // Until here a signal ends the process at once, unless the server stands by: a cluster may answer late.
    let stops = match stops.take() {
        Some(installed) => &*stops.insert(installed),
        None => &*stops.insert(Stops::install()?),
    };
    // In a folder its claim says who serves.
    let gateway = match (options.standby, url) {
        (true, Url::Rados(..)) => match stand_by(&session, &shown, notifier, stops)? {
            Turn::Mine(gateway) => Some(gateway),
            Turn::Ended(end) => return Ok(end),
        },
        _ => None,
    };
    let before = gateway.as_ref().and_then(|gateway| gateway.before().map(str::to_owned));
    let shut_out = gateway.as_ref().map(Gateway::shut_out).unwrap_or_default();
    let mut right = Right::default();
    if let Some(gateway) = gateway {
        let replaced = stops.end.clone();
        let heart = Heart::start(gateway, move |error| {
            // The other side is gone only when the server is ending anyway.
            let _ = replaced.send(Some(error));
        });
        right.heart = Some(heart?);
    }
    if let Some(command) = &options.on_takeover
        && let Some(end) = on_takeover(command, &shown, before.as_deref(), stops)?
    {
        return right.close(&backing, end);
    }
    let stopping = Arc::new(AtomicBool::new(false));
    let fenced = stops.end.clone();
    let work = ClusterWork::start(session.clone(), mode, move |error| {
        let _ = fenced.send(Some(error));
    })?;
    let work = right.work.insert(work);
    let exports = work.exports().clone();
    let told = Arc::new(Told {
        exports: exports.clone(),
        said: Mutex::default(),
        patience: if options.standby { STANDBY } else { Duration::ZERO },
        stopping: stopping.clone(),
    });
    if options.standby {
        // They may have changed while another server was at work.
        trust.read_before_listening();
    }
    let mut server = options.server(told, limits, trust)?;
    let mut ended = None;
    let mut waits = |error: &Error| {
        if options.standby {
            tracing::warn!("{error}; waiting until it is free");
            ended = stops.within(LISTEN_AGAIN);
        }
        options.standby && ended.is_none()
    };
    let listeners = listen_when_free(options, usual, sockets, &mut server, &mut waits);
    if let Some(end) = ended {
        drop(server);
        return right.close(&backing, end);
    }
    let listeners = listeners?;
    let workers = Workers::start(&backing, options.workers(), &options.pace, true)?;
    let server = Arc::new(Mutex::new(Some(server)));
    let control = match url {
        Url::Rados(..) => None,
        Url::Folder(folder) => {
            let commands = Commands {
                session: session.clone(),
                exports: exports.clone(),
                server: server.clone(),
                read_only: options.read_only,
            };
            Some(control::Server::start(&control_name(folder)?.0, commands, trust.heard())?)
        }
    };
    let looked = Looked::start(options, &session, &exports)?;
    let mut ended = None;
    let pages = loop {
        match show(options, reporter(&shown, &listeners, &server, &looked), trust) {
            Err(error) if options.standby && is_taken(&error) => {
                tracing::warn!("{error}; waiting until it is free");
                ended = stops.within(LISTEN_AGAIN);
                if ended.is_some() {
                    break Err(error);
                }
            }
            pages => break pages,
        }
    };
    if let Some(end) = ended {
        drop(server.lock().take());
        return right.close(&backing, end);
    }
    let mut pages = pages?;
    if let Some(server) = server.lock().as_mut() {
        server.start()?;
    }
    pages.start()?;
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
    note(notifier.ready(&format!(
        "serving {} of {shown} at {}",
        counted(volumes.len() as u64, "volume"),
        listeners.join(" and ")
    )));
    let looks_through = match shut_out.is_empty() {
        true => None,
        false => Some(look_through(shut_out, &exports, &stopping)?),
    };
    let end = wait(&stops.ended, &backing, notifier);
    match &end {
        End::Lost(error) => tracing::error!("{error}; stopping"),
        End::Asked => tracing::info!("stopping"),
    }
    if !(options.stand_by_again && matches!(end, End::Lost(_))) {
        note(notifier.stopping());
    }
    stopping.store(true, Relaxed);
    drop(pages);
    looked.stop();
    let server = server.lock().take();
    let gone = server.map_or(Ok(()), |server| server.stop(CLIENT_GRACE));
    let quiet = control.is_none_or(control::Server::stop);
    if let Some(work) = &mut right.work {
        work.stop_tending();
    }
    workers.stop();
    if let Some(looks_through) = looks_through {
        // Its panic, if any, was printed.
        let _ = looks_through.join();
    }
    match gone {
        Ok(()) => {}
        Err(_) if matches!(end, End::Lost(_)) => {}
        Err(error) => return Err(error.into()),
    }
    if !quiet {
        return Err(Error::new(Kind::Busy, "at the end: a command is still at work").into());
    }
    let end = right.close(&backing, end)?;
    if matches!(end, End::Asked) {
        tracing::info!("closed {shown}");
    }
    Ok(end)
}

/// The volumes at work, and the right to serve. Dropped, as after an error at the start, it detaches the volumes
/// and lets another server take over: that one need not wait, and shuts nobody out.
#[derive(Default)]
struct Right {
    work: Option<ClusterWork>,
    heart: Option<Heart>,
}

impl Right {
    /// Detaches the volumes, and then lets another server take over.
    fn close(&mut self, backing: &Backing, end: End) -> Result<End, Failure> {
        let (work, heart) = (self.work.take(), self.heart.take());
        let closed = work.map_or(Ok(()), ClusterWork::close);
        if let End::Lost(error) = end {
            return Ok(End::Lost(error));
        }
        if let Some(error) = backing.stopped().map(taken_no_more) {
            return Err(error.into());
        }
        closed?;
        heart.map_or(Ok(()), Heart::give_up)?;
        Ok(End::Asked)
    }
}

impl Drop for Right {
    fn drop(&mut self) {
        let (work, heart) = (self.work.take(), self.heart.take());
        let closed = work.map_or(Ok(()), ClusterWork::close);
        // The cause of the end says more. A volume that is still open is its server's: then the right ends
        // when the beats do.
        if let (Ok(()), Some(heart)) = (closed, heart) {
            let _ = heart.give_up();
        }
    }
}

/// How a server ended.
enum End {
    /// By a signal.
    Asked,
    /// Nothing of it is applied any more.
    Lost(Error),
}

/// Signals, and errors after which nothing is taken from this server any more.
struct Stops {
    end: mpsc::Sender<Option<Error>>,
    ended: mpsc::Receiver<Option<Error>>,
}

impl Stops {
    fn install() -> Result<Stops, Error> {
        let mut signals = StopSignals::install()?;
        let (end, ended) = mpsc::channel();
        let signalled = end.clone();
        let waiting = std::thread::Builder::new().name("signals".into()).spawn(move || {
            signals.wait();
            let _ = signalled.send(None);
            // Kept until the end of the process, so that a second signal ends it at once.
            std::thread::park();
        });
        waiting.map_err(|e| Error::from_io("cannot start a thread for signals", e))?;
        Ok(Stops { end, ended })
    }

    /// True when a signal came; errors that came before are forgotten.
    fn is_asked(&self) -> bool {
        self.ended.try_iter().any(|ended| ended.is_none())
    }

    /// Waits so long for an end.
    fn within(&self, time: Duration) -> Option<End> {
        let ended = self.ended.recv_timeout(time).ok()?;
        Some(ended.map_or(End::Asked, End::Lost))
    }
}

/// Opens the store. A folder that another process has is waited for by a server that stands by; nothing when
/// a signal came first.
fn open(
    options: &Options,
    url: &Url,
    notifier: &Notifier,
    stops: Option<&Stops>,
) -> Result<Option<Backing>, Failure> {
    let mut said = false;
    loop {
        let busy = match (Backing::open(url, options.pace.timeout()), url) {
            (Err(error), Url::Folder(_)) if error.kind() == Kind::Busy => error,
            (opened, _) => return Ok(Some(opened?)),
        };
        let Some(stops) = stops else { return Err(busy.into()) };
        if !std::mem::replace(&mut said, true) {
            stands_by(notifier, &busy.to_string());
        }
        if matches!(stops.within(LOOK_AGAIN), Some(End::Asked)) {
            return Ok(None);
        }
    }
}

fn stands_by(notifier: &Notifier, why: &str) {
    tracing::info!("standing by: {why}");
    // The service has begun: it may wait as long as the other one lives.
    note(notifier.ready(&format!("standing by: {why}")));
}

/// The outcome of waiting.
enum Turn {
    Mine(Gateway),
    Ended(End),
}

/// Waits until no other server is at work.
fn stand_by(
    session: &Arc<Session>,
    shown: &str,
    notifier: &Notifier,
    stops: &Stops,
) -> Result<Turn, Failure> {
    let mut standby = Standby::new(session.clone());
    let (mut said, mut failing) = (String::new(), None::<Instant>);
    loop {
        let state = match standby.look() {
            Ok(Found::Mine(gateway)) => {
                match gateway.before() {
                    Some(before) => tracing::warn!(
                        "server {before} showed no sign of life: shut it out, and took {shown} over"
                    ),
                    None => tracing::debug!("no other server is at work on {shown}"),
                }
                return Ok(Turn::Mine(gateway));
            }
            Ok(Found::Serves(server, _)) => format!("server {server} serves {shown}"),
            Ok(Found::Writes(volume)) => {
                format!("another server writes volume '{}' of {shown}", volume.escape_debug())
            }
            Ok(Found::LooksAgain) => String::new(),
            Err(error) if error.kind() == Kind::Stopped => {
                return Ok(Turn::Ended(End::Lost(error)));
            }
            Err(error) if error.kind() == Kind::Denied => return Err(error.into()),
            Err(error) => {
                if failing.is_none_or(|at| at.elapsed() >= SAID_AGAIN) {
                    failing = Some(Instant::now());
                    tracing::warn!("{error}");
                }
                String::new()
            }
        };
        if !state.is_empty() && state != said {
            stands_by(notifier, &state);
            said = state;
        }
        if matches!(stops.within(LOOK_AGAIN), Some(End::Asked)) {
            return Ok(Turn::Ended(End::Asked));
        }
    }
}

/// Runs the command of `--on-takeover`; gives how the server ended meanwhile.
fn on_takeover(
    command: &str,
    shown: &str,
    before: Option<&str>,
    stops: &Stops,
) -> Result<Option<End>, Failure> {
    let failed = |error| Error::from_io("the command of --on-takeover can't be run", error);
    let mut child = Command::new("/bin/sh")
        .args(["-c", command])
        .env("ONEFOLD_STORE", shown)
        .env("ONEFOLD_SHUT_OUT", before.unwrap_or(""))
        .stdin(Stdio::null())
        .process_group(0)
        .spawn()
        .map_err(failed)?;
    let begun = Instant::now();
    let end = loop {
        if let Some(status) = child.try_wait().map_err(failed)? {
            return match status.success() {
                true => Ok(None),
                false => Err(Failure::new(format!(
                    "the command of --on-takeover failed ({status}): this server does not take over"
                ))),
            };
        }
        let end = stops.within(ENDS_AGAIN);
        if end.is_some() || begun.elapsed() >= COMMAND_MOST {
            break end;
        }
    };
    // With all that it began. It may have ended meanwhile.
    if let Some(group) = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw) {
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
    let _ = child.wait();
    match end {
        Some(end) => Ok(Some(end)),
        None => Err(Failure::new(format!(
            "the command of --on-takeover did not end in {} s: this server does not take over",
            COMMAND_MOST.as_secs()
        ))),
    }
}

/// Attaches the volumes of the servers that were shut out, so that its clients find them looked through.
fn look_through(
    shut_out: Vec<String>,
    exports: &Arc<ClusterExports>,
    stopping: &Arc<AtomicBool>,
) -> Result<std::thread::JoinHandle<()>, Error> {
    let (exports, stopping) = (exports.clone(), stopping.clone());
    let look = move || {
        let attached = exports.attach_all_of(&shut_out, |name, attached| {
            match attached {
                Ok(()) => tracing::info!("took volume '{}'", name.escape_debug()),
                Err(error) => tracing::warn!("{error}; it is tried again for a client"),
            }
            !stopping.load(Relaxed)
        });
        if let Err(error) = attached {
            tracing::warn!("{error}");
        }
    };
    let thread = std::thread::Builder::new().name("look through".into()).spawn(look);
    thread.map_err(|e| Error::from_io("cannot start a thread", e))
}

/// Waits for a signal, or for the error that ends the server. A folder that takes no more writes is
/// told of, and read on.
fn wait(ended: &mpsc::Receiver<Option<Error>>, backing: &Backing, notifier: &Notifier) -> End {
    let mut told = false;
    loop {
        match ended.recv_timeout(LOOK_EVERY) {
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            ended => return ended.ok().flatten().map_or(End::Asked, End::Lost),
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

/// A folder that is served, as commands see it.
struct Commands {
    session: Arc<Session>,
    exports: Arc<ClusterExports>,
    /// Gone while the server stops.
    server: Arc<Mutex<Option<nbd::Server>>>,
    read_only: bool,
}

impl Served for Commands {
    fn answer(&self, request: Request, _: &mut Tell<'_>) -> Result<Value, Error> {
        match request {
            Request::Pid => to_json(&std::process::id()),
            Request::Status => to_json(&status::cluster::look(&self.session, false)?),
            Request::VolumeList => {
                let line =
                    |(name, named): (String, Named)| json!({ "name": name, "bytes": named.bytes });
                Ok(self.session.volumes()?.into_iter().map(line).collect())
            }
            _ if self.read_only => {
                Err(Error::new(Kind::Denied, "the server of the folder only reads (--read-only)"))
            }
            change => {
                let clients = |name: &str| {
                    self.server.lock().as_ref().map_or(0, |server| server.clients_of(name))
                };
                if let Request::VolumeDelete { name, .. } = &change {
                    // There is no way to tear a volume from its clients here.
                    let careful = Request::VolumeDelete { name: name.clone(), force: false };
                    guard::clients(&careful, clients)?;
                }
                volume::cluster::change_served(&self.exports, &self.session, &change)?;
                self.exports.forget_list();
                if let Some(server) = self.server.lock().as_ref() {
                    server.volumes_changed();
                }
                tracing::info!("{}", volume::said(&change));
                Ok(Value::Null)
            }
        }
    }
}

fn to_json(value: &impl Serialize) -> Result<Value, Error> {
    serde_json::to_value(value)
        .map_err(|e| Error::new(Kind::Io, "an answer can't be written").caused_by(e))
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

/// How long a client waits for a volume, where servers stand by: one without `--standby` may have it, which
/// may have renewed its right just now, and as long again for a cluster that is slow.
const STANDBY: Duration = Duration::from_secs(20);

/// Between two looks whether another server still has a volume, or is at work.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// Between two looks whether an address is free.
const LISTEN_AGAIN: Duration = Duration::from_secs(2);

/// Between two looks whether a command has ended.
const ENDS_AGAIN: Duration = Duration::from_millis(50);

/// How long the command of `--on-takeover` may take: clients wait for it.
const COMMAND_MOST: Duration = Duration::from_secs(30);

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
