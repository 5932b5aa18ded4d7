//! `check`: pages of maps whose lenders are crafted.
#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod damage;

use std::sync::Arc;

use damage::*;
use onefold_backend::MemoryDisk;
use onefold_block::{
    Acts,
    check::check,
    format::{
        catalogue::Volume,
        page::{PageId, Pointer, Table},
        share::Share,
        superblock::Root,
    },
};
use onefold_core::{Disk, Pba};

/// A volume and its clone that changed the same places between two checkpoints.
fn twins() -> Arc<MemoryDisk> {
    let mut subject = Subject::with_snapshots();
    let snapshot = subject.engine.find_volume("volume 0@s1").unwrap();
    let (_, asked) = Acts::of(&subject.engine).clone_volume(snapshot, "clone", 1).unwrap();
    while Acts::of(&subject.engine).done() < asked.number {
        subject.engine.flush().unwrap();
        subject.engine.checkpoint().unwrap();
    }
    for n in 0..20 {
        subject.write("clone", n * 17 % 300, 900 + n);
        subject.write("volume 0", n * 17 % 300, 950 + n);
    }
    subject.closed().0
}

/// The leaves of a map.
fn leaves(disk: &MemoryDisk, name: &str) -> Vec<(PageId, Pointer)> {
    let entries = pages(disk, Table::Maps, 0, &root(disk, Table::Maps, 0));
    let map = entries.iter().filter(|(id, _)| id.level == 0).find_map(|(_, pointer)| {
        let page = get(disk, pointer.address);
        let maps = (0..Table::Maps.per_leaf())
            .filter_map(|slot| Volume::get_shared(&page, slot).unwrap())
            .collect::<Vec<_>>();
        maps.into_iter().find(|map| map.name == name)
    });
    let map = map.unwrap();
    let all = pages(disk, Table::Map, map.family(), &map.map);
    all.into_iter().filter(|(id, _)| id.level == 0).collect()
}

/// Says of a page that it borrows from another one, and lends to one.
fn lend(disk: &Arc<MemoryDisk>, to: Pba, lender: Pointer) {
    let (index, slot) = (to.0 / Table::Shares.per_leaf(), to.0 % Table::Shares.per_leaf());
    let leaf = PageId { table: Table::Shares, volume: 0, level: 0, index };
    let shares: Root = root(disk, Table::Shares, 0);
    let new = forge(disk, &shares, leaf, &mut |page| {
        let old = Share::get(page, slot);
        Share { borrowers: 1, lender: Some(lender), ..old }.set(page, slot);
    });
    forge_superblock(disk, |superblock| superblock.state.shares = new);
}

fn problems(disk: &Arc<MemoryDisk>) -> Vec<String> {
    let disk: Arc<dyn Disk> = disk.clone();
    let report = check(&disk, &mut |_| {}).unwrap();
    report.problems.iter().map(ToString::to_string).collect()
}

#[test]
fn lenders_in_a_circle_are_refused() {
    let disk = twins();
    assert_eq!(problems(&disk), [""; 0]);
    let (ours, theirs) = (leaves(&disk, "volume 0"), leaves(&disk, "clone"));
    // Pages of one place and one age in two maps, both with an account.
    let has_account = |at: Pba| {
        let index = at.0 / Table::Shares.per_leaf();
        let all = pages(&disk, Table::Shares, 0, &root(&disk, Table::Shares, 0));
        let leaf = all.iter().find(|(id, _)| id.level == 0 && id.index == index);
        leaf.is_some_and(|(_, pointer)| {
            let page = get(&disk, pointer.address);
            Share::get(&page, at.0 % Table::Shares.per_leaf()) != Share::default()
        })
    };
    let twins = ours.iter().flat_map(|one| theirs.iter().map(move |other| (one, other)));
    let twins = twins.filter(|((id, one), (of, other))| {
        id == of && one.address != other.address && one.birth == other.birth
    });
    let (one, other) = twins
        .map(|((_, one), (_, other))| (*one, *other))
        .find(|(one, other)| has_account(one.address) && has_account(other.address))
        .expect("the volume and its clone changed one leaf between two checkpoints");
    let says = |disk: &Arc<MemoryDisk>, at: Pba| {
        let all = problems(disk);
        all.iter()
            .any(|line| line.contains("borrows from itself") && line.contains(&at.to_string()))
    };
    let itself = copy(&disk);
    lend(&itself, one.address, one);
    assert!(says(&itself, one.address), "{:#?}", problems(&itself));
    let pair = copy(&disk);
    lend(&pair, one.address, other);
    lend(&pair, other.address, one);
    let all = problems(&pair);
    let circles = all.iter().filter(|line| line.contains("borrows from itself")).count();
    assert_eq!(circles, 1, "{all:#?}");
    assert!(says(&pair, one.address.min(other.address)), "{all:#?}");
}
