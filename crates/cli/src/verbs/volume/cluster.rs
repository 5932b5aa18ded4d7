//! `onefold volume` of a store of the cluster engine, by the server of a folder where there is one.

use std::{
    sync::Arc,
    thread::sleep,
    time::{Duration, Instant},
};

use onefold_cluster::{ClusterExports, Session, Settings, What};
use onefold_core::{Error, Kind, Result};

use onefold::parts::{
    cluster_store::{Opened, Url},
    control::{Request, VolumeLine},
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
pub(super) fn change(store: &Url, request: &Request) -> Result<(), Failure> {
    if let Some(mut server) = store.server()? {
        return Ok(server.ask::<Value>(request).map(drop)?);
    }
    let session = &Opened::open(store, Settings::default())?.session;
    apply(session, request)?;
    finish(session, request)
}

/// The same in the server of a folder. Clients keep a volume from being resized or deleted.
///
/// # Errors
/// `Busy` while a volume is in use; those of the change.
pub(in crate::verbs) fn change_served(
    exports: &ClusterExports,
    session: &Arc<Session>,
    request: &Request,
) -> Result<()> {
    let (Request::VolumeResize { name, .. } | Request::VolumeDelete { name, .. }) = request else {
        return apply(session, request);
    };
    let begun = Instant::now();
    loop {
        match exports.while_detached(name, |session| apply(session, request)) {
            Err(error) if error.kind() == Kind::Busy && begun.elapsed() < IN_USE => {
                sleep(TRY_AGAIN);
            }
            done => break done?,
        }
    }
    finish(session, request)
}

fn apply(session: &Arc<Session>, request: &Request) -> Result<()> {
    guard::size(request, |name| {
        let named = session.find(name).ok().flatten();
        named.filter(|named| named.what == What::Volume).map(|named| named.bytes)
    })?;
    match request {
        Request::VolumeCreate { name, bytes, .. } => session.create_volume(name, *bytes),
        Request::VolumeResize { name, bytes, .. } => session.resize_volume(name, *bytes),
        Request::VolumeRename { name, new_name } => session.rename(What::Volume, name, new_name),
        Request::VolumeDelete { name, .. } => session.delete(name, What::Volume),
        _ => {
            let why = "volumes of the cluster engine have no limits, and share all blocks";
            Err(Error::new(Kind::Unsupported, why))
        }
    }
}

/// Frees what a deleted volume held.
fn finish<E: From<Error>>(session: &Session, request: &Request) -> Result<(), E> {
    if matches!(request, Request::VolumeDelete { .. }) {
        while session.delete_step()? {}
    }
    Ok(())
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
