//! The part of the report of `status` that the server of an archive fills in.

use serde::{Deserialize, Serialize};

use super::Nbd;

/// The report of an archive's server.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ArchiveServer {
    pub(crate) pid: u32,
    pub(crate) version: String,
    pub(crate) uptime_seconds: u64,
    pub(crate) listeners: Vec<String>,
    /// Bytes written to volumes and not durable yet.
    pub(crate) dirty_bytes: u64,
    /// How often what was written became durable.
    pub(crate) drains: u64,
    /// Chunks of volumes looked up, and those that were there already.
    pub(crate) chunks: u64,
    pub(crate) duplicate_chunks: u64,
    pub(crate) index_page_reads: u64,
    pub(crate) metadata_reads: u64,
    /// Bytes of new chunks, and bytes of containers written for volumes.
    pub(crate) new_bytes: u64,
    pub(crate) added_bytes: u64,
    /// Why nothing is written any more.
    pub(crate) stopped: Option<String>,
    /// The NBD server; nothing from a server of an older version.
    #[serde(default)]
    pub(crate) nbd: Option<Nbd>,
    pub(crate) cpu_seconds: f64,
    /// True when the server takes new streams and snapshots, and nothing else.
    #[serde(default)]
    pub(crate) append_only: bool,
    /// The work in the background, when there is some: what it does, or what it waits for.
    #[serde(default)]
    pub(crate) maintenance: Option<String>,
    /// Sets that policies would take too much from, a sentence each: they stay as they are.
    #[serde(default)]
    pub(crate) held_back: Vec<String>,
    /// How the directory of the chunk index failed since the server began, if it did.
    #[serde(default)]
    pub(crate) index_failed: Option<String>,
    /// The background replay, unless it is turned off.
    #[serde(default)]
    pub(crate) replay: Option<ReplayLine>,
}

/// The background replay of a server so far.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ReplayLine {
    /// The step that is under way, in words.
    pub(crate) doing: Option<String>,
    /// Seconds without clients after which it begins.
    pub(crate) idle_seconds: u64,
    /// Portions of imports, and of counting.
    pub(crate) imports: u64,
    pub(crate) counts: u64,
    /// Files of the chunk index that became others.
    pub(crate) merged_files: u64,
    /// Checkpoints of the tables.
    pub(crate) checkpoints: u64,
    /// Portions that were given up because clients stayed at work.
    pub(crate) gave_way: u64,
}
