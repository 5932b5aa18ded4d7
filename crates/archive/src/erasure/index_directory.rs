//! The chunk index in another directory than the data, on a faster disk.
//!
//! Files of the index are made in the *index directory*, and looked for beside the data first and then
//! there. All else is as without it: a record names a file of the index when the file and its name are
//! durable, wherever the file is.
//!
//! The index can be made anew from the data, so the index directory may fail. Its first error is told.
//! From then on this process makes new files beside the data, and merges none that are there, since a
//! merge would lose the entries that it can't read. Whoever was writing there hears that there is no
//! space, for which an import is put off.
//!
//! *Invariant:* no error of the index directory becomes an error of who reads or changes the archive.
//!
//! *Invariant:* nothing but the index is ever written there. Usage counts stay with the data: they are
//! believed without a look at it, so that old ones, which a disk that was away brings back, would free
//! what is in use.

use std::sync::Arc;

use onefold_core::{Error, File, Files, Hold, Kind, Lock, Result};
use parking_lot::Mutex;

use super::redundancy::Redundancy;
use crate::{format::names::is_index, rules::Rule, settings::Settings};

/// Hears of the first failure.
type Tell = dyn Fn(&Error) + Send + Sync;

/// A directory for the files of the chunk index. Clones share what they know of its failure.
#[derive(Clone)]
pub struct IndexDirectory {
    files: Arc<dyn Files>,
    creates: bool,
    failing: Arc<Failing>,
}

struct Failing {
    first: Mutex<Option<Error>>,
    tell: Box<Tell>,
}

impl Failing {
    /// Notes a failure; the first one is told.
    fn note(&self, error: &Error) {
        let mut first = self.first.lock();
        if first.is_none() {
            *first = Some(error.clone());
            drop(first);
            (self.tell)(error);
        }
    }

    /// Notes a failure, and gives what a writer hears: it tries again later, and elsewhere.
    fn no_space(&self, error: &Error) -> Error {
        self.note(error);
        Error::new(Kind::NoSpace, format!("the index directory failed: {error}"))
    }

    fn first(&self) -> Option<Error> {
        self.first.lock().clone()
    }
}

impl IndexDirectory {
    /// A directory that belongs to one archive. `tell` hears once that it failed, from any thread.
    pub fn new(
        files: Arc<dyn Files>,
        tell: impl Fn(&Error) + Send + Sync + 'static,
    ) -> IndexDirectory {
        let failing = Failing { first: Mutex::new(None), tell: Box::new(tell) };
        IndexDirectory { files, creates: true, failing: Arc::new(failing) }
    }

    /// The same for reading and removing: new files are made elsewhere.
    #[must_use]
    pub fn without_new_files(self) -> IndexDirectory {
        IndexDirectory { creates: false, ..self }
    }

    /// Its first failure in this process.
    #[must_use]
    pub fn failure(&self) -> Option<Error> {
        self.failing.first()
    }

    fn wrap(&self, file: Arc<dyn File>) -> Arc<dyn File> {
        Arc::new(IndexFile { file, directory: self.clone() })
    }

    /// Makes an empty file, in place of one that a crash left.
    fn create(&self, name: &str) -> Result<Arc<dyn File>> {
        let made = match self.files.create(name) {
            Err(error) if error.kind() == Kind::Exists => {
                self.files.remove(name).and_then(|()| self.files.create(name))
            }
            made => made,
        };
        made.map(|file| self.wrap(file))
    }
}

/// The files of an archive, those of its index in another directory.
pub(crate) struct WithIndex {
    pub(crate) files: Arc<dyn Redundancy>,
    pub(crate) index: IndexDirectory,
    pub(crate) settings: Settings,
}

impl Files for WithIndex {
    fn names(&self) -> Result<Vec<String>> {
        let mut names = self.files.names()?;
        match self.index.files.names() {
            Ok(there) => names.extend(there.into_iter().filter(|name| is_index(name))),
            Err(error) => self.index.failing.note(&error),
        }
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }

    fn create(&self, name: &str) -> Result<Arc<dyn File>> {
        let elsewhere = is_index(name) && self.index.creates && self.index.failure().is_none();
        if !elsewhere {
            return self.files.create(name);
        }
        match self.index.create(name) {
            Err(error) if !self.settings.keeps(Rule::IndexFailuresCostSpeed) => Err(error),
            Err(error) => {
                self.index.failing.note(&error);
                self.files.create(name)
            }
            made => made,
        }
    }

    fn open(&self, name: &str) -> Result<Arc<dyn File>> {
        match self.files.open(name) {
            Err(error) if error.kind() == Kind::NotFound && is_index(name) => {}
            opened => return opened,
        }
        let not_there = || Error::new(Kind::NotFound, format!("{name} is not there"));
        match self.index.files.open(name) {
            Ok(file) => Ok(self.index.wrap(file)),
            Err(error) if error.kind() == Kind::NotFound => Err(not_there()),
            Err(error) => {
                self.index.failing.note(&error);
                Err(not_there())
            }
        }
    }

    fn open_large(&self, name: &str) -> Result<Arc<dyn File>> {
        if is_index(name) { self.open(name) } else { self.files.open_large(name) }
    }

    fn remove(&self, name: &str) -> Result<()> {
        let beside = self.files.remove(name);
        if !is_index(name) {
            return beside;
        }
        if beside.as_ref().is_err_and(|error| error.kind() != Kind::NotFound) {
            return beside;
        }
        match self.index.files.remove(name) {
            Ok(()) => Ok(()),
            Err(error) => {
                if error.kind() != Kind::NotFound {
                    self.index.failing.note(&error);
                }
                beside
            }
        }
    }

    /// Those of the index directory are made durable with the files.
    fn sync_names(&self) -> Result<()> {
        self.files.sync_names()
    }

    fn lock(&self, name: &str, hold: Hold, wait: bool) -> Result<Box<dyn Lock>> {
        self.files.lock(name, hold, wait)
    }
}

impl Redundancy for WithIndex {
    fn create_wide(&self, name: &str, data: u8) -> Result<Arc<dyn File>> {
        self.files.create_wide(name, data)
    }

    fn spread(&self) -> [u8; 3] {
        self.files.spread()
    }

    fn is_whole(&self, name: &str) -> Result<bool> {
        self.files.is_whole(name)
    }

    fn begin(&self, alone: bool) -> Result<()> {
        self.files.begin(alone)
    }

    fn confirm(&self) -> Result<()> {
        self.files.confirm()
    }

    fn keeps(&self, name: &str, at: u64, bytes: &[u8]) -> Result<bool> {
        self.files.keeps(name, at, bytes)
    }

    fn reads_back(&self, log: &dyn File, name: &str, at: u64, bytes: &[u8]) -> Result<bool> {
        self.files.reads_back(log, name, at, bytes)
    }

    fn another_copy(&self) -> bool {
        self.files.another_copy()
    }

    fn leave_damaged_copy(&self) -> bool {
        self.files.leave_damaged_copy()
    }

    fn index_failure(&self) -> Option<Error> {
        self.index.failure().or_else(|| self.files.index_failure())
    }

    fn is_beside(&self, name: &str) -> bool {
        self.files.open(name).is_ok() && self.files.is_beside(name)
    }
}

/// A file in the index directory.
struct IndexFile {
    file: Arc<dyn File>,
    directory: IndexDirectory,
}

impl IndexFile {
    fn written(&self, done: Result<()>) -> Result<()> {
        done.map_err(|error| self.directory.failing.no_space(&error))
    }

    /// A file whose length can't be found out counts as lost.
    fn found<T>(&self, found: Result<T>) -> Result<T> {
        found.map_err(|error| {
            self.directory.failing.note(&error);
            Error::new(Kind::NotFound, error.to_string())
        })
    }
}

impl File for IndexFile {
    fn bytes(&self) -> Result<u64> {
        self.found(self.file.bytes())
    }

    fn occupied(&self) -> Result<u64> {
        self.found(self.file.occupied())
    }

    /// Every failure is one of the disk: readers take such pages for damaged ones.
    fn read_at(&self, at: u64, into: &mut [u8]) -> Result<usize> {
        self.file.read_at(at, into).map_err(|error| {
            self.directory.failing.note(&error);
            Error::new(Kind::Io, error.to_string())
        })
    }

    fn write_at(&self, at: u64, data: &[u8]) -> Result<()> {
        self.written(self.file.write_at(at, data))
    }

    /// Makes its name durable too: names beside the data are on another file system.
    fn sync(&self) -> Result<()> {
        let synced = self.file.sync();
        self.written(synced.and_then(|()| self.directory.files.sync_names()))
    }

    fn set_bytes(&self, bytes: u64) -> Result<()> {
        self.written(self.file.set_bytes(bytes))
    }

    fn reserve(&self, at: u64, bytes: u64) -> Result<()> {
        self.written(self.file.reserve(at, bytes))
    }

    fn punch(&self, at: u64, bytes: u64) -> Result<()> {
        self.written(self.file.punch(at, bytes))
    }
}
