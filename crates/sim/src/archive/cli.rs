//! The command line of the archive's simulation.

use std::{
    ops::Range,
    process::ExitCode,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Instant,
};

use onefold_archive::Rule;
use onefold_testbed::Reach;
use parking_lot::Mutex;

use super::{Outcome, run_seed};
use crate::{
    block::cli::{number, range, traces},
    checker::{Checker, Failure},
};

const USAGE: &str = "\
Crash and fault simulation of the archive engine. Without arguments: kept seeds and 2,000 seeds.

  --seed N          replays one seed and prints what happens
  --seeds A..B      runs a range of seeds
  --traces A..B     prints what each seed did, as one number: equal before and after a change of
                    the code's form
  --long            runs 100,000 seeds
  --bugs            plants each bug and looks for it in 2,000 seeds
  --bug NAME        plants one bug in what the other options run
  --threads N       worker threads (2)

examples:  onefold-sim archive --seed 17        onefold-sim archive --seeds 0..500";

const SEEDS: u64 = 2_000;
const LONG: u64 = 100_000;
const STOP_AFTER: usize = 10;

/// Seeds that failed once, one a line; after `#` the story.
const KEPT: &str = include_str!("../../archive_seeds.txt");

/// The coverage marks that an ordinary run must reach.
const BRANCHES: [&str; 48] = [
    "a collector killed",
    "a damaged container stayed",
    "a put killed",
    "a put met a full disk",
    "a put was there without its acknowledgement",
    "a node that came back was outdated",
    "a node was lost",
    "a node was replaced",
    "a reader looked after a failed sync",
    "a reader read what it had opened",
    "an empty mount point",
    "checked after a crash",
    "collection waits for older puts",
    "containers dropped",
    "containers merged",
    "containers settled",
    "crash: in a change",
    "crash: in a sync",
    "crash: in recovery",
    "damage was noted of what is whole",
    "damage of metadata cost nothing",
    "damage of metadata was told",
    "damage was told",
    "everything was collected",
    "fault: a sync dropped data",
    "fault: a sector can't be read",
    "fault: a write was lost",
    "fault: a write was misdirected",
    "fault: rot",
    "fault: rot of metadata",
    "lost chunks were healed",
    "what was lost was put again",
    "what was noted was whole",
    "imported at the end",
    "imported under way",
    "places held back by readers",
    "others went on after a failed sync",
    "rot was mended",
    "too many nodes were lost",
    "processes killed, power stays",
    "a put into a served archive",
    "a second ingesting process was sent away",
    "a server killed",
    "a server waits for a put",
    "all unflushed writes were there",
    "unflushed writes were lost",
    "volumes flushed",
    "volumes met a full disk",
];

/// Runs what the arguments ask for.
pub fn run(arguments: impl Iterator<Item = String>) -> ExitCode {
    match try_run(arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("{message}\n\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn try_run(mut arguments: impl Iterator<Item = String>) -> Result<bool, String> {
    let (mut seeds, mut one, mut bugs, mut bug, mut threads) = (None, None, false, None, 2);
    let mut traced = None;
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "--seed" => one = Some(number(&value()?)?),
            "--seeds" => seeds = Some(range(&value()?)?),
            "--traces" => traced = Some(range(&value()?)?),
            "--long" => seeds = Some(0..LONG),
            "--bugs" => bugs = true,
            "--bug" => {
                let name = value()?;
                let index = Rule::BUGS.iter().position(|(known, _)| *known == name);
                bug = Some(index.ok_or(format!("no bug '{name}'"))?);
            }
            "--threads" => threads = number(&value()?)? as usize,
            other => return Err(format!("unknown argument '{other}'")),
        }
    }
    if let Some(seeds) = traced {
        return Ok(traces(seeds, |seed| run_seed(seed, bug, false).trace));
    }
    if let Some(seed) = one {
        let outcome = run_seed(seed, bug, true);
        println!("{:#?}", outcome.params);
        print!("{}", outcome.reach);
        println!("trace {:016x}", outcome.trace);
        return Ok(verdict(&outcome));
    }
    if bugs {
        // Each is looked for, whatever became of the one before.
        let missed = (0..Rule::BUGS.len()).filter(|&bug| !planted(bug, threads)).count();
        return Ok(missed == 0);
    }
    if let Some(seeds) = seeds {
        return Ok(many(seeds, bug, threads).0.is_empty());
    }
    let kept = KEPT.lines().filter_map(|line| line.split('#').next()?.trim().parse::<u64>().ok());
    let failed = kept.filter(|&seed| !verdict(&run_seed(seed, bug, false))).count();
    let (failures, reach) = many(0..SEEDS, bug, threads);
    let never: Vec<&str> = BRANCHES.into_iter().filter(|what| reach.count(what) == 0).collect();
    never.iter().for_each(|what| println!("never reached: {what}"));
    Ok(failed == 0 && failures.is_empty() && never.is_empty())
}

fn verdict(outcome: &Outcome) -> bool {
    let Some(failure) = &outcome.failure else { return true };
    println!("archive seed {} fails: {failure}", outcome.params.seed);
    false
}

/// Runs all seeds of a range; gives what failed and what was reached.
fn many(seeds: Range<u64>, bug: Option<usize>, threads: usize) -> (Vec<Outcome>, Reach) {
    let (begun, total) = (Instant::now(), seeds.end.saturating_sub(seeds.start));
    let (failures, reach) = each(seeds, bug, threads, STOP_AFTER);
    failures.iter().for_each(|outcome| {
        verdict(outcome);
    });
    print!("{reach}");
    let seconds = begun.elapsed().as_secs_f64();
    println!(
        "archive: {total} seeds, {} failed, {seconds:.1} s, {:.0} a second",
        failures.len(),
        total as f64 / seconds
    );
    (failures, reach)
}

/// Every fortieth seed is run twice, and must do the same.
const REPEAT_EVERY: u64 = 40;

fn each(
    seeds: Range<u64>,
    bug: Option<usize>,
    threads: usize,
    stop_after: usize,
) -> (Vec<Outcome>, Reach) {
    let next = AtomicU64::new(seeds.start);
    let found = Mutex::new((Vec::<Outcome>::new(), Reach::default()));
    let worker = || {
        loop {
            let seed = next.fetch_add(1, Relaxed);
            if seed >= seeds.end || found.lock().0.len() >= stop_after {
                return;
            }
            let mut outcome = run_seed(seed, bug, false);
            if seed.is_multiple_of(REPEAT_EVERY)
                && run_seed(seed, bug, false).trace != outcome.trace
            {
                outcome.failure = Some(Failure::new(Checker::Deterministic, "two runs differ"));
            }
            let mut found = found.lock();
            found.1.merge(&outcome.reach);
            if outcome.failure.is_some() {
                found.0.push(outcome);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(worker);
        }
    });
    let (mut failures, reach) = found.into_inner();
    failures.sort_by_key(|outcome| outcome.params.seed);
    (failures, reach)
}

/// Looks for one planted bug; the same seed must pass without it.
fn planted(bug: usize, threads: usize) -> bool {
    let name = Rule::BUGS[bug].0;
    let (failures, _) = each(0..SEEDS, Some(bug), threads, 1);
    let Some(found) = failures.first() else {
        println!("{name:<44} NOT FOUND in {SEEDS} seeds");
        return false;
    };
    let seed = found.params.seed;
    if let Some(without) = run_seed(seed, None, false).failure {
        println!("{name:<44} seed {seed:>4} fails without the bug too: {without}");
        return false;
    }
    println!(
        "{name:<44} seed {seed:>4}  {}",
        found.failure.as_ref().map_or(String::new(), ToString::to_string)
    );
    true
}
