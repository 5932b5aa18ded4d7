//! Fingerprints that leave a store, and content that is found by them.
//!
//! *Invariant:* content that is found has the whole fingerprint that it was asked by, computed from its
//! bytes as they are on the disk: no table and no index is believed.

use onefold_core::{Block, Fingerprint, Lba, Pba, Result, VolumeId};

use super::{
    lookup::{self, read_packs},
    read,
    resolve::map_entries,
};
use crate::{
    format::{
        pack::Pack,
        page::{self, Form, MapEntry, Table},
    },
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
    let mut of_packs = packed_fingerprints(kernel, &entries).into_iter();
    let state = kernel.state.lock();
    let of = |entry: &MapEntry| {
        let MapEntry::Block { pba, form, prefix } = entry else { return None };
        let fresh = state.allocator.data.fresh(*pba).map(|(fingerprint, _)| fingerprint);
        let kept = || pages.get(pba.0).map(|((_, page), slot)| page::fingerprint(page, slot));
        let found = match form {
            Form::Packed(_) => of_packs.next().flatten(),
            Form::Raw | Form::Carried => fresh.or_else(kept),
        };
        found.filter(|found| found.prefix() == *prefix)
    };
    Ok(entries.iter().map(of).collect())
}

/// The fingerprints of those entries that name fragments, as the tables of their packs have them, which are read for
/// that: the store's own has the packs' checksums.
fn packed_fingerprints(kernel: &Kernel, entries: &[MapEntry]) -> Vec<Option<Fingerprint>> {
    let wanted: Vec<(Pba, u8)> = entries
        .iter()
        .filter_map(|entry| match *entry {
            MapEntry::Block { pba, form: Form::Packed(number), .. } => Some((pba, number)),
            _ => None,
        })
        .collect();
    let mut places: Vec<Pba> = wanted.iter().map(|&(pack, _)| pack).collect();
    places.sort_unstable();
    places.dedup();
    let known = read_packs(kernel, &places);
    let of = |(pack, number): (Pba, u8)| {
        let at = places.binary_search(&pack).ok()?;
        Pack::proven(&kernel.identity, known[at].as_ref()?, pack)?.fingerprint(number)
    };
    wanted.into_iter().map(of).collect()
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
    // Content that no block holds may be in a pack, as far as the index knows.
    let others: Vec<Option<Fingerprint>> =
        found.iter().zip(wanted).map(|(found, of)| found.is_none().then_some(*of)).collect();
    let packed = lookup::fragments(kernel, &tables, &others)?;
    for (found, mut packed) in found.iter_mut().zip(packed) {
        *found = found.take().or_else(|| packed.pop().map(|one| *one.content));
    }
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

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use onefold_backend::{MemoryDisk, MonotonicClock};
    use onefold_core::BLOCK_BYTES;

    use super::*;
    use crate::{Acts, Engine, Format, Idleness, Settings};

    /// Bytes that shrink to some 600.
    fn content(n: u64) -> [u8; BLOCK_BYTES] {
        let mut state = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        std::array::from_fn(|at| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            if at < 600 { (state >> 56) as u8 } else { 0 }
        })
    }

    #[test]
    fn fragments_are_offered_and_found_by_their_fingerprints() {
        const BLOCKS: u64 = 40;
        let disk = Arc::new(MemoryDisk::new(4096));
        let format = Format { zone_blocks: 64, ..Format::new([1; 16], [2; 32], 4096) };
        Engine::format(&*disk, &format).unwrap();
        let settings =
            Settings { pack_after: Some(Duration::ZERO), ..Settings::for_memory(32 << 20) };
        let engine = Engine::open(disk, Arc::new(MonotonicClock::new()), settings).unwrap();
        let (volume, _) = engine.create_volume("v", 64).unwrap();
        for n in 0..BLOCKS {
            engine.write(volume, n * BLOCK_BYTES as u64, &content(n)).unwrap();
        }
        let settle = || {
            engine.flush().unwrap();
            engine.checkpoint().unwrap();
        };
        settle();
        let of = [(volume, "monday".to_owned())];
        let snapshot = Acts::of(&engine).snapshot(&of, 1).unwrap().0[0];
        (0..3).for_each(|_| settle());
        let told = || fingerprints(&engine.kernel, snapshot, 0, BLOCKS).unwrap();
        let raw = told();
        assert!(raw.iter().all(Option::is_some));
        while engine.idle_step(Idleness::Pause).unwrap() {}
        (0..3).for_each(|_| settle());
        assert_eq!(engine.status().fragments, BLOCKS);
        assert!(told() == raw, "what is packed is offered");
        // A receiver finds content in packs.
        let wanted: Vec<Fingerprint> = raw.into_iter().flatten().collect();
        let found = contents(&engine.kernel, 0, &wanted).unwrap();
        for (found, n) in found.iter().zip(0..) {
            assert!(found.as_ref().is_some_and(|block| block.0 == content(n)), "{n}");
        }
    }
}
