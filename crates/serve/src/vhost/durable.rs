//! Answers to requests of a queue that waited until something was durable, while later ones went on.

use onefold_core::Ticket;
use parking_lot::Mutex;

use super::marks::Owed;
#[cfg(test)]
use super::planted;
use super::ring::{Answer, Due, Ring};
use super::trouble::Trouble;
use crate::batch::durable::{self, Answers, Outcome, Until};
use crate::nbd::durations::{Begun, Ended};
use crate::nbd::statistics::{Counters, add, sub};

/// A request that waits, and when it began.
pub(crate) type Waiting = (Due, Option<Begun>);

/// Requests that wait, between a queue's thread and its helper. There are no more than the ring has
/// places.
pub(crate) type Waits = durable::Waits<Waiting>;

/// What the helper of a queue answers with.
pub(crate) struct Durable<'a> {
    pub(crate) ring: &'a Mutex<Ring>,
    pub(crate) counters: &'a Counters,
    pub(crate) owed: &'a Owed,
    pub(crate) trouble: &'a Trouble,
    pub(crate) answered: Answered,
}

/// What the helper remembers from one answer to the next.
#[derive(Default)]
pub(crate) struct Answered {
    ended: Ended,
    /// What the guest had heard of when the helper began to wait.
    heard: Option<Ticket>,
}

impl Answers<Waiting> for Durable<'_> {
    fn begin(&mut self) {
        // Of what comes while the flush runs nobody knows.
        self.answered.heard = self.owed.greatest();
    }

    fn answer(&mut self, until: Until, waited: &[(Until, Waiting)], outcome: Outcome) {
        let Durable { counters, owed, trouble, .. } = self;
        let answer = match outcome {
            Outcome::Durable => {
                owed.settle(match until {
                    Until::Flushed => self.answered.heard,
                    Until::Ticket(ticket) => Some(ticket),
                });
                Answer::Done
            }
            Outcome::Refused(_) | Outcome::Panicked => {
                add(&counters.errors, waited.len() as u64);
                Answer::Failed
            }
        };
        sub(&counters.in_flight, waited.len() as u64);
        let mut ring = self.ring.lock();
        let answered = waited.iter().try_for_each(|&(_, (due, _))| ring.answer(due, answer));
        #[cfg(test)]
        let answered = if planted::is(planted::Bug::GuestNotTold) { return } else { answered };
        let told = answered.and_then(|()| ring.tell());
        drop(ring);
        waited.iter().for_each(|&(_, (_, begun))| self.answered.ended.push(begun));
        self.answered.ended.count(&counters.durations);
        if let Err(reason) = told {
            trouble.tell(reason);
        }
    }
}
