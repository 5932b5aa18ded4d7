//! An actor that takes snapshots of volumes that others use, reads and deletes them, rolls back, and
//! clones.

use std::sync::Arc;

use onefold_cluster::{Attached, Mode, Session, Snapshots, Volume, What};
use onefold_core::{Error, Kind};

use super::{ALL, attach, call, chance, note, open, receiver};
use crate::{
    checker::{Checker, Failure},
    cluster::{model::SECTOR, store::SimStore, world::World},
};

/// Names of a volume's snapshots.
const NAMES: u64 = 2;

/// Things that it does before it begins anew with another session.
const CALLS: u64 = 8;

/// Does one thing after the other, with pauses.
pub(crate) fn snapper(world: &Arc<World>, store: SimStore, actor: usize) {
    let Some(session) = open(world, store) else { return };
    for _ in 0..CALLS {
        let pause = world.inner().rng.within(3, 30);
        for _ in 0..pause {
            if world.inner().stopping {
                return;
            }
            // Any operation will do: it lets time pass.
            let _ = session.find("v0");
        }
        if let Err(error) = act(world, &session, actor) {
            let stopped = error.kind() == Kind::Stopped;
            if error.kind() != Kind::Exists {
                note(world, "snapper", &error);
            }
            if stopped {
                return;
            }
        }
    }
}

/// Takes two snapshots, one after the other, and deletes both, in any order.
fn stack(world: &Arc<World>, session: &Arc<Session>, actor: usize) -> Result<(), Error> {
    let all = ["v0@s0", "v0@s1"];
    for name in all {
        if own(world, session, actor, 0)? {
            match Snapshots::of(session).take(name) {
                Err(error) if error.kind() == Kind::Exists => {}
                taken => taken?,
            }
        }
        wait(world, session, 10);
    }
    let first = world.inner().rng.below(2) as usize;
    for name in [all[first], all[1 - first]] {
        match Snapshots::of(session).delete(name) {
            Err(error) if error.kind() == Kind::NotFound => {}
            deleted => deleted?,
        }
        // Somebody may begin to delete what the first one held.
        wait(world, session, 40);
    }
    world.inner().reach.hit("snapshots are deleted together");
    Ok(())
}

/// Lets time pass.
pub(crate) fn wait(world: &Arc<World>, session: &Arc<Session>, most: u64) {
    let pause = world.inner().rng.within(1, most);
    for _ in 0..pause {
        if world.inner().stopping {
            return;
        }
        // Any operation will do.
        let _ = session.find("v0");
    }
}

fn act(world: &Arc<World>, session: &Arc<Session>, actor: usize) -> Result<(), Error> {
    if world.inner().params.stacks && chance(world, 50) {
        return stack(world, session, actor);
    }
    let (what, at, name, clone) = {
        let mut inner = world.inner();
        let volumes = inner.params.volumes;
        let at = inner.rng.below(volumes as u64) as usize;
        let name = format!("v{at}@s{}", inner.rng.below(NAMES));
        (inner.rng.below(100), at, name, volumes)
    };
    match what {
        0..26 => {
            if own(world, session, actor, at)? {
                Snapshots::of(session).take(&name)?;
                world.inner().reach.hit("a snapshot is taken");
            }
        }
        26..42 => check(world, session, &name)?,
        42..54 => {
            Snapshots::of(session).delete(&name)?;
            world.inner().reach.hit("a snapshot is deleted");
        }
        54..62 => {
            if own(world, session, actor, at)? {
                Snapshots::of(session).roll_back(&name)?;
                world.inner().reach.hit("a volume is rolled back");
            }
        }
        62..70 => {
            Snapshots::of(session).clone_volume(&name, &super::renamer::names_of(clone)[0])?;
            world.inner().reach.hit("a snapshot is cloned");
        }
        70..82 => {
            if own(world, session, actor, at)? {
                Snapshots::of(session)
                    .clone_volume(&format!("v{at}"), &super::renamer::names_of(clone)[0])?;
                world.inner().reach.hit("a volume is cloned");
            }
        }
        82..86 => session.delete(&super::renamer::names_of(clone)[0], What::Volume)?,
        _ => use_clone(world, session, actor, clone)?,
    }
    Ok(())
}

/// Shuts out who has the volume; false when another session was faster.
fn own(world: &Arc<World>, session: &Arc<Session>, actor: usize, at: usize) -> Result<bool, Error> {
    // In some tries it takes its chance that nobody has it.
    if chance(world, 20) {
        return Ok(true);
    }
    let volume = attach(world, session, at, Mode::TakeOver)?;
    {
        let mut inner = world.inner();
        if inner.objects.is_fenced(&session.store().identity())
            || !inner.model.attach(at, actor, volume.id())
        {
            return Ok(false);
        }
    }
    volume.detach().map(|()| true)
}

/// Writes to the clone and reads it, as a client does.
fn use_clone(
    world: &Arc<World>,
    session: &Arc<Session>,
    actor: usize,
    at: usize,
) -> Result<(), Error> {
    let volume = attach(world, session, at, Mode::TakeOver)?;
    {
        let mut inner = world.inner();
        if inner.objects.is_fenced(&session.store().identity())
            || !inner.model.attach(at, actor, volume.id())
        {
            return Ok(());
        }
        inner.reach.hit("a clone is used");
    }
    let volume = Attached::new(session.clone(), volume);
    let calls = world.inner().rng.within(3, 20);
    for _ in 0..calls {
        if world.inner().stopping {
            break;
        }
        call(world, session, &volume, actor, at, ALL)?;
    }
    volume.detach()
}

/// Reads a snapshot, and compares it with what its volume held at its moment.
pub(crate) fn check(world: &Arc<World>, session: &Arc<Session>, name: &str) -> Result<(), Error> {
    let volume = Snapshots::of(session).attach(name)?;
    // A copy holds what the snapshot holds that was sent.
    let of = receiver::layer_of(world, session, name)?.unwrap_or(volume.id());
    let mut bytes = vec![0xaa; volume.bytes() as usize];
    let read = read(&volume, &mut bytes);
    // One that is deleted meanwhile gives what it likes.
    match Snapshots::of(session).find(name) {
        Ok(now) if now.is_of(volume.id()) => read?,
        _ => return Ok(()),
    }
    let mut inner = world.inner();
    if let Some(message) = inner.model.check_layer(of, &bytes) {
        let finding = Failure::new(Checker::SnapshotContent, format!("{name}: {message}"));
        inner.fail(finding);
    }
    inner.reach.hit("a snapshot is read");
    Ok(())
}

fn read(volume: &Volume, bytes: &mut [u8]) -> Result<(), Error> {
    let piece = 16 * SECTOR;
    for (at, part) in bytes.chunks_mut(piece).enumerate() {
        volume.read_at((at * piece) as u64, part)?;
    }
    Ok(())
}

/// Reads all snapshots that there are.
pub(crate) fn check_all(world: &Arc<World>, session: &Arc<Session>) -> Result<(), Error> {
    for snapshot in Snapshots::of(session).all()? {
        check(world, session, &snapshot.full_name())?;
    }
    Ok(())
}
