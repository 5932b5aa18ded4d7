//! What users run on volumes: virtual machines that boot from clones of a golden image, and
//! PostgreSQL of which snapshots are taken at work. The server is killed (SIGKILL) under them, and
//! whatever was acknowledged to them must be there.

mod disk;
mod kernel;
mod machines;
mod postgres;
mod postgres_server;
mod virtual_machine;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::{clients::check, machine, packages, test::Tally};

const USAGE: &str = "cargo xtask guests [--kills N] [--seconds N] [--vhost]";

/// How much is done.
#[derive(Clone, Copy, Debug)]
struct Extent {
    /// Times that the server is killed under each kind of virtual machine.
    kills: u64,
    /// Seconds that PostgreSQL works before each kill.
    seconds: u64,
    /// Time between two snapshots of PostgreSQL's volume.
    between_snapshots: Duration,
    /// Times that the server is killed under PostgreSQL.
    database_kills: u64,
    /// Whether volumes whose disk in the guest has no cache are tried too.
    all_ways: bool,
    /// Only the virtual machine that shares its memory with the server.
    only_vhost: bool,
}

/// The form that all tests run together.
const SHORT: Extent = Extent {
    kills: 2,
    seconds: 8,
    between_snapshots: Duration::from_secs(2),
    database_kills: 1,
    all_ways: false,
    only_vhost: false,
};

/// The form with a name of its own.
const LONG: Extent = Extent {
    kills: 10,
    seconds: 45,
    between_snapshots: Duration::from_secs(10),
    database_kills: 3,
    all_ways: true,
    only_vhost: false,
};

/// The long form; `Ok(false)` when something was wrong.
pub(crate) fn run(arguments: &[String]) -> Result<bool> {
    let mut extent = LONG;
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        if argument == "--vhost" {
            extent.only_vhost = true;
            continue;
        }
        let number = rest
            .next()
            .and_then(|text| text.parse::<u64>().ok())
            .filter(|number| *number > 0)
            .with_context(|| format!("{argument} needs a number\n\n{USAGE}"));
        match argument.as_str() {
            "--kills" => extent.kills = number?,
            "--seconds" => extent.seconds = number?,
            other => bail!("'{other}'?\n\n{USAGE}"),
        }
    }
    let begun = Instant::now();
    let tally = prove(extent)?;
    println!(
        "{} passed, {} failed, {} s  {}",
        tally.passed,
        tally.failed,
        begun.elapsed().as_secs(),
        tally.note
    );
    Ok(tally.failed == 0)
}

/// The step of the tests: the short form.
pub(crate) fn step() -> Result<Tally> {
    prove(SHORT)
}

fn prove(extent: Extent) -> Result<Tally> {
    if let Some(why) = impossible() {
        println!("NOT TESTED: {why}");
        return Ok(Tally { note: format!("not tested: {why}"), ..Tally::default() });
    }
    let mut tally = Tally::default();
    match packages::ensure_guests().and_then(|_| kernel::Kernel::get()) {
        Ok(kernel) => machines::run(&mut tally, &kernel, extent),
        Err(why) => {
            println!("NOT TESTED: virtual machines, for want of their packages: {why:#}");
            tally.note = "virtual machines not tested: no packages".into();
        }
    }
    if extent.only_vhost {
        return Ok(tally);
    }
    match postgres_server::Programs::get() {
        Ok(programs) => check(&mut tally, "PostgreSQL, its snapshots and kills", || {
            postgres::run(&programs, extent)
        }),
        Err(why) => {
            println!("NOT TESTED: PostgreSQL, for want of its package: {why:#}");
            tally.note.push_str(" PostgreSQL not tested: no package");
        }
    }
    Ok(tally)
}

/// Why it can't be done here.
fn impossible() -> Option<&'static str> {
    if !machine::is_root() {
        return Some("guests need root (loop devices, mount): sudo cargo xtask test guests");
    }
    if machine::find("apt-get").is_none() {
        return Some("guests need the packages of Debian or Ubuntu");
    }
    if !cfg!(target_arch = "x86_64") {
        return Some("the virtual machines are of x86-64");
    }
    None
}
