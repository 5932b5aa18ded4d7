//! The archive engine over a bucket: stored by one process, read by others, collected.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

mod support;

use std::sync::Arc;

use onefold_archive::{
    Archive, Content, Format, Gauge, PutRequest, Reader, Settings as ArchiveSettings, Shape,
    Verify, put,
};
use onefold_bucket::{Bucket, MemoryObjects, Objects};
use support::{noise, quick, settings, writer};

fn open(bucket: &Bucket, writes: bool) -> Arc<Archive> {
    let files = Arc::new(bucket.files());
    Arc::new(Archive::open(files, writes, ArchiveSettings::default()).unwrap())
}

fn stored(objects: &Arc<dyn Objects>, seed: u64, name: &str, bytes: &[u8]) {
    let bucket = writer(objects, seed).unwrap();
    let archive = open(&bucket, true);
    let shape = Shape::Bytes;
    let request = PutRequest { domain: None, name: name.into(), shape, now: 1000, wait: false };
    put(&archive, request, &Gauge::default(), |feeder| feeder.bytes(bytes)).unwrap();
    drop(archive);
    bucket.leave().unwrap();
}

fn read(objects: &Arc<dyn Objects>, name: &str) -> Vec<u8> {
    let bucket = Bucket::look(objects.clone(), quick(99), settings("reader")).unwrap();
    let archive = open(&bucket, false);
    let mut found = Vec::new();
    let mut reader = Reader::new(&archive).unwrap();
    let stream = reader.stream(name).unwrap();
    let mut take = |content: Content<'_>| {
        match content {
            Content::Bytes(part) => found.extend_from_slice(part),
            Content::Zeroes(n) | Content::Hole(n) => found.resize(found.len() + n as usize, 0),
        }
        Ok(())
    };
    reader.read(&stream.recipe, Verify::Chunks, &mut take).unwrap();
    found
}

#[test]
fn streams_go_into_a_bucket_and_come_out_of_it() {
    let memory = Arc::new(MemoryObjects::default());
    let objects: Arc<dyn Objects> = memory.clone();
    let bucket = writer(&objects, 1).unwrap();
    let mut format = Format::new([1; 16], [2; 32], [3; 16]);
    format.reserve_bytes = 0;
    Archive::create(&bucket.files(), &format).unwrap();
    bucket.leave().unwrap();
    let one = noise(1, 10 << 20);
    stored(&objects, 2, "one", &one);
    let bytes = |memory: &MemoryObjects| -> usize {
        memory.names().iter().map(|name| memory.bytes(name).unwrap().len()).sum()
    };
    let before = bytes(&memory);
    let mut two = one.clone();
    two[5 << 20..(5 << 20) + 1000].copy_from_slice(&noise(2, 1000));
    stored(&objects, 3, "two", &two);
    assert!(bytes(&memory) - before < 1 << 20, "the second stream costs what differs");
    assert!(read(&objects, "one") == one && read(&objects, "two") == two);
    let bucket = Bucket::look(objects.clone(), quick(9), settings("reader")).unwrap();
    assert!(bucket.differences().unwrap().is_empty());
    let frames = memory.names().iter().filter(|name| name.starts_with("log/")).count();
    println!("{frames} frames");
}
