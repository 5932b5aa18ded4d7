//! Locks taken on several nodes at once: [`fence`](super::fence) says on which, and why.

use std::sync::Arc;

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

/// Locks `name` on the nodes that are there. A node that refuses is left out.
///
/// # Errors
/// `Busy` when another process has it on any node, `Stopped` when too few copies give it.
pub(super) fn lock(
    shared: &Arc<Shared>,
    name: &str,
    hold: Hold,
    wait: bool,
) -> Result<Box<dyn Lock>> {
    let (copies, mut locks) = (shared.copies_mask(), Vec::new());
    // What the commit lock guards is copies. Labels of other nodes follow from those.
    let is_everywhere = name != COMMIT && shared.settings.keeps(Rule::EveryNodeLocked);
    let wanted = if is_everywhere { u64::MAX } else { copies };
    // Always in this order, so that two processes never wait for each other.
    for n in bits(shared.here() & wanted) {
        let is_copy = copies >> n & 1 == 1;
        match lock_on(&**shared.directory(n)?, name, hold, wait) {
            Ok(lock) => locks.push((n, lock)),
            Err(error) if error.kind() == Kind::Busy => return Err(error),
            Err(error) if !is_copy && error.kind() == Kind::NoSpace => return Err(error),
            // Who may only read can't make the file.
            Err(_) if !is_copy && hold == Hold::Shared => {}
            Err(_) => shared.lose(n),
        }
    }
    let locked = locks.iter().filter(|(n, _)| copies >> n & 1 == 1).count() as u32;
    if locked == 0 || (hold == Hold::Alone && locked < shared.quorum()) {
        return Err(too_few(locked, shared.quorum()));
    }
    if !is_everywhere || hold != Hold::Alone || !is_fence(name) {
        return Ok(Box::new(Locks(locks)));
    }
    let id = shared.fences.lock().begin(name, locks);
    Ok(Box::new(Fenced { shared: shared.clone(), id }))
}
