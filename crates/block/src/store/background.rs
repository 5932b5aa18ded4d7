//! The two working threads, which run the steps that the schedule decides.

use std::{sync::atomic::Ordering, time::Duration};

use onefold_core::Result;

use super::Store;
use crate::{
    CheckpointStep,
    schedule::{Background, Event, FLUSH_EVERY, Facts, Next, Step, Unflushed, WriteBack},
};

/// How often the background thread looks for requests and work that nobody tells it of.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// How often it looks whether a checkpoint can go on.
const LOOK_OF_CHECKPOINT: Duration = Duration::from_millis(2);

/// The checkpoint that runs.
#[derive(Default)]
struct Stopwatch {
    /// Checkpoints that had become durable by the last look.
    durable: u64,
    begun: Option<Duration>,
}

impl Store {
    /// Writes full windows out, and flushes once a second. Returns after [`stop`](Store::stop), or
    /// when writes were stopped.
    pub fn run_writer(&self) {
        let mut schedule = WriteBack::default();
        while !self.is_stopping() {
            self.writer.wait(FLUSH_EVERY / 4);
            if self.write_back(&mut schedule).is_err() {
                // Everybody who waits learns the reason from the engine.
                self.commit.advance();
                self.background.raise();
                while !self.is_stopping() {
                    self.writer.wait(FLUSH_EVERY);
                    self.commit.advance();
                }
                return;
            }
        }
    }

    fn write_back(&self, schedule: &mut WriteBack) -> Result<()> {
        self.commit.write_out()?;
        let now = self.clock.now();
        match schedule.next(now, &Unflushed::of(&self.engine, self.is_pressed())) {
            Some(at) if at <= now => self.commit.flush(),
            _ => Ok(()),
        }
    }

    /// A change waits for room.
    fn is_pressed(&self) -> bool {
        self.pressure.load(Ordering::SeqCst) > 0 || self.commit.is_awaited()
    }

    /// Makes checkpoints when they are due, and uses idle time. Returns after
    /// [`stop`](Store::stop), or when writes were stopped.
    pub fn run_background(&self) {
        if self.work_in_background().is_err() {
            self.commit.advance();
        }
    }

    fn work_in_background(&self) -> Result<()> {
        let mut schedule = Background::default();
        let mut seen = (0, 0);
        let mut stopwatch = Stopwatch::default();
        while !self.is_stopping() {
            let now = self.clock.now();
            let counts = self.engine.counts();
            let requests = (counts.client_changes, counts.read_blocks);
            if requests != seen {
                seen = requests;
                schedule.happened(now, Event::Request);
            }
            let facts = Facts::of(&self.engine, self.is_pressed());
            let at = match schedule.next(now, &facts) {
                Next::Run(step) => {
                    let event = self.run(step)?;
                    let after = self.clock.now();
                    self.time_checkpoint(&mut stopwatch, step, now, after);
                    if let Event::Idle(idleness, more) = event {
                        schedule.idle_worked(after, after.saturating_sub(now), idleness, more);
                    }
                    schedule.happened(after, event);
                    continue;
                }
                Next::WaitUntil(at) => at.saturating_sub(now),
                Next::WaitForEvent => LOOK_EVERY,
            };
            let look = if facts.checkpoint_running { LOOK_OF_CHECKPOINT } else { LOOK_EVERY };
            self.background.wait(at.min(look));
            schedule.happened(self.clock.now(), Event::Elapsed);
        }
        Ok(())
    }

    /// Counts the time of the checkpoint that `step`, which ran from `before` to `after`, has
    /// completed.
    fn time_checkpoint(
        &self,
        watch: &mut Stopwatch,
        step: Step,
        before: Duration,
        after: Duration,
    ) {
        let durable = self.engine.counts().checkpoints;
        if step == Step::Checkpoint && watch.begun.is_none() {
            watch.begun = Some(before);
        }
        if durable > watch.durable
            && let Some(begun) = watch.begun
        {
            let mut times = self.checkpoints.lock();
            times.count += 1;
            times.sum += after.saturating_sub(begun);
        }
        if durable > watch.durable || !self.engine.checkpoint_running() {
            watch.begun = None;
        }
        watch.durable = durable;
    }

    fn run(&self, step: Step) -> Result<Event> {
        if step == Step::Flush {
            self.commit.flush()?;
            return Ok(Event::Flushed);
        }
        let event = step.run(&self.engine)?;
        match event {
            Event::Flushed | Event::Checkpoint(CheckpointStep::Advanced) => self.commit.advance(),
            Event::Idle(_, true) if self.engine.kernel.has_closed_windows() => self.writer.raise(),
            _ => {}
        }
        Ok(event)
    }
}
