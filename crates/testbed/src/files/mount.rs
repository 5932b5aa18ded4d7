//! A directory among the virtual files on a disk of its own, which can be lost and come back, be full or
//! take no writes.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use onefold_core::{Error, File, Files, Hold, Kind, Lock, PendingSync, Result};

use super::{Node, VirtualFiles};

/// The files whose names begin with a prefix, as a directory of its own.
#[derive(Clone)]
pub struct Mount {
    files: VirtualFiles,
    prefix: String,
    gone: Arc<AtomicBool>,
    full: Arc<AtomicBool>,
    read_only: Arc<AtomicBool>,
}

/// The files that a directory had at some time.
#[derive(Clone, Default)]
pub struct MountCopy(BTreeMap<String, Node>);

impl Mount {
    /// The directory of this name, which is there.
    #[must_use]
    pub fn new(files: &VirtualFiles, name: &str) -> Mount {
        Mount::with_prefix(files, format!("{name}/"))
    }

    /// All that these files have.
    #[must_use]
    pub fn of_all(files: &VirtualFiles) -> Mount {
        Mount::with_prefix(files, String::new())
    }

    fn with_prefix(files: &VirtualFiles, prefix: String) -> Mount {
        Mount {
            files: files.clone(),
            prefix,
            gone: Arc::default(),
            full: Arc::default(),
            read_only: Arc::default(),
        }
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

    /// Lets the disk take nothing more, or have room again.
    pub fn set_full(&self, full: bool) {
        self.full.store(full, Relaxed);
    }

    /// Lets the disk refuse changes, or take them again.
    pub fn set_read_only(&self, read_only: bool) {
        self.read_only.store(read_only, Relaxed);
    }

    /// A copy of its files as memory has them.
    #[must_use]
    pub fn copy(&self) -> MountCopy {
        let state = self.files.0.lock();
        let own = state.names.iter().filter(|(name, _)| name.starts_with(&*self.prefix));
        let node = |(name, id): (&String, &u64)| {
            let mut node = state.nodes.get(id)?.clone();
            node.make_durable(u64::MAX);
            Some((name.clone(), node))
        };
        MountCopy(own.filter_map(node).collect())
    }

    /// The directory has these files and no others, all of them durable; with an empty copy it is a
    /// new directory.
    pub fn put_back(&self, copy: &MountCopy) {
        let state = &mut *self.files.0.lock();
        let is_own = |name: &str| name.starts_with(&*self.prefix);
        let all = state.names.iter().chain(&state.durable_names);
        let gone: Vec<u64> = all.filter(|(name, _)| is_own(name)).map(|(_, &id)| id).collect();
        gone.iter().for_each(|id| drop(state.nodes.remove(id)));
        state.names.retain(|name, _| !is_own(name));
        state.durable_names.retain(|name, _| !is_own(name));
        state.unsynced_names.retain(|(name, _)| !is_own(name));
        for (name, node) in &copy.0 {
            let id = state.next;
            state.next += 1;
            state.nodes.insert(id, node.clone());
            state.names.insert(name.clone(), id);
            state.durable_names.insert(name.clone(), id);
        }
    }

    fn there(&self) -> Result<()> {
        if self.is_gone() { Err(Error::new(Kind::Io, "the node is gone")) } else { Ok(()) }
    }

    /// Errors where nothing can be changed.
    fn changes(&self) -> Result<()> {
        self.there()?;
        if self.read_only.load(Relaxed) {
            return Err(Error::new(Kind::Denied, "the disk takes no writes"));
        }
        Ok(())
    }

    /// Errors where nothing can be added.
    fn grows(&self) -> Result<()> {
        self.changes()?;
        if self.full.load(Relaxed) {
            return Err(Error::new(Kind::NoSpace, "the disk of the directory is full"));
        }
        Ok(())
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
        self.grows()?;
        self.files.create(&self.at(name)?).map(|file| self.wrap(file))
    }

    fn open(&self, name: &str) -> Result<Arc<dyn File>> {
        self.files.open(&self.at(name)?).map(|file| self.wrap(file))
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.changes()?;
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
        self.mount.grows().and_then(|()| self.file.write_at(at, data))
    }

    fn sync(&self) -> Result<()> {
        self.mount.there().and_then(|()| self.file.sync())
    }

    fn begin_sync(self: Arc<Self>) -> Box<dyn PendingSync> {
        let (mount, pending) = (self.mount.clone(), self.file.clone().begin_sync());
        Box::new(MountedSync { mount, pending })
    }

    fn set_bytes(&self, bytes: u64) -> Result<()> {
        self.mount.changes().and_then(|()| self.file.set_bytes(bytes))
    }

    fn reserve(&self, at: u64, bytes: u64) -> Result<()> {
        self.mount.grows().and_then(|()| self.file.reserve(at, bytes))
    }

    fn punch(&self, at: u64, bytes: u64) -> Result<()> {
        self.mount.changes().and_then(|()| self.file.punch(at, bytes))
    }
}
