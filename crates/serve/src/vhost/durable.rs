//! Answers to requests of a queue that waited until something was durable, while later ones went on.

use onefold_core::Ticket;
use parking_lot::Mutex;

#[cfg(test)]
use super::planted;
use super::queue::Device;
use super::ring::{Answer, Due, Ring};
use crate::batch::durable::{self, Answers, Outcome, Until};
use crate::nbd::durations::{Begun, Ended};
use crate::nbd::statistics::{add, sub};

/// A request that waits, and when it began.
pub(crate) type Waiting = (Due, Option<Begun>);

/// Requests that wait, between a queue's thread and its helper. There are no more than the ring has
/// places.
pub(crate) type Waits = durable::Waits<Waiting>;

/// What the helper of a queue answers with.
pub(crate) struct Durable<'a> {
    device: &'a Device<'a>,
    ring: &'a Mutex<Ring>,
    ended: Ended,
    /// What the guest had heard of when the helper began to wait.
    heard: Option<Ticket>,
}

impl<'a> Durable<'a> {
    pub(crate) fn new(device: &'a Device<'a>, ring: &'a Mutex<Ring>) -> Durable<'a> {
        Durable { device, ring, ended: Ended::default(), heard: None }
    }
}

impl Answers<Waiting> for Durable<'_> {
    fn begin(&mut self) {
        // Of what comes while the flush runs nobody knows.
        self.heard = self.device.owed.greatest();
    }

    fn answer(&mut self, until: Until, waited: &[(Until, Waiting)], outcome: Outcome) {
        let Device { counters, owed, trouble, .. } = self.device;
        let answer = match outcome {
            Outcome::Durable => {
                owed.settle(match until {
                    Until::Flushed => self.heard,
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
        waited.iter().for_each(|&(_, (_, begun))| self.ended.push(begun));
        self.ended.count(&counters.durations);
        if let Err(reason) = told {
            trouble.tell(reason);
        }
    }
}
