//! The contract of `Disk`, run against every disk of this crate.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use onefold_backend::{FileDisk, Io, MemoryDisk, Options, Preallocate};
use onefold_core::{Class, Disk, Kind, Pba, Run};
use onefold_testbed::contract::disk::{CAPACITY, blocks, hold, read, refs};
use support::Scratch;

/// A request for what is not there: an error for all of it, and never a panic.
const HOSTILE: [(u64, usize); 7] = [
    (CAPACITY, 1),
    (CAPACITY - 1, 2),
    (CAPACITY + 1, 0),
    (u64::MAX, 1),
    (u64::MAX - 1, 2),
    (u64::MAX / 4096, 1),
    (1 << 52, 1),
];

fn file(name: &str, options: Options, preallocate: Preallocate) -> (FileDisk, Scratch) {
    let scratch = Scratch::new(name);
    let disk = options.create(scratch.path(), Some(CAPACITY), preallocate, &mut |_, _| {}).unwrap();
    (disk, scratch)
}

fn holds(name: &str, options: Options, preallocate: Preallocate) {
    hold(|check| file(&format!("{name}-{check}"), options, preallocate));
    let (disk, _scratch) = file(&format!("{name}-past-the-end"), options, preallocate);
    is_smaller_than_asked_for(&disk);
}

/// A disk of this crate says what is wrong, also with requests for nothing.
fn is_smaller_than_asked_for(disk: &dyn Disk) {
    let pool = blocks(0, 2);
    let pool = refs(&pool, Class::Data);
    for (at, n) in HOSTILE {
        let run = Run { at: Pba(at), blocks: &pool[..n] };
        let answers = [
            read(disk, at, n).map(|_| ()),
            disk.write(&[run]),
            disk.write_durable(&run),
            disk.write(&[Run { at: Pba(0), blocks: &pool }, run]),
            disk.allocate(Pba(at), n as u64),
        ];
        for answer in answers {
            assert_eq!(answer.unwrap_err().kind(), Kind::Io, "{n} blocks at {at}");
        }
    }
    let message = read(disk, CAPACITY, 1).unwrap_err().to_string();
    assert!(message.contains("is smaller than asked for"), "{message}");
}

#[test]
fn files_on_a_ring_past_the_page_cache() {
    holds("uring-direct", Options { io: Io::Uring, direct: true }, Preallocate::None);
}

#[test]
fn files_on_a_ring() {
    holds("uring-buffered", Options { io: Io::Uring, direct: false }, Preallocate::None);
}

#[test]
fn files_by_system_calls_past_the_page_cache() {
    holds("syscalls-direct", Options { io: Io::Syscalls, direct: true }, Preallocate::Reserve);
}

#[test]
fn files_by_system_calls() {
    holds("syscalls-buffered", Options { io: Io::Syscalls, direct: false }, Preallocate::None);
}

#[test]
fn files_written_with_zeroes_once() {
    holds("full", Options::default(), Preallocate::Full);
}

#[test]
fn disks_in_memory() {
    hold(|_| (MemoryDisk::new(CAPACITY), ()));
    is_smaller_than_asked_for(&MemoryDisk::new(CAPACITY));
}
