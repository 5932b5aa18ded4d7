//! Chunks whose references are keys of the chunk object.

use onefold_core::object::{Change, Guard, ObjectName, Read, ReadPart, Refusal, Version, Write};

use super::{ChunkPool, SPREAD, TURNS};
use crate::{
    format::{Chunk, ChunkId, Reference},
    rules::Rule,
};

impl ChunkPool {
    /// The operation that adds a reference to a chunk that is there, or that makes the chunk with
    /// it.
    pub(super) fn add_op(
        &self,
        chunk: &Chunk,
        data: Option<&[u8]>,
        reference: &Reference,
        spread: u8,
    ) -> Write {
        let object = ObjectName::chunk(chunk.name());
        let key = Change::SetOmap(vec![(self.reference_key(reference), Vec::new())]);
        match data {
            None => {
                let guards = [Some(Guard::Exists), ChunkPool::spread_guard(chunk, spread)]
                    .into_iter()
                    .flatten()
                    .collect();
                Write { object, guards, changes: vec![key] }
            }
            Some(data) => {
                let mut changes = self.body(data);
                changes.extend([key, Change::SetXattr(SPREAD, vec![0])]);
                Write { object, guards: vec![Guard::Absent], changes }
            }
        }
    }

    /// Adds references to chunks that are there, or makes the chunks with them.
    pub(super) fn add_all_replicated(
        &self,
        wanted: &[(ChunkId, &[u8], Reference)],
        new: bool,
        note: &mut Option<Write>,
    ) -> Result<Vec<Result<Version, Refusal>>, Refusal> {
        let op = |(id, data, reference): &(ChunkId, &[u8], Reference)| {
            self.add_op(&Chunk { id: *id, copy: 0 }, new.then_some(*data), reference, 0)
        };
        self.kernel.behind_until_answered(note, &wanted.iter().map(op).collect::<Vec<_>>())
    }

    /// Creates the chunk with the reference, or adds it to the chunk that is there; true when it is
    /// new.
    pub(super) fn add_replicated(
        &self,
        chunk: &Chunk,
        data: &[u8],
        reference: &Reference,
        spread: u8,
    ) -> Result<bool, Refusal> {
        let add = self.add_op(chunk, None, reference, spread);
        let create = self.add_op(chunk, Some(data), reference, spread);
        for _ in 0..TURNS {
            match self.kernel.until_answered(&add) {
                Ok(_) => return Ok(false),
                Err(Refusal::Missing) => {}
                Err(refusal) => return Err(refusal),
            }
            match self.kernel.until_answered(&create) {
                Ok(_) => return Ok(true),
                Err(Refusal::Exists) => {}
                Err(refusal) => return Err(refusal),
            }
        }
        Err(Refusal::Mismatch)
    }

    /// Removes the chunks that have no reference, each at the version at which that was seen;
    /// returns how many.
    pub(super) fn collect_replicated(&self, chunks: &[Chunk]) -> Result<u64, Refusal> {
        let look = |chunk: &Chunk| Read {
            object: ObjectName::chunk(chunk.name()),
            parts: vec![ReadPart::Page(Vec::new(), 1)],
        };
        let answers = self.kernel.read_all(&chunks.iter().map(look).collect::<Vec<_>>());
        let mut removals = Vec::new();
        for (chunk, answer) in chunks.iter().zip(answers) {
            let answer = match answer {
                Err(Refusal::Missing) => continue,
                other => other?,
            };
            if answer.pairs(0).0.is_empty() {
                let guard = if self.kernel.keeps(Rule::RemovalComparesVersion) {
                    Guard::Version(answer.version)
                } else {
                    Guard::Exists
                };
                removals.push(Write {
                    object: ObjectName::chunk(chunk.name()),
                    guards: vec![guard],
                    changes: vec![Change::Remove],
                });
            }
        }
        let mut removed = 0;
        for result in self.kernel.write_all(&removals) {
            match result {
                Ok(_) => removed += 1,
                // Without a reply it may have been removed, and may be there again.
                Err(Refusal::Missing | Refusal::Mismatch | Refusal::Unknown) => {}
                Err(refusal) => return Err(refusal),
            }
        }
        Ok(removed)
    }
}
