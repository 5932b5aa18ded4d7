//! The command line of the simulator.

use std::{process::ExitCode, time::Instant};

use onefold_testbed::{Fault, Reach};

use crate::block::{
    exhaust::{exhaust, small, small_merging},
    runner::{Config, Outcome, bugs, run_params, run_seed, run_seeds, shrink},
    subject::{StoreOptions, Subject},
};

const USAGE: &str = "\
Deterministic crash and fault simulation. Without arguments: kept seeds, 2,000 seeds, and the exhaustive small case.

  --seed N          replays one seed and prints what happens
  --shrink N        looks for a smaller run that fails as seed N does, and replays that
  --seeds A..B      runs a range of seeds
  --traces A..B     prints what each seed did, as one number: equal before and after a change of
                    the code's form
  --long            runs 100,000 seeds
  --exhaust         tries every crash of a small case
  --bugs            plants each bug and looks for it in 2,000 seeds
  --bug NAME        plants one bug in what the other options run
  --scheme NAME     every store has this scheme; --bugs plants those that break a rule of it
  --scheduled       the product's schedule decides the engine's steps, not the seed
  --threads N       worker threads (2)

examples:  onefold-sim --seed 1742        onefold-sim --seeds 0..500 --threads 1";

/// Seeds of an ordinary run.
const SEEDS: u64 = 2_000;

/// Seeds of a long run.
const LONG: u64 = 100_000;

/// Seeds that failed once, one a line; after `#` the story.
const KEPT: &str = include_str!("../../seeds.txt");

enum Job {
    All,
    Seed(u64),
    Shrink(u64),
    Seeds(std::ops::Range<u64>),
    Traces(std::ops::Range<u64>),
    Exhaust,
    Bugs,
}

/// Runs what the arguments ask for.
pub fn run<S: Subject>(arguments: impl Iterator<Item = String>) -> ExitCode {
    let (job, config) = match parse::<S>(arguments) {
        Ok(parsed) => parsed,
        Err(message) => {
            eprintln!("{message}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let well = match job {
        Job::Seed(seed) => replay(&run_seed::<S>(seed, &config, true)),
        Job::Shrink(seed) => {
            let least = shrink::<S>(&run_seed::<S>(seed, &config, false));
            replay(&run_params::<S>(least.params, true))
        }
        Job::Seeds(seeds) => many::<S>(seeds, &config).0,
        Job::Traces(seeds) => traces(seeds, |seed| run_seed::<S>(seed, &config, false).trace),
        Job::Exhaust => small_cases::<S>(&config),
        Job::Bugs => planted::<S>(&config),
        // A run of one scheme leaves reachability and the small cases to the ordinary run.
        Job::All if config.scheme.is_some() => kept::<S>(&config) && many::<S>(0..SEEDS, &config).0,
        Job::All => kept::<S>(&config) && everywhere::<S>(&config) && small_cases::<S>(&config),
    };
    if well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn parse<S: Subject>(mut arguments: impl Iterator<Item = String>) -> Result<(Job, Config), String> {
    let (mut job, mut config) = (Job::All, Config::default());
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "--seed" => job = Job::Seed(number(&value()?)?),
            "--shrink" => job = Job::Shrink(number(&value()?)?),
            "--seeds" => job = Job::Seeds(range(&value()?)?),
            "--traces" => job = Job::Traces(range(&value()?)?),
            "--long" => job = Job::Seeds(0..LONG),
            "--exhaust" => job = Job::Exhaust,
            "--bugs" => job = Job::Bugs,
            "--bug" => {
                let name = value()?;
                let index = S::BUGS.iter().position(|bug| *bug == name);
                config.bug =
                    Some(index.ok_or(format!("no bug '{name}': one of {}", S::BUGS.join(", ")))?);
            }
            "--scheme" => {
                let name = value()?;
                let index = S::SCHEMES.iter().position(|scheme| *scheme == name);
                config.scheme = Some(
                    index.ok_or(format!("no scheme '{name}': one of {}", S::SCHEMES.join(", ")))?,
                );
            }
            "--scheduled" => config.scheduled = true,
            "--threads" => config.threads = number(&value()?)? as usize,
            other => return Err(format!("unknown argument '{other}'")),
        }
    }
    Ok((job, config))
}

/// A number on the command line; `_` groups its digits.
pub(crate) fn number(text: &str) -> Result<u64, String> {
    text.replace('_', "").parse().map_err(|_| format!("'{text}' is not a number"))
}

/// A range of seeds on the command line.
pub(crate) fn range(text: &str) -> Result<std::ops::Range<u64>, String> {
    let ends = text.split_once("..").ok_or(format!("'{text}' is not a range like 0..500"))?;
    Ok(number(ends.0)?..number(ends.1)?)
}

/// Prints the trace of each seed.
pub(crate) fn traces(seeds: std::ops::Range<u64>, trace: impl Fn(u64) -> u64) -> bool {
    seeds.for_each(|seed| println!("{seed} {:016x}", trace(seed)));
    true
}

fn replay(outcome: &Outcome) -> bool {
    println!("{:#?}", outcome.params);
    print!("{}", outcome.reach);
    println!("trace {:016x}", outcome.trace);
    verdict(outcome)
}

/// Prints a failure; true when there is none.
fn verdict(outcome: &Outcome) -> bool {
    let Some(failure) = &outcome.failure else { return true };
    println!("seed {} fails: {failure}", outcome.params.seed);
    false
}

/// The ordinary run, which must also reach every fault and every branch.
fn everywhere<S: Subject>(config: &Config) -> bool {
    let (well, reach) = many::<S>(0..SEEDS, config);
    let faults = Fault::ALL.iter().map(|fault| fault.name());
    let never: Vec<&str> =
        S::branches().into_iter().chain(faults).filter(|what| reach.count(what) == 0).collect();
    for what in &never {
        println!("never reached: {what}");
    }
    well && never.is_empty()
}

fn many<S: Subject>(seeds: std::ops::Range<u64>, config: &Config) -> (bool, Reach) {
    let start = Instant::now();
    let total = seeds.end.saturating_sub(seeds.start);
    let summary = run_seeds::<S>(seeds, config, |done| {
        let seconds = start.elapsed().as_secs_f64();
        if done.is_multiple_of(1000) {
            eprintln!("{done} of {total} seeds, {:.0} a second", done as f64 / seconds);
        }
    });
    for outcome in &summary.failures {
        verdict(outcome);
        println!("{:#?}", outcome.params);
    }
    print!("{}", summary.reach);
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{} seeds, {} failed, {seconds:.1} s, {:.0} a second",
        summary.seeds,
        summary.failures.len(),
        summary.seeds as f64 / seconds
    );
    (summary.failures.is_empty(), summary.reach)
}

fn kept<S: Subject>(config: &Config) -> bool {
    let seeds = KEPT.lines().filter_map(|line| line.split('#').next()?.trim().parse::<u64>().ok());
    let failed = seeds.filter(|&seed| !verdict(&run_seed::<S>(seed, config, false))).count();
    failed == 0
}

fn small_cases<S: Subject>(config: &Config) -> bool {
    let cases = [
        ("", small(false)),
        (", tables in place", small(true)),
        (", tables in place, ordered", small_merging()),
    ];
    cases.into_iter().all(|(what, options)| small_case::<S>(config, what, options))
}

fn small_case<S: Subject>(config: &Config, what: &str, mut options: StoreOptions) -> bool {
    let start = Instant::now();
    options.bug = config.bug;
    let tried = exhaust::<S>(&options, config.threads);
    println!(
        "exhaustive case{what}: {} crashes at {} points ({} of them in recovery), at most {} unflushed blocks ({} points sampled), {:.1} s",
        tried.cases,
        tried.points,
        tried.recovery_points,
        tried.widest,
        tried.sampled,
        start.elapsed().as_secs_f64()
    );
    if let Some(failure) = &tried.failure {
        println!("exhaustive case fails: {failure}");
    }
    tried.failure.is_none()
}

fn planted<S: Subject>(config: &Config) -> bool {
    let reports = bugs::<S>(SEEDS, config, |report| match (&report.found, &report.without) {
        (None, _) => println!("{:<44} NOT FOUND in {SEEDS} seeds", report.bug),
        (Some(found), None) => {
            let checker = found.failure.as_ref().map_or(String::new(), ToString::to_string);
            println!("{:<44} seed {:>4}  {checker}", report.bug, found.params.seed);
        }
        (Some(found), Some(without)) => {
            println!(
                "{:<44} seed {:>4} fails without the bug too: {without}",
                report.bug, found.params.seed
            );
        }
    });
    reports.iter().all(|report| report.found.is_some() && report.without.is_none())
}
