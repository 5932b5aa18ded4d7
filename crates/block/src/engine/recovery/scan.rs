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

/// Blocks, and reads, of a scan that are under way together.
const SCAN_BATCH_BLOCKS: usize = 4096;
const SCAN_BATCH_READS: usize = 256;

/// Carriers of a full zone that lie this close are read in one go.
const SCAN_GAP: usize = 8;

/// Blocks that are read together.
struct Stretch {
    at: Pba,
    blocks: usize,
    generation: u64,
}

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
        let mut batches: Vec<Vec<Stretch>> = Vec::new();
        let mut together = SCAN_BATCH_BLOCKS;
        for (entry, start, blocks) in stretches {
            together += blocks;
            if together > SCAN_BATCH_BLOCKS || batches.last().is_some_and(|batch| batch.len() == SCAN_BATCH_READS) {
                together = blocks;
                batches.push(Vec::new());
            }
            let at = geometry.start_of(entry.zone).plus(start as u64);
            batches.last_mut().into_iter().for_each(|batch| batch.push(Stretch { at, blocks, generation: entry.generation }));
        }
        // While one batch is proven the next one is read.
        let (mut proven, mut read) = (Vec::new(), Vec::new());
        for (n, batch) in batches.iter().enumerate() {
            if n == 0 {
                self.read_stretches(batch, &mut proven)?;
            }
            let more = match batches.get(n + 1) {
                None => self.prove(batch, &proven, state),
                Some(next) => std::thread::scope(|scope| {
                    let reading = scope.spawn(|| self.read_stretches(next, &mut read));
                    let more = self.prove(batch, &proven, state);
                    reading.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)).map(|()| more)
                })?,
            };
            found.extend(more);
            std::mem::swap(&mut proven, &mut read);
        }
        Ok(found)
    }

    fn read_stretches(&self, batch: &[Stretch], buffer: &mut Vec<Block>) -> Result<()> {
        let blocks: usize = batch.iter().map(|stretch| stretch.blocks).sum();
        if buffer.len() < blocks {
            *buffer = Block::zeroed_vec(blocks);
        }
        let mut free = &mut buffer[..];
        let mut reads: Vec<Read<'_>> = Vec::with_capacity(batch.len());
        for stretch in batch {
            let (into, left) = free.split_at_mut(stretch.blocks);
            reads.push(Read::new(stretch.at, into));
            free = left;
        }
        self.disk.read(&mut reads);
        reads.into_iter().try_for_each(|read| read.result.map_err(|e| e.context("recovery")))
    }

    fn prove(&self, batch: &[Stretch], blocks: &[Block], state: &superblock::State) -> Vec<Found> {
        let places = batch.iter().flat_map(|stretch| (0..stretch.blocks as u64).map(|n| (stretch.at.plus(n), stretch.generation)));
        places.zip(blocks).filter_map(|((at, generation), block)| self.believable(block, at, generation, state)).collect()
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
