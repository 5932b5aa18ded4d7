//! Standard output. A reader that went away (`onefold status | head -1`) is no error, and never a
//! panic.

use std::{
    fmt::Display,
    io::{self, ErrorKind, Write},
    sync::OnceLock,
};

use serde::Serialize;

use crate::failure::Failure;

/// The first failure.
static FAILED: OnceLock<io::Error> = OnceLock::new();

/// Prints lines for people. A control character that a path or a host's name brought along does not
/// reach the terminal.
pub fn line(text: impl Display) {
    let harmless = |c: char| {
        if c.is_control() && c != '\n' && c != '\t' { char::REPLACEMENT_CHARACTER } else { c }
    };
    print(text.to_string().chars().map(harmless).collect::<String>());
}

/// Prints a line as it is. Failures are kept for [`finish`], so that a verb does its work to the
/// end.
fn print(text: impl Display) {
    if FAILED.get().is_none()
        && let Err(error) = writeln!(io::stdout().lock(), "{text}")
    {
        let _ = FAILED.set(error);
    }
}

/// Prints a report as JSON.
pub fn json(report: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(report)
        .map_err(|e| Failure::new(format!("the report can't be written as JSON: {e}")))?;
    print(text);
    Ok(())
}

/// How a verb tells what it did.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Answer {
    /// Prints JSON, whose keys are stable
    #[arg(long)]
    pub json: bool,
}

impl Answer {
    /// Tells it: as JSON, or in words.
    pub fn tell(self, report: &impl Serialize, words: impl Display) -> Result<(), Failure> {
        if self.json {
            return json(report);
        }
        line(words);
        Ok(())
    }
}

/// Writes out what is still held, and tells whether all of it arrived.
pub fn finish() -> Result<(), Failure> {
    if let Err(error) = io::stdout().lock().flush() {
        let _ = FAILED.set(error);
    }
    match FAILED.get() {
        Some(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::new(format!("the output can't be written: {error}")))
        }
        _ => Ok(()),
    }
}
