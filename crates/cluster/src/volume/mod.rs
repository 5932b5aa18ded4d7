//! Volumes: striped over metadata objects, one writer each.
//!
//! | module | what |
//! |---|---|
//! | [`header`] | size, owner, bitmap of objects, long discards: keys of the volume's header |
//! | [`objects`] | what the owner remembers of the objects, and what each lacks in bitmap and dirty list |
//! | [`long_discards`] | trims of many objects, which the header records |
//! | [`inline`] | writes that are deduplicated as they come |
//! | [`plan`], [`write`] | foreground writes of objects |
//! | [`queue`], [`group_commit`] | writes that wait, and go out together |
//! | [`discard`] | trims: at once, or as long discards that are applied later and honoured at once |
//! | [`hit_set`] | which chunks were read in which of the last seconds |
//! | [`cache_manager`], [`promotion`] | hot chunks, and keeping them in metadata objects |
//! | [`kept`] | locks that are kept while long work goes on |
//! | [`kept_in_layers`] | those that are kept in layers are given back |
//! | [`read`] | foreground reads |
//! | [`entries`] | the entries that an object is read by, here or in a layer below |
//! | [`ownership`] | the owner's lock, takeover with fencing |
//! | [`trims_first`] | the long trims that a snapshot waits for |
//! | [`leaving`] | numbers that a session leaves when its volumes get others |
//! | [`owners`] | who owns which volume |
//! | [`attach`] | a volume made from these parts; the rescan after a crash |
//! | [`attached`] | a volume that stays its clients' while snapshots are taken of it |
//! | [`serve`] | the same as a [`onefold_core::Volume`], for servers |
//!
//! Each part keeps its state to itself, and knows only those that stand before it. [`Volume`] checks
//! what a client asks for, and passes it on.

mod attach;
mod attached;
pub(crate) mod cache_manager;
mod discard;
mod entries;
mod group_commit;
pub(crate) mod header;
mod hit_set;
mod inline;
mod kept;
pub(crate) mod kept_in_layers;
mod leaving;
mod long_discards;
mod objects;
pub(crate) mod owners;
mod ownership;
mod plan;
mod promotion;
mod queue;
mod read;
mod serve;
pub(crate) mod trims_first;
mod write;

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};

use onefold_core::{BLOCK_BYTES, Change, Changes, Error, Kind, Result, Ticket};

pub use self::{attach::Mode, attached::Attached, serve::ClusterExports, trims_first::GoesOn};
pub(crate) use self::{
    attach::{Purpose, attach_for, is_replica},
    entries::{entries_of, objects_of},
    kept::{Renewal, while_kept},
    leaving::Leaving,
    ownership::{owner, parse_owner},
};
use self::{
    discard::Trims, group_commit::GroupCommit, objects::Objects, ownership::Ownership,
    promotion::Promotion, read::Reads,
};
use crate::rules::Rule;

/// A trim under way: where it ends by an error or a panic, it may still come.
struct Trim<'a> {
    volume: &'a Volume,
    over: bool,
}

impl Trim<'_> {
    fn over(mut self) {
        self.over = true;
    }
}

impl Drop for Trim<'_> {
    fn drop(&mut self) {
        if !self.over {
            self.volume.unsure.store(true, Relaxed);
        }
    }
}

/// True when a change of a client failed and may still come.
fn may_change(volume: &Volume) -> bool {
    volume.unsure.load(Relaxed) || volume.group_commit.has_failed()
}

/// Waits until all writes are over that came before; false when a change that failed may still come.
pub(crate) fn settles(volume: &Volume) -> bool {
    volume.group_commit.drain();
    !may_change(volume)
}

/// Leaves a number that is a layer by now, for good. False where the store does not answer: then it is tried again.
pub(crate) fn resign(volume: Volume) -> bool {
    volume.ownership.is_none_or(Ownership::resign)
}

/// Completes what failed writes left undone of a volume that [settles]: nobody looks through a layer.
pub(crate) fn complete(volume: &Volume) -> Result<()> {
    volume.objects.complete()
}

/// Leaves a number that was filled, and has no name. Where nothing that failed may still come, nobody who deletes it, or
/// goes on with it, has to shut this session out. Otherwise its header names this session as at work, and its lock ends
/// with its lease: whoever takes it then shuts this session out first.
pub(crate) fn leave_filled(volume: Volume) {
    // An operation that had no answer may still make a layer of it.
    let may_be_left = |volume: &Volume| {
        volume.objects.session().leaving().may_be_left().lock().contains(&volume.id)
    };
    if !settles(&volume) || may_be_left(&volume) {
        return;
    }
    if complete(&volume).is_ok() {
        // What has no answer is tried again.
        let _ = resign(volume);
    } else {
        // Its lock ends with its lease otherwise.
        let _ = volume.detach();
    }
}

/// A volume that is attached.
pub struct Volume {
    id: u64,
    name: String,
    size: AtomicU64,
    /// `None` where the volume is attached for reading.
    ownership: Option<Ownership>,
    objects: Arc<Objects>,
    group_commit: GroupCommit,
    trims: Trims,
    reads: Reads,
    promotion: Arc<Promotion>,
    /// What clients change, for who reads ahead.
    changes: Arc<Changes>,
    /// Only receives change it.
    is_replica: bool,
    /// A trim failed, and may still come.
    unsure: AtomicBool,
}

impl Volume {
    /// The name of the volume.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The number of the volume.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The size in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.size.load(Relaxed)
    }

    /// Writes `data` at byte `offset`; durable on return.
    ///
    /// # Errors
    /// `NoSpace` when the store is full, `Stopped` when another server took the volume over.
    pub fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        let ticket = self.write_later(offset, data)?;
        self.wait_for(ticket)
    }

    /// Queues a write. The write is acknowledged, and durable, after [`wait_for`](Self::wait_for).
    ///
    /// # Errors
    /// `InvalidInput` beyond the end, `Denied` where the volume is attached for reading.
    pub fn write_later(&self, offset: u64, data: &[u8]) -> Result<Ticket> {
        self.writable()?;
        self.within(offset, data.len() as u64)?;
        self.foreground(data.len() as u64);
        // From here on every read has the write first.
        let _change = self.change(offset, data.len() as u64);
        Ok(self.group_commit.write_later(offset, data))
    }

    /// Waits until a write is over.
    ///
    /// # Errors
    /// `NoSpace` when the store is full, `Stopped` when another server took the volume over.
    pub fn wait_for(&self, ticket: Ticket) -> Result<()> {
        self.group_commit.wait_for(ticket)
    }

    /// Reads bytes at `offset`.
    ///
    /// # Errors
    /// `Corrupt`: a chunk or an object is damaged or missing.
    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        self.read_together(&mut [(offset, into)]).remove(0)
    }

    /// Reads several ranges, in flight together; a result for each.
    pub fn read_together(&self, reads: &mut [(u64, &mut [u8])]) -> Vec<Result<()>> {
        if let Err(error) = self.serves() {
            return reads.iter().map(|_| Err(error.clone())).collect();
        }
        let mut results: Vec<Result<()>> =
            reads.iter().map(|(offset, into)| self.within(*offset, into.len() as u64)).collect();
        for ((offset, into), _) in reads.iter().zip(&results).filter(|(_, result)| result.is_ok()) {
            self.foreground(into.len() as u64);
            self.group_commit.drain_place(*offset..*offset + into.len() as u64);
        }
        self.reads.read_together(reads, &mut results);
        results
    }

    /// Makes a range read as zeroes; durable on return.
    ///
    /// # Errors
    /// As [`write_at`](Volume::write_at).
    pub fn discard(&self, offset: u64, bytes: u64) -> Result<()> {
        self.writable()?;
        self.within(offset, bytes)?;
        self.group_commit.drain();
        self.foreground(0);
        let _change = self.change(offset, bytes);
        // Ends before the change does, also by a panic.
        let trim = Trim { volume: self, over: false };
        let done = self.trims.discard(offset, bytes);
        if done.as_ref().err().is_none_or(|error| !self.group_commit.may_come(error)) {
            trim.over();
        }
        done
    }

    /// Applies long discards to one more object; false when there is none.
    ///
    /// # Errors
    /// As [`write_at`](Volume::write_at).
    pub fn discard_step(&self) -> Result<bool> {
        self.trims.step()
    }

    /// Bytes of hot chunks that are kept in metadata objects, clean ones and those that are not to
    /// be deduplicated yet.
    #[must_use]
    pub fn cached_bytes(&self) -> u64 {
        self.promotion.bytes()
    }

    /// Evicts the chunk that was read longest ago from its object, when the session keeps more than
    /// its share; false when there is nothing to do.
    ///
    /// # Errors
    /// The store's.
    pub fn evict_step(&self) -> Result<bool> {
        self.promotion.evict_step()
    }

    fn within(&self, offset: u64, bytes: u64) -> Result<()> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes() => Ok(()),
            _ => Err(Error::new(
                Kind::InvalidInput,
                format!(
                    "{bytes} bytes at {offset} lie beyond the end of volume '{}'",
                    self.name.escape_debug()
                ),
            )),
        }
    }

    fn writable(&self) -> Result<()> {
        if self.ownership.is_none() {
            return Err(Error::new(Kind::Denied, "the volume is attached for reading"));
        }
        self.serves()?;
        self.objects.kernel().has_stamps()
    }

    /// Refuses to answer when another server may have taken over.
    fn serves(&self) -> Result<()> {
        let session = self.objects.session();
        session.proof().get().map_or(Ok(()), |proof| proof.holds(session.store()))
    }

    /// True when all that changes the volume is counted: no other server does at this moment, and no change
    /// that failed may still come.
    fn is_alone(&self) -> bool {
        // The sessions that do not stand by ask for the lock alone.
        let locked = self.ownership.as_ref().is_some_and(Ownership::is_locked);
        locked && !may_change(self) && self.objects.session().is_alone()
    }

    /// Counts a change, from before anybody can see it until everybody does.
    fn change(&self, offset: u64, bytes: u64) -> Option<Change<'_>> {
        let block = BLOCK_BYTES as u64;
        let blocks = offset / block..(offset + bytes).div_ceil(block);
        self.objects.kernel().keeps(Rule::ChangesCounted).then(|| self.changes.begin(blocks))
    }

    fn foreground(&self, bytes: u64) {
        let counts = self.objects.kernel().counts();
        counts.foreground.fetch_add(1, Relaxed);
        counts.foreground_bytes.fetch_add(bytes, Relaxed);
    }
}
