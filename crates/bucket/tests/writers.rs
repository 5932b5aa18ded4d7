//! Files in a bucket, one process at a time that writes, and what others see.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

mod support;

use std::{sync::Arc, time::Duration};

use onefold_bucket::{
    Body, Bucket, Created, Difference, Known, Listed, Log, MemoryObjects, Objects, Pace, Settings,
};
use onefold_core::{Error, Files, Kind, Result};
use support::{noise, quick, settings, writer};

fn memory() -> (Arc<MemoryObjects>, Arc<dyn Objects>) {
    let memory = Arc::new(MemoryObjects::default());
    memory.set_clock(1_000_000);
    (memory.clone(), memory)
}

fn look(objects: &Arc<dyn Objects>) -> Bucket {
    Bucket::look(objects.clone(), quick(77), settings("reader")).unwrap()
}

fn content(bucket: &Bucket, name: &str) -> Vec<u8> {
    let file = bucket.files().open(name).unwrap();
    let mut into = vec![0; file.bytes().unwrap() as usize];
    assert_eq!(file.read_at(0, &mut into).unwrap(), into.len());
    into
}

#[test]
fn files_in_a_bucket_keep_the_contract() {
    let (_, objects) = memory();
    let bucket = writer(&objects, 1).unwrap();
    onefold_testbed::contract::files::hold(&bucket.files());
    bucket.leave().unwrap();
    assert_eq!(look(&objects).files().names().unwrap(), Vec::<String>::new());
}

#[test]
fn what_was_synced_is_there_for_others_and_nothing_else_is() {
    let (memory, objects) = memory();
    let first = writer(&objects, 1).unwrap();
    let (short, long) = (noise(1, 1000), noise(2, 40 << 20));
    for (name, bytes) in [("short", &short), ("long", &long)] {
        first.files().create(name).unwrap().write_at(3, bytes).unwrap();
    }
    assert!(look(&objects).files().names().unwrap().is_empty());
    first.files().sync_names().unwrap();
    let reader = look(&objects);
    assert_eq!(content(&reader, "short")[3..], short);
    assert_eq!(content(&reader, "long")[3..], long);
    // What comes later is not seen by who looked before.
    first.files().open("short").unwrap().write_at(0, b"other").unwrap();
    first.leave().unwrap();
    assert_eq!(content(&reader, "short")[3..], short);
    assert_eq!(content(&look(&objects), "short")[..5], *b"other");
    assert!(memory.names().iter().all(|name| !name.starts_with("writer/")));
    let error = reader.files().create("x").err().unwrap();
    assert_eq!(error.kind(), Kind::Denied, "{error}");
}

#[test]
fn one_process_writes_at_a_time_and_who_was_shut_out_changes_nothing() {
    let (_, objects) = memory();
    let first = writer(&objects, 1).unwrap();
    first.files().create("a").unwrap().write_at(0, b"first").unwrap();
    first.files().sync_names().unwrap();
    // While somebody watches, the first one says that it is there.
    let (alive, pace) = (Arc::new(first), quick(2));
    let (again, watched) = (alive.clone(), pace.clone());
    let renewing = std::thread::spawn(move || {
        while watched.now.load(std::sync::atomic::Ordering::Relaxed) < 5000 {
            std::thread::yield_now();
        }
        (0..50).for_each(|_| again.renew().unwrap());
    });
    let never = Settings { patience: Duration::from_secs(1 << 40), ..settings("second") };
    let busy = Bucket::join(objects.clone(), pace, never).err().unwrap();
    renewing.join().unwrap();
    assert_eq!(busy.kind(), Kind::Busy);
    assert!(busy.to_string().contains("writer 1 is changing the archive"), "{busy}");
    // Then it does so no more.
    let second = writer(&objects, 3).unwrap();
    second.files().open("a").unwrap().write_at(0, b"SECOND").unwrap();
    second.files().sync_names().unwrap();
    alive.files().open("a").unwrap().write_at(0, b"late").unwrap();
    let error = alive.files().sync_names().unwrap_err();
    assert_eq!(error.kind(), Kind::Stopped);
    assert!(error.to_string().contains("another process (writer 3)"), "{error}");
    assert_eq!(alive.files().create("b").err().unwrap().kind(), Kind::Stopped);
    second.leave().unwrap();
    assert_eq!(content(&look(&objects), "a"), b"SECOND");
}

/// Time that passes when somebody sleeps, and the first writer at work meanwhile: it renews its lease, and leaves when
/// the time has come.
struct Beside {
    pace: Arc<support::Quick>,
    first: Bucket,
    leaves_at: Option<u64>,
}

impl Pace for Beside {
    fn now(&self) -> Duration {
        self.pace.now()
    }

    fn wall(&self) -> u64 {
        self.pace.wall()
    }

    fn sleep(&self, time: Duration) {
        self.pace.sleep(time);
        match self.leaves_at {
            Some(at) if self.now() >= Duration::from_secs(at) => self.first.leave().unwrap(),
            _ => self.first.renew().unwrap(),
        }
    }

    fn nonce(&self) -> [u8; 16] {
        self.pace.nonce()
    }
}

/// Lets another process join that waits for so many seconds, beside one that is at work, and leaves after some if it
/// does. Also when that ended.
fn waited(leaves_at: Option<u64>, wait: u64) -> (onefold_core::Result<Bucket>, u64) {
    let (_, objects) = memory();
    let first = writer(&objects, 1).unwrap();
    first.files().create("a").unwrap().write_at(0, b"first").unwrap();
    let wait = Duration::from_secs(wait);
    let settings = Settings { wait, patience: Duration::from_secs(1 << 40), ..settings("second") };
    let pace = Arc::new(Beside { pace: quick(2), first, leaves_at });
    let joined = Bucket::join(objects, pace.clone(), settings);
    (joined, pace.now().as_secs())
}

#[test]
fn who_waits_joins_when_the_other_one_has_left_and_not_before() {
    let (joined, after) = waited(Some(100), 3600);
    assert_eq!(content(&joined.unwrap(), "a"), b"first");
    assert!((100..3600).contains(&after), "{after}");
    let (busy, after) = waited(None, 60);
    let busy = busy.err().unwrap();
    assert_eq!(busy.kind(), Kind::Busy);
    assert!(busy.to_string().contains("writer 1 is changing the archive"), "{busy}");
    assert!((60..100).contains(&after), "{after}");
}

#[test]
fn a_process_of_this_machine_that_ended_is_shut_out_at_once() {
    let (_, objects) = memory();
    drop(writer(&objects, 1).unwrap());
    let pace = quick(2);
    let ended = Settings { has_ended: Arc::new(|mark| mark == "writer 1"), ..settings("next") };
    Bucket::join(objects, pace.clone(), ended).unwrap();
    assert_eq!(pace.now.load(std::sync::atomic::Ordering::Relaxed), 0);
}

#[test]
fn tables_spare_the_frames_before_them() {
    let (memory, objects) = memory();
    for n in 0..40 {
        let bucket = writer(&objects, n).unwrap();
        let file = match bucket.files().open("a") {
            Ok(file) => file,
            Err(_) => bucket.files().create("a").unwrap(),
        };
        file.write_at(n * 10, &noise(n, 10)).unwrap();
        bucket.leave().unwrap();
    }
    assert!(memory.names().iter().any(|name| name.starts_with("table/")));
    let found = content(&look(&objects), "a");
    assert_eq!(found, (0..40).flat_map(|n| noise(n, 10)).collect::<Vec<_>>());
    // Who needs no frame before the table does not notice that one is damaged.
    objects.replace("log/00000000000000000003", b"rot").unwrap();
    assert_eq!(content(&look(&objects), "a").len(), 400);
}

#[test]
fn a_long_session_writes_tables_amid_its_work() {
    let (memory, objects) = memory();
    let bucket = writer(&objects, 1).unwrap();
    let file = bucket.files().create("a").unwrap();
    let keys = bucket.files().create("keys").unwrap();
    for n in 0..1100 {
        file.write_at(n % 700, &[n as u8]).unwrap();
        if n % 50 == 0 {
            keys.write_at(0, &[n as u8; 10]).unwrap();
        }
        file.sync().unwrap();
    }
    let tables = memory.names().iter().filter(|name| name.starts_with("table/")).count();
    assert_eq!(tables, 2);
    // Frames before the last table are needed by nobody.
    objects.replace("log/00000000000000000100", b"rot").unwrap();
    let all: Vec<u8> = (0..700).map(|n| if n < 400 { n + 700 } else { n } as u8).collect();
    assert_eq!(content(&look(&objects), "a"), all);
    bucket.leave().unwrap();
    assert_eq!(look(&objects).state().encode(), bucket.state().encode());
}

#[test]
fn a_log_with_too_many_frames_behind_its_table_and_a_folder_with_too_many_names_are_refused() {
    let (_, objects) = memory();
    let bucket = writer(&objects, 1).unwrap();
    for name in ["a", "b", "c", "d"] {
        bucket.files().create(name).unwrap().write_at(0, &noise(1, 1 << 20)).unwrap();
        bucket.files().sync_names().unwrap();
    }
    bucket.leave().unwrap();
    let short = Settings { follow_max: 3, ..settings("reader") };
    let error = Bucket::look(objects.clone(), quick(1), short).err().unwrap();
    assert_eq!(error.kind(), Kind::Corrupt);
    assert!(error.to_string().contains("6 frames since its last table"), "{error}");
    let few = Settings { names_max: 3, ..settings("reader") };
    let error = Bucket::look(objects, quick(1), few).unwrap().differences().unwrap_err();
    assert_eq!(error.kind(), Kind::Unsupported);
    assert!(error.to_string().contains("more than 3 names in data/"), "{error}");
}

#[test]
fn what_is_written_again_goes_into_frames_of_bounded_length() {
    let (memory, objects) = memory();
    let bucket = writer(&objects, 1).unwrap();
    let file = bucket.files().create("a").unwrap();
    // Packs with a range for each of their bytes.
    for n in 0..300_000 {
        file.write_at(2 * n, &[n as u8]).unwrap();
    }
    file.sync().unwrap();
    for pack in 0..3 {
        file.punch(pack * 200_000, 110_000).unwrap();
    }
    assert!(bucket.collect().unwrap().rewritten > 130_000);
    let frames = memory.names().into_iter().filter(|name| name.starts_with("log/"));
    let longest = frames.map(|name| memory.bytes(&name).unwrap().len()).max().unwrap();
    assert!(longest < 3_500_000, "a frame with {longest} bytes");
    bucket.leave().unwrap();
    assert_eq!(content(&look(&objects), "a")[599_998], (299_999_u64 % 256) as u8);
}

#[test]
fn what_nothing_names_goes_when_its_day_is_over_by_the_stores_clock() {
    let (memory, objects) = memory();
    let bucket = writer(&objects, 1).unwrap();
    let file = bucket.files().create("segment").unwrap();
    file.write_at(0, &noise(1, 1 << 20)).unwrap();
    file.write_at(1 << 20, &noise(2, 1 << 20)).unwrap();
    file.sync().unwrap();
    let reader = look(&objects);
    let data = || memory.names().iter().filter(|name| name.starts_with("data/")).count();
    assert_eq!(data(), 2);
    file.punch(0, 1 << 20).unwrap();
    let collected = bucket.collect().unwrap();
    assert_eq!((collected.waiting.0, collected.deleted.0, data()), (1, 0, 2));
    assert_eq!(content(&reader, "segment")[..1 << 20], noise(1, 1 << 20));
    memory.set_clock(1_000_000 + 24 * 3600);
    // The newest frame must be of later for the store's clock to have moved.
    file.write_at(2 << 20, b"x").unwrap();
    let collected = bucket.collect().unwrap();
    assert_eq!((collected.waiting.0, collected.deleted.0, data()), (0, 1, 1));
    bucket.leave().unwrap();
    assert!(look(&objects).differences().unwrap().is_empty());
}

#[test]
fn what_killed_writers_left_goes_and_what_living_ones_write_stays() {
    let (memory, objects) = memory();
    let killed = writer(&objects, 1).unwrap();
    killed.files().create("a").unwrap().write_at(0, &noise(1, 1 << 20)).unwrap();
    while memory.names().iter().all(|name| !name.starts_with("data/")) {
        std::thread::yield_now();
    }
    drop(killed);
    let bucket = writer(&objects, 2).unwrap();
    let file = bucket.files().create("b").unwrap();
    file.write_at(0, &noise(2, 1 << 20)).unwrap();
    let collected = bucket.collect().unwrap();
    assert_eq!(collected.orphans, 1);
    file.write_at(1 << 20, &noise(3, 1 << 20)).unwrap();
    bucket.leave().unwrap();
    let all = [noise(2, 1 << 20), noise(3, 1 << 20)].concat();
    assert_eq!(content(&look(&objects), "b"), all);
    assert_eq!(memory.names().iter().filter(|name| name.starts_with("data/")).count(), 2);
}

#[test]
fn keys_that_were_replaced_are_nowhere() {
    let (memory, objects) = memory();
    let bucket = writer(&objects, 1).unwrap();
    let file = bucket.files().create("keys").unwrap();
    file.write_at(0, b"the wrapped key of a domain").unwrap();
    file.sync().unwrap();
    file.write_at(0, b"nothing of it is there now.").unwrap();
    file.sync().unwrap();
    bucket.leave().unwrap();
    let is_there = |word: &str| {
        let found = |name: &String| {
            let bytes = memory.bytes(name).unwrap();
            bytes.windows(word.len()).any(|part| part == word.as_bytes())
        };
        memory.names().iter().any(found)
    };
    assert!(is_there("nothing of it"));
    assert!(!is_there("wrapped key"), "frames stay for ever, so keys are not in them");
    assert_eq!(content(&look(&objects), "keys"), b"nothing of it is there now.");
}

/// True when an object has this word.
fn is_there(memory: &MemoryObjects, word: &str) -> bool {
    let found = |name: &String| {
        let bytes = memory.bytes(name).unwrap();
        bytes.windows(word.len()).any(|part| part == word.as_bytes())
    };
    memory.names().iter().any(found)
}

#[test]
fn keys_that_a_killed_writer_left_without_a_frame_go_with_the_next_change_of_keys() {
    let (memory, objects) = memory();
    let first = writer(&objects, 1).unwrap();
    let keys = first.files().create("keys").unwrap();
    keys.write_at(0, b"the first area").unwrap();
    first.files().create("a").unwrap().write_at(0, &noise(1, 1000)).unwrap();
    first.leave().unwrap();
    // The packs of the next one get there, and its frame does not.
    let cut: Arc<dyn Objects> = Arc::new(Frameless(objects.clone(), "log/00000000000000000005"));
    let killed = writer(&cut, 2).unwrap();
    killed.files().open("keys").unwrap().write_at(0, b"an area with the slot").unwrap();
    assert!(killed.files().sync_names().is_err());
    drop(killed);
    assert!(is_there(&memory, "with the slot"));
    // Who changes no keys leaves it to others.
    let next = writer(&objects, 3).unwrap();
    next.files().open("a").unwrap().write_at(0, b"x").unwrap();
    next.files().sync_names().unwrap();
    let keys = next.files().open("keys").unwrap();
    keys.write_at(0, b"area without it").unwrap();
    keys.sync().unwrap();
    assert!(!is_there(&memory, "with the slot"), "a removed key can be in it");
    assert!(!is_there(&memory, "first area"));
    assert!(is_there(&memory, "without it"));
    next.leave().unwrap();
    assert_eq!(content(&look(&objects), "keys"), b"area without it");
    assert!(look(&objects).differences().unwrap().is_empty());
}

/// A store that creates no object whose name begins so.
struct Frameless(Arc<dyn Objects>, &'static str);

impl Objects for Frameless {
    fn get(&self, name: &str, at: u64, bytes: u64) -> Result<Body> {
        self.0.get(name, at, bytes)
    }
    fn create(&self, name: &str, bytes: &[u8]) -> Created {
        match name.starts_with(self.1) {
            true => Created::Unknown(Error::new(Kind::Denied, "no")),
            false => self.0.create(name, bytes),
        }
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

#[test]
fn sparse_packs_are_written_again() {
    let (memory, objects) = memory();
    let bucket = writer(&objects, 1).unwrap();
    let file = bucket.files().create("tables").unwrap();
    for page in 0..50 {
        file.write_at(page * 4096, &noise(page, 4096)).unwrap();
    }
    file.sync().unwrap();
    file.punch(4096, 45 * 4096).unwrap();
    let collected = bucket.collect().unwrap();
    assert_eq!(collected.rewritten, 5 * 4096);
    memory.set_clock(1_000_000 + 25 * 3600);
    file.write_at(0, b"x").unwrap();
    bucket.collect().unwrap();
    bucket.leave().unwrap();
    let found = content(&look(&objects), "tables");
    assert_eq!(found[46 * 4096..47 * 4096], noise(46, 4096));
    assert_eq!(found[0], b'x');
    assert!(found[4096..46 * 4096].iter().all(|byte| *byte == 0));
}

#[test]
fn a_log_that_went_back_is_refused() {
    let (memory, objects) = memory();
    let bucket = writer(&objects, 1).unwrap();
    bucket.files().create("a").unwrap();
    bucket.files().sync_names().unwrap();
    let before: Vec<_> =
        memory.names().iter().map(|n| (n.clone(), memory.bytes(n).unwrap())).collect();
    bucket.files().create("b").unwrap();
    bucket.leave().unwrap();
    let known = bucket.known();
    let knowing = |known: Known| Settings { known: Some(known), ..settings("reader") };
    let look = |objects: &Arc<dyn Objects>, known| {
        Bucket::look(objects.clone(), quick(1), knowing(known)).map(|bucket| bucket.known())
    };
    assert_eq!(look(&objects, known).unwrap(), known);
    // Somebody puts an older copy back.
    let older = Arc::new(MemoryObjects::default());
    for (name, bytes) in before {
        assert!(matches!(older.create(&name, &bytes), Created::New));
    }
    let older: Arc<dyn Objects> = older;
    let error = look(&older, known).unwrap_err();
    assert!(error.to_string().contains("went back"), "{error}");
    // And lets it go on otherwise.
    let other = writer(&older, 2).unwrap();
    for name in ["x", "y", "z"] {
        other.files().create(name).unwrap();
        other.files().sync_names().unwrap();
    }
    let error = look(&older, known).unwrap_err();
    assert!(error.to_string().contains("went back"), "{error}");
}

#[test]
fn a_frame_that_was_lost_is_told_and_no_log_begins_in_its_place() {
    let (memory, objects) = memory();
    let bucket = writer(&objects, 1).unwrap();
    for name in ["a", "b", "c"] {
        bucket.files().create(name).unwrap();
        bucket.files().sync_names().unwrap();
    }
    bucket.leave().unwrap();
    objects.delete("log/00000000000000000004").unwrap();
    let error = writer(&objects, 2).err().unwrap();
    assert_eq!(error.kind(), Kind::Corrupt, "{error}");
    assert!(memory.bytes("log/00000000000000000004").is_none());
}

#[test]
fn what_is_on_its_way_is_no_loss() {
    let (_, objects) = memory();
    let bucket = writer(&objects, 1).unwrap();
    for (name, bytes) in [("a", 1000), ("b", 1 << 20), ("keys", 10)] {
        bucket.files().create(name).unwrap().write_at(0, &noise(1, bytes)).unwrap();
        assert_eq!(bucket.differences().unwrap(), []);
    }
}

#[test]
fn what_is_lost_is_told() {
    let (memory, objects) = memory();
    let bucket = writer(&objects, 1).unwrap();
    bucket.files().create("a").unwrap().write_at(0, &noise(1, 1 << 20)).unwrap();
    bucket.leave().unwrap();
    let name = memory.names().iter().find(|name| name.starts_with("data/")).cloned().unwrap();
    objects.replace(&name, &noise(1, 1000)).unwrap();
    let looked = look(&objects);
    assert_eq!(looked.differences().unwrap(), [Difference::Length(name.clone(), 1000, 1 << 20)]);
    let mut into = [0; 10];
    let read = looked.files().open("a").unwrap().read_at(0, &mut into);
    assert_eq!(read.unwrap_err().kind(), Kind::Corrupt);
    objects.delete(&name).unwrap();
    assert_eq!(look(&objects).differences().unwrap(), [Difference::Lost(name)]);
    assert!(look(&objects).files().open("a").unwrap().read_at(0, &mut into).is_err());
}

/// A bucket whose one pack has 50 pages, of which the file needs a few; returns the pack's name and bytes.
fn sparse(memory: &MemoryObjects, objects: &Arc<dyn Objects>) -> (String, Vec<u8>) {
    let bucket = writer(objects, 1).unwrap();
    let file = bucket.files().create("tables").unwrap();
    for page in 0..50 {
        file.write_at(page * 4096, &noise(page, 4096)).unwrap();
    }
    file.sync().unwrap();
    file.punch(4096, 45 * 4096).unwrap();
    bucket.leave().unwrap();
    let name = memory.names().into_iter().find(|name| name.starts_with("data/")).unwrap();
    let bytes = memory.bytes(&name).unwrap();
    (name, bytes)
}

#[test]
fn a_collection_writes_rotten_bytes_nowhere_else() {
    let (memory, objects) = memory();
    let (name, sound) = sparse(&memory, &objects);
    let mut rotten = sound.clone();
    rotten[47 * 4096] ^= 1;
    objects.replace(&name, &rotten).unwrap();
    let bucket = writer(&objects, 2).unwrap();
    let collected = bucket.collect().unwrap();
    assert_eq!((collected.rewritten, collected.damaged), (0, 1));
    bucket.leave().unwrap();
    // The file still names the pack: when somebody has its sound bytes, all is well.
    objects.replace(&name, &sound).unwrap();
    assert_eq!(content(&look(&objects), "tables")[47 * 4096..48 * 4096], noise(47, 4096));
    let bucket = writer(&objects, 3).unwrap();
    assert_eq!(bucket.collect().unwrap().rewritten, 5 * 4096);
    bucket.leave().unwrap();
}

#[test]
fn a_pack_that_is_read_whole_is_verified() {
    let (memory, objects) = memory();
    let bucket = writer(&objects, 1).unwrap();
    bucket.files().create("a").unwrap().write_at(0, &noise(1, 100_000)).unwrap();
    bucket.leave().unwrap();
    let name = memory.names().into_iter().find(|name| name.starts_with("data/")).unwrap();
    let mut rotten = memory.bytes(&name).unwrap();
    rotten[70_000] ^= 1;
    objects.replace(&name, &rotten).unwrap();
    let mut into = [0; 10];
    let read = look(&objects).files().open("a").unwrap().read_at(0, &mut into);
    let error = read.unwrap_err();
    assert_eq!(error.kind(), Kind::Corrupt, "{error}");
    assert!(error.to_string().contains("its hash is another one"), "{error}");
}

#[test]
fn a_removed_file_that_is_open_has_no_bytes_of_a_later_writer() {
    let (_, objects) = memory();
    let first = writer(&objects, 1).unwrap();
    first.files().create("a").unwrap().write_at(0, &noise(1, 1 << 20)).unwrap();
    first.leave().unwrap();
    let second = writer(&objects, 2).unwrap();
    let removed = second.files().open("a").unwrap();
    second.files().remove("a").unwrap();
    second.files().sync_names().unwrap();
    // The pack that is open now has the number that the first writer's pack has.
    second.files().create("b").unwrap().write_at(0, &noise(9, 1000)).unwrap();
    let mut into = [0; 500];
    removed.read_at(0, &mut into).unwrap();
    assert_eq!(into, noise(1, 1 << 20)[..500]);
}

#[test]
fn a_collection_leaves_what_another_host_is_trying() {
    let (memory, objects) = memory();
    let other = "probe/000102030405060708090a0b0c0d0e0f";
    assert!(matches!(objects.create(other, b"x"), Created::New));
    let bucket = writer(&objects, 1).unwrap();
    bucket.collect().unwrap();
    assert!(memory.bytes(other).is_some(), "its host may not be done");
    memory.set_clock(1_000_000 + 25 * 3600);
    bucket.files().create("a").unwrap();
    bucket.collect().unwrap();
    assert!(memory.bytes(other).is_none(), "who was killed does not come again");
}

/// Objects below a prefix of others.
struct Below(Arc<MemoryObjects>, String);

impl Objects for Below {
    fn get(&self, name: &str, at: u64, bytes: u64) -> Result<Body> {
        self.0.get(&format!("{}{name}", self.1), at, bytes)
    }
    fn create(&self, name: &str, bytes: &[u8]) -> Created {
        self.0.create(&format!("{}{name}", self.1), bytes)
    }
    fn replace(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.0.replace(&format!("{}{name}", self.1), bytes)
    }
    fn delete(&self, name: &str) -> Result<()> {
        self.0.delete(&format!("{}{name}", self.1))
    }
    fn list(&self, folder: &str, after: &str) -> Result<Vec<Listed>> {
        let (folder, after) = (format!("{}{folder}", self.1), format!("{}{after}", self.1));
        let own = |one: Listed| Listed { name: one.name[self.1.len()..].into(), ..one };
        Ok(self.0.list(&folder, &after)?.into_iter().map(own).collect())
    }
}

#[test]
fn an_archive_below_a_folder_of_another_one_keeps_all_it_has() {
    for folder in ["probe/", "writer/", "log/", "data/", "table/", "unfinished/", "keys/"] {
        let (memory, above) = memory();
        let below: Arc<dyn Objects> = Arc::new(Below(memory.clone(), folder.into()));
        let first = writer(&above, 1).unwrap();
        let second = writer(&below, 2).unwrap();
        for bucket in [&first, &second] {
            bucket.files().create("a").unwrap().write_at(0, &noise(1, 1 << 20)).unwrap();
            bucket.files().create("keys").unwrap().write_at(0, b"wrapped").unwrap();
            bucket.files().sync_names().unwrap();
        }
        first.leave().unwrap();
        let there = |memory: &MemoryObjects| -> Vec<String> {
            let all = memory.names().into_iter();
            // Both archives have these folders, and only the one below has them twice.
            all.filter(|name| name.starts_with(folder) && name.matches('/').count() == 2).collect()
        };
        let before = there(&memory);
        assert!(before.len() >= 4, "{before:?}");
        memory.set_clock(1_000_000 + 25 * 3600);
        // The names below are no frames, and keep nobody out.
        let third = writer(&above, 3).unwrap();
        third.files().create("b").unwrap();
        third.files().open("keys").unwrap().write_at(0, b"another").unwrap();
        third.files().sync_names().unwrap();
        third.collect().unwrap();
        third.leave().unwrap();
        assert_eq!(there(&memory), before, "{folder}");
        second.leave().unwrap();
        assert_eq!(content(&look(&below), "a"), noise(1, 1 << 20));
        assert!(look(&below).differences().unwrap().is_empty());
    }
}

#[test]
fn what_is_not_the_archives_stays_and_does_no_harm() {
    let (memory, objects) = memory();
    let foreign = [
        "log/00000000000000000099.old",
        "log/0000000000000000099",
        "log/99999999999999999999",
        "log/notes",
        "writer/.keep",
        "writer/0000000000000000",
        "writer/000000000000000",
        "writer/0000000000000001.old",
        "probe/other",
        "probe/000102030405060708090a0b0c0d0e0F",
        "probe/000102030405060708090a0b0c0d0e0f0",
        "data/0000000000000000-0000001",
        "data/a",
        "table/.keep",
        "keys/me.pem",
        "keys/0000000000000001-1",
        "unfinished/thesis.tex",
    ];
    for name in foreign {
        assert!(matches!(objects.create(name, b"somebody else's"), Created::New));
    }
    for n in 1..4 {
        memory.set_clock(1_000_000 + n * 25 * 3600);
        let bucket = writer(&objects, n).unwrap();
        let keys = bucket.files().open("keys").or_else(|_| bucket.files().create("keys")).unwrap();
        keys.write_at(0, format!("area {n}").as_bytes()).unwrap();
        keys.sync().unwrap();
        bucket.collect().unwrap();
        bucket.leave().unwrap();
    }
    for name in foreign {
        assert!(memory.bytes(name).is_some(), "{name}");
    }
    assert!(look(&objects).differences().unwrap().is_empty());
}

/// A store that has each object that somebody asks for.
struct Endless;

impl Objects for Endless {
    fn get(&self, _: &str, _: u64, _: u64) -> Result<Body> {
        Ok(Body { bytes: vec![0], total: 1, modified: 0 })
    }
    fn create(&self, _: &str, _: &[u8]) -> Created {
        Created::Exists
    }
    fn replace(&self, _: &str, _: &[u8]) -> Result<()> {
        Ok(())
    }
    fn delete(&self, _: &str) -> Result<()> {
        Ok(())
    }
    fn list(&self, _: &str, _: &str) -> Result<Vec<Listed>> {
        Ok(Vec::new())
    }
}

#[test]
fn a_log_without_an_end_is_damage() {
    let log = Log::new(Arc::new(Endless), quick(1), settings("reader"));
    for from in [0, u64::MAX - 1, u64::MAX] {
        assert_eq!(log.end(from).unwrap_err().kind(), Kind::Corrupt);
    }
}

/// A store that nobody reaches.
struct Dead;

impl Objects for Dead {
    fn get(&self, _: &str, _: u64, _: u64) -> Result<Body> {
        Err(unreached())
    }
    fn create(&self, _: &str, _: &[u8]) -> Created {
        Created::Unknown(unreached())
    }
    fn replace(&self, _: &str, _: &[u8]) -> Result<()> {
        Err(unreached())
    }
    fn delete(&self, _: &str) -> Result<()> {
        Err(unreached())
    }
    fn list(&self, _: &str, _: &str) -> Result<Vec<Listed>> {
        Err(unreached())
    }
}

fn unreached() -> Error {
    Error::new(Kind::Io, "no route")
}

#[test]
fn who_waits_for_a_store_that_nobody_reaches_is_told_and_does_not_wait_for_ever() {
    let told = Arc::new(std::sync::Mutex::new(Vec::new()));
    let heard = told.clone();
    let tell: Arc<dyn Fn(&str) + Send + Sync> =
        Arc::new(move |sentence: &str| heard.lock().unwrap().push(sentence.to_owned()));
    let store = Settings { tell, ..settings("reader") };
    let pace = quick(1);
    let error = Bucket::look(Arc::new(Dead), pace.clone(), store.clone()).err().unwrap();
    assert_eq!(error.kind(), Kind::Io);
    // A store that answered before is waited for longer, and each minute says so.
    told.lock().unwrap().clear();
    let (_, objects) = memory();
    let flaky = Arc::new(Failing { inner: objects, fails: false.into() });
    let objects: Arc<dyn Objects> = flaky.clone();
    let bucket = Bucket::make(objects, pace.clone(), store).unwrap();
    bucket.files().create("a").unwrap();
    flaky.fails.store(true, std::sync::atomic::Ordering::Relaxed);
    let begun = pace.now.load(std::sync::atomic::Ordering::Relaxed);
    let error = bucket.files().sync_names().unwrap_err();
    assert_eq!(error.kind(), Kind::Io, "{error}");
    let waited = (pace.now.load(std::sync::atomic::Ordering::Relaxed) - begun) / 1000;
    assert!((900..1000).contains(&waited), "by the clock of the test: {waited} s");
    let told = told.lock().unwrap();
    assert!(told[0].contains("no route") && told[0].contains("trying again"), "{told:?}");
    assert!((10..20).contains(&told.len()), "{told:?}");
}

/// A store that fails when it is told to.
struct Failing {
    inner: Arc<dyn Objects>,
    fails: std::sync::atomic::AtomicBool,
}

impl Failing {
    fn reached(&self) -> Result<()> {
        match self.fails.load(std::sync::atomic::Ordering::Relaxed) {
            true => Err(unreached()),
            false => Ok(()),
        }
    }
}

impl Objects for Failing {
    fn get(&self, name: &str, at: u64, bytes: u64) -> Result<Body> {
        self.reached()?;
        self.inner.get(name, at, bytes)
    }
    fn create(&self, name: &str, bytes: &[u8]) -> Created {
        match self.reached() {
            Ok(()) => self.inner.create(name, bytes),
            Err(error) => Created::Unknown(error),
        }
    }
    fn replace(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.reached()?;
        self.inner.replace(name, bytes)
    }
    fn delete(&self, name: &str) -> Result<()> {
        self.reached()?;
        self.inner.delete(name)
    }
    fn list(&self, folder: &str, after: &str) -> Result<Vec<Listed>> {
        self.reached()?;
        self.inner.list(folder, after)
    }
}
