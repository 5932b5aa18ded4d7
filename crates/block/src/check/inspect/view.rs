//! The tables of a store as they lie on the disk: the way to an entry, and the volumes.

use onefold_core::{Block, Disk, Error, Fingerprint, Kind, Pba, Result, VolumeId};

use crate::{
    check::{
        report::Named,
        walk::{Visit, Walker, leaves_below},
    },
    format::{
        Identity,
        catalogue::{Discard, Volume},
        page::{self, Page, PageId, Pointer, ReferenceEntry, Table, ZoneEntry},
        record::WindowNumber,
        superblock::{Root, Superblock},
    },
};

/// A store as it lies on the disk.
pub(super) struct View<'a> {
    pub(super) disk: &'a dyn Disk,
    pub(super) superblock: &'a Superblock,
    pub(super) identity: &'a Identity,
}

/// A page on the way to a leaf.
pub(super) struct Step {
    pub(super) id: PageId,
    pub(super) pointer: Pointer,
    pub(super) page: Result<Box<Block>>,
}

/// Collects the pages on the way to one leaf, or all of them.
struct Way<'a> {
    view: &'a View<'a>,
    leaf: Option<u64>,
    steps: Vec<Step>,
}

impl Visit for Way<'_> {
    fn named(&mut self, id: PageId, pointer: &Pointer, _: WindowNumber) -> bool {
        let wanted = self.leaf.is_none_or(|leaf| leaves_below(id).contains(&leaf));
        let inside = self.view.superblock.fixed.geometry.holds(pointer.address);
        if wanted && !inside {
            let page = Err(Error::new(Kind::Corrupt, "it lies outside of the zones"));
            self.steps.push(Step { id, pointer: *pointer, page });
        }
        wanted && inside
    }

    fn page(&mut self, id: PageId, pointer: &Pointer, page: Result<&Block>) {
        self.steps.push(Step {
            id,
            pointer: *pointer,
            page: page.map(|page| Box::new(page.clone())),
        });
    }
}

impl View<'_> {
    pub(super) fn walk(
        &self,
        table: Table,
        volume: u32,
        root: &Root,
        leaf: Option<u64>,
    ) -> Vec<Step> {
        let mut way = Way { view: self, leaf, steps: Vec::new() };
        self.visit(table, volume, root, &mut way);
        way.steps
    }

    /// Shows all pages of a table to `visit`, as far as it wants them.
    pub(super) fn visit(&self, table: Table, volume: u32, root: &Root, visit: &mut dyn Visit) {
        let walker = Walker { disk: self.disk, identity: self.identity };
        walker.walk(table, volume, root, self.superblock.state.committed, visit);
    }

    /// The pages on the way to the leaf that holds entry number `entry`, from the root on.
    pub(super) fn way(&self, table: Table, volume: u32, root: &Root, entry: u64) -> Vec<Step> {
        self.walk(table, volume, root, Some(entry / table.per_leaf()))
    }

    /// The root of a table; of a map, when the volume is known.
    pub(super) fn root(&self, table: Table, volume: u32) -> Option<Root> {
        let state = &self.superblock.state;
        match table {
            Table::Map => {
                self.volumes().into_iter().find(|known| known.id.0 == volume).map(|known| known.map)
            }
            Table::References => Some(state.references),
            Table::Fingerprints => Some(state.fingerprints),
            Table::Zones => Some(state.zones),
            Table::Catalogue if state.shares_pages() => None,
            Table::Catalogue => Some(state.catalogue),
            Table::Discards => Some(state.pending),
            Table::Index => Some(state.index),
            Table::Shares => Some(state.shares),
            Table::Maps => Some(state.catalogue),
        }
    }

    /// True when the newest tables name this page.
    pub(super) fn is_current(&self, id: PageId, pointer: &Pointer) -> bool {
        let Some(root) = self.root(id.table, id.volume) else { return false };
        let steps = self.walk(id.table, id.volume, &root, Some(leaves_below(id).start));
        steps.iter().any(|step| step.id == id && step.pointer == *pointer)
    }

    /// All volumes that can be read.
    pub(super) fn volumes(&self) -> Vec<Volume> {
        let state = &self.superblock.state;
        let table = if state.shares_pages() { Table::Maps } else { Table::Catalogue };
        let per_leaf = table.per_leaf();
        let leaves = self.walk(table, 0, &state.catalogue, None);
        let pages = leaves
            .iter()
            .filter(|step| step.id.level == 0)
            .filter_map(|step| Some((step.id, step.page.as_ref().ok()?)));
        let get = |page: &Page, slot| match table {
            Table::Maps => Volume::get_shared(page, slot).flatten(),
            _ => Volume::get(page, slot),
        };
        let entries = pages.flat_map(|(id, page)| {
            (0..per_leaf).map(move |slot| (id.index * per_leaf + slot, get(page, slot)))
        });
        entries
            .filter(|(entry, _)| *entry < u64::from(state.volumes))
            .filter_map(|(_, volume)| volume)
            .collect()
    }

    pub(super) fn volume(&self, name: &str) -> Result<Volume> {
        let volume = self.volumes().into_iter().find(|volume| volume.name == name);
        volume.ok_or_else(|| {
            Error::new(
                Kind::NotFound,
                format!("there is no volume '{name}' in the last checkpoint"),
            )
        })
    }

    /// The pending discards of a volume.
    pub(super) fn discards(&self, volume: VolumeId) -> Vec<Discard> {
        let state = &self.superblock.state;
        let per_leaf = Table::Discards.per_leaf();
        let leaves = self.walk(Table::Discards, 0, &state.pending, None);
        let pages = leaves
            .iter()
            .filter(|step| step.id.level == 0)
            .filter_map(|step| Some((step.id, step.page.as_ref().ok()?)));
        let entries = pages.flat_map(|(id, page)| {
            (0..per_leaf).map(move |slot| (id.index * per_leaf + slot, Discard::get(page, slot)))
        });
        let counted = entries
            .filter(|(entry, _)| *entry < u64::from(state.discards))
            .filter_map(|(_, discard)| discard);
        counted.filter(|discard| discard.volume == volume).collect()
    }

    /// The entry of a block in the table of references: an error when its page is damaged, the
    /// default when there is none.
    pub(super) fn references(&self, pba: Pba) -> Result<ReferenceEntry> {
        let way = self.way(Table::References, 0, &self.superblock.state.references, pba.0);
        let slot = pba.0 % Table::References.per_leaf();
        leaf(way).map(|page| {
            page.map_or_else(ReferenceEntry::default, |page| ReferenceEntry::get(&page, slot))
        })
    }

    /// The fingerprint of a block, likewise.
    pub(super) fn fingerprint(&self, pba: Pba) -> Result<Fingerprint> {
        let way = self.way(Table::Fingerprints, 0, &self.superblock.state.fingerprints, pba.0);
        let slot = pba.0 % Table::Fingerprints.per_leaf();
        leaf(way).map(|page| {
            page.map_or_else(Fingerprint::default, |page| page::fingerprint(&page, slot))
        })
    }

    /// The bitmap of a zone.
    pub(super) fn zone(&self, zone: u64) -> Result<ZoneEntry> {
        let way = self.way(Table::Zones, 0, &self.superblock.state.zones, zone);
        let slot = zone % Table::Zones.per_leaf();
        leaf(way).map(|page| {
            page.map_or(ZoneEntry { used: Default::default() }, |page| ZoneEntry::get(&page, slot))
        })
    }
}

/// The leaf at the end of a way, if there is one.
fn leaf(way: Vec<Step>) -> Result<Option<Box<Block>>> {
    match way.into_iter().next_back() {
        Some(Step { id, page: Ok(page), .. }) if id.level == 0 => Ok(Some(page)),
        Some(Step { id, pointer, page: Err(e) }) => {
            Err(e.context(format!("{} (block {})", Named(id), pointer.address)))
        }
        _ => Ok(None),
    }
}
