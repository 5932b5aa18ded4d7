//! Replays from end to end, on the real engine.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;

use onefold_block::{Persistence, format::superblock::Leftover};
use onefold_core::Kind;
use onefold_lab::{
    device::DeviceKind,
    replay::{Anticipation, Clients, Outcome, Plan, Speed, replay},
    request::Source,
    subject::{Choice, Scheme},
    sweep::{Grid, sweep},
    trace::{self, Assumed},
    workload::{Pattern, Workload},
};

fn first(name: &str, records: u64) -> Source {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("data").join(format!("{name}.dtrace.zst"));
    trace::open(&path, Assumed::default()).unwrap().first(records)
}

fn plan(scheme: Scheme, persistence: Persistence, device: DeviceKind) -> Plan {
    Plan::new(Choice::new(scheme, persistence), device)
}

fn run(source: Source, plan: &Plan) -> Outcome {
    replay(source, plan, &mut |_| {}).unwrap()
}

#[test]
fn the_beginning_of_a_trace_is_replayed_and_read_back() {
    for name in ["apt", "pgbench", "srcver"] {
        for persistence in [Persistence::Weak, Persistence::Strong] {
            let outcome =
                run(first(name, 20_000), &plan(Scheme::Thin, persistence, DeviceKind::SsdP));
            assert!(
                outcome.client_blocks > 15_000 && outcome.verified_blocks >= outcome.live_blocks,
                "{outcome:?}"
            );
            assert_eq!(outcome.device_blocks, outcome.device_counts.written());
            assert!(
                outcome.ideal_blocks < outcome.client_blocks
                    && outcome.live_contents <= outcome.live_blocks
            );
            let found = outcome.duplicate_blocks + outcome.zero_blocks;
            // The engine finds the duplicates that the requests had, but for blocks that were
            // overwritten in their window, and for contents that were dead and not yet forgotten.
            let there_was = outcome.client_blocks - outcome.ideal_blocks;
            assert!(there_was.abs_diff(found) < outcome.client_blocks / 50, "{outcome:?}");
            assert!(outcome.points_above_ideal() < 3.0, "{name}: {}", outcome.points_above_ideal());
            assert!(
                outcome.hidden_records <= outcome.records
                    && outcome.checkpoint_blocks > 0
                    && outcome.flushes > 0
            );
        }
    }
}

#[test]
fn a_replay_comes_out_the_same_every_time() {
    let plan = plan(Scheme::Thin, Persistence::Weak, DeviceKind::HddM);
    let mut outcomes = [run(first("pgbench", 15_000), &plan), run(first("pgbench", 15_000), &plan)];
    outcomes.iter_mut().for_each(|outcome| outcome.wall_seconds = 0.0);
    assert_eq!(outcomes[0], outcomes[1]);
}

#[test]
fn without_deduplication_every_block_is_written() {
    let outcome =
        run(first("pgbench", 15_000), &plan(Scheme::Original, Persistence::Weak, DeviceKind::SsdP));
    assert_eq!((outcome.device_blocks, outcome.metadata_blocks), (outcome.client_blocks, 0));
    assert!(outcome.verified_blocks > 0);
}

#[test]
fn speeds_change_the_time_and_not_the_ideal() {
    let mut plan = plan(Scheme::Thin, Persistence::Weak, DeviceKind::NvmePlp);
    let recorded = run(first("pgbench", 15_000), &plan);
    plan.speed = Speed::Times(4.0);
    let scaled = run(first("pgbench", 15_000), &plan);
    plan.speed = Speed::Max;
    let max = run(first("pgbench", 15_000), &plan);
    assert!(
        recorded.virtual_seconds > 3.5 * scaled.virtual_seconds
            && scaled.virtual_seconds > 1.5 * max.virtual_seconds
    );
    assert_eq!(
        (recorded.ideal_blocks, max.ideal_blocks),
        (scaled.ideal_blocks, scaled.ideal_blocks)
    );
}

#[test]
fn every_device_runs_the_engine() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let real = DeviceKind::Real(directory.path().join("disk"));
    for device in DeviceKind::MODELS.into_iter().chain([real]) {
        let outcome =
            run(first("srcver", 2000), &plan(Scheme::Thin, Persistence::Weak, device.clone()));
        assert!(outcome.virtual_seconds > 0.0 && outcome.verified_blocks > 1000, "{device}");
    }
}

/// ThinDedup's way of measuring: one workload on one device with one window, and what else `change`
/// says.
fn swept(
    pattern: Pattern,
    device: DeviceKind,
    window: usize,
    blocks: u64,
    change: impl FnOnce(&mut Grid),
) -> Vec<Outcome> {
    let mut grid = Grid::paper(Workload::paper(pattern, blocks));
    let name = if pattern == Pattern::Random { "random" } else { "sequential" };
    grid.workloads = vec![name.parse().unwrap()];
    (grid.devices, grid.windows) = (vec![device], vec![window]);
    change(&mut grid);
    sweep(&grid, &mut |_, _| {}, &mut |_| {})
        .unwrap()
        .into_iter()
        .map(|point| point.outcome)
        .collect()
}

#[test]
fn windows_are_served_as_the_paper_computes() {
    // Eight blocks, half of them duplicates, in 3.9 ms and 0.02 for each block written: about 2000
    // a second.
    let outcome = swept(Pattern::Random, DeviceKind::SsdP, 8, 6000, |_| {}).remove(0);
    assert!((outcome.throughput() - 2010.0).abs() < 20.0, "{}", outcome.throughput());
    assert_eq!((outcome.windows, outcome.write_latency.requests), (750, 6000));
    let hidden = outcome.hidden_records as f64 / outcome.records as f64;
    assert!((hidden - 0.983).abs() < 0.01, "{hidden}");
    // 32 blocks in 10.3 ms and 0.357 for each block written.
    let outcome = swept(Pattern::Sequential, DeviceKind::HddP, 32, 6000, |_| {}).remove(0);
    assert!((outcome.throughput() - 1999.0).abs() < 40.0, "{}", outcome.throughput());
    assert!((outcome.write_latency.p50_ms - 16.01).abs() < 0.5, "{:?}", outcome.write_latency);
}

#[test]
fn schemes_come_out_in_the_papers_order() {
    let run = |pattern, device, window| {
        let schemes = vec![Scheme::Ideal, Scheme::Thin, Scheme::Ordered, Scheme::Cow];
        swept(pattern, device, window, 6000, |grid| grid.schemes = schemes)
            .iter()
            .map(Outcome::throughput)
            .collect::<Vec<_>>()
    };
    for (window, text, band) in [(32, 2.73, 0.15), (64, 3.0, 0.3), (128, 2.88, 0.3)] {
        let all = run(Pattern::Random, DeviceKind::HddP, window);
        let [ideal, thin, ordered, cow] = all[..] else { panic!("{all:?}") };
        assert!(ideal >= thin && thin > ordered && ordered > cow, "{all:?}");
        assert!((thin / ordered - text).abs() < band, "window {window}: {}", thin / ordered);
    }
    let all = run(Pattern::Sequential, DeviceKind::SsdP, 32);
    assert!((all[1] / all[2] - 1.9).abs() < 0.1, "{all:?}");
}

#[test]
fn every_scheme_replays_a_trace_and_reads_it_back() {
    let mut volumes = Vec::new();
    for scheme in [Scheme::Ideal, Scheme::Thin, Scheme::Ordered, Scheme::Cow] {
        let outcome =
            run(first("pgbench", 20_000), &plan(scheme, Persistence::Strong, DeviceKind::SsdP));
        assert!(outcome.verified_blocks >= outcome.live_blocks);
        volumes.push(outcome.device_blocks);
    }
    assert!(volumes.is_sorted(), "{volumes:?}");
}

#[test]
fn each_step_of_ordermerge_writes_less_than_the_one_before() {
    let replayed = |delay: u64, anticipation| {
        let mut plan = plan(Scheme::OrderMerge, Persistence::Strong, DeviceKind::SsdP);
        plan.choice.delay = std::time::Duration::from_secs(delay);
        plan.clients = Clients { in_flight: 64, wait_for_flush: false };
        plan.anticipation = anticipation;
        let outcome = run(first("pgbench", 20_000), &plan);
        assert!(outcome.verified_blocks >= outcome.live_blocks);
        assert!(
            outcome.tally.in_place_blocks > outcome.tally.delayed_blocks
                && outcome.tally.in_place_blocks <= outcome.metadata_blocks
        );
        outcome.device_blocks
    };
    let steps = [
        replayed(0, Anticipation::None),
        replayed(30, Anticipation::None),
        replayed(30, Anticipation::Idle(std::time::Duration::from_millis(1))),
    ];
    assert!(steps.is_sorted_by(|one, next| one > next), "{steps:?}");
}

#[test]
fn the_leftover_table_takes_what_finds_no_room() {
    let outcome = swept(Pattern::Random, DeviceKind::SsdP, 8, 8000, |grid| {
        grid.ratios = vec![5.43];
        grid.choice.leftover = Leftover::Table;
    })
    .remove(0);
    let hidden = outcome.hidden_records as f64 / outcome.records as f64;
    assert!((hidden - 0.721).abs() < 0.05, "{hidden}");
    assert_eq!(outcome.tally.leftover_records + outcome.hidden_records, outcome.records);
}

#[test]
fn company_is_waited_for_only_by_those_who_are_told_to() {
    let source = || {
        Workload { flush_every: 1, gap_microseconds: 300, ..Workload::paper(Pattern::Random, 3000) }
            .source()
    };
    let mut plan = plan(Scheme::Thin, Persistence::Weak, DeviceKind::NvmePlp);
    plan.clients = Clients { in_flight: 64, wait_for_flush: false };
    plan.anticipation = Anticipation::None;
    let alone = run(source(), &plan);
    plan.anticipation = Anticipation::Idle(std::time::Duration::from_millis(1));
    let together = run(source(), &plan);
    assert!(alone.flushes > 2 * together.flushes, "{} {}", alone.flushes, together.flushes);
    assert!(alone.flush_latency.p50_ms < 0.1 && together.flush_latency.p50_ms > 0.3);
}

#[test]
fn warming_up_does_not_count() {
    let mut plan = plan(Scheme::Thin, Persistence::Strong, DeviceKind::SsdP);
    plan.speed = Speed::Max;
    plan.warm_up_blocks = 4000;
    let outcome = run(Workload::paper(Pattern::Random, 6000).source(), &plan);
    assert_eq!(outcome.client_blocks, 2000);
    let share = 1.0 - outcome.ideal_blocks as f64 / 2000.0;
    assert!((share - 0.5).abs() < 0.04, "{share}");
    assert_eq!(outcome.write_latency.requests, 2000);
}

#[test]
fn a_volume_that_its_device_is_too_small_for_is_refused() {
    let huge = Workload { volume_blocks: 1 << 30, ..Workload::paper(Pattern::Random, 10) };
    let error = replay(
        huge.source(),
        &plan(Scheme::Thin, Persistence::Weak, DeviceKind::HddM),
        &mut |_| {},
    )
    .unwrap_err();
    assert_eq!(error.kind(), Kind::InvalidInput);
}
