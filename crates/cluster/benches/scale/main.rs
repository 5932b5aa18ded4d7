//! What each verb costs a cluster store as it grows: operations, round trips, time and memory with up to 10
//! million chunks and 100,000 objects. In process, over a store that follows from a rule (`made_up`).
//! `cargo xtask bench cluster-scale` runs it.
//!
//! usage: scale [--quick] [--chunks N] [--only TEXT]
//!
//! Each verb is a process of its own, so that its memory is its own; the store takes some megabytes of it.
//! *At a cluster* is a model: each round trip takes 1 ms, and each operation 50 µs of a cluster of a few
//! disks. A verb is MISSED when its operations grow more than the store, or its memory beyond 128 MiB, and
//! `status` when the model gives it more than 2 s.

#![allow(clippy::unwrap_used, reason = "a bench panics where it fails")]

mod made_up;

use std::{
    collections::BTreeMap,
    process::Command,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use onefold_backend::process::{cpu_time, memory};
use onefold_cluster::{
    Chunks, Cut, Estimate, Look, Scrub, Session, Settings, Watermarks, What, Worker,
};

use made_up::MadeUp;

const SIZES: [u64; 3] = [100_000, 1_000_000, 10_000_000];

/// The verbs.
const VERBS: [&str; 9] = [
    "status, as `onefold status` on Ceph",
    "status, as `onefold status` of a folder",
    "status --exact",
    "list of all names",
    "scrub, its beginning and 100 slices",
    "scrub, all",
    "estimate, 1 % of a pool",
    "worker, one pass",
    "gc, a stream that was deleted",
];

/// Slices of a portion of a scrub.
const SLICES: usize = 100;

/// Objects that the sample of `onefold status` has.
const SAMPLE: u64 = 4096;

const MEMORY_MAX: u64 = 128 << 20;

/// Times of the model.
const ROUND: Duration = Duration::from_millis(1);
const OPERATION: Duration = Duration::from_micros(50);
const STATUS_MAX: Duration = Duration::from_secs(2);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name)?;
        arguments.get(at + 1).cloned()
    };
    let chunks: Option<u64> = value("--chunks").map(|chunks| chunks.parse().unwrap());
    if let Some(verb) = value("--verb") {
        return measure(verb.parse().unwrap(), chunks.unwrap());
    }
    let quick = arguments.iter().any(|argument| argument == "--quick");
    let sizes = match chunks {
        Some(chunks) => vec![chunks],
        None if quick => SIZES[..2].to_vec(),
        None => SIZES.to_vec(),
    };
    let only = value("--only").unwrap_or_default();
    println!(
        "| chunks | verb | operations | round trips | at a cluster, s | processor, ms | peak memory, MiB | |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    let mut before: BTreeMap<usize, (u64, u64)> = BTreeMap::new();
    for chunks in sizes {
        for (n, verb) in VERBS.iter().enumerate().filter(|(_, verb)| verb.contains(&only)) {
            let output = Command::new(std::env::current_exe().unwrap())
                .args(["--verb", &n.to_string(), "--chunks", &chunks.to_string()])
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            let mut figures = said.split_whitespace().map(|figure| figure.parse::<u64>().unwrap());
            let [operations, rounds, milliseconds, peak] =
                std::array::from_fn(|_| figures.next().unwrap());
            let model = ROUND * rounds as u32 + OPERATION * operations as u32;
            let grows = before.insert(n, (chunks, operations)).is_some_and(|(fewer, then)| {
                operations > then * chunks.div_ceil(fewer) * 11 / 10 + 1000
            });
            let slow = verb.contains("`onefold status`") && model > STATUS_MAX;
            let missed = grows || slow || peak > MEMORY_MAX;
            println!(
                "| {chunks} | {verb} | {operations} | {rounds} | {:.2} | {milliseconds} | {} | {} |",
                model.as_secs_f64(),
                peak >> 20,
                if missed { "MISSED" } else { "" }
            );
        }
    }
}

/// Does a verb, and prints its figures.
fn measure(verb: usize, chunks: u64) {
    let store = Arc::new(MadeUp::new(chunks, verb != 1));
    let settings = Settings { cold: Duration::ZERO, ..Settings::default() };
    let look = || Arc::new(Session::look(store.clone(), settings.clone()).unwrap());
    let open = || Arc::new(Session::open(store.clone(), settings.clone()).unwrap());
    let counts =
        || [&store.counts.operations, &store.counts.rounds].map(|count| count.load(Relaxed));
    let (before, begun) = (counts(), (cpu_time(), Instant::now()));
    match verb {
        0 | 1 => {
            let by = Look::Sample { objects: SAMPLE, seed: 7 };
            let status = look().status_by(by).unwrap();
            let near = |found: u64, truth: u64| found.abs_diff(truth) < truth / 8;
            assert!(
                near(status.chunks, chunks) && near(status.objects, chunks / 100),
                "{status:?}"
            );
        }
        2 => {
            let status = look().status().unwrap();
            assert_eq!((status.objects, status.backlog), (chunks / 100, chunks / 10_000));
            assert_eq!(status.logical_bytes, chunks / 100 * 128 * made_up::CHUNK);
        }
        3 => {
            let (session, mut after, mut names) = (look(), String::new(), 0);
            loop {
                let page = session.names_after(Some(What::Put), &after).unwrap();
                names += page.names.len() as u64;
                match page.next {
                    Some(next) => after = next,
                    None => break,
                }
            }
            assert_eq!(names, chunks / 200);
        }
        4 | 5 => {
            let mut scrub = Scrub::look(look(), false).unwrap();
            let most = if verb == 4 { SLICES } else { usize::MAX };
            let _ = (0..most).all(|_| scrub.step().unwrap());
            assert!(scrub.report().is_quiet(), "{:?}", scrub.report());
            assert!(verb == 4 || scrub.report().objects == chunks / 100);
        }
        6 => estimate(&store, chunks / 100),
        7 => {
            let mut worker = Worker::new(open(), Watermarks::NONE);
            let mut flipped = 0;
            while flipped < chunks / 10_000 {
                flipped += worker.step().unwrap().flipped;
            }
            worker.release();
        }
        _ => {
            let session = open();
            session.delete(&format!("stream {}", chunks / 100 - 1), What::Put).unwrap();
            while session.delete_step().unwrap() {}
        }
    }
    let [operations, rounds] = counts();
    // On a system that does not tell the processor's time, the clock's.
    let took = cpu_time().checked_sub(begun.0).unwrap_or_else(|| begun.1.elapsed());
    println!(
        "{} {} {} {}",
        operations - before[0],
        rounds - before[1],
        took.as_millis(),
        memory().unwrap().peak_bytes
    );
}

/// Counts one of a hundred objects of a pool, each of 128 chunks, of which every second is in other objects,
/// too.
fn estimate(store: &MadeUp, objects: u64) {
    let mut estimate = Estimate::new(made_up::CHUNK as u32, Cut::Static, false);
    let mut content = Vec::new();
    for n in 0..objects / 100 {
        // One of each hundred, any of them.
        let object = n * 100 + made_up::mixed(n) % 100;
        content.clear();
        for at in 0..128 {
            let chunk =
                if at % 2 == 0 { at * 31 + object % 64 } else { 1 << 32 | object << 8 | at };
            content.extend(made_up::data(chunk));
        }
        let chunks = Chunks::of(&content, Cut::Static, made_up::CHUNK as u32);
        estimate.count(&chunks);
        store.counts.operations.fetch_add(1, Relaxed);
        // The command reads so many at one time, at least.
        store.counts.rounds.fetch_add(u64::from(n % 32 == 0), Relaxed);
    }
    let whole = estimate.whole(objects * (4 << 20));
    // Half of the chunks are in one object only, and of the others there are 3,970.
    let (all, different) = (128.0 * objects as f64, 64.0 * objects as f64 + 3970.0);
    let stored = different * (made_up::CHUNK + 512) as f64 + all * 88.0;
    let truth = 100.0 - 100.0 * stored / (all * made_up::CHUNK as f64);
    let (least, most) = whole.saved_percent;
    assert!(least < most && (least..most).contains(&truth), "{truth}: {whole:?}");
}
