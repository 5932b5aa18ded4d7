//! The simulated object store, time, and who runs next.
//!
//! Every actor is a thread, but only the one with the baton runs: a request and a sleep hand it back, and it goes
//! to the actor that is to go on first in the virtual time.

use std::{
    collections::{BTreeMap, BTreeSet},
    panic::resume_unwind,
    sync::Arc,
    time::Duration,
};

use onefold_bucket::{Body, Created, Frame, Listed, Objects, Pace};
use onefold_core::{Error, Kind, Result};
use onefold_testbed::{Reach, Rng};
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::{model::Model, params::Params};
use crate::checker::{Checker, Failure};

/// The store's clock at the beginning: seconds since 1970.
pub(super) const BEGAN: u64 = 1_800_000_000;

/// Requests that may still come, at most.
const LATE_MAX: usize = 30;

/// How far a listing lags.
pub(super) const LAG: Duration = Duration::from_secs(20);

/// Requests of a run, at which it is stopped.
const REQUESTS_MAX: u64 = 400_000;

/// A process was killed: what it unwinds with.
pub(super) struct Killed;

/// A change that was asked for.
#[derive(Clone)]
pub(super) enum Change {
    Create(String, Vec<u8>),
    Replace(String, Vec<u8>),
    Delete(String),
}

/// An object.
#[derive(Clone)]
pub(super) struct Object {
    pub(super) bytes: Vec<u8>,
    pub(super) made: Duration,
}

struct Actor {
    /// When it goes on; `None` when it has ended.
    wake: Option<Duration>,
    condvar: Arc<Condvar>,
    /// How far its clock of day is off, in seconds.
    off: i64,
    /// When it was asleep last.
    slept: Duration,
    /// It can be killed, and its requests fail.
    mortal: bool,
}

/// The world that all share; only the actor with the baton touches it.
pub(super) struct Inner {
    pub(super) objects: BTreeMap<String, Object>,
    pub(super) now: Duration,
    pub(super) rng: Rng,
    pub(super) model: Model,
    pub(super) params: Params,
    pub(super) reach: Reach,
    pub(super) failure: Option<Failure>,
    pub(super) trace: u64,
    pub(super) calm: bool,
    pub(super) loud: bool,
    late: Vec<(Duration, Change)>,
    actors: Vec<Actor>,
    running: usize,
    nonce: u64,
    requests: u64,
    /// When the lease of each writer changed.
    leases: BTreeMap<String, Vec<Duration>>,
    /// Frames that were sent: the same one may be sent again much later.
    sent: BTreeSet<[u8; 32]>,
    /// The number of the frame by which the last one joined.
    pub(super) writer: u64,
}

/// The world.
pub(super) struct World(Mutex<Inner>);

impl World {
    pub(super) fn new(params: Params, loud: bool) -> World {
        let rng = Rng::new(params.seed);
        World(Mutex::new(Inner {
            objects: BTreeMap::new(),
            now: Duration::ZERO,
            rng,
            model: Model::default(),
            params,
            reach: Reach::default(),
            failure: None,
            trace: 0,
            calm: false,
            loud,
            late: Vec::new(),
            actors: Vec::new(),
            running: usize::MAX,
            nonce: 0,
            requests: 0,
            leases: BTreeMap::new(),
            sent: BTreeSet::new(),
            writer: 0,
        }))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock()
    }

    /// One more actor, which goes on at this time. It waits for its first turn by [`begin`](Self::begin).
    pub(super) fn add(&self, mortal: bool) -> usize {
        let mut inner = self.0.lock();
        let wake = inner.now + Duration::from_millis(inner.rng.below(5000));
        let condvar = Arc::new(Condvar::new());
        inner.actors.push(Actor {
            wake: Some(wake),
            condvar,
            off: 0,
            slept: Duration::ZERO,
            mortal,
        });
        inner.actors.len() - 1
    }

    /// Hands the baton out for the first time.
    pub(super) fn start(&self) {
        self.pass(&mut self.0.lock());
    }

    /// Waits for the first turn of an actor.
    pub(super) fn begin(&self, actor: usize) {
        let mut inner = self.0.lock();
        self.wait(&mut inner, actor);
    }

    /// An actor ends.
    pub(super) fn end(&self, actor: usize) {
        let mut inner = self.0.lock();
        inner.actors[actor].wake = None;
        self.pass(&mut inner);
    }

    /// Time passes for an actor, and others run meanwhile.
    fn pause(&self, inner: &mut MutexGuard<'_, Inner>, actor: usize, time: Duration) {
        inner.actors[actor].wake = Some(inner.now + time);
        self.pass(inner);
        self.wait(inner, actor);
    }

    fn wait(&self, inner: &mut MutexGuard<'_, Inner>, actor: usize) {
        let condvar = inner.actors[actor].condvar.clone();
        while inner.running != actor {
            condvar.wait(inner);
        }
    }

    /// The next event: a late change, or an actor that goes on.
    fn pass(&self, inner: &mut MutexGuard<'_, Inner>) {
        loop {
            let next = inner
                .actors
                .iter()
                .enumerate()
                .filter_map(|(at, actor)| Some((actor.wake?, at)))
                .min();
            let late = inner.late.iter().map(|(due, _)| *due).min();
            match (next, late) {
                (Some((wake, _)), Some(due)) if due < wake => inner.come(due),
                (Some((wake, at)), _) => {
                    inner.now = inner.now.max(wake);
                    inner.running = at;
                    inner.actors[at].condvar.notify_one();
                    return;
                }
                (None, _) => {
                    inner.running = usize::MAX;
                    return;
                }
            }
        }
    }
}

impl Inner {
    pub(super) fn fail(&mut self, checker: Checker, text: impl Into<String>) {
        let failure = Failure::new(checker, text);
        if self.loud {
            println!("{failure}");
        }
        self.failure.get_or_insert(failure);
    }

    pub(super) fn say(&self, text: impl FnOnce() -> String) {
        if self.loud {
            println!("{:>12.3}  {}", self.now.as_secs_f64(), text());
        }
    }

    fn mix(&mut self, text: &str) {
        self.trace = onefold_core::checksum::fast(self.trace, text.as_bytes());
    }

    /// All changes that are late come now.
    pub(super) fn all_come(&mut self) {
        while let Some(due) = self.late.iter().map(|(due, _)| *due).min() {
            self.come(due);
        }
    }

    fn come(&mut self, due: Duration) {
        let Some(at) = self.late.iter().position(|(at, _)| *at == due) else { return };
        let (_, change) = self.late.remove(at);
        self.now = self.now.max(due);
        let new = self.apply(&change);
        if let Change::Create(name, _) = &change {
            self.reach.hit(if new {
                "a creation comes late"
            } else {
                "a creation is refused late"
            });
            if new && name.starts_with("log/") {
                self.reach.hit("a frame comes late");
            }
        }
    }

    /// Applies a change; false for a creation of what is there.
    fn apply(&mut self, change: &Change) -> bool {
        let made = self.now;
        match change {
            Change::Create(name, bytes) => {
                if self.objects.contains_key(name) {
                    return false;
                }
                self.say(|| format!("{name} is there, {} bytes", bytes.len()));
                if let Some(number) = name.strip_prefix("log/") {
                    self.appended(number, bytes);
                }
                if name.starts_with("table/") {
                    self.reach.hit("a table is made");
                }
                self.objects.insert(name.clone(), Object { bytes: bytes.clone(), made });
            }
            Change::Replace(name, bytes) => {
                if !name.starts_with("writer/") {
                    self.fail(Checker::FramesOnce, format!("{name} is written over"));
                }
                // A copy that comes late changes nothing.
                if self.objects.get(name).is_none_or(|object| object.bytes != *bytes) {
                    self.leases.entry(name.clone()).or_default().push(made);
                }
                self.objects.insert(name.clone(), Object { bytes: bytes.clone(), made });
            }
            Change::Delete(name) => {
                if name.starts_with("log/") {
                    self.fail(Checker::FramesOnce, format!("{name} is deleted"));
                }
                if self.objects.remove(name).is_some() {
                    self.say(|| format!("{name} is deleted"));
                }
            }
        }
        true
    }

    fn appended(&mut self, number: &str, bytes: &[u8]) {
        let number = number.parse().unwrap_or(0);
        match Frame::decode(bytes, number) {
            Ok(frame) => {
                if frame.joins().is_some() {
                    self.writer = frame.number;
                }
                if frame.joins().is_some_and(|fences| fences > 0) {
                    self.reach.hit("a writer is shut out by its successor");
                }
                self.reach.hit("frames are committed");
            }
            Err(error) => self.fail(Checker::FramesOnce, format!("frame {number}: {error}")),
        }
    }

    /// Somebody asks to shut another one out. While one watched, that one must not have been heard of; watching
    /// ended up to three minutes ago.
    fn judge_fence(&mut self, actor: usize, name: &str, bytes: &[u8]) {
        let number = name.strip_prefix("log/").and_then(|n| n.parse().ok()).unwrap_or(0);
        let Ok(frame) = Frame::decode(bytes, number) else { return };
        let Some(fenced) = frame.joins().filter(|fences| *fences > 0) else { return };
        if !self.sent.insert(frame.sum) {
            return;
        }
        let patience = self.params.settings().patience;
        let slept = self.actors[actor].slept;
        let was_awake = slept == Duration::ZERO || self.now.saturating_sub(slept) > 2 * patience;
        let since = self.now.saturating_sub(patience) + Duration::from_secs(5);
        let until = self.now.saturating_sub(Duration::from_secs(180));
        let changes = self.leases.get(&format!("writer/{fenced:016x}"));
        let heard = changes.into_iter().flatten().rev().find(|at| (since..until).contains(*at));
        if let Some(at) = heard.filter(|_| was_awake && self.now > patience) {
            let ago = (self.now - *at).as_secs();
            let text = format!("writer {fenced} is shut out, and was heard of {ago} s ago");
            self.fail(Checker::LivingSpared, text);
        }
    }

    fn keep_late(&mut self, change: Change) {
        if self.late.len() < LATE_MAX {
            let most = self.rng.pick(&[2_u64, 600, 3600, 100_000]).copied().unwrap_or(2);
            let due = self.now + Duration::from_millis(self.rng.within(1, most * 1000));
            self.late.push((due, change));
        }
    }
}

/// An actor's view of the world: the store, time and chance.
#[derive(Clone)]
pub(super) struct Seat {
    pub(super) world: Arc<World>,
    pub(super) actor: usize,
}

impl Seat {
    /// A request is on its way: others run, the process may be asleep or killed.
    fn request(&self, what: &str) -> MutexGuard<'_, Inner> {
        let mut inner = self.world.lock();
        inner.requests += 1;
        inner.mix(what);
        if inner.requests > REQUESTS_MAX {
            inner.fail(Checker::Progress, "too many requests");
        }
        if inner.failure.is_some() {
            drop(inner);
            resume_unwind(Box::new(Killed));
        }
        if inner.calm {
            inner.now += Duration::from_millis(10);
            return inner;
        }
        let mut time = Duration::from_millis(inner.rng.within(1, 200));
        if inner.rng.below(1000) < inner.params.asleep {
            let most = inner.params.asleep_minutes;
            time = Duration::from_secs(60 * inner.rng.within(1, most));
            inner.reach.hit("a process is asleep");
            inner.say(|| format!("actor {} is asleep for {time:?} before {what}", self.actor));
            inner.actors[self.actor].slept = inner.now + time;
        }
        self.world.pause(&mut inner, self.actor, time);
        inner
    }

    /// Whether a request fails, and whether it was applied: `None` for a reply.
    fn change(&self, what: &str, change: Change) -> Option<bool> {
        let mut inner = self.request(what);
        if let Change::Create(name, bytes) = &change {
            inner.judge_fence(self.actor, name, bytes);
        }
        let dies = !inner.calm
            && inner.actors[self.actor].mortal
            && inner.rng.below(1000) < inner.params.kills;
        let faulty = !inner.calm && inner.rng.below(1000) < inner.params.unknown;
        if dies || faulty {
            match inner.rng.below(3) {
                0 => drop(inner.apply(&change)),
                1 => inner.keep_late(change),
                _ => {}
            }
            inner.reach.hit("applied, and the reply is lost");
            if dies {
                inner.reach.hit("a process is killed");
                inner.say(|| format!("actor {} is killed at {what}", self.actor));
                drop(inner);
                resume_unwind(Box::new(Killed));
            }
            inner.say(|| format!("actor {} gets no reply to {what}", self.actor));
            return None;
        }
        if !inner.calm && inner.rng.below(1000) < inner.params.refused {
            inner.reach.hit("a request is refused");
            return None;
        }
        let new = inner.apply(&change);
        if !inner.calm && inner.rng.below(1000) < inner.params.doubled {
            inner.keep_late(change);
        }
        Some(new)
    }

    /// A process of this actor begins, by a clock that may be wrong.
    pub(super) fn set_clock(&self) {
        let mut inner = self.world.lock();
        let wrong = inner.params.wrong_clocks;
        let off = match inner.rng.percent(wrong) {
            true => {
                inner.reach.hit("a clock jumps");
                let years = inner.rng.within(1, 70) as i64 * 365 * 24 * 3600;
                if inner.rng.percent(70) { years } else { -years / 3 }
            }
            false => 0,
        };
        inner.actors[self.actor].off = off;
    }
}

/// True for bodies that have a hash. Parts of a pack have none; the archive engine proves them by checksums of its own.
fn proves_itself(name: &str, at: u64, bytes: u64, total: u64) -> bool {
    let is_whole = at == 0 && bytes >= total;
    match name.split_once('/') {
        Some(("log", _)) => bytes > 1,
        Some(("table", _)) => true,
        Some(("data" | "keys", _)) => is_whole,
        _ => false,
    }
}

fn no_reply() -> Error {
    Error::new(Kind::Io, "no reply")
}

impl Objects for Seat {
    fn get(&self, name: &str, at: u64, bytes: u64) -> Result<Body> {
        let mut inner = self.request(&format!("get {name} {at} {bytes}"));
        if !inner.calm && inner.rng.below(1000) < inner.params.refused {
            inner.reach.hit("a request is refused");
            return Err(no_reply());
        }
        let found = inner.objects.get(name).cloned();
        let Some(object) = found else {
            return Err(Error::new(Kind::NotFound, format!("no {name}")));
        };
        let total = object.bytes.len() as u64;
        let range = at.min(total) as usize..at.saturating_add(bytes).min(total) as usize;
        let mut body = object.bytes[range].to_vec();
        if !inner.calm && !body.is_empty() && inner.rng.below(1000) < inner.params.bodies {
            if inner.rng.percent(50) {
                let kept = inner.rng.below(body.len() as u64) as usize;
                body.truncate(kept);
                inner.reach.hit("a body is short");
            } else if proves_itself(name, at, bytes, total) {
                let at = inner.rng.below(body.len() as u64) as usize;
                body[at] ^= 1 << inner.rng.below(8);
                inner.reach.hit("a body is changed");
            }
        }
        Ok(Body { bytes: body, total, modified: BEGAN + object.made.as_secs() })
    }

    fn create(&self, name: &str, bytes: &[u8]) -> Created {
        let change = Change::Create(name.to_owned(), bytes.to_vec());
        match self.change(&format!("create {name}"), change) {
            Some(true) => Created::New,
            Some(false) => Created::Exists,
            None => Created::Unknown(no_reply()),
        }
    }

    fn replace(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let change = Change::Replace(name.to_owned(), bytes.to_vec());
        self.change(&format!("replace {name}"), change).map(drop).ok_or_else(no_reply)
    }

    fn delete(&self, name: &str) -> Result<()> {
        let change = Change::Delete(name.to_owned());
        self.change(&format!("delete {name}"), change).map(drop).ok_or_else(no_reply)
    }

    fn list(&self, folder: &str, after: &str) -> Result<Vec<Listed>> {
        let mut inner = self.request(&format!("list {folder}"));
        if !inner.calm && inner.rng.below(1000) < inner.params.refused {
            return Err(no_reply());
        }
        let lags = !inner.calm && inner.rng.below(1000) < inner.params.lags;
        if lags {
            inner.reach.hit("a listing lags");
        }
        let seen = |object: &Object| !lags || inner.now.saturating_sub(object.made) > LAG;
        let listed = inner
            .objects
            .iter()
            .filter(|(name, object)| {
                name.starts_with(folder) && name.as_str() > after && seen(object)
            })
            .take(7)
            .map(|(name, object)| Listed { name: name.clone(), bytes: object.bytes.len() as u64 });
        Ok(listed.collect())
    }
}

impl Pace for Seat {
    fn now(&self) -> Duration {
        self.world.lock().now
    }

    fn wall(&self) -> u64 {
        let inner = self.world.lock();
        (BEGAN + inner.now.as_secs()).saturating_add_signed(inner.actors[self.actor].off)
    }

    fn sleep(&self, time: Duration) {
        let mut inner = self.world.lock();
        if inner.calm {
            inner.now += time;
        } else {
            self.world.pause(&mut inner, self.actor, time);
        }
    }

    fn nonce(&self) -> [u8; 16] {
        let mut inner = self.world.lock();
        inner.nonce += 1;
        let mut nonce = [0; 16];
        nonce[..8].copy_from_slice(&inner.nonce.to_le_bytes());
        nonce
    }
}
