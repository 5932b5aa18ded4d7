//! The manual pages and the reference of a command, from the same definitions as its `--help`.

use std::{
    fs::DirBuilder,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use clap::{Args, Command};
use clap_mangen::Man;
use onefold_backend::new_file::replace;

use crate::{failure::Failure, output, reference};

/// Writes the manual pages into a directory
#[derive(Debug, Args)]
#[command(hide = true)]
pub struct Options {
    /// The directory; made when it is not there
    #[arg(required_unless_present = "markdown")]
    directory: Option<PathBuf>,

    /// Prints the reference of all verbs in Markdown instead
    #[arg(long, conflicts_with = "directory")]
    markdown: bool,
}

/// Writes a page for the command and one for each of its verbs, or prints the reference. A file
/// that has the name of a page is replaced, and no link is followed.
///
/// # Errors
/// When the directory can't be made or written.
pub fn run(options: &Options, command: Command) -> Result<(), Failure> {
    let Some(directory) = &options.directory else {
        output::line(reference::markdown(command).trim_end());
        return Ok(());
    };
    let mut command = command.disable_help_subcommand(true);
    command.build();
    DirBuilder::new().recursive(true).mode(0o755).create(directory).map_err(|e| {
        let shown = directory.display();
        Failure::new(format!("the manual pages can't be written into {shown}: {e}"))
    })?;
    pages(command, directory)?;
    output::line(format_args!("manual pages are in {}", directory.display()));
    Ok(())
}

fn pages(command: Command, directory: &Path) -> Result<(), Failure> {
    for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set()).cloned() {
        pages(verb, directory)?;
    }
    let (page, mut text) = (Man::new(command), Vec::new());
    page.render(&mut text)
        .map_err(|e| Failure::new(format!("the manual pages can't be made: {e}")))?;
    Ok(replace(&directory.join(page.get_filename()), &text)?)
}
