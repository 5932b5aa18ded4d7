//! What clients read and wrote, by volume, since the store was opened.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use onefold_core::VolumeId;
use parking_lot::Mutex;

/// What clients read from a volume, and wrote to it, since the store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Ranges that were read; a server reads long ones in parts.
    pub reads: u64,
    /// Their bytes.
    pub read_bytes: u64,
    /// Writes of data that were taken, likewise.
    pub writes: u64,
    /// Their bytes.
    pub written_bytes: u64,
}

/// The same, as it is counted.
#[derive(Default)]
pub(crate) struct Counters {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    written_bytes: AtomicU64,
}

impl Counters {
    /// So many ranges were read, of so many bytes together.
    pub(crate) fn read(&self, ranges: u64, bytes: u64) {
        self.reads.fetch_add(ranges, Relaxed);
        self.read_bytes.fetch_add(bytes, Relaxed);
    }

    /// Data was written.
    pub(crate) fn written(&self, bytes: u64) {
        self.writes.fetch_add(1, Relaxed);
        self.written_bytes.fetch_add(bytes, Relaxed);
    }

    fn now(&self) -> Traffic {
        Traffic {
            reads: self.reads.load(Relaxed),
            read_bytes: self.read_bytes.load(Relaxed),
            writes: self.writes.load(Relaxed),
            written_bytes: self.written_bytes.load(Relaxed),
        }
    }
}

/// The counters of all volumes that somebody opened.
#[derive(Default)]
pub(crate) struct AllTraffic(Mutex<BTreeMap<VolumeId, Arc<Counters>>>);

impl AllTraffic {
    /// Those of a volume.
    pub(crate) fn of(&self, id: VolumeId) -> Arc<Counters> {
        self.0.lock().entry(id).or_default().clone()
    }

    /// The traffic of a volume.
    pub(crate) fn now(&self, id: VolumeId) -> Traffic {
        self.0.lock().get(&id).map(|counters| counters.now()).unwrap_or_default()
    }

    /// Volumes that are not there any more are forgotten.
    pub(crate) fn keep(&self, is_there: impl Fn(VolumeId) -> bool) {
        self.0.lock().retain(|id, _| is_there(*id));
    }
}
