//! The lives of actors.

pub(crate) mod gateway;
pub(crate) mod receiver;
pub(crate) mod renamer;
pub(crate) mod snapper;
pub(crate) mod steward;

use std::{ops::RangeInclusive, sync::Arc};

use onefold_cluster::{
    Attached, Dedup, Mode, Scrub, Session, Settings, Volume, Watermarks, What, Worker,
};
use onefold_core::{Error, Kind};

use super::{
    checks::{
        self,
        naming::{Asked, End},
    },
    model::{SECTOR, content},
    store::SimStore,
    world::World,
};
use crate::checker::{Checker, Failure};

/// Names that are put.
const NAMES: u64 = 2;

/// Calls of an actor, but for clients, before it begins anew with another session.
pub(crate) const CALLS: u64 = 60;

/// An error that needs no explanation: who gets it gives up, or tries again.
pub(crate) fn note(world: &Arc<World>, who: &str, error: &Error) {
    let mut inner = world.inner();
    inner.say(|| format!("{who}: {error:?}"));
    let explained = match error.kind() {
        Kind::Io | Kind::Stopped => !inner.params.tidy || inner.calm,
        Kind::Busy | Kind::NotFound => true,
        Kind::NoSpace => inner.params.full > 0,
        _ => false,
    };
    if !explained {
        inner.fail(Failure::new(Checker::Unexplained, format!("{who}: {error:?}")));
    }
}

pub(crate) fn open(world: &Arc<World>, store: SimStore) -> Option<Arc<Session>> {
    open_with(world, store, Dedup::PostProcessing)
}

fn open_with(world: &Arc<World>, store: SimStore, dedup: Dedup) -> Option<Arc<Session>> {
    let settings = Settings { dedup, ..world.inner().params.settings() };
    match Session::open(Arc::new(store), settings) {
        Ok(session) => Some(Arc::new(session)),
        Err(error) => {
            note(world, "open", &error);
            None
        }
    }
}

pub(crate) fn chance(world: &Arc<World>, percent: u64) -> bool {
    world.inner().rng.percent(percent)
}

/// When a client's writes are deduplicated.
fn draw_dedup(world: &Arc<World>) -> Dedup {
    let mut inner = world.inner();
    let (share, draw) = (inner.params.own_dedup, inner.rng.below(100));
    match draw {
        // Volumes that are cut by their content are not for it.
        _ if draw < share && !inner.params.content => {
            inner.reach.hit("a client deduplicates inline");
            Dedup::Inline
        }
        _ if (share..2 * share).contains(&draw) => {
            inner.reach.hit("a client flushes through");
            Dedup::FlushThrough
        }
        _ => Dedup::PostProcessing,
    }
}

/// Writes, reads and trims a volume.
pub(crate) fn client(world: &Arc<World>, store: SimStore, actor: usize, at: usize) {
    let dedup = draw_dedup(world);
    let Some(session) = open_with(world, store, dedup) else { return };
    // Who takes snapshots one after the other needs the volume for some time.
    if world.inner().params.stacks {
        snapper::wait(world, &session, 200);
    }
    let mode = if chance(world, 40) { Mode::TakeOver } else { Mode::Own };
    let volume = match attach(world, &session, at, mode) {
        Ok(volume) => volume,
        Err(error) => return note(world, "attach", &error),
    };
    {
        let mut inner = world.inner();
        // An actor that was stopped on the last step of attaching, and is continued when another
        // one has the volume, does not own it.
        if inner.objects.is_fenced(&session.store().identity()) {
            return;
        }
        if !inner.model.attach(at, actor, volume.id()) {
            return;
        }
        inner.say(|| format!("{} owns volume {at}", session.store().identity()));
        inner.reach.hit("a volume is attached");
    }
    let volume = Attached::new(session.clone(), volume);
    let calls = world.inner().params.calls;
    for _ in 0..calls {
        if world.inner().stopping {
            break;
        }
        if let Err(error) = call(world, &session, &volume, actor, at, ALL) {
            let stopped = error.kind() == Kind::Stopped;
            note(world, "client", &error);
            if stopped {
                return;
            }
        }
        if world.inner().params.live && !volume.is_open() {
            return;
        }
    }
    if chance(world, 50)
        && let Err(error) = volume.detach()
    {
        note(world, "detach", &error);
    }
}

/// Attaches a volume under the name that it has.
pub(crate) fn attach(
    world: &Arc<World>,
    session: &Arc<Session>,
    at: usize,
    mode: Mode,
) -> Result<Volume, Error> {
    let [name, renamed] = renamer::names_of(at);
    let attach = |name: &str| -> Result<Volume, Error> {
        let then = world.inner().naming.now();
        let volume = Volume::attach(session, name, mode)?;
        let mut inner = world.inner();
        let stood = inner.naming.since(name, then).contains(&Some((volume.id(), true)));
        if inner.params.renames && !stood {
            let message = format!("{} is attached as {name:?}, which it never was", volume.id());
            inner.fail(Failure::new(Checker::OneName, message));
        }
        Ok(volume)
    };
    match attach(&name) {
        Err(error) if error.kind() == Kind::NotFound && world.inner().params.renames => {
            attach(&renamed)
        }
        attached => attached,
    }
}

/// Calls of a client in percent: all, and those that a client of a server asks for.
const ALL: u64 = 100;
const ASKED_FOR: u64 = 80;

/// One of the first `of` percent of calls.
fn call(
    world: &Arc<World>,
    session: &Arc<Session>,
    attached: &Attached,
    actor: usize,
    at: usize,
    of: u64,
) -> Result<(), Error> {
    let bytes = attached.with(|volume| Ok(volume.bytes()))?;
    let (what, sectors, chunk) = {
        let mut inner = world.inner();
        let params = &inner.params;
        let (sectors, chunk) = (bytes as usize / SECTOR, params.chunk_bytes as usize / SECTOR);
        (inner.rng.below(of), sectors, chunk)
    };
    let receives = world.inner().params.receives;
    match what {
        // Somebody waits for snapshots to send.
        85.. if receives => live(world, session, attached, actor, at),
        0..10 => write_together(world, session, attached, (actor, at), sectors, chunk),
        _ => attached
            .with(|volume| call_of(world, session, volume, (actor, at), what, sectors, chunk)),
    }
}

fn call_of(
    world: &Arc<World>,
    session: &Arc<Session>,
    volume: &Volume,
    (actor, at): (usize, usize),
    what: u64,
    sectors: usize,
    chunk: usize,
) -> Result<(), Error> {
    match what {
        10..35 => {
            let (from, tokens) = draw_write(world, sectors, chunk);
            world.inner().model.begin(at, actor, from, &tokens);
            let done = volume.write_at((from * SECTOR) as u64, &content(&tokens));
            acknowledged(world, volume.id(), actor, at, from, &tokens, done, &[])
        }
        35..45 => {
            // Whole blocks: the rest of a range stays as it is.
            let (from, count) = range(world, sectors, 8);
            let tokens = vec![0; count];
            world.inner().model.begin(at, actor, from, &tokens);
            let done = volume.discard((from * SECTOR) as u64, (count * SECTOR) as u64);
            acknowledged(world, volume.id(), actor, at, from, &tokens, done, &[])
        }
        45..80 => {
            let together = world.inner().rng.within(1, 3);
            let ranges: Vec<(usize, usize)> =
                (0..together).map(|_| range(world, sectors, 1)).collect();
            let mut bytes: Vec<Vec<u8>> =
                ranges.iter().map(|(_, count)| vec![0xaa; count * SECTOR]).collect();
            let mut reads: Vec<(u64, &mut [u8])> = ranges
                .iter()
                .zip(&mut bytes)
                .map(|((from, _), bytes)| ((from * SECTOR) as u64, bytes.as_mut_slice()))
                .collect();
            let results = volume.read_together(&mut reads);
            let mut inner = world.inner();
            for (((from, _), bytes), _) in
                ranges.iter().zip(&bytes).zip(&results).filter(|(_, result)| result.is_ok())
            {
                if let Some(finding) = inner.model.check(at, actor, *from, bytes) {
                    inner.fail(finding);
                }
            }
            drop(inner);
            results.into_iter().collect()
        }
        80..88 => volume.discard_step().map(|_| ()),
        88..94 => volume.evict_step().map(|_| ()),
        94..98 => volume.renew(),
        _ => {
            let _ = session.publish(false);
            Ok(())
        }
    }
}

/// Several writes that wait together; those that failed may be there or not.
fn write_together(
    world: &Arc<World>,
    session: &Arc<Session>,
    attached: &Attached,
    (actor, at): (usize, usize),
    sectors: usize,
    chunk: usize,
) -> Result<(), Error> {
    let id = attached.id();
    let count = world.inner().rng.within(2, 4);
    let mut taken = Vec::new();
    let mut waiting = 0;
    for _ in 0..count {
        let (from, tokens) = draw_write(world, sectors, chunk);
        world.inner().model.begin(at, actor, from, &tokens);
        let before = world.inner().requests_of(actor);
        let ticket = attached
            .with(|volume| volume.write_later((from * SECTOR) as u64, &content(&tokens)))?;
        waiting = bytes_that_wait(world, actor, before, waiting, tokens.len() * SECTOR);
        taken.push((ticket, from, tokens));
    }
    let mixed = if world.inner().params.mixed { world.inner().rng.below(4) } else { 3 };
    let seen = (mixed == 0).then(|| {
        let (from, count) = (taken[0].1, taken[0].2.len());
        let mut bytes = vec![0xaa; count * SECTOR];
        let read = attached.with(|volume| volume.read_at((from * SECTOR) as u64, &mut bytes));
        (read, from, bytes)
    });
    let trimmed = (mixed == 1).then(|| {
        let (from, count) = range(world, sectors, 8);
        let tokens = vec![0; count];
        world.inner().model.begin(at, actor, from, &tokens);
        let range = ((from * SECTOR) as u64, (count * SECTOR) as u64);
        (attached.with(|volume| volume.discard(range.0, range.1)), from, tokens)
    });
    let is_live = world.inner().params.live;
    let mut failed = match mixed {
        2 if is_live => live(world, session, attached, actor, at),
        _ => Ok(()),
    };
    let over: Vec<_> = taken
        .into_iter()
        .map(|(ticket, from, tokens)| (onefold_core::Volume::wait(attached, ticket), from, tokens))
        .collect();
    world.inner().reach.hit("writes go out together");
    if let Some((Ok(()), from, bytes)) = seen
        && over.iter().all(|(done, ..)| done.is_ok())
    {
        reads_own_writes(world, actor, at, from, &bytes, &over);
    }
    // The trim comes after all of them; what it failed to do is not theirs.
    let judged = trimmed.as_ref().is_none_or(|(done, ..)| done.is_ok());
    let all: Vec<_> = over.into_iter().chain(trimmed).collect();
    for (n, (done, from, tokens)) in all.iter().enumerate() {
        if done.is_err() {
            world.inner().model.begin(at, actor, *from, tokens);
        } else if !judged {
            world.inner().model.acknowledge(at, actor, *from, tokens);
            continue;
        }
        // A later write to the same object that failed may have left it off the list.
        // So may who deduplicates what is a layer by now.
        let later = all[n + 1..].iter().filter(|(done, ..)| done.is_err());
        let later = later.chain(all[n..].iter().filter(|_| attached.id() != id));
        let later: Vec<_> =
            later.flat_map(|(_, from, tokens)| objects(world, *from, tokens.len())).collect();
        failed =
            acknowledged(world, id, actor, at, *from, tokens, done.clone(), &later).and(failed);
    }
    failed
}

/// Takes a snapshot of the volume that the client uses, or clones it. Nobody owns what the name stands for then, until
/// the client does again; it ends where somebody else was faster.
fn live(
    world: &Arc<World>,
    session: &Arc<Session>,
    attached: &Attached,
    actor: usize,
    at: usize,
) -> Result<(), Error> {
    let id = attached.id();
    let (clones, name, clone) = {
        let mut inner = world.inner();
        let name = format!("v{at}@s{}", inner.rng.below(NAMES));
        (inner.rng.percent(20), name, inner.params.volumes)
    };
    let of = renamer::names_of(at)[0].clone();
    let done = match clones {
        false => attached.snapshot(&name),
        true => attached.clone_volume(&of, &renamer::names_of(clone)[0]),
    };
    {
        let mut inner = world.inner();
        if attached.id() != id && attached.is_open() {
            let is_fenced = inner.objects.is_fenced(&session.store().identity());
            if is_fenced || !inner.model.attach(at, actor, attached.id()) {
                inner.say(|| format!("{} lost volume {at}", session.store().identity()));
            }
        }
        if done.is_ok() {
            inner.reach.hit(match clones {
                false => "a snapshot is taken of a volume in use",
                true => "a volume in use is cloned",
            });
        }
    }
    match done {
        Err(error) if error.kind() == Kind::Exists => Ok(()),
        done => done,
    }
}

/// The bytes that wait after one more write. Where they would be more than may be, those before it
/// must have been sent.
fn bytes_that_wait(
    world: &Arc<World>,
    actor: usize,
    before: u64,
    waiting: usize,
    more: usize,
) -> usize {
    let mut inner = world.inner();
    let most = inner.params.waiting_bytes;
    if waiting == 0 || waiting + more <= most {
        return waiting + more;
    }
    if inner.requests_of(actor) == before {
        let what = format!("{} bytes of writes wait, and {most} may", waiting + more);
        inner.fail(Failure::new(Checker::Bounds, what));
    }
    inner.reach.hit("as many bytes wait as may");
    more
}

/// A read between writes that wait gives the last of them.
fn reads_own_writes(
    world: &Arc<World>,
    actor: usize,
    at: usize,
    from: usize,
    bytes: &[u8],
    over: &[(Result<(), Error>, usize, Vec<u32>)],
) {
    let mut inner = world.inner();
    inner.reach.hit("a read comes between writes that wait");
    for (n, bytes) in bytes.chunks(SECTOR).enumerate() {
        let wrote = over
            .iter()
            .rev()
            .find_map(|(_, first, tokens)| tokens.get((from + n).checked_sub(*first)?));
        if inner.model.volumes[at].owner == Some(actor)
            && wrote.is_some_and(|token| content(&[*token]) != bytes)
        {
            inner.fail(Failure::new(
                Checker::OwnWrites,
                format!("volume {at}, sector {}: not the last write {wrote:?}", from + n),
            ));
        }
    }
}

/// The objects of a volume that a range of sectors touches, by index.
fn objects(world: &Arc<World>, from: usize, count: usize) -> RangeInclusive<u64> {
    let object_bytes = u64::from(world.inner().params.object_bytes);
    let (first, last) = (from * SECTOR, (from + count) * SECTOR - 1);
    first as u64 / object_bytes..=last as u64 / object_bytes
}

/// Checks what an acknowledged write promises. The promise says nothing of the objects `unsaid`: a later
/// write to them failed.
#[expect(clippy::too_many_arguments, reason = "a write, its result, and where it was made")]
fn acknowledged(
    world: &Arc<World>,
    volume: u64,
    actor: usize,
    at: usize,
    from: usize,
    tokens: &[u32],
    done: Result<(), Error>,
    unsaid: &[u64],
) -> Result<(), Error> {
    done?;
    let touched = objects(world, from, tokens.len());
    let mut inner = world.inner();
    if !inner.model.acknowledge(at, actor, from, tokens) {
        inner.reach.hit("a reply comes after the takeover");
        return Ok(());
    }
    if tokens[0] == 0 {
        // A long trim does not look at the objects, and what an earlier write failed to do is not
        // its business.
        return Ok(());
    }
    for index in touched.filter(|index| !unsaid.contains(index)) {
        let id = onefold_cluster::format::ObjectId { volume, index };
        if let Some(finding) = checks::is_listed(&inner.objects, id) {
            inner.fail(finding);
        }
    }
    Ok(())
}

/// A range of sectors, of which both ends are a multiple of `unit`, more often than not.
fn range(world: &Arc<World>, sectors: usize, unit: usize) -> (usize, usize) {
    let mut inner = world.inner();
    let from = inner.rng.below((sectors / unit) as u64) as usize * unit;
    let most = (sectors - from) / unit;
    let most = if inner.rng.percent(60) { most.min(4) } else { most };
    (from, inner.rng.within(1, most as u64) as usize * unit)
}

/// Where a write goes and what it writes: chunks of the palette, or tokens of its own.
fn draw_write(world: &Arc<World>, sectors: usize, chunk: usize) -> (usize, Vec<u32>) {
    let mut inner = world.inner();
    let (duplicates, palette) = (inner.params.duplicates, u64::from(inner.params.palette));
    if inner.rng.percent(duplicates) {
        let from = inner.rng.below((sectors / chunk) as u64) as usize * chunk;
        let chunks = inner.rng.within(1, ((sectors - from) / chunk).min(3) as u64);
        let tokens = (0..chunks).flat_map(|_| {
            let base = 1000 * (1 + inner.rng.below(palette)) as u32;
            (0..chunk as u32).map(move |n| base + n)
        });
        return (from, tokens.collect());
    }
    let from = inner.rng.below(sectors as u64) as usize;
    let most = (sectors - from).min(if inner.rng.percent(70) { 8 } else { 64 });
    let count = inner.rng.within(1, most as u64);
    let token = inner.model.token();
    (from, vec![token; count as usize])
}

/// Deduplicates, and deletes what is to be deleted.
pub(crate) fn worker(world: &Arc<World>, store: SimStore, _actor: usize) {
    let Some(session) = open(world, store) else { return };
    let mut worker = Worker::new(session.clone(), Watermarks::NONE);
    for _ in 0..4 * CALLS {
        if world.inner().stopping {
            return;
        }
        let stacks = world.inner().params.stacks;
        let deletes = chance(world, if stacks { 60 } else { 10 });
        let looks = chance(world, 5);
        let done = if deletes {
            session.delete_step().map(|_| ())
        } else if looks {
            let _ = session.publish(true);
            worker.allowance(session.store().time()).map(|_| ())
        } else {
            worker.step().map(|progress| {
                if progress.waits {
                    world.inner().reach.hit("a worker backs off");
                }
            })
        };
        if let Err(error) = done {
            note(world, "worker", &error);
            if error.kind() == Kind::Stopped {
                return;
            }
        }
    }
    if chance(world, 50) {
        worker.release();
    }
}

/// The bytes that are put with this token: some of them are those of volumes.
pub(crate) fn put_bytes(token: u32, chunk_bytes: u32) -> Vec<u8> {
    let sectors = chunk_bytes / SECTOR as u32;
    let chunks: Vec<u32> =
        (0..token % 4).flat_map(|n| (0..sectors).map(move |s| 1000 * (1 + n % 2) + s)).collect();
    let mut bytes = content(&chunks);
    bytes.extend(content(&vec![token; (token % 23) as usize]));
    bytes.extend(token.to_le_bytes());
    bytes
}

/// Puts, gets and deletes objects.
pub(crate) fn putter(world: &Arc<World>, store: SimStore, actor: usize) {
    let Some(session) = open(world, store) else { return };
    for _ in 0..CALLS {
        if world.inner().stopping {
            return;
        }
        if let Err(error) = put_call(world, &session, actor) {
            note(world, "putter", &error);
            if error.kind() == Kind::Stopped {
                return;
            }
        }
    }
}

fn put_call(world: &Arc<World>, session: &Session, actor: usize) -> Result<(), Error> {
    let (what, name, token, chunk_bytes) = {
        let mut inner = world.inner();
        (
            inner.rng.below(100),
            format!("p{}", inner.rng.below(NAMES)),
            inner.model.token(),
            inner.params.chunk_bytes,
        )
    };
    match what {
        0..50 => {
            world.inner().model.begin_put(&name, actor, token);
            let bytes = put_bytes(token, chunk_bytes);
            let ticket = {
                let mut inner = world.inner();
                inner.naming.puts(actor, token);
                inner.naming.ask(Asked::Delete(name.clone()))
            };
            let done = session.put(&name, &mut &bytes[..]);
            let mut inner = world.inner();
            let end = if done.is_ok() { End::Moot } else { End::Unknown };
            inner.naming.answer(&ticket, end);
            inner.model.end_put(&name, actor, token, done.is_ok());
            done?;
            inner.reach.hit("an object is put");
            if let Some(finding) = checks::put_is_listed(&inner.objects, &name) {
                inner.fail(finding);
            }
            Ok(())
        }
        50..70 => {
            world.inner().model.begin_put(&name, actor, 0);
            let done = renamer::delete(world, session, What::Put, &name);
            let mut inner = world.inner();
            inner.model.end_put(&name, actor, 0, done.is_ok());
            done?;
            inner.reach.hit("an object is deleted");
            Ok(())
        }
        _ => check_put(world, session, &name),
    }
}

/// Gets an object and compares it.
pub(crate) fn check_put(world: &Arc<World>, session: &Session, name: &str) -> Result<(), Error> {
    let mut bytes = Vec::new();
    // The object may be replaced while it is read.
    let (before, then) = {
        let mut inner = world.inner();
        (inner.model.may_be_put(name), inner.naming.now())
    };
    let got = session.get(name, &mut bytes);
    let mut inner = world.inner();
    let chunk_bytes = inner.params.chunk_bytes;
    let may = if inner.params.renames {
        let tokens = inner.naming.tokens_since(name, then);
        tokens.into_iter().map(Option::unwrap_or_default).collect()
    } else {
        &inner.model.may_be_put(name) | &before
    };
    let right = match &got {
        Ok(_) => may.iter().any(|token| *token != 0 && put_bytes(*token, chunk_bytes) == bytes),
        Err(error) if error.kind() == Kind::NotFound => may.contains(&0),
        Err(_) => return got.map(|_| ()),
    };
    if !right {
        inner.fail(Failure::new(
            Checker::LastPut,
            format!("{name} gives {} bytes that nobody put: {got:?}", bytes.len()),
        ));
    }
    Ok(())
}

/// Scrubs.
pub(crate) fn scrubber(world: &Arc<World>, store: SimStore, _actor: usize) {
    let Some(session) = open(world, store) else { return };
    loop {
        let deep = chance(world, 50);
        let mut scrub = match Scrub::new(session.clone(), deep) {
            Ok(scrub) => scrub,
            Err(error) => return note(world, "scrub", &error),
        };
        loop {
            if world.inner().stopping {
                return;
            }
            match scrub.step() {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    note(world, "scrub", &error);
                    break;
                }
            }
        }
        let report = scrub.report();
        let mut inner = world.inner();
        inner.reach.add("scrub: stale references", report.stale);
        inner.reach.add("scrub: collected", report.collected);
        inner.reach.add("scrub: orphans", report.orphans);
        if let Some(damage) = report.damage.first() {
            inner.fail(Failure::new(Checker::Damage, damage.clone()));
        }
    }
}
