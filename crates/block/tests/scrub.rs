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
    Acts, Asked,
    check::{ScrubReport, scrub, scrub_only, scrub_open},
    format::{
        carrier::Carrier,
        page::{MapEntry, ReferenceEntry, Table},
    },
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
                    if let Some(MapEntry::Block { pba, form, .. }) = MapEntry::get(&page, slot)
                        && form.is_compressed() == wanted
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
            // Flipped bits beside the data of a carrier lose nothing, as reads say.
            let (name, lba) = expected.first().unwrap();
            let engine = open(&copy(&disk)).unwrap();
            let is_whole = read(&engine, engine.find_volume(name).unwrap(), lba.0).is_ok();
            assert_eq!(report.bad[0].whole, is_whole, "{bit}");
            let lost = if is_whole { 0 } else { expected.len() as u64 };
            assert_eq!(report.bad[0].names_found, lost);
            assert!(report.bad[0].names.iter().all(|name| expected.contains(name)));
            flip(&disk, pba, bit);
        }
    }
    let (disk, _) = Subject::filled().killed();
    let report = scrubbed(&disk);
    assert!(report.is_well() && report.blocks > 100);
}

/// Physical blocks in use that are wanted.
fn in_use(
    disk: &onefold_backend::MemoryDisk,
    wanted: impl Fn(Pba, ReferenceEntry) -> bool,
) -> Vec<Pba> {
    let mut all = Vec::new();
    let leaves = pages(disk, Table::References, 0, &root(disk, Table::References, 0));
    for (id, pointer) in leaves.into_iter().filter(|(id, _)| id.level == 0) {
        let page = get(disk, pointer.address);
        let entries = (0..1008).map(|slot| (Pba(id.index * 1008 + slot), slot));
        let entries = entries.map(|(pba, slot)| (pba, ReferenceEntry::get(&page, slot)));
        all.extend(
            entries
                .filter(|(pba, entry)| entry.references > 0 && wanted(*pba, *entry))
                .map(|(pba, _)| pba),
        );
    }
    all
}

/// The maps of [`family`].
const FAMILY: [&str; 4] = ["volume 0", "volume 0@s1", "clone", "clone@own"];

/// A volume, its snapshot, a clone of that and the clone's own snapshot, which have much in common.
fn family() -> Arc<onefold_backend::MemoryDisk> {
    let mut subject = Subject::with_snapshots();
    // One block at more places than a report names.
    for n in 0..40 {
        subject.write("volume 0", 1000 + n, 31);
    }
    let volume = subject.engine.find_volume("volume 0").unwrap();
    wait(&subject, |acts| acts.snapshot(&[(volume, "many".into())], 1).unwrap().1);
    let snapshot = subject.engine.find_volume("volume 0@s1").unwrap();
    wait(&subject, |acts| acts.clone_volume(snapshot, "clone", 1).unwrap().1);
    let clone = subject.engine.find_volume("clone").unwrap();
    wait(&subject, |acts| acts.snapshot(&[(clone, "own".into())], 1).unwrap().1);
    for n in 0..20 {
        subject.write("clone", n * 17 % 300, 900 + n);
        subject.write("volume 0", n * 23 % 300, 950 + n);
    }
    subject.closed().0
}

/// Runs steps until an act is durable.
fn wait(subject: &Subject, ask: impl FnOnce(&Acts<'_>) -> Asked) {
    let acts = Acts::of(&subject.engine);
    subject.engine.flush().unwrap();
    let asked = ask(&acts);
    while acts.done() < asked.number {
        subject.engine.flush().unwrap();
        subject.engine.checkpoint().unwrap();
    }
}

#[test]
fn each_map_that_lost_a_block_is_named() {
    let disk = family();
    let maps = [&FAMILY[..], &["volume 0@s0", "volume 0@many", "volume 5", "volume 7"]].concat();
    let whole = contents(&disk, &maps);
    assert!(whole.iter().flatten().all(Option::is_some));
    let (mut in_all, mut crowded) = (0, 0);
    // Those that are named often, and a part of the others.
    let blocks = in_use(&disk, |pba, entry| entry.references > 30 || pba.0 % 29 == 0);
    for pba in blocks {
        let broken = copy(&disk);
        put(&broken, pba, &onefold_core::Block([0x5a; 4096]));
        // What reads say, map by map.
        let mut lost = BTreeSet::new();
        for (name, cells) in maps.iter().zip(contents(&broken, &maps)) {
            let places = (0..).zip(cells).filter(|(_, cell)| cell.is_none());
            lost.extend(places.map(|(lba, _)| ((*name).to_owned(), Lba(lba))));
        }
        let report = scrubbed(&broken);
        assert_eq!((report.bad_found, report.whole_found, report.bad[0].pba), (1, 0, pba));
        let told: BTreeSet<(String, Lba)> = report.bad[0].names.iter().cloned().collect();
        assert_eq!(report.bad[0].names_found, lost.len() as u64, "{lost:?}");
        assert!(told.is_subset(&lost), "{told:?}");
        let named = |names: &BTreeSet<(String, Lba)>| -> BTreeSet<String> {
            names.iter().map(|(name, _)| name.clone()).collect()
        };
        assert_eq!(named(&told), named(&lost));
        in_all += usize::from(FAMILY.iter().all(|name| named(&lost).contains(*name)));
        crowded += usize::from(told.len() < lost.len());
    }
    assert!(in_all > 5 && crowded > 0, "{in_all} {crowded}");
}

#[test]
fn a_carrier_whose_unused_bytes_rot_loses_nothing() {
    let (disk, model) = Subject::filled().closed();
    let identity = identity(&superblock(&disk));
    let (mut whole, mut lost) = (0, 0);
    for pba in in_use(&disk, |_, entry| entry.carried).into_iter().step_by(9) {
        let block = get(&disk, pba);
        assert!(Carrier::proven(&identity, &block, pba).is_some());
        // The epoch, a record, the checksum; the last byte of the data.
        for (bit, is_lost) in [(131, false), (80 * 8 + 9, false), (64 * 8, false), (32_767, true)] {
            flip(&disk, pba, bit);
            let report = scrubbed(&disk);
            let [bad] = &report.bad[..] else { panic!("{report:?}") };
            assert_eq!((bad.pba, bad.whole, report.is_well()), (pba, !is_lost, false));
            assert_eq!(report.whole_found, u64::from(!is_lost), "{bad:?}");
            assert_eq!((bad.names.is_empty(), bad.names_found == 0), (!is_lost, !is_lost));
            assert_eq!(bad.what.contains("its data is whole"), !is_lost, "{bad:?}");
            if !is_lost {
                assert_holds(&disk, &model);
            }
            whole += usize::from(!is_lost);
            lost += usize::from(is_lost);
            flip(&disk, pba, bit);
        }
    }
    assert!(whole > 5 && lost > 1, "{whole} {lost}");
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
