//! Records of the references that a session is about to add, and their removal; see
//! [`attempts`](crate::attempts).

use onefold_core::object::{Change, Guard, ObjectName, Refusal, Write};

use super::ChunkPool;
use crate::{
    format::{Chunk, ChunkId, Reference, attempt, key},
    settings::PlantedBug,
};

/// The object with the attempts of some sessions.
pub(crate) fn shard_name(shard: u16) -> ObjectName {
    ObjectName::metadata(format!("a.{shard:02x}"))
}

impl ChunkPool {
    fn attempts_shard(&self) -> ObjectName {
        shard_name((self.kernel.number() % u64::from(self.kernel.format().shards)) as u16)
    }

    /// The operation that records references before they are added, and removes attempts that are
    /// over.
    pub(crate) fn attempt_op(&self, wanted: &[(ChunkId, &[u8], Reference)]) -> Option<Write> {
        if wanted.is_empty() || self.kernel.planted(PlantedBug::AttemptNotNoted) {
            return None;
        }
        let stamp = self.kernel.stamp();
        let pair = |(id, _, reference): &(ChunkId, &[u8], Reference)| {
            (key::attempt(self.kernel.number(), reference), attempt::encode(id, stamp))
        };
        let over = std::mem::take(&mut *self.attempts_over.lock());
        let changes =
            vec![Change::DropOmap(over), Change::SetOmap(wanted.iter().map(pair).collect())];
        Some(Write { object: self.attempts_shard(), guards: Vec::new(), changes })
    }

    /// Records references before they are added.
    pub(crate) fn attempt(&self, wanted: &[(ChunkId, &[u8], Reference)]) -> Result<(), Refusal> {
        self.attempt_op(wanted).map_or(Ok(()), |op| self.kernel.until_answered(&op).map(|_| ()))
    }

    /// The next record of attempts removes these: their references are in use, or were dropped.
    /// Attempts at a chunk whose copies were doubled stay for workers, because an earlier try may
    /// have added the same reference to another copy.
    pub(crate) fn attempts_are_over(&self, added: impl IntoIterator<Item = (Chunk, Reference)>) {
        let spreads = self.spreads.lock();
        let over = added.into_iter().filter(|(chunk, _)| !spreads.contains_key(&chunk.id));
        self.attempts_over
            .lock()
            .extend(over.map(|(_, reference)| key::attempt(self.kernel.number(), &reference)));
    }

    /// Removes at once the attempts that the next record would remove; if that fails, workers do
    /// it.
    pub(crate) fn forget_attempts(&self) {
        let over = std::mem::take(&mut *self.attempts_over.lock());
        if !over.is_empty() {
            let guards = vec![Guard::Exists];
            let _ = self.kernel.until_answered(&Write {
                object: self.attempts_shard(),
                guards,
                changes: vec![Change::DropOmap(over)],
            });
        }
    }
}
