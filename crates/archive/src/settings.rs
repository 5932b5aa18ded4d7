//! The settings of a new archive, the settings of an opened one, and the limits that are fixed.

use std::str::FromStr;

use onefold_core::{Error, Kind};

use crate::format::{
    class::Rad,
    frame::FRAME_PAYLOAD_MAX,
    parameters::{Chunking, Compression},
};

/// How an archive is made.
#[derive(Clone, Debug)]
pub struct Format {
    /// Its id, drawn by chance.
    pub id: [u8; 16],
    /// Its secret, drawn by chance.
    pub secret: [u8; 32],
    /// The id of its directory, drawn by chance.
    pub node: [u8; 16],
    /// How streams are cut.
    pub chunking: Chunking,
    /// How containers are compressed.
    pub compression: Compression,
    /// Bytes of a segment file; 1 GiB unless a simulation wants less.
    pub segment_bytes: u64,
    /// Bytes written once and held back for deletion on a full disk.
    pub reserve_bytes: u64,
    /// Late encoding by reference counts; without, containers are encoded as they arrive.
    pub late: Option<Rad>,
}

impl Format {
    /// An archive of the usual sizes.
    #[must_use]
    pub fn new(id: [u8; 16], secret: [u8; 32], node: [u8; 16]) -> Format {
        Format {
            id,
            secret,
            node,
            chunking: Chunking::FastCdc(8 << 10),
            compression: Compression::Zstd,
            segment_bytes: 1 << 30,
            reserve_bytes: 12 << 20,
            late: None,
        }
    }
}

/// The filters of the chain, by name (dedupv1 3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterName {
    /// The mapping that a rewritten block of a volume has.
    BlockIndex,
    /// Fingerprints of containers read lately.
    ContainerCache,
    /// Tells most new chunks without a read.
    Bloom,
    /// The chunk index on the disk.
    ChunkIndex,
    /// Compares the bytes with those stored.
    ByteCompare,
}

impl FromStr for FilterName {
    type Err = Error;

    fn from_str(text: &str) -> Result<FilterName, Error> {
        Ok(match text {
            "block-index" => FilterName::BlockIndex,
            "container-cache" => FilterName::ContainerCache,
            "bloom" => FilterName::Bloom,
            "chunk-index" => FilterName::ChunkIndex,
            "byte-compare" => FilterName::ByteCompare,
            _ => {
                return Err(Error::new(
                    Kind::InvalidInput,
                    "a filter is block-index, container-cache, bloom, chunk-index or byte-compare",
                ));
            }
        })
    }
}

/// The settings that are chosen when an archive is opened for work.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The filter chain, in its order.
    pub filters: Vec<FilterName>,
    /// Entries of the auxiliary index.
    pub auxiliary_entries: usize,
    /// Containers whose fingerprints are cached.
    pub cached_containers: usize,
    /// Bytes of cached pages of the chunk index.
    pub page_cache_bytes: u64,
    /// Zstandard's level for new containers, 1 to 19.
    pub level: i32,
    /// Bytes of containers between two syncs.
    pub sync_bytes: u64,
    /// Bytes of a container.
    pub container_bytes: usize,
    /// Bytes of log after which a snapshot is taken.
    pub log_bytes: u64,
    /// Bytes taken for each log when it begins, so that a full disk can still delete.
    pub log_ahead_bytes: u64,
    /// Slots whose counts collection holds at once.
    pub count_slots: usize,
    /// Bytes taken ahead of the last container.
    pub ahead_bytes: u64,
    /// Bytes of volumes' writes in memory.
    pub dirty_bytes: u64,
    /// Memory for the archive's tables, whoever wrote them, besides a part that grows with the
    /// bytes that they occupy on the medium. `u64::MAX`, the default, is no limit, for an archive
    /// that is trusted.
    pub memory: u64,
    /// Ranges of volumes that were trimmed and are not written back, at most: each takes 25 bytes
    /// of a frame. One more waits for a write-back.
    pub zeroed_ranges: usize,
    /// Bytes of a frame of the log, at most; a change that needs more is refused.
    pub frame_bytes: usize,
    /// Numbers of containers that the merges of one log move, at most, since these cost time. A
    /// log with more is refused like damage by readers with a limit of memory; a writer takes a
    /// snapshot at a sixteenth of it.
    pub moved_max: u64,
    /// A defect that the simulator must find.
    #[cfg(feature = "planted-bugs")]
    pub bug: Option<PlantedBug>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            filters: vec![
                FilterName::BlockIndex,
                FilterName::ContainerCache,
                FilterName::Bloom,
                FilterName::ChunkIndex,
            ],
            auxiliary_entries: 512 << 10,
            cached_containers: 256,
            page_cache_bytes: 16 << 20,
            level: 1,
            sync_bytes: 64 << 20,
            container_bytes: CONTAINER_BYTES,
            log_bytes: 12 << 20,
            log_ahead_bytes: 16 << 20,
            count_slots: 32 << 20,
            ahead_bytes: 64 << 20,
            dirty_bytes: DIRTY_BYTES,
            memory: u64::MAX,
            zeroed_ranges: 64 << 10,
            frame_bytes: FRAME_PAYLOAD_MAX,
            moved_max: 2 << 20,
            #[cfg(feature = "planted-bugs")]
            bug: None,
        }
    }
}

impl Settings {
    /// True when this defect was asked for.
    #[cfg(feature = "planted-bugs")]
    pub(crate) fn has(&self, bug: PlantedBug) -> bool {
        self.bug == Some(bug)
    }

    /// No defect in a product build.
    #[cfg(not(feature = "planted-bugs"))]
    #[allow(clippy::unused_self)]
    pub(crate) fn has(&self, _: PlantedBug) -> bool {
        false
    }
}

/// Chunk bytes of a container, before compression (dedupv1 3.3).
pub(crate) const CONTAINER_BYTES: usize = 4 << 20;

/// Bytes of all volumes' writes that may be in memory.
pub(crate) const DIRTY_BYTES: u64 = 64 << 20;

/// Memory for the tables of an archive that anybody may have written.
pub const READER_BYTES: u64 = 64 << 20;

/// Container ids recorded at once.
pub(crate) const ID_RANGE: u64 = 1024;

/// Defects that the simulator must find, each at the place where the rule that it breaks is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlantedBug {
    /// A put's record is written before its containers are durable.
    RecordBeforeContainers,
    /// Containers count before the name of their segment is durable.
    SegmentUnnamed,
    /// A frame counts whose checksum is wrong.
    TornTailBelieved,
    /// A frame is shown that is not known to be durable.
    TailShownEarly,
    /// A reader shows a frame that nobody vouched for without making it durable. Seeds seldom meet
    /// it; a test of the simulator's files finds it.
    TailReadEarly,
    /// The import position moves before the pages are durable.
    ImportAhead,
    /// A hit of the index is a reference without a look at the container.
    StaleHit,
    /// A Bloom filter counts that is behind the index.
    OldBloom,
    /// Puts take duplicates that are condemned.
    CondemnedTaken,
    /// Puts take duplicates that are damaged.
    DamagedTaken,
    /// Condemned chunks go without being looked at again.
    NoRecheck,
    /// Space is freed while older readers are there.
    FreedUnderReader,
    /// Damage is recorded, and the epoch advances although a reader may be in the one before.
    TurnedUndrained,
    /// Container ids are given before their range is durable.
    IdTwice,
    /// A merge copies what fails its checksum.
    RotCopied,
    /// A removed recipe is counted twice.
    CountedTwice,
    /// A container is logged although a node did not take its shard, and the node counts on.
    ShardMissing,
    /// A shard counts whose checksum is wrong.
    RottenShard,
    /// A directory without label counts as the node that should be there.
    MountFilled,
    /// One copy fewer than needed takes a change.
    FewCopies,
    /// A mapping is logged before its chunks are durable.
    MappingBeforeChunks,
    /// Settled containers are logged before they are durable.
    SettledBeforeSync,
    /// Of the places to which an old container's chunks went, the first counts alone.
    SettledElsewhere,
    /// Chunks that had no references when they were counted are left behind, without being
    /// condemned and looked at again.
    SettledUnchecked,
    /// A sync that failed is tried again, and its success is trusted.
    SyncRetried,
    /// The label counts only when both of its places can be read.
    LabelCopyUnread,
    /// A label counts although the log behind the one that it names goes on.
    OldLabelTaken,
    /// The log's end counts although a later change was known to be durable.
    LogEndBelieved,
    /// A frame of the log counts wherever it lies, whatever stands before it.
    FrameAnywhere,
    /// Merges go on in one log without a limit.
    MergesUnlimited,
}

impl PlantedBug {
    /// The bugs that the simulator's seeds must find, with the names that it knows them by.
    pub const ALL: [(&'static str, PlantedBug); 29] = [
        ("record-before-containers", PlantedBug::RecordBeforeContainers),
        ("segment-unnamed", PlantedBug::SegmentUnnamed),
        ("torn-tail-believed", PlantedBug::TornTailBelieved),
        ("tail-shown-early", PlantedBug::TailShownEarly),
        ("import-ahead", PlantedBug::ImportAhead),
        ("stale-hit", PlantedBug::StaleHit),
        ("old-bloom", PlantedBug::OldBloom),
        ("condemned-taken", PlantedBug::CondemnedTaken),
        ("damaged-taken", PlantedBug::DamagedTaken),
        ("no-recheck", PlantedBug::NoRecheck),
        ("freed-under-reader", PlantedBug::FreedUnderReader),
        ("turned-undrained", PlantedBug::TurnedUndrained),
        ("id-twice", PlantedBug::IdTwice),
        ("rot-copied", PlantedBug::RotCopied),
        ("counted-twice", PlantedBug::CountedTwice),
        ("shard-missing", PlantedBug::ShardMissing),
        ("rotten-shard", PlantedBug::RottenShard),
        ("mount-filled", PlantedBug::MountFilled),
        ("few-copies", PlantedBug::FewCopies),
        ("mapping-before-chunks", PlantedBug::MappingBeforeChunks),
        ("settled-before-sync", PlantedBug::SettledBeforeSync),
        ("settled-elsewhere", PlantedBug::SettledElsewhere),
        ("settled-unchecked", PlantedBug::SettledUnchecked),
        ("sync-retried", PlantedBug::SyncRetried),
        ("label-copy-unread", PlantedBug::LabelCopyUnread),
        ("old-label-taken", PlantedBug::OldLabelTaken),
        ("log-end-believed", PlantedBug::LogEndBelieved),
        ("frame-anywhere", PlantedBug::FrameAnywhere),
        ("merges-unlimited", PlantedBug::MergesUnlimited),
    ];
}
