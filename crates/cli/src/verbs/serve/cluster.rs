//! `onefold serve` for a store of the cluster engine, in a folder or on Ceph: its volumes, with
//! workers inside.
//!
//! *Crash argument:* what was acknowledged is durable in the object store; volumes that were open
//! are looked through when they are attached again. A server whose volume was taken over is fenced:
//! nothing of it is applied any more, and it ends.

mod hook;
mod right;
mod standing;
mod stops;
mod told;
mod way_back;

use std::{
    cell::RefCell,
    io::{BufReader, Read, Write},
    ops::ControlFlow,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use onefold::parts::{
    cluster_store::{Backing, Url, control_name, gateway, gateway_control_name},
    cluster_work::{ClusterWork, Heart},
    control::{self, Request, Served, Tell, stream},
};
use onefold_backend::{
    process,
    systemd::{Notifier, Service, Socket},
};
use onefold_cluster::{ClusterExports, Copies, Mode, Named, Session, Settings};
use onefold_console::{
    address::{Address, uri},
    failure::Failure,
    size::{Size, counted},
};
use onefold_core::{Error, Exports, Kind};
use onefold_serve::{http, nbd};
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::{Value, json};

use self::{
    hook::Hook,
    right::{Right, taken_no_more},
    standing::{Waited, open, stand_by},
    stops::{End, Stops},
    told::Told,
    way_back::Why,
};
use super::{
    looked::Looked,
    options::{CLIENT_GRACE, LOOK_EVERY, Options, is_taken, listen_when_free, note, show},
    site::Reporter,
    trust::Trust,
};
use crate::{
    report::Nbd,
    verbs::{
        copied,
        copies::{self, Given},
        replicate, status,
        volume::{self, guard},
        worker::Workers,
    },
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
    let mut stops = if options.standby { Some(Stops::install(is_cluster(url))?) } else { None };
    loop {
        // What was sent before is of the server that this one was.
        if stops.as_ref().is_some_and(Stops::is_asked) {
            return Ok(());
        }
        let sockets = std::mem::take(&mut sockets);
        if let Some(stops) = &stops {
            stops.serves(false);
        }
        let Some(turn) = Turn::open(options, url, &notifier, trust, &mut stops)? else {
            return Ok(());
        };
        match turn.serve(sockets)? {
            End::Asked => return Ok(()),
            End::Lost(error) if options.stand_by_again => {
                tracing::warn!("{error}; standing by again");
            }
            End::Lost(error) => return Err(error.into()),
        }
    }
}

/// True where others may come at any time, and the store may not answer.
fn is_cluster(url: &Url) -> bool {
    matches!(url, Url::Rados(..))
}

/// Between two looks whether an address is free.
const LISTEN_AGAIN: Duration = Duration::from_secs(2);

/// One turn of a server: it opens the store, waits until no other server is at work, serves, and ends. What it has
/// begun ends with it, wherever it fails.
struct Turn<'a> {
    options: &'a Options,
    url: &'a Url,
    shown: String,
    notifier: &'a Notifier,
    trust: &'a Trust,
    stops: &'a Stops,
    mode: Mode,
    /// Servers that were shut out before this one serves.
    shut_out: Vec<String>,
    right: Right,
    session: Arc<Session>,
    /// After the sessions, which a folder ends.
    backing: Backing,
}

impl<'a> Turn<'a> {
    /// Opens the store; nothing when a signal came first.
    fn open(
        options: &'a Options,
        url: &'a Url,
        notifier: &'a Notifier,
        trust: &'a Trust,
        stops: &'a mut Option<Stops>,
    ) -> Result<Option<Turn<'a>>, Failure> {
        let shown = url.to_string();
        let mode = match (options.read_only, options.take_over) {
            (true, _) => Mode::Read,
            (false, true) => Mode::TakeOver,
            (false, false) => Mode::Own,
        };
        let Some(backing) = open(options, url, notifier, stops.as_ref())? else {
            return Ok(None);
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
            None => &*stops.insert(Stops::install(is_cluster(url))?),
        };
        let right = Right { work: None, heart: None, way_back: stops.way_back().clone() };
        Ok(Some(Turn {
            options,
            url,
            shown,
            notifier,
            trust,
            stops,
            mode,
            shut_out: Vec::new(),
            right,
            session,
            backing,
        }))
    }

    /// Serves as long as nobody else takes over.
    fn serve(mut self, sockets: Vec<Socket>) -> Result<End, Failure> {
        if let Some(end) = self.take_over()? {
            return Ok(end);
        }
        let mut doors = match self.open_doors(sockets)? {
            ControlFlow::Continue(doors) => doors,
            ControlFlow::Break(end) => return self.right.close(&self.backing, end),
        };
        self.say_ready(&doors);
        if !self.shut_out.is_empty() {
            let shut_out = std::mem::take(&mut self.shut_out);
            let exports = self.exports()?;
            doors.looks_through = Some(look_through(shut_out, exports, &doors.stopping)?);
        }
        if let Some(heart) = &self.right.heart {
            heart.settle();
        }
        let end = self.wait();
        self.close(&mut doors, end)
    }

    /// Waits until no other server is at work, and takes its place; gives an end that came first.
    fn take_over(&mut self) -> Result<Option<End>, Failure> {
        let mut before = None;
        // In a folder its claim says who serves.
        if self.options.standby && is_cluster(self.url) {
            let gateway = match stand_by(&self.session, &self.shown, self.notifier, self.stops)? {
                Waited::Mine(gateway) => gateway,
                Waited::Ended(end) => return Ok(Some(end)),
            };
            before = gateway.before().map(str::to_owned);
            self.shut_out = gateway.shut_out();
            self.right.heart = Some(Heart::start(gateway, self.stops.lost())?);
        }
        self.stops.serves(true);
        let hook = |option, command: &String| Hook {
            option,
            command: command.clone(),
            variables: vec![
                ("ONEFOLD_STORE", self.shown.clone()),
                ("ONEFOLD_SHUT_OUT", before.clone().unwrap_or_default()),
            ],
        };
        let way_back = self.options.on_replaced.as_ref();
        self.right.way_back.begin(way_back.map(|command| hook("--on-replaced", command)));
        let Some(command) = &self.options.on_takeover else { return Ok(None) };
        let ended = hook("--on-takeover", command).run(&mut |time| self.stops.within(time));
        match ended.map_err(|error| Failure::from(error).and("this server does not take over"))? {
            Some(end) => self.right.close(&self.backing, end).map(Some),
            None => Ok(None),
        }
    }

    fn exports(&self) -> Result<&Arc<ClusterExports>, Error> {
        let work = self.right.work.as_ref();
        let none = || Error::new(Kind::Stopped, "the volumes are not at work any more");
        work.map(ClusterWork::exports).ok_or_else(none)
    }

    /// Puts the volumes to work, and listens; gives an end that came first.
    fn open_doors(&mut self, sockets: Vec<Socket>) -> Result<ControlFlow<End, Doors>, Failure> {
        let Turn { options, url, trust, stops, .. } = *self;
        let work = ClusterWork::start(self.session.clone(), self.mode, stops.lost())?;
        let exports = self.right.work.insert(work).exports().clone();
        let mut doors = Doors::default();
        let told = Arc::new(Told::new(&exports, options.standby, &doors.stopping));
        if options.standby {
            // They may have changed while another server was at work.
            trust.read_before_listening();
        }
        let mut server = options.server(told, options.limits()?, trust)?;
        let mut ended = None;
        let mut waits = |error: &Error| {
            if options.standby {
                tracing::warn!("{error}; waiting until it is free");
                ended = stops.within(LISTEN_AGAIN);
            }
            options.standby && ended.is_none()
        };
        let usual = match url {
            Url::Folder(folder) => Some(socket(folder)),
            Url::Rados(..) => None,
        };
        let listeners = listen_when_free(options, usual, sockets, &mut server, &mut waits);
        if let Some(end) = ended {
            return Ok(ControlFlow::Break(end));
        }
        doors.listeners = listeners?;
        doors.workers =
            Some(Workers::start(&self.backing, options.workers(), &options.pace, true)?);
        *doors.server.lock() = Some(server);
        let control = match url {
            Url::Folder(folder) => Some(control_name(folder)?.0),
            // Verbs change the store by themselves there.
            Url::Rados(..) if options.read_only => None,
            // Another server at work would lose its socket to this one. The one before a server that stood by is
            // shut out, even if its process still listens.
            Url::Rados(..)
                if !options.standby
                    && gateway(url, &self.session).is_ok_and(|other| other.is_some()) =>
            {
                tracing::warn!(
                    "another server on this host takes the commands for {}: this one takes none",
                    self.shown
                );
                None
            }
            Url::Rados(..) => Some(gateway_control_name(&self.session)),
        };
        if let Some(name) = control {
            let commands = Commands {
                session: self.session.clone(),
                exports: exports.clone(),
                server: doors.server.clone(),
                read_only: options.read_only,
            };
            doors.control = Some(control::Server::start(&name, commands, trust.heard())?);
        }
        let looked = doors.looked.insert(Looked::start(options, &self.session, &exports)?);
        let pages = loop {
            let report = reporter(&self.shown, &doors.listeners, &doors.server, looked);
            match show(options, report, trust) {
                Err(error) if options.standby && is_taken(&error) => {
                    tracing::warn!("{error}; waiting until it is free");
                    if let Some(end) = stops.within(LISTEN_AGAIN) {
                        return Ok(ControlFlow::Break(end));
                    }
                }
                pages => break pages?,
            }
        };
        let pages = doors.pages.insert(pages);
        if let Some(server) = doors.server.lock().as_mut() {
            server.start()?;
        }
        pages.start()?;
        Ok(ControlFlow::Continue(doors))
    }

    fn say_ready(&self, doors: &Doors) {
        let (shown, listeners) = (&self.shown, &doors.listeners);
        let volumes = self.exports().map(|exports| exports.list()).unwrap_or_default();
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
        note(self.notifier.ready(&format!(
            "serving {} of {shown} at {}",
            counted(volumes.len() as u64, "volume"),
            listeners.join(" and ")
        )));
    }

    /// Waits for a signal, or for the error that ends the server. A folder that takes no more writes is
    /// told of, and read on.
    fn wait(&self) -> End {
        let mut told = false;
        loop {
            if let Some(end) = self.stops.within(LOOK_EVERY) {
                return end;
            }
            if let Some(error) = self.backing.stopped().filter(|_| !told).map(taken_no_more) {
                told = true;
                tracing::error!("{error}; reads go on");
                note(self.notifier.status(&format!("READING ONLY: {error}")));
            }
        }
    }

    /// Sends clients away, and gives back what this server has.
    fn close(mut self, doors: &mut Doors, end: End) -> Result<End, Failure> {
        match &end {
            End::Lost(error) => tracing::error!("{error}; stopping"),
            End::Asked => tracing::info!("stopping"),
        }
        if !(self.options.stand_by_again && matches!(end, End::Lost(_))) {
            note(self.notifier.stopping());
        }
        if matches!(end, End::Lost(_)) {
            // Clients find the other server the sooner.
            self.right.way_back.go(Why::Replaced);
        }
        let (gone, quiet) = doors.shut();
        match gone {
            Ok(()) => {}
            Err(_) if matches!(end, End::Lost(_)) => {}
            Err(error) => return Err(error.into()),
        }
        if !quiet {
            return Err(Error::new(Kind::Busy, "at the end: a command is still at work").into());
        }
        let end = self.right.close(&self.backing, end)?;
        if matches!(end, End::Asked) {
            tracing::info!("closed {}", self.shown);
        }
        Ok(end)
    }
}

/// What runs while clients are served. Dropped, as after an error at the start, all of it ends.
#[derive(Default)]
struct Doors {
    listeners: Vec<String>,
    /// Set when clients are sent away: nobody is to wait for volumes any more.
    stopping: Arc<AtomicBool>,
    /// Gone while the server stops.
    server: Arc<Mutex<Option<nbd::Server>>>,
    workers: Option<Workers>,
    control: Option<control::Server>,
    looked: Option<Looked>,
    pages: Option<http::Server>,
    looks_through: Option<std::thread::JoinHandle<()>>,
}

impl Doors {
    /// Sends clients away, and ends all else; gives whether clients went, and whether no command is still at
    /// work.
    fn shut(&mut self) -> (Result<(), Error>, bool) {
        self.stopping.store(true, Relaxed);
        drop(self.pages.take());
        if let Some(looked) = self.looked.take() {
            looked.stop();
        }
        let server = self.server.lock().take();
        let gone = server.map_or(Ok(()), |server| server.stop(CLIENT_GRACE));
        let quiet = self.control.take().is_none_or(control::Server::stop);
        if let Some(workers) = self.workers.take() {
            workers.stop();
        }
        if let Some(looks_through) = self.looks_through.take() {
            // Its panic, if any, was printed.
            let _ = looks_through.join();
        }
        (gone, quiet)
    }
}

impl Drop for Doors {
    fn drop(&mut self) {
        // The cause of the end says more than these.
        let _ = self.shut();
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

/// A store that is served, as commands see it.
struct Commands {
    session: Arc<Session>,
    exports: Arc<ClusterExports>,
    /// Gone while the server stops.
    server: Arc<Mutex<Option<nbd::Server>>>,
    read_only: bool,
}

impl Served for Commands {
    fn answer(&self, request: Request, progress: &mut Tell<'_>) -> Result<Value, Error> {
        match request {
            Request::Pid => to_json(&std::process::id()),
            Request::Status => to_json(&status::cluster::look(&self.session, false)?),
            Request::VolumeList => {
                let line =
                    |(name, named): (String, Named)| json!({ "name": name, "bytes": named.bytes });
                Ok(self.session.volumes()?.into_iter().map(line).collect())
            }
            Request::SnapshotList => to_json(&volume::cluster::snapshots(&self.session)?),
            Request::ReceiveList => to_json(&copies::receives(&self.session)?),
            _ if self.read_only => Err(only_reads()),
            Request::ReceiveExpire { days } => {
                let gone = Copies::of(&self.session).expire_receives(days)?;
                gone.iter().for_each(|name| tracing::info!("{}", replicate::expired(name)));
                copies::tidy(&self.session);
                to_json(&gone)
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
                if let Request::SnapshotDelete { name, .. } = &change {
                    let careful = Request::SnapshotDelete { name: name.clone(), force: false };
                    guard::clients(&careful, clients)?;
                }
                // It fails where the client has gone, and when the server stops.
                let progress = RefCell::new(progress);
                let goes_on = || (progress.borrow_mut())("applying trims", 0, 0);
                volume::cluster::change_served(&self.exports, &self.session, &change, &goes_on)?;
                self.changed();
                tracing::info!("{}", volume::said(&change));
                Ok(Value::Null)
            }
        }
    }

    fn take(
        &self,
        request: Request,
        input: &mut (dyn Read + Send),
        progress: &mut Tell<'_>,
    ) -> Result<Value, Error> {
        if self.read_only {
            return Err(only_reads());
        }
        // From now on the client sends.
        progress("ready", 0, 0)?;
        let input = BufReader::with_capacity(PIECE_BYTES, stream::Pieces::new(input));
        match request {
            Request::Import { name, domain } => {
                copies::one_domain(domain.as_deref())?;
                let look = &mut |done| progress("importing", done, 0);
                let bytes = copies::import(&self.session, &name, input, look)?;
                self.changed();
                tracing::info!("imported volume '{}' of {}", name.escape_debug(), Size(bytes));
                to_json(&bytes)
            }
            Request::Receive { volume, rollback, domain, .. } => {
                copies::one_domain(domain.as_deref())?;
                let look = &mut |done| progress("receiving", done, 0);
                let ending = &mut |name: &str, step: &mut dyn FnMut() -> Result<(), Error>| {
                    let exchange = || self.exports.while_exchanged(name, &mut *step);
                    volume::cluster::while_not_in_use(exchange)
                };
                let into = (volume.as_deref(), rollback);
                let received = Copies::of(&self.session).receive_with(into, input, look, ending);
                self.changed();
                copies::tidy(&self.session);
                let received = received?;
                tracing::info!("received snapshot '{}'", received.name.escape_debug());
                to_json(&copied::Received::from(&received))
            }
            _ => Err(does_not()),
        }
    }

    fn give(&self, request: Request, output: &mut dyn Write) -> Result<Value, Error> {
        let sent = match &request {
            Request::Export { name } => copies::give(&self.session, Given::Export(name), output)?,
            Request::Send { snapshot, from, resume, skip_damaged, .. } => {
                let what = copied::what(snapshot, from, resume, *skip_damaged)?;
                copies::give(&self.session, Given::Send(&what), output)?
            }
            _ => return Err(does_not()),
        };
        to_json(&sent)
    }
}

/// Bytes of a stream that are read at once.
const PIECE_BYTES: usize = 256 << 10;

fn does_not() -> Error {
    Error::new(Kind::Unsupported, "the server of a cluster store does not do this")
}

impl Commands {
    /// Volumes came, went, or hold something else.
    fn changed(&self) {
        self.exports.forget_list();
        if let Some(server) = self.server.lock().as_ref() {
            server.volumes_changed();
        }
    }
}

fn only_reads() -> Error {
    Error::new(Kind::Denied, "the server of the store only reads (--read-only)")
}

fn to_json(value: &impl Serialize) -> Result<Value, Error> {
    serde_json::to_value(value)
        .map_err(|e| Error::new(Kind::Io, "an answer can't be written").caused_by(e))
}

/// Where a store is served when nobody says so: beside its folder.
fn socket(folder: &std::path::Path) -> PathBuf {
    let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    let mut name = folder.as_os_str().to_owned();
    name.push(".sock");
    name.into()
}
