//! Garbage collection (dedupv1 3.7): counts from what came and went, chunks condemned, rechecked, dropped; containers merged; space freed.
//!
//! The order is in `docs/decisions/0013`, with what a crash between two steps leaves: each step begins from what the log says, so that the next
//! collector goes on where one was killed.
//!
//! *Invariants.* A count is never lower than the truth. A chunk is dropped only when no recipe of the log names it and nobody who could name it is under way.
//! A removed recipe is dropped only when counts without it are durable: until then it says what they must lose.
//! Space is freed when nobody reads there any more. A chunk that fails its check is not copied, and its container stays.
//!
//! Memory: counts of one range of containers at a time, two bytes a chunk.

use std::{collections::BTreeMap, sync::Arc};

use onefold_core::{Error, Hold, Kind, Lock, Result};

use crate::{
    archive::{Archive, COLLECTOR, fresh, segment_name},
    catalogue::Volume,
    chain::is_condemned,
    format::{
        Address, ContainerId,
        bytes::{Reader as Fields, Writer, corrupt},
        container::{Chunk, Holds, Open, Packer},
        recipe::{Part, parts},
        record::{Owner, Pieces, Record},
    },
    get::ChunkReader,
    put,
    segments::{Appender, Ids, Shelves},
    settings::PlantedBug,
    tables::{Container, Tables},
};

/// How collection is done.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Seconds since 1970.
    pub now: u64,
    /// Seconds that unfinished containers are spared.
    pub keep_partial: u64,
    /// Waits for puts and readers that began before; without, what they hold back is left to the next collection.
    pub wait: bool,
    /// Bytes of the reserve when all is done.
    pub reserve_bytes: u64,
}

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Containers without a live chunk that were dropped.
    pub dropped: u64,
    /// Containers whose live chunks were copied together.
    pub merged: u64,
    /// Containers that they became.
    pub into: u64,
    /// Chunks copied.
    pub copied_chunks: u64,
    /// Bytes of space given back to the file system.
    pub freed_bytes: u64,
    /// Containers that stay because a chunk of theirs is damaged.
    pub damaged: u64,
    /// Places that older readers hold back.
    pub held_back: u64,
    /// Puts that began before hold the rest back.
    pub waits: bool,
}

/// Counts saturate: what reached this is never freed.
const MOST: u16 = u16::MAX;

const COUNTS_MAGIC: &[u8; 8] = b"ONEFCNTS";

fn counts_name(number: u64) -> String {
    format!("counts-{number:010}")
}

/// One collection, step by step.
pub struct Collection {
    archive: Arc<Archive>,
    _lock: Box<dyn Lock>,
    options: Options,
    shelves: Shelves,
    reader: ChunkReader,
    ids: Ids,
    appender: Appender,
    step: Step,
    /// Counts that found no room on the disk, and the place in the log up to which they count.
    in_memory: Option<(Arc<dyn onefold_core::File>, u64)>,
    /// Dead chunks were looked for in this collection, not only taken over.
    looked: bool,
    /// What was done so far.
    pub done: Collected,
}

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Free,
    Recheck,
    Merge,
    Count,
    Condemn,
    Last,
    Over,
}

impl Collection {
    /// Becomes the collector.
    ///
    /// # Errors
    /// `Busy` when another one is at work, and those of the system.
    pub fn begin(archive: &Arc<Archive>, options: Options) -> Result<Collection> {
        let lock = archive.files.lock(COLLECTOR, Hold::Alone, false).map_err(|error| match error.kind() {
            Kind::Busy => Error::new(Kind::Busy, "another gc is running"),
            _ => error,
        })?;
        let collection = Collection {
            shelves: Shelves::new(archive.clone()),
            reader: ChunkReader::default(),
            ids: Ids::new(archive.clone(), Owner::Collector),
            appender: Appender::new(archive.clone(), Owner::Collector),
            archive: archive.clone(),
            _lock: lock,
            options,
            step: Step::Free,
            in_memory: None,
            looked: false,
            done: Collected::default(),
        };
        collection.remove_orphans()?;
        Ok(collection)
    }

    /// Does all of it.
    ///
    /// # Errors
    /// Those of the system; what was done stays done.
    pub fn run(mut self, progress: &mut dyn FnMut(&str)) -> Result<Collected> {
        progress(self.doing());
        while self.step()? {
            progress(self.doing());
        }
        Ok(self.done)
    }

    /// What is being done.
    #[must_use]
    pub fn doing(&self) -> &'static str {
        match self.step {
            Step::Free | Step::Last | Step::Over => "freeing space",
            Step::Recheck => "rechecking candidates, after older puts and readers",
            Step::Count => "counting references",
            Step::Condemn => "looking for dead chunks",
            Step::Merge => "merging containers",
        }
    }

    /// Does the next step; false when there is none.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn step(&mut self) -> Result<bool> {
        self.step = match self.step {
            // What an earlier collector left comes first.
            Step::Free => {
                self.free()?;
                if self.archive.tables().condemned.is_empty() { Step::Count } else { Step::Recheck }
            }
            Step::Recheck => {
                if self.recheck()? {
                    self.free()?;
                    Step::Merge
                } else {
                    self.done.waits = true;
                    Step::Last
                }
            }
            Step::Merge => match (self.merge()?, self.looked) {
                (true, _) => Step::Merge,
                (false, true) => Step::Last,
                (false, false) => Step::Count,
            },
            Step::Count => {
                self.count()?;
                Step::Condemn
            }
            Step::Condemn => {
                self.looked = true;
                if self.condemn()? { Step::Recheck } else { Step::Last }
            }
            Step::Last => {
                self.last()?;
                Step::Over
            }
            Step::Over => return Ok(false),
        };
        Ok(self.step != Step::Over)
    }

    /// Brings the counts up to the log's end.
    fn count(&mut self) -> Result<()> {
        let tables = self.archive.refresh()?;
        let old = match tables.counts {
            0 => None,
            number => match CountsReader::open(&self.archive, number) {
                Ok(reader) => Some(reader),
                // What is lost is counted again, from all recipes.
                Err(error) if matches!(error.kind(), Kind::Corrupt | Kind::NotFound) => None,
                Err(error) => return Err(error),
            },
        };
        if old.is_some() && tables.differences.is_empty() {
            return Ok(());
        }
        let made = loop {
            match CountsWriter::create(&self.archive, tables.counts + 1)
                .and_then(|writer| self.write_counts(&tables, old.is_some(), writer))
            {
                Err(error) if error.kind() == Kind::NoSpace => {
                    if !self.archive.spend_reserve()? {
                        // Not even the reserve is left: counted in memory, for this time.
                        let file: Arc<dyn onefold_core::File> = Arc::new(MemoryFile::default());
                        let writer = CountsWriter::over(&self.archive, file.clone(), tables.counts + 1)?;
                        self.write_counts(&tables, old.is_some(), writer)?;
                        self.in_memory = Some((file, tables.sequence));
                        return Ok(());
                    }
                }
                made => break made.map(|()| tables.counts + 1)?,
            }
        };
        let (differences, upto) = (tables.differences.len() as u64, tables.sequence);
        self.archive.commit(true, |_| Ok(vec![Record::Counted { file: made, differences, upto }]))?;
        match self.archive.files.remove(&counts_name(tables.counts)) {
            Err(error) if error.kind() != Kind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Writes new counts, durable on return. `on` goes on from the counts there are; else all streams are counted.
    fn write_counts(&mut self, tables: &Tables, on: bool, mut writer: CountsWriter) -> Result<()> {
        let mut old = if on { Some(CountsReader::open(&self.archive, tables.counts)?) } else { None };
        let mut fresh = numbers(tables).into_iter().peekable();
        let mut next_old = old.as_mut().map_or(Ok(None), CountsReader::next)?;
        loop {
            // A range of containers, in the order of their numbers.
            let (mut range, mut slots) = (BTreeMap::<ContainerId, Vec<u16>>::new(), 0);
            while slots < self.archive.settings.count_slots {
                let old_id = next_old.as_ref().map(|entry| entry.0);
                let fresh_id = fresh.peek().map(|one| one.0);
                if let Some((id, counts)) = next_old.take_if(|entry| fresh_id.is_none_or(|fresh| entry.0 <= fresh)) {
                    // The counts of containers that are gone go too.
                    if tables.home(id).is_some() {
                        slots += counts.len();
                        range.insert(id, counts);
                    }
                    next_old = old.as_mut().map_or(Ok(None), CountsReader::next)?;
                    if fresh_id == old_id {
                        fresh.next();
                    }
                } else if let Some((id, home)) = fresh.next() {
                    let counts = vec![0; self.slots(tables, id, home)?];
                    slots += counts.len();
                    range.insert(id, counts);
                } else {
                    break;
                }
            }
            if range.is_empty() {
                break;
            }
            self.add_up(tables, on, &mut range)?;
            range.iter().try_for_each(|(id, counts)| writer.push(*id, counts))?;
        }
        writer.finish()
    }

    /// Slots of a container that has no counts yet: where it was merged, up to the last one that its home has.
    fn slots(&self, tables: &Tables, id: ContainerId, home: ContainerId) -> Result<usize> {
        let Some(container) = tables.containers.get(&home) else { return Ok(0) };
        if id == home {
            return Ok(container.stored.chunks as usize);
        }
        match self.shelves.metadata(container) {
            Ok(metadata) => {
                let own = metadata.chunks.iter().filter(|chunk| chunk.first.container == id);
                Ok(own.map(|chunk| usize::from(chunk.first.slot) + 1).max().unwrap_or(0))
            }
            // Nothing is known of it: nothing is counted, and nothing condemned.
            Err(error) if error.kind() == Kind::Corrupt => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// Applies to a range what came and went.
    fn add_up(&mut self, tables: &Tables, on: bool, range: &mut BTreeMap<ContainerId, Vec<u16>>) -> Result<()> {
        let (mut added, mut removed): (Vec<&Vec<Pieces>>, Vec<&Vec<Pieces>>) = (Vec::new(), Vec::new());
        let mappings: Vec<Vec<Pieces>> = if on { Vec::new() } else { tables.volumes.values().map(Volume::recipe).collect() };
        if on {
            // What comes first is counted first, so that no count falls below zero on the way.
            for difference in &tables.differences {
                if difference.added { added.push(&difference.recipe) } else { removed.push(&difference.recipe) }
            }
        } else {
            added.extend(tables.streams.values().flat_map(|stream| stream.recipes()));
            added.extend(&mappings);
        }
        for recipe in added {
            self.walk(tables, recipe, &mut |first, count| {
                change(range, first, count, |n| n.saturating_add(1));
            })?;
        }
        let twice = self.archive.settings.has(PlantedBug::CountedTwice);
        for recipe in removed {
            let walked = self.walk(tables, recipe, &mut |first, count| {
                // What is saturated may be more than it says.
                change(range, first, count, |n| if n == MOST { n } else { n.saturating_sub(1 + u16::from(twice)) });
            });
            match walked {
                // What can't be read any more is a leak, and no reason to keep everything.
                Err(error) if error.kind() == Kind::Corrupt => {}
                other => other?,
            }
        }
        Ok(())
    }

    /// Tells of all that a recipe names: its own pieces, and its chunks.
    fn walk(&mut self, tables: &Tables, recipe: &[Pieces], each: &mut dyn FnMut(Address, usize)) -> Result<()> {
        for pieces in recipe {
            each(Address { container: pieces.container, slot: pieces.first }, usize::from(pieces.count));
            for n in 0..pieces.count {
                let piece = self.reader.chunk(tables, &self.shelves, Address { container: pieces.container, slot: pieces.first + n })?;
                for part in parts(piece)? {
                    match part {
                        Part::Run { first, fingerprints, .. } => each(first, fingerprints.len()),
                        Part::Slice { chunk, .. } => each(chunk, 1),
                        _ => {}
                    }
                }
            }
        }
        Ok(())
    }

    /// Condemns dead chunks of containers that are dead or less than half full; false when there are none.
    fn condemn(&mut self) -> Result<bool> {
        let tables = self.archive.tables();
        let (mut counts, counted) = match &self.in_memory {
            Some((file, upto)) => (CountsReader::over(&self.archive, file.clone(), tables.counts + 1)?, *upto),
            None => (CountsReader::open(&self.archive, tables.counts)?, tables.counted),
        };
        // Which chunks are dead, as bits, by home; merged containers have several ids.
        let mut dead: BTreeMap<ContainerId, (u32, Vec<u8>)> = BTreeMap::new();
        while let Some((id, counts)) = counts.next()? {
            let Some(home) = tables.home(id) else { continue };
            let spared = tables.unfinished.get(&home.stored.id).is_some_and(|at| at + self.options.keep_partial > self.options.now);
            if spared || !counts.contains(&0) {
                continue;
            }
            let chunks = home.stored.chunks;
            let (number, bits) = dead.entry(home.stored.id).or_insert_with(|| (0, vec![0; (chunks as usize).div_ceil(8)]));
            let places = self.places(home, id, &counts)?;
            for n in places {
                bits[n / 8] |= 1 << (n % 8);
                *number += 1;
            }
        }
        // What a killed put listed since the counts were made: no recipe that came since names it.
        for (id, at) in &tables.unfinished {
            let Some(container) = tables.containers.get(id).filter(|container| container.logged > counted) else { continue };
            if at + self.options.keep_partial <= self.options.now {
                let chunks = container.stored.chunks;
                dead.entry(*id).or_insert_with(|| (chunks, vec![u8::MAX; (chunks as usize).div_ceil(8)]));
            }
        }
        let mut containers = Vec::new();
        for (id, (number, bits)) in dead {
            let live = tables.containers.get(&id).map_or(0, |container| container.stored.chunks.saturating_sub(number));
            let all = number + live;
            // Half full or more: their dead chunks may live again.
            if live * 2 < all && !tables.condemned.contains_key(&id) {
                containers.push((id, bits));
            }
        }
        if containers.is_empty() {
            return Ok(false);
        }
        if !self.others_left(tables.epoch)? {
            self.done.waits = true;
            return Ok(false);
        }
        self.archive.commit(true, |_| Ok(vec![Record::Condemned { containers }]))?;
        Ok(true)
    }

    /// The places in their container of the chunks of `id` without references.
    fn places(&self, home: &Container, id: ContainerId, counts: &[u16]) -> Result<Vec<usize>> {
        let unused = |slot: u16| counts.get(usize::from(slot)).is_some_and(|&count| count == 0);
        if home.merged.is_empty() {
            return Ok((0..counts.len().min(home.stored.chunks as usize)).filter(|&slot| unused(slot as u16)).collect());
        }
        match self.shelves.metadata(home) {
            Ok(metadata) => {
                let chunks = metadata.chunks.iter().enumerate();
                Ok(chunks.filter(|(_, chunk)| chunk.first.container == id && unused(chunk.first.slot)).map(|(n, _)| n).collect())
            }
            // Nothing is known of it: nothing is condemned.
            Err(error) if error.kind() == Kind::Corrupt => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// True when nobody stays in an earlier epoch.
    fn others_left(&self, epoch: u32) -> Result<bool> {
        match self.archive.drained(epoch, self.options.wait) {
            Err(error) if error.kind() == Kind::Busy => Ok(false),
            done => done.map(|()| true),
        }
    }

    /// When all have left that began before: spares what was referenced meanwhile, drops containers that are dead. False when somebody is still there.
    fn recheck(&mut self) -> Result<bool> {
        if !self.others_left(self.archive.refresh()?.epoch)? {
            return Ok(false);
        }
        loop {
            let tables = self.archive.refresh()?;
            let mut spared: Vec<ContainerId> = Vec::new();
            let skip = self.archive.settings.has(PlantedBug::NoRecheck);
            for difference in tables.differences.iter().filter(|difference| difference.added && !skip) {
                let mut runs = Vec::new();
                self.walk(&tables, &difference.recipe, &mut |first, count| runs.push((first, count)))?;
                self.spare(&tables, &runs, &mut spared)?;
            }
            // What was removed since the counts on the disk were made, and counted in memory only, is read once more.
            for difference in tables.differences.iter().filter(|difference| !difference.added) {
                let own = |pieces: &Pieces| (Address { container: pieces.container, slot: pieces.first }, usize::from(pieces.count));
                let runs: Vec<_> = difference.recipe.iter().map(own).collect();
                match self.spare(&tables, &runs, &mut spared) {
                    // What can't be read will not be counted either.
                    Err(error) if error.kind() == Kind::Corrupt => {}
                    other => other?,
                }
            }
            spared.sort_unstable();
            spared.dedup();
            let dead = tables.condemned.iter().filter(|(id, bits)| {
                let chunks = tables.containers.get(id).map_or(0, |container| container.stored.chunks as usize);
                spared.binary_search(id).is_err() && (0..chunks).all(|n| is_condemned(bits, n))
            });
            let containers: Vec<ContainerId> = dead.map(|(&id, _)| id).collect();
            if containers.is_empty() && spared.is_empty() {
                return Ok(true);
            }
            let (dropped, looked_at) = (containers.len() as u64, tables.differences.len());
            let mut again = false;
            self.archive.commit(true, |now| {
                // More came meanwhile, or a put gave up what it had listed.
                again = now.differences.len() != looked_at || containers.iter().any(|id| !now.containers.contains_key(id));
                Ok(if again { Vec::new() } else { vec![Record::Dropped { containers, spared }] })
            })?;
            if !again {
                self.done.dropped += dropped;
                return Ok(true);
            }
        }
    }

    /// Notes the condemned containers of which chunks in these runs are needed.
    fn spare(&self, tables: &Tables, runs: &[(Address, usize)], spared: &mut Vec<ContainerId>) -> Result<()> {
        for &(first, count) in runs {
            let Some(home) = tables.home(first.container) else { continue };
            let Some(bits) = tables.condemned.get(&home.stored.id) else { continue };
            let needed = |slot: usize| -> Result<bool> {
                if home.merged.is_empty() {
                    return Ok(is_condemned(bits, slot));
                }
                let metadata = self.shelves.metadata(home)?;
                let address = Address { container: first.container, slot: slot as u16 };
                Ok(metadata.chunks.binary_search_by_key(&address, |chunk| chunk.first).is_ok_and(|n| is_condemned(bits, n)))
            };
            for slot in usize::from(first.slot)..usize::from(first.slot) + count {
                if needed(slot)? {
                    spared.push(home.stored.id);
                    break;
                }
            }
        }
        Ok(())
    }

    /// Copies the live chunks of some containers into a new one; false when there are no more candidates.
    fn merge(&mut self) -> Result<bool> {
        let tables = self.archive.refresh()?;
        let live = |id: &ContainerId, bits: &Vec<u8>| {
            let container = tables.containers.get(id)?;
            let dead = bits.iter().map(|byte| byte.count_ones()).sum::<u32>();
            Some((container.stored.holds == Holds::Recipes, container.stored.chunks.saturating_sub(dead), *id))
        };
        let mut candidates: Vec<(bool, u32, ContainerId)> = tables.condemned.iter().filter_map(|(id, bits)| live(id, bits)).collect();
        // The emptiest free the most for what is copied.
        candidates.sort_unstable();
        let Some(&(recipes, ..)) = candidates.first() else { return Ok(false) };
        let (mut from, mut chunks, mut bytes) = (Vec::new(), Vec::new(), 0);
        for &(_, _, id) in candidates.iter().filter(|candidate| candidate.0 == recipes) {
            let Some(container) = tables.containers.get(&id) else { continue };
            match self.live_chunks(&tables, container) {
                Ok(live) => {
                    let more: usize = live.iter().map(|(_, bytes)| bytes.len()).sum();
                    if !chunks.is_empty() && bytes + more > self.archive.settings.container_bytes {
                        break;
                    }
                    bytes += more;
                    chunks.extend(live);
                    from.push(id);
                }
                Err(error) if error.kind() == Kind::Corrupt => {
                    // It stays, with what can still be read of it.
                    self.done.damaged += 1;
                    self.archive.commit(true, |_| Ok(vec![Record::Dropped { containers: Vec::new(), spared: vec![id] }]))?;
                    return Ok(true);
                }
                Err(error) => return Err(error),
            }
        }
        chunks.sort_unstable_by_key(|(chunk, _)| chunk.first);
        let id = self.ids.next()?;
        let mut open = Open::new(id, if recipes { Holds::Recipes } else { Holds::Data }, bytes);
        chunks.iter().for_each(|(chunk, bytes)| open.push_as(chunk.fingerprint, chunk.first, bytes));
        let packed = put::pack(&self.archive, open, &mut Packer::default());
        let stored = loop {
            match self.appender.write(&packed) {
                Err(error) if error.kind() == Kind::NoSpace => {
                    if !self.archive.spend_reserve()? {
                        // There is no room to copy; what is dead is free already.
                        return Ok(false);
                    }
                }
                written => break written?,
            }
        };
        self.appender.sync()?;
        let (merged, copied) = (from.len() as u64, chunks.len() as u64);
        let mut gone = false;
        self.archive.commit(true, |now| {
            // A put may have given up what it had listed: then the copy is garbage behind the segment's end.
            gone = from.iter().any(|id| !now.condemned.contains_key(id));
            Ok(if gone { Vec::new() } else { vec![Record::Merged { from, to: stored }] })
        })?;
        if gone {
            return Ok(true);
        }
        self.done.merged += merged;
        self.done.into += 1;
        self.done.copied_chunks += copied;
        Ok(true)
    }

    /// The chunks of a container that are not condemned, verified.
    fn live_chunks(&mut self, tables: &Tables, container: &Container) -> Result<Vec<(Chunk, Vec<u8>)>> {
        let id = container.stored.id;
        let bits = tables.condemned.get(&id).cloned().unwrap_or_default();
        let metadata = self.shelves.metadata(container)?;
        let mut live = Vec::new();
        for (n, chunk) in metadata.chunks.iter().enumerate().filter(|(n, _)| !is_condemned(&bits, *n)) {
            let bytes = match self.reader.chunk(tables, &self.shelves, chunk.first) {
                Err(error) if error.kind() == Kind::Corrupt && self.archive.settings.has(PlantedBug::RotCopied) => {
                    self.reader.rotten(&self.shelves, container, &metadata, n)?
                }
                read => read?.to_vec(),
            };
            let rot = self.archive.settings.has(PlantedBug::RotCopied);
            if !rot && self.archive.fingerprinter.bytes(&bytes) != chunk.fingerprint {
                return Err(corrupt(format!("chunk {} of container {} is damaged", chunk.first.slot, chunk.first.container)));
            }
            live.push((*chunk, bytes));
        }
        Ok(live)
    }

    /// Frees places that nobody can read any more.
    fn free(&mut self) -> Result<()> {
        let tables = self.archive.refresh()?;
        if tables.leaving.is_empty() {
            return Ok(());
        }
        let early = self.archive.settings.has(PlantedBug::FreedUnderReader);
        let newest = tables.leaving.iter().map(|leaving| leaving.1).max().unwrap_or(0);
        // The epoch turned only when nobody stayed in the one before the last. In the last one somebody may.
        let all = newest + 1 < tables.epoch || self.others_left(tables.epoch)?;
        let limit = if all { tables.epoch } else { tables.epoch.saturating_sub(1) };
        let places: Vec<_> = tables.leaving.iter().filter(|(_, epoch)| early || *epoch < limit).map(|(place, _)| *place).collect();
        if places.is_empty() {
            return Ok(());
        }
        for place in &places {
            self.shelves.free(place)?;
            self.done.freed_bytes += tables.taken(place);
        }
        self.archive.commit(true, |_| Ok(vec![Record::Freed { places }]))?;
        self.remove_orphans()
    }

    /// Waits for readers of what was merged, frees it, and takes the reserve again.
    fn last(&mut self) -> Result<()> {
        let tables = self.archive.refresh()?;
        let fresh = tables.leaving.iter().any(|(_, epoch)| *epoch >= tables.epoch);
        if fresh && self.others_left(tables.epoch)? {
            self.archive.commit(true, |_| Ok(vec![Record::Turned]))?;
        }
        self.free()?;
        self.appender.trim()?;
        self.done.held_back = self.archive.tables().leaving.len() as u64;
        self.archive.restore_reserve(self.options.reserve_bytes)
    }

    /// Removes files that nothing names.
    fn remove_orphans(&self) -> Result<()> {
        // Listed before the log is read: a segment is recorded before its file is made.
        let names = self.archive.files.names()?;
        let tables = self.archive.refresh()?;
        let mut removed = false;
        for name in names {
            let segment = name.strip_prefix("segment-").and_then(|digits| digits.parse::<u32>().ok());
            let counts = name.strip_prefix("counts-").and_then(|digits| digits.parse::<u64>().ok());
            let orphan = segment.is_some_and(|n| !tables.segments.contains_key(&n) && segment_name(n) == name)
                || counts.is_some_and(|n| n != tables.counts);
            if orphan {
                self.archive.files.remove(&name)?;
                removed = true;
            }
        }
        if removed { self.archive.files.sync_names() } else { Ok(()) }
    }
}

/// The numbers by which recipes name containers, in their order, each with the number of the container where its chunks lie.
fn numbers(tables: &Tables) -> Vec<(ContainerId, ContainerId)> {
    let mut numbers = Vec::with_capacity(tables.containers.len());
    for (&home, container) in &tables.containers {
        match container.merged.is_empty() {
            true => numbers.push((home, home)),
            false => numbers.extend(container.merged.iter().map(|&id| (id, home))),
        }
    }
    numbers.sort_unstable();
    numbers
}

/// Changes the counts of a run of chunks, as far as they are in the range.
fn change(range: &mut BTreeMap<ContainerId, Vec<u16>>, first: Address, count: usize, to: impl Fn(u16) -> u16) {
    let Some(counts) = range.get_mut(&first.container) else { return };
    counts.iter_mut().skip(usize::from(first.slot)).take(count).for_each(|n| *n = to(*n));
}

/// Bytes of counts with one checksum.
const BLOCK_BYTES: usize = 64 << 10;

/// Writes a file of counts: blocks, each with its length and checksum, of containers in the order of their numbers.
struct CountsWriter {
    archive: Arc<Archive>,
    file: Arc<dyn onefold_core::File>,
    at: u64,
    block: Writer,
}

impl CountsWriter {
    fn create(archive: &Arc<Archive>, number: u64) -> Result<CountsWriter> {
        CountsWriter::over(archive, fresh(&*archive.files, &counts_name(number))?, number)
    }

    fn over(archive: &Arc<Archive>, file: Arc<dyn onefold_core::File>, number: u64) -> Result<CountsWriter> {
        let mut w = Writer::default();
        w.raw(COUNTS_MAGIC).u64(number);
        file.write_at(0, &w.0)?;
        Ok(CountsWriter { archive: archive.clone(), file, at: w.0.len() as u64, block: Writer::default() })
    }

    fn push(&mut self, id: ContainerId, counts: &[u16]) -> Result<()> {
        self.block.u64(id.0).u32(counts.len() as u32);
        counts.iter().for_each(|count| {
            self.block.u16(*count);
        });
        if self.block.0.len() >= BLOCK_BYTES { self.write_block() } else { Ok(()) }
    }

    fn write_block(&mut self) -> Result<()> {
        let block = std::mem::take(&mut self.block.0);
        let mut w = Writer::default();
        w.u32(block.len() as u32).u64(self.archive.identity.checksum(&block)).raw(&block);
        self.file.write_at(self.at, &w.0)?;
        self.at += w.0.len() as u64;
        Ok(())
    }

    fn finish(mut self) -> Result<()> {
        if !self.block.0.is_empty() {
            self.write_block()?;
        }
        // An empty block is the end.
        self.write_block()?;
        self.file.sync()?;
        self.archive.files.sync_names()
    }
}

/// Reads a file of counts in order.
struct CountsReader {
    archive: Arc<Archive>,
    file: Arc<dyn onefold_core::File>,
    at: u64,
    block: Vec<u8>,
    taken: usize,
    ended: bool,
}

impl CountsReader {
    /// Opens it; all blocks are looked at once, so that damage is known before anything is made of it.
    fn open(archive: &Arc<Archive>, number: u64) -> Result<CountsReader> {
        CountsReader::over(archive, archive.files.open(&counts_name(number))?, number)
    }

    fn over(archive: &Arc<Archive>, file: Arc<dyn onefold_core::File>, number: u64) -> Result<CountsReader> {
        let mut header = [0; 16];
        file.read_at(0, &mut header)?;
        if header[..8] != *COUNTS_MAGIC || header[8..] != number.to_le_bytes() {
            return Err(corrupt("the file of usage counts is another one"));
        }
        let reader = |file| CountsReader { archive: archive.clone(), file, at: 16, block: Vec::new(), taken: 0, ended: false };
        let mut look = reader(file.clone());
        while look.next_block()? {}
        Ok(reader(file))
    }

    fn next_block(&mut self) -> Result<bool> {
        let mut header = [0; 12];
        let damaged = || corrupt("the file of usage counts is damaged");
        if self.ended {
            return Ok(false);
        }
        if self.file.read_at(self.at, &mut header)? < header.len() {
            return Err(damaged());
        }
        let mut r = Fields(&header);
        let (length, checksum) = (r.u32()? as usize, r.u64()?);
        // A block is one container longer than its limit at most.
        if length > BLOCK_BYTES + 12 + 2 * usize::from(u16::MAX) + 2 {
            return Err(damaged());
        }
        self.block.resize(length, 0);
        if self.file.read_at(self.at + 12, &mut self.block)? < length || self.archive.identity.checksum(&self.block) != checksum {
            return Err(damaged());
        }
        self.at += 12 + length as u64;
        self.taken = 0;
        self.ended = length == 0;
        Ok(!self.ended)
    }

    fn next(&mut self) -> Result<Option<(ContainerId, Vec<u16>)>> {
        while self.taken == self.block.len() {
            if !self.next_block()? {
                return Ok(None);
            }
        }
        let mut r = Fields(&self.block[self.taken..]);
        let (id, n) = (ContainerId(r.u64()?), r.u32()? as usize);
        let (counts, _) = r.take(2 * n)?.as_chunks::<2>();
        let counts = counts.iter().map(|bytes| u16::from_le_bytes(*bytes)).collect();
        self.taken = self.block.len() - r.0.len();
        Ok(Some((id, counts)))
    }
}

/// A file that no disk has: for counts, when the disk is full.
#[derive(Default)]
struct MemoryFile(parking_lot::Mutex<Vec<u8>>);

impl onefold_core::File for MemoryFile {
    fn bytes(&self) -> Result<u64> {
        Ok(self.0.lock().len() as u64)
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> Result<usize> {
        let bytes = self.0.lock();
        let from = bytes.get(at as usize..).unwrap_or_default();
        let n = from.len().min(into.len());
        into[..n].copy_from_slice(&from[..n]);
        Ok(n)
    }

    fn write_at(&self, at: u64, data: &[u8]) -> Result<()> {
        let (mut bytes, at) = (self.0.lock(), at as usize);
        let end = bytes.len().max(at + data.len());
        bytes.resize(end, 0);
        bytes[at..at + data.len()].copy_from_slice(data);
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn set_bytes(&self, bytes: u64) -> Result<()> {
        self.0.lock().resize(bytes as usize, 0);
        Ok(())
    }

    fn reserve(&self, _: u64, _: u64) -> Result<()> {
        Ok(())
    }

    fn punch(&self, _: u64, _: u64) -> Result<()> {
        Ok(())
    }
}
