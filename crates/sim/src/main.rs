//! The simulator's command; see `onefold-sim --help`.

use std::process::ExitCode;

use onefold_sim::block::engine::Thin;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1).peekable();
    if arguments.next_if(|argument| argument == "archive").is_some() {
        return onefold_sim::archive::cli::run(arguments);
    }
    if arguments.next_if(|argument| argument == "cluster").is_some() {
        return onefold_sim::cluster::cli::run(arguments);
    }
    onefold_sim::block::cli::run::<Thin>(arguments)
}
