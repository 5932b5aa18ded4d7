//! Bytes of a store that somebody changed: no decoder panics, and none takes memory for what is not there.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

mod support;

use std::sync::Arc;

use onefold_bucket::{MemoryObjects, Objects, decoders};
use onefold_core::Files;
use onefold_testbed::Rng;
use support::{noise, writer};

/// Changed inputs of each example and decoder.
const CHANGES: u64 = 2_000;

/// All frames and tables of a bucket with files that come and go, and the names of its objects.
fn examples() -> Vec<Vec<u8>> {
    let memory = Arc::new(MemoryObjects::default());
    let objects: Arc<dyn Objects> = memory.clone();
    for n in 0..20 {
        let bucket = writer(&objects, n).unwrap();
        let files = bucket.files();
        for (name, bytes) in [("a", 100), ("keys", 10), ("b", 300_000)] {
            let file = files.open(name).or_else(|_| files.create(name)).unwrap();
            file.write_at(n * 5, &noise(n, bytes)).unwrap();
        }
        if n % 3 == 0 {
            files.remove("a").unwrap();
        }
        bucket.leave().unwrap();
    }
    let names = memory.names();
    let wanted = names.iter().filter(|n| n.starts_with("log/") || n.starts_with("table/"));
    let mut all: Vec<Vec<u8>> = wanted.map(|name| memory.bytes(name).unwrap()).collect();
    assert!(all.len() > 40);
    all.truncate(60);
    all.extend(names.into_iter().map(String::into_bytes).take(10));
    all
}

/// A byte, a length, or the end is another one.
fn change(rng: &mut Rng, bytes: &mut Vec<u8>) {
    let at = rng.below(bytes.len() as u64) as usize;
    match rng.below(4) {
        0 => bytes[at] ^= 1 << rng.below(8),
        1 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][rng.below(5) as usize],
        2 => {
            let value = [0, 1, u64::MAX, u64::MAX - 1, 1 << 56, 1 << 32][rng.below(6) as usize];
            let end = bytes.len().min(at + [4, 8][rng.below(2) as usize]);
            let length = end - at;
            bytes[at..end].copy_from_slice(&value.to_le_bytes()[..length]);
        }
        _ => bytes.truncate(at.max(1)),
    }
}

#[test]
fn no_decoder_panics() {
    let mut rng = Rng::new(7);
    for example in examples() {
        for (_, decode) in decoders() {
            for _ in 0..CHANGES / 60 {
                let mut bytes = example.clone();
                for _ in 0..=rng.below(3) {
                    change(&mut rng, &mut bytes);
                }
                decode(&bytes);
            }
        }
    }
}

/// A frame of these bytes of records and of files, with its hash.
fn frame(records: &[u8], inline: &[u8]) -> Vec<u8> {
    let mut all = b"ONEFFRM1".to_vec();
    all.extend(1u64.to_le_bytes());
    all.extend(1u64.to_le_bytes());
    all.extend([0; 16 + 32 + 8 + 8]);
    all.extend((records.len() as u32).to_le_bytes());
    all.extend((inline.len() as u32).to_le_bytes());
    all.extend(records);
    all.extend(inline);
    let sum = *blake3::hash(&all).as_bytes();
    all.extend(sum);
    all
}

#[test]
fn rule_09_a_frame_takes_no_more_memory_and_time_than_writers_need() {
    let leave = [3u8];
    assert!(onefold_bucket::Frame::decode(&frame(&leave.repeat(1000), b""), 1).is_ok());
    let too_many = onefold_bucket::Frame::decode(&frame(&leave.repeat(5 << 20), b""), 1);
    assert!(too_many.unwrap_err().to_string().contains("more records"));
    // A pack of which the bytes stand in the frame: kind, number, bytes, hash, no keys, place and one.
    let pack = |number: u8| {
        let mut pack = vec![4, number];
        pack.extend([0; 7]);
        pack.extend(1u32.to_le_bytes());
        pack.extend([0; 32]);
        pack.push(0);
        pack.extend(97u32.to_le_bytes());
        pack
    };
    assert!(onefold_bucket::Frame::decode(&frame(&pack(1), b"x"), 1).is_ok());
    for bytes in [frame(&[pack(1), pack(2)].concat(), b"xy"), frame(&pack(1), &[0; 70_000])] {
        let error = onefold_bucket::Frame::decode(&bytes, 1).unwrap_err();
        assert!(error.to_string().contains("more bytes of files"), "{error}");
    }
}

#[test]
fn rule_09_a_state_that_needs_more_memory_than_is_allowed_is_refused() {
    let objects: Arc<dyn Objects> = Arc::new(MemoryObjects::default());
    let bucket = writer(&objects, 1).unwrap();
    for n in 0..3000 {
        bucket.files().create(&format!("f{n}")).unwrap();
    }
    bucket.leave().unwrap();
    let look = |memory| {
        let settings = onefold_bucket::Settings { memory, ..support::settings("reader") };
        onefold_bucket::Bucket::look(objects.clone(), support::quick(9), settings)
    };
    assert_eq!(look(8 << 20).unwrap().files().names().unwrap().len(), 3000);
    assert_eq!(look(1 << 20).err().unwrap().kind(), onefold_core::Kind::Memory);
}

#[test]
fn a_collection_that_frees_more_places_than_a_frame_has_room_for_is_read_again() {
    let objects: Arc<dyn Objects> = Arc::new(MemoryObjects::default());
    let bucket = writer(&objects, 1).unwrap();
    let file = bucket.files().create("f").unwrap();
    file.set_bytes(8 << 20).unwrap();
    for n in 0..1_400_000u64 {
        file.punch(n * 4, 1).unwrap();
    }
    file.sync().unwrap();
    drop(bucket);
    let settings =
        onefold_bucket::Settings { table_every: u64::MAX, ..support::settings("reader") };
    let look = onefold_bucket::Bucket::look(objects, support::quick(9), settings).unwrap();
    assert_eq!(look.files().open("f").unwrap().bytes().unwrap(), 8 << 20);
}
