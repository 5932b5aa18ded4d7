//! Superblocks, the zone list, and what lies in listed zones: where all reading begins.

use std::collections::{BTreeMap, BTreeSet};

use onefold_core::BLOCK_BYTES;
use onefold_testbed::disk::Image;

use super::{
    Reader, Sealed, checksum, number,
    sealed::{CARRIER, LIST_PAGE},
    tree::Pointer,
    zero,
};

/// The places of the superblocks.
const PLACES: [u64; 2] = [0, 8];

/// The first block of the zone list.
const LIST: u64 = 16;

/// The roots of a superblock, in its order.
pub(super) const REFERENCES: usize = 0;
pub(super) const FINGERPRINTS: usize = 1;
pub(super) const ZONES: usize = 2;
pub(super) const CATALOGUE: usize = 3;
pub(super) const DISCARDS: usize = 4;
pub(super) const INDEX: usize = 5;

/// The scheme with leaves in place.
pub(super) const IN_PLACE: u64 = 4;

pub(super) struct Superblock {
    pub(super) id: [u8; 16],
    pub(super) secret: [u8; 32],
    pub(super) key: u64,
    pub(super) zones: u64,
    pub(super) zone_blocks: u64,
    /// As many as the store was made with.
    list_pages: u64,
    /// Where the zone list begins, if it moved when the store grew; else 0.
    moved_list: u64,
    pub(super) fingerprint: u8,
    table: bool,
    pub(super) clean: bool,
    sequence: u64,
    epoch: u64,
    pub(super) next_volume: u64,
    pub(super) committed: u64,
    durable: u64,
    last_window: u64,
    pub(super) used_zones: u64,
    pub(super) used: u64,
    generation: u64,
    pub(super) referenced: u64,
    pub(super) mapped: u64,
    /// Maps may name fragments of packs.
    pub(super) packing: bool,
    /// Packs, and the entries that name them.
    pub(super) packs: (u64, u64),
    pub(super) volumes: u64,
    pub(super) discards: u64,
    pub(super) roots: [(Pointer, u64); 6],
    pub(super) index_bits: u64,
    pub(super) index_entries: u64,
    leftover_pages: u64,
    cuts: Vec<[u64; 3]>,
    pub(super) scheme: u64,
    pub(super) inexact: bool,
    /// Maps share pages.
    pub(super) sharing: bool,
    pub(super) shares: (Pointer, u64),
    /// Domains with limits, and the blocks that they store.
    pub(super) stored: Vec<(u64, u64)>,
}

/// A zone as a page of the zone list tells of it.
#[derive(Clone)]
pub(super) struct Listed {
    generation: u64,
    /// Blocks that are carriers, when it takes no more.
    marks: Option<[u8; 128]>,
}

/// The places of superblocks that a crash may have torn: what is there is none.
pub(super) fn torn(image: &Image, sealed: Option<&Sealed>) -> BTreeSet<u64> {
    let is_whole = |place: usize, at: u64| {
        image
            .get(at)
            .is_some_and(|bytes| Superblock::decode(&bytes[..], place as u64, sealed).is_ok())
    };
    let places = PLACES.into_iter().enumerate();
    places.filter(|&(place, at)| !is_whole(place, at)).map(|(_, at)| at).collect()
}

impl Superblock {
    /// The one that counts, or `None` when damage hides it.
    pub(super) fn choose(
        image: &Image,
        damaged: &BTreeSet<u64>,
        sealed: Option<&Sealed>,
    ) -> Result<Option<Superblock>, String> {
        let mut best: Option<Superblock> = None;
        for (place, at) in PLACES.into_iter().enumerate() {
            match image
                .get(at)
                .ok_or("was never written".to_owned())
                .and_then(|bytes| Superblock::decode(&bytes[..], place as u64, sealed))
            {
                Ok(found) if best.as_ref().is_none_or(|best| best.sequence < found.sequence) => {
                    best = Some(found)
                }
                Ok(_) => {}
                Err(problem) if !damaged.contains(&at) => {
                    return Err(format!("superblock at {at}: {problem}"));
                }
                Err(_) => {}
            }
        }
        match best {
            None if PLACES.iter().any(|at| !damaged.contains(at)) => {
                Err("no superblock".to_owned())
            }
            best => Ok(best),
        }
    }

    fn decode(bytes: &[u8], place: u64, sealed: Option<&Sealed>) -> Result<Superblock, String> {
        let features = number::<8>(bytes, 1192);
        let (sharing, moved) = (features & 1 == 1, features & 4 == 4);
        let is_sealed = features & 8 == 8;
        let version = if features != 0 {
            3
        } else if bytes[88] == 5 {
            2
        } else {
            1
        };
        if &bytes[..8] != b"ONEFOLD\0"
            || number::<4>(bytes, 8) != version
            || number::<8>(bytes, 16) != checksum(version, bytes, 16)
        {
            return Err("its magic, version or checksum is wrong".to_owned());
        }
        let sequence = number::<8>(bytes, 96);
        let mut opened = bytes.to_vec();
        let mut stored = Vec::new();
        if let Some(sealed) = sealed {
            let found = sealed.superblock(bytes, place, sequence);
            opened = found.ok_or("it is not what was sealed")?;
            let domains = number::<4>(&opened, 1240);
            if opened[40..72] != [0; 32]
                || opened[1248..1272] != [0; 24]
                || (domains > 1) != (features & 16 == 16)
                || number::<4>(&opened, 1244) != 0 && features & 64 == 0
                || number::<8>(&opened, 1272) == 0
            {
                return Err("it has a secret, or no number of its keys, or domains".to_owned());
            }
            opened[1240..1248].fill(0);
            opened[1272..1280].fill(0);
            if features & 32 == 32 {
                let entries = opened[1280..3328].chunks_exact(32);
                let entries: Vec<&[u8]> = entries.take_while(|entry| !zero(entry)).collect();
                for entry in &entries {
                    if !zero(&entry[4..8]) || zero(&entry[..4]) || zero(&entry[8..24]) {
                        return Err("a domain has no number or no limits".to_owned());
                    }
                    stored.push((number::<4>(entry, 0), number::<8>(entry, 24)));
                }
                let end = 1280 + 32 * entries.len();
                opened[1280..end].fill(0);
            }
        }
        let bytes = &opened[..];
        if number::<4>(bytes, 12) != place
            || sequence % 2 != place
            || features & !127 != 0
            || features & 10 == 10
            || features & 72 == 64
            || features & 32 == 32 && features & 25 != 25
            || features & 24 == 16
            || is_sealed != sealed.is_some()
            || moved == zero(&bytes[1200..1208])
            || !sharing && !zero(&bytes[1208..1240])
            || !zero(&bytes[1240..1248])
            || features & 2 == 0 && !zero(&bytes[1248..1264])
            || !zero(&bytes[1264..])
        {
            return Err("it belongs to the other place, or its end is not zero".to_owned());
        }
        let (id, secret): ([u8; 16], [u8; 32]) = (part(bytes, 24), part(bytes, 40));
        let cuts = 0..number::<2>(bytes, 94).min(32) as usize;
        Ok(Superblock {
            key: twox_hash::XxHash3_64::oneshot_with_seed(number::<8>(&id, 0), &secret),
            id,
            secret,
            zones: number::<8>(bytes, 72),
            zone_blocks: number::<4>(bytes, 80),
            list_pages: number::<4>(bytes, 84),
            moved_list: number::<8>(bytes, 1200),
            fingerprint: bytes[88],
            table: bytes[91] == 1,
            clean: bytes[93] == 1,
            sequence,
            epoch: number::<4>(bytes, 104),
            next_volume: number::<4>(bytes, 108),
            committed: number::<8>(bytes, 112),
            durable: number::<8>(bytes, 120),
            last_window: number::<8>(bytes, 128),
            used_zones: number::<8>(bytes, 136),
            used: number::<8>(bytes, 144),
            generation: number::<8>(bytes, 152),
            referenced: number::<8>(bytes, 160),
            mapped: number::<8>(bytes, 168),
            packing: features & 2 == 2,
            packs: (number::<8>(bytes, 1248), number::<8>(bytes, 1256)),
            volumes: number::<4>(bytes, 176),
            discards: number::<4>(bytes, 180),
            roots: std::array::from_fn(|root| {
                let at = 184 + 32 * root;
                (Pointer::decode(&bytes[at..at + 24]), number::<8>(bytes, at + 24))
            }),
            sharing,
            stored,
            shares: (Pointer::decode(&bytes[1208..1232]), number::<8>(bytes, 1232)),
            index_entries: number::<8>(bytes, 376),
            index_bits: number::<4>(bytes, 392),
            leftover_pages: number::<4>(bytes, 396),
            cuts: cuts
                .map(|cut| std::array::from_fn(|n| number::<8>(bytes, 400 + 24 * cut + 8 * n)))
                .collect(),
            scheme: number::<8>(bytes, 1168),
            inexact: number::<8>(bytes, 1184) == 1,
        })
    }

    /// The first block behind what is fixed.
    pub(super) fn first(&self) -> u64 {
        (LIST + 2 * self.list_pages + 2 * self.leftover_pages).div_ceil(self.zone_blocks)
            * self.zone_blocks
    }

    /// Pages of the zone list.
    fn pages_of_list(&self) -> u64 {
        if self.moved_list == 0 {
            self.list_pages
        } else {
            (self.zones / 4).div_ceil(28).clamp(1, 74)
        }
    }

    /// The first block of the zone list.
    fn list(&self) -> u64 {
        if self.moved_list == 0 { LIST } else { self.moved_list }
    }

    /// True for a block of a zone that holds data, carriers or pages.
    pub(super) fn is_zone(&self, at: u64) -> bool {
        let end = (self.moved_list + 2 * self.pages_of_list()).div_ceil(self.zone_blocks);
        let list = self.moved_list..end * self.zone_blocks;
        (self.first()..self.end()).contains(&at) && (self.moved_list == 0 || !list.contains(&at))
    }

    /// The end of the zones.
    pub(super) fn end(&self) -> u64 {
        self.zones * self.zone_blocks
    }

    /// Statements of the superblock that can't be true.
    pub(super) fn plausible(&self) -> Vec<String> {
        let least = |pages: u64, most: u64| pages.clamp(1, most);
        // A store has as many leftover pages as its blocks, which may be a few more than those of
        // its zones, asked for when it was made; it may have grown since.
        let leftover = 1..=least((self.end() + self.zone_blocks) / 64, 16_384);
        let conditions = [
            (
                (16..=1024).contains(&self.zone_blocks) && self.zone_blocks.is_power_of_two(),
                "the size of its zones",
            ),
            (
                self.moved_list == 0
                    && self.list_pages == (self.zones / 4).div_ceil(28).clamp(1, 74)
                    || (1..self.pages_of_list()).contains(&self.list_pages),
                "the pages of the zone list",
            ),
            (
                self.moved_list == 0
                    || self.moved_list.is_multiple_of(self.zone_blocks)
                        && self.moved_list >= self.first()
                        && self.moved_list + 2 * self.pages_of_list() <= self.end(),
                "the place of the zone list",
            ),
            (
                if self.table {
                    leftover.contains(&self.leftover_pages)
                } else {
                    self.leftover_pages == 0
                },
                "the leftover pages",
            ),
            (self.end() <= 1 << 40, "its end"),
            ((1..=5).contains(&self.fingerprint), "its fingerprint"),
            (self.committed == self.durable, "windows that no table holds after a clean shutdown"),
            (
                self.durable <= self.last_window && self.last_window < 1 << 44,
                "the number of the last window",
            ),
            (self.used_zones <= self.zones, "the zones that were used"),
            (self.cuts.iter().all(|cut| cut[0] < self.epoch && cut[1] < cut[2]), "its cuts"),
            (
                self.roots.iter().all(|root| root.1 <= 9 && (root.1 == 0) == root.0.is_none()),
                "a root",
            ),
            (self.scheme <= 4, "its scheme"),
            (
                !self.inexact || self.scheme == IN_PLACE || self.sharing,
                "that its counts may be too high",
            ),
        ];
        conditions
            .into_iter()
            .filter(|condition| !condition.0)
            .map(|(_, what)| format!("superblock: {what} can't be"))
            .collect()
    }
}

impl Reader<'_> {
    /// The newer copy of each page of the zone list. A zone that the store lists anew may be in two
    /// pages, since the one that had it before is not written for that: then their generations
    /// differ, and the higher one counts. No page has a zone twice.
    pub(super) fn zone_list(&mut self) -> BTreeMap<u64, Listed> {
        let mut listed = BTreeMap::new();
        for page in 0..self.superblock.pages_of_list() {
            let mut best: Option<(u64, [u8; BLOCK_BYTES])> = None;
            for copy in 0..2 {
                let at = self.superblock.list() + 2 * page + copy;
                let bytes = self.metadata(LIST_PAGE, at);
                if !self.is_list_page(&bytes, at, page, copy) {
                    self.wrong(at, || format!("is not a copy of page {page} of the zone list"));
                } else if best.as_ref().is_none_or(|best| best.0 < number::<8>(&bytes, 16)) {
                    best = Some((number::<8>(&bytes, 16), bytes));
                }
            }
            if let Some((_, bytes)) = best {
                self.list_page(&bytes, &mut listed);
            }
        }
        listed
    }

    fn is_list_page(&self, bytes: &[u8], at: u64, page: u64, copy: u64) -> bool {
        &bytes[..4] == b"OFz1"
            && number::<4>(bytes, 4) == page
            && bytes[8..16] == self.superblock.id[..8]
            && number::<8>(bytes, 16) % 2 == copy
            && number::<8>(bytes, 32) == at
            && (self.sealed.is_some()
                || number::<8>(bytes, 56) == checksum(self.superblock.key, bytes, 56))
    }

    fn list_page(&mut self, bytes: &[u8], listed: &mut BTreeMap<u64, Listed>) {
        let mut here = BTreeSet::new();
        for entry in bytes[64..].chunks_exact(144).filter(|entry| entry[7] != 0) {
            let (zone, generation) = (number::<7>(entry, 0), number::<8>(entry, 8));
            let marks = (entry[7] == 2).then(|| part(entry, 16));
            let is_zone = zone < self.superblock.zones
                && self.superblock.is_zone(zone * self.superblock.zone_blocks);
            if entry[7] > 2 || !is_zone || generation >= self.superblock.generation {
                self.problem(format!(
                    "the zone list has zone {zone}, generation {generation}, state {}",
                    entry[7]
                ));
                continue;
            }
            let known = listed.get(&zone).map(|known| known.generation);
            if !here.insert(zone) || known == Some(generation) {
                self.problem(format!("the zone list has zone {zone} twice"));
            } else if known.is_none_or(|known| known < generation) {
                listed.insert(zone, Listed { generation, marks });
            }
        }
    }

    /// After a clean shutdown no carrier that counts holds a record that the tables do not.
    pub(super) fn nothing_uncommitted(&mut self, listed: &BTreeMap<u64, Listed>) {
        for (zone, entry) in listed {
            for n in 0..self.superblock.zone_blocks {
                let at = zone * self.superblock.zone_blocks + n;
                let marked = entry.marks.as_ref().is_none_or(|marks| bit(marks, n));
                if !marked || self.damaged.contains(&at) || self.image.get(at).is_none() {
                    continue;
                }
                let bytes = self.metadata(CARRIER, at);
                if self.is_carrier(&bytes, at) && number::<8>(&bytes, 24) == entry.generation {
                    self.uncommitted(at, number::<4>(&bytes, 16), number::<8>(&bytes, 40));
                }
            }
        }
    }

    fn uncommitted(&mut self, at: u64, epoch: u64, window: u64) {
        let counts = match self.superblock.cuts.iter().find(|cut| cut[0] == epoch) {
            Some(cut) => window <= cut[1],
            None => epoch == self.superblock.epoch,
        };
        if counts && window > self.superblock.committed {
            self.problem(format!(
                "block {at}: a carrier of window {window}, after a clean shutdown at {}",
                self.superblock.committed
            ));
        }
    }
}

/// Bit `n` of a bitmap: the lowest of its first byte is block 0.
pub(super) fn bit(bitmap: &[u8], n: u64) -> bool {
    bitmap[(n / 8) as usize] >> (n % 8) & 1 == 1
}

pub(super) fn part<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut part = [0; N];
    part.copy_from_slice(&bytes[at..at + N]);
    part
}
