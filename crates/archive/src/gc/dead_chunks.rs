//! Chunks without references, by the containers in which they lie.

use std::{collections::BTreeMap, sync::Arc};

use onefold_core::{Kind, Result};

use super::collection::Options;
use crate::{
    container::{ChunkReader, ContainerReader, Pace},
    format::ContainerId,
    operations_log::Archive,
    tables::{Container, Tables, is_under_older},
};

/// Dead chunks, as counts go by.
pub(super) struct DeadChunks<'a> {
    tables: &'a Tables,
    options: Options,
    /// Leftovers of puts under an older data key are not spared: no put finds them any more.
    pub(super) reseals: bool,
    container_reader: ContainerReader,
    chunk_reader: ChunkReader,
    /// How many chunks of a container are dead, and a bit for each. By home: merged containers have
    /// several numbers.
    pub(super) dead: BTreeMap<ContainerId, (u32, Vec<u8>)>,
}

impl DeadChunks<'_> {
    pub(super) fn new<'a>(
        archive: &Arc<Archive>,
        tables: &'a Tables,
        options: Options,
        pace: Pace,
    ) -> DeadChunks<'a> {
        DeadChunks {
            tables,
            options,
            reseals: false,
            container_reader: ContainerReader::paced(archive.clone(), pace),
            chunk_reader: ChunkReader::default(),
            dead: BTreeMap::new(),
        }
    }

    /// Takes the counts of the chunks that were stored as `id`. Unfinished containers are spared
    /// for the time of the options.
    pub(super) fn look(&mut self, id: ContainerId, counts: &[u16]) -> Result<()> {
        if !counts.contains(&0) {
            return Ok(());
        }
        for home in self.tables.places(id) {
            let home = home?;
            let at = self.tables.unfinished.get(&home.stored.id);
            let is_lost = self.reseals && is_under_older(self.tables, &home);
            if !is_lost && at.is_some_and(|at| self.options.spare_unfinished(*at)) {
                continue;
            }
            let unused = self.unused(&home, id, counts)?;
            let chunks = home.stored.chunks as usize;
            let (number, bits) =
                self.dead.entry(home.stored.id).or_insert_with(|| (0, vec![0; chunks.div_ceil(8)]));
            for n in unused {
                bits[n / 8] |= 1 << (n % 8);
                *number += 1;
            }
        }
        Ok(())
    }

    /// The places in their container of the chunks of `id` without references.
    fn unused(&mut self, home: &Container, id: ContainerId, counts: &[u16]) -> Result<Vec<usize>> {
        let unused = |slot: u16| counts.get(usize::from(slot)).is_some_and(|&count| count == 0);
        if home.merged.is_empty() {
            return Ok((0..counts.len().min(home.stored.chunks as usize))
                .filter(|&slot| unused(slot as u16))
                .collect());
        }
        match self.chunk_reader.metadata(&self.container_reader, home) {
            Ok(metadata) => {
                let chunks = metadata.chunks.iter().enumerate();
                Ok(chunks
                    .filter(|(_, chunk)| chunk.first.container == id && unused(chunk.first.slot))
                    .map(|(n, _)| n)
                    .collect())
            }
            // Its chunks are unknown, so none is condemned.
            Err(error) if error.kind() == Kind::Corrupt => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }
}
