//! Pages of the file that must not be written, and the free ones between them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use onefold_core::{Error, Files, Kind, Result};

use super::place::{Extent, LEAVES, LeafPlace, PAGE_BYTES, PAGES_MAX, in_file};
use crate::{
    format::bytes::{Reader, Writer},
    rules::Rule,
    settings::Settings,
};

/// Pages of the file that must not be written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeafFile {
    /// Leaves that the last snapshot names.
    named: Arc<BTreeSet<LeafPlace>>,
    /// Pages that the snapshot before the last names, and the last does not.
    replaced: Arc<BTreeSet<Extent>>,
    /// Those of the leaves that the last snapshot names which are read on demand.
    on_demand: Arc<BTreeSet<Extent>>,
    /// Pages of such leaves that were replaced, and the epoch whose readers may still look at them.
    waiting: Arc<BTreeMap<Extent, u32>>,
}

/// True when somebody may still read pages that were replaced in epoch `since`.
fn is_awaited(since: u32, epoch: u32) -> bool {
    since.saturating_add(2) > epoch
}

impl LeafFile {
    /// Behind the last page that a snapshot names.
    fn end(&self) -> u32 {
        let named = self.named.iter().map(|place| place.extent());
        let all = named.chain(self.replaced.iter().chain(self.waiting.keys()).copied());
        all.map(|(page, pages)| page + pages).max().unwrap_or(0)
    }

    /// True when no snapshot names a page, and nobody may look at one.
    pub(crate) fn is_empty(&self) -> bool {
        self.end() == 0
    }

    /// The pages that a snapshot of `epoch` may write, which names these leaves too.
    pub(super) fn free(&self, settings: &Settings, epoch: u32, unchanged: &[LeafPlace]) -> Free {
        let mut busy: BTreeSet<Extent> = unchanged.iter().map(|place| place.extent()).collect();
        if settings.keeps(Rule::LastLeavesSpared) {
            busy.extend(self.named.iter().map(|place| place.extent()));
        }
        if settings.keeps(Rule::EarlierLeavesSpared) {
            busy.extend(self.replaced.iter());
        }
        if settings.keeps(Rule::LeafPagesWait) {
            let waiting = self.waiting.iter().filter(|(_, since)| is_awaited(**since, epoch));
            busy.extend(waiting.map(|(extent, _)| *extent));
        }
        Free::between(&busy)
    }

    /// The leaves that the last snapshot names.
    pub(crate) fn named(&self) -> Arc<BTreeSet<LeafPlace>> {
        self.named.clone()
    }

    /// True for a leaf that is read when it is looked at: opening does not need it.
    pub(crate) fn is_on_demand(&self, place: LeafPlace) -> bool {
        self.on_demand.contains(&place.extent())
    }

    /// The next snapshot names these leaves, of which some are read on demand; `epoch` is the one
    /// in which it is made.
    pub(crate) fn turn(&mut self, places: &[LeafPlace], on_demand: &[LeafPlace], epoch: u32) {
        let on_demand: BTreeSet<Extent> = on_demand.iter().map(|place| place.extent()).collect();
        let mut waiting = BTreeMap::clone(&self.waiting);
        let gone = self.on_demand.difference(&on_demand);
        waiting.extend(gone.map(|extent| (*extent, epoch)));
        waiting.retain(|_, since| is_awaited(*since, epoch));
        (self.waiting, self.on_demand) = (Arc::new(waiting), Arc::new(on_demand));
        let named: BTreeSet<LeafPlace> = places.iter().copied().collect();
        let kept: BTreeSet<Extent> = named.iter().map(|place| place.extent()).collect();
        let before = self.named.iter().map(|place| place.extent());
        self.replaced = Arc::new(before.filter(|extent| !kept.contains(extent)).collect());
        self.named = Arc::new(named);
    }

    /// A snapshot that these tables do not know may have named any pages of the file, and readers may
    /// still look at them: all of them wait.
    pub(crate) fn await_all(&mut self, files: &dyn Files, epoch: u32) -> Result<()> {
        let bytes = match files.open(LEAVES) {
            Err(error) if error.kind() == Kind::NotFound => return Ok(()),
            opened => opened?.bytes()?,
        };
        let pages = bytes.div_ceil(PAGE_BYTES as u64).min(u64::from(PAGES_MAX)) as u32;
        if pages > 0 {
            let mut waiting = BTreeMap::clone(&self.waiting);
            // Whatever waits already lies in it.
            waiting.retain(|(page, more), _| page.saturating_add(*more) > pages);
            waiting.insert((0, pages), epoch);
            self.waiting = Arc::new(waiting);
        }
        Ok(())
    }

    /// Gives the space back that a snapshot took which had no room to its end.
    pub(crate) fn cut(&self, files: &dyn Files) -> Result<()> {
        let end = u64::from(self.end()) * PAGE_BYTES as u64;
        match files.open(LEAVES) {
            Err(error) if error.kind() == Kind::NotFound => Ok(()),
            Ok(file) if file.bytes()? > end => file.set_bytes(end),
            opened => opened.map(|_| ()),
        }
    }
}

impl LeafFile {
    /// Writes what the places of leaves do not say.
    pub(crate) fn encode(&self, w: &mut Writer) {
        w.u32(self.replaced.len() as u32);
        self.replaced.iter().for_each(|&(page, pages)| {
            w.u32(page).u32(pages);
        });
    }

    /// Writes which pages wait for readers.
    pub(crate) fn encode_waiting(&self, w: &mut Writer) {
        w.u32(self.waiting.len() as u32);
        self.waiting.iter().for_each(|(&(page, pages), &since)| {
            w.u32(page).u32(pages).u32(since);
        });
    }

    /// Reads which pages wait for readers; these of the leaves are read on demand.
    pub(crate) fn decode_waiting(
        &mut self,
        r: &mut Reader<'_>,
        on_demand: &[LeafPlace],
    ) -> Result<()> {
        let count = r.count(12, 64)?;
        let one = |_| {
            let (page, pages) = (r.u32()?, r.u32()?);
            in_file(page, pages)?;
            Ok(((page, pages), r.u32()?))
        };
        self.waiting = Arc::new((0..count).map(one).collect::<Result<_>>()?);
        self.on_demand = Arc::new(on_demand.iter().map(|place| place.extent()).collect());
        Ok(())
    }

    /// The pages of a snapshot that names these leaves.
    pub(crate) fn decode(r: &mut Reader<'_>, places: &[LeafPlace]) -> Result<LeafFile> {
        let mut file = LeafFile::default();
        file.turn(places, &[], 0);
        let count = r.count(8, 64)?;
        let extent = |_| {
            let (page, pages) = (r.u32()?, r.u32()?);
            in_file(page, pages).map(|()| (page, pages))
        };
        let replaced = (0..count).map(extent).collect::<Result<_>>()?;
        Ok(LeafFile { replaced: Arc::new(replaced), ..file })
    }
}

/// Pages that may be written.
pub(super) struct Free {
    /// Between pages that may not, in order.
    gaps: Vec<Extent>,
    /// Behind them all.
    end: u32,
}

impl Free {
    fn between(busy: &BTreeSet<Extent>) -> Free {
        let mut free = Free { gaps: Vec::new(), end: 0 };
        for &(page, pages) in busy {
            if page > free.end {
                free.gaps.push((free.end, page - free.end));
            }
            free.end = free.end.max(page + pages);
        }
        free
    }

    /// So many pages, from the first gap that has them.
    pub(super) fn take(&mut self, pages: u32) -> Result<u32> {
        if let Some(n) = self.gaps.iter().position(|gap| gap.1 >= pages) {
            let (page, left) = self.gaps[n];
            if left == pages {
                self.gaps.remove(n);
            } else {
                self.gaps[n] = (page + pages, left - pages);
            }
            return Ok(page);
        }
        let page = self.end;
        let end = page.checked_add(pages).filter(|&end| end <= PAGES_MAX);
        self.end =
            end.ok_or_else(|| Error::new(Kind::NoSpace, "the file of tables can't be longer"))?;
        Ok(page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leaf_file::place::{decode_places, encode_places};

    #[test]
    fn gaps_are_filled_first_and_the_end_grows() {
        let mut free = Free::between(&BTreeSet::from([(2, 4), (10, 2), (11, 3)]));
        let taken: Vec<_> = [4, 2, 2, 4, 2].map(|pages| free.take(pages).unwrap()).into();
        assert_eq!(taken, [6, 0, 14, 16, 20]);
        assert_eq!(Free::between(&BTreeSet::new()).take(7).unwrap(), 0);
        assert!(free.take(PAGES_MAX).is_err());
    }

    #[test]
    fn pages_of_two_snapshots_are_spared() {
        let place = |page| LeafPlace { page, pages: 1, checksum: 0 };
        let mut state = LeafFile::default();
        state.turn(&[place(0), place(2)], &[], 1);
        state.turn(&[place(2), place(4)], &[], 1);
        assert_eq!((state.end(), state.replaced.len(), state.named().len()), (6, 1, 2));
        let (mut w, places) = (Writer::default(), [place(2), place(4)]);
        encode_places(&mut w, &places);
        state.encode(&mut w);
        let r = &mut Reader(&w.0, None);
        let read = decode_places(r).unwrap();
        assert_eq!(read, places);
        assert_eq!(LeafFile::decode(r, &read).unwrap(), state);
        state.turn(&[place(2)], &[], 1);
        assert_eq!((state.end(), state.replaced.iter().copied().collect()), (6, vec![(4, 2)]));
    }

    #[test]
    fn pages_of_leaves_on_demand_wait_for_two_epochs() {
        let place = |page| LeafPlace { page, pages: 1, checksum: 0 };
        let mut state = LeafFile::default();
        state.turn(&[place(0), place(2)], &[place(0)], 5);
        for epoch in [5, 5, 6, 6, 6] {
            state.turn(&[place(4)], &[], epoch);
            assert_eq!(*state.waiting, BTreeMap::from([((0, 2), 5)]));
        }
        let mut w = Writer::default();
        state.encode(&mut w);
        state.encode_waiting(&mut w);
        let r = &mut Reader(&w.0, None);
        let mut read = LeafFile::decode(r, &[place(4)]).unwrap();
        read.decode_waiting(r, &[]).unwrap();
        assert_eq!((&read, r.0.len()), (&state, 0));
        state.turn(&[place(4)], &[], 7);
        assert!(state.waiting.is_empty());
    }
}
