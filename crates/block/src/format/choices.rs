//! The choices of a store's creation, written into its superblock.

/// Where records that find no room in compressed blocks go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Leftover {
    /// Into a carrier that holds only records, one more block of the same run.
    #[default]
    Log,
    /// Into the structured tables in place: the paper's way.
    Table,
}

/// How the records of a window become durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum SchemeName {
    /// In the data (ThinDedup).
    #[default]
    Thin,
    /// In place, after a flush of the data.
    Ordered,
    /// By a transaction of copy-on-write trees (Dmdedup).
    Cow,
    /// Not at all: for measuring only.
    Ideal,
    /// Not at all: the tables themselves change in place, in order (OrderMergeDedup).
    OrderMerge,
}

impl SchemeName {
    /// All of them, by their code on disk.
    pub const ALL: [SchemeName; 5] =
        [Self::Thin, Self::Ordered, Self::Cow, Self::Ideal, Self::OrderMerge];

    /// How the leaves of maps, references and fingerprints change.
    #[must_use]
    pub fn leaf_changes(self) -> LeafChanges {
        if self == Self::OrderMerge { LeafChanges::InPlace } else { LeafChanges::Shadowed }
    }

    /// True when a store of this scheme writes sectors of 512 bytes.
    #[must_use]
    pub fn writes_sectors(self) -> bool {
        matches!(self, Self::OrderMerge | Self::Ordered)
    }

    /// True when a crash empties a store of this scheme, which is for measuring only.
    #[must_use]
    pub fn loses_everything(self) -> bool {
        self == Self::Ideal
    }

    /// Where left-over records go in a store of this scheme when `chosen` was asked for.
    #[must_use]
    pub fn leftover(self, chosen: Leftover) -> Leftover {
        match self {
            // Ordered writes are in place by their nature.
            Self::Ordered => Leftover::Table,
            // There are no records.
            Self::OrderMerge => Leftover::Log,
            Self::Thin | Self::Cow | Self::Ideal => chosen,
        }
    }
}

/// The scheme that has this code on disk.
impl TryFrom<u64> for SchemeName {
    type Error = ();

    fn try_from(code: u64) -> Result<SchemeName, ()> {
        let place = usize::try_from(code).map_err(|_| ())?;
        Self::ALL.get(place).copied().ok_or(())
    }
}

/// How the leaves of maps, references and fingerprints change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeafChanges {
    /// By checkpoints, which write them to new places.
    Shadowed,
    /// In place, between checkpoints.
    InPlace,
}

/// How a window's blocks lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Layout {
    /// Carriers and raw blocks side by side in one run.
    #[default]
    Run,
    /// Carriers in C-zones, raw blocks in U-zones: the paper's way.
    Split,
}
