//! Clients and workers on the model's cluster.
//!
//! A client node has lanes: each has one request on its way at a time, a stream and a volume of its
//! own, so that nothing is merged. Without deduplication (the *original*) a lane reads and writes
//! objects of 4 MiB directly. Workers live as those of the product do: they look at the load each
//! second, and do what it allows.

use std::{ops::Range, sync::Arc, time::Duration};

use onefold_cluster::{
    Dedup, Format, Mode, Progress, Session, Settings, Volume, Watermarks, Worker, create,
};
use onefold_core::{
    BLOCK_BYTES, Result,
    object::{Change, Guard, ObjectName, ObjectStore, PoolKind, Read, ReadPart, Write},
};
use onefold_testbed::rng::{SplitMix, mix};
use parking_lot::Mutex;

use super::{store::ClockedObjects, world::World};

/// Nanoseconds of a second.
pub(in super::super) const SECOND: u64 = 1_000_000_000;

/// Bytes of an object.
const OBJECT: u64 = 4 << 20;

/// How long a worker waits when it may not do anything, and how often it looks at the load.
const IDLE: u64 = SECOND / 5;
const LOOK: u64 = SECOND;

/// How often a server says what its load is.
const PUBLISH: u64 = SECOND / 2;

/// Objects that are made at a time, to compare: entries of a worker's flip.
const BATCH: u64 = 64;

const CHUNK: u64 = 32 << 10;

/// Nodes on which workers run.
const WORKER_NODES: usize = 4;

/// The system that stores the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum System {
    /// Objects, without deduplication.
    Original,
    /// Volumes; what is written stays in the metadata pool until a worker comes.
    Ours,
    /// Volumes whose writes are deduplicated at once.
    FlushThrough,
}

/// The requests of lanes.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Access {
    pub(in super::super) writes: bool,
    pub(in super::super) random: bool,
    pub(in super::super) bytes: u64,
}

/// Workers and what they may do.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Background {
    pub(in super::super) workers: usize,
    pub(in super::super) marks: Watermarks,
    /// How long they pause when operations get slow; nothing for never.
    pub(in super::super) pause: Duration,
    /// Bytes that wait for deduplication when the run begins.
    pub(in super::super) backlog: u64,
    /// They are a sixteenth of each of their objects.
    pub(in super::super) spread: bool,
    /// Workers begin one after the other, all of them within so many nanoseconds.
    pub(in super::super) begin: u64,
}

/// A run.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Plan {
    pub(in super::super) system: System,
    pub(in super::super) access: Access,
    pub(in super::super) clients: usize,
    /// Requests on their way of each client.
    pub(in super::super) lanes: usize,
    /// Bytes that each lane goes over.
    pub(in super::super) span: u64,
    /// All of it is deduplicated when the run begins.
    pub(in super::super) settled: bool,
    pub(in super::super) background: Option<Background>,
    /// Begin and end of the measured time, in nanoseconds.
    pub(in super::super) from: u64,
    pub(in super::super) to: u64,
}

/// The measurements.
#[derive(Clone, Copy, Debug, Default)]
pub(in super::super) struct Told {
    pub(in super::super) requests: u64,
    pub(in super::super) bytes: u64,
    /// Of all requests together.
    pub(in super::super) nanoseconds: u64,
    /// Operations of workers, as the rate counts them, and chunks that they deduplicated.
    pub(in super::super) operations: f64,
    pub(in super::super) chunks: f64,
    /// Length of the measured time, in nanoseconds.
    pub(in super::super) window: u64,
}

impl Told {
    /// Million bytes a second.
    pub(in super::super) fn mb_s(&self) -> f64 {
        self.bytes as f64 * 1000.0 / self.window.max(1) as f64
    }

    /// Milliseconds of a request.
    pub(in super::super) fn latency(&self) -> f64 {
        self.nanoseconds as f64 / self.requests.max(1) as f64 / 1e6
    }

    /// A step's share in the window: a step takes many chunks, and may begin before the window or
    /// end after it.
    fn note_step(&mut self, step: Range<u64>, window: Range<u64>, progress: &Progress) {
        let within = step.end.min(window.end).saturating_sub(step.start.max(window.start)) as f64;
        let share = within / (step.end - step.start).max(1) as f64;
        self.operations += progress.operations as f64 * share;
        self.chunks += progress.flipped as f64 * share;
    }

    pub(in super::super) fn note(&mut self, begun: u64, now: u64, bytes: u64) {
        self.requests += 1;
        self.bytes += bytes;
        self.nanoseconds += now - begun;
    }
}

/// Bytes that nobody else has.
pub(in super::super) fn noise(seed: u64, bytes: u64) -> Vec<u8> {
    let mut rng = SplitMix::new(mix(seed));
    let mut noise = vec![0; bytes as usize];
    noise.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&rng.next().to_le_bytes()));
    noise
}

/// Where a lane goes.
struct Path {
    access: Access,
    span: u64,
    rng: SplitMix,
    at: u64,
}

impl Path {
    fn next(&mut self) -> u64 {
        let places = self.span / self.access.bytes;
        self.at = if self.access.random { self.rng.below(places) } else { (self.at + 1) % places };
        self.at * self.access.bytes
    }
}

/// A lane's way to its data.
pub(in super::super) enum Target {
    Objects(Arc<ClockedObjects>, usize),
    Volume(Arc<ClockedObjects>, Arc<Session>, Box<Volume>),
}

impl Target {
    pub(in super::super) fn store(&self) -> &Arc<ClockedObjects> {
        match self {
            Target::Objects(store, _) | Target::Volume(store, ..) => store,
        }
    }

    pub(in super::super) fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        match self {
            Target::Objects(store, lane) => {
                let op = Write {
                    object: ObjectName::metadata(format!("plain.{lane}.{}", offset / OBJECT)),
                    guards: Vec::new(),
                    changes: vec![Change::Write(offset % OBJECT, data.to_vec())],
                };
                store.write(&[op]).remove(0).map(|_| ()).map_err(refused)
            }
            Target::Volume(_, _, volume) => volume.write_at(offset, data),
        }
    }

    pub(in super::super) fn read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        match self {
            Target::Objects(store, lane) => {
                let object = ObjectName::metadata(format!("plain.{lane}.{}", offset / OBJECT));
                let op = Read {
                    object,
                    parts: vec![ReadPart::Data(offset % OBJECT, into.len() as u64)],
                };
                let answer = store.read(&[op]).remove(0).map_err(refused)?;
                into.copy_from_slice(answer.data(0));
                Ok(())
            }
            Target::Volume(_, _, volume) => volume.read_at(offset, into),
        }
    }

    /// Does what a server does each second: publishes its load.
    pub(in super::super) fn tend(&self) -> Result<()> {
        if let Target::Volume(_, session, _) = self {
            session.publish(false).map_err(refused)?;
        }
        Ok(())
    }
}

fn refused(refusal: onefold_core::object::Refusal) -> onefold_core::Error {
    onefold_core::Error::new(onefold_core::Kind::Io, format!("the model's store: {refusal}"))
}

/// A store on the model's cluster.
pub(in super::super) struct Site {
    pub(in super::super) world: Arc<World>,
    system: System,
    clients: usize,
}

impl Site {
    pub(in super::super) fn new(system: System, chunks: PoolKind, clients: usize) -> Result<Site> {
        let world = World::new(chunks, clients + WORKER_NODES);
        create(
            &*ClockedObjects::new(&world, 0),
            &Format { compress: false, ..Format::new([1; 16], [2; 32], chunks) },
        )?;
        Ok(Site { world, system, clients })
    }

    /// Lane number `lane`, filled with `data`, in the hands of an actor on a client node.
    pub(in super::super) fn lane(
        &self,
        lane: usize,
        client: usize,
        span: u64,
        data: impl Fn(u64) -> Vec<u8>,
    ) -> Result<Target> {
        let store = ClockedObjects::new(&self.world, client);
        let target = if self.system == System::Original {
            Target::Objects(store, lane)
        } else {
            let dedup = if self.system == System::FlushThrough {
                Dedup::FlushThrough
            } else {
                Dedup::PostProcessing
            };
            let session = Arc::new(Session::open(
                store.clone(),
                Settings { dedup, hit_count: 0, ..Settings::default() },
            )?);
            let name = format!("lane{lane}");
            session.create_volume(&name, span.next_multiple_of(OBJECT))?;
            let volume = Box::new(Volume::attach(&session, &name, Mode::Own)?);
            Target::Volume(store, session, volume)
        };
        for at in (0..span).step_by(OBJECT as usize) {
            let mut bytes = data(at);
            bytes.truncate((span - at) as usize);
            target.write(at, &bytes)?;
        }
        Ok(target)
    }

    /// Deduplicates all there is, in no time.
    pub(in super::super) fn settle(&self) -> Result<Arc<Session>> {
        let store = ClockedObjects::new(&self.world, 0);
        let session = Arc::new(Session::open(
            store,
            Settings { cold: Duration::ZERO, ..Settings::default() },
        )?);
        let mut worker = Worker::new(session.clone(), Watermarks::NONE);
        while self.system != System::Original && !(worker.step()?.round && session.backlog()? == 0)
        {
        }
        worker.release();
        Ok(session)
    }

    /// Starts workers; what they do from `from` on is told.
    pub(in super::super) fn work(
        &self,
        background: &Background,
        from: u64,
        to: u64,
        told: &Arc<Mutex<Told>>,
    ) -> Result<()> {
        for n in 0..background.workers {
            let store = ClockedObjects::new(&self.world, self.clients + n % WORKER_NODES);
            let settings = Settings { pause: background.pause, ..Settings::default() };
            let session = Arc::new(Session::open(store.clone(), settings)?);
            let worker = Worker::new(session, background.marks);
            let (told, its) = (told.clone(), store.clone());
            let begin = background.begin * n as u64 / background.workers as u64;
            store.start(move || {
                its.sleep(begin);
                labour(worker, &its, (from, to), &told)
            });
        }
        Ok(())
    }
}

/// The life of a worker, as in the product.
fn labour(
    mut worker: Worker,
    store: &ClockedObjects,
    (from, to): (u64, u64),
    told: &Mutex<Told>,
) -> Result<()> {
    let (mut looked, mut allowed) = (None::<u64>, u64::MAX);
    loop {
        let begun = store.world.now();
        if begun >= to {
            return Ok(());
        }
        if looked.is_none_or(|looked| begun >= looked + LOOK) {
            looked = Some(begun);
            worker.session().publish(true).map_err(refused)?;
            allowed = worker.allowance(store.time())?;
        }
        if allowed == 0 {
            store.sleep(IDLE);
            continue;
        }
        let progress = worker.step()?;
        told.lock().note_step(begun..store.world.now(), from..to, &progress);
        allowed =
            if allowed == u64::MAX { allowed } else { allowed.saturating_sub(progress.operations) };
        if progress.waits || progress.round && progress.flipped == 0 {
            store.sleep(IDLE);
        }
    }
}

/// Runs a plan on a new cluster.
///
/// # Errors
/// The engine's.
pub(in super::super) fn run(plan: &Plan) -> Result<Told> {
    let site = Site::new(plan.system, PoolKind::Replicated, plan.clients)?;
    let told = Arc::new(Mutex::new(Told { window: plan.to - plan.from, ..Told::default() }));
    let mut lanes = Vec::new();
    for lane in 0..plan.clients * plan.lanes {
        lanes.push(site.lane(lane, lane % plan.clients, plan.span, |at| {
            noise((lane as u64) << 40 | at, OBJECT)
        })?);
    }
    if plan.settled {
        site.settle()?;
    }
    if let Some(background) = &plan.background {
        let number = lanes.len();
        // Nobody reads or writes it during the run.
        let (span, bytes) = if background.spread {
            (background.backlog * 16, OBJECT / 16)
        } else {
            (background.backlog, OBJECT)
        };
        site.lane(number, 0, span, |at| noise(1 << 60 | at, bytes))?;
    }
    // All is cold by now.
    site.world.skip(Duration::from_secs(60));
    let (zero, from, to) = (site.world.now(), plan.from, plan.to);
    for (n, target) in lanes.into_iter().enumerate() {
        let (access, span, told) = (plan.access, plan.span, told.clone());
        target.store().clone().start(move || {
            let mut path = Path { access, span, rng: SplitMix::new(n as u64), at: n as u64 * 7 };
            let mut buffer = noise(n as u64, access.bytes);
            let mut published = u64::MAX;
            loop {
                let begun = target.store().world.now() - zero;
                if begun >= to {
                    return Ok(());
                }
                if begun / PUBLISH != published {
                    published = begun / PUBLISH;
                    target.tend()?;
                    continue;
                }
                let at = path.next();
                if access.writes {
                    let number = |block: usize| {
                        mix(begun ^ (n as u64) << 48 ^ (block as u64) << 40).to_le_bytes()
                    };
                    buffer
                        .chunks_mut(BLOCK_BYTES)
                        .enumerate()
                        .for_each(|(block, bytes)| bytes[..8].copy_from_slice(&number(block)));
                    target.write(at, &buffer)?;
                } else {
                    target.read(at, &mut buffer)?;
                }
                let now = target.store().world.now() - zero;
                if begun >= from && now <= to {
                    told.lock().note(begun, now, access.bytes);
                }
            }
        });
    }
    if let Some(background) = &plan.background {
        site.work(background, zero + from, zero + to, &told)?;
    }
    site.world.run()?;
    let told = *told.lock();
    Ok(told)
}

/// Chunks that so many workers, or so many clients that make objects of 32 KiB, 64 at a time, make
/// in a second when there is no other load.
///
/// # Errors
/// The engine's.
pub(in super::super) fn idle(workers: usize, backlog: u64, window: u64) -> Result<(f64, f64)> {
    let marks = Watermarks::default();
    let background = Background {
        workers,
        marks,
        pause: Duration::from_secs(1),
        backlog,
        spread: false,
        begin: 0,
    };
    let access = Access { writes: true, random: false, bytes: OBJECT };
    let plan = Plan {
        system: System::Ours,
        access,
        clients: 1,
        lanes: 0,
        span: 0,
        settled: false,
        background: Some(background),
        from: 0,
        to: window,
    };
    let drained = run(&plan)?;
    let site = Site::new(System::Original, PoolKind::Replicated, 1)?;
    let made = Arc::new(Mutex::new(Told::default()));
    for n in 0..workers {
        let (store, made) = (ClockedObjects::new(&site.world, 1 + n % WORKER_NODES), made.clone());
        store.clone().start(move || {
            let content = noise(n as u64, CHUNK);
            let mut next = 0;
            loop {
                let begun = store.world.now();
                if begun >= window {
                    return Ok(());
                }
                let create = |at: u64| Write {
                    object: ObjectName::chunk(format!("made.{n}.{at}")),
                    guards: vec![Guard::Absent],
                    changes: vec![Change::Full(content.clone())],
                };
                let batch: Vec<Write> = (next..next + BATCH).map(create).collect();
                store
                    .write(&batch)
                    .into_iter()
                    .try_for_each(|result| result.map(|_| ()).map_err(refused))?;
                made.lock().note_step(
                    begun..store.world.now(),
                    0..window,
                    &Progress { flipped: BATCH, ..Progress::default() },
                );
                next += BATCH;
            }
        });
    }
    site.world.run()?;
    let a_second = |told: &Told| told.chunks * SECOND as f64 / window as f64;
    let made = *made.lock();
    Ok((a_second(&drained), a_second(&made)))
}
