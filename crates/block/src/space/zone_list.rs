//! The zone list as it is kept while the store is open: which zones are listed, durably or not, and
//! which pages must be written.
//!
//! A page is written at most once between two flushes, to its two places by turns, so that one good
//! version always exists. A zone may be used when two versions in a row that list it are durable:
//! then either place alone tells of it, and when one of them rots, the other one, newer or older,
//! misses no zone that has carriers. The second version goes out with a later window, as the first
//! one did.

#[cfg(feature = "planted-bugs")]
mod broken;

use std::collections::BTreeMap;

use onefold_core::{Block, Pba, Result, ZoneId};

use crate::format::{
    Identity,
    geometry::Geometry,
    record::WindowNumber,
    zone_bitmap::ZoneBitmap,
    zone_list::{Entry, PER_PAGE, Page},
};

/// How far the last version of a page has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    Durable,
    Writing,
    Written,
    Flushing,
}

struct ListPage {
    page: Page,
    /// It should be written once more although no zone was listed.
    touched: bool,
    /// Zones that became full since it was written last.
    filled: u32,
    /// With this version every entry is in both places.
    wanted: u64,
    progress: Progress,
    /// This version of the page, and all before it, are durable.
    durable: u64,
}

#[derive(Clone, Copy)]
struct Slot {
    page: u32,
    slot: u32,
    /// The first version of the page with which the entry is in both places.
    version: u64,
}

/// A page that is to be written.
pub(crate) struct DuePage {
    page: usize,
    pub(crate) at: Pba,
    pub(crate) block: Box<Block>,
}

pub(crate) struct ZoneList {
    geometry: Geometry,
    pages: Vec<ListPage>,
    slots: BTreeMap<ZoneId, Slot>,
    free: Vec<(u32, u32)>,
    next_generation: u64,
    recovering: bool,
    /// Places in which an entry must be before its zone is used: both, or none when nothing in the
    /// zones is to be found again. Then no zone is listed, and there is no limit of them.
    places: u64,
    /// The list is being copied to other places: no page is written meanwhile.
    moving: bool,
}

impl ListPage {
    /// A page that is durable in both places.
    fn of(page: Page) -> ListPage {
        let durable = page.sequence;
        let progress = Progress::Durable;
        ListPage { page, touched: false, filled: 0, wanted: durable, progress, durable }
    }

    fn is_due(&self) -> bool {
        self.touched || self.page.sequence < self.wanted
    }

    /// Its last version is durable.
    fn is_settled(&self) -> bool {
        self.progress == Progress::Durable
    }
}

/// Zones of a page that may be full without its being written.
const FILLED_MAX: u32 = 8;

/// Places that only recovery uses.
const SLOTS_FOR_RECOVERY: usize = 2;

impl ZoneList {
    /// The list that recovery read: `pages` in order, whose entries are in both places. It is
    /// written only if `carriers` are.
    pub(crate) fn new(
        geometry: Geometry,
        pages: Vec<Page>,
        next_generation: u64,
        carriers: bool,
    ) -> ZoneList {
        let mut list = ZoneList {
            geometry,
            pages: Vec::new(),
            slots: BTreeMap::new(),
            free: Vec::new(),
            next_generation,
            recovering: false,
            places: if carriers { 2 } else { 0 },
            moving: false,
        };
        list.pages.extend(pages.into_iter().map(ListPage::of));
        list.free_slots(0);
        list
    }

    /// The slots of the pages from `first` on are free.
    fn free_slots(&mut self, first: usize) {
        let slots = |page| (0..PER_PAGE).map(move |slot| (page as u32, slot as u32));
        self.free.extend((first..self.pages.len()).flat_map(slots));
        // Lower pages are used first, so that few pages change.
        self.free.sort_by_key(|&place| std::cmp::Reverse(place));
    }

    /// Keeps the entry of a zone that recovery still needs; all others are dropped with the next
    /// write of their page.
    pub(crate) fn retain(&mut self, wanted: &[Entry]) {
        for (p, page) in self.pages.iter_mut().enumerate() {
            for (s, entry) in page.page.entries.iter_mut().enumerate() {
                let place = (p as u32, s as u32);
                match entry {
                    Some(found)
                        if wanted
                            .iter()
                            .any(|w| w.zone == found.zone && w.generation == found.generation) =>
                    {
                        self.slots
                            .insert(found.zone, Slot { page: place.0, slot: place.1, version: 0 });
                        self.free.retain(|&free| free != place);
                    }
                    _ => *entry = None,
                }
            }
        }
    }

    /// True when another zone can be listed. Two places are left to recovery, which must be able to
    /// write down what it found.
    pub(crate) fn has_room(&self) -> bool {
        self.places == 0 || self.free.len() > if self.recovering { 0 } else { SLOTS_FOR_RECOVERY }
    }

    /// Whether the places left to recovery may be used.
    pub(crate) fn set_recovering(&mut self, recovering: bool) {
        self.recovering = recovering;
    }

    /// Zones in the list.
    pub(crate) fn listed(&self) -> usize {
        self.slots.len()
    }

    /// Most zones that can be listed.
    pub(crate) fn limit(&self) -> usize {
        self.geometry.list_slots()
    }

    /// The generation that the next zone gets.
    pub(crate) fn next_generation(&self) -> u64 {
        self.next_generation
    }

    /// Lists a zone and gives its new generation. There must be room.
    pub(crate) fn add(&mut self, zone: ZoneId) -> u64 {
        let generation = self.next_generation;
        self.next_generation += 1;
        if self.places == 0 {
            return generation;
        }
        let place = self.free.pop();
        assert!(place.is_some(), "the zone list has room");
        let Some((page, slot)) = place else { return generation };
        let target = &mut self.pages[page as usize];
        target.page.entries[slot as usize] = Some(Entry { zone, generation, carriers: None });
        let version = target.page.sequence + self.places;
        target.wanted = version;
        self.slots.insert(zone, Slot { page, slot, version });
        generation
    }

    /// True when the zone's entry is durable in both places, so that carriers may be written into
    /// it.
    pub(crate) fn is_durable(&self, zone: ZoneId) -> bool {
        self.places == 0
            || self
                .slots
                .get(&zone)
                .is_some_and(|slot| slot.version <= self.pages[slot.page as usize].durable)
    }

    /// Notes where the carriers of a zone are that takes no more of them. Written when its page is,
    /// or when several of a page, or all, are full: a recovery reads the whole of a zone of
    /// which it does not know that.
    pub(crate) fn fill(&mut self, zone: ZoneId, carriers: ZoneBitmap) {
        let Some(slot) = self.slots.get(&zone) else { return };
        let page = &mut self.pages[slot.page as usize];
        let Some(entry) = &mut page.page.entries[slot.slot as usize] else { return };
        entry.carriers = Some(carriers);
        page.filled += 1;
        let all = page.page.entries.iter().flatten().all(|entry| entry.carriers.is_some());
        page.touched |= all || page.filled >= FILLED_MAX;
    }

    /// Drops a zone that a durable checkpoint holds. Written when its page is: a stale entry costs
    /// recovery a look, nothing else.
    pub(crate) fn remove(&mut self, zone: ZoneId) {
        if let Some(slot) = self.slots.remove(&zone) {
            self.pages[slot.page as usize].page.entries[slot.slot as usize] = None;
            self.free.push((slot.page, slot.slot));
            self.free.sort_by_key(|&place| std::cmp::Reverse(place));
        }
    }

    /// True when a page waits to be written.
    pub(crate) fn is_dirty(&self) -> bool {
        self.pages.iter().any(ListPage::is_due)
    }

    /// True when a page is not durable as it is now: writing and flushing, perhaps twice, makes
    /// more zones usable.
    pub(crate) fn is_pending(&self) -> bool {
        self.moving || self.pages.iter().any(|page| page.is_due() || !page.is_settled())
    }

    /// No page is written from now on, so that the list can be copied; true once none is on its way.
    pub(crate) fn hold_still(&mut self) -> bool {
        self.moving = true;
        self.pages.iter().all(ListPage::is_settled)
    }

    /// Both copies of each page as they are to lie in the places of `geometry`, in which nothing of
    /// this store is. They tell of the windows that the page told of: which more are durable is the
    /// scheme's to say. The list holds still, and goes on doing so until it has [`moved`](Self::moved).
    pub(crate) fn copies(
        &mut self,
        geometry: &Geometry,
        identity: &Identity,
    ) -> Result<Vec<DuePage>> {
        let more = self.pages.len()..geometry.list_pages as usize;
        self.pages.extend(more.map(|_| ListPage::of(Page::empty())));
        let mut copies = Vec::new();
        for (p, page) in self.pages.iter_mut().enumerate() {
            (page.touched, page.filled) = (false, 0);
            for _ in 0..2 {
                page.page.sequence += 1;
                let at = geometry.list_page(p as u32)[(page.page.sequence % 2) as usize];
                let block = page.page.encode(identity, p as u32, at.0)?;
                copies.push(DuePage { page: p, at, block });
            }
        }
        Ok(copies)
    }

    /// The store has these sizes from now on; a list that was copied is durable at its new places,
    /// and both superblocks name them.
    pub(crate) fn moved(&mut self, geometry: Geometry) {
        let pages = self.geometry.list_pages as usize;
        self.geometry = geometry;
        if std::mem::take(&mut self.moving) {
            for page in &mut self.pages {
                page.durable = page.page.sequence;
            }
            self.free_slots(pages);
        }
    }

    /// Makes the first page due, so that the durable window in it is written although nothing else
    /// happens.
    pub(crate) fn touch(&mut self, durable: WindowNumber) {
        if let Some(page) = self.pages.first_mut()
            && page.page.durable < durable
        {
            page.touched = true;
        }
    }

    /// The durable window that the first page told last.
    pub(crate) fn recorded_durable(&self) -> WindowNumber {
        self.pages.first().map_or(WindowNumber(0), |page| page.page.durable)
    }

    /// The pages that are due and may be written now, with their addresses.
    ///
    /// # Errors
    /// `Io`: the library of ciphers refuses.
    pub(crate) fn take_due(
        &mut self,
        identity: &Identity,
        durable: WindowNumber,
    ) -> Result<Vec<DuePage>> {
        let mut due = Vec::new();
        if self.moving {
            return Ok(due);
        }
        for (p, page) in self.pages.iter_mut().enumerate() {
            if page.is_due() && page.progress == Progress::Durable {
                (page.touched, page.filled) = (false, 0);
                page.progress = Progress::Writing;
                page.page.sequence += 1;
                page.page.durable = durable;
                let place = self.geometry.list_page(p as u32)[(page.page.sequence % 2) as usize];
                due.push(DuePage {
                    page: p,
                    at: place,
                    block: page.page.encode(identity, p as u32, place.0)?,
                });
            }
        }
        Ok(due)
    }

    fn advance(&mut self, from: Progress, to: Progress) {
        for page in self.pages.iter_mut().filter(|page| page.progress == from) {
            page.progress = to;
            if to == Progress::Durable {
                page.durable = page.page.sequence;
            }
        }
    }

    /// These pages are written.
    pub(crate) fn written(&mut self, due: &[DuePage]) {
        for due in due {
            self.pages[due.page].progress = Progress::Written;
        }
    }

    /// A flush begins.
    pub(crate) fn flushing(&mut self) {
        self.advance(Progress::Written, Progress::Flushing);
    }

    /// The flush that began last succeeded.
    pub(crate) fn flushed(&mut self) {
        self.advance(Progress::Flushing, Progress::Durable);
    }
}
