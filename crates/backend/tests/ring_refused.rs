//! A kernel that refuses io_uring to a thread, by a filter of system calls such as containers have.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(unsafe_code, reason = "a filter of system calls has no safe wrapper")]

mod support;

use std::thread;

use onefold_backend::{Access, FileDisk, Io, Options, Preallocate};
use onefold_core::{Block, Class, Disk, Kind, Pba, Read, Run};
use onefold_testbed::contract::disk::{assert_same, blocks, refs};
use support::Scratch;

fn batches_work(disk: &FileDisk, seed: u32) {
    let pool = blocks(seed, 100);
    let list = refs(&pool, Class::Data);
    let runs: Vec<_> =
        (0..100).map(|i| Run { at: Pba(i as u64 * 7), blocks: &list[i..=i] }).collect();
    disk.write(&runs).unwrap();
    let mut into = Block::zeroed_vec(100);
    let mut reads: Vec<_> =
        into.chunks_mut(1).zip(0..).map(|(into, i)| Read::new(Pba(i * 7), into)).collect();
    disk.read(&mut reads);
    assert!(reads.iter().all(|read| read.result.is_ok()));
    assert_same(&into, &pool);
}

/// From now on this thread gets `EPERM` for a ring.
fn refuse_rings() {
    let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let refused = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    let mut steps = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_io_uring_setup as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, refused),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: the kernel reads the filter, which lives until the calls return, and keeps a copy.
    let done = unsafe {
        [
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
            libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter),
        ]
    };
    assert_eq!(done, [0, 0], "{}", std::io::Error::last_os_error());
}

#[test]
fn without_io_uring_batches_go_by_system_calls() {
    let (file, other) = (Scratch::new("ring-refused"), Scratch::new("ring-refused-other"));
    let create = |scratch: &Scratch| {
        FileDisk::create(scratch.path(), Some(1000), Preallocate::None, &mut |_, _| {}).unwrap()
    };
    drop(create(&other));
    let disk = create(&file);
    assert!(disk.uring(), "this machine refuses io_uring");
    batches_work(&disk, 1);

    thread::scope(|scope| {
        scope.spawn(|| {
            refuse_rings();
            let uring = Options { io: Io::Uring, direct: true }
                .open(other.path(), Access::ReadWrite)
                .unwrap_err();
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
