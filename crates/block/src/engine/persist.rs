//! Persisting windows: write, one flush, acknowledge and publish in order.
//!
//! What is true after each step:
//! 1. *written*: the blocks and carriers of the window may be on the disk, in any part; nobody was
//!    told.
//! 2. *flushed* (or written durably): all of it is on the disk. The window is durable once every
//!    window before it is.
//! 3. *published*: the records are in the active overlay, `durable` has risen, waiting clients are
//!    answered.
//!
//! A crash before 2 leaves records that are believed one by one if the block that they name hashes
//! to their fingerprint; after 2 recovery finds all of them.

use std::sync::Arc;

use onefold_core::{BlockRef, Class, Result, Run};

use super::{ClosedWindow, Engine, Stage, State};
use crate::{
    counters::add,
    format::record::WindowNumber,
    scheme::Records,
    settings::PlantedBug,
    space::zone_list::DuePage,
    window::{Plan, Window},
};

impl Engine {
    /// Writes the oldest prepared window, and pages of the zone list that are due. Returns whether
    /// there was one.
    ///
    /// # Errors
    /// The first failed write stops all writes.
    pub fn write_window(&self) -> Result<bool> {
        if self.in_place() {
            return self.write_counted();
        }
        let Some((window, plan, due)) = self.take_prepared() else { return Ok(false) };
        let blocks = plan.blocks(&window);
        let mut runs = if self.scheme.records() == Records::AfterData {
            self.write_data_first(&plan, &blocks)?;
            plan.runs_of(&blocks, false)
        } else {
            plan.runs(&blocks)
        };
        let due_refs = list_refs(&due);
        runs.extend(list_runs(&due, &due_refs));
        let leftover: Vec<BlockRef<'_>> = plan
            .leftover
            .iter()
            .map(|page| BlockRef { block: &page.block, class: Class::Table })
            .collect();
        runs.extend(
            plan.leftover
                .iter()
                .zip(leftover.chunks(1))
                .map(|(page, blocks)| Run { at: page.at, blocks }),
        );
        if !runs.is_empty() {
            self.disk.write(&runs).map_err(|e| self.stop(&e))?;
        }
        self.count_writes(&blocks, due.len());
        add(&self.counters.leftover_blocks, plan.leftover.len() as u64);
        let mut state = self.state.lock();
        state.allocator.list.written(&due);
        state.mark_written(window.number);
        if self.settings.has(PlantedBug::CommitPastDurable) {
            self.publish_through(&mut state, window.number);
        }
        Ok(true)
    }

    /// Writes the data of a window, and makes it durable before any record names it.
    fn write_data_first(&self, plan: &Plan, blocks: &[BlockRef<'_>]) -> Result<()> {
        let data = plan.runs_of(blocks, true);
        if !data.is_empty() {
            self.disk.write(&data).map_err(|e| self.stop(&e))?;
            self.disk.flush().map_err(|e| self.stop(&e))?;
            add(&self.counters.flushes, 1);
        }
        Ok(())
    }

    /// Writes the oldest prepared window durably in one go and publishes it, when it is one run and
    /// nothing else waits for a flush: one device write and no flush. Returns false, having
    /// done nothing, when that is not so.
    ///
    /// # Errors
    /// As [`write_window`](Self::write_window).
    pub fn write_window_durably(&self) -> Result<bool> {
        if matches!(
            self.scheme.records(),
            Records::AfterData | Records::ByCheckpoint | Records::InPlace
        ) {
            return Ok(false);
        }
        let _making_durable = self.making_durable.lock();
        let (window, plan) = {
            let mut state = self.state.lock();
            state.check_running()?;
            let others_wait = state.flushes.is_wanted()
                || state.allocator.list.is_dirty()
                || state.closed_windows.iter().any(|f| f.stage >= Stage::Writing);
            let front = if self.settings.has(PlantedBug::OutOfOrder) {
                state.closed_windows.iter_mut().find(|closed| closed.stage == Stage::Prepared)
            } else if others_wait {
                None
            } else {
                state.closed_windows.front_mut().filter(|closed| closed.stage == Stage::Prepared)
            };
            let Some(closed) = front else { return Ok(false) };
            let Some(plan) = closed.plan.clone().filter(|plan| plan.is_one_run()) else {
                return Ok(false);
            };
            closed.stage = Stage::Writing;
            (closed.window.clone(), plan)
        };
        let blocks = plan.blocks(&window);
        for run in plan.runs(&blocks) {
            self.disk.write_durable(&run).map_err(|e| self.stop(&e))?;
        }
        self.count_writes(&blocks, 0);
        add(&self.counters.flushes, 1);
        add(&self.counters.durable_writes, 1);
        // Its memory is used again once nobody holds it.
        let number = window.number;
        drop(blocks);
        drop((window, plan));
        let mut state = self.state.lock();
        state.mark_written(number);
        self.publish_through(&mut state, number);
        Ok(true)
    }

    /// Makes the windows that were written durable, and publishes them, as far as none before them
    /// is missing: by one flush, or by what else the scheme needs. Returns whether anything
    /// waited for it.
    ///
    /// # Errors
    /// A failed flush stops all writes; it is never tried again.
    pub fn make_durable(&self) -> Result<bool> {
        if self.in_place() {
            return self.flush_and_link_all();
        }
        let written = self.flush_and_publish()?;
        Ok(if self.scheme.records() == Records::ByCheckpoint {
            self.commit_by_checkpoint()? || written
        } else {
            written
        })
    }

    /// One flush, then the windows that were written before it are published.
    pub(crate) fn flush_and_publish(&self) -> Result<bool> {
        if self.in_place() {
            return self.flush_and_link();
        }
        let _making_durable = self.making_durable.lock();
        let (target, flush) = {
            let mut state = self.state.lock();
            state.check_running()?;
            let target = state
                .closed_windows
                .iter()
                .take_while(|closed| closed.stage == Stage::Written)
                .last()
                .map(|closed| closed.window.number);
            if target.is_none() && !state.flushes.is_wanted() {
                return Ok(false);
            }
            if self.scheme.records() == Records::ByCheckpoint && !state.flushes.is_wanted() {
                // The flush of the checkpoint that makes them durable is theirs as well.
                self.publish_through(&mut state, target.unwrap_or_default());
                return Ok(true);
            }
            state.allocator.list.flushing();
            (target, state.flushes.begin())
        };
        if !self.settings.has(PlantedBug::SkippedFlush) {
            let again = self.settings.has(PlantedBug::FlushRetried);
            self.disk.flush().map_err(|e| if again { e } else { self.stop(&e) })?;
        }
        add(&self.counters.flushes, 1);
        let mut state = self.state.lock();
        state.flushes.succeeded(flush);
        state.allocator.list.flushed();
        if let Some(target) = target {
            self.publish_through(&mut state, target);
        }
        Ok(true)
    }

    /// Runs the steps until everything gathered so far is durable.
    ///
    /// # Errors
    /// `Stopped`.
    pub fn flush(&self) -> Result<()> {
        self.close_window();
        let newest = self.newest();
        loop {
            while self.prepare_window()? {}
            let single = self.state.lock().closed_windows.len() == 1;
            if !(single && self.write_window_durably()?) {
                while self.write_window()? {}
            }
            // A window may wait for what a checkpoint makes; the others need one round.
            if !self.make_durable()? || !self.in_place() || self.durable() >= newest {
                return Ok(());
            }
        }
    }

    /// Makes due pages of the zone list durable at once, when zones ran out before a window could
    /// carry them.
    pub(crate) fn flush_zone_list(&self) -> Result<()> {
        self.write_zone_list()?;
        if self.in_place() {
            self.flush_and_link()?
        } else {
            self.make_durable()?
        };
        Ok(())
    }

    /// Writes due pages of the zone list; they wait for a flush.
    pub(crate) fn write_zone_list(&self) -> Result<()> {
        let due = {
            let mut state = self.state.lock();
            state.check_running()?;
            let durable = state.durable;
            state.flushes.want();
            state.allocator.due_list_pages(&self.identity, durable)
        };
        let refs = list_refs(&due);
        let runs: Vec<Run<'_>> = list_runs(&due, &refs).collect();
        if !runs.is_empty() {
            self.disk.write(&runs).map_err(|e| self.stop(&e))?;
            self.count_writes(&[], due.len());
        }
        self.state.lock().allocator.list.written(&due);
        Ok(())
    }

    /// When idle: writes down how far windows are durable, so that a carrier that rots later is
    /// missed.
    ///
    /// # Errors
    /// As [`write_window`](Self::write_window).
    pub fn note_durable(&self) -> Result<bool> {
        if !self.writes_records() {
            return Ok(false);
        }
        {
            let mut state = self.state.lock();
            state.check_running()?;
            let durable = state.durable;
            if !state.closed_windows.is_empty()
                || state.allocator.list.recorded_durable() >= durable
                || state.snapshot.state.committed >= durable
            {
                return Ok(false);
            }
            state.allocator.list.touch(durable);
        }
        self.flush_zone_list()?;
        Ok(true)
    }

    fn take_prepared(&self) -> Option<(Arc<Window>, Arc<Plan>, Vec<DuePage>)> {
        let mut state = self.state.lock();
        if state.fail_stop.reason().is_some() {
            return None;
        }
        let closed =
            state.closed_windows.iter_mut().find(|closed| closed.stage == Stage::Prepared)?;
        let (window, plan) = (closed.window.clone(), closed.plan.clone()?);
        closed.stage = Stage::Writing;
        let durable = state.durable;
        let due = state.allocator.due_list_pages(&self.identity, durable);
        Some((window, plan, due))
    }

    fn count_writes(&self, blocks: &[BlockRef<'_>], list_pages: usize) {
        let carriers = blocks.iter().filter(|block| block.class == Class::Carrier).count() as u64;
        add(&self.counters.carrier_blocks, carriers);
        add(&self.counters.data_blocks, blocks.len() as u64 - carriers);
        add(&self.counters.list_blocks, list_pages as u64);
    }

    /// Publishes the windows up to `target`, which are durable.
    pub(crate) fn publish_through(&self, state: &mut State, target: WindowNumber) {
        if self.settings.has(PlantedBug::OutOfOrder) {
            state.durable = state.durable.max(target);
        }
        while state
            .closed_windows
            .front()
            .is_some_and(|closed| closed.window.number <= target && closed.stage >= Stage::Written)
        {
            let Some(ClosedWindow { window, plan: Some(plan), .. }) =
                state.closed_windows.pop_front()
            else {
                break;
            };
            for record in &plan.records {
                state.active.publish(record);
            }
            state.active.carriers += plan.carriers.len() as u64;
            state.active.last = state.active.last.max(window.number);
            state.active.change(window.catalogue.iter().cloned());
            state.active.allocated.extend_from_slice(plan.allocated());
            state.active.pins.extend(plan.pins.iter().copied());
            state.durable = state.durable.max(window.number);
            add(&self.counters.windows, 1);
            add(&self.counters.records, plan.records.len() as u64);
            add(&self.counters.hidden_records, plan.hidden);
            add(&self.counters.duplicate_blocks, plan.duplicates);
            state.recycle(window, self.settings.pool_blocks());
        }
        let by_checkpoint = match self.scheme.records() {
            Records::ByCheckpoint => true,
            Records::InPlace => state.catalogue_waits(),
            _ => false,
        };
        if !by_checkpoint || self.settings.has(PlantedBug::AcknowledgedEarly) {
            state.acknowledged = state.durable;
        }
    }
}

impl State {
    fn mark_written(&mut self, number: WindowNumber) {
        self.set_stage(number, Stage::Written);
    }

    pub(crate) fn set_stage(&mut self, number: WindowNumber, stage: Stage) {
        if let Some(closed) =
            self.closed_windows.iter_mut().find(|closed| closed.window.number == number)
        {
            closed.stage = stage;
        }
    }

    /// True when changes of the catalogue are published that no checkpoint holds.
    pub(crate) fn catalogue_waits(&self) -> bool {
        !self.active.catalogue.is_empty()
            || self.frozen.as_ref().is_some_and(|frozen| !frozen.catalogue.is_empty())
    }
}

pub(crate) fn list_refs(due: &[DuePage]) -> Vec<BlockRef<'_>> {
    due.iter().map(|page| BlockRef { block: &page.block, class: Class::Table }).collect()
}

pub(crate) fn list_runs<'a>(
    due: &[DuePage],
    refs: &'a [BlockRef<'a>],
) -> impl Iterator<Item = Run<'a>> {
    due.iter().map(|page| page.at).zip(refs.chunks(1)).map(|(at, blocks)| Run { at, blocks })
}
