//! Inline deduplication: a write reads, changes, names and stores whole chunks, and the entry names
//! the new chunk at once.
//!
//! The order is the worker's: reference, flip, drop. The difference is that no dirty entry
//! announces the reference. Therefore the header of the volume names the session that makes
//! references before their entries, and a scrub keeps such references until that session is fenced.
//!
//! *Crash argument:* after a crash between reference and flip the reference is false, and stale
//! once another session owns the volume. Its [attempt](crate::attempts) lets workers find it. The
//! attempt is recorded with the first references, so that no round trip is added: the embedded
//! store applies all or none of them, and on Ceph they are sent together, the attempt first. The
//! flip leaves the drop of the old chunk in the same object, which is on the dirty list before the
//! write is acknowledged.

#[cfg(feature = "planted-bugs")]
mod broken;

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::Arc,
};

use onefold_core::{
    block::is_zero,
    object::{Change, Guard, Read, ReadPart, ReadResult, Refusal, Write},
};

use super::{
    header::Inline,
    long_discards::LongDiscards,
    objects::{Fill, Job, Known, Objects, TURNS},
};
use crate::{
    chunk_map::{ChunkMap, assemble, map_parts, stamp_value},
    chunk_pool::ChunkPool,
    format::{
        Chunk, ChunkId, ObjectId, Reference, Stamp, corrupt,
        entry::{self, Base, Entry, Sums},
        key,
    },
    kernel::{Fate, Operation, Outcome},
    rules::Rule,
    session::Session,
};

/// A chunk that a write changes.
struct Part {
    offset: u32,
    old: Option<Entry>,
    /// Bytes of the object, where the write does not cover the chunk.
    cached: Option<Vec<u8>>,
    content: Vec<u8>,
}

/// A write to one object, on its way.
struct Draft {
    job: usize,
    id: ObjectId,
    map: Option<ChunkMap>,
    parts: Vec<Part>,
    stamp: Stamp,
    entries: BTreeMap<u32, Entry>,
    added: Vec<(Chunk, Reference)>,
    dropped: Vec<(Chunk, Reference)>,
    /// The list stamp that it sets: there is something to drop, and the object is on no list.
    listed: Option<Stamp>,
    /// Chunks that a failed write may still change.
    in_doubt: BTreeSet<u32>,
    op: Write,
}

impl Draft {
    fn pending(&self) -> &[(Chunk, Reference)] {
        self.map.as_ref().map_or(&[], |map| &map.pending)
    }

    /// The chunk that bytes of a part must come from.
    fn base_of(part: &Part) -> Option<Chunk> {
        let entry = part.old.as_ref();
        let entry = entry.filter(|entry| part.cached.is_some() && !entry.is_cached())?;
        entry.base.map(|base| base.chunk)
    }
}

/// Inline writes to the objects of one volume.
pub(super) struct InlineWrites {
    objects: Arc<Objects>,
    discards: Arc<LongDiscards>,
    inline: Arc<Inline>,
}

impl InlineWrites {
    pub(super) fn new(
        objects: Arc<Objects>,
        discards: Arc<LongDiscards>,
        inline: Arc<Inline>,
    ) -> InlineWrites {
        InlineWrites { objects, discards, inline }
    }

    fn chunk_pool(&self) -> &ChunkPool {
        self.objects.session().chunk_pool()
    }

    /// Writes to locked objects, each in one operation, all in flight together. `discarded` is the
    /// number of the long discard that the writes belong to; the objects record it.
    pub(super) fn write_all(
        &self,
        jobs: &mut [Job<'_, '_>],
        discarded: Option<Stamp>,
    ) -> Vec<Result<(), Refusal>> {
        let mut results: Vec<Option<Result<(), Refusal>>> = jobs.iter().map(|_| None).collect();
        let (mut gone, mut lacked) = (BTreeSet::new(), BTreeSet::new());
        for _ in 0..TURNS {
            let mut drafts = self.drafts(jobs, &mut results, &mut gone, &mut lacked);
            if drafts.is_empty() && results.iter().all(Option::is_some) {
                break;
            }
            if self.objects.kernel().keeps(Rule::FailedWriteOvertaken) {
                let doubt = |draft: &mut Draft| {
                    draft.in_doubt.clone_from(jobs[draft.job].1.in_doubt());
                };
                drafts.iter_mut().for_each(doubt);
            }
            let mut drafts = self.add(drafts, &mut results);
            drafts
                .iter_mut()
                .for_each(|draft| self.build(draft, discarded.or_else(|| self.discard_for(draft))));
            for draft in &drafts {
                let object = &mut jobs[draft.job].1;
                if draft.map.is_none() && !draft.op.changes.is_empty() {
                    object.expect_bit();
                }
                object.expect_listing(draft.listed);
                object.forget();
            }
            let (mut sent, nothing): (Vec<Draft>, Vec<Draft>) =
                drafts.into_iter().partition(|draft| !draft.op.changes.is_empty());
            let ends = self.send_inline_drafts(&sent);
            for (draft, end) in sent.iter().zip(&ends) {
                match end {
                    Ok(true) => {
                        self.chunk_pool().attempts_are_over(draft.added.iter().copied());
                        let object = &mut jobs[draft.job].1;
                        object.overtake(draft.entries.keys().copied());
                        object.learn(after(draft));
                    }
                    Ok(false) => jobs[draft.job].1.withdraw_listing(draft.listed),
                    Err(Failed { refusal, in_doubt }) => {
                        self.inline.doubt();
                        if *in_doubt {
                            jobs[draft.job].1.doubt(draft.entries.keys().copied());
                        }
                        results[draft.job] = Some(Err(refusal.clone()));
                    }
                }
            }
            let mut ends = ends.into_iter();
            sent.retain(|_| ends.next().is_some_and(|end| matches!(end, Ok(true))));
            for draft in sent.iter().chain(&nothing) {
                results[draft.job] = Some(match &draft.map {
                    None if draft.op.changes.is_empty() => Ok(()),
                    _ => self.objects.join_dirty_list(draft.id.index, jobs[draft.job].1),
                });
            }
            // An object that is not on the dirty list keeps its pending drops: they show that it
            // should be.
            sent.retain(|draft| matches!(results[draft.job], Some(Ok(()))));
            self.finish(&sent);
        }
        results.into_iter().map(|result| result.unwrap_or(Err(Refusal::Mismatch))).collect()
    }

    /// The number of the newest long discard that covers an object that is about to be created.
    fn discard_for(&self, draft: &Draft) -> Option<Stamp> {
        self.discards.newest(draft.id.index).filter(|_| draft.map.is_none())
    }

    /// Reads the current content, and decides the new content of the chunks.
    fn drafts(
        &self,
        jobs: &[Job<'_, '_>],
        results: &mut [Option<Result<(), Refusal>>],
        gone: &mut BTreeSet<(usize, Chunk)>,
        lacked: &mut BTreeSet<usize>,
    ) -> Vec<Draft> {
        let open: Vec<usize> = (0..jobs.len()).filter(|job| results[*job].is_none()).collect();
        let places: Vec<BTreeMap<u32, bool>> =
            open.iter().map(|job| self.places(jobs[*job].2)).collect();
        let read = |(job, places): (&usize, &BTreeMap<u32, bool>)| {
            let partial = places.iter().filter(|(_, whole)| !**whole);
            let data = partial.map(|(offset, _)| {
                ReadPart::Data((*offset).into(), self.objects.chunk_bytes().into())
            });
            Read {
                object: self.objects.id(jobs[*job].0).name(),
                parts: map_parts().into_iter().chain(data).collect(),
            }
        };
        let answers =
            self.objects.kernel().read_all(&open.iter().zip(&places).map(read).collect::<Vec<_>>());
        let (mut drafts, kernel) = (Vec::new(), self.objects.kernel());
        for ((job, places), answer) in open.iter().zip(&places).zip(answers) {
            match self.draft(*job, jobs[*job].0, places, answer) {
                Ok(draft) if !kernel.may_leave_drops(draft.pending().len(), draft.parts.len()) => {
                    // There is room again in the next turn.
                    if let Err(refusal) = self.chunk_pool().finish_drops(draft.pending()) {
                        results[*job] = Some(Err(refusal));
                    }
                }
                // It is read again in the next turn.
                Ok(draft) if draft.map.as_ref().is_some_and(|map| map.copying.is_some()) => {
                    if let Err(refusal) = self.objects.copy_up(draft.id.index) {
                        results[*job] = Some(Err(refusal));
                    }
                }
                Ok(draft) => {
                    match self.objects.is_as_expected(draft.id.index, draft.map.as_ref()) {
                        Ok(true) => drafts.push(draft),
                        // It is read again in the next turn, once.
                        Ok(false) if lacked.insert(*job) => {}
                        Ok(false) => results[*job] = Some(Err(self.objects.lost(draft.id.index))),
                        Err(refusal) => results[*job] = Some(Err(refusal)),
                    }
                }
                Err(refusal) => results[*job] = Some(Err(refusal)),
            }
        }
        self.fill_drafts(drafts, jobs, results, gone)
    }

    /// The chunks that a write touches, and whether it covers them.
    fn places(&self, fills: &[(Range<u32>, Fill<'_>)]) -> BTreeMap<u32, bool> {
        let (chunk, mut places) = (self.objects.chunk_bytes(), BTreeMap::new());
        for (range, _) in fills {
            for offset in (range.start / chunk * chunk..range.end).step_by(chunk as usize) {
                *places.entry(offset).or_default() |=
                    range.start <= offset && offset + chunk <= range.end;
            }
        }
        places
    }

    fn draft(
        &self,
        job: usize,
        index: u64,
        places: &BTreeMap<u32, bool>,
        answer: Result<ReadResult, Refusal>,
    ) -> Result<Draft, Refusal> {
        let id = self.objects.id(index);
        let mut places_in_answer = 2..;
        let mut cached: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
        for (offset, _) in places.iter().filter(|(_, whole)| !**whole) {
            let at = places_in_answer.next().unwrap_or_default();
            cached.insert(
                *offset,
                answer.as_ref().map(|answer| answer.data(at).to_vec()).unwrap_or_default(),
            );
        }
        let map = ChunkMap::from_answer(id, answer)?;
        let part = |offset: &u32| Part {
            offset: *offset,
            old: map.as_ref().and_then(|map| map.entries.get(offset).cloned()),
            cached: cached.remove(offset),
            content: Vec::new(),
        };
        let parts = places.keys().map(part).collect();
        let op = Write { object: id.name(), guards: Vec::new(), changes: Vec::new() };
        let (entries, stamp) = (BTreeMap::new(), self.objects.kernel().stamp());
        Ok(Draft {
            job,
            id,
            map,
            parts,
            stamp,
            entries,
            added: Vec::new(),
            dropped: Vec::new(),
            listed: None,
            in_doubt: BTreeSet::new(),
            op,
        })
    }

    /// Puts together old and new bytes. A chunk that is gone is looked for once more: then it is
    /// damage.
    fn fill_drafts(
        &self,
        mut drafts: Vec<Draft>,
        jobs: &[Job<'_, '_>],
        results: &mut [Option<Result<(), Refusal>>],
        gone: &mut BTreeSet<(usize, Chunk)>,
    ) -> Vec<Draft> {
        let chunks: Vec<Chunk> =
            drafts.iter().flat_map(|draft| &draft.parts).filter_map(Draft::base_of).collect();
        let mut bases = self.chunk_pool().read_chunks(&chunks).into_iter();
        drafts.retain_mut(|draft| {
            let mut whole = true;
            for part in &mut draft.parts {
                let base = Draft::base_of(part).and_then(|chunk| Some((chunk, bases.next()?)));
                let base = match base {
                    Some((chunk, Err(Refusal::Missing))) => {
                        if !gone.insert((draft.job, chunk)) {
                            let missing =
                                corrupt(format_args!("chunk {} is missing", chunk.name()));
                            results[draft.job] = Some(Err(Refusal::Failed(missing)));
                        }
                        whole = false;
                        continue;
                    }
                    Some((_, Err(refusal))) => {
                        results[draft.job] = Some(Err(refusal));
                        whole = false;
                        continue;
                    }
                    Some((_, Ok(bytes))) => Some(bytes),
                    None => None,
                };
                part.content = match (&part.old, &part.cached) {
                    (Some(entry), Some(cached)) => assemble(entry, cached, base.as_deref()),
                    _ => vec![0; self.objects.chunk_bytes() as usize],
                };
                jobs[draft.job].2.iter().for_each(|(range, fill)| overlay(part, range, *fill));
            }
            whole
        });
        drafts
    }

    /// Step (a): adds the references of all new chunks. If one fails, drops those that were added
    /// as far as possible.
    fn add(
        &self,
        mut drafts: Vec<Draft>,
        results: &mut [Option<Result<(), Refusal>>],
    ) -> Vec<Draft> {
        let mut wanted: Vec<(usize, u32, ChunkId, Reference)> = Vec::new();
        for (n, draft) in drafts.iter_mut().enumerate() {
            for part in &draft.parts {
                let none = Entry {
                    length: self.objects.chunk_bytes(),
                    dirty: false,
                    mask: 0,
                    base: None,
                    stamp: Stamp(0),
                    sums: Sums::NONE,
                };
                let old = part.old.clone().unwrap_or(none);
                let mut new = Entry {
                    dirty: false,
                    mask: 0,
                    stamp: draft.stamp,
                    sums: Sums::NONE,
                    ..old.clone()
                };
                let id = self.chunk_pool().chunk_id(&part.content);
                if is_zero(&part.content) {
                    new.base = None;
                } else if old.base.is_none_or(|base| base.chunk.id != id) {
                    wanted.push((
                        n,
                        part.offset,
                        id,
                        Reference { object: draft.id, offset: part.offset, stamp: draft.stamp },
                    ));
                    new.base = Some(Base { chunk: Chunk { id, copy: 0 }, stamp: draft.stamp });
                }
                // A failed write that is still on its way would come after one that changes nothing.
                let overtakes = draft.in_doubt.contains(&part.offset);
                if old.mask == 0 && !old.dirty && new.base == old.base && !overtakes {
                    continue;
                }
                draft
                    .dropped
                    .extend(old.reference(draft.id, part.offset).filter(|_| new.base != old.base));
                draft.entries.insert(part.offset, new);
            }
        }
        let content = |n: usize, offset: u32| {
            drafts[n]
                .parts
                .iter()
                .find(|part| part.offset == offset)
                .map_or(&[][..], |part| &part.content)
        };
        let all: Vec<(ChunkId, &[u8], Reference)> = wanted
            .iter()
            .map(|(n, at, id, reference)| (*id, content(*n, *at), *reference))
            .collect();
        let adds = self.objects.kernel().keeps(Rule::ReferenceBeforeFlip);
        let first = |(id, _, _): &(ChunkId, &[u8], Reference)| Chunk { id: *id, copy: 0 };
        let chunks = match adds {
            true => self.chunk_pool().add_references_at_once(&all),
            false => Ok(all.iter().map(first).collect()),
        };
        match chunks {
            Ok(chunks) => {
                for ((n, offset, _, reference), chunk) in wanted.into_iter().zip(chunks) {
                    let draft = &mut drafts[n];
                    draft.added.push((chunk, reference));
                    draft.entries.entry(offset).and_modify(|entry| {
                        entry.base = Some(Base { chunk, stamp: reference.stamp })
                    });
                }
                drafts
            }
            Err(refusal) => {
                // No entry will ever name these references. Workers find what remains by its
                // attempt, once the volume has another owner.
                let added: Vec<_> = wanted
                    .iter()
                    .map(|(_, _, id, reference)| (Chunk { id: *id, copy: 0 }, *reference))
                    .collect();
                if self.chunk_pool().drop_references(&added).is_ok() {
                    self.chunk_pool().attempts_are_over(added);
                }
                drafts.iter().for_each(|draft| results[draft.job] = Some(Err(refusal.clone())));
                Vec::new()
            }
        }
    }

    /// Step (b): the operation that sets the entries, and leaves the drops of the old chunks.
    fn build(&self, draft: &mut Draft, discarded: Option<Stamp>) {
        let id = draft.id;
        let mut pairs = Vec::new();
        match &draft.map {
            Some(map) => draft.op.guards.push(Guard::Version(map.version)),
            None => draft.op.guards.push(Guard::Absent),
        }
        for part in &draft.parts {
            let Some(new) = draft.entries.get(&part.offset) else { continue };
            if draft.map.is_some() {
                let value =
                    part.old.as_ref().map_or_else(Vec::new, |old| old.encode(id, part.offset));
                draft.op.guards.push(Guard::Omap(key::entry(part.offset), value));
            }
            if part.old.as_ref().is_some_and(|old| old.mask != 0) {
                draft.op.changes.push(Change::Zero(part.offset.into(), new.length.into()));
            }
            pairs.push((key::entry(part.offset), new.encode(id, part.offset)));
        }
        for (chunk, reference) in &draft.dropped {
            pairs.push((
                key::pending(reference.offset, reference.stamp),
                entry::encode_pending(id, reference.offset, chunk),
            ));
        }
        if !draft.dropped.is_empty() && draft.map.as_ref().is_some_and(|map| map.listed.is_none()) {
            draft.listed = Some(draft.stamp);
            pairs.push((key::LISTED.to_vec(), stamp_value(draft.stamp)));
        }
        let noted = discarded.filter(|_| draft.map.is_some() || !pairs.is_empty());
        pairs.extend(noted.map(|stamp| (key::DISCARDED.to_vec(), stamp_value(stamp))));
        if !pairs.is_empty() {
            draft.op.changes.push(Change::SetOmap(pairs));
        }
    }

    /// Sends the drafts. For each, false means that it must be decided again, and that nothing of
    /// it will ever be applied.
    fn send_inline_drafts(&self, drafts: &[Draft]) -> Vec<Result<bool, Failed>> {
        #[cfg(feature = "planted-bugs")]
        self.drop_early(drafts);
        let write = |draft| InlineWrite { session: self.objects.session(), draft, looked: false };
        let batch = drafts.iter().map(|draft| (write(draft), draft.op.clone()));
        let mut ends = Vec::new();
        self.objects.kernel().carry_out_all(batch, |write, outcome| {
            let Draft { id, added, .. } = write.draft;
            ends.push(match outcome {
                Ok(Outcome::GivenUp) => self
                    .chunk_pool()
                    .drop_unused_references(*id, added)
                    .map(|()| false)
                    .map_err(|refusal| Failed { refusal, in_doubt: false }),
                Ok(Outcome::Applied | Outcome::Found) => Ok(true),
                Err(refusal) => {
                    if !write.looked {
                        // The only copy of the operation was refused.
                        let _ = self.chunk_pool().drop_unused_references(*id, added);
                    }
                    Err(Failed { refusal, in_doubt: write.looked })
                }
            });
        });
        ends
    }

    /// Step (c): drops the old references. Workers find by the dirty list those that can't be
    /// dropped now.
    fn finish(&self, drafts: &[Draft]) {
        #[cfg(feature = "planted-bugs")]
        self.add_late(drafts);
        let all: Vec<(Chunk, Reference)> =
            drafts.iter().flat_map(|draft| draft.dropped.iter().copied()).collect();
        let _ = self
            .chunk_pool()
            .drop_references(&all)
            .and_then(|()| self.chunk_pool().forget_drops(&all));
    }
}

/// A step (b) that failed.
struct Failed {
    refusal: Refusal,
    /// A copy of the operation may still be applied.
    in_doubt: bool,
}

/// Step (b) of one object.
struct InlineWrite<'a> {
    session: &'a Session,
    draft: &'a Draft,
    /// A copy may be on its way, or was applied.
    looked: bool,
}

impl Operation<Option<ChunkMap>> for InlineWrite<'_> {
    fn decisions(&self) -> u32 {
        1
    }

    fn look(&mut self) -> Result<Option<ChunkMap>, Refusal> {
        self.looked = true;
        ChunkMap::read(self.session.kernel(), self.draft.id)
    }

    /// The next round decides anew, for all objects together.
    fn decide(&mut self, _: &Option<ChunkMap>) -> Result<Option<Write>, Refusal> {
        Ok(None)
    }

    fn resolve(&self, now: &Option<ChunkMap>) -> Fate {
        let draft = self.draft;
        let ours = |map: &ChunkMap| match draft.entries.first_key_value() {
            Some((offset, _)) => {
                map.entries.get(offset).is_some_and(|entry| entry.stamp == draft.stamp)
            }
            None => draft.op.changes.iter().any(|change| is_noted(change, map.discarded)),
        };
        if now.as_ref().is_some_and(ours) { Fate::Applied } else { Fate::Unchanged }
    }
}

/// True for the change that records a long discard, when the object has that one or a later one.
fn is_noted(change: &Change, discarded: Stamp) -> bool {
    let Change::SetOmap(pairs) = change else { return false };
    pairs.iter().any(|(key, value)| {
        key == key::DISCARDED
            && value
                .as_slice()
                .try_into()
                .is_ok_and(|bytes| u64::from_le_bytes(bytes) <= discarded.0)
    })
}

/// Puts a part of a write over a chunk.
fn overlay(part: &mut Part, range: &Range<u32>, fill: Fill<'_>) {
    let start = range.start.max(part.offset);
    let end = range.end.min(part.offset + part.content.len() as u32);
    if start >= end {
        return;
    }
    let into = &mut part.content[(start - part.offset) as usize..(end - part.offset) as usize];
    match fill {
        Fill::Bytes(bytes) => into
            .copy_from_slice(&bytes[(start - range.start) as usize..(end - range.start) as usize]),
        Fill::Zeroes => into.fill(0),
    }
}

/// The map after the write.
fn after(draft: &Draft) -> Known {
    let mut known = Known::of(draft.map.clone());
    known.exists = true;
    known.listed = known.listed.or(draft.listed);
    known.entries.extend(draft.entries.iter().map(|(offset, entry)| (*offset, entry.clone())));
    for change in &draft.op.changes {
        let Change::SetOmap(pairs) = change else { continue };
        let noted = pairs
            .iter()
            .find(|(key, _)| key == key::DISCARDED)
            .and_then(|(_, value)| value.as_slice().try_into().ok());
        known.discarded = known.discarded.max(Stamp(noted.map_or(0, u64::from_le_bytes)));
    }
    known
}
