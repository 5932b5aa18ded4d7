//! Runs targets for a time, with mutated examples: what CI does, without any other tool.
//!
//! A failing input is printed as the seed and number that make it, and written to a file; `--file` runs it again.

use std::{
    panic::catch_unwind,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use crate::{
    TARGETS, Target,
    mutator::{Random, mutate},
    reach::{self, Reached},
};

const USAGE: &str = "\
onefold-fuzz [TARGET…] [--seconds N] [--seed N] [--file PATH]

Mutates good examples and gives them to each target for N seconds (10). With --file, gives it that file once.
The last seconds of a run are its own: `--seed` repeats what an earlier run tried.";

/// An input that takes longer hangs.
const HANG: Duration = Duration::from_secs(10);

/// Examples are told from inputs by numbers from here on.
const EXAMPLES: u64 = 1 << 62;

/// Inputs that are kept for further mutation.
const KEPT: usize = 64;

/// Runs what the arguments ask for.
pub fn main(mut arguments: impl Iterator<Item = String>) -> ExitCode {
    let (mut names, mut seconds, mut seed, mut file) = (Vec::new(), 10, 1, None);
    while let Some(argument) = arguments.next() {
        let mut number = || arguments.next().and_then(|value| value.parse().ok());
        match argument.as_str() {
            "--seconds" => seconds = number().unwrap_or(seconds),
            "--seed" => seed = number().unwrap_or(seed),
            "--file" => file = arguments.next(),
            name if TARGETS.iter().any(|target| target.name == name) => names.push(argument),
            other => {
                let known: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
                eprintln!("there is no target '{other}'; there are {}\n\n{USAGE}", known.join(", "));
                return ExitCode::from(2);
            }
        }
    }
    let mut well = true;
    for target in TARGETS.iter().filter(|target| names.is_empty() || names.iter().any(|name| name == target.name)) {
        well &= match &file {
            Some(file) => again(target, file),
            None => fuzz(target, seed, Duration::from_secs(seconds)),
        };
    }
    if well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn again(target: &Target, file: &str) -> bool {
    match std::fs::read(file) {
        Ok(input) => catch_unwind(|| (target.body)(&input)).is_ok(),
        Err(error) => {
            eprintln!("{file}: {error}");
            false
        }
    }
}

/// Runs one target for a time; true when nothing was found.
fn fuzz(target: &Target, seed: u64, time: Duration) -> bool {
    let mut corpus = (target.examples)();
    let examples = corpus.len();
    reach::taken();
    let watch = Watch::start(target.name, seed);
    for (n, example) in (EXAMPLES..).zip(&corpus) {
        watch.busy_with(n);
        (target.body)(example);
    }
    let begun = Instant::now();
    let mut runs = 0;
    while begun.elapsed() < time {
        let input = input(&mut corpus, examples, seed, runs);
        watch.busy_with(runs);
        if catch_unwind(|| (target.body)(&input)).is_err() {
            let file = std::env::temp_dir().join(format!("onefold-fuzz-{}-{seed}-{runs}", target.name));
            let written = std::fs::write(&file, &input).is_ok();
            println!(
                "{}: input {runs} of seed {seed} fails{}",
                target.name,
                if written { format!("; it is in {}", file.display()) } else { String::new() }
            );
            return false;
        }
        runs += 1;
    }
    watch.done();
    let reached = reach::taken();
    println!("{}: {runs} inputs in {:.1} s{}", target.name, begun.elapsed().as_secs_f64(), told(&reached));
    if reached.good == 0 && !reached.refused.is_empty() {
        println!("{}: no input got past the header", target.name);
        return false;
    }
    if runs == 0 {
        println!("{}: no input ran", target.name);
        return false;
    }
    true
}

/// How far the inputs came, in a few words; nothing for targets that do not tell.
fn told(reached: &Reached) -> String {
    if *reached == Reached::default() {
        return String::new();
    }
    let kinds: Vec<String> = reached.refused.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
    format!("; accepted {}, refused [{}] with {} different sentences", reached.good, kinds.join(", "), reached.sentences.len())
}

/// Input number `run` of a seed. The corpus drifts, also by the seed alone.
fn input(corpus: &mut Vec<Vec<u8>>, examples: usize, seed: u64, run: u64) -> Vec<u8> {
    let mut random = Random::new(seed ^ run.wrapping_mul(0xd6e8_feb8_6659_fd93));
    let mut input = corpus[random.below(corpus.len())].clone();
    let other = corpus[random.below(corpus.len())].clone();
    mutate(&mut random, &mut input, &other);
    if random.below(16) == 0 {
        if corpus.len() < examples + KEPT {
            corpus.push(input.clone());
        } else {
            let at = examples + random.below(KEPT);
            corpus[at].clone_from(&input);
        }
    }
    input
}

/// Ends the process when an input hangs, and says which.
struct Watch {
    run: Arc<AtomicU64>,
}

impl Watch {
    fn start(name: &'static str, seed: u64) -> Watch {
        let run = Arc::new(AtomicU64::new(0));
        let watched = run.clone();
        thread::spawn(move || {
            let (mut last, mut since) = (0, Instant::now());
            loop {
                thread::sleep(Duration::from_millis(200));
                let now = watched.load(Relaxed);
                if now == u64::MAX {
                    return;
                }
                if now != last {
                    (last, since) = (now, Instant::now());
                } else if since.elapsed() > HANG {
                    println!("{name}: input {now} of seed {seed} takes longer than {} s", HANG.as_secs());
                    std::process::exit(1);
                }
            }
        });
        Watch { run }
    }

    fn busy_with(&self, run: u64) {
        self.run.store(run, Relaxed);
    }

    fn done(&self) {
        self.run.store(u64::MAX, Relaxed);
    }
}
