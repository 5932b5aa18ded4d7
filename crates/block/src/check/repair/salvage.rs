//! Finding the children of a damaged inner page of a map.
//!
//! Old versions of a page are freed by the checkpoint that replaces them. So of the blocks in use
//! that are not data and that nothing reachable names, those that are whole map pages are the lost
//! children, each of them the only one of its kind; and when every such block is one, what is not
//! found was not there. This needs the zone table and the table of references whole; without them,
//! or with a block that is none of all this, nothing that is missing is taken for a hole.

use std::collections::BTreeMap;

use onefold_core::{Pba, ZoneId};

use super::named::Named;
use crate::{
    check::{batch::read_each, tables::Checker, usage::BlockSet, walk::children},
    format::page::{FANOUT, PageId, Pointer, ReferenceEntry, Table, ZoneEntry, header},
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
        id: PageId,
        slot: u64,
    ) -> Child {
        let orphans = self.orphans.get_or_insert_with(|| Orphans::find(checker, named));
        let index = id.index.saturating_mul(FANOUT).saturating_add(slot);
        match orphans.pages.get(&(id.volume, id.level - 1, index)) {
            Some(Some(pointer)) => Child::Found(*pointer),
            None if orphans.complete => Child::None,
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
                        let found =
                            block.ok().and_then(|block| header(checker.walker.identity, block));
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
