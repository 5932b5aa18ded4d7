//! Writing a new version of a tree: changed leaves, then the inner pages above them, each at a new
//! place.

use onefold_core::{Block, BlockRef, Class, Disk, Pba, Result, Run};

use super::Pages;
use crate::format::{
    Identity,
    in_place::{self, Version},
    page::{self, FANOUT, PageId, Pointer, Table},
    record::WindowNumber,
    superblock::Root,
};

/// Pages that are written in one go: contiguous when the space is.
const WRITE_BATCH: usize = 256;

/// Leaves that are read, changed and written together.
pub(crate) const LEAF_BATCH: usize = 512;

/// Where new pages come from, and old ones go.
pub(crate) trait PageSpace {
    /// A free block for a page.
    fn allocate(&mut self) -> Result<Pba>;
    /// The page at `address` belongs to the old version alone.
    fn release(&mut self, address: Pba);
}

/// Collects sealed pages and writes neighbours together.
pub(crate) struct PageWriter<'a> {
    disk: &'a dyn Disk,
    pending: Vec<(Pba, Box<Block>)>,
    /// Pages written.
    pub(crate) written: u64,
}

impl<'a> PageWriter<'a> {
    pub(crate) fn new(disk: &'a dyn Disk) -> PageWriter<'a> {
        PageWriter { disk, pending: Vec::new(), written: 0 }
    }

    /// Adds a sealed page.
    pub(crate) fn push(&mut self, address: Pba, page: Box<Block>) -> Result<()> {
        self.pending.push((address, page));
        if self.pending.len() >= WRITE_BATCH { self.finish() } else { Ok(()) }
    }

    /// Writes what is pending. Durable with the next flush.
    pub(crate) fn finish(&mut self) -> Result<()> {
        let mut pending = std::mem::take(&mut self.pending);
        pending.sort_by_key(|&(address, _)| address);
        let refs: Vec<BlockRef<'_>> =
            pending.iter().map(|(_, page)| BlockRef { block: page, class: Class::Table }).collect();
        let mut runs = Vec::new();
        let mut start = 0;
        for n in 1..=pending.len() {
            if n == pending.len() || pending[n].0 != pending[n - 1].0.plus(1) {
                runs.push(Run { at: pending[start].0, blocks: &refs[start..n] });
                start = n;
            }
        }
        self.written += pending.len() as u64;
        if runs.is_empty() { Ok(()) } else { self.disk.write(&runs) }
    }
}

/// Changes one leaf: its number, its old pointer, its page. Returns whether it still holds
/// anything.
pub(crate) type Change<'c> = &'c mut dyn FnMut(u64, Option<&Pointer>, &mut Block) -> Result<bool>;

/// The tools of a rebuild.
pub(crate) struct Rebuild<'a, 'd, S> {
    pub(crate) pages: &'a Pages,
    pub(crate) identity: &'a Identity,
    pub(crate) space: &'a mut S,
    pub(crate) writer: &'a mut PageWriter<'d>,
    /// The last window that the new version contains.
    pub(crate) birth: WindowNumber,
    /// New leaves are written in place from now on, and this tells their life from others.
    pub(crate) in_place: Option<u64>,
}

/// Rewrites the leaves numbered `leaves` (rising, distinct) of the tree at `root`, and the pages
/// above them. `change` gets the number of a leaf, its old pointer if it exists, and the page to
/// change; it returns whether the leaf still holds anything.
///
/// Leaves are read and written [`LEAF_BATCH`] at a time, so that memory does not grow with their
/// number.
pub(crate) fn rebuild<S: PageSpace>(
    work: &mut Rebuild<'_, '_, S>,
    table: Table,
    volume: u32,
    root: &Root,
    leaves: &[u64],
    change: Change<'_>,
) -> Result<Root> {
    let Some(&last) = leaves.last() else { return Ok(*root) };
    let mut pointers: Vec<(u64, Pointer)> = Vec::with_capacity(leaves.len());
    for batch in leaves.chunks(LEAF_BATCH) {
        let old = work.pages.leaves(table, volume, root, batch, false)?;
        for (&index, old) in batch.iter().zip(old) {
            let (mut page, old) = match old {
                Some((pointer, page)) => (Box::new(Block(*page)), Some(pointer)),
                None => (Block::zeroed(), None),
            };
            let holds = change(index, old.as_ref(), &mut page)?;
            let id = PageId { table, volume, level: 0, index };
            pointers.push((index, work.replace(id, old, holds.then_some(page))?));
        }
    }
    let height = height_for(root, last);
    for level in 1..height {
        if level == root.height && pointers.first().is_none_or(|&(child, _)| child != 0) {
            // The tree grows taller: the old root, unchanged, becomes the first child of the first
            // new level.
            pointers.insert(0, (0, root.page));
        }
        let mut indices: Vec<u64> = pointers.iter().map(|&(child, _)| child / FANOUT).collect();
        indices.dedup();
        let mut above: Vec<(u64, Pointer)> = Vec::with_capacity(indices.len());
        let mut rest = &pointers[..];
        for index in indices {
            let count = rest.iter().take_while(|&&(child, _)| child / FANOUT == index).count();
            let (children, others) = rest.split_at(count);
            rest = others;
            let old = work.pages.inner_pointer(table, volume, root, level, index)?;
            above.push((index, work.inner(table, volume, level, index, old, children)?));
        }
        pointers = above;
    }
    let page = pointers.first().map(|&(_, pointer)| pointer).unwrap_or_default();
    Ok(if page.is_none() { Root::default() } else { Root { page, height } })
}

/// The height of a tree that has a leaf with this number.
pub(crate) fn height_for(root: &Root, last: u64) -> u8 {
    let mut height = root.height.max(1);
    while FANOUT.checked_pow(u32::from(height) - 1).is_some_and(|reach| last >= reach) {
        height += 1;
    }
    height
}

impl<S: PageSpace> Rebuild<'_, '_, S> {
    /// Writes the new version of a page and lets the old one go.
    fn replace(
        &mut self,
        id: PageId,
        old: Option<Pointer>,
        new: Option<Box<Block>>,
    ) -> Result<Pointer> {
        if let Some(old) = old {
            self.space.release(old.address);
        }
        let Some(mut page) = new else { return Ok(Pointer::default()) };
        let address = self.space.allocate()?;
        if let Some(life) = self.in_place.filter(|_| id.level == 0) {
            let pointer = Pointer { address, in_place: true, birth: self.birth, checksum: life };
            self.writer.push(
                address,
                in_place::encode(self.identity, id, &pointer, Version::default(), &page.0),
            )?;
            return Ok(pointer);
        }
        // Memory keeps it as it is before it is sealed.
        let kept = (id.level > 0).then(|| std::sync::Arc::new(page.0));
        let pointer = page::seal(self.identity, id, address, self.birth, &mut page)?;
        if let Some(kept) = kept {
            self.pages.insert(&pointer, kept);
        }
        self.writer.push(address, page)?;
        Ok(pointer)
    }

    /// Writes the new version of an inner page, in which `children` changed.
    fn inner(
        &mut self,
        table: Table,
        volume: u32,
        level: u8,
        index: u64,
        old: Option<Pointer>,
        children: &[(u64, Pointer)],
    ) -> Result<Pointer> {
        let id = PageId { table, volume, level, index };
        let mut page = match &old {
            Some(pointer) => Box::new(Block(*self.pages.get(id, pointer)?)),
            None => Block::zeroed(),
        };
        for (child, pointer) in children {
            page::set_pointer(&mut page, child % FANOUT, pointer);
        }
        let empty = page::body(&page.0).iter().all(|&byte| byte == 0);
        self.replace(id, old, (!empty).then_some(page))
    }
}
