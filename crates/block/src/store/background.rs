//! The two working threads.

use std::{sync::atomic::Ordering, time::Duration};

use onefold_core::Result;

use super::Store;
use crate::{CheckpointStep, Idleness};

/// With weak persistence a change is durable about this long after it was made.
const FLUSH_EVERY: Duration = Duration::from_secs(1);

/// The store counts as idle after this long without a change.
const IDLE_AFTER: Duration = Duration::from_millis(500);

/// An idle store carries its records into the tables after this long, so that the next opening is
/// quick.
const IDLE_CHECKPOINT_AFTER: Duration = Duration::from_secs(5);

/// Scattered blocks are moved together after this long: a pause in the work is not its end.
const COMPACT_AFTER: Duration = Duration::from_secs(30);

/// How long a checkpoint waits for a window's flush before it flushes by itself.
const RIDE_WAIT: Duration = Duration::from_millis(200);

/// How often the background thread looks for work.
const LOOK_EVERY: Duration = Duration::from_millis(50);

impl Store {
    /// Writes full windows out, and flushes once a second. Returns after [`stop`](Store::stop), or
    /// when writes were stopped.
    pub fn run_writer(&self) {
        let mut flushed = self.clock.now();
        while !self.is_stopping() {
            self.writer.wait(FLUSH_EVERY / 4);
            if self.write_back(&mut flushed).is_err() {
                // Everybody who waits learns the reason from the engine.
                self.advance();
                self.background.raise();
                while !self.is_stopping() {
                    self.writer.wait(FLUSH_EVERY);
                    self.advance();
                }
                return;
            }
        }
    }

    fn write_back(&self, flushed: &mut Duration) -> Result<()> {
        self.write_out()?;
        let pressure = self.pressure.load(Ordering::SeqCst) > 0;
        let now = self.clock.now();
        if pressure && self.engine.kernel.unflushed_blocks() > 0
            || self.engine.kernel.unflushed_blocks() * 2 > self.engine.settings().unflushed_blocks
        {
            self.flush()?;
            *flushed = now;
        } else if now.saturating_sub(*flushed) >= FLUSH_EVERY {
            if self.engine.kernel.newest() > self.engine.durable() {
                self.flush()?;
            }
            *flushed = now;
        }
        Ok(())
    }

    /// Makes checkpoints when they are due, and uses idle time. Returns after
    /// [`stop`](Store::stop), or when writes were stopped.
    pub fn run_background(&self) {
        let mut idle = Idle::default();
        while !self.is_stopping() {
            self.background.wait(LOOK_EVERY);
            if self.background_round(&mut idle).is_err() {
                self.advance();
                return;
            }
        }
    }

    fn background_round(&self, idle: &mut Idle) -> Result<()> {
        let now = self.clock.now();
        let counts = self.engine.counts();
        let seen = (counts.client_changes, counts.read_blocks);
        if seen != idle.seen {
            (idle.seen, idle.since) = (seen, now);
        }
        let quiet = now.saturating_sub(idle.since);
        let pressure = self.pressure.load(Ordering::SeqCst) > 0;
        if pressure && self.engine.checkpoint_due() {
            // Room may be made only by what is gathered now.
            self.flush()?;
        }
        if self.engine.checkpoint_due()
            || quiet >= IDLE_CHECKPOINT_AFTER && self.engine.checkpoint_useful()
        {
            self.run_checkpoint(pressure || quiet >= IDLE_AFTER)?;
        }
        let idleness = match quiet {
            quiet if quiet >= COMPACT_AFTER => Idleness::Long,
            quiet if quiet >= IDLE_AFTER => Idleness::Short,
            _ => Idleness::None,
        };
        // A client's change ends the round: it is looked at anew whether the store is idle.
        while !self.is_stopping()
            && self.engine.counts().client_changes == counts.client_changes
            && self.engine.idle_step(idleness)?
        {
            if self.engine.kernel.has_closed_windows() {
                self.writer.raise();
            }
        }
        Ok(())
    }

    /// One checkpoint from beginning to end. Its flushes are those of windows, unless `alone`.
    fn run_checkpoint(&self, alone: bool) -> Result<()> {
        let mut asked = None;
        loop {
            match self.engine.checkpoint_step()? {
                CheckpointStep::Idle => return Ok(()),
                CheckpointStep::Advanced => {
                    asked = None;
                    self.advance();
                    if !self.engine.checkpoint_running() {
                        return Ok(());
                    }
                }
                CheckpointStep::NeedsFlush => {
                    let since = *asked.get_or_insert_with(|| self.clock.now());
                    let pressure = self.pressure.load(Ordering::SeqCst) > 0;
                    if alone
                        || pressure
                        || self.is_stopping()
                        || self.clock.now().saturating_sub(since) > RIDE_WAIT
                    {
                        self.engine.scheme.make_durable(&self.engine.kernel)?;
                        self.advance();
                    } else {
                        self.background.wait(Duration::from_millis(2));
                    }
                }
                CheckpointStep::NeedsReaders => {
                    if self.is_stopping() {
                        return Ok(());
                    }
                    self.background.wait(Duration::from_millis(1));
                }
            }
        }
    }
}

/// Since when nothing changed.
#[derive(Default)]
struct Idle {
    seen: (u64, u64),
    since: Duration,
}
