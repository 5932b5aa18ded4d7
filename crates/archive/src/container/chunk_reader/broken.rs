//! Steps that break a rule; only the simulator runs them.

use onefold_core::{Kind, Result};

use super::ChunkReader;
use crate::{
    container::container_reader::ContainerReader,
    format::container::{Chunk, Metadata},
    tables::Container,
};

impl ChunkReader {
    /// Breaks `MovedChunksVerified`: gives the bytes of a damaged chunk, whatever they are.
    pub(crate) fn or_rotten(
        &mut self,
        read: Result<Vec<u8>>,
        container_reader: &ContainerReader,
        container: &Container,
        metadata: &Metadata,
        chunk: &Chunk,
    ) -> Result<Vec<u8>> {
        if !matches!(&read, Err(error) if error.kind() == Kind::Corrupt) {
            return read;
        }
        let group = &metadata.groups[usize::from(chunk.group)];
        let (mut stored, mut raw) = (Vec::new(), Vec::new());
        let place = &container.stored.place;
        let before = container_reader.groups(place, std::slice::from_ref(group), &mut stored)?;
        let stored = &mut stored[before..][..group.stored as usize];
        let seal = metadata.group_seal(usize::from(chunk.group));
        self.packer.expand_unchecked(group, seal.open(group, stored)?, &mut raw)?;
        Ok(raw[chunk.at as usize..][..chunk.bytes as usize].to_vec())
    }
}
