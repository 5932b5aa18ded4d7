//! What the log says, applied: the catalogue, the container table, and where collection and import
//! stand.
//!
//! A value of this type is the archive as of one place in the log. The same records give the same
//! tables in every process.

use std::collections::BTreeMap;

use onefold_core::{Error, Kind, Result};

use crate::{
    block_index::Pages,
    catalogue::Volume,
    format::{
        ContainerId,
        bytes::{Reader, Writer, corrupt},
        record::{
            CONTAINER_MEMORY, ENTRY_MEMORY, ID_MEMORY, IndexFile, Owner, Pieces, Place, Record,
            Stored, Stream, id, index_files, index_files_of, pieces, pieces_of,
        },
    },
    late::WriteCost,
    memory::Drawn,
    placement::Class,
};

/// No container lies so far behind in a segment.
const SEGMENT_END_MAX: u64 = 1 << 49;

/// Memory that a stream takes without its name and recipes.
const STREAM_MEMORY: usize = 384;
/// Memory that a container takes which was merged into another one.
const MERGED_MEMORY: usize = 128;

/// Longest name of a stream.
pub const NAME_BYTES_MAX: usize = 4096;

/// A container and the ids that it answers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    /// As it was listed.
    pub stored: Stored,
    /// Other containers whose chunks lie here now.
    pub merged: Vec<ContainerId>,
    /// The sequence number of the frame that listed it; after a merge, the last one of what is in
    /// it.
    pub logged: u64,
    /// The version that was put when it was listed; where encoding is late.
    pub born: u64,
    /// The version with which its counts changed last, as far as they were counted; where encoding
    /// is late.
    pub changed: u64,
}

/// A segment file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Who appends to it.
    pub owner: Owner,
    /// Behind the last container that was listed in it.
    pub end: u64,
    /// Bytes of containers, and of places that are to be freed.
    pub used: u64,
    /// What it is for.
    pub class: Class,
    /// Its columns of data.
    pub data: u8,
}

/// The chunk index, as of its last import.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct IndexState {
    /// Its files: the index itself, then runs.
    pub files: Vec<IndexFile>,
    /// All containers up to this sequence number are in it.
    pub upto: u64,
}

/// A recipe that came or went since the counts were made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// True when it came.
    pub added: bool,
    /// The recipe.
    pub recipe: Vec<Pieces>,
    /// With which version; where encoding is late.
    pub at: u64,
}

/// The archive as of one place in the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tables {
    /// The last frame that is applied.
    pub sequence: u64,
    /// Its checksum.
    pub chain: u64,
    /// The epoch.
    pub epoch: u32,
    /// The next id that nobody has.
    pub next_id: u64,
    /// The next segment's number.
    pub next_segment: u32,
    /// The catalogue.
    pub streams: BTreeMap<String, Stream>,
    /// The containers by their own numbers.
    pub containers: BTreeMap<ContainerId, Container>,
    /// Where merged and late-encoded containers lie now: no chains, and at most
    /// [`PLACES_MAX`](crate::late::PLACES_MAX) places.
    pub moved_to: BTreeMap<ContainerId, Vec<ContainerId>>,
    /// The segment files.
    pub segments: BTreeMap<u32, Segment>,
    /// Containers that no recipe names yet, and since when.
    pub unfinished: BTreeMap<ContainerId, u64>,
    /// Chunks that no put may take as duplicates: a bit for each chunk, in the order of the
    /// container.
    pub condemned: BTreeMap<ContainerId, Vec<u8>>,
    /// Chunks whose bytes are not what they were: a bit for each chunk, in the order of the
    /// container.
    pub damaged: BTreeMap<ContainerId, Vec<u8>>,
    /// Places that no record names any more, and the epoch whose readers may still be there.
    pub waiting_to_be_freed: Vec<(Place, u32)>,
    /// The chunk index.
    pub index: IndexState,
    /// The number of the counts' file; 0 for none.
    pub counts: u64,
    /// Containers that were listed up to here are in it.
    pub counted: u64,
    /// Recipes that came and went since.
    pub differences: Vec<Difference>,
    /// Containers begin at multiples of this in a plain segment: a row of stripes.
    pub align: u64,
    /// Columns of parity.
    pub parity: u8,
    /// Chunks are encoded late: the rest of what is told of versions counts.
    pub late: bool,
    /// Puts that were committed.
    pub versions: u64,
    /// What writing cost.
    pub write_cost: WriteCost,
    /// The volumes by their numbers.
    pub volumes: BTreeMap<u64, Volume>,
    /// The next number that no volume had.
    pub next_volume: u64,
    /// The file with the volumes' maps.
    pub pages: Pages,
}

/// Bytes of one column in a row; with one node, what segments are read and written by multiples of.
pub const PLACE_ALIGN: u64 = 4096;

impl Tables {
    /// Empty ones of an archive that spreads so.
    #[must_use]
    pub fn new([_, data, parity]: [u8; 3], late: bool) -> Tables {
        Tables { align: PLACE_ALIGN * u64::from(data), parity, late, ..Tables::default() }
    }

    /// Bytes of a segment that a place takes.
    #[must_use]
    pub fn taken(&self, place: &Place) -> u64 {
        u64::from(place.bytes).next_multiple_of(PLACE_ALIGN * u64::from(self.class(place).1))
    }

    /// Bytes of all containers.
    #[must_use]
    pub fn stored_bytes(&self) -> u64 {
        self.containers.values().map(|container| u64::from(container.stored.place.bytes)).sum()
    }

    /// Applies the records of a frame.
    ///
    /// # Errors
    /// `Corrupt` when they contradict what is there.
    pub fn apply(&mut self, sequence: u64, records: Vec<Record>) -> Result<()> {
        records.into_iter().try_for_each(|record| self.apply_one(sequence, record))?;
        self.sequence = sequence;
        Ok(())
    }

    fn apply_one(&mut self, sequence: u64, record: Record) -> Result<()> {
        match record {
            Record::Reserved { owner, first, count, segment, class: (class, data) } => {
                if class != Class::Plain && !self.late {
                    return Err(corrupt(
                        "the log has segments of classes, and the archive has none",
                    ));
                }
                self.next_id = self.next_id.max(first.0.saturating_add(count));
                if let Some(segment) = segment {
                    self.next_segment = self.next_segment.max(segment.saturating_add(1));
                    let data = if class == Class::Plain {
                        (self.align / PLACE_ALIGN).max(1) as u8
                    } else {
                        data
                    };
                    self.segments.insert(segment, Segment { owner, end: 0, used: 0, class, data });
                }
            }
            Record::Unfinished { containers, at } => {
                // Of the put that is under way.
                let born = self.versions.saturating_add(u64::from(self.late));
                for stored in containers {
                    self.unfinished.insert(stored.id, at);
                    self.upload(stored, sequence, born)?;
                }
            }
            Record::Put { name, stream, containers, finished } => {
                self.versions = self.versions.saturating_add(u64::from(self.late));
                self.finish(containers, &finished, sequence)?;
                let at = self.versions;
                self.differences.extend(stream.recipes().map(|recipe| Difference {
                    added: true,
                    recipe: recipe.clone(),
                    at,
                }));
                if let Some(old) = self.streams.insert(name, stream) {
                    self.gone(&old);
                }
            }
            Record::Removed { name } => {
                let old = self
                    .streams
                    .remove(&name)
                    .ok_or_else(|| corrupt("the log removes a stream that is not there"))?;
                self.gone(&old);
            }
            Record::Renamed { from, to } => {
                let stream = self
                    .streams
                    .remove(&from)
                    .ok_or_else(|| corrupt("the log renames a stream that is not there"))?;
                if let Some(old) = self.streams.insert(to, stream) {
                    self.gone(&old);
                }
            }
            Record::Abandoned { containers } => {
                for id in containers {
                    self.unfinished.remove(&id);
                    // No reader ever knew them.
                    self.wait_to_be_freed(id, self.epoch.saturating_sub(1))?;
                }
            }
            Record::Imported { files, upto } => self.index = IndexState { files, upto },
            Record::Counted { file, differences, upto } => {
                let n = usize::try_from(differences).ok().filter(|&n| n <= self.differences.len());
                let n =
                    n.ok_or_else(|| corrupt("the log counts more differences than there are"))?;
                (self.counts, self.counted) = (file, upto);
                self.differences.drain(..n);
            }
            Record::Condemned { containers } => {
                // A put may have given up what it had listed.
                let there =
                    containers.into_iter().filter(|(id, _)| self.containers.contains_key(id));
                self.condemned.extend(there);
                self.advance_epoch()?;
            }
            Record::Damaged { containers } => {
                for (id, bits) in
                    containers.into_iter().filter(|(id, _)| self.containers.contains_key(id))
                {
                    let known = self.damaged.entry(id).or_default();
                    known.resize(known.len().max(bits.len()), 0);
                    known.iter_mut().zip(bits).for_each(|(known, bits)| *known |= bits);
                }
                // The epoch stays: who advances it must know that nobody stays in the one before.
            }
            Record::Dropped { containers, spared } => {
                spared.iter().for_each(|id| {
                    self.condemned.remove(id);
                });
                // Who could have read them has left before they were dropped.
                let before = self.epoch.saturating_sub(1);
                containers.into_iter().try_for_each(|id| self.wait_to_be_freed(id, before))?;
            }
            Record::Merged { from, to } => {
                let (home, mut merged, mut logged, mut born, mut changed) =
                    (to.id, Vec::new(), 0, 0, 0);
                for id in from {
                    let old = self.containers.get(&id).ok_or_else(|| {
                        corrupt(format!("the log merges container {id}, which is not there"))
                    })?;
                    merged.push(id);
                    merged.extend(&old.merged);
                    (logged, born, changed) =
                        (logged.max(old.logged), born.max(old.born), changed.max(old.changed));
                    self.wait_to_be_freed(id, self.epoch)?;
                }
                // What was not imported yet is found in its new place.
                let write_cost = &mut self.write_cost;
                write_cost.reencoded_chunks =
                    write_cost.reencoded_chunks.saturating_add(u64::from(to.chunks));
                write_cost.reencoded_chunk_bytes =
                    write_cost.reencoded_chunk_bytes.saturating_add(u64::from(to.raw_bytes));
                let written = self.list(to, logged, born)?;
                self.write_cost.merge_bytes = self.write_cost.merge_bytes.saturating_add(written);
                merged.sort_unstable();
                merged.dedup();
                for &id in &merged {
                    self.moved_to.entry(id).or_default().push(home);
                }
                if let Some(container) = self.containers.get_mut(&home) {
                    (container.merged, container.changed) = (merged, changed);
                }
            }
            Record::Freed { places } => {
                self.waiting_to_be_freed.retain(|(place, _)| !places.contains(place));
                for place in places {
                    let taken = self.taken(&place);
                    if let Some(segment) = self.segments.get_mut(&place.segment) {
                        segment.used = segment.used.saturating_sub(taken);
                    }
                }
                self.drop_empty_segments();
            }
            Record::EpochAdvanced => self.advance_epoch()?,
            Record::Finished { containers, finished } => {
                self.finish(containers, &finished, sequence)?
            }
            Record::LateEncoded { from, to } => self.apply_late_encoded(&from, to)?,
            Record::Changed { containers } => {
                for (id, version) in containers {
                    if let Some(container) = self.containers.get_mut(&id) {
                        container.changed = container.changed.max(version);
                    }
                }
            }
            of_volume => self.apply_volume(sequence, of_volume)?,
        }
        Ok(())
    }

    fn advance_epoch(&mut self) -> Result<()> {
        self.epoch = self
            .epoch
            .checked_add(1)
            .ok_or_else(|| corrupt("the log turns the epoch too often"))?;
        Ok(())
    }

    /// A segment that holds nothing, and to which nobody appends any more, is gone.
    fn drop_empty_segments(&mut self) {
        let last: BTreeMap<(Owner, Class), u32> =
            self.segments.iter().map(|(&n, segment)| ((segment.owner, segment.class), n)).collect();
        self.segments.retain(|&n, segment| {
            segment.used > 0 || last.get(&(segment.owner, segment.class)) == Some(&n)
        });
    }

    /// Lists containers that something names from now on, and those that were listed before.
    fn finish(
        &mut self,
        containers: Vec<Stored>,
        finished: &[ContainerId],
        sequence: u64,
    ) -> Result<()> {
        let version = self.versions;
        containers.into_iter().try_for_each(|stored| self.upload(stored, sequence, version))?;
        for id in finished {
            self.unfinished.remove(id);
            if let Some(container) = self.containers.get_mut(id).filter(|_| self.late) {
                (container.born, container.changed) = (version, version);
            }
        }
        Ok(())
    }

    fn upload(&mut self, stored: Stored, sequence: u64, born: u64) -> Result<()> {
        let written = self.list(stored, sequence, born)?;
        self.write_cost.upload_bytes = self.write_cost.upload_bytes.saturating_add(written);
        Ok(())
    }

    /// Gives the bytes that it took to write it.
    pub(crate) fn list(&mut self, stored: Stored, logged: u64, born: u64) -> Result<u64> {
        let (taken, written) = (self.taken(&stored.place), self.written(&stored.place));
        let segment = self.segments.get_mut(&stored.place.segment);
        let segment = segment
            .ok_or_else(|| corrupt(format!("container {} lies in no segment", stored.id)))?;
        segment.end = segment.end.max(stored.place.at + taken);
        segment.used = segment.used.saturating_add(taken);
        self.next_id = self.next_id.max(stored.id.0 + 1);
        let id = stored.id;
        if self
            .containers
            .insert(id, Container { stored, merged: Vec::new(), logged, born, changed: born })
            .is_some()
            || self.moved_to.contains_key(&id)
        {
            return Err(corrupt(format!("the log lists container {id} twice")));
        }
        Ok(written)
    }

    /// The container's place is to be freed, when who reads there has left.
    pub(crate) fn wait_to_be_freed(&mut self, id: ContainerId, epoch: u32) -> Result<()> {
        let gone = self
            .containers
            .remove(&id)
            .ok_or_else(|| corrupt(format!("the log drops container {id}, which is not there")))?;
        self.unfinished.remove(&id);
        self.condemned.remove(&id);
        self.damaged.remove(&id);
        for number in &gone.merged {
            if let Some(places) = self.moved_to.get_mut(number) {
                places.retain(|place| *place != id);
                if places.is_empty() {
                    self.moved_to.remove(number);
                }
            }
        }
        self.waiting_to_be_freed.push((gone.stored.place, epoch));
        Ok(())
    }

    pub(crate) fn gone(&mut self, stream: &Stream) {
        let at = self.versions;
        self.differences.extend(stream.recipes().map(|recipe| Difference {
            added: false,
            recipe: recipe.clone(),
            at,
        }));
    }

    /// The bytes of a snapshot.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.u64(self.sequence)
            .u64(self.chain)
            .u32(self.epoch)
            .u64(self.next_id)
            .u32(self.next_segment);
        w.u32(self.streams.len() as u32);
        for (name, stream) in &self.streams {
            w.bytes(name.as_bytes());
            stream.encode(&mut w);
        }
        w.u32(self.segments.len() as u32);
        for (&n, segment) in &self.segments {
            w.u32(n)
                .u8(if segment.owner == Owner::Ingest { 1 } else { 2 })
                .u64(segment.end)
                .u64(segment.used);
        }
        w.u32(self.containers.len() as u32);
        for container in self.containers.values() {
            container.stored.encode(&mut w);
            w.u64(container.logged).u32(container.merged.len() as u32);
            container.merged.iter().for_each(|id| {
                w.u64(id.0);
            });
        }
        w.u32(self.unfinished.len() as u32);
        for (id, &at) in &self.unfinished {
            w.u64(id.0).u64(at);
        }
        w.u32(self.condemned.len() as u32);
        for (id, bits) in &self.condemned {
            w.u64(id.0).bytes(bits);
        }
        w.u32(self.waiting_to_be_freed.len() as u32);
        for (place, epoch) in &self.waiting_to_be_freed {
            place.encode(&mut w);
            w.u32(*epoch);
        }
        index_files(&mut w, &self.index.files);
        w.u64(self.index.upto).u64(self.counts).u64(self.counted);
        w.u32(self.differences.len() as u32);
        for difference in &self.differences {
            w.u8(u8::from(difference.added));
            pieces(&mut w, &difference.recipe);
        }
        self.encode_volumes(&mut w);
        self.encode_late(&mut w);
        // Who does not know of damage must not put what it would take for a duplicate.
        if !self.damaged.is_empty() {
            w.u32(self.damaged.len() as u32);
            for (id, bits) in &self.damaged {
                w.u64(id.0).bytes(bits);
            }
        }
        w.0
    }

    /// The tables of a snapshot.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn decode(bytes: &[u8], spread: [u8; 3], late: bool) -> Result<Tables> {
        Tables::decode_within(bytes, spread, late, Drawn::free())
    }

    /// The same within a budget.
    pub(crate) fn decode_within(
        bytes: &[u8],
        spread: [u8; 3],
        late: bool,
        drawn: &Drawn,
    ) -> Result<Tables> {
        let r = &mut Reader(bytes, Some(drawn));
        let mut tables = Tables {
            sequence: r.counter()?,
            chain: r.u64()?,
            epoch: r.u32()?,
            next_id: r.u64()?,
            next_segment: r.u32()?,
            ..Tables::new(spread, late)
        };
        for _ in 0..r.count(45, STREAM_MEMORY)? {
            let name = r.text()?;
            tables.streams.insert(name, Stream::decode(r)?);
        }
        for _ in 0..r.count(21, ENTRY_MEMORY)? {
            let n = r.u32()?;
            let owner = if r.u8()? == 1 { Owner::Ingest } else { Owner::Collector };
            let (end, used) = (r.u64()?, r.u64()?);
            if end > SEGMENT_END_MAX {
                return Err(corrupt("a segment can't be so long"));
            }
            tables
                .segments
                .insert(n, Segment { owner, end, used, class: Class::Plain, data: spread[1] });
        }
        for _ in 0..r.count(Stored::BYTES + 12, CONTAINER_MEMORY)? {
            let stored = Stored::decode(r)?;
            let logged = r.u64()?;
            let merged =
                (0..r.count(8, MERGED_MEMORY)?).map(|_| id(r)).collect::<Result<Vec<_>>>()?;
            for &id in &merged {
                tables.moved_to.entry(id).or_default().push(stored.id);
            }
            tables
                .containers
                .insert(stored.id, Container { stored, merged, logged, born: 0, changed: 0 });
        }
        for _ in 0..r.count(16, ID_MEMORY)? {
            tables.unfinished.insert(id(r)?, r.u64()?);
        }
        for _ in 0..r.count(12, ENTRY_MEMORY)? {
            tables.condemned.insert(id(r)?, r.bytes()?.to_vec());
        }
        for _ in 0..r.count(24, size_of::<(Place, u32)>())? {
            tables.waiting_to_be_freed.push((Place::decode(r)?, r.u32()?));
        }
        tables.index = IndexState { files: index_files_of(r)?, upto: r.u64()? };
        (tables.counts, tables.counted) = (r.counter()?, r.u64()?);
        for _ in 0..r.count(5, size_of::<Difference>())? {
            tables.differences.push(Difference {
                added: r.u8()? == 1,
                recipe: pieces_of(r)?,
                at: 0,
            });
        }
        tables.decode_volumes(r)?;
        tables.decode_late(r)?;
        if !r.0.is_empty() {
            for _ in 0..r.count(12, ENTRY_MEMORY)? {
                tables.damaged.insert(id(r)?, r.bytes()?.to_vec());
            }
        }
        r.end()?;
        Ok(tables)
    }
}

/// A name that a stream can have.
///
/// # Errors
/// `InvalidInput`.
pub fn valid_name(name: &str) -> Result<()> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
        return Err(Error::new(
            Kind::InvalidInput,
            format!("a stream's name has 1 to {NAME_BYTES_MAX} bytes and no control characters"),
        ));
    }
    Ok(())
}
