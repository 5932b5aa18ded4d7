//! `cargo xtask sim`: the simulator, built apart from the product.
//!
//! The simulator builds the engine with planted bugs that can be switched on. No run of cargo
//! builds both it and the product, since cargo gives all packages of one run the same features.

use std::{fs, process::Command, time::Duration};

use anyhow::{Context, Result};

use crate::{
    machine,
    product::{BUILD_LIMIT, builds},
    program::{cargo, program, run as run_program, show},
};

/// Longest run: 100,000 seeds.
const LIMIT: Duration = Duration::from_secs(24 * 3600);

/// How cargo is asked for it. With all packages, and an example, crates that others provide have the
/// features which they have in the product's tests, and are not compiled once more.
const BUILD: [&str; 7] =
    ["build", "--quiet", "--workspace", "--bin", "onefold-sim", "--example", "null"];

/// Passes the arguments on.
pub(crate) fn run(arguments: &[String]) -> Result<bool> {
    Ok(show(command(arguments)?, LIMIT)?.status.success())
}

/// The simulator's command line; builds it.
pub(crate) fn command<I: AsRef<std::ffi::OsStr>>(
    arguments: impl IntoIterator<Item = I>,
) -> Result<Command> {
    run_program(cargo(BUILD), BUILD_LIMIT).context("building the simulator")?;
    let binary = builds().join("debug").join("onefold-sim");
    let mut command = program(&binary.to_string_lossy());
    command.args(arguments);
    Ok(command)
}

/// How cargo is told which tests are the simulator's: by the names of their files, since a package that
/// is named alone gets other features.
pub(crate) fn tests() -> Result<Vec<String>> {
    let mut named = vec!["--workspace".to_owned()];
    let folder = machine::root().join("crates/sim/tests");
    for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
        let file = entry?.path();
        if let (Some("rs"), Some(name)) =
            (file.extension().and_then(|end| end.to_str()), file.file_stem())
        {
            named.extend(["--test".to_owned(), name.to_string_lossy().into_owned()]);
        }
    }
    Ok(named)
}
