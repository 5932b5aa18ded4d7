//! The part that all drivers of the schedule share: it reads the facts from an engine, and runs the
//! step that was decided.

use onefold_core::Result;

use super::{Event, Facts, Step, Unflushed};
use crate::engine::{Engine, idle::may_move_beside_requests};

impl Facts {
    /// The facts of an engine; with `pressure` a client waits for room.
    #[must_use]
    pub fn of(engine: &Engine, pressure: bool) -> Facts {
        Facts {
            pressure,
            checkpoint_due: engine.checkpoint_due(),
            checkpoint_useful: engine.checkpoint_useful(),
            checkpoint_running: engine.checkpoint_running(),
            may_share: may_move_beside_requests(&engine.kernel, &*engine.scheme),
        }
    }
}

impl Unflushed {
    /// The unflushed changes of an engine; with `pressure` a client waits for room.
    #[must_use]
    pub fn of(engine: &Engine, pressure: bool) -> Unflushed {
        Unflushed {
            newest: engine.kernel.newest().0,
            durable: engine.durable().0,
            blocks: engine.kernel.unflushed_blocks(),
            most: engine.settings().unflushed_blocks,
            pressure,
        }
    }
}

impl Step {
    /// Runs the step, and returns what to tell the schedule.
    ///
    /// # Errors
    /// `Stopped`, and the first failed write or flush, which stops all writes.
    pub fn run(self, engine: &Engine) -> Result<Event> {
        Ok(match self {
            Step::Flush => engine.flush().map(|()| Event::Flushed)?,
            Step::FlushForCheckpoint => engine.make_durable().map(|_| Event::Flushed)?,
            Step::Checkpoint => Event::Checkpoint(engine.checkpoint_step()?),
            Step::Idle(idleness) => Event::Idle(idleness, engine.idle_step(idleness)?),
        })
    }
}
