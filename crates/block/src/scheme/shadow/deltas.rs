//! The changes of blocks in a checkpoint: touches of them, and their sums.

use onefold_core::Pba;

use crate::{
    format::{
        page::Table,
        record::{from_low_bytes, low_bytes},
    },
    index::hash_of,
};

/// A change of a block in a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Touch {
    /// An address names it from now on.
    Raise,
    /// An address named it until now.
    Lower,
    /// Whether it is free is to be found out, whatever its count does.
    Examine,
    /// The same; and it is new, raw or in a carrier.
    New { carried: bool },
    /// The same; and it is a copy of a block that is moved.
    Copy,
}

/// A touch of one block, in 11 bytes: a record makes three of them.
#[derive(Clone, Copy)]
pub(crate) struct Delta {
    pba: [u8; 5],
    hash: [u8; 5],
    touch: Touch,
}

const _: () = assert!(size_of::<Delta>() == 11);

impl Delta {
    /// A change of the count of a block whose fingerprint begins with `prefix`.
    pub(crate) fn new(pba: Pba, touch: Touch, prefix: u64) -> Delta {
        Delta { pba: low_bytes(pba.0), hash: low_bytes(hash_of(prefix)), touch }
    }

    pub(crate) fn pba(&self) -> Pba {
        Pba(from_low_bytes(&self.pba))
    }

    fn hash(&self) -> u64 {
        from_low_bytes(&self.hash)
    }
}

/// The sum of the touches of one block.
#[derive(Default)]
pub(crate) struct Sum {
    pub(crate) difference: i64,
    pub(crate) examine: bool,
    /// New, and whether in a carrier.
    pub(crate) new: Option<bool>,
    /// A copy of a block that is moved.
    pub(crate) copy: bool,
    /// As far as anybody who touched it knows.
    pub(crate) hash: Option<u64>,
}

impl Sum {
    pub(crate) fn of(deltas: &[Delta]) -> Sum {
        let mut sum = Sum::default();
        for delta in deltas {
            match delta.touch {
                Touch::Raise => sum.difference += 1,
                Touch::Lower => sum.difference -= 1,
                Touch::Examine => sum.examine = true,
                Touch::New { carried } => (sum.examine, sum.new) = (true, Some(carried)),
                Touch::Copy => (sum.examine, sum.new, sum.copy) = (true, Some(false), true),
            }
            if delta.touch != Touch::Examine {
                sum.hash = Some(delta.hash());
            }
        }
        sum
    }
}

/// The leaf that holds the count of a block.
pub(crate) fn leaf_of(delta: &Delta) -> u64 {
    delta.pba().0 / Table::References.per_leaf()
}
