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
use crate::format::Identity;

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
    let mut out = String::new();
    if let What::Superblock(place) = what {
        superblock::show(disk, *place, &mut out)?;
        return Ok(out);
    }
    let superblock = places::superblocks(disk, &mut Report::default())?;
    let identity =
        Identity::new(superblock.fixed.id, superblock.fixed.secret, superblock.fixed.algorithm);
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
