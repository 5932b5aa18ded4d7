//! [`Directory`]: the files of an archive's node in one directory of the file system.
//!
//! *Crash argument:* as the trait says and no more: a file's bytes are durable after `fdatasync` of
//! it, its name after `fsync` of the directory.
//!
//! *Other writers:* none but the owner. Each name is opened below the directory's descriptor, and
//! only when it is a regular file ([`beneath`](crate::beneath)); new files are private. A directory
//! is opened for writing where locks hold: on this machine's own file systems and on NFS of version
//! 4, elsewhere if the operator says so.

use std::{
    fs::File as OsFile,
    io::{IoSlice, Read, Write},
    os::{
        fd::OwnedFd,
        unix::fs::{FileExt, MetadataExt},
    },
    path::Path,
    sync::Arc,
    thread::JoinHandle,
    time::Duration,
};

use onefold_core::{Error, File, Files, Hold, Kind, Lock, PendingSync, Result};
use rustix::{
    fs::{Advice, FallocateFlags, FlockOperation, Mode, OFlags, fadvise, openat},
    io::Errno,
};

use crate::{
    beneath::{Beneath, Stands, Word},
    locality::Locality,
    lock,
    past_cache::PastCache,
    sparse::next_data,
};

/// A directory whose files are an archive's.
pub struct Directory {
    own: Beneath,
    writes: bool,
    stands: Option<Stands>,
}

/// Held while something is made in a directory; it ends with the process.
#[expect(dead_code, reason = "the descriptor is the lock")]
#[derive(Debug)]
pub struct Making(OwnedFd);

impl Directory {
    /// Opens a directory that is there; for reading only when `writes` is not set.
    ///
    /// # Errors
    /// As [`open_as`](Self::open_as).
    pub fn open(path: &Path, writes: bool) -> Result<Directory> {
        Directory::open_as(path, writes, Word::default())
    }

    /// The same for an operator who gave their word.
    ///
    /// # Errors
    /// `NotFound`; to write, `Denied` when it is not our user's and `Unsupported` where locks may
    /// not hold; those of the system.
    pub fn open_as(path: &Path, writes: bool, word: Word) -> Result<Directory> {
        let directory = Directory { own: Beneath::open(path, word)?, writes, stands: None };
        if writes {
            directory.may_write()?;
        }
        Ok(directory)
    }

    /// The same for a path that a file says, where a link counts as nothing.
    ///
    /// # Errors
    /// As [`open_as`](Self::open_as), and `Denied` for a link.
    pub fn open_itself(path: &Path, writes: bool, word: Word) -> Result<Directory> {
        let directory = Directory { own: Beneath::open_itself(path, word)?, writes, stands: None };
        if writes {
            directory.may_write()?;
        }
        Ok(directory)
    }

    /// The same, written only while its owner stands.
    #[must_use]
    pub fn while_stands(self, stands: Stands) -> Directory {
        Directory { stands: Some(stands), ..self }
    }

    /// Makes the directory, with mode 0700, or takes an empty one; its name in the parent is
    /// durable on return.
    ///
    /// # Errors
    /// `Exists` when something is in it, and as [`open_as`](Self::open_as).
    pub fn create(path: &Path) -> Result<Directory> {
        Directory::create_as(path, Word::default())
    }

    /// The same for an operator who gave their word.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub fn create_as(path: &Path, word: Word) -> Result<Directory> {
        let directory = Directory { own: Beneath::make(path, word)?, writes: true, stands: None };
        directory.begin()?;
        Ok(directory)
    }

    /// The same for what takes a while to make, which is noted as long as [`Making`] is held. What a process
    /// left that was killed meanwhile is removed first: all that is there, when `is_left` says so.
    ///
    /// # Errors
    /// `Busy` while another process makes something there, and as [`create`](Self::create).
    pub fn create_over(
        path: &Path,
        word: Word,
        is_left: impl Fn(&dyn Files) -> bool,
    ) -> Result<(Directory, Option<Making>)> {
        let directory = Directory { own: Beneath::make(path, word)?, writes: true, stands: None };
        let making = directory.making()?;
        if making.is_some() && directory.is_ours() && is_left(&directory) {
            // A name is removed, never what it leads to.
            directory.names()?.iter().try_for_each(|name| directory.remove(name))?;
            directory.sync_names()?;
        }
        directory.begin()?;
        Ok((directory, making))
    }

    /// Notes that something is made in the directory. `None` where that can't be noted: where other users
    /// can open the directory, who could hold it up so, and where directories have no locks.
    ///
    /// # Errors
    /// `Busy` while another process makes something there, and those of the system.
    pub fn making(&self) -> Result<Option<Making>> {
        if self.own.stat()?.st_mode & 0o077 != 0 {
            return Ok(None);
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let failed = |errno: Errno| Error::from_io(self.own.path().display(), errno.into());
        let own = openat(self.own.as_fd(), ".", flags, Mode::empty()).map_err(failed)?;
        match rustix::fs::flock(&own, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Making(own))),
            Err(Errno::WOULDBLOCK) => {
                let shown = self.own.path().display();
                let why = format!("another process makes an archive in {shown}");
                Err(Error::new(Kind::Busy, why))
            }
            Err(_) => Ok(None),
        }
    }

    /// Errors unless it is empty and may be written; its name is durable on return.
    fn begin(&self) -> Result<()> {
        let path = self.own.path();
        if !self.names()?.is_empty() {
            return Err(Error::new(Kind::Exists, format!("{} is not empty", path.display())));
        }
        self.may_write()?;
        let whole = std::path::absolute(path).map_err(|e| Error::from_io(path.display(), e))?;
        if let Some(parent) = whole.parent() {
            let parent = OsFile::open(parent).map_err(|e| Error::from_io(parent.display(), e))?;
            parent
                .sync_all()
                .map_err(|e| Error::from_io("the directory's name can't be made durable", e))?;
        }
        Ok(())
    }

    fn may_write(&self) -> Result<()> {
        self.own.may_write()?;
        let shown = self.own.path().display();
        match Locality::of(self.own.as_fd()) {
            Ok(Locality::Local | Locality::Nfs4) => Ok(()),
            Ok(Locality::Shared) if self.own.word().one_host => Ok(()),
            Ok(Locality::Shared) => {
                let why = format!(
                    "{shown} is on a file system that other hosts may have mounted, where locks \
                     may not hold; --one-host says that none of them writes there"
                );
                Err(Error::new(Kind::Unsupported, why))
            }
            Err(errno) => Err(Error::from_io(shown, errno.into())),
        }
    }

    /// The user to whom the directory belongs.
    ///
    /// # Errors
    /// The errors of the system.
    pub fn owner(&self) -> Result<u32> {
        self.own.owner()
    }

    /// The number of its inode: another directory of the same file system has another one.
    ///
    /// # Errors
    /// The errors of the system.
    pub fn inode(&self) -> Result<u64> {
        Ok(self.own.stat()?.st_ino)
    }

    /// True when it belongs to the user for whom we write.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.own.may_write().is_ok()
    }

    /// A sentence with what to do when users other than the owner can enter.
    #[must_use]
    pub fn exposed(&self) -> Option<String> {
        self.own.exposed()
    }

    /// The bytes of a small file and the user to whom it belongs; `None` when it is not there.
    ///
    /// # Errors
    /// `InvalidInput` when it has more than `most` bytes, and those of the system.
    pub fn small(&self, name: &str, most: u64) -> Result<Option<(Vec<u8>, u32)>> {
        let wrong = |e| Error::from_io(self.own.at(name), e);
        let file = match self.own.file(name, false) {
            Err(error) if error.kind() == Kind::NotFound => return Ok(None),
            opened => opened?,
        };
        let owner = file.metadata().map_err(wrong)?.uid();
        let mut bytes = Vec::new();
        file.take(most + 1).read_to_end(&mut bytes).map_err(wrong)?;
        if bytes.len() as u64 > most {
            return Err(Error::new(
                Kind::InvalidInput,
                format!("{} has more than {} KiB", self.own.at(name), most >> 10),
            ));
        }
        Ok(Some((bytes, owner)))
    }

    /// Gives a small file these bytes, all or none; durable on return. The name with `.new` behind
    /// it is used on the way.
    ///
    /// # Errors
    /// The errors of the system.
    pub fn replace(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let new = format!("{name}.new");
        match self.own.remove(&new) {
            Err(error) if error.kind() != Kind::NotFound => return Err(error),
            _ => {}
        }
        let wrong = |e| Error::from_io(self.own.at(&new), e);
        let mut file = self.own.create(&new)?;
        file.write_all(bytes).map_err(wrong)?;
        file.sync_all().map_err(wrong)?;
        self.own.rename(&new, name)?;
        self.own.sync()
    }

    /// Takes part in a turn of a file, until what is returned is dropped ([`lock::take_turn`]).
    ///
    /// # Errors
    /// `Busy` when an earlier turn does not end for as long as `patience`, and those of the system.
    pub fn turn(
        &self,
        name: &str,
        turn: impl Fn() -> u64,
        patience: Duration,
    ) -> Result<Box<dyn Lock>> {
        let file = self.own.file(name, false)?;
        lock::take_turn(&file, &self.own.at(name), turn, patience)?;
        Ok(Box::new(FileLock(file)))
    }

    fn wrap(&self, name: &str, file: OsFile) -> Arc<dyn File> {
        self.wrap_with(name, file, None)
    }

    fn wrap_with(&self, name: &str, file: OsFile, past: Option<PastCache>) -> Arc<dyn File> {
        let stands = self.stands.clone();
        Arc::new(DirectoryFile { file, past, name: self.own.at(name), stands })
    }
}

impl Files for Directory {
    fn names(&self) -> Result<Vec<String>> {
        self.own.names()
    }

    fn create(&self, name: &str) -> Result<Arc<dyn File>> {
        still(self.stands.as_ref())?;
        self.own.create(name).map(|file| self.wrap(name, file))
    }

    fn open(&self, name: &str) -> Result<Arc<dyn File>> {
        self.own.file(name, self.writes).map(|file| self.wrap(name, file))
    }

    fn open_large(&self, name: &str) -> Result<Arc<dyn File>> {
        let file = self.own.file(name, self.writes)?;
        let past = PastCache::of(&file).filter(|_| self.writes);
        Ok(self.wrap_with(name, file, past))
    }

    fn remove(&self, name: &str) -> Result<()> {
        still(self.stands.as_ref())?;
        self.own.remove(name)
    }

    fn sync_names(&self) -> Result<()> {
        self.own.sync()?;
        still(self.stands.as_ref())
    }

    fn lock(&self, name: &str, hold: Hold, wait: bool) -> Result<Box<dyn Lock>> {
        let file = self.own.file(name, self.writes)?;
        lock::lock(&file, &self.own.at(name), hold, wait)?;
        Ok(Box::new(FileLock(file)))
    }
}

/// Held as long as its descriptor is open.
#[expect(dead_code, reason = "the descriptor is the lock")]
struct FileLock(OsFile);

impl Lock for FileLock {}

/// Stretches of data of a file that are looked at when the system does not count its blocks.
const STRETCHES_MAX: usize = 10_000;

struct DirectoryFile {
    file: OsFile,
    /// For large writes.
    past: Option<PastCache>,
    name: String,
    stands: Option<Stands>,
}

/// Errors when the owner of what is written stands no more.
fn still(stands: Option<&Stands>) -> Result<()> {
    stands.map_or(Ok(()), |stands| stands())
}

impl DirectoryFile {
    fn wrong(&self, error: impl Into<std::io::Error>) -> Error {
        Error::from_io(&self.name, error.into())
    }
}

/// A sync on a thread of its own. `sync_file_range` would begin the writing without a thread, but
/// makes nothing durable: neither where the bytes are nor the disk's cache. The system has no other
/// way than `fdatasync`, which waits; rings of io_uring give it to a thread, too.
enum SyncThread {
    Runs(JoinHandle<Result<()>>),
    /// No thread could be made.
    Over(Result<()>),
}

impl PendingSync for SyncThread {
    fn is_over(&self) -> bool {
        match self {
            SyncThread::Runs(thread) => thread.is_finished(),
            SyncThread::Over(_) => true,
        }
    }

    fn wait(self: Box<Self>) -> Result<()> {
        match *self {
            SyncThread::Runs(thread) => {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            }
            SyncThread::Over(done) => done,
        }
    }
}

impl File for DirectoryFile {
    fn bytes(&self) -> Result<u64> {
        self.file.metadata().map(|metadata| metadata.len()).map_err(|e| self.wrong(e))
    }

    fn occupied(&self) -> Result<u64> {
        // Space that was reserved lies behind the end.
        let metadata = self.file.metadata().map_err(|e| self.wrong(e))?;
        if metadata.blocks() > 0 {
            return Ok(metadata.len().min(metadata.blocks() * 512));
        }
        // All of it is holes, or the file system does not count.
        let (mut data, mut at) = (0, 0);
        for _ in 0..STRETCHES_MAX {
            let Some((start, stop)) = next_data(&self.file, at, metadata.len())? else { break };
            (data, at) = (data + (stop - start), stop);
        }
        Ok(data)
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> Result<usize> {
        let mut done = 0;
        while done < into.len() {
            match self.file.read_at(&mut into[done..], at + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(self.wrong(e)),
            }
        }
        Ok(done)
    }

    fn read_from_medium(&self, at: u64, into: &mut [u8]) -> Result<usize> {
        // Parts of pages would stay. Where nothing is dropped, memory answers.
        let _ = fadvise(&self.file, 0, None, Advice::DontNeed);
        self.read_at(at, into)
    }

    fn write_at(&self, at: u64, data: &[u8]) -> Result<()> {
        still(self.stands.as_ref())?;
        self.file.write_all_at(data, at).map_err(|e| self.wrong(e))
    }

    fn write_parts(&self, at: u64, parts: &[&[u8]]) -> Result<()> {
        if let Some(past) = &self.past {
            still(self.stands.as_ref())?;
            if past.write(at, parts).map_err(|e| self.wrong(e))? {
                return Ok(());
            }
        }
        still(self.stands.as_ref())?;
        write_vectored(&self.file, at, parts).map_err(|e| self.wrong(e))
    }

    fn sync(&self) -> Result<()> {
        self.file.sync_data().map_err(|e| self.wrong(e))?;
        still(self.stands.as_ref())
    }

    fn begin_sync(self: Arc<Self>) -> Box<dyn PendingSync> {
        let file = self.clone();
        let thread = std::thread::Builder::new().name("sync".into()).spawn(move || file.sync());
        Box::new(thread.map_or_else(|_| SyncThread::Over(self.sync()), SyncThread::Runs))
    }

    fn set_bytes(&self, bytes: u64) -> Result<()> {
        still(self.stands.as_ref())?;
        self.file.set_len(bytes).map_err(|e| self.wrong(e))
    }

    fn reserve(&self, at: u64, bytes: u64) -> Result<()> {
        still(self.stands.as_ref())?;
        match rustix::fs::fallocate(&self.file, FallocateFlags::KEEP_SIZE, at, bytes) {
            // If no space can be reserved, the write itself fails.
            Ok(()) | Err(Errno::OPNOTSUPP) => Ok(()),
            Err(errno) => Err(self.wrong(errno)),
        }
    }

    fn punch(&self, at: u64, bytes: u64) -> Result<()> {
        still(self.stands.as_ref())?;
        match rustix::fs::fallocate(
            &self.file,
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            at,
            bytes,
        ) {
            Ok(()) | Err(Errno::OPNOTSUPP) => Ok(()),
            Err(errno) => Err(self.wrong(errno)),
        }
    }
}

/// Slices that one call takes.
const SLICES_MAX: usize = 1024;

fn write_vectored(file: &OsFile, mut at: u64, parts: &[&[u8]]) -> std::io::Result<()> {
    for some in parts.chunks(SLICES_MAX) {
        let mut slices: Vec<IoSlice<'_>> = some.iter().map(|part| IoSlice::new(part)).collect();
        let mut rest = &mut slices[..];
        // Drops empty slices, of which nothing is written.
        IoSlice::advance_slices(&mut rest, 0);
        while !rest.is_empty() {
            match rustix::io::pwritev(file, rest, at) {
                Ok(0) => return Err(std::io::ErrorKind::WriteZero.into()),
                Ok(n) => {
                    at += n as u64;
                    IoSlice::advance_slices(&mut rest, n);
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_contract_of_files_holds() {
        let path = std::env::temp_dir().join(format!("onefold-directory-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        onefold_testbed::contract::files::hold(&Directory::create(&path).unwrap());
        assert!(Directory::create(&path).is_ok());
        fs::write(path.join("x"), "").unwrap();
        assert_eq!(Directory::create(&path).err().map(|e| e.kind()), Some(Kind::Exists));
        fs::remove_dir_all(&path).unwrap();
    }

    /// A file system in memory has nothing to go past.
    #[test]
    fn the_contract_of_files_holds_in_memory() {
        let path = format!("/dev/shm/onefold-directory-{}", std::process::id());
        if let Ok(directory) = Directory::create(Path::new(&path)) {
            onefold_testbed::contract::files::hold(&directory);
            fs::remove_dir_all(&path).unwrap();
        }
    }
}
