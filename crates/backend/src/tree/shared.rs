//! What the threads of a restore share: its choices, what they made, and what they left out.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    ffi::{OsStr, OsString},
    fs::File,
    hash::{BuildHasher, RandomState},
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::{OsStrExt, OsStringExt},
    },
    path::PathBuf,
};

use onefold_core::{
    Error, Kind, Result,
    tree::{Entry, What},
};
use parking_lot::Mutex;
use rustix::{
    fs::{AtFlags, Gid, Mode, OFlags, Stat, Uid, XattrFlags},
    io::Errno,
};

use crate::random::random_bytes;

use super::{
    Identity,
    attributes::{
        ACCESS_LIST, DEFAULT_LIST, PLAIN_BITS, STICKY, drop_list, is_plain, set_on_place, times,
        without_list,
    },
    mounts, shown,
    stamp::Stamp,
};

/// Choices for restoring a tree.
#[derive(Clone, Debug, Default)]
pub struct Choices {
    /// Replaces existing entries of the same names; existing directories are used.
    pub in_place: bool,
    /// Set-id bits, sticky bits of files, devices, and the attributes of the system too.
    pub privileged: bool,
    /// Directories in which nothing is made, changed or removed, by device and inode: those of the
    /// archive that is restored from.
    pub spared: Vec<(u64, u64)>,
}

/// Counts of the attributes and entries that were not restored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Owners and groups, which only root restores.
    pub owners: u64,
    /// Set-id bits, and sticky bits of files.
    pub special_bits: u64,
    /// Devices, and further names of them.
    pub devices: u64,
    /// Sockets that the file system does not take, and further names of them.
    pub sockets: u64,
    /// Extended attributes.
    pub attributes: u64,
}

/// What is known of a directory that is being filled.
#[derive(Default)]
pub(super) struct Filling {
    /// True when others can write to the directory, and exchange names in it.
    pub(super) is_shared: bool,
    /// Identities of the entries made in this directory, where entries may meet.
    pub(super) made: Mutex<HashSet<Identity>>,
}

/// Stamps of what was made, by the hashes of paths: these may be long, and users have many. Who
/// does not know this process can't choose paths of one hash.
#[derive(Default)]
pub(super) struct Known {
    hashers: [RandomState; 2],
    all: HashMap<[u64; 2], Stamp>,
}

impl Known {
    fn key(&self, path: &[u8]) -> [u64; 2] {
        self.hashers.each_ref().map(|hasher| hasher.hash_one(path))
    }

    fn insert(&mut self, path: &[u8], stamp: Stamp) {
        self.all.insert(self.key(path), stamp);
    }

    fn get(&self, path: &[u8]) -> Option<Stamp> {
        if self.all.is_empty() { None } else { self.all.get(&self.key(path)).copied() }
    }
}

/// Directories of the way that stay open.
const WAY_OPEN: usize = 32;

/// The way to a directory: the last ones on it stay open. Many names of one file, deep in a tree, or of
/// files beside each other there, do not open each directory on the way for each.
#[derive(Default)]
pub(super) struct Way {
    path: Vec<u8>,
    /// The lengths of their paths, and the directories.
    open: VecDeque<(usize, OwnedFd)>,
}

impl Way {
    /// Gives up what does not lead to a path; gives the length of what does.
    fn go_back_to(&mut self, path: &[u8]) -> usize {
        let Way { path: old, open } = self;
        let leads = |length: usize| {
            path.get(..length) == old.get(..length) && path.get(length).is_none_or(|&b| b == b'/')
        };
        while open.back().is_some_and(|(length, _)| !leads(*length)) {
            open.pop_back();
        }
        old.clear();
        old.extend_from_slice(path);
        open.back().map_or(0, |(length, _)| *length)
    }

    fn go_on(&mut self, length: usize, directory: OwnedFd) {
        self.open.push_back((length, directory));
        if self.open.len() > WAY_OPEN {
            self.open.pop_front();
        }
    }

    fn end<'a>(&'a self, root: &'a OwnedFd) -> &'a OwnedFd {
        self.open.back().map_or(root, |(_, directory)| directory)
    }
}

/// See the head of the module.
pub(super) struct Shared {
    pub(super) shown: PathBuf,
    pub(super) root: OwnedFd,
    pub(super) choices: Choices,
    pub(super) is_root: bool,
    pub(super) user: (u32, u32),
    /// What was made under names that other users could exchange.
    pub(super) known: Mutex<Known>,
    pub(super) left_out: Mutex<LeftOut>,
    /// The way to the directory of the first name that was looked for last.
    pub(super) last: Mutex<Way>,
}

impl Shared {
    /// Errors for a directory that is to stay as it is.
    pub(super) fn may_enter(&self, path: &[u8], stat: &Stat) -> Result<()> {
        if !self.choices.spared.contains(&(stat.st_dev, stat.st_ino)) {
            return Ok(());
        }
        let shown = shown(&self.shown, path);
        Err(Error::new(Kind::Denied, format!("{shown} is the archive that is restored from")))
    }

    /// Errors when the destination is such a directory, or lies in one.
    pub(super) fn lies_elsewhere(&self, root: &OwnedFd) -> Result<()> {
        if self.choices.spared.is_empty() {
            return Ok(());
        }
        let wrong = |errno: Errno| Error::from_io(self.shown.display(), errno.into());
        let mut at = rustix::io::fcntl_dupfd_cloexec(root, 0).map_err(wrong)?;
        let mut stat = rustix::fs::fstat(&at).map_err(wrong)?;
        loop {
            if self.choices.spared.contains(&(stat.st_dev, stat.st_ino)) {
                let what =
                    format!("{} lies in the archive that is restored from", self.shown.display());
                return Err(Error::new(Kind::Denied, what));
            }
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            at = rustix::fs::openat(&at, "..", flags, Mode::empty()).map_err(wrong)?;
            let above = rustix::fs::fstat(&at).map_err(wrong)?;
            if Identity::of(&above) == Identity::of(&stat) {
                return Ok(());
            }
            stat = above;
        }
    }

    pub(super) fn wrong(&self, path: &[u8], errno: Errno) -> Error {
        Error::from_io(shown(&self.shown, path), errno.into())
    }

    pub(super) fn replaced(&self, path: &[u8]) -> Error {
        Error::new(
            Kind::Busy,
            format!(
                "{}: somebody replaced it while the tree was restored",
                shown(&self.shown, path)
            ),
        )
    }

    /// The directory with this identity, as something that is filled.
    pub(super) fn filling(&self, stat: &Stat) -> Filling {
        let is_shared = stat.st_uid != self.user.0 || stat.st_mode & 0o022 != 0;
        Filling { is_shared, ..Filling::default() }
    }

    /// The directory of an earlier entry, a descriptor of what is there, and which file it is.
    /// `STALE` when it is not what was made; whoever it belongs to by now.
    pub(super) fn find(&self, path: &[u8]) -> Result<(OwnedFd, OwnedFd, Stat), Errno> {
        let name = last_part(path);
        let above = &path[..path.len() - name.len()];
        let at = self.above(above)?;
        let (place, stat) = open_path(&at, name).map_err(stale)?;
        if self.known.lock().get(path).is_some_and(|known| !known.may_be(&place, &stat)) {
            return Err(Errno::STALE);
        }
        Ok((at, place, stat))
    }

    /// The directory of earlier entries, by its path with a slash at its end.
    fn above(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        let path = path.strip_suffix(b"/").unwrap_or(path);
        let mut way = self.last.lock();
        let mut length = way.go_back_to(path);
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::openat(&self.root, ".", flags, Mode::empty())?;
        for part in path[length..].split(|&byte| byte == b'/').filter(|part| !part.is_empty()) {
            length += part.len() + usize::from(length > 0);
            let (next, stat) = open_directory(way.end(&root), part).map_err(stale)?;
            self.is_known(&path[..length], &next, &stat)?;
            way.go_on(length, next);
        }
        rustix::io::fcntl_dupfd_cloexec(way.end(&root), 0)
    }

    /// `STALE` when this is not the unfinished directory that was made.
    pub(super) fn is_known(&self, path: &[u8], fd: &OwnedFd, stat: &Stat) -> Result<(), Errno> {
        if self.known.lock().get(path).is_none_or(|known| known.fits(fd, stat)) {
            Ok(())
        } else {
            Err(Errno::STALE)
        }
    }

    /// The mode that a new entry gets.
    pub(super) fn mode(&self, entry: &Entry) -> Mode {
        self.mode_beside(entry, 0)
    }

    /// The mode that an entry gets; set-id and sticky bits that are there, and stored, stay. The sticky
    /// bit of a directory gives nobody a right: it keeps users from removing each other's files.
    fn mode_beside(&self, entry: &Entry, there: u32) -> Mode {
        if self.choices.privileged {
            return Mode::from_raw_mode(entry.mode & 0o7777);
        }
        let plain = match entry.what {
            What::Directory => PLAIN_BITS | STICKY,
            _ => PLAIN_BITS,
        };
        let kept = plain | there & 0o7000;
        self.left_out.lock().special_bits += u64::from(entry.mode & 0o7000 & !kept != 0);
        Mode::from_raw_mode(entry.mode & kept)
    }

    /// True when the owner is to be set.
    pub(super) fn owners(&self, entry: &Entry) -> bool {
        self.left_out.lock().owners +=
            u64::from(!self.is_root && (entry.uid, entry.gid) != self.user);
        self.is_root
    }

    /// Where owners can't be set, they are left out.
    pub(super) fn owned(&self, owned: Result<(), Errno>) -> Result<(), Errno> {
        match owned {
            Err(Errno::PERM | Errno::INVAL) => {
                self.left_out.lock().owners += 1;
                Ok(())
            }
            owned => owned,
        }
    }

    /// True in place, where something belongs to its stored owner already.
    pub(super) fn keeps(&self, fd: &impl AsFd, entry: &Entry) -> bool {
        self.choices.in_place && has_owner(fd, entry)
    }

    /// Sets owner, attributes, mode and times. With `keeps`, and in place, bits and attributes that are
    /// not restored stay where they are as they are stored, and the owner is the stored one.
    pub(super) fn finish_fd(
        &self,
        entry: &Entry,
        fd: &impl AsFd,
        keeps: bool,
    ) -> Result<(), Errno> {
        let keeps = keeps && self.keeps(fd, entry);
        let there = if keeps { rustix::fs::fstat(fd)?.st_mode } else { 0 };
        if self.owners(entry) && !has_owner(fd, entry) {
            let owned = rustix::fs::fchown(
                fd,
                Some(Uid::from_raw(entry.uid)),
                Some(Gid::from_raw(entry.gid)),
            );
            self.owned(owned)?;
        }
        let left_out = self.set_attributes(fd, &entry.attributes, keeps)?;
        // A list that the directory above handed down goes, also where the own one can't be set:
        // the mode would let in whom it names.
        let is_directory = entry.what == What::Directory;
        for list in [ACCESS_LIST, DEFAULT_LIST].into_iter().take(1 + usize::from(is_directory)) {
            if !has_list_stored(entry, list) || left_out.contains(&list.as_bytes()) {
                drop_list(fd, list)?;
            }
        }
        let mode = self.mode_beside(entry, there);
        let lacks_its_list = left_out.contains(&ACCESS_LIST.as_bytes());
        let mode = if lacks_its_list { without_list(entry, mode) } else { mode };
        rustix::fs::fchmod(fd, mode)?;
        rustix::fs::futimens(fd, &times(entry))
    }

    /// Sets attributes of what is open, as [`set_each`](Self::set_each) does. With `keeps`, those that are
    /// not restored and are there as they are stored are not counted.
    pub(super) fn set_attributes<'a>(
        &self,
        fd: &impl AsFd,
        attributes: &'a [(Vec<u8>, Vec<u8>)],
        keeps: bool,
    ) -> Result<Vec<&'a [u8]>, Errno> {
        self.set_each(
            attributes,
            &|name, value| keeps && has_attribute(fd, name, value),
            &|name, value| rustix::fs::fsetxattr(fd, name, value, XattrFlags::empty()),
        )
    }

    /// Sets attributes of a link, pipe, socket or device that was just made.
    pub(super) fn set_on_place<'a>(
        &self,
        place: &OwnedFd,
        entry: &'a Entry,
    ) -> Result<Vec<&'a [u8]>, Errno> {
        self.set_each(&entry.attributes, &|_, _| false, &|name, value| {
            set_on_place(place, name, value)
        })
    }

    /// Sets those attributes that the choices allow, and counts the others, and those that can't be
    /// set, whose names it gives.
    fn set_each<'a>(
        &self,
        attributes: &'a [(Vec<u8>, Vec<u8>)],
        is_there: &dyn Fn(&[u8], &[u8]) -> bool,
        set: &dyn Fn(&[u8], &[u8]) -> Result<(), Errno>,
    ) -> Result<Vec<&'a [u8]>, Errno> {
        let mut left_out = Vec::new();
        for (name, value) in attributes {
            if !self.choices.privileged && !is_plain(name) {
                self.left_out.lock().attributes += u64::from(!is_there(name, value));
                continue;
            }
            match set(name, value) {
                Ok(()) => {}
                // Not for us, or not on this file system.
                Err(
                    Errno::PERM
                    | Errno::ACCESS
                    | Errno::OPNOTSUPP
                    | Errno::INVAL
                    | Errno::RANGE
                    | Errno::TOOBIG
                    | Errno::NOSPC
                    | Errno::DQUOT,
                ) => {
                    self.left_out.lock().attributes += 1;
                    left_out.push(&name[..]);
                }
                Err(errno) => return Err(errno),
            }
        }
        Ok(left_out)
    }

    /// Checks that this user made what was just made in a directory, as far as its file system
    /// knows users.
    pub(super) fn is_ours(&self, at: &OwnedFd, entry: &Entry, stat: &Stat) -> Result<()> {
        if stat.st_uid == self.user.0 || owner_of_new(at) == Some(stat.st_uid) {
            Ok(())
        } else {
            Err(self.replaced(&entry.path))
        }
    }

    /// True when an earlier file belongs to whom it was made by, or shall: nobody else's gets a
    /// further name.
    fn has_right_owner(&self, entry: &Entry, target: &[u8], stat: &Stat) -> bool {
        let maker = self.known.lock().get(target).map_or(self.user.0, |known| known.owner);
        stat.st_uid == maker || self.is_root && stat.st_uid == entry.uid
    }

    /// Remembers a file that was there already, for one entry.
    ///
    /// # Errors
    /// `Exists` when another entry has it: two names of the tree are one file here.
    pub(super) fn note_old(
        &self,
        at: (&OwnedFd, &Filling),
        entry: &Entry,
        stamp: Stamp,
    ) -> Result<()> {
        if self.choices.in_place && at.1.made.lock().contains(&stamp.identity) {
            return Err(self.meets(at.0, &entry.path));
        }
        self.note(at, entry, stamp);
        Ok(())
    }

    /// Remembers a file that was just made, or linked. The file system may give it the number of one
    /// that was restored and removed since, so it is not asked whether another entry had the number.
    pub(super) fn note(&self, at: (&OwnedFd, &Filling), entry: &Entry, stamp: Stamp) {
        if self.choices.in_place {
            at.1.made.lock().insert(stamp.identity);
        }
        if at.1.is_shared {
            self.known.lock().insert(&entry.path, stamp);
        }
    }

    /// Removes an existing file of this name that is not a directory, if the choices allow it.
    pub(super) fn clear(&self, at: (&OwnedFd, &Filling), path: &[u8]) -> Result<()> {
        if !self.choices.in_place {
            return Ok(());
        }
        let (directory, name) = (at.0, last_part(path));
        self.is_not_mounted(directory, path)?;
        let there = match mounts::identity(directory, OsStr::from_bytes(name)) {
            Err(Errno::NOENT) => return Ok(()),
            there => there,
        };
        if there.is_ok_and(|there| at.1.made.lock().contains(&there)) {
            return Err(self.meets(directory, path));
        }
        match rustix::fs::unlinkat(directory, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(self.wrong(path, errno)),
        }
    }

    pub(super) fn meets(&self, directory: &OwnedFd, path: &[u8]) -> Error {
        let there = self.there(directory, path);
        Error::new(
            Kind::Exists,
            format!(
                "'{}' of the tree and {there}, which it has too, are one file here",
                text(path)
            ),
        )
    }

    pub(super) fn not_made(&self, directory: &OwnedFd, entry: &Entry, errno: Errno) -> Error {
        if errno != Errno::EXIST {
            return self.wrong(&entry.path, errno);
        }
        let there = self.there(directory, &entry.path);
        let sentence = format!(
            "'{}' of the tree can't be made, because {there} is there already: restore into an \
             empty directory, or replace what is there with --in-place",
            text(&entry.path)
        );
        Error::new(Kind::Exists, sentence)
    }

    /// Describes the file under a name, by the name that its directory has: file systems may fold
    /// names.
    fn there(&self, directory: &OwnedFd, path: &[u8]) -> String {
        let name = last_part(path);
        let mut there = path[..path.len() - name.len()].to_vec();
        there.extend(twin(directory, name).unwrap_or_else(|| name.to_vec()));
        shown(&self.shown, &there)
    }

    /// Makes an empty file of so many bytes, for its user alone.
    pub(super) fn new_file(
        &self,
        at: (&OwnedFd, &Filling),
        entry: &Entry,
        bytes: u64,
    ) -> Result<(File, Stamp)> {
        let flags =
            OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let name = last_part(&entry.path);
        let made = rustix::fs::openat(at.0, name, flags, Mode::from_raw_mode(0o600));
        let file = File::from(made.map_err(|errno| self.not_made(at.0, entry, errno))?);
        let stat = rustix::fs::fstat(&file).map_err(|errno| self.wrong(&entry.path, errno))?;
        let stamp = Stamp::of_new(&file, &stat);
        self.note(at, entry, stamp);
        if bytes > 0 {
            file.set_len(bytes).map_err(|e| Error::from_io(shown(&self.shown, &entry.path), e))?;
        }
        Ok((file, stamp))
    }

    /// Makes another name of an earlier entry.
    pub(super) fn link(
        &self,
        at: (&OwnedFd, &Filling),
        entry: &Entry,
        target: &[u8],
    ) -> Result<()> {
        let first = match self.find(target) {
            // The first name was left out, so this one is too.
            Err(Errno::NOENT) => {
                let mut left_out = self.left_out.lock();
                match left_out.devices > 0 {
                    true => left_out.devices += 1,
                    false => left_out.sockets += 1,
                }
                drop(left_out);
                return self.clear(at, &entry.path);
            }
            Err(Errno::STALE) => return Err(self.replaced(target)),
            first => first.map_err(|errno| self.wrong(target, errno))?,
        };
        // The first name stays open, so that no other file gets its inode number meanwhile.
        let (above, _first, stat) = first;
        if !self.has_right_owner(entry, target, &stat) {
            return Err(self.replaced(target));
        }
        let name = last_part(&entry.path);
        self.is_not_mounted(at.0, &entry.path)?;
        if self.choices.in_place
            && mounts::identity(at.0, OsStr::from_bytes(name)) == Ok(Identity::of(&stat))
            && has_no_twin(at.0, name)
        {
            // It is a name of the file already.
            self.note(at, entry, Stamp::of_old(&stat));
            return Ok(());
        }
        self.clear(at, &entry.path)?;
        let made = rustix::fs::linkat(&above, last_part(target), at.0, name, AtFlags::empty());
        made.map_err(|errno| self.not_made(at.0, entry, errno))?;
        let again = open_path(at.0, name).map_err(|errno| match errno {
            Errno::XDEV => self.mounted(&entry.path, None),
            errno => self.wrong(&entry.path, errno),
        })?;
        if Identity::of(&again.1) != Identity::of(&stat) {
            return Err(self.replaced(target));
        }
        self.note(at, entry, Stamp::of_old(&again.1));
        Ok(())
    }

    /// Refuses a name on which another user mounted a file system of his own: he would see what is
    /// restored there, or answer nothing for ever.
    pub(super) fn is_not_mounted(&self, directory: &OwnedFd, path: &[u8]) -> Result<()> {
        if !self.choices.in_place {
            return Ok(());
        }
        match mounts::closed(directory, OsStr::from_bytes(last_part(path)), false) {
            None => Ok(()),
            Some(closed) => Err(self.mounted(path, closed.of_user)),
        }
    }

    /// The error for what another user mounted.
    pub(super) fn mounted(&self, path: &[u8], user: Option<u32>) -> Error {
        let shown = shown(&self.shown, path);
        let who = user.map_or_else(|| "another user".to_owned(), |user| format!("user {user}"));
        let why = format!("{shown}: {who} mounted a file system of his own there");
        Error::new(Kind::Unsupported, why)
    }

    /// Opens a directory that may have been there before.
    pub(super) fn open_old(&self, above: &OwnedFd, path: &[u8]) -> Result<(OwnedFd, Stat)> {
        open_directory(above, last_part(path)).map_err(|errno| match errno {
            Errno::XDEV => {
                let name = OsStr::from_bytes(last_part(path));
                let closed = mounts::closed(above, name, false);
                self.mounted(path, closed.and_then(|closed| closed.of_user))
            }
            errno => self.no_directory(path, errno),
        })
    }

    pub(super) fn no_directory(&self, path: &[u8], errno: Errno) -> Error {
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

    /// Gives a file that could not be restored whole the name with `.damaged` behind it, if that is
    /// free, else with a number. Gives the path.
    ///
    /// # Errors
    /// The errors of the system.
    pub(super) fn damaged(&self, directory: &OwnedFd, entry: &Entry) -> Result<Vec<u8>> {
        const NAMES: u32 = 1000;
        let old = last_part(&entry.path).to_vec();
        let mut renamed = Err(Errno::EXIST);
        let mut new = Vec::new();
        for n in 0..NAMES {
            let mark = if n == 0 { ".damaged".into() } else { format!(".damaged-{n}") };
            new = [&old[..], mark.as_bytes()].concat();
            renamed = rustix::fs::renameat_with(
                directory,
                OsStr::from_bytes(&old),
                directory,
                OsStr::from_bytes(&new),
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
}

/// True when a file has an attribute with this value.
fn has_attribute(fd: &impl AsFd, name: &[u8], value: &[u8]) -> bool {
    let mut there = vec![0; value.len() + 1];
    rustix::fs::fgetxattr(fd, name, &mut there[..]).is_ok_and(|n| there[..n] == *value)
}

/// True for an entry that was stored with this list of access rights.
pub(super) fn has_list_stored(entry: &Entry, list: &str) -> bool {
    entry.attributes.iter().any(|(name, _)| name == list.as_bytes())
}

/// True when something belongs to whom it shall already, as files of root do that root makes.
fn has_owner(fd: &impl AsFd, entry: &Entry) -> bool {
    rustix::fs::fstat(fd).is_ok_and(|stat| (stat.st_uid, stat.st_gid) == (entry.uid, entry.gid))
}

pub(super) fn last_part(path: &[u8]) -> &[u8] {
    path.rsplit(|&byte| byte == b'/').next().unwrap_or(path)
}

pub(super) fn text(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

/// The owner that a new file in a directory gets: another one than its maker where a file system
/// has no owners. Nobody else can have put the file there that tells it.
pub(super) fn owner_of_new(directory: &OwnedFd) -> Option<u32> {
    let name = format!(".onefold-{:016x}", u64::from_le_bytes(random_bytes().ok()?));
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let made = rustix::fs::openat(directory, &name, flags, Mode::RUSR | Mode::WUSR).ok()?;
    let _ = rustix::fs::unlinkat(directory, &name, AtFlags::empty());
    rustix::fs::fstat(&made).ok().map(|stat| stat.st_uid)
}

/// A name of which another user made a mount of his own is not what was made.
fn stale(errno: Errno) -> Errno {
    if errno == Errno::XDEV { Errno::STALE } else { errno }
}

/// Opens a directory; `XDEV` when another user mounted a file system of his own there.
pub(super) fn open_directory(above: &OwnedFd, name: &[u8]) -> Result<(OwnedFd, Stat), Errno> {
    let opened = mounts::open_directory(above, OsStr::from_bytes(name))?;
    let stat = rustix::fs::fstat(&opened)?;
    Ok((opened, stat))
}

/// Opens anything as a place; `XDEV` when another user mounted a file system of his own there.
pub(super) fn open_path(directory: &OwnedFd, name: &[u8]) -> Result<(OwnedFd, Stat), Errno> {
    let opened = mounts::open_place(directory, OsStr::from_bytes(name))?;
    let stat = rustix::fs::fstat(&opened)?;
    Ok((opened, stat))
}

pub(super) fn is_empty(directory: &OwnedFd) -> bool {
    rustix::fs::Dir::read_from(directory).is_ok_and(|names| {
        names.flatten().all(|name| matches!(name.file_name().to_bytes(), b"." | b".."))
    })
}

/// True when a directory surely has this very name, and not another one that its file system takes for it,
/// as file systems that fold names do. It is not read for that, however many names of a file are in it.
fn has_no_twin(directory: &OwnedFd, name: &[u8]) -> bool {
    // Some of these leave out what is at the end, or know shorter names.
    let is_plain = name.is_ascii() && !name.ends_with(b".") && !name.ends_with(b" ");
    let turned: Vec<u8> = name
        .iter()
        .map(|letter| match letter.is_ascii_lowercase() {
            true => letter.to_ascii_uppercase(),
            false => letter.to_ascii_lowercase(),
        })
        .collect();
    is_plain
        && !name.contains(&b'~')
        && (turned == name
            || mounts::identity(directory, OsStr::from_bytes(&turned)) == Err(Errno::NOENT))
}

/// The name that a directory has for what is found there under `name`.
pub(super) fn twin(directory: &OwnedFd, name: &[u8]) -> Option<Vec<u8>> {
    let of = |name: &[u8]| mounts::identity(directory, OsStr::from_bytes(name)).ok();
    let wanted = of(name)?;
    let mut same = None;
    for other in rustix::fs::Dir::read_from(directory).ok()?.flatten() {
        let other = other.file_name().to_bytes();
        if other == name {
            return Some(name.to_vec());
        }
        if same.is_none() && of(other) == Some(wanted) {
            same = Some(OsString::from_vec(other.to_vec()).into_vec());
        }
    }
    same
}
