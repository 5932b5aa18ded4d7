//! Group commit: one thread at a time commits, for itself and for all who gathered meanwhile.

use std::{collections::VecDeque, sync::Arc, task::Waker, time::Duration};

use onefold_core::{Clock, CpuContention, Result, Ticket};
use parking_lot::{Condvar, Mutex};

use crate::{Engine, schedule::Rounds};

/// The threads that wait: for a flush, until one of them has committed for all; for room, until
/// windows were published or space was made.
pub(super) struct GroupCommit {
    engine: Arc<Engine>,
    clock: Arc<dyn Clock>,
    queue: Mutex<Queue>,
    progress: Mutex<Progress>,
    progressed: Condvar,
}

#[derive(Default)]
struct Progress {
    /// Raised whenever windows were published or space was made.
    count: u64,
    /// Who wants to hear of the next time. Each front end has one of its own.
    wakers: Vec<Waker>,
}

#[derive(Default)]
struct Queue {
    /// A thread commits.
    busy: bool,
    waiting: VecDeque<Arc<Waiter>>,
    rounds: Rounds,
    contention: CpuContention,
}

struct Waiter {
    ticket: Ticket,
    woken: Mutex<bool>,
    wake: Condvar,
}

impl Waiter {
    fn wake(&self) {
        *self.woken.lock() = true;
        self.wake.notify_one();
    }

    fn wait(&self) {
        let mut woken = self.woken.lock();
        while !*woken {
            self.wake.wait(&mut woken);
        }
    }
}

impl GroupCommit {
    pub(super) fn new(engine: Arc<Engine>, clock: Arc<dyn Clock>) -> GroupCommit {
        let (queue, progress, progressed) = Default::default();
        GroupCommit { engine, clock, queue, progress, progressed }
    }

    /// Tells those who wait that windows were published or space was made.
    pub(super) fn advance(&self) {
        let mut progress = self.progress.lock();
        progress.count += 1;
        let wakers = std::mem::take(&mut progress.wakers);
        drop(progress);
        self.progressed.notify_all();
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Wakes `waker` the next time.
    pub(super) fn on_progress(&self, waker: &Waker) {
        let mut progress = self.progress.lock();
        if !progress.wakers.iter().any(|known| known.will_wake(waker)) {
            progress.wakers.push(waker.clone());
        }
    }

    /// True when a front end waits to be woken.
    pub(super) fn is_awaited(&self) -> bool {
        !self.progress.lock().wakers.is_empty()
    }

    /// How often windows were published or space was made.
    pub(super) fn progress(&self) -> u64 {
        self.progress.lock().count
    }

    /// Waits for progress beyond `seen`, at most so long.
    pub(super) fn wait_for_progress(&self, seen: u64, most: Duration) {
        let mut progress = self.progress.lock();
        if progress.count == seen {
            self.progressed.wait_for(&mut progress, most);
        }
    }

    /// Returns when everything up to `ticket` is durable.
    ///
    /// # Errors
    /// `Stopped`, with the reason.
    pub(super) fn wait(&self, ticket: Ticket) -> Result<()> {
        loop {
            if self.engine.durable() >= ticket {
                return Ok(());
            }
            if let Some(reason) = self.engine.stopped() {
                return Err(reason);
            }
            let waiter = {
                let mut queue = self.queue.lock();
                if queue.busy {
                    let waiter =
                        Arc::new(Waiter { ticket, woken: Mutex::new(false), wake: Condvar::new() });
                    queue.waiting.push_back(waiter.clone());
                    Some(waiter)
                } else {
                    queue.busy = true;
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
    pub(super) fn flush(&self) -> Result<()> {
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
        let mut queue = self.queue.lock();
        queue.busy = false;
        let mut together = 1;
        let mut rest = VecDeque::new();
        let mut done = Vec::new();
        for waiter in std::mem::take(&mut queue.waiting) {
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
        queue.waiting = rest;
        queue.rounds.ended(together);
        drop(queue);
        done.into_iter().chain(next).for_each(|waiter| waiter.wake());
    }

    /// Waits until the schedule closes this round's window. A crowded processor takes longer to
    /// yield than a round takes: there the window closes at once.
    fn anticipate(&self) {
        let mut now = self.clock.now();
        let (mut waiting, mut closes, mut crowded) = {
            let mut queue = self.queue.lock();
            let waiting = queue.waiting.len() + 1;
            (waiting, queue.rounds.wanted(now, waiting), queue.contention.is_there(now))
        };
        while now < closes && !crowded {
            let before = now;
            std::thread::yield_now();
            now = self.clock.now();
            let mut queue = self.queue.lock();
            queue.contention.yielded(before, now);
            crowded = queue.contention.is_there(now);
            let present = queue.waiting.len() + 1;
            if present > waiting {
                (waiting, closes) = (present, queue.rounds.joined(now, present));
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
