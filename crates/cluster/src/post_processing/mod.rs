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

mod backoff;
pub(crate) mod cuts;
mod dedup;
pub(crate) mod flip;
mod lease;
mod recut;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use onefold_core::{
    Kind, Result,
    object::{Read, ReadPart, Refusal},
};

use self::{
    backoff::Backoff,
    dedup::{Job, Listed},
    lease::Leases,
};

use crate::{
    attempts::Judge,
    dirty_list::{DirtyList, shard_name},
    format::{ObjectId, key},
    post_processing::flip::{Deduplication, Unread},
    presence::Presence,
    rate_control::{Rate, Watermarks},
    replies::failed,
    session::Session,
};

/// Most objects that wait because another session changed them first; any beyond this are tried at
/// once.
const WAITING_MAX: usize = 4096;

/// Most objects that were left since somebody asked of which the worker tells why.
const TOLD_MAX: usize = 1000;

/// Chunks of a step while there is a limit: enough that looking at list and map is little beside
/// them.
const LIMITED_CHUNKS: u64 = 8;

/// After so many doublings an object that is always changed or read is deduplicated all the same:
/// with a cold period of 10 s after 85 minutes.
const DOUBLINGS_MAX: u32 = 8;

/// The counts of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Objects that were on the list.
    pub seen: u64,
    /// Chunks that were deduplicated.
    pub flipped: u64,
    /// Objects that are too hot, or were changed meanwhile.
    pub later: u64,
    /// Objects that stay on the list, since their map or a chunk that they need is damaged.
    pub left: u64,
    /// Operations of deduplication.
    pub operations: u64,
    /// True at the end of the list.
    pub round: bool,
    /// True when nothing was done, since the cluster is slow or recovers.
    pub waits: bool,
}

/// Keys of the dirty list.
struct Page {
    shard: u16,
    keys: Vec<Vec<u8>>,
    /// There are others behind them.
    more: bool,
}

/// Why an object waits.
#[derive(Clone, Copy, Default)]
struct Waits {
    /// When it may be tried again.
    until: Duration,
    /// How often it failed.
    failures: u32,
    /// True when it was left because of damage.
    left: bool,
}

/// A worker; one thread calls its steps.
pub struct Worker {
    session: Arc<Session>,
    leases: Leases,
    backoff: Backoff,
    /// Leased shards of this round, the next one first.
    shards: VecDeque<u16>,
    /// The key after which the next step continues in the first shard.
    after: Vec<u8>,
    /// Objects that the next step looks at: their dirty data should be about enough for one step.
    objects: usize,
    waiting: BTreeMap<ObjectId, Waits>,
    /// What could not be read of the object with which the next step begins.
    unread: Option<(ObjectId, Unread)>,
    /// Objects that were left, and why; not told yet.
    untold: Vec<(ObjectId, String)>,
    presence: Presence,
    rate: Rate,
    judge: Judge,
}

impl Worker {
    /// A worker that starts at a shard of its own.
    #[must_use]
    pub fn new(session: Arc<Session>, marks: Watermarks) -> Worker {
        let backoff = Backoff::new(session.kernel().settings().pause);
        Worker {
            session,
            leases: Leases::default(),
            backoff,
            shards: VecDeque::new(),
            after: Vec::new(),
            objects: 1,
            waiting: BTreeMap::new(),
            unread: None,
            untold: Vec::new(),
            presence: Presence::default(),
            rate: Rate::new(marks),
            judge: Judge::default(),
        }
    }

    /// The session of the worker.
    #[must_use]
    pub fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// Looks at the load, and returns how many operations may be done now.
    ///
    /// # Errors
    /// The store's.
    pub fn allowance(&mut self, now: Duration) -> Result<u64> {
        let did = self.presence.look_at(self.session.kernel(), now)?;
        Ok(self.rate.allowance(now, &did))
    }

    /// The objects that were left because of damage since this was asked last, with a sentence each;
    /// 1,000 at most. The worker tries them again, ever more seldom, and tells of each once.
    pub fn take_left(&mut self) -> Vec<(ObjectId, String)> {
        std::mem::take(&mut self.untold)
    }

    /// Deduplicates some objects of the next shard. What is damaged keeps no other object waiting.
    ///
    /// # Errors
    /// The store's. The next step continues behind the object that failed.
    pub fn step(&mut self) -> Result<Progress> {
        let deduplication = |refusal| failed("deduplication", refusal);
        self.session.kernel().has_stamps()?;
        if self.backoff.waits(self.session.kernel().store().time()) {
            return Ok(Progress { waits: true, ..Progress::default() });
        }
        let judged =
            self.judge.step(&self.session, self.rate.is_limited()).map_err(deduplication)?;
        self.rate.spent(judged);
        let begun = self.session.kernel().store().time();
        if self.shards.is_empty() {
            self.shards =
                self.leases.acquire(&self.session, self.rate.workers()).map_err(deduplication)?;
        }
        if self.shards.is_empty() {
            self.rate.spent(1);
            return Ok(Progress { operations: 1, round: true, ..Progress::default() });
        }
        let (first, after) = (self.shards.front().copied(), self.after.clone());
        let result = self.objects_step().map_err(deduplication);
        // Objects that failed are tried again in the next round.
        if let (Err(_), Some(shard)) = (&result, first)
            && (self.shards.front(), &self.after) == (Some(&shard), &after)
        {
            self.leave_shard(shard);
        }
        let mut progress = result?;
        progress.round = self.shards.is_empty();
        self.rate.spent(progress.operations);
        self.backoff.record_step(
            begun,
            self.session.kernel().store().time(),
            progress.operations,
            self.session.kernel().store().recovers(),
        );
        progress.operations += judged;
        Ok(progress)
    }

    /// Gives the shards that it has to other workers.
    pub fn release(&mut self) {
        self.session.chunk_pool().settle_attempts();
        self.leases.give_all_back(&self.session);
        self.shards.clear();
    }

    fn leave_shard(&mut self, number: u16) {
        if self.shards.front() == Some(&number) {
            self.after.clear();
        }
        self.shards.retain(|shard| *shard != number);
    }

    /// Deduplicates together as many objects of the next shards as fit in one step.
    fn objects_step(&mut self) -> Result<Progress, Refusal> {
        let mut progress = Progress::default();
        let settings = &self.session.kernel().settings();
        // While operations are limited a step is small: its operations are paid for before the next
        // one.
        let (most, bytes) = if self.rate.is_limited() {
            (
                1,
                settings
                    .batch_bytes
                    .min(LIMITED_CHUNKS * u64::from(self.session.kernel().format().chunk_bytes)),
            )
        } else {
            (self.objects, settings.batch_bytes)
        };
        let pages = self.pages(most, &mut progress)?;
        let now = self.session.kernel().store().time();
        let keys: Vec<(u16, &Vec<u8>)> =
            pages.iter().flat_map(|page| page.keys.iter().map(|key| (page.shard, key))).collect();
        let (mut places, mut listed) = (Vec::new(), Vec::new());
        for (place, (shard, key)) in keys.iter().enumerate() {
            let shard = shard_name(*shard);
            let Some((object, _)) = key::parse_listed(key) else {
                DirtyList::of(self.session.kernel()).remove(&shard, (*key).clone())?;
                continue;
            };
            progress.seen += 1;
            let waits = self.waiting.get(&object).copied().unwrap_or_default();
            if now < waits.until {
                *(if waits.left { &mut progress.left } else { &mut progress.later }) += 1;
                continue;
            }
            let unread = self.unread.as_ref().filter(|(of, _)| *of == object);
            places.push(place);
            listed.push(Listed {
                object,
                shard,
                key: (*key).clone(),
                overdue: !waits.left && waits.failures >= DOUBLINGS_MAX,
                unread: unread.map(|(_, unread)| unread.clone()).unwrap_or_default(),
            });
        }
        let jobs = Deduplication::of(&self.session).jobs(&listed, now, bytes);
        let too_many = listed.len() - jobs.len();
        progress.operations += too_many as u64;
        self.objects = if too_many > 0 {
            jobs.len()
        } else {
            (self.objects + 1).min(self.session.kernel().settings().objects_per_step.max(1))
        };
        let done = jobs.iter().filter(|job| !job.is_partial()).count();
        self.go_on_behind(&pages, places.get(done).copied().unwrap_or(keys.len()));
        self.deduplicate(jobs, now, &mut progress)?;
        Ok(progress)
    }

    /// The next keys of the next shards, `most` at most of all together.
    fn pages(&mut self, most: usize, progress: &mut Progress) -> Result<Vec<Page>, Refusal> {
        let next: Vec<u16> = self.shards.iter().take(most).copied().collect();
        let mut kept = Vec::new();
        for shard in next {
            progress.operations += 1;
            if self.leases.keep(&self.session, shard)? {
                kept.push(shard);
            } else {
                self.leave_shard(shard);
            }
        }
        let look = |(n, shard): (usize, &u16)| {
            let after = if n == 0 && self.shards.front() == Some(shard) {
                self.after.clone()
            } else {
                Vec::new()
            };
            Read { object: shard_name(*shard), parts: vec![ReadPart::Page(after, most)] }
        };
        let answers =
            self.session.kernel().read_all(&kept.iter().enumerate().map(look).collect::<Vec<_>>());
        let (mut pages, mut room) = (Vec::new(), most);
        for (shard, answer) in kept.into_iter().zip(answers) {
            let (pairs, more) = match &answer {
                Err(Refusal::Missing) => (&[][..], false),
                Err(refusal) => return Err(refusal.clone()),
                Ok(answer) => answer.pairs(0),
            };
            let keys: Vec<Vec<u8>> = pairs.iter().take(room).map(|(key, _)| key.clone()).collect();
            room -= keys.len();
            let more = more || keys.len() < pairs.len();
            pages.push(Page { shard, keys, more });
            if room == 0 || more {
                break;
            }
        }
        Ok(pages)
    }

    /// The next step begins behind the first `taken` keys of the pages.
    fn go_on_behind(&mut self, pages: &[Page], mut taken: usize) {
        for Page { shard, keys, more } in pages {
            if taken >= keys.len() && !more {
                taken -= keys.len();
                self.leave_shard(*shard);
                continue;
            }
            // The shards before this one are done: it is the first one now.
            if let Some(last) = keys.get(..taken.min(keys.len())).and_then(<[_]>::last) {
                self.after.clone_from(last);
            }
            break;
        }
    }

    /// Works on objects; returns the first error, after all others are done.
    fn deduplicate(
        &mut self,
        jobs: Vec<Job<'_>>,
        now: Duration,
        progress: &mut Progress,
    ) -> Result<(), Refusal> {
        let partial = jobs.iter().find(|job| job.is_partial()).map(Job::object);
        let known = self.unread.take();
        let results = Deduplication::of(&self.session).deduplicate(jobs);
        let mut failed = None;
        for (object, result) in results {
            let done = match result {
                Ok(done) => done,
                Err(Refusal::Failed(error)) if error.kind() == Kind::Corrupt => {
                    self.leave(object, Refusal::Failed(error), now, progress);
                    continue;
                }
                Err(refusal) => {
                    failed = failed.or(Some(refusal));
                    continue;
                }
            };
            progress.operations += done.operations;
            progress.flipped += done.flipped;
            if partial == Some(object) && !done.unread.entries.is_empty() {
                let before = known.as_ref().filter(|(of, _)| *of == object);
                let before = before.map_or(0, |(_, unread)| unread.entries.len());
                let more = done.unread.entries.len() > before;
                self.unread = Some((object, done.unread.clone()));
                // The next step goes on with the entries behind those that it can't read.
                if more {
                    continue;
                }
            }
            if let (true, Some(why)) = (done.left, done.unread.why) {
                self.leave(object, why, now, progress);
                continue;
            }
            let waits = self.waiting.remove(&object);
            if done.again {
                progress.later += 1;
                self.wait(object, waits.map_or(0, |waits| waits.failures + 1), false, now);
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Leaves an object because of damage, and remembers to tell of it.
    fn leave(&mut self, object: ObjectId, why: Refusal, now: Duration, progress: &mut Progress) {
        progress.left += 1;
        let before = self.waiting.remove(&object).filter(|waits| waits.left);
        if before.is_none() && self.untold.len() < TOLD_MAX {
            self.untold.push((object, failed("it can't be deduplicated", why).to_string()));
        }
        self.wait(object, before.map_or(0, |waits| waits.failures + 1), true, now);
    }

    /// Puts an object off, if there is room to remember it.
    fn wait(&mut self, object: ObjectId, failures: u32, left: bool, now: Duration) {
        let failures = failures.min(DOUBLINGS_MAX);
        if self.waiting.len() < WAITING_MAX {
            let until = now + self.session.kernel().settings().cold * (1 << failures);
            self.waiting.insert(object, Waits { until, failures, left });
        }
    }
}
