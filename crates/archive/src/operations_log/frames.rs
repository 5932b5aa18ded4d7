//! Frames of the log, replayed over tables.

use std::borrow::Cow;

use onefold_core::{Error, File, Kind, Result};
use onefold_seal::Head;

use super::{
    heads::{self, FrameHash},
    signatures::{SignedBy, apply_put, signed_by},
};

use crate::{
    block_index::LEAF_MEMORY,
    format::{
        Identity,
        bytes::corrupt,
        frame::{FRAME_ALIGN, FRAME_HEADER_BYTES},
        label::PUT_BACK,
        log_reader::{Behind, LOG_BYTES_MAX, LogReader},
        names::SYNCED,
        record::Record,
        sealing::Role,
    },
    memory::Drawn,
    rules::Rule,
    settings::{GiveUp, Settings},
    tables::{MANAGE, Tables},
};

/// The tables, as far as a log was followed.
pub(crate) struct Replayed<'a> {
    /// The tables from before; a copy of them once a new frame was applied.
    pub(super) tables: Cow<'a, Tables>,
    /// Where the log ends.
    pub(super) end: u64,
    /// Its last frame, as it was written.
    pub(super) last: Vec<u8>,
    /// The hashes of new frames, in an archive that keeps heads.
    pub(super) hashes: Vec<FrameHash>,
    /// A head that was seen earlier: the frame with its number is that one.
    pub(super) passes: Option<Head>,
    /// New frames that manage did not sign, in an archive whose keys have roles.
    pub(super) frames_of_others: u64,
}

impl Replayed<'_> {
    pub(super) fn of(tables: &Tables) -> Replayed<'_> {
        Replayed {
            tables: Cow::Borrowed(tables),
            end: 0,
            last: Vec::new(),
            hashes: Vec::new(),
            passes: None,
            frames_of_others: 0,
        }
    }
}

/// Applies the frames of a log from byte `from` on, which follow the tables; none behind number
/// `upto`.
pub(crate) fn replay(
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
        frames.frame(identity, settings.keeps(Rule::FrameChecksumsCompared))?
    {
        let follows = Some(frame.sequence) == to.tables.sequence.checked_add(1)
            && before == to.tables.chain
            || !settings.keeps(Rule::FramesChained);
        if !follows || frame.sequence > upto {
            break;
        }
        let (sequence, checksum, bytes) = (frame.sequence, frame.checksum, frame.bytes);
        let signed_by = signed_by(identity, &to.tables, &frame, settings);
        to.frames_of_others += u64::from(matches!(signed_by, SignedBy::Put(_) | SignedBy::Nobody));
        match signed_by {
            SignedBy::Anybody | SignedBy::Manage => {
                let records = Record::decode_within(&frame.payload, drawn)?;
                drawn.more(to.tables.volumes.clones_take(&records) * LEAF_MEMORY)?;
                let tables = to.tables.to_mut();
                tables
                    .derived
                    .moved
                    .limit((settings.memory != u64::MAX).then_some(settings.moved_max));
                #[cfg(feature = "planted-bugs")]
                (tables.derived.clones_uncounted = !settings.keeps(Rule::ClonesCounted));
                tables.apply(sequence, records).map_err(|e| e.context("the operations log"))?;
            }
            SignedBy::Put(number) => {
                apply_put(to.tables.to_mut(), number, &frame, drawn, settings)?
            }
            SignedBy::Nobody => to.tables.to_mut().pass_over(sequence, MANAGE),
        }
        let tables = to.tables.to_mut();
        tables.chain = checksum;
        to.last = frames.whole(bytes)?;
        if let Some(hash) = heads::take(tables, &to.last) {
            drawn.more(size_of::<FrameHash>() as u64)?;
            to.hashes.push(hash);
        }
        if let Some(seen) = to.passes.filter(|seen| seen.number == sequence)
            && !heads::is_of(tables, &seen)
        {
            return Err(heads::other_history(sequence));
        }
        to.end += bytes;
        frames.pass(bytes);
    }
    if to.tables.sequence < upto {
        ends_here(&mut frames, identity, &to.tables, settings)
    } else {
        Ok(())
    }
}

/// Errors unless a log ends where its reader is, as a crash may have left it.
pub(crate) fn ends_here(
    frames: &mut LogReader<'_>,
    identity: &Identity,
    tables: &Tables,
    settings: &Settings,
) -> Result<()> {
    let (mut rest, give_up) = (frames.again(), settings.give_up);
    match frames.behind(identity, tables.sequence)? {
        Behind::End => Ok(()),
        _ if manages(identity) && give_up == GiveUp::Later => Ok(()),
        _ if manages(identity) && give_up == GiveUp::Unreadable => {
            match rest.later(identity, tables.sequence)? {
                0 => Ok(()),
                count => Err(acknowledged(tables.sequence, count)),
            }
        }
        Behind::Later => Err(or_cut(later_changes(tables.sequence), identity)),
        Behind::Rubbish => Err(or_cut(no_log(tables.sequence), identity)),
    }
}

/// The log was damaged, and not filled by a client.
fn acknowledged(sequence: u64, count: u64) -> Error {
    let what = format!(
        "{count} changes behind change {sequence} can be opened: the log is damaged, and these may be backups that were \
         acknowledged"
    );
    corrupt(format!("{what}; {PUT_BACK}, or give them up too by --cut-log=all"))
}

/// The error, with what manage can do about it.
fn or_cut(error: Error, identity: &Identity) -> Error {
    if !manages(identity) {
        return error;
    }
    corrupt(format!(
        "{error}; if a put key was taken over, `onefold repair --cut-log` gives that up"
    ))
}

/// True for a process that manages an archive whose keys have roles.
fn manages(identity: &Identity) -> bool {
    identity.sealing().and_then(|sealing| sealing.role()) == Some(Role::Manage)
}

fn no_log(sequence: u64) -> Error {
    let what = format!(
        "the operations log behind change {sequence} can't be read: it is damaged, or somebody put something else in its place"
    );
    corrupt(format!("{what}; {PUT_BACK}"))
}

fn later_changes(sequence: u64) -> Error {
    let what = format!(
        "the operations log is damaged behind change {sequence}: later changes are there, this one is not"
    );
    corrupt(format!("{what}; {PUT_BACK}"))
}

pub(crate) fn changes_lost(sequence: u64, recorded: u64) -> Error {
    let what = format!(
        "the operations log is damaged behind change {sequence}: it ends there, and change {recorded} was durable"
    );
    corrupt(format!(
        "{what}; {PUT_BACK}, or empty the file `{SYNCED}` to go on without these changes"
    ))
}

/// The log does not have what was written to it: another writer there held the lock too.
pub(crate) fn locks_fail() -> Error {
    let why = "the operations log is not what we wrote: another process wrote to it while we held its lock, as locks do not hold on this file system, \
               or the disk loses writes; nothing more is written";
    Error::new(Kind::Io, why)
}

/// Errors unless a log that is so long can be read with a frame of so many bytes of records more.
pub(crate) fn fits(log: u64, payload: usize) -> Result<()> {
    if log + payload as u64 + FRAME_ALIGN + FRAME_HEADER_BYTES as u64 <= LOG_BYTES_MAX {
        Ok(())
    } else {
        Err(log_full())
    }
}

pub(crate) fn log_full() -> Error {
    let why = "the operations log is full, and the disk has no room for the snapshot that would begin another one";
    Error::new(Kind::NoSpace, why)
}
