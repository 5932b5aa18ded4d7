//! Preparing a closed window: fingerprint, look up, place, and build the carriers.

use std::sync::Arc;

use onefold_core::{Block, Error, Fingerprint, Kind, Pba, Read, Result, VolumeId, compress::Lz4};

use super::{Engine, Snapshot, Stage, State};
use crate::{
    counters::add,
    format::{
        carrier::{self, Carrier, Header},
        page::{PhysicalEntry, Table},
        record::{Change, Record},
    },
    hash::MixMap,
    index::{hash_of, paged},
    place::Extent,
    scheme::thin,
    settings::PlantedBug,
    window::{Placed, Plan, Source, Window},
};

/// Zones' worth of blocks that are listed ahead, besides what may be unflushed.
const ZONES_AHEAD: u64 = 2;

/// What preparing keeps between windows.
#[derive(Default)]
pub(crate) struct Preparer {
    lz4: Lz4,
}

/// What becomes of one block of a window.
#[derive(Clone, Copy)]
enum Fate {
    /// It is stored already.
    Duplicate(Placed),
    /// It has the content of an earlier block of the same window.
    Repeats(usize),
    /// The new block number `.0` of the window.
    New(usize),
}

impl Engine {
    /// Prepares the oldest closed window: decides which blocks are duplicates, where the others go, and builds the carriers. Windows are
    /// prepared one at a time, in order. Returns whether there was one.
    ///
    /// # Errors
    /// `Corrupt` or `Io` when a table page that it needs can't be read; writes are stopped then.
    pub fn prepare_window(&self) -> Result<bool> {
        let mut preparer = self.preparing.lock();
        let window = {
            let mut state = self.state.lock();
            state.check_running()?;
            let Some(flight) = state.flights.iter_mut().find(|flight| flight.stage == Stage::Closed) else { return Ok(false) };
            flight.stage = Stage::Preparing;
            flight.window.clone()
        };
        let plan = self.plan(&mut preparer, &window).map_err(|e| self.stop(&e))?;
        let mut state = self.state.lock();
        if let Some(flight) = state.flights.iter_mut().find(|flight| flight.window.number == window.number) {
            flight.plan = Some(Arc::new(plan));
            flight.stage = Stage::Prepared;
        }
        Ok(true)
    }

    fn plan(&self, preparer: &mut Preparer, window: &Window) -> Result<Plan> {
        let slots: Vec<usize> = (0..window.slots()).filter(|&slot| window.blocks[slot].live).collect();
        let blocks: Vec<&Block> = slots.iter().map(|&slot| window.data(slot)).collect();
        let fingerprints = self.identity.fingerprinter.many(&blocks);
        let known: Vec<Option<Placed>> = slots.iter().map(|&slot| window.blocks[slot].placed).collect();
        let alone: Vec<bool> = slots.iter().map(|&slot| window.blocks[slot].moved).collect();

        loop {
            let (snapshot, releases) = {
                let state = self.state.lock();
                (state.snapshot.clone(), state.releases)
            };
            let wanted: Vec<Option<&Fingerprint>> =
                (0..slots.len()).map(|n| (known[n].is_none() && !alone[n]).then_some(&fingerprints[n])).collect();
            let mut stored = self.look_up(&snapshot, &wanted, &blocks)?;
            for (stored, known) in stored.iter_mut().zip(&known) {
                *stored = stored.or(*known);
            }
            let (fates, new) = fates(&fingerprints, &stored, &alone, &blocks);

            // The changes of the catalogue travel in carriers of their own.
            let changes: Vec<Box<Block>> = window.catalogue.iter().map(|change| change.encode()).collect();
            let records = window.ranges.len() + changes.len() + slots.len();
            let new_blocks: Vec<&Block> = new.iter().map(|&n| blocks[n]).collect();
            let mut chosen = Vec::new();
            for (n, change) in changes.iter().enumerate() {
                let payload = preparer.lz4.compress(change, 4096).unwrap_or_default().to_vec();
                chosen.push(thin::Chosen { block: new.len() + n, room: carrier::room_beside(payload.len()), payload });
            }
            let room: usize = chosen.iter().map(|chosen| chosen.room).sum();
            chosen.extend(thin::choose(&mut preparer.lz4, &new_blocks, records.saturating_sub(room)));
            chosen.sort_by_key(|chosen| chosen.block);
            let hidden = chosen.iter().map(|chosen| chosen.room).sum::<usize>().min(records);
            let alone_carriers = (records - hidden).div_ceil(thin::RECORDS_ALONE);

            let needed = (new.len() + changes.len() + alone_carriers) as u64;
            let mut state = self.ready(needed)?;
            if !Arc::ptr_eq(&state.snapshot, &snapshot) || state.releases != releases {
                continue;
            }
            let extents = state.allocator.place(needed);
            let placed: u64 = extents.iter().map(|extent| extent.blocks).sum();
            if placed < needed {
                return Err(Error::new(Kind::NoSpace, "reserved space is missing"));
            }
            state.unplaced -= (slots.len() + changes.len()) as u64;
            let addresses: Vec<Pba> = extents.iter().flat_map(|extent| (0..extent.blocks).map(|n| extent.at.plus(n))).collect();
            let mut plan = Plan { extents, hidden: hidden as u64, ..Plan::default() };
            let mut carries = vec![None; addresses.len()];
            for (c, chosen) in chosen.iter().enumerate() {
                carries[chosen.block] = Some(c);
            }
            carries[new.len() + changes.len()..].fill(Some(usize::MAX));

            for (n, (&pba, carries)) in addresses.iter().zip(&carries).enumerate() {
                let fingerprint = new.get(n).map(|&block| fingerprints[block]);
                state.allocator.note(pba, window.number, carries.is_some(), fingerprint);
                if let Some(fingerprint) = &fingerprint {
                    self.index.lock().insert(fingerprint, pba);
                }
                plan.sources.push(match carries {
                    None => Source::Raw(slots[new[n]] as u32),
                    Some(_) => {
                        plan.carriers.push(Block::zeroed());
                        Source::Carrier(plan.carriers.len() as u32 - 1)
                    }
                });
            }
            if self.settings.has(PlantedBug::EarlyReuse) {
                for &slot in &slots {
                    state.reuse_early(window.blocks[slot].volume, window.blocks[slot].lba);
                }
            }

            let mut number = 0;
            let mut add_record = |volume, lba, change| {
                plan.records.push(Record { volume, lba, change, timestamp: window.number.timestamp(number) });
                number += 1;
            };
            for (n, change) in changes.iter().enumerate() {
                let fingerprint = self.identity.fingerprinter.one(change);
                let change = Change::Catalogue { pba: addresses[new.len() + n], fingerprint };
                add_record(VolumeId(0), onefold_core::Lba(0), change);
            }
            for (volume, start, span) in window.ranges.iter() {
                add_record(volume, onefold_core::Lba(start), Change::Range { blocks: span.end - start, keep: span.keep });
            }
            for (n, &slot) in slots.iter().enumerate() {
                let place = |new: usize| (addresses[new], carries[new].is_some());
                let (pba, carried) = match fates[n] {
                    Fate::Duplicate(placed) => (placed.pba, placed.carried),
                    Fate::New(new) => place(new),
                    Fate::Repeats(first) => match fates[first] {
                        Fate::New(new) => place(new),
                        Fate::Duplicate(placed) => (placed.pba, placed.carried),
                        Fate::Repeats(_) => return Err(Error::new(Kind::Io, "a repeat of a repeat")),
                    },
                };
                if let Fate::Duplicate(placed) = fates[n] {
                    plan.pins.push(placed.pba);
                }
                plan.duplicates += u64::from(!matches!(fates[n], Fate::New(_)));
                let block = &window.blocks[slot];
                add_record(block.volume, block.lba, Change::Block { pba, carried, fingerprint: fingerprints[n] });
            }

            let header = Header {
                epoch: state.epoch,
                generation: 0,
                address: Pba(0),
                window: window.number,
                position: 0,
                carriers: plan.carriers.len() as u16,
                durable: state.durable,
            };
            let generations: Vec<u64> = addresses.iter().map(|&pba| state.allocator.generation(pba)).collect();
            // Pins count from here on: the plan is in the window before the lock is let go.
            if let Some(flight) = state.flights.iter_mut().find(|flight| flight.window.number == window.number) {
                flight.plan = Some(Arc::new(Plan { pins: plan.pins.clone(), ..Plan::default() }));
            }
            drop(state);

            let mut position = 0;
            let mut rest = &plan.records[..];
            for (n, carries) in carries.iter().enumerate() {
                let Some(c) = *carries else { continue };
                let (room, payload) = match chosen.get(c) {
                    Some(chosen) => (chosen.room, &chosen.payload[..]),
                    None => (thin::RECORDS_ALONE, &[][..]),
                };
                let (records, others) = rest.split_at(room.min(rest.len()));
                rest = others;
                let header = Header { generation: generations[n], address: addresses[n], position, ..header };
                carrier::encode(&self.identity, &header, records, payload, &mut plan.carriers[usize::from(position)]);
                position += 1;
            }
            assert!(rest.is_empty(), "every record is in a carrier");
            add(&self.counters.record_blocks, alone_carriers as u64);
            return Ok(plan);
        }
    }

    /// The state, with `needed` blocks ready to be placed: zones are opened and listed ahead, and if the listing has fallen behind, it is
    /// made durable here.
    fn ready(&self, needed: u64) -> Result<parking_lot::MutexGuard<'_, State>> {
        let ahead = ZONES_AHEAD * self.fixed.geometry.zone_blocks + needed;
        let unflushed = self.settings.unflushed_blocks as u64;
        loop {
            let mut state = self.state.lock();
            let zones = self.zones(state.zone_table);
            // A store that is small or nearly full can't keep as much open.
            let most = needed + state.allocator.free() / 8;
            if state.allocator.ready_blocks() < (ahead + unflushed / 2).min(most) {
                let opened = state.allocator.open_ahead((ahead + unflushed).min(most), &zones);
                // Admission has seen to it that what is needed now is open.
                if state.allocator.ready_blocks() < needed {
                    opened?;
                }
            }
            if self.settings.has(PlantedBug::UnlistedZone) {
                state.pretend_listed();
            }
            if state.allocator.can_place(needed) {
                return Ok(state);
            }
            if !state.allocator.list.is_pending() {
                return Err(Error::new(Kind::NoSpace, "no zone can be opened"));
            }
            drop(state);
            self.flush_zone_list()?;
        }
    }

    /// For each fingerprint: the block that has it, if one is stored. Table pages of the whole window are read together.
    fn look_up(&self, snapshot: &Snapshot, wanted: &[Option<&Fingerprint>], blocks: &[&Block]) -> Result<Vec<Option<Placed>>> {
        let mut candidates: Vec<(usize, Pba)> = Vec::new();
        let mut on_disk: Vec<(usize, u64)> = Vec::new();
        {
            let index = self.index.lock();
            let mut found = Vec::new();
            for (n, fingerprint) in wanted.iter().enumerate().filter_map(|(n, wanted)| wanted.map(|wanted| (n, wanted))) {
                if index.candidates(fingerprint, &mut found) {
                    on_disk.push((n, hash_of(fingerprint)));
                }
                candidates.extend(found.drain(..).map(|pba| (n, pba)));
            }
        }
        self.candidates_on_disk(snapshot, &on_disk, &mut candidates);
        let mut stored = vec![None; wanted.len()];
        if candidates.is_empty() {
            return Ok(stored);
        }
        // Blocks placed since the last checkpoint are known in memory; the others are in the physical table.
        let mut entries: Vec<Option<(Fingerprint, bool)>> = {
            let state = self.state.lock();
            candidates.iter().map(|&(_, pba)| state.allocator.fresh(pba)).collect()
        };
        let per_leaf = Table::Physical.per_leaf();
        let mut leaves: Vec<u64> =
            candidates.iter().zip(&entries).filter(|(_, entry)| entry.is_none()).map(|(&(_, pba), _)| pba.0 / per_leaf).collect();
        leaves.sort_unstable();
        leaves.dedup();
        let root = &snapshot.state.physical;
        // A page that can't be read costs duplicates, not the write.
        let pages = self
            .pages
            .leaves(Table::Physical, 0, root, &leaves, true)
            .unwrap_or_else(|_| leaves.iter().map(|&leaf| self.pages.leaf(Table::Physical, 0, root, leaf).unwrap_or_default()).collect());
        for (&(_, pba), entry) in candidates.iter().zip(&mut entries).filter(|(_, entry)| entry.is_none()) {
            let at = leaves.partition_point(|&leaf| leaf < pba.0 / per_leaf);
            if let Some((_, page)) = &pages[at] {
                let found = PhysicalEntry::get(page, pba.0 % per_leaf);
                if found.references > 0 || self.settings.has(PlantedBug::DuplicateOntoFree) {
                    *entry = Some((found.fingerprint, found.carried));
                }
            }
        }
        for (&(n, pba), entry) in candidates.iter().zip(entries) {
            let (Some((fingerprint, carried)), None) = (entry, stored[n]) else { continue };
            if Some(&fingerprint) == wanted[n] && (!self.fixed.verify_bytes || self.has_bytes(pba, carried, blocks[n])?) {
                stored[n] = Some(Placed { pba, carried });
            }
        }
        Ok(stored)
    }

    /// Adds what the index on disk knows; its pages are read together. One that can't be read knows nothing.
    fn candidates_on_disk(&self, snapshot: &Snapshot, hashes: &[(usize, u64)], candidates: &mut Vec<(usize, Pba)>) {
        let bits = snapshot.state.index_bits;
        let mut numbers: Vec<u64> = hashes.iter().map(|&(_, hash)| paged::page_of(hash, bits)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let Ok(pages) = self.pages.leaves(Table::Index, 0, &snapshot.state.index, &numbers, true) else { return };
        for &(n, hash) in hashes {
            let at = numbers.partition_point(|&number| number < paged::page_of(hash, bits));
            if let Some((_, page)) = &pages[at] {
                candidates.extend(paged::entries(page).filter(|entry| entry.hash == hash).map(|entry| (n, entry.pba)));
            }
        }
    }

    /// The stored block that has this content.
    pub(crate) fn stored(&self, fingerprint: &Fingerprint, block: &Block) -> Result<Option<Placed>> {
        let snapshot = self.state.lock().snapshot.clone();
        Ok(self.look_up(&snapshot, &[Some(fingerprint)], &[block])?.pop().flatten())
    }

    /// True when a stored block has exactly these bytes. One that can't be read or expanded has not.
    fn has_bytes(&self, pba: Pba, carried: bool, block: &Block) -> Result<bool> {
        let in_flight = {
            let state = self.state.lock();
            state.flights.iter().find_map(|flight| {
                let plan = flight.plan.as_ref()?;
                plan.written(&flight.window, pba).map(|block| Box::new(Block::clone(block)))
            })
        };
        let raw = match in_flight {
            Some(raw) => raw,
            None => {
                let mut buffer = Block::zeroed_vec(1);
                let mut read = [Read::new(pba, &mut buffer)];
                self.disk.read(&mut read);
                let [read] = read;
                if read.result.is_err() {
                    return Ok(false);
                }
                Box::new(buffer.swap_remove(0))
            }
        };
        if !carried {
            return Ok(raw.0 == block.0);
        }
        let mut expanded = Block::zeroed();
        let whole = Carrier::shape(&self.identity, &raw).is_some_and(|carrier| carrier.expand(&mut expanded).is_ok());
        Ok(whole && expanded.0 == block.0)
    }
}

/// Decides for each block: duplicate, repeat of an earlier one of the window, or new. Also gives the new ones.
fn fates(fingerprints: &[Fingerprint], stored: &[Option<Placed>], alone: &[bool], blocks: &[&Block]) -> (Vec<Fate>, Vec<usize>) {
    let mut first: MixMap<Fingerprint, usize> = MixMap::default();
    let mut fates = Vec::with_capacity(fingerprints.len());
    let mut new = Vec::new();
    for (n, fingerprint) in fingerprints.iter().enumerate() {
        let fate = match stored[n] {
            Some(placed) => Fate::Duplicate(placed),
            None if alone[n] => Fate::New(new.len()),
            None => match first.get(fingerprint) {
                Some(&earlier) if blocks[earlier].0 == blocks[n].0 => Fate::Repeats(earlier),
                _ => Fate::New(new.len()),
            },
        };
        if let Fate::New(_) = fate {
            new.push(n);
            first.entry(*fingerprint).or_insert(n);
        }
        fates.push(fate);
    }
    (fates, new)
}

impl Plan {
    /// The blocks that were handed out.
    pub(crate) fn allocated(&self) -> &[Extent] {
        &self.extents
    }
}

impl State {
    #[cfg(feature = "planted-bugs")]
    fn reuse_early(&mut self, volume: VolumeId, lba: onefold_core::Lba) {
        use crate::format::page::MapEntry;
        if let Some(MapEntry::Block { pba, .. }) = self.active.find(volume, lba) {
            self.allocator.reuse_early(pba);
        }
    }

    #[cfg(feature = "planted-bugs")]
    fn pretend_listed(&mut self) {
        self.allocator.list.pretend_durable();
    }

    #[cfg(not(feature = "planted-bugs"))]
    #[allow(clippy::unused_self)]
    fn reuse_early(&mut self, _: VolumeId, _: onefold_core::Lba) {}

    #[cfg(not(feature = "planted-bugs"))]
    #[allow(clippy::unused_self)]
    fn pretend_listed(&mut self) {}
}
