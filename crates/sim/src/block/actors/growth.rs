//! An administrator makes the store larger while clients write.

use onefold_core::Kind;

use crate::{
    block::{
        run::{Flow, STEP_LIMIT, Sim},
        subject::{Step, Subject},
    },
    checker::{Checker, Failure},
};

/// Zones that a run's store grows to, at most: its list moves twice on the way there.
const ZONES_MAX: u64 = 400;

/// A growth that was asked for, and of which nobody was told that it is done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Growing {
    number: u64,
    /// Blocks that the store is to have.
    pub(crate) blocks: u64,
}

impl<S: Subject> Sim<S> {
    /// Asks for a larger store, and sometimes waits for it; now and then for a smaller one, in vain.
    pub(crate) fn grow(&mut self) -> Flow<()> {
        let (now, zone) =
            (self.params.options.disk_blocks, u64::from(self.params.options.zone_blocks));
        if self.growing.is_some() {
            return Ok(());
        }
        let more =
            [zone * self.rng.within(1, 6), now / 2, now, 3 * now][self.rng.below(4) as usize];
        let shrinks = self.rng.once_in(8);
        let wanted = if shrinks { now - zone } else { (now + more) / zone * zone };
        let Some(store) = self.store.as_ref().filter(|_| wanted <= ZONES_MAX * zone) else {
            return Ok(());
        };
        let asked = store.grow(wanted);
        self.say(|| format!("grow to {wanted} blocks: {asked:?}"));
        match asked {
            Ok(_) if shrinks => {
                Err(Failure::new(Checker::StoreSize, "a store was made smaller").into())
            }
            Ok(number) => {
                self.growing = Some(Growing { number, blocks: wanted });
                self.note_durable()?;
                if self.rng.percent(60) { self.drive_growth() } else { Ok(()) }
            }
            Err(error) if error.kind() == Kind::InvalidInput && !self.disk.is_down() => {
                self.reach.hit(if shrinks {
                    "growth: a smaller store is refused"
                } else {
                    "growth: refused, since nothing would be gained"
                });
                Ok(())
            }
            Err(error)
                if error.kind() == Kind::NoSpace
                    && !self.disk.is_down()
                    && !self.disk.has_failed() =>
            {
                self.reach.hit("growth: refused, since the host is full");
                Ok(())
            }
            Err(error) => Err(self.judge("growth", &error)),
        }
    }

    /// Steps until the growth that was asked for is done.
    fn drive_growth(&mut self) -> Flow<()> {
        for _ in 0..STEP_LIMIT {
            if self.growing.is_none() {
                return Ok(());
            }
            for step in [Step::Settle, Step::Checkpoint] {
                self.step(step)?;
            }
        }
        let stuck = format!("a growth is not durable after {STEP_LIMIT} rounds of steps");
        Err(Failure::new(Checker::Progress, stuck).into())
    }

    /// Learns that the store is larger.
    pub(crate) fn note_growth(&mut self) -> Result<(), Failure> {
        let Some(store) = &self.store else { return Ok(()) };
        let Some(growing) = self.growing.take_if(|growing| store.grown() >= growing.number) else {
            return Ok(());
        };
        self.params.options.disk_blocks = growing.blocks;
        self.judge_size(None)
    }

    /// Compares the size of the store that was opened with what it had, or was about to get.
    pub(crate) fn resolve_size(&mut self) -> Result<(), Failure> {
        let growing = self.growing.take();
        self.judge_size(growing)
    }

    fn judge_size(&mut self, growing: Option<Growing>) -> Result<(), Failure> {
        let Some(store) = &self.store else { return Ok(()) };
        let (found, right) = (store.size(&self.params.options), self.params.options.disk_blocks);
        let or = growing.map(|growing| growing.blocks);
        if found != right && Some(found) != or && self.disk.damage() == 0 {
            let message = format!(
                "the store has {found} blocks; right is {right}, or what was asked for: {or:?}"
            );
            return Err(Failure::new(Checker::StoreSize, message));
        }
        if Some(found) == or {
            self.reach.hit("growth: found after a crash, before anybody was told");
        }
        self.params.options.disk_blocks = found;
        Ok(())
    }
}
