//! Leaves that maps share: all pages of the family at their place, and the blocks that only they
//! name.
//!
//! The inner pages above a leaf are found in steps and kept for its neighbours, until a checkpoint
//! changes them.

use std::sync::Arc;

use onefold_core::{Lba, Pba, Result};

use super::looking::has_room_for_both;
use crate::{
    coverage::Mark,
    format::{
        catalogue::Volume,
        page::{FANOUT, MapEntry, Page, PageId, Pointer, ReferenceEntry, Table},
        share::Share,
    },
    kernel::{Kernel, Mover, SharedPlan, Sharers},
    moving::{Found, Hindered, Moves, Why},
    overlay::Tables,
    rules::Rule,
    scheme::{
        shadow::{share_of, tops},
        verbs::Scheme,
    },
    sharing::{MapPages, Orphan, Place, Seen, Survey, Surveyed, counts},
};

/// Inner pages of a family that one step reads.
const INNER_PAGES_A_STEP: usize = 64;

/// Leaves of a family at one place that one step reads; with more of them the leaf stays.
const SHARED_LEAVES_MAX: usize = 64;

/// Map pages that a checkpoint writes because blocks below them moved, at most: 16 MiB.
pub(super) const SHARED_PAGES_MAX: u64 = 4096;

/// The same where nobody waits: 16 MiB of leaves, and 64 MiB of pages.
const ALONE_LEAVES_MAX: usize = 4096;
pub(super) const ALONE_PAGES_MAX: u64 = 4 * 4096;

/// The pages of all maps of a family at the place of a leaf.
pub(super) enum OfLeaf {
    /// They are not all found yet: the next step goes on.
    More,
    /// The leaf stays where it is, for this reason.
    Stays(Hindered),
    /// These, and what they need.
    Found(Place, SharedPlan),
}

/// Finds the pages of all maps of a family at the place of a leaf.
pub(super) fn of_leaf(
    kernel: &Kernel,
    tables: &Tables,
    (mover, orphans): (&mut Mover, Option<&[Orphan]>),
    volume: &Volume,
    leaf: u64,
) -> Result<OfLeaf> {
    let family = volume.family();
    let waits = OfLeaf::Stays(Hindered { by_leftovers: true, ..Hindered::default() });
    // Before the first checkpoint nobody knows them.
    let Some(orphans) = orphans else { return Ok(waits) };
    let has_orphans = orphans.iter().any(|orphan| orphan.id.volume == family);
    if has_orphans && kernel.keeps(Rule::MovesWaitForOrphans) {
        kernel.coverage.hit(Mark::OrphanInFamily);
        return Ok(waits);
    }
    let of = (tables.state.sequence, family, leaf / FANOUT);
    let mut sharers =
        mover.sharers.take().filter(|sharers| sharers.of == of).unwrap_or_else(|| {
            let survey = Survey::new(family, tops(&tables.volumes, family), vec![leaf]);
            Sharers { of, survey, found: Surveyed::More }
        });
    let mut pages = Looked { kernel, tables };
    if sharers.found == Surveyed::More {
        sharers.found = sharers.survey.advance(&mut pages, INNER_PAGES_A_STEP)?;
    }
    let (leaves_max, pages_max) = match mover.reseals_alone {
        Some(_) => (ALONE_LEAVES_MAX, ALONE_PAGES_MAX),
        None => (SHARED_LEAVES_MAX, SHARED_PAGES_MAX),
    };
    let damaged = OfLeaf::Stays(Hindered { by_damage: true, ..Hindered::default() });
    let many = OfLeaf::Stays(Hindered { by_versions: true, ..Hindered::default() });
    let found = match sharers.found {
        Surveyed::More => OfLeaf::More,
        Surveyed::Hidden => damaged,
        Surveyed::Complete => match sharers.survey.leaf(&mut pages, leaf, leaves_max)? {
            None if sharers.survey.leaves_at(&pages, leaf) > Some(leaves_max) => many,
            None => damaged,
            Some(place) => {
                let above = sharers.survey.inner().iter();
                let above = above.map(|(&at, place)| (at, place.len() as u64));
                let places = std::iter::once(((0, leaf), place.len() as u64)).chain(above);
                let places: Vec<_> = places.collect();
                // For more there is never room.
                if places.iter().map(|(_, pages)| pages).sum::<u64>() > pages_max {
                    many
                } else {
                    let leaves = place.values().map(|seen| seen.content.clone()).collect();
                    OfLeaf::Found(place, SharedPlan { family, places, leaves })
                }
            }
        },
    };
    mover.sharers = Some(sharers);
    Ok(found)
}

/// True when there is room for copies of so many blocks in so many places, and for the pages of the maps of a family besides.
pub(super) fn has_shared_room(
    kernel: &Kernel,
    scheme: &dyn Scheme,
    moves: &Moves,
    (more, places): (usize, usize),
    shared: &SharedPlan,
) -> bool {
    let pages = moves.uncounted(shared.family, &shared.places);
    let counted = kernel.state.lock().moving.shared_pages();
    counted + pages <= moves.most.shared_pages
        && has_room_for_both(kernel, scheme, moves, (more, places), pages)
}

/// Counts the pages of the maps of a family for the next checkpoint.
pub(super) fn count(kernel: &Kernel, moves: &mut Moves, shared: &SharedPlan) {
    let pages = moves.uncounted(shared.family, &shared.places);
    kernel.state.lock().moving.count_shared_pages(pages);
    moves.count_places(shared.family, &shared.places);
}

/// Picks those blocks of a leaf of a map, whose page is `mine`, that may be moved: only entries at the same place in the pages
/// of the family name them. Of neighbours that several of these pages name, the first map decides
/// where they lie, so that two of them do not take turns.
pub(super) fn movable(
    kernel: &Kernel,
    tables: &Tables,
    (volume, mine, why): (&Volume, Pba, Why),
    mut blocks: Found,
    (place, moves): (&Place, &Moves),
) -> Result<Found> {
    let family = volume.family();
    // What a client has changed, or a trim that waits, leaves the block to the other maps.
    blocks.retain(|&(lba, _)| !moves.has_shared(family, lba));
    let pba = |entry: MapEntry| match entry {
        MapEntry::Block { pba, .. } => Some(pba),
        _ => None,
    };
    let places = blocks.iter().filter_map(|&(_, entry)| Some(pba(entry)?.0));
    let references =
        kernel.pages.holding(Table::References, 0, &tables.state.references, places)?;
    let count_of = |pba: Pba| {
        references.get(pba.0).map(|((_, page), slot)| ReferenceEntry::get(page, slot).references)
    };
    blocks.retain(|&(lba, entry)| {
        let Some(count) = pba(entry).and_then(count_of) else { return false };
        let named = named_at(place, lba, entry);
        let decides = why == Why::Emptying || named.first == Some(mine);
        decides && count == named.count && count != ReferenceEntry::SATURATED
    });
    Ok(blocks)
}

/// The tables of the last checkpoint.
struct Looked<'k> {
    kernel: &'k Kernel,
    tables: &'k Tables,
}

impl MapPages for Looked<'_> {
    fn read(&mut self, pages: &[(PageId, Pointer)]) -> Vec<Result<Arc<Page>>> {
        let cache = &self.kernel.pages;
        let mut wanted: Vec<_> = pages.iter().map(|&(id, page)| (id, page, None)).collect();
        let keep = pages.iter().all(|(id, _)| id.level > 0);
        if cache.load(&mut wanted, keep).is_ok() {
            return wanted.into_iter().filter_map(|(.., page)| page.map(Ok)).collect();
        }
        pages.iter().map(|(id, page)| cache.get(*id, page)).collect()
    }

    fn share(&mut self, page: Pba) -> Result<Share> {
        share_of(self.kernel, &self.tables.state.shares, page)
    }

    fn keeps(&self, rule: Rule) -> bool {
        self.kernel.keeps(rule)
    }
}

/// The pages at a place that have an entry.
struct NamedAt {
    /// Those whose entry counts.
    count: u32,
    /// The page of the first map among them.
    first: Option<Pba>,
}

fn named_at(place: &Place, lba: Lba, wanted: MapEntry) -> NamedAt {
    let at = |page: &Arc<Page>| MapEntry::get(page, lba.0 % Table::Map.per_leaf());
    let mine = |seen: &&Seen| at(&seen.content) == Some(wanted);
    let first = place.values().filter(mine).min_by_key(|seen| seen.first);
    let counted = place.values().filter(mine).filter(|seen| {
        let lender = seen.share.lender.and_then(|lender| place.get(&lender.address));
        counts(wanted, lender.and_then(|lender| at(&lender.content)))
    });
    NamedAt { count: counted.count() as u32, first: first.map(|seen| seen.page.address) }
}
