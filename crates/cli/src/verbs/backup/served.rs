//! A backup into an archive that is served: this process walks and compares, and the server, which
//! has the archive, stores.

use onefold::parts::control::{Backup, Copied};
use onefold_archive::{BackupRequest, Completeness, CopiedFrom, SnapshotId};
use onefold_core::{Error, Fingerprint, Kind, Result};

/// The request as it goes to a server.
pub(crate) fn asked(request: &BackupRequest) -> Backup {
    Backup {
        id: request.id.to_string(),
        set: request.set.clone(),
        domain: request.domain,
        host: request.host.clone(),
        machine: SnapshotId(request.machine).to_string(),
        paths: request.paths.clone(),
        tags: request.tags.clone(),
        parent: request.parent.map(|id| id.to_string()),
        checkpoint: request.checkpoint.map(|id| id.to_string()),
        accept: request.accept,
        copied: request.copied.as_ref().map(|copied| Copied {
            root: SnapshotId(copied.root.0).to_string(),
            began: request.now,
            ended: copied.ended,
            state: match copied.completeness {
                Completeness::Partial => PARTIAL.into(),
                Completeness::Shrunk => SHRUNK.into(),
                Completeness::Whole | Completeness::Checkpoint => WHOLE.into(),
            },
            left_out: copied.left_out,
        }),
    }
}

/// The states of snapshots.
const WHOLE: &str = "whole";
const PARTIAL: &str = "partial";
const SHRUNK: &str = "shrunk";

/// What a copy says of itself.
fn copied(said: &Copied) -> Result<CopiedFrom> {
    let completeness = match said.state.as_str() {
        WHOLE => Completeness::Whole,
        PARTIAL => Completeness::Partial,
        SHRUNK => Completeness::Shrunk,
        _ => return Err(Error::new(Kind::InvalidInput, "a snapshot has no such state")),
    };
    let root = Fingerprint(id(&said.root)?.0);
    Ok(CopiedFrom { root, ended: said.ended, completeness, left_out: said.left_out })
}

/// The request that came to a server, whose clock counts.
///
/// # Errors
/// `InvalidInput` when an id is none.
pub(crate) fn request(asked: &Backup, clock: fn() -> u64) -> Result<BackupRequest> {
    let maybe = |text: &Option<String>| text.as_deref().map(id).transpose();
    Ok(BackupRequest {
        id: id(&asked.id)?,
        set: asked.set.clone(),
        domain: asked.domain,
        host: asked.host.clone(),
        machine: id(&asked.machine)?.0,
        paths: asked.paths.clone(),
        tags: asked.tags.clone(),
        now: asked.copied.as_ref().map_or_else(clock, |copied| copied.began),
        clock: asked.copied.is_none().then_some(clock),
        parent: maybe(&asked.parent)?,
        checkpoint: maybe(&asked.checkpoint)?,
        accept: asked.accept,
        copied: asked.copied.as_ref().map(copied).transpose()?,
    })
}

fn id(text: &str) -> Result<SnapshotId> {
    // A number may have a sign; an id has none.
    let is_id = text.len() == 32 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
    match u128::from_str_radix(text, 16) {
        Ok(number) if is_id => Ok(SnapshotId(number.to_be_bytes())),
        _ => Err(Error::new(Kind::InvalidInput, "the id of a snapshot has 32 digits")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_21_the_id_of_a_snapshot_is_32_digits() {
        assert!(id(&"0f".repeat(16)).is_ok());
        for wrong in ["", "1", &format!("+{}", "1".repeat(31)), &"g".repeat(32)] {
            assert_eq!(id(wrong).map_err(|error| error.kind()), Err(Kind::InvalidInput), "{wrong}");
        }
    }
}
