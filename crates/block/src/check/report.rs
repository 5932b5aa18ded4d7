//! The result of a check.

use std::fmt;

use onefold_core::{Lba, Pba, VolumeId, ZoneId};

use crate::format::{
    geometry::SUPERBLOCKS,
    page::{PageId, Table},
};

/// Problems that a report names; more are only counted, so that a wrecked store costs bounded
/// memory.
pub const PROBLEMS_MAX: usize = 1000;

/// Where something is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// The store as a whole.
    Store,
    /// The superblock at place 0 or 1.
    Superblock(u32),
    /// A copy of a page of the zone list: page, and the block that it lies in.
    ZoneList(u32, Pba),
    /// A table page, and the block that it lies in.
    Page(PageId, Pba),
    /// A volume, by its number.
    Volume(VolumeId),
    /// A logical address.
    Address(VolumeId, Lba),
    /// A physical block.
    Block(Pba),
    /// A zone.
    Zone(ZoneId),
}

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where.
    pub place: Place,
    /// The problem, as a sentence without its subject's place.
    pub what: String,
}

/// The work that is being done now, and how far it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The part that is being read.
    pub what: Phase,
    /// How much of it was read: pages, or blocks for carriers and data.
    pub done: u64,
    /// How much of it there is about; 0 when that is not known.
    pub total: u64,
}

/// The parts of a check, a repair or a scrub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Table pages.
    Tables,
    /// Maps of the volumes.
    Maps,
    /// Carriers.
    Carriers,
    /// Changes that no checkpoint holds.
    Recovery,
    /// New tables.
    Rebuild,
    /// The data itself.
    Data,
    /// The volumes that name damaged data.
    Names,
}

/// The result of a check. All counts are of the store as it would be after an opening.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The problems: the first [`PROBLEMS_MAX`].
    pub problems: Vec<Problem>,
    /// How much is wrong.
    pub problems_found: u64,
    /// Facts that a person may want to know although they are no problems.
    pub notes: Vec<String>,
    /// True when the store was shut down cleanly.
    pub clean: bool,
    /// Volumes.
    pub volumes: u64,
    /// Physical blocks with references.
    pub live_blocks: u64,
    /// Logical blocks mapped to them.
    pub mapped_blocks: u64,
    /// Blocks in use, by data and tables.
    pub used_blocks: u64,
    /// Table pages.
    pub pages: u64,
    /// Carriers that live mappings name.
    pub carriers: u64,
    /// Packs that they name.
    pub packs: u64,
    /// Logical blocks that are in packs.
    pub fragments: u64,
    /// Blocks in use that nothing names.
    pub leaked_blocks: u64,
    /// Blocks whose count is saturated; a repair restores them.
    pub saturated_blocks: u64,
    /// Addresses whose data is lost, as an earlier repair found, or the sender of a snapshot that skipped
    /// damage. They read as errors until they are written or trimmed; nothing is wrong with them
    /// otherwise. What several maps share counts once.
    pub lost_addresses: u64,
    /// Addresses in critical ranges whose block has other names: written before the range was made
    /// one. With tables in place not counted before a crash's counts are exact again.
    pub shared_critical: u64,
    /// Ranges that are still to be applied to the maps.
    pub pending_discards: u64,
}

impl Report {
    /// True when nothing is wrong.
    #[must_use]
    pub fn is_well(&self) -> bool {
        self.problems_found == 0
    }

    /// Adds a problem, unless it is known already.
    pub(crate) fn problem(&mut self, place: Place, what: impl Into<String>) {
        let problem = Problem { place, what: what.into() };
        if self.problems.len() < PROBLEMS_MAX {
            if self.problems.contains(&problem) {
                return;
            }
            self.problems.push(problem);
        }
        self.problems_found += 1;
    }

    pub(crate) fn note(&mut self, what: impl Into<String>) {
        self.notes.push(what.into());
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.what)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Store => write!(f, "store"),
            Place::Superblock(place) => {
                write!(f, "superblock {place} (block {})", SUPERBLOCKS[*place as usize % 2])
            }
            Place::ZoneList(page, at) => write!(f, "zone list page {page} (block {at})"),
            Place::Page(id, at) => write!(f, "{} (block {at})", Named(*id)),
            Place::Volume(id) => write!(f, "volume {id}"),
            Place::Address(volume, lba) => write!(f, "volume {volume}, block {lba}"),
            Place::Block(pba) => write!(f, "physical block {pba}"),
            Place::Zone(zone) => write!(f, "zone {zone}"),
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Phase::Tables => "tables",
            Phase::Maps => "maps",
            Phase::Carriers => "carriers",
            Phase::Recovery => "recovery",
            Phase::Rebuild => "new tables",
            Phase::Data => "data",
            Phase::Names => "names of damaged data",
        })
    }
}

/// A page's name for people.
pub(crate) struct Named(pub(crate) PageId);

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PageId { table, volume, level, index } = self.0;
        match table {
            Table::Map => write!(f, "map of volume {volume}")?,
            table => f.write_str(table_name(table))?,
        }
        match level {
            0 => write!(f, ", leaf {index}"),
            level => write!(f, ", page {index} of level {level}"),
        }
    }
}

/// A table's name for people.
pub(crate) fn table_name(table: Table) -> &'static str {
    match table {
        Table::Map => "map",
        Table::References => "table of references",
        Table::Fingerprints => "table of fingerprints",
        Table::Zones => "zone table",
        Table::Catalogue => "catalogue",
        Table::Discards => "table of discards",
        Table::Index => "fingerprint index",
        Table::Shares => "table of shared pages",
        Table::Maps => "catalogue of maps",
    }
}
