//! Fingerprints that leave a store, and content that is found by them.
//!
//! *Invariant:* content that is found has the whole fingerprint that it was asked by, computed from its
//! bytes as they are on the disk: no table and no index is believed.

use onefold_core::{Block, Fingerprint, Lba, Result, VolumeId};

use super::{lookup, read, resolve::map_entries};
use crate::{
    format::page::{self, Form, MapEntry, Table},
    kernel::Kernel,
};

/// The fingerprints of some blocks of a snapshot, as its tables have them; none where nothing is stored,
/// and where they can't be read.
pub(crate) fn fingerprints(
    kernel: &Kernel,
    snapshot: VolumeId,
    first: u64,
    blocks: u64,
) -> Result<Vec<Option<Fingerprint>>> {
    let tables = kernel.tables();
    let lbas: Vec<Lba> = (first..first + blocks).map(Lba).collect();
    let entries = map_entries(kernel, &tables, snapshot, &lbas)?;
    let named = entries.iter().filter_map(|entry| match entry {
        MapEntry::Block { pba, .. } => Some(pba.0),
        _ => None,
    });
    let pages =
        kernel.pages.holding_if_whole(Table::Fingerprints, 0, &tables.state.fingerprints, named);
    let state = kernel.state.lock();
    let of = |entry: &MapEntry| {
        let MapEntry::Block { pba, prefix, .. } = entry else { return None };
        let fresh = state.allocator.data.fresh(*pba).map(|(fingerprint, _)| fingerprint);
        let kept = || pages.get(pba.0).map(|((_, page), slot)| page::fingerprint(page, slot));
        fresh.or_else(kept).filter(|found| found.prefix() == *prefix)
    };
    Ok(entries.iter().map(of).collect())
}

/// The blocks that the store holds in a domain of those that have these fingerprints, read and compared.
pub(crate) fn contents(
    kernel: &Kernel,
    domain: u32,
    wanted: &[Fingerprint],
) -> Result<Vec<Option<Block>>> {
    // The tables are held until the blocks are read: none of them is reused before.
    let tables = kernel.tables();
    let placed = lookup::find(kernel, &tables, domain, wanted)?;
    let stored: Vec<Option<read::Wanted>> = placed
        .iter()
        .zip(wanted)
        .map(|(placed, wanted)| {
            placed.map(|placed| read::Wanted {
                pba: placed.pba,
                form: Form::of(placed.carried),
                prefix: wanted.prefix(),
            })
        })
        .collect();
    let mut found = read::read_stored(kernel, domain, &stored);
    drop(tables);
    let at: Vec<usize> = (0..found.len()).filter(|&n| found[n].is_some()).collect();
    let blocks: Vec<&Block> = at.iter().filter_map(|&n| found[n].as_ref()).collect();
    let right: Vec<bool> = kernel
        .identity
        .fingerprinter_of(domain)?
        .many(&blocks)
        .iter()
        .zip(&at)
        .map(|(fingerprint, &n)| *fingerprint == wanted[n])
        .collect();
    at.iter().zip(right).filter(|(_, right)| !right).for_each(|(&n, _)| found[n] = None);
    Ok(found)
}
