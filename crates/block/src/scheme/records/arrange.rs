//! Records hide beside compressed blocks, in carriers; what finds no room goes to the leftover
//! table, or into one more carrier.

use onefold_core::{Block, Fingerprint, Lba, Pba, Result, VolumeId, compress::Lz4};
use parking_lot::Mutex;

use super::leftover_table::LeftoverTable;
use crate::{
    counters::add,
    format::{
        carrier::{self, Header, Payload},
        catalogue::CatalogueChange,
        leftover,
        record::{Record, WindowNumber},
        superblock::{Layout, Leftover},
    },
    kernel::Kernel,
    rules::Rule,
    scheme::{
        verbs::{Arrangement, Chosen, Decided, RECORDS_ALONE, Role},
        windows::WriteOrder,
    },
    space::Lane,
    window::{Plan, SealedBy, Window},
};

/// Chooses carriers among a window's new blocks for a number of records.
/// Each of them takes so many bytes besides what it compresses to.
pub(crate) type Choose = fn(&mut Lz4, &[&Block], usize, usize) -> Vec<Chosen>;

/// The state of schemes with records between windows. The lock is a leaf, held by the step that
/// prepares a window, and by recovery.
#[derive(Default)]
pub(crate) struct Records(Mutex<Carriers>);

#[derive(Default)]
struct Carriers {
    lz4: Lz4,
    leftover: LeftoverTable,
    /// The last window that had carriers.
    through: WindowNumber,
}

impl Records {
    /// The last window that had carriers.
    pub(super) fn carriers_through(&self) -> WindowNumber {
        self.0.lock().through
    }

    /// A window of records was written.
    pub(super) fn wrote(&self, window: WindowNumber) {
        self.0.lock().through = window;
    }

    /// Takes what recovery found: the leftover table by `hand_over`, and the last window with
    /// carriers.
    ///
    /// # Errors
    /// The error of `hand_over`.
    pub(super) fn recovered<E>(
        &self,
        through: WindowNumber,
        hand_over: impl FnOnce(&mut LeftoverTable) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut carriers = self.0.lock();
        hand_over(&mut carriers.leftover)?;
        carriers.through = through;
        Ok(())
    }

    /// Arranges a window, with carriers as `choose` chooses them.
    pub(crate) fn lay_out(
        &self,
        kernel: &Kernel,
        window: &Window,
        decided: &Decided<'_>,
        choose: Choose,
        first: WriteOrder,
    ) -> Arrangement {
        let mut carriers = self.0.lock();
        let extra = kernel.identity.payload_extra();
        let new = decided.new.len();
        let changes: Vec<Box<Block>> =
            window.catalogue.iter().map(CatalogueChange::encode).collect();
        let records = window.ranges.len() + changes.len() + decided.slots.len();
        // The changes of the catalogue travel in carriers of their own.
        let mut chosen = Vec::new();
        for (n, change) in changes.iter().enumerate() {
            let payload = carriers.lz4.compress(change, 4096).unwrap_or_default().to_vec();
            let room = carrier::room_beside(payload.len() + extra);
            chosen.push(Chosen { block: new + n, room, payload });
        }
        let room: usize = chosen.iter().map(|chosen| chosen.room).sum();
        let left = records.saturating_sub(room);
        chosen.extend(choose(&mut carriers.lz4, &decided.new, left, extra));
        chosen.sort_by_key(|chosen| chosen.block);
        let hidden = chosen.iter().map(|chosen| chosen.room).sum::<usize>().min(records);
        let in_table =
            leftover_in_table(kernel, &mut carriers.leftover, window, decided.slots, hidden);
        let alone = (records - hidden - in_table.len()).div_ceil(RECORDS_ALONE);
        let mut roles = vec![Role::Raw; new + changes.len()];
        for (c, chosen) in chosen.iter().enumerate() {
            roles[chosen.block] = Role::Carrier(c);
        }
        roles.resize(roles.len() + alone, Role::RecordsAlone);
        let changes: Vec<Fingerprint> =
            changes.iter().map(|change| kernel.identity.fingerprinter.one(change)).collect();
        let (order, lanes) = order(&roles, kernel.fixed.layout, first);
        Arrangement {
            changes,
            chosen,
            roles,
            order,
            lanes,
            pinned: Vec::new(),
            hidden,
            alone,
            in_table,
        }
    }

    /// Fills the carriers of a window, and its pages of the leftover table.
    pub(crate) fn seal(
        &self,
        kernel: &Kernel,
        plan: &mut Plan,
        arrangement: &Arrangement,
        header: Header,
    ) -> Result<()> {
        let mut carriers = self.0.lock();
        let header = Header { before: carriers.through, ..header };
        fill_carriers(kernel, plan, arrangement, header)?;
        if header.carriers > 0 {
            carriers.through = header.window;
        }
        if !arrangement.in_table.is_empty() {
            let records: Vec<Record> =
                arrangement.in_table.iter().map(|&n| plan.records[n]).collect();
            let header = leftover::Header {
                window: header.window,
                durable: header.durable,
                carriers: carriers.through,
            };
            plan.leftover = carriers.leftover.add(
                &kernel.identity,
                &kernel.geometry(),
                &header,
                &records,
                kernel.keeps(Rule::LeftoverVersionsAlternate),
            );
            add(&kernel.counters.leftover_records, records.len() as u64);
        }
        add(&kernel.counters.record_blocks, arrangement.alone as u64);
        Ok(())
    }
}

/// Which blocks come first on the disk, and where they go.
fn order(roles: &[Role], layout: Layout, first: WriteOrder) -> (Vec<usize>, Vec<(Lane, u64)>) {
    let is_raw = |n: usize| matches!(roles[n], Role::Raw);
    let mut order: Vec<usize> = (0..roles.len()).collect();
    let raw_first = first == WriteOrder::DataFirst;
    if raw_first || layout == Layout::Split {
        order.sort_by_key(|&n| is_raw(n) != raw_first);
    }
    let needed = roles.len() as u64;
    let raw = (0..roles.len()).filter(|&n| is_raw(n)).count() as u64;
    let carriers = (Lane::Carriers, needed - raw);
    let lanes = match layout {
        Layout::Run => vec![(Lane::Any, needed)],
        Layout::Split if raw_first => vec![(Lane::Raw, raw), carriers],
        Layout::Split => vec![carriers, (Lane::Raw, raw)],
    };
    (order, lanes)
}

/// Of the records that found no room beside a block, which are the last, those that go to pages
/// of the leftover table.
fn leftover_in_table(
    kernel: &Kernel,
    leftover: &mut LeftoverTable,
    window: &Window,
    slots: &[usize],
    hidden: usize,
) -> Vec<usize> {
    if kernel.fixed.leftover == Leftover::Log {
        return Vec::new();
    }
    let (durable, committed) = {
        let state = kernel.state.lock();
        (state.windows.durable(), state.allocator.committed())
    };
    leftover.forget(committed);
    let others = window.catalogue.len() + window.ranges.len();
    let first = hidden.saturating_sub(others).min(slots.len());
    let blocks = slots[first..].iter().map(|&slot| &window.blocks[slot]);
    let addresses: Vec<(VolumeId, Lba)> = blocks.map(|block| (block.volume, block.lba)).collect();
    let durable =
        if kernel.keeps(Rule::LeftoverWaitsForFlush) { durable } else { WindowNumber::MAX };
    let accepted = leftover.accepts(&kernel.geometry(), durable, &addresses);
    accepted
        .iter()
        .enumerate()
        .filter(|(_, accepted)| **accepted)
        .map(|(n, _)| others + first + n)
        .collect()
}

/// Writes records and compressed blocks into the carriers, and seals them.
fn fill_carriers(
    kernel: &Kernel,
    plan: &mut Plan,
    arrangement: &Arrangement,
    header: Header,
) -> Result<()> {
    let addresses: Vec<Pba> = plan.addresses().collect();
    let roles = arrangement.order.iter().map(|&n| &arrangement.roles[n]);
    // They are there in a sealed store.
    let seals = plan.seals.iter().copied().chain(std::iter::repeat(SealedBy::default()));
    let carriers = addresses
        .into_iter()
        .zip(roles)
        .zip(seals)
        .filter(|((_, role), _)| !matches!(role, Role::Raw));
    let records: Vec<Record>;
    let mut rest = if arrangement.in_table.is_empty() {
        &plan.records[..]
    } else {
        let in_carrier = |n: &usize| arrangement.in_table.binary_search(n).is_err();
        records = (0..plan.records.len()).filter(in_carrier).map(|n| plan.records[n]).collect();
        &records[..]
    };
    for ((((address, role), by), block), (position, &generation)) in
        carriers.zip(&mut plan.carriers).zip((0..).zip(&plan.generations))
    {
        let (room, payload) = match *role {
            Role::Carrier(c) => (arrangement.chosen[c].room, &arrangement.chosen[c].payload[..]),
            Role::Raw | Role::RecordsAlone => (RECORDS_ALONE, &[][..]),
        };
        let (records, others) = rest.split_at(room.min(rest.len()));
        rest = others;
        carrier::encode(
            &kernel.identity,
            &Header { generation, address, position, ..header },
            records,
            Payload { bytes: payload, domain: by.domain, prefix: by.prefix },
            block,
        )?;
    }
    assert!(rest.is_empty(), "every record is in a carrier or in the leftover table");
    Ok(())
}
