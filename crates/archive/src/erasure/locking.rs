//! Locks taken on several nodes at once: [`fence`](super::fence) says on which, and why.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use onefold_core::{Hold, Kind, Lock, Result};

use super::{
    fence::lock_on,
    shared::{Shared, bits, too_few},
};
use crate::{
    format::names::{COLLECTOR, COMMIT, IMPORTER, WRITER},
    rules::Rule,
};

/// Locks on several nodes that no node joins.
struct Locks(#[expect(dead_code, reason = "held")] Vec<(usize, Box<dyn Lock>)>);

impl Lock for Locks {}

/// Holds a fence.
struct Fenced {
    shared: Arc<Shared>,
    id: u64,
}

impl Lock for Fenced {}

impl Drop for Fenced {
    fn drop(&mut self) {
        let ended = self.shared.fences.lock().end(self.id);
        drop(ended);
    }
}

/// True for the locks under which segments change.
fn is_fence(name: &str) -> bool {
    [WRITER, COLLECTOR, IMPORTER].contains(&name)
}

/// How long a node on another host may refuse a lock of those who write, which may be held for hours.
const REFUSED_MAX: Duration = Duration::from_secs(30 * 60);

/// How often such a node is asked, at first and at most.
const ASKED_EVERY: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(500));

/// Locks `name` on the nodes that are there. A node that refuses is left out.
///
/// # Errors
/// `Busy` when another process has it on any node, or a node on another host has said so for half an hour; `Stopped`
/// when too few copies give it; `NoSpace`.
pub(super) fn lock(
    shared: &Arc<Shared>,
    name: &str,
    hold: Hold,
    wait: bool,
) -> Result<Box<dyn Lock>> {
    let (copies, mut locks) = (shared.copies_mask(), Vec::new());
    // The commit lock guards copies. Labels of other nodes follow from those.
    let is_everywhere = name != COMMIT && shared.settings.keeps(Rule::EveryNodeLocked);
    let wanted = if is_everywhere { u64::MAX } else { copies };
    // Always in this order, so that two processes never wait for each other.
    for n in bits(shared.here() & wanted) {
        let is_copy = copies >> n & 1 == 1;
        match lock_node(shared, n, name, hold, wait) {
            Ok(lock) => locks.push((n, lock)),
            Err(error) if error.kind() == Kind::Busy => return Err(error),
            // A reader without the right to write can't make the file, nor can anybody on a full disk.
            Err(_) if !is_copy && hold == Hold::Shared => {}
            Err(_) if is_copy => shared.lose(n),
            Err(error) => drop(shared.failed(n, error)?),
        }
    }
    let locked = locks.iter().filter(|(n, _)| copies >> n & 1 == 1).count() as u32;
    if locked == 0 || (hold == Hold::Alone && locked < shared.quorum()) {
        return Err(too_few(locked, shared.quorum()));
    }
    if !is_everywhere || hold != Hold::Alone || !is_fence(name) {
        return Ok(Box::new(Locks(locks)));
    }
    let id = shared.fence(name, locks);
    Ok(Box::new(Fenced { shared: shared.clone(), id }))
}

/// Locks `name` on one node. The locks of those who write are asked for again and again on another host, and not waited
/// for: the answer may never come. It comes soon for all others, or the connection ends.
fn lock_node(
    shared: &Shared,
    n: usize,
    name: &str,
    hold: Hold,
    wait: bool,
) -> Result<Box<dyn Lock>> {
    let files = &**shared.directory(n)?;
    if !shared.is_far(n) || !is_fence(name) {
        return lock_on(files, name, hold, wait);
    }
    let (begun, (mut pause, most)) = (Instant::now(), ASKED_EVERY);
    loop {
        match lock_on(files, name, hold, false) {
            Err(error) if error.kind() == Kind::Busy && wait && begun.elapsed() < REFUSED_MAX => {}
            locked => return locked.map_err(|error| error.context(format!("node {n}"))),
        }
        std::thread::sleep(pause);
        pause = most.min(pause * 2);
    }
}
