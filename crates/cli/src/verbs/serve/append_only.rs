//! `serve --append-only`: clients add streams and snapshots to an archive, and change nothing that
//! is there.
//!
//! A client may store a stream under a new name, and make a snapshot; the server stamps both by its
//! own clock. All else is refused: whatever removes, renames, replaces or resizes, and every write
//! to a volume, since a block that is written anew loses what it held. `forget`, `gc` and all else
//! are for who has the directory of the archive.

use std::sync::Arc;

use onefold::parts::control::Request;
use onefold_core::{Error, Kind, Result};
use onefold_serve::nbd::{Peer, Right, Rights};

/// Refuses what does more than look or add.
///
/// # Errors
/// `Denied`, with the name of the request.
pub(super) fn allow(request: &Request) -> Result<()> {
    match request {
        Request::Pid
        | Request::Status
        | Request::VolumeList
        | Request::SnapshotList
        | Request::SnapshotSpace
        | Request::VolumeSpace
        | Request::ReceiveList => Ok(()),
        // What the set holds is no longer what its retention counts by: the operator says so.
        Request::Backup(backup) if backup.accept => {
            Err(refused("does not believe --accept: a snapshot that shrank waits for its operator"))
        }
        Request::Put { .. } | Request::Backup(_) => Ok(()),
        // It says itself when it was made.
        Request::Copy(_)
        | Request::VolumeCreate { .. }
        | Request::VolumeQuota { .. }
        | Request::DomainLimits { .. }
        | Request::VolumeResize { .. }
        | Request::VolumeNoDedup { .. }
        | Request::VolumeLimit { .. }
        | Request::VolumeRename { .. }
        | Request::VolumeDelete { .. }
        | Request::VolumeClone { .. }
        | Request::VolumePromote { .. }
        | Request::SnapshotCreate { .. }
        | Request::SnapshotDelete { .. }
        | Request::SnapshotRename { .. }
        | Request::SnapshotRollback { .. }
        | Request::SnapshotClone { .. }
        | Request::Export { .. }
        | Request::Import { .. }
        | Request::Send { .. }
        | Request::Receive { .. }
        | Request::ReceiveAbort { .. }
        | Request::ReceiveExpire { .. }
        | Request::Grow { .. }
        | Request::Scrub
        | Request::ScrubOnly { .. } => Err(refused(&format!(
            "takes new streams and snapshots, and nothing else: no {}",
            name(request)
        ))),
    }
}

fn refused(what: &str) -> Error {
    Error::new(Kind::Denied, format!("the server of the archive, with --append-only, {what}"))
}

/// The name of a request on the wire.
fn name(request: &Request) -> String {
    let value = serde_json::to_value(request).unwrap_or_default();
    value.get("ask").and_then(|name| name.as_str()).unwrap_or("such request").to_owned()
}

/// Rights of which none is more than reading.
pub(super) struct ReadOnly(pub(super) Arc<dyn Rights>);

impl Rights for ReadOnly {
    fn right(&self, peer: Peer, volume: &str) -> Right {
        self.0.right(peer, volume).min(Right::Read)
    }

    fn knows(&self, peer: Peer) -> bool {
        self.0.knows(peer)
    }
}

#[cfg(test)]
mod tests {
    use onefold::parts::control::{Backup, Speed};

    use super::*;

    #[test]
    fn each_request_that_does_more_than_look_or_add_is_refused() {
        let name = || "n".to_owned();
        let backup = |accept| Request::Backup(Box::new(Backup { accept, ..Backup::default() }));
        for request in [
            Request::Pid,
            Request::Status,
            Request::VolumeList,
            Request::SnapshotList,
            Request::SnapshotSpace,
            Request::VolumeSpace,
            Request::ReceiveList,
            Request::Put { name: name(), tree: false, domain: None },
            Request::Put { name: name(), tree: true, domain: None },
            backup(false),
        ] {
            assert!(allow(&request).is_ok(), "{request:?}");
        }
        let speed = Speed::default();
        for request in [
            Request::VolumeCreate {
                name: name(),
                bytes: 1,
                no_dedup: Vec::new(),
                limits: speed,
                quota: 0,
                domain: None,
            },
            Request::VolumeResize { name: name(), bytes: 1, force: true },
            Request::VolumeNoDedup { name: name(), no_dedup: Vec::new() },
            Request::VolumeLimit { name: name(), limits: speed },
            Request::VolumeQuota { name: name(), bytes: 1 },
            Request::DomainLimits { name: name(), quota: Some(1), reserve: None },
            Request::VolumeRename { name: name(), new_name: name() },
            Request::VolumeDelete { name: name(), force: true },
            Request::VolumeClone { of: name(), name: name(), read_only: true },
            Request::VolumePromote { name: name() },
            Request::SnapshotCreate { snapshots: vec![name()] },
            Request::SnapshotDelete { name: name(), force: true },
            Request::SnapshotRename { name: name(), new_name: name() },
            Request::SnapshotRollback { name: name(), keep: None, force: true },
            Request::SnapshotClone { of: name(), name: name() },
            Request::Export { name: name() },
            Request::Import { name: name(), domain: None },
            Request::Send {
                snapshot: name(),
                from: None,
                resume: None,
                negotiates: false,
                skip_damaged: true,
            },
            Request::Receive { volume: None, rollback: true, negotiates: false, domain: None },
            Request::ReceiveAbort { volume: name() },
            Request::ReceiveExpire { days: 2 },
            Request::Grow { bytes: None },
            Request::Scrub,
            Request::ScrubOnly { name: name() },
            backup(true),
        ] {
            let error = allow(&request).unwrap_err();
            assert_eq!(error.kind(), Kind::Denied, "{request:?}");
            assert!(error.to_string().contains("--append-only"), "{error}");
        }
    }
}
