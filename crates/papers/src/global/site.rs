//! A store of the real engine in memory, and data for it.

use std::{sync::Arc, time::Duration};

use onefold_cluster::{
    Cut, Dedup, Format, Mode, Session, Settings, Status, Volume, Watermarks, Worker, create,
};
use onefold_core::{BLOCK_BYTES, Block, Result, object::PoolKind};

use super::counted::{Asked, CountedObjects};
use onefold_lab::content::Content;

/// Bytes of an object of the store besides what is in it: the paper's "at least".
pub(super) const OBJECT_BYTES: u64 = 512;

/// Steps until all must be deduplicated.
const STEPS: usize = 1_000_000;

/// A store with one session.
pub(super) struct Site {
    objects: Arc<CountedObjects>,
    pub(super) session: Arc<Session>,
}

impl Site {
    /// An empty store in which nothing is too hot, and nothing is kept; deduplicated by workers.
    pub(super) fn new(chunk_bytes: u32, compress: bool, chunks: PoolKind) -> Result<Site> {
        Site::of(chunk_bytes, compress, chunks, Dedup::PostProcessing)
    }

    /// The same, deduplicated as it is said.
    pub(super) fn of(
        chunk_bytes: u32,
        compress: bool,
        chunks: PoolKind,
        dedup: Dedup,
    ) -> Result<Site> {
        let objects = Arc::new(CountedObjects::new(chunks));
        let format = Format {
            chunk_bytes,
            compress,
            cut: Cut::Static,
            ..Format::new([1; 16], [2; 32], chunks)
        };
        create(&*objects, &format)?;
        let settings =
            Settings { cold: Duration::ZERO, hit_count: 0, dedup, ..Settings::default() };
        let session = Arc::new(Session::open(objects.clone(), settings)?);
        Ok(Site { objects, session })
    }

    pub(super) fn asked(&self) -> Asked {
        self.objects.asked()
    }

    /// A new volume, attached.
    pub(super) fn volume(&self, name: &str, bytes: u64) -> Result<Volume> {
        self.session.create_volume(name, bytes)?;
        Volume::attach(&self.session, name, Mode::Own)
    }

    /// Deduplicates until nothing is left.
    pub(super) fn settle(&self) -> Result<()> {
        let mut worker = Worker::new(self.session.clone(), Watermarks::NONE);
        for _ in 0..STEPS {
            if worker.step()?.round && self.session.backlog()? == 0 {
                break;
            }
        }
        Ok(())
    }

    pub(super) fn status(&self) -> Result<Status> {
        self.session.status()
    }
}

/// Bytes of metadata: entries, references, and what objects take by themselves.
pub(super) fn metadata_bytes(status: &Status) -> u64 {
    status.map_bytes + status.reference_bytes + OBJECT_BYTES * (status.chunks + status.objects)
}

/// Bytes of blocks with these numbers, of which LZ4 leaves `lz4` each.
pub(super) fn blocks(numbers: impl Iterator<Item = u64>, lz4: u16) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut block = Block([0; BLOCK_BYTES]);
    for number in numbers {
        Content::numbered(7, number, lz4).fill(&mut block);
        bytes.extend_from_slice(&block.0);
    }
    bytes
}

/// Blocks in so many bytes.
pub(super) fn in_blocks(bytes: u64) -> u64 {
    bytes / BLOCK_BYTES as u64
}
