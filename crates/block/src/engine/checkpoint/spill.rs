//! The index that outgrew its share of memory: a checkpoint merges it into the one on disk.

use onefold_core::Result;

use crate::{
    coverage::Mark,
    engine::domain_room::kept,
    format::{page::Table, record::WindowNumber, superblock::Root},
    index::{Entry, Filter, HASH_BITS, MemoryIndex, Spill, paged},
    kernel::{Kernel, State},
    scheme::{room::has_spare, verbs::Scheme},
    table::PageSpace,
    table_build::TableBuild,
};

/// The index on disk as a checkpoint leaves it.
pub(super) struct IndexOnDisk {
    pub(super) root: Root,
    pub(super) bits: u32,
    pub(super) entries: u64,
    pub(super) birth: WindowNumber,
    pub(super) filter: Option<Filter>,
}

/// Decides whether the index in memory is merged into the one on disk, and sets aside the space
/// for it. Gives the most entries that it will have, and the bits that name its pages.
fn reserve_spill(kernel: &Kernel, scheme: &dyn Scheme) -> Option<(u64, u32)> {
    let mut state = kernel.state.lock();
    let (most, bits, pages) = spill(kernel, scheme, &state)?;
    state.spilling_pages = pages;
    Some((most, bits))
}

/// The size that a spill of the index would have, when one is due and there is space for it:
/// entries, bits that name a page, pages.
pub(crate) fn spill(
    kernel: &Kernel,
    scheme: &dyn Scheme,
    state: &State,
) -> Option<(u64, u32, u64)> {
    let in_memory = {
        let index = kernel.index.lock();
        index.wants_spill().then(|| index.len())?
    };
    let old = &state.overlays.tables().state;
    let most = old.index_entries + in_memory;
    let bits = paged::bits_for(most).max(old.index_bits);
    // Leaves, the pages above them, and the zone table's.
    let pages = (1u64 << bits) * 11 / 10 + 16;
    has_spare(kernel, scheme, state, pages + kept(kernel, state, None))
        .then_some((most, bits, pages))
}

impl TableBuild<'_> {
    /// Merges the index in memory into the one on disk, when its share of memory is used up and
    /// there is space.
    pub(super) fn index(&mut self, scheme: &dyn Scheme) -> Result<IndexOnDisk> {
        let kernel = self.kernel;
        let old = &self.old.state;
        let unchanged = IndexOnDisk {
            root: old.index,
            bits: old.index_bits,
            entries: old.index_entries,
            birth: old.index_birth,
            filter: None,
        };
        let Some((most, bits)) = reserve_spill(kernel, scheme) else { return Ok(unchanged) };
        kernel.coverage.hit(Mark::IndexSpilled);
        let pages = 1u64 << bits;
        let Spill { memory, gone } = kernel.index.lock().begin_spill(most);
        let mut filter = Filter::new(most, kernel.settings.index_memory / 4);
        let mut entries = 0;
        let (mut segment, mut fresh) = (usize::MAX, Vec::new());
        let shift = bits - old.index_bits;
        let mut before: (u64, Vec<Entry>) = (u64::MAX, Vec::new());
        let leaves: Vec<u64> = (0..pages).collect();
        let root =
            self.rebuild(Table::Index, 0, &Root::default(), &leaves, &mut |leaf, _, page| {
                // The old page holds this one's entries and its neighbours', when the table
                // doubles.
                if before.0 != leaf >> shift {
                    // The index is a hint: what can't be read of it is found again or missed.
                    let found = kernel
                        .pages
                        .leaf(Table::Index, 0, &old.index, leaf >> shift)
                        .unwrap_or_default();
                    before = (
                        leaf >> shift,
                        found.map_or_else(Vec::new, |(_, page)| paged::entries(&page).collect()),
                    );
                }
                let (from, to) = (leaf << (HASH_BITS - bits), (leaf + 1) << (HASH_BITS - bits));
                let mut merged: Vec<Entry> = before
                    .1
                    .iter()
                    .filter(|entry| (from..to).contains(&entry.hash))
                    .copied()
                    .collect();
                let per_segment = 1u64 << (HASH_BITS - MemoryIndex::SEGMENTS.trailing_zeros());
                for number in from / per_segment..to.div_ceil(per_segment) {
                    if segment != number as usize {
                        (segment, fresh) = (number as usize, memory.segment(number as usize));
                    }
                    let first = fresh.partition_point(|entry| entry.hash < from);
                    merged.extend(fresh[first..].iter().take_while(|entry| entry.hash < to));
                }
                merged.sort_unstable();
                merged.dedup();
                merged.retain(|entry| gone.binary_search(entry).is_err());
                merged.iter().for_each(|entry| filter.insert(entry.hash));
                entries += merged.len().min(paged::PER_PAGE) as u64;
                paged::fill(page, &merged);
                Ok(true)
            })?;
        let space = &mut self.space;
        kernel.pages.walk(Table::Index, 0, &old.index, &mut |_, pointer, _| {
            space.release(pointer.address);
            Ok(())
        })?;
        kernel.state.lock().spilling_pages = 0;
        // Entries that had found no room are looked for again in the tables; until that is done the
        // table does not count as complete.
        let mut birth = self.birth;
        if memory.refused > 0 || !kernel.index_complete() {
            birth = old.index_birth;
        }
        if memory.refused > 0 {
            kernel.index_cursor.store(0, std::sync::atomic::Ordering::Relaxed);
            // Fragments of packs may be among them.
            kernel.fragments_known.store(old.packs == 0, std::sync::atomic::Ordering::Relaxed);
        }
        Ok(IndexOnDisk { root, bits, entries, birth, filter: Some(filter) })
    }
}
