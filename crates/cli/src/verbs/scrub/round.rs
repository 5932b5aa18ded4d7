//! `onefold scrub --round`: of an archive only what is due, so that all data is read once in a time.

use std::time::{Duration, Instant};

use onefold::parts::archive_dir::{ArchiveDir, now};
use onefold_archive::{Portion, ScrubRound};
use onefold_core::{Error, Kind, Result};
use serde::Serialize;

use onefold_console::{
    failure::Failure,
    output,
    progress::Progress,
    size::{Size, counted},
};

/// What was read.
#[derive(Debug, Serialize)]
struct Read {
    containers: u64,
    bytes: u64,
    problems: Vec<String>,
    problems_found: u64,
    /// All data was read: the next scrub begins another round.
    round_ended: bool,
    well: bool,
}

/// Reads what is due of a round that takes `round`, for `time` at most.
pub(super) fn run(
    directory: &ArchiveDir,
    memory: u64,
    (round, time): (Duration, Option<Duration>),
    json: bool,
) -> Result<(), Failure> {
    let archive = directory.open_to_mend(memory)?;
    if !archive.is_writable() {
        let what = "a round is noted in the archive, and this user can't change it";
        return Err(Error::new(Kind::Denied, what).into());
    }
    let (begun, bar) = (Instant::now(), Progress::new("scrubbing"));
    let mut scrub = ScrubRound::begin(&archive, now())?;
    let due = scrub.due_bytes(now(), round.as_secs())?;
    let mut read = 0;
    while read < due && time.is_none_or(|time| begun.elapsed() < time) {
        match scrub.step(now())? {
            Some(bytes) => read += bytes,
            None => break,
        }
        bar.set(read, due);
    }
    let Portion { containers, bytes, problems, problems_found, ended } = scrub.end(now())?;
    drop(bar);
    let well = problems_found == 0;
    let read = Read { containers, bytes, problems, problems_found, round_ended: ended, well };
    let shown = directory.path().display();
    if json {
        output::json(&read)?;
    } else {
        let (containers, bytes) = (counted(read.containers, "container"), Size(read.bytes));
        output::line(format_args!("{containers} with {bytes} of data were read"));
        read.problems.iter().for_each(|what| output::line(format_args!("problem: {what}")));
        if read.round_ended {
            output::line(format_args!("all data of {shown} has been read in this round"));
        }
    }
    if read.well {
        return Ok(());
    }
    let problems = counted(read.problems_found, "problem");
    let advice = "`onefold check` says what is lost, and `onefold repair` restores what it can";
    Err(Failure::new(format!("{shown} is damaged: {problems}; {advice}")))
}
