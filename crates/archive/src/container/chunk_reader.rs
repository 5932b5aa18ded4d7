//! Chunks read by their addresses, group by group. Each group is verified by its checksum as it is
//! read.

#[cfg(feature = "planted-bugs")]
mod broken;

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use onefold_core::{Error, Kind, Result};

use super::container_reader::ContainerReader;
use crate::{
    format::{
        Address, ContainerId,
        container::{Chunk, Metadata, Packer},
        damage::is_damage,
        parameters::GROUP_BYTES,
        record::Pieces,
    },
    tables::{Container, Found, Tables},
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
pub(crate) struct ChunkReader {
    metadata: HashMap<ContainerId, Arc<Metadata>>,
    metadata_order: VecDeque<ContainerId>,
    metadata_bytes: usize,
    groups: HashMap<(ContainerId, u8), Vec<u8>>,
    group_order: VecDeque<(ContainerId, u8)>,
    group_bytes: usize,
    packer: Packer,
    stored: Vec<u8>,
    /// The domain that all chunks must be of, for whoever reads what belongs to one.
    pub(crate) domain: Option<u32>,
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
        let lost = |slot: usize| lost(first, slot);
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
                    self.load(container_reader, &container, &metadata, chunk.group, last)?;
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

    /// The lengths of `count` chunks, slot after slot; only metadata is read.
    pub(crate) fn lengths(
        &mut self,
        tables: &Tables,
        container_reader: &ContainerReader,
        first: Address,
        count: usize,
    ) -> Result<Vec<u32>> {
        let mut lengths = Vec::with_capacity(count);
        while lengths.len() < count {
            let slot = usize::from(first.slot) + lengths.len();
            let address = u16::try_from(slot)
                .map(|slot| Address { slot, ..first })
                .map_err(|_| lost(first, slot))?;
            let (_, metadata, at) =
                self.find(tables, container_reader, address)?.ok_or_else(|| lost(first, slot))?;
            let left = count - lengths.len();
            let here = metadata.chunks[at..].iter().take(left).enumerate();
            let here = here.take_while(|(n, chunk)| {
                chunk.first.container == first.container
                    && usize::from(chunk.first.slot) == slot + n
            });
            lengths.extend(here.map(|(_, chunk)| chunk.bytes));
        }
        Ok(lengths)
    }

    /// The container that has the chunk, its metadata, and the chunk's place in it.
    pub(crate) fn find(
        &mut self,
        tables: &Tables,
        container_reader: &ContainerReader,
        address: Address,
    ) -> Result<Option<(Found, Arc<Metadata>, usize)>> {
        let mut damaged = None;
        for container in tables.places(address.container) {
            let container = container?;
            if let Some(domain) = self.domain
                && domain != container.stored.domain
            {
                let (id, other) = (container.stored.id, container.stored.domain);
                let why =
                    format!("container {id} is of domain {other}, and domain {domain} names it");
                return Err(Error::new(Kind::Corrupt, why));
            }
            match self.metadata(container_reader, &container) {
                Ok(metadata) => {
                    if let Ok(at) =
                        metadata.chunks.binary_search_by_key(&address, |chunk| chunk.first)
                    {
                        return Ok(Some((container, metadata, at)));
                    }
                }
                // Another container may have the chunk.
                Err(error) if is_damage(&error) => damaged = Some(error),
                Err(error) => return Err(error),
            }
        }
        damaged.map_or(Ok(None), Err)
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
        let before = container_reader.groups(&container.stored.place, groups, &mut stored)?;
        let start = groups.first().map_or(0, |group| group.at);
        for (n, group) in groups.iter().enumerate() {
            let mut raw = self.room(group.raw as usize);
            let at = before + (group.at - start) as usize;
            let expanded = self.packer.expand(
                container_reader.identity(),
                metadata.group_seal(usize::from(first) + n),
                group,
                &mut stored[at..at + group.stored as usize],
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

fn lost(first: Address, slot: usize) -> Error {
    Error::new(Kind::Corrupt, format!("chunk {slot} of container {} is not there", first.container))
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
