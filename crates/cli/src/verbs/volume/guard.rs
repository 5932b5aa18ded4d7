//! What a volume is not robbed of by mistake: its clients, and what lies beyond a smaller size.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use onefold::parts::control::Request;
use onefold_console::size::{Size, counted};
use onefold_core::{Error, Kind, Result};

/// How long a client may take that is just about to leave, and the time between two looks.
const LEAVING: Duration = Duration::from_secs(2);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Refuses to delete a volume that clients of this server have open. `clients` counts those of a
/// volume.
///
/// # Errors
/// `Busy` without `force`.
pub(in crate::verbs) fn clients(request: &Request, clients: impl Fn(&str) -> usize) -> Result<()> {
    let (name, what) = match request {
        Request::VolumeDelete { name, force: false } => (name, "volume"),
        Request::SnapshotDelete { name, force: false } => (name, "snapshot"),
        _ => return Ok(()),
    };
    let begun = Instant::now();
    while clients(name) > 0 && begun.elapsed() < LEAVING {
        sleep(LOOK_EVERY);
    }
    match clients(name) as u64 {
        0 => Ok(()),
        open => Err(Error::new(
            Kind::Busy,
            format!(
                "{} {} {what} '{}' open: all their requests would fail (--force)",
                counted(open, "client"),
                if open == 1 { "has" } else { "have" },
                name.escape_debug()
            ),
        )),
    }
}

/// Refuses a smaller size. `bytes` says how many bytes a volume has; nothing when there is none of
/// the name, about which the engine has a sentence.
///
/// # Errors
/// `InvalidInput` without `force`.
pub(super) fn size(request: &Request, bytes: impl Fn(&str) -> Option<u64>) -> Result<()> {
    let Request::VolumeResize { name, bytes: wanted, force: false } = request else {
        return Ok(());
    };
    match bytes(name) {
        Some(bytes) if *wanted < bytes => Err(Error::new(
            Kind::InvalidInput,
            format!(
                "volume '{}' has {}: what lies beyond {} would be lost (--force)",
                name.escape_debug(),
                Size(bytes),
                Size(*wanted)
            ),
        )),
        _ => Ok(()),
    }
}
