//! Non-critical updates (OrderMergeDedup 2.2), for which nobody waits: counts that fall,
//! fingerprints of new blocks. Leaves that are written anyway take such changes along; after a while
//! the others are written alone.

use std::time::Duration;

use onefold_core::Result;

use super::{
    increments::write_leaves,
    soft_updates::{OrderMerge, SoftUpdates, block_leaves, place_in},
};
use crate::{
    counters::add,
    format::page::{self, Pointer, ReferenceEntry, Table},
    kernel::Kernel,
};

/// Leaves with changes that nobody waits for, at most: 8 MiB.
const WAITING_MAX: usize = 2048;

/// Lets the counts fall of blocks whose unlinking is durable, and takes the fingerprints of
/// blocks whose links are.
pub(crate) fn lower(kernel: &Kernel, updates: &mut SoftUpdates) -> Result<()> {
    let (unlinked, stored) =
        (std::mem::take(&mut updates.unlinked), std::mem::take(&mut updates.stored));
    let tables = kernel.tables();
    let counts = block_leaves(kernel, &tables, Table::References, unlinked.iter().copied())?
        .unwrap_or_default();
    let fingerprints =
        block_leaves(kernel, &tables, Table::Fingerprints, stored.iter().map(|(pba, _)| *pba))?
            .unwrap_or_default();
    kernel.pages.hold(&counts)?;
    kernel.pages.hold(&fingerprints)?;
    add(&kernel.counters.in_place_changes, (unlinked.len() + stored.len()) as u64);
    let now = kernel.clock.now();
    let mut state = kernel.state.lock();
    let mut held = kernel.pages.held();
    for pba in unlinked {
        let Some((pointer, slot)) = place_in(&counts, pba.0) else { continue };
        held.change(pointer, now, |page| {
            let mut entry = ReferenceEntry::get(page, slot);
            // A saturated count never falls.
            let falls = entry.references > 1 && entry.references < ReferenceEntry::SATURATED;
            if falls {
                entry.references -= 1;
                entry.set(page, slot);
                if entry.references == 1 {
                    state.overlays.active_mut().unlink([pba]);
                    state.overlays.active_mut().count_links(0, -1);
                }
            }
            falls
        });
    }
    for (pba, fingerprint) in stored {
        let Some((pointer, slot)) = place_in(&fingerprints, pba.0) else { continue };
        held.change(pointer, now, |page| {
            page::set_fingerprint(page, slot, &fingerprint);
            true
        });
    }
    Ok(())
}

/// Writes the leaves whose changes have waited long enough, or `all`. They are durable with the
/// next flush.
pub(crate) fn write_later(kernel: &Kernel, all: bool) -> Result<()> {
    let due: Vec<Pointer> = {
        let mut held = kernel.pages.held();
        let now = kernel.clock.now();
        let delay = kernel.settings.delay;
        if !all
            && held.changes() <= WAITING_MAX
            && held.oldest().is_none_or(|since| since + delay > now)
        {
            return Ok(());
        }
        let changed = held.changed();
        let late = |n: usize, since: Duration| {
            all || since + delay <= now || changed.len() - n > WAITING_MAX
        };
        changed
            .iter()
            .enumerate()
            .filter(|&(n, &(since, _))| late(n, since))
            .map(|(_, &(_, pointer))| pointer)
            .collect()
    };
    let (_, written) = write_leaves(kernel, &due)?;
    add(&kernel.counters.in_place_blocks, written);
    add(&kernel.counters.delayed_blocks, written);
    Ok(())
}

/// As [`write_later`](Self::write_later), in a moment without anything else to do. Returns
/// whether anything was due.
pub(crate) fn write_delayed(own: &OrderMerge, kernel: &Kernel) -> Result<bool> {
    let _updates = own.updates.lock();
    kernel.state.lock().check_running()?;
    let before = kernel.pages.held().changes();
    write_later(kernel, false).map_err(|e| kernel.stop(&e))?;
    Ok(kernel.pages.held().changes() < before)
}
