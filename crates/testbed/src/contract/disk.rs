//! The contract of every [`Disk`], and blocks that tell where they belong.
#![allow(clippy::unwrap_used, reason = "a check fails by panicking")]

use std::thread;

use onefold_core::{Block, BlockRef, Class, Disk, Pba, Read, Result, Run};

/// Capacity of the disks under test: more than two rings, and more than two gathers of 1,024
/// blocks.
pub const CAPACITY: u64 = 4096;

/// A check: its name, which names the disk's file where it has one, and what it does.
type Check = (&'static str, fn(&dyn Disk));

/// All checks.
const CHECKS: [Check; 14] = [
    ("capacity-is-what-was-asked-for", capacity_is_what_was_asked_for),
    ("unwritten-blocks-read-as-zeroes", unwritten_blocks_read_as_zeroes),
    ("what-was-written-is-read-back", what_was_written_is_read_back),
    ("a-run-gathers-blocks-from-anywhere-in-memory", a_run_gathers_blocks_from_anywhere_in_memory),
    ("a-batch-of-runs-is-written-whole", a_batch_of_runs_is_written_whole),
    ("empty-requests-succeed", empty_requests_succeed),
    ("batches-larger-than-a-ring-lose-nothing", batches_larger_than_a_ring_lose_nothing),
    (
        "runs-longer-than-one-gather-are-written-whole",
        runs_longer_than_one_gather_are_written_whole,
    ),
    ("durable-writes-are-read-back", durable_writes_are_read_back),
    ("each-read-of-a-batch-has-its-own-result", each_read_of_a_batch_has_its_own_result),
    ("a-later-read-clears-an-earlier-error", a_later_read_clears_an_earlier_error),
    ("ranges-past-the-end-are-errors", ranges_past_the_end_are_errors),
    ("allocation-changes-no-content", allocation_changes_no_content),
    ("many-threads-work-at-once", many_threads_work_at_once),
];

/// Runs all checks, each on a new disk of [`CAPACITY`] blocks. `make` gets the check's name; what it
/// gives beside the disk lives as long as that.
///
/// # Panics
/// When the disk breaks its contract.
pub fn hold<D: Disk, Kept>(make: impl Fn(&'static str) -> (D, Kept)) {
    for (name, check) in CHECKS {
        let (disk, _kept) = make(name);
        check(&disk);
    }
}

/// A block filled with `seed`, so that no two seeds below 2^32 look alike.
pub fn block(seed: u32) -> Block {
    let mut block = Block::zeroed();
    for (i, word) in block.0.chunks_exact_mut(4).enumerate() {
        word.copy_from_slice(&(seed.wrapping_mul(2_654_435_761) ^ i as u32).to_le_bytes());
    }
    *block
}

/// Blocks of seeds `first..first + n`.
pub fn blocks(first: u32, n: u32) -> Vec<Block> {
    (first..first + n).map(block).collect()
}

/// References to `blocks` as one class.
pub fn refs(blocks: &[Block], class: Class) -> Vec<BlockRef<'_>> {
    blocks.iter().map(|block| BlockRef { block, class }).collect()
}

/// Writes `blocks` as one run of tables.
///
/// # Errors
/// The disk's.
pub fn write(disk: &dyn Disk, at: u64, blocks: &[Block]) -> Result<()> {
    disk.write(&[Run { at: Pba(at), blocks: &refs(blocks, Class::Table) }])
}

/// Reads `n` blocks as a batch of one.
///
/// # Errors
/// The disk's.
pub fn read(disk: &dyn Disk, at: u64, n: usize) -> Result<Vec<Block>> {
    let mut into = vec![block(u32::MAX); n];
    let mut reads = [Read::new(Pba(at), &mut into)];
    disk.read(&mut reads);
    let [read] = reads;
    read.result?;
    Ok(into)
}

/// Asserts that two lists of blocks are equal without printing megabytes when they are not.
///
/// # Panics
/// When they are not.
#[track_caller]
pub fn assert_same(got: &[Block], expected: &[Block]) {
    assert_eq!(got.len(), expected.len());
    for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert!(got.0 == expected.0, "block {i}: {got:?}, expected {expected:?}");
    }
}

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
    assert_eq!(reads.each_ref().map(|read| read.result.is_ok()), [true, false, true, false]);
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
    for (at, n) in
        [(CAPACITY, 1), (CAPACITY - 1, 2), (u64::MAX, 1), (u64::MAX - 1, 2), (1 << 52, 1)]
    {
        let run = Run { at: Pba(at), blocks: &pool[..n] };
        assert!(read(disk, at, n).is_err(), "read of {n} at {at}");
        assert!(disk.write(&[run]).is_err(), "write of {n} at {at}");
        assert!(disk.write_durable(&run).is_err(), "durable write of {n} at {at}");
        let batch = [Run { at: Pba(0), blocks: &pool }, run];
        assert!(disk.write(&batch).is_err(), "batch with {n} at {at}");
        assert!(disk.allocate(Pba(at), n as u64).is_err(), "allocation of {n} at {at}");
    }
    assert!(disk.allocate(Pba(1), u64::MAX).is_err());
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
