//! New versions of the maps, where they are damaged or wrong.
//!
//! Pages that are whole and right stay where they are. A leaf that is gone gives way to one whose
//! addresses are lost; it keeps the birth that its parent knows, so that ranges which are still to
//! be applied to it make zeroes of it, as they would have. A leaf whose parent is gone as
//! well is taken for newer than any of them: it may have been written after, and errors are never
//! wrong.

use onefold_core::{Block, Error, Kind, Lba, Pba, Result};

use super::{
    build::Builder,
    named::Named,
    outcome::Repaired,
    salvage::{Child, Salvage, slots},
};
use crate::{
    check::{report::Place, tables::Checker, walk::leaves_below},
    format::{
        catalogue::Volume,
        page::{self, FANOUT, MapEntry, PageId, Pointer, Table},
        record::WindowNumber,
        superblock::Root,
    },
};

/// Leaves that are written to say that their addresses are lost: 256 MiB of them, for 72 GiB of
/// addresses.
const LOST_LEAVES_MAX: u64 = 65_536;

/// Pages that are read together.
const BATCH: usize = 64;

/// Mends the maps of all volumes.
pub(super) struct Mend<'x, 'a, 'b> {
    pub(super) checker: &'x mut Checker<'a>,
    pub(super) builder: &'x mut Builder<'b>,
    pub(super) named: &'x Named,
    pub(super) repaired: &'x mut Repaired,
    pub(super) salvage: Salvage,
    pub(super) lost_leaves: u64,
}

impl Mend<'_, '_, '_> {
    /// The new root of a volume's map.
    pub(super) fn map(&mut self, volume: &Volume) -> Result<Root> {
        let root = volume.map;
        let Some(level) = root.height.checked_sub(1) else { return Ok(root) };
        let id = PageId { table: Table::Map, volume: volume.id.0, level, index: 0 };
        let new = self.pages(volume, &[(id, root.page)])?;
        Ok(match new[..] {
            [Some(page)] if page.is_none() => Root::default(),
            [Some(page)] => Root { page, ..root },
            _ => root,
        })
    }

    /// New versions of pages; `None` for those that stay.
    fn pages(
        &mut self,
        volume: &Volume,
        pages: &[(PageId, Pointer)],
    ) -> Result<Vec<Option<Pointer>>> {
        let mut new = Vec::with_capacity(pages.len());
        for batch in pages.chunks(BATCH) {
            let mut blocks = Block::zeroed_vec(batch.len());
            let results = self.checker.walker.read(batch, &mut blocks);
            for ((&(id, pointer), block), result) in batch.iter().zip(&blocks).zip(results) {
                let geometry = self.checker.geometry;
                let free = |at: Pba| geometry.holds(at) && !self.builder.live.contains(at);
                let sound = result.is_ok() && free(pointer.address);
                new.push(if sound {
                    self.page(volume, id, pointer, block)?
                } else {
                    Some(self.gone(volume, id, pointer)?)
                });
            }
        }
        Ok(new)
    }

    /// The new version of a page that is whole.
    fn page(
        &mut self,
        volume: &Volume,
        id: PageId,
        pointer: Pointer,
        block: &Block,
    ) -> Result<Option<Pointer>> {
        if id.level == 0 {
            let first = id.index * Table::Map.per_leaf();
            let wrong = self
                .named
                .wrong
                .range((volume.id, Lba(first))..(volume.id, Lba(first + Table::Map.per_leaf())));
            let wrong: Vec<(Lba, MapEntry)> =
                wrong.map(|(&(_, lba), &entry)| (lba, entry)).collect();
            if wrong.is_empty() {
                self.builder.keep(&pointer);
                return Ok(None);
            }
            let mut page = Box::new(block.clone());
            for (lba, entry) in wrong {
                entry.set(&mut page, lba.0 - first);
                if entry == MapEntry::Lost {
                    self.repaired.lose(volume.id, lba, 1);
                }
            }
            return self.builder.page(id, pointer.birth, page).map(Some);
        }
        let children = slots(id, block);
        let named: Vec<(PageId, Pointer)> =
            children.iter().map(|&(_, child, pointer)| (child, pointer)).collect();
        let new = self.pages(volume, &named)?;
        if new.iter().all(Option::is_none) {
            self.builder.keep(&pointer);
            return Ok(None);
        }
        let mut page = Box::new(block.clone());
        for ((slot, ..), new) in children.iter().zip(&new) {
            if let Some(new) = new {
                page::set_pointer(&mut page, *slot, new);
            }
        }
        self.builder.page(id, self.checker.state.committed, page).map(Some)
    }

    /// The page that takes the place of one that is gone.
    fn gone(&mut self, volume: &Volume, id: PageId, pointer: Pointer) -> Result<Pointer> {
        let committed = self.checker.state.committed;
        if id.level == 0 {
            let pointer = self.lost(volume, id, pointer.birth.min(committed))?;
            self.repaired.left.push(format!(
                "{}: it is gone, and with it what its addresses hold",
                Place::Page(id, pointer.address)
            ));
            return Ok(pointer);
        }
        let mut page = Block::zeroed();
        let mut found = 0;
        for slot in 0..FANOUT {
            let child = PageId {
                level: id.level - 1,
                index: id.index.saturating_mul(FANOUT).saturating_add(slot),
                ..id
            };
            if leaves_below(child).start.saturating_mul(Table::Map.per_leaf()) > Lba::MAX.0 {
                break;
            }
            let new = match self.salvage.child(self.checker, self.named, id, slot) {
                Child::Found(pointer) => {
                    found += 1;
                    self.pages(volume, &[(child, pointer)])?.pop().flatten().unwrap_or(pointer)
                }
                Child::None => Pointer::default(),
                Child::Unknown => self.lost(volume, child, committed)?,
            };
            page::set_pointer(&mut page, slot, &new);
        }
        self.repaired.restored.push(format!(
            "{}: put together again from {found} pages below it",
            Place::Page(id, pointer.address)
        ));
        self.builder.page(id, committed, page)
    }

    /// Pages that say that everything below `id` is lost.
    fn lost(&mut self, volume: &Volume, id: PageId, birth: WindowNumber) -> Result<Pointer> {
        let per_leaf = Table::Map.per_leaf();
        let first = leaves_below(id).start.saturating_mul(per_leaf);
        // Nobody can read a deleted volume any more, nor beyond a volume's end.
        if volume.name.is_empty() || first >= volume.blocks {
            return Ok(Pointer::default());
        }
        let mut page = Block::zeroed();
        if id.level == 0 {
            self.lost_leaves += 1;
            if self.lost_leaves > LOST_LEAVES_MAX {
                let message = format!(
                    "so much of the map of volume '{}' is lost that it can't be repaired",
                    volume.name
                );
                return Err(Error::new(Kind::Corrupt, message));
            }
            let count = per_leaf.min(volume.blocks - first);
            (0..count).for_each(|slot| MapEntry::Lost.set(&mut page, slot));
            self.repaired.lose(volume.id, Lba(first), count);
        } else {
            for slot in 0..FANOUT {
                let child = PageId {
                    level: id.level - 1,
                    index: id.index.saturating_mul(FANOUT).saturating_add(slot),
                    ..id
                };
                let pointer = self.lost(volume, child, birth)?;
                page::set_pointer(&mut page, slot, &pointer);
            }
        }
        self.builder.page(id, birth, page)
    }
}
