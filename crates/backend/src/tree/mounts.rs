//! What is mounted where a walk comes by.
//!
//! A server that is gone, or a program of a user who mounted a file system of his own (FUSE), may
//! keep who asks it anything waiting for ever. So a mount point is recognised before anything is asked
//! that the system has to fetch.
//!
//! A user may mount something between a look at a name and its opening. So what is opened by its name
//! stays on the mount of its directory (`openat2`). What lies on another one is opened as a place,
//! which asks nobody, and the place is looked at: it stays the same mount whatever is mounted later.

use std::{
    collections::HashMap,
    ffi::OsStr,
    fs::File,
    io::{Read, Seek},
    os::fd::{AsRawFd, OwnedFd},
};

use parking_lot::Mutex;
use rustix::{
    event::{PollFd, PollFlags, Timespec},
    fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat, Statx, StatxAttributes, StatxFlags},
    io::Errno,
};

use super::Identity;

/// The beginnings of the types of file systems that others than the kernel answer for.
const REMOTE: [&str; 7] = ["fuse", "nfs", "cifs", "smb", "9p", "ceph", "afs"];

/// Where a directory is mounted: the number of the mount where the system tells it, which another
/// mount of the same file system does not share; else the device.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Mount(u64);

impl Mount {
    pub(super) fn of(at: &OwnedFd, stat: &Stat) -> Mount {
        let told = rustix::fs::statx(at, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID);
        let told = told.ok().filter(|told| told.stx_mask & StatxFlags::MNT_ID.bits() != 0);
        Mount(told.map_or(stat.st_dev, |told| told.stx_mnt_id))
    }
}

/// A directory on which something is mounted that is not entered.
pub(super) struct Closed {
    /// What the system knows of it without asking anybody.
    pub(super) stat: Stat,
    /// Nobody but the kernel has to answer for its attributes.
    pub(super) is_local: bool,
    /// The user who mounted it, when that is why and the system tells who it was.
    pub(super) of_user: Option<u32>,
}

impl Closed {
    pub(super) fn is_directory(&self) -> bool {
        FileType::from_raw_mode(self.stat.st_mode) == FileType::Directory
    }
}

/// A name of a directory on which something is mounted that is not entered: anything at all with
/// `one_file_system`, else what another user mounted, or nobody knows who. Asks no file system.
pub(super) fn closed(directory: &OwnedFd, name: &OsStr, one_file_system: bool) -> Option<Closed> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::MNT_ID;
    let told = rustix::fs::statx(directory, name, UNASKED, wanted).ok()?;
    if !told.stx_attributes.contains(StatxAttributes::MOUNT_ROOT) {
        return None;
    }
    let known = mounted(told.stx_mnt_id);
    if !one_file_system && known.as_ref().is_some_and(|known| !known.is_of_other()) {
        return None;
    }
    let is_local = known.as_ref().is_some_and(|known| known.is_local);
    let of_user = known.filter(OneMount::is_of_other).and_then(|known| known.user);
    Some(Closed { stat: stat(directory, &told, is_local)?, is_local, of_user })
}

/// True when anything is mounted on a name of a directory. Asks no file system for anything, so that
/// one which lets nobody else in, or never answers, does not matter.
pub(super) fn is_mount(directory: &OwnedFd, name: &OsStr) -> bool {
    rustix::fs::statx(directory, name, UNASKED, StatxFlags::empty())
        .is_ok_and(|told| told.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

/// True when a name of a directory stands for anything. Asks no file system that is mounted there.
#[must_use]
pub fn is_taken(directory: &OwnedFd, name: &OsStr) -> bool {
    is_mount(directory, name) || identity(directory, name).is_ok()
}

/// Which file a name of a directory stands for. Asks no file system that is mounted there.
pub(super) fn identity(directory: &OwnedFd, name: &OsStr) -> Result<Identity, Errno> {
    let told = rustix::fs::statx(directory, name, UNASKED, StatxFlags::INO)?;
    Ok(Identity(rustix::fs::makedev(told.stx_dev_major, told.stx_dev_minor), told.stx_ino))
}

/// The device and inode that a name of a directory stands for, in the same way.
///
/// # Errors
/// Those of the system.
pub fn numbers(directory: &OwnedFd, name: &OsStr) -> Result<(u64, u64), Errno> {
    identity(directory, name).map(|Identity(device, inode)| (device, inode))
}

/// Opens a name of a directory as a place, without following a link: nothing happens to what it is,
/// not even to a device that acts when it is opened. `XDEV` when another user mounted a file system of
/// his own there.
pub(crate) fn open_place(directory: &OwnedFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match within(directory, name, flags) {
        Some(opened) => opened,
        None => {
            let place = rustix::fs::openat(directory, name, flags, Mode::empty())?;
            if is_of_other(&place) { Err(Errno::XDEV) } else { Ok(place) }
        }
    }
}

/// Opens a name of a directory as a place, when it lies on the mount of the directory; `None` when it does
/// not, and when the system can't tell.
pub(super) fn open_within(directory: &OwnedFd, name: &OsStr) -> Option<Result<OwnedFd, Errno>> {
    within(directory, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC)
}

/// Opens a name of a directory as a directory, without following a link.
///
/// # Errors
/// `XDEV` when another user mounted a file system of his own there, and those of the system.
pub fn open_directory(above: &OwnedFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match within(above, name, flags | OFlags::NOFOLLOW) {
        Some(opened) => opened,
        None => rustix::fs::openat(&open_place(above, name)?, ".", flags, Mode::empty()),
    }
}

/// Opens a name of a directory, which was a regular file a moment ago, without following a link: a
/// pipe is not waited for, and no device becomes the terminal. `XDEV` as above.
pub(crate) fn open_file(
    directory: &OwnedFd,
    name: &OsStr,
    flags: OFlags,
) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    if let Some(opened) = within(directory, name, flags | OFlags::NOFOLLOW) {
        return opened;
    }
    let place = open_place(directory, name)?;
    match FileType::from_raw_mode(rustix::fs::fstat(&place)?.st_mode) {
        FileType::RegularFile => {}
        FileType::Symlink => return Err(Errno::LOOP),
        _ => return Err(Errno::NXIO),
    }
    match rustix::fs::open(proc_path(&place), flags, Mode::empty()) {
        // Without /proc nobody could say who mounted something there either.
        Err(Errno::NOENT | Errno::NOTDIR) => {
            rustix::fs::openat(directory, name, flags | OFlags::NOFOLLOW, Mode::empty())
        }
        opened => opened,
    }
}

/// Where a descriptor is found again.
pub(super) fn proc_path(at: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", at.as_raw_fd())
}

/// Opens a name that lies on the mount of its directory; `None` when it does not, or when the system
/// can't tell: Linux before 5.6, and filters of system calls that do not know `openat2`.
fn within(directory: &OwnedFd, name: &OsStr, flags: OFlags) -> Option<Result<OwnedFd, Errno>> {
    let resolve = ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS | ResolveFlags::BENEATH;
    match rustix::fs::openat2(directory, name, flags, Mode::empty(), resolve) {
        Err(Errno::XDEV | Errno::NOSYS | Errno::PERM | Errno::INVAL) => None,
        opened => Some(opened),
    }
}

/// True when a place lies on what another user mounted. Asks no file system.
pub(super) fn is_of_other(place: &OwnedFd) -> bool {
    let flags = AtFlags::EMPTY_PATH | UNASKED;
    let Ok(told) = rustix::fs::statx(place, "", flags, StatxFlags::empty()) else { return false };
    told.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)
        && mounted(told.stx_mnt_id).is_none_or(|known| known.is_of_other())
}

/// How a name is looked at without asking the file system that is mounted there.
const UNASKED: AtFlags =
    AtFlags::SYMLINK_NOFOLLOW.union(AtFlags::NO_AUTOMOUNT).union(AtFlags::STATX_DONT_SYNC);

/// What is known of a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OneMount {
    /// Nobody but the kernel has to answer for what is in it.
    is_local: bool,
    /// The user who mounted it, where that is told.
    user: Option<u32>,
}

impl OneMount {
    /// True for those of users whose mounts are not entered.
    fn is_of_other(&self) -> bool {
        let own = rustix::process::geteuid().as_raw();
        self.user.is_some_and(|user| user != 0 && user != own)
    }
}

/// The table of the system, and what it said when it was read last.
struct Table {
    file: File,
    mounts: HashMap<u64, OneMount>,
}

/// Users may have many mounts, with long paths: the table is read again only when it changed.
static TABLE: Mutex<Option<Table>> = Mutex::new(None);

/// A mount by its number. `None` when it is not mounted any more, or the system does not say what
/// is: then it may be anybody's.
fn mounted(number: u64) -> Option<OneMount> {
    let mut table = TABLE.lock();
    if table.as_ref().is_none_or(Table::has_changed) {
        *table = Table::read(table.take()).ok();
    }
    table.as_ref()?.mounts.get(&number).copied()
}

impl Table {
    /// True when anything was mounted or unmounted since this was asked last.
    fn has_changed(&self) -> bool {
        let mut asked = [PollFd::new(&self.file, PollFlags::PRI)];
        let told = rustix::event::poll(&mut asked, Some(&Timespec::default()));
        told.is_err() || asked[0].revents().intersects(PollFlags::PRI | PollFlags::ERR)
    }

    fn read(old: Option<Table>) -> std::io::Result<Table> {
        let mut file = match old {
            Some(old) => old.file,
            None => File::open("/proc/self/mountinfo")?,
        };
        file.rewind()?;
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        Ok(Table { file, mounts: text.split(|&byte| byte == b'\n').filter_map(of_line).collect() })
    }
}

/// A line of the table, whose paths need not be text.
fn of_line(line: &[u8]) -> Option<(u64, OneMount)> {
    let mut parts = line.split(|&byte| byte == b' ');
    let number = str::from_utf8(parts.next()?).ok()?.parse().ok()?;
    let mut parts = parts.skip_while(|part| *part != b"-").skip(1);
    let (kind, options) = (parts.next()?, parts.nth(1).unwrap_or_default());
    let is_local = !REMOTE.iter().any(|remote| kind.starts_with(remote.as_bytes()));
    let user = options.split(|&byte| byte == b',').find_map(|one| one.strip_prefix(b"user_id="));
    let user = user.and_then(|user| str::from_utf8(user).ok()?.parse().ok());
    Some((number, OneMount { is_local, user: user.filter(|_| kind.starts_with(b"fuse")) }))
}

/// As the other calls tell it. A list of rights that is not read might give a group less than the
/// mode shows, so the group gets no more than all others.
fn stat(directory: &OwnedFd, told: &Statx, is_local: bool) -> Option<Stat> {
    let mut stat = rustix::fs::fstat(directory).ok()?;
    let mode = u32::from(told.stx_mode);
    let without_list = mode & !0o070 | mode & 0o070 & (mode & 0o007) << 3;
    stat.st_mode = if is_local { mode } else { without_list };
    stat.st_dev = rustix::fs::makedev(told.stx_dev_major, told.stx_dev_minor);
    stat.st_ino = told.stx_ino;
    (stat.st_uid, stat.st_gid) = (told.stx_uid, told.stx_gid);
    (stat.st_mtime, stat.st_mtime_nsec) = (told.stx_mtime.tv_sec, told.stx_mtime.tv_nsec as _);
    (stat.st_ctime, stat.st_ctime_nsec) = (told.stx_ctime.tv_sec, told.stx_ctime.tv_nsec as _);
    Some(stat)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::{
        os::unix::ffi::OsStrExt,
        path::{Path, PathBuf},
        process::{Command, Stdio},
        sync::mpsc,
        time::Duration,
    };

    use super::{
        super::{Choices, Options, Restorer, Sweep, Walk, walk::look_inside},
        *,
    };

    /// What user 61234 mounted over a file or a directory (FUSE). It never answers.
    struct Mounted(PathBuf, Option<File>);

    impl Mounted {
        /// `None` where there is no FUSE.
        fn over(at: &Path) -> Option<Mounted> {
            let device = File::options().read(true).write(true).open("/dev/fuse").ok()?;
            let mode = if at.is_dir() { 40_000 } else { 100_000 };
            let options = format!("fd=0,rootmode={mode},user_id=61234,group_id=61234,allow_other");
            let done = Command::new("mount")
                .args(["-i", "-t", "fuse", "-o", &options, "own"])
                .arg(at)
                .stdin(Stdio::from(device.try_clone().ok()?))
                .stderr(Stdio::null())
                .status();
            done.is_ok_and(|done| done.success()).then(|| Mounted(at.to_owned(), Some(device)))
        }
    }

    impl Drop for Mounted {
        fn drop(&mut self) {
            // Who waits for an answer gets an error when nobody can give one any more.
            self.1 = None;
            let _ = Command::new("umount").arg("-l").arg(&self.0).status();
        }
    }

    /// What somebody does who must not wait for that; `None` when he waited.
    fn at_once<T: Send + 'static>(does: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let (done, ended) = mpsc::channel();
        std::thread::spawn(move || done.send(does()));
        ended.recv_timeout(Duration::from_secs(5)).ok()
    }

    #[test]
    #[ignore = "needs root"]
    fn rule_05_what_a_user_mounts_between_a_look_and_an_opening_is_not_asked() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        for name in ["tree", "tree/sub", "other"] {
            std::fs::create_dir(path(name)).unwrap();
        }
        std::fs::write(path("tree/file"), "x").unwrap();
        std::fs::write(path("tree/late"), "x").unwrap();
        let open = || {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            rustix::fs::open(path("tree"), flags, Mode::empty()).unwrap()
        };
        // A walk that looked at a file, and opens it now.
        let options = Options { opens_late: true, ..Options::default() };
        let mut walk = Walk::new(&path("tree"), options).unwrap();
        let mut late =
            walk.by_ref().map(Result::unwrap).find(|one| one.entry.path == b"late").unwrap();
        // A restore, and a comparison, that come by.
        let choices = Choices { in_place: true, ..Choices::default() };
        let mut restorer = Restorer::new(&path("tree"), choices).unwrap();
        let mut sweep = Sweep::new(&path("tree"), &[]).unwrap().unwrap();
        let names = ["tree/file", "tree/late", "tree/sub"];
        let Some(mounted) =
            names.iter().map(|name| Mounted::over(&path(name))).collect::<Option<Vec<_>>>()
        else {
            println!("NOT TESTED: there is no FUSE here");
            return;
        };
        let mut waited = Vec::new();
        let mut is = |what: &'static str, ended: Option<bool>| match ended {
            None => waited.push(what),
            Some(refused) => assert!(refused, "{what}"),
        };
        for name in ["file", "sub"] {
            let at = open();
            let refused = move || open_place(&at, OsStr::new(name)).err() == Some(Errno::XDEV);
            is("a place", at_once(refused));
            let at = open();
            is("an identity", at_once(move || identity(&at, OsStr::new(name)).is_ok()));
            let at = open();
            let refused = move || look_inside(&at, OsStr::new(name)).err() == Some(Errno::XDEV);
            is("a look", at_once(refused));
        }
        let at = open();
        let opened = move || open_directory(&at, OsStr::new("sub")).err() == Some(Errno::XDEV);
        is("a directory", at_once(opened));
        let at = open();
        let opened =
            move || open_file(&at, OsStr::new("file"), OFlags::RDWR).err() == Some(Errno::XDEV);
        is("a file", at_once(opened));
        is("a late file", at_once(move || walk.open(&mut late).is_err()));
        is("a comparison", at_once(move || sweep.look(b"sub/x").or(sweep.look(b"file")).is_none()));
        let entry = onefold_core::tree::Entry {
            path: b"sub".to_vec(),
            what: onefold_core::tree::What::Directory,
            mode: 0o755,
            uid: 0,
            gid: 0,
            seconds: 0,
            nanoseconds: 0,
            attributes: Vec::new(),
        };
        is("a restore", at_once(move || restorer.make(&entry).is_err()));
        drop(mounted);
        assert_eq!(waited, Vec::<&str>::new(), "they wait for the user's server");
    }

    #[test]
    #[ignore = "needs root"]
    fn rule_05_what_root_mounts_is_entered() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["sub", "from"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
            std::fs::write(dir.path().join(name).join("file"), name).unwrap();
        }
        let bind = |from: &str, to: &str| {
            let paths = [from, to].map(|name| dir.path().join(name));
            Command::new("mount").arg("--bind").args(paths).status().unwrap().success()
        };
        assert!(bind("from/file", "sub/file"));
        assert!(bind("from", "from"));
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let at = rustix::fs::open(dir.path(), flags, Mode::empty()).unwrap();
        let sub = open_directory(&at, OsStr::new("sub")).unwrap();
        let file = open_file(&sub, OsStr::new("file"), OFlags::RDONLY).unwrap();
        let read = std::io::read_to_string(File::from(file)).unwrap();
        let from = open_directory(&at, OsStr::new("from"));
        let place = open_place(&sub, OsStr::new("file"));
        for name in ["sub/file", "from"] {
            Command::new("umount").arg("-l").arg(dir.path().join(name)).status().unwrap();
        }
        assert_eq!((read.as_str(), from.is_ok(), place.is_ok()), ("from", true, true));
    }

    #[test]
    fn the_table_of_mounts_tells_who_mounted_what() {
        let table =
            b"36 35 98:0 /a /\xff rw,noatime master:1 - ext4 /dev/root rw,errors=continue\n\
                     41 35 0:50 / /home/u/x rw,nosuid - fuse.sshfs h: rw,user_id=1000,group_id=5\n\
                     42 35 0:51 / /strange rw - ext4 /dev/x rw,user_id=7\n\
                     43 35\n";
        let known: HashMap<_, _> = table.split(|&byte| byte == b'\n').filter_map(of_line).collect();
        let own = OneMount { is_local: true, user: None };
        assert_eq!(known.get(&36), Some(&own));
        assert_eq!(known.get(&41), Some(&OneMount { is_local: false, user: Some(1000) }));
        assert_eq!(known.get(&42), Some(&own));
        assert_eq!(known.len(), 3);
    }

    #[test]
    fn rule_05_what_is_not_in_the_table_of_mounts_any_more_is_anybodys() {
        assert_eq!(mounted(u64::MAX), None);
        assert!(mounted(mount_number("/")).is_some());
    }

    fn mount_number(path: &str) -> u64 {
        let told = rustix::fs::statx(rustix::fs::CWD, path, UNASKED, StatxFlags::MNT_ID);
        told.unwrap().stx_mnt_id
    }

    #[test]
    #[ignore = "needs root"]
    fn rule_05_a_mount_whose_path_is_no_text_hides_no_other_one() {
        let dir = tempfile::tempdir().unwrap();
        let strange = dir.path().join(OsStr::from_bytes(b"\xff"));
        let sub = dir.path().join("sub");
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let at = rustix::fs::open(dir.path(), flags, Mode::empty()).unwrap();
        for path in [&strange, &sub] {
            std::fs::create_dir(path).unwrap();
        }
        assert!(open_place(&at, OsStr::new("sub")).is_ok());
        let (Some(_first), Some(second)) = (Mounted::over(&strange), Mounted::over(&sub)) else {
            println!("NOT TESTED: there is no FUSE here");
            return;
        };
        assert_eq!(open_place(&at, OsStr::new("sub")).err(), Some(Errno::XDEV));
        assert_eq!(
            closed(&at, OsStr::new("sub"), false).and_then(|closed| closed.of_user),
            Some(61234)
        );
        // What was detached while somebody looks at it is still that user's.
        let place = rustix::fs::openat(&at, "sub", flags, Mode::empty()).unwrap();
        drop(second);
        assert!(is_of_other(&place));
        assert!(open_place(&at, OsStr::new("sub")).is_ok());
    }
}
