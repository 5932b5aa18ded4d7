//! Steps 1 and 2 of a checkpoint: what was published is set aside, and the changed pages of all
//! tables are written.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use onefold_core::{Error, Kind, Lba, Result, VolumeId};

use crate::{
    counters::add,
    coverage::Mark,
    engine::quota::wants_counting,
    format::{
        catalogue::{Discard, Volume},
        page::Table,
        superblock::{self, Root},
    },
    kernel::{Checkpointer, Kernel, Leftovers, NextCheckpoint, Reason, State, apply_catalogue},
    overlay::{Overlay, Tables},
    rules::Rule,
    scheme::{
        shadow::{DomainCounts, LimitsAtFreeze, load_orphans},
        verbs::{Job, NewRoots, NewSharing, Scheme},
    },
    table::PageSpace,
    table_build::TableBuild,
    window::ranges::Ranges,
};

/// Steps 1 and 2.
pub(crate) fn build(
    kernel: &Kernel,
    scheme: &dyn Scheme,
    checkpointer: &mut Checkpointer,
    reason: Reason,
) -> Result<Option<NextCheckpoint>> {
    look_for_leftovers(kernel, checkpointer)?;
    let Checkpointer { deferred, orphans, moves, mover, .. } = checkpointer;
    let (frozen, old, checkpoint_awaited, limits) = {
        let mut state = kernel.state.lock();
        let uncounted =
            |one: &Volume| wants_counting(kernel, one, state.domains.limits(one.domain).quota);
        let nothing = state.overlays.nothing_to_freeze()
            && state.leftovers == Leftovers::None
            && moves.is_empty()
            && state.overlays.tables().discards.is_empty()
            && !state.deferred_alone()
            && !state.checkpoint_awaited
            && !state.domains.wait_for_checkpoint()
            && !state.overlays.tables().volumes.values().any(uncounted);
        if nothing && reason == Reason::Changes {
            state.checkpoint_wanted = false;
            return Ok(None);
        }
        let limits =
            LimitsAtFreeze { limits: state.domains.all().clone(), number: state.domains.asked() };
        let State { overlays, windows, checkpoint_awaited, .. } = &mut *state;
        (overlays.freeze(windows), overlays.tables().clone(), *checkpoint_awaited, limits)
    };
    let moment_alone = frozen.moment().is_none() || kernel.keeps(Rule::MomentCommitsNoMore);
    let committed = if !moment_alone {
        old.state.committed.max(kernel.state.lock().windows.durable())
    } else if kernel.keeps(Rule::CommittedWhenDurable) {
        frozen.last().max(old.state.committed)
    } else {
        frozen.last()
    };
    let mut build = TableBuild::new(kernel, &old, committed);
    build.domains =
        DomainCounts::begin(kernel, &old, limits, orphans.as_deref().unwrap_or_default());
    let mut volumes = old.volumes.clone();
    apply_catalogue(&mut volumes, frozen.catalogue());
    let job = Job {
        frozen: &frozen,
        deferred: std::mem::take(deferred),
        checkpoint_awaited,
        orphans: orphans.take().unwrap_or_default(),
        moves: &*moves,
    };
    let NewRoots { references, fingerprints, pending, reclaimed, superblocks, inexact, sharing } =
        scheme.checkpoint(&mut build, &mut volumes, job)?;
    let NewCatalogue { root: catalogue, entries, places } = match &sharing {
        Some(_) => build.catalogue_of_maps(&volumes)?,
        None => build.catalogue(&volumes)?,
    };
    let (pending_root, pending_count) = build.discards(&pending)?;
    let index = build.index(scheme)?;
    let (zones_root, zones, used_blocks) = build.zones()?;
    build.writer.finish()?;
    scheme.release(kernel, &build.space.pages)?;
    let written = build.writer.written;
    add(&kernel.counters.checkpoint_blocks, written);
    let TableBuild { freed, mapped, live, packs, fragments, changed, domains, .. } = build;
    // A store that had packs keeps the feature, as it keeps others.
    let packing = if packs > 0 || fragments > 0 { superblock::PACKS } else { 0 };
    let more_features = domains.features() | packing;
    let (domains, limits) = domains.finish();
    mover.leaves.note(&changed, kernel.clock.now());
    if let Some(leaves) = &mut mover.packing {
        leaves.note(&changed, kernel.clock.now());
        // A leaf that changed is looked at from its beginning.
        let leaf = |(volume, lba): (_, Lba)| (volume, lba.0 / Table::Map.per_leaf());
        mover.packing_goes_on.take_if(|at| changed.contains(&leaf(*at)));
    }
    let has_moves = !moves.is_empty();
    kernel.coverage.add(Mark::MovesPut, usize::from(has_moves));
    #[cfg_attr(not(feature = "planted-bugs"), allow(unused_variables))]
    let put = std::mem::take(moves);

    let mut state = kernel.state.lock();
    state.overlays.mark_built();
    state.moving = Overlay::default();
    let (features, shares) = match sharing {
        Some(NewSharing { shares, orphans: waiting, stuck }) => {
            let leaves = volumes.values().any(Volume::has_pages_to_leave);
            let some = leaves || waiting.len() > stuck;
            state.orphans = waiting.len() as u64;
            state.leftovers = if some { Leftovers::Some } else { Leftovers::None };
            *orphans = Some(waiting);
            (old.state.features | superblock::SHARING, shares)
        }
        None => (old.state.features, old.state.shares),
    };
    let tables = Tables {
        state: superblock::State {
            sequence: old.state.sequence + 2,
            epoch: state.epoch,
            clean: reason == Reason::Clean,
            committed,
            durable: scheme.built(&state, committed),
            last_window: state.windows.last_closed(),
            next_volume: state.volumes.next(),
            high_water: state.allocator.idle.high_water(),
            used_blocks,
            next_generation: state.allocator.list.next_generation(),
            oldest_generation: state.allocator.oldest_generation(committed),
            live_blocks: live,
            mapped_blocks: mapped,
            packs,
            fragments,
            volumes: entries,
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
            features: features | more_features,
            shares,
            keys: old.state.keys,
            next_domain: old.state.next_domain,
            data_generation: old.state.data_generation,
            domains,
        },
        volumes,
        discards: pending,
        places,
        before: None,
    };
    Ok(Some(NextCheckpoint {
        tables: Arc::new(tables),
        freed,
        zones,
        filter: index.filter,
        reclaimed,
        checkpoint_awaited,
        superblocks,
        moment: frozen.moment().cloned(),
        limits,
        #[cfg(feature = "planted-bugs")]
        moves: put,
    }))
}

/// After opening: finds out whether deleted maps left anything behind.
pub(in crate::engine) fn look_for_leftovers(
    kernel: &Kernel,
    checkpointer: &mut Checkpointer,
) -> Result<()> {
    let tables = {
        let state = kernel.state.lock();
        if state.leftovers != Leftovers::Unknown {
            return Ok(());
        }
        state.overlays.tables().clone()
    };
    let orphans = load_orphans(kernel, &tables.state.shares)?;
    let some = !orphans.is_empty() || tables.volumes.values().any(Volume::has_pages_to_leave);
    let mut state = kernel.state.lock();
    state.orphans = orphans.len() as u64;
    checkpointer.orphans = Some(orphans);
    state.leftovers = if some { Leftovers::Some } else { Leftovers::None };
    Ok(())
}

/// A new catalogue.
struct NewCatalogue {
    root: Root,
    /// Entries; of a store that shares pages, places.
    entries: u32,
    /// Of a store that shares pages.
    places: BTreeMap<VolumeId, u32>,
}

impl TableBuild<'_> {
    /// Writes the volumes, all of them: there are few.
    fn catalogue(&mut self, volumes: &BTreeMap<VolumeId, Volume>) -> Result<NewCatalogue> {
        let made =
            |root| NewCatalogue { root, entries: volumes.len() as u32, places: BTreeMap::new() };
        if *volumes == self.old.volumes {
            return Ok(made(self.old.state.catalogue));
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
        .map(made)
    }

    /// Writes the maps that changed, each at its place. The first time all get their places, and the
    /// catalogue of before goes.
    fn catalogue_of_maps(&mut self, volumes: &BTreeMap<VolumeId, Volume>) -> Result<NewCatalogue> {
        if volumes.len() as u64 > self.kernel.settings.limits.volumes {
            return Err(Error::new(Kind::Io, "too many volumes"));
        }
        let shared = self.old.state.shares_pages();
        let (mut places, mut root) = (self.old.places.clone(), self.old.state.catalogue);
        let mut changed: BTreeMap<u32, Option<&Volume>> = BTreeMap::new();
        places.retain(|id, place| {
            let gone = !volumes.contains_key(id);
            if gone {
                changed.insert(*place, None);
            }
            !gone
        });
        let taken: BTreeSet<u32> = places.values().copied().collect();
        let mut free = (0..).filter(|place| !taken.contains(place));
        for volume in volumes.values() {
            let place = match places.get(&volume.id) {
                Some(_) if self.old.volumes.get(&volume.id) == Some(volume) => continue,
                Some(&place) => place,
                None => free.next().unwrap_or_default(),
            };
            places.insert(volume.id, place);
            changed.insert(place, Some(volume));
        }
        if !shared {
            let space = &mut self.space;
            self.kernel.pages.walk(Table::Catalogue, 0, &root, &mut |_, pointer, _| {
                space.release(pointer.address);
                Ok(())
            })?;
            root = Root::default();
        }
        let per_leaf = Table::Maps.per_leaf();
        let mut leaves: Vec<u64> =
            changed.keys().map(|place| u64::from(*place) / per_leaf).collect();
        leaves.dedup();
        let root = self.rebuild(Table::Maps, 0, &root, &leaves, &mut |leaf, _, page| {
            let first = (leaf * per_leaf) as u32;
            for (&place, volume) in changed.range(first..first + per_leaf as u32) {
                let slot = u64::from(place - first);
                match volume {
                    Some(volume) => volume.set_shared(page, slot),
                    None => Volume::clear_shared(page, slot),
                }
            }
            Ok(crate::format::page::body(page).iter().any(|&byte| byte != 0))
        })?;
        let entries = places.values().max().map_or(0, |last| last + 1);
        Ok(NewCatalogue { root, entries, places })
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
