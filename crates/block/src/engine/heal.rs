//! Both copies of the zone list are whole again once a store is open.
//!
//! A crash may leave one copy of a page torn. Recovery uses the other one, and would write the torn one only when the page changes; until
//! then a second fault would find no good copy, and `check` could not tell the tear from rot. So the torn copy is written anew, as the next
//! version of the page with the same content, and flushed before anything else is written: a crash meanwhile leaves it torn again, and the
//! other copy is not touched. A copy that can't be read is left alone: it may be the newer one, and may come back.

use onefold_core::{Block, BlockRef, Class, Pba, Read, Result, Run};

use super::Engine;
use crate::format::zone_list::Page;

impl Engine {
    /// Writes torn copies of the zone list anew; `pages` are the current versions, and become the versions written.
    pub(super) fn heal_zone_list(&self, pages: &mut [Page]) -> Result<()> {
        let geometry = self.fixed.geometry;
        let mut healed = false;
        for (n, page) in (0..).zip(pages) {
            // The copy that the next version goes to.
            let at = geometry.list_page(n)[(page.sequence.wrapping_add(1) % 2) as usize];
            if !self.is_torn(n, at) {
                continue;
            }
            page.sequence = page.sequence.wrapping_add(1);
            let block = page.encode(&self.identity, n, at.0);
            self.disk.write(&[Run { at, blocks: &[BlockRef { block: &block, class: Class::Table }] }])?;
            healed = true;
        }
        if healed { self.disk.flush() } else { Ok(()) }
    }

    fn is_torn(&self, page: u32, at: Pba) -> bool {
        let mut block = Block::zeroed();
        let mut read = [Read::new(at, std::slice::from_mut(&mut *block))];
        self.disk.read(&mut read);
        let [read] = read;
        read.result.is_ok() && Page::decode(&self.identity, &block, page, at.0).is_none()
    }
}
