//! Finding the children of a damaged inner page of a map.
//!
//! Old versions of a page are freed by the checkpoint that replaces them. So of the blocks in use
//! that are not data and that nothing reachable names, those that are whole map pages are the lost
//! children, each of them the only one of its kind; and when every such block is one, what is not
//! found was not there. This needs the zone table and the table of references whole; without them,
//! or with a block that is none of all this, nothing that is missing is taken for a hole.
//!
//! Where maps share pages, the child may also be one that another map names. So a page that nobody
//! reachable names is the lost child only if one damaged page alone can have named it; and where
//! another map has a page in that place, a child that is not found is unknown, not a hole.

use std::collections::{BTreeMap, BTreeSet};

use onefold_core::{Block, Pba, Result, ZoneId};

use super::named::Named;
use crate::{
    block_set::BlockSet,
    check::{
        batch::read_each,
        tables::Checker,
        walk::{Visit, children},
    },
    format::{
        catalogue::Volume,
        page::{FANOUT, PageId, Pointer, ReferenceEntry, Table, ZoneEntry, header},
        record::WindowNumber,
    },
};

/// The fate of a child.
pub(super) enum Child {
    /// The lost child is here.
    Found(Pointer),
    /// There was none.
    None,
    /// Nobody can know.
    Unknown,
}

/// Pages without a parent, looked for when the first is missed.
#[derive(Default)]
pub(super) struct Salvage {
    orphans: Option<Orphans>,
    shared: Option<Shared>,
}

/// The facts that maps which share pages add: a lost child may be a page that others name as well.
#[derive(Default)]
struct Shared {
    /// The damaged pages.
    lost: Vec<(PageId, Pointer)>,
    /// Places below damaged pages that have a page elsewhere: in a map, or below one that waits to
    /// be handed over.
    elsewhere: BTreeSet<(u32, u8, u64)>,
    /// True when a page that waits to be handed over can't be read, or accounts can't.
    dark: bool,
}

impl Shared {
    fn find(checker: &mut Checker<'_>) -> Shared {
        let mut shared = Shared::default();
        if !checker.state.shares_pages() {
            return shared;
        }
        let damaged: BTreeMap<Pba, (PageId, Pointer)> = checker
            .damaged_pages
            .iter()
            .filter(|(id, _)| id.table == Table::Map)
            .map(|&(id, pointer)| (pointer.address, (id, pointer)))
            .collect();
        // A page was called damaged as well when only the one that it borrows from is.
        let mut block = Block::zeroed_vec(1);
        let unread = |page: &(PageId, Pointer)| {
            checker.walker.read(&[*page], &mut block).iter().any(Result::is_err)
        };
        shared.lost = damaged.into_values().filter(unread).collect();
        let mut tops: Vec<(PageId, Pointer)> =
            checker.volumes.iter().filter_map(Volume::top).collect();
        for account in checker.accounts.pages.values().filter(|one| one.share.is_orphan()) {
            match account.known {
                Some(known) => tops.push(known),
                None => shared.dark = true,
            }
        }
        shared.dark |= checker.shares_dark;
        let mut ways = BTreeSet::new();
        for (id, _) in shared.lost.iter().filter(|(id, _)| id.level > 0) {
            let mut place = (id.volume, id.level, id.index);
            while place.1 < 10 && ways.insert(place) {
                place = (place.0, place.1 + 1, place.2 / FANOUT);
            }
        }
        let mut seen = BlockSet::new(checker.geometry);
        let mut pass =
            Elsewhere { checker, ways: &ways, seen: &mut seen, found: &mut shared.elsewhere };
        for (id, top) in tops {
            if pass.named(id, &top, WindowNumber::MAX) {
                pass.checker.walker.walk_from(id, &top, &mut pass);
            }
        }
        shared
    }

    /// True when a damaged page is the only one that may have named what nobody else names: no
    /// other page of its family, in its place or above, is damaged.
    fn is_only_loss(&self, id: PageId, pointer: &Pointer) -> bool {
        let covers = |other: &PageId| {
            let above = other.level.checked_sub(id.level);
            other.volume == id.volume
                && above
                    .and_then(|levels| FANOUT.checked_pow(u32::from(levels)))
                    .is_some_and(|below| id.index / below == other.index)
        };
        let mut covering = self.lost.iter().filter(|(other, _)| covers(other));
        let only = covering.next() == Some(&(id, *pointer)) && covering.next().is_none();
        only && !self.dark
    }
}

/// Finds the pages of maps in places below damaged pages.
struct Elsewhere<'s, 'c, 'a> {
    checker: &'c Checker<'a>,
    ways: &'s BTreeSet<(u32, u8, u64)>,
    seen: &'s mut BlockSet,
    found: &'s mut BTreeSet<(u32, u8, u64)>,
}

impl Visit for Elsewhere<'_, '_, '_> {
    fn named(&mut self, id: PageId, pointer: &Pointer, _: WindowNumber) -> bool {
        let above = (id.volume, id.level + 1, id.index / FANOUT);
        if self.ways.contains(&above) {
            self.found.insert((id.volume, id.level, id.index));
        }
        id.level > 0
            && self.ways.contains(&(id.volume, id.level, id.index))
            && self.checker.geometry.holds(pointer.address)
            && self.seen.insert(pointer.address)
    }

    fn page(&mut self, _: PageId, _: &Pointer, _: Result<&Block>) {}
}

#[derive(Default)]
struct Orphans {
    /// By volume, level and number; `None` when several claim to be it.
    pages: BTreeMap<(u32, u8, u64), Option<Pointer>>,
    /// True when everything in use is accounted for.
    complete: bool,
}

impl Salvage {
    /// The child number `slot` of a damaged page.
    pub(super) fn child(
        &mut self,
        checker: &mut Checker<'_>,
        named: &Named,
        (id, pointer): (PageId, Pointer),
        slot: u64,
    ) -> Child {
        let orphans = self.orphans.get_or_insert_with(|| Orphans::find(checker, named));
        let shared = self.shared.get_or_insert_with(|| Shared::find(checker));
        let index = id.index.saturating_mul(FANOUT).saturating_add(slot);
        let place = (id.volume, id.level - 1, index);
        if checker.state.shares_pages() && !shared.is_only_loss(id, &pointer) {
            return Child::Unknown;
        }
        match orphans.pages.get(&place) {
            Some(Some(pointer)) => Child::Found(*pointer),
            None if orphans.complete && !shared.elsewhere.contains(&place) => Child::None,
            _ => Child::Unknown,
        }
    }
}

impl Orphans {
    fn find(checker: &mut Checker<'_>, named: &Named) -> Orphans {
        let mut orphans = Orphans {
            complete: checker.dark.zones.is_empty() && checker.dark.references.is_empty(),
            ..Orphans::default()
        };
        if !orphans.complete {
            return orphans;
        }
        let mut counted = BlockSet::new(checker.geometry);
        checker.walk(
            Table::References,
            0,
            &checker.state.references,
            Some(0..u64::MAX),
            &mut |checker, id, _, page| {
                for slot in 0..Table::References.per_leaf() {
                    let pba = Pba(id.index * Table::References.per_leaf() + slot);
                    if ReferenceEntry::get(page, slot).references > 0 && checker.geometry.holds(pba)
                    {
                        counted.insert(pba);
                    }
                }
            },
        );
        checker.walk(
            Table::Zones,
            0,
            &checker.state.zones,
            Some(0..u64::MAX),
            &mut |checker, id, _, page| {
                for slot in 0..Table::Zones.per_leaf() {
                    let zone = ZoneId(id.index * Table::Zones.per_leaf() + slot);
                    let used = ZoneEntry::get(page, slot).used;
                    let blocks =
                        used.iter().map(|n| Pba(zone.0 * checker.geometry.zone_blocks + n as u64));
                    let unnamed = |pba: &Pba| {
                        checker.geometry.holds(*pba)
                            && !checker.pages.contains(*pba)
                            && !counted.contains(*pba)
                            && !named.data.contains(*pba)
                    };
                    let suspects: Vec<Pba> = blocks.filter(unnamed).collect();
                    read_each(checker.walker.disk, &suspects, &mut |pba, block| {
                        let found = block.ok().and_then(|block| {
                            header(checker.walker.identity, pba, &mut block.0.clone())
                        });
                        match found.filter(|(_, pointer)| {
                            pointer.address == pba && pointer.birth <= checker.state.committed
                        }) {
                            Some((id, pointer)) if id.table == Table::Map => {
                                let orphan = (id.volume, id.level, id.index);
                                orphans
                                    .pages
                                    .entry(orphan)
                                    .and_modify(|known| *known = None)
                                    .or_insert(Some(pointer));
                            }
                            _ => orphans.complete = false,
                        }
                    });
                }
            },
        );
        orphans
    }
}

/// The children that an inner page names, by their slots.
pub(super) fn slots(id: PageId, page: &onefold_core::Block) -> Vec<(u64, PageId, Pointer)> {
    children(id, page)
        .into_iter()
        .map(|(child, pointer)| (child.index % FANOUT, child, pointer))
        .collect()
}
