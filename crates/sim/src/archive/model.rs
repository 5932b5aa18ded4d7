//! What a run knows of its archive: streams, volumes block by block, and changes whose end it does
//! not know.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use onefold_archive::VOLUME_BLOCK_BYTES;

use super::actors::snapshots::{Kept, Tree};

/// Bytes of a block of a volume.
pub(super) const BLOCK: usize = VOLUME_BLOCK_BYTES as usize;

/// Streams, volumes with their blocks, and snapshots, each with whether it is forgotten.
pub(super) type Known =
    (BTreeMap<String, Arc<Vec<u8>>>, Vec<(String, usize)>, Vec<([u8; 16], bool)>);

/// Snapshots by id.
pub(super) type Snapshots = BTreeMap<[u8; 16], Kept>;

/// Volumes by name.
pub(super) type Disks = BTreeMap<String, Disk>;

/// A change that was under way when its process died.
#[derive(Clone, Debug)]
pub(super) enum Unsure {
    Put(String, Arc<Vec<u8>>),
    Remove(String),
    Backup([u8; 16], Arc<Tree>),
    /// The snapshot is forgotten, or in lists again.
    Forget([u8; 16], bool),
    Rename(String, String),
    /// Its blocks afterwards.
    VolumeSize(String, usize),
    VolumeName(String, String),
    /// Of which volume, its name, whether a server made durable first what was written, and whether
    /// it is read-only.
    VolumeClone(String, String, bool, bool),
}

/// The contents of a block, each with the number of its change: the oldest is durable, the newest
/// is read. `None` is zeroes.
pub(super) type Cell = Vec<(u64, Option<Arc<Vec<u8>>>)>;

/// A volume of the model.
#[derive(Clone, Default)]
pub(super) struct Disk {
    pub(super) cells: Vec<Cell>,
    /// The number of its domain.
    pub(super) domain: u32,
    /// Nobody writes to it.
    pub(super) read_only: bool,
    /// Blocks that could not be read when it was asked what they are: nobody knows which version
    /// they have.
    pub(super) unknown: BTreeSet<usize>,
}

impl Disk {
    pub(super) fn new(blocks: usize, domain: u32) -> Disk {
        let cells = vec![vec![(0, None)]; blocks];
        Disk { cells, domain, ..Disk::default() }
    }

    pub(super) fn resize(&mut self, blocks: usize) {
        self.cells.resize(blocks, vec![(0, None)]);
        self.unknown.retain(|&block| block < blocks);
    }

    pub(super) fn last(&self, block: usize) -> Option<&Arc<Vec<u8>>> {
        self.cells[block].last().and_then(|version| version.1.as_ref())
    }

    pub(super) fn change(&mut self, stamp: u64, offset: usize, data: &[u8]) {
        let (mut at, mut rest) = (offset, data);
        while !rest.is_empty() {
            let within = at % BLOCK;
            let (part, later) = rest.split_at(rest.len().min(BLOCK - within));
            let mut bytes =
                self.last(at / BLOCK).map_or_else(|| vec![0; BLOCK], |bytes| Vec::clone(bytes));
            bytes[within..within + part.len()].copy_from_slice(part);
            let new =
                if bytes.iter().all(|&byte| byte == 0) { None } else { Some(Arc::new(bytes)) };
            self.cells[at / BLOCK].push((stamp, new));
            (at, rest) = (at + part.len(), later);
        }
    }

    pub(super) fn read(&self, offset: usize, into: &mut [u8]) {
        for (n, byte) in into.iter_mut().enumerate() {
            let at = offset + n;
            *byte = self.last(at / BLOCK).map_or(0, |bytes| bytes[at % BLOCK]);
        }
    }

    /// All that was written is durable.
    pub(super) fn make_durable(&mut self) {
        self.cells.iter_mut().for_each(|cell| {
            cell.drain(..cell.len() - 1);
        });
    }
}
