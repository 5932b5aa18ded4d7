//! The limits of a volume, at work: who waits for them, and in which order. [`pace`](super::pace)
//! decides for how long.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use onefold_core::VolumeLimits;
use parking_lot::Mutex;

use super::limits::LOOK;
use super::pace::Pace;
use super::shares::Holder;
use super::turns::{REQUEST_COST, Turns};

/// Bytes that are paid for at once at a volume's pace: requests of other peers come between.
const PACE_BYTES: u32 = 256 << 10;

/// The limits of a volume, for all its connections together.
pub(crate) struct Limited {
    /// There are some; for a look without the lock.
    limited: AtomicBool,
    pace: Mutex<Pace>,
    /// To wait for the pace, by bytes: one after the other, and the volume's peers by turns.
    pub(crate) turns: Turns,
}

impl Default for Limited {
    fn default() -> Limited {
        let (limited, pace) = (AtomicBool::new(false), Mutex::default());
        Limited { limited, pace, turns: Turns::new(1, REQUEST_COST as u32) }
    }
}

impl Limited {
    /// Other limits from now on.
    pub(crate) fn set(&self, limits: VolumeLimits) {
        self.pace.lock().set(limits);
        self.limited.store(!limits.is_none(), Relaxed);
    }

    /// True when a client that comes now finds it as if nobody had come before. `since` is when
    /// times begin.
    pub(crate) fn is_rested(&self, since: Instant) -> bool {
        self.pace.lock().is_rested(since.elapsed())
    }

    pub(crate) fn is_limited(&self) -> bool {
        self.limited.load(Relaxed)
    }

    /// True when a request of so many bytes need not wait; it is paid for then. `since` is when
    /// times begin.
    pub(crate) fn lets_through(&self, holder: Holder, since: Instant, bytes: u64) -> bool {
        let Some(mut turn) = self.turns.take_at_once(holder) else { return false };
        turn.cost = bytes;
        self.pace.lock().take_at_once(since.elapsed(), bytes)
    }

    /// Waits until a request of so many bytes is paid for, or until `gives_up`.
    pub(crate) fn wait(
        &self,
        holder: Holder,
        since: Instant,
        bytes: u64,
        gives_up: &dyn Fn() -> bool,
    ) {
        let (mut requests, mut left) = (1, bytes);
        loop {
            let Some(mut turn) = self.turns.take_unless(holder, |_| gives_up()) else { return };
            let now = left.min(u64::from(PACE_BYTES));
            turn.cost = now;
            let (wait, began) =
                (self.pace.lock().take(since.elapsed(), requests, now), Instant::now());
            while began.elapsed() < wait && !gives_up() {
                std::thread::sleep((wait - began.elapsed().min(wait)).min(LOOK));
            }
            (requests, left) = (0, left - now);
            if left == 0 || gives_up() {
                return;
            }
        }
    }
}
