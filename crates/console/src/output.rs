//! Standard output. A reader that went away (`onefold status | head -1`) is no error, and never a
//! panic.

use std::{
    fmt::Display,
    io::{self, ErrorKind, Write},
    sync::OnceLock,
};

use onefold_core::letters::{is_order, said_in_json};
use serde::Serialize;
use serde_json::Value;

use crate::failure::Failure;

/// The first failure.
static FAILED: OnceLock<io::Error> = OnceLock::new();

/// Prints lines for people. A control character that a path or a host's name brought along does not
/// reach the terminal.
pub fn line(text: impl Display) {
    let harmless = |c: char| {
        if is_order(c) && c != '\n' && c != '\t' { char::REPLACEMENT_CHARACTER } else { c }
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
    print(said_in_json(&text));
    Ok(())
}

/// An array of JSON that is printed one element after the other, as [`json`] prints a whole one.
#[derive(Default)]
pub struct Array {
    /// The element before, which needs to know whether one follows.
    held: Option<String>,
    begun: bool,
}

impl Array {
    /// Adds an element.
    ///
    /// # Errors
    /// It can't be written as JSON.
    pub fn add(&mut self, element: &impl Serialize) -> Result<(), Failure> {
        let text = serde_json::to_string_pretty(&[element])
            .map_err(|e| Failure::new(format!("the report can't be written as JSON: {e}")))?;
        let inner = text.trim_start_matches("[\n").trim_end_matches("\n]").to_owned();
        if !self.begun {
            self.begun = true;
            print("[");
        }
        if let Some(before) = self.held.replace(inner) {
            print(said_in_json(&format!("{before},")));
        }
        Ok(())
    }

    /// Ends the array.
    pub fn end(self) {
        match self.held {
            Some(last) => {
                print(said_in_json(&last));
                print("]");
            }
            None => print("[]"),
        }
    }
}

/// Prints a report as one line of JSON.
pub fn json_line(report: &Value) {
    print(said_in_json(&report.to_string()));
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

/// As [`finish`], behind what is shown this once: it is a failure, too, that nobody reads it any more.
pub fn shown_once() -> Result<(), Failure> {
    finish()?;
    match FAILED.get() {
        Some(_) => Err(Failure::new("the output can't be written: nobody reads it")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_09_json_gives_a_terminal_no_orders() {
        let name = "a\u{9b}2J\u{7f}\u{1b}é\u{a0}\u{202e}\u{2066}";
        let text = serde_json::to_string(name).unwrap_or_default();
        let said = said_in_json(&text);
        assert_eq!(said, "\"a\\u009b2J\\u007f\\u001bé\u{a0}\\u202e\\u2066\"");
        assert_eq!(serde_json::from_str::<String>(&said).unwrap_or_default(), name);
    }
}
