//! Maps that share pages, each page once, and how many entries name it.

use std::collections::BTreeMap;

use onefold_core::{Block, Pba, Result};

use super::build::Builder;
use crate::{
    block_set::BlockSet,
    check::{
        tables::Checker,
        walk::{Visit, leaves_below},
    },
    format::{
        catalogue::Volume,
        geometry::Geometry,
        page::{PageId, Pointer, Table},
        record::WindowNumber,
        share::Share,
        superblock::Root,
    },
};

/// Sees a leaf of a map. The volume is the first one that names it.
pub(super) type MapLeaf<'f, 'a> =
    &'f mut dyn FnMut(&mut Checker<'a>, &Volume, PageId, &Pointer, &Block);

/// The order in which maps are looked at: those that clients can read come first.
pub(super) fn in_order(volumes: &[Volume]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..volumes.len()).collect();
    order.sort_by_key(|&n| volumes[n].is_leaving());
    order
}

/// True when all addresses below a page are inside of a volume. Whatever such a page is for one
/// map it is for all maps that name it. Nobody reads a map that is leaving.
pub(super) fn is_whole(volume: &Volume, id: PageId) -> bool {
    let end = leaves_below(id).end.saturating_mul(Table::Map.per_leaf());
    volume.is_leaving() || end <= volume.blocks
}

/// How many entries name each page of a map, when no page has a lender.
pub(super) struct PageNames {
    any: BlockSet,
    /// Pages that more than one entry names.
    several: BTreeMap<Pba, u32>,
}

impl PageNames {
    pub(super) fn new(geometry: Geometry) -> PageNames {
        PageNames { any: BlockSet::new(geometry), several: BTreeMap::new() }
    }

    fn name(&mut self, page: Pba) {
        if !self.any.insert(page) {
            *self.several.entry(page).or_insert(1) += 1;
        }
    }

    /// Writes table 8: no page has a lender, and those that several entries name have an entry.
    pub(super) fn write(&self, builder: &mut Builder<'_>, birth: WindowNumber) -> Result<Root> {
        let per_leaf = Table::Shares.per_leaf();
        let mut leaves: BTreeMap<u64, Box<Block>> = BTreeMap::new();
        for (page, &count) in &self.several {
            let leaf = leaves.entry(page.0 / per_leaf).or_insert_with(Block::zeroed);
            Share { count, ..Share::default() }.set(leaf, page.0 % per_leaf);
        }
        let mut written = Vec::with_capacity(leaves.len());
        for (index, page) in leaves {
            let id = PageId { table: Table::Shares, volume: 0, level: 0, index };
            written.push((index, builder.page(id, birth, page)?));
        }
        builder.tree(Table::Shares, birth, written)
    }
}

/// Walks the maps of all volumes quietly. Where maps share pages each page is seen once, and
/// `names` counts who names it; without `names` a page that lies across the end of a volume is
/// seen for each volume, as its entries may be right for one and wrong for another.
pub(super) fn each_map_leaf<'a>(
    checker: &mut Checker<'a>,
    names: Option<&mut PageNames>,
    leaf: MapLeaf<'_, 'a>,
) {
    let volumes = checker.volumes.clone();
    if !checker.state.shares_pages() {
        for volume in &volumes {
            let mut each = |checker: &mut Checker<'a>, id, pointer: &Pointer, page: &Block| {
                leaf(checker, volume, id, pointer, page);
            };
            let all = Some(0..u64::MAX);
            checker.walk(Table::Map, volume.id.0, &volume.map, all, &mut each);
        }
        return;
    }
    let (walker, geometry) = (checker.walker, checker.geometry);
    let mut pass = Once { checker, seen: BlockSet::new(geometry), names, volume: None, leaf };
    for n in in_order(&volumes) {
        let volume = &volumes[n];
        let Some((id, top)) = volume.top() else { continue };
        pass.volume = Some(volume);
        if pass.named(id, &top, WindowNumber::MAX) {
            walker.walk_from(id, &top, &mut pass);
        }
    }
}

struct Once<'v, 'n, 'f, 'c, 'a> {
    checker: &'c mut Checker<'a>,
    seen: BlockSet,
    names: Option<&'n mut PageNames>,
    volume: Option<&'v Volume>,
    leaf: MapLeaf<'f, 'a>,
}

impl Visit for Once<'_, '_, '_, '_, '_> {
    fn named(&mut self, id: PageId, pointer: &Pointer, _: WindowNumber) -> bool {
        if !self.checker.geometry.holds(pointer.address) {
            return false;
        }
        let fresh = self.seen.insert(pointer.address);
        match &mut self.names {
            Some(names) => {
                names.name(pointer.address);
                fresh
            }
            None => fresh || self.volume.is_some_and(|volume| !is_whole(volume, id)),
        }
    }

    fn page(&mut self, id: PageId, pointer: &Pointer, page: Result<&Block>) {
        if let (0, Ok(page), Some(volume)) = (id.level, page, self.volume) {
            (self.leaf)(self.checker, volume, id, pointer, page);
        }
    }
}
