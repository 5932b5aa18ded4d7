//! The end of a stream's way in: containers packed and written, and one record that says that it is
//! there.

use std::{ops::Range, sync::Arc};

use onefold_core::{Error, Kind, Result};

use super::{ingest::Ingest, session::Session};
use crate::{
    container::{ContainerReader, pack},
    format::{
        Address, ContainerId,
        container::{OpenContainer, Packed, Packer},
        recipe::End,
        record::{Pieces, Record, Remapped, Shape, Stored, Stream},
    },
    operations_log::{Archive, is_put, is_there},
    rules::Rule,
    tables::{Tables, Volume, valid_name},
};

/// Packs and writes the containers of one session, and commits the stream that names them.
pub struct StreamWriter {
    ingest: Arc<Ingest>,
    session: u64,
    /// The number of the session's domain.
    domain: u32,
    failures: u64,
    packer: Packer,
    added: u64,
    /// Seconds since 1970, for the list of unfinished containers.
    now: u64,
}

/// A stream that is complete but for its record.
pub struct Ended {
    /// Its name.
    pub name: String,
    /// Bytes or a tree.
    pub shape: Shape,
    /// Seconds since 1970.
    pub created: u64,
    /// The recipe of its data, and the recipe's end.
    pub data: (Vec<Pieces>, End),
    /// The recipe of a tree's listing.
    pub listing: Vec<Pieces>,
}

/// A block of a volume, and the mapping that it gets.
pub(crate) struct Remap {
    pub(crate) block: u64,
    /// The last frame that was known when it was written.
    pub(crate) since: u64,
    pub(crate) new: Option<Address>,
}

/// The changes of a volume's mappings: first ranges that become zeroes, then blocks.
pub(crate) struct Remaps {
    pub(crate) volume: u64,
    pub(crate) zeroed: Vec<Range<u64>>,
    pub(crate) blocks: Vec<Remap>,
}

impl StreamWriter {
    /// A stream writer for the session's containers.
    #[must_use]
    pub fn new(session: &Session, now: u64) -> StreamWriter {
        let (ingest, failures) = (session.ingest.clone(), session.failures);
        let packer = Packer::new(ingest.archive.settings.level);
        let (number, domain) = (session.number, session.domain.number());
        StreamWriter { ingest, session: number, domain, failures, packer, added: 0, now }
    }

    /// Packs a container and writes it. Now and then all are made durable and listed.
    ///
    /// # Errors
    /// `NoSpace`, and those of the system.
    pub fn pack_and_write(&mut self, open: OpenContainer) -> Result<()> {
        let packed = pack(&self.ingest.archive, open, &mut self.packer)?;
        self.write(&packed)?;
        packed.give_back(&self.ingest.archive.buffers);
        Ok(())
    }

    /// Writes a packed container.
    ///
    /// # Errors
    /// As [`pack_and_write`](Self::pack_and_write).
    pub fn write(&mut self, packed: &Packed) -> Result<()> {
        let mut pending = self.ingest.pending.lock();
        pending.since(self.failures)?;
        self.added += pending.write(&self.ingest, self.session, packed, self.now)?;
        Ok(())
    }

    /// Bytes of the containers written so far.
    pub(crate) fn added(&self) -> u64 {
        self.added
    }

    /// The archive that is written to.
    pub(crate) fn archive(&self) -> &Arc<Archive> {
        &self.ingest.archive
    }

    /// A commit forgot how much was added, and the stream goes on.
    pub(crate) fn count_again(&mut self, added: u64) {
        self.added = added;
    }

    /// Makes the stream durable, with its record: it is there when this returns. The session has
    /// been sealed and all containers written.
    ///
    /// # Errors
    /// `InvalidInput` for the name; `Exists` where streams are only added; `NoSpace`, and those of
    /// the system.
    pub fn commit(&mut self, ended: Ended) -> Result<Stream> {
        valid_name(&ended.name)?;
        let (recipe, end) = ended.data;
        let stream = Stream {
            shape: ended.shape,
            domain: self.domain,
            created: ended.created,
            bytes: end.bytes,
            added: self.added,
            chunks: end.chunks,
            recipe,
            listing: ended.listing,
        };
        let only_adds = self.archive().settings.append_only;
        let domain = self.domain;
        self.commit_with(&mut |tables, own, finished| {
            let before = tables.streams.get(&ended.name).filter(|before| before.domain != domain);
            if let Some(before) = before {
                let what = format!("stream '{}'", ended.name.escape_debug());
                return Err(in_another(&what, before.domain, domain));
            }
            if only_adds && tables.streams.contains_key(&ended.name) {
                return Err(Error::new(
                    Kind::Exists,
                    format!(
                        "there is a stream '{}' already, and the archive takes new ones only",
                        ended.name.escape_debug()
                    ),
                ));
            }
            let put = Record::Put {
                name: ended.name.clone(),
                stream: stream.clone(),
                containers: own.to_vec(),
                finished: finished.to_vec(),
            };
            Ok(vec![put])
        })?;
        Ok(stream)
    }

    /// Makes what `decide` returns durable, one frame behind all containers, and forgets how much
    /// was added. The session has been sealed and all containers written.
    #[allow(clippy::type_complexity)]
    pub(crate) fn commit_with(
        &mut self,
        decide: &mut dyn FnMut(&Tables, &[Stored], &[ContainerId]) -> Result<Vec<Record>>,
    ) -> Result<()> {
        let mut pending = self.ingest.pending.lock();
        pending.since(self.failures)?;
        pending.sync(&self.ingest)?;
        let domain = self.domain;
        let mut in_domain = |tables: &Tables, own: &[Stored], finished: &[ContainerId]| {
            is_there(tables, domain)?;
            decide(tables, own, finished)
        };
        pending.commit(&self.ingest, self.session, self.now, &mut in_domain)?;
        self.added = 0;
        Ok(())
    }

    /// The number of the domain that all of it belongs to.
    pub(crate) fn domain(&self) -> u32 {
        self.domain
    }

    /// Makes mappings durable, all of them at once: they count when this returns. The session has
    /// been sealed and all containers written.
    ///
    /// # Errors
    /// `NoSpace`, and those of the system.
    pub(crate) fn remap(&mut self, all: &[Remaps]) -> Result<Arc<Tables>> {
        let mut pending = self.ingest.pending.lock();
        pending.since(self.failures)?;
        let chunks_first = self.ingest.archive.keeps(Rule::ChunksBeforeMapping);
        if chunks_first {
            pending.sync(&self.ingest)?;
        }
        let tables = pending.commit(
            &self.ingest,
            self.session,
            self.now,
            &mut |tables, own, finished| {
                let mut records = Vec::new();
                for remaps in all {
                    // A volume that was deleted meanwhile, or whose domain was erased, takes nothing any
                    // more.
                    if let Some(volume) = tables.volumes.all().get(&remaps.volume)
                        && is_there(tables, volume.domain).is_ok()
                    {
                        changes(remaps, volume, &mut records);
                    }
                }
                let of_erased = |stored: &&Stored| is_there(tables, stored.domain).is_err();
                let gone: Vec<Stored> = own.iter().filter(of_erased).copied().collect();
                let own: Vec<Stored> =
                    own.iter().filter(|stored| !of_erased(stored)).copied().collect();
                let mapped = records.iter().any(|record| matches!(record, Record::Mapped { .. }));
                if mapped && !(own.is_empty() && finished.is_empty()) {
                    let finished = finished.to_vec();
                    records.insert(0, Record::Finished { containers: own, finished });
                } else if !own.is_empty() {
                    records.insert(0, Record::Unfinished { containers: own, at: self.now });
                }
                if !gone.is_empty() {
                    records.insert(0, Record::Unfinished { containers: gone, at: self.now });
                }
                Ok(records)
            },
        )?;
        if !chunks_first {
            pending.sync(&self.ingest)?;
        }
        Ok(tables)
    }

    /// Gives back the space that this stream took.
    pub fn abandon(&mut self) {
        // Space that can't be given back now is garbage for the collector.
        let _ = self.try_abandon();
    }

    fn try_abandon(&mut self) -> Result<()> {
        let archive = &self.ingest.archive;
        let mut pending = self.ingest.pending.lock();
        // Containers with chunks that other streams took as duplicates stay.
        let named = self.ingest.auxiliary.lock().abandon(self.session);
        let own = |of: &u64, id: &ContainerId| *of == self.session && !named.contains(id);
        pending.written.retain(|written| !own(&written.session, &written.stored.id));
        if pending.written.is_empty() {
            pending.appender.give_back()?;
        }
        let listed: Vec<ContainerId> =
            pending.listed.iter().filter(|(of, id)| own(of, id)).map(|(_, id)| *id).collect();
        pending.listed.retain(|(of, _)| *of != self.session);
        if listed.is_empty() || is_put(archive) {
            // Others may use what a put key listed: a collection frees the rest.
            return Ok(());
        }
        let mut places = Vec::new();
        archive.commit(true, |tables| {
            // The collector may have been there before.
            let mut containers = Vec::new();
            for id in &listed {
                if let Some(container) = tables.containers.get(id)? {
                    places.push(container.stored.place);
                    containers.push(*id);
                }
            }
            Ok(vec![Record::Abandoned { containers }])
        })?;
        let container_reader = ContainerReader::new(archive.clone());
        places.iter().try_for_each(|place| container_reader.free(place))?;
        archive.commit(true, |_| Ok(vec![Record::Freed { places }])).map(|_| ())
    }

    /// Imports listed containers into the chunk index: for callers without threads.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn import(&mut self, all: bool) -> Result<bool> {
        self.ingest.import(all)
    }

    /// True when the auxiliary index is at its limit.
    #[must_use]
    pub fn must_import(&self) -> bool {
        self.ingest.must_import()
    }

    /// Ends the stream's writing: space taken ahead goes back, unless other streams will use it.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn close(&mut self) -> Result<()> {
        if self.ingest.lasting { Ok(()) } else { self.ingest.pending.lock().appender.trim() }
    }
}

/// The error of whoever stores something in another domain than before.
pub(crate) fn in_another(what: &str, before: u32, now: u32) -> Error {
    let why = format!(
        "{what} belongs to domain {before}, and would go on in domain {now}: choose another name, or leave \
         out --domain"
    );
    Error::new(Kind::InvalidInput, why)
}

/// The records of a volume's changes, as the volume now is.
fn changes(remaps: &Remaps, volume: &Volume, records: &mut Vec<Record>) {
    let id = remaps.volume;
    let zeroed =
        |range: &&Range<u64>| volume.block_index.mapped(range.start..range.end).next().is_some();
    for range in remaps.zeroed.iter().filter(zeroed) {
        records.push(Record::Unmapped { id, first: range.start, count: range.end - range.start });
    }
    let mut changes = Vec::new();
    for remap in remaps.blocks.iter().filter(|remap| !volume.was_cut(remap.block, remap.since)) {
        let unmapped = remaps.zeroed.iter().any(|range| range.contains(&remap.block));
        let old = if unmapped { None } else { volume.block_index.get(remap.block) };
        if old.is_some() || remap.new.is_some() {
            changes.push(Remapped { block: remap.block, old, new: remap.new });
        }
    }
    if !changes.is_empty() {
        records.push(Record::Mapped { id, changes });
    }
}
