//! The simulator's command; see `onefold-sim --help`.

use std::process::ExitCode;

use onefold_sim::engine::Thin;

fn main() -> ExitCode {
    onefold_sim::cli::run::<Thin>(std::env::args().skip(1))
}
