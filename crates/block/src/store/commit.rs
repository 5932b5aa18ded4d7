//! Group commit: one thread at a time commits, for itself and for all who gathered meanwhile.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use onefold_core::{Result, Ticket};
use parking_lot::{Condvar, Mutex};

use super::{Store, group::Waiter};

/// Longest wait for another change before a window closes (OrderMergeDedup's anticipation).
const ANTICIPATION_MAX: Duration = Duration::from_millis(1);

impl Store {
    /// Returns when everything up to `ticket` is durable.
    ///
    /// # Errors
    /// `Stopped`, with the reason.
    pub fn wait(&self, ticket: Ticket) -> Result<()> {
        loop {
            if self.engine.durable() >= ticket {
                return Ok(());
            }
            if let Some(reason) = self.engine.stopped() {
                return Err(reason);
            }
            let waiter = {
                let mut commit = self.commit.state.lock();
                if commit.busy {
                    let waiter =
                        Arc::new(Waiter { ticket, woken: Mutex::new(false), wake: Condvar::new() });
                    commit.waiting.push_back(waiter.clone());
                    Some(waiter)
                } else {
                    commit.busy = true;
                    None
                }
            };
            match waiter {
                Some(waiter) => {
                    waiter.wait();
                    #[cfg(scheduled)]
                    if parking_lot::planted("who is woken does not look") {
                        return Ok(());
                    }
                }
                None => {
                    let result = self.round(ticket);
                    self.finish_round();
                    self.advance();
                    result?;
                }
            }
        }
    }

    /// Makes every change that completed before this call durable.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub fn flush(&self) -> Result<()> {
        self.wait(self.engine.kernel.newest())
    }

    /// One round: close, prepare, write, flush.
    fn round(&self, ticket: Ticket) -> Result<()> {
        self.anticipate();
        if self.engine.kernel.newest_open().is_some_and(|open| open <= ticket) {
            self.engine.close_window();
        }
        while self.engine.prepare_window()? {}
        if self.engine.kernel.has_one_closed_window() && self.engine.write_window_durably()? {
            return Ok(());
        }
        while self.engine.write_window()? {}
        if !self.engine.make_durable()?
            && self.engine.durable() < ticket
            && self.engine.stopped().is_none()
        {
            // The writer thread has one of the windows in hand.
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Wakes those whose changes are durable, and one of the others to commit next.
    fn finish_round(&self) {
        let durable = self.engine.durable();
        let stopped = self.engine.stopped().is_some();
        let mut commit = self.commit.state.lock();
        commit.busy = false;
        let mut together = 1;
        let mut rest = VecDeque::new();
        let mut done = Vec::new();
        for waiter in std::mem::take(&mut commit.waiting) {
            if waiter.ticket <= durable || stopped {
                done.push(waiter);
                together += 1;
            } else {
                rest.push_back(waiter);
            }
        }
        let next = rest.pop_front();
        #[cfg(scheduled)]
        let next = next.filter(|_| !parking_lot::planted("nobody is woken to commit next"));
        commit.waiting = rest;
        commit.arrivals.together = together;
        drop(commit);
        done.into_iter().chain(next).for_each(|waiter| waiter.wake());
    }

    /// Waits a little for more changes when several clients were answered together last time and
    /// not all of them are back: closing now would make them wait for a whole round. Not on a
    /// crowded processor, where yielding takes longer than a round.
    fn anticipate(&self) {
        let begun = self.clock.now();
        let (expected, present, crowded) = {
            let commit = self.commit.state.lock();
            (commit.arrivals.together, commit.waiting.len() + 1, commit.contention.is_there(begun))
        };
        if expected <= present + 1 || crowded {
            return;
        }
        let mut gathered = present;
        let mut last_arrival = begun;
        let mut now = begun;
        loop {
            let before = now;
            std::thread::yield_now();
            now = self.clock.now();
            let (present, crowded) = {
                let mut commit = self.commit.state.lock();
                commit.contention.yielded(before, now);
                (commit.waiting.len() + 1, commit.contention.is_there(now))
            };
            if present > gathered {
                (gathered, last_arrival) = (present, now);
            }
            // Nobody for a while: the others are busy elsewhere.
            let patience = Duration::from_micros(30);
            if crowded
                || present >= expected
                || now - begun > ANTICIPATION_MAX
                || now - last_arrival > patience
            {
                return;
            }
        }
    }

    /// A commit round of the writer thread, which nobody waits for.
    pub(super) fn write_out(&self) -> Result<()> {
        while self.engine.prepare_window()? {
            self.engine.write_window()?;
        }
        Ok(())
    }
}
