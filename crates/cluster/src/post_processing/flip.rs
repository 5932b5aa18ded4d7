//! Chunks of metadata objects become references (the paper's 4.4.1, with the flip before the drop),
//! those of several objects at once.
//!
//! | step | after a crash |
//! |---|---|
//! | (a) a reference is [noted](crate::attempts), then added, with the dirty entry's stamp | a false reference of which the note tells, or the next worker makes the same one |
//! | (b) the flip: compare entries; new entries, punch, *pending drops* of the old bases, in one operation | the pending drop tells what to drop |
//! | (c) the old references are dropped, then their pending drops | it is dropped again, which does nothing |
//!
//! A flip that is refused because an entry changed drops its reference only if the entry, read
//! afterwards, does not use it.

#[cfg(feature = "planted-bugs")]
mod broken;

use std::{collections::BTreeMap, sync::atomic::Ordering::Relaxed};

use onefold_core::object::{Change, Guard, Read, ReadPart, ReadResult, Refusal, Write};

use crate::{
    chunk_map::{ChunkMap, assemble, map_parts},
    chunk_pool::ChunkPool,
    format::{
        Chunk, ChunkId, ObjectId, Reference, corrupt,
        entry::{self, Base, Entry, Sums},
        key,
    },
    kernel::{Fate, Kernel, Operation, Outcome},
    rules::Rule,
    session::Session,
};

/// The result of work on an object.
#[derive(Clone, Default)]
pub(super) struct Done {
    pub(super) flipped: u64,
    pub(super) operations: u64,
    /// True while the object stays on the list.
    pub(super) again: bool,
    /// True when nothing of the object can be done but what needs unreadable chunks.
    pub(super) left: bool,
    pub(super) unread: Unread,
}

impl Done {
    pub(super) fn add(&mut self, more: Done) {
        self.flipped += more.flipped;
        self.operations += more.operations;
        self.again |= more.again;
        self.left |= more.left;
        self.unread.entries.extend(more.unread.entries);
        self.unread.why = self.unread.why.take().or(more.unread.why);
    }
}

/// Entries whose chunks could not be read. An entry that is still the same afterwards had its
/// reference all the time: then its chunk is damaged, and was not removed after a flip.
#[derive(Clone, Default)]
pub(super) struct Unread {
    pub(super) entries: BTreeMap<u32, Entry>,
    /// Why the first of them could not be read.
    pub(super) why: Option<Refusal>,
}

impl Unread {
    pub(super) fn add(&mut self, offset: u32, entry: Entry, why: Refusal) {
        self.entries.insert(offset, entry);
        self.why.get_or_insert(why);
    }
}

/// Deduplication by one session.
pub(crate) struct Deduplication<'s> {
    pub(super) kernel: &'s Kernel,
    pub(super) chunk_pool: &'s ChunkPool,
}

impl<'s> Deduplication<'s> {
    pub(crate) fn of(session: &'s Session) -> Deduplication<'s> {
        Deduplication { kernel: session.kernel(), chunk_pool: session.chunk_pool() }
    }
}

/// Entries of one flip.
pub(super) const FLIP_ENTRIES: usize = 64;

/// Dirty entries of an object, as many as one flip has at most.
pub(super) struct Group {
    pub(super) object: ObjectId,
    pub(super) entries: Vec<(u32, Entry)>,
}

/// An entry on its way.
struct Flip {
    offset: u32,
    old: Entry,
    new: Entry,
    /// The reference that was added for the new chunk.
    added: Option<(Chunk, Reference)>,
    /// The reference of the old base.
    dropped: Option<(Chunk, Reference)>,
}

/// A reference that is to be added: for which flip, and to which content.
struct Wanted {
    flip: usize,
    id: ChunkId,
    content: Vec<u8>,
    reference: Reference,
}

impl Wanted {
    fn op(&self) -> (ChunkId, &[u8], Reference) {
        (self.id, &self.content, self.reference)
    }
}

/// A group on its way.
struct Draft {
    object: ObjectId,
    flips: Vec<Flip>,
    wanted: Vec<Wanted>,
    done: Done,
}

/// The bytes of an entry.
enum Content {
    Bytes(Vec<u8>),
    /// The entry changed meanwhile.
    Changed,
    /// Its base can't be read.
    Unread(Refusal),
}

/// The contents of a group's entries; `None` when there are too many drops.
type Contents = Option<Vec<Content>>;

impl Deduplication<'_> {
    /// Steps (a) to (c) for groups of different objects, each step in flight for all of them
    /// together; returns the result of each.
    pub(super) fn flip_groups(&self, groups: &[Group]) -> Vec<Result<Done, Refusal>> {
        let mut drafts: Vec<Result<Draft, Refusal>> = groups
            .iter()
            .zip(self.contents(groups))
            .map(|(group, contents)| contents.map(|contents| self.draft(group, contents)))
            .collect();
        #[cfg(feature = "planted-bugs")]
        self.flip_out_of_order(&mut drafts);
        if self.kernel.keeps(Rule::ReferenceBeforeFlip) {
            self.refer_all(&mut drafts);
        }
        let batch: Vec<(GroupFlip<'_>, Write)> = open(&mut drafts)
            .filter_map(|draft| draft.as_mut().ok())
            .map(|draft| (self.flip_op(draft), draft))
            .map(|(op, draft)| (GroupFlip { kernel: self.kernel, draft }, op))
            .collect();
        let (mut drops, mut ends) = (Vec::new(), Vec::new());
        self.kernel.carry_out_all(batch, |flip, outcome| {
            let ended = outcome.and_then(|outcome| self.flip_ended(flip.draft, outcome));
            drops.push(ended.as_ref().cloned().unwrap_or_default());
            ends.push(ended);
        });
        let finished = self.chunk_pool.finish_each(&drops);
        for ((result, ended), finished) in open(&mut drafts).zip(ends).zip(finished) {
            match (result.as_mut(), ended.and(finished)) {
                (Ok(draft), Ok(operations)) => draft.done.operations += operations,
                (draft, Err(refusal)) => {
                    if let Ok(draft) = draft {
                        let added = draft.flips.iter().filter_map(|flip| flip.added);
                        self.chunk_pool.attempts_are_open(added);
                    }
                    *result = Err(refusal);
                }
                (Err(_), Ok(_)) => {}
            }
        }
        drafts.into_iter().map(|draft| draft.map(|draft| draft.done)).collect()
    }

    /// Goes on after step (b); the references that are to be dropped.
    fn flip_ended(
        &self,
        draft: &mut Draft,
        outcome: Outcome,
    ) -> Result<Vec<(Chunk, Reference)>, Refusal> {
        if outcome == Outcome::GivenUp {
            draft.done.again = true;
            self.kernel.counts().flips_failed.fetch_add(1, Relaxed);
            let added: Vec<_> = draft.flips.iter().filter_map(|flip| flip.added).collect();
            self.chunk_pool.drop_unused_references(draft.object, &added)?;
            return Ok(Vec::new());
        }
        #[cfg(feature = "planted-bugs")]
        if outcome == Outcome::Applied && !self.kernel.keeps(Rule::PunchWithFlip) {
            self.punch_apart(draft)?;
        }
        draft.done.flipped += draft.flips.len() as u64;
        self.chunk_pool.attempts_are_over(draft.flips.iter().filter_map(|flip| flip.added));
        Ok(draft.flips.iter().filter_map(|flip| flip.dropped).collect())
    }

    /// Decides the new entries, and which references they need.
    fn draft(&self, group: &Group, contents: Contents) -> Draft {
        let object = group.object;
        let mut draft =
            Draft { object, flips: Vec::new(), wanted: Vec::new(), done: Done::default() };
        let Some(contents) = contents else {
            draft.done.again = true;
            return draft;
        };
        draft.done.operations += 1;
        let stamp = self.kernel.stamp();
        for ((offset, old), content) in group.entries.iter().zip(contents) {
            let content = match content {
                Content::Bytes(content) => content,
                Content::Changed => {
                    draft.done.again = true;
                    continue;
                }
                Content::Unread(why) => {
                    draft.done.again = true;
                    draft.done.unread.add(*offset, old.clone(), why);
                    continue;
                }
            };
            let clean = Entry { dirty: false, mask: 0, stamp, sums: Sums::NONE, ..old.clone() };
            let dropped = old.reference(object, *offset);
            let id = self.chunk_pool.chunk_id(&content);
            let mut flip =
                Flip { offset: *offset, old: old.clone(), new: clean, added: None, dropped };
            if onefold_core::block::is_zero(&content) {
                flip.new.base = None;
            } else if old.base.is_some_and(|base| base.chunk.id == id) {
                flip.dropped = None;
            } else {
                let reference = Reference { object, offset: *offset, stamp: old.stamp };
                draft.wanted.push(Wanted { flip: draft.flips.len(), id, content, reference });
            }
            draft.flips.push(flip);
        }
        draft
    }

    /// Step (a), for all together; where that fails, for each.
    fn refer_all(&self, drafts: &mut [Result<Draft, Refusal>]) {
        let ops: Vec<_> =
            drafts.iter().flatten().flat_map(|draft| draft.wanted.iter().map(Wanted::op)).collect();
        let mut all = self.chunk_pool.add_references(&ops).map(Vec::into_iter);
        each(drafts, |draft| {
            let chunks: Vec<Chunk> = match &mut all {
                Ok(all) => all.take(draft.wanted.len()).collect(),
                Err(_) => self
                    .chunk_pool
                    .add_references(&draft.wanted.iter().map(Wanted::op).collect::<Vec<_>>())?,
            };
            draft.refer(&chunks);
            Ok(())
        });
    }

    /// The bytes of the entries, read together with them.
    fn contents(&self, groups: &[Group]) -> Vec<Result<Contents, Refusal>> {
        let read = |group: &Group| {
            let ranges = group
                .entries
                .iter()
                .map(|(offset, entry)| ReadPart::Data((*offset).into(), entry.length.into()));
            Read {
                object: group.object.name(),
                parts: map_parts().into_iter().chain(ranges).collect(),
            }
        };
        let answers = self.kernel.read_all(&groups.iter().map(read).collect::<Vec<_>>());
        let seen: Vec<_> =
            groups.iter().zip(answers).map(|(group, answer)| self.seen(group, answer)).collect();
        let gaps: Vec<Chunk> = groups
            .iter()
            .zip(&seen)
            .filter(|(_, seen)| matches!(seen, Ok(Some(_))))
            .flat_map(|(group, _)| group.entries.iter().filter_map(gap))
            .collect();
        let mut bases = self.chunk_pool.read_chunks(&gaps).into_iter();
        let content =
            |(group, seen): (&Group, Result<Option<(ChunkMap, Vec<Vec<u8>>)>, Refusal>)| {
                let Some((map, data)) = seen? else { return Ok(None) };
                // Advances over all bases of the group, even if one can't be read, since the next
                // ones belong to other groups.
                let bases: Vec<_> = group
                    .entries
                    .iter()
                    .map(|entry| gap(entry).and_then(|_| bases.next()))
                    .collect();
                let mut contents = Vec::new();
                for (((offset, entry), data), base) in group.entries.iter().zip(data).zip(bases) {
                    let same = map.entries.get(offset) == Some(entry);
                    contents.push(match base {
                        _ if !same => Content::Changed,
                        None => Content::Bytes(assemble(entry, &data, None)),
                        Some(Ok(base)) => Content::Bytes(assemble(entry, &data, Some(&base))),
                        // The entry changes meanwhile, or the chunk is damaged.
                        Some(Err(refusal)) => Content::Unread(unreadable(entry, refusal)?),
                    });
                }
                Ok(Some(contents))
            };
        groups.iter().zip(seen).map(content).collect()
    }

    /// ChunkMap and data of a group; `None` when the object is gone, or has too many drops.
    fn seen(
        &self,
        group: &Group,
        answer: Result<ReadResult, Refusal>,
    ) -> Result<Option<(ChunkMap, Vec<Vec<u8>>)>, Refusal> {
        let answer = match answer {
            Err(Refusal::Missing) => return Ok(None),
            other => other?,
        };
        let data = (0..group.entries.len()).map(|n| answer.data(n + 2).to_vec()).collect();
        let Some(map) = ChunkMap::from_answer(group.object, Ok(answer))? else { return Ok(None) };
        let may = self.kernel.may_leave_drops(map.pending.len(), group.entries.len());
        Ok(may.then_some((map, data)))
    }

    /// The operation of step (b).
    fn flip_op(&self, draft: &Draft) -> Write {
        let object = draft.object;
        let mut op = Write { object: object.name(), guards: Vec::new(), changes: Vec::new() };
        let mut pairs = Vec::new();
        for flip in &draft.flips {
            op.guards
                .push(Guard::Omap(key::entry(flip.offset), flip.old.encode(object, flip.offset)));
            pairs.push((key::entry(flip.offset), flip.new.encode(object, flip.offset)));
            let pending = flip.dropped.filter(|_| self.kernel.keeps(Rule::PendingDropInFlip));
            if let Some((chunk, reference)) = pending {
                pairs.push((
                    key::pending(flip.offset, reference.stamp),
                    entry::encode_pending(object, flip.offset, &chunk),
                ));
            }
        }
        if self.kernel.keeps(Rule::PunchWithFlip) {
            op.changes = punches(&draft.flips);
        }
        op.changes.push(Change::SetOmap(pairs));
        op
    }
}

/// Step (b) of one group.
struct GroupFlip<'a> {
    kernel: &'a Kernel,
    draft: &'a mut Draft,
}

impl Operation<Option<ChunkMap>> for GroupFlip<'_> {
    fn decisions(&self) -> u32 {
        1
    }

    fn look(&mut self) -> Result<Option<ChunkMap>, Refusal> {
        ChunkMap::read(self.kernel, self.draft.object)
    }

    /// An entry changed first: a later step begins anew.
    fn decide(&mut self, _: &Option<ChunkMap>) -> Result<Option<Write>, Refusal> {
        Ok(None)
    }

    /// Our stamp shows that the flip was applied; the old entries show that it may be sent again.
    fn resolve(&self, now: &Option<ChunkMap>) -> Fate {
        let Some(map) = now else { return Fate::Overtaken };
        let now = |flip: &Flip| map.entries.get(&flip.offset).cloned();
        let applied = |flip: &Flip| now(flip).is_some_and(|entry| entry.stamp == flip.new.stamp);
        if self.draft.flips.iter().any(applied) {
            Fate::Applied
        } else if self.draft.flips.iter().any(|flip| now(flip).as_ref() != Some(&flip.old)) {
            Fate::Overtaken
        } else {
            Fate::Unchanged
        }
    }
}

/// The drafts that have something to flip.
fn open(
    drafts: &mut [Result<Draft, Refusal>],
) -> impl Iterator<Item = &mut Result<Draft, Refusal>> {
    drafts.iter_mut().filter(|draft| draft.as_ref().is_ok_and(|draft| !draft.flips.is_empty()))
}

impl Draft {
    /// Records the chunks to which references were added.
    fn refer(&mut self, chunks: &[Chunk]) {
        for (wanted, chunk) in self.wanted.iter().zip(chunks) {
            self.done.operations += 1 + u64::from(wanted.id.length) / (32 << 10);
            let flip = &mut self.flips[wanted.flip];
            flip.new.base = Some(Base { chunk: *chunk, stamp: wanted.reference.stamp });
            flip.added = Some((*chunk, wanted.reference));
        }
    }
}

/// Continues with the drafts that did not fail.
fn each(
    drafts: &mut [Result<Draft, Refusal>],
    mut go: impl FnMut(&mut Draft) -> Result<(), Refusal>,
) {
    for result in drafts {
        if let Ok(draft) = result
            && let Err(refusal) = go(draft)
        {
            *result = Err(refusal);
        }
    }
}

/// The chunk from which an entry needs some of its blocks.
fn gap((_, entry): &(u32, Entry)) -> Option<Chunk> {
    if entry.is_cached() { None } else { entry.base.map(|base| base.chunk) }
}

/// Why the base of an entry can't be read, when the chunk is lost or damaged; other refusals are
/// errors.
pub(super) fn unreadable(entry: &Entry, refusal: Refusal) -> Result<Refusal, Refusal> {
    match (refusal, entry.base) {
        (Refusal::Missing, Some(base)) => {
            let name = base.chunk.name();
            Ok(Refusal::Failed(corrupt(format_args!("chunk {name} is missing"))))
        }
        (refusal @ Refusal::Failed(_), _) => Ok(refusal),
        (refusal, _) => Err(refusal),
    }
}

/// Punches the ranges of the chunks in the object; adjacent ranges are punched together.
fn punches(flips: &[Flip]) -> Vec<Change> {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for flip in flips {
        let (at, bytes) = (u64::from(flip.offset), u64::from(flip.old.length));
        match ranges.last_mut() {
            Some((from, length)) if *from + *length == at => *length += bytes,
            _ => ranges.push((at, bytes)),
        }
    }
    ranges.into_iter().map(|(at, bytes)| Change::Zero(at, bytes)).collect()
}
