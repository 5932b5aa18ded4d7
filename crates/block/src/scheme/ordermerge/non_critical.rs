//! What nobody waits for: counts that fall, fingerprints of new blocks. Leaves that are written
//! anyway take such changes along; after a while the others are written alone.

use std::time::Duration;

use onefold_core::Result;

use super::{SoftUpdates, place_in};
use crate::{
    counters::add,
    engine::Engine,
    format::page::{self, Pointer, ReferenceEntry, Table},
};

/// Leaves with changes that nobody waits for, at most: 8 MiB.
const WAITING_MAX: usize = 2048;

impl Engine {
    /// Lets the counts fall of blocks whose unlinking is durable, and takes the fingerprints of
    /// blocks whose links are.
    pub(super) fn lower(&self, updates: &mut SoftUpdates) -> Result<()> {
        let (unlinked, stored) =
            (std::mem::take(&mut updates.unlinked), std::mem::take(&mut updates.stored));
        let snapshot = self.snapshot();
        let counts = self
            .block_leaves(&snapshot, Table::References, unlinked.iter().copied())?
            .unwrap_or_default();
        let fingerprints = self
            .block_leaves(&snapshot, Table::Fingerprints, stored.iter().map(|(pba, _)| *pba))?
            .unwrap_or_default();
        self.pages.hold(&counts)?;
        self.pages.hold(&fingerprints)?;
        add(&self.counters.in_place_changes, (unlinked.len() + stored.len()) as u64);
        let now = self.clock.now();
        let mut state = self.state.lock();
        let mut held = self.pages.held();
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
                        state.active.unlinked.push(pba);
                        state.active.live -= 1;
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
    pub(super) fn write_later(&self, all: bool) -> Result<()> {
        let due: Vec<Pointer> = {
            let mut held = self.pages.held();
            let now = self.clock.now();
            let delay = self.settings.delay;
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
        let (_, written) = self.write_leaves(&due)?;
        add(&self.counters.in_place_blocks, written);
        add(&self.counters.delayed_blocks, written);
        Ok(())
    }

    /// As [`write_later`](Self::write_later), in a moment without anything else to do. Returns
    /// whether anything was due.
    pub(crate) fn write_delayed(&self) -> Result<bool> {
        if !self.in_place() {
            return Ok(false);
        }
        let _updates = self.soft_updates.lock();
        self.state.lock().check_running()?;
        let before = self.pages.held().changes();
        self.write_later(false).map_err(|e| self.stop(&e))?;
        Ok(self.pages.held().changes() < before)
    }

    /// Leaves with changes that wait for another write of theirs.
    #[must_use]
    pub(crate) fn delayed(&self) -> u64 {
        self.pages.held().changes() as u64
    }
}
