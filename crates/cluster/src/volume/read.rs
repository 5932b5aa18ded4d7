//! Foreground reads: entries and data of an object in one operation, the rest from chunks. Of reads
//! that come together all objects are asked for at once, and then all chunks.
//!
//! The owner remembers maps: a chunk that is not cached, as it remembers, is read at once, since a
//! name is its content. When the chunk is gone the entry is read again; an entry that still names
//! it is damage.

#[cfg(feature = "planted-bugs")]
mod broken;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use onefold_core::{
    ExtentKind, Result,
    object::{Read, ReadPart, ReadResult, Refusal},
};

use super::{
    long_discards::LongDiscards,
    objects::{Known, Objects},
    promotion::Promotion,
};
use crate::{
    chunk_map::{ChunkMap, assemble, covering, map_parts},
    format::{BLOCK, Chunk, ObjectId, corrupt, entry::Entry},
    layers::below::{Below, missing},
};

/// Times that an entry is read again because its chunk was gone.
const TURNS: u32 = 20;

/// A chunk of an object that is read: its offset, its entry, and the requested blocks that are in
/// the object. Other blocks are zeroes.
struct Part {
    offset: u32,
    entry: Entry,
    cached: Vec<u8>,
    /// It stands in a layer below.
    inherited: bool,
}

/// A range of one object that is read.
struct Job<'a> {
    /// The index of the read that this is part of.
    read: usize,
    index: u64,
    at: u32,
    into: &'a mut [u8],
    /// The chunk that was missing in the last round.
    gone: Option<(u32, Chunk)>,
    /// The object, perhaps of a layer, that was missing in the last round.
    lost: Option<ObjectId>,
    over: bool,
}

/// What is known of a range after a look at its object.
enum Look {
    /// Its parts; `None` when it is all zeroes.
    Parts(Option<Vec<Part>>),
    /// The volume has no object of its own there.
    Inherited,
    /// This object should be there and is not, or not any more where it is one of a layer: everything is looked at
    /// again.
    Again(ObjectId),
}

/// The part of a range that the owner knows without asking the store.
enum Recall {
    /// Everything needed; `None` when the range is all zeroes.
    Known(Option<Vec<Part>>),
    /// The bytes of the object that must be read, and the revision of the owner's memory at that
    /// time.
    Ask(u32, u32, u64),
    /// The volume has no object of its own there, and a layer below has.
    Inherited,
}

/// Reads of one volume.
pub(super) struct Reads {
    objects: Arc<Objects>,
    discards: Arc<LongDiscards>,
    promotion: Arc<Promotion>,
}

impl Reads {
    pub(super) fn new(
        objects: Arc<Objects>,
        discards: Arc<LongDiscards>,
        promotion: Arc<Promotion>,
    ) -> Reads {
        Reads { objects, discards, promotion }
    }

    /// Reads several ranges of the volume, in flight together. `results` has one for each. Ranges
    /// whose result is an error are not read. No write to a range may wait.
    pub(super) fn read_together(&self, reads: &mut [(u64, &mut [u8])], results: &mut [Result<()>]) {
        let mut jobs = self.jobs(reads, results);
        for _ in 0..TURNS {
            let mut open: Vec<&mut Job<'_>> = jobs.iter_mut().filter(|job| !job.over).collect();
            if open.is_empty() {
                return;
            }
            for (read, index, refusal) in self.read_round(&mut open) {
                results[read] = Err(self.objects.failed(index, refusal));
            }
        }
        for job in jobs.iter().filter(|job| !job.over) {
            results[job.read] = Err(self.objects.failed(job.index, Refusal::Mismatch));
        }
    }

    /// The parts of ranges that fall on each object, filled with zeroes.
    fn jobs<'a>(&self, reads: &'a mut [(u64, &mut [u8])], results: &[Result<()>]) -> Vec<Job<'a>> {
        let object_bytes = self.objects.bytes();
        let mut jobs = Vec::new();
        for (read, (offset, into)) in
            reads.iter_mut().enumerate().filter(|(read, _)| results[*read].is_ok())
        {
            let (mut at, mut rest) = (*offset, &mut **into);
            while !rest.is_empty() {
                let (index, within) = (at / object_bytes, at % object_bytes);
                let bytes = (object_bytes - within).min(rest.len() as u64) as usize;
                let (part, behind) = std::mem::take(&mut rest).split_at_mut(bytes);
                part.fill(0);
                jobs.push(Job {
                    read,
                    index,
                    at: within as u32,
                    into: part,
                    gone: None,
                    lost: None,
                    over: false,
                });
                (at, rest) = (at + bytes as u64, behind);
            }
        }
        jobs
    }

    /// Reads all objects, then all chunks; returns the reads that failed. A missing chunk is looked
    /// up again in the next round.
    fn read_round(&self, jobs: &mut [&mut Job<'_>]) -> Vec<(usize, u64, Refusal)> {
        let looks = self.look_all(jobs);
        let needed = |part: &Part| {
            part.entry.base.filter(|_| !part.entry.is_cached()).map(|base| base.chunk)
        };
        let chunks: BTreeSet<Chunk> =
            looks.iter().filter_map(parts_of).flatten().filter_map(needed).collect();
        let chunks: Vec<Chunk> = chunks.into_iter().collect();
        let contents: BTreeMap<Chunk, Result<Vec<u8>, Refusal>> = chunks
            .iter()
            .copied()
            .zip(self.objects.session().chunk_pool().read_chunks(&chunks))
            .collect();
        let mut failed = Vec::new();
        for (job, look) in jobs.iter_mut().zip(looks) {
            let parts = match look {
                Ok(Look::Parts(parts)) => parts.unwrap_or_default(),
                // What was known of it was read again meanwhile, and it should still be there.
                Ok(Look::Again(object)) if job.lost == Some(object) => {
                    let own = self.objects.id(job.index) == object;
                    let lost = if own { self.objects.lost(job.index) } else { missing(object) };
                    failed.push((job.read, job.index, lost));
                    job.over = true;
                    continue;
                }
                Ok(Look::Again(object)) => {
                    (job.gone, job.lost) = (None, Some(object));
                    continue;
                }
                Ok(Look::Inherited) => continue,
                Err(refusal) => {
                    failed.push((job.read, job.index, refusal));
                    job.over = true;
                    continue;
                }
            };
            match self.put_together(job, &parts, |part| {
                needed(part).map(|chunk| (chunk, &contents[&chunk]))
            }) {
                Ok(()) => job.over = job.gone.is_none(),
                Err(refusal) => {
                    failed.push((job.read, job.index, refusal));
                    job.over = true;
                }
            }
        }
        failed
    }

    fn put_together<'c>(
        &self,
        job: &mut Job<'_>,
        parts: &[Part],
        base: impl Fn(&Part) -> Option<(Chunk, &'c Result<Vec<u8>, Refusal>)>,
    ) -> Result<(), Refusal> {
        let before = job.gone.take();
        let mut bases = Vec::with_capacity(parts.len());
        for part in parts {
            match base(part) {
                Some((chunk, Err(Refusal::Missing))) if before == Some((part.offset, chunk)) => {
                    return Err(Refusal::Failed(corrupt(format_args!(
                        "chunk {} is missing",
                        chunk.name()
                    ))));
                }
                Some((chunk, Err(Refusal::Missing))) => {
                    job.gone = Some((part.offset, chunk));
                    return Ok(());
                }
                Some((_, Err(refusal))) => return Err(refusal.clone()),
                Some((_, Ok(content))) => bases.push(Some(content)),
                None => bases.push(None),
            }
        }
        for (part, base) in parts.iter().zip(&bases) {
            copy(
                &assemble(&part.entry, &part.cached, base.map(Vec::as_slice)),
                part.offset,
                job.into,
                job.at,
            );
        }
        // Only what is the volume's own can be kept in its object.
        if parts.iter().all(|part| !part.inherited) {
            self.promotion.warm(
                job.index,
                &parts.iter().map(|part| (part.offset, part.entry.clone())).collect::<Vec<_>>(),
                &bases,
            );
        }
        Ok(())
    }

    /// The chunks of ranges and the blocks that the objects hold of them, each object at one
    /// moment; `None` when the range is all zeroes.
    fn look_all(&self, jobs: &[&mut Job<'_>]) -> Vec<Result<Look, Refusal>> {
        // The layers of before the look: what one of them handed down meanwhile is missing there, and is
        // looked for again. Newer ones would not have it, and it would seem to be nowhere.
        let below = self.objects.below();
        let recall = |job: &&mut Job<'_>| {
            self.recall(&below, job.index, job.at, job.into.len() as u32, job.gone.is_some())
        };
        let recalls: Vec<Recall> = jobs.iter().map(recall).collect();
        let ask = |(job, recall): (&&mut Job<'_>, &Recall)| match recall {
            Recall::Known(_) | Recall::Inherited => None,
            Recall::Ask(start, end, _) => {
                let data = ReadPart::Data((*start).into(), (end - start).into());
                Some(Read {
                    object: self.objects.id(job.index).name(),
                    parts: [map_parts(), vec![data]].concat(),
                })
            }
        };
        let asked: Vec<Read> = jobs.iter().zip(&recalls).filter_map(ask).collect();
        let mut answers = self.read_objects(&asked).into_iter();
        let look = |(job, recall): (&&mut Job<'_>, Recall)| match recall {
            Recall::Known(parts) => Ok(Look::Parts(parts)),
            Recall::Inherited => Ok(Look::Inherited),
            Recall::Ask(start, _, revision) => {
                let answer = answers.next().unwrap_or(Err(Refusal::Unknown));
                self.learn_parts(
                    &below,
                    job.index,
                    (job.at, job.into.len() as u32),
                    start,
                    revision,
                    answer,
                )
            }
        };
        let mut looks: Vec<_> = jobs.iter().zip(recalls).map(look).collect();
        self.look_below(&below, jobs, &mut looks);
        looks
    }

    /// Looks in the layers below for what the volume has no object of its own of: the nearest one that has
    /// the object counts.
    fn look_below(
        &self,
        below: &Below,
        jobs: &[&mut Job<'_>],
        looks: &mut [Result<Look, Refusal>],
    ) {
        let inherited = |look: &Result<Look, Refusal>| matches!(look, Ok(Look::Inherited));
        if !looks.iter().any(inherited) {
            return;
        }
        let mut asked = Vec::new();
        for (n, (job, look)) in jobs.iter().zip(&mut *looks).enumerate() {
            match below.sources(job.index).next() {
                _ if !inherited(look) => {}
                Some(object) => asked.push((n, object)),
                None => *look = Ok(Look::Parts(None)),
            }
        }
        let read = |(n, object): &(usize, ObjectId)| {
            let (start, end) = whole_range(jobs[*n].at, jobs[*n].into.len() as u32);
            let data = ReadPart::Data(start.into(), (end - start).into());
            Read { object: object.name(), parts: [map_parts(), vec![data]].concat() }
        };
        let answers = self.read_objects(&asked.iter().map(read).collect::<Vec<_>>());
        for ((n, object), answer) in asked.into_iter().zip(answers) {
            looks[n] = self.learn_below(jobs[n], object, answer);
        }
    }

    /// What a layer has of a range.
    fn learn_below(
        &self,
        job: &Job<'_>,
        object: ObjectId,
        answer: Result<ReadResult, Refusal>,
    ) -> Result<Look, Refusal> {
        let cached = answer.as_ref().map(|answer| answer.data(2).to_vec()).unwrap_or_default();
        let map = ChunkMap::from_answer(object, answer)?;
        // A copy that is under way where a bit is set was begun by a late operation, after the object was erased.
        let Some(map) = map.filter(ChunkMap::holds_content) else {
            self.objects.look_below_again()?;
            return Ok(Look::Again(object));
        };
        let bytes = job.into.len() as u32;
        let mut parts = in_range(&Known::of(Some(map)), job.at, bytes);
        let (start, _) = whole_range(job.at, bytes);
        for part in &mut parts {
            part.inherited = true;
            part.cached = vec![0; part.entry.length as usize];
            copy(&cached, start, &mut part.cached, part.offset);
        }
        Ok(Look::Parts(Some(parts)))
    }

    /// Reads objects, the entries and the data of each in one operation.
    fn read_objects(&self, asked: &[Read]) -> Vec<Result<ReadResult, Refusal>> {
        #[cfg(feature = "planted-bugs")]
        if let Some(answers) = self.read_apart(asked) {
            return answers;
        }
        self.objects.kernel().read_all(asked)
    }

    fn recall(&self, below: &Below, index: u64, at: u32, bytes: u32, again: bool) -> Recall {
        let object = self.objects.get(index);
        let object = object.lock();
        let known = object.known().filter(|_| !again && !self.objects.is_read_only());
        if let Some(known) = known {
            if self.discards.cover(index, known.discarded) {
                return Recall::Known(None);
            }
            if known.is_inherited() && below.has(index) {
                return Recall::Inherited;
            }
            let parts = in_range(known, at, bytes);
            if !known.exists || parts.iter().all(|part| part.entry.mask == 0 && !part.entry.dirty) {
                return Recall::Known(Some(parts));
            }
        }
        let (start, end) = whole_range(at, bytes);
        Recall::Ask(start, end, object.revision())
    }

    /// The parts of a range according to the reply of their object, which the owner remembers.
    fn learn_parts(
        &self,
        below: &Below,
        index: u64,
        (at, bytes): (u32, u32),
        start: u32,
        revision: u64,
        answer: Result<ReadResult, Refusal>,
    ) -> Result<Look, Refusal> {
        let cached = answer.as_ref().map(|answer| answer.data(2).to_vec()).unwrap_or_default();
        let look = self.objects.learn_answer(index, revision, answer, |known| {
            let mut parts = in_range(known, at, bytes);
            for part in &mut parts {
                part.cached = vec![0; part.entry.length as usize];
                copy(&cached, start, &mut part.cached, part.offset);
            }
            if self.discards.cover(index, known.discarded) {
                return Look::Parts(None);
            }
            if known.is_inherited() && below.has(index) {
                return Look::Inherited;
            }
            Look::Parts(Some(parts))
        })?;
        Ok(look.unwrap_or(Look::Again(self.objects.id(index))))
    }

    /// Whether the byte at `at` has data, and for how many bytes at least that holds. `looked` is
    /// the object that was read last. No write to the place may wait.
    pub(super) fn extent(&self, at: u64, looked: &mut Option<u64>) -> Result<(u64, ExtentKind)> {
        let objects = &self.objects;
        let (index, within) = (at / objects.bytes(), (at % objects.bytes()) as u32);
        let rest = objects.bytes() - u64::from(within);
        if objects.is_absent(index) {
            return Ok((rest, ExtentKind::Hole));
        }
        let below = objects.below();
        let object = objects.get(index);
        let mut object = object.lock();
        // Workers may have found meanwhile that dirty data are zeroes.
        let old = objects.is_read_only()
            || object.known().is_some_and(|known| known.entries.values().any(|entry| entry.dirty));
        if old && looked.replace(index) != Some(index) {
            object.forget();
        }
        let known =
            objects.known(index, &mut object).map_err(|refusal| objects.failed(index, refusal))?;
        if self.discards.cover(index, known.discarded) {
            return Ok((rest, ExtentKind::Hole));
        }
        if known.is_inherited() && below.has(index) {
            return Ok((rest, ExtentKind::Data));
        }
        let (offset, length) = known.place(within, objects.chunk_bytes());
        let bytes = u64::from(offset + length - within);
        let entry = known.entries.get(&offset);
        let data = entry.is_some_and(|entry| entry.base.is_some() || entry.mask != 0);
        Ok((bytes, if data { ExtentKind::Data } else { ExtentKind::Hole }))
    }
}

/// The parts of a look.
fn parts_of(look: &Result<Look, Refusal>) -> Option<&Vec<Part>> {
    match look {
        Ok(Look::Parts(parts)) => parts.as_ref(),
        _ => None,
    }
}

/// The object holds only whole blocks, so whole blocks are read.
fn whole_range(at: u32, bytes: u32) -> (u32, u32) {
    (at / BLOCK * BLOCK, (at + bytes).next_multiple_of(BLOCK))
}

/// The known chunks of a range.
fn in_range(known: &Known, at: u32, bytes: u32) -> Vec<Part> {
    let (start, end) = (covering(&known.entries, at).map_or(at, |(offset, _)| offset), at + bytes);
    known
        .entries
        .range(start..end)
        .map(|(offset, entry)| Part {
            offset: *offset,
            entry: entry.clone(),
            cached: Vec::new(),
            inherited: false,
        })
        .collect()
}

/// Copies what two ranges have in common: `content` at `offset` into `into` at `at`.
fn copy(content: &[u8], offset: u32, into: &mut [u8], at: u32) {
    let start = offset.max(at);
    let end = (offset + content.len() as u32).min(at + into.len() as u32);
    if start < end {
        into[(start - at) as usize..(end - at) as usize]
            .copy_from_slice(&content[(start - offset) as usize..(end - offset) as usize]);
    }
}
