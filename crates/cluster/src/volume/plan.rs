//! The plan of a foreground write: the one operation by which it changes an object, as decided from
//! a known map.
//!
//! The operation sets the entries dirty, widens their masks, and keeps their bases. It compares
//! every entry that it changes with the value in the known map. A partial overwrite of a
//! deduplicated chunk reads only blocks that are written in part.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use onefold_core::object::{Change, Guard, ReadPart, Refusal, Write};

use super::{
    long_discards::LongDiscards,
    objects::{Fill, Known, Objects},
};
use crate::{
    chunk_map::{ChunkMap, map_parts, stamp_value},
    format::{
        BLOCK, ObjectId, Stamp,
        catalogue::Cut,
        corrupt,
        entry::{Entry, Sums},
        key,
        recut::Recut,
    },
    rules::Rule,
};

/// The operation by which a write changes one object.
pub(super) struct Plan {
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
    /// Chunks that a failed write may still change.
    in_doubt: BTreeSet<u32>,
    /// Of a sealed store: the blocks of the object that it writes, whole.
    blocks: BTreeMap<u32, Vec<u8>>,
}

impl Plan {
    /// Decides what to write; `None` when there is nothing to do. [`Refusal::Missing`] when a part
    /// of a chunk is needed that does not exist any more.
    pub(super) fn decide(
        objects: &Objects,
        discards: &LongDiscards,
        index: u64,
        (known, in_doubt): (&Known, &BTreeSet<u32>),
        fills: &[(Range<u32>, Fill<'_>)],
        discarded: Option<Stamp>,
    ) -> Result<Option<Plan>, Refusal> {
        let id = objects.id(index);
        let stamp = objects.kernel().stamp();
        let mut plan = Plan {
            id,
            exists: known.exists,
            op: Write { object: id.name(), guards: Vec::new(), changes: Vec::new() },
            stamp,
            entries: BTreeMap::new(),
            listed: None,
            recut: None,
            discarded,
            in_doubt: in_doubt.clone(),
            blocks: BTreeMap::new(),
        };
        let chunk_bytes = objects.chunk_bytes();
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
                let none = Entry {
                    length,
                    dirty: false,
                    mask: 0,
                    base: None,
                    stamp: Stamp(0),
                    sums: Sums::NONE,
                };
                plan.add_chunk(
                    objects,
                    offset,
                    part,
                    known.entries.get(&offset).cloned(),
                    none,
                    fill,
                )?;
            }
        }
        if plan.entries.is_empty() && discarded.is_none_or(|_| !known.exists) {
            return Ok(None);
        }
        plan.write_blocks();
        let mut pairs: Vec<_> = plan
            .entries
            .iter()
            .map(|(offset, entry)| (key::entry(*offset), entry.encode(id, *offset)))
            .collect();
        if known.exists {
            let listed = known.listed.map_or_else(Vec::new, stamp_value);
            if objects.kernel().keeps(Rule::ListStampCompared) {
                plan.op.guards.push(Guard::Omap(key::LISTED.to_vec(), listed));
            }
            if discarded.is_some() {
                // With no entry to compare, a copy of an older trim would come late and count.
                let recorded = (known.discarded > Stamp(0)).then(|| stamp_value(known.discarded));
                let guard = Guard::Omap(key::DISCARDED.to_vec(), recorded.unwrap_or_default());
                plan.op.guards.push(guard);
            }
        } else {
            plan.op.guards.push(Guard::Absent);
            plan.discarded = plan.discarded.or(discards.newest(index));
        }
        if known.listed.is_none() && !plan.entries.is_empty() {
            plan.listed = Some(stamp);
            pairs.push((key::LISTED.to_vec(), stamp_value(stamp)));
        }
        if objects.kernel().format().volume_cut == Cut::Content {
            match &known.recut {
                // After a re-cut an entry that was absent may be absent again.
                Some(_) if !objects.kernel().keeps(Rule::RecutKeyCompared) => {}
                Some(recut) => {
                    plan.op.guards.push(Guard::Omap(key::RECUT.to_vec(), recut.encode()))
                }
                None if known.exists => {
                    return Err(Refusal::Failed(corrupt(format_args!(
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
    fn add_chunk(
        &mut self,
        objects: &Objects,
        offset: u32,
        part: Range<u32>,
        old: Option<Entry>,
        none: Entry,
        fill: Fill<'_>,
    ) -> Result<(), Refusal> {
        let length = none.length;
        // An earlier part of the same operation may have been there.
        let planned = self.entries.get(&offset).cloned();
        let is_first = planned.is_none();
        let entry = planned.or_else(|| old.clone()).unwrap_or(none);
        let zeroes = entry.base.is_none() && entry.mask == 0;
        // A failed write that is still on its way would come after a trim that changes no entry.
        let overtakes =
            self.in_doubt.contains(&offset) && objects.kernel().keeps(Rule::FailedWriteOvertaken);
        if zeroes && matches!(fill, Fill::Zeroes) && !overtakes {
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
        let kernel = objects.kernel();
        let new = if !kernel.keeps(Rule::MaskKept) && entry.base.is_some() {
            mask & !entry.mask
        } else {
            mask
        };
        if self.exists && is_first && kernel.keeps(Rule::EntryCompared) {
            let value = old.as_ref().map_or_else(Vec::new, |old| old.encode(self.id, offset));
            self.op.guards.push(Guard::Omap(key::entry(offset), value));
        }
        let dirty = new != 0 || entry.base.is_some();
        if kernel.is_sealed() {
            let sums =
                self.fill_blocks(objects, (offset, &part), old.as_ref(), &entry, (new, fill))?;
            let sums = sums.within(new);
            self.entries
                .insert(offset, Entry { dirty, mask: new, stamp: self.stamp, sums, ..entry });
            return Ok(());
        }
        match fill {
            Fill::Bytes(bytes) => {
                self.op.changes.push(Change::Write(part.start.into(), bytes.to_vec()))
            }
            Fill::Zeroes => self
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
            let content = objects.session().chunk_pool().read_chunks(&[base.chunk]).remove(0)?;
            for whole in edges.into_iter().filter_map(|block| cut(block, &part)) {
                let from_base = |range: Range<u32>| {
                    content[(range.start - offset) as usize..(range.end - offset) as usize].to_vec()
                };
                for side in
                    [whole.start..part.start.min(whole.end), part.end.max(whole.start)..whole.end]
                {
                    if side.start < side.end {
                        self.op.changes.push(Change::Write(side.start.into(), from_base(side)));
                    }
                }
            }
        }
        self.entries.insert(offset, Entry { dirty, mask: new, stamp: self.stamp, ..entry });
        Ok(())
    }

    /// In a sealed store: makes the blocks that a part of a write falls on, whole, and their sums. A
    /// block that is written in part is read first, from where the entry says.
    fn fill_blocks(
        &mut self,
        objects: &Objects,
        (offset, part): (u32, &Range<u32>),
        old: Option<&Entry>,
        entry: &Entry,
        (mask, fill): (u16, Fill<'_>),
    ) -> Result<Sums, Refusal> {
        let mut sums = entry.sums.clone();
        for block in (part.start - offset) / BLOCK..=(part.end - 1 - offset) / BLOCK {
            let (number, start) = (offset / BLOCK + block, offset + block * BLOCK);
            let end = (start + BLOCK).min(offset + entry.length);
            let covered = part.start <= start && end <= part.end;
            let is_hole = mask >> block & 1 == 0 || covered && matches!(fill, Fill::Zeroes);
            if is_hole {
                if covered && (entry.mask >> block & 1 == 1 || self.blocks.contains_key(&number)) {
                    self.op.changes.push(Change::Zero(start.into(), BLOCK.into()));
                }
                self.blocks.remove(&number);
                sums.set(block, 0);
                continue;
            }
            let mut content = match self.blocks.remove(&number) {
                Some(content) => content,
                None if covered => vec![0; BLOCK as usize],
                None => self.block_now(objects, offset, old, entry, block)?,
            };
            let (from, to) = (part.start.max(start), part.end.min(end));
            let into = &mut content[(from - start) as usize..(to - start) as usize];
            match fill {
                Fill::Bytes(bytes) => into.copy_from_slice(
                    &bytes[(from - part.start) as usize..(to - part.start) as usize],
                ),
                Fill::Zeroes => into.fill(0),
            }
            sums.set(block, objects.kernel().hashing().sum(self.id, number, &content));
            self.blocks.insert(number, content);
        }
        Ok(sums)
    }

    /// The content of a block as it is; [`Refusal::Missing`] when the map is another one than the write
    /// is decided from.
    fn block_now(
        &self,
        objects: &Objects,
        offset: u32,
        old: Option<&Entry>,
        entry: &Entry,
        block: u32,
    ) -> Result<Vec<u8>, Refusal> {
        let mut content = vec![0; BLOCK as usize];
        let at = (block * BLOCK) as usize;
        let from = if entry.mask >> block & 1 == 1 {
            if entry.sums.get(block) == 0 {
                return Ok(content);
            }
            let data = ReadPart::Data(u64::from(offset) + at as u64, BLOCK.into());
            let parts = [map_parts(), vec![data]].concat();
            let answer = objects.kernel().read_one(&self.id.name(), parts)?;
            let bytes = answer.data(2).to_vec();
            let map = ChunkMap::from_answer(self.id, Ok(answer))?;
            if map.as_ref().and_then(|map| map.entries.get(&offset)) != old {
                return Err(Refusal::Missing);
            }
            bytes
        } else if let Some(base) = entry.base {
            let chunk = objects.session().chunk_pool().read_chunks(&[base.chunk]).remove(0)?;
            chunk[at.min(chunk.len())..(at + BLOCK as usize).min(chunk.len())].to_vec()
        } else {
            return Ok(content);
        };
        content[..from.len()].copy_from_slice(&from);
        Ok(content)
    }

    /// Writes the blocks of a sealed store, those that follow each other together.
    fn write_blocks(&mut self) {
        let mut runs: Vec<(u32, Vec<u8>)> = Vec::new();
        for (number, content) in std::mem::take(&mut self.blocks) {
            match runs.last_mut() {
                Some((first, run)) if *first + run.len() as u32 / BLOCK == number => {
                    run.extend(content);
                }
                _ => runs.push((number, content)),
            }
        }
        let write = |(first, run)| Change::Write(u64::from(first) * u64::from(BLOCK), run);
        self.op.changes.extend(runs.into_iter().map(write));
    }

    /// The operation.
    pub(super) fn op(&self) -> &Write {
        &self.op
    }

    /// The chunks whose entries it changes.
    pub(super) fn chunks(&self) -> impl Iterator<Item = u32> + use<'_> {
        self.entries.keys().copied()
    }

    /// The list stamp that it sets.
    pub(super) fn listed(&self) -> Option<Stamp> {
        self.listed
    }

    /// True when the map of the object shows that the operation was applied.
    pub(super) fn is_applied(&self, now: &Known) -> bool {
        // A worker may have been there since: then our stamp is the one of the reference.
        let ours = |entry: &Entry| {
            entry.stamp == self.stamp || entry.base.is_some_and(|base| base.stamp == self.stamp)
        };
        match self.entries.first_key_value() {
            Some((offset, _)) => now.entries.get(offset).is_some_and(ours),
            None => self.discarded.is_some_and(|stamp| now.discarded >= stamp),
        }
    }

    /// The map after the operation was applied to it.
    pub(super) fn after(self, mut known: Known) -> Known {
        known.exists = true;
        known.entries.extend(self.entries);
        known.listed = known.listed.or(self.listed);
        known.recut = known.recut.or(self.recut);
        known.discarded = known.discarded.max(self.discarded.unwrap_or_default());
        known
    }
}

/// The mask of the blocks of a chunk that a range in it covers whole.
fn whole_blocks(range: &Range<u32>, length: u32) -> u16 {
    let last = if range.end == length { length.div_ceil(BLOCK) } else { range.end / BLOCK };
    (range.start.div_ceil(BLOCK)..last).fold(0, |mask, block| mask | 1 << block)
}
