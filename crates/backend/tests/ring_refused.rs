//! A kernel that refuses io_uring. One test, in a process of its own: it takes the descriptors away from all of it, which
//! refuses a ring the same way as a container's filter does.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::{fs::File, os::fd::AsRawFd, thread};

use onefold_backend::{Access, FileDisk, Io, Options, Preallocate};
use onefold_core::{Block, Class, Disk, Kind, Pba, Read, Run};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use support::{Scratch, assert_same, blocks, refs};

fn batches_work(disk: &FileDisk, seed: u32) {
    let pool = blocks(seed, 100);
    let list = refs(&pool, Class::Data);
    let runs: Vec<_> = (0..100).map(|i| Run { at: Pba(i as u64 * 7), blocks: &list[i..=i] }).collect();
    disk.write(&runs).unwrap();
    let mut into = Block::zeroed_vec(100);
    let mut reads: Vec<_> = into.chunks_mut(1).zip(0..).map(|(into, i)| Read::new(Pba(i * 7), into)).collect();
    disk.read(&mut reads);
    assert!(reads.iter().all(|read| read.result.is_ok()));
    assert_same(&into, &pool);
}

#[test]
fn without_io_uring_batches_go_by_system_calls() {
    let (file, other) = (Scratch::new("ring-refused"), Scratch::new("ring-refused-other"));
    let create = |scratch: &Scratch| FileDisk::create(scratch.path(), Some(1000), Preallocate::None, &mut |_, _| {}).unwrap();
    drop(create(&other));
    let disk = create(&file);
    assert!(disk.uring(), "this machine refuses io_uring");
    batches_work(&disk, 1);

    // Room for one descriptor more: a file, and no ring.
    let free = File::open("/dev/null").unwrap().as_raw_fd() as u64;
    let limit = Rlimit { current: Some(free + 1), ..getrlimit(Resource::Nofile) };
    setrlimit(Resource::Nofile, limit).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            let uring = Options { io: Io::Uring, direct: true }.open(other.path(), Access::ReadWrite).unwrap_err();
            assert_eq!(uring.kind(), Kind::Unsupported);
            let auto = FileDisk::open(other.path(), Access::ReadWrite).unwrap();
            assert!(!auto.uring());
            batches_work(&auto, 2);
            // A disk that was opened with a ring, from a thread that gets none.
            batches_work(&disk, 3);
        });
    });
    batches_work(&disk, 4);
}
