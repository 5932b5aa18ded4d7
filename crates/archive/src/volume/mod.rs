//! Backup volumes: writes gather in memory, and are drained into containers when somebody asks for
//! durability.
//!
//! | module | what |
//! |---|---|
//! | [`layer`] | what was written and is not drained: blocks of 128 KiB with the sectors that are there, and ranges of zeroes |
//! | [`write`](self::write) | writes, trims, zeroes; how much may be in memory |
//! | [`drain`] | chunks, containers, mappings, one frame of the log; FLUSH |
//! | [`mapper`] | cut chunks to the mappings of blocks |
//! | [`read`](self::read) | layers over mappings |
//! | [`serve`] | the same as a [`onefold_core::Volume`], for servers |
//!
//! A block's content is its mapping, below what is being drained, below what was written since. A
//! drain takes all of the upper layer at once; runs of neighbouring blocks are chunked across their
//! borders, and each block gets a mapping of its own, which is a piece in a container of recipes.
//!
//! *Crash argument:* containers with chunks and mappings are durable before the one frame that
//! names the mappings, for all blocks of the drain: each block changes as a whole, and what a FLUSH
//! covers is there when it is answered. What was not drained is lost, as a disk's cache is.
//!
//! *Locks:* in the order `draining`, `order`, `state`. None of them is held by a read while it
//! reads the disk.

mod drain;
mod layer;
mod mapper;
mod read;
mod serve;
mod write;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use onefold_core::{Error, Kind, Result};
use parking_lot::{Condvar, Mutex, RwLock};

pub(crate) use read::{Mapped, chunks_of};
pub use serve::{ArchiveExports, ArchiveVolume};

use self::layer::Layer;
use crate::{
    archive::{Archive, Stay},
    get::ChunkReader,
    memory::Spare,
    put::Ingest,
    segments::Shelves,
};

/// Bytes of a block.
pub(crate) const BLOCK: usize = crate::settings::VOLUME_BLOCK_BYTES as usize;

/// Pause of the drainer when it can do nothing.
const PAUSE: std::time::Duration = std::time::Duration::from_millis(200);

/// Readers kept, each with its caches.
const READERS_KEPT: usize = 2;

/// The volumes of an archive, in the hands of its ingesting process.
pub struct Volumes {
    archive: Arc<Archive>,
    ingest: Arc<Ingest>,
    shelves: Shelves,
    readers: Mutex<Vec<ChunkReader>>,
    /// Memory of blocks.
    spare: Spare,
    /// What is read stays where it is; taken when somebody reads, and given up now and then.
    stay: Mutex<Option<Arc<Stay>>>,
    /// Held by who drains.
    draining: Mutex<()>,
    /// Held alone by a write that begins or ends inside a sector.
    order: RwLock<()>,
    state: Mutex<State>,
    /// There is much to drain, or the end is near.
    much: Condvar,
    stopping: AtomicBool,
    /// Seconds since 1970.
    now: AtomicU64,
    counts: Counters,
}

/// What is not durable yet.
#[derive(Default)]
struct State {
    volumes: BTreeMap<u64, Layers>,
    /// Bytes in memory.
    bytes: u64,
    /// Changes so far, and how many of them were drained.
    changes: u64,
    drained: u64,
    /// Changes seen by the last look for idle ones.
    seen: u64,
    /// The last drain that lost something.
    lost: Option<Lost>,
    /// Why nothing is taken any more.
    stopped: Option<Error>,
}

/// What a drain lost.
struct Lost {
    /// Changes that it drained.
    upto: u64,
    error: Error,
    /// A client was told.
    told: bool,
}

/// What one volume has in memory.
#[derive(Default)]
struct Layers {
    upper: Layer,
    draining: Option<Arc<Layer>>,
}

#[derive(Default)]
struct Counters {
    drains: AtomicU64,
    chunks: AtomicU64,
    duplicates: AtomicU64,
    page_reads: AtomicU64,
    metadata_reads: AtomicU64,
    new_bytes: AtomicU64,
    added_bytes: AtomicU64,
}

/// What volumes did since their server began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolumeCounts {
    /// Bytes written and not durable.
    pub dirty_bytes: u64,
    /// Drains.
    pub drains: u64,
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

impl Volumes {
    /// The volumes of the archive that `ingest` writes to. `now` is in seconds since 1970.
    #[must_use]
    pub fn new(ingest: &Arc<Ingest>, now: u64) -> Arc<Volumes> {
        let archive = ingest.archive.clone();
        Arc::new(Volumes {
            shelves: Shelves::new(archive.clone()),
            spare: Spare::keeping((archive.settings.dirty_bytes / BLOCK as u64) as usize),
            archive,
            ingest: ingest.clone(),
            readers: Mutex::default(),
            stay: Mutex::default(),
            draining: Mutex::default(),
            order: RwLock::default(),
            state: Mutex::default(),
            much: Condvar::new(),
            stopping: AtomicBool::new(false),
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

    /// Does what is due about once a second: sees what other processes changed, lets places go that
    /// were read, drains what lies idle, and imports.
    ///
    /// # Errors
    /// Those of the system, and of a drain.
    pub fn tend(&self, now: u64) -> Result<()> {
        self.now.store(now, Relaxed);
        *self.stay.lock() = None;
        self.archive.refresh()?;
        let idle = {
            let mut state = self.state.lock();
            let idle = state.seen == state.changes
                && state.drained < state.changes
                && state.stopped.is_none();
            state.seen = state.changes;
            idle
        };
        if idle {
            self.drain_all()?;
        }
        if self.ingest.must_import() {
            self.ingest.import(true)?;
        }
        Ok(())
    }

    /// Makes everything durable, and ends. Nobody else may use the volumes any more.
    ///
    /// # Errors
    /// Those of a drain.
    pub fn close(&self) -> Result<()> {
        self.stop();
        *self.stay.lock() = None;
        self.flush_all()?;
        self.ingest.close()
    }

    /// Drains in the background whatever is much, until [`stop`](Self::stop): for a thread of its
    /// own.
    pub fn run_drainer(&self) {
        while !self.stopping.load(Relaxed) {
            let mut state = self.state.lock();
            if state.bytes < self.much() && !self.stopping.load(Relaxed) {
                self.much.wait(&mut state);
            }
            let due = state.bytes >= self.much() && state.stopped.is_none();
            drop(state);
            // Who flushes hears of a failure, and who writes finds no room.
            if !due || self.make_room().is_err() {
                let mut state = self.state.lock();
                if !self.stopping.load(Relaxed) {
                    self.much.wait_for(&mut state, PAUSE);
                }
            }
        }
    }

    /// Lets [`run_drainer`](Self::run_drainer) return.
    pub fn stop(&self) {
        let _state = self.state.lock();
        self.stopping.store(true, Relaxed);
        self.much.notify_all();
    }

    /// Bytes in memory from which on somebody drains.
    fn much(&self) -> u64 {
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
            drains: of(&self.counts.drains),
            chunks: of(&self.counts.chunks),
            duplicates: of(&self.counts.duplicates),
            page_reads: of(&self.counts.page_reads),
            metadata_reads: of(&self.counts.metadata_reads),
            new_bytes: of(&self.counts.new_bytes),
            added_bytes: of(&self.counts.added_bytes),
        }
    }

    fn going(state: &State) -> Result<()> {
        match &state.stopped {
            Some(reason) => Err(Error::new(Kind::Stopped, format!("an earlier failure: {reason}"))),
            None => Ok(()),
        }
    }

    /// Stays in an epoch as long as somebody holds the value.
    fn stay(&self) -> Result<Arc<Stay>> {
        let mut stay = self.stay.lock();
        match &*stay {
            Some(stay) => Ok(stay.clone()),
            None => Ok(stay.insert(Arc::new(self.archive.stay()?)).clone()),
        }
    }

    /// Lends a reader, with whatever it knows from before.
    fn with_reader<T>(&self, does: impl FnOnce(&mut ChunkReader) -> T) -> T {
        let mut reader = self.readers.lock().pop().unwrap_or_default();
        let done = does(&mut reader);
        let mut readers = self.readers.lock();
        if readers.len() < READERS_KEPT {
            readers.push(reader);
        }
        done
    }
}

/// The error for a volume that is not there any more.
fn deleted() -> Error {
    Error::new(Kind::NotFound, "the volume was deleted")
}
