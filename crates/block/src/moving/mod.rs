//! Blocks that are moved: copied to new places, which the next checkpoint puts into the maps.
//!
//! Moving is an act of a checkpoint, and no record tells of it. A copy is written like a page of a
//! table: to a block that is free on the disk, and that the checkpoint's superblock is the first to
//! name. So recovery knows nothing of moves.
//!
//! *Invariants:* moving changes no content; a client's newer change wins, since a copy is put only
//! where the map still names what it was copied from.
//!
//! | crash after | what is found |
//! |---|---|
//! | copies are written, flushed or not | the old superblock, and what it names; copies lie in free blocks |
//! | the superblock | either one; what the old one names is whole until the twin is durable |

mod choice;
mod handed;
mod leaves;

use std::collections::{BTreeMap, BTreeSet};

use onefold_core::{Fingerprint, Lba, Pba, VolumeId};

pub(crate) use self::{
    choice::{Found, comes_together, scattered},
    handed::{Handed, HandedLeaf},
    leaves::Leaves,
};
use crate::format::page::{Form, MapEntry, Table};

/// Why blocks are moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Why {
    /// Neighbours in a volume become neighbours on the disk.
    #[default]
    Neighbours,
    /// A zone becomes free as a whole.
    Emptying,
    /// What is under the older data key of a domain comes under the newest.
    Resealing,
    /// Several blocks that lie still become one.
    Packing,
}

/// What keeps parts of maps under the older data key of their domain. Moving may find several of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hindered {
    /// A block or a page can't be read, or has an entry that nobody understands.
    pub by_damage: bool,
    /// What deleted maps left is being taken apart.
    pub by_leftovers: bool,
    /// More maps have versions of their own of a part than moving takes.
    pub by_versions: bool,
    /// There is no room for copies.
    pub by_room: bool,
    /// A trim has not come into the maps yet.
    pub by_trims: bool,
    /// Counts may be too high: blocks that no map names may be held for used.
    pub by_counts: bool,
}

impl Hindered {
    /// What one or the other says.
    pub(crate) fn and(self, other: Hindered) -> Hindered {
        Hindered {
            by_damage: self.by_damage | other.by_damage,
            by_leftovers: self.by_leftovers | other.by_leftovers,
            by_versions: self.by_versions | other.by_versions,
            by_room: self.by_room | other.by_room,
            by_trims: self.by_trims | other.by_trims,
            by_counts: self.by_counts | other.by_counts,
        }
    }
}

/// The tree of a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Home {
    Map(VolumeId),
    References,
    Fingerprints,
}

/// A copy of what an address names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Put {
    /// The entry that was copied.
    pub(crate) from: MapEntry,
    /// The entry that names the copy.
    pub(crate) to: MapEntry,
}

/// The copies that the next checkpoint puts into the maps.
#[derive(Default)]
pub(crate) struct Moves {
    puts: BTreeMap<VolumeId, BTreeMap<Lba, Put>>,
    /// The whole fingerprint of each copy; of a pack its checksum.
    copies: BTreeMap<Pba, Fingerprint>,
    /// The copies that are packs.
    packs: BTreeSet<Pba>,
    /// Leaves that are written at new places, whatever is in them.
    pages: BTreeSet<(Home, u64)>,
    /// New entries for maps that share pages, by their family.
    families: BTreeMap<u32, FamilyMoves>,
    /// As many as one checkpoint takes, as things are now.
    pub(crate) most: Most,
    /// The leaves of fingerprints that are written at new places lose those of blocks without references.
    pub(crate) clears_fingerprints: bool,
    /// Entries that name a block which was there already, or a pack that another one names.
    known: usize,
    /// What names the copies of blocks that are sealed again, by the blocks.
    resealed: BTreeMap<Pba, MapEntry>,
    /// As [`FamilyMoves::marks`], of leaves that are their map's alone.
    marks: BTreeMap<Pba, u32>,
    /// Copies that a planted bug writes after the superblock.
    #[cfg(feature = "planted-bugs")]
    pub(crate) late: Vec<(Pba, onefold_core::Block)>,
}

/// How much one checkpoint moves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Most {
    /// Copies, and pages that are written at new places whatever is in them.
    pub(crate) moves: usize,
    /// Map pages that are written because blocks moved below them, of maps that share them.
    pub(crate) shared_pages: u64,
    /// The domain whose reserve they may take.
    pub(crate) own: Option<u32>,
}

/// The copies that are put into all maps of a family, and its pages that are to move.
#[derive(Default)]
pub(crate) struct FamilyMoves {
    /// Pages at one place may name several blocks at an address: each has one new entry at most.
    puts: BTreeMap<Lba, Vec<Put>>,
    /// Pages that are written at new places, each with a leaf at or below its own place.
    pages: BTreeMap<Pba, u64>,
    /// Places whose pages are counted for the next checkpoint.
    counted: BTreeSet<(u8, u64)>,
    /// Pages of leaves of which all that is under an older data key has a copy, or is named anew, with the
    /// generation that all their blocks have at least then.
    marks: BTreeMap<Pba, u32>,
}

impl FamilyMoves {
    /// The leaves in which there is something to put, or whose pages or those above them move.
    pub(crate) fn leaves(&self) -> Vec<u64> {
        let puts = self.puts.keys().map(|lba| lba.0 / Table::Map.per_leaf());
        let leaves: BTreeSet<u64> = puts.chain(self.pages.values().copied()).collect();
        leaves.into_iter().collect()
    }

    /// The copies that are to be put into a leaf, by their places in it.
    pub(crate) fn of_leaf(&self, leaf: u64) -> impl Iterator<Item = (u64, Put)> {
        let first = leaf * Table::Map.per_leaf();
        let within = Lba(first)..Lba(first + Table::Map.per_leaf());
        let puts = self.puts.range(within);
        puts.flat_map(move |(lba, puts)| puts.iter().map(move |put| (lba.0 - first, *put)))
    }

    fn put(&mut self, lba: Lba, put: Put) {
        let puts = self.puts.entry(lba).or_default();
        debug_assert!(
            puts.iter().all(|one| one.from != put.from && one.to != put.to),
            "entries that differ stay different"
        );
        puts.push(put);
    }

    /// The generation of the next version of a page, if it was looked through.
    pub(crate) fn mark_of(&self, page: Pba) -> Option<u32> {
        self.marks.get(&page).copied()
    }

    /// True for a page that is to move.
    pub(crate) fn has_page(&self, page: Pba) -> bool {
        self.pages.contains_key(&page)
    }
}

impl Moves {
    pub(crate) fn is_empty(&self) -> bool {
        self.puts.is_empty() && self.pages.is_empty() && self.families.is_empty()
    }

    /// How many copies there are, and pages that are to move.
    pub(crate) fn len(&self) -> usize {
        let shared: usize = self.families.values().map(|moves| moves.pages.len()).sum();
        self.copies.len() + self.known + self.pages.len() + shared
    }

    /// Notes that an address of a volume is to name a block that is stored already, in place of `put.from`.
    pub(crate) fn note_known(&mut self, volume: VolumeId, lba: Lba, put: Put) {
        self.puts.entry(volume).or_default().insert(lba, put);
        self.known += 1;
    }

    /// The same for an address of a family.
    pub(crate) fn note_known_shared(&mut self, family: u32, lba: Lba, put: Put) {
        self.families.entry(family).or_default().put(lba, put);
        self.known += 1;
    }

    /// Notes what names the copy of a block that is sealed again.
    pub(crate) fn note_resealed(&mut self, from: Pba, to: MapEntry) {
        self.resealed.insert(from, to);
    }

    /// What names the copy of a block that is sealed again.
    pub(crate) fn resealed(&self, from: Pba) -> Option<MapEntry> {
        self.resealed.get(&from).copied()
    }

    /// Notes that all that a leaf names, of which this is the page, has this generation at least once all
    /// copies are put. The leaf is its map's alone.
    pub(crate) fn mark(&mut self, page: Pba, generation: u32) {
        self.marks.insert(page, generation);
    }

    /// The same of a leaf that maps of a family share.
    pub(crate) fn mark_shared(&mut self, family: u32, page: Pba, generation: u32) {
        self.families.entry(family).or_default().marks.insert(page, generation);
    }

    /// The generation of the next version of a page of a map's own, if it was looked through.
    pub(crate) fn mark_of(&self, page: Pba) -> Option<u32> {
        self.marks.get(&page).copied()
    }

    /// True when a page of a family was looked through.
    pub(crate) fn is_marked(&self, family: u32, page: Pba) -> bool {
        let shared = self.families.get(&family).and_then(|moves| moves.mark_of(page));
        shared.or_else(|| self.mark_of(page)).is_some()
    }

    /// New entries for maps that share pages, by their family.
    pub(crate) fn families(&self) -> impl Iterator<Item = (u32, &FamilyMoves)> {
        self.families.iter().map(|(&family, moves)| (family, moves))
    }

    /// Notes that what `from` names at an address, in whichever maps of a family, was copied, raw, to
    /// `copy`.
    pub(crate) fn note_shared(
        &mut self,
        family: u32,
        lba: Lba,
        from: MapEntry,
        (copy, fingerprint): (Pba, Fingerprint),
    ) {
        let to = MapEntry::Block { pba: copy, form: Form::Raw, prefix: fingerprint.prefix() };
        self.families.entry(family).or_default().put(lba, Put { from, to });
        self.copies.insert(copy, fingerprint);
    }

    /// Notes that a page of a family is to be written at a new place; it is that of a leaf, or above it.
    pub(crate) fn note_shared_page(&mut self, family: u32, page: Pba, leaf: u64) {
        self.families.entry(family).or_default().pages.insert(page, leaf);
    }

    /// Notes that the blocks at some addresses of a map, or of the maps of a family, were copied together into a
    /// pack with this checksum. Each address has the entry that was copied, the number of its fragment, and
    /// the prefix of its fingerprint.
    pub(crate) fn note_pack(
        &mut self,
        volume: VolumeId,
        family: Option<u32>,
        (pack, checksum): (Pba, Fingerprint),
        fragments: &[(Lba, MapEntry, u8, u64)],
    ) {
        for &(lba, from, fragment, prefix) in fragments {
            let to = MapEntry::Block { pba: pack, form: Form::Packed(fragment), prefix };
            let put = Put { from, to };
            match family {
                Some(family) => self.families.entry(family).or_default().put(lba, put),
                None => drop(self.puts.entry(volume).or_default().insert(lba, put)),
            }
        }
        self.copies.insert(pack, checksum);
        self.packs.insert(pack);
        self.known += fragments.len().saturating_sub(1);
    }

    /// True for a copy that is a pack.
    pub(crate) fn is_pack(&self, copy: Pba) -> bool {
        self.packs.contains(&copy)
    }

    /// What is to be put at an address of a family, in place of different entries.
    pub(crate) fn shared_puts(&self, family: u32, lba: Lba) -> &[Put] {
        let puts = self.families.get(&family).and_then(|moves| moves.puts.get(&lba));
        puts.map_or(&[], Vec::as_slice)
    }

    /// True when an address of a family has a copy already.
    pub(crate) fn has_shared(&self, family: u32, lba: Lba) -> bool {
        self.families.get(&family).is_some_and(|moves| moves.puts.contains_key(&lba))
    }

    /// True when a page of a family is to move already.
    pub(crate) fn has_shared_page(&self, family: u32, page: Pba) -> bool {
        self.families.get(&family).is_some_and(|moves| moves.has_page(page))
    }

    /// How many of the pages at these places of a family, each with its number of pages, are not
    /// counted yet for the next checkpoint.
    pub(crate) fn uncounted(&self, family: u32, places: &[((u8, u64), u64)]) -> u64 {
        let counted = self.families.get(&family).map(|moves| &moves.counted);
        let new = |place| counted.is_none_or(|counted| !counted.contains(place));
        places.iter().filter(|(place, _)| new(place)).map(|(_, pages)| pages).sum()
    }

    /// The pages at these places are counted from now on.
    pub(crate) fn count_places(&mut self, family: u32, places: &[((u8, u64), u64)]) {
        let counted = &mut self.families.entry(family).or_default().counted;
        counted.extend(places.iter().map(|(place, _)| *place));
    }

    /// Notes that the page of a leaf is to be written at a new place.
    pub(crate) fn note_page(&mut self, home: Home, leaf: u64) {
        self.pages.insert((home, leaf));
    }

    /// The leaves whose pages are to be written at new places.
    pub(crate) fn pages(&self, home: Home) -> impl Iterator<Item = u64> {
        self.pages.range((home, 0)..=(home, u64::MAX)).map(|&(_, leaf)| leaf)
    }

    /// Notes that what `from` names at an address was copied, raw, to `copy`.
    pub(crate) fn note(
        &mut self,
        volume: VolumeId,
        lba: Lba,
        from: MapEntry,
        (copy, fingerprint): (Pba, Fingerprint),
    ) {
        let prefix = fingerprint.prefix();
        let to = MapEntry::Block { pba: copy, form: Form::Raw, prefix };
        self.puts.entry(volume).or_default().insert(lba, Put { from, to });
        self.copies.insert(copy, fingerprint);
    }

    /// True when an address has a copy already.
    pub(crate) fn has(&self, volume: VolumeId, lba: Lba) -> bool {
        self.puts.get(&volume).is_some_and(|puts| puts.contains_key(&lba))
    }

    /// The leaves of a map in which there is something to put.
    pub(crate) fn leaves(&self, volume: VolumeId) -> impl Iterator<Item = u64> {
        let puts = self.puts.get(&volume).into_iter().flatten();
        let leaves = puts.map(|(lba, _)| lba.0 / Table::Map.per_leaf());
        leaves.chain(self.pages(Home::Map(volume)))
    }

    /// The copies that are to be put into a leaf of a map, by address.
    pub(crate) fn of_leaf(&self, volume: VolumeId, leaf: u64) -> impl Iterator<Item = (Lba, Put)> {
        let per_leaf = Table::Map.per_leaf();
        let within = Lba(leaf * per_leaf)..Lba((leaf + 1) * per_leaf);
        let puts = self.puts.get(&volume).into_iter();
        puts.flat_map(move |puts| puts.range(within.clone())).map(|(&lba, &put)| (lba, put))
    }

    /// The blocks that were copied.
    #[cfg(feature = "planted-bugs")]
    pub(crate) fn replaced(&self) -> BTreeSet<Pba> {
        let shared = self.families.values().flat_map(|moves| moves.puts.values().flatten());
        let puts = self.puts.values().flat_map(BTreeMap::values).chain(shared);
        puts.filter_map(|put| match put.from {
            MapEntry::Block { pba, .. } => Some(pba),
            _ => None,
        })
        .collect()
    }

    /// The copies and their fingerprints.
    pub(crate) fn copies(&self) -> impl Iterator<Item = (Pba, &Fingerprint)> {
        self.copies.iter().map(|(&copy, fingerprint)| (copy, fingerprint))
    }

    /// The fingerprint of a copy.
    pub(crate) fn fingerprint(&self, copy: Pba) -> Option<Fingerprint> {
        self.copies.get(&copy).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(pba: u64) -> MapEntry {
        MapEntry::Block { pba: Pba(pba), form: Form::Raw, prefix: 0x0909_0909_0909_0909 }
    }

    #[test]
    fn a_copy_is_found_by_its_leaf_and_by_its_place() {
        let fingerprint = Fingerprint([9; 16]);
        let mut moves = Moves::default();
        moves.note(VolumeId(3), Lba(288), raw(5), (Pba(70), fingerprint));
        moves.note(VolumeId(3), Lba(2), raw(6), (Pba(71), fingerprint));
        assert_eq!(moves.leaves(VolumeId(3)).collect::<Vec<_>>(), [0, 1]);
        let put = Put { from: raw(5), to: raw(70) };
        assert_eq!(moves.of_leaf(VolumeId(3), 1).collect::<Vec<_>>(), [(Lba(288), put)]);
        assert_eq!(moves.of_leaf(VolumeId(4), 1).count(), 0);
        assert!(moves.has(VolumeId(3), Lba(2)) && !moves.has(VolumeId(3), Lba(3)));
        assert_eq!(moves.fingerprint(Pba(71)), Some(fingerprint));
        assert_eq!((moves.len(), moves.fingerprint(Pba(5))), (2, None));
        moves.note_page(Home::Map(VolumeId(3)), 9);
        moves.note_page(Home::References, 4);
        assert_eq!(moves.leaves(VolumeId(3)).collect::<Vec<_>>(), [0, 1, 9]);
        assert_eq!(moves.pages(Home::References).collect::<Vec<_>>(), [4]);
        assert_eq!(moves.pages(Home::Fingerprints).count(), 0);
    }

    #[test]
    fn pages_of_a_place_that_differ_at_an_address_change_together() {
        let mut moves = Moves::default();
        let copies = [(raw(5), 70), (raw(6), 71)];
        for (from, copy) in copies {
            moves.note_shared(3, Lba(290), from, (Pba(copy), Fingerprint([9; 16])));
        }
        let puts = copies.map(|(from, copy)| Put { from, to: raw(copy) });
        assert_eq!(moves.shared_puts(3, Lba(290)), puts);
        assert_eq!(moves.shared_puts(4, Lba(290)), []);
        let (_, family) = moves.families().next().expect("a family");
        assert_eq!(family.leaves(), [1]);
        assert_eq!(family.of_leaf(1).collect::<Vec<_>>(), puts.map(|put| (2, put)));
        assert_eq!((family.of_leaf(0).count(), moves.len()), (0, 2));
    }
}
