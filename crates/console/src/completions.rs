//! A shell's completions of a command, from the same definitions as its `--help`.

use clap::{Args, Command};
use clap_complete::{Shell, generate};

use crate::{failure::Failure, output};

/// Prints what a shell needs to complete this command's words
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
                  onefold completions bash > /etc/bash_completion.d/onefold\n  \
                  onefold completions fish > ~/.config/fish/completions/onefold.fish")]
pub struct Options {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Prints the completions of a command to standard output.
///
/// # Errors
/// When standard output can't be written.
pub fn run(options: &Options, mut command: Command) -> Result<(), Failure> {
    let (name, mut text) = (command.get_name().to_owned(), Vec::new());
    generate(options.shell, &mut command, name, &mut text);
    output::line(String::from_utf8_lossy(&text).trim_end());
    Ok(())
}
