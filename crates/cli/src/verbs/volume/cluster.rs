//! `onefold volume` of a store of the cluster engine, by the server of a folder where there is one.

use std::{
    sync::Arc,
    thread::sleep,
    time::{Duration, Instant},
};

use onefold_cluster::{
    ClusterExports, Copies, GoesOn, Session, Settings, Snapshot, Snapshots, What,
    resize_volume_while,
};
use onefold_core::{Error, Kind, Result};

use onefold::parts::{
    cluster_store::{Opened, Url, gateway},
    control::{Request, SnapshotLine, VolumeLine},
};
use onefold_console::{
    failure::Failure,
    output::{self, Answer},
    size::Size,
};
use serde_json::{Value, json};

use super::guard;
use crate::verbs::cluster;

/// How long a server's own work on a volume may keep it in use, and the time between two tries.
const IN_USE: Duration = Duration::from_secs(2);
const TRY_AGAIN: Duration = Duration::from_millis(20);

/// Changes the catalogue; durable on return.
pub(in crate::verbs) fn change(store: &Url, request: &Request) -> Result<(), Failure> {
    if let Some(mut server) = store.server()? {
        return Ok(server.ask::<Value>(request).map(drop)?);
    }
    let session = &Opened::open(store, Settings::default())?.session;
    if let Some(mut server) = gateway(store, session)? {
        return Ok(server.ask::<Value>(request).map(drop)?);
    }
    apply(session, request)?;
    finish(session, request)
}

/// The same in a server. Clients keep a volume from being resized, deleted or rolled back. While a snapshot or a
/// clone is made of it they wait.
///
/// # Errors
/// `Busy` while a volume is in use, or when its trims take long; those of the change, and of `goes_on`, which says
/// whether to go on while trims are applied.
pub(in crate::verbs) fn change_served(
    exports: &ClusterExports,
    session: &Arc<Session>,
    request: &Request,
    goes_on: GoesOn<'_>,
) -> Result<()> {
    if let Request::SnapshotClone { of, name } = request {
        return while_not_in_use(|| exports.clone_volume_while(of, name, goes_on));
    }
    if let Request::SnapshotCreate { snapshots } = request
        && let [name] = snapshots.as_slice()
    {
        return while_not_in_use(|| exports.snapshot_while(name, goes_on));
    }
    let apply = |session: &Arc<Session>| match request {
        Request::SnapshotRollback { name, keep: None, .. } => {
            Snapshots::of(session).while_goes_on(goes_on).roll_back(name)
        }
        Request::VolumeResize { name, bytes, .. } => {
            guarded(session, request)?;
            resize_volume_while(session, name, *bytes, goes_on)
        }
        _ => apply(session, request),
    };
    match detaches(request) {
        None => apply(session)?,
        Some(name) => while_not_in_use(|| exports.while_detached(&name, apply))?,
    }
    finish(session, request)
}

/// Tries again while a server's own work, or a client that is just leaving, keeps a volume in use.
pub(in crate::verbs) fn while_not_in_use(mut change: impl FnMut() -> Result<()>) -> Result<()> {
    let begun = Instant::now();
    loop {
        match change() {
            Err(error) if error.kind() == Kind::Busy && begun.elapsed() < IN_USE => {
                sleep(TRY_AGAIN);
            }
            done => return done,
        }
    }
}

/// The volume, or the snapshot, that nobody may use during a change.
fn detaches(request: &Request) -> Option<String> {
    let of_snapshot = |name: &str| name.rsplit_once('@').map(|(volume, _)| volume.to_owned());
    match request {
        Request::VolumeResize { name, .. }
        | Request::VolumeDelete { name, .. }
        | Request::VolumePromote { name } => Some(name.clone()),
        Request::SnapshotRollback { name, .. } => of_snapshot(name),
        Request::SnapshotDelete { name, .. } => Some(name.clone()),
        _ => None,
    }
}

/// Refuses a change of size that loses data, unless it is wanted.
fn guarded(session: &Session, request: &Request) -> Result<()> {
    guard::size(request, |name| {
        let named = session.find(name).ok().flatten();
        named.filter(|named| named.what == What::Volume).map(|named| named.bytes)
    })
}

fn apply(session: &Arc<Session>, request: &Request) -> Result<()> {
    guarded(session, request)?;
    match request {
        Request::VolumeCreate { name, bytes, .. } => session.create_volume(name, *bytes),
        Request::VolumeResize { name, bytes, .. } => session.resize_volume(name, *bytes),
        Request::VolumeRename { name, new_name } => session.rename(What::Volume, name, new_name),
        Request::VolumeDelete { name, .. } => session.delete(name, What::Volume),
        Request::SnapshotCreate { snapshots } => match snapshots.as_slice() {
            [name] => Snapshots::of(session).take(name),
            _ => {
                let why = "a cluster store takes one snapshot at a time: several have no moment in common";
                Err(Error::new(Kind::Unsupported, why))
            }
        },
        Request::SnapshotDelete { name, .. } => Snapshots::of(session).delete(name),
        Request::SnapshotRollback { name, keep: None, .. } => {
            Snapshots::of(session).roll_back(name)
        }
        Request::SnapshotRollback { keep: Some(_), .. } => {
            let why = "a cluster store has no --keep: take a snapshot first";
            Err(Error::new(Kind::Unsupported, why))
        }
        Request::SnapshotClone { of, name } => Snapshots::of(session).clone_volume(of, name),
        Request::VolumePromote { name } => Copies::of(session).promote(name),
        Request::ReceiveAbort { volume } => Copies::of(session).abort_receive(volume),
        Request::SnapshotRename { .. } => {
            let why = "snapshots of a cluster store can't be renamed";
            Err(Error::new(Kind::Unsupported, why))
        }
        _ => {
            let why = "volumes of the cluster engine have no limits, and share all blocks";
            Err(Error::new(Kind::Unsupported, why))
        }
    }
}

/// Frees what a volume held that was deleted or rolled back, or a snapshot.
fn finish<E: From<Error>>(session: &Session, request: &Request) -> Result<(), E> {
    let frees = matches!(
        request,
        Request::VolumeDelete { .. }
            | Request::SnapshotDelete { .. }
            | Request::SnapshotRollback { .. }
            | Request::ReceiveAbort { .. }
    );
    if frees {
        while session.delete_step()? {}
    }
    Ok(())
}

/// The snapshots of a store, as lists show them.
pub(in crate::verbs) fn snapshots(session: &Arc<Session>) -> Result<Vec<SnapshotLine>> {
    let line = |snapshot: &Snapshot| SnapshotLine {
        name: snapshot.full_name(),
        bytes: snapshot.bytes,
        created_ms: u64::try_from(snapshot.made.as_millis()).unwrap_or(u64::MAX),
        exclusive_bytes: None,
    };
    Ok(Snapshots::of(session).all()?.iter().map(line).collect())
}

/// The same, by the server of a folder where there is one.
pub(in crate::verbs) fn snapshots_at(store: &Url) -> Result<Vec<SnapshotLine>> {
    match store.server()? {
        Some(mut server) => server.ask(&Request::SnapshotList),
        None => snapshots(&Opened::look(store)?.session),
    }
}

/// Lists the volumes.
pub(super) fn list(store: &Url, answer: Answer) -> Result<(), Failure> {
    let Some(mut server) = store.server()? else {
        return cluster::list(store, What::Volume, answer);
    };
    let lines: Vec<VolumeLine> = server.ask(&Request::VolumeList)?;
    if answer.json {
        let lines: Vec<Value> =
            lines.iter().map(|line| json!({ "name": line.name, "bytes": line.bytes })).collect();
        return output::json(&lines);
    }
    for line in &lines {
        let bytes = Size(line.bytes).to_string();
        output::line(format_args!("{bytes:>9}  {}", line.name.escape_debug()));
    }
    if lines.is_empty() {
        output::line("no volumes");
    }
    Ok(())
}
