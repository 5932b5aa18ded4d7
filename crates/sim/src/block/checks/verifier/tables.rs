//! The tables: catalogue, maps, references, fingerprints, zones, and whether they agree.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Forgotten, Held, Link, Reader, Volume,
    blocks::FRAGMENTS,
    layout::{CATALOGUE, DISCARDS, FINGERPRINTS, IN_PLACE, INDEX, Listed, REFERENCES, ZONES, bit},
    number,
    tree::{Leaf, Leaves, Pointer, Table},
    zero,
};

/// The kind of a map entry whose data is lost.
pub(super) const LOST: u8 = 4;

/// Stands for "that many links or more".
const MANY: u64 = (1 << 31) - 1;

/// A range that is a hole or zeroes, in pages of its map that are older than it.
pub(super) struct Discard {
    volume: u64,
    first: u64,
    end: u64,
    window: u64,
}

impl Discard {
    /// True when it makes an address of a volume zeroes, in a leaf that was born then.
    pub(super) fn covers(&self, volume: u64, lba: u64, birth: u64) -> bool {
        self.volume == volume && (self.first..self.end).contains(&lba) && self.window > birth
    }
}

/// The physical blocks as the tables tell of them.
pub(super) struct Usage {
    counts: BTreeMap<u64, u64>,
    references: Leaves,
    fingerprints: Leaves,
    zones: Leaves,
    used: BTreeSet<u64>,
}

/// A map of the catalogue. But for the first six fields it is that of a store that shares pages.
pub(super) struct Entry {
    pub(super) number: u64,
    pub(super) name: String,
    pub(super) blocks: u64,
    pub(super) top: (Pointer, u64),
    pub(super) critical: Vec<(u64, u64)>,
    pub(super) domain: u64,
    pub(super) family: u64,
    pub(super) parent: u64,
    /// 0 a volume, 1 a snapshot, 2 leaving, 3 being received.
    pub(super) kind: u8,
    /// Of a leaving one: the number of its top page.
    pub(super) cursor: u64,
    /// Its addresses that are lost.
    pub(super) lost: u64,
}

impl Reader<'_> {
    fn table(&mut self, number: u64, root: usize) -> Leaves {
        let root = self.root(root);
        self.leaves(Table { number, volume: 0 }, root)
    }

    /// The pending discards. Of those that damage hides nothing is known: then all maps are.
    pub(super) fn discards(&mut self) -> Vec<Discard> {
        let leaves = self.table(6, DISCARDS);
        self.maps_hidden |= !leaves.hidden.is_empty();
        let mut all = Vec::new();
        for entry in leaves
            .found
            .iter()
            .flat_map(|leaf| leaf.body.chunks_exact(32))
            .filter(|entry| !zero(entry))
        {
            all.push(Discard {
                volume: number::<4>(entry, 0),
                first: number::<8>(entry, 8),
                end: number::<8>(entry, 16),
                window: number::<8>(entry, 24),
            });
        }
        if leaves.hidden.is_empty() && all.len() as u64 != self.superblock.discards {
            self.problem(format!(
                "{} pending discards, and the superblock says {}",
                all.len(),
                self.superblock.discards
            ));
        }
        all
    }

    /// All volumes, and what they hold; `None` when damage hides some.
    pub(super) fn volumes(&mut self, discards: &[Discard]) -> Option<Vec<Volume>> {
        let leaves = self.table(5, CATALOGUE);
        let whole = leaves.hidden.is_empty() && !self.maps_hidden;
        self.maps_hidden |= !whole;
        let entries: Vec<Entry> = leaves
            .found
            .iter()
            .flat_map(|leaf| leaf.body.chunks_exact(504))
            .filter(|entry| !zero(entry))
            .map(Entry::decode)
            .collect();
        if whole && entries.len() as u64 != self.superblock.volumes {
            self.problem(format!(
                "{} volumes, and the superblock says {}",
                entries.len(),
                self.superblock.volumes
            ));
        }
        if entries.windows(2).any(|two| two[0].number >= two[1].number)
            || entries.last().is_some_and(|last| last.number >= self.superblock.next_volume)
        {
            self.problem(
                "the volumes are not in the order of their numbers, or beyond the next one"
                    .to_owned(),
            );
        }
        let mut mapped = 0;
        let volumes: Vec<Volume> =
            entries.iter().filter_map(|entry| self.volume(entry, discards, &mut mapped)).collect();
        if !self.maps_hidden && self.exact() && mapped != self.superblock.mapped {
            self.problem(format!(
                "{mapped} mapped blocks, and the superblock says {}",
                self.superblock.mapped
            ));
        }
        whole.then_some(volumes)
    }

    /// With leaves in place, some numbers are those of the last checkpoint.
    fn exact(&self) -> bool {
        self.superblock.scheme != IN_PLACE && !self.superblock.inexact
    }

    /// A volume; `None` when it is deleted and waits for its blocks to be freed.
    fn volume(&mut self, entry: &Entry, discards: &[Discard], mapped: &mut u64) -> Option<Volume> {
        let leaves = self.leaves(Table { number: 1, volume: entry.number }, entry.top);
        self.maps_hidden |= !leaves.hidden.is_empty();
        let mut volume = Volume {
            number: entry.number as u32,
            name: entry.name.clone(),
            blocks: entry.blocks,
            held: BTreeMap::new(),
            dark: leaves
                .hidden
                .iter()
                .map(|&(first, end)| (first * 288, end.saturating_mul(288)))
                .collect(),
        };
        for leaf in &leaves.found {
            for (lba, bytes) in (leaf.number * 288..).zip(leaf.body.chunks_exact(14)) {
                let gone = |discard: &Discard| discard.covers(entry.number, lba, leaf.birth);
                self.map_entry(entry, &mut volume, lba, bytes, discards.iter().any(gone), mapped);
                self.compare_mark(leaf.at, number::<5>(bytes, 1));
            }
        }
        (!entry.name.is_empty()).then_some(volume)
    }

    /// The block that an entry of a map names, its kind, and its prefix.
    pub(super) fn map_entry_of(&mut self, map: u64, bytes: &[u8]) -> Option<(u64, u8, u64)> {
        let (kind, at, prefix) = (bytes[0], number::<5>(bytes, 1), number::<8>(bytes, 6));
        if kind == 0 || kind == 3 || kind == LOST {
            if !zero(&bytes[1..]) {
                self.problem(format!("an entry of map {map} is kind {kind} and has an address"));
            }
            return None;
        }
        let is_known = kind <= 2 || self.superblock.packing && FRAGMENTS.contains(&kind);
        if !is_known || !self.superblock.is_zone(at) {
            self.problem(format!("an entry of map {map} is kind {kind} at {at}"));
            return None;
        }
        Some((at, kind, prefix))
    }

    /// Counts an entry that names a block.
    pub(super) fn link(&mut self, at: u64, kind: u8, prefix: u64, critical: bool) {
        // What is critical is in no pack; who makes a range critical later finds it in one.
        let (kind, prefix, critical) = match FRAGMENTS.contains(&kind) {
            true => (FRAGMENTS.start, 0, false),
            false => (kind, prefix, critical),
        };
        let link = self.links.entry(at).or_insert(Link { count: 0, kind, prefix, critical });
        link.count += 1;
        if link.kind != kind || link.prefix != prefix {
            self.problem(format!("two entries name block {at} differently"));
        }
    }

    fn map_entry(
        &mut self,
        entry: &Entry,
        volume: &mut Volume,
        lba: u64,
        bytes: &[u8],
        gone: bool,
        mapped: &mut u64,
    ) {
        let Some((at, kind, prefix)) = self.map_entry_of(entry.number, bytes) else {
            if bytes[0] == LOST && !gone {
                volume.held.insert(lba, Held::Lost);
            }
            return;
        };
        *mapped += 1;
        let critical = entry.critical.iter().any(|&(first, end)| (first..end).contains(&lba));
        self.link(at, kind, prefix, critical);
        if gone {
            return;
        }
        if lba >= entry.blocks {
            self.problem(format!("block {lba} is beyond the end of volume {}", entry.number));
        }
        let held = self.content(at, kind, prefix, (critical, entry.domain));
        volume.held.insert(lba, held);
    }

    /// The index on disk is a hint: only its pages count.
    pub(super) fn index(&mut self) {
        let leaves = self.table(7, INDEX);
        let entries: u64 = leaves.found.iter().map(|leaf| number::<2>(&leaf.body, 0)).sum();
        if leaves.hidden.is_empty() && entries != self.superblock.index_entries {
            self.problem(format!(
                "{entries} entries of the index, and the superblock says {}",
                self.superblock.index_entries
            ));
        }
        if leaves.found.iter().any(|leaf| leaf.number >> self.superblock.index_bits.min(63) != 0) {
            self.problem("the index has pages that no hash names".to_owned());
        }
    }

    pub(super) fn usage(&mut self) -> Usage {
        let zones = self.table(4, ZONES);
        let references = self.table(2, REFERENCES);
        let fingerprints = self.table(3, FINGERPRINTS);
        let mut used = BTreeSet::new();
        for leaf in &zones.found {
            for (zone, bitmap) in (leaf.number * 31..).zip(leaf.body.chunks_exact(128)) {
                let first = zone * self.superblock.zone_blocks;
                used.extend((0..1024).filter(|&n| bit(bitmap, n)).map(|n| first + n));
            }
        }
        let mut counts = BTreeMap::new();
        for leaf in &references.found {
            let entries = (leaf.number * 1008..)
                .zip(leaf.body.chunks_exact(4).map(|entry| number::<4>(entry, 0)));
            counts.extend(entries.filter(|&(_, entry)| entry & MANY != 0));
        }
        Usage { counts, references, fingerprints, zones, used }
    }

    /// What free blocks hold, and the fingerprints of blocks without references.
    pub(super) fn forgotten(&self, usage: &Usage) -> Forgotten {
        let blocks = 0..self.superblock.zones * self.superblock.zone_blocks;
        let is_free = |at: &u64| self.superblock.is_zone(*at) && !usage.used.contains(at);
        let holds = |at: &u64| self.image.get(*at).is_some_and(|bytes| !zero(&bytes[..]));
        let unnamed = |at: &u64| usage.counts.get(at).is_none_or(|entry| entry & MANY == 0);
        let fingerprints = usage.fingerprints.found.iter().flat_map(|leaf| {
            let kept = (leaf.number * 252..).zip(leaf.body.chunks_exact(16).take(252));
            kept.filter(|(_, kept)| !zero(kept)).map(|(at, _)| at)
        });
        Forgotten {
            blocks: blocks.filter(is_free).filter(holds).collect(),
            fingerprints: fingerprints.filter(unnamed).collect(),
        }
    }

    /// Counts are exact, no block has two uses, and used and free agree.
    pub(super) fn compare(&mut self, usage: &Usage, listed: &BTreeMap<u64, Listed>) {
        let in_place = self.superblock.scheme == IN_PLACE;
        self.judge_domains(usage);
        for (at, link) in self.links.clone() {
            if let Some(page) = self.pages.get(&at).cloned() {
                self.problem(format!("block {at} holds data and {page}"));
            }
            self.count(usage, at, &link);
            // A critical block is shared with nobody.
            if link.critical && link.count > 1 {
                self.problem(format!("block {at} is critical and has {} links", link.count));
            }
        }
        self.judge_packs(usage);
        self.fingerprints(&usage.fingerprints);
        self.free(usage, listed, in_place);
        if usage.references.hidden.is_empty()
            && !self.maps_hidden
            && self.exact()
            && self.referenced(usage) != self.superblock.referenced
        {
            let said = self.superblock.referenced;
            let found = self.referenced(usage);
            self.problem(format!("{found} blocks with references, and the superblock says {said}"));
        }
    }

    /// The superblock says how many packs there are, and how many entries name them. Some may never be free.
    fn judge_packs(&mut self, usage: &Usage) {
        let packs = self.links.values().filter(|link| FRAGMENTS.contains(&link.kind));
        let (packs, fragments) =
            packs.fold((0, 0), |(packs, all), link| (packs + 1, all + link.count));
        let said = self.superblock.packs;
        let (most, exact) = (packs + self.never_freed(usage), self.exact());
        if self.maps_hidden || !exact {
            return;
        }
        if !(packs..=most).contains(&said.0) || said.1 != fragments {
            self.problem(format!(
                "{packs} packs with {fragments} entries, and the superblock says {said:?}"
            ));
        }
    }

    /// Blocks that maps name, and those that once had many references and are never freed.
    fn referenced(&self, usage: &Usage) -> u64 {
        self.links.len() as u64 + self.never_freed(usage)
    }

    /// Blocks that once had many references, and that no map names.
    fn never_freed(&self, usage: &Usage) -> u64 {
        let many = usage
            .counts
            .iter()
            .filter(|&(at, entry)| entry & MANY == MANY && !self.links.contains_key(at));
        many.count() as u64
    }

    /// The superblock says how many blocks a domain with limits stores: those that its families name, and
    /// some of those that are never freed, of which nobody knows the domain.
    fn judge_domains(&mut self, usage: &Usage) {
        for (domain, stored, found) in self.domains.clone() {
            let more = stored.checked_sub(found);
            let held = |more| self.superblock.inexact || more <= self.never_freed(usage);
            if more.is_none_or(|more| more > 0 && !held(more)) {
                self.problem(format!(
                    "domain {domain} stores {found} blocks, and the superblock says {stored}"
                ));
            }
        }
    }

    fn count(&mut self, usage: &Usage, at: u64, link: &Link) {
        if usage.references.hides(at / 1008) {
            return;
        }
        let own = u64::from(self.superblock.scheme == IN_PLACE);
        let entry = usage.counts.get(&at).copied().unwrap_or(0);
        let (count, carried) = (entry & MANY, entry >> 31 == 1);
        let links = link.count + own;
        let more = self.superblock.inexact || self.maps_hidden || count == MANY;
        if if more { count < links.min(MANY) } else { count != links } {
            self.problem(format!("block {at} counts {count}, and has {links} with its own"));
        }
        if carried != (link.kind != 1) {
            self.problem(format!(
                "references and maps differ in whether block {at} is in a carrier or a pack"
            ));
        }
    }

    /// Each block that is named has the fingerprint of its content; with leaves in place it may
    /// have none.
    fn fingerprints(&mut self, leaves: &Leaves) {
        let by_number: BTreeMap<u64, &Leaf> =
            leaves.found.iter().map(|leaf| (leaf.number, leaf)).collect();
        for (at, link) in self.links.clone() {
            if FRAGMENTS.contains(&link.kind) {
                let offset = (at % 252 * 16) as usize;
                let leaf = by_number.get(&(at / 252)).filter(|leaf| leaf.whole(offset, 16));
                let kept: Option<[u8; 16]> =
                    leaf.map(|leaf| super::layout::part(&leaf.body, offset));
                if let (Some((checksum, _)), Some(kept)) = (self.pack(at), kept)
                    && checksum != kept
                {
                    self.problem(format!("pack {at} has another checksum than the table has"));
                }
                continue;
            }
            let Some((Held::Data(bytes), by)) = self.contents.get(&(at, link.kind)) else {
                continue;
            };
            if self.weak || leaves.hides(at / 252) {
                continue;
            }
            let mut right = self.fingerprint(bytes, *by);
            let plain = right;
            if link.critical {
                right = right.map(|byte| !byte);
            }
            let offset = (at % 252 * 16) as usize;
            let leaf = by_number.get(&(at / 252)).filter(|leaf| leaf.whole(offset, 16));
            let kept: [u8; 16] =
                leaf.map_or([0; 16], |leaf| super::layout::part(&leaf.body, offset));
            // Which maps of a family are critical there is no telling from a page of it.
            let either =
                self.superblock.sharing && (kept == plain || kept == plain.map(|byte| !byte));
            if kept != right && !either && !(self.superblock.scheme == IN_PLACE && zero(&kept)) {
                self.problem(format!(
                    "block {at} has a fingerprint that is not that of its content"
                ));
            }
        }
    }

    /// Every named block is used, and every used block is named.
    fn free(&mut self, usage: &Usage, listed: &BTreeMap<u64, Listed>, in_place: bool) {
        let zone_blocks = self.superblock.zone_blocks;
        let hidden = |at: u64| usage.zones.hides(at / zone_blocks / 31);
        let counts =
            |at: u64| in_place && usage.counts.get(&at).is_some_and(|entry| entry & MANY > 0);
        let many = |at: &u64| usage.counts.get(at).is_some_and(|entry| entry & MANY == MANY);
        let is_used = |at: u64| {
            usage.used.contains(&at) || counts(at) && listed.contains_key(&(at / zone_blocks))
        };
        let named = self.links.keys().chain(self.pages.keys()).copied();
        let free: Vec<u64> = named.filter(|&at| !is_used(at) && !hidden(at)).collect();
        free.iter().for_each(|at| {
            self.problem(format!("block {at} is named, and the zone table has it as free"))
        });
        for &at in &usage.used {
            let named = self.links.contains_key(&at) || self.pages.contains_key(&at);
            let known = named || counts(at) || many(&at);
            if !self.superblock.is_zone(at) || at >= self.superblock.used_zones * zone_blocks {
                self.problem(format!("block {at} is used, outside of the zones that were used"));
            } else if !(known
                || self.maps_hidden
                || self.pages_hidden
                || self.superblock.inexact && self.superblock.sharing
                || in_place && usage.references.hides(at / 1008))
            {
                self.problem(format!("block {at} is used, and nothing names it"));
            }
        }
        for (&at, &entry) in &usage.counts {
            let named = self.links.contains_key(&at);
            let page = self.pages.contains_key(&at);
            let held = self.superblock.inexact && self.superblock.sharing;
            // What once had many references is never freed.
            let kept = entry & MANY == MANY && !page;
            if !named && !kept && (page || !in_place && !held) && !self.maps_hidden {
                self.problem(format!("block {at} counts {}, and no map names it", entry & MANY));
            }
        }
        if usage.zones.hidden.is_empty()
            && self.exact()
            && usage.used.len() as u64 != self.superblock.used
        {
            self.problem(format!(
                "{} blocks in use, and the superblock says {}",
                usage.used.len(),
                self.superblock.used
            ));
        }
    }
}

impl Entry {
    fn decode(bytes: &[u8]) -> Entry {
        let (ranges, name) = (usize::from(bytes[5]).min(12), number::<2>(bytes, 6) as usize);
        Entry {
            number: number::<4>(bytes, 0),
            name: String::from_utf8_lossy(&bytes[40..40 + name.min(255)]).into_owned(),
            blocks: number::<8>(bytes, 8),
            top: (Pointer::decode(&bytes[16..40]), u64::from(bytes[4])),
            critical: bytes[296..]
                .chunks_exact(16)
                .take(ranges)
                .map(|range| (number::<8>(range, 0), number::<8>(range, 8)))
                .collect(),
            domain: number::<4>(bytes, 492),
            family: number::<4>(bytes, 0),
            parent: 0,
            kind: 0,
            cursor: 0,
            lost: 0,
        }
    }

    /// The number of the top page on its level.
    pub(super) fn top_page(&self) -> u64 {
        if self.kind == 2 { self.cursor } else { 0 }
    }

    pub(super) fn decode_shared(bytes: &[u8]) -> Entry {
        let entry = Entry::decode(&bytes[..504]);
        let family = match number::<4>(bytes, 504) {
            0 => entry.number,
            family => family,
        };
        let (parent, kind) = (number::<4>(bytes, 508), bytes[552]);
        let (cursor, lost) = (number::<8>(bytes, 560), number::<8>(bytes, 568));
        Entry { family, parent, kind, cursor, lost, ..entry }
    }
}
