//! Restores a tree from a listing that was checked before.
//!
//! Every entry is created anew, below the descriptor of its directory, and finished through a
//! descriptor of its own. Other users can't enter a directory until all of its entries are there.
//! The lists of access rights that a directory hands down to what is made in it (default ACLs)
//! count for nothing: an entry has the rights that were stored, also below a directory of another
//! user. Names can be exchanged only in a directory to which others can write. The files made under
//! such names are remembered and compared.

use std::{
    collections::HashSet,
    fs::File,
    hash::{BuildHasher, RandomState},
    os::{fd::OwnedFd, unix::fs::FileExt},
    path::Path,
    sync::Arc,
};

use onefold_core::{
    Error, Kind, Result,
    tree::{Entry, What},
};
use rustix::{
    fs::{FileType, Mode, OFlags, Stat},
    io::Errno,
};

use super::{
    attributes::{
        ACCESS_LIST, DEFAULT_LIST, chown_place, drop_list, drop_list_of_place, has_list, is_list,
        open_place, touch_place, without_list,
    },
    files::Files,
    levels::Levels,
    old_directory::{self, Old},
    place,
    shared::{Choices, Filling, LeftOut, Shared, has_list_stored, is_empty, last_part, open_path},
    stamp::Stamp,
    sweep::Sweep,
    unseen::{self, Unseen},
};

/// Memory for the attributes of directories that are open at one time.
const HELD_BYTES: usize = 64 << 20;

/// How often an empty directory of another user is removed that is there again and again.
const REMOVALS_MAX: u32 = 8;

/// A directory that is being filled or finished.
struct Place {
    /// Its path is the beginning, of so many bytes, of that of the last directory.
    length: usize,
    filling: Arc<Filling>,
    stamp: Stamp,
    /// Its number among those whose files are filled by several threads.
    number: Option<usize>,
    /// The entry, without its path, from which the directory's attributes are set at the end.
    entry: Option<Entry>,
    device: u64,
}

/// The mode that a pipe, socket or device gets when it is made.
struct Later {
    /// Its mode.
    mode: Mode,
    /// True when it may have got a list of access rights from its directory, and was made closed.
    hands_down: bool,
}

/// Makes a tree below a directory: first [`make`](Self::make) for each entry of a checked listing,
/// then [`finish`](Self::finish) for each, then [`end`](Self::end).
pub struct Restorer {
    shared: Arc<Shared>,
    levels: Levels<Place>,
    /// The path of the last directory.
    path: Vec<u8>,
    held: usize,
    umask: Mode,
    /// Directories that were there and only lead to what is restored, by their paths: they stay as
    /// they are.
    kept: HashSet<u64>,
    /// Directories into which nothing is restored, by their paths.
    refused: HashSet<u64>,
    hasher: RandomState,
    /// Where links for others are made.
    unseen: Option<Unseen>,
}

impl Drop for Restorer {
    fn drop(&mut self) {
        rustix::process::umask(self.umask);
    }
}

impl Restorer {
    /// Below `root`, which is made, for its user alone, when it is not there. Until the end the
    /// process has no file mode mask: pipes get their mode as they are made.
    ///
    /// # Errors
    /// The errors of the system; `Denied` when another user's link or mount is on the way there, or when
    /// it is what [`Choices::spared`] names, or lies in it.
    pub fn new(root: &Path, choices: Choices) -> Result<Restorer> {
        Restorer::within(place::Place::make(root)?.open(root)?, root, choices)
    }

    /// The same below a directory that is open, which is called `root` in errors.
    ///
    /// # Errors
    /// The errors of the system.
    pub fn within(opened: OwnedFd, root: &Path, choices: Choices) -> Result<Restorer> {
        let wrong = |errno: Errno| Error::from_io(root.display(), errno.into());
        let stat = rustix::fs::fstat(&opened).map_err(wrong)?;
        let again = rustix::io::fcntl_dupfd_cloexec(&opened, 0);
        let shared = Shared {
            shown: root.to_owned(),
            root: again.map_err(wrong)?,
            choices,
            is_root: rustix::process::geteuid().is_root(),
            user: (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()),
            known: Default::default(),
            left_out: Default::default(),
            last: Default::default(),
        };
        shared.lies_elsewhere(&opened)?;
        let mut restorer = Restorer {
            shared: Arc::new(shared),
            levels: Levels::new(),
            path: Vec::new(),
            held: 0,
            umask: rustix::process::umask(Mode::empty()),
            kept: HashSet::new(),
            refused: HashSet::new(),
            hasher: RandomState::new(),
            unseen: None,
        };
        let stamp = Stamp::of_old(&stat);
        restorer.enter(opened, &stat, b"", stamp, None);
        Ok(restorer)
    }

    /// Counts of what was not restored so far.
    #[must_use]
    pub fn left_out(&self) -> LeftOut {
        *self.shared.left_out.lock()
    }

    /// Looks at what is below the same root.
    ///
    /// # Errors
    /// Those of the system.
    pub fn sweep(&self) -> Result<Sweep> {
        let shared = &self.shared;
        let again = rustix::io::fcntl_dupfd_cloexec(&shared.root, 0);
        let again = again.map_err(|errno| self.wrong(b"", errno))?;
        Sweep::below(again, &shared.shown, &shared.choices.spared)
    }

    /// Files that several threads fill, below the same root.
    #[must_use]
    pub fn files(&self) -> Files {
        Files::new(self.shared.clone())
    }

    /// The number that `files` has for the directory of an entry; entries come in order.
    ///
    /// # Errors
    /// `Corrupt` when they don't, and those of the system.
    pub fn number(&mut self, files: &Files, entry: &Entry) -> Result<usize> {
        if !entry.is_safe() || entry.path.is_empty() {
            return Err(unsafe_path());
        }
        self.parent(&entry.path)?;
        let (mut above, mut from) = (None, 0);
        for place in self.levels.each() {
            let number = match place
                .number
                .filter(|number| files.has(*number, place.stamp.identity))
            {
                Some(number) => number,
                None => {
                    let name = self.path.get(from..place.length).unwrap_or_default();
                    *place.number.insert(files.add(above, name, place.stamp, place.filling.clone()))
                }
            };
            (above, from) = (Some(number), place.length + usize::from(place.length > 0));
        }
        above.ok_or_else(unsafe_path)
    }

    fn wrong(&self, path: &[u8], errno: Errno) -> Error {
        self.shared.wrong(path, errno)
    }

    fn replaced(&self, path: &[u8]) -> Error {
        self.shared.replaced(path)
    }

    fn enter(
        &mut self,
        directory: OwnedFd,
        stat: &Stat,
        path: &[u8],
        stamp: Stamp,
        entry: Option<Entry>,
    ) {
        self.path.clear();
        self.path.extend_from_slice(path);
        let (filling, length) = (Arc::new(self.shared.filling(stat)), path.len());
        let place = Place { length, filling, stamp, number: None, entry, device: stat.st_dev };
        self.levels.push(directory, stamp.identity, place);
    }

    /// The directory that `path` lies in. The directory is one of the open ones, because listings
    /// are in order.
    fn parent(&mut self, path: &[u8]) -> Result<(&OwnedFd, &mut Place)> {
        let parent =
            path.iter().rposition(|&byte| byte == b'/').map_or(&path[..0], |at| &path[..at]);
        let leads = |path: &[u8]| {
            let rest = parent.strip_prefix(path);
            path.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
        };
        while !leads(&self.path) && self.levels.depth() > 0 {
            self.leave()?;
        }
        if self.path != parent {
            return Err(match self.is_refused(parent) {
                true => not_entered(),
                false => Error::new(Kind::Corrupt, "the listing of the tree is not in order"),
            });
        }
        if self.levels.last().is_some_and(|(directory, _)| directory.is_none()) {
            return Err(self.replaced(parent));
        }
        match self.levels.last() {
            Some((Some(directory), place)) => Ok((directory, place)),
            _ => Err(Error::new(Kind::Corrupt, "the listing of the tree is not in order")),
        }
    }

    /// True when nothing is restored into a directory, or into one that it lies in.
    fn is_refused(&self, path: &[u8]) -> bool {
        let ends = (0..path.len()).filter(|&n| path[n] == b'/').chain([path.len()]);
        let is_refused = |end| self.refused.contains(&self.hasher.hash_one(&path[..end]));
        !self.refused.is_empty() && { ends }.any(is_refused)
    }

    /// Makes what is at an entry; gives a file that the caller fills, and hands to
    /// [`finish_file`](Self::finish_file). Directories stay closed to others.
    ///
    /// # Errors
    /// `Exists` when there is something of this name, with both names, and those of the system.
    pub fn make(&mut self, entry: &Entry) -> Result<Option<File>> {
        if entry.path.is_empty() {
            return Ok(None);
        }
        if !entry.is_safe() {
            return Err(unsafe_path());
        }
        let shared = self.shared.clone();
        match &entry.what {
            What::CharacterDevice(_) | What::BlockDevice(_) if !shared.choices.privileged => {
                shared.left_out.lock().devices += 1;
            }
            What::Directory => drop(self.make_directory(entry, false)?),
            What::File { bytes, .. } => {
                let at = self.at(entry)?;
                shared.clear(at, &entry.path)?;
                return shared.new_file(at, entry, *bytes).map(|(file, _)| Some(file));
            }
            What::HardLink { target } => shared.link(self.at(entry)?, entry, target)?,
            What::Symlink { target } => self.make_link(entry, target)?,
            What::Fifo => self.make_node(entry, FileType::Fifo, 0)?,
            What::Socket => self.make_node(entry, FileType::Socket, 0)?,
            What::CharacterDevice(device) => {
                self.make_node(entry, FileType::CharacterDevice, *device)?
            }
            What::BlockDevice(device) => self.make_node(entry, FileType::BlockDevice, *device)?,
        }
        Ok(None)
    }

    /// Makes a directory that only leads to what is restored. One that is there stays as it is, and
    /// [`finish`](Self::finish) changes nothing of it.
    ///
    /// # Errors
    /// As [`make`](Self::make); `Denied` when neither its stored owner nor root nor this user owns what is
    /// there.
    pub fn lead(&mut self, entry: &Entry) -> Result<()> {
        if entry.path.is_empty() {
            return Ok(());
        }
        if !entry.is_safe() || entry.what != What::Directory {
            return Err(unsafe_path());
        }
        if !self.make_directory(entry, true)? {
            self.kept.insert(self.hasher.hash_one(&entry.path));
        }
        Ok(())
    }

    /// Where an entry is made.
    fn at(&mut self, entry: &Entry) -> Result<(&OwnedFd, &Filling)> {
        self.parent(&entry.path).map(|(directory, place)| (directory, &*place.filling))
    }

    /// True when it is new.
    fn make_directory(&mut self, entry: &Entry, leads: bool) -> Result<bool> {
        let made = self.try_directory(entry, leads);
        if made.is_err() {
            self.refused.insert(self.hasher.hash_one(&entry.path));
        }
        made
    }

    fn try_directory(&mut self, entry: &Entry, leads: bool) -> Result<bool> {
        let shared = self.shared.clone();
        let (at, name) = (self.at(entry)?, last_part(&entry.path));
        let new = || rustix::fs::mkdirat(at.0, name, Mode::from_raw_mode(0o700));
        let mut is_new = match new() {
            Ok(()) => true,
            Err(Errno::EXIST) if shared.choices.in_place => false,
            Err(errno) => return Err(shared.not_made(at.0, entry, errno)),
        };
        let (mut opened, mut stat) = shared.open_old(at.0, &entry.path)?;
        shared.may_enter(&entry.path, &stat)?;
        if !is_new && leads {
            old_directory::may_lead(&shared, entry, &opened, &stat)?;
        }
        // Another user may make it again each time that his is removed: the last one is taken over.
        let mut removals = REMOVALS_MAX;
        while !is_new && !leads {
            let old = (&opened, &stat);
            match old_directory::prepare(&shared, at.0, entry, old, removals > 0)? {
                Old::Ready => {
                    let again = rustix::fs::fstat(&opened);
                    stat = again.map_err(|errno| shared.wrong(&entry.path, errno))?;
                    break;
                }
                Old::Gone => {
                    removals -= 1;
                    is_new = match new() {
                        Ok(()) => true,
                        Err(Errno::EXIST) => false,
                        Err(errno) => return Err(shared.not_made(at.0, entry, errno)),
                    };
                    (opened, stat) = shared.open_old(at.0, &entry.path)?;
                    shared.may_enter(&entry.path, &stat)?;
                }
            }
        }
        if is_new {
            shared.is_ours(at.0, entry, &stat)?;
            drop_list(&opened, DEFAULT_LIST).map_err(|errno| shared.wrong(&entry.path, errno))?;
            // In other directories no user could have put another directory there.
            if at.1.is_shared && !is_empty(&opened) {
                return Err(shared.replaced(&entry.path));
            }
        }
        let stamp = match is_new {
            true => Stamp::of_new(&opened, &stat),
            false => Stamp::of_old(&stat),
        };
        match is_new {
            true => shared.note(at, entry, stamp),
            false => shared.note_old(at, entry, stamp)?,
        }
        self.enter(opened, &stat, &entry.path, stamp, None);
        Ok(is_new)
    }

    fn make_link(&mut self, entry: &Entry, target: &[u8]) -> Result<()> {
        let shared = self.shared.clone();
        let mut unseen = self.unseen.take();
        let at = self.at(entry)?;
        shared.clear(at, &entry.path)?;
        if shared.is_root && at.1.is_shared {
            let made = unseen::link(&shared, &mut unseen, at, entry, target);
            self.unseen = unseen;
            if made? {
                return Ok(());
            }
        }
        let at = self.at(entry)?;
        let made = rustix::fs::symlinkat(target, at.0, last_part(&entry.path));
        self.made(entry, made, None)
    }

    /// A pipe, a socket or a device, with its mode: without `/proc` it can't be changed later. Where its
    /// directory hands a list of rights down, or another user may have it do so at any moment, it is
    /// made closed to all, and gets its mode when that list is gone.
    fn make_node(&mut self, entry: &Entry, kind: FileType, device: u64) -> Result<()> {
        let shared = self.shared.clone();
        let (at, name) = (self.at(entry)?, last_part(&entry.path));
        shared.clear(at, &entry.path)?;
        let mode = shared.mode(entry);
        let hands_down = at.1.is_shared || has_list(at.0, DEFAULT_LIST);
        // Its own list of access rights comes later, and may be one that can't be set.
        let first = if hands_down { Mode::empty() } else { without_list(entry, mode) };
        let later = Later { mode, hands_down };
        match rustix::fs::mknodat(at.0, name, kind, first, device) {
            Err(Errno::PERM) if kind == FileType::Socket => {
                shared.left_out.lock().sockets += 1;
                Ok(())
            }
            Err(Errno::PERM) if kind != FileType::Fifo => {
                shared.left_out.lock().devices += 1;
                Ok(())
            }
            made => self.made(entry, made, Some(later)),
        }
    }

    /// Finishes a link, pipe, socket or device that was just made, through a descriptor of its own; all
    /// but a link get what is due `later`.
    fn made(&mut self, entry: &Entry, made: Result<(), Errno>, later: Option<Later>) -> Result<()> {
        let shared = self.shared.clone();
        let at = self.at(entry)?;
        made.map_err(|errno| shared.not_made(at.0, entry, errno))?;
        let wrong = |errno| shared.wrong(&entry.path, errno);
        let (place, stat) = match open_path(at.0, last_part(&entry.path)) {
            Err(Errno::XDEV) => return Err(shared.mounted(&entry.path, None)),
            opened => opened.map_err(wrong)?,
        };
        let same = match (&entry.what, FileType::from_raw_mode(stat.st_mode)) {
            (What::Symlink { target }, FileType::Symlink) => {
                rustix::fs::readlinkat(&place, "", Vec::new())
                    .is_ok_and(|read| read.as_bytes() == target)
            }
            (What::Fifo, FileType::Fifo) | (What::Socket, FileType::Socket) => true,
            (What::CharacterDevice(device), FileType::CharacterDevice) => stat.st_rdev == *device,
            (What::BlockDevice(device), FileType::BlockDevice) => stat.st_rdev == *device,
            _ => false,
        };
        if !same || stat.st_nlink > 1 {
            return Err(shared.replaced(&entry.path));
        }
        shared.is_ours(at.0, entry, &stat)?;
        shared.note(at, entry, Stamp::of_new(&place, &stat));
        if shared.owners(entry) {
            shared.owned(chown_place(&place, entry)).map_err(wrong)?;
        }
        let hands_down = later.as_ref().is_some_and(|later| later.hands_down);
        let dropped = if hands_down { drop_list_of_place(&place) } else { Ok(()) };
        let left_out = shared.set_on_place(&place, entry).map_err(wrong)?;
        let has_its_list =
            has_list_stored(entry, ACCESS_LIST) && !left_out.contains(&ACCESS_LIST.as_bytes());
        let opened = dropped.and_then(|()| match later {
            Some(Later { mode, .. }) if has_its_list => open_place(&place, mode),
            Some(Later { mode, hands_down: true }) => open_place(&place, without_list(entry, mode)),
            _ => Ok(()),
        });
        match opened {
            // Without /proc it stays closed.
            Err(Errno::NOENT | Errno::NOTDIR) => shared.left_out.lock().attributes += 1,
            opened => opened.map_err(wrong)?,
        }
        touch_place(&place, entry).map_err(wrong)
    }

    /// Sets owner, attributes, mode and time of a file.
    ///
    /// # Errors
    /// The errors of the system.
    pub fn finish_file(&mut self, entry: &Entry, file: &File) -> Result<()> {
        self.shared.finish_fd(entry, file, false).map_err(|errno| self.wrong(&entry.path, errno))
    }

    /// Ends the making of entries; after it the caller may only [`finish`](Self::finish) them.
    ///
    /// # Errors
    /// The errors of the system.
    pub fn made_all(&mut self) -> Result<()> {
        // Directories get their times later.
        self.unseen = None;
        while self.levels.depth() > 1 {
            self.leave()?;
        }
        Ok(())
    }

    /// Finishes directories, each after all of its content.
    ///
    /// # Errors
    /// `Exists` for a directory into which nothing was restored, and those of the system.
    pub fn finish(&mut self, entry: &Entry) -> Result<()> {
        if entry.what != What::Directory || entry.path.is_empty() {
            return Ok(());
        }
        if self.is_refused(&entry.path) {
            return Err(Error::new(Kind::Exists, "another directory is there, and stays as it is"));
        }
        let shared = self.shared.clone();
        let (directory, _) = self.parent(&entry.path)?;
        let (opened, stat) = shared.open_old(directory, &entry.path)?;
        self.shared
            .is_known(&entry.path, &opened, &stat)
            .map_err(|_| self.replaced(&entry.path))?;
        let (path, stamp) = (&entry.path, Stamp::of_old(&stat));
        if self.kept.contains(&self.hasher.hash_one(path)) {
            self.enter(opened, &stat, path, stamp, None);
            return Ok(());
        }
        let mut entry = Entry { path: Vec::new(), ..entry.clone() };
        if self.held + entry.attributes_memory() > HELD_BYTES {
            // Deep in a tree whose directories have a great many: this one gets all but its lists of
            // access rights now. They might keep this user from what is in it.
            let (lists, others): (Vec<_>, Vec<_>) =
                std::mem::take(&mut entry.attributes).into_iter().partition(|one| is_list(&one.0));
            let keeps = shared.keeps(&opened, &entry);
            let set = shared.set_attributes(&opened, &others, keeps);
            set.map_err(|errno| shared.wrong(path, errno))?;
            entry.attributes = lists;
        }
        if self.held + entry.attributes_memory() > HELD_BYTES {
            // This one does without its lists, and lets its group do nothing, which a list might have
            // kept out.
            self.shared.left_out.lock().attributes += entry.attributes.len() as u64;
            entry.mode &= !0o070;
            entry.attributes = Vec::new();
        }
        self.held += entry.attributes_memory();
        self.enter(opened, &stat, path, stamp, Some(entry));
        Ok(())
    }

    /// The directory that [`finish`](Self::finish) entered last.
    pub fn here(&mut self) -> Option<&OwnedFd> {
        self.levels.last().and_then(|(directory, _)| directory)
    }

    /// Leaves the current directory, and finishes it if necessary.
    fn leave(&mut self) -> Result<()> {
        let Some((directory, place)) = self.levels.pop() else { return Ok(()) };
        let above = self.levels.last().map(|(_, above)| (above.length, above.device));
        let length = above.map_or(0, |(length, _)| length);
        let left = self.leave_place(directory, place, above.map(|(_, device)| device));
        self.path.truncate(length);
        left
    }

    /// Finishes a directory that was left; `above` is the device of that above it.
    fn leave_place(
        &mut self,
        directory: Option<OwnedFd>,
        place: Place,
        above: Option<u64>,
    ) -> Result<()> {
        let Some(entry) = place.entry else { return Ok(()) };
        self.held -= entry.attributes_memory();
        let directory = directory.ok_or_else(|| self.replaced(&self.path))?;
        let wrong = |errno| self.wrong(&self.path, errno);
        self.shared.finish_fd(&entry, &directory, true).map_err(wrong)?;
        // A file system that is mounted below the destination is synced by itself.
        match above {
            Some(above) if above != place.device => rustix::fs::syncfs(&directory).map_err(wrong),
            _ => Ok(()),
        }
    }

    /// Finishes the last directories, and syncs: when this returns, the tree survives a power
    /// failure.
    ///
    /// # Errors
    /// The errors of the system.
    pub fn end(mut self) -> Result<LeftOut> {
        self.made_all()?;
        let root = self.levels.first().ok_or_else(|| self.replaced(b""))?;
        rustix::fs::syncfs(root).map_err(|errno| self.wrong(b"", errno))?;
        match rustix::fs::openat(root, "..", OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .and_then(rustix::fs::fsync)
        {
            // We may not read the directory above, or it can't be synced alone. In both cases its
            // file system was synced.
            Ok(()) | Err(Errno::ACCESS | Errno::INVAL) => Ok(self.left_out()),
            Err(errno) => Err(self.wrong(b"..", errno)),
        }
    }
}

fn not_entered() -> Error {
    Error::new(Kind::Denied, "nothing is restored into a directory on the way to it, as told above")
}

fn unsafe_path() -> Error {
    Error::new(Kind::Corrupt, "the listing names a path outside of the tree")
}

/// Writes a part of a restored file.
///
/// # Errors
/// The errors of the system.
pub fn write_part(file: &File, at: u64, bytes: &[u8]) -> Result<()> {
    file.write_all_at(bytes, at).map_err(|e| Error::from_io("a restored file can't be written", e))
}
