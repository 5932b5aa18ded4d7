//! The report of `status`: one report, filled in by a server or from a store that nobody serves,
//! printed as JSON or as text.
//!
//! The keys of the JSON are stable: new ones may be added, and none changes its meaning.

pub(crate) mod archive;
pub(crate) mod figures;
pub(crate) mod metrics;
pub(crate) mod receiving;
pub(crate) mod reference;
mod text;

pub(crate) use text::charged;

use std::time::{Duration, Instant};

use onefold_backend::room::room;
use onefold_block::{CheckpointTimes, Counts, Engine, Status};
use serde::{Deserialize, Serialize};

use onefold::parts::{
    control::{DomainLine, ReceiveLine, SnapshotLine, VolumeLine},
    store_file::StoreFile,
    witness::Told,
};

/// Bytes of a block.
const BLOCK: u64 = onefold_core::BLOCK_BYTES as u64;

/// A store at one moment.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    /// The engine.
    #[serde(default = "block")]
    pub(crate) engine: String,
    /// Path of the file or device, as its server or the caller knows it.
    pub(crate) store: String,
    /// Id of the store.
    pub(crate) id: String,
    /// Whether it is encrypted at rest.
    #[serde(default)]
    pub(crate) encrypted: bool,
    /// The choices of its creation.
    pub(crate) created: Created,
    /// Space.
    pub(crate) space: Space,
    /// Volumes by name.
    pub(crate) volumes: Vec<VolumeLine>,
    /// Domains with limits, by number.
    #[serde(default)]
    pub(crate) domains: Vec<DomainLine>,
    /// How many snapshots there are.
    #[serde(default)]
    pub(crate) snapshots: u64,
    /// Each of them, and the space that only they hold.
    #[serde(default)]
    pub(crate) maps: Snapshots,
    /// Snapshots that are being received, or were until the stream was cut off.
    #[serde(default)]
    pub(crate) receives: Vec<ReceiveLine>,
    /// Pages of maps that deleted snapshots left behind, and that wait to be handed over.
    #[serde(default)]
    pub(crate) orphan_pages: u64,
    /// Volumes that were made from a snapshot or another volume.
    #[serde(default)]
    pub(crate) clones: u64,
    /// Snapshots, clones, rollbacks and parts of receives that are not durable yet or wait for room.
    #[serde(default)]
    pub(crate) acts_waiting: u64,
    /// Whether counts may be too high, because a page of an old snapshot could not be read.
    #[serde(default)]
    pub(crate) inexact: bool,
    /// Whether what was deleted is still being freed.
    #[serde(default)]
    pub(crate) freeing: bool,
    /// Changes that no checkpoint holds yet.
    pub(crate) uncommitted: Uncommitted,
    /// Openings and recoveries since the store was created.
    pub(crate) epoch: u32,
    /// Whether the store was closed in order; `null` while it is served.
    pub(crate) clean: Option<bool>,
    /// Why it takes no more writes, if so.
    pub(crate) stopped: Option<String>,
    /// The server, and what it counted since it opened the store; `null` when there is none.
    pub(crate) server: Option<Server>,
}

/// The engine of a report by a server of an older version.
fn block() -> String {
    "block".to_owned()
}

/// The choices of a store's creation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Created {
    pub(crate) fingerprint: String,
    pub(crate) verify: String,
    pub(crate) scheme: String,
    pub(crate) leftover: String,
    pub(crate) layout: String,
    /// True when the file grows by zones (`--preallocate none`).
    pub(crate) grows: bool,
}

/// The snapshots of a store.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Snapshots {
    /// Each of them, by the name of its volume and its age.
    pub(crate) snapshots: Vec<SnapshotStatus>,
    /// The space that deleted maps held when `snapshot list --space` looked last; `null` when nobody has
    /// asked the server.
    pub(crate) space: Option<HeldSpace>,
}

/// A snapshot.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SnapshotStatus {
    /// Its name, like `vm1@monday`.
    pub(crate) name: String,
    /// When it was made, in seconds since 1970.
    pub(crate) created_seconds: u64,
    /// Bytes that deleting it would free at least, as found last; `null` when nobody has looked.
    pub(crate) exclusive_bytes: Option<u64>,
}

/// The space that deleted maps hold, as found last.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct HeldSpace {
    /// How old this and the snapshots' exclusive space is.
    pub(crate) age_seconds: u64,
    /// The sum of the bytes that deleting each snapshot by itself would free at least.
    #[serde(default)]
    pub(crate) snapshot_bytes: u64,
    /// Bytes that maps hold which are being taken apart.
    pub(crate) leaving_bytes: u64,
    /// Bytes that pages hold which wait to be handed over.
    pub(crate) orphan_bytes: u64,
}

impl Snapshots {
    pub(crate) fn new(lines: Vec<SnapshotLine>, space: Option<HeldSpace>) -> Snapshots {
        let status = |line: SnapshotLine| SnapshotStatus {
            name: line.name,
            created_seconds: line.created_ms / 1000,
            exclusive_bytes: line.exclusive_bytes,
        };
        Snapshots { snapshots: lines.into_iter().map(status).collect(), space }
    }
}

/// Space, in bytes. Mapped and stored bytes are as of the last checkpoint.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Space {
    /// All that data and tables can use.
    pub(crate) usable_bytes: u64,
    /// Space that new data can use now, neither the store's reserve nor those of domains counted.
    pub(crate) free_bytes: u64,
    /// Space that is kept for the reserves of domains.
    #[serde(default)]
    pub(crate) kept_bytes: u64,
    /// Content of the volumes, zeroes and holes not counted.
    pub(crate) mapped_bytes: u64,
    /// Space that it takes: every block once.
    pub(crate) stored_bytes: u64,
    /// The difference.
    pub(crate) saved_bytes: u64,
    /// Mapped for each byte stored.
    pub(crate) ratio: f64,
    /// Content that is packed, several blocks in one.
    #[serde(default)]
    pub(crate) packed_bytes: u64,
    /// Space that packs take.
    #[serde(default)]
    pub(crate) pack_bytes: u64,
    /// Tables of the store itself.
    pub(crate) table_bytes: u64,
    /// Space that dropped ranges and volumes still cover: space to come.
    pub(crate) pending_bytes: u64,
    /// Space that the host's file system gave to the file; `null` for a device.
    pub(crate) host_bytes: Option<u64>,
    /// Space that this file system has left; `null` likewise.
    #[serde(default)]
    pub(crate) host_free_bytes: Option<u64>,
}

/// Records and zones that no checkpoint holds, with their limits.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Uncommitted {
    pub(crate) records: u64,
    pub(crate) records_max: u64,
    pub(crate) zones: u64,
    pub(crate) zones_max: u64,
    /// Leaves of tables with changes that wait to be merged into others.
    #[serde(default)]
    pub(crate) delayed_leaves: u64,
}

/// A server and its counts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Server {
    pub(crate) pid: u32,
    pub(crate) version: String,
    pub(crate) uptime_seconds: u64,
    pub(crate) persistence: String,
    /// Where clients connect, as they type it, without a volume.
    pub(crate) listeners: Vec<String>,
    pub(crate) memory: Memory,
    pub(crate) writes: Writes,
    #[serde(default)]
    pub(crate) checkpoints: Times,
    pub(crate) reads: Reads,
    pub(crate) index: Index,
    pub(crate) page_cache: PageCache,
    /// The tellings to the witness; `null` without one.
    #[serde(default)]
    pub(crate) witness: Option<Witness>,
    pub(crate) nbd: Nbd,
    /// Processor time in seconds.
    pub(crate) cpu_seconds: f64,
}

/// The tellings to the witness of a store, so far.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Witness {
    /// The number of the last state that the witness took, and how long ago; `null` before the first.
    pub(crate) told_state: Option<u64>,
    pub(crate) told_seconds: Option<u64>,
    /// For how long the store has a durable state that the witness does not know; 0 when it knows the newest.
    pub(crate) behind_seconds: u64,
    /// States that the witness took, and tellings that failed.
    pub(crate) taken: u64,
    pub(crate) failures: u64,
    /// Why the last telling failed; `null` when it did not.
    pub(crate) failure: Option<String>,
}

impl From<Told> for Witness {
    fn from(told: Told) -> Witness {
        let seconds = |at: Instant| at.elapsed().as_secs();
        Witness {
            told_state: told.state,
            told_seconds: told.at.map(seconds),
            behind_seconds: told.behind_since.map_or(0, seconds),
            taken: told.taken,
            failures: told.failures,
            failure: told.failure,
        }
    }
}

/// A number of things, and the time that they took together.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Times {
    pub(crate) count: u64,
    pub(crate) seconds: f64,
}

/// Memory in bytes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Memory {
    /// `--memory`.
    pub(crate) limit_bytes: u64,
    /// The engine's part of it.
    pub(crate) engine_bytes: u64,
    /// The memory of the whole process.
    pub(crate) resident_bytes: u64,
    /// The most that it ever had.
    pub(crate) peak_bytes: u64,
}

/// Blocks of 4096 bytes that were written since the store was opened.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Writes {
    pub(crate) client_blocks: u64,
    pub(crate) device_blocks: u64,
    /// Device blocks for each client block; `null` before the first.
    pub(crate) amplification: Option<f64>,
    pub(crate) duplicate_blocks: u64,
    pub(crate) zero_blocks: u64,
    pub(crate) data_blocks: u64,
    pub(crate) carrier_blocks: u64,
    /// Carriers that hold only records.
    pub(crate) record_blocks: u64,
    pub(crate) leftover_blocks: u64,
    /// Changes of entries of tables in place, and the leaves written for them.
    #[serde(default)]
    pub(crate) in_place_changes: u64,
    #[serde(default)]
    pub(crate) in_place_blocks: u64,
    /// Leaves among them that were written for changes alone that nobody waited for.
    #[serde(default)]
    pub(crate) delayed_blocks: u64,
    pub(crate) list_blocks: u64,
    pub(crate) checkpoint_blocks: u64,
    pub(crate) super_blocks: u64,
    pub(crate) moved_blocks: u64,
    /// Blocks that were moved next to their neighbours.
    #[serde(default)]
    pub(crate) neighbour_blocks: u64,
    /// Blocks that were moved to make whole zones free.
    #[serde(default)]
    pub(crate) emptied_blocks: u64,
    /// Blocks that came from an older data key under the newest one.
    #[serde(default)]
    pub(crate) resealed_blocks: u64,
    /// Blocks that were packed with others into one.
    #[serde(default)]
    pub(crate) packed_blocks: u64,
    pub(crate) flushes: u64,
    pub(crate) durable_writes: u64,
    pub(crate) windows: u64,
    /// Client blocks in a window, on average.
    pub(crate) blocks_per_window: Option<f64>,
    pub(crate) records: u64,
    /// Records that cost no block of their own.
    pub(crate) hidden_records: u64,
    pub(crate) leftover_records: u64,
    pub(crate) hidden_share: Option<f64>,
    pub(crate) checkpoints: u64,
}

/// Reads since the store was opened.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Reads {
    pub(crate) client_blocks: u64,
}

/// The fingerprint index.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Index {
    pub(crate) entries: u64,
    /// Entries that found no room in memory.
    pub(crate) refused: u64,
    /// Whether it knows every stored block.
    pub(crate) complete: bool,
}

/// The cache of table pages.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PageCache {
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    pub(crate) hit_rate: Option<f64>,
}

/// The NBD server.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Nbd {
    pub(crate) connections: u64,
    /// Connections that have a working place.
    #[serde(default)]
    pub(crate) working: u64,
    pub(crate) accepted: u64,
    pub(crate) refused: u64,
    pub(crate) in_flight: u64,
    pub(crate) reads: u64,
    pub(crate) writes: u64,
    pub(crate) flushes: u64,
    pub(crate) trims: u64,
    pub(crate) zeroes: u64,
    pub(crate) statuses: u64,
    pub(crate) errors: u64,
    pub(crate) read_bytes: u64,
    pub(crate) written_bytes: u64,
    /// Requests by how long they took.
    #[serde(default)]
    pub(crate) durations: Vec<Durations>,
}

/// Requests of one kind by how long they took.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Durations {
    /// The kind.
    pub(crate) op: String,
    /// All of them, and the time that they took together.
    pub(crate) count: u64,
    pub(crate) seconds: f64,
    pub(crate) buckets: Vec<Bucket>,
}

/// Requests that took at most so long.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Bucket {
    pub(crate) seconds: f64,
    pub(crate) count: u64,
}

/// `part` of `whole`, when there is any.
fn rate(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

impl Report {
    /// A store that is open in `engine`, from the file that holds it. `clean` and `server` are for
    /// the caller to fill in.
    pub(crate) fn new(file: &StoreFile, engine: &Engine, status: &Status) -> Report {
        let fixed = engine.fixed();
        let by_name = |name: String| name.to_lowercase();
        let (mapped, stored) =
            (status.mapped_blocks.saturating_mul(BLOCK), status.live_blocks.saturating_mul(BLOCK));
        Report {
            engine: block(),
            store: file.path().display().to_string(),
            id: file.id(),
            encrypted: onefold_block::is_sealed(engine),
            created: Created {
                fingerprint: fixed.algorithm.to_string(),
                verify: if fixed.compares_bytes() { "bytes" } else { "hash" }.to_owned(),
                scheme: by_name(format!("{:?}", fixed.scheme)),
                leftover: by_name(format!("{:?}", fixed.leftover)),
                layout: by_name(format!("{:?}", fixed.layout)),
                grows: fixed.grow,
            },
            space: Space {
                usable_bytes: status.usable_blocks * BLOCK,
                free_bytes: status.free_blocks * BLOCK,
                kept_bytes: status.kept_blocks.saturating_mul(BLOCK),
                mapped_bytes: mapped,
                stored_bytes: stored,
                saved_bytes: mapped.saturating_sub(stored),
                ratio: rate(mapped, stored).unwrap_or(1.0),
                packed_bytes: status.fragments.saturating_mul(BLOCK),
                pack_bytes: status.packs.saturating_mul(BLOCK),
                table_bytes: status.table_blocks * BLOCK,
                pending_bytes: status.pending_blocks.saturating_mul(BLOCK),
                host_bytes: file.host_bytes(),
                host_free_bytes: file
                    .host_bytes()
                    .and_then(|_| Some(room(file.path()).ok()?.bytes)),
            },
            volumes: status.volumes.iter().map(VolumeLine::of).collect(),
            domains: status.domains.iter().map(DomainLine::of).collect(),
            snapshots: status.snapshots,
            maps: match status.snapshots {
                0 => Snapshots::default(),
                _ => Snapshots::new(SnapshotLine::all(engine), None),
            },
            receives: ReceiveLine::of(engine),
            orphan_pages: status.orphan_pages,
            clones: status.clones,
            acts_waiting: status.acts_waiting,
            inexact: status.inexact,
            freeing: status.leftovers,
            uncommitted: Uncommitted {
                records: status.uncommitted_records,
                records_max: status.records_max,
                zones: status.uncommitted_zones,
                zones_max: status.zones_max,
                delayed_leaves: status.delayed_leaves,
            },
            epoch: status.epoch,
            clean: None,
            stopped: status.stopped.clone(),
            server: None,
        }
    }
}

impl From<&Counts> for Writes {
    fn from(counts: &Counts) -> Writes {
        let device_blocks = counts.data_blocks
            + counts.carrier_blocks
            + counts.leftover_blocks
            + counts.in_place_blocks
            + counts.list_blocks
            + counts.checkpoint_blocks
            + counts.super_blocks;
        Writes {
            client_blocks: counts.client_blocks,
            device_blocks,
            amplification: rate(device_blocks, counts.client_blocks),
            duplicate_blocks: counts.duplicate_blocks,
            zero_blocks: counts.zero_blocks,
            data_blocks: counts.data_blocks,
            carrier_blocks: counts.carrier_blocks,
            record_blocks: counts.record_blocks,
            leftover_blocks: counts.leftover_blocks,
            in_place_changes: counts.in_place_changes,
            in_place_blocks: counts.in_place_blocks,
            delayed_blocks: counts.delayed_blocks,
            list_blocks: counts.list_blocks,
            checkpoint_blocks: counts.checkpoint_blocks,
            super_blocks: counts.super_blocks,
            moved_blocks: counts.moved_blocks,
            neighbour_blocks: counts.neighbour_blocks,
            emptied_blocks: counts.emptied_blocks,
            resealed_blocks: counts.resealed_blocks,
            packed_blocks: counts.packed_blocks,
            flushes: counts.flushes,
            durable_writes: counts.durable_writes,
            windows: counts.windows,
            blocks_per_window: rate(counts.client_blocks, counts.windows),
            records: counts.records,
            hidden_records: counts.hidden_records,
            leftover_records: counts.leftover_records,
            hidden_share: rate(counts.hidden_records, counts.records),
            checkpoints: counts.checkpoints,
        }
    }
}

impl From<&Status> for Index {
    fn from(status: &Status) -> Index {
        Index {
            entries: status.index_entries,
            refused: status.index_refused,
            complete: status.index_complete,
        }
    }
}

impl From<&Status> for PageCache {
    fn from(status: &Status) -> PageCache {
        let (hits, misses) = (status.cache_hits, status.cache_misses);
        PageCache { hits, misses, hit_rate: rate(hits, hits + misses) }
    }
}

impl From<onefold_serve::nbd::Statistics> for Nbd {
    fn from(statistics: onefold_serve::nbd::Statistics) -> Nbd {
        Nbd {
            connections: statistics.connections,
            working: statistics.working,
            accepted: statistics.accepted,
            refused: statistics.refused,
            in_flight: statistics.in_flight,
            reads: statistics.reads,
            writes: statistics.writes,
            flushes: statistics.flushes,
            trims: statistics.trims,
            zeroes: statistics.zeroes,
            statuses: statistics.statuses,
            errors: statistics.errors,
            read_bytes: statistics.read_bytes,
            written_bytes: statistics.written_bytes,
            durations: statistics.durations.by_name().map(Durations::from).collect(),
        }
    }
}

impl From<(&str, &onefold_serve::nbd::Durations)> for Durations {
    fn from((op, durations): (&str, &onefold_serve::nbd::Durations)) -> Durations {
        let bucket =
            |(bound, count): (Duration, u64)| Bucket { seconds: bound.as_secs_f64(), count };
        Durations {
            op: op.to_owned(),
            count: durations.count(),
            seconds: durations.sum().as_secs_f64(),
            buckets: durations.up_to().map(bucket).collect(),
        }
    }
}

impl From<CheckpointTimes> for Times {
    fn from(times: CheckpointTimes) -> Times {
        Times { count: times.count, seconds: times.sum.as_secs_f64() }
    }
}
