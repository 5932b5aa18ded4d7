//! The arguments of `onefold cluster`.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Subcommand, ValueEnum};
use onefold_backend::rados::TIMEOUT;
use onefold_cluster::{Cut, Dedup, Settings, Watermarks};

use onefold::parts::cluster_store::Url;
use onefold_console::{output::Answer, size::Size};

/// Stores of the cluster engine: deduplicated in the background, in a folder or on Ceph
///
/// A store is a folder, which one process uses at a time, or two pools of a Ceph cluster:
/// rados:[CONF][#METADATA-POOL]. Writes are acknowledged when they are durable; workers deduplicate
/// what was not written to for a while. `onefold serve STORE` serves the volumes.
#[derive(Debug, Args)]
#[command(disable_help_subcommand = true)]
#[command(
    after_help = "Examples:\n  onefold cluster create pool\n  onefold cluster volume create pool vm1 --size 1T\n  \
                        onefold cluster put pool backup.tar backup.tar\n  onefold cluster worker pool --once\n  onefold cluster status pool"
)]
pub(crate) struct Options {
    #[command(subcommand)]
    pub(super) verb: Verb,
}

#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Makes an empty store in a new folder, or in two pools of a Ceph cluster
    #[command(
        after_help = "Examples:\n  onefold cluster create pool\n  onefold cluster create pool --chunk 64K --cut static\n  \
                            onefold cluster create rados: --metadata-pool meta --chunk-pool chunks"
    )]
    Create {
        /// A folder that is not there yet, or empty; or rados:[CONF]
        store: Url,
        /// The replicated pool for metadata and for what is not deduplicated yet; it holds nothing
        /// else. Only with rados:
        #[arg(long, value_name = "POOL")]
        metadata_pool: Option<String>,
        /// The pool for chunks, replicated or erasure-coded. Only with rados:
        #[arg(long, value_name = "POOL")]
        chunk_pool: Option<String>,
        /// Takes pools that go on with a single copy
        #[arg(long)]
        force: bool,
        /// Size of a chunk of a volume, and the average of a chunk that is cut by its content:
        /// 16K, 32K or 64K
        #[arg(long, default_value = "32K")]
        chunk: Size,
        /// How objects that are put are cut into chunks
        #[arg(long, value_enum, default_value = "content")]
        cut: CutName,
        /// How volumes are cut into chunks; by content it is at multiples of 4 KiB, and needs
        /// chunks of 32K or 64K
        #[arg(long, value_enum, default_value = "static")]
        volume_cut: CutName,
        /// Stores chunks as they are, also where compression would save space
        #[arg(long)]
        no_compression: bool,
        #[command(flatten)]
        answer: Answer,
    },
    Volume(VolumeOptions),
    /// Stores a file, or standard input, under a name
    #[command(
        after_help = "Examples:\n  onefold cluster put pool backup.tar backup.tar\n  onefold cluster put pool images/vm1 -"
    )]
    Put {
        /// The store: a folder, or rados:[CONF]
        store: Url,
        /// The name; what has it already is replaced
        name: String,
        /// The file; - for standard input
        #[arg(default_value = "-")]
        file: PathBuf,
        #[command(flatten)]
        answer: Answer,
    },
    /// Writes what is stored under a name to a file, or to standard output
    #[command(
        after_help = "Examples:\n  onefold cluster get pool backup.tar restored.tar\n  onefold cluster get pool images/vm1 -"
    )]
    Get {
        /// The store: a folder, or rados:[CONF]
        store: Url,
        /// The name
        name: String,
        /// The file, which must not be there yet; - for standard output
        #[arg(default_value = "-")]
        file: PathBuf,
        #[command(flatten)]
        answer: Answer,
    },
    /// Lists what was put, with sizes
    #[command(after_help = "Examples:\n  onefold cluster ls pool")]
    Ls {
        /// The store: a folder, or rados:[CONF]
        store: Url,
        #[command(flatten)]
        answer: Answer,
    },
    /// Removes what was put under a name
    #[command(after_help = "Examples:\n  onefold cluster rm pool backup.tar")]
    Rm {
        /// The store: a folder, or rados:[CONF]
        store: Url,
        /// The name
        name: String,
        #[command(flatten)]
        answer: Answer,
    },
    Worker(WorkerOptions),
    /// Tells what deduplication would save on what is in a pool of a Ceph cluster, whoever put it
    /// there
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
        #[command(flatten)]
        answer: Answer,
    },
    /// Shows what a store holds, what deduplication saves, and what is still to do
    #[command(
        after_help = "Examples:\n  onefold cluster status pool\n  onefold cluster status pool --json"
    )]
    Status {
        /// The store: a folder, or rados:[CONF]
        store: Url,
        #[command(flatten)]
        answer: Answer,
    },
    /// Compares maps and references, and repairs what is wrong between them; damage of data is
    /// reported
    #[command(
        after_help = "Examples:\n  onefold cluster scrub pool\n  onefold cluster scrub pool --deep"
    )]
    Scrub {
        /// The store: a folder, or rados:[CONF]
        store: Url,
        /// Reads and hashes every chunk
        #[arg(long)]
        deep: bool,
        #[command(flatten)]
        answer: Answer,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum CutName {
    /// At places that the content decides: what moved is found again
    Content,
    /// All of the same size
    Static,
}

impl From<CutName> for Cut {
    fn from(name: CutName) -> Cut {
        match name {
            CutName::Content => Cut::Content,
            CutName::Static => Cut::Static,
        }
    }
}

/// Creates, lists, resizes and deletes volumes
#[derive(Debug, Args)]
#[command(disable_help_subcommand = true)]
#[command(
    after_help = "Examples:\n  onefold cluster volume create pool vm1 --size 1T\n  onefold cluster volume list pool"
)]
pub(super) struct VolumeOptions {
    #[command(subcommand)]
    pub(super) verb: VolumeVerb,
}

#[derive(Debug, Subcommand)]
pub(super) enum VolumeVerb {
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
        #[command(flatten)]
        answer: Answer,
    },
    /// Lists all volumes with their sizes
    #[command(after_help = "Examples:\n  onefold cluster volume list pool")]
    List {
        /// The store: a folder, or rados:[CONF]
        store: Url,
        #[command(flatten)]
        answer: Answer,
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
        #[command(flatten)]
        answer: Answer,
    },
    /// Deletes a volume; workers make what only it holds free
    #[command(after_help = "Examples:\n  onefold cluster volume delete pool vm1")]
    Delete {
        /// The store: a folder, or rados:[CONF]
        store: Url,
        /// The volume
        name: String,
        #[command(flatten)]
        answer: Answer,
    },
}

/// Deduplicates in the background until it is stopped
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  onefold cluster worker pool\n  onefold cluster worker pool --once --cold 0"
)]
pub(super) struct WorkerOptions {
    /// The store: a folder, or rados:[CONF]
    pub(super) store: Url,
    /// Ends when nothing is left to do
    #[arg(long)]
    pub(super) once: bool,
    #[command(flatten)]
    pub(super) answer: Answer,
    /// Threads
    #[arg(long, default_value_t = 1, value_name = "NUMBER", value_parser = threads)]
    pub(super) threads: usize,
    #[command(flatten)]
    pub(super) pace: Pace,
}

/// When workers deduplicate, and how fast.
#[derive(Clone, Debug, Args)]
pub(crate) struct Pace {
    /// Seconds that an object must not have been written to before it is deduplicated
    #[arg(long, default_value_t = 10, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(0..=86_400))]
    cold: u64,
    /// Client operations a second up to which deduplication is not limited
    #[arg(long, default_value_t = Watermarks::default().operations.0, value_name = "NUMBER")]
    low_iops: u64,
    /// Client operations a second from which on 500 of them allow one of deduplication; between
    /// the marks 100 do
    #[arg(long, default_value_t = Watermarks::default().operations.1, value_name = "NUMBER")]
    high_iops: u64,
    /// The same as --low-iops for bytes a second
    #[arg(long, default_value = "16M", value_name = "SIZE")]
    low_bytes: Size,
    /// The same as --high-iops for bytes a second
    #[arg(long, default_value = "256M", value_name = "SIZE")]
    high_bytes: Size,
    /// Seconds until an operation without a reply of Ceph is asked for again; after five of these
    /// it is an error
    #[arg(long, default_value_t = TIMEOUT.as_secs(), value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: u64,
}

/// When a server deduplicates what clients write.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum DedupName {
    /// Later, by workers
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

/// A number of threads.
pub(crate) fn threads(text: &str) -> Result<usize, String> {
    const MOST: usize = 64;
    text.parse().ok().filter(|n| *n <= MOST).ok_or_else(|| format!("a number up to {MOST}"))
}

impl Pace {
    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }

    pub(crate) fn marks(&self) -> Watermarks {
        Watermarks {
            operations: (self.low_iops, self.high_iops),
            bytes: (self.low_bytes.0, self.high_bytes.0),
        }
    }

    pub(crate) fn settings(&self) -> Settings {
        Settings { cold: Duration::from_secs(self.cold), ..Settings::default() }
    }
}
