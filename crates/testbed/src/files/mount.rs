//! A node's directory among the virtual files, which can be lost and come back.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use onefold_core::{Error, File, Files, Hold, Kind, Lock, PendingSync, Result};

use super::VirtualFiles;

/// The files whose names begin with a prefix, as a directory of its own.
#[derive(Clone)]
pub struct Mount {
    files: VirtualFiles,
    prefix: String,
    gone: Arc<AtomicBool>,
}

impl Mount {
    /// The directory of this name, which is there.
    #[must_use]
    pub fn new(files: &VirtualFiles, name: &str) -> Mount {
        Mount { files: files.clone(), prefix: format!("{name}/"), gone: Arc::default() }
    }

    /// The beginning of its files' names.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Lets the node go, or come back with what it had.
    pub fn set_gone(&self, gone: bool) {
        self.gone.store(gone, Relaxed);
    }

    /// True when nothing of it can be reached.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.gone.load(Relaxed)
    }

    fn there(&self) -> Result<()> {
        if self.is_gone() { Err(Error::new(Kind::Io, "the node is gone")) } else { Ok(()) }
    }

    fn at(&self, name: &str) -> Result<String> {
        self.there().map(|()| format!("{}{name}", self.prefix))
    }

    fn wrap(&self, file: Arc<dyn File>) -> Arc<dyn File> {
        Arc::new(Mounted { mount: self.clone(), file })
    }
}

impl Files for Mount {
    fn names(&self) -> Result<Vec<String>> {
        self.there()?;
        Ok(self
            .files
            .names()?
            .into_iter()
            .filter_map(|name| Some(name.strip_prefix(&self.prefix)?.to_owned()))
            .collect())
    }

    fn create(&self, name: &str) -> Result<Arc<dyn File>> {
        self.files.create(&self.at(name)?).map(|file| self.wrap(file))
    }

    fn open(&self, name: &str) -> Result<Arc<dyn File>> {
        self.files.open(&self.at(name)?).map(|file| self.wrap(file))
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.files.remove(&self.at(name)?)
    }

    fn sync_names(&self) -> Result<()> {
        self.there()?;
        self.files.sync_names_of(&self.prefix)
    }

    fn lock(&self, name: &str, hold: Hold, wait: bool) -> Result<Box<dyn Lock>> {
        // As with a descriptor: without the file there is nothing to lock.
        self.files.open(&self.at(name)?)?;
        self.files.lock(&self.at(name)?, hold, wait)
    }
}

struct Mounted {
    mount: Mount,
    file: Arc<dyn File>,
}

struct MountedSync {
    mount: Mount,
    pending: Box<dyn PendingSync>,
}

impl PendingSync for MountedSync {
    fn is_over(&self) -> bool {
        self.mount.is_gone() || self.pending.is_over()
    }

    fn wait(self: Box<Self>) -> Result<()> {
        self.mount.there().and_then(|()| self.pending.wait())
    }
}

impl File for Mounted {
    fn bytes(&self) -> Result<u64> {
        self.mount.there().and_then(|()| self.file.bytes())
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> Result<usize> {
        self.mount.there().and_then(|()| self.file.read_at(at, into))
    }

    fn read_from_medium(&self, at: u64, into: &mut [u8]) -> Result<usize> {
        self.mount.there().and_then(|()| self.file.read_from_medium(at, into))
    }

    fn write_at(&self, at: u64, data: &[u8]) -> Result<()> {
        self.mount.there().and_then(|()| self.file.write_at(at, data))
    }

    fn sync(&self) -> Result<()> {
        self.mount.there().and_then(|()| self.file.sync())
    }

    fn begin_sync(self: Arc<Self>) -> Box<dyn PendingSync> {
        let (mount, pending) = (self.mount.clone(), self.file.clone().begin_sync());
        Box::new(MountedSync { mount, pending })
    }

    fn set_bytes(&self, bytes: u64) -> Result<()> {
        self.mount.there().and_then(|()| self.file.set_bytes(bytes))
    }

    fn reserve(&self, at: u64, bytes: u64) -> Result<()> {
        self.mount.there().and_then(|()| self.file.reserve(at, bytes))
    }

    fn punch(&self, at: u64, bytes: u64) -> Result<()> {
        self.mount.there().and_then(|()| self.file.punch(at, bytes))
    }
}
