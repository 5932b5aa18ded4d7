//! Blocks for new pages: such that nothing names, neither the tables nor a record that no
//! checkpoint holds.

use std::collections::BTreeSet;

use onefold_core::{Disk, Error, Kind, Pba, Result, ZoneId};

use crate::{
    block_set::BlockSet,
    check::{batch::read_each, places},
    format::{Identity, carrier::Carrier, record::Change, superblock::Superblock},
};

/// Free blocks of a store that is being repaired.
pub(super) struct Room<'a> {
    disk: &'a dyn Disk,
    superblock: &'a Superblock,
    /// Blocks that may not be handed out.
    pub(super) taken: BlockSet,
    /// Zones in which carriers may lie that no checkpoint holds.
    listed: BTreeSet<u64>,
    /// Zones below this one were used at some time.
    pub(super) high_water: u64,
    zone: Option<u64>,
}

impl<'a> Room<'a> {
    /// Room outside of `taken`, where zones below `high_water` were used at some time. Reads the
    /// carriers in listed zones, since they may name free blocks.
    pub(super) fn new(
        disk: &'a dyn Disk,
        superblock: &'a Superblock,
        identity: &Identity,
        mut taken: BlockSet,
        high_water: u64,
    ) -> Room<'a> {
        let geometry = superblock.fixed.geometry;
        let entries = places::listed(disk, identity, superblock);
        for entry in entries.iter().filter(|_| !superblock.state.clean) {
            let blocks: Vec<Pba> =
                (0..geometry.zone_blocks).map(|n| geometry.start_of(entry.zone).plus(n)).collect();
            read_each(disk, &blocks, &mut |pba, block| {
                let Some(carrier) =
                    block.ok().and_then(|block| Carrier::proven(identity, block, pba))
                else {
                    return;
                };
                for record in carrier.records().flatten() {
                    match record.change {
                        Change::Block { pba, .. } | Change::Catalogue { pba, .. }
                            if geometry.holds(pba) =>
                        {
                            _ = taken.insert(pba)
                        }
                        _ => {}
                    }
                }
            });
        }
        let listed = entries.iter().map(|entry| entry.zone.0).collect();
        Room { disk, superblock, taken, listed, high_water, zone: None }
    }

    /// Takes a block: from a zone that was never used while there is one.
    pub(super) fn take(&mut self) -> Result<Pba> {
        let geometry = self.superblock.fixed.geometry;
        loop {
            if let Some(zone) = self.zone {
                let blocks = geometry.zone_blocks as usize;
                if let Some((n, _)) = self.taken.zone(zone).clear_run(0, blocks, 1) {
                    let pba = geometry.start_of(ZoneId(zone)).plus(n as u64);
                    self.taken.insert(pba);
                    return Ok(pba);
                }
            }
            self.zone = Some(self.next_zone()?);
        }
    }

    fn next_zone(&mut self) -> Result<u64> {
        let geometry = self.superblock.fixed.geometry;
        while self.high_water < geometry.zones {
            let zone = self.high_water;
            let free = !self.listed.contains(&zone) && geometry.has_zone(ZoneId(zone));
            if self.superblock.fixed.grow
                && free
                && self
                    .disk
                    .allocate(geometry.start_of(ZoneId(zone)), geometry.zone_blocks)
                    .is_err()
            {
                break;
            }
            self.high_water += 1;
            if free {
                return Ok(zone);
            }
        }
        let first = geometry.first_zone().0;
        let after = self
            .zone
            .filter(|&zone| zone < self.superblock.state.high_water)
            .map_or(first, |zone| zone + 1);
        (after..self.superblock.state.high_water)
            .find(|zone| {
                let offered = !self.listed.contains(zone) && geometry.has_zone(ZoneId(*zone));
                offered && self.taken.zone(*zone).count() < geometry.zone_blocks
            })
            .ok_or_else(|| Error::new(Kind::NoSpace, "there is no room for new tables: give the store more space, or delete a volume"))
    }
}
