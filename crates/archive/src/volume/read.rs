//! Reads blocks: layers in memory over the block's mapping.

use std::ops::Range;

use onefold_core::{Extent, ExtentKind, Result};

use super::{
    layer::{BLOCK, Have, Layer, Patch, SECTOR},
    mapped::Mapped,
    volumes::{Volumes, deleted},
};
use crate::{memory::BufferPool, tables::Volume};

/// Stretches of a range that are looked at while all volumes wait; more are for another request.
const STRETCHES: usize = 16 << 10;

impl Volumes {
    /// Reads a range within the volume.
    pub(super) fn read_bytes(&self, id: u64, offset: u64, into: &mut [u8]) -> Result<()> {
        self.within(id, offset, into.len() as u64)?;
        let (mut at, mut rest) = (offset, into);
        while !rest.is_empty() {
            let start = (at % BLOCK as u64) as usize;
            let n = rest.len().min(BLOCK - start);
            let (part, later) = rest.split_at_mut(n);
            self.read_block(id, at / BLOCK as u64, start..start + n, part)?;
            (at, rest) = (at + n as u64, later);
        }
        Ok(())
    }

    fn read_block(&self, id: u64, block: u64, range: Range<usize>, into: &mut [u8]) -> Result<()> {
        // In this order: what the tables name stays while somebody stays.
        let _guard = self.epoch_guard()?;
        let (tables, patch) = {
            let state = self.state.lock();
            let tables = self.archive.tables();
            let volume = tables.volumes.get(&id).ok_or_else(deleted)?;
            let layers = state.volumes.get(&id);
            let layers = layers
                .into_iter()
                .flat_map(|layers| [Some(&layers.upper), layers.writing_back.as_deref()]);
            let patch = over(layers.flatten(), volume, block, &range);
            (tables, patch)
        };
        if let Some(patch) = patch.as_ref().filter(|patch| patch.have.covers(&range)) {
            into.copy_from_slice(&patch.bytes[range]);
            return Ok(());
        }
        let volume = tables.volumes.get(&id).ok_or_else(deleted)?;
        self.with_reader(|reader| {
            let mapped =
                Mapped { tables: &tables, container_reader: &self.container_reader, volume, block };
            mapped.read(reader, range.clone(), into)
        })?;
        if let Some(patch) = patch {
            overlay(&patch, range, into);
        }
        Ok(())
    }

    /// The extents of a range, from `offset` on; only its beginning when there are many.
    pub(super) fn extents(
        &self,
        id: u64,
        offset: u64,
        bytes: u64,
        limit: usize,
    ) -> Result<Vec<Extent>> {
        self.within(id, offset, bytes)?;
        let (mut at, end, mut extents) = (offset, offset + bytes, Vec::<Extent>::new());
        let state = self.state.lock();
        let tables = self.archive.tables();
        let volume = tables.volumes.get(&id).ok_or_else(deleted)?;
        let layers: Vec<&Layer> = state
            .volumes
            .get(&id)
            .map(|layers| {
                [Some(&layers.upper), layers.writing_back.as_deref()]
                    .into_iter()
                    .flatten()
                    .collect()
            })
            .unwrap_or_default();
        for _ in 0..STRETCHES {
            if at == end {
                break;
            }
            let (until, kind) = kind_of(&layers, volume, at / BLOCK as u64);
            let bytes = until.saturating_mul(BLOCK as u64).min(end) - at;
            let full = extents.len() == limit.max(1);
            match extents.last_mut() {
                Some(last) if last.kind == kind => last.bytes += bytes,
                _ if full => break,
                _ => extents.push(Extent { bytes, kind }),
            }
            at += bytes;
        }
        Ok(extents)
    }
}

/// The kind of a block, and the end of the run of blocks of the same kind.
fn kind_of(layers: &[&Layer], volume: &Volume, block: u64) -> (u64, ExtentKind) {
    for (n, layer) in layers.iter().enumerate() {
        if layer.patch(volume, block).is_some() {
            return (block + 1, ExtentKind::Data);
        }
        if let Some(end) = layer.zeroed.end_of(block) {
            let next = next_of(&layers[..n], block).chain(layer.next_patch(block)).min();
            return (next.map_or(end, |next| end.min(next)).max(block + 1), ExtentKind::Hole);
        }
    }
    if volume.block_index.get(block).is_some() {
        return (block + 1, ExtentKind::Data);
    }
    // Nothing is there up to the next thing of any layer.
    let next =
        next_of(layers, block).chain(volume.block_index.next_leaf(block)).min().unwrap_or(u64::MAX);
    (next.max(block + 1), ExtentKind::Hole)
}

/// The next things of layers from a block on.
fn next_of(layers: &[&Layer], block: u64) -> impl Iterator<Item = u64> {
    layers
        .iter()
        .flat_map(move |layer| [layer.next_patch(block), layer.zeroed.next(block)])
        .flatten()
}

/// The sectors of a block that layers know, the upper layers first, as far as the range needs.
fn over<'a>(
    layers: impl Iterator<Item = &'a Layer>,
    volume: &Volume,
    block: u64,
    range: &Range<usize>,
) -> Option<Patch> {
    let mut known: Option<Patch> = None;
    for layer in layers {
        if known.as_ref().is_some_and(|known| known.have.covers(range)) {
            break;
        }
        if let Some(patch) = layer.patch(volume, block) {
            match &mut known {
                Some(known) => known.fill(&patch.bytes, &patch.have),
                None => known = Some(patch.clone()),
            }
        }
        if layer.zeroed.contains(block) {
            known
                .get_or_insert_with(|| Patch::new(true, 0, &BufferPool::default()))
                .fill(&[0; BLOCK], &Have::ALL);
        }
    }
    known
}

/// Copies the sectors that a patch has over what was read.
fn overlay(patch: &Patch, range: Range<usize>, into: &mut [u8]) {
    for sector in
        (range.start / SECTOR..range.end.div_ceil(SECTOR)).filter(|&sector| patch.have.has(sector))
    {
        let (from, to) =
            ((sector * SECTOR).max(range.start), ((sector + 1) * SECTOR).min(range.end));
        into[from - range.start..to - range.start].copy_from_slice(&patch.bytes[from..to]);
    }
}
