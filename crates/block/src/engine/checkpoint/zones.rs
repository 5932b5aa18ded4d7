//! The zone table of a checkpoint, whose own pages change it.

use std::collections::{BTreeMap, BTreeSet};

use onefold_core::{Error, Kind, Pba, Result, ZoneId};

use crate::{
    format::{
        geometry::Geometry,
        page::{FANOUT, Table, ZoneEntry},
        superblock::Root,
        zone_bitmap::ZoneBitmap,
    },
    kernel::Zones,
    rules::Rule,
    space::ZoneSource,
    table::{PageSpace, rebuild, rebuild::Rebuild},
    table_build::TableBuild,
};

/// A new zone table: its root, the bitmaps that changed, and how many blocks are in use.
pub(super) type NewZones = (Root, Vec<(ZoneId, ZoneBitmap)>, u64);

impl TableBuild<'_> {
    /// Writes the zone table. Its own pages change it: places for them are taken first, until that
    /// changes no further page of it.
    pub(super) fn zones(&mut self) -> Result<NewZones> {
        let geometry = self.kernel.geometry();
        let per_leaf = Table::Zones.per_leaf();
        let pages = &self.kernel.pages;
        let root = self.old.state.zones;
        let mut edits = Edits {
            old: self.kernel.zones(root),
            bitmaps: BTreeMap::new(),
            used: self.old.state.used_blocks,
        };
        for (pba, used) in std::mem::take(&mut self.bits) {
            edits.set(geometry, pba, used)?;
        }
        let mut nodes: BTreeSet<(u8, u64)> = BTreeSet::new();
        let mut taken: Vec<Pba> = Vec::new();
        loop {
            for pba in std::mem::take(&mut self.space.taken) {
                edits.set(geometry, pba, true)?;
            }
            for pba in std::mem::take(&mut self.space.let_go) {
                edits.set(geometry, pba, false)?;
                self.freed.push(pba);
            }
            let leaves: BTreeSet<u64> =
                edits.bitmaps.keys().map(|zone| zone.0 / per_leaf).collect();
            let Some(&last) = leaves.last() else { break };
            let mut height = root.height.max(1);
            while FANOUT.checked_pow(u32::from(height) - 1).is_some_and(|reach| last >= reach) {
                height += 1;
            }
            let mut wanted: BTreeSet<(u8, u64)> = BTreeSet::new();
            for level in 0..height {
                let below = FANOUT.pow(u32::from(level));
                wanted.extend(leaves.iter().map(|leaf| (level, leaf / below)));
                // A taller tree: the old one hangs below its first new page.
                if height > root.height && level >= root.height && root.height > 0 {
                    wanted.insert((level, 0));
                }
            }
            let more: Vec<(u8, u64)> = wanted.difference(&nodes).copied().collect();
            if more.is_empty() {
                break;
            }
            for (level, index) in more {
                nodes.insert((level, index));
                taken.push(self.space.allocate()?);
                if let Some(old) = pages.inner_pointer(Table::Zones, 0, &root, level, index)? {
                    self.space.release(old.address);
                }
            }
        }
        let leaves: Vec<u64> = nodes.iter().filter(|node| node.0 == 0).map(|node| node.1).collect();
        taken.sort_unstable();
        let mut beforehand = Beforehand(taken.into_iter());
        let (identity, birth) = (&self.kernel.identity, self.birth);
        let mut work = Rebuild {
            pages,
            identity,
            space: &mut beforehand,
            writer: &mut self.writer,
            birth,
            in_place: None,
        };
        let bitmaps = &edits.bitmaps;
        let root = rebuild(&mut work, Table::Zones, 0, &root, &leaves, &mut |leaf, _, page| {
            for (&zone, &used) in
                bitmaps.range(ZoneId(leaf * per_leaf)..ZoneId((leaf + 1) * per_leaf))
            {
                ZoneEntry { used }.set(page, zone.0 % per_leaf);
            }
            Ok(true)
        })?;
        if beforehand.0.next().is_some() {
            return Err(Error::new(
                Kind::Corrupt,
                "the zone table has another shape than expected",
            ));
        }
        Ok((root, edits.bitmaps.into_iter().collect(), edits.used))
    }
}

/// New bitmaps of the zones that a checkpoint changes.
struct Edits<'a> {
    old: Zones<'a>,
    bitmaps: BTreeMap<ZoneId, ZoneBitmap>,
    used: u64,
}

impl Edits<'_> {
    fn set(&mut self, geometry: Geometry, pba: Pba, used: bool) -> Result<()> {
        let zone = geometry.zone_of(pba);
        if !self.bitmaps.contains_key(&zone) {
            let bitmap = self.old.bitmaps(zone, 1)?.pop().unwrap_or_default();
            self.bitmaps.insert(zone, bitmap);
        }
        let Some(bitmap) = self.bitmaps.get_mut(&zone) else { return Ok(()) };
        let offset = geometry.offset_of(pba);
        let changed = if used { bitmap.set(offset) } else { bitmap.clear(offset) };
        if !changed
            && self.old.kernel.keeps(Rule::ReuseAfterRelease)
            && self.old.kernel.keeps(Rule::OverwriteLowersOnce)
        {
            let message = format!(
                "the bitmap of zone {zone} has block {pba} as {} already",
                if used { "used" } else { "free" }
            );
            return Err(Error::new(Kind::Corrupt, message));
        }
        self.used = if used { self.used + 1 } else { self.used.saturating_sub(1) };
        Ok(())
    }
}

/// Pages that were taken beforehand, one by one.
struct Beforehand(std::vec::IntoIter<Pba>);

impl PageSpace for Beforehand {
    fn allocate(&mut self) -> Result<Pba> {
        self.0.next().ok_or_else(|| {
            Error::new(Kind::Corrupt, "the zone table has another shape than expected")
        })
    }

    fn release(&mut self, _: Pba) {}
}
