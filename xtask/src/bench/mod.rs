//! `cargo xtask bench`: measurements, side by side in one run.

mod block;
mod fio;
mod peer;

use std::time::Duration;

use anyhow::{Result, bail};

use crate::{
    cleanup::Scratch,
    product::path,
    program::{cargo, show},
};

const USAGE: &str = "\
cargo xtask bench block [--quick] [--only TEXT]   through NBD, against qemu-nbd on a raw file
cargo xtask bench engine [ARGUMENT…]              the engine alone, in process, against the raw file";

/// Runs a bench.
pub(crate) fn run(arguments: &[String]) -> Result<bool> {
    match arguments.split_first() {
        Some((which, rest)) if which == "block" => block::run(rest),
        Some((which, rest)) if which == "engine" => engine(rest),
        _ => bail!("which?\n\n{USAGE}"),
    }
}

/// The bench inside the engine's crate, on files of its own.
fn engine(arguments: &[String]) -> Result<bool> {
    let scratch = Scratch::new("bench-engine")?;
    let mut command = cargo(["bench", "--quiet", "--package", "onefold-block", "--bench", "engine", "--"]);
    if !arguments.iter().any(|argument| argument == "--file") {
        command.args(["--file", path(&scratch.file("engine"))]);
    }
    command.args(arguments);
    Ok(show(command, Duration::from_secs(2 * 3600))?.status.success())
}

/// The middle one.
fn median(figures: &[f64]) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}
