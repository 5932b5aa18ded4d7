//! Restores a tree from a listing that was checked before.
//!
//! Every entry is created anew, below the descriptor of its directory, and finished through a
//! descriptor of its own. Other users can't enter a directory until all of its entries are there.
//! The lists of access rights that a directory hands down to what is made in it (default ACLs)
//! count for nothing: an entry has the rights that were stored, also below a directory of another
//! user. Names can be exchanged only in a directory to which others can write. The files made under
//! such names are remembered and compared.

use std::{
    collections::{HashMap, HashSet},
    ffi::OsString,
    fs::{DirBuilder, File},
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::{
            ffi::{OsStrExt, OsStringExt},
            fs::{DirBuilderExt, FileExt},
        },
    },
    path::{Path, PathBuf},
};

use onefold_core::{
    Error, Kind, Result,
    tree::{Entry, What, mode_without_list},
};
use rustix::{
    fs::{AtFlags, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid, XattrFlags},
    io::Errno,
};

use super::{Identity, levels::Levels, shown};

/// Memory for the attributes of directories that are open at one time.
const HELD_BYTES: usize = 64 << 20;

/// Permission bits that anybody may have restored.
const PLAIN_BITS: u32 = 0o777;

/// The list of who may use a file, beyond its mode.
const ACCESS_LIST: &str = "system.posix_acl_access";

/// The list that a directory hands down to what is made in it.
const DEFAULT_LIST: &str = "system.posix_acl_default";

/// Choices for restoring a tree.
#[derive(Clone, Copy, Debug, Default)]
pub struct Choices {
    /// Replaces existing entries of the same names; existing directories are used.
    pub in_place: bool,
    /// Set-id and sticky bits, devices, and the attributes of the system too.
    pub privileged: bool,
}

/// Counts of the attributes and entries that were not restored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Owners and groups, which only root restores.
    pub owners: u64,
    /// Set-id and sticky bits.
    pub special_bits: u64,
    /// Devices, and further names of them.
    pub devices: u64,
    /// Sockets, which are nothing without the process that made them, and further names of them.
    pub sockets: u64,
    /// Extended attributes.
    pub attributes: u64,
}

/// A directory that is being filled or finished.
struct Place {
    path: Vec<u8>,
    /// True when others can write to the directory, and exchange names in it.
    is_shared: bool,
    /// Identities of the entries made in this directory, where entries may meet.
    made: HashSet<Identity>,
    /// The entry from which the directory's attributes are set at the end.
    entry: Option<Entry>,
    device: u64,
}

/// Makes a tree below a directory: first [`make`](Self::make) for each entry of a checked listing,
/// then [`finish`](Self::finish) for each, then [`end`](Self::end).
pub struct Restorer {
    shown: PathBuf,
    choices: Choices,
    is_root: bool,
    user: (u32, u32),
    /// The owner of the destination. On file systems without owners everything belongs to this
    /// user.
    owner: u32,
    levels: Levels<Place>,
    /// Identities of the files made under names that other users could exchange.
    known: HashMap<Vec<u8>, Identity>,
    left_out: LeftOut,
    held: usize,
    umask: Mode,
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
    /// The errors of the system.
    pub fn new(root: &Path, choices: Choices) -> Result<Restorer> {
        let wrong = |e| Error::from_io(root.display(), e);
        DirBuilder::new().recursive(true).mode(0o700).create(root).map_err(wrong)?;
        let opened = rustix::fs::open(root, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        let opened = opened.map_err(|errno| wrong(errno.into()))?;
        let stat = rustix::fs::fstat(&opened).map_err(|errno| wrong(errno.into()))?;
        let mut restorer = Restorer {
            shown: root.to_owned(),
            choices,
            is_root: rustix::process::geteuid().is_root(),
            user: (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()),
            owner: stat.st_uid,
            levels: Levels::new(),
            known: HashMap::new(),
            left_out: LeftOut::default(),
            held: 0,
            umask: rustix::process::umask(Mode::empty()),
        };
        restorer.enter(opened, &stat, Vec::new(), None);
        Ok(restorer)
    }

    /// Counts of what was not restored so far.
    #[must_use]
    pub fn left_out(&self) -> LeftOut {
        self.left_out
    }

    fn wrong(&self, path: &[u8], errno: Errno) -> Error {
        Error::from_io(shown(&self.shown, path), errno.into())
    }

    fn replaced(&self, path: &[u8]) -> Error {
        Error::new(
            Kind::Busy,
            format!(
                "{}: somebody replaced it while the tree was restored",
                shown(&self.shown, path)
            ),
        )
    }

    fn enter(&mut self, directory: OwnedFd, stat: &Stat, path: Vec<u8>, entry: Option<Entry>) {
        let is_shared = stat.st_uid != self.user.0 || stat.st_mode & 0o022 != 0;
        let place = Place { path, is_shared, made: HashSet::new(), entry, device: stat.st_dev };
        self.levels.push(directory, Identity::of(stat), place);
    }

    /// The directory that `path` lies in. The directory is one of the open ones, because listings
    /// are in order.
    fn parent(&mut self, path: &[u8]) -> Result<(&OwnedFd, &mut Place)> {
        let parent =
            path.iter().rposition(|&byte| byte == b'/').map_or(&path[..0], |at| &path[..at]);
        while self.levels.last().is_some_and(|(_, place)| place.path != parent) {
            self.leave()?;
        }
        if self.levels.last().is_some_and(|(directory, _)| directory.is_none()) {
            return Err(self.replaced(parent));
        }
        match self.levels.last() {
            Some((Some(directory), place)) => Ok((directory, place)),
            _ => Err(Error::new(Kind::Corrupt, "the listing of the tree is not in order")),
        }
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
            return Err(Error::new(Kind::Corrupt, "the listing names a path outside of the tree"));
        }
        let name = last_part(&entry.path);
        match &entry.what {
            What::Socket => self.left_out.sockets += 1,
            What::CharacterDevice(_) | What::BlockDevice(_) if !self.choices.privileged => {
                self.left_out.devices += 1
            }
            What::Directory => self.make_directory(entry, name)?,
            What::File { bytes, .. } => return self.make_file(entry, name, *bytes).map(Some),
            What::HardLink { target } => self.make_link(entry, name, target)?,
            What::Symlink { target } => {
                self.clear(&entry.path, name)?;
                let (directory, _) = self.parent(&entry.path)?;
                let made = rustix::fs::symlinkat(&target[..], directory, name);
                self.made(entry, name, made, None)?;
            }
            What::Fifo => self.make_node(entry, name, FileType::Fifo, 0)?,
            What::CharacterDevice(device) => {
                self.make_node(entry, name, FileType::CharacterDevice, *device)?
            }
            What::BlockDevice(device) => {
                self.make_node(entry, name, FileType::BlockDevice, *device)?
            }
        }
        Ok(None)
    }

    fn make_directory(&mut self, entry: &Entry, name: &[u8]) -> Result<()> {
        let in_place = self.choices.in_place;
        let (directory, _) = self.parent(&entry.path)?;
        let is_new = match rustix::fs::mkdirat(directory, name, Mode::from_raw_mode(0o700)) {
            Ok(()) => true,
            Err(Errno::EXIST) if in_place => false,
            Err(errno) => return Err(self.not_made(entry, errno)),
        };
        let opened = open_directory(directory, name);
        let (opened, stat) = opened.map_err(|errno| self.no_directory(&entry.path, errno))?;
        if is_new {
            self.is_ours(entry, &stat)?;
            drop_list(&opened, DEFAULT_LIST).map_err(|errno| self.wrong(&entry.path, errno))?;
            let (_, place) = self.parent(&entry.path)?;
            // In other directories no user could have put another directory there.
            if place.is_shared && !is_empty(&opened) {
                return Err(self.replaced(&entry.path));
            }
        }
        self.note(entry, &stat)?;
        self.enter(opened, &stat, entry.path.clone(), None);
        Ok(())
    }

    fn make_file(&mut self, entry: &Entry, name: &[u8], bytes: u64) -> Result<File> {
        self.clear(&entry.path, name)?;
        let (directory, _) = self.parent(&entry.path)?;
        let flags =
            OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = rustix::fs::openat(directory, name, flags, Mode::from_raw_mode(0o600));
        let file = File::from(made.map_err(|errno| self.not_made(entry, errno))?);
        let stat = rustix::fs::fstat(&file).map_err(|errno| self.wrong(&entry.path, errno))?;
        self.note(entry, &stat)?;
        file.set_len(bytes).map_err(|e| Error::from_io(shown(&self.shown, &entry.path), e))?;
        Ok(file)
    }

    /// A pipe or a device, with its mode: it can't be changed later without naming a path again.
    /// Where its directory hands a list of rights down, or another user may have it do so at any
    /// moment, it is made closed to all, and gets its mode when that list is gone.
    fn make_node(&mut self, entry: &Entry, name: &[u8], kind: FileType, device: u64) -> Result<()> {
        self.clear(&entry.path, name)?;
        // Its list of access rights is not restored.
        let mode = without_list(entry, self.mode(entry));
        let (directory, place) = self.parent(&entry.path)?;
        let hands_down = place.is_shared || has_list(directory, DEFAULT_LIST);
        let (first, later) = if hands_down { (Mode::empty(), Some(mode)) } else { (mode, None) };
        match rustix::fs::mknodat(directory, name, kind, first, device) {
            Err(Errno::PERM) if kind != FileType::Fifo => {
                self.left_out.devices += 1;
                Ok(())
            }
            made => self.made(entry, name, made, later),
        }
    }

    /// Another name of an earlier entry.
    fn make_link(&mut self, entry: &Entry, name: &[u8], target: &[u8]) -> Result<()> {
        self.clear(&entry.path, name)?;
        let first = match self.find(target) {
            // The first name was left out, so this one is too.
            Err(Errno::NOENT) => {
                if self.left_out.devices > 0 {
                    self.left_out.devices += 1
                } else {
                    self.left_out.sockets += 1
                }
                return Ok(());
            }
            Err(Errno::STALE) => return Err(self.replaced(target)),
            first => first.map_err(|errno| self.wrong(target, errno))?,
        };
        // The first name stays open, so that no other file gets its inode number meanwhile.
        let (above, _first, stat) = first;
        let (directory, _) = self.parent(&entry.path)?;
        let made = rustix::fs::linkat(&above, last_part(target), directory, name, AtFlags::empty());
        made.map_err(|errno| self.not_made(entry, errno))?;
        let (directory, _) = self.parent(&entry.path)?;
        let again = open_path(directory, name).map_err(|errno| self.wrong(&entry.path, errno))?;
        if Identity::of(&again.1) != Identity::of(&stat) {
            return Err(self.replaced(target));
        }
        self.note(entry, &again.1)
    }

    /// The directory of an earlier entry, a descriptor of what is there, and which file it is.
    /// `STALE` when it is not what was made.
    fn find(&self, path: &[u8]) -> Result<(OwnedFd, OwnedFd, Stat), Errno> {
        let root = self.levels.first().ok_or(Errno::STALE)?;
        let mut at =
            rustix::fs::openat(root, ".", OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let mut length = 0;
        for part in path.split(|&byte| byte == b'/') {
            length += part.len();
            if length == path.len() {
                let (place, stat) = open_path(&at, part)?;
                self.is_known(path, &stat)?;
                return Ok((at, place, stat));
            }
            let (next, stat) = open_directory(&at, part)?;
            self.is_known(&path[..length], &stat)?;
            (at, length) = (next, length + 1);
        }
        Err(Errno::NOENT)
    }

    fn is_known(&self, path: &[u8], stat: &Stat) -> Result<(), Errno> {
        if self.known.get(path).is_none_or(|known| *known == Identity::of(stat)) {
            Ok(())
        } else {
            Err(Errno::STALE)
        }
    }

    /// Finishes a link, pipe or device that was just made, through a descriptor of its own; with
    /// `mode`, it loses the list of rights that it got from its directory, and gets this mode.
    fn made(
        &mut self,
        entry: &Entry,
        name: &[u8],
        made: Result<(), Errno>,
        mode: Option<Mode>,
    ) -> Result<()> {
        made.map_err(|errno| self.not_made(entry, errno))?;
        let (directory, _) = self.parent(&entry.path)?;
        let (place, stat) =
            open_path(directory, name).map_err(|errno| self.wrong(&entry.path, errno))?;
        let same = match (&entry.what, FileType::from_raw_mode(stat.st_mode)) {
            (What::Symlink { target }, FileType::Symlink) => {
                rustix::fs::readlinkat(&place, "", Vec::new())
                    .is_ok_and(|read| read.as_bytes() == target)
            }
            (What::Fifo, FileType::Fifo) => true,
            (What::CharacterDevice(device), FileType::CharacterDevice) => stat.st_rdev == *device,
            (What::BlockDevice(device), FileType::BlockDevice) => stat.st_rdev == *device,
            _ => false,
        };
        if !same || stat.st_nlink > 1 {
            return Err(self.replaced(&entry.path));
        }
        self.is_ours(entry, &stat)?;
        self.note(entry, &stat)?;
        self.left_out.attributes += entry.attributes.len() as u64;
        if self.owners(entry) {
            let owned = chown_place(&place, entry);
            self.owned(owned).map_err(|errno| self.wrong(&entry.path, errno))?;
        }
        match mode.map_or(Ok(()), |mode| open_place(&place, mode)) {
            // Without /proc it stays closed.
            Err(Errno::NOENT | Errno::NOTDIR) => self.left_out.attributes += 1,
            opened => opened.map_err(|errno| self.wrong(&entry.path, errno))?,
        }
        touch_place(&place, entry).map_err(|errno| self.wrong(&entry.path, errno))
    }

    /// Checks that this user made the file, as far as the file system knows users.
    fn is_ours(&self, entry: &Entry, stat: &Stat) -> Result<()> {
        if stat.st_uid == self.user.0 || stat.st_uid == self.owner {
            Ok(())
        } else {
            Err(self.replaced(&entry.path))
        }
    }

    /// Remembers a file that others could exchange, or that two entries could share.
    fn note(&mut self, entry: &Entry, stat: &Stat) -> Result<()> {
        let (identity, in_place) = (Identity::of(stat), self.choices.in_place);
        let (_, place) = self.parent(&entry.path)?;
        let is_shared = place.is_shared;
        let is_new = !in_place || place.made.insert(identity);
        if !is_new && !matches!(entry.what, What::HardLink { .. }) {
            return Err(self.meets(&entry.path));
        }
        if is_shared {
            self.known.insert(entry.path.clone(), identity);
        }
        Ok(())
    }

    /// Removes an existing file of this name that is not a directory, if the choices allow it.
    fn clear(&mut self, path: &[u8], name: &[u8]) -> Result<()> {
        if !self.choices.in_place {
            return Ok(());
        }
        let (directory, place) = self.parent(path)?;
        let there = match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(()),
            there => there,
        };
        let meets = there.is_ok_and(|there| place.made.contains(&Identity::of(&there)));
        let removed = if meets {
            Err(Errno::EXIST)
        } else {
            rustix::fs::unlinkat(directory, name, AtFlags::empty())
        };
        match removed {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(Errno::EXIST) if meets => Err(self.meets(path)),
            Err(errno) => Err(self.wrong(path, errno)),
        }
    }

    fn meets(&mut self, path: &[u8]) -> Error {
        let there = self.there(path);
        Error::new(
            Kind::Exists,
            format!(
                "'{}' of the tree and {there}, which it has too, are one file here",
                text(path)
            ),
        )
    }

    fn no_directory(&self, path: &[u8], errno: Errno) -> Error {
        match errno {
            Errno::LOOP | Errno::NOTDIR => Error::new(
                Kind::Exists,
                format!(
                    "{} is there and no directory; links are not followed",
                    shown(&self.shown, path)
                ),
            ),
            errno => self.wrong(path, errno),
        }
    }

    fn not_made(&mut self, entry: &Entry, errno: Errno) -> Error {
        if errno != Errno::EXIST {
            return self.wrong(&entry.path, errno);
        }
        let there = self.there(&entry.path);
        let sentence = format!(
            "'{}' of the tree can't be made, because {there} is there already: restore into an \
             empty directory, or replace what is there with --in-place",
            text(&entry.path)
        );
        Error::new(Kind::Exists, sentence)
    }

    /// Describes the file under a name, by the name that its directory has: file systems may fold
    /// names.
    fn there(&mut self, path: &[u8]) -> String {
        let name = last_part(path);
        let found = self.parent(path).ok().and_then(|(directory, _)| twin(directory, name));
        let mut there = path[..path.len() - name.len()].to_vec();
        there.extend(found.unwrap_or_else(|| name.to_vec()));
        shown(&self.shown, &there)
    }

    /// Sets owner, attributes, mode and time of a file.
    ///
    /// # Errors
    /// The errors of the system.
    pub fn finish_file(&mut self, entry: &Entry, file: &File) -> Result<()> {
        self.finish_fd(entry, file).map_err(|errno| self.wrong(&entry.path, errno))
    }

    /// Gives a file that could not be restored whole the name with `.damaged` behind it, if that is
    /// free, else with a number. Gives the path.
    ///
    /// # Errors
    /// The errors of the system.
    pub fn damaged(&mut self, entry: &Entry) -> Result<Vec<u8>> {
        const NAMES: u32 = 1000;
        let old = last_part(&entry.path).to_vec();
        let (directory, _) = self.parent(&entry.path)?;
        let mut renamed = Err(Errno::EXIST);
        let mut new = Vec::new();
        for n in 0..NAMES {
            let mark = if n == 0 { ".damaged".into() } else { format!(".damaged-{n}") };
            new = [&old[..], mark.as_bytes()].concat();
            renamed = rustix::fs::renameat_with(
                directory,
                std::ffi::OsStr::from_bytes(&old),
                directory,
                std::ffi::OsStr::from_bytes(&new),
                rustix::fs::RenameFlags::NOREPLACE,
            );
            if renamed != Err(Errno::EXIST) {
                break;
            }
        }
        renamed.map_err(|errno| self.wrong(&entry.path, errno))?;
        let above = entry.path.len() - old.len();
        Ok([&entry.path[..above], &new].concat())
    }

    /// Ends the making of entries; after it the caller may only [`finish`](Self::finish) them.
    ///
    /// # Errors
    /// The errors of the system.
    pub fn made_all(&mut self) -> Result<()> {
        while self.levels.depth() > 1 {
            self.leave()?;
        }
        Ok(())
    }

    /// Finishes directories, each after all of its content.
    ///
    /// # Errors
    /// The errors of the system.
    pub fn finish(&mut self, entry: &Entry) -> Result<()> {
        if entry.what != What::Directory || entry.path.is_empty() {
            return Ok(());
        }
        let (directory, _) = self.parent(&entry.path)?;
        let opened = open_directory(directory, last_part(&entry.path));
        let (opened, stat) = opened.map_err(|errno| self.no_directory(&entry.path, errno))?;
        self.is_known(&entry.path, &stat).map_err(|_| self.replaced(&entry.path))?;
        self.held += weight(entry);
        if self.held > HELD_BYTES {
            return Err(Error::new(
                Kind::Unsupported,
                "the directories of the tree have more attributes than fit into memory",
            ));
        }
        self.enter(opened, &stat, entry.path.clone(), Some(entry.clone()));
        Ok(())
    }

    /// Leaves the current directory, and finishes it if necessary.
    fn leave(&mut self) -> Result<()> {
        let Some((directory, place)) = self.levels.pop() else { return Ok(()) };
        let Some(entry) = place.entry else { return Ok(()) };
        self.held -= weight(&entry);
        let directory = directory.ok_or_else(|| self.replaced(&entry.path))?;
        self.finish_fd(&entry, &directory).map_err(|errno| self.wrong(&entry.path, errno))?;
        // A file system that is mounted below the destination is synced by itself.
        match self.levels.last() {
            Some((_, above)) if above.device != place.device => {
                rustix::fs::syncfs(&directory).map_err(|errno| self.wrong(&entry.path, errno))
            }
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
            Ok(()) | Err(Errno::ACCESS | Errno::INVAL) => Ok(self.left_out),
            Err(errno) => Err(self.wrong(b"..", errno)),
        }
    }

    /// The mode that an entry gets.
    fn mode(&mut self, entry: &Entry) -> Mode {
        if self.choices.privileged {
            return Mode::from_raw_mode(entry.mode & 0o7777);
        }
        self.left_out.special_bits += u64::from(entry.mode & 0o7000 != 0);
        Mode::from_raw_mode(entry.mode & PLAIN_BITS)
    }

    /// True when the owner is to be set.
    fn owners(&mut self, entry: &Entry) -> bool {
        self.left_out.owners += u64::from(!self.is_root && (entry.uid, entry.gid) != self.user);
        self.is_root
    }

    /// Where owners can't be set, they are left out.
    fn owned(&mut self, owned: Result<(), Errno>) -> Result<(), Errno> {
        match owned {
            Err(Errno::PERM | Errno::INVAL) => {
                self.left_out.owners += 1;
                Ok(())
            }
            owned => owned,
        }
    }

    fn finish_fd(&mut self, entry: &Entry, fd: &impl AsFd) -> Result<(), Errno> {
        if self.owners(entry) {
            let owned = rustix::fs::fchown(
                fd,
                Some(Uid::from_raw(entry.uid)),
                Some(Gid::from_raw(entry.gid)),
            );
            self.owned(owned)?;
        }
        let mut has_its_list = true;
        for (name, value) in &entry.attributes {
            if !self.choices.privileged && !is_plain(name) {
                self.left_out.attributes += 1;
                continue;
            }
            match rustix::fs::fsetxattr(fd, &name[..], value, XattrFlags::empty()) {
                Ok(()) => {}
                // Not for us, or not on this file system.
                Err(
                    Errno::PERM
                    | Errno::ACCESS
                    | Errno::OPNOTSUPP
                    | Errno::INVAL
                    | Errno::RANGE
                    | Errno::TOOBIG,
                ) => {
                    self.left_out.attributes += 1;
                    has_its_list &= name != ACCESS_LIST.as_bytes();
                }
                Err(errno) => return Err(errno),
            }
        }
        let is_directory = entry.what == What::Directory;
        for list in [ACCESS_LIST, DEFAULT_LIST].into_iter().take(1 + usize::from(is_directory)) {
            if !entry.attributes.iter().any(|(name, _)| name == list.as_bytes()) {
                drop_list(fd, list)?;
            }
        }
        let mode = self.mode(entry);
        let mode = if has_its_list { mode } else { without_list(entry, mode) };
        rustix::fs::fchmod(fd, mode)?;
        rustix::fs::futimens(fd, &times(entry))
    }
}

/// The mode of an entry that lacks its list of access rights.
fn without_list(entry: &Entry, mode: Mode) -> Mode {
    let list = entry.attributes.iter().find(|(name, _)| name == ACCESS_LIST.as_bytes());
    list.map_or(mode, |(_, list)| Mode::from_raw_mode(mode_without_list(mode.as_raw_mode(), list)))
}

/// True for attributes that give no user a privilege: those of users, and POSIX ACLs.
fn is_plain(name: &[u8]) -> bool {
    name.starts_with(b"user.") || name == ACCESS_LIST.as_bytes() || name == DEFAULT_LIST.as_bytes()
}

/// True when something has a list of access rights.
fn has_list(fd: &impl AsFd, list: &str) -> bool {
    rustix::fs::fgetxattr(fd, list, &mut [0; 0]).is_ok()
}

/// Removes a list of access rights, if there is one.
fn drop_list(fd: &impl AsFd, list: &str) -> Result<(), Errno> {
    no_list(rustix::fs::fremovexattr(fd, list))
}

/// There may be no list, or none on the file system.
fn no_list(removed: Result<(), Errno>) -> Result<(), Errno> {
    match removed {
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(()),
        removed => removed,
    }
}

/// Removes the list of access rights of a pipe or a device, and sets its mode. The place names it,
/// and so can't be used for that itself: `/proc` leads from the place to what it names.
#[allow(clippy::disallowed_methods, reason = "the path is the descriptor's own")]
fn open_place(place: &OwnedFd, mode: Mode) -> Result<(), Errno> {
    let path = format!("/proc/self/fd/{}", place.as_raw_fd());
    no_list(rustix::fs::removexattr(&path, ACCESS_LIST))?;
    rustix::fs::chmod(&path, mode)
}

fn weight(entry: &Entry) -> usize {
    entry.path.len()
        + entry.attributes.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>()
}

fn last_part(path: &[u8]) -> &[u8] {
    path.rsplit(|&byte| byte == b'/').next().unwrap_or(path)
}

fn text(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

fn open_directory(above: &OwnedFd, name: &[u8]) -> Result<(OwnedFd, Stat), Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(above, name, flags, Mode::empty())?;
    let stat = rustix::fs::fstat(&opened)?;
    Ok((opened, stat))
}

fn open_path(directory: &OwnedFd, name: &[u8]) -> Result<(OwnedFd, Stat), Errno> {
    let opened = rustix::fs::openat(
        directory,
        name,
        OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let stat = rustix::fs::fstat(&opened)?;
    Ok((opened, stat))
}

fn is_empty(directory: &OwnedFd) -> bool {
    rustix::fs::Dir::read_from(directory).is_ok_and(|names| {
        names.flatten().all(|name| matches!(name.file_name().to_bytes(), b"." | b".."))
    })
}

/// The name that a directory has for what is found there under `name`.
fn twin(directory: &OwnedFd, name: &[u8]) -> Option<Vec<u8>> {
    let stat = |name: &[u8]| {
        rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)
            .ok()
            .map(|stat| Identity::of(&stat))
    };
    let wanted = stat(name)?;
    let mut same = None;
    for other in rustix::fs::Dir::read_from(directory).ok()?.flatten() {
        let other = other.file_name().to_bytes();
        if other == name {
            return Some(name.to_vec());
        }
        if same.is_none() && stat(other) == Some(wanted) {
            same = Some(OsString::from_vec(other.to_vec()).into_vec());
        }
    }
    same
}

fn times(entry: &Entry) -> Timestamps {
    let time = Timespec { tv_sec: entry.seconds, tv_nsec: i64::from(entry.nanoseconds) };
    Timestamps { last_access: time, last_modification: time }
}

/// Owner of a link, pipe or device, through its descriptor.
#[allow(clippy::disallowed_methods, reason = "the path is empty: it is the descriptor's own")]
fn chown_place(place: &OwnedFd, entry: &Entry) -> Result<(), Errno> {
    rustix::fs::chownat(
        place,
        "",
        Some(Uid::from_raw(entry.uid)),
        Some(Gid::from_raw(entry.gid)),
        AtFlags::EMPTY_PATH,
    )
}

/// Sets the time of a place. Before Linux 5.8 this is not possible, and the time stays the current
/// one.
#[allow(clippy::disallowed_methods, reason = "the path is empty: it is the descriptor's own")]
fn touch_place(place: &OwnedFd, entry: &Entry) -> Result<(), Errno> {
    match rustix::fs::utimensat(place, "", &times(entry), AtFlags::EMPTY_PATH) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOENT) => Ok(()),
        touched => touched,
    }
}

/// Writes a part of a restored file.
///
/// # Errors
/// The errors of the system.
pub fn write_part(file: &File, at: u64, bytes: &[u8]) -> Result<()> {
    file.write_all_at(bytes, at).map_err(|e| Error::from_io("a restored file can't be written", e))
}
