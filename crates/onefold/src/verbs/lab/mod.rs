//! `onefold lab`: compares schemes on a workload: recorded, replayed, generated.

mod paper;
mod rad;
mod record;
mod replay;
mod store_options;
mod sweep;

pub(crate) use replay::write_page;

use clap::{Args, Subcommand};

use crate::failure::Failure;

/// Compares schemes of deduplication on your workload, in virtual time
///
/// The real engine runs over a modelled device, whose time passes without anybody waiting. What
/// would be written, how often it would be flushed and how long requests would take are counted
/// exactly, and repeat.
#[derive(Debug, Args)]
#[command(disable_help_subcommand = true)]
#[command(
    after_help = "Examples:\n  onefold lab record --from nbd+unix:///vm1?socket=/run/onefold.sock --listen unix:/run/recorder.sock --out disk.dtrace.zst\n  \
                        onefold lab replay disk.dtrace.zst --json\n  onefold lab replay disk.dtrace.zst --persistence strong --device nvme-plp"
)]
pub(crate) struct Options {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Record(record::Options),
    Replay(replay::Options),
    Sweep(sweep::Options),
    Paper(paper::Options),
    Rad(rad::Options),
}

/// Does what was asked for.
pub(crate) fn run(options: Options) -> Result<(), Failure> {
    match options.verb {
        Verb::Record(options) => record::run(&options),
        Verb::Replay(options) => replay::run(&options),
        Verb::Sweep(options) => sweep::run(&options),
        Verb::Paper(options) => paper::run(&options),
        Verb::Rad(options) => rad::run(&options),
    }
}
