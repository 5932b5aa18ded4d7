//! Every store keeps the contract of object stores.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

mod support;

use std::sync::Arc;

use onefold_bucket::{Created, DirectoryObjects, MemoryObjects, Objects, probe};
use onefold_core::{Kind, Result};
use support::{contract, quick};

#[test]
fn memory_keeps_the_contract() {
    let store: Arc<dyn Objects> = Arc::new(MemoryObjects::default());
    contract::hold(&store);
}

#[test]
fn a_directory_keeps_the_contract() {
    let dir = tempfile::tempdir().unwrap();
    let store: Arc<dyn Objects> = Arc::new(DirectoryObjects::open(dir.path(), [1; 16]).unwrap());
    contract::hold(&store);
    let other = DirectoryObjects::open(&dir.path().join("none"), [1; 16]);
    assert_eq!(other.err().unwrap().kind(), Kind::NotFound);
}

/// A store that ignores the condition of creations.
struct Careless(MemoryObjects);

impl Objects for Careless {
    fn get(&self, name: &str, at: u64, bytes: u64) -> Result<onefold_bucket::Body> {
        self.0.get(name, at, bytes)
    }
    fn create(&self, name: &str, bytes: &[u8]) -> Created {
        self.0.replace(name, bytes).unwrap();
        Created::New
    }
    fn replace(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.0.replace(name, bytes)
    }
    fn delete(&self, name: &str) -> Result<()> {
        self.0.delete(name)
    }
    fn list(&self, folder: &str, after: &str) -> Result<Vec<onefold_bucket::Listed>> {
        self.0.list(folder, after)
    }
}

#[test]
fn a_store_that_ignores_the_condition_is_refused() {
    let store: Arc<dyn Objects> = Arc::new(Careless(MemoryObjects::default()));
    let error = probe(&store, &*quick(1)).unwrap_err();
    assert_eq!(error.kind(), Kind::Unsupported);
    assert!(error.to_string().contains("lets 9 of 9 writers create one object"), "{error}");
}
