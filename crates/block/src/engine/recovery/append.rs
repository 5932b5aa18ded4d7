//! Records that recovery believes are published, and written again in the next epoch.

use onefold_core::{Block, Pba, Result};

use crate::{
    coverage::Mark,
    engine::{
        Engine, Snapshot,
        catalogue::{apply_catalogue, visible},
    },
    format::{
        carrier::{Header, encode},
        record::{Change, Record},
        superblock::Layout,
    },
    scheme::RECORDS_ALONE,
    space::Lane,
    window::{Plan, Source, Window},
};

impl Engine {
    /// Publishes records that are durable, in their order.
    pub(super) fn publish_recovered(&self, snapshot: &Snapshot, records: &[Record]) -> Result<()> {
        {
            let mut state = self.state.lock();
            for record in records {
                state.active.touch(record);
                state.active.publish(record);
            }
        }
        self.adopt_changes(snapshot, records)
    }

    /// Carries out the changes of the catalogue among published records.
    pub(super) fn adopt_changes(&self, snapshot: &Snapshot, records: &[Record]) -> Result<()> {
        let mut changes = Vec::new();
        for record in records {
            if let Change::Catalogue { pba, fingerprint } = record.change {
                changes.push(self.read_change(pba, &fingerprint)?);
            }
        }
        let mut state = self.state.lock();
        state.active.change(changes);
        let mut volumes = snapshot.volumes.clone();
        apply_catalogue(&mut volumes, &state.active.catalogue);
        state.volumes = visible(&volumes);
        state.next_volume =
            volumes.keys().map(|id| id.0 + 1).chain([state.next_volume]).max().unwrap_or(1);
        Ok(())
    }

    /// True when blocks can't be placed before the list is written again.
    fn listing_lags(&self, blocks: u64) -> bool {
        let state = self.state.lock();
        !state.allocator.can_place(blocks) && state.allocator.list.is_pending()
    }

    /// Step 4: windows of records alone, in the next epoch. False when there are too few blocks for
    /// them.
    pub(super) fn append_again(&self, verified: &[Record]) -> Result<bool> {
        let carriers = verified.len().div_ceil(RECORDS_ALONE) as u64;
        {
            let mut state = self.state.lock();
            let zones = self.zones(state.zone_table);
            state.allocator.grow_to(self.reserve() + carriers, &zones);
            state.allocator.list.set_recovering(true);
            let opened = state.allocator.open_ahead(carriers, &zones);
            state.allocator.list.set_recovering(false);
            opened?;
            if state.allocator.ready_blocks() < carriers
                || carriers > 0 && self.settings.finds_no_room()
            {
                return Ok(false);
            }
        }
        let snapshot = self.state.lock().snapshot.clone();
        let lane = if self.fixed.layout == Layout::Split { Lane::Carriers } else { Lane::Any };
        self.coverage.add(Mark::AppendedAgain, verified.len());
        for records in verified.chunks(RECORDS_ALONE * 16) {
            let carriers = records.len().div_ceil(RECORDS_ALONE);
            let (number, extents, generations) = {
                let mut state = self.state.lock();
                let number = state.open.number;
                state.open = Window::new(number.next());
                drop(state);
                while self.listing_lags(carriers as u64) {
                    self.flush_zone_list()?;
                }
                let mut state = self.state.lock();
                assert!(
                    state.allocator.can_place(carriers as u64),
                    "what is ready can be placed when its listing is durable"
                );
                let extents = state.allocator.place(carriers as u64, lane);
                let addresses =
                    extents.iter().flat_map(|extent| (0..extent.blocks).map(|n| extent.at.plus(n)));
                let generations: Vec<u64> =
                    addresses.map(|pba| state.allocator.generation(pba)).collect();
                (number, extents, generations)
            };
            let (durable, epoch) = {
                let state = self.state.lock();
                (state.durable, state.epoch + 1)
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
                    before: self.preparing.lock().carriers_through,
                    position: n as u16,
                    carriers: carriers as u16,
                    durable,
                };
                let mut block = Block::zeroed();
                encode(&self.identity, &header, part, &[], &mut block);
                plan.carriers.push(block);
                plan.sources.push(Source::Carrier(n as u32));
            }
            let empty = Window::new(number);
            let blocks = plan.blocks(&empty);
            self.disk.write(&plan.runs(&blocks))?;
            self.disk.flush()?;
            self.publish_recovered(&snapshot, &records)?;
            self.preparing.lock().carriers_through = number;
            let mut state = self.state.lock();
            for &pba in &addresses {
                state.allocator.note(pba, number, true, None);
            }
            state.active.carriers += plan.carriers.len() as u64;
            state.active.allocated.extend_from_slice(&plan.extents);
            state.active.last = number;
            state.durable = number;
            state.acknowledged = number;
        }
        Ok(true)
    }
}
