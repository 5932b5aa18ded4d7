//! Showing what a block says, for a person. The store's secret is never shown.
//!
//! Everything is read from the disk as it is; of changes that no checkpoint holds, only their
//! carriers can be looked at. Damage is part of the answer wherever possible.

mod block;
mod page;
mod superblock;
mod text;
mod tree;
mod view;
mod zone;

use onefold_core::{Disk, Lba, Pba, Result, ZoneId};

use self::{text::line, view::View};
use super::{places, report::Report};
use crate::{engine::keys::unlock_to_look, settings::KeySource};

/// The part to show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// The superblock at place 0 or 1.
    Superblock(u32),
    /// The zone list: both copies of every page.
    ZoneList,
    /// A zone: its bitmap, and what lies in it.
    Zone(ZoneId),
    /// A block, whatever it is.
    Block(Pba),
    /// The account of a physical block in the tables.
    Physical(Pba),
    /// A volume, by its name.
    Volume(String),
    /// The way from a volume and an address to the data.
    Address(String, Lba),
}

/// Describes a part of a store that nobody serves, in lines of text.
///
/// # Errors
/// When the store has no whole superblock, when there is no such volume, block or zone, or `Io`.
pub fn inspect(disk: &dyn Disk, what: &What) -> Result<String> {
    inspect_with(disk, &KeySource::default(), what)
}

/// As [`inspect`], of a store that may be sealed: `keys` is asked for its key.
///
/// # Errors
/// As [`inspect`]; those of asking for the key.
pub fn inspect_with(disk: &dyn Disk, keys: &KeySource, what: &What) -> Result<String> {
    let mut out = String::new();
    let sealing = unlock_to_look(disk, keys)?;
    if let What::Superblock(place) = what {
        superblock::show(disk, sealing.as_deref(), *place, &mut out)?;
        return Ok(out);
    }
    let superblock = places::superblocks(disk, sealing.as_deref(), &mut Report::default())?;
    let identity = superblock.fixed.identity(sealing);
    let view = View { disk, superblock: &superblock, identity: &identity };
    match what {
        What::Superblock(_) => {}
        What::ZoneList => zone::show_list(&view, &mut out),
        What::Zone(zone) => zone::show(&view, *zone, &mut out)?,
        What::Block(pba) => block::show(&view, *pba, &mut out)?,
        What::Physical(pba) => block::show_physical(&view, *pba, &mut out)?,
        What::Volume(name) => tree::show_volume(&view, name, &mut out)?,
        What::Address(name, lba) => tree::show_address(&view, name, *lba, &mut out)?,
    }
    if !superblock.state.clean {
        line(
            &mut out,
            "note: the store was not shut down cleanly; changes that no checkpoint holds are not in its tables",
        );
    }
    Ok(out)
}
