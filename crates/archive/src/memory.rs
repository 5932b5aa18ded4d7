//! Memory: a budget for structures whose sizes a medium states, and buffers that are used again,
//! which would else be mapped, cleared and unmapped once for each few megabytes.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use onefold_core::{Error, Kind, Result};
use parking_lot::Mutex;

/// Memory for each byte that log, snapshot and maps occupy on the medium: more than the tables of
/// an archive that the engine wrote ever need.
pub(crate) const PER_BYTE: u64 = 16;

/// The memory that the tables of an archive may use, even if the archive is hostile: a base, and
/// more for the bytes that really lie on the medium. Each length and count is drawn from the budget
/// before memory is allocated.
#[derive(Debug)]
pub(crate) struct Budget {
    base: u64,
    /// Nothing comes to the base: what the medium says of itself is not believed.
    is_all: bool,
    limit: AtomicU64,
    drawn: AtomicU64,
}

impl Budget {
    /// `base` bytes, and nothing more yet.
    #[cfg(test)]
    pub(crate) fn new(base: u64) -> Arc<Budget> {
        Arc::new(Budget::with(base, false))
    }

    fn with(base: u64, is_all: bool) -> Budget {
        Budget { base, is_all, limit: AtomicU64::new(base), drawn: AtomicU64::new(0) }
    }

    /// For the tables of an archive: so much, and that is all where another host says how much they occupy.
    pub(crate) fn of_tables(memory: u64, is_all: bool) -> Arc<Budget> {
        Arc::new(Budget::with(memory, is_all))
    }

    /// For the filters of its chunk index. Files that the medium really has bound them, unless it may say
    /// anything of these.
    pub(crate) fn of_filters(memory: u64, is_all: bool) -> Arc<Budget> {
        Arc::new(Budget::with(if is_all { memory } else { u64::MAX }, is_all))
    }

    /// Bytes that are drawn from it.
    #[cfg(test)]
    pub(crate) fn taken(&self) -> u64 {
        self.drawn.load(Relaxed)
    }

    /// True when it is more for what occupies the medium. False when the archive is trusted.
    pub(crate) fn grows(&self) -> bool {
        self.base < u64::MAX && !self.is_all
    }

    /// Says how many bytes the metadata occupies.
    pub(crate) fn occupied(&self, bytes: u64) {
        self.limit.store(self.base.saturating_add(bytes.saturating_mul(PER_BYTE)), Relaxed);
    }
}

/// Bytes drawn from a budget; dropping the value gives them back.
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

    /// Draws from no budget: for structures that are bounded otherwise.
    pub(crate) fn free() -> &'static Drawn {
        static FREE: Drawn = Drawn { budget: None, bytes: AtomicU64::new(0) };
        &FREE
    }

    /// The budget of later copies of the same.
    pub(crate) fn allowance(&self) -> Allowance {
        Allowance(self.budget.clone())
    }

    /// Draws so many bytes more.
    ///
    /// # Errors
    /// `Memory` when they are not there.
    pub(crate) fn more(&self, bytes: u64) -> Result<()> {
        let Some(budget) = &self.budget else { return Ok(()) };
        let limit = budget.limit.load(Relaxed);
        let drawn = budget.drawn.fetch_update(Relaxed, Relaxed, |drawn| {
            drawn.checked_add(bytes).filter(|&all| all <= limit)
        });
        drawn.map_err(|drawn| over(drawn.saturating_add(bytes), limit, budget.is_all))?;
        self.bytes.fetch_add(bytes, Relaxed);
        Ok(())
    }
}

/// The budget from which copies are drawn that are made later. It says nothing of what it belongs to:
/// all are equal.
#[derive(Clone, Debug, Default)]
pub(crate) struct Allowance(Option<Arc<Budget>>);

impl Allowance {
    /// Draws so many bytes; dropping the value gives them back.
    ///
    /// # Errors
    /// `Memory` when they are not there.
    pub(crate) fn draw(&self, bytes: u64) -> Result<Drawn> {
        let drawn = Drawn { budget: self.0.clone(), bytes: AtomicU64::new(0) };
        drawn.more(bytes)?;
        Ok(drawn)
    }
}

impl PartialEq for Allowance {
    fn eq(&self, _: &Allowance) -> bool {
        true
    }
}

impl Eq for Allowance {}

impl Drop for Drawn {
    fn drop(&mut self) {
        if let Some(budget) = &self.budget {
            budget.drawn.fetch_sub(self.bytes.load(Relaxed), Relaxed);
        }
    }
}

fn over(needed: u64, limit: u64, is_all: bool) -> Error {
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    let allowed = match is_all {
        true => "allowed, whatever another host says that they occupy there",
        false => "allowed for what they occupy on the medium",
    };
    let why = format!(
        "reading the archive's tables takes {} MiB of memory or more, and {} MiB are {allowed}; --memory of ls, get, restore, status, check, scrub, repair and gc allows more",
        mib(needed),
        mib(limit)
    );
    Error::new(Kind::Memory, why)
}

/// An empty list with room for `count`, or the error that the system has no memory for it: sizes that a
/// medium states end no process.
pub(crate) fn with_room<T>(count: usize) -> Result<Vec<T>> {
    let mut list = Vec::new();
    list.try_reserve_exact(count).map_err(|_| {
        let mib = (count.saturating_mul(size_of::<T>())).div_ceil(1 << 20);
        Error::new(
            Kind::Memory,
            format!("the system has no {mib} MiB of memory for what it states"),
        )
    })?;
    Ok(list)
}

/// Buffers kept at most: as many as can be on their way through a put's queues.
const KEPT_MAX: usize = 8;

/// Buffers that nobody uses.
#[derive(Debug)]
pub(crate) struct BufferPool {
    buffers: Mutex<Vec<Vec<u8>>>,
    most: usize,
}

impl Default for BufferPool {
    fn default() -> BufferPool {
        BufferPool::keeping(KEPT_MAX)
    }
}

impl BufferPool {
    /// Keeps so many at most.
    pub(crate) fn keeping(most: usize) -> BufferPool {
        BufferPool { buffers: Mutex::default(), most }
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

/// A full buffer, which its pool gets back when nobody needs the bytes any more.
#[derive(Debug)]
pub(crate) struct Pooled {
    bytes: Vec<u8>,
    pool: Arc<BufferPool>,
}

impl Pooled {
    pub(crate) fn new(bytes: Vec<u8>, pool: Arc<BufferPool>) -> Pooled {
        Pooled { bytes, pool }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        self.pool.give(std::mem::take(&mut self.bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::label::Kinds;
    use crate::{
        format::{
            ContainerId,
            class::Class,
            container::ContainerKind,
            parameters::SLOTS_MAX,
            record::{Owner, Pieces, Place, Record, Shape, Stored, Stream},
        },
        settings::READER_BYTES,
        tables::{Container, Tables},
    };

    /// The tables of an archive with a thousand million chunks, half of whose containers were
    /// merged from others.
    fn large() -> Tables {
        let mut tables = Tables {
            next_id: 1,
            next_segment: 1,
            epoch: 1,
            ..Tables::new([1, 1, 0], Kinds::default())
        };
        let class = (Class::Plain, 0);
        let reserved = Record::Reserved {
            owner: Owner::Ingest,
            first: ContainerId(1),
            count: 1 << 20,
            segment: Some(1),
            class,
        };
        tables.apply(1, vec![reserved]).unwrap();
        for n in 0..125_000u64 {
            let place = Place { segment: 1, at: n * 4096, bytes: 4 << 20, meta_bytes: 200_000 };
            let id = ContainerId(n * 4 + 4);
            let stored = Stored {
                id,
                kind: ContainerKind::Data,
                domain: 0,
                chunks: SLOTS_MAX as u32,
                raw_bytes: 4 << 20,
                place,
            };
            let merged = if n % 2 == 0 {
                Vec::new()
            } else {
                (0..4).map(|m| ContainerId(id.0 - m)).collect()
            };
            let container = Container { stored, merged, logged: n, born: 0, changed: 0 };
            tables.containers.insert(id, container).unwrap();
            let recipe = vec![Pieces { container: id, first: 0, count: 9 }];
            let stream = Stream {
                shape: Shape::Bytes,
                domain: 0,
                created: 1,
                bytes: 1,
                added: 1,
                chunks: 1,
                recipe,
                listing: Vec::new(),
            };
            tables.streams.insert(format!("machine-{}/2026-11-{n:06}", n % 50), stream);
        }
        tables
    }

    #[test]
    fn rule_09_large_honest_tables_fit_into_their_budget_and_sparse_ones_do_not() {
        let bytes = large().encode();
        let decoded = |occupied: u64| {
            let budget = Budget::new(READER_BYTES);
            budget.occupied(occupied);
            let drawn = Drawn::from(&budget);
            drawn.more(bytes.len() as u64).unwrap();
            Tables::decode_within(&bytes, [1, 1, 0], Kinds::default(), &drawn, None)
                .map(|tables| tables.containers.len())
                .map_err(|e| e.kind())
        };
        assert_eq!(decoded(bytes.len() as u64), Ok(125_000));
        // Also where the file system compresses them to half.
        assert_eq!(decoded(bytes.len() as u64 / 2), Ok(125_000));
        assert_eq!(decoded(4096), Err(Kind::Memory));
    }

    #[test]
    fn rule_46_what_another_host_says_that_its_tables_occupy_allows_nothing() {
        assert!(!Budget::of_tables(1 << 20, true).grows());
        for budget in [Budget::of_tables(1 << 20, true), Budget::of_filters(1 << 20, true)] {
            let drawn = Drawn::from(&budget);
            drawn.more(1 << 20).unwrap();
            let error = drawn.more(1).unwrap_err();
            assert!(error.to_string().contains("another host"), "{error}");
        }
        assert!(Budget::of_tables(1 << 20, false).grows());
        Drawn::from(&Budget::of_filters(1 << 20, false)).more(1 << 40).unwrap();
    }

    #[test]
    fn memory_that_the_system_does_not_have_is_an_error() {
        assert_eq!(with_room::<u64>(usize::MAX / 64).unwrap_err().kind(), Kind::Memory);
        assert!(with_room::<u8>(10).unwrap().capacity() >= 10);
    }

    #[test]
    fn what_was_drawn_comes_back() {
        let budget = Budget::new(100);
        let drawn = Drawn::from(&budget);
        drawn.more(60).unwrap();
        assert!(drawn.more(60).unwrap_err().to_string().contains("--memory"));
        drop(drawn);
        Drawn::from(&budget).more(100).unwrap();
        Drawn::free().more(u64::MAX).unwrap();
    }
}
