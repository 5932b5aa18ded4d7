//! Operations: changes of one object that are decided from what was read, compare it, and must be
//! known to be applied or not before anything follows from them.
//!
//! An operation without a reply was applied, will be applied, or never will be. The session finds
//! out by reading: no value ever comes back, so its own stamp in the object shows that the
//! operation was applied. Each operation reads this from other keys, and so has its own
//! [`resolve`](Operation::resolve):
//!
//! | operation | decided from | it was applied when | it is sent again when | else |
//! |---|---|---|---|---|
//! | foreground write | the map that the owner remembers | the first entry, or its reference, has our stamp; a trim that changed no entry: the object has its number | the reply was lost: what it compares decides | it is decided anew from the map just read, 100 times |
//! | inline write | map and data, just read | the first entry has our stamp; a trim that changed no entry: the object has its number | the reply was lost | the references that were added are dropped, and the next round decides anew for all objects together |
//! | flip | map and data, just read | an entry has our stamp | every entry is the old one | it came too late: the references that no entry needs are dropped, and a later step begins anew |
//! | re-cut key | the map, just read | the key has our value | never | the object is left for now |
//! | flip of a re-cut | map and data, just read | an entry has our stamp | re-cut key and every entry are the old ones | as a flip |
//! | name | what the name stood for | the name has our value; or it is gone, and what it stood for has its record | the reply was lost | somebody else changed the name: the caller hears of it |
//! | arrival at a new name | both names, and how many steps of renames the shard saw | the name has our arrival, or the value that follows it | no step was counted, and both names are as they were | it is decided anew, 100 times, while the old name has its value |
//! | record of a name | how many records there were | never: the next decision sees the record | never | it is decided anew, 1,000 times |
//! | number of the catalogue | the next number | never: a number whose reply is lost is skipped | never | it is decided anew, 1,000 times |
//! | owner of a volume | the owner before, who is fenced first, and its attachment | never: to write it once more costs only time | never | it is decided anew, as often as anything is tried |
//! | step of an object that goes | its map at one version | never: the next decision sees what is left | never | it is decided anew, 1,000 times |
//!
//! A refused copy is followed by a look as well, because an earlier copy may have been applied. If
//! none was, a value that the copy compared has changed, and the session never sends the same write
//! again. A name, a number of the catalogue, and the owner of a volume end where their object is
//! gone: nothing is left to decide from.
//!
//! An operation that has the same effect when it is applied twice needs none of this:
//! [`until_answered`](Kernel::until_answered) sends it again without a look.

use std::ops::ControlFlow::{Break, Continue};

use onefold_core::object::{Refusal, Version, Write};

use super::Kernel;

/// One change of one object, decided from what was `Seen`.
pub(crate) trait Operation<Seen> {
    /// Most decisions; each after the first follows another session's change, or a lost reply.
    fn decisions(&self) -> u32;

    /// Reads the state from which the operation is decided and resolved.
    fn look(&mut self) -> Result<Seen, Refusal>;

    /// Decides what to send; `None` when there is nothing to do, or the operation is given up.
    fn decide(&mut self, seen: &Seen) -> Result<Option<Write>, Refusal>;

    /// Finds out from the current state whether the write that was sent has been applied.
    fn resolve(&self, now: &Seen) -> Fate;

    /// True when a look follows this refusal, since an earlier copy may have been applied, or the
    /// operation can be decided anew. Any other refusal ends the operation.
    fn looks_after(&self, refusal: &Refusal) -> bool {
        matches!(refusal, Refusal::Mismatch | Refusal::Exists | Refusal::Missing)
    }
}

/// The fate of an operation that had no reply, or was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The operation was applied.
    Applied,
    /// Every value that it compares is unchanged: it may be sent again.
    Unchanged,
    /// Another session's change came first: the operation will never be applied, and is decided
    /// anew.
    Overtaken,
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The store confirmed the operation.
    Applied,
    /// The last look showed that the operation was applied.
    Found,
    /// There was nothing to do, or the operation was given up; nothing of it will be applied.
    GivenUp,
}

/// How the sending of one decision ended.
enum Sent<Seen> {
    Ended(Outcome),
    Overtaken(Seen),
}

impl Kernel {
    /// Looks, decides, sends and resolves one operation.
    pub(crate) fn carry_out<Seen>(
        &self,
        operation: &mut impl Operation<Seen>,
    ) -> Result<Outcome, Refusal> {
        let seen = operation.look()?;
        match operation.decide(&seen)? {
            Some(write) => self.carry_out_decided(operation, write),
            None => Ok(Outcome::GivenUp),
        }
    }

    /// Sends decided operations, all in flight together. Then resolves them one after another, and
    /// passes each outcome to `ended` before it resolves the next.
    pub(crate) fn carry_out_all<Seen, O: Operation<Seen>>(
        &self,
        batch: impl IntoIterator<Item = (O, Write)>,
        mut ended: impl FnMut(O, Result<Outcome, Refusal>),
    ) {
        let (operations, writes): (Vec<O>, Vec<Write>) = batch.into_iter().unzip();
        let replies = self.write_all(&writes);
        for ((mut operation, write), reply) in operations.into_iter().zip(writes).zip(replies) {
            let outcome = self.carry_on(&mut operation, write, Some(reply));
            ended(operation, outcome);
        }
    }

    /// Sends and resolves one operation that was decided.
    pub(crate) fn carry_out_decided<Seen>(
        &self,
        operation: &mut impl Operation<Seen>,
        write: Write,
    ) -> Result<Outcome, Refusal> {
        self.carry_on(operation, write, None)
    }

    /// Goes on with an operation that was decided, and perhaps sent once.
    fn carry_on<Seen>(
        &self,
        operation: &mut impl Operation<Seen>,
        mut write: Write,
        mut reply: Option<Result<Version, Refusal>>,
    ) -> Result<Outcome, Refusal> {
        for _ in 0..operation.decisions().max(1) {
            let now = match self.send(operation, &write, reply.take())? {
                Sent::Ended(outcome) => return Ok(outcome),
                Sent::Overtaken(now) => now,
            };
            match operation.decide(&now)? {
                Some(again) => write = again,
                None => return Ok(Outcome::GivenUp),
            }
        }
        Err(Refusal::Mismatch)
    }

    /// Sends one decision, again if need be, until its fate is known.
    fn send<Seen>(
        &self,
        operation: &mut impl Operation<Seen>,
        write: &Write,
        mut first: Option<Result<Version, Refusal>>,
    ) -> Result<Sent<Seen>, Refusal> {
        self.retry(|| {
            let lost = match first.take().unwrap_or_else(|| self.write_one(write)) {
                Ok(_) => return Ok(Break(Sent::Ended(Outcome::Applied))),
                Err(Refusal::Unknown) => true,
                Err(refusal) if operation.looks_after(&refusal) => false,
                Err(refusal) => return Err(refusal),
            };
            let now = operation.look()?;
            Ok(match operation.resolve(&now) {
                Fate::Applied => Break(Sent::Ended(Outcome::Found)),
                Fate::Unchanged if lost => Continue(()),
                Fate::Unchanged | Fate::Overtaken => Break(Sent::Overtaken(now)),
            })
        })
    }
}
