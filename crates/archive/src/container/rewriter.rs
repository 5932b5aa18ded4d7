//! Chunks copied from containers into new ones, for collection and repair.

use std::sync::Arc;

use onefold_core::Result;

use super::{
    appender::Appender, chunk_reader::ChunkReader, container_reader::ContainerReader, ids::Ids,
    pace::Pace,
};
use crate::{
    format::{bytes::corrupt, container::Chunk, damage::is_condemned, record::Owner},
    operations_log::{Archive, domain_of},
    rules::Rule,
    tables::{Container, Tables},
};

/// Reads chunks, and appends containers with them to the segments of the collector.
pub(crate) struct Rewriter {
    pub(crate) archive: Arc<Archive>,
    pub(crate) container_reader: ContainerReader,
    pub(crate) chunk_reader: ChunkReader,
    pub(crate) ids: Ids,
    pub(crate) appender: Appender,
    pub(crate) pace: Pace,
    /// References of snapshots that were met while counting, to what is not there.
    pub(crate) absent: u64,
    /// The number of usage counts of which a page is damaged.
    pub(crate) lost_counts: Option<u64>,
    /// So many tree nodes may be walked yet, where others wait.
    pub(crate) nodes_left: Option<usize>,
}

impl Rewriter {
    /// The caller holds the collector's lock.
    pub(crate) fn new(archive: &Arc<Archive>) -> Rewriter {
        Rewriter::paced(archive, Pace::default())
    }

    /// The same for background work.
    pub(crate) fn paced(archive: &Arc<Archive>, pace: Pace) -> Rewriter {
        Rewriter {
            container_reader: ContainerReader::paced(archive.clone(), pace.clone()),
            chunk_reader: ChunkReader::default(),
            ids: Ids::new(archive.clone(), Owner::Collector),
            appender: Appender::new(archive.clone(), Owner::Collector),
            archive: archive.clone(),
            pace,
            absent: 0,
            lost_counts: None,
            nodes_left: None,
        }
    }

    /// The chunks of a container that are not condemned, verified.
    pub(crate) fn live_chunks(
        &mut self,
        tables: &Tables,
        container: &Container,
    ) -> Result<Vec<(Chunk, Vec<u8>)>> {
        let id = container.stored.id;
        let bits = tables.condemned.get(&id).cloned().unwrap_or_default();
        let metadata = self.container_reader.metadata(container)?;
        let domain = domain_of(&self.archive, metadata.domain())?;
        let mut live = Vec::new();
        let chunks = metadata.chunks.iter().enumerate();
        for (_, chunk) in chunks.filter(|(n, _)| !is_condemned(&bits, *n)) {
            let read = self.chunk_reader.chunk(tables, &self.container_reader, chunk.first);
            let read = read.map(<[u8]>::to_vec);
            #[cfg(feature = "planted-bugs")]
            let read = if self.archive.keeps(Rule::MovedChunksVerified) {
                read
            } else {
                let reader = &self.container_reader;
                self.chunk_reader.or_rotten(read, reader, container, &metadata, chunk)
            };
            let bytes = read?;
            if self.archive.keeps(Rule::MovedChunksVerified)
                && !domain.is_of(&bytes, &chunk.fingerprint)
            {
                return Err(corrupt(format!(
                    "chunk {} of container {} is damaged",
                    chunk.first.slot, chunk.first.container
                )));
            }
            live.push((*chunk, bytes));
        }
        Ok(live)
    }
}
