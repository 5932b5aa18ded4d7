//! `onefold mv`: a stream gets another name.

use std::path::PathBuf;

use clap::Args;
use onefold_archive::Settings;
use serde_json::json;

use super::{Found, VOLUMES_ONLY, cluster, refused, snapshots};
use onefold_console::{failure::Failure, output::Answer};

/// Gives a stream another name
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  onefold mv backups monday tuesday")]
pub(crate) struct Options {
    /// The store: an archive, or a store of the cluster engine
    store: PathBuf,

    /// The stream
    name: String,

    /// Its new name
    new_name: String,

    #[command(flatten)]
    answer: Answer,
}

/// Renames it, durably.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let Options { store, name, new_name, answer } = options;
    match Found::at(store)? {
        Found::Archive(directory) => {
            let archive = directory.open(Settings::default())?;
            archive.rename(name, new_name).map_err(|error| {
                let called = "it is called by its set and its time, and keeps both";
                snapshots::hinted(error, &archive.tables(), name, called)
            })?;
        }
        Found::Cluster(url) => cluster::rename(&url, name, new_name)?,
        other @ Found::Block(_) => return Err(refused(store, &other, VOLUMES_ONLY)),
    }
    answer.tell(
        &json!({ "renamed": name, "to": new_name }),
        format_args!("renamed '{}' to '{}'", name.escape_debug(), new_name.escape_debug()),
    )
}
