//! The product through NBD against qemu-nbd on a raw file, which was written once: same socket
//! kind, same fio jobs, in turns.
//!
//! While the peer is measured our server is stopped by SIGSTOP: whatever it still has to do in the
//! background, it does in its own time.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;
use serde_json::Value;

use super::{
    fio::{self, Data, Length, Measured, Pattern},
    machine_facts, median,
    peer::{self, MODES, Peer},
};
use crate::{
    cleanup::Scratch,
    machine, packages,
    product::{Build, Onefold, Server, uri},
};

/// Range of the random jobs: 4 GiB.
const RANGE_MIB: u64 = 4096;

/// Range of the sequential jobs.
const SEQUENTIAL_MIB: u64 = 2048;

/// Size of our store: what the three volumes hold, and as much again for what is overwritten before
/// it is free.
const STORE: &str = "16G";

/// Size of the aged store, and of its volume, which fills 80 % of it. It is made when the first store
/// is done with, and gone.
const AGED_STORE: &str = "2560M";
const AGED_MIB: u64 = 2048;

/// Free space that a full run needs.
const SPACE_BYTES: u64 = 28 << 30;

const KIB: u64 = 1 << 10;

/// Which volume a job works on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum On {
    /// Written once, then written at random.
    Random,
    /// Written in order.
    Sequential,
    /// Gets what the sequential one holds already.
    Duplicates,
    /// Alone in a store of its own: written once, then overwritten at random.
    Aged,
}

impl On {
    const FRESH: [On; 3] = [On::Random, On::Sequential, On::Duplicates];

    fn name(self) -> &'static str {
        match self {
            On::Random => "random",
            On::Sequential => "sequential",
            On::Duplicates => "duplicates",
            On::Aged => "aged",
        }
    }

    fn mebibytes(self) -> u64 {
        match self {
            On::Random => RANGE_MIB,
            On::Sequential | On::Duplicates => SEQUENTIAL_MIB,
            On::Aged => AGED_MIB,
        }
    }
}

/// A row of the table.
struct Job {
    name: &'static str,
    on: On,
    pattern: Pattern,
    /// The least ratio that is aimed at.
    aim: f64,
    /// Our server is started anew before each run, so that nothing is in its memory.
    cold: bool,
}

const WRITE: Pattern = Pattern {
    rw: "randwrite",
    request: 4 * KIB,
    depth: 1,
    clients: 1,
    flush_every: 1,
    data: Data::Compressible,
};
const READ: Pattern = Pattern { rw: "randread", ..WRITE };
/// A flush every 32 MiB.
const STREAM: Pattern = Pattern { rw: "write", request: 128 * KIB, flush_every: 256, ..WRITE };
const STREAM_READ: Pattern = Pattern { rw: "read", ..STREAM };

const fn job(name: &'static str, on: On, pattern: Pattern, aim: f64) -> Job {
    Job { name, on, pattern, aim, cold: false }
}

/// Each store's writes come before its reads.
static JOBS: [Job; 17] = [
    job("random 4 KiB writes, each flushed, compressible", On::Random, WRITE, 0.95),
    job(
        "random 4 KiB writes, each flushed, incompressible",
        On::Random,
        Pattern { data: Data::Random, ..WRITE },
        0.9,
    ),
    job(
        "random 4 KiB writes, each flushed, 32 clients",
        On::Random,
        Pattern { clients: 32, ..WRITE },
        1.3,
    ),
    job(
        "random 4 KiB writes, depth 32, flush every 32",
        On::Random,
        Pattern { depth: 32, flush_every: 32, ..WRITE },
        1.3,
    ),
    job(
        "random 4 KiB writes, depth 32, flush every 256",
        On::Random,
        Pattern { depth: 32, flush_every: 256, ..WRITE },
        1.3,
    ),
    job("sequential 128 KiB writes, unique, depth 1", On::Sequential, STREAM, 0.8),
    job("sequential 128 KiB writes, duplicates, depth 1", On::Duplicates, STREAM, 1.5),
    job(
        "sequential 128 KiB writes, unique, depth 8",
        On::Sequential,
        Pattern { depth: 8, ..STREAM },
        0.8,
    ),
    job(
        "sequential 128 KiB writes, duplicates, depth 8",
        On::Duplicates,
        Pattern { depth: 8, ..STREAM },
        1.0,
    ),
    job("random 4 KiB reads, depth 1", On::Random, READ, 0.9),
    job("random 4 KiB reads, depth 32", On::Random, Pattern { depth: 32, ..READ }, 0.9),
    Job {
        cold: true,
        ..job(
            "sequential 128 KiB reads, cold, depth 1, written in order",
            On::Sequential,
            STREAM_READ,
            0.8,
        )
    },
    Job {
        cold: true,
        ..job(
            "sequential 128 KiB reads, cold, depth 8, written in order",
            On::Sequential,
            Pattern { depth: 8, ..STREAM_READ },
            0.8,
        )
    },
    Job {
        cold: true,
        ..job(
            "sequential 128 KiB reads, cold, depth 1, written at random",
            On::Random,
            STREAM_READ,
            0.0,
        )
    },
    Job {
        cold: true,
        ..job(
            "sequential 128 KiB reads, cold, depth 8, written at random",
            On::Random,
            Pattern { depth: 8, ..STREAM_READ },
            0.0,
        )
    },
    job(
        "random 4 KiB writes, depth 32, flush every 32, aged store",
        On::Aged,
        Pattern { depth: 32, flush_every: 32, ..WRITE },
        0.0,
    ),
    Job {
        cold: true,
        ..job(
            "sequential 128 KiB reads, cold, depth 8, aged store",
            On::Aged,
            Pattern { depth: 8, ..STREAM_READ },
            0.0,
        )
    },
];

/// How much is measured.
struct Effort {
    rounds: u64,
    seconds: u64,
    stream_mib: u64,
    trial: u64,
    /// How often the volume of the aged store is overwritten before.
    overwrites: u64,
}

/// One side in one round.
struct Side {
    per_second: f64,
    cpu_us_per_block: f64,
}

struct Bench {
    onefold: Onefold,
    scratch: Scratch,
    store: PathBuf,
    socket: PathBuf,
    server: Option<Server>,
    /// The last status of a server to which clients had written something: counts begin anew with
    /// each start.
    written: Option<Value>,
    effort: Effort,
}

/// Runs the table.
pub(super) fn run(arguments: &[String]) -> Result<bool> {
    let mut effort = Effort { rounds: 5, seconds: 10, stream_mib: 1536, trial: 3, overwrites: 3 };
    let mut only = None;
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "--quick" => {
                effort = Effort { rounds: 3, seconds: 3, stream_mib: 512, trial: 1, overwrites: 1 }
            }
            "--only" => only = rest.next().cloned(),
            other => bail!("unknown argument '{other}'"),
        }
    }
    let missing = packages::missing();
    ensure!(missing.is_empty(), "these packages are missing: {}", missing.join(" "));
    let onefold = Onefold::build(Build::Release)?;
    let scratch = Scratch::new("bench")?;
    let free = machine::free_bytes(scratch.path())?;
    ensure!(
        free >= SPACE_BYTES,
        "the bench needs {} GiB free below target/, there are {}",
        SPACE_BYTES >> 30,
        free >> 30
    );
    let (store, socket) = (scratch.file("bench.store"), scratch.file("bench.sock"));
    let mut bench = Bench { onefold, scratch, store, socket, server: None, written: None, effort };
    let is_wanted = |job: &&Job| only.as_ref().is_none_or(|only| job.name.contains(only.as_str()));
    let (aged, fresh): (Vec<&Job>, Vec<&Job>) =
        JOBS.iter().filter(is_wanted).partition(|job| job.on == On::Aged);
    ensure!(!aged.is_empty() || !fresh.is_empty(), "no job is called so");

    println!("{}", machine_facts(bench.scratch.path(), &["fio", "qemu-nbd"]));
    println!(
        "{} rounds of each job, in turns with the peer; medians. Ratio: ours to the peer's.\n",
        bench.effort.rounds
    );
    println!(
        "| job | onefold | qemu-nbd | ratio | from–to | aim | CPU µs per 4 KiB: onefold | qemu-nbd \
         |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    let (mut reached, mut told) = (true, Vec::new());
    for (what, volumes, jobs) in
        [("the store", &On::FRESH[..], fresh), ("the aged store", &[On::Aged], aged)]
    {
        if jobs.is_empty() {
            continue;
        }
        bench.prepare(volumes)?;
        for job in jobs {
            reached &= bench.row(job).map_err(|error| bench.with_log(error))?;
        }
        bench.stop()?;
        bench.onefold.check(&bench.store)?;
        told.push(format!("Of {what}: {}", bench.device_writes()?));
        bench.forget(volumes)?;
    }
    println!("\n{}", told.join("\n"));
    println!("`onefold check` after all of it: in order.");
    Ok(reached)
}

impl Bench {
    /// Makes a store with these volumes and raw files beside them, and writes the whole range of each
    /// once. Then the volume of the aged store is overwritten at random; the raw file beside it is
    /// not, since nothing of it would move.
    fn prepare(&mut self, on: &[On]) -> Result<()> {
        let size = if on.contains(&On::Aged) { AGED_STORE } else { STORE };
        eprintln!("preparing: a store of {size}, raw files, and the first fill of both");
        let volumes: Vec<_> =
            on.iter().map(|on| (on.name(), format!("{}M", on.mebibytes()))).collect();
        self.onefold.create(&self.store, size, &["--preallocate", "full"], &volumes)?;
        self.start()?;
        let fill = Pattern { depth: 8, ..STREAM };
        for (n, &on) in (0..).zip(on) {
            let raw = self.raw(on);
            peer::create(&raw, on.mebibytes())?;
            let peer = Peer::start(&self.scratch, &raw, "native")?;
            let length = Length::Mebibytes(on.mebibytes());
            fio::run(&self.scratch, &peer.uri(), on.mebibytes(), &fill, length, 1000 + n)?;
            drop(peer);
            fio::run(
                &self.scratch,
                &uri(&self.socket, on.name()),
                on.mebibytes(),
                &fill,
                length,
                1000 + n,
            )?;
        }
        for n in 0..if on.contains(&On::Aged) { self.effort.overwrites } else { 0 } {
            eprintln!("preparing: the volume is overwritten at random");
            let (all, aged) = (On::Aged.mebibytes(), uri(&self.socket, On::Aged.name()));
            let overwrite = Pattern { depth: 32, flush_every: 256, ..WRITE };
            let length = Length::Mebibytes(all);
            fio::run(&self.scratch, &aged, all, &overwrite, length, 2000 + n)?;
        }
        Ok(())
    }

    /// Removes what [`prepare`](Self::prepare) made.
    fn forget(&mut self, on: &[On]) -> Result<()> {
        self.written = None;
        let raws = on.iter().map(|&on| self.raw(on));
        raws.chain([self.store.clone()])
            .try_for_each(|file| fs::remove_file(&file).with_context(|| file.display().to_string()))
    }

    fn raw(&self, on: On) -> PathBuf {
        self.scratch.file(&format!("{}.raw", on.name()))
    }

    fn start(&mut self) -> Result<()> {
        self.server = Some(self.onefold.serve(
            &self.store,
            &[format!("unix:{}", self.socket.display())],
            &[],
        )?);
        Ok(())
    }

    /// Stops the server, and keeps what it counted if clients wrote.
    fn stop(&mut self) -> Result<()> {
        let status = self.onefold.status(&self.store)?;
        if status["server"]["writes"]["client_blocks"].as_u64().is_some_and(|blocks| blocks > 0) {
            self.written = Some(status);
        }
        self.server.take().context("the server does not run")?.stop()
    }

    /// Tells the cost of the writes of all jobs, from the first fill on.
    fn device_writes(&self) -> Result<String> {
        let server = &self.written.as_ref().context("no server counted any writes")?["server"];
        let (writes, memory) = (&server["writes"], &server["memory"]);
        let number = |value: &Value, name: &str| {
            value[name].as_u64().with_context(|| format!("the status tells no {name}"))
        };
        Ok(format!(
            "{:.1} GiB written, the first fill among them: {:.3} device bytes for each byte; {} \
             flushes for {} windows; {} checkpoints; resident {} MiB, {} MiB at most, with \
             --memory {}M.",
            number(writes, "client_blocks")? as f64 / f64::from(1 << 18),
            number(writes, "device_blocks")? as f64 / number(writes, "client_blocks")? as f64,
            number(writes, "flushes")?,
            number(writes, "windows")?,
            number(writes, "checkpoints")?,
            number(memory, "resident_bytes")? >> 20,
            number(memory, "peak_bytes")? >> 20,
            number(memory, "limit_bytes")? >> 20,
        ))
    }

    /// Adds the last lines of the server to an error.
    fn with_log(&self, error: anyhow::Error) -> anyhow::Error {
        let said = self.server.as_ref().map(Server::said).unwrap_or_default();
        let last: Vec<&str> = said.lines().rev().take(5).collect();
        error.context(last.into_iter().rev().collect::<Vec<_>>().join("\n"))
    }

    fn server(&self) -> Result<&Server> {
        self.server.as_ref().context("the server does not run")
    }

    /// Measures a job and prints its row; false when the aim is missed.
    fn row(&mut self, job: &Job) -> Result<bool> {
        let raw = self.raw(job.on);
        if job.on == On::Duplicates {
            self.measure(job, &uri(&self.socket, On::Sequential.name()), self.server()?.id(), 100)?;
        }
        let peer = self.best_peer(job, &raw)?;
        let before = self.duplicates()?;
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for round in 0..self.effort.rounds {
            // Duplicates repeat one and the same stream, which another volume holds.
            let seed = if job.on == On::Duplicates { 100 } else { 100 + round };
            for side in [round % 2, 1 - round % 2] {
                if side == 0 {
                    self.server()?.signal(Signal::STOP);
                    let found = self.measure(job, &peer.uri(), peer.id(), seed);
                    self.server()?.signal(Signal::CONT);
                    theirs.push(found?);
                } else {
                    if job.cold {
                        self.stop()?;
                        self.start()?;
                    }
                    let found = self.measure(
                        job,
                        &uri(&self.socket, job.on.name()),
                        self.server()?.id(),
                        seed,
                    )?;
                    ours.push(found);
                }
            }
        }
        let mode = peer.mode;
        drop(peer);
        if job.on == On::Duplicates {
            let written = (self.effort.rounds * self.effort.stream_mib) << 8;
            let share = (self.duplicates()? - before) as f64 / written as f64;
            ensure!(
                share > 0.95,
                "only {:.0} % of what should be duplicates were found as such",
                share * 100.0
            );
        }
        let rates = |side: &[Side]| side.iter().map(|one| one.per_second).collect::<Vec<_>>();
        let cpu = |side: &[Side]| {
            median(&side.iter().map(|one| one.cpu_us_per_block).collect::<Vec<_>>())
        };
        let ratio = median(&rates(&ours)) / median(&rates(&theirs));
        let mut ratios: Vec<f64> = ours
            .iter()
            .zip(&theirs)
            .map(|(ours, theirs)| ours.per_second / theirs.per_second)
            .collect();
        ratios.sort_by(f64::total_cmp);
        println!(
            "| {} | {} | {} ({mode}) | {ratio:.2} | {:.2}–{:.2} | {} | {:.1} | {:.1} |",
            job.name,
            rate(median(&rates(&ours)), &job.pattern),
            rate(median(&rates(&theirs)), &job.pattern),
            ratios[0],
            ratios[ratios.len() - 1],
            if job.aim > 0.0 { format!("{:.2}", job.aim) } else { "–".into() },
            cpu(&ours),
            cpu(&theirs),
        );
        Ok(ratio >= job.aim)
    }

    /// Blocks that the server found to be stored already.
    fn duplicates(&self) -> Result<u64> {
        Ok(self.onefold.status(&self.store)?["server"]["writes"]["duplicate_blocks"]
            .as_u64()
            .unwrap_or(0))
    }

    /// The peer in the mode that is best for this job, by a short trial of each.
    fn best_peer(&self, job: &Job, raw: &Path) -> Result<Peer> {
        self.server()?.signal(Signal::STOP);
        let mut best: Option<(f64, &'static str)> = None;
        for mode in MODES {
            // A kernel may have no io_uring.
            let Ok(peer) = Peer::start(&self.scratch, raw, mode) else { continue };
            let length = Length::Seconds(self.effort.trial);
            let found =
                fio::run(&self.scratch, &peer.uri(), job.on.mebibytes(), &job.pattern, length, 7)?;
            if best.is_none_or(|(rate, _)| found.per_second > rate) {
                best = Some((found.per_second, mode));
            }
        }
        self.server()?.signal(Signal::CONT);
        let (_, mode) = best.context("qemu-nbd works in none of its modes")?;
        Peer::start(&self.scratch, raw, mode)
    }

    fn measure(&self, job: &Job, uri: &str, server: u32, seed: u64) -> Result<Side> {
        let length = if job.pattern.request > 4 * KIB {
            Length::Mebibytes(self.effort.stream_mib)
        } else {
            Length::Seconds(self.effort.seconds)
        };
        let seed = if job.pattern.request > 4 * KIB {
            seed * 100 + job.pattern.depth
        } else {
            unique_seed(job, seed)
        };
        let before = cpu_time(server)?;
        let Measured { per_second, bytes, .. } =
            fio::run(&self.scratch, uri, job.on.mebibytes(), &job.pattern, length, seed)?;
        let cpu = cpu_time(server)?.saturating_sub(before);
        Ok(Side { per_second, cpu_us_per_block: cpu.as_secs_f64() * 1e6 / (bytes as f64 / 4096.0) })
    }
}

/// A seed that no other job has.
fn unique_seed(job: &Job, seed: u64) -> u64 {
    job.name.bytes().fold(seed, |seed, byte| seed.wrapping_mul(31).wrapping_add(u64::from(byte)))
        % 1_000_000_007
}

/// CPU time that a process took so far, all threads together.
fn cpu_time(process: u32) -> Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"))?;
    let fields: Vec<&str> =
        stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks: u64 = [11, 12].into_iter().filter_map(|n| fields.get(n)?.parse::<u64>().ok()).sum();
    Ok(Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second()))
}

fn rate(per_second: f64, pattern: &Pattern) -> String {
    if pattern.request > 4 * KIB {
        format!("{:.0} MB/s", per_second * pattern.request as f64 / 1e6)
    } else {
        format!("{per_second:.0} IOPS")
    }
}
