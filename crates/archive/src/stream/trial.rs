//! A stream that is tried: a trial does all that a session does but for the writing, and tells what the
//! stream would add to the archive. It takes no lock, so another process may store the same chunks
//! meanwhile.

use std::{collections::HashMap, sync::Arc};

use onefold_core::{Fingerprint, Result};

use super::{
    batch::{Batch, Next},
    session::Target,
};
use crate::{
    chunk_index::{Auxiliary, ChunkIndex, load_recent},
    container::{ChunkReader, ContainerReader, pack},
    format::{
        Address, ContainerId,
        container::{ContainerKind, OpenContainer, Packer},
        damage::is_damage,
    },
    operations_log::{Archive, Domain, EpochGuard},
};

/// New chunks that are remembered. Of more, one that comes twice counts twice.
const NEW_MAX: usize = 1 << 21;

/// What a stream would add.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Growth {
    /// Bytes of new chunks, before compression.
    pub new_bytes: u64,
    /// Bytes of the containers that would be written.
    pub bytes: u64,
}

/// A stream that is looked up, packed, and not written.
pub(crate) struct Trial {
    archive: Arc<Archive>,
    domain: Arc<Domain>,
    guard: EpochGuard,
    index: ChunkIndex,
    recent: Auxiliary,
    containers: Arc<ContainerReader>,
    chunks: ChunkReader,
    new: HashMap<Fingerprint, Address>,
    packing: Packing,
}

/// Containers on their way to nowhere.
struct Packing {
    archive: Arc<Archive>,
    domain: Arc<Domain>,
    data: OpenContainer,
    pieces: OpenContainer,
    /// Numbers that no container has yet are given from the end.
    last: u64,
    packer: Packer,
    growth: Growth,
}

impl Trial {
    /// By the archive as of now, in a domain.
    ///
    /// # Errors
    /// Errors of the system.
    pub(crate) fn new(archive: &Arc<Archive>, domain: &Arc<Domain>) -> Result<Trial> {
        let guard = EpochGuard::enter(archive)?;
        let containers = Arc::new(ContainerReader::new(archive.clone()));
        let mut recent = Auxiliary::default();
        load_recent(&containers, &guard.tables, &mut recent)?;
        let index = ChunkIndex::open(archive.clone(), &guard.tables)?;
        let (data, pieces) = (ContainerId::END - 1, ContainerId::END - 2);
        let packing = Packing {
            archive: archive.clone(),
            domain: domain.clone(),
            data: open(ContainerId(data), ContainerKind::Data, domain),
            pieces: open(ContainerId(pieces), ContainerKind::Recipes, domain),
            last: pieces,
            packer: Packer::default(),
            growth: Growth::default(),
        };
        Ok(Trial {
            archive: archive.clone(),
            domain: domain.clone(),
            guard,
            index,
            recent,
            containers,
            chunks: ChunkReader::default(),
            new: HashMap::new(),
            packing,
        })
    }

    /// Looks up a batch, and tells `target` of it. Addresses of new chunks are those of no container.
    ///
    /// # Errors
    /// Errors of the target and of the system.
    pub(crate) fn place(&mut self, batch: &mut Batch, target: &mut dyn Target) -> Result<()> {
        batch.fingerprint(&self.domain);
        let mut chunks = batch.fingerprints.iter().zip(batch.chunks());
        for piece in &batch.pieces {
            match piece {
                Next::Zeroes(n) => target.zeroes(*n, &mut |piece| self.packing.piece(&piece))?,
                Next::Hole(n) => target.hole(*n, &mut |piece| self.packing.piece(&piece))?,
                Next::Mark => target.mark(&mut |piece| self.packing.piece(&piece))?,
                Next::Chunk(_) => {
                    let Some((fingerprint, range)) = chunks.next() else { break };
                    let bytes = &batch.bytes.bytes()[range];
                    let address = match self.find(fingerprint)? {
                        Some(address) => address,
                        None => self.add(fingerprint, bytes)?,
                    };
                    let length = bytes.len() as u32;
                    target.chunk(address, *fingerprint, length, &mut |piece| {
                        self.packing.piece(&piece)
                    })?;
                }
            }
        }
        Ok(())
    }

    /// So far.
    pub(crate) fn new_bytes(&self) -> u64 {
        self.packing.growth.new_bytes
    }

    /// All of it.
    pub(crate) fn end(mut self) -> Result<Growth> {
        self.packing.seal(ContainerKind::Data)?;
        self.packing.seal(ContainerKind::Recipes)?;
        Ok(self.packing.growth)
    }

    /// Where a chunk is. The index only advises.
    fn find(&mut self, fingerprint: &Fingerprint) -> Result<Option<Address>> {
        if let Some(address) = self.new.get(fingerprint) {
            return Ok(Some(*address));
        }
        let known = match self.recent.find(fingerprint, 0) {
            Some((address, _)) => Some(address),
            None => self.index.look_up(fingerprint, true)?,
        };
        let Some(address) = known else { return Ok(None) };
        match self.chunks.find(&self.guard.tables, &self.containers, address) {
            Err(error) if is_damage(&error) => Ok(None),
            found => Ok(found?.and_then(|(_, metadata, at)| {
                let there = metadata.chunks.get(at)?;
                (there.fingerprint == *fingerprint).then_some(address)
            })),
        }
    }

    fn add(&mut self, fingerprint: &Fingerprint, bytes: &[u8]) -> Result<Address> {
        let capacity = self.archive.settings.container_bytes;
        if self.packing.data.is_full(bytes.len(), capacity) {
            self.packing.seal(ContainerKind::Data)?;
        }
        let address = self.packing.data.push(*fingerprint, bytes);
        self.packing.growth.new_bytes += bytes.len() as u64;
        if self.new.len() < NEW_MAX {
            self.new.insert(*fingerprint, address);
        }
        Ok(address)
    }
}

fn open(id: ContainerId, kind: ContainerKind, domain: &Domain) -> OpenContainer {
    OpenContainer::new(id, kind, 0).of_domain(domain.number())
}

impl Packing {
    /// A piece of a recipe, or a node.
    fn piece(&mut self, piece: &[u8]) -> Result<Address> {
        if self.pieces.is_full(piece.len(), self.archive.settings.container_bytes) {
            self.seal(ContainerKind::Recipes)?;
        }
        Ok(self.pieces.push(self.domain.fingerprinter.bytes(piece), piece))
    }

    /// Packs what there is, and begins anew.
    fn seal(&mut self, kind: ContainerKind) -> Result<()> {
        let open = match kind {
            ContainerKind::Data => &mut self.data,
            ContainerKind::Recipes => &mut self.pieces,
        };
        if open.is_empty() {
            return Ok(());
        }
        self.last -= 1;
        let next = self::open(ContainerId(self.last), kind, &self.domain);
        let packed = pack(&self.archive, std::mem::replace(open, next), &mut self.packer)?;
        self.growth.bytes += packed.bytes();
        packed.give_back(&self.archive.buffers);
        Ok(())
    }
}
