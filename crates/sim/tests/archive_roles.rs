//! What somebody does who took a put key over, with a program of their own: nobody believes it. Each rule
//! that keeps this so is broken once, and the attack is seen to succeed.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../archive/tests/support/mod.rs"]
mod support;

use std::sync::Arc;

use onefold_archive::{
    Address, Archive, Collected, Collection, CollectionOptions, ContainerId, Format, Gauge,
    IndexFile, KeySource, Owner, Place, Record, Role, Roles, Rule, Settings, Shape, Snapshot,
    SnapshotId, Stored, Stream, Tables, TreeNodeRef, add_put_key, append_records, backup, check,
    create_sealed, forget, read_key, write_other_tables,
};
use onefold_core::{Files, Fingerprint, Kind, Result};
use onefold_seal::{AgreementKey, Argon, KeyArea, Keys, Opener, Random, RoleKey, Secret, SlotKind};
use onefold_testbed::{Rng, VirtualFiles, files::Layout};
use parking_lot::Mutex;
use support::{feed_file, names, options, request_by, restored, secret};

struct Chance(Mutex<Rng>);

impl Random for Chance {
    fn fill(&self, into: &mut [u8]) -> Result<()> {
        self.0.lock().fill(into);
        Ok(())
    }
}

fn chance(seed: u64) -> Arc<dyn Random> {
    Arc::new(Chance(Mutex::new(Rng::new(seed))))
}

/// Opens by a role key, or by the slot.
struct Has(Option<RoleKey>);

impl Opener for Has {
    fn root(&self, area: &KeyArea) -> Result<Secret> {
        Ok(area.root(&secret(1), 0)?.unwrap().1)
    }
    fn role(&self, _: &[u8; 16]) -> Result<Option<RoleKey>> {
        Ok(self.0.as_ref().map(RoleKey::again))
    }
    fn random(&self) -> Arc<dyn Random> {
        chance(5)
    }
}

struct Desk(VirtualFiles);

impl Desk {
    fn new() -> Desk {
        let files = VirtualFiles::new(Layout::default(), Rng::new(1));
        let format = Format {
            reserve_bytes: 0,
            segment_bytes: 4 << 20,
            ..Format::new([7; 16], [8; 32], [9; 16]).with_roles()
        };
        let random = chance(3);
        let mut keys = Keys::create(format.id, &*random).unwrap();
        let slot = (SlotKind::File, "");
        keys.add_slot(slot, &secret(1), Argon::LEAST, (0, 0), &*random).unwrap();
        create_sealed(&files, &format, &mut keys, random).unwrap();
        Desk(files)
    }

    fn open(
        &self,
        key: Option<&RoleKey>,
        broken: Option<Rule>,
        writes: bool,
    ) -> Result<Arc<Archive>> {
        let opener = KeySource::new(Arc::new(Has(key.map(RoleKey::again))));
        let settings = Settings { opener, broken, ..Settings::default() };
        Archive::open(Arc::new(self.0.clone()), writes, settings).map(Arc::new)
    }

    /// One in which manage, `db` and `web` have stored a snapshot each, with the keys of the last two.
    fn of_three() -> (Desk, RoleKey, RoleKey) {
        let desk = Desk::new();
        let (web, db) = (desk.grant("web"), desk.grant("db"));
        store(&desk.manage(), "vault", 1, &content(1)).unwrap();
        store(&desk.by(&db), "db", 2, &content(2)).unwrap();
        store(&desk.by(&web), "web", 3, &content(3)).unwrap();
        (desk, web, db)
    }

    fn manage(&self) -> Arc<Archive> {
        self.open(None, None, true).unwrap()
    }

    fn by(&self, key: &RoleKey) -> Arc<Archive> {
        self.open(Some(key), None, true).unwrap()
    }

    /// Whoever took the key over, with a program that says no to nothing.
    fn hostile(&self, key: &RoleKey) -> Arc<Archive> {
        self.open(Some(key), Some(Rule::PutJudgesItself), true).unwrap()
    }

    fn grant(&self, set: &str) -> RoleKey {
        let mut kept = None;
        add_put_key(&self.manage(), set, &[set.to_owned()], |key| {
            kept = Some(key.again());
            Ok(())
        })
        .unwrap();
        kept.unwrap()
    }

    fn collection(&self) -> Collection {
        let options = CollectionOptions { reserve_bytes: 0, ..options(2_000_000) };
        Collection::begin(&self.manage(), options).unwrap()
    }

    fn collect(&self) -> Collected {
        self.collection().run(&mut |_| {}).unwrap()
    }

    fn is_well(&self) {
        let report = check(&self.manage(), true, &mut |_, _, _| {}).unwrap();
        assert!(report.problems.is_empty(), "{:?}", report.problems);
    }
}

fn content(seed: u64) -> Vec<u8> {
    let mut content = vec![0; 400_000];
    Rng::new(seed).fill(&mut content);
    content
}

/// Backs up one file; gives how many bytes were new.
fn store(archive: &Arc<Archive>, set: &str, number: u8, bytes: &[u8]) -> Result<u64> {
    Ok(support::store(archive, set, number, bytes)?.new_bytes)
}

/// The snapshot that a put key may not add: of another set, or with other fields.
fn snapshot(of: &Snapshot, change: impl FnOnce(&mut Snapshot)) -> Vec<Record> {
    let mut snapshot = Box::new(Snapshot { id: SnapshotId([99; 16]), ..of.clone() });
    change(&mut snapshot);
    vec![Record::SnapshotMade { snapshot, containers: Vec::new(), finished: Vec::new() }]
}

#[test]
fn rule_45_a_role_that_is_not_compared_lets_a_put_key_remove_what_others_stored() {
    let desk = Desk::new();
    let web = desk.grant("web");
    store(&desk.manage(), "vault", 1, &content(1)).unwrap();
    store(&desk.by(&web), "web", 2, &content(2)).unwrap();
    forget(&desk.hostile(&web), &[SnapshotId([1; 16])], 2_000).unwrap();
    assert_eq!(names(&desk.manage()), [1, 2]);
    assert_eq!(names(&desk.by(&web)), [1, 2]);
    let reader = read_key(&desk.manage(), "r").unwrap();
    assert_eq!(names(&desk.open(Some(&reader), None, false).unwrap()), [1, 2]);
    let known = desk.manage().tables().roles.clone().unwrap();
    assert_eq!(known.keys.get(&1).unwrap().refused, 1);
    let broken = desk.open(None, Some(Rule::RoleCompared), false).unwrap();
    assert_eq!(names(&broken), [2]);
    // Others go on behind it.
    store(&desk.by(&web), "web", 3, &content(3)).unwrap();
    desk.collect();
    desk.is_well();
    assert_eq!(restored(&desk.manage(), 1).unwrap(), content(1));
}

/// True when the tables are the same but for the place in the order of changes, and what was passed over.
fn is_same(one: &Tables, other: &Tables) -> bool {
    let of = |tables: &Tables| {
        let keys = |roles: &Roles| -> Vec<_> {
            roles.keys.values().map(|key| (key.public, key.sets.clone(), key.is_removed)).collect()
        };
        let roles = tables.roles.as_ref().unwrap();
        let known = (keys(roles), roles.proven, roles.unproven.clone());
        let (sequence, chain, head) = (0, 0, [0; 32]);
        (known, Tables { sequence, chain, head, roles: None, ..tables.clone() })
    };
    of(one) == of(other)
}

#[test]
fn rule_45_nothing_that_a_put_key_may_not_do_counts_whatever_it_signs() {
    let (desk, web, db) = Desk::of_three();
    let tables = desk.manage().tables();
    let found: Vec<Stored> =
        tables.containers.iter().map(|container| container.unwrap().stored).collect();
    let (one, all) = (found[0], found.iter().map(|stored| stored.id).collect::<Vec<_>>());
    let place = one.place;
    let of = |number: u8| tables.snapshots.get(SnapshotId([number; 16])).unwrap();
    let next = ContainerId(tables.next_id);
    let (last_segment, segment) = tables.segments.iter().next_back().unwrap();
    let free = Place { segment: *last_segment, at: segment.end, ..place };
    let new = |id, place| Stored { id, place, ..one };
    let unfinished =
        |stored: Stored| vec![Record::Unfinished { containers: vec![stored], at: 1_000 }];
    let class = tables.class(&place);
    let reserved = |owner, first, count, segment| {
        vec![Record::Reserved { owner, first, count, segment, class }]
    };
    let ids = || vec![SnapshotId([1; 16])];
    let bits = || vec![(one.id, vec![255])];
    let stream = || Stream {
        shape: Shape::Bytes,
        domain: 0,
        created: 1,
        bytes: 0,
        added: 0,
        chunks: 0,
        recipe: Vec::new(),
        listing: Vec::new(),
    };
    let attacks: Vec<(&str, Vec<Record>)> = vec![
        ("forgets", vec![Record::Forgotten { ids: ids(), at: 2_000 }]),
        ("brings back", vec![Record::Undeleted { ids: ids() }]),
        ("sees", vec![Record::ForgottenSeen { ids: ids(), at: 2_000 }]),
        ("expires", vec![Record::Expired { ids: ids() }]),
        ("condemns", vec![Record::Condemned { containers: bits() }]),
        ("damages", vec![Record::Damaged { containers: bits() }]),
        ("drops", vec![Record::Dropped { containers: all.clone(), spared: Vec::new() }]),
        ("merges", vec![Record::Merged { from: all.clone(), to: new(next, free) }]),
        ("frees", vec![Record::Freed { places: vec![place] }]),
        ("fences", vec![Record::EpochAdvanced]),
        ("abandons others'", vec![Record::Abandoned { containers: all.clone() }]),
        ("counts", vec![Record::Counted { file: 9, differences: 1, upto: 1, proof: 1 }]),
        ("owes counts", vec![Record::CountsDue { nodes: Vec::new() }]),
        (
            "imports",
            vec![Record::Imported {
                files: vec![IndexFile { number: 1, pages: 1, filter_pages: 0, entries: 1 }],
                upto: 99,
            }],
        ),
        (
            "puts",
            vec![Record::Put {
                name: "n".into(),
                stream: stream(),
                containers: Vec::new(),
                finished: Vec::new(),
            }],
        ),
        ("removes", vec![Record::Removed { name: "n".into() }]),
        ("renames", vec![Record::Renamed { from: "n".into(), to: "m".into() }]),
        (
            "makes a volume",
            vec![Record::VolumeCreated {
                id: 0,
                name: "v".into(),
                bytes: 4096,
                created: 1,
                domain: 0,
            }],
        ),
        ("erases", vec![Record::DomainErased { number: 1 }]),
        (
            "adds a key",
            vec![Record::PutKeyAdded {
                number: 3,
                public: [1; 32],
                name: "x".into(),
                sets: vec!["vault".into()],
            }],
        ),
        ("removes a key", vec![Record::PutKeyRemoved { number: 2 }]),
        (
            "proves",
            vec![Record::Proven {
                upto: u64::MAX,
                untrue: Vec::new(),
                snapshots: vec![SnapshotId([3; 16])],
            }],
        ),
        ("another's set", snapshot(of(3), |it| it.set = "db".into())),
        ("a set of nobody", snapshot(of(3), |it| it.set = "new".into())),
        ("the past", snapshot(of(3), |it| it.ended -= 1)),
        ("another's host", snapshot(of(3), |it| it.host = "db".into())),
        ("a host of nobody", snapshot(of(3), |it| it.host = String::new())),
        ("another's digits", snapshot(of(3), |it| it.id.0[..4].fill(1))),
        ("a forgotten one", snapshot(of(3), |it| it.forgotten = Some((1, None)))),
        ("another's id", snapshot(of(3), |it| it.id = SnapshotId([1; 16]))),
        ("paths without end", snapshot(of(3), |it| it.paths = vec![vec![b'a'; 1 << 20]; 40])),
        ("a lot of numbers", reserved(Owner::Ingest, next, 1 << 30, None)),
        (
            "a lot of numbers by many records",
            (0..3)
                .flat_map(|n| reserved(Owner::Ingest, ContainerId(next.0 + n * 512), 512, None))
                .collect(),
        ),
        ("later numbers", reserved(Owner::Ingest, ContainerId(next.0 + 1), 1, None)),
        ("older numbers", reserved(Owner::Ingest, ContainerId(1), 10, None)),
        ("numbers of the collector", reserved(Owner::Collector, next, 10, None)),
        ("a later segment", reserved(Owner::Ingest, next, 10, Some(tables.next_segment + 1))),
        ("another's segment", reserved(Owner::Ingest, next, 10, Some(*last_segment))),
        ("a number of nobody", unfinished(new(next, free))),
        ("a number of others", unfinished(new(ContainerId(all[0].0 + 100), free))),
        (
            "no records but one",
            vec![Record::EpochAdvanced, Record::Unfinished { containers: Vec::new(), at: 1 }],
        ),
    ];
    let attacker = desk.hostile(&web);
    for (n, (what, records)) in attacks.into_iter().enumerate() {
        // The attacker's own tables may be anything: its frame counts, or it can't even be applied there.
        let done = append_records(&attacker, |_| records);
        let now = desk.manage().tables();
        let refused = now.roles.as_ref().unwrap().keys.get(&1).unwrap().refused;
        assert!(is_same(&now, &tables), "{what} ({n}): {done:?}, {refused} refused");
        assert_eq!(refused, n as u64 + 1, "{what} ({n}): {done:?}");
    }
    let now = desk.manage().tables();
    assert!(now.roles.as_ref().unwrap().keys.get(&1).unwrap().refused > 0);
    store(&desk.by(&db), "db", 4, &content(4)).unwrap();
    desk.collect();
    desk.is_well();
}

#[test]
fn rule_45_places_and_numbers_of_others_stay_theirs() {
    let desk = Desk::new();
    let (web, db) = (desk.grant("web"), desk.grant("db"));
    store(&desk.by(&db), "db", 1, &content(1)).unwrap();
    store(&desk.by(&web), "web", 2, &content(2)).unwrap();
    let tables = desk.manage().tables();
    let of_db = tables.containers.iter().next().unwrap().unwrap().stored;
    let attacker = desk.hostile(&web);
    // It takes numbers as it may, and lists a container with one of them where others lie.
    let next = tables.next_id;
    let class = tables.class(&of_db.place);
    let (owner, first, segment) = (Owner::Ingest, ContainerId(next), None);
    append_records(&attacker, |_| {
        vec![Record::Reserved { owner, first, count: 10, segment, class }]
    })
    .unwrap();
    for place in [
        of_db.place,
        Place { at: of_db.place.at + 4096, ..of_db.place },
        Place { segment: 77, ..of_db.place },
    ] {
        let stored = Stored { id: ContainerId(next + 1), place, ..of_db };
        append_records(&attacker, |_| {
            vec![Record::Unfinished { containers: vec![stored], at: 1_000 }]
        })
        .unwrap();
        let now = desk.manage().tables();
        assert!(!now.containers.contains_key(&stored.id).unwrap(), "{place:?}");
    }
    // Nor two of them at one place.
    let end = tables.segments.get(&of_db.place.segment).unwrap().end;
    let place = Place { at: end, ..of_db.place };
    let both = [1, 2].map(|n| Stored { id: ContainerId(next + n), place, ..of_db }).to_vec();
    append_records(&attacker, |_| vec![Record::Unfinished { containers: both, at: 1_000 }])
        .unwrap();
    assert!(!desk.manage().tables().containers.contains_key(&ContainerId(next + 1)).unwrap());
    desk.collect();
    desk.is_well();
    assert_eq!(restored(&desk.manage(), 1).unwrap(), content(1));
}

#[test]
fn rule_45_rubbish_under_a_fingerprint_is_nobodys_duplicate() {
    let desk = Desk::new();
    let (web, db) = (desk.grant("web"), desk.grant("db"));
    let needed = content(7);
    let rubbish = desk.open(Some(&web), Some(Rule::StoredAsFingerprinted), true).unwrap();
    store(&rubbish, "web", 1, &needed).unwrap();
    // The bug: it is taken.
    let trusting = desk.open(Some(&db), Some(Rule::DuplicatesProven), true).unwrap();
    assert_eq!(store(&trusting, "db", 2, &needed).unwrap(), 0);
    assert!(restored(&desk.manage(), 2).is_err());
    // Without it: not before manage has read it, and not after.
    assert_eq!(store(&desk.by(&db), "db", 3, &needed).unwrap(), needed.len() as u64);
    let done = desk.collect();
    assert!(done.untrue == 1, "{done:?}");
    assert_eq!(store(&desk.by(&db), "db", 4, &needed).unwrap(), 0);
    let mail = desk.grant("mail");
    assert_eq!(store(&desk.by(&mail), "mail", 5, &needed).unwrap(), 0);
    for number in [3, 4, 5] {
        assert_eq!(restored(&desk.manage(), number).unwrap(), needed);
    }
}

#[test]
fn rule_45_a_public_key_in_the_archive_is_not_read() {
    let desk = Desk::new();
    let web = desk.grant("web");
    let theirs = AgreementKey::new(&Secret::take(&mut [9; 32])).unwrap().public().unwrap();
    let file = desk.0.create("reading").unwrap();
    file.write_at(0, &theirs).unwrap();
    store(&desk.by(&web), "web", 1, &content(1)).unwrap();
    assert_eq!(restored(&desk.manage(), 1).unwrap(), content(1));
    // The bug: it is sealed for the host, and for nobody else.
    let trusting = desk.open(Some(&web), Some(Rule::PublicKeysFromKeyFile), true).unwrap();
    store(&trusting, "web", 2, &content(2)).unwrap();
    assert!(restored(&desk.manage(), 2).is_err());
}

#[test]
fn rule_45_a_snapshot_of_the_tables_counts_when_manage_signed_it() {
    let desk = Desk::new();
    let web = desk.grant("web");
    store(&desk.manage(), "vault", 1, &content(1)).unwrap();
    for broken in [Rule::PutJudgesItself, Rule::ManageSealsItsOwn] {
        let attacker = desk.open(Some(&web), Some(broken), true).unwrap();
        let forged = write_other_tables(&attacker, |tables| tables.roles = Some(Roles::default()));
        // Its key seals no such file; a program of its own does.
        assert_eq!(forged.is_ok(), broken == Rule::ManageSealsItsOwn, "{forged:?}");
        if forged.is_err() {
            continue;
        }
        for writes in [false, true] {
            let error = desk.open(None, None, writes).err().unwrap();
            assert_eq!(error.kind(), Kind::Corrupt, "{error}");
            assert!(error.to_string().contains("nobody signed it"), "{error}");
        }
    }
}

#[test]
fn rule_45_a_host_that_is_not_compared_keeps_another_one_out_of_its_own_set() {
    for broken in [Some(Rule::PutHostCompared), None] {
        let desk = Desk::new();
        let mut keys = ["web", "db"].map(|name| {
            let mut kept = None;
            add_put_key(&desk.manage(), name, &["/etc".to_owned()], |key| {
                kept = Some(key.again());
                Ok(())
            })
            .unwrap();
            kept
        });
        let [web, db] = [0, 1].map(|n| keys[n].take().unwrap());
        store(&desk.by(&web), "/etc", 1, &content(1)).unwrap();
        let tables = desk.manage().tables();
        let own = tables.snapshots.get(SnapshotId([1; 16])).unwrap();
        let far = |it: &mut Snapshot| (it.host, it.ended) = ("db".into(), u64::MAX);
        let _ = append_records(&desk.hostile(&web), |_| snapshot(own, far));
        // All processes have the bug, or none.
        let by_db = desk.open(Some(&db), broken, true).unwrap();
        let stored = store(&by_db, "/etc", 2, &content(2));
        assert_eq!(stored.is_err(), broken.is_some(), "{stored:?}");
        assert_eq!(names(&by_db).contains(&99), broken.is_some());
    }
}

#[test]
fn rule_45_unproven_snapshots_without_a_bound_are_work_without_end() {
    let (desk, web, db) = Desk::of_three();
    let tables = desk.manage().tables();
    let own = tables.snapshots.get(SnapshotId([3; 16])).unwrap();
    let of = |n: u32| snapshot(own, |it| it.id = id_of(n)).remove(0);
    let attacker = desk.hostile(&web);
    for frame in 0..80 {
        let _ = append_records(&attacker, |_| (0..64).map(|n| of(64 * frame + n)).collect());
    }
    let unproven = |archive: &Archive| archive.tables().roles.as_ref().unwrap().unproven.of(1);
    let unbounded = desk.open(None, Some(Rule::UnprovenBounded), false).unwrap();
    assert_eq!(unproven(&unbounded), 80 * 64 + 1);
    // One was there before, so the 64 of the last frame are beyond the bound.
    assert_eq!(unproven(&desk.manage()), 63 * 64 + 1);
    let error = store(&desk.by(&web), "web", 5, &content(5));
    assert!(error.is_ok(), "there is room for {}", 4096 - 63 * 64 - 1);
    store(&desk.by(&db), "db", 4, &content(4)).unwrap();
    desk.collect();
    assert_eq!(unproven(&desk.manage()), 0);
    desk.is_well();
    store(&desk.by(&web), "web", 6, &content(6)).unwrap();
}

/// An id that begins as no other one does.
fn id_of(n: u32) -> SnapshotId {
    let mut id = [7; 16];
    id[..4].copy_from_slice(&(1 << 24 | n).to_be_bytes());
    SnapshotId(id)
}

#[test]
fn rule_45_a_put_key_that_adds_all_the_time_keeps_no_collection_from_its_end() {
    for has_counts in [false, true] {
        let (desk, web, db) = Desk::of_three();
        if has_counts {
            desk.collect();
        }
        store(&desk.manage(), "vault", 4, &content(4)).unwrap();
        forget(&desk.manage(), &[SnapshotId([1; 16]), SnapshotId([4; 16])], 2_000).unwrap();
        let own = desk.manage().tables().snapshots.get(SnapshotId([3; 16])).unwrap().clone();
        let attacker = desk.hostile(&web);
        let (mut added, mut stored) = (0, 10);
        let mut adds = |desk: &Desk| {
            added += 1;
            append_records(&attacker, |_| snapshot(&own, |it| it.id = id_of(added))).unwrap();
            // Another host stores, too: nothing of it may be freed, proven or not.
            if added % 4 == 0 {
                store(&desk.by(&db), "db", stored, &content(stored.into())).unwrap();
                stored += 1;
            }
        };
        let mut dropped = 0;
        for round in 0..3 {
            let mut collection = desk.collection();
            let mut steps = 0;
            loop {
                adds(&desk);
                steps += 1;
                assert!(steps < 100, "collection {round} does not end");
                if !collection.step().unwrap() {
                    break;
                }
            }
            dropped += collection.done.dropped;
        }
        assert!(dropped >= 2, "what was forgotten is still there: {dropped}");
        let tables = desk.manage().tables();
        assert!(!tables.roles.as_ref().unwrap().unproven.is_empty());
        desk.is_well();
        for number in 10..stored {
            assert_eq!(restored(&desk.manage(), number).unwrap(), content(number.into()));
        }
        // What was left is counted once nobody adds any more.
        let mut recounted = desk.collection();
        recounted.recount();
        while recounted.step().unwrap() {}
        let counts = recounted.recounted.unwrap();
        assert_eq!((counts.too_low.chunks, counts.too_high.chunks), (0, 0));
        desk.is_well();
    }
}

#[test]
fn rule_45_a_snapshot_with_other_totals_or_another_root_is_untrue_and_no_damage() {
    let (desk, web, _) = Desk::of_three();
    let own = desk.manage().tables().snapshots.get(SnapshotId([3; 16])).unwrap().clone();
    let mut reader = onefold_archive::TreeReader::new(&desk.manage()).unwrap();
    let root = reader.root(&own).unwrap();
    let onefold_archive::TreeWhat::Directory(Some(page)) = root.directory.what else {
        panic!("a directory with a file")
    };
    let attacker = desk.hostile(&web);
    let attacks: [&dyn Fn(&mut Snapshot); 5] = [
        &|it| it.entries = u64::MAX,
        &|it| it.bytes = u64::MAX,
        &|it| it.root = page.node,
        &|it| (it.root, it.entries, it.bytes) = (page.node, 1, own.bytes),
        &|it| it.stats = Some(page),
    ];
    for (n, attack) in attacks.iter().enumerate() {
        append_records(&attacker, |_| {
            snapshot(&own, |it| {
                it.id = id_of(n as u32);
                attack(it);
            })
        })
        .unwrap();
    }
    drop(reader);
    let report = check(&desk.manage(), true, &mut |_, _, _| {}).unwrap();
    assert!(report.is_well(), "{:?}", report.problems);
    assert_eq!((report.untrue_found, report.untrue.len()), (5, 5), "{:?}", report.untrue);
    let error = desk.collection().run(&mut |_| {}).unwrap_err();
    assert!(error.to_string().contains("--drop-untrue"), "{error}");
    let mut collection = desk.collection();
    collection.drop_untrue();
    while collection.step().unwrap() {}
    assert_eq!(collection.done.untrue_snapshots, 5);
    drop(collection);
    assert_eq!(names(&desk.manage()), [1, 2, 3]);
    let report = check(&desk.manage(), true, &mut |_, _, _| {}).unwrap();
    assert!(report.is_well() && report.untrue.is_empty(), "{report:?}");
}

#[test]
fn rule_45_a_snapshot_that_names_what_comes_later_is_not_counted() {
    let desk = Desk::new();
    let (web, db) = (desk.grant("web"), desk.grant("db"));
    store(&desk.by(&web), "web", 1, &content(1)).unwrap();
    let tables = desk.manage().tables();
    let of = tables.snapshots.get(SnapshotId([1; 16])).unwrap().clone();
    // It names as its root what the other one stores next.
    let later = Address { container: ContainerId(tables.next_id + 1), slot: 0 };
    let root = TreeNodeRef { address: later, fingerprint: Fingerprint([3; 16]) };
    append_records(&desk.hostile(&web), |_| snapshot(&of, |it| it.root = root)).unwrap();
    store(&desk.by(&db), "db", 2, &content(2)).unwrap();
    let error = desk.collection().run(&mut |_| {}).unwrap_err();
    assert_eq!(error.kind(), Kind::Denied, "{error}");
    assert!(error.to_string().contains("--drop-untrue"), "{error}");
    let mut collection = desk.collection();
    collection.drop_untrue();
    while collection.step().unwrap() {}
    assert_eq!(collection.done.untrue_snapshots, 1);
    drop(collection);
    assert_eq!(names(&desk.manage()), [1, 2]);
    let mut recounted = desk.collection();
    recounted.recount();
    while recounted.step().unwrap() {}
    let counts = recounted.recounted.unwrap();
    assert_eq!((counts.too_low.chunks, counts.too_high.chunks), (0, 0));
    desk.is_well();
    assert_eq!(restored(&desk.manage(), 2).unwrap(), content(2));
}

#[test]
fn rule_45_a_snapshot_that_was_forgotten_unseen_takes_nothing_along() {
    let desk = Desk::new();
    let (web, db) = (desk.grant("web"), desk.grant("db"));
    store(&desk.by(&web), "web", 1, &content(1)).unwrap();
    store(&desk.by(&db), "db", 2, &content(1)).unwrap();
    forget(&desk.manage(), &[SnapshotId([1; 16])], 2_000).unwrap();
    for _ in 0..3 {
        desk.collect();
    }
    assert_eq!(names(&desk.manage()), [2]);
    desk.is_well();
    assert_eq!(restored(&desk.manage(), 2).unwrap(), content(1));
    let tables = desk.manage().tables();
    assert!(tables.unfinished.is_empty() && tables.roles.as_ref().unwrap().unproven.is_empty());
}

#[test]
fn rule_45_what_a_put_key_stored_is_never_read_by_it_and_its_role_is_told() {
    let desk = Desk::new();
    let web = desk.grant("web");
    let archive = desk.by(&web);
    assert_eq!(archive.role(), Some(Role::Put(1)));
    store(&archive, "web", 1, &content(1)).unwrap();
    assert_eq!(restored(&archive, 1).unwrap_err().kind(), Kind::Denied);
}

/// A backup that ends before its snapshot, with containers that are listed as unfinished.
fn store_half(desk: &Desk, key: &RoleKey, set: &str, bytes: &[u8]) -> Vec<ContainerId> {
    let opener = KeySource::new(Arc::new(Has(Some(key.again()))));
    let settings = Settings { opener, sync_bytes: 1 << 16, ..Settings::default() };
    let archive = Archive::open(Arc::new(desk.0.clone()), true, settings).map(Arc::new).unwrap();
    let made =
        backup(&archive, &request_by(&archive, set, 77), true, &Gauge::default(), |feeder| {
            feed_file(feeder, bytes)?;
            Err(onefold_core::Error::new(Kind::Stopped, "it ends here"))
        });
    assert!(made.is_err());
    desk.manage().tables().unfinished.keys().copied().collect()
}

#[test]
fn rule_45_what_others_use_of_a_put_key_is_not_given_up_by_it() {
    let desk = Desk::new();
    let (web, db) = (desk.grant("web"), desk.grant("db"));
    let mut needed = vec![0; 20 << 20];
    Rng::new(7).fill(&mut needed);
    let listed = store_half(&desk, &web, "web", &needed);
    assert!(!listed.is_empty());
    // Its own end gives nothing up, and manage finds all of it true.
    let options = CollectionOptions { keep_partial: 1 << 20, reserve_bytes: 0, ..options(2_000) };
    let keeping = Collection::begin(&desk.manage(), options).unwrap();
    let done = keeping.run(&mut |_| {}).unwrap();
    assert!(done.proven > 0 && done.untrue == 0, "{done:?}");
    assert!(store(&desk.by(&db), "db", 1, &needed).unwrap() < needed.len() as u64);
    let _ = append_records(&desk.hostile(&web), |_| {
        vec![Record::Abandoned { containers: listed.clone() }]
    });
    let now = desk.manage().tables();
    assert!(listed.iter().all(|id| now.containers.contains_key(id).unwrap()));
    assert_eq!(now.roles.as_ref().unwrap().keys.get(&1).unwrap().refused, 1);
    for _ in 0..3 {
        desk.collect();
    }
    desk.is_well();
    assert_eq!(restored(&desk.manage(), 1).unwrap(), needed);
}

#[test]
fn rule_45_a_container_whose_header_names_another_domain_is_untrue_and_stops_nobody() {
    let desk = Desk::new();
    let (web, db) = (desk.grant("web"), desk.grant("db"));
    store(&desk.by(&web), "web", 1, &content(1)).unwrap();
    let tables = desk.manage().tables();
    for container in tables.containers.iter() {
        let place = container.unwrap().stored.place;
        let file = desk.0.open(&format!("segment-{:08}", place.segment)).unwrap();
        file.write_at(place.at + 104, &7u32.to_le_bytes()).unwrap();
    }
    store(&desk.by(&db), "db", 2, &content(1)).unwrap();
    let report = check(&desk.manage(), true, &mut |_, _, _| {}).unwrap();
    assert!(!report.problems.is_empty());
    let mut collection = desk.collection();
    collection.drop_untrue();
    while collection.step().unwrap() {}
    assert!(collection.done.untrue > 0);
    drop(collection);
    assert_eq!(names(&desk.manage()), [2]);
    assert_eq!(restored(&desk.manage(), 2).unwrap(), content(1));
}

#[test]
fn rule_45_a_frame_of_a_put_key_costs_readers_little() {
    let desk = Desk::new();
    let (web, db) = (desk.grant("web"), desk.grant("db"));
    // One byte each, and of the smallest kind that a put key may sign.
    let records = [
        vec![Record::EpochAdvanced; 1 << 20],
        vec![Record::Unfinished { containers: Vec::new(), at: 1 }; 100_000],
    ];
    for records in records {
        let _ = append_records(&desk.hostile(&web), |_| records);
    }
    for _ in 0..2 {
        let opener = KeySource::new(Arc::new(Has(None)));
        let settings = Settings { opener, memory: 64 << 20, ..Settings::default() };
        let bounded = Archive::open(Arc::new(desk.0.clone()), false, settings).unwrap();
        assert_eq!(bounded.tables().roles.as_ref().unwrap().keys.get(&1).unwrap().refused, 2);
    }
    store(&desk.by(&db), "db", 1, &content(1)).unwrap();
    assert_eq!(restored(&desk.manage(), 1).unwrap(), content(1));
}

#[test]
fn rule_45_a_put_key_lists_nothing_in_segments_that_it_did_not_take() {
    let (desk, web, db) = Desk::of_three();
    let tables = desk.manage().tables();
    let one = tables.containers.iter().next().unwrap().unwrap().stored;
    let class = tables.class(&one.place);
    let next = tables.next_id;
    // Behind all that is listed there, where the next containers of the other one come.
    let mut at: Vec<Place> = tables
        .segments
        .iter()
        .map(|(&segment, known)| Place { segment, at: known.end, ..one.place })
        .collect();
    assert_eq!(at.len(), 3, "each key takes segments of its own");
    let own = at.pop().unwrap();
    let attacker = || desk.hostile(&web);
    append_records(&attacker(), |_| {
        let (owner, first, segment) = (Owner::Ingest, ContainerId(next), None);
        vec![Record::Reserved { owner, first, count: 10, segment, class }]
    })
    .unwrap();
    let list = |n: u64, place: Place| {
        let stored = Stored { id: ContainerId(next + n), place, ..one };
        let _ = append_records(&attacker(), |_| {
            vec![Record::Unfinished { containers: vec![stored], at: 1_000 }]
        });
        desk.manage().tables().containers.contains_key(&stored.id).unwrap()
    };
    for place in at {
        assert!(!list(1, place), "{place:?}");
    }
    // Nor one so long that what others write behind it would go with it.
    assert!(!list(1, Place { bytes: u32::MAX, ..own }));
    assert!(list(2, own));
    store(&desk.manage(), "vault", 4, &content(4)).unwrap();
    store(&desk.by(&db), "db", 5, &content(5)).unwrap();
    store(&desk.by(&web), "web", 6, &content(6)).unwrap();
    for _ in 0..3 {
        desk.collect();
    }
    desk.is_well();
    for (number, seed) in [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (6, 6)] {
        assert_eq!(restored(&desk.manage(), number).unwrap(), content(seed));
    }
}

#[test]
fn rule_45_manage_begins_a_log_anew_that_somebody_filled() {
    let desk = Desk::new();
    let web = desk.grant("web");
    store(&desk.manage(), "vault", 1, &content(1)).unwrap();
    for bytes in [60 << 20, 60 << 20, 60 << 20, 60 << 20, 15 << 20, 900 << 10] {
        let junk = "j".repeat(bytes);
        append_records(&desk.hostile(&web), |_| vec![Record::Removed { name: junk }]).unwrap();
    }
    // Not one frame more fits in.
    let mut left = 64 << 10;
    while left > 16 {
        let junk = "j".repeat(left);
        let done = append_records(&desk.hostile(&web), |_| vec![Record::Removed { name: junk }]);
        left = if done.is_err() { left / 2 } else { left };
    }
    store(&desk.manage(), "vault", 2, &content(2)).unwrap();
    desk.collect();
    store(&desk.by(&web), "web", 3, &content(3)).unwrap();
    assert_eq!(names(&desk.manage()), [1, 2, 3]);
    desk.is_well();
}

#[test]
fn rule_45_a_frame_that_nobody_signed_says_nothing_of_a_key() {
    let desk = Desk::new();
    let (web, mail) = (desk.grant("web"), desk.grant("mail"));
    // A key of the same number, of nobody.
    let Role::Put(number) = desk.by(&web).role().unwrap() else { panic!("a put key") };
    let mut forged = mail.again();
    let onefold_seal::RoleSecret::Put(of, _) = &mut forged.secret else { panic!("a put key") };
    *of = number;
    append_records(&desk.hostile(&forged), |_| vec![Record::EpochAdvanced]).unwrap();
    let roles = desk.manage().tables().roles.clone().unwrap();
    assert_eq!((roles.refused, roles.keys.get(&number).unwrap().refused), (1, 0));
}
