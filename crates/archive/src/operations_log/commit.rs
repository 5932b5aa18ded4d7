//! Changes appended to the log, and those of other processes replayed.

use std::{borrow::Cow, sync::Arc};

use onefold_core::{Error, Kind, Result};

use super::{
    archive::Archive,
    data_keys::end_changes,
    domain::Domain,
    domains::{domain_of, follow_data_keys, forget_erased},
    frames::{Replayed, changes_lost, ends_here, fits, locks_fail, log_full, replay},
    heads::{self, FrameHash},
    label::{is_label_durable, make_label_durable, record_synced, recorded_synced},
    next_log::NextLog,
    position::{LogPosition, occupied},
    roles::{fit_roles, is_put},
    upgrade::upgraded_meanwhile,
};
use crate::{
    erasure::Redundancy,
    format::{
        domain::FIRST_DOMAIN,
        frame,
        frame::FRAME_SEALED_MAX,
        label::{Label, look_for_proven},
        log_reader::LogReader,
        names::log_name,
        record::Record,
        sealing::Role,
    },
    memory::Drawn,
    rules::Rule,
    tables::{MANAGE, Tables, refuse_numbers_of_before, refused},
};

impl Archive {
    /// The first domain, by its newest data key.
    ///
    /// # Errors
    /// The errors of reading the key area. `Denied`: the key area and the log are not of one time.
    pub(crate) fn first_domain(&self) -> Result<Arc<Domain>> {
        domain_of(self, FIRST_DOMAIN)
    }

    /// Ends changes and erasures of data keys that a crash cut off. The archive was opened to write.
    pub(super) fn end_key_changes(&self) -> Result<()> {
        end_changes(self)
    }

    /// Changes the archive: `decide` sees it as of the log's end and says what changes. Durable on
    /// return. `may_use_reserve` changes free space, and may use the reserve.
    ///
    /// # Errors
    /// The errors of `decide`; `NoSpace`; `Stopped` after an earlier failure; errors of the
    /// system.
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
            if is_put(self) {
                self.append(&mut position, records, false)?;
                return Ok(position.tables.clone());
            }
            if position.tables.derived.moved.count() > self.settings.moved_max / 16
                && self.keeps(Rule::MergesLimited)
            {
                NextLog::of(self, &mut position).begin(may_use_reserve)?;
            }
            self.begin_anew_if_left_full(&mut position, may_use_reserve)?;
            self.append(&mut position, records, may_use_reserve)?;
            // Leaves that were written ahead stay in memory too.
            let held = position.tables.held_leaves();
            let is_long = position.end >= self.settings.log_bytes;
            if is_long || held > self.settings.changed_leaves || are_maps_due(self, &position) {
                NextLog::of(self, &mut position).begin(may_use_reserve)?;
            }
        }
        Ok(position.tables.clone())
    }

    /// Begins a new log where put keys left one that is long, or that has many of their frames: they begin none,
    /// and may have filled it so that not one frame more fits in. Who opens the archive judges each frame.
    fn begin_anew_if_left_full(
        &self,
        position: &mut LogPosition,
        may_use_reserve: bool,
    ) -> Result<()> {
        let is_long = position.end >= self.settings.log_bytes
            || position.hashes.len() as u64 >= heads::KEPT / 2
            || position.frames_of_others >= self.settings.put_frames;
        if self.role() == Some(Role::Manage) && is_long {
            NextLog::of(self, position).begin(may_use_reserve)?;
        }
        Ok(())
    }

    fn append(
        &self,
        position: &mut LogPosition,
        records: Vec<Record>,
        may_use_reserve: bool,
    ) -> Result<()> {
        let tables = &position.tables;
        let sequence = tables.sequence + 1;
        let is_hostile = !self.keeps(Rule::PutJudgesItself);
        if !is_hostile {
            fit_roles(self, &records)?;
        }
        if self.keeps(Rule::DataKeyChangedAlone) {
            refuse_numbers_of_before(tables, &records)?;
        }
        let notes = match self.role() {
            Some(Role::Put(number)) if !is_hostile => {
                // Nobody but manage may begin another log.
                if position.end >= self.settings.put_log_bytes {
                    return Err(needs_manage(position.end));
                }
                Some((number, tables.judge_put(number, &records, &self.settings).map_err(refused)?))
            }
            _ => None,
        };
        if self.role() == Some(Role::Manage) {
            tables.judge_manage(&records)?;
        }
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
        if notes.is_some() && !Record::fit_put(&records, payload.len()) {
            let why =
                "a put key changes so much in several steps only: back up fewer files at once";
            return Err(Error::new(Kind::InvalidInput, format!("{why}; nothing was changed")));
        }
        fits(position.end, payload.len() + FRAME_SEALED_MAX)?;
        let (bytes, checksum) = frame::encode_behind(
            &self.identity,
            (sequence, tables.epoch),
            (tables.chain, &tables.head),
            &payload,
        )?;
        #[cfg(feature = "planted-bugs")]
        (next.derived.clones_uncounted = !self.keeps(Rule::ClonesCounted));
        match next.apply(sequence, records) {
            // Such a program writes also what can't be.
            Err(_) if is_hostile => {
                next = Tables::clone(tables);
                next.pass_over(sequence, MANAGE);
            }
            applied => applied?,
        }
        if let Some((number, notes)) = notes {
            next.note_put(number, notes);
        }
        next.chain = checksum;
        let hash = heads::take(&mut next, &bytes);
        if position.hashes.len() as u64 >= heads::KEPT {
            return Err(log_full());
        }
        if next.derived.moved.count() > tables.derived.moved.count().max(self.settings.moved_max)
            && tables.derived.moved.count() > 0
            && self.keeps(Rule::MergesLimited)
        {
            return Err(log_full());
        }
        if !position.label_durable {
            make_label_durable(self, position)?;
        }
        self.nothing_follows(position)?;
        // Nodes that lack a unit of a container leave before the frame lists it. A crash may leave
        // the frame, and then nobody knows any more who failed.
        self.files.confirm()?;
        if !self.keeps(Rule::HeadsNotedWhenDurable) {
            heads::saw(&self.settings, &self.label, &next);
        }
        let written = loop {
            let synced = position
                .log
                .write_at(position.end, &bytes)
                .and_then(|()| self.sync(&*position.log))
                .and_then(|()| self.files.confirm());
            match synced.and_then(|()| read_back(&*self.files, position, &bytes)) {
                Err(error)
                    if error.kind() == Kind::NoSpace
                        && may_use_reserve
                        && self.reserve().spend()? => {}
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
        position.hashes.extend(hash);
        position.tables = Arc::new(next);
        forget_erased(self, &position.tables);
        follow_data_keys(self, &position.tables)?;
        heads::saw(&self.settings, &self.label, &position.tables);
        record_synced(self, sequence, position.snapshot)
    }

    /// Errors when somebody appended since the end was read, although we hold the lock.
    fn nothing_follows(&self, position: &mut LogPosition) -> Result<()> {
        let mut frames = LogReader::new(&*position.log, position.end, &position.drawn)?;
        let next = frames.frame(&self.identity, self.keeps(Rule::FrameChecksumsCompared))?;
        let follows = next.is_some_and(|(frame, before)| {
            Some(frame.sequence) == position.tables.sequence.checked_add(1)
                && before == position.tables.chain
        });
        if follows {
            return Err(position.stopped.insert(locks_fail()).clone());
        }
        ends_here(&mut frames, &self.identity, &position.tables, &self.settings)
    }

    /// Reads the log from where this process stopped to its end. The commit lock is held. Where one
    /// copy of several is damaged, another one is read.
    pub(super) fn replay_new_frames(&self, position: &mut LogPosition) -> Result<()> {
        loop {
            match replay_copy(self, position) {
                Err(error) if error.kind() == Kind::Corrupt && self.files.leave_damaged_copy() => {}
                replayed => {
                    forget_erased(self, &position.tables);
                    replayed?;
                    follow_data_keys(self, &position.tables)?;
                    position.has_passed()?;
                    return saw_last_head(self, position);
                }
            }
        }
    }

    /// Replays for a reader, which writes nothing: makes frames durable that no process recorded
    /// as synced, and applies only frames that can't vanish any more. `tables` have all frames up
    /// to byte `end`.
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
                frames.frame(&self.identity, self.keeps(Rule::FrameChecksumsCompared))?
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
        let mut replayed = Replayed { passes: position.passes, ..Replayed::of(&position.tables) };
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

    /// Does something while nobody else changes the archive, and appends a frame with these records, or with
    /// none.
    pub(super) fn append_behind(
        &self,
        records: Vec<Record>,
        does: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let (mut position, _lock) = self.locked()?;
        if let Some(reason) = &position.stopped {
            return Err(Error::new(Kind::Stopped, format!("an earlier failure: {reason}")));
        }
        self.replay_new_frames(&mut position)?;
        does()?;
        // An erasure gives space back.
        let may_use_reserve = !records.is_empty();
        self.begin_anew_if_left_full(&mut position, may_use_reserve)?;
        self.append(&mut position, records, may_use_reserve)
    }
}

/// True when so many leaves of volumes' maps changed that who opens the archive should not have to make
/// more of them anew from its log.
/// A snapshot that found no room is tried again when an eighth more changed.
fn are_maps_due(archive: &Archive, position: &LogPosition) -> bool {
    let volumes = &position.tables.volumes;
    let allowed = volumes.changed_leaves_allowed(archive.settings.changed_maps);
    let put_off = position.maps_put_off + position.maps_put_off / 8;
    volumes.changed_leaves() > allowed.max(put_off) && archive.keeps(Rule::MapCheckpointDue)
}

/// A put key begins no new log.
fn needs_manage(bytes: u64) -> Error {
    let why = format!(
        "the operations log has {} MiB, and a put key begins no new one: `onefold gc` by who manages the \
         archive does",
        bytes >> 20
    );
    Error::new(Kind::Denied, why)
}

/// Fails unless the log has these bytes at its end. A copy that lacks them is left out.
fn read_back(files: &dyn Redundancy, position: &LogPosition, bytes: &[u8]) -> Result<()> {
    let name = log_name(position.snapshot);
    if !files.reads_back(&*position.log, &name, position.end, bytes)? {
        return Err(locks_fail());
    }
    files.confirm()
}

/// Tells the opener of a sealed archive the head of the log's end. A label that a power cut may undo could leave an
/// archive that keeps no heads yet, so its head is not told.
fn saw_last_head(archive: &Archive, position: &LogPosition) -> Result<()> {
    let lasts = archive.label.sealed.is_none()
        || !archive.keeps(Rule::HeadsNotedBehindLabel)
        || is_label_durable(archive, position)?;
    if lasts {
        heads::saw(&archive.settings, &archive.label, &position.tables);
    }
    Ok(())
}

/// The log to its end: the tables with its new frames, if there are any.
struct Reached {
    tables: Option<Tables>,
    sequence: u64,
    end: u64,
    last: Vec<u8>,
    hashes: Vec<FrameHash>,
    frames_of_others: u64,
}

/// Reads the new frames of the log.
fn read_on(archive: &Archive, position: &LogPosition) -> Result<Reached> {
    let mut replayed = Replayed { passes: position.passes, ..Replayed::of(&position.tables) };
    replay(
        &*position.log,
        position.end,
        &archive.identity,
        &mut replayed,
        &position.drawn,
        &archive.settings,
        u64::MAX,
    )?;
    let Replayed { tables, end, last, hashes, frames_of_others, passes: _ } = replayed;
    let sequence = tables.sequence;
    let tables = match tables {
        Cow::Owned(tables) => Some(tables),
        Cow::Borrowed(_) => None,
    };
    Ok(Reached { tables, sequence, end, last, hashes, frames_of_others })
}

/// Loads the snapshot that the label names, or the one behind it.
fn newest(archive: &Archive, position: &mut LogPosition, label: &Label) -> Result<LogPosition> {
    // Gives the old tables' memory back to the budget; loading draws it again.
    position.drawn = Drawn::default();
    let mut newest = LogPosition::load_newest(
        &archive.files,
        &archive.identity,
        label,
        &archive.settings,
        Some(&position.tables),
        (&archive.budget, &archive.leaves),
    )?;
    if archive.label.sealed.is_some() {
        let seen = position.passes.unwrap_or_else(|| heads::of(&position.tables));
        newest.must_pass(&*archive.files, &archive.label.id, &archive.settings, seen)?;
    }
    Ok(newest)
}

/// Reads new frames of the copy of the log that is read now.
fn replay_copy(archive: &Archive, position: &mut LogPosition) -> Result<()> {
    let one_is_enough = archive.keeps(Rule::OneLabelPlaceEnough);
    let (label, is_damaged) = look_for_proven(&*archive.files, &archive.identity, one_is_enough)?;
    // A process that changes the archive writes labels with the bits of the one that it opened.
    let is_newer = archive.writes && label.newer != archive.label.newer;
    if (is_newer || label.kinds() != archive.label.kinds()) && archive.keeps(Rule::KindsCompared) {
        return Err(upgraded_meanwhile());
    }
    // First, so that the log has at least this even where locks do not hold.
    let recorded = recorded_synced(archive)?.0;
    // A damaged place of the label may have named another log, where what is new is. A later
    // label names a snapshot and a log that were made anew where the last label was lost with
    // its own.
    if label.snapshot != position.snapshot
        || label.generation > position.generation
        || is_damaged && recorded > position.tables.sequence
    {
        *position = newest(archive, position, &label)?.instead_of(position);
    }
    position.generation = position.generation.max(label.generation);
    if archive.budget.grows() {
        archive.budget.occupied(occupied(&*archive.files, position.snapshot));
    }
    let mut reached = read_on(archive, position)?;
    let is_short =
        |reached: &Reached| recorded > reached.sequence && archive.keeps(Rule::LogReachesRecorded);
    if is_short(&reached) {
        // The write of a label was lost: the changes are in the next log, or in one that another
        // process made anew under the number of the log that this one has open.
        let next = newest(archive, position, &label)
            .and_then(|next| read_on(archive, &next).map(|further| (next, further)));
        match next {
            Ok((next, further)) if !is_short(&further) => {
                (*position, reached) = (next.instead_of(position), further);
            }
            Err(error) if error.kind() == Kind::Memory => return Err(error),
            _ => return Err(changes_lost(reached.sequence, recorded)),
        }
    }
    let Reached { tables: Some(tables), end, last, hashes, frames_of_others, .. } = reached else {
        return Ok(());
    };
    let unsure = tables.sequence > recorded && archive.keeps(Rule::FrameDurableBeforeShown);
    if unsure && archive.writes && !is_put(archive) {
        position.log.write_at(end - last.len() as u64, &last)?;
        position.log.sync()?;
        archive.files.confirm()?;
        make_label_durable(archive, position)?;
        record_synced(archive, tables.sequence, position.snapshot)?;
    } else if unsure && archive.keeps(Rule::TailDurableBeforeRead) {
        // Where keys have roles nobody appends before the disk has what is there, and put keys record nothing.
        let name = log_name(position.snapshot);
        let is_kept =
            archive.label.roles && archive.files.keeps(&name, end - last.len() as u64, &last)?;
        if !is_kept {
            let sequence = position.tables.sequence;
            archive.replay_lasting_frames(position, tables, end, recorded)?;
            let kept = position.tables.sequence.saturating_sub(sequence);
            position.hashes.extend(hashes.into_iter().take(kept as usize));
            position.frames_of_others += frames_of_others.min(kept);
            return Ok(());
        }
    }
    (position.tables, position.end) = (Arc::new(tables), end);
    position.hashes.extend(hashes);
    position.frames_of_others += frames_of_others;
    Ok(())
}
