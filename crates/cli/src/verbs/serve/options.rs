//! The options of `onefold serve`, and the work on them that all three engines share.

use std::{path::PathBuf, sync::Arc, time::Duration};

use clap::{Args, ValueEnum};
use onefold_backend::systemd::Socket;
use onefold_block::{MEMORY_MIN, Persistence, Settings, Tidying};
use onefold_cluster::Dedup;
use onefold_console::{
    address::{self, Address, Door},
    failure::Failure,
    size::Size,
};
use onefold_core::{Error, Exports, Kind, Result};
use onefold_serve::{
    http,
    nbd::{self, Limits},
};

use super::{
    limited::{Limit, Limited},
    site::{Pages, Reporter},
    trust::Trust,
    vhost::VhostDevice,
};
use crate::verbs::worker::{Pace, threads};

/// How long clients may take to send no more and read their answers when the server stops.
pub(super) const CLIENT_GRACE: Duration = Duration::from_secs(10);

/// How often the server looks whether its store still takes writes.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Volumes and sockets that the line of a ready server names.
pub(super) const URIS_MAX: usize = 16;

/// Serves the volumes of a store over NBD, until SIGTERM or Ctrl-C
///
/// Without --nbd and without sockets from systemd the server listens on a UNIX socket beside the
/// store, STORE.sock (for a device /run/onefold-NAME.sock). Only this user can reach a UNIX socket
/// (mode 0600), unless its address says otherwise.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
                        onefold serve disk.onefold\n  \
                        onefold serve disk.onefold --nbd \
                        unix:/run/onefold.sock,mode=0660,group=kvm\n  \
                        onefold serve disk.onefold --persistence strong --vhost \
                        vm1=unix:/run/onefold/vm1.sock\n  \
                        onefold serve /dev/sdb --persistence strong --memory 2G\n  \
                        onefold serve backups --no-wait\n  \
                        onefold serve backups --append-only --maintenance \
                        /etc/onefold/policy.toml\n  \
                        onefold serve pool --workers 2\n  \
                        onefold serve rados: --nbd unix:/run/onefold.sock")]
pub(crate) struct Options {
    /// The store, of any engine: a file or device, a directory, a folder, or rados:[CONF] for one
    /// on Ceph
    pub(super) store: PathBuf,

    /// Address for clients: unix:PATH, unix:PATH,mode=0660,group=NAME, or tcp:ADDRESS:PORT with
    /// --tls or --insecure; can be given several times
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) nbd: Vec<Address>,

    /// Makes a vhost-user-blk device of a volume or snapshot, like vm1=unix:/run/onefold/vm1.sock, for
    /// a virtual machine that shares its memory. The socket is for this user alone and has one client
    /// at a time. Can be given several times
    #[arg(long, value_name = "VOLUME=unix:PATH")]
    pub(crate) vhost: Vec<VhostDevice>,

    /// Address for browsers and Prometheus: unix:PATH, unix:PATH,mode=0660,group=NAME, or
    /// tcp:ADDRESS:PORT with --tls or --insecure. Shows /metrics, /status.json and a page; with
    /// --insecure what the store holds is left out without --one-tenant. Can be given several times
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) http: Vec<Address>,

    /// A name with dots by which clients of --http call this server, like nas.example.com.
    /// By other such names it does not answer, since a page of another site might ask in somebody's
    /// browser. Can be given several times
    #[arg(long, value_name = "NAME", requires = "http")]
    http_name: Vec<String>,

    /// When a write is acknowledged: weak, when it is in memory, and a flush or about a second
    /// makes it durable; strong, when it is durable. The cluster engine is always strong
    #[arg(long, value_enum, default_value = "weak")]
    pub(super) persistence: PersistenceName,

    /// When a block store moves blocks that lie scattered: pauses, when nobody asked for anything for
    /// 50 ms, and beside requests in a twentieth of the time; off, never
    #[arg(long, value_enum, default_value = "pauses")]
    moving: MovingName,

    /// Packs blocks of a block store that nobody changed for so many seconds, those that compress well,
    /// several into one, in pauses; 3600 suits most. Without it none are. What is packed and written again
    /// takes its whole room until it has not been changed for so long. Once a store has packs, older
    /// programs refuse it. Encrypted stores can't do it yet
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=31_536_000))]
    pack_after: Option<u64>,

    /// Memory for caches, index, uncommitted records, windows and buffers together
    #[arg(long, default_value = "512M", value_name = "SIZE")]
    pub(crate) memory: Size,

    /// Allows TCP addresses without TLS. Everybody who can reach one, at least each user of this
    /// machine, may read and write, unless --access says less: NBD has no passwords
    #[arg(long)]
    pub(crate) insecure: bool,

    /// Directory with ca-cert.pem, server-cert.pem and server-key.pem, and maybe ca-crl.pem, as `onefold
    /// tls issue --server` makes it. TCP addresses then take TLS only, from clients that show a
    /// certificate of this authority and have a line in --access. SIGHUP reads it and --access again
    #[arg(long, value_name = "DIR", conflicts_with = "insecure")]
    pub(crate) tls: Option<PathBuf>,

    /// File with rights to volumes, in lines like 'user:libvirt-qemu write vm-*' or 'client:NAME read
    /// backup'. Without it this user, root, and everybody who reaches a TCP address with --insecure
    /// may read and write all volumes
    #[arg(long, value_name = "FILE")]
    pub(super) access: Option<PathBuf>,

    /// File, or 'journal', that gets a line for each volume that a client opens and closes, each
    /// client that is refused, and each command that changes or copies something. Each line names the
    /// hash of the one before it, and `onefold audit` proves that none was changed
    #[arg(long, value_name = "FILE")]
    pub(super) audit: Option<PathBuf>,

    /// Ends connections on which nothing arrived for so many seconds; without it, none
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    idle_timeout: Option<u64>,

    /// Most requests and bytes a second of all clients of a volume, like vm1=500,10M; 0 is no
    /// limit. Replaces the limits of `volume set` while this server runs; can be given several
    /// times
    #[arg(long, value_name = "VOLUME=IOPS,BYTES")]
    limit: Vec<Limit>,

    /// Most connections at once; without it 256, or as many as --memory and the limit of descriptors allow
    #[arg(long, value_name = "NUMBER", value_parser = connections)]
    pub(crate) max_connections: Option<usize>,

    /// Largest request
    #[arg(long, default_value = "32M", value_name = "SIZE")]
    max_request: Size,

    /// Seconds that a client may take for its handshake
    #[arg(
        long,
        default_value_t = nbd::limits::HANDSHAKE.as_secs(),
        value_name = "SECONDS",
        value_parser = clap::value_parser!(u64).range(1..=3600)
    )]
    handshake_timeout: u64,

    /// Threads that deduplicate in the background [default: 1; none with --read-only]. Cluster engine only
    #[arg(long, value_name = "NUMBER", value_parser = threads)]
    workers: Option<usize>,

    /// Most space for second copies of hot chunks, which stay with their objects so that reads are
    /// fast. Cluster engine only
    #[arg(long, default_value = "64M", value_name = "SIZE")]
    pub(crate) cache_bytes: Size,

    /// When writes are deduplicated. Cluster engine only
    #[arg(long, value_enum, default_value = "post-processing")]
    pub(crate) dedup: DedupName,

    /// Takes volumes over from another server, and shuts that server out even when it only seems to
    /// be gone. Cluster engine only
    #[arg(long, conflicts_with = "read_only")]
    pub(crate) take_over: bool,

    /// Waits while another server with this option serves the store, or any server writes a volume. When that
    /// one ends, or showed no sign of life for 9 s, shuts it out, listens, and serves. A folder is taken over
    /// when its process has ended. Not with --vhost. Cluster engine only
    #[arg(long, conflicts_with_all = ["read_only", "take_over"])]
    pub(crate) standby: bool,

    /// Stands by again after another server took over, instead of ending. Cluster engine only
    #[arg(long, requires = "standby")]
    pub(crate) stand_by_again: bool,

    /// Command for the shell, run when this server takes over and before it listens, as to move an address
    /// to this host. When it fails, or takes 30 s, the server gives up, and another one may take over. Cluster engine
    /// only
    #[arg(long, value_name = "COMMAND", requires = "standby")]
    pub(crate) on_takeover: Option<String>,

    /// Command for the shell, run when this server serves no more: another one took over, a signal came, or it
    /// failed after the command of --on-takeover was begun. As to take an address from this host; it has 30 s. Cluster
    /// engine only
    #[arg(long, value_name = "COMMAND", requires = "standby")]
    pub(crate) on_replaced: Option<String>,

    /// Serves volumes for reading, also while another server writes to them, and writes nothing: the right
    /// to read both pools is enough. Cluster engine only
    #[arg(long)]
    pub(crate) read_only: bool,

    /// Fails when another process stores into the archive, as a put or a backup does, instead of
    /// waiting for it. Archives only
    #[arg(long)]
    pub(crate) no_wait: bool,

    /// Continues when nodes are absent, as long as one more is present than the data needs.
    /// Archives on several nodes only
    #[arg(long)]
    pub(crate) degraded: bool,

    /// Takes new streams and snapshots, stamped by this clock, and nothing else: clients can't
    /// remove, replace, rename or overwrite anything, and read volumes only. Whoever can write to
    /// the archive's directory still can. Archives only
    #[arg(long)]
    pub(crate) append_only: bool,

    /// Looks after the archive by the policies of this TOML file when nobody asks for anything:
    /// forgets, frees space, and reads all data once in a while. Archives only
    #[arg(long, value_name = "FILE")]
    pub(crate) maintenance: Option<PathBuf>,

    /// How long no client asked for anything before the server replays in the background what the
    /// operations log says: imports containers into the chunk index, counts usage, merges runs of the
    /// index, writes a checkpoint of the tables. 'never' leaves that to puts and gc. Without it 10s,
    /// or what the file of --maintenance says. Archives only
    #[arg(long, value_name = "TIME", conflicts_with = "maintenance", value_parser = replay_after)]
    pub(crate) replay_after: Option<ReplayAfter>,

    /// The filter chain, in order: block-index, container-cache, bloom, chunk-index, byte-compare.
    /// Archives only
    #[arg(
        long,
        value_delimiter = ',',
        default_value = crate::verbs::put::FILTERS,
        value_name = "FILTERS"
    )]
    pub(crate) filters: Vec<onefold_archive::FilterName>,

    /// Level of Zstandard for new chunks. Archives with --compress zstd only
    #[arg(
        long,
        default_value_t = 1,
        value_name = "N",
        value_parser = clap::value_parser!(i32).range(1..=19)
    )]
    pub(crate) level: i32,

    /// Says that all volumes belong to one tenant: a full store then still takes writes of blocks
    /// that it holds already. Without it a full store with several volumes refuses these writes
    /// too, so that no client learns from them what another volume holds. Block stores only
    #[arg(long)]
    pub(crate) one_tenant: bool,

    #[command(flatten)]
    pub(crate) pace: Pace,

    /// Seconds that a client may take to read its replies
    #[arg(
        long,
        default_value_t = nbd::limits::SEND.as_secs(),
        value_name = "SECONDS",
        value_parser = clap::value_parser!(u64).range(1..=3600)
    )]
    send_timeout: u64,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum PersistenceName {
    /// Acknowledged in memory
    Weak,
    /// Acknowledged when durable
    Strong,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum MovingName {
    /// In pauses, and a little beside requests, in steps of a few milliseconds
    Pauses,
    /// Never
    Off,
}

/// When a server replays in the background.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplayAfter {
    /// When nobody asked for anything for so long.
    Idle(Duration),
    Never,
}

fn replay_after(text: &str) -> Result<ReplayAfter, String> {
    match text {
        "never" => Ok(ReplayAfter::Never),
        text => humantime::parse_duration(text)
            .map(ReplayAfter::Idle)
            .map_err(|_| "a time like 10s, or never".to_owned()),
    }
}

pub(super) fn connections(text: &str) -> Result<usize, String> {
    const MOST: usize = 65_536;
    text.parse()
        .ok()
        .filter(|n| (1..=MOST).contains(n))
        .ok_or_else(|| format!("a number from 1 to {MOST}"))
}

/// When a server deduplicates what clients write.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum DedupName {
    /// Workers deduplicate later
    PostProcessing,
    /// Once a write is durable, before it is acknowledged; for comparison
    FlushThrough,
    /// As part of the write: whole chunks are read, changed and stored; for comparison
    Inline,
}

impl From<DedupName> for Dedup {
    fn from(name: DedupName) -> Dedup {
        match name {
            DedupName::PostProcessing => Dedup::PostProcessing,
            DedupName::FlushThrough => Dedup::FlushThrough,
            DedupName::Inline => Dedup::Inline,
        }
    }
}

impl Options {
    /// Refuses options of archives for a store of another engine: it would not keep what they
    /// promise.
    pub(super) fn not_of_archives(&self) -> Result<(), Failure> {
        match (self.append_only, &self.maintenance, self.replay_after) {
            (false, None, None) => Ok(()),
            _ => Err(Failure::usage(
                "--append-only, --maintenance and --replay-after are for archives",
            )),
        }
    }

    /// Refuses the options of servers that stand by for a store that has no such servers.
    pub(super) fn not_standing_by(&self) -> Result<(), Failure> {
        match self.standby {
            false => Ok(()),
            true => Err(Failure::usage("--standby is for stores of the cluster engine")),
        }
    }

    /// Refuses to pack for a store that has no packs.
    pub(super) fn not_packing(&self) -> Result<(), Failure> {
        match self.pack_after {
            None => Ok(()),
            Some(_) => Err(Failure::usage("--pack-after is for block stores")),
        }
    }

    /// Threads that deduplicate in the background.
    pub(super) fn workers(&self) -> usize {
        // A server that only reads may lack the right to do more.
        if self.read_only { 0 } else { self.workers.unwrap_or(1) }
    }

    pub(super) fn settings(&self) -> Result<Settings, Failure> {
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
        let tidying = match self.moving {
            MovingName::Pauses => Tidying::Moves,
            MovingName::Off => Tidying::Off,
        };
        let pack_after = self.pack_after.map(Duration::from_secs);
        if pack_after.is_some() && tidying != Tidying::Moves {
            return Err(Failure::usage("--pack-after needs --moving pauses: packing moves blocks"));
        }
        Ok(Settings { persistence, tidying, pack_after, ..Settings::for_memory(self.memory.0) })
    }

    /// A server for volumes, with what their peers may do.
    pub(super) fn server(
        &self,
        exports: Arc<dyn Exports>,
        limits: Limits,
        trust: &Trust,
    ) -> Result<nbd::Server, Failure> {
        let exports: Arc<dyn Exports> = match &self.limit[..] {
            [] => exports,
            chosen => Arc::new(Limited { exports, chosen: chosen.to_vec() }),
        };
        let mut server = nbd::Server::with_rights(exports, trust.rights(self.append_only), limits);
        if let Some(credentials) = &trust.credentials {
            server.secure(credentials.clone());
        }
        if let Some(audit) = &trust.audit {
            trust.tells("serving", &self.store);
            server.tell(audit.clone());
        }
        trust.follow_hangups(server.watch())?;
        Ok(server)
    }

    pub(super) fn limits(&self) -> Result<Limits, Failure> {
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
        let tls = self.tls.is_some();
        let may_open = connections_of(onefold_backend::process::descriptors());
        let connections = self
            .max_connections
            .unwrap_or_else(|| Limits::connections_for(buffer_bytes, tls).min(may_open));
        if connections > may_open {
            return Err(Failure::usage(format!(
                "--max-connections {connections} needs a higher limit of descriptors (`ulimit -n`, LimitNOFILE=): this \
                 one is enough for {may_open}"
            )));
        }
        let places = Limits::places_for(buffer_bytes, connections, tls);
        let limits = Limits { connections, places, buffer_bytes, tls, ..Limits::default() };
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

/// Descriptors for all that is no connection: the store's files, pages, commands, devices of virtual machines.
const OTHER_DESCRIPTORS: u64 = 160;

/// Connections for which so many descriptors are enough, at least two. Each may have two for a moment.
fn connections_of(descriptors: u64) -> usize {
    let left = descriptors.saturating_sub(OTHER_DESCRIPTORS);
    usize::try_from((left / 2).max(2)).unwrap_or(usize::MAX)
}

/// Refuses addresses of a network that are neither guarded by TLS nor insisted on.
pub(super) fn let_in(options: &Options, sockets: &[Socket]) -> Result<(), Failure> {
    const HOW: &str = "use unix:PATH, let in only clients with a certificate by --tls DIR, or \
                       everybody by --insecure";
    let guarded = options.insecure || options.tls.is_some();
    address::let_in(&options.nbd, sockets, guarded, HOW)?;
    address::let_in(&options.http, &[], guarded, HOW)?;
    let of_network = address::are_of_network(&options.nbd, sockets)
        || address::are_of_network(&options.http, &[]);
    match &options.tls {
        Some(_) if !of_network => Err(Failure::usage(
            "--tls is for TCP addresses, and there is none: UNIX sockets know their users",
        )),
        Some(_) if options.access.is_none() => Err(Failure::usage(
            "--tls needs --access FILE: without a line in it no certificate may do anything, like \
             'client:NAME write VOLUME'",
        )),
        _ => Ok(()),
    }
}

/// Listens on the sockets of the service manager and where the options say, or else at the usual
/// place; gives the addresses as clients type them.
pub(super) fn listen(
    options: &Options,
    usual: Option<PathBuf>,
    sockets: Vec<Socket>,
    server: &mut nbd::Server,
) -> Result<Vec<String>, Failure> {
    listen_when_free(options, usual, sockets, server, &mut |_| false)
}

/// True when another server has the address.
pub(super) fn is_taken(error: &Error) -> bool {
    let source = std::error::Error::source(error);
    let cause = source.and_then(|source| source.downcast_ref::<std::io::Error>());
    error.kind() == Kind::Busy
        || cause.is_some_and(|cause| cause.kind() == std::io::ErrorKind::AddrInUse)
}

/// As [`listen`]; while another server has an address, `waits` says whether to try again.
pub(super) fn listen_when_free(
    options: &Options,
    usual: Option<PathBuf>,
    sockets: Vec<Socket>,
    server: &mut nbd::Server,
    waits: &mut dyn FnMut(&Error) -> bool,
) -> Result<Vec<String>, Failure> {
    let mut addresses = options.nbd.clone();
    if addresses.is_empty() && sockets.is_empty() {
        addresses.extend(usual.map(|path| Address::Unix(path, Door::default())));
    }
    let mut listeners = Vec::new();
    for address in addresses {
        let mut enter = || -> Result<Address> {
            Ok(match &address {
                Address::Unix(path, door) => {
                    server.add_unix_for(path, door.reach()?)?;
                    let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
                    Address::Unix(path, door.clone())
                }
                Address::Tcp(address) => Address::Tcp(server.add_tcp(*address, options.insecure)?),
            })
        };
        listeners.push(loop {
            match enter() {
                Err(error) if is_taken(&error) && waits(&error) => {}
                entered => break entered?,
            }
        });
    }
    for device in &options.vhost {
        let VhostDevice { volume, path } = device;
        server.add_vhost(volume, path)?;
        let (volume, path) = (volume.escape_debug(), path.display());
        tracing::info!("volume '{volume}' is a vhost-user-blk device at {path}");
    }
    let tls = options.tls.is_some();
    let mut listeners: Vec<String> =
        listeners.iter().map(|listener| address::by_tls(&listener.to_string(), tls)).collect();
    for socket in sockets {
        listeners.push(address::by_tls(&address::of_socket(&socket.fd), tls));
        server
            .add_listener(socket.fd, options.insecure)
            .map_err(|e| e.context(format!("socket {} from the service manager", socket.name)))?;
    }
    Ok(listeners)
}

/// Listens for browsers and Prometheus where the options say; the caller starts it.
pub(super) fn show(options: &Options, report: Reporter, trust: &Trust) -> Result<http::Server> {
    let mut server =
        http::Server::new(Pages::new(report, options.one_tenant), options.http_name.clone());
    if let Some(credentials) = &trust.credentials {
        server.secure(credentials.clone(), trust.rights(false));
    }
    if let Some(audit) = &trust.audit {
        server.tell(audit.clone());
    }
    let scheme = if trust.credentials.is_some() { "https" } else { "http" };
    for address in &options.http {
        match address {
            Address::Unix(path, door) => {
                server.add_unix(path, door.reach()?)?;
                tracing::info!("showing figures at {}", path.display());
            }
            Address::Tcp(address) => {
                let address = server.add_tcp(*address, options.insecure)?;
                tracing::info!("showing figures at {scheme}://{address}/");
            }
        }
    }
    Ok(server)
}

/// A service manager that can't be reached is worth a line, and no reason to stop.
pub(super) fn note(told: Result<()>) {
    if let Err(error) = told {
        tracing::warn!("{error}");
    }
}
