//! The leftover table: sectors that one flipped bit damaged. A version that a crash tore holds
//! none: its sectors are whole, old and new.

use onefold_core::{Block, Disk, Pba};

use super::{batch::read_each, rot};
use crate::format::{
    Identity,
    leftover::{self, SECTOR_BYTES},
    superblock::Superblock,
};

/// Places of pages whose newest version no checkpoint holds, and that a flipped bit damaged: where,
/// which bit, and as they were.
pub(crate) fn rotten_pages(
    disk: &dyn Disk,
    superblock: &Superblock,
    identity: &Identity,
) -> Vec<(Pba, usize, Box<Block>)> {
    let geometry = superblock.fixed.geometry;
    let places: Vec<Pba> =
        (0..geometry.leftover_pages).flat_map(|page| geometry.leftover_page(page)).collect();
    let mut suspects: Vec<(Pba, Box<Block>)> = Vec::new();
    read_each(disk, &places, &mut |at, block| {
        let Ok(block) = block else { return };
        let sectors = leftover::decode(identity, at, block);
        let counts =
            sectors.iter().flatten().any(|sector| sector.window > superblock.state.committed);
        if counts && sectors.iter().any(Option::is_none) {
            suspects.push((at, Box::new(block.clone())));
        }
    });
    let restored = suspects.into_iter().filter_map(|(at, mut block)| {
        let torn = |block: &Block| {
            block.0.chunks(SECTOR_BYTES).any(|sector| sector.iter().all(|&byte| byte == 0))
        };
        let whole =
            |block: &Block| leftover::decode(identity, at, block).iter().all(Option::is_some);
        // A page that was never written does not heal.
        if torn(&block) {
            None
        } else {
            rot::restore_copy(&mut block, whole).map(|bit| (at, bit, block))
        }
    });
    restored.collect()
}
