//! The tables that the log's records make: the catalogue, the container table, and where collection
//! and import stand.
//!
//! A value of this type is the archive as of one place in the log. The same records give the same
//! tables in every process.

use onefold_core::{Error, Kind, Result};

use super::{
    care::Care,
    containers::{Containers, Found},
    data_keys::DataKeys,
    moved_numbers::MovedNumbers,
    not_imported::{Listed, NotImported},
    persistent::{List, Map},
    roles::Roles,
    segments::{EmptySegments, Segment},
    snapshots::Snapshots,
    totals::{Sums, Totals},
    volume_table::VolumeTable,
    write_cost::WriteCost,
};
use crate::{
    format::{
        ContainerId,
        class::Class,
        damage::is_damage,
        label::Kinds,
        record::{IndexFile, Pieces, Place, Stored, Stream},
    },
    leaf_file::LeafFile,
};

/// Longest name of a stream.
pub(crate) const NAME_BYTES_MAX: usize = 4096;

/// The chunk index, as of its last import.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct IndexState {
    /// Its files: the index itself, then runs.
    pub files: Vec<IndexFile>,
    /// All containers up to this sequence number are in it.
    pub upto: u64,
}

impl IndexState {
    /// The highest number of its files; each file that is made later has a higher one.
    pub(crate) fn named_upto(&self) -> u64 {
        self.files.iter().map(|file| file.number).max().unwrap_or(0)
    }
}

/// A file of usage counts, as a frame names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NamedCounts {
    /// Its number.
    pub(crate) number: u64,
    /// The first half of the tag that proves it, in a sealed archive: another file of this number may
    /// come from before a crash, or from a copy of the archive. `None` takes any.
    pub(crate) proof: Option<u64>,
}

/// A recipe that came or went since the counts were made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// True when it came.
    pub added: bool,
    /// The recipe.
    pub recipe: Vec<Pieces>,
    /// With which version; where encoding is late.
    pub at: u64,
    /// The pieces are roots of nodes, and no recipe.
    pub nodes: bool,
}

/// The archive as of one place in the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tables {
    /// The number of the last frame that is applied.
    pub sequence: u64,
    /// The checksum of that frame.
    pub chain: u64,
    /// True in an archive that keeps heads.
    pub heads: bool,
    /// The head behind the last frame, a hash of all frames; zeroes in an archive that keeps none.
    pub head: [u8; 32],
    /// The epoch that new readers enter.
    pub epoch: u32,
    /// The next id that nobody has.
    pub next_id: u64,
    /// The next segment's number.
    pub next_segment: u32,
    /// The catalogue.
    pub streams: Map<String, Stream>,
    /// The containers by their own numbers.
    pub containers: Containers,
    /// Where merged and late-encoded containers lie now: no chains, and at most
    /// [`PLACES_MAX`](crate::late::PLACES_MAX) places.
    pub moved_to: Map<ContainerId, Vec<ContainerId>>,
    /// The segment files.
    pub segments: Map<u32, Segment>,
    /// Containers that no recipe names yet, and since when.
    pub unfinished: Map<ContainerId, u64>,
    /// Chunks that no put may take as duplicates: a bit for each chunk, in the order of the
    /// container.
    pub condemned: Map<ContainerId, Vec<u8>>,
    /// Chunks whose bytes are not what they were: a bit for each chunk, in the order of the
    /// container.
    pub damaged: Map<ContainerId, Vec<u8>>,
    /// Places that no record names any more, and the epoch whose readers may still be there.
    pub waiting_to_be_freed: Map<Place, u32>,
    /// The chunk index.
    pub index: IndexState,
    /// The number of the counts' file; 0 for none.
    pub counts: u64,
    /// The first half of the tag that proves this file, in a sealed archive.
    pub counts_proof: u64,
    /// The counts have all containers that were listed up to this frame.
    pub counted: u64,
    /// Recipes that came and went since the counts were made.
    pub differences: List<Difference>,
    /// Containers begin at multiples of this in a plain segment: a row of stripes.
    pub align: u64,
    /// Columns of parity.
    pub parity: u8,
    /// Chunks are encoded late, so versions are counted.
    pub late: bool,
    /// Puts that were committed.
    pub versions: u64,
    /// Bytes and chunks written since the archive was made.
    pub write_cost: WriteCost,
    /// The care that the archive got.
    pub care: Care,
    /// The archive can have snapshots of directories.
    pub trees: bool,
    /// The leaves of catalogue, container table and snapshots of directories are in a file.
    pub leaves: bool,
    /// Leaves of the container table are read when they are looked at.
    pub on_demand: bool,
    /// The pages of the file of leaves that must not be written.
    pub leaf_file: LeafFile,
    /// Volumes may be clones of others.
    pub clones: bool,
    /// There may be domains beside the first one.
    pub has_domains: bool,
    /// The domains that were erased, and the highest number of any domain.
    pub domains: DomainsKnown,
    /// Data keys may have taken the place of older ones.
    pub has_data_keys: bool,
    /// Volumes may be of domains beside the first one.
    pub has_volume_domains: bool,
    /// The data keys that took the place of older ones, by domain and generation.
    pub data_keys: DataKeys,
    /// Who may change the archive beside manage, where keys have roles.
    pub roles: Option<Roles>,
    /// The snapshots of directories.
    pub snapshots: Snapshots,
    /// The volumes.
    pub volumes: VolumeTable,
    /// Sums and lists that follow from the other tables.
    pub derived: Derived,
}

/// The domains as far as the log names them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DomainsKnown {
    /// The highest number of a domain that the log names.
    pub last: u32,
    /// The numbers of domains that were erased; true once nothing of the domain is left to be freed.
    pub erased: Map<u32, bool>,
}

/// Sums and lists that follow from other tables. They are kept so that applying a record costs no more than
/// what the record names, whoever wrote it.
#[derive(Clone, Debug, Default)]
pub struct Derived {
    /// Segments in which nothing is used.
    pub(super) empty_segments: EmptySegments,
    /// Sums over the containers of each class.
    pub(super) sums: Sums,
    /// Containers that were listed since the last import.
    pub(super) not_imported: NotImported,
    /// What replaying the log costs beyond its bytes.
    pub(crate) moved: MovedNumbers,
    /// The planted bug: clones are not counted.
    #[cfg(feature = "planted-bugs")]
    pub(crate) clones_uncounted: bool,
}

impl PartialEq for Derived {
    /// Tables are equal when the rest is.
    fn eq(&self, _: &Derived) -> bool {
        true
    }
}

impl Eq for Derived {}

/// Bytes of one column in a row; with one node, what segments are read and written by multiples of.
pub(crate) const PLACE_ALIGN: u64 = 4096;

impl Tables {
    /// Empty tables of an archive with this spread and these kinds of tables.
    #[must_use]
    pub fn new([_, data, parity]: [u8; 3], kinds: Kinds) -> Tables {
        let Kinds {
            late,
            trees,
            leaves,
            on_demand,
            clones,
            domains,
            heads,
            roles,
            data_keys,
            volume_domains,
            counts_in_pages: _,
        } = kinds;
        let (align, has_domains) = (PLACE_ALIGN * u64::from(data), domains);
        Tables {
            align,
            parity,
            late,
            trees,
            leaves,
            on_demand,
            clones,
            has_domains,
            has_data_keys: data_keys,
            has_volume_domains: volume_domains,
            heads,
            roles: roles.then(Roles::default),
            ..Tables::default()
        }
    }

    /// The usage counts that the last frame of counts names.
    pub(crate) fn named_counts(&self) -> NamedCounts {
        NamedCounts { number: self.counts, proof: Some(self.counts_proof) }
    }

    /// Containers that were listed since the last import, in no order.
    ///
    /// # Errors
    /// As [`Containers::get`].
    pub fn not_imported(&self) -> Result<Vec<ContainerId>> {
        match self.derived.not_imported.known() {
            Some(known) => Ok(known.keys().map(|&(_, id)| id).collect()),
            None => Ok(listed_since_import(self)?.into_iter().map(|(_, id)| id).collect()),
        }
    }

    /// Finds out what was listed since the last import, where that is not known.
    pub(super) fn derive_not_imported(&mut self) -> Result<()> {
        if self.derived.not_imported.known().is_none() {
            let mut known = Map::default();
            known.extend(listed_since_import(self)?.into_iter().map(|listed| (listed, ())));
            self.derived.not_imported = NotImported::all(known);
        }
        Ok(())
    }

    /// The kinds of these tables as one number, which manage signs with them.
    pub(crate) fn kind_bits(&self) -> u64 {
        let all = [
            self.late,
            self.trees,
            self.leaves,
            self.on_demand,
            self.clones,
            self.has_domains,
            self.heads,
            self.roles.is_some(),
            self.has_data_keys,
            self.has_volume_domains,
        ];
        all.into_iter().rev().fold(0, |bits, is| bits << 1 | u64::from(is))
    }

    /// Derives what follows from the other tables. `found` are the containers that were listed since the
    /// last import, and the sums over containers, where a snapshot says them.
    pub(super) fn derive(&mut self, found: Option<(Listed, Sums)>) {
        let empty_segments = EmptySegments::among(&self.segments);
        self.derived = Derived { empty_segments, ..Derived::default() };
        if let Some((not_imported, sums)) = found {
            self.derived.not_imported = NotImported::all(not_imported);
            self.derived.sums = sums;
            return;
        }
        let mut known = Map::default();
        let since = self.containers.loaded().filter(|found| found.logged > self.index.upto);
        known.extend(since.map(|found| ((found.logged, found.stored.id), ())));
        self.derived.not_imported = NotImported::all(known);
        let all: Vec<Stored> = self.containers.loaded().map(|found| found.stored).collect();
        for stored in &all {
            let (class, more) = self.sums_with(stored);
            self.derived.sums.add(class, more);
        }
    }

    /// A copy of these tables with the `n` oldest differences only.
    pub(crate) fn with_differences(&self, n: usize) -> Tables {
        let mut tables = self.clone();
        tables.differences = List::default();
        tables.differences.extend(self.differences.iter().take(n).cloned());
        tables
    }

    /// Bytes of a segment that a place takes.
    #[must_use]
    pub fn taken(&self, place: &Place) -> u64 {
        u64::from(place.bytes).next_multiple_of(PLACE_ALIGN * u64::from(self.class(place).1))
    }

    /// The class of a place's segment, and its columns of data.
    #[must_use]
    pub fn class(&self, place: &Place) -> (Class, u8) {
        let plain = (Class::Plain, (self.align / PLACE_ALIGN).max(1) as u8);
        self.segments.get(&place.segment).map_or(plain, |segment| (segment.class, segment.data))
    }

    /// Bytes that a place takes on all nodes, with copies and parity.
    #[must_use]
    pub fn written(&self, place: &Place) -> u64 {
        let data = u64::from(self.class(place).1);
        self.taken(place) / data * (data + u64::from(self.parity))
    }

    /// The containers that hold chunks that were stored as `id`. An error, as [`Containers::get`]
    /// has it, tells nothing of whether there are any.
    pub fn places(&self, id: ContainerId) -> impl Iterator<Item = Result<Found>> {
        let moved_to = self.moved_to.get(&id);
        let own = moved_to.is_none().then_some(id);
        let homes = own.into_iter().chain(moved_to.into_iter().flatten().copied());
        homes.filter_map(|home| self.containers.get(&home).transpose())
    }

    /// Leaves of the container table that are in memory until a snapshot names them: those that changed,
    /// where leaves are read on demand.
    pub(crate) fn held_leaves(&self) -> usize {
        if self.on_demand { self.containers.held_leaves() } else { 0 }
    }

    /// True when a container holds chunks that were stored as `id`.
    ///
    /// # Errors
    /// As [`Containers::get`].
    pub(crate) fn has_place(&self, id: ContainerId) -> Result<bool> {
        self.places(id).next().transpose().map(|place| place.is_some())
    }
}

impl Tables {
    /// Sums over the containers of each class.
    #[must_use]
    pub fn sums(&self) -> &Sums {
        &self.derived.sums
    }

    /// The class of a container, and what it adds to the sums.
    pub(super) fn sums_with(&self, stored: &Stored) -> (Class, Totals) {
        (self.class(&stored.place).0, Totals::of(stored, self.written(&stored.place)))
    }

    /// Columns of data of a class, if there is a segment of it.
    #[must_use]
    pub fn data_of(&self, class: Class) -> Option<u8> {
        self.segments.values().find(|segment| segment.class == class).map(|segment| segment.data)
    }
}

/// A name that a stream can have.
///
/// # Errors
/// `InvalidInput`.
pub fn valid_name(name: &str) -> Result<()> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
        return Err(Error::new(
            Kind::InvalidInput,
            format!("a stream's name has 1 to {NAME_BYTES_MAX} bytes and no control characters"),
        ));
    }
    Ok(())
}

/// Containers that were listed since the last import, by which frame: all are looked at. Those of a
/// leaf that is lost are left out, as when the index is made anew.
fn listed_since_import(tables: &Tables) -> Result<Vec<(u64, ContainerId)>> {
    let mut since = Vec::new();
    for container in &tables.containers {
        let container = match container {
            Err(error) if is_damage(&error) => continue,
            found => found?,
        };
        if container.logged > tables.index.upto {
            since.push((container.logged, container.stored.id));
        }
    }
    Ok(since)
}
