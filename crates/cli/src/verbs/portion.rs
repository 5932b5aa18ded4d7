//! Long work in portions: at a rate, for a time, and with a file that says how far it is.

use std::{
    fs,
    io::{self, Read},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use clap::Args;
use onefold_backend::new_file;
use onefold_core::{Error, Kind};
use rustix::fs::OFlags;

use onefold_console::{failure::Failure, size::Size};

/// How often the file is written.
const KEPT_EVERY: Duration = Duration::from_secs(10);

/// Most bytes of such a file: a million names of an estimate have 36 MB.
const FILE_MAX: u64 = 64 << 20;

/// How much of a long work is done by one call.
#[derive(Debug, Args)]
pub(crate) struct Portion {
    /// Bytes that are read in a second at most: of a pool, or of a store of the cluster engine
    #[arg(long, value_name = "SIZE")]
    pub(crate) rate: Option<Size>,

    /// Of a pool, or of a store of the cluster engine: keeps in this file how far the work is, every 10
    /// seconds, and goes on there the next time. When all is done, the file is removed
    #[arg(long, value_name = "FILE")]
    pub(crate) cursor: Option<PathBuf>,
}

impl Portion {
    /// True when something of it was asked for.
    pub(crate) fn is_asked(&self) -> bool {
        self.rate.is_some() || self.cursor.is_some()
    }
}

/// The clock of a portion.
pub(crate) struct Pace {
    begun: Instant,
    kept: Instant,
    rate: Option<u64>,
    time: Option<Duration>,
}

impl Pace {
    pub(crate) fn begin(portion: &Portion, time: Option<Duration>) -> Pace {
        let now = Instant::now();
        Pace { begun: now, kept: now, rate: portion.rate.map(|rate| rate.0), time }
    }

    /// Waits until so many bytes since the beginning are due.
    pub(crate) fn hold(&self, bytes: u64) {
        if let Some(rate) = self.rate {
            let due = Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64);
            std::thread::sleep(due.saturating_sub(self.begun.elapsed()));
        }
    }

    /// True when the time is over.
    pub(crate) fn is_over(&self) -> bool {
        self.time.is_some_and(|time| self.begun.elapsed() >= time)
    }

    /// True once in ten seconds.
    pub(crate) fn keeps(&mut self) -> bool {
        let due = self.kept.elapsed() >= KEPT_EVERY;
        if due {
            self.kept = Instant::now();
        }
        due
    }
}

/// What the file holds; nothing when it is not there. Where others can change its directory, they put something
/// without an end in its place between two looks: so it is opened once.
pub(crate) fn read(file: &Path) -> Result<Option<Vec<u8>>, Failure> {
    let failed = |e| Error::from_io(format_args!("{} can't be read", file.display()), e);
    // A pipe would have the process wait for its other end.
    let calm = (OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32;
    let opened = match fs::OpenOptions::new().read(true).custom_flags(calm).open(file) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(failed)?,
    };
    if !opened.metadata().map_err(failed)?.is_file() {
        return Err(is_none(file));
    }
    let mut content = Vec::new();
    opened.take(FILE_MAX + 1).read_to_end(&mut content).map_err(failed)?;
    if content.len() as u64 > FILE_MAX { Err(is_none(file)) } else { Ok(Some(content)) }
}

/// Puts another content in the file's place; durable on return.
pub(crate) fn write(file: &Path, content: &[u8]) -> Result<(), Failure> {
    Ok(new_file::replace_durably(file, content)?)
}

/// Removes the file when all is done.
pub(crate) fn remove(file: &Path) -> Result<(), Failure> {
    match fs::remove_file(file) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            Err(Error::from_io(format_args!("{} can't be removed", file.display()), e).into())
        }
        _ => Ok(()),
    }
}

/// The file is no cursor, or one of other work.
pub(crate) fn is_none(file: &Path) -> Failure {
    let why = format!(
        "{} does not say how far this work is: name another file, or remove it to begin anew",
        file.display()
    );
    Error::new(Kind::InvalidInput, why).into()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

    use super::*;

    #[test]
    fn rule_07_what_is_no_file_or_has_no_end_is_no_cursor() {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path().join("cursor");
        assert!(read(&at).unwrap().is_none());
        fs::write(&at, "{}").unwrap();
        assert_eq!(read(&at).unwrap().unwrap(), b"{}");
        fs::File::create(&at).unwrap().set_len(FILE_MAX + 1).unwrap();
        assert!(read(&at).is_err());
        fs::remove_file(&at).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &at).unwrap();
        assert!(read(&at).is_err());
        fs::remove_file(&at).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, &at, rustix::fs::Mode::RUSR).unwrap();
        assert!(read(&at).is_err(), "nobody writes to it");
    }
}
