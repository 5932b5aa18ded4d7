//! One fio run over NBD, and what it measured.
//!
//! Data: `refill_buffers` makes every block different, and each run has a seed of its own, since
//! fio would otherwise write in each run what it wrote in the one before: all duplicates.
//! `buffer_compress_percentage=20` with a chunk of 4 KiB makes each block compress to 0.8. fio can'
//! t leave one block in five incompressible within one job, so the job of 32 clients has 26 whose
//! blocks compress and 6 whose blocks do not, and the others compress all blocks: a window needs
//! two carriers for 32 records, and has enough candidates either way.

use std::{process::Stdio, time::Duration};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::{cleanup::Scratch, program::program};

/// The content of the blocks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Data {
    /// Each compresses to 0.8.
    Compressible,
    /// None compresses.
    Random,
}

/// How long a run lasts.
#[derive(Clone, Copy)]
pub(super) enum Length {
    Seconds(u64),
    Mebibytes(u64),
}

/// A pattern of requests.
#[derive(Clone, Copy)]
pub(super) struct Pattern {
    /// fio's `rw`.
    pub(super) rw: &'static str,
    /// Bytes of a request.
    pub(super) request: u64,
    /// Requests in flight of each client.
    pub(super) depth: u64,
    /// Clients.
    pub(super) clients: u64,
    /// Writes between two flushes. fio does not count a flush at the end, so that without any,
    /// memory would be measured.
    pub(super) flush_every: u64,
    /// The content that is written.
    pub(super) data: Data,
}

/// A client that writes blocks at random and flushes often.
pub(super) const WRITES: Pattern = Pattern {
    rw: "randwrite",
    request: 4096,
    depth: 32,
    clients: 1,
    flush_every: 32,
    data: Data::Compressible,
};

/// Writes a volume once, before anything is measured.
pub(super) const FILL: Pattern =
    Pattern { rw: "write", request: 128 << 10, depth: 8, flush_every: 256, ..WRITES };

/// The measurements of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measured {
    /// Requests a second.
    pub(super) per_second: f64,
    /// Bytes read or written.
    pub(super) bytes: u64,
    /// Microseconds within which 99 of 100 requests were answered, flushes not counted; of the
    /// slowest client.
    pub(super) p99_us: f64,
    /// Microseconds that the request or flush took that took longest.
    pub(super) longest_us: f64,
}

/// Runs the pattern on `mebibytes` of an export.
pub(super) fn run(
    scratch: &Scratch,
    uri: &str,
    mebibytes: u64,
    pattern: &Pattern,
    length: Length,
    seed: u64,
) -> Result<Measured> {
    run_with(scratch, uri, mebibytes, pattern, length, seed, &[])
}

/// The same with more arguments for fio.
#[allow(clippy::too_many_arguments, reason = "those of `run`, and one")]
pub(super) fn run_with(
    scratch: &Scratch,
    uri: &str,
    mebibytes: u64,
    pattern: &Pattern,
    length: Length,
    seed: u64,
    more: &[&str],
) -> Result<Measured> {
    let writes = pattern.rw.ends_with("write");
    let mut command = program("fio");
    command.current_dir(scratch.path()).args([
        "--output-format=json",
        "--ioengine=nbd",
        "--group_reporting",
        "--refill_buffers",
    ]);
    command
        .arg(format!("--uri={uri}"))
        .arg(format!("--rw={}", pattern.rw))
        .arg(format!("--bs={}", pattern.request));
    command
        .arg(format!("--size={mebibytes}m"))
        .arg(format!("--iodepth={}", pattern.depth))
        .arg(format!("--randseed={seed}"));
    command.args(["--norandommap", "--randrepeat=1"]).args(more);
    match length {
        Length::Seconds(seconds) => command.args(["--time_based", &format!("--runtime={seconds}")]),
        Length::Mebibytes(mebibytes) => command.arg(format!("--io_size={mebibytes}m")),
    };
    if writes {
        command.arg(format!("--fsync={}", pattern.flush_every));
    }
    let compressible = ["--buffer_compress_percentage=20", "--buffer_compress_chunk=4096"];
    if pattern.clients > 1 && pattern.data == Data::Compressible {
        let random = pattern.clients / 5;
        command
            .args(["--name=compressible", &format!("--numjobs={}", pattern.clients - random)])
            .args(compressible);
        command.args([
            "--name=random",
            &format!("--numjobs={random}"),
            "--buffer_compress_percentage=0",
        ]);
    } else {
        command.args(["--name=bench", &format!("--numjobs={}", pattern.clients)]);
        if pattern.data == Data::Compressible {
            command.args(compressible);
        }
    }
    let file = scratch.file("fio.json");
    command.arg(format!("--output={}", crate::product::path(&file))).stdout(Stdio::null());
    crate::program::run(command, Duration::from_secs(1800))?;
    let report = std::fs::read_to_string(&file)?;
    // fio may print notes before the report.
    let report: Value =
        serde_json::from_str(report.get(report.find('{').unwrap_or(0)..).unwrap_or_default())
            .context("fio's report")?;
    let direction = if writes { "write" } else { "read" };
    let mut measured = Measured { per_second: 0.0, bytes: 0, p99_us: 0.0, longest_us: 0.0 };
    for job in report["jobs"].as_array().into_iter().flatten() {
        ensure!(job["error"] == 0, "fio met error {}", job["error"]);
        let part = &job[direction];
        let bytes = part["io_bytes"].as_u64().unwrap_or(0);
        let per_second = part["iops"].as_f64().unwrap_or(0.0);
        ensure!(bytes > 0 && per_second > 0.0, "fio measured nothing");
        measured.per_second += per_second;
        measured.bytes += bytes;
        let p99 = part["clat_ns"]["percentile"]["99.000000"].as_f64().unwrap_or(0.0);
        measured.p99_us = measured.p99_us.max(p99 / 1000.0);
        for longest in [&part["clat_ns"]["max"], &job["sync"]["lat_ns"]["max"]] {
            let longest = longest.as_f64().unwrap_or(0.0);
            measured.longest_us = measured.longest_us.max(longest / 1000.0);
        }
    }
    Ok(measured)
}
