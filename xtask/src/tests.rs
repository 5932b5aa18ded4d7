//! The tests that cargo knows: its test programs are built at one time, and run side by side.
//!
//! Cargo runs one program after the other. Many tests wait, for servers, claims and limits of time,
//! and the last test of a program runs alone: with one program for each processor at work they take
//! about half as long.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{
    machine,
    program::{cargo, finish, show},
    test::Tally,
};

/// Longest that building, or one program, may take.
const LIMIT: Duration = Duration::from_secs(30 * 60);

/// A program shows how long it took from here on.
const SLOW: Duration = Duration::from_secs(10);

/// The command by which cargo runs tests.
pub(crate) fn testing(packages: &[&str]) -> Command {
    cargo([&["test", "--quiet", "--locked", "--no-fail-fast"], packages].concat())
}

/// Builds the test programs of these packages, runs them side by side with these arguments, and adds
/// up what they say.
pub(crate) fn side_by_side(packages: &[&str], arguments: &[&str]) -> Result<Tally> {
    let programs = build(packages)?;
    println!("    {} test programs, {} at a time", programs.len(), machine::cores());
    let tallies = machine::side_by_side(&programs, |program| program.run(arguments));
    let mut all = Tally::default();
    for tally in tallies {
        let tally = tally?;
        all.passed += tally.passed;
        all.failed += tally.failed;
    }
    Ok(all)
}

/// Runs tests by one command, shows what they print, and counts them.
pub(crate) fn counted(command: Command) -> Result<Tally> {
    let ended = show(command, LIMIT)?;
    let tally = count(&ended.output);
    if !ended.status.success() && tally.failed == 0 {
        bail!("the tests could not be run");
    }
    Ok(tally)
}

/// A program of tests.
struct Program {
    /// What people call it: its package, and its target.
    name: String,
    executable: PathBuf,
    /// The folder of its package, where cargo runs it.
    folder: PathBuf,
}

impl Program {
    /// Runs it, and shows its output when something failed or was left out.
    fn run(&self, arguments: &[&str]) -> Result<Tally> {
        let begun = Instant::now();
        let mut command = Command::new(&self.executable);
        command.arg("--quiet").args(arguments).current_dir(&self.folder);
        command.env("CARGO_MANIFEST_DIR", &self.folder).stdin(std::process::Stdio::null());
        let ended = finish(command, LIMIT, false).with_context(|| self.name.clone())?;
        let mut tally = count(&ended.output);
        if !ended.status.success() && tally.failed == 0 {
            tally.failed = 1;
        }
        let took = begun.elapsed();
        if tally.failed > 0 {
            println!("    {} failed:\n{}", self.name, ended.output);
        } else if took >= SLOW {
            println!("    {}: {} passed in {:.0} s", self.name, tally.passed, took.as_secs_f64());
        }
        let left_out = ended.output.lines().filter(|line| line.starts_with("NOT TESTED"));
        left_out.for_each(|line| println!("    {}: {line}", self.name));
        Ok(tally)
    }
}

/// Builds test programs; those that start servers come first, since they take longest.
fn build(packages: &[&str]) -> Result<Vec<Program>> {
    let how =
        ["test", "--quiet", "--locked", "--no-run", "--message-format", "json-render-diagnostics"];
    let ended = finish(cargo([&how[..], packages].concat()), LIMIT, false)?;
    let is_message = |line: &&str| line.starts_with('{');
    if !ended.status.success() {
        let said: Vec<&str> = ended.output.lines().filter(|line| !is_message(line)).collect();
        bail!("the tests could not be built:\n{}", said.join("\n"));
    }
    let mut programs = Vec::new();
    for line in ended.output.lines().filter(is_message) {
        let said: Value = serde_json::from_str(line).context("cargo's messages")?;
        let Some(executable) = said["executable"].as_str() else { continue };
        if said["profile"]["test"] != true {
            continue;
        }
        let folder = said["manifest_path"].as_str().and_then(|path| Path::new(path).parent());
        let folder = folder.context("cargo names no manifest")?.to_path_buf();
        let package = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let target = said["target"]["name"].as_str().unwrap_or_default();
        programs.push(Program {
            name: format!("{package} {target}"),
            executable: executable.into(),
            folder,
        });
    }
    programs.sort_by_key(|program| !program.name.starts_with("cli "));
    Ok(programs)
}

/// What the test programs say of themselves, added up.
fn count(output: &str) -> Tally {
    let mut tally = Tally::default();
    for line in output.lines().filter_map(|line| line.trim().strip_prefix("test result:")) {
        // "ok. 12 passed; 0 failed; …"
        let count = |what: &str| -> usize {
            let words: Vec<&str> = line.split([' ', ';']).collect();
            words
                .windows(2)
                .find(|pair| pair[1] == what)
                .and_then(|pair| pair[0].parse().ok())
                .unwrap_or(0)
        };
        tally.passed += count("passed");
        tally.failed += count("failed");
    }
    tally
}
