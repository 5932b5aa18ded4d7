//! The volumes in the hands of their server: what is not durable yet, and what was counted.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
};

use onefold_core::{Error, Kind, Result, Ticket};
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

/// Seconds after which what found no room is tried again in the background.
const AGAIN: u64 = 10;

/// Losses that wait for [`Volumes::take_losses`]; older ones are dropped.
const UNTAKEN_MAX: usize = 1024;

/// A volume among others takes no more memory than so many times what it leaves to them. Otherwise one
/// whose data the disk has no room for keeps others from writing.
const SHARE: u64 = 3;

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
    /// Changes so far.
    pub(super) changes: u64,
    /// Changes seen by the last look for idle ones.
    seen: u64,
    /// When what found no room is tried again, in seconds since 1970.
    again: u64,
    /// Losses so far, of all volumes.
    pub(super) losses: u64,
    /// The last loss of each volume that had one.
    pub(super) lost: BTreeMap<u64, Lost>,
    /// Losses that [`Volumes::take_losses`] has not given yet.
    pub(super) untaken: Vec<Loss>,
    /// Why nothing is taken any more.
    pub(super) stopped: Option<Error>,
    /// All was made durable, and nothing is taken any more.
    closed: bool,
}

/// The last loss of a volume in a write-back.
pub(super) struct Lost {
    /// Its number among all losses.
    pub(super) number: u64,
    /// The last change that the write-back took. Whoever waits for one of these changes is told.
    pub(super) upto: u64,
    pub(super) error: Error,
    /// A flush or a wait was told.
    pub(super) told: bool,
    /// Whoever was told asked for more since.
    pub(super) is_over: bool,
}

/// A loss of a volume in a write-back: blocks that were written in part, and whose rest can't be read.
#[derive(Clone, Debug)]
pub struct Loss {
    /// The number of the volume.
    pub volume: u64,
    /// Names the volume and the first block that was lost.
    pub error: Error,
}

/// The losses that whoever holds a volume has heard of, by their numbers.
#[derive(Default)]
pub(super) struct Heard {
    pub(super) by_flush: AtomicU64,
    pub(super) by_wait: AtomicU64,
}

/// How volumes share the memory for writes.
#[derive(Clone, Copy)]
pub(super) struct Share {
    /// Bytes for all of them.
    bytes: u64,
    /// The archive has more than one.
    several: bool,
}

impl Share {
    /// So many bytes more of a volume may be in memory, beside what it and all volumes have there: with
    /// other volumes about, it leaves them a share, the less the more take theirs.
    pub(super) fn admits(self, total: u64, own: u64, more: u64) -> bool {
        let left = self.bytes.checked_sub(total + more);
        total == 0 || left.is_some_and(|left| !self.several || own + more <= SHARE * left)
    }
}

/// The changes of one volume in memory.
#[derive(Default)]
pub(super) struct Layers {
    pub(super) upper: Layer,
    /// The first change in `upper`.
    pub(super) since: u64,
    pub(super) writing_back: Option<Arc<Layer>>,
    /// The first change in `writing_back`.
    pub(super) writing_back_since: u64,
    /// The disk had no room for it at the last attempt. It is written back by itself until there is.
    pub(super) lacks_room: bool,
}

impl Layers {
    /// Bytes of memory.
    pub(super) fn memory(&self) -> u64 {
        self.upper.memory() + self.writing_back.as_ref().map_or(0, |layer| layer.memory())
    }

    /// Change number `change` was made.
    pub(super) fn changed(&mut self, change: u64) {
        if self.since == 0 && !self.upper.is_empty() {
            self.since = change;
        }
    }

    /// Changes up to a ticket are not durable.
    pub(super) fn waits(&self, ticket: Ticket) -> bool {
        let upper = !self.upper.is_empty() && self.since <= ticket.0;
        upper || (self.writing_back.is_some() && self.writing_back_since <= ticket.0)
    }
}

impl State {
    /// All changes are durable.
    pub(super) fn is_clean(&self) -> bool {
        self.volumes.values().all(|layers| !layers.waits(Ticket(u64::MAX)))
    }

    /// Changes of a volume up to a ticket are not durable.
    pub(super) fn waits(&self, id: u64, ticket: Ticket) -> bool {
        self.volumes.get(&id).is_some_and(|layers| layers.waits(ticket))
    }

    /// Bytes of memory of the volumes for which the disk had no room.
    pub(super) fn lacking(&self) -> u64 {
        let lacking = self.volumes.values().filter(|layers| layers.lacks_room);
        lacking.map(Layers::memory).sum()
    }

    /// There is so much that finds room that somebody writes back: half of what one volume may have.
    pub(super) fn is_much(&self, share: Share) -> bool {
        let lacking = self.lacking();
        let most = share.bytes.saturating_sub(lacking) / 2;
        let much = if share.several { most / (SHARE + 1) * SHARE } else { most };
        self.bytes - lacking >= much.max(1)
    }

    /// Notes what a write-back of the changes up to `upto` lost.
    pub(super) fn note_loss(&mut self, loss: Loss, upto: u64) {
        self.losses += 1;
        let error = loss.error.clone();
        let lost = Lost { number: self.losses, upto, error, told: false, is_over: false };
        self.lost.insert(loss.volume, lost);
        if self.untaken.len() == UNTAKEN_MAX {
            self.untaken.remove(0);
        }
        self.untaken.push(loss);
    }
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
    /// As [`Archive::clone_volume`], and the errors of a write-back of the volume. `Corrupt`: a write-back
    /// lost something of the volume, and nobody was told yet.
    pub fn clone_volume(&self, of: &str, name: &str, read_only: bool) -> Result<()> {
        // Before anything is written back, so that what can't be cloned costs nothing.
        let tables = self.archive.refresh()?;
        let (id, volume) = tables.volumes.named(of)?;
        is_there(&tables, volume.domain)?;
        if self.archive.keeps(Rule::CloneFlushed) {
            self.write_back_so_far(id)?;
            // The error stays untold for the client whose write was lost.
            if let Some(lost) = self.state.lock().lost.get(&id).filter(|lost| !lost.told) {
                return Err(lost.error.clone());
            }
        }
        self.archive.clone_volume(of, name, read_only, self.now.load(Relaxed))
    }

    /// Does what is due about once a second: sees what other processes changed, lets places go that
    /// were read, writes back what lies idle, and imports.
    ///
    /// A loss is no error of this call: see [`take_losses`](Self::take_losses).
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
        let (idle, again) = {
            let mut state = self.state.lock();
            let going = state.stopped.is_none();
            let idle = going && state.seen == state.changes;
            state.seen = state.changes;
            let again = going && now >= state.again && state.lacking() > 0;
            if again {
                state.again = now.saturating_add(AGAIN);
            }
            (idle, again)
        };
        let mut done = if idle { self.write_back().what_finds_room() } else { Ok(()) };
        if again {
            done = done.and(self.write_back().what_found_none());
        }
        if self.ingest.must_import() {
            self.ingest.import(true)?;
        }
        done
    }

    /// Makes everything durable, and ends. Changes of volumes that somebody still holds fail from now
    /// on.
    ///
    /// A loss is no error of this call: see [`take_losses`](Self::take_losses).
    ///
    /// # Errors
    /// The errors of a write-back. After `NoSpace` it may be called again; all volumes for which there was
    /// room are durable.
    pub fn close(&self) -> Result<()> {
        self.stop();
        *self.guard.lock() = None;
        loop {
            let writing_back = self.write_back();
            let done = writing_back.what_finds_room();
            done.and(writing_back.what_found_none())?;
            drop(writing_back);
            let mut state = self.state.lock();
            // Nobody's change comes in between: who still holds a volume is told from now on.
            if state.is_clean() {
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
            if !state.is_much(self.share()) && !self.stopping.load(Relaxed) {
                self.much.wait(&mut state);
            }
            let due = state.is_much(self.share()) && state.stopped.is_none();
            drop(state);
            // A flush reports the failure to its client, and a write finds no room.
            if !due || self.write_back().if_much().is_err() {
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

    /// How the volumes share the memory for writes.
    pub(super) fn share(&self) -> Share {
        Share {
            bytes: self.archive.settings.dirty_bytes,
            several: self.archive.tables().volumes.all().len() > 1,
        }
    }

    /// The losses of write-backs since the last call, for the log of the server, each once.
    pub fn take_losses(&self) -> Vec<Loss> {
        std::mem::take(&mut self.state.lock().untaken)
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
