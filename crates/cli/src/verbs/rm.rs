//! `onefold rm`: streams out of a store; in an archive their space comes back with `gc`.

use std::path::PathBuf;

use clap::Args;
use onefold_archive::Settings;
use serde_json::json;

use super::{Found, VOLUMES_ONLY, cluster, refused, snapshots};
use onefold_console::{
    failure::Failure,
    output::{self, Answer},
};

/// Removes streams, also beside a running put; in an archive `onefold gc` then frees their space
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  onefold rm backups etc-monday\n  onefold rm backups monday tuesday"
)]
pub(crate) struct Options {
    /// The store: an archive, or a store of the cluster engine
    store: PathBuf,

    /// The names of the streams
    #[arg(required = true)]
    names: Vec<String>,

    #[command(flatten)]
    answer: Answer,
}

/// Removes them one by one, each durably.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let directory = match Found::at(&options.store)? {
        Found::Archive(directory) => directory,
        Found::Cluster(url) => return cluster::remove(&url, &options.names, options.answer),
        other => return Err(refused(&options.store, &other, VOLUMES_ONLY)),
    };
    let archive = directory.open(Settings::default())?;
    for name in &options.names {
        archive.remove(name).map_err(|error| {
            let (store, shown, tables) =
                (options.store.display(), name.escape_debug(), archive.tables());
            // A set's name alone would be taken for all of the set.
            let is_set = tables.snapshots.listed().any(|snapshot| snapshot.set == *name);
            let newest = if is_set { "~0" } else { "" };
            let forget = format!("`onefold forget {store} {shown}{newest}` forgets that");
            snapshots::hinted(error, &tables, name, &forget)
        })?;
        if !options.answer.json {
            output::line(format_args!("removed '{}'", name.escape_debug()));
        }
    }
    if options.answer.json { output::json(&json!({ "removed": options.names })) } else { Ok(()) }
}
