//! Runs targets for a time, with mutated examples: what CI does, without any other tool.
//!
//! A failing input is printed as the seed and number that make it, and written to a file; `--file`
//! runs it again.

use std::{
    collections::BTreeMap,
    panic::{self, catch_unwind},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::{
    TARGETS, Target,
    mutator::{Random, mutate},
    reach::{self, Reached},
};

const USAGE: &str = "onefold-fuzz [TARGET…] [--seconds N] [--seed N] [--file PATH] [--grow]

Mutates good examples and the corpus, and gives them to each target for N seconds (10). With \
                     --file, gives it that file once.
With --grow, keeps inputs in the corpus that a target refused with a sentence of its own.
The last seconds of a run are its own: `--seed` repeats what an earlier run tried.";

/// An input that takes longer hangs.
const HANG: Duration = Duration::from_secs(10);

/// Most memory that a target may take: more is what a few bytes ask for.
const MEMORY: u64 = 512 << 20;

/// Examples are told from inputs by numbers from here on.
const EXAMPLES: u64 = 1 << 62;

/// Inputs that are kept for further mutation.
const KEPT: usize = 64;

/// Files of a target in the corpus, at most, and bytes of one that is added.
const CORPUS_FILES: usize = 64;
const CORPUS_BYTES: usize = 4096;

/// Runs what the arguments ask for.
pub fn main(mut arguments: impl Iterator<Item = String>) -> ExitCode {
    let (mut names, mut seconds, mut seed, mut file, mut grow) = (Vec::new(), 10, 1, None, false);
    while let Some(argument) = arguments.next() {
        let mut number = || arguments.next().and_then(|value| value.parse().ok());
        match argument.as_str() {
            "--seconds" => seconds = number().unwrap_or(seconds),
            "--seed" => seed = number().unwrap_or(seed),
            "--file" => file = arguments.next(),
            "--grow" => grow = true,
            name if TARGETS.iter().any(|target| target.name == name) => names.push(argument),
            other => {
                let known: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
                eprintln!(
                    "there is no target '{other}'; there are {}\n\n{USAGE}",
                    known.join(", ")
                );
                return ExitCode::from(2);
            }
        }
    }
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if !onefold_backend::embedded::is_guarded() {
            usual(info);
        }
    }));
    let mut well = true;
    for target in TARGETS
        .iter()
        .filter(|target| names.is_empty() || names.iter().any(|name| name == target.name))
    {
        well &= match &file {
            Some(file) => again(target, file),
            None => fuzz(target, seed, Duration::from_secs(seconds), grow),
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

/// The corpus of a target: inputs that failed once, or that reach a place of their own.
fn corpus_folder(target: &Target) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name)
}

/// The files of the corpus, in the order of their names.
fn corpus(target: &Target) -> Vec<Vec<u8>> {
    let files = std::fs::read_dir(corpus_folder(target)).into_iter().flatten().flatten();
    let files: BTreeMap<_, _> = files
        .filter_map(|file| Some((file.file_name(), std::fs::read(file.path()).ok()?)))
        .collect();
    files.into_values().collect()
}

/// Keeps an input in the corpus, under its checksum.
fn keep(target: &Target, input: &[u8]) -> std::io::Result<()> {
    let folder = corpus_folder(target);
    std::fs::create_dir_all(&folder)?;
    if input.len() > CORPUS_BYTES || std::fs::read_dir(&folder)?.count() >= CORPUS_FILES {
        return Ok(());
    }
    std::fs::write(folder.join(format!("{:016x}", onefold_core::checksum::fast(0, input))), input)
}

/// Runs one target for a time; true when nothing was found.
fn fuzz(target: &Target, seed: u64, time: Duration, grow: bool) -> bool {
    let mut examples = (target.examples)();
    examples.extend(corpus(target));
    let (mut corpus, examples) = (examples.clone(), examples.len());
    reach::taken();
    // The most that was in use is counted from here on.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
    let watch = Watch::start(target.name, seed);
    for (n, example) in (EXAMPLES..).zip(&corpus) {
        watch.busy_with(n, example);
        (target.body)(example);
    }
    let begun = Instant::now();
    let mut runs = 0;
    while begun.elapsed() < time {
        let input = input(&mut corpus, examples, seed, runs);
        watch.busy_with(runs, &input);
        let before = reach::sentences();
        if catch_unwind(|| (target.body)(&input)).is_err() {
            println!(
                "{}: input {runs} of seed {seed} fails{}",
                target.name,
                kept_as(target.name, seed, runs, &input)
            );
            return false;
        }
        if grow && reach::sentences() > before && keep(target, &input).is_err() {
            println!("{}: the corpus can't be written", target.name);
            return false;
        }
        runs += 1;
    }
    watch.done();
    let memory = most_memory();
    if memory > MEMORY {
        println!("{}: it took {} MiB, of {} at most", target.name, memory >> 20, MEMORY >> 20);
        return false;
    }
    let reached = reach::taken();
    println!(
        "{}: {runs} inputs in {:.1} s{}",
        target.name,
        begun.elapsed().as_secs_f64(),
        told(&reached)
    );
    if reached.good == 0 {
        println!("{}: no input got past the header", target.name);
        return false;
    }
    if runs == 0 {
        println!("{}: no input ran", target.name);
        return false;
    }
    true
}

/// The most memory in bytes that this process had in use; 0 where the system does not tell.
fn most_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

/// How far the inputs came, in a few words.
fn told(reached: &Reached) -> String {
    let kinds: Vec<String> =
        reached.refused.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
    format!(
        "; accepted {}, refused [{}] with {} different sentences",
        reached.good,
        kinds.join(", "),
        reached.sentences.len()
    )
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

/// Writes an input to a file of its own, and says where.
fn kept_as(name: &str, seed: u64, run: u64, input: &[u8]) -> String {
    let file = std::env::temp_dir().join(format!("onefold-fuzz-{name}-{seed}-{run}"));
    std::fs::write(&file, input)
        .map_or_else(|_| String::new(), |()| format!("; it is in {}", file.display()))
}

/// The input that runs, by its number; the largest number when the target is done.
type Running = Arc<Mutex<(u64, Vec<u8>)>>;

/// Ends the process when an input hangs, and says which.
struct Watch {
    running: Running,
}

impl Watch {
    fn start(name: &'static str, seed: u64) -> Watch {
        let running = Running::default();
        let watched = running.clone();
        thread::spawn(move || {
            let (mut last, mut since) = (0, Instant::now());
            loop {
                thread::sleep(Duration::from_millis(200));
                let (now, input) = &*watched.lock();
                match *now {
                    u64::MAX => return,
                    now if now != last => (last, since) = (now, Instant::now()),
                    now if since.elapsed() > HANG => {
                        println!(
                            "{name}: input {now} of seed {seed} takes longer than {} s{}",
                            HANG.as_secs(),
                            kept_as(name, seed, now, input)
                        );
                        std::process::exit(1);
                    }
                    _ => {}
                }
            }
        });
        Watch { running }
    }

    fn busy_with(&self, run: u64, input: &[u8]) {
        let mut running = self.running.lock();
        running.0 = run;
        running.1.clear();
        running.1.extend_from_slice(input);
    }

    fn done(&self) {
        self.running.lock().0 = u64::MAX;
    }
}
