//! Servers that stand by for each other.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

use std::{sync::Arc, time::Duration};

use onefold_cluster::{
    ClusterExports, Format, Found, Gateway, Mode, Session, Settings, Standby, Volume, create,
};
use onefold_core::{
    Block, BlockRead, Error, Exports, Kind, Lba, Replaced,
    object::{ObjectStore, PoolKind},
};
use onefold_testbed::MemoryObjects;

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
        Found::Mine(gateway) => gateway,
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
    let (_, third) = desk.wait(11, &mut others).unwrap();
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
