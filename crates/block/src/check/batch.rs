//! Reading many blocks of known addresses: neighbours together, several reads under way at once.

use onefold_core::{Block, Disk, Error, Kind, Pba, Read, Result};

/// Blocks of one read at most.
const RUN_BLOCKS: u64 = 256;

/// Reads under way together: with [`RUN_BLOCKS`], 8 MiB of memory.
const RUNS: usize = 8;

/// Blocks between two wanted ones that are read along rather than making two reads.
const GAP_BLOCKS: u64 = 8;

/// Reads the blocks at `places`, which rise, and shows each once. A read that fails is made again
/// block by block. Blocks that the disk does not have are not shown.
pub(crate) fn read_each(
    disk: &dyn Disk,
    places: &[Pba],
    each: &mut dyn FnMut(Pba, Result<&Block>),
) {
    let places = &places[..places.partition_point(|pba| pba.0 < disk.blocks())];
    let mut runs: Vec<(&[Pba], u64)> = Vec::new();
    let mut rest = places;
    while let Some(first) = rest.first() {
        let mut count = 1;
        while let Some(next) = rest.get(count)
            && next.0 - rest[count - 1].0 <= GAP_BLOCKS
            && next.0 - first.0 < RUN_BLOCKS
        {
            count += 1;
        }
        let (run, others) = rest.split_at(count);
        runs.push((run, run[count - 1].0 - first.0 + 1));
        rest = others;
    }
    let mut buffers: Vec<Vec<Block>> = Vec::new();
    for batch in runs.chunks(RUNS) {
        buffers
            .resize_with(batch.len().max(buffers.len()), || Block::zeroed_vec(RUN_BLOCKS as usize));
        let mut reads: Vec<Read<'_>> = batch
            .iter()
            .zip(&mut buffers)
            .map(|((run, blocks), buffer)| Read::new(run[0], &mut buffer[..*blocks as usize]))
            .collect();
        disk.read(&mut reads);
        let results: Vec<Result<()>> = reads.into_iter().map(|read| read.result).collect();
        for (((run, _), buffer), result) in batch.iter().zip(&buffers).zip(results) {
            for &pba in *run {
                match &result {
                    Ok(()) => each(pba, Ok(&buffer[(pba.0 - run[0].0) as usize])),
                    Err(_) => {
                        let alone = read_one(disk, pba);
                        each(pba, alone.as_deref().map_err(Clone::clone));
                    }
                }
            }
        }
    }
}

/// Reads one block.
pub(crate) fn read_one(disk: &dyn Disk, pba: Pba) -> Result<Box<Block>> {
    if pba.0 >= disk.blocks() {
        return Err(Error::new(
            Kind::InvalidInput,
            format!("there is no block {pba}: the disk has {}", disk.blocks()),
        ));
    }
    let mut buffer = Block::zeroed();
    let mut read = [Read::new(pba, std::slice::from_mut(&mut *buffer))];
    disk.read(&mut read);
    let [read] = read;
    read.result.map(|()| buffer)
}
