//! The references and fingerprints of a checkpoint: counts change, the blocks that nothing names
//! any more are found, and the fingerprints of new blocks are written down.
//!
//! A fingerprint is written once, when its block is stored. So the table of fingerprints changes
//! where new blocks lie, next to each other, and not wherever a count does; nor is it read for
//! that: who names a block, or did, knows enough of its fingerprint for the index.

use onefold_core::{Error, Fingerprint, Kind, Pba, Result};

use super::deltas::{Delta, Slot, Sum, Touch, leaf_of};
use crate::{
    coverage::Mark,
    engine::lookup::read_packs,
    format::{
        pack::Pack,
        page::{self, ReferenceEntry, Table},
        superblock::Root,
    },
    index::hash_of,
    kernel::Kernel,
    moving::{Home, Moves},
    overlay::Overlay,
    rules::Rule,
    table_build::TableBuild,
};

/// Blocks that are looked up under one lock of the state: whoever reads or writes waits for it.
const EXAMINED_TOGETHER: usize = 4096;

/// Packs that became free whose fragments a checkpoint takes out of the index: 16 MiB are read for that.
const FORGOTTEN_MAX: usize = 4096;

/// As many are read at once.
const FORGOTTEN_TOGETHER: usize = 64;

impl TableBuild<'_> {
    /// Changes reference counts; finds the blocks that are free from now on, and notes those whose
    /// fingerprints are to be written.
    pub(super) fn references(
        &mut self,
        frozen: &Overlay,
        deferred: Vec<Pba>,
        moves: &Moves,
        mut deltas: Vec<Delta>,
    ) -> Result<(Root, Vec<Pba>)> {
        let per_leaf = Table::References.per_leaf();
        // New blocks and those put off: they are free unless something names them now.
        self.examine(frozen.allocated(), &mut deltas);
        self.examine(deferred.into_iter(), &mut deltas);
        let touch = |copy| if moves.is_pack(copy) { Touch::Pack } else { Touch::Copy };
        let copies = moves.copies();
        deltas.extend(copies.map(|(copy, of)| Delta::new(copy, touch(copy), of.prefix())));
        deltas.sort_unstable_by_key(Delta::pba);
        let mut leaves: Vec<u64> = deltas
            .chunk_by(|one, other| leaf_of(one) == leaf_of(other))
            .map(|of_leaf| leaf_of(&of_leaf[0]))
            .collect();
        with_pages(&mut leaves, moves.pages(Home::References));
        let (kernel, mut live, mut packs) = (self.kernel, self.live, self.packs);
        let mut domains = std::mem::take(&mut self.domains);
        let (mut freed, mut bits, mut stored) = (Vec::new(), Vec::new(), Vec::new());
        let mut gone = Vec::new();
        let root = self.rebuild(
            Table::References,
            0,
            &self.old.state.references,
            &leaves,
            &mut |leaf, _, page| {
                let from = deltas.partition_point(|delta| leaf_of(delta) < leaf);
                let to = deltas.partition_point(|delta| leaf_of(delta) <= leaf);
                let mut index = kernel.index.lock();
                for touches in deltas[from..to].chunk_by(|one, other| one.pba() == other.pba()) {
                    let (pba, mut sum) = (touches[0].pba(), Sum::of(touches));
                    if sum.pack && !kernel.keeps(Rule::PackCountsEach) {
                        sum.difference = sum.difference.clamp(-1, 1);
                    }
                    let slot = pba.0 % per_leaf;
                    let mut entry = ReferenceEntry::get(page, slot);
                    let before = entry.references;
                    let new = sum.new.filter(|_| before == 0);
                    entry.carried = new.unwrap_or(entry.carried);
                    let stays = before == ReferenceEntry::SATURATED;
                    if stays {
                        kernel.coverage.hit(Mark::CountStays);
                    }
                    if !stays || !kernel.keeps(Rule::ManyStays) {
                        let limits = &kernel.settings.limits;
                        let before = if stays { limits.references } else { before };
                        let after = i64::from(before) + sum.difference;
                        if after < 0 && kernel.keeps(Rule::OverwriteLowersOnce) {
                            let message = format!(
                                "block {pba} has {before} references but loses {}",
                                -sum.difference
                            );
                            return Err(Error::new(Kind::Corrupt, message));
                        }
                        entry.references = limits.count_of(after);
                        let frees_early =
                            sum.pack && sum.difference < 0 && !kernel.keeps(Rule::PackKeptByEach);
                        if frees_early {
                            entry.references = 0;
                        }
                    }
                    match (before, entry.references) {
                        (0, 0) if sum.examine => freed.push(pba),
                        (0, 1..) => {
                            live += 1;
                            packs += u64::from(sum.pack);
                            domains.change(sum.domain.unwrap_or(Slot::NONE), true);
                            bits.push((pba, true));
                            // Nobody was to find a copy before.
                            let found = moves.fingerprint(pba).filter(|_| sum.pack);
                            if let Some(found) = found
                                && !kernel.keeps(Rule::PacksAreNoDuplicates)
                            {
                                index.insert(hash_of(found.prefix()), pba);
                            }
                            if new.is_none() || sum.copy {
                                sum.hash.into_iter().for_each(|hash| index.insert(hash, pba));
                            }
                            if sum.pack {
                                let named = touches.iter().filter(|one| one.raises_fragment());
                                named.for_each(|one| index.insert(one.hash(), pba));
                            }
                        }
                        (1.., 0) => {
                            live = live.saturating_sub(1);
                            packs = packs.saturating_sub(u64::from(sum.pack));
                            bits.push((pba, false));
                            if kernel.keeps(Rule::DomainFallsOnFree) {
                                domains.change(sum.domain.unwrap_or(Slot::NONE), false);
                            }
                            freed.push(pba);
                            if sum.pack {
                                gone.push(pba);
                            }
                        }
                        _ => {}
                    }
                    if entry.references == 0 {
                        sum.hash.into_iter().for_each(|hash| index.remove(hash, pba));
                    }
                    // Also of one that nothing names yet: a record on its way may. One that comes
                    // back is for the index like a new one.
                    if new.is_some() && !sum.copy || before == 0 && entry.references > 0 {
                        stored.push(pba);
                    }
                    entry.set(page, slot);
                }
                Ok(page::body(page).iter().any(|&byte| byte != 0))
            },
        )?;
        forget_fragments(kernel, &gone);
        (self.live, self.packs, self.domains) = (live, packs, domains);
        self.freed.extend(freed);
        self.bits = bits;
        Ok((root, stored))
    }

    /// Notes blocks that are to be looked at, and what is known of those that are new.
    fn examine(&self, blocks: impl Iterator<Item = Pba>, deltas: &mut Vec<Delta>) {
        let mut blocks = blocks.peekable();
        while blocks.peek().is_some() {
            let state = self.kernel.state.lock();
            let some = blocks.by_ref().take(EXAMINED_TOGETHER);
            deltas.extend(some.map(|pba| match state.allocator.data.fresh(pba) {
                Some((fingerprint, carried)) => {
                    Delta::new(pba, Touch::New { carried }, fingerprint.prefix())
                }
                None => Delta::new(pba, Touch::Examine, 0),
            }));
        }
    }

    /// Writes the fingerprints of the blocks that [`references`](Self::references) noted.
    pub(super) fn fingerprints(&mut self, stored: &[Pba], moves: &Moves) -> Result<Root> {
        let per_leaf = Table::Fingerprints.per_leaf();
        let mut leaves: Vec<u64> = stored.iter().map(|pba| pba.0 / per_leaf).collect();
        leaves.dedup();
        with_pages(&mut leaves, moves.pages(Home::Fingerprints));
        let (kernel, counts) = (self.kernel, self.old.state.references);
        let clears = moves.clears_fingerprints;
        self.rebuild(
            Table::Fingerprints,
            0,
            &self.old.state.fingerprints,
            &leaves,
            &mut |leaf, _, page| {
                if clears {
                    let unused = unused(kernel, &counts, leaf)?;
                    // What is named again keeps its own.
                    let clear = |pba: &Pba| stored.binary_search(pba).is_err();
                    for pba in unused.into_iter().filter(clear) {
                        page::set_fingerprint(page, pba.0 % per_leaf, &Fingerprint::default());
                    }
                }
                let from = stored.partition_point(|pba| pba.0 < leaf * per_leaf);
                let state = kernel.state.lock();
                for &pba in stored[from..].iter().take_while(|pba| pba.0 / per_leaf == leaf) {
                    let is_pack = moves.is_pack(pba);
                    let copy = moves.fingerprint(pba).map(|fingerprint| (fingerprint, is_pack));
                    let known = copy.or_else(|| state.allocator.data.fresh(pba));
                    if let Some((mut fingerprint, carried)) = known {
                        if !kernel.keeps(Rule::WholeFingerprintStored) && !carried {
                            fingerprint.0[8..].fill(0);
                        }
                        page::set_fingerprint(page, pba.0 % per_leaf, &fingerprint);
                    }
                }
                Ok(true)
            },
        )
    }
}

/// Takes what packs hold out of the index: they are free from now on, and nothing was written there yet. Entries of
/// those that can't be read stay, as hints that lead nowhere, and so do those of more than are read at once.
fn forget_fragments(kernel: &Kernel, gone: &[Pba]) {
    for places in gone[..gone.len().min(FORGOTTEN_MAX)].chunks(FORGOTTEN_TOGETHER) {
        let blocks = read_packs(kernel, places);
        let mut index = kernel.index.lock();
        for (&at, block) in places.iter().zip(&blocks).filter_map(|(at, b)| Some((at, b.as_ref()?)))
        {
            let Some(pack) = Pack::proven(&kernel.identity, block, at) else { continue };
            kernel.coverage.hit(Mark::FragmentsForgotten);
            // After opening its checksum came to be there as well.
            let all = pack.fingerprints().chain([pack.checksum()]);
            all.for_each(|of| index.remove(hash_of(of.prefix()), at));
        }
    }
}

/// The blocks without references, by these counts, whose fingerprints a leaf has room for.
pub(crate) fn unused(kernel: &Kernel, counts: &Root, leaf: u64) -> Result<Vec<Pba>> {
    let per_leaf = Table::Fingerprints.per_leaf();
    let all = leaf * per_leaf..(leaf + 1) * per_leaf;
    let found = kernel.pages.holding(Table::References, 0, counts, all.clone())?;
    let is_used = |pba: &u64| {
        let entry = found.get(*pba).map(|((_, page), slot)| ReferenceEntry::get(page, slot));
        entry.is_some_and(|entry| entry.references > 0)
    };
    Ok(all.filter(|pba| !is_used(pba)).map(Pba).collect())
}

/// Leaves in their order, those among them whose pages are to move.
fn with_pages(leaves: &mut Vec<u64>, pages: impl Iterator<Item = u64>) {
    let before = leaves.len();
    leaves.extend(pages);
    if leaves.len() > before {
        leaves.sort_unstable();
        leaves.dedup();
    }
}
