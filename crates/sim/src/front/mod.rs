//! The front of the three simulators: one command line, seeds on worker threads, a failed run
//! shrunk, planted bugs looked for, and what an ordinary run must reach.

mod seeds;

use std::{fmt, ops::Range, process::ExitCode, time::Instant};

use onefold_testbed::Reach;

pub(crate) use self::seeds::guarded;
pub use self::seeds::{
    BugReport, Config, Outcome, Summary, bugs, run_kept, run_seed, run_seeds, shrink,
};

/// The options that every simulator has.
const OPTIONS: &str = "  --seed N          replays one seed and prints what happens
  --shrink N        looks for a smaller run that fails as seed N does, and replays that
  --seeds A..B      runs a range of seeds
  --traces A..B     prints what each seed did, as one number: equal before and after a change of
                    the code's form
  --long            runs 100,000 seeds
  --bugs            plants each bug and looks for it in 2,000 seeds, first in those that found it
                    before
  --bug NAME        plants one bug in what the other options run
  --threads N       seeds at a time (2)
";

/// Seeds in which each planted bug must be found.
const BUG_SEEDS: u64 = 2_000;

/// Seeds of a long run.
const LONG: u64 = 100_000;

/// A simulator. Its value has what the command line chose for all of its seeds.
pub trait Simulator: Sync {
    /// The parameters of one run.
    type Params: Clone + Send + fmt::Debug;

    /// What it simulates, and what it runs without arguments.
    const TITLE: &'static str;

    /// Lines about options of its own.
    const OPTIONS: &'static str = "";

    /// Its command line without options.
    const COMMAND: &'static str;

    /// Seeds that failed once, one a line; after `#` the story.
    const KEPT: &'static str;

    /// Seeds of an ordinary run.
    const SEEDS: u64;

    /// Seeds that found a planted bug before, one bug a line: its name, and the seeds.
    const FOUND: &'static str;

    /// Acts on an option of its own, with the value that follows it where it needs one; `false`
    /// when it has no such option.
    ///
    /// # Errors
    /// A sentence about a value that is missing or wrong.
    fn option(
        &mut self,
        name: &str,
        value: &mut dyn FnMut() -> Result<String, String>,
    ) -> Result<bool, String> {
        let _ = (name, value);
        Ok(false)
    }

    /// Names of the bugs that can be planted.
    fn bugs(&self) -> Vec<&'static str>;

    /// True when stores of what the command line chose keep the rule that this bug breaks.
    fn has_rule_of(&self, bug: usize) -> bool {
        let _ = bug;
        true
    }

    /// The parameters that belong to a seed, with a planted bug or without.
    fn draw(&self, seed: u64, bug: Option<usize>) -> Self::Params;

    /// Parameters that are smaller than these in one respect each.
    fn smaller(&self, params: &Self::Params) -> Vec<Self::Params>;

    /// Runs what `params` say; `loud` prints what happens.
    fn run(&self, params: Self::Params, loud: bool) -> Outcome<Self::Params>;

    /// The coverage marks that an ordinary run must reach.
    fn marks(&self) -> Vec<&'static str>;

    /// What an ordinary run does after its seeds, which reached this, and `--exhaust` does alone;
    /// `false` when it fails.
    fn after_seeds(&self, reach: Option<&Reach>, config: &Config) -> bool {
        let _ = (reach, config);
        true
    }
}

enum Job {
    All,
    Seed(u64),
    Shrink(u64),
    Seeds(Range<u64>),
    Traces(Range<u64>),
    Exhaust,
    Bugs,
}

/// Runs what the arguments ask for.
pub fn run<S: Simulator>(mut simulator: S, arguments: impl Iterator<Item = String>) -> ExitCode {
    let (job, config) = match parse(&mut simulator, arguments) {
        Ok(parsed) => parsed,
        Err(message) => {
            eprintln!("{message}\n\n{}", usage::<S>());
            return ExitCode::from(2);
        }
    };
    let (simulator, bug) = (&simulator, config.bug);
    let well = match job {
        Job::Seed(seed) => replay(&run_seed(simulator, seed, bug, true)),
        Job::Shrink(seed) => {
            let least = shrink(simulator, &run_seed(simulator, seed, bug, false));
            replay(&simulator.run(least.params, true))
        }
        Job::Seeds(seeds) => many(simulator, seeds, &config).0,
        Job::Traces(seeds) => {
            let trace = |seed| run_seed(simulator, seed, bug, false).trace;
            seeds.for_each(|seed| println!("{seed} {:016x}", trace(seed)));
            true
        }
        Job::Exhaust => simulator.after_seeds(None, &config),
        Job::Bugs => planted(simulator, &config),
        Job::All => everything(simulator, &config),
    };
    if well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn usage<S: Simulator>() -> String {
    let (title, own, command) = (S::TITLE, S::OPTIONS, S::COMMAND);
    format!(
        "{title}\n\n{OPTIONS}{own}\nexamples:  {command} --seed 1742        {command} --seeds 0..500"
    )
}

fn parse<S: Simulator>(
    simulator: &mut S,
    mut arguments: impl Iterator<Item = String>,
) -> Result<(Job, Config), String> {
    let (mut job, mut config) = (Job::All, Config::default());
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "--seed" => job = Job::Seed(number(&value()?)?),
            "--shrink" => job = Job::Shrink(number(&value()?)?),
            "--seeds" => job = Job::Seeds(range(&value()?)?),
            "--traces" => job = Job::Traces(range(&value()?)?),
            "--long" => job = Job::Seeds(0..LONG),
            "--exhaust" if S::OPTIONS.contains("--exhaust") => job = Job::Exhaust,
            "--bugs" => job = Job::Bugs,
            "--bug" => config.bug = Some(position("bug", &value()?, &simulator.bugs())?),
            "--threads" => config.threads = number(&value()?)? as usize,
            own if simulator.option(own, &mut value)? => {}
            other => return Err(format!("unknown argument '{other}'")),
        }
    }
    Ok((job, config))
}

/// The index of a name on the command line.
pub(crate) fn position(what: &str, name: &str, of: &[&str]) -> Result<usize, String> {
    let found = of.iter().position(|known| *known == name);
    found.ok_or_else(|| format!("no {what} '{name}': one of {}", of.join(", ")))
}

/// A number on the command line; `_` groups its digits.
fn number(text: &str) -> Result<u64, String> {
    text.replace('_', "").parse().map_err(|_| format!("'{text}' is not a number"))
}

/// A range of seeds on the command line.
fn range(text: &str) -> Result<Range<u64>, String> {
    let ends = text.split_once("..").ok_or(format!("'{text}' is not a range like 0..500"))?;
    Ok(number(ends.0)?..number(ends.1)?)
}

fn replay<P: fmt::Debug>(outcome: &Outcome<P>) -> bool {
    println!("{:#?}", outcome.params);
    print!("{}", outcome.reach);
    println!("trace {:016x}", outcome.trace);
    verdict(outcome)
}

/// Prints a failure; true when there is none.
fn verdict<P>(outcome: &Outcome<P>) -> bool {
    let Some(failure) = &outcome.failure else { return true };
    println!("seed {} fails: {failure}", outcome.seed);
    false
}

/// Kept seeds, the ordinary ones, which must reach every mark, and what comes after them.
fn everything<S: Simulator>(simulator: &S, config: &Config) -> bool {
    let kept = S::KEPT.lines().filter_map(|line| line.split('#').next()?.trim().parse().ok());
    let kept = run_kept(simulator, &kept.collect::<Vec<u64>>(), config);
    let failed = kept.iter().filter(|outcome| !verdict(outcome)).count();
    let (well, mut reach) = many(simulator, 0..S::SEEDS, config);
    kept.iter().for_each(|outcome| reach.merge(&outcome.reach));
    let never: Vec<&str> =
        simulator.marks().into_iter().filter(|mark| reach.count(mark) == 0).collect();
    never.iter().for_each(|mark| println!("never reached: {mark}"));
    let after = simulator.after_seeds(Some(&reach), config);
    failed == 0 && well && never.is_empty() && after
}

fn many<S: Simulator>(simulator: &S, seeds: Range<u64>, config: &Config) -> (bool, Reach) {
    let start = Instant::now();
    let total = seeds.end.saturating_sub(seeds.start);
    let summary = run_seeds(simulator, seeds, config, |done| {
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

fn planted<S: Simulator>(simulator: &S, config: &Config) -> bool {
    let reports =
        bugs(simulator, BUG_SEEDS, config, |report| match (&report.found, &report.without) {
            (None, _) => println!("{:<44} NOT FOUND in {BUG_SEEDS} seeds", report.bug),
            (Some(found), None) => {
                let failure = found.failure.as_ref().map_or(String::new(), ToString::to_string);
                println!("{:<44} seed {:>4}  {failure}", report.bug, found.seed);
            }
            (Some(found), Some(without)) => {
                println!(
                    "{:<44} seed {:>4} fails without the bug too: {without}",
                    report.bug, found.seed
                )
            }
        });
    reports.iter().all(|report| report.found.is_some() && report.without.is_none())
}
