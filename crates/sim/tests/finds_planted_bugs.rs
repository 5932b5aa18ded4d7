//! The simulator against a toy: it passes when the toy is right, and finds each bug that is planted
//! in it.

mod toy;

use onefold_sim::{
    block::{
        Block,
        exhaust::{exhaust, small},
    },
    front::{Config, bugs, run_seed, run_seeds},
};
use toy::Toy;

#[test]
fn a_right_store_passes_and_every_kind_of_crash_is_reached() {
    let summary = run_seeds(
        &Block::<Toy>::default(),
        0..300,
        &Config { repeat_every: 10, ..Config::default() },
        |_| {},
    );
    assert!(summary.failures.is_empty(), "{:#?}", summary.failures);
    for what in [
        "crash: in a write",
        "crash: in a flush",
        "crash: between calls",
        "crash: block torn",
        "crash: in recovery, three times and more",
        "crash: in close",
        "crash: in format",
        "process killed, power stays",
        "fault: write error",
        "fault: flush error",
        "fault: no space for a write",
        "fault: read error, once",
        "fault: device smaller than formatted",
        "store full",
        "store full: trimmed and written again",
        "store stopped by a fault",
        "verifier: after recovery",
    ] {
        assert!(summary.reach.count(what) > 0, "never reached: {what}\n{}", summary.reach);
    }
}

#[test]
fn the_same_seed_is_the_same_run() {
    let trace = |seed| run_seed(&Block::<Toy>::default(), seed, None, false).trace;
    (0..20).for_each(|seed| assert_eq!(trace(seed), trace(seed)));
    assert_ne!(trace(1), trace(2));
}

#[test]
fn each_planted_bug_is_found_and_the_same_seed_passes_without_it() {
    for report in bugs(&Block::<Toy>::default(), 2000, &Config::default(), |_| {}) {
        assert!(report.found.is_some(), "not found: {}", report.bug);
        assert_eq!(report.without, None, "{}", report.bug);
    }
}

#[test]
fn every_crash_of_the_small_case_is_survived_and_finds_a_bug() {
    let tried = exhaust::<Toy>(&small(false), 2);
    assert_eq!(tried.failure, None);
    assert!(tried.cases > 10_000 && tried.recovery_points > 0, "{tried:?}");
    let mut options = small(false);
    options.bug = Some(1);
    assert!(exhaust::<Toy>(&options, 2).failure.is_some());
}
