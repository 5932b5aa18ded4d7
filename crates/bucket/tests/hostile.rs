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
