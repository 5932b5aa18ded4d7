//! The content of a snapshot, as `ls` shows it.

use std::{ffi::OsStr, sync::Arc};

use onefold_archive::{Archive, Content, Entries, TreeEntry, TreeReader, TreeWhat, Verify};
use onefold_console::{failure::Failure, output, size::counted};
use onefold_core::{Error, Kind, Result};
use serde_json::json;

use super::{
    walk::{Visitor, plain, walk},
    wanted::Wanted,
};
use crate::verbs::{
    get::listing::{self, Style},
    named, snapshots,
};

/// Bytes of a line of the list of what was left out, at most.
const LINE_BYTES: usize = 64 << 10;

/// Lists what is in a directory of a snapshot, or all of the snapshot.
pub(in crate::verbs) fn list(
    archive: &Arc<Archive>,
    text: &str,
    path: Option<&OsStr>,
    style: Style,
) -> Result<(), Failure> {
    let mut reader = TreeReader::new(archive)?;
    let tables = reader.tables().clone();
    let snapshot = snapshots::named(&tables, text)?;
    let Some(path) = path else {
        return Ok(walk(&mut reader, snapshot, &Wanted::everything(), &mut Listing { style })?);
    };
    let (path, entry) = named::find(&mut reader, snapshot, path)?;
    let TreeWhat::Directory(top) = entry.what else {
        return Ok(show(&mut reader, &path, &entry, style)?);
    };
    let above = if path.is_empty() { path } else { [&*path, b"/"].concat() };
    let mut entries = Entries::new(top, None);
    while let Some((entry, _)) = entries.next(&mut reader)? {
        show(&mut reader, &[&*above, &entry.name].concat(), &entry, style)?;
    }
    Ok(())
}

/// Shows an entry by its whole path.
fn show(reader: &mut TreeReader, path: &[u8], entry: &TreeEntry, style: Style) -> Result<()> {
    listing::show(&plain(reader, &named::whole(path), entry)?, style);
    Ok(())
}

/// Lists what was left out of a snapshot and what else was noted, as the backup told it.
pub(in crate::verbs) fn problems(
    archive: &Arc<Archive>,
    text: &str,
    json: bool,
) -> Result<(), Failure> {
    let mut reader = TreeReader::new(archive)?;
    let tables = reader.tables().clone();
    let root = reader.root(snapshots::named(&tables, text)?)?;
    let (bytes, map) = &root.list;
    let mut held = Vec::new();
    reader.read(*bytes, map, Verify::Chunks, &mut |content| {
        let Content::Bytes(bytes) = content else {
            return Err(Error::new(Kind::Corrupt, "a list of what was left out can't be zeroes"));
        };
        for part in bytes.split_inclusive(|&byte| byte == b'\n') {
            held.extend_from_slice(part);
            if held.ends_with(b"\n") || held.len() > LINE_BYTES {
                tell(&mut held, json);
            }
        }
        Ok(())
    })?;
    tell(&mut held, json);
    if !json {
        output::line(format_args!("{} left out", counted(root.left_out, "path")));
    }
    Ok(())
}

/// Shows a line of that list. Nobody but the backup's writer says what is in it.
fn tell(line: &mut Vec<u8>, json: bool) {
    let text = String::from_utf8_lossy(line.trim_ascii_end()).into_owned();
    line.clear();
    match (text.is_empty(), json) {
        (true, _) => {}
        (false, true) => output::json_line(&json!({ "problem": text })),
        (false, false) => output::line(text.replace(char::is_control, "\u{fffd}")),
    }
}

/// Shows all entries.
struct Listing {
    style: Style,
}

impl Visitor for Listing {
    fn entry(&mut self, reader: &mut TreeReader, path: &[u8], entry: &TreeEntry) -> Result<()> {
        show(reader, path, entry, self.style)
    }
}
