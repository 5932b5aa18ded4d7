//! Building trees from their leaves, at new places.

use onefold_core::{Block, Pba, Result};

use super::room::Room;
use crate::{
    block_set::BlockSet,
    format::{
        Identity,
        in_place::{self, Version},
        page::{self, FANOUT, PageId, Pointer, Table},
        record::WindowNumber,
        superblock::Root,
    },
    table::rebuild::PageWriter,
};

/// Writes new pages.
pub(super) struct Builder<'a> {
    pub(super) identity: &'a Identity,
    pub(super) room: Room<'a>,
    pub(super) writer: PageWriter<'a>,
    /// Pages of the new tables, written here or kept.
    pub(super) live: BlockSet,
    /// Places taken beforehand.
    pub(super) places: Vec<Pba>,
    /// With leaves in place: the life of new ones.
    pub(super) life: Option<u64>,
}

impl Builder<'_> {
    /// A place for a page.
    pub(super) fn place(&mut self) -> Result<Pba> {
        let at = match self.places.pop() {
            Some(at) => at,
            None => self.room.take()?,
        };
        self.live.insert(at);
        Ok(at)
    }

    /// Writes a page, unless it holds nothing.
    pub(super) fn page(
        &mut self,
        id: PageId,
        birth: WindowNumber,
        page: Box<Block>,
    ) -> Result<Pointer> {
        if page::body(&page).iter().all(|&byte| byte == 0) {
            return Ok(Pointer::default());
        }
        self.page_even_empty(id, birth, page)
    }

    /// Writes a page.
    pub(super) fn page_even_empty(
        &mut self,
        id: PageId,
        birth: WindowNumber,
        mut page: Box<Block>,
    ) -> Result<Pointer> {
        let at = self.place()?;
        let changes_in_place = id.level == 0
            && matches!(id.table, Table::Map | Table::References | Table::Fingerprints);
        if let Some(life) = self.life.filter(|_| changes_in_place) {
            let pointer = Pointer { address: at, in_place: true, birth, checksum: life };
            self.writer.push(
                at,
                in_place::encode(self.identity, id, &pointer, Version::default(), &page.0),
            )?;
            return Ok(pointer);
        }
        // Nobody has looked through what is put together here.
        page::set_generation(&mut page.0, 0);
        let pointer = page::seal(self.identity, id, at, birth, &mut page)?;
        self.writer.push(at, page)?;
        Ok(pointer)
    }

    /// Keeps a page of the old tables.
    pub(super) fn keep(&mut self, pointer: &Pointer) {
        if !pointer.is_none() {
            self.live.insert(pointer.address);
        }
    }

    /// The inner pages over leaves, which rise; absent ones are left out.
    pub(super) fn tree(
        &mut self,
        table: Table,
        birth: WindowNumber,
        leaves: Vec<(u64, Pointer)>,
    ) -> Result<Root> {
        let mut pointers: Vec<(u64, Pointer)> =
            leaves.into_iter().filter(|(_, pointer)| !pointer.is_none()).collect();
        let mut height = 1;
        while pointers.last().is_some_and(|&(last, _)| last > 0) {
            let mut above: Vec<(u64, Pointer)> = Vec::new();
            for children in pointers.chunk_by(|one, other| one.0 / FANOUT == other.0 / FANOUT) {
                let index = children[0].0 / FANOUT;
                let mut page = Block::zeroed();
                for (child, pointer) in children {
                    page::set_pointer(&mut page, child % FANOUT, pointer);
                }
                above.push((
                    index,
                    self.page(PageId { table, volume: 0, level: height, index }, birth, page)?,
                ));
            }
            pointers = above;
            height += 1;
        }
        Ok(pointers.first().map_or_else(Root::default, |&(_, page)| Root { page, height }))
    }
}

/// Pages of a tree over `leaves` leaves without gaps.
pub(super) fn pages_over(leaves: u64) -> u64 {
    let (mut pages, mut level) = (leaves, leaves);
    while level > 1 {
        level = level.div_ceil(FANOUT);
        pages += level;
    }
    pages
}
