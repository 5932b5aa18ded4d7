//! A round of scrubs: all data is read once, in the order of the numbers of containers, and in as
//! many portions as who reads likes. The log has how far the round is, so that the next process
//! goes on there.
//!
//! *Crash argument:* damage is in the log before the note that the round went past it. A note that
//! is lost costs a second look at the containers since the one before.
//!
//! A container that is written behind the place where the round is belongs to the next round. So
//! all data is read within the time of two rounds after it was written, and once in each.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use onefold_core::{Error, Result, clock::age};

use super::{PROBLEMS_LISTED, Report, scrub_one};
use crate::{
    container::{ContainerReader, is_all_there},
    format::{
        ContainerId,
        care::CareNote,
        container::Packer,
        damage::{bits_of, is_damage},
        record::Record,
    },
    operations_log::{Archive, EpochGuard, is_erased},
    repair::record_damage,
    tables::Tables,
};

/// Notes that all data was read at once; durable on return. A round that is under way has ended
/// with it.
///
/// # Errors
/// Errors of the system.
pub fn note_scrubbed(archive: &Archive, now: u64) -> Result<()> {
    let note = Record::CareNoted(CareNote::ScrubEnded(now));
    archive.commit(true, |_| Ok(vec![note])).map(drop)
}

/// Containers that are read in one epoch, and then noted: a collection waits no longer.
const CONTAINERS_AT_ONCE: usize = 64;

/// Containers that are read between two notes.
const CONTAINERS_A_NOTE: u64 = 1024;

/// The last container in the tables that can be looked up.
fn last_of(tables: &Tables) -> Result<Option<ContainerId>> {
    match tables.containers.last_id() {
        Err(error) if is_damage(&error) => {
            Ok(tables.containers.iter().flatten().last().map(|found| found.stored.id))
        }
        last => last,
    }
}

/// The part of a round that a process read.
#[derive(Clone, Debug, Default)]
pub struct Portion {
    /// Containers read.
    pub containers: u64,
    /// Bytes of chunks verified.
    pub bytes: u64,
    /// The first thousand problems, each a sentence.
    pub problems: Vec<String>,
    /// How much is wrong.
    pub problems_found: u64,
    /// All data had been read, and the round has ended.
    pub ended: bool,
}

/// A round of scrubs, as one process goes on with it.
pub struct ScrubRound {
    archive: Arc<Archive>,
    /// Dropped while nothing is read, so that no collection waits.
    guard: Option<EpochGuard>,
    tables: Arc<Tables>,
    /// The last container in them.
    last: Option<ContainerId>,
    container_reader: ContainerReader,
    packer: Packer,
    /// Containers of the present epoch that are still to be read.
    ahead: Vec<ContainerId>,
    upto: ContainerId,
    began: u64,
    since_note: u64,
    rotten: BTreeMap<ContainerId, Vec<u8>>,
    /// The part that was read so far.
    pub done: Portion,
}

impl ScrubRound {
    /// Goes on with the round that is under way, or begins one; `now` is in seconds since 1970.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn begin(archive: &Arc<Archive>, now: u64) -> Result<ScrubRound> {
        archive.commit(true, |tables| {
            let begins = tables.care.scrub_began == 0;
            // 0 is no time.
            let note = Record::CareNoted(CareNote::ScrubBegan(now.max(1)));
            Ok(begins.then_some(note).into_iter().collect())
        })?;
        let guard = EpochGuard::enter(archive)?;
        let (tables, care) = (guard.tables.clone(), guard.tables.care);
        Ok(ScrubRound {
            container_reader: ContainerReader::new(archive.clone()),
            archive: archive.clone(),
            guard: Some(guard),
            last: last_of(&tables)?,
            tables,
            packer: Packer::default(),
            ahead: Vec::new(),
            upto: care.scrubbed,
            began: care.scrub_began,
            since_note: 0,
            rotten: BTreeMap::new(),
            done: Portion::default(),
        })
    }

    /// Bytes that are still to be read by `now`, if the round is to take `seconds`; a day's share
    /// ahead, so that a process that comes once a day is enough.
    ///
    /// # Errors
    /// As [`Containers::get`](crate::Containers::get).
    pub fn due_bytes(&self, now: u64, seconds: u64) -> Result<u64> {
        const DAY: u64 = 86_400;
        let (mut read, mut all) = (0u64, 0u64);
        for container in &self.tables.containers {
            let stored = match container {
                Err(error) if is_damage(&error) => continue,
                found => found?.stored,
            };
            let bytes = u64::from(stored.place.bytes);
            all += bytes;
            read += if stored.id <= self.upto { bytes } else { 0 };
        }
        // A round that a wrong clock began is due as a whole: nobody knows when it began.
        let [began, now] = [self.began, now].map(Duration::from_secs);
        let since = age(began, now).map_or(seconds, |age| (age.as_secs() + DAY).min(seconds));
        let share = u128::from(all) * u128::from(since) / u128::from(seconds.max(1));
        Ok(u64::try_from(share).unwrap_or(u64::MAX).saturating_sub(read))
    }

    /// Reads the next container, and gives its bytes on the medium; `None` when all have been read.
    ///
    /// # Errors
    /// Errors of the system. Damage is no error: it is noted in the log.
    pub fn step(&mut self, now: u64) -> Result<Option<u64>> {
        if self.ahead.is_empty() || self.guard.is_none() {
            let guard = EpochGuard::enter(&self.archive)?;
            self.tables = guard.tables.clone();
            self.last = last_of(&self.tables)?;
            self.guard = Some(guard);
            self.look_ahead()?;
        }
        let Some(id) = self.ahead.pop() else {
            self.note(CareNote::ScrubEnded(now))?;
            self.done.ended = true;
            return Ok(None);
        };
        let bytes = self.read(id)?;
        self.upto = id;
        self.since_note += 1;
        if self.since_note >= CONTAINERS_A_NOTE {
            self.note(CareNote::Scrubbed(id))?;
        }
        Ok(Some(bytes))
    }

    /// Finds out which containers come next.
    fn look_ahead(&mut self) -> Result<()> {
        let tables = self.tables.clone();
        self.ahead.clear();
        for found in tables.containers.iter_from(ContainerId(self.upto.0.saturating_add(1))) {
            match found {
                Err(error) if is_damage(&error) => self.lost_leaf(&error),
                found => self.ahead.push(found?.stored.id),
            }
            if self.ahead.len() == CONTAINERS_AT_ONCE {
                break;
            }
        }
        self.ahead.reverse();
        Ok(())
    }

    /// A leaf of the container table is lost. The round goes on behind it.
    fn lost_leaf(&mut self, error: &Error) {
        let problem = error.to_string();
        // The same one may be met more than once.
        if !self.done.problems.contains(&problem) {
            self.done.problems_found += 1;
            let is_listed = self.done.problems.len() < PROBLEMS_LISTED;
            self.done.problems.extend(is_listed.then_some(problem));
        }
    }

    /// Nothing is read for a while: collections need not wait.
    pub fn rest(&mut self) {
        self.guard = None;
    }

    /// Notes how far the round is, or that it has read everything; durable on return. Gives what was
    /// read.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn end(mut self, now: u64) -> Result<Portion> {
        let is_through = self.last.is_none_or(|id| id <= self.upto);
        if !self.done.ended && is_through {
            self.note(CareNote::ScrubEnded(now))?;
            self.done.ended = true;
        } else if self.since_note > 0 {
            self.note(CareNote::Scrubbed(self.upto))?;
        }
        Ok(self.done)
    }

    fn read(&mut self, id: ContainerId) -> Result<u64> {
        let tables = self.tables.clone();
        let container = match tables.containers.get(&id) {
            Err(error) if is_damage(&error) => {
                self.lost_leaf(&error);
                return Ok(0);
            }
            found => found?,
        };
        let Some(container) = container else { return Ok(0) };
        if is_erased(&self.archive, container.stored.domain) {
            return Ok(0);
        }
        let mut report = Report::default();
        match self.container_reader.metadata(&container) {
            Ok(metadata) => {
                let rotten = scrub_one(
                    &self.archive,
                    &self.container_reader,
                    &container,
                    &metadata,
                    &mut self.packer,
                    &mut report,
                )?;
                // Columns on absent nodes are not lost.
                if !rotten.is_empty() && is_all_there(&self.archive, &container.stored.place) {
                    self.rotten.insert(id, bits_of(&rotten, metadata.chunks.len()));
                }
            }
            Err(error) if is_damage(&error) => report.problem(error.to_string()),
            Err(error) => return Err(error),
        }
        self.done.containers += 1;
        self.done.bytes += report.bytes;
        self.done.problems_found += report.problems_found;
        let room = PROBLEMS_LISTED - self.done.problems.len();
        self.done.problems.extend(report.problems.into_iter().take(room));
        Ok(u64::from(container.stored.place.bytes))
    }

    /// Notes damage, and how far the round is. Another process may have ended this round meanwhile:
    /// then its place is nobody's.
    fn note(&mut self, note: CareNote) -> Result<()> {
        if !self.rotten.is_empty() {
            record_damage(&self.archive, &self.rotten)?;
            self.rotten.clear();
        }
        let began = self.began;
        self.archive.commit(true, |tables| {
            let is_ours = tables.care.scrub_began == began;
            Ok(is_ours.then_some(Record::CareNoted(note)).into_iter().collect())
        })?;
        self.since_note = 0;
        Ok(())
    }
}
