//! The snapshots of an archive as a read-only file system, by FUSE.
//!
//! The root has a directory for each set, and this one for each snapshot, by its time; `latest` is
//! a link to the newest. Lists are as the archive is now; what is in a snapshot never changes, so
//! that the kernel keeps it as long as it likes.
//!
//! | module | what |
//! |---|---|
//! | [`trees`] | pages and content, cached, for several threads |
//! | [`inodes`] | numbers of what the kernel knows |
//! | [`names`] | directories of sets and snapshots |
//! | [`listings`] | directories that are being listed |
//! | [`files`] | the answers to the kernel |
//! | [`turns`] | whose request is answered next |
//! | [`served`] | requests, given to threads |
//! | [`point`] | the directory on which root mounts |
//!
//! *Invariants.* No reader stays in an epoch for longer than two seconds, so that no mount keeps a
//! collection waiting; what a collection has removed since is answered with `ESTALE`. An inode
//! number is never used for anything else. No user has more than half of the threads. Memory is bounded by [`CACHE_BYTES`] and by what the
//! kernel remembers.

mod files;
mod inodes;
mod listings;
mod names;
mod point;
mod served;
mod trees;
mod turns;

use std::{
    ffi::OsString,
    io,
    os::{fd::OwnedFd, unix::ffi::OsStringExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use fuser::{Config, MountOption, Session, SessionACL, SessionUnmounter};
use onefold_archive::{Archive, SnapshotId};
use onefold_core::{Error, Kind, Result};
use rustix::{
    fs::{Mode, OFlags},
    io::Errno,
    mount::{UnmountFlags, unmount},
    process::geteuid,
};

use self::{
    files::Files,
    point::{Point, way_to},
    served::Served,
    trees::Trees,
    turns::Turns,
};

/// Bytes of pages, and of content, that are cached, half each.
pub const CACHE_BYTES: u64 = 64 << 20;

/// How often readers that rest are let go.
const REST: Duration = Duration::from_secs(1);

/// The choices of a mount.
#[derive(Clone, Copy, Debug, Default)]
pub struct Choices {
    /// Only this snapshot, as the root.
    pub only: Option<SnapshotId>,
    /// Other users may enter; the system compares owners and modes.
    pub allow_other: bool,
}

/// A mounted file system.
pub struct Mounted {
    session: Session<Served>,
    trees: Arc<Trees>,
    turns: Arc<Turns>,
    threads: usize,
    at: PathBuf,
    /// `None` where a program of the system mounted it (fusermount).
    point: Option<Arc<Point>>,
}

/// Ends a mount from another thread.
pub struct Ender {
    session: SessionUnmounter,
    at: PathBuf,
    point: Option<Arc<Point>>,
}

impl Ender {
    /// Unmounts, so that [`Mounted::serve`] returns once all requests are answered. While somebody
    /// is in it, it is taken out of the tree of files only: true then, and [`Mounted::serve`] returns
    /// when nobody is in it any more.
    ///
    /// # Errors
    /// Those of the system.
    pub fn end(&mut self) -> Result<bool> {
        let failed = |error| Error::from_io("it can't be unmounted", error);
        if let Some(point) = &self.point {
            return point.unmount().map_err(|errno| failed(errno.into()));
        }
        match self.session.unmount() {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                unmount(&self.at, UnmountFlags::DETACH).map_err(|errno| failed(errno.into()))?;
                Ok(true)
            }
            ended => ended.map(|()| false).map_err(failed),
        }
    }
}

impl Mounted {
    /// Mounts the snapshots of an archive on a directory, which is open as a place and is called `at`.
    ///
    /// # Errors
    /// `NotFound` for a snapshot; `Exists` when something is in the directory; those of the system:
    /// there is no FUSE, or it refuses the directory.
    pub fn new(
        archive: &Arc<Archive>,
        directory: OwnedFd,
        at: &Path,
        choices: Choices,
    ) -> Result<Mounted> {
        let wrong = |error| Error::from_io(at.display(), error);
        if !is_empty(&directory).map_err(|errno| wrong(errno.into()))? {
            let why = format!(
                "{} is not empty: a mount would hide what is in it, so give an empty directory",
                at.display()
            );
            return Err(Error::new(Kind::Exists, why));
        }
        // The process may be elsewhere when it ends, and the path was followed before.
        let named = rustix::fs::readlink(way_to(&directory), Vec::new());
        let named = named.map_err(|errno| wrong(errno.into()))?;
        let at = PathBuf::from(OsString::from_vec(named.into_bytes()));
        let trees = Arc::new(Trees::new(archive, CACHE_BYTES));
        let files = Files::new(trees.clone(), choices.only, choices.allow_other)?;
        let mut config = Config::default();
        config.mount_options = vec![
            MountOption::RO,
            MountOption::NoDev,
            MountOption::NoSuid,
            MountOption::FSName("onefold".into()),
            MountOption::Subtype("onefold".into()),
        ];
        if choices.allow_other {
            config.mount_options.push(MountOption::DefaultPermissions);
            config.acl = SessionACL::All;
        }
        let threads = std::thread::available_parallelism().map_or(1, usize::from).max(2) * 2;
        let turns = Arc::new(Turns::new(threads));
        let failed = |error: io::Error| {
            let missing =
                error.kind() == io::ErrorKind::NotFound && !Path::new("/dev/fuse").exists();
            let why = if missing { ": the system has no /dev/fuse" } else { "" };
            Error::from_io(format!("{} can't be mounted{why}", at.display()), error)
        };
        let served = Served::new(files, &turns);
        // Other users can only mount what belongs to them.
        let mounted = match geteuid().is_root() {
            true => Point::mount(directory, choices.allow_other).map_err(failed)?,
            false => None,
        };
        let (session, point) = match mounted {
            None => (Session::new(served, &at, &config).map_err(failed)?, None),
            Some((point, device)) => {
                let session = Session::from_fd(served, device, config.acl, config);
                let session = session.map_err(|error| {
                    // What failed is mounted still.
                    let _ = point.unmount();
                    failed(error)
                })?;
                (session, Some(Arc::new(point)))
            }
        };
        Ok(Mounted { session, trees, turns, threads, at, point })
    }

    /// Who ends it.
    pub fn ender(&mut self) -> Ender {
        let session = self.session.unmount_callable();
        Ender { session, at: self.at.clone(), point: self.point.clone() }
    }

    /// Answers until it is unmounted.
    ///
    /// # Errors
    /// Those of the system.
    pub fn serve(self) -> Result<()> {
        let Mounted { session, trees, turns, threads, point, .. } = self;
        let (alive, ended) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                while ended.recv_timeout(REST) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                    trees.rest();
                }
            });
            (0..threads).for_each(|_| drop(scope.spawn(|| turns.work())));
            let served = session.run();
            // What failed is mounted still.
            let _ = point.map(|point| point.unmount());
            turns.end();
            drop(alive);
            served.map_err(|error| Error::from_io("the mount ended", error))
        })
    }
}

/// True when nothing is in a directory.
fn is_empty(directory: &OwnedFd) -> Result<bool, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(directory, ".", flags, Mode::empty())?;
    let is_name = |name: &[u8]| !matches!(name, b"." | b"..");
    for entry in rustix::fs::Dir::read_from(opened)? {
        if is_name(entry?.file_name().to_bytes()) {
            return Ok(false);
        }
    }
    Ok(true)
}
