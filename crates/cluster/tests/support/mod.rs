//! A store whose writes fail as a test wants it.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use onefold_core::object::{
    Holder, ObjectName, ObjectStore, Page, Pool, PoolKind, Read, ReadResult, Refusal, Space,
    Version, Write,
};
use onefold_testbed::MemoryObjects;

/// The refusal that a write gets in place of its result, and whether the write is applied anyway.
pub(crate) struct Fault {
    pub(crate) refusal: Refusal,
    pub(crate) applied: bool,
}

/// Objects that were read through any store here.
pub(crate) static READ: AtomicU64 = AtomicU64::new(0);

/// A session's store; `fault` is asked of each write before it is applied.
pub(crate) struct Faulty<F> {
    pub(crate) store: MemoryObjects,
    pub(crate) fault: F,
}

impl<F: Fn(&Write) -> Option<Fault> + Send + Sync> ObjectStore for Faulty<F> {
    fn kind(&self, pool: Pool) -> PoolKind {
        self.store.kind(pool)
    }

    fn write(&self, batch: &[Write]) -> Vec<Result<Version, Refusal>> {
        let one = |op: &Write| {
            let fault = (self.fault)(op);
            if let Some(Fault { refusal, applied: false }) = fault {
                return Err(refusal);
            }
            let result = self.store.write(std::slice::from_ref(op)).remove(0);
            fault.map_or(result, |fault| Err(fault.refusal))
        };
        batch.iter().map(one).collect()
    }

    fn read(&self, batch: &[Read]) -> Vec<Result<ReadResult, Refusal>> {
        READ.fetch_add(batch.len() as u64, Relaxed);
        self.store.read(batch)
    }

    fn list(&self, pool: Pool, from: Option<&str>, most: usize) -> Result<Page, Refusal> {
        self.store.list(pool, from, most)
    }

    fn lists_by_name(&self) -> bool {
        self.store.lists_by_name()
    }

    fn lock(
        &self,
        object: &ObjectName,
        lock: &'static str,
        cookie: &str,
        lease: Option<Duration>,
    ) -> Result<(), Refusal> {
        self.store.lock(object, lock, cookie, lease)
    }

    fn unlock(&self, object: &ObjectName, lock: &'static str, cookie: &str) -> Result<(), Refusal> {
        self.store.unlock(object, lock, cookie)
    }

    fn holder(&self, object: &ObjectName, lock: &'static str) -> Result<Option<Holder>, Refusal> {
        self.store.holder(object, lock)
    }

    fn break_lock(
        &self,
        object: &ObjectName,
        lock: &'static str,
        holder: &Holder,
    ) -> Result<(), Refusal> {
        self.store.break_lock(object, lock, holder)
    }

    fn identity(&self) -> String {
        self.store.identity()
    }

    fn is_identity(&self, identity: &str) -> bool {
        self.store.is_identity(identity)
    }

    fn fence(&self, identity: &str) -> Result<(), Refusal> {
        self.store.fence(identity)
    }

    fn time(&self) -> Duration {
        self.store.time()
    }

    fn monotonic(&self) -> Duration {
        self.store.monotonic()
    }

    fn space(&self) -> Result<Space, Refusal> {
        self.store.space()
    }
}
