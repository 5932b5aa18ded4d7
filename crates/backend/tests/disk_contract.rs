//! The contract of `Disk`, run against every disk of this crate.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::thread;

use onefold_backend::{FileDisk, Io, MemoryDisk, Options, Preallocate};
use onefold_core::{Block, Class, Disk, Kind, Pba, Read, Run};
use support::{Scratch, assert_same, block, blocks, read, refs, write};

/// Capacity of the disks under test: more than two rings, and more than two gathers of 1,024
/// blocks.
const CAPACITY: u64 = 4096;

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

fn capacity_is_what_was_asked_for(disk: &dyn Disk) {
    assert_eq!(disk.blocks(), CAPACITY);
}

fn unwritten_blocks_read_as_zeroes(disk: &dyn Disk) {
    assert!(read(disk, 0, 16).unwrap().iter().all(Block::is_zero));
    assert!(read(disk, CAPACITY - 1, 1).unwrap()[0].is_zero());
}

fn what_was_written_is_read_back(disk: &dyn Disk) {
    let (first, last) = (blocks(1, 3), blocks(9, 2));
    write(disk, 0, &first).unwrap();
    write(disk, CAPACITY - 2, &last).unwrap();
    assert_same(&read(disk, 0, 3).unwrap(), &first);
    assert_same(&read(disk, CAPACITY - 2, 2).unwrap(), &last);
    assert!(read(disk, 3, 1).unwrap()[0].is_zero());
    write(disk, 1, &[block(77)]).unwrap();
    assert_same(&read(disk, 0, 3).unwrap(), &[block(1), block(77), block(3)]);
}

fn a_run_gathers_blocks_from_anywhere_in_memory(disk: &dyn Disk) {
    let pool = blocks(0, 32);
    let order: Vec<usize> = (0..32).map(|i| i * 13 % 32).collect();
    let expected: Vec<Block> = order.iter().map(|&i| pool[i].clone()).collect();
    let scattered = refs(&pool, Class::Carrier);
    let gathered: Vec<_> = order.iter().map(|&i| scattered[i]).collect();
    disk.write(&[Run { at: Pba(100), blocks: &gathered }]).unwrap();
    assert_same(&read(disk, 100, 32).unwrap(), &expected);
}

fn a_batch_of_runs_is_written_whole(disk: &dyn Disk) {
    let pool = blocks(500, 10);
    let pool = refs(&pool, Class::Data);
    let runs = [
        Run { at: Pba(10), blocks: &pool[..4] },
        Run { at: Pba(14), blocks: &pool[4..5] },
        Run { at: Pba(2000), blocks: &[] },
        Run { at: Pba(3000), blocks: &pool[5..] },
    ];
    disk.write(&runs).unwrap();
    assert_same(&read(disk, 10, 5).unwrap(), &blocks(500, 5));
    assert_same(&read(disk, 3000, 5).unwrap(), &blocks(505, 5));
}

fn empty_requests_succeed(disk: &dyn Disk) {
    disk.read(&mut []);
    disk.write(&[]).unwrap();
    disk.write(&[Run { at: Pba(0), blocks: &[] }]).unwrap();
    disk.write_durable(&Run { at: Pba(CAPACITY), blocks: &[] }).unwrap();
    disk.allocate(Pba(CAPACITY), 0).unwrap();
    assert!(read(disk, CAPACITY, 0).unwrap().is_empty());
    disk.flush().unwrap();
}

fn batches_larger_than_a_ring_lose_nothing(disk: &dyn Disk) {
    let n = 700;
    let pool = blocks(10_000, n);
    let pool = refs(&pool, Class::Table);
    let place = |i: u32| Pba(u64::from(i) * 5 % CAPACITY);
    let runs: Vec<Run<'_>> =
        (0..n).map(|i| Run { at: place(i), blocks: &pool[i as usize..][..1] }).collect();
    disk.write(&runs).unwrap();
    let mut into = Block::zeroed_vec(n as usize);
    let mut reads: Vec<Read<'_>> =
        into.chunks_mut(1).zip(0..).map(|(into, i)| Read::new(place(i), into)).collect();
    disk.read(&mut reads);
    assert!(reads.iter().all(|r| r.result.is_ok()));
    assert_same(&into, &blocks(10_000, n));
}

fn runs_longer_than_one_gather_are_written_whole(disk: &dyn Disk) {
    let n = 2500;
    let pool = blocks(20_000, n);
    let list = refs(&pool, Class::Data);
    write(disk, 1, &pool).unwrap();
    assert_same(&read(disk, 1, n as usize).unwrap(), &pool);
    disk.write(&[Run { at: Pba(3), blocks: &list }, Run { at: Pba(3000), blocks: &list[..1] }])
        .unwrap();
    assert_same(&read(disk, 3, n as usize).unwrap(), &pool);
    assert_same(&read(disk, 3000, 1).unwrap(), &pool[..1]);
    disk.write_durable(&Run { at: Pba(7), blocks: &list }).unwrap();
    assert_same(&read(disk, 7, n as usize).unwrap(), &pool);
}

fn durable_writes_are_read_back(disk: &dyn Disk) {
    for (i, n) in [1, 2, 8, 33].into_iter().enumerate() {
        let (at, some) = (i as u64 * 100, blocks(i as u32 * 100, n));
        disk.write_durable(&Run { at: Pba(at), blocks: &refs(&some, Class::Super) }).unwrap();
        assert_same(&read(disk, at, n as usize).unwrap(), &some);
    }
    disk.flush().unwrap();
}

fn each_read_of_a_batch_has_its_own_result(disk: &dyn Disk) {
    write(disk, 5, &blocks(5, 4)).unwrap();
    let mut into = Block::zeroed_vec(8);
    let (a, rest) = into.split_at_mut(2);
    let (b, rest) = rest.split_at_mut(1);
    let (c, d) = rest.split_at_mut(1);
    let mut reads = [
        Read::new(Pba(5), a),
        Read::new(Pba(CAPACITY), b),
        Read::new(Pba(8), c),
        Read::new(Pba(CAPACITY - 1), d),
    ];
    disk.read(&mut reads);
    let kinds: Vec<_> =
        reads.iter().map(|r| r.result.as_ref().err().map(onefold_core::Error::kind)).collect();
    assert_eq!(kinds, [None, Some(Kind::Io), None, Some(Kind::Io)]);
    assert_same(&into[..2], &blocks(5, 2));
    assert_same(&into[3..4], &blocks(8, 1));
}

fn a_later_read_clears_an_earlier_error(disk: &dyn Disk) {
    let mut into = Block::zeroed_vec(1);
    let mut reads = [Read::new(Pba(CAPACITY), &mut into)];
    disk.read(&mut reads);
    assert!(reads[0].result.is_err());
    reads[0].at = Pba(0);
    disk.read(&mut reads);
    assert!(reads[0].result.is_ok());
}

fn ranges_past_the_end_are_errors(disk: &dyn Disk) {
    let pool = blocks(0, 2);
    let pool = refs(&pool, Class::Data);
    for (at, n) in HOSTILE {
        let run = Run { at: Pba(at), blocks: &pool[..n] };
        assert_eq!(read(disk, at, n).unwrap_err().kind(), Kind::Io, "read of {n} at {at}");
        assert_eq!(disk.write(&[run]).unwrap_err().kind(), Kind::Io, "write of {n} at {at}");
        assert_eq!(
            disk.write_durable(&run).unwrap_err().kind(),
            Kind::Io,
            "durable write of {n} at {at}"
        );
        assert_eq!(
            disk.write(&[Run { at: Pba(0), blocks: &pool }, run]).unwrap_err().kind(),
            Kind::Io,
            "batch with {n} at {at}"
        );
        assert_eq!(
            disk.allocate(Pba(at), n as u64).unwrap_err().kind(),
            Kind::Io,
            "allocation of {n} at {at}"
        );
    }
    assert!(disk.allocate(Pba(1), u64::MAX).is_err());
    let message = read(disk, CAPACITY, 1).unwrap_err().to_string();
    assert!(message.contains("is smaller than asked for"), "{message}");
    assert_eq!(disk.blocks(), CAPACITY);
}

fn allocation_changes_no_content(disk: &dyn Disk) {
    write(disk, 64, &blocks(64, 2)).unwrap();
    disk.allocate(Pba(0), CAPACITY).unwrap();
    disk.allocate(Pba(64), 2).unwrap();
    assert_same(&read(disk, 64, 2).unwrap(), &blocks(64, 2));
    assert!(read(disk, 66, 4).unwrap().iter().all(Block::is_zero));
}

fn many_threads_work_at_once(disk: &dyn Disk) {
    thread::scope(|scope| {
        for t in 0..8_u32 {
            scope.spawn(move || {
                let base = u64::from(t) * 512;
                for round in 0..4 {
                    let mine = blocks(t * 1_000 + round, 40);
                    let list = refs(&mine, Class::Data);
                    let runs: Vec<Run<'_>> = (0..40)
                        .map(|i| Run { at: Pba(base + i as u64 * 3), blocks: &list[i..=i] })
                        .collect();
                    disk.write(&runs).unwrap();
                    disk.flush().unwrap();
                    let mut into = Block::zeroed_vec(40);
                    let mut reads: Vec<_> = into
                        .chunks_mut(1)
                        .zip(0..)
                        .map(|(into, i)| Read::new(Pba(base + i * 3), into))
                        .collect();
                    disk.read(&mut reads);
                    assert!(reads.iter().all(|r| r.result.is_ok()));
                    assert_same(&into, &mine);
                }
            });
        }
    });
}

/// A disk under test, and the file behind it.
struct Subject<D> {
    disk: D,
    _file: Option<Scratch>,
}

fn file(name: &str, options: Options, preallocate: Preallocate) -> Subject<FileDisk> {
    let scratch = Scratch::new(name);
    let disk = options.create(scratch.path(), Some(CAPACITY), preallocate, &mut |_, _| {}).unwrap();
    Subject { disk, _file: Some(scratch) }
}

/// A module for each disk, with a test for each behaviour.
macro_rules! contract {
    ($($subject:ident = $make:expr;)*) => { contract! { @each [$($subject = $make;)*] } };
    (@each [$($subject:ident = $make:expr;)*]) => {
        $(mod $subject {
            use super::*;
            contract! { @behaviours $make =>
                capacity_is_what_was_asked_for, unwritten_blocks_read_as_zeroes,
                what_was_written_is_read_back, a_run_gathers_blocks_from_anywhere_in_memory,
                a_batch_of_runs_is_written_whole, empty_requests_succeed,
                batches_larger_than_a_ring_lose_nothing,
                runs_longer_than_one_gather_are_written_whole, durable_writes_are_read_back,
                each_read_of_a_batch_has_its_own_result, a_later_read_clears_an_earlier_error,
                ranges_past_the_end_are_errors, allocation_changes_no_content,
                many_threads_work_at_once
            }
        })*
    };
    (@behaviours $make:expr => $($behaviour:ident),*) => {
        $(#[test]
        fn $behaviour() {
            let make: fn(&str) -> _ = $make;
            let name = concat!(stringify!($behaviour), "-");
            let name = module_path!().replace("::", "-").replace("disk_contract-", name);
            super::$behaviour(&make(&name).disk);
        })*
    };
}

const URING: Io = Io::Uring;
const SYSCALLS: Io = Io::Syscalls;

contract! {
    uring_direct = |name| file(name, Options { io: URING, direct: true }, Preallocate::None);
    uring_buffered = |name| file(name, Options { io: URING, direct: false }, Preallocate::None);
    syscalls_direct =
        |name| file(name, Options { io: SYSCALLS, direct: true }, Preallocate::Reserve);
    syscalls_buffered =
        |name| file(name, Options { io: SYSCALLS, direct: false }, Preallocate::None);
    written_with_zeroes_once = |name| file(name, Options::default(), Preallocate::Full);
    memory = |_| Subject { disk: MemoryDisk::new(CAPACITY), _file: None };
}
