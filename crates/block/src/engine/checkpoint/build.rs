//! Steps 1 and 2 of a checkpoint: what was published is set aside, and the changed pages of all
//! tables are written.

use std::{collections::BTreeMap, sync::Arc};

use onefold_core::{Error, Kind, Pba, Result, VolumeId};

use crate::{
    counters::add,
    format::{
        catalogue::{Discard, Volume},
        page::Table,
        superblock::{self, Root},
    },
    kernel::{Kernel, NextCheckpoint, Reason, State, apply_catalogue},
    overlay::Tables,
    rules::Rule,
    scheme::verbs::{Job, NewRoots, Scheme},
    table_build::TableBuild,
    window::ranges::Ranges,
};

/// Steps 1 and 2.
pub(crate) fn build(
    kernel: &Kernel,
    scheme: &dyn Scheme,
    deferred: &mut Vec<Pba>,
    reason: Reason,
) -> Result<Option<NextCheckpoint>> {
    let (frozen, old, checkpoint_awaited) = {
        let mut state = kernel.state.lock();
        let nothing = state.overlays.active().is_empty()
            && state.overlays.tables().discards.is_empty()
            && !state.deferred_alone()
            && !state.checkpoint_awaited;
        if nothing && reason == Reason::Changes {
            state.checkpoint_wanted = false;
            return Ok(None);
        }
        let State { overlays, windows, checkpoint_awaited, .. } = &mut *state;
        (overlays.freeze(windows), overlays.tables().clone(), *checkpoint_awaited)
    };
    let committed = if kernel.keeps(Rule::CommittedWhenDurable) {
        frozen.last().max(old.state.committed)
    } else {
        frozen.last()
    };
    let mut build = TableBuild::new(kernel, &old, committed);
    let mut volumes = old.volumes.clone();
    apply_catalogue(&mut volumes, frozen.catalogue());
    let job = Job { frozen: &frozen, deferred: std::mem::take(deferred), checkpoint_awaited };
    let NewRoots { references, fingerprints, pending, reclaimed, superblocks, inexact } =
        scheme.checkpoint(&mut build, &mut volumes, job)?;
    let catalogue = build.catalogue(&volumes)?;
    let (pending_root, pending_count) = build.discards(&pending)?;
    let index = build.index(scheme)?;
    let (zones_root, zones, used_blocks) = build.zones()?;
    build.writer.finish()?;
    scheme.release(kernel, &build.space.pages)?;
    add(&kernel.counters.checkpoint_blocks, build.writer.written);
    let TableBuild { freed, mapped, live, .. } = build;

    let mut state = kernel.state.lock();
    state.overlays.mark_built();
    let tables = Tables {
        state: superblock::State {
            sequence: old.state.sequence + 2,
            epoch: state.epoch,
            clean: reason == Reason::Clean,
            committed,
            durable: scheme.built(&state, committed),
            last_window: state.windows.last_closed(),
            next_volume: state.volumes.next(),
            high_water: state.allocator.high_water(),
            used_blocks,
            next_generation: state.allocator.list.next_generation(),
            oldest_generation: state.allocator.oldest_generation(committed),
            live_blocks: live,
            mapped_blocks: mapped,
            volumes: volumes.len() as u32,
            discards: pending_count,
            references,
            fingerprints,
            zones: zones_root,
            catalogue,
            pending: pending_root,
            index: index.root,
            index_bits: index.bits,
            index_entries: index.entries,
            index_birth: index.birth,
            // Windows that earlier recoveries voided lie below `committed` now.
            cuts: Vec::new(),
            inexact,
        },
        volumes,
        discards: pending,
    };
    Ok(Some(NextCheckpoint {
        tables: Arc::new(tables),
        freed,
        zones,
        filter: index.filter,
        reclaimed,
        checkpoint_awaited,
        superblocks,
    }))
}

impl TableBuild<'_> {
    /// Writes the volumes, all of them: there are few.
    fn catalogue(&mut self, volumes: &BTreeMap<VolumeId, Volume>) -> Result<Root> {
        if *volumes == self.old.volumes {
            return Ok(self.old.state.catalogue);
        }
        let all: Vec<&Volume> = volumes.values().collect();
        if all.len() as u64 > self.kernel.settings.limits.volumes {
            return Err(Error::new(Kind::Io, "too many volumes"));
        }
        let per_leaf = Table::Catalogue.per_leaf();
        let before = u64::from(self.old.state.volumes);
        let leaves: Vec<u64> = (0..before.max(all.len() as u64).div_ceil(per_leaf)).collect();
        let root = self.old.state.catalogue;
        self.rebuild(Table::Catalogue, 0, &root, &leaves, &mut |leaf, _, page| {
            crate::format::page::body_mut(page).fill(0);
            let mine = all.chunks(per_leaf as usize).nth(leaf as usize).unwrap_or_default();
            for (slot, volume) in (0..).zip(mine) {
                volume.set(page, slot);
            }
            Ok(!mine.is_empty())
        })
    }

    /// Writes the pending discards, all of them.
    fn discards(&mut self, pending: &Ranges) -> Result<(Root, u32)> {
        let all: Vec<Discard> = pending
            .iter()
            .map(|(volume, start, span)| Discard {
                volume,
                keep: span.keep,
                start,
                end: span.end,
                window: span.window,
            })
            .collect();
        if all.len() as u64 > self.kernel.settings.limits.discards {
            return Err(Error::new(Kind::Io, "too many pending discards"));
        }
        let before = u64::from(self.old.state.discards);
        let per_leaf = Table::Discards.per_leaf();
        let leaves: Vec<u64> = (0..before.max(all.len() as u64).div_ceil(per_leaf)).collect();
        let root = self.old.state.pending;
        let root = self.rebuild(Table::Discards, 0, &root, &leaves, &mut |leaf, _, page| {
            crate::format::page::body_mut(page).fill(0);
            let mine = all.chunks(per_leaf as usize).nth(leaf as usize).unwrap_or_default();
            for (slot, discard) in (0..).zip(mine) {
                discard.set(page, slot);
            }
            Ok(!mine.is_empty())
        })?;
        Ok((root, all.len() as u32))
    }
}
