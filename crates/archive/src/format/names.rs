//! The names of an archive's files, and how an empty one is made.

use std::sync::Arc;

use onefold_core::{File, Files, Kind, Result};

pub(crate) const LABEL: &str = "label";

/// The key area of a sealed archive.
pub(crate) const KEYS: &str = "keys";

/// The hashes of the last frames, in an archive that keeps a hash of all.
pub(crate) const HEADS: &str = "heads";

/// The last frame and label that are known to be durable.
pub(crate) const SYNCED: &str = "vouched";

/// Space that is held back for deletion on a full disk.
pub(crate) const RESERVE: &str = "reserve";

/// Held alone by a process that appends to the log, and shared by processes that read it.
pub(crate) const COMMIT: &str = "lock-commit";

/// Held by the ingesting process.
pub(crate) const WRITER: &str = "lock-writer";

/// Held by the collector.
pub(crate) const COLLECTOR: &str = "lock-gc";

/// Held while the chunk index is rewritten.
pub(crate) const IMPORTER: &str = "lock-importer";

/// Shared by the readers of an epoch, even or odd.
pub(crate) const EPOCHS: [&str; 2] = ["epoch-0", "epoch-1"];

pub(crate) fn log_name(number: u64) -> String {
    format!("log-{number:010}")
}

pub(crate) fn snapshot_name(number: u64) -> String {
    format!("snapshot-{number:010}")
}

/// The number of a snapshot or a log by its name; `None` for any other file.
pub(crate) fn numbered(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("snapshot-").or_else(|| name.strip_prefix("log-"))?;
    let number = digits.parse().ok()?;
    (name == snapshot_name(number) || name == log_name(number)).then_some(number)
}

pub(crate) fn segment_name(number: u32) -> String {
    format!("segment-{number:08}")
}

pub(crate) fn is_segment(name: &str) -> bool {
    name.starts_with("segment-")
}

/// The number of a segment by its name.
pub(crate) fn segment_number(name: &str) -> Option<u32> {
    let number = name.strip_prefix("segment-")?.parse().ok()?;
    (segment_name(number) == name).then_some(number)
}

/// True for files of the chunk index.
pub(crate) fn is_index(name: &str) -> bool {
    name.starts_with("index-")
}

/// Makes an empty file of this name, in place of one that a crash may have left.
pub(crate) fn fresh(files: &dyn Files, name: &str) -> Result<Arc<dyn File>> {
    match files.create(name) {
        Err(error) if error.kind() == Kind::Exists => {
            files.remove(name)?;
            files.create(name)
        }
        made => made,
    }
}

/// Gives what was made as the file `name`, or removes what is half made, since that takes room. The
/// error of the making is the one to tell.
pub(crate) fn whole_or_gone<T>(files: &dyn Files, name: &str, made: Result<T>) -> Result<T> {
    if made.is_err() {
        let _ = files.remove(name);
    }
    made
}

/// A file of pages. When no snapshot names a page of it, a file that is there was left by a process
/// that died while making it, perhaps on some of the nodes only: it is made anew on all of them.
pub(crate) fn open_or_create(
    files: &dyn Files,
    name: &str,
    is_first: bool,
) -> Result<Arc<dyn File>> {
    if !is_first {
        return match files.open(name) {
            Err(error) if error.kind() == Kind::NotFound => files.create(name),
            opened => opened,
        };
    }
    match files.remove(name) {
        Err(error) if error.kind() != Kind::NotFound => Err(error),
        _ => files.create(name),
    }
}
