//! An object store that counts what it is asked for.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use onefold_core::object::{
    Change, Holder, ObjectName, ObjectStore, Page, Pool, PoolKind, Read, ReadResult, Refusal, Seen,
    Space, Version, Write,
};
use onefold_testbed::MemoryObjects;

/// The requests. Bytes are data, keys and values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) writes: u64,
    pub(super) written_bytes: u64,
    pub(super) reads: u64,
    pub(super) read_bytes: u64,
}

impl Asked {
    /// The requests since `before`.
    pub(super) fn since(&self, before: &Asked) -> Asked {
        Asked {
            writes: self.writes - before.writes,
            written_bytes: self.written_bytes - before.written_bytes,
            reads: self.reads - before.reads,
            read_bytes: self.read_bytes - before.read_bytes,
        }
    }
}

/// One session of a store in memory.
pub(super) struct CountedObjects {
    below: MemoryObjects,
    counts: [AtomicU64; 4],
}

impl CountedObjects {
    pub(super) fn new(chunks: PoolKind) -> CountedObjects {
        CountedObjects { below: MemoryObjects::new(chunks), counts: Default::default() }
    }

    pub(super) fn asked(&self) -> Asked {
        let [writes, written_bytes, reads, read_bytes] =
            self.counts.each_ref().map(|count| count.load(Relaxed));
        Asked { writes, written_bytes, reads, read_bytes }
    }

    fn count(&self, at: usize, operations: usize, bytes: usize) {
        self.counts[at].fetch_add(operations as u64, Relaxed);
        self.counts[at + 1].fetch_add(bytes as u64, Relaxed);
    }
}

fn written(change: &Change) -> usize {
    match change {
        Change::Write(_, bytes)
        | Change::Full(bytes)
        | Change::Overwrite(bytes)
        | Change::SetXattr(_, bytes) => bytes.len(),
        Change::SetOmap(pairs) => pairs.iter().map(|(key, value)| key.len() + value.len()).sum(),
        Change::Zero(..) | Change::DropOmap(_) | Change::Remove => 0,
    }
}

fn seen(seen: &Seen) -> usize {
    match seen {
        Seen::Data(bytes) => bytes.len(),
        Seen::Pairs { pairs, .. } => pairs.iter().map(|(key, value)| key.len() + value.len()).sum(),
        Seen::Xattr(value) => value.as_ref().map_or(0, Vec::len),
        Seen::Stat { .. } => 0,
    }
}

impl ObjectStore for CountedObjects {
    fn kind(&self, pool: Pool) -> PoolKind {
        self.below.kind(pool)
    }

    fn write(&self, batch: &[Write]) -> Vec<Result<Version, Refusal>> {
        self.count(0, batch.len(), batch.iter().flat_map(|op| &op.changes).map(written).sum());
        self.below.write(batch)
    }

    fn read(&self, batch: &[Read]) -> Vec<Result<ReadResult, Refusal>> {
        let sights = self.below.read(batch);
        self.count(
            2,
            batch.len(),
            sights.iter().flatten().flat_map(|sight| &sight.seen).map(seen).sum(),
        );
        sights
    }

    fn list(&self, pool: Pool, from: Option<&str>, most: usize) -> Result<Page, Refusal> {
        self.below.list(pool, from, most)
    }

    fn lock(
        &self,
        object: &ObjectName,
        lock: &'static str,
        cookie: &str,
        lease: Option<Duration>,
    ) -> Result<(), Refusal> {
        self.below.lock(object, lock, cookie, lease)
    }

    fn unlock(&self, object: &ObjectName, lock: &'static str, cookie: &str) -> Result<(), Refusal> {
        self.below.unlock(object, lock, cookie)
    }

    fn holder(&self, object: &ObjectName, lock: &'static str) -> Result<Option<Holder>, Refusal> {
        self.below.holder(object, lock)
    }

    fn break_lock(
        &self,
        object: &ObjectName,
        lock: &'static str,
        holder: &Holder,
    ) -> Result<(), Refusal> {
        self.below.break_lock(object, lock, holder)
    }

    fn identity(&self) -> String {
        self.below.identity()
    }

    fn fence(&self, identity: &str) -> Result<(), Refusal> {
        self.below.fence(identity)
    }

    fn time(&self) -> Duration {
        self.below.time()
    }

    fn monotonic(&self) -> Duration {
        self.below.monotonic()
    }

    fn space(&self) -> Result<Space, Refusal> {
        self.below.space()
    }
}
