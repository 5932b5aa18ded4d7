//! Writing windows in one go, as all schemes do that do not write leaves in place.

use std::sync::Arc;

use onefold_core::{BlockRef, Class, Result, Run};

use crate::{
    counters::add,
    format::{record::WindowNumber, superblock::Layout},
    kernel::{Kernel, State},
    rules::Rule,
    scheme::verbs::{Progress, Scheme},
    space::{Lane, zone_list::DuePage},
    window::{Plan, RawBlocks, Window},
};

/// The reason for which windows are flushed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flush {
    /// Each group of windows.
    Windows,
    /// Any other wait for a flush: windows are durable by checkpoints.
    WhenWanted,
}

/// The part of a window that is written first.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteOrder {
    /// All together.
    Together,
    /// The data, and a flush; then the records.
    DataFirst,
}

/// Writes the oldest prepared window, and pages of the zone list that are due. Returns whether
/// there was one.
pub(crate) fn write_window(
    kernel: &Kernel,
    scheme: &dyn Scheme,
    order: WriteOrder,
) -> Result<Progress> {
    let Some((window, plan, due)) = take_prepared(kernel)? else { return Ok(Progress::Idle) };
    let raw = raw_blocks(kernel, &window, &plan).map_err(|e| kernel.stop(&e))?;
    let blocks = plan.blocks(&window, &raw).map_err(|e| kernel.stop(&e))?;
    let mut runs = if order == WriteOrder::DataFirst {
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
    give_back(kernel, raw);
    let mut state = kernel.state.lock();
    state.allocator.list.written(&due);
    state.windows.mark_written(window.number);
    if !kernel.keeps(Rule::CommittedWhenDurable) {
        publish(kernel, scheme, &mut state, window.number);
    }
    Ok(Progress::Advanced)
}

/// The raw blocks of a window as they are written: sealed, where the store is.
pub(crate) fn raw_blocks(kernel: &Kernel, window: &Window, plan: &Plan) -> Result<RawBlocks> {
    let Some(sealing) = &kernel.identity.sealing else { return Ok(RawBlocks::Plain) };
    let mut sealed = std::mem::take(&mut *kernel.sealed.lock());
    plan.seal_raw(window, sealing, &mut sealed)?;
    Ok(RawBlocks::Sealed(sealed))
}

/// Gives the memory of sealed blocks that were written back to the kernel.
pub(crate) fn give_back(kernel: &Kernel, raw: RawBlocks) {
    if let RawBlocks::Sealed(sealed) = raw {
        *kernel.sealed.lock() = sealed;
    }
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
pub(crate) fn write_window_durably(kernel: &Kernel, scheme: &dyn Scheme) -> Result<Progress> {
    let _making_durable = kernel.making_durable.lock();
    let (window, plan) = {
        let mut state = kernel.state.lock();
        state.check_running()?;
        let others_wait = state.flushes.is_wanted()
            || state.allocator.list.is_dirty()
            || state.windows.is_writing();
        let alone = !others_wait || !kernel.keeps(Rule::WindowsInOrder);
        let next = state.windows.next_to_write().filter(|(_, plan)| alone && plan.is_one_run());
        let Some((window, plan)) = next else { return Ok(Progress::Idle) };
        state.windows.begin_writing(window.number);
        (window, plan)
    };
    let raw = raw_blocks(kernel, &window, &plan).map_err(|e| kernel.stop(&e))?;
    let blocks = plan.blocks(&window, &raw).map_err(|e| kernel.stop(&e))?;
    for run in plan.runs(&blocks) {
        kernel.disk.write_durable(&run).map_err(|e| kernel.stop(&e))?;
    }
    count_writes(kernel, &blocks, 0);
    add(&kernel.counters.flushes, 1);
    add(&kernel.counters.durable_writes, 1);
    // Its memory is used again once nobody holds it.
    let number = window.number;
    drop(blocks);
    give_back(kernel, raw);
    drop((window, plan));
    let mut state = kernel.state.lock();
    state.windows.mark_written(number);
    publish(kernel, scheme, &mut state, number);
    Ok(Progress::Advanced)
}

/// One flush, then the windows that were written before it are published.
pub(crate) fn flush_and_publish(
    kernel: &Kernel,
    scheme: &dyn Scheme,
    flush: Flush,
) -> Result<Progress> {
    let _making_durable = kernel.making_durable.lock();
    let (target, begun) = {
        let mut state = kernel.state.lock();
        state.check_running()?;
        let target = state.windows.written().last().map(|(window, _)| window.number);
        if target.is_none() && !state.flushes.is_wanted() {
            return Ok(Progress::Idle);
        }
        if flush == Flush::WhenWanted && !state.flushes.is_wanted() {
            // The flush of the checkpoint that makes them durable is theirs as well.
            publish(kernel, scheme, &mut state, target.unwrap_or_default());
            return Ok(Progress::Advanced);
        }
        state.allocator.list.flushing();
        (target, state.flushes.begin())
    };
    if kernel.keeps(Rule::FlushBeforePublish) {
        let stops = kernel.keeps(Rule::FailedFlushStopsWrites);
        kernel.disk.flush().map_err(|e| if stops { kernel.stop(&e) } else { e })?;
    }
    add(&kernel.counters.flushes, 1);
    let mut state = kernel.state.lock();
    state.flushes.succeeded(begun);
    state.allocator.list.flushed();
    if let Some(target) = target {
        publish(kernel, scheme, &mut state, target);
    }
    Ok(Progress::Advanced)
}

/// Writes due pages of the zone list; they wait for a flush.
pub(crate) fn write_zone_list(kernel: &Kernel) -> Result<()> {
    let due = {
        let mut state = kernel.state.lock();
        state.check_running()?;
        let durable = state.windows.durable();
        state.flushes.want();
        state.allocator.due_list_pages(&kernel.identity, durable)
    }
    .map_err(|e| kernel.stop(&e))?;
    let refs = list_refs(&due);
    let runs: Vec<Run<'_>> = list_runs(&due, &refs).collect();
    if !runs.is_empty() {
        kernel.disk.write(&runs).map_err(|e| kernel.stop(&e))?;
        count_writes(kernel, &[], due.len());
    }
    kernel.state.lock().allocator.list.written(&due);
    Ok(())
}

/// Makes due pages of the zone list durable at once.
pub(crate) fn flush_zone_list(kernel: &Kernel, scheme: &dyn Scheme) -> Result<Progress> {
    write_zone_list(kernel)?;
    scheme.make_durable(kernel)
}

/// When idle: writes down how far windows are durable, so that a carrier that rots later is
/// missed.
pub(crate) fn note_durable(kernel: &Kernel, scheme: &dyn Scheme) -> Result<Progress> {
    {
        let mut state = kernel.state.lock();
        state.check_running()?;
        let durable = state.windows.durable();
        if state.windows.closed() > 0
            || state.allocator.list.recorded_durable() >= durable
            || state.overlays.tables().state.committed >= durable
        {
            return Ok(Progress::Idle);
        }
        state.allocator.list.touch(durable);
    }
    flush_zone_list(kernel, scheme)?;
    Ok(Progress::Advanced)
}

/// A window with its plan, and the pages of the zone list that go with it.
type Prepared = (Arc<Window>, Arc<Plan>, Vec<DuePage>);

fn take_prepared(kernel: &Kernel) -> Result<Option<Prepared>> {
    let due = {
        let mut state = kernel.state.lock();
        if state.fail_stop.reason().is_some() {
            return Ok(None);
        }
        let Some((window, plan)) = state.windows.next_to_write() else { return Ok(None) };
        state.windows.begin_writing(window.number);
        let durable = state.windows.durable();
        let due = state.allocator.due_list_pages(&kernel.identity, durable);
        due.map(|due| Some((window, plan, due)))
    };
    due.map_err(|e| kernel.stop(&e))
}

fn count_writes(kernel: &Kernel, blocks: &[BlockRef<'_>], list_pages: usize) {
    let carriers = blocks.iter().filter(|block| block.class == Class::Carrier).count() as u64;
    add(&kernel.counters.carrier_blocks, carriers);
    add(&kernel.counters.data_blocks, blocks.len() as u64 - carriers);
    add(&kernel.counters.list_blocks, list_pages as u64);
}

/// Where the blocks of a window without carriers go.
pub(crate) fn lanes(kernel: &Kernel, blocks: usize) -> Vec<(Lane, u64)> {
    match kernel.fixed.layout {
        Layout::Run => vec![(Lane::Any, blocks as u64)],
        Layout::Split => vec![(Lane::Carriers, 0), (Lane::Raw, blocks as u64)],
    }
}

/// Publishes the windows up to `target`, and acknowledges them as far as the scheme may.
pub(crate) fn publish(
    kernel: &Kernel,
    scheme: &dyn Scheme,
    state: &mut State,
    target: WindowNumber,
) {
    publish_through(kernel, state, target);
    scheme.acknowledge(kernel, state);
}

/// Publishes the windows up to `target`, which are durable.
pub(crate) fn publish_through(kernel: &Kernel, state: &mut State, target: WindowNumber) {
    #[cfg(feature = "planted-bugs")]
    if !kernel.keeps(Rule::WindowsInOrder) {
        state.windows.pretend_durable(target);
    }
    while let Some((window, plan)) = state.windows.publish_next(target) {
        state.overlays.active_mut().publish_window(&window, &plan);
        add(&kernel.counters.windows, 1);
        add(&kernel.counters.records, plan.records.len() as u64);
        add(&kernel.counters.hidden_records, plan.hidden);
        add(&kernel.counters.duplicate_blocks, plan.duplicates);
        state.windows.recycle(window, kernel.settings.pool_blocks());
        state.seal_moment(kernel.keeps(Rule::MomentSealsOverlay));
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
