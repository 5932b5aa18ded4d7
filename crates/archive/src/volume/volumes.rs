//! The volumes in the hands of their server: what is not durable yet, and what was counted.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
};

use onefold_core::{Error, Kind, Result};
use parking_lot::{Condvar, Mutex, RwLock};

use super::layer::Layer;
use crate::{
    container::{ChunkReader, ContainerReader},
    operations_log::{Archive, EpochGuard, is_there},
    rules::Rule,
    stream::Ingest,
    tables::{Tables, Volume},
};

/// Pause of the thread that writes back when it can do nothing.
const PAUSE: std::time::Duration = std::time::Duration::from_millis(200);

/// Readers kept, each with its caches.
const READERS_KEPT: usize = 2;

/// The volumes of an archive, in the hands of its ingesting process.
pub struct Volumes {
    pub(super) archive: Arc<Archive>,
    pub(super) ingest: Arc<Ingest>,
    pub(super) container_reader: ContainerReader,
    readers: Mutex<Vec<ChunkReader>>,
    /// Keeps containers that are read from being freed. A read makes it, and `tend` drops it.
    guard: Mutex<Option<Arc<EpochGuard>>>,
    /// Held during a write-back.
    pub(super) writing_back: Mutex<()>,
    /// Of each volume: held alone by a write that begins or ends inside a sector, which reads the
    /// rest of it. Other volumes go on meanwhile.
    orders: Mutex<BTreeMap<u64, Arc<RwLock<()>>>>,
    pub(super) state: Mutex<State>,
    /// There is much to write back, or the end is near.
    pub(super) much: Condvar,
    stopping: AtomicBool,
    /// Domains that were erased when it was last looked.
    erased: AtomicUsize,
    /// Seconds since 1970.
    pub(super) now: AtomicU64,
    pub(super) counts: Counters,
}

/// The changes that are not durable yet.
#[derive(Default)]
pub(super) struct State {
    pub(super) volumes: BTreeMap<u64, Layers>,
    /// Bytes of memory that the changes take.
    pub(super) bytes: u64,
    /// Changes so far, and how many of them were written back.
    pub(super) changes: u64,
    pub(super) written_back: u64,
    /// Changes seen by the last look for idle ones.
    seen: u64,
    /// The last write-back that lost something.
    pub(super) lost: Option<Lost>,
    /// Why nothing is taken any more.
    pub(super) stopped: Option<Error>,
    /// All was made durable, and nothing is taken any more.
    closed: bool,
}

/// The changes that a failed write-back lost.
pub(super) struct Lost {
    /// Changes that it wrote back.
    pub(super) upto: u64,
    pub(super) error: Error,
    /// A client was told.
    pub(super) told: bool,
}

/// The changes of one volume in memory.
#[derive(Default)]
pub(super) struct Layers {
    pub(super) upper: Layer,
    pub(super) writing_back: Option<Arc<Layer>>,
}

#[derive(Default)]
pub(super) struct Counters {
    pub(super) write_backs: AtomicU64,
    pub(super) chunks: AtomicU64,
    pub(super) duplicates: AtomicU64,
    pub(super) page_reads: AtomicU64,
    pub(super) metadata_reads: AtomicU64,
    pub(super) new_bytes: AtomicU64,
    pub(super) added_bytes: AtomicU64,
}

/// Counts of the volumes' work since their server began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolumeCounts {
    /// Bytes written and not durable.
    pub dirty_bytes: u64,
    /// Write-backs.
    pub write_backs: u64,
    /// Chunks looked up.
    pub chunks: u64,
    /// Of them duplicates.
    pub duplicates: u64,
    /// Pages of the chunk index read for them.
    pub page_reads: u64,
    /// Metadata sections read for them.
    pub metadata_reads: u64,
    /// Bytes of new chunks.
    pub new_bytes: u64,
    /// Bytes of containers written.
    pub added_bytes: u64,
}

/// Fails for a volume whose domain was erased, so that no flush says that its content is there.
pub(super) fn is_not_erased(volumes: &Volumes, id: u64) -> Result<()> {
    match readable(&volumes.archive.tables(), id) {
        Err(error) if error.kind() == Kind::Denied => Err(error),
        _ => Ok(()),
    }
}

impl Volumes {
    /// The lock of a volume's writes. That of a volume that was deleted stays, a few bytes.
    pub(super) fn order(&self, id: u64) -> Arc<RwLock<()>> {
        self.orders.lock().entry(id).or_default().clone()
    }

    /// The volumes of the archive that `ingest` writes to. `now` is in seconds since 1970.
    #[must_use]
    pub fn new(ingest: &Arc<Ingest>, now: u64) -> Arc<Volumes> {
        let archive = ingest.archive.clone();
        Arc::new(Volumes {
            container_reader: ContainerReader::new(archive.clone()),
            archive,
            ingest: ingest.clone(),
            readers: Mutex::default(),
            guard: Mutex::default(),
            writing_back: Mutex::default(),
            orders: Mutex::default(),
            state: Mutex::default(),
            much: Condvar::new(),
            stopping: AtomicBool::new(false),
            erased: AtomicUsize::new(0),
            now: AtomicU64::new(now),
            counts: Counters::default(),
        })
    }

    /// The ingesting process, for streams beside the volumes.
    #[must_use]
    pub fn ingest(&self) -> &Arc<Ingest> {
        &self.ingest
    }

    /// The archive.
    #[must_use]
    pub fn archive(&self) -> &Arc<Archive> {
        &self.archive
    }

    /// Makes a volume of another one, with all that was written to it before the call, flushed or
    /// not. Durable on return.
    ///
    /// # Errors
    /// As [`Archive::clone_volume`], and the errors of a write-back.
    pub fn clone_volume(&self, of: &str, name: &str, read_only: bool) -> Result<()> {
        // Before anything is written back, so that what can't be cloned costs nothing.
        let tables = self.archive.refresh()?;
        is_there(&tables, tables.volumes.named(of)?.1.domain)?;
        if self.archive.keeps(Rule::CloneFlushed) {
            self.write_back_all()?;
            // The error stays untold for the client whose write was lost.
            if let Some(lost) = self.state.lock().lost.as_ref().filter(|lost| !lost.told) {
                return Err(lost.error.clone());
            }
        }
        self.archive.clone_volume(of, name, read_only, self.now.load(Relaxed))
    }

    /// Does what is due about once a second: sees what other processes changed, lets places go that
    /// were read, writes back what lies idle, and imports.
    ///
    /// # Errors
    /// Errors of the system, and of a write-back.
    pub fn tend(&self, now: u64) -> Result<()> {
        self.now.store(now, Relaxed);
        *self.guard.lock() = None;
        let erased = self.archive.refresh()?.domains.erased.len();
        if self.erased.swap(erased, Relaxed) != erased {
            // They have content in memory that nobody may read any more.
            self.readers.lock().clear();
        }
        let idle = {
            let mut state = self.state.lock();
            let idle = state.seen == state.changes
                && state.written_back < state.changes
                && state.stopped.is_none();
            state.seen = state.changes;
            idle
        };
        if idle {
            self.write_back_all()?;
        }
        if self.ingest.must_import() {
            self.ingest.import(true)?;
        }
        Ok(())
    }

    /// Makes everything durable, and ends. Changes of volumes that somebody still holds fail from now
    /// on.
    ///
    /// # Errors
    /// The errors of a write-back.
    pub fn close(&self) -> Result<()> {
        self.stop();
        *self.guard.lock() = None;
        loop {
            self.flush_all()?;
            let mut state = self.state.lock();
            // Nobody's change comes in between: who still holds a volume is told from now on.
            if state.written_back >= state.changes {
                state.closed = true;
                break;
            }
        }
        self.ingest.close()
    }

    /// Writes back in the background whatever is much, until [`stop`](Self::stop): for a thread of
    /// its own.
    pub fn run_write_back(&self) {
        while !self.stopping.load(Relaxed) {
            let mut state = self.state.lock();
            if state.bytes < self.much() && !self.stopping.load(Relaxed) {
                self.much.wait(&mut state);
            }
            let due = state.bytes >= self.much() && state.stopped.is_none();
            drop(state);
            // A flush reports the failure to its client, and a write finds no room.
            if !due || self.make_room().is_err() {
                let mut state = self.state.lock();
                if !self.stopping.load(Relaxed) {
                    self.much.wait_for(&mut state, PAUSE);
                }
            }
        }
    }

    /// Lets [`run_write_back`](Self::run_write_back) return.
    pub fn stop(&self) {
        let _state = self.state.lock();
        self.stopping.store(true, Relaxed);
        self.much.notify_all();
    }

    /// Bytes in memory from which on somebody writes back.
    pub(super) fn much(&self) -> u64 {
        self.archive.settings.dirty_bytes / 2
    }

    /// Why nothing is taken any more.
    #[must_use]
    pub fn stopped(&self) -> Option<Error> {
        self.state.lock().stopped.clone()
    }

    /// The figures so far.
    #[must_use]
    pub fn counts(&self) -> VolumeCounts {
        let of = |counter: &AtomicU64| counter.load(Relaxed);
        VolumeCounts {
            dirty_bytes: self.state.lock().bytes,
            write_backs: of(&self.counts.write_backs),
            chunks: of(&self.counts.chunks),
            duplicates: of(&self.counts.duplicates),
            page_reads: of(&self.counts.page_reads),
            metadata_reads: of(&self.counts.metadata_reads),
            new_bytes: of(&self.counts.new_bytes),
            added_bytes: of(&self.counts.added_bytes),
        }
    }

    pub(super) fn going(state: &State) -> Result<()> {
        if state.closed {
            return Err(Error::new(Kind::Stopped, "the store was closed: open it again"));
        }
        match &state.stopped {
            Some(reason) => Err(Error::new(Kind::Stopped, format!("an earlier failure: {reason}"))),
            None => Ok(()),
        }
    }

    /// Stays in an epoch as long as somebody holds the value.
    pub(super) fn epoch_guard(&self) -> Result<Arc<EpochGuard>> {
        let mut guard = self.guard.lock();
        match &*guard {
            Some(guard) => Ok(guard.clone()),
            None => Ok(guard.insert(Arc::new(EpochGuard::enter(&self.archive)?)).clone()),
        }
    }

    /// Lends a reader, with whatever it knows from before.
    pub(super) fn with_reader<T>(&self, does: impl FnOnce(&mut ChunkReader) -> T) -> T {
        let mut reader = self.readers.lock().pop().unwrap_or_default();
        let done = does(&mut reader);
        let mut readers = self.readers.lock();
        if readers.len() < READERS_KEPT {
            readers.push(reader);
        }
        done
    }
}

/// A volume that can be read: it is there, and so is its domain.
///
/// # Errors
/// `NotFound`: it was deleted. `Denied`: its domain was erased.
pub(super) fn readable(tables: &Tables, id: u64) -> Result<&Volume> {
    let deleted = || Error::new(Kind::NotFound, "the volume was deleted");
    let volume = tables.volumes.all().get(&id).ok_or_else(deleted)?;
    is_there(tables, volume.domain)?;
    Ok(volume)
}
