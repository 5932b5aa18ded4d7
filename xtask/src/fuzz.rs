//! `cargo xtask fuzz`: hostile bytes for everything that reads bytes from others.
//!
//! With a nightly compiler and cargo-fuzz, the targets run under libFuzzer, guided by coverage;
//! otherwise, and in CI, our own runner mutates good examples by a seed.

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::{
    machine,
    product::{Build, built, path},
    program::{program, show},
    test::Tally,
};

/// All targets, as in `crates/fuzz`.
const TARGETS: [&str; 42] = [
    "superblock",
    "zone_list",
    "claim",
    "key_area",
    "sealed_block",
    "carrier",
    "map_page",
    "image",
    "repaired_image",
    "tools",
    "stream",
    "trace",
    "nbd_session",
    "vhost_ring",
    "vhost_messages",
    "nbd_secured",
    "certificate",
    "access_file",
    "connection",
    "control",
    "http_head",
    "archive",
    "nodes",
    "index",
    "counts",
    "maps",
    "tables",
    "leaf",
    "label",
    "node_label",
    "log",
    "record",
    "snapshot",
    "event",
    "tree_node",
    "container",
    "recipe",
    "listing",
    "cluster",
    "objects",
    "folder",
    "bucket",
];

/// Seconds for each target in CI: all of them are done in about a minute. Long runs are asked for by
/// name.
const CI_SECONDS: u64 = 3;

/// Runs the targets named, or all. With `--grow`, our own runner adds to the corpus what reached a
/// sentence of its own.
pub(crate) fn run(arguments: &[String]) -> Result<bool> {
    let mut seconds = 60;
    let (mut targets, mut grow) = (Vec::new(), false);
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "--seconds" => {
                seconds = rest.next().and_then(|value| value.parse().ok()).unwrap_or(seconds)
            }
            "--grow" => grow = true,
            target => {
                ensure!(
                    TARGETS.contains(&target),
                    "there is no target '{target}'; there are {}",
                    TARGETS.join(", ")
                );
                targets.push(target);
            }
        }
    }
    if targets.is_empty() {
        targets = TARGETS.to_vec();
    }
    let limit = Duration::from_secs((seconds + 60) * targets.len() as u64 + 1200);
    if grow || !has_cargo_fuzz() {
        if !grow {
            println!(
                "cargo-fuzz or a nightly compiler is missing: our own runner mutates examples"
            );
        }
        let mut command = runner(&targets, seconds)?;
        command.args(grow.then_some("--grow"));
        return Ok(show(command, limit)?.status.success());
    }
    for target in targets {
        let mut command = program("cargo");
        // cargo-fuzz writes new inputs into the first folder, which is not in the repository; the
        // second one is.
        let (found, kept) =
            (format!("fuzz/corpus/{target}"), format!("crates/fuzz/corpus/{target}"));
        std::fs::create_dir_all(&found).and_then(|()| std::fs::create_dir_all(&kept))?;
        command.args([
            "+nightly",
            "fuzz",
            "run",
            target,
            &found,
            &kept,
            "--",
            &format!("-max_total_time={seconds}"),
        ]);
        if !show(command, limit)?.status.success() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The step of CI: every target for a short time, as many at a time as there are processors.
pub(crate) fn smoke() -> Result<Tally> {
    let shares: Vec<&[&str]> = TARGETS.chunks(TARGETS.len().div_ceil(machine::cores())).collect();
    let mut passed = 0;
    for ended in machine::side_by_side(&shares, |targets| {
        show(runner(targets, CI_SECONDS)?, Duration::from_secs(600))
    }) {
        passed += ended?.output.lines().filter(|line| line.contains(" inputs in ")).count();
    }
    Ok(Tally {
        passed,
        failed: TARGETS.len() - passed.min(TARGETS.len()),
        note: format!("{CI_SECONDS} s for each target"),
    })
}

fn runner(targets: &[&str], seconds: u64) -> Result<std::process::Command> {
    let mut command = program(path(&built("onefold-fuzz", "onefold-fuzz", Build::Test)?));
    command.args(targets).args(["--seconds", &seconds.to_string()]);
    Ok(command)
}

fn has_cargo_fuzz() -> bool {
    let nightly = std::env::var_os("RUSTUP_HOME")
        .map(std::path::PathBuf::from)
        .or_else(|| Some(std::env::home_dir()?.join(".rustup")));
    let nightly = nightly
        .and_then(|home| std::fs::read_dir(home.join("toolchains")).ok())
        .is_some_and(|toolchains| {
            toolchains
                .flatten()
                .any(|toolchain| toolchain.file_name().to_string_lossy().starts_with("nightly"))
        });
    nightly && machine::find("cargo-fuzz").is_some()
}
