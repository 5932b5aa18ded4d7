//! `cargo xtask threads` and `cargo xtask miri`: the store's and the server's threads under a
//! scheduler that looks for races, and memory that native code writes to under an interpreter that
//! looks at each access.

use std::{process::Command, time::Duration};

use anyhow::{Result, ensure};

use crate::{
    machine,
    product::builds,
    program::{cargo, program, show},
};

/// Longest that either may take, with what has to be built.
const LIMIT: Duration = Duration::from_secs(30 * 60);

/// The tests in `threads/`. They share the product's folder of builds: flags for all crates would
/// have everything built once more, so a script in place of the compiler adds one for ours.
pub(crate) fn command() -> Command {
    let mut command = cargo(["test", "--quiet", "--locked", "--no-fail-fast", "--"]);
    let folder = machine::root().join("threads");
    command.env("RUSTC_WRAPPER", folder.join("scheduled"));
    command.env("CARGO_TARGET_DIR", builds()).current_dir(folder);
    command
}

/// Runs them, or those whose names contain an argument.
pub(crate) fn run(arguments: &[String]) -> Result<bool> {
    let mut command = command();
    command.args(arguments);
    Ok(show(command, LIMIT)?.status.success())
}

/// Tests that Miri can run: most others make system calls that it does not know.
const PURE: [&str; 6] = [
    "rados::",
    "accounts::",
    "file_disk::transfer",
    "locality::",
    "peer::tests::ids_that",
    "only_root_and",
];

/// Tests beside them that it can't run.
const NOT_PURE: [&str; 2] = ["a_write_without_room", "the_mount_of"];

/// Runs the tests of `rados/operation` under Miri, and what else of the backend makes no system
/// call.
pub(crate) fn miri() -> Result<bool> {
    ensure!(
        machine::find("rustup").is_some(),
        "Miri needs a nightly compiler: rustup toolchain install nightly --component miri,rust-src"
    );
    let mut command = program("cargo");
    command
        .args([
            "+nightly",
            "miri",
            "test",
            "--quiet",
            "--package",
            "onefold-backend",
            "--lib",
            "--",
        ])
        .args(PURE);
    command.args(NOT_PURE.iter().flat_map(|test| ["--skip", test]));
    command
        .env("MIRIFLAGS", "-Zmiri-disable-isolation")
        .env("CARGO_TARGET_DIR", machine::root().join("target/miri"));
    Ok(show(command, LIMIT)?.status.success())
}
