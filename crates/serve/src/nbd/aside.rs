//! Reads aside: while helpers carry out batches of reads and send their replies, the connection's
//! thread takes the next requests. So the disk works while data is verified and sent, as a client
//! that keeps many reads under way expects.
//!
//! *Threads:* a connection has at most [`HELPERS`] of them, started when first needed, and each has
//! one batch at a time.

use std::collections::VecDeque;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use onefold_core::Volume;
use parking_lot::{Condvar, Mutex};

use super::reads::ReadBatch;
use super::reply::{Code, Outbox, Refusal, Replies};
use super::statistics::{Counters, add, sub};
use super::wire::Dialect;

/// Bytes of reads that are worth another thread: about 100 µs of disk and processor.
pub(crate) const WORTH_BYTES: usize = 256 << 10;

/// Helpers of a connection: with its own thread one for the disk, one for verifying and one for
/// sending.
pub(crate) const HELPERS: usize = 2;

/// A batch of reads, and the replies to it.
struct Errand<'a> {
    reads: ReadBatch<'a>,
    replies: Replies,
}

struct State<'a> {
    /// Batches that no helper has begun yet.
    given: VecDeque<Errand<'a>>,
    /// An empty batch for each helper that has nothing to do.
    spare: Vec<Errand<'a>>,
    closed: bool,
}

/// Batches of reads on their way between a connection's thread and its helpers.
pub(crate) struct Aside<'a> {
    state: Mutex<State<'a>>,
    changed: Condvar,
    /// All helpers have nothing to do.
    quiet: Condvar,
}

impl<'a> Aside<'a> {
    /// With empty batches to begin with, which take memory when they are used.
    pub(crate) fn new(dialect: Dialect, empty: impl Fn() -> ReadBatch<'a>) -> Aside<'a> {
        let spare = (0..HELPERS)
            .map(|_| Errand { reads: empty(), replies: Replies::new(dialect) })
            .collect();
        Aside {
            state: Mutex::new(State { given: VecDeque::new(), spare, closed: false }),
            changed: Condvar::new(),
            quiet: Condvar::new(),
        }
    }

    /// Gives a batch to a helper and leaves an empty one; false, having done nothing, when all of
    /// them are at work.
    pub(crate) fn give(&self, reads: &mut ReadBatch<'a>) -> bool {
        let mut state = self.state.lock();
        let Some(mut errand) = state.spare.pop() else { return false };
        std::mem::swap(&mut errand.reads, reads);
        state.given.push_back(errand);
        drop(state);
        self.changed.notify_one();
        true
    }

    /// Waits until the helpers have answered what they were given, and gives back the memory for
    /// it.
    pub(crate) fn release(&self) {
        let mut state = self.state.lock();
        self.quiet.wait_while(&mut state, |state| state.spare.len() < HELPERS);
        for errand in &mut state.spare {
            errand.reads.release();
            errand.replies.release();
        }
    }

    /// Ends the helpers once they have answered what they were given.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.changed.notify_all();
    }

    /// A helper: reads and answers until closed.
    ///
    /// # Panics
    /// At its end, when the volume panicked before: a client must not wait for ever for an answer
    /// because of that.
    pub(crate) fn help<W: Write>(
        &self,
        volume: &dyn Volume,
        outbox: &Outbox<W>,
        counters: &Counters,
    ) {
        let mut panicked = None;
        loop {
            let mut state = self.state.lock();
            self.changed.wait_while(&mut state, |state| state.given.is_empty() && !state.closed);
            let Some(mut errand) = state.given.pop_front() else { break };
            drop(state);
            let Errand { reads, replies } = &mut errand;
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| reads.run(volume, replies))) {
                panicked = Some(panic);
                reads.refuse(&Refusal::new(Code::Io, "the server failed while it read"), replies);
            }
            let (answered, errors) = replies.answered();
            replies.count_durations(counters);
            // A connection that can't be sent to ends by its own thread.
            let _ = replies.send(outbox, reads.data());
            sub(&counters.in_flight, answered);
            add(&counters.errors, errors);
            let mut state = self.state.lock();
            state.spare.push(errand);
            let all = state.spare.len() == HELPERS;
            drop(state);
            if all {
                self.quiet.notify_one();
            }
        }
        if let Some(panic) = panicked {
            resume_unwind(panic);
        }
    }
}

/// Closes also when the connection's thread panics, so that the helpers end.
pub(crate) struct CloseOnDrop<'a, 'b>(pub(crate) &'a Aside<'b>);

impl Drop for CloseOnDrop<'_, '_> {
    fn drop(&mut self) {
        self.0.close();
    }
}
