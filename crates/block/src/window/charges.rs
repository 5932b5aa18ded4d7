//! Charges: how many blocks clients' writes since a checkpoint may have added to volumes and domains with
//! a quota.

use std::collections::BTreeMap;

use onefold_core::VolumeId;

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
    /// True for an upper bound.
    loose: bool,
}

impl Charge {
    pub(crate) fn exactly(blocks: u64) -> Charge {
        Charge { blocks, loose: false }
    }

    pub(crate) fn at_most(blocks: u64) -> Charge {
        Charge { blocks, loose: true }
    }

    /// How many blocks, at most.
    pub(crate) fn blocks(self) -> u64 {
        self.blocks
    }

    /// True when there may be fewer blocks: nobody looked up which were mapped before, or some were trimmed.
    pub(crate) fn is_loose(self) -> bool {
        self.loose
    }

    /// The sum of both charges.
    pub(crate) fn and(self, other: Charge) -> Charge {
        Charge { blocks: self.blocks + other.blocks, loose: self.loose || other.loose }
    }
}

/// The charges of volumes and domains; those without a quota have none.
#[derive(Default)]
pub(crate) struct Charges(BTreeMap<Charged, Charge>);

impl Charges {
    pub(crate) fn add(&mut self, charged: Charged, more: Charge) {
        let charge = self.0.entry(charged).or_default();
        *charge = charge.and(more);
    }

    /// The charge of one volume or domain.
    pub(crate) fn of(&self, charged: Charged) -> Charge {
        self.0.get(&charged).copied().unwrap_or_default()
    }

    pub(crate) fn add_all(&mut self, others: &Charges) {
        others.0.iter().for_each(|(&charged, &charge)| self.add(charged, charge));
    }
}
