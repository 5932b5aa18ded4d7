//! Seeds on worker threads, one shrunk, and the proof that planted bugs are found.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    ops::Range,
    panic::{self, AssertUnwindSafe},
    sync::{
        Once,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use onefold_testbed::Reach;
use parking_lot::Mutex;

use super::Simulator;
use crate::checker::{Checker, Failure};

/// How one seed ended.
#[derive(Clone, Debug)]
pub struct Outcome<P> {
    /// The seed.
    pub seed: u64,
    /// The parameters of the run.
    pub params: P,
    /// The first failure, if there was one.
    pub failure: Option<Failure>,
    /// The hash of all that was asked of the disk, the files or the object store.
    pub trace: u64,
    /// The coverage marks that the run reached.
    pub reach: Reach,
}

/// How many seeds ended.
#[derive(Clone, Debug)]
pub struct Summary<P> {
    /// Seeds that were run.
    pub seeds: u64,
    /// Failed runs, by their seeds.
    pub failures: Vec<Outcome<P>>,
    /// The coverage marks that any of them reached.
    pub reach: Reach,
}

/// How seeds are run.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The planted bug, by its index.
    pub bug: Option<usize>,
    /// Every so many seeds, one is run twice and must do the same; 0 for never.
    pub repeat_every: u64,
    /// Failures after which no more seeds are begun.
    pub stop_after: usize,
    /// Worker threads.
    pub threads: usize,
}

impl Default for Config {
    fn default() -> Config {
        Config { bug: None, repeat_every: 40, stop_after: 20, threads: 2 }
    }
}

/// The search for one planted bug.
#[derive(Clone, Debug)]
pub struct BugReport<P> {
    /// Its name.
    pub bug: &'static str,
    /// A seed that finds it, and how.
    pub found: Option<Outcome<P>>,
    /// The failure of the same seed without the bug: there must be none.
    pub without: Option<Failure>,
}

thread_local! {
    /// Where a simulated engine's panic came from; `None` outside of a run, when panics are printed as usual.
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Runs `part`; a panic in it is a failure.
pub(crate) fn guarded(part: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let ours = PANIC.with_borrow_mut(|slot| {
                slot.as_mut().map(|text| *text = info.to_string()).is_some()
            });
            if !ours {
                usual(info);
            }
        }));
    });
    PANIC.set(Some(String::new()));
    let result = panic::catch_unwind(AssertUnwindSafe(part));
    let message = PANIC.take().unwrap_or_default();
    result.unwrap_or_else(|_| Err(Failure::new(Checker::NoPanic, message)))
}

/// Runs one seed, with a planted bug or without; `loud` prints what happens.
#[must_use]
pub fn run_seed<S: Simulator>(
    simulator: &S,
    seed: u64,
    bug: Option<usize>,
    loud: bool,
) -> Outcome<S::Params> {
    simulator.run(simulator.draw(seed, bug), loud)
}

/// Smaller parameters that fail the same checker.
#[must_use]
pub fn shrink<S: Simulator>(simulator: &S, outcome: &Outcome<S::Params>) -> Outcome<S::Params> {
    let checker =
        |outcome: &Outcome<S::Params>| outcome.failure.as_ref().map(|failure| failure.checker);
    let mut least = outcome.clone();
    loop {
        let smaller =
            simulator.smaller(&least.params).into_iter().map(|params| simulator.run(params, false));
        match smaller
            .into_iter()
            .find(|tried| checker(tried).is_some() && checker(tried) == checker(outcome))
        {
            Some(found) => least = found,
            None => return least,
        }
    }
}

/// Runs a seed once, or twice when it is its turn to prove that it is deterministic.
fn run_checked<S: Simulator>(simulator: &S, seed: u64, config: &Config) -> Outcome<S::Params> {
    let mut outcome = run_seed(simulator, seed, config.bug, false);
    if config.repeat_every != 0 && seed.is_multiple_of(config.repeat_every) {
        let again = run_seed(simulator, seed, config.bug, false);
        if again.trace != outcome.trace || again.failure != outcome.failure {
            let message =
                format!("two runs differ: trace {:016x} and {:016x}", outcome.trace, again.trace);
            outcome.failure = Some(Failure::new(Checker::Deterministic, message));
        }
    }
    outcome
}

fn on_threads(threads: usize, worker: impl Fn() + Sync) {
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(&worker);
        }
    });
}

/// Runs all seeds of a range, lowest first, on worker threads. `progress` is told now and then how
/// many are done.
pub fn run_seeds<S: Simulator>(
    simulator: &S,
    seeds: Range<u64>,
    config: &Config,
    progress: impl Fn(u64) + Sync,
) -> Summary<S::Params> {
    let next = AtomicU64::new(seeds.start);
    let summary = Mutex::new(Summary { seeds: 0, failures: Vec::new(), reach: Reach::default() });
    let worker = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end || summary.lock().failures.len() >= config.stop_after {
                return;
            }
            let outcome = run_checked(simulator, seed, config);
            let mut summary = summary.lock();
            summary.seeds += 1;
            summary.reach.merge(&outcome.reach);
            if outcome.failure.is_some() {
                summary.failures.push(outcome);
            }
            if summary.seeds.is_multiple_of(100) {
                progress(summary.seeds);
            }
        }
    };
    on_threads(config.threads, worker);
    let mut summary = summary.into_inner();
    summary.failures.sort_by_key(|outcome| outcome.seed);
    summary
}

/// Runs seeds that were kept, on worker threads; their outcomes by number.
pub fn run_kept<S: Simulator>(
    simulator: &S,
    kept: &[u64],
    config: &Config,
) -> Vec<Outcome<S::Params>> {
    let (next, outcomes) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    on_threads(config.threads, || {
        while let Some(&seed) = kept.get(next.fetch_add(1, Ordering::Relaxed)) {
            let outcome = run_seed(simulator, seed, config.bug, false);
            outcomes.lock().push(outcome);
        }
    });
    let mut outcomes = outcomes.into_inner();
    outcomes.sort_by_key(|outcome| outcome.seed);
    outcomes
}

/// Plants each bug that breaks a rule of the stores that were chosen, and looks for a seed that finds
/// it: first among those that found it before, then from the lowest one of `0..limit` on.
pub fn bugs<S: Simulator>(
    simulator: &S,
    limit: u64,
    of: &Config,
    mut report: impl FnMut(&BugReport<S::Params>),
) -> Vec<BugReport<S::Params>> {
    let all = simulator.bugs().into_iter().enumerate();
    let all: Vec<_> = all.filter(|&(index, _)| simulator.has_rule_of(index)).collect();
    let mut before = found_before(simulator, &all, of.threads);
    let mut reports = Vec::new();
    for (index, bug) in all {
        let config = Config { bug: Some(index), repeat_every: 0, stop_after: 1, ..*of };
        let one = before.remove(&index).unwrap_or_else(|| {
            // Workers end the seeds that they have begun, so that the lowest failure is the first.
            let found = run_seeds(simulator, 0..limit, &config, |_| {}).failures.into_iter().next();
            judged(simulator, bug, found)
        });
        report(&one);
        reports.push(one);
    }
    reports
}

/// Runs the seed that found a bug without the bug, too.
fn judged<S: Simulator>(
    simulator: &S,
    bug: &'static str,
    found: Option<Outcome<S::Params>>,
) -> BugReport<S::Params> {
    let without = found.as_ref().map(|outcome| run_seed(simulator, outcome.seed, None, false));
    BugReport { bug, found, without: without.and_then(|outcome| outcome.failure) }
}

/// The bugs that are found by a seed that found them before, by their indices.
fn found_before<S: Simulator>(
    simulator: &S,
    all: &[(usize, &'static str)],
    threads: usize,
) -> BTreeMap<usize, BugReport<S::Params>> {
    let (next, found) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    let worker = || {
        while let Some(&(index, bug)) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
            let mut runs = seeds_of::<S>(bug)
                .into_iter()
                .map(|seed| run_seed(simulator, seed, Some(index), false));
            if let Some(outcome) = runs.find(|outcome| outcome.failure.is_some()) {
                let report = judged(simulator, bug, Some(outcome));
                found.lock().insert(index, report);
            }
        }
    };
    on_threads(threads, worker);
    found.into_inner()
}

/// The seeds that found this planted bug before.
fn seeds_of<S: Simulator>(bug: &str) -> Vec<u64> {
    let lines = S::FOUND.lines().map(|line| line.split_whitespace());
    let of_bug = lines.filter_map(|mut words| (words.next() == Some(bug)).then_some(words));
    of_bug.flatten().filter_map(|seed| seed.parse().ok()).collect()
}
