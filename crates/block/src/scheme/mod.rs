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
mod ordered;
mod ordermerge;
pub(crate) mod records;
pub(crate) mod room;
pub(crate) mod shadow;
pub(crate) mod thin;
pub(crate) mod verbs;
pub(crate) mod windows;

use onefold_core::{Error, Result};

pub(crate) use self::verbs::Scheme;
use crate::{
    format::superblock::{Fixed, Leftover, SchemeName},
    settings::Settings,
};

/// The scheme of a name.
pub(crate) fn scheme(name: SchemeName) -> Box<dyn Scheme> {
    match name {
        SchemeName::Thin => Box::<thin::Thin>::default(),
        SchemeName::Ordered => Box::<ordered::Ordered>::default(),
        SchemeName::Cow => Box::new(cow::Cow),
        SchemeName::Ideal => Box::new(ideal::Ideal),
        SchemeName::OrderMerge => Box::<ordermerge::OrderMerge>::default(),
    }
}

/// Settings as the store's scheme can keep them.
pub(crate) fn settings(fixed: &Fixed, settings: Settings) -> Settings {
    let records_max = match (fixed.scheme, fixed.leftover) {
        // No checkpoint ever takes them.
        (SchemeName::Ideal, _) => u64::MAX,
        // The leftover table keeps its records in memory as well.
        (_, Leftover::Table) => settings.records_max * 3 / 4,
        (_, Leftover::Log) => settings.records_max,
    };
    Settings { records_max, ..settings }
}

/// Accepts that one of both superblocks could not be read because of `cause`, unless it may be the
/// only one that holds the newest windows: with copy-on-write trees.
///
/// # Errors
/// `cause`.
pub(crate) fn accept_unread_superblock(name: SchemeName, cause: Error) -> Result<()> {
    if name == SchemeName::Cow { Err(cause.context("a superblock")) } else { Ok(()) }
}
