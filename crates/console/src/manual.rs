//! The manual pages of a command, from the same definitions as its `--help`.

use std::{fs, path::PathBuf};

use clap::{Args, Command};

use crate::{failure::Failure, output};

/// Writes the manual pages into a directory
#[derive(Debug, Args)]
#[command(hide = true)]
pub struct Options {
    /// The directory; made when it is not there
    directory: PathBuf,
}

/// Writes a page for the command and one for each of its verbs.
///
/// # Errors
/// When the directory can't be made or written.
pub fn run(options: &Options, command: Command) -> Result<(), Failure> {
    let directory = &options.directory;
    let written =
        fs::create_dir_all(directory).and_then(|()| clap_mangen::generate_to(command, directory));
    written.map_err(|e| {
        Failure::new(format!("the manual pages can't be written into {}: {e}", directory.display()))
    })?;
    output::line(format_args!("manual pages are in {}", directory.display()));
    Ok(())
}
