//! Requests of a queue that wait until something is durable, while later ones go on.
//!
//! *Threads:* a queue has one helper, started when first needed. One flush answers every request that
//! began to wait before the flush started.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use onefold_core::Volume;
use parking_lot::{Condvar, Mutex};

use super::marks::Owed;
use super::ring::{Answer, Due, Ring};
use super::trouble::Trouble;
use crate::nbd::durable::Until;
use crate::nbd::durations::{Begun, Ended};
use crate::nbd::statistics::{Counters, add, sub};

/// Requests that wait, between a queue's thread and its helper.
#[derive(Default)]
pub(crate) struct Waits {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    waiting: Vec<(Until, Due, Option<Begun>)>,
    closed: bool,
}

impl Waits {
    /// Gives a request to the helper. There are no more than the ring has places.
    pub(crate) fn push(&self, until: Until, due: Due, begun: Option<Begun>) {
        self.queue.lock().waiting.push((until, due, begun));
        self.changed.notify_one();
    }

    /// Ends the helper once it has answered what waits.
    pub(crate) fn close(&self) {
        self.queue.lock().closed = true;
        self.changed.notify_all();
    }

    /// The helper: answers until closed.
    ///
    /// # Panics
    /// At its end, when the volume panicked before: a guest must not wait for ever for an answer
    /// because of that.
    pub(crate) fn help(
        &self,
        volume: &dyn Volume,
        ring: &Mutex<Ring>,
        counters: &Counters,
        owed: &Owed,
        trouble: &Trouble,
    ) {
        let (mut taken, mut ended, mut panicked) = (Vec::new(), Ended::default(), None);
        loop {
            let mut queue = self.queue.lock();
            self.changed.wait_while(&mut queue, |queue| queue.waiting.is_empty() && !queue.closed);
            std::mem::swap(&mut queue.waiting, &mut taken);
            drop(queue);
            if taken.is_empty() {
                break;
            }
            // A flush is the greatest, and covers every ticket.
            taken.sort_unstable_by_key(|&(until, ..)| until);
            let flush = taken.last().is_some_and(|&(until, ..)| until == Until::Flushed);
            for group in taken.chunk_by(|a, b| flush || a.0 == b.0) {
                let until = if flush { Until::Flushed } else { group[0].0 };
                // Of what comes while the flush runs nobody knows.
                let heard = owed.greatest();
                let result = catch_unwind(AssertUnwindSafe(|| until.wait(volume)));
                let answer = match result {
                    Ok(Ok(())) => {
                        owed.settle(match until {
                            Until::Flushed => heard,
                            Until::Ticket(ticket) => Some(ticket),
                        });
                        Answer::Done
                    }
                    Ok(Err(_)) => Answer::Failed,
                    Err(panic) => {
                        panicked = Some(panic);
                        Answer::Failed
                    }
                };
                if answer == Answer::Failed {
                    add(&counters.errors, group.len() as u64);
                }
                sub(&counters.in_flight, group.len() as u64);
                let mut ring = ring.lock();
                let answered = group.iter().try_for_each(|&(_, due, _)| ring.answer(due, answer));
                let told = answered.and_then(|()| ring.tell());
                drop(ring);
                group.iter().for_each(|&(.., begun)| ended.push(begun));
                ended.count(&counters.durations);
                if let Err(reason) = told {
                    trouble.tell(reason);
                }
            }
            taken.clear();
        }
        if let Some(panic) = panicked {
            resume_unwind(panic);
        }
    }
}
