//! Counts and sizes, by looking at the lists and the pools.
//!
//! A store of many objects is not read whole: names are counted, the object store tells how many chunks
//! there are where it knows that, and what maps and long lists hold is estimated from a sample. No counters
//! are kept beside the data: the operation that changes an object can change no counter elsewhere with it,
//! and a counter in another operation would drift with each crash (decision 89).

mod chunks;
mod sample;

use onefold_core::{
    Error, Kind, Result,
    object::{ObjectName, Pool, Read, ReadPart, Refusal, Seen, Space},
};

use crate::{
    attempts::LeftBehind,
    chunk_map::{ChunkMap, map_parts},
    dirty_list::shard_name,
    format::{Chunk, ObjectId, catalogue::What},
    names::{Names, Told},
    replies::failed,
    session::Session,
};
use sample::{Chance, Places, Sum, candidates};

/// Objects that are read at one time.
const BATCH: usize = 256;

/// Keys of the dirty list up to which a status that may look at a sample counts each.
const LISTED_COUNTED: u64 = 65_536;

/// Shards of the dirty list that are counted together.
const SHARDS_TOGETHER: usize = 32;

/// How many times as many objects as a sample shall have are tried at most: objects of sparse volumes are
/// not there.
const TRIES: u64 = 8;

/// Most places of damage that a status names.
const NAMED_MAX: usize = 100;

/// The contents of a store. Sizes are before replication. If other sessions write meanwhile, the
/// counts are not of one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Volumes.
    pub volumes: u64,
    /// Sizes of all volumes together.
    pub volume_bytes: u64,
    /// Objects that were put.
    pub puts: u64,
    /// Sizes of all put objects together.
    pub put_bytes: u64,
    /// Metadata objects.
    pub objects: u64,
    /// Entries of their maps.
    pub entries: u64,
    /// Bytes of chunks that the maps name or hold, each as often as it is named.
    pub logical_bytes: u64,
    /// Bytes that stand in metadata objects.
    pub cached_bytes: u64,
    /// Bytes of these that are to be deduplicated.
    pub dirty_bytes: u64,
    /// Chunk objects.
    pub chunks: u64,
    /// Bytes of their data.
    pub chunk_bytes: u64,
    /// Bytes of keys and values of map entries.
    pub map_bytes: u64,
    /// Bytes of references.
    pub reference_bytes: u64,
    /// Objects on the dirty list.
    pub backlog: u64,
    /// References that are about to be added, or were when their session ended. Workers judge
    /// attempts that are older than 20 s.
    pub attempts: u64,
    /// Stale references according to the attempts: workers drop them.
    pub stale_references: u64,
    /// Space of the object store, with everything in it.
    pub space: Space,
    /// Objects whose maps are damaged; the counts lack what they hold.
    pub damaged_objects: u64,
    /// The first of them, 100 at most, and why they can't be read.
    pub damaged: Vec<(ObjectId, String)>,
    /// Why other parts of the store can't be read: the counts lack them, too. 100 sentences at most.
    pub unread: Vec<String>,
    /// Not all was read: what maps hold is estimated.
    pub sampled: Option<Sampled>,
}

/// How well a status that read a sample knows what maps hold. The truth lies within each bound, to both
/// sides, with a probability of 95 %.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sampled {
    /// Objects that were looked for.
    pub read: u64,
    /// Objects that volumes and streams may have.
    pub of: u64,
    /// Bound of the objects that are there.
    pub objects: u64,
    /// Bound of the entries.
    pub entries: u64,
    /// Bound of the bytes of chunks that maps name or hold.
    pub logical_bytes: u64,
    /// Bound of the bytes that stand in metadata objects.
    pub cached_bytes: u64,
    /// Bound of the bytes that are to be deduplicated.
    pub dirty_bytes: u64,
    /// Bound of the objects on the dirty list.
    pub backlog: u64,
    /// Bound of the chunks. The object store's own count has none, and may be some seconds old.
    pub chunks: u64,
    /// Bound of the bytes of chunks.
    pub chunk_bytes: u64,
}

/// How much a status reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Every object.
    Whole,
    /// About so many metadata objects, where there are more.
    Sample {
        /// Metadata objects.
        objects: u64,
        /// Chooses which ones.
        seed: u64,
    },
}

impl Status {
    /// Remembers damage; other errors come back.
    fn unread(&mut self, error: Error) -> Result<()> {
        if error.kind() != Kind::Corrupt {
            return Err(error);
        }
        if self.unread.len() < NAMED_MAX {
            self.unread.push(error.to_string());
        }
        Ok(())
    }

    /// Remembers damage of one object; other refusals come back.
    fn damaged(&mut self, object: ObjectId, refusal: Refusal) -> Result<(), Refusal> {
        let Refusal::Failed(error) = refusal else { return Err(refusal) };
        if error.kind() != Kind::Corrupt {
            return Err(Refusal::Failed(error));
        }
        self.damaged_objects += 1;
        if self.damaged.len() < NAMED_MAX {
            self.damaged.push((object, error.to_string()));
        }
        Ok(())
    }
}

impl Session {
    /// Objects on the dirty list.
    ///
    /// # Errors
    /// The store's.
    pub fn backlog(&self) -> Result<u64> {
        self.backlog_by(None).map(|(count, _)| count)
    }

    /// The same. With a seed, of a long list only some shards are counted: objects are in shards by their
    /// hash. The count is an estimate then, and the bound of its error comes with it.
    fn backlog_by(&self, seed: Option<u64>) -> Result<(u64, Option<u64>)> {
        let mut shards: Vec<ObjectName> =
            (0..self.kernel().format().shards).map(shard_name).collect();
        let mut chance = Chance(seed.unwrap_or(0));
        for n in (1..shards.len()).rev() {
            shards.swap(n, (chance.next() % (n as u64 + 1)) as usize);
        }
        let (mut all, mut sum, mut counted) = (0, Sum::default(), 0);
        for some in shards.chunks(SHARDS_TOGETHER) {
            if seed.is_some() && all >= LISTED_COUNTED {
                let (count, bound) = sum.of_all(counted, shards.len() as u64);
                return Ok((count, Some(bound)));
            }
            let mut of = vec![0; some.len()];
            self.kernel()
                .pages_of(some, &[], |shard, keys| {
                    of[shard] += keys.len() as u64;
                    Ok(())
                })
                .map_err(|refusal| failed("the dirty list can't be read", refusal))?;
            of.iter().for_each(|count| sum.add(*count));
            counted += some.len() as u64;
            all += of.iter().sum::<u64>();
        }
        Ok((all, None))
    }

    /// Counts names, and the objects that they may have; holds none of them.
    fn count_names(&self, status: &mut Status) -> Result<u64> {
        let object_bytes = self.kernel().format().object_bytes;
        let mut counted = Status::default();
        let mut of = 0u64;
        Names::of(self.kernel()).chosen(&mut |told| {
            let Told::Name(_, named) = told else {
                (counted, of) = (Status::default(), 0);
                return false;
            };
            let (count, bytes) = match named.what {
                What::Volume => (&mut counted.volumes, &mut counted.volume_bytes),
                What::Put => (&mut counted.puts, &mut counted.put_bytes),
            };
            *count += 1;
            *bytes = bytes.saturating_add(named.bytes);
            // A damaged catalogue may name more than there can be.
            of = of.saturating_add(candidates(named, object_bytes));
            false
        })?;
        (status.volumes, status.volume_bytes) = (counted.volumes, counted.volume_bytes);
        (status.puts, status.put_bytes) = (counted.puts, counted.put_bytes);
        Ok(of)
    }

    /// So many of the objects that names may have, in a random order.
    fn drawn(&self, of: u64, count: u64, seed: u64) -> Result<Vec<Option<ObjectId>>> {
        let object_bytes = self.kernel().format().object_bytes;
        let mut places = Places::draw(of, count, seed);
        Names::of(self.kernel()).chosen(&mut |told| {
            match told {
                Told::Anew => places.anew(),
                Told::Name(_, named) => places.tell(named.id, candidates(named, object_bytes)),
            }
            false
        })?;
        Ok(places.objects())
    }

    /// The space of the object store.
    ///
    /// # Errors
    /// The store's.
    pub fn space(&self) -> Result<Space> {
        self.kernel().store().space().map_err(|refusal| failed("the space can't be read", refusal))
    }

    /// Looks at everything once. What is damaged is named in the status, and ends nothing.
    ///
    /// # Errors
    /// The store's.
    pub fn status(&self) -> Result<Status> {
        self.status_by(Look::Whole)
    }

    /// The same by a look at a sample, if `look` says so and the store is large. The figures of
    /// [`Sampled`] are estimates then, chunks and their bytes are what the object store knows of its pool,
    /// which may be some seconds old, and damage is named where the sample has it.
    ///
    /// # Errors
    /// The store's.
    pub fn status_by(&self, look: Look) -> Result<Status> {
        let mut status = Status::default();
        let seed = match look {
            Look::Whole => None,
            Look::Sample { seed, .. } => Some(seed),
        };
        match self.backlog_by(seed) {
            Ok((backlog, None)) => status.backlog = backlog,
            Ok((backlog, Some(bound))) => {
                status.backlog = backlog;
                status.sampled.get_or_insert_default().backlog = bound;
            }
            Err(error) => status.unread(error)?,
        }
        let of = match self.count_names(&mut status) {
            Ok(of) => of,
            Err(error) => status.unread(error).map(|()| 0)?,
        };
        left_behind(self, &mut status)
            .map_err(|refusal| failed("the attempts can't be read", refusal))
            .or_else(|error| status.unread(error))?;
        status.space = self.space()?;
        let metadata = match look {
            Look::Sample { objects, seed } if of > objects => {
                sample(self, of, objects, seed, &mut status)
            }
            _ => sizes(self, Pool::Metadata, &mut status),
        };
        let chunks = match seed {
            Some(seed) => chunks_by_sample(self, seed, &mut status),
            None => sizes(self, Pool::Chunks, &mut status),
        };
        for (looked, what) in [
            (metadata, "the metadata pool can't be read to its end"),
            (chunks, "the chunk pool can't be read to its end"),
        ] {
            looked
                .map_err(|refusal| failed(what, refusal))
                .or_else(|error| status.unread(error))?;
        }
        Ok(status)
    }
}

fn left_behind(session: &Session, status: &mut Status) -> Result<(), Refusal> {
    let attempts = LeftBehind::of(session).attempts()?;
    let verdict = LeftBehind::of(session).judge(&attempts.iter().collect::<Vec<_>>())?;
    status.attempts = attempts.len() as u64;
    status.stale_references =
        session.chunk_pool().have_references(&verdict.stale).into_iter().filter(|has| *has).count()
            as u64;
    Ok(())
}

/// Reads all objects of a pool.
fn sizes(session: &Session, pool: Pool, status: &mut Status) -> Result<(), Refusal> {
    let mut from = None;
    loop {
        let page = session.kernel().store().list(pool, from.as_deref(), 1000)?;
        for names in page.names.chunks(BATCH) {
            let objects: Vec<ObjectId> =
                names.iter().filter_map(|name| ObjectId::parse(name)).collect();
            read_maps(session, &objects, status, |status, map| status.count(map))?;
            if pool == Pool::Chunks {
                let chunks = names.iter().filter(|name| Chunk::parse(name).is_some());
                read_chunks(session, chunks, status)?;
            }
        }
        from = page.next;
        if from.is_none() {
            return Ok(());
        }
    }
}

/// Reads the maps of objects, all in flight together; `count` gets those that are there.
fn read_maps(
    session: &Session,
    objects: &[ObjectId],
    status: &mut Status,
    mut count: impl FnMut(&mut Status, &MapCounts),
) -> Result<(), Refusal> {
    let read = |object: &ObjectId| Read { object: object.name(), parts: map_parts() };
    let answers = session.kernel().read_all(&objects.iter().map(read).collect::<Vec<_>>());
    for (object, answer) in objects.iter().zip(answers) {
        match ChunkMap::from_answer(*object, answer) {
            Ok(Some(map)) => count(status, &MapCounts::of(*object, &map)),
            Ok(None) => {}
            Err(refusal) => status.damaged(*object, refusal)?,
        }
    }
    Ok(())
}

/// What one map holds.
#[derive(Default)]
struct MapCounts {
    entries: u64,
    logical_bytes: u64,
    cached_bytes: u64,
    dirty_bytes: u64,
    map_bytes: u64,
    reference_bytes: u64,
}

impl MapCounts {
    fn of(object: ObjectId, map: &ChunkMap) -> MapCounts {
        let mut counts = MapCounts::default();
        for (offset, entry) in &map.entries {
            let cached = u64::from(entry.mask.count_ones()) * 4096;
            counts.entries += 1;
            counts.map_bytes += (crate::format::entry::ENTRY_BYTES + 3) as u64;
            if let Some((_, reference)) = entry.reference(object, *offset) {
                counts.reference_bytes += crate::format::key::reference(&reference).len() as u64;
            }
            counts.cached_bytes += cached.min(entry.length.into());
            if entry.dirty {
                counts.dirty_bytes += cached.min(entry.length.into());
            }
            if entry.base.is_some() || entry.mask != 0 {
                counts.logical_bytes += u64::from(entry.length);
            }
        }
        counts
    }
}

impl Status {
    fn count(&mut self, map: &MapCounts) {
        self.objects += 1;
        self.entries += map.entries;
        self.logical_bytes += map.logical_bytes;
        self.cached_bytes += map.cached_bytes;
        self.dirty_bytes += map.dirty_bytes;
        self.map_bytes += map.map_bytes;
        self.reference_bytes += map.reference_bytes;
    }
}

/// Estimates what maps hold by those of a sample of `objects` that are there, or of eight times as many
/// of the `of` that may be there.
fn sample(
    session: &Session,
    of: u64,
    objects: u64,
    seed: u64,
    status: &mut Status,
) -> Result<(), Refusal> {
    let drawn = session.drawn(of, objects.saturating_mul(TRIES), seed).map_err(Refusal::Failed)?;
    let (mut read, mut there) = (0, 0);
    let mut sums = [Sum::default(); 7];
    for some in drawn.chunks(BATCH) {
        if there >= objects {
            break;
        }
        read += some.len() as u64;
        let some: Vec<ObjectId> = some.iter().flatten().copied().collect();
        read_maps(session, &some, status, |_, map| {
            there += 1;
            let values = [
                1,
                map.entries,
                map.logical_bytes,
                map.cached_bytes,
                map.dirty_bytes,
                map.map_bytes,
                map.reference_bytes,
            ];
            sums.iter_mut().zip(values).for_each(|(sum, value)| sum.add(value));
        })?;
    }
    let [objects, entries, logical, cached, dirty, maps, references] =
        sums.map(|sum| sum.of_all(read, of));
    (status.objects, status.entries, status.logical_bytes) = (objects.0, entries.0, logical.0);
    (status.cached_bytes, status.dirty_bytes) = (cached.0, dirty.0);
    (status.map_bytes, status.reference_bytes) = (maps.0, references.0);
    status.sampled = Some(Sampled {
        read,
        of,
        objects: objects.1,
        entries: entries.1,
        logical_bytes: logical.1,
        cached_bytes: cached.1,
        dirty_bytes: dirty.1,
        ..status.sampled.unwrap_or_default()
    });
    Ok(())
}

/// Chunks by an estimate, where there are many; looks at each else.
fn chunks_by_sample(session: &Session, seed: u64, status: &mut Status) -> Result<(), Refusal> {
    let found = chunks::estimate(session, seed, &mut |error| status.unread(error))?;
    let Some(found) = found else { return sizes(session, Pool::Chunks, status) };
    (status.chunks, status.chunk_bytes) = (found.chunks.0, found.bytes.0);
    let sampled = status.sampled.get_or_insert_default();
    (sampled.chunks, sampled.chunk_bytes) = (found.chunks.1, found.bytes.1);
    Ok(())
}

fn read_chunks<'a>(
    session: &Session,
    names: impl Iterator<Item = &'a String>,
    status: &mut Status,
) -> Result<(), Refusal> {
    let read =
        |name: &String| Read { object: ObjectName::chunk(name), parts: vec![ReadPart::Stat] };
    for answer in session.kernel().read_all(&names.map(read).collect::<Vec<_>>()) {
        match answer {
            Ok(answer) => {
                status.chunks += 1;
                if let Some(Seen::Stat { bytes, .. }) = answer.seen.first() {
                    status.chunk_bytes = status.chunk_bytes.saturating_add(*bytes);
                }
            }
            Err(Refusal::Missing) => {}
            // One chunk that can't be read keeps the others from nothing.
            Err(Refusal::Failed(error)) => status.unread(error).map_err(Refusal::Failed)?,
            Err(refusal) => return Err(refusal),
        }
    }
    Ok(())
}
