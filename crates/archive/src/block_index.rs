//! The map of a volume (dedupv1's block index): where the mapping of each block of 128 KiB lies, as
//! shadow-paged leaves.
//!
//! A leaf names the mappings of 512 blocks, 64 MiB of the volume. In memory a map is its leaves
//! that name something: 8 bytes a block, half a byte for each chunk of 8 KiB. On the disk each leaf
//! is a page of the file `maps`, written twice, side by side; the snapshot says which page.
//!
//! *Crash argument:* a snapshot writes the leaves that changed to pages that neither it nor the one
//! before names, and its label comes after their sync. Pages that it names no longer are used again
//! by the one after the next, so that the snapshot before can take the place of one that rotted.
//! The second copies are written when the first ones are durable: neighbouring pages go out in one
//! write otherwise, and a write that the medium loses would cost both.
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

/// Memory of a leaf.
pub(crate) const LEAF_MEMORY: u64 = 8 * LEAF_BLOCKS as u64 + 128;

pub(crate) const MAPS: &str = "maps";

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

/// The mappings of a leaf as numbers; 0 for zeroes.
#[derive(Debug, Default)]
struct Entries {
    numbers: Vec<u64>,
    /// Their memory, which goes back to the budget with them.
    _drawn: Drawn,
}

impl PartialEq for Entries {
    fn eq(&self, other: &Entries) -> bool {
        self.numbers == other.numbers
    }
}

impl Eq for Entries {}

/// A leaf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Leaf {
    entries: Arc<Entries>,
    /// Entries that are not 0.
    used: u32,
    /// Its page, unless it changed since.
    page: Option<Page>,
}

/// The map of one volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockIndex {
    leaves: BTreeMap<u32, Leaf>,
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
        unpacked(leaf.entries.numbers[block as usize % LEAF_BLOCKS])
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
        let leaf = match self.leaves.entry(number) {
            Entry::Vacant(_) if to.is_none() => return Ok(None),
            Entry::Vacant(entry) => {
                let _drawn = pages.memory.draw(LEAF_MEMORY)?;
                let entries = Arc::new(Entries { numbers: vec![0; LEAF_BLOCKS], _drawn });
                entry.insert(Leaf { entries, used: 0, page: None })
            }
            Entry::Occupied(entry) => entry.into_mut(),
        };
        pages.gone.extend(leaf.page.take().map(|page| page.number));
        let change = |entries: &mut Entries| {
            let entry = &mut entries.numbers[block as usize % LEAF_BLOCKS];
            unpacked(std::mem::replace(entry, packed(to)))
        };
        let old = match Arc::get_mut(&mut leaf.entries) {
            Some(entries) => change(entries),
            None => {
                let _drawn = pages.memory.draw(LEAF_MEMORY)?;
                let mut copy = Entries { numbers: leaf.entries.numbers.clone(), _drawn };
                let old = change(&mut copy);
                leaf.entries = Arc::new(copy);
                old
            }
        };
        leaf.used = leaf.used + u32::from(to.is_some()) - u32::from(old.is_some());
        if leaf.used == 0 {
            self.leaves.remove(&number);
        }
        Ok(old)
    }

    /// The blocks of a range that have a mapping, and where it is.
    pub fn mapped(&self, blocks: Range<u64>) -> impl Iterator<Item = (u64, Address)> {
        let first = u32::try_from(blocks.start / LEAF_BLOCKS as u64).unwrap_or(u32::MAX);
        let last = u32::try_from(blocks.end / LEAF_BLOCKS as u64).unwrap_or(u32::MAX);
        let leaves = self.leaves.range(first..=last.max(first));
        let all = leaves.flat_map(|(&number, leaf)| {
            let base = u64::from(number) * LEAF_BLOCKS as u64;
            leaf.entries
                .numbers
                .iter()
                .enumerate()
                .filter_map(move |(n, &entry)| Some((base + n as u64, unpacked(entry)?)))
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
        self.leaves.values().filter(|leaf| leaf.page.is_none()).count()
    }

    /// The leaves that have a page, and where it is.
    pub(crate) fn pages(&self) -> impl Iterator<Item = (u32, Page)> {
        self.leaves.iter().filter_map(|(&number, leaf)| Some((number, leaf.page?)))
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
            let page = Page { number, written, owner, proof: 0 };
            index.leaves.insert(leaf, Leaf { entries: Arc::default(), used: 0, page: Some(page) });
        }
        Ok(index)
    }

    /// The proofs of the pages that [`decode`](Self::decode) read, in the order of [`pages`](Self::pages).
    pub(crate) fn set_proofs(&mut self, proofs: &mut impl Iterator<Item = u64>) {
        let pages = self.leaves.values_mut().filter_map(|leaf| leaf.page.as_mut());
        pages.zip(proofs).for_each(|(page, proof)| page.proof = proof);
    }
}

/// Writes the leaves that changed, for snapshot `number`, of the indexes of volumes by their
/// numbers; gives those whose leaves have pages now. Durable on return, and named when the snapshot
/// is.
pub(crate) fn write(
    files: &dyn Files,
    identity: &Identity,
    number: u64,
    pages: &mut Pages,
    mut indexes: Vec<(u64, Arc<BlockIndex>)>,
    settings: &Settings,
) -> Result<Vec<(u64, Arc<BlockIndex>)>> {
    let clones_keep = settings.keeps(Rule::ClonePagesKept);
    // A page that nobody else names any more stays as long as a clone names it.
    let named = indexes.iter().flat_map(|(id, index)| {
        let pages = index.leaves.values().filter_map(|leaf| leaf.page);
        pages.filter(move |page| clones_keep || page.owner == *id).map(|page| page.number)
    });
    let busy: BTreeSet<u32> =
        named.chain(pages.gone.iter().copied()).chain(pages.replaced.iter().copied()).collect();
    let mut free = (0..pages.count).filter(|page| !busy.contains(page));
    let mut file: Option<Arc<dyn File>> = None;
    let is_first = pages.count == 0;
    indexes.retain(|(_, index)| index.leaves.values().any(|leaf| leaf.page.is_none()));
    // Clones of a leaf that has no page yet get the page of the first of them.
    let mut written: BTreeMap<(u32, *const Entries), Page> = BTreeMap::new();
    for (id, index) in &mut indexes {
        for (&at, leaf) in
            Arc::make_mut(index).leaves.iter_mut().filter(|(_, leaf)| leaf.page.is_none())
        {
            let shared = (at, Arc::as_ptr(&leaf.entries));
            if let Some(page) = written.get(&shared) {
                leaf.page = Some(*page);
                continue;
            }
            let page = free.next().unwrap_or(pages.count);
            pages.count = pages.count.max(page + 1);
            let page = Page { number: page, written: number, owner: *id, proof: 0 };
            let open = match &file {
                Some(file) => file,
                none => {
                    let _ = none;
                    file.insert(open_or_create(files, MAPS, is_first)?)
                }
            };
            let (bytes, proof) = encode_leaf(identity, at, page, &leaf.entries.numbers)?;
            open.write_at(u64::from(page.number) * STRIDE, &bytes)?;
            let proof = if settings.keeps(Rule::MapPagesProven) { proof } else { 0 };
            let page = Page { proof, ..page };
            leaf.page = Some(page);
            written.insert(shared, page);
        }
    }
    pages.replaced = std::mem::take(&mut pages.gone);
    if let Some(file) = file {
        file.sync()?;
        write_second_copies(&*file, identity, number, &indexes)?;
        file.sync()?;
    }
    Ok(indexes)
}

/// Writes the second copy of each leaf that snapshot `number` wrote.
fn write_second_copies(
    file: &dyn File,
    identity: &Identity,
    number: u64,
    indexes: &[(u64, Arc<BlockIndex>)],
) -> Result<()> {
    for (id, index) in indexes {
        for (&at, leaf) in &index.leaves {
            let is_new = |page: &Page| page.written == number && page.owner == *id;
            let Some(page) = leaf.page.filter(is_new) else { continue };
            let (bytes, _) = encode_leaf(identity, at, page, &leaf.entries.numbers)?;
            file.write_at(u64::from(page.number) * STRIDE + PAGE_BYTES as u64, &bytes)?;
        }
    }
    Ok(())
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
        let mut index = index.clone();
        for (&at, leaf) in &mut index.leaves {
            let Some(page) = leaf.page else { continue };
            if let Some(same) = before
                .and_then(|before| before.leaves.get(&at))
                .filter(|known| known.page == Some(page))
            {
                *leaf = same.clone();
                continue;
            }
            if let Some(known) = shared.get(&(page, at)) {
                *leaf = known.clone();
                continue;
            }
            let _drawn = drawn.allowance().draw(LEAF_MEMORY)?;
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
                    pages.gone.push(page.number);
                    copy(1)?.ok_or_else(lost)?
                }
            };
            leaf.used = entries.iter().filter(|&&entry| entry != 0).count() as u32;
            leaf.entries = Arc::new(Entries { numbers: entries, _drawn });
            shared.insert((page, at), leaf.clone());
        }
        read.push((id, Arc::new(index)));
    }
    Ok(read)
}

/// The bytes of a page, and what its directory keeps to prove it.
fn encode_leaf(
    identity: &Identity,
    leaf: u32,
    page: Page,
    entries: &[u64],
) -> Result<(Vec<u8>, u64)> {
    let mut w = Writer(Vec::with_capacity(PAGE_BYTES));
    w.raw(MAGIC).u64(page.owner).u32(leaf).u32(page.number).u64(page.written);
    entries.iter().for_each(|entry| {
        w.raw(&entry.to_le_bytes()[..ENTRY_BYTES]);
    });
    w.0.resize(PAGE_BYTES - 8, 0);
    let proof = seal_page(identity, page.number, &mut w.0)?;
    Ok((w.0, proof))
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
        let budget = Budget::new(LEAF_MEMORY * LEAVES * 5 / 2);
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
        Drawn::from(&budget).more(LEAF_MEMORY * LEAVES * 5 / 2).unwrap();
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
}
