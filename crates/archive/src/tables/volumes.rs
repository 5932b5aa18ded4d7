//! The volumes of an archive, as the log tells them: names, sizes, mappings.

use std::sync::Arc;

use onefold_core::Result;

use crate::{
    block_index::{BlockIndex, Pages},
    format::{
        Address,
        bytes::corrupt,
        parameters::VOLUME_BLOCK_BYTES,
        record::{Pieces, Record},
    },
};

/// Longest name of a volume: what NBD clients can ask for.
pub(crate) const VOLUME_NAME_BYTES_MAX: usize = 255;

/// Largest volume: 64 PiB.
pub(crate) const VOLUME_BYTES_MAX: u64 = 1 << 56;

/// A volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// Its name.
    pub name: String,
    /// Its size, a multiple of [`VOLUME_BLOCK_BYTES`].
    pub bytes: u64,
    /// Seconds since 1970.
    pub created: u64,
    /// The number of its domain, to which all that it maps belongs.
    pub domain: u32,
    /// Nobody writes to it.
    pub read_only: bool,
    /// Where it was cut: by which frame, and from which block on. A later cut that is as low says
    /// it for those before.
    pub cuts: Vec<(u64, u64)>,
    /// Where the mappings of its blocks are.
    pub block_index: Arc<BlockIndex>,
}

impl Volume {
    /// Its size in blocks.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.bytes / VOLUME_BLOCK_BYTES
    }

    /// True when `block` was beyond the volume's end at some time after the frame `since`: what was
    /// written before is gone.
    #[must_use]
    pub fn was_cut(&self, block: u64, since: u64) -> bool {
        block >= self.blocks()
            || self.cuts.iter().any(|&(sequence, blocks)| sequence > since && blocks <= block)
    }

    /// Its mappings as a recipe.
    pub(crate) fn recipe(&self) -> Vec<Pieces> {
        gather(self.block_index.mapped(0..u64::MAX).map(|(_, address)| address))
    }
}

/// Addresses as pieces; neighbours are one.
pub(crate) fn gather(addresses: impl Iterator<Item = Address>) -> Vec<Pieces> {
    let mut all: Vec<Pieces> = Vec::new();
    for address in addresses {
        match all.last_mut() {
            Some(last)
                if last.container == address.container
                    && last.first.checked_add(last.count) == Some(address.slot) =>
            {
                last.count += 1
            }
            _ => all.push(Pieces { container: address.container, first: address.slot, count: 1 }),
        }
    }
    all
}

/// Mappings that a record added and removed.
#[derive(Default)]
pub(super) struct Changed {
    pub(super) came: Vec<Pieces>,
    pub(super) went: Vec<Pieces>,
    /// The number of the volume's domain.
    pub(super) domain: u32,
}

pub(crate) fn change(
    volume: &mut Volume,
    pages: &mut Pages,
    sequence: u64,
    record: &Record,
) -> Result<Changed> {
    let mut changed = Changed { domain: volume.domain, ..Changed::default() };
    match record {
        Record::VolumeResized { bytes, .. } => {
            let blocks = bytes / VOLUME_BLOCK_BYTES;
            if *bytes < volume.bytes {
                changed.went = unmap(volume, pages, blocks..u64::MAX)?;
                // They rise, so that each is looked at once more than it stays.
                while volume.cuts.last().is_some_and(|&(_, lower)| lower >= blocks) {
                    volume.cuts.pop();
                }
                volume.cuts.push((sequence, blocks));
            }
            volume.bytes = *bytes;
        }
        Record::VolumeRenamed { name, .. } => volume.name.clone_from(name),
        Record::VolumeDeleted { .. } => changed.went = unmap(volume, pages, 0..u64::MAX)?,
        Record::Unmapped { first, count, .. } => {
            changed.went = unmap(volume, pages, *first..first.saturating_add(*count))?
        }
        Record::Mapped { changes, .. } => {
            let (blocks, block_index) = (volume.blocks(), Arc::make_mut(&mut volume.block_index));
            for remapped in changes {
                if remapped.block >= blocks
                    || block_index.set(remapped.block, remapped.new, pages)? != remapped.old
                {
                    return Err(corrupt(format!(
                        "block {} of volume '{}' had another mapping than the log says",
                        remapped.block, volume.name
                    )));
                }
            }
            changed.came = gather(changes.iter().filter_map(|remapped| remapped.new));
            changed.went = gather(changes.iter().filter_map(|remapped| remapped.old));
        }
        _ => {}
    }
    Ok(changed)
}

fn unmap(
    volume: &mut Volume,
    pages: &mut Pages,
    blocks: std::ops::Range<u64>,
) -> Result<Vec<Pieces>> {
    let mapped: Vec<(u64, Address)> = volume.block_index.mapped(blocks).collect();
    if !mapped.is_empty() {
        let block_index = Arc::make_mut(&mut volume.block_index);
        for &(block, _) in &mapped {
            block_index.set(block, None, pages)?;
        }
    }
    Ok(gather(mapped.into_iter().map(|(_, address)| address)))
}
