//! Workers: background deduplication, as many as one likes.
//!
//! | module | what |
//! |---|---|
//! | this one | which object is next: shards of the dirty list, leased |
//! | [`dedup`] | one object: add reference, flip, drop |
//! | [`recut`] | the same where cuts are to be moved, by [`cuts`] |
//! | [`rate`] | how much may be done beside the load that there is |

pub(crate) mod cuts;
mod dedup;
mod rate;
mod recut;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use onefold_core::{
    Result,
    object::{Look, ObjectName, Read, Refusal},
};

pub use rate::{Marks, Rate};

use crate::{
    format::{ObjectId, key},
    map::shard_name,
    session::{Session, failed},
};

/// The lock of who works on a shard. A lease saves work; nothing rests on it.
const LEASE: &str = "lease";

/// Objects that wait because somebody was faster, at most; what finds no room is tried at once.
const WAITING_MAX: usize = 4096;

/// After so many doublings an object that is always changed is deduplicated all the same.
const DOUBLINGS_MAX: u32 = 8;

/// What a step did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Objects that were on the list.
    pub seen: u64,
    /// Chunks that were deduplicated.
    pub flipped: u64,
    /// Objects that are too hot, or were changed meanwhile.
    pub later: u64,
    /// Operations of deduplication.
    pub operations: u64,
    /// True at the end of the list.
    pub round: bool,
}

/// A worker; one thread calls its steps.
pub struct Worker {
    session: Arc<Session>,
    /// Shards of this round that had something on their list, the next one first.
    shards: VecDeque<u16>,
    /// Where the next step goes on in the first of them.
    after: Vec<u8>,
    /// When an object may be tried again, and how often it failed.
    waiting: BTreeMap<ObjectId, (Duration, u32)>,
    rate: Rate,
}

impl Worker {
    /// A worker that starts at a shard of its own.
    #[must_use]
    pub fn new(session: Arc<Session>, marks: Marks) -> Worker {
        Worker { session, shards: VecDeque::new(), after: Vec::new(), waiting: BTreeMap::new(), rate: Rate::new(marks) }
    }

    /// Its session.
    #[must_use]
    pub fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// Looks at the load, and says how many operations may be done now.
    ///
    /// # Errors
    /// The store's.
    pub fn allowance(&mut self, now: Duration) -> Result<u64> {
        let loads = self.session.loads().map_err(|refusal| failed("the load can't be read", refusal))?;
        Ok(self.rate.allowance(now, &loads))
    }

    /// Deduplicates some objects of the next shard.
    ///
    /// # Errors
    /// The store's; the next step goes on behind what failed.
    pub fn step(&mut self) -> Result<Progress> {
        let deduplication = |refusal| failed("deduplication", refusal);
        if self.shards.is_empty() {
            self.shards = self.look().map_err(deduplication)?;
        }
        let Some(shard) = self.shards.front().copied() else {
            self.rate.spent(1);
            return Ok(Progress { operations: 1, round: true, ..Progress::default() });
        };
        let result = self.shard_step(&shard_name(shard)).map_err(deduplication);
        if self.shards.front() == Some(&shard) && !matches!(&result, Ok(progress) if progress.seen > 0) {
            self.next_shard();
        }
        let mut progress = result?;
        progress.round = self.shards.is_empty();
        self.rate.spent(progress.operations);
        Ok(progress)
    }

    /// The shards that have something on their list, from ours on.
    fn look(&self) -> Result<VecDeque<u16>, Refusal> {
        let shards = self.session.format.shards;
        let own = (self.session.number() % u64::from(shards)) as u16;
        let all: Vec<u16> = (own..shards).chain(0..own).collect();
        let look = |shard: &u16| Read { object: shard_name(*shard), looks: vec![Look::Page(Vec::new(), 1)] };
        let sights = self.session.read_all(&all.iter().map(look).collect::<Vec<_>>());
        let mut found = VecDeque::new();
        for (shard, sight) in all.into_iter().zip(sights) {
            match sight {
                Ok(sight) if !sight.pairs(0).0.is_empty() => found.push_back(shard),
                Ok(_) | Err(Refusal::Missing) => {}
                Err(refusal) => return Err(refusal),
            }
        }
        Ok(found)
    }

    fn next_shard(&mut self) {
        self.shards.pop_front();
        self.after.clear();
    }

    fn shard_step(&mut self, shard: &ObjectName) -> Result<Progress, Refusal> {
        let mut progress = Progress { operations: 1, ..Progress::default() };
        let most = self.session.settings.objects_per_step.max(1);
        let sight = match self.session.read_one(shard, vec![Look::Page(self.after.clone(), most)]) {
            Err(Refusal::Missing) => return Ok(progress),
            other => other?,
        };
        let (pairs, more) = sight.pairs(0);
        if pairs.is_empty() {
            return Ok(progress);
        }
        let cookie = format!("session {}", self.session.number());
        match self.session.store.lock(shard, LEASE, &cookie, Some(self.session.settings.lease)) {
            Ok(()) => {}
            Err(Refusal::Busy | Refusal::Unknown) => return Ok(progress),
            Err(refusal) => return Err(refusal),
        }
        let now = self.session.store.time();
        let keys: Vec<Vec<u8>> = pairs.iter().map(|(key, _)| key.clone()).collect();
        for key in &keys {
            self.after.clone_from(key);
            let Some((object, _)) = key::parse_listed(key) else {
                self.session.list_remove(shard, key.clone())?;
                continue;
            };
            progress.seen += 1;
            let waits = self.waiting.get(&object).copied();
            if waits.is_some_and(|(until, _)| now < until) {
                progress.later += 1;
                continue;
            }
            let done = self.session.deduplicate(object, shard, key, now)?;
            progress.operations += done.operations;
            progress.flipped += done.flipped;
            self.waiting.remove(&object);
            if done.again {
                progress.later += 1;
                let failures = waits.map_or(0, |(_, failures)| failures + 1).min(DOUBLINGS_MAX);
                if self.waiting.len() < WAITING_MAX {
                    self.waiting.insert(object, (now + self.session.settings.cold * (1 << failures), failures));
                }
            }
        }
        if !more {
            self.next_shard();
        }
        // It ends by itself.
        let _ = self.session.store.unlock(shard, LEASE, &cookie);
        Ok(progress)
    }
}
