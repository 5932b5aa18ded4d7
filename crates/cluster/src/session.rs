//! A session: the use that a process makes of the store, under a number from the catalogue.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use onefold_core::{Error, Kind, Result, object::ObjectStore};
use parking_lot::Mutex;

use crate::{
    cache_budget::CacheBudget,
    chunk_pool::ChunkPool,
    format::catalogue::{Format, Named, What},
    kernel::{Counts, Kernel},
    layers::table::snapshots_of_one,
    names::{Names, NamesPage},
    proof::{Proof, nanoseconds},
    settings::Settings,
    volume::Leaving,
};

/// A session of the store. All methods may be called from many threads at once.
pub struct Session {
    kernel: Arc<Kernel>,
    chunk_pool: ChunkPool,
    cache_budget: CacheBudget,
    /// How many times the session published its load.
    published: AtomicU64,
    /// It has no number, and changes nothing.
    looks_only: bool,
    /// Where it serves a store that others stand by for.
    proof: OnceLock<Proof>,
    /// Sessions that it shut out when it took over.
    shut_out: Mutex<BTreeSet<String>>,
    leaving: Leaving,
    /// Layers in which no chunk is kept because it is read often: none ever is from then on.
    cooled: Mutex<BTreeSet<u64>>,
    /// When its volumes were last tended, in nanoseconds of the monotonic clock.
    tended: AtomicU64,
}

/// How old the last look after its volumes may be for a session that answers alone: a process that was stopped
/// for longer may have lost its store. The look proves that the process runs again, and nothing of the store: after a
/// stop what was read before may be given for a moment, as a plain read of a file may then.
const TENDED: Duration = Duration::from_secs(3);

impl Session {
    /// Opens the store with a new session.
    ///
    /// # Errors
    /// `NotFound`: there is no store. `Unsupported`: a newer version made it. Otherwise the error
    /// of the object store.
    pub fn open(store: Arc<dyn ObjectStore>, settings: Settings) -> Result<Session> {
        Kernel::open(store, settings).map(|kernel| Session::over(kernel, false))
    }

    /// Opens the store only for reading, without a number from the catalogue, so the number of such
    /// sessions is not limited. Callers must not change anything through it.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn look(store: Arc<dyn ObjectStore>, settings: Settings) -> Result<Session> {
        Kernel::look(store, settings).map(|kernel| Session::over(kernel, true))
    }

    fn over(kernel: Kernel, looks_only: bool) -> Session {
        let kernel = Arc::new(kernel);
        Session {
            chunk_pool: ChunkPool::new(kernel.clone()),
            kernel,
            cache_budget: CacheBudget::default(),
            published: AtomicU64::new(0),
            looks_only,
            proof: OnceLock::new(),
            shut_out: Mutex::default(),
            leaving: Leaving::default(),
            cooled: Mutex::default(),
            tended: AtomicU64::new(0),
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

    /// Its right to serve, as far as it knows, where others stand by for it.
    pub(crate) fn proof(&self) -> &OnceLock<Proof> {
        &self.proof
    }

    /// The sessions that it shut out when it took over.
    pub(crate) fn shut_out(&self) -> &Mutex<BTreeSet<String>> {
        &self.shut_out
    }

    /// The numbers that it leaves, and those that it fills.
    pub(crate) fn leaving(&self) -> &Leaving {
        &self.leaving
    }

    /// Layers in which no chunk is kept because it is read often, or where this session can't give it back.
    pub(crate) fn cooled(&self) -> &Mutex<BTreeSet<u64>> {
        &self.cooled
    }

    /// Its volumes are looked after at this moment.
    pub(crate) fn tend(&self) {
        self.leaving.again(&self.kernel);
        self.tended.store(nanoseconds(self.store().monotonic()), Relaxed);
    }

    /// True when no server that stands by, and no other process, changes the volumes of this session at this
    /// moment: it would wait for a lease first, or for the end of this process. The lock of each volume says the
    /// same of all others. Who shuts this session out without waiting is told of by its next beat.
    pub(crate) fn is_alone(&self) -> bool {
        let store = self.store();
        match self.proof.get() {
            Some(proof) => proof.is_young(store),
            None => {
                let age = nanoseconds(store.monotonic()).saturating_sub(self.tended.load(Relaxed));
                store.is_exclusive() && age < nanoseconds(TENDED)
            }
        }
    }

    /// The format, fixed when the store was made.
    #[must_use]
    pub fn format(&self) -> &Format {
        self.kernel.format()
    }

    /// The object store.
    #[must_use]
    pub fn store(&self) -> &dyn ObjectStore {
        self.kernel.store()
    }

    /// Counters of what this session did.
    #[must_use]
    pub fn counts(&self) -> &Counts {
        self.kernel.counts()
    }

    /// The number of this session; higher ones began later.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.kernel.number()
    }

    /// True when it was opened only to read.
    pub(crate) fn looks_only(&self) -> bool {
        self.looks_only
    }

    /// How long another server waits until it may take a volume of this session that is not renewed.
    #[must_use]
    pub fn volume_lease(&self) -> Duration {
        self.kernel.settings().volume_lease
    }

    /// Counts one more publication of the load, and returns the number of publications.
    pub(crate) fn next_beat(&self) -> u64 {
        self.published.fetch_add(1, Relaxed) + 1
    }

    /// Looks up a name.
    ///
    /// # Errors
    /// The store's.
    pub fn find(&self, name: &str) -> Result<Option<Named>> {
        Names::of(&self.kernel).find(name)
    }

    /// All names with their values, sorted.
    ///
    /// # Errors
    /// The store's.
    pub fn names(&self) -> Result<Vec<(String, Named)>> {
        Names::of(&self.kernel).all(None)
    }

    /// Names behind `after` with their values, in their order; all pages one after the other have every
    /// name, and each takes the memory of a few thousand names. A page is of one moment; what is renamed
    /// between two pages may be in neither, or in both.
    ///
    /// # Errors
    /// The store's.
    pub fn names_after(&self, what: Option<What>, after: &str) -> Result<NamesPage> {
        Names::of(&self.kernel).page(what, after)
    }

    /// The names of volumes alone, with their values, sorted.
    ///
    /// # Errors
    /// The store's.
    pub fn volumes(&self) -> Result<Vec<(String, Named)>> {
        Names::of(&self.kernel).all(Some(What::Volume))
    }

    /// Makes an empty volume.
    ///
    /// # Errors
    /// `Exists`: the name is in use. `InvalidInput`: the name or the size is not valid. `NoSpace`:
    /// the store is full.
    pub fn create_volume(&self, name: &str, bytes: u64) -> Result<()> {
        Names::of(&self.kernel).create_volume(name, bytes)
    }

    /// Gives a volume or an object that was put another name. A server that has the volume attached
    /// goes on.
    ///
    /// # Errors
    /// `NotFound`: there is no such name. `Exists`: the new name is taken. `InvalidInput`: it is no
    /// name. `Busy`: the names were changed meanwhile; whether it was renamed is not known then, as
    /// after an error of the store.
    pub fn rename(&self, what: What, name: &str, new_name: &str) -> Result<()> {
        Names::of(&self.kernel).rename(what, name, new_name)
    }

    /// Removes a name. Its volume or object is then deleted step by step, here or by any worker.
    ///
    /// # Errors
    /// `NotFound`: there is no such name. `Busy`: the name changed meanwhile.
    pub fn delete(&self, name: &str, what: What) -> Result<()> {
        let Some(named) = self.find(name)?.filter(|named| named.what == what) else {
            return Names::of(&self.kernel).delete(name, what, None);
        };
        if what == What::Volume && !snapshots_of_one(&self.kernel, name, &named)?.is_empty() {
            let name = name.escape_debug();
            let why = format!("volume '{name}' has snapshots: delete them first");
            return Err(Error::new(Kind::Busy, why));
        }
        // A volume that gets a snapshot meanwhile gets another number.
        Names::of(&self.kernel).delete(name, what, Some(named.id))
    }
}
