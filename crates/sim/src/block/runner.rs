//! Seeds on worker threads, one replayed, and the proof that planted bugs are found.

use std::{
    cell::RefCell,
    ops::Range,
    panic::{self, AssertUnwindSafe},
    sync::{
        Once,
        atomic::{AtomicU64, Ordering},
    },
};

use onefold_testbed::Reach;
use parking_lot::Mutex;

use crate::{
    block::{
        params::{Params, Profile},
        run::Sim,
        subject::Subject,
    },
    checker::{Checker, Failure},
};

/// How one seed ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The parameters of the run.
    pub params: Params,
    /// The failure, if there was one.
    pub failure: Option<Failure>,
    /// The hash of all calls to the disk.
    pub trace: u64,
    /// Branches and faults that were met.
    pub reach: Reach,
}

/// How many seeds ended.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Seeds that were run.
    pub seeds: u64,
    /// Failed runs, by their seeds.
    pub failures: Vec<Outcome>,
    /// Branches and faults that any of them met.
    pub reach: Reach,
}

/// How seeds are run.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The planted bug, by its index.
    pub bug: Option<usize>,
    /// The scheme of all stores, by its index; else the seed draws one.
    pub scheme: Option<usize>,
    /// The product's schedule decides the steps.
    pub scheduled: bool,
    /// Every so many seeds, one is run twice and must do the same; 0 for never.
    pub repeat_every: u64,
    /// Failures after which no more seeds are begun.
    pub stop_after: usize,
    /// Worker threads.
    pub threads: usize,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            bug: None,
            scheme: None,
            scheduled: false,
            repeat_every: 40,
            stop_after: 20,
            threads: 2,
        }
    }
}

/// The search for one planted bug.
#[derive(Clone, Debug)]
pub struct BugReport {
    /// Its name.
    pub bug: &'static str,
    /// The first seed that finds it, and how.
    pub found: Option<Outcome>,
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

/// Runs one seed; `loud` prints what happens.
#[must_use]
pub fn run_seed<S: Subject>(seed: u64, config: &Config, loud: bool) -> Outcome {
    let mut params = Params::draw(seed, config.scheme);
    params.options.bug = config.bug;
    params.scheduled = config.scheduled;
    run_params::<S>(params, loud)
}

/// Runs what `params` say; `loud` prints what happens.
#[must_use]
pub fn run_params<S: Subject>(params: Params, loud: bool) -> Outcome {
    let mut sim = Sim::<S>::new(params.clone(), loud);
    let spared = !S::NOTICES_DAMAGE && params.profile == Profile::Damage;
    let failure = guarded(|| if spared { Ok(()) } else { sim.run() }).err();
    let mut reach = std::mem::take(&mut sim.reach);
    reach.merge(&sim.disk.reach());
    Outcome { params, failure, trace: sim.disk.trace(), reach }
}

/// Smaller parameters that fail the same checker: fewer lives and requests, fewer kinds of them,
/// fewer volumes and faults.
#[must_use]
pub fn shrink<S: Subject>(outcome: &Outcome) -> Outcome {
    let mut least = outcome.clone();
    loop {
        let smaller =
            least.params.smaller().into_iter().map(|params| run_params::<S>(params, false));
        let checker = |outcome: &Outcome| outcome.failure.as_ref().map(|failure| failure.checker);
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
fn run_checked<S: Subject>(seed: u64, config: &Config) -> Outcome {
    let mut outcome = run_seed::<S>(seed, config, false);
    if config.repeat_every != 0 && seed.is_multiple_of(config.repeat_every) {
        let again = run_seed::<S>(seed, config, false);
        if again.trace != outcome.trace || again.failure != outcome.failure {
            let message =
                format!("two runs differ: trace {:016x} and {:016x}", outcome.trace, again.trace);
            outcome.failure = Some(Failure::new(Checker::Deterministic, message));
        }
    }
    outcome
}

/// Runs all seeds of a range, lowest first, on worker threads. `progress` is told now and then how
/// many are done.
pub fn run_seeds<S: Subject>(
    seeds: Range<u64>,
    config: &Config,
    progress: impl Fn(u64) + Sync,
) -> Summary {
    let next = AtomicU64::new(seeds.start);
    let summary = Mutex::new(Summary::default());
    let worker = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end || summary.lock().failures.len() >= config.stop_after {
                return;
            }
            let outcome = run_checked::<S>(seed, config);
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
    std::thread::scope(|scope| {
        for _ in 0..config.threads.max(1) {
            scope.spawn(worker);
        }
    });
    let mut summary = summary.into_inner();
    summary.failures.sort_by_key(|outcome| outcome.params.seed);
    summary
}

/// Plants each bug in turn, or each that breaks a rule of the scheme that is asked for, and looks
/// for the first seed of `0..limit` that finds it.
pub fn bugs<S: Subject>(
    limit: u64,
    of: &Config,
    mut report: impl FnMut(&BugReport),
) -> Vec<BugReport> {
    let mut reports = Vec::new();
    for (index, bug) in S::BUGS
        .iter()
        .enumerate()
        .filter(|&(index, _)| of.scheme.is_none_or(|scheme| S::applies(index, scheme)))
    {
        let config = Config { bug: Some(index), repeat_every: 0, stop_after: 1, ..*of };
        // Workers end the seeds that they have begun, so that the lowest failure is the first one.
        let found = run_seeds::<S>(0..limit, &config, |_| {}).failures.into_iter().next();
        let without = found.as_ref().and_then(|outcome| {
            run_seed::<S>(outcome.params.seed, &Config { bug: None, ..config }, false).failure
        });
        let one = BugReport { bug, found, without };
        report(&one);
        reports.push(one);
    }
    reports
}
