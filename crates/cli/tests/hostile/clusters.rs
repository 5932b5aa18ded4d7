//! Cluster folders that are damaged in places: verbs do and tell what they can. Rule 9.

use std::{sync::Arc, time::Duration};

use onefold_backend::EmbeddedStore;
use onefold_cluster::{Mode, Session, Settings, Volume, Watermarks, Worker, format::ObjectId};
use onefold_core::object::{Change, ObjectName, ObjectStore, Pool, Read, ReadPart, Write};

use crate::support::{Desk, Said, noise, overwrite};

use super::readers::bounded;

const CHUNK: usize = 32 << 10;

/// A desk with the folder `a`, whose volumes `v` and `w` have two chunks each, of which `change` may
/// damage what it likes; then some blocks of all chunks are written again, and are to be deduplicated.
fn damaged(change: impl Fn(&dyn ObjectStore)) -> Desk {
    let desk = Desk::new();
    desk.ok("create cluster a");
    let store = EmbeddedStore::open(&desk.path("a")).unwrap();
    let settings = Settings { cold: Duration::ZERO, ..Settings::default() };
    let session = Arc::new(Session::open(Arc::new(store.session()), settings).unwrap());
    let write = |name: &str, data: &[u8], at: &[usize]| {
        let volume = Volume::attach(&session, name, Mode::Own).unwrap();
        at.iter().for_each(|at| volume.write_at((at * CHUNK) as u64, data).unwrap());
        volume.detach().unwrap();
    };
    let all = noise(1, 4 * CHUNK);
    for (name, half) in [("v", &all[..2 * CHUNK]), ("w", &all[2 * CHUNK..])] {
        session.create_volume(name, 64 << 20).unwrap();
        write(name, half, &[0]);
    }
    let mut worker = Worker::new(session.clone(), Watermarks::NONE);
    while session.backlog().unwrap() > 0 {
        worker.step().unwrap();
    }
    worker.release();
    write("v", &noise(2, 4096), &[0, 1]);
    write("w", &noise(3, 4096), &[0, 1]);
    change(&store.session());
    desk
}

fn set(store: &dyn ObjectStore, object: ObjectName, change: Change) {
    store.write(&[Write { object, guards: Vec::new(), changes: vec![change] }]).remove(0).unwrap();
}

/// The only metadata object of the first volume.
fn first_object(store: &dyn ObjectStore) -> ObjectId {
    let names = store.list(Pool::Metadata, None, 10_000).unwrap().names;
    names.iter().filter_map(|name| ObjectId::parse(name)).min().unwrap()
}

/// Damages the map of the first volume's object.
fn damage_map(store: &dyn ObjectStore) {
    let nonsense = Change::SetOmap(vec![(vec![1; 3], b"nonsense".to_vec())]);
    set(store, first_object(store).name(), nonsense);
}

/// Damages one chunk.
fn damage_chunk(store: &dyn ObjectStore) {
    let chunk = store.list(Pool::Chunks, None, 1).unwrap().names.remove(0);
    set(store, ObjectName::chunk(chunk), Change::Full(vec![7; 5000]));
}

fn said(desk: &Desk, arguments: &str) -> Said {
    let output = bounded(desk, arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Said { status: output.status, out: text(output.stdout), err: text(output.stderr) }
}

/// The worker tried the object of the damaged chunk for ever.
#[test]
fn rule_09_a_worker_leaves_what_needs_a_damaged_chunk_names_it_and_ends() {
    let desk = damaged(damage_chunk);
    let first = said(&desk, "worker a --once --cold 0");
    assert_eq!(first.status.code(), Some(3), "{first:?}");
    assert!(first.out.contains("deduplicated 3 chunks"), "{first:?}");
    let named = ["problem: object ", " of volume '", "chunk c.0.", " is damaged"];
    assert!(named.iter().all(|part| first.out.contains(part)), "{first:?}");
    assert!(first.err.contains("1 object can't be deduplicated"), "{first:?}");
    let again = said(&desk, "worker a --once --cold 0 --json");
    assert_eq!(again.status.code(), Some(3), "{again:?}");
    let told: serde_json::Value = serde_json::from_str(&again.out).unwrap();
    assert_eq!((&told["deduplicated_chunks"], &told["left_objects"]), (&0.into(), &1.into()));
}

/// The first damaged map ended the worker before it came to the others.
#[test]
fn rule_09_a_worker_leaves_an_object_whose_map_is_damaged() {
    let desk = damaged(damage_map);
    let first = said(&desk, "worker a --once --cold 0");
    assert_eq!(first.status.code(), Some(3), "{first:?}");
    assert!(first.out.contains("deduplicated 2 chunks"), "{first:?}");
    assert!(first.out.contains(" of volume 'v': "), "{first:?}");
}

/// One damaged map ended the status of a whole store.
#[test]
fn rule_09_a_status_tells_what_it_can_and_names_what_is_damaged() {
    let desk = damaged(damage_map);
    let words = said(&desk, "status a");
    assert_eq!(words.status.code(), Some(3), "{words:?}");
    assert!(words.out.contains("volumes     2, 128 MiB together"), "{words:?}");
    assert!(words.out.contains("problem: object ") && words.out.contains(" of volume 'v': "));
    assert_eq!(words.err.lines().count(), 1, "{words:?}");
    let json = said(&desk, "status a --json");
    assert_eq!(json.status.code(), Some(3), "{json:?}");
    let told: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(told["problems"].as_array().unwrap().len(), 1);
    assert_eq!((&told["objects"], &told["chunks"]), (&1.into(), &4.into()));
    assert_eq!(told["logical_bytes"], 2 * CHUNK);
}

/// Damages a key of the catalogue, in the object in which it is; gives what a person is to be told.
fn damage_key(store: &dyn ObjectStore, key: &[u8], value: &[u8]) -> [String; 2] {
    let shards = (0..256).map(|shard| ObjectName::metadata(format!("n.{shard:02x}")));
    let has_key = |shard: &ObjectName| {
        let parts = vec![ReadPart::Keys(vec![key.to_vec()])];
        let answers = store.read(&[Read { object: shard.clone(), parts }]);
        answers[0].as_ref().is_ok_and(|answer| !answer.pairs(0).0.is_empty())
    };
    let shard = shards.into_iter().find(has_key).unwrap();
    let told = [format!("metadata object {}", shard.name), key.escape_ascii().to_string()];
    set(store, shard, Change::SetOmap(vec![(key.to_vec(), value.to_vec())]));
    told
}

/// Blocks that no worker has moved yet were not read.
#[test]
fn rule_09_a_scrub_reads_the_blocks_that_stand_in_metadata_objects() {
    let desk = Desk::new();
    desk.ok("create cluster a");
    let content = noise(4, 5 << 20);
    std::fs::write(desk.path("file"), &content).unwrap();
    desk.ok("put a s file");
    desk.ok("scrub a");
    let data = std::fs::read(desk.path("a/data")).unwrap();
    let block = &content[(3 << 20) + 4096..][..4096];
    let at = data.chunks(4096).position(|there| there == block).unwrap() * 4096;
    overwrite(&desk.path("a/data"), at as u64 + 7, &[!data[at + 7]]);
    let scrub = said(&desk, "scrub a");
    assert_eq!(scrub.status.code(), Some(1), "{scrub:?}");
    let named = ["object ", " of stream 's': ", "is damaged"];
    assert!(named.iter().all(|part| scrub.out.contains(part)), "{scrub:?}");
    assert!(said(&desk, "check a").status.success(), "a check reads no data");
    assert!(!said(&desk, "get a s").status.success());
}

/// A person who is told that "the catalogue" is damaged can't mend it.
#[test]
fn damage_of_the_catalogue_is_told_with_its_object_and_key() {
    for value in [&b"nonsense"[..], b"", &[0xff; 40]] {
        let told = std::cell::RefCell::new([String::new(), String::new()]);
        let desk = damaged(|store| *told.borrow_mut() = damage_key(store, b"nv", value));
        for verb in ["ls a", "volume list a", "check a"] {
            let said = said(&desk, verb);
            assert_eq!(said.status.code(), Some(1), "{verb}: {said:?}");
            for part in &*told.borrow() {
                assert!(said.err.contains(part) || said.out.contains(part), "{verb}: {said:?}");
            }
            assert!(said.err.lines().count() <= 1, "{verb}: {said:?}");
        }
    }
}
