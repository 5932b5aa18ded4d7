//! Units as types: a logical address, a physical address and a zone never mix.

use std::fmt;

macro_rules! unit {
    ($(#[$doc:meta])* $name:ident, $inner:ty) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }
    };
}

unit!(
    /// Logical block address: the number of a 4 KiB block inside one volume. 48 bits.
    Lba, u64
);
unit!(
    /// Physical block address: the number of a 4 KiB block of the store's disk. 40 bits (4 PiB).
    Pba, u64
);
unit!(
    /// Number of a volume; never used again after the volume is deleted.
    VolumeId, u32
);
unit!(
    /// Number of a zone, a run of `zone_blocks` physical blocks.
    ZoneId, u64
);
unit!(
    /// Position in the one order of all changes of a store (ThinDedup II-B). Given when a window
    /// closes; never goes back.
    Timestamp, u64
);

impl Lba {
    /// Largest logical address: 48 bits, 1 EiB of 4 KiB blocks.
    pub const MAX: Lba = Lba((1 << 48) - 1);

    /// The address `blocks` further.
    #[must_use]
    pub fn plus(self, blocks: u64) -> Lba {
        Lba(self.0 + blocks)
    }
}

impl Pba {
    /// Largest physical address: 40 bits.
    pub const MAX: Pba = Pba((1 << 40) - 1);

    /// The address `blocks` further.
    #[must_use]
    pub fn plus(self, blocks: u64) -> Pba {
        Pba(self.0 + blocks)
    }
}

impl Timestamp {
    /// The timestamp `n` later.
    #[must_use]
    pub fn plus(self, n: u64) -> Timestamp {
        Timestamp(self.0 + n)
    }
}
