//! `check`: a store with everything in it is well; one flipped bit in any record, and tables that
//! disagree, are not.
#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod damage;

use std::sync::Arc;

use damage::*;
use onefold_backend::{MemoryDisk, MonotonicClock};
use onefold_block::{
    check::{Place, Repaired, Report, check, check_within, repair},
    format::{
        carrier::Carrier,
        catalogue::Volume,
        geometry::SUPERBLOCKS,
        leftover,
        page::{self, Form, MapEntry, PageId, ReferenceEntry, Table, ZoneEntry},
        superblock::State,
    },
};
use onefold_core::{Disk, Pba};

fn examine(disk: &Arc<MemoryDisk>) -> Report {
    let disk: Arc<dyn Disk> = disk.clone();
    check(&disk, &mut |_| {}).unwrap()
}

fn repaired(disk: &Arc<MemoryDisk>) -> Repaired {
    let disk: Arc<dyn Disk> = disk.clone();
    repair(&disk, Arc::new(MonotonicClock::new()), &settings(), &mut |_| {}).unwrap()
}

#[track_caller]
fn assert_well(disk: &Arc<MemoryDisk>) -> Report {
    let report = examine(disk);
    assert!(report.is_well(), "{:#?}", report.problems);
    report
}

/// Flips bits of a block one after the other; each must be a problem at `place`.
fn assert_each_bit_counts(disk: &Arc<MemoryDisk>, at: Pba, place: &Place) {
    for bit in bits() {
        flip(disk, at, bit);
        let report = examine(disk);
        assert!(
            report.problems.iter().any(|problem| problem.place == *place),
            "bit {bit} of {place}: {:?}",
            report.problems
        );
        flip(disk, at, bit);
    }
    assert_well(disk);
}

#[test]
fn a_store_with_everything_in_it_is_well() {
    let fresh = Subject::new();
    let report = assert_well(&fresh.disk);
    assert!(!report.clean && report.volumes == 0);
    fresh.engine.close().unwrap();
    assert!(assert_well(&fresh.disk).clean);

    let (disk, model) = Subject::filled().closed();
    let report = assert_well(&disk);
    assert!(report.clean && report.notes.is_empty());
    assert_eq!((report.volumes, report.mapped_blocks), (10, model.len() as u64));
    assert!(
        report.live_blocks > 100
            && report.live_blocks < report.mapped_blocks
            && report.carriers > 20
    );
    assert_eq!(report.used_blocks, report.live_blocks + pages_of(&disk));

    let killed = Subject::filled().killed();
    let report = assert_well(&killed.0);
    assert!(!report.clean);
    assert_eq!((report.volumes, report.mapped_blocks), (10, killed.1.len() as u64));

    let pending = Subject::filled().with_pending_discards();
    let report = assert_well(&pending.disk);
    assert!(superblock(&pending.disk).state.discards > 0);
    assert!(!report.clean && report.volumes == 11);
}

fn pages_of(disk: &Arc<MemoryDisk>) -> u64 {
    let mut all = 0;
    for table in
        [Table::References, Table::Fingerprints, Table::Zones, Table::Catalogue, Table::Discards]
    {
        all += pages(disk, table, 0, &root(disk, table, 0)).len();
    }
    all += (1..=10)
        .map(|volume| pages(disk, Table::Map, volume, &root(disk, Table::Map, volume)).len())
        .sum::<usize>();
    all as u64
}

#[test]
fn little_memory_gives_the_same_answer() {
    let (disk, _) = Subject::filled().closed();
    let whole = examine(&disk);
    let dynamic: Arc<dyn Disk> = disk.clone();
    for memory in [1, 3000, 40_000] {
        let report = check_within(&dynamic, memory, &mut |_| {}).unwrap();
        assert!(report.is_well(), "{:#?}", report.problems);
        assert_eq!(
            (report.mapped_blocks, report.carriers, report.pages),
            (whole.mapped_blocks, whole.carriers, whole.pages)
        );
    }
    let (id, _) =
        pages(&disk, Table::References, 0, &root(&disk, Table::References, 0)).pop().unwrap();
    let references = forge(&disk, &root(&disk, Table::References, 0), id, &mut |page| {
        let slot =
            (0..1008).rev().find(|&slot| ReferenceEntry::get(page, slot).references > 0).unwrap();
        let entry = ReferenceEntry::get(page, slot);
        ReferenceEntry { references: entry.references + 1, ..entry }.set(page, slot);
    });
    forge_superblock(&disk, |superblock| superblock.state.references = references);
    for memory in [1, 3000, 40_000, 1 << 20] {
        assert_eq!(check_within(&dynamic, memory, &mut |_| {}).unwrap().problems_found, 1);
    }
}

/// A shutdown that is cut off between the last superblock and its twin leaves that of the checkpoint before in
/// the twin's place.
#[test]
fn a_shutdown_that_was_cut_off_before_the_last_twin_is_no_damage() {
    for subject in [Subject::filled(), Subject::filled_in_place()] {
        let disk = subject.disk.clone();
        let mut before = superblock(&disk);
        assert!(!before.state.clean);
        let (disk, model) = subject.closed();
        let newest = superblock(&disk);
        // The last checkpoint is the newest number but one, and the one before it lies in its twin's place.
        let place = (newest.state.sequence % 2) as usize;
        let mut last = newest.clone();
        last.state.sequence -= 1;
        put(&disk, SUPERBLOCKS[1 - place], &last.encode(1 - place as u32));
        before.state.sequence = newest.state.sequence - 2;
        put(&disk, SUPERBLOCKS[place], &before.encode(place as u32));
        let cut_off = copy(&disk);
        let report = assert_well(&cut_off);
        assert!(report.clean && report.notes.len() == 1, "{:?}", report.notes);
        assert!(report.notes[0].contains("a shutdown was cut off"), "{:?}", report.notes);
        let nothing = repaired(&cut_off);
        assert!(nothing.restored.is_empty() && nothing.left.is_empty(), "{nothing:#?}");
        assert!(nothing.after.is_well());
        assert_holds(&cut_off, &model);
        // What no shutdown leaves is damage, whatever its number.
        type Change = fn(&mut State, &State);
        let others: [Change; 5] = [
            |older, _| older.clean = true,
            |older, newest| older.epoch = newest.epoch + 1,
            |older, newest| older.committed.0 = newest.committed.0 + 1,
            |older, newest| older.next_generation = newest.next_generation + 1,
            |older, _| older.sequence -= 2,
        ];
        for (n, change) in others.into_iter().enumerate() {
            let mut other = before.clone();
            change(&mut other.state, &newest.state);
            let copy = copy(&disk);
            put(&copy, SUPERBLOCKS[place], &other.encode(place as u32));
            assert!(!examine(&copy).is_well(), "{n}");
            assert!(!repaired(&copy).restored.is_empty(), "{n}");
            assert_well(&copy);
        }
    }
}

#[test]
fn one_flipped_bit_in_a_superblock_or_the_zone_list_is_found() {
    for disk in [Subject::filled().closed().0, Subject::filled().killed().0] {
        for place in [0, 1] {
            assert_each_bit_counts(&disk, SUPERBLOCKS[place as usize], &Place::Superblock(place));
        }
        let list_pages = superblock(&disk).fixed.geometry.list_pages;
        for page in [0, list_pages - 1] {
            for at in superblock(&disk).fixed.geometry.list_page(page) {
                assert_each_bit_counts(&disk, at, &Place::ZoneList(page, at));
            }
        }
    }
}

#[test]
fn one_flipped_bit_in_any_table_page_is_found() {
    let pending = Subject::filled().with_pending_discards();
    for disk in [Subject::filled().closed().0, pending.disk] {
        let apart = [Table::Index, Table::Shares, Table::Maps];
        for table in Table::ALL.into_iter().filter(|table| !apart.contains(table)) {
            let volume = u32::from(table == Table::Map);
            let all = pages(&disk, table, volume, &root(&disk, table, volume));
            let wanted = [
                all.iter().find(|page| page.0.level == 0),
                all.iter().find(|page| page.0.level > 0),
                all.last(),
            ];
            for (id, pointer) in wanted.into_iter().flatten() {
                assert_each_bit_counts(&disk, pointer.address, &Place::Page(*id, pointer.address));
            }
            assert_eq!(all.is_empty(), table == Table::Discards && superblock(&disk).state.clean);
            assert!(
                all.is_empty() || table == Table::Discards || all[0].0.level > 0,
                "{table:?} has inner pages"
            );
        }
    }
}

#[test]
fn one_flipped_bit_in_a_table_of_snapshots_is_found() {
    let (disk, _) = Subject::with_snapshots().closed();
    for table in [Table::Shares, Table::Maps] {
        let all = pages(&disk, table, 0, &root(&disk, table, 0));
        assert!(!all.is_empty(), "{table:?}");
        for (id, pointer) in all {
            assert_each_bit_counts(&disk, pointer.address, &Place::Page(id, pointer.address));
        }
    }
}

#[test]
fn one_flipped_bit_in_the_index_on_disk_is_found() {
    let (disk, _) = Subject::with_index().closed();
    let all = pages(&disk, Table::Index, 0, &root(&disk, Table::Index, 0));
    assert!(all.len() > 1 && all[0].0.level > 0);
    for (id, pointer) in [all[0], all[all.len() - 1]] {
        for bit in [5, 70, 300, 511, 512, 5000, 32_767] {
            flip(&disk, pointer.address, bit);
            let report = examine(&disk);
            assert!(
                report
                    .problems
                    .iter()
                    .any(|problem| problem.place == Place::Page(id, pointer.address)),
                "{:?}",
                report.problems
            );
            flip(&disk, pointer.address, bit);
        }
    }
    assert_well(&disk);
}

#[test]
fn one_flipped_bit_in_a_carrier_is_found() {
    let (disk, _) = Subject::filled().closed();
    let carriers = live_carriers(&disk);
    for &at in [carriers.first(), carriers.last()].into_iter().flatten() {
        assert_each_bit_counts(&disk, at, &Place::Block(at));
    }
}

/// Physical blocks that are carriers and have references.
fn live_carriers(disk: &Arc<MemoryDisk>) -> Vec<Pba> {
    let leaves = pages(disk, Table::References, 0, &root(disk, Table::References, 0));
    let leaves = leaves.into_iter().filter(|page| page.0.level == 0);
    leaves
        .flat_map(|(id, pointer)| {
            let page = get(disk, pointer.address);
            (0..1008).filter_map(move |slot| {
                let entry = ReferenceEntry::get(&page, slot);
                (entry.references > 0 && entry.carried).then_some(Pba(id.index * 1008 + slot))
            })
        })
        .collect()
}

#[test]
fn one_flipped_bit_in_a_carrier_that_no_checkpoint_holds_is_found() {
    let mut subject = Subject::filled();
    for n in 0..60 {
        subject.write("volume 3", n, 1000 + n * 3 + 1);
        if n % 20 == 19 {
            subject.engine.flush().unwrap();
        }
    }
    let (disk, _) = subject.killed();
    assert_well(&disk);
    let superblock = superblock(&disk);
    let identity = identity(&superblock);
    let uncommitted: Vec<Pba> = (0..disk.blocks())
        .map(Pba)
        .filter(|&at| {
            Carrier::proven(&identity, &get(&disk, at), at).is_some_and(|carrier| {
                carrier.header.window > superblock.state.committed
                    && carrier.header.epoch == superblock.state.epoch
            })
        })
        .collect();
    assert!(uncommitted.len() > 3);
    for at in uncommitted {
        for bit in [3, 40, 200, 500, 700, 1000, 9000, 32_000] {
            flip(&disk, at, bit);
            let report = examine(&disk);
            assert!(
                report.problems.iter().any(|problem| problem.place == Place::Block(at)),
                "bit {bit} of {at}: {:?}",
                report.problems
            );
            flip(&disk, at, bit);
        }
    }
}

#[test]
fn one_flipped_bit_in_the_leftover_table_is_found_and_mended() {
    let mut subject = Subject::with_leftover_table();
    for n in 0..60 {
        subject.write("volume 3", n, 3 * (1000 + n));
        if n % 4 == 3 {
            subject.engine.flush().unwrap();
        }
    }
    let (disk, model) = subject.killed();
    assert_well(&disk);
    let superblock = superblock(&disk);
    let (identity, geometry) = (identity(&superblock), superblock.fixed.geometry);
    let places = (0..geometry.leftover_pages).flat_map(|page| geometry.leftover_page(page));
    let counts = |at: &Pba| {
        let sectors = leftover::decode(&identity, *at, &get(&disk, *at));
        sectors.iter().flatten().any(|sector| sector.window > superblock.state.committed)
    };
    let uncommitted: Vec<Pba> = places.filter(counts).collect();
    assert!(uncommitted.len() > 1, "records went to the table");
    for at in uncommitted {
        for bit in [3, 40, 200, 500, 4100, 9000, 32_000] {
            flip(&disk, at, bit);
            let report = examine(&disk);
            assert!(
                report.problems.iter().any(|problem| problem.place == Place::Block(at)),
                "bit {bit} of {at}: {:?}",
                report.problems
            );
            flip(&disk, at, bit);
        }
        let rotten = copy(&disk);
        flip(&rotten, at, 700);
        let shared: Arc<dyn Disk> = rotten.clone();
        let clock = Arc::new(onefold_backend::MonotonicClock::new());
        let repaired =
            onefold_block::check::repair(&shared, clock, &settings(), &mut |_| {}).unwrap();
        assert!(repaired.after.is_well() && repaired.left.is_empty(), "{repaired:?}");
        assert_holds(&rotten, &model);
    }
}

#[test]
fn tables_that_disagree_are_found() {
    let (disk, _) = Subject::filled().closed();
    let (id, pointer) =
        pages(&disk, Table::References, 0, &root(&disk, Table::References, 0)).pop().unwrap();
    let page = get(&disk, pointer.address);
    let slot = (0..1008).find(|&slot| ReferenceEntry::get(&page, slot).references > 1).unwrap();
    let pba = Pba(id.index * 1008 + slot);
    let references = |change: fn(&mut ReferenceEntry)| {
        let copy = copy(&disk);
        let root = forge(&copy, &root(&copy, Table::References, 0), id, &mut |page| {
            let mut entry = ReferenceEntry::get(page, slot);
            change(&mut entry);
            entry.set(page, slot);
        });
        forge_superblock(&copy, |superblock| superblock.state.references = root);
        (copy, pba)
    };
    let fingerprint = |byte: usize| {
        let copy = copy(&disk);
        let leaf = PageId { table: Table::Fingerprints, index: pba.0 / 252, ..id };
        let root = forge(&copy, &root(&copy, Table::Fingerprints, 0), leaf, &mut |page| {
            let mut fingerprint = page::fingerprint(page, pba.0 % 252);
            fingerprint.0[byte] ^= 1;
            page::set_fingerprint(page, pba.0 % 252, &fingerprint);
        });
        forge_superblock(&copy, |superblock| superblock.state.fingerprints = root);
        (copy, pba)
    };
    let expect = |(disk, pba): (Arc<MemoryDisk>, Pba), what: &str| {
        let report = examine(&disk);
        let text: Vec<String> = report.problems.iter().map(ToString::to_string).collect();
        assert!(
            text.iter().any(|line| line.contains(what) && line.contains(&pba.to_string())),
            "{what}: {text:?}"
        );
        report
    };
    expect(references(|entry| entry.references -= 1), "too low");
    expect(references(|entry| entry.references += 1), "too high");
    expect(fingerprint(3), "another fingerprint");
    expect(references(|entry| entry.carried = !entry.carried), "another kind of block");
    let saturated = examine(&references(|entry| entry.references = ReferenceEntry::SATURATED).0);
    assert!(saturated.is_well() && saturated.saturated_blocks == 1);

    // A block marked free that is in use; one in use that nothing names.
    let zone = |change: fn(&mut ZoneEntry) -> usize| {
        let copy = copy(&disk);
        let (id, _) = pages(&copy, Table::Zones, 0, &root(&copy, Table::Zones, 0)).pop().unwrap();
        let mut pba = Pba(0);
        let mut used = 0;
        let root = forge(&copy, &root(&copy, Table::Zones, 0), id, &mut |page| {
            let count = |page: &onefold_core::Block| {
                (0..31).map(|slot| ZoneEntry::get(page, slot).used.count()).sum::<u64>()
            };
            used = count(page);
            let slot = (0..31)
                .find(|&slot| (2..16).contains(&ZoneEntry::get(page, slot).used.count()))
                .unwrap();
            let mut entry = ZoneEntry::get(page, slot);
            pba = Pba((id.index * 31 + slot) * ZONE_BLOCKS + change(&mut entry) as u64);
            entry.set(page, slot);
            used = count(page).wrapping_sub(used);
        });
        forge_superblock(&copy, |superblock| {
            superblock.state.zones = root;
            superblock.state.used_blocks = superblock.state.used_blocks.wrapping_add(used);
        });
        (copy, pba)
    };
    let freed = zone(|entry| {
        let first = entry.used.iter().next().unwrap();
        entry.used.clear(first);
        first
    });
    expect(freed, "free");
    let leaked = zone(|entry| {
        let first = (0..16).find(|&n| !entry.used.get(n)).unwrap();
        entry.used.set(first);
        first
    });
    assert_eq!(expect(leaked, "leaked").leaked_blocks, 1);
}

#[test]
fn wrong_map_entries_volumes_and_counters_are_found() {
    let (disk, _) = Subject::filled().closed();
    let texts = |disk: &Arc<MemoryDisk>| {
        examine(disk).problems.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let map_page = pages(&disk, Table::Map, 1, &root(&disk, Table::Map, 1)).pop().unwrap();
    let table_page = root(&disk, Table::References, 0).page.address;
    let map = |entry: MapEntry| {
        let copy = copy(&disk);
        let mut slot = 0;
        let map = forge(&copy, &root(&copy, Table::Map, 1), map_page.0, &mut |page| {
            slot = (0..288)
                .find(|&slot| matches!(MapEntry::get(page, slot), Some(MapEntry::Block { .. })))
                .unwrap();
            entry.set(page, slot);
        });
        catalogue(&copy, |volume| volume.map = map);
        (texts(&copy), map_page.0.index * 288 + slot)
    };
    let block = |pba| MapEntry::Block { pba, form: Form::Raw, prefix: 5 };
    let (found, lba) = map(block(Pba(0)));
    assert!(
        found.iter().any(|line| line.contains(&format!("volume 1, block {lba}"))
            && line.contains("holds no data")),
        "{found:?}"
    );
    let (found, _) = map(block(table_page));
    assert!(
        found
            .iter()
            .any(|line| line.contains(&table_page.to_string()) && line.contains("table page")),
        "{found:?}"
    );
    let (found, _) = map(block(Pba(ZONES * ZONE_BLOCKS - 1)));
    assert!(found.iter().any(|line| line.contains("holds no data")), "{found:?}");
    let (found, _) = map(MapEntry::Hole);
    assert!(
        found.iter().any(|line| line.contains("too high"))
            && found.iter().any(|line| line.contains("mapped blocks")),
        "{found:?}"
    );

    let shrunk = copy(&disk);
    catalogue(&shrunk, |volume| volume.blocks = 1000);
    assert!(texts(&shrunk).iter().any(|line| line.contains("beyond the end of the volume")));
    let renamed = copy(&disk);
    catalogue(&renamed, |volume| volume.name = "volume 3".into());
    assert!(texts(&renamed).iter().any(|line| line.contains("has the name 'volume 3'")));
    let huge = copy(&disk);
    catalogue(&huge, |volume| volume.blocks = 1 << 48);
    assert!(texts(&huge).iter().any(|line| line.contains("larger than 1 EiB")));

    let counters: [fn(&mut onefold_block::format::superblock::State); 6] = [
        |state| state.used_blocks += 1,
        |state| state.live_blocks += 1,
        |state| state.mapped_blocks += 1,
        |state| state.volumes += 1,
        |state| state.discards += 1,
        |state| state.durable = state.durable.next(),
    ];
    for change in counters {
        let copy = copy(&disk);
        forge_superblock(&copy, |superblock| change(&mut superblock.state));
        assert!(!examine(&copy).is_well());
    }
}

/// Changes the first volume.
fn catalogue(disk: &Arc<MemoryDisk>, change: impl Fn(&mut Volume)) {
    let old = root(disk, Table::Catalogue, 0);
    let id = pages(disk, Table::Catalogue, 0, &old)
        .into_iter()
        .find(|page| page.0.level == 0)
        .unwrap()
        .0;
    let new = forge(disk, &old, id, &mut |page| {
        let mut volume = Volume::get(page, 0).unwrap();
        change(&mut volume);
        volume.set(page, 0);
    });
    forge_superblock(disk, |superblock| superblock.state.catalogue = new);
}

#[test]
fn lost_writes_and_foreign_disks_are_told() {
    let subject = Subject::filled();
    let before = copy(&subject.disk);
    let (disk, _) = subject.closed();
    // The newest superblock was acknowledged, but the older one is still there.
    let lost = copy(&disk);
    let newest = superblock(&disk).state.sequence;
    let at = SUPERBLOCKS[((newest + 1) % 2) as usize];
    put(&lost, at, &get(&before, at));
    let place = Place::Superblock(((newest + 1) % 2) as u32);
    let same = get(&before, at).0 == get(&disk, at).0;
    assert!(same || examine(&lost).problems.iter().any(|problem| problem.place == place));

    let empty: Arc<dyn Disk> = Arc::new(MemoryDisk::new(100));
    assert_eq!(check(&empty, &mut |_| {}).unwrap_err().kind(), onefold_core::Kind::InvalidInput);
    let cut: Arc<MemoryDisk> = Arc::new(MemoryDisk::new(4000));
    for at in 0..4000 {
        put(&cut, Pba(at), &get(&disk, Pba(at)));
    }
    let cut: Arc<dyn Disk> = cut;
    assert_eq!(check(&cut, &mut |_| {}).unwrap_err().kind(), onefold_core::Kind::Corrupt);
}

#[test]
fn a_torn_copy_of_a_crash_is_a_note_until_the_next_opening_heals_it() {
    let killed = Subject::filled().killed().0;
    let newest = superblock(&killed);
    let torn = copy(&killed);
    // Sectors of the page that was being written are missing.
    let list = newest.fixed.geometry.list_page(0);
    let decode = |n: usize| {
        onefold_block::format::zone_list::Page::decode(
            &identity(&newest),
            &get(&torn, list[n]),
            0,
            list[n].0,
        )
        .unwrap()
        .sequence
    };
    let older = usize::from(decode(0) > decode(1));
    let mut block = get(&torn, list[older]);
    block.0[512..1024].fill(0x11);
    put(&torn, list[older], &block);
    let at = SUPERBLOCKS[((newest.state.sequence + 1) % 2) as usize];
    let mut block = get(&torn, at);
    block.0[170..512].fill(0x22);
    put(&torn, at, &block);
    let report = assert_well(&torn);
    assert_eq!(report.notes.len(), 2, "{:?}", report.notes);
    open(&torn).unwrap().close().unwrap();
    assert!(assert_well(&torn).notes.is_empty());
    // The same on a store that was shut down cleanly is damage.
    let (clean, _) = Subject::filled().closed();
    let mut block = get(&clean, list[0]);
    block.0[512..1024].fill(0x11);
    put(&clean, list[0], &block);
    assert!(
        examine(&clean).problems.iter().any(|problem| problem.place == Place::ZoneList(0, list[0]))
    );
}
