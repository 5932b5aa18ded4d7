//! Checkpoints: the published records go into the structured tables.
//!
//! 1. *freeze*: what is published so far is set aside; new windows are published beside it.
//! 2. *build*: changed pages are written to new places, leaves first: maps, the physical table, catalogue, discards, the zone table.
//! 3. *flush*, which a window's flush does as well.
//! 4. *superblock*, to the place of the older one.
//! 5. *flush*, again a window's. From here on the checkpoint is true.
//! 6. *twin*: the same superblock, as the next version, to the other place; *flush*, once more a window's.
//! 7. *release*, when nobody reads the version before: old pages, blocks without references and carriers become free.
//!
//! Because of 6 one superblock is enough at any time: when the other one rots, the store that it names is whole.
//!
//! | crash after | what is found |
//! |---|---|
//! | 1–3 | the old superblock and the carriers since it; new pages lie in free blocks |
//! | 4 | either superblock; with the old one as before; with the new one, its pages are whole, because 3 came first |
//! | 5–7 | the new superblock; nothing that it, or the old one while there is one, names was released |

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use onefold_core::{Block, BlockRef, Class, Lba, Pba, Result, Run, VolumeId, ZoneId};

use super::{Engine, Snapshot, State, Zones};
use crate::{
    counters::add,
    format::{
        catalogue::{CatalogueChange, DISCARDS_MAX, Discard, Volume},
        geometry::SUPERBLOCKS,
        page::{FANOUT, MapEntry, PhysicalEntry, Table, ZoneEntry},
        record::WindowNumber,
        superblock::{self, Root, Superblock},
    },
    index::{Entry, Filter, HASH_BITS, MemoryIndex, Spill, paged},
    overlay::{Overlay, zeroes},
    place::{ZoneSource, bitmap::ZoneBitmap},
    settings::PlantedBug,
    table::{
        PageSpace, rebuild,
        rebuild::{Change, PageWriter, Rebuild},
    },
    window::ranges::Ranges,
};

/// How far a checkpoint has come.
#[derive(Default)]
enum Phase {
    #[default]
    Idle,
    /// Pages written; a flush that begins after number `.1` makes them durable.
    Built(Box<Next>, u64),
    /// Superblock written; a flush that begins after number `.1` makes it durable.
    Named(Box<Next>, u64),
    /// True, and its twin written; a flush that begins after number `.2` makes that durable.
    Twinned(Box<Next>, Arc<Snapshot>, u64),
    /// Durable twice; readers of the old version are waited for.
    Releasing(Box<Next>, Arc<Snapshot>),
}

/// What a checkpoint leaves.
struct Next {
    snapshot: Arc<Snapshot>,
    /// Blocks that are free in it and were not before, pages among them.
    freed: Vec<Pba>,
    zones: Vec<(ZoneId, ZoneBitmap)>,
    /// Of the index on disk, when it was written anew.
    filter: Option<Filter>,
}

/// The index on disk as a checkpoint leaves it.
struct IndexOnDisk {
    root: Root,
    bits: u32,
    entries: u64,
    birth: WindowNumber,
    filter: Option<Filter>,
}

/// The state of checkpoints.
#[derive(Default)]
pub(crate) struct Checkpointer {
    phase: Phase,
    /// Blocks that the last checkpoint found free, but newer records name.
    deferred: Vec<Pba>,
}

impl Checkpointer {
    /// With blocks that recovery found in use: the next checkpoint decides on them.
    pub(crate) fn new(deferred: Vec<Pba>) -> Checkpointer {
        Checkpointer { phase: Phase::Idle, deferred }
    }
}

/// Why a checkpoint is made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    /// Something was published.
    Changes,
    /// A superblock is due although nothing was.
    Forced,
    /// The store is closed cleanly.
    Clean,
}

/// What a checkpoint step did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointStep {
    /// There is nothing to do.
    Idle,
    /// A step was made.
    Advanced,
    /// A flush is needed first; any will do.
    NeedsFlush,
    /// A reader of the version before is still at work.
    NeedsReaders,
}

impl Engine {
    /// True when a checkpoint should begin: half of the record limit or of the zone list is used, or somebody waits for one.
    #[must_use]
    pub fn checkpoint_due(&self) -> bool {
        let state = self.state.lock();
        state.checkpoint_wanted
            || state.active.records >= self.settings.records_max / 2
            || state.allocator.uncommitted_zones() * 2 > state.allocator.list.limit()
            || state.active.records > 0 && self.spill(&state).is_some()
    }

    /// Decides whether the index in memory is merged into the one on disk, and sets aside the space for it. Gives the most entries that it
    /// will have, and the bits that name its pages.
    fn reserve_spill(&self) -> Option<(u64, u32)> {
        let mut state = self.state.lock();
        let (most, bits, pages) = self.spill(&state)?;
        state.spilling_pages = pages;
        Some((most, bits))
    }

    /// What a spill of the index would take, when one is due and there is space for it: entries, bits that name a page, pages.
    pub(crate) fn spill(&self, state: &State) -> Option<(u64, u32, u64)> {
        let in_memory = {
            let index = self.index.lock();
            index.wants_spill().then(|| index.len())?
        };
        let old = &state.snapshot.state;
        let most = old.index_entries + in_memory;
        let bits = paged::bits_for(most).max(old.index_bits);
        // Leaves, the pages above them, and the zone table's.
        let pages = (1u64 << bits) * 11 / 10 + 16;
        self.has_spare(state, pages).then_some((most, bits, pages))
    }

    /// True when a checkpoint would change anything.
    #[must_use]
    pub fn checkpoint_useful(&self) -> bool {
        let state = self.state.lock();
        !state.active.is_empty() || state.frozen.is_some() || !state.snapshot.discards.is_empty()
    }

    /// True between the steps of a checkpoint.
    #[must_use]
    pub fn checkpoint_running(&self) -> bool {
        !matches!(self.checkpointing.lock().phase, Phase::Idle)
    }

    /// Makes one step of a checkpoint; begins one when anything was published since the last.
    ///
    /// # Errors
    /// The first failed write or damaged page stops all writes.
    pub fn checkpoint_step(&self) -> Result<CheckpointStep> {
        self.checkpoint_advance(Reason::Changes)
    }

    /// As [`checkpoint_step`](Self::checkpoint_step), for a reason.
    fn checkpoint_advance(&self, reason: Reason) -> Result<CheckpointStep> {
        let mut checkpointer = self.checkpointing.lock();
        self.state.lock().check_running()?;
        let flushed_after = |note: u64| {
            let mut state = self.state.lock();
            state.flush_wanted |= state.flushes_done <= note;
            state.flushes_done > note
        };
        match std::mem::take(&mut checkpointer.phase) {
            Phase::Idle => {
                let Some(next) = self.build(&mut checkpointer.deferred, reason).map_err(|e| self.stop(&e))? else {
                    return Ok(CheckpointStep::Idle);
                };
                checkpointer.phase = Phase::Built(Box::new(next), self.want_flush());
            }
            Phase::Built(next, note) => {
                if !flushed_after(note) {
                    checkpointer.phase = Phase::Built(next, note);
                    return Ok(CheckpointStep::NeedsFlush);
                }
                self.write_superblock(&next.snapshot, 1).map_err(|e| self.stop(&e))?;
                checkpointer.phase = Phase::Named(next, self.want_flush());
                if self.settings.has(PlantedBug::ReleasedEarly) {
                    self.end_early(&mut checkpointer);
                }
            }
            Phase::Named(next, note) => {
                if !flushed_after(note) {
                    checkpointer.phase = Phase::Named(next, note);
                    return Ok(CheckpointStep::NeedsFlush);
                }
                let (next, old) = self.become_true(next);
                self.write_superblock(&next.snapshot, 0).map_err(|e| self.stop(&e))?;
                checkpointer.phase = Phase::Twinned(next, old, self.want_flush());
            }
            Phase::Twinned(next, old, note) => {
                if !flushed_after(note) {
                    checkpointer.phase = Phase::Twinned(next, old, note);
                    return Ok(CheckpointStep::NeedsFlush);
                }
                checkpointer.phase = Phase::Releasing(next, old);
            }
            Phase::Releasing(next, old) => {
                if Arc::strong_count(&old) > 1 {
                    checkpointer.phase = Phase::Releasing(next, old);
                    return Ok(CheckpointStep::NeedsReaders);
                }
                self.release(&mut checkpointer.deferred, *next);
            }
        }
        Ok(CheckpointStep::Advanced)
    }

    /// Runs the steps of a checkpoint to its end, flushing as needed. Does not wait for readers.
    ///
    /// # Errors
    /// As [`checkpoint_step`](Self::checkpoint_step).
    pub fn checkpoint(&self) -> Result<()> {
        self.checkpoint_to_end(Reason::Changes).map(|_| ())
    }

    /// Returns whether the checkpoint ended; it has not when a reader is in the way.
    pub(crate) fn checkpoint_to_end(&self, mut reason: Reason) -> Result<bool> {
        loop {
            match self.checkpoint_advance(reason)? {
                CheckpointStep::Idle => return Ok(true),
                CheckpointStep::NeedsReaders => return Ok(false),
                CheckpointStep::NeedsFlush => {
                    self.settle()?;
                }
                CheckpointStep::Advanced if matches!(self.checkpointing.lock().phase, Phase::Idle) => return Ok(true),
                CheckpointStep::Advanced => reason = Reason::Changes,
            }
        }
    }

    /// Makes everything durable, carries it into the tables, and marks the store clean: the next opening has nothing to recover. Nobody may
    /// be reading. The engine takes no more writes afterwards.
    ///
    /// # Errors
    /// `Stopped`, or `Busy` when somebody is reading.
    pub fn close(&self) -> Result<()> {
        self.flush()?;
        // One that is under way, one for what was published since, and as many as the discards take.
        while self.checkpoint_useful() || !matches!(self.checkpointing.lock().phase, Phase::Idle) {
            if !self.checkpoint_to_end(Reason::Changes)? {
                return Err(onefold_core::Error::new(onefold_core::Kind::Busy, "a reader is still at work"));
            }
        }
        self.checkpoint_to_end(Reason::Clean)?;
        self.state.lock().stopped = Some(onefold_core::Error::new(onefold_core::Kind::Stopped, "the store is closed"));
        Ok(())
    }

    /// Asks for a flush, and gives the number of the last one that began too early for what was written just now.
    fn want_flush(&self) -> u64 {
        let mut state = self.state.lock();
        state.flush_wanted = true;
        state.flushes_begun
    }

    /// Writes the superblock of a version: as the one `before` its number, which is the number of its twin. Versions go to the two places by
    /// turns, so that none is written over the only good one.
    pub(crate) fn write_superblock(&self, snapshot: &Snapshot, before: u64) -> Result<()> {
        let sequence = snapshot.state.sequence - before;
        let superblock = Superblock { fixed: self.fixed.clone(), state: superblock::State { sequence, ..snapshot.state.clone() } };
        let place = (sequence % 2) as u32;
        let block = superblock.encode(place);
        let refs = [BlockRef { block: &block, class: Class::Super }];
        self.disk.write(&[Run { at: SUPERBLOCKS[place as usize], blocks: &refs }])?;
        add(&self.counters.super_blocks, 1);
        Ok(())
    }

    /// The superblock is durable: reads go to the new version.
    fn become_true(&self, mut next: Box<Next>) -> (Box<Next>, Arc<Snapshot>) {
        add(&self.counters.checkpoints, 1);
        let mut state = self.state.lock();
        let old = std::mem::replace(&mut state.snapshot, next.snapshot.clone());
        state.frozen = None;
        state.built = false;
        state.releasing = true;
        if let Some(filter) = next.filter.take() {
            self.index.lock().finish_spill(filter);
        }
        (next, old)
    }

    /// Makes free what the new version does not need, but for blocks that newer records name.
    fn release(&self, deferred: &mut Vec<Pba>, next: Next) {
        let mut state = self.state.lock();
        let mut pinned: BTreeSet<Pba> = BTreeSet::new();
        let State { flights, open, active, .. } = &*state;
        pinned.extend(flights.iter().filter_map(|flight| flight.plan.as_ref()).flat_map(|plan| plan.pins.iter().copied()));
        let windows = flights.iter().map(|flight| &*flight.window).chain([open]);
        pinned.extend(windows.flat_map(|window| &window.blocks).filter_map(|block| block.placed).map(|placed| placed.pba));
        let (kept, freed): (Vec<Pba>, Vec<Pba>) = next.freed.iter().partition(|pba| pinned.contains(pba) || active.pins.contains(pba));
        state.allocator.release(&freed, &next.zones, next.snapshot.state.committed, kept.iter().copied().collect());
        state.zone_table = next.snapshot.state.zones;
        state.releases += 1;
        state.releasing = false;
        state.checkpoint_wanted = false;
        state.deferred = kept.len();
        *deferred = kept;
    }

    /// Releases before the superblock is durable: a planted bug.
    fn end_early(&self, checkpointer: &mut Checkpointer) {
        if let Phase::Named(next, _) = std::mem::take(&mut checkpointer.phase) {
            let (next, _) = self.become_true(next);
            // A failure stops the store at its next write.
            let _ = self.write_superblock(&next.snapshot, 0);
            self.release(&mut checkpointer.deferred, *next);
        }
    }

    /// Steps 1 and 2.
    fn build(&self, deferred: &mut Vec<Pba>, reason: Reason) -> Result<Option<Next>> {
        let (frozen, old) = {
            let mut state = self.state.lock();
            let nothing = state.active.is_empty() && state.snapshot.discards.is_empty() && !state.deferred_alone();
            if nothing && reason == Reason::Changes {
                state.checkpoint_wanted = false;
                return Ok(None);
            }
            let mut frozen = std::mem::take(&mut state.active);
            frozen.last = frozen.last.max(state.durable);
            state.retouch();
            let frozen = Arc::new(frozen);
            state.frozen = Some(frozen.clone());
            (frozen, state.snapshot.clone())
        };
        let committed = if self.settings.has(PlantedBug::CommitPastDurable) { frozen.last } else { frozen.last.max(old.state.committed) };
        let mut build = Build {
            engine: self,
            old: &old,
            birth: committed,
            space: Space { engine: self, taken: Vec::new(), let_go: Vec::new() },
            writer: PageWriter::new(&*self.disk),
            deltas: Vec::new(),
            freed: Vec::new(),
            bits: Vec::new(),
            mapped: old.state.mapped_blocks,
            live: old.state.live_blocks,
        };
        let mut volumes = old.volumes.clone();
        let mut discards = old.discards.clone();
        apply_catalogue(&mut volumes, &frozen.catalogue);
        for (volume, start, span) in frozen.ranges.iter() {
            discards.insert(volume, start, *span);
        }
        let pending = build.maps(&frozen, &mut volumes, &discards)?;
        volumes.retain(|id, volume| !volume.name.is_empty() || pending.meeting(*id, 0, u64::MAX).next().is_some());
        let physical = build.physical(&frozen, std::mem::take(deferred))?;
        let catalogue = build.catalogue(&volumes)?;
        let (pending_root, pending_count) = build.discards(&pending)?;
        let index = build.index()?;
        let (zones_root, zones, used_blocks) = build.zones()?;
        build.writer.finish()?;
        add(&self.counters.checkpoint_blocks, build.writer.written);
        let Build { freed, mapped, live, .. } = build;

        let mut state = self.state.lock();
        state.built = true;
        let snapshot = Snapshot {
            state: superblock::State {
                sequence: old.state.sequence + 2,
                epoch: state.epoch,
                clean: reason == Reason::Clean,
                committed,
                durable: state.durable.max(committed),
                last_window: WindowNumber(state.open.number.0 - 1),
                next_volume: state.next_volume,
                high_water: state.allocator.high_water(),
                used_blocks,
                next_generation: state.allocator.list.next_generation(),
                live_blocks: live,
                mapped_blocks: mapped,
                volumes: volumes.len() as u32,
                discards: pending_count,
                physical,
                zones: zones_root,
                catalogue,
                pending: pending_root,
                index: index.root,
                index_bits: index.bits,
                index_entries: index.entries,
                index_birth: index.birth,
                // Windows that earlier recoveries voided lie below `committed` now.
                cuts: Vec::new(),
            },
            volumes,
            discards: pending,
        };
        Ok(Some(Next { snapshot: Arc::new(snapshot), freed, zones, filter: index.filter }))
    }
}

impl State {
    /// True when blocks were put off, and nothing on its way names them any more.
    fn deferred_alone(&self) -> bool {
        self.deferred > 0 && self.flights.is_empty() && self.open.is_empty()
    }

    /// Counts the table pages of windows that are not published yet to the new active overlay.
    fn retouch(&mut self) {
        let State { flights, open, active, .. } = self;
        for window in flights.iter().map(|flight| &*flight.window).chain([&*open]) {
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

/// Applies changes of the catalogue in their order. A deleted volume keeps its map, without a name, until its blocks are free.
pub(crate) fn apply_catalogue(volumes: &mut BTreeMap<VolumeId, Volume>, changes: &[CatalogueChange]) {
    for change in changes {
        match change {
            CatalogueChange::Create { id, name, blocks } => {
                volumes.insert(*id, Volume { id: *id, name: name.clone(), blocks: *blocks, map: Root::default() });
            }
            CatalogueChange::Resize { id, blocks } => {
                if let Some(volume) = volumes.get_mut(id) {
                    volume.blocks = *blocks;
                }
            }
            CatalogueChange::Rename { id, name } => {
                if let Some(volume) = volumes.get_mut(id) {
                    volume.name.clone_from(name);
                }
            }
            CatalogueChange::Delete { id } => {
                if let Some(volume) = volumes.get_mut(id) {
                    volume.name.clear();
                }
            }
        }
    }
}

/// Pages of a checkpoint: taken from the allocator, and let go of.
struct Space<'a> {
    engine: &'a Engine,
    taken: Vec<Pba>,
    let_go: Vec<Pba>,
}

impl PageSpace for Space<'_> {
    fn allocate(&mut self) -> Result<Pba> {
        let mut state = self.engine.state.lock();
        let zones = self.engine.zones(state.zone_table);
        let pba = state.allocator.place_page(&zones)?;
        self.taken.push(pba);
        Ok(pba)
    }

    fn release(&mut self, address: Pba) {
        self.let_go.push(address);
    }
}

/// Pages that were taken beforehand, one by one.
struct Beforehand(std::vec::IntoIter<Pba>);

impl PageSpace for Beforehand {
    fn allocate(&mut self) -> Result<Pba> {
        self.0.next().ok_or_else(|| onefold_core::Error::new(onefold_core::Kind::Corrupt, "the zone table has another shape than expected"))
    }

    fn release(&mut self, _: Pba) {}
}

/// A checkpoint being built.
struct Build<'a> {
    engine: &'a Engine,
    old: &'a Snapshot,
    birth: WindowNumber,
    space: Space<'a>,
    writer: PageWriter<'a>,
    /// Changes of reference counts: block, difference.
    deltas: Vec<(Pba, i32)>,
    freed: Vec<Pba>,
    /// Blocks that came into use, or out of it.
    bits: Vec<(Pba, bool)>,
    mapped: u64,
    live: u64,
}

/// A new zone table: its root, the bitmaps that changed, and how many blocks are in use.
type NewZones = (Root, Vec<(ZoneId, ZoneBitmap)>, u64);

impl<'a> Build<'a> {
    fn rebuild(&mut self, table: Table, volume: u32, root: &Root, leaves: &[u64], change: Change<'_>) -> Result<Root> {
        let Build { engine, space, writer, birth, .. } = self;
        let mut work = Rebuild { pages: &engine.pages, identity: &engine.identity, space, writer, birth: *birth };
        rebuild(&mut work, table, volume, root, leaves, change)
    }

    /// Rewrites the map pages that records changed, and as many as it may of those that pending discards cover. Returns the discards that
    /// are left.
    fn maps(&mut self, frozen: &Overlay, volumes: &mut BTreeMap<VolumeId, Volume>, discards: &Ranges) -> Result<Ranges> {
        let per_leaf = Table::Map.per_leaf();
        let mut keys: Vec<(VolumeId, Lba)> = frozen.entries.keys().copied().collect();
        keys.sort_unstable();
        let mut rest = &keys[..];
        let mut left = Ranges::default();
        let mut budget = self.engine.discard_leaves(&self.engine.state.lock());
        for (&id, volume) in volumes.iter_mut() {
            let skip = rest.iter().take_while(|key| key.0 < id).count();
            let count = rest[skip..].iter().take_while(|key| key.0 == id).count();
            let mine = &rest[skip..skip + count];
            rest = &rest[skip + count..];
            let mut leaves: BTreeSet<u64> = mine.iter().map(|key| key.1.0 / per_leaf).collect();
            for (start, span) in discards.meeting(id, 0, u64::MAX) {
                let mut at = start / per_leaf;
                loop {
                    match self.engine.pages.next_leaf(Table::Map, id.0, &volume.map, at)? {
                        Some(leaf) if leaf * per_leaf < span.end => {
                            if budget == 0 {
                                left.insert(id, (leaf * per_leaf).max(start), span);
                                break;
                            }
                            budget -= usize::from(leaves.insert(leaf));
                            at = leaf + 1;
                        }
                        _ => break,
                    }
                }
            }
            if leaves.is_empty() {
                continue;
            }
            let leaves: Vec<u64> = leaves.into_iter().collect();
            let root = volume.map;
            let bug = self.engine.settings.has(PlantedBug::RangeOverWrite);
            let decrement = if self.engine.settings.has(PlantedBug::DoubleDecrement) { -2 } else { -1 };
            let mut deltas = std::mem::take(&mut self.deltas);
            let mut mapped = self.mapped;
            volume.map = self.rebuild(Table::Map, id.0, &root, &leaves, &mut |leaf, pointer, page| {
                let first = leaf * per_leaf;
                let mut set = |page: &mut Block, slot: u64, new: MapEntry| {
                    let old = MapEntry::get(page, slot)
                        .ok_or_else(|| onefold_core::Error::new(onefold_core::Kind::Corrupt, "a map entry is damaged"))?;
                    if old == new {
                        return Ok(());
                    }
                    if let MapEntry::Block { pba, .. } = old {
                        deltas.push((pba, decrement));
                        mapped -= 1;
                    }
                    if let MapEntry::Block { pba, .. } = new {
                        deltas.push((pba, 1));
                        mapped += 1;
                    }
                    new.set(page, slot);
                    Ok::<(), onefold_core::Error>(())
                };
                // What was pending when the leaf was written last comes first, then the records.
                let birth = pointer.map_or(WindowNumber(0), |pointer| pointer.birth);
                for (start, span) in discards.meeting(id, first, first + per_leaf) {
                    if span.window > birth && pointer.is_some() {
                        for lba in start.max(first)..span.end.min(first + per_leaf) {
                            set(page, lba - first, zeroes(span.keep))?;
                        }
                    }
                }
                let from = mine.partition_point(|key| key.1.0 < first);
                for key in mine[from..].iter().take_while(|key| key.1.0 < first + per_leaf) {
                    let entry = &frozen.entries[key];
                    let covered = discards.get(id, key.1.0).is_some_and(|span| span.window > entry.window || bug);
                    if !covered {
                        set(page, key.1.0 - first, entry.entry)?;
                    }
                }
                Ok(crate::format::page::body(page).iter().any(|&byte| byte != 0))
            })?;
            self.deltas = deltas;
            self.mapped = mapped;
        }
        Ok(left)
    }

    /// Changes reference counts; finds the blocks that are free from now on.
    fn physical(&mut self, frozen: &Overlay, deferred: Vec<Pba>) -> Result<Root> {
        let per_leaf = Table::Physical.per_leaf();
        let mut deltas = std::mem::take(&mut self.deltas);
        // New blocks and those put off: they are free unless something names them now.
        let examined: Vec<Pba> =
            frozen.allocated.iter().flat_map(|extent| (0..extent.blocks).map(|n| extent.at.plus(n))).chain(deferred).collect();
        deltas.extend(examined.iter().map(|&pba| (pba, EXAMINE)));
        deltas.sort_unstable_by_key(|&(pba, _)| pba);
        let mut leaves: Vec<u64> = deltas.iter().map(|&(pba, _)| pba.0 / per_leaf).collect();
        leaves.dedup();
        let (engine, mut live) = (self.engine, self.live);
        let mut freed = Vec::new();
        let mut bits: Vec<(Pba, bool)> = Vec::new();
        let root = self.rebuild(Table::Physical, 0, &self.old.state.physical, &leaves, &mut |leaf, _, page| {
            let from = deltas.partition_point(|&(pba, _)| pba.0 < leaf * per_leaf);
            let mut rest = &deltas[from..];
            let state = engine.state.lock();
            let mut index = engine.index.lock();
            while let Some(&(pba, _)) = rest.first().filter(|&&(pba, _)| pba.0 / per_leaf == leaf) {
                let count = rest.iter().take_while(|delta| delta.0 == pba).count();
                let mine = &rest[..count];
                rest = &rest[count..];
                let examine = mine.iter().any(|&(_, delta)| delta == EXAMINE);
                let difference: i64 = mine.iter().map(|&(_, delta)| if delta == EXAMINE { 0 } else { i64::from(delta) }).sum();
                let slot = pba.0 % per_leaf;
                let mut entry = PhysicalEntry::get(page, slot);
                let before = entry.references;
                let known = state.allocator.fresh(pba).filter(|_| before == 0);
                if let Some((fingerprint, carried)) = known {
                    (entry.fingerprint, entry.carried) = (fingerprint, carried);
                }
                // Else the fingerprint stays although the block may be free: a record on its way may name it again.
                if before < PhysicalEntry::SATURATED {
                    let after = i64::from(before) + difference;
                    if after < 0 && !engine.settings.has(PlantedBug::DoubleDecrement) {
                        let message = format!("block {pba} has {before} references but loses {}", -difference);
                        return Err(onefold_core::Error::new(onefold_core::Kind::Corrupt, message));
                    }
                    entry.references = after.clamp(0, i64::from(PhysicalEntry::SATURATED)) as u32;
                }
                match (before, entry.references) {
                    (0, 0) if examine => freed.push(pba),
                    (0, 1..) => {
                        live += 1;
                        bits.push((pba, true));
                        if known.is_none() {
                            index.insert(&entry.fingerprint, pba);
                        }
                    }
                    (1.., 0) => {
                        live -= 1;
                        bits.push((pba, false));
                        freed.push(pba);
                    }
                    _ => {}
                }
                if entry.references == 0 {
                    index.remove(&entry.fingerprint, pba);
                }
                entry.set(page, slot);
            }
            Ok(crate::format::page::body(page).iter().any(|&byte| byte != 0))
        })?;
        self.live = live;
        self.freed.extend(freed);
        self.bits = bits;
        Ok(root)
    }

    /// Writes the volumes, all of them: there are few.
    fn catalogue(&mut self, volumes: &BTreeMap<VolumeId, Volume>) -> Result<Root> {
        if *volumes == self.old.volumes {
            return Ok(self.old.state.catalogue);
        }
        let all: Vec<&Volume> = volumes.values().collect();
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
            .map(|(volume, start, span)| Discard { volume, keep: span.keep, start, end: span.end, window: span.window })
            .collect();
        if all.len() > DISCARDS_MAX as usize {
            return Err(onefold_core::Error::new(onefold_core::Kind::Io, "too many pending discards"));
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

    /// Merges the index in memory into the one on disk, when its share of memory is used up and there is space.
    fn index(&mut self) -> Result<IndexOnDisk> {
        let engine = self.engine;
        let old = &self.old.state;
        let unchanged =
            IndexOnDisk { root: old.index, bits: old.index_bits, entries: old.index_entries, birth: old.index_birth, filter: None };
        let Some((most, bits)) = engine.reserve_spill() else { return Ok(unchanged) };
        let pages = 1u64 << bits;
        let Spill { memory, gone } = engine.index.lock().begin_spill(most);
        let mut filter = Filter::new(most, engine.settings.index_memory / 4);
        let mut entries = 0;
        let (mut segment, mut fresh) = (usize::MAX, Vec::new());
        let shift = bits - old.index_bits;
        let mut before: (u64, Vec<Entry>) = (u64::MAX, Vec::new());
        let leaves: Vec<u64> = (0..pages).collect();
        let root = self.rebuild(Table::Index, 0, &Root::default(), &leaves, &mut |leaf, _, page| {
            // The old page holds this one's entries and its neighbours', when the table doubles.
            if before.0 != leaf >> shift {
                // The index is a hint: what can't be read of it is found again or missed.
                let found = engine.pages.leaf(Table::Index, 0, &old.index, leaf >> shift).unwrap_or_default();
                before = (leaf >> shift, found.map_or_else(Vec::new, |(_, page)| paged::entries(&page).collect()));
            }
            let (from, to) = (leaf << (HASH_BITS - bits), (leaf + 1) << (HASH_BITS - bits));
            let mut merged: Vec<Entry> = before.1.iter().filter(|entry| (from..to).contains(&entry.hash)).copied().collect();
            let per_segment = 1u64 << (HASH_BITS - MemoryIndex::SEGMENTS.trailing_zeros());
            for number in from / per_segment..to.div_ceil(per_segment) {
                if segment != number as usize {
                    (segment, fresh) = (number as usize, memory.segment(number as usize));
                }
                let first = fresh.partition_point(|entry| entry.hash < from);
                merged.extend(fresh[first..].iter().take_while(|entry| entry.hash < to));
            }
            merged.sort_unstable();
            merged.dedup();
            merged.retain(|entry| gone.binary_search(entry).is_err());
            merged.iter().for_each(|entry| filter.insert(entry.hash));
            entries += merged.len().min(paged::PER_PAGE) as u64;
            paged::fill(page, &merged);
            Ok(true)
        })?;
        let space = &mut self.space;
        engine.pages.walk(Table::Index, 0, &old.index, &mut |_, pointer, _| {
            space.release(pointer.address);
            Ok(())
        })?;
        engine.state.lock().spilling_pages = 0;
        // Entries that had found no room are looked for again in the physical table; until that is done the table does not count as complete.
        let mut birth = self.birth;
        if memory.refused > 0 || !engine.index_complete() {
            birth = old.index_birth;
        }
        if memory.refused > 0 {
            engine.index_cursor.store(0, std::sync::atomic::Ordering::Relaxed);
        }
        Ok(IndexOnDisk { root, bits, entries, birth, filter: Some(filter) })
    }

    /// Writes the zone table. Its own pages change it: places for them are taken first, until that changes no further page of it.
    fn zones(&mut self) -> Result<NewZones> {
        let geometry = self.engine.fixed.geometry;
        let per_leaf = Table::Zones.per_leaf();
        let pages = &self.engine.pages;
        let root = self.old.state.zones;
        let mut edits = Edits { old: self.engine.zones(root), bitmaps: BTreeMap::new(), used: self.old.state.used_blocks };
        for (pba, used) in std::mem::take(&mut self.bits) {
            edits.set(geometry, pba, used)?;
        }
        let mut nodes: BTreeSet<(u8, u64)> = BTreeSet::new();
        let mut taken: Vec<Pba> = Vec::new();
        loop {
            for pba in std::mem::take(&mut self.space.taken) {
                edits.set(geometry, pba, true)?;
            }
            for pba in std::mem::take(&mut self.space.let_go) {
                edits.set(geometry, pba, false)?;
                self.freed.push(pba);
            }
            let leaves: BTreeSet<u64> = edits.bitmaps.keys().map(|zone| zone.0 / per_leaf).collect();
            let Some(&last) = leaves.last() else { break };
            let mut height = root.height.max(1);
            while FANOUT.checked_pow(u32::from(height) - 1).is_some_and(|reach| last >= reach) {
                height += 1;
            }
            let mut wanted: BTreeSet<(u8, u64)> = BTreeSet::new();
            for level in 0..height {
                let below = FANOUT.pow(u32::from(level));
                wanted.extend(leaves.iter().map(|leaf| (level, leaf / below)));
                // A taller tree: the old one hangs below its first new page.
                if height > root.height && level >= root.height && root.height > 0 {
                    wanted.insert((level, 0));
                }
            }
            let more: Vec<(u8, u64)> = wanted.difference(&nodes).copied().collect();
            if more.is_empty() {
                break;
            }
            for (level, index) in more {
                nodes.insert((level, index));
                taken.push(self.space.allocate()?);
                if let Some(old) = pages.inner_pointer(Table::Zones, 0, &root, level, index)? {
                    self.space.release(old.address);
                }
            }
        }
        let leaves: Vec<u64> = nodes.iter().filter(|node| node.0 == 0).map(|node| node.1).collect();
        taken.sort_unstable();
        let mut beforehand = Beforehand(taken.into_iter());
        let mut work =
            Rebuild { pages, identity: &self.engine.identity, space: &mut beforehand, writer: &mut self.writer, birth: self.birth };
        let bitmaps = &edits.bitmaps;
        let root = rebuild(&mut work, Table::Zones, 0, &root, &leaves, &mut |leaf, _, page| {
            for (&zone, &used) in bitmaps.range(ZoneId(leaf * per_leaf)..ZoneId((leaf + 1) * per_leaf)) {
                ZoneEntry { used }.set(page, zone.0 % per_leaf);
            }
            Ok(true)
        })?;
        if beforehand.0.next().is_some() {
            return Err(onefold_core::Error::new(onefold_core::Kind::Corrupt, "the zone table has another shape than expected"));
        }
        Ok((root, edits.bitmaps.into_iter().collect(), edits.used))
    }
}

/// New bitmaps of the zones that a checkpoint changes.
struct Edits<'a> {
    old: Zones<'a>,
    bitmaps: BTreeMap<ZoneId, ZoneBitmap>,
    used: u64,
}

impl Edits<'_> {
    fn set(&mut self, geometry: crate::format::geometry::Geometry, pba: Pba, used: bool) -> Result<()> {
        let zone = geometry.zone_of(pba);
        if !self.bitmaps.contains_key(&zone) {
            let bitmap = self.old.bitmaps(zone, 1)?.pop().unwrap_or_default();
            self.bitmaps.insert(zone, bitmap);
        }
        let Some(bitmap) = self.bitmaps.get_mut(&zone) else { return Ok(()) };
        let offset = geometry.offset_of(pba);
        let changed = if used { bitmap.set(offset) } else { bitmap.clear(offset) };
        if !changed && !self.old.engine.settings.has(PlantedBug::EarlyReuse) && !self.old.engine.settings.has(PlantedBug::DoubleDecrement) {
            let message = format!("the bitmap of zone {zone} has block {pba} as {} already", if used { "used" } else { "free" });
            return Err(onefold_core::Error::new(onefold_core::Kind::Corrupt, message));
        }
        self.used = if used { self.used + 1 } else { self.used.saturating_sub(1) };
        Ok(())
    }
}

/// Stands in a list of differences for a block that is to be looked at whatever its count does.
const EXAMINE: i32 = i32::MIN;
