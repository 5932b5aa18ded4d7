//! The thread that commits, and those that wait for it.

use std::{collections::VecDeque, sync::Arc};

use onefold_core::{CpuContention, Ticket};
use parking_lot::{Condvar, Mutex};

use crate::schedule::Rounds;

#[derive(Default)]
pub(super) struct GroupCommit {
    pub(super) state: Mutex<Commit>,
}

#[derive(Default)]
pub(super) struct Commit {
    pub(super) busy: bool,
    pub(super) waiting: VecDeque<Arc<Waiter>>,
    pub(super) rounds: Rounds,
    pub(super) contention: CpuContention,
}

pub(super) struct Waiter {
    pub(super) ticket: Ticket,
    pub(super) woken: Mutex<bool>,
    pub(super) wake: Condvar,
}

impl Waiter {
    pub(super) fn wake(&self) {
        *self.woken.lock() = true;
        self.wake.notify_one();
    }

    pub(super) fn wait(&self) {
        let mut woken = self.woken.lock();
        while !*woken {
            self.wake.wait(&mut woken);
        }
    }
}
