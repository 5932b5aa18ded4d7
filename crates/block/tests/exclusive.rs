//! The space that only a snapshot holds is what deleting it frees.
#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod damage;

use std::sync::Arc;

use damage::*;
use onefold_block::{
    Acts,
    check::{self, exclusive},
    format::superblock::Root,
};
use onefold_core::{Disk, Kind};

/// Runs checkpoints until nothing is left of what was deleted.
fn settle(subject: &Subject) {
    for _ in 0..20 {
        subject.engine.flush().unwrap();
        subject.engine.checkpoint().unwrap();
    }
    assert!(!subject.engine.status().leftovers);
}

fn snapshot(subject: &Subject, name: &str) {
    snapshot_of(subject, "volume 0", name);
}

fn snapshot_of(subject: &Subject, volume: &str, name: &str) {
    let volume = subject.engine.find_volume(volume).unwrap();
    let acts = Acts::of(&subject.engine);
    let (_, asked) = acts.snapshot(&[(volume, name.to_owned())], 1).unwrap();
    while acts.done() < asked.number {
        subject.engine.flush().unwrap();
        subject.engine.checkpoint().unwrap();
    }
}

/// Blocks with data, and pages of maps and of table 8 beside other tables.
fn in_use(subject: &Subject) -> (u64, u64) {
    let status = subject.engine.status();
    (status.live_blocks, status.live_blocks + status.table_blocks)
}

#[test]
fn deleting_a_snapshot_frees_what_it_holds_alone() {
    let mut subject = Subject::filled();
    for round in 0..4 {
        snapshot(&subject, &format!("s{round}"));
        for n in 0..200 {
            subject.write("volume 0", n * 9, 3 * (20_000 + round * 1000 + n));
        }
        subject.engine.flush().unwrap();
        subject.engine.checkpoint().unwrap();
    }
    snapshot(&subject, "same");
    let same = exclusive(&subject.engine, &mut |_| true);
    assert_eq!(same.snapshots["volume 0@same"], 0, "{same:?}");
    assert_eq!((same.leaving, same.orphans, same.unread), (0, 0, 0));
    for name in ["s2", "s0", "s3", "s1", "same"] {
        let name = format!("volume 0@{name}");
        settle(&subject);
        let found = exclusive(&subject.engine, &mut |_| true).snapshots[&name];
        let before = in_use(&subject);
        let id = subject.engine.find_volume(&name).unwrap();
        persevere(&subject.engine, || subject.engine.delete_volume(id));
        settle(&subject);
        let after = in_use(&subject);
        assert!(before.1 + 4 >= after.1 + found, "{name}: {found}, {before:?}, {after:?}");
        if ["volume 0@s1", "volume 0@s2", "volume 0@s3"].contains(&name.as_str()) {
            // All that was written before it was written over after it.
            assert!(found >= 200 && before.0 - after.0 >= 200, "{name}: {found}");
        }
    }
    assert!(exclusive(&subject.engine, &mut |_| true).snapshots.is_empty());
}

#[test]
fn a_walk_ends_when_nobody_waits_and_passes_over_what_is_rotten() {
    let subject = Subject::with_snapshots();
    assert!(exclusive(&subject.engine, &mut |_| false).cancelled);
    let told = exclusive(&subject.engine, &mut |_| true);
    assert!(told.snapshots["volume 0@s0"] > 0 && told.snapshots.len() == 2);
    let missing = subject.engine.find_volume("volume 0@s9").unwrap_err();
    assert_eq!(missing.kind(), Kind::NotFound);
}

/// Accounts may say of pages that all snapshots name that each is one snapshot's alone.
#[test]
fn rule_09_pages_that_many_snapshots_name_alone_are_not_read_for_each_of_them() {
    let mut subject = Subject::new();
    subject.create("sparse", 288 * 1500);
    for leaf in 0..1500 {
        subject.write("sparse", leaf * 288, leaf % 20);
    }
    for n in 0..40 {
        snapshot_of(&subject, "sparse", &format!("s{n}"));
    }
    let (disk, _) = subject.closed();
    forge_superblock(&disk, |superblock| superblock.state.shares = Root::default());
    let disk: Arc<dyn Disk> = disk;
    let engine = check::look(&disk).unwrap();
    let status = engine.status();
    let used = status.live_blocks + status.table_blocks;
    let mut pieces = 0;
    let found = exclusive(&engine, &mut |_| {
        pieces += 1;
        true
    });
    assert!(pieces < 2 * used, "{pieces} pieces of work for {used} blocks");
    assert!(found.unread > 0 && !found.cancelled, "it is told: {}", found.unread);
}
