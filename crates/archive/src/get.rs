//! A stream on its way out: its recipe piece by piece, and the chunks that it names, group by
//! group.
//!
//! Each group is verified by its checksum as it is read. A chunk's bytes are compared with its
//! fingerprint when that is asked for; that the container shows the fingerprint of the recipe at
//! the address is compared always.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use onefold_core::{Error, Fingerprint, Kind, Result};

use crate::{
    archive::{Archive, EpochGuard, no_stream},
    check::is_damage,
    format::{
        Address, ContainerId,
        container::{Chunk, Metadata, Packer},
        recipe::{Part, Summary, parts},
        record::{Pieces, Stream},
    },
    segments::ContainerReader,
    settings::GROUP_BYTES,
    tables::{Container, Tables},
};

/// Bytes of expanded groups that are kept.
const GROUP_BYTES_KEPT: usize = 16 << 20;
/// Bytes of containers' metadata that are kept.
const METADATA_BYTES_KEPT: usize = 16 << 20;
/// Groups read together, and bytes of them; a longer one is read alone.
const GROUPS_AT_ONCE: usize = 8;
const GROUP_BYTES_AT_ONCE: usize = 4 << 20;

/// Reads chunks by their addresses.
#[derive(Default)]
pub struct ChunkReader {
    metadata: HashMap<ContainerId, Arc<Metadata>>,
    metadata_order: VecDeque<ContainerId>,
    metadata_bytes: usize,
    groups: HashMap<(ContainerId, u8), Vec<u8>>,
    group_order: VecDeque<(ContainerId, u8)>,
    group_bytes: usize,
    packer: Packer,
    stored: Vec<u8>,
    one: Vec<u8>,
}

impl ChunkReader {
    /// The bytes of one chunk.
    pub(crate) fn chunk(
        &mut self,
        tables: &Tables,
        container_reader: &ContainerReader,
        address: Address,
    ) -> Result<&[u8]> {
        let mut one = std::mem::take(&mut self.one);
        one.clear();
        let read = self.run(tables, container_reader, address, 1, &mut |_, bytes| {
            one.extend_from_slice(bytes);
            Ok(())
        });
        self.one = one;
        read.map(|()| &self.one[..])
    }

    /// `count` chunks, slot after slot; `each` gets every one in order.
    pub(crate) fn run(
        &mut self,
        tables: &Tables,
        container_reader: &ContainerReader,
        first: Address,
        count: usize,
        each: &mut dyn FnMut(&Chunk, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let lost = |slot: usize| {
            Error::new(
                Kind::Corrupt,
                format!("chunk {slot} of container {} is not there", first.container),
            )
        };
        let (mut slot, end) = (usize::from(first.slot), usize::from(first.slot) + count);
        while slot < end {
            let address = u16::try_from(slot)
                .map(|slot| Address { slot, ..first })
                .map_err(|_| lost(slot))?;
            let (container, metadata, at) =
                self.find(tables, container_reader, address)?.ok_or_else(|| lost(slot))?;
            // As far as the run goes on in this container.
            let follows = |(n, chunk): &(usize, &Chunk)| {
                chunk.first.container == first.container
                    && usize::from(chunk.first.slot) == slot + n
            };
            let here = metadata.chunks[at..]
                .iter()
                .take(end - slot)
                .enumerate()
                .take_while(follows)
                .count();
            let chunks = &metadata.chunks[at..at + here];
            let last = chunks.last().map_or(0, |chunk| chunk.group);
            for chunk in chunks {
                let key = (metadata.id, chunk.group);
                if !self.groups.contains_key(&key) {
                    self.load(container_reader, container, &metadata, chunk.group, last)?;
                }
                let bytes = self
                    .groups
                    .get(&key)
                    .and_then(|group| group.get(chunk.at as usize..)?.get(..chunk.bytes as usize));
                each(chunk, bytes.ok_or_else(|| lost(usize::from(chunk.first.slot)))?)?;
            }
            slot += here;
        }
        Ok(())
    }

    /// The container that has the chunk, its metadata, and the chunk's place in it.
    fn find<'a>(
        &mut self,
        tables: &'a Tables,
        container_reader: &ContainerReader,
        address: Address,
    ) -> Result<Option<(&'a Container, Arc<Metadata>, usize)>> {
        let mut damaged = None;
        for container in tables.places(address.container) {
            match self.metadata(container_reader, container) {
                Ok(metadata) => {
                    if let Ok(at) =
                        metadata.chunks.binary_search_by_key(&address, |chunk| chunk.first)
                    {
                        return Ok(Some((container, metadata, at)));
                    }
                }
                // It may be in another one.
                Err(error) if is_damage(&error) => damaged = Some(error),
                Err(error) => return Err(error),
            }
        }
        damaged.map_or(Ok(None), Err)
    }

    /// The bytes of a chunk whatever they are: for a planted bug.
    pub(crate) fn rotten(
        &mut self,
        container_reader: &ContainerReader,
        container: &Container,
        metadata: &Metadata,
        n: usize,
    ) -> Result<Vec<u8>> {
        let chunk = &metadata.chunks[n];
        let group = &metadata.groups[usize::from(chunk.group)];
        let (mut stored, mut raw) = (Vec::new(), Vec::new());
        container_reader.groups(
            &container.stored.place,
            std::slice::from_ref(group),
            &mut stored,
        )?;
        self.packer.expand_unchecked(group, &stored, &mut raw)?;
        Ok(raw[chunk.at as usize..][..chunk.bytes as usize].to_vec())
    }

    /// The metadata of a container, which may be known already.
    pub(crate) fn metadata(
        &mut self,
        container_reader: &ContainerReader,
        container: &Container,
    ) -> Result<Arc<Metadata>> {
        let id = container.stored.id;
        if let Some(metadata) = self.metadata.get(&id) {
            return Ok(metadata.clone());
        }
        let metadata = Arc::new(container_reader.metadata(container)?);
        self.metadata_bytes += metadata.memory();
        while self.metadata_bytes > METADATA_BYTES_KEPT
            && let Some(old) = self.metadata_order.pop_front()
        {
            self.metadata_bytes -= self.metadata.remove(&old).map_or(0, |old| old.memory());
        }
        self.metadata_order.push_back(id);
        self.metadata.insert(id, metadata.clone());
        Ok(metadata)
    }

    /// Reads group `first`, and those behind it up to `last` that are not there yet.
    fn load(
        &mut self,
        container_reader: &ContainerReader,
        container: &Container,
        metadata: &Metadata,
        first: u8,
        last: u8,
    ) -> Result<()> {
        let id = metadata.id;
        let mut bytes = 0;
        let fits = |n: &u8| {
            bytes += metadata.groups.get(usize::from(*n)).map_or(0, |group| group.raw as usize);
            *n == first || (bytes <= GROUP_BYTES_AT_ONCE && !self.groups.contains_key(&(id, *n)))
        };
        let wanted = (first..=last.max(first)).take(GROUPS_AT_ONCE).take_while(fits).count();
        let groups = &metadata.groups[usize::from(first)..usize::from(first) + wanted];
        let mut stored = std::mem::take(&mut self.stored);
        container_reader.groups(&container.stored.place, groups, &mut stored)?;
        let start = groups.first().map_or(0, |group| group.at);
        for (n, group) in groups.iter().enumerate() {
            let mut raw = self.room(group.raw as usize);
            let at = (group.at - start) as usize;
            let expanded = self.packer.expand(
                container_reader.identity(),
                group,
                &stored[at..at + group.stored as usize],
                &mut raw,
            );
            expanded.map_err(|e| e.context(format!("container {id}")))?;
            let key = (id, first + n as u8);
            self.group_order.push_back(key);
            self.group_bytes += raw.len();
            self.groups.insert(key, raw);
        }
        self.stored = stored;
        Ok(())
    }

    /// Memory for a group: that of the oldest, when there are enough.
    fn room(&mut self, bytes: usize) -> Vec<u8> {
        let mut room = Vec::new();
        while self.group_bytes + bytes > GROUP_BYTES_KEPT
            && let Some(old) = self.group_order.pop_front()
        {
            room = self.groups.remove(&old).unwrap_or_default();
            self.group_bytes -= room.len();
        }
        // A long one's memory is not kept for a short one.
        if room.capacity() > bytes.max(GROUP_BYTES) { Vec::new() } else { room }
    }
}

/// Where the pieces lie, one after the other.
pub(crate) fn addresses(pieces: &Pieces) -> impl Iterator<Item = Result<Address>> {
    let Pieces { container, first, count } = *pieces;
    (0..count).map(move |n| {
        let slot = first.checked_add(n).ok_or_else(|| {
            Error::new(Kind::Corrupt, "pieces of a recipe lie outside of their container")
        })?;
        Ok(Address { container, slot })
    })
}

/// What is verified while a stream is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verify {
    /// The checksum of each group.
    Groups,
    /// The fingerprint of each chunk too.
    Chunks,
}

/// What comes out of a stream.
pub enum Content<'a> {
    /// Bytes.
    Bytes(&'a [u8]),
    /// So many zeroes.
    Zeroes(u64),
}

/// Reads streams. What it reads stays where it is as long as this value lives.
pub struct Reader {
    archive: Arc<Archive>,
    guard: EpochGuard,
    container_reader: ContainerReader,
    reader: ChunkReader,
}

impl Reader {
    /// A reader of the archive as of now.
    ///
    /// # Errors
    /// Those of the system.
    pub fn new(archive: &Arc<Archive>) -> Result<Reader> {
        let guard = archive.guard_epoch()?;
        Ok(Reader {
            archive: archive.clone(),
            guard,
            container_reader: ContainerReader::new(archive.clone()),
            reader: ChunkReader::default(),
        })
    }

    /// The archive as of the beginning.
    #[must_use]
    pub fn tables(&self) -> &Arc<Tables> {
        &self.guard.tables
    }

    /// A stream of the catalogue.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn stream(&self, name: &str) -> Result<Stream> {
        self.guard.tables.streams.get(name).cloned().ok_or_else(|| no_stream(name))
    }

    /// The pieces of a recipe, one after the other.
    ///
    /// # Errors
    /// `Corrupt`, and those of the system.
    pub fn parts(
        &mut self,
        recipe: &[Pieces],
        each: &mut dyn FnMut(&mut Reader, Part) -> Result<()>,
    ) -> Result<()> {
        let tables = self.guard.tables.clone();
        let (mut summary, mut ended) = (Summary::default(), None);
        for pieces in recipe {
            for address in addresses(pieces) {
                let address = address?;
                for part in parts(self.reader.chunk(&tables, &self.container_reader, address)?)? {
                    summary.add(&part);
                    if let Part::End(end) = &part {
                        ended = Some(*end);
                    }
                    each(self, part)?;
                }
            }
        }
        match ended {
            Some(end) if end == summary.end() => Ok(()),
            Some(_) => Err(Error::new(Kind::Corrupt, "the recipe does not add up")),
            None => Err(Error::new(Kind::Corrupt, "the recipe has no end")),
        }
    }

    /// Bytes of content that a recipe says it has, and how many of them are data: without zeroes.
    ///
    /// # Errors
    /// As [`parts`](Self::parts).
    pub fn sizes(&mut self, recipe: &[Pieces]) -> Result<(u64, u64)> {
        let (mut all, mut data) = (0u64, 0u64);
        self.parts(recipe, &mut |_, part| {
            match part {
                Part::Run { bytes, .. } => {
                    all = all.saturating_add(u64::from(bytes));
                    data = data.saturating_add(u64::from(bytes));
                }
                Part::Zeroes(bytes) => all = all.saturating_add(bytes),
                _ => {}
            }
            Ok(())
        })?;
        Ok((all, data))
    }

    /// All content of a recipe, in order.
    ///
    /// # Errors
    /// `Corrupt` where data is damaged, and those of `each` and the system.
    pub fn read(
        &mut self,
        recipe: &[Pieces],
        verify: Verify,
        each: &mut dyn FnMut(Content<'_>) -> Result<()>,
    ) -> Result<()> {
        self.parts(recipe, &mut |reader, part| match part {
            Part::Run { first, bytes, fingerprints } => {
                reader.run(first, bytes, &fingerprints, verify, each)
            }
            Part::Zeroes(bytes) => each(Content::Zeroes(bytes)),
            Part::End(_) => Ok(()),
            Part::Slice { .. } => Err(Error::new(
                Kind::Corrupt,
                "the recipe has a part that only mappings of volumes have",
            )),
        })
    }

    /// Chunks slot after slot, `bytes` in sum.
    fn run(
        &mut self,
        first: Address,
        bytes: u32,
        fingerprints: &[Fingerprint],
        verify: Verify,
        each: &mut dyn FnMut(Content<'_>) -> Result<()>,
    ) -> Result<()> {
        let (tables, printer) = (self.guard.tables.clone(), &self.archive.fingerprinter);
        let (mut expected, mut found) = (fingerprints.iter(), 0);
        let read = self.reader.run(
            &tables,
            &self.container_reader,
            first,
            fingerprints.len(),
            &mut |chunk, bytes| {
                let whole = expected.next() == Some(&chunk.fingerprint)
                    && (verify == Verify::Groups || printer.bytes(bytes) == chunk.fingerprint);
                if !whole {
                    let message = format!(
                        "chunk {} of container {} is not the one that was stored",
                        chunk.first.slot, chunk.first.container
                    );
                    return Err(Error::new(Kind::Corrupt, message));
                }
                found += bytes.len() as u64;
                each(Content::Bytes(bytes))
            },
        );
        // What a recipe says of its length is what was looked at before it was restored.
        read.and_then(|()| match found == u64::from(bytes) {
            true => Ok(()),
            false => Err(Error::new(Kind::Corrupt, "the recipe has other bytes than its chunks")),
        })
    }
}
