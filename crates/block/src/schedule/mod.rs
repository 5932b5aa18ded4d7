//! When a store closes a window, commits, checkpoints and uses idle time.
//!
//! The schedule is pure: equal events and facts give equal decisions. It holds no clock, no thread
//! and no engine. Three drivers ask it: the threads of [`Store`](crate::Store), the laboratory's
//! events in virtual time, and the simulator's scheduled profile. An engine must be correct in any
//! order of its steps; the schedule decides only which order is fast.
//!
//! The schedule has three parts, since a store has three kinds of threads that decide, and no part
//! needs the state of another:
//!
//! - [`Rounds`]: the thread that commits asks when the round's window closes (OrderMergeDedup's
//!   anticipation).
//! - [`WriteBack`]: the writer thread asks when changes that nobody waits for are flushed.
//! - [`Background`]: the background thread asks for the next step of a checkpoint or of idle work.

mod anticipation;
mod background;
mod driver;
mod write_back;

use std::time::Duration;

pub use anticipation::{Anticipation, Rounds};
pub use background::{Background, Event, Facts, Step};
pub use write_back::{Unflushed, WriteBack};

/// With weak persistence a change is durable about this long after it was made.
pub(crate) const FLUSH_EVERY: Duration = Duration::from_secs(1);

/// A pause in the work begins this long after a request.
const PAUSE_AFTER: Duration = Duration::from_millis(50);

/// While requests flow, moving waits so many times as long as its last step took: it has a twentieth of
/// the time.
const SHARE_WAITS: u32 = 19;

/// The store counts as idle after this long without a request.
const IDLE_AFTER: Duration = Duration::from_millis(500);

/// An idle store carries its records into the tables after this long, so that the next opening is
/// quick.
const CHECKPOINT_AFTER: Duration = Duration::from_secs(5);

/// Scattered blocks are written again by records after this long: a pause in the work is not its end.
const COMPACT_AFTER: Duration = Duration::from_secs(30);

/// How long a checkpoint waits for a window's flush before it flushes by itself.
const SHARED_FLUSH_WAIT: Duration = Duration::from_millis(200);

/// The schedule's answer: a step, or a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next<S> {
    /// Run this step now, and report what it did.
    Run(S),
    /// Nothing is due before this moment, unless something happens.
    WaitUntil(Duration),
    /// Nothing is due before something happens.
    WaitForEvent,
}
