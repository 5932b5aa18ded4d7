//! The engine's steps, in the order that the seed wants: windows overlap, checkpoints and idle work
//! come in between.

use std::time::Duration;

use onefold_block::schedule::Event;
use onefold_core::{Clock, Kind};

use crate::{
    block::{
        run::{Flow, STEP_LIMIT, Sim},
        subject::{Step, Subject},
    },
    checker::{Checker, Failure},
};

impl<S: Subject> Sim<S> {
    /// Some steps, any of them; in the scheduled profile those that the product's schedule decides.
    pub(crate) fn steps(&mut self) -> Flow<()> {
        if self.params.scheduled {
            let now = self.clock.now();
            self.schedules.background.happened(now, Event::Request);
            if self.rng.once_in(3) {
                self.schedules.background.happened(now, Event::Elapsed);
            }
            return self.scheduled_steps(false);
        }
        let hundredths = self.params.steps_per_op;
        let n = hundredths / 100 + u64::from(self.rng.percent(hundredths % 100));
        for _ in 0..self.rng.within(0, n * 2) {
            let step = Step::ALL[self.rng.weighted(&self.params.steps)];
            self.step(step)?;
        }
        Ok(())
    }

    /// The steps of the product's threads until they wait.
    fn scheduled_steps(&mut self, pressure: bool) -> Flow<()> {
        for _ in 0..STEP_LIMIT {
            let Some(store) = &self.store else { return Ok(()) };
            let result = store.scheduled_step(&mut self.schedules, self.clock.now(), pressure);
            self.disk.fold(300);
            self.note_durable()?;
            match result {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(error) => return Err(self.judge("a scheduled step", &error)),
            }
        }
        let stuck = format!("the schedule decides {STEP_LIMIT} steps without a wait");
        Err(Failure::new(Checker::Progress, stuck).into())
    }

    /// One step.
    pub(crate) fn step(&mut self, step: Step) -> Flow<bool> {
        let Some(store) = &self.store else { return Ok(false) };
        let result = store.step(step);
        self.disk.fold(step as u64 + 200);
        if !matches!(result, Ok(false)) {
            self.say(|| format!("{step:?}: {result:?}"));
        }
        self.note_durable()?;
        result.map_err(|error| self.judge(&format!("step {step:?}"), &error))
    }

    /// Tells the model what the store says is durable.
    pub(crate) fn note_durable(&mut self) -> Flow<()> {
        self.note_growth()?;
        let Some(store) = &self.store else { return Ok(()) };
        self.model.durable(store.durable().0)?;
        if let Some((_, ids)) = self.asked.take_if(|(number, _)| store.acts_done() >= *number) {
            self.model.performed(&ids)?;
        }
        match store.overfull(&self.params.options) {
            Some(what) => Err(Failure::new(Checker::Limits, what).into()),
            None => Ok(()),
        }
    }

    /// Steps until `ticket` is durable.
    pub(crate) fn drive(&mut self, ticket: u64) -> Flow<()> {
        for _ in 0..STEP_LIMIT {
            if self.store.as_ref().is_none_or(|store| store.durable().0 >= ticket) {
                return Ok(());
            }
            let mut moved = false;
            for step in Step::DURABLE {
                moved |= self.step(step)?;
            }
            if !moved {
                moved = self.step(Step::Checkpoint)?;
            }
            let reached = self.store.as_ref().is_none_or(|store| store.durable().0 >= ticket);
            if !moved && !reached {
                return Err(Failure::new(
                    Checker::Progress,
                    format!("ticket {ticket} does not become durable"),
                )
                .into());
            }
        }
        Err(Failure::new(
            Checker::Progress,
            format!("ticket {ticket} is not durable after {STEP_LIMIT} rounds of steps"),
        )
        .into())
    }

    /// Steps until the acts that were asked for are done.
    pub(crate) fn drive_acts(&mut self) -> Flow<()> {
        for _ in 0..STEP_LIMIT {
            if self.asked.is_none() {
                return Ok(());
            }
            for step in Step::DURABLE.into_iter().chain([Step::Checkpoint]) {
                self.step(step)?;
            }
        }
        Err(Failure::new(
            Checker::Progress,
            format!("acts are not durable after {STEP_LIMIT} rounds of steps"),
        )
        .into())
    }

    /// Lets the engine work, as a server does when a write is told to wait.
    pub(crate) fn make_room(&mut self, tries: u64) -> Flow<()> {
        // A checkpoint may release as little as a block, of all that a crash or deletions left.
        let slow = self.params.options.released.map_or(0, |_| self.params.options.disk_blocks);
        if tries > 400 + slow {
            return Err(
                Failure::new(Checker::Progress, "a request is told to wait for ever").into()
            );
        }
        if self.params.scheduled {
            self.clock.advance(Duration::from_millis(20));
            self.schedules.background.happened(self.clock.now(), Event::Elapsed);
            return self.scheduled_steps(true);
        }
        for step in [Step::Close, Step::Prepare, Step::Write, Step::Settle, Step::Checkpoint] {
            self.step(step)?;
        }
        if tries > 100 {
            self.step(Step::Tidy)?;
        }
        Ok(())
    }

    /// The store's own flush, and what it promises.
    pub(crate) fn flush(&mut self) -> Flow<()> {
        let Some(id) = self.model.volumes().values().next().map(|volume| volume.id) else {
            return Ok(());
        };
        let Some(store) = &self.store else { return Ok(()) };
        let before = self.model.highest_ticket();
        let result = store.flush(id);
        self.say(|| format!("flush: {result:?}"));
        self.note_durable()?;
        match result {
            Ok(()) => {}
            Err(error) if error.kind() == Kind::Busy => self.drive(before)?,
            Err(error) => return Err(self.judge("flush", &error)),
        }
        let durable = self.store.as_ref().map_or(before, |store| store.durable().0);
        if durable < before {
            return Err(Failure::new(
                Checker::Tickets,
                format!("after a flush ticket {durable} is durable, and {before} is not"),
            )
            .into());
        }
        Ok(())
    }

    /// All is flushed, and all background work is done.
    pub(crate) fn idle(&mut self) -> Flow<()> {
        self.flush()?;
        for _ in 0..STEP_LIMIT {
            let mut moved = false;
            for step in Step::ALL {
                moved |= self.step(step)?;
            }
            if !moved {
                self.count_mapped()?;
                return self.count_domains();
            }
        }
        Err(Failure::new(
            Checker::Progress,
            format!("an idle engine still has work after {STEP_LIMIT} rounds of steps"),
        )
        .into())
    }
}
