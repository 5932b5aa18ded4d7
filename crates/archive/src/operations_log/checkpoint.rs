//! A checkpoint of the tables beside clients: a snapshot, and a new log, before a commit must make
//! them.
//!
//! Whoever commits waits for the commit lock, so a portion holds it for a few megabytes at most. Most
//! of a checkpoint are the leaves that changed. Portions write them ahead, to pages that no snapshot
//! names, and let go of the lock in between. The last portion writes what changed since, and the
//! snapshot with its label, as a commit does.
//!
//! *Crash argument:* that of the leaves. Pages that were written ahead are in no directory before the
//! label, so a crash leaves pages that nothing names. Other processes do not know of them and may
//! write there meanwhile: a snapshot names only those whose copies are both there still, looked at
//! under the lock. So leaves that were written ahead stay in memory, also where those of the container
//! table are read on demand, and count among those after which a commit writes a snapshot. Leaves of
//! volumes' maps are written ahead likewise.
//!
//! *Readers:* a portion writes to the same pages as a snapshot of this moment would. Those that
//! readers of an epoch may look at wait for it as they do there, and all of the file where there is a
//! next snapshot that the writer does not know. The epoch of the portion is not after that of the
//! snapshot, so no page is written earlier than the snapshot could.

use onefold_core::{Kind, Result};

use super::{
    archive::Archive, label::make_label_durable, next_log::NextLog, position::LogPosition,
};
use crate::{
    erasure::ONE_DIRECTORY,
    tables::{Tables, changed_leaves, forget_leaves_ahead, write_leaves_ahead},
};

/// Entries of tables without leaves that a portion writes at most: 64 bytes each, about.
const ENTRIES_MAX: usize = 64 << 10;

/// Pages of volumes' maps that are written in one piece at most: 8 KiB each.
const PAGES_MAX: usize = 1024;

/// A checkpoint is worth it when the log has this share of what makes a commit write one.
const SHARE: u64 = 16;

/// The result of a portion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Checkpointed {
    /// The log is short.
    Nothing,
    /// It is left to the commit that must make one: the last portion would take too long, or the
    /// disk has no room.
    Later,
    /// Some leaves were written.
    Some,
    /// The log is new.
    All,
}

/// Bytes of the operations log that the next process to open the archive reads, and whether they, or the
/// leaves that are held in memory until the next snapshot, are worth a checkpoint. `None` while somebody
/// looks at the log or writes it just now.
pub(crate) fn log_bytes_at_once(archive: &Archive) -> Option<(u64, bool)> {
    let (bytes, tables) = archive.position_at_once()?;
    Some((bytes, is_due(archive, bytes, &tables)))
}

/// Does a portion of a checkpoint, if the log is long enough for one.
///
/// # Errors
/// As for a commit.
pub(crate) fn checkpoint_some(archive: &Archive) -> Result<Checkpointed> {
    let (mut position, _lock) = archive.locked()?;
    if let Some(reason) = &position.stopped {
        return Err(reason.clone());
    }
    archive.replay_new_frames(&mut position)?;
    if !is_due(archive, position.end, &position.tables) {
        return Ok(Checkpointed::Nothing);
    }
    let (changed, portion) =
        (changed_leaves(&position.tables), archive.settings.leaf_portion.max(1));
    // Copies on several nodes are made alike when a node comes back, and what is written ahead would
    // be looked at on one of them only.
    let ahead = position.tables.leaves && archive.files.spread() == ONE_DIRECTORY;
    if ahead && changed > portion {
        return write_ahead(archive, &mut position, portion);
    }
    let pages = archive.settings.map_portion.max(1);
    if archive.files.spread() == ONE_DIRECTORY && position.tables.volumes.unwritten_leaves() > pages
    {
        return write_maps_ahead(archive, &mut position, pages);
    }
    if is_long(&position.tables, changed) {
        return Ok(Checkpointed::Later);
    }
    if !position.label_durable {
        make_label_durable(archive, &mut position)?;
    }
    let before = position.snapshot;
    NextLog::of(archive, &mut position).begin(false)?;
    Ok(if position.snapshot == before { Checkpointed::Later } else { Checkpointed::All })
}

/// Writes `portion` of the leaves that changed ahead of the next snapshot. The commit lock is held.
fn write_ahead(
    archive: &Archive,
    position: &mut LogPosition,
    portion: usize,
) -> Result<Checkpointed> {
    NextLog::of(archive, position).await_unknown_snapshot()?;
    let (files, number) = (&*archive.files, position.snapshot + 1);
    let (identity, settings) = (&archive.identity, &archive.settings);
    let mut tables = Tables::clone(&position.tables);
    match write_leaves_ahead(files, identity, settings, number, &mut tables, portion) {
        Ok(()) => {
            position.tables = tables.into();
            Ok(Checkpointed::Some)
        }
        Err(error) if error.kind() == Kind::NoSpace => {
            let mut tables = Tables::clone(&position.tables);
            forget_leaves_ahead(&mut tables);
            tables.leaf_file.cut(files)?;
            position.tables = tables.into();
            Ok(Checkpointed::Later)
        }
        Err(error) => {
            position.stopped = Some(error.clone());
            Err(error)
        }
    }
}

/// Writes `portion` of the leaves of volumes' maps that changed ahead of the next snapshot. The commit lock is
/// held.
fn write_maps_ahead(
    archive: &Archive,
    position: &mut LogPosition,
    portion: usize,
) -> Result<Checkpointed> {
    let (files, number) = (&*archive.files, position.snapshot + 1);
    let (identity, settings) = (&archive.identity, &archive.settings);
    let mut tables = Tables::clone(&position.tables);
    match tables.volumes.write_maps_ahead(files, identity, number, settings, portion) {
        Ok(()) => {
            position.tables = tables.into();
            Ok(Checkpointed::Some)
        }
        Err(error) if error.kind() == Kind::NoSpace => {
            let mut tables = Tables::clone(&position.tables);
            tables.volumes.forget_maps_ahead();
            position.tables = tables.into();
            Ok(Checkpointed::Later)
        }
        Err(error) => {
            position.stopped = Some(error.clone());
            Err(error)
        }
    }
}

/// True when a log of so many bytes is worth a checkpoint, or so many leaves that are in memory until
/// then, or are made anew by who opens the archive: half as many as make a commit write one.
fn is_due(archive: &Archive, log_bytes: u64, tables: &Tables) -> bool {
    let settings = &archive.settings;
    log_bytes > 0
        && (log_bytes >= settings.log_bytes / SHARE
            || tables.held_leaves() > settings.changed_leaves / 2
            || tables.volumes.changed_leaves()
                > tables.volumes.changed_leaves_allowed(settings.changed_maps) / 2)
}

/// True when what would be written in one piece takes long.
fn is_long(tables: &Tables, changed: usize) -> bool {
    let entries = match tables.leaves {
        true => changed * 512,
        false => tables.streams.len() + tables.containers.len() + tables.snapshots.values().count(),
    };
    tables.volumes.unwritten_leaves() > PAGES_MAX || entries > ENTRIES_MAX
}
