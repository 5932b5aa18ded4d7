//! On a real cluster: volumes beside objects of the same pools without deduplication, in one run.
//! Ratios, medians of three.
//!
//! Both sides go through the same client library in this process, without a server between. The
//! plain pool is what a volume would be without deduplication: objects of 4 MiB, written and read
//! in requests.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use onefold_backend::{
    RadosObjects,
    rados::{Connection, TIMEOUT},
};
use onefold_cluster::{Format, Mode, Session, Settings, Volume, Watermarks, Worker, create};
use onefold_core::{
    Error, Kind, Result,
    object::{Change, Guard, ObjectName, ObjectStore, PoolKind, Read, ReadPart, Refusal, Write},
};

use super::{
    clock::load::noise,
    processor::{COLUMNS, Cost},
    site::in_blocks,
    speed::judged,
};
use crate::item::{Extent, Item, Judgement, Look as Found, no_figure, nothing};
use onefold_lab::report::{Figure, Table};
use onefold_testbed::SplitMix;

/// The statements that are measured on a real cluster.
pub(super) const ITEMS: [Item; 2] = [
    Item {
        id: "plain",
        name: "On Ceph: volumes beside the plain pool",
        says: "the issue's bars, not the paper's",
        band: "reads of 128 KiB ≥ 0.85 of plain reads of 32 KiB; half of the space where half of \
               the data are duplicates",
        fitted: false,
        calibrated: None,
        cases: nothing,
        judge: |extent, _: &Found<'_>| asked(extent, plain),
        draw: no_figure,
    },
    Item {
        id: "beside",
        name: "On Ceph: foreground beside workers",
        says: "one operation of deduplication for 100 of clients between the marks, without limit \
               below",
        band: "foreground ≥ 0.8 of the same load without deduplication; workers' operations equal \
               the ratio ± 20 %; idle: ≥ 0.5 of the pool's own rate of 32 KiB creates",
        fitted: false,
        calibrated: None,
        cases: nothing,
        judge: |extent, _: &Found<'_>| asked(extent, beside),
        draw: no_figure,
    },
];

/// The pools that must be there, and in which nothing else may be.
const METADATA: &str = "paper-meta";
const CHUNKS: &str = "paper-chunks";

const OBJECT: u64 = 4 << 20;
const CHUNK: u64 = 32 << 10;
const MIB: u64 = 1 << 20;

/// Requests on their way, each a thread's.
const THREADS: u64 = 8;

/// Bytes that each thread writes and reads.
const SHARE: u64 = 16 * MIB;

const ROUNDS: usize = 3;

/// How long a load with a rate runs.
const WINDOW: Duration = Duration::from_secs(12);

/// How long a worker rests that found the cluster slow.
const IDLE: Duration = Duration::from_millis(200);

/// Objects that are made at a time, to compare: entries of a worker's flip.
const BATCH: u64 = 64;

/// Workers, and clients that make objects.
const WORKERS: u64 = 4;

fn asked(extent: &Extent, of: fn(&Path) -> Result<Judgement>) -> Judgement {
    match &extent.cluster {
        Some(configuration) => judged(of(configuration)),
        None => Judgement {
            missing: true,
            remark: "Not run: no cluster was given.".into(),
            ..Judgement::default()
        },
    }
}

fn refused(refusal: Refusal) -> Error {
    Error::new(Kind::Io, format!("the cluster: {refusal}"))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

/// A session of its own; with a store of its own, when there is none yet.
fn store(configuration: &Path) -> Result<Arc<RadosObjects>> {
    let connection = Connection::open(Some(configuration), TIMEOUT)?;
    let (metadata, chunks) = (connection.pool(METADATA)?, connection.pool(CHUNKS)?);
    Ok(Arc::new(RadosObjects::new(connection, &metadata, &chunks)?))
}

fn session(configuration: &Path, settings: Settings) -> Result<Arc<Session>> {
    let store = store(configuration)?;
    match create(
        &*store,
        &Format { compress: false, ..Format::new([1; 16], [2; 32], PoolKind::Replicated) },
    ) {
        Err(error) if error.kind() != Kind::Exists => return Err(error),
        _ => {}
    }
    Ok(Arc::new(Session::open(store, settings)?))
}

/// Runs `each` for every thread's number at once; seconds until the last is done.
fn together(each: impl Fn(u64) -> Result<()> + Sync) -> Result<f64> {
    let begun = Instant::now();
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|n| {
                scope.spawn({
                    let each = &each;
                    move || each(n)
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| {
            thread.join().unwrap_or_else(|_| Err(Error::new(Kind::Io, "a thread panicked")))
        })
    })?;
    Ok(begun.elapsed().as_secs_f64())
}

/// Content in which each chunk is there twice, next to each other.
fn content(round: u64, thread: u64) -> Vec<u8> {
    (0..SHARE / CHUNK).flat_map(|n| noise(round << 48 | thread << 32 | (n / 2), CHUNK)).collect()
}

fn plain_object(round: u64, at: u64) -> ObjectName {
    ObjectName::chunk(format!("plain.{round}.{}", at / OBJECT))
}

fn worker(configuration: &Path, cold: Duration, marks: Watermarks) -> Result<Worker> {
    Ok(Worker::new(session(configuration, Settings { cold, ..Settings::default() })?, marks))
}

/// Deduplicates all there is; chunks and seconds.
fn drain(configuration: &Path, workers: u64) -> Result<(u64, f64)> {
    let mut all: Vec<Worker> = (0..workers)
        .map(|_| worker(configuration, Duration::ZERO, Watermarks::NONE))
        .collect::<Result<_>>()?;
    let (chunks, begun) = (AtomicU64::new(0), Instant::now());
    thread::scope(|scope| {
        let life = |worker: &mut Worker| -> Result<()> {
            worker.session().publish(true).map_err(refused)?;
            worker.allowance(worker.session().store().time())?;
            loop {
                let progress = worker.step()?;
                chunks.fetch_add(progress.flipped, Relaxed);
                if progress.round && worker.session().backlog()? == 0 {
                    worker.release();
                    // A session that is still published as a worker would keep its share of the
                    // rate.
                    return worker.session().unpublish().map_err(refused);
                }
            }
        };
        let threads: Vec<_> =
            all.iter_mut().map(|worker| scope.spawn(move || life(worker))).collect();
        threads.into_iter().try_for_each(|thread| {
            thread.join().unwrap_or_else(|_| Err(Error::new(Kind::Io, "a worker panicked")))
        })
    })?;
    Ok((chunks.load(Relaxed), begun.elapsed().as_secs_f64()))
}

/// Million bytes a second of a round.
#[derive(Default)]
struct Speeds {
    plain_write: f64,
    plain_read: [f64; 2],
    write: f64,
    read: [f64; 2],
    /// Of the plain writes, and of those of the volume.
    cost: [Cost; 2],
}

const READS: [u64; 2] = [32 << 10, 128 << 10];
const WRITES: u64 = 128 << 10;

fn plain_round(configuration: &Path, round: u64, volume: &Volume) -> Result<Speeds> {
    let store = store(configuration)?;
    let contents: Vec<Vec<u8>> = (0..THREADS).map(|n| content(round, n)).collect();
    let speed = |seconds: f64| (THREADS * SHARE) as f64 / 1e6 / seconds;
    let requests = |thread: u64, bytes: u64| {
        (0..SHARE / bytes).map(move |n| (thread * SHARE + n * bytes, (n * bytes) as usize))
    };
    let begun = Cost::until_now();
    let plain_write = speed(together(|thread| {
        requests(thread, WRITES).try_for_each(|(at, from)| {
            let bytes = contents[thread as usize][from..from + WRITES as usize].to_vec();
            let op = Write {
                object: plain_object(round, at),
                guards: Vec::new(),
                changes: vec![Change::Write(at % OBJECT, bytes)],
            };
            store.write(&[op]).remove(0).map(|_| ()).map_err(refused)
        })
    })?);
    let between = Cost::until_now();
    let write = speed(together(|thread| {
        requests(thread, WRITES).try_for_each(|(at, from)| {
            volume.write_at(at, &contents[thread as usize][from..from + WRITES as usize])
        })
    })?);
    let cost = [between - begun, Cost::until_now() - between];
    drain(configuration, WORKERS)?;
    let mut speeds = Speeds { plain_write, write, cost, ..Speeds::default() };
    for (n, bytes) in READS.into_iter().enumerate() {
        let right = |thread: u64, from: usize, read: &[u8]| {
            if contents[thread as usize][from..from + read.len()] == *read {
                Ok(())
            } else {
                Err(Error::new(Kind::Corrupt, "other bytes were read than were written"))
            }
        };
        speeds.plain_read[n] = speed(together(|thread| {
            requests(thread, bytes).try_for_each(|(at, from)| {
                let op = Read {
                    object: plain_object(round, at),
                    parts: vec![ReadPart::Data(at % OBJECT, bytes)],
                };
                right(thread, from, store.read(&[op]).remove(0).map_err(refused)?.data(0))
            })
        })?);
        speeds.read[n] = speed(together(|thread| {
            let mut into = vec![0; bytes as usize];
            requests(thread, bytes).try_for_each(|(at, from)| {
                volume.read_at(at, &mut into)?;
                right(thread, from, &into)
            })
        })?);
    }
    Ok(speeds)
}

fn plain(configuration: &Path) -> Result<Judgement> {
    let session = session(configuration, Settings { hit_count: 0, ..Settings::default() })?;
    let mut rounds = Vec::new();
    for round in 0..ROUNDS as u64 {
        let name = format!("plain{round}");
        session.create_volume(&name, THREADS * SHARE)?;
        let volume = Volume::attach(&session, &name, Mode::Own)?;
        rounds.push(plain_round(configuration, round, &volume)?);
        volume.detach()?;
    }
    let status = session.status()?;
    let of = |value: fn(&Speeds) -> f64| median(rounds.iter().map(value).collect());
    let logical = ROUNDS as u64 * THREADS * SHARE;
    let share = (status.chunk_bytes + super::site::metadata_bytes(&status)) as f64 / logical as f64;
    let read = of(|speeds| speeds.read[1] / speeds.plain_read[0]);
    let mut judgement = Judgement { blocks: in_blocks(2 * logical), ..Judgement::default() };
    judgement.check(
        format!(
            "reads of 128 KiB {:.0} MB/s, {read:.2} of plain reads of 32 KiB",
            of(|speeds| speeds.read[1])
        ),
        read >= 0.85,
    );
    judgement.check(
        format!("{:.1} % of the plain pool's space, metadata included", 100.0 * share),
        (0.45..=0.55).contains(&share),
    );
    judgement.remark = format!(
        "Medians of {ROUNDS} rounds of {} MiB, {THREADS} requests on their way. Reads of 128 KiB \
         are {:.2} of plain ones of 128 KiB, reads of 32 KiB {:.2} of plain ones of 32 KiB, writes \
         of 128 KiB {:.2} of plain ones. Every byte that was read was compared.",
        (THREADS * SHARE) / MIB,
        of(|speeds| speeds.read[1] / speeds.plain_read[1]),
        of(|speeds| speeds.read[0] / speeds.plain_read[0]),
        of(|speeds| speeds.write / speeds.plain_write),
    );
    let row = |name: &str, plain: f64, ours: f64| {
        vec![
            name.to_owned(),
            format!("{plain:.0}"),
            format!("{ours:.0}"),
            format!("{:.2}", ours / plain),
        ]
    };
    let rows = vec![
        row("write, 128 KiB", of(|speeds| speeds.plain_write), of(|speeds| speeds.write)),
        row("read, 32 KiB", of(|speeds| speeds.plain_read[0]), of(|speeds| speeds.read[0])),
        row("read, 128 KiB", of(|speeds| speeds.plain_read[1]), of(|speeds| speeds.read[1])),
    ];
    let columns =
        ["access", "plain pool, MB/s", "volume, MB/s", "share"].map(String::from).to_vec();
    let count = (THREADS * SHARE / WRITES) as f64;
    let costs = [("plain pool", 0), ("volume", 1)].map(|(name, which)| {
        let costs: Vec<Cost> = rounds.iter().map(|speeds| speeds.cost[which]).collect();
        cost_row(name, &costs, count)
    });
    judgement.figures = vec![
        Figure::Table(Table { title: "One host, medians".into(), columns, rows }),
        Figure::Table(cost_table("The cost of a write of 128 KiB, medians", costs.to_vec())),
    ];
    Ok(judgement)
}

/// The medians of what `count` operations cost in each round.
fn cost_row(name: &str, costs: &[Cost], count: f64) -> Vec<String> {
    let of = |value: fn(&Cost) -> f64| median(costs.iter().map(value).collect());
    let cost = Cost {
        own: of(|cost| cost.own),
        disks: of(|cost| cost.disks),
        written: of(|cost| cost.written),
    };
    [&[name.to_owned()][..], &cost.cells(count)].concat()
}

fn cost_table(title: &str, rows: Vec<Vec<String>>) -> Table {
    let columns = [&["operation"][..], &COLUMNS].concat();
    Table { title: title.into(), columns: columns.into_iter().map(String::from).collect(), rows }
}

/// Requests of 4 KiB at random during the window; a second of them comes before, without being
/// counted.
fn small_writes(
    volume: &Volume,
    session: &Session,
    seed: u64,
    began: &(dyn Fn() + Sync),
) -> Result<f64> {
    let (count, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let settle = Duration::from_secs(2);
    let begun = Instant::now();
    let mut counted = (0, Duration::ZERO);
    thread::scope(|scope| {
        let write = |thread: u64| -> Result<()> {
            let mut rng = SplitMix::new(seed << 8 | thread);
            let blocks = THREADS * SHARE / 4096;
            while !over.load(Relaxed) {
                volume.write_at(rng.below(blocks) * 4096, &noise(rng.next(), 4096))?;
                count.fetch_add(1, Relaxed);
            }
            Ok(())
        };
        let threads: Vec<_> = (0..THREADS).map(|n| scope.spawn(move || write(n))).collect();
        let mut started = None;
        while begun.elapsed() < settle + WINDOW {
            thread::sleep(Duration::from_millis(250));
            let _ = session.publish(false);
            if started.is_none() && begun.elapsed() >= settle {
                began();
                started = Some((count.load(Relaxed), Instant::now()));
            }
        }
        if let Some((before, since)) = started {
            counted = (count.load(Relaxed) - before, since.elapsed());
        }
        over.store(true, Relaxed);
        threads.into_iter().try_for_each(|thread| {
            thread.join().unwrap_or_else(|_| Err(Error::new(Kind::Io, "a thread panicked")))
        })
    })?;
    Ok(counted.0 as f64 / counted.1.as_secs_f64().max(0.001))
}

/// Makes so many objects of 32 KiB, a batch of each of as many threads as there are workers at a
/// time; with two attributes and a key, if they are to be like chunks. How many in a second.
fn creates(configuration: &Path, round: u64, count: u64, like_chunks: bool) -> Result<f64> {
    let (store, made) = (store(configuration)?, AtomicU64::new(0));
    let content = noise(round, CHUNK);
    let make = || -> Result<()> {
        while made.load(Relaxed) < count {
            let first = made.fetch_add(BATCH, Relaxed);
            let create = |at: u64| {
                let mut changes = vec![Change::Full(content.clone())];
                if like_chunks {
                    changes.extend([
                        Change::SetXattr("head", vec![0; 5]),
                        Change::SetXattr("spread", vec![0]),
                    ]);
                    changes.push(Change::SetOmap(vec![(vec![7; 26], Vec::new())]));
                }
                let object = ObjectName::chunk(format!("made.{round}.{like_chunks}.{at}"));
                Write { object, guards: vec![Guard::Absent], changes }
            };
            let batch: Vec<Write> = (first..first + BATCH).map(create).collect();
            store
                .write(&batch)
                .into_iter()
                .try_for_each(|result| result.map(|_| ()).map_err(refused))?;
        }
        Ok(())
    };
    let begun = Instant::now();
    thread::scope(|scope| {
        let threads: Vec<_> = (0..WORKERS).map(|_| scope.spawn(make)).collect();
        threads.into_iter().try_for_each(|thread| {
            thread.join().unwrap_or_else(|_| Err(Error::new(Kind::Io, "a thread panicked")))
        })
    })?;
    Ok(made.load(Relaxed) as f64 / begun.elapsed().as_secs_f64())
}

/// A round beside workers.
struct Beside {
    /// Foreground beside a worker over foreground alone; operations of workers over those that the
    /// ratio gives; chunks a second when there is no other load, and creates a second, plain and
    /// like chunks; how often the worker rested since the cluster was slow.
    figures: [f64; 6],
    /// Chunks of the backlog, and objects that were made.
    chunks: u64,
    /// Of draining the backlog, of making plain objects, and of making objects like chunks.
    cost: [Cost; 3],
}

fn beside_round(configuration: &Path, session: &Arc<Session>, round: u64) -> Result<Beside> {
    const SIXTEENTH: u64 = OBJECT / 16;
    let names = [format!("busy{round}"), format!("backlog{round}")];
    let sizes = [THREADS * SHARE, 512 * MIB];
    let mut volumes = Vec::new();
    for (name, size) in names.iter().zip(sizes) {
        session.create_volume(name, size)?;
        volumes.push(Volume::attach(session, name, Mode::Own)?);
    }
    let alone = small_writes(&volumes[0], session, 2 * round, &|| {})?;
    // Each object has a few chunks to do, so that the steps are short.
    for at in (0..sizes[1]).step_by(OBJECT as usize) {
        volumes[1].write_at(at, &noise(1 << 56 | round << 40 | at, SIXTEENTH))?;
    }
    let marks = Watermarks { operations: (1, u64::MAX), bytes: (u64::MAX, u64::MAX) };
    let mut labourer = worker(configuration, Duration::from_secs(1), marks)?;
    let waits = AtomicU64::new(0);
    let (done, counts, over) = (AtomicU64::new(0), AtomicBool::new(false), AtomicBool::new(false));
    let beside = thread::scope(|scope| {
        let life = || -> Result<()> {
            let mut allowed = 0;
            let mut looked = None::<Instant>;
            while !over.load(Relaxed) {
                if looked.is_none_or(|looked| looked.elapsed() >= Duration::from_secs(1)) {
                    // Before the second look nothing is known of the load.
                    let first = looked.is_none();
                    looked = Some(Instant::now());
                    labourer.session().publish(true).map_err(refused)?;
                    let now = labourer.session().store().time();
                    allowed = if first {
                        labourer.allowance(now).map(|_| 0)?
                    } else {
                        labourer.allowance(now)?
                    };
                }
                if allowed == 0 {
                    thread::sleep(Duration::from_millis(20));
                    continue;
                }
                let progress = labourer.step()?;
                if progress.waits {
                    waits.fetch_add(1, Relaxed);
                    thread::sleep(IDLE);
                }
                allowed = allowed.saturating_sub(progress.operations);
                if counts.load(Relaxed) {
                    done.fetch_add(progress.operations, Relaxed);
                }
            }
            labourer.release();
            labourer.session().unpublish().map_err(refused)
        };
        let life = scope.spawn(life);
        let beside =
            small_writes(&volumes[0], session, 2 * round + 1, &|| counts.store(true, Relaxed));
        over.store(true, Relaxed);
        life.join().unwrap_or_else(|_| Err(Error::new(Kind::Io, "a worker panicked")))?;
        beside
    })?;
    let ratio = done.load(Relaxed) as f64 * 100.0 / (beside * WINDOW.as_secs_f64());
    // The backlog is filled again and drained without clients; then as many objects of 32 KiB are
    // made as it had chunks.
    for at in (0..sizes[1]).step_by(OBJECT as usize) {
        volumes[1].write_at(at, &noise(1 << 57 | round << 40 | at, OBJECT / 2))?;
    }
    let begun = Cost::until_now();
    let (chunks, seconds) = drain(configuration, WORKERS)?;
    let drained = Cost::until_now();
    let bare = creates(configuration, round, chunks, false)?;
    let made = Cost::until_now();
    let like_chunks = creates(configuration, round, chunks, true)?;
    let cost = [drained - begun, made - drained, Cost::until_now() - made];
    for volume in volumes {
        volume.detach()?;
    }
    let figures = [
        beside / alone,
        ratio,
        chunks as f64 / seconds,
        bare,
        like_chunks,
        waits.load(Relaxed) as f64,
    ];
    Ok(Beside { figures, chunks, cost })
}

fn beside(configuration: &Path) -> Result<Judgement> {
    let session = session(configuration, Settings { hit_count: 0, ..Settings::default() })?;
    let rounds: Vec<Beside> = (0..ROUNDS as u64)
        .map(|round| beside_round(configuration, &session, round))
        .collect::<Result<_>>()?;
    let of = |value: fn(&[f64; 6]) -> f64| {
        median(rounds.iter().map(|round| value(&round.figures)).collect())
    };
    let (share, ratio, idle) =
        (of(|round| round[0]), of(|round| round[1]), of(|round| round[2] / round[3]));
    let mut judgement =
        Judgement { blocks: ROUNDS as u64 * in_blocks(512 * MIB), ..Judgement::default() };
    judgement.check(format!("foreground {share:.2} of that without deduplication"), share >= 0.8);
    judgement.check(format!("workers {ratio:.2} of one for 100"), (0.8..=1.2).contains(&ratio));
    let text = format!(
        "idle: {:.0} chunks a second, {idle:.2} of {:.0} creates",
        of(|round| round[2]),
        of(|round| round[3])
    );
    judgement.check(text, idle >= 0.5);
    judgement.remark = format!(
        "Medians of {ROUNDS} rounds; 4 KiB at random, {THREADS} requests on their way; a worker \
         rested {} times since operations took 4 times their median. Idle: {WORKERS} workers, and \
         as many threads that make {BATCH} objects at a time; {:.0} a second when the objects have \
         a key and attributes as chunks do, {:.2} of which the workers reach.",
        of(|round| round[5]),
        of(|round| round[4]),
        of(|round| round[2] / round[4])
    );
    let chunks = median(rounds.iter().map(|round| round.chunks as f64).collect());
    let costs = ["a chunk is deduplicated", "an object is made", "an object like a chunk is made"]
        .iter()
        .enumerate()
        .map(|(which, name)| {
            let costs: Vec<Cost> = rounds.iter().map(|round| round.cost[which]).collect();
            cost_row(name, &costs, chunks)
        });
    let title = "Idle: the cost of 32 KiB, medians";
    judgement.figures = vec![Figure::Table(cost_table(title, costs.collect()))];
    Ok(judgement)
}
