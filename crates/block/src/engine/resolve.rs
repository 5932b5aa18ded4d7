//! Where an address is: the open window, then windows in flight from newest to oldest, then the
//! overlays, then the tables.

use onefold_core::{Lba, Result, VolumeId};

use crate::{
    format::page::{MapEntry, Page, Pointer, Table},
    kernel::Kernel,
    overlay::{Tables, zeroes},
    window::ranges::Ranges,
};

/// The entries of a map leaf for an address, with the pending discards that it does not contain
/// yet.
pub(crate) fn entry_in(
    discards: &Ranges,
    volume: VolumeId,
    lba: Lba,
    leaf: Option<(&Pointer, &Page)>,
) -> Option<MapEntry> {
    let discard = discards.get(volume, lba.0);
    match (leaf, discard) {
        (Some((pointer, _)), Some(span)) if span.window > pointer.birth => Some(zeroes(span.keep)),
        (Some((_, page)), _) => MapEntry::get(page, lba.0 % Table::Map.per_leaf()),
        (None, Some(span)) => Some(zeroes(span.keep)),
        (None, None) => Some(MapEntry::Hole),
    }
}

/// The entry of one address in the tables.
pub(crate) fn map_entry(
    kernel: &Kernel,
    tables: &Tables,
    volume: VolumeId,
    lba: Lba,
) -> Result<MapEntry> {
    Ok(map_entries(kernel, tables, volume, &[lba])?[0])
}

/// The entries of many addresses of a volume in the tables; their pages are read together.
pub(crate) fn map_entries(
    kernel: &Kernel,
    tables: &Tables,
    volume: VolumeId,
    lbas: &[Lba],
) -> Result<Vec<MapEntry>> {
    let Some(map) = tables.volumes.get(&volume) else {
        return Ok(vec![MapEntry::Hole; lbas.len()]);
    };
    let entries = lbas.iter().map(|lba| lba.0);
    let leaves = kernel.pages.holding(Table::Map, map.family(), &map.map, entries)?;
    lbas.iter()
        .map(|&lba| {
            let leaf = leaves.get(lba.0).map(|((pointer, page), _)| (pointer, &**page));
            entry_in(&tables.discards, volume, lba, leaf).ok_or_else(|| {
                onefold_core::Error::new(
                    onefold_core::Kind::Corrupt,
                    format!("the map entry of block {lba} is damaged"),
                )
            })
        })
        .collect()
}
