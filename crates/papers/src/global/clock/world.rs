//! Events and actors: the clock goes to the next event when no actor has anything to do before it.
//!
//! An operation becomes a process: a list of stages, each of which uses a resource for a while,
//! waits, or goes several ways at once. A resource serves who comes first. Events of one moment
//! happen in the order in which they were made, so that a run is the same each time.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, VecDeque},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread::JoinHandle,
    time::Duration,
};

use onefold_core::{
    Error, Kind, Result,
    object::{ObjectName, PoolKind, Read, ReadResult, Refusal, Version, Write},
};
use onefold_testbed::Objects;
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::cluster::{Cluster, HASH, names_chunk};

/// Operations of a batch on their way together, as on RADOS.
const FLIGHT: usize = 32;

/// When the clock begins, in seconds since 1970: far from zero, so that nothing is too young.
const BEGIN: Duration = Duration::from_secs(1_000_000);

/// A request of an actor to the store.
pub(super) enum Op {
    Write(Write),
    Read(Read),
    /// Something small besides, on this object: locks, listings.
    Small(ObjectName),
    /// Time passes.
    Sleep(u64),
}

/// The store's reply.
pub(super) enum Reply {
    Version(Version),
    ReadResult(ReadResult),
    Done,
}

/// A part of the way of an operation.
pub(super) enum Stage {
    /// So many nanoseconds pass.
    Wait(u64),
    /// A resource works for so many nanoseconds.
    Use(usize, u64),
    /// The operation is done to the objects; what follows hangs on what came out.
    Apply,
    /// All ways at once; it goes on when the last has ended.
    Fork(Vec<Vec<Stage>>),
    /// A way that nobody waits for.
    Detach(Vec<Stage>),
}

/// An object that is copied: from, to, bytes of data and of keys.
pub(in super::super) type Copied = (usize, usize, (u64, u64));

/// The one that waits for a process.
#[derive(Clone, Copy)]
enum For {
    Actor(usize, usize),
    Process(usize),
    Nobody,
}

struct Process {
    stages: VecDeque<Stage>,
    awaited: For,
    /// Ways that are still open.
    open: usize,
    client: usize,
    op: Option<Op>,
    reply: Option<Result<Reply, Refusal>>,
}

struct Actor {
    ended: bool,
    /// Operations that wait for room on the way, with the client node that sends them.
    later: VecDeque<(usize, Op)>,
    /// When all content that was sent up to now was hashed, one after the other since the batch
    /// began.
    hashed: u64,
    /// Operations that were sent, and how many of these in a row have their replies.
    sent: usize,
    done: usize,
    replies: Vec<Option<Result<Reply, Refusal>>>,
    wake: Arc<Condvar>,
    thread: Option<JoinHandle<()>>,
}

/// The state that all actors share.
pub(super) struct Inner {
    pub(super) objects: Objects,
    pub(super) cluster: Cluster,
    /// Nanoseconds.
    now: u64,
    made: u64,
    events: BinaryHeap<Reverse<(u64, u64, usize)>>,
    processes: BTreeMap<usize, Process>,
    next: usize,
    /// The process that ended in the last event and that nobody waited for.
    over: Option<usize>,
    /// When each server of a resource is free.
    resources: Vec<Vec<u64>>,
    actors: Vec<Actor>,
    ready: VecDeque<usize>,
    running: Option<usize>,
    /// Nothing takes any time: things are set up.
    setup: bool,
    failed: Option<Error>,
}

/// The world of a run.
pub(in super::super) struct World {
    inner: Mutex<Inner>,
    back: Condvar,
}

impl World {
    /// An empty store on the paper's cluster, with `clients` client nodes. Nothing takes time until
    /// [`run`](Self::run).
    pub(in super::super) fn new(chunks: PoolKind, clients: usize) -> Arc<World> {
        let cluster = Cluster::new(chunks, clients);
        let resources = cluster.resources().map(|servers| vec![0; servers]).collect();
        let inner = Inner {
            objects: Objects::new(chunks),
            cluster,
            now: 0,
            made: 0,
            events: BinaryHeap::new(),
            processes: BTreeMap::new(),
            next: 0,
            over: None,
            resources,
            actors: Vec::new(),
            ready: VecDeque::new(),
            running: None,
            setup: true,
            failed: None,
        };
        Arc::new(World { inner: Mutex::new(inner), back: Condvar::new() })
    }

    pub(super) fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    /// Virtual nanoseconds since the run began.
    pub(in super::super) fn now(&self) -> u64 {
        self.inner.lock().now
    }

    pub(super) fn time(&self) -> Duration {
        self.inner.lock().time()
    }

    /// While things are set up: time goes on by itself.
    pub(in super::super) fn skip(&self, time: Duration) {
        self.inner.lock().now += time.as_nanos() as u64;
    }

    pub(super) fn new_actor(&self) -> usize {
        let mut inner = self.inner.lock();
        let wake = Arc::new(Condvar::new());
        inner.actors.push(Actor {
            ended: true,
            later: VecDeque::new(),
            hashed: 0,
            sent: 0,
            done: 0,
            replies: Vec::new(),
            wake,
            thread: None,
        });
        inner.actors.len() - 1
    }

    /// Gives an actor its life, which begins with the run.
    pub(super) fn start(
        self: &Arc<World>,
        actor: usize,
        life: impl FnOnce() -> Result<()> + Send + 'static,
    ) {
        let world = self.clone();
        let thread = std::thread::spawn(move || {
            let body = AssertUnwindSafe(|| {
                world.wait_for_baton(actor);
                life()
            });
            let ended = catch_unwind(body)
                .unwrap_or_else(|_| Err(Error::new(Kind::Io, "an actor of the model panicked")));
            let mut inner = world.inner.lock();
            if let Err(error) = ended {
                inner.failed.get_or_insert(error);
            }
            inner.actors[actor].ended = true;
            inner.running = None;
            world.back.notify_one();
        });
        let mut inner = self.inner.lock();
        inner.actors[actor].ended = false;
        inner.actors[actor].thread = Some(thread);
        inner.ready.push_back(actor);
    }

    fn wait_for_baton(&self, actor: usize) {
        let mut inner = self.inner.lock();
        let wake = inner.actors[actor].wake.clone();
        while inner.running != Some(actor) {
            wake.wait(&mut inner);
        }
    }

    /// Sends operations and waits for all their replies.
    pub(super) fn ask(
        &self,
        actor: usize,
        client: usize,
        ops: Vec<Op>,
    ) -> Vec<Result<Reply, Refusal>> {
        let mut inner = self.inner.lock();
        if inner.setup {
            return ops.into_iter().map(|op| inner.apply(&op)).collect();
        }
        if ops.is_empty() {
            return Vec::new();
        }
        let now = inner.now;
        let asks = &mut inner.actors[actor];
        (asks.sent, asks.done, asks.hashed) = (0, 0, now);
        asks.replies = ops.iter().map(|_| None).collect();
        asks.later = ops.into_iter().map(|op| (client, op)).collect();
        inner.send_more(actor);
        inner.running = None;
        self.back.notify_one();
        drop(inner);
        self.wait_for_baton(actor);
        let replies = std::mem::take(&mut self.inner.lock().actors[actor].replies);
        replies.into_iter().map(|reply| reply.unwrap_or(Err(Refusal::Unknown))).collect()
    }

    /// Lets time begin; until all actors have ended.
    ///
    /// # Errors
    /// The first of any actor.
    pub(in super::super) fn run(&self) -> Result<()> {
        self.inner.lock().setup = false;
        loop {
            let mut inner = self.inner.lock();
            if let Some(actor) = inner.ready.pop_front() {
                inner.running = Some(actor);
                inner.actors[actor].wake.notify_one();
                while inner.running.is_some() {
                    self.back.wait(&mut inner);
                }
            } else if inner.actors.iter().all(|actor| actor.ended) || !inner.event() {
                inner.setup = true;
                let threads: Vec<JoinHandle<()>> =
                    inner.actors.iter_mut().filter_map(|actor| actor.thread.take()).collect();
                let failed = inner.failed.take();
                drop(inner);
                // The error of an actor that failed is in `failed`.
                threads.into_iter().for_each(|thread| drop(thread.join()));
                return failed.map_or(Ok(()), Err);
            }
        }
    }

    /// Copies objects between OSDs, so many at a time of each queue: from, to, bytes of data and of
    /// keys. Returns nanoseconds until the last is there.
    pub(in super::super) fn recover(
        &self,
        mut queues: Vec<VecDeque<Copied>>,
        together: usize,
    ) -> u64 {
        let mut inner = self.inner.lock();
        let begun = inner.now;
        let mut of: BTreeMap<usize, usize> = BTreeMap::new();
        for n in (0..queues.len()).flat_map(|n| std::iter::repeat_n(n, together)) {
            inner.recover_next(&mut queues[n], n, &mut of);
        }
        let mut last = begun;
        while !of.is_empty() && inner.event() {
            if let Some(n) = inner.over.take().and_then(|id| of.remove(&id)) {
                last = inner.now;
                inner.recover_next(&mut queues[n], n, &mut of);
            }
        }
        last - begun
    }
}

impl Inner {
    fn recover_next(
        &mut self,
        queue: &mut VecDeque<Copied>,
        n: usize,
        of: &mut BTreeMap<usize, usize>,
    ) {
        if let Some((from, to, bytes)) = queue.pop_front() {
            let stages = self.cluster.recovered(from, to, bytes);
            of.insert(self.spawn(stages, For::Nobody, 0, None), n);
        }
    }

    fn time(&self) -> Duration {
        BEGIN + Duration::from_nanos(self.now)
    }

    fn spawn(&mut self, stages: Vec<Stage>, awaited: For, client: usize, op: Option<Op>) -> usize {
        let id = self.next;
        self.next += 1;
        self.processes.insert(
            id,
            Process { stages: stages.into(), awaited, open: 0, client, op, reply: None },
        );
        self.wake_at(self.now, id);
        id
    }

    /// Sends an actor's next operations, as many as may be on their way: as in the product, the
    /// reply to the oldest makes room.
    fn send_more(&mut self, actor: usize) {
        while self.actors[actor].sent < self.actors[actor].done + FLIGHT
            && let Some((client, op)) = self.actors[actor].later.pop_front()
        {
            let asks = &mut self.actors[actor];
            let slot = asks.sent;
            asks.sent += 1;
            asks.hashed += HASH * u64::from(matches!(&op, Op::Write(op) if names_chunk(op)));
            let ready = asks.hashed.saturating_sub(self.now);
            let stages = self.cluster.way_there(client, ready, &op);
            self.spawn(stages, For::Actor(actor, slot), client, Some(op));
        }
    }

    fn wake_at(&mut self, at: u64, process: usize) {
        self.made += 1;
        self.events.push(Reverse((at, self.made, process)));
    }

    /// The next event happens; false when there is none.
    fn event(&mut self) -> bool {
        let Some(Reverse((at, _, id))) = self.events.pop() else { return false };
        self.now = self.now.max(at);
        let Some(process) = self.processes.get_mut(&id) else { return true };
        match process.stages.pop_front() {
            Some(Stage::Wait(time)) => self.wake_at(self.now + time, id),
            Some(Stage::Use(resource, time)) => {
                let servers = &mut self.resources[resource];
                let free = (0..servers.len()).min_by_key(|server| servers[*server]).unwrap_or(0);
                let end = servers[free].max(self.now) + time;
                servers[free] = end;
                self.wake_at(end, id);
            }
            Some(Stage::Apply) => {
                let (op, client) = (process.op.take(), process.client);
                let Some(op) = op else { return true };
                let reply = self.apply(&op);
                let rest = self.cluster.way_back(client, &op, &reply);
                if let Some(process) = self.processes.get_mut(&id) {
                    process.reply = Some(reply);
                    process.stages.extend(rest);
                }
                self.wake_at(self.now, id);
            }
            Some(Stage::Fork(ways)) => {
                process.open = ways.len();
                for way in ways {
                    self.spawn(way, For::Process(id), 0, None);
                }
            }
            Some(Stage::Detach(way)) => {
                self.spawn(way, For::Nobody, 0, None);
                self.wake_at(self.now, id);
            }
            None => {
                if let Some(process) = self.processes.remove(&id) {
                    self.ended(id, process);
                }
            }
        }
        true
    }

    fn ended(&mut self, id: usize, process: Process) {
        match process.awaited {
            For::Actor(actor, slot) => {
                let waits = &mut self.actors[actor];
                waits.replies[slot] = Some(process.reply.unwrap_or(Ok(Reply::Done)));
                waits.done +=
                    waits.replies[waits.done..].iter().take_while(|reply| reply.is_some()).count();
                if waits.done == waits.replies.len() {
                    self.ready.push_back(actor);
                } else {
                    self.send_more(actor);
                }
            }
            For::Process(parent) => {
                let Some(waits) = self.processes.get_mut(&parent) else { return };
                waits.open -= 1;
                if waits.open == 0 {
                    self.wake_at(self.now, parent);
                }
            }
            For::Nobody => self.over = Some(id),
        }
    }

    fn apply(&mut self, op: &Op) -> Result<Reply, Refusal> {
        let now = self.time();
        match op {
            Op::Write(op) => self.objects.write(op, now, 0).map(Reply::Version),
            Op::Read(op) => self.objects.read(op).map(Reply::ReadResult),
            Op::Small(_) | Op::Sleep(_) => Ok(Reply::Done),
        }
    }
}
