//! `onefold cluster`: stores of the cluster engine.
//!
//! A store is a folder, which one process owns at a time: while it is served, the other verbs say so. Or it is in two pools of a Ceph cluster, where
//! everybody may come at any time.

use std::{
    convert::Infallible,
    fmt,
    fs::File,
    io,
    path::{Path, PathBuf},
    str::FromStr,
    sync::Arc,
    time::{Duration, Instant},
};

use clap::{Args, Subcommand, ValueEnum};
use onefold_backend::{
    EmbeddedStore, RadosObjects,
    rados::{Connection, Location, TIMEOUT},
    random::random_bytes,
    signals::StopSignals,
};
use onefold_cluster::{Cut, Estimate, Format, Marks, Scrub, Session, Settings, What, Worker, create};
use onefold_core::{
    Error, Kind,
    object::{Look, ObjectName, ObjectStore, Pool, PoolKind, Read, Refusal},
};
use serde_json::json;

use crate::{failure::Failure, output, size::Size};

/// Stores of the cluster engine: deduplicated in the background, in a folder or on Ceph
///
/// A store is a folder, which one process uses at a time, or two pools of a Ceph cluster: rados:[CONF][#METADATA-POOL]. Writes are acknowledged when they
/// are durable; workers deduplicate what was not written to for a while. `onefold serve STORE` serves the volumes.
#[derive(Debug, Args)]
#[command(disable_help_subcommand = true)]
#[command(after_help = "Examples:\n  onefold cluster create pool\n  onefold cluster volume create pool vm1 --size 1T\n  \
                        onefold cluster put pool backup.tar backup.tar\n  onefold cluster worker pool --once\n  onefold cluster status pool")]
pub(crate) struct Options {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Makes an empty store in a new folder, or in two pools of a Ceph cluster
    #[command(after_help = "Examples:\n  onefold cluster create pool\n  onefold cluster create pool --chunk 64K --cut static\n  \
                            onefold cluster create rados: --metadata-pool meta --chunk-pool chunks")]
    Create {
        /// A folder that is not there yet, or empty; or rados:[CONF]
        store: Url,
        /// The replicated pool for metadata and for what is not deduplicated yet; it holds nothing else. Only with rados:
        #[arg(long, value_name = "POOL")]
        metadata_pool: Option<String>,
        /// The pool for chunks, replicated or erasure-coded. Only with rados:
        #[arg(long, value_name = "POOL")]
        chunk_pool: Option<String>,
        /// Takes pools that go on with a single copy
        #[arg(long)]
        force: bool,
        /// Size of a chunk of a volume, and the average of a chunk that is cut by its content: 16K, 32K or 64K
        #[arg(long, default_value = "32K")]
        chunk: Size,
        /// How objects that are put are cut into chunks
        #[arg(long, value_enum, default_value = "content")]
        cut: CutName,
        /// Stores chunks as they are, also where compression would save space
        #[arg(long)]
        no_compression: bool,
    },
    Volume(VolumeOptions),
    /// Stores a file, or standard input, under a name
    #[command(after_help = "Examples:\n  onefold cluster put pool backup.tar backup.tar\n  onefold cluster put pool images/vm1 -")]
    Put {
        /// The store: a folder, or rados:[CONF]
        store: Url,
        /// The name; what has it already is replaced
        name: String,
        /// The file; - for standard input
        #[arg(default_value = "-")]
        file: PathBuf,
    },
    /// Writes what is stored under a name to a file, or to standard output
    #[command(after_help = "Examples:\n  onefold cluster get pool backup.tar restored.tar\n  onefold cluster get pool images/vm1 -")]
    Get {
        /// The store: a folder, or rados:[CONF]
        store: Url,
        /// The name
        name: String,
        /// The file, which must not be there yet; - for standard output
        #[arg(default_value = "-")]
        file: PathBuf,
    },
    /// Lists what was put, with sizes
    #[command(after_help = "Examples:\n  onefold cluster ls pool")]
    Ls {
        /// The store: a folder, or rados:[CONF]
        store: Url,
    },
    /// Removes what was put under a name
    #[command(after_help = "Examples:\n  onefold cluster rm pool backup.tar")]
    Rm {
        /// The store: a folder, or rados:[CONF]
        store: Url,
        /// The name
        name: String,
    },
    Worker(WorkerOptions),
    /// Tells what deduplication would save on what is in a pool of a Ceph cluster, whoever put it there
    #[command(
        after_help = "Examples:\n  onefold cluster estimate rados: rbd\n  onefold cluster estimate rados:/etc/ceph/ceph.conf images --chunk 16K"
    )]
    Estimate {
        /// The cluster: rados:[CONF]
        store: Url,
        /// The pool
        pool: String,
        /// Size of a chunk: 16K, 32K or 64K
        #[arg(long, default_value = "32K")]
        chunk: Size,
        /// How objects are cut into chunks
        #[arg(long, value_enum, default_value = "static")]
        cut: CutName,
        /// Prints JSON
        #[arg(long)]
        json: bool,
    },
    /// Shows what a store holds, what deduplication saves, and what is still to do
    #[command(after_help = "Examples:\n  onefold cluster status pool\n  onefold cluster status pool --json")]
    Status {
        /// The store: a folder, or rados:[CONF]
        store: Url,
        /// Prints JSON
        #[arg(long)]
        json: bool,
    },
    /// Compares maps and references, and repairs what is wrong between them; damage of data is reported
    #[command(after_help = "Examples:\n  onefold cluster scrub pool\n  onefold cluster scrub pool --deep")]
    Scrub {
        /// The store: a folder, or rados:[CONF]
        store: Url,
        /// Reads and hashes every chunk
        #[arg(long)]
        deep: bool,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum CutName {
    /// At places that the content decides: what moved is found again
    Content,
    /// All of the same size
    Static,
}

/// Creates, lists, resizes and deletes volumes
#[derive(Debug, Args)]
#[command(disable_help_subcommand = true)]
#[command(after_help = "Examples:\n  onefold cluster volume create pool vm1 --size 1T\n  onefold cluster volume list pool")]
struct VolumeOptions {
    #[command(subcommand)]
    verb: VolumeVerb,
}

#[derive(Debug, Subcommand)]
enum VolumeVerb {
    /// Creates an empty volume; it takes no space before it is written
    #[command(after_help = "Examples:\n  onefold cluster volume create pool vm1 --size 1T")]
    Create {
        /// The store: a folder, or rados:[CONF]
        store: Url,
        /// Name of the new volume, at most 255 bytes
        name: String,
        /// Size of the volume, rounded up to 4096 bytes
        #[arg(long)]
        size: Size,
    },
    /// Lists all volumes with their sizes
    #[command(after_help = "Examples:\n  onefold cluster volume list pool")]
    List {
        /// The store: a folder, or rados:[CONF]
        store: Url,
    },
    /// Changes the size of a volume; what lies beyond a smaller size is lost and becomes free
    #[command(after_help = "Examples:\n  onefold cluster volume resize pool vm1 --size 2T")]
    Resize {
        /// The store: a folder, or rados:[CONF]
        store: Url,
        /// The volume
        name: String,
        /// Its new size, rounded up to 4096 bytes
        #[arg(long)]
        size: Size,
    },
    /// Deletes a volume; workers make what only it holds free
    #[command(after_help = "Examples:\n  onefold cluster volume delete pool vm1")]
    Delete {
        /// The store: a folder, or rados:[CONF]
        store: Url,
        /// The volume
        name: String,
    },
}

/// Deduplicates in the background until it is stopped
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  onefold cluster worker pool\n  onefold cluster worker pool --once --cold 0")]
struct WorkerOptions {
    /// The store: a folder, or rados:[CONF]
    store: Url,
    /// Ends when nothing is left to do
    #[arg(long)]
    once: bool,
    /// Threads
    #[arg(long, default_value_t = 1, value_name = "NUMBER", value_parser = threads)]
    threads: usize,
    #[command(flatten)]
    pace: Pace,
}

/// When workers deduplicate, and how fast.
#[derive(Clone, Debug, Args)]
pub(crate) struct Pace {
    /// Seconds that an object must not have been written to before it is deduplicated
    #[arg(long, default_value_t = 10, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(0..=86_400))]
    cold: u64,
    /// Client operations a second up to which deduplication is not limited
    #[arg(long, default_value_t = Marks::default().operations.0, value_name = "NUMBER")]
    low_iops: u64,
    /// Client operations a second from which on 500 of them allow one of deduplication; between the marks 100 do
    #[arg(long, default_value_t = Marks::default().operations.1, value_name = "NUMBER")]
    high_iops: u64,
    /// The same as --low-iops for bytes a second
    #[arg(long, default_value = "16M", value_name = "SIZE")]
    low_bytes: Size,
    /// The same as --high-iops for bytes a second
    #[arg(long, default_value = "256M", value_name = "SIZE")]
    high_bytes: Size,
    /// Seconds until an operation without a reply of Ceph is asked for again; after five of these it is an error
    #[arg(long, default_value_t = TIMEOUT.as_secs(), value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: u64,
}

/// A number of threads.
pub(crate) fn threads(text: &str) -> Result<usize, String> {
    const MOST: usize = 64;
    text.parse().ok().filter(|n| *n <= MOST).ok_or_else(|| format!("a number up to {MOST}"))
}

impl Pace {
    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }

    pub(crate) fn marks(&self) -> Marks {
        Marks { operations: (self.low_iops, self.high_iops), bytes: (self.low_bytes.0, self.high_bytes.0) }
    }

    pub(crate) fn settings(&self) -> Settings {
        Settings { cold: Duration::from_secs(self.cold), ..Settings::default() }
    }
}

/// Does what was asked for.
pub(crate) fn run(options: Options) -> Result<(), Failure> {
    match options.verb {
        Verb::Create { store, metadata_pool, chunk_pool, force, chunk, cut, no_compression } => {
            let format = format(chunk, cut, !no_compression)?;
            make(&store, metadata_pool.as_deref(), chunk_pool.as_deref(), force, &format)
        }
        Verb::Volume(options) => volume(options.verb),
        Verb::Put { store, name, file } => put(&store, &name, &file),
        Verb::Get { store, name, file } => get(&store, &name, &file),
        Verb::Ls { store } => list(&store, What::Put),
        Verb::Rm { store, name } => {
            let opened = Opened::open(&store, Settings::default())?;
            opened.session.delete(&name, What::Put)?;
            while opened.session.delete_step()? {}
            output::line(format_args!("removed {name:?}"));
            Ok(())
        }
        Verb::Worker(options) => work(&options),
        Verb::Estimate { store, pool, chunk, cut, json } => estimate(&store, &pool, &format(chunk, cut, true)?, json),
        Verb::Status { store, json } => status(&store, json),
        Verb::Scrub { store, deep } => scrub(&store, deep),
    }
}

/// Where a store is.
#[derive(Clone, Debug)]
pub(crate) enum Url {
    /// In a folder of this machine.
    Folder(PathBuf),
    /// In two pools of a Ceph cluster.
    Rados(String, Location),
}

impl FromStr for Url {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Url, Infallible> {
        Ok(match Location::parse(text) {
            Some(location) => Url::Rados(text.to_owned(), location),
            None => Url::Folder(text.into()),
        })
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Url::Folder(path) => path.display().fmt(f),
            Url::Rados(text, _) => f.write_str(text),
        }
    }
}

/// An object store that sessions can be opened on. Those of a folder go before it.
pub(crate) enum Backing {
    Folder(EmbeddedStore),
    Rados(Location, Duration),
}

impl Backing {
    pub(crate) fn open(url: &Url, timeout: Duration) -> Result<Backing, Error> {
        Ok(match url {
            Url::Folder(path) => Backing::Folder(EmbeddedStore::open(path)?),
            Url::Rados(_, location) => Backing::Rados(location.clone(), timeout),
        })
    }

    /// Another session, which can be fenced without the others.
    pub(crate) fn session(&self, settings: Settings) -> Result<Session, Error> {
        let store: Arc<dyn ObjectStore> = match self {
            Backing::Folder(store) => Arc::new(store.session()),
            Backing::Rados(location, timeout) => {
                let connection = Connection::open(location.configuration.as_deref(), *timeout)?;
                let (metadata, chunks) = connection.find(location)?;
                Arc::new(RadosObjects::new(connection, &metadata, &chunks)?)
            }
        };
        Session::open(store, settings)
    }
}

/// A store with a session. The session goes before the store.
struct Opened {
    session: Arc<Session>,
    _backing: Backing,
}

impl Opened {
    fn open(url: &Url, settings: Settings) -> Result<Opened, Failure> {
        Opened::with(url, settings, TIMEOUT)
    }

    fn with(url: &Url, settings: Settings, timeout: Duration) -> Result<Opened, Failure> {
        let backing = Backing::open(url, timeout)?;
        let session = backing.session(settings).map_err(|e| e.context(url))?;
        Ok(Opened { session: Arc::new(session), _backing: backing })
    }
}

fn format(chunk: Size, cut: CutName, compress: bool) -> Result<Format, Failure> {
    let sizes = [16 << 10, 32 << 10, 64 << 10];
    let Some(chunk_bytes) = u32::try_from(chunk.0).ok().filter(|bytes| sizes.contains(bytes)) else {
        return Err(Failure::usage("--chunk is 16K, 32K or 64K"));
    };
    let cut = match cut {
        CutName::Content => Cut::Content,
        CutName::Static => Cut::Static,
    };
    Ok(Format { chunk_bytes, cut, compress, ..Format::new(random_bytes()?, random_bytes()?, PoolKind::Replicated) })
}

fn make(url: &Url, metadata: Option<&str>, chunks: Option<&str>, force: bool, format: &Format) -> Result<(), Failure> {
    match (url, metadata, chunks) {
        (Url::Folder(folder), None, None) => {
            let store = EmbeddedStore::create(folder, PoolKind::Replicated)?;
            create(&store.session(), format)?;
        }
        (Url::Folder(_), ..) => return Err(Failure::usage("a folder has no pools; they are for rados:")),
        (Url::Rados(_, location), Some(metadata), Some(chunks)) if metadata != chunks => {
            let connection = Connection::open(location.configuration.as_deref(), TIMEOUT)?;
            let (metadata, chunks) = (connection.pool(metadata)?, connection.pool(chunks)?);
            connection.check_pools(&[&metadata, &chunks], force)?;
            let store = RadosObjects::new(connection.clone(), &metadata, &chunks)?;
            create(&store, &Format { chunks: chunks.kind, ..format.clone() })?;
            connection.tag(&metadata, &chunks)?;
        }
        (Url::Rados(..), ..) => return Err(Failure::usage("rados: needs --metadata-pool and --chunk-pool, two different ones")),
    }
    output::line(format_args!("created {url}"));
    Ok(())
}

fn whole_blocks(size: Size) -> Result<u64, Failure> {
    size.0.checked_next_multiple_of(4096).ok_or_else(|| Failure::usage("the size is too large"))
}

fn volume(verb: VolumeVerb) -> Result<(), Failure> {
    match verb {
        VolumeVerb::Create { store, name, size } => {
            let bytes = whole_blocks(size)?;
            Opened::open(&store, Settings::default())?.session.create_volume(&name, bytes)?;
            output::line(format_args!("created volume {name:?} of {}", Size(bytes)));
        }
        VolumeVerb::List { store } => return list(&store, What::Volume),
        VolumeVerb::Resize { store, name, size } => {
            let bytes = whole_blocks(size)?;
            Opened::open(&store, Settings::default())?.session.resize_volume(&name, bytes)?;
            output::line(format_args!("resized volume {name:?} to {}", Size(bytes)));
        }
        VolumeVerb::Delete { store, name } => {
            let opened = Opened::open(&store, Settings::default())?;
            opened.session.delete(&name, What::Volume)?;
            while opened.session.delete_step()? {}
            output::line(format_args!("deleted volume {name:?}"));
        }
    }
    Ok(())
}

fn list(store: &Url, what: What) -> Result<(), Failure> {
    let names = Opened::open(store, Settings::default())?.session.names()?;
    let mut any = false;
    for (name, named) in names.iter().filter(|(_, named)| named.what == what) {
        any = true;
        output::line(format_args!("{:>9}  {}", Size(named.bytes).to_string(), name.escape_debug()));
    }
    if !any {
        output::line(if what == What::Volume { "no volumes" } else { "nothing was put" });
    }
    Ok(())
}

fn put(store: &Url, name: &str, file: &Path) -> Result<(), Failure> {
    let opened = Opened::open(store, Settings::default())?;
    let bytes = if file.as_os_str() == "-" {
        opened.session.put(name, &mut io::stdin().lock())?
    } else {
        let mut source = File::open(file).map_err(|e| Error::from_io(file.display(), e))?;
        opened.session.put(name, &mut source)?
    };
    while opened.session.delete_step()? {}
    output::line(format_args!("put {name:?}, {}", Size(bytes)));
    Ok(())
}

fn get(store: &Url, name: &str, file: &Path) -> Result<(), Failure> {
    let opened = Opened::open(store, Settings::default())?;
    if file.as_os_str() == "-" {
        opened.session.get(name, &mut io::stdout().lock())?;
        return Ok(());
    }
    let mut sink = File::create_new(file).map_err(|e| Error::from_io(file.display(), e))?;
    let got = opened.session.get(name, &mut sink).and_then(|bytes| {
        sink.sync_all().map_err(|e| Error::from_io(file.display(), e))?;
        Ok(bytes)
    });
    if got.is_err() {
        // What is not whole is not left behind.
        let _ = std::fs::remove_file(file);
    }
    output::line(format_args!("got {name:?}, {}", Size(got?)));
    Ok(())
}

fn work(options: &WorkerOptions) -> Result<(), Failure> {
    if !options.once {
        let mut signals = StopSignals::install()?;
        let backing = Backing::open(&options.store, options.pace.timeout())?;
        let workers = Workers::start(&backing, options.threads, &options.pace)?;
        tracing::info!("deduplicating {}", options.store);
        signals.wait();
        workers.stop();
        return Ok(());
    }
    let opened = Opened::with(&options.store, options.pace.settings(), options.pace.timeout())?;
    let mut worker = Worker::new(opened.session.clone(), options.pace.marks());
    let mut flipped = 0;
    loop {
        let deleted = opened.session.delete_step()?;
        let progress = worker.step()?;
        flipped += progress.flipped;
        if progress.round && !deleted && opened.session.backlog()? == 0 {
            break;
        }
        if progress.later > 0 {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    output::line(format_args!("deduplicated {flipped} chunks"));
    Ok(())
}

/// Names of a page when a pool is looked through.
const PAGE: usize = 256;

/// Bytes of an object that are read at once.
const PIECE: u64 = 16 << 20;

fn estimate(url: &Url, pool: &str, format: &Format, as_json: bool) -> Result<(), Failure> {
    let Url::Rados(_, location) = url else {
        return Err(Failure::usage("pools are those of a Ceph cluster, rados:[CONF]; for files there is onefold estimate"));
    };
    let connection = Connection::open(location.configuration.as_deref(), TIMEOUT)?;
    let pool = connection.pool(pool)?;
    let store = RadosObjects::reader(connection, &pool)?;
    let failed = |refusal: Refusal| Error::new(Kind::Io, format!("pool {:?}: {refusal}", pool.name));
    let mut estimate = Estimate::new(format.chunk_bytes, format.cut, format.compress);
    let mut from = None;
    loop {
        let page = store.list(Pool::Chunks, from.as_deref(), PAGE).map_err(failed)?;
        for name in &page.names {
            let (mut data, mut there) = (Vec::new(), true);
            while there {
                let look = Look::Data(data.len() as u64, PIECE);
                match store.read(&[Read { object: ObjectName::chunk(name), looks: vec![look] }]).remove(0) {
                    Ok(sight) => {
                        data.extend_from_slice(sight.data(0));
                        there = sight.data(0).len() as u64 == PIECE;
                    }
                    // It went meanwhile.
                    Err(Refusal::Missing) => there = false,
                    Err(refusal) => return Err(failed(refusal).into()),
                }
            }
            estimate.object(&data);
        }
        from = page.next;
        if from.is_none() {
            break;
        }
    }
    let found = estimate.result();
    let copies = pool.copies();
    let (now, then) = (found.bytes as f64 * copies, found.stored(copies, copies) as f64);
    let (low, different, high) = found.different_bytes;
    let saved = if now == 0.0 { 0.0 } else { 100.0 - 100.0 * then / now };
    if as_json {
        output::line(json!({
            "objects": found.objects, "bytes": found.bytes, "zero_bytes": found.zero_bytes, "chunks": found.chunks, "different_chunks": found.different,
            "different_bytes": different, "different_bytes_low": low, "different_bytes_high": high, "packed_bytes": found.packed_bytes,
            "metadata_bytes": found.metadata_bytes, "copies": copies, "stored_bytes": then, "saved_percent": saved, "sampled_one_of": found.one_of,
        }));
        return Ok(());
    }
    output::line(format_args!("content     {} in {} objects, {} of it zeroes", Size(found.bytes), found.objects, Size(found.zero_bytes)));
    match found.one_of {
        1 => output::line(format_args!("different   {} of {} chunks, {}", found.different, found.chunks, Size(different))),
        n => output::line(format_args!(
            "different   {}, between {} and {} (95 %); one of {n} chunk names was counted",
            Size(different),
            Size(low),
            Size(high)
        )),
    }
    output::line(format_args!("compressed  {}", Size(found.packed_bytes)));
    output::line(format_args!("metadata    {}", Size(found.metadata_bytes)));
    output::line(format_args!("space       {} instead of {}, with {copies} copies", Size(then as u64), Size(now as u64)));
    output::line(format_args!("saved       {saved:.1} %"));
    Ok(())
}

/// The store of the cluster engine that a path or URL means, if it means one.
pub(crate) fn store_at(path: &std::path::Path) -> Option<Url> {
    let url = path.to_string_lossy().parse::<Url>().unwrap_or_else(|never| match never {});
    (matches!(url, Url::Rados(..)) || EmbeddedStore::is_at(path)).then_some(url)
}

/// What `status` shows.
pub(crate) fn status(store: &Url, as_json: bool) -> Result<(), Failure> {
    let opened = Opened::open(store, Settings::default())?;
    let status = opened.session.status()?;
    let sessions = status.sessions;
    // What they say changes once a second.
    let begun = Instant::now();
    if sessions.servers + sessions.workers > 0 {
        std::thread::sleep(Duration::from_secs(2));
    }
    let later = opened.session.sessions()?;
    let seconds = begun.elapsed().as_secs_f64().max(1.0);
    let operations = later.operations.saturating_sub(sessions.operations) as f64 / seconds;
    let bytes = later.bytes.saturating_sub(sessions.bytes) as f64 / seconds;
    let overhead = status.map_bytes + status.reference_bytes;
    let stored = status.cached_bytes + status.chunk_bytes;
    let saved = if status.logical_bytes == 0 { 0.0 } else { 100.0 - 100.0 * stored as f64 / status.logical_bytes as f64 };
    if as_json {
        let value = json!({
            "volumes": status.volumes, "volume_bytes": status.volume_bytes, "puts": status.puts, "put_bytes": status.put_bytes,
            "objects": status.objects, "entries": status.entries, "logical_bytes": status.logical_bytes,
            "cached_bytes": status.cached_bytes, "dirty_bytes": status.dirty_bytes, "chunks": status.chunks,
            "chunk_bytes": status.chunk_bytes, "map_bytes": status.map_bytes, "reference_bytes": status.reference_bytes,
            "clean_cached_bytes": status.cached_bytes - status.dirty_bytes, "servers": sessions.servers, "workers": sessions.workers,
            "operations_per_second": operations, "bytes_per_second": bytes, "backlog": status.backlog,
            "used_bytes": status.space.used, "total_bytes": status.space.total, "saved_percent": saved,
        });
        output::line(value);
        return Ok(());
    }
    output::line(format_args!("volumes     {} of {}", status.volumes, Size(status.volume_bytes)));
    output::line(format_args!("put         {} of {}", status.puts, Size(status.put_bytes)));
    output::line(format_args!("content     {} in {} entries of {} objects", Size(status.logical_bytes), status.entries, status.objects));
    output::line(format_args!(
        "stored      {} in {} chunks, {} in objects",
        Size(status.chunk_bytes),
        status.chunks,
        Size(status.cached_bytes)
    ));
    output::line(format_args!("saved       {saved:.1} %"));
    output::line(format_args!("to do       {} in {} objects", Size(status.dirty_bytes), status.backlog));
    output::line(format_args!("cached      {} that are chunks, too", Size(status.cached_bytes - status.dirty_bytes)));
    output::line(format_args!("overhead    {} of maps, {} of references", Size(status.map_bytes), Size(overhead - status.map_bytes)));
    output::line(format_args!(
        "at work     {} servers and {} workers; clients do {operations:.0} operations and {} a second",
        sessions.servers,
        sessions.workers,
        Size(bytes as u64)
    ));
    output::line(format_args!("space       {} used of {}", Size(status.space.used), Size(status.space.total)));
    Ok(())
}

/// Compares maps and references, and when `deep` the data with its names.
pub(crate) fn scrub(store: &Url, deep: bool) -> Result<(), Failure> {
    let opened = Opened::open(store, Settings::default())?;
    let mut scrub = Scrub::new(opened.session.clone(), deep)?;
    while scrub.step()? {}
    let report = scrub.report();
    output::line(format_args!("looked at   {} objects, {} chunks, {} references", report.objects, report.chunks, report.references));
    output::line(format_args!(
        "repaired    {} stale and {} missing references, {} unused chunks, {} restored chunks, {} unlisted objects, {} orphans",
        report.stale, report.added, report.collected, report.restored, report.listed, report.orphans
    ));
    report.damage.iter().for_each(output::line);
    match report.damage.len() {
        0 => Ok(()),
        n => Err(Failure::new(format!("{store} is damaged in {n} places"))),
    }
}

/// Workers inside a process that owns the store.
pub(crate) struct Workers {
    threads: Vec<std::thread::JoinHandle<()>>,
    stop: Vec<std::sync::mpsc::Sender<()>>,
}

impl Workers {
    /// Starts `count` of them, each with a session of its own.
    ///
    /// # Errors
    /// The store's and the system's.
    pub(crate) fn start(backing: &Backing, count: usize, pace: &Pace) -> Result<Workers, Error> {
        let mut workers = Workers { threads: Vec::new(), stop: Vec::new() };
        for n in 0..count {
            let session = Arc::new(backing.session(pace.settings())?);
            let worker = Worker::new(session, pace.marks());
            let (stop, stopped) = std::sync::mpsc::channel();
            let thread = std::thread::Builder::new().name(format!("worker {n}")).spawn(move || labour(worker, &stopped));
            workers.threads.push(thread.map_err(|e| Error::from_io("cannot start a thread for a worker", e))?);
            workers.stop.push(stop);
        }
        Ok(workers)
    }

    /// Ends them after the step that each is at.
    pub(crate) fn stop(mut self) {
        self.stop.clear();
        for thread in self.threads.drain(..) {
            // Its panic, if any, was printed.
            let _ = thread.join();
        }
    }
}

/// How long a worker waits when it may not do anything.
const IDLE: Duration = Duration::from_millis(200);

/// How long it waits at most when there is nothing to do: each look is a read of every shard.
const IDLE_MAX: Duration = Duration::from_secs(2);

/// How often a worker looks at the load.
const LOOK: Duration = Duration::from_secs(1);

/// The life of a worker's thread; it ends when the other side of `stopped` is gone.
fn labour(mut worker: Worker, stopped: &std::sync::mpsc::Receiver<()>) {
    use std::sync::mpsc::RecvTimeoutError::Timeout;
    let begun = Instant::now();
    let (mut looked, mut allowed, mut flipped) = (None::<Duration>, u64::MAX, 0);
    let (mut pause, mut idle) = (Duration::ZERO, IDLE);
    while stopped.recv_timeout(pause).is_err_and(|error| error == Timeout) {
        let now = begun.elapsed();
        let mut step = || -> Result<Duration, Error> {
            if looked.is_none_or(|looked| now >= looked + LOOK) {
                looked = Some(now);
                // The next one says more.
                let _ = worker.session().publish(true);
                allowed = worker.allowance(now)?;
            }
            if allowed == 0 {
                return Ok(IDLE);
            }
            let progress = worker.step()?;
            allowed = if allowed == u64::MAX { allowed } else { allowed.saturating_sub(progress.operations) };
            flipped += progress.flipped;
            if !progress.round {
                return Ok(Duration::ZERO);
            }
            let busy = worker.session().delete_step()? || flipped > 0;
            flipped = 0;
            idle = if busy { IDLE } else { (idle * 2).min(IDLE_MAX) };
            Ok(if busy { Duration::ZERO } else { idle })
        };
        pause = match step() {
            Ok(pause) => pause,
            Err(error) if error.kind() == Kind::Stopped => return,
            Err(error) => {
                tracing::warn!("{error}");
                LOOK
            }
        };
    }
    let _ = worker.session().unpublish();
}
