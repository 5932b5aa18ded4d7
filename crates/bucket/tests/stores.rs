//! Every store keeps the contract of object stores.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

mod support;

use std::sync::Arc;

use onefold_bucket::{Created, DirectoryObjects, MemoryObjects, Objects, probe};
use onefold_core::{Files, Kind, Result};
use support::{contract, quick};

fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

#[test]
fn memory_keeps_the_contract() {
    let store: Arc<dyn Objects> = Arc::new(MemoryObjects::default());
    contract::hold(&store);
}

#[test]
fn a_directory_keeps_the_contract() {
    let dir = tempfile::tempdir().unwrap();
    let store: Arc<dyn Objects> =
        Arc::new(DirectoryObjects::open(dir.path(), [1; 16], own_user()).unwrap());
    contract::hold(&store);
    let other = DirectoryObjects::open(&dir.path().join("none"), [1; 16], own_user());
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

/// A store that tells the first eight that the object is there, and then creates it.
struct Belated(MemoryObjects, std::sync::atomic::AtomicUsize);

impl Objects for Belated {
    fn get(&self, name: &str, at: u64, bytes: u64) -> Result<onefold_bucket::Body> {
        self.0.get(name, at, bytes)
    }
    fn create(&self, name: &str, bytes: &[u8]) -> Created {
        match self.1.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
            0..8 => Created::Exists,
            _ => self.0.create(name, bytes),
        }
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
fn a_store_that_refuses_what_it_creates_afterwards_is_refused() {
    let store: Arc<dyn Objects> = Arc::new(Belated(MemoryObjects::default(), 0.into()));
    let error = probe(&store, &*quick(1)).unwrap_err();
    assert_eq!(error.kind(), Kind::Unsupported);
    assert!(error.to_string().contains("tells 8 writers that an object is there"), "{error}");
}

#[test]
fn what_is_no_file_is_no_object_and_holds_nobody_up() {
    let dir = tempfile::tempdir().unwrap();
    let store = DirectoryObjects::open(dir.path(), [1; 16], own_user()).unwrap();
    assert!(matches!(store.create("data/a", b"a"), Created::New));
    let pipe = dir.path().join("data/b");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    // Opening it would wait for who writes to it.
    let error = store.get("data/b", 0, 10).unwrap_err();
    assert!(error.to_string().contains("is no file"), "{error}");
    assert!(matches!(store.create("data/b", b"b"), Created::Exists));
    let names: Vec<_> = store.list("data/", "data/").unwrap().into_iter().map(|o| o.name).collect();
    assert_eq!(names, ["data/a"]);
}

#[test]
fn what_killed_creations_left_in_a_directory_goes_after_a_day() {
    let dir = tempfile::tempdir().unwrap();
    let store = DirectoryObjects::open(dir.path(), [1; 16], own_user()).unwrap();
    assert!(matches!(store.create("data/a", b"a"), Created::New));
    let unfinished = dir.path().join("unfinished");
    let left = unfinished.join("000102030405060708090a0b0c0d0e0f-1");
    let fresh = unfinished.join("000102030405060708090a0b0c0d0e0f-2");
    let foreign =
        ["left", "000102030405060708090a0b0c0d0e0f", "000102030405060708090a0b0c0d0e0f-01"];
    let foreign = foreign.map(|name| unfinished.join(name));
    for path in [&left, &fresh].into_iter().chain(&foreign) {
        std::fs::write(path, b"half of").unwrap();
    }
    let day = std::time::Duration::from_secs(25 * 3600);
    for path in [&left].into_iter().chain(&foreign) {
        let file = std::fs::File::options().write(true).open(path).unwrap();
        file.set_modified(std::time::SystemTime::now() - day).unwrap();
    }
    assert_eq!(store.sweep().unwrap(), 1);
    assert!(!left.exists() && fresh.exists(), "another process may be writing it");
    assert!(foreign.iter().all(|path| path.exists()), "these are somebody else's");
    assert_eq!(std::fs::read_dir(unfinished).unwrap().count(), 4);
}

#[test]
fn what_killed_creations_of_keys_left_in_a_directory_goes_with_the_next_change_of_keys() {
    let dir = tempfile::tempdir().unwrap();
    let opened = DirectoryObjects::open(dir.path(), [1; 16], own_user()).unwrap();
    let objects: Arc<dyn Objects> = Arc::new(opened);
    let changed = |seed: u64, bytes: &[u8]| {
        let bucket = support::writer(&objects, seed).unwrap();
        let files = bucket.files();
        let keys = files.open("keys").or_else(|_| files.create("keys")).unwrap();
        keys.write_at(0, bytes).unwrap();
        keys.sync().unwrap();
        bucket.leave().unwrap();
    };
    changed(1, b"the first area");
    // One was killed before it linked the file to its name, another one between that and the end.
    let unfinished = dir.path().join("unfinished");
    let chance = "000102030405060708090a0b0c0d0e0f";
    let unlinked = unfinished.join(format!("{chance}-7-keys-0000000000000002-00000001"));
    std::fs::write(&unlinked, b"an area with the slot").unwrap();
    let (object, linked) = {
        let object = std::fs::read_dir(dir.path().join("keys")).unwrap().next().unwrap().unwrap();
        let name = object.file_name().into_string().unwrap();
        (object.path(), unfinished.join(format!("{chance}-8-keys-{name}")))
    };
    std::fs::hard_link(&object, &linked).unwrap();
    let others = [format!("{chance}-9"), format!("{chance}-9-keys-notes"), "keys".into()];
    let others = others.map(|name| unfinished.join(name));
    for path in &others {
        std::fs::write(path, b"somebody else's").unwrap();
    }
    // A writer of later than who looks is at work.
    let later = unfinished.join(format!("{chance}-9-keys-00000000000000ff-00000001"));
    std::fs::write(&later, b"not yet").unwrap();
    changed(2, b"the second area");
    assert!(!object.exists() && !linked.exists() && !unlinked.exists());
    assert!(later.exists() && others.iter().all(|path| path.exists()));
}

#[test]
fn rule_02_no_link_in_the_place_of_a_folder_leads_elsewhere() {
    for folder in ["data", "log", "writer", "keys", "unfinished"] {
        let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let names = || std::fs::read_dir(other.path()).unwrap().count();
        let orphan = "0000000000000001-00000001";
        std::fs::write(other.path().join(orphan), b"somebody's").unwrap();
        std::os::unix::fs::symlink(other.path(), dir.path().join(folder)).unwrap();
        let store = DirectoryObjects::open(dir.path(), [1; 16], own_user()).unwrap();
        let name = format!("{folder}/{orphan}");
        assert!(store.get(&name, 0, 10).is_err(), "{folder}");
        assert!(store.list(&format!("{folder}/"), "").is_err(), "{folder}");
        assert!(store.delete(&name).is_err(), "{folder}");
        assert!(store.replace(&format!("{folder}/x"), b"ours").is_err(), "{folder}");
        assert!(!matches!(store.create(&format!("{folder}/y"), b"ours"), Created::New), "{folder}");
        let _ = (store.sweep(), store.drop_unfinished(&|_| true));
        assert_eq!(names(), 1, "{folder}");
        for name in ["", "..", "../x", "data/../../x", "data/", "/x", "data/x/y"] {
            assert!(store.get(name, 0, 1).is_err() && store.delete(name).is_err(), "{name}");
        }
    }
}

#[test]
fn rule_03_a_directory_of_another_user_is_looked_at_and_not_changed() {
    let dir = tempfile::tempdir().unwrap();
    let own = DirectoryObjects::open(dir.path(), [1; 16], own_user()).unwrap();
    assert!(matches!(own.create("data/a", b"a"), Created::New));
    let store = DirectoryObjects::open(dir.path(), [2; 16], own_user() + 1).unwrap();
    assert_eq!(store.get("data/a", 0, 10).unwrap().bytes, b"a");
    assert_eq!(store.list("data/", "").unwrap().len(), 1);
    let refused = |error: onefold_core::Error| {
        assert_eq!(error.kind(), Kind::Denied);
        assert!(error.to_string().contains("only that user changes it"), "{error}");
    };
    refused(store.delete("data/a").unwrap_err());
    refused(store.replace("writer/a", b"b").unwrap_err());
    let Created::Unknown(error) = store.create("data/b", b"b") else { panic!("it is made") };
    refused(error);
    refused(store.sweep().unwrap_err());
    refused(store.drop_unfinished(&|_| true).unwrap_err());
    assert_eq!(std::fs::read_dir(dir.path().join("data")).unwrap().count(), 1);
}
