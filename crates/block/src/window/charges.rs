//! Charges: how many blocks clients' writes since a checkpoint may have added to volumes and domains with
//! a quota.

use std::collections::{BTreeMap, BTreeSet};

use onefold_core::VolumeId;

use crate::format::page::FANOUT;

/// The owner of blocks that are charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Charged {
    /// A volume, for what it maps.
    Volume(VolumeId),
    /// A domain, by its number, for what it stores.
    Domain(u32),
}

impl From<VolumeId> for Charged {
    fn from(volume: VolumeId) -> Charged {
        Charged::Volume(volume)
    }
}

/// Blocks that a volume maps, or a domain stores, more than the tables say, or fewer than that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Charge {
    blocks: u64,
    /// Pages of the volume's map, at most.
    pages: u64,
    /// True for an upper bound.
    loose: bool,
}

impl Charge {
    pub(crate) fn exactly(blocks: u64) -> Charge {
        Charge { blocks, pages: 0, loose: false }
    }

    pub(crate) fn at_most(blocks: u64) -> Charge {
        Charge { blocks, pages: 0, loose: true }
    }

    /// The same, with so many pages of the volume's map at most.
    pub(crate) fn with_pages(self, pages: u64) -> Charge {
        Charge { pages, ..self }
    }

    /// How many blocks, at most.
    pub(crate) fn blocks(self) -> u64 {
        self.blocks
    }

    /// How many pages of the volume's map, at most.
    pub(crate) fn pages(self) -> u64 {
        self.pages
    }

    /// True when there may be fewer blocks: nobody looked up which were mapped before, or some were trimmed.
    pub(crate) fn is_loose(self) -> bool {
        self.loose
    }

    /// The sum of both charges.
    pub(crate) fn and(self, other: Charge) -> Charge {
        Charge {
            blocks: self.blocks + other.blocks,
            pages: self.pages + other.pages,
            loose: self.loose || other.loose,
        }
    }
}

/// The charges of volumes and domains; those without a quota have none.
#[derive(Default)]
pub(crate) struct Charges {
    all: BTreeMap<Charged, Charge>,
    /// The pages of maps that were charged, and to whom.
    pages: BTreeSet<MapPage>,
}

/// A page of the map of a volume, by level and number, that is charged to the volume or its domain.
type MapPage = (Charged, VolumeId, u8, u64);

/// The pages on the way to a leaf of a map with `depth` levels, from the leaf on.
fn way(charged: Charged, volume: VolumeId, leaf: u64, depth: u8) -> impl Iterator<Item = MapPage> {
    let numbers = std::iter::successors(Some(leaf), |number| Some(number / FANOUT));
    (0..depth).zip(numbers).map(move |(level, number)| (charged, volume, level, number))
}

impl Charges {
    pub(crate) fn add(&mut self, charged: Charged, more: Charge) {
        let charge = self.all.entry(charged).or_default();
        *charge = charge.and(more);
    }

    /// How many pages on the way to a leaf of a map with `depth` levels were not charged yet.
    pub(crate) fn new_on_way(
        &self,
        charged: Charged,
        volume: VolumeId,
        leaf: u64,
        depth: u8,
    ) -> u64 {
        way(charged, volume, leaf, depth).take_while(|page| !self.pages.contains(page)).count()
            as u64
    }

    /// Charges the pages on the way to a leaf of a map with `depth` levels, each once.
    pub(crate) fn add_way(&mut self, charged: Charged, volume: VolumeId, leaf: u64, depth: u8) {
        let pages = way(charged, volume, leaf, depth);
        let new = pages.take_while(|&page| self.pages.insert(page)).count();
        self.add(charged, Charge::default().with_pages(new as u64));
    }

    /// The charge of one volume or domain.
    pub(crate) fn of(&self, charged: Charged) -> Charge {
        self.all.get(&charged).copied().unwrap_or_default()
    }

    pub(crate) fn add_all(&mut self, others: &Charges) {
        others.all.iter().for_each(|(&charged, &charge)| self.add(charged, charge));
    }
}
