//! Workers: background deduplication, as many as one likes.
//!
//! | module | what |
//! |---|---|
//! | this one | which object is next |
//! | [`dedup`] | one object: add reference, flip, drop |
//! | [`recut`] | the same where cuts are to be moved, by [`cuts`] |
//! | [`lease`] | which shards of the dirty list are ours |
//! | [`backoff`] | doing less while the cluster is slow, or recovers |
//! | [`rate`] | how much may be done beside the load that there is |

mod backoff;
pub(crate) mod cuts;
mod dedup;
mod lease;
mod rate;
mod recut;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use onefold_core::{
    Result,
    object::{Look, Refusal},
};

use self::{backoff::Backoff, lease::Leases};

pub use rate::{Marks, Rate};

use crate::{
    format::{ObjectId, key},
    map::shard_name,
    session::{Session, failed},
};

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
    /// True when nothing was done, since the cluster is slow or recovers.
    pub waits: bool,
}

/// A worker; one thread calls its steps.
pub struct Worker {
    session: Arc<Session>,
    leases: Leases,
    backoff: Backoff,
    /// Leased shards of this round, the next one first.
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
        let backoff = Backoff::new(session.settings.pause);
        Worker {
            session,
            leases: Leases::default(),
            backoff,
            shards: VecDeque::new(),
            after: Vec::new(),
            waiting: BTreeMap::new(),
            rate: Rate::new(marks),
        }
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
        let begun = self.session.store.time();
        if self.backoff.waits(begun) {
            return Ok(Progress { waits: true, ..Progress::default() });
        }
        if self.shards.is_empty() {
            self.shards = self.leases.take(&self.session, self.rate.workers()).map_err(deduplication)?;
        }
        let Some(shard) = self.shards.front().copied() else {
            self.rate.spent(1);
            return Ok(Progress { operations: 1, round: true, ..Progress::default() });
        };
        let result = self.shard_step(shard).map_err(deduplication);
        if self.shards.front() == Some(&shard) && !matches!(&result, Ok(progress) if progress.seen > 0) {
            self.next_shard();
        }
        let mut progress = result?;
        progress.round = self.shards.is_empty();
        self.rate.spent(progress.operations);
        self.backoff.note(begun, self.session.store.time(), progress.operations, self.session.store.recovers());
        Ok(progress)
    }

    /// Gives the shards that it has to other workers.
    pub fn release(&mut self) {
        self.leases.give_all_back(&self.session);
        self.shards.clear();
    }

    fn next_shard(&mut self) {
        self.shards.pop_front();
        self.after.clear();
    }

    fn shard_step(&mut self, number: u16) -> Result<Progress, Refusal> {
        let mut progress = Progress { operations: 1, ..Progress::default() };
        if !self.leases.keep(&self.session, number)? {
            return Ok(progress);
        }
        let shard = &shard_name(number);
        // Where each operation counts, a step is as small as it can be.
        let most = if self.rate.is_limited() { 1 } else { self.session.settings.objects_per_step.max(1) };
        let sight = match self.session.read_one(shard, vec![Look::Page(self.after.clone(), most)]) {
            Err(Refusal::Missing) => return Ok(progress),
            other => other?,
        };
        let (pairs, more) = sight.pairs(0);
        if pairs.is_empty() {
            return Ok(progress);
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
            if !self.leases.keep(&self.session, number)? {
                break;
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
        Ok(progress)
    }
}
