//! `cargo xtask bench replication`: a volume copied whole beside `nbdcopy`, and its changes alone.
//!
//! - a snapshot sent to a file, beside `nbdcopy` of the same snapshot to a file, in turns;
//! - the same sent into another store, beside `nbdcopy` into a volume of another store;
//! - what is sent, and read of the map, when 1 % of the volume changed;
//! - what is sent of a volume that holds one image twice.
//!
//! Nothing that is written compresses, so bytes of streams are those of blocks.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};

use super::{machine_facts, median, needs_space};
use crate::{
    cleanup::Scratch,
    nbd::Client,
    product::{Build, Onefold, Server, path, uri},
    program::{describe, program, spawn},
};

/// The bars: the rate of a whole copy beside `nbdcopy`, the share of the map that is read for 1 %,
/// bytes sent for a byte that changed, and bytes sent of a volume that holds one image twice.
const RATE: f64 = 0.8;
const MAP_READ: f64 = 0.03;
const SENT: f64 = 1.05;
const TWICE: f64 = 0.6;

/// Entries of a leaf of a map.
const PER_LEAF: u64 = 288;

/// Changes of 1 % lie in so many places.
const PLACES: u64 = 16;

/// Bytes of one write.
const PIECE: usize = 1 << 20;

/// Longest that one copy may take.
const LIMIT: Duration = Duration::from_secs(1800);

/// Runs it; `Ok(false)` when a bar is missed.
pub(super) fn run(arguments: &[String]) -> Result<bool> {
    let (mib, rounds) = match arguments {
        [] => (8192, 3),
        [word] if word == "--quick" => (512, 2),
        _ => bail!("unknown arguments {arguments:?}"),
    };
    let scratch = Scratch::new("bench-replication")?;
    needs_space(&scratch, (6 * mib) << 20)?;
    let onefold = Onefold::build(Build::Release)?;
    println!("{}", machine_facts(scratch.path(), &["nbdcopy"]));
    println!(
        "A volume of {mib} MiB, all different blocks that don't compress; {rounds} rounds in turns, \
         medians.\n"
    );
    println!("| what | nbdcopy | onefold | ratio | bar | |\n|---|---|---|---|---|---|");
    let mut site = Site::new(&onefold, &scratch, "from", mib)?;
    site.write(&[(0, mib << 20)], 1)?;
    site.snapshot("monday")?;
    let mut reached = site.to_files(rounds)?;
    reached &= site.to_stores(rounds)?;
    site.change(mib)?;
    site = site.serve_again()?;
    reached &= site.changes(mib)?;
    reached &= site.twice(mib)?;
    site.server.stop()?;
    onefold.check(&site.store)?;
    println!("\n`onefold check` of the sender's store after all of it: in order.");
    Ok(reached)
}

/// A store with the volume `v`, served.
struct Site<'a> {
    onefold: &'a Onefold,
    scratch: &'a Scratch,
    name: &'static str,
    store: PathBuf,
    server: Server,
}

impl<'a> Site<'a> {
    /// Makes a store for twice as many MiB, with a volume of so many.
    fn new(
        onefold: &'a Onefold,
        scratch: &'a Scratch,
        name: &'static str,
        mib: u64,
    ) -> Result<Site<'a>> {
        let store = scratch.file(&format!("{name}.store"));
        let volumes = [("v", format!("{mib}M"))];
        onefold.create(&store, &format!("{}M", 2 * mib), &["--preallocate", "none"], &volumes)?;
        let server = serve(onefold, scratch, name, &store)?;
        Ok(Site { onefold, scratch, name, store, server })
    }

    /// Ends the server and starts another, whose memory is empty.
    fn serve_again(self) -> Result<Site<'a>> {
        self.server.stop()?;
        let server = serve(self.onefold, self.scratch, self.name, &self.store)?;
        Ok(Site { server, ..self })
    }

    fn socket(&self) -> PathBuf {
        self.scratch.file(&format!("{}.sock", self.name))
    }

    /// Writes new content to ranges of bytes, given by first byte and bytes.
    fn write(&self, ranges: &[(u64, u64)], seed: u64) -> Result<()> {
        self.write_as("v", ranges, seed)
    }

    fn write_as(&self, volume: &str, ranges: &[(u64, u64)], seed: u64) -> Result<()> {
        let mut client = Client::connect(&self.socket(), volume)?;
        let mut state = seed | 1;
        let mut data = vec![0; PIECE];
        for &(first, bytes) in ranges {
            for at in (first..first + bytes).step_by(PIECE) {
                for word in data.chunks_exact_mut(8) {
                    // xorshift64
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    word.copy_from_slice(&state.to_le_bytes());
                }
                let length = PIECE.min((first + bytes - at) as usize);
                client.write_all([(at, &data[..length])].into_iter())?;
            }
        }
        client.flush()?;
        client.disconnect()
    }

    fn snapshot(&self, name: &str) -> Result<()> {
        self.onefold
            .verb(["snapshot", "create", path(&self.store), &format!("v@{name}")])
            .map(|_| ())
    }

    /// A command that sends a snapshot.
    fn send(&self, snapshot: &str, more: &[&str]) -> Command {
        self.onefold.command([&["send", path(&self.store), snapshot], more].concat())
    }

    /// Sends to a file; seconds, and its bytes.
    fn send_to(&self, snapshot: &str, more: &[&str], file: &Path) -> Result<(f64, u64)> {
        let mut command = self.send(snapshot, more);
        command.stdout(fs::File::create(file)?);
        let seconds = timed(command)?;
        Ok((seconds, fs::metadata(file)?.len()))
    }

    /// A whole snapshot to a file, beside `nbdcopy`.
    fn to_files(&self, rounds: u64) -> Result<bool> {
        let (mut theirs, mut ours) = (Vec::new(), Vec::new());
        for round in 0..rounds {
            for n in [round % 2, 1 - round % 2] {
                let file = self.scratch.file("copy");
                if n == 0 {
                    let from = uri(&self.socket(), "v@monday");
                    theirs.push(timed(nbdcopy(&from, path(&file), &["--flush"]))?);
                } else {
                    ours.push(self.send_to("v@monday", &[], &file)?.0);
                }
                fs::remove_file(file)?;
            }
        }
        Ok(rates("a snapshot to a file", &theirs, &ours))
    }

    /// A whole snapshot into another store, beside `nbdcopy` into a volume of another store.
    fn to_stores(&self, rounds: u64) -> Result<bool> {
        let mib = Client::connect(&self.socket(), "v")?.size() >> 20;
        let (mut theirs, mut ours) = (Vec::new(), Vec::new());
        for round in 0..rounds {
            for n in [round % 2, 1 - round % 2] {
                let other = Site::new(self.onefold, self.scratch, "to", mib)?;
                if n == 0 {
                    let (from, to) = (uri(&self.socket(), "v@monday"), uri(&other.socket(), "v"));
                    theirs.push(timed(nbdcopy(&from, &to, &["--flush"]))?);
                } else {
                    let begun = Instant::now();
                    let mut sending = self.send("v@monday", &[]);
                    let mut child = sending.stdout(Stdio::piped()).spawn()?;
                    let stream = child.stdout.take().context("the sender's output")?;
                    let mut receive = self.onefold.command(["receive", path(&other.store), "r"]);
                    receive.stdin(stream);
                    let received = timed(receive);
                    ensure!(child.wait()?.success(), "{} failed", describe(&sending));
                    received?;
                    ours.push(begun.elapsed().as_secs_f64());
                }
                other.server.stop()?;
                fs::remove_file(other.store)?;
            }
        }
        Ok(rates("a snapshot into another store", &theirs, &ours))
    }

    /// Changes 1 % in some places.
    fn change(&self, mib: u64) -> Result<()> {
        let places = (0..PLACES).map(|n| (n * (mib << 20) / PLACES, changed(mib)));
        self.write(&places.collect::<Vec<_>>(), 3)?;
        self.snapshot("tuesday")
    }

    /// Bytes that are sent, and pages of the map that are read, for these changes.
    fn changes(&self, mib: u64) -> Result<bool> {
        let bytes = changed(mib);
        let before = self.pages_read_when_quiet()?;
        let file = self.scratch.file("changes");
        let (_, sent) = self.send_to("v@tuesday", &["--from", "v@monday"], &file)?;
        fs::remove_file(file)?;
        let read = self.pages_read()? - before;
        let pages = (mib << 8).div_ceil(PER_LEAF);
        let share = read as f64 / pages as f64;
        let each = sent as f64 / (PLACES * bytes) as f64;
        println!(
            "| 1 % changed in {PLACES} places: pages read, of {pages} of the map | | {read} | {share:.3} | \
             {MAP_READ} | {} |",
            verdict(share <= MAP_READ)
        );
        println!(
            "| bytes sent, of {} that changed | | {sent} | {each:.3} | {SENT} | {} |",
            PLACES * bytes,
            verdict(each <= SENT)
        );
        Ok(share <= MAP_READ && each <= SENT)
    }

    /// The same once what a server does after it began is over.
    fn pages_read_when_quiet(&self) -> Result<u64> {
        let begun = Instant::now();
        let mut last = self.pages_read()?;
        loop {
            thread::sleep(Duration::from_secs(2));
            let now = self.pages_read()?;
            if now == last {
                return Ok(now);
            }
            ensure!(begun.elapsed() < LIMIT, "the server never stops reading tables");
            last = now;
        }
    }

    /// Pages of tables that the server read so far.
    fn pages_read(&self) -> Result<u64> {
        let status = self.onefold.status(&self.store)?;
        status.pointer("/server/page_cache/misses").and_then(|all| all.as_u64()).context("misses")
    }

    /// Bytes that are sent of a volume that holds one image twice.
    fn twice(&self, mib: u64) -> Result<bool> {
        let half = (mib << 20) / 8;
        let size = (2 * half).to_string();
        self.onefold.verb(["volume", "create", path(&self.store), "w", "--size", &size])?;
        self.write_as("w", &[(0, half)], 5)?;
        self.write_as("w", &[(half, half)], 5)?;
        self.onefold.verb(["snapshot", "create", path(&self.store), "w@monday"])?;
        let file = self.scratch.file("twice");
        let (_, sent) = self.send_to("w@monday", &[], &file)?;
        fs::remove_file(file)?;
        let share = sent as f64 / (2 * half) as f64;
        println!(
            "| bytes sent of a volume of {} with one image twice | | {sent} | {share:.3} | {TWICE} | {} |",
            2 * half,
            verdict(share <= TWICE)
        );
        Ok(share <= TWICE)
    }
}

/// Bytes that change in each place: together 1 % of so many MiB.
fn changed(mib: u64) -> u64 {
    (mib << 20) / 100 / PLACES / 4096 * 4096
}

fn serve(onefold: &Onefold, scratch: &Scratch, name: &str, store: &Path) -> Result<Server> {
    let socket = format!("unix:{}", scratch.file(&format!("{name}.sock")).display());
    onefold.serve(store, &[socket], &[])
}

fn nbdcopy(from: &str, to: &str, more: &[&str]) -> Command {
    let mut command = program("nbdcopy");
    command.args(more).args([from, to]);
    command
}

/// Runs a command to its end; seconds by the clock. What it wrote to a file is on the medium by then
/// or not, for both sides alike.
fn timed(mut command: Command) -> Result<f64> {
    let what = describe(&command);
    let begun = Instant::now();
    let status = spawn(&mut command)?.wait(LIMIT)?;
    let status =
        status.with_context(|| format!("{what} took longer than {} s", LIMIT.as_secs()))?;
    ensure!(status.success(), "{what} failed ({status})");
    Ok(begun.elapsed().as_secs_f64())
}

fn rates(what: &str, theirs: &[f64], ours: &[f64]) -> bool {
    let (theirs, ours) = (median(theirs), median(ours));
    let rate = theirs / ours;
    println!(
        "| {what}, s | {theirs:.2} | {ours:.2} | {rate:.2} | {RATE} | {} |",
        verdict(rate >= RATE)
    );
    rate >= RATE
}

fn verdict(reached: bool) -> &'static str {
    if reached { "reached" } else { "MISSED" }
}
