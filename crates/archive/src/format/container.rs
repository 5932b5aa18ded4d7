//! The container (dedupv1 3.3): a header, metadata for each group and chunk, and the groups, which
//! are compressed each by itself.
//!
//! Chunks stand in the order of their addresses, so that an address is found by halving. In a
//! container that was filled by a put the address is this container and the slot; in one that
//! collection merged, it is the one under which each chunk was stored first.

use std::{ops::Range, sync::Arc};

use onefold_core::{Fingerprint, Result};
use onefold_seal::TAG_BYTES;

use super::{
    bytes::{Reader, Writer, corrupt},
    class::Class,
    content::Content,
    domain::FIRST_DOMAIN,
    padding::{STEP_BYTES, container_bytes, may_take},
    parameters::{Compression, GROUP_BYTES, SLOTS_MAX},
    sealing::{ContainerSeal, DOMAIN_AT, DOMAIN_SAID_BYTES, SALT_BYTES, Sealing, shut},
};
use crate::{
    format::{Address, ContainerId, Identity},
    memory::{BufferPool, Pooled},
};

/// Bytes of the header.
pub(crate) const HEADER_BYTES: usize = 128;

/// Bytes of a group's entry.
pub(crate) const GROUP_ENTRY_BYTES: usize = 24;

/// Bytes of a chunk's entry.
pub(crate) const CHUNK_ENTRY_BYTES: usize = 32;

/// Metadata of the fullest container.
pub(crate) const META_BYTES_MAX: usize =
    (HEADER_BYTES + COUNTS_BYTES + 256 * GROUP_ENTRY_BYTES + SLOTS_MAX * CHUNK_ENTRY_BYTES)
        .next_multiple_of(STEP_BYTES);

/// Bytes before the groups' entries in a sealed container: how many groups and chunks, and the end of
/// the last group.
const COUNTS_BYTES: usize = 16;

/// Where the header of a sealed container has its salt, with the proof of its key and its domain behind
/// it, and the tag.
const SALT_AT: usize = 56;
const TAG_AT: usize = HEADER_BYTES - TAG_BYTES;
const KEY_PROOF_BYTES: usize = 16;

/// Chunk bytes of the fullest container: its last chunk may be larger than what was left.
pub(crate) const RAW_BYTES_MAX: usize = 8 << 20;

/// Bytes of a container at most. Chunks that do not become smaller are stored as they are, each group with
/// a tag.
pub(crate) const CONTAINER_BYTES_MAX: u32 = (META_BYTES_MAX + 2 * RAW_BYTES_MAX) as u32;

const MAGIC: &[u8; 8] = b"ONEFCONT";

/// The kind of content in a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainerKind {
    /// Chunks of streams.
    Data,
    /// Pieces of recipes.
    Recipes,
}

/// A group of chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its first byte, counted from the container's.
    pub at: u32,
    /// Bytes as stored.
    pub stored: u32,
    /// Bytes of its chunks.
    pub raw: u32,
    /// How it is compressed.
    pub compression: Compression,
    /// Of the bytes as stored, before they are sealed.
    pub checksum: u64,
}

/// A chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Its fingerprint.
    pub fingerprint: Fingerprint,
    /// Its address.
    pub first: Address,
    /// Its group.
    pub group: u8,
    /// Its first byte in the expanded group.
    pub at: u32,
    /// Its length.
    pub bytes: u32,
}

/// The metadata section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// The container's number.
    pub id: ContainerId,
    /// The epoch of the archive in which it was made.
    pub epoch: u32,
    /// The kind of its content.
    pub kind: ContainerKind,
    /// The groups, in the order of their bytes.
    pub groups: Vec<Group>,
    /// The chunks, in the order of their addresses.
    pub chunks: Vec<Chunk>,
    /// Bytes of header and metadata.
    pub meta_bytes: u32,
    /// Bytes of all.
    pub bytes: u32,
    /// The cipher of its groups, in a sealed archive.
    pub(crate) seal: Option<Arc<ContainerSeal>>,
}

/// A container while it is filled.
#[derive(Clone, Debug)]
pub struct OpenContainer {
    /// Its number.
    pub id: ContainerId,
    /// The kind of its content.
    pub kind: ContainerKind,
    /// The number of its domain.
    domain: u32,
    /// The class that it goes to, when its chunks were sorted; else that of its kind.
    pub(crate) class: Option<Class>,
    chunks: Vec<Chunk>,
    groups: Vec<u32>,
    content: Content,
}

/// A container as it is written: metadata, then groups.
pub struct Packed {
    /// Its number.
    pub id: ContainerId,
    /// The kind of its content.
    pub kind: ContainerKind,
    /// The number of its domain.
    pub(crate) domain: u32,
    /// The class that it goes to, when its chunks were sorted; else that of its kind.
    pub(crate) class: Option<Class>,
    /// Header and metadata.
    pub meta: Vec<u8>,
    /// The groups.
    body: Content,
    /// How many chunks.
    pub chunks: u32,
    /// Bytes of its chunks.
    pub raw_bytes: u32,
}

impl OpenContainer {
    /// An empty one.
    #[must_use]
    pub fn new(id: ContainerId, kind: ContainerKind, capacity: usize) -> OpenContainer {
        OpenContainer::over(id, kind, Vec::new(), capacity)
    }

    /// An empty one in memory that was used before.
    pub(crate) fn over(
        id: ContainerId,
        kind: ContainerKind,
        buffer: Vec<u8>,
        capacity: usize,
    ) -> OpenContainer {
        let content = Content::over(buffer, capacity);
        let (chunks, groups, domain) = (Vec::new(), Vec::new(), FIRST_DOMAIN);
        OpenContainer { id, kind, domain, class: None, chunks, groups, content }
    }

    /// The same of another domain than the first one.
    #[must_use]
    pub(crate) fn of_domain(self, domain: u32) -> OpenContainer {
        OpenContainer { domain, ..self }
    }

    /// True when `bytes` more don't fit into `capacity` bytes. An empty one takes anything.
    #[must_use]
    pub fn is_full(&self, bytes: usize, capacity: usize) -> bool {
        !self.chunks.is_empty()
            && (self.content.len() + bytes > capacity
                || self.chunks.len() == SLOTS_MAX
                || (self.groups.len() == 255 && self.closes(bytes)))
    }

    /// True when nothing is in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// True when `bytes` more begin a new group.
    fn closes(&self, bytes: usize) -> bool {
        self.groups.last().is_none_or(|&last| last > 0 && last as usize + bytes > GROUP_BYTES)
    }

    /// Adds a chunk under a new address.
    pub fn push(&mut self, fingerprint: Fingerprint, bytes: &[u8]) -> Address {
        let first = self.next();
        self.push_as(fingerprint, first, bytes);
        first
    }

    /// Adds a chunk that is a part of a buffer, without a copy, under a new address. The buffer
    /// stays in memory until the container is written.
    pub(crate) fn share(
        &mut self,
        fingerprint: Fingerprint,
        of: &Arc<Pooled>,
        range: Range<usize>,
    ) -> Address {
        let first = self.next();
        self.add(fingerprint, first, range.len());
        self.content.share(of, range);
        first
    }

    fn next(&self) -> Address {
        Address { container: self.id, slot: self.chunks.len() as u16 }
    }

    /// Adds a chunk under the address that it has. Addresses must grow.
    pub fn push_as(&mut self, fingerprint: Fingerprint, first: Address, bytes: &[u8]) {
        self.add(fingerprint, first, bytes.len());
        self.content.copy(bytes);
    }

    fn add(&mut self, fingerprint: Fingerprint, first: Address, bytes: usize) {
        if self.closes(bytes) {
            self.groups.push(0);
        }
        let group = self.groups.len() - 1;
        let at = self.groups[group];
        self.groups[group] += bytes as u32;
        let bytes = bytes as u32;
        self.chunks.push(Chunk { fingerprint, first, group: group as u8, at, bytes });
    }

    /// The chunks so far.
    #[must_use]
    pub fn chunks(&self) -> &[Chunk] {
        &self.chunks
    }

    /// The bytes of the chunk in `slot`.
    #[must_use]
    pub fn bytes_of(&self, slot: u16) -> Option<&[u8]> {
        let chunk = self.chunks.get(usize::from(slot))?;
        let group: usize =
            self.groups[..usize::from(chunk.group)].iter().map(|&bytes| bytes as usize).sum();
        let from = group + chunk.at as usize;
        // No chunk is in two pieces.
        self.content.part(from..from + chunk.bytes as usize).first().copied()
    }

    /// Bytes of its chunks.
    pub fn raw_bytes(&self) -> usize {
        self.content.len()
    }

    /// Compresses the groups and makes the metadata. Compression is the slow part of a put; any
    /// thread may do it. In a sealed archive that `pads`, its length is one of few.
    pub(crate) fn pack(
        self,
        identity: &Identity,
        epoch: u32,
        (compression, pads): (Compression, bool),
        packer: &mut Packer,
        buffers: &BufferPool,
    ) -> Result<Packed> {
        let OpenContainer { id, kind, domain, class, chunks, groups: lengths, content } = self;
        let meta_bytes = meta_bytes(identity, lengths.len(), chunks.len());
        let mut groups = Vec::with_capacity(lengths.len());
        // Sealed bytes are a copy: others read what is shared.
        let is_raw = compression == Compression::None && identity.sealing().is_none();
        let (mut packed, mut from) = (if is_raw { Vec::new() } else { buffers.take() }, 0);
        packed.clear();
        let mut gathered = Vec::new();
        for &length in &lengths {
            let parts = content.part(from..from + length as usize);
            let at = if is_raw { from } else { packed.len() };
            let (stored, used, checksum) = if is_raw {
                (length as usize, Compression::None, identity.checksum_of(&parts))
            } else {
                let bytes: &[u8] = match parts[..] {
                    [bytes] => bytes,
                    _ => {
                        gathered.clear();
                        parts.iter().for_each(|part| gathered.extend_from_slice(part));
                        &gathered
                    }
                };
                let (stored, used) = match packer.compress(compression, bytes) {
                    Some(packed) => (packed, compression),
                    None => (bytes, Compression::None),
                };
                packed.extend_from_slice(stored);
                (stored.len(), used, identity.checksum(stored))
            };
            groups.push(Group {
                at: (meta_bytes + at) as u32,
                stored: stored as u32,
                raw: length,
                compression: used,
                checksum,
            });
            from += length as usize;
        }
        let raw_bytes = content.len() as u32;
        let seal = match identity.sealing() {
            Some(sealing) => {
                let made = (id, kind, epoch, compression);
                Some(Arc::new(seal_groups(
                    (sealing, domain),
                    identity.id,
                    made,
                    &chunks,
                    &mut groups,
                    (&mut packed, pads),
                )?))
            }
            None => None,
        };
        let body = if is_raw {
            content
        } else {
            content.give_back(buffers);
            Content::whole(packed)
        };
        let bytes = (meta_bytes + body.len()) as u32;
        let count = chunks.len() as u32;
        let meta_bytes = meta_bytes as u32;
        let meta = Metadata { id, epoch, kind, groups, chunks, meta_bytes, bytes, seal }
            .encode(identity)?;
        Ok(Packed { id, kind, domain, class, meta, body, chunks: count, raw_bytes })
    }
}

/// Bytes of header and metadata.
fn meta_bytes(identity: &Identity, groups: usize, chunks: usize) -> usize {
    let plain = HEADER_BYTES + groups * GROUP_ENTRY_BYTES + chunks * CHUNK_ENTRY_BYTES;
    match identity.sealing() {
        Some(_) => (plain + COUNTS_BYTES).next_multiple_of(STEP_BYTES),
        None => plain,
    }
}

/// True when a container whose groups end at `end` may take `all` bytes.
fn is_end(seal: &Option<Arc<ContainerSeal>>, end: u32, all: u32) -> bool {
    match seal {
        Some(_) => may_take(end as usize, all as usize),
        None => end == all,
    }
}

/// Seals groups that lie one behind the other in `packed`, each with its tag behind it, and hides
/// where the last one ends.
fn seal_groups(
    (sealing, domain): (&Sealing, u32),
    archive: [u8; 16],
    (id, kind, epoch, compression): (ContainerId, ContainerKind, u32, Compression),
    chunks: &[Chunk],
    groups: &mut [Group],
    (packed, pads): (&mut Vec<u8>, bool),
) -> Result<ContainerSeal> {
    let fingerprints: Vec<u8> = chunks.iter().flat_map(|chunk| chunk.fingerprint.0).collect();
    let checksums: Vec<u8> = groups.iter().flat_map(|group| group.checksum.to_le_bytes()).collect();
    let domain = sealing.domain_to_write(domain)?;
    let content = [
        &archive[..],
        &id.0.to_le_bytes(),
        &epoch.to_le_bytes(),
        &[kind.code(), compression.code()],
        &fingerprints,
        &checksums,
    ];
    let salt = sealing.salt(&domain, &content)?;
    let seal = domain.new_container(archive, id.0, kind.code(), &salt)?;
    let mut sealed = Vec::with_capacity(packed.len() + groups.len() * TAG_BYTES + STEP_BYTES);
    let first = groups.first().map_or(0, |group| group.at);
    let mut from = 0;
    for (number, group) in groups.iter_mut().enumerate() {
        let start = sealed.len();
        sealed.extend_from_slice(&packed[from..from + group.stored as usize]);
        from += group.stored as usize;
        let tag = seal.seal(number, group.raw, &mut sealed[start..])?;
        sealed.extend_from_slice(&tag);
        (group.at, group.stored) = (first + start as u32, (sealed.len() - start) as u32);
    }
    let start = sealed.len();
    let first = first as usize;
    sealed.resize(container_bytes(first + start, pads) - first, 0);
    if start < sealed.len() {
        // No group has this number. Nobody opens it: it only looks like the others.
        seal.seal(usize::from(u16::MAX), 0, &mut sealed[start..])?;
    }
    *packed = sealed;
    Ok(seal)
}

impl ContainerKind {
    fn code(self) -> u8 {
        match self {
            ContainerKind::Data => 1,
            ContainerKind::Recipes => 2,
        }
    }
}

impl Packed {
    /// Bytes of all.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        (self.meta.len() + self.body.len()) as u64
    }

    /// All of it, in slices one behind the other.
    pub(crate) fn parts(&self) -> Vec<&[u8]> {
        std::iter::once(&self.meta[..]).chain(self.body.slices()).collect()
    }

    /// It is written: its buffer can be used again.
    pub(crate) fn give_back(self, buffers: &BufferPool) {
        self.body.give_back(buffers);
    }
}

impl Metadata {
    /// The bytes of the section.
    ///
    /// # Errors
    /// `Io`: what seals it refuses to.
    pub fn encode(&self, identity: &Identity) -> Result<Vec<u8>> {
        let mut w = Writer(Vec::with_capacity(self.meta_bytes as usize));
        w.raw(MAGIC).raw(&identity.id).u64(self.id.0).u32(self.epoch);
        // Shard 0 of one data shard, no parity.
        w.u8(self.kind.code()).u8(0).u8(1).u8(0);
        let counts = [self.chunks.len() as u32, self.groups.len() as u32];
        match &self.seal {
            None => w.u32(counts[0]).u32(counts[1]),
            Some(_) => w.u32(0).u32(0),
        };
        w.u32(self.meta_bytes).u32(self.bytes);
        if let Some(seal) = &self.seal {
            w.raw(seal.salt()).raw(&seal.proof()).u32(seal.domain()).u32(seal.generation());
        }
        w.0.resize(HEADER_BYTES, 0);
        if self.seal.is_some() {
            let end = self.groups.last().map_or(self.meta_bytes, |last| last.at + last.stored);
            w.u32(counts[0]).u32(counts[1]).u32(end).u32(0);
        }
        for group in &self.groups {
            w.u32(group.at)
                .u32(group.stored)
                .u32(group.raw)
                .u8(group.compression.code())
                .raw(&[0; 3])
                .u64(group.checksum);
        }
        for chunk in &self.chunks {
            w.raw(&chunk.fingerprint.0)
                .raw(&chunk.first.container.0.to_le_bytes()[..5])
                .u16(chunk.first.slot)
                .u8(chunk.group);
            w.u32(chunk.at).u32(chunk.bytes);
        }
        if let (Some(sealing), Some(seal)) = (identity.sealing(), &self.seal) {
            w.0.resize(self.meta_bytes as usize, 0);
            let (header, body) = w.0.split_at_mut(HEADER_BYTES);
            let domain = sealing.domain_at(seal.domain(), seal.generation())?;
            let tag = domain.seal_metadata(self.id.0, &header[..TAG_AT], body)?;
            header[TAG_AT..].copy_from_slice(&tag);
        } else {
            let checksum = identity.checksum(&w.0);
            w.0[HEADER_BYTES - 8..HEADER_BYTES].copy_from_slice(&checksum.to_le_bytes());
        }
        Ok(w.0)
    }

    /// Reads the metadata section of container `id` from its first `meta_bytes` bytes.
    ///
    /// # Errors
    /// `Corrupt` when it is another container or fails its checksum.
    pub fn decode(identity: &Identity, id: ContainerId, bytes: &[u8]) -> Result<Metadata> {
        let what = |why: &str| corrupt(format!("container {id}: {why}"));
        let mut r = Reader(bytes, None);
        if r.take(8).ok() != Some(MAGIC) || r.take(16).ok() != Some(&identity.id) {
            return Err(what("no container of this archive is there"));
        }
        let found = r.u64()?;
        if found != id.0 {
            return Err(what(&format!("container {found} is in its place")));
        }
        let (epoch, kind, shard) = (r.u32()?, r.u8()?, [r.u8()?, r.u8()?, r.u8()?]);
        let (mut chunks, mut groups, meta_bytes, all) = (r.u32()?, r.u32()?, r.u32()?, r.u32()?);
        if shard != [0, 1, 0] || bytes.len() != meta_bytes as usize {
            return Err(what("its lengths can't be true"));
        }
        let (opened, seal, end_of_groups);
        let mut r = match identity.sealing() {
            Some(sealing) => {
                let (body, container) = open_metadata(sealing, identity.id, id, kind, bytes)?;
                (opened, seal) = (body, Some(Arc::new(container)));
                let mut r = Reader(&opened, None);
                (chunks, groups, end_of_groups) = (r.u32()?, r.u32()?, r.u32()?);
                r.u32()?;
                r
            }
            None => {
                let mut copy = bytes.to_vec();
                let field = HEADER_BYTES - 8..HEADER_BYTES;
                let Some(checksum) = copy.get_mut(field.clone()) else {
                    return Err(what("its lengths can't be true"));
                };
                checksum.fill(0);
                if identity.checksum(&copy).to_le_bytes() != bytes[field] {
                    return Err(what("its metadata fails the checksum"));
                }
                (seal, end_of_groups) = (None, all);
                Reader(&bytes[HEADER_BYTES..], None)
            }
        };
        if groups > 256
            || chunks > SLOTS_MAX as u32
            || bytes.len() != self::meta_bytes(identity, groups as usize, chunks as usize)
            || !is_end(&seal, end_of_groups, all)
        {
            return Err(what("its lengths can't be true"));
        }
        let kind = match kind {
            1 => ContainerKind::Data,
            2 => ContainerKind::Recipes,
            _ => return Err(what("it holds something unknown")),
        };
        let mut read = Metadata {
            id,
            epoch,
            kind,
            groups: Vec::new(),
            chunks: Vec::with_capacity(chunks as usize),
            meta_bytes,
            bytes: all,
            seal,
        };
        let tag = if read.seal.is_some() { TAG_BYTES as u32 } else { 0 };
        let mut end = meta_bytes;
        for _ in 0..groups {
            let (at, stored, raw, code) = (r.u32()?, r.u32()?, r.u32()?, r.u8()?);
            r.take(3)?;
            let compression = Compression::from_code(code)
                .ok_or_else(|| what("a group has an unknown compression"))?;
            let within = stored.checked_sub(tag).filter(|&within| {
                within <= raw && (compression != Compression::None || raw == within)
            });
            if at != end || within.is_none() {
                return Err(what("its groups do not follow one another"));
            }
            end = at.checked_add(stored).ok_or_else(|| what("a group lies outside"))?;
            read.groups.push(Group { at, stored, raw, compression, checksum: r.u64()? });
        }
        if end != end_of_groups {
            return Err(what("its groups do not end where it ends"));
        }
        let mut tiles = Tiles::new(&read.groups);
        for _ in 0..chunks {
            let fingerprint = Fingerprint(r.array()?);
            let mut number = [0; 8];
            number[..5].copy_from_slice(r.take(5)?);
            let first =
                Address { container: ContainerId(u64::from_le_bytes(number)), slot: r.u16()? };
            let chunk = Chunk { fingerprint, first, group: r.u8()?, at: r.u32()?, bytes: r.u32()? };
            if !tiles.lay(&chunk)
                || read.chunks.last().is_some_and(|last: &Chunk| last.first >= first)
            {
                return Err(what("its chunks do not follow one another"));
            }
            read.chunks.push(chunk);
        }
        if !tiles.are_whole() {
            return Err(what(
                "its groups have more than its chunks, or more than a container holds",
            ));
        }
        Ok(read)
    }

    /// The number of the domain that it belongs to, as its header says it.
    #[must_use]
    pub fn domain(&self) -> u32 {
        self.seal.as_ref().map_or(FIRST_DOMAIN, |seal| seal.domain())
    }

    /// The generation of its domain's data key by which it is sealed, as its header says it.
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.seal.as_ref().map_or(0, |seal| seal.generation())
    }

    /// The cipher that opens a group.
    #[must_use]
    pub fn group_seal(&self, group: usize) -> GroupSeal<'_> {
        GroupSeal(self.seal.as_deref().map(|seal| (seal, group)))
    }

    /// Memory that it takes.
    #[must_use]
    pub(crate) fn memory(&self) -> usize {
        size_of::<Metadata>()
            + self.groups.len() * size_of::<Group>()
            + self.chunks.len() * size_of::<Chunk>()
    }

    /// The chunk with this address.
    #[must_use]
    pub fn find(&self, address: Address) -> Option<&Chunk> {
        // In most containers the slot is the place.
        let guess =
            self.chunks.get(usize::from(address.slot)).filter(|chunk| chunk.first == address);
        guess.or_else(|| {
            self.chunks
                .binary_search_by_key(&address, |chunk| chunk.first)
                .ok()
                .map(|n| &self.chunks[n])
        })
    }
}

/// Looks that chunks tile their groups, and that no group is longer than one chunk or
/// [`GROUP_BYTES`].
struct Tiles<'a> {
    groups: &'a [Group],
    /// The group that is being tiled, and how far.
    group: usize,
    filled: u32,
}

impl Tiles<'_> {
    fn new(groups: &[Group]) -> Tiles<'_> {
        Tiles { groups, group: 0, filled: 0 }
    }

    fn is_full(&self) -> bool {
        self.groups.get(self.group).is_none_or(|group| group.raw == self.filled)
    }

    /// False when the chunk does not follow the one before.
    fn lay(&mut self, chunk: &Chunk) -> bool {
        if usize::from(chunk.group) == self.group + 1 && self.is_full() {
            (self.group, self.filled) = (self.group + 1, 0);
        }
        let Some(group) =
            self.groups.get(self.group).filter(|_| usize::from(chunk.group) == self.group)
        else {
            return false;
        };
        let alone = chunk.at == 0 && chunk.bytes == group.raw;
        let follows = chunk.at == self.filled && (alone || group.raw as usize <= GROUP_BYTES);
        self.filled = self.filled.saturating_add(chunk.bytes);
        follows && self.filled <= group.raw
    }

    /// True when the last chunk ended the last group, and all is no more than a container holds.
    fn are_whole(&self) -> bool {
        let all: u64 = self.groups.iter().map(|group| u64::from(group.raw)).sum();
        self.is_full() && self.group + 1 >= self.groups.len() && all <= RAW_BYTES_MAX as u64
    }
}

/// The number of the domain in the header of a sealed container, and the generation of its data key. Nothing
/// proves them yet.
pub(crate) fn domain_said(meta: &[u8]) -> Option<(u32, u32)> {
    let mut r = Reader(meta.get(DOMAIN_AT..DOMAIN_AT + DOMAIN_SAID_BYTES)?, None);
    Some((r.u32().ok()?, r.u32().ok()?))
}

/// The metadata of a sealed container, opened, and what opens its groups.
fn open_metadata(
    sealing: &Sealing,
    archive: [u8; 16],
    id: ContainerId,
    kind: u8,
    bytes: &[u8],
) -> Result<(Vec<u8>, ContainerSeal)> {
    let what = |why: &str| corrupt(format!("container {id}: {why}"));
    let Some((header, body)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
        return Err(what("its lengths can't be true"));
    };
    let mut r = Reader(&header[SALT_AT..], None);
    let (salt, proof): ([u8; SALT_BYTES], [u8; KEY_PROOF_BYTES]) = (r.array()?, r.array()?);
    let (number, generation) = (r.u32()?, r.u32()?);
    let domain = sealing
        .domain_at(number, generation)
        .map_err(|error| error.context(format!("container {id}")))?;
    let seal = domain.container(archive, id.0, kind, salt)?;
    if seal.may_open() && seal.proof() != proof {
        return Err(what("it was sealed with another key"));
    }
    let (mut body, mut tag) = (body.to_vec(), [0; TAG_BYTES]);
    tag.copy_from_slice(&header[TAG_AT..]);
    if !domain.open_metadata(id.0, &header[..TAG_AT], &mut body, &tag) {
        return Err(what("its metadata fails the checksum"));
    }
    Ok((body, seal))
}

/// The cipher that opens a group of a container, if the archive is sealed.
#[derive(Clone, Copy)]
pub struct GroupSeal<'a>(Option<(&'a ContainerSeal, usize)>);

impl GroupSeal<'_> {
    /// The group's bytes as they were before they were sealed, in place; all others as they are.
    ///
    /// # Errors
    /// `Corrupt`: they are not what was sealed.
    pub(crate) fn open<'b>(&self, group: &Group, stored: &'b mut [u8]) -> Result<&'b mut [u8]> {
        match self.0 {
            None => Ok(stored),
            Some((seal, _)) if !seal.may_open() => Err(shut()),
            Some((seal, number)) => {
                let opened = seal.open(number, group.raw, stored);
                opened.ok_or_else(|| corrupt("a group of chunks fails its tag"))
            }
        }
    }
}

/// Compresses and expands, with contexts that are made once.
pub struct Packer {
    zstd: Option<zstd::bulk::Compressor<'static>>,
    unzstd: Option<zstd::bulk::Decompressor<'static>>,
    lz4: Option<lz4_flex::block::CompressTable>,
    out: Vec<u8>,
    /// Zstandard's level.
    level: i32,
}

impl Default for Packer {
    fn default() -> Packer {
        Packer::new(1)
    }
}

impl Packer {
    /// Compresses at a level of Zstandard's, 1 to 19.
    pub(crate) fn new(level: i32) -> Packer {
        Packer { zstd: None, unzstd: None, lz4: None, out: Vec::new(), level }
    }

    /// `bytes` compressed; `None` when that saves less than a thirty-second.
    fn compress(&mut self, compression: Compression, bytes: &[u8]) -> Option<&[u8]> {
        let n = match compression {
            Compression::None => return None,
            Compression::Lz4 => {
                let table = self.lz4.get_or_insert_with(lz4_flex::block::CompressTable::default);
                self.out.resize(lz4_flex::block::get_maximum_output_size(bytes.len()), 0);
                lz4_flex::block::compress_into_with_table(bytes, &mut self.out, table).ok()?
            }
            Compression::Zstd => {
                if self.zstd.is_none() {
                    self.zstd = zstd::bulk::Compressor::new(self.level).ok();
                }
                self.out.resize(zstd::zstd_safe::compress_bound(bytes.len()), 0);
                self.zstd.as_mut()?.compress_to_buffer(bytes, &mut self.out).ok()?
            }
        };
        (n < bytes.len() - bytes.len() / 32).then(|| &self.out[..n])
    }

    /// Expands a group as stored into `into`, after a look at its checksum. The bytes as stored are
    /// opened in their place.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn expand(
        &mut self,
        identity: &Identity,
        seal: GroupSeal<'_>,
        group: &Group,
        stored: &mut [u8],
        into: &mut Vec<u8>,
    ) -> Result<()> {
        let stored = &*seal.open(group, stored)?;
        if identity.checksum(stored) != group.checksum {
            return Err(corrupt("a group of chunks fails its checksum"));
        }
        self.expand_unchecked(group, stored, into)
    }

    /// The same without the look.
    pub(crate) fn expand_unchecked(
        &mut self,
        group: &Group,
        stored: &[u8],
        into: &mut Vec<u8>,
    ) -> Result<()> {
        into.resize(group.raw as usize, 0);
        let n = match group.compression {
            Compression::None => {
                into.copy_from_slice(stored);
                stored.len()
            }
            Compression::Lz4 => lz4_flex::block::decompress_into(stored, into)
                .map_err(|e| corrupt(format!("a group is damaged: {e}")))?,
            Compression::Zstd => {
                if self.unzstd.is_none() {
                    let made = zstd::bulk::Decompressor::new();
                    self.unzstd =
                        Some(made.map_err(|e| {
                            onefold_core::Error::from_io("zstd can't be set up", e)
                        })?);
                }
                let Some(unzstd) = self.unzstd.as_mut() else {
                    return Err(corrupt("zstd is not there"));
                };
                unzstd
                    .decompress_to_buffer(stored, &mut into[..])
                    .map_err(|e| corrupt(format!("a group is damaged: {e}")))?
            }
        };
        if n == group.raw as usize {
            Ok(())
        } else {
            Err(corrupt(format!("a group expands to {n} bytes instead of {}", group.raw)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> Identity {
        Identity::new([3; 16], &[4; 32])
    }

    #[test]
    fn a_container_is_read_as_it_was_written() {
        for compression in [Compression::None, Compression::Lz4, Compression::Zstd] {
            let mut open = OpenContainer::new(ContainerId(77), ContainerKind::Data, 0);
            let chunk =
                |n: usize| (0..n * 700 + 1).map(|b| (b / 50 * n) as u8).collect::<Vec<u8>>();
            for n in 0..90 {
                let address = open.push(Fingerprint([n as u8; 16]), &chunk(n));
                assert_eq!((address.container, address.slot), (ContainerId(77), n as u16));
            }
            assert_eq!(open.bytes_of(50), Some(&chunk(50)[..]));
            let packed = open.pack(
                &identity(),
                5,
                (compression, false),
                &mut Packer::default(),
                &BufferPool::default(),
            );
            let packed = packed.unwrap();
            let meta = Metadata::decode(&identity(), ContainerId(77), &packed.meta).unwrap();
            let mut packer = Packer::default();
            for n in 0..90 {
                let found =
                    meta.find(Address { container: ContainerId(77), slot: n as u16 }).unwrap();
                let group = &meta.groups[usize::from(found.group)];
                let at = (group.at - meta.meta_bytes) as usize;
                let mut raw = Vec::new();
                packer
                    .expand(
                        &identity(),
                        meta.group_seal(usize::from(found.group)),
                        group,
                        &mut packed.body.part(at..at + group.stored as usize).concat(),
                        &mut raw,
                    )
                    .unwrap();
                assert_eq!(raw[found.at as usize..][..found.bytes as usize], chunk(n));
            }
            assert_eq!(u64::from(meta.bytes), packed.bytes());
            assert!(Metadata::decode(&identity(), ContainerId(78), &packed.meta).is_err());
            for at in (0..packed.meta.len()).step_by(7) {
                let mut rotten = packed.meta.clone();
                rotten[at] ^= 1;
                assert!(
                    Metadata::decode(&identity(), ContainerId(77), &rotten).is_err(),
                    "byte {at}"
                );
            }
        }
    }
}
