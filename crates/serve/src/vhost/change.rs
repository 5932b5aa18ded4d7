//! A change that a guest asked for, on its way into the volume, and those that wait for room there.
//!
//! A volume without room makes its changes wait. The queue does not wait with them: it goes on with
//! reads and flushes, and tries again when the volume wakes it.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::{Poll, Wake, Waker};
use std::time::{Duration, Instant};

use onefold_core::{Attempt, Result, Ticket, Volume};

use super::bell;
#[cfg(test)]
use super::planted;
use super::request::{BUFFERS, Request};
use super::ring::Due;
use crate::nbd::durations::Begun;

/// A queue with changes that wait tries them after this time, also when nobody wakes it.
pub(crate) const ROOM_LOOK: Duration = Duration::from_millis(20);

/// The weight of a change without its buffers.
const OWN_WEIGHT: usize = 8;

/// What a change does.
pub(crate) enum What {
    /// Writes what the guest gives, from this byte of the volume on.
    Write(u64),
    /// Discards ranges: offset and bytes of each.
    Discard(Vec<(u64, u64, bool)>),
    /// Fills ranges with zeroes; the last one says whether they may become free.
    Zeroes(Vec<(u64, u64, bool)>),
}

/// A change, and how far it has come.
pub(crate) struct Change {
    pub(crate) what: What,
    pub(crate) request: Request,
    pub(crate) due: Due,
    pub(crate) begun: Option<Begun>,
    /// Bytes that were written, or ranges that were cleared.
    pub(crate) done: usize,
    attempt: Attempt,
    /// The greatest ticket of what was done.
    pub(crate) ticket: Ticket,
}

impl Change {
    pub(crate) fn new(what: What, request: Request, due: Due, begun: Option<Begun>) -> Change {
        let (done, attempt, ticket) = (0, Attempt::default(), Ticket(0));
        Change { what, request, due, begun, done, attempt, ticket }
    }

    /// Writes what the guest gave next, at byte `offset` of the volume. False when there is no room:
    /// `done` has what the volume took, which is not copied from the guest again.
    pub(crate) fn write(
        &mut self,
        volume: &dyn Volume,
        offset: u64,
        data: &[u8],
        waits: bool,
    ) -> Result<bool> {
        let written = match waits {
            true => volume.write(offset, data).map(Poll::Ready),
            false => volume.try_write(offset, data, &mut self.attempt),
        };
        let taken = std::mem::take(&mut self.attempt.taken);
        #[cfg(test)]
        let taken = if planted::is(planted::Bug::ReadTwice) { 0 } else { taken };
        Ok(self.came(written?, data.len(), taken as usize))
    }

    /// Clears ranges. False when there is no room for the next one.
    pub(crate) fn clear(&mut self, volume: &dyn Volume, waits: bool) -> Result<bool> {
        loop {
            let (ranges, zeroes) = match &self.what {
                What::Write(_) => return Ok(true),
                What::Discard(ranges) => (ranges, false),
                What::Zeroes(ranges) => (ranges, true),
            };
            let Some(&(offset, bytes, unmap)) = ranges.get(self.done) else { return Ok(true) };
            let attempt = &mut self.attempt;
            let cleared = match (zeroes, waits) {
                (true, true) => volume.write_zeroes(offset, bytes, !unmap).map(Poll::Ready),
                (true, false) => volume.try_zeroes(offset, bytes, !unmap, attempt),
                (false, true) => volume.trim(offset, bytes).map(Poll::Ready),
                (false, false) => volume.try_trim(offset, bytes, attempt),
            };
            if !self.came(cleared?, 1, 0) {
                return Ok(false);
            }
        }
    }

    /// The memory that it takes while it waits, in places of a list of buffers.
    fn weight(&self) -> usize {
        let ranges = match &self.what {
            What::Write(_) => 0,
            What::Discard(ranges) | What::Zeroes(ranges) => ranges.len(),
        };
        OWN_WEIGHT + self.request.given.parts() + 2 * ranges
    }

    /// Notes how far a step came: all of it, or only so much.
    fn came(&mut self, step: Poll<Ticket>, all: usize, some: usize) -> bool {
        match step {
            Poll::Ready(ticket) => {
                self.ticket = self.ticket.max(ticket);
                self.attempt = Attempt::default();
                self.done += all;
            }
            Poll::Pending => self.done += some,
        }
        step.is_ready()
    }
}

/// Wakes a queue when there may be room.
struct Room(OwnedFd);

impl Wake for Room {
    fn wake(self: Arc<Self>) {
        bell::ring(&self.0);
    }
}

/// The changes of a queue that wait for room, in their order.
pub(crate) struct Parked {
    changes: VecDeque<Change>,
    /// What they weigh together.
    weight: usize,
    room: Arc<Room>,
    waker: Waker,
    /// When they were tried last.
    tried: Instant,
}

impl Parked {
    /// None at first.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn new() -> rustix::io::Result<Parked> {
        let room = Arc::new(Room(bell::new()?));
        let waker = Waker::from(room.clone());
        Ok(Parked { changes: VecDeque::new(), weight: 0, room, waker, tried: Instant::now() })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// True when one more may wait: all together weigh no more than the buffers of one request may.
    pub(crate) fn takes(&self, change: &Change) -> bool {
        self.weight + change.weight() <= BUFFERS
    }

    pub(crate) fn push(&mut self, change: Change) {
        self.weight += change.weight();
        self.changes.push_back(change);
    }

    /// The one that goes next.
    pub(crate) fn pop(&mut self) -> Option<Change> {
        let change = self.changes.pop_front()?;
        self.weight -= change.weight();
        Some(change)
    }

    /// There was no room for it again.
    pub(crate) fn put_back(&mut self, change: Change) {
        self.weight += change.weight();
        self.changes.push_front(change);
    }

    /// Rung when there may be room.
    pub(crate) fn bell(&self) -> &OwnedFd {
        &self.room.0
    }

    /// True when they should be tried again.
    pub(crate) fn is_due(&self, rung: bool) -> bool {
        !self.is_empty() && (rung || self.tried.elapsed() >= ROOM_LOOK)
    }

    /// They are tried now, and the volume wakes the queue when they should be again.
    pub(crate) fn ask(&mut self, volume: &dyn Volume) {
        self.tried = Instant::now();
        #[cfg(test)]
        if planted::is(planted::Bug::NobodyIsWoken) {
            return;
        }
        volume.on_progress(&self.waker);
    }
}
