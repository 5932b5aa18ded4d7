//! `onefold`: makes, serves, checks and measures stores of deduplicated blocks.
//!
//! | module | what it is for |
//! |---|---|
//! | [`arguments`], [`configuration`] | what was asked for, on the command line and in a file |
//! | [`verbs`] | one file for each verb |
//! | [`operator`] | what the operator says for the whole command, and warnings |
//! | [`archive_dir`] | an archive's directory |
//! | [`store_file`] | a store that nobody serves: looked at, or opened for work |
//! | [`control`] | a store that is served: verbs reach its server through the control socket |
//! | [`report`] | what `status` tells, as JSON and as text |
//!
//! How it speaks to people is in `onefold-console`.
//!
//! *Invariants:* a verb that fails says one sentence on standard error, and the exit status is 1; a
//! wrong command line is 2; 3 is a tree that was stored or restored but for what could not be read.
//! Nobody's closed pipe is a panic.

mod archive_dir;
mod arguments;
mod configuration;
mod control;
mod keeper;
mod operator;
mod report;
mod store_file;
mod verbs;

use std::{panic, process::ExitCode};

use onefold_console::failure::Failure;

fn main() -> ExitCode {
    quiet_guarded_panics();
    onefold_console::end("onefold", run())
}

/// Panics that become an error with a sentence of its own are not printed.
fn quiet_guarded_panics() {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if !onefold_backend::embedded::is_guarded() {
            usual(info);
        }
    }));
}

fn run() -> Result<(), Failure> {
    let arguments = configuration::read(std::env::args_os().collect())?;
    verbs::run(arguments)
}
