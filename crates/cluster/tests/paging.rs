//! Names and scrubs that go page by page, over processes.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

use std::{collections::BTreeSet, sync::Arc};

use onefold_cluster::{
    Format, Named, Place, Report, Scrub, Session, Settings, Stage, Watermarks, What, Worker, create,
};
use onefold_core::object::{Change, ObjectName, ObjectStore, Pool, PoolKind, Write};
use onefold_testbed::MemoryObjects;

fn store(shards: u16) -> (MemoryObjects, Arc<Session>) {
    let store = MemoryObjects::new(PoolKind::Replicated);
    let format = Format { shards, ..Format::new([1; 16], [2; 32], PoolKind::Replicated) };
    create(&store, &format).unwrap();
    let settings = Settings { cold: std::time::Duration::ZERO, ..Settings::default() };
    let session = Session::open(Arc::new(store.session("one")), settings).unwrap();
    (store, Arc::new(session))
}

fn pages(session: &Session, what: Option<What>) -> (Vec<(String, Named)>, usize) {
    let (mut all, mut after, mut pages) = (Vec::new(), String::new(), 0);
    loop {
        let page = session.names_after(what, &after).unwrap();
        all.extend(page.names);
        pages += 1;
        match page.next {
            Some(next) => {
                assert!(next > after, "a page makes progress");
                after = next;
            }
            None => return (all, pages),
        }
    }
}

#[test]
fn pages_of_names_have_what_a_listing_has() {
    for shards in [1, 3, 256] {
        let (_, session) = store(shards);
        assert_eq!(pages(&session, None), (Vec::new(), 1));
        for n in 0..150 {
            session.put(&format!("put {n}"), &mut &b""[..]).unwrap();
            session.create_volume(&format!("volume {n}"), 4096).unwrap();
        }
        for n in [3, 77, 140] {
            session.rename(What::Put, &format!("put {n}"), &format!("renamed {n}")).unwrap();
        }
        let (all, count) = pages(&session, None);
        assert_eq!(all, session.names().unwrap());
        assert!((count > 1) == (shards < 256), "{count} pages of {shards} shards");
        assert_eq!(pages(&session, Some(What::Volume)).0, session.volumes().unwrap());
    }
}

/// Scrubs in processes that look at so many slices each.
fn in_portions(store: &MemoryObjects, slices: usize) -> (Vec<Report>, Vec<Place>) {
    let (mut reports, mut places): (Vec<Report>, Vec<Place>) = (Vec::new(), Vec::new());
    loop {
        let session = Session::look(Arc::new(store.session("look")), Settings::default()).unwrap();
        let mut scrub = Scrub::look(Arc::new(session), false).unwrap();
        if let Some(place) = places.last() {
            scrub = scrub.from(place.clone());
        }
        let more = (0..slices).all(|_| scrub.step().unwrap());
        reports.push(scrub.report().clone());
        match scrub.place() {
            Some(place) => places.push(place),
            None => return (reports, places),
        }
        assert!(more, "a scrub that is not at its end goes on");
    }
}

#[test]
fn a_scrub_goes_on_in_another_process_and_looks_at_everything() {
    let (store, session) = store(256);
    for n in 0..200u32 {
        let content: Vec<u8> = n.to_le_bytes().repeat(300);
        session.put(&format!("put {n}"), &mut &content[..]).unwrap();
    }
    let mut worker = Worker::new(session.clone(), Watermarks::NONE);
    for _ in 0..1000 {
        worker.step().unwrap();
    }
    worker.release();
    // Something for each stage: an orphan, a chunk without references, and an object that is gone.
    let chunk = store.list(Pool::Chunks, None, 1).unwrap().names.remove(0);
    let lost = session.find("put 7").unwrap().unwrap();
    let gone = onefold_cluster::format::ObjectId { volume: lost.id, index: 0 };
    let write = |object, changes| {
        store.write(&[Write { object, guards: vec![], changes }]).remove(0).unwrap();
    };
    write(gone.name(), vec![Change::Remove]);
    write(ObjectName::metadata("v.0000000001"), vec![Change::Full(vec![1])]);
    let mut name = chunk.into_bytes();
    name[10] = if name[10] == b'a' { b'b' } else { b'a' };
    write(ObjectName::chunk(String::from_utf8(name).unwrap()), vec![Change::Full(vec![1])]);
    let whole = {
        let mut scrub = Scrub::look(session.clone(), false).unwrap();
        while scrub.step().unwrap() {}
        assert!(scrub.place().is_none());
        scrub.report().clone()
    };
    assert!(whole.stale > 0 && whole.collected > 0 && whole.damage.len() == 1, "{whole:?}");
    for slices in [1, 2, 7, 1000] {
        let (reports, places) = in_portions(&store, slices);
        let sum = |of: fn(&Report) -> u64| reports.iter().map(of).sum::<u64>();
        let all: [fn(&Report) -> u64; 8] = [
            |r| r.objects,
            |r| r.chunks,
            |r| r.references,
            |r| r.stale,
            |r| r.collected,
            |r| r.added,
            |r| r.orphans,
            |r| r.damage.len() as u64,
        ];
        for of in all {
            assert_eq!(sum(of), of(&whole), "{slices} slices each: {reports:?}");
        }
        if slices == 1 {
            let stages: BTreeSet<u8> = places.iter().map(|place| place.stage as u8).collect();
            let expected = [Stage::Metadata, Stage::Chunks, Stage::Names].map(|stage| stage as u8);
            assert_eq!(stages, expected.into());
        }
    }
}
