//! Attempts: records of the references that a session is about to add. With them workers find
//! references that a session left behind, without a scrub.
//!
//! A session records the references of a batch in one operation. The same operation removes earlier
//! attempts whose end the session knows: the flip was applied, or the references were dropped.
//! Workers judge attempts that are older than [`AGE`], by the same rule as a scrub.
//!
//! *Crash argument:* a session that is killed leaves the attempt of each reference that it added. A
//! stale reference is dropped before its attempt is removed. A reference whose entry still waits
//! for its flip keeps its attempt, since a client may overwrite the entry. Judging the attempt of a
//! living session does no harm: a stale reference stays stale for ever, and the session drops a
//! reference that it adds later when its flip fails; where the step itself fails, as in a full store,
//! it notes the attempt again with its next record, or when it ends in order. Only two faults together leave a reference to
//! the scrub: an operation or a stopped session comes back after `AGE`, and its session then ends
//! before it drops the reference or notes it.
//!
//! The copies of a chunk may be doubled between two tries, which then add the same reference to two
//! copies. Copy 0 may also be created anew, without the reference. So workers look at all copies,
//! and a session that met a chunk with several copies leaves its attempts at this chunk to them.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use onefold_core::object::{Change, Guard, ObjectName, Read, ReadPart, Refusal, Write};

use crate::{
    chunk_map::{ChunkMap, is_named, is_stale},
    chunk_pool::{self, ChunkPool, notes::shard_name},
    format::{Chunk, ChunkId, ObjectId, Reference, attempt, key},
    kernel::Kernel,
    rules::Rule,
    session::Session,
    volume::header,
};

/// Workers judge attempts that are older than this: longer than a step of a worker takes.
const AGE: Duration = Duration::from_secs(20);

/// Pause between two looks of a worker at all attempts.
const LOOK: Duration = Duration::from_secs(5);

/// The same pause while operations are limited: a look costs one operation for each shard.
const LOOK_LIMITED: Duration = Duration::from_secs(60);

/// Most attempts that a worker judges in one step.
const JUDGED_MAX: usize = 256;

/// Most attempts that one operation removes, since the operation compares each of them.
const TAKEN_MAX: usize = 64;

/// An attempt as it was found.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Attempt {
    shard: u16,
    key: Vec<u8>,
    value: Vec<u8>,
    chunk: ChunkId,
    reference: Reference,
}

/// The result of judging attempts.
#[derive(Default)]
pub(crate) struct Verdict<'a> {
    /// References that no entry uses; they may still be in the pool.
    pub(crate) stale: Vec<(Chunk, Reference)>,
    /// Attempts that are over once these are dropped.
    over: Vec<&'a Attempt>,
}

/// A worker's memory of the attempts of all sessions.
#[derive(Default)]
pub(crate) struct Judge {
    looked: Option<Duration>,
    /// When each was seen first.
    seen: BTreeMap<Attempt, Duration>,
}

impl Judge {
    /// Judges attempts that are old enough; returns how many operations it needed. A worker whose
    /// operations are limited looks less often.
    pub(crate) fn step(&mut self, session: &Session, limited: bool) -> Result<u64, Refusal> {
        let now = session.kernel().store().time();
        let pause = if limited { LOOK_LIMITED } else { LOOK };
        let looked = self.looked.or(limited.then_some(now));
        if looked.is_some_and(|looked| (looked..looked + pause).contains(&now)) {
            self.looked = looked;
            return Ok(0);
        }
        self.looked = Some(now);
        let mut before = std::mem::take(&mut self.seen);
        // A clock that was set back begins to count anew.
        let mut since = |attempt: &Attempt| {
            before.remove(attempt).map_or(now, |since| {
                if session.kernel().keeps(Rule::ClockMayGoBack) { since.min(now) } else { since }
            })
        };
        self.seen = LeftBehind::of(session)
            .attempts()?
            .into_iter()
            .map(|attempt| (since(&attempt), attempt))
            .map(swap)
            .collect();
        let is_old = |(_, since): &(&Attempt, &Duration)| now.saturating_sub(**since) >= AGE;
        let old: Vec<&Attempt> =
            self.seen.iter().filter(is_old).map(|(attempt, _)| attempt).take(JUDGED_MAX).collect();
        let judged: Vec<Attempt> = old.into_iter().cloned().collect();
        LeftBehind::of(session).end_attempts(&judged.iter().collect::<Vec<_>>())?;
        if judged.len() == JUDGED_MAX {
            self.looked = None;
        }
        let operations = u64::from(session.kernel().format().shards) + 4 * judged.len() as u64;
        // Attempts that are not over wait anew, so that the others have their turn, however many there are.
        self.seen.extend(judged.into_iter().map(|attempt| (attempt, now)));
        Ok(operations)
    }
}

fn swap((since, attempt): (Duration, Attempt)) -> (Attempt, Duration) {
    (attempt, since)
}

/// Judges the attempts that sessions left behind.
pub(crate) struct LeftBehind<'a> {
    kernel: &'a Kernel,
    chunk_pool: &'a ChunkPool,
}

impl<'a> LeftBehind<'a> {
    pub(crate) fn of(session: &'a Session) -> LeftBehind<'a> {
        LeftBehind { kernel: session.kernel(), chunk_pool: session.chunk_pool() }
    }

    /// The attempts of all sessions.
    pub(crate) fn attempts(&self) -> Result<Vec<Attempt>, Refusal> {
        let shards: Vec<ObjectName> = (0..self.kernel.format().shards).map(shard_name).collect();
        let mut all = Vec::new();
        self.kernel.pages_of(&shards, &[], |shard, keys| {
            for (key, value) in keys {
                // An attempt that can't be decoded is of a newer version, or damaged. A scrub finds
                // stale references without it.
                if let (Some(reference), Some(chunk)) =
                    (key::parse_attempt(key), attempt::decode(value))
                {
                    let (shard, key, value) = (shard as u16, key.clone(), value.clone());
                    all.push(Attempt { shard, key, value, chunk, reference });
                }
            }
            Ok(())
        })?;
        Ok(all)
    }

    /// Drops the stale references of attempts, and removes attempts that are over.
    fn end_attempts(&self, attempts: &[&Attempt]) -> Result<(), Refusal> {
        let verdict = self.judge(attempts)?;
        self.chunk_pool.drop_references(&verdict.stale)?;
        let mut shards: BTreeMap<u16, Vec<&Attempt>> = BTreeMap::new();
        verdict
            .over
            .into_iter()
            .for_each(|attempt| shards.entry(attempt.shard).or_default().push(attempt));
        let op = |of: &[&Attempt]| Write {
            object: shard_name(of[0].shard),
            guards: of
                .iter()
                .map(|attempt| Guard::Omap(attempt.key.clone(), attempt.value.clone()))
                .collect(),
            changes: vec![Change::DropOmap(of.iter().map(|attempt| attempt.key.clone()).collect())],
        };
        let ops: Vec<Write> = shards.values().flat_map(|of| of.chunks(TAKEN_MAX)).map(op).collect();
        for result in self.kernel.write_all(&ops) {
            match result {
                // Another worker was there, or its session tries again: they are looked at again.
                Ok(_) | Err(Refusal::Mismatch | Refusal::Missing | Refusal::Unknown) => {}
                Err(refusal) => return Err(refusal),
            }
        }
        Ok(())
    }

    /// Judges attempts by the current maps of their objects.
    pub(crate) fn judge<'t>(&self, attempts: &[&'t Attempt]) -> Result<Verdict<'t>, Refusal> {
        let objects: BTreeSet<ObjectId> =
            attempts.iter().map(|attempt| attempt.reference.object).collect();
        let inline = header::inline_sessions(self.kernel, &objects)?;
        let maps = ChunkMap::read_each(self.kernel, &objects)?;
        let (mut verdict, mut coming) = (Verdict::default(), Vec::new());
        for attempt in attempts {
            let Attempt { chunk: id, reference, .. } = attempt;
            let Some(map) = maps.get(&reference.object) else { continue };
            // An inline session may be about to write the entry that names it.
            if inline.get(&reference.object.volume) == Some(&reference.stamp.session()) {
                continue;
            }
            // A chunk object that was removed and made anew does not know how often it had been
            // doubled when the reference was added.
            let chunks: BTreeSet<Chunk> = (0..=chunk_pool::SPREAD_MAX)
                .map(|spread| chunk_pool::copy_for(*id, reference, spread))
                .collect();
            let (stale, used): (Vec<Chunk>, Vec<Chunk>) = chunks
                .into_iter()
                .partition(|chunk| is_stale(self.kernel, map.as_ref(), chunk, reference));
            verdict.stale.extend(stale.into_iter().map(|chunk| (chunk, *reference)));
            if used.iter().any(|chunk| !is_named(map.as_ref(), chunk, reference))
                && self.kernel.keeps(Rule::AttemptKeptWhileOpen)
            {
                coming.push((*attempt, used));
            } else {
                verdict.over.push(attempt);
            }
        }
        verdict.over.extend(self.without_reference(&coming)?);
        Ok(verdict)
    }

    /// The attempts whose entry waits for its flip, and whose reference does not exist.
    fn without_reference<'t>(
        &self,
        coming: &[(&'t Attempt, Vec<Chunk>)],
    ) -> Result<Vec<&'t Attempt>, Refusal> {
        let parts = |attempt: &Attempt| {
            vec![ReadPart::Keys(vec![self.chunk_pool.reference_key(&attempt.reference)])]
        };
        let read = |attempt: &Attempt, chunk: &Chunk| Read {
            object: self.chunk_pool.references(chunk),
            parts: parts(attempt),
        };
        let reads: Vec<Read> = coming
            .iter()
            .flat_map(|(attempt, chunks)| chunks.iter().map(|chunk| read(attempt, chunk)))
            .collect();
        let mut answers = self.kernel.read_all(&reads).into_iter();
        let mut without = Vec::new();
        for (attempt, chunks) in coming {
            let mut has = false;
            for answer in answers.by_ref().take(chunks.len()) {
                has |= match answer {
                    Ok(answer) => !answer.pairs(0).0.is_empty(),
                    Err(Refusal::Missing) => false,
                    Err(refusal) => return Err(refusal),
                };
            }
            without.extend((!has).then_some(*attempt));
        }
        Ok(without)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use onefold_core::object::PoolKind;
    use onefold_testbed::MemoryObjects;

    use super::*;
    use crate::{Format, Settings, chunk_map::stamp_value, create, format::Stamp};

    #[test]
    fn attempts_that_stay_open_keep_no_others_from_being_judged() {
        let store = Arc::new(MemoryObjects::new(PoolKind::Replicated));
        create(&*store, &Format::new([1; 16], [2; 32], PoolKind::Replicated)).unwrap();
        let session = Session::open(store.clone(), Settings::default()).unwrap();
        let (kernel, pool) = (session.kernel(), session.chunk_pool());
        let data = vec![7; 4096];
        let id = pool.chunk_id(&data);
        let reference = |volume, index| Reference {
            object: ObjectId { volume, index },
            offset: 0,
            stamp: Stamp(5),
        };
        // Copies from a layer that were cut off, and that nobody goes on with.
        let open: Vec<Reference> =
            (0..JUDGED_MAX as u64).map(|index| reference(1, index)).collect();
        for reference in &open {
            let pair = (key::COPYING.to_vec(), stamp_value(reference.stamp));
            let op = Write {
                object: reference.object.name(),
                guards: Vec::new(),
                changes: vec![Change::SetOmap(vec![pair])],
            };
            kernel.write_one(&op).unwrap();
        }
        let stale = reference(2, 0);
        let wanted: Vec<_> =
            open.iter().chain([&stale]).map(|of| (id, data.as_slice(), *of)).collect();
        let chunks = pool.add_references(&wanted).unwrap();
        let mut judge = Judge::default();
        for second in [0, 30, 40, 60] {
            store.set_time(Duration::from_secs(1000 + second));
            judge.step(&session, false).unwrap();
        }
        assert!(!pool.has_reference(&chunks[JUDGED_MAX], &stale).unwrap());
        assert!(pool.has_reference(&chunks[0], &open[0]).unwrap());
    }
}
