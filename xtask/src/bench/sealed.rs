//! The cost of encryption at rest: the same work on a plain and on an encrypted store, in turns. Block
//! stores through NBD by fio, archives by `put` and `get`.
//!
//! The speed that counts is the one for each second of processor time: of the server for a block
//! store, of the whole command for an archive. What a device is given is counted, not timed.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;
use serde_json::Value;

use super::{
    archive::data,
    cost::{self, Place},
    fio::{self, FILL, Length, Pattern, WRITES},
    machine_facts, median, needs_space,
};
use crate::{
    cleanup::Scratch,
    product::{Build, Onefold, Server, path, uri},
};

/// The bars: what is left of the speed for each second of processor time, how many blocks and
/// flushes the device gets times those of the plain store, and how many times as long an opening
/// after a kill takes.
const SPEED: f64 = 0.87;
const DEVICE: f64 = 1.01;
const OPENING: f64 = 1.15;

/// Longest that a command may take.
const LIMIT: Duration = Duration::from_secs(600);

/// Size of the volume.
const VOLUME_MIB: u64 = 1024;

/// Space for two stores, and for what fio writes.
const SPACE_BYTES: u64 = 12 << 30;

const READS: Pattern = Pattern { rw: "randread", ..WRITES };
const SCAN: Pattern = Pattern { rw: "read", ..FILL };

const JOBS: [(&str, Pattern); 4] = [
    ("unique 4 KiB writes at random, depth 32, flush every 32", WRITES),
    ("unique 128 KiB writes in order, depth 8", FILL),
    ("4 KiB reads at random, depth 32", READS),
    ("128 KiB reads in order, depth 8", SCAN),
];

/// Names of the two sides; the second is encrypted.
const SIDES: [&str; 2] = ["plain", "encrypted"];

/// Runs the tables; `Ok(false)` when a full run misses a bar.
pub(super) fn run(arguments: &[String]) -> Result<bool> {
    let (rounds, mebibytes, quick) = match arguments {
        [] => (5, 256, false),
        [word] if word == "--quick" => (3, 64, true),
        _ => bail!("unknown arguments {arguments:?}"),
    };
    let onefold = Onefold::build(Build::Release)?;
    let scratch = Scratch::new("bench-sealed")?;
    needs_space(&scratch, SPACE_BYTES)?;
    let key = scratch.file("key");
    onefold.verb([
        "create",
        "block",
        path(&scratch.file("first")),
        "--size",
        "64M",
        "--key",
        path(&key),
    ])?;
    println!("{}", machine_facts(scratch.path(), &["fio"]));
    println!(
        "{rounds} rounds in turns, medians; each job reads or writes {mebibytes} MiB of a volume of \
         {VOLUME_MIB} MiB. The speed of {} is 1.\n",
        SIDES[0]
    );
    println!("| what | plain | encrypted | times | bar | |\n|---|---|---|---|---|---|");
    let bench = Bench { onefold, scratch, key, rounds, mebibytes };
    let reached = bench.blocks()? & bench.openings()? & bench.archives(quick)?;
    println!("\n`onefold check` after all of it: in order.");
    Ok(reached || quick)
}

struct Bench {
    onefold: Onefold,
    scratch: Scratch,
    key: PathBuf,
    rounds: usize,
    mebibytes: u64,
}

/// What a job cost a server.
#[derive(Clone, Copy)]
struct Spent {
    /// Microseconds of the processor for each 4 KiB.
    processor: f64,
    /// Blocks that the device was given, and flushes.
    blocks: f64,
    flushes: f64,
}

impl Bench {
    /// `--key` for the encrypted side.
    fn more(&self, side: usize) -> Vec<&str> {
        if side == 1 { vec!["--key", path(&self.key)] } else { Vec::new() }
    }

    fn verb(&self, side: usize, words: &[&str]) -> Result<String> {
        self.onefold.verb([words, &self.more(side)].concat())
    }

    fn store(&self, side: usize) -> PathBuf {
        self.scratch.file(&format!("{}.store", SIDES[side]))
    }

    fn socket(&self, side: usize) -> PathBuf {
        self.scratch.file(&format!("{}.sock", SIDES[side]))
    }

    fn make(&self, side: usize) -> Result<()> {
        let store = self.store(side);
        let (store, size) = (path(&store), format!("{VOLUME_MIB}M"));
        self.verb(side, &["create", "block", store, "--size", "4G", "--preallocate", "full"])?;
        self.verb(side, &["volume", "create", store, "v", "--size", &size])?;
        Ok(())
    }

    fn serve(&self, side: usize) -> Result<Server> {
        let listener = format!("unix:{}", path(&self.socket(side)));
        self.onefold.serve(&self.store(side), &[listener], &self.more(side))
    }

    fn fio(&self, side: usize, pattern: &Pattern, mebibytes: u64, seed: u64) -> Result<u64> {
        let target = uri(&self.socket(side), "v");
        let length = Length::Mebibytes(mebibytes);
        Ok(fio::run(&self.scratch, &target, VOLUME_MIB, pattern, length, seed)?.bytes)
    }

    fn status(&self, side: usize) -> Result<Value> {
        let store = self.store(side);
        let said = self.verb(side, &["status", path(&store), "--json"])?;
        serde_json::from_str(&said).context("onefold status --json")
    }

    /// Runs a job, and tells what it cost.
    fn job(&self, side: usize, pattern: &Pattern, seed: u64) -> Result<Spent> {
        let before = self.status(side)?;
        let bytes = self.fio(side, pattern, self.mebibytes, seed)?;
        let after = self.status(side)?;
        let grown = |name: &str| -> Result<f64> {
            let of = |status: &Value| status["server"].pointer(name).and_then(Value::as_f64);
            Ok(of(&after).context("status")? - of(&before).context("status")?)
        };
        let blocks = bytes as f64 / 4096.0;
        Ok(Spent {
            processor: grown("/cpu_seconds")? / blocks * 1e6,
            blocks: grown("/writes/device_blocks")? / blocks,
            flushes: grown("/writes/flushes")? / blocks,
        })
    }

    /// Jobs on two block stores; one server is stopped while the other one works.
    fn blocks(&self) -> Result<bool> {
        let servers = [0, 1].map(|side| {
            self.make(side)?;
            let server = self.serve(side)?;
            self.fio(side, &FILL, VOLUME_MIB, 1)?;
            Ok::<_, anyhow::Error>(server)
        });
        let [plain, encrypted] = servers;
        let servers = [plain?, encrypted?];
        let mut reached = true;
        for (which, (name, pattern)) in JOBS.into_iter().enumerate() {
            let mut spent = [Vec::new(), Vec::new()];
            for round in 0..self.rounds {
                for side in [round % 2, 1 - round % 2] {
                    servers[1 - side].signal(Signal::STOP);
                    let seed = 100 * (which as u64 + 1) + 2 * round as u64 + side as u64;
                    let job = self.job(side, &pattern, seed);
                    servers[1 - side].signal(Signal::CONT);
                    spent[side].push(job?);
                }
            }
            let of = |what: fn(&Spent) -> f64| {
                spent.each_ref().map(|side| median(&side.iter().map(what).collect::<Vec<_>>()))
            };
            reached &=
                speed(&format!("{name}: µs of the processor for 4 KiB"), of(|one| one.processor));
            if pattern.rw.ends_with("write") {
                reached &= most(
                    &format!("{name}: blocks that the device gets, for each"),
                    of(|one| one.blocks),
                    DEVICE,
                );
                reached &=
                    most(&format!("{name}: flushes, for each"), of(|one| one.flushes), DEVICE);
            }
        }
        for (side, server) in servers.into_iter().enumerate() {
            server.stop()?;
            self.verb(side, &["check", path(&self.store(side))])?;
        }
        Ok(reached)
    }

    /// How long a server takes until it answers, behind one that was killed under writes.
    fn openings(&self) -> Result<bool> {
        let mut took = [Vec::new(), Vec::new()];
        for round in 0..self.rounds {
            for side in [round % 2, 1 - round % 2] {
                let server = self.serve(side)?;
                self.fio(side, &WRITES, self.mebibytes / 4, 900 + round as u64)?;
                server.kill();
                let begun = Instant::now();
                let server = self.serve(side)?;
                took[side].push(begun.elapsed().as_secs_f64() * 1000.0);
                server.stop()?;
            }
        }
        for side in [0, 1] {
            self.verb(side, &["check", path(&self.store(side))])?;
            fs::remove_file(self.store(side))?;
        }
        Ok(most("opening after a kill, ms", took.each_ref().map(|side| median(side)), OPENING))
    }

    /// Puts of two versions of a stream, and a get of the second, in memory where there is room.
    fn archives(&self, quick: bool) -> Result<bool> {
        let place = Place::new(3 << 30)?;
        let versions = data::stream(&place.path, quick)?;
        let (mut first, mut second, mut get) =
            ([vec![], vec![]], [vec![], vec![]], [vec![], vec![]]);
        for round in 0..self.rounds {
            for side in [round % 2, 1 - round % 2] {
                let archive = place.path.join(format!("{}-archive", SIDES[side]));
                self.verb(side, &["create", "archive", path(&archive)])?;
                let cost = |words: &[&str]| -> Result<f64> {
                    let command = self.onefold.command([words, &self.more(side)].concat());
                    Ok(cost::of(command, LIMIT)?.cpu)
                };
                let put =
                    |name, version: &Path| cost(&["put", path(&archive), name, path(version)]);
                first[side].push(put("v0", &versions[0])?);
                second[side].push(put("v1", &versions[1])?);
                get[side].push(cost(&["get", path(&archive), "v1", "--verify"])?);
                self.verb(side, &["check", path(&archive)])?;
                fs::remove_dir_all(&archive)?;
            }
        }
        let bytes = fs::metadata(&versions[0])?.len();
        let mut reached = true;
        for (what, figures) in [("first put", first), ("second put", second), ("verified get", get)]
        {
            let middle = figures.each_ref().map(|side| median(side));
            ensure!(middle[0] > 0.0, "a command took no time of the processor");
            let each = middle.map(|seconds| seconds / bytes as f64 * 1e9);
            reached &= speed(&format!("{what}: ns of the processor for a byte"), each);
        }
        Ok(reached)
    }
}

/// A row of what two sides spend on the same; false when the encrypted one is too slow.
fn speed(what: &str, [plain, encrypted]: [f64; 2]) -> bool {
    let times = plain / encrypted;
    row(what, [plain, encrypted], times, SPEED, times >= SPEED)
}

/// A row of what the encrypted side needs, times the plain one; false when that is too much.
fn most(what: &str, [plain, encrypted]: [f64; 2], bar: f64) -> bool {
    let times = encrypted / plain;
    row(what, [plain, encrypted], times, bar, times <= bar)
}

fn row(what: &str, [plain, encrypted]: [f64; 2], times: f64, bar: f64, reached: bool) -> bool {
    let verdict = if reached { "reached" } else { "MISSED" };
    println!("| {what} | {plain:.3} | {encrypted:.3} | {times:.3} | {bar} | {verdict} |");
    reached
}
