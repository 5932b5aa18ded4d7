//! Clients and workers of the cluster engine, interleaved over a simulated object store.
//!
//! A seed gives the parameters, what clients do, which operation is applied next, which replies are
//! lost or late, who is killed, stopped and continued. After every operation that is applied,
//! [`check`] looks whether a map names a chunk without a reference; once all have calmed down,
//! everything is compared with the [`model`].
//!
//! *Invariant:* nobody runs but who has the baton; nothing depends on the wall clock, on the order
//! of a hash map, or on chance from outside.

mod actors;
mod check;
pub mod cli;
mod decay;
mod double;
mod model;
mod naming;
pub mod params;
mod renamer;
mod steward;
mod store;
mod told;
mod world;

use std::sync::Arc;

use onefold_cluster::{Mode, PlantedBug, Scrub, Session, Volume, Watermarks, Worker};
use onefold_core::{Error, object::ObjectName};
use onefold_testbed::Reach;

pub use model::Finding;
pub use params::Params;

use self::{
    model::SECTOR,
    store::SimStore,
    world::{Role, World},
};

/// How one seed ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The parameters of the run.
    pub params: Params,
    /// The first finding.
    pub finding: Option<Finding>,
    /// The hash of all operations that were applied.
    pub trace: u64,
    /// Branches and faults that were met.
    pub reach: Reach,
}

/// Steps of a worker in which all must be clean.
const ROUNDS: u32 = 400;

/// Seconds for which workers are idle until all must be found that sessions left behind.
const IDLE: usize = 45;

/// Runs a seed; `loud` prints what happens.
#[must_use]
pub fn run_seed(seed: u64, bug: Option<usize>, loud: bool) -> Outcome {
    let params = Params { bug, ..Params::draw(seed) };
    let world = World::new(&params, loud);
    world.start((Role::Keeper, 0), false, |world, store, _| set_up(world, store));
    world.run(100_000, |_, _| {});
    {
        let mut inner = world.inner();
        inner.calm = false;
        inner.say(|| "set up".into());
    }
    for volume in 0..params.volumes {
        (0..params.clients).for_each(|_| start(&world, (Role::Client, volume)));
    }
    (0..params.workers).for_each(|n| start(&world, (Role::Worker, n)));
    if params.puts {
        (0..=usize::from(params.mixed)).for_each(|n| start(&world, (Role::Putter, n)));
    }
    if params.steward {
        start(&world, (Role::Steward, params.volumes - 1));
    }
    if params.scrubs {
        start(&world, (Role::Scrubber, 0));
    }
    if params.renames {
        (0..2).for_each(|n| start(&world, (Role::Renamer, n)));
    }
    world.run(params.events, start);
    world.calm_down();
    world.run(200_000, |_, _| {});
    if world.inner().finding.is_none() {
        world.inner().say(|| "calm".into());
        world.start((Role::Keeper, 1), false, |world, store, _| clean_up(world, store));
        world.run(400_000, |_, _| {});
        let mut inner = world.inner();
        if inner.finding.is_none() && !inner.all_ended() {
            inner.fail(Finding::new("Progress", "cleaning up does not end"));
        }
    }
    world.end();
    let trace = world.trace();
    let inner = world.inner();
    let mut reach = inner.reach.clone();
    if params.is_orderly() {
        reach.add("orderly: references made by workers", inner.double.all);
        reach.add("orderly: made by two workers", inner.double.twice);
    }
    inner.roles().into_iter().for_each(|(role, count)| {
        reach.add(
            match role {
                Role::Keeper => "keepers",
                Role::Client => "clients",
                Role::Worker => "workers",
                Role::Putter => "putters",
                Role::Scrubber => "scrubbers",
                Role::Steward => "stewards",
                Role::Renamer => "renamers",
            },
            count as u64,
        );
    });
    Outcome { params, finding: inner.finding.clone(), trace, reach }
}

/// Names of the bugs that can be planted.
#[must_use]
pub fn bugs() -> Vec<&'static str> {
    PlantedBug::ALL.iter().map(|bug| bug.name()).collect()
}

fn start(world: &Arc<World>, role: (Role, usize)) {
    let life: fn(&Arc<World>, SimStore, usize) = match role {
        (Role::Client, 0) => |world, store, actor| actors::client(world, store, actor, 0),
        (Role::Client, 1) => |world, store, actor| actors::client(world, store, actor, 1),
        (Role::Client, _) => |world, store, actor| actors::client(world, store, actor, 2),
        (Role::Steward, 1) => |world, store, actor| steward::steward(world, store, actor, 1),
        (Role::Steward, _) => |world, store, actor| steward::steward(world, store, actor, 2),
        (Role::Putter, _) => actors::putter,
        (Role::Scrubber, _) => actors::scrubber,
        (Role::Renamer, _) => renamer::renamer,
        _ => actors::worker,
    };
    world.start(role, true, life);
}

fn set_up(world: &Arc<World>, store: SimStore) {
    let params = world.inner().params.clone();
    let made = || -> Result<(), Error> {
        onefold_cluster::create(&store, &params.format())?;
        let session = Session::open(Arc::new(store), params.settings())?;
        (0..params.volumes)
            .try_for_each(|n| session.create_volume(&format!("v{n}"), params.volume_bytes))
    };
    if let Err(error) = made() {
        world.inner().fail(Finding::new("Unexplained", format!("setting up: {error:?}")));
    }
}

/// Takes over, finishes all work, and compares everything.
fn clean_up(world: &Arc<World>, store: SimStore) {
    // Locks of killed sessions have run out by then.
    world.inner().now += std::time::Duration::from_secs(120);
    if let Err(error) = finish(world, store) {
        let checker =
            if error.kind() == onefold_core::Kind::Corrupt { "Damage" } else { "Unexplained" };
        world.inner().fail(Finding::new(checker, format!("cleaning up: {error:?}")));
    }
}

fn finish(world: &Arc<World>, store: SimStore) -> Result<(), Error> {
    let params = world.inner().params.clone();
    let actor = world.inner().actor_of(&store.identity_text());
    let session = Arc::new(Session::open(Arc::new(store), params.settings())?);
    let mut worker = Worker::new(session.clone(), Watermarks::NONE);
    if params.late_last {
        // Nobody was shut out, and all is clean: what comes now finds the values that it was made
        // for, if they ever come back.
        work(world, &session, &mut worker)?;
        world.come_late(50);
    }
    let mut volumes = Vec::new();
    for n in 0..params.volumes {
        let mut name = format!("v{n}");
        if params.renames {
            let Some(newest) = renamer::newest(&session, n)? else {
                world.inner().fail(Finding::new("OneName", format!("volume {n} has no name")));
                continue;
            };
            name = newest;
        }
        if params.steward && n + 1 == params.volumes && session.find(&name)?.is_none() {
            continue;
        }
        let volume = Volume::attach(&session, &name, Mode::TakeOver)?;
        world.inner().model.attach(n, actor, volume.id());
        compare(world, &volume, actor, n)?;
        while volume.discard_step()? {}
        compare(world, &volume, actor, n)?;
        volumes.push(volume);
    }
    work(world, &session, &mut worker)?;
    world.come_late(100);
    if params.set_back {
        decay::of_a_clock(world, &volumes, actor)?;
        work(world, &session, &mut worker)?;
    }
    for (n, volume) in volumes.iter().enumerate() {
        compare(world, volume, actor, n)?;
    }
    // Without a scrub, workers find what sessions left behind that were killed.
    for _ in 0..IDLE {
        worker.step()?;
        world.inner().now += std::time::Duration::from_secs(1);
    }
    let left = {
        let inner = world.inner();
        let unnoted =
            inner.sent_notes.iter().filter(|reference| !inner.noted.contains_key(reference));
        let unnoted = unnoted.chain(&inner.slow_left).copied().collect();
        check::left_behind(&inner.objects, &inner.made_late, &unnoted)
    };
    if let Some(finding) = left {
        world.inner().fail(finding);
    }
    scrub(world, &session, false)?;
    work(world, &session, &mut worker)?;
    scrub(world, &session, false)?;
    work(world, &session, &mut worker)?;
    scrub(world, &session, true)?;
    let mut evicted = 0;
    for (n, volume) in volumes.iter().enumerate() {
        while evicted < 1000 && volume.evict_step()? {
            evicted += 1;
        }
        compare(world, volume, actor, n)?;
    }
    for name in &renamer::OBJECTS[..if params.renames { 3 } else { 2 }] {
        actors::check_put(world, &session, name)?;
    }
    if params.renames {
        renamer::list(world, &session)?;
    }
    let quiet = check::quiet(&world.inner().objects);
    if let Err(finding) = quiet {
        world.inner().fail(finding);
    }
    if params.decay {
        decay::of_a_chunk(world, &session, &volumes, actor)?;
    }
    volumes.into_iter().try_for_each(Volume::detach)?;
    if params.loss {
        lose_object(world, &session, &params)?;
    }
    Ok(())
}

/// Deduplicates and deletes until nothing is left.
fn work(world: &Arc<World>, session: &Session, worker: &mut Worker) -> Result<(), Error> {
    for round in 0.. {
        if round == ROUNDS {
            world.inner().fail(Finding::new("Progress", "the dirty list does not get empty"));
            break;
        }
        let deleted = session.delete_step()?;
        worker.step()?;
        // Nothing is too hot for ever.
        world.inner().now += std::time::Duration::from_secs(1);
        if !deleted && session.backlog()? == 0 {
            break;
        }
    }
    Ok(())
}

fn scrub(world: &Arc<World>, session: &Arc<Session>, quiet: bool) -> Result<(), Error> {
    let mut scrub = Scrub::new(session.clone(), true)?;
    while scrub.step()? {}
    let report = scrub.report();
    // A tidy run leaves a scrub only things to remove: references of a failed flip whose entry was
    // overwritten before another worker came, and headers that a lock made anew.
    let tidy = world.inner().params.tidy && report.added + report.restored + report.listed > 0;
    if !report.damage.is_empty() || tidy || quiet && !report.is_quiet() {
        world.inner().fail(Finding::new("ScrubQuiet", format!("{report:?}")));
    }
    Ok(())
}

/// Reads a volume and compares it with what it may hold.
fn compare(world: &Arc<World>, volume: &Volume, actor: usize, n: usize) -> Result<(), Error> {
    let mut bytes = vec![0xaa; volume.bytes() as usize];
    let piece = 16 * SECTOR;
    for (at, part) in bytes.chunks_mut(piece).enumerate() {
        volume.read_at((at * piece) as u64, part)?;
    }
    let mut inner = world.inner();
    if let Some(finding) = inner.model.check(n, actor, 0, &bytes) {
        inner.fail(finding);
    }
    Ok(())
}

/// An object that is lost is damage, and never zeroes.
fn lose_object(world: &Arc<World>, session: &Arc<Session>, params: &Params) -> Result<(), Error> {
    let name = if params.renames { renamer::newest(session, 0)? } else { None };
    let name = name.unwrap_or_else(|| "v0".into());
    let id = session.find(&name)?.map_or(0, |named| named.id);
    let there = |inner: &world::Inner| -> Option<(u64, ObjectName)> {
        let names = inner.objects.all().map(|(name, _)| name);
        let ids = names.filter_map(|name| {
            Some((onefold_cluster::format::ObjectId::parse(&name.name)?, name.clone()))
        });
        ids.filter(|(object, _)| object.volume == id)
            .map(|(object, name)| (object.index, name))
            .next()
    };
    let Some((index, object)) = there(&world.inner()) else { return Ok(()) };
    world.inner().objects.lose(&object);
    world.inner().reach.hit("a metadata object is lost");
    let volume = Volume::attach(session, &name, Mode::Own)?;
    let mut bytes = vec![0; SECTOR];
    let read = volume.read_at(index * u64::from(params.object_bytes), &mut bytes);
    if !matches!(&read, Err(error) if error.kind() == onefold_core::Kind::Corrupt) {
        world.inner().fail(Finding::new(
            "MissingObject",
            format!("object {index} is lost, and reading it gives {read:?}"),
        ));
    }
    Ok(())
}
