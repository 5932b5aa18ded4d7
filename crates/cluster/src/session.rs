//! A session: what a process does with the store, under a number that the catalogue gave it.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use onefold_core::{Result, object::ObjectStore};

use crate::{
    chunk_pool::ChunkPool,
    format::catalogue::{Format, Named, What},
    kernel::{Counts, Kernel},
    names::Names,
    settings::Settings,
    volume::cache_manager::CacheBudget,
};

/// A session of the store. All methods may be called from many threads at once.
pub struct Session {
    kernel: Arc<Kernel>,
    chunk_pool: ChunkPool,
    cache_budget: CacheBudget,
    /// How often the load was published.
    published: AtomicU64,
}

impl Session {
    /// Opens the store with a new session.
    ///
    /// # Errors
    /// `NotFound` when there is no store, `Unsupported` when it is of a newer version, and the
    /// object store's.
    pub fn open(store: Arc<dyn ObjectStore>, settings: Settings) -> Result<Session> {
        Kernel::open(store, settings).map(Session::over)
    }

    /// Opens the store only to look at it, without a number of its own: how often that happens is
    /// not limited. Nothing may be changed through it.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn look(store: Arc<dyn ObjectStore>, settings: Settings) -> Result<Session> {
        Kernel::look(store, settings).map(Session::over)
    }

    fn over(kernel: Kernel) -> Session {
        let kernel = Arc::new(kernel);
        Session {
            chunk_pool: ChunkPool::new(kernel.clone()),
            kernel,
            cache_budget: CacheBudget::default(),
            published: AtomicU64::new(0),
        }
    }

    pub(crate) fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    pub(crate) fn chunk_pool(&self) -> &ChunkPool {
        &self.chunk_pool
    }

    pub(crate) fn cache_budget(&self) -> &CacheBudget {
        &self.cache_budget
    }

    /// What was decided when the store was made.
    #[must_use]
    pub fn format(&self) -> &Format {
        self.kernel.format()
    }

    /// The object store.
    #[must_use]
    pub fn store(&self) -> &dyn ObjectStore {
        self.kernel.store()
    }

    /// What was done.
    #[must_use]
    pub fn counts(&self) -> &Counts {
        self.kernel.counts()
    }

    /// The number of this session; higher ones began later.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.kernel.number()
    }

    /// Counts one more publication of the load; how many there were.
    pub(crate) fn next_beat(&self) -> u64 {
        self.published.fetch_add(1, Relaxed) + 1
    }

    /// What a name stands for.
    ///
    /// # Errors
    /// The store's.
    pub fn find(&self, name: &str) -> Result<Option<Named>> {
        Names::of(&self.kernel).find(name)
    }

    /// All names with what they stand for, sorted.
    ///
    /// # Errors
    /// The store's.
    pub fn names(&self) -> Result<Vec<(String, Named)>> {
        Names::of(&self.kernel).all()
    }

    /// Makes an empty volume.
    ///
    /// # Errors
    /// `Exists` when the name is taken, `InvalidInput`, `NoSpace`.
    pub fn create_volume(&self, name: &str, bytes: u64) -> Result<()> {
        Names::of(&self.kernel).create_volume(name, bytes)
    }

    /// Takes a name away; what it stood for is deleted step by step, here or by any worker.
    ///
    /// # Errors
    /// `NotFound`, and `Busy` when it changed meanwhile.
    pub fn delete(&self, name: &str, what: What) -> Result<()> {
        Names::of(&self.kernel).delete(name, what)
    }
}
