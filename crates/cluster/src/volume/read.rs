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
    chunk_map::{assemble, covering, map_parts},
    format::{BLOCK, Chunk, corrupt, entry::Entry},
};

/// Times that an entry is read again because its chunk was gone.
const TURNS: u32 = 20;

/// A chunk of an object that is read: its offset, its entry, and the requested blocks that are in
/// the object. Other blocks are zeroes.
struct Part {
    offset: u32,
    entry: Entry,
    cached: Vec<u8>,
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
    over: bool,
}

/// The part of a range that the owner knows without asking the store.
enum Recall {
    /// Everything needed; `None` when the range is all zeroes.
    Known(Option<Vec<Part>>),
    /// The bytes of the object that must be read, and the revision of the owner's memory at that
    /// time.
    Ask(u32, u32, u64),
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
            looks.iter().flatten().flatten().flatten().filter_map(needed).collect();
        let chunks: Vec<Chunk> = chunks.into_iter().collect();
        let contents: BTreeMap<Chunk, Result<Vec<u8>, Refusal>> = chunks
            .iter()
            .copied()
            .zip(self.objects.session().chunk_pool().read_chunks(&chunks))
            .collect();
        let mut failed = Vec::new();
        for (job, look) in jobs.iter_mut().zip(looks) {
            let parts = match look {
                Ok(parts) => parts.unwrap_or_default(),
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
        self.promotion.warm(
            job.index,
            &parts.iter().map(|part| (part.offset, part.entry.clone())).collect::<Vec<_>>(),
            &bases,
        );
        Ok(())
    }

    /// The chunks of ranges and the blocks that the objects hold of them, each object at one
    /// moment; `None` when the range is all zeroes.
    fn look_all(&self, jobs: &[&mut Job<'_>]) -> Vec<Result<Option<Vec<Part>>, Refusal>> {
        let recalls: Vec<Recall> = jobs
            .iter()
            .map(|job| self.recall(job.index, job.at, job.into.len() as u32, job.gone.is_some()))
            .collect();
        let ask = |(job, recall): (&&mut Job<'_>, &Recall)| match recall {
            Recall::Known(_) => None,
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
            Recall::Known(parts) => Ok(parts),
            Recall::Ask(start, _, revision) => {
                let answer = answers.next().unwrap_or(Err(Refusal::Unknown));
                self.learn_parts(
                    job.index,
                    (job.at, job.into.len() as u32),
                    start,
                    revision,
                    answer,
                )
            }
        };
        jobs.iter().zip(recalls).map(look).collect()
    }

    /// Reads objects, the entries and the data of each in one operation.
    fn read_objects(&self, asked: &[Read]) -> Vec<Result<ReadResult, Refusal>> {
        #[cfg(feature = "planted-bugs")]
        if let Some(answers) = self.read_apart(asked) {
            return answers;
        }
        self.objects.kernel().read_all(asked)
    }

    fn recall(&self, index: u64, at: u32, bytes: u32, again: bool) -> Recall {
        let object = self.objects.get(index);
        let object = object.lock();
        let known = object.known().filter(|_| !again && !self.objects.is_read_only());
        if let Some(known) = known {
            if self.discards.cover(index, known.discarded) {
                return Recall::Known(None);
            }
            let parts = in_range(known, at, bytes);
            if !known.exists || parts.iter().all(|part| part.entry.mask == 0 && !part.entry.dirty) {
                return Recall::Known(Some(parts));
            }
        }
        // The object holds only whole blocks, so whole blocks are read.
        Recall::Ask(at / BLOCK * BLOCK, (at + bytes).next_multiple_of(BLOCK), object.revision())
    }

    /// The parts of a range according to the reply of their object, which the owner remembers.
    fn learn_parts(
        &self,
        index: u64,
        (at, bytes): (u32, u32),
        start: u32,
        revision: u64,
        answer: Result<ReadResult, Refusal>,
    ) -> Result<Option<Vec<Part>>, Refusal> {
        let cached = answer.as_ref().map(|answer| answer.data(2).to_vec()).unwrap_or_default();
        self.objects.learn_answer(index, revision, answer, |known| {
            let mut parts = in_range(known, at, bytes);
            for part in &mut parts {
                part.cached = vec![0; part.entry.length as usize];
                copy(&cached, start, &mut part.cached, part.offset);
            }
            (!self.discards.cover(index, known.discarded)).then_some(parts)
        })
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
        let (offset, length) = known.place(within, objects.chunk_bytes());
        let bytes = u64::from(offset + length - within);
        let entry = known.entries.get(&offset);
        let data = entry.is_some_and(|entry| entry.base.is_some() || entry.mask != 0);
        Ok((bytes, if data { ExtentKind::Data } else { ExtentKind::Hole }))
    }
}

/// The known chunks of a range.
fn in_range(known: &Known, at: u32, bytes: u32) -> Vec<Part> {
    let (start, end) = (covering(&known.entries, at).map_or(at, |(offset, _)| offset), at + bytes);
    known
        .entries
        .range(start..end)
        .map(|(offset, entry)| Part { offset: *offset, entry: entry.clone(), cached: Vec::new() })
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
