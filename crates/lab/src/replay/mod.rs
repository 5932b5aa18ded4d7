//! Replays requests on a subject in virtual time.
//!
//! One thread plays clients, store and device: it goes from event to event and sets the clock.
//! Requests come at their times; the store gathers them and commits in *rounds*, one at a time, as
//! the product does: a round begins when somebody waits for one (a flush, a write that is answered
//! when it is durable), after a second, or when too much is not durable; what comes meanwhile is
//! gathered for the next. A round's work is handed to the device at once, and the round ends when
//! the device is done with it.
//!
//! [`Clients`] chooses what clients wait for: as a rule they send nothing between a flush and its
//! answer, and the recorded gap begins with the answer.

mod oracle;
mod outcome;
mod plan;
mod run;

use std::{sync::Arc, time::Instant};

pub use onefold_block::schedule::Anticipation;
use onefold_core::Result;
use onefold_testbed::VirtualClock;

use self::run::Run;
pub use self::{
    outcome::{Latency, Outcome, Phase},
    plan::{Clients, Plan, Setting, Speed},
};
use crate::{request::Source, subject};

/// Replays all requests of a source. `progress` hears of the steps done.
///
/// # Errors
/// The source's, the engine's; `Corrupt` when a block reads back with wrong content.
pub fn replay(source: Source, plan: &Plan, progress: &mut dyn FnMut(u64)) -> Result<Outcome> {
    let begun = Instant::now();
    let clock = Arc::new(VirtualClock::default());
    let device = plan.device.open(subject::device_blocks(source.volume_blocks), clock.clone())?;
    let subject = subject::open(&plan.choice, source.volume_blocks, device.clone(), clock.clone())?;
    clock.advance_to(device.busy_until());
    let mut run = Run::new(plan, clock, device, subject);
    let cut = source.cut.clone();
    for item in source.requests {
        let (steps, request) = item?;
        run.request(&request)?;
        progress(steps);
    }
    let mut outcome = run.end()?;
    outcome.wall_seconds = begun.elapsed().as_secs_f64();
    outcome.cut_off = cut.get();
    Ok(outcome)
}
