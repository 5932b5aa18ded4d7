//! Trims. A chunk that is trimmed whole becomes zeroes, and its base a pending drop, which a worker
//! does. In other chunks single blocks are punched. A long range is a record in the header: reads
//! honour it at once, and the objects are changed later.
//!
//! *Crash argument:* the record stays until its cursor has passed all objects. Each object records
//! the number of the last long discard that reached it, in the same operation. An object that is
//! created meanwhile records it too. So a discard that is repeated after a crash skips objects that
//! already have its number.

use std::ops::Range;

use onefold_core::{
    Result,
    object::{Change, Guard, ReadPart, Refusal, Write},
};

use super::{
    Volume,
    header::{Discard, LAST_DISCARD, LastDiscard, name},
    object::{Fill, Object, TURNS},
};
use crate::{
    chunk_map::{ChunkMap, stamp_value},
    format::{
        PENDING_MAX, Stamp,
        entry::{self, Entry},
        key,
    },
    settings::PlantedBug,
};

impl Volume {
    /// Makes a range read as zeroes; durable on return.
    ///
    /// # Errors
    /// As [`write_at`](Volume::write_at).
    pub fn discard(&self, offset: u64, bytes: u64) -> Result<()> {
        self.writable()?;
        self.within(offset, bytes)?;
        self.drain();
        self.foreground(0);
        let end = offset + bytes;
        let whole = offset.div_ceil(self.object_bytes())..end / self.object_bytes();
        if whole.start < whole.end
            && whole.end - whole.start > self.session.kernel().settings().direct_objects
        {
            self.make_room()?;
            self.zero(offset, whole.start * self.object_bytes())?;
            self.record(whole.start, whole.end)
                .map_err(|refusal| self.failed(whole.start, refusal))?;
            return self.zero(whole.end * self.object_bytes(), end);
        }
        self.zero(offset, end)
    }

    /// Advances the long discards until there is room for one more.
    fn make_room(&self) -> Result<()> {
        self.resolve_discard(&mut self.last_discard.lock())
            .map_err(|refusal| self.failed(0, refusal))?;
        let is_full =
            || self.discards.lock().len() >= self.session.kernel().settings().discards_max.max(1);
        while is_full() && !self.session.kernel().planted(PlantedBug::DiscardsUnbounded) {
            self.discard_step()?;
        }
        Ok(())
    }

    /// Zeroes a range object by object. An object that does not exist reads as zeroes already.
    fn zero(&self, mut at: u64, end: u64) -> Result<()> {
        while at < end {
            let (index, within) = (at / self.object_bytes(), (at % self.object_bytes()) as u32);
            let bytes = (self.object_bytes() - u64::from(within)).min(end - at) as u32;
            self.fill(index, within..within + bytes, Fill::Zeroes)
                .map_err(|refusal| self.failed(index, refusal))?;
            at += u64::from(bytes);
        }
        Ok(())
    }

    /// Records a long discard. The operation compares the number of the last one, so that a late
    /// copy of it does nothing.
    fn record(&self, from: u64, to: u64) -> Result<(), Refusal> {
        let mut last = self.last_discard.lock();
        self.resolve_discard(&mut last)?;
        let discard = Discard { stamp: Stamp(last.number + 1), from, to, cursor: from };
        last.doubt = Some(discard);
        self.resolve_discard(&mut last)
    }

    /// Sends a discard of which it is not known whether it is recorded, until it is. Nobody else
    /// writes the header.
    fn resolve_discard(&self, last: &mut LastDiscard) -> Result<(), Refusal> {
        let Some(discard) = last.doubt else { return Ok(()) };
        let before = if last.number == 0 { Vec::new() } else { last.number.to_le_bytes().to_vec() };
        let op = Write {
            object: name(self.id),
            guards: vec![Guard::Exists, Guard::Omap(LAST_DISCARD.to_vec(), before)],
            changes: vec![Change::SetOmap(vec![
                (discard.key(), discard.encode()),
                (LAST_DISCARD.to_vec(), stamp_value(discard.stamp)),
            ])],
        };
        match self.session.kernel().until_answered(&op) {
            // A mismatch is our own, whose reply was lost.
            Ok(_) | Err(Refusal::Mismatch) => {}
            Err(refusal) => return Err(refusal),
        }
        *last = LastDiscard { number: discard.stamp.0, doubt: None };
        self.discards.lock().push(discard);
        Ok(())
    }

    /// The newest long discard that an object that is made now is part of.
    pub(super) fn newest_discard(&self, index: u64) -> Option<Stamp> {
        self.discards
            .lock()
            .iter()
            .filter(|discard| discard.covers(index, Stamp(0)))
            .map(|discard| discard.stamp)
            .max()
    }

    /// Before a write into an object: long discards reach it.
    pub(super) fn discard_first(&self, index: u64, object: &mut Object) -> Result<(), Refusal> {
        self.resolve_discard(&mut self.last_discard.lock())?;
        let Some(stamp) = self.newest_discard(index) else { return Ok(()) };
        if self.session.kernel().planted(PlantedBug::OldDiscard) {
            return Ok(());
        }
        self.reach(index, object, stamp)
    }

    /// Makes an object zeroes, unless this discard or a later one was there.
    fn reach(&self, index: u64, object: &mut Object, stamp: Stamp) -> Result<(), Refusal> {
        let known = self.known(index, object)?;
        if !known.exists || known.discarded >= stamp {
            return Ok(());
        }
        self.fill_object(
            index,
            object,
            &[(0..self.session.kernel().format().object_bytes, Fill::Zeroes)],
            Some(stamp),
        )
    }

    /// Turns chunks that the range covers whole into zeroes, and their bases into pending drops.
    /// The operation compares the object's version: only then there is certainly room for the
    /// drops, and a late copy does nothing.
    pub(super) fn let_go(
        &self,
        index: u64,
        object: &mut Object,
        range: &Range<u32>,
    ) -> Result<(), Refusal> {
        let covered = |at: u32, entry: &Entry| {
            entry.base.is_some() && range.start <= at && at + entry.length <= range.end
        };
        for _ in 0..TURNS {
            if !self.known(index, object)?.entries.iter().any(|(at, entry)| covered(*at, entry)) {
                return Ok(());
            }
            let id = self.object_id(index);
            let Some(map) = ChunkMap::read(self.session.kernel(), id)? else {
                return Err(self.lost(index));
            };
            object.learn(None);
            let chunks: Vec<(u32, Entry)> = map
                .entries
                .iter()
                .filter(|(at, entry)| covered(**at, entry))
                .map(|(at, entry)| (*at, *entry))
                .collect();
            if map.pending.len() + chunks.len() > PENDING_MAX {
                self.session.chunk_pool().finish_drops(&map.pending)?;
                continue;
            }
            let (op, listed) = self.let_go_op(&map, id, &chunks);
            // The object stays due for the dirty list until the operation is known not to have been
            // applied.
            object.not_yet_listed.extend(listed);
            match self.session.kernel().write_one(&op) {
                Ok(_) => return self.join_dirty_list(index, object),
                Err(Refusal::Mismatch | Refusal::Unknown) => {}
                Err(refusal) => return Err(refusal),
            }
        }
        Err(Refusal::Mismatch)
    }

    /// The operation of [`let_go`](Self::let_go), and the list stamp that it sets.
    fn let_go_op(
        &self,
        map: &ChunkMap,
        id: crate::format::ObjectId,
        chunks: &[(u32, Entry)],
    ) -> (Write, Option<Stamp>) {
        let stamp = self.session.kernel().stamp();
        let listed = map.listed.is_none().then_some(stamp);
        let mut pairs: Vec<(Vec<u8>, Vec<u8>)> =
            listed.iter().map(|stamp| (key::LISTED.to_vec(), stamp_value(*stamp))).collect();
        let mut changes = Vec::new();
        for (at, old) in chunks {
            let new = Entry { dirty: false, mask: 0, base: None, stamp, ..*old };
            pairs.push((key::entry(*at), new.encode(id, *at)));
            if let Some((chunk, reference)) = old.reference(id, *at) {
                pairs.push((
                    key::pending(*at, reference.stamp),
                    entry::encode_pending(id, *at, &chunk),
                ));
            }
            if old.mask != 0 {
                changes.push(Change::Zero((*at).into(), old.length.into()));
            }
        }
        changes.push(Change::SetOmap(pairs));
        (Write { object: id.name(), guards: vec![Guard::Version(map.version)], changes }, listed)
    }

    /// Applies long discards to one more object; false when there is none.
    ///
    /// # Errors
    /// As [`write_at`](Volume::write_at).
    pub fn discard_step(&self) -> Result<bool> {
        let Some(discard) = self.discards.lock().first().copied() else { return Ok(false) };
        self.step(discard).map_err(|refusal| self.failed(discard.cursor, refusal))?;
        Ok(true)
    }

    fn step(&self, discard: Discard) -> Result<(), Refusal> {
        let index = discard.cursor;
        if index < discard.to {
            let object = self.object(index);
            let mut object = object.lock();
            self.reach(index, &mut object, discard.stamp)?;
        }
        let next = self.first_there(index + 1..discard.to).unwrap_or(discard.to);
        let further = Discard { cursor: next, ..discard };
        let change = if next >= discard.to {
            Change::DropOmap(vec![discard.key()])
        } else {
            Change::SetOmap(vec![(discard.key(), further.encode())])
        };
        let guards = vec![Guard::Exists, Guard::Omap(discard.key(), discard.encode())];
        let further = match self.session.kernel().until_answered(&Write {
            object: name(self.id),
            guards,
            changes: vec![change],
        }) {
            Ok(_) => (next < discard.to).then_some(further),
            // An earlier step of ours, whose reply was lost.
            Err(Refusal::Mismatch) => self.recorded(discard)?,
            Err(refusal) => return Err(refusal),
        };
        let mut discards = self.discards.lock();
        discards.retain_mut(|one| {
            if let (true, Some(further)) = (one.stamp == discard.stamp, further) {
                *one = further;
            }
            one.stamp != discard.stamp || further.is_some()
        });
        Ok(())
    }

    /// The first object of a range that may be there: the others need not be looked at. One whose
    /// first write failed on its way may have no bit.
    fn first_there(&self, range: Range<u64>) -> Option<u64> {
        let marked = self.bits.lock().first(range.clone());
        let range = range.start..marked.unwrap_or(range.end).max(range.start);
        let remembered: Vec<_> = self
            .objects
            .lock()
            .range(range)
            .map(|(index, object)| (*index, object.clone()))
            .collect();
        remembered
            .into_iter()
            .find(|(_, object)| object.lock().is_not_yet_recorded())
            .map(|(index, _)| index)
            .or(marked)
    }

    /// A discard as the header has it.
    fn recorded(&self, discard: Discard) -> Result<Option<Discard>, Refusal> {
        let answer = self
            .session
            .kernel()
            .read_one(&name(self.id), vec![ReadPart::Keys(vec![discard.key()])])?;
        answer.pairs(0).0.first().map_or(Ok(None), |(key, value)| Discard::decode(key, value))
    }
}
