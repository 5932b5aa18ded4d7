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
use parking_lot::Mutex;

/// The fences of a process.
#[derive(Default)]
pub(super) struct Fences {
    all: Vec<Fence>,
    next: u64,
}

/// The locks of a process on all nodes that it may write to.
struct Fence {
    id: u64,
    name: String,
    locks: Vec<(usize, Box<dyn Lock>)>,
}

impl Fence {
    fn nodes(&self) -> u64 {
        self.locks.iter().fold(0, |mask, (n, _)| mask | 1 << n)
    }
}

impl Fences {
    /// One more, with the locks that it has so far; gives its number.
    pub(super) fn begin(&mut self, name: &str, locks: Vec<(usize, Box<dyn Lock>)>) -> u64 {
        let id = self.next;
        self.next += 1;
        self.all.push(Fence { id, name: name.to_owned(), locks });
        id
    }

    /// Ends one; gives its locks, which end when they are dropped.
    pub(super) fn end(&mut self, id: u64) -> Vec<(usize, Box<dyn Lock>)> {
        let ended = self.all.extract_if(.., |fence| fence.id == id);
        ended.flat_map(|fence| fence.locks).collect()
    }
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

/// Of the nodes `here` those that are within all fences of this process; tells why others are not. Nodes that were
/// not there when a fence was made are locked now.
pub(super) fn within(
    fences: &Mutex<Fences>,
    directories: &[Option<Arc<dyn Files>>],
    here: u64,
    mut tell: impl FnMut(usize, Error),
) -> u64 {
    let outside: Vec<(u64, String, u64)> = {
        let outside = |fence: &Fence| (fence.id, fence.name.clone(), here & !fence.nodes());
        fences.lock().all.iter().map(outside).filter(|(_, _, nodes)| *nodes != 0).collect()
    };
    let mut within = here;
    for (id, name, nodes) in outside {
        for (n, directory) in directories.iter().enumerate() {
            let Some(files) = directory.as_ref().filter(|_| nodes & within & 1 << n != 0) else {
                continue;
            };
            match lock_on(&**files, &name, Hold::Alone, false) {
                Ok(lock) => {
                    // The fence may have ended meanwhile.
                    if let Some(fence) = fences.lock().all.iter_mut().find(|fence| fence.id == id) {
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
