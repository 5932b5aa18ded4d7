//! Tests of which blocks a `MetadataDisk` keeps, and which it drops.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use onefold_backend::{MetadataDisk, process};
use onefold_core::{Block, BlockRef, Class, Disk, Kind, Pba, Run};
use onefold_testbed::contract::disk::{assert_same, block, blocks, read, refs, write};

#[test]
fn data_reads_as_zeroes_and_the_rest_as_written() {
    let disk = MetadataDisk::new(1000).unwrap();
    let pool = blocks(0, 8);
    let classes = [
        Class::Data,
        Class::Carrier,
        Class::Table,
        Class::Data,
        Class::Data,
        Class::Super,
        Class::Data,
        Class::Carrier,
    ];
    let mixed: Vec<BlockRef<'_>> =
        pool.iter().zip(classes).map(|(block, class)| BlockRef { block, class }).collect();
    let expected: Vec<Block> = mixed
        .iter()
        .map(|b| if b.class == Class::Data { *Block::zeroed() } else { b.block.clone() })
        .collect();
    disk.write(&[Run { at: Pba(10), blocks: &mixed }]).unwrap();
    disk.write_durable(&Run { at: Pba(992), blocks: &mixed }).unwrap();
    assert_same(&read(&disk, 10, 8).unwrap(), &expected);
    assert_same(&read(&disk, 992, 8).unwrap(), &expected);
    assert_eq!(disk.counters().now().written(Class::Data), 8);
}

#[test]
fn data_over_metadata_leaves_zeroes_and_gives_the_memory_back() {
    let disk = MetadataDisk::new(1000).unwrap();
    let pool = blocks(0, 500);
    write(&disk, 0, &pool).unwrap();
    assert!(disk.kept_bytes().unwrap() >= 500 * 4096);
    disk.write(&[Run { at: Pba(1), blocks: &refs(&pool[1..], Class::Data) }]).unwrap();
    assert_same(&read(&disk, 0, 1).unwrap(), &[block(0)]);
    assert!(read(&disk, 1, 499).unwrap().iter().all(Block::is_zero));
    assert!(disk.kept_bytes().unwrap() <= 16 * 4096);
}

#[test]
fn neither_data_nor_metadata_count_as_memory_of_this_process() {
    let disk = MetadataDisk::new((64 << 30) / 4096).unwrap();
    let pool = blocks(0, 1024);
    let before = process::memory().unwrap().resident_bytes;
    for (i, class) in [Class::Data, Class::Table].into_iter().cycle().take(32).enumerate() {
        disk.write(&[Run { at: Pba(i as u64 * 500_000), blocks: &refs(&pool, class) }]).unwrap();
    }
    disk.flush().unwrap();
    assert!(disk.kept_bytes().unwrap() >= 16 * (4 << 20));
    assert!(process::memory().unwrap().resident_bytes < before + (16 << 20));
}

#[test]
fn ranges_past_the_end_are_errors() {
    let disk = MetadataDisk::new(100).unwrap();
    for at in [100, u64::MAX, 1 << 52] {
        assert_eq!(read(&disk, at, 1).unwrap_err().kind(), Kind::Io);
        assert_eq!(write(&disk, at, &[block(1)]).unwrap_err().kind(), Kind::Io);
        assert_eq!(disk.allocate(Pba(at), 1).unwrap_err().kind(), Kind::Io);
    }
    assert_eq!(MetadataDisk::new(u64::MAX).unwrap_err().kind(), Kind::NoSpace);
}
