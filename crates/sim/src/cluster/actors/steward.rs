//! An actor that resizes a volume that others use, and deletes it and makes it anew.

use std::sync::Arc;

use onefold_cluster::{Mode, Session, Volume, What};
use onefold_core::{Error, Kind};

use super::{chance, note, open};
use crate::cluster::{model::SECTOR, store::SimStore, world::World};

/// Waits for a while, and does one thing.
pub(crate) fn steward(world: &Arc<World>, store: SimStore, actor: usize, at: usize) {
    let Some(session) = open(world, store) else { return };
    let name = format!("v{at}");
    let pause = world.inner().rng.within(3, 40);
    for _ in 0..pause {
        if world.inner().stopping {
            return;
        }
        // Any operation will do: it lets time pass.
        let _ = session.find(&name);
    }
    let done = if chance(world, 40) {
        make_anew(world, &session, &name)
    } else {
        resize(world, &session, &name, actor, at)
    };
    if let Err(error) = done {
        note(world, "steward", &error);
    }
}

fn make_anew(world: &Arc<World>, session: &Session, name: &str) -> Result<(), Error> {
    // Who is killed in it, or gets no answer, may have a copy of it on its way.
    let before = std::mem::replace(&mut world.inner().may_delete, true);
    let deleted = session.delete(name, What::Volume);
    if deleted.as_ref().map_or_else(|error| error.kind() == Kind::NotFound, |()| true) {
        world.inner().may_delete = before;
    }
    match deleted {
        Ok(()) => world.inner().reach.hit("a volume is deleted"),
        // By the one before us.
        Err(error) if error.kind() == Kind::NotFound => {}
        Err(error) => return Err(error),
    }
    let bytes = world.inner().params.volume_bytes;
    match session.create_volume(name, bytes) {
        Err(error) if error.kind() == Kind::Exists => Ok(()),
        other => other,
    }
}

fn resize(
    world: &Arc<World>,
    session: &Arc<Session>,
    name: &str,
    actor: usize,
    at: usize,
) -> Result<(), Error> {
    // The owner is shut out; another session may be faster than this one.
    let volume = Volume::attach(session, name, Mode::TakeOver)?;
    {
        let mut inner = world.inner();
        // As a client: who was sent away before it came to this does not own it.
        if inner.objects.is_fenced(&session.store().identity())
            || !inner.model.attach(at, actor, volume.id())
        {
            return Ok(());
        }
    }
    volume.detach()?;
    let bytes = {
        let mut inner = world.inner();
        let (most, unit) = (
            inner.params.volume_bytes,
            if inner.rng.percent(70) { inner.params.object_bytes } else { 4096 },
        );
        let bytes = inner.rng.within(1, most / u64::from(unit)) * u64::from(unit);
        bytes.max(inner.params.chunk_bytes.into())
    };
    world.inner().model.cut(at, bytes as usize / SECTOR);
    session.resize_volume(name, bytes)?;
    let mut inner = world.inner();
    inner.model.was_cut(at, bytes as usize / SECTOR);
    inner.reach.hit("a volume is resized");
    Ok(())
}
