//! A portion of counting where the counts are in pages: what came and went changes some of them, and
//! these are written.

use std::collections::{BTreeMap, BTreeSet};

use onefold_core::Result;

use super::{
    counting::{CountsAtHand, Range, numbers},
    pages::{PagesReader, PagesWriter},
    tree_nodes::NodeChanges,
};
use crate::{container::Rewriter, format::ContainerId, rules::Rule, tables::Tables};

/// Pages in memory, each read when a change is of one of its containers. When there is room for no
/// more, the others wait: they are read later, and all changes gone through again for them.
struct AtHand<'a> {
    before: &'a PagesReader,
    tables: &'a Tables,
    room: usize,
    /// The counts of the pages that are in memory, and their slots.
    counts: Range,
    slots: usize,
    pages: BTreeSet<u64>,
    /// Pages that are written already.
    done: BTreeSet<u64>,
    waiting: BTreeSet<u64>,
    /// The first page that could not be read, and nothing counts.
    failed: Result<()>,
}

impl AtHand<'_> {
    fn has_room(&self) -> bool {
        self.slots < self.room
    }

    /// Reads a page, and adds containers of it that have no counts yet.
    fn load(&mut self, page: u64, fresh: Vec<(ContainerId, Vec<u16>)>) -> Result<()> {
        for (id, counts) in self.before.page(page)?.into_iter().chain(fresh) {
            // The counts of containers that are gone go too.
            if self.tables.has_place(id)? {
                self.slots += counts.len();
                self.counts.insert(id, counts);
            }
        }
        self.pages.insert(page);
        Ok(())
    }
}

impl CountsAtHand for AtHand<'_> {
    fn of(&mut self, id: ContainerId) -> Option<&mut Vec<u16>> {
        let page = self.before.page_of(id);
        if !self.pages.contains(&page) && self.before.has(id) && !self.done.contains(&page) {
            if !self.has_room() || self.failed.is_err() {
                self.waiting.insert(page);
                return None;
            }
            if let Err(error) = self.load(page, Vec::new()) {
                self.failed = Err(error);
                return None;
            }
        }
        self.counts.get_mut(&id)
    }
}

impl Rewriter {
    /// Writes the pages that these differences change, and those with containers that have no counts
    /// yet. All others stay where they are; a page goes whose containers are gone.
    pub(super) fn write_changed(
        &mut self,
        tables: &Tables,
        changes: &NodeChanges,
        before: &PagesReader,
        writer: &mut PagesWriter,
    ) -> Result<()> {
        let mut fresh: BTreeMap<u64, Vec<ContainerId>> = BTreeMap::new();
        let mut gone: BTreeSet<u64> = before.directory.pages.keys().copied().collect();
        for id in numbers(tables)? {
            let page = before.page_of(id);
            gone.remove(&page);
            if !before.has(id) {
                fresh.entry(page).or_default().push(id);
            }
        }
        gone.into_iter().for_each(|page| writer.drop_page(page));
        let (mut waiting, mut done) =
            (fresh.keys().copied().collect::<BTreeSet<u64>>(), BTreeSet::new());
        loop {
            let mut at_hand = AtHand {
                before,
                tables,
                room: self.archive.settings.count_slots,
                counts: Range::new(),
                slots: 0,
                pages: BTreeSet::new(),
                done,
                waiting: BTreeSet::new(),
                failed: Ok(()),
            };
            while at_hand.has_room()
                && let Some(page) = waiting.pop_first()
            {
                let ids = fresh.remove(&page).unwrap_or_default();
                let zeroes = ids.into_iter().map(|id| Ok((id, vec![0; self.slots(tables, id)?])));
                let zeroes = zeroes.collect::<Result<Vec<_>>>()?;
                at_hand.load(page, zeroes)?;
            }
            // Pages of new containers are not read before their turn.
            at_hand.done.extend(&waiting);
            self.add_up(tables, true, changes, &mut at_hand)?;
            let AtHand { counts, pages, waiting: later, failed, done: mut written, .. } = at_hand;
            failed?;
            waiting.iter().for_each(|page| {
                written.remove(page);
            });
            self.write_pages(before, &counts, &pages, writer)?;
            written.extend(pages);
            done = written;
            waiting.extend(later);
            if waiting.is_empty() {
                return Ok(());
            }
        }
    }

    fn write_pages(
        &self,
        before: &PagesReader,
        counts: &Range,
        pages: &BTreeSet<u64>,
        writer: &mut PagesWriter,
    ) -> Result<()> {
        let left_out = match self.archive.keeps(Rule::ChangedPagesWritten) || pages.len() < 2 {
            true => None,
            false => pages.last(),
        };
        let mut counts = counts.iter().peekable();
        for page in pages {
            let mut of_page = Vec::new();
            while let Some((id, counts)) = counts.next_if(|(id, _)| before.page_of(**id) == *page) {
                of_page.push((*id, &counts[..]));
            }
            if left_out != Some(page) {
                self.pace.ask(writer.page(*page, of_page.into_iter())?)?;
            }
        }
        Ok(())
    }
}
