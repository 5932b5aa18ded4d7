//! How far a process has followed the log.

use std::sync::Arc;

use onefold_core::{Error, File, Files, Kind, Result};
use onefold_seal::Head;

use super::{
    frames::{Replayed, replay},
    heads::{self, Compared, FrameHash},
    snapshot::read_snapshot,
};
use crate::{
    block_index,
    erasure::Redundancy,
    format::{
        Identity,
        damage::is_damage,
        label::{Label, look_for_label},
        log_reader::LogReader,
        names::{log_name, snapshot_name},
    },
    leaf_file,
    memory::{Budget, Drawn},
    rules::Rule,
    settings::{GiveUp, Settings},
    tables::{LeafStore, Tables},
};

/// The place in the log up to which this process has read, and the tables there.
pub(crate) struct LogPosition {
    pub(super) tables: Arc<Tables>,
    /// The label's generation and number.
    pub(super) generation: u64,
    pub(super) snapshot: u64,
    pub(super) log: Arc<dyn File>,
    /// Bytes of the log that are applied.
    pub(super) end: u64,
    /// In an archive that keeps heads: the hashes of the frames of this log that are applied, the last one at
    /// the end. A checkpoint writes them to the file `heads` before the snapshot that follows the log.
    pub(super) hashes: Vec<FrameHash>,
    /// Frames of this log that were read and that manage did not sign, in an archive whose keys have roles.
    pub(super) frames_of_others: u64,
    /// A head that a client saw earlier and that the log has yet to pass; `None` once it was compared.
    pub(super) passes: Option<Head>,
    /// The label is known to be durable.
    pub(super) label_durable: bool,
    /// A place of the label is damaged, or its last write did not arrive: `generation` is that of
    /// the label to be written before anything else.
    pub(super) label_lost: bool,
    /// Leaves of volumes' maps that had changed when a snapshot was put off for lack of room; 0 after one.
    pub(super) maps_put_off: usize,
    /// The first failed write or sync.
    pub(super) stopped: Option<Error>,
    /// Memory drawn from the budget for the tables.
    pub(super) drawn: Drawn,
    /// Why the last snapshot could not be read: the one before took its place.
    pub(super) snapshot_lost: Option<Error>,
}

impl LogPosition {
    /// Loads the snapshot and log that a label names, or the log that follows them. When the last
    /// label was lost, the one before is there, with its snapshot and log; the next log goes on
    /// from there, and only a label that was durable lets anybody write to it.
    pub(super) fn load_newest(
        files: &Arc<dyn Redundancy>,
        identity: &Identity,
        label: &Label,
        settings: &Settings,
        before: Option<&Tables>,
        (budget, leaves): (&Arc<Budget>, &Arc<LeafStore>),
    ) -> Result<LogPosition> {
        let from = (budget, leaves);
        let is_damaged = look_for_label(&**files, true)?.1;
        let next = Label { snapshot: label.snapshot + 1, ..label.clone() };
        let mut is_lost = is_damaged;
        let mut position = match LogPosition::load(files, identity, label, settings, before, from) {
            // The next snapshot has taken the place of what this one needs, or its log let the one
            // before go: the label that named it was damaged, or its disk lost it.
            Err(error) if error.kind() == Kind::NotFound || (is_damaged && is_damage(&error)) => {
                is_lost = true;
                let loaded = LogPosition::load(files, identity, &next, settings, before, from);
                // Its damage is why something is missing.
                loaded.map_err(|of_next| {
                    let is_why = error.kind() == Kind::NotFound && is_damage(&of_next);
                    if is_why { of_next } else { error }
                })?
            }
            loaded => loaded?,
        };
        let is_old = position.snapshot == label.snapshot
            && settings.keeps(Rule::LostLabelRecognised)
            && position.log_goes_on(&**files, identity, settings)?;
        if is_old {
            position.drawn = Drawn::default();
            position =
                LogPosition::load(files, identity, &next, settings, Some(&position.tables), from)?;
        }
        if is_old || is_lost {
            (position.generation, position.label_lost) = (label.generation + 1, true);
        }
        Ok(position)
    }

    /// This position for the process that was at another one. A failure that stopped the process still
    /// counts.
    pub(super) fn instead_of(self, other: &mut LogPosition) -> LogPosition {
        LogPosition { stopped: other.stopped.take(), ..self }
    }

    /// Compares this position, which is that of a snapshot, with a head that a client saw earlier. A head
    /// that is not in the snapshot yet is compared when the log is read.
    ///
    /// # Errors
    /// `Denied`: the snapshot does not descend from the head. The errors of the system.
    pub(super) fn must_pass(
        &mut self,
        files: &dyn Files,
        id: &[u8; 16],
        settings: &Settings,
        seen: Head,
    ) -> Result<()> {
        if !settings.keeps(Rule::HeadsCompared) {
            return Ok(());
        }
        if seen.number > self.tables.sequence {
            self.passes = Some(seen);
            return Ok(());
        }
        match heads::compare(files, &self.tables, &seen)? {
            Compared::Descends => {}
            Compared::Differs => return Err(heads::other_history(seen.number)),
            Compared::TooLate(changes) => {
                if let Some(opener) = settings.opener.of() {
                    opener.cannot_compare(id, changes);
                }
            }
        }
        Ok(())
    }

    /// Makes sure that the log was read to the head that a client saw earlier.
    ///
    /// # Errors
    /// `Denied`: the log ends before.
    pub(super) fn has_passed(&mut self) -> Result<()> {
        match self.passes {
            Some(seen) if seen.number > self.tables.sequence => {
                Err(heads::older(self.tables.sequence, seen.number))
            }
            _ => {
                self.passes = None;
                Ok(())
            }
        }
    }

    /// Reads the log to its end, and changes nothing.
    pub(super) fn read_log(
        &self,
        identity: &Identity,
        settings: &Settings,
        budget: &Arc<Budget>,
    ) -> Result<()> {
        let mut replayed = Replayed::of(&self.tables);
        let drawn = Drawn::from(budget);
        replay(&*self.log, self.end, identity, &mut replayed, &drawn, settings, u64::MAX)
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
        let Some((frame, before)) = frames.frame(identity, true)? else { return Ok(false) };
        let mut replayed = Replayed::of(&self.tables);
        replay(&*self.log, 0, identity, &mut replayed, &drawn, settings, u64::MAX)?;
        Ok(replayed.tables.sequence.checked_add(1) == Some(frame.sequence)
            && replayed.tables.chain == before)
    }

    /// `before` is the state that the process knew.
    fn load(
        files: &Arc<dyn Redundancy>,
        identity: &Identity,
        label: &Label,
        settings: &Settings,
        before: Option<&Tables>,
        (budget, leaves): (&Arc<Budget>, &Arc<LeafStore>),
    ) -> Result<LogPosition> {
        let open = |number| files.open(&log_name(number));
        let kinds = label.kinds();
        if budget.grows() {
            budget.occupied(occupied(&**files, label.snapshot));
        }
        let (mut drawn, mut snapshot_lost) = (Drawn::from(budget), None);
        let read = |number, before, drawn: &Drawn| {
            let known = (before, leaves);
            read_snapshot(&**files, identity, (number, kinds), settings, known, drawn)
        };
        let tables = match read(label.snapshot, before, &drawn) {
            Ok(tables) => tables,
            // The one before, and all of its log, say the same.
            Err(error) if is_damage(&error) && label.snapshot > 1 => {
                drawn = Drawn::from(budget);
                let tables = read(label.snapshot - 1, None, &drawn).map_err(|_| error.clone())?;
                let mut replayed = Replayed::of(&tables);
                // Another log follows it: nothing of it may be given up.
                let whole = Settings { give_up: GiveUp::Nothing, ..settings.clone() };
                let log = open(label.snapshot - 1)?;
                replay(&*log, 0, identity, &mut replayed, &drawn, &whole, u64::MAX)?;
                snapshot_lost = Some(error);
                let mut tables = replayed.tables.into_owned();
                if tables.on_demand {
                    let epoch = tables.epoch;
                    tables.leaf_file.await_all(&**files, epoch)?;
                }
                tables
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
            hashes: Vec::new(),
            frames_of_others: 0,
            passes: None,
            label_durable: false,
            label_lost: false,
            maps_put_off: 0,
            stopped: None,
            drawn,
            snapshot_lost,
        })
    }
}

/// Bytes that the metadata of an archive occupies which is held in memory.
pub(crate) fn occupied(files: &dyn Files, snapshot: u64) -> u64 {
    let before = snapshot.saturating_sub(1);
    let names = [
        snapshot_name(snapshot),
        log_name(snapshot),
        snapshot_name(before),
        log_name(before),
        block_index::MAPS.to_owned(),
        leaf_file::LEAVES.to_owned(),
    ];
    names
        .iter()
        .map(|name| files.open(name).and_then(|file| file.occupied()).unwrap_or(0))
        .fold(0, u64::saturating_add)
}
