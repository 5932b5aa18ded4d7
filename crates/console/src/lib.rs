//! How Onefold's two commands, `onefold` and `onefold-lab`, speak with people.
//!
//! | module | what it gives |
//! |---|---|
//! | [`failure`] | one sentence and an exit status for what went wrong |
//! | [`output`] | standard output, for people and as JSON |
//! | [`progress`] | how far long work is |
//! | [`size`] | sizes, ranges, numbers and times as people write and read them |
//! | [`logging`] | the log on standard error |
//! | [`address`] | where servers listen, as it is written in options |
//! | [`access`] | the file that says which peers may use which volumes |
//! | [`manual`], [`reference`], [`completions`] | the manual pages of a command, its reference in Markdown, and what shells complete |
//!
//! *Invariants:* nothing here knows an engine. A closed pipe is no panic. A control character that
//! a file's name brought along reaches neither the terminal nor a line of the log.

pub mod access;
pub mod address;
pub mod completions;
pub mod failure;
pub mod logging;
pub mod manual;
pub mod output;
pub mod progress;
pub mod reference;
pub mod size;

use std::process::ExitCode;

use failure::Failure;

/// The end of a command: what was printed is part of what was asked for.
pub fn end(command: &str, done: Result<(), Failure>) -> ExitCode {
    match done.and(output::finish()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.tell(command),
    }
}
