//! A volume that a guest worked on, looked at from this host by way of a snapshot and a clone.

use std::path::Path;

use anyhow::{Result, ensure};

use crate::{
    clients::{Attached, Kind, LIMIT, Served},
    product::path,
    program::{program, run},
};

/// Status requests for a moment in which the server has requests of clients under way.
const LOOKS: u32 = 50;

/// Ends the server with SIGKILL, as soon as it says that requests of clients are under way. Whether
/// it said so.
pub(super) fn kill_at_work(served: &mut Served) -> Result<bool> {
    let mut at_work = false;
    for _ in 0..LOOKS {
        let status = served.onefold.status(&served.store)?;
        at_work = status["server"]["nbd"]["in_flight"].as_u64().is_some_and(|n| n > 0);
        if at_work {
            break;
        }
    }
    served.kill()?;
    Ok(at_work)
}

/// Takes a snapshot `volume@name`.
pub(super) fn snapshot(served: &Served, volume: &str, name: &str) -> Result<String> {
    let snapshot = format!("{volume}@{name}");
    served.onefold.verb(["snapshot", "create", path(&served.store), &snapshot])?;
    Ok(snapshot)
}

/// Makes a volume of what a snapshot holds.
pub(super) fn clone(served: &Served, snapshot: &str, volume: &str) -> Result<()> {
    served.onefold.verb(["snapshot", "clone", path(&served.store), snapshot, volume]).map(|_| ())
}

/// Deletes a clone that was looked at.
pub(super) fn delete(served: &Served, volume: &str) -> Result<()> {
    served.onefold.verb(["volume", "delete", path(&served.store), volume]).map(|_| ())
}

/// Takes a snapshot of a volume as it is now, and looks at a clone of it: the file system must be
/// in order once its journal is replayed. Nothing stays of either.
pub(super) fn inspect<T>(
    served: &Served,
    volume: &str,
    name: &str,
    look: impl FnOnce(&Path) -> Result<T>,
) -> Result<T> {
    let snapshot = snapshot(served, volume, name)?;
    let found =
        look_at_clone(served, &snapshot, State::AsAfterACrash, &served.file("inspected"), look)?;
    served.onefold.verb(["snapshot", "delete", path(&served.store), &snapshot])?;
    Ok(found)
}

/// How a snapshot was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// While the file system was at work.
    AsAfterACrash,
    /// While the file system was frozen.
    AtRest,
}

/// Looks at a clone of a snapshot, mounted at `mount_point`. The snapshot stays.
pub(super) fn look_at_clone<T>(
    served: &Served,
    snapshot: &str,
    state: State,
    mount_point: &Path,
    look: impl FnOnce(&Path) -> Result<T>,
) -> Result<T> {
    let name = snapshot.replace('@', "-");
    clone(served, snapshot, &name)?;
    let mut attached = Attached::below(&served.file("look"), &served.socket, &name)?;
    if state == State::AtRest {
        at_rest(&attached.device)?;
    }
    replay_and_check(&mut attached, mount_point)?;
    attached.mount(Kind::Ext4, mount_point)?;
    let found = look(mount_point)?;
    attached.unmount(mount_point)?;
    drop(attached);
    delete(served, &name)?;
    Ok(found)
}

/// Looks at a snapshot of a frozen file system itself, which can only be read.
pub(super) fn look_at_frozen(
    served: &Served,
    snapshot: &str,
    mount_point: &Path,
    look: impl FnOnce(&Path) -> Result<()>,
) -> Result<()> {
    let mut attached = Attached::below(&served.file("look"), &served.socket, snapshot)?;
    at_rest(&attached.device)?;
    attached.mount(Kind::Ext4, mount_point)?;
    look(mount_point)?;
    attached.unmount(mount_point)
}

/// Fails when the file system has a journal to be replayed, or is not in order as it is.
fn at_rest(device: &str) -> Result<()> {
    let mut command = program("dumpe2fs");
    command.args(["-h", device]);
    let about = run(command, LIMIT)?;
    ensure!(!about.contains("needs_recovery"), "the frozen file system has a journal to replay");
    Kind::Ext4.check(device)
}

/// Has the journal replayed by a mount, and checks the file system.
pub(super) fn replay_and_check(attached: &mut Attached, mount_point: &Path) -> Result<()> {
    attached.mount(Kind::Ext4, mount_point)?;
    attached.unmount(mount_point)?;
    Kind::Ext4.check(&attached.device)
}
