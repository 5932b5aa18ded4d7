//! A server that stands by for others of its kind, and then does for all volumes what clients ask.

use std::{ops::Range, sync::Arc};

use onefold_cluster::{Attached, Found, Gateway, Mode, Session, Standby};
use onefold_core::{BLOCK_BYTES, Error, Kind, Look};

use super::{ASKED_FOR, attach, call, chance, note, open};
use crate::{
    checker::{Checker, Failure},
    cluster::{model::SECTOR, store::SimStore, world::World},
};

/// Stands by, serves, and ends in order or not.
pub(crate) fn gateway(world: &Arc<World>, store: SimStore, actor: usize) {
    let Some(session) = open(world, store) else { return };
    let Some(gateway) = stand_by(world, &session) else { return };
    if chance(world, 20) {
        world.inner().reach.hit("a takeover fails");
        return gateway.fail().unwrap_or_else(|error| note(world, "gateway", &error));
    }
    gateway.settle();
    let volumes = world.inner().params.volumes;
    let mut attached: Vec<Option<Attached>> = (0..volumes).map(|_| None).collect();
    let calls = world.inner().params.calls;
    let mut ahead = None;
    for _ in 0..calls {
        if world.inner().stopping {
            break;
        }
        let done = if chance(world, 15) {
            read_ahead(world, &session, &attached, actor, &mut ahead)
        } else {
            serve(world, &session, &gateway, &mut attached, actor)
        };
        if let Err(error) = done {
            let stopped = error.kind() == Kind::Stopped;
            note(world, "gateway", &error);
            if stopped {
                world.inner().reach.hit("a server finds that it was replaced");
                return;
            }
        }
    }
    if chance(world, 50) {
        for volume in attached.into_iter().flatten() {
            if let Err(error) = volume.detach() {
                return note(world, "detach", &error);
            }
        }
        match gateway.give_up() {
            Ok(()) => world.inner().reach.hit("a server gives up"),
            Err(error) => note(world, "gateway", &error),
        }
    }
}

fn stand_by(world: &Arc<World>, session: &Arc<Session>) -> Option<Gateway> {
    let mut standby = Standby::new(session.clone());
    loop {
        if world.inner().stopping {
            return None;
        }
        // Between two looks time passes. Any operation will do.
        let pause = world.inner().rng.within(1, 3);
        (0..pause).for_each(|_| drop(session.find("v0")));
        match standby.look() {
            Ok(Found::Mine(gateway)) => {
                let mut inner = world.inner();
                inner.say(|| format!("{} serves", session.store().identity()));
                if gateway.before().is_some() {
                    inner.reach.hit("a standby takes over");
                }
                return Some(gateway);
            }
            Ok(Found::Waits(..)) => world.inner().reach.hit("a standby waits after a failure"),
            Ok(Found::Writes(_)) => world.inner().reach.hit("a standby waits for a volume's lock"),
            Ok(_) => {}
            Err(error) => {
                note(world, "standby", &error);
                if error.kind() == Kind::Stopped {
                    return None;
                }
            }
        }
    }
}

/// What was read of a volume before a client asked for it.
struct Ahead {
    volume: usize,
    blocks: Range<u64>,
    bytes: Vec<u8>,
    look: Look,
}

/// Reads blocks before a client asks for them, or gives a client those that were read before, as the server does:
/// only while all that changes the volume is counted, and nothing of them has changed.
fn read_ahead(
    world: &Arc<World>,
    session: &Arc<Session>,
    attached: &[Option<Attached>],
    actor: usize,
    ahead: &mut Option<Ahead>,
) -> Result<(), Error> {
    if let Some(kept) = ahead.take() {
        let Some(volume) = &attached[kept.volume] else { return Ok(()) };
        let changes = onefold_core::Volume::changes(volume);
        if !changes.is_some_and(|changes| changes.is_unchanged(&kept.look, kept.blocks.clone())) {
            return Ok(());
        }
        let from = kept.blocks.start as usize * (BLOCK_BYTES / SECTOR);
        let mut inner = world.inner();
        inner.reach.hit("a client gets what was read ahead");
        if let Some(finding) = inner.model.check(kept.volume, actor, from, &kept.bytes) {
            inner.fail(finding);
        }
        let me = session.store().identity();
        if inner.serving.is_replaced(&me) {
            let what = format!("{me} gives what it read ahead");
            inner.fail(Failure::new(Checker::ReplacedIsSilent, what));
        }
        return Ok(());
    }
    let at = world.inner().rng.below(attached.len() as u64) as usize;
    let Some(volume) = &attached[at] else { return Ok(()) };
    let size = onefold_core::Volume::size(volume) / BLOCK_BYTES as u64;
    let first = world.inner().rng.below(size);
    let blocks = first..(first + world.inner().rng.within(1, 64)).min(size);
    let look =
        onefold_core::Volume::changes(volume).and_then(|changes| changes.look(blocks.clone()));
    let Some(look) = look else { return Ok(()) };
    let mut bytes = vec![0xaa; (blocks.end - blocks.start) as usize * BLOCK_BYTES];
    volume.with(|volume| volume.read_at(first * BLOCK_BYTES as u64, &mut bytes))?;
    *ahead = Some(Ahead { volume: at, blocks, bytes, look });
    Ok(())
}

/// A beat, or what a client asks for.
fn serve(
    world: &Arc<World>,
    session: &Arc<Session>,
    gateway: &Gateway,
    attached: &mut [Option<Attached>],
    actor: usize,
) -> Result<(), Error> {
    if chance(world, 40) {
        return gateway.beat();
    }
    let at = world.inner().rng.below(attached.len() as u64) as usize;
    let Some(volume) = &attached[at] else {
        let volume = attach(world, session, at, Mode::Own)?;
        let mut inner = world.inner();
        if !inner.objects.is_fenced(&session.store().identity())
            && inner.model.attach(at, actor, volume.id())
        {
            inner.reach.hit("a server attaches a volume");
            drop(inner);
            attached[at] = Some(Attached::new(session.clone(), volume));
        }
        return Ok(());
    };
    let replaced = world.inner().serving.is_replaced(&session.store().identity());
    let fenced = world.inner().objects.is_fenced(&session.store().identity());
    if fenced && chance(world, 70) {
        // What it answers without the store.
        onefold_core::Volume::flush(volume)?;
    } else {
        call(world, session, volume, actor, at, ASKED_FOR)?;
    }
    if replaced {
        let what = format!("{} answers", session.store().identity());
        world.inner().fail(Failure::new(Checker::ReplacedIsSilent, what));
    }
    Ok(())
}
