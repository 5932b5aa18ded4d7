//! Reads blocks: layers in memory over the block's mapping.

use std::ops::Range;

use onefold_core::{Extent, ExtentKind, Result};

use super::{
    layer::{BLOCK, Have, Layer, Patch},
    mapped::Mapped,
    volumes::{Volumes, readable},
};
use crate::tables::Volume;

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
        let (tables, known) = {
            let state = self.state.lock();
            let tables = self.archive.tables();
            let volume = readable(&tables, id)?;
            let layers = state.volumes.get(&id);
            let layers = layers
                .into_iter()
                .flat_map(|layers| [Some(&layers.upper), layers.writing_back.as_deref()]);
            let known = over(layers.flatten(), volume, block, &range, into);
            (tables, known)
        };
        if known.covers(&range) {
            return Ok(());
        }
        let volume = readable(&tables, id)?;
        let mapped =
            Mapped { tables: &tables, container_reader: &self.container_reader, volume, block };
        // The layers are newer than the mapping.
        let above = (known != Have::default()).then(|| into.to_vec());
        self.with_reader(|reader| mapped.read(reader, range.clone(), into))?;
        if let Some(above) = above {
            for known in known.ranges() {
                let (from, to) = (known.start.max(range.start), known.end.min(range.end));
                if from < to {
                    let part = from - range.start..to - range.start;
                    into[part.clone()].copy_from_slice(&above[part]);
                }
            }
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
        let volume = readable(&tables, id)?;
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

/// Copies of a range what layers know of it, the upper layers first. Gives the sectors that they know.
fn over<'a>(
    layers: impl Iterator<Item = &'a Layer>,
    volume: &Volume,
    block: u64,
    range: &Range<usize>,
    into: &mut [u8],
) -> Have {
    let mut known = Have::default();
    for layer in layers {
        if let Some(patch) = layer.patch(volume, block) {
            patch.copy(range, into, &mut known);
        }
        if layer.zeroed.contains(block) {
            Patch::new(true, 0).copy(range, into, &mut known);
        }
        if known.covers(range) {
            break;
        }
    }
    known
}
