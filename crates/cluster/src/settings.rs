//! How the engine works; nothing here is part of the format.

use std::{fmt, sync::Arc, time::Duration};

use onefold_seal::Opener;
use onefold_stream::CURSOR_BLOCKS;

use crate::{format::PENDING_MAX, rules::Rule};

/// When the data written to volumes are deduplicated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dedup {
    /// Later, by workers (the paper's way).
    #[default]
    PostProcessing,
    /// By the server, after the write is durable and before it is acknowledged.
    FlushThrough,
    /// By the server, as part of the write: whole chunks are read, changed, named and stored.
    Inline,
}

/// Who is asked for the key of a sealed store; by default nobody.
#[derive(Clone, Default)]
pub struct KeySource(Option<Arc<dyn Opener>>);

impl KeySource {
    /// This one.
    #[must_use]
    pub fn new(opener: Arc<dyn Opener>) -> KeySource {
        KeySource(Some(opener))
    }

    pub(crate) fn of(&self) -> Option<&dyn Opener> {
        self.0.as_deref()
    }
}

impl fmt::Debug for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_none() { "nobody" } else { "somebody" })
    }
}

/// The limits and waiting times of a session.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Times that an operation without a reply is sent or looked for, until it is an error.
    pub tries: u32,
    /// When writes of this session are deduplicated.
    pub dedup: Dedup,
    /// Objects that changed within this time are not deduplicated.
    pub cold: Duration,
    /// How long a lock lasts when it is not renewed, other than that of a volume.
    pub lease: Duration,
    /// The same for the lock of a volume, after which another server may take it.
    pub volume_lease: Duration,
    /// How long the server at work must show no sign of life until one that stands by takes over.
    pub gateway_lease: Duration,
    /// How long a worker waits at first while the cluster is slow or recovers; eight times that at
    /// most.
    pub pause: Duration,
    /// References at which a chunk gets twice as many copies.
    pub spread_at: usize,
    /// One add in so many counts the references.
    pub count_one_in: u64,
    /// Objects that a trim clears by itself; longer ones leave a record.
    pub direct_objects: u64,
    /// Objects of a volume that are looked for one by one when it is deleted or cut; more are
    /// looked up in the pool's listing.
    pub looked_for_max: u64,
    /// Long trims that have not reached all their objects, at most: each write looks through them.
    /// One more waits.
    pub discards_max: usize,
    /// Drops that a metadata object may be left with when a change is decided, at most
    /// [`PENDING_MAX`]; no fewer than its entries. Others wait, or do them first.
    pub pending_max: usize,
    /// Bytes of a volume's writes that wait, at most. One more waits until they are over.
    pub waiting_bytes: usize,
    /// Reads of a chunk within a minute that make it hot; 0 for never.
    pub hit_count: u32,
    /// Bytes of clean chunks kept in metadata objects by this server.
    pub cache_bytes: u64,
    /// Objects of a volume whose maps are remembered.
    pub known_objects: usize,
    /// Most objects that a worker processes in one step.
    pub objects_per_step: usize,
    /// Most bytes of chunks that a worker holds in memory and processes in one step, unless one
    /// object has more. Between steps the worker looks at the load.
    pub batch_bytes: u64,
    /// Blocks of a receive after which its place becomes durable.
    pub cursor_blocks: u64,
    /// A thread of its own keeps the locks of what is imported and received, however long the stream is waited for.
    pub renews_aside: bool,
    /// Who is asked for the key of a sealed store.
    pub keys: KeySource,
    /// The rule that the steps break; the simulator must find that out.
    #[cfg(feature = "planted-bugs")]
    pub broken: Option<Rule>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            tries: 5,
            dedup: Dedup::PostProcessing,
            cold: Duration::from_secs(10),
            lease: Duration::from_secs(30),
            volume_lease: Duration::from_secs(9),
            gateway_lease: Duration::from_secs(9),
            pause: Duration::from_secs(1),
            spread_at: 8192,
            count_one_in: 256,
            direct_objects: 16,
            looked_for_max: 16_384,
            discards_max: 64,
            pending_max: PENDING_MAX,
            waiting_bytes: 32 << 20,
            hit_count: 8,
            cache_bytes: 64 << 20,
            known_objects: 4096,
            objects_per_step: 16,
            batch_bytes: 8 << 20,
            cursor_blocks: CURSOR_BLOCKS,
            renews_aside: true,
            keys: KeySource::default(),
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
