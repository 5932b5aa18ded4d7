//! The actor that renames volumes and objects, while clients use them.

use std::sync::Arc;

use onefold_cluster::{Named, Session, What};
use onefold_core::{Error, Kind, Result};

use super::{CALLS, check_put, note, open};
use crate::checker::{Checker, Failure};
use crate::cluster::{
    checks::naming::{Asked, End},
    store::SimStore,
    world::World,
};

/// Names of objects that are put. A volume may have the last one, too.
pub(crate) const OBJECTS: [&str; 3] = ["p0", "p1", "s"];

/// Names of volumes that no client uses.
const VOLUMES: [&str; 3] = ["x0", "x1", "s"];

/// The two names between which a volume of clients changes.
pub(crate) fn names_of(volume: usize) -> [String; 2] {
    [format!("v{volume}"), format!("w{volume}")]
}

/// The end of a request, according to its answer.
pub(crate) fn end_of<T>(answer: &Result<T>) -> End {
    match answer {
        Ok(_) => End::Done,
        Err(error) if matches!(error.kind(), Kind::NotFound | Kind::Exists) => End::Refused,
        Err(_) => End::Unknown,
    }
}

pub(crate) fn renamer(world: &Arc<World>, store: SimStore, _actor: usize) {
    let Some(session) = open(world, store) else { return };
    for _ in 0..CALLS {
        if world.inner().stopping {
            return;
        }
        match call(world, &session) {
            Err(error) if error.kind() == Kind::Exists => {}
            Err(error) => {
                note(world, "renamer", &error);
                if error.kind() == Kind::Stopped {
                    return;
                }
            }
            Ok(()) => {}
        }
    }
}

fn call(world: &Arc<World>, session: &Arc<Session>) -> Result<()> {
    let (what, first, other, volume) = {
        let mut inner = world.inner();
        let volumes = inner.params.volumes as u64;
        let first = inner.rng.below(3) as usize;
        let other = (first + 1 + inner.rng.below(2) as usize) % 3;
        (inner.rng.below(100), first, other, inner.rng.below(volumes) as usize)
    };
    if world.inner().params.in_portions() {
        list_page(world, session)?;
    }
    match what {
        0..40 => rename(world, session, What::Put, OBJECTS[first], OBJECTS[other]),
        40..55 => rename(world, session, What::Volume, VOLUMES[first], VOLUMES[other]),
        55..65 => {
            let [one, two] = names_of(volume);
            let (from, to) = if first == 0 { (one, two) } else { (two, one) };
            rename(world, session, What::Volume, &from, &to)
        }
        65..73 => delete(world, session, What::Put, OBJECTS[first]),
        73..78 => delete(world, session, What::Volume, VOLUMES[first]),
        78..85 => session.create_volume(VOLUMES[first], 1 << 16),
        // Resizing fences the session that resized the volume before.
        85..87 if !world.inner().params.tidy => {
            session.resize_volume(VOLUMES[first], 1 << 15 << other)
        }
        85..94 => check_put(world, session, OBJECTS[first]),
        _ => list(world, session),
    }
}

/// Renames, and checks the answer against what was done.
fn rename(world: &Arc<World>, session: &Session, what: What, from: &str, to: &str) -> Result<()> {
    let (ticket, then) = {
        let mut inner = world.inner();
        (inner.naming.ask(Asked::Rename(from.into(), to.into())), inner.naming.now())
    };
    let renamed = session.rename(what, from, to);
    let mut inner = world.inner();
    let wrong = match &renamed {
        Err(error) if error.kind() == Kind::NotFound => {
            let volume = what == What::Volume;
            !inner.naming.since(from, then).iter().any(|it| it.is_none_or(|it| it.1 != volume))
        }
        Err(error) if error.kind() == Kind::Exists => {
            !inner.naming.since(to, then).iter().any(Option::is_some)
        }
        _ => false,
    };
    if wrong {
        let message = format!("{from:?} can't be renamed to {to:?}: {renamed:?}");
        inner.fail(Failure::new(Checker::Answer, message));
    }
    if let Some(finding) = inner.naming.answer(&ticket, end_of(&renamed)) {
        inner.fail(finding);
    }
    inner.reach.hit(match &renamed {
        Ok(()) => "something is renamed",
        Err(error) if error.kind() == Kind::Exists => "a new name is taken",
        Err(_) => "something can't be renamed",
    });
    renamed
}

/// Deletes, and checks the answer against what was done.
pub(crate) fn delete(world: &Arc<World>, session: &Session, what: What, name: &str) -> Result<()> {
    let ticket = world.inner().naming.ask(Asked::Delete(name.into()));
    let deleted = session.delete(name, what);
    let mut inner = world.inner();
    if let Some(finding) = inner.naming.answer(&ticket, end_of(&deleted)) {
        inner.fail(finding);
    }
    deleted
}

/// Lists all names, and checks the listing.
pub(crate) fn list(world: &Arc<World>, session: &Session) -> Result<()> {
    let then = world.inner().naming.now();
    listed(world, session.names()?, then);
    Ok(())
}

/// The same by a page, which has all names of so small a store.
fn list_page(world: &Arc<World>, session: &Session) -> Result<()> {
    let then = world.inner().naming.now();
    let page = session.names_after(None, "")?;
    if page.next.is_none() {
        world.inner().reach.hit("a page has all names");
        listed(world, page.names, then);
    }
    Ok(())
}

/// Compares a listing, which began `then`, with what may be there.
fn listed(world: &Arc<World>, names: Vec<(String, Named)>, then: u64) {
    let names: Vec<(String, u64)> = names.into_iter().map(|(name, it)| (name, it.id)).collect();
    let mut inner = world.inner();
    if let Some(finding) = inner.naming.listed(&names, then) {
        inner.fail(finding);
    }
}

/// The name of a volume of clients. If both its names stand for volumes, the newer one counts.
pub(crate) fn newest(session: &Session, volume: usize) -> Result<Option<String>, Error> {
    let mut newest = None;
    for name in names_of(volume) {
        if let Some(named) = session.find(&name)?
            && newest.as_ref().is_none_or(|(id, _)| *id < named.id)
        {
            newest = Some((named.id, name));
        }
    }
    Ok(newest.map(|(_, name)| name))
}
