//! The command line of the cluster engine's simulation.

use std::{
    ops::Range,
    process::ExitCode,
    sync::atomic::{AtomicU64, Ordering},
    time::Instant,
};

use onefold_testbed::Reach;
use parking_lot::Mutex;

use super::{Finding, Outcome, bugs, run_seed};
use crate::block::cli::{number, range, traces};

const USAGE: &str = "\
Simulation of the cluster engine. Without arguments: 2,000 seeds.

  --seed N          replays one seed and prints what happens
  --seeds A..B      runs a range of seeds
  --traces A..B     prints what each seed did, as one number: equal before and after a change of
                    the code's form
  --long            runs 100,000 seeds
  --bugs            plants each bug and looks for it in 2,000 seeds
  --bug NAME        plants one bug in what the other options run
  --threads N       seeds at a time (2)

examples:  onefold-sim cluster --seed 1742        onefold-sim cluster --seeds 0..500";

/// Seeds of an ordinary run.
const SEEDS: u64 = 2_000;

/// Seeds of a long run.
const LONG: u64 = 100_000;

/// Failures after which no more seeds are begun.
const FAILURES: usize = 20;

/// One seed in so many is run twice and must do the same.
const REPEAT: u64 = 40;

/// Seeds that failed once, one a line; after `#` the story.
const KEPT: &str = include_str!("../../cluster-seeds.txt");

/// Branches that an ordinary run must reach.
const BRANCHES: [&str; 29] = [
    "a worker backs off",
    "orderly: references made by workers",
    "a client deduplicates inline",
    "a client flushes through",
    "a fenced session is refused",
    "a late copy applies",
    "a late copy is refused",
    "a metadata object is lost",
    "a read comes between writes that wait",
    "a reply comes after the takeover",
    "a session is fenced",
    "a copy comes when all is clean",
    "a volume is deleted",
    "a volume is resized",
    "an actor is killed",
    "an actor is stopped",
    "a chunk can't be read",
    "a chunk rots",
    "a clock is set back",
    "a read fails for a bad chunk",
    "a new name is taken",
    "an object is deleted",
    "as many long trims as there may be",
    "applied, and the reply is lost",
    "scrub: orphans",
    "scrub: stale references",
    "something can't be renamed",
    "something is renamed",
    "the store is full",
];

/// Runs what the arguments ask for.
pub fn run(arguments: impl Iterator<Item = String>) -> ExitCode {
    match parse(arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("{message}\n\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Result<bool, String> {
    let (mut bug, mut threads) = (None, 2);
    let mut job: Option<Job> = None;
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "--seed" => job = Some(Job::Seed(number(&value()?)?)),
            "--seeds" => job = Some(Job::Seeds(range(&value()?)?)),
            "--traces" => job = Some(Job::Traces(range(&value()?)?)),
            "--long" => job = Some(Job::Seeds(0..LONG)),
            "--bugs" => job = Some(Job::Bugs),
            "--bug" => {
                let name = value()?;
                let index = bugs().iter().position(|bug| *bug == name);
                bug = Some(index.ok_or(format!("no bug '{name}': one of {}", bugs().join(", ")))?);
            }
            "--threads" => threads = number(&value()?)? as usize,
            other => return Err(format!("unknown argument '{other}'")),
        }
    }
    Ok(match job {
        Some(Job::Seed(seed)) => replay(seed, bug),
        Some(Job::Seeds(seeds)) => many(seeds, bug, threads).0,
        Some(Job::Traces(seeds)) => traces(seeds, |seed| run_seed(seed, bug, false).trace),
        Some(Job::Bugs) => planted(threads),
        None => everything(bug, threads),
    })
}

enum Job {
    Seed(u64),
    Seeds(Range<u64>),
    Traces(Range<u64>),
    Bugs,
}

fn replay(seed: u64, bug: Option<usize>) -> bool {
    let outcome = run_seed(seed, bug, true);
    println!("{:#?}", outcome.params);
    print!("{}", outcome.reach);
    println!("trace {:016x}", outcome.trace);
    verdict(&outcome)
}

fn verdict(outcome: &Outcome) -> bool {
    let Some(finding) = &outcome.finding else { return true };
    println!("seed {} fails: {finding}", outcome.params.seed);
    false
}

fn everything(bug: Option<usize>, threads: usize) -> bool {
    let kept = KEPT.lines().filter_map(|line| line.split('#').next()?.trim().parse::<u64>().ok());
    let well = kept.filter(|seed| !verdict(&run_seed(*seed, bug, false))).count() == 0;
    let (all, reach) = many(0..SEEDS, bug, threads);
    let never: Vec<&str> = BRANCHES.into_iter().filter(|what| reach.count(what) == 0).collect();
    never.iter().for_each(|what| println!("never reached: {what}"));
    let (made, twice) = (
        reach.count("orderly: references made by workers"),
        reach.count("orderly: made by two workers"),
    );
    println!("double work where nobody is away: {twice} of {made} references");
    let rare = twice * 100 < made;
    if !rare {
        println!("leases do not keep workers apart: double work is to be less than 1 %");
    }
    well && all && never.is_empty() && rare
}

/// A seed, and the same again when it is its turn to prove that it is deterministic.
fn checked(seed: u64, bug: Option<usize>) -> Outcome {
    let mut outcome = run_seed(seed, bug, false);
    if seed.is_multiple_of(REPEAT) {
        let again = run_seed(seed, bug, false);
        if again.trace != outcome.trace || again.finding != outcome.finding {
            let message =
                format!("two runs differ: trace {:016x} and {:016x}", outcome.trace, again.trace);
            outcome.finding = Some(Finding::new("Deterministic", message));
        }
    }
    outcome
}

fn search(
    seeds: Range<u64>,
    bug: Option<usize>,
    threads: usize,
    stop_after: usize,
) -> (u64, Vec<Outcome>, Reach) {
    let next = AtomicU64::new(seeds.start);
    let found = Mutex::new((0, Vec::new(), Reach::default()));
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end || found.lock().1.len() >= stop_after {
                return;
            }
            let outcome =
                if bug.is_some() { run_seed(seed, bug, false) } else { checked(seed, None) };
            let mut found = found.lock();
            found.0 += 1;
            found.2.merge(&outcome.reach);
            if outcome.finding.is_some() {
                found.1.push(outcome);
            }
        }
    };
    std::thread::scope(|scope| (0..threads.max(1)).for_each(|_| drop(scope.spawn(work))));
    let (seeds, mut failures, reach) = found.into_inner();
    failures.sort_by_key(|outcome| outcome.params.seed);
    (seeds, failures, reach)
}

fn many(seeds: Range<u64>, bug: Option<usize>, threads: usize) -> (bool, Reach) {
    let start = Instant::now();
    let (count, failures, reach) = search(seeds, bug, threads, FAILURES);
    for outcome in &failures {
        verdict(outcome);
    }
    print!("{reach}");
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{count} seeds, {} failed, {seconds:.1} s, {:.0} a second",
        failures.len(),
        count as f64 / seconds
    );
    (failures.is_empty(), reach)
}

fn planted(threads: usize) -> bool {
    let mut well = true;
    for (index, name) in bugs().into_iter().enumerate() {
        let first = search(0..SEEDS, Some(index), threads, 1).1.into_iter().next();
        let without =
            first.as_ref().and_then(|outcome| run_seed(outcome.params.seed, None, false).finding);
        match (first, without) {
            (None, _) => println!("{name:<32} NOT FOUND in {SEEDS} seeds"),
            (Some(outcome), Some(finding)) => println!(
                "{name:<32} seed {:>4} fails without the bug too: {finding}",
                outcome.params.seed
            ),
            (Some(outcome), None) => {
                let finding = outcome.finding.map_or(String::new(), |finding| finding.to_string());
                println!("{name:<32} seed {:>4}  {finding}", outcome.params.seed);
                continue;
            }
        }
        well = false;
    }
    well
}
