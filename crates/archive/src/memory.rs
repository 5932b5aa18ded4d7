//! Memory: what a reader may take for what a medium says, and buffers that are used again, which would else be mapped, cleared and unmapped once for
//! each few megabytes.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use onefold_core::{Error, Kind, Result};
use parking_lot::Mutex;

/// Memory for each byte that log, snapshot and maps occupy on the medium: more than tables ever need for what the engine writes.
const PER_BYTE: u64 = 16;

/// What a reader may take for the tables of an archive, whoever wrote it: some memory, and more for what really lies on the medium. Each length and
/// count is drawn from it before memory is taken.
#[derive(Debug)]
pub(crate) struct Budget {
    base: u64,
    limit: AtomicU64,
    drawn: AtomicU64,
}

impl Budget {
    /// `base` bytes, and nothing more yet.
    pub(crate) fn new(base: u64) -> Arc<Budget> {
        Arc::new(Budget { base, limit: AtomicU64::new(base), drawn: AtomicU64::new(0) })
    }

    /// Says how many bytes the metadata occupies.
    pub(crate) fn occupied(&self, bytes: u64) {
        self.limit.store(self.base.saturating_add(bytes.saturating_mul(PER_BYTE)), Relaxed);
    }
}

/// What was drawn from a budget, until it is dropped.
#[derive(Debug, Default)]
pub(crate) struct Drawn {
    budget: Option<Arc<Budget>>,
    bytes: AtomicU64,
}

impl Drawn {
    /// Nothing yet.
    pub(crate) fn from(budget: &Arc<Budget>) -> Drawn {
        Drawn { budget: Some(budget.clone()), bytes: AtomicU64::new(0) }
    }

    /// For what is bounded otherwise.
    pub(crate) fn free() -> &'static Drawn {
        static FREE: Drawn = Drawn { budget: None, bytes: AtomicU64::new(0) };
        &FREE
    }

    /// Draws so many bytes more.
    ///
    /// # Errors
    /// `Memory` when they are not there.
    pub(crate) fn more(&self, bytes: u64) -> Result<()> {
        let Some(budget) = &self.budget else { return Ok(()) };
        let limit = budget.limit.load(Relaxed);
        let drawn = budget.drawn.fetch_update(Relaxed, Relaxed, |drawn| drawn.checked_add(bytes).filter(|&all| all <= limit));
        drawn.map_err(|drawn| over(drawn.saturating_add(bytes), limit))?;
        self.bytes.fetch_add(bytes, Relaxed);
        Ok(())
    }
}

impl Drop for Drawn {
    fn drop(&mut self) {
        if let Some(budget) = &self.budget {
            budget.drawn.fetch_sub(self.bytes.load(Relaxed), Relaxed);
        }
    }
}

fn over(needed: u64, limit: u64) -> Error {
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    let why = format!(
        "reading the archive's tables takes {} MiB of memory or more, and {} MiB are allowed for what they occupy on the medium; --memory allows more",
        mib(needed),
        mib(limit)
    );
    Error::new(Kind::Memory, why)
}

/// Buffers kept at most: as many as can be on their way through a put's queues.
const KEPT_MAX: usize = 8;

/// Buffers that nobody uses.
pub(crate) struct Spare {
    buffers: Mutex<Vec<Vec<u8>>>,
    most: usize,
}

impl Default for Spare {
    fn default() -> Spare {
        Spare::keeping(KEPT_MAX)
    }
}

impl Spare {
    /// Keeps so many at most.
    pub(crate) fn keeping(most: usize) -> Spare {
        Spare { buffers: Mutex::default(), most }
    }

    /// A buffer, with whatever was in it; perhaps an empty one.
    pub(crate) fn take(&self) -> Vec<u8> {
        self.buffers.lock().pop().unwrap_or_default()
    }

    /// Gives a buffer back.
    pub(crate) fn give(&self, buffer: Vec<u8>) {
        let mut all = self.buffers.lock();
        if all.len() < self.most && buffer.capacity() > 0 {
            all.push(buffer);
        }
    }
}
