//! The simulator's command; see `onefold-sim --help`.

use std::process::ExitCode;

#[path = "../tests/toy/mod.rs"]
mod toy;

fn main() -> ExitCode {
    onefold_sim::cli::run::<toy::Toy>(std::env::args().skip(1))
}
