//! Moving cuts: dirty data in a volume whose chunks are cut by their content are cut anew, together
//! with their neighbours.
//!
//! | step | after a crash |
//! |---|---|
//! | (0) the re-cut key is set to the range and a new stamp, comparing its old value | the next worker sets another one |
//! | (a) references are [noted](crate::attempts), then added, with that stamp | false references of which the note tells; stale once the key has another value |
//! | (b) the flip: compare key and old entries; new entries, punch, pending drops, another key value, in one operation | the pending drops tell what to drop |
//! | (c) the old references are dropped | they are dropped again, which does nothing |
//!
//! Cutting begins with the chunk before the first dirty one, and continues until a new cut falls on
//! an old one. So only the last chunk before a place that was never written can be short.

use std::ops::Range;

use onefold_core::{
    block::is_zero,
    object::{Change, Guard, ReadPart, Refusal, Write},
};

use super::{
    cuts,
    flip::{Deduplication, Done, FLIP_ENTRIES, Group, unreadable},
};
use crate::{
    chunk_map::{ChunkMap, assemble, map_parts},
    format::{
        CHUNK_MAX, Chunk, ChunkId, ObjectId, Reference,
        entry::{self, Base, Entry, Sums},
        key,
        recut::Recut,
    },
    kernel::{Fate, Kernel, Operation, Outcome},
    rules::Rule,
};

/// Bytes behind the last dirty chunk that are looked at first for a cut that is there.
const AHEAD: u32 = 4 * CHUNK_MAX;

/// A dirty range and its neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    /// Where cutting begins.
    start: u32,
    /// The end of the last dirty chunk.
    dirty_end: u32,
    /// Where the chunks that follow each other end.
    run_end: u32,
}

fn end_of((offset, entry): (&u32, &Entry)) -> u32 {
    offset + entry.length
}

impl Span {
    /// The first one of a map.
    fn first(map: &ChunkMap) -> Option<Span> {
        let (mut run, mut any) = (Vec::new(), false);
        for pair in &map.entries {
            if run.last().is_some_and(|last| end_of(*last) != *pair.0) {
                if any {
                    break;
                }
                run.clear();
            }
            any |= pair.1.dirty;
            run.push(pair);
        }
        let first = run.iter().position(|(_, entry)| entry.dirty)?;
        let last = run[first..].iter().take_while(|(_, entry)| entry.dirty).last()?;
        Some(Span {
            start: *run[first.saturating_sub(1)].0,
            dirty_end: end_of(*last),
            run_end: end_of(*run.last()?),
        })
    }

    /// Cuts `content`, which begins at the start of the span; `None` when more content is needed.
    fn cut(
        &self,
        map: &ChunkMap,
        content: &[u8],
        (average, seed): (u32, u64),
    ) -> Option<Vec<(u32, u32)>> {
        let (mut at, end, mut pieces) = (self.start, self.start + content.len() as u32, Vec::new());
        while at < self.dirty_end || at < self.run_end && !map.entries.contains_key(&at) {
            if end < self.run_end && end - at < CHUNK_MAX {
                return None;
            }
            let length = cuts::first(&content[(at - self.start) as usize..], average, seed);
            pieces.push((at, length));
            at += length;
        }
        Some(pieces)
    }
}

/// A change of entries on its way.
struct Swap {
    old: Vec<(u32, Entry)>,
    new: Vec<(u32, Entry)>,
    recut: Recut,
    added: Vec<(Chunk, Reference)>,
    dropped: Vec<(Chunk, Reference)>,
}

impl Deduplication<'_> {
    /// Deduplicates all that is dirty in an object.
    pub(super) fn recut_all(&self, object: ObjectId, done: &mut Done) -> Result<(), Refusal> {
        loop {
            let Some(map) = ChunkMap::read(self.kernel, object)? else { return Ok(()) };
            done.operations += 1;
            if let Some(left) = map.recut.as_ref().filter(|recut| !recut.range.is_empty()) {
                // The worker of this re-cut is gone, or its flip will be refused from now on.
                if self.set_recut(object, left, &Recut::none(self.kernel.stamp()))? {
                    continue;
                }
                done.again = true;
                return Ok(());
            }
            let Some(span) = Span::first(&map) else { return Ok(()) };
            if !self.recut_span(object, &map, span, done)? {
                done.again = true;
                return Ok(());
            }
        }
    }

    /// One range; false when something else changed it meanwhile.
    fn recut_span(
        &self,
        object: ObjectId,
        map: &ChunkMap,
        span: Span,
        done: &mut Done,
    ) -> Result<bool, Refusal> {
        let near = map
            .entries
            .iter()
            .map(end_of)
            .find(|end| *end >= (span.dirty_end + AHEAD).min(span.run_end));
        let mut cut = None;
        for end in [near.unwrap_or(span.run_end), span.run_end] {
            let Some(content) = self.span_content(object, map, span.start..end, done)? else {
                return Ok(false);
            };
            done.operations += 1;
            let how = (self.kernel.format().chunk_bytes, self.kernel.hashing().cuts());
            if let Some(pieces) = span.cut(map, &content, how) {
                cut = Some((pieces, content));
                break;
            }
        }
        let Some((pieces, content)) = cut else { return Ok(false) };
        let (mut pieces, end) =
            (pieces.as_slice(), pieces.last().map_or(span.start, |(at, length)| at + length));
        let olds: Vec<(u32, Entry)> =
            map.entries.range(span.start..end).map(|(at, entry)| (*at, entry.clone())).collect();
        let mut old = olds.as_slice();
        let same = |piece: &(u32, u32), old: &(u32, Entry)| *piece == (old.0, old.1.length);
        if pieces.len() == old.len() && pieces.iter().zip(old).all(|(piece, old)| same(piece, old))
        {
            let dirty: Vec<(u32, Entry)> =
                old.iter().filter(|(_, entry)| entry.dirty).cloned().collect();
            for group in dirty.chunks(FLIP_ENTRIES) {
                for flipped in self.flip_groups(&[Group { object, entries: group.to_vec() }]) {
                    done.add(flipped?);
                }
            }
            return Ok(!done.again);
        }
        // Chunks at both ends that are unchanged stay.
        while let ([piece, ..], [first, ..]) = (pieces, old)
            && same(piece, first)
            && !first.1.dirty
        {
            (pieces, old) = (&pieces[1..], &old[1..]);
        }
        while let ([.., piece], [.., last]) = (pieces, old)
            && same(piece, last)
            && !last.1.dirty
        {
            (pieces, old) = (&pieces[..pieces.len() - 1], &old[..old.len() - 1]);
        }
        let bytes = |(at, length): &(u32, u32)| {
            &content[(at - span.start) as usize..(at + length - span.start) as usize]
        };
        let pieces: Vec<(u32, &[u8])> =
            pieces.iter().map(|piece| (piece.0, bytes(piece))).collect();
        self.swap(object, map, old.to_vec(), &pieces, done)
    }

    /// The bytes of a range as the entries say, when they are still the same and can be read.
    fn span_content(
        &self,
        object: ObjectId,
        map: &ChunkMap,
        span: Range<u32>,
        done: &mut Done,
    ) -> Result<Option<Vec<u8>>, Refusal> {
        let Range { start, end } = span;
        let read_parts = map_parts()
            .into_iter()
            .chain([ReadPart::Data(start.into(), (end - start).into())])
            .collect();
        let answer = match self.kernel.read_one(&object.name(), read_parts) {
            Err(Refusal::Missing) => return Ok(None),
            other => other?,
        };
        let data = answer.data(2).to_vec();
        let Some(now) = ChunkMap::from_answer(object, Ok(answer))? else { return Ok(None) };
        let range = || map.entries.range(start..end);
        if !range().eq(now.entries.range(start..end))
            || now.recut != map.recut
            || !self.kernel.may_leave_drops(now.pending.len(), range().count())
        {
            return Ok(None);
        }
        let gaps = |entry: &Entry| {
            if entry.is_cached() { None } else { entry.base.map(|base| base.chunk) }
        };
        let chunks: Vec<Chunk> = range().filter_map(|(_, entry)| gaps(entry)).collect();
        let mut bases = self.chunk_pool.read_chunks(&chunks).into_iter();
        let mut content = Vec::with_capacity((end - start) as usize);
        for (offset, entry) in range() {
            let base = match gaps(entry).and_then(|_| bases.next()) {
                // The entry changes meanwhile, or the chunk is damaged.
                Some(Err(refusal)) => {
                    done.unread.add(*offset, entry.clone(), unreadable(entry, refusal)?);
                    return Ok(None);
                }
                Some(Ok(base)) => Some(base),
                None => None,
            };
            let from = ((offset - start) as usize).min(data.len());
            content.extend(assemble(
                entry,
                &data[from..(from + entry.length as usize).min(data.len())],
                base.as_deref(),
            ));
        }
        Ok(Some(content))
    }

    /// Steps (0) to (c).
    fn swap(
        &self,
        object: ObjectId,
        map: &ChunkMap,
        old: Vec<(u32, Entry)>,
        pieces: &[(u32, &[u8])],
        done: &mut Done,
    ) -> Result<bool, Refusal> {
        let (Some(first), Some(last), Some(before)) = (old.first(), old.last(), &map.recut) else {
            return Ok(false);
        };
        let recut = Recut { range: first.0..last.0 + last.1.length, stamp: self.kernel.stamp() };
        if !self.set_recut(object, before, &recut)? {
            return Ok(false);
        }
        let stamp = self.kernel.stamp();
        let (mut swap, mut wanted) = (
            Swap { old, new: Vec::new(), recut, added: Vec::new(), dropped: Vec::new() },
            Vec::new(),
        );
        let mut kept = Vec::new();
        for (offset, content) in pieces {
            let id = self.chunk_pool.chunk_id(content);
            let there = swap
                .old
                .iter()
                .find(|(at, _)| at == offset)
                .and_then(|(_, entry)| entry.base)
                .filter(|base| base.chunk.id == id);
            let base = there.filter(|_| !is_zero(content));
            kept.extend(base.map(|_| *offset));
            if base.is_none() && !is_zero(content) {
                wanted.push((
                    swap.new.len(),
                    id,
                    *content,
                    Reference { object, offset: *offset, stamp: swap.recut.stamp },
                ));
            }
            swap.new.push((
                *offset,
                Entry {
                    length: content.len() as u32,
                    dirty: false,
                    mask: 0,
                    base,
                    stamp,
                    sums: Sums::NONE,
                },
            ));
        }
        let leaving = swap.old.iter().filter(|(offset, _)| !kept.contains(offset));
        swap.dropped =
            leaving.filter_map(|(offset, entry)| entry.reference(object, *offset)).collect();
        let ops: Vec<(ChunkId, &[u8], Reference)> =
            wanted.iter().map(|(_, id, content, reference)| (*id, *content, *reference)).collect();
        for ((n, id, _, reference), chunk) in
            wanted.iter().zip(self.chunk_pool.add_references(&ops)?)
        {
            done.operations += 1 + u64::from(id.length) / (32 << 10);
            swap.new[*n].1.base = Some(Base { chunk, stamp: reference.stamp });
            swap.added.push((chunk, *reference));
        }
        let ended = self.end_swap(object, &swap, done);
        ended.inspect_err(|_| self.chunk_pool.attempts_are_open(swap.added.iter().copied()))
    }

    /// Goes on once the references are added; true when the new entries are there.
    fn end_swap(&self, object: ObjectId, swap: &Swap, done: &mut Done) -> Result<bool, Refusal> {
        done.operations += 2;
        if self.flip_swap(object, swap)? {
            done.flipped += swap.new.len() as u64;
            self.chunk_pool.attempts_are_over(swap.added.iter().copied());
            done.operations += self.chunk_pool.finish_drops(&swap.dropped)?;
            return Ok(true);
        }
        self.kernel.counts().flips_failed.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.set_recut(object, &swap.recut, &Recut::none(self.kernel.stamp()))?;
        self.chunk_pool.drop_unused_references(object, &swap.added)?;
        Ok(false)
    }

    /// Sets the re-cut key where it is still `before`; false when it is not, or when that is not
    /// known.
    fn set_recut(&self, object: ObjectId, before: &Recut, recut: &Recut) -> Result<bool, Refusal> {
        let op = Write {
            object: object.name(),
            guards: vec![Guard::Exists, Guard::Omap(key::RECUT.to_vec(), before.encode())],
            changes: vec![Change::SetOmap(vec![(key::RECUT.to_vec(), recut.encode())])],
        };
        let mut set = RecutKey { kernel: self.kernel, object, recut };
        Ok(self.kernel.carry_out_decided(&mut set, op)? != Outcome::GivenUp)
    }

    /// Step (b); false when it came too late.
    fn flip_swap(&self, object: ObjectId, swap: &Swap) -> Result<bool, Refusal> {
        let mut guards = vec![Guard::Omap(key::RECUT.to_vec(), swap.recut.encode())];
        if self.kernel.keeps(Rule::RecutEntriesCompared) {
            guards.extend(swap.old.iter().map(|(offset, entry)| {
                Guard::Omap(key::entry(*offset), entry.encode(object, *offset))
            }));
        }
        let gone = |offset: &u32| !swap.new.iter().any(|(at, _)| at == offset);
        let gone =
            swap.old.iter().map(|(offset, _)| *offset).filter(gone).map(key::entry).collect();
        let mut pairs: Vec<_> = swap
            .new
            .iter()
            .map(|(offset, entry)| (key::entry(*offset), entry.encode(object, *offset)))
            .collect();
        for (chunk, reference) in &swap.dropped {
            pairs.push((
                key::pending(reference.offset, reference.stamp),
                entry::encode_pending(object, reference.offset, chunk),
            ));
        }
        pairs.push((key::RECUT.to_vec(), Recut::none(self.kernel.stamp()).encode()));
        let range = &swap.recut.range;
        let punch = Change::Zero(range.start.into(), (range.end - range.start).into());
        let op = Write {
            object: object.name(),
            guards,
            changes: vec![Change::DropOmap(gone), Change::SetOmap(pairs), punch],
        };
        let mut flip = SwapFlip { kernel: self.kernel, object, swap };
        Ok(self.kernel.carry_out_decided(&mut flip, op)? != Outcome::GivenUp)
    }
}

/// A change of the re-cut key: step (0), and giving up.
struct RecutKey<'a> {
    kernel: &'a Kernel,
    object: ObjectId,
    recut: &'a Recut,
}

impl Operation<Option<ChunkMap>> for RecutKey<'_> {
    fn decisions(&self) -> u32 {
        1
    }

    fn look(&mut self) -> Result<Option<ChunkMap>, Refusal> {
        ChunkMap::read(self.kernel, self.object)
    }

    /// A worker that did not get the key leaves the object for now.
    fn decide(&mut self, _: &Option<ChunkMap>) -> Result<Option<Write>, Refusal> {
        Ok(None)
    }

    fn resolve(&self, now: &Option<ChunkMap>) -> Fate {
        match now {
            Some(map) if map.recut.as_ref() == Some(self.recut) => Fate::Applied,
            _ => Fate::Overtaken,
        }
    }
}

/// Step (b).
struct SwapFlip<'a> {
    kernel: &'a Kernel,
    object: ObjectId,
    swap: &'a Swap,
}

impl Operation<Option<ChunkMap>> for SwapFlip<'_> {
    fn decisions(&self) -> u32 {
        1
    }

    fn look(&mut self) -> Result<Option<ChunkMap>, Refusal> {
        ChunkMap::read(self.kernel, self.object)
    }

    /// The key or an entry changed first: a later step begins anew.
    fn decide(&mut self, _: &Option<ChunkMap>) -> Result<Option<Write>, Refusal> {
        Ok(None)
    }

    /// Our stamp shows that the flip was applied; the old key and entries show that it may be sent
    /// again.
    fn resolve(&self, now: &Option<ChunkMap>) -> Fate {
        let (Some(map), Swap { old, new, recut, .. }) = (now, self.swap) else {
            return Fate::Overtaken;
        };
        let applied = |(offset, new): &(u32, Entry)| {
            map.entries.get(offset).is_some_and(|entry| entry.stamp == new.stamp)
        };
        if new.iter().any(applied) {
            Fate::Applied
        } else if map.recut.as_ref() != Some(recut)
            || old.iter().any(|(offset, old)| map.entries.get(offset) != Some(old))
        {
            Fate::Overtaken
        } else {
            Fate::Unchanged
        }
    }
}
