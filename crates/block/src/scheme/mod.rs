//! Metadata schemes: how the records of a window become durable.
//!
//! Everything else is common to all: windows, duplicates, placement, and the checkpoints that carry
//! records into the structured tables. Only [`ordermerge`] writes the tables' leaves itself.
//! Nothing outside this folder asks which scheme runs.
//!
//! | scheme | records of a window | flushes for a window |
//! |---|---|---|
//! | [`thin`] (ThinDedup) | beside the data, in blocks that compress; the rest in one more block, or in place | 1 |
//! | [`ordered`] (ThinDedup's OrderedWrites) | in place, after a flush of the data | 2 |
//! | [`cow`] (Dmdedup) | a transaction of the copy-on-write trees | 3 |
//! | [`ordermerge`] (OrderMergeDedup) | none: the tables' leaves in place, counts before links before the rest | 2, shared by the windows that wait |
//! | [`ideal`] | none: for measuring only | 1 |

mod cow;
mod ideal;
pub(crate) mod leftover_table;
mod ordered;
pub(crate) mod ordermerge;
mod thin;

use onefold_core::{Block, compress::Lz4};

use crate::format::{carrier::RECORDS_MAX, superblock::SchemeName};

/// Records of a carrier that holds nothing else.
pub(crate) const RECORDS_ALONE: usize = RECORDS_MAX;

/// A block that becomes a carrier.
pub(crate) struct Chosen {
    /// Which of the window's new blocks.
    pub(crate) block: usize,
    /// Its compressed content.
    pub(crate) payload: Vec<u8>,
    /// Records that fit beside it.
    pub(crate) room: usize,
}

/// When the records of a window are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Records {
    /// With the data; one flush makes both durable, and recovery believes what it can prove.
    WithData,
    /// After a flush of the data.
    AfterData,
    /// Not at all: a checkpoint makes the window durable.
    ByCheckpoint,
    /// Not at all: the leaves of the tables themselves are written, in place and in order.
    InPlace,
    /// Not at all: a crash loses everything.
    Nowhere,
}

/// How the records of a window become durable.
pub(crate) trait Scheme: Send + Sync {
    /// When records are written.
    fn records(&self) -> Records {
        Records::WithData
    }

    /// Chooses carriers among a window's new blocks for `records` records. The rest of the records
    /// goes where `leftover` says.
    fn choose(&self, _lz4: &mut Lz4, _blocks: &[&Block], _records: usize) -> Vec<Chosen> {
        Vec::new()
    }
}

/// The scheme of a name.
pub(crate) fn scheme(name: SchemeName) -> Box<dyn Scheme> {
    match name {
        SchemeName::Thin => Box::new(thin::Thin),
        SchemeName::Ordered => Box::new(ordered::Ordered),
        SchemeName::Cow => Box::new(cow::Cow),
        SchemeName::Ideal => Box::new(ideal::Ideal),
        SchemeName::OrderMerge => Box::new(ordermerge::OrderMerge),
    }
}
