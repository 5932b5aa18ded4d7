//! Figures 5b, 10, 11 and 14: speed with and without deduplication, on the paper's cluster in
//! virtual time.

use std::time::Duration;

use onefold_cluster::Watermarks;
use onefold_core::Result;

use super::{
    clock::load::{Access, Background, Plan, SECOND, System, Told, idle, run},
    site::in_blocks,
};
use crate::item::{Extent, Good, Item, Judgement, Look, no_figure, nothing};
use onefold_lab::report::{Figure, Table};

/// The statements about speed.
pub(super) const ITEMS: [Item; 4] = [
    Item {
        id: "5b",
        name: "Fig 5b and 14: deduplication beside foreground load",
        says: "sequential writes of 500-600 MB/s fall to 200 beside background deduplication, and \
               to 400-500 with rate control",
        band: "without control ≤ 45 % of no deduplication; with control 70-95 %, and workers make \
               one operation for 500 of the foreground (0.8 to 1.2 of that)",
        fitted: true,
        calibrated: None,
        cases: nothing,
        judge: |extent, _: &Look<'_>| judged(figure14(extent)),
        draw: no_figure,
    },
    Item {
        id: "10",
        name: "Fig 10: latency of 8 KiB random I/O",
        says: "4 threads of depth 4: writes take up to 20 % longer than the original's, \
               flush-through longest; reads and writes of what is cached about as long, other \
               reads longer",
        band: "write ≤ 25 % more, cached read and write ≤ 10 % more, flush-through the worst",
        fitted: true,
        calibrated: None,
        cases: nothing,
        judge: |extent, _: &Look<'_>| judged(figure10(extent)),
        draw: no_figure,
    },
    Item {
        id: "11",
        name: "Fig 11: sequential throughput",
        says: "three clients, requests of 32, 64 and 128 KiB: small reads of what is deduplicated \
               about half of the original, close to it at 128 KiB; writes slightly below",
        band: "read at 32 KiB 0.4-0.7 of the original, at 128 KiB ≥ 0.75; write ≥ 0.85 at every \
               size",
        fitted: true,
        calibrated: None,
        cases: nothing,
        judge: |extent, _: &Look<'_>| judged(figure11(extent)),
        draw: no_figure,
    },
    Item {
        id: "marks",
        name: "Rate control: what it leaves to either side",
        says: "one operation of deduplication for 100 of clients between the marks, for 500 above, \
               without limit below",
        band: "foreground ≥ 0.8 of the same load without deduplication; workers' operations equal \
               the ratio ± 20 %; idle: ≥ 0.5 of the pool's own rate of 32 KiB creates",
        fitted: true,
        calibrated: None,
        cases: nothing,
        judge: |extent, _: &Look<'_>| judged(marks(extent)),
        draw: no_figure,
    },
];

/// Threads of a client times their depth (Figure 10).
const LANES: usize = 16;

/// Requests of 128 KiB on their way in Figure 14: so many that the original writes 500 to 600 MB/s.
const STREAMS: usize = 12;

/// Operations of the foreground for one of deduplication above the high mark.
const ABOVE: f64 = 500.0;

/// Workers: one for each OSD, as in the paper.
const WORKERS: usize = super::clock::cluster::OSDS;

const MIB: u64 = 1 << 20;
const CHUNK: u64 = 32 << 10;

pub(super) fn judged(result: Result<Judgement>) -> Judgement {
    result.unwrap_or_else(|error| {
        let mut judgement = Judgement::default();
        judgement.check(error.to_string(), false);
        judgement
    })
}

fn table(title: &str, columns: &[&str], rows: Vec<Vec<String>>) -> Figure {
    Figure::Table(Table {
        title: title.into(),
        columns: columns.iter().map(ToString::to_string).collect(),
        rows,
    })
}

/// Workers as they come.
fn controlled(backlog: u64) -> Background {
    Background {
        workers: WORKERS,
        marks: Watermarks::default(),
        pause: Duration::from_secs(1),
        backlog,
        spread: false,
        begin: SECOND,
    }
}

/// A tenth of a second of virtual time.
const TENTH: u64 = SECOND / 10;

/// From here on every worker has the ratio: its second look at the load sets it.
const STEADY: u64 = 22 * TENTH;

fn figure14(extent: &Extent) -> Result<Judgement> {
    let (from, to, backlog) = if extent.quick {
        (STEADY, STEADY + 6 * TENTH, 768 * MIB)
    } else {
        (STEADY, STEADY + 30 * TENTH, 4096 * MIB)
    };
    let access = Access { writes: true, random: false, bytes: 128 << 10 };
    let plan = |system, background| Plan {
        system,
        access,
        clients: 1,
        lanes: STREAMS,
        span: 16 * MIB,
        settled: false,
        background,
        from,
        to,
    };
    let original = run(&plan(System::Original, None))?;
    let alone = run(&plan(System::Ours, None))?;
    // From the first moment: the backlog must outlast what is measured.
    let free = Background {
        marks: Watermarks::NONE,
        pause: Duration::ZERO,
        begin: 0,
        ..controlled(backlog)
    };
    let without =
        run(&Plan { from: TENTH, to: TENTH + (to - from), ..plan(System::Ours, Some(free)) })?;
    // A worker pays a step back before it makes the next one.
    let long = if extent.quick { 60 * TENTH } else { 240 * TENTH };
    let with = run(&Plan { to: from + long, ..plan(System::Ours, Some(controlled(backlog))) })?;
    let share = |told: &Told| told.mb_s() / alone.mb_s();
    let drain = |told: &Told| told.chunks * CHUNK as f64 * 1000.0 / told.window as f64;
    let mut judgement = Judgement {
        blocks: [&original, &alone, &without, &with].map(|told| in_blocks(told.bytes)).iter().sum(),
        ..Judgement::default()
    };
    judgement.check(
        format!("without control {:.0} MB/s, {:.0} %", without.mb_s(), 100.0 * share(&without)),
        share(&without) <= 0.45,
    );
    let text = format!("with control {:.0} MB/s, {:.0} %", with.mb_s(), 100.0 * share(&with));
    judgement.band(text, share(&with), 0.70..=0.95, Good::More);
    let given = with.operations * ABOVE / with.requests.max(1) as f64;
    let text = format!(
        "drain: {:.2} MB/s without control, {:.2} with it, {given:.2} of one operation for {ABOVE}",
        drain(&without),
        drain(&with)
    );
    judgement.band(text, given, 0.8..=1.2, Good::Inside);
    judgement.remark = format!(
        "The original writes {:.0} MB/s, to which {STREAMS} requests of 128 KiB on their way were \
         fitted, and ours without workers {:.0}; {WORKERS} workers, one for each OSD. A step of a \
         worker takes a whole object: the one that was under way when the limit came is paid back \
         first, before the next is made.",
        original.mb_s(),
        alone.mb_s()
    );
    let row = |name: &str, told: &Told| {
        vec![
            name.to_owned(),
            format!("{:.0}", told.mb_s()),
            format!("{:.2}", told.latency()),
            format!("{:.2}", drain(told)),
            format!("{:.0}", told.operations),
        ]
    };
    let rows = vec![
        row("original", &original),
        row("ours, no worker", &alone),
        row("without control", &without),
        row("with control", &with),
    ];
    judgement.figures = vec![table(
        "Sequential writes beside deduplication",
        &[
            "system",
            "foreground, MB/s",
            "latency, ms",
            "deduplicated, MB/s",
            "operations of workers",
        ],
        rows,
    )];
    Ok(judgement)
}

fn figure10(extent: &Extent) -> Result<Judgement> {
    let span = if extent.quick { 8 * MIB } else { 64 * MIB };
    let (from, to) =
        if extent.quick { (STEADY, STEADY + 8 * TENTH) } else { (STEADY, STEADY + 60 * TENTH) };
    let of = |writes, system, settled, background: Option<Background>| {
        let access = Access { writes, random: true, bytes: 8 << 10 };
        // Without workers nothing has to come to rest first.
        let (from, to) =
            if background.is_some() { (from, to) } else { (TENTH, TENTH + (to - from) / 2) };
        run(&Plan { system, access, clients: 1, lanes: LANES, span, settled, background, from, to })
    };
    let write = of(true, System::Original, false, None)?;
    let write_cached = of(true, System::Ours, false, None)?;
    let write_ours = of(true, System::Ours, true, Some(controlled(span)))?;
    let write_through = of(true, System::FlushThrough, true, None)?;
    let read = of(false, System::Original, false, None)?;
    let read_cached = of(false, System::Ours, false, None)?;
    let read_ours = of(false, System::Ours, true, None)?;
    let over = |told: &Told, original: &Told| 100.0 * (told.latency() / original.latency() - 1.0);
    let rows = [
        ("write", "original", &write, &write),
        ("write", "cached", &write_cached, &write),
        ("write", "deduplicated, rate control", &write_ours, &write),
        ("write", "flush-through", &write_through, &write),
        ("read", "original", &read, &read),
        ("read", "cached", &read_cached, &read),
        ("read", "deduplicated", &read_ours, &read),
    ];
    let mut judgement = Judgement {
        blocks: rows.iter().map(|row| in_blocks(row.2.bytes)).sum(),
        ..Judgement::default()
    };
    let mut check = |name: &str, told: &Told, original: &Told, most: f64| {
        let over = over(told, original);
        judgement.check(
            format!("{name} {:.2} ms, {over:+.0} % of {:.2}", told.latency(), original.latency()),
            over <= most,
        );
    };
    check("write", &write_ours, &write, 25.0);
    check("cached write", &write_cached, &write, 10.0);
    check("flush-through", &write_through, &write, f64::INFINITY);
    check("cached read", &read_cached, &read, 10.0);
    check("deduplicated read", &read_ours, &read, f64::INFINITY);
    let others = [&write, &write_cached, &write_ours].map(Told::latency);
    judgement.check(
        "flush-through is the worst",
        others.iter().all(|latency| write_through.latency() > *latency),
    );
    judgement.remark = "CPU use has no band.".into();
    let row = |(kind, name, told, original): (&str, &str, &Told, &Told)| {
        vec![
            kind.to_owned(),
            name.to_owned(),
            format!("{:.3}", told.latency()),
            format!("{:+.1}", over(told, original)),
        ]
    };
    judgement.figures = vec![table(
        "8 KiB at random, 16 requests on their way",
        &["access", "system", "latency, ms", "more than the original, %"],
        rows.map(row).to_vec(),
    )];
    Ok(judgement)
}

fn figure11(extent: &Extent) -> Result<Judgement> {
    const CLIENTS: usize = 3;
    let window = if extent.quick { TENTH } else { 5 * TENTH };
    let span = if extent.quick { 4 * MIB } else { 32 * MIB };
    let mut judgement = Judgement::default();
    let mut rows = Vec::new();
    for kib in [32, 64, 128] {
        for writes in [false, true] {
            let access = Access { writes, random: false, bytes: kib << 10 };
            let from = if writes { STEADY } else { TENTH / 2 };
            let plan = |system, background| Plan {
                system,
                access,
                clients: CLIENTS,
                lanes: LANES,
                span,
                settled: !writes,
                background,
                from,
                to: from + window,
            };
            let original = run(&Plan {
                from: TENTH / 2,
                to: TENTH / 2 + window,
                ..plan(System::Original, None)
            })?;
            let ours = run(&plan(System::Ours, writes.then(|| controlled(64 * MIB))))?;
            let share = ours.mb_s() / original.mb_s();
            judgement.blocks += in_blocks(original.bytes + ours.bytes);
            let name = if writes { "write" } else { "read" };
            let band = match (writes, kib) {
                (true, _) => 0.85..=f64::INFINITY,
                (false, 32) => 0.4..=0.7,
                (false, 128) => 0.75..=f64::INFINITY,
                (false, _) => 0.0..=f64::INFINITY,
            };
            let text = format!(
                "{name} of {kib} KiB {:.0} of {:.0} MB/s, {share:.2}",
                ours.mb_s(),
                original.mb_s()
            );
            judgement.band(text, share, band, Good::More);
            rows.push(vec![
                name.to_owned(),
                format!("{kib}"),
                format!("{:.0}", original.mb_s()),
                format!("{:.0}", ours.mb_s()),
                format!("{share:.2}"),
                format!("{:.2}", original.latency()),
                format!("{:.2}", ours.latency()),
            ]);
        }
    }
    judgement.remark = "16 requests on their way of each client, each a stream of its own. The \
                        owner of a volume remembers which chunk is where, so that no read is \
                        redirected."
        .into();
    judgement.figures = vec![table(
        "Sequential streams of three clients",
        &["access", "KiB", "original, MB/s", "ours, MB/s", "share", "original, ms", "ours, ms"],
        rows,
    )];
    Ok(judgement)
}

fn marks(extent: &Extent) -> Result<Judgement> {
    let mut judgement = Judgement::default();
    let access = Access { writes: true, random: true, bytes: 4 << 10 };
    let (from, to) =
        if extent.quick { (32 * TENTH, 132 * TENTH) } else { (32 * TENTH, 332 * TENTH) };
    let plan = |background| Plan {
        system: System::Ours,
        access,
        clients: 1,
        lanes: LANES,
        span: 4 * MIB,
        settled: false,
        background,
        from,
        to,
    };
    let alone = run(&plan(None))?;
    let mut rows = Vec::new();
    let none = u64::MAX;
    for (name, ratio, marks) in [
        ("between the marks", 100, Watermarks { operations: (500, none), bytes: (none, none) }),
        ("above", 500, Watermarks { operations: (100, 500), bytes: (none, none) }),
    ] {
        if extent.quick && ratio == 500 {
            continue;
        }
        let background = Background { workers: 1, marks, spread: true, ..controlled(256 * MIB) };
        let told = run(&plan(Some(background)))?;
        let share = told.requests as f64 / alone.requests as f64;
        let drained = told.operations * f64::from(ratio) / told.requests as f64;
        judgement.blocks += told.requests;
        judgement.check(
            format!("{name}: foreground {share:.2}, workers {drained:.2} of one for {ratio}"),
            share >= 0.8 && (0.8..=1.2).contains(&drained),
        );
        rows.push(vec![
            name.to_owned(),
            format!("{:.0}", told.requests as f64 * 1e9 / told.window as f64),
            format!("{share:.3}"),
            format!("{:.0}", told.operations),
            format!("{drained:.2}"),
        ]);
    }
    let (drained, made) =
        idle(WORKERS, if extent.quick { 256 * MIB } else { 1024 * MIB }, 3 * TENTH)?;
    let share = drained / made;
    judgement.check(
        format!("idle: {drained:.0} chunks a second, {share:.2} of {made:.0} creates"),
        share >= 0.5,
    );
    judgement.remark = format!(
        "4 KiB at random, {LANES} requests on their way. Idle: {WORKERS} workers, one for each \
         OSD, and as many clients that make 64 objects at a time."
    );
    judgement.figures = vec![table(
        "Foreground and workers",
        &["load", "requests a second", "share", "operations of workers", "of the ratio"],
        rows,
    )];
    Ok(judgement)
}
