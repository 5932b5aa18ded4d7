//! `cargo xtask bench`: measurements, side by side in one run.

mod archive;
mod backups;
mod beside;
mod block;
mod cost;
mod counted;
mod fio;
mod ingest;
mod iscsi;
mod neighbour;
mod peer;
mod replication;
mod sealed;
mod tls;
mod vhost;

use std::{fs, path::Path, time::Duration};

use anyhow::{Result, bail, ensure};

use crate::{
    cleanup::Scratch,
    machine,
    product::path,
    program::{cargo, program, show},
};

const USAGE: &str = "cargo xtask bench block [--quick] [--only TEXT]   through NBD, against \
                     qemu-nbd on a raw file
cargo xtask bench engine [--quick] [--only TEXT]  the engine alone, in process, against the raw file
cargo xtask bench counted [--quick] [PART…]       device bytes, flushes, memory, opening after a \
                     kill
cargo xtask bench archive [--quick] [--only stream|tree|image] [--stream OLD,NEW] [--tree \
                     OLD.tar,NEW.tar] [--image OLD,NEW]
                                                  put and get beside restic, rustic and borg
cargo xtask bench backups [--quick] [--files N] [--nights N]
                                                  backups of a directory beside restic, rustic and \
                     borg: nights, restores, a mount, forgetting
cargo xtask bench archive-writes [--quick] [--only put|memory|ordered|random]
                                                  puts from disk to disk, the memory of a backup, \
                     volumes beside puts and beside the block engine
cargo xtask bench archive-scale [--quick] [--directory PATH]
                                                  opening, puts, ls and gc with up to a million \
                     containers and streams
cargo xtask bench cluster-scale [--quick] [--only TEXT]
                                                  operations, memory and time of the verbs of a
                     cluster store with up to 10 million chunks
cargo xtask bench snapshots [--quick]             pages and blocks that snapshots and clones cost, \
                     counted; writes between snapshots
cargo xtask bench growth [--quick]                writes while a store grows, and afterwards
cargo xtask bench moving [--quick]                writes while blocks are moved, and between pauses
cargo xtask bench replication [--quick]           a volume sent whole beside nbdcopy, and its changes
cargo xtask bench metrics [--quick]               writes while metrics are read once a second
cargo xtask bench neighbour [--quick]             a client's rate and delays while another peer \
                     attacks
cargo xtask bench vhost [--quick]                 vhost-user-blk beside NBD on a UNIX socket
cargo xtask bench iscsi [--quick]                 a backup volume by iSCSI beside the same by NBD
cargo xtask bench sealed [--quick]                encrypted stores beside plain ones
cargo xtask bench tls [--quick]                   nbdcopy by TLS and by plain TCP, beside \
                     qemu-nbd
cargo xtask bench hot                             the hot parts one by one";

/// Free space for the engine's two files.
const ENGINE_BYTES: u64 = 26 << 30;

/// The same, for a first look.
const ENGINE_QUICK_BYTES: u64 = 7 << 30;

/// Free space for the usage counts of a million containers, and the same for a first look.
const SCALE_BYTES: u64 = 3 << 30;
const SCALE_QUICK_BYTES: u64 = 1 << 30;

/// Longest that a bench in a crate may take.
const LIMIT: Duration = Duration::from_secs(2 * 3600);

/// Runs a bench; `Ok(false)` when a bar is missed.
pub(crate) fn run(arguments: &[String]) -> Result<bool> {
    match arguments.split_first() {
        Some((which, rest)) if which == "block" => block::run(rest),
        Some((which, rest)) if which == "engine" => engine(rest),
        Some((which, rest)) if which == "archive" => archive::run(rest),
        Some((which, rest)) if which == "backups" => backups::run(rest),
        Some((which, rest)) if which == "archive-writes" => ingest::run(rest),
        Some((which, rest)) if which == "archive-scale" => archive_scale(rest),
        Some((which, rest)) if which == "cluster-scale" => {
            println!("{}", machine_facts(&machine::root(), &[]));
            let all: Vec<&str> = rest.iter().map(String::as_str).collect();
            in_crate("onefold-cluster", "scale", &all)
        }
        Some((which, rest)) if which == "counted" => counted::run(rest),
        Some((which, rest)) if which == "neighbour" => neighbour::run(rest),
        Some((which, rest)) if which == "iscsi" => iscsi::run(rest),
        Some((which, rest)) if which == "sealed" => sealed::run(rest),
        Some((which, rest)) if which == "tls" => tls::run(rest),
        Some((which, rest)) if which == "vhost" => vhost::run(rest),
        Some((which, rest)) if which == "snapshots" => snapshots(rest),
        Some((which, rest)) if which == "growth" => beside::growth(rest),
        Some((which, rest)) if which == "moving" => beside::moving(rest),
        Some((which, rest)) if which == "replication" => replication::run(rest),
        Some((which, rest)) if which == "metrics" => beside::metrics(rest),
        Some((which, [])) if which == "hot" => {
            println!("{}", machine_facts(&machine::root(), &[]));
            Ok(in_crate("onefold-core", "hot", &[])?
                & in_crate("onefold-block", "hot", &[])?
                & in_crate("onefold-archive", "cuts", &[])?)
        }
        _ => bail!("which?\n\n{USAGE}"),
    }
}

/// What snapshots cost: counted in process over a disk that drops data, where other work on the
/// machine changes no figure, and then timed through NBD.
fn snapshots(arguments: &[String]) -> Result<bool> {
    ensure!(arguments.iter().all(|one| one == "--quick"), "unknown arguments {arguments:?}");
    let all: Vec<&str> = arguments.iter().map(String::as_str).collect();
    println!("{}", machine_facts(&machine::root(), &[]));
    let counted = in_crate("onefold-block", "snapshots", &all)?;
    println!();
    Ok(beside::snapshots(arguments)? & counted)
}

/// The bench inside the engine's crate, on files of its own.
fn engine(arguments: &[String]) -> Result<bool> {
    let scratch = Scratch::new("bench-engine")?;
    let quick = arguments.iter().any(|argument| argument == "--quick");
    needs_space(&scratch, if quick { ENGINE_QUICK_BYTES } else { ENGINE_BYTES })?;
    println!("{}", machine_facts(scratch.path(), &[]));
    let mut all: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let file = scratch.file("engine");
    if !all.contains(&"--file") {
        all.extend(["--file", path(&file)]);
    }
    in_crate("onefold-block", "engine", &all)
}

/// The bench inside the archive engine's crate, in a directory of its own.
fn archive_scale(arguments: &[String]) -> Result<bool> {
    let scratch = Scratch::new("bench-archive-scale")?;
    let quick = arguments.iter().any(|argument| argument == "--quick");
    needs_space(&scratch, if quick { SCALE_QUICK_BYTES } else { SCALE_BYTES })?;
    println!("{}", machine_facts(scratch.path(), &[]));
    let mut all: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if !all.contains(&"--directory") {
        all.extend(["--directory", path(scratch.path())]);
    }
    in_crate("onefold-archive", "scale", &all)
}

/// Runs a bench of a crate and passes on what it prints; false when a bar is missed, which it says
/// itself.
fn in_crate(package: &str, bench: &str, arguments: &[&str]) -> Result<bool> {
    let mut command =
        cargo(["bench", "--quiet", "--locked", "--package", package, "--bench", bench, "--"]);
    command.args(arguments);
    let ended = show(command, LIMIT)?;
    ensure!(ended.status.success(), "the bench failed ({})", ended.status);
    Ok(!ended.output.contains("MISSED"))
}

fn needs_space(scratch: &Scratch, bytes: u64) -> Result<()> {
    let free = machine::free_bytes(scratch.path())?;
    ensure!(
        free >= bytes,
        "the bench needs {} GiB free below target/, there are {}",
        bytes >> 30,
        free >> 30
    );
    Ok(())
}

/// The middle one.
fn median(figures: &[f64]) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The facts that a reader needs to compare: the machine, the programs that took part, the commit.
fn machine_facts(place: &Path, programs: &[&str]) -> String {
    let read = |file: &str| fs::read_to_string(file).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let model = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
        .map_or("?", |(_, model)| model.trim());
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let says = |name: &str, arguments: &[&str]| -> String {
        let mut command = program(name);
        command.args(arguments);
        let output = crate::program::run(command, Duration::from_secs(20)).unwrap_or_default();
        output.lines().next().unwrap_or_default().trim().to_owned()
    };
    let memory = read("/proc/meminfo")
        .lines()
        .next()
        .and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok())
        .unwrap_or(0);
    let versions: String = programs.iter().map(|name| says(name, &["--version"]) + ", ").collect();
    format!(
        "Machine: {model}, {cores} cores, {} GiB, kernel {}, {versions}file system {}, commit {}, \
         load {}.",
        memory >> 20,
        read("/proc/sys/kernel/osrelease").trim(),
        says("stat", &["-f", "-c", "%T", path(place)]),
        says("git", &["rev-parse", "--short", "HEAD"]),
        read("/proc/loadavg").split_whitespace().next().unwrap_or("?"),
    )
}
