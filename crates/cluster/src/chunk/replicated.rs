//! Chunks whose references are keys of the chunk object.

use onefold_core::object::{Change, Guard, Look, ObjectName, Refusal, Write};

use super::{SPREAD, TURNS};
use crate::{
    format::{Chunk, Reference},
    session::Session,
    settings::PlantedBug,
};

impl Session {
    /// The operation that adds a reference to a chunk that is there, or that makes the chunk with it.
    pub(super) fn add_op(&self, chunk: &Chunk, data: Option<&[u8]>, reference: &Reference, spread: u8) -> Write {
        let object = ObjectName::chunk(chunk.name());
        let key = Change::SetOmap(vec![(self.reference_key(reference), Vec::new())]);
        match data {
            None => {
                let guards = [Some(Guard::Exists), Session::spread_guard(chunk, spread)].into_iter().flatten().collect();
                Write { object, guards, changes: vec![key] }
            }
            Some(data) => {
                let mut changes = self.body(data);
                changes.extend([key, Change::SetXattr(SPREAD, vec![0])]);
                Write { object, guards: vec![Guard::Absent], changes }
            }
        }
    }

    /// Creates the chunk with the reference, or adds it to the chunk that is there; true when it is new.
    pub(super) fn add_replicated(&self, chunk: &Chunk, data: &[u8], reference: &Reference, spread: u8) -> Result<bool, Refusal> {
        let add = self.add_op(chunk, None, reference, spread);
        let create = self.add_op(chunk, Some(data), reference, spread);
        for _ in 0..TURNS {
            match self.insist(&add) {
                Ok(_) => return Ok(false),
                Err(Refusal::Missing) => {}
                Err(refusal) => return Err(refusal),
            }
            match self.insist(&create) {
                Ok(_) => return Ok(true),
                Err(Refusal::Exists) => {}
                Err(refusal) => return Err(refusal),
            }
        }
        Err(Refusal::Mismatch)
    }

    /// Removes the chunk when it has no reference, at the version at which that was seen.
    pub(super) fn collect_replicated(&self, chunk: &Chunk) -> Result<bool, Refusal> {
        let object = ObjectName::chunk(chunk.name());
        let sight = match self.read_one(&object, vec![Look::Page(Vec::new(), 1)]) {
            Err(Refusal::Missing) => return Ok(false),
            other => other?,
        };
        if !sight.pairs(0).0.is_empty() {
            return Ok(false);
        }
        let guard = if self.planted(PlantedBug::RemovalWithoutVersion) { Guard::Exists } else { Guard::Version(sight.version) };
        // Without a reply it may have been removed, and may be there again.
        match self.write_one(&Write { object, guards: vec![guard], changes: vec![Change::Remove] }) {
            Ok(_) => Ok(true),
            Err(Refusal::Missing | Refusal::Mismatch | Refusal::Unknown) => Ok(false),
            Err(refusal) => Err(refusal),
        }
    }
}
