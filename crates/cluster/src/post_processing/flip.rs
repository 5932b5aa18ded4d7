//! Chunks of metadata objects become references (the paper's 4.4.1, with the flip before the drop),
//! those of several objects at once.
//!
//! | step | after a crash |
//! |---|---|
//! | (a) a reference is [noted](crate::attempts), then added, with the dirty entry's stamp | a false reference of which the note tells, or the next worker makes the same one |
//! | (b) the flip: compare entries; new entries, punch, *pending drops* of the old bases, in one operation | the pending drop tells what to drop |
//! | (c) the old references are dropped, then their pending drops | it is dropped again, which does nothing |
//!
//! A flip that comes too late drops its reference only where the entry, read afterwards, has no use
//! for it.

use onefold_core::object::{Change, Guard, Read, ReadPart, ReadResult, Refusal, Version, Write};

use super::dedup::Done;
use crate::{
    chunk_map::{ChunkMap, assemble, map_parts},
    format::{
        Chunk, ChunkId, ObjectId, PENDING_MAX, Reference,
        entry::{self, Base, Entry},
        key,
    },
    session::Session,
    settings::PlantedBug,
};

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
    /// The reference that was added for it.
    added: Option<(Chunk, Reference)>,
    /// The one that goes with its old base.
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

/// The contents of a group's entries, `None` in place of one that changed, and for all when there
/// are too many drops.
type Contents = Option<Vec<Option<Vec<u8>>>>;

impl Session {
    /// Steps (a) to (c) for groups of different objects, each step in flight for all of them
    /// together; what became of each.
    pub(super) fn flip_groups(&self, groups: &[Group]) -> Vec<Result<Done, Refusal>> {
        let mut drafts: Vec<Result<Draft, Refusal>> = groups
            .iter()
            .zip(self.contents(groups))
            .map(|(group, contents)| contents.map(|contents| self.draft(group, contents)))
            .collect();
        if self.planted(PlantedBug::DropBeforeFlip) {
            each(&mut drafts, |draft| {
                draft.wanted.iter().try_for_each(|wanted| {
                    self.do_drops(draft.flips[wanted.flip].dropped.as_slice())
                })
            });
        }
        if self.planted(PlantedBug::FlipBeforeReference) {
            each(&mut drafts, |draft| {
                draft.refer(
                    &draft
                        .wanted
                        .iter()
                        .map(|wanted| Chunk { id: wanted.id, copy: 0 })
                        .collect::<Vec<_>>(),
                );
                self.resolve_flip(draft, self.write_one(&self.flip_op(draft)))?;
                self.add_references(&draft.wanted.iter().map(Wanted::op).collect::<Vec<_>>())
                    .map(|_| ())
            });
        } else {
            self.refer_all(&mut drafts);
        }
        let mut open: Vec<&mut Result<Draft, Refusal>> = drafts
            .iter_mut()
            .filter(|draft| draft.as_ref().is_ok_and(|draft| !draft.flips.is_empty()))
            .collect();
        let ops: Vec<Write> = open
            .iter()
            .flat_map(|draft| draft.as_ref().ok())
            .map(|draft| self.flip_op(draft))
            .collect();
        let mut drops = Vec::new();
        for (result, first) in open.iter_mut().zip(self.write_all(&ops)) {
            let mut dropped = Vec::new();
            each(std::slice::from_mut(*result), |draft| {
                if self.resolve_flip(draft, first.clone())? {
                    draft.done.flipped += draft.flips.len() as u64;
                    self.attempts_are_over(draft.flips.iter().filter_map(|flip| flip.added));
                    dropped.extend(draft.flips.iter().filter_map(|flip| flip.dropped));
                    return Ok(());
                }
                draft.done.again = true;
                self.counts.flips_failed.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                let added: Vec<_> = draft.flips.iter().filter_map(|flip| flip.added).collect();
                self.drop_unused_references(draft.object, &added)
            });
            drops.push(dropped);
        }
        for (result, finished) in open.into_iter().zip(self.finish_each(&drops)) {
            each(std::slice::from_mut(result), |draft| {
                draft.done.operations += finished.clone()?;
                Ok(())
            });
        }
        drafts.into_iter().map(|draft| draft.map(|draft| draft.done)).collect()
    }

    /// What the entries become, and which references that takes.
    fn draft(&self, group: &Group, contents: Contents) -> Draft {
        let object = group.object;
        let mut draft =
            Draft { object, flips: Vec::new(), wanted: Vec::new(), done: Done::default() };
        let Some(contents) = contents else {
            draft.done.again = true;
            return draft;
        };
        draft.done.operations += 1;
        let stamp = self.stamp();
        for ((offset, old), content) in group.entries.iter().zip(contents) {
            let Some(content) = content else {
                draft.done.again = true;
                continue;
            };
            let clean = Entry { dirty: false, mask: 0, stamp, ..*old };
            let dropped = old.reference(object, *offset);
            let id = self.chunk_id(&content);
            let mut flip = Flip { offset: *offset, old: *old, new: clean, added: None, dropped };
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
        let mut all = self.add_references(&ops).map(Vec::into_iter);
        each(drafts, |draft| {
            let chunks: Vec<Chunk> = match &mut all {
                Ok(all) => all.take(draft.wanted.len()).collect(),
                Err(_) => {
                    self.add_references(&draft.wanted.iter().map(Wanted::op).collect::<Vec<_>>())?
                }
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
        let answers = self.read_all(&groups.iter().map(read).collect::<Vec<_>>());
        let seen: Vec<_> =
            groups.iter().zip(answers).map(|(group, answer)| seen(group, answer)).collect();
        let gaps: Vec<Chunk> = groups
            .iter()
            .zip(&seen)
            .filter(|(_, seen)| matches!(seen, Ok(Some(_))))
            .flat_map(|(group, _)| group.entries.iter().filter_map(gap))
            .collect();
        let mut bases = self.read_chunks(&gaps).into_iter();
        let content =
            |(group, seen): (&Group, Result<Option<(ChunkMap, Vec<Vec<u8>>)>, Refusal>)| {
                let Some((map, data)) = seen? else { return Ok(None) };
                // All of its bases, also when one of them can't be read: those that follow are others'.
                let bases: Vec<_> = group
                    .entries
                    .iter()
                    .map(|entry| gap(entry).and_then(|_| bases.next()))
                    .collect();
                let mut contents = Vec::new();
                for (((offset, entry), data), base) in group.entries.iter().zip(data).zip(bases) {
                    let base = match base {
                        // It changed meanwhile, or the next read of a client will say that it is
                        // damaged.
                        Some(Err(Refusal::Missing | Refusal::Failed(_))) => {
                            contents.push(None);
                            continue;
                        }
                        Some(base) => Some(base?),
                        None => None,
                    };
                    let same = map.entries.get(offset) == Some(entry);
                    contents.push(same.then(|| assemble(entry, &data, base.as_deref())));
                }
                Ok(Some(contents))
            };
        groups.iter().zip(seen).map(content).collect()
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
            let pending = flip.dropped.filter(|_| !self.planted(PlantedBug::PendingForgotten));
            if let Some((chunk, reference)) = pending {
                pairs.push((
                    key::pending(flip.offset, reference.stamp),
                    entry::encode_pending(object, flip.offset, &chunk),
                ));
            }
        }
        if !self.planted(PlantedBug::PunchOutsideFlip) {
            op.changes = punches(&draft.flips);
        }
        op.changes.push(Change::SetOmap(pairs));
        op
    }

    /// Learns what became of a flip that was sent once; false when an entry is another one.
    fn resolve_flip(
        &self,
        draft: &Draft,
        first: Result<Version, Refusal>,
    ) -> Result<bool, Refusal> {
        let Draft { object, flips, .. } = draft;
        let mut first = Some(first);
        for _ in 0..self.settings.tries.max(1) {
            match first.take().unwrap_or_else(|| self.write_one(&self.flip_op(draft))) {
                Ok(_) => {
                    if self.planted(PlantedBug::PunchOutsideFlip) {
                        self.until_answered(&Write {
                            object: object.name(),
                            guards: vec![Guard::Exists],
                            changes: punches(flips),
                        })?;
                    }
                    return Ok(true);
                }
                Err(Refusal::Mismatch | Refusal::Missing | Refusal::Unknown) => {}
                Err(refusal) => return Err(refusal),
            }
            // Our stamp says that it was applied; the old entries that it may be sent again.
            let Some(map) = self.read_map(*object)? else { return Ok(false) };
            let now = |flip: &Flip| map.entries.get(&flip.offset).copied();
            if flips.iter().any(|flip| now(flip).is_some_and(|entry| entry.stamp == flip.new.stamp))
            {
                return Ok(true);
            }
            if flips.iter().any(|flip| now(flip) != Some(flip.old)) {
                return Ok(false);
            }
        }
        Err(Refusal::Unknown)
    }

    /// True for a reference that nobody has a use for, nor ever will: its entry, read after it,
    /// does not name it, and neither that nor the re-cut under way has its very stamp.
    pub(crate) fn is_stale(
        &self,
        map: Option<&ChunkMap>,
        chunk: &Chunk,
        reference: &Reference,
    ) -> bool {
        let Some(map) = map else { return true };
        let recut = map.recut.as_ref().is_some_and(|recut| {
            recut.stamp == reference.stamp && recut.range.contains(&reference.offset)
        });
        if recut && !self.planted(PlantedBug::RecutJudged) {
            return false;
        }
        let Some(entry) = map.entries.get(&reference.offset) else { return true };
        let named =
            entry.base.is_some_and(|base| base.chunk == *chunk && base.stamp == reference.stamp);
        let coming = entry.dirty && entry.stamp == reference.stamp;
        !named && !coming
    }

    /// After a flip that came too late: drops the references that were added and that no entry has
    /// a use for.
    pub(crate) fn drop_unused_references(
        &self,
        object: ObjectId,
        added: &[(Chunk, Reference)],
    ) -> Result<(), Refusal> {
        if added.is_empty() {
            return Ok(());
        }
        let map = self.read_map(object)?;
        for (chunk, reference) in added {
            if self.planted(PlantedBug::LosersDrop) || self.is_stale(map.as_ref(), chunk, reference)
            {
                self.do_drops(&[(*chunk, *reference)])?;
                self.attempts_are_over([(*chunk, *reference)]);
            }
        }
        Ok(())
    }
}

impl Draft {
    /// Notes the chunks to which references were added.
    fn refer(&mut self, chunks: &[Chunk]) {
        for (wanted, chunk) in self.wanted.iter().zip(chunks) {
            self.done.operations += 1 + u64::from(wanted.id.length) / (32 << 10);
            let flip = &mut self.flips[wanted.flip];
            flip.new.base = Some(Base { chunk: *chunk, stamp: wanted.reference.stamp });
            flip.added = Some((*chunk, wanted.reference));
        }
    }
}

/// Goes on with those that did not fail.
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

/// The chunk that an entry takes some of its blocks from.
fn gap((_, entry): &(u32, Entry)) -> Option<Chunk> {
    if entry.is_cached() { None } else { entry.base.map(|base| base.chunk) }
}

/// ChunkMap and data of a group; `None` when the object is gone, or has too many drops.
fn seen(
    group: &Group,
    answer: Result<ReadResult, Refusal>,
) -> Result<Option<(ChunkMap, Vec<Vec<u8>>)>, Refusal> {
    let answer = match answer {
        Err(Refusal::Missing) => return Ok(None),
        other => other?,
    };
    let data = (0..group.entries.len()).map(|n| answer.data(n + 2).to_vec()).collect();
    let Some(map) = Session::parse_map(group.object, Ok(answer))? else { return Ok(None) };
    Ok((map.pending.len() + group.entries.len() <= PENDING_MAX).then_some((map, data)))
}

/// Makes room where the chunks stood; what lies side by side goes at once.
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
