//! Stores that are sealed at rest: all that is in them comes back, nothing of it is to be seen, and
//! nobody changes anything unnoticed.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use onefold_cluster::{
    Cut, Dedup, Format, KeySource, Mode, Scrub, Session, Settings, Volume, Watermarks, What,
    Worker, change_keys, create, create_sealed, erase_keys, key_areas, open_keys,
};
use onefold_core::{
    Error, Kind, Result,
    object::{Change, ObjectName, ObjectStore, Pool, PoolKind, Read, ReadPart, Write},
};
use onefold_seal::{Argon, KeyArea, Keys, Opener, Random, Secret, SlotKind, SlotSecret};
use onefold_testbed::MemoryObjects;

/// Bytes that no compression makes smaller.
fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    std::iter::repeat_with(next).flatten().take(bytes).collect()
}

/// Chance that is never the same.
struct Counter(AtomicU64);

impl Random for Counter {
    fn fill(&self, into: &mut [u8]) -> Result<()> {
        into.copy_from_slice(&noise(self.0.fetch_add(1, Relaxed), into.len() + 8)[..into.len()]);
        Ok(())
    }
}

fn secret(byte: u8) -> SlotSecret {
    SlotSecret::Key(Secret::take(&mut [byte; 32]))
}

/// Opens by 32 times a byte; the operator may have said that an older key area counts.
struct By(u8, bool);

impl Opener for By {
    fn root(&self, area: &KeyArea) -> Result<Secret> {
        let found = area.root(&secret(self.0), 0)?;
        found.map(|(_, root)| root).ok_or_else(|| Error::new(Kind::Denied, "no slot opens"))
    }
    fn accepts_older(&self) -> bool {
        self.1
    }
    fn refuses_plain(&self) -> bool {
        true
    }
    fn random(&self) -> Arc<dyn Random> {
        Arc::new(Counter(AtomicU64::new(77)))
    }
}

fn by(byte: u8) -> Settings {
    Settings {
        cold: Duration::ZERO,
        hit_count: 1,
        keys: KeySource::new(Arc::new(By(byte, false))),
        ..Settings::default()
    }
}

const ID: [u8; 16] = [1; 16];

fn format(chunks: PoolKind, volume_cut: Cut) -> Format {
    Format { volume_cut, shards: 4, ..Format::new(ID, [2; 32], chunks) }
}

/// A store that opens by 7.
fn made(format: &Format) -> MemoryObjects {
    let store = MemoryObjects::new(format.chunks);
    let random = Counter(AtomicU64::new(1));
    let mut keys = Keys::create(ID, &random).unwrap();
    let as_file = (SlotKind::File, "");
    keys.add_slot(as_file, &secret(7), Argon::LEAST, (0, 0), &random).unwrap();
    create_sealed(&store, format, &mut keys, &random).unwrap();
    store
}

fn open(store: &MemoryObjects, name: &str, settings: &Settings) -> Arc<Session> {
    Arc::new(Session::open(Arc::new(store.session(name)), settings.clone()).unwrap())
}

/// All that the host of a store has: each object's name, data, attributes, keys and values.
fn host(store: &MemoryObjects) -> BTreeMap<(Pool, String), Vec<u8>> {
    let mut all = BTreeMap::new();
    for pool in [Pool::Metadata, Pool::Chunks] {
        let page = store.list(pool, None, usize::MAX).unwrap();
        for name in page.names {
            let mut parts = vec![ReadPart::Data(0, 1 << 30), ReadPart::Xattr("h")];
            if store.kind(pool) == PoolKind::Replicated {
                parts.push(ReadPart::Page(Vec::new(), usize::MAX));
            }
            let object = ObjectName { pool, name: name.clone() };
            let answer = store.read(&[Read { object, parts }]).remove(0).unwrap();
            let mut bytes = [answer.data(0), answer.xattr(1).unwrap_or_default()].concat();
            for (key, value) in answer.pairs(2).0 {
                bytes.extend(key);
                bytes.extend(value);
            }
            all.insert((pool, name), bytes);
        }
    }
    all
}

fn has(bytes: &[u8], canary: &[u8]) -> bool {
    bytes.windows(canary.len()).any(|window| window == canary)
}

fn drain(session: &Session, worker: &mut Worker) {
    while session.backlog().unwrap() > 0 {
        worker.step().unwrap();
    }
}

#[test]
fn rule_29_what_is_written_to_a_sealed_store_comes_back_and_is_not_to_be_seen() {
    for chunks in [PoolKind::Replicated, PoolKind::Erasure] {
        for (volume_cut, dedup) in [
            (Cut::Static, Dedup::PostProcessing),
            (Cut::Content, Dedup::PostProcessing),
            (Cut::Static, Dedup::Inline),
            (Cut::Static, Dedup::FlushThrough),
        ] {
            let store = made(&format(chunks, volume_cut));
            let settings = Settings { dedup, ..by(7) };
            let session = open(&store, "server", &settings);
            let mut worker = Worker::new(open(&store, "worker", &settings), Watermarks::NONE);
            session.create_volume("a volume that is secret", 8 << 20).unwrap();
            let volume = Volume::attach(&session, "a volume that is secret", Mode::Own).unwrap();
            let mut model = vec![0u8; 8 << 20];
            let canary = noise(99, 64);
            for turn in 0..120u64 {
                let bytes = [512, 4096, 5000, 40_000, 200_000][(turn % 5) as usize];
                let at = (turn * 7919 * 512) % ((8 << 20) - 200_000);
                let at = if turn % 3 == 0 { at / 4096 * 4096 } else { at };
                if turn % 7 == 6 {
                    volume.discard(at, bytes as u64).unwrap();
                    // Edges are left, or are zeroes: read what it is.
                    let range = at as usize..at as usize + bytes;
                    volume.read_at(at, &mut model[range]).unwrap();
                } else {
                    let mut content = noise(turn % 11, bytes);
                    content[..64].copy_from_slice(&canary);
                    volume.write_at(at, &content).unwrap();
                    model[at as usize..at as usize + bytes].copy_from_slice(&content);
                }
                if turn % 10 == 9 {
                    drain(&session, &mut worker);
                }
                let mut read = vec![0xaa; 300_000];
                let from = (at as usize).min((8 << 20) - read.len());
                volume.read_at(from as u64, &mut read).unwrap();
                assert!(read == model[from..from + read.len()], "turn {turn}, {volume_cut:?}");
            }
            let stream = [noise(5, 700_001), canary.clone(), noise(5, 300_000)].concat();
            session.put("a stream that is secret", &mut &stream[..]).unwrap();
            session.put("another one", &mut &stream[..]).unwrap();
            let check = || {
                let mut got = Vec::new();
                session.get("a stream that is secret", &mut got).unwrap();
                assert!(got == stream);
                let mut read = vec![0; 8 << 20];
                volume.read_at(0, &mut read).unwrap();
                assert!(read == model);
            };
            check();
            let hidden = |store: &MemoryObjects| {
                for ((_, name), bytes) in host(store) {
                    for canary in [&canary[..16], b"secret", b"another"] {
                        assert!(!has(&bytes, canary) && !has(name.as_bytes(), canary), "{name}");
                    }
                }
            };
            hidden(&store);
            drain(&session, &mut worker);
            check();
            hidden(&store);
            let blocks = |(pool, name): &(Pool, String)| {
                let object = ObjectName { pool: *pool, name: name.clone() };
                let read = Read { object, parts: vec![ReadPart::Data(0, 1 << 30)] };
                store.read(&[read]).remove(0).unwrap().data(0).len()
            };
            let all = host(&store);
            let chunks = all.keys().filter(|(pool, _)| *pool == Pool::Chunks);
            for chunk in chunks {
                assert!(chunk.1.len() == 4 + 104 && blocks(chunk) % 4096 == 0, "{chunk:?}");
            }
            session.rename(What::Volume, "a volume that is secret", "renamed").unwrap();
            session.delete("another one", What::Put).unwrap();
            while session.delete_step().unwrap() {}
            drain(&session, &mut worker);
            check();
            let mut scrub = Scrub::new(session.clone(), true).unwrap();
            while scrub.step().unwrap() {}
            assert!(scrub.report().damage.is_empty(), "{:?}", scrub.report());
            volume.detach().unwrap();
            let names: Vec<String> =
                session.names().unwrap().into_iter().map(|(name, _)| name).collect();
            assert_eq!(names, ["a stream that is secret", "renamed"]);
        }
    }
}

/// The host exchanges two blocks that stand in one object.
#[test]
fn rule_29_a_scrub_compares_the_sums_of_blocks_that_stand_in_objects() {
    let store = made(&format(PoolKind::Replicated, Cut::Static));
    let session = open(&store, "server", &by(7));
    session.put("stream", &mut &noise(5, 1 << 20)[..]).unwrap();
    let scrubbed = || {
        let mut scrub = Scrub::look(session.clone(), true).unwrap();
        while scrub.step().unwrap() {}
        scrub.report().damage.clone()
    };
    assert_eq!(scrubbed(), [""; 0]);
    let data = |name: &str| {
        let parts = vec![ReadPart::Data(0, 1 << 30)];
        let read = Read { object: ObjectName::metadata(name), parts };
        store.read(&[read]).remove(0).unwrap().data(0).to_vec()
    };
    let names = store.list(Pool::Metadata, None, usize::MAX).unwrap().names;
    let name = names.iter().max_by_key(|name| data(name).len()).unwrap();
    let blocks = data(name);
    let changes = vec![
        Change::Write(0, blocks[8192..12_288].to_vec()),
        Change::Write(8192, blocks[..4096].to_vec()),
    ];
    let swap = Write { object: ObjectName::metadata(name.as_str()), guards: Vec::new(), changes };
    store.write(&[swap]).remove(0).unwrap();
    let damage = scrubbed();
    assert!(
        damage.len() == 1 && damage[0].contains("of stream 'stream': the block at 0"),
        "{damage:?}"
    );
}

#[test]
fn rule_29_equal_chunks_meet_and_two_stores_share_nothing() {
    let store = made(&format(PoolKind::Replicated, Cut::Static));
    let session = open(&store, "server", &by(7));
    let mut worker = Worker::new(open(&store, "worker", &by(7)), Watermarks::NONE);
    let stream = noise(5, 1 << 20);
    session.put("one", &mut &stream[..]).unwrap();
    session.put("two", &mut &stream[..]).unwrap();
    drain(&session, &mut worker);
    let status = session.status().unwrap();
    assert_eq!(status.volumes, 0);
    let chunks = store.list(Pool::Chunks, None, usize::MAX).unwrap().names.len() as u64;
    let refs = host(&store);
    assert!(chunks < 80, "{chunks} chunks of 1 MiB stored twice");
    let other = MemoryObjects::new(PoolKind::Replicated);
    let random = Counter(AtomicU64::new(1000));
    let mut keys = Keys::create([9; 16], &random).unwrap();
    keys.add_slot((SlotKind::File, ""), &secret(7), Argon::LEAST, (0, 0), &random).unwrap();
    let format = Format { id: [9; 16], ..format(PoolKind::Replicated, Cut::Static) };
    create_sealed(&other, &format, &mut keys, &random).unwrap();
    let session = open(&other, "server", &by(7));
    let mut worker = Worker::new(open(&other, "worker", &by(7)), Watermarks::NONE);
    session.put("one", &mut &stream[..]).unwrap();
    drain(&session, &mut worker);
    let names: Vec<String> = other.list(Pool::Chunks, None, usize::MAX).unwrap().names;
    assert!(names.iter().all(|name| !refs.contains_key(&(Pool::Chunks, name.clone()))));
}

#[test]
fn rule_29_nobody_changes_anything_of_a_sealed_store_unnoticed() {
    let store = made(&format(PoolKind::Replicated, Cut::Static));
    let session = open(&store, "server", &by(7));
    session.create_volume("v", 1 << 20).unwrap();
    session.create_volume("w", 1 << 20).unwrap();
    let volume = Volume::attach(&session, "v", Mode::Own).unwrap();
    volume.write_at(0, &noise(1, 32 << 10)).unwrap();
    volume.write_at(65536, &noise(2, 32 << 10)).unwrap();
    let id = session.find("v").unwrap().unwrap().id;
    volume.detach().unwrap();
    let object = ObjectName::metadata(format!("o.{id:010x}.0000000000"));
    let raw = |object: &ObjectName| {
        let parts = vec![ReadPart::Page(Vec::new(), 900), ReadPart::Data(0, 1 << 20)];
        store.read(&[Read { object: object.clone(), parts }]).remove(0).unwrap()
    };
    let change = |object: &ObjectName, change: Change| {
        let op = Write { object: object.clone(), guards: Vec::new(), changes: vec![change] };
        store.write(&[op]).remove(0).unwrap();
    };
    let reads = |expected: bool| {
        let session = open(&store, "reader", &by(7));
        let volume = Volume::attach(&session, "v", Mode::Read);
        let mut read = vec![0; 32 << 10];
        let read = volume.and_then(|volume| volume.read_at(0, &mut read));
        match (expected, read) {
            (true, read) => read.unwrap(),
            (false, read) => assert_eq!(read.unwrap_err().kind(), Kind::Corrupt),
        }
    };
    reads(true);
    let before = raw(&object);
    // A bit of a block.
    let mut data = before.data(1).to_vec();
    data[5000] ^= 1;
    change(&object, Change::Full(data.clone()));
    reads(false);
    // Two blocks in each other's place.
    let mut data = before.data(1).to_vec();
    data.copy_within(4096..8192, 0);
    change(&object, Change::Full(data));
    reads(false);
    // Cut off.
    change(&object, Change::Full(before.data(1)[..4096].to_vec()));
    reads(false);
    change(&object, Change::Full(before.data(1).to_vec()));
    reads(true);
    // The value of another key, and a key that was made up.
    let pairs = before.pairs(0).0.to_vec();
    let other = (pairs[0].0.clone(), pairs[1].1.clone());
    change(&object, Change::SetOmap(vec![other]));
    reads(false);
    change(&object, Change::SetOmap(vec![pairs[0].clone()]));
    reads(true);
    // The values of two names exchanged.
    let mut names = Vec::new();
    for shard in 0..4 {
        let shard = ObjectName::metadata(format!("n.{shard:02x}"));
        let read = Read { object: shard.clone(), parts: vec![ReadPart::Page(Vec::new(), 900)] };
        let Ok(answer) = store.read(&[read]).remove(0) else { continue };
        let names_of = answer.pairs(0).0.iter().filter(|(key, _)| key.starts_with(b"n"));
        names.extend(names_of.map(|pair| (shard.clone(), pair.clone())));
    }
    assert_eq!(names.len(), 2);
    for (one, other) in [(0, 1), (1, 0)] {
        let ((shard, (key, _)), (_, (_, value))) = (&names[one], &names[other]);
        change(shard, Change::SetOmap(vec![(key.clone(), value.clone())]));
    }
    let session = open(&store, "reader", &by(7));
    assert_eq!(session.find("v").unwrap_err().kind(), Kind::Corrupt);
    assert_eq!(session.names().unwrap_err().kind(), Kind::Corrupt);
    // What kind of store it is.
    let catalogue = ObjectName::metadata("catalogue");
    let format = raw(&catalogue).pairs(0).0.iter().find(|(key, _)| key == b"format").cloned();
    let (key, mut value) = format.unwrap();
    value[85] ^= 1;
    change(&catalogue, Change::SetOmap(vec![(key, value)]));
    let opened = Session::look(Arc::new(store.session("reader")), by(7)).map(drop);
    assert_eq!(opened.unwrap_err().kind(), Kind::Corrupt);
}

/// The block has the sum 0, as no hash is: nothing proves what is stored there.
#[test]
fn rule_29_a_trimmed_block_is_zeroes_whatever_the_host_puts_in_its_place() {
    let store = made(&format(PoolKind::Replicated, Cut::Static));
    let session = open(&store, "server", &by(7));
    let mut worker = Worker::new(open(&store, "worker", &by(7)), Watermarks::NONE);
    session.create_volume("v", 1 << 20).unwrap();
    let volume = Volume::attach(&session, "v", Mode::Own).unwrap();
    volume.write_at(0, &noise(1, 64 << 10)).unwrap();
    drain(&session, &mut worker);
    volume.discard(8192, 4096).unwrap();
    let object = ObjectName::metadata(format!("o.{:010x}.0000000000", volume.id()));
    for bytes in [noise(2, 64 << 10), Vec::new()] {
        let changes = vec![Change::Full(bytes)];
        let op = Write { object: object.clone(), guards: Vec::new(), changes };
        store.write(&[op]).remove(0).unwrap();
        let mut read = vec![0xaa; 4096];
        volume.read_at(8192, &mut read).unwrap();
        assert!(read.iter().all(|byte| *byte == 0));
    }
}

fn refused(store: &MemoryObjects, settings: &Settings) -> Error {
    let opened = Session::open(Arc::new(store.session("who")), settings.clone()).map(drop);
    opened.unwrap_err()
}

#[test]
fn rule_23_a_sealed_store_opens_by_its_keys_only() {
    let store = made(&format(PoolKind::Replicated, Cut::Static));
    let nobody = Settings::default();
    assert!(refused(&store, &nobody).to_string().contains("--key"));
    assert_eq!(refused(&store, &by(8)).kind(), Kind::Denied);
    let plain = MemoryObjects::new(PoolKind::Replicated);
    create(&plain, &format(PoolKind::Replicated, Cut::Static)).unwrap();
    assert!(refused(&plain, &by(7)).to_string().contains("not encrypted"));
    assert!(key_areas(&plain, &nobody).unwrap().is_none());
    let (id, copies) = key_areas(&store, &nobody).unwrap().unwrap();
    assert_eq!(id, ID);
    assert!(copies.iter().all(Result::is_ok));
    open(&store, "who", &by(7));
}

/// The copies of the key area, as the host has them.
fn copies(store: &MemoryObjects) -> [(ObjectName, Vec<u8>); 2] {
    [0, 1].map(|copy| {
        let object = ObjectName::metadata(format!("k.{}.{copy}", "01".repeat(16)));
        let parts = vec![ReadPart::Data(0, 1 << 20)];
        let answer = store.read(&[Read { object: object.clone(), parts }]).remove(0).unwrap();
        (object, answer.data(0).to_vec())
    })
}

fn put_back(store: &MemoryObjects, (object, bytes): &(ObjectName, Vec<u8>)) {
    let changes = vec![Change::Full(bytes.clone())];
    let op = Write { object: object.clone(), guards: Vec::new(), changes };
    store.write(&[op]).remove(0).unwrap();
}

fn add(store: &MemoryObjects, byte: u8) {
    change_keys(store, &by(7), |keys, random| {
        let as_file = (SlotKind::File, "another");
        keys.add_slot(as_file, &secret(byte), Argon::LEAST, (0, 0), random).map(drop)
    })
    .unwrap();
}

#[test]
fn rule_24_keys_change_while_servers_work_and_each_copy_alone_opens() {
    let store = made(&format(PoolKind::Replicated, Cut::Static));
    let session = open(&store, "server", &by(7));
    session.create_volume("v", 1 << 20).unwrap();
    let volume = Volume::attach(&session, "v", Mode::Own).unwrap();
    volume.write_at(0, &noise(1, 8192)).unwrap();
    let first = copies(&store);
    add(&store, 8);
    let second = copies(&store);
    // The server goes on, and so does who opens the store by the new slot.
    volume.write_at(8192, &noise(2, 8192)).unwrap();
    volume.detach().unwrap();
    open(&store, "other", &by(8));
    // A crash before the second copy was written: whoever opens it to write writes it too.
    put_back(&store, &first[1]);
    open(&store, "other", &by(8));
    assert_eq!(copies(&store)[1].1, second[1].1);
    // A copy that is lost.
    put_back(&store, &(second[0].0.clone(), vec![0; 100]));
    assert_eq!(open_keys(&store, &by(8)).unwrap().slots().count(), 2);
    open(&store, "other", &by(8));
    assert_eq!(copies(&store)[0].1, second[0].1);
    change_keys(&store, &by(7), |keys, _| keys.remove_slot(1)).unwrap();
    assert_eq!(refused(&store, &by(8)).kind(), Kind::Denied);
    // Both old copies put back: the catalogue has seen a newer key area.
    second.iter().for_each(|copy| put_back(&store, copy));
    let older = refused(&store, &by(8));
    assert!(
        older.kind() == Kind::Denied && older.to_string().contains("--accept-older"),
        "{older}"
    );
    let accepts = Settings { keys: KeySource::new(Arc::new(By(8, true))), ..by(8) };
    open(&store, "other", &accepts);
    // Numbers do not come again.
    change_keys(&store, &accepts, |keys, _| keys.remove_slot(1)).unwrap();
    assert_eq!(open_keys(&store, &by(7)).unwrap().sequence(), 4);
    // Somebody else is at it.
    let catalogue = ObjectName::metadata("catalogue");
    store.session("else").lock(&catalogue, "keys", "keys", None).unwrap();
    let busy = change_keys(&store, &by(7), |_, _| Ok(())).unwrap_err();
    assert_eq!(busy.kind(), Kind::Busy);
}

#[test]
fn rule_26_destroyed_keys_open_nothing() {
    let store = made(&format(PoolKind::Replicated, Cut::Static));
    assert!(erase_keys(&store, &by(8)).is_err());
    open(&store, "who", &by(7));
    erase_keys(&store, &by(7)).unwrap();
    assert_eq!(refused(&store, &by(7)).kind(), Kind::Corrupt);
    assert!(copies(&store).iter().all(|(_, bytes)| KeyArea::decode(bytes).is_err()));
}

/// The first copy says that the keys are being erased, and the second one still has them: whoever writes
/// next destroys those too.
#[test]
fn rule_26_an_erasure_that_was_cut_off_is_ended_by_who_writes_next() {
    for erases_again in [false, true] {
        let store = made(&format(PoolKind::Replicated, Cut::Static));
        let mut keys = open_keys(&store, &by(7)).unwrap();
        let erased = keys.erased_area(&Counter(AtomicU64::new(5))).unwrap();
        let [first, _] = copies(&store);
        put_back(&store, &(first.0, erased.bytes().to_vec()));
        // Who only looks, and who has no key, leaves all as it is.
        let looked = Session::look(Arc::new(store.session("who")), by(7)).map(drop);
        assert_eq!(looked.unwrap_err().kind(), Kind::Corrupt);
        refused(&store, &by(8));
        assert!(copies(&store).iter().all(|(_, bytes)| KeyArea::decode(bytes).is_ok()));
        match erases_again {
            true => erase_keys(&store, &by(7)).unwrap(),
            false => assert_eq!(refused(&store, &by(7)).kind(), Kind::Corrupt),
        }
        assert!(copies(&store).iter().all(|(_, bytes)| KeyArea::decode(bytes).is_err()));
    }
}
