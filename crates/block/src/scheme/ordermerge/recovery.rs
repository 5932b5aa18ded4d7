//! Opening a store with leaves in place: there is nothing to replay. The counts of the zones that
//! were listed tell which blocks were placed since the last checkpoint.

use onefold_core::{Pba, Result};

use super::{leaves::leaves_in, recount::begin_recount, soft_updates::OrderMerge};
use crate::{
    coverage::Mark,
    format::{
        page::{ReferenceEntry, Table},
        record::WindowNumber,
        superblock::{self},
        zone_list::{Entry, Page},
    },
    kernel::{Checkpointer, Kernel, write_next_epoch},
    overlay::{Overlay, Tables},
    space::{Allocator, Extent, zone_list::ZoneList},
};

/// Opens the store as the tables have it. `pages` is the zone list, and `entries` are its zones
/// that no checkpoint holds.
pub(crate) fn recover_in_place(
    own: &OrderMerge,
    kernel: &Kernel,
    tables: &Tables,
    pages: Vec<Page>,
    entries: &[Entry],
) -> Result<()> {
    let told = pages.iter().map(|page| page.durable).max().unwrap_or_default();
    // The blocks found in use get a window of their own, so that their zones are needed until a
    // checkpoint holds them.
    let seen = told
        .max(tables.state.durable)
        .max(tables.state.last_window)
        .max(tables.state.committed)
        .next();
    let next_generation = pages
        .iter()
        .flat_map(|page| page.entries.iter().flatten())
        .map(|entry| entry.generation.saturating_add(1));
    let next_generation = next_generation.chain([tables.state.next_generation]).max().unwrap_or(1);
    let mut list = ZoneList::new(kernel.geometry(), pages, next_generation, true);
    #[cfg(feature = "planted-bugs")]
    if !kernel.keeps(crate::rules::Rule::ListedInBothCopies) {
        list.list_once();
    }
    list.retain(entries);
    let overlay = recover_zones(kernel, tables, entries, list, seen)?;
    let block_leaves = [
        leaves_in(kernel, Table::References, &tables.state.references)?,
        leaves_in(kernel, Table::Fingerprints, &tables.state.fingerprints)?,
    ];
    {
        let mut state = kernel.state.lock();
        state.overlays.recovered(overlay);
        let mut ledger = own.ledger.lock();
        (ledger.block_leaves, ledger.built_leaves) = (block_leaves, block_leaves);
        state.windows.recovered(seen, seen);
    }
    let inexact = tables.state.inexact || !tables.state.clean;
    if inexact {
        begin_recount(own);
    }
    let known = superblock::State { inexact, ..tables.state.clone() };
    write_next_epoch(
        kernel,
        &Tables {
            state: known,
            volumes: tables.volumes.clone(),
            discards: tables.discards.clone(),
            places: tables.places.clone(),
            before: None,
        },
        Vec::new(),
    )
}

/// Sets up the allocator: the listed zones are active again, and what is counted in them is in
/// use.
fn recover_zones(
    kernel: &Kernel,
    tables: &Tables,
    entries: &[Entry],
    list: ZoneList,
    window: WindowNumber,
) -> Result<Overlay> {
    let geometry = kernel.geometry();
    let source = kernel.zones(tables.state.zones);
    let mut allocator = Allocator::new(geometry, &tables.state, kernel.fixed.grow, list);
    for entry in entries {
        allocator.recover_zone(entry.zone, entry.generation, entry.carriers.is_some(), &source)?;
    }
    let mut overlay = Overlay::default();
    overlay.publish_own(window, 0, &[]);
    for entry in entries {
        let start = geometry.start_of(entry.zone).0;
        let blocks = start..start + geometry.zone_blocks;
        let counts =
            kernel.pages.holding(Table::References, 0, &tables.state.references, blocks.clone())?;
        for pba in blocks {
            let count = counts
                .get(pba)
                .map_or(0, |((_, page), slot)| ReferenceEntry::get(page, slot).references);
            if count == 0 {
                continue;
            }
            if allocator.recover_used(Pba(pba), &source)? {
                kernel.coverage.hit(Mark::PlacedInUse);
                overlay.publish_own(window, 0, &[Extent { at: Pba(pba), blocks: 1 }]);
                allocator.data.note(Pba(pba), window, false, None);
            }
            if count == 1 {
                kernel.coverage.hit(Mark::UnlinkedFound);
                overlay.unlink([Pba(pba)]);
            }
        }
    }
    allocator.data.count_ready();
    kernel.state.lock().allocator = allocator;
    *kernel.checkpointing.lock() = Checkpointer::default();
    Ok(overlay)
}
