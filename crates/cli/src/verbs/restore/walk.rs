//! A walk through what is wanted of a snapshot.

use onefold_archive::{
    Attributes, Entries, LEVELS_MAX, PAGES_HELD, Snapshot, TreeEntry, TreeReader, TreeWhat,
};
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
        // Root has no quota: it is that of the file's owner.
        (Some(Errno::DQUOT), _) => rustix::process::geteuid().is_root(),
        (Some(errno), _) => !matches!(
            errno,
            Errno::IO
                | Errno::NOSPC
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
    /// A directory that the walk is in; its path is the beginning, of so many bytes, of that at hand.
    struct Open {
        length: usize,
        entries: Entries,
        all: bool,
    }
    let root = reader.root(snapshot)?;
    let TreeWhat::Directory(top) = root.directory.what else { return Ok(()) };
    let all = wanted.takes(b"") == Takes::All;
    let mut open = vec![Open { length: 0, entries: Entries::new(top, None), all }];
    let (mut seen, mut path) = (1u64, Vec::new());
    while let Some(level) = open.last_mut() {
        path.truncate(level.length);
        let next = match level.entries.next(reader) {
            // A page of a directory is damaged: it costs the rest of the directory.
            Err(error) if error.kind() == Kind::Corrupt && !path.is_empty() => {
                visitor.fails(&path, error)?;
                None
            }
            next => next?,
        };
        let Some((entry, _)) = next else {
            open.pop();
            continue;
        };
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
            open.push(Open { length: path.len(), entries: Entries::new(top, None), all });
            let above = open.len().checked_sub(PAGES_HELD + 1).and_then(|n| open.get_mut(n));
            above.into_iter().for_each(|level| level.entries.rest());
        }
    }
    Ok(())
}

/// Directories that lead to what is wanted, and wait for something to be wanted below them. Each lies
/// in the one before it, so that one path stands for all of theirs.
#[derive(Default)]
pub(super) struct Pending {
    path: Vec<u8>,
    /// The lengths of their paths.
    all: Vec<(usize, TreeEntry)>,
    /// Bytes of memory of their attributes.
    held: usize,
}

/// Memory for the attributes of directories that wait, at most.
const WAITING_BYTES: usize = 32 << 20;

impl Pending {
    /// Adds a directory.
    pub(super) fn push(&mut self, path: &[u8], entry: &TreeEntry) {
        self.keep_leading(path);
        if let TreeWhat::Directory(_) = entry.what {
            self.path.clear();
            self.path.extend_from_slice(path);
            let mut entry = entry.clone();
            if self.held + entry.attributes.memory() > WAITING_BYTES {
                // As where directories that are filled have too many: without its list of rights, its
                // group may do nothing.
                (entry.attributes, entry.mode) = (Attributes::default(), entry.mode & !0o070);
            }
            self.held += entry.attributes.memory();
            self.all.push((path.len(), entry));
        }
    }

    /// Takes those that lead to a path, with the path of the last one, by which the others' begin;
    /// the rest leads to nothing.
    pub(super) fn leading(&mut self, path: &[u8]) -> (Vec<u8>, Vec<(usize, TreeEntry)>) {
        self.keep_leading(path);
        self.held = 0;
        (std::mem::take(&mut self.path), std::mem::take(&mut self.all))
    }

    fn keep_leading(&mut self, path: &[u8]) {
        let same = self.path.iter().zip(path).take_while(|(one, other)| one == other).count();
        let leads = |length: usize| length <= same && path.get(length) == Some(&b'/');
        while self.all.last().is_some_and(|(length, _)| !leads(*length)) {
            let gone = self.all.pop();
            self.held -= gone.map_or(0, |(_, entry)| entry.attributes.memory());
        }
        self.path.truncate(self.all.last().map_or(0, |(length, _)| *length));
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
