//! Figure 12: a database's requests with two copies, with deduplication, and with an erasure code;
//! and the space of its data.

use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

use onefold_cluster::{Status, Watermarks};
use onefold_core::{BLOCK_BYTES, Block, Result, object::PoolKind};
use parking_lot::Mutex;

use super::{
    clock::load::{Background, SECOND, Site, System, Told, noise},
    site::{in_blocks, metadata_bytes},
    speed::judged,
};
use crate::item::{Extent, Good, Item, Judgement, Look, no_figure, nothing};
use onefold_lab::{
    content::Content,
    report::{Figure, Table},
    trace::{Op, Reader},
};
use onefold_testbed::rng::{SplitMix, mix};

/// The database.
pub(super) const ITEMS: [Item; 1] = [Item {
    id: "12",
    name: "Fig 12: a database with two copies and with an erasure code",
    says: "the database of SPEC SFS: throughput as with replication; 1.26 ms with replication, 4.1 \
           ms deduplicated, about 2 s with an erasure code; 428, 48 and 320 GB",
    band: "answered in the time of the run as many as by replication ± 3 %; latency ≤ 3.5 times \
           replication; space replication > erasure code > ours, ours ≤ 25 % of replication on \
           data of the same redundancy",
    fitted: true,
    calibrated: None,
    cases: nothing,
    judge: |extent, _: &Look<'_>| judged(figure12(extent)),
    draw: no_figure,
}];

const MIB: u64 = 1 << 20;
const CHUNK: u64 = 32 << 10;
const OBJECT: u64 = 4 << 20;

/// Requests on their way at most, and how many begin in a second: SPEC SFS issues a fixed number,
/// which a cluster of 16 SSDs hardly notices.
const LANES: u64 = 8;
const A_SECOND: u64 = 200;

/// Share of reads: those of SPEC SFS's table files, nearly all of them at random. The recorded
/// trace has writes alone.
const READS: f64 = 0.79;

/// Bytes of a read.
const READ: usize = 8 << 10;

/// Different chunks of 100: 48 of 428 GB in the paper.
const DIFFERENT: u64 = 11;

/// A request.
enum Request {
    Read(u64),
    Write(u64, Vec<u8>),
}

/// Requests of the trace, each write with what it held, brought into `span` bytes, and reads of
/// random places.
fn requests(path: &Path, span: u64, count: usize) -> Result<Vec<Request>> {
    let mut rng = SplitMix::new(12);
    let mut requests: Vec<Request> = Vec::new();
    let mut last = None;
    for record in Reader::open(path)? {
        let Op::Write { lba, hash, lz4, first, .. } = record?.op else { continue };
        let offset = lba.0 * BLOCK_BYTES as u64 % span;
        let mut block = Block([0; BLOCK_BYTES]);
        Content { hash, lz4 }.fill(&mut block);
        if let (false, Some(end), Some(Request::Write(_, data))) =
            (first, last, requests.last_mut())
            && end == offset
        {
            data.extend_from_slice(&block.0);
        } else {
            while rng.chance(READS) {
                requests.push(Request::Read(rng.below(span / READ as u64) * READ as u64));
            }
            if requests.len() >= count {
                break;
            }
            requests.push(Request::Write(offset, block.0.to_vec()));
        }
        last = Some(offset + BLOCK_BYTES as u64);
    }
    Ok(requests)
}

/// The tables' data: so many of a hundred chunks are different.
fn tables(at: u64, span: u64) -> Vec<u8> {
    let different = (span / CHUNK * DIFFERENT / 100).max(1);
    (0..OBJECT / CHUNK)
        .flat_map(|n| noise((7 << 50) | (mix(at / CHUNK + n) % different), CHUNK))
        .collect()
}

/// The result of a system.
struct Came {
    told: Told,
    /// Requests that were answered before the time was over in which they came.
    answered: u64,
    /// The space of the tables before.
    status: Option<Status>,
}

fn measured(
    system: System,
    chunks: PoolKind,
    path: &Path,
    span: u64,
    count: usize,
) -> Result<Came> {
    let site = Site::new(system, chunks, 1)?;
    let (told, answered) = (Arc::new(Mutex::new(Told::default())), Arc::new(Mutex::new(0)));
    let mut shares: BTreeMap<u64, Vec<(u64, Request)>> = BTreeMap::new();
    // A lane has its part of the places, so that none waits for another one.
    let part = span / LANES;
    let all = requests(path, span, count)?;
    let end = all.len() as u64 * SECOND / A_SECOND;
    for (n, request) in (0u64..).zip(all) {
        let at = match &request {
            Request::Read(at) | Request::Write(at, _) => *at,
        };
        shares.entry(at / part).or_default().push((n * SECOND / A_SECOND, request));
    }
    let lanes: Vec<_> = (0..LANES)
        .map(|lane| site.lane(lane as usize, 0, part, |at| tables(lane * part + at, span)))
        .collect::<Result<_>>()?;
    // The space of the tables alone is taken now: requests bring content of their own.
    let status = if system == System::Original { None } else { Some(site.settle()?.status()?) };
    site.world.skip(Duration::from_secs(60));
    let zero = site.world.now();
    for (lane, target) in lanes.into_iter().enumerate() {
        let (requests, told, answered) =
            (shares.remove(&(lane as u64)).unwrap_or_default(), told.clone(), answered.clone());
        target.store().clone().start(move || {
            let mut published = 0;
            for (due, request) in requests {
                let now = || target.store().world.now() - zero;
                target.store().sleep(due.saturating_sub(now()));
                let bytes = match request {
                    Request::Read(at) => {
                        target.read(at % part, &mut [0; READ])?;
                        READ
                    }
                    Request::Write(at, data) => {
                        let room = (part - at % part).min(data.len() as u64) as usize;
                        target.write(at % part, &data[..room])?;
                        room
                    }
                };
                // A request that begins late has waited since it was due.
                told.lock().note(due, now(), bytes as u64);
                *answered.lock() += u64::from(now() <= end);
                if now() / SECOND != published {
                    published = now() / SECOND;
                    target.tend()?;
                }
            }
            Ok(())
        });
    }
    let background = Background {
        workers: 4,
        marks: Watermarks::default(),
        pause: Duration::from_secs(1),
        backlog: 0,
        spread: false,
        begin: 0,
    };
    if system != System::Original {
        site.work(&background, zero, zero + end, &told)?;
    }
    site.world.run()?;
    let (told, answered) = (Told { window: end, ..*told.lock() }, *answered.lock());
    Ok(Came { told, answered, status })
}

fn figure12(extent: &Extent) -> Result<Judgement> {
    let mut judgement = Judgement::default();
    let Some(path) = extent.traces.iter().find(|path| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("pgbench"))
    }) else {
        judgement.missing = true;
        judgement.remark = "It needs the recorded trace pgbench.".into();
        return Ok(judgement);
    };
    let (span, count) = if extent.quick { (128 * MIB, 4_000) } else { (1024 * MIB, 24_000) };
    let Came { told: replication, answered: by_replication, .. } =
        measured(System::Original, PoolKind::Replicated, path, span, count)?;
    let Came { told: ours, answered: by_ours, status } =
        measured(System::Ours, PoolKind::Replicated, path, span, count)?;
    let Came { told: coded, status: status_coded, .. } =
        measured(System::Ours, PoolKind::Erasure, path, span, count)?;
    let of = |status: &Option<Status>, copies: f64| {
        let (kept, chunks) = status.as_ref().map_or((0, 0), |status| {
            (metadata_bytes(status) + status.cached_bytes + status.dirty_bytes, status.chunk_bytes)
        });
        kept as f64 * 2.0 + chunks as f64 * copies
    };
    let spaces = [2.0 * span as f64, 1.5 * span as f64, of(&status, 2.0), of(&status_coded, 1.5)];
    let share = spaces[2] / spaces[0];
    let ratio = ours.latency() / replication.latency();
    let a_second = |answered: u64| answered as f64 * 1e9 / replication.window as f64;
    judgement.blocks = in_blocks(3 * (span + replication.bytes));
    judgement.check(
        format!(
            "{:.2} ms with two copies, {:.2} deduplicated, {ratio:.2} times",
            replication.latency(),
            ours.latency()
        ),
        ratio <= 3.5,
    );
    let text =
        format!("{:.1} and {:.1} requests a second", a_second(by_replication), a_second(by_ours));
    judgement.band(text, by_ours as f64 / by_replication.max(1) as f64, 0.97..=1.03, Good::Inside);
    let mib = |bytes: f64| format!("{:.0}", bytes / MIB as f64);
    judgement.check(
        format!(
            "MiB: {}, {:.0} % of replication",
            spaces[..3].iter().map(|bytes| mib(*bytes)).collect::<Vec<_>>().join(" > "),
            100.0 * share
        ),
        spaces.windows(2).all(|pair| pair[0] > pair[1]) && share <= 0.25,
    );
    judgement.remark = format!(
        "Writes of the recorded trace pgbench, {:.0} % reads of 8 KiB at random between them, \
         {A_SECOND} requests a second, workers with the marks as they come. {DIFFERENT} of 100 \
         chunks of the tables are different, as in the paper's space. By the first latency the \
         model is fitted. On the erasure code {:.2} ms.",
        100.0 * READS,
        coded.latency()
    );
    let row = |name: &str, told: Option<&Told>, space: f64| {
        vec![
            name.to_owned(),
            told.map_or("-".into(), |told| format!("{:.3}", told.latency())),
            mib(space),
        ]
    };
    let rows = vec![
        row("two copies", Some(&replication), spaces[0]),
        row("erasure code 2+1", None, spaces[1]),
        row("ours, two copies", Some(&ours), spaces[2]),
        row("ours, erasure code 2+1", Some(&coded), spaces[3]),
    ];
    let columns = ["system", "latency, ms", "space, MiB"].map(String::from).to_vec();
    judgement.figures =
        vec![Figure::Table(Table { title: "A database's requests".into(), columns, rows })];
    Ok(judgement)
}
