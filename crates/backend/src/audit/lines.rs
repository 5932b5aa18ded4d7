//! The lines of an audit log: how each one bears the hash of the one before it.

use std::{
    fs::File,
    io::{Read, Seek, SeekFrom},
    path::Path,
    time::Duration,
};

use onefold_core::{Error, Kind, Result, hex_digits};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

/// Bytes from the end of a file in which its last whole line is looked for.
pub(super) const TAIL_MAX: u64 = 1 << 20;

/// The field of a line with the hash of the line before it.
pub(super) const BEFORE: &str = "before";

/// The hash before the first line.
pub(super) const NOTHING: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// How long a thread waits until its line is written.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

pub(super) fn hash(line: &[u8]) -> String {
    hex_digits(Sha256::digest(line))
}

pub(super) fn not_locked(path: &Path, errno: rustix::io::Errno) -> Error {
    let why = "another process writes this audit log: each server has its own";
    match errno {
        rustix::io::Errno::WOULDBLOCK => {
            Error::new(Kind::Busy, format!("{}: {why}", path.display()))
        }
        errno => Error::from_io(path.display(), errno.into()),
    }
}

/// The hash of the last whole line of a log, and whether the file ends within a line.
pub(super) fn last_line(path: &Path, mut file: &File) -> Result<(String, bool)> {
    let failed = |e| Error::from_io(path.display(), e);
    let bytes = file.metadata().map_err(failed)?.len();
    let tail_bytes = bytes.min(TAIL_MAX);
    file.seek(SeekFrom::Start(bytes - tail_bytes)).map_err(failed)?;
    let mut tail = Vec::with_capacity(tail_bytes as usize);
    file.take(tail_bytes).read_to_end(&mut tail).map_err(failed)?;
    let torn = tail.last().is_some_and(|last| *last != b'\n');
    let mut lines = tail.split(|byte| *byte == b'\n');
    if tail_bytes < bytes {
        // The first piece is the end of a line that begins before the tail.
        lines.next();
    }
    match lines.rfind(|line| whole(line).is_some()) {
        Some(line) => Ok((hash(line), torn)),
        None if tail_bytes == bytes => Ok((NOTHING.to_owned(), torn)),
        None => {
            let why = "it does not end as an audit log does";
            Err(Error::new(Kind::InvalidInput, format!("{}: {why}", path.display())))
        }
    }
}

/// The fields of a line that was written whole.
pub(super) fn whole(line: &[u8]) -> Option<Map<String, Value>> {
    match serde_json::from_slice(line) {
        Ok(Value::Object(fields)) if fields.get(BEFORE)?.is_string() => Some(fields),
        _ => None,
    }
}
