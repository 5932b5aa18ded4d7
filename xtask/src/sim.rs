//! `cargo xtask sim`: the simulator, built apart from the product.
//!
//! The simulator builds the engine with planted bugs that can be switched on. No run of cargo
//! builds both it and the product, since cargo gives all packages of one run the same features.

use std::time::Duration;

use anyhow::Result;

use crate::program::{cargo, show};

/// Longest run: 100,000 seeds.
const LIMIT: Duration = Duration::from_secs(24 * 3600);

/// Passes the arguments on.
pub(crate) fn run(arguments: &[String]) -> Result<bool> {
    if !show(cargo(["build", "--quiet", "--package", "onefold-sim"]), LIMIT)?.status.success() {
        return Ok(false);
    }
    Ok(show(command(arguments), LIMIT)?.status.success())
}

/// The simulator's command line.
pub(crate) fn command<I: AsRef<std::ffi::OsStr>>(
    arguments: impl IntoIterator<Item = I>,
) -> std::process::Command {
    let mut command = cargo(["run", "--quiet", "--package", "onefold-sim", "--"]);
    command.args(arguments);
    command
}
