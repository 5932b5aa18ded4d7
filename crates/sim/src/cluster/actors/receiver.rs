//! An actor that sends snapshots of a volume to another one of the same store, in parts and by changes.

use std::sync::Arc;

use onefold_cluster::{Copies, Mode, Session, Snapshots, Volume, What};
use onefold_core::{Error, Kind};
use onefold_stream::SendWhat;

use super::{
    chance, note, open,
    snapper::{check, wait},
};
use crate::{
    checker::{Checker, Failure},
    cluster::{store::SimStore, world::World},
};

/// The volume that gets the snapshots.
const REPLICA: &str = "r0";

/// Names of the snapshots that are sent.
const SENT: [&str; 2] = ["v0@s0", "v0@s1"];

/// Things that it does before it begins anew with another session.
const CALLS: u64 = 24;

/// Does one thing after the other, with pauses.
pub(crate) fn receiver(world: &Arc<World>, store: SimStore, _actor: usize) {
    let Some(session) = open(world, store) else { return };
    for _ in 0..CALLS {
        wait(world, &session, 6);
        if world.inner().stopping {
            return;
        }
        if let Err(error) = act(world, &session) {
            let stopped = error.kind() == Kind::Stopped;
            let expected = [Kind::Exists, Kind::InvalidInput, Kind::Denied];
            if !expected.contains(&error.kind()) {
                note(world, "receiver", &error);
            }
            if stopped {
                return;
            }
        }
    }
}

fn act(world: &Arc<World>, session: &Arc<Session>) -> Result<(), Error> {
    let (what, name) = {
        let mut inner = world.inner();
        (inner.rng.below(100), format!("{REPLICA}@s{}", inner.rng.below(2)))
    };
    match what {
        0..66 => copy(world, session)?,
        66..76 => {
            // The client takes it anew.
            let sent = SENT[world.inner().rng.below(2) as usize];
            if there(session, SENT[0])? && there(session, SENT[1])? {
                Snapshots::of(session).delete(sent)?;
            }
        }
        76..80 => Snapshots::of(session).delete(&name)?,
        80..84 => give_up(world, session)?,
        84..88 => {
            world.inner().model.may_be_promoted = true;
            Copies::of(session).promote(REPLICA)?;
            world.inner().reach.hit("a replica is promoted");
        }
        88..92 => write(world, session)?,
        92..94 => session.delete(REPLICA, What::Volume)?,
        _ => check(world, session, &name)?,
    }
    Ok(())
}

/// Sends a snapshot, or the changes since another one, or the rest of one that was cut off.
fn copy(world: &Arc<World>, session: &Arc<Session>) -> Result<(), Error> {
    let copies = Copies::of(session);
    let begun = copies.receives()?;
    let what = match begun.first().filter(|_| chance(world, 80)) {
        Some(receive) => {
            let token = receive.token;
            let named = |guid: [u8; 16]| -> Result<Option<String>, Error> {
                for name in SENT {
                    match copies.guid(name) {
                        Ok(found) if found == guid => return Ok(Some(name.to_owned())),
                        Err(error) if error.kind() != Kind::NotFound => return Err(error),
                        _ => {}
                    }
                }
                Ok(None)
            };
            let from = named(token.base)?;
            match named(token.guid)? {
                Some(snapshot) if from.is_some() || token.base == [0; 16] => {
                    SendWhat { snapshot, from, resume: Some(token), ..SendWhat::default() }
                }
                // It was deleted meanwhile.
                _ => return give_up(world, session),
            }
        }
        None => {
            let is_there = session.find(REPLICA)?.is_some();
            let first = world.inner().rng.below(2) as usize;
            let first = if there(session, SENT[first])? { first } else { 1 - first };
            // More often than not one that the replica has.
            let has = |name: &str| -> Result<bool, Error> {
                let own = name.replace("v0", REPLICA);
                match (copies.guid(name), copies.guid(&own)) {
                    (Ok(one), Ok(other)) => Ok(one == other),
                    (Err(error), _) | (_, Err(error)) if error.kind() != Kind::NotFound => {
                        Err(error)
                    }
                    _ => Ok(false),
                }
            };
            let other = SENT[1 - first];
            let from = is_there && (has(other)? || chance(world, 30));
            let from = from.then(|| other.to_owned());
            SendWhat { snapshot: SENT[first].to_owned(), from, ..SendWhat::default() }
        }
    };
    let mut stream = Vec::new();
    let sending = copies.sending(&what)?;
    world.inner().model.sends(sending.begin().guid, sending.layer());
    let writer = sending.send_to(sending.writer(&mut stream)?)?;
    writer.end(sending.begin().blocks)?;
    let whole = stream.len();
    if chance(world, 40) {
        let most = world.inner().rng.below(whole as u64) as usize;
        stream.truncate(most);
    }
    let rollback = chance(world, 50);
    match copies.receive(Some(REPLICA), rollback, &stream[..], &mut |_| Ok(())) {
        Ok(received) => {
            {
                let mut inner = world.inner();
                inner.model.may_be_promoted = false;
                inner.reach.hit("a snapshot is received");
                if what.from.is_some() {
                    inner.reach.hit("changes are received");
                }
                if what.resume.is_some() {
                    inner.reach.hit("a receive goes on");
                }
            }
            check(world, session, &received.name)
        }
        // It was cut off.
        Err(error) if stream.len() < whole && matches!(error.kind(), Kind::Corrupt | Kind::Io) => {
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// True when there is such a snapshot.
fn there(session: &Arc<Session>, name: &str) -> Result<bool, Error> {
    match Snapshots::of(session).find(name) {
        Err(error) if error.kind() == Kind::NotFound => Ok(false),
        found => found.map(|_| true),
    }
}

/// Gives up what was received.
pub(crate) fn give_up(world: &Arc<World>, session: &Arc<Session>) -> Result<(), Error> {
    match Copies::of(session).abort_receive(REPLICA) {
        Err(error) if error.kind() == Kind::NotFound => Ok(()),
        done => {
            done?;
            world.inner().reach.hit("a receive is given up");
            Ok(())
        }
    }
}

/// Writes to the replica, if that is an ordinary volume by now.
fn write(world: &Arc<World>, session: &Arc<Session>) -> Result<(), Error> {
    let volume = Volume::attach(session, REPLICA, Mode::Own)?;
    if !world.inner().model.may_be_promoted {
        let what = "a client writes to a replica that nobody promoted";
        world.inner().fail(Failure::new(Checker::SnapshotContent, what));
    }
    let written = volume.write_at(0, &[0x55; 4096]);
    volume.detach()?;
    written
}

/// The layer of which a snapshot is a copy; nothing of one that was not received.
pub(crate) fn layer_of(
    world: &Arc<World>,
    session: &Arc<Session>,
    name: &str,
) -> Result<Option<u64>, Error> {
    if !name.starts_with(REPLICA) {
        return Ok(None);
    }
    let guid = Copies::of(session).guid(name)?;
    Ok(world.inner().model.sent_from(guid))
}
