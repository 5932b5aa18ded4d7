//! The files of an archive in memory.

use std::{collections::BTreeMap, sync::Arc};

use onefold_core::{Error, File, Files, Hold, Kind, Lock, Result};
use parking_lot::Mutex;

/// Longest file: a place that is far away on a disk takes no space before it, and here it would.
const BYTES_MAX: u64 = 16 << 20;

type Content = Arc<Mutex<Vec<u8>>>;

/// Files by their names. Nobody else has them, so every lock is free.
#[derive(Default)]
pub(super) struct MemoryFiles(Mutex<BTreeMap<String, Content>>);

impl MemoryFiles {
    pub(super) fn of(all: &BTreeMap<String, Vec<u8>>) -> MemoryFiles {
        MemoryFiles(Mutex::new(
            all.iter()
                .map(|(name, bytes)| (name.clone(), Arc::new(Mutex::new(bytes.clone()))))
                .collect(),
        ))
    }

    /// The content of each file.
    pub(super) fn all(&self) -> BTreeMap<String, Vec<u8>> {
        self.0.lock().iter().map(|(name, content)| (name.clone(), content.lock().clone())).collect()
    }

    pub(super) fn change(&self, name: &str, does: impl FnOnce(&mut Vec<u8>)) {
        if let Some(content) = self.0.lock().get(name) {
            does(&mut content.lock());
        }
    }
}

struct Free;

impl Lock for Free {}

fn no_file(name: &str) -> Error {
    Error::new(Kind::NotFound, format!("no file {name}"))
}

impl Files for MemoryFiles {
    fn names(&self) -> Result<Vec<String>> {
        Ok(self.0.lock().keys().cloned().collect())
    }

    fn create(&self, name: &str) -> Result<Arc<dyn File>> {
        let mut files = self.0.lock();
        if files.contains_key(name) {
            return Err(Error::new(Kind::Exists, format!("{name} is there")));
        }
        let content = Content::default();
        files.insert(name.to_owned(), content.clone());
        Ok(Arc::new(MemoryFile(content)))
    }

    fn open(&self, name: &str) -> Result<Arc<dyn File>> {
        let content = self.0.lock().get(name).cloned().ok_or_else(|| no_file(name))?;
        Ok(Arc::new(MemoryFile(content)))
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.0.lock().remove(name).map(|_| ()).ok_or_else(|| no_file(name))
    }

    fn sync_names(&self) -> Result<()> {
        Ok(())
    }

    fn lock(&self, name: &str, _: Hold, _: bool) -> Result<Box<dyn Lock>> {
        if self.0.lock().contains_key(name) { Ok(Box::new(Free)) } else { Err(no_file(name)) }
    }
}

struct MemoryFile(Content);

impl File for MemoryFile {
    fn bytes(&self) -> Result<u64> {
        Ok(self.0.lock().len() as u64)
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> Result<usize> {
        let bytes = self.0.lock();
        let from = usize::try_from(at).ok().and_then(|at| bytes.get(at..)).unwrap_or_default();
        let n = from.len().min(into.len());
        into[..n].copy_from_slice(&from[..n]);
        Ok(n)
    }

    fn write_at(&self, at: u64, data: &[u8]) -> Result<()> {
        let end = at.saturating_add(data.len() as u64);
        if end > BYTES_MAX {
            return Err(Error::new(Kind::NoSpace, "the file is full"));
        }
        let mut bytes = self.0.lock();
        let length = bytes.len().max(end as usize);
        bytes.resize(length, 0);
        bytes[at as usize..end as usize].copy_from_slice(data);
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn set_bytes(&self, bytes: u64) -> Result<()> {
        if bytes > BYTES_MAX {
            return Err(Error::new(Kind::NoSpace, "the file is full"));
        }
        self.0.lock().resize(bytes as usize, 0);
        Ok(())
    }

    fn reserve(&self, _: u64, _: u64) -> Result<()> {
        Ok(())
    }

    fn punch(&self, at: u64, bytes: u64) -> Result<()> {
        let mut all = self.0.lock();
        let place = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(all.len());
        let (from, to) = (place(at), place(at.saturating_add(bytes)));
        all[from..to].fill(0);
        Ok(())
    }
}
