//! What a restore would do, told without doing it.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt, path::Path};

use onefold_archive::{Snapshot, TreeEntry, TreeReader, TreeWhat};
use onefold_backend::tree::{Sweep, Swept};
use onefold_console::{
    failure::Failure,
    output,
    size::{Size, counted, grouped},
};
use onefold_core::{Error, Kind, Result};
use rustix::fs::FileType;
use serde_json::json;

use super::{
    options::Options,
    sizes::Sizes,
    walk::{Visitor, walk},
    wanted::Wanted,
};
use crate::verbs::snapshots;

/// Compares what is wanted with what is there, by size and time.
struct Compared<'a> {
    directory: &'a Path,
    /// `None` when the directory is not there.
    there: Option<Sweep>,
    in_place: bool,
    absent: u64,
    /// Files that have another size or time, and their bytes.
    differ: u64,
    differ_bytes: u64,
    same: u64,
}

impl Visitor for Compared<'_> {
    fn entry(&mut self, _: &mut TreeReader, path: &[u8], entry: &TreeEntry) -> Result<()> {
        let Some(there) = self.there.as_mut().and_then(|there| there.look(path)) else {
            self.absent += 1;
            if let TreeWhat::File(bytes, _) = entry.what {
                self.differ_bytes = self.differ_bytes.saturating_add(bytes);
            }
            return Ok(());
        };
        if !self.in_place {
            let at = self.directory.join(OsStr::from_bytes(path));
            let what = format!(
                "{} is there already: restore into an empty directory, or replace what is there \
                 with --in-place",
                at.display()
            );
            return Err(Error::new(Kind::Exists, what));
        }
        match entry.what {
            TreeWhat::File(bytes, _) => {
                let time = (there.st_mtime, there.st_mtime_nsec as u32);
                let is_same = FileType::from_raw_mode(there.st_mode) == FileType::RegularFile
                    && there.st_size as u64 == bytes
                    && time == (entry.seconds, entry.nanoseconds);
                if is_same {
                    self.same += 1;
                } else {
                    self.differ += 1;
                    self.differ_bytes = self.differ_bytes.saturating_add(bytes);
                }
            }
            _ => self.same += 1,
        }
        Ok(())
    }
}

/// Tells it.
pub(super) fn tell(
    options: &Options,
    reader: &mut TreeReader,
    snapshot: &Snapshot,
    wanted: &Wanted,
    sizes: &Sizes<'_>,
    surplus: Swept,
) -> Result<(), Failure> {
    let mut compared = Compared {
        directory: &options.directory,
        there: Sweep::new(&options.directory, &[])?,
        in_place: options.in_place,
        absent: 0,
        differ: 0,
        differ_bytes: 0,
        same: 0,
    };
    walk(reader, snapshot, wanted, &mut compared)?;
    if options.json {
        return output::json(&json!({
            "snapshot": snapshot.id.to_string(),
            "entries": sizes.entries,
            "bytes": sizes.bytes,
            "absent": compared.absent,
            "files_that_differ": compared.differ,
            "bytes_absent_or_different": compared.differ_bytes,
            "there": compared.same,
            "to_remove": surplus.surplus,
        }));
    }
    let mut also = String::new();
    if options.in_place {
        also += &format!(
            "; by size and time, {} there and {} other than stored, {} to write",
            match compared.same {
                1 => "1 entry is".to_owned(),
                n => format!("{} entries are", grouped(n)),
            },
            match compared.differ {
                1 => "1 file is".to_owned(),
                n => format!("{} files are", grouped(n)),
            },
            Size(compared.differ_bytes)
        );
    }
    if options.delete {
        also += &format!("; {} would be removed", counted(surplus.surplus, "entry"));
    }
    output::line(format_args!(
        "a restore of snapshot {} would bring {}, {}{also}; nothing was changed",
        snapshots::short(snapshot.id),
        counted(sizes.entries, "entry"),
        Size(sizes.bytes),
    ));
    Ok(())
}
