//! All pages of a family at some of its places, found from the top pages of its maps down.
//!
//! Whoever writes a shared page anew must reach every page and every map that names it or borrows
//! from it. So what is found is proved: at each place the entries that count for a page are as many
//! as its account says, the pages that borrow from it are as many, and lenders are there. Pages
//! that only an orphan names are missed, and then some account has more than was found.

use std::collections::BTreeMap;
use std::sync::Arc;

use onefold_core::{Pba, Result, VolumeId};

use super::{MapPages, counts_for_child, is_unread};
use crate::{
    format::{
        page::{self, FANOUT, Page, PageId, Pointer, Table},
        share::Share,
    },
    rules::Rule,
};

/// Inner pages that a survey keeps in memory, at most: 16 MiB.
const INNER_PAGES_MAX: usize = 4096;

/// The top page of a map of a family.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Top {
    /// The map.
    pub(crate) map: VolumeId,
    /// The place of the page.
    pub(crate) id: PageId,
    /// Where it is.
    pub(crate) page: Pointer,
}

/// A page, and what was found of it.
pub(crate) struct Seen {
    /// Where it is.
    pub(crate) page: Pointer,
    /// What is in it.
    pub(crate) content: Arc<Page>,
    /// Its account.
    pub(crate) share: Share,
    /// The map with the lowest number among those that have it.
    pub(crate) first: VolumeId,
}

/// The pages at one place of a family, by address.
pub(crate) type Place = BTreeMap<Pba, Seen>;

/// How far a survey has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Surveyed {
    /// There are more inner pages to read.
    More,
    /// All inner pages were found.
    Complete,
    /// Some are hidden: one can't be read, something else names one, or there are too many.
    Hidden,
}

/// A page that is named from above.
struct Named {
    page: Pointer,
    first: VolumeId,
    /// Entries that count for it.
    count: u64,
}

/// The inner pages of a family above some of its leaves.
pub(crate) struct Survey {
    family: u32,
    tops: Vec<Top>,
    /// Rising.
    leaves: Vec<u64>,
    /// Inner pages by level and number.
    inner: BTreeMap<(u8, u64), Place>,
    /// The level that is looked at; 0 when all inner ones were.
    level: u8,
    /// What is to be read of this level; `None` before it is known.
    rest: Option<Vec<(u64, Named)>>,
    /// Entries that count for the pages of this level.
    counts: BTreeMap<Pba, u64>,
    read: usize,
}

impl Survey {
    /// Of a family with these maps, above `leaves`, which rise.
    pub(crate) fn new(family: u32, mut tops: Vec<Top>, leaves: Vec<u64>) -> Survey {
        tops.sort_by_key(|top| top.map);
        let level = tops.iter().map(|top| top.id.level).max().unwrap_or_default();
        let (inner, counts) = (BTreeMap::new(), BTreeMap::new());
        Survey { family, tops, leaves, inner, level, rest: None, counts, read: 0 }
    }

    /// The inner pages that were found, by level and number.
    pub(crate) fn inner(&self) -> &BTreeMap<(u8, u64), Place> {
        &self.inner
    }

    /// Reads up to `most` inner pages.
    ///
    /// # Errors
    /// Those of the store, but for pages that can't be read.
    pub(crate) fn advance(
        &mut self,
        store: &mut impl MapPages,
        mut most: usize,
    ) -> Result<Surveyed> {
        while self.level > 0 {
            let level = self.level;
            let mut rest = match self.rest.take() {
                Some(rest) => rest,
                None => {
                    let Some(all) = self.named_at_level(store, level) else {
                        return Ok(Surveyed::Hidden);
                    };
                    self.counts =
                        all.iter().map(|(_, named)| (named.page.address, named.count)).collect();
                    all
                }
            };
            let now = rest.split_off(rest.len().saturating_sub(most));
            most -= now.len();
            self.read += now.len();
            if self.read > INNER_PAGES_MAX {
                return Ok(Surveyed::Hidden);
            }
            for (index, seen) in match self.see(store, level, now)? {
                Some(seen) => seen,
                None => return Ok(Surveyed::Hidden),
            } {
                self.inner.entry((level, index)).or_default().insert(seen.page.address, seen);
            }
            if !rest.is_empty() {
                self.rest = Some(rest);
                return Ok(Surveyed::More);
            }
            let mut places = self.inner.range((level, 0)..=(level, u64::MAX));
            if !places.all(|(_, place)| is_explained(store, place, &self.counts)) {
                return Ok(Surveyed::Hidden);
            }
            self.level -= 1;
            if most == 0 && self.level > 0 {
                return Ok(Surveyed::More);
            }
        }
        Ok(Surveyed::Complete)
    }

    /// Reads all leaves numbered `leaf`, which is below the inner pages of this complete survey.
    /// `None` when there are more than `most`, or some are hidden.
    ///
    /// # Errors
    /// Those of the store, but for pages that can't be read.
    pub(crate) fn leaf(
        &self,
        store: &mut impl MapPages,
        leaf: u64,
        most: usize,
    ) -> Result<Option<Place>> {
        let Some(named) = self.named(store, 0, leaf).filter(|named| named.len() <= most) else {
            return Ok(None);
        };
        let counts = named.iter().map(|(&page, named)| (page, named.count)).collect();
        let named = named.into_values().map(|named| (leaf, named)).collect();
        let Some(seen) = self.see(store, 0, named)? else { return Ok(None) };
        let place = seen.into_iter().map(|(_, seen)| (seen.page.address, seen)).collect();
        Ok(is_explained(store, &place, &counts).then_some(place))
    }

    /// How many leaves numbered `leaf` there are, below the inner pages of this complete survey; `None` where
    /// the names of one differ.
    pub(crate) fn leaves_at(&self, store: &impl MapPages, leaf: u64) -> Option<usize> {
        self.named(store, 0, leaf).map(|named| named.len())
    }

    /// The pages of a level that are named from above; `None` where the names of one differ.
    fn named_at_level(&self, store: &impl MapPages, level: u8) -> Option<Vec<(u64, Named)>> {
        let width = FANOUT.checked_pow(u32::from(level));
        let mut numbers: Vec<u64> =
            self.leaves.iter().map(|leaf| width.map_or(0, |width| leaf / width)).collect();
        numbers.dedup();
        let mut all = Vec::new();
        for index in numbers {
            let named = self.named(store, level, index)?;
            all.extend(named.into_values().map(|named| (index, named)));
        }
        Some(all)
    }

    /// The pages at a place that are named from above; `None` where the names of one differ.
    fn named(&self, store: &impl MapPages, level: u8, index: u64) -> Option<BTreeMap<Pba, Named>> {
        let mut found: BTreeMap<Pba, Named> = BTreeMap::new();
        let mut agree = true;
        let mut name = |page: Pointer, first: VolumeId, count: bool| {
            let named = found.entry(page.address).or_insert(Named { page, first, count: 0 });
            agree &= named.page == page;
            named.first = named.first.min(first);
            named.count += u64::from(count);
        };
        let all = store.keeps(Rule::SharersMoveTogether);
        let here = |top: &&Top| (top.id.level, top.id.index) == (level, index);
        let tops = self.tops.iter().take(if all { usize::MAX } else { 1 });
        for top in tops.filter(here) {
            name(top.page, top.map, true);
        }
        if let Some(parents) = self.inner.get(&(level.saturating_add(1), index / FANOUT)) {
            let slot = index % FANOUT;
            for parent in parents.values() {
                let child = page::pointer(&parent.content, slot);
                if !child.is_none() {
                    let lender = parent.share.lender.and_then(|page| parents.get(&page.address));
                    let lender = lender.map(|lender| &*lender.content);
                    name(child, parent.first, counts_for_child(&child, slot, lender));
                }
            }
        }
        agree.then_some(found)
    }

    /// Reads pages and their accounts; `None` when one can't be read.
    fn see(
        &self,
        store: &mut impl MapPages,
        level: u8,
        named: Vec<(u64, Named)>,
    ) -> Result<Option<Vec<(u64, Seen)>>> {
        let id = PageId { table: Table::Map, volume: self.family, level, index: 0 };
        let wanted: Vec<(PageId, Pointer)> = named
            .iter()
            .map(|(index, named)| (PageId { index: *index, ..id }, named.page))
            .collect();
        let read = store.read(&wanted);
        let mut seen = Vec::with_capacity(named.len());
        for ((index, Named { page, first, .. }), content) in named.into_iter().zip(read) {
            let share = content.and_then(|content| Ok((content, store.share(page.address)?)));
            match share {
                Ok((content, share)) => seen.push((index, Seen { page, content, share, first })),
                Err(e) if is_unread(&e) => return Ok(None),
                Err(e) => return Err(e),
            }
        }
        Ok(Some(seen))
    }
}

/// True when what was found at a place is all that the accounts of its pages have.
fn is_explained(store: &impl MapPages, place: &Place, counts: &BTreeMap<Pba, u64>) -> bool {
    if !store.keeps(Rule::SharersMoveTogether) || !store.keeps(Rule::MovesWaitForOrphans) {
        return true;
    }
    let mut borrowers: BTreeMap<Pba, u64> = BTreeMap::new();
    for lender in place.values().filter_map(|seen| seen.share.lender) {
        if place.get(&lender.address).is_none_or(|seen| seen.page != lender) {
            return false;
        }
        *borrowers.entry(lender.address).or_default() += 1;
    }
    place.iter().all(|(page, seen)| {
        let found = |all: &BTreeMap<Pba, u64>| all.get(page).copied().unwrap_or_default();
        found(counts) == u64::from(seen.share.count)
            && found(&borrowers) == u64::from(seen.share.borrowers)
    })
}
