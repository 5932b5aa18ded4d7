//! Rollbacks, and deletions of snapshots, beside clients that have volumes open.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod slow;

use std::{
    sync::{Arc, mpsc},
    thread,
};

use onefold_backend::MonotonicClock;
use onefold_block::{Settings, Store, StoreExports};
use onefold_core::{Block, BlockRead, Exports, Kind, Lba, Volume, VolumeLimits};
use slow::{End, PATIENCE, Slow};

/// Does something with a served store that has the volumes `vm` and `other`, and a snapshot `vm@a`
/// of ones.
fn served(does: impl FnOnce(&Arc<Slow>, &Arc<Store>)) {
    let disk = Slow::formatted();
    let clock = Arc::new(MonotonicClock::new());
    let store = Store::open(disk.clone(), clock, Settings::for_memory(32 << 20)).unwrap();
    thread::scope(|scope| {
        let _end = End(&disk, &store);
        scope.spawn(|| store.run_writer());
        scope.spawn(|| store.run_background());
        store.create_volume("vm", 4 << 20).unwrap();
        store.create_volume("other", 4 << 20).unwrap();
        open(&store, "vm").write(0, &[1; 65_536]).unwrap();
        store.snapshot(&["vm@a".to_owned()], &mut || {}).unwrap();
        does(&disk, &store);
    });
}

fn open(store: &Arc<Store>, name: &str) -> Arc<dyn Volume> {
    StoreExports(store.clone()).open(name).unwrap()
}

fn first_byte(volume: &dyn Volume) -> Result<u8, Kind> {
    let mut blocks = Block::zeroed_vec(1);
    let mut reads = [BlockRead { first: Lba(0), into: &mut blocks, result: Ok(()) }];
    volume.read(&mut reads);
    let [read] = reads;
    read.result.map_err(|e| e.kind())?;
    Ok(blocks[0].0[0])
}

#[test]
fn rule_12_a_rollback_or_deletion_that_waits_for_the_disk_keeps_nobody_from_other_volumes() {
    type Act = fn(&Store) -> onefold_core::Result<()>;
    let acts: [Act; 2] =
        [|store| store.rollback("vm@a", None, false), |store| store.delete_snapshot("vm@a", false)];
    for act in acts {
        served(|disk, store| {
            thread::scope(|scope| {
                let leaving = open(store, "other");
                disk.close(true);
                let _open_again = End(disk, store);
                let acting = scope.spawn(|| act(store));
                disk.until_waiting();
                let (tell, heard) = mpsc::channel();
                scope.spawn(move || {
                    drop(leaving);
                    let read = first_byte(&*open(store, "other"));
                    tell.send(read).unwrap();
                });
                let read = heard.recv_timeout(PATIENCE);
                disk.close(false);
                assert_eq!(read.expect("a client waits for what another volume waits for"), Ok(0));
                acting.join().unwrap().unwrap();
            });
        });
    }
}

#[test]
fn rule_12_a_rollback_that_is_refused_ends_no_client() {
    served(|_, store| {
        let client = open(store, "vm");
        for (keep, kind) in [("a/b", Kind::InvalidInput), ("a", Kind::Exists)] {
            let refused = store.rollback("vm@a", Some(keep), true).unwrap_err();
            assert_eq!(refused.kind(), kind, "{refused}");
            client.write(0, &[2; 4096]).unwrap();
        }
        assert_eq!(store.rollback("vm@a", None, false).unwrap_err().kind(), Kind::Busy);
        let reader = open(store, "vm@a");
        assert_eq!(store.delete_volume("vm@a").unwrap_err().kind(), Kind::Busy);
        assert_eq!(store.delete_snapshot("vm@a", false).unwrap_err().kind(), Kind::Busy);
        assert_eq!(first_byte(&*reader), Ok(1));
        store.rollback("vm@a", None, true).unwrap();
        assert_eq!(client.write(0, &[2; 4096]).unwrap_err().kind(), Kind::Stopped);
        assert_eq!(first_byte(&*client), Err(Kind::Stopped));
        store.delete_snapshot("vm@a", true).unwrap();
        assert_eq!(first_byte(&*reader), Err(Kind::Stopped));
    });
}

#[test]
fn rule_12_no_write_of_a_client_that_was_ended_reaches_what_was_rolled_back() {
    const WRITERS: usize = 8;
    served(|_, store| {
        for round in 0..40 {
            let client = open(store, "vm");
            thread::scope(|scope| {
                for n in 0..WRITERS {
                    let client = client.clone();
                    scope.spawn(move || {
                        let byte = 2 + n as u8;
                        while client.write(0, &[byte; 4096]).is_ok() {}
                    });
                }
                store.rollback("vm@a", None, true).unwrap();
            });
            assert_eq!(first_byte(&*open(store, "vm")), Ok(1), "round {round}");
        }
    });
}

#[test]
fn rule_12_the_snapshots_of_a_volume_share_its_limits() {
    served(|_, store| {
        let exports = StoreExports(store.clone());
        store.snapshot(&["vm@b".to_owned(), "other@a".to_owned()], &mut || {}).unwrap();
        let limits = VolumeLimits { iops: 5, bytes: 0 };
        store.set_limits("vm", limits).unwrap();
        assert_eq!((exports.shared_name("vm"), exports.limits("vm")), ("vm".into(), Some(limits)));
        for name in ["vm@a", "vm@b"] {
            let shared = exports.shared_name(name);
            assert_eq!((shared.as_str(), exports.limits(&shared)), ("vm@", Some(limits)));
        }
        assert_eq!(exports.limits(&exports.shared_name("other@a")), Some(VolumeLimits::default()));
    });
}
