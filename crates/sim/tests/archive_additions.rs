//! Clients that may only add, on a medium that loses power: what an honest one stored stays, and a hostile one that
//! makes calls by chance changes no byte that was there, whatever a crash left before.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../archive/tests/support/mod.rs"]
mod support;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use onefold_archive::{
    Additions, Archive, Collection, CollectionOptions, Format, KeySource, MAY_ADD_ONLY, Settings,
    add_put_key, check, create_sealed,
};
use onefold_core::{Files, Hold, Result};
use onefold_seal::{Argon, KeyArea, Keys, Opener, Random, RoleKey, Secret, SlotKind};
use onefold_testbed::{Rng, VirtualFiles, files::Layout};
use parking_lot::Mutex;
use support::{names, options, restored, secret, store};

struct Chance(Mutex<Rng>);

impl Random for Chance {
    fn fill(&self, into: &mut [u8]) -> Result<()> {
        self.0.lock().fill(into);
        Ok(())
    }
}

/// Opens by a role key, or by the slot. Its chance is never the same twice.
struct Has(Option<RoleKey>, Arc<dyn Random>);

impl Opener for Has {
    fn root(&self, area: &KeyArea) -> Result<Secret> {
        Ok(area.root(&secret(1), 0)?.unwrap().1)
    }
    fn role(&self, _: &[u8; 16]) -> Result<Option<RoleKey>> {
        Ok(self.0.as_ref().map(RoleKey::again))
    }
    fn random(&self) -> Arc<dyn Random> {
        self.1.clone()
    }
}

/// An archive of which two clients have put keys, and what is known of it.
struct Run {
    rng: Rng,
    files: VirtualFiles,
    chance: Arc<dyn Random>,
    clients: Vec<(&'static str, RoleKey)>,
    /// Snapshots that were acknowledged.
    stored: BTreeSet<u8>,
    /// One that a crash cut off.
    unsure: Option<u8>,
    next: u8,
    /// Refused to an honest client until manage has changed the archive.
    refused: u64,
    /// Calls that the hostile client was let through.
    admitted: u64,
}

fn content(number: u8) -> Vec<u8> {
    let mut content = vec![0; 3_000 + 700 * usize::from(number)];
    Rng::new(number.into()).fill(&mut content);
    content
}

/// All bytes of all files.
fn bytes_of(files: &dyn Files) -> BTreeMap<String, Vec<u8>> {
    let read = |name: &String| {
        let file = files.open(name).unwrap();
        let mut bytes = vec![0; file.bytes().unwrap() as usize];
        let n = file.read_at(0, &mut bytes).unwrap();
        assert_eq!(n, bytes.len());
        bytes
    };
    files.names().unwrap().iter().map(|name| (name.clone(), read(name))).collect()
}

impl Run {
    fn new(seed: u64) -> Run {
        let mut rng = Rng::new(seed ^ 0x6164_6469_7469_6f6e);
        let files = VirtualFiles::new(Layout::default(), Rng::new(rng.next()));
        let chance: Arc<dyn Random> = Arc::new(Chance(Mutex::new(Rng::new(rng.next()))));
        let format = Format {
            reserve_bytes: 0,
            segment_bytes: 32 << 10,
            ..Format::new([7; 16], [8; 32], [9; 16]).with_roles()
        };
        let mut keys = Keys::create(format.id, &*chance).unwrap();
        let slot = (SlotKind::File, "");
        keys.add_slot(slot, &secret(1), Argon::LEAST, (0, 0), &*chance).unwrap();
        create_sealed(&files, &format, &mut keys, chance.clone()).unwrap();
        let (clients, stored) = (Vec::new(), BTreeSet::new());
        let (unsure, next, refused, admitted) = (None, 1, 0, 0);
        let mut run = Run { rng, files, chance, clients, stored, unsure, next, refused, admitted };
        for set in ["web", "db"] {
            let mut kept = None;
            add_put_key(&run.manage().unwrap(), set, &[set.to_owned()], |key| {
                kept = Some(key.again());
                Ok(())
            })
            .unwrap();
            run.clients.push((set, kept.unwrap()));
        }
        run
    }

    fn open(&self, files: Arc<dyn Files>, key: Option<&RoleKey>) -> Result<Arc<Archive>> {
        let has = Has(key.map(RoleKey::again), self.chance.clone());
        let settings = Settings {
            opener: KeySource::new(Arc::new(has)),
            container_bytes: 4 << 10,
            list_bytes: 4 << 10,
            sync_bytes: 4 << 10,
            log_bytes: 8 << 10,
            ..Settings::default()
        };
        Archive::open(files, true, settings).map(Arc::new)
    }

    fn manage(&self) -> Result<Arc<Archive>> {
        self.open(Arc::new(self.files.clone()), None)
    }

    /// One of the clients stores a snapshot. False when the power is gone.
    fn store_honestly(&mut self) -> bool {
        let client = self.rng.below(2) as usize;
        let number = self.next;
        self.next += 1;
        self.unsure = Some(number);
        let (set, key) = &self.clients[client];
        let files = Arc::new(Additions::new(Arc::new(self.files.clone())));
        let done = self
            .open(files, Some(key))
            .and_then(|archive| store(&archive, set, number, &content(number)));
        match done {
            Ok(_) => {
                self.stored.insert(number);
                self.unsure = None;
            }
            Err(_) if self.files.is_down() => return false,
            // Manage ends what a crash left.
            Err(error) if error.to_string().contains(MAY_ADD_ONLY) => {
                self.unsure = None;
                self.refused += 1;
            }
            Err(error) => panic!("an honest client: {error}"),
        }
        true
    }

    /// Manage collects. False when the power is gone.
    fn collect(&mut self) -> bool {
        let options = CollectionOptions { reserve_bytes: 0, ..options(2_000_000) };
        let collected = self.manage().and_then(|archive| {
            let collection = Collection::begin(&archive, options)?;
            collection.run(&mut |_| {})
        });
        self.alive(collected.map(drop))
    }

    fn alive(&self, done: Result<()>) -> bool {
        match done {
            Ok(()) => true,
            Err(_) if self.files.is_down() => false,
            Err(error) => panic!("manage: {error}"),
        }
    }

    /// Calls by chance, as whoever took a client over makes them. Gives the first byte, or name, that went.
    fn attack(&mut self, files: &dyn Files, calls: u64) -> Option<String> {
        let before = bytes_of(&self.files);
        let names: Vec<String> = before.keys().cloned().collect();
        let mut made = BTreeSet::new();
        let mut lock = None;
        for _ in 0..calls {
            let mut name = names[self.rng.below(names.len() as u64) as usize].clone();
            if self.rng.percent(40) {
                let logs: Vec<&String> = names.iter().filter(|it| it.starts_with("log-")).collect();
                name = logs[self.rng.below(logs.len() as u64) as usize].clone();
            }
            let known = &before[&name];
            let mut at = self.rng.below(known.len() as u64 + 200);
            if self.rng.percent(50) {
                // Where frames begin, and the end.
                at = if self.rng.percent(50) { known.len() as u64 } else { at } / 64 * 64;
            }
            let mut data = vec![0; 64 * self.rng.within(1, 6) as usize];
            self.rng.fill(&mut data);
            if self.rng.percent(40) {
                // Something that was written once.
                let from = self.rng.below(known.len() as u64 + 1) as usize / 64 * 64;
                let part = &known[from..known.len().min(from + data.len())];
                data[..part.len()].copy_from_slice(part);
            }
            let opened = files.open(&name);
            let done: Result<()> = match self.rng.below(8) {
                0 => files.remove(&name),
                1 => {
                    if self.rng.percent(70) {
                        name = format!("segment-{:08}", self.rng.below(40));
                    }
                    files.create(&name).map(|_| {
                        made.insert(name);
                    })
                }
                2 => opened.and_then(|file| file.set_bytes(at)),
                3 => opened.and_then(|file| file.punch(at, data.len() as u64)),
                4 => opened.and_then(|file| file.sync()),
                5 => {
                    lock = None;
                    let hold = if self.rng.percent(70) { Hold::Alone } else { Hold::Shared };
                    let what = ["lock-commit", "lock-writer", "lock-gc"];
                    let what = what[self.rng.below(3) as usize];
                    files.lock(what, hold, false).map(|held| lock = Some(held))
                }
                _ => opened.and_then(|file| file.write_at(at, &data)),
            };
            self.admitted += u64::from(done.is_ok());
        }
        drop(lock);
        if self.files.is_down() {
            return None;
        }
        let after = bytes_of(&self.files);
        before.iter().filter(|(name, _)| !made.contains(*name)).find_map(|(name, bytes)| {
            let Some(now) = after.get(name) else { return Some(format!("{name} is gone")) };
            let same = now.iter().zip(bytes).take_while(|(now, before)| now == before).count();
            (same < bytes.len()).then(|| format!("byte {same} of {} of {name}", bytes.len()))
        })
    }

    /// All that was acknowledged is there and whole, and nothing else is but what was cut off.
    fn look(&mut self) {
        let archive = self.manage().unwrap();
        let there: BTreeSet<u8> = names(&archive).into_iter().collect();
        if let Some(unsure) = self.unsure.take().filter(|number| there.contains(number)) {
            self.stored.insert(unsure);
        }
        assert_eq!(there, self.stored);
        for number in &there {
            assert!(restored(&archive, *number).unwrap() == content(*number), "snapshot {number}");
        }
        let report = check(&archive, true, &mut |_, _, _| {}).unwrap();
        assert!(report.problems.is_empty(), "{:?}", report.problems);
    }

    fn life(&mut self) {
        self.files.arm_crash(self.rng.below(150));
        for _ in 0..self.rng.within(2, 7) {
            let goes_on = match self.rng.below(5) {
                0..3 => self.store_honestly(),
                3 => self.collect(),
                _ => {
                    let files = Additions::new(Arc::new(self.files.clone()));
                    let went = self.attack(&files, 30);
                    assert_eq!(went, None, "a client that may only add took something away");
                    !self.files.is_down()
                }
            };
            if !goes_on {
                break;
            }
        }
        if self.rng.percent(50) {
            self.files.kill()
        } else {
            self.files.power_cycle()
        }
        self.files.disarm();
    }
}

#[test]
fn rule_46_what_was_added_stays_whatever_crashes_and_whoever_else_adds() {
    let (mut stored, mut refused, mut admitted) = (0, 0, 0);
    for seed in 0..40 {
        let mut run = Run::new(seed);
        for _ in 0..4 {
            run.life();
            // Sometimes a client comes first.
            if run.unsure.is_none() && run.rng.percent(50) {
                run.store_honestly();
            }
            run.look();
        }
        (stored, refused) = (stored + run.stored.len(), refused + run.refused);
        admitted += run.admitted;
    }
    println!("{stored} stored, {refused} refused, {admitted} calls of a hostile client admitted");
    assert!(stored > 100 && admitted > 100, "{stored} stored, {admitted} admitted");
}

#[test]
fn rule_46_the_same_calls_take_something_away_where_nobody_stands_between() {
    for seed in 0..5 {
        let mut run = Run::new(seed);
        assert!(run.store_honestly());
        let files = run.files.clone();
        assert!(run.attack(&files, 30).is_some(), "seed {seed}");
    }
}
