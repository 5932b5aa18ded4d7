//! The claim on a store at work: that two machines never work on one medium (rule 15 of
//! SECURITY.md).
//!
//! Locks keep processes of one machine apart, and only those that lock the same thing. The claim is
//! on the medium itself. `take` decides when a writer may begin, `hold` when a holder must look
//! again, both as values without I/O, time or chance of their own; [`Guard`] is the disk with both
//! around it. The rules, and who is stopped when, are in `docs/format.md`.
//!
//! *Invariant:* on a medium that others reach a holder submits and acknowledges nothing later than
//! [`Times::unseeing`] after it last found its own bytes, and whoever else takes the claim begins
//! later than that after its own bytes were there.

mod guard;
mod hold;
mod take;

use std::time::Duration;

pub use guard::{Guard, Outside, clear, found};
pub use hold::{Holder, Loss};
pub use take::{Action, Event, Place, Taker};

/// The waiting times of holders and takers. Tests use small ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// A holder writes new bytes so often.
    pub renew: Duration,
    /// Nobody else works before bytes are so old, which is less than `watch` and `confirm` together.
    pub lasts: Duration,
    /// A holder works for so long without looking.
    pub unseeing: Duration,
    /// A claim that nobody renews for so long is stale.
    pub watch: Duration,
    /// A taker of a stale claim must still find its own after this, which is longer than
    /// `unseeing`.
    pub confirm: Duration,
    /// A taker of a free claim must still find its own after this.
    pub settle: Duration,
    /// Between two looks while watching.
    pub glance: Duration,
    /// From a look to the end of the write that follows from it.
    pub swift: Duration,
}

impl Default for Times {
    fn default() -> Times {
        let seconds = Duration::from_secs;
        Times {
            renew: seconds(5),
            lasts: seconds(25),
            unseeing: seconds(10),
            watch: seconds(15),
            confirm: seconds(12),
            settle: seconds(2),
            glance: seconds(1),
            swift: seconds(1),
        }
    }
}

#[cfg(test)]
mod tests;
