//! Replies to FLUSH, and to requests with FUA, of a client that has more requests under way.

use std::io::Write;

use super::reply::{Code, Of, Outbox, Refusal, Replies};
use super::statistics::{Counters, add, sub};
use super::wire::Dialect;
use crate::batch::durable::{Answers, Outcome, Until};

/// What the helper of a connection answers with.
pub(crate) struct Durable<'a, W> {
    replies: Replies,
    outbox: &'a Outbox<W>,
    counters: &'a Counters,
}

impl<'a, W> Durable<'a, W> {
    pub(crate) fn new(dialect: Dialect, outbox: &'a Outbox<W>, counters: &'a Counters) -> Self {
        Durable { replies: Replies::new(dialect), outbox, counters }
    }
}

impl<W: Write> Answers<Of> for Durable<'_, W> {
    fn answer(&mut self, _: Until, waited: &[(Until, Of)], outcome: Outcome) {
        let refusal = match outcome {
            Outcome::Durable => None,
            Outcome::Refused(error) => Some(Refusal::from(error)),
            Outcome::Panicked => {
                Some(Refusal::new(Code::Io, "the server failed while it made the data durable"))
            }
        };
        for &(_, of) in waited {
            match &refusal {
                None => self.replies.done(of),
                Some(refusal) => self.replies.error(of, refusal, None),
            }
        }
        let (answered, errors) = self.replies.answered();
        self.replies.count_durations(self.counters);
        // A connection that can't be sent to ends by its own thread.
        let _ = self.replies.send(self.outbox, &[]);
        sub(&self.counters.in_flight, answered);
        add(&self.counters.errors, errors);
    }

    fn release(&mut self) {
        self.replies.release();
    }
}
