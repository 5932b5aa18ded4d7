//! Live pages of a store, found by the decoders of its format: where rot meets what shares pages.

use onefold_block::format::{
    Identity,
    catalogue::{Discard, Volume},
    page::{self, FANOUT, Page, PageId, Pointer, Root, Table},
    share::Share,
    superblock::Superblock,
};
use onefold_core::Pba;
use onefold_testbed::disk::Image;

/// Pages of the table of shares, pages that lend or that nothing counts for, and pages of maps below
/// ranges that wait to be applied; each with what it is.
pub(super) fn shared_pages(
    view: &Image,
    superblock: &Superblock,
    identity: &Identity,
) -> Vec<(Pba, &'static str)> {
    let state = &superblock.state;
    let tree = |table: Table, volume: u32, root: &Root| {
        let mut found = Vec::new();
        if let Some(level) = root.height.checked_sub(1) {
            let id = PageId { table, volume, level, index: 0 };
            below(view, identity, id, &root.page, &mut found);
        }
        found
    };
    let leaf = |table: Table, root: &Root, n: u64| {
        let index = n / table.per_leaf();
        let pages = tree(table, 0, root);
        let (_, at) = pages.into_iter().find(|(id, _)| id.level == 0 && id.index == index)?;
        opened(view, identity, at)
    };
    let mut all = Vec::new();
    for (id, at) in tree(Table::Shares, 0, &state.shares) {
        all.push((at, "rot: page of the table of shares"));
        let Some(page) = opened(view, identity, at).filter(|_| id.level == 0) else { continue };
        for slot in 0..Table::Shares.per_leaf() {
            let share = Share::get(&page, slot);
            let owner = Pba(id.index * Table::Shares.per_leaf() + slot);
            all.extend(share.lender.map(|lender| (lender.address, "rot: page that lends")));
            all.extend(share.is_orphan().then_some((owner, "rot: page that nothing counts for")));
        }
    }
    let ranges: Vec<Discard> = (0..u64::from(state.discards))
        .filter_map(|n| {
            let page = leaf(Table::Discards, &state.pending, n)?;
            Discard::get(&page, n % Table::Discards.per_leaf())
        })
        .collect();
    for n in (0..u64::from(state.volumes)).filter(|_| !ranges.is_empty()) {
        let Some(page) = leaf(Table::Maps, &state.catalogue, n) else { continue };
        let entry = Volume::get_shared(&page, n % Table::Maps.per_leaf()).flatten();
        let Some(volume) = entry.filter(|volume| !volume.is_leaving()) else { continue };
        let mine = ranges.iter().filter(|range| range.volume == volume.id);
        let mine: Vec<&Discard> = mine.collect();
        let waits = |(id, _): &(PageId, Pba)| {
            let reach = Table::Map.per_leaf() * FANOUT.pow(u32::from(id.level));
            let (first, end) = (id.index * reach, (id.index + 1) * reach);
            mine.iter().any(|range| range.start < end && first < range.end)
        };
        let pages = tree(Table::Map, volume.family(), &volume.map).into_iter().filter(waits);
        all.extend(pages.map(|(_, at)| (at, "rot: page below a range that waits")));
    }
    all
}

/// A page, opened if the store is sealed.
fn opened(view: &Image, identity: &Identity, at: Pba) -> Option<Page> {
    let mut page = **view.get(at.0)?;
    page::open(identity, at, &mut page).then_some(page)
}

/// A page and those below it, as far as they are whole.
fn below(
    view: &Image,
    identity: &Identity,
    id: PageId,
    pointer: &Pointer,
    found: &mut Vec<(PageId, Pba)>,
) {
    let Some(mut bytes) = view.get(pointer.address.0).map(|bytes| **bytes) else { return };
    if pointer.in_place || page::verify(identity, id, pointer, &mut bytes).is_err() {
        return;
    }
    found.push((id, pointer.address));
    for slot in (0..FANOUT).filter(|_| id.level > 0) {
        let child = page::pointer(&bytes, slot);
        if !child.is_none() {
            let place = PageId { level: id.level - 1, index: id.index * FANOUT + slot, ..id };
            below(view, identity, place, &child, found);
        }
    }
}
