//! Group commit: one thread at a time commits, for itself and for all who gathered meanwhile.

use std::{collections::VecDeque, sync::Arc};

use onefold_core::{Result, Ticket};
use parking_lot::{Condvar, Mutex};

use super::{Store, group::Waiter};

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
        commit.rounds.ended(together);
        drop(commit);
        done.into_iter().chain(next).for_each(|waiter| waiter.wake());
    }

    /// Waits until the schedule closes this round's window. A crowded processor takes longer to
    /// yield than a round takes: there the window closes at once.
    fn anticipate(&self) {
        let mut now = self.clock.now();
        let (mut waiting, mut closes, mut crowded) = {
            let mut commit = self.commit.state.lock();
            let waiting = commit.waiting.len() + 1;
            (waiting, commit.rounds.wanted(now, waiting), commit.contention.is_there(now))
        };
        while now < closes && !crowded {
            let before = now;
            std::thread::yield_now();
            now = self.clock.now();
            let mut commit = self.commit.state.lock();
            commit.contention.yielded(before, now);
            crowded = commit.contention.is_there(now);
            let present = commit.waiting.len() + 1;
            if present > waiting {
                (waiting, closes) = (present, commit.rounds.joined(now, present));
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
