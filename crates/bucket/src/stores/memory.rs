//! Objects in memory, for tests and simulations.

use std::{collections::BTreeMap, ops::Bound, time::SystemTime};

use onefold_core::{Error, Kind, Result};
use parking_lot::Mutex;

use crate::objects::{Body, Created, Listed, Objects};

/// Objects of one page of a listing.
const PAGE: usize = 100;

/// Objects in memory, by the system's clock or by one that is set.
#[derive(Default)]
pub struct MemoryObjects {
    objects: Mutex<BTreeMap<String, (Vec<u8>, u64)>>,
    clock: Mutex<Option<u64>>,
}

impl MemoryObjects {
    /// Sets the store's clock: seconds since 1970.
    pub fn set_clock(&self, seconds: u64) {
        *self.clock.lock() = Some(seconds);
    }

    /// All names, sorted.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.objects.lock().keys().cloned().collect()
    }

    /// The bytes of an object.
    #[must_use]
    pub fn bytes(&self, name: &str) -> Option<Vec<u8>> {
        self.objects.lock().get(name).map(|(bytes, _)| bytes.clone())
    }

    fn now(&self) -> u64 {
        let system = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        self.clock.lock().unwrap_or_else(|| system().map_or(0, |time| time.as_secs()))
    }
}

impl Objects for MemoryObjects {
    fn get(&self, name: &str, at: u64, bytes: u64) -> Result<Body> {
        let objects = self.objects.lock();
        let found = objects.get(name);
        let (whole, modified) =
            found.ok_or_else(|| Error::new(Kind::NotFound, format!("no {name}")))?;
        let total = whole.len() as u64;
        let range = at.min(total) as usize..at.saturating_add(bytes).min(total) as usize;
        Ok(Body { bytes: whole[range].to_vec(), total, modified: *modified })
    }

    fn create(&self, name: &str, bytes: &[u8]) -> Created {
        let now = self.now();
        let mut objects = self.objects.lock();
        if objects.contains_key(name) {
            return Created::Exists;
        }
        objects.insert(name.to_owned(), (bytes.to_vec(), now));
        Created::New
    }

    fn replace(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let now = self.now();
        self.objects.lock().insert(name.to_owned(), (bytes.to_vec(), now));
        Ok(())
    }

    fn delete(&self, name: &str) -> Result<()> {
        self.objects.lock().remove(name);
        Ok(())
    }

    fn list(&self, folder: &str, after: &str) -> Result<Vec<Listed>> {
        let objects = self.objects.lock();
        let from = folder.max(after).to_owned();
        let some = objects.range((Bound::Excluded(from), Bound::Unbounded));
        let some = some.take_while(|(name, _)| name.starts_with(folder)).take(PAGE);
        let listed = |(name, (bytes, _)): (&String, &(Vec<u8>, u64))| Listed {
            name: name.clone(),
            bytes: bytes.len() as u64,
        };
        Ok(some.map(listed).collect())
    }
}
