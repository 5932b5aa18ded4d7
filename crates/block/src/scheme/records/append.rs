//! Records that recovery believes are published, and written again in the next epoch.

use onefold_core::{Block, Pba, Result};

use super::{replay::Replay, verify::read_change};
use crate::{
    coverage::Mark,
    format::{
        carrier::{Header, Payload, encode},
        record::{Change, Record},
        superblock::Layout,
    },
    kernel::{Kernel, Volumes, apply_catalogue},
    overlay::Tables,
    scheme::{
        room::reserve,
        verbs::RECORDS_ALONE,
        windows::{flush_zone_list, raw_blocks},
    },
    space::Lane,
    window::{Plan, Source, Window},
};

/// Publishes records that are durable, in their order.
pub(crate) fn publish_recovered(
    kernel: &Kernel,
    tables: &Tables,
    records: &[Record],
) -> Result<()> {
    {
        let mut state = kernel.state.lock();
        for record in records {
            state.overlays.active_mut().touch(record);
            state.overlays.active_mut().publish(record);
        }
    }
    adopt_changes(kernel, tables, records)
}

/// Carries out the changes of the catalogue among published records.
pub(crate) fn adopt_changes(kernel: &Kernel, tables: &Tables, records: &[Record]) -> Result<()> {
    let mut changes = Vec::new();
    for record in records {
        if let Change::Catalogue { pba, fingerprint } = record.change {
            changes.push(read_change(kernel, pba, &fingerprint)?);
        }
    }
    let mut state = kernel.state.lock();
    state.overlays.active_mut().change(changes);
    let mut volumes = tables.volumes.clone();
    apply_catalogue(&mut volumes, state.overlays.active().catalogue());
    let living = state.volumes.living().to_vec();
    state.volumes = Volumes::of(&volumes, state.volumes.next(), living)?;
    Ok(())
}

/// True when blocks can't be placed before the list is written again.
fn listing_lags(kernel: &Kernel, blocks: u64) -> bool {
    let state = kernel.state.lock();
    !state.allocator.can_place(blocks) && state.allocator.list.is_pending()
}

/// Step 4: windows of records alone, in the next epoch. False when there are too few blocks for
/// them.
pub(crate) fn append_again(
    kernel: &Kernel,
    replay: &Replay<'_>,
    verified: &[Record],
) -> Result<bool> {
    let carriers = verified.len().div_ceil(RECORDS_ALONE) as u64;
    {
        let mut state = kernel.state.lock();
        let zones = kernel.zones(state.releases.zone_table());
        state.allocator.grow_to(reserve(&kernel.geometry()) + carriers, &zones);
        state.allocator.list.set_recovering(true);
        let opened = state.allocator.open_ahead(carriers, &zones);
        state.allocator.list.set_recovering(false);
        opened?;
        if state.allocator.data.ready_blocks() < carriers
            || carriers > 0 && kernel.settings.finds_no_room()
        {
            return Ok(false);
        }
    }
    let tables = kernel.tables();
    let lane = if kernel.fixed.layout == Layout::Split { Lane::Carriers } else { Lane::Any };
    kernel.coverage.add(Mark::AppendedAgain, verified.len());
    for records in verified.chunks(RECORDS_ALONE * 16) {
        let carriers = records.len().div_ceil(RECORDS_ALONE);
        let (number, extents, generations) = {
            let number = kernel.state.lock().windows.open().number;
            while listing_lags(kernel, carriers as u64) {
                flush_zone_list(kernel, replay.scheme)?;
            }
            let mut state = kernel.state.lock();
            assert!(
                state.allocator.can_place(carriers as u64),
                "what is ready can be placed when its listing is durable"
            );
            let extents = state.allocator.place(carriers as u64, lane);
            let addresses =
                extents.iter().flat_map(|extent| (0..extent.blocks).map(|n| extent.at.plus(n)));
            let generations: Vec<u64> =
                addresses.map(|pba| state.allocator.data.generation(pba)).collect();
            (number, extents, generations)
        };
        let (durable, epoch) = {
            let state = kernel.state.lock();
            (state.windows.durable(), state.epoch + 1)
        };
        let records: Vec<Record> = records
            .iter()
            .zip(0..)
            .map(|(record, n)| Record { timestamp: number.timestamp(n), ..*record })
            .collect();
        let addresses: Vec<Pba> = extents
            .iter()
            .flat_map(|extent| (0..extent.blocks).map(|n| extent.at.plus(n)))
            .collect();
        let mut plan = Plan { extents, ..Plan::default() };
        for (n, part) in records.chunks(RECORDS_ALONE).enumerate() {
            let header = Header {
                epoch,
                generation: generations[n],
                address: addresses[n],
                window: number,
                before: replay.records.carriers_through(),
                position: n as u16,
                carriers: carriers as u16,
                durable,
            };
            let mut block = Block::zeroed();
            encode(&kernel.identity, &header, part, Payload::NONE, &mut block)?;
            plan.carriers.push(block);
            plan.sources.push(Source::Carrier(n as u32));
        }
        let empty = Window::new(number);
        let raw = raw_blocks(kernel, &empty, &plan)?;
        let blocks = plan.blocks(&empty, &raw)?;
        kernel.disk.write(&plan.runs(&blocks))?;
        kernel.disk.flush()?;
        publish_recovered(kernel, &tables, &records)?;
        replay.records.wrote(number);
        let mut state = kernel.state.lock();
        for &pba in &addresses {
            state.allocator.data.note(pba, number, true, None);
        }
        state.overlays.active_mut().publish_own(number, plan.carriers.len(), &plan.extents);
        state.windows.recovered(number, number);
    }
    Ok(true)
}
