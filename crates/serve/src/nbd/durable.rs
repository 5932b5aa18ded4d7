//! Waiting for durability aside: FLUSH, and requests with FUA, of a client that has more requests
//! under way.
//!
//! *Threads:* a connection has one helper, started when first needed, or [`LATE_HELPERS`] where the
//! thread that waits for writes also sends them. A helper serves all requests that wait at once:
//! one flush answers every request that began waiting before the flush started.

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use onefold_core::{Result, Ticket, Volume};
use parking_lot::{Condvar, Mutex};

use super::reply::{Code, Of, Outbox, Refusal, Replies};
use super::statistics::{Counters, add, sub};
use super::wire::Dialect;

/// Helpers of a connection to a volume that acknowledges late: so many groups of its writes are on
/// their way together. With two an embedded store's commits get smaller, and 4 KiB writes half as
/// fast; connections beside each other have a group each.
pub(crate) const LATE_HELPERS: usize = 1;

/// Requests for which memory is kept while none wait.
const KEPT: usize = 64;

/// The event that a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Until {
    /// The changes of a ticket are durable.
    Ticket(Ticket),
    /// Everything is durable.
    Flushed,
}

impl Until {
    /// Waits on this thread.
    pub(crate) fn wait(self, volume: &dyn Volume) -> Result<()> {
        match self {
            Until::Ticket(ticket) => volume.wait(ticket),
            Until::Flushed => volume.flush(),
        }
    }
}

#[derive(Default)]
struct Queue {
    waiting: Vec<(Until, Of)>,
    /// Waiting, or being waited for by the helper.
    unanswered: usize,
    closed: bool,
}

/// Requests that wait, between a connection's thread and its helper.
pub(crate) struct Waits {
    queue: Mutex<Queue>,
    changed: Condvar,
    limit: usize,
}

impl Waits {
    /// A queue for at most `limit` requests.
    pub(crate) fn new(limit: usize) -> Waits {
        Waits { queue: Mutex::new(Queue::default()), changed: Condvar::new(), limit }
    }

    /// True when the helper has nothing to do.
    pub(crate) fn idle(&self) -> bool {
        self.queue.lock().unanswered == 0
    }

    /// Gives a request to the helper; false when it has too many.
    pub(crate) fn push(&self, until: Until, of: Of) -> bool {
        let mut queue = self.queue.lock();
        if queue.unanswered >= self.limit {
            return false;
        }
        queue.unanswered += 1;
        queue.waiting.push((until, of));
        drop(queue);
        self.changed.notify_one();
        true
    }

    /// Ends the helpers once they have answered what waits.
    pub(crate) fn close(&self) {
        self.queue.lock().closed = true;
        self.changed.notify_all();
    }

    /// The helper: answers until closed.
    ///
    /// # Panics
    /// At its end, when the volume panicked before: a client must not wait for ever for an answer
    /// because of that.
    pub(crate) fn help<W: Write>(
        &self,
        volume: &dyn Volume,
        dialect: Dialect,
        outbox: &Outbox<W>,
        counters: &Counters,
    ) {
        let mut taken = Vec::new();
        let mut replies = Replies::new(dialect);
        let mut panicked = None;
        loop {
            let mut queue = self.queue.lock();
            queue.unanswered -= taken.len();
            taken.clear();
            if taken.capacity() > KEPT {
                taken = Vec::new();
                replies.release();
            }
            #[cfg(scheduled)]
            if parking_lot::planted("a helper waits before it looks") {
                self.changed.wait(&mut queue);
            }
            self.changed.wait_while(&mut queue, |queue| queue.waiting.is_empty() && !queue.closed);
            std::mem::swap(&mut queue.waiting, &mut taken);
            drop(queue);
            if taken.is_empty() {
                break;
            }
            // A flush is the greatest, and covers every ticket.
            taken.sort_unstable_by_key(|&(until, _)| until);
            let flush = taken.last().is_some_and(|&(until, _)| until == Until::Flushed);
            for group in taken.chunk_by(|a, b| flush || a.0 == b.0) {
                let until = if flush { Until::Flushed } else { group[0].0 };
                let refusal = match catch_unwind(AssertUnwindSafe(|| until.wait(volume))) {
                    Ok(result) => result.err().map(Refusal::from),
                    Err(panic) => {
                        panicked = Some(panic);
                        Some(Refusal::new(
                            Code::Io,
                            "the server failed while it made the data durable",
                        ))
                    }
                };
                for &(_, of) in group {
                    match &refusal {
                        None => replies.done(of),
                        Some(refusal) => replies.error(of, refusal, None),
                    }
                }
                let (answered, errors) = replies.answered();
                replies.count_durations(counters);
                // A connection that can't be sent to ends by its own thread.
                let _ = replies.send(outbox, &[]);
                sub(&counters.in_flight, answered);
                add(&counters.errors, errors);
            }
        }
        if let Some(panic) = panicked {
            resume_unwind(panic);
        }
    }
}

/// Closes the queue also when the connection's thread panics, so that the helper ends.
pub(crate) struct CloseOnDrop<'a>(pub(crate) &'a Waits);

impl Drop for CloseOnDrop<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}
