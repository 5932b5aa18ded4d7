//! Counts and sizes, by looking at the lists and the pools.

use onefold_core::{
    Error, Kind, Result,
    object::{ObjectName, Pool, ReadPart, Refusal, Seen, Space},
};

use crate::{
    attempts::LeftBehind,
    chunk_map::ChunkMap,
    dirty_list::shard_name,
    format::{Chunk, ObjectId, catalogue::What},
    replies::failed,
    session::Session,
};

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
        let mut status = Status::default();
        match self.backlog() {
            Ok(backlog) => status.backlog = backlog,
            Err(error) => status.unread(error)?,
        }
        let names = match self.names() {
            Ok(names) => names,
            Err(error) => status.unread(error).map(|()| Vec::new())?,
        };
        for (_, named) in names {
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
        for (pool, what) in [
            (Pool::Metadata, "the metadata pool can't be read to its end"),
            (Pool::Chunks, "the chunk pool can't be read to its end"),
        ] {
            sizes(self, pool, &mut status)
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

fn sizes(session: &Session, pool: Pool, status: &mut Status) -> Result<(), Refusal> {
    let mut from = None;
    loop {
        let page = session.kernel().store().list(pool, from.as_deref(), 1000)?;
        for name in &page.names {
            if let Some(object) = ObjectId::parse(name) {
                size_of(session, object, status)
                    .or_else(|refusal| status.damaged(object, refusal))?;
            } else if pool == Pool::Chunks && Chunk::parse(name).is_some() {
                size_of_chunk(session, name, status)?;
            }
        }
        from = page.next;
        if from.is_none() {
            return Ok(());
        }
    }
}

fn size_of(session: &Session, object: ObjectId, status: &mut Status) -> Result<(), Refusal> {
    let Some(map) = ChunkMap::read(session.kernel(), object)? else { return Ok(()) };
    status.objects += 1;
    for (offset, entry) in &map.entries {
        let cached = u64::from(entry.mask.count_ones()) * 4096;
        status.entries += 1;
        status.map_bytes += (crate::format::entry::ENTRY_BYTES + 3) as u64;
        if let Some((_, reference)) = entry.reference(object, *offset) {
            status.reference_bytes += crate::format::key::reference(&reference).len() as u64;
        }
        status.cached_bytes += cached.min(entry.length.into());
        if entry.dirty {
            status.dirty_bytes += cached.min(entry.length.into());
        }
        if entry.base.is_some() || entry.mask != 0 {
            status.logical_bytes += u64::from(entry.length);
        }
    }
    Ok(())
}

fn size_of_chunk(session: &Session, name: &str, status: &mut Status) -> Result<(), Refusal> {
    match session.kernel().read_one(&ObjectName::chunk(name), vec![ReadPart::Stat]) {
        Ok(answer) => {
            status.chunks += 1;
            if let Some(Seen::Stat { bytes, .. }) = answer.seen.first() {
                status.chunk_bytes = status.chunk_bytes.saturating_add(*bytes);
            }
            Ok(())
        }
        Err(Refusal::Missing) => Ok(()),
        // One chunk that can't be read keeps the others from nothing.
        Err(Refusal::Failed(error)) => status.unread(error).map_err(Refusal::Failed),
        Err(refusal) => Err(refusal),
    }
}
