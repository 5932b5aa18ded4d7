//! The carriers in the listed zones that no checkpoint holds.

use onefold_core::{Block, Pba, Read, Result};

use crate::{
    engine::Engine,
    format::{
        carrier::{Carrier, Header},
        record::Record,
        superblock,
        zone_list::Entry,
    },
    settings::PlantedBug,
};

/// Blocks read at once while zones are scanned.
pub(super) const SCAN_BLOCKS: usize = 256;

/// Reads of a scan that are under way together.
const SCAN_READS: usize = 8;

/// Carriers of a full zone that lie this close are read in one go.
const SCAN_GAP: usize = 8;

/// A carrier found by the scan.
pub(in crate::engine) struct Found {
    pub(in crate::engine) header: Header,
    pub(in crate::engine) records: Vec<Record>,
    /// An earlier recovery, or one that crashed, made it count for nothing.
    pub(super) void: bool,
}

impl Engine {
    /// The carriers in the listed zones that no checkpoint holds. A block that can't be read is not a block without a carrier: its records
    /// may have been acknowledged, and the cut would void them for good.
    pub(super) fn scan(&self, entries: &[Entry], state: &superblock::State) -> Result<Vec<Found>> {
        let geometry = self.fixed.geometry;
        // Stretches to read: all of a zone that may still take carriers, the carriers alone of a full one.
        let mut stretches: Vec<(Entry, usize, usize)> = Vec::new();
        for &entry in entries {
            match entry.carriers {
                None => {
                    for start in (0..geometry.zone_blocks as usize).step_by(SCAN_BLOCKS) {
                        stretches.push((entry, start, SCAN_BLOCKS.min(geometry.zone_blocks as usize - start)));
                    }
                }
                Some(carriers) => {
                    let mut last: Option<(usize, usize)> = None;
                    for n in carriers.iter().take_while(|&n| n < geometry.zone_blocks as usize) {
                        last = match last {
                            Some((start, end)) if n - end <= SCAN_GAP && n - start < SCAN_BLOCKS => Some((start, n + 1)),
                            Some((start, end)) => {
                                stretches.push((entry, start, end - start));
                                Some((n, n + 1))
                            }
                            None => Some((n, n + 1)),
                        };
                    }
                    stretches.extend(last.map(|(start, end)| (entry, start, end - start)));
                }
            }
        }
        let mut found = Vec::new();
        let mut buffers: Vec<Vec<Block>> = Vec::new();
        for batch in stretches.chunks(SCAN_READS * 4) {
            buffers.resize_with(batch.len().max(buffers.len()), || Block::zeroed_vec(SCAN_BLOCKS.min(geometry.zone_blocks as usize)));
            let mut reads: Vec<Read<'_>> = batch
                .iter()
                .zip(&mut buffers)
                .map(|(&(entry, start, blocks), buffer)| Read::new(geometry.start_of(entry.zone).plus(start as u64), &mut buffer[..blocks]))
                .collect();
            self.disk.read(&mut reads);
            reads.into_iter().try_for_each(|read| read.result.map_err(|e| e.context("recovery")))?;
            for (&(entry, start, blocks), buffer) in batch.iter().zip(&mut buffers) {
                let at = geometry.start_of(entry.zone).plus(start as u64);
                for (n, block) in buffer[..blocks].iter().enumerate() {
                    found.extend(self.believable(block, at.plus(n as u64), entry.generation, state));
                }
            }
        }
        Ok(found)
    }

    /// The carrier in a block, if it is one of this store, zone and time that still counts.
    fn believable(&self, block: &Block, at: Pba, generation: u64, state: &superblock::State) -> Option<Found> {
        let shape = Carrier::shape(&self.identity, block)?;
        if self.settings.has(PlantedBug::ForgedCarrier) {
            let header = Header { address: at, ..shape.header };
            return (header.window > state.committed).then(|| Found { header, records: shape.records().flatten().collect(), void: false });
        }
        let Header { epoch, window, .. } = shape.header;
        if shape.header.generation != generation || window <= state.committed {
            return None;
        }
        let void = match state.cuts.iter().find(|cut| cut.epoch == epoch) {
            Some(cut) => window > cut.window,
            None => epoch != state.epoch,
        };
        // A recovery that crashed wrote windows of the next epoch, too; the one after it began behind them.
        let void = void || state.cuts.iter().any(|cut| cut.epoch < epoch && window < cut.resume);
        let carrier = Carrier::proven(&self.identity, block, at)?;
        let records = carrier.records().collect::<Option<Vec<Record>>>()?;
        Some(Found { header: carrier.header, records, void })
    }
}
