//! Deduplicating the metadata objects of the dirty list: several at once, so that each step is one
//! round trip for all of them.
//!
//! Dirty and cold chunks go through the steps of [`flip`](super::flip), as many at a time as fit in
//! the memory of a step. Objects share only the batches: an object whose operation fails does not
//! stop the others.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use onefold_core::{
    clock::age,
    object::{Change, Guard, ObjectName, Read, Refusal, Write},
};

use super::flip::{Deduplication, Done, FLIP_ENTRIES, Group, Unread};
use crate::{
    chunk_map::{ChunkMap, map_parts},
    dirty_list::DirtyList,
    format::{Chunk, ObjectId, Reference, entry::Entry, key},
    volume::cache_manager,
};

/// A key of the dirty list.
#[derive(Clone)]
pub(super) struct Listed {
    pub(super) object: ObjectId,
    pub(super) shard: ObjectName,
    pub(super) key: Vec<u8>,
    /// The object stayed hot through `DOUBLINGS_MAX` retries: deduplicate it now, hot or not.
    pub(super) overdue: bool,
    /// Entries that earlier steps of this round could not read: they are not tried again.
    pub(super) unread: Unread,
}

/// The work that an object's map asks for.
enum Plan {
    /// Nothing: the key of the list is left over.
    LeftOver,
    /// Nothing yet: it was written lately.
    Hot,
    /// The chunk boundaries must move, because of these entries.
    Recut(Vec<(u32, Entry)>),
    /// Entries to be flipped.
    Flip(Vec<(u32, Entry)>),
}

/// An object on its way.
pub(super) struct Job<'a> {
    listed: &'a Listed,
    plan: Plan,
    pending: Vec<(Chunk, Reference)>,
    /// Entries of the plan that are done.
    taken: usize,
    /// True when the object has more dirty entries, which the next step deduplicates.
    partial: bool,
    result: Result<Done, Refusal>,
}

impl Job<'_> {
    /// Bytes of chunks that it moves.
    fn bytes(&self) -> u64 {
        if let Plan::Flip(entries) = &self.plan {
            entries.iter().map(|(_, entry)| u64::from(entry.length)).sum()
        } else {
            0
        }
    }

    /// Leaves to the next step the entries beyond so many bytes.
    fn cut(&mut self, most: u64) {
        if let Plan::Flip(entries) = &mut self.plan {
            let (all, mut bytes) = (entries.len(), 0);
            let fits = |(_, entry): &&(u32, Entry)| {
                bytes += u64::from(entry.length);
                bytes <= most
            };
            entries.truncate(entries.iter().take_while(fits).count().max(1));
            self.partial = entries.len() < all;
        }
    }

    pub(super) fn object(&self) -> ObjectId {
        self.listed.object
    }

    /// True when all work that a map of the object, read afterwards, still has needs what could not
    /// be read.
    fn is_left(&self, map: &ChunkMap) -> bool {
        let Ok(done) = &self.result else { return false };
        let unread = |(at, entry): (&u32, &Entry)| done.unread.entries.get(at) == Some(entry);
        if matches!(self.plan, Plan::Recut(_)) {
            // Cutting begins anew at the same place each time.
            return map.entries.iter().any(unread);
        }
        let mut dirty = map.entries.iter().filter(|(_, entry)| entry.dirty).peekable();
        map.pending.is_empty() && dirty.peek().is_some() && dirty.all(unread)
    }

    /// True when the next step begins with the same object.
    pub(super) fn is_partial(&self) -> bool {
        self.partial
    }

    fn add(&mut self, more: Result<Done, Refusal>) {
        match (&mut self.result, more) {
            (Ok(done), Ok(more)) => done.add(more),
            (result, Err(refusal)) if result.is_ok() => *result = Err(refusal),
            _ => {}
        }
    }

    /// The next entries, at most `room` bytes of them; with `one` at least one entry.
    fn next(&mut self, room: u64, one: bool) -> Vec<(u32, Entry)> {
        let Plan::Flip(entries) = &self.plan else { return Vec::new() };
        if self.result.is_err() {
            return Vec::new();
        }
        let mut bytes = 0;
        let fits = |(n, (_, entry)): &(usize, &(u32, Entry))| {
            bytes += u64::from(entry.length);
            bytes <= room || *n == 0 && one
        };
        let next: Vec<_> = entries[self.taken..]
            .iter()
            .take(FLIP_ENTRIES)
            .enumerate()
            .take_while(fits)
            .map(|(_, pair)| pair.clone())
            .collect();
        self.taken += next.len();
        next
    }
}

impl Deduplication<'_> {
    /// Decides the work for the first of these objects, until it is enough for one step.
    pub(super) fn jobs<'a>(
        &self,
        listed: &'a [Listed],
        now: Duration,
        step_bytes: u64,
    ) -> Vec<Job<'a>> {
        let reads: Vec<Read> = listed
            .iter()
            .map(|listed| Read { object: listed.object.name(), parts: map_parts() })
            .collect();
        let job = |(listed, answer): (&'a Listed, _)| {
            self.job(
                listed,
                ChunkMap::from_answer(listed.object, answer),
                (!listed.overdue).then_some(now),
            )
        };
        let mut jobs: Vec<Job<'a>> =
            listed.iter().zip(self.kernel.read_all(&reads)).map(job).collect();
        self.skip_hot(&mut jobs, now);
        let (mut bytes, mut count) = (0, 0);
        for job in &mut jobs {
            if count == 0 {
                job.cut(step_bytes);
            }
            bytes += job.bytes();
            if bytes > step_bytes && count > 0 {
                break;
            }
            count += 1;
            if job.partial {
                break;
            }
        }
        jobs.truncate(count);
        jobs
    }

    /// Skips dirty chunks that servers read often. Skips a whole object if its chunk boundaries
    /// must move and one of its chunks is hot.
    fn skip_hot(&self, jobs: &mut [Job<'_>], now: Duration) {
        let dirty = |job: &&Job<'_>| {
            matches!(job.plan, Plan::Flip(_) | Plan::Recut(_)) && !job.listed.overdue
        };
        let places = |job: &Job<'_>| -> Vec<(ObjectId, u32)> {
            let (Plan::Flip(entries) | Plan::Recut(entries)) = &job.plan else { return Vec::new() };
            entries.iter().map(|(offset, _)| (job.listed.object, *offset)).collect()
        };
        let chunks: Vec<(ObjectId, u32)> = jobs.iter().filter(dirty).flat_map(places).collect();
        // Without an answer they are deduplicated: heat is advice.
        let hot = if chunks.is_empty() {
            BTreeSet::new()
        } else {
            cache_manager::hot(self.kernel, &chunks, now).unwrap_or_default()
        };
        for job in jobs.iter_mut().filter(|_| !hot.is_empty()) {
            let object = job.listed.object;
            let is_hot = |(offset, _): &(u32, Entry)| hot.contains(&(object, *offset));
            match &mut job.plan {
                Plan::Flip(entries) => entries.retain(|entry| !is_hot(entry)),
                Plan::Recut(entries) if entries.iter().any(is_hot) => job.plan = Plan::Hot,
                _ => {}
            }
        }
    }

    /// Flush-through: the same for one object at once, however hot it is.
    pub(crate) fn flush_through(&self, object: ObjectId) -> Result<(), Refusal> {
        let Some(map) = ChunkMap::read(self.kernel, object)? else { return Ok(()) };
        let Some(stamp) = map.listed else { return Ok(()) };
        let listed = Listed {
            object,
            shard: DirtyList::of(self.kernel).shard_of(object),
            key: DirtyList::of(self.kernel).key(object, stamp),
            overdue: true,
            unread: Unread::default(),
        };
        self.deduplicate(vec![self.job(&listed, Ok(Some(map)), None)])
            .into_iter()
            .try_for_each(|(_, result)| result.map(|_| ()))
    }

    /// Decides the work for an object; without `now` no chunk counts as hot.
    fn job<'a>(
        &self,
        listed: &'a Listed,
        map: Result<Option<ChunkMap>, Refusal>,
        now: Option<Duration>,
    ) -> Job<'a> {
        let cold = self.kernel.settings().cold;
        let mut job = Job {
            listed,
            plan: Plan::LeftOver,
            pending: Vec::new(),
            taken: 0,
            partial: false,
            result: Ok(Done { operations: 1, unread: listed.unread.clone(), ..Done::default() }),
        };
        match map {
            // Another key has taken its place, or none is needed.
            Ok(Some(map))
                if map.listed.is_some_and(|stamp| {
                    DirtyList::of(self.kernel).key(listed.object, stamp) == listed.key
                }) =>
            {
                let dirty: Vec<(u32, Entry)> = map
                    .entries
                    .iter()
                    .filter(|(_, entry)| entry.dirty)
                    .filter(|(at, entry)| listed.unread.entries.get(at) != Some(entry))
                    .map(|(at, entry)| (*at, entry.clone()))
                    .collect();
                let hot =
                    !dirty.is_empty() && now.is_some_and(|now| is_hot(map.changed, now, cold));
                job.plan = match &map.recut {
                    _ if hot => Plan::Hot,
                    Some(_) => Plan::Recut(dirty),
                    None => Plan::Flip(dirty),
                };
                job.pending = map.pending;
            }
            Ok(_) => {}
            Err(refusal) => job.result = Err(refusal),
        }
        job
    }

    /// Deduplicates dirty and cold chunks of objects, and finishes their drops. Then removes
    /// objects from the list that have no work left.
    pub(super) fn deduplicate(
        &self,
        mut jobs: Vec<Job<'_>>,
    ) -> Vec<(ObjectId, Result<Done, Refusal>)> {
        let drops: Vec<Vec<(Chunk, Reference)>> =
            jobs.iter_mut().map(|job| std::mem::take(&mut job.pending)).collect();
        for (job, finished) in jobs.iter_mut().zip(self.chunk_pool.finish_each(&drops)) {
            job.add(finished.map(|operations| Done { operations, ..Done::default() }));
            match job.plan {
                Plan::Hot => job.add(Ok(Done { again: true, ..Done::default() })),
                Plan::Recut(_) if job.result.is_ok() => {
                    let mut done = Done::default();
                    let result = self.recut_all(job.listed.object, &mut done);
                    job.add(result.map(|()| done));
                }
                _ => {}
            }
        }
        loop {
            let (mut groups, mut bytes) = (Vec::new(), 0);
            for (n, job) in jobs.iter_mut().enumerate() {
                let entries = job.next(self.kernel.settings().batch_bytes - bytes, bytes == 0);
                bytes += entries.iter().map(|(_, entry)| u64::from(entry.length)).sum::<u64>();
                if !entries.is_empty() {
                    groups.push((n, Group { object: job.listed.object, entries }));
                }
                if bytes >= self.kernel.settings().batch_bytes {
                    break;
                }
            }
            if groups.is_empty() {
                break;
            }
            let (numbers, groups): (Vec<usize>, Vec<Group>) = groups.into_iter().unzip();
            for (n, result) in numbers.into_iter().zip(self.flip_groups(&groups)) {
                jobs[n].add(result);
            }
        }
        self.leave_list(&mut jobs);
        jobs.into_iter().map(|job| (job.listed.object, job.result)).collect()
    }

    /// Removes from the list the objects whose entries are all clean, and keys that are left over.
    fn leave_list(&self, jobs: &mut [Job<'_>]) {
        let stays = |job: &Job<'_>| {
            job.result.is_err() || job.partial || matches!(job.plan, Plan::Hot | Plan::LeftOver)
        };
        let looked: Vec<usize> = (0..jobs.len()).filter(|n| !stays(&jobs[*n])).collect();
        let mut leaving: Vec<usize> = (0..jobs.len())
            .filter(|n| jobs[*n].result.is_ok() && matches!(jobs[*n].plan, Plan::LeftOver))
            .collect();
        let reads: Vec<Read> = looked
            .iter()
            .map(|n| Read { object: jobs[*n].listed.object.name(), parts: map_parts() })
            .collect();
        let (mut clean, mut ops) = (Vec::new(), Vec::new());
        for (n, answer) in looked.into_iter().zip(self.kernel.read_all(&reads)) {
            let Listed { object, key, .. } = jobs[n].listed;
            jobs[n].add(Ok(Done { operations: 1, ..Done::default() }));
            match ChunkMap::from_answer(*object, answer) {
                Ok(None) => leaving.push(n),
                Ok(Some(map))
                    if map.has_no_work()
                        && map.listed.is_some_and(|stamp| {
                            DirtyList::of(self.kernel).key(*object, stamp) == *key
                        }) =>
                {
                    jobs[n].add(Ok(Done { operations: 2, ..Done::default() }));
                    clean.push(n);
                    ops.push(Write {
                        object: object.name(),
                        guards: vec![Guard::Version(map.version)],
                        changes: vec![Change::DropOmap(vec![key::LISTED.to_vec()])],
                    });
                }
                Ok(Some(map)) => {
                    let left = jobs[n].is_left(&map);
                    jobs[n].add(Ok(Done { again: true, left, ..Done::default() }));
                }
                Err(refusal) => jobs[n].add(Err(refusal)),
            }
        }
        for (n, result) in clean.into_iter().zip(self.kernel.write_all(&ops)) {
            match result {
                Ok(_) => leaving.push(n),
                // Without a reply the key is found to be left over, if so.
                Err(Refusal::Mismatch | Refusal::Missing | Refusal::Unknown) => {
                    jobs[n].add(Ok(Done { again: true, ..Done::default() }))
                }
                Err(refusal) => jobs[n].add(Err(refusal)),
            }
        }
        let mut shards: BTreeMap<&ObjectName, Vec<usize>> = BTreeMap::new();
        leaving.into_iter().for_each(|n| shards.entry(&jobs[n].listed.shard).or_default().push(n));
        let op = |(shard, of): (&&ObjectName, &Vec<usize>)| Write {
            object: (*shard).clone(),
            guards: vec![Guard::Exists],
            changes: vec![Change::DropOmap(
                of.iter().map(|n| jobs[*n].listed.key.clone()).collect(),
            )],
        };
        let results = self.kernel.all_until_answered(&shards.iter().map(op).collect::<Vec<_>>());
        let gone: Vec<(Vec<usize>, _)> = shards.into_values().zip(results).collect();
        for (of, result) in gone {
            match result {
                Ok(_) | Err(Refusal::Missing) => {}
                Err(refusal) => of.iter().for_each(|n| jobs[*n].add(Err(refusal.clone()))),
            }
        }
    }
}

/// True when an object was written so lately that it may be written again soon. One that is dated
/// in the future, by a clock that was wrong once, would be so for ever.
fn is_hot(changed: Duration, now: Duration, cold: Duration) -> bool {
    age(changed, now).is_some_and(|age| age < cold)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_that_is_dated_in_the_future_is_not_hot() {
        let hot = |changed| {
            is_hot(Duration::from_secs(changed), Duration::from_secs(5_000), Duration::from_secs(9))
        };
        assert!(hot(4_992) && hot(5_000) && hot(5_010) && !hot(4_991));
        assert!(!hot(5_000 + 1_000 * 86_400));
    }
}
