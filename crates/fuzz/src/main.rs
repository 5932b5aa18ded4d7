//! The runner's command; see [`onefold_fuzz::runner`].

use std::process::ExitCode;

fn main() -> ExitCode {
    onefold_fuzz::runner::main(std::env::args().skip(1))
}
