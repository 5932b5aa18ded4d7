//! The simulated object store and the one who decides what happens next.
//!
//! Every actor is a thread, but only the one with the baton runs: an operation of the store hands it back, and the schedule decides which operation is
//! applied, which reply arrives, is lost or comes late, who is stopped, continued or killed, and who runs next.

use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::Arc,
    thread::JoinHandle,
    time::Duration,
};

use onefold_core::object::{Change, Holder, ObjectName, Page, Pool, Read, Refusal, Sight, Version, Write, model::Objects};
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::{
    check,
    double::DoubleWork,
    model::{Finding, Model},
    params::Params,
    store::SimStore,
    told::{short_change, short_guard},
};
use crate::{reach::Reach, rng::Rng};

/// Copies of operations that may still come, at most.
const LATE_MAX: usize = 24;

/// What an actor asks of the store.
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
    Sight(Sight),
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
}

/// An operation that may still be applied, and nobody waits for it.
struct Late {
    identity: String,
    op: Write,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It has the baton, or may get it.
    Ready,
    /// It waits for replies.
    Waiting,
    /// It ended.
    Ended,
}

struct Actor {
    state: State,
    stopped: bool,
    killed: bool,
    replies: Vec<Option<Result<Reply, Refusal>>>,
    wake: Arc<Condvar>,
    identity: String,
    drift: Duration,
    /// It can be killed.
    mortal: bool,
    /// What it is, and which.
    role: (Role, usize),
}

/// What an actor does.
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
}

/// What everybody sees; only who has the baton touches it.
pub(super) struct Inner {
    pub(super) objects: Objects,
    pub(super) now: Duration,
    pub(super) rng: Rng,
    pub(super) model: Model,
    pub(super) finding: Option<Finding>,
    pub(super) reach: Reach,
    pub(super) double: DoubleWork,
    pub(super) params: Params,
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

/// What ends the thread of an actor that is killed.
struct Killed;

impl World {
    pub(super) fn new(params: &Params, loud: bool) -> Arc<World> {
        let mut rng = Rng::new(params.seed ^ 0x636c_7573_7465_7200);
        let inner = Inner {
            objects: Objects::new(params.chunks),
            now: Duration::from_secs(1_000_000),
            rng: rng.fork(),
            model: Model::new(params),
            finding: None,
            reach: Reach::default(),
            double: DoubleWork::default(),
            params: params.clone(),
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
    pub(super) fn start(self: &Arc<World>, role: (Role, usize), mortal: bool, life: fn(&Arc<World>, SimStore, usize)) -> usize {
        let mut inner = self.inner.lock();
        let id = inner.actors.len();
        inner.identities += 1;
        let identity = format!("client.{}", inner.identities);
        let drift = Duration::from_millis(if inner.params.drift == 0 { 0 } else { inner.rng.fork().below(inner.params.drift) });
        let wake = Arc::new(Condvar::new());
        inner.actors.push(Actor {
            state: State::Ready,
            stopped: false,
            killed: false,
            replies: Vec::new(),
            wake,
            identity: identity.clone(),
            drift,
            mortal,
            role,
        });
        let store = SimStore { world: self.clone(), actor: id, identity };
        let thread = std::thread::spawn(move || {
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
                let text = text.or_else(|| payload.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default();
                inner.fail(Finding::new("NoPanic", text));
            }
            inner.actors[id].state = State::Ended;
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
    pub(super) fn ask(&self, actor: usize, identity: &str, ops: Vec<Op>) -> Vec<Result<Reply, Refusal>> {
        if ops.is_empty() {
            return Vec::new();
        }
        {
            let mut inner = self.inner.lock();
            inner.actors[actor].replies = ops.iter().map(|_| None).collect();
            inner.actors[actor].state = State::Waiting;
            let flights = ops.into_iter().enumerate().map(|(slot, op)| Flight { actor, slot, identity: identity.into(), op, reply: None });
            inner.flights.extend(flights);
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

    /// Lets things happen until `events` of them have, or all actors have ended. `revive` is told who was killed.
    pub(super) fn run(self: &Arc<World>, mut events: u64, mut revive: impl FnMut(&Arc<World>, (Role, usize))) {
        loop {
            let mut inner = self.inner.lock();
            let over = inner.finding.is_some() || inner.actors.iter().all(|actor| actor.state == State::Ended) || events == 0;
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
                    let ended = inner.actors[actor].state == State::Ended && !inner.stopping && inner.actors[actor].mortal;
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
        inner.actors[actor].state = State::Ready;
        let (its, others): (Vec<Flight>, Vec<Flight>) =
            std::mem::take(&mut inner.flights).into_iter().partition(|flight| flight.actor == actor);
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
        let threads: Vec<JoinHandle<()>> = self.inner.lock().threads.iter_mut().filter_map(Option::take).collect();
        for thread in threads {
            // What it died of was noted.
            let _ = thread.join();
        }
    }

    /// From now on actors end by themselves, and nothing goes wrong any more.
    pub(super) fn calm_down(&self) {
        let mut inner = self.inner.lock();
        inner.calm = true;
        inner.stopping = true;
        inner.actors.iter_mut().for_each(|actor| actor.stopped = false);
        // What is still on its way comes now, or never.
        for late in std::mem::take(&mut inner.late) {
            if inner.rng.percent(50) && !inner.objects.is_fenced(&late.identity) {
                let _ = inner.apply(&late.identity, &late.op);
            }
        }
    }

    pub(super) fn trace(&self) -> u64 {
        self.inner.lock().trace
    }
}

/// What the schedule decided.
enum Next {
    Run(usize),
    Kill(usize),
    Nothing,
}

impl Inner {
    pub(super) fn fail(&mut self, finding: Finding) {
        if self.loud {
            println!("{finding}");
        }
        self.finding.get_or_insert(finding);
    }

    /// Tells what happens, when somebody wants to know.
    pub(super) fn say(&self, text: impl FnOnce() -> String) {
        if self.loud {
            println!("{:>10.3}  {}", (self.now - Duration::from_secs(1_000_000)).as_secs_f64(), text());
        }
    }

    fn mix(&mut self, text: &str) {
        self.trace = onefold_core::checksum::fast(self.trace, text.as_bytes());
    }

    fn keep_late(&mut self, identity: String, op: Write) {
        if self.late.len() < LATE_MAX && !self.objects.is_fenced(&identity) {
            self.late.push(Late { identity, op });
        }
    }

    /// One thing happens.
    fn event(&mut self) -> Next {
        self.now += Duration::from_millis(self.rng.within(1, 5));
        if !self.calm && self.rng.below(1000) < self.params.jumps {
            self.now += Duration::from_secs(self.rng.within(1, 40));
            self.reach.hit("time jumps");
        }
        if !self.calm
            && let Some(next) = self.mischief()
        {
            return next;
        }
        let ready: Vec<usize> =
            (0..self.actors.len()).filter(|id| self.actors[*id].state == State::Ready && !self.actors[*id].stopped).collect();
        let open: Vec<usize> = (0..self.flights.len()).filter(|at| self.is_first(*at)).collect();
        let choice = self.rng.below((ready.len() + open.len()) as u64) as usize;
        if choice < ready.len() {
            return Next::Run(ready[choice]);
        }
        match open.get(choice - ready.len()) {
            Some(at) => self.go_on(*at),
            None => {
                // Everybody is stopped.
                self.actors.iter_mut().for_each(|actor| actor.stopped = false);
            }
        }
        Next::Nothing
    }

    /// Operations of a session on one object are applied in their order.
    fn is_first(&self, at: usize) -> bool {
        let flight = &self.flights[at];
        let Some(object) = flight.op.object() else { return true };
        !self.flights[..at].iter().any(|other| other.identity == flight.identity && other.op.object() == Some(object))
    }

    fn mischief(&mut self) -> Option<Next> {
        if !self.late.is_empty() && self.rng.below(1000) < self.params.late {
            let late = self.late.swap_remove(self.rng.below(self.late.len() as u64) as usize);
            if !self.objects.is_fenced(&late.identity) {
                let applied = self.apply(&late.identity, &late.op).is_ok();
                self.reach.hit(if applied { "a late copy applies" } else { "a late copy is refused" });
            }
        }
        let mortal: Vec<usize> =
            (0..self.actors.len()).filter(|id| self.actors[*id].mortal && self.actors[*id].state == State::Waiting).collect();
        if self.rng.below(1000) < self.params.kills
            && let Some(actor) = self.rng.pick(&mortal).copied()
        {
            self.reach.hit("an actor is killed");
            self.say(|| format!("{:?} is killed", self.actors[actor].role));
            return Some(Next::Kill(actor));
        }
        if self.rng.below(1000) < self.params.stops
            && let Some(actor) = self.rng.pick(&mortal).copied()
        {
            let stopped = !self.actors[actor].stopped;
            self.actors[actor].stopped = stopped;
            self.reach.hit(if stopped { "an actor is stopped" } else { "an actor is continued" });
            self.say(|| format!("{:?} is {}", self.actors[actor].role, if stopped { "stopped" } else { "continued" }));
        }
        None
    }

    /// Applies an operation, or lets its reply arrive.
    fn go_on(&mut self, at: usize) {
        if let Some(reply) = self.flights[at].reply.take() {
            let flight = self.flights.remove(at);
            self.arrive(flight.actor, flight.slot, reply);
            return;
        }
        let faulty = !self.calm && matches!(self.flights[at].op, Op::Write(_) | Op::Read(_) | Op::Lock(..));
        if faulty && self.rng.below(1000) < self.params.unknown {
            return self.lose(at);
        }
        let (identity, op) = (self.flights[at].identity.clone(), self.flights[at].op.clone());
        let full = faulty && self.params.full > 0 && self.rng.below(1000) < self.params.full && op.takes_space();
        let reply = if full {
            self.reach.hit("the store is full");
            Err(Refusal::Full)
        } else {
            self.perform(&identity, &op)
        };
        if let (Op::Write(op), Ok(_)) = (&op, &reply)
            && !self.calm
            && self.rng.below(1000) < self.params.copies
        {
            self.reach.hit("an operation is copied");
            self.keep_late(identity, op.clone());
        }
        // A fence may have answered all of its session, this one too.
        if let Some(flight) = self.flights.get_mut(at) {
            flight.reply = Some(reply);
        }
    }

    /// A reply is lost: the operation is applied now, later, or never.
    fn lose(&mut self, at: usize) {
        let flight = self.flights.remove(at);
        match (flight.op, self.rng.below(3)) {
            (Op::Write(op), 0) => {
                self.reach.hit("applied, and the reply is lost");
                let _ = self.perform(&flight.identity, &Op::Write(op));
            }
            (Op::Write(op), 1) => {
                self.reach.hit("delayed, and the reply is lost");
                self.keep_late(flight.identity, op);
            }
            (Op::Lock(object, lock, cookie, lease), 0) => {
                let _ = self.perform(&flight.identity, &Op::Lock(object, lock, cookie, lease));
            }
            _ => self.reach.hit("an operation is lost"),
        }
        self.arrive(flight.actor, flight.slot, Err(Refusal::Unknown));
    }

    fn arrive(&mut self, actor: usize, slot: usize, reply: Result<Reply, Refusal>) {
        let actor = &mut self.actors[actor];
        actor.replies[slot] = Some(reply);
        if actor.replies.iter().all(Option::is_some) {
            actor.state = State::Ready;
        }
    }

    fn perform(&mut self, identity: &str, op: &Op) -> Result<Reply, Refusal> {
        if self.objects.is_fenced(identity) {
            self.reach.hit("a fenced session is refused");
            return Err(Refusal::Fenced);
        }
        match op {
            Op::Write(op) => self.apply(identity, op).map(Reply::Version),
            Op::Read(op) => self.objects.read(op).map(|mut sight| {
                self.shorten(&mut sight, op);
                Reply::Sight(sight)
            }),
            Op::List(pool, from, most) => Ok(Reply::Page(self.objects.list(*pool, from.as_deref(), (*most).min(self.params.page)))),
            Op::Lock(object, lock, cookie, lease) => {
                let holder = Holder { identity: identity.into(), cookie: cookie.clone() };
                self.objects.lock(object, lock, holder, self.now, *lease).map(|()| Reply::Done)
            }
            Op::Break(object, lock, holder) => {
                self.objects.break_lock(object, lock, holder);
                Ok(Reply::Done)
            }
            Op::Holder(object, lock) => Ok(Reply::Holder(self.objects.holder(object, lock, self.now))),
            Op::Fence(other) => {
                self.say(|| format!("{other} is fenced"));
                self.objects.fence(other);
                self.late.retain(|late| late.identity != *other);
                self.reach.hit("a session is fenced");
                Ok(Reply::Done)
            }
        }
    }

    /// The store may give shorter pages than it was asked for.
    fn shorten(&self, sight: &mut Sight, op: &Read) {
        use onefold_core::object::{Look, Seen};
        for (seen, look) in sight.seen.iter_mut().zip(&op.looks) {
            // The engine needs a whole map in one page, which has a bounded number of keys.
            let list = matches!(look, Look::Page(_, most) if *most < 500 || *most == 1000);
            if let (Seen::Pairs { pairs, more }, true) = (seen, list)
                && pairs.len() > self.params.page
            {
                pairs.truncate(self.params.page);
                *more = true;
            }
        }
    }

    /// Applies a change and checks what must always hold.
    fn apply(&mut self, identity: &str, op: &Write) -> Result<Version, Refusal> {
        let before = self.objects.get(&op.object).cloned();
        let gap = self.rng.below(3);
        let result = self.objects.write(op, self.now, gap);
        self.mix(&format!("{identity} {:?} {}", op.object, result.is_ok()));
        if self.loud {
            let guards: Vec<String> = op.guards.iter().map(short_guard).collect();
            let changes: Vec<String> = op.changes.iter().map(short_change).collect();
            let outcome = match &result {
                Ok(version) => format!("v{}", version.0),
                Err(refusal) => refusal.to_string(),
            };
            self.say(|| format!("{identity} {:?} [{}] {} -> {outcome}", op.object, guards.join(" "), changes.join(" ")));
        }
        let actor = self.actor_of(identity);
        if result.is_ok() && self.actors.get(actor).is_some_and(|actor| actor.role.0 == Role::Worker) {
            self.double.note(actor, op);
        }
        if result.is_ok()
            && let Some(finding) = check::after(&self.objects, &op.object, before.as_ref(), op)
        {
            self.fail(finding);
        }
        result
    }
}

impl Op {
    fn object(&self) -> Option<&ObjectName> {
        match self {
            Op::Write(op) => Some(&op.object),
            Op::Read(op) => Some(&op.object),
            Op::Lock(object, ..) | Op::Break(object, ..) | Op::Holder(object, _) => Some(object),
            Op::List(..) | Op::Fence(_) => None,
        }
    }

    fn takes_space(&self) -> bool {
        let adds = |change: &Change| !matches!(change, Change::Remove | Change::DropOmap(_) | Change::Zero(..));
        matches!(self, Op::Write(op) if op.changes.iter().any(adds))
    }
}

impl Inner {
    /// How far an actor's clock is ahead.
    pub(super) fn drift_of(&self, actor: usize) -> Duration {
        self.actors[actor].drift
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
