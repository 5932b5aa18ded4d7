//! The long trims that a step over a volume, such as a snapshot, waits for.
//!
//! A layer has no long trims that are still to reach objects, so they are applied first. Its clients may add more of
//! them all the time: a step applies those that were there when it began, and gives up after a while.

use std::time::Duration;

use onefold_core::{Error, Kind, Result};

use super::Volume;

/// Whether to go on with a step: an error where the one who asked for it has gone, or the server is stopping.
pub type GoesOn<'a> = &'a dyn Fn() -> Result<()>;

/// Goes on in any case.
pub(crate) fn always() -> Result<()> {
    Ok(())
}

/// How long a step in a server waits for long trims, while clients of the volume go on or nobody has it, by the time of
/// the store. A client's long trim waits, too, and behind it what that client asks for: with the other waits this is well
/// below the 30 s after which the block device of a guest gives up.
const WAIT: Duration = Duration::from_secs(10);

/// The same for those that came meanwhile. Clients of the volume wait, and its lock is not renewed: with the wait for
/// requests before it this is less than two thirds of a lease.
const WAIT_ALONE: Duration = Duration::from_secs(2);

/// Until when somebody waits for trims.
#[derive(Clone, Copy)]
pub(crate) struct Wait<'a> {
    goes_on: GoesOn<'a>,
    /// `None` without a bound.
    most: Option<Duration>,
}

impl<'a> Wait<'a> {
    /// Without a bound in time.
    pub(crate) fn unbounded() -> Wait<'static> {
        Wait { goes_on: &always, most: None }
    }

    /// For a step that a server does.
    pub(crate) fn served(goes_on: GoesOn<'a>) -> Wait<'a> {
        Wait { goes_on, most: Some(WAIT) }
    }

    /// For what came while the step waited, and the volume is nobody else's now.
    pub(crate) fn alone(goes_on: GoesOn<'a>) -> Wait<'a> {
        Wait { goes_on, most: Some(WAIT_ALONE) }
    }

    /// Does steps until one says that none is left. `volume` is for the error alone.
    ///
    /// # Errors
    /// Those of a step and of who asked; `Busy` when it takes too long.
    pub(super) fn each(
        self,
        volume: &str,
        time: impl Fn() -> Duration,
        mut step: impl FnMut() -> Result<bool>,
    ) -> Result<()> {
        let begun = time();
        loop {
            (self.goes_on)()?;
            if !step()? {
                return Ok(());
            }
            if self.most.is_some_and(|most| time().saturating_sub(begun) > most) {
                let what = format!(
                    "trims of volume '{}' are still being applied: try again later",
                    volume.escape_debug()
                );
                return Err(Error::new(Kind::Busy, what));
            }
        }
    }
}

/// Applies all long trims of a volume that this session has alone.
///
/// # Errors
/// Those of the store, and as [`Wait::each`].
pub(crate) fn apply_all(volume: &Volume, wait: Wait<'_>) -> Result<()> {
    if volume.trims.last().is_none() {
        return Ok(());
    }
    let kernel = volume.objects.kernel();
    let time = || kernel.store().time();
    let mut renewed = time();
    wait.each(volume.name(), time, || {
        // Nobody else renews it: who finds its lock ended shuts this session out.
        if time().saturating_sub(renewed) > kernel.settings().volume_lease / 4 {
            renewed = time();
            volume.renew()?;
        }
        volume.discard_step()
    })
}
