//! The verbs, one file each.

mod paper;
mod rad;
mod record;
mod reliability;
mod replay;
mod store_options;
mod sweep;

use clap::{CommandFactory, Subcommand};
use onefold_console::{failure::Failure, manual};

use crate::arguments::Arguments;

/// The verbs.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    Record(record::Options),
    Replay(replay::Options),
    Sweep(sweep::Options),
    Rad(rad::Options),
    Reliability(reliability::Options),
    Paper(paper::Options),
    Man(manual::Options),
}

/// Does what was asked for.
pub(crate) fn run(verb: Verb) -> Result<(), Failure> {
    match verb {
        Verb::Record(options) => record::run(&options),
        Verb::Replay(options) => replay::run(&options),
        Verb::Sweep(options) => sweep::run(&options),
        Verb::Rad(options) => rad::run(&options),
        Verb::Reliability(options) => reliability::run(&options),
        Verb::Paper(options) => paper::run(&options),
        Verb::Man(options) => manual::run(&options, Arguments::command()),
    }
}
