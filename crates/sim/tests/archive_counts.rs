//! Usage counts that a broken rule left wrong, and a recount that mends them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use onefold_archive::{
    Archive, Collection, CollectionOptions, CountsFound, Cutting, Ended, Feeder, Format, Gauge,
    PutRequest, Rule, Session, Settings, Shape, StreamWriter, Writing, check, put,
};
use onefold_testbed::{Rng, VirtualFiles, files::Layout};

/// An archive with streams `a`, `b` and `c` of one content.
struct Desk(VirtualFiles, Vec<u8>);

impl Desk {
    fn new() -> Desk {
        let files = VirtualFiles::new(Layout::default(), Rng::new(1));
        let format = Format { reserve_bytes: 0, ..Format::new([7; 16], [8; 32], [9; 16]) };
        Archive::create(&files, &format).unwrap();
        let mut content = vec![0; 300_000];
        Rng::new(2).fill(&mut content);
        let desk = Desk(files, content);
        ["a", "b", "c"].iter().for_each(|name| desk.put(name));
        desk
    }

    fn open(&self, broken: Option<Rule>) -> Arc<Archive> {
        let settings = Settings { broken, ..Settings::default() };
        Arc::new(Archive::open(Arc::new(self.0.clone()), true, settings).unwrap())
    }

    fn put(&self, name: &str) {
        let request = PutRequest {
            domain: None,
            name: name.into(),
            shape: Shape::Bytes,
            now: 1_000,
            wait: false,
        };
        let source = |feeder: &mut Feeder<'_>| feeder.bytes(&self.1);
        put(&self.open(None), request, &Gauge::default(), source).unwrap();
    }

    fn collection(&self, broken: Option<Rule>) -> Collection {
        let options = CollectionOptions {
            now: 2_000_000,
            keep_partial: 0,
            wait: false,
            trash: 0,
            reserve_bytes: 0,
            encode_all: false,
            doubts_clock: false,
        };
        Collection::begin(&self.open(broken), options).unwrap()
    }

    fn gc(&self, broken: Option<Rule>, recounts: bool) -> Option<CountsFound> {
        let mut collection = self.collection(broken);
        if recounts {
            collection.recount();
        }
        while collection.step().unwrap() {}
        collection.recounted
    }

    fn counts(&self) -> (bool, CountsFound) {
        let report = check(&self.open(None), true, &mut |_, _, _| {}).unwrap();
        (report.is_well(), report.counts.unwrap())
    }
}

#[test]
fn a_check_finds_counts_that_are_too_low_and_a_recount_mends_them_before_anything_is_freed() {
    let desk = Desk::new();
    desk.gc(None, false);
    let (is_well, right) = desk.counts();
    let wrong = right.too_low.chunks + right.too_high.chunks;
    assert!(is_well && right.compared > 30 && wrong == 0, "{right:?}");
    // One of three goes, and each count is lowered twice.
    desk.open(None).remove("a").unwrap();
    desk.gc(Some(Rule::RemovedCountedOnce), false);
    let (is_well, low) = desk.counts();
    assert!(!is_well && low.too_low.chunks > 10 && low.too_high.chunks == 0, "{low:?}");
    assert_eq!(low.too_low.containers.len() as u64, low.too_low.in_containers);
    let recounted = desk.gc(None, true).unwrap();
    assert_eq!(recounted.too_low, low.too_low);
    let (is_well, whole) = desk.counts();
    assert!(is_well && whole.too_low.chunks == 0, "{whole:?}");
    // Without the recount this would free what `c` names.
    desk.open(None).remove("b").unwrap();
    desk.gc(None, false);
    let (is_well, whole) = desk.counts();
    assert!(is_well && whole.too_low.chunks + whole.too_high.chunks == 0, "{whole:?}");
}

#[test]
fn a_crash_in_a_recount_leaves_the_old_counts_or_the_new_ones() {
    let (mut before, mut after) = (0, 0);
    for crash in 0..60 {
        let desk = Desk::new();
        desk.gc(None, false);
        desk.open(None).remove("a").unwrap();
        desk.gc(Some(Rule::RemovedCountedOnce), false);
        let (_, low) = desk.counts();
        let mut collection = desk.collection(None);
        collection.recount();
        while collection.doing() != "counting all references anew" {
            assert!(collection.step().unwrap());
        }
        desk.0.arm_crash(crash);
        let stepped = collection.step();
        drop(collection);
        if !desk.0.is_down() {
            stepped.unwrap();
            break;
        }
        desk.0.power_cycle();
        let (_, found) = desk.counts();
        assert!(found.too_low == low.too_low || found.too_low.chunks == 0, "{crash}: {found:?}");
        *if found.too_low.chunks > 0 { &mut before } else { &mut after } += 1;
        // The next recount mends what this one did not, and what the crash left goes once there is a file
        // with a higher number.
        desk.gc(None, true).unwrap();
        desk.gc(None, false);
        assert!(desk.counts().0, "{crash}");
        let names = onefold_core::Files::names(&desk.0).unwrap();
        let files = names.iter().filter(|name| name.starts_with("counts-")).count();
        assert_eq!(files, 1, "{crash}: {names:?}");
    }
    assert!(before > 3 && after > 0, "{before}, {after}");
}

#[test]
fn a_recount_spares_what_was_condemned_before_it() {
    let is_well = |broken| {
        let desk = Desk::new();
        // A put looks up all of its chunks, and finds them.
        let archive = desk.open(None);
        let mut session = Session::begin(&archive, false).unwrap();
        let mut writer = StreamWriter::new(&session, 1_000);
        let (mut cutting, mut writing) = (Cutting::new(&*archive), Writing::default());
        let mut rest = &desk.1[..];
        while !rest.is_empty() {
            let room = cutting.room();
            let part = rest.len().min(room.len());
            room[..part].copy_from_slice(&rest[..part]);
            rest = &rest[part..];
            assert!(cutting.advance(part).is_none());
        }
        let mut batch = cutting.end();
        batch.fingerprint(session.domain());
        session.add(&batch, &mut writing, &mut |open| writer.pack_and_write(open)).unwrap();
        assert_eq!(session.new_bytes, 0);
        // All else that names them goes, and a collector condemns them and is killed.
        ["a", "b", "c"].iter().for_each(|name| desk.open(None).remove(name).unwrap());
        let mut collection = desk.collection(broken);
        while !collection.doing().starts_with("rechecking") {
            assert!(collection.step().unwrap());
        }
        drop(collection);
        let data = session.end_recipe(writing, &mut |open| writer.pack_and_write(open)).unwrap();
        session.seal(&mut |open| writer.pack_and_write(open)).unwrap();
        let (name, shape) = ("d".to_owned(), Shape::Bytes);
        writer.commit(Ended { name, shape, created: 1_000, data, listing: Vec::new() }).unwrap();
        writer.close().unwrap();
        drop(session);
        desk.gc(broken, true).unwrap();
        desk.gc(broken, false);
        check(&desk.open(None), true, &mut |_, _, _| {}).unwrap().is_well()
    };
    assert!(is_well(None));
    assert!(!is_well(Some(Rule::CondemnedSparedFirst)));
}
