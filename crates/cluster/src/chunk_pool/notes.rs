//! Records of the references that this session is about to add, and their removal; see
//! [`attempts`](crate::attempts).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use onefold_core::object::{Change, Guard, ObjectName, Refusal, Write};
use parking_lot::Mutex;

use crate::{
    format::{ChunkId, Reference, attempt, key},
    kernel::Kernel,
    rules::Rule,
};

/// The object with the attempts of some sessions.
pub(crate) fn shard_name(shard: u16) -> ObjectName {
    ObjectName::metadata(format!("a.{shard:02x}"))
}

/// The attempts of one session.
pub(super) struct Notes {
    kernel: Arc<Kernel>,
    /// Keys of attempts that the next record of attempts removes.
    over: Mutex<Vec<Vec<u8>>>,
    /// Attempts that the next record of attempts sets again, with the chunks.
    open: Mutex<BTreeMap<Reference, ChunkId>>,
}

/// A record of attempts on its way.
pub(super) struct Record {
    pub(super) op: Write,
    /// Attempts that it sets again: they stay open where it fails.
    pub(super) again: BTreeMap<Reference, ChunkId>,
}

/// Most attempts that are kept to be set again: a scrub finds what further ones leave.
const OPEN_MAX: usize = 1024;

impl Notes {
    pub(super) fn new(kernel: Arc<Kernel>) -> Notes {
        Notes { kernel, over: Mutex::default(), open: Mutex::default() }
    }

    fn shard(&self) -> ObjectName {
        shard_name((self.kernel.number() % u64::from(self.kernel.format().shards)) as u16)
    }

    /// Attempts as one record has them.
    fn pairs<'a>(
        &self,
        attempts: impl Iterator<Item = (&'a Reference, &'a ChunkId)>,
    ) -> Vec<(Vec<u8>, Vec<u8>)> {
        let (number, stamp) = (self.kernel.number(), self.kernel.stamp());
        attempts
            .map(|(reference, id)| (key::attempt(number, reference), attempt::encode(id, stamp)))
            .collect()
    }

    /// The operation that records references before they are added, and removes attempts that are
    /// over. Who sends it calls [`failed`](Self::failed) where it was not applied.
    pub(super) fn record_op(&self, wanted: &[(ChunkId, &[u8], Reference)]) -> Option<Record> {
        if wanted.is_empty() || !self.kernel.keeps(Rule::AttemptNotedFirst) {
            return None;
        }
        let mut over = std::mem::take(&mut *self.over.lock());
        if !self.kernel.keeps(Rule::AttemptsTakenBack) {
            over.clear();
        }
        let again = std::mem::take(&mut *self.open.lock());
        let wanted = wanted.iter().map(|(id, _, reference)| (reference, id));
        let pairs = self.pairs(again.iter().chain(wanted));
        let changes = vec![Change::DropOmap(over), Change::SetOmap(pairs)];
        Some(Record { op: Write { object: self.shard(), guards: Vec::new(), changes }, again })
    }

    /// Records references before they are added.
    pub(super) fn record(&self, wanted: &[(ChunkId, &[u8], Reference)]) -> Result<(), Refusal> {
        let Some(record) = self.record_op(wanted) else { return Ok(()) };
        let recorded = self.kernel.until_answered(&record.op).map(|_| ());
        recorded.inspect_err(|_| self.failed(record.again))
    }

    /// A record of attempts failed, or the step behind it: the next record sets these again.
    pub(super) fn failed(&self, again: BTreeMap<Reference, ChunkId>) {
        self.are_open(again.into_iter().map(|(reference, id)| (id, reference)));
    }

    /// The next record of attempts removes those at these references.
    pub(super) fn are_over(&self, references: impl IntoIterator<Item = Reference>) {
        let over: BTreeSet<Reference> = references.into_iter().collect();
        self.open.lock().retain(|reference, _| !over.contains(reference));
        let number = self.kernel.number();
        self.over.lock().extend(over.iter().map(|reference| key::attempt(number, reference)));
    }

    /// The next record of attempts sets those at these references again: their step failed, and a worker
    /// that judged them before the references were there has removed them.
    pub(super) fn are_open(&self, attempts: impl IntoIterator<Item = (ChunkId, Reference)>) {
        let mut open = self.open.lock();
        for (id, reference) in attempts {
            if open.len() < OPEN_MAX || open.contains_key(&reference) {
                open.insert(reference, id);
            }
        }
    }

    /// Writes at once what the next record would write before it notes new references: an orderly end has
    /// no next record. If that fails, workers remove what is over, and a scrub finds what is open.
    pub(super) fn settle(&self) {
        let over = std::mem::take(&mut *self.over.lock());
        let open = std::mem::take(&mut *self.open.lock());
        if over.is_empty() && open.is_empty() {
            return;
        }
        let pairs = self.pairs(open.iter());
        let settled = self.kernel.until_answered(&Write {
            object: self.shard(),
            guards: if pairs.is_empty() { vec![Guard::Exists] } else { Vec::new() },
            changes: vec![Change::DropOmap(over), Change::SetOmap(pairs)],
        });
        if settled.is_err() {
            self.failed(open);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use onefold_core::object::PoolKind;
    use onefold_testbed::MemoryObjects;

    use super::*;
    use crate::{
        Format, Session, Settings,
        attempts::LeftBehind,
        create,
        format::{ObjectId, Stamp},
    };

    /// The attempts that the store has, by their references.
    fn noted(session: &Session) -> BTreeSet<Reference> {
        let shards: Vec<ObjectName> = (0..session.format().shards).map(shard_name).collect();
        let mut noted = BTreeSet::new();
        let mut learn = |keys: &[(Vec<u8>, Vec<u8>)]| {
            noted.extend(keys.iter().filter_map(|(key, _)| key::parse_attempt(key)));
        };
        session
            .kernel()
            .pages_of(&shards, &[], |_, keys| {
                learn(keys);
                Ok(())
            })
            .unwrap();
        assert_eq!(LeftBehind::of(session).attempts().unwrap().len(), noted.len());
        noted
    }

    #[test]
    fn an_orderly_end_notes_what_a_failed_step_left_open_and_removes_what_is_over() {
        let store = Arc::new(MemoryObjects::new(PoolKind::Replicated));
        create(&*store, &Format::new([1; 16], [2; 32], PoolKind::Replicated)).unwrap();
        let session = Session::open(store, Settings::default()).unwrap();
        let pool = session.chunk_pool();
        let data = vec![7; 4096];
        let id = pool.chunk_id(&data);
        let [kept, ended, lost] = [0, 1, 2].map(|index| Reference {
            object: ObjectId { volume: 1, index },
            offset: 0,
            stamp: Stamp(index + 1),
        });
        let chunks = pool
            .add_references(&[(id, data.as_slice(), kept), (id, data.as_slice(), ended)])
            .unwrap();
        // A step behind one of them failed; the other one is in use. A worker judged what a session
        // noted before its reference was there, and removed the note of it.
        pool.attempts_are_over([(chunks[1], ended)]);
        pool.attempts_are_open([(chunks[0], lost)]);
        assert_eq!(noted(&session), [kept, ended].into());
        pool.settle_attempts();
        assert_eq!(noted(&session), [kept, lost].into());
        // Once is enough.
        let stamps = session.kernel().stamp();
        pool.settle_attempts();
        assert_eq!(session.kernel().stamp().0, stamps.0 + 1, "nothing was left to settle");
    }
}
