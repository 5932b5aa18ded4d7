//! Workers: background deduplication, as many as one likes.
//!
//! | module | what |
//! |---|---|
//! | this one | which object is next |
//! | [`dedup`] | objects of the dirty list, several at once |
//! | [`flip`] | their chunks: add reference, flip, drop |
//! | [`recut`] | the same where cuts are to be moved, by [`cuts`] |
//! | [`lease`] | which shards of the dirty list are ours |
//! | [`backoff`] | doing less while the cluster is slow, or recovers |
//! | [`rate`] | how much may be done beside the load that there is |

mod backoff;
pub(crate) mod cuts;
mod dedup;
mod flip;
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
    object::{Look, ObjectName, Read, Refusal},
};

use self::{backoff::Backoff, dedup::Listed, lease::Leases};

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
        if self.shards.is_empty() {
            self.rate.spent(1);
            return Ok(Progress { operations: 1, round: true, ..Progress::default() });
        }
        let (first, after) = (self.shards.front().copied(), self.after.clone());
        let result = self.objects_step().map_err(deduplication);
        // What failed is tried again in the next round.
        if let (Err(_), Some(shard)) = (&result, first)
            && (self.shards.front(), &self.after) == (Some(&shard), &after)
        {
            self.leave_shard(shard);
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

    fn leave_shard(&mut self, number: u16) {
        if self.shards.front() == Some(&number) {
            self.after.clear();
        }
        self.shards.retain(|shard| *shard != number);
    }

    /// Takes objects off the lists of the next shards, as many as a step has, and deduplicates them together.
    fn objects_step(&mut self) -> Result<Progress, Refusal> {
        let mut progress = Progress::default();
        // Where each operation counts, a step is as small as it can be.
        let most = if self.rate.is_limited() { 1 } else { self.session.settings.objects_per_step.max(1) };
        let next: Vec<u16> = self.shards.iter().take(most).copied().collect();
        let mut kept = Vec::new();
        for number in next {
            progress.operations += 1;
            if self.leases.keep(&self.session, number)? {
                kept.push(number);
            } else {
                self.leave_shard(number);
            }
        }
        let look = |(n, number): (usize, &u16)| {
            let after = if n == 0 && self.shards.front() == Some(number) { self.after.clone() } else { Vec::new() };
            Read { object: shard_name(*number), looks: vec![Look::Page(after, most)] }
        };
        let sights = self.session.read_all(&kept.iter().enumerate().map(look).collect::<Vec<_>>());
        let now = self.session.store.time();
        let (mut listed, mut room) = (Vec::new(), most);
        for (number, sight) in kept.into_iter().zip(sights) {
            if room == 0 {
                break;
            }
            let sight = match sight {
                Err(Refusal::Missing) => {
                    self.leave_shard(number);
                    continue;
                }
                other => other?,
            };
            let (pairs, more) = sight.pairs(0);
            let taken = &pairs[..pairs.len().min(room)];
            room -= taken.len();
            listed.extend(taken.iter().map(|(key, _)| (shard_name(number), key.clone())));
            match taken.last() {
                // Those before it are done: it is the first one now.
                Some((last, _)) if more || taken.len() < pairs.len() => {
                    self.after.clone_from(last);
                    break;
                }
                _ => self.leave_shard(number),
            }
        }
        self.deduplicate(listed, now, &mut progress)?;
        Ok(progress)
    }

    /// Deduplicates what may be tried again; the first error, when all others are done.
    fn deduplicate(&mut self, keys: Vec<(ObjectName, Vec<u8>)>, now: Duration, progress: &mut Progress) -> Result<(), Refusal> {
        let mut listed = Vec::new();
        for (shard, key) in keys {
            let Some((object, _)) = key::parse_listed(&key) else {
                self.session.list_remove(&shard, key)?;
                continue;
            };
            progress.seen += 1;
            if self.waiting.get(&object).is_some_and(|(until, _)| now < *until) {
                progress.later += 1;
                continue;
            }
            listed.push(Listed { object, shard, key });
        }
        let mut failed = None;
        for (Listed { object, .. }, result) in listed.iter().zip(self.session.deduplicate(&listed, now)) {
            let done = match result {
                Ok(done) => done,
                Err(refusal) => {
                    failed = failed.or(Some(refusal));
                    continue;
                }
            };
            progress.operations += done.operations;
            progress.flipped += done.flipped;
            let waits = self.waiting.remove(object);
            if done.again {
                progress.later += 1;
                let failures = waits.map_or(0, |(_, failures)| failures + 1).min(DOUBLINGS_MAX);
                if self.waiting.len() < WAITING_MAX {
                    self.waiting.insert(*object, (now + self.session.settings.cold * (1 << failures), failures));
                }
            }
        }
        failed.map_or(Ok(()), Err)
    }
}
