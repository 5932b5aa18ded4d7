//! Files of a restored tree that several threads make, fill and finish in any order.
//!
//! A file is made when something is to be written to it, and finished when all of it is there. One
//! that is opened again by its name must be the file that was made. Restored in place, an old file
//! stays only if nobody but its new owner can have it open, under no name that is not restored: else
//! a new one replaces it. Before the first write to an old file others lose their rights to it, and
//! its time of change says that it is none of the stored ones.

use std::{
    ffi::OsStr,
    fs::File,
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    sync::Arc,
};

use onefold_core::{Error, Result, tree::Entry};
use parking_lot::Mutex;
use rustix::{
    fs::{AtFlags, FallocateFlags, FileType, Mode, OFlags, Stat, Timespec, Timestamps},
    io::Errno,
};

use super::{
    Identity,
    attributes::{ACCESS_LIST, attributes, is_plain},
    directories::Directories,
    mounts,
    shared::{Filling, Shared, last_part, open_path},
    stamp::Stamp,
};

/// Group and others: the bits by which somebody else may have a file open.
const OTHERS_BITS: u32 = 0o077;

/// Gives the paths of all names that are restored of a file, by their numbers from 0 on.
pub type NamesOf<'a> = dyn Fn(usize) -> Option<Vec<u8>> + 'a;

/// Which file a name stood for when it was made or found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Made(Stamp);

/// See the head of the module. Any thread may call.
pub struct Files {
    shared: Arc<Shared>,
    directories: Mutex<Directories>,
}

impl Files {
    pub(super) fn new(shared: Arc<Shared>) -> Files {
        Files { shared, directories: Mutex::default() }
    }

    pub(super) fn add(
        &self,
        above: Option<usize>,
        name: &[u8],
        stamp: Stamp,
        filling: Arc<Filling>,
    ) -> usize {
        self.directories.lock().add(above, name, stamp, filling)
    }

    pub(super) fn has(&self, number: usize, identity: Identity) -> bool {
        self.directories.lock().has(number, identity)
    }

    /// How many directories are remembered.
    pub fn directories(&self) -> usize {
        self.directories.lock().count()
    }

    /// Forgets the numbers of directories.
    pub fn forget_directories(&self) {
        self.directories.lock().clear();
    }

    fn open(&self, directory: usize, entry: &Entry) -> Result<(Arc<OwnedFd>, Arc<Filling>)> {
        let opened = self.directories.lock().open(directory, &self.shared.root);
        opened.map_err(|errno| match errno {
            Errno::STALE | Errno::NOENT | Errno::LOOP | Errno::NOTDIR => {
                let name = last_part(&entry.path).len();
                let above = entry.path.len().saturating_sub(name + 1);
                self.shared.replaced(&entry.path[..above])
            }
            errno => self.shared.wrong(&entry.path, errno),
        })
    }

    /// Makes an empty file, for its user alone.
    ///
    /// # Errors
    /// `Exists` when there is something of this name, with both names, and those of the system.
    pub fn make(&self, directory: usize, entry: &Entry) -> Result<(File, Made)> {
        let (at, filling) = self.open(directory, entry)?;
        self.shared.new_file((&at, &filling), entry, 0).map(|(file, stamp)| (file, Made(stamp)))
    }

    /// Opens a file again, to write to it. `Busy` when another one has its name.
    ///
    /// # Errors
    /// As above, and those of the system.
    pub fn open_again(&self, directory: usize, entry: &Entry, made: Made) -> Result<File> {
        let (at, _) = self.open(directory, entry)?;
        // A writer of short ranges together reads the bytes between them.
        let name = OsStr::from_bytes(last_part(&entry.path));
        let opened = mounts::open_file(&at, name, OFlags::RDWR);
        let opened = opened.and_then(|file| Ok((rustix::fs::fstat(&file)?, file)));
        match opened {
            Ok((stat, file)) if made.0.fits(&file, &stat) => Ok(File::from(file)),
            // A socket can't be opened.
            Ok(_) | Err(Errno::LOOP | Errno::NOENT | Errno::NXIO) => {
                Err(self.shared.replaced(&entry.path))
            }
            Err(Errno::XDEV) => {
                self.shared.is_not_mounted(&at, &entry.path)?;
                Err(self.shared.mounted(&entry.path, None))
            }
            Err(errno) => Err(self.shared.wrong(&entry.path, errno)),
        }
    }

    /// Removes a file that was made, if its name still stands for it. Nothing else can be done about
    /// one that can't be removed.
    pub fn remove(&self, directory: usize, entry: &Entry, made: Made) {
        let Ok((at, _)) = self.open(directory, entry) else { return };
        let name = last_part(&entry.path);
        if mounts::identity(&at, OsStr::from_bytes(name)) == Ok(made.0.identity) {
            let _ = rustix::fs::unlinkat(&*at, name, AtFlags::empty());
        }
    }

    /// The file that is there already, if it may stay; else its name is free after this. `names`
    /// are the paths of all names that are restored of it.
    ///
    /// # Errors
    /// `Exists` when it is another file of this tree, and those of the system.
    pub fn old(
        &self,
        directory: usize,
        entry: &Entry,
        names: &NamesOf<'_>,
    ) -> Result<Option<(File, Made)>> {
        let (at, filling) = self.open(directory, entry)?;
        self.shared.is_not_mounted(&at, &entry.path)?;
        let name = last_part(&entry.path);
        let stat = match open_path(&at, name) {
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::XDEV) => return Err(self.shared.mounted(&entry.path, None)),
            opened => opened.map_err(|errno| self.shared.wrong(&entry.path, errno))?.1,
        };
        let identity = Identity::of(&stat);
        if self.may_stay(entry, &stat, names) && !filling.made.lock().contains(&identity) {
            let opened = mounts::open_file(&at, OsStr::from_bytes(name), OFlags::RDWR);
            // A program that runs, or a file that we may not write to, is replaced.
            if let Ok(opened) = opened
                && let Ok(again) = rustix::fs::fstat(&opened)
                && Identity::of(&again) == identity
                && self.may_stay(entry, &again, names)
                && self.has_only(&opened, entry)
            {
                let stamp = Stamp::of_old(&again);
                self.shared.note_old((&at, &filling), entry, stamp)?;
                return Ok(Some((File::from(opened), Made(stamp))));
            }
        }
        self.shared.clear((&at, &filling), &entry.path)?;
        Ok(None)
    }

    /// True when all that can be written to through an old file is what is restored.
    fn may_stay(&self, entry: &Entry, stat: &Stat, names: &NamesOf<'_>) -> bool {
        let owner = match self.shared.is_root {
            true => (entry.uid, entry.gid),
            false => self.shared.user,
        };
        FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
            && (stat.st_uid, stat.st_gid) == owner
            && stat.st_mode & OTHERS_BITS & !entry.mode == 0
            && (stat.st_nlink == 1 || self.are_all_names(stat, names))
    }

    /// True when all names of a file are among these.
    fn are_all_names(&self, stat: &Stat, names: &NamesOf<'_>) -> bool {
        let is_name = |name: &Vec<u8>| {
            let found = self.shared.find(name);
            found.is_ok_and(|(_, _, found)| Identity::of(&found) == Identity::of(stat))
        };
        (0..).map_while(names).filter(is_name).count() >= stat.st_nlink as usize
    }

    /// Before the first write to an old file: takes the rights of others away, and its time of
    /// change.
    ///
    /// # Errors
    /// `Busy` when it got another name meanwhile, and those of the system.
    pub fn shut(&self, entry: &Entry, file: &File, names: &NamesOf<'_>) -> Result<()> {
        let wrong = |errno| self.shared.wrong(&entry.path, errno);
        rustix::fs::fchmod(file, Mode::from_raw_mode(0o600)).map_err(wrong)?;
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let times = Timestamps { last_access: zero, last_modification: zero };
        rustix::fs::futimens(file, &times).map_err(wrong)?;
        let stat = rustix::fs::fstat(file).map_err(wrong)?;
        if stat.st_nlink > 1 && !self.are_all_names(&stat, names) {
            return Err(self.shared.replaced(&entry.path));
        }
        Ok(())
    }

    /// Makes what was changed on the file system of a file durable.
    ///
    /// # Errors
    /// Those of the system.
    pub fn sync(&self, entry: &Entry, file: &File) -> Result<()> {
        rustix::fs::syncfs(file).map_err(|errno| self.shared.wrong(&entry.path, errno))
    }

    /// True when owner, mode, times and attributes of a file are those that are stored already.
    #[must_use]
    pub fn is_finished(&self, entry: &Entry, file: &File) -> bool {
        let Ok(stat) = rustix::fs::fstat(file) else { return false };
        let time = (stat.st_mtime, stat.st_mtime_nsec as u32);
        let owner = !self.shared.is_root || (stat.st_uid, stat.st_gid) == (entry.uid, entry.gid);
        owner
            && self.has_mode(entry, stat.st_mode)
            && time == (entry.seconds, entry.nanoseconds)
            && attributes(file).is_ok_and(|there| {
                self.wanted(entry).all(|stored| there.contains(stored))
                    && there.iter().all(|one| self.is_stored(entry, one))
            })
    }

    /// True for a mode that restoring would not change. Bits that are not restored may be there when
    /// they are stored: whoever restores gives nobody more than there is.
    fn has_mode(&self, entry: &Entry, there: u32) -> bool {
        match self.shared.choices.privileged {
            true => there & 0o7777 == entry.mode & 0o7777,
            false => there & 0o777 == entry.mode & 0o777 && there & 0o7000 & !entry.mode == 0,
        }
    }

    /// True for an attribute of a file that restoring would leave as it is.
    fn is_stored(&self, entry: &Entry, (name, value): &(Vec<u8>, Vec<u8>)) -> bool {
        entry.attributes.iter().any(|(stored, to)| stored == name && to == value)
    }

    /// The attributes of an entry that are restored.
    fn wanted<'a>(&self, entry: &'a Entry) -> impl Iterator<Item = &'a (Vec<u8>, Vec<u8>)> {
        let all = self.shared.choices.privileged;
        entry.attributes.iter().filter(move |(name, _)| all || is_plain(name))
    }

    /// True when a file has no attributes but those that are restored, and no other list of access
    /// rights.
    fn has_only(&self, file: &OwnedFd, entry: &Entry) -> bool {
        let stored = |name: &[u8]| self.wanted(entry).find(|(stored, _)| stored == name);
        let Ok(there) = attributes(file) else { return false };
        let list = ACCESS_LIST.as_bytes();
        let old_list = there.iter().find(|(name, _)| name == list);
        let Ok(stat) = rustix::fs::fstat(file) else { return false };
        let lists_agree = match stored(list) {
            // Its group may have had what the list does not give.
            Some(new) => old_list == Some(new) || (old_list.is_none() && stat.st_mode & 0o070 == 0),
            None => old_list.is_none(),
        };
        lists_agree
            && there.iter().all(|one| stored(&one.0).is_some() || self.is_stored(entry, one))
    }

    /// Sets owner, attributes, mode and time of a file. One whose content is the stored one, and was
    /// not written, keeps set-id bits and attributes of the system that are as they are stored.
    ///
    /// # Errors
    /// Those of the system.
    pub fn finish(&self, entry: &Entry, file: &File, is_unwritten: bool) -> Result<()> {
        self.shared
            .finish_fd(entry, file, is_unwritten)
            .map_err(|errno| self.shared.wrong(&entry.path, errno))
    }

    /// Gives a file that could not be restored whole the name with `.damaged` behind it, if that is
    /// free, else with a number. Gives the path.
    ///
    /// # Errors
    /// Those of the system.
    pub fn damaged(&self, directory: usize, entry: &Entry) -> Result<Vec<u8>> {
        let (at, _) = self.open(directory, entry)?;
        self.shared.damaged(&at, entry)
    }

    /// Makes another name of a file that was made.
    ///
    /// # Errors
    /// As [`make`](Self::make).
    pub fn link(&self, directory: usize, entry: &Entry, target: &[u8]) -> Result<()> {
        let (at, filling) = self.open(directory, entry)?;
        self.shared.link((&at, &filling), entry, target)
    }
}

/// Makes a range of a file a hole, where there is none; where the file system has no holes, zeroes.
///
/// # Errors
/// Those of the system.
pub fn punch(file: &File, at: u64, bytes: u64) -> Result<()> {
    use std::os::unix::fs::FileExt;
    static ZEROES: [u8; 64 << 10] = [0; 64 << 10];
    let wrong = |e| Error::from_io("a restored file can't be written", e);
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match rustix::fs::fallocate(file, flags, at, bytes) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
            let mut done = 0;
            while done < bytes {
                let n = (bytes - done).min(ZEROES.len() as u64);
                file.write_all_at(&ZEROES[..n as usize], at + done).map_err(wrong)?;
                done += n;
            }
            Ok(())
        }
        punched => punched.map_err(|errno| wrong(errno.into())),
    }
}
