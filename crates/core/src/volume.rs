//! The volume, as servers see it, whichever engine stands behind it.

use std::{
    sync::Arc,
    task::{Poll, Waker},
};

use crate::{Block, Changes, Lba, Result};

/// Names the group of changes that a write belongs to; [`Volume::wait`] makes it durable. Later
/// changes have equal or greater tickets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// What a volume remembers of a change between two tries. Each change has its own, which begins as the
/// default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attempt {
    /// Bytes of the change, from its beginning, that the volume has taken. Later tries do not look at
    /// them any more.
    pub taken: u64,
    /// How far the engine was when it had no room for the first time, in numbers of its own.
    pub busy_since: Option<[u64; 3]>,
}

/// The content of a range of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtentKind {
    /// Stored data.
    Data,
    /// Reads as zeroes; was written as zeroes.
    Zero,
    /// Reads as zeroes; never written, or trimmed.
    Hole,
}

/// Consecutive bytes of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Length in bytes.
    pub bytes: u64,
    /// The kind of content.
    pub kind: ExtentKind,
}

/// A read of whole blocks; each read of a batch has its own result.
#[derive(Debug)]
pub struct BlockRead<'a> {
    /// The first block.
    pub first: Lba,
    /// Where the blocks go; unspecified after an error.
    pub into: &'a mut [Block],
    /// Set by [`Volume::read`]. An error names the first block that could not be read.
    pub result: Result<()>,
}

/// A virtual disk: reads, writes, trims, and flushes that survive power loss.
///
/// All methods may be called from many threads at once. A change that returned is seen by every
/// later read. A range beyond the end is [`Kind::InvalidInput`](crate::Kind::InvalidInput), except
/// for a full store, which is [`Kind::NoSpace`](crate::Kind::NoSpace).
pub trait Volume: Send + Sync {
    /// Size in bytes; a multiple of 4096. Changes when the volume is resized.
    fn size(&self) -> u64;

    /// The name by which clients find it now, where the engine knows it: somebody may have renamed the
    /// volume since it was opened. `None` where it does not, and when the volume was deleted.
    fn current_name(&self) -> Option<String> {
        None
    }

    /// True for what can only be read, as a snapshot.
    fn is_read_only(&self) -> bool {
        false
    }

    /// Reads a batch of block ranges; device reads of the whole batch are issued together.
    fn read(&self, reads: &mut [BlockRead<'_>]);

    /// Counts what changes, whoever changes it, so that a server may read ahead; `None` where, or
    /// while, somebody may change the volume whom it does not know of: then nothing is read ahead, and
    /// what was is not given. When clients may not use the volume any more, that is a change of all of it.
    fn changes(&self) -> Option<&Changes> {
        None
    }

    /// Reads as [`read`](Volume::read) what no client has asked for yet, and does not count it as
    /// asked for.
    fn read_ahead(&self, reads: &mut [BlockRead<'_>]) {
        self.read(reads);
    }

    /// A client has asked for, and got, so many bytes in so many reads that were read ahead.
    fn was_read_ahead(&self, _reads: u64, _bytes: u64) {}

    /// Writes `data` at byte `offset`, of any alignment and length. Durable after
    /// [`wait`](Volume::wait) on the ticket, or after a later [`flush`](Volume::flush).
    ///
    /// # Errors
    /// `NoSpace` when the store is full; `Stopped` after an earlier failure. Nothing of a failed
    /// write is acknowledged, some of it may be there.
    fn write(&self, offset: u64, data: &[u8]) -> Result<Ticket>;

    /// As [`write`](Volume::write), but does not wait for room: the change is `Pending` then. Its
    /// front end calls again with the same range and `attempt`, once
    /// [`on_progress`](Volume::on_progress) has woken it; of the data, only what is behind
    /// `attempt.taken` is looked at. What was taken may be read before the change is complete. An
    /// engine whose changes are never `Pending` may wait here.
    ///
    /// # Errors
    /// As [`write`](Volume::write).
    fn try_write(&self, offset: u64, data: &[u8], _attempt: &mut Attempt) -> Result<Poll<Ticket>> {
        self.write(offset, data).map(Poll::Ready)
    }

    /// As [`trim`](Volume::trim), and does not wait, as [`try_write`](Volume::try_write).
    ///
    /// # Errors
    /// As [`trim`](Volume::trim).
    fn try_trim(&self, offset: u64, bytes: u64, _attempt: &mut Attempt) -> Result<Poll<Ticket>> {
        self.trim(offset, bytes).map(Poll::Ready)
    }

    /// As [`write_zeroes`](Volume::write_zeroes), and does not wait, as
    /// [`try_write`](Volume::try_write).
    ///
    /// # Errors
    /// As [`write_zeroes`](Volume::write_zeroes).
    fn try_zeroes(
        &self,
        offset: u64,
        bytes: u64,
        keep: bool,
        _attempt: &mut Attempt,
    ) -> Result<Poll<Ticket>> {
        self.write_zeroes(offset, bytes, keep).map(Poll::Ready)
    }

    /// Wakes `waker` once, from any thread, when there may be room for what was `Pending`, or
    /// [`durable`](Volume::durable) may have risen. Until then the volume counts as one that
    /// somebody waits for. Room that came between a try and this call wakes nobody: try again after
    /// it, and look again now and then.
    fn on_progress(&self, waker: &Waker) {
        waker.wake_by_ref();
    }

    /// True when a client may hear of a change only after [`wait`](Volume::wait) on its ticket. Then
    /// changes that come together are made durable together, and may still fail until then.
    fn acknowledges_late(&self) -> bool {
        false
    }

    /// Threads of one connection that [`wait`](Volume::wait) beside each other, where clients hear of changes
    /// late: each sends what came while the others waited. 1 at least.
    fn waits_beside(&self) -> usize {
        1
    }

    /// The changes up to this ticket are durable, whatever comes; `None` where the engine does not
    /// know without waiting.
    fn durable(&self) -> Option<Ticket> {
        None
    }

    /// Drops the whole blocks within `bytes` bytes at `offset`: they read as zeroes and become
    /// free. Blocks that the range covers in part are left as they are: trimming is advice.
    /// Durability as [`write`](Volume::write).
    ///
    /// # Errors
    /// As [`write`](Volume::write); a full store still accepts trims.
    fn trim(&self, offset: u64, bytes: u64) -> Result<Ticket>;

    /// Makes `bytes` bytes at `offset` read as zeroes. With `keep` the range shows as
    /// [`ExtentKind::Zero`], else as a hole.
    ///
    /// # Errors
    /// As [`trim`](Volume::trim).
    fn write_zeroes(&self, offset: u64, bytes: u64, keep: bool) -> Result<Ticket>;

    /// Returns when the changes that the ticket names are durable.
    ///
    /// # Errors
    /// `Stopped`, with the reason, when they can't be made durable.
    fn wait(&self, ticket: Ticket) -> Result<()>;

    /// Makes every change that completed before this call, on any connection, durable.
    ///
    /// # Errors
    /// As [`wait`](Volume::wait).
    fn flush(&self) -> Result<()>;

    /// The content of the range, as at most `limit` extents from `offset` on; neighbours differ in
    /// kind. The extents may cover less than the range.
    ///
    /// # Errors
    /// `Corrupt` or `Io` when the map can't be read.
    fn extents(&self, offset: u64, bytes: u64, limit: usize) -> Result<Vec<Extent>>;

    /// Advises that the range will be read soon.
    ///
    /// # Errors
    /// As [`extents`](Volume::extents).
    fn prefetch(&self, offset: u64, bytes: u64) -> Result<()>;
}

/// The cause of an error of kind `Stopped`: another server has taken this one's place. The client's
/// connection ends without an answer, so that the client asks there.
#[derive(Clone, Copy, Debug)]
pub struct Replaced;

impl std::fmt::Display for Replaced {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("another server has taken this one's place")
    }
}

impl std::error::Error for Replaced {}

impl Replaced {
    /// True when it is the cause of `error`.
    #[must_use]
    pub fn caused(error: &crate::Error) -> bool {
        std::error::Error::source(error).is_some_and(|cause| cause.is::<Replaced>())
    }
}

/// Name and size of a volume that can be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeInfo {
    /// The name under which clients ask for it; at most 255 bytes of UTF-8.
    pub name: String,
    /// Size in bytes.
    pub size: u64,
}

/// How fast clients may use a volume, all connections together. Zero sets no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct VolumeLimits {
    /// Requests a second.
    pub iops: u32,
    /// Bytes read and written a second.
    pub bytes: u64,
}

impl VolumeLimits {
    /// True when nothing is limited.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == VolumeLimits::default()
    }
}

/// The volumes that a server offers.
pub trait Exports: Send + Sync {
    /// All of them, sorted by name.
    fn list(&self) -> Vec<VolumeInfo>;

    /// The volume called `name`. An open volume that is deleted afterwards answers `NotFound` to
    /// everything.
    ///
    /// # Errors
    /// `NotFound` when there is none.
    fn open(&self, name: &str) -> Result<Arc<dyn Volume>>;

    /// The name under which the clients of the volume called `name` share limits and turns: the
    /// snapshots of a volume have one together, so that nobody gets more by opening many.
    fn shared_name(&self, name: &str) -> String {
        name.to_owned()
    }

    /// How fast clients may use the volumes of this [shared name](Self::shared_name), all together;
    /// nothing when there are none.
    fn limits(&self, _name: &str) -> Option<VolumeLimits> {
        Some(VolumeLimits::default())
    }
}
