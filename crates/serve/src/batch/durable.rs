//! Waiting for durability aside: requests whose answer may come only when something is durable, while
//! their front end takes others.
//!
//! *Threads:* a front end has one helper, started when first needed, or as many as the volume says
//! ([`helpers`]) where the thread that waits for writes also sends them. A helper serves all requests that wait at once:
//! one flush answers every request that began waiting before the flush started, unless the volume acknowledges
//! late.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use onefold_core::{Error, Result, Ticket, Volume};
use parking_lot::{Condvar, Mutex};

/// Helpers of a connection at most.
const HELPERS_MAX: usize = 8;

/// Helpers of a connection: of a volume that acknowledges late so many groups of its writes are on their
/// way together. Connections beside each other have groups of their own.
pub(crate) fn helpers(volume: &dyn Volume) -> usize {
    if volume.acknowledges_late() { volume.waits_beside().clamp(1, HELPERS_MAX) } else { 1 }
}

/// True when helpers run, which are started when they do not yet; false when the host gives no thread, and who
/// asks does the work by itself.
pub(crate) fn has_started(start: &mut Option<impl FnMut() -> bool>) -> bool {
    if start.as_mut().is_some_and(|start| start()) {
        *start = None;
    }
    start.is_none()
}

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

/// How waiting ended.
pub(crate) enum Outcome {
    Durable,
    /// It can't be made durable.
    Refused(Error),
    /// The volume panicked.
    Panicked,
}

/// How a helper answers requests of its front end.
pub(crate) trait Answers<T> {
    /// The helper is about to wait.
    fn begin(&mut self) {}

    /// What these requests waited for ended so.
    fn answer(&mut self, until: Until, waited: &[(Until, T)], outcome: Outcome);

    /// Gives memory back that many requests at once had taken.
    fn release(&mut self) {}
}

struct Queue<T> {
    waiting: Vec<(Until, T)>,
    /// Waiting, or being waited for by the helper.
    unanswered: usize,
    closed: bool,
}

/// Requests that wait, between the thread of a front end and its helper.
pub(crate) struct Waits<T> {
    queue: Mutex<Queue<T>>,
    changed: Condvar,
    limit: usize,
}

impl<T> Waits<T> {
    /// A queue for at most `limit` requests.
    pub(crate) fn new(limit: usize) -> Waits<T> {
        let queue = Queue { waiting: Vec::new(), unanswered: 0, closed: false };
        Waits { queue: Mutex::new(queue), changed: Condvar::new(), limit }
    }

    /// True when the helper has nothing to do.
    pub(crate) fn idle(&self) -> bool {
        self.queue.lock().unanswered == 0
    }

    /// Gives a request to the helper; false when it has too many.
    pub(crate) fn push(&self, until: Until, of: T) -> bool {
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
    pub(crate) fn help(&self, volume: &dyn Volume, mut answers: impl Answers<T>) {
        let mut taken = Vec::new();
        let mut panicked = None;
        loop {
            let mut queue = self.queue.lock();
            queue.unanswered -= taken.len();
            taken.clear();
            if taken.capacity() > KEPT {
                taken = Vec::new();
                answers.release();
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
            // A flush is the greatest, and covers every ticket, but where clients hear of changes late: there each
            // ticket tells of its own failure, and a flush does not.
            taken.sort_unstable_by_key(|&(until, _)| until);
            let flush = !volume.acknowledges_late()
                && taken.last().is_some_and(|&(until, _)| until == Until::Flushed);
            for group in taken.chunk_by(|a, b| flush || a.0 == b.0) {
                let until = if flush { Until::Flushed } else { group[0].0 };
                answers.begin();
                let outcome = match catch_unwind(AssertUnwindSafe(|| until.wait(volume))) {
                    Ok(Ok(())) => Outcome::Durable,
                    Ok(Err(error)) => Outcome::Refused(error),
                    Err(panic) => {
                        panicked = Some(panic);
                        Outcome::Panicked
                    }
                };
                answers.answer(until, group, outcome);
            }
        }
        if let Some(panic) = panicked {
            resume_unwind(panic);
        }
    }
}

/// Closes the queue also when its front end's thread panics, so that the helper ends.
pub(crate) struct CloseOnDrop<'a, T>(pub(crate) &'a Waits<T>);

impl<T> Drop for CloseOnDrop<'_, T> {
    fn drop(&mut self) {
        self.0.close();
    }
}
