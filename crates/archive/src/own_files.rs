//! Which files of a directory are an archive's.

use crate::{
    block_index::MAPS,
    erasure::{Absent, CURSOR, NODE, NodeLabel},
    format::names::{
        COLLECTOR, COMMIT, EPOCHS, HEADS, IMPORTER, KEYS, LABEL, RESERVE, SYNCED, WRITER, log_name,
        snapshot_name,
    },
    leaf_file::LEAVES,
};
use onefold_core::{Error, Files, Kind, Result};

/// Digits of the largest number that a file has.
const DIGITS_MAX: usize = 20;

/// True for the names of an archive's files in its one directory, or in that of a node. Files that say where
/// nodes or an index are, and who serves the archive, are none of them.
#[must_use]
pub fn is_archive_file(name: &str) -> bool {
    let whole = [
        LABEL, KEYS, HEADS, SYNCED, RESERVE, COMMIT, WRITER, COLLECTOR, IMPORTER, LEAVES, MAPS,
        NODE, CURSOR,
    ];
    // The digits that each has at least.
    let numbered =
        [("log-", 10), ("snapshot-", 10), ("segment-", 8), ("index-", 10), ("counts-", 10)];
    let is_number = |text: &str, least: usize| {
        (least..=DIGITS_MAX).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit())
    };
    let is_numbered = |&(kind, least): &(&str, usize)| {
        name.strip_prefix(kind).is_some_and(|text| is_number(text, least))
    };
    whole.contains(&name) || EPOCHS.contains(&name) || numbered.iter().any(is_numbered)
}

/// Bytes of the file that tells how far a directory is filled.
const CURSOR_BYTES: u64 = 36;

/// True for the directory of a node of an archive, by the node's label, and for one that is being filled to become
/// one and has nothing else in it.
///
/// # Errors
/// Those of looking at it: it may be one.
pub fn is_node(files: &dyn Files) -> Result<bool> {
    match NodeLabel::read(files) {
        Ok(_) => return Ok(true),
        Err(Absent::Gone(why)) => return Err(Error::new(Kind::Io, why)),
        Err(_) => {}
    }
    let cursor = match files.open(CURSOR) {
        Err(error) if error.kind() == Kind::NotFound => return Ok(false),
        opened => opened?,
    };
    let is_own = files.names()?.iter().all(|name| is_archive_file(name));
    Ok(is_own && cursor.bytes()? <= CURSOR_BYTES)
}

/// True unless a directory certainly has no file that tells of a node, whole or not.
#[must_use]
pub fn may_be_node(files: &dyn Files) -> bool {
    let is_away = |name| files.open(name).is_err_and(|error| error.kind() == Kind::NotFound);
    ![NODE, CURSOR].into_iter().all(is_away)
}

/// True when a directory has nothing but what a creation leaves that was killed before it wrote the label:
/// there is no archive, and nobody has stored anything. Files with content alone prove nothing: somebody
/// may keep a copy of the keys there, or have a file of his own that is called so.
#[must_use]
pub fn is_unfinished(files: &dyn Files) -> bool {
    let (log, snapshot) = (log_name(1), snapshot_name(1));
    let empty =
        [SYNCED, COMMIT, WRITER, COLLECTOR, IMPORTER, EPOCHS[0], EPOCHS[1], LABEL, log.as_str()];
    let filled = [KEYS, RESERVE, snapshot.as_str()];
    let is_empty =
        |name: &str| files.open(name).and_then(|file| file.bytes()).is_ok_and(|bytes| bytes == 0);
    files.names().is_ok_and(|names| {
        let mut names = names.iter().map(String::as_str);
        names.clone().any(|name| name == SYNCED)
            && names.all(|name| filled.contains(&name) || empty.contains(&name) && is_empty(name))
    })
}

/// The file of which those who read from other hosts take turns: nobody locks it otherwise.
pub const TURNS: &str = LABEL;

/// True for the locks that a reader has for as long as it reads. Only what frees space waits for them.
#[must_use]
pub fn is_epoch_lock(name: &str) -> bool {
    EPOCHS.contains(&name)
}

/// True for the lock that a reader has while it reads the log. All who change the archive wait for it.
#[must_use]
pub fn is_commit_lock(name: &str) -> bool {
    name == COMMIT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_46_files_that_lead_elsewhere_are_none_of_an_archive() {
        for name in ["label", "log-0000000001", "segment-00000007", "epoch-1", "maps"] {
            assert!(is_archive_file(name), "{name}");
        }
        let others = [
            "nodes",
            "nodes.new",
            "fast",
            "claim",
            "belongs-to",
            "log-",
            "log-1.new",
            "x",
            "log-7",
            "segment-7",
        ];
        for name in others {
            assert!(!is_archive_file(name), "{name}");
        }
    }
}
