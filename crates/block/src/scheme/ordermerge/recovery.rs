//! Opening a store with leaves in place: there is nothing to replay. The counts of the zones that
//! were listed tell which blocks were placed since the last checkpoint.

use onefold_core::{Pba, Result};

use crate::{
    coverage::Mark,
    engine::{Checkpointer, Engine, Snapshot},
    format::{
        page::{ReferenceEntry, Table},
        record::WindowNumber,
        superblock::{self, Root},
        zone_list::{Entry, Page},
    },
    overlay::Overlay,
    space::{Allocator, Extent, zone_list::ZoneList},
    window::Window,
};

impl Engine {
    /// Opens the store as the tables have it. `pages` is the zone list, and `entries` are its zones
    /// that no checkpoint holds.
    pub(crate) fn recover_in_place(
        &self,
        snapshot: &Snapshot,
        pages: Vec<Page>,
        entries: &[Entry],
    ) -> Result<()> {
        let told = pages.iter().map(|page| page.durable).max().unwrap_or_default();
        // A window of its own for what was found in use, so that its zones are needed until a
        // checkpoint holds that.
        let seen = told
            .max(snapshot.state.durable)
            .max(snapshot.state.last_window)
            .max(snapshot.state.committed)
            .next();
        let next_generation = pages
            .iter()
            .flat_map(|page| page.entries.iter().flatten())
            .map(|entry| entry.generation + 1);
        let next_generation =
            next_generation.chain([snapshot.state.next_generation]).max().unwrap_or(1);
        let mut list = ZoneList::new(self.fixed.geometry, pages, next_generation, true);
        #[cfg(feature = "planted-bugs")]
        if self.settings.has(crate::settings::PlantedBug::ListedOnce) {
            list.list_once();
        }
        list.retain(entries);
        let overlay = self.recover_zones(snapshot, entries, list, seen)?;
        let block_leaves = [
            self.leaves_in(Table::References, &snapshot.state.references)?,
            self.leaves_in(Table::Fingerprints, &snapshot.state.fingerprints)?,
        ];
        {
            let mut state = self.state.lock();
            state.active = overlay;
            state.active.last = seen;
            state.block_leaves = block_leaves;
            (state.durable, state.acknowledged) = (seen, seen);
            state.open = Window::new(seen.next());
        }
        let inexact = snapshot.state.inexact || !snapshot.state.clean;
        if inexact {
            self.begin_recount();
        }
        let known = superblock::State { inexact, ..snapshot.state.clone() };
        self.write_next_epoch(
            &Snapshot {
                state: known,
                volumes: snapshot.volumes.clone(),
                discards: snapshot.discards.clone(),
            },
            Vec::new(),
        )
    }

    /// Sets up the allocator: the listed zones are active again, and what is counted in them is in
    /// use.
    fn recover_zones(
        &self,
        snapshot: &Snapshot,
        entries: &[Entry],
        list: ZoneList,
        window: WindowNumber,
    ) -> Result<Overlay> {
        let geometry = self.fixed.geometry;
        let source = self.zones(snapshot.state.zones);
        let mut allocator = Allocator::new(geometry, &snapshot.state, self.fixed.grow, list);
        for entry in entries {
            allocator.recover_zone(
                entry.zone,
                entry.generation,
                entry.carriers.is_some(),
                &source,
            )?;
        }
        let mut overlay = Overlay::default();
        for entry in entries {
            let start = geometry.start_of(entry.zone).0;
            let blocks = start..start + geometry.zone_blocks;
            let counts = self.pages.holding(
                Table::References,
                0,
                &snapshot.state.references,
                blocks.clone(),
            )?;
            for pba in blocks {
                let count = counts
                    .get(pba)
                    .map_or(0, |((_, page), slot)| ReferenceEntry::get(page, slot).references);
                if count == 0 {
                    continue;
                }
                if allocator.recover_used(Pba(pba), &source)? {
                    self.coverage.hit(Mark::PlacedInUse);
                    overlay.allocated.push(Extent { at: Pba(pba), blocks: 1 });
                    allocator.note(Pba(pba), window, false, None);
                }
                if count == 1 {
                    self.coverage.hit(Mark::UnlinkedFound);
                    overlay.unlinked.push(Pba(pba));
                }
            }
        }
        allocator.count_ready();
        self.state.lock().allocator = allocator;
        *self.checkpointing.lock() = Checkpointer::default();
        Ok(overlay)
    }

    /// How many leaves a table of blocks has: they are made from the first on.
    pub(super) fn leaves_in(&self, table: Table, root: &Root) -> Result<u64> {
        let (mut some, mut none) = (0, self.fixed.geometry.blocks().div_ceil(table.per_leaf()) + 1);
        while none - some > 1 {
            let middle = some + (none - some) / 2;
            let there = self.pages.leaf_pointers(table, 0, root, &[middle - 1])?[0].is_some();
            if there { some = middle } else { none = middle }
        }
        Ok(some)
    }
}
