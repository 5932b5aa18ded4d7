//! Foreground writes: one operation an object. The operation compares every entry that it changes
//! with the value that the owner knows.
//!
//! The write sets the entries dirty, widens their masks, and keeps their bases. A partial overwrite
//! of a deduplicated chunk reads only blocks that are written in part. After a mismatch the map is
//! read, and the write is decided again. After a lost reply the map is read as well: our stamp
//! shows that the write was applied, the old one that it may be sent again unchanged. A late copy
//! of the operation finds another value, since no entry value ever comes back, and does nothing.

use std::{collections::BTreeMap, ops::Range};

use onefold_core::{
    Result,
    object::{Change, Guard, Refusal, Write},
};

use super::{
    Volume,
    inline::InlineWrites,
    object::{Fill, Known, Object, TURNS},
};
use crate::{
    chunk_map::{ChunkMap, stamp_value},
    dirty_list::DirtyList,
    format::{BLOCK, ObjectId, Stamp, catalogue::Cut, entry::Entry, key, recut::Recut},
    kernel::{Fate, Operation, Outcome, failed},
    post_processing::flip::Deduplication,
    settings::{Dedup, PlantedBug},
};

/// The operation by which a write changes one object, as decided from a known map.
struct Plan {
    id: ObjectId,
    /// The object is there, as far as it is known.
    exists: bool,
    op: Write,
    stamp: Stamp,
    /// Entries with their new values.
    entries: BTreeMap<u32, Entry>,
    /// The list stamp that it sets.
    listed: Option<Stamp>,
    /// The re-cut key of an object that it makes.
    recut: Option<Recut>,
    discarded: Option<Stamp>,
}

/// A write to one object, which is locked.
pub(super) struct ObjectWrite<'a, 'f> {
    volume: &'a Volume,
    index: u64,
    pub(super) object: &'a mut Object,
    fills: &'a [(Range<u32>, Fill<'f>)],
    /// The long discard that it is part of.
    discarded: Option<Stamp>,
    /// The map, and the plan that was decided from it.
    decided: Option<(Known, Plan)>,
    /// The map that named a chunk which was gone.
    gone: Option<BTreeMap<u32, Entry>>,
}

impl Volume {
    /// Writes `data` at byte `offset`; durable on return.
    ///
    /// # Errors
    /// `NoSpace` when the store is full, `Stopped` when another server took the volume over.
    pub fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        let ticket = self.write_later(offset, data)?;
        self.wait_for(ticket)
    }

    /// Makes a range of one object read as `fill`.
    pub(super) fn fill(
        &self,
        index: u64,
        range: Range<u32>,
        fill: Fill<'_>,
    ) -> Result<(), Refusal> {
        let object = self.object(index);
        let mut object = object.lock();
        self.discard_first(index, &mut object)?;
        self.fill_object(index, &mut object, &[(range, fill)], None)?;
        self.flush_through(index, &mut object);
        Ok(())
    }

    /// Deduplicates an object at once, if the settings say so. The object is written and on the
    /// dirty list, so a worker does the rest if this fails.
    pub(super) fn flush_through(&self, index: u64, object: &mut Object) {
        if self.session.kernel().settings().dedup == Dedup::FlushThrough {
            object.learn(None);
            let _ = Deduplication::of(&self.session).flush_through(self.object_id(index));
        }
    }

    /// Makes ranges of one locked object read as their fills, in their order. `discarded` is the
    /// number of the long discard that the fills belong to; the object records it.
    pub(super) fn fill_object(
        &self,
        index: u64,
        object: &mut Object,
        fills: &[(Range<u32>, Fill<'_>)],
        discarded: Option<Stamp>,
    ) -> Result<(), Refusal> {
        if let Some(inline) = &self.inline {
            let writes = InlineWrites::of(self, inline);
            return writes.write_all(&mut [(index, object, fills)], discarded).remove(0);
        }
        let mut write = ObjectWrite::new(self, index, object, fills, discarded);
        let outcome = match write.decide_from_known()? {
            Some(op) => self.session.kernel().carry_out_decided(&mut write, op)?,
            None => Outcome::GivenUp,
        };
        write.ended(outcome)
    }

    /// The map as it is remembered, or read.
    pub(super) fn known(&self, index: u64, object: &mut Object) -> Result<Known, Refusal> {
        if object.known.is_none() {
            let known = Known::of(ChunkMap::read(self.session.kernel(), self.object_id(index))?);
            if !known.exists
                && self.bits.lock().has(index)
                && !self.session.kernel().planted(PlantedBug::MissingAsZeroes)
            {
                return Err(self.lost(index));
            }
            object.learn(Some(known));
        }
        Ok(object.known.clone().unwrap_or_default())
    }

    /// Decides what to write; `None` when there is nothing to do. [`Refusal::Missing`] when a part
    /// of a chunk is needed that does not exist any more.
    fn plan(
        &self,
        index: u64,
        known: &Known,
        fills: &[(Range<u32>, Fill<'_>)],
        discarded: Option<Stamp>,
    ) -> Result<Option<Plan>, Refusal> {
        let id = self.object_id(index);
        let stamp = self.session.kernel().stamp();
        let mut plan = Plan {
            id,
            exists: known.exists,
            op: Write { object: id.name(), guards: Vec::new(), changes: Vec::new() },
            stamp,
            entries: BTreeMap::new(),
            listed: None,
            recut: None,
            discarded,
        };
        let chunk_bytes = self.chunk_bytes();
        for (range, fill) in fills {
            let mut at = range.start;
            while at < range.end {
                let (offset, length) = known.place(at, chunk_bytes);
                let part = at..range.end.min(offset + length);
                let fill = match fill {
                    Fill::Bytes(bytes) => Fill::Bytes(
                        &bytes[(part.start - range.start) as usize
                            ..(part.end - range.start) as usize],
                    ),
                    Fill::Zeroes => Fill::Zeroes,
                };
                at = part.end;
                let none = Entry { length, dirty: false, mask: 0, base: None, stamp: Stamp(0) };
                self.plan_chunk(
                    &mut plan,
                    offset,
                    part,
                    known.entries.get(&offset).copied(),
                    none,
                    fill,
                )?;
            }
        }
        if plan.entries.is_empty() && discarded.is_none_or(|_| !known.exists) {
            return Ok(None);
        }
        let mut pairs: Vec<_> = plan
            .entries
            .iter()
            .map(|(offset, entry)| (key::entry(*offset), entry.encode(id, *offset)))
            .collect();
        if known.exists {
            let listed = known.listed.map_or_else(Vec::new, stamp_value);
            if !self.session.kernel().planted(PlantedBug::ListedNotCompared) {
                plan.op.guards.push(Guard::Omap(key::LISTED.to_vec(), listed));
            }
            if discarded.is_some() {
                // With no entry to compare, a copy of an older trim would come late and count.
                let noted = (known.discarded > Stamp(0)).then(|| stamp_value(known.discarded));
                let guard = Guard::Omap(key::DISCARDED.to_vec(), noted.unwrap_or_default());
                plan.op.guards.push(guard);
            }
        } else {
            plan.op.guards.push(Guard::Absent);
            plan.discarded = plan.discarded.or(self.newest_discard(index));
        }
        if known.listed.is_none() && !plan.entries.is_empty() {
            plan.listed = Some(stamp);
            pairs.push((key::LISTED.to_vec(), stamp_value(stamp)));
        }
        if self.session.kernel().format().volume_cut == Cut::Content {
            match &known.recut {
                // After a re-cut an entry that was absent may be absent again.
                Some(_) if self.session.kernel().planted(PlantedBug::RecutNotCompared) => {}
                Some(recut) => {
                    plan.op.guards.push(Guard::Omap(key::RECUT.to_vec(), recut.encode()))
                }
                None if known.exists => {
                    return Err(Refusal::Failed(crate::format::corrupt(format_args!(
                        "object {id} has no re-cut key"
                    ))));
                }
                None => {
                    plan.recut = Some(Recut::none(stamp));
                    pairs.push((key::RECUT.to_vec(), Recut::none(stamp).encode()));
                }
            }
        }
        pairs.extend(plan.discarded.map(|stamp| (key::DISCARDED.to_vec(), stamp_value(stamp))));
        plan.op.changes.push(Change::SetOmap(pairs));
        Ok(Some(plan))
    }

    /// Adds the part of a write that falls on one chunk.
    fn plan_chunk(
        &self,
        plan: &mut Plan,
        offset: u32,
        part: Range<u32>,
        old: Option<Entry>,
        none: Entry,
        fill: Fill<'_>,
    ) -> Result<(), Refusal> {
        let length = none.length;
        // An earlier part of the same operation may have been there.
        let planned = plan.entries.get(&offset).copied();
        let entry = planned.or(old).unwrap_or(none);
        let zeroes = entry.base.is_none() && entry.mask == 0;
        if zeroes && matches!(fill, Fill::Zeroes) {
            return Ok(());
        }
        let (first, last) = ((part.start - offset) / BLOCK, (part.end - 1 - offset) / BLOCK);
        let mask = match fill {
            // Without a base a block of no mask is zeroes already.
            Fill::Zeroes if entry.base.is_none() => {
                entry.mask & !whole_blocks(&(part.start - offset..part.end - offset), length)
            }
            _ => (first..=last).fold(entry.mask, |mask, block| mask | 1 << block),
        };
        let new = if self.session.kernel().planted(PlantedBug::MaskBitLost) && entry.base.is_some()
        {
            mask & !entry.mask
        } else {
            mask
        };
        if plan.exists
            && planned.is_none()
            && !self.session.kernel().planted(PlantedBug::BlindEntry)
        {
            let value = old.map_or_else(Vec::new, |old| old.encode(plan.id, offset));
            plan.op.guards.push(Guard::Omap(key::entry(offset), value));
        }
        match fill {
            Fill::Bytes(bytes) => {
                plan.op.changes.push(Change::Write(part.start.into(), bytes.to_vec()))
            }
            Fill::Zeroes => plan
                .op
                .changes
                .push(Change::Zero(part.start.into(), (part.end - part.start).into())),
        }
        // Blocks that are written in part need their content from the base.
        let cut = |block: u32, part: &Range<u32>| {
            let whole = offset + block * BLOCK..(offset + (block + 1) * BLOCK).min(offset + length);
            (part.start > whole.start || part.end < whole.end).then_some(whole)
        };
        let edges = [first, last];
        let mut edges: Vec<u32> = edges
            .into_iter()
            .filter(|block| entry.mask >> block & 1 == 0 && cut(*block, &part).is_some())
            .collect();
        edges.dedup();
        if let Some(base) = entry.base.filter(|_| !edges.is_empty()) {
            let content = self.session.chunk_pool().read_chunks(&[base.chunk]).remove(0)?;
            for whole in edges.into_iter().filter_map(|block| cut(block, &part)) {
                let from_base = |range: Range<u32>| {
                    content[(range.start - offset) as usize..(range.end - offset) as usize].to_vec()
                };
                for side in
                    [whole.start..part.start.min(whole.end), part.end.max(whole.start)..whole.end]
                {
                    if side.start < side.end {
                        plan.op.changes.push(Change::Write(side.start.into(), from_base(side)));
                    }
                }
            }
        }
        let dirty = new != 0 || entry.base.is_some();
        plan.entries.insert(offset, Entry { dirty, mask: new, stamp: plan.stamp, ..entry });
        Ok(())
    }

    /// Completes a write before it is acknowledged: sets the bit of a new object, and inserts the
    /// object into the dirty list.
    pub(super) fn join_dirty_list(&self, index: u64, object: &mut Object) -> Result<(), Refusal> {
        // The list comes last: while the insert is due, the bit may be missing too.
        self.bits.lock().change(self.session.kernel(), self.id, index, true)?;
        object.bit_not_yet_set = false;
        while let Some(stamp) = object.not_yet_listed.last() {
            if !self.session.kernel().planted(PlantedBug::InsertNotAwaited) {
                self.session.kernel().until_answered(
                    &DirtyList::of(self.session.kernel()).insert(self.object_id(index), *stamp),
                )?;
            }
            object.not_yet_listed.pop();
        }
        Ok(())
    }

    /// The error of an object that should be there.
    pub(super) fn lost(&self, index: u64) -> Refusal {
        Refusal::Failed(crate::format::corrupt(format_args!(
            "object {} of volume {:?} is missing",
            self.object_id(index),
            self.name
        )))
    }

    /// Completes what a crash of the previous owner may have left undone for one object: its bit,
    /// and its place on the dirty list.
    pub(super) fn rescan(&self, index: u64) -> Result<()> {
        let id = self.object_id(index);
        let again = || -> Result<(), Refusal> {
            if let Some(map) = ChunkMap::read(self.session.kernel(), id)? {
                self.bits.lock().change(self.session.kernel(), self.id, index, true)?;
                DirtyList::of(self.session.kernel()).list_again(id, &map)?;
            }
            Ok(())
        };
        again().map_err(|refusal| failed(format_args!("object {id}"), refusal))
    }
}

impl<'a, 'f> ObjectWrite<'a, 'f> {
    pub(super) fn new(
        volume: &'a Volume,
        index: u64,
        object: &'a mut Object,
        fills: &'a [(Range<u32>, Fill<'f>)],
        discarded: Option<Stamp>,
    ) -> ObjectWrite<'a, 'f> {
        ObjectWrite { volume, index, object, fills, discarded, decided: None, gone: None }
    }

    /// Decides from the map as it is remembered. [`Refusal::Missing`] when a chunk is gone that it
    /// names.
    pub(super) fn plan(&mut self) -> Result<Option<Write>, Refusal> {
        let known = self.volume.known(self.index, self.object)?;
        let plan = self.volume.plan(self.index, &known, self.fills, self.discarded);
        let Some(plan) = plan? else { return Ok(None) };
        // The object stays due for the dirty list until the operation is known not to have been
        // applied.
        self.object.not_yet_listed.extend(plan.listed);
        let op = plan.op.clone();
        self.decided = Some((known, plan));
        Ok(Some(op))
    }

    /// The same, after whole chunks that become zeroes let go of their bases; a chunk that is gone
    /// is looked for in the map as it is now.
    pub(super) fn decide_from_known(&mut self) -> Result<Option<Write>, Refusal> {
        for _ in 0..TURNS {
            for (range, _) in self.fills.iter().filter(|(_, fill)| matches!(fill, Fill::Zeroes)) {
                self.volume.let_go(self.index, self.object, range)?;
            }
            match self.plan() {
                Err(Refusal::Missing) => self.look_again()?,
                planned => return planned,
            }
        }
        Err(Refusal::Mismatch)
    }

    /// A chunk is gone that the map names as it is remembered: a worker may have put another one in
    /// its place. When the map still names it, it is damage.
    fn look_again(&mut self) -> Result<(), Refusal> {
        if self.volume.session.kernel().planted(PlantedBug::GoneBaseFails) {
            return Err(Refusal::Missing);
        }
        let named = self.object.known.as_ref().map(|known| known.entries.clone());
        if self.gone.is_some() && self.gone == named {
            let id = self.volume.object_id(self.index);
            let text = format_args!("a chunk of object {id} is missing");
            return Err(Refusal::Failed(crate::format::corrupt(text)));
        }
        self.gone = named;
        self.object.learn(None);
        Ok(())
    }

    /// Completes the write before it is acknowledged.
    pub(super) fn ended(self, outcome: Outcome) -> Result<(), Refusal> {
        match (outcome, self.decided) {
            (Outcome::Applied, Some((known, plan))) => {
                self.object.learn(Some(after(known, &plan)));
            }
            // An earlier write may have failed on its way to the list.
            (Outcome::GivenUp, _)
                if self.object.not_yet_listed.is_empty()
                    || !self.object.known.as_ref().is_some_and(|known| known.exists) =>
            {
                return Ok(());
            }
            _ => {}
        }
        self.volume.join_dirty_list(self.index, self.object)
    }
}

impl Operation<Known> for ObjectWrite<'_, '_> {
    fn decisions(&self) -> u32 {
        TURNS
    }

    fn look(&mut self) -> Result<Known, Refusal> {
        self.object.learn(None);
        self.volume.known(self.index, self.object)
    }

    fn decide(&mut self, _: &Known) -> Result<Option<Write>, Refusal> {
        // The write that was decided before will never be applied.
        if let Some((_, plan)) = self.decided.take() {
            self.object.not_yet_listed.retain(|stamp| Some(*stamp) != plan.listed);
        }
        self.decide_from_known()
    }

    /// Our stamp shows that the write was applied. Otherwise the same operation may be sent again,
    /// since it compares the values it was decided from.
    fn resolve(&self, now: &Known) -> Fate {
        let Some((_, plan)) = &self.decided else { return Fate::Overtaken };
        // A worker may have been there since: then it is the stamp of the reference.
        let ours = |entry: &Entry| {
            entry.stamp == plan.stamp || entry.base.is_some_and(|base| base.stamp == plan.stamp)
        };
        let applied = match plan.entries.first_key_value() {
            Some((offset, _)) => now.entries.get(offset).is_some_and(ours),
            None => plan.discarded.is_some_and(|stamp| now.discarded >= stamp),
        };
        if self.volume.session.kernel().planted(PlantedBug::NewStampOnRetry) {
            Fate::Overtaken
        } else if applied {
            Fate::Applied
        } else {
            Fate::Unchanged
        }
    }
}

/// The mask of the blocks of a chunk that a range in it covers whole.
fn whole_blocks(range: &Range<u32>, length: u32) -> u16 {
    let last = if range.end == length { length.div_ceil(BLOCK) } else { range.end / BLOCK };
    (range.start.div_ceil(BLOCK)..last).fold(0, |mask, block| mask | 1 << block)
}

/// The map after a plan was applied to it.
fn after(mut known: Known, plan: &Plan) -> Known {
    known.exists = true;
    known.entries.extend(plan.entries.iter().map(|(offset, entry)| (*offset, *entry)));
    known.listed = known.listed.or(plan.listed);
    known.recut = known.recut.or_else(|| plan.recut.clone());
    known.discarded = known.discarded.max(plan.discarded.unwrap_or_default());
    known
}
