//! Standard output. A reader that went away (`onefold status | head -1`) is no error, and never a panic.

use std::{
    fmt::Display,
    io::{self, ErrorKind, Write},
    sync::OnceLock,
};

use crate::failure::Failure;

/// The first failure.
static FAILED: OnceLock<io::Error> = OnceLock::new();

/// Prints a line. Failures are kept for [`finish`], so that a verb does its work to the end.
pub(crate) fn line(text: impl Display) {
    if FAILED.get().is_none()
        && let Err(error) = writeln!(io::stdout().lock(), "{text}")
    {
        let _ = FAILED.set(error);
    }
}

/// Writes out what is still held, and tells whether all of it arrived.
pub(crate) fn finish() -> Result<(), Failure> {
    if let Err(error) = io::stdout().lock().flush() {
        let _ = FAILED.set(error);
    }
    match FAILED.get() {
        Some(error) if error.kind() != ErrorKind::BrokenPipe => Err(Failure::new(format!("the output can't be written: {error}"))),
        _ => Ok(()),
    }
}
