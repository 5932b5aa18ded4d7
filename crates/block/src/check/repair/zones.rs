//! The zone table, built anew: what the new tables use, its own pages included.

use onefold_core::{Block, Error, Kind, Result};

use super::build::{Builder, pages_over};
use crate::{
    block_set::BlockSet,
    format::{
        page::{PageId, Table, ZoneEntry},
        record::WindowNumber,
        superblock::Root,
    },
};

/// Builds the table; `data` are the blocks that the maps name. Returns how many blocks are in use.
pub(super) fn build(
    builder: &mut Builder<'_>,
    birth: WindowNumber,
    data: &BlockSet,
) -> Result<(Root, u64)> {
    let per_leaf = Table::Zones.per_leaf();
    // Places for its own pages first, since they are part of what it says; they may open more
    // zones.
    let mut leaves = builder.room.high_water.div_ceil(per_leaf);
    while (builder.places.len() as u64) < pages_over(leaves) {
        let at = builder.room.take()?;
        builder.live.insert(at);
        builder.places.push(at);
        leaves = builder.room.high_water.div_ceil(per_leaf);
    }
    let mut used_blocks = 0;
    let mut written = Vec::new();
    for index in 0..leaves {
        let mut page = Block::zeroed();
        for slot in 0..per_leaf {
            let mut used = data.zone(index * per_leaf + slot);
            used.add(&builder.live.zone(index * per_leaf + slot));
            used_blocks += used.count();
            ZoneEntry { used }.set(&mut page, slot);
        }
        let id = PageId { table: Table::Zones, volume: 0, level: 0, index };
        written.push((index, builder.page_even_empty(id, birth, page)?));
    }
    let root = builder.tree(Table::Zones, birth, written)?;
    if !builder.places.is_empty() {
        return Err(Error::new(
            Kind::Corrupt,
            "the new zone table has another shape than expected",
        ));
    }
    Ok((root, used_blocks))
}
