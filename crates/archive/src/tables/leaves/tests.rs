//! Leaves of the container table on demand, written, written ahead, damaged, and read again.

use std::{collections::BTreeMap, sync::Arc};

use onefold_core::{Files, Result};
use onefold_testbed::{Rng, VirtualFiles, files::Layout};
use proptest::prelude::*;

use super::{Source, limit_leaves, write_leaves, write_leaves_ahead};
use crate::{
    erasure::OneDirectory,
    format::{
        ContainerId, Identity,
        container::ContainerKind,
        label::Kinds,
        record::{Place, Stored},
    },
    leaf_file::{LEAVES, LeafReader},
    memory::{Budget, Drawn},
    operations_log::Archive,
    settings::{Format, Settings},
    tables::{
        Container, Tables,
        containers::{Containers, LeafStore, NamedLeaf},
    },
};

const KINDS: Kinds = Kinds {
    late: false,
    trees: true,
    leaves: true,
    on_demand: true,
    clones: false,
    counts_in_pages: false,
    domains: false,
    heads: false,
    roles: false,
    data_keys: false,
    volume_domains: false,
};

/// An archive's files, and the snapshot that was written last.
struct Desk {
    files: VirtualFiles,
    identity: Identity,
    number: u64,
    snapshot: Vec<u8>,
    settings: Settings,
}

impl Desk {
    fn new(leaf_bytes: u64) -> Desk {
        let settings = Settings { leaf_bytes, ..Settings::default() };
        let identity = Identity::new([1; 16], &[2; 32]);
        let files = VirtualFiles::new(Layout::default(), Rng::new(1));
        // Look-ups that find nothing ask the label whether their snapshot is old.
        let format = Format {
            leaves: true,
            on_demand: true,
            reserve_bytes: 0,
            ..Format::new([1; 16], [2; 32], [3; 16])
        };
        Archive::create(&files, &format).unwrap();
        let mut desk = Desk { files, identity, number: 0, snapshot: Vec::new(), settings };
        desk.write(&mut Tables::new([1, 1, 0], KINDS));
        desk
    }

    fn write(&mut self, tables: &mut Tables) {
        self.number += 1;
        write_leaves(
            &self.files,
            &self.identity,
            &self.settings,
            self.number,
            tables,
            &mut |_, _| (),
        )
        .unwrap();
        self.snapshot = tables.encode();
    }

    /// Writes leaves ahead of the next snapshot.
    fn write_ahead(&self, tables: &mut Tables, most: usize) {
        let next = self.number + 1;
        write_leaves_ahead(&self.files, &self.identity, &self.settings, next, tables, most)
            .unwrap();
    }

    /// The tables of the last snapshot, as a process has them that comes new.
    fn open(&self) -> (Tables, Arc<LeafStore>) {
        let files = Arc::new(OneDirectory(Arc::new(self.files.clone())));
        let budget = Budget::new(u64::MAX);
        let store = LeafStore::new(files, self.identity.clone(), &self.settings, false, budget);
        let reader = LeafReader::new(&self.files, &self.identity, &self.settings);
        let number = self.number;
        let mut source = Source { reader, before: None, store: &store, number };
        let drawn = Drawn::free();
        let read =
            Tables::decode_within(&self.snapshot, [1, 1, 0], KINDS, drawn, Some(&mut source));
        (read.unwrap(), store)
    }
}

fn container(id: u64, logged: u64) -> Container {
    let place = Place { segment: 1, at: id * 4096, bytes: 4096, meta_bytes: 200 };
    let id = ContainerId(id);
    let stored =
        Stored { id, kind: ContainerKind::Data, domain: 0, chunks: 1, raw_bytes: 9, place };
    Container { stored, merged: Vec::new(), logged, born: 0, changed: 0 }
}

type Model = BTreeMap<u64, u64>;

fn is_same(tables: &Tables, model: &Model) {
    let all = tables.containers.iter().map(Result::unwrap);
    let all: Vec<_> = all.map(|found| (found.stored.id.0, found.logged)).collect();
    assert_eq!(all, model.iter().map(|(&id, &logged)| (id, logged)).collect::<Vec<_>>());
    assert_eq!(tables.containers.len(), model.len());
    let last = tables.containers.last_id().unwrap().map(|id| id.0);
    assert_eq!(last, model.keys().next_back().copied());
    for id in 0..130 {
        let found = tables.containers.get(&ContainerId(id)).unwrap();
        assert_eq!(found.map(|found| found.logged), model.get(&id).copied());
        let from = tables.containers.iter_from(ContainerId(id)).next();
        let from = from.map(|found| found.unwrap().stored.id.0);
        assert_eq!(from, model.range(id..).next().map(|(id, _)| *id));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn containers_are_what_a_plain_map_has_however_few_leaves_are_kept(
        most in 2..9usize,
        kept in prop_oneof![Just(0u64), Just(1500), Just(u64::MAX)],
        rounds in proptest::collection::vec(
            (
                proptest::collection::vec((1..120u64, 0..5u8, 0..1000u64), 0..40),
                0..6usize,
                any::<bool>(),
            ),
            1..7)
    ) {
        let (mut desk, mut model) = (Desk::new(kept), Model::new());
        let (mut tables, mut store) = desk.open();
        for (n, (changes, ahead, is_cut)) in rounds.into_iter().enumerate() {
            limit_leaves(&mut tables, most);
            let (before, model_before) = (tables.clone(), model.clone());
            let half = changes.len() / 2;
            for (at, (id, how, logged)) in changes.into_iter().enumerate() {
                if at == half {
                    let changed = tables.containers.changed();
                    desk.write_ahead(&mut tables, ahead);
                    assert_eq!(tables.containers.changed(), changed.saturating_sub(ahead));
                    if is_cut {
                        // Another process had no room for the next snapshot.
                        before.leaf_file.cut(&desk.files).unwrap();
                    }
                    is_same(&tables, &model);
                }
                let key = ContainerId(id);
                let old = match how {
                    0 | 1 => {
                        let gone = tables.containers.remove(&key).unwrap();
                        assert_eq!(gone.map(|gone| gone.logged), model.remove(&id));
                        continue;
                    }
                    2 => {
                        let set = |found: &mut Container| {
                            std::mem::replace(&mut found.logged, logged)
                        };
                        tables.containers.change(&key, set).unwrap()
                    }
                    _ => {
                        let old = tables.containers.insert(key, container(id, logged));
                        old.unwrap().map(|old| old.logged)
                    }
                };
                assert_eq!(old, model.get(&id).copied());
                if how > 2 || old.is_some() {
                    model.insert(id, logged);
                }
            }
            is_same(&tables, &model);
            is_same(&before, &model_before);
            let changed = tables.containers.named().len() + tables.containers.changed();
            assert_eq!(changed, tables.containers.leaf_count());
            let held = tables.containers.placed().count() + tables.containers.changed();
            assert_eq!(tables.containers.held_leaves(), held);
            desk.write(&mut tables);
            is_same(&tables, &model);
            assert!(store.bytes() <= kept && tables.containers.changed() == 0);
            assert_eq!(tables.containers.held_leaves(), 0);
            // Every other time a process comes that has nothing in memory.
            if n % 2 == 0 {
                (tables, store) = desk.open();
                assert_eq!(store.bytes(), 0);
                is_same(&tables, &model);
            }
        }
    }
}

#[test]
fn leaves_are_not_written_ahead_over_pages_that_readers_await() {
    let mut desk = Desk::new(0);
    let (mut tables, _) = desk.open();
    tables.epoch = 5;
    let change = |tables: &mut Tables, logged: u64| {
        for id in 1..40 {
            tables.containers.insert(ContainerId(id), container(id, logged)).unwrap();
        }
    };
    change(&mut tables, 1);
    desk.write(&mut tables);
    let (known, _) = desk.open();
    let reads = || {
        let mut all = known.containers.iter();
        all.all(|found| found.is_ok_and(|found| found.logged == 1))
    };
    // Neither the last snapshot nor the one before names the pages that the reader knows.
    for logged in 2..4 {
        change(&mut tables, logged);
        desk.write(&mut tables);
    }
    for epoch in 5..7 {
        (tables.epoch, _) = (epoch, change(&mut tables, 4));
        desk.write_ahead(&mut tables, usize::MAX);
        assert!(tables.containers.changed() == 0 && reads(), "in epoch {epoch}");
    }
    // Who read in epoch 5 has left.
    (tables.epoch, _) = (7, change(&mut tables, 5));
    desk.write_ahead(&mut tables, usize::MAX);
    assert!(!reads(), "these pages are written again some time");
    desk.write(&mut tables);
    let (read, _) = desk.open();
    assert!(read.containers.iter().all(|found| found.is_ok_and(|found| found.logged == 5)));
}

#[test]
fn a_directory_that_says_other_things_than_its_leaves_is_damage() {
    let mut desk = Desk::new(u64::MAX);
    let (mut tables, _) = desk.open();
    for id in 1..40 {
        tables.containers.insert(ContainerId(id), container(id, 1)).unwrap();
    }
    desk.write(&mut tables);
    let named = tables.containers.named();
    assert!(named.len() > 4);
    let read = |change: &dyn Fn(&mut Vec<NamedLeaf>)| {
        let (mut named, (_, store)) = (named.clone(), desk.open());
        change(&mut named);
        let table = Containers::on_demand(&named, &store, desk.number)?;
        Some(table.iter().collect::<Result<Vec<_>>>().map(|all| all.len()))
    };
    assert!(matches!(read(&|_| {}), Some(Ok(39))));
    assert!(matches!(read(&|all| all[1].count -= 1), Some(Err(_))));
    assert!(matches!(read(&|all| all[1].first.0 += 1), Some(Err(_))));
    assert!(matches!(read(&|all| all[2].first.0 -= 1), Some(Err(_))));
    assert!(read(&|all| all[1].count = 0).is_none());
    assert!(read(&|all| all.swap(0, 1)).is_none());
}

#[test]
fn a_leaf_whose_first_copy_is_damaged_is_read_and_written_again() {
    let mut desk = Desk::new(0);
    let (mut tables, _) = desk.open();
    for id in 1..40 {
        tables.containers.insert(ContainerId(id), container(id, 1)).unwrap();
    }
    desk.write(&mut tables);
    let place = tables.containers.named()[1].place;
    let file = desk.files.open(LEAVES).unwrap();
    file.write_at(u64::from(place.page) * 4096 + 50, b"rot").unwrap();
    let (mut tables, _) = desk.open();
    desk.write(&mut tables);
    assert_eq!(tables.containers.named()[1].place, place, "nobody looked at it");
    assert_eq!(tables.containers.iter().filter(|found| found.is_ok()).count(), 39);
    desk.write(&mut tables);
    assert_ne!(tables.containers.named()[1].place, place);
    // Both copies are lost.
    let place = tables.containers.named()[2].place;
    for copy in 0..2 {
        let page = u64::from(place.page + copy * place.pages);
        file.write_at(page * 4096 + 50, b"rot").unwrap();
    }
    let count = tables.containers.named()[2].count;
    let (found, lost): (Vec<_>, Vec<_>) = tables.containers.iter().partition(Result::is_ok);
    assert_eq!((found.len(), lost.len()), (39 - count, 1));
}

#[test]
fn beside_a_lost_leaf_all_goes_on() {
    let mut desk = Desk::new(0);
    let (mut tables, _) = desk.open();
    for id in 1..40 {
        tables.containers.insert(ContainerId(id), container(id, 1)).unwrap();
    }
    desk.write(&mut tables);
    let ids = |tables: &Tables, n: usize| {
        let named = tables.containers.named();
        let there = (named[n].first.0..named[n + 1].first.0).map(ContainerId);
        there.filter(|id| tables.containers.contains_key(id).unwrap()).collect::<Vec<_>>()
    };
    // So few that a neighbour with fewer would be joined with it.
    for id in ids(&tables, 2).into_iter().skip(3) {
        tables.containers.remove(&id).unwrap().unwrap();
    }
    desk.write(&mut tables);
    let (place, lost) = (tables.containers.named()[2].place, ids(&tables, 2));
    let beside = [ids(&tables, 1), ids(&tables, 3)].concat();
    assert!(lost.len() == 3 && beside.len() > 8);
    let file = desk.files.open(LEAVES).unwrap();
    let rot = |copy: u32| {
        let page = u64::from(place.page + copy * place.pages);
        file.write_at(page * 4096 + 50, b"rot").unwrap();
    };
    rot(0);
    // It was looked at, so that the next snapshot is to write it again.
    assert!(tables.containers.contains_key(&lost[0]).unwrap());
    rot(1);
    assert!(tables.containers.get(&lost[0]).is_err());
    assert!(tables.containers.change(&lost[0], |_| ()).is_err());
    for id in &beside {
        tables.containers.remove(id).unwrap().unwrap();
    }
    desk.write(&mut tables);
    let (read, _) = desk.open();
    assert!(read.containers.named().iter().any(|leaf| leaf.place == place));
    let (found, errors): (Vec<_>, Vec<_>) = read.containers.iter().partition(Result::is_ok);
    assert_eq!((found.len() + 3, errors.len()), (read.containers.len(), 1));
    // From within the lost leaf on, too.
    let from = read.containers.iter_from(lost[1]).collect::<Vec<_>>();
    assert!(from[0].is_err() && from[1..].iter().all(Result::is_ok) && from.len() > 2);
}
