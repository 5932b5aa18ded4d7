//! The space that is in use when a store is opened: everything that a carrier or a believed record
//! names.

use std::collections::BTreeSet;

use onefold_core::{Error, Kind, Pba, Result};

use super::scan::Found;
use crate::{
    coverage::Mark,
    format::{
        record::{Change, Record, WindowNumber},
        zone_list::Entry,
    },
    hash::MixSet,
    kernel::{Checkpointer, Kernel},
    overlay::Overlay,
    scheme::verbs::FoundAtOpening,
    space::{Allocator, zone_list::ZoneList},
};

/// Sets up the allocator: the listed zones are active again, and what is named in them is in
/// use. Returns the blocks that records name: what believed ones name is held as well,
/// until they are appended again.
pub(super) fn recover_space(
    kernel: &Kernel,
    lists_zones: bool,
    found: FoundAtOpening,
    carriers: &[Found],
    records: &[Record],
    verified: &[Record],
) -> Result<MixSet<Pba>> {
    let FoundAtOpening { tables, pages, entries } = found;
    let geometry = kernel.geometry();
    let mut state = kernel.state.lock();
    let next_generation = pages
        .iter()
        .flat_map(|page| page.entries.iter().flatten())
        .map(|entry| entry.generation.saturating_add(1));
    let next_generation = next_generation.chain([tables.state.next_generation]).max().unwrap_or(1);
    let mut list = ZoneList::new(geometry, pages, next_generation, lists_zones);
    #[cfg(feature = "planted-bugs")]
    if !kernel.keeps(crate::rules::Rule::ListedInBothCopies) {
        list.list_once();
    }
    // Of the others the checkpoint holds all; they are as good as new.
    let named = records.iter().chain(verified).filter_map(|record| match record.change {
        Change::Block { pba, .. } => Some(pba),
        _ => None,
    });
    let needed: BTreeSet<_> = carriers
        .iter()
        .map(|found| found.header.address)
        .chain(named)
        .map(|pba| geometry.zone_of(pba))
        .collect();
    let entries: Vec<Entry> = entries
        .into_iter()
        .filter(|entry| entry.carriers.is_none() || needed.contains(&entry.zone))
        .collect();
    list.retain(&entries);
    let mut allocator = Allocator::new(geometry, &tables.state, kernel.fixed.grow, list);
    let source = kernel.zones(tables.state.zones);
    for entry in &entries {
        allocator.recover_zone(entry.zone, entry.generation, entry.carriers.is_some(), &source)?;
    }
    let mut deferred = Vec::new();
    let mut in_use = |allocator: &mut Allocator, pba: Pba| -> Result<()> {
        if !geometry.holds(pba) {
            return Err(Error::new(
                Kind::Corrupt,
                format!("a record names block {pba}, which holds no data"),
            ));
        }
        if allocator.recover_used(pba, &source)? {
            deferred.push(pba);
        }
        Ok(())
    };
    for found in carriers {
        in_use(&mut allocator, found.header.address)?;
        allocator.data.note(found.header.address, found.header.window, true, None);
    }
    let mut pins = MixSet::default();
    pins.reserve(records.len() + verified.len());
    for record in records.iter().chain(verified) {
        match record.change {
            Change::Block { pba, carried, fingerprint } => {
                pins.insert(pba);
                in_use(&mut allocator, pba)?;
                allocator.data.note_recovered(
                    pba,
                    WindowNumber::of(record.timestamp),
                    carried,
                    fingerprint,
                );
            }
            // A record that an earlier recovery wrote again names the carrier of a window that
            // is void by now.
            Change::Catalogue { pba, .. } => in_use(&mut allocator, pba)?,
            Change::Range { .. } => {}
        }
    }
    allocator.data.count_ready();
    state.allocator = allocator;
    state.releases.recovered(deferred.len());
    kernel.coverage.add(Mark::HeldBlock, deferred.len());
    *kernel.checkpointing.lock() = Checkpointer::new(deferred);
    Ok(pins)
}

/// The overlay that durable records make; the pages of believed ones are counted as well.
pub(super) fn overlay_of(records: &[Record], verified: &[Record]) -> Overlay {
    let mut overlay = Overlay::default();
    overlay.reserve(records);
    records.iter().chain(verified).for_each(|record| overlay.touch(record));
    records.iter().for_each(|record| overlay.publish(record));
    overlay
}
