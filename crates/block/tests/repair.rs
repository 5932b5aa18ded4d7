//! `repair`: what can be known is restored, what can't reads as errors, and nothing else changes.
#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod damage;

use std::sync::Arc;

use damage::*;
use onefold_backend::{MemoryDisk, MonotonicClock};
use onefold_block::{
    check::{Repaired, check, repair, repair_within},
    format::{
        carrier::Carrier,
        catalogue::Volume,
        geometry::SUPERBLOCKS,
        page::{self, Form, MapEntry, PageId, Pointer, ReferenceEntry, Table, ZoneEntry},
        share::Share,
        superblock::Root,
    },
};
use onefold_core::{Block, Disk, Kind, Pba};

fn repaired(disk: &Arc<MemoryDisk>) -> Repaired {
    let disk: Arc<dyn Disk> = disk.clone();
    repair(&disk, Arc::new(MonotonicClock::new()), &settings(), &mut |_| {}).unwrap()
}

#[track_caller]
fn assert_restored(disk: &Arc<MemoryDisk>, model: &Model) -> Repaired {
    let repaired = repaired(disk);
    assert!(
        repaired.after.is_well() && repaired.left.is_empty() && repaired.lost_addresses == 0,
        "{repaired:#?}"
    );
    assert!(!repaired.restored.is_empty());
    assert_holds(disk, model);
    repaired
}

/// More than a flipped bit.
fn smash(disk: &MemoryDisk, at: Pba) {
    let mut block = get(disk, at);
    block.0[512..1024].iter_mut().for_each(|byte| *byte ^= 0xa5);
    put(disk, at, &block);
}

fn table(disk: &MemoryDisk, table: Table, volume: u32) -> Vec<(PageId, Pointer)> {
    pages(disk, table, volume, &root(disk, table, volume))
}

#[test]
fn a_flipped_bit_in_any_record_is_flipped_back() {
    for (disk, model) in [Subject::filled().closed(), Subject::filled().killed()] {
        let mut places: Vec<Pba> = SUPERBLOCKS.to_vec();
        places.extend(superblock(&disk).fixed.geometry.list_page(0));
        for (kind, volume) in [
            (Table::Map, 1),
            (Table::References, 0),
            (Table::Fingerprints, 0),
            (Table::Zones, 0),
            (Table::Catalogue, 0),
        ] {
            let all = table(&disk, kind, volume);
            places.extend([all[0].1.address, all[1].1.address]);
        }
        let identity = identity(&superblock(&disk));
        let proven = |at: &Pba| Carrier::proven(&identity, &get(&disk, *at), *at).is_some();
        places.extend((0..disk.blocks()).map(Pba).filter(proven).step_by(37));
        for (n, &at) in places.iter().enumerate() {
            let copy = copy(&disk);
            flip(&copy, at, (n * 7919 + 3) % 32768);
            let restored = repaired(&copy);
            assert!(
                restored.after.is_well() && restored.left.is_empty(),
                "block {at}: {restored:#?}"
            );
            assert_holds(&copy, &model);
        }
    }
}

#[test]
fn the_good_copy_restores_a_superblock_and_the_zone_list() {
    for (disk, model) in [Subject::filled().closed(), Subject::filled().killed()] {
        let list = superblock(&disk).fixed.geometry.list_page(0);
        for at in [SUPERBLOCKS[0], SUPERBLOCKS[1], list[0], list[1]] {
            let copy = copy(&disk);
            smash(&copy, at);
            let newest = superblock(&disk).state.sequence % 2;
            if superblock(&disk).state.clean || (at.0 == 8) == (newest == 0) {
                assert_restored(&copy, &model);
            }
        }
        let both = copy(&disk);
        list.iter().for_each(|&at| smash(&both, at));
        if superblock(&disk).state.clean {
            assert_restored(&both, &model);
        } else {
            let repaired = repaired(&both);
            assert!(!repaired.left.is_empty() && !repaired.after.is_well());
        }
    }
}

#[test]
fn counts_and_free_space_are_rebuilt_from_the_maps() {
    for (disk, model) in [Subject::filled().closed(), Subject::filled().killed()] {
        for kind in [Table::References, Table::Fingerprints, Table::Zones] {
            let all = table(&disk, kind, 0);
            for (_, pointer) in [all[0], all[1], all[all.len() - 1]] {
                let copy = copy(&disk);
                smash(&copy, pointer.address);
                // A crash needs the bitmaps of the zones that it left open.
                assert_restored(&copy, &model);
            }
        }
        // All of them at once.
        let copy = copy(&disk);
        for kind in [Table::References, Table::Fingerprints, Table::Zones] {
            table(&disk, kind, 0).iter().for_each(|(_, pointer)| smash(&copy, pointer.address));
        }
        assert_restored(&copy, &model);
        let again = repaired(&copy);
        assert!(again.restored.is_empty() && again.after.is_well(), "{again:#?}");
    }
}

#[test]
fn a_damaged_index_is_dropped_since_it_can_be_made_again() {
    let (disk, model) = Subject::with_index().closed();
    for n in [0, 1] {
        let copy = copy(&disk);
        smash(&copy, table(&copy, Table::Index, 0)[n].1.address);
        assert_restored(&copy, &model);
        assert_eq!(superblock(&copy).state.index_entries, 0);
    }
    flip(&disk, table(&disk, Table::Index, 0)[1].1.address, 7000);
    assert_restored(&disk, &model);
    assert!(superblock(&disk).state.index_entries > 0);
}

fn forge_table(
    disk: &MemoryDisk,
    kind: Table,
    id: PageId,
    change: &mut dyn FnMut(&mut Block),
) -> Root {
    let new = forge(disk, &root(disk, kind, 0), id, change);
    forge_superblock(disk, |superblock| match kind {
        Table::References => superblock.state.references = new,
        Table::Fingerprints => superblock.state.fingerprints = new,
        Table::Zones => superblock.state.zones = new,
        _ => superblock.state.catalogue = new,
    });
    new
}

#[test]
fn tables_that_disagree_are_made_to_agree() {
    let (disk, model) = Subject::filled().closed();
    let (id, pointer) = table(&disk, Table::References, 0).pop().unwrap();
    let page = get(&disk, pointer.address);
    let used: Vec<u64> =
        (0..1008).filter(|&slot| ReferenceEntry::get(&page, slot).references > 0).collect();
    let changes: [fn(&mut ReferenceEntry); 4] = [
        |entry| entry.references -= 1,
        |entry| entry.references += 7,
        |entry| entry.references = ReferenceEntry::SATURATED,
        |entry| entry.carried = !entry.carried,
    ];
    for slots in [&used[..1], &used] {
        for change in changes {
            let copy = copy(&disk);
            forge_table(&copy, Table::References, id, &mut |page| {
                for &slot in slots {
                    let mut entry = ReferenceEntry::get(page, slot);
                    change(&mut entry);
                    entry.set(page, slot);
                }
            });
            assert_restored(&copy, &model);
        }
        let copy = copy(&disk);
        let pbas: Vec<u64> = slots.iter().map(|slot| id.index * 1008 + slot).collect();
        let leaf = PageId { table: Table::Fingerprints, index: pbas[0] / 252, ..id };
        forge_table(&copy, Table::Fingerprints, leaf, &mut |page| {
            for slot in pbas.iter().filter(|pba| *pba / 252 == leaf.index).map(|pba| pba % 252) {
                let mut fingerprint = page::fingerprint(page, slot);
                fingerprint.0[0] ^= 1;
                page::set_fingerprint(page, slot, &fingerprint);
            }
        });
        assert_restored(&copy, &model);
    }
    let (id, _) = table(&disk, Table::Zones, 0).pop().unwrap();
    for set in [true, false] {
        let copy = copy(&disk);
        forge_table(&copy, Table::Zones, id, &mut |page| {
            for slot in 0..31 {
                let mut entry = ZoneEntry::get(page, slot);
                if entry.used.count() > 0 {
                    (0..16).for_each(|n| {
                        _ = if set { entry.used.set(n) } else { entry.used.clear(n) }
                    });
                    entry.set(page, slot);
                }
            }
        });
        assert_restored(&copy, &model);
    }
    for memory in [1, 5000] {
        let copy = copy(&disk);
        forge_superblock(&copy, |superblock| superblock.state.used_blocks += 5);
        let copied: Arc<dyn Disk> = copy.clone();
        let repaired = repair_within(
            &copied,
            Arc::new(MonotonicClock::new()),
            &settings(),
            memory,
            &mut |_| {},
        )
        .unwrap();
        assert!(repaired.after.is_well(), "{repaired:#?}");
        assert_holds(&copy, &model);
    }
}

#[test]
fn a_lost_leaf_of_a_map_reads_as_errors_until_it_is_written() {
    for (disk, mut model) in [Subject::filled().closed(), Subject::filled().killed()] {
        let leaf = table(&disk, Table::Map, 1)
            .into_iter()
            .filter(|page| page.0.level == 0)
            .nth(1)
            .unwrap();
        smash(&disk, leaf.1.address);
        let repaired = repaired(&disk);
        assert!(repaired.after.is_well(), "{repaired:#?}");
        assert_eq!((repaired.left.len(), repaired.lost_addresses), (1, 288));
        assert_eq!(repaired.lost.len(), 1);
        let engine = open(&disk).unwrap();
        let volume = engine.find_volume("volume 0").unwrap();
        let (mut lost, mut kept) = (0, 0);
        for lba in 0..2000 {
            let expected = model.get(&("volume 0".into(), lba)).copied().unwrap_or([0; 4096]);
            match read(&engine, volume, lba) {
                Ok(found) => {
                    assert!(found == expected, "block {lba}");
                    kept += 1;
                }
                Err(e) => {
                    assert_eq!(e.kind(), Kind::Corrupt);
                    assert!((288..576).contains(&lba), "block {lba}: {e}");
                    lost += 1;
                }
            }
        }
        // After a crash, records newer than the leaf still tell of some of its addresses.
        assert!(lost > 0 && lost <= 288 && kept >= 2000 - 288);
        let part = engine.write(volume, 300 * 4096 + 5, &[1; 10]);
        assert!(part.is_ok() || part.unwrap_err().kind() == Kind::Corrupt);
        assert!(engine.extents(volume, onefold_core::Lba(0), 2000, 1000).is_ok());
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
fn an_inner_page_of_a_map_is_put_together_again_from_its_children() {
    for (disk, model) in [Subject::filled().closed(), Subject::filled().killed()] {
        let top = table(&disk, Table::Map, 1)[0];
        assert!(top.0.level > 0);
        smash(&disk, top.1.address);
        let repaired = repaired(&disk);
        assert!(
            repaired.after.is_well() && repaired.left.is_empty() && repaired.lost_addresses == 0,
            "{repaired:#?}"
        );
        assert_holds(&disk, &model);
    }
    // Without the zone table nobody knows which of several versions is the newest: all is lost, and
    // nothing is made up.
    let (disk, model) = Subject::filled().closed();
    smash(&disk, table(&disk, Table::Map, 1)[0].1.address);
    smash(&disk, table(&disk, Table::Zones, 0)[0].1.address);
    let repaired = repaired(&disk);
    assert!(repaired.after.is_well(), "{repaired:#?}");
    assert_eq!(repaired.lost_addresses, 2000);
    let engine = open(&disk).unwrap();
    let (zero, seven) =
        (engine.find_volume("volume 0").unwrap(), engine.find_volume("volume 7").unwrap());
    assert!((0..2000).all(|lba| read(&engine, zero, lba).is_err()));
    for lba in 0..2000 {
        assert!(
            read(&engine, seven, lba).unwrap()
                == model.get(&("volume 7".into(), lba)).copied().unwrap_or([0; 4096])
        );
    }
    persevere(&engine, || engine.trim(zero, 0, 2000 * 4096));
    engine.close().unwrap();
    assert!((0..2000).all(|lba| {
        read(&open(&copy(&disk)).unwrap(), zero, lba).is_ok_and(|found| found == [0; 4096])
    }));
}

#[test]
fn wrong_map_entries_become_errors() {
    let (disk, mut model) = Subject::filled().closed();
    let leaf = table(&disk, Table::Map, 1).pop().unwrap().0;
    let page_block = root(&disk, Table::References, 0).page.address;
    let mut entries = vec![
        MapEntry::Block { pba: Pba(1), form: Form::Raw, prefix: 9 },
        MapEntry::Block { pba: page_block, form: Form::Raw, prefix: 9 },
        MapEntry::Block { pba: Pba(ZONES * ZONE_BLOCKS - 1), form: Form::Carried, prefix: 9 },
    ];
    let mut lost = Vec::new();
    let map = forge(&disk, &root(&disk, Table::Map, 1), leaf, &mut |page| {
        let used = (0..288)
            .filter(|&slot| matches!(MapEntry::get(page, slot), Some(MapEntry::Block { .. })));
        let used: Vec<u64> = used.collect();
        // One that names another block's content.
        if let Some(MapEntry::Block { pba, form, prefix }) = MapEntry::get(page, used[3]) {
            entries.push(MapEntry::Block { pba, form, prefix: prefix ^ 1 });
        }
        for (&slot, entry) in used.iter().zip(&entries) {
            entry.set(page, slot);
            lost.push(leaf.index * 288 + slot);
        }
    });
    let catalogue =
        table(&disk, Table::Catalogue, 0).into_iter().find(|page| page.0.level == 0).unwrap().0;
    forge_table(&disk, Table::Catalogue, catalogue, &mut |page| {
        let volume = Volume { map, ..Volume::get(page, 0).unwrap() };
        volume.set(page, 0);
    });
    let repaired = repaired(&disk);
    assert!(repaired.after.is_well() && repaired.lost_addresses == 4, "{repaired:#?}");
    let engine = open(&copy(&disk)).unwrap();
    let volume = engine.find_volume("volume 0").unwrap();
    for &lba in &lost {
        assert_eq!(read(&engine, volume, lba).unwrap_err().kind(), Kind::Corrupt);
    }
    let engine = open(&disk).unwrap();
    for lba in lost {
        persevere(&engine, || engine.trim(volume, lba * 4096, 4096));
        model.remove(&("volume 0".into(), lba));
    }
    engine.close().unwrap();
    assert_holds(&disk, &model);
}

#[test]
fn what_can_not_be_restored_is_told_and_left() {
    let (disk, _) = Subject::filled().closed();
    let catalogue = copy(&disk);
    smash(&catalogue, root(&disk, Table::Catalogue, 0).page.address);
    let told = repaired(&catalogue);
    assert!(!told.left.is_empty() && !told.after.is_well());

    let pending = Subject::filled().with_pending_discards().disk;
    smash(&pending, root(&pending, Table::Discards, 0).page.address);
    let told = repaired(&pending);
    assert!(!told.left.is_empty() && !told.after.is_well());

    let carrier = (0..disk.blocks()).map(Pba).find(|&at| {
        let entries = table(&disk, Table::References, 0)
            .into_iter()
            .filter(|page| page.0.level == 0 && page.0.index == at.0 / 1008);
        entries.into_iter().any(|(_, pointer)| {
            let entry = ReferenceEntry::get(&get(&disk, pointer.address), at.0 % 1008);
            entry.carried && entry.references > 0
        })
    });
    smash(&disk, carrier.unwrap());
    let told = repaired(&disk);
    assert_eq!(told.left.len(), 1);
    assert_eq!(told.after.problems_found, 1);
}

#[test]
fn durable_windows_whose_records_are_gone_are_given_up_and_told() {
    let mut subject = Subject::filled();
    subject.engine.checkpoint().unwrap();
    let before = subject.model.clone();
    for n in 0..60 {
        subject.write("volume 3", n, 5000 + n * 3);
        if n % 5 == 4 {
            subject.engine.flush().unwrap();
        }
    }
    subject.create("late", 50);
    subject.engine.flush().unwrap();
    subject.write("late", 3, 77);
    subject.engine.flush().unwrap();
    let (disk, model) = subject.killed();
    let newest = superblock(&disk);
    let identity = identity(&newest);
    let mut carriers: Vec<(Pba, u64)> = (0..disk.blocks())
        .map(Pba)
        .filter_map(|at| {
            let block = get(&disk, at);
            let header = Carrier::proven(&identity, &block, at)?.header;
            (header.window > newest.state.committed && header.epoch == newest.state.epoch)
                .then_some((at, header.window.0))
        })
        .collect();
    // Of the last window nobody tells that it was durable.
    carriers.sort_by_key(|&(_, window)| window);
    assert!(carriers.len() >= 12);
    for &(at, window) in &carriers[..carriers.len() - 1] {
        let copy = copy(&disk);
        smash(&copy, at);
        assert_eq!(open(&copy).map(drop).unwrap_err().kind(), Kind::Corrupt);
        let told = repaired(&copy);
        assert!(told.after.is_well(), "{told:#?}");
        assert_eq!(
            told.lost_windows.iter().map(|(from, to)| (from.0, to.0)).collect::<Vec<_>>(),
            [(window, window)]
        );
        // Each address holds its newest version, or the one before when that was lost.
        let engine = open(&copy).unwrap();
        let volume = engine.find_volume("volume 3").unwrap();
        let (mut old, mut new) = (0, 0);
        for lba in 0..60 {
            let key = ("volume 3".to_owned(), lba);
            match read(&engine, volume, lba) {
                Ok(found) if found == model[&key] => new += 1,
                Ok(found) => {
                    assert!(found == before.get(&key).copied().unwrap_or([0; 4096]), "block {lba}");
                    old += 1;
                }
                Err(e) => panic!("block {lba}: {e}"),
            }
        }
        assert!(new >= 50 && old <= 10);
    }
}

#[test]
fn an_interrupted_repair_can_be_run_again() {
    for (disk, model) in [Subject::filled().closed(), Subject::filled().killed()] {
        let list = superblock(&disk).fixed.geometry.list_page(0);
        let older = (superblock(&disk).state.sequence + 1) % 2;
        smash(&disk, SUPERBLOCKS[older as usize]);
        flip(&disk, list[0], 999);
        smash(&disk, table(&disk, Table::References, 0)[1].1.address);
        smash(&disk, table(&disk, Table::Fingerprints, 0)[1].1.address);
        smash(&disk, table(&disk, Table::Zones, 0)[1].1.address);
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

/// The maps of [`Subject::with_clone`] that share pages.
const SHARED: [&str; 3] = ["volume 0", "volume 0@s1", "clone"];

/// All entries of the catalogue of a store with snapshots.
fn maps(disk: &MemoryDisk) -> Vec<Volume> {
    let leaves = table(disk, Table::Maps, 0).into_iter().filter(|(id, _)| id.level == 0);
    let entries = leaves.flat_map(|(_, pointer)| {
        let page = get(disk, pointer.address);
        (0..Table::Maps.per_leaf()).map(move |slot| Volume::get_shared(&page, slot).unwrap())
    });
    entries.flatten().collect()
}

/// The pages of the maps that share pages, each once, with how many of the maps name it.
fn shared_pages(disk: &MemoryDisk) -> Vec<((PageId, Pointer), usize)> {
    let mut all: Vec<((PageId, Pointer), usize)> = Vec::new();
    for map in maps(disk).iter().filter(|map| map.family() == 1) {
        for page in pages(disk, Table::Map, 1, &map.map) {
            match all.iter_mut().find(|(known, _)| *known == page) {
                Some((_, names)) => *names += 1,
                None => all.push((page, 1)),
            }
        }
    }
    all
}

fn assert_goes_on(disk: &Arc<MemoryDisk>) {
    let engine = open(disk).unwrap();
    for name in ["volume 0", "clone"] {
        let id = engine.find_volume(name).unwrap();
        for lba in 0..2000 {
            persevere(&engine, || engine.write(id, lba * 4096, &content(40_000 + lba)));
        }
        engine.flush().unwrap();
        engine.checkpoint().unwrap();
    }
    for name in ["volume 0@s1", "clone", "volume 0"] {
        let id = engine.find_volume(name).unwrap();
        persevere(&engine, || engine.delete_volume(id));
    }
    for _ in 0..10 {
        engine.flush().unwrap();
        engine.checkpoint().unwrap();
    }
    engine.close().unwrap();
    let copied: Arc<dyn Disk> = disk.clone();
    let report = check(&copied, &mut |_| {}).unwrap();
    assert!(report.is_well(), "{:#?}", report.problems);
    assert!(pages(disk, Table::Shares, 0, &root(disk, Table::Shares, 0)).is_empty());
}

#[test]
fn counts_of_shared_pages_are_built_anew_and_no_page_borrows_then() {
    for waits in [true, false] {
        for (disk, model) in
            [Subject::with_clone(waits).closed(), Subject::with_clone(waits).killed()]
        {
            let before = contents(&disk, &SHARED);
            for kind in [Table::References, Table::Fingerprints, Table::Zones, Table::Shares] {
                let (_, pointer) = table(&disk, kind, 0)[0];
                let copy = copy(&disk);
                smash(&copy, pointer.address);
                assert_restored(&copy, &model);
                assert!(contents(&copy, &SHARED) == before, "{kind:?}");
                assert_goes_on(&copy);
            }
        }
    }
}

#[test]
fn a_shared_page_is_mended_once_for_all_maps_that_name_it() {
    let (disk, _) = Subject::with_clone(false).closed();
    let before = contents(&disk, &SHARED);
    let all = shared_pages(&disk);
    assert!(all.iter().any(|(page, names)| page.0.level == 0 && *names > 1));
    assert!(all.iter().any(|(page, names)| page.0.level == 0 && *names == 1));
    for ((id, pointer), names) in all {
        let copy = copy(&disk);
        smash(&copy, pointer.address);
        let told = repaired(&copy);
        assert!(told.after.is_well(), "{told:#?}");
        let after = contents(&copy, &SHARED);
        let mut lost = vec![0; SHARED.len()];
        for (n, (before, after)) in before.iter().zip(&after).enumerate() {
            for (lba, (before, after)) in before.iter().zip(after).enumerate() {
                assert!(after.is_none() || before == after, "{}, block {lba}", SHARED[n]);
                lost[n] += u64::from(after.is_none());
            }
        }
        if id.level == 0 {
            let touched = lost.iter().filter(|lost| **lost > 0).count();
            assert_eq!(touched, names, "{id:?}: {lost:?}");
            assert_eq!(told.lost_addresses, lost.iter().sum::<u64>());
        }
        assert_goes_on(&copy);
    }
}

#[test]
fn a_lost_child_is_not_taken_from_an_old_version_that_waits() {
    for (disk, _) in [Subject::with_clone(true).closed(), Subject::with_clone(true).killed()] {
        let before = contents(&disk, &SHARED);
        let tops: Vec<_> =
            shared_pages(&disk).into_iter().filter(|(page, _)| page.0.level > 0).collect();
        assert!(tops.len() >= 3);
        // One inner page, and two at once.
        for first in 0..tops.len() {
            for second in first..tops.len() {
                for accounts in [false, true] {
                    let copy = copy(&disk);
                    smash(&copy, tops[first].0.1.address);
                    if second > first {
                        smash(&copy, tops[second].0.1.address);
                    }
                    if accounts {
                        smash(&copy, table(&disk, Table::Shares, 0)[0].1.address);
                    }
                    let told = repaired(&copy);
                    assert!(told.after.is_well(), "{told:#?}");
                    for (before, after) in before.iter().zip(contents(&copy, &SHARED)) {
                        assert!(
                            before
                                .iter()
                                .zip(after)
                                .all(|(before, after)| after.is_none() || *before == after)
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn an_interrupted_repair_of_shared_maps_can_be_run_again() {
    let (disk, model) = Subject::with_clone(true).closed();
    let before = contents(&disk, &SHARED);
    smash(&disk, table(&disk, Table::References, 0)[0].1.address);
    smash(&disk, table(&disk, Table::Shares, 0)[0].1.address);
    for writes in (0..400).step_by(3) {
        let copy = copy(&disk);
        let dying: Arc<dyn Disk> = Arc::new(Dying::new(&copy, writes));
        let outcome = repair(&dying, Arc::new(MonotonicClock::new()), &settings(), &mut |_| {});
        let ended = outcome.is_ok_and(|repaired| repaired.after.is_well());
        let again = repaired(&copy);
        assert!(
            again.after.is_well() && again.left.is_empty(),
            "after {writes} writes: {again:#?}"
        );
        assert_holds(&copy, &model);
        assert!(contents(&copy, &SHARED) == before);
        if ended {
            return;
        }
    }
    panic!("it never ends");
}

#[test]
fn a_rotten_page_of_an_old_snapshot_stops_no_write_and_a_repair_counts_anew() {
    let mut inexact = 0;
    for waits in [true, false] {
        let (disk, model) = Subject::with_clone(waits).closed();
        let live: Vec<Pba> = maps(&disk)
            .iter()
            .filter(|map| ["volume 0", "clone"].contains(&map.name.as_str()))
            .flat_map(|map| pages(&disk, Table::Map, 1, &map.map))
            .map(|(_, pointer)| pointer.address)
            .collect();
        let mut old: Vec<Pba> =
            shared_pages(&disk).into_iter().map(|((_, pointer), _)| pointer.address).collect();
        for (id, pointer) in table(&disk, Table::Shares, 0) {
            let page = get(&disk, pointer.address);
            let slots = (0..Table::Shares.per_leaf())
                .filter(|&slot| id.level == 0 && Share::get(&page, slot).is_orphan());
            old.extend(slots.map(|slot| Pba(id.index * Table::Shares.per_leaf() + slot)));
        }
        old.retain(|page| !live.contains(page));
        assert!(!old.is_empty());
        for at in old {
            let (copy, mut model) = (copy(&disk), model.clone());
            smash(&copy, at);
            let engine = open(&copy).unwrap();
            for (name, step) in [("volume 0", 7), ("clone", 11)] {
                let id = engine.find_volume(name).unwrap();
                for lba in (0..2000).step_by(step) {
                    let data = content(50_000 + lba);
                    persevere(&engine, || engine.write(id, lba * 4096, &data));
                    model.insert((name.into(), lba), data);
                }
                engine.flush().unwrap();
                engine.checkpoint().unwrap();
            }
            let snapshot = engine.find_volume("volume 0@s1").unwrap();
            persevere(&engine, || engine.delete_volume(snapshot));
            for _ in 0..10 {
                engine.flush().unwrap();
                engine.checkpoint().unwrap();
            }
            engine.close().unwrap();
            inexact += u64::from(superblock(&copy).state.inexact);
            assert_holds(&copy, &model);
            let told = repaired(&copy);
            assert!(told.after.is_well() && told.lost_addresses == 0, "{told:#?}");
            assert!(!superblock(&copy).state.inexact);
            assert_holds(&copy, &model);
        }
    }
    assert!(inexact > 0);
}
