//! What a block reads as: layers over its mapping.

use std::{ops::Range, sync::Arc};

use onefold_core::{Error, Extent, ExtentKind, Fingerprint, Kind, Result};

use super::{
    BLOCK, Volumes, deleted,
    layer::{Have, Layer, Patch, SECTOR},
};
use crate::{
    catalogue::Volume,
    format::{
        Address,
        bytes::corrupt,
        container::Chunk,
        recipe::{Part, parts},
    },
    get::ChunkReader,
    memory::Spare,
    segments::Shelves,
    tables::Tables,
};

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
        let _stay = self.stay()?;
        let (tables, patch) = {
            let state = self.state.lock();
            let tables = self.archive.tables();
            let volume = tables.volumes.get(&id).ok_or_else(deleted)?;
            let layers = state.volumes.get(&id);
            let layers = layers
                .into_iter()
                .flat_map(|layers| [Some(&layers.upper), layers.draining.as_deref()]);
            let patch = over(layers.flatten(), volume, block, &range);
            (tables, patch)
        };
        if let Some(patch) = patch.as_ref().filter(|patch| patch.have.covers(&range)) {
            into.copy_from_slice(&patch.bytes[range]);
            return Ok(());
        }
        let volume = tables.volumes.get(&id).ok_or_else(deleted)?;
        self.with_reader(|reader| {
            let mapped = Mapped { tables: &tables, shelves: &self.shelves, volume, block };
            mapped.read(reader, range.clone(), into)
        })?;
        if let Some(patch) = patch {
            overlay(&patch, range, into);
        }
        Ok(())
    }

    /// What a range holds, from `offset` on; not all of it when that is long to tell.
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
                [Some(&layers.upper), layers.draining.as_deref()].into_iter().flatten().collect()
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

/// What a block is, and up to which block all are the same.
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
    if volume.map.get(block).is_some() {
        return (block + 1, ExtentKind::Data);
    }
    // Nothing is there up to the next thing of any layer.
    let next = next_of(layers, block).chain(volume.map.next_leaf(block)).min().unwrap_or(u64::MAX);
    (next.max(block + 1), ExtentKind::Hole)
}

/// The next things of layers from a block on.
fn next_of(layers: &[&Layer], block: u64) -> impl Iterator<Item = u64> {
    layers
        .iter()
        .flat_map(move |layer| [layer.next_patch(block), layer.zeroed.next(block)])
        .flatten()
}

/// What layers know of a block, the upper ones first, as far as the range needs.
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
                .get_or_insert_with(|| Patch::new(true, 0, &Spare::default()))
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

/// A block as its mapping has it.
pub(crate) struct Mapped<'a> {
    pub(crate) tables: &'a Tables,
    pub(crate) shelves: &'a Shelves,
    pub(crate) volume: &'a Volume,
    pub(crate) block: u64,
}

impl Mapped<'_> {
    /// The parts of its mapping; none for zeroes.
    pub(crate) fn parts(&self, reader: &mut ChunkReader) -> Result<Vec<Part>> {
        let Some(address) = self.volume.map.get(self.block) else { return Ok(Vec::new()) };
        let all = reader
            .chunk(self.tables, self.shelves, address)
            .and_then(parts)
            .map_err(|e| self.name(e))?;
        if all.iter().map(length).sum::<u64>() != BLOCK as u64 {
            return Err(self.name(corrupt("its mapping does not add up")));
        }
        Ok(all)
    }

    fn name(&self, error: Error) -> Error {
        match error.kind() {
            Kind::Corrupt => error.context(format!(
                "block {} of volume '{}'",
                self.block,
                self.volume.name.escape_debug()
            )),
            _ => error,
        }
    }

    /// Reads a range of it.
    pub(super) fn read(
        &self,
        reader: &mut ChunkReader,
        range: Range<usize>,
        into: &mut [u8],
    ) -> Result<()> {
        into.fill(0);
        let mut at = 0;
        for part in self.parts(reader)? {
            let next = at + length(&part) as usize;
            if next > range.start && at < range.end {
                let mut copy = Copy { at, range: range.clone(), into: &mut *into };
                self.read_part(reader, &part, &mut copy).map_err(|e| self.name(e))?;
            }
            at = next;
        }
        Ok(())
    }

    fn read_part(&self, reader: &mut ChunkReader, part: &Part, copy: &mut Copy<'_>) -> Result<()> {
        let check = |chunk: &Chunk, expected: Option<&Fingerprint>| match expected {
            Some(fingerprint) if chunk.fingerprint == *fingerprint => Ok(()),
            _ => Err(corrupt(format!(
                "chunk {} of container {} is not the one that was stored",
                chunk.first.slot, chunk.first.container
            ))),
        };
        match part {
            Part::Run { first, bytes, fingerprints } => {
                let (mut expected, end) = (fingerprints.iter(), copy.at + *bytes as usize);
                reader.run(
                    self.tables,
                    self.shelves,
                    *first,
                    fingerprints.len(),
                    &mut |chunk, bytes| {
                        check(chunk, expected.next())?;
                        copy.push(bytes);
                        Ok(())
                    },
                )?;
                if copy.at == end {
                    Ok(())
                } else {
                    Err(corrupt("its chunks have other lengths than its mapping says"))
                }
            }
            Part::Slice { chunk, fingerprint, skip, bytes } => {
                reader.run(self.tables, self.shelves, *chunk, 1, &mut |chunk, all| {
                    check(chunk, Some(fingerprint))?;
                    let slice =
                        all.get(*skip as usize..).and_then(|rest| rest.get(..*bytes as usize));
                    copy.push(
                        slice.ok_or_else(|| corrupt("a chunk is shorter than its mapping says"))?,
                    );
                    Ok(())
                })
            }
            Part::Zeroes(_) | Part::End(_) => Ok(()),
        }
    }
}

/// Bytes of a block that a part stands for.
pub(super) fn length(part: &Part) -> u64 {
    match part {
        Part::Run { bytes, .. } | Part::Slice { bytes, .. } => u64::from(*bytes),
        Part::Zeroes(bytes) => *bytes,
        Part::End(_) => 0,
    }
}

/// Copies what falls into a range.
struct Copy<'a> {
    at: usize,
    range: Range<usize>,
    into: &'a mut [u8],
}

impl Copy<'_> {
    fn push(&mut self, bytes: &[u8]) {
        let (from, to) =
            (self.at.max(self.range.start), (self.at + bytes.len()).min(self.range.end));
        if from < to {
            self.into[from - self.range.start..to - self.range.start]
                .copy_from_slice(&bytes[from - self.at..to - self.at]);
        }
        self.at += bytes.len();
    }
}

/// The chunks that a mapping names, and where they are.
pub(crate) fn chunks_of(parts: &[Part]) -> impl Iterator<Item = (Fingerprint, Address)> {
    parts.iter().flat_map(|part| {
        let (first, fingerprints): (Address, &[Fingerprint]) = match part {
            Part::Run { first, fingerprints, .. } => (*first, fingerprints),
            Part::Slice { chunk, fingerprint, .. } => (*chunk, std::slice::from_ref(fingerprint)),
            _ => (Address::default(), &[]),
        };
        fingerprints.iter().enumerate().map(move |(n, &fingerprint)| {
            (fingerprint, Address { slot: first.slot + n as u16, ..first })
        })
    })
}

/// Keeps the layers that are drained alive for readers.
pub(super) type Drained = Arc<Layer>;
