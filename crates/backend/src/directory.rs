//! [`Directory`]: the files of an archive's node in one directory of the file system.
//!
//! *Crash argument:* as the trait says and no more: a file's bytes are durable after `fdatasync` of it, its name after `fsync` of the directory.

use std::{
    fs::{self, File as OsFile, OpenOptions},
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use onefold_core::{Error, File, Files, Hold, Kind, Lock, Result};
use rustix::{
    fs::{FallocateFlags, FlockOperation},
    io::Errno,
};

/// A directory whose files are an archive's.
pub struct Directory {
    path: PathBuf,
    /// The directory itself, to sync its names.
    own: OsFile,
    writes: bool,
}

impl Directory {
    /// Opens a directory that is there; for reading only when `writes` is not set.
    ///
    /// # Errors
    /// `NotFound`, and those of the system.
    pub fn open(path: &Path, writes: bool) -> Result<Directory> {
        let own = OsFile::open(path).map_err(|e| Error::from_io(path.display(), e))?;
        let metadata = own.metadata().map_err(|e| Error::from_io(path.display(), e))?;
        if !metadata.is_dir() {
            return Err(Error::new(Kind::InvalidInput, format!("{} is no directory", path.display())));
        }
        Ok(Directory { path: path.to_owned(), own, writes })
    }

    /// Makes the directory, or takes an empty one; its name in the parent is durable on return.
    ///
    /// # Errors
    /// `Exists` when something is in it, and those of the system.
    pub fn create(path: &Path) -> Result<Directory> {
        match fs::create_dir(path) {
            Ok(()) => {}
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists && path.is_dir() => {}
            Err(e) => return Err(Error::from_io(path.display(), e)),
        }
        let directory = Directory::open(path, true)?;
        if !directory.names()?.is_empty() {
            return Err(Error::new(Kind::Exists, format!("{} is not empty", path.display())));
        }
        let whole = std::path::absolute(path).map_err(|e| Error::from_io(path.display(), e))?;
        if let Some(parent) = whole.parent() {
            let parent = OsFile::open(parent).map_err(|e| Error::from_io(parent.display(), e))?;
            parent.sync_all().map_err(|e| Error::from_io("the directory's name can't be made durable", e))?;
        }
        Ok(directory)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    fn wrap(&self, name: &str, file: OsFile) -> Arc<dyn File> {
        Arc::new(DirectoryFile { file, name: self.at(name).display().to_string() })
    }
}

impl Files for Directory {
    fn names(&self) -> Result<Vec<String>> {
        let wrong = |e| Error::from_io(self.path.display(), e);
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(wrong)? {
            if let Ok(name) = entry.map_err(wrong)?.file_name().into_string() {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    fn create(&self, name: &str) -> Result<Arc<dyn File>> {
        let made = OpenOptions::new().read(true).write(true).create_new(true).open(self.at(name));
        made.map(|file| self.wrap(name, file)).map_err(|e| Error::from_io(self.at(name).display(), e))
    }

    fn open(&self, name: &str) -> Result<Arc<dyn File>> {
        let file = OpenOptions::new().read(true).write(self.writes).open(self.at(name));
        file.map(|file| self.wrap(name, file)).map_err(|e| Error::from_io(self.at(name).display(), e))
    }

    fn remove(&self, name: &str) -> Result<()> {
        fs::remove_file(self.at(name)).map_err(|e| Error::from_io(self.at(name).display(), e))
    }

    fn sync_names(&self) -> Result<()> {
        self.own.sync_all().map_err(|e| Error::from_io(self.path.display(), e))
    }

    fn lock(&self, name: &str, hold: Hold, wait: bool) -> Result<Box<dyn Lock>> {
        let file = OsFile::open(self.at(name)).map_err(|e| Error::from_io(self.at(name).display(), e))?;
        let operation = match (hold, wait) {
            (Hold::Shared, true) => FlockOperation::LockShared,
            (Hold::Shared, false) => FlockOperation::NonBlockingLockShared,
            (Hold::Alone, true) => FlockOperation::LockExclusive,
            (Hold::Alone, false) => FlockOperation::NonBlockingLockExclusive,
        };
        loop {
            match rustix::fs::flock(&file, operation) {
                Ok(()) => return Ok(Box::new(FileLock(file))),
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) => return Err(Error::new(Kind::Busy, format!("{} is locked", self.at(name).display()))),
                Err(errno) => return Err(Error::from_io(self.at(name).display(), errno.into())),
            }
        }
    }
}

/// Held as long as its descriptor is open.
#[expect(dead_code, reason = "the descriptor is the lock")]
struct FileLock(OsFile);

impl Lock for FileLock {}

struct DirectoryFile {
    file: OsFile,
    name: String,
}

impl DirectoryFile {
    fn wrong(&self, error: impl Into<std::io::Error>) -> Error {
        Error::from_io(&self.name, error.into())
    }
}

impl File for DirectoryFile {
    fn bytes(&self) -> Result<u64> {
        self.file.metadata().map(|metadata| metadata.len()).map_err(|e| self.wrong(e))
    }

    fn occupied(&self) -> Result<u64> {
        // Space that was taken ahead lies behind the end.
        self.file.metadata().map(|metadata| metadata.len().min(metadata.blocks() * 512)).map_err(|e| self.wrong(e))
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

    fn write_at(&self, at: u64, data: &[u8]) -> Result<()> {
        self.file.write_all_at(data, at).map_err(|e| self.wrong(e))
    }

    fn sync(&self) -> Result<()> {
        self.file.sync_data().map_err(|e| self.wrong(e))
    }

    fn set_bytes(&self, bytes: u64) -> Result<()> {
        self.file.set_len(bytes).map_err(|e| self.wrong(e))
    }

    fn reserve(&self, at: u64, bytes: u64) -> Result<()> {
        match rustix::fs::fallocate(&self.file, FallocateFlags::KEEP_SIZE, at, bytes) {
            // Where nothing can be taken ahead, the write finds out.
            Ok(()) | Err(Errno::OPNOTSUPP) => Ok(()),
            Err(errno) => Err(self.wrong(errno)),
        }
    }

    fn punch(&self, at: u64, bytes: u64) -> Result<()> {
        match rustix::fs::fallocate(&self.file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, at, bytes) {
            Ok(()) | Err(Errno::OPNOTSUPP) => Ok(()),
            Err(errno) => Err(self.wrong(errno)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_made_read_punched_locked_and_removed() {
        let path = std::env::temp_dir().join(format!("onefold-directory-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        let files = Directory::create(&path).unwrap();
        let file = files.create("a").unwrap();
        assert_eq!(files.create("a").err().map(|e| e.kind()), Some(Kind::Exists));
        file.reserve(0, 1 << 20).unwrap();
        assert_eq!(file.bytes().unwrap(), 0);
        file.write_at(10, &[7; 100_000]).unwrap();
        file.sync().unwrap();
        files.sync_names().unwrap();
        let mut into = [1; 20];
        assert_eq!(file.read_at(100_000, &mut into).unwrap(), 10);
        assert_eq!(into[..10], [7; 10]);
        file.punch(4096, 8192).unwrap();
        assert_eq!(file.read_at(5000, &mut into).unwrap(), 20);
        assert_eq!(into, [0; 20]);
        let shared = files.lock("a", Hold::Shared, false).unwrap();
        let _other = files.lock("a", Hold::Shared, false).unwrap();
        assert_eq!(files.lock("a", Hold::Alone, false).err().map(|e| e.kind()), Some(Kind::Busy));
        drop(shared);
        assert_eq!(files.names().unwrap(), ["a"]);
        files.remove("a").unwrap();
        assert_eq!(files.open("a").err().map(|e| e.kind()), Some(Kind::NotFound));
        assert!(Directory::create(&path).is_ok());
        fs::write(path.join("x"), "").unwrap();
        assert_eq!(Directory::create(&path).err().map(|e| e.kind()), Some(Kind::Exists));
        fs::remove_dir_all(&path).unwrap();
    }
}
