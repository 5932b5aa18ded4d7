//! The archive: its label, snapshot and operations log, and the locks by which processes share it.
//!
//! Files: `label`; `snapshot-N` and `log-N`, of the label's number and the one before; `segment-N`;
//! `index-N`; `counts-N`; `reserve`; `vouched`; and the locks `lock-writer`, `lock-gc`,
//! `lock-importer`, `lock-commit`, `epoch-0`, `epoch-1`.
//!
//! *Crash argument:* one append is one frame. Whoever takes the commit lock reads to the end first.
//! The last frame may be of a process that was killed before its sync: who changes the archive
//! writes and syncs it again before anybody sees what it says, unless the file `vouched` names it,
//! which is written after the sync. Who only reads writes nothing: it has the log synced, and on
//! several nodes believes what as many copies have as a change needs. A bad frame is the torn end
//! of the log; if a later frame follows it, it is damage.
//!
//! *Locks that do not hold*, as some file servers' do, are noticed where they cost something: an
//! append finds nothing behind the end that it read, and reads its own frame back before it is
//! acknowledged.

use std::{borrow::Cow, sync::Arc};

use onefold_core::{Algorithm, Error, File, Files, Fingerprinter, Hold, Kind, Lock, Result};
use parking_lot::{Mutex, MutexGuard};

use crate::{
    block_index::{self, LEAF_MEMORY},
    check::is_damage,
    format::{
        Identity,
        bytes::{Reader, Writer, corrupt},
        container::ContainerKind,
        frame::{self, FRAME_ALIGN, FRAME_HEADER_BYTES},
        label::{Found, LABEL_BYTES, Label, choose},
        record::{Place, Record},
    },
    late::WriteCost,
    log::{LOG_BYTES_MAX, LogReader, PIECE_BYTES},
    memory::{Budget, BufferPool, Drawn},
    placement::Class,
    settings::{Format, PlantedBug, Settings},
    tables::Tables,
};

pub(crate) const LABEL: &str = "label";
const SYNCED: &str = "vouched";
const RESERVE: &str = "reserve";
const COMMIT: &str = "lock-commit";
/// Held by the ingesting process.
pub(crate) const WRITER: &str = "lock-writer";
/// Held by the collector.
pub(crate) const COLLECTOR: &str = "lock-gc";
/// Held while the chunk index is rewritten.
pub(crate) const IMPORTER: &str = "lock-importer";
const EPOCHS: [&str; 2] = ["epoch-0", "epoch-1"];

const SNAPSHOT_MAGIC: &[u8; 8] = b"ONEFSNAP";
const WRITE_COST_MAGIC: &[u8; 8] = b"ONEFWORK";
const SNAPSHOT_HEADER_BYTES: usize = 40;

/// Bytes of the reserve that are given up at once.
const RESERVE_STEP: u64 = 4 << 20;

/// An archive in the directory of one node.
pub struct Archive {
    pub(crate) files: Arc<dyn Files>,
    pub(crate) settings: Settings,
    pub(crate) identity: Identity,
    pub(crate) fingerprinter: Fingerprinter,
    label: Label,
    writes: bool,
    position: Mutex<LogPosition>,
    /// Memory for what the medium says.
    budget: Arc<Budget>,
    /// Memory of containers.
    pub(crate) buffers: Arc<BufferPool>,
}

/// What this process has seen.
struct LogPosition {
    tables: Arc<Tables>,
    /// The label's generation and number.
    generation: u64,
    snapshot: u64,
    log: Arc<dyn File>,
    /// Bytes of the log that are applied.
    end: u64,
    /// The label is known to be durable.
    label_durable: bool,
    /// A place of the label is damaged, or its last write did not arrive: `generation` is that of
    /// the label to be written before anything else.
    label_lost: bool,
    /// The first failed write or sync.
    stopped: Option<Error>,
    /// What the tables were drawn from the budget.
    drawn: Drawn,
}

/// Keeps what is read in this epoch from being freed.
pub struct EpochGuard {
    _lock: Box<dyn Lock>,
    /// The archive as of then.
    pub tables: Arc<Tables>,
}

pub(crate) fn log_name(number: u64) -> String {
    format!("log-{number:010}")
}

pub(crate) fn snapshot_name(number: u64) -> String {
    format!("snapshot-{number:010}")
}

pub(crate) fn segment_name(number: u32) -> String {
    format!("segment-{number:08}")
}

impl Archive {
    /// Makes an archive in an empty directory; durable on return.
    ///
    /// # Errors
    /// `Exists` when there is one, `NoSpace`, and those of the system.
    pub fn create(files: &dyn Files, format: &Format) -> Result<()> {
        format.late.map_or(Ok(()), |rad| rad.check(files.spread()))?;
        if find_label(files).is_ok() {
            return Err(Error::new(Kind::Exists, "there is an archive already"));
        }
        let label = Label {
            id: format.id,
            secret: format.secret,
            node: format.node,
            chunking: format.chunking,
            compression: format.compression,
            segment_bytes: format.segment_bytes,
            generation: 1,
            snapshot: 1,
            spread: files.spread(),
            late: format.late,
        };
        for name in [SYNCED, COMMIT, WRITER, COLLECTOR, IMPORTER, EPOCHS[0], EPOCHS[1]] {
            fresh(files, name)?;
        }
        let reserve = fresh(files, RESERVE)?;
        fill(&*reserve, format.reserve_bytes)?;
        reserve.sync()?;
        write_snapshot(
            files,
            &label.identity(),
            1,
            &Tables {
                next_id: 1,
                next_segment: 1,
                epoch: 1,
                ..Tables::new(files.spread(), format.late.is_some())
            },
        )?;
        fresh(files, &log_name(1))?.sync()?;
        files.sync_names()?;
        // The label comes last: without it there is no archive.
        let file = fresh(files, LABEL)?;
        // Both places say the same, so that each of them can be lost.
        for generation in 0..=label.generation {
            let label = Label { generation, ..label.clone() };
            file.write_at(label.place(), &label.encode())?;
        }
        file.sync()?;
        files.sync_names()
    }

    /// Opens an archive; with `writes` what a killed process left at the log's end is made durable.
    ///
    /// # Errors
    /// `NotFound` when there is none, `Corrupt`, `Unsupported`, and those of the system.
    pub fn open(files: Arc<dyn Files>, writes: bool, settings: Settings) -> Result<Archive> {
        loop {
            match Archive::try_open(&files, writes, &settings) {
                // What is damaged in one copy may be whole in another.
                Err(error) if error.kind() == Kind::Corrupt && files.another_copy() => {}
                opened => return opened,
            }
        }
    }

    /// True when it was opened for changes.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.writes
    }

    fn try_open(files: &Arc<dyn Files>, writes: bool, settings: &Settings) -> Result<Archive> {
        if files.spread() == [1, 1, 0] {
            find_label(&**files)?;
        }
        let _lock = files.lock(COMMIT, if writes { Hold::Alone } else { Hold::Shared }, true)?;
        files.settle(writes)?;
        let (label, _) = look_for_label(&**files, settings.has(PlantedBug::LabelCopyUnread))?;
        if label.spread != files.spread() {
            let what = if label.spread[0] > 1 {
                "this is one node of an archive; name the archive, or give all nodes"
            } else {
                "this archive has one node"
            };
            return Err(Error::new(Kind::Unsupported, what));
        }
        let identity = label.identity();
        let budget = Budget::new(settings.memory);
        let position = LogPosition::load_newest(files, &identity, &label, settings, None, &budget)?;
        let archive = Archive {
            fingerprinter: Fingerprinter::new(Algorithm::Blake3, label.secret),
            identity,
            label,
            writes,
            settings: settings.clone(),
            files: files.clone(),
            position: Mutex::new(position),
            budget,
            buffers: Arc::default(),
        };
        archive.replay_new_frames(&mut archive.position.lock())?;
        Ok(archive)
    }

    /// Containers begin at multiples of this in segments of a class.
    pub(crate) fn place_align(&self, class: Class) -> u64 {
        crate::tables::PLACE_ALIGN * u64::from(self.label.data(class))
    }

    /// Where a put writes what holds this: recipes are read and changed as a whole, and stand
    /// encoded from the beginning.
    pub(crate) fn class_of(&self, kind: ContainerKind) -> Class {
        if self.label.late.is_some() && kind == ContainerKind::Data {
            Class::Replicated
        } else {
            Class::Plain
        }
    }

    /// True when no node is absent that has a part of what lies there.
    pub(crate) fn is_all_there(&self, place: &Place) -> bool {
        self.files.is_whole(&segment_name(place.segment)).unwrap_or(false)
    }

    /// What the label says.
    pub fn label(&self) -> &Label {
        &self.label
    }

    /// The archive as of the last look at the log.
    pub fn tables(&self) -> Arc<Tables> {
        self.position.lock().tables.clone()
    }

    /// Looks at the log, and gives the archive as of now.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn refresh(&self) -> Result<Arc<Tables>> {
        let (mut position, _lock) = self.locked()?;
        self.replay_new_frames(&mut position)?;
        Ok(position.tables.clone())
    }

    /// Stays in the epoch of now: what the returned tables name can be read until the value is
    /// dropped.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn guard_epoch(&self) -> Result<EpochGuard> {
        loop {
            let epoch = self.refresh()?.epoch;
            let lock = self.files.lock(EPOCHS[epoch as usize % 2], Hold::Shared, true)?;
            let tables = self.refresh()?;
            if tables.epoch == epoch {
                return Ok(EpochGuard { _lock: lock, tables });
            }
        }
    }

    /// Returns when nobody stays in the epoch before `epoch`, which is the present one.
    ///
    /// # Errors
    /// `Busy` when somebody does and nobody waits.
    pub(crate) fn await_earlier_epoch(&self, epoch: u32, wait: bool) -> Result<()> {
        self.files.lock(EPOCHS[(epoch as usize + 1) % 2], Hold::Alone, wait).map(|_| ())
    }

    /// Changes the archive: `decide` sees it as of the log's end and says what changes. Durable on
    /// return. `may_use_reserve` changes free space, and may use the reserve.
    ///
    /// # Errors
    /// Those of `decide`; `NoSpace`; `Stopped` after an earlier failure; those of the system.
    pub(crate) fn commit(
        &self,
        may_use_reserve: bool,
        decide: impl FnOnce(&Tables) -> Result<Vec<Record>>,
    ) -> Result<Arc<Tables>> {
        let (mut position, _lock) = self.locked()?;
        if let Some(reason) = &position.stopped {
            return Err(Error::new(Kind::Stopped, format!("an earlier failure: {reason}")));
        }
        self.replay_new_frames(&mut position)?;
        let records = decide(&position.tables)?;
        if !records.is_empty() {
            self.append(&mut position, records, may_use_reserve)?;
            if position.end >= self.settings.log_bytes {
                self.snapshot(&mut position, may_use_reserve)?;
            }
        }
        Ok(position.tables.clone())
    }

    /// Does something while nobody else changes the archive: its log is read to the end.
    pub(crate) fn exclusively<T>(&self, does: impl FnOnce() -> Result<T>) -> Result<T> {
        let (mut position, _lock) = self.locked()?;
        self.replay_new_frames(&mut position)?;
        does()
    }

    fn locked(&self) -> Result<(MutexGuard<'_, LogPosition>, Box<dyn Lock>)> {
        let position = self.position.lock();
        let lock =
            self.files.lock(COMMIT, if self.writes { Hold::Alone } else { Hold::Shared }, true)?;
        self.files.settle(self.writes)?;
        Ok((position, lock))
    }

    fn append(
        &self,
        position: &mut LogPosition,
        records: Vec<Record>,
        may_use_reserve: bool,
    ) -> Result<()> {
        let tables = &position.tables;
        let sequence = tables.sequence + 1;
        let mut next = Tables::clone(tables);
        let payload = Record::encode_all(&records);
        if payload.len() > self.settings.frame_bytes {
            // Readers take a longer one for a torn end.
            let what = format!(
                "it takes {} bytes of the operations log at once, and {} is the most",
                payload.len(),
                self.settings.frame_bytes
            );
            return Err(Error::new(
                Kind::InvalidInput,
                format!("{what}; nothing was changed: do it in smaller parts"),
            ));
        }
        fits(position.end, payload.len())?;
        let (bytes, checksum) =
            frame::encode(&self.identity, sequence, tables.epoch, tables.chain, &payload);
        next.apply(sequence, records)?;
        next.chain = checksum;
        if !position.label_durable {
            self.make_label_durable(position)?;
        }
        self.nothing_follows(position)?;
        let written = loop {
            let synced = position
                .log
                .write_at(position.end, &bytes)
                .and_then(|()| self.sync(&*position.log))
                .and_then(|()| self.files.confirm());
            match synced.and_then(|()| reads_back(&*position.log, position.end, &bytes)) {
                Err(error)
                    if error.kind() == Kind::NoSpace
                        && may_use_reserve
                        && self.spend_reserve()? => {}
                done => break done,
            }
        };
        if let Err(error) = written {
            // A full disk leaves a torn end, which the next append overwrites.
            if error.kind() != Kind::NoSpace {
                position.stopped = Some(error.clone());
            }
            return Err(error);
        }
        position.end += bytes.len() as u64;
        position.tables = Arc::new(next);
        self.record_synced(sequence, position.snapshot)
    }

    /// Makes a file durable, or fails for good: after a failed sync its data may be gone from
    /// memory, and the next one succeeds without them.
    pub(crate) fn sync(&self, file: &dyn File) -> Result<()> {
        match file.sync() {
            Err(_) if self.settings.has(PlantedBug::SyncRetried) => file.sync(),
            synced => synced,
        }
    }

    /// Errors when somebody appended since the end was read, although we hold the lock.
    fn nothing_follows(&self, position: &mut LogPosition) -> Result<()> {
        let mut frames = LogReader::new(&*position.log, position.end, &position.drawn)?;
        let next = frames.frame(&self.identity, self.settings.has(PlantedBug::TornTailBelieved))?;
        let follows = next.is_some_and(|(frame, before)| {
            Some(frame.sequence) == position.tables.sequence.checked_add(1)
                && before == position.tables.chain
        });
        if follows {
            return Err(position.stopped.insert(locks_fail()).clone());
        }
        if frames.goes_on(&self.identity, position.tables.sequence)? {
            Err(later_changes(position.tables.sequence))
        } else {
            Ok(())
        }
    }

    /// A label that a killed process wrote may be in memory only. What is appended to the log that
    /// it names must not be lost with it.
    fn make_label_durable(&self, position: &mut LogPosition) -> Result<()> {
        if position.label_lost || self.recorded_synced()?.1 < position.snapshot {
            let label = Label {
                generation: position.generation,
                snapshot: position.snapshot,
                ..self.label.clone()
            };
            let file = self.files.open(LABEL)?;
            file.write_at(label.place(), &label.encode())?;
            file.sync()?;
        }
        (position.label_durable, position.label_lost) = (true, false);
        // A crash may have lost the space that was taken for the log. A disk that is full gives
        // none.
        match position.log.reserve(0, self.settings.log_ahead_bytes) {
            Err(error) if error.kind() != Kind::NoSpace => Err(error),
            _ => Ok(()),
        }
    }

    /// Says that frame and label are durable; said after their syncs, so that it is true whenever
    /// it is read.
    fn record_synced(&self, sequence: u64, snapshot: u64) -> Result<()> {
        let mut w = Writer::default();
        w.u64(sequence).u64(snapshot);
        let checksum = self.identity.checksum(&w.0);
        w.u64(checksum);
        // Only saves the next process a sync.
        match self.files.open(SYNCED)?.write_at(0, &w.0) {
            Err(error) if error.kind() != Kind::NoSpace => Err(error),
            _ => Ok(()),
        }
    }

    /// The last frame and the label that are known to be durable.
    fn recorded_synced(&self) -> Result<(u64, u64)> {
        let mut bytes = [0; 24];
        match self.files.open(SYNCED)?.read_at(0, &mut bytes) {
            Ok(n) if n == bytes.len() => {}
            // Without it a sync more is needed.
            Err(error) if error.kind() != Kind::Io => return Err(error),
            _ => return Ok((0, 0)),
        }
        let mut r = Reader(&bytes, None);
        let said = (r.u64()?, r.u64()?);
        Ok(if self.identity.checksum(&bytes[..16]) == r.u64()? { said } else { (0, 0) })
    }

    /// Reads the log from where this process stopped to its end. The commit lock is held.
    fn replay_new_frames(&self, position: &mut LogPosition) -> Result<()> {
        let (label, is_damaged) =
            look_for_label(&*self.files, self.settings.has(PlantedBug::LabelCopyUnread))?;
        // First, so that the log has at least this even where locks do not hold.
        let recorded = self.recorded_synced()?.0;
        // A damaged place of the label may have named another log, where what is new is.
        if label.snapshot != position.snapshot || is_damaged && recorded > position.tables.sequence
        {
            let stopped = position.stopped.take();
            // What is known is drawn anew.
            position.drawn = Drawn::default();
            *position = LogPosition::load_newest(
                &self.files,
                &self.identity,
                &label,
                &self.settings,
                Some(&position.tables),
                &self.budget,
            )?;
            position.stopped = stopped;
        }
        position.generation = position.generation.max(label.generation);
        if self.budget.is_bounded() {
            self.budget.occupied(occupied(&*self.files, position.snapshot));
        }
        let mut replayed = Replayed::of(&position.tables);
        replay(
            &*position.log,
            position.end,
            &self.identity,
            &mut replayed,
            &position.drawn,
            &self.settings,
            u64::MAX,
        )?;
        if recorded > replayed.tables.sequence && !self.settings.has(PlantedBug::LogEndBelieved) {
            return Err(changes_lost(replayed.tables.sequence, recorded));
        }
        let Replayed { tables: Cow::Owned(tables), end, last } = replayed else { return Ok(()) };
        let unsure = tables.sequence > recorded && !self.settings.has(PlantedBug::TailShownEarly);
        if unsure && self.writes {
            position.log.write_at(end - last.len() as u64, &last)?;
            position.log.sync()?;
            self.files.confirm()?;
            self.make_label_durable(position)?;
            self.record_synced(tables.sequence, position.snapshot)?;
        } else if unsure && !self.settings.has(PlantedBug::TailReadEarly) {
            return self.replay_lasting_frames(position, tables, end, recorded);
        }
        (position.tables, position.end) = (Arc::new(tables), end);
        Ok(())
    }

    /// For who writes nothing: makes frames durable that nobody recorded as synced, and believes
    /// those that can't vanish any more. `tables` have all frames up to byte `end`.
    fn replay_lasting_frames(
        &self,
        position: &mut LogPosition,
        tables: Tables,
        end: u64,
        recorded: u64,
    ) -> Result<()> {
        let name = log_name(position.snapshot);
        let mut frames = LogReader::new(&*position.log, position.end, &position.drawn)?;
        let (mut at, mut unsure) = (position.end, Vec::new());
        while at < end {
            let Some((frame, _)) =
                frames.frame(&self.identity, self.settings.has(PlantedBug::TornTailBelieved))?
            else {
                break;
            };
            let (sequence, bytes) = (frame.sequence, frame.bytes);
            if sequence > recorded {
                position.drawn.more(bytes)?;
                unsure.push((sequence, at, frames.whole(bytes)?));
            }
            frames.pass(bytes);
            at += bytes;
        }
        let from = unsure.first().map_or(end, |(_, at, _)| *at);
        let all: Vec<u8> = unsure.iter().flat_map(|(_, _, bytes)| bytes).copied().collect();
        if self.files.keeps(&name, from, &all)? {
            (position.tables, position.end) = (Arc::new(tables), end);
            return Ok(());
        }
        let mut upto = tables.sequence - unsure.len() as u64;
        for (sequence, at, bytes) in &unsure {
            if !self.files.keeps(&name, *at, bytes)? {
                break;
            }
            upto = *sequence;
        }
        let mut replayed = Replayed::of(&position.tables);
        replay(
            &*position.log,
            position.end,
            &self.identity,
            &mut replayed,
            &position.drawn,
            &self.settings,
            upto,
        )?;
        if let Replayed { tables: Cow::Owned(tables), end, .. } = replayed {
            (position.tables, position.end) = (Arc::new(tables), end);
        }
        Ok(())
    }

    /// Takes a snapshot and begins a new log. The commit lock is held. A full disk only puts it
    /// off.
    fn snapshot(&self, position: &mut LogPosition, may_use_reserve: bool) -> Result<()> {
        loop {
            match self.try_snapshot(position) {
                Err(error)
                    if error.kind() == Kind::NoSpace
                        && may_use_reserve
                        && self.spend_reserve()? => {}
                Err(error) if error.kind() == Kind::NoSpace => {
                    // The log goes on in the space that was taken for it; what is half made makes
                    // room.
                    for name in
                        [snapshot_name(position.snapshot + 1), log_name(position.snapshot + 1)]
                    {
                        match self.files.remove(&name) {
                            Err(error) if error.kind() != Kind::NotFound => return Err(error),
                            _ => {}
                        }
                    }
                    return Ok(());
                }
                Err(error) => {
                    position.stopped = Some(error.clone());
                    return Err(error);
                }
                Ok(()) => return Ok(()),
            }
        }
    }

    fn try_snapshot(&self, position: &mut LogPosition) -> Result<()> {
        let number = position.snapshot + 1;
        let mut tables = Tables::clone(&position.tables);
        block_index::write(&*self.files, &self.identity, number, &mut tables)?;
        write_snapshot(&*self.files, &self.identity, number, &tables)?;
        let log = fresh(&*self.files, &log_name(number))?;
        log.reserve(0, self.settings.log_ahead_bytes)?;
        log.sync()?;
        self.files.sync_names()?;
        let label =
            Label { generation: position.generation + 1, snapshot: number, ..self.label.clone() };
        let file = self.files.open(LABEL)?;
        file.write_at(label.place(), &label.encode())?;
        file.sync()?;
        self.files.confirm()?;
        (
            position.generation,
            position.snapshot,
            position.log,
            position.end,
            position.label_durable,
        ) = (label.generation, number, log, 0, true);
        position.tables = Arc::new(tables);
        for name in [snapshot_name(number.saturating_sub(2)), log_name(number.saturating_sub(2))] {
            match self.files.remove(&name) {
                Err(error) if error.kind() != Kind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Gives a part of the reserve back to the file system; false when nothing is left of it.
    pub(crate) fn spend_reserve(&self) -> Result<bool> {
        let reserve = self.files.open(RESERVE)?;
        let bytes = reserve.bytes()?;
        if bytes == 0 {
            return Ok(false);
        }
        reserve.set_bytes(bytes.saturating_sub(RESERVE_STEP))?;
        reserve.sync()?;
        Ok(true)
    }

    /// Takes the reserve again after collection; a disk that is still full gives what it has.
    pub(crate) fn restore_reserve(&self, bytes: u64) -> Result<()> {
        match fill(&*self.files.open(RESERVE)?, bytes) {
            Err(error) if error.kind() != Kind::NoSpace => Err(error),
            _ => Ok(()),
        }
    }

    /// Bytes held back for deletion on a full disk.
    ///
    /// # Errors
    /// Those of the system.
    pub fn reserve_bytes(&self) -> Result<u64> {
        self.files.open(RESERVE)?.bytes()
    }

    /// Removes the stream `name`; durable on return.
    ///
    /// # Errors
    /// `NotFound`, and as for every change.
    pub fn remove(&self, name: &str) -> Result<()> {
        let decide = |tables: &Tables| match tables.streams.contains_key(name) {
            true => Ok(vec![Record::Removed { name: name.to_owned() }]),
            false => Err(no_stream(name)),
        };
        self.commit(true, decide).map(|_| ())
    }

    /// Gives a stream another name; durable on return.
    ///
    /// # Errors
    /// `NotFound`, `Exists`, `InvalidInput`, and as for every change.
    pub fn rename(&self, from: &str, to: &str) -> Result<()> {
        crate::tables::valid_name(to)?;
        let decide = |tables: &Tables| {
            if !tables.streams.contains_key(from) {
                return Err(no_stream(from));
            }
            if tables.streams.contains_key(to) {
                return Err(Error::new(Kind::Exists, format!("there is a stream '{to}' already")));
            }
            Ok(vec![Record::Renamed { from: from.to_owned(), to: to.to_owned() }])
        };
        self.commit(true, decide).map(|_| ())
    }
}

/// The error for a name that is not in the catalogue.
pub(crate) fn no_stream(name: &str) -> Error {
    Error::new(Kind::NotFound, format!("there is no stream '{}'", name.escape_debug()))
}

/// The label that counts.
///
/// # Errors
/// `NotFound` when there is no archive, `Corrupt`, `Unsupported`.
pub fn find_label(files: &dyn Files) -> Result<Label> {
    look_for_label(files, false).map(|(label, _)| label)
}

/// The label that counts, and whether one of its places is damaged; then the other one was newer,
/// or it was not. `strict` is a planted bug.
fn look_for_label(files: &dyn Files, strict: bool) -> Result<(Label, bool)> {
    let file = files.open(LABEL).map_err(|e| {
        if e.kind() == Kind::NotFound { Error::new(Kind::NotFound, "no archive") } else { e }
    })?;
    let is_empty = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
    let look = |place: u64| -> Result<Found> {
        let mut bytes = vec![0; LABEL_BYTES];
        match file.read_at(place, &mut bytes) {
            Err(error) if error.kind() == Kind::Io && !strict => Ok(Found::Bad(error)),
            read => match Label::decode(&bytes[..read?]) {
                Found::Foreign if !is_empty(&bytes) => {
                    Ok(Found::Bad(corrupt("the label is none of an archive")))
                }
                found => Ok(found),
            },
        }
    };
    let (first, second) = (look(0)?, look(LABEL_BYTES as u64)?);
    let is_damaged = ![&first, &second].into_iter().all(|found| matches!(found, Found::Good(_)));
    match choose(first, second) {
        Err(error) if is_damage(&error) => {
            Err(error.context(format!("both places of the label are damaged; {PUT_BACK}")))
        }
        chosen => chosen.map(|label| (label, is_damaged)),
    }
}

impl LogPosition {
    /// What a label names, or the log behind it. When the last label was lost, the one before is
    /// there, with its snapshot and log; the next log goes on from there, and only a label that
    /// was durable lets anybody write to it.
    fn load_newest(
        files: &Arc<dyn Files>,
        identity: &Identity,
        label: &Label,
        settings: &Settings,
        before: Option<&Tables>,
        budget: &Arc<Budget>,
    ) -> Result<LogPosition> {
        let is_damaged = look_for_label(&**files, false)?.1;
        let mut position = LogPosition::load(files, identity, label, settings, before, budget)?;
        let is_old = !settings.has(PlantedBug::OldLabelTaken)
            && position.log_goes_on(&**files, identity, settings)?;
        if is_old {
            let next = Label { snapshot: label.snapshot + 1, ..label.clone() };
            position.drawn = Drawn::default();
            position = LogPosition::load(
                files,
                identity,
                &next,
                settings,
                Some(&position.tables),
                budget,
            )?;
        }
        if is_old || is_damaged {
            (position.generation, position.label_lost) = (label.generation + 1, true);
        }
        Ok(position)
    }

    /// True when the log after this one has changes that follow the end of this one.
    fn log_goes_on(
        &self,
        files: &dyn Files,
        identity: &Identity,
        settings: &Settings,
    ) -> Result<bool> {
        let next = match files.open(&log_name(self.snapshot + 1)) {
            Err(error) if error.kind() == Kind::NotFound => return Ok(false),
            opened => opened?,
        };
        let drawn = Drawn::default();
        let mut frames = LogReader::new(&*next, 0, &drawn)?;
        let Some((frame, before)) = frames.frame(identity, false)? else { return Ok(false) };
        let mut replayed = Replayed::of(&self.tables);
        replay(&*self.log, 0, identity, &mut replayed, &drawn, settings, u64::MAX)?;
        Ok(replayed.tables.sequence.checked_add(1) == Some(frame.sequence)
            && replayed.tables.chain == before)
    }

    /// `before` is what the process knew of it.
    fn load(
        files: &Arc<dyn Files>,
        identity: &Identity,
        label: &Label,
        settings: &Settings,
        before: Option<&Tables>,
        budget: &Arc<Budget>,
    ) -> Result<LogPosition> {
        let open = |number| files.open(&log_name(number));
        let late = label.late.is_some();
        if budget.is_bounded() {
            budget.occupied(occupied(&**files, label.snapshot));
        }
        let mut drawn = Drawn::from(budget);
        let tables = match read_snapshot(&**files, identity, label.snapshot, late, before, &drawn) {
            Ok(tables) => tables,
            // The one before, and all of its log, say the same.
            Err(error) if is_damage(&error) && label.snapshot > 1 => {
                drawn = Drawn::from(budget);
                let tables =
                    read_snapshot(&**files, identity, label.snapshot - 1, late, None, &drawn)
                        .map_err(|_| error.clone())?;
                let mut replayed = Replayed::of(&tables);
                replay(
                    &*open(label.snapshot - 1)?,
                    0,
                    identity,
                    &mut replayed,
                    &drawn,
                    settings,
                    u64::MAX,
                )?;
                replayed.tables.into_owned()
            }
            Err(error) => return Err(error),
        };
        let log = open(label.snapshot)?;
        Ok(LogPosition {
            tables: Arc::new(tables),
            generation: label.generation,
            snapshot: label.snapshot,
            log,
            end: 0,
            label_durable: false,
            label_lost: false,
            stopped: None,
            drawn,
        })
    }
}

/// Bytes that the metadata of an archive occupies which is held in memory.
fn occupied(files: &dyn Files, snapshot: u64) -> u64 {
    let before = snapshot.saturating_sub(1);
    let names = [
        snapshot_name(snapshot),
        log_name(snapshot),
        snapshot_name(before),
        log_name(before),
        block_index::MAPS.to_owned(),
    ];
    names
        .iter()
        .map(|name| files.open(name).and_then(|file| file.occupied()).unwrap_or(0))
        .fold(0, u64::saturating_add)
}

/// The tables, as far as a log was followed.
struct Replayed<'a> {
    /// Those that were there before, as long as nothing was new.
    tables: Cow<'a, Tables>,
    /// Where the log ends.
    end: u64,
    /// Its last frame, as it was written.
    last: Vec<u8>,
}

impl Replayed<'_> {
    fn of(tables: &Tables) -> Replayed<'_> {
        Replayed { tables: Cow::Borrowed(tables), end: 0, last: Vec::new() }
    }
}

/// Applies the frames of a log from byte `from` on, which follow the tables; none behind number
/// `upto`.
fn replay(
    log: &dyn File,
    from: u64,
    identity: &Identity,
    to: &mut Replayed<'_>,
    drawn: &Drawn,
    settings: &Settings,
    upto: u64,
) -> Result<()> {
    let mut frames = LogReader::new(log, from, drawn)?;
    to.end = from;
    while let Some((frame, before)) =
        frames.frame(identity, settings.has(PlantedBug::TornTailBelieved))?
    {
        if Some(frame.sequence) != to.tables.sequence.checked_add(1)
            || before != to.tables.chain
            || frame.sequence > upto
        {
            break;
        }
        let (sequence, checksum, bytes) = (frame.sequence, frame.checksum, frame.bytes);
        let records = Record::decode_within(frame.payload, drawn)?;
        drawn.more(to.tables.new_leaves(&records) * LEAF_MEMORY)?;
        let tables = to.tables.to_mut();
        tables.apply(sequence, records).map_err(|e| e.context("the operations log"))?;
        tables.chain = checksum;
        to.last = frames.whole(bytes)?;
        to.end += bytes;
        frames.pass(bytes);
    }
    if to.tables.sequence < upto && frames.goes_on(identity, to.tables.sequence)? {
        Err(later_changes(to.tables.sequence))
    } else {
        Ok(())
    }
}

fn later_changes(sequence: u64) -> Error {
    let what = format!(
        "the operations log is damaged behind change {sequence}: later changes are there, this one is not"
    );
    corrupt(format!("{what}; {PUT_BACK}"))
}

fn changes_lost(sequence: u64, recorded: u64) -> Error {
    let what = format!(
        "the operations log is damaged behind change {sequence}: it ends there, and change {recorded} was durable"
    );
    corrupt(format!(
        "{what}; {PUT_BACK}, or empty the file `{SYNCED}` to go on without these changes"
    ))
}

/// What to do about a log, which has no second copy on one node.
const PUT_BACK: &str = "put the file back from a copy of the archive";

/// Errors unless the log has these bytes where they were written: who else wrote there had the lock
/// too.
fn reads_back(log: &dyn File, at: u64, bytes: &[u8]) -> Result<()> {
    let mut found = vec![0; bytes.len()];
    let n = log.read_at(at, &mut found)?;
    if n == bytes.len() && found == bytes { Ok(()) } else { Err(locks_fail()) }
}

fn locks_fail() -> Error {
    let why = "the operations log is not what we wrote: another process wrote to it while we held its lock, as locks do not hold on this file system, \
               or the disk loses writes; nothing more is written";
    Error::new(Kind::Io, why)
}

/// Errors unless a log that is so long can be read with a frame of so many bytes of records more.
fn fits(log: u64, payload: usize) -> Result<()> {
    if log + payload as u64 + FRAME_ALIGN + FRAME_HEADER_BYTES as u64 <= LOG_BYTES_MAX {
        return Ok(());
    }
    let why = "the operations log is full, and the disk has no room for the snapshot that would begin another one";
    Err(Error::new(Kind::NoSpace, why))
}

/// An empty file of this name; what a crash left there is gone.
pub(crate) fn fresh(files: &dyn Files, name: &str) -> Result<Arc<dyn File>> {
    match files.create(name) {
        Err(error) if error.kind() == Kind::Exists => {
            files.remove(name)?;
            files.create(name)
        }
        made => made,
    }
}

fn write_snapshot(
    files: &dyn Files,
    identity: &Identity,
    number: u64,
    tables: &Tables,
) -> Result<()> {
    let body = tables.encode();
    let mut w = Writer(Vec::with_capacity(SNAPSHOT_HEADER_BYTES + body.len()));
    w.raw(SNAPSHOT_MAGIC).u64(number).u64(body.len() as u64).u64(identity.checksum(&body));
    let checksum = identity.checksum(&w.0);
    w.u64(checksum).raw(&body);
    // Behind what counts: programs that do not know it do not look at it.
    let at = w.0.len();
    w.raw(WRITE_COST_MAGIC);
    tables.write_cost.encode(&mut w);
    let checksum = identity.checksum(&w.0[at..]);
    w.u64(checksum);
    let file = fresh(files, &snapshot_name(number))?;
    file.write_at(0, &w.0)?;
    file.sync()
}

fn read_snapshot(
    files: &dyn Files,
    identity: &Identity,
    number: u64,
    late: bool,
    before: Option<&Tables>,
    drawn: &Drawn,
) -> Result<Tables> {
    let damaged = |why: &str| corrupt(format!("snapshot {number}: {why}"));
    let file = files
        .open(&snapshot_name(number))
        .map_err(|e| if e.kind() == Kind::NotFound { damaged("it is not there") } else { e })?;
    let mut header = [0; SNAPSHOT_HEADER_BYTES];
    if file.read_at(0, &mut header)? < SNAPSHOT_HEADER_BYTES {
        return Err(damaged("it ends too early"));
    }
    let mut r = Reader(&header, None);
    let (magic, found, length, sum) = (r.take(8)?, r.u64()?, r.u64()?, r.u64()?);
    if magic != SNAPSHOT_MAGIC
        || found != number
        || r.u64()? != identity.checksum(&header[..SNAPSHOT_HEADER_BYTES - 8])
    {
        return Err(damaged("its header is damaged"));
    }
    let end = length
        .checked_add(SNAPSHOT_HEADER_BYTES as u64)
        .filter(|&end| file.bytes().is_ok_and(|bytes| end <= bytes));
    let end = end.ok_or_else(|| damaged("it ends too early"))?;
    let whole = |e: Error| {
        if e.kind() == Kind::Memory { e } else { e.context(format!("snapshot {number}")) }
    };
    let body = read_body(&*file, length, drawn).map_err(whole)?;
    if identity.checksum(&body) != sum {
        return Err(damaged("it fails its checksum"));
    }
    let read = Tables::decode_within(&body, files.spread(), late, drawn).and_then(|mut tables| {
        drop(body);
        tables.write_cost = read_write_cost(&*file, identity, end)?;
        block_index::load(files, identity, &mut tables, before, drawn)?;
        Ok(tables)
    });
    read.map_err(whole)
}

/// The tables of a snapshot, in pieces; each is drawn before memory is taken.
fn read_body(file: &dyn File, length: u64, drawn: &Drawn) -> Result<Vec<u8>> {
    drawn.more(length)?;
    let mut body = Vec::new();
    while (body.len() as u64) < length {
        let (from, n) = (body.len(), (length - body.len() as u64).min(PIECE_BYTES as u64) as usize);
        body.resize(from + n, 0);
        if file.read_at((SNAPSHOT_HEADER_BYTES + from) as u64, &mut body[from..])? < n {
            return Err(corrupt("it ends too early"));
        }
    }
    Ok(body)
}

/// What writing cost so far, as it stands behind a snapshot; nothing when it is not there, or
/// damaged.
fn read_write_cost(file: &dyn File, identity: &Identity, at: u64) -> Result<WriteCost> {
    let mut bytes = [0; 16 + WriteCost::BYTES];
    let n = file.read_at(at, &mut bytes)?;
    let (body, checksum) = bytes.split_at(8 + WriteCost::BYTES);
    if n < bytes.len()
        || !body.starts_with(WRITE_COST_MAGIC)
        || identity.checksum(body).to_le_bytes() != *checksum
    {
        return Ok(WriteCost::default());
    }
    WriteCost::decode(&mut Reader(&body[8..], None))
}

/// Writes `bytes` bytes that take space.
fn fill(file: &dyn File, bytes: u64) -> Result<()> {
    const STEP: usize = 64 << 10;
    let noise: Vec<u8> =
        (0..STEP as u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let mut at = file.bytes()?;
    while at < bytes {
        let n = STEP.min((bytes - at) as usize);
        file.write_at(at, &noise[..n])?;
        at += n as u64;
    }
    Ok(())
}
