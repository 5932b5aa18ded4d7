//! Getting a [`FileDisk`]: create or open, lock, choose the way of I/O; and a sentence for each way
//! in which this fails.
//!
//! Order for a new file: create, lock, size, reserve space, make the file and its name durable.
//! After a failure the new file is removed. The lock comes before anything is read or changed, so
//! that two creators cannot both succeed.

use std::{
    fs::{self, File},
    io,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::fs::{FileTypeExt, OpenOptionsExt},
    },
    path::Path,
};

use onefold_core::{BLOCK_BYTES, Block, Disk, Error, Kind, Pba, Result, block};
use rustix::{
    fs::{FallocateFlags, FileType, Mode, OFlags},
    io::Errno,
};

use super::{
    disk::FileDisk,
    handle::{Access, explain_errno, size},
    locks,
    locks::lock,
    ring,
    standing::Standing,
    transfer,
    transfer::Failure,
};
use crate::{Counters, beneath, new_file::Spot};

/// Size of the writes that fill a new store with zeroes: large enough for full bandwidth, small
/// enough for a smooth progress bar.
const FILL_BLOCKS: usize = 1024;

/// How batches reach the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Io {
    /// By io_uring where the kernel allows it, else by system calls.
    #[default]
    Auto,
    /// By io_uring; opening fails where the kernel refuses it.
    Uring,
    /// By plain system calls.
    Syscalls,
}

/// How a new file gets its space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preallocate {
    /// All space is reserved and nothing is written (`fallocate`). Writes never fail for lack of
    /// space; the first write of each place also costs the file system a metadata update.
    Reserve,
    /// No space is reserved before [`allocate`](onefold_core::Disk::allocate) asks for it.
    None,
    /// All space is reserved and written with zeroes once: slow to create, and the fastest durable
    /// writes after.
    Full,
}

/// How a disk is created or opened. The defaults are right except for tests and comparisons.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How batches reach the kernel.
    pub io: Io,
    /// Whether to bypass the page cache where the file system can.
    pub direct: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { io: Io::Auto, direct: true }
    }
}

impl FileDisk {
    /// Creates a disk with the default [`Options`]; see [`Options::create`].
    ///
    /// # Errors
    /// As [`Options::create`].
    pub fn create(
        path: &Path,
        blocks: Option<u64>,
        preallocate: Preallocate,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<FileDisk> {
        Options::default().create(path, blocks, preallocate, progress)
    }

    /// Opens a disk with the default [`Options`]; see [`Options::open`].
    ///
    /// # Errors
    /// As [`Options::open`].
    pub fn open(path: &Path, access: Access) -> Result<FileDisk> {
        Options::default().open(path, access)
    }
}

impl Options {
    /// Creates a regular file of `blocks` blocks at `path` with mode 0600, or uses the block device
    /// that is there; `None` blocks then mean the whole device. A device keeps its content unless
    /// `preallocate` is [`Preallocate::Full`]. A file that was created is durable on return.
    /// `progress` gets the bytes done and the bytes in all while zeroes are written.
    ///
    /// # Errors
    /// [`Kind::Exists`] for a file that is not empty, [`Kind::Busy`] while somebody has it open,
    /// [`Kind::NoSpace`], [`Kind::InvalidInput`] for a size that cannot be,
    /// [`Kind::Unsupported`] when the file system cannot reserve space, [`Kind::Denied`], also
    /// for an empty file that other users may have open. A file that was created is removed
    /// again; one that was empty is empty again.
    pub fn create(
        self,
        path: &Path,
        blocks: Option<u64>,
        preallocate: Preallocate,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<FileDisk> {
        let (existed, device) = match look(path) {
            Ok(Found { device }) => (true, device),
            Err(error) if error.kind() == Kind::NotFound => (false, false),
            Err(error) => return Err(error),
        };
        if !device && blocks.is_none() {
            return Err(Error::new(
                Kind::InvalidInput,
                format!("the new file {} needs a size", path.display()),
            ));
        }
        let file = if existed {
            open_existing(path, Access::ReadWrite, device)?
        } else {
            create_new(path)?
        };
        lock(&file, path, Access::ReadWrite)?;
        if !device && size(file.as_fd()).map_err(|e| Error::from_io(path.display(), e))? != 0 {
            return Err(Error::new(
                Kind::Exists,
                format!("{} exists and is not empty; choose another path", path.display()),
            ));
        }
        if existed && !device {
            is_private(&file, path)?;
        }
        let spot = Spot::of(path);
        // A duplicate shares the lock, so no other store gets the file between the failure and its
        // removal.
        let undo = file.try_clone().map_err(|e| Error::from_io(path.display(), e))?;
        let made = self.prepare(file, path, device, blocks, preallocate, progress);
        if made.is_err() && !device {
            // The first error is reported, whether this works or not.
            if existed {
                let _ = undo.set_len(0);
            } else if let Ok(spot) = spot {
                spot.take_back(false);
            }
        }
        made
    }

    /// Opens the regular file or block device at `path`. A size that is no multiple of 4096 bytes
    /// is rounded down.
    ///
    /// # Errors
    /// [`Kind::NotFound`], [`Kind::Busy`] while somebody else has it open for writing (or, to
    /// write, at all), [`Kind::Denied`] for lack of permission or on a read-only file system,
    /// [`Kind::InvalidInput`] for what is neither file nor device or is shorter than a block,
    /// [`Kind::Unsupported`] when it cannot be locked or io_uring was demanded in vain.
    pub fn open(self, path: &Path, access: Access) -> Result<FileDisk> {
        let Found { device } = look(path)?;
        let file = open_existing(path, access, device)?;
        lock(&file, path, access)?;
        self.finish(file, path, device, access, None)
    }

    /// The disk in a regular file that was opened for writing and is called `path`, which gets
    /// `bytes` bytes at least.
    ///
    /// # Errors
    /// `Busy` while somebody else has it open, and those of the system.
    pub(crate) fn take(self, file: File, path: &Path, bytes: u64) -> Result<FileDisk> {
        lock(&file, path, Access::ReadWrite)?;
        if file
            .metadata()
            .and_then(|found| if found.len() < bytes { file.set_len(bytes) } else { Ok(()) })
            .is_err()
        {
            return Err(Error::new(
                Kind::Io,
                format!("{} can't be given {bytes} bytes", path.display()),
            ));
        }
        self.finish(file, path, false, Access::ReadWrite, None)
    }

    fn prepare(
        self,
        file: File,
        path: &Path,
        device: bool,
        blocks: Option<u64>,
        preallocate: Preallocate,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<FileDisk> {
        if !device {
            take_space(&file, path, blocks.unwrap_or(0), preallocate)?;
        }
        let disk = self.finish(file, path, device, Access::ReadWrite, blocks)?;
        if preallocate == Preallocate::Full {
            fill(&disk, progress)?;
        }
        disk.file
            .sync_all()
            .map_err(|e| Error::from_io(format!("cannot make {} durable", path.display()), e))?;
        if !device {
            sync_parent(path)?;
        }
        Ok(disk)
    }

    /// The disk around a locked descriptor.
    fn finish(
        self,
        file: File,
        path: &Path,
        device: bool,
        access: Access,
        blocks: Option<u64>,
    ) -> Result<FileDisk> {
        let shown = path.display();
        let bytes = size(file.as_fd())
            .map_err(|e| Error::from_io(format!("cannot learn the size of {shown}"), e))?;
        let there = bytes / BLOCK_BYTES as u64;
        let blocks = blocks.unwrap_or(there);
        if blocks > there {
            let message = format!(
                "device {shown} has {there} blocks of {BLOCK_BYTES} bytes; {blocks} were asked for"
            );
            return Err(Error::new(Kind::InvalidInput, message));
        }
        if blocks == 0 {
            return Err(Error::new(
                Kind::InvalidInput,
                format!("{shown} has {bytes} bytes, less than one block of {BLOCK_BYTES}"),
            ));
        }
        let uring = self.io != Io::Syscalls && ring::available();
        if self.io == Io::Uring && !uring {
            return Err(Error::new(
                Kind::Unsupported,
                "the kernel refuses io_uring to this process; use io = auto or syscalls",
            ));
        }
        let direct = self.direct && make_direct(file.as_fd());
        let backing =
            if device { locks::lock_backing(number(&file), path, access)? } else { Vec::new() };
        let name = format!("store {shown}");
        let standing = Standing::of(&file, path, device, blocks * BLOCK_BYTES as u64);
        Ok(FileDisk {
            file,
            name,
            blocks: blocks.into(),
            standing,
            backing,
            device,
            access,
            direct,
            uring,
            counters: Counters::default(),
        })
    }
}

/// The number of a block device.
fn number(file: &File) -> u64 {
    rustix::fs::fstat(file).map_or(0, |stat| stat.st_rdev)
}

/// Size in bytes of the block device at `path` (or of a regular file).
///
/// # Errors
/// As [`Options::open`] for reading, without its locks.
pub fn device_bytes(path: &Path) -> Result<u64> {
    let Found { device } = look(path)?;
    let file = open_existing(path, Access::ReadOnly, device)?;
    size(file.as_fd())
        .map_err(|e| Error::from_io(format!("cannot learn the size of {}", path.display()), e))
}

/// One block of the regular file or block device at `path`, or `None` when the file ends before it.
/// No lock is acquired, so this works while another process has the store open. A block that is
/// being written may then be torn.
///
/// # Errors
/// As [`Options::open`] for reading, without its locks.
pub fn peek(path: &Path, at: Pba) -> Result<Option<Box<Block>>> {
    let Found { device } = look(path)?;
    let file = open_existing(path, Access::ReadOnly, device)?;
    let mut block = Block::zeroed();
    let offset =
        at.0.checked_mul(BLOCK_BYTES as u64).filter(|&offset| i64::try_from(offset).is_ok());
    let Some(offset) = offset else { return Ok(None) };
    match transfer::read(file.as_fd(), offset, &mut block.0, 0) {
        Ok(()) => Ok(Some(block)),
        Err(Failure::Ended | Failure::Stalled) => Ok(None),
        Err(Failure::System(errno)) => {
            Err(explain_errno(&format!("reading block {at} of {}", path.display()), errno))
        }
    }
}

struct Found {
    device: bool,
}

/// The kind of file at `path`, before it is opened: opening a pipe would wait, and devices need
/// flags of their own.
fn look(path: &Path) -> Result<Found> {
    let kind = fs::metadata(path).map_err(|e| explain_open(path, Access::ReadOnly, e))?.file_type();
    let shown = path.display();
    if kind.is_dir() {
        return Err(Error::new(
            Kind::InvalidInput,
            format!("{shown} is a directory; a store is a regular file or a block device"),
        ));
    }
    if !kind.is_file() && !kind.is_block_device() {
        return Err(Error::new(
            Kind::InvalidInput,
            format!("{shown} is neither a regular file nor a block device"),
        ));
    }
    Ok(Found { device: kind.is_block_device() })
}

fn create_new(path: &Path) -> Result<File> {
    // The standard library adds O_CLOEXEC to every descriptor.
    let opened = File::options().read(true).write(true).create_new(true).mode(0o600).open(path);
    let file = opened.map_err(|e| match Errno::from_io_error(&e) {
        Some(Errno::NOENT) => Error::new(
            Kind::NotFound,
            format!("there is no directory to create {} in", path.display()),
        )
        .caused_by(e),
        _ => explain_open(path, Access::ReadWrite, e),
    })?;
    // A default list of access rights adds to what was asked for.
    beneath::settle_mode(file.as_fd(), Mode::RUSR | Mode::WUSR)
        .map_err(|errno| explain_open(path, Access::ReadWrite, errno.into()))?;
    Ok(file)
}

fn open_existing(path: &Path, access: Access, device: bool) -> Result<File> {
    let mut flags = if access == Access::ReadWrite { OFlags::RDWR } else { OFlags::RDONLY };
    if device && access == Access::ReadWrite {
        // On a device this claims it against mounts and other claimants.
        flags |= OFlags::EXCL;
    }
    let replaced = || {
        Error::new(
            Kind::Busy,
            format!("{} was replaced while it was being opened; try again", path.display()),
        )
    };
    match beneath::file_or_block_device(path, flags) {
        Ok((file, kind)) if (kind == FileType::BlockDevice) == device => Ok(file),
        Ok(_) | Err(Errno::INVAL | Errno::STALE) => Err(replaced()),
        Err(errno) => Err(explain_open(path, access, errno.into())),
    }
}

/// Errors unless only our user could have opened the file that was there. Another mode would come
/// too late: who has it open keeps what its mode allowed.
fn is_private(file: &File, path: &Path) -> Result<()> {
    let stat = rustix::fs::fstat(file).map_err(|e| Error::from_io(path.display(), e.into()))?;
    let why = if stat.st_uid != rustix::process::geteuid().as_raw() {
        format!("belongs to user {}, who could read and change the store", stat.st_uid)
    } else if stat.st_nlink != 1 {
        format!("has {} names, and the store would be under each of them", stat.st_nlink)
    } else if stat.st_mode & 0o077 != 0 {
        "is open to other users, who may have opened it already".to_owned()
    } else {
        return Ok(());
    };
    let shown = path.display();
    Err(Error::new(Kind::Denied, format!("{shown} is there and {why}; remove it, or take another")))
}

/// Sizes a new regular file and reserves its space.
fn take_space(file: &File, path: &Path, blocks: u64, preallocate: Preallocate) -> Result<()> {
    let shown = path.display();
    let bytes =
        blocks.checked_mul(BLOCK_BYTES as u64).filter(|&bytes| i64::try_from(bytes).is_ok());
    let Some(bytes) = bytes.filter(|&bytes| bytes > 0) else {
        return Err(Error::new(
            Kind::InvalidInput,
            format!("a file of {blocks} blocks cannot be made at {shown}"),
        ));
    };
    file.set_len(bytes)
        .map_err(|e| Error::from_io(format!("cannot make {shown} {bytes} bytes long"), e))?;
    if preallocate == Preallocate::None {
        return Ok(());
    }
    // Asked first, because a file system may fill up to the last block before it finds out.
    if let Ok(stat) = rustix::fs::fstatvfs(file)
        && let free = stat.f_bavail.saturating_mul(stat.f_frsize)
        && bytes > free
    {
        return Err(Error::new(
            Kind::NoSpace,
            format!("{shown} needs {bytes} bytes, and its file system has {free} free"),
        ));
    }
    let reserved = loop {
        match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, bytes) {
            Err(Errno::INTR) => {}
            other => break other,
        }
    };
    match reserved {
        Ok(()) => Ok(()),
        // Writing the zeroes allocates the space.
        Err(Errno::OPNOTSUPP | Errno::NOSYS) if preallocate == Preallocate::Full => Ok(()),
        Err(errno @ (Errno::OPNOTSUPP | Errno::NOSYS)) => {
            let message = format!(
                "the file system of {shown} cannot reserve space; use preallocate = full or none"
            );
            Err(Error::new(Kind::Unsupported, message).caused_by(io::Error::from(errno)))
        }
        Err(errno) => {
            Err(explain_errno(&format!("cannot reserve {bytes} bytes for {shown}"), errno))
        }
    }
}

/// Writes zeroes over all of `disk`.
fn fill(disk: &FileDisk, progress: &mut dyn FnMut(u64, u64)) -> Result<()> {
    let zeroes = Block::zeroed_vec(FILL_BLOCKS);
    let total = disk.blocks() * BLOCK_BYTES as u64;
    let mut done = 0;
    progress(done, total);
    while done < total {
        let length = (total - done).min((FILL_BLOCKS * BLOCK_BYTES) as u64);
        let at = Pba(done / BLOCK_BYTES as u64);
        transfer::write_bytes(disk.fd(), done, &block::bytes(&zeroes)[..length as usize])
            .map_err(|failure| disk.explain("writing zeroes to", at, FILL_BLOCKS, failure))?;
        done += length;
        progress(done, total);
    }
    Ok(())
}

/// Makes the name of a new file durable.
fn sync_parent(path: &Path) -> Result<()> {
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let synced = File::open(parent).and_then(|directory| directory.sync_all());
    match synced {
        // Some network file systems have no such thing for directories.
        Err(e) if e.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => Ok(()),
        other => other.map_err(|e| {
            Error::from_io(format!("cannot make the name {} durable", path.display()), e)
        }),
    }
}

/// Turns the page cache off for the descriptor; false when the file system cannot, or wants larger
/// alignment than a block.
fn make_direct(fd: BorrowedFd<'_>) -> bool {
    let Ok(flags) = rustix::fs::fcntl_getfl(fd) else { return false };
    if rustix::fs::fcntl_setfl(fd, flags | OFlags::DIRECT).is_err() {
        return false;
    }
    let mut probe = Block::zeroed();
    let refused = transfer::read(fd, 0, &mut probe.0, 0) == Err(Failure::System(Errno::INVAL));
    // Where it cannot be turned off again, I/O fails loudly later.
    !refused || rustix::fs::fcntl_setfl(fd, flags).is_err()
}

/// One sentence for a file that cannot be opened.
fn explain_open(path: &Path, access: Access, error: io::Error) -> Error {
    let shown = path.display();
    let aim = match access {
        Access::ReadWrite => "reading and writing",
        Access::ReadOnly => "reading",
    };
    let (kind, message) = match Errno::from_io_error(&error) {
        Some(Errno::NOENT | Errno::NOTDIR) => {
            (Kind::NotFound, format!("there is nothing at {shown}"))
        }
        Some(Errno::ACCESS | Errno::PERM) => {
            (Kind::Denied, format!("no permission to open {shown} for {aim}"))
        }
        Some(Errno::ROFS) => (
            Kind::Denied,
            format!("{shown} is on a read-only file system; it can be opened for reading only"),
        ),
        Some(Errno::BUSY | Errno::TXTBSY) => {
            (Kind::Busy, format!("{shown} is mounted, or in use by another program"))
        }
        Some(Errno::NXIO | Errno::NODEV) => {
            (Kind::NotFound, format!("there is no device behind {shown}"))
        }
        Some(Errno::ISDIR) => (
            Kind::InvalidInput,
            format!("{shown} is a directory; a store is a regular file or a block device"),
        ),
        _ => return Error::from_io(format!("cannot open {shown} for {aim}"), error),
    };
    Error::new(kind, message).caused_by(error)
}
