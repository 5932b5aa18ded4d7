//! Attempts: which references a session is about to add, noted before it adds them, so that those
//! that a session leaves behind are found without a scrub.
//!
//! A session notes the references of a batch in one operation, and takes back with the next note
//! those whose end it knows: the flip was applied, or they were dropped. What stands there for
//! [`AGE`] is judged by workers, and by the same rule as by a scrub.
//!
//! *Crash argument:* a session that is killed leaves the attempt of each reference that it added. A
//! stale reference is dropped before its attempt goes. One whose entry still waits for its flip
//! keeps its attempt, since a client may overwrite the entry. Judging the attempt of a session that
//! lives is no harm: what is stale is so for ever, and the session drops what it adds later when
//! its flip fails. So only two faults together leave something to the scrub: an operation, or a
//! session that is stopped, that comes back after `AGE`, and a session that then ends before it
//! drops what it added.
//!
//! The copies of a chunk may be doubled between two tries, which then add the same reference to two
//! copies, and copy 0 may be made anew and forget it. So workers look at all copies, and a session
//! that met a chunk with several leaves its attempts at it to them.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use onefold_core::object::{Change, Guard, ObjectName, Read, ReadPart, Refusal, Write};

use crate::{
    chunk_map::{ChunkMap, map_parts},
    chunk_pool,
    format::{Chunk, ChunkId, ObjectId, Reference, Stamp, attempt, key},
    session::Session,
    settings::PlantedBug,
    volume::header,
};

/// Attempts that stand for so long are judged: longer than a step of a worker takes.
const AGE: Duration = Duration::from_secs(20);

/// Between two looks of a worker at all attempts.
const LOOK: Duration = Duration::from_secs(5);

/// The same beside clients, when each operation counts: a look takes one for each shard.
const LOOK_LIMITED: Duration = Duration::from_secs(60);

/// Attempts that are judged in one step of a worker, at most.
const JUDGED_MAX: usize = 256;

/// Attempts that are taken back in one operation, at most: it compares each.
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

/// What attempts come to.
#[derive(Default)]
pub(crate) struct Verdict<'a> {
    /// References that nobody has a use for; they may be there.
    pub(crate) stale: Vec<(Chunk, Reference)>,
    /// Attempts that are over once these are dropped.
    over: Vec<&'a Attempt>,
}

/// What a worker remembers of the attempts of all sessions.
#[derive(Default)]
pub(crate) struct Judge {
    looked: Option<Duration>,
    /// When each was seen first.
    seen: BTreeMap<Attempt, Duration>,
}

impl Judge {
    /// Judges what stands there for long; how many operations that took. A worker whose operations
    /// are limited looks less often.
    pub(crate) fn step(&mut self, session: &Session, limited: bool) -> Result<u64, Refusal> {
        let now = session.store.time();
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
                if session.planted(PlantedBug::ClockTrusted) { since } else { since.min(now) }
            })
        };
        self.seen = session
            .attempts()?
            .into_iter()
            .map(|attempt| (since(&attempt), attempt))
            .map(swap)
            .collect();
        let is_old = |(_, since): &(&Attempt, &Duration)| now.saturating_sub(**since) >= AGE;
        let old: Vec<&Attempt> =
            self.seen.iter().filter(is_old).map(|(attempt, _)| attempt).take(JUDGED_MAX).collect();
        session.end_attempts(&old)?;
        if old.len() == JUDGED_MAX {
            self.looked = None;
        }
        Ok(u64::from(session.format.shards) + 4 * old.len() as u64)
    }
}

fn swap((since, attempt): (Duration, Attempt)) -> (Attempt, Duration) {
    (attempt, since)
}

/// The object with the attempts of some sessions.
fn shard_name(shard: u16) -> ObjectName {
    ObjectName::metadata(format!("a.{shard:02x}"))
}

impl Session {
    fn attempts_shard(&self) -> ObjectName {
        shard_name((self.number() % u64::from(self.format.shards)) as u16)
    }

    /// The operation that notes references before they are added, and takes back attempts that are
    /// over.
    pub(crate) fn attempt_op(&self, wanted: &[(ChunkId, &[u8], Reference)]) -> Option<Write> {
        if wanted.is_empty() || self.planted(PlantedBug::AttemptNotNoted) {
            return None;
        }
        let stamp = self.stamp();
        let pair = |(id, _, reference): &(ChunkId, &[u8], Reference)| {
            (key::attempt(self.number(), reference), attempt::encode(id, stamp))
        };
        let over = std::mem::take(&mut *self.attempts_over.lock());
        let changes =
            vec![Change::DropOmap(over), Change::SetOmap(wanted.iter().map(pair).collect())];
        Some(Write { object: self.attempts_shard(), guards: Vec::new(), changes })
    }

    /// Notes references before they are added.
    pub(crate) fn attempt(&self, wanted: &[(ChunkId, &[u8], Reference)]) -> Result<(), Refusal> {
        self.attempt_op(wanted).map_or(Ok(()), |op| self.until_answered(&op).map(|_| ()))
    }

    /// The next note takes these back: their entries name what they were for, or they were dropped.
    /// Where this session met a chunk whose copies were doubled, an earlier try may have added
    /// the same reference to another copy: that is left to workers.
    pub(crate) fn attempts_are_over(&self, added: impl IntoIterator<Item = (Chunk, Reference)>) {
        let spreads = self.spreads.lock();
        let over = added.into_iter().filter(|(chunk, _)| !spreads.contains_key(&chunk.id));
        self.attempts_over
            .lock()
            .extend(over.map(|(_, reference)| key::attempt(self.number(), &reference)));
    }

    /// Takes back at once what the next note would; what fails is left to workers.
    pub(crate) fn forget_attempts(&self) {
        let over = std::mem::take(&mut *self.attempts_over.lock());
        if !over.is_empty() {
            let guards = vec![Guard::Exists];
            let _ = self.until_answered(&Write {
                object: self.attempts_shard(),
                guards,
                changes: vec![Change::DropOmap(over)],
            });
        }
    }

    /// The attempts of all sessions.
    pub(crate) fn attempts(&self) -> Result<Vec<Attempt>, Refusal> {
        let shards: Vec<ObjectName> = (0..self.format.shards).map(shard_name).collect();
        let mut all = Vec::new();
        for (shard, keys) in (0..).zip(self.all_keys_of(&shards, &[])?) {
            for (key, value) in keys {
                // What can't be read is of a newer version, or damaged: a scrub knows without it
                // what is stale.
                if let (Some(reference), Some(chunk)) =
                    (key::parse_attempt(&key), attempt::decode(&value))
                {
                    all.push(Attempt { shard, key, value, chunk, reference });
                }
            }
        }
        Ok(all)
    }

    /// Drops what attempts left behind, and takes those back that are over.
    fn end_attempts(&self, attempts: &[&Attempt]) -> Result<(), Refusal> {
        let verdict = self.judge(attempts)?;
        self.do_drops(&verdict.stale)?;
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
        for result in self.write_all(&ops) {
            match result {
                // Another worker was there, or its session tries again: they are looked at again.
                Ok(_) | Err(Refusal::Mismatch | Refusal::Missing | Refusal::Unknown) => {}
                Err(refusal) => return Err(refusal),
            }
        }
        Ok(())
    }

    /// What attempts come to, by their maps as they are now.
    pub(crate) fn judge<'a>(&self, attempts: &[&'a Attempt]) -> Result<Verdict<'a>, Refusal> {
        let objects: BTreeSet<ObjectId> =
            attempts.iter().map(|attempt| attempt.reference.object).collect();
        let inline = self.inline_sessions(&objects)?;
        let maps = self.maps_of(&objects)?;
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
            let (stale, used): (Vec<Chunk>, Vec<Chunk>) =
                chunks.into_iter().partition(|chunk| self.is_stale(map.as_ref(), chunk, reference));
            verdict.stale.extend(stale.into_iter().map(|chunk| (chunk, *reference)));
            if used.iter().any(|chunk| !names(map.as_ref(), chunk, reference))
                && !self.planted(PlantedBug::AttemptForgotten)
            {
                coming.push((*attempt, used));
            } else {
                verdict.over.push(attempt);
            }
        }
        verdict.over.extend(self.without_reference(&coming)?);
        Ok(verdict)
    }

    /// Those whose entry waits for its flip, and whose reference is not there.
    fn without_reference<'a>(
        &self,
        coming: &[(&'a Attempt, Vec<Chunk>)],
    ) -> Result<Vec<&'a Attempt>, Refusal> {
        let parts =
            |attempt: &Attempt| vec![ReadPart::Keys(vec![self.reference_key(&attempt.reference)])];
        let read = |attempt: &Attempt, chunk: &Chunk| Read {
            object: self.references(chunk),
            parts: parts(attempt),
        };
        let reads: Vec<Read> = coming
            .iter()
            .flat_map(|(attempt, chunks)| chunks.iter().map(|chunk| read(attempt, chunk)))
            .collect();
        let mut answers = self.read_all(&reads).into_iter();
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

    /// By volume the sessions that may make references before their entries. They are asked for
    /// after the references and before the maps: whoever is not among them was fenced by then,
    /// or has not begun.
    pub(crate) fn inline_sessions(
        &self,
        objects: &BTreeSet<ObjectId>,
    ) -> Result<BTreeMap<u64, u64>, Refusal> {
        let volumes: BTreeSet<u64> = objects.iter().map(|object| object.volume).collect();
        let look = |volume: &u64| Read {
            object: header::name(*volume),
            parts: vec![ReadPart::Keys(vec![header::INLINE.to_vec()])],
        };
        let answers = self.read_all(&volumes.iter().map(look).collect::<Vec<_>>());
        let mut sessions = BTreeMap::new();
        for (volume, answer) in volumes.into_iter().zip(answers) {
            let answer = match answer {
                // What was put has none.
                Err(Refusal::Missing) => continue,
                other => other?,
            };
            if let Some((_, value)) = answer.pairs(0).0.first() {
                let damaged = |_| {
                    Refusal::Failed(crate::format::corrupt(format_args!(
                        "the header of volume {volume:x} is damaged"
                    )))
                };
                let stamp =
                    Stamp(u64::from_le_bytes(value.as_slice().try_into().map_err(damaged)?));
                sessions.insert(volume, stamp.session());
            }
        }
        Ok(sessions)
    }

    /// The maps of objects, those left out that can't be read.
    pub(crate) fn maps_of(
        &self,
        objects: &BTreeSet<ObjectId>,
    ) -> Result<BTreeMap<ObjectId, Option<ChunkMap>>, Refusal> {
        let reads: Vec<Read> = objects
            .iter()
            .map(|object| Read { object: object.name(), parts: map_parts() })
            .collect();
        let mut maps = BTreeMap::new();
        for (object, answer) in objects.iter().zip(self.read_all(&reads)) {
            match Session::parse_map(*object, answer) {
                Ok(map) => drop(maps.insert(*object, map)),
                // What can't be read may need its references.
                Err(Refusal::Failed(_)) => {}
                Err(refusal) => return Err(refusal),
            }
        }
        Ok(maps)
    }
}

/// True when the entry names the chunk with this very reference.
fn names(map: Option<&ChunkMap>, chunk: &Chunk, reference: &Reference) -> bool {
    let base = map.and_then(|map| map.entries.get(&reference.offset)).and_then(|entry| entry.base);
    base.is_some_and(|base| base.chunk == *chunk && base.stamp == reference.stamp)
}
