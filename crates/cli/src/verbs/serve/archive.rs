//! `onefold serve` for an archive: its backup volumes over NBD, and streams through the control
//! socket.
//!
//! The server is the ingesting process of its archive: puts reach it through the control socket,
//! and no other process puts meanwhile. All else, as `rm`, `ls`, `get`, `gc` and `check`, works
//! beside it.
//!
//! *Crash argument:* the process may end at any point: what was flushed is in the log, and the rest
//! is garbage for `gc`.

use std::{
    io::Read,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc,
    },
    time::{Duration, Instant},
};

use onefold_archive::{
    Gauge, Ingest, Nodes, PutRequest as Stream, Role, Settings, Shape, Tables, Volumes, backup_on,
    lost_index_files, make_chunk_index_whole, put_on,
};
use onefold_backend::{
    process,
    signals::StopSignals,
    systemd::{Notifier, Service},
};
use onefold_core::{Error, Exports, Kind, Result};
use onefold_serve::nbd;
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::Value;

use super::{
    append_only,
    maintenance::{Activity, Maintenance, Working},
    options::{CLIENT_GRACE, LOOK_EVERY, Options, URIS_MAX, listen, note, show},
    site::Reporter,
    trust::Trust,
};
use crate::{
    report::archive::ArchiveServer,
    verbs::{
        backup,
        keeping::file::PolicyFile,
        put,
        status::Stats,
        volume::{self, guard},
        waiting::storing,
    },
};
use onefold::parts::{
    archive_dir::{ArchiveDir, now},
    archive_work::ArchiveWork,
    control::{self, Backup, Request, Served, Tell, stream},
};
use onefold_console::{address::uri, failure::Failure, size::counted};

/// Between two looks for the end of a put that is waited for.
const WAIT: Duration = Duration::from_millis(200);

/// Between two lines for the service manager about a long beginning.
const TELL_EVERY: Duration = Duration::from_secs(5);

/// Seconds that a beginning may take after each of these lines, as for one that is not long.
const START_SECONDS: u32 = 600;

/// Serves until a signal comes.
pub(super) fn run(
    options: &Options,
    directory: &ArchiveDir,
    service: Service,
    trust: &Trust,
) -> Result<(), Failure> {
    let limits = options.limits()?;
    put::valid_filters(&options.filters)?;
    let policies = options.maintenance.as_deref().map(PolicyFile::read).transpose()?;
    let shown = directory.path().display();
    if let Some(pid) = directory.server()?.and_then(|mut server| server.pid().ok()) {
        return Err(Failure::new(format!("{shown} is served by process {pid} already")));
    }
    note(service.notifier.status("opening the archive"));
    let settings = Settings {
        filters: options.filters.clone(),
        level: options.level,
        append_only: options.append_only,
        ..Settings::default()
    };
    // Given up last, when nobody writes any more.
    let keeper = directory.claim()?;
    let (archive, nodes) =
        directory.open_while(settings, options.degraded, Some(&keeper.stands()))?;
    if archive.role().is_some_and(|role| role != Role::Manage) {
        let why = "a server manages its archive: start it with a key that opens a slot, and not with a role key";
        return Err(Failure::new(why));
    }
    if lost_index_files(&archive).is_ok_and(|lost| lost > 0) {
        directory.warn_of_lost_index(&archive);
        make_index_whole(&archive, &service.notifier)?;
    }
    // Until here a signal ends the process at once: opening may take long, and an archive survives
    // it like any crash.
    let mut signals = StopSignals::install()?;
    let (end, ended) = mpsc::channel();
    let waiting = std::thread::Builder::new().name("signals".into()).spawn(move || {
        signals.wait();
        // The other side is gone only when the server is ending anyway.
        let _ = end.send(());
        // Kept until the end of the process, so that a second signal ends it at once.
        std::thread::park();
    });
    waiting.map_err(|e| Error::from_io("cannot start a thread for signals", e))?;
    let Some(ingest) = ingest((directory, &archive), options.no_wait, &ended)? else {
        return Ok(());
    };
    let work = ArchiveWork::start(&ingest)?;
    let (volumes, exports) = (work.volumes().clone(), work.exports().clone());

    let mut server = options.server(exports.clone(), limits, trust)?;
    let listeners = listen(options, Some(socket(directory.path())), service.sockets, &mut server)?;
    let server = Arc::new(Mutex::new(Some(server)));
    let activity = Activity::new(moves(server.clone(), volumes.clone()));
    let maintained = Maintenance::start(
        &ingest,
        &archive,
        policies,
        options.append_only,
        options.replay_after,
        activity.clone(),
    )?;
    let maintenance = Arc::new(Mutex::new(Some(maintained)));
    let commands = Commands {
        volumes: volumes.clone(),
        server: server.clone(),
        listeners: listeners.clone(),
        activity,
        maintenance: maintenance.clone(),
        begun: Instant::now(),
        append_only: options.append_only,
    };
    let reporter = reporter(directory.clone(), nodes.clone(), commands.clone());
    let mut pages = show(options, reporter, trust)?;
    let control = control::Server::start(&directory.control_name()?, commands, trust.heard())?;
    if let Some(server) = server.lock().as_mut() {
        server.start()?;
    }
    pages.start()?;
    let names = exports.list();
    let uris: Vec<String> = names
        .iter()
        .flat_map(|volume| listeners.iter().map(|listener| uri(listener, &volume.name)))
        .take(URIS_MAX)
        .collect();
    match uris.is_empty() {
        true => tracing::info!(
            "serving {shown} at {}; it has no volumes yet (onefold volume create)",
            listeners.join(" and ")
        ),
        false => tracing::info!("serving {shown}: {}", uris.join("  ")),
    }
    nodes
        .iter()
        .flat_map(|nodes| directory.notes(nodes))
        .for_each(|absent| tracing::warn!("{absent}"));
    note(service.notifier.ready(&format!(
        "serving {} of {shown} at {}",
        counted(names.len() as u64, "volume"),
        listeners.join(" and ")
    )));
    let mut stopped = false;
    while ended
        .recv_timeout(LOOK_EVERY)
        .is_err_and(|error| error == mpsc::RecvTimeoutError::Timeout)
    {
        if let Some(reason) = volumes.stopped()
            && !stopped
        {
            stopped = true;
            note(service.notifier.status(&format!("READING ONLY: {reason}")));
        }
    }
    tracing::info!("stopping");
    note(service.notifier.stopping());
    drop(pages);
    let maintenance = maintenance.lock().take();
    drop(maintenance);
    let server = server.lock().take();
    let quiet = server.map_or(Ok(()), |server| server.stop(CLIENT_GRACE));
    let commands = control.stop();
    quiet.and_then(|()| work.close()).map_err(|e| e.context(shown.to_string()))?;
    if !commands {
        return Err(Failure::new(format!("{shown}: a command was still at work at the end")));
    }
    tracing::info!("closed {shown}");
    Ok(())
}

/// Makes a chunk index anew of which files are lost. Where that can't be done now, as on a disk without
/// room for one, chunks are stored again.
fn make_index_whole(archive: &Arc<onefold_archive::Archive>, notifier: &Notifier) -> Result<()> {
    let mut told: Option<Instant> = None;
    let mut progress = |done: u64, total: u64| {
        if told.is_none_or(|at| at.elapsed() >= TELL_EVERY) {
            let status = format!("making the chunk index anew: {done} of {total} containers");
            note(notifier.takes_longer(&status, START_SECONDS));
            told = Some(Instant::now());
        }
    };
    match make_chunk_index_whole(archive, &mut progress) {
        Err(error) if matches!(error.kind(), Kind::NoSpace | Kind::Busy) => Ok(()),
        made => made.map(|_| ()),
    }
}

/// A number that moves when clients of volumes are at work.
fn moves(
    server: Arc<Mutex<Option<nbd::Server>>>,
    volumes: Arc<Volumes>,
) -> impl Fn() -> u64 + Send + Sync + 'static {
    let at_work = AtomicU64::new(0);
    move || {
        let statistics = server.lock().as_ref().map(nbd::Server::statistics);
        let seen = statistics.unwrap_or_default();
        let requests = [
            seen.reads,
            seen.writes,
            seen.flushes,
            seen.trims,
            seen.zeroes,
            seen.caches,
            seen.statuses,
        ];
        let (working, requests) = (seen.working, requests.into_iter().fold(0, u64::wrapping_add));
        // A client at work counts at each look, as its request may take long.
        let looks =
            if working > 0 { at_work.fetch_add(1, Relaxed) + 1 } else { at_work.load(Relaxed) };
        let write_backs = volumes.counts().write_backs;
        requests.wrapping_add(looks).wrapping_add(write_backs)
    }
}

/// Makes reports from what the server has in memory, and the leaves of containers.
fn reporter(directory: ArchiveDir, nodes: Option<Arc<Nodes>>, commands: Commands) -> Reporter {
    // While the log is written, the tables are as of the report before.
    let last = Mutex::new(commands.volumes.archive().tables());
    Box::new(move || {
        let archive = commands.volumes.archive();
        let tables = {
            let mut last = last.lock();
            if let Some(tables) = archive.tables_at_once() {
                *last = tables;
            }
            last.clone()
        };
        let stats = |tables: &Tables| {
            let server = commands.report();
            Stats::new(&directory, archive, tables, nodes.as_deref(), Some(server))
        };
        match stats(&tables) {
            // Others changed the archive since this server looked at it.
            Err(error) if error.kind() == Kind::Busy => {
                let tables = archive.refresh()?;
                json(&stats(&tables)?)
            }
            stats => json(&stats?),
        }
    })
}

/// Becomes the ingesting process; `None` when it is told to stop while it waits for another one.
fn ingest(
    (directory, archive): (&ArchiveDir, &Arc<onefold_archive::Archive>),
    no_wait: bool,
    ended: &mpsc::Receiver<()>,
) -> Result<Option<Arc<Ingest>>, Failure> {
    let mut told = false;
    loop {
        match Ingest::begin(archive, false, true) {
            Err(error) if error.kind() == Kind::Busy && !no_wait => {
                if !told {
                    let storing = storing(directory.writers().first());
                    tracing::info!(
                        "waiting for a put or backup into the archive to end: {storing}"
                    );
                    told = true;
                }
            }
            begun => return Ok(Some(begun?)),
        }
        if !ended.recv_timeout(WAIT).is_err_and(|error| error == mpsc::RecvTimeoutError::Timeout) {
            return Ok(None);
        }
    }
}

/// Where an archive is served when nobody says so: beside its directory.
fn socket(directory: &Path) -> std::path::PathBuf {
    let directory = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
    let mut name = directory.as_os_str().to_owned();
    name.push(".sock");
    name.into()
}

/// A served archive, as commands see it.
#[derive(Clone)]
struct Commands {
    volumes: Arc<Volumes>,
    /// Gone while the server stops.
    server: Arc<Mutex<Option<nbd::Server>>>,
    listeners: Vec<String>,
    begun: Instant,
    append_only: bool,
    activity: Arc<Activity>,
    /// Gone while the server stops.
    maintenance: Arc<Mutex<Option<Maintenance>>>,
}

impl Commands {
    fn report(&self) -> ArchiveServer {
        let counts = self.volumes.counts();
        let nbd = self.server.lock().as_ref().map(|server| server.statistics().into());
        let of = |keeper: &Maintenance| (keeper.doing(), keeper.replay(), keeper.held_back());
        // Locked once: a second guard in the same statement would wait for the first one.
        let (maintenance, replay, held_back) =
            self.maintenance.lock().as_ref().map(of).unwrap_or_default();
        ArchiveServer {
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_seconds: self.begun.elapsed().as_secs(),
            listeners: self.listeners.clone(),
            dirty_bytes: counts.dirty_bytes,
            drains: counts.write_backs,
            chunks: counts.chunks,
            duplicate_chunks: counts.duplicates,
            index_page_reads: counts.page_reads,
            metadata_reads: counts.metadata_reads,
            new_bytes: counts.new_bytes,
            added_bytes: counts.added_bytes,
            stopped: self.volumes.stopped().map(|reason| reason.to_string()),
            nbd,
            cpu_seconds: process::cpu_time().as_secs_f64(),
            append_only: self.append_only,
            maintenance,
            replay,
            held_back,
            index_failed: self.volumes.archive().index_failure().map(|error| error.to_string()),
        }
    }
}

impl Served for Commands {
    fn answer(&self, request: Request, _progress: &mut Tell<'_>) -> Result<Value> {
        self.allow(&request)?;
        match request {
            Request::Pid => json(&std::process::id()),
            Request::Status => json(&self.report()),
            Request::VolumeClone { of, name, read_only } => {
                self.volumes.clone_volume(&of, &name, read_only)?;
                tracing::info!("{}", volume::said(&Request::VolumeClone { of, name, read_only }));
                Ok(Value::Null)
            }
            change => {
                guard::clients(&change, |name| {
                    self.server.lock().as_ref().map_or(0, |server| server.clients_of(name))
                })?;
                volume::archive::apply(self.volumes.archive(), &change)?;
                if let Some(server) = self.server.lock().as_ref() {
                    server.volumes_changed();
                }
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
    ) -> Result<Value> {
        self.allow(&request)?;
        let _working: Working = self.activity.work();
        let request = match request {
            // A backup says nothing of its times.
            Request::Backup(request) => {
                let request = Backup { copied: None, ..*request };
                return self.take_backup(&request, input, progress);
            }
            Request::Copy(request) if request.copied.is_some() => {
                return self.take_backup(&request, input, progress);
            }
            request => request,
        };
        let Request::Put { name, tree, domain } = request else {
            return Err(Error::new(Kind::Unsupported, "the server of an archive does not do this"));
        };
        onefold_archive::valid_name(&name)?;
        // Looked at again when the stream is committed; this one spares the client its way.
        if self.append_only && self.volumes.archive().refresh()?.streams.contains_key(&name) {
            return Err(Error::new(
                Kind::Exists,
                format!(
                    "there is a stream '{}' already, and the server of the archive, with \
                     --append-only, replaces none",
                    name.escape_debug()
                ),
            ));
        }
        // From now on the client sends.
        progress("ready", 0, 0)?;
        let shape = if tree { Shape::Tree } else { Shape::Bytes };
        let (gauge, name_of) = (Gauge::default(), name.clone());
        let stream_of = Stream { name: name_of, shape, domain, now: now(), wait: false };
        let looked = &gauge;
        let report = put_on(self.volumes.ingest(), stream_of, &gauge, |feeder| {
            stream::take(input, feeder, &mut || {
                progress("storing", looked.new.load(Relaxed), looked.read.load(Relaxed))
            })
        })?;
        tracing::info!("stored {name:?}");
        json(&put::Stored::new(&name, &report))
    }
}

impl Commands {
    fn allow(&self, request: &Request) -> Result<()> {
        if self.append_only { append_only::allow(request) } else { Ok(()) }
    }

    /// A snapshot of directories, by the clock of the server.
    fn take_backup(
        &self,
        request: &Backup,
        input: &mut (dyn Read + Send),
        progress: &mut Tell<'_>,
    ) -> Result<Value> {
        let request = backup::served::request(request, now)?;
        // From now on the client sends.
        progress("ready", 0, 0)?;
        let gauge = Gauge::default();
        let looked = &gauge;
        let made = backup_on(self.volumes.ingest(), &request, &gauge, |feeder| {
            stream::take_tree(input, feeder, &mut || {
                progress("storing", looked.new.load(Relaxed), looked.read.load(Relaxed))
            })
        })?;
        tracing::info!("stored snapshot {} of {:?}", request.id, request.set);
        Ok(backup::report(&made))
    }
}

fn json(value: &impl Serialize) -> Result<Value> {
    serde_json::to_value(value)
        .map_err(|e| Error::new(Kind::Io, "an answer can't be written").caused_by(e))
}
