//! The long discards of a volume: trims of many objects that the header records. Reads honour them
//! at once, and the objects are changed later.
//!
//! *Crash argument:* the record stays until its cursor has passed all objects. Each object records
//! the number of the last long discard that reached it, in the same operation. An object that is
//! created meanwhile records it too. So a discard that is repeated after a crash skips objects that
//! already have its number.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use onefold_core::object::{Change, Guard, ReadPart, Refusal, Write};
use parking_lot::Mutex;

use super::header::{DISCARD, LAST_DISCARD, OBJECTS_MAX, name};
use crate::{
    chunk_map::stamp_value,
    format::{Stamp, corrupt, key},
    kernel::Kernel,
    rules::Rule,
    session::Session,
};

/// Bytes of the value of a long discard.
const VALUE_BYTES: usize = 24;

/// No volume comes to so many long discards.
const NUMBER_MAX: u64 = 1 << 62;

/// A long discard that has not reached all its objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Discard {
    /// The discard's number in the volume; objects record the last one that reached them.
    number: Stamp,
    /// The first object.
    from: u64,
    /// The last object and one.
    to: u64,
    /// The first object that it has not reached.
    cursor: u64,
}

/// The last long discard of a volume.
#[derive(Default)]
struct Last {
    /// The number of the last long discard.
    number: u64,
    /// The next long discard, while it is unknown whether the store has recorded it. Until then
    /// nothing may be written, since the discard could erase the newer data.
    doubt: Option<Discard>,
}

impl Discard {
    /// The discard's number in the volume.
    pub(super) fn number(&self) -> Stamp {
        self.number
    }

    /// The first object that it has not reached.
    pub(super) fn cursor(&self) -> u64 {
        self.cursor
    }

    /// The objects behind the first one that it has not reached.
    pub(super) fn rest(&self) -> Range<u64> {
        self.cursor + 1..self.to
    }

    /// True when no object is left to reach.
    pub(super) fn is_over(&self) -> bool {
        self.cursor >= self.to
    }

    fn key(&self) -> Vec<u8> {
        key::numbered(DISCARD, self.number.0)
    }

    fn encode(&self) -> Vec<u8> {
        [self.from, self.to, self.cursor].iter().flat_map(|number| number.to_le_bytes()).collect()
    }

    fn decode(key: &[u8], value: &[u8]) -> Result<Option<Discard>, Refusal> {
        let Some(number) = key::parse_numbered(DISCARD, key) else { return Ok(None) };
        let bad = || Refusal::Failed(corrupt("a discard of a volume is damaged"));
        let field = |at: usize| -> Result<u64, Refusal> {
            Ok(u64::from_le_bytes(
                value.get(at..at + 8).ok_or_else(bad)?.try_into().map_err(|_| bad())?,
            ))
        };
        let (from, to, cursor) = (field(0)?, field(8)?, field(16)?);
        // Each step compares all of it, and none would succeed if it could be written otherwise.
        if value.len() != VALUE_BYTES || to > OBJECTS_MAX || cursor > to || number >= NUMBER_MAX {
            return Err(bad());
        }
        Ok(Some(Discard { number: Stamp(number), from, to, cursor }))
    }

    /// The number of the last long discard.
    fn last(value: &[u8]) -> Result<u64, Refusal> {
        let number = value.try_into().ok().map(u64::from_le_bytes);
        number.filter(|number| *number < NUMBER_MAX).ok_or_else(|| {
            Refusal::Failed(corrupt("the number of a volume's last discard is damaged"))
        })
    }

    /// True when it is still to reach an object.
    fn covers(&self, index: u64, discarded: Stamp) -> bool {
        (self.cursor.max(self.from)..self.to).contains(&index) && discarded < self.number
    }
}

/// The long discards of a volume that have not reached all their objects.
pub(super) struct LongDiscards {
    session: Arc<Session>,
    volume: u64,
    open: Mutex<Vec<Discard>>,
    last: Mutex<Last>,
    /// Steps over the volume that wait until the objects are reached.
    waited_for: AtomicUsize,
}

/// While it is there, a client's long trim waits until those before it have reached their objects: otherwise a client
/// could add them faster than they are applied.
pub(super) struct HeldBack(Arc<LongDiscards>);

impl Drop for HeldBack {
    fn drop(&mut self) {
        self.0.waited_for.fetch_sub(1, Relaxed);
    }
}

impl LongDiscards {
    /// The long discards that the header of the volume records.
    pub(super) fn load(
        session: Arc<Session>,
        volume: u64,
        header: &[(Vec<u8>, Vec<u8>)],
    ) -> Result<LongDiscards, Refusal> {
        let (mut open, mut number) = (BTreeMap::new(), 0);
        for (key, value) in header {
            if let Some(discard) = Discard::decode(key, value)? {
                open.insert(discard.number, discard);
            } else if key == LAST_DISCARD {
                number = Discard::last(value)?;
            }
        }
        Ok(LongDiscards {
            session,
            volume,
            open: Mutex::new(open.into_values().collect()),
            last: Mutex::new(Last { number, doubt: None }),
            waited_for: AtomicUsize::new(0),
        })
    }

    fn kernel(&self) -> &Kernel {
        self.session.kernel()
    }

    /// True when one must reach all its objects before the header may record another one.
    pub(super) fn are_full(&self) -> bool {
        let most = match self.waited_for.load(Relaxed) {
            0 => self.kernel().settings().discards_max.max(1),
            _ => 1,
        };
        self.open.lock().len() >= most && self.kernel().keeps(Rule::DiscardsLimited)
    }

    /// Records a long discard of the objects from `from` up to `to`. The operation compares the
    /// number of the last one, so that a late copy of it does nothing.
    pub(super) fn record(&self, from: u64, to: u64) -> Result<(), Refusal> {
        let mut last = self.last.lock();
        self.resolve_last(&mut last)?;
        let discard = Discard { number: Stamp(last.number + 1), from, to, cursor: from };
        last.doubt = Some(discard);
        self.resolve_last(&mut last)
    }

    /// Makes sure that the last long discard is recorded, if that was not known.
    pub(super) fn resolve(&self) -> Result<(), Refusal> {
        self.resolve_last(&mut self.last.lock())
    }

    /// Sends a discard of which it is not known whether it is recorded, until it is. Nobody else
    /// writes the header.
    fn resolve_last(&self, last: &mut Last) -> Result<(), Refusal> {
        let Some(discard) = last.doubt else { return Ok(()) };
        let before = if last.number == 0 { Vec::new() } else { last.number.to_le_bytes().to_vec() };
        let op = Write {
            object: name(self.volume),
            guards: vec![Guard::Exists, Guard::Omap(LAST_DISCARD.to_vec(), before)],
            changes: vec![Change::SetOmap(vec![
                (discard.key(), discard.encode()),
                (LAST_DISCARD.to_vec(), stamp_value(discard.number)),
            ])],
        };
        match self.kernel().until_answered(&op) {
            // A mismatch is our own, whose reply was lost.
            Ok(_) | Err(Refusal::Mismatch) => {}
            Err(refusal) => return Err(refusal),
        }
        *last = Last { number: discard.number.0, doubt: None };
        self.open.lock().push(discard);
        Ok(())
    }

    /// The newest long discard that an object that is made now is part of.
    pub(super) fn newest(&self, index: u64) -> Option<Stamp> {
        self.open
            .lock()
            .iter()
            .filter(|discard| discard.covers(index, Stamp(0)))
            .map(|discard| discard.number)
            .max()
    }

    /// True when a long discard has not reached the object yet. `discarded` is the last one that
    /// did.
    pub(super) fn cover(&self, index: u64, discarded: Stamp) -> bool {
        self.open.lock().iter().any(|discard| discard.covers(index, discarded))
    }

    /// The oldest long discard that has not reached all its objects.
    pub(super) fn oldest(&self) -> Option<Discard> {
        self.open.lock().first().copied()
    }

    /// The number of the newest one that has not reached all its objects.
    pub(super) fn last(&self) -> Option<Stamp> {
        self.open.lock().last().map(|discard| discard.number)
    }

    /// Holds back further ones while somebody waits for those that are there.
    pub(super) fn hold_back(self: &Arc<Self>) -> HeldBack {
        self.waited_for.fetch_add(1, Relaxed);
        HeldBack(self.clone())
    }

    /// Records that the discard has reached all objects before `next`; without one it is over.
    pub(super) fn advance(&self, discard: Discard, next: Option<u64>) -> Result<(), Refusal> {
        let further = next.map(|cursor| Discard { cursor, ..discard });
        let change = match further {
            None => Change::DropOmap(vec![discard.key()]),
            Some(further) => Change::SetOmap(vec![(discard.key(), further.encode())]),
        };
        let guards = vec![Guard::Exists, Guard::Omap(discard.key(), discard.encode())];
        let further = match self.kernel().until_answered(&Write {
            object: name(self.volume),
            guards,
            changes: vec![change],
        }) {
            Ok(_) => further,
            // An earlier step of ours, whose reply was lost.
            Err(Refusal::Mismatch) => self.recorded(discard)?,
            Err(refusal) => return Err(refusal),
        };
        self.open.lock().retain_mut(|one| {
            if let (true, Some(further)) = (one.number == discard.number, further) {
                *one = further;
            }
            one.number != discard.number || further.is_some()
        });
        Ok(())
    }

    /// A discard as the header has it.
    fn recorded(&self, discard: Discard) -> Result<Option<Discard>, Refusal> {
        let answer = self
            .kernel()
            .read_one(&name(self.volume), vec![ReadPart::Keys(vec![discard.key()])])?;
        answer.pairs(0).0.first().map_or(Ok(None), |(key, value)| Discard::decode(key, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A step of a discard compares all of its value: what is decoded and written otherwise would
    /// be tried for ever.
    #[test]
    fn rule_09_a_discard_that_no_step_would_advance_is_damage() {
        let good = Discard { number: Stamp(3), from: 5, to: 9, cursor: 7 };
        let decoded = |key: &[u8], value: &[u8]| Discard::decode(key, value);
        assert_eq!(decoded(&good.key(), &good.encode()).unwrap(), Some(good));
        let mut longer = good.encode();
        longer.push(0);
        assert!(decoded(&good.key(), &longer).is_err());
        for wrong in [
            Discard { to: OBJECTS_MAX + 1, ..good },
            Discard { cursor: u64::MAX, ..good },
            Discard { number: Stamp(u64::MAX), ..good },
        ] {
            assert!(decoded(&wrong.key(), &wrong.encode()).is_err(), "{wrong:?}");
        }
        assert!(Discard::last(&u64::MAX.to_le_bytes()).is_err() && Discard::last(b"x").is_err());
    }
}
