//! Steps 1 and 2 of a checkpoint: what was published is set aside, and the changed pages of all
//! tables are written.

use std::{collections::BTreeMap, sync::Arc};

use onefold_core::{Error, Kind, Lba, Pba, Result, VolumeId};

use super::references::Delta;
use crate::{
    counters::add,
    coverage::Mark,
    engine::{catalogue::apply_catalogue, prepare::writes_records},
    format::{
        catalogue::{Discard, Volume},
        page::Table,
        record::WindowNumber,
        superblock::{self, Root},
    },
    kernel::{Kernel, NextCheckpoint, Reason, Reclaimed, Snapshot, State},
    scheme::ordermerge::{checkpoint::forget_counts, in_place},
    settings::PlantedBug,
    table::{
        PageSpace, rebuild,
        rebuild::{Change, PageWriter, Rebuild},
    },
    window::ranges::Ranges,
};

/// Steps 1 and 2.
pub(crate) fn build(
    kernel: &Kernel,
    deferred: &mut Vec<Pba>,
    reason: Reason,
) -> Result<Option<NextCheckpoint>> {
    let (frozen, old, leaves_wanted) = {
        let mut state = kernel.state.lock();
        let nothing = state.active.is_empty()
            && state.snapshot.discards.is_empty()
            && !state.deferred_alone()
            && !state.leaves_wanted;
        if nothing && reason == Reason::Changes {
            state.checkpoint_wanted = false;
            return Ok(None);
        }
        let mut frozen = std::mem::take(&mut state.active);
        frozen.last = frozen.last.max(state.durable);
        state.retouch();
        let frozen = Arc::new(frozen);
        state.frozen = Some(frozen.clone());
        (frozen, state.snapshot.clone(), state.leaves_wanted)
    };
    // What a recount found before is written with what waits.
    let exact = kernel.state.lock().exact;
    let committed = if kernel.settings.has(PlantedBug::CommitPastDurable) {
        frozen.last
    } else {
        frozen.last.max(old.state.committed)
    };
    let mut build = Build {
        kernel: kernel,
        old: &old,
        birth: committed,
        space: Space { kernel: kernel, taken: Vec::new(), let_go: Vec::new(), pages: Vec::new() },
        writer: PageWriter::new(&*kernel.disk),
        // For each change the old block and the new one, and each new block once more.
        deltas: Vec::with_capacity(frozen.entries.len() * 3),
        freed: Vec::new(),
        bits: Vec::new(),
        stored: Vec::new(),
        in_place: None,
        block_leaves: kernel.state.lock().block_leaves,
        mapped: old.state.mapped_blocks,
        live: old.state.live_blocks,
    };
    let mut volumes = old.volumes.clone();
    let mut discards = old.discards.clone();
    apply_catalogue(&mut volumes, &frozen.catalogue);
    // In place, ranges are applied when their windows are.
    for (volume, start, span) in frozen.ranges.iter().filter(|_| !in_place(kernel)) {
        discards.insert(volume, start, *span);
    }
    let deferred = std::mem::take(deferred);
    let (mut pending, mut reclaimed) = (Ranges::default(), Reclaimed::default());
    let (references, fingerprints);
    if in_place(kernel) {
        ((references, fingerprints), reclaimed) =
            build.in_place(&frozen, &mut volumes, deferred)?;
        kernel.coverage.add(Mark::LeavesMade, usize::from(leaves_wanted));
        kernel.coverage.add(Mark::BlocksReclaimed, reclaimed.blocks.len());
    } else {
        pending = build.maps(&frozen, &mut volumes, &discards)?;
        kernel.coverage.add(Mark::DiscardsLeft, pending.iter().count());
        volumes.retain(|id, volume| {
            !volume.name.is_empty() || pending.meeting(*id, 0, u64::MAX).next().is_some()
        });
        references = build.references(&frozen, deferred)?;
        fingerprints = build.fingerprints()?;
    }
    let catalogue = build.catalogue(&volumes)?;
    let (pending_root, pending_count) = build.discards(&pending)?;
    let index = build.index()?;
    let (zones_root, zones, used_blocks) = build.zones()?;
    build.writer.finish()?;
    forget_counts(kernel, &build.space.pages)?;
    add(&kernel.counters.checkpoint_blocks, build.writer.written);
    let Build { freed, mapped, live, block_leaves, .. } = build;

    let mut state = kernel.state.lock();
    state.built = true;
    state.block_leaves = block_leaves;
    let inexact = old.state.inexact && !(state.exact && exact);
    let snapshot = Snapshot {
        state: superblock::State {
            sequence: old.state.sequence + 2,
            epoch: state.epoch,
            clean: reason == Reason::Clean,
            committed,
            durable: if writes_records(kernel) { state.durable.max(committed) } else { committed },
            last_window: WindowNumber(state.open.number.0 - 1),
            next_volume: state.next_volume,
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
        snapshot: Arc::new(snapshot),
        freed,
        zones,
        filter: index.filter,
        reclaimed,
        leaves_wanted,
    }))
}

impl State {
    /// True when blocks were put off, and nothing on its way names them any more.
    fn deferred_alone(&self) -> bool {
        self.deferred > 0 && self.closed_windows.is_empty() && self.open.is_empty()
    }

    /// Counts the table pages of windows that are not published yet to the new active overlay.
    fn retouch(&mut self) {
        let State { closed_windows, open, active, .. } = self;
        for window in closed_windows.iter().map(|closed| &*closed.window).chain([&*open]) {
            for block in window.blocks.iter().filter(|block| block.live) {
                active.dirty.touch(block.volume, block.lba);
            }
            for (volume, start, span) in window.ranges.iter() {
                active.dirty.touch(volume, Lba(start));
                active.dirty.touch(volume, Lba(span.end - 1));
            }
        }
    }
}

/// Pages of a checkpoint: taken from the allocator, and let go of.
pub(super) struct Space<'a> {
    pub(super) kernel: &'a Kernel,
    pub(super) taken: Vec<Pba>,
    pub(super) let_go: Vec<Pba>,
    /// All pages taken.
    pages: Vec<Pba>,
}

impl PageSpace for Space<'_> {
    fn allocate(&mut self) -> Result<Pba> {
        let mut state = self.kernel.state.lock();
        let zones = self.kernel.zones(state.zone_table);
        let pba = state.allocator.place_page(&zones)?;
        self.taken.push(pba);
        self.pages.push(pba);
        Ok(pba)
    }

    fn release(&mut self, address: Pba) {
        self.let_go.push(address);
    }
}

/// A checkpoint being built.
pub(crate) struct Build<'a> {
    pub(crate) kernel: &'a Kernel,
    pub(crate) old: &'a Snapshot,
    pub(super) birth: WindowNumber,
    pub(super) space: Space<'a>,
    pub(super) writer: PageWriter<'a>,
    /// Changes of reference counts.
    pub(super) deltas: Vec<Delta>,
    pub(crate) freed: Vec<Pba>,
    /// Blocks that came into use, or out of it.
    pub(crate) bits: Vec<(Pba, bool)>,
    /// Blocks whose fingerprints are to be written, rising.
    pub(super) stored: Vec<Pba>,
    /// New leaves are written in place from now on, and this tells their life from others.
    pub(crate) in_place: Option<u64>,
    /// Leaves of references and of fingerprints that exist then.
    pub(crate) block_leaves: [u64; 2],
    pub(crate) mapped: u64,
    pub(crate) live: u64,
}

impl<'a> Build<'a> {
    pub(crate) fn rebuild(
        &mut self,
        table: Table,
        volume: u32,
        root: &Root,
        leaves: &[u64],
        change: Change<'_>,
    ) -> Result<Root> {
        let Build { kernel, space, writer, birth, in_place, .. } = self;
        let in_place = in_place
            .filter(|_| matches!(table, Table::Map | Table::References | Table::Fingerprints));
        let mut work = Rebuild {
            pages: &kernel.pages,
            identity: &kernel.identity,
            space,
            writer,
            birth: *birth,
            in_place,
        };
        rebuild(&mut work, table, volume, root, leaves, change)
    }

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
