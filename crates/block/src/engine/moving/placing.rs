//! Places for copies and packs: free runs, or holes of zones.

use onefold_core::Result;

use crate::{
    kernel::Kernel,
    moving::Why,
    overlay::Tables,
    space::{Extent, ZoneSource},
};

/// Finds places for copies, of which about `run` belong together. Returns whether all of them got one.
pub(super) fn place<T>(
    kernel: &Kernel,
    tables: &Tables,
    (why, run): (Why, u64),
    copied: Vec<T>,
) -> Result<(Vec<(Extent, Vec<T>)>, bool)> {
    let mut placed = Vec::new();
    let mut left = copied.into_iter().peekable();
    while left.peek().is_some() {
        let wanted = left.len() as u64;
        if why == Why::Emptying {
            read_ahead(kernel);
        }
        let (extent, current) = {
            let mut state = kernel.state.lock();
            let zones = kernel.zones(state.releases.zone_table());
            let extent = match why {
                Why::Neighbours => state.allocator.place_copies(wanted, run.max(wanted), &zones),
                Why::Emptying => state.allocator.place_in_holes(wanted, &zones),
                Why::Resealing | Why::Packing => {
                    let together = state.allocator.place_copies(wanted, wanted, &zones);
                    match together {
                        Ok(None) => state.allocator.place_in_holes(wanted, &zones),
                        placed => placed,
                    }
                }
            };
            (extent, state.overlays.tables().state.sequence)
        };
        // Stopping takes the state.
        let extent = extent.map_err(|e| kernel.stop(&e))?;
        debug_assert_eq!(current, tables.state.sequence, "no checkpoint ends under the lock");
        let Some(extent) = extent else { return Ok((placed, false)) };
        placed.push((extent, left.by_ref().take(extent.blocks as usize).collect()));
    }
    Ok((placed, true))
}

/// Has the bitmap of the zone in memory that takes the next copies. Else it would be read under the lock of
/// the state, for every few copies: the zones whose holes are filled have few.
fn read_ahead(kernel: &Kernel) {
    let (zone, root) = {
        let state = kernel.state.lock();
        (state.allocator.hole_ahead(), state.releases.zone_table())
    };
    // The placing of copies learns which blocks can't be read.
    if let Some(zone) = zone {
        let _ = kernel.zones(root).bitmaps(zone, 1);
    }
}
