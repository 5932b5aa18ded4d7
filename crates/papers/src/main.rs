//! `onefold-lab`: records workloads, replays them on modelled devices, and repeats the papers'
//! experiments.
//!
//! A paper is a list of [`item::Item`]s, one for each thing that it states: which [`case::Case`]s
//! it needs, when it counts as reproduced, and how its plot is drawn. Cases that several items need
//! are run once. Every figure comes from a [replay](onefold_lab::replay) of the real engine, or
//! from [crashes](onefold_lab::crash) of it.
//!
//! | file | what is there |
//! |---|---|
//! | `arguments`, `verbs` | the command line, one file for each verb |
//! | `case` | a run: what is written, how, on which system; what came out |
//! | `item` | a statement: its cases, its verdict, its plots |
//! | `crashes` | what power failures come to, for the statements about them |
//! | `run` | all items of a paper, into results and a page |
//! | [`thindedup`], [`ordermerge`], [`global`], [`dedupv1`], [`rad`] | the papers |
//!
//! *Invariant:* nothing of the product imports it; the shipped command carries no experiment.

mod arguments;
mod case;
mod crashes;
mod dedupv1;
mod global;
mod item;
mod ordermerge;
mod rad;
mod run;
mod thindedup;
mod verbs;

use std::process::ExitCode;

use clap::Parser;
use onefold_console::{failure::Failure, logging};

use arguments::Arguments;

fn main() -> ExitCode {
    onefold_console::end("onefold-lab", run())
}

fn run() -> Result<(), Failure> {
    let arguments = Arguments::try_parse()?;
    logging::start(arguments.log.as_deref())?;
    verbs::run(arguments.verb)
}
