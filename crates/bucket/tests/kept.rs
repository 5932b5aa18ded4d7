//! What a host keeps of packs and tables: its next process asks for less, and believes nothing that changed.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

mod support;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use onefold_bucket::{Body, Bucket, Created, Keep, Listed, MemoryObjects, Objects, Settings};
use onefold_core::{Files, Result};
use parking_lot::Mutex;
use support::{noise, quick, settings, writer};

/// A store that counts what is read of it.
struct Counted(Arc<MemoryObjects>, AtomicUsize);

impl Objects for Counted {
    fn get(&self, name: &str, at: u64, bytes: u64) -> Result<Body> {
        self.1.fetch_add(1, Relaxed);
        self.0.get(name, at, bytes)
    }
    fn create(&self, name: &str, bytes: &[u8]) -> Created {
        self.0.create(name, bytes)
    }
    fn replace(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.0.replace(name, bytes)
    }
    fn delete(&self, name: &str) -> Result<()> {
        self.0.delete(name)
    }
    fn list(&self, folder: &str, after: &str) -> Result<Vec<Listed>> {
        self.0.list(folder, after)
    }
}

/// What a host keeps.
#[derive(Default)]
struct Disk(Mutex<BTreeMap<String, Vec<u8>>>);

impl Keep for Disk {
    fn load(&self, name: &str) -> Option<Vec<u8>> {
        self.0.lock().get(name).cloned()
    }
    fn store(&self, name: &str, bytes: &[u8]) {
        self.0.lock().insert(name.to_owned(), bytes.to_vec());
    }
}

const FILES: [(&str, usize); 4] =
    [("index-1", 3 << 20), ("log", 20_000), ("segment-1", 3 << 20), ("keys", 100)];

struct World {
    counted: Arc<Counted>,
    disk: Arc<Disk>,
}

impl World {
    fn new() -> World {
        let memory = Arc::new(MemoryObjects::default());
        let objects: Arc<dyn Objects> = memory.clone();
        let bucket = writer(&objects, 1).unwrap();
        for (n, (name, bytes)) in (0..).zip(FILES) {
            bucket.files().create(name).unwrap().write_at(0, &noise(n, bytes)).unwrap();
            // Each in a frame of its own.
            bucket.files().sync_names().unwrap();
        }
        bucket.leave().unwrap();
        // So many frames that there is a table.
        for seed in 2..20 {
            writer(&objects, seed).unwrap().leave().unwrap();
        }
        assert!(memory.names().iter().any(|name| name.starts_with("table/")));
        World { counted: Arc::new(Counted(memory, AtomicUsize::new(0))), disk: Arc::default() }
    }

    /// Reads all files; returns how often the store was asked.
    fn read(&self) -> usize {
        let keep: Arc<dyn Keep> = self.disk.clone();
        let settings = Settings { keep: Some(keep), ..settings("reader") };
        let before = self.counted.1.load(Relaxed);
        let bucket = Bucket::look(self.counted.clone(), quick(77), settings).unwrap();
        for (n, (name, bytes)) in (0..).zip(FILES) {
            let file = bucket.files().open(name).unwrap();
            let mut into = vec![0; bytes];
            assert_eq!(file.read_at(0, &mut into).unwrap(), bytes);
            assert!(into == noise(n, bytes), "{name} is as it was stored");
        }
        self.counted.1.load(Relaxed) - before
    }
}

#[test]
fn rule_43_a_second_process_asks_for_frames_keys_and_data_alone() {
    let world = World::new();
    let (first, second) = (world.read(), world.read());
    // The index, the pack in a frame, and the table.
    assert!(second + 3 <= first, "{first} requests, then {second}");
    let kept: usize = world.disk.0.lock().values().map(Vec::len).sum();
    assert!(((3 << 20)..(4 << 20)).contains(&kept), "{kept} bytes: no data of containers");
    let keys = noise(3, 100);
    let has_keys = |bytes: &Vec<u8>| bytes.windows(100).any(|part| part == keys);
    assert!(!world.disk.0.lock().values().any(has_keys), "keys are kept nowhere");
}

#[test]
fn rule_43_what_changed_on_the_disk_or_is_another_part_is_not_believed() {
    let world = World::new();
    world.read();
    let (kept, names) = {
        let kept = world.disk.0.lock();
        (kept.clone(), kept.keys().cloned().collect::<Vec<_>>())
    };
    for at in [0, 31, 32, 60] {
        world.disk.0.lock().values_mut().for_each(|bytes| bytes[at] ^= 1);
        world.read();
        *world.disk.0.lock() = kept.clone();
    }
    world.disk.0.lock().values_mut().for_each(|bytes| bytes.truncate(bytes.len() - 1));
    world.read();
    world.disk.0.lock().values_mut().for_each(|bytes| bytes.truncate(7));
    world.read();
    // Whole, but under the name of another part.
    *world.disk.0.lock() = (0..)
        .zip(&names)
        .map(|(n, name)| (name.clone(), kept[&names[(n + 1) % names.len()]].clone()))
        .collect();
    world.read();
}

#[test]
fn a_process_that_changes_what_it_looked_at_reads_the_log_once() {
    let world = World::new();
    let store: Arc<dyn Objects> = world.counted.clone();
    let asked = || world.counted.1.load(Relaxed);
    let looked = Bucket::look(store.clone(), quick(77), settings("reader")).unwrap();
    let before = asked();
    let joined = Bucket::join_after(&looked, Settings { ..settings("reader") }).unwrap();
    let after = asked() - before;
    joined.leave().unwrap();
    let before = asked();
    Bucket::join(store, quick(78), settings("reader")).unwrap().leave().unwrap();
    assert!(after < asked() - before, "{after} requests");
}
