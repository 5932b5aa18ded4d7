//! The map of a volume (dedupv1's block index): where the mapping of each block of 128 KiB lies, as
//! shadow-paged leaves.
//!
//! A leaf names the mappings of 512 blocks, 64 MiB of the volume. In memory a map is its leaves
//! that name something. A leaf with few mappings is a list of them, 16 bytes each; with more it has
//! 8 bytes for each of its blocks. So the memory for a mapping stays in proportion to the bytes by
//! which the log tells it, wherever in the volume it is. On the disk each leaf is a page of the file
//! `maps`, written twice, side by side; the snapshot says which page.
//!
//! *Crash argument:* a snapshot writes the leaves that changed to pages that neither it nor the one
//! before names, and its label comes after their sync. Pages that it names no longer are used again
//! by the one after the next, so that the snapshot before can take the place of one that rotted.
//! The second copies are written when the first ones are durable: neighbouring pages go out in one
//! write otherwise, and a write that the medium loses would cost both.
//!
//! Leaves may be written ahead of a snapshot, to pages that this snapshot could write. No directory
//! names them before its label, and other processes do not know of them: the snapshot names only
//! those whose copies are both there still, looked at under the commit lock. A leaf that was written
//! ahead counts as changed until then.
//!
//! *Invariant:* a value of this type is the same in every process that applied the same records to
//! the same snapshot.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    ops::Range,
    sync::Arc,
};

use onefold_core::{File, Files, Kind, Result};

use crate::{
    format::{
        Address, Identity,
        bytes::{Reader, Writer, corrupt},
        names::open_or_create,
        record::{ENTRY_MEMORY, packed, unpacked},
        sealing::What,
    },
    memory::{Allowance, Drawn},
    rules::Rule,
    settings::Settings,
};

/// Blocks that a leaf names.
pub(crate) const LEAF_BLOCKS: usize = 512;

/// Memory of a leaf without its mappings: its place in the map, whose nodes may be half empty, and what
/// it takes from the allocator beside them.
const LEAF_FIXED: u64 = 208;

/// Memory of a leaf with many mappings.
pub(crate) const LEAF_MEMORY: u64 = 8 * LEAF_BLOCKS as u64 + LEAF_FIXED;

/// Mappings that a leaf keeps as a list, at most. The last doubling of the list takes less than the log
/// tells for its mappings, 24 bytes each, times what a reader allows for a byte.
const FEW_MAX: usize = 32;

/// Memory of a mapping in a list.
const FEW_MEMORY: u64 = size_of::<(u16, u64)>() as u64;

pub(crate) const MAPS: &str = "maps";

/// Pages of the file of maps at most: 16 TiB.
pub(crate) const PAGES_MAX: u32 = 1 << 31;

const MAGIC: &[u8; 8] = b"ONEFLEAF";

const PAGE_BYTES: usize = 4096;

/// Bytes of one entry on the disk.
const ENTRY_BYTES: usize = 7;

/// Bytes of both copies.
const STRIDE: u64 = 2 * PAGE_BYTES as u64;

/// Where a leaf lies on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Page {
    /// The page of the file.
    pub number: u32,
    /// The snapshot that wrote it.
    pub written: u64,
    /// The volume that it was written for; clones of the volume name it too.
    pub owner: u64,
    /// The first half of its tag in a sealed archive, 0 in a plain one. Two processes may write one page
    /// for one snapshot, when the first one crashes; this tells which of the two counts.
    pub proof: u64,
}

impl Page {
    /// True when `found` is this page. Without a proof any page of its number, snapshot and volume is.
    fn is(&self, found: &Page) -> bool {
        *self == Page { proof: if self.proof == 0 { 0 } else { found.proof }, ..*found }
    }
}

/// Numbers of mappings.
#[derive(Debug)]
enum Numbers {
    /// The numbers that are not 0, by their blocks in the leaf.
    Few(Vec<(u16, u64)>),
    /// The numbers of all blocks of the leaf; 0 for zeroes.
    All(Box<[u64]>),
}

/// The mappings of a leaf.
#[derive(Debug)]
struct Entries {
    numbers: Numbers,
    /// Their memory, which goes back to the budget with them.
    drawn: Drawn,
}

impl Default for Entries {
    fn default() -> Entries {
        Entries { numbers: Numbers::Few(Vec::new()), drawn: Drawn::default() }
    }
}

impl PartialEq for Entries {
    fn eq(&self, other: &Entries) -> bool {
        self.mapped().eq(other.mapped())
    }
}

impl Eq for Entries {}

impl Entries {
    /// These mappings, by rising blocks in the leaf; `used` says how many.
    fn of(
        mapped: impl Iterator<Item = (usize, u64)>,
        used: usize,
        memory: &Allowance,
    ) -> Result<Entries> {
        if used > FEW_MAX {
            let drawn = memory.draw(LEAF_MEMORY)?;
            let mut all = vec![0; LEAF_BLOCKS].into_boxed_slice();
            mapped.for_each(|(n, number)| all[n] = number);
            return Ok(Entries { numbers: Numbers::All(all), drawn });
        }
        let drawn = memory.draw(LEAF_FIXED + FEW_MEMORY * used as u64)?;
        let mut few = Vec::with_capacity(used);
        few.extend(mapped.map(|(n, number)| (n as u16, number)));
        Ok(Entries { numbers: Numbers::Few(few), drawn })
    }

    /// The number of a block of the leaf.
    fn get(&self, n: usize) -> u64 {
        match &self.numbers {
            Numbers::Few(few) => {
                few.binary_search_by_key(&n, |&(at, _)| at.into()).map_or(0, |found| few[found].1)
            }
            Numbers::All(all) => all[n],
        }
    }

    /// Changes the number of a block; gives the old one. Nothing is changed on an error.
    fn set(&mut self, n: usize, to: u64) -> Result<u64> {
        let few = match &mut self.numbers {
            Numbers::All(all) => return Ok(std::mem::replace(&mut all[n], to)),
            Numbers::Few(few) => few,
        };
        match few.binary_search_by_key(&n, |&(at, _)| at.into()) {
            Ok(found) if to == 0 => Ok(few.remove(found).1),
            Ok(found) => Ok(std::mem::replace(&mut few[found].1, to)),
            Err(_) if to == 0 => Ok(0),
            Err(_) if few.len() >= FEW_MAX => {
                self.drawn.more(LEAF_MEMORY - LEAF_FIXED)?;
                let mut all = vec![0; LEAF_BLOCKS].into_boxed_slice();
                few.iter().for_each(|&(at, number)| all[usize::from(at)] = number);
                all[n] = to;
                self.numbers = Numbers::All(all);
                Ok(0)
            }
            Err(place) => {
                if few.len() == few.capacity() {
                    let more = few.len().max(1);
                    self.drawn.more(FEW_MEMORY * more as u64)?;
                    few.reserve_exact(more);
                }
                few.insert(place, (n as u16, to));
                Ok(0)
            }
        }
    }

    /// The blocks of the leaf that have a mapping, and its number.
    fn mapped(&self) -> impl Iterator<Item = (usize, u64)> {
        let (few, all): (&[_], &[u64]) = match &self.numbers {
            Numbers::Few(few) => (few, &[]),
            Numbers::All(all) => (&[], all),
        };
        let few = few.iter().map(|&(n, number)| (usize::from(n), number));
        few.chain(all.iter().copied().enumerate()).filter(|&(_, number)| number != 0)
    }

    /// The numbers of all blocks of the leaf.
    fn all(&self) -> Vec<u64> {
        let mut all = vec![0; LEAF_BLOCKS];
        self.mapped().for_each(|(n, number)| all[n] = number);
        all
    }
}

/// A leaf.
#[derive(Clone, Debug)]
pub(crate) struct Leaf {
    entries: Arc<Entries>,
    /// Entries that are not 0.
    used: u32,
    /// Its page, unless it changed since.
    page: Option<Page>,
    /// The page was written ahead: no snapshot names it.
    is_ahead: bool,
}

impl Leaf {
    /// Its page, if a snapshot names it.
    fn named(&self) -> Option<Page> {
        self.page.filter(|_| !self.is_ahead)
    }
}

impl PartialEq for Leaf {
    fn eq(&self, other: &Leaf) -> bool {
        self.entries == other.entries && self.named() == other.named()
    }
}

impl Eq for Leaf {}

/// The map of one volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockIndex {
    leaves: BTreeMap<u32, Leaf>,
    /// Leaves that no snapshot names as they are.
    changed: usize,
}

/// Pages of the file that must not be written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pages {
    /// Pages of the file.
    pub count: u32,
    /// Named by the snapshot before the last, and not by the last.
    pub replaced: Vec<u32>,
    /// Named by the last snapshot, and not needed any more.
    pub gone: Vec<u32>,
    /// The budget of leaves that are made or copied.
    pub(crate) memory: Allowance,
}

impl BlockIndex {
    /// The place of a block's mapping; `None` for zeroes.
    #[must_use]
    pub fn get(&self, block: u64) -> Option<Address> {
        let leaf = self.leaves.get(&u32::try_from(block / LEAF_BLOCKS as u64).ok()?)?;
        unpacked(leaf.entries.get(block as usize % LEAF_BLOCKS))
    }

    /// Changes a block's mapping; gives the old one. A leaf that a clone of the volume has too, or a
    /// reader of the tables as they were, is copied first.
    ///
    /// # Errors
    /// `Memory` when there is none for a leaf more.
    pub(crate) fn set(
        &mut self,
        block: u64,
        to: Option<Address>,
        pages: &mut Pages,
    ) -> Result<Option<Address>> {
        let number = (block / LEAF_BLOCKS as u64) as u32;
        let (n, to) = (block as usize % LEAF_BLOCKS, packed(to));
        let leaf = match self.leaves.entry(number) {
            Entry::Vacant(_) if to == 0 => return Ok(None),
            Entry::Vacant(entry) => {
                let entries = Entries::of(std::iter::once((n, to)), 1, &pages.memory)?;
                let entries = Arc::new(entries);
                entry.insert(Leaf { entries, used: 1, page: None, is_ahead: false });
                self.changed += 1;
                return Ok(None);
            }
            Entry::Occupied(entry) => entry.into_mut(),
        };
        let old = match Arc::get_mut(&mut leaf.entries) {
            Some(entries) => entries.set(n, to)?,
            None => {
                let (mapped, used) = (leaf.entries.mapped(), leaf.used as usize);
                let mut copy = Entries::of(mapped, used, &pages.memory)?;
                let old = copy.set(n, to)?;
                leaf.entries = Arc::new(copy);
                old
            }
        };
        if let Some(named) = leaf.named() {
            pages.gone.push(named.number);
            self.changed += 1;
        }
        (leaf.page, leaf.is_ahead) = (None, false);
        leaf.used = leaf.used + u32::from(to != 0) - u32::from(old != 0);
        if leaf.used == 0 {
            self.leaves.remove(&number);
            self.changed -= 1;
        }
        Ok(unpacked(old))
    }

    /// The blocks of a range that have a mapping, and where it is.
    pub fn mapped(&self, blocks: Range<u64>) -> impl Iterator<Item = (u64, Address)> {
        let first = u32::try_from(blocks.start / LEAF_BLOCKS as u64).unwrap_or(u32::MAX);
        let last = u32::try_from(blocks.end / LEAF_BLOCKS as u64).unwrap_or(u32::MAX);
        let leaves = self.leaves.range(first..=last.max(first));
        let all = leaves.flat_map(|(&number, leaf)| {
            let base = u64::from(number) * LEAF_BLOCKS as u64;
            leaf.entries
                .mapped()
                .filter_map(move |(n, entry)| Some((base + n as u64, unpacked(entry)?)))
        });
        all.filter(move |(block, _)| blocks.contains(block))
    }

    /// The first block from `block` on that may have a mapping, by leaves.
    #[must_use]
    pub fn next_leaf(&self, block: u64) -> Option<u64> {
        let number = u32::try_from(block / LEAF_BLOCKS as u64).ok()?;
        self.leaves
            .range(number..)
            .next()
            .map(|(&leaf, _)| block.max(u64::from(leaf) * LEAF_BLOCKS as u64))
    }

    /// Blocks that have a mapping.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.leaves.values().map(|leaf| u64::from(leaf.used)).sum()
    }

    /// Leaves that changed since the last snapshot of the tables.
    pub(crate) fn changed_leaves(&self) -> usize {
        self.changed
    }

    /// Changed leaves that were not written ahead.
    pub(crate) fn unwritten_leaves(&self) -> usize {
        if self.changed == 0 {
            return 0;
        }
        self.leaves.values().filter(|leaf| leaf.page.is_none()).count()
    }

    /// The leaves that have a page which a snapshot names, and where it is.
    pub(crate) fn pages(&self) -> impl Iterator<Item = (u32, Page)> {
        self.leaves.iter().filter_map(|(&number, leaf)| Some((number, leaf.named()?)))
    }

    /// The leaves that were written ahead, and where.
    fn ahead(&self) -> impl Iterator<Item = (u32, &Leaf, Page)> {
        // Each of them counts as changed.
        let leaves = (self.changed > 0).then_some(&self.leaves).into_iter().flatten();
        leaves.filter_map(|(&at, leaf)| Some((at, leaf, leaf.page.filter(|_| leaf.is_ahead)?)))
    }

    /// Leaves count as not written that were written ahead and are lost.
    fn forget_ahead(&mut self, is_lost: &dyn Fn(u32) -> bool) {
        for (_, leaf) in self.leaves.iter_mut().filter(|(at, leaf)| leaf.is_ahead && is_lost(**at))
        {
            (leaf.page, leaf.is_ahead) = (None, false);
        }
    }

    /// Leaves.
    pub(crate) fn leaves(&self) -> u64 {
        self.leaves.len() as u64
    }

    /// Writes the page of each leaf; all leaves have one. Where there may be clones, the volume that
    /// the page was written for stands with it.
    pub(crate) fn encode(&self, w: &mut Writer, clones: bool) {
        w.u32(self.leaves.len() as u32);
        for (&number, leaf) in &self.leaves {
            let page =
                leaf.page.unwrap_or(Page { number: u32::MAX, written: 0, owner: 0, proof: 0 });
            w.u32(number).u32(page.number).u64(page.written);
            if clones {
                w.u64(page.owner);
            }
        }
    }

    /// The directory of the map of volume `id`, whose leaves [`load`] reads.
    pub(crate) fn decode(r: &mut Reader<'_>, id: u64, clones: bool) -> Result<BlockIndex> {
        let mut index = BlockIndex::default();
        for _ in 0..r.count(if clones { 24 } else { 16 }, ENTRY_MEMORY)? {
            let (leaf, number, written) = (r.u32()?, r.u32()?, r.u64()?);
            let owner = if clones { r.u64()? } else { id };
            if number >= PAGES_MAX {
                return Err(corrupt("a leaf of a map has a page beyond the end of the file"));
            }
            let page = Page { number, written, owner, proof: 0 };
            let (entries, page) = (Arc::default(), Some(page));
            index.leaves.insert(leaf, Leaf { entries, used: 0, page, is_ahead: false });
        }
        Ok(index)
    }

    /// The proofs of the pages that [`decode`](Self::decode) read, in the order of [`pages`](Self::pages).
    pub(crate) fn set_proofs(&mut self, proofs: &mut impl Iterator<Item = u64>) {
        let pages = self.leaves.values_mut().filter_map(|leaf| leaf.page.as_mut());
        pages.zip(proofs).for_each(|(page, proof)| page.proof = proof);
    }
}

/// The maps of volumes by their numbers.
type Maps = Vec<(u64, Arc<BlockIndex>)>;

/// Writes the leaves that changed, for snapshot `number`, of the indexes of volumes by their
/// numbers; gives those whose leaves have pages now. Durable on return, and named when the snapshot
/// is.
pub(crate) fn write(
    files: &dyn Files,
    identity: &Identity,
    number: u64,
    pages: &mut Pages,
    mut indexes: Maps,
    settings: &Settings,
) -> Result<Maps> {
    if settings.keeps(Rule::LeavesAheadLookedAt) {
        forget_lost_ahead(files, identity, &mut indexes)?;
    }
    let placing = Placing { files, identity, number, settings };
    placing.place(pages, &mut indexes, usize::MAX)?;
    indexes.retain(|(_, index)| index.changed > 0);
    for (_, index) in &mut indexes {
        let index = Arc::make_mut(index);
        index.changed = 0;
        for leaf in index.leaves.values_mut() {
            leaf.is_ahead = false;
            let page = leaf.page.map_or(0, |page| page.number + 1);
            pages.count = pages.count.max(page);
        }
    }
    pages.replaced = std::mem::take(&mut pages.gone);
    Ok(indexes)
}

/// Writes some leaves that changed ahead of snapshot `number`, `most` at most, to pages that no snapshot
/// names. Durable on return. They count as changed until [`write`] looked whether they are still there.
pub(crate) fn write_ahead(
    files: &dyn Files,
    identity: &Identity,
    (number, most): (u64, usize),
    pages: &Pages,
    mut indexes: Maps,
    settings: &Settings,
) -> Result<Maps> {
    Placing { files, identity, number, settings }.place(pages, &mut indexes, most)?;
    Ok(indexes)
}

/// Leaves that were written ahead count as not written.
pub(crate) fn forget_ahead(index: &mut Arc<BlockIndex>) {
    if index.ahead().next().is_some() {
        Arc::make_mut(index).forget_ahead(&|_| true);
    }
}

/// Leaves that were written ahead count as not written, where another process has written over a copy of
/// them since.
fn forget_lost_ahead(files: &dyn Files, identity: &Identity, indexes: &mut Maps) -> Result<()> {
    let mut file = None;
    for (_, index) in indexes {
        let mut lost = BTreeSet::new();
        for (at, leaf, page) in index.ahead() {
            let open: &Arc<dyn File> = match &file {
                Some(file) => file,
                None => match files.open(MAPS) {
                    Err(error) if error.kind() == Kind::NotFound => {
                        lost.insert(at);
                        continue;
                    }
                    opened => file.insert(opened?),
                },
            };
            let copies = whole_copies(&**open, identity, page.number, Some((at, page)))?;
            // Another process may have written the leaf of the same volume there, which has changed since.
            let written = leaf_page(at, page, &leaf.entries.all());
            let is_it = |copy: &Option<Vec<u8>>| {
                copy.as_ref().is_some_and(|bytes| bytes.starts_with(&written))
            };
            if !copies.iter().all(is_it) {
                lost.insert(at);
            }
        }
        if !lost.is_empty() {
            Arc::make_mut(index).forget_ahead(&|at| lost.contains(&at));
        }
    }
    Ok(())
}

/// Gives leaves that changed their pages.
struct Placing<'a> {
    files: &'a dyn Files,
    identity: &'a Identity,
    /// The snapshot that will name them.
    number: u64,
    settings: &'a Settings,
}

impl Placing<'_> {
    /// Writes leaves without a page, `most` at most, to pages that neither the last snapshot nor the one
    /// before names. Durable on return.
    fn place(&self, pages: &Pages, indexes: &mut Maps, most: usize) -> Result<()> {
        let Placing { files, identity, number, settings } = *self;
        let clones_keep = settings.keeps(Rule::ClonePagesKept);
        // A page that nobody else names any more stays as long as a clone names it.
        let named = indexes.iter().flat_map(|(id, index)| {
            let pages = index.leaves.values().filter_map(|leaf| leaf.page);
            pages.filter(move |page| clones_keep || page.owner == *id).map(|page| page.number)
        });
        let busy: BTreeSet<u32> =
            named.chain(pages.gone.iter().copied()).chain(pages.replaced.iter().copied()).collect();
        let mut free = (0..=u32::MAX).filter(|page| !busy.contains(page));
        let mut file: Option<Arc<dyn File>> = None;
        let is_first =
            pages.count == 0 && indexes.iter().all(|(_, index)| index.ahead().next().is_none());
        // Clones of a leaf that has no page yet get the page of the first of them.
        let mut written: BTreeMap<(u32, *const Entries), Page> = BTreeMap::new();
        for (id, index) in indexes.iter_mut().filter(|(_, index)| index.changed > 0) {
            let index = Arc::make_mut(index);
            for (&at, leaf) in index.leaves.iter_mut().filter(|(_, leaf)| leaf.page.is_none()) {
                leaf.is_ahead = true;
                let shared = (at, Arc::as_ptr(&leaf.entries));
                if let Some(page) = written.get(&shared) {
                    leaf.page = Some(*page);
                    continue;
                }
                if written.len() >= most {
                    leaf.is_ahead = false;
                    break;
                }
                let page = free.next().ok_or_else(|| corrupt("the file of maps is too long"))?;
                let page = Page { number: page, written: number, owner: *id, proof: 0 };
                let open = match &file {
                    Some(file) => file,
                    none => {
                        let _ = none;
                        file.insert(open_or_create(files, MAPS, is_first)?)
                    }
                };
                let (bytes, proof) = encode_leaf(identity, at, page, &leaf.entries.all())?;
                open.write_at(u64::from(page.number) * STRIDE, &bytes)?;
                let proof = if settings.keeps(Rule::MapPagesProven) { proof } else { 0 };
                let page = Page { proof, ..page };
                leaf.page = Some(page);
                written.insert(shared, page);
            }
        }
        if let Some(file) = file {
            file.sync()?;
            let written = written.values().map(|page| page.number).collect();
            self.write_second_copies(&*file, indexes, &written)?;
            file.sync()?;
        }
        Ok(())
    }

    /// Writes the second copy of each leaf that was `written` now.
    fn write_second_copies(
        &self,
        file: &dyn File,
        indexes: &Maps,
        written: &BTreeSet<u32>,
    ) -> Result<()> {
        for (id, index) in indexes.iter().filter(|(_, index)| index.changed > 0) {
            for (&at, leaf) in index.leaves.iter().filter(|(_, leaf)| leaf.is_ahead) {
                let is_new = |page: &Page| page.owner == *id && written.contains(&page.number);
                let Some(page) = leaf.page.filter(is_new) else { continue };
                let (bytes, _) = encode_leaf(self.identity, at, page, &leaf.entries.all())?;
                file.write_at(u64::from(page.number) * STRIDE + PAGE_BYTES as u64, &bytes)?;
            }
        }
        Ok(())
    }
}

/// The index of a volume, as a snapshot names it.
pub(crate) struct Named<'a> {
    /// The volume's number.
    pub(crate) id: u64,
    /// Its name, for messages about damage.
    pub(crate) name: &'a str,
    /// Its directory of leaves.
    pub(crate) index: &'a BlockIndex,
    /// The index as the process knew it before: unchanged leaves are taken from it.
    pub(crate) before: Option<&'a BlockIndex>,
}

/// Reads the leaves of indexes that a snapshot names.
pub(crate) fn load<'a>(
    files: &dyn Files,
    identity: &Identity,
    pages: &mut Pages,
    named: impl Iterator<Item = Named<'a>>,
    drawn: &Drawn,
) -> Result<Vec<(u64, Arc<BlockIndex>)>> {
    pages.memory = drawn.allowance();
    let mut file = None;
    let mut read = Vec::new();
    // A page that clones share is read once, and held once.
    let mut shared: BTreeMap<(Page, u32), Leaf> = BTreeMap::new();
    for Named { id, name, index, before } in named {
        let (mut index, mut changed) = (index.clone(), 0);
        for (&at, leaf) in &mut index.leaves {
            let Some(page) = leaf.page else { continue };
            if let Some(same) = before
                .and_then(|before| before.leaves.get(&at))
                .filter(|known| known.named() == Some(page))
            {
                *leaf = same.clone();
                continue;
            }
            if let Some(known) = shared.get(&(page, at)) {
                *leaf = known.clone();
                changed += usize::from(leaf.page.is_none());
                continue;
            }
            let lost = || {
                corrupt(format!(
                    "the map of volume '{name}' lost the page of block {}",
                    u64::from(at) * 512
                ))
            };
            let open: &Arc<dyn File> = match &file {
                Some(file) => file,
                None => file.insert(
                    files
                        .open(MAPS)
                        .map_err(|e| if e.kind() == Kind::NotFound { lost() } else { e })?,
                ),
            };
            let copy = |n: u64| -> Result<Option<Vec<u64>>> {
                let mut bytes = vec![0; PAGE_BYTES];
                match open
                    .read_at(u64::from(page.number) * STRIDE + n * PAGE_BYTES as u64, &mut bytes)
                {
                    Err(error) if error.kind() == Kind::Io => Ok(None),
                    read => {
                        bytes.truncate(read?);
                        Ok(decode_leaf(identity, at, page, &mut bytes))
                    }
                }
            };
            let entries = match copy(0)? {
                Some(entries) => entries,
                // The next snapshot writes it anew.
                None => {
                    leaf.page = None;
                    changed += 1;
                    pages.gone.push(page.number);
                    copy(1)?.ok_or_else(lost)?
                }
            };
            leaf.used = entries.iter().filter(|&&entry| entry != 0).count() as u32;
            let mapped = entries.into_iter().enumerate().filter(|&(_, entry)| entry != 0);
            let entries = Entries::of(mapped, leaf.used as usize, &drawn.allowance())?;
            leaf.entries = Arc::new(entries);
            shared.insert((page, at), leaf.clone());
        }
        index.changed = changed;
        read.push((id, Arc::new(index)));
    }
    Ok(read)
}

/// The bytes of a page without its checksum.
fn leaf_page(leaf: u32, page: Page, entries: &[u64]) -> Vec<u8> {
    let mut w = Writer(Vec::with_capacity(PAGE_BYTES));
    w.raw(MAGIC).u64(page.owner).u32(leaf).u32(page.number).u64(page.written);
    entries.iter().for_each(|entry| {
        w.raw(&entry.to_le_bytes()[..ENTRY_BYTES]);
    });
    w.0.resize(PAGE_BYTES - 8, 0);
    w.0
}

/// The bytes of a page, and what its directory keeps to prove it.
fn encode_leaf(
    identity: &Identity,
    leaf: u32,
    page: Page,
    entries: &[u64],
) -> Result<(Vec<u8>, u64)> {
    let mut bytes = leaf_page(leaf, page, entries);
    let proof = seal_page(identity, page.number, &mut bytes)?;
    Ok((bytes, proof))
}

/// Puts the checksum behind a page's bytes; gives what proves it.
fn seal_page(identity: &Identity, number: u32, bytes: &mut Vec<u8>) -> Result<u64> {
    let checksum = identity.seal(What::MapPage, (0, u64::from(number)), &[], bytes)?;
    bytes.extend_from_slice(&checksum.to_le_bytes());
    Ok(identity.proof(checksum))
}

/// The entries of a leaf, if these bytes are that leaf.
fn decode_leaf(identity: &Identity, leaf: u32, page: Page, bytes: &mut [u8]) -> Option<Vec<u64>> {
    let (found, entries) = decode_page(identity, page.number, bytes)?;
    let entry = |bytes: &[u8]| {
        let mut number = [0; 8];
        number[..ENTRY_BYTES].copy_from_slice(bytes);
        u64::from_le_bytes(number)
    };
    (found.0 == leaf && page.is(&found.1))
        .then(|| entries.chunks_exact(ENTRY_BYTES).take(LEAF_BLOCKS).map(entry).collect())
}

/// Which leaf these bytes say they are, and where, with its entries; `None` when they are damaged.
fn decode_page<'a>(
    identity: &Identity,
    number: u32,
    bytes: &'a mut [u8],
) -> Option<((u32, Page), &'a [u8])> {
    let (body, sum) = bytes.split_at_mut_checked(PAGE_BYTES - 8)?;
    let sum = u64::from_le_bytes(*sum.first_chunk()?);
    if !identity.open(What::MapPage, (0, u64::from(number)), &[], body, sum) {
        return None;
    }
    let mut r = Reader(body, None);
    let is_leaf = r.take(8).ok()? == MAGIC;
    let (owner, leaf, number, written) =
        (r.u64().ok()?, r.u32().ok()?, r.u32().ok()?, r.u64().ok()?);
    let proof = identity.proof(sum);
    is_leaf.then_some(((leaf, Page { number, written, owner, proof }), r.0))
}

/// The copies of a page of the file of maps that are whole. `expected` is the leaf that lies there,
/// where the tables still know it; else the copy that was written last counts.
///
/// # Errors
/// Errors of the system, but for a copy that can't be read.
pub(crate) fn whole_copies(
    file: &dyn File,
    identity: &Identity,
    number: u32,
    expected: Option<(u32, Page)>,
) -> Result<[Option<Vec<u8>>; 2]> {
    let mut written = [0; 2];
    let mut copy = |n: usize| -> Result<Option<Vec<u8>>> {
        let mut bytes = vec![0; PAGE_BYTES];
        let at = u64::from(number) * STRIDE + (n * PAGE_BYTES) as u64;
        match file.read_at(at, &mut bytes) {
            Err(error) if error.kind() == Kind::Io => return Ok(None),
            read => bytes.truncate(read?),
        }
        let found = decode_page(identity, number, &mut bytes).map(|(found, _)| found);
        let is_whole = found.is_some_and(|found| {
            written[n] = found.1.written;
            expected.map_or(found.1.number == number, |(leaf, page)| {
                found.0 == leaf && page.is(&found.1)
            })
        });
        Ok(is_whole.then_some(bytes))
    };
    let mut copies = [copy(0)?, copy(1)?];
    if copies.iter().all(Option::is_some) && written[0] != written[1] {
        copies[usize::from(written[0] > written[1])] = None;
    }
    Ok(copies)
}

/// Writes a copy of a page of the file of maps again, which is damaged, with the bytes of the other
/// one; durable on return. A crash leaves the other one.
///
/// # Errors
/// Errors of the system.
pub(crate) fn rewrite_copy(
    file: &dyn File,
    identity: &Identity,
    number: u32,
    copy: usize,
    mut bytes: Vec<u8>,
) -> Result<()> {
    bytes.truncate(PAGE_BYTES - 8);
    seal_page(identity, number, &mut bytes)?;
    let bytes = &bytes;
    file.write_at(u64::from(number) * STRIDE + (copy * PAGE_BYTES) as u64, bytes)?;
    file.sync()
}

#[cfg(test)]
mod tests {
    use onefold_testbed::{Rng, VirtualFiles, files::Layout};

    use super::*;
    use crate::{format::ContainerId, memory::Budget};

    fn at(n: u64) -> Option<Address> {
        Some(Address { container: ContainerId(n), slot: (n % 7) as u16 })
    }

    #[test]
    fn a_map_gives_what_was_set_and_forgets_empty_leaves() {
        let (mut index, mut pages) = (BlockIndex::default(), Pages::default());
        for block in [0, 1, 511, 512, 5_000_000] {
            assert_eq!(index.set(block, at(block + 9), &mut pages).unwrap(), None);
        }
        assert_eq!(index.set(511, at(77), &mut pages).unwrap(), at(520));
        let found: Vec<_> =
            index.mapped(1..5_000_000).map(|(block, address)| (block, Some(address))).collect();
        assert_eq!(found, [(1, at(10)), (511, at(77)), (512, at(521))]);
        assert_eq!(
            (index.used(), index.next_leaf(1024), index.get(2)),
            (5, Some(5_000_000 / 512 * 512), None)
        );
        for block in [0, 1, 511, 512, 5_000_000] {
            assert!(index.set(block, None, &mut pages).unwrap().is_some());
        }
        assert_eq!((index, pages), (BlockIndex::default(), Pages::default()));
    }

    #[test]
    fn rule_09_a_leaf_that_is_copied_is_drawn_and_comes_back_with_the_copy() {
        const LEAVES: u64 = 100;
        // Each leaf has one mapping, and a copy that gets one more has a list of two.
        const ONE: u64 = LEAF_FIXED + FEW_MEMORY;
        let budget = Budget::new(ONE * LEAVES * 5 / 2);
        let memory = Drawn::from(&budget).allowance();
        let (mut index, mut pages) = (BlockIndex::default(), Pages { memory, ..Pages::default() });
        let blocks = || (0..LEAVES).map(|n| n * LEAF_BLOCKS as u64);
        for block in blocks() {
            index.set(block, at(block + 9), &mut pages).unwrap();
        }
        // A reader has the map as it was, again and again, and lets it go.
        for round in 0..10 {
            let reader = index.clone();
            for block in blocks() {
                index.set(block, at(block + round), &mut pages).unwrap();
            }
            assert_ne!(reader, index);
        }
        // Each clone changes a block of each leaf.
        let mut clones = vec![index.clone(), index.clone()];
        let mut changed = clones.iter_mut().map(|clone| {
            blocks().try_for_each(|block| clone.set(block, at(block + 99), &mut pages).map(drop))
        });
        assert!(changed.next().unwrap().is_ok());
        assert_eq!(changed.next().unwrap().unwrap_err().kind(), Kind::Memory);
        drop(changed);
        drop((index, clones));
        Drawn::from(&budget).more(ONE * LEAVES * 5 / 2).unwrap();
    }

    /// A reader allows so much for a byte of the log, which tells a mapping in 24 bytes.
    #[test]
    fn rule_09_a_mapping_takes_no_more_than_a_reader_allows_for_it_wherever_it_is() {
        const ALLOWED: u64 = 24 * crate::memory::PER_BYTE;
        for gap in [1, 3, 16, 100, 512, 1 << 20] {
            let budget = Budget::new(u64::MAX);
            let memory = Drawn::from(&budget).allowance();
            let mut pages = Pages { memory, ..Pages::default() };
            let mut index = BlockIndex::default();
            for n in 0..1500 {
                index.set(n * gap, at(n + 9), &mut pages).unwrap();
                // The decoded record besides.
                let taken =
                    budget.taken() + (n + 1) * size_of::<crate::format::record::Remapped>() as u64;
                assert!(taken <= (n + 1) * ALLOWED, "{n} mappings each {gap} blocks take {taken}");
            }
            assert_eq!(index.changed_leaves() as u64, index.leaves());
            let found: Vec<u64> = index.mapped(0..u64::MAX).map(|(block, _)| block).collect();
            assert!(found.into_iter().eq((0..1500).map(|n| n * gap)));
        }
    }

    #[test]
    fn a_leaf_is_known_by_its_place() {
        let identity = Identity::new([1; 16], &[2; 32]);
        let entries: Vec<u64> = (0..512).map(|n| n * 1_000_000_007 % (1 << 55)).collect();
        let page = Page { number: 9, written: 4, owner: 3, proof: 0 };
        let (bytes, _) = encode_leaf(&identity, 8, page, &entries).unwrap();
        assert_eq!(bytes.len(), PAGE_BYTES);
        assert_eq!(decode_leaf(&identity, 8, page, &mut bytes.clone()), Some(entries));
        assert_eq!(decode_leaf(&identity, 7, page, &mut bytes.clone()), None);
        assert_eq!(
            decode_leaf(&identity, 8, Page { written: 5, ..page }, &mut bytes.clone()),
            None
        );
        let mut rotten = bytes;
        rotten[700] ^= 1;
        assert_eq!(decode_leaf(&identity, 8, page, &mut rotten), None);
    }

    /// Two processes write the same leaf of a volume ahead of the same snapshot, to the same page.
    #[test]
    fn a_page_that_another_process_wrote_for_the_leaf_as_it_was_before_is_not_named() {
        let files = VirtualFiles::new(Layout::default(), Rng::new(1));
        let (identity, settings) = (Identity::new([1; 16], &[2; 32]), Settings::default());
        let map = |to: u64, pages: &mut Pages| {
            let mut index = BlockIndex::default();
            index.set(5, at(to), pages).unwrap();
            index
        };
        let mut pages = Pages::default();
        let indexes = vec![(7, Arc::new(map(2, &mut pages)))];
        let ahead = |indexes, pages: &Pages| {
            write_ahead(&files, &identity, (1, usize::MAX), pages, indexes, &settings).unwrap()
        };
        let mine = ahead(indexes, &pages);
        let others = vec![(7, Arc::new(map(3, &mut pages)))];
        ahead(others, &pages);
        let named = write(&files, &identity, 1, &mut pages, mine, &settings).unwrap();
        let (leaf, page) = named[0].1.pages().next().unwrap();
        let file = files.open(MAPS).unwrap();
        let copies = whole_copies(&*file, &identity, page.number, Some((leaf, page))).unwrap();
        for mut copy in copies.map(Option::unwrap) {
            copy.truncate(PAGE_BYTES - 8);
            assert_eq!(copy, leaf_page(leaf, page, &named[0].1.leaves[&leaf].entries.all()));
        }
    }
}
