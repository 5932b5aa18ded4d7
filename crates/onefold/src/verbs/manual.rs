//! `onefold man`: the manual pages, from the same definitions as `--help`.

use std::{fs, path::PathBuf};

use clap::{Args, CommandFactory};

use crate::{arguments::Arguments, failure::Failure, output};

/// Writes the manual pages into a directory
#[derive(Debug, Args)]
#[command(hide = true)]
pub(crate) struct Options {
    /// The directory; made when it is not there
    directory: PathBuf,
}

/// Writes a page for the command and one for each verb.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let directory = &options.directory;
    let written = fs::create_dir_all(directory)
        .and_then(|()| clap_mangen::generate_to(Arguments::command(), directory));
    written.map_err(|e| {
        Failure::new(format!("the manual pages can't be written into {}: {e}", directory.display()))
    })?;
    output::line(format_args!("manual pages are in {}", directory.display()));
    Ok(())
}
