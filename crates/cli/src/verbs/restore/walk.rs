//! A walk through what is wanted of a snapshot.

use onefold_archive::{Entries, LEVELS_MAX, Snapshot, TreeEntry, TreeReader, TreeWhat};
use onefold_core::{
    Error, Kind, Result,
    tree::{Entry, IN_PART, What},
};

use super::wanted::{Takes, Wanted};

/// Most files with several names that are remembered.
pub(super) const LINKED_MAX: usize = 1 << 20;

/// Takes the entries of a walk through a snapshot.
pub(super) trait Visitor {
    /// An entry, at this path. Directories come before what is in them.
    fn entry(&mut self, reader: &mut TreeReader, path: &[u8], entry: &TreeEntry) -> Result<()>;

    /// Something at this path can't be taken. The walk goes on behind it, and behind what lies below
    /// it, unless this is an error.
    fn fails(&mut self, _path: &[u8], error: Error) -> Result<()> {
        Err(error)
    }

    /// A directory that only leads to what is wanted; what is in it comes, or nothing of it.
    fn way(&mut self, _: &mut TreeReader, _: &[u8], _: &TreeEntry) {}
}

/// True for an error that concerns one entry, and not the medium, the memory or the archive: a name
/// that is too long for the file system, a file that it can't hold, something else in its place.
pub(super) fn is_of_entry(error: &Error, in_place: bool) -> bool {
    use rustix::io::Errno;
    let system = std::error::Error::source(error)
        .and_then(|source| source.downcast_ref::<std::io::Error>())
        .and_then(std::io::Error::raw_os_error)
        .map(Errno::from_raw_os_error);
    match (system, error.kind()) {
        // Without --in-place the directory is meant to be new.
        (_, Kind::Exists) => in_place,
        (Some(errno), _) => !matches!(
            errno,
            Errno::IO
                | Errno::NOSPC
                | Errno::DQUOT
                | Errno::NOMEM
                | Errno::MFILE
                | Errno::NFILE
                | Errno::NODEV
                | Errno::NXIO
        ),
        (None, kind) => {
            matches!(kind, Kind::Busy | Kind::Corrupt | Kind::Denied | Kind::Unsupported)
        }
    }
}

/// Walks through what is wanted of a snapshot, in order; only nodes on the way there are read.
pub(super) fn walk(
    reader: &mut TreeReader,
    snapshot: &Snapshot,
    wanted: &Wanted,
    visitor: &mut dyn Visitor,
) -> Result<()> {
    struct Open {
        path: Vec<u8>,
        entries: Entries,
        all: bool,
    }
    let root = reader.root(snapshot)?;
    let TreeWhat::Directory(top) = root.directory.what else { return Ok(()) };
    let all = wanted.takes(b"") == Takes::All;
    let mut open = vec![Open { path: Vec::new(), entries: Entries::new(top, None), all }];
    let mut seen = 1u64;
    while let Some(level) = open.last_mut() {
        let next = match level.entries.next(reader) {
            // A page of a directory is damaged: it costs the rest of the directory.
            Err(error) if error.kind() == Kind::Corrupt && !level.path.is_empty() => {
                visitor.fails(&level.path, error)?;
                None
            }
            next => next?,
        };
        let Some((entry, _)) = next else {
            open.pop();
            continue;
        };
        let mut path = level.path.clone();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(&entry.name);
        let takes = if level.all { Takes::All } else { wanted.takes(&path) };
        // A tree that doubles at each level has more entries than its root says.
        seen += 1;
        if seen > snapshot.entries || open.len() > LEVELS_MAX {
            return Err(Error::new(Kind::Corrupt, "the snapshot has more than its root says"));
        }
        match takes {
            Takes::Nothing => continue,
            Takes::All => {
                if let Err(error) = visitor.entry(reader, &path, &entry) {
                    visitor.fails(&path, error)?;
                    continue;
                }
            }
            Takes::Below => visitor.way(reader, &path, &entry),
        }
        if let TreeWhat::Directory(top) = entry.what {
            let all = takes == Takes::All;
            open.push(Open { path, entries: Entries::new(top, None), all });
        }
    }
    Ok(())
}

/// Adds a directory to those that wait for something to be wanted below them.
pub(super) fn pend(
    pending: &mut Vec<Entry>,
    reader: &mut TreeReader,
    path: &[u8],
    entry: &TreeEntry,
) {
    keep_leading(pending, path);
    if let (TreeWhat::Directory(_), Ok(entry)) = (&entry.what, plain(reader, path, entry)) {
        pending.push(entry);
    }
}

/// The pending directories that lead to a path; the others lead to nothing.
pub(super) fn leading(pending: &mut Vec<Entry>, path: &[u8]) -> Vec<Entry> {
    keep_leading(pending, path);
    std::mem::take(pending)
}

/// Each pending directory lies in the one before it: the last that leads to a path ends the search.
fn keep_leading(pending: &mut Vec<Entry>, path: &[u8]) {
    let leads = |above: &Entry| {
        path.strip_prefix(&above.path[..]).is_some_and(|rest| rest.first() == Some(&b'/'))
    };
    while pending.last().is_some_and(|last| !leads(last)) {
        pending.pop();
    }
}

/// An entry as the restorer wants it.
pub(in crate::verbs) fn plain(
    reader: &mut TreeReader,
    path: &[u8],
    node: &TreeEntry,
) -> Result<Entry> {
    let what = match &node.what {
        TreeWhat::Directory(_) => What::Directory,
        TreeWhat::File(bytes, _) => What::File { bytes: *bytes, data: Vec::new() },
        TreeWhat::Symlink(target) => What::Symlink { target: target.clone() },
        TreeWhat::Fifo => What::Fifo,
        TreeWhat::Socket => What::Socket,
        TreeWhat::CharacterDevice(device) => What::CharacterDevice(*device),
        TreeWhat::BlockDevice(device) => What::BlockDevice(*device),
    };
    let in_part = node.is_in_part && matches!(what, What::File { .. });
    Ok(Entry {
        path: path.to_vec(),
        what,
        mode: node.mode | if in_part { IN_PART } else { 0 },
        uid: node.uid,
        gid: node.gid,
        seconds: node.seconds,
        nanoseconds: node.nanoseconds,
        attributes: reader.attributes(node)?,
    })
}
