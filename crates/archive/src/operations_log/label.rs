//! The label made durable, and the record of what is known to be durable.

use onefold_core::{Error, Kind, Result};

use super::{
    archive::{Archive, label_now},
    position::LogPosition,
    roles::is_put,
};
use crate::{
    format::{
        bytes::{Reader, Writer},
        label::{LABEL_BYTES, Label, is_half_upgraded},
        names::{LABEL, SYNCED},
    },
    rules::Rule,
};

/// Writes the label again unless it is known to be durable. A label that a killed process
/// wrote may be in memory only, and frames appended to its log must not be lost with it. Where an
/// upgrade was cut off between the two places, the other one gets the new features too: it names a
/// snapshot whose log lacks what is appended from now on. A put key writes no label: it may be at the far end of
/// a connection that takes additions alone.
pub(super) fn make_label_durable(archive: &Archive, position: &mut LogPosition) -> Result<()> {
    if is_put(archive) {
        if position.label_lost || is_half_upgraded(&*archive.files, archive.label.kinds())? {
            let why = "the label of the archive is damaged: any change by who manages it mends that, as `onefold gc`";
            return Err(Error::new(Kind::Denied, why));
        }
        if !is_label_kept(archive)? {
            return Err(Error::new(Kind::Io, "the disk does not keep the label of the archive"));
        }
    } else if position.label_lost || recorded_synced(archive)?.1 < position.snapshot {
        write_label(archive, position)?;
    }
    if archive.keeps(Rule::BothPlacesUpgraded)
        && is_half_upgraded(&*archive.files, archive.label.kinds())?
    {
        position.generation += 1;
        write_label(archive, position)?;
    }
    (position.label_durable, position.label_lost) = (true, false);
    // A crash may have lost the space that was taken for the log. A disk that is full gives
    // none.
    match position.log.reserve(0, archive.settings.log_ahead_bytes) {
        Err(error) if error.kind() != Kind::NoSpace => Err(error),
        _ => Ok(()),
    }
}

/// True when a crash leaves the label that names this position, as far as can be told. Writes nothing.
///
/// # Errors
/// The errors of the system.
pub(super) fn is_label_durable(archive: &Archive, position: &LogPosition) -> Result<bool> {
    if position.label_durable || recorded_synced(archive)?.1 >= position.snapshot {
        return Ok(true);
    }
    match is_label_kept(archive) {
        // One place may be lost.
        Err(error) if error.kind() == Kind::Io => Ok(false),
        kept => kept,
    }
}

/// True when the disk has both places of the label as they are read.
fn is_label_kept(archive: &Archive) -> Result<bool> {
    let file = archive.files.open(LABEL)?;
    let mut label = vec![0; 2 * LABEL_BYTES];
    let there = file.read_at(0, &mut label)?;
    file.keeps(0, &label[..there])
}

/// Writes the label of a position to the place of its generation.
fn write_label(archive: &Archive, position: &LogPosition) -> Result<()> {
    let label = Label {
        generation: position.generation,
        snapshot: position.snapshot,
        ..label_now(archive)
    };
    let file = archive.files.open(LABEL)?;
    file.write_at(label.place(), &label.encode(&archive.identity)?)?;
    file.sync()
}

/// Says that frame and label are durable; said after their syncs, so that it is true whenever
/// it is read. A put key says nothing: what it said wrongly would keep the archive closed for all.
pub(super) fn record_synced(archive: &Archive, sequence: u64, snapshot: u64) -> Result<()> {
    if is_put(archive) {
        return Ok(());
    }
    let mut w = Writer::default();
    w.u64(sequence).u64(snapshot);
    let checksum = archive.identity.readable_checksum(&w.0);
    w.u64(checksum);
    // Only saves the next process a sync.
    match archive.files.open(SYNCED)?.write_at(0, &w.0) {
        Err(error) if error.kind() != Kind::NoSpace => Err(error),
        _ => Ok(()),
    }
}

/// The last frame and the label that are known to be durable.
pub(super) fn recorded_synced(archive: &Archive) -> Result<(u64, u64)> {
    let mut bytes = [0; 24];
    match archive.files.open(SYNCED)?.read_at(0, &mut bytes) {
        Ok(n) if n == bytes.len() => {}
        // Without it a sync more is needed.
        Err(error) if error.kind() != Kind::Io => return Err(error),
        _ => return Ok((0, 0)),
    }
    let mut r = Reader(&bytes, None);
    let said = (r.u64()?, r.u64()?);
    Ok(if archive.identity.readable_checksum(&bytes[..16]) == r.u64()? { said } else { (0, 0) })
}
