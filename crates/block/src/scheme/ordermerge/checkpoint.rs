//! Checkpoints with leaves in place: what waits is written, blocks without links are reclaimed,
//! leaves are made and dropped.
//!
//! 1. *what waits*: all counts that fall and all fingerprints go out, in place.
//! 2. *reclaim*: a block that counts 1, and that no window on its way names, loses its fingerprint,
//!    in place. From then on it can't be found. Its bit in the zone table goes with this
//!    checkpoint, and its count after the superblock is durable: of a free block the count means
//!    nothing.
//! 3. *leaves*: those that windows wait for, and neighbours, twice as many each time, are made;
//!    those of deleted volumes go.
//!
//! The checkpoint's first flush makes all of that durable before the superblock. A crash before it
//! leaves blocks without links that count 1, with or without a fingerprint: recovery, or the
//! recount, finds them again.

use std::collections::{BTreeMap, BTreeSet};

use onefold_core::{Fingerprint, Pba, Result, VolumeId};

use super::{
    increments::write_leaves,
    leaves::{block_leaves_wanted, leaves_in},
    non_critical::write_later,
    soft_updates::{OrderMerge, block_leaves, place_in},
};
use crate::{
    counters::add,
    format::{
        catalogue::Volume,
        page::{self, FANOUT, Pointer, ReferenceEntry, Table},
        superblock::Root,
    },
    index::hash_of,
    kernel::{Kernel, Reclaimed},
    overlay::Overlay,
    rules::Rule,
    scheme::room::has_spare,
    table_build::TableBuild,
    window::{Window, Windows},
};

/// Leaves of fingerprints in which one checkpoint reclaims blocks, at most: 8 MiB are held for
/// them.
const RECLAIMED_LEAVES_MAX: usize = 2048;

impl TableBuild<'_> {
    /// Does the steps above. Gives the new roots of references and fingerprints.
    pub(super) fn in_place(
        &mut self,
        own: &OrderMerge,
        frozen: &Overlay,
        volumes: &mut BTreeMap<VolumeId, Volume>,
        put_off: Vec<Pba>,
    ) -> Result<((Root, Root), Reclaimed)> {
        let candidates: BTreeSet<Pba> = frozen.unlinked().iter().copied().chain(put_off).collect();
        let reclaimed = reclaim(own, self.kernel, candidates)?;
        let allocated: BTreeSet<Pba> = frozen.allocated().collect();
        let gone: BTreeSet<Pba> = reclaimed.blocks.iter().copied().collect();
        self.bits.extend(allocated.difference(&gone).map(|&pba| (pba, true)));
        self.bits.extend(gone.difference(&allocated).map(|&pba| (pba, false)));
        self.freed.extend(gone);
        let (mapped, live) = frozen.links();
        self.mapped = self.mapped.saturating_add_signed(mapped);
        self.live = self.live.saturating_add_signed(live);

        self.in_place = Some((self.old.state.sequence / 2) & 0xff_ffff);
        let wanted = leaves_of_windows(&self.kernel.state.lock().windows);
        for (&id, volume) in volumes.iter_mut() {
            if volume.name.is_empty() {
                volume.map = self.drop_tree(id, &volume.map)?;
            } else if let Some(wanted) = wanted.get(&id) {
                let last = volume.blocks.div_ceil(Table::Map.per_leaf());
                let leaves = self.missing(own, Table::Map, id, &volume.map, wanted, last)?;
                volume.map =
                    self.rebuild(Table::Map, id.0, &volume.map, &leaves, &mut |_, _, _| Ok(true))?;
            }
        }
        volumes.retain(|_, volume| !volume.name.is_empty());
        let references = self.block_table(own, 0)?;
        let fingerprints = self.block_table(own, 1)?;
        self.in_place = None;
        Ok(((references, fingerprints), reclaimed))
    }

    /// Lets go of all pages of a deleted volume's map: nothing is linked in it any more.
    fn drop_tree(&mut self, id: VolumeId, map: &Root) -> Result<Root> {
        let mut leaves = Vec::new();
        while let Some(leaf) = self.kernel.pages.next_leaf(
            Table::Map,
            id.0,
            map,
            leaves.last().map_or(0, |last| last + 1),
        )? {
            leaves.push(leaf);
        }
        self.rebuild(Table::Map, id.0, map, &leaves, &mut |_, _, _| Ok(false))
    }

    /// The leaves among the `wanted` ones of a map that do not exist, and as many of their
    /// neighbours as there is space for.
    fn missing(
        &self,
        own: &OrderMerge,
        table: Table,
        volume: VolumeId,
        root: &Root,
        wanted: &BTreeSet<u64>,
        end: u64,
    ) -> Result<Vec<u64>> {
        let kernel = self.kernel;
        let missing_of = |numbers: &[u64]| -> Result<BTreeSet<u64>> {
            let pointers = kernel.pages.leaf_pointers(table, volume.0, root, numbers)?;
            Ok(numbers
                .iter()
                .zip(pointers)
                .filter(|(_, pointer)| pointer.is_none())
                .map(|(&number, _)| number)
                .collect())
        };
        let mut leaves = missing_of(&wanted.iter().copied().collect::<Vec<u64>>())?;
        if leaves.is_empty() {
            return Ok(Vec::new());
        }
        let ahead = {
            let mut updates = own.updates.lock();
            let growth = updates.growth.entry((table as u8, volume)).or_default();
            *growth = (*growth * 2).clamp(1, FANOUT);
            *growth
        };
        let near: BTreeSet<u64> =
            leaves.iter().flat_map(|&leaf| leaf + 1..(leaf + ahead).min(end)).collect();
        let near = missing_of(&near.into_iter().collect::<Vec<u64>>())?;
        if has_spare(kernel, own, &kernel.state.lock(), 2 * near.len() as u64) {
            leaves.extend(near);
        }
        Ok(leaves.into_iter().collect())
    }

    /// The table of references (0) or of fingerprints (1), with leaves for all zones that were
    /// used; as many again when there is space.
    fn block_table(&mut self, own: &OrderMerge, which: usize) -> Result<Root> {
        let kernel = self.kernel;
        let (table, root) = [
            (Table::References, self.old.state.references),
            (Table::Fingerprints, self.old.state.fingerprints),
        ][which];
        let (have, want) = {
            let state = kernel.state.lock();
            let (have, want) = (
                own.ledger.lock().block_leaves[which],
                block_leaves_wanted(kernel, &state, table, 0),
            );
            let all = kernel.geometry().blocks().div_ceil(table.per_leaf());
            let more = (2 * have).clamp(want, all.max(want));
            (
                have,
                if want > have && has_spare(kernel, own, &state, 2 * (more - have)) {
                    more
                } else {
                    want
                },
            )
        };
        let leaves: Vec<u64> = (have..want).collect();
        let root = self.rebuild(table, 0, &root, &leaves, &mut |_, _, _| Ok(true))?;
        own.ledger.lock().built_leaves[which] = want.max(have);
        Ok(root)
    }
}

/// Takes the fingerprints of blocks without links, so that they can't be found any more, and
/// writes all that waits.
fn reclaim(own: &OrderMerge, kernel: &Kernel, candidates: BTreeSet<Pba>) -> Result<Reclaimed> {
    let _updates = own.updates.lock();
    let mut reclaimed = Reclaimed::default();
    let mut candidates: Vec<Pba> = candidates.into_iter().collect();
    let leaf = |pba: &Pba| pba.0 / Table::Fingerprints.per_leaf();
    let most = candidates
        .chunk_by(|one, other| leaf(one) == leaf(other))
        .take(RECLAIMED_LEAVES_MAX)
        .map(<[Pba]>::len)
        .sum();
    reclaimed.put_off = candidates.split_off(most);
    let tables = kernel.tables();
    let counts = block_leaves(kernel, &tables, Table::References, candidates.iter().copied())?
        .unwrap_or_default();
    let fingerprints =
        block_leaves(kernel, &tables, Table::Fingerprints, candidates.iter().copied())?
            .unwrap_or_default();
    kernel.pages.hold(&counts)?;
    kernel.pages.hold(&fingerprints)?;
    {
        let now = kernel.clock.now();
        let mut state = kernel.state.lock();
        let pinned = if kernel.keeps(Rule::PinnedNotReclaimed) {
            state.windows.pinned()
        } else {
            BTreeSet::new()
        };
        let mut index = kernel.index.lock();
        let mut held = kernel.pages.held();
        for pba in candidates {
            let (Some((count, at)), Some((fingerprint, slot))) =
                (place_in(&counts, pba.0), place_in(&fingerprints, pba.0))
            else {
                continue;
            };
            if held.get(count).is_none_or(|page| ReferenceEntry::get(&page, at).references != 1) {
                continue;
            }
            if pinned.contains(&pba) {
                reclaimed.put_off.push(pba);
                continue;
            }
            let known = state.allocator.data.fresh(pba).map(|(fingerprint, _)| fingerprint);
            let stored = held.get(fingerprint).map(|page| page::fingerprint(&page, slot));
            for fingerprint in
                known.into_iter().chain(stored).filter(|found| *found != Fingerprint::default())
            {
                index.remove(hash_of(fingerprint.prefix()), pba);
            }
            state.allocator.data.forget(pba);
            if kernel.keeps(Rule::FingerprintGoesWithBlock) {
                held.change(fingerprint, now, |page| {
                    page::set_fingerprint(page, slot, &Fingerprint::default());
                    true
                });
            }
            reclaimed.blocks.push(pba);
        }
        // A prepare that looked for duplicates meanwhile may have found one of them.
        if !reclaimed.blocks.is_empty() {
            state.releases.unlinked();
        }
    }
    write_later(kernel, true)?;
    Ok(reclaimed)
}

/// Takes the counts of blocks that are free, since the checkpoint that has them so is durable,
/// or are about to hold pages: a page never has a count, so that nobody takes it for a
/// block without links.
pub(crate) fn forget_counts(own: &OrderMerge, kernel: &Kernel, blocks: &[Pba]) -> Result<()> {
    if blocks.is_empty() {
        return Ok(());
    }
    let _updates = own.updates.lock();
    let tables = kernel.tables();
    // Where there is no leaf there is no count.
    let covered = leaves_in(kernel, Table::References, &tables.state.references)?
        * Table::References.per_leaf();
    let blocks: Vec<Pba> = blocks.iter().copied().filter(|pba| pba.0 < covered).collect();
    let leaves = block_leaves(kernel, &tables, Table::References, blocks.iter().copied())?
        .unwrap_or_default();
    kernel.pages.hold(&leaves)?;
    let now = kernel.clock.now();
    {
        let mut held = kernel.pages.held();
        for pba in blocks {
            let Some((pointer, slot)) = place_in(&leaves, pba.0) else { continue };
            held.change(pointer, now, |page| {
                let counts = ReferenceEntry::get(page, slot).references > 0;
                ReferenceEntry::default().set(page, slot);
                counts
            });
        }
    }
    let pointers: Vec<Pointer> = leaves.iter().map(|(_, pointer)| *pointer).collect();
    let (_, written) = write_leaves(kernel, &pointers)?;
    add(&kernel.counters.in_place_blocks, written);
    Ok(())
}

/// The leaves of maps in which windows on their way have blocks.
fn leaves_of_windows(windows: &Windows) -> BTreeMap<VolumeId, BTreeSet<u64>> {
    let mut leaves: BTreeMap<VolumeId, BTreeSet<u64>> = BTreeMap::new();
    for (volume, more) in windows.all().flat_map(Window::map_leaves) {
        leaves.entry(volume).or_default().extend(more);
    }
    leaves
}
