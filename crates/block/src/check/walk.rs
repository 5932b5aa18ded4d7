//! Walking every page of a tree, parents first, children read together.
//!
//! Bounded against hostile bytes: a page holds its own number, so that no page can be a child
//! twice, and levels fall to 0. A walk reads at most what the store holds.

use onefold_core::{Block, Disk, Error, Kind, Read, Result};

use crate::format::{
    Identity, in_place,
    page::{self, FANOUT, PageId, Pointer, Table},
    record::WindowNumber,
    superblock::Root,
};

/// Pages read together.
const BATCH: usize = 64;

/// Sees the pages of a tree.
pub(crate) trait Visit {
    /// A parent, born in `parent`, names a page. Returns whether to read it and the pages below it.
    fn named(&mut self, id: PageId, pointer: &Pointer, parent: WindowNumber) -> bool;
    /// A page was read and compared with what its parent says; `Err` when it can't be read or
    /// differs.
    fn page(&mut self, id: PageId, pointer: &Pointer, page: Result<&Block>);
}

/// Reads pages of a store past all caches.
#[derive(Clone, Copy)]
pub(crate) struct Walker<'a> {
    pub(crate) disk: &'a dyn Disk,
    pub(crate) identity: &'a Identity,
}

impl Walker<'_> {
    /// Visits the tree at `root`, whose own birth can't be later than `committed`.
    pub(crate) fn walk(
        &self,
        table: Table,
        volume: u32,
        root: &Root,
        committed: WindowNumber,
        visit: &mut dyn Visit,
    ) {
        let Some(level) = root.height.checked_sub(1) else { return };
        let id = PageId { table, volume, level, index: 0 };
        if visit.named(id, &root.page, committed) {
            self.below(&[(id, root.page)], visit);
        }
    }

    /// Visits a page that was named and judged already, and the pages below it.
    pub(crate) fn walk_from(&self, id: PageId, pointer: &Pointer, visit: &mut dyn Visit) {
        self.below(&[(id, *pointer)], visit);
    }

    fn below(&self, pages: &[(PageId, Pointer)], visit: &mut dyn Visit) {
        for batch in pages.chunks(BATCH) {
            let mut blocks = Block::zeroed_vec(batch.len());
            let results = self.read(batch, &mut blocks);
            for ((&(id, pointer), block), result) in batch.iter().zip(&blocks).zip(results) {
                let whole = result.is_ok();
                visit.page(id, &pointer, result.map(|()| block));
                if whole && id.level > 0 {
                    let mut children = children(id, block);
                    children.retain(|(child, at)| visit.named(*child, at, pointer.birth));
                    self.below(&children, visit);
                }
            }
        }
    }

    /// Reads pages together, each with its own result.
    pub(crate) fn read(&self, pages: &[(PageId, Pointer)], into: &mut [Block]) -> Vec<Result<()>> {
        let beyond = |pointer: &Pointer| pointer.address.0 >= self.disk.blocks();
        let inside =
            pages.iter().zip(into.chunks_mut(1)).filter(|((_, pointer), _)| !beyond(pointer));
        let mut reads: Vec<Read<'_>> =
            inside.map(|((_, pointer), into)| Read::new(pointer.address, into)).collect();
        self.disk.read(&mut reads);
        let mut read = reads.into_iter().map(|read| read.result).collect::<Vec<_>>().into_iter();
        let found = pages.iter().zip(into);
        found
            .map(|((id, pointer), block)| {
                if beyond(pointer) {
                    return Err(Error::new(
                        Kind::Corrupt,
                        "it is named at a block that the disk does not have",
                    ));
                }
                read.next().unwrap_or(Ok(())).map_err(|e| e.context("it can't be read"))?;
                if pointer.in_place {
                    block.0 = *in_place::decode(self.identity, *id, pointer, block)?;
                    return Ok(());
                }
                page::differs(self.identity, *id, pointer, &mut block.0).map_or(Ok(()), |what| {
                    Err(Error::new(Kind::Corrupt, format!("it is damaged: {what}")))
                })
            })
            .collect()
    }
}

/// The pages that an inner page names.
pub(crate) fn children(id: PageId, page: &Block) -> Vec<(PageId, Pointer)> {
    (0..FANOUT)
        .map(|slot| {
            (
                PageId {
                    level: id.level - 1,
                    index: id.index.saturating_mul(FANOUT).saturating_add(slot),
                    ..id
                },
                page::pointer(page, slot),
            )
        })
        .filter(|(_, pointer)| *pointer != Pointer::default())
        .collect()
}

/// The leaves below a page: the first, and the first one after them.
pub(crate) fn leaves_below(id: PageId) -> std::ops::Range<u64> {
    let below = FANOUT.checked_pow(u32::from(id.level)).unwrap_or(u64::MAX);
    id.index.saturating_mul(below)..id.index.saturating_add(1).saturating_mul(below)
}
