//! Counts and sizes, by looking at the lists and the pools.
//!
//! A store of many objects is not read whole: names and lists are counted, the object store tells how many
//! chunks there are where it knows that, and what maps hold is estimated from a sample of the objects.

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
    replies::failed,
    session::Session,
};
use sample::{Candidates, Draw, Sum};

/// Objects that are read at one time.
const BATCH: usize = 256;

/// Chunks up to which a status that may look at a sample looks at each.
const CHUNKS_LOOKED_AT: u64 = 20_000;

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
        let shards: Vec<ObjectName> = (0..self.kernel().format().shards).map(shard_name).collect();
        let mut all = 0;
        self.kernel()
            .pages_of(&shards, &[], |_, keys| {
                all += keys.len() as u64;
                Ok(())
            })
            .map_err(|refusal| failed("the dirty list can't be read", refusal))?;
        Ok(all)
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
        match self.backlog() {
            Ok(backlog) => status.backlog = backlog,
            Err(error) => status.unread(error)?,
        }
        let names = match self.names() {
            Ok(names) => names,
            Err(error) => status.unread(error).map(|()| Vec::new())?,
        };
        for (_, named) in &names {
            let (count, bytes) = match named.what {
                What::Volume => (&mut status.volumes, &mut status.volume_bytes),
                What::Put => (&mut status.puts, &mut status.put_bytes),
            };
            *count += 1;
            *bytes = bytes.saturating_add(named.bytes);
        }
        left_behind(self, &mut status)
            .map_err(|refusal| failed("the attempts can't be read", refusal))
            .or_else(|error| status.unread(error))?;
        status.space = self.space()?;
        let candidates = Candidates::of(
            names.iter().map(|(_, named)| named),
            self.kernel().format().object_bytes,
        );
        let metadata = match look {
            Look::Sample { objects, seed } if candidates.count > objects => {
                sample(self, &candidates, objects, seed, &mut status)
            }
            _ => sizes(self, Pool::Metadata, &mut status),
        };
        let chunks = match look {
            Look::Sample { .. } => chunks_by_pool(self, &mut status),
            Look::Whole => sizes(self, Pool::Chunks, &mut status),
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

/// Estimates what maps hold by those of a sample of `objects` that are there, or of eight times as many that
/// may be there.
fn sample(
    session: &Session,
    from: &Candidates,
    objects: u64,
    seed: u64,
    status: &mut Status,
) -> Result<(), Refusal> {
    let mut draw = Draw::new(from, seed);
    let (mut read, mut there) = (0, 0);
    let mut sums = [Sum::default(); 7];
    while there < objects && read < objects.saturating_mul(TRIES) {
        let drawn: Vec<ObjectId> = draw.more(BATCH).into_iter().collect();
        if drawn.is_empty() {
            break;
        }
        read += drawn.len() as u64;
        read_maps(session, &drawn, status, |_, map| {
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
    let of = from.count;
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
    });
    Ok(())
}

/// Chunks as the object store counts its pool, if there are many; looks at each else.
fn chunks_by_pool(session: &Session, status: &mut Status) -> Result<(), Refusal> {
    let held = match session.kernel().store().held(Pool::Chunks) {
        // Who may not ask for the counts may read the pool all the same.
        Err(Refusal::Denied(_)) => None,
        held => held?,
    };
    match held {
        Some(held) if held.objects > CHUNKS_LOOKED_AT => {
            (status.chunks, status.chunk_bytes) = (held.objects, held.bytes);
            status.sampled.get_or_insert_default();
            Ok(())
        }
        _ => sizes(session, Pool::Chunks, status),
    }
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
