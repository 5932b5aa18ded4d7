//! Maps that share pages: each page once, and whether table 8 says how it is named.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Held, Reader, Volume,
    blocks::FRAGMENTS,
    layout::{CATALOGUE, IN_PLACE},
    number,
    sealed::PAGE,
    tables::{Discard, Entry, LOST},
    tree::{Pointer, Table},
    zero,
};

/// Pointers of an inner page, and entries of a leaf of a map.
const FANOUT: u64 = 168;
const ENTRIES: u64 = 288;

/// An entry of table 8.
#[derive(Clone, Copy, Default)]
struct Share {
    count: u64,
    borrowers: u64,
    lender: Option<Pointer>,
}

/// The place of a page in its family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    family: u64,
    level: u64,
    page: u64,
}

/// All pages of maps.
#[derive(Default)]
struct Pages {
    shares: BTreeMap<u64, Share>,
    seen: BTreeMap<u64, (Place, Pointer)>,
    named: BTreeMap<u64, u64>,
    mapped: u64,
    /// The blocks that pages of each family name.
    blocks: BTreeMap<u64, BTreeSet<u64>>,
}

impl Reader<'_> {
    /// The volumes and snapshots of a store that shares pages, and what they hold; `None` when
    /// damage hides some.
    pub(super) fn sharing_volumes(&mut self, discards: &[Discard]) -> Option<Vec<Volume>> {
        let root = self.root(CATALOGUE);
        let leaves = self.leaves(Table { number: 10, volume: 0 }, root);
        let mut whole = leaves.hidden.is_empty() && !self.maps_hidden;
        let mut entries: Vec<Entry> = Vec::new();
        for leaf in &leaves.found {
            for (place, bytes) in (leaf.number * 7..).zip(leaf.body.chunks_exact(576)) {
                if zero(bytes) {
                    continue;
                }
                if place >= self.superblock.volumes {
                    self.problem(format!("place {place} of the catalogue is beyond its last"));
                }
                entries.push(Entry::decode_shared(bytes));
            }
        }
        let mut numbers: Vec<u64> = entries.iter().map(|entry| entry.number).collect();
        numbers.sort_unstable();
        if numbers.windows(2).any(|two| two[0] == two[1])
            || numbers.last().is_some_and(|&last| last >= self.superblock.next_volume)
        {
            self.problem("two maps have one number, or one beyond the next".to_owned());
        }
        if self.superblock.scheme == IN_PLACE {
            self.problem("maps with leaves in place share pages".to_owned());
        }
        let root = self.superblock.shares;
        let leaves = self.leaves(Table { number: 8, volume: 0 }, root);
        whole &= leaves.hidden.is_empty();
        let mut pages = Pages::default();
        for leaf in &leaves.found {
            for (at, bytes) in (leaf.number * 126..).zip(leaf.body.chunks_exact(32)) {
                if zero(bytes) {
                    continue;
                }
                let count = number::<4>(bytes, 0);
                let lender = Pointer::decode(&bytes[8..]);
                let share = Share {
                    count: count & 0x7fff_ffff,
                    borrowers: number::<4>(bytes, 4),
                    lender: (!lender.is_none()).then_some(lender),
                };
                if count >> 31 == 0 || (share.count, share.borrowers) == (1, 0) && lender.is_none()
                {
                    self.problem(format!("the entry of table 8 for block {at} says nothing"));
                }
                pages.shares.insert(at, share);
            }
        }
        for entry in entries.iter().filter(|entry| entry.top.1 > 0) {
            let place =
                Place { family: entry.family, level: entry.top.1 - 1, page: entry.top_page() };
            *pages.named.entry(entry.top.0.at).or_default() += 1;
            self.map_page(place, entry.top.0, &mut pages);
        }
        let orphans: Vec<u64> =
            pages.shares.iter().filter(|(_, share)| share.count == 0).map(|(&at, _)| at).collect();
        for at in orphans {
            self.orphan(at, &mut pages);
        }
        self.maps_hidden |= !whole;
        if !self.maps_hidden {
            self.judge_shares(&pages);
            self.count_domains(&entries, &pages);
            let too_many = self.superblock.inexact && pages.mapped < self.superblock.mapped;
            if pages.mapped != self.superblock.mapped && !too_many {
                self.problem(format!(
                    "{} entries that count name blocks, and the superblock says {}",
                    pages.mapped, self.superblock.mapped
                ));
            }
        }
        let volumes = entries.iter().filter(|entry| entry.kind < 2).map(|entry| {
            let mut name = entry.name.clone();
            if entry.kind == 1 {
                let origin = entries.iter().find(|origin| origin.number == entry.parent);
                name = format!("{}@{name}", origin.map_or("?", |origin| &origin.name));
            }
            self.shared_content(entry, name, discards)
        });
        let volumes = volumes.collect();
        whole.then_some(volumes)
    }

    /// A page of a map, and those below it: each is looked at once.
    fn map_page(&mut self, place: Place, pointer: Pointer, pages: &mut Pages) {
        if let Some(before) = pages.seen.insert(pointer.at, (place, pointer)) {
            if before != (place, pointer) {
                self.problem(format!("block {} is two pages of maps", pointer.at));
            }
            return;
        }
        let what = format!("page {} of level {} of map {}", place.page, place.level, place.family);
        self.take_page(pointer.at, &what);
        let lender = pages.shares.get(&pointer.at).and_then(|share| share.lender);
        let lender_body = lender.map(|lender| self.read_map(place, lender));
        let body = self.read_map(place, pointer);
        let (Some(body), Some(lender_body)) =
            (body, lender_body.map_or(Some(None), |body| body.map(Some)))
        else {
            let lent = lender.filter(|lender| self.damaged.contains(&lender.at));
            let at = lent.map_or(pointer.at, |lender| lender.at);
            self.wrong(at, || format!("is not {what}, or what it borrows from"));
            (self.pages_hidden, self.maps_hidden) = (true, true);
            return;
        };
        if place.level == 0 {
            for (n, bytes) in body.chunks_exact(14).take(ENTRIES as usize).enumerate() {
                if let Some((at, ..)) = self.map_entry_of(place.family, bytes) {
                    pages.blocks.entry(place.family).or_default().insert(at);
                }
                let same = lender_body
                    .as_ref()
                    .is_some_and(|lender| lender[n * 14..n * 14 + 14] == *bytes);
                if let Some((at, kind, prefix)) = self.map_entry_of(place.family, bytes)
                    && !same
                {
                    pages.mapped += 1;
                    self.link(at, kind, prefix, false);
                }
            }
            return;
        }
        for (n, bytes) in body.chunks_exact(24).take(FANOUT as usize).enumerate() {
            let child = Pointer::decode(bytes);
            if child.is_none() {
                continue;
            }
            if child.birth > pointer.birth {
                self.problem(format!("{what} is older than what it names"));
            }
            let lent = lender_body.as_ref().map(|body| Pointer::decode(&body[n * 24..]));
            if lent != Some(child) {
                *pages.named.entry(child.at).or_default() += 1;
            }
            let below =
                Place { level: place.level - 1, page: place.page * FANOUT + n as u64, ..place };
            self.map_page(below, child, pages);
        }
    }

    /// A page that nothing counts for: its own header says where it belongs.
    fn orphan(&mut self, at: u64, pages: &mut Pages) {
        if pages.seen.contains_key(&at) {
            return;
        }
        let bytes = self.metadata(PAGE, at);
        let place = Place {
            family: number::<4>(&bytes, 8),
            level: u64::from(bytes[5]),
            page: number::<8>(&bytes, 24),
        };
        let pointer = Pointer::of_page(&bytes);
        if bytes[4] != 1 || pointer.at != at || self.read_map(place, pointer).is_none() {
            self.wrong(at, || "is in table 8, and no page of a map".to_owned());
            (self.pages_hidden, self.maps_hidden) = (true, true);
            return;
        }
        self.map_page(place, pointer, pages);
    }

    fn read_map(&self, place: Place, pointer: Pointer) -> Option<Vec<u8>> {
        let table = Table { number: 1, volume: place.family };
        self.page(table, pointer, place.level, place.page)
    }

    /// Counts the blocks that the families of each domain with limits name.
    fn count_domains(&mut self, entries: &[Entry], pages: &Pages) {
        let families: BTreeMap<u64, u64> =
            entries.iter().map(|entry| (entry.family, entry.domain)).collect();
        for (domain, stored) in self.superblock.stored.clone() {
            let own =
                pages.blocks.iter().filter(|(family, _)| families.get(family) == Some(&domain));
            let found = own.flat_map(|(_, blocks)| blocks).collect::<BTreeSet<_>>().len() as u64;
            self.domains.push((domain, stored, found));
        }
    }

    /// Table 8 says how each page is named, and from which it borrows.
    fn judge_shares(&mut self, pages: &Pages) {
        let mut borrowers: BTreeMap<u64, u64> = BTreeMap::new();
        for (at, share) in &pages.shares {
            let Some(lender) = share.lender else { continue };
            *borrowers.entry(lender.at).or_default() += 1;
            let own = pages.seen.get(at);
            let from = pages.seen.get(&lender.at);
            if (own.is_none() || from.is_none()) && self.superblock.inexact {
                continue;
            }
            let right = own.zip(from).is_some_and(|(own, from)| {
                own.0 == from.0 && from.1 == lender && lender.birth <= own.1.birth
            });
            if !right {
                self.problem(format!(
                    "block {at} borrows from {}, which is not its like",
                    lender.at
                ));
            }
        }
        // Pages that could not be read may leave others behind, and counts that are too high.
        let inexact = self.superblock.inexact;
        let unseen = |at: &&u64| !pages.seen.contains_key(at) && !inexact;
        for at in pages.shares.keys().filter(unseen) {
            self.problem(format!("block {at} is in table 8, and no map has such a page"));
        }
        for at in pages.seen.keys() {
            let named = pages.named.get(at).copied().unwrap_or(0);
            let lent = borrowers.get(at).copied().unwrap_or(0);
            let share =
                pages.shares.get(at).copied().unwrap_or(Share { count: 1, ..Share::default() });
            let too_high = inexact && share.count >= named && share.borrowers >= lent;
            if (share.count, share.borrowers) != (named, lent) && !too_high {
                self.problem(format!(
                    "page {at} counts {} and lends to {}; {named} and {lent} are right",
                    share.count, share.borrowers
                ));
            }
        }
    }

    /// The content of a volume or snapshot.
    fn shared_content(&mut self, entry: &Entry, name: String, discards: &[Discard]) -> Volume {
        let mut volume = Volume {
            number: entry.number as u32,
            name,
            blocks: entry.blocks,
            held: BTreeMap::new(),
            dark: Vec::new(),
        };
        let mut lost = 0;
        if entry.top.1 > 0 {
            let top = Place { family: entry.family, level: entry.top.1 - 1, page: 0 };
            self.content_below(entry, top, entry.top.0, discards, &mut volume, &mut lost);
        }
        if lost != entry.lost && volume.dark.is_empty() {
            self.problem(format!(
                "map {} has {lost} addresses that are lost, and the catalogue says {}",
                entry.number, entry.lost
            ));
        }
        volume
    }

    fn content_below(
        &mut self,
        entry: &Entry,
        place: Place,
        pointer: Pointer,
        discards: &[Discard],
        volume: &mut Volume,
        lost: &mut u64,
    ) {
        let Some(body) = self.read_map(place, pointer) else {
            let span = FANOUT.saturating_pow(place.level as u32).saturating_mul(ENTRIES);
            let first = place.page.saturating_mul(span);
            volume.dark.push((first, first.saturating_add(span)));
            return;
        };
        if place.level > 0 {
            for (n, bytes) in (0..FANOUT).zip(body.chunks_exact(24)) {
                let child = Pointer::decode(bytes);
                if !child.is_none() {
                    let below =
                        Place { level: place.level - 1, page: place.page * FANOUT + n, ..place };
                    self.content_below(entry, below, child, discards, volume, lost);
                }
            }
            return;
        }
        for (lba, bytes) in (place.page * ENTRIES..).zip(body.chunks_exact(14)).take(288) {
            let gone = |discard: &Discard| discard.covers(entry.number, lba, pointer.birth);
            let (kind, at, prefix) = (bytes[0], number::<5>(bytes, 1), number::<8>(bytes, 6));
            *lost += u64::from(kind == LOST);
            if discards.iter().any(gone)
                || !(FRAGMENTS.contains(&kind) || [1, 2, LOST].contains(&kind))
            {
                continue;
            }
            if lba >= entry.blocks {
                self.problem(format!("block {lba} is beyond the end of map {}", entry.number));
            }
            if kind == LOST {
                volume.held.insert(lba, Held::Lost);
                continue;
            }
            let critical = entry.critical.iter().any(|&(first, end)| (first..end).contains(&lba));
            let held: Held = self.content(at, kind, prefix, (critical, entry.domain));
            volume.held.insert(lba, held);
            self.compare_mark(pointer.at, at);
        }
    }
}
