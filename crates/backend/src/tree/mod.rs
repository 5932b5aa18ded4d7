//! Directory trees: read for an archive, and made again from one.
//!
//! | module | what it does |
//! |---|---|
//! | `walk` | tells of everything below a directory, in the order of listings |
//! | `restore` | makes it again, as a listing says |
//! | `mounts` | what is mounted where a walk comes by |
//! | `place` | follows a path without asking what another user mounted on the way, and not by another user's links |
//! | `names` | the names of a directory in order, in memory or in a file |
//! | `files` | its files, made, filled and finished by several threads in any order |
//! | `ahead` | brings small files and directories into the system's cache before the walk comes to them |
//! | `unnoticed` | opens files so that the times of their last access stay |
//! | `holder` | the extended attributes of what is open |
//! | `sweep` | removes what directories have beyond what is wanted |
//! | `stamp` | tells what was made from a later file that has its number |
//! | `shared`, `directories`, `attributes` | what these share |
//! | `levels` | the directories from the root down to the one at hand, at most 256 of them open |
//!
//! *Invariant:* nothing here follows a path: each name is opened below the descriptor of its
//! directory, no link is followed, and what is opened is looked at before it is used. Another user
//! who renames or replaces things meanwhile changes what is found, never where it is looked for or
//! made.

mod ahead;
mod attributes;
mod directories;
mod files;
mod holder;
mod levels;
mod mounts;
mod names;
mod old_directory;
mod place;
mod restore;
mod shared;
mod stamp;
mod sweep;
mod unnoticed;
mod unseen;
mod walk;

use std::{ffi::OsStr, os::unix::ffi::OsStrExt, path::Path};

pub use attributes::drop_lists;
pub use files::{Files, Made, NamesOf, punch};
pub use mounts::{is_taken, numbers, open_directory};
pub(crate) use mounts::{open_file, open_place};
pub use names::NamesMemory;
pub use place::{Followed, Place};
pub use restore::{Restorer, write_part};
pub use shared::{Choices, LeftOut};
pub use sweep::{Keeps, Removal, Sweep, Swept, Tell};
pub use walk::{Found, Looked, Options, Reads, Selection, Walk, read_data};

use rustix::fs::Stat;

/// The longest path that is shown whole, in bytes.
const SHOWN_BYTES: usize = 1024;

/// The identity of a file: device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Identity(u64, u64);

impl Identity {
    fn of(stat: &Stat) -> Identity {
        Identity(stat.st_dev, stat.st_ino)
    }
}

/// A path below `root` for an error's sentence; the end of one that is very long.
fn shown(root: &Path, path: &[u8]) -> String {
    if path.is_empty() {
        return root.display().to_string();
    }
    match path.len().checked_sub(SHOWN_BYTES) {
        None | Some(0) => root.join(OsStr::from_bytes(path)).display().to_string(),
        Some(cut) => format!("{}/…{}", root.display(), String::from_utf8_lossy(&path[cut..])),
    }
}
