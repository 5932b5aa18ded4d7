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

use crate::{
    counters::add,
    engine::{
        checkpoint::commit_by_checkpoint,
        gather::close_window,
        prepare::{prepare_window, writes_records},
    },
    format::record::WindowNumber,
    kernel::{ClosedWindow, Kernel, Stage, State},
    scheme::{
        Records,
        ordermerge::{
            in_place,
            increments::write_counted,
            link::{flush_and_link, flush_and_link_all},
        },
    },
    settings::PlantedBug,
    space::zone_list::DuePage,
    window::{Plan, Window},
};

/// Writes the oldest prepared window, and pages of the zone list that are due. Returns whether
/// there was one.
///
/// # Errors
/// The first failed write stops all writes.
pub(crate) fn write_window(kernel: &Kernel) -> Result<bool> {
    if in_place(kernel) {
        return write_counted(kernel);
    }
    let Some((window, plan, due)) = take_prepared(kernel) else { return Ok(false) };
    let blocks = plan.blocks(&window);
    let mut runs = if kernel.scheme.records() == Records::AfterData {
        write_data_first(kernel, &plan, &blocks)?;
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
        kernel.disk.write(&runs).map_err(|e| kernel.stop(&e))?;
    }
    count_writes(kernel, &blocks, due.len());
    add(&kernel.counters.leftover_blocks, plan.leftover.len() as u64);
    let mut state = kernel.state.lock();
    state.allocator.list.written(&due);
    state.mark_written(window.number);
    if kernel.settings.has(PlantedBug::CommitPastDurable) {
        publish_through(kernel, &mut state, window.number);
    }
    Ok(true)
}

/// Writes the data of a window, and makes it durable before any record names it.
fn write_data_first(kernel: &Kernel, plan: &Plan, blocks: &[BlockRef<'_>]) -> Result<()> {
    let data = plan.runs_of(blocks, true);
    if !data.is_empty() {
        kernel.disk.write(&data).map_err(|e| kernel.stop(&e))?;
        kernel.disk.flush().map_err(|e| kernel.stop(&e))?;
        add(&kernel.counters.flushes, 1);
    }
    Ok(())
}

/// Writes the oldest prepared window durably in one go and publishes it, when it is one run and
/// nothing else waits for a flush: one device write and no flush. Returns false, having
/// done nothing, when that is not so.
///
/// # Errors
/// As [`write_window`](Self::write_window).
pub(crate) fn write_window_durably(kernel: &Kernel) -> Result<bool> {
    if matches!(
        kernel.scheme.records(),
        Records::AfterData | Records::ByCheckpoint | Records::InPlace
    ) {
        return Ok(false);
    }
    let _making_durable = kernel.making_durable.lock();
    let (window, plan) = {
        let mut state = kernel.state.lock();
        state.check_running()?;
        let others_wait = state.flushes.is_wanted()
            || state.allocator.list.is_dirty()
            || state.closed_windows.iter().any(|f| f.stage >= Stage::Writing);
        let front = if kernel.settings.has(PlantedBug::OutOfOrder) {
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
        kernel.disk.write_durable(&run).map_err(|e| kernel.stop(&e))?;
    }
    count_writes(kernel, &blocks, 0);
    add(&kernel.counters.flushes, 1);
    add(&kernel.counters.durable_writes, 1);
    // Its memory is used again once nobody holds it.
    let number = window.number;
    drop(blocks);
    drop((window, plan));
    let mut state = kernel.state.lock();
    state.mark_written(number);
    publish_through(kernel, &mut state, number);
    Ok(true)
}

/// Makes the windows that were written durable, and publishes them, as far as none before them
/// is missing: by one flush, or by what else the scheme needs. Returns whether anything
/// waited for it.
///
/// # Errors
/// A failed flush stops all writes; it is never tried again.
pub(crate) fn make_durable(kernel: &Kernel) -> Result<bool> {
    if in_place(kernel) {
        return flush_and_link_all(kernel);
    }
    let written = flush_and_publish(kernel)?;
    Ok(if kernel.scheme.records() == Records::ByCheckpoint {
        commit_by_checkpoint(kernel)? || written
    } else {
        written
    })
}

/// One flush, then the windows that were written before it are published.
pub(crate) fn flush_and_publish(kernel: &Kernel) -> Result<bool> {
    if in_place(kernel) {
        return flush_and_link(kernel);
    }
    let _making_durable = kernel.making_durable.lock();
    let (target, flush) = {
        let mut state = kernel.state.lock();
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
        if kernel.scheme.records() == Records::ByCheckpoint && !state.flushes.is_wanted() {
            // The flush of the checkpoint that makes them durable is theirs as well.
            publish_through(kernel, &mut state, target.unwrap_or_default());
            return Ok(true);
        }
        state.allocator.list.flushing();
        (target, state.flushes.begin())
    };
    if !kernel.settings.has(PlantedBug::SkippedFlush) {
        let again = kernel.settings.has(PlantedBug::FlushRetried);
        kernel.disk.flush().map_err(|e| if again { e } else { kernel.stop(&e) })?;
    }
    add(&kernel.counters.flushes, 1);
    let mut state = kernel.state.lock();
    state.flushes.succeeded(flush);
    state.allocator.list.flushed();
    if let Some(target) = target {
        publish_through(kernel, &mut state, target);
    }
    Ok(true)
}

/// Runs the steps until everything gathered so far is durable.
///
/// # Errors
/// `Stopped`.
pub(crate) fn flush(kernel: &Kernel) -> Result<()> {
    close_window(kernel);
    let newest = kernel.newest();
    loop {
        while prepare_window(kernel)? {}
        let single = kernel.state.lock().closed_windows.len() == 1;
        if !(single && write_window_durably(kernel)?) {
            while write_window(kernel)? {}
        }
        // A window may wait for what a checkpoint makes; the others need one round.
        if !make_durable(kernel)? || !in_place(kernel) || kernel.durable() >= newest {
            return Ok(());
        }
    }
}

/// Makes due pages of the zone list durable at once, when zones ran out before a window could
/// carry them.
pub(crate) fn flush_zone_list(kernel: &Kernel) -> Result<()> {
    write_zone_list(kernel)?;
    if in_place(kernel) {
        flush_and_link(kernel)?
    } else {
        make_durable(kernel)?
    };
    Ok(())
}

/// Writes due pages of the zone list; they wait for a flush.
pub(crate) fn write_zone_list(kernel: &Kernel) -> Result<()> {
    let due = {
        let mut state = kernel.state.lock();
        state.check_running()?;
        let durable = state.durable;
        state.flushes.want();
        state.allocator.due_list_pages(&kernel.identity, durable)
    };
    let refs = list_refs(&due);
    let runs: Vec<Run<'_>> = list_runs(&due, &refs).collect();
    if !runs.is_empty() {
        kernel.disk.write(&runs).map_err(|e| kernel.stop(&e))?;
        count_writes(kernel, &[], due.len());
    }
    kernel.state.lock().allocator.list.written(&due);
    Ok(())
}

/// When idle: writes down how far windows are durable, so that a carrier that rots later is
/// missed.
///
/// # Errors
/// As [`write_window`](Self::write_window).
pub(crate) fn note_durable(kernel: &Kernel) -> Result<bool> {
    if !writes_records(kernel) {
        return Ok(false);
    }
    {
        let mut state = kernel.state.lock();
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
    flush_zone_list(kernel)?;
    Ok(true)
}

fn take_prepared(kernel: &Kernel) -> Option<(Arc<Window>, Arc<Plan>, Vec<DuePage>)> {
    let mut state = kernel.state.lock();
    if state.fail_stop.reason().is_some() {
        return None;
    }
    let closed = state.closed_windows.iter_mut().find(|closed| closed.stage == Stage::Prepared)?;
    let (window, plan) = (closed.window.clone(), closed.plan.clone()?);
    closed.stage = Stage::Writing;
    let durable = state.durable;
    let due = state.allocator.due_list_pages(&kernel.identity, durable);
    Some((window, plan, due))
}

fn count_writes(kernel: &Kernel, blocks: &[BlockRef<'_>], list_pages: usize) {
    let carriers = blocks.iter().filter(|block| block.class == Class::Carrier).count() as u64;
    add(&kernel.counters.carrier_blocks, carriers);
    add(&kernel.counters.data_blocks, blocks.len() as u64 - carriers);
    add(&kernel.counters.list_blocks, list_pages as u64);
}

/// Publishes the windows up to `target`, which are durable.
pub(crate) fn publish_through(kernel: &Kernel, state: &mut State, target: WindowNumber) {
    if kernel.settings.has(PlantedBug::OutOfOrder) {
        state.durable = state.durable.max(target);
    }
    while state
        .closed_windows
        .front()
        .is_some_and(|closed| closed.window.number <= target && closed.stage >= Stage::Written)
    {
        let Some(ClosedWindow { window, plan: Some(plan), .. }) = state.closed_windows.pop_front()
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
        add(&kernel.counters.windows, 1);
        add(&kernel.counters.records, plan.records.len() as u64);
        add(&kernel.counters.hidden_records, plan.hidden);
        add(&kernel.counters.duplicate_blocks, plan.duplicates);
        state.recycle(window, kernel.settings.pool_blocks());
    }
    let by_checkpoint = match kernel.scheme.records() {
        Records::ByCheckpoint => true,
        Records::InPlace => state.catalogue_waits(),
        _ => false,
    };
    if !by_checkpoint || kernel.settings.has(PlantedBug::AcknowledgedEarly) {
        state.acknowledged = state.durable;
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
