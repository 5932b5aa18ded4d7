//! `cargo xtask man`: the manual pages, from the command's own description of itself.

use anyhow::{Result, ensure};

use crate::{
    machine,
    product::{Build, Onefold, path},
};

/// Writes them into `target/man`, or the directory given.
pub(crate) fn run(arguments: &[String]) -> Result<bool> {
    ensure!(arguments.len() <= 1, "man takes at most a directory");
    let directory = arguments
        .first()
        .map_or_else(|| machine::root().join("target").join("man"), std::path::PathBuf::from);
    let onefold = Onefold::build(Build::Test)?;
    onefold.verb(["man", path(&directory)])?;
    println!(
        "the manual pages are in {}; look at one with: man {}/onefold.1",
        directory.display(),
        directory.display()
    );
    Ok(true)
}
