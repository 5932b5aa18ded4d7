//! Reading pages, through a cache of bounded size.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use onefold_core::{Block, Disk, Error, Kind, Pba, Read, Result};
use parking_lot::{Mutex, MutexGuard};
use quick_cache::sync::Cache;

use super::held::{self, HeldLeaves};
use crate::{
    format::{
        Identity, in_place,
        page::{self, FANOUT, Page, PageId, Pointer, Table},
        superblock::Root,
    },
    hash::MixHash,
};

/// Pages read in one batch: enough to keep a disk busy, few enough to bound the memory of a batch.
const BATCH: usize = 256;

/// Fewest pages of the cache, so that one path of each tree always fits.
const CACHE_MIN: usize = 64;

/// Bytes of memory for a page in the cache: itself, its counts and the cache's entry.
const PAGE_MEMORY: u64 = 4096 + 128;

/// A leaf, and the pointer to it.
pub(crate) type Leaf = (Pointer, Arc<Page>);

/// The leaves of a table that hold some of its entries.
pub(crate) struct Holding {
    per_leaf: u64,
    /// Rising.
    numbers: Vec<u64>,
    leaves: Vec<Option<Leaf>>,
}

impl Holding {
    fn numbers(table: Table, entries: impl Iterator<Item = u64>) -> Vec<u64> {
        let mut numbers: Vec<u64> = entries.map(|entry| entry / table.per_leaf()).collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    }

    /// The leaf of one of the entries, and its place there. `None` where there is none, or it can't
    /// be read.
    pub(crate) fn get(&self, entry: u64) -> Option<(&Leaf, u64)> {
        let at = self.numbers.binary_search(&(entry / self.per_leaf)).ok()?;
        self.leaves[at].as_ref().map(|leaf| (leaf, entry % self.per_leaf))
    }
}

/// Sees the pages of a walk.
pub(crate) type See<'s> = &'s mut dyn FnMut(PageId, &Pointer, Result<Arc<Page>>) -> Result<()>;

/// Reads and caches table pages. A page is known by address and checksum, so that a reused address
/// is another page.
pub(crate) struct Pages {
    disk: Arc<dyn Disk>,
    identity: Identity,
    cache: Cache<(u64, u64), Arc<Page>, quick_cache::UnitWeighter, MixHash>,
    pub(crate) hits: AtomicU64,
    pub(crate) misses: AtomicU64,
    /// Leaves in place whose newest content is in memory alone, or not durable.
    held: Mutex<HeldLeaves>,
    compare_checksums: bool,
}

impl Pages {
    /// Pages of `disk`, of which up to `memory` bytes are kept.
    pub(crate) fn new(
        disk: Arc<dyn Disk>,
        identity: Identity,
        memory: u64,
        compare_checksums: bool,
    ) -> Pages {
        let capacity = ((memory / PAGE_MEMORY) as usize).max(CACHE_MIN);
        let options = quick_cache::OptionsBuilder::new()
            .estimated_items_capacity(capacity)
            .weight_capacity(capacity as u64)
            .shards(1)
            .build();
        let cache = match options {
            Ok(options) => {
                Cache::with_options(options, quick_cache::UnitWeighter, MixHash, Default::default())
            }
            Err(_) => Cache::with(
                capacity,
                capacity as u64,
                quick_cache::UnitWeighter,
                MixHash,
                Default::default(),
            ),
        };
        Pages {
            disk,
            identity,
            cache,
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            held: Mutex::default(),
            compare_checksums,
        }
    }

    /// The leaves in place that memory holds.
    pub(crate) fn held(&self) -> MutexGuard<'_, HeldLeaves> {
        self.held.lock()
    }

    /// The page in memory, if it is there.
    fn known(&self, pointer: &Pointer) -> Option<Arc<Page>> {
        let held = if pointer.in_place { self.held.lock().get(pointer) } else { None };
        held.or_else(|| self.cache.get(&held::key(pointer)))
    }

    /// The page that `pointer` names.
    ///
    /// # Errors
    /// `Io` or `Corrupt`.
    pub(crate) fn get(&self, id: PageId, pointer: &Pointer) -> Result<Arc<Page>> {
        if let Some(page) = self.known(pointer) {
            self.hits.fetch_add(1, Ordering::Relaxed);
            return Ok(page);
        }
        let mut wanted = vec![(id, *pointer, None)];
        self.load(&mut wanted, true)?;
        wanted
            .pop()
            .and_then(|(.., page)| page)
            .ok_or_else(|| Error::new(Kind::Io, "page vanished"))
    }

    /// Fills in the pages of a batch, reading the missing ones together; keeps them in the cache
    /// when `keep`.
    pub(crate) fn load(
        &self,
        wanted: &mut [(PageId, Pointer, Option<Arc<Page>>)],
        keep: bool,
    ) -> Result<()> {
        let mut missing = Vec::new();
        for (n, (_, pointer, page)) in wanted.iter_mut().enumerate() {
            *page = self.known(pointer);
            if page.is_none() {
                missing.push(n);
            }
        }
        self.hits.fetch_add((wanted.len() - missing.len()) as u64, Ordering::Relaxed);
        self.misses.fetch_add(missing.len() as u64, Ordering::Relaxed);
        for batch in missing.chunks(BATCH) {
            let pages: Vec<(PageId, Pointer)> =
                batch.iter().map(|&n| (wanted[n].0, wanted[n].1)).collect();
            let let_go = self.held.lock().let_go;
            for (&n, found) in batch.iter().zip(self.read(&pages)) {
                let (id, pointer, page) = &mut wanted[n];
                // A leaf that is being written may look damaged, or as it never was. Its writer
                // holds it, and then it is in the cache.
                let held = self.held.lock();
                let meanwhile = pointer.in_place && held.let_go != let_go;
                if let Some(newer) = held
                    .get(pointer)
                    .or_else(|| self.cache.get(&held::key(pointer)).filter(|_| meanwhile))
                {
                    *page = Some(newer);
                    continue;
                }
                // A device may fail once and answer then. A checkpoint that got no answer would
                // stop all writes.
                let again = |e: &Error| meanwhile || e.kind() == Kind::Io;
                let read = found
                    .or_else(|e| {
                        if again(&e) {
                            self.read(&[(*id, *pointer)]).pop().unwrap_or(Err(e))
                        } else {
                            Err(e)
                        }
                    })
                    .map_err(|e| e.context(format!("table page at block {}", pointer.address)))?;
                // A leaf that was held meanwhile is in the cache, newer than the one that was read.
                if keep && (!pointer.in_place || held.let_go == let_go) {
                    self.cache.insert(held::key(pointer), read.clone());
                }
                *page = Some(read);
            }
        }
        Ok(())
    }

    /// The identity of the page at an address, as its own header tells it.
    ///
    /// # Errors
    /// `Io`; `Corrupt` when there is no whole page.
    pub(crate) fn header_at(&self, at: Pba) -> Result<(PageId, Pointer)> {
        let mut buffer = Block::zeroed_vec(1);
        let mut reads = [Read::new(at, &mut buffer)];
        if at.0 < self.disk.blocks() {
            self.disk.read(&mut reads);
        }
        let [read] = reads;
        read.result?;
        page::header(&self.identity, at, &mut buffer[0].0).ok_or_else(|| {
            Error::new(Kind::Corrupt, format!("there is no page of a table at block {at}"))
        })
    }

    /// Reads pages together, each with its own result.
    fn read(&self, pages: &[(PageId, Pointer)]) -> Vec<Result<Arc<Page>>> {
        let beyond = |at: Pba| at.0 >= self.disk.blocks();
        if pages.iter().any(|(_, pointer)| beyond(pointer.address)) {
            let error = Error::new(Kind::Corrupt, "a table page lies beyond the end of the disk");
            return vec![Err(error); pages.len()];
        }
        let mut buffer = Block::zeroed_vec(pages.len());
        let mut reads: Vec<Read<'_>> = pages
            .iter()
            .zip(buffer.chunks_mut(1))
            .map(|((_, pointer), into)| Read::new(pointer.address, into))
            .collect();
        self.disk.read(&mut reads);
        let results: Vec<Result<()>> = reads.into_iter().map(|read| read.result).collect();
        let found = pages.iter().zip(results).zip(&mut buffer);
        found
            .map(|(((id, pointer), result), block)| {
                result?;
                if pointer.in_place {
                    return in_place::decode(&self.identity, *id, pointer, block).map(Arc::from);
                }
                if self.compare_checksums {
                    page::verify(&self.identity, *id, pointer, &mut block.0)?;
                } else if !page::open(&self.identity, pointer.address, &mut block.0) {
                    return Err(Error::new(Kind::Corrupt, "a table page is damaged"));
                }
                Ok(Arc::new(block.0))
            })
            .collect()
    }

    /// Holds leaves in place in memory, so that they can be changed. Nobody else may change them
    /// meanwhile.
    ///
    /// # Errors
    /// `Io` or `Corrupt`.
    pub(crate) fn hold(&self, leaves: &[(PageId, Pointer)]) -> Result<()> {
        for batch in leaves.chunks(BATCH) {
            let mut wanted: Vec<_> =
                batch.iter().map(|&(id, pointer)| (id, pointer, None)).collect();
            self.load(&mut wanted, false)?;
            let mut held = self.held.lock();
            wanted.into_iter().for_each(|(id, pointer, page)| {
                page.into_iter().for_each(|page| held.hold(id, pointer, page))
            });
        }
        Ok(())
    }

    /// A flush with this number succeeded: leaves whose newest version it made durable need not be
    /// held any more.
    pub(crate) fn flushed(&self, flush: u64) {
        let mut held = self.held.lock();
        for (pointer, page) in held.flushed(flush) {
            self.cache.insert(held::key(&pointer), page);
        }
    }

    /// Puts a page that was just written into the cache.
    pub(crate) fn insert(&self, pointer: &Pointer, page: Arc<Page>) {
        self.cache.insert(held::key(pointer), page);
    }

    /// Bytes of the pages in memory.
    pub(crate) fn memory(&self) -> u64 {
        self.cache.len() as u64 * PAGE_MEMORY + self.held.lock().memory()
    }

    /// Pointers to the leaves numbered `leaves` (rising), level by level, each level read together.
    /// `None` where there is no leaf.
    pub(crate) fn leaf_pointers(
        &self,
        table: Table,
        volume: u32,
        root: &Root,
        leaves: &[u64],
    ) -> Result<Vec<Option<Pointer>>> {
        let Some(top) = root.height.checked_sub(1) else { return Ok(vec![None; leaves.len()]) };
        let beyond =
            |leaf: u64| FANOUT.checked_pow(u32::from(top)).is_some_and(|reach| leaf >= reach);
        let mut at: Vec<Option<Pointer>> =
            leaves.iter().map(|&leaf| (!beyond(leaf)).then_some(root.page)).collect();
        for level in (1..=top).rev() {
            let below = FANOUT.pow(u32::from(level) - 1);
            // Neighbouring leaves share their path: each inner page is asked for once.
            let mut wanted: Vec<(PageId, Pointer, Option<Arc<Page>>)> = Vec::new();
            let mut places = Vec::with_capacity(leaves.len());
            for (&leaf, pointer) in leaves.iter().zip(&at) {
                places.push(pointer.map(|pointer| {
                    let id = PageId { table, volume, level, index: leaf / below / FANOUT };
                    if wanted.last().is_none_or(|last| last.0 != id) {
                        wanted.push((id, pointer, None));
                    }
                    wanted.len() - 1
                }));
            }
            self.load(&mut wanted, true)?;
            for ((&leaf, pointer), place) in leaves.iter().zip(&mut at).zip(places) {
                *pointer = place
                    .and_then(|n| wanted[n].2.as_ref())
                    .map(|page| page::pointer(page, leaf / below % FANOUT));
                if pointer.is_some_and(|pointer| pointer.is_none()) {
                    *pointer = None;
                }
            }
        }
        Ok(at)
    }

    /// The leaves numbered `leaves` (rising). `None` where there is none: all its entries are
    /// empty.
    pub(crate) fn leaves(
        &self,
        table: Table,
        volume: u32,
        root: &Root,
        leaves: &[u64],
        keep: bool,
    ) -> Result<Vec<Option<Leaf>>> {
        let pointers = self.leaf_pointers(table, volume, root, leaves)?;
        let mut wanted: Vec<_> = leaves
            .iter()
            .zip(&pointers)
            .filter_map(|(&index, pointer)| {
                pointer.map(|pointer| (PageId { table, volume, level: 0, index }, pointer, None))
            })
            .collect();
        self.load(&mut wanted, keep)?;
        let mut loaded = wanted.into_iter();
        Ok(pointers
            .into_iter()
            .map(|pointer| {
                pointer?;
                let (_, pointer, page) = loaded.next()?;
                page.map(|page| (pointer, page))
            })
            .collect())
    }

    /// The leaves that hold `entries`, in any order, read together.
    pub(crate) fn holding(
        &self,
        table: Table,
        volume: u32,
        root: &Root,
        entries: impl Iterator<Item = u64>,
    ) -> Result<Holding> {
        let numbers = Holding::numbers(table, entries);
        let leaves = self.leaves(table, volume, root, &numbers, true)?;
        Ok(Holding { per_leaf: table.per_leaf(), numbers, leaves })
    }

    /// As [`holding`](Self::holding), those that can be read.
    pub(crate) fn holding_if_whole(
        &self,
        table: Table,
        volume: u32,
        root: &Root,
        entries: impl Iterator<Item = u64>,
    ) -> Holding {
        let numbers = Holding::numbers(table, entries);
        let leaves = self.leaves(table, volume, root, &numbers, true).unwrap_or_else(|_| {
            numbers
                .iter()
                .map(|&leaf| self.leaf(table, volume, root, leaf).unwrap_or_default())
                .collect()
        });
        Holding { per_leaf: table.per_leaf(), numbers, leaves }
    }

    /// The leaf numbered `leaf`.
    pub(crate) fn leaf(
        &self,
        table: Table,
        volume: u32,
        root: &Root,
        leaf: u64,
    ) -> Result<Option<(Pointer, Arc<Page>)>> {
        Ok(self.leaves(table, volume, root, &[leaf], true)?.pop().flatten())
    }

    /// Pointer to an inner page of the old tree. `None` where there is none.
    pub(crate) fn inner_pointer(
        &self,
        table: Table,
        volume: u32,
        root: &Root,
        level: u8,
        index: u64,
    ) -> Result<Option<Pointer>> {
        let Some(top) = root.height.checked_sub(1).filter(|&top| top >= level) else {
            return Ok(None);
        };
        if FANOUT.checked_pow(u32::from(top - level)).is_some_and(|reach| index >= reach) {
            return Ok(None);
        }
        let mut at = root.page;
        for above in (level + 1..=top).rev() {
            let own = index / FANOUT.pow(u32::from(above - level));
            let page = self.get(PageId { table, volume, level: above, index: own }, &at)?;
            at = page::pointer(&page, index / FANOUT.pow(u32::from(above - level) - 1) % FANOUT);
            if at.is_none() {
                return Ok(None);
            }
        }
        Ok(Some(at))
    }

    /// The number of the first leaf from `leaf` on. `None` when there is none.
    pub(crate) fn next_leaf(
        &self,
        table: Table,
        volume: u32,
        root: &Root,
        leaf: u64,
    ) -> Result<Option<u64>> {
        let Some(top) = root.height.checked_sub(1) else { return Ok(None) };
        if FANOUT.checked_pow(u32::from(top)).is_some_and(|reach| leaf >= reach) {
            return Ok(None);
        }
        self.next_leaf_below(PageId { table, volume, level: top, index: 0 }, &root.page, leaf)
    }

    fn next_leaf_below(&self, id: PageId, pointer: &Pointer, leaf: u64) -> Result<Option<u64>> {
        if id.level == 0 {
            return Ok(Some(id.index));
        }
        let page = self.get(id, pointer)?;
        let below = FANOUT.pow(u32::from(id.level) - 1);
        let first = (leaf / below).saturating_sub(id.index * FANOUT);
        for slot in first..FANOUT {
            let child = page::pointer(&page, slot);
            let index = id.index * FANOUT + slot;
            if !child.is_none()
                && let Some(found) =
                    self.next_leaf_below(PageId { level: id.level - 1, index, ..id }, &child, leaf)?
            {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Visits every page of a tree, parents first; used by verifiers. `visit` sees the page and
    /// says whether to go on below it.
    pub(crate) fn walk(
        &self,
        table: Table,
        volume: u32,
        root: &Root,
        visit: See<'_>,
    ) -> Result<()> {
        let Some(top) = root.height.checked_sub(1) else { return Ok(()) };
        self.walk_below(PageId { table, volume, level: top, index: 0 }, &root.page, visit)
    }

    fn walk_below(&self, id: PageId, pointer: &Pointer, visit: See<'_>) -> Result<()> {
        let page = self.get(id, pointer);
        visit(id, pointer, page.clone())?;
        let (Ok(page), 1..) = (page, id.level) else { return Ok(()) };
        let children: Vec<(PageId, Pointer)> = (0..FANOUT)
            .map(|slot| {
                (
                    PageId { level: id.level - 1, index: id.index * FANOUT + slot, ..id },
                    page::pointer(&page, slot),
                )
            })
            .filter(|(_, child)| !child.is_none())
            .collect();
        if id.level == 1 {
            let mut wanted: Vec<_> =
                children.iter().map(|&(id, pointer)| (id, pointer, None)).collect();
            // Read ahead; whoever is damaged is read again alone, so that the error names it.
            let _ = self.load(&mut wanted, true);
        }
        children.iter().try_for_each(|(child, pointer)| self.walk_below(*child, pointer, visit))
    }
}
