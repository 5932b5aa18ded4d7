//! Generations written over backup volumes: what the block index filter spares where a block is
//! written again (dedupv1 3.2).

use std::sync::Arc;

use onefold_archive::{
    Archive, ArchiveExports, FilterName, INDEX_PAGE_BYTES, Ingest, Settings, VolumeCounts, Volumes,
};
use onefold_core::{Exports, Result};
use onefold_testbed::SplitMix;

use super::{
    files::MemoryFiles,
    ingest::{BLOCK_BYTES, CACHED_PART, CLIENTS, Setup, filled, index_pages},
    traffic::{Generation, Shape, Stream},
};

/// The counts of the two times that the volumes were written over.
pub(super) struct Rewritten {
    /// With the content that they had.
    pub(super) clone: VolumeCounts,
    /// With the next generation.
    pub(super) next: VolumeCounts,
    /// Bytes of a generation.
    pub(super) bytes: u64,
}

/// A volume for each client gets a generation, the same again, and the next one; each time the
/// archive is opened anew.
pub(super) fn rewritten(setup: &Setup) -> Result<Rewritten> {
    let files = filled(setup.chunking, setup.filler)?;
    let mut rng = SplitMix::new(976);
    let first = Generation::first(CLIENTS, setup.bytes / CLIENTS as u64, &Shape::PAPER, &mut rng);
    let next = first.next(&Shape::PAPER, &mut rng);
    let size = |n: usize| first.streams[n].bytes().max(next.streams[n].bytes());
    let archive = open(&files, setup)?;
    (0..CLIENTS).try_for_each(|n| archive.create_volume(&n.to_string(), size(n), 0).map(drop))?;
    drop(archive);
    write(&files, setup, &first.streams)?;
    let clone = write(&files, setup, &first.streams)?;
    let next = write(&files, setup, &next.streams)?;
    Ok(Rewritten { clone, next, bytes: first.bytes() })
}

fn open(files: &MemoryFiles, setup: &Setup) -> Result<Arc<Archive>> {
    let filters =
        setup.filters.iter().map(|name| name.parse()).collect::<Result<Vec<FilterName>>>()?;
    let page_cache_bytes = index_pages(files)? / CACHED_PART * INDEX_PAGE_BYTES as u64;
    let cached_containers = ((setup.bytes >> 22) / CACHED_PART).max(4) as usize;
    // The auxiliary index holds all that one generation adds; it is imported when the generation
    // ends.
    let chosen = Settings {
        filters,
        page_cache_bytes,
        cached_containers,
        auxiliary_entries: usize::MAX / 2,
        ..Settings::default()
    };
    Ok(Arc::new(Archive::open(Arc::new(files.clone()), true, chosen)?))
}

/// All clients write at the same time, a block each in turn.
fn write(files: &MemoryFiles, setup: &Setup, streams: &[Stream]) -> Result<VolumeCounts> {
    let archive = open(files, setup)?;
    let ingest = Ingest::begin(&archive, false, true)?;
    let volumes = Volumes::new(&ingest, 0);
    let exports = ArchiveExports(volumes.clone());
    let open =
        (0..streams.len()).map(|n| exports.open(&n.to_string())).collect::<Result<Vec<_>>>()?;
    let most = streams.iter().map(Stream::bytes).max().unwrap_or(0);
    let mut block = vec![0; BLOCK_BYTES];
    for at in (0..most).step_by(BLOCK_BYTES) {
        for (volume, stream) in open.iter().zip(streams).filter(|(_, stream)| at < stream.bytes()) {
            let n = stream.read(at, &mut block);
            volume.write(at, &block[..n])?;
        }
    }
    volumes.close()?;
    ingest.import(true)?;
    Ok(volumes.counts())
}
