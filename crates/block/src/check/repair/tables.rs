//! New tables, step by step; they become true with one superblock.

use std::collections::BTreeMap;

use onefold_core::{Block, Result, ZoneId};

use super::{
    build::Builder, maps::Mend, named, once::in_order, outcome::Repaired, references, restore,
    room::Room, salvage::Salvage, zones,
};
use crate::{
    block_set::BlockSet,
    check::{counts::mended, tables::Checker, walk::Visit},
    format::{
        geometry::SUPERBLOCKS,
        page::{PageId, Pointer, Table, ZoneEntry},
        record::WindowNumber,
        superblock::{PACKS, Root, State, Superblock},
    },
    table::rebuild::PageWriter,
};

/// Builds all tables anew from the maps. `checker` has read the old ones.
pub(super) fn rebuild(
    checker: &mut Checker<'_>,
    superblock: &Superblock,
    repaired: &mut Repaired,
) -> Result<()> {
    let (disk, identity) = (checker.walker.disk, checker.walker.identity);
    let committed = superblock.state.committed;
    let named = named::find(checker)?;

    // Everything that the old tables name stays untouched until the new superblock is durable.
    let mut taken = BlockSet::new(checker.geometry);
    taken.add_all(&named.data);
    taken.add_all(&checker.pages);
    checker.walk(
        Table::Zones,
        0,
        &superblock.state.zones,
        Some(0..u64::MAX),
        &mut |_, id, _, page| {
            for slot in 0..Table::Zones.per_leaf() {
                taken.add(
                    ZoneId(id.index * Table::Zones.per_leaf() + slot),
                    &ZoneEntry::get(page, slot).used,
                );
            }
        },
    );
    // With leaves in place, data may lie in zones that were opened since the checkpoint.
    let high_water = named
        .data
        .zones(0..u64::MAX)
        .map(|(zone, _)| zone + 1)
        .chain([superblock.state.high_water])
        .max()
        .unwrap_or(0);
    let mut builder = Builder {
        identity,
        room: Room::new(disk, superblock, identity, taken, high_water),
        writer: PageWriter::new(disk),
        live: BlockSet::new(checker.geometry),
        places: Vec::new(),
        life: checker.in_place.then_some((superblock.state.sequence / 2) & 0xff_ffff),
    };
    checker.walker.walk(
        Table::Discards,
        0,
        &superblock.state.pending,
        committed,
        &mut Keep(&mut builder.live),
    );
    // The index is a hint, kept whole or not at all.
    let index_whole = !checker.index_dark;
    if index_whole {
        checker.walker.walk(
            Table::Index,
            0,
            &superblock.state.index,
            committed,
            &mut Keep(&mut builder.live),
        );
    }

    let mut volumes = checker.volumes.clone();
    let shares_pages = checker.state.shares_pages();
    let mut mend = Mend {
        checker,
        builder: &mut builder,
        named: &named,
        repaired,
        salvage: Salvage::default(),
        lost_leaves: 0,
        mended: BTreeMap::new(),
        lost_log: Vec::new(),
    };
    for n in in_order(&volumes) {
        let volume = &mut volumes[n];
        let before = mend.repaired.lost_addresses;
        let map = mend.map(volume)?;
        if shares_pages {
            let more = mend.repaired.lost_addresses - before;
            volume.sharing.lost = volume.sharing.lost.saturating_add(more);
        }
        if map != volume.map {
            // Nobody has counted what it still holds.
            volume.sharing.mapped = None;
        } else {
            volume.sharing.mapped = mended(&mend.checker.counts, volume);
        }
        volume.map = map;
    }
    volumes.retain(|volume| !volume.is_leaving() || volume.map.height > 0);
    builder.writer.finish()?;
    checker.volumes = volumes;
    let blocks = references::build(checker, &mut builder)?;
    let catalogue = catalogue(checker, &mut builder)?;
    let (zones, used_blocks) = zones::build(&mut builder, committed, &blocks.blocks)?;
    builder.writer.finish()?;
    disk.flush()?;

    let old = superblock.state.clone();
    let none = WindowNumber(0);
    let old = if index_whole {
        old
    } else {
        State { index: Root::default(), index_bits: 0, index_entries: 0, index_birth: none, ..old }
    };
    let mut state = State {
        high_water: builder.room.high_water,
        used_blocks,
        live_blocks: blocks.live,
        mapped_blocks: blocks.mapped,
        packs: blocks.packs,
        fragments: blocks.fragments,
        features: old.features | if blocks.fragments > 0 { PACKS } else { 0 },
        volumes: checker.volumes.len() as u32,
        discards: checker.discards.len() as u32,
        references: blocks.references,
        fingerprints: blocks.fingerprints,
        shares: blocks.shares,
        // Where maps share pages, what can't be read makes counts too high; now they are exact.
        inexact: old.inexact && checker.in_place,
        domains: blocks.domains,
        zones,
        catalogue,
        ..old
    };
    // To both places, so that each of them alone is enough.
    for _ in SUPERBLOCKS {
        state.sequence += 1;
        let place = (state.sequence % 2) as u32;
        let new = Superblock { fixed: superblock.fixed.clone(), state: state.clone() };
        restore::write(
            disk,
            SUPERBLOCKS[place as usize],
            &*new.written(place, identity.sealing.as_deref())?,
        )?;
        disk.flush()?;
    }
    let what = format!(
        "reference counts and free space were taken from the maps: {} blocks are in use, {used_blocks} with tables",
        blocks.live
    );
    repaired.restored.push(what);
    Ok(())
}

/// All volumes, in the order of their numbers.
fn catalogue(checker: &mut Checker<'_>, builder: &mut Builder<'_>) -> Result<Root> {
    checker.volumes.sort_by_key(|volume| volume.id);
    let shared = checker.state.shares_pages();
    let table = if shared { Table::Maps } else { Table::Catalogue };
    let mut leaves = Vec::new();
    for (index, volumes) in (0..).zip(checker.volumes.chunks(table.per_leaf() as usize)) {
        let mut page = Block::zeroed();
        for (slot, volume) in (0..).zip(volumes) {
            match shared {
                true => volume.set_shared(&mut page, slot),
                false => volume.set(&mut page, slot),
            }
        }
        let id = PageId { table, volume: 0, level: 0, index };
        leaves.push((index, builder.page(id, checker.state.committed, page)?));
    }
    builder.tree(table, checker.state.committed, leaves)
}

/// Keeps every page of a tree.
struct Keep<'a>(&'a mut BlockSet);

impl Visit for Keep<'_> {
    fn named(&mut self, _: PageId, pointer: &Pointer, _: WindowNumber) -> bool {
        self.0.insert(pointer.address)
    }

    fn page(&mut self, _: PageId, _: &Pointer, _: Result<&Block>) {}
}
