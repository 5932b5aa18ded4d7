//! `onefold index`: where the chunk index of an archive is.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use super::archive_at;
use onefold::parts::index_move::move_index;
use onefold_console::{failure::Failure, output::Answer, progress::Progress, size::counted};

/// Moves the chunk index of an archive to a directory on a faster disk, or back
///
/// The index tells which chunks are stored already. It can be made anew from the data, so a directory
/// that is lost, full or older than the archive costs time and no data. All else stays where it is.
/// Puts wait meanwhile, and a server has to be stopped.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
                  onefold index backups --fast /ssd/backups\n  \
                  onefold index backups --beside-data")]
pub(crate) struct Options {
    /// The archive
    #[arg(value_name = "ARCHIVE")]
    store: PathBuf,

    /// A directory that is empty, or does not exist yet, for the index of this archive alone
    #[arg(long, value_name = "DIR", required_unless_present = "beside_data")]
    fast: Option<PathBuf>,

    /// Back into the archive's own directory
    #[arg(long, conflicts_with = "fast")]
    beside_data: bool,

    #[command(flatten)]
    answer: Answer,
}

/// Moves it, and says where it is.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let directory = archive_at(&options.store, "its index stays with its data")?;
    let to = options.fast.as_deref();
    let bar = Progress::of("making the chunk index anew", "containers");
    let entries = move_index(&directory, to, &mut |done, total| bar.set(done, total))?;
    drop(bar);
    let report = json!({
        "store": options.store.display().to_string(),
        "index_directory": to.map(|to| to.display().to_string()),
        "index_entries": entries,
    });
    let place =
        to.map_or_else(|| "beside the data".to_owned(), |to| format!("in {}", to.display()));
    options.answer.tell(
        &report,
        format_args!(
            "the chunk index of {} is {place}, with {}",
            options.store.display(),
            counted(entries, "entry")
        ),
    )
}
