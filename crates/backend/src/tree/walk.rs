//! Tells of everything below a directory.

use std::{
    collections::HashMap,
    ffi::{OsStr, OsString},
    fs::File,
    io::Read,
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use onefold_core::{
    Error, Kind, Result,
    tree::{Entry, What},
};
use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags, Stat, StatxAttributes, StatxFlags},
    io::Errno,
};

use super::{
    Identity,
    ahead::{Ahead, NAMES, READERS},
    holder::{Holder, read_growing},
    levels::Levels,
    mounts::{self, Closed, Mount, proc_path},
    names::{Name, Names, NamesMemory, Space},
    place::Place,
    shown,
    unnoticed::unnoticed,
};
use crate::{spared::Spared, sparse::next_data};

/// Longest time that all leases of other processes together hold a walk up. The system waits for 45
/// s for each, and a user can have many; who holds one in good faith gives it back at once.
const LEASES_WAIT: Duration = Duration::from_secs(10);

/// Between two looks whether a lease was given back.
const LEASE_PAUSE: Duration = Duration::from_millis(20);

/// A directory that is in the system's cache is entered faster, unless it has very many names.
const SLOW: Duration = Duration::from_micros(200);

/// Most bytes of an entry's extended attributes. Linux allows 64 KiB of names with 64 KiB each, on
/// some file systems.
const ATTRIBUTES_MAX: usize = 4 << 20;

/// The file by which a directory is known to be a cache, and how it begins: bford.info/cachedir.
const CACHE_TAG: &[u8] = b"CACHEDIR.TAG";
const CACHE_SIGNATURE: &[u8] = b"Signature: 8a477f597d28d172789f06886806bc55";

/// What a walk knows of an entry when it asks whether that is wanted.
#[derive(Clone, Copy, Debug)]
pub struct Looked {
    /// A directory.
    pub is_directory: bool,
    /// Bytes of a regular file; 0 of all else.
    pub bytes: u64,
    /// Its device and inode.
    pub identity: (u64, u64),
}

/// Decides what of a tree is wanted. Paths are those below the root.
pub trait Selection: Send {
    /// True when an entry is wanted; a directory that is not is not entered either.
    fn wants(&mut self, path: &[u8], looked: &Looked) -> bool;

    /// True when a file of this path may be wanted, as far as its path tells. Counts nothing.
    fn may_want(&mut self, _path: &[u8]) -> bool {
        false
    }

    /// Names of files that a directory's owner, or root, puts into it to have all of it left out but
    /// that file.
    fn tags(&self) -> &[OsString] {
        &[]
    }

    /// The name of files by which a directory's owner, or root, says what of it is wanted, and the
    /// most bytes of one that counts.
    fn rules(&self) -> Option<(&OsStr, usize)> {
        None
    }

    /// Takes the content of such a file, before anything in its directory is asked about; `None` for
    /// one of too many bytes. The user owns the file.
    fn add_rules(&mut self, _directory: &[u8], _user: u32, _text: Option<Vec<u8>>) {}
}

/// Names and values of extended attributes.
type Attributes = Vec<(Vec<u8>, Vec<u8>)>;

/// Options of a walk.
pub struct Options {
    /// Follows the root itself when it is a link.
    pub follows_root: bool,
    /// Enters no directory where another file system, or another part of the same one, is mounted.
    pub one_file_system: bool,
    /// Paths below the root, without `/` in front, at which it enters another one all the same.
    pub entered: Vec<Vec<u8>>,
    /// Of a directory that is tagged as a cache only the tag.
    pub without_caches: bool,
    /// Leaves out what has the attribute "no dump".
    pub without_nodump: bool,
    /// Looks at names and sizes only: opens no file, and reads no attributes.
    pub only_sizes: bool,
    /// Opens a file, and reads its attributes, only when [`Walk::open`] is called for it.
    pub opens_late: bool,
    /// How deep things may lie below the root.
    pub levels_max: usize,
    /// Longest path below the root, in bytes. What lies deeper is an error, and not entered.
    pub path_max: usize,
    /// Longest name, in bytes. What has a longer one is an error, and not entered.
    pub name_max: usize,
    /// Most files with several names that are remembered; of more, each name counts as a file.
    pub linked_max: usize,
    /// Directories, and small files, that are asked for at once before the walk comes to them. It
    /// changes nothing in what a walk finds.
    pub readers: usize,
    /// The time to enter a directory from which on it was not in the system's cache: the directories that
    /// follow are then read ahead.
    pub slow: Duration,
    /// Memory for the names of directories; more lie in a file without a name.
    pub names: NamesMemory,
    /// Selects entries.
    pub selection: Option<Box<dyn Selection>>,
}

impl Options {
    /// True for a name of a directory at which another file system is entered all the same.
    fn enters(&self, directory: &[u8], name: &OsStr) -> bool {
        self.entered.iter().any(|path| match path.strip_prefix(directory) {
            Some(rest) if directory.is_empty() => rest == name.as_bytes(),
            Some(rest) => rest.strip_prefix(b"/") == Some(name.as_bytes()),
            None => false,
        })
    }
}

impl Default for Options {
    fn default() -> Options {
        Options {
            follows_root: false,
            one_file_system: false,
            entered: Vec::new(),
            without_caches: false,
            without_nodump: false,
            only_sizes: false,
            opens_late: false,
            levels_max: usize::MAX,
            path_max: usize::MAX,
            name_max: 255,
            linked_max: usize::MAX,
            readers: READERS,
            slow: SLOW,
            names: NamesMemory::default(),
            selection: None,
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
    /// The user who mounted a file system of his own there, when it is not entered for that.
    pub mounted_by: Option<u32>,
    /// The reason why the entry lacks some of its extended attributes. All else is there.
    pub lacks: Option<Error>,
    /// A directory of which the walk tells less than it has: one on another file system, or a cache.
    pub is_in_part: bool,
}

/// The entries of a directory that are still to be visited.
struct Rest {
    names: Names,
    /// Bytes of the directory's own path.
    length: usize,
    /// Its number among the directories that are remembered.
    kept: Option<usize>,
    /// How many of the names that follow were fetched already.
    fetched: usize,
    /// How many of them were looked at already, for directories to be fetched.
    looked: usize,
}

/// Paths of the first names of files that have several: each directory on the way is there once,
/// however long the paths are.
#[derive(Default)]
struct Seen {
    /// The directory above, and the name in it; the root has none.
    directories: Vec<(Option<usize>, Box<[u8]>)>,
    files: HashMap<Identity, (usize, Box<[u8]>, Origin)>,
}

/// Tells a file from a later one that got its number. Without it a user who removes a file, after its
/// first name was looked at, would have another user's new file taken for it.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Origin {
    owner: u32,
    /// When it was made, where the file system knows.
    made: Option<(i64, u32)>,
}

impl Seen {
    /// The path of a file's first name.
    fn path(&self, identity: Identity) -> Option<Vec<u8>> {
        let (directory, name, _) = self.files.get(&identity)?;
        let (mut at, mut parts): (_, Vec<&[u8]>) = (*directory, vec![name]);
        while let Some((Some(above), part)) = self.directories.get(at) {
            parts.push(part);
            at = *above;
        }
        parts.reverse();
        Some(parts.join(&b'/'))
    }
}

/// Files of a directory by which its owner says what of it is wanted.
#[derive(Default)]
struct Marks {
    has_cache_tag: bool,
    tags: Vec<OsString>,
    rules: Option<(OsString, usize)>,
}

impl Marks {
    /// A name of the directory.
    fn note(&mut self, options: &Options, name: &[u8]) {
        self.has_cache_tag |= options.without_caches && name == CACHE_TAG;
        let Some(selection) = &options.selection else { return };
        let tags = selection.tags().iter();
        self.tags.extend(tags.filter(|tag| tag.as_bytes() == name).cloned());
        if let Some((rules, most)) = selection.rules().filter(|(rules, _)| rules.as_bytes() == name)
        {
            self.rules = Some((rules.to_owned(), most));
        }
    }
}

/// When an entry, or what is told of it, was changed last.
fn changed(stat: &Stat) -> (i64, u32) {
    (stat.st_ctime, nanoseconds(stat.st_ctime_nsec as i64))
}

/// The nanoseconds of a time; a damaged or hostile file system tells of more than a second has.
fn nanoseconds(told: i64) -> u32 {
    told.clamp(0, 999_999_999) as u32
}

/// Iterates over everything below a directory: the directory itself first, parents before their
/// content, names in order. An entry that vanishes meanwhile is left out. An error concerns one
/// entry that can't be read, and the walk continues behind it.
pub struct Walk {
    root: PathBuf,
    options: Options,
    levels: Levels<Rest>,
    /// For the names of the directories that it is in.
    space: Space,
    /// Of what is looked at.
    path: Vec<u8>,
    /// The entry that comes next, before anything else is looked at.
    ahead: Option<Result<Found>>,
    /// First names of files that have several.
    seen: Seen,
    /// Fetches files before they are read, once somebody asked for that.
    fetching: Option<Ahead>,
    /// The mount that the root is on.
    /// The mounts that are entered: that of the root, and those that the options name.
    mounts: Vec<Mount>,
    /// How much longer leases may hold it up.
    patience: Duration,
    has_proc: bool,
    /// Names that were listed, and had gone when they were looked at or entered.
    vanished: u64,
}

impl Walk {
    /// A walk below `root`.
    ///
    /// # Errors
    /// `InvalidInput` when that is no directory, `Denied` when another user made a link there or on the way,
    /// or mounted a file system of his own, and those of the system.
    pub fn new(root: &Path, options: Options) -> Result<Walk> {
        Walk::at(Place::of(root, options.follows_root)??, root, options)
    }

    /// A walk below a place, which is called `root` in errors.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn at(place: Place, root: &Path, options: Options) -> Result<Walk> {
        let Place { at, stat } = place;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            return Err(Error::new(
                Kind::InvalidInput,
                format!("{} is no directory", root.display()),
            ));
        }
        let mut walk = Walk {
            root: root.to_owned(),
            levels: Levels::new(),
            space: Space::new(options.names),
            options,
            path: Vec::new(),
            ahead: None,
            seen: Seen::default(),
            fetching: None,
            mounts: vec![Mount::of(&at, &stat)],
            patience: LEASES_WAIT,
            has_proc: Path::new("/proc/self/fd").exists(),
            vanished: 0,
        };
        let found = walk.directory(&at, &stat)?.ok_or_else(|| walk.wrong(Errno::NOENT))?;
        // A root that can't be read is not left out of anything.
        if let Some(Err(error)) = walk.ahead.replace(Ok(found)) {
            return Err(error);
        }
        Ok(walk)
    }

    /// How many names had gone when the walk came to them, of those that are wanted as far as their names
    /// tell; what [`open`](Self::open) says has gone is not among them.
    #[must_use]
    pub fn vanished(&self) -> u64 {
        self.vanished
    }

    fn wrong(&self, errno: Errno) -> Error {
        Error::from_io(shown(&self.root, &self.path), errno.into())
    }

    /// The error for what is not entered since another user mounted it.
    fn mounted(&self, who: &str) -> Error {
        let sentence = format!(
            "{}: {who} mounted a file system of his own here, which is not entered",
            shown(&self.root, &self.path)
        );
        Error::new(Kind::Denied, sentence)
    }

    fn changed(&self) -> Error {
        Error::new(
            Kind::Busy,
            format!("{} was replaced while it was read", shown(&self.root, &self.path)),
        )
    }

    /// Has the small files that follow in the directory at hand brought into the system's cache. Files
    /// that nobody wants are not opened.
    pub fn fetch_ahead(&mut self) {
        if self.has_proc && !self.options.without_nodump {
            self.fetch(false);
        }
    }

    /// Has the directories read that follow in the one at hand: it took long to enter the last one, so the
    /// system's cache does not have them.
    fn fetch_directories(&mut self) {
        self.fetch(true);
    }

    /// Has names that follow in the directory at hand fetched, of directories or of others, once half of
    /// those of the last time are behind. Names that nobody wants are passed over.
    fn fetch(&mut self, directories: bool) {
        let Some((Some(directory), rest)) = self.levels.last() else { return };
        let begun = if directories { &mut rest.looked } else { &mut rest.fetched };
        if *begun > NAMES / 2 {
            return;
        }
        let Ok(directory) = rustix::io::fcntl_dupfd_cloexec(directory, 0).map(Arc::new) else {
            return;
        };
        let fetching = self.fetching.get_or_insert_with(|| Ahead::begin(self.options.readers));
        let mut path = self.path[..rest.length].to_vec();
        if rest.length > 0 {
            path.push(b'/');
        }
        let above = path.len();
        let mut passed = 0;
        for (name, may_be_directory) in rest.names.following(*begun, NAMES - *begun) {
            passed += 1;
            path.truncate(above);
            path.extend_from_slice(name.as_bytes());
            let selection = self.options.selection.as_mut();
            if may_be_directory == directories
                && selection.is_none_or(|selection| selection.may_want(&path))
            {
                fetching.fetch(&directory, name.to_owned());
            }
        }
        *begun += passed;
    }

    /// Looks at the next name; `None` when it is not wanted or not there any more, and then there
    /// may be more.
    fn step(&mut self) -> Option<Option<Result<Found>>> {
        let (directory, rest) = self.levels.last()?;
        self.path.truncate(rest.length);
        rest.fetched = rest.fetched.saturating_sub(1);
        rest.looked = rest.looked.saturating_sub(1);
        let name = match self.space.next(&mut rest.names) {
            Ok(Some(name)) => name,
            Ok(None) => {
                if let Some((_, rest)) = self.levels.pop() {
                    self.space.leave(&rest.names);
                }
                return Some(None);
            }
            Err(error) => {
                return Some(Some(Err(error.context(shown(&self.root, &self.path)))));
            }
        };
        let Some(directory) = directory else {
            rest.names.clear();
            return Some(Some(Err(self.changed())));
        };
        let Name { name, .. } = name;
        let one_file_system =
            self.options.one_file_system && !self.options.enters(&self.path, &name);
        let opens_late = self.options.opens_late;
        let (closed, opened) = match look_at(directory, &name, one_file_system, opens_late) {
            // Another user mounted something between two looks.
            (_, Err(Errno::XDEV)) => look_at(directory, &name, one_file_system, opens_late),
            looked => looked,
        };
        // A file over which another user mounted one is not even looked at, since nobody may answer.
        let of_user =
            closed.as_ref().filter(|closed| !closed.is_directory()).and_then(|c| c.of_user);
        let closed = closed.filter(Closed::is_directory);
        if !self.path.is_empty() {
            self.path.push(b'/');
        }
        self.path.extend_from_slice(name.as_bytes());
        if name.len() > self.options.name_max {
            let sentence = format!(
                "{} has a name of more than {} bytes",
                shown(&self.root, &self.path),
                self.options.name_max
            );
            return Some(Some(Err(Error::new(Kind::Unsupported, sentence))));
        }
        if let Some(user) = of_user {
            return Some(Some(Err(self.mounted(&format!("user {user}")))));
        }
        Some(match opened {
            Err(Errno::NOENT) => {
                let selection = self.options.selection.as_mut();
                let wanted = selection.is_none_or(|selection| selection.may_want(&self.path));
                self.vanished += u64::from(wanted);
                None
            }
            Err(Errno::XDEV) => Some(Err(self.mounted("another user"))),
            Err(errno) => Some(Err(self.wrong(errno))),
            Ok((at, stat)) => self.look(at.as_ref(), &stat, &name, closed).transpose(),
        })
    }

    fn look(
        &mut self,
        at: Option<&OwnedFd>,
        stat: &Stat,
        name: &OsString,
        closed: Option<Closed>,
    ) -> Result<Option<Found>> {
        let kind = FileType::from_raw_mode(stat.st_mode);
        let is_directory = kind == FileType::Directory;
        let is_file = kind == FileType::RegularFile;
        let bytes = if is_file { stat.st_size as u64 } else { 0 };
        let looked = Looked { is_directory, bytes, identity: (stat.st_dev, stat.st_ino) };
        let wants = |selection: &mut Box<dyn Selection>| selection.wants(&self.path, &looked);
        if !self.options.selection.as_mut().is_none_or(wants) {
            return Ok(None);
        }
        if self.options.without_nodump && self.is_nodump(name) {
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
        if let Some(closed) = closed {
            return self.closed(name, &closed).map(Some);
        }
        if let Some(at) = at
            && is_directory
        {
            let found = self.directory(at, stat)?;
            self.vanished += u64::from(found.is_none());
            return Ok(found);
        }
        let mut what = what(stat);
        if stat.st_nlink > 1 && self.options.linked_max > 0 {
            let (identity, origin) = (Identity::of(stat), self.origin(at, name, stat));
            let known = self.seen.files.get(&identity).map(|(_, _, known)| *known);
            if known == Some(origin)
                && let Some(target) = self.seen.path(identity)
            {
                what = What::HardLink { target };
            } else if known.is_some() || self.seen.files.len() < self.options.linked_max {
                let directory = self.keep_directory();
                self.seen.files.insert(identity, (directory, name.as_bytes().into(), origin));
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
    /// what is told of it then is what it was when it was opened. False when it has vanished.
    ///
    /// # Errors
    /// `Busy` when it was replaced since, and those of the system.
    pub fn open(&mut self, found: &mut Found) -> Result<bool> {
        let Some((name, before)) = found.late.take() else { return Ok(true) };
        let opened = self.open_late(&name, &before, found);
        if !matches!(opened, Ok(true)) {
            self.forget(&before);
        }
        opened
    }

    fn open_late(&mut self, name: &OsString, before: &Stat, found: &mut Found) -> Result<bool> {
        let Some((Some(directory), _)) = self.levels.last() else { return Err(self.changed()) };
        if matches!(found.entry.what, What::File { .. })
            && !self.options.only_sizes
            && let Some((file, stat)) = open_known(directory, name, before)
        {
            let (attributes, lacks) = self.attributes(&Holder::Open(&file));
            *found = self.found(&stat, what(&stat), None);
            found.entry.attributes = attributes;
            (found.file, found.lacks) = (Some(file), lacks);
            return Ok(true);
        }
        let opened = mounts::open_place(directory, name).and_then(opened);
        let (at, stat) = match opened {
            Ok((Some(at), stat)) if Identity::of(&stat) == Identity::of(before) => (at, stat),
            Err(Errno::XDEV) => return Err(self.mounted("another user")),
            Err(Errno::NOENT) => return Ok(false),
            Err(errno) => return Err(self.wrong(errno)),
            Ok(_) => return Err(self.changed()),
        };
        let what = match std::mem::replace(&mut found.entry.what, What::Fifo) {
            What::HardLink { target } => What::HardLink { target },
            _ => what(&stat),
        };
        *found = self.read(&at, name, &stat, what)?;
        Ok(true)
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
            mounted_by: None,
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
                if target.is_empty() {
                    let sentence = format!("{} leads nowhere", shown(&self.root, &self.path));
                    return Err(Error::new(Kind::Unsupported, sentence));
                }
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

    /// What tells a file that was looked at from others that had its number, or will have it.
    fn origin(&mut self, at: Option<&OwnedFd>, name: &OsString, stat: &Stat) -> Origin {
        let wanted = StatxFlags::BTIME | StatxFlags::INO;
        let told = match (at, self.levels.last()) {
            (Some(at), _) => {
                let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
                rustix::fs::statx(at, "", flags, wanted).ok()
            }
            (None, Some((Some(directory), _))) => {
                let flags =
                    AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
                rustix::fs::statx(directory, name, flags, wanted).ok()
            }
            _ => None,
        };
        let is_told = told.filter(|told| {
            told.stx_mask & StatxFlags::BTIME.bits() != 0 && told.stx_ino == stat.st_ino
        });
        let made = is_told.map(|told| (told.stx_btime.tv_sec, told.stx_btime.tv_nsec));
        Origin { owner: stat.st_uid, made }
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
            nanoseconds: nanoseconds(stat.st_mtime_nsec as i64),
            attributes,
        }
    }

    /// A directory that is not entered, since something is mounted there.
    fn closed(&mut self, name: &OsString, closed: &Closed) -> Result<Found> {
        let mut found = self.found(&closed.stat, What::Directory, None);
        (found.linked, found.is_in_part, found.mounted_by) = (None, true, closed.of_user);
        if closed.is_local
            && let Some((Some(directory), _)) = self.levels.last()
            && let Ok(at) = mounts::open_place(directory, name)
        {
            (found.entry.attributes, found.lacks) = self.attributes(&Holder::Path(&at));
        }
        Ok(found)
    }

    /// A directory, which is entered. When it can't be, the error comes behind it. `None` when it has
    /// vanished.
    fn directory(&mut self, at: &OwnedFd, stat: &Stat) -> Result<Option<Found>> {
        let (attributes, lacks) = self.attributes(&Holder::Path(at));
        let mut found = self.found(stat, What::Directory, None);
        found.entry.attributes = attributes;
        (found.linked, found.lacks) = (None, lacks);
        let mount = Mount::of(at, stat);
        if self.options.entered.contains(&self.path) {
            self.mounts.push(mount);
        }
        found.is_in_part = self.options.one_file_system && !self.mounts.contains(&mount);
        if !found.is_in_part {
            let began = Instant::now();
            match self.enter(at, stat.st_uid) {
                // What is removed reads as empty.
                Ok((_, names, _)) if has_vanished(at) => {
                    self.space.leave(&names);
                    return Ok(None);
                }
                Ok((directory, names, is_in_part)) => {
                    found.is_in_part = is_in_part;
                    if began.elapsed() >= self.options.slow {
                        self.fetch_directories();
                    }
                    let length = self.path.len();
                    let rest = Rest { names, length, kept: None, fetched: 0, looked: 0 };
                    self.levels.push(directory, Identity::of(stat), rest);
                }
                Err(_) if has_vanished(at) => return Ok(None),
                Err(error) => self.ahead = Some(Err(error)),
            }
        }
        Ok(Some(found))
    }

    /// A directory of this owner, the names in it, and whether more of it is left out.
    fn enter(&mut self, at: &OwnedFd, owner: u32) -> Result<(OwnedFd, Names, bool)> {
        let wrong = |errno: Errno| Error::from_io(shown(&self.root, &self.path), errno.into());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = |more| rustix::fs::openat(at, ".", flags | more, Mode::empty());
        let directory = unnoticed(owner, open).map_err(wrong)?;
        let mut children = rustix::fs::Dir::read_from(&directory).map_err(wrong)?;
        let mut marks = Marks::default();
        let each = || {
            loop {
                let (name, kind) = match children.next()? {
                    Ok(child) => (child.file_name().to_bytes().to_vec(), child.file_type()),
                    Err(errno) => return Some(Err(wrong(errno))),
                };
                let may_be_directory = matches!(kind, FileType::Directory | FileType::Unknown);
                if name != b"." && name != b".." {
                    marks.note(&self.options, &name);
                    return Some(Ok((name, may_be_directory)));
                }
            }
        };
        let mut names = self.space.collect(each)?;
        let is_in_part = self.select(&directory, &marks, &mut names);
        Ok((directory, names, is_in_part))
    }

    /// Takes account of what the owner of a directory says of it by files in it. True when most of it
    /// is left out.
    fn select(&mut self, directory: &OwnedFd, marks: &Marks, names: &mut Names) -> bool {
        let mut is_in_part = false;
        if marks.has_cache_tag
            && self
                .owners_file(directory, CACHE_TAG, CACHE_SIGNATURE.len())
                .is_ok_and(|(_, begin)| begin == CACHE_SIGNATURE)
        {
            names.only(CACHE_TAG);
            is_in_part = true;
        }
        let is_owners = |tag: &&OsString| self.owners_file(directory, tag.as_bytes(), 0).is_ok();
        if let Some(tag) = marks.tags.iter().find(is_owners) {
            names.only(tag.as_bytes());
            is_in_part = true;
        }
        if let Some((name, most)) = &marks.rules
            && let Ok((user, text)) = self.owners_file(directory, name.as_bytes(), most + 1)
            && let Some(selection) = &mut self.options.selection
        {
            selection.add_rules(&self.path, user, (text.len() <= *most).then_some(text));
        }
        is_in_part
    }

    /// The owner and the first bytes of a regular file in a directory, which belongs to the directory's owner or to
    /// root: in a directory of several users one would leave out what others have.
    fn owners_file(
        &self,
        directory: &OwnedFd,
        name: &[u8],
        most: usize,
    ) -> Result<(u32, Vec<u8>), Errno> {
        let owner = rustix::fs::fstat(directory)?.st_uid;
        let name = OsStr::from_bytes(name).to_owned();
        if mounts::is_mount(directory, &name) {
            return Err(Errno::INVAL);
        }
        let at = mounts::open_place(directory, &name)?;
        let stat = rustix::fs::fstat(&at)?;
        let is_owners = stat.st_uid == owner || stat.st_uid == 0;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || !is_owners {
            return Err(Errno::INVAL);
        }
        let mut begin = Vec::new();
        if most > 0 {
            let file = self.reopen(directory, &name, &at, &stat)?;
            file.take(most as u64).read_to_end(&mut begin).map_err(|_| Errno::IO)?;
        }
        Ok((stat.st_uid, begin))
    }

    /// True when what has this name in the directory at hand is not to be dumped.
    fn is_nodump(&mut self, name: &OsString) -> bool {
        let Some((Some(directory), _)) = self.levels.last() else { return false };
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_DONT_SYNC;
        rustix::fs::statx(directory, name, flags, StatxFlags::TYPE)
            .is_ok_and(|found| found.stx_attributes.contains(StatxAttributes::NODUMP))
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

/// True when a directory was removed since it was opened.
fn has_vanished(at: &OwnedFd) -> bool {
    rustix::fs::fstat(at).is_ok_and(|stat| stat.st_nlink == 0)
}

/// What is open as a place, and what is known of it.
fn opened(at: OwnedFd) -> LookedAt {
    let stat = rustix::fs::fstat(&at)?;
    Ok((Some(at), stat))
}

/// Opens a regular file that was looked at a moment ago, by its name. `None` when that can't be or
/// when it is another one by now: then it is looked at once more as a place. What a user mounted over
/// it in between is not entered, since that file system may never answer.
fn open_known(directory: &OwnedFd, name: &OsString, before: &Stat) -> Option<(File, Stat)> {
    let open = |more| mounts::open_file(directory, name, OFlags::RDONLY | more);
    let file = unnoticed(before.st_uid, open).ok()?;
    let stat = rustix::fs::fstat(&file).ok()?;
    let is_same = Identity::of(&stat) == Identity::of(before)
        && FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    is_same.then(|| (File::from(file), stat))
}

/// What is known of a name, open as a place unless that is a regular file which is opened late.
pub(super) type LookedAt = Result<(Option<OwnedFd>, Stat), Errno>;

/// Looks at a name: whether something is mounted there that is not entered, and else at what is
/// there. `XDEV` when another user mounted something there between the two.
fn look_at(
    directory: &OwnedFd,
    name: &OsString,
    one_file_system: bool,
    opens_late: bool,
) -> (Option<Closed>, LookedAt) {
    // On what lies on the mount of its directory nothing is mounted.
    if let Some(place) = mounts::open_within(directory, name) {
        return (None, place.and_then(opened).map(|found| late(found, opens_late)));
    }
    // Of what nobody knows who mounted it the opening says that it is another user's.
    let closed = mounts::closed(directory, name, one_file_system)
        .filter(|closed| one_file_system || closed.of_user.is_some());
    let opened = match &closed {
        Some(closed) if !closed.is_directory() && closed.of_user.is_some() => Err(Errno::ACCESS),
        Some(closed) if closed.is_directory() => Ok((None, closed.stat)),
        _ => look_inside(directory, name).map(|found| late(found, opens_late)),
    };
    (closed, opened)
}

/// Looks at what a name stands for, once it is open as a place: by its name a user who mounts something
/// there a moment before would be asked, who may never answer. `XDEV` when another user did.
pub(super) fn look_inside(directory: &OwnedFd, name: &OsStr) -> LookedAt {
    mounts::open_place(directory, name).and_then(opened)
}

/// A regular file that is opened late is no place until then.
fn late((at, stat): (Option<OwnedFd>, Stat), opens_late: bool) -> (Option<OwnedFd>, Stat) {
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    (at.filter(|_| !(opens_late && is_file)), stat)
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
        let open = |more| rustix::fs::open(proc_path(at), flags | more, Mode::empty());
        return unnoticed(stat.st_uid, open).map(File::from);
    }
    let flags = flags | OFlags::NOFOLLOW;
    let open = |more| rustix::fs::openat(directory, name, flags | more, Mode::empty());
    let file = unnoticed(stat.st_uid, open)?;
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
    let mut spared = Spared::new(file, bytes);
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
                Ok(read_once(&mut spared, &mut room[..most], at).unwrap_or_else(|error| {
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

fn read_once(file: &mut Spared<'_>, room: &mut [u8], at: u64) -> std::io::Result<usize> {
    loop {
        match file.read_at(room, at) {
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            read => return read,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_vanishes_meanwhile_is_no_error() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in ["a", "b", "c"] {
            std::fs::write(at(name), name).unwrap();
        }
        std::fs::create_dir(at("d")).unwrap();
        let options = Options { opens_late: true, ..Options::default() };
        let mut walk = Walk::new(folder.path(), options).unwrap();
        let paths = |walk: &mut Walk| walk.next().map(|found| found.unwrap().entry.path);
        assert_eq!(paths(&mut walk), Some(Vec::new()));
        // Looked at, and gone when it is opened.
        let mut found = walk.next().unwrap().unwrap();
        std::fs::remove_file(at("a")).unwrap();
        assert!(!walk.open(&mut found).unwrap());
        // Listed, and gone when it is looked at.
        std::fs::remove_file(at("b")).unwrap();
        assert_eq!(paths(&mut walk), Some(b"c".to_vec()));
        // Looked at, and gone when it is entered.
        let place = rustix::fs::open(at("d"), OFlags::PATH, Mode::empty()).unwrap();
        let stat = rustix::fs::fstat(&place).unwrap();
        std::fs::remove_dir(at("d")).unwrap();
        assert!(walk.look(Some(&place), &stat, &"d".into(), None).unwrap().is_none());
        assert_eq!(walk.vanished(), 2);
        // One that is there and empty is given.
        std::fs::create_dir(at("d")).unwrap();
        assert_eq!(paths(&mut walk), Some(b"d".to_vec()));
        assert_eq!((paths(&mut walk), walk.vanished()), (None, 2));
    }

    #[test]
    fn rule_07_nanoseconds_that_are_more_than_a_second_are_none_that_readers_refuse() {
        assert_eq!([5, 1_073_741_823, -1].map(nanoseconds), [5, 999_999_999, 0]);
    }
}
