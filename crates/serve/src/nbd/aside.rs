//! Reads aside: while a helper carries out a batch of reads and sends its replies, the connection's thread takes the next requests. So the
//! disk works while data is verified and sent, as a client that keeps many reads under way expects.
//!
//! *Threads:* a connection has at most one such helper, started when first needed, and it has one batch at a time.

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

struct State {
    /// What the helper is to do next.
    given: Option<ReadBatch>,
    /// An empty batch, when the helper has nothing to do.
    spare: Option<ReadBatch>,
    closed: bool,
}

/// A batch of reads on its way between a connection's thread and its helper.
pub(crate) struct Aside {
    state: Mutex<State>,
    changed: Condvar,
}

impl Aside {
    /// With an empty batch to begin with.
    pub(crate) fn new(spare: ReadBatch) -> Aside {
        Aside { state: Mutex::new(State { given: None, spare: Some(spare), closed: false }), changed: Condvar::new() }
    }

    /// Gives a batch to the helper and leaves an empty one; false, having done nothing, when the helper is at work.
    pub(crate) fn give(&self, reads: &mut ReadBatch) -> bool {
        let mut state = self.state.lock();
        let Some(spare) = state.spare.take() else { return false };
        state.given = Some(std::mem::replace(reads, spare));
        drop(state);
        self.changed.notify_one();
        true
    }

    /// Ends the helper once it has answered what it was given.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.changed.notify_one();
    }

    /// The helper: reads and answers until closed.
    ///
    /// # Panics
    /// At its end, when the volume panicked before: a client must not wait for ever for an answer because of that.
    pub(crate) fn help<W: Write>(&self, volume: &dyn Volume, dialect: Dialect, outbox: &Outbox<W>, counters: &Counters) {
        let mut replies = Replies::new(dialect);
        let mut panicked = None;
        loop {
            let mut state = self.state.lock();
            self.changed.wait_while(&mut state, |state| state.given.is_none() && !state.closed);
            let Some(mut reads) = state.given.take() else { break };
            drop(state);
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| reads.run(volume, &mut replies))) {
                panicked = Some(panic);
                reads.refuse(&Refusal::new(Code::Io, "the server failed while it read"), &mut replies);
            }
            let (answered, errors) = replies.answered();
            // A connection that can't be sent to ends by its own thread.
            let _ = replies.send(outbox, reads.data());
            sub(&counters.in_flight, answered);
            add(&counters.errors, errors);
            self.state.lock().spare = Some(reads);
        }
        if let Some(panic) = panicked {
            resume_unwind(panic);
        }
    }
}

/// Closes also when the connection's thread panics, so that the helper ends.
pub(crate) struct CloseOnDrop<'a>(pub(crate) &'a Aside);

impl Drop for CloseOnDrop<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}
