//! The simulated object store and the one who decides what happens next.
//!
//! Every actor is a thread, but only the one with the baton runs: an operation of the store hands
//! it back, and the schedule decides which operation is applied, which reply arrives, is lost or
//! comes late, who is stopped, continued or killed, and who runs next.

mod events;

use std::{
    collections::{BTreeMap, BTreeSet},
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::Arc,
    thread::JoinHandle,
    time::Duration,
};

use onefold_cluster::format::{Reference, key};
use onefold_core::object::{
    Change, Holder, ObjectName, Page, Pool, Read, ReadResult, Refusal, Version, Write,
};
use onefold_seal::observer;
use onefold_testbed::{Objects, Reach, Rng};
use parking_lot::{Condvar, Mutex, MutexGuard};

use self::events::Next;
use super::{
    checks::{Dropped, double::DoubleWork, naming::Naming, serving::Serving},
    model::Model,
    params::Params,
    sealed::Hidden,
    store::SimStore,
};
use crate::checker::{Checker, Failure};

/// Copies of operations that may still come, at most.
const LATE_MAX: usize = 24;

/// After so long a worker judges what was noted.
const JUDGED_AFTER: Duration = Duration::from_secs(20);

/// A request of an actor to the store.
#[derive(Clone, Debug)]
pub(super) enum Op {
    Write(Write),
    Read(Read),
    List(Pool, Option<String>, usize),
    Lock(ObjectName, &'static str, String, Option<Duration>),
    Break(ObjectName, &'static str, Holder),
    Holder(ObjectName, &'static str),
    Fence(String),
}

#[derive(Clone, Debug)]
pub(super) enum Reply {
    Version(Version),
    ReadResult(ReadResult),
    Page(Page),
    Holder(Option<Holder>),
    Done,
}

/// An operation whose reply somebody waits for.
struct Flight {
    actor: usize,
    slot: usize,
    identity: String,
    op: Op,
    /// Applied; its reply is on the way.
    reply: Option<Result<Reply, Refusal>>,
    /// It is not applied before.
    held: Duration,
}

/// An operation that may still be applied, and nobody waits for it.
struct Late {
    identity: String,
    op: Write,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The actor has the baton, or may get it.
    Ready,
    /// The actor waits for replies.
    Waiting,
    /// The actor ended.
    Ended,
}

struct Actor {
    state: State,
    stopped: bool,
    killed: bool,
    replies: Vec<Option<Result<Reply, Refusal>>>,
    /// Requests that it sent.
    requests: u64,
    wake: Arc<Condvar>,
    identity: String,
    drift: Duration,
    /// How far its clock was set back.
    back: Duration,
    /// How far it was set forward.
    ahead: Duration,
    /// The actor can be killed.
    mortal: bool,
    /// Its role, and its number in it.
    role: (Role, usize),
}

/// The role of an actor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Role {
    /// Sets up and cleans up.
    Keeper,
    /// Writes to a volume.
    Client,
    /// Deduplicates and deletes.
    Worker,
    /// Puts, gets and deletes objects.
    Putter,
    /// Scrubs.
    Scrubber,
    /// Resizes and deletes a volume that others use.
    Steward,
    /// Gives volumes and objects other names.
    Renamer,
    /// Takes snapshots of volumes, and clones.
    Snapper,
    /// Sends snapshots to another volume of the store.
    Receiver,
    /// Stands by for the others of its kind, and then writes to all volumes.
    Gateway,
}

/// The state that all share; only the actor with the baton touches it.
pub(super) struct Inner {
    /// All objects; those of a sealed store are opened.
    pub(super) objects: Objects,
    /// The store as its host has it, when it is sealed.
    pub(super) hidden: Option<Hidden>,
    pub(super) now: Duration,
    pub(super) rng: Rng,
    pub(super) model: Model,
    pub(super) naming: Naming,
    pub(super) serving: Serving,
    /// Fenced sessions that the object of the server at work still takes operations of, and who fenced them.
    unheard: BTreeMap<String, BTreeSet<String>>,
    /// Until then fences are not answered.
    fences_answered: Duration,
    pub(super) failure: Option<Failure>,
    pub(super) reach: Reach,
    pub(super) double: DoubleWork,
    pub(super) params: Params,
    /// References that were dropped.
    pub(super) dropped: Dropped,
    /// References that a late copy of an operation made, after whoever noted them may have been
    /// done: those are left to a scrub.
    pub(super) made_late: Dropped,
    /// References whose note was sent. An inline server sends it together with the reference: when
    /// it is lost, the reference is left to a scrub.
    pub(super) sent_notes: BTreeSet<Reference>,
    /// When references were noted.
    pub(super) noted: BTreeMap<Reference, Duration>,
    /// References that a session added so long after it noted them that they may have been judged:
    /// it drops them itself, unless it ends before.
    slow: BTreeMap<Reference, usize>,
    /// Slow references whose session ended before it dropped them: they are left to a scrub.
    pub(super) slow_left: BTreeSet<Reference>,
    /// The most references that a session noted at once.
    most_noted: BTreeMap<u64, usize>,
    /// The steward's volume may be deleted yet: nobody knows what became of a try.
    pub(super) may_delete: bool,
    /// An object that the store can't read.
    pub(super) unreadable: Option<ObjectName>,
    /// Actors are to end soon.
    pub(super) stopping: bool,
    /// No faults any more.
    pub(super) calm: bool,
    trace: u64,
    flights: Vec<Flight>,
    late: Vec<Late>,
    actors: Vec<Actor>,
    running: Option<usize>,
    threads: Vec<Option<JoinHandle<()>>>,
    identities: u64,
    loud: bool,
}

/// The simulated world.
pub(super) struct World {
    inner: Mutex<Inner>,
    /// Wakes the schedule.
    back: Condvar,
}

/// The panic that ends the thread of a killed actor.
struct Killed;

impl World {
    pub(super) fn new(params: &Params, loud: bool) -> Arc<World> {
        let mut rng = Rng::new(params.seed ^ 0x636c_7573_7465_7200);
        let inner = Inner {
            objects: Objects::new(params.chunks),
            hidden: Hidden::of(params),
            now: Duration::from_secs(1_000_000),
            rng: rng.fork(),
            model: Model::new(params),
            naming: Naming::new(params.renames),
            serving: Serving::default(),
            unheard: BTreeMap::new(),
            fences_answered: Duration::ZERO,
            failure: None,
            reach: Reach::default(),
            double: DoubleWork::default(),
            params: params.clone(),
            dropped: Dropped::new(),
            made_late: Dropped::new(),
            sent_notes: BTreeSet::new(),
            noted: BTreeMap::new(),
            slow: BTreeMap::new(),
            slow_left: BTreeSet::new(),
            most_noted: BTreeMap::new(),
            may_delete: false,
            unreadable: None,
            stopping: false,
            calm: true,
            trace: 0,
            flights: Vec::new(),
            late: Vec::new(),
            actors: Vec::new(),
            running: None,
            threads: Vec::new(),
            identities: 0,
            loud,
        };
        Arc::new(World { inner: Mutex::new(inner), back: Condvar::new() })
    }

    pub(super) fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    /// Starts an actor; it runs when the schedule says so.
    pub(super) fn start(
        self: &Arc<World>,
        role: (Role, usize),
        mortal: bool,
        life: fn(&Arc<World>, SimStore, usize),
    ) -> usize {
        let mut inner = self.inner.lock();
        let id = inner.actors.len();
        inner.identities += 1;
        let identity = format!("client.{}", inner.identities);
        let drift = Duration::from_millis(if inner.params.drift == 0 {
            0
        } else {
            inner.rng.fork().below(inner.params.drift)
        });
        let wake = Arc::new(Condvar::new());
        inner.actors.push(Actor {
            state: State::Ready,
            stopped: false,
            killed: false,
            replies: Vec::new(),
            requests: 0,
            wake,
            identity: identity.clone(),
            drift,
            back: Duration::ZERO,
            ahead: Duration::ZERO,
            mortal,
            role,
        });
        let store = SimStore { world: self.clone(), actor: id, identity };
        let record = inner.record();
        let thread = std::thread::spawn(move || {
            record.iter().for_each(observer::join);
            let world = store.world.clone();
            let body = AssertUnwindSafe(|| {
                world.wait_for_baton(id);
                life(&world, store, id);
            });
            let ended = catch_unwind(body);
            let mut inner = world.inner.lock();
            if let Err(payload) = ended
                && !payload.is::<Killed>()
            {
                let text = payload.downcast_ref::<String>().cloned();
                let text = text
                    .or_else(|| payload.downcast_ref::<&str>().map(ToString::to_string))
                    .unwrap_or_default();
                inner.fail(Failure::new(Checker::NoPanic, text));
            }
            inner.actors[id].state = State::Ended;
            inner.leaves_slow(id);
            inner.running = None;
            world.back.notify_one();
        });
        inner.threads.push(Some(thread));
        id
    }

    fn wait_for_baton(&self, id: usize) {
        let mut inner = self.inner.lock();
        let wake = inner.actors[id].wake.clone();
        while inner.running != Some(id) {
            wake.wait(&mut inner);
        }
        if inner.actors[id].killed {
            drop(inner);
            resume_unwind(Box::new(Killed));
        }
    }

    /// Sends operations and waits for all their replies.
    pub(super) fn ask(
        &self,
        actor: usize,
        identity: &str,
        ops: Vec<Op>,
    ) -> Vec<Result<Reply, Refusal>> {
        if ops.is_empty() {
            return Vec::new();
        }
        {
            let mut inner = self.inner.lock();
            inner.actors[actor].replies = ops.iter().map(|_| None).collect();
            inner.actors[actor].state = State::Waiting;
            inner.actors[actor].requests += ops.len() as u64;
            inner.judge_fences(&ops);
            let notes = ops.iter().filter_map(|op| match op {
                Op::Write(op) => Some(noted_by(&inner.meant(op)).collect::<Vec<_>>()),
                _ => None,
            });
            let notes: Vec<Reference> = notes.flatten().collect();
            inner.sent_notes.extend(notes);
            for (slot, op) in ops.into_iter().enumerate() {
                let held = inner.held(&op);
                let identity = identity.into();
                inner.flights.push(Flight { actor, slot, identity, op, reply: None, held });
            }
            inner.running = None;
            self.back.notify_one();
        }
        self.wait_for_baton(actor);
        let replies = std::mem::take(&mut self.inner.lock().actors[actor].replies);
        replies.into_iter().map(|reply| reply.unwrap_or(Err(Refusal::Unknown))).collect()
    }

    /// Gives the baton to an actor and waits until it comes back.
    fn hand_over(&self, actor: usize) {
        let mut inner = self.inner.lock();
        inner.running = Some(actor);
        inner.actors[actor].wake.notify_one();
        while inner.running.is_some() {
            self.back.wait(&mut inner);
        }
    }

    /// Lets things happen until `events` of them have, or all actors have ended. `revive` is told
    /// who was killed.
    pub(super) fn run(
        self: &Arc<World>,
        mut events: u64,
        mut revive: impl FnMut(&Arc<World>, (Role, usize)),
    ) {
        loop {
            let mut inner = self.inner.lock();
            let over = inner.failure.is_some()
                || inner.actors.iter().all(|actor| actor.state == State::Ended)
                || events == 0;
            if over {
                return;
            }
            events -= 1;
            let next = inner.event();
            drop(inner);
            match next {
                Next::Run(actor) => {
                    self.hand_over(actor);
                    let inner = self.inner.lock();
                    let ended = inner.actors[actor].state == State::Ended
                        && !inner.stopping
                        && inner.actors[actor].mortal;
                    let role = inner.actors[actor].role;
                    drop(inner);
                    if ended {
                        revive(self, role);
                    }
                }
                Next::Kill(actor) => {
                    let role = self.inner.lock().actors[actor].role;
                    self.kill(actor);
                    revive(self, role);
                }
                Next::Nothing => {}
            }
        }
    }

    /// Ends an actor at the operation that it waits for, as SIGKILL does.
    fn kill(&self, actor: usize) {
        let mut inner = self.inner.lock();
        if inner.actors[actor].state == State::Ended {
            return;
        }
        inner.actors[actor].killed = true;
        inner.leaves_slow(actor);
        inner.model.died(actor);
        inner.actors[actor].state = State::Ready;
        let (its, others): (Vec<Flight>, Vec<Flight>) = std::mem::take(&mut inner.flights)
            .into_iter()
            .partition(|flight| flight.actor == actor);
        inner.flights = others;
        for flight in its {
            if let (Op::Write(op), None) = (flight.op, flight.reply) {
                inner.keep_late(flight.identity, op);
            }
        }
        drop(inner);
        self.hand_over(actor);
    }

    /// Ends all actors.
    pub(super) fn end(&self) {
        let count = self.inner.lock().actors.len();
        (0..count).for_each(|actor| self.kill(actor));
        let threads: Vec<JoinHandle<()>> =
            self.inner.lock().threads.iter_mut().filter_map(Option::take).collect();
        for thread in threads {
            // The error of a failed actor is recorded already.
            let _ = thread.join();
        }
    }

    /// From now on actors end by themselves, and nothing goes wrong any more.
    pub(super) fn calm_down(&self) {
        let mut inner = self.inner.lock();
        inner.calm = true;
        inner.stopping = true;
        inner.actors.iter_mut().for_each(|actor| actor.stopped = false);
        if inner.params.late_last {
            return;
        }
        // Late copies arrive now, or never.
        for late in std::mem::take(&mut inner.late) {
            if inner.rng.percent(50) && !inner.objects.is_fenced(&late.identity) {
                let meant = inner.meant(&late.op);
                inner.note_late(&meant);
                let _ = inner.apply(&late.identity, &late.op);
            }
        }
    }

    /// A share of the copies that are still on their way comes now, in any order.
    pub(super) fn come_late(&self, percent: u64) {
        let inner = &mut *self.inner.lock();
        let mut stay = Vec::new();
        while !inner.late.is_empty() {
            let at = inner.rng.below(inner.late.len() as u64) as usize;
            let late = inner.late.swap_remove(at);
            if inner.rng.percent(percent) {
                inner.reach.hit("a copy comes when all is clean");
                inner.come(&late);
            } else {
                stay.push(late);
            }
        }
        inner.late = stay;
    }

    pub(super) fn trace(&self) -> u64 {
        self.inner.lock().trace
    }
}

impl Inner {
    /// The time by an actor's clock.
    pub(super) fn clock_of(&self, actor: usize) -> Duration {
        let actor = &self.actors[actor];
        (self.now + actor.drift + actor.ahead).saturating_sub(actor.back)
    }

    /// The time by an actor's clock that nobody sets.
    pub(super) fn monotonic_of(&self, actor: usize) -> Duration {
        self.now + self.actors[actor].drift
    }

    /// The requests that an actor sent so far.
    pub(super) fn requests_of(&self, actor: usize) -> u64 {
        self.actors[actor].requests
    }

    /// Sets an actor's clock back.
    pub(super) fn set_back(&mut self, actor: usize, by: Duration) {
        self.actors[actor].back = by;
    }

    /// The actor of a session.
    pub(super) fn actor_of(&self, identity: &str) -> usize {
        self.actors.iter().position(|actor| actor.identity == identity).unwrap_or(usize::MAX)
    }

    /// True when nobody is at work.
    pub(super) fn all_ended(&self) -> bool {
        self.actors.iter().all(|actor| actor.state == State::Ended)
    }

    /// Reports how many actors of each kind there were.
    pub(super) fn roles(&self) -> BTreeMap<Role, usize> {
        let mut roles = BTreeMap::new();
        self.actors.iter().for_each(|actor| *roles.entry(actor.role.0).or_default() += 1);
        roles
    }
}

/// The references that an operation notes before they are added.
fn noted_by(op: &Write) -> impl Iterator<Item = Reference> + use<'_> {
    let pairs = op
        .changes
        .iter()
        .filter_map(|change| if let Change::SetOmap(pairs) = change { Some(pairs) } else { None });
    pairs.flatten().filter_map(|(key, _)| key::parse_attempt(key))
}
