//! Charges: how many blocks clients' writes since a checkpoint may have added to volumes with a quota.

use std::collections::BTreeMap;

use onefold_core::VolumeId;

/// The blocks that a volume maps beyond those that the tables count, or an upper bound of them.
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

/// The charges of volumes; those without a quota have none.
#[derive(Default)]
pub(crate) struct Charges(BTreeMap<VolumeId, Charge>);

impl Charges {
    pub(crate) fn add(&mut self, volume: VolumeId, more: Charge) {
        let charge = self.0.entry(volume).or_default();
        *charge = charge.and(more);
    }

    /// The charge of one volume.
    pub(crate) fn of(&self, volume: VolumeId) -> Charge {
        self.0.get(&volume).copied().unwrap_or_default()
    }

    pub(crate) fn add_all(&mut self, others: &Charges) {
        others.0.iter().for_each(|(&volume, &charge)| self.add(volume, charge));
    }
}
