//! vhost-user-blk beside NBD on a UNIX socket: one server, one volume, and clients that do as little
//! as they can (`crates/serve/examples/load.rs`).

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::{
    fio::{self, Data, Length, Pattern},
    machine_facts, median,
};
use crate::{
    cleanup::Scratch,
    product::{Build, Onefold, path, uri},
    program::{cargo, run as finish},
};

/// Size of the volume.
const MEBIBYTES: u64 = 1024;

/// The least that vhost-user-blk does, times NBD: requests at depth 1 and 32; and the most of the
/// processor's time that the server takes for a request.
const DEPTH_1: f64 = 1.1;
const DEPTH_32: f64 = 1.5;
const TIME: f64 = 0.6;

const LIMIT: Duration = Duration::from_secs(1800);

/// A job: its name, what is asked for, how many at one time, and the bar; 0 for none.
type Job = (&'static str, &'static str, &'static str, f64);

const JOBS: [Job; 4] = [
    ("random 4 KiB reads, depth 1", "read", "1", DEPTH_1),
    ("random 4 KiB reads, depth 32", "read", "32", DEPTH_32),
    ("random 4 KiB writes, depth 1", "write", "1", DEPTH_1),
    ("random 4 KiB writes, depth 32", "write", "32", DEPTH_32),
];

/// The same with strong persistence, of which the disk decides: there is no bar.
const STRONG: [Job; 2] = [
    ("random 4 KiB writes, depth 1, persistence strong", "write", "1", 0.0),
    ("random 4 KiB writes, depth 32, persistence strong", "write", "32", 0.0),
];

/// Runs the table.
pub(super) fn run(arguments: &[String]) -> Result<bool> {
    let ((mut rounds, mut seconds), mut jobs) = ((5, "5"), &JOBS[..]);
    for argument in arguments {
        match &**argument {
            "--quick" => (rounds, seconds) = (3, "2"),
            "--strong" => jobs = &STRONG,
            _ => bail!("unknown argument {argument:?}"),
        }
    }
    let persistence = if jobs.len() == STRONG.len() { "strong" } else { "weak" };
    let onefold = Onefold::build(Build::Release)?;
    let example = ["-p", "onefold-serve", "--example", "load", "--release", "--quiet"];
    finish(cargo([&["build"], &example[..]].concat()), LIMIT)?;
    let scratch = Scratch::new("bench-vhost")?;
    let (store, nbd, vhost) =
        (scratch.file("store"), scratch.file("nbd.sock"), scratch.file("vm1.sock"));
    onefold.create(&store, "8G", &["--preallocate", "full"], &[("vm1", "1G".to_owned())])?;
    let device = format!("vm1=unix:{}", path(&vhost));
    let listener = format!("unix:{}", path(&nbd));
    let server =
        onefold.serve(&store, &[listener], &["--vhost", &device, "--persistence", persistence])?;
    let fill = Pattern {
        rw: "write",
        request: 128 << 10,
        depth: 8,
        clients: 1,
        flush_every: 64,
        data: Data::Random,
    };
    let target = uri(&nbd, "vm1");
    fio::run(&scratch, &target, MEBIBYTES, &fill, Length::Mebibytes(MEBIBYTES), 1)?;

    println!("{}", machine_facts(scratch.path(), &["fio"]));
    println!("One queue, one connection; {rounds} rounds of {seconds} s in turns, medians.\n");
    println!(
        "| job | NBD: requests/s | vhost-user-blk | times | lowest to highest | server's µs a \
         request, NBD | vhost | times | |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let mut reached = true;
    for &(name, kind, depth, bar) in jobs {
        let measure = |protocol: &str| -> Result<(f64, f64)> {
            let socket = if protocol == "nbd" { &nbd } else { &vhost };
            let before = cpu_seconds(&onefold.status(&store)?)?;
            let load = ["--", protocol, path(socket), "vm1", kind, depth, seconds];
            let said = finish(cargo([&["run"], &example[..], &load].concat()), LIMIT)?;
            let spent = cpu_seconds(&onefold.status(&store)?)? - before;
            let numbers: Vec<f64> =
                said.split_whitespace().filter_map(|word| word.parse().ok()).collect();
            let [requests, took, _] = numbers[..] else { bail!("the client said '{said}'") };
            ensure!(requests > 0.0, "nothing was answered");
            Ok((requests / took, spent / requests * 1e6))
        };
        let (mut rates, mut times) = ([vec![], vec![]], [vec![], vec![]]);
        for _ in 0..rounds {
            for (n, protocol) in ["nbd", "vhost"].into_iter().enumerate() {
                let (rate, time) = measure(protocol)?;
                rates[n].push(rate);
                times[n].push(time);
            }
        }
        let mut ratios: Vec<f64> = rates[1].iter().zip(&rates[0]).map(|(v, n)| v / n).collect();
        ratios.sort_by(f64::total_cmp);
        let (low, high) = (ratios[0], ratios[ratios.len() - 1]);
        let [[nbd_rate, rate], [nbd_time, time]] =
            [rates, times].map(|both| both.map(|one| median(&one)));
        let (faster, cheaper) = (median(&ratios), time / nbd_time);
        let good = bar == 0.0 || faster >= bar && cheaper <= TIME;
        reached &= good;
        println!(
            "| {name} | {nbd_rate:.0} | {rate:.0} | {faster:.2}{} | {low:.2}–{high:.2} | \
             {nbd_time:.1} | {time:.1} | {cheaper:.2}{} | {} |",
            told(bar),
            told(if bar > 0.0 { TIME } else { bar }),
            if good { "" } else { "MISSED" }
        );
    }
    server.stop()?;
    Ok(reached)
}

/// A bar, where there is one.
fn told(bar: f64) -> String {
    if bar > 0.0 { format!(" (bar {bar})") } else { String::new() }
}

/// The processor's time that the server has taken.
fn cpu_seconds(status: &serde_json::Value) -> Result<f64> {
    status["server"]["cpu_seconds"].as_f64().context("the server tells no time of the processor")
}
