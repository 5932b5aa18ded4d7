//! The physical table of a checkpoint: reference counts change, and the blocks that nothing names any more are found.

use onefold_core::{Error, Kind, Pba, Result};

use super::build::Build;
use crate::{
    format::{
        page::{PhysicalEntry, Table},
        superblock::Root,
    },
    overlay::Overlay,
    settings::PlantedBug,
};

/// Stands in a list of differences for a block that is to be looked at whatever its count does.
const EXAMINE: i32 = i32::MIN;

impl Build<'_> {
    /// Changes reference counts; finds the blocks that are free from now on.
    pub(super) fn physical(&mut self, frozen: &Overlay, deferred: Vec<Pba>) -> Result<Root> {
        let per_leaf = Table::Physical.per_leaf();
        let mut deltas = std::mem::take(&mut self.deltas);
        // New blocks and those put off: they are free unless something names them now.
        let examined: Vec<Pba> =
            frozen.allocated.iter().flat_map(|extent| (0..extent.blocks).map(|n| extent.at.plus(n))).chain(deferred).collect();
        deltas.extend(examined.iter().map(|&pba| (pba, EXAMINE)));
        deltas.sort_unstable_by_key(|&(pba, _)| pba);
        let mut leaves: Vec<u64> = deltas.iter().map(|&(pba, _)| pba.0 / per_leaf).collect();
        leaves.dedup();
        let (engine, mut live) = (self.engine, self.live);
        let mut freed = Vec::new();
        let mut bits: Vec<(Pba, bool)> = Vec::new();
        let root = self.rebuild(Table::Physical, 0, &self.old.state.physical, &leaves, &mut |leaf, _, page| {
            let from = deltas.partition_point(|&(pba, _)| pba.0 < leaf * per_leaf);
            let mut rest = &deltas[from..];
            let state = engine.state.lock();
            let mut index = engine.index.lock();
            while let Some(&(pba, _)) = rest.first().filter(|&&(pba, _)| pba.0 / per_leaf == leaf) {
                let count = rest.iter().take_while(|delta| delta.0 == pba).count();
                let mine = &rest[..count];
                rest = &rest[count..];
                let examine = mine.iter().any(|&(_, delta)| delta == EXAMINE);
                let difference: i64 = mine.iter().map(|&(_, delta)| if delta == EXAMINE { 0 } else { i64::from(delta) }).sum();
                let slot = pba.0 % per_leaf;
                let mut entry = PhysicalEntry::get(page, slot);
                let before = entry.references;
                let known = state.allocator.fresh(pba).filter(|_| before == 0);
                if let Some((fingerprint, carried)) = known {
                    (entry.fingerprint, entry.carried) = (fingerprint, carried);
                }
                // Else the fingerprint stays although the block may be free: a record on its way may name it again.
                if before < PhysicalEntry::SATURATED {
                    let after = i64::from(before) + difference;
                    if after < 0 && !engine.settings.has(PlantedBug::DoubleDecrement) {
                        let message = format!("block {pba} has {before} references but loses {}", -difference);
                        return Err(Error::new(Kind::Corrupt, message));
                    }
                    entry.references = after.clamp(0, i64::from(PhysicalEntry::SATURATED)) as u32;
                }
                match (before, entry.references) {
                    (0, 0) if examine => freed.push(pba),
                    (0, 1..) => {
                        live += 1;
                        bits.push((pba, true));
                        if known.is_none() {
                            index.insert(&entry.fingerprint, pba);
                        }
                    }
                    (1.., 0) => {
                        live -= 1;
                        bits.push((pba, false));
                        freed.push(pba);
                    }
                    _ => {}
                }
                if entry.references == 0 {
                    index.remove(&entry.fingerprint, pba);
                }
                entry.set(page, slot);
            }
            Ok(crate::format::page::body(page).iter().any(|&byte| byte != 0))
        })?;
        self.live = live;
        self.freed.extend(freed);
        self.bits = bits;
        Ok(root)
    }
}
