//! Faults that come when all is clean: a chunk object rots or can't be read, or the clock of a
//! worker's host is set back.
//!
//! *Damage never spreads:* a read fails where the map names that chunk, and nowhere else; no read
//! gives wrong bytes; workers go on with everything else; once the object is as it was, everything
//! is.

use std::{sync::Arc, time::Duration};

use onefold_cluster::{
    Scrub, Session, Volume, Worker,
    format::{Chunk, ObjectId, key},
};
use onefold_core::{Error, Kind, object::ObjectName};
use onefold_testbed::{Objects, Rng, objects::Object};

use super::parse;
use crate::{
    checker::{Checker, Failure},
    cluster::{
        model::{SECTOR, content},
        world::{Inner, World},
    },
};

/// So far a clock is set back.
const BACK: Duration = Duration::from_secs(86400);

/// Steps of a worker in which it must have done all that it can do.
const STEPS: usize = 100;

/// The fault of an object.
#[derive(Clone, Debug)]
enum Ill {
    /// Its bytes were changed on the medium; this is the object as it was.
    Rotten(Object),
    /// The store can't read it.
    Unreadable,
}

/// A chunk object of some volume goes bad, and is mended.
pub(crate) fn of_a_chunk(
    world: &Arc<World>,
    session: &Arc<Session>,
    volumes: &[Volume],
    actor: usize,
) -> Result<(), Error> {
    let mut rng = Rng::new(world.inner().params.seed ^ 0x6f6e_6566_6f6c_6405);
    let Some((chunk, ill)) = harm(&mut world.inner(), &mut rng) else { return Ok(()) };
    read_all(world, volumes, actor, Some(&chunk))?;
    let mut scrub = Scrub::new(session.clone(), true)?;
    while scrub.step()? {}
    let named = scrub.report().damage.iter().any(|line| line.contains(&chunk.name()));
    if !named && matches!(ill, Ill::Rotten(_)) {
        world.inner().fail(Failure::new(
            Checker::Damage,
            format!("{} is rotten, and a scrub says {:?}", chunk.name(), scrub.report().damage),
        ));
    }
    others_get_clean(world, session, volumes, actor, &chunk)?;
    read_all(world, volumes, actor, Some(&chunk))?;
    mend(&mut world.inner(), &chunk, ill);
    read_all(world, volumes, actor, None)
}

/// Harms a chunk by chance; `None` when there is none.
fn harm(inner: &mut Inner, rng: &mut Rng) -> Option<(Chunk, Ill)> {
    let all: Vec<Chunk> = inner
        .objects
        .all()
        .filter_map(|(name, _)| {
            Chunk::parse(&name.name).filter(|chunk| *name == ObjectName::chunk(chunk.name()))
        })
        .collect();
    let chunk = *rng.pick(&all)?;
    let name = ObjectName::chunk(chunk.name());
    let before = inner.stored(&name)?;
    if rng.below(2) == 0 {
        inner.reach.hit("a chunk can't be read");
        inner.unreadable = Some(inner.stored_name(&name));
        return Some((chunk, Ill::Unreadable));
    }
    inner.reach.hit("a chunk rots");
    let mut after = before.clone();
    match rng.below(3) {
        0 => after.data.truncate(rng.below(before.data.len() as u64) as usize),
        1 => after
            .xattrs
            .values_mut()
            .filter_map(|value| value.first_mut())
            .for_each(|byte| *byte ^= 1),
        _ => {
            let at = rng.below(before.data.len() as u64) as usize;
            after.data[at] ^= 1 << rng.below(8);
        }
    }
    inner.put_stored(&name, after);
    Some((chunk, Ill::Rotten(before)))
}

fn mend(inner: &mut Inner, chunk: &Chunk, ill: Ill) {
    inner.unreadable = None;
    let name = ObjectName::chunk(chunk.name());
    // Only data and attributes are put back: references came and went meanwhile.
    if let (Ill::Rotten(before), Some(now)) = (ill, inner.stored(&name)) {
        inner.put_stored(&name, Object { data: before.data, xattrs: before.xattrs, ..now });
    }
}

/// The object that a volume reads in place of its own: the nearest one of its layers.
fn source_of(objects: &Objects, mut id: ObjectId) -> Option<(ObjectId, &Object)> {
    loop {
        let own = objects.get(&id.name()).filter(|own| !own.omap.contains_key(key::COPYING));
        if let Some(own) = own {
            return Some((id, own));
        }
        let header = objects.get(&ObjectName::metadata(format!("v.{:010x}", id.volume)))?;
        let parent = header.omap.get(&b"p"[..])?.get(..8)?;
        id.volume = u64::from_le_bytes(parent.try_into().ok()?);
    }
}

/// True when the entry for a place of a volume names the chunk.
fn names(inner: &Inner, volume: &Volume, at: u64, chunk: &Chunk) -> bool {
    named(inner, volume, at).is_some_and(|named| named == *chunk)
}

/// The chunk that the entry for a place of a volume names.
fn named(inner: &Inner, volume: &Volume, at: u64) -> Option<Chunk> {
    let bytes = u64::from(inner.params.object_bytes);
    let id = onefold_cluster::format::ObjectId { volume: volume.id(), index: at / bytes };
    let map = source_of(&inner.objects, id).and_then(|(id, object)| parse(id, object).ok());
    let place = (at % bytes) as u32;
    let entry = map.and_then(|map| {
        map.entries.range(..=place).next_back().map(|(offset, entry)| (*offset, entry.clone()))
    });
    let entry = entry.filter(|(offset, entry)| place < offset + entry.length);
    entry.and_then(|(_, entry)| entry.base).map(|base| base.chunk)
}

/// Reads each sector alone: all are right, but those that `ill` holds may fail.
fn read_all(
    world: &Arc<World>,
    volumes: &[Volume],
    actor: usize,
    ill: Option<&Chunk>,
) -> Result<(), Error> {
    for (n, volume) in volumes.iter().enumerate() {
        for at in 0..volume.bytes() / SECTOR as u64 {
            let mut sector = [0xaa; SECTOR];
            let place = at * SECTOR as u64;
            let read = volume.read_at(place, &mut sector);
            let mut inner = world.inner();
            let excused = ill.is_some_and(|chunk| names(&inner, volume, place, chunk));
            match read {
                Ok(()) => {
                    if let Some(finding) = inner.model.check(n, actor, at as usize, &sector) {
                        inner.fail(finding);
                    }
                }
                Err(error) if excused && matches!(error.kind(), Kind::Corrupt | Kind::Io) => {
                    inner.reach.hit("a read fails for a bad chunk")
                }
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

/// A write elsewhere is taken and gets clean, whatever became of the chunk.
fn others_get_clean(
    world: &Arc<World>,
    session: &Arc<Session>,
    volumes: &[Volume],
    actor: usize,
    ill: &Chunk,
) -> Result<(), Error> {
    let Some((n, volume)) = volumes.iter().enumerate().next_back() else { return Ok(()) };
    let chunk = u64::from(world.inner().params.chunk_bytes);
    // Of an object that names the bad chunk the rest waits with it.
    let bytes = u64::from(world.inner().params.object_bytes);
    let whole = |at: &u64| {
        !(0..bytes / SECTOR as u64)
            .filter_map(|sector| named(&world.inner(), volume, at + sector * SECTOR as u64))
            // What is inherited may get a reference at another copy.
            .any(|chunk| chunk.id == ill.id)
    };
    let Some(place) = (0..volume.bytes() / bytes).map(|at| at * bytes).find(whole) else {
        return Ok(());
    };
    let token = world.inner().model.token();
    let tokens = vec![token; chunk as usize / SECTOR];
    world.inner().model.begin(n, actor, place as usize / SECTOR, &tokens);
    volume.write_at(place, &content(&tokens))?;
    world.inner().model.acknowledge(n, actor, place as usize / SECTOR, &tokens);
    let mut worker = Worker::new(session.clone(), onefold_cluster::Watermarks::NONE);
    for _ in 0..STEPS {
        // Steps that need the bad chunk may fail, again and again.
        let _ = worker.step();
        world.inner().now += Duration::from_secs(1);
    }
    worker.release();
    let inner = world.inner();
    let id = onefold_cluster::format::ObjectId {
        volume: volume.id(),
        index: place / u64::from(inner.params.object_bytes),
    };
    let map = inner.objects.get(&id.name()).and_then(|object| parse(id, object).ok());
    let dirty = map.is_some_and(|map| {
        map.entries
            .values()
            .any(|entry| entry.dirty && entry.base.is_none_or(|base| base.chunk != *ill))
    });
    drop(inner);
    if dirty {
        world.inner().fail(Failure::new(
            Checker::Progress,
            format!("object {id} is dirty still, beside a bad chunk"),
        ));
    }
    Ok(())
}

/// The clock of this host is set back under a worker: what is written then gets clean all the same.
pub(crate) fn of_a_clock(
    world: &Arc<World>,
    volumes: &[Volume],
    actor: usize,
) -> Result<(), Error> {
    world.inner().set_back(actor, BACK);
    for (n, volume) in volumes.iter().enumerate() {
        let token = world.inner().model.token();
        world.inner().model.begin(n, actor, 0, &[token]);
        volume.write_at(0, &content(&[token]))?;
        world.inner().model.acknowledge(n, actor, 0, &[token]);
    }
    world.inner().reach.hit("a clock is set back");
    Ok(())
}
