//! The block engine passes seeds and the exhaustive case, and does the same twice. The command runs
//! more of them.

use onefold_sim::{
    block::{
        Block,
        engine::Thin,
        exhaust::{exhaust, small, small_merging},
    },
    front::{Config, run_seed, run_seeds},
};

#[test]
fn the_block_engine_survives_and_every_kind_of_fault_is_reached() {
    let summary = run_seeds(
        &Block::<Thin>::default(),
        0..400,
        &Config { repeat_every: 10, ..Config::default() },
        |_| {},
    );
    assert!(summary.failures.is_empty(), "{:#?}", summary.failures);
    for what in [
        "client forges metadata",
        "crash: in a durable write",
        "crash: in a flush",
        "crash: in recovery, three times and more",
        "crash: in close",
        "fault: no space to allocate",
        "fault: read error, once",
        "damage: read refused",
        "damage: store refused",
        "store full",
        "verifier: after close",
        "verifier: after recovery",
    ] {
        assert!(summary.reach.count(what) > 0, "never reached: {what}\n{}", summary.reach);
    }
}

#[test]
fn the_same_seed_is_the_same_run_of_the_block_engine() {
    let trace = |seed| run_seed(&Block::<Thin>::default(), seed, None, false).trace;
    (0..20).for_each(|seed| assert_eq!(trace(seed), trace(seed)));
}

#[test]
fn every_crash_of_the_small_case_is_survived_by_the_block_engine() {
    for options in [small(false), small(true), small_merging()] {
        let tried = exhaust::<Thin>(&options, 2);
        assert_eq!(tried.failure, None);
        assert!(tried.cases > 10_000 && tried.recovery_points > 10, "{tried:?}");
    }
}
