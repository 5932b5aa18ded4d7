//! Random 4 KiB writes at depth 32 through NBD while something else goes on in the store: it grows,
//! snapshots are taken, somebody looks at its metrics. Each stands beside the same writes without
//! that, in turns.
//!
//! The side that is not measured is stopped by SIGSTOP, as in the bench of the product.

use std::{
    fs,
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;

use super::{
    fio::{self, FILL, Length, Measured, Pattern, WRITES},
    machine_facts, median, needs_space,
};
use crate::{
    cleanup::Scratch,
    product::{Build, Onefold, Server, path, uri},
};

/// The bars: the longest stall while a store grows, and what is left of the rate afterwards.
const STALL_MS: f64 = 50.0;
const GROWN_RATE: f64 = 0.97;

/// The same of writes between snapshots: of the rate, and of the slowest of 100 requests.
const SNAPSHOTS_RATE: f64 = 0.9;
const SNAPSHOTS_DELAY: f64 = 2.0;

/// The same of one scrape a second, and the longest that a scrape may take.
const SCRAPES_RATE: f64 = 0.99;
const SCRAPE_MS: f64 = 5.0;

/// The same of writes beside moving: of the rate, and of the slowest of 100 requests.
const MOVING_RATE: f64 = 0.9;
const MOVING_DELAY: f64 = 2.0;

/// A client that writes and flushes one block, and pauses for longer than moving waits.
const PAUSES: Pattern = Pattern { depth: 1, flush_every: 1, ..WRITES };
const PAUSE: [&str; 2] = ["--thinktime=60000", "--thinktime_blocks=1"];

/// Longest that a store may take to free what deleted snapshots held.
const FREEING_LIMIT: Duration = Duration::from_secs(300);

/// Writes while a store grows to ten times its size, and afterwards.
pub(super) fn growth(arguments: &[String]) -> Result<bool> {
    let (from, rounds, seconds) = if quick(arguments)? { (256, 2, 4) } else { (1024, 5, 20) };
    let to = 10 * from;
    let scratch = Scratch::new("bench-growth")?;
    needs_space(&scratch, (3 * to) << 20)?;
    let onefold = Onefold::build(Build::Release)?;
    head(&scratch, rounds, seconds);
    let (mut calm, mut growing, mut took) = (Vec::new(), Vec::new(), Vec::new());
    let mut last = None;
    for round in 0..rounds {
        // A store grows from this size once.
        drop(last.take());
        let side = Side::new(&onefold, &scratch, "grown", from, from / 2, &[])?;
        calm.push(side.measure(seconds, 100 + round)?.longest_us / 1000.0);
        let (measured, grew) = side.while_growing(to, seconds, 200 + round)?;
        growing.push(measured.longest_us / 1000.0);
        took.push(grew.as_secs_f64() * 1000.0);
        last = Some(side);
    }
    let most = |all: &[f64]| all.iter().copied().fold(0.0, f64::max);
    let stalled = most(&growing);
    let mut reached = stalled <= STALL_MS;
    let sizes = format!("{from} MiB to {to} MiB");
    println!(
        "| longest write or flush while a store grows from {sizes}, ms, of {rounds} | {:.1} | {stalled:.1} \
         | | {STALL_MS:.0} | {} |",
        most(&calm),
        verdict(reached),
    );
    println!(
        "| the same, median of {rounds} | {:.1} | {:.1} | | | |",
        median(&calm),
        median(&growing)
    );
    println!("| `onefold grow` meanwhile took, ms, median | | {:.0} | | | |", median(&took));
    let large = Side::new(&onefold, &scratch, "large", to, from / 2, &[])?;
    let grown = last.context("no store has grown")?;
    let sides = in_turns(&large, &grown, rounds, |side, seed| side.measure(seconds, seed))?;
    reached &= rates(
        &format!("writes a second: a store made with {to} MiB, one that grew"),
        &sides,
        GROWN_RATE,
    );
    finish([large, grown], reached)
}

/// Writes between snapshots of their volume.
pub(super) fn snapshots(arguments: &[String]) -> Result<bool> {
    let (volume, rounds, seconds, every) =
        if quick(arguments)? { (128, 2, 4, 1) } else { (1024, 5, 30, 10) };
    let scratch = Scratch::new("bench-snapshots")?;
    // Each snapshot holds the volume at most.
    let store = volume * (3 + seconds / every);
    needs_space(&scratch, (2 * store) << 20)?;
    let onefold = Onefold::build(Build::Release)?;
    head(&scratch, rounds, seconds);
    let more = ["--preallocate", "none"];
    let without = Side::new(&onefold, &scratch, "without", store, volume, &more)?;
    let with = Side::new(&onefold, &scratch, "with", store, volume, &more)?;
    let every = Duration::from_secs(every);
    let mut taken = 0;
    let sides = in_turns(&without, &with, rounds, |side, seed| {
        if side.name == "without" {
            return side.measure(seconds, seed);
        }
        let (measured, names) = side.between_snapshots(every, seconds, seed)?;
        taken += names.len();
        side.delete(&names)?;
        Ok(measured)
    })?;
    let what = format!("a snapshot every {} s, {taken} in all", every.as_secs());
    let mut reached = rates(&format!("writes a second: {what}"), &sides, SNAPSHOTS_RATE);
    let p99 = |all: &[Measured]| median(&all.iter().map(|one| one.p99_us).collect::<Vec<_>>());
    let times = p99(&sides[1]) / p99(&sides[0]);
    reached &= times <= SNAPSHOTS_DELAY;
    println!(
        "| the slowest of 100 writes, µs: {what} | {:.0} | {:.0} | {times:.2} | {SNAPSHOTS_DELAY} | {} |",
        p99(&sides[0]),
        p99(&sides[1]),
        verdict(times <= SNAPSHOTS_DELAY),
    );
    finish([without, with], reached)
}

/// Writes while blocks are moved that lie scattered, and that a snapshot shares. Each round begins with a
/// volume that was overwritten at random, and a server that looks through all maps.
pub(super) fn moving(arguments: &[String]) -> Result<bool> {
    let (volume, rounds, seconds) = if quick(arguments)? { (256, 2, 5) } else { (1024, 5, 20) };
    let scratch = Scratch::new("bench-moving")?;
    // The snapshot holds the volume, and copies wait for a checkpoint.
    let store = volume * 4;
    needs_space(&scratch, (2 * store) << 20)?;
    let onefold = Onefold::build(Build::Release)?;
    head(&scratch, rounds, seconds);
    let mut without = Side::new(&onefold, &scratch, "without", store, volume, &[])?;
    let mut with = Side::new(&onefold, &scratch, "with", store, volume, &[])?;
    let (mut dense, mut paused) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    let mut moved = 0;
    for round in 0..2 * rounds {
        // Clients leave most of the volume alone.
        let part = (volume / 8).max(16);
        for n in [round % 2, 1 - round % 2] {
            let (now, other) = if n == 0 { (&mut without, &with) } else { (&mut with, &without) };
            other.server.signal(Signal::STOP);
            let seed = 500 + 2 * round + n;
            let found = now.beside_moving(round % 2 == 1, n == 1, part, seconds, seed);
            other.server.signal(Signal::CONT);
            let (measured, blocks) = found?;
            moved += blocks;
            let all = if round % 2 == 1 { &mut paused } else { &mut dense };
            all[n as usize].push(measured);
        }
    }
    ensure!(moved > 0, "nothing was moved");
    let mut reached = rates("writes a second beside moving", &dense, MOVING_RATE);
    for (what, sides) in [("at depth 32", &dense), ("between pauses of 60 ms", &paused)] {
        let of = |all: &[Measured], what: fn(&Measured) -> f64| {
            let all: Vec<f64> = all.iter().map(what).collect();
            (median(&all), all.iter().copied().fold(0.0, f64::max))
        };
        let [p99, p99_with] = sides.each_ref().map(|side| of(side, |one| one.p99_us).0);
        let times = p99_with / p99;
        println!(
            "| the slowest of 100 writes beside moving, {what}, µs | {p99:.0} | {p99_with:.0} | {times:.2} \
             | {MOVING_DELAY} | {} |",
            verdict(times <= MOVING_DELAY),
        );
        let longest = sides.each_ref().map(|side| of(side, |one| one.longest_us / 1000.0));
        let is_short = longest[1].1 <= STALL_MS;
        println!(
            "| longest write or flush beside moving, {what}, ms | {:.1} | {:.1} | | {STALL_MS:.0} | {} |",
            longest[0].1,
            longest[1].1,
            verdict(is_short),
        );
        println!(
            "| the same, median of {rounds} | {:.1} | {:.1} | | | |",
            longest[0].0, longest[1].0
        );
        reached &= times <= MOVING_DELAY && is_short;
    }
    println!("\n{moved} blocks were moved.");
    finish([without, with], reached)
}

/// Writes while somebody reads the metrics once a second.
pub(super) fn metrics(arguments: &[String]) -> Result<bool> {
    let (volumes, rounds, seconds) = if quick(arguments)? { (50, 2, 4) } else { (1000, 9, 10) };
    let (volume, store) = (512, 2048);
    let scratch = Scratch::new("bench-metrics")?;
    needs_space(&scratch, (2 * store) << 20)?;
    let onefold = Onefold::build(Build::Release)?;
    head(&scratch, rounds, seconds);
    let side = Side::new(&onefold, &scratch, "metrics", store, volume, &[])?;
    for n in 1..volumes {
        side.onefold.verb([
            "volume",
            "create",
            path(&side.store),
            &format!("v{n}"),
            "--size",
            "1G",
        ])?;
    }
    let site = scratch.file("metrics.http");
    let (mut sides, mut scrapes) = ([Vec::new(), Vec::new()], Vec::new());
    for round in 0..rounds {
        for looked_at in [round % 2 == 0, round % 2 == 1] {
            let seed = 300 + 2 * round + u64::from(looked_at);
            let measure = || side.measure(seconds, seed);
            let measured = if looked_at {
                let (measured, took) =
                    meanwhile(Duration::from_secs(1), measure, |_| scrape(&site))?;
                scrapes.extend(took);
                measured
            } else {
                measure()?
            };
            sides[usize::from(looked_at)].push(measured);
        }
    }
    let mut reached = rates("writes a second: one scrape a second", &sides, SCRAPES_RATE);
    let quiet: Vec<f64> = (0..20).map(|_| scrape(&site)).collect::<Result<_>>()?;
    reached &= median(&quiet) <= SCRAPE_MS;
    println!(
        "| a scrape with {volumes} volumes, ms, median: beside nothing, beside the writes | {:.2} | {:.2} \
         | | {SCRAPE_MS:.0} | {} |",
        median(&quiet),
        median(&scrapes),
        verdict(median(&quiet) <= SCRAPE_MS),
    );
    finish([side], reached)
}

/// True for `--quick`, the only argument.
fn quick(arguments: &[String]) -> Result<bool> {
    match arguments {
        [] => Ok(false),
        [word] if word == "--quick" => Ok(true),
        _ => bail!("unknown arguments {arguments:?}"),
    }
}

fn head(scratch: &Scratch, rounds: u64, seconds: u64) {
    println!("{}", machine_facts(scratch.path(), &["fio"]));
    println!(
        "Random 4 KiB writes, depth 32, flush every 32; {rounds} rounds of {seconds} s in turns, \
         medians.\n"
    );
    println!("| what | without | with | ratio | bar | |\n|---|---|---|---|---|---|");
}

/// A store with the volume `v`, served.
struct Side<'a> {
    onefold: &'a Onefold,
    scratch: &'a Scratch,
    name: &'static str,
    store: PathBuf,
    volume_mib: u64,
    server: Server,
}

impl<'a> Side<'a> {
    /// Makes a store of these sizes in MiB, and writes its whole volume once.
    fn new(
        onefold: &'a Onefold,
        scratch: &'a Scratch,
        name: &'static str,
        store_mib: u64,
        volume_mib: u64,
        more: &[&str],
    ) -> Result<Side<'a>> {
        let store = scratch.file(&format!("{name}.store"));
        let _ = fs::remove_file(&store);
        let volumes = [("v", format!("{volume_mib}M"))];
        onefold.create(&store, &format!("{store_mib}M"), more, &volumes)?;
        let site = format!("unix:{}", scratch.file(&format!("{name}.http")).display());
        let socket = format!("unix:{}", scratch.file(&format!("{name}.sock")).display());
        let server = onefold.serve(&store, &[socket], &["--http", &site])?;
        let side = Side { onefold, scratch, name, store, volume_mib, server };
        side.run(&FILL, Length::Mebibytes(volume_mib), 1)?;
        Ok(side)
    }

    fn run(&self, pattern: &Pattern, length: Length, seed: u64) -> Result<Measured> {
        let socket = self.scratch.file(&format!("{}.sock", self.name));
        fio::run(self.scratch, &uri(&socket, "v"), self.volume_mib, pattern, length, seed)
    }

    fn measure(&self, seconds: u64, seed: u64) -> Result<Measured> {
        self.run(&WRITES, Length::Seconds(seconds), seed)
    }

    /// Overwrites the volume at random, takes a snapshot in the place of the one before, serves the store
    /// anew, and measures writes to its first `part` MiB. Also how many blocks were moved meanwhile.
    fn beside_moving(
        &mut self,
        pauses: bool,
        moves: bool,
        part: u64,
        seconds: u64,
        seed: u64,
    ) -> Result<(Measured, u64)> {
        let snapshots = self.onefold.verb(["snapshot", "list", path(&self.store)])?;
        if snapshots.contains("v@still") {
            self.delete(&["v@still".to_owned()])?;
        }
        self.run(&WRITES, Length::Mebibytes(self.volume_mib), 7 * seed)?;
        self.onefold.verb(["snapshot", "create", path(&self.store), "v@still"])?;
        let socket = self.scratch.file(&format!("{}.sock", self.name));
        let listener = format!("unix:{}", socket.display());
        self.server.end()?;
        let more = ["--moving", if moves { "pauses" } else { "off" }];
        self.server = self.onefold.serve(&self.store, &[listener], &more)?;
        let (pattern, arguments) = if pauses { (&PAUSES, &PAUSE[..]) } else { (&WRITES, &[][..]) };
        let (uri, length) = (uri(&socket, "v"), Length::Seconds(seconds));
        let measured = fio::run_with(self.scratch, &uri, part, pattern, length, seed, arguments)?;
        let status = self.onefold.status(&self.store)?;
        let writes = &status["server"]["writes"];
        let moved = ["neighbour_blocks", "emptied_blocks"].map(|what| writes[what].as_u64());
        Ok((measured, moved.into_iter().flatten().sum()))
    }

    /// Measures, and grows the store to so many MiB when half of the time is over; also how long
    /// that took.
    fn while_growing(&self, mib: u64, seconds: u64, seed: u64) -> Result<(Measured, Duration)> {
        thread::scope(|scope| {
            let growing = scope.spawn(|| {
                thread::sleep(Duration::from_secs(seconds) / 2);
                let begun = Instant::now();
                self.onefold.verb(["grow", path(&self.store), "--size", &format!("{mib}M")])?;
                Ok::<_, anyhow::Error>(begun.elapsed())
            });
            let measured = self.measure(seconds, seed);
            let took =
                growing.join().map_err(|_| anyhow::anyhow!("the thread that grows failed"))?;
            Ok((measured?, took?))
        })
    }

    /// Measures while snapshots are taken; also their names.
    fn between_snapshots(
        &self,
        every: Duration,
        seconds: u64,
        seed: u64,
    ) -> Result<(Measured, Vec<String>)> {
        meanwhile(
            every,
            || self.measure(seconds, seed),
            |n| {
                let name = format!("v@{seed}-{n}");
                self.onefold.verb(["snapshot", "create", path(&self.store), &name])?;
                Ok(name)
            },
        )
    }

    /// Deletes snapshots, and waits until what they held is free.
    fn delete(&self, snapshots: &[String]) -> Result<()> {
        for name in snapshots {
            self.onefold.verb(["snapshot", "delete", path(&self.store), name])?;
        }
        let begun = Instant::now();
        while self.onefold.status(&self.store)?["freeing"] != false {
            ensure!(begun.elapsed() < FREEING_LIMIT, "what snapshots held does not become free");
            thread::sleep(Duration::from_millis(200));
        }
        Ok(())
    }
}

/// Does something every so often while `measure` runs, the first time after half of that; what it
/// was told each time.
fn meanwhile<M, T: Send>(
    every: Duration,
    measure: impl FnOnce() -> Result<M>,
    mut act: impl FnMut(usize) -> Result<T> + Send,
) -> Result<(M, Vec<T>)> {
    thread::scope(|scope| {
        let (end, ended) = mpsc::channel::<()>();
        let acting = scope.spawn(move || {
            let (mut told, mut wait) = (Vec::new(), every / 2);
            while ended.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
                let begun = Instant::now();
                told.push(act(told.len())?);
                wait = every.saturating_sub(begun.elapsed());
            }
            Ok::<_, anyhow::Error>(told)
        });
        let measured = measure();
        drop(end);
        let told = acting.join().map_err(|_| anyhow::anyhow!("the thread beside failed"))?;
        Ok((measured?, told?))
    })
}

/// Gets the metrics, and returns how many milliseconds that took.
fn scrape(site: &Path) -> Result<f64> {
    let begun = Instant::now();
    let mut stream = UnixStream::connect(site)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    ensure!(answer.contains("onefold_build_info"), "this is not what metrics look like");
    Ok(begun.elapsed().as_secs_f64() * 1000.0)
}

/// Measures both in turns, while the other one is stopped.
fn in_turns(
    first: &Side<'_>,
    second: &Side<'_>,
    rounds: u64,
    mut measure: impl FnMut(&Side<'_>, u64) -> Result<Measured>,
) -> Result<[Vec<Measured>; 2]> {
    let mut sides = [Vec::new(), Vec::new()];
    for round in 0..rounds {
        for n in [round % 2, 1 - round % 2] {
            let (now, other) = if n == 0 { (first, second) } else { (second, first) };
            other.server.signal(Signal::STOP);
            let measured = measure(now, 400 + 2 * round + n);
            other.server.signal(Signal::CONT);
            sides[n as usize].push(measured?);
        }
    }
    Ok(sides)
}

/// Prints the rates of two sides; false when what is left of the first is less than the bar.
fn rates(what: &str, sides: &[Vec<Measured>; 2], bar: f64) -> bool {
    let [without, with] = sides
        .each_ref()
        .map(|side| median(&side.iter().map(|one| one.per_second).collect::<Vec<_>>()));
    let ratio = with / without;
    println!(
        "| {what} | {without:.0} | {with:.0} | {ratio:.3} | {bar} | {} |",
        verdict(ratio >= bar)
    );
    ratio >= bar
}

fn verdict(reached: bool) -> &'static str {
    if reached { "reached" } else { "MISSED" }
}

/// Ends the servers, and verifies the stores.
fn finish<const N: usize>(sides: [Side<'_>; N], reached: bool) -> Result<bool> {
    for Side { onefold, store, server, .. } in sides {
        server.stop()?;
        onefold.check(&store)?;
    }
    println!("\n`onefold check` after all of it: in order.");
    Ok(reached)
}
