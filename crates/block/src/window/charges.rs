//! What clients' writes may have added to volumes with a quota, since a checkpoint.

use std::collections::BTreeMap;

use onefold_core::VolumeId;

/// Blocks that a volume maps more than the tables say, or fewer than that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Charge {
    blocks: u64,
    loose: bool,
}

impl Charge {
    pub(crate) fn exactly(blocks: u64) -> Charge {
        Charge { blocks, loose: false }
    }

    pub(crate) fn at_most(blocks: u64) -> Charge {
        Charge { blocks, loose: true }
    }

    /// At most so many.
    pub(crate) fn blocks(self) -> u64 {
        self.blocks
    }

    /// True when they may be fewer: nobody asked which blocks were mapped before, or some were trimmed.
    pub(crate) fn is_loose(self) -> bool {
        self.loose
    }

    /// Both together.
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

    /// That of one volume.
    pub(crate) fn of(&self, volume: VolumeId) -> Charge {
        self.0.get(&volume).copied().unwrap_or_default()
    }

    pub(crate) fn add_all(&mut self, others: &Charges) {
        others.0.iter().for_each(|(&volume, &charge)| self.add(volume, charge));
    }
}
