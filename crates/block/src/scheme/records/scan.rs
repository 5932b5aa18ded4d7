//! The carriers in the listed zones that no checkpoint holds.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use onefold_core::{Block, Pba, Read, Result};

use crate::{
    format::{
        carrier::{Carrier, Header},
        record::{Change, Record},
        superblock,
        zone_list::Entry,
    },
    index::hash_of,
    kernel::Kernel,
};

/// Blocks read at once while zones are scanned.
const SCAN_BLOCKS: usize = 256;

/// Blocks, and reads, of a scan that are under way together.
const SCAN_BATCH_BLOCKS: usize = 4096;
const SCAN_BATCH_READS: usize = 256;

/// So many batches are worth a second thread.
const BATCHES_WORTH_A_THREAD: usize = 4;

/// Carriers of a full zone that lie this close are read in one go.
const SCAN_GAP: usize = 8;

/// Blocks that are read together.
struct Stretch {
    at: Pba,
    blocks: usize,
    generation: u64,
}

/// A carrier found by the scan.
pub(super) struct Found {
    pub(super) header: Header,
    pub(super) records: Vec<Record>,
    /// An earlier recovery, or one that crashed, made it count for nothing.
    pub(super) void: bool,
}

/// The carriers in the listed zones that no checkpoint holds. A block that can't be read is not
/// a block without a carrier: its records may have been acknowledged, and the cut would
/// void them for good.
pub(super) fn scan(
    kernel: &Kernel,
    entries: &[Entry],
    state: &superblock::State,
) -> Result<Vec<Found>> {
    let geometry = kernel.geometry();
    // Stretches to read: all of a zone that may still take carriers, the carriers alone of a
    // full one.
    let mut stretches: Vec<(Entry, usize, usize)> = Vec::new();
    for &entry in entries {
        match entry.carriers {
            None => {
                for start in (0..geometry.zone_blocks as usize).step_by(SCAN_BLOCKS) {
                    stretches.push((
                        entry,
                        start,
                        SCAN_BLOCKS.min(geometry.zone_blocks as usize - start),
                    ));
                }
            }
            Some(carriers) => {
                let mut last: Option<(usize, usize)> = None;
                for n in carriers.iter().take_while(|&n| n < geometry.zone_blocks as usize) {
                    last = match last {
                        Some((start, end)) if n - end <= SCAN_GAP && n - start < SCAN_BLOCKS => {
                            Some((start, n + 1))
                        }
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
    let mut batches: Vec<Vec<Stretch>> = Vec::new();
    let mut together = SCAN_BATCH_BLOCKS;
    for (entry, start, blocks) in stretches {
        together += blocks;
        if together > SCAN_BATCH_BLOCKS
            || batches.last().is_some_and(|batch| batch.len() == SCAN_BATCH_READS)
        {
            together = blocks;
            batches.push(Vec::new());
        }
        let at = geometry.start_of(entry.zone).plus(start as u64);
        batches
            .last_mut()
            .into_iter()
            .for_each(|batch| batch.push(Stretch { at, blocks, generation: entry.generation }));
    }
    let next = AtomicUsize::new(0);
    let work = || {
        let (mut found, mut buffer) = (Vec::new(), Vec::new());
        while let Some(batch) = batches.get(next.fetch_add(1, Relaxed)) {
            read_stretches(kernel, batch, &mut buffer)?;
            prove(kernel, batch, &mut buffer, state, &mut found);
        }
        Ok(found)
    };
    if batches.len() < BATCHES_WORTH_A_THREAD {
        return work();
    }
    // While one proves the other reads.
    std::thread::scope(|scope| {
        let other = scope.spawn(work);
        let mut found = work()?;
        found.extend(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
        Ok(found)
    })
}

fn read_stretches(kernel: &Kernel, batch: &[Stretch], buffer: &mut Vec<Block>) -> Result<()> {
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
    kernel.disk.read(&mut reads);
    reads.into_iter().try_for_each(|read| read.result.map_err(|e| e.context("recovery")))
}

/// Finds the carriers in blocks that were read, those of this store, zone and time that still
/// count.
fn prove(
    kernel: &Kernel,
    batch: &[Stretch],
    blocks: &mut [Block],
    state: &superblock::State,
    found: &mut Vec<Found>,
) {
    let places = batch.iter().flat_map(|stretch| {
        (0..stretch.blocks as u64).map(|n| (stretch.at.plus(n), stretch.generation))
    });
    let before = found.len();
    let mut likely: Vec<(&mut Block, Pba)> = Vec::new();
    for ((at, generation), block) in places.zip(blocks) {
        let Some(shape) = Carrier::shape(&kernel.identity, block, at)
            .filter(|shape| shape.header.window > state.committed)
        else {
            continue;
        };
        if kernel.identity.sealing.is_some() {
            // Its tag has proven it.
            note(&shape, generation, state, found);
            continue;
        }
        #[cfg(feature = "planted-bugs")]
        if !kernel.keeps(crate::rules::Rule::CarriersProven) {
            let (header, records) = super::broken::unproven(&shape, at);
            found.push(Found { header, records, void: false });
            continue;
        }
        let is_of_zone = shape.header.generation == generation;
        drop(shape);
        if is_of_zone {
            likely.push((block, at));
        }
    }
    for (_, carrier) in Carrier::proven_among(&kernel.identity, &mut likely) {
        let generation = carrier.header.generation;
        note(&carrier, generation, state, found);
    }
    note_in_index(
        kernel,
        found[before..].iter().filter(|found| !found.void).flat_map(|found| &found.records),
    );
}

/// Notes a carrier that is proven, when it is of this generation.
fn note(carrier: &Carrier<'_>, generation: u64, state: &superblock::State, found: &mut Vec<Found>) {
    let header = carrier.header;
    if let Some(records) = carrier.records().collect()
        && header.generation == generation
    {
        found.push(Found { header, records, void: is_void(&header, state) });
    }
}

/// Tells the index where records say that blocks are: a hint, whether they are believed or not.
pub(crate) fn note_in_index<'r>(kernel: &Kernel, records: impl Iterator<Item = &'r Record>) {
    let mut index = kernel.index.lock();
    for record in records {
        if let Change::Block { pba, fingerprint, .. } = record.change {
            index.insert(hash_of(fingerprint.prefix()), pba);
        }
    }
}

/// True for a carrier that a recovery made count for nothing.
fn is_void(&Header { epoch, window, .. }: &Header, state: &superblock::State) -> bool {
    let cut = match state.cuts.iter().find(|cut| cut.epoch == epoch) {
        Some(cut) => window > cut.window,
        None => epoch != state.epoch,
    };
    // A recovery that crashed wrote windows of the next epoch, too; the one after it began behind
    // them.
    cut || state.cuts.iter().any(|cut| cut.epoch < epoch && window < cut.resume)
}
