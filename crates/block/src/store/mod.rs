//! The engine at work: many threads call it, and group commit, write-back and checkpoints happen by
//! themselves.
//!
//! The store starts no threads. Its owner gives it two: one runs [`Store::run_writer`], which
//! writes full windows out and flushes once a second; the other runs [`Store::run_background`],
//! which makes checkpoints and uses idle time. Both return after [`Store::stop`].
//!
//! Group commit (`commit.rs`): a client that needs a flush commits the open window itself when
//! nobody is committing, without a change of threads; otherwise it waits, and one of those who
//! waited commits for all of them.

mod background;
mod changes;
mod commit;
mod domains;
mod growth;
mod handles;
mod images;
mod offered;
mod receive;
mod receives;
mod resumed;
mod send;
mod snapshots;
mod volume;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use commit::GroupCommit;
use handles::Handles;
use onefold_core::{Clock, Disk, Result, Ticket, VolumeId, VolumeLimits};
use parking_lot::{Condvar, Mutex};
pub use receive::Received;
pub use receives::{ReceiveState, receives};
pub use volume::{BlockVolume, StoreExports};

pub use crate::engine::{DomainStatus, Status, VolumeStatus};
use crate::{
    Engine, NewVolume, NoDedup, Setting, Settings, engine::idle::index_step, traffic::AllTraffic,
};

/// How long a change waits for room before it looks again by itself.
const ROOM_WAIT: Duration = Duration::from_millis(20);

/// A store that is served.
pub struct Store {
    engine: Arc<Engine>,
    clock: Arc<dyn Clock>,
    commit: GroupCommit,
    writer: Signal,
    background: Signal,
    /// The time that checkpoints took.
    checkpoints: Mutex<CheckpointTimes>,
    /// Who has which volume open.
    handles: Mutex<Handles>,
    /// What clients read and wrote.
    traffic: AllTraffic,
    /// Changes that wait for room.
    pressure: AtomicU64,
    stopping: AtomicBool,
}

/// Changes of a store, which wait for room when the engine asks for it.
struct Changes<'s>(&'s Store);

/// How long who copies waits for an index that is read anew after opening.
const INDEX_WAIT: Duration = Duration::from_secs(60);

/// Snapshots that leave a store or come into one as streams, and volumes that do as raw data.
///
/// What comes into a store without a base belongs to the domain that was named, or to the first one.
pub struct Copies<'s>(&'s Arc<Store>, Option<u32>);

impl<'s> Copies<'s> {
    /// The copies of a store.
    #[must_use]
    pub fn of(store: &'s Arc<Store>) -> Copies<'s> {
        Copies(store, None)
    }

    /// The same; what comes belongs to this domain.
    #[must_use]
    pub fn in_domain(self, domain: Option<u32>) -> Copies<'s> {
        Copies(self.0, domain)
    }

    /// Reads the index anew, of which an opened store knows nothing yet, so that what comes is found where it
    /// is there. What it does not know when [`INDEX_WAIT`] is over is stored, or sent, once more.
    fn complete_index(&self) -> Result<()> {
        let store = self.0;
        let begun = store.clock.now();
        while store.clock.now().saturating_sub(begun) < INDEX_WAIT && !store.is_stopping() {
            if !index_step(&store.engine.kernel, &*store.engine.scheme)? {
                break;
            }
        }
        Ok(())
    }
}

/// Checkpoints of the background thread, from freezing the overlay until the new tables are durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckpointTimes {
    /// How many there were since the store was opened.
    pub count: u64,
    /// The time that they took together, waiting for readers and flushes included.
    pub sum: Duration,
}

/// Wakes a thread that has work.
#[derive(Default)]
struct Signal {
    due: Mutex<bool>,
    raised: Condvar,
}

impl Signal {
    fn raise(&self) {
        let mut due = self.due.lock();
        if !*due {
            *due = true;
            self.raised.notify_one();
        }
    }

    /// Returns whether it was raised before the time was over.
    fn wait(&self, most: Duration) -> bool {
        let mut due = self.due.lock();
        if !*due {
            self.raised.wait_for(&mut due, most);
        }
        std::mem::take(&mut due)
    }
}

impl Store {
    /// Opens the store on a disk, recovering what a crash left.
    ///
    /// # Errors
    /// As [`Engine::open`].
    pub fn open(
        disk: Arc<dyn Disk>,
        clock: Arc<dyn Clock>,
        settings: Settings,
    ) -> Result<Arc<Store>> {
        let engine = Arc::new(Engine::open(disk, clock.clone(), settings)?);
        Ok(Arc::new(Store {
            commit: GroupCommit::new(engine.clone(), clock.clone()),
            engine,
            clock,
            writer: Signal::default(),
            background: Signal::default(),
            checkpoints: Mutex::default(),
            handles: Mutex::default(),
            traffic: AllTraffic::default(),
            pressure: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
        }))
    }

    /// The engine.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The store at this moment.
    #[must_use]
    pub fn status(&self) -> Status {
        let mut status = self.engine.status();
        self.traffic.keep(|id| self.engine.volume(id).is_ok());
        for volume in &mut status.volumes {
            volume.traffic = Some(self.traffic.now(volume.id));
        }
        status
    }

    /// How long checkpoints took.
    #[must_use]
    pub fn checkpoint_times(&self) -> CheckpointTimes {
        *self.checkpoints.lock()
    }

    /// Makes both working threads return, once they have done what is due.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.writer.raise();
        self.background.raise();
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Makes everything durable and marks the store clean. Call it when the working threads have
    /// returned and no client is left.
    ///
    /// # Errors
    /// `Stopped`.
    pub fn close(&self) -> Result<()> {
        self.engine.close()
    }

    /// Returns when everything up to `ticket` is durable.
    ///
    /// # Errors
    /// `Stopped`, with the reason.
    pub fn wait(&self, ticket: Ticket) -> Result<()> {
        self.commit.wait(ticket)
    }

    /// Makes every change that completed before this call durable.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub fn flush(&self) -> Result<()> {
        self.commit.flush()
    }

    /// Changes, which may have to wait for room.
    fn changes(&self) -> Changes<'_> {
        Changes(self)
    }

    /// A change of the catalogue: acknowledged when it is durable.
    fn catalogue_change<T>(&self, mut change: impl FnMut() -> Result<(T, Ticket)>) -> Result<T> {
        let (value, ticket) = self.changes().make(&mut change)?;
        self.commit.wait(ticket)?;
        Ok(value)
    }

    /// Makes a volume of `bytes` bytes, rounded up to whole blocks. Durable on return.
    ///
    /// # Errors
    /// `Exists`, `InvalidInput`, `NoSpace`, `Stopped`.
    pub fn create_volume(&self, name: &str, bytes: u64) -> Result<VolumeId> {
        self.catalogue_change(|| self.engine.create_volume(name, bytes.div_ceil(4096)))
    }

    /// As [`create_volume`](Self::create_volume), with blocks that are not deduplicated.
    ///
    /// # Errors
    /// As there.
    pub fn create_volume_with(
        &self,
        name: &str,
        bytes: u64,
        no_dedup: &NoDedup,
    ) -> Result<VolumeId> {
        let no_dedup = no_dedup.clone();
        self.create_volume_as(name, bytes, &NewVolume { no_dedup, ..NewVolume::default() })
    }

    /// As [`create_volume`](Self::create_volume), with all that a new volume may have.
    ///
    /// # Errors
    /// As there; `NotFound`: there is no such domain.
    pub fn create_volume_as(&self, name: &str, bytes: u64, new: &NewVolume) -> Result<VolumeId> {
        self.catalogue_change(|| {
            self.engine.create_volume_with(name, bytes.div_ceil(4096), new.clone())
        })
    }

    /// Gives a volume other limits for its clients. Durable on return; a server learns of it by
    /// [`Exports::limits`](onefold_core::Exports::limits).
    ///
    /// # Errors
    /// As [`resize_volume`](Self::resize_volume).
    pub fn set_limits(&self, name: &str, limits: VolumeLimits) -> Result<()> {
        self.catalogue_change(|| {
            let id = self.engine.find_volume(name)?;
            Ok(((), self.engine.set(id, Setting::Limits(limits))?))
        })
    }

    /// Gives a volume a quota of so many bytes, whole blocks of them; 0 for none. Durable on return.
    ///
    /// # Errors
    /// As [`resize_volume`](Self::resize_volume); `Unsupported` where maps are not counted.
    pub fn set_quota(&self, name: &str, bytes: u64) -> Result<()> {
        self.catalogue_change(|| {
            let id = self.engine.find_volume(name)?;
            Ok(((), self.engine.set(id, Setting::Quota(bytes.div_ceil(4096)))?))
        })
    }

    /// Gives a volume other critical ranges: blocks that are not deduplicated. Durable on return;
    /// what was written before stays as it is.
    ///
    /// # Errors
    /// As [`resize_volume`](Self::resize_volume).
    pub fn set_no_dedup(&self, name: &str, no_dedup: &NoDedup) -> Result<()> {
        self.catalogue_change(|| {
            let id = self.engine.find_volume(name)?;
            Ok(((), self.engine.set(id, Setting::NoDedup(no_dedup.clone()))?))
        })
    }

    /// Changes the size of a volume. Durable on return; what shrinking drops is freed in the
    /// background.
    ///
    /// # Errors
    /// As [`create_volume`](Self::create_volume), and `NotFound`.
    pub fn resize_volume(&self, name: &str, bytes: u64) -> Result<()> {
        self.catalogue_change(|| {
            let id = self.engine.find_volume(name)?;
            let resize = || self.engine.resize_volume(id, bytes.div_ceil(4096));
            Ok(((), self.handles.lock().changing(id, resize)?))
        })
    }

    /// Gives a volume another name. Durable on return.
    ///
    /// # Errors
    /// As [`resize_volume`](Self::resize_volume).
    pub fn rename_volume(&self, name: &str, new_name: &str) -> Result<()> {
        self.catalogue_change(|| {
            let id = self.engine.find_volume(name)?;
            Ok(((), self.engine.rename_volume(id, new_name)?))
        })
    }

    /// Deletes a volume, or a snapshot that nobody has open. Durable on return; its blocks are freed
    /// in the background.
    ///
    /// # Errors
    /// As [`resize_volume`](Self::resize_volume), and
    /// [`delete_snapshot`](Self::delete_snapshot).
    pub fn delete_volume(&self, name: &str) -> Result<()> {
        if self.find_snapshot(name).is_ok() {
            return self.delete_snapshot(name, false);
        }
        self.catalogue_change(|| {
            let id = self.engine.find_volume(name)?;
            Ok(((), self.handles.lock().changing(id, || self.engine.delete_volume(id))?))
        })
    }
}
