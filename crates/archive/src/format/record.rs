//! Records: what changed, as the operations log says it (dedupv1 3.6).

use onefold_core::{Error, Result};

use super::{
    backup::{Origin, Snapshot, SnapshotId},
    bytes::{Reader, Writer, corrupt},
    care::CareNote,
    class::{COLUMNS_MAX, Class},
    container::{ContainerKind, META_BYTES_MAX, RAW_BYTES_MAX},
    data_keys::{Kept, Rotation, generation_of},
    domain::{FIRST_DOMAIN, OF_DOMAIN, other_domain},
    parameters::SLOTS_MAX,
};
use crate::{
    format::{Address, ContainerId},
    memory::Drawn,
};

/// Memory that a number of a container takes in tables.
pub(crate) const ID_MEMORY: usize = 40;

/// Memory that something small takes in tables which are found by a number.
pub(crate) const ENTRY_MEMORY: usize = 112;

/// Memory that a container takes in tables.
pub(crate) const CONTAINER_MEMORY: usize = 256;

/// Records of a frame of a put key at most. The engine writes three.
pub(crate) const PUT_RECORDS_MAX: usize = 64;

/// Bytes of the records of a frame of a put key at most: the numbers of two million containers that a
/// snapshot finishes.
pub(crate) const PUT_PAYLOAD_MAX: usize = 16 << 20;

/// New containers that a frame of a put key lists at most: more than there are numbers that it may keep.
pub(crate) const PUT_CONTAINERS_MAX: usize = 16 << 10;

/// The kinds of records that put keys sign: `Reserved`, `Unfinished` and `SnapshotMade`.
const PUT_KINDS: [u8; 3] = [1, 2, 25];

/// The part of the program that fills a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owner {
    /// The ingesting process.
    Ingest,
    /// Garbage collection.
    Collector,
}

/// Where a container lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The segment.
    pub segment: u32,
    /// The first byte in it.
    pub at: u64,
    /// Bytes of all.
    pub bytes: u32,
    /// Bytes of header and metadata.
    pub meta_bytes: u32,
}

/// A container as the log lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Its number.
    pub id: ContainerId,
    /// The kind of its content.
    pub kind: ContainerKind,
    /// The number of its domain.
    pub domain: u32,
    /// How many chunks.
    pub chunks: u32,
    /// Bytes of its chunks.
    pub raw_bytes: u32,
    /// Where it lies.
    pub place: Place,
}

/// Pieces of a recipe that lie one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pieces {
    /// Their container.
    pub container: ContainerId,
    /// The first slot.
    pub first: u16,
    /// How many.
    pub count: u16,
}

/// A file of the chunk index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexFile {
    /// Its number.
    pub number: u64,
    /// Pages of entries.
    pub pages: u32,
    /// Pages of the Bloom filter behind them.
    pub filter_pages: u32,
    /// Entries.
    pub entries: u64,
}

/// The shape of a stream's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Bytes.
    Bytes,
    /// A directory: the listing names what is in it, and the data is that of all files, one after
    /// the other.
    Tree,
}

/// A stream in the catalogue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stream {
    /// Bytes or a tree.
    pub shape: Shape,
    /// The number of its domain.
    pub domain: u32,
    /// Seconds since 1970.
    pub created: u64,
    /// Bytes of content.
    pub bytes: u64,
    /// Bytes that its containers added to the archive.
    pub added: u64,
    /// Chunks of content.
    pub chunks: u64,
    /// The recipe of its data.
    pub recipe: Vec<Pieces>,
    /// The recipe of a tree's listing. For an incomplete tree the recipe ends with an entry of
    /// no pieces, in the container of the last entry. Programs from before this mark existed
    /// read such a recipe like any other.
    pub listing: Vec<Pieces>,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// Ids from `first` on, and perhaps a segment, are given to somebody.
    Reserved {
        /// To whom.
        owner: Owner,
        /// The first id.
        first: ContainerId,
        /// How many.
        count: u64,
        /// A new segment's number.
        segment: Option<u32>,
        /// The segment's class, and its columns of data.
        class: (Class, u8),
    },
    /// Containers that no recipe names yet.
    Unfinished {
        /// The containers.
        containers: Vec<Stored>,
        /// When, in seconds since 1970.
        at: u64,
    },
    /// What was done to keep the archive well. Programs that do not know it read it as containers
    /// that no recipe names yet, of which there are none.
    CareNoted(CareNote),
    /// A stream is there, in place of one of the same name.
    Put {
        /// Its name.
        name: String,
        /// The stream.
        stream: Stream,
        /// Its last containers.
        containers: Vec<Stored>,
        /// Containers that were listed as unfinished before.
        finished: Vec<ContainerId>,
    },
    /// A stream is gone.
    Removed {
        /// Its name.
        name: String,
    },
    /// A stream has another name.
    Renamed {
        /// Its old name.
        from: String,
        /// Its new name, which was free.
        to: String,
    },
    /// Containers that their put gave up.
    Abandoned {
        /// The containers.
        containers: Vec<ContainerId>,
    },
    /// All containers that were logged up to a place are in the chunk index, which is these files.
    Imported {
        /// The files; the first is the index itself, the others are runs.
        files: Vec<IndexFile>,
        /// The sequence number.
        upto: u64,
    },
    /// Usage counts have taken in the oldest differences.
    Counted {
        /// The number of the file.
        file: u64,
        /// How many differences.
        differences: u64,
        /// The place in the log up to which containers are in it.
        upto: u64,
        /// The first half of the tag that proves the file, in a sealed archive; 0 in a plain one.
        proof: u64,
    },
    /// Chunks that nobody needs: no more duplicates of them. The epoch advances.
    Condemned {
        /// Where they lie, and a bit for each chunk of the container.
        containers: Vec<(ContainerId, Vec<u8>)>,
    },
    /// Chunks whose bytes are not what they were: no more duplicates of them, as soon as the log is
    /// read.
    Damaged {
        /// Where they lie, and a bit for each chunk of the container.
        containers: Vec<(ContainerId, Vec<u8>)>,
    },
    /// Containers are gone, whose chunks were all condemned. Their places are to be freed.
    Dropped {
        /// The containers.
        containers: Vec<ContainerId>,
        /// Containers in which nothing is condemned any more.
        spared: Vec<ContainerId>,
    },
    /// The live chunks of containers lie in a new one. Their old places are to be freed.
    Merged {
        /// The old ones.
        from: Vec<ContainerId>,
        /// The new one.
        to: Stored,
    },
    /// The live chunks of containers that stood replicated lie in new ones, each with its code.
    /// Their old places are to be freed.
    LateEncoded {
        /// The old ones.
        from: Vec<ContainerId>,
        /// The new ones, each with the numbers under which its chunks are known.
        to: Vec<(Stored, Vec<ContainerId>)>,
    },
    /// When the counts of containers changed last: after so many puts.
    Changed {
        /// The containers.
        containers: Vec<(ContainerId, u64)>,
    },
    /// Places were freed.
    Freed {
        /// The places.
        places: Vec<Place>,
    },
    /// The epoch advances, so that readers of old places can be waited for.
    EpochAdvanced,
    /// A volume is there.
    VolumeCreated {
        /// Its number, which is never given twice.
        id: u64,
        /// Its name.
        name: String,
        /// Its size.
        bytes: u64,
        /// Seconds since 1970.
        created: u64,
        /// The number of its domain, which it has for ever.
        domain: u32,
    },
    /// A volume is there that holds what another one holds, in the same domain.
    VolumeCloned {
        /// Its number, which is never given twice.
        id: u64,
        /// The volume that it is made of.
        of: u64,
        /// Its name.
        name: String,
        /// Seconds since 1970.
        created: u64,
        /// Nobody writes to it.
        read_only: bool,
    },
    /// A volume has another size; mappings beyond it are gone.
    VolumeResized {
        /// The volume.
        id: u64,
        /// Its size.
        bytes: u64,
    },
    /// A volume has another name.
    VolumeRenamed {
        /// The volume.
        id: u64,
        /// Its new name, which was free.
        name: String,
    },
    /// A volume and its mappings are gone.
    VolumeDeleted {
        /// The volume.
        id: u64,
    },
    /// Blocks of a volume have no mapping any more: they read as zeroes.
    Unmapped {
        /// The volume.
        id: u64,
        /// The first block.
        first: u64,
        /// How many.
        count: u64,
    },
    /// Blocks of a volume have new mappings.
    Mapped {
        /// The volume.
        id: u64,
        /// Each block, once.
        changes: Vec<Remapped>,
    },
    /// A snapshot of directories is there.
    SnapshotMade {
        /// The snapshot.
        snapshot: Box<Snapshot>,
        /// Its last containers.
        containers: Vec<Stored>,
        /// Containers that were listed as unfinished before.
        finished: Vec<ContainerId>,
    },
    /// Snapshots are out of lists, and still counted.
    Forgotten {
        /// The snapshots.
        ids: Vec<SnapshotId>,
        /// Seconds since 1970, by the clock of the process that forgot them.
        at: u64,
    },
    /// Snapshots are in lists again.
    Undeleted {
        /// The snapshots.
        ids: Vec<SnapshotId>,
    },
    /// A collection saw that these snapshots were forgotten.
    ForgottenSeen {
        /// The snapshots.
        ids: Vec<SnapshotId>,
        /// Seconds since 1970, by the clock of the collection.
        at: u64,
    },
    /// Forgotten snapshots are gone.
    Expired {
        /// The snapshots.
        ids: Vec<SnapshotId>,
    },
    /// Nodes whose children are to be counted when they can be read again; all that are due now.
    CountsDue {
        /// The nodes.
        nodes: Vec<Address>,
    },
    /// A domain was erased: nobody has its key any more.
    DomainErased {
        /// Its number.
        number: u32,
    },
    /// Containers of a domain that was erased are gone. Their places are to be freed.
    DomainFreed {
        /// The domain's number.
        number: u32,
        /// The containers.
        containers: Vec<ContainerId>,
        /// Nothing of it is left.
        all: bool,
    },
    /// A domain has another data key.
    DataKeyRotated(Rotation),
    /// The kept keys of the data key before this generation of a domain, sealed by this one.
    DataKeyKept {
        /// The domain's number.
        domain: u32,
        /// The generation.
        generation: u32,
        /// The kept keys, sealed.
        kept: Box<Kept>,
    },
    /// The data key before this generation of a domain was erased: nothing is under it any more.
    DataKeyErased {
        /// The domain's number.
        domain: u32,
        /// The generation.
        generation: u32,
    },
    /// There is a put key, of which nothing counted before.
    PutKeyAdded {
        /// Its number, which is never given twice.
        number: u32,
        /// The public key that verifies its signatures.
        public: [u8; 32],
        /// The name that manage gave it, for people.
        name: String,
        /// The sets that it may add snapshots to.
        sets: Vec<String>,
    },
    /// Nothing that a put key signs counts from now on.
    PutKeyRemoved {
        /// Its number.
        number: u32,
    },
    /// Manage has read what put keys stored.
    Proven {
        /// All containers that were listed up to this place are true, but for these.
        upto: u64,
        /// Containers that are not: nobody takes their chunks for duplicates.
        untrue: Vec<ContainerId>,
        /// Snapshots that name only what is there.
        snapshots: Vec<SnapshotId>,
    },
    /// Containers that mappings of the same frame name.
    Finished {
        /// New ones.
        containers: Vec<Stored>,
        /// Containers that were listed as unfinished before.
        finished: Vec<ContainerId>,
    },
}

/// A block's mapping was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remapped {
    /// The block.
    pub block: u64,
    /// Where the mapping was that it had; `None` for zeroes.
    pub old: Option<Address>,
    /// Where the mapping is that it has.
    pub new: Option<Address>,
}

fn beyond() -> Error {
    corrupt("the frame of a put key has more, or other records, than a put key may sign")
}

/// An address as one number; 0 is none.
pub(crate) fn packed(address: Option<Address>) -> u64 {
    address.map_or(0, |address| (address.container.0 << 16 | u64::from(address.slot)) + 1)
}

/// The address that a number stands for.
pub(crate) fn unpacked(number: u64) -> Option<Address> {
    let number = number.checked_sub(1)?;
    Some(Address { container: ContainerId(number >> 16), slot: number as u16 })
}

fn unpacked_of(r: &mut Reader<'_>) -> Result<Option<Address>> {
    let number = r.u64()?;
    if number > ContainerId::END << 16 {
        Err(corrupt("the place of a mapping can't be true"))
    } else {
        Ok(unpacked(number))
    }
}

impl Place {
    pub(crate) fn encode(&self, w: &mut Writer) {
        w.u32(self.segment).u64(self.at).u32(self.bytes).u32(self.meta_bytes);
    }

    pub(crate) fn decode(r: &mut Reader<'_>) -> Result<Place> {
        Place { segment: r.u32()?, at: r.u64()?, bytes: r.u32()?, meta_bytes: r.u32()? }.checked()
    }

    /// Errors unless it can be true.
    pub(crate) fn checked(self) -> Result<Place> {
        if self.meta_bytes > self.bytes || self.at > 1 << 48 {
            return Err(corrupt("the place of a container can't be true"));
        }
        Ok(self)
    }
}

impl Stored {
    pub(crate) const BYTES: usize = 39;

    pub(crate) fn encode(&self, w: &mut Writer) {
        let kind = if self.kind == ContainerKind::Data { 1 } else { 2 };
        match self.domain {
            // One data shard, no parity.
            FIRST_DOMAIN => w.u64(self.id.0).u8(kind).u8(1).u8(0),
            domain => w.u64(self.id.0).u8(kind | OF_DOMAIN).u16(domain as u16),
        };
        w.u32(self.chunks).u32(self.raw_bytes);
        self.place.encode(w);
    }

    pub(crate) fn decode(r: &mut Reader<'_>) -> Result<Stored> {
        let id = id(r)?;
        let code = r.u8()?;
        let kind = match code & !OF_DOMAIN {
            1 => ContainerKind::Data,
            2 => ContainerKind::Recipes,
            _ => return Err(corrupt("a container holds something unknown")),
        };
        let domain = match code & OF_DOMAIN {
            0 if [r.u8()?, r.u8()?] != [1, 0] => {
                return Err(corrupt("a container has shards that this version does not know"));
            }
            0 => FIRST_DOMAIN,
            _ => other_domain(r.u16()?.into())?,
        };
        let (chunks, raw_bytes, place) = (r.u32()?, r.u32()?, Place::decode(r)?);
        Stored { id, kind, domain, chunks, raw_bytes, place }.checked()
    }

    /// Errors unless it can be true.
    pub(crate) fn checked(self) -> Result<Stored> {
        if self.chunks as usize > SLOTS_MAX
            || self.raw_bytes as usize > RAW_BYTES_MAX
            || self.place.meta_bytes as usize > META_BYTES_MAX
        {
            return Err(corrupt(format!("container {} can't be so large", self.id)));
        }
        Ok(self)
    }
}

impl Stream {
    pub(crate) fn encode(&self, w: &mut Writer) {
        let shape = if self.shape == Shape::Bytes { 1 } else { 2 };
        match self.domain {
            FIRST_DOMAIN => w.u8(shape),
            domain => w.u8(shape | OF_DOMAIN).u32(domain),
        };
        w.u64(self.created).u64(self.bytes).u64(self.added).u64(self.chunks);
        pieces(w, &self.recipe);
        pieces(w, &self.listing);
    }

    pub(crate) fn decode(r: &mut Reader<'_>) -> Result<Stream> {
        let code = r.u8()?;
        let shape = match code & !OF_DOMAIN {
            1 => Shape::Bytes,
            2 => Shape::Tree,
            _ => return Err(corrupt("a stream is something unknown")),
        };
        let domain = if code & OF_DOMAIN == 0 { FIRST_DOMAIN } else { other_domain(r.u32()?)? };
        let (created, bytes, added, chunks) = (r.u64()?, r.u64()?, r.u64()?, r.u64()?);
        Ok(Stream {
            shape,
            domain,
            created,
            bytes,
            added,
            chunks,
            recipe: pieces_of(r)?,
            listing: pieces_of(r)?,
        })
    }

    /// True for a tree of which something could not be read when it was stored.
    #[must_use]
    pub fn is_incomplete(&self) -> bool {
        self.listing.last().is_some_and(|last| last.count == 0)
    }

    /// Marks the recipe of a listing as that of an incomplete tree.
    pub(crate) fn mark_incomplete(listing: &mut Vec<Pieces>) {
        if let Some(last) = listing.last() {
            listing.push(Pieces { count: 0, ..*last });
        }
    }

    /// Both recipes.
    pub fn recipes(&self) -> impl Iterator<Item = &Vec<Pieces>> {
        [&self.recipe, &self.listing].into_iter().filter(|recipe| !recipe.is_empty())
    }
}

pub(crate) fn pieces(w: &mut Writer, all: &[Pieces]) {
    w.u32(all.len() as u32);
    for pieces in all {
        w.u64(pieces.container.0).u16(pieces.first).u16(pieces.count);
    }
}

pub(crate) fn pieces_of(r: &mut Reader<'_>) -> Result<Vec<Pieces>> {
    // Once more when what goes is counted.
    let n = r.count(12, 2 * size_of::<Pieces>())?;
    (0..n).map(|_| Ok(Pieces { container: id(r)?, first: r.u16()?, count: r.u16()? })).collect()
}

pub(crate) fn id(r: &mut Reader<'_>) -> Result<ContainerId> {
    let id = r.u64()?;
    if id < ContainerId::END {
        Ok(ContainerId(id))
    } else {
        Err(corrupt("a container's number is too large"))
    }
}

pub(crate) fn index_files(w: &mut Writer, files: &[IndexFile]) {
    w.u32(files.len() as u32);
    for file in files {
        w.u64(file.number).u32(file.pages).u32(file.filter_pages).u64(file.entries);
    }
}

pub(crate) fn index_files_of(r: &mut Reader<'_>) -> Result<Vec<IndexFile>> {
    let n = r.count(24, size_of::<IndexFile>())?;
    (0..n)
        .map(|_| {
            Ok(IndexFile {
                number: r.u64()?,
                pages: r.u32()?,
                filter_pages: r.u32()?,
                entries: r.u64()?,
            })
        })
        .collect()
}

/// A bit for each chunk of containers.
fn bits(w: &mut Writer, all: &[(ContainerId, Vec<u8>)]) {
    w.u32(all.len() as u32);
    all.iter().for_each(|(id, bits)| {
        w.u64(id.0).bytes(bits);
    });
}

fn bits_of(r: &mut Reader<'_>) -> Result<Vec<(ContainerId, Vec<u8>)>> {
    let n = r.count(12, ENTRY_MEMORY)?;
    (0..n).map(|_| Ok((id(r)?, r.bytes()?.to_vec()))).collect()
}

/// Reads a segment's class, and its columns of data.
pub(crate) fn class_of(r: &mut Reader<'_>) -> Result<(Class, u8)> {
    let (class, data) = (Class::from_code(r.u8()?), r.u8()?);
    match class {
        Some(class) if data > 0 && usize::from(data) <= COLUMNS_MAX => Ok((class, data)),
        _ => Err(corrupt("a segment has a code that this version does not know")),
    }
}

fn ids(w: &mut Writer, all: &[ContainerId]) {
    w.u32(all.len() as u32);
    all.iter().for_each(|id| {
        w.u64(id.0);
    });
}

fn ids_of(r: &mut Reader<'_>) -> Result<Vec<ContainerId>> {
    let n = r.count(8, ID_MEMORY)?;
    (0..n).map(|_| id(r)).collect()
}

fn snapshot_ids(w: &mut Writer, all: &[SnapshotId]) {
    w.u32(all.len() as u32);
    all.iter().for_each(|id| {
        w.raw(&id.0);
    });
}

fn snapshot_ids_of(r: &mut Reader<'_>) -> Result<Vec<SnapshotId>> {
    let n = r.count(16, ID_MEMORY)?;
    (0..n).map(|_| Ok(SnapshotId(r.array()?))).collect()
}

/// Addresses, each as one number.
pub(crate) fn addresses(w: &mut Writer, all: &[Address]) {
    w.u32(all.len() as u32);
    all.iter().for_each(|&address| {
        w.u64(packed(Some(address)));
    });
}

pub(crate) fn addresses_of(r: &mut Reader<'_>) -> Result<Vec<Address>> {
    let n = r.count(8, ID_MEMORY)?;
    (0..n).map(|_| unpacked_of(r)?.ok_or_else(|| corrupt("an address can't be none"))).collect()
}

fn stored(w: &mut Writer, all: &[Stored]) {
    w.u32(all.len() as u32);
    all.iter().for_each(|stored| stored.encode(w));
}

fn stored_of(r: &mut Reader<'_>) -> Result<Vec<Stored>> {
    let n = r.count(Stored::BYTES, CONTAINER_MEMORY)?;
    (0..n).map(|_| Stored::decode(r)).collect()
}

impl Record {
    /// The bytes of records that are appended together.
    #[must_use]
    pub fn encode_all(records: &[Record]) -> Vec<u8> {
        let mut w = Writer::default();
        records.iter().for_each(|record| record.encode(&mut w));
        w.0
    }

    /// The records of a frame.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn decode_all(payload: &[u8]) -> Result<Vec<Record>> {
        Record::decode_within(payload, Drawn::free())
    }

    /// The same within a budget.
    pub(crate) fn decode_within(payload: &[u8], drawn: &Drawn) -> Result<Vec<Record>> {
        let mut r = Reader(payload, Some(drawn));
        let mut records = Vec::new();
        while !r.0.is_empty() {
            drawn.more(size_of::<Record>() as u64)?;
            records.push(Record::decode(&mut r)?);
        }
        Ok(records)
    }

    /// Reads the records of a put key, and no further than to the first that a put key may not sign.
    ///
    /// # Errors
    /// `Corrupt` for those, and for a frame beyond the limits of put keys; `Memory`.
    pub(crate) fn decode_put(payload: &[u8], drawn: &Drawn) -> Result<Vec<Record>> {
        if payload.len() > PUT_PAYLOAD_MAX {
            return Err(beyond());
        }
        let mut r = Reader(payload, Some(drawn));
        let (mut records, mut containers) = (Vec::new(), 0);
        while let Some(kind) = r.0.first() {
            if !PUT_KINDS.contains(kind) || records.len() == PUT_RECORDS_MAX {
                return Err(beyond());
            }
            drawn.more(size_of::<Record>() as u64)?;
            let mut record = Record::decode(&mut r)?;
            // A put key copies nothing: later copies would take files over from what it says it copied.
            if let Record::SnapshotMade { snapshot, .. } = &mut record
                && let Origin::Copied(_) = snapshot.origin
            {
                snapshot.origin = Origin::Read(None);
            }
            containers += record.lists();
            if containers > PUT_CONTAINERS_MAX {
                return Err(beyond());
            }
            records.push(record);
        }
        Ok(records)
    }

    /// True when a put key may sign so many records of so many bytes in one frame.
    pub(crate) fn fit_put(records: &[Record], payload: usize) -> bool {
        records.len() <= PUT_RECORDS_MAX
            && payload <= PUT_PAYLOAD_MAX
            && records.iter().map(Record::lists).sum::<usize>() <= PUT_CONTAINERS_MAX
    }

    /// How many new containers this record of a put key lists.
    fn lists(&self) -> usize {
        match self {
            Record::Unfinished { containers, .. } | Record::SnapshotMade { containers, .. } => {
                containers.len()
            }
            _ => 0,
        }
    }

    fn encode(&self, w: &mut Writer) {
        match self {
            Record::Reserved { owner, first, count, segment, class } => {
                // The archive's own code is not told: as it was before there were others.
                w.u8(if class.0 == Class::Plain { 1 } else { 21 });
                w.u8(if *owner == Owner::Ingest { 1 } else { 2 })
                    .u64(first.0)
                    .u64(*count)
                    .u32(segment.map_or(0, |n| n + 1));
                if class.0 != Class::Plain {
                    w.u8(class.0.code()).u8(class.1);
                }
            }
            Record::Unfinished { containers, at } => {
                w.u8(2).u64(*at);
                stored(w, containers);
            }
            Record::CareNoted(note) => {
                w.u8(2).u64(note.encode()).u32(0);
            }
            Record::Put { name, stream, containers, finished } => {
                w.u8(3).bytes(name.as_bytes());
                stream.encode(w);
                stored(w, containers);
                ids(w, finished);
            }
            Record::Removed { name } => {
                w.u8(4).bytes(name.as_bytes());
            }
            Record::Renamed { from, to } => {
                w.u8(5).bytes(from.as_bytes()).bytes(to.as_bytes());
            }
            Record::Abandoned { containers } => ids(w.u8(6), containers),
            Record::Imported { files, upto } => {
                index_files(w.u8(7), files);
                w.u64(*upto);
            }
            Record::Counted { file, differences, upto, proof } => {
                w.u8(if *proof == 0 { 8 } else { 32 }).u64(*file).u64(*differences).u64(*upto);
                if *proof != 0 {
                    w.u64(*proof);
                }
            }
            Record::Condemned { containers } => bits(w.u8(9), containers),
            Record::Damaged { containers } => bits(w.u8(24), containers),
            Record::Dropped { containers, spared } => {
                ids(w.u8(10), containers);
                ids(w, spared);
            }
            Record::Merged { from, to } => {
                ids(w.u8(11), from);
                to.encode(w);
            }
            Record::LateEncoded { from, to } => {
                ids(w.u8(22), from);
                w.u32(to.len() as u32);
                to.iter().for_each(|(stored, of)| {
                    stored.encode(w);
                    ids(w, of);
                });
            }
            Record::Changed { containers } => {
                w.u8(23).u32(containers.len() as u32);
                containers.iter().for_each(|(id, versions)| {
                    w.u64(id.0).u64(*versions);
                });
            }
            Record::Freed { places } => {
                w.u8(12).u32(places.len() as u32);
                places.iter().for_each(|place| place.encode(w));
            }
            Record::EpochAdvanced => {
                w.u8(13);
            }
            Record::VolumeCreated { id, name, bytes, created, domain } => {
                let kind = if *domain == FIRST_DOMAIN { 14 } else { 41 };
                w.u8(kind).u64(*id).bytes(name.as_bytes()).u64(*bytes).u64(*created);
                if *domain != FIRST_DOMAIN {
                    w.u32(*domain);
                }
            }
            Record::VolumeCloned { id, of, name, created, read_only } => {
                w.u8(31)
                    .u64(*id)
                    .u64(*of)
                    .bytes(name.as_bytes())
                    .u64(*created)
                    .u8(u8::from(*read_only));
            }
            Record::VolumeResized { id, bytes } => {
                w.u8(15).u64(*id).u64(*bytes);
            }
            Record::VolumeRenamed { id, name } => {
                w.u8(16).u64(*id).bytes(name.as_bytes());
            }
            Record::VolumeDeleted { id } => {
                w.u8(17).u64(*id);
            }
            Record::Unmapped { id, first, count } => {
                w.u8(18).u64(*id).u64(*first).u64(*count);
            }
            Record::Mapped { id, changes } => {
                w.u8(19).u64(*id).u32(changes.len() as u32);
                changes.iter().for_each(|change| {
                    w.u64(change.block).u64(packed(change.old)).u64(packed(change.new));
                });
            }
            Record::Finished { containers, finished } => {
                stored(w.u8(20), containers);
                ids(w, finished);
            }
            Record::SnapshotMade { snapshot, containers, finished } => {
                snapshot.encode(w.u8(25));
                stored(w, containers);
                ids(w, finished);
            }
            Record::Forgotten { ids, at } => snapshot_ids(w.u8(26).u64(*at), ids),
            Record::Undeleted { ids } => snapshot_ids(w.u8(27), ids),
            Record::ForgottenSeen { ids, at } => snapshot_ids(w.u8(28).u64(*at), ids),
            Record::Expired { ids } => snapshot_ids(w.u8(29), ids),
            Record::CountsDue { nodes } => addresses(w.u8(30), nodes),
            Record::DomainErased { number } => {
                w.u8(33).u32(*number);
            }
            Record::PutKeyAdded { number, public, name, sets } => {
                w.u8(35).u32(*number).raw(public).bytes(name.as_bytes()).u32(sets.len() as u32);
                sets.iter().for_each(|set| {
                    w.bytes(set.as_bytes());
                });
            }
            Record::PutKeyRemoved { number } => {
                w.u8(36).u32(*number);
            }
            Record::Proven { upto, untrue, snapshots } => {
                ids(w.u8(37).u64(*upto), untrue);
                snapshot_ids(w, snapshots);
            }
            Record::DataKeyRotated(rotation) => rotation.encode(w.u8(38)),
            Record::DataKeyKept { domain, generation, kept } => {
                w.u8(40).u32(*domain).u32(*generation).raw(&kept[..]);
            }
            Record::DataKeyErased { domain, generation } => {
                w.u8(39).u32(*domain).u32(*generation);
            }
            Record::DomainFreed { number, containers, all } => {
                ids(w.u8(34).u32(*number).u8(u8::from(*all)), containers);
            }
        }
    }

    fn decode(r: &mut Reader<'_>) -> Result<Record> {
        Ok(match r.u8()? {
            kind @ (1 | 21) => {
                let owner = if r.u8()? == 1 { Owner::Ingest } else { Owner::Collector };
                let (first, count, segment) = (id(r)?, r.u64()?, r.u32()?.checked_sub(1));
                let class = if kind == 1 { (Class::Plain, 0) } else { class_of(r)? };
                if kind == 21 && class.0 == Class::Plain {
                    return Err(corrupt("a record gives a class to a segment that has none"));
                }
                Record::Reserved { owner, first, count, segment, class }
            }
            2 => {
                let (at, containers) = (r.u64()?, stored_of(r)?);
                match CareNote::decode(at).filter(|_| containers.is_empty()) {
                    Some(note) => Record::CareNoted(note),
                    None => Record::Unfinished { containers, at },
                }
            }
            3 => {
                let name = r.text()?;
                let stream = Stream::decode(r)?;
                Record::Put { name, stream, containers: stored_of(r)?, finished: ids_of(r)? }
            }
            4 => Record::Removed { name: r.text()? },
            5 => Record::Renamed { from: r.text()?, to: r.text()? },
            6 => Record::Abandoned { containers: ids_of(r)? },
            7 => Record::Imported { files: index_files_of(r)?, upto: r.u64()? },
            kind @ (8 | 32) => Record::Counted {
                file: r.counter()?,
                differences: r.u64()?,
                upto: r.u64()?,
                proof: if kind == 8 { 0 } else { r.u64()? },
            },
            9 => Record::Condemned { containers: bits_of(r)? },
            24 => Record::Damaged { containers: bits_of(r)? },
            10 => Record::Dropped { containers: ids_of(r)?, spared: ids_of(r)? },
            11 => Record::Merged { from: ids_of(r)?, to: Stored::decode(r)? },
            12 => {
                let n = r.count(20, size_of::<Place>())?;
                Record::Freed { places: (0..n).map(|_| Place::decode(r)).collect::<Result<_>>()? }
            }
            13 => Record::EpochAdvanced,
            kind @ (14 | 41) => Record::VolumeCreated {
                id: r.u64()?,
                name: r.text()?,
                bytes: r.u64()?,
                created: r.u64()?,
                domain: if kind == 14 { FIRST_DOMAIN } else { other_domain(r.u32()?)? },
            },
            15 => Record::VolumeResized { id: r.u64()?, bytes: r.u64()? },
            16 => Record::VolumeRenamed { id: r.u64()?, name: r.text()? },
            17 => Record::VolumeDeleted { id: r.u64()? },
            18 => Record::Unmapped { id: r.u64()?, first: r.u64()?, count: r.u64()? },
            19 => {
                let (id, n) = (r.u64()?, r.count(24, size_of::<Remapped>())?);
                let changes = (0..n).map(|_| {
                    Ok(Remapped { block: r.u64()?, old: unpacked_of(r)?, new: unpacked_of(r)? })
                });
                Record::Mapped { id, changes: changes.collect::<Result<_>>()? }
            }
            22 => {
                let from = ids_of(r)?;
                let to = (0..r.count(Stored::BYTES + 4, CONTAINER_MEMORY)?)
                    .map(|_| Ok((Stored::decode(r)?, ids_of(r)?)));
                Record::LateEncoded { from, to: to.collect::<Result<_>>()? }
            }
            23 => {
                let n = r.count(16, 16)?;
                Record::Changed {
                    containers: (0..n).map(|_| Ok((id(r)?, r.u64()?))).collect::<Result<_>>()?,
                }
            }
            20 => Record::Finished { containers: stored_of(r)?, finished: ids_of(r)? },
            25 => {
                let snapshot = Box::new(Snapshot::decode(r)?);
                let (containers, finished) = (stored_of(r)?, ids_of(r)?);
                Record::SnapshotMade { snapshot, containers, finished }
            }
            26 => {
                let at = r.u64()?;
                Record::Forgotten { ids: snapshot_ids_of(r)?, at }
            }
            27 => Record::Undeleted { ids: snapshot_ids_of(r)? },
            28 => {
                let at = r.u64()?;
                Record::ForgottenSeen { ids: snapshot_ids_of(r)?, at }
            }
            29 => Record::Expired { ids: snapshot_ids_of(r)? },
            30 => Record::CountsDue { nodes: addresses_of(r)? },
            31 => Record::VolumeCloned {
                id: r.u64()?,
                of: r.u64()?,
                name: r.text()?,
                created: r.u64()?,
                read_only: r.u8()? != 0,
            },
            33 => Record::DomainErased { number: other_domain(r.u32()?)? },
            35 => Record::PutKeyAdded {
                number: r.u32()?,
                public: r.array()?,
                name: r.text()?,
                sets: (0..r.count(4, ENTRY_MEMORY)?).map(|_| r.text()).collect::<Result<_>>()?,
            },
            38 => Record::DataKeyRotated(Rotation::decode(r)?),
            40 => {
                let (domain, generation) = generation_of(r)?;
                Record::DataKeyKept { domain, generation, kept: Box::new(r.array()?) }
            }
            39 => {
                let (domain, generation) = generation_of(r)?;
                Record::DataKeyErased { domain, generation }
            }
            36 => Record::PutKeyRemoved { number: r.u32()? },
            37 => Record::Proven {
                upto: r.u64()?,
                untrue: ids_of(r)?,
                snapshots: snapshot_ids_of(r)?,
            },
            34 => {
                let (number, all) = (other_domain(r.u32()?)?, r.u8()? != 0);
                Record::DomainFreed { number, containers: ids_of(r)?, all }
            }
            other => return Err(corrupt(format!("a record of unknown kind {other}"))),
        })
    }
}
