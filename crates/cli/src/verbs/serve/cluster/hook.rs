//! Commands of the operator for the shell, run when a server takes over and when it serves no more.

use std::{
    os::unix::process::CommandExt,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use onefold_core::{Error, Kind};

/// How long a command may take: clients wait for it.
const MOST: Duration = Duration::from_secs(30);

/// Between two looks whether it has ended.
const LOOK: Duration = Duration::from_millis(50);

/// A command, and what it finds in its environment.
pub(super) struct Hook {
    /// The option that gave it.
    pub(super) option: &'static str,
    pub(super) command: String,
    pub(super) variables: Vec<(&'static str, String)>,
}

impl Hook {
    /// Runs the command, and waits for it. Its whole process group is killed when it takes too long, and when
    /// `ends`, which waits for so long, gives an end: that is returned.
    ///
    /// # Errors
    /// When it can't be run, failed, or took too long.
    pub(super) fn run<End>(
        &self,
        ends: &mut dyn FnMut(Duration) -> Option<End>,
    ) -> Result<Option<End>, Error> {
        let option = self.option;
        let failed =
            |error| Error::from_io(format_args!("the command of {option} can't be run"), error);
        let mut child = Command::new("/bin/sh")
            .args(["-c", &self.command])
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        let begun = Instant::now();
        let end = loop {
            if let Some(status) = child.try_wait().map_err(failed)? {
                return match status.success() {
                    true => Ok(None),
                    false => Err(Error::new(
                        Kind::Io,
                        format!("the command of {option} failed ({status})"),
                    )),
                };
            }
            let end = ends(LOOK);
            if end.is_some() || begun.elapsed() >= MOST {
                break end;
            }
        };
        // With all that it began. It may have ended meanwhile.
        if let Some(group) = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw)
        {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        let _ = child.wait();
        match end {
            Some(end) => Ok(Some(end)),
            None => Err(Error::new(
                Kind::Io,
                format!("the command of {option} did not end in {} s", MOST.as_secs()),
            )),
        }
    }
}
