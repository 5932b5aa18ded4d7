//! Chunks of an erasure-coded pool: their references are in a replicated object of the same name,
//! with a state.
//!
//! Adding takes three steps: the reference and *pending*, unless the state is *present*; the data;
//! *present*, at the version that *pending* made. A late copy of the first step may make an object
//! again that was removed, so *pending* alone does not say that the data is there; the version does,
//! as no object has the same one twice. Removing takes three as well: *removing*, at the
//! version at which there was no reference; the data, at the version that they had while the state
//! was still ours; the reference object. A session that adds meanwhile sets *pending* and writes
//! the data anew, so that they have another version.

use onefold_core::object::{Change, Guard, ObjectName, ReadPart, Refusal, Version, Write};

use super::{ChunkPool, SPREAD, TURNS, present};
use crate::{
    format::{Chunk, ChunkId, Reference, Stamp, key},
    rules::Rule,
};

const PENDING: u8 = 1;
const REMOVING: u8 = 3;

fn state(tag: u8, stamp: Stamp) -> Vec<u8> {
    [&[tag][..], &stamp.0.to_le_bytes()].concat()
}

/// The last step of adding: the data is there since the object has this version.
fn finished(references: ObjectName, pending: Version) -> Write {
    Write {
        object: references,
        guards: vec![Guard::Version(pending)],
        changes: vec![Change::SetOmap(vec![(key::STATE.to_vec(), present())])],
    }
}

impl ChunkPool {
    /// The state of a chunk; empty when it has none.
    fn state(&self, object: &ObjectName) -> Result<Vec<u8>, Refusal> {
        let answer =
            self.kernel.read_one(object, vec![ReadPart::Keys(vec![key::STATE.to_vec()])])?;
        Ok(answer.pairs(0).0.first().map(|(_, value)| value.clone()).unwrap_or_default())
    }

    /// Adds references to chunks whose data is known to be there.
    pub(super) fn add_all_present(
        &self,
        wanted: &[(ChunkId, &[u8], Reference)],
        note: &mut Option<Write>,
    ) -> Result<Vec<Result<Version, Refusal>>, Refusal> {
        let op = |(id, _, reference): &(ChunkId, &[u8], Reference)| {
            let chunk = Chunk { id: *id, copy: 0 };
            let guards = [
                Some(Guard::Exists),
                Some(Guard::Omap(key::STATE.to_vec(), present())),
                ChunkPool::spread_guard(&chunk, 0),
            ];
            Write {
                object: ObjectName::metadata(chunk.name()),
                guards: guards.into_iter().flatten().collect(),
                changes: vec![Change::SetOmap(vec![(self.reference_key(reference), Vec::new())])],
            }
        };
        self.kernel.behind_until_answered(note, &wanted.iter().map(op).collect::<Vec<_>>())
    }

    /// Creates chunks that do not exist: references with *pending*, then the data, then *present*.
    pub(super) fn add_all_new(
        &self,
        wanted: &[(ChunkId, &[u8], Reference)],
        note: &mut Option<Write>,
    ) -> Result<Vec<Result<Version, Refusal>>, Refusal> {
        let stamps: Vec<Stamp> = wanted.iter().map(|_| self.kernel.stamp()).collect();
        let references = |n: usize| ObjectName::metadata(Chunk { id: wanted[n].0, copy: 0 }.name());
        let pending = |n: usize| (key::STATE.to_vec(), state(PENDING, stamps[n]));
        let create = |n: usize| Write {
            object: references(n),
            guards: vec![Guard::Absent],
            changes: vec![
                Change::SetOmap(vec![(self.reference_key(&wanted[n].2), Vec::new()), pending(n)]),
                Change::SetXattr(SPREAD, vec![0]),
            ],
        };
        let data = |n: usize| Write {
            object: ObjectName::chunk(Chunk { id: wanted[n].0, copy: 0 }.name()),
            guards: Vec::new(),
            changes: self.body(wanted[n].1),
        };
        let mut results: Vec<Result<Version, Refusal>> =
            wanted.iter().map(|_| Ok(Version(0))).collect();
        let mut run = |results: &mut [Result<Version, Refusal>], step: &dyn Fn(usize) -> Write| {
            let open: Vec<usize> = (0..wanted.len()).filter(|n| results[*n].is_ok()).collect();
            let ops: Vec<Write> = open.iter().map(|n| step(*n)).collect();
            let answers = self.kernel.behind_until_answered(note, &ops)?;
            open.into_iter().zip(answers).for_each(|(n, answer)| results[n] = answer);
            Ok(())
        };
        run(&mut results, &create)?;
        let pending_at: Vec<Version> =
            results.iter().map(|result| *result.as_ref().unwrap_or(&Version(0))).collect();
        run(&mut results, &data)?;
        run(&mut results, &|n| finished(references(n), pending_at[n]))?;
        Ok(results)
    }

    /// Adds the reference and writes the data where it is not known to be there; true when it
    /// wrote.
    pub(super) fn add_erasure(
        &self,
        chunk: &Chunk,
        data: &[u8],
        reference: &Reference,
        spread: u8,
    ) -> Result<bool, Refusal> {
        let references = ObjectName::metadata(chunk.name());
        let key = (self.reference_key(reference), Vec::new());
        let spread_guard = || ChunkPool::spread_guard(chunk, spread);
        // Guessed: the chunk is there.
        let mut known = present();
        for _ in 0..2 * TURNS {
            let stamp = self.kernel.stamp();
            let trusted =
                !self.kernel.keeps(Rule::RemovedChunkMadeAnew) && known.first() == Some(&REMOVING);
            let (done, next) = if known == present() || trusted {
                (true, vec![key.clone()])
            } else {
                (false, vec![key.clone(), (key::STATE.to_vec(), state(PENDING, stamp))])
            };
            let guards = [
                Some(Guard::Exists),
                Some(Guard::Omap(key::STATE.to_vec(), known.clone())),
                spread_guard(),
            ];
            let op = Write {
                object: references.clone(),
                guards: guards.into_iter().flatten().collect(),
                changes: vec![Change::SetOmap(next.clone())],
            };
            let pending = match self.kernel.until_answered(&op) {
                Ok(_) if done => return Ok(false),
                Ok(version) => version,
                Err(Refusal::Missing) => {
                    let pending = vec![key.clone(), (key::STATE.to_vec(), state(PENDING, stamp))];
                    let changes = vec![Change::SetOmap(pending), Change::SetXattr(SPREAD, vec![0])];
                    match self.kernel.until_answered(&Write {
                        object: references.clone(),
                        guards: vec![Guard::Absent],
                        changes,
                    }) {
                        Ok(version) => version,
                        Err(Refusal::Exists) => {
                            known = self.state_or(&references)?;
                            continue;
                        }
                        Err(refusal) => return Err(refusal),
                    }
                }
                Err(Refusal::Mismatch) => {
                    let now = self.state_or(&references)?;
                    if now == known {
                        // Then it was the number of copies.
                        return Err(Refusal::Mismatch);
                    }
                    known = now;
                    continue;
                }
                Err(refusal) => return Err(refusal),
            };
            self.kernel.until_answered(&Write {
                object: ObjectName::chunk(chunk.name()),
                guards: Vec::new(),
                changes: self.body(data),
            })?;
            match self.kernel.until_answered(&finished(references.clone(), pending)) {
                Ok(_) => return Ok(true),
                // Somebody else writes it too, or has another reference, or it was our own reply
                // that got lost.
                Err(Refusal::Mismatch | Refusal::Missing) => known = self.state_or(&references)?,
                Err(refusal) => return Err(refusal),
            }
        }
        Err(Refusal::Unknown)
    }

    fn state_or(&self, references: &ObjectName) -> Result<Vec<u8>, Refusal> {
        match self.state(references) {
            Err(Refusal::Missing) => Ok(Vec::new()),
            other => other,
        }
    }

    /// Removes data and references of a chunk that has none.
    pub(super) fn collect_erasure(&self, chunk: &Chunk) -> Result<bool, Refusal> {
        let (references, data) =
            (ObjectName::metadata(chunk.name()), ObjectName::chunk(chunk.name()));
        let answer =
            match self.kernel.read_one(&references, vec![ReadPart::Page(key::STATE.to_vec(), 1)]) {
                Err(Refusal::Missing) => return Ok(false),
                other => other?,
            };
        if !answer.pairs(0).0.is_empty() {
            return Ok(false);
        }
        let mine = state(REMOVING, self.kernel.stamp());
        let removing = Write {
            object: references.clone(),
            guards: vec![Guard::Version(answer.version)],
            changes: vec![Change::SetOmap(vec![(key::STATE.to_vec(), mine.clone())])],
        };
        match self.kernel.write_one(&removing) {
            Ok(_) => {}
            // Whether this was applied or not, the chunk is collected later.
            Err(Refusal::Missing | Refusal::Mismatch | Refusal::Unknown) => return Ok(false),
            Err(refusal) => return Err(refusal),
        }
        let version = match self.kernel.read_one(&data, vec![ReadPart::Stat]) {
            Ok(answer) => Some(answer.version),
            Err(Refusal::Missing) => None,
            Err(refusal) => return Err(refusal),
        };
        if self.state_or(&references)? != mine {
            return Ok(false);
        }
        if let Some(version) = version {
            match self.kernel.write_one(&Write {
                object: data,
                guards: vec![Guard::Version(version)],
                changes: vec![Change::Remove],
            }) {
                Ok(_) | Err(Refusal::Missing) => {}
                Err(Refusal::Mismatch | Refusal::Unknown) => return Ok(false),
                Err(refusal) => return Err(refusal),
            }
        }
        let guards = vec![Guard::Omap(key::STATE.to_vec(), mine)];
        match self.kernel.write_one(&Write {
            object: references,
            guards,
            changes: vec![Change::Remove],
        }) {
            Ok(_) => Ok(true),
            Err(Refusal::Missing | Refusal::Mismatch | Refusal::Unknown) => Ok(false),
            Err(refusal) => Err(refusal),
        }
    }
}
