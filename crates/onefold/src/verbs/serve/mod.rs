//! `onefold serve`: a store at work, from opening to an orderly end.
//!
//! Up: sockets of the service manager, the store's lock and recovery, signals, its threads, the
//! control socket, NBD; then ready. Down, in the opposite order: NBD clients are answered and sent
//! away, commands end, everything is made durable, the store is marked clean.
//!
//! *Crash argument:* the process may end at any point, as after a power cut: the store recovers
//! when it is opened again.

mod access;
mod archive;
mod cluster;
mod commands;
mod limited;

use std::{
    path::PathBuf,
    sync::{Arc, mpsc},
    time::Duration,
};

use clap::{Args, ValueEnum};
use onefold_backend::{
    random::random_bytes,
    signals::{Stop, StopSignals},
    systemd::{Notifier, Service, Socket},
};
use onefold_block::{MEMORY_MIN, Persistence, Settings, Store, StoreExports};
use onefold_console::address::{self, Address, Door, uri};
use onefold_core::{Error, Exports, Kind, Result};
use onefold_serve::nbd::{self, Limits, Rights};
use parking_lot::Mutex;

pub(super) use self::archive::ArchiveServer;
use self::{
    access::{Access, Usual},
    commands::Commands,
    limited::{Limit, Limited},
};
use crate::{
    archive_dir::ArchiveDir,
    control,
    store_file::{StoreFile, WorkingStore},
    verbs::cluster::{DedupName, Pace, store_at, threads},
};
use onefold_console::{
    failure::Failure,
    size::{Size, grouped},
};

/// How long clients may take to send no more and read their answers when the server stops.
const CLIENT_GRACE: Duration = Duration::from_secs(10);

/// How often the server looks whether its store still takes writes.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Looks between two lines of status for the service manager.
const LOOKS_PER_STATUS: u32 = 30;

/// Volumes and sockets that the line of a ready server names.
const URIS_MAX: usize = 16;

/// Serves the volumes of a store over NBD, until SIGTERM or Ctrl-C
///
/// Without --nbd and without sockets from systemd it listens on a UNIX socket beside the store,
/// STORE.sock (for a device /run/onefold-NAME.sock). A UNIX socket can be reached by this user
/// alone (mode 0600).
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  onefold serve disk.onefold\n  \
                        onefold serve disk.onefold --nbd unix:/run/onefold.sock,mode=0660,group=kvm\n  \
                        onefold serve /dev/sdb --persistence strong --memory 2G\n  \
                        onefold serve backups --no-wait\n  \
                        onefold serve pool --workers 2\n  \
                        onefold serve rados: --nbd unix:/run/onefold.sock")]
pub(crate) struct Options {
    /// The store: a file or device, or an archive's directory; a folder may hold one of the
    /// cluster engine, whose writes are always acknowledged when they are durable, and
    /// rados:[CONF] is one on Ceph
    store: PathBuf,

    /// Where clients connect: unix:PATH, unix:PATH,mode=0660,group=NAME, or tcp:ADDRESS:PORT with
    /// --insecure; can be given several times
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) nbd: Vec<Address>,

    /// When a write is acknowledged: weak, when it is in memory, and durable after a flush or
    /// about a second; strong, when it is durable
    #[arg(long, value_enum, default_value = "weak")]
    persistence: PersistenceName,

    /// Memory for caches, index, uncommitted records, windows and buffers together
    #[arg(long, default_value = "512M", value_name = "SIZE")]
    pub(crate) memory: Size,

    /// Listens on TCP addresses, where everybody who can reach them, any user of this machine at
    /// least, may read and write: NBD has no passwords, and TLS is not there yet
    #[arg(long)]
    pub(crate) insecure: bool,

    /// Who may use which volumes, in lines like 'user:libvirt-qemu write vm-*'; without it this
    /// user and root everything, and everybody who reaches a TCP address
    #[arg(long, value_name = "FILE")]
    access: Option<PathBuf>,

    /// Ends connections on which nothing came for so many seconds; without it, none
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    idle_timeout: Option<u64>,

    /// Most requests and bytes a second of all clients of a volume, like vm1=500,10M; 0 is no
    /// limit. For this server, instead of what `volume limit` says; can be given several times
    #[arg(long, value_name = "VOLUME=IOPS,BYTES")]
    limit: Vec<Limit>,

    /// Connections at once; without it 256, or as many as the memory serves
    #[arg(long, value_name = "NUMBER", value_parser = connections)]
    pub(crate) max_connections: Option<usize>,

    /// Largest request
    #[arg(long, default_value = "32M", value_name = "SIZE")]
    max_request: Size,

    /// Seconds that a client may take for its handshake
    #[arg(long, default_value_t = nbd::limits::HANDSHAKE.as_secs(), value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    handshake_timeout: u64,

    /// Threads that deduplicate in the background, for a store of the cluster engine
    #[arg(long, default_value_t = 1, value_name = "NUMBER", value_parser = threads)]
    pub(crate) workers: usize,

    /// Most that chunks kept beside their deduplicated copies may take, for a store of the cluster
    /// engine; reading what is hot costs no more than this
    #[arg(long, default_value = "64M", value_name = "SIZE")]
    pub(crate) cache_bytes: Size,

    /// When writes are deduplicated, for a store of the cluster engine
    #[arg(long, value_enum, default_value = "post-processing")]
    pub(crate) dedup: DedupName,

    /// Takes volumes over from another server, which is shut out even when it only seems to be
    /// gone; for a store of the cluster engine
    #[arg(long, conflicts_with = "read_only")]
    pub(crate) take_over: bool,

    /// Serves volumes for reading, also while another server writes to them; for a store of the
    /// cluster engine
    #[arg(long)]
    pub(crate) read_only: bool,

    /// Fails when a put into the archive is running, instead of waiting for it; for an archive
    #[arg(long)]
    pub(crate) no_wait: bool,

    /// Goes on with nodes absent, while one more than the data needs are there; for an archive on
    /// several nodes
    #[arg(long)]
    pub(crate) degraded: bool,

    /// The filter chain, in its order: block-index, container-cache, bloom, chunk-index,
    /// byte-compare; for an archive
    #[arg(long, value_delimiter = ',', default_value = super::put::FILTERS, value_name = "FILTERS")]
    pub(crate) filters: Vec<onefold_archive::FilterName>,

    /// Zstandard's level for what is new; for an archive that compresses by it
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(i32).range(1..=19))]
    pub(crate) level: i32,

    /// All volumes of the store belong to one tenant: on a full store, writes of what any of them
    /// has stored are still taken. Without it, and with several volumes, they are refused like
    /// all others, so that nobody learns from them what another volume holds; for a store in a
    /// file or device
    #[arg(long)]
    pub(crate) one_tenant: bool,

    #[command(flatten)]
    pub(crate) pace: Pace,

    /// Seconds that a client may take to read its replies
    #[arg(long, default_value_t = nbd::limits::SEND.as_secs(), value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    send_timeout: u64,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum PersistenceName {
    /// Acknowledged in memory
    Weak,
    /// Acknowledged when durable
    Strong,
}

fn connections(text: &str) -> Result<usize, String> {
    const MOST: usize = 65_536;
    text.parse()
        .ok()
        .filter(|n| (1..=MOST).contains(n))
        .ok_or_else(|| format!("a number from 1 to {MOST}"))
}

impl Options {
    fn settings(&self) -> Result<Settings, Failure> {
        if self.memory.0 < MEMORY_MIN {
            return Err(Failure::usage(format!(
                "--memory {} is too little; a store needs at least {}",
                self.memory,
                Size(MEMORY_MIN)
            )));
        }
        let persistence = match self.persistence {
            PersistenceName::Weak => Persistence::Weak,
            PersistenceName::Strong => Persistence::Strong,
        };
        Ok(Settings { persistence, ..Settings::for_memory(self.memory.0) })
    }

    /// A server for volumes, with what their peers may do.
    fn server(&self, exports: Arc<dyn Exports>, limits: Limits) -> Result<nbd::Server, Failure> {
        let rights: Arc<dyn Rights> = match &self.access {
            Some(file) => Arc::new(Access::read(file)?),
            None => Arc::new(Usual::new()),
        };
        let exports: Arc<dyn Exports> = match &self.limit[..] {
            [] => exports,
            chosen => Arc::new(Limited { exports, chosen: chosen.to_vec() }),
        };
        Ok(nbd::Server::with_rights(exports, rights, limits))
    }

    fn limits(&self) -> Result<Limits, Failure> {
        let most = nbd::limits::PAYLOAD_BYTES;
        let payload_bytes =
            u32::try_from(self.max_request.0).ok().filter(|bytes| (4096..=most).contains(bytes));
        let Some(payload_bytes) = payload_bytes else {
            return Err(Failure::usage(format!(
                "--max-request is between 4K and {}",
                Size(u64::from(most))
            )));
        };
        let buffer_bytes = Settings::for_connections(self.memory.0) as usize;
        let connections =
            self.max_connections.unwrap_or_else(|| Limits::connections_for(buffer_bytes));
        let places = Limits::places_for(buffer_bytes, connections);
        let limits = Limits { connections, places, buffer_bytes, ..Limits::default() };
        let needed = limits.needed_bytes();
        if needed > buffer_bytes {
            let memory = Size(
                (needed as u64 * MEMORY_MIN / Settings::for_connections(MEMORY_MIN))
                    .next_multiple_of(1 << 20),
            );
            return Err(Failure::usage(format!(
                "--max-connections {connections} needs --memory {memory}"
            )));
        }
        Ok(Limits {
            payload_bytes,
            handshake: Duration::from_secs(self.handshake_timeout),
            idle: self.idle_timeout.map(Duration::from_secs),
            send: Duration::from_secs(self.send_timeout),
            ..limits
        })
    }
}

/// Serves until a signal comes.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let service = Service::take()?;
    let (settings, limits) = (options.settings()?, options.limits()?);
    address::let_in(&options.nbd, &service.sockets, options.insecure)?;
    if ArchiveDir::is_there(&options.store)
        && let Ok(directory) = ArchiveDir::look(&options.store)
    {
        return archive::run(options, &directory, service);
    }
    if let Some(url) = store_at(&options.store) {
        return cluster::run(options, &url, service);
    }
    let file = StoreFile::look(&options.store)?;

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

    let doors = match Doors::open(options, &file, working.store(), service.sockets, limits) {
        Ok(doors) => doors,
        Err(failure) => {
            // Nobody came in yet: the store is closed as it was found. What keeps the doors shut is
            // the error to tell.
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
    /// Where clients connect, as they type it, without a volume.
    listeners: Vec<String>,
}

impl Doors {
    fn open(
        options: &Options,
        file: &StoreFile,
        store: &Arc<Store>,
        sockets: Vec<Socket>,
        limits: Limits,
    ) -> Result<Doors, Failure> {
        let mut server = options.server(Arc::new(StoreExports(store.clone())), limits)?;
        let listeners = listen(options, Some(default_socket(file)), sockets, &mut server)?;
        let server = Arc::new(Mutex::new(Some(server)));
        let commands =
            Commands::new(file.clone(), options, store.clone(), server.clone(), &listeners);
        let control = control::Server::start(&file.control_name(), commands)?;
        if let Some(server) = server.lock().as_mut() {
            server.start()?;
        }
        Ok(Doors { server, control, listeners })
    }

    /// Answers what has arrived, and lets nobody in any more.
    fn close(self) -> Result<()> {
        let server = self.server.lock().take();
        let clients = server.map_or(Ok(()), |server| server.stop(CLIENT_GRACE));
        let commands = match self.control.stop() {
            true => Ok(()),
            false => Err(Error::new(Kind::Busy, "a command is still at work")),
        };
        clients.and(commands).map_err(|e| e.context("at the end"))
    }
}

/// Listens on the sockets of the service manager and where the options say, or else at the usual
/// place; gives the addresses as clients type them.
fn listen(
    options: &Options,
    usual: Option<PathBuf>,
    sockets: Vec<Socket>,
    server: &mut nbd::Server,
) -> Result<Vec<String>, Failure> {
    let mut addresses = options.nbd.clone();
    if addresses.is_empty() && sockets.is_empty() {
        addresses.extend(usual.map(|path| Address::Unix(path, Door::default())));
    }
    let mut listeners = Vec::new();
    for address in addresses {
        listeners.push(match address {
            Address::Unix(path, door) => {
                server.add_unix_for(&path, door.reach()?)?;
                Address::Unix(std::path::absolute(&path).unwrap_or(path), door)
            }
            Address::Tcp(address) => Address::Tcp(server.add_tcp(address, options.insecure)?),
        });
    }
    let mut listeners: Vec<String> = listeners.iter().map(Address::to_string).collect();
    for socket in sockets {
        listeners.push(address::of_socket(&socket.fd));
        server
            .add_listener(socket.fd, options.insecure)
            .map_err(|e| e.context(format!("socket {} from the service manager", socket.name)))?;
    }
    Ok(listeners)
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
        "serving {} volumes of {shown} at {}",
        volumes.len(),
        listeners.join(" and ")
    )));
}

/// A service manager that can't be reached is worth a line, and no reason to stop.
fn note(told: Result<()>) {
    if let Err(error) = told {
        tracing::warn!("{error}");
    }
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
            note(notifier.status(&format!("{} volumes, {free} free", status.volumes.len())));
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
