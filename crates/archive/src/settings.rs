//! The settings of a new archive, the settings of an opened one, and the limits that are fixed.

use std::{fmt, str::FromStr, sync::Arc};

use onefold_core::{Algorithm, Error, Kind};
use onefold_seal::Opener;

use crate::{
    format::{
        ContainerId,
        class::Rad,
        frame::FRAME_PAYLOAD_MAX,
        log_reader::PUT_LOG_BYTES,
        parameters::{Chunking, Compression},
    },
    rules::Rule,
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
    /// There may be snapshots of directories; programs from before them refuse the archive.
    pub trees: bool,
    /// A checkpoint writes the leaves of the tables that changed; programs from before them refuse
    /// the archive.
    pub leaves: bool,
    /// Leaves of the container table are read when they are looked at, so that opening reads none of
    /// them; programs from before that refuse the archive. It needs `leaves`.
    pub on_demand: bool,
    /// Volumes may be clones of others; programs from before them refuse the archive.
    pub clones: bool,
    /// Counting writes the pages of usage counts that changed, instead of all counts; programs from
    /// before them refuse the archive.
    pub counts_in_pages: bool,
    /// Snapshots of the tables prove from which histories they descend, in a sealed archive; programs from
    /// before that do not change it.
    pub heads: bool,
    /// Keys have roles, in a sealed archive with `trees` and `heads`, and without `leaves` and `late`;
    /// programs from before that refuse the archive.
    pub roles: bool,
    /// Containers of a sealed archive take few lengths, so that these tell less; programs from before that refuse
    /// the archive.
    pub pads: bool,
    /// How chunks are fingerprinted: [`Algorithm::Blake3`], or [`Algorithm::HmacSha256`], which
    /// older programs refuse. Both are keyed with the secret.
    pub fingerprint: Algorithm,
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
            trees: false,
            leaves: false,
            on_demand: false,
            clones: false,
            counts_in_pages: false,
            heads: false,
            roles: false,
            pads: false,
            fingerprint: Algorithm::Blake3,
        }
    }
}

impl Format {
    /// The same with keys that have roles. Tables lie in their snapshots, so that one signature covers them.
    #[must_use]
    pub fn with_roles(self) -> Format {
        let trees = Format { trees: true, clones: true, counts_in_pages: true, ..self };
        Format { heads: true, roles: true, leaves: false, on_demand: false, ..trees }
    }

    /// The same with all features that need nothing of whoever makes the archive; `onefold upgrade` gives
    /// them to older ones.
    #[must_use]
    pub fn with_features(self) -> Format {
        Format {
            trees: true,
            leaves: true,
            on_demand: true,
            clones: true,
            counts_in_pages: true,
            heads: true,
            ..self
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

/// The part that may be given up of a log whose end can't be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GiveUp {
    /// Nothing: the archive is refused.
    #[default]
    Nothing,
    /// Frames that nobody can open, as who took over a put key leaves them.
    Unreadable,
    /// Later frames that can be opened, too: what the disk lost lies before them.
    Later,
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
    /// Bytes of containers between the beginnings of two syncs.
    pub sync_bytes: u64,
    /// Bytes of containers that may be written and not durable; whoever writes more waits.
    pub unsynced_bytes: u64,
    /// Bytes of durable containers that the log lists at the latest, while a stream goes on. The
    /// first are listed after `sync_bytes`, later ones when there are as many as all before.
    pub list_bytes: u64,
    /// Bytes of a container.
    pub container_bytes: usize,
    /// Bytes of log after which a snapshot is taken.
    pub log_bytes: u64,
    /// Bytes taken for each log when it begins, so that a full disk can still delete.
    pub log_ahead_bytes: u64,
    /// Slots whose counts collection holds at once.
    pub count_slots: usize,
    /// Pieces of recipes, or nodes of trees that came, that collection counts at once.
    pub count_portion: usize,
    /// Containers of a page of usage counts; 512 unless a simulation wants more pages.
    pub count_page: u64,
    /// Files that pages of usage counts lie in, at most.
    pub count_files: usize,
    /// Entries of the chunk index that a portion of a background import or merge takes on.
    pub index_portion: usize,
    /// Leaves of the tables that a portion of a background checkpoint writes.
    pub leaf_portion: usize,
    /// Pages of volumes' maps that such a portion writes.
    pub map_portion: usize,
    /// Bytes taken ahead of the last container.
    pub ahead_bytes: u64,
    /// Bytes of volumes' writes in memory.
    pub dirty_bytes: u64,
    /// Memory for the archive's tables, whoever wrote them, besides a part that grows with the
    /// bytes that they occupy on the medium. `u64::MAX`, the default, is no limit, for an archive
    /// that is trusted.
    pub memory: u64,
    /// [`memory`](Settings::memory) is all that the tables get, and that the filters of the chunk index get
    /// besides: nothing counts that the medium says of the bytes that they occupy. For an archive whose
    /// bytes another host sends, which can say anything of them.
    pub memory_is_all: bool,
    /// Parts of a block's mapping, at most, when part of the block is written and the rest stays as
    /// it is mapped. A block with more is read, and cut anew.
    pub patched_parts: usize,
    /// Ranges of volumes that were trimmed and are not written back, at most: each takes 25 bytes
    /// of a frame. One more waits for a write-back.
    pub zeroed_ranges: usize,
    /// Containers have numbers below this, 2^40 at most, since addresses have no more bits for them.
    pub container_numbers: u64,
    /// Bytes of a frame of the log, at most; a change that needs more is refused.
    pub frame_bytes: usize,
    /// Numbers of containers that the merges of one log move, at most, since these cost time. A
    /// log with more is refused like damage by readers with a limit of memory; a writer takes a
    /// snapshot at a sixteenth of it.
    pub moved_max: u64,
    /// Entries of a leaf of the tables; 512 unless a simulation wants more leaves.
    pub leaf_entries: usize,
    /// Memory, in bytes, of leaves of the container table that lie on the disk too, where they are
    /// read when they are looked at. Those that changed since the last checkpoint come on top.
    pub leaf_bytes: u64,
    /// Leaves of the container table that may have changed before a checkpoint, where they are read
    /// when they are looked at: these stay in memory.
    pub changed_leaves: usize,
    /// Leaves of volumes' maps that may have changed before a checkpoint, or as many as the file of maps has
    /// pages if these are more (a simulation that wants fewer counts pages in proportion): who opens the
    /// archive holds them all.
    pub changed_maps: usize,
    /// Streams and snapshots are only added: a put under a name that is there fails, and a snapshot
    /// leaves earlier checkpoints of its set to collection. All else can be done as before; who lets
    /// others in refuses it.
    pub append_only: bool,
    /// Bytes of log at which a put key adds nothing more: whoever manages the archive makes a new one.
    pub put_log_bytes: u64,
    /// Frames of put keys in a log, at which manage begins a new one with its next change: who opens the archive
    /// verifies and judges each of them.
    pub put_frames: u64,
    /// The part of the log behind the last change that can be read which is given up, if this process manages an archive
    /// whose keys have roles. [`renew_log`](crate::renew_log) makes that last.
    pub give_up: GiveUp,
    /// Who is asked for the key of a sealed archive.
    pub opener: KeySource,
    /// The rule that the steps break; the simulator must find that out.
    #[cfg(feature = "planted-bugs")]
    pub broken: Option<Rule>,
}

/// Who is asked for the key of a sealed archive; by default nobody.
#[derive(Clone, Default)]
pub struct KeySource(Option<Arc<dyn Opener>>);

impl KeySource {
    /// This one.
    #[must_use]
    pub fn new(opener: Arc<dyn Opener>) -> KeySource {
        KeySource(Some(opener))
    }

    /// True when nobody can be asked.
    #[must_use]
    pub fn is_nobody(&self) -> bool {
        self.0.is_none()
    }

    pub(crate) fn of(&self) -> Option<&dyn Opener> {
        self.0.as_deref()
    }
}

impl fmt::Debug for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_nobody() { "nobody" } else { "somebody" })
    }
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
            unsynced_bytes: 256 << 20,
            list_bytes: 1 << 30,
            container_bytes: CONTAINER_BYTES,
            log_bytes: 12 << 20,
            log_ahead_bytes: 16 << 20,
            count_slots: 32 << 20,
            count_portion: 64 << 10,
            count_page: 512,
            count_files: 32,
            index_portion: 64 << 10,
            leaf_portion: 64,
            map_portion: 512,
            ahead_bytes: 64 << 20,
            dirty_bytes: DIRTY_BYTES,
            memory: u64::MAX,
            memory_is_all: false,
            patched_parts: 64,
            zeroed_ranges: 64 << 10,
            container_numbers: ContainerId::END,
            frame_bytes: FRAME_PAYLOAD_MAX,
            moved_max: 2 << 20,
            leaf_entries: 512,
            leaf_bytes: 64 << 20,
            changed_leaves: 1024,
            changed_maps: CHANGED_MAPS,
            append_only: false,
            put_log_bytes: PUT_LOG_BYTES,
            put_frames: 1024,
            give_up: GiveUp::Nothing,
            opener: KeySource::default(),
            #[cfg(feature = "planted-bugs")]
            broken: None,
        }
    }
}

impl Settings {
    /// True unless the simulator asked the steps to break this rule.
    #[cfg(feature = "planted-bugs")]
    pub(crate) fn keeps(&self, rule: Rule) -> bool {
        self.broken != Some(rule)
    }

    /// A product keeps every rule.
    #[cfg(not(feature = "planted-bugs"))]
    #[allow(clippy::unused_self)]
    pub(crate) const fn keeps(&self, _: Rule) -> bool {
        true
    }
}

/// Chunk bytes of a container, before compression (dedupv1 3.3).
pub(crate) const CONTAINER_BYTES: usize = 4 << 20;

/// Bytes of all volumes' writes that may be in memory.
pub(crate) const DIRTY_BYTES: u64 = 64 << 20;

/// Leaves of volumes' maps that may have changed before a checkpoint: 32 MiB are written for them, and at
/// most 17 MiB of memory are needed by who opens the archive before.
pub(crate) const CHANGED_MAPS: usize = 4096;

/// Memory for the tables of an archive that anybody may have written.
pub const READER_BYTES: u64 = 64 << 20;

/// Container ids recorded at once.
pub(crate) const ID_RANGE: u64 = 1024;
