//! `repair` with leaves in place: as with other tables, and whatever a crash left.
#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod damage;

use std::sync::Arc;

use damage::*;
use onefold_backend::{MemoryDisk, MonotonicClock};
use onefold_block::{
    check::{Repaired, What, check, inspect, repair},
    format::page::{PageId, Pointer, Table},
};
use onefold_core::{Disk, Kind};

fn repaired(disk: &Arc<MemoryDisk>) -> Repaired {
    let disk: Arc<dyn Disk> = disk.clone();
    repair(&disk, Arc::new(MonotonicClock::new()), &settings(), &mut |_| {}).unwrap()
}

#[track_caller]
fn assert_restored(disk: &Arc<MemoryDisk>, model: &Model) {
    let found = repaired(disk);
    assert!(
        found.after.is_well() && found.left.is_empty() && found.lost_addresses == 0,
        "{found:#?}"
    );
    assert!(!found.restored.is_empty());
    assert_holds(disk, model);
    assert_goes_on(disk);
}

/// The store takes new data, finds the old as duplicates, and closes in order.
#[track_caller]
fn assert_goes_on(disk: &Arc<MemoryDisk>) {
    let disk = copy(disk);
    let engine = open(&disk).unwrap();
    let volume = engine.find_volume("volume 3").unwrap();
    let live = engine.status().live_blocks;
    for n in 0..200 {
        let data = content(30_000 + n * 3);
        persevere(&engine, || engine.write(volume, n * 4096, &data));
    }
    engine.flush().unwrap();
    for n in 0..300 {
        let data = content(90_000 + n);
        persevere(&engine, || engine.write(volume, (n + 500) * 4096, &data));
    }
    engine.flush().unwrap();
    assert!((0..200).all(|n| read(&engine, volume, n).unwrap() == content(30_000 + n * 3)));
    engine.close().unwrap();
    assert!(engine.status().live_blocks <= live + 300 + 200, "{live}");
    drop(engine);
    let disk: Arc<dyn Disk> = disk;
    let report = check(&disk, &mut |_| {}).unwrap();
    assert!(report.is_well(), "{:#?}", report.problems);
}

/// More than a flipped bit.
fn smash(disk: &MemoryDisk, pointer: &Pointer) {
    let mut block = get(disk, pointer.address);
    block.0[512..1024].iter_mut().for_each(|byte| *byte ^= 0xa5);
    put(disk, pointer.address, &block);
}

fn table(disk: &MemoryDisk, table: Table, volume: u32) -> Vec<(PageId, Pointer)> {
    pages(disk, table, volume, &root(disk, table, volume))
}

fn both() -> [(Arc<MemoryDisk>, Model); 2] {
    [Subject::filled_in_place().closed(), Subject::filled_in_place().killed()]
}

#[test]
fn a_flipped_bit_in_any_page_is_flipped_back() {
    for (disk, model) in both() {
        let mut n = 0;
        for (kind, volume) in [
            (Table::Map, 1),
            (Table::References, 0),
            (Table::Fingerprints, 0),
            (Table::Zones, 0),
            (Table::Catalogue, 0),
        ] {
            for (_, pointer) in table(&disk, kind, volume).into_iter().take(4) {
                n += 1;
                let copy = copy(&disk);
                flip(&copy, pointer.address, (n * 7919 + 3) % 32768);
                let found = repaired(&copy);
                assert!(
                    found.after.is_well() && found.left.is_empty() && found.lost_addresses == 0,
                    "{pointer:?}: {found:#?}"
                );
                assert_holds(&copy, &model);
            }
        }
    }
}

#[test]
fn counts_fingerprints_and_free_space_are_rebuilt_from_the_maps() {
    for (disk, model) in both() {
        for kind in [Table::References, Table::Fingerprints, Table::Zones] {
            let all = table(&disk, kind, 0);
            for (_, pointer) in [all[0], all[1], all[all.len() - 1]] {
                let copy = copy(&disk);
                smash(&copy, &pointer);
                assert_restored(&copy, &model);
            }
        }
        let copy = copy(&disk);
        for kind in [Table::References, Table::Fingerprints, Table::Zones] {
            table(&disk, kind, 0).iter().for_each(|(_, pointer)| smash(&copy, pointer));
        }
        assert_restored(&copy, &model);
        // All fingerprints were computed from the data: what is written again is found.
        let engine = open(&copy).unwrap();
        while engine.idle_step(onefold_block::Idleness::Long).unwrap() {}
        let volume = engine.find_volume("volume 4").unwrap();
        let live = engine.status().live_blocks;
        for n in 0..200 {
            persevere(&engine, || engine.write(volume, n * 4096, &content(30_000 + n * 3)));
        }
        engine.close().unwrap();
        assert_eq!(engine.status().live_blocks, live);
        let again = repaired(&copy);
        assert!(again.restored.is_empty() && again.after.is_well(), "{again:#?}");
    }
}

#[test]
fn a_lost_leaf_of_a_map_reads_as_errors_until_it_is_written() {
    for (disk, mut model) in both() {
        let leaf = table(&disk, Table::Map, 1)
            .into_iter()
            .filter(|page| page.0.level == 0)
            .nth(1)
            .unwrap();
        smash(&disk, &leaf.1);
        let found = repaired(&disk);
        assert!(found.after.is_well(), "{found:#?}");
        assert_eq!((found.left.len(), found.lost_addresses), (1, 288));
        let engine = open(&disk).unwrap();
        let volume = engine.find_volume("volume 0").unwrap();
        for lba in 0..2000 {
            let expected = model.get(&("volume 0".into(), lba)).copied().unwrap_or([0; 4096]);
            match read(&engine, volume, lba) {
                Ok(found) => {
                    assert!(found == expected && !(288..576).contains(&lba), "block {lba}")
                }
                Err(e) => assert!(
                    e.kind() == Kind::Corrupt && (288..576).contains(&lba),
                    "block {lba}: {e}"
                ),
            }
        }
        for lba in 288..576 {
            let data = content(lba);
            persevere(&engine, || engine.write(volume, lba * 4096, &data));
            model.insert(("volume 0".into(), lba), data);
        }
        engine.close().unwrap();
        assert_holds(&disk, &model);
        let disk: Arc<dyn Disk> = disk.clone();
        let report = check(&disk, &mut |_| {}).unwrap();
        assert!(report.is_well() && report.lost_addresses == 0, "{:#?}", report.problems);
    }
}

#[test]
fn every_leaf_in_place_can_be_inspected() {
    let (disk, _) = Subject::filled_in_place().closed();
    for (kind, volume) in [(Table::Map, 1), (Table::References, 0), (Table::Fingerprints, 0)] {
        for (id, pointer) in table(&disk, kind, volume) {
            let text = inspect(&*disk, &What::Block(pointer.address)).unwrap();
            assert!(!text.is_empty(), "{id:?}");
        }
    }
}

#[test]
fn an_interrupted_repair_can_be_run_again() {
    for (disk, model) in both() {
        for kind in [Table::References, Table::Fingerprints, Table::Zones] {
            smash(&disk, &table(&disk, kind, 0)[1].1);
        }
        flip(&disk, table(&disk, Table::Catalogue, 0)[0].1.address, 1234);
        let mut ended = false;
        for writes in 0..200 {
            let copy = copy(&disk);
            let dying: Arc<dyn Disk> = Arc::new(Dying::new(&copy, writes));
            let outcome = repair(&dying, Arc::new(MonotonicClock::new()), &settings(), &mut |_| {});
            ended = outcome.is_ok_and(|repaired| repaired.after.is_well());
            let again = repaired(&copy);
            assert!(
                again.after.is_well() && again.left.is_empty(),
                "after {writes} writes: {again:#?}"
            );
            assert_holds(&copy, &model);
            if ended {
                break;
            }
        }
        assert!(ended);
    }
}
