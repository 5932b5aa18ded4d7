//! Changes of a store, which wait for room when the engine asks for it.

use std::{
    sync::atomic::Ordering,
    task::{Poll, Waker},
};

use onefold_core::{Attempt, Error, Kind, Result, Ticket};

use super::{Changes, ROOM_WAIT};
use crate::Persistence;

/// Tries behind checkpoints that a change makes before the store counts as full although something could
/// still be reclaimed.
const ROOM_CHECKPOINTS: u64 = 16;

impl Changes<'_> {
    /// Tries a change, which is `Pending` when the engine asks to wait for room.
    ///
    /// # Errors
    /// `NoSpace` when so many checkpoints made no room that none will come.
    pub(super) fn attempt<T>(
        &self,
        busy_since: &mut Option<[u64; 3]>,
        change: impl FnOnce() -> Result<T>,
    ) -> Result<Poll<T>> {
        match change() {
            Err(busy) if busy.kind() == Kind::Busy => {}
            other => return other.map(Poll::Ready),
        }
        let counts = self.0.engine.counts();
        let now = [counts.discard_leaves, counts.checkpoints];
        let [leaves, checkpoints, in_vain] = busy_since.get_or_insert([now[0], now[1], 0]);
        // Ranges that wait are worked off leaf by leaf: as long as that goes on, there will be room. Else tries
        // count, each behind another checkpoint: a front end may come to a change late.
        if now[0] > *leaves {
            (*leaves, *checkpoints, *in_vain) = (now[0], now[1], 0);
        } else if now[1] > *checkpoints {
            (*checkpoints, *in_vain) = (now[1], *in_vain + 1);
        }
        if *in_vain > ROOM_CHECKPOINTS {
            return Err(Error::new(
                Kind::NoSpace,
                "the store is full; trim or delete data, or give it more space",
            ));
        }
        Ok(Poll::Pending)
    }

    /// Tries until it is not `Pending` any more. Waits for room between two tries.
    pub(super) fn until_there_is_room<T>(
        &self,
        mut attempt: impl FnMut() -> Result<Poll<T>>,
    ) -> Result<T> {
        loop {
            let seen = self.0.commit.progress();
            if let Poll::Ready(done) = attempt()? {
                return Ok(done);
            }
            self.0.pressure.fetch_add(1, Ordering::SeqCst);
            self.make_room();
            self.0.commit.wait_for_progress(seen, ROOM_WAIT);
            self.0.pressure.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Has the working threads look for room.
    pub(super) fn make_room(&self) {
        self.0.writer.raise();
        self.0.background.raise();
    }

    /// Wakes `waker` once, when there may be room.
    pub(super) fn on_progress(&self, waker: &Waker) {
        self.0.commit.on_progress(waker);
        self.make_room();
    }

    /// Makes a change, waiting for room when the engine asks for it.
    pub(super) fn make<T>(&self, mut change: impl FnMut() -> Result<T>) -> Result<T> {
        let mut busy_since = None;
        self.until_there_is_room(|| self.attempt(&mut busy_since, &mut change))
    }

    /// True when a change of data counts as made when it is durable.
    pub(super) fn is_strong(&self) -> bool {
        self.0.engine.settings().persistence == Persistence::Strong
    }

    /// Tries a change of data, which is not durable yet.
    pub(super) fn attempt_of_data(
        &self,
        attempt: &mut Attempt,
        change: impl FnOnce(&mut u64) -> Result<Ticket>,
    ) -> Result<Poll<Ticket>> {
        let Attempt { taken, busy_since } = attempt;
        let changed = self.attempt(busy_since, || change(taken))?;
        if changed.is_ready() && self.0.engine.kernel.has_closed_windows() {
            self.0.writer.raise();
        }
        Ok(changed)
    }

    /// A change of data: made at once, or with strong persistence when it is durable.
    pub(super) fn make_of_data(
        &self,
        mut change: impl FnMut() -> Result<Ticket>,
    ) -> Result<Ticket> {
        let mut attempt = Attempt::default();
        let ticket =
            self.until_there_is_room(|| self.attempt_of_data(&mut attempt, |_| change()))?;
        if self.is_strong() {
            self.0.commit.wait(ticket)?;
        }
        Ok(ticket)
    }
}
