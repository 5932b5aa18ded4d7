//! `onefold rm`: streams out of an archive; their space comes back with `gc`.

use std::path::PathBuf;

use clap::Args;
use onefold_archive::Settings;
use serde_json::json;

use onefold::parts::archive_dir::ArchiveDir;
use onefold_console::{
    failure::Failure,
    output::{self, Answer},
};

/// Removes streams, also beside a running put; `onefold gc` gives their space back
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  onefold rm backups etc-monday\n  onefold rm backups monday tuesday"
)]
pub(crate) struct Options {
    /// The archive
    archive: PathBuf,

    /// The names
    #[arg(required = true)]
    names: Vec<String>,

    #[command(flatten)]
    answer: Answer,
}

/// Removes them one by one, each durably.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let archive = ArchiveDir::look(&options.archive)?.open(Settings::default())?;
    for name in &options.names {
        archive.remove(name)?;
        if !options.answer.json {
            output::line(format_args!("removed {name:?}"));
        }
    }
    if options.answer.json { output::json(&json!({ "removed": options.names })) } else { Ok(()) }
}
