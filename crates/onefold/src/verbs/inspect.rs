//! `onefold inspect`.

use crate::failure::Failure;

/// Not yet
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  onefold inspect ")]
pub(crate) struct Options {}

pub(crate) fn run(_: &Options) -> Result<(), Failure> {
    Err(Failure::new("not yet"))
}
