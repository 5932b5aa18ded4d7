//! Actors that write, collect and read, one process after the other.

use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::Arc,
    time::Duration,
};

use onefold_bucket::{Bucket, Keep, Known, Pace, Settings, Who};
use onefold_core::{Error, Files, Kind, Result};
use parking_lot::Mutex;

use super::{
    model::{Contents, HISTORY, KEYS, STAMP},
    world::{Killed, LAG, Seat},
};
use crate::checker::Checker;

/// How often a process says that it is at work.
const RENEW_EVERY: Duration = Duration::from_secs(20);

/// How long a reader may look at one state, less than what was dropped stays.
const READING: Duration = Duration::from_secs(20 * 3600);

/// More bytes than a file ever has.
const LENGTH_MAX: u64 = 1 << 20;

/// Runs a process; one that is killed ends.
fn process(run: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(run))
        && !payload.is::<Killed>()
    {
        resume_unwind(payload);
    }
}

/// All files of a bucket. Files with keys are compared by writers alone: their old bytes go at once.
pub(super) fn contents(bucket: &Bucket, with_keys: bool) -> Result<Contents> {
    let files = bucket.files();
    let read = |name: String| {
        let file = files.open(&name)?;
        let length = file.bytes()?;
        if length > LENGTH_MAX {
            let why = format!("{name} has {length} bytes");
            return Err(Error::new(Kind::InvalidInput, why));
        }
        let mut bytes = vec![0; length as usize];
        let there = file.read_at(0, &mut bytes)?;
        bytes.truncate(there);
        Ok((name, bytes))
    };
    files.names()?.into_iter().filter(|name| with_keys || name != KEYS).map(read).collect()
}

/// The memory that processes of one actor share.
pub(super) struct Memory {
    known: Option<Known>,
    keep: Arc<Disk>,
}

impl Memory {
    fn new(seat: &Seat) -> Memory {
        let keep = Arc::new(Disk { seat: seat.clone(), kept: Mutex::default() });
        Memory { known: None, keep }
    }
}

/// Parts of objects that an actor's host keeps. It loses some, and some rots.
struct Disk {
    seat: Seat,
    kept: Mutex<BTreeMap<String, Vec<u8>>>,
}

impl Keep for Disk {
    fn load(&self, name: &str) -> Option<Vec<u8>> {
        let mut bytes = self.kept.lock().get(name)?.clone();
        let mut inner = self.seat.world.lock();
        if inner.rng.percent(10) {
            return None;
        }
        let bodies = inner.params.bodies;
        if inner.rng.below(1000) < bodies {
            let at = inner.rng.below(bytes.len() as u64) as usize;
            bytes[at] ^= 1 << inner.rng.below(8);
            inner.reach.hit("what a host kept rots");
        }
        inner.reach.hit("a host has what it kept");
        Some(bytes)
    }

    fn store(&self, name: &str, bytes: &[u8]) {
        self.kept.lock().insert(name.to_owned(), bytes.to_vec());
    }
}

impl Seat {
    fn settings(&self, memory: &Memory) -> Settings {
        let settings = self.world.lock().params.settings();
        let told = format!("actor {}", self.actor);
        Settings {
            who: Who { told, mark: String::new() },
            known: memory.known,
            keep: Some(memory.keep.clone()),
            ..settings
        }
    }

    fn below(&self, n: u64) -> u64 {
        self.world.lock().rng.below(n.max(1))
    }

    fn idle(&self) {
        let most = self.world.lock().params.idle_seconds;
        let time = match self.below(3) {
            0 => Duration::from_millis(self.below(most * 1000)),
            _ => Duration::from_millis(self.below(most)),
        };
        self.sleep(time);
    }

    /// An error that ends a process: faults explain some.
    fn explained(&self, what: &str, error: &Error) {
        let mut inner = self.world.lock();
        inner.say(|| format!("actor {}: {what}: {error}", self.actor));
        let faulty = inner.params.bodies > 0 && !error.to_string().contains("two processes");
        let known = match error.kind() {
            Kind::Stopped => {
                inner.reach.hit("a process is shut out");
                true
            }
            Kind::Busy => {
                inner.reach.hit("a process waits for another one");
                true
            }
            Kind::Io => !error.to_string().contains("is not in the bucket"),
            Kind::Corrupt => faulty && !error.to_string().contains("is lost"),
            _ => false,
        };
        if !known {
            inner.fail(Checker::Unexplained, format!("{what}: {:?}: {error}", error.kind()));
        }
    }

    /// Compares what a bucket has with the model.
    fn compare(
        &self,
        bucket: &Bucket,
        acknowledged: usize,
        since: Duration,
        writer: Option<u64>,
    ) -> Option<Contents> {
        let with_keys = writer.is_some();
        let found = contents(bucket, with_keys);
        let mut inner = self.world.lock();
        match found {
            Ok(found) => {
                if let Err(failure) = inner.model.compare(&found, acknowledged, with_keys) {
                    inner.fail(failure.checker, failure.message);
                }
                Some(found)
            }
            Err(error) => {
                let is_gone = error.to_string().contains("is not in the bucket");
                // Keys go at once when another one writes.
                let long = inner.now.saturating_sub(since) >= READING
                    || writer.is_some_and(|writer| writer != inner.writer);
                if is_gone && !long {
                    inner.fail(Checker::ReadersServed, error.to_string());
                } else if !is_gone {
                    drop(inner);
                    self.explained("reading", &error);
                }
                None
            }
        }
    }
}

/// Processes that write and collect.
pub(super) fn write(seat: &Seat) {
    seat.world.begin(seat.actor);
    let processes = seat.world.lock().params.processes;
    let mut memory = Memory::new(seat);
    for _ in 0..processes {
        seat.set_clock();
        process(|| one_writer(seat, &mut memory));
        process(|| seat.idle());
    }
    seat.world.end(seat.actor);
}

fn one_writer(seat: &Seat, memory: &mut Memory) {
    let (before, since) = {
        let inner = seat.world.lock();
        (inner.model.acknowledged(), inner.now)
    };
    let store = Arc::new(seat.clone());
    let bucket = match Bucket::make(store.clone(), store, seat.settings(memory)) {
        Ok(bucket) => bucket,
        Err(error) => return seat.explained("joining", &error),
    };
    memory.known = Some(bucket.known());
    let writer = bucket.known().frame;
    let Some(mut model) = seat.compare(&bucket, before, since, Some(writer)) else {
        return;
    };
    let (commits, collects) = {
        let mut inner = seat.world.lock();
        let most = inner.params.commits;
        let collects = inner.params.collects;
        (inner.rng.within(1, most), inner.rng.percent(collects))
    };
    let mut renewed = seat.now();
    for _ in 0..commits {
        seat.idle();
        // A process that waits meets one that is at work for long, and commits nothing meanwhile.
        if seat.world.lock().params.wait > 0 {
            for _ in 0..seat.below(30) {
                seat.sleep(RENEW_EVERY);
                let _ = bucket.renew();
            }
        }
        if seat.now().saturating_sub(renewed) >= RENEW_EVERY {
            renewed = seat.now();
            let _ = bucket.renew();
        }
        match commit(seat, &bucket, writer, &mut model) {
            Ok(()) => memory.known = Some(bucket.known()),
            Err(error) => return seat.explained("writing", &error),
        }
        if collects && seat.below(3) == 0 {
            match bucket.collect() {
                Ok(collected) => {
                    let mut inner = seat.world.lock();
                    for (count, mark) in [
                        (collected.deleted.0, "a collection deletes"),
                        (collected.orphans, "a collection finds orphans"),
                        (collected.rewritten, "a collection writes again"),
                    ] {
                        if count > 0 {
                            inner.reach.hit(mark);
                        }
                    }
                }
                Err(error) => return seat.explained("collecting", &error),
            }
        }
    }
    if seat.below(4) > 0 {
        match bucket.leave() {
            Ok(()) => memory.known = Some(bucket.known()),
            Err(error) => seat.explained("leaving", &error),
        }
    }
}

/// Changes files, and makes that durable.
fn commit(seat: &Seat, bucket: &Bucket, writer: u64, model: &mut Contents) -> Result<()> {
    let files = bucket.files();
    let (keys, began) = (keys_needed(bucket), seat.now());
    for _ in 0..seat.below(6) {
        change(seat, &files, model)?;
    }
    let number = {
        // The number is taken at once, so that no other process has it.
        let mut inner = seat.world.lock();
        let number = inner.model.next();
        inner.model.begin(number, Contents::new());
        number
    };
    let stamp = number.to_le_bytes();
    write_to(&files, model, STAMP, 0, &stamp)?;
    let end = model.get(HISTORY).map_or(0, Vec::len);
    write_to(&files, model, HISTORY, end, &stamp)?;
    seat.world.lock().model.begin(number, model.clone());
    files.open(STAMP)?.sync()?;
    let mut inner = seat.world.lock();
    inner.say(|| format!("actor {}: commit {number} is acknowledged", seat.actor));
    inner.model.acknowledge(number);
    drop(inner);
    if keys_needed(bucket) != keys {
        no_keys_left(seat, bucket, writer, began);
    }
    Ok(())
}

/// The objects with keys that files need.
fn keys_needed(bucket: &Bucket) -> Vec<String> {
    bucket.needed().into_iter().filter(|name| name.starts_with("keys/")).collect()
}

/// After a change of keys nothing that was stored before it has keys but what files need: not what was replaced, and
/// not what somebody stored who was killed. Late creations may be there, and objects that a listing did not have yet.
fn no_keys_left(seat: &Seat, bucket: &Bucket, writer: u64, began: Duration) {
    let needed = keys_needed(bucket);
    let mut inner = seat.world.lock();
    let left = inner.objects.iter().find(|(name, object)| {
        let of = name.strip_prefix("keys/").and_then(|name| name.split('-').next());
        let of = of.and_then(|of| u64::from_str_radix(of, 16).ok());
        let is_old = of.is_some_and(|of| of <= writer) && object.made + LAG < began;
        is_old && !needed.contains(*name)
    });
    if let Some(left) = left.map(|(name, _)| name.clone()) {
        inner.fail(Checker::KeysGone, format!("{left} is there after keys were changed"));
    }
}

fn write_to(
    files: &impl Files,
    model: &mut Contents,
    name: &str,
    at: usize,
    bytes: &[u8],
) -> Result<()> {
    let file = match files.open(name) {
        Ok(file) => file,
        Err(error) if error.kind() == Kind::NotFound => files.create(name)?,
        Err(error) => return Err(error),
    };
    let content = model.entry(name.to_owned()).or_default();
    content.resize(content.len().max(at + bytes.len()), 0);
    content[at..at + bytes.len()].copy_from_slice(bytes);
    file.write_at(at as u64, bytes)
}

fn change(seat: &Seat, files: &impl Files, model: &mut Contents) -> Result<()> {
    // A file of keys, whose packs go at once, and others.
    let name = ["a", "b", "c", KEYS][seat.below(4) as usize];
    let there = model.get(name).map(Vec::len);
    match (seat.below(8), there) {
        (0, Some(_)) => {
            model.remove(name);
            files.remove(name)
        }
        (1, Some(length)) => {
            let bytes = seat.below(length as u64 + 50);
            model.entry(name.to_owned()).or_default().resize(bytes as usize, 0);
            files.open(name)?.set_bytes(bytes)
        }
        (2, Some(length)) => {
            let (at, bytes) = (seat.below(length as u64 + 1), seat.below(300));
            let content = model.entry(name.to_owned()).or_default();
            content.iter_mut().skip(at as usize).take(bytes as usize).for_each(|b| *b = 0);
            files.open(name)?.punch(at, bytes)
        }
        _ => {
            let mut bytes = vec![0; seat.below(300) as usize + 1];
            seat.world.lock().rng.fill(&mut bytes);
            let at = seat.below(there.unwrap_or(0) as u64 + 100);
            write_to(files, model, name, at as usize, &bytes)
        }
    }
}

/// Processes that read.
pub(super) fn read(seat: &Seat) {
    seat.world.begin(seat.actor);
    let processes = seat.world.lock().params.processes;
    let mut memory = Memory::new(seat);
    for _ in 0..processes {
        seat.set_clock();
        process(|| one_reader(seat, &mut memory));
        process(|| seat.idle());
    }
    seat.world.end(seat.actor);
}

fn one_reader(seat: &Seat, memory: &mut Memory) {
    let (acknowledged, since) = {
        let inner = seat.world.lock();
        (inner.model.acknowledged(), inner.now)
    };
    let store = Arc::new(seat.clone());
    let bucket = match Bucket::look(store.clone(), store, seat.settings(memory)) {
        Ok(bucket) => bucket,
        Err(error) if error.kind() == Kind::NotFound && acknowledged == 0 => return,
        Err(error) => return seat.explained("looking", &error),
    };
    memory.known = Some(bucket.known());
    let Some(first) = seat.compare(&bucket, acknowledged, since, None) else { return };
    seat.sleep(Duration::from_secs(seat.below(19 * 3600)));
    if let Some(again) = seat.compare(&bucket, acknowledged, since, None) {
        let mut inner = seat.world.lock();
        if again.iter().ne(first.iter()) {
            inner.fail(Checker::ReadersServed, "a reader sees another state than before");
        }
        if inner.now.saturating_sub(since) > Duration::from_secs(4 * 3600) {
            inner.reach.hit("a reader reads after hours");
        }
    }
}
