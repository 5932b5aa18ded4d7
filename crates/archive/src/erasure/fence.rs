//! Locks on several nodes.
//!
//! Copies of log and tables change under the commit lock, of which a process has those on `f + 1` of `2f + 1` nodes
//! at least: two processes meet on one of them. That is enough where locks end with their process. A node on another
//! host has its locks at the end of a connection, and each connection ends by itself. A process that lost those to
//! `f + 1` copies commits nothing any more, and another one may begin beside it.
//!
//! *Invariant:* what a process changes on a node it changes by way of the connection that holds its lock there. So
//! who stores, collects, imports or fills has its lock on every node and not on the copies alone, and a node that
//! shows itself later is locked when it does, or does not count. Whoever may store on a node has its lock, and then
//! nobody else writes there.

use std::sync::Arc;

use onefold_core::{Error, Files, Hold, Kind, Lock, Result};

use super::shared::{Fence, Shared, bits, too_few};
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
        let is_own = |fence: &mut Fence| fence.id == self.id;
        let ended: Vec<Fence> = self.shared.state.lock().fences.extract_if(.., is_own).collect();
        // Others need the state while another host is told.
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
    let state = &mut *shared.state.lock();
    let id = state.next_fence;
    state.next_fence += 1;
    state.fences.push(Fence { id, name: name.to_owned(), locks });
    Ok(Box::new(Fenced { shared: shared.clone(), id }))
}

/// Locks `name` on one node. Nodes without copies get the file when somebody needs it.
pub(crate) fn lock_on(
    files: &dyn Files,
    name: &str,
    hold: Hold,
    wait: bool,
) -> Result<Box<dyn Lock>> {
    match files.lock(name, hold, wait) {
        Err(error) if error.kind() == Kind::NotFound => {}
        locked => return locked,
    }
    match files.create(name) {
        Err(error) if error.kind() != Kind::Exists => return Err(error),
        _ => {}
    }
    files.lock(name, hold, wait)
}

/// Reads all labels, and finds out which nodes are current and within all fences of this process.
///
/// # Errors
/// As [`Shared::look`].
pub(super) fn look(shared: &Shared) -> Result<()> {
    shared.look(&|here, tell| within(shared, here, tell))
}

/// Of the nodes `here` those that are within all fences of this process; tells why others are not. Nodes that were
/// not there when a fence was made are locked now.
fn within(shared: &Shared, here: u64, tell: &mut dyn FnMut(usize, Error)) -> u64 {
    let outside: Vec<(u64, String, u64)> = {
        let state = shared.state.lock();
        let outside = |fence: &Fence| (fence.id, fence.name.clone(), here & !fence.nodes());
        state.fences.iter().map(outside).filter(|(_, _, nodes)| *nodes != 0).collect()
    };
    let mut within = here;
    for (id, name, nodes) in outside {
        for n in bits(nodes & within) {
            let lock =
                shared.directory(n).and_then(|files| lock_on(&**files, &name, Hold::Alone, false));
            match lock {
                Ok(lock) => {
                    let state = &mut *shared.state.lock();
                    let fence = state.fences.iter_mut().find(|fence| fence.id == id);
                    // Who had the fence may have ended it meanwhile.
                    if let Some(fence) = fence {
                        fence.locks.push((n, lock));
                    }
                }
                Err(error) => {
                    within &= !(1 << n);
                    tell(n, error);
                }
            }
        }
    }
    within
}
