//! Opening a store, after a clean shutdown or a crash (ThinDedup II-B, with the rules that make it safe).
//!
//! 1. *flush*: what is read from here on is on the medium.
//! 2. Superblock, zone list, and the carriers in the listed zones.
//! 3. Records up to the durable window are believed. A newer one is believed only if the block that it names hashes to its fingerprint;
//!    otherwise the mapping before it stands, whose block was never reused, since reuse needs a checkpoint that holds a newer record.
//! 4. Believed newer records are appended again, in their order, in windows of the next epoch; *flush*.
//! 5. *superblock* with the next epoch and the cut: nothing newer than the durable window is looked at again; *flush*; its twin; *flush*.
//! 6. The records stay in the active overlay; the store serves.
//!
//! | crash after | what is found |
//! |---|---|
//! | 1–3 | the same as before |
//! | 4 | the old superblock: carriers of the next epoch are ignored, and the old ones are all still there, since nothing they name is free |
//! | 5 | the new superblock: the appended windows are durable and complete |

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use onefold_core::{Block, Clock, Disk, Error, Fingerprint, Kind, Lba, Pba, Read, Result, VolumeId};
use parking_lot::Mutex;

use super::{
    Engine, Snapshot, State, VolumeState,
    admission::reserve,
    checkpoint::{Checkpointer, Reason, apply_catalogue},
    prepare::Preparer,
};
use crate::{
    counters::Counters,
    format::{
        Identity,
        carrier::{Carrier, Header, encode},
        catalogue::{CatalogueChange, Discard, VOLUME_BLOCKS_MAX, Volume},
        geometry::{Geometry, SUPERBLOCKS},
        page::Table,
        record::{Change, Record, WindowNumber},
        superblock::{self, CUTS_MAX, Cut, Superblock},
        zone_list::{Entry, Page},
    },
    index::Index,
    overlay::Overlay,
    place::{Allocator, zone_list::ZoneList},
    scheme::thin,
    settings::{Format, PlantedBug, Settings},
    table::Pages,
    window::{
        Plan, Source, Window,
        ranges::{Ranges, Span},
    },
};

/// Blocks read at once while zones are scanned.
const SCAN_BLOCKS: usize = 256;

/// Reads of a scan that are under way together.
const SCAN_READS: usize = 8;

/// Carriers of a full zone that lie this close are read in one go.
const SCAN_GAP: usize = 8;

/// Reads the newer of the two superblocks of a disk. One is enough: until both places hold a version, nothing of the one before is released.
pub(crate) fn read_superblock(disk: &dyn Disk) -> Result<Superblock> {
    let mut found = Vec::new();
    let mut failed = None;
    for (place, at) in (0..).zip(SUPERBLOCKS) {
        let mut buffer = Block::zeroed_vec(1);
        let mut read = [Read::new(at, &mut buffer)];
        if at.0 >= disk.blocks() {
            found.push(superblock::Found::Foreign);
            continue;
        }
        disk.read(&mut read);
        let [read] = read;
        found.push(match read.result {
            Ok(()) => Superblock::decode(&buffer[0], place),
            Err(e) => {
                failed = Some(e);
                superblock::Found::Damaged
            }
        });
    }
    let second = found.pop().unwrap_or(superblock::Found::Foreign);
    let first = found.pop().unwrap_or(superblock::Found::Foreign);
    superblock::choose(first, second).map_err(|e| match failed {
        Some(cause) if e.kind() == Kind::Corrupt => e.caused_by(cause),
        _ => e,
    })
}

/// A carrier found by the scan.
pub(super) struct Found {
    pub(super) header: Header,
    pub(super) records: Vec<Record>,
    /// An earlier recovery, or one that crashed, made it count for nothing.
    void: bool,
}

impl Engine {
    /// Makes an empty store on a disk. Durable on return.
    ///
    /// # Errors
    /// `InvalidInput` for impossible choices, or a disk that is too small; `Io`.
    pub fn format(disk: &dyn Disk, format: &Format) -> Result<()> {
        use onefold_core::{BlockRef, Class, Run};
        let fixed = format.fixed()?;
        let geometry = fixed.geometry.checked(disk.blocks())?;
        let identity = Identity::new(fixed.id, fixed.secret, fixed.algorithm);
        // With the reserve, so that a store whose host is full takes trims.
        disk.allocate(Pba(0), geometry.start_of(geometry.first_zone()).0 + reserve(&geometry).next_multiple_of(geometry.zone_blocks))?;
        let write = |at: Pba, block: &Block, class| {
            let refs = [BlockRef { block, class }];
            disk.write(&[Run { at, blocks: &refs }])
        };
        // A store that was here before must not shine through: its superblocks go first.
        for at in SUPERBLOCKS {
            write(at, &Block::zeroed(), Class::Super)?;
        }
        disk.flush()?;
        for page in 0..geometry.list_pages {
            for (sequence, at) in (0..).zip(geometry.list_page(page)) {
                write(at, &Page { sequence, ..Page::empty() }.encode(&identity, page, at.0), Class::Table)?;
            }
        }
        disk.flush()?;
        let state = superblock::State {
            sequence: 1,
            epoch: 1,
            clean: true,
            next_volume: 1,
            high_water: geometry.first_zone().0,
            next_generation: 1,
            ..superblock::State::default()
        };
        for sequence in [0, 1] {
            let superblock = Superblock { fixed: fixed.clone(), state: superblock::State { sequence, ..state.clone() } };
            let place = (sequence % 2) as u32;
            write(SUPERBLOCKS[place as usize], &superblock.encode(place), Class::Super)?;
        }
        disk.flush()
    }

    /// Opens the store on a disk, recovering what a crash left. Everything that was acknowledged as durable is there.
    ///
    /// # Errors
    /// `InvalidInput` (not a store), `Unsupported` (too new), `Corrupt` (damaged; `check --repair` may help), `Io`.
    pub fn open(disk: Arc<dyn Disk>, clock: Arc<dyn Clock>, settings: Settings) -> Result<Engine> {
        if !settings.has(PlantedBug::RecoveryUnflushed) {
            disk.flush()?;
        }
        let superblock = read_superblock(&*disk)?;
        superblock.fixed.geometry.checked(disk.blocks()).map_err(|_| {
            let (has, needs) = (disk.blocks(), superblock.fixed.geometry.blocks());
            Error::new(Kind::Corrupt, format!("the store is cut off: it needs {needs} blocks, but the disk has only {has}"))
        })?;
        let engine = Engine::unrecovered(disk, clock, settings, superblock)?;
        engine.recover()?;
        Ok(engine)
    }

    /// The engine as of its last checkpoint, with nothing recovered.
    fn unrecovered(disk: Arc<dyn Disk>, clock: Arc<dyn Clock>, settings: Settings, superblock: Superblock) -> Result<Engine> {
        let Superblock { fixed, state } = superblock;
        let index_entries = state.index_entries;
        let identity = settings.identity(&fixed);
        let compare = !settings.has(PlantedBug::ChecksumIgnored);
        let pages = Pages::new(disk.clone(), identity.clone(), settings.page_memory, compare);
        let snapshot = load_snapshot(&pages, state)?;
        let volumes = visible(&snapshot.volumes);
        let list = ZoneList::new(fixed.geometry, Vec::new(), snapshot.state.next_generation);
        let allocator = Allocator::new(fixed.geometry, &snapshot.state, fixed.grow, list);
        let state = State {
            open: Window::new(snapshot.state.last_window.next()),
            flights: Default::default(),
            active: Overlay::default(),
            frozen: None,
            next_volume: snapshot.state.next_volume,
            durable: snapshot.state.durable,
            epoch: snapshot.state.epoch,
            zone_table: snapshot.state.zones,
            snapshot: Arc::new(snapshot),
            volumes,
            allocator,
            built: false,
            unplaced: 0,
            deferred: 0,
            spilling_pages: 0,
            stopped: None,
            checkpoint_wanted: false,
            flush_wanted: false,
            flushes_begun: 0,
            flushes_done: 0,
            releasing: false,
            releases: 0,
            pool: Vec::new(),
        };
        Ok(Engine {
            index: Mutex::new(Index::new(settings.index_memory, index_entries)),
            disk,
            clock,
            fixed,
            identity,
            settings,
            pages,
            state: Mutex::new(state),
            preparing: Mutex::new(Preparer::default()),
            settling: Mutex::new(()),
            checkpointing: Mutex::new(Checkpointer::default()),
            compacting: Mutex::default(),
            counters: Counters::default(),
            lost: Mutex::default(),
            index_cursor: std::sync::atomic::AtomicU64::new(0),
            filter_cursor: std::sync::atomic::AtomicU64::new(0),
        })
    }

    /// Steps 2 to 6.
    fn recover(&self) -> Result<()> {
        let snapshot = self.state.lock().snapshot.clone();
        let geometry = self.fixed.geometry;
        let mut pages = self.read_zone_list()?;
        self.heal_zone_list(&mut pages)?;
        let told = pages.iter().map(|page| page.durable).max().unwrap_or_default();
        let entries = newest_entries(geometry, &pages)?;
        let (void, mut carriers): (Vec<Found>, Vec<Found>) =
            self.scan(&entries, &snapshot.state)?.into_iter().partition(|found| found.void);

        let committed = snapshot.state.committed;
        let durable = carriers.iter().map(|found| found.header.durable).chain([told, snapshot.state.durable]).max().unwrap_or_default();
        // Void carriers count here: those of a recovery that crashed bear the epoch that this one will bring, so its windows must be others.
        let windows = carriers.iter().chain(&void).map(|found| found.header.window);
        let seen = windows.chain([durable, snapshot.state.last_window]).max().unwrap_or_default();
        let lost = self.judge_missing(&mut carriers, &snapshot.state, durable)?;

        let mut records: Vec<Record> = carriers.iter().flat_map(|found| found.records.iter().copied()).collect();
        records.sort_unstable_by_key(|record| record.timestamp);
        let newer = records.split_off(records.partition_point(|record| WindowNumber::of(record.timestamp) <= durable));
        let believed = self.whole_story(&snapshot, &records, self.believe(newer)?)?;
        let mut believed = newest_alone(believed);
        if !lost.is_empty() {
            self.clip(&snapshot, &mut records, &mut believed)?;
        }

        // Everything that a carrier or a believed record names is in use.
        {
            let mut state = self.state.lock();
            let next_generation = pages.iter().flat_map(|page| page.entries.iter().flatten()).map(|entry| entry.generation + 1);
            let next_generation = next_generation.chain([snapshot.state.next_generation]).max().unwrap_or(1);
            let mut list = ZoneList::new(geometry, pages, next_generation);
            // Of the others the checkpoint holds all; they are as good as new.
            let named = records.iter().chain(&believed).filter_map(|record| match record.change {
                Change::Block { pba, .. } => Some(pba),
                _ => None,
            });
            let needed: BTreeSet<_> =
                carriers.iter().map(|found| found.header.address).chain(named).map(|pba| geometry.zone_of(pba)).collect();
            let entries: Vec<Entry> =
                entries.into_iter().filter(|entry| entry.carriers.is_none() || needed.contains(&entry.zone)).collect();
            list.retain(&entries);
            let mut allocator = Allocator::new(geometry, &snapshot.state, self.fixed.grow, list);
            let source = self.zones(snapshot.state.zones);
            for entry in &entries {
                allocator.recover_zone(entry.zone, entry.generation, entry.carriers.is_some(), &source)?;
            }
            let mut deferred = Vec::new();
            let mut in_use = |allocator: &mut Allocator, pba: Pba| -> Result<()> {
                if !geometry.holds(pba) {
                    return Err(Error::new(Kind::Corrupt, format!("a record names block {pba}, which holds no data")));
                }
                if allocator.recover_used(pba, &source)? {
                    deferred.push(pba);
                }
                Ok(())
            };
            for found in &carriers {
                in_use(&mut allocator, found.header.address)?;
                allocator.note(found.header.address, found.header.window, true, None);
            }
            for record in records.iter().chain(&believed) {
                match record.change {
                    Change::Block { pba, carried, fingerprint } => {
                        in_use(&mut allocator, pba)?;
                        allocator.note_recovered(pba, WindowNumber::of(record.timestamp), carried, fingerprint);
                        self.index.lock().insert(&fingerprint, pba);
                        state.active.pins.insert(pba);
                        state.active.dirty.touch(record.volume, record.lba);
                    }
                    // A record that an earlier recovery wrote again names the carrier of a window that is void by now.
                    Change::Catalogue { pba, .. } => in_use(&mut allocator, pba)?,
                    Change::Range { .. } => {}
                }
            }
            allocator.count_ready();
            state.allocator = allocator;
            state.deferred = deferred.len();
            *self.checkpointing.lock() = Checkpointer::new(deferred);
        }
        self.publish_recovered(&snapshot, &records)?;
        {
            let mut state = self.state.lock();
            state.durable = seen.max(committed);
            state.open = Window::new(seen.next());
        }
        let mut cuts = snapshot.state.cuts.clone();
        // Without carriers of this epoch, and no window beyond the durable one, there is nothing to void.
        let of_this_epoch = carriers.iter().any(|found| found.header.epoch == snapshot.state.epoch);
        if (of_this_epoch || seen != durable) && !self.settings.has(PlantedBug::DroppedReturns) {
            cuts.push(Cut { epoch: snapshot.state.epoch, window: durable, resume: seen.next() });
        }
        if !self.append_again(&believed)? {
            return self.commit_recovered(&snapshot, &believed);
        }
        let many = cuts.len() + 2 > CUTS_MAX;
        self.rise(&snapshot, cuts)?;
        if many {
            self.checkpoint_to_end(Reason::Forced)?;
        }
        Ok(())
    }

    /// Steps 4 and 5 when no block is left to append to: a checkpoint takes the records, and its superblock is that of the next epoch.
    fn commit_recovered(&self, snapshot: &Snapshot, believed: &[Record]) -> Result<()> {
        let number = self.state.lock().open.number;
        let records: Vec<Record> =
            believed.iter().zip(0..).map(|(record, n)| Record { timestamp: number.timestamp(n), ..*record }).collect();
        self.publish_recovered(snapshot, &records)?;
        {
            let mut state = self.state.lock();
            state.open = Window::new(number.next());
            state.active.last = number;
            state.durable = number;
            state.epoch += 1;
        }
        self.checkpoint_to_end(Reason::Forced).map(|_| ())
    }

    /// Writes the superblock of the next epoch, and its twin, each with a flush.
    fn rise(&self, snapshot: &Snapshot, cuts: Vec<Cut>) -> Result<()> {
        let (durable, last) = {
            let state = self.state.lock();
            (state.durable, WindowNumber(state.open.number.0 - 1))
        };
        let risen = Snapshot {
            state: superblock::State {
                sequence: snapshot.state.sequence + 2,
                epoch: snapshot.state.epoch + 1,
                clean: false,
                durable,
                last_window: last,
                cuts,
                ..snapshot.state.clone()
            },
            volumes: snapshot.volumes.clone(),
            discards: snapshot.discards.clone(),
        };
        for before in [1, 0] {
            self.write_superblock(&risen, before)?;
            self.disk.flush()?;
        }
        let mut state = self.state.lock();
        state.epoch = risen.state.epoch;
        state.snapshot = Arc::new(risen);
        Ok(())
    }

    /// The current version of every page of the zone list. A version that can't be read could be the newer one: then there is none.
    fn read_zone_list(&self) -> Result<Vec<Page>> {
        let geometry = self.fixed.geometry;
        let first = geometry.list_page(0)[0];
        let mut buffer = Block::zeroed_vec(geometry.list_pages as usize * 2);
        let mut singles: Vec<Read<'_>> = buffer.chunks_mut(1).zip(first.0..).map(|(into, at)| Read::new(Pba(at), into)).collect();
        self.disk.read(&mut singles);
        singles.into_iter().try_for_each(|read| read.result.map_err(|e| e.context("the zone list")))?;
        (0..geometry.list_pages)
            .map(|page| {
                (0..2)
                    .filter_map(|place| {
                        let at = geometry.list_page(page)[place];
                        Page::decode(&self.identity, &buffer[page as usize * 2 + place], page, at.0)
                    })
                    .max_by_key(|page| page.sequence)
                    .ok_or_else(|| Error::new(Kind::Corrupt, format!("both copies of page {page} of the zone list are damaged")))
            })
            .collect()
    }

    /// The carriers in the listed zones that no checkpoint holds. A block that can't be read is not a block without a carrier: its records
    /// may have been acknowledged, and the cut would void them for good.
    fn scan(&self, entries: &[Entry], state: &superblock::State) -> Result<Vec<Found>> {
        let geometry = self.fixed.geometry;
        // Stretches to read: all of a zone that may still take carriers, the carriers alone of a full one.
        let mut stretches: Vec<(Entry, usize, usize)> = Vec::new();
        for &entry in entries {
            match entry.carriers {
                None => {
                    for start in (0..geometry.zone_blocks as usize).step_by(SCAN_BLOCKS) {
                        stretches.push((entry, start, SCAN_BLOCKS.min(geometry.zone_blocks as usize - start)));
                    }
                }
                Some(carriers) => {
                    let mut last: Option<(usize, usize)> = None;
                    for n in carriers.iter().take_while(|&n| n < geometry.zone_blocks as usize) {
                        last = match last {
                            Some((start, end)) if n - end <= SCAN_GAP && n - start < SCAN_BLOCKS => Some((start, n + 1)),
                            Some((start, end)) => {
                                stretches.push((entry, start, end - start));
                                Some((n, n + 1))
                            }
                            None => Some((n, n + 1)),
                        };
                    }
                    stretches.extend(last.map(|(start, end)| (entry, start, end - start)));
                }
            }
        }
        let mut found = Vec::new();
        let mut buffers: Vec<Vec<Block>> = Vec::new();
        for batch in stretches.chunks(SCAN_READS * 4) {
            buffers.resize_with(batch.len().max(buffers.len()), || Block::zeroed_vec(SCAN_BLOCKS.min(geometry.zone_blocks as usize)));
            let mut reads: Vec<Read<'_>> = batch
                .iter()
                .zip(&mut buffers)
                .map(|(&(entry, start, blocks), buffer)| Read::new(geometry.start_of(entry.zone).plus(start as u64), &mut buffer[..blocks]))
                .collect();
            self.disk.read(&mut reads);
            reads.into_iter().try_for_each(|read| read.result.map_err(|e| e.context("recovery")))?;
            for (&(entry, start, blocks), buffer) in batch.iter().zip(&mut buffers) {
                let at = geometry.start_of(entry.zone).plus(start as u64);
                for (n, block) in buffer[..blocks].iter().enumerate() {
                    found.extend(self.believable(block, at.plus(n as u64), entry.generation, state));
                }
            }
        }
        Ok(found)
    }

    /// The scan of an unclean store, without what follows from it: how many carriers there are, and records in them.
    pub(crate) fn scan_alone(disk: Arc<dyn Disk>, clock: Arc<dyn Clock>, settings: Settings) -> Result<(usize, usize)> {
        let superblock = read_superblock(&*disk)?;
        let engine = Engine::unrecovered(disk, clock, settings, superblock)?;
        let snapshot = engine.state.lock().snapshot.clone();
        let entries = newest_entries(engine.fixed.geometry, &engine.read_zone_list()?)?;
        let found = engine.scan(&entries, &snapshot.state)?;
        Ok((found.len(), found.iter().map(|found| found.records.len()).sum()))
    }

    /// The carrier in a block, if it is one of this store, zone and time that still counts.
    fn believable(&self, block: &Block, at: Pba, generation: u64, state: &superblock::State) -> Option<Found> {
        let shape = Carrier::shape(&self.identity, block)?;
        if self.settings.has(PlantedBug::ForgedCarrier) {
            let header = Header { address: at, ..shape.header };
            return (header.window > state.committed).then(|| Found { header, records: shape.records().flatten().collect(), void: false });
        }
        let Header { epoch, window, .. } = shape.header;
        if shape.header.generation != generation || window <= state.committed {
            return None;
        }
        let void = match state.cuts.iter().find(|cut| cut.epoch == epoch) {
            Some(cut) => window > cut.window,
            None => epoch != state.epoch,
        };
        // A recovery that crashed wrote windows of the next epoch, too; the one after it began behind them.
        let void = void || state.cuts.iter().any(|cut| cut.epoch < epoch && window < cut.resume);
        let carrier = Carrier::proven(&self.identity, block, at)?;
        let records = carrier.records().collect::<Option<Vec<Record>>>()?;
        Some(Found { header: carrier.header, records, void })
    }

    /// What the believed records mean when parts of their windows are missing: records of volumes that were never made, or of addresses that
    /// they never got, go; and a volume that shrank or went takes its blocks along although the range that says so may be lost.
    fn whole_story(&self, snapshot: &Snapshot, durable: &[Record], believed: Vec<Record>) -> Result<Vec<Record>> {
        let mut volumes = snapshot.volumes.clone();
        for record in durable {
            if let Change::Catalogue { pba, fingerprint } = record.change {
                apply_catalogue(&mut volumes, &[self.read_change(pba, &fingerprint)?]);
            }
        }
        let mut story = Vec::with_capacity(believed.len());
        for record in believed {
            let Change::Catalogue { pba, fingerprint } = record.change else {
                let room = volumes.get(&record.volume).map_or(0, |volume| volume.blocks.saturating_sub(record.lba.0));
                let change = match record.change {
                    Change::Range { blocks, keep } => Change::Range { blocks: blocks.min(room), keep },
                    change => change,
                };
                if room > 0 {
                    story.push(Record { change, ..record });
                }
                continue;
            };
            let change = self.read_change(pba, &fingerprint)?;
            let end = match &change {
                CatalogueChange::Create { .. } => None,
                CatalogueChange::Rename { id, .. } => volumes.get(id).map(|_| (*id, VOLUME_BLOCKS_MAX)),
                CatalogueChange::Resize { id, blocks } => volumes.get(id).map(|_| (*id, *blocks)),
                CatalogueChange::Delete { id } => volumes.get(id).map(|_| (*id, 0)),
            };
            if end.is_none() && !matches!(change, CatalogueChange::Create { .. }) {
                continue;
            }
            story.push(record);
            if let Some((volume, end)) = end.filter(|&(_, end)| end < VOLUME_BLOCKS_MAX) {
                let change = Change::Range { blocks: VOLUME_BLOCKS_MAX - end, keep: false };
                story.push(Record { volume, lba: Lba(end), change, ..record });
            }
            apply_catalogue(&mut volumes, &[change]);
        }
        Ok(story)
    }

    /// The newer records whose block is there: it hashes to their fingerprint. Ranges are believed with their carrier.
    fn believe(&self, newer: Vec<Record>) -> Result<Vec<Record>> {
        if self.settings.has(PlantedBug::BelievedUnseen) {
            return Ok(newer);
        }
        let blocks = self.fixed.geometry.blocks();
        let mut believed = Vec::with_capacity(newer.len());
        for batch in newer.chunks(SCAN_BLOCKS) {
            let named: Vec<(usize, Pba, bool, Fingerprint)> = batch
                .iter()
                .enumerate()
                .filter_map(|(n, record)| match record.change {
                    Change::Block { pba, carried, fingerprint } => Some((n, pba, carried, fingerprint)),
                    Change::Catalogue { pba, fingerprint } => Some((n, pba, true, fingerprint)),
                    Change::Range { .. } => None,
                })
                .filter(|&(_, pba, ..)| pba.0 < blocks)
                .collect();
            let mut buffer = Block::zeroed_vec(named.len());
            let mut reads: Vec<Read<'_>> = named.iter().zip(buffer.chunks_mut(1)).map(|(named, into)| Read::new(named.1, into)).collect();
            self.disk.read(&mut reads);
            let mut good: BTreeSet<usize> = (0..batch.len()).filter(|&n| matches!(batch[n].change, Change::Range { .. })).collect();
            reads.into_iter().try_for_each(|read| read.result.map_err(|e| e.context("recovery")))?;
            for (&(n, pba, carried, fingerprint), block) in named.iter().zip(&buffer) {
                if self.hashes_to(block, pba, carried, &fingerprint) {
                    good.insert(n);
                }
            }
            believed.extend(good.into_iter().map(|n| batch[n]));
        }
        Ok(believed)
    }

    fn hashes_to(&self, raw: &Block, pba: Pba, carried: bool, fingerprint: &Fingerprint) -> bool {
        if !carried {
            return self.identity.fingerprinter.one(raw) == *fingerprint;
        }
        let mut expanded = Block::zeroed();
        Carrier::proven(&self.identity, raw, pba)
            .is_some_and(|carrier| carrier.expand(&mut expanded).is_ok() && self.identity.fingerprinter.one(&expanded) == *fingerprint)
    }

    /// Publishes records that are durable, in their order.
    fn publish_recovered(&self, snapshot: &Snapshot, records: &[Record]) -> Result<()> {
        let mut changes = Vec::new();
        for record in records {
            if let Change::Catalogue { pba, fingerprint } = record.change {
                changes.push(self.read_change(pba, &fingerprint)?);
            }
        }
        let mut state = self.state.lock();
        for record in records {
            if let Change::Range { blocks, .. } = record.change {
                state.active.dirty.touch(record.volume, record.lba);
                state.active.dirty.touch(record.volume, record.lba.plus(blocks - 1));
            }
            state.active.publish(record);
        }
        state.active.catalogue.extend(changes);
        let mut volumes = snapshot.volumes.clone();
        apply_catalogue(&mut volumes, &state.active.catalogue);
        state.volumes = visible(&volumes);
        state.next_volume = volumes.keys().map(|id| id.0 + 1).chain([state.next_volume]).max().unwrap_or(1);
        Ok(())
    }

    pub(super) fn read_change(&self, pba: Pba, fingerprint: &Fingerprint) -> Result<CatalogueChange> {
        let mut buffer = Block::zeroed_vec(1);
        let mut read = [Read::new(pba, &mut buffer)];
        self.disk.read(&mut read);
        let [read] = read;
        read.result?;
        let mut content = Block::zeroed();
        let carrier = Carrier::proven(&self.identity, &buffer[0], pba)
            .ok_or_else(|| Error::new(Kind::Corrupt, format!("the carrier at block {pba}, which changes the catalogue, is damaged")))?;
        carrier.expand(&mut content)?;
        if self.identity.fingerprinter.one(&content) != *fingerprint {
            return Err(Error::new(Kind::Corrupt, format!("the change of the catalogue at block {pba} is damaged")));
        }
        CatalogueChange::decode(&content)
    }

    /// Step 4: windows of records alone, in the next epoch. False when there are too few blocks for them.
    fn append_again(&self, believed: &[Record]) -> Result<bool> {
        let carriers = believed.len().div_ceil(thin::RECORDS_ALONE) as u64;
        {
            let mut state = self.state.lock();
            let zones = self.zones(state.zone_table);
            state.allocator.grow_to(self.reserve() + carriers, &zones);
            state.allocator.list.set_recovering(true);
            let opened = state.allocator.open_ahead(carriers, &zones);
            state.allocator.list.set_recovering(false);
            opened?;
            if state.allocator.ready_blocks() < carriers {
                return Ok(false);
            }
        }
        let snapshot = self.state.lock().snapshot.clone();
        for records in believed.chunks(thin::RECORDS_ALONE * 16) {
            let carriers = records.len().div_ceil(thin::RECORDS_ALONE);
            let (number, extents, generations) = {
                let mut state = self.state.lock();
                let number = state.open.number;
                state.open = Window::new(number.next());
                drop(state);
                if !self.state.lock().allocator.can_place(carriers as u64) {
                    self.flush_zone_list()?;
                }
                let mut state = self.state.lock();
                assert!(state.allocator.can_place(carriers as u64), "what is ready can be placed when its listing is durable");
                let extents = state.allocator.place(carriers as u64);
                let addresses = extents.iter().flat_map(|extent| (0..extent.blocks).map(|n| extent.at.plus(n)));
                let generations: Vec<u64> = addresses.map(|pba| state.allocator.generation(pba)).collect();
                (number, extents, generations)
            };
            let (durable, epoch) = {
                let state = self.state.lock();
                (state.durable, state.epoch + 1)
            };
            let records: Vec<Record> =
                records.iter().zip(0..).map(|(record, n)| Record { timestamp: number.timestamp(n), ..*record }).collect();
            let addresses: Vec<Pba> = extents.iter().flat_map(|extent| (0..extent.blocks).map(|n| extent.at.plus(n))).collect();
            let mut plan = Plan { extents, ..Plan::default() };
            for (n, part) in records.chunks(thin::RECORDS_ALONE).enumerate() {
                let header = Header {
                    epoch,
                    generation: generations[n],
                    address: addresses[n],
                    window: number,
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
            let mut state = self.state.lock();
            for &pba in &addresses {
                state.allocator.note(pba, number, true, None);
            }
            state.active.allocated.extend_from_slice(&plan.extents);
            state.active.last = number;
            state.durable = number;
        }
        Ok(true)
    }
}

/// The records without those that later ones supersede, so that they can share windows: in a window blocks are newer than ranges.
fn newest_alone(records: Vec<Record>) -> Vec<Record> {
    let mut written: BTreeSet<(VolumeId, Lba)> = BTreeSet::new();
    let mut dropped = Ranges::default();
    let mut kept: Vec<Record> = Vec::with_capacity(records.len());
    for record in records.into_iter().rev() {
        let keep = match record.change {
            Change::Block { .. } => dropped.get(record.volume, record.lba.0).is_none() && written.insert((record.volume, record.lba)),
            Change::Range { blocks, keep } => {
                let span = Span { end: record.lba.0 + blocks, keep, window: WindowNumber(0) };
                dropped.insert(record.volume, record.lba.0, span);
                true
            }
            Change::Catalogue { .. } => true,
        };
        if keep {
            kept.push(record);
        }
    }
    kept.reverse();
    kept.sort_by_key(|record| match record.change {
        Change::Catalogue { .. } => 0,
        Change::Range { .. } => 1,
        Change::Block { .. } => 2,
    });
    kept
}

/// Volumes that clients see.
fn visible(volumes: &BTreeMap<VolumeId, Volume>) -> BTreeMap<VolumeId, VolumeState> {
    volumes
        .values()
        .filter(|volume| !volume.name.is_empty())
        .map(|volume| (volume.id, VolumeState { name: volume.name.clone(), blocks: volume.blocks }))
        .collect()
}

/// Reads the catalogue and the pending discards of a checkpoint.
pub(crate) fn load_snapshot(pages: &Pages, state: superblock::State) -> Result<Snapshot> {
    let damaged = |what: &str| Error::new(Kind::Corrupt, format!("the {what} is damaged"));
    let mut volumes = BTreeMap::new();
    let per_leaf = Table::Catalogue.per_leaf();
    for n in 0..u64::from(state.volumes) {
        let (_, page) = pages.leaf(Table::Catalogue, 0, &state.catalogue, n / per_leaf)?.ok_or_else(|| damaged("catalogue"))?;
        let volume = Volume::get(&page, n % per_leaf).ok_or_else(|| damaged("catalogue"))?;
        volumes.insert(volume.id, volume);
    }
    let mut discards = Ranges::default();
    let per_leaf = Table::Discards.per_leaf();
    for n in 0..u64::from(state.discards) {
        let (_, page) = pages.leaf(Table::Discards, 0, &state.pending, n / per_leaf)?.ok_or_else(|| damaged("table of discards"))?;
        let Discard { volume, keep, start, end, window } = Discard::get(&page, n % per_leaf).ok_or_else(|| damaged("table of discards"))?;
        discards.insert(volume, start, Span { end, keep, window });
    }
    Ok(Snapshot { state, volumes, discards })
}

/// Each listed zone once, with its highest generation.
fn newest_entries(geometry: Geometry, pages: &[Page]) -> Result<Vec<Entry>> {
    let mut newest: BTreeMap<onefold_core::ZoneId, Entry> = BTreeMap::new();
    for entry in pages.iter().flat_map(|page| page.entries.iter().flatten()) {
        if !(geometry.first_zone().0..geometry.zones).contains(&entry.zone.0) {
            return Err(Error::new(Kind::Corrupt, format!("the zone list names zone {}, which there is not", entry.zone)));
        }
        let known = newest.entry(entry.zone).or_insert(*entry);
        if entry.generation > known.generation {
            *known = *entry;
        }
    }
    let mut entries: Vec<Entry> = newest.into_values().collect();
    // In the order in which they were opened, so that the first to be filled is filled first.
    entries.sort_by_key(|entry| entry.generation);
    Ok(entries)
}
