//! Files elsewhere that are written only while their owner stands, and files that could not be reached.

use std::sync::Arc;

use onefold_backend::Stands;
use onefold_core::{Error, File, Files, Hold, Lock, PendingSync, Result};

/// Files that change only while their owner stands. A sync that ends when the owner stands no more counts as
/// failed, as in a directory of this host.
pub(super) struct Standing {
    pub(super) files: Arc<dyn Files>,
    pub(super) stands: Stands,
}

impl Standing {
    fn wrap(&self, file: Arc<dyn File>) -> Arc<dyn File> {
        Arc::new(StandingFile { file, stands: self.stands.clone() })
    }
}

impl Files for Standing {
    fn names(&self) -> Result<Vec<String>> {
        self.files.names()
    }

    fn create(&self, name: &str) -> Result<Arc<dyn File>> {
        (self.stands)()?;
        self.files.create(name).map(|file| self.wrap(file))
    }

    fn open(&self, name: &str) -> Result<Arc<dyn File>> {
        self.files.open(name).map(|file| self.wrap(file))
    }

    fn open_large(&self, name: &str) -> Result<Arc<dyn File>> {
        self.files.open_large(name).map(|file| self.wrap(file))
    }

    fn remove(&self, name: &str) -> Result<()> {
        (self.stands)()?;
        self.files.remove(name)
    }

    fn sync_names(&self) -> Result<()> {
        self.files.sync_names()?;
        (self.stands)()
    }

    fn lock(&self, name: &str, hold: Hold, wait: bool) -> Result<Box<dyn Lock>> {
        self.files.lock(name, hold, wait)
    }
}

struct StandingFile {
    file: Arc<dyn File>,
    stands: Stands,
}

impl File for StandingFile {
    fn bytes(&self) -> Result<u64> {
        self.file.bytes()
    }

    fn occupied(&self) -> Result<u64> {
        self.file.occupied()
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> Result<usize> {
        self.file.read_at(at, into)
    }

    fn read_from_medium(&self, at: u64, into: &mut [u8]) -> Result<usize> {
        self.file.read_from_medium(at, into)
    }

    fn write_at(&self, at: u64, data: &[u8]) -> Result<()> {
        (self.stands)()?;
        self.file.write_at(at, data)
    }

    fn write_parts(&self, at: u64, parts: &[&[u8]]) -> Result<()> {
        (self.stands)()?;
        self.file.write_parts(at, parts)
    }

    fn keeps(&self, at: u64, bytes: &[u8]) -> Result<bool> {
        self.file.keeps(at, bytes)
    }

    fn sync(&self) -> Result<()> {
        self.file.sync()?;
        (self.stands)()
    }

    fn begin_sync(self: Arc<Self>) -> Box<dyn PendingSync> {
        let begun = self.file.clone().begin_sync();
        Box::new(StandingSync { begun, stands: self.stands.clone() })
    }

    fn set_bytes(&self, bytes: u64) -> Result<()> {
        (self.stands)()?;
        self.file.set_bytes(bytes)
    }

    fn reserve(&self, at: u64, bytes: u64) -> Result<()> {
        (self.stands)()?;
        self.file.reserve(at, bytes)
    }

    fn punch(&self, at: u64, bytes: u64) -> Result<()> {
        (self.stands)()?;
        self.file.punch(at, bytes)
    }
}

struct StandingSync {
    begun: Box<dyn PendingSync>,
    stands: Stands,
}

impl PendingSync for StandingSync {
    fn is_over(&self) -> bool {
        self.begun.is_over()
    }

    fn wait(self: Box<Self>) -> Result<()> {
        self.begun.wait()?;
        (self.stands)()
    }
}

/// A directory that could not be reached: all that is asked of it fails for that reason.
pub(super) struct Unreached(pub(super) Error);

impl Files for Unreached {
    fn names(&self) -> Result<Vec<String>> {
        Err(self.0.clone())
    }

    fn create(&self, _: &str) -> Result<Arc<dyn File>> {
        Err(self.0.clone())
    }

    fn open(&self, _: &str) -> Result<Arc<dyn File>> {
        Err(self.0.clone())
    }

    fn remove(&self, _: &str) -> Result<()> {
        Err(self.0.clone())
    }

    fn sync_names(&self) -> Result<()> {
        Err(self.0.clone())
    }

    fn lock(&self, _: &str, _: Hold, _: bool) -> Result<Box<dyn Lock>> {
        Err(self.0.clone())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    use onefold_backend::Directory;
    use onefold_core::Kind;

    use super::*;

    #[test]
    fn whoever_stands_no_more_changes_nothing_and_still_reads() {
        let dir = tempfile::tempdir().unwrap();
        let files = Arc::new(Directory::create(&dir.path().join("a")).unwrap());
        let is_over = Arc::new(AtomicBool::new(false));
        let of_stands = is_over.clone();
        let stands: Stands = Arc::new(move || match of_stands.load(Relaxed) {
            true => Err(Error::new(Kind::Stopped, "another one took over")),
            false => Ok(()),
        });
        let standing = Standing { files: files.clone(), stands };
        let file = standing.create("label").unwrap();
        file.write_at(0, b"before").unwrap();
        file.sync().unwrap();
        let begun = standing.open("label").unwrap().begin_sync();
        is_over.store(true, Relaxed);
        assert!(begun.wait().is_err());
        let stopped = [
            file.write_at(0, b"behind"),
            file.write_parts(0, &[b"be", b"hind"]),
            file.set_bytes(1),
            file.reserve(0, 1),
            file.punch(0, 1),
            file.sync(),
            standing.create("keys").map(drop),
            standing.remove("label"),
            standing.sync_names(),
        ];
        for done in stopped {
            assert_eq!(done.unwrap_err().kind(), Kind::Stopped);
        }
        let mut found = [0; 6];
        file.read_at(0, &mut found).unwrap();
        assert_eq!((&found, standing.names().unwrap()), (b"before", vec!["label".to_owned()]));
    }
}
