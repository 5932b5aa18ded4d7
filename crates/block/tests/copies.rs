//! What lies in two copies: superblocks and pages of the zone list. Any one copy may rot.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod damage;

use std::sync::Arc;

use damage::{Subject, assert_holds, copy, flip, get, open, put, read, superblock};
use onefold_backend::MemoryDisk;
use onefold_block::format::geometry::SUPERBLOCKS;
use onefold_core::{Block, Pba};

/// Places of the first page of the zone list, and the superblocks.
fn places(disk: &Arc<MemoryDisk>) -> Vec<Pba> {
    superblock(disk).fixed.geometry.list_page(0).into_iter().chain(SUPERBLOCKS).collect()
}

#[test]
fn a_crash_and_one_rotten_copy_at_any_moment_lose_nothing() {
    let mut subject = Subject::new();
    subject.create("volume 0", 2000);
    for moment in 0..120 {
        for n in 0..5 {
            subject.write("volume 0", moment * 5 + n, moment * 31 + n * 7);
        }
        subject.engine.flush().unwrap();
        if moment % 50 == 49 {
            subject.engine.checkpoint().unwrap();
        }
        for at in places(&subject.disk) {
            let disk = copy(&subject.disk);
            put(&disk, at, &Block([0x5a; 4096]));
            assert_holds_volume(&disk, &subject, moment * 5 + 5);
        }
    }
}

fn assert_holds_volume(disk: &Arc<MemoryDisk>, subject: &Subject, end: u64) {
    let engine = open(disk).unwrap();
    let id = engine.find_volume("volume 0").unwrap();
    // The newest blocks are those that a zone listed last holds.
    for lba in end.saturating_sub(40)..end {
        assert!(
            read(&engine, id, lba).unwrap() == subject.model[&("volume 0".to_owned(), lba)],
            "block {lba}"
        );
    }
}

#[test]
fn a_rotten_copy_is_whole_again_after_the_next_opening() {
    let (disk, model) = Subject::filled().killed();
    for at in places(&disk) {
        let disk = copy(&disk);
        put(&disk, at, &Block([0x5a; 4096]));
        drop(open(&disk).unwrap());
        assert!(get(&disk, at).0 != [0x5a; 4096]);
        for other in places(&disk) {
            let disk = copy(&disk);
            put(&disk, other, &Block([0x5a; 4096]));
            assert_holds(&disk, &model);
        }
    }
}

#[test]
fn a_store_opens_with_any_one_bit_of_a_superblock_flipped() {
    let (disk, _) = Subject::new().closed();
    for at in SUPERBLOCKS {
        let good = [get(&disk, SUPERBLOCKS[0]), get(&disk, SUPERBLOCKS[1])];
        for bit in 0..4096 * 8 {
            flip(&disk, at, bit);
            let opened = open(&disk);
            assert!(opened.is_ok(), "bit {bit} of the superblock at {at}: {:?}", opened.err());
            drop(opened);
            for (at, block) in SUPERBLOCKS.into_iter().zip(&good) {
                put(&disk, at, block);
            }
        }
    }
}
