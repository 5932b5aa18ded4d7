//! The structured tables of a checkpoint: every page, every entry, and whether they agree with each
//! other.
//!
//! 1. Catalogue and pending discards, whole.
//! 2. Tables of references, fingerprints and zones: every page, and what an entry can show alone.
//! 3. For one stretch of zones after the other, as many as memory allows: bitmaps, counts and
//!    fingerprints are loaded, all maps walked and counted, then each block is compared
//!    (`compare.rs`), and its carriers are read.
//!
//! Nothing is written and nothing is believed: a damaged page is reported once, and what it would
//! have told is left out of judgement, so that one flipped bit gives one problem and not a
//! thousand.

use std::ops::Range;

use onefold_core::{Block, Disk, Error, Lba, Pba, Result, ZoneId};

use super::{
    accounts::Accounts,
    counts::Counts,
    lost::Lost,
    packs::{Fragment, Packs},
    report::{Phase, Place, Progress, Report},
    usage::{Dark, FACT_BYTES, Named, Usage},
    walk::{Visit, Walker, leaves_below},
};
use crate::{
    block_set::BlockSet,
    format::{
        Identity,
        catalogue::{MapKind, Volume},
        choices::LeafChanges,
        geometry::Geometry,
        page::{self, Form, MapEntry, PageId, Pointer, ReferenceEntry, Table, ZoneEntry, body},
        record::WindowNumber,
        superblock::{Root, State, Superblock},
    },
    index::paged,
    window::ranges::Ranges,
};

/// The state of a check of tables.
pub(crate) struct Checker<'a> {
    pub(crate) walker: Walker<'a>,
    pub(crate) geometry: Geometry,
    pub(crate) state: &'a State,
    pub(crate) report: &'a mut Report,
    pub(crate) progress: &'a mut dyn FnMut(Progress),
    /// Blocks that hold table pages.
    pub(crate) pages: BlockSet,
    pub(crate) volumes: Vec<Volume>,
    pub(crate) discards: Ranges,
    /// The accounts of shared pages.
    pub(super) accounts: Accounts,
    pub(crate) dark: Dark,
    /// True when maps can't be read completely: counts may then be higher than what is found.
    pub(crate) maps_dark: bool,
    /// True when any page is unknown: a block in use may then be one.
    pub(crate) pages_dark: bool,
    /// True when volumes, or ranges that are to be applied, can't be known.
    pub(crate) catalogue_dark: bool,
    /// True when the accounts of shared pages can't be read completely.
    pub(crate) shares_dark: bool,
    /// True when the index on disk can't be read completely.
    pub(crate) index_dark: bool,
    /// Pages that can't be read, or are not what their parent says.
    pub(crate) damaged_pages: Vec<(PageId, Pointer)>,
    /// Carriers that live mappings name and that are damaged.
    pub(crate) damaged_carriers: Vec<Pba>,
    /// Packs that mappings name, and the mappings that do and count.
    packs: u64,
    fragments: u64,
    /// Stretches of zones whose blocks were compared together.
    pub(crate) stretches: Vec<Range<u64>>,
    lost: Lost,
    pub(super) counts: Counts,
    read: u64,
    /// Leaves are written in place: counts include the fingerprint's own reference, and change
    /// between checkpoints.
    pub(crate) in_place: bool,
    /// Counts may be too high.
    pub(crate) inexact: bool,
}

/// Sees every leaf of one kind.
type Leaf<'f, 'a> = &'f mut dyn FnMut(&mut Checker<'a>, PageId, &Pointer, &Block);

/// One walk over a tree.
struct Pass<'f, 'c, 'a> {
    checker: &'c mut Checker<'a>,
    /// True when its pages are seen for the first time, and judged.
    first: bool,
    /// The leaves that are wanted.
    leaves: Range<u64>,
    leaf: Leaf<'f, 'a>,
}

impl Visit for Pass<'_, '_, '_> {
    fn named(&mut self, id: PageId, pointer: &Pointer, parent: WindowNumber) -> bool {
        if self.first {
            return self.checker.admit(id, pointer, parent);
        }
        let below = leaves_below(id);
        self.checker.geometry.holds(pointer.address)
            && below.start < self.leaves.end
            && self.leaves.start < below.end
    }

    fn page(&mut self, id: PageId, pointer: &Pointer, page: Result<&Block>) {
        match page {
            Ok(page) if id.level == 0 => {
                if self.first {
                    self.checker.read(id, pointer, page);
                }
                (self.leaf)(self.checker, id, pointer, page);
            }
            Ok(_) => {}
            Err(e) if self.first => self.checker.damaged(id, pointer, &e),
            Err(_) => {}
        }
    }
}

impl<'a> Checker<'a> {
    pub(crate) fn new(
        disk: &'a dyn Disk,
        identity: &'a Identity,
        superblock: &'a Superblock,
        report: &'a mut Report,
        progress: &'a mut dyn FnMut(Progress),
    ) -> Checker<'a> {
        let geometry = superblock.fixed.geometry;
        Checker {
            walker: Walker { disk, identity },
            geometry,
            state: &superblock.state,
            report,
            progress,
            pages: BlockSet::new(geometry),
            volumes: Vec::new(),
            discards: Ranges::default(),
            accounts: Accounts::default(),
            dark: Dark::default(),
            maps_dark: false,
            pages_dark: false,
            catalogue_dark: false,
            index_dark: false,
            shares_dark: false,
            damaged_pages: Vec::new(),
            damaged_carriers: Vec::new(),
            packs: 0,
            fragments: 0,
            stretches: Vec::new(),
            lost: Lost::default(),
            counts: Counts::of(&superblock.state, geometry),
            read: 0,
            in_place: superblock.fixed.scheme.leaf_changes() == LeafChanges::InPlace,
            inexact: superblock.state.inexact || !superblock.state.clean,
        }
    }

    /// Checks all tables; carriers for which `proven` is true are not read. Uses about `memory`
    /// bytes.
    pub(crate) fn run(&mut self, memory: u64, proven: &mut dyn FnMut(Pba) -> bool) {
        (self.report.leaked_blocks, self.report.carriers, self.report.lost_addresses) = (0, 0, 0);
        (self.packs, self.fragments) = (0, 0);
        // In place, a fingerprint may not be written yet, or may have been lost in a crash.
        self.dark.may_lack = self.in_place;
        if self.in_place && !self.state.clean {
            // Since the checkpoint, blocks came into use that the zone table has as free.
            Dark::add(&mut self.dark.zones, 0..u64::MAX);
        }
        self.catalogue();
        self.pending();
        if self.state.shares_pages() {
            self.accounts = self.accounts();
        }
        self.index();
        self.references();
        self.walk(Table::Fingerprints, 0, &self.state.fingerprints, None, &mut |_, _, _, _| {});
        self.stretches = self.zones(self.zones_within(memory));
        if self.counts_too_high() {
            let what = "a page of an old snapshot could not be read, so that counts may be too high and some space is held by nothing: onefold repair counts anew";
            self.report.problem(Place::Store, what);
        }
        for n in 0..self.stretches.len() {
            self.stretch(self.stretches[n].clone(), n == 0, proven);
        }
        self.judge_packs();
        if self.state.shares_pages() {
            let are_whole = !(self.maps_dark || self.catalogue_dark || self.shares_dark);
            for note in self.lost.notes(&self.walker, &self.volumes, are_whole) {
                self.report.note(note);
            }
        }
        self.report.pages = self.read;
        self.report.volumes =
            self.volumes.iter().filter(|volume| volume.is_named(MapKind::Volume)).count() as u64;
        self.report.pending_discards = self.discards.len() as u64;
    }

    /// Compares the superblock's numbers of packs, and of what names them.
    fn judge_packs(&mut self) {
        let State { packs, fragments, .. } = *self.state;
        (self.report.packs, self.report.fragments) = (self.packs, self.fragments);
        let is_known = !self.maps_dark
            && !self.catalogue_dark
            && !self.counts_too_high()
            && self.report.saturated_blocks == 0;
        if is_known && (packs, fragments) != (self.packs, self.fragments) {
            let what = format!(
                "it counts {packs} packs and {fragments} addresses in them, but there are {} and {}",
                self.packs, self.fragments
            );
            self.report.problem(Place::Superblock((self.state.sequence % 2) as u32), what);
        }
    }

    /// Walks a tree: all of it, judging its pages, or quietly those `leaves` that are wanted.
    pub(crate) fn walk(
        &mut self,
        table: Table,
        volume: u32,
        root: &Root,
        leaves: Option<Range<u64>>,
        leaf: Leaf<'_, 'a>,
    ) {
        let (walker, committed) = (self.walker, self.state.committed);
        let (first, leaves) = (leaves.is_none(), leaves.unwrap_or(0..u64::MAX));
        walker.walk(
            table,
            volume,
            root,
            committed,
            &mut Pass { checker: self, first, leaves, leaf },
        );
    }

    /// A page can't be read, or is not what its parent says.
    pub(super) fn damaged(&mut self, id: PageId, pointer: &Pointer, error: &Error) {
        self.report.problem(Place::Page(id, pointer.address), error.to_string());
        self.damaged_pages.push((id, *pointer));
        self.darken(id);
    }

    /// Judges a page by what its parent says of it. Returns whether it is worth reading.
    pub(super) fn admit(&mut self, id: PageId, pointer: &Pointer, parent: WindowNumber) -> bool {
        let place = Place::Page(id, pointer.address);
        let reach = leaves_below(id).start.saturating_mul(id.table.per_leaf());
        let limit = match id.table {
            Table::Map => Lba::MAX.0 + 1,
            Table::References | Table::Fingerprints | Table::Shares => self.geometry.blocks(),
            Table::Zones => self.geometry.zones,
            Table::Catalogue | Table::Maps => u64::from(self.state.volumes),
            Table::Discards => u64::from(self.state.discards),
            Table::Index => 1 << self.state.index_bits,
        };
        let in_use = self.geometry.zone_of(pointer.address).0 < self.state.high_water;
        let wrong = if !self.geometry.holds(pointer.address) {
            "its parent names it outside of the zones"
        } else if !in_use {
            "it lies in a zone that was never used"
        } else if reach >= limit {
            "it lies beyond the end of its table"
        } else if self.pages.contains(pointer.address) {
            "its block belongs to another page as well"
        } else {
            if pointer.birth > parent {
                self.report.problem(
                    place.clone(),
                    format!(
                        "it is of window {}, newer than window {parent} of what names it",
                        pointer.birth
                    ),
                );
            }
            self.pages.insert(pointer.address);
            return true;
        };
        self.report.problem(place, wrong);
        self.darken(id);
        false
    }

    /// True when pages of shared maps could not be read, so that counts may be too high.
    pub(super) fn counts_too_high(&self) -> bool {
        self.state.inexact && !self.in_place
    }

    /// True when a block may hold data.
    pub(crate) fn may_hold(&self, pba: Pba) -> bool {
        self.geometry.holds(pba) && self.geometry.zone_of(pba).0 < self.zones_in_use()
    }

    /// Zones below this one may be in use: of leaves in place, those opened since the checkpoint as
    /// well.
    fn zones_in_use(&self) -> u64 {
        if self.in_place && !self.state.clean { self.geometry.zones } else { self.state.high_water }
    }

    /// Leaves out of judgement what a page would have told.
    fn darken(&mut self, id: PageId) {
        self.pages_dark |= id.level > 0;
        let below = leaves_below(id);
        let per_leaf = id.table.per_leaf();
        let entries = below.start.saturating_mul(per_leaf)..below.end.saturating_mul(per_leaf);
        match id.table {
            Table::Map => self.maps_dark = true,
            Table::Catalogue | Table::Maps => {
                (self.maps_dark, self.pages_dark, self.catalogue_dark) = (true, true, true)
            }
            Table::References => Dark::add(&mut self.dark.references, entries),
            Table::Fingerprints => Dark::add(&mut self.dark.fingerprints, entries),
            Table::Zones => Dark::add(&mut self.dark.zones, entries),
            Table::Discards => self.catalogue_dark = true,
            Table::Index => self.index_dark = true,
            Table::Shares => self.shares_dark = true,
        }
    }

    /// Notes a leaf that was read.
    pub(super) fn read(&mut self, id: PageId, pointer: &Pointer, page: &Block) {
        self.read += 1;
        if self.read.is_multiple_of(256) {
            let total = self.state.used_blocks.saturating_sub(self.state.live_blocks);
            (self.progress)(Progress {
                what: if id.table == Table::Map { Phase::Maps } else { Phase::Tables },
                done: self.read,
                total,
            });
        }
        let entries = id.table.per_leaf() as usize * id.table.entry_bytes();
        if body(page)[entries..].iter().any(|&byte| byte != 0) {
            self.report
                .problem(Place::Page(id, pointer.address), "something lies behind its last entry");
        }
    }

    /// The index on disk: a hint, of which only the shape can be wrong.
    fn index(&mut self) {
        let (bits, blocks) = (self.state.index_bits, self.geometry.blocks());
        self.walk(Table::Index, 0, &self.state.index, None, &mut |checker, id, pointer, page| {
            let wrong = paged::entries(page)
                .any(|entry| paged::page_of(entry.hash, bits) != id.index || entry.pba.0 >= blocks);
            if wrong {
                checker.index_dark = true;
                checker.report.problem(
                    Place::Page(id, pointer.address),
                    "it has an entry that belongs elsewhere",
                );
            }
        });
    }

    /// The table of references: what an entry shows alone.
    fn references(&mut self) {
        let mut live = 0;
        let mut saturated = 0;
        self.walk(
            Table::References,
            0,
            &self.state.references,
            None,
            &mut |checker, id, _, page| {
                for slot in 0..Table::References.per_leaf() {
                    let pba = Pba(id.index * Table::References.per_leaf() + slot);
                    let entry = ReferenceEntry::get(page, slot);
                    if entry.references == 0 {
                        continue;
                    }
                    live += 1;
                    saturated += u64::from(entry.references == ReferenceEntry::SATURATED);
                    if !checker.may_hold(pba) {
                        let what = format!(
                            "it has {} references, but lies where no data can be",
                            entry.references
                        );
                        checker.report.problem(Place::Block(pba), what);
                    }
                }
            },
        );
        if self.dark.references.is_empty() && live != self.state.live_blocks && !self.in_place {
            let what = format!(
                "it counts {} blocks with references, but there are {live}",
                self.state.live_blocks
            );
            self.report.problem(Place::Superblock((self.state.sequence % 2) as u32), what);
        }
        self.report.live_blocks = live;
        self.report.saturated_blocks = saturated;
    }

    /// The zone table. Returns the stretches of zones whose blocks are compared together, of about
    /// `most` zones in use.
    fn zones(&mut self, most: u64) -> Vec<Range<u64>> {
        let (mut used, mut in_use) = (0, 0);
        let mut starts = vec![0];
        let last = self.zones_in_use();
        self.walk(Table::Zones, 0, &self.state.zones, None, &mut |checker, id, pointer, page| {
            for slot in 0..Table::Zones.per_leaf() {
                let zone = ZoneId(id.index * Table::Zones.per_leaf() + slot);
                let bitmap = ZoneEntry::get(page, slot).used;
                let count = bitmap.count();
                if count == 0 {
                    continue;
                }
                if !checker.geometry.has_zone(zone) || zone.0 >= checker.state.high_water {
                    checker.report.problem(
                        Place::Page(id, pointer.address),
                        format!("it has blocks in use in zone {zone}, which has none"),
                    );
                    continue;
                }
                if bitmap.iter().any(|n| n as u64 >= checker.geometry.zone_blocks) {
                    checker
                        .report
                        .problem(Place::Zone(zone), "its bitmap has blocks in use beyond its end");
                }
                used += count;
                in_use += 1;
                if in_use > most {
                    starts.push(zone.0);
                    in_use = 1;
                }
            }
        });
        // Zones that nobody can tell of may all be in use.
        for dark in &self.dark.zones {
            let dark = dark.start..dark.end.min(last);
            starts.extend(dark.step_by(usize::try_from(most).unwrap_or(usize::MAX)));
        }
        starts.sort_unstable();
        starts.dedup();
        if !self.dark.zones.is_empty() {
            let dark = self.dark.clone();
            starts = self.joined(starts, most, &dark);
        }
        if self.dark.zones.is_empty() && used != self.state.used_blocks {
            let what =
                format!("it counts {} blocks in use, but there are {used}", self.state.used_blocks);
            self.report.problem(Place::Superblock((self.state.sequence % 2) as u32), what);
        }
        self.report.used_blocks = used;
        between(&starts, last)
    }

    /// Joins neighbours of the stretches that begin at `starts` (rising, from zone 0 on) while they
    /// have about `most` zones that take memory: those in use, and of those in `dark` the ones
    /// that maps or references name. So a store costs passes over its maps for what it holds, and
    /// none for zones that only exist.
    fn joined(&mut self, starts: Vec<u64>, most: u64, dark: &Dark) -> Vec<u64> {
        if starts.len() < 2 {
            return starts;
        }
        let geometry = self.geometry;
        // Zones in use, and names of zones in the dark; names of one zone behind each other are one.
        let mut weights = vec![(0_u64, 0_u64); starts.len()];
        let of = |zone: u64| starts.partition_point(|&start| start <= zone).saturating_sub(1);
        let everything = || Some(0..u64::MAX);
        let zones = self.state.zones;
        self.walk(Table::Zones, 0, &zones, everything(), &mut |_, id, _, page| {
            for slot in 0..Table::Zones.per_leaf() {
                let zone = id.index * Table::Zones.per_leaf() + slot;
                if !dark.has_zone(zone) && ZoneEntry::get(page, slot).used.count() > 0 {
                    weights[of(zone)].0 += 1;
                }
            }
        });
        let mut before = None;
        let mut name = |pba: Pba| {
            let zone = geometry.zone_of(pba).0;
            if before.replace(zone) != Some(zone) && dark.has_zone(zone) {
                weights[of(zone)].1 += 1;
            }
        };
        let references = self.state.references;
        self.walk(Table::References, 0, &references, everything(), &mut |checker, id, _, page| {
            for slot in 0..Table::References.per_leaf() {
                let pba = Pba(id.index * Table::References.per_leaf() + slot);
                if ReferenceEntry::get(page, slot).references > 0 && checker.may_hold(pba) {
                    name(pba);
                }
            }
        });
        for n in 0..self.volumes.len() {
            let (family, map) = (self.volumes[n].family(), self.volumes[n].map);
            self.walk(Table::Map, family, &map, everything(), &mut |checker, _, _, page| {
                for slot in 0..Table::Map.per_leaf() {
                    if let Some(MapEntry::Block { pba, .. }) = MapEntry::get(page, slot)
                        && checker.may_hold(pba)
                    {
                        name(pba);
                    }
                }
            });
        }
        let (mut joined, mut all) = (Vec::new(), 0);
        for (start, (in_use, named)) in starts.into_iter().zip(weights) {
            let weight = in_use + named.min(most);
            if joined.is_empty() || all + weight > most {
                joined.push(start);
                all = 0;
            }
            all += weight;
        }
        joined
    }

    /// The stretches for counting what the maps name, whatever the zone table says: of about as
    /// many zones that are named as `memory` bytes have room for.
    pub(crate) fn stretches_of_names(&mut self, memory: u64) -> Vec<Range<u64>> {
        let most = self.zones_within(memory);
        let last = self.zones_in_use();
        if last <= most {
            return self.stretches.clone();
        }
        let starts = (0..last).step_by(usize::try_from(most).unwrap_or(usize::MAX)).collect();
        let joined = self.joined(starts, most, &Dark::of_all_zones(&self.dark));
        between(&joined, last)
    }

    /// Zones whose blocks `memory` bytes have room for.
    fn zones_within(&self, memory: u64) -> u64 {
        (memory / (FACT_BYTES * self.geometry.zone_blocks)).max(1)
    }

    /// Compares the blocks of a stretch of zones.
    fn stretch(&mut self, stretch: Range<u64>, first: bool, proven: &mut dyn FnMut(Pba) -> bool) {
        let mut usage = Usage::new(self.geometry, stretch.clone(), self.dark.clone());
        let per_leaf = Table::Zones.per_leaf();
        self.walk(
            Table::Zones,
            0,
            &self.state.zones,
            Some(stretch.start / per_leaf..stretch.end.div_ceil(per_leaf)),
            &mut |checker, id, _, page| {
                for slot in (0..per_leaf).filter(|_| !checker.in_place || checker.state.clean) {
                    usage.zone(ZoneId(id.index * per_leaf + slot), ZoneEntry::get(page, slot).used);
                }
            },
        );
        self.load_blocks(&mut usage, |checker, pba, references| {
            if checker.in_place && references == 1 {
                return;
            }
            let what = format!("it has {references} references, but is free in the zone table");
            checker.report.problem(Place::Block(pba), what);
        });
        let mut mapped = 0;
        if self.state.shares_pages() {
            let mut accounts = std::mem::take(&mut self.accounts);
            mapped = self.shared_maps(&mut accounts, &mut usage, first);
            self.accounts = accounts;
        }
        for n in (0..self.volumes.len()).filter(|_| !self.state.shares_pages()) {
            let volume = self.volumes[n].clone();
            let (id, map) = (volume.id, volume.map);
            self.walk(
                Table::Map,
                id.0,
                &map,
                (!first).then_some(0..u64::MAX),
                &mut |checker, page_id, pointer, page| {
                    mapped +=
                        checker.map_leaf(&mut usage, &volume, first, page_id, pointer, page, None);
                },
            );
        }
        if first {
            let more = self.counts_too_high() && mapped < self.state.mapped_blocks;
            if !self.maps_dark && mapped != self.state.mapped_blocks && !self.in_place && !more {
                let what = format!(
                    "it counts {} mapped blocks, but there are {mapped}",
                    self.state.mapped_blocks
                );
                self.report.problem(Place::Superblock((self.state.sequence % 2) as u32), what);
            }
            self.report.mapped_blocks = mapped;
        }
        self.packs += usage.packs();
        self.compare(&usage, proven);
    }

    /// Notes what the tables say of the blocks of a stretch; `stray` gets those with references in
    /// zones that are free as a whole.
    pub(crate) fn load_blocks(
        &mut self,
        usage: &mut Usage,
        mut stray: impl FnMut(&mut Checker<'a>, Pba, u32),
    ) {
        let blocks = usage.stretch.start * self.geometry.zone_blocks
            ..usage.stretch.end * self.geometry.zone_blocks;
        let leaves = |per_leaf: u64| Some(blocks.start / per_leaf..blocks.end.div_ceil(per_leaf));
        let within = |id: PageId| {
            let first = id.index * id.table.per_leaf();
            (0..id.table.per_leaf())
                .map(move |slot| (slot, Pba(first + slot)))
                .filter(|(_, pba)| blocks.contains(&pba.0))
        };
        let wanted = leaves(Table::References.per_leaf());
        self.walk(
            Table::References,
            0,
            &self.state.references,
            wanted,
            &mut |checker, id, _, page| {
                for (slot, pba) in within(id) {
                    let entry = ReferenceEntry::get(page, slot);
                    if entry.references > 0 && !usage.references(pba, &entry) {
                        stray(checker, pba, entry.references);
                    }
                }
            },
        );
        let wanted = leaves(Table::Fingerprints.per_leaf());
        self.walk(
            Table::Fingerprints,
            0,
            &self.state.fingerprints,
            wanted,
            &mut |_, id, _, page| {
                for (slot, pba) in within(id) {
                    usage.fingerprint(pba, &page::fingerprint(page, slot));
                }
            },
        );
    }

    /// The entries of a map leaf that count: all that name blocks, but those that the page's lender
    /// has as well. Returns how many they are.
    #[allow(clippy::too_many_arguments, reason = "a page, whose it is, and where it is counted")]
    pub(super) fn map_leaf(
        &mut self,
        usage: &mut Usage,
        volume: &Volume,
        first: bool,
        id: PageId,
        pointer: &Pointer,
        page: &Block,
        lender: Option<&Block>,
    ) -> u64 {
        let mut mapped = 0;
        let Walker { disk, identity } = self.walker;
        let packs =
            Packs::of_leaf(disk, identity, page, |pba| self.may_hold(pba) && usage.has(pba));
        for slot in 0..Table::Map.per_leaf() {
            let lba = Lba(id.index * Table::Map.per_leaf() + slot);
            let place = Place::Address(volume.id, lba);
            match MapEntry::get(page, slot) {
                None if first => self.report.problem(place, "its map entry can't be read"),
                None | Some(MapEntry::Hole) => {}
                Some(entry) => {
                    let dropped = self
                        .discards
                        .get(volume.id, lba.0)
                        .is_some_and(|span| span.window > pointer.birth);
                    if first && lba.0 >= volume.blocks && !dropped && !volume.is_leaving() {
                        self.report.problem(
                            place.clone(),
                            "it is in the map, but beyond the end of the volume",
                        );
                    }
                    if first && entry == MapEntry::Lost {
                        self.report.lost_addresses += 1;
                        self.lost.add(pointer.address);
                    }
                    let MapEntry::Block { pba, form, prefix } = entry else { continue };
                    if lender.is_some_and(|lender| MapEntry::get(lender, slot) == Some(entry)) {
                        continue;
                    }
                    mapped += 1;
                    self.fragments += u64::from(first && form.is_packed());
                    if !self.may_hold(pba) {
                        if first {
                            self.report.problem(
                                place,
                                format!("its map entry names block {pba}, which holds no data"),
                            );
                        }
                        continue;
                    }
                    // With tables in place counts may be too high after a crash; and a block that
                    // maps share as copies of one another is no duplicate.
                    let exact = (!self.in_place || self.state.clean && !self.state.inexact)
                        && !self.state.shares_pages();
                    let alone = 1 + u32::from(self.in_place);
                    let references = usage.known_references(pba);
                    // A count that stays says nothing of today.
                    let shared = exact
                        && volume.no_dedup.holds(lba)
                        && references > alone
                        && references < ReferenceEntry::SATURATED;
                    self.report.shared_critical += u64::from(shared);
                    match usage.count(&entry) {
                        Named::Agrees => {
                            if let Form::Packed(fragment) = form
                                && let Fragment::Differs(what) = packs.judge(pba, fragment, prefix)
                            {
                                let what = format!("its map entry for block {pba} has {what}");
                                self.report.problem(place, what);
                            }
                        }
                        Named::Elsewhere => {}
                        Named::Free => self.report.problem(
                            place,
                            format!("its map entry names block {pba}, which is free"),
                        ),
                        Named::Differs(what) => {
                            self.report.problem(
                                place,
                                format!(
                                    "its map entry has {what} than the tables have for block {pba}"
                                ),
                            );
                        }
                    }
                }
            }
        }
        mapped
    }
}

/// The stretches that begin at `starts` (rising), the last one up to zone `last`.
fn between(starts: &[u64], last: u64) -> Vec<Range<u64>> {
    let ends = starts[1..].iter().copied().chain([last.max(1)]);
    let all = starts.iter().copied().zip(ends).map(|(start, end)| start..end);
    all.filter(|stretch| !stretch.is_empty()).collect()
}
