//! The small case, tried to the end: every crash point of a workload of a few overlapping windows.
//!
//! At each write call: every subset of the unflushed block writes; and for each of those, all 256
//! sector masks with the other writes all kept and all lost. What leaves out the call's own blocks
//! was tried at the call before, so it is not tried again. Some of the crashed disks are recovered
//! under record too, and the crash points of that recovery are tried as well.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use onefold_core::{Algorithm, BLOCK_BYTES, Block, BlockRead, Clock, Disk, Lba, Result, Ticket};
use onefold_testbed::{
    Rng, VirtualClock, VirtualDisk,
    content::Palette,
    disk::{Image, Snapshot},
};
use parking_lot::Mutex;

use crate::{
    block::{
        model::{Key, Model, Outcome, Verb},
        subject::{Ack, Step, StoreOptions, Subject},
    },
    checker::{Checker, Failure},
    front::guarded,
};

/// The extent of a small case.
#[derive(Clone, Debug, Default)]
pub struct Tried {
    /// Crash points.
    pub points: u64,
    /// Crash points among them that lie in a recovery.
    pub recovery_points: u64,
    /// Crash points with more unflushed blocks than all subsets are tried of; of these, subsets
    /// are sampled.
    pub sampled: u64,
    /// The most unflushed blocks of a point.
    pub widest: u64,
    /// Crashed disks that were recovered and compared.
    pub cases: u64,
    /// The first failure, if any.
    pub failure: Option<Failure>,
}

/// Unflushed blocks of which all subsets are tried.
const ALL_SUBSETS: usize = 12;

/// Of a recovery's crash points, and of what is wider than [`ALL_SUBSETS`], at most so many
/// subsets.
const SAMPLE: u64 = 1024;

/// Blocks of the volume.
const VOLUME_BLOCKS: u64 = 16;

/// A moment at which the power may fail.
struct Point {
    snapshot: Snapshot,
    model: Arc<Model>,
    in_recovery: bool,
}

/// An act of the script.
#[derive(Clone, Copy)]
enum Act {
    /// Fresh blocks: first and count.
    Fresh(u64, u64),
    /// A duplicate of another block: to and from.
    Duplicate(u64, u64),
    /// A trimmed range.
    Trim(u64, u64),
    /// Zeroes.
    Zeroes(u64, u64),
    /// A step of the engine.
    Step(Step),
    /// A step as long as it has work.
    All(Step),
}

/// Windows that overlap, share blocks, overwrite each other, and have checkpoints between them.
const SCRIPT: &[Act] = {
    use Act::{All, Duplicate, Fresh, Step as S, Trim, Zeroes};
    use Step::{Checkpoint, Close, Prepare, Settle, Tidy, Write};
    &[
        Fresh(0, 3),
        S(Close),
        S(Prepare),
        S(Write),
        Fresh(1, 1),
        Duplicate(3, 0),
        Duplicate(4, 1),
        S(Close),
        S(Prepare),
        S(Write),
        S(Settle),
        Duplicate(5, 3),
        Trim(0, 2),
        Fresh(6, 1),
        S(Close),
        Fresh(6, 1),
        Zeroes(3, 1),
        S(Prepare),
        S(Write),
        S(Close),
        S(Prepare),
        S(Write),
        S(Settle),
        S(Settle),
        All(Checkpoint),
        Fresh(5, 3),
        S(Close),
        S(Prepare),
        S(Write),
        Duplicate(0, 6),
        S(Close),
        S(Prepare),
        S(Write),
        All(Settle),
        All(Checkpoint),
        Trim(5, 2),
        Fresh(7, 2),
        S(Close),
        S(Prepare),
        S(Write),
        All(Settle),
        All(Tidy),
        Duplicate(1, 7),
        Fresh(2, 1),
        S(Close),
        S(Prepare),
        S(Write),
        All(Settle),
    ]
};

/// Tries everything, on `threads` threads. `options` makes the store; see [`small`].
pub fn exhaust<S: Subject>(options: &StoreOptions, threads: usize) -> Tried {
    let mut tried = Tried::default();
    let mut points = Vec::new();
    if let Err(failure) = guarded(|| {
        points = play::<S>(options)?;
        let within: Vec<Point> = points
            .iter()
            .step_by(3)
            .map(|point| recovery_points::<S>(options, point))
            .collect::<Result<Vec<_>, _>>()?
            .into_iter()
            .flatten()
            .collect();
        points.extend(within);
        Ok(())
    }) {
        tried.failure = Some(failure);
        return tried;
    }
    tried.points = points.len() as u64;
    tried.recovery_points = points.iter().filter(|point| point.in_recovery).count() as u64;
    tried.sampled = points
        .iter()
        .filter(|point| !point.in_recovery && point.snapshot.unflushed.len() > ALL_SUBSETS)
        .count() as u64;
    tried.widest =
        points.iter().map(|point| point.snapshot.unflushed.len() as u64).max().unwrap_or(0);
    let next = AtomicU64::new(0);
    let cases = AtomicU64::new(0);
    let failure: Mutex<Option<(u64, Failure)>> = Mutex::new(None);
    let worker = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(point) = points.get(index as usize) else { return };
            let mut number = 0;
            let result = choices(point, &mut |masks| {
                number += 1;
                guarded(|| recover::<S>(options, point, masks, number)).map_err(|failure| {
                    Failure::new(
                        failure.checker,
                        format!("{} [point {index}, {}]", failure.message, show(point, masks)),
                    )
                })
            });
            cases.fetch_add(number, Ordering::Relaxed);
            if let Err(found) = result {
                let mut first = failure.lock();
                if first.as_ref().is_none_or(|(before, _)| *before > index) {
                    *first = Some((index, found));
                }
                next.store(points.len() as u64, Ordering::Relaxed);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(worker);
        }
    });
    tried.cases = cases.into_inner();
    tried.failure = failure.into_inner().map(|(_, failure)| failure);
    tried
}

/// A store for [`exhaust`]: small, with small windows; with metadata in the data, or, `in_place`,
/// in tables and zones of its own.
#[must_use]
pub fn small(in_place: bool) -> StoreOptions {
    StoreOptions {
        disk_blocks: 16 * 40,
        zone_blocks: 16,
        id: [7; 16],
        secret: [9; 32],
        fingerprint: Algorithm::Blake3,
        verify_bytes: false,
        weak_fingerprint: false,
        layout_split: in_place,
        leftover_table: in_place,
        scheme: 0,
        delay_ms: 0,
        grow: false,
        strong: false,
        memory: 1 << 20,
        window_blocks: 8,
        record_limit: 256,
        zone_limit: 16,
        critical: (0, 0),
        no_room: false,
        limits: [None; 2],
        near_ends: false,
        tight: crate::block::subject::Tight::default(),
        references: None,
        snapshots: None,
        grows: false,
        sealed: false,
        domains: 0,
        quotas: false,
        free_map_pages: None,
        domain_limits: false,
        data_keys: false,
        generations: BTreeMap::new(),
        moves: None,
        released: None,
        bug: None,
    }
}

/// The same, with tables that change in place in order.
#[must_use]
pub fn small_merging() -> StoreOptions {
    StoreOptions { scheme: 3, ..small(false) }
}

fn unexpected(what: &str, error: &onefold_core::Error) -> Failure {
    Failure::new(Checker::Unexplained, format!("{what}: {error:?}"))
}

/// Plays the script under record: the points, each with what was known just before it.
fn play<S: Subject>(options: &StoreOptions) -> Result<Vec<Point>, Failure> {
    let clock = Arc::new(VirtualClock::default());
    let disk = Arc::new(VirtualDisk::new(options.disk_blocks, Arc::clone(&clock), Rng::new(1)));
    S::format(&*disk, options).map_err(|error| unexpected("format", &error))?;
    let store = S::open(Arc::clone(&disk) as Arc<dyn Disk>, clock, options)
        .map_err(|error| unexpected("open", &error))?;
    let mut model = Model::default();
    model.begin(Verb::Create("v".to_owned(), VOLUME_BLOCKS));
    let (id, ack) = store
        .create_volume("v", VOLUME_BLOCKS * BLOCK_BYTES as u64)
        .map_err(|error| unexpected("create", &error))?;
    if ack != Ack::Durable {
        store.flush(id).map_err(|error| unexpected("flush", &error))?;
    }
    model.taken(id, None)?;
    let mut rng = Rng::new(2);
    let mut points = Vec::new();
    // In place, records must be left over.
    let compressible = if options.leftover_table { 20 } else { 60 };
    let palette = Palette { duplicates: 0, zeroes: 0, compressible, siblings: 20 };
    if S::tables_hold_at_any_time(options) {
        // The first write to a store has effects of its own, which are not looked at here.
        perform(&store, &disk, &mut model, &mut rng, &palette, Act::Fresh(15, 1), &mut points)?;
        store.flush(id).map_err(|error| unexpected("flush", &error))?;
        model.durable(store.durable().0)?;
        for step in [Step::Checkpoint, Step::Settle].repeat(8) {
            store.step(step).map_err(|error| unexpected("step", &error))?;
        }
        points.clear();
    }
    disk.record();
    for &act in SCRIPT {
        perform(&store, &disk, &mut model, &mut rng, &palette, act, &mut points)?;
    }
    Ok(points)
}

/// Does one act and keeps the points inside it.
fn perform<S: Subject>(
    store: &S,
    disk: &VirtualDisk,
    model: &mut Model,
    rng: &mut Rng,
    palette: &Palette,
    act: Act,
    points: &mut Vec<Point>,
) -> Result<(), Failure> {
    let (first, contents) = match act {
        Act::Fresh(first, n) => {
            (first, (0..n).map(|_| palette.draw(&mut model.contents, rng)).collect())
        }
        Act::Duplicate(to, from) => (to, vec![model.live(0, from)[0]]),
        Act::Trim(first, n) | Act::Zeroes(first, n) => {
            (first, vec![onefold_testbed::content::ZEROES; n as usize])
        }
        Act::Step(_) | Act::All(_) => (0, Vec::new()),
    };
    let key: Key = 0;
    let Some(id) = model.volumes().get(&key).map(|volume| volume.id) else { return Ok(()) };
    let (offset, bytes) = (first * BLOCK_BYTES as u64, contents.len() as u64 * BLOCK_BYTES as u64);
    let mut before = model.clone();
    (first..)
        .zip(&contents)
        .for_each(|(lba, content)| before.write(key, lba, *content, Outcome::Failed));
    let ticket = match act {
        Act::Fresh(..) | Act::Duplicate(..) => {
            let data: Vec<u8> = contents
                .iter()
                .flat_map(|content| model.contents.bytes(*content).to_vec())
                .collect();
            store.write(id, offset, &data, &mut 0).map(Some)
        }
        Act::Trim(..) => store.trim(id, offset, bytes).map(Some),
        Act::Zeroes(..) => store.write_zeroes(id, offset, bytes, true, &mut 0).map(Some),
        Act::Step(step) => store.step(step).map(|_| None),
        Act::All(step) => {
            for _ in 0..1000 {
                keep_points(disk, &before, points);
                if !store.step(step).map_err(|error| unexpected("step", &error))? {
                    break;
                }
                model.durable(store.durable().0)?;
                keep_points(disk, &before, points);
                before = model.clone();
            }
            Ok(None)
        }
    };
    let ticket: Option<Ticket> = ticket.map_err(|error| unexpected("act", &error))?;
    keep_points(disk, &before, points);
    if let Some(Ticket(ticket)) = ticket {
        (first..)
            .zip(&contents)
            .for_each(|(lba, content)| model.write(key, lba, *content, Outcome::Taken(ticket)));
    }
    model.durable(store.durable().0)
}

fn keep_points(disk: &VirtualDisk, model: &Model, points: &mut Vec<Point>) {
    let snapshots = disk.take_snapshots();
    if snapshots.is_empty() {
        return;
    }
    let model = Arc::new(model.clone());
    points.extend(snapshots.into_iter().map(|snapshot| Point {
        snapshot,
        model: Arc::clone(&model),
        in_recovery: false,
    }));
}

/// The crash points of the recovery from a few of the crashes at `point`.
fn recovery_points<S: Subject>(
    options: &StoreOptions,
    point: &Point,
) -> Result<Vec<Point>, Failure> {
    let mut points = Vec::new();
    for masks in
        [vec![u8::MAX; point.snapshot.unflushed.len()], alternating(point.snapshot.unflushed.len())]
    {
        let disk = crashed(options, point, &masks);
        disk.record();
        let clock = Arc::new(VirtualClock::default());
        let store = S::open(Arc::clone(&disk) as Arc<dyn Disk>, clock, options)
            .map_err(|error| unexpected("recovery", &error))?;
        drop(store);
        let within = disk.take_snapshots();
        points.extend(within.into_iter().map(|snapshot| Point {
            snapshot,
            model: Arc::clone(&point.model),
            in_recovery: true,
        }));
    }
    Ok(points)
}

/// Every second block is kept, the last one among them.
fn alternating(n: usize) -> Vec<u8> {
    (0..n).map(|index| if (n - index) % 2 == 1 { u8::MAX } else { 0 }).collect()
}

/// Calls `with` for every choice of masks at a point, until it fails.
fn choices(
    point: &Point,
    with: &mut dyn FnMut(&[u8]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let unflushed = &point.snapshot.unflushed;
    let n = unflushed.len();
    let new = unflushed.iter().filter(|write| write.call != point.snapshot.call).count();
    let mut masks = vec![0; n];
    if n <= ALL_SUBSETS && (!point.in_recovery || 1 << n <= SAMPLE) {
        for subset in 0..1u64 << n {
            if subset >> new != 0 || n == 0 {
                masks.iter_mut().enumerate().for_each(|(index, mask)| {
                    *mask = if subset >> index & 1 == 1 { u8::MAX } else { 0 }
                });
                with(&masks)?;
            }
        }
    } else {
        let mut rng = Rng::new(point.snapshot.call);
        for _ in 0..SAMPLE {
            masks.iter_mut().for_each(|mask| *mask = if rng.percent(50) { u8::MAX } else { 0 });
            with(&masks)?;
        }
    }
    let step = if point.in_recovery { 17 } else { 1 };
    for index in 0..n {
        for others in [u8::MAX, 0] {
            if others == 0 && index < new {
                continue;
            }
            for mask in (1..u8::MAX).step_by(step) {
                masks.fill(others);
                masks[index] = mask;
                with(&masks)?;
            }
        }
    }
    Ok(())
}

fn crashed(options: &StoreOptions, point: &Point, masks: &[u8]) -> Arc<VirtualDisk> {
    let mut image: Image = point.snapshot.durable.clone();
    point
        .snapshot
        .unflushed
        .iter()
        .zip(masks)
        .for_each(|(write, &mask)| image.merge(write.at, &write.bytes, mask));
    Arc::new(VirtualDisk::from_image(
        image,
        options.disk_blocks,
        Arc::new(VirtualClock::default()),
        Rng::new(3),
    ))
}

/// One crash, the `number`-th: recovers, reads all, compares; sometimes verifies what the crash
/// left, or crashes again at once and wants the same.
fn recover<S: Subject>(
    options: &StoreOptions,
    point: &Point,
    masks: &[u8],
    number: u64,
) -> Result<(), Failure> {
    let disk = crashed(options, point, masks);
    if number.is_multiple_of(8) && S::tables_hold_at_any_time(options) {
        let report =
            S::truth(&disk, options).map_err(|error| unexpected("the verifier", &error))?;
        if let Some(problem) = report.problems.first() {
            return Err(Failure::new(Checker::ReferenceCounts, problem.clone()));
        }
    }
    let blocks = read_all::<S>(options, &disk, &point.model)?;
    for (lba, block) in (0..).zip(&blocks) {
        point.model.check_after_crash(0, lba, &block.0)?;
    }
    if number.is_multiple_of(16) {
        disk.power_cycle_with(&[]);
        let again = read_all::<S>(options, &disk, &point.model)?;
        if let Some(lba) = blocks.iter().zip(&again).position(|(one, two)| one.0 != two.0) {
            return Err(Failure::new(
                Checker::RecoveryTwice,
                format!("block {lba} is another one after the second recovery"),
            ));
        }
    }
    Ok(())
}

fn read_all<S: Subject>(
    options: &StoreOptions,
    disk: &Arc<VirtualDisk>,
    model: &Model,
) -> Result<Vec<Block>, Failure> {
    let clock: Arc<dyn Clock> = Arc::new(VirtualClock::default());
    let store = S::open(Arc::clone(disk) as Arc<dyn Disk>, clock, options)
        .map_err(|error| unexpected("recovery", &error))?;
    let mut blocks = Block::zeroed_vec(VOLUME_BLOCKS as usize);
    let id = model.volumes().get(&0).map(|volume| volume.id).unwrap_or_default();
    let mut reads = [BlockRead { first: Lba(0), into: &mut blocks, result: Ok(()) }];
    store.read(id, &mut reads);
    let [read] = reads;
    read.result.map_err(|error| {
        Failure::new(Checker::DurableSurvives, format!("the volume can't be read: {error:?}"))
    })?;
    Ok(blocks)
}

/// A crash, for the report.
fn show(point: &Point, masks: &[u8]) -> String {
    let writes = point.snapshot.unflushed.iter().zip(masks);
    let writes: Vec<String> =
        writes.map(|(write, mask)| format!("{}.{}:{mask:02x}", write.call, write.at)).collect();
    format!(
        "{} call {}, call.block:mask {}",
        if point.in_recovery { "recovery," } else { "" },
        point.snapshot.call,
        writes.join(" ")
    )
}
