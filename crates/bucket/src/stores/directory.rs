//! Objects as files of a directory: on a disk, or on a file system of the network that has hard links.
//!
//! An object is written under a name of its own, synced, and linked to its name: linking fails when that is
//! there, on NFS too.
//!
//! *Trust:* the directory may be another user's, or hold what another user put there. It is opened once, its folders are
//! opened below it, and no link in their place is followed. Nothing is made or removed in a directory or a folder that
//! belongs to another user than the one for whom we write.

use std::{
    fs::File,
    io::Write,
    os::{fd::OwnedFd, unix::fs::FileExt},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use onefold_core::{Error, Kind, Result};
use rustix::{
    fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat},
    io::Errno,
};

use crate::{
    format::{Id, Sort, is_chance},
    objects::{Body, Created, Listed, Objects},
};

/// Files that are not objects yet.
const UNFINISHED: &str = "unfinished";

/// The directory itself, as a folder.
const HERE: &str = ".";

/// Objects of one page of a listing.
const PAGE: usize = 1000;

/// How old a file is that no process is writing any more: nobody writes one for so long.
const LEFT: Duration = Duration::from_secs(24 * 3600);

/// How directories are opened.
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// How a folder is opened: no link in its place leads elsewhere.
const FOLDER: OFlags = DIRECTORY.union(OFlags::NOFOLLOW);

/// An object that is opened must not make us wait, or become a controlling terminal.
const CALM: OFlags =
    OFlags::NOFOLLOW.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// Objects as files of a directory.
pub struct DirectoryObjects {
    own: OwnedFd,
    /// The directory's name in errors.
    path: PathBuf,
    /// The user who owns what we change.
    user: u32,
    /// Begins the names of files that are not objects yet.
    chance: String,
    next: AtomicU64,
}

/// A folder of the directory, and the name of an object in it.
struct At<'n> {
    folder: OwnedFd,
    base: &'n str,
}

impl DirectoryObjects {
    /// The objects in a directory that is there, changed for `user`. `nonce` is chance that no other process draws.
    ///
    /// # Errors
    /// `NotFound` when there is no such directory, and those of the system.
    pub fn open(path: &Path, nonce: [u8; 16], user: u32) -> Result<DirectoryObjects> {
        let shown = path.display();
        let own =
            rustix::fs::open(path, DIRECTORY, Mode::empty()).map_err(|errno| match errno {
                Errno::NOTDIR if path.exists() => {
                    Error::new(Kind::InvalidInput, format!("{shown} is no directory"))
                }
                errno => Error::from_io(shown, errno.into()),
            })?;
        let chance = onefold_core::hex_digits(nonce);
        Ok(DirectoryObjects { own, path: path.to_owned(), user, chance, next: AtomicU64::new(0) })
    }

    fn failed(&self, name: &str, errno: Errno) -> Error {
        Error::from_io(self.path.join(name).display(), errno.into())
    }

    /// A folder, for looking at it.
    fn folder(&self, folder: &str) -> Result<OwnedFd> {
        let failed = |errno| match errno {
            // A link, or anything else that is no directory.
            Errno::LOOP | Errno::NOTDIR => {
                let shown = self.path.join(folder);
                let why = format!("{} is no directory, and is not followed", shown.display());
                Error::new(Kind::Denied, why)
            }
            errno => self.failed(folder, errno),
        };
        rustix::fs::openat(&self.own, folder, FOLDER, Mode::empty()).map_err(failed)
    }

    /// A folder, for changing what is in it; it is made when it is not there.
    fn folder_to_change(&self, folder: &str) -> Result<OwnedFd> {
        let failed = |errno| self.failed(folder, errno);
        self.is_ours("", &self.own)?;
        if folder == HERE {
            return self.folder(folder);
        }
        match rustix::fs::mkdirat(&self.own, folder, Mode::RWXU) {
            Ok(()) => rustix::fs::fsync(&self.own).map_err(failed)?,
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(failed(errno)),
        }
        let opened = self.folder(folder)?;
        self.is_ours(folder, &opened)?;
        Ok(opened)
    }

    /// Errors unless a directory belongs to the user for whom we write.
    fn is_ours(&self, name: &str, directory: &OwnedFd) -> Result<()> {
        let owner = rustix::fs::fstat(directory).map_err(|errno| self.failed(name, errno))?.st_uid;
        if owner == self.user {
            return Ok(());
        }
        let shown = self.path.join(name);
        let why = format!(
            "{} belongs to user {owner}, and only that user changes it; --owner {owner} says that it is to be \
             changed all the same",
            shown.display()
        );
        Err(Error::new(Kind::Denied, why))
    }

    /// An object that is to be changed.
    fn to_change<'n>(&self, name: &'n str) -> Result<At<'n>> {
        let (folder, base) = parts(name)?;
        Ok(At { folder: self.folder_to_change(folder)?, base })
    }

    /// A file with these bytes, durable, that is not yet the object of this name: its name in the folder.
    fn unfinished(&self, folder: &OwnedFd, name: &str, bytes: &[u8]) -> Result<String> {
        let mut own = format!("{}-{}", self.chance, self.next.fetch_add(1, Relaxed));
        // A killed process that left keys in it is found by its name.
        if has_keys(name) {
            own = format!("{own}-{}", name.replace('/', "-"));
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | CALM;
        let file = rustix::fs::openat(folder, &*own, flags, Mode::RUSR | Mode::WUSR);
        let mut file = File::from(file.map_err(|errno| self.failed(UNFINISHED, errno))?);
        if let Err(error) = file.write_all(bytes).and_then(|()| file.sync_all()) {
            let _ = rustix::fs::unlinkat(folder, &*own, AtFlags::empty());
            return Err(Error::from_io(self.path.join(UNFINISHED).display(), error));
        }
        Ok(own)
    }

    /// Names of a folder that are text.
    fn names(&self, name: &str, folder: &OwnedFd) -> Result<Vec<String>> {
        let failed = |errno| self.failed(name, errno);
        let mut names = Vec::new();
        for entry in Dir::read_from(folder).map_err(failed)? {
            match entry.map_err(failed)?.file_name().to_str() {
                Ok("." | "..") | Err(_) => {}
                Ok(name) => names.push(name.to_owned()),
            }
        }
        Ok(names)
    }
}

/// The folder and the rest of a name.
fn parts(name: &str) -> Result<(&str, &str)> {
    let is_one = |part: &str| !matches!(part, "" | "." | "..") && !part.contains(['/', '\0']);
    let parts = match name.split_once('/') {
        Some((folder, base)) => is_one(folder).then_some((folder, base)),
        None => Some((HERE, name)),
    };
    parts
        .filter(|(_, base)| is_one(base))
        .ok_or_else(|| Error::new(Kind::InvalidInput, format!("no object is called {name:?}")))
}

/// Looks at a name itself, and not at what a link there leads to.
fn look(folder: &OwnedFd, base: &str) -> Result<Stat, Errno> {
    rustix::fs::statat(folder, base, AtFlags::SYMLINK_NOFOLLOW)
}

fn is_file(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}

/// Removes a name, if it is there.
fn remove(folder: &OwnedFd, base: &str) -> Result<(), Errno> {
    match rustix::fs::unlinkat(folder, base, AtFlags::empty()) {
        Err(Errno::NOENT) => Ok(()),
        removed => removed,
    }
}

/// True for the name of an object with keys.
fn has_keys(name: &str) -> bool {
    Id::parse(name).is_some_and(|id| id.sort == Sort::Keys)
}

/// The meaning of a name that [`DirectoryObjects::unfinished`] gives: the object with keys that it is to be, if that
/// is so; `None` for others' names.
fn unfinished_of(name: &str) -> Option<Option<Id>> {
    let (chance, rest) = name.split_once('-')?;
    let (number, of) = match rest.split_once('-') {
        Some((number, of)) => (number, Some(of)),
        None => (rest, None),
    };
    let parsed = number.parse::<u64>().ok().filter(|parsed| parsed.to_string() == number);
    parsed.filter(|_| is_chance(chance))?;
    match of.map(|of| of.replacen('-', "/", 1)) {
        Some(of) => has_keys(&of).then(|| Id::parse(&of)),
        None => Some(None),
    }
}

impl Objects for DirectoryObjects {
    fn get(&self, name: &str, at: u64, bytes: u64) -> Result<Body> {
        let (folder, base) = parts(name)?;
        let folder = self.folder(folder)?;
        let failed = |errno| self.failed(name, errno);
        let no_file = || {
            let why = format!("{} is no file", self.path.join(name).display());
            Error::new(Kind::Corrupt, why)
        };
        if !is_file(&look(&folder, base).map_err(failed)?) {
            return Err(no_file());
        }
        let file = rustix::fs::openat(&folder, base, OFlags::RDONLY | CALM, Mode::empty());
        let file = File::from(file.map_err(failed)?);
        let stat = rustix::fs::fstat(&file).map_err(failed)?;
        if !is_file(&stat) {
            return Err(no_file());
        }
        let total = u64::try_from(stat.st_size).unwrap_or(0);
        let mut into = vec![0; total.saturating_sub(at).min(bytes) as usize];
        file.read_exact_at(&mut into, at)
            .map_err(|error| Error::from_io(self.path.join(name).display(), error))?;
        Ok(Body { bytes: into, total, modified: u64::try_from(stat.st_mtime).unwrap_or(0) })
    }

    fn create(&self, name: &str, bytes: &[u8]) -> Created {
        let create = || -> Result<Created> {
            let unfinished = self.folder_to_change(UNFINISHED)?;
            let At { folder, base } = self.to_change(name)?;
            let made = self.unfinished(&unfinished, name, bytes)?;
            let linked = rustix::fs::linkat(&unfinished, &*made, &folder, base, AtFlags::empty());
            // Another process may have linked it and not synced it yet: what is there must stay there.
            let synced = match linked {
                Ok(()) | Err(Errno::EXIST) => rustix::fs::fsync(&folder),
                Err(_) => Ok(()),
            };
            let _ = remove(&unfinished, &made);
            match (linked, synced) {
                (Ok(()), Ok(())) => Ok(Created::New),
                (Err(Errno::EXIST), Ok(())) => Ok(Created::Exists),
                (Err(errno), Ok(())) | (_, Err(errno)) => Err(self.failed(name, errno)),
            }
        };
        // Sending it again would not help.
        create().unwrap_or_else(Created::Unknown)
    }

    fn replace(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let unfinished = self.folder_to_change(UNFINISHED)?;
        let At { folder, base } = self.to_change(name)?;
        let made = self.unfinished(&unfinished, name, bytes)?;
        rustix::fs::renameat(&unfinished, &*made, &folder, base)
            .and_then(|()| rustix::fs::fsync(&folder))
            .map_err(|errno| self.failed(name, errno))
    }

    fn delete(&self, name: &str) -> Result<()> {
        let At { folder, base } = self.to_change(name)?;
        let removed = remove(&folder, base).and_then(|()| match has_keys(name) {
            true => rustix::fs::fsync(&folder),
            false => Ok(()),
        });
        removed.map_err(|errno| self.failed(name, errno))
    }

    fn list(&self, folder: &str, after: &str) -> Result<Vec<Listed>> {
        let shown = folder.strip_suffix('/').unwrap_or(folder);
        let some = format!("{shown}/x");
        let (first, _) = parts(&some)?;
        let opened = match self.folder(first) {
            Err(error) if error.kind() == Kind::NotFound => return Ok(Vec::new()),
            opened => opened?,
        };
        let mut bases = self.names(first, &opened)?;
        let name_of = |base: &str| format!("{folder}{base}");
        bases.retain(|base| name_of(base).as_str() > after);
        bases.sort_unstable();
        let mut listed = Vec::new();
        for base in bases {
            match look(&opened, &base) {
                Ok(stat) if !is_file(&stat) => {}
                Ok(stat) => {
                    let bytes = u64::try_from(stat.st_size).unwrap_or(0);
                    listed.push(Listed { name: name_of(&base), bytes });
                }
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(self.failed(&name_of(&base), errno)),
            }
            if listed.len() == PAGE {
                break;
            }
        }
        Ok(listed)
    }

    fn drop_unfinished(&self, is_due: &dyn Fn(&str) -> bool) -> Result<()> {
        let failed = |errno| self.failed(UNFINISHED, errno);
        let folder = self.folder_to_change(UNFINISHED)?;
        for base in self.names(UNFINISHED, &folder)? {
            let of = unfinished_of(&base).flatten();
            if of.is_some_and(|id| is_due(&id.to_string())) {
                remove(&folder, &base).map_err(failed)?;
            }
        }
        // A power cut brings back until then the files that creations removed there.
        rustix::fs::fsync(&folder).map_err(failed)
    }

    fn sweep(&self) -> Result<u64> {
        let failed = |errno| self.failed(UNFINISHED, errno);
        let folder = self.folder_to_change(UNFINISHED)?;
        // The clock of the file system, which a host of the network may have.
        let own = self.unfinished(&folder, "", b"now")?;
        let now = look(&folder, &own);
        remove(&folder, &own).map_err(failed)?;
        let now = now.map_err(failed)?.st_mtime;
        let mut swept = 0;
        for base in self.names(UNFINISHED, &folder)? {
            let left = look(&folder, &base).ok();
            let left = left.filter(|left| unfinished_of(&base).is_some() && is_file(left));
            let is_old =
                left.is_some_and(|left| now.saturating_sub(left.st_mtime) >= LEFT.as_secs() as i64);
            if is_old && remove(&folder, &base).is_ok() {
                swept += 1;
            }
        }
        Ok(swept)
    }
}
