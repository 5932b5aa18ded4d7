//! Tells of everything below a directory.

use std::{
    collections::HashMap,
    ffi::OsString,
    fs::File,
    io::Read,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::{
            ffi::{OsStrExt, OsStringExt},
            fs::FileExt,
        },
    },
    path::{Path, PathBuf},
    time::Duration,
};

use onefold_core::{
    Error, Kind, Result,
    tree::{Entry, What},
};
use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags, Stat},
    io::Errno,
};

use super::{Identity, levels::Levels, shown};
use crate::sparse::next_data;

/// Longest time that all leases of other processes together hold a walk up. The system waits for 45
/// s for each, and a user can have many; who holds one in good faith gives it back at once.
const LEASES_WAIT: Duration = Duration::from_secs(10);

/// Between two looks whether a lease was given back.
const LEASE_PAUSE: Duration = Duration::from_millis(20);

/// Most bytes of an entry's extended attributes. Linux allows 64 KiB of names with 64 KiB each, on
/// some file systems.
const ATTRIBUTES_MAX: usize = 4 << 20;

/// The file by which a directory is known to be a cache, and how it begins: bford.info/cachedir.
const CACHE_TAG: &[u8] = b"CACHEDIR.TAG";
const CACHE_SIGNATURE: &[u8] = b"Signature: 8a477f597d28d172789f06886806bc55";

/// Decides by its path below the root, and by whether it is a directory, if something is wanted.
pub type Wanted = dyn FnMut(&[u8], bool) -> bool + Send;

/// Names and values of extended attributes.
type Attributes = Vec<(Vec<u8>, Vec<u8>)>;

/// Options of a walk.
pub struct Options {
    /// Follows the root itself when it is a link.
    pub follows_root: bool,
    /// Enters no directory on another file system than the root's.
    pub one_file_system: bool,
    /// Of a directory that is tagged as a cache only the tag.
    pub without_caches: bool,
    /// Looks at names and sizes only: opens no file, and reads no attributes.
    pub only_sizes: bool,
    /// Opens a file, and reads its attributes, only when [`Walk::open`] is called for it.
    pub opens_late: bool,
    /// How deep things may lie below the root.
    pub levels_max: usize,
    /// Longest path below the root, in bytes. What lies deeper is an error, and not entered.
    pub path_max: usize,
    /// Most files with several names that are remembered; of more, each name counts as a file.
    pub linked_max: usize,
    /// Selects entries; a directory that is not selected is not entered either.
    pub wanted: Option<Box<Wanted>>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            follows_root: false,
            one_file_system: false,
            without_caches: false,
            only_sizes: false,
            opens_late: false,
            levels_max: usize::MAX,
            path_max: usize::MAX,
            linked_max: usize::MAX,
            wanted: None,
        }
    }
}

/// Something found by a [`Walk`].
pub struct Found {
    /// The entry; a file's data ranges are still empty.
    pub entry: Entry,
    /// A file, open for reading.
    pub file: Option<File>,
    /// The name of what is opened late, and what is known of it.
    late: Option<(OsString, Stat)>,
    /// Device and inode of what has several names and is no directory.
    pub linked: Option<(u64, u64)>,
    /// The device that it is on.
    pub device: u64,
    /// Its inode number there.
    pub inode: u64,
    /// When the entry, or what is told of it, was changed last: seconds since 1970, nanoseconds.
    pub changed: (i64, u32),
    /// The reason why the entry lacks some of its extended attributes. All else is there.
    pub lacks: Option<Error>,
    /// A directory of which the walk tells less than it has: one on another file system, or a cache.
    pub is_in_part: bool,
}

/// The entries of a directory that are still to be visited.
struct Rest {
    names: std::vec::IntoIter<OsString>,
    /// Bytes of the directory's own path.
    length: usize,
    /// Its number among the directories that are remembered.
    kept: Option<usize>,
}

/// Paths of the first names of files that have several: each directory on the way is there once,
/// however long the paths are.
#[derive(Default)]
struct Seen {
    /// The directory above, and the name in it; the root has none.
    directories: Vec<(Option<usize>, Box<[u8]>)>,
    files: HashMap<Identity, (usize, Box<[u8]>)>,
}

impl Seen {
    /// The path of a file's first name.
    fn path(&self, identity: Identity) -> Option<Vec<u8>> {
        let (directory, name) = self.files.get(&identity)?;
        let (mut at, mut parts): (_, Vec<&[u8]>) = (*directory, vec![name]);
        while let Some((Some(above), part)) = self.directories.get(at) {
            parts.push(part);
            at = *above;
        }
        parts.reverse();
        Some(parts.join(&b'/'))
    }
}

/// When an entry, or what is told of it, was changed last.
fn changed(stat: &Stat) -> (i64, u32) {
    (stat.st_ctime, stat.st_ctime_nsec as u32)
}

/// Iterates over everything below a directory: the directory itself first, parents before their
/// content, names in order. An entry that vanishes meanwhile is left out. An error concerns one
/// entry that can't be read, and the walk continues behind it.
pub struct Walk {
    root: PathBuf,
    options: Options,
    levels: Levels<Rest>,
    /// Of what is looked at.
    path: Vec<u8>,
    /// The entry that comes next, before anything else is looked at.
    ahead: Option<Result<Found>>,
    /// First names of files that have several.
    seen: Seen,
    device: u64,
    /// How much longer leases may hold it up.
    patience: Duration,
    has_proc: bool,
}

impl Walk {
    /// A walk below `root`.
    ///
    /// # Errors
    /// `InvalidInput` when that is no directory, and those of the system.
    pub fn new(root: &Path, options: Options) -> Result<Walk> {
        let wrong = |errno: Errno| Error::from_io(root.display(), errno.into());
        let no_follow = if options.follows_root { OFlags::empty() } else { OFlags::NOFOLLOW };
        let at = rustix::fs::open(root, OFlags::PATH | OFlags::CLOEXEC | no_follow, Mode::empty())
            .map_err(wrong)?;
        let stat = rustix::fs::fstat(&at).map_err(wrong)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            return Err(Error::new(
                Kind::InvalidInput,
                format!("{} is no directory", root.display()),
            ));
        }
        let mut walk = Walk {
            root: root.to_owned(),
            options,
            levels: Levels::new(),
            path: Vec::new(),
            ahead: None,
            seen: Seen::default(),
            device: stat.st_dev,
            patience: LEASES_WAIT,
            has_proc: Path::new("/proc/self/fd").exists(),
        };
        let found = walk.directory(&at, &stat)?;
        // A root that can't be read is not left out of anything.
        if let Some(Err(error)) = walk.ahead.replace(Ok(found)) {
            return Err(error);
        }
        Ok(walk)
    }

    fn wrong(&self, errno: Errno) -> Error {
        Error::from_io(shown(&self.root, &self.path), errno.into())
    }

    fn changed(&self) -> Error {
        Error::new(
            Kind::Busy,
            format!("{} was replaced while it was read", shown(&self.root, &self.path)),
        )
    }

    /// Looks at the next name; `None` when it is not wanted or not there any more, and then there
    /// may be more.
    fn step(&mut self) -> Option<Option<Result<Found>>> {
        let (directory, rest) = self.levels.last()?;
        self.path.truncate(rest.length);
        let Some(name) = rest.names.next() else {
            self.levels.pop();
            return Some(None);
        };
        let Some(directory) = directory else {
            rest.names = Vec::new().into_iter();
            return Some(Some(Err(self.changed())));
        };
        let opened = match self.options.opens_late {
            true => look_first(directory, &name),
            false => open_path(directory, &name).and_then(opened),
        };
        if !self.path.is_empty() {
            self.path.push(b'/');
        }
        self.path.extend_from_slice(name.as_bytes());
        Some(match opened {
            Err(Errno::NOENT) => None,
            Err(errno) => Some(Err(self.wrong(errno))),
            Ok((at, stat)) => self.look(at.as_ref(), &stat, &name).transpose(),
        })
    }

    fn look(
        &mut self,
        at: Option<&OwnedFd>,
        stat: &Stat,
        name: &OsString,
    ) -> Result<Option<Found>> {
        let kind = FileType::from_raw_mode(stat.st_mode);
        let is_directory = kind == FileType::Directory;
        if self.options.wanted.as_mut().is_some_and(|wanted| !wanted(&self.path, is_directory)) {
            return Ok(None);
        }
        if self.levels.depth() > self.options.levels_max {
            let sentence = format!(
                "{} lies more than {} levels deep",
                shown(&self.root, &self.path),
                self.options.levels_max
            );
            return Err(Error::new(Kind::Unsupported, sentence));
        }
        if self.path.len() > self.options.path_max {
            let sentence = format!(
                "{} has a path of more than {} bytes",
                shown(&self.root, &self.path),
                self.options.path_max
            );
            return Err(Error::new(Kind::Unsupported, sentence));
        }
        if let Some(at) = at
            && is_directory
        {
            return self.directory(at, stat).map(Some);
        }
        let mut what = what(stat);
        if stat.st_nlink > 1 {
            let identity = Identity::of(stat);
            if let Some(target) = self.seen.path(identity) {
                what = What::HardLink { target };
            } else if self.seen.files.len() < self.options.linked_max {
                let directory = self.keep_directory();
                self.seen.files.insert(identity, (directory, name.as_bytes().into()));
            }
        }
        let Some(at) = at else {
            return Ok(Some(self.found(stat, what, Some((name.clone(), *stat)))));
        };
        let found = self.read(at, name, stat, what);
        if found.is_err() {
            self.forget(stat);
        }
        found.map(Some)
    }

    /// Opens the entry that the walk gave last, and reads its attributes, when that was put off:
    /// what is told of it then is what it was when it was opened.
    ///
    /// # Errors
    /// `Busy` when it was replaced since, and those of the system.
    pub fn open(&mut self, found: &mut Found) -> Result<()> {
        let Some((name, before)) = found.late.take() else { return Ok(()) };
        let opened = self.open_late(&name, &before, found);
        if opened.is_err() {
            self.forget(&before);
        }
        opened
    }

    fn open_late(&mut self, name: &OsString, before: &Stat, found: &mut Found) -> Result<()> {
        let Some((Some(directory), _)) = self.levels.last() else { return Err(self.changed()) };
        let opened = open_path(directory, name).and_then(opened);
        let (at, stat) = match opened {
            Ok((Some(at), stat)) if Identity::of(&stat) == Identity::of(before) => (at, stat),
            Err(errno) if errno != Errno::NOENT => return Err(self.wrong(errno)),
            _ => return Err(self.changed()),
        };
        let what = match std::mem::replace(&mut found.entry.what, What::Fifo) {
            What::HardLink { target } => What::HardLink { target },
            _ => what(&stat),
        };
        *found = self.read(&at, name, &stat, what)?;
        Ok(())
    }

    /// An entry of which nothing was read but what the system tells of its name.
    fn found(&self, stat: &Stat, what: What, late: Option<(OsString, Stat)>) -> Found {
        let linked = (stat.st_nlink > 1).then_some((stat.st_dev, stat.st_ino));
        Found {
            entry: self.entry(stat, what, Attributes::new()),
            file: None,
            late,
            linked,
            device: stat.st_dev,
            inode: stat.st_ino,
            changed: changed(stat),
            lacks: None,
            is_in_part: false,
        }
    }

    /// Reads what else belongs to an entry that is no directory.
    fn read(
        &mut self,
        at: &OwnedFd,
        name: &OsString,
        stat: &Stat,
        mut what: What,
    ) -> Result<Found> {
        let mut file = None;
        match &mut what {
            What::File { .. } if !self.options.only_sizes => {
                file = Some(self.open_file(at, name, stat)?);
            }
            What::Symlink { target } => {
                let read = rustix::fs::readlinkat(at, "", Vec::new());
                *target = read.map_err(|errno| self.wrong(errno))?.into_bytes();
            }
            _ => {}
        }
        let (attributes, lacks) = match &file {
            Some(file) => self.attributes(&Holder::Open(file)),
            None => self.attributes(&Holder::Path(at)),
        };
        let mut found = self.found(stat, what, None);
        found.entry.attributes = attributes;
        Ok(Found { file, lacks, ..found })
    }

    /// Forgets a name that could not be read: no later name links to it.
    fn forget(&mut self, stat: &Stat) {
        if self.seen.path(Identity::of(stat)).as_ref() == Some(&self.path) {
            self.seen.files.remove(&Identity::of(stat));
        }
    }

    /// The number of the directory at hand among those that are remembered.
    fn keep_directory(&mut self) -> usize {
        if let Some((_, Rest { kept: Some(kept), .. })) = self.levels.last() {
            return *kept;
        }
        let (mut above, mut from) = (None, 0);
        for rest in self.levels.each() {
            let kept = *rest.kept.get_or_insert_with(|| {
                let name = self.path.get(from..rest.length).unwrap_or_default();
                self.seen.directories.push((above, name.into()));
                self.seen.directories.len() - 1
            });
            (above, from) = (Some(kept), rest.length + usize::from(rest.length > 0));
        }
        above.unwrap_or_default()
    }

    fn entry(&self, stat: &Stat, what: What, attributes: Attributes) -> Entry {
        Entry {
            path: self.path.clone(),
            what,
            mode: stat.st_mode & 0o7777,
            uid: stat.st_uid,
            gid: stat.st_gid,
            seconds: stat.st_mtime,
            nanoseconds: stat.st_mtime_nsec as u32,
            attributes,
        }
    }

    /// A directory, which is entered. When it can't be, the error comes behind it.
    fn directory(&mut self, at: &OwnedFd, stat: &Stat) -> Result<Found> {
        let (attributes, lacks) = self.attributes(&Holder::Path(at));
        let mut found = self.found(stat, What::Directory, None);
        found.entry.attributes = attributes;
        (found.linked, found.lacks) = (None, lacks);
        if self.options.one_file_system && stat.st_dev != self.device {
            found.is_in_part = true;
        } else {
            match self.enter(at) {
                Ok((directory, names, is_cache)) => {
                    found.is_in_part = is_cache;
                    let length = self.path.len();
                    let rest = Rest { names: names.into_iter(), length, kept: None };
                    self.levels.push(directory, Identity::of(stat), rest);
                }
                Err(errno) => self.ahead = Some(Err(self.wrong(errno))),
            }
        }
        Ok(found)
    }

    /// A directory, the names in it, and whether it is a cache of which the rest is left out.
    fn enter(&mut self, at: &OwnedFd) -> Result<(OwnedFd, Vec<OsString>, bool), Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = rustix::fs::openat(at, ".", flags, Mode::empty())?;
        let mut names = Vec::new();
        for child in rustix::fs::Dir::read_from(&directory)? {
            let name = child?.file_name().to_bytes().to_vec();
            if name != b"." && name != b".." {
                names.push(OsString::from_vec(name));
            }
        }
        names.sort();
        let is_cache = self.options.without_caches && self.is_cache(&directory, &names);
        if is_cache {
            names.retain(|name| name.as_bytes() == CACHE_TAG);
        }
        Ok((directory, names, is_cache))
    }

    fn is_cache(&mut self, directory: &OwnedFd, names: &[OsString]) -> bool {
        let Some(tag) = names.iter().find(|name| name.as_bytes() == CACHE_TAG) else {
            return false;
        };
        let Ok(owner) = rustix::fs::fstat(directory).map(|stat| stat.st_uid) else { return false };
        let mut begin = Vec::new();
        let read = open_path(directory, tag).and_then(|at| {
            let stat = rustix::fs::fstat(&at)?;
            // In a directory of several users one would leave out what others have.
            let is_owners = stat.st_uid == owner || stat.st_uid == 0;
            if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || !is_owners {
                return Err(Errno::INVAL);
            }
            let file = self.reopen(directory, tag, &at, &stat)?;
            let _ = file.take(CACHE_SIGNATURE.len() as u64).read_to_end(&mut begin);
            Ok(())
        });
        read.is_ok() && begin == CACHE_SIGNATURE
    }

    /// Opens a regular file that was looked at; a lease on it is waited for a while.
    fn open_file(&mut self, at: &OwnedFd, name: &OsString, stat: &Stat) -> Result<File> {
        loop {
            let opened = match self.levels.last() {
                Some((Some(directory), _)) => reopen(self.has_proc, directory, name, at, stat),
                _ => Err(Errno::STALE),
            };
            match opened {
                Ok(file) => return Ok(file),
                Err(Errno::STALE) => return Err(self.changed()),
                Err(Errno::AGAIN) if self.patience.is_zero() => {
                    return Err(Error::new(
                        Kind::Busy,
                        format!("{}: a process holds a lease on it", shown(&self.root, &self.path)),
                    ));
                }
                Err(Errno::AGAIN) => {
                    std::thread::sleep(LEASE_PAUSE);
                    self.patience = self.patience.saturating_sub(LEASE_PAUSE);
                }
                Err(errno) => return Err(self.wrong(errno)),
            }
        }
    }

    fn reopen(
        &self,
        directory: &OwnedFd,
        name: &OsString,
        at: &OwnedFd,
        stat: &Stat,
    ) -> Result<File, Errno> {
        reopen(self.has_proc, directory, name, at, stat)
    }

    /// The extended attributes of what is open, and the reason why some are missing.
    fn attributes(&self, of: &Holder<'_>) -> (Attributes, Option<Error>) {
        let mut all = Vec::new();
        let lacks = self.read_attributes(of, &mut all).err();
        (all, lacks)
    }

    fn read_attributes(&self, of: &Holder<'_>, all: &mut Attributes) -> Result<()> {
        if self.options.only_sizes || (!self.has_proc && matches!(of, Holder::Path(_))) {
            return Ok(());
        }
        let names = match read_growing(512, &mut |room| of.names(room)) {
            Ok(names) => names,
            Err(Errno::OPNOTSUPP | Errno::NOENT | Errno::ACCESS | Errno::PERM) => return Ok(()),
            Err(errno) => return Err(self.lacks_attributes(errno)),
        };
        let mut bytes = names.len();
        for name in names.split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
            match read_growing(256, &mut |room| of.value(name, room)) {
                Ok(value) => {
                    bytes += value.len();
                    if bytes > ATTRIBUTES_MAX {
                        let sentence = format!(
                            "some extended attributes of {}, which has more than {ATTRIBUTES_MAX} \
                             bytes of them",
                            shown(&self.root, &self.path)
                        );
                        return Err(Error::new(Kind::Unsupported, sentence));
                    }
                    all.push((name.to_vec(), value));
                }
                // Gone meanwhile, or not for us.
                Err(Errno::NODATA | Errno::NOENT | Errno::PERM | Errno::ACCESS) => {}
                Err(errno) => return Err(self.lacks_attributes(errno)),
            }
        }
        Ok(())
    }

    fn lacks_attributes(&self, errno: Errno) -> Error {
        let what = format!("extended attributes of {}", shown(&self.root, &self.path));
        Error::from_io(what, errno.into())
    }
}

impl Iterator for Walk {
    type Item = Result<Found>;

    fn next(&mut self) -> Option<Result<Found>> {
        loop {
            if let Some(ahead) = self.ahead.take() {
                return Some(ahead);
            }
            if let Some(found) = self.step()? {
                return Some(found);
            }
        }
    }
}

/// Something whose attributes are read.
enum Holder<'a> {
    Open(&'a File),
    /// Open as a place only: its attributes are read through `/proc`.
    Path(&'a OwnedFd),
}

impl Holder<'_> {
    fn names(&self, room: &mut [u8]) -> Result<usize, Errno> {
        match self {
            Holder::Open(file) => rustix::fs::flistxattr(file, room),
            Holder::Path(at) => rustix::fs::listxattr(proc_path(at), room),
        }
    }

    fn value(&self, name: &[u8], room: &mut [u8]) -> Result<usize, Errno> {
        match self {
            Holder::Open(file) => rustix::fs::fgetxattr(file, name, room),
            Holder::Path(at) => rustix::fs::getxattr(proc_path(at), name, room),
        }
    }
}

/// Where a descriptor is found again.
fn proc_path(at: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", at.as_raw_fd())
}

/// Reads into room that grows to the 64 KiB that Linux allows.
fn read_growing(
    first: usize,
    read: &mut dyn FnMut(&mut [u8]) -> Result<usize, Errno>,
) -> Result<Vec<u8>, Errno> {
    const MOST: usize = 64 << 10;
    let mut room = vec![0; first];
    loop {
        match read(&mut room) {
            Err(Errno::RANGE) if room.len() < MOST => room.resize(MOST, 0),
            read => {
                room.truncate(read?);
                return Ok(room);
            }
        }
    }
}

/// A name of a directory as a place: nothing happens to what it is, not even to a device that acts
/// when it is opened.
fn open_path(directory: &OwnedFd, name: &OsString) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(
        directory,
        name,
        OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
    )
}

/// What is open as a place, and what is known of it.
fn opened(at: OwnedFd) -> Result<(Option<OwnedFd>, Stat), Errno> {
    let stat = rustix::fs::fstat(&at)?;
    Ok((Some(at), stat))
}

/// Looks at a name, and opens what is there as a place unless it is a regular file.
fn look_first(directory: &OwnedFd, name: &OsString) -> Result<(Option<OwnedFd>, Stat), Errno> {
    let stat = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok((None, stat)),
        _ => open_path(directory, name).and_then(opened),
    }
}

/// Opens the regular file that `at` stands for. Without `/proc` by its name again: `STALE` when
/// that is another file by now.
fn reopen(
    has_proc: bool,
    directory: &OwnedFd,
    name: &OsString,
    at: &OwnedFd,
    stat: &Stat,
) -> Result<File, Errno> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    if has_proc {
        return rustix::fs::open(proc_path(at), flags, Mode::empty()).map(File::from);
    }
    let file = rustix::fs::openat(directory, name, flags | OFlags::NOFOLLOW, Mode::empty())?;
    if Identity::of(&rustix::fs::fstat(&file)?) == Identity::of(stat) {
        Ok(File::from(file))
    } else {
        Err(Errno::STALE)
    }
}

/// The kind of an entry that is not a directory.
fn what(stat: &Stat) -> What {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => What::File { bytes: stat.st_size as u64, data: Vec::new() },
        FileType::Symlink => What::Symlink { target: Vec::new() },
        FileType::Fifo => What::Fifo,
        FileType::CharacterDevice => What::CharacterDevice(stat.st_rdev),
        FileType::BlockDevice => What::BlockDevice(stat.st_rdev),
        _ => What::Socket,
    }
}

/// Reads the next bytes of something into the room that it is lent, and says how many.
pub type Reads<'a> = dyn FnMut(&mut [u8]) -> Result<usize> + 'a;

/// Reads the data of a file without its holes, piece by piece, into buffers that `fill` lends.
/// Returns the ranges that were read, and the error if the file could not be read to its end, or
/// has more than `stretches_max` ranges.
///
/// # Errors
/// The errors of `fill`.
pub fn read_data(
    file: &File,
    bytes: u64,
    stretches_max: usize,
    fill: &mut dyn FnMut(&mut Reads<'_>) -> Result<usize>,
) -> Result<(Vec<(u64, u64)>, Option<Error>)> {
    let (mut data, mut from): (Vec<(u64, u64)>, u64) = (Vec::new(), 0);
    loop {
        let (start, end) = match next_data(file, from, bytes) {
            Ok(Some(_)) if data.len() == stretches_max => {
                let why = format!(
                    "it has more than {stretches_max} stretches of data with holes between them; those behind are left out"
                );
                return Ok((data, Some(Error::new(Kind::Unsupported, why))));
            }
            Ok(Some(range)) => range,
            Ok(None) => return Ok((data, None)),
            Err(error) => return Ok((data, Some(error))),
        };
        let (mut at, mut failed) = (start, None);
        while at < end {
            let n = fill(&mut |room| {
                let most = room.len().min((end - at) as usize);
                Ok(read_once(file, &mut room[..most], at).unwrap_or_else(|error| {
                    failed = Some(Error::from_io("a file can't be read", error));
                    0
                }))
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
            // The file was truncated meanwhile, and the rest reads as a hole; or it can't be read.
            return Ok((data, failed));
        }
        from = end;
    }
}

fn read_once(file: &File, room: &mut [u8], at: u64) -> std::io::Result<usize> {
    loop {
        match file.read_at(room, at) {
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            read => return read,
        }
    }
}
