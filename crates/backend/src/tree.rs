//! Directory trees: read for an archive, and made again from one.
//!
//! *Invariant:* what is made again lies below the directory that was named, whatever the entries say: each path is opened part by part, and no link is
//! followed. Links come when all files are there, modes and times of directories last.

use std::{
    collections::HashMap,
    ffi::{OsStr, OsString},
    fs::{File, OpenOptions},
    os::{
        fd::{AsFd, OwnedFd},
        unix::{
            ffi::{OsStrExt, OsStringExt},
            fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt},
        },
    },
    path::{Path, PathBuf},
};

use onefold_core::{
    Error, Kind, Result,
    tree::{Entry, What},
};
use rustix::{
    fs::{AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags},
    io::Errno,
};

use crate::sparse::next_data;

/// Something found by [`walk`].
pub struct Found {
    /// What it is; a file's data ranges are still empty.
    pub entry: Entry,
    /// A file, open for reading.
    pub file: Option<File>,
}

/// Tells of everything below `root`, parents first, in the order of names. What vanishes meanwhile is left out.
///
/// # Errors
/// Those of the system, and of `each`.
pub fn walk(root: &Path, each: &mut dyn FnMut(Found) -> Result<()>) -> Result<()> {
    let mut seen = HashMap::new();
    if !std::fs::symlink_metadata(root).map_err(|e| Error::from_io(root.display(), e))?.is_dir() {
        return Err(Error::new(Kind::InvalidInput, format!("{} is no directory", root.display())));
    }
    walk_one(root, &mut Vec::new(), &mut seen, each)
}

fn walk_one(
    root: &Path,
    path: &mut Vec<u8>,
    seen: &mut HashMap<(u64, u64), Vec<u8>>,
    each: &mut dyn FnMut(Found) -> Result<()>,
) -> Result<()> {
    let full = if path.is_empty() { root.to_owned() } else { root.join(OsStr::from_bytes(path)) };
    let wrong = |e| Error::from_io(full.display(), e);
    let metadata = match std::fs::symlink_metadata(&full) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound && !path.is_empty() => return Ok(()),
        found => found.map_err(wrong)?,
    };
    let kind = metadata.file_type();
    let mut file = None;
    let first = (metadata.nlink() > 1 && !kind.is_dir()).then(|| seen.get(&(metadata.dev(), metadata.ino())).cloned()).flatten();
    let what = if let Some(target) = first {
        What::HardLink { target }
    } else if kind.is_dir() {
        What::Directory
    } else if kind.is_symlink() {
        What::Symlink { target: std::fs::read_link(&full).map_err(wrong)?.into_os_string().into_vec() }
    } else if kind.is_file() {
        let opened = OpenOptions::new().read(true).custom_flags(OFlags::NOFOLLOW.bits() as i32).open(&full);
        match opened {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            opened => file = Some(opened.map_err(wrong)?),
        }
        What::File { bytes: metadata.len(), data: Vec::new() }
    } else if kind.is_fifo() {
        What::Fifo
    } else if kind.is_char_device() {
        What::CharacterDevice(metadata.rdev())
    } else if kind.is_block_device() {
        What::BlockDevice(metadata.rdev())
    } else {
        What::Socket
    };
    if metadata.nlink() > 1 && !kind.is_dir() {
        seen.entry((metadata.dev(), metadata.ino())).or_insert_with(|| path.clone());
    }
    let entry = Entry {
        path: path.clone(),
        what,
        mode: metadata.mode() & 0o7777,
        uid: metadata.uid(),
        gid: metadata.gid(),
        seconds: metadata.mtime(),
        nanoseconds: metadata.mtime_nsec() as u32,
        attributes: attributes(&full)?,
    };
    each(Found { entry, file })?;
    if !kind.is_dir() {
        return Ok(());
    }
    let mut names: Vec<OsString> = Vec::new();
    for child in std::fs::read_dir(&full).map_err(wrong)? {
        names.push(child.map_err(wrong)?.file_name());
    }
    names.sort();
    for name in names {
        let length = path.len();
        if length > 0 {
            path.push(b'/');
        }
        path.extend_from_slice(name.as_bytes());
        walk_one(root, path, seen, each)?;
        path.truncate(length);
    }
    Ok(())
}

/// The extended attributes of what is at `path`, without following a link.
fn attributes(path: &Path) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    const ROOM: usize = 64 << 10;
    let wrong = |errno: Errno| Error::from_io(path.display(), errno.into());
    let mut names = vec![0; 512];
    let n = loop {
        match rustix::fs::llistxattr(path, &mut names[..]) {
            Ok(n) => break n,
            Err(Errno::OPNOTSUPP | Errno::NOENT) => return Ok(Vec::new()),
            Err(Errno::RANGE) if names.len() < ROOM => names.resize(ROOM, 0),
            Err(errno) => return Err(wrong(errno)),
        }
    };
    let mut all = Vec::new();
    for name in names[..n].split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0; 256];
        loop {
            match rustix::fs::lgetxattr(path, name, &mut value[..]) {
                Ok(n) => {
                    value.truncate(n);
                    all.push((name.to_vec(), value));
                    break;
                }
                // Gone meanwhile, or not for us.
                Err(Errno::NODATA | Errno::NOENT | Errno::PERM | Errno::ACCESS) => break,
                Err(Errno::RANGE) if value.len() < ROOM => value.resize(ROOM, 0),
                Err(errno) => return Err(wrong(errno)),
            }
        }
    }
    Ok(all)
}

/// Reads the next bytes of something into the room that it is lent, and says how many.
pub type Reads<'a> = dyn FnMut(&mut [u8]) -> Result<usize> + 'a;

/// Reads the data of a file, holes left out, piece by piece into room that `room` lends; gives the ranges that were read.
///
/// # Errors
/// Those of the system, and of `fill`.
pub fn read_data(file: &File, bytes: u64, fill: &mut dyn FnMut(&mut Reads<'_>) -> Result<usize>) -> Result<Vec<(u64, u64)>> {
    let (mut data, mut from): (Vec<(u64, u64)>, u64) = (Vec::new(), 0);
    while let Some((start, end)) = next_data(file, from, bytes)? {
        let mut at = start;
        while at < end {
            let n = fill(&mut |room| {
                let most = room.len().min((end - at) as usize);
                loop {
                    match file.read_at(&mut room[..most], at) {
                        Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                        read => return read.map_err(|e| Error::from_io("a file can't be read", e)),
                    }
                }
            })?;
            if n == 0 {
                break;
            }
            at += n as u64;
        }
        if at > start {
            data.push((start, at - start));
        }
        if at < end {
            // It was cut off while it was read: the rest reads as a hole.
            break;
        }
        from = end;
    }
    Ok(data)
}

/// Makes a tree below a directory.
pub struct Restorer {
    root: OwnedFd,
    /// The directory that the last file lay in.
    parent: Option<(Vec<u8>, OwnedFd)>,
    shown: PathBuf,
    /// Owners are set only by root; others get what they may.
    is_root: bool,
}

impl Restorer {
    /// Below `root`, which is made when it is not there.
    ///
    /// # Errors
    /// Those of the system.
    pub fn new(root: &Path) -> Result<Restorer> {
        std::fs::create_dir_all(root).map_err(|e| Error::from_io(root.display(), e))?;
        let opened = rustix::fs::open(root, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        let opened = opened.map_err(|e| Error::from_io(root.display(), e.into()))?;
        let is_root = rustix::process::geteuid().is_root();
        Ok(Restorer { root: opened, parent: None, shown: root.to_owned(), is_root })
    }

    fn wrong(&self, path: &[u8], errno: Errno) -> Error {
        Error::from_io(self.shown.join(OsStr::from_bytes(path)).display(), errno.into())
    }

    /// The directory `path`, opened part by part.
    fn directory(&self, path: &[u8]) -> Result<OwnedFd> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let again = rustix::fs::openat(&self.root, ".", OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        let mut at = again.map_err(|errno| self.wrong(path, errno))?;
        for part in path.split(|&byte| byte == b'/').filter(|part| !part.is_empty()) {
            at = rustix::fs::openat(&at, part, flags, Mode::empty()).map_err(|errno| match errno {
                Errno::LOOP | Errno::NOTDIR => {
                    let shown = self.shown.join(OsStr::from_bytes(path));
                    Error::new(Kind::Exists, format!("{}: a part of it is no directory; links are not followed", shown.display()))
                }
                errno => self.wrong(path, errno),
            })?;
        }
        Ok(at)
    }

    /// The directory that `path` lies in, and its last part.
    fn place<'a>(&mut self, path: &'a [u8]) -> Result<(&OwnedFd, &'a [u8])> {
        let split = path.iter().rposition(|&byte| byte == b'/');
        let (parent, name) = split.map_or((&path[..0], path), |at| (&path[..at], &path[at + 1..]));
        let known = self.parent.as_ref().is_some_and(|(known, _)| known == parent);
        if !known {
            self.parent = Some((parent.to_vec(), self.directory(parent)?));
        }
        match &self.parent {
            Some((_, fd)) => Ok((fd, name)),
            None => Err(Error::new(Kind::NotFound, "no directory")),
        }
    }

    fn checked(entry: &Entry) -> Result<()> {
        if entry.is_safe() { Ok(()) } else { Err(Error::new(Kind::Corrupt, "the listing names a path outside of the tree")) }
    }

    /// Makes a directory, or a file that the caller fills; what is there under the name is replaced, but for a directory by a directory.
    ///
    /// # Errors
    /// `Corrupt` for a path that leads outside, and those of the system.
    pub fn make(&mut self, entry: &Entry) -> Result<Option<File>> {
        Restorer::checked(entry)?;
        if entry.path.is_empty() {
            return Ok(None);
        }
        match &entry.what {
            What::Directory => {
                let (parent, name) = self.place(&entry.path)?;
                let made = match rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(0o700)) {
                    Err(Errno::EXIST) => {
                        rustix::fs::openat(parent, name, OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()).map(|_| ())
                    }
                    made => made,
                };
                made.map(|()| None).map_err(|errno| self.wrong(&entry.path, errno))
            }
            What::File { bytes, .. } => {
                self.clear(&entry.path)?;
                let (parent, name) = self.place(&entry.path)?;
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let made = rustix::fs::openat(parent, name, flags, Mode::from_raw_mode(0o600));
                let file = File::from(made.map_err(|errno| self.wrong(&entry.path, errno))?);
                file.set_len(*bytes).map_err(|e| Error::from_io(self.shown.join(OsStr::from_bytes(&entry.path)).display(), e))?;
                Ok(Some(file))
            }
            _ => Ok(None),
        }
    }

    /// Removes what is no directory under this name.
    fn clear(&mut self, path: &[u8]) -> Result<()> {
        let (parent, name) = self.place(path)?;
        match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(self.wrong(path, errno)),
        }
    }

    /// Makes what is neither file nor directory. All files are there by now.
    ///
    /// # Errors
    /// As [`make`](Self::make).
    pub fn link(&mut self, entry: &Entry) -> Result<()> {
        Restorer::checked(entry)?;
        let made = match &entry.what {
            What::Directory | What::File { .. } | What::Socket => return Ok(()),
            What::Symlink { target } => {
                self.clear(&entry.path)?;
                let (parent, name) = self.place(&entry.path)?;
                rustix::fs::symlinkat(&target[..], parent, name)
            }
            What::HardLink { target } => {
                let first = Entry { path: target.clone(), ..entry.clone() };
                Restorer::checked(&first)?;
                self.clear(&entry.path)?;
                let split = target.iter().rposition(|&byte| byte == b'/');
                let from = self.directory(split.map_or(&target[..0], |at| &target[..at]))?;
                let old = split.map_or(&target[..], |at| &target[at + 1..]);
                let (parent, name) = self.place(&entry.path)?;
                rustix::fs::linkat(&from, old, parent, name, AtFlags::empty())
            }
            What::Fifo | What::CharacterDevice(_) | What::BlockDevice(_) => {
                self.clear(&entry.path)?;
                let (kind, device) = match entry.what {
                    What::CharacterDevice(device) => (FileType::CharacterDevice, device),
                    What::BlockDevice(device) => (FileType::BlockDevice, device),
                    _ => (FileType::Fifo, 0),
                };
                let (parent, name) = self.place(&entry.path)?;
                match rustix::fs::mknodat(parent, name, kind, Mode::from_raw_mode(0o600), device) {
                    // Only root makes devices.
                    Err(Errno::PERM) => return Ok(()),
                    made => made,
                }
            }
        };
        made.map_err(|errno| self.wrong(&entry.path, errno))
    }

    /// Sets owner, attributes, mode and time of a file.
    ///
    /// # Errors
    /// Those of the system.
    pub fn finish_file(&self, entry: &Entry, file: &File) -> Result<()> {
        self.finish_fd(entry, file).map_err(|errno| self.wrong(&entry.path, errno))
    }

    /// The same of anything else; directories after all that is in them.
    ///
    /// # Errors
    /// Those of the system.
    pub fn finish(&mut self, entry: &Entry) -> Result<()> {
        Restorer::checked(entry)?;
        match &entry.what {
            What::File { .. } | What::HardLink { .. } | What::Socket => Ok(()),
            What::Directory => {
                let directory = self.directory(&entry.path)?;
                self.finish_fd(entry, &directory).map_err(|errno| self.wrong(&entry.path, errno))
            }
            _ => {
                let is_root = self.is_root;
                let (parent, name) = self.place(&entry.path)?;
                let done = finish_at(entry, parent, name, is_root);
                done.map_err(|errno| self.wrong(&entry.path, errno))
            }
        }
    }

    fn finish_fd(&self, entry: &Entry, fd: &impl AsFd) -> std::result::Result<(), Errno> {
        if self.is_root {
            rustix::fs::fchown(fd, Some(Uid::from_raw(entry.uid)), Some(Gid::from_raw(entry.gid)))?;
        }
        for (name, value) in &entry.attributes {
            match rustix::fs::fsetxattr(fd, &name[..], value, XattrFlags::empty()) {
                // Not for us, or not on this file system.
                Ok(()) | Err(Errno::PERM | Errno::ACCESS | Errno::OPNOTSUPP) => {}
                Err(errno) => return Err(errno),
            }
        }
        rustix::fs::fchmod(fd, Mode::from_raw_mode(entry.mode))?;
        rustix::fs::futimens(fd, &times(entry))
    }
}

fn times(entry: &Entry) -> Timestamps {
    let time = Timespec { tv_sec: entry.seconds, tv_nsec: i64::from(entry.nanoseconds) };
    Timestamps { last_access: time, last_modification: time }
}

/// Owner and time of a link, pipe or device, by its name.
fn finish_at(entry: &Entry, parent: &OwnedFd, name: &[u8], is_root: bool) -> std::result::Result<(), Errno> {
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    let gone = |result| if result == Err(Errno::NOENT) { Ok(()) } else { result };
    if is_root {
        gone(rustix::fs::chownat(parent, name, Some(Uid::from_raw(entry.uid)), Some(Gid::from_raw(entry.gid)), flags))?;
    }
    if !matches!(entry.what, What::Symlink { .. }) {
        gone(rustix::fs::chmodat(parent, name, Mode::from_raw_mode(entry.mode), AtFlags::empty()))?;
    }
    gone(rustix::fs::utimensat(parent, name, &times(entry), flags))
}

/// Writes a part of a restored file.
///
/// # Errors
/// Those of the system.
pub fn write_part(file: &File, at: u64, bytes: &[u8]) -> Result<()> {
    file.write_all_at(bytes, at).map_err(|e| Error::from_io("a restored file can't be written", e))
}
