//! Once all have calmed down: everything gets clean, and is compared.

use std::sync::Arc;

use onefold_cluster::{Mode, Report, Scrub, Session, Volume, Watermarks, Worker};
use onefold_core::{Error, object::ObjectName};

use super::decay;
use crate::{
    checker::{Checker, Failure},
    cluster::{
        actors::{self, receiver, renamer, snapper},
        checks,
        model::SECTOR,
        params::Params,
        sealed,
        store::SimStore,
        world::{self, World},
    },
};

/// Steps of a worker in which the dirty list must get shorter.
const ROUNDS: u32 = 400;

/// Seconds for which workers are idle until all must be found that sessions left behind.
const IDLE: usize = 45;

/// Takes over, finishes all work, and compares everything.
pub(crate) fn clean_up(world: &Arc<World>, store: SimStore) {
    // Locks of killed sessions have run out by then.
    world.inner().now += std::time::Duration::from_secs(120);
    if let Err(error) = finish(world, store) {
        let checker = if error.kind() == onefold_core::Kind::Corrupt {
            Checker::Damage
        } else {
            Checker::Unexplained
        };
        world.inner().fail(Failure::new(checker, format!("cleaning up: {error:?}")));
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
                world
                    .inner()
                    .fail(Failure::new(Checker::OneName, format!("volume {n} has no name")));
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
    if params.receives {
        receiver::give_up(world, &session)?;
    }
    if params.snapshots {
        snapper::check_all(world, &session)?;
        clone(world, &session, actor, &mut volumes)?;
    }
    work(world, &session, &mut worker)?;
    if params.snapshots {
        snapper::check_all(world, &session)?;
    }
    world.come_late(100);
    let may_delete = world.inner().may_delete;
    if may_delete
        && let Some(last) = volumes.pop_if(|volume| is_nameless(&world.inner(), volume.name()))
    {
        world.inner().reach.hit("a late copy deletes a volume that is in use");
        drop(last);
        work(world, &session, &mut worker)?;
    }
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
        checks::left_behind(&inner.objects, &inner.made_late, &unnoted)
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
    sealed::tampered(world, &volumes, actor)?;
    work(world, &session, &mut worker)?;
    if params.snapshots {
        snapper::check_all(world, &session)?;
    }
    let quiet = checks::quiet(&world.inner().objects);
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

/// Attaches the clone, if there is one, as the last volume.
fn clone(
    world: &Arc<World>,
    session: &Arc<Session>,
    actor: usize,
    volumes: &mut Vec<Volume>,
) -> Result<(), Error> {
    let n = world.inner().params.volumes;
    let [name, _] = renamer::names_of(n);
    if session.find(&name)?.is_some() {
        let volume = Volume::attach(session, &name, Mode::TakeOver)?;
        world.inner().model.attach(n, actor, volume.id());
        compare(world, &volume, actor, n)?;
        volumes.push(volume);
    }
    Ok(())
}

/// Deduplicates and deletes until nothing is left.
fn work(world: &Arc<World>, session: &Session, worker: &mut Worker) -> Result<(), Error> {
    let (mut rounds, mut least) = (0, u64::MAX);
    loop {
        if rounds == ROUNDS {
            world
                .inner()
                .fail(Failure::new(Checker::Progress, "the dirty list does not get empty"));
            break;
        }
        rounds += 1;
        let deleted = session.delete_step()?;
        worker.step()?;
        // Nothing is too hot for ever.
        world.inner().now += std::time::Duration::from_secs(1);
        if deleted {
            continue;
        }
        match session.backlog()? {
            0 => break,
            // A list of any length gets empty, a page at a time.
            left if left < least => (rounds, least) = (0, left),
            _ => (),
        }
    }
    Ok(())
}

fn scrub(world: &Arc<World>, session: &Arc<Session>, quiet: bool) -> Result<(), Error> {
    let mut scrub = Scrub::new(session.clone(), true)?;
    let portions = world.inner().params.in_portions();
    let mut before = Vec::new();
    while scrub.step()? {
        if portions && let Some(place) = scrub.place() {
            // Another process goes on.
            before.push(scrub.report().clone());
            scrub = Scrub::new(session.clone(), true)?.from(place);
            world.inner().reach.hit("a scrub goes on elsewhere");
        }
    }
    before.iter().for_each(|report| told(world, report, quiet));
    told(world, scrub.report(), quiet);
    Ok(())
}

/// Looks at what a scrub, or a portion of it, found.
fn told(world: &Arc<World>, report: &Report, quiet: bool) {
    // A tidy run leaves a scrub only things to remove: references of a failed flip whose entry was
    // overwritten before another worker came, and headers that a lock made anew.
    let tidy = world.inner().params.tidy && report.added + report.restored + report.listed > 0;
    if !report.damage.is_empty() || tidy || quiet && !report.is_quiet() {
        world.inner().fail(Failure::new(Checker::ScrubQuiet, format!("{report:?}")));
    }
}

/// True when nothing has this name.
fn is_nameless(inner: &world::Inner, name: &str) -> bool {
    let key = [b"n", name.as_bytes()].concat();
    let shards = inner.objects.all().filter(|(shard, _)| shard.name.starts_with("n."));
    shards.into_iter().all(|(_, shard)| !shard.omap.contains_key(&key))
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
    world.inner().lose_stored(&object);
    world.inner().reach.hit("a metadata object is lost");
    let volume = Volume::attach(session, &name, Mode::Own)?;
    let mut bytes = vec![0; SECTOR];
    let read = volume.read_at(index * u64::from(params.object_bytes), &mut bytes);
    if !matches!(&read, Err(error) if error.kind() == onefold_core::Kind::Corrupt) {
        world.inner().fail(Failure::new(
            Checker::MissingObject,
            format!("object {index} is lost, and reading it gives {read:?}"),
        ));
    }
    Ok(())
}
