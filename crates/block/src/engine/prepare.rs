//! Preparing a closed window: fingerprint, look up, place, and build the carriers.

use std::sync::Arc;

use onefold_core::{Block, Error, Fingerprint, Kind, Lba, Pba, Result, VolumeId};

#[cfg(feature = "planted-bugs")]
use super::broken;
use super::lookup::{Sought, look_up};
use crate::{
    coverage::Mark,
    engine::zone_list_flush::flush_zone_list,
    format::{
        FIRST_DOMAIN,
        carrier::Header,
        record::{Change, Record, WindowNumber},
    },
    hash::MixMap,
    index::hash_of,
    kernel::{Kernel, State},
    overlay::Tables,
    rules::Rule,
    scheme::verbs::{Arrangement, Decided, Role, Scheme},
    space::Extent,
    window::{Placed, Plan, SealedBy, Source, Window},
};

/// Zones' worth of blocks that are listed ahead, besides what may be unflushed.
const ZONES_AHEAD: u64 = 2;

/// The decision about one block of a window.
#[derive(Clone, Copy)]
enum Fate {
    /// The content is stored already.
    Duplicate(Placed),
    /// An earlier block of the same window has the same content.
    Repeats(usize),
    /// The new block number `.0` of the window.
    New(usize),
}

/// Prepares the oldest closed window: decides which blocks are duplicates, where the others go,
/// and builds the carriers. Windows are prepared one at a time, in order. Returns whether
/// there was one.
pub(crate) fn prepare_window(kernel: &Kernel, scheme: &dyn Scheme) -> Result<bool> {
    let _preparing = kernel.preparing.lock();
    let window = {
        let mut state = kernel.state.lock();
        state.check_running()?;
        let Some(window) = state.windows.begin_preparing() else { return Ok(false) };
        window
    };
    let plan = plan(kernel, scheme, &window).map_err(|e| kernel.stop(&e))?;
    kernel.state.lock().windows.prepared(window.number, plan);
    Ok(true)
}

fn plan(kernel: &Kernel, scheme: &dyn Scheme, window: &Window) -> Result<Plan> {
    let content = Content::of(kernel, window)?;
    loop {
        let (tables, releases) = {
            let state = kernel.state.lock();
            (state.overlays.tables().clone(), state.releases.count())
        };
        let decision = decide(kernel, scheme, window, &content, &tables)?;
        let mut state = ready(kernel, scheme, decision.arrangement.needed())?;
        // Blocks that were made free meanwhile may be among the duplicates: decide anew.
        if !Arc::ptr_eq(state.overlays.tables(), &tables) || state.releases.count() != releases {
            continue;
        }
        let (mut plan, header) = place(kernel, &mut state, window, &content, &decision)?;
        drop(state);
        scheme.seal(kernel, &mut plan, &decision.arrangement, header)?;
        return Ok(plan);
    }
}

/// Looks up duplicates, and chooses carriers for the records.
fn decide(
    kernel: &Kernel,
    scheme: &dyn Scheme,
    window: &Window,
    content: &Content<'_>,
    tables: &Tables,
) -> Result<Decision> {
    let wanted: Vec<Option<Sought<'_>>> = content
        .slots
        .iter()
        .zip(content.sought())
        .zip(&content.shared)
        .map(|((&slot, sought), &shared)| {
            let block = &window.blocks[slot];
            (shared && block.placed.is_none() && !block.moved).then_some(sought)
        })
        .collect();
    let mut stored = look_up(kernel, tables, &wanted)?;
    #[cfg(feature = "planted-bugs")]
    if !kernel.keeps(Rule::DuplicatesWithinDomain) {
        broken::look_elsewhere(kernel, tables, &wanted, &mut stored)?;
    }
    #[cfg(feature = "planted-bugs")]
    if !kernel.keeps(Rule::DuplicatesByNewestKey) {
        broken::look_before(kernel, tables, &wanted, &mut stored)?;
    }
    for (stored, &slot) in stored.iter_mut().zip(&content.slots) {
        *stored = stored.or(window.blocks[slot].placed);
    }
    let (fates, new) = fates(window, content, &stored);

    let arrangement = scheme.lay_out(
        kernel,
        window,
        &Decided { slots: &content.slots, new: new.iter().map(|&n| content.blocks[n]).collect() },
    );
    Ok(Decision { fates, new, arrangement })
}

/// Takes physical blocks, records their new contents, and writes the records. From here on the
/// window's pins count.
fn place(
    kernel: &Kernel,
    state: &mut State,
    window: &Window,
    content: &Content<'_>,
    decision: &Decision,
) -> Result<(Plan, Header)> {
    let Decision { new, arrangement, .. } = decision;
    let Arrangement { roles, order, .. } = arrangement;
    let extents = arrangement
        .lanes
        .iter()
        .flat_map(|&(lane, blocks)| state.allocator.place(blocks, lane))
        .collect();
    let mut plan = Plan { extents, hidden: arrangement.hidden as u64, ..Plan::default() };
    let mut addresses = vec![Pba(0); roles.len()];
    let mut placed = 0;
    for (pba, &n) in plan.addresses().zip(order) {
        addresses[n] = pba;
        placed += 1;
    }
    if placed < arrangement.needed() {
        return Err(Error::new(Kind::NoSpace, "reserved space is missing"));
    }
    for &n in order {
        let (pba, role) = (addresses[n], roles[n]);
        let fingerprint = new.get(n).map(|&block| content.fingerprints[block]);
        if kernel.identity.sealing.is_some() {
            let change = || arrangement.changes.get(n.checked_sub(new.len())?).copied();
            plan.seals.push(SealedBy {
                domain: new.get(n).map_or(FIRST_DOMAIN, |&block| content.domains[block]),
                prefix: fingerprint.or_else(change).map_or(0, |found| found.prefix()),
            });
        }
        let carrier = !matches!(role, Role::Raw);
        state.allocator.data.note(pba, window.number, carrier, fingerprint);
        if let Some(fingerprint) = &fingerprint {
            kernel.index.lock().insert(hash_of(fingerprint.prefix()), pba);
        }
        if carrier {
            plan.sources.push(Source::Carrier(plan.carriers.len() as u32));
            plan.carriers.push(Block::zeroed());
            plan.generations.push(state.allocator.data.generation(pba));
        } else {
            plan.sources.push(Source::Raw(content.slots[new[n]] as u32));
        }
    }
    #[cfg(feature = "planted-bugs")]
    if !kernel.keeps(Rule::ReuseAfterRelease) {
        broken::reuse_early(state, window, &content.slots);
    }
    decision.records(window, content, &addresses, &mut plan)?;
    plan.pins.extend(arrangement.pinned.iter().map(|&n| addresses[n]));
    let blocks = (content.slots.len() + window.catalogue.len()) as u64;
    state.windows.placed(window.number, blocks, plan.pins.clone());
    let carriers = plan.carriers.len() as u16;
    let (epoch, durable) = (state.epoch, state.windows.durable());
    let before = WindowNumber(0);
    let header = Header {
        epoch,
        generation: 0,
        address: Pba(0),
        window: window.number,
        before,
        position: 0,
        carriers,
        durable,
    };
    Ok((plan, header))
}

/// The state, with `needed` blocks ready to be placed: zones are opened and listed ahead, and
/// if the listing has fallen behind, it is made durable here.
fn ready<'k>(
    kernel: &'k Kernel,
    scheme: &dyn Scheme,
    needed: u64,
) -> Result<parking_lot::MutexGuard<'k, State>> {
    let ahead = ZONES_AHEAD * kernel.geometry().zone_blocks + needed;
    let unflushed = kernel.settings.unflushed_blocks as u64;
    loop {
        let mut state = kernel.state.lock();
        let zones = kernel.zones(state.releases.zone_table());
        // A store that is small or nearly full can't keep as much open.
        let most = needed + state.allocator.free() / 8;
        if state.allocator.data.ready_blocks() < (ahead + unflushed / 2).min(most) {
            let opened = state.allocator.open_ahead((ahead + unflushed).min(most), &zones);
            // Admission has made sure that the zones needed now are open.
            if state.allocator.data.ready_blocks() < needed {
                opened?;
            }
        }
        #[cfg(feature = "planted-bugs")]
        if !kernel.keeps(Rule::ZoneListedBeforeUse) {
            state.allocator.list.pretend_durable();
        }
        if state.allocator.can_place(needed) {
            return Ok(state);
        }
        if !state.allocator.list.is_pending() {
            return Err(Error::new(Kind::NoSpace, "no zone can be opened"));
        }
        drop(state);
        kernel.coverage.hit(Mark::ListFlushed);
        flush_zone_list(kernel, scheme)?;
    }
}

/// The content of a window: its live blocks with their fingerprints, and its changes of the
/// catalogue.
struct Content<'a> {
    slots: Vec<usize>,
    blocks: Vec<&'a Block>,
    /// The domain of each.
    domains: Vec<u32>,
    fingerprints: Vec<Fingerprint>,
    /// False for critical blocks: they are no duplicates, and no duplicates of theirs are found.
    shared: Vec<bool>,
}

impl<'a> Content<'a> {
    fn of(kernel: &Kernel, window: &'a Window) -> Result<Content<'a>> {
        let mut slots: Vec<usize> =
            (0..window.slots()).filter(|&slot| window.blocks[slot].live).collect();
        // Blocks get places in this order: what will be read together lies together.
        slots.sort_by_key(|&slot| (window.blocks[slot].volume, window.blocks[slot].lba));
        let blocks: Vec<&Block> = slots.iter().map(|&slot| window.data(slot)).collect();
        let domains: Vec<u32> = slots.iter().map(|&slot| window.blocks[slot].kept.domain).collect();
        let mut fingerprints = kernel.identity.fingerprints(&domains, &blocks)?;
        let shares = |&slot: &usize| {
            !(window.blocks[slot].kept.no_dedup && kernel.keeps(Rule::NoDedupNotShared))
        };
        let shared: Vec<bool> = slots.iter().map(shares).collect();
        for (fingerprint, _) in fingerprints.iter_mut().zip(&shared).filter(|(_, shared)| !**shared)
        {
            *fingerprint = fingerprint.unshared();
        }
        Ok(Content { slots, blocks, domains, fingerprints, shared })
    }

    /// What is looked for among stored blocks, for each.
    fn sought(&self) -> impl Iterator<Item = Sought<'_>> {
        let all = self.domains.iter().zip(&self.fingerprints).zip(&self.blocks);
        all.map(|((&domain, fingerprint), &block)| Sought {
            domain,
            fingerprint,
            block: Some(block),
        })
    }
}

/// The decisions about a window before its blocks have addresses.
struct Decision {
    /// For each live block.
    fates: Vec<Fate>,
    /// The live blocks that are new.
    new: Vec<usize>,
    arrangement: Arrangement,
}

impl Decision {
    /// Where a live block of the window is.
    fn placed(&self, block: usize, addresses: &[Pba]) -> Result<Placed> {
        match self.fates[block] {
            Fate::Duplicate(placed) => Ok(placed),
            Fate::New(new) => Ok(Placed {
                pba: addresses[new],
                carried: !matches!(self.arrangement.roles[new], Role::Raw),
            }),
            Fate::Repeats(first) if !matches!(self.fates[first], Fate::Repeats(_)) => {
                self.placed(first, addresses)
            }
            Fate::Repeats(_) => Err(Error::new(Kind::Io, "a repeat of a repeat")),
        }
    }

    /// The records of the window: changes of the catalogue, then ranges, then blocks, which are
    /// newer than the ranges that cover them.
    fn records(
        &self,
        window: &Window,
        content: &Content<'_>,
        addresses: &[Pba],
        plan: &mut Plan,
    ) -> Result<()> {
        let mut add_record = |volume, lba, change| {
            let timestamp = window.number.timestamp(plan.records.len() as u64);
            plan.records.push(Record { volume, lba, change, timestamp });
        };
        for (&fingerprint, &pba) in
            self.arrangement.changes.iter().zip(&addresses[self.new.len()..])
        {
            add_record(VolumeId(0), Lba(0), Change::Catalogue { pba, fingerprint });
        }
        for (volume, start, span) in window.ranges.iter() {
            add_record(
                volume,
                Lba(start),
                Change::Range { blocks: span.end - start, keep: span.keep },
            );
        }
        for (n, &slot) in content.slots.iter().enumerate() {
            let Placed { pba, carried } = self.placed(n, addresses)?;
            if let Fate::Duplicate(_) = self.fates[n] {
                plan.pins.push(pba);
            }
            plan.duplicates += u64::from(!matches!(self.fates[n], Fate::New(_)));
            let block = &window.blocks[slot];
            add_record(
                block.volume,
                block.lba,
                Change::Block { pba, carried, fingerprint: content.fingerprints[n] },
            );
        }
        Ok(())
    }
}

/// Decides for each block: duplicate, repeat of an earlier one of the window, or new. Also gives
/// the new ones.
fn fates(
    window: &Window,
    content: &Content<'_>,
    stored: &[Option<Placed>],
) -> (Vec<Fate>, Vec<usize>) {
    let mut first: MixMap<Fingerprint, usize> = MixMap::default();
    let mut fates = Vec::with_capacity(stored.len());
    let mut new = Vec::new();
    for (n, (fingerprint, stored)) in content.fingerprints.iter().zip(stored).enumerate() {
        let moved = window.blocks[content.slots[n]].moved;
        let fate = match (stored, first.get(fingerprint)) {
            (Some(placed), _) => Fate::Duplicate(*placed),
            (None, Some(&earlier))
                if !moved
                    && content.shared[n]
                    && content.domains[earlier] == content.domains[n]
                    && content.blocks[earlier].0 == content.blocks[n].0 =>
            {
                Fate::Repeats(earlier)
            }
            _ => Fate::New(new.len()),
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

#[cfg(test)]
mod tests {
    use std::{
        sync::{Arc, atomic::Ordering},
        time::Duration,
    };

    use onefold_backend::MemoryDisk;
    use onefold_core::{
        Algorithm, BLOCK_BYTES, Block, BlockRead, BlockRef, Class, Clock, Disk, Lba, Read, Run,
        VolumeId,
    };

    use crate::{
        Engine, Format, Settings,
        format::{
            geometry::SUPERBLOCKS,
            page::{MapEntry, Table},
            superblock::{Found, Superblock},
        },
    };

    struct Noon;

    impl Clock for Noon {
        fn now(&self) -> Duration {
            Duration::from_secs(12 * 3600)
        }
    }

    /// A store with unkeyed SHA-256 as older programs made it: it says that equal fingerprints are
    /// equal blocks.
    fn older_store() -> Arc<MemoryDisk> {
        let disk = Arc::new(MemoryDisk::new(4096));
        let format = Format {
            algorithm: Algorithm::Sha256,
            verify_bytes: true,
            zone_blocks: 64,
            ..Format::new([1; 16], [2; 32], 4096)
        };
        Engine::format(&*disk, &format).unwrap();
        for (place, at) in (0..).zip(SUPERBLOCKS) {
            let mut blocks = Block::zeroed_vec(1);
            disk.read(&mut [Read::new(at, &mut blocks)]);
            let Found::Good(mut superblock) = Superblock::decode(&blocks[0], place) else {
                continue;
            };
            superblock.fixed.verify_bytes = false;
            disk.write(&[Run {
                at,
                blocks: &[BlockRef { block: &superblock.encode(place), class: Class::Super }],
            }])
            .unwrap();
        }
        disk
    }

    /// The physical blocks of a leaf, by address, as of the last checkpoint.
    fn places(engine: &Engine, volume: VolumeId) -> Vec<u64> {
        let tables = engine.kernel.tables();
        let map = &tables.volumes[&volume];
        let found = engine.kernel.pages.leaf(Table::Map, map.family(), &map.map, 0).unwrap();
        let (_, page) = found.unwrap();
        let entries = (0..Table::Map.per_leaf()).filter_map(|slot| MapEntry::get(&page, slot));
        let place =
            |entry| if let MapEntry::Block { pba, .. } = entry { Some(pba.0) } else { None };
        entries.filter_map(place).collect()
    }

    #[test]
    fn rule_19_the_blocks_of_a_window_lie_in_the_order_of_volumes_and_addresses() {
        let disk = Arc::new(MemoryDisk::new(4096));
        Engine::format(&*disk, &Format { zone_blocks: 256, ..Format::new([1; 16], [2; 32], 4096) })
            .unwrap();
        let settings = Settings {
            window_blocks: 128,
            unflushed_blocks: 256,
            ..Settings::for_memory(32 << 20)
        };
        let engine = Engine::open(disk, Arc::new(Noon), settings).unwrap();
        let volumes = ["a", "b"].map(|name| engine.create_volume(name, 64).unwrap().0);
        engine.flush().unwrap();
        // One window, in an order that scatters neighbours, of two volumes that take turns.
        for n in 0..64u64 {
            for (turn, volume) in (0..).zip(volumes) {
                let lba = (n * 11 + turn) % 32;
                let mut block = [0; BLOCK_BYTES];
                let mut state = (n % 32 * 2 + turn + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                block.fill_with(|| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (state >> 56) as u8
                });
                engine.write(volume, lba * BLOCK_BYTES as u64, &block).unwrap();
            }
        }
        engine.flush().unwrap();
        engine.checkpoint().unwrap();
        let all: Vec<u64> = volumes.iter().flat_map(|&volume| places(&engine, volume)).collect();
        assert_eq!(all.len(), 64);
        assert!(all.is_sorted(), "{all:?}");
        let runs = 1 + all.windows(2).filter(|pair| pair[1] != pair[0] + 1).count();
        assert!(runs <= 3, "{runs} runs");
    }

    #[test]
    fn rule_18_a_collision_of_an_unkeyed_fingerprint_shares_nothing() {
        let settings =
            Settings { window_blocks: 32, unflushed_blocks: 256, ..Settings::for_memory(32 << 20) };
        let mut engine = Engine::open(older_store(), Arc::new(Noon), settings).unwrap();
        assert!(!engine.fixed().verify_bytes, "the store is as it was");
        // All 128 bits of any two fingerprints agree, as those of two blocks that an attacker has
        // found.
        engine.kernel.identity.fingerprinter =
            engine.kernel.identity.fingerprinter.clone().shortened(0);
        let (volume, _) = engine.create_volume("v", 64).unwrap();
        for (lba, byte) in [(0, 1), (1, 2), (2, 1)] {
            engine.write(volume, lba * BLOCK_BYTES as u64, &[byte; BLOCK_BYTES]).unwrap();
            engine.flush().unwrap();
        }
        let mut found = Block::zeroed_vec(3);
        engine.read(volume, &mut [BlockRead { first: Lba(0), into: &mut found, result: Ok(()) }]);
        assert_eq!(
            found.iter().map(|block| block.0[0]).collect::<Vec<_>>(),
            [1, 2, 1],
            "each block reads as it was written"
        );
        let shared = engine.kernel.counters.duplicate_blocks.load(Ordering::Relaxed);
        assert_eq!(shared, 1, "equal bytes are shared still");
    }
}
