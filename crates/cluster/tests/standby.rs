//! Servers that stand by for each other.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

mod support;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use onefold_cluster::{
    ClusterExports, Format, Found, Gateway, Mode, Scrub, Session, Settings, Standby, Volume, create,
};
use onefold_core::{
    Block, BlockRead, Error, Exports, Kind, Lba, Look, Replaced, Volume as Served,
    object::{Change, ObjectName, ObjectStore, PoolKind, Write},
};
use onefold_testbed::MemoryObjects;
use support::Faulty;

const LEASE: Duration = Duration::from_secs(9);

/// A store with a clock that the test sets.
struct Desk {
    store: MemoryObjects,
    now: Duration,
}

impl Desk {
    fn new() -> Desk {
        let store = MemoryObjects::new(PoolKind::Replicated);
        create(&store, &Format::new([1; 16], [2; 32], PoolKind::Replicated)).unwrap();
        let mut desk = Desk { store, now: Duration::from_secs(100) };
        desk.session("maker").create_volume("v", 64 << 20).unwrap();
        desk.pass(Duration::ZERO);
        desk
    }

    fn session(&self, name: &str) -> Arc<Session> {
        let session = Session::open(Arc::new(self.store.session(name)), Settings::default());
        Arc::new(session.unwrap())
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.store.set_monotonic(self.now);
    }

    /// Lets each look twice a second for so many seconds; gives the first that takes over.
    fn wait(&mut self, seconds: u32, all: &mut [Standby]) -> Option<(usize, Gateway)> {
        for _ in 0..2 * seconds {
            self.pass(Duration::from_millis(500));
            for (n, standby) in all.iter_mut().enumerate() {
                if let Found::Mine(gateway) = standby.look().unwrap() {
                    return Some((n, gateway));
                }
            }
        }
        None
    }
}

#[track_caller]
fn serves(standby: &mut Standby) -> Gateway {
    match standby.look().unwrap() {
        Found::Mine(gateway) => {
            gateway.settle();
            gateway.beat().unwrap();
            gateway
        }
        _ => panic!("it does not serve"),
    }
}

#[test]
fn who_lives_is_never_replaced_and_the_dead_are_by_one() {
    let mut desk = Desk::new();
    let first = serves(&mut Standby::new(desk.session("first")));
    assert_eq!(first.before(), None);
    let mut others = ["second", "third"].map(|name| Standby::new(desk.session(name)));
    for _ in 0..100 {
        assert!(desk.wait(8, &mut others).is_none());
        first.beat().unwrap();
    }
    // From the last beat on, or rather from when the others saw it first.
    assert!(desk.wait(9, &mut others).is_none());
    let (n, second) = desk.wait(1, &mut others).unwrap();
    assert_eq!((n, second.before()), (0, Some("first")));
    assert_eq!(first.beat().unwrap_err().kind(), Kind::Stopped);
    for _ in 0..10 {
        assert!(desk.wait(8, &mut others[1..]).is_none());
        second.beat().unwrap();
    }
}

#[test]
fn a_standby_that_was_away_counts_little_of_that() {
    let mut desk = Desk::new();
    let first = serves(&mut Standby::new(desk.session("first")));
    let mut others = [Standby::new(desk.session("second"))];
    assert!(desk.wait(1, &mut others).is_none());
    desk.pass(Duration::from_secs(3600));
    assert!(desk.wait(1, &mut others).is_none());
    first.beat().unwrap();
    assert!(desk.wait(8, &mut others).is_none());
}

#[test]
fn a_server_that_ends_in_order_is_followed_at_once() {
    let mut desk = Desk::new();
    let session = desk.session("first");
    let first = serves(&mut Standby::new(session.clone()));
    let exports = ClusterExports::new(session, Mode::Own);
    let mut others = [Standby::new(desk.session("second"))];
    exports.open("v").unwrap().write(0, &[7; 4096]).unwrap();
    assert!(desk.wait(2, &mut others).is_none());
    exports.close().unwrap();
    first.give_up().unwrap();
    let (_, second) = desk.wait(1, &mut others).unwrap();
    assert_eq!(second.before(), None);
}

#[test]
fn a_server_that_was_stopped_answers_nothing_when_it_goes_on() {
    let mut desk = Desk::new();
    let session = desk.session("first");
    let first = serves(&mut Standby::new(session.clone()));
    let exports = ClusterExports::new(session, Mode::Own);
    let volume = exports.open("v").unwrap();
    let ticket = volume.write(0, &[7; 4096]).unwrap();
    volume.wait(ticket).unwrap();

    let session = desk.session("second");
    let mut others = [Standby::new(session.clone())];
    let (_, second) = desk.wait(11, &mut others).unwrap();
    let taken = ClusterExports::new(session, Mode::Own);
    let mut found = Vec::new();
    taken
        .attach_all_of(&second.shut_out(), |name, attached| {
            attached.unwrap();
            found.push(name.to_owned());
            true
        })
        .unwrap();
    assert_eq!(found, ["v"]);
    // The lock of who was shut out is no obstacle, although it has not ended.
    let there = taken.open("v").unwrap();
    let ticket = there.write(32 << 20, &[8; 4096]).unwrap();
    there.wait(ticket).unwrap();

    // The first server knows that nothing was there, and could say zeroes by itself.
    let mut block = Block::zeroed();
    let into = std::slice::from_mut(&mut *block);
    let mut reads = [BlockRead { first: Lba(8192), into, result: Ok(()) }];
    volume.read(&mut reads);
    let told = |error: Error| {
        assert_eq!(error.kind(), Kind::Stopped);
        assert!(Replaced::caused(&error), "{error}");
    };
    told(reads[0].result.clone().unwrap_err());
    told(volume.flush().unwrap_err());
    told(volume.trim(48 << 20, 4096).unwrap_err());
    told(volume.write_zeroes(48 << 20, 4096, false).unwrap_err());
    told(volume.write(0, &[1; 4096]).and_then(|ticket| volume.wait(ticket)).unwrap_err());
    told(volume.extents(0, 64 << 20, 10).unwrap_err());
    told(exports.open("new").err().unwrap());
    assert_eq!(first.beat().unwrap_err().kind(), Kind::Stopped);
}

#[test]
fn what_was_read_ahead_is_given_only_while_no_other_server_may_write() {
    let mut desk = Desk::new();
    let session = desk.session("first");
    let plain = ClusterExports::new(desk.session("reader"), Mode::Read);
    let first = serves(&mut Standby::new(session.clone()));
    let exports = ClusterExports::new(session, Mode::Own);
    let volume = exports.open("v").unwrap();
    let look = || volume.changes().and_then(|changes| changes.look(0..64));
    let same = |before: &Look| volume.changes().map(|now| now.is_unchanged(before, 0..64));
    assert!(plain.open("v").unwrap().changes().is_none(), "its writer is another server");

    let before = look().unwrap();
    assert_eq!(same(&before), Some(true));
    let ticket = volume.write(4096, &[7; 100]).unwrap();
    assert_eq!(same(&before), Some(false), "reads have it already");
    volume.wait(ticket).unwrap();
    for change in [
        |volume: &dyn Served| volume.trim(0, 8192),
        |volume: &dyn Served| volume.write_zeroes(4096, 100, false),
    ] {
        let before = look().unwrap();
        let ticket = change(&*volume).unwrap();
        volume.wait(ticket).unwrap();
        assert_eq!(same(&before), Some(false));
    }

    let before = look().unwrap();
    desk.pass(LEASE * 2 / 3);
    assert_eq!(same(&before), None, "the last beat is too old");
    first.beat().unwrap();
    assert_eq!(same(&before), None, "others may take the lock soon");
    exports.renew().unwrap();
    assert_eq!(same(&before), Some(true));
    let mut others = [Standby::new(desk.session("second"))];
    desk.wait(11, &mut others).unwrap();
    assert_eq!(same(&before), None);
    assert!(first.beat().is_err() && same(&before).is_none(), "it was replaced");
}

#[test]
fn nothing_is_read_ahead_where_nobody_stands_by_or_a_write_failed() {
    let desk = Desk::new();
    let exports = ClusterExports::new(desk.session("alone"), Mode::Own);
    exports.tend().unwrap();
    assert!(exports.open("v").unwrap().changes().is_none(), "--take-over waits for nothing");
    exports.close().unwrap();

    let session = desk.session("first");
    let _first = serves(&mut Standby::new(session.clone()));
    let exports = ClusterExports::new(session, Mode::Own);
    let volume = exports.open("v").unwrap();
    assert!(volume.changes().is_some());
    desk.store.pause_writes(true);
    let ticket = volume.write(0, &[7; 4096]).unwrap();
    assert!(volume.wait(ticket).is_err());
    desk.store.pause_writes(false);
    assert!(volume.changes().is_none(), "a copy of the write may come at any time");
}

#[test]
fn a_server_that_was_stopped_and_not_replaced_goes_on() {
    let mut desk = Desk::new();
    let session = desk.session("first");
    let _first = serves(&mut Standby::new(session.clone()));
    let exports = ClusterExports::new(session, Mode::Own);
    let volume = exports.open("v").unwrap();
    desk.pass(10 * LEASE);
    volume.flush().unwrap();
    assert!(desk.wait(8, &mut [Standby::new(desk.session("second"))]).is_none());
}

#[test]
fn a_store_that_only_answers_reads_ends_nobody() {
    let mut desk = Desk::new();
    let first = serves(&mut Standby::new(desk.session("first")));
    let mut others = [Standby::new(desk.session("second"))];
    desk.store.pause_writes(true);
    assert!(desk.wait(60, &mut others).is_none());
    desk.store.pause_writes(false);
    first.beat().unwrap();
    assert!(desk.wait(8, &mut others).is_none());
    first.beat().unwrap();
}

#[test]
fn who_finds_its_own_name_and_is_shut_out_does_not_serve() {
    let desk = Desk::new();
    let mut standby = Standby::new(desk.session("first"));
    serves(&mut standby);
    desk.store.session("second").fence("first").unwrap();
    assert_eq!(standby.look().err().map(|error| error.kind()), Some(Kind::Stopped));
}

#[test]
fn a_server_that_others_stand_by_for_is_replaced_though_a_volume_is_written_elsewhere() {
    let mut desk = Desk::new();
    desk.session("maker").create_volume("w", 64 << 20).unwrap();
    let _first = serves(&mut Standby::new(desk.session("first")));
    let plain = Volume::attach(&desk.session("plain"), "w", Mode::Own).unwrap();
    let mut others = [Standby::new(desk.session("second"))];
    assert!(desk.wait(11, &mut others).is_some());
    plain.detach().unwrap();
}

#[test]
fn a_third_server_takes_the_volumes_of_all_who_were_shut_out() {
    let mut desk = Desk::new();
    let session = desk.session("first");
    let _first = serves(&mut Standby::new(session.clone()));
    let exports = ClusterExports::new(session, Mode::Own);
    exports.open("v").unwrap();
    // The second one takes over, and is killed before it takes a volume.
    let mut others = [Standby::new(desk.session("second"))];
    let _second = desk.wait(11, &mut others).unwrap();
    let session = desk.session("third");
    let mut others = [Standby::new(session.clone())];
    // The second one never served: a second more.
    let (_, third) = desk.wait(12, &mut others).unwrap();
    assert_eq!(third.before(), Some("second"));
    let taken = ClusterExports::new(session, Mode::Own);
    let mut found = Vec::new();
    taken
        .attach_all_of(&third.shut_out(), |name, attached| {
            attached.unwrap();
            found.push(name.to_owned());
            true
        })
        .unwrap();
    assert_eq!(found, ["v"]);
}

#[test]
fn a_volume_that_another_server_writes_keeps_a_standby_waiting() {
    let mut desk = Desk::new();
    let plain = Volume::attach(&desk.session("plain"), "v", Mode::Own).unwrap();
    let mut others = [Standby::new(desk.session("second"))];
    assert!(matches!(others[0].look().unwrap(), Found::Writes(volume) if volume == "v"));
    assert!(desk.wait(60, &mut others).is_none());
    plain.detach().unwrap();
    assert!(desk.wait(10, &mut others).is_some());
}

#[test]
fn who_may_shut_nobody_out_is_told_so_before_it_stands_by() {
    let desk = Desk::new();
    let powerless = desk.store.session("second").without_right_to_fence();
    let session = Session::open(Arc::new(powerless), Settings::default()).unwrap();
    let mut standby = Standby::new(Arc::new(session));
    // Also where nobody is to be shut out, and while another one is at work.
    let told = |standby: &mut Standby| {
        let error = standby.look().err().unwrap();
        assert!(error.kind() == Kind::Denied && error.to_string().contains("right"), "{error}");
    };
    told(&mut standby);
    let first = serves(&mut Standby::new(desk.session("first")));
    told(&mut standby);
    first.beat().unwrap();
}

#[test]
fn after_takeovers_that_failed_those_that_stand_by_wait_longer_and_longer() {
    let mut desk = Desk::new();
    for (failed, seconds) in [(0, 0), (1, 1), (2, 2), (3, 4), (4, 8)] {
        let mut one = [Standby::new(desk.session(&format!("fails-{failed}")))];
        assert!(desk.wait(seconds, &mut one).is_none(), "{failed} failed");
        let (_, gateway) = desk.wait(2, &mut one).unwrap();
        gateway.beat().unwrap();
        gateway.fail().unwrap();
    }
    // One that is killed before it serves counts, too; the lease is waited for beside the pause.
    let mut one = [Standby::new(desk.session("killed"))];
    assert!(desk.wait(16, &mut one).is_none());
    assert!(matches!(one[0].look().unwrap(), Found::Waits(5, left) if left <= LEASE / 9));
    desk.wait(2, &mut one).unwrap();
    let mut next = [Standby::new(desk.session("serves"))];
    assert!(desk.wait(9 + 32, &mut next).is_none());
    let (_, gateway) = desk.wait(2, &mut next).unwrap();
    assert_eq!(gateway.before(), Some("killed"));
    // Who serves ends the row, however it ends itself.
    gateway.settle();
    gateway.beat().unwrap();
    gateway.fail().unwrap();
    let mut last = [Standby::new(desk.session("last"))];
    let (_, gateway) = desk.wait(1, &mut last).unwrap();
    // So does an orderly end before it serves.
    gateway.give_up().unwrap();
    assert!(desk.wait(1, &mut [Standby::new(desk.session("another"))]).is_some());
}

#[test]
fn a_name_that_is_no_servers_keeps_nobody_waiting_after_a_repair() {
    let mut desk = Desk::new();
    let first = serves(&mut Standby::new(desk.session("first")));
    first.give_up().unwrap();
    let gateway = ObjectName::metadata("gateway");
    let named = Change::SetOmap(vec![(b"o".to_vec(), b"!no server".to_vec())]);
    let op = Write { object: gateway, guards: vec![], changes: vec![named] };
    desk.store.write(&[op]).remove(0).unwrap();
    let mut standby = Standby::new(desk.session("second"));
    for _ in 0..100 {
        desk.pass(Duration::from_millis(500));
        let error = standby.look().err().unwrap();
        let said = error.to_string();
        assert!(error.kind() == Kind::Corrupt && said.contains("onefold repair"), "{said}");
    }
    let scrubbed = |mut scrub: Scrub| {
        while scrub.step().unwrap() {}
        scrub.report().misnamed
    };
    let session = desk.session("repair");
    assert_eq!(scrubbed(Scrub::look(session.clone(), false).unwrap()), 1);
    assert_eq!(scrubbed(Scrub::new(session.clone(), false).unwrap()), 1);
    assert_eq!(scrubbed(Scrub::look(session, false).unwrap()), 0);
    let mut standbys = [standby];
    let (_, second) = desk.wait(1, &mut standbys).unwrap();
    assert_eq!(second.before(), None);
    // A server that is one stays named.
    assert_eq!(scrubbed(Scrub::new(desk.session("again"), false).unwrap()), 0);
    second.beat().unwrap();
}

#[test]
fn a_name_is_repaired_though_a_beat_comes_between_and_told_where_one_always_does() {
    let desk = Desk::new();
    let gateway = ObjectName::metadata("gateway");
    let set = |key: &[u8], value: &[u8]| {
        let set = Change::SetOmap(vec![(key.to_vec(), value.to_vec())]);
        Write { object: gateway.clone(), guards: vec![], changes: vec![set] }
    };
    let scrubbed = |beats: u32| {
        desk.store.write(&[set(b"o", b"!no server")]).remove(0).unwrap();
        let (store, others) = (desk.store.session("repair"), desk.store.session("beats"));
        let (left, beat) = (AtomicU32::new(beats), set(b"b", b"a beat"));
        let object = gateway.clone();
        let fault = move |op: &Write| {
            let comes = op.object == object && left.load(Relaxed) > 0;
            if comes {
                left.fetch_sub(1, Relaxed);
                others.write(std::slice::from_ref(&beat)).remove(0).unwrap();
            }
            None
        };
        let session = Session::open(Arc::new(Faulty { store, fault }), Settings::default());
        let mut scrub = Scrub::new(Arc::new(session.unwrap()), false).unwrap();
        while scrub.step().unwrap() {}
        (scrub.report().misnamed, scrub.report().damage.len())
    };
    assert_eq!(scrubbed(2), (1, 0));
    assert_eq!(scrubbed(u32::MAX), (0, 1));
}
