//! `scrub`: damaged data is found and named, and nothing else, also while the store is at work.
#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod damage;

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use damage::*;
use onefold_block::{
    check::{ScrubReport, scrub, scrub_only, scrub_open},
    format::page::{MapEntry, Table},
};
use onefold_core::{Disk, Lba, Pba};

fn scrubbed(disk: &Arc<onefold_backend::MemoryDisk>) -> ScrubReport {
    let disk: Arc<dyn Disk> = disk.clone();
    scrub(&disk, &mut |_| {}, &mut || false).unwrap()
}

#[test]
fn damaged_data_is_found_with_everybody_who_loses_it() {
    let (disk, _) = Subject::filled().closed();
    assert!(scrubbed(&disk).is_well());
    for wanted in [false, true] {
        // The block that most addresses name.
        let mut names: std::collections::BTreeMap<Pba, BTreeSet<(String, Lba)>> =
            Default::default();
        for volume in [1, 8] {
            for (id, pointer) in pages(&disk, Table::Map, volume, &root(&disk, Table::Map, volume))
            {
                let page = get(&disk, pointer.address);
                for slot in (0..288).filter(|_| id.level == 0) {
                    if let Some(MapEntry::Block { pba, carried, .. }) = MapEntry::get(&page, slot)
                        && carried == wanted
                    {
                        let name = format!("volume {}", volume - 1);
                        names.entry(pba).or_default().insert((name, Lba(id.index * 288 + slot)));
                    }
                }
            }
        }
        let (&pba, expected) = names.iter().max_by_key(|(_, names)| names.len()).unwrap();
        for bit in [0, 900, 20_000, 32_767] {
            flip(&disk, pba, bit);
            let report = scrubbed(&disk);
            assert_eq!((report.bad_found, report.bad[0].pba), (1, pba));
            assert_eq!(report.bad[0].names_found, expected.len() as u64);
            assert!(report.bad[0].names.iter().all(|name| expected.contains(name)));
            flip(&disk, pba, bit);
        }
    }
    let (disk, _) = Subject::filled().killed();
    let report = scrubbed(&disk);
    assert!(report.is_well() && report.blocks > 100);
}

#[test]
fn of_one_map_each_lost_range_is_told_and_no_other() {
    let (disk, _) = Subject::filled().closed();
    let volume = 1;
    let mut places: std::collections::BTreeMap<Pba, BTreeSet<u64>> = Default::default();
    let mut leaves = Vec::new();
    for (id, pointer) in pages(&disk, Table::Map, volume, &root(&disk, Table::Map, volume)) {
        if id.level > 0 {
            continue;
        }
        leaves.push((id.index, pointer.address));
        let page = get(&disk, pointer.address);
        for slot in 0..288 {
            if let Some(MapEntry::Block { pba, .. }) = MapEntry::get(&page, slot) {
                places.entry(pba).or_default().insert(id.index * 288 + slot);
            }
        }
    }
    let scrubbed = |disk: &Arc<onefold_backend::MemoryDisk>| {
        let disk: Arc<dyn Disk> = disk.clone();
        scrub_only(&disk, "volume 0", &mut |_| {}, &mut || false).unwrap()
    };
    let told = |report: &onefold_block::check::MapScrub| -> BTreeSet<u64> {
        report.lost.iter().flat_map(|lost| lost.first.0..lost.first.0 + lost.blocks).collect()
    };
    let whole = scrubbed(&disk);
    assert!(whole.is_well() && whole.blocks >= places.len() as u64);
    for (pba, lost) in places.iter().take(40) {
        flip(&disk, *pba, 900);
        let report = scrubbed(&disk);
        assert_eq!((&told(&report), report.lost_blocks), (lost, lost.len() as u64));
        flip(&disk, *pba, 900);
    }
    // A leaf that can't be read costs its addresses, and the rest is read.
    let (index, pba) = leaves[0];
    flip(&disk, pba, 4000);
    let report = scrubbed(&disk);
    let told = told(&report);
    assert!(!told.is_empty() && told.iter().all(|at| at / 288 == index), "{report:?}");
    let disk: Arc<dyn Disk> = disk;
    let none = scrub_only(&disk, "nobody", &mut |_| {}, &mut || false);
    assert_eq!(none.unwrap_err().kind(), onefold_core::Kind::NotFound);
}

#[test]
fn damaged_pages_are_passed_over_and_told() {
    let (disk, _) = Subject::filled().closed();
    let blocks = scrubbed(&disk).blocks;
    for table in [Table::References, Table::Fingerprints] {
        let disk = copy(&disk);
        let all = pages(&disk, table, 0, &root(&disk, table, 0));
        flip(&disk, all[1].1.address, 4000);
        let report = scrubbed(&disk);
        assert!(
            report.unread.len() == 1 && report.blocks < blocks && report.blocks > 0,
            "{report:?}"
        );
        flip(&disk, all[0].1.address, 4000);
        let report = scrubbed(&disk);
        assert!(!report.unread.is_empty() && report.blocks == 0, "{report:?}");
    }
}

#[test]
fn a_store_at_work_is_scrubbed_without_false_alarms() {
    let mut subject = Subject::filled();
    let end = AtomicBool::new(false);
    let engine = subject.engine;
    let volume = engine.find_volume("volume 0").unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut n = 0u64;
            while !end.load(Ordering::Relaxed) {
                n += 1;
                let data = content(n.wrapping_mul(0x9e37_79b9) % 5000);
                persevere(&engine, || engine.write(volume, n * 37 % 1900 * 4096, &data));
                if n.is_multiple_of(20) {
                    engine.flush().unwrap();
                }
                if n.is_multiple_of(100) {
                    engine.checkpoint().unwrap();
                }
            }
        });
        for _ in 0..150 {
            let report = scrub_open(&engine, &mut |_| {}, &mut || false);
            assert!(report.is_well(), "{report:?}");
        }
        end.store(true, Ordering::Relaxed);
    });
    let mut asked = 0;
    let report = scrub_open(&engine, &mut |_| {}, &mut || {
        asked += 1;
        asked > 2
    });
    assert!(report.cancelled && !report.is_well());
    engine.flush().unwrap();
    engine.checkpoint().unwrap();
    assert!(engine.counts().checkpoints > 5);
    subject.engine = engine;
    assert!(scrubbed(&subject.closed().0).is_well());
}
