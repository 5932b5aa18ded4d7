//! The archive beside restic and borg: megabytes for each second of processor time and of wall time, and the repository's size.
//!
//! Sources and repositories lie in memory where there is enough of it, so that no disk is measured. A stream has the shares of repeated data that the
//! dedupv1 report gives; trees and disk images are the user's, two versions each.

use std::{
    fs::{self, File},
    io::{BufWriter, Write},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};

use super::{machine_facts, median};
use crate::{
    machine,
    product::{Build, Onefold, path},
    program::{program, run as run_program, spawn},
};

const USAGE: &str = "\
cargo xtask bench archive [--quick] [--stream OLD,NEW] [--tree OLD.tar,NEW.tar] [--image OLD,NEW]
                                                  put and get beside restic and borg";

/// Bytes of a generation of the stream, and for a first look.
const STREAM_BYTES: usize = 384 << 20;
const STREAM_QUICK_BYTES: usize = 64 << 20;

/// Longest that one command may take.
const LIMIT: Duration = Duration::from_secs(600);

/// What an archive holds back beside its data: the reserve for deletions on a full disk, and the space of its log.
const RESERVE_BYTES: u64 = 28 << 20;

/// Two versions of some data.
struct Set {
    name: &'static str,
    versions: [PathBuf; 2],
    /// The tools that are compared on it, and our bars there.
    contests: &'static [Contest],
}

/// A tool of ours and those that it is compared with.
struct Contest {
    ours: Tool,
    /// MB for each CPU second: first version, second, restore, restore with every chunk verified.
    least: [f64; 4],
    /// MB of the repository after both.
    most_mb: f64,
    /// The peers, and how many times as fast as they we must be by wall time.
    peers: &'static [(Tool, f64)],
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Tool {
    Onefold(&'static str),
    Restic,
    Borg(&'static str),
}

const NONE: f64 = 0.0;

const STREAM: &[Contest] = &[Contest {
    ours: Tool::Onefold("none"),
    least: [600.0, 700.0, 1000.0, 700.0],
    most_mb: 298.0,
    peers: &[(Tool::Restic, 3.0), (Tool::Borg("none"), 2.0)],
}];

const TREE: &[Contest] = &[
    Contest { ours: Tool::Onefold("lz4"), least: [300.0, 300.0, NONE, NONE], most_mb: f64::INFINITY, peers: &[(Tool::Borg("lz4"), 2.0)] },
    Contest { ours: Tool::Onefold("zstd"), least: [210.0, 210.0, NONE, NONE], most_mb: 57.0, peers: &[(Tool::Restic, 3.0)] },
];

const IMAGE: &[Contest] = &[
    Contest { ours: Tool::Onefold("lz4"), least: [NONE; 4], most_mb: f64::INFINITY, peers: &[(Tool::Borg("lz4"), 1.3)] },
    Contest { ours: Tool::Onefold("zstd"), least: [NONE; 4], most_mb: f64::INFINITY, peers: &[(Tool::Restic, 2.0)] },
];

/// What one step took.
#[derive(Clone, Copy)]
struct Took {
    wall: f64,
    cpu: f64,
}

/// What a tool did with a set: first version, second, restore, restore verified.
struct Score {
    /// MB for each CPU second.
    cpu: [f64; 4],
    /// MB for each second.
    wall: [f64; 4],
    repository_mb: f64,
}

/// Runs it; `Ok(false)` when a bar is missed.
pub(super) fn run(arguments: &[String]) -> Result<bool> {
    let (mut quick, mut stream, mut tree, mut image) = (false, None, None, None);
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let mut two = || -> Result<[PathBuf; 2]> {
            let (old, new) = rest.next().and_then(|text| text.split_once(',')).with_context(|| format!("{argument} needs OLD,NEW"))?;
            let whole = |name: &str| fs::canonicalize(name).with_context(|| name.to_owned());
            Ok([whole(old)?, whole(new)?])
        };
        match argument.as_str() {
            "--quick" => quick = true,
            "--stream" => stream = Some(two()?),
            "--tree" => tree = Some(two()?),
            "--image" => image = Some(two()?),
            _ => bail!("which?\n\n{USAGE}"),
        }
    }
    let onefold = Onefold::build(Build::Release)?;
    let place = Place::new()?;
    println!("{}", machine_facts(&place.0, &["borg"]));
    println!("restic: {}", first_line("restic", "version"));
    let (bytes, rounds) = if quick { (STREAM_QUICK_BYTES, 1) } else { (STREAM_BYTES, 3) };
    let versions = stream.map_or_else(|| make_stream(&place.0, bytes), Ok)?;
    let mut sets = vec![Set { name: "stream", versions, contests: STREAM }];
    sets.extend(tree.map(|versions| Set { name: "tree", versions, contests: TREE }));
    sets.extend(image.map(|versions| Set { name: "image", versions, contests: IMAGE }));
    let mut reached = true;
    for set in &sets {
        println!("\n{}: {}", set.name, sizes(set)?);
        println!("{:<14} {:>28} {:>28} {:>11}", "", "MB per CPU second", "MB per second", "repository");
        println!(
            "{:<14} {:>6} {:>6} {:>7} {:>6} {:>7} {:>6} {:>7} {:>6} {:>8}",
            "", "first", "second", "restore", "verify", "first", "second", "restore", "verify", "MB"
        );
        for contest in set.contests {
            reached &= hold(&onefold, &place.0, set, contest, rounds, quick)?;
        }
    }
    Ok(reached)
}

/// A directory that goes with us: in memory where there is enough.
struct Place(PathBuf, #[expect(dead_code, reason = "removes it")] crate::cleanup::Guard);

impl Place {
    fn new() -> Result<Place> {
        let memory = Path::new("/dev/shm");
        let parent =
            if machine::free_bytes(memory).is_ok_and(|free| free > 8 << 30) { memory.to_owned() } else { machine::root().join("target") };
        let place = parent.join(format!("onefold-bench-{}", std::process::id()));
        fs::create_dir_all(&place)?;
        let gone = place.clone();
        let guard = crate::cleanup::Guard::new(move || {
            let _ = fs::remove_dir_all(gone);
        });
        Ok(Place(place, guard))
    }
}

fn first_line(name: &str, argument: &str) -> String {
    let mut command = program(name);
    command.arg(argument);
    run_program(command, LIMIT).map_or("not installed".into(), |output| output.lines().next().unwrap_or_default().to_owned())
}

fn sizes(set: &Set) -> Result<String> {
    let mb = |file: &PathBuf| -> Result<f64> { Ok(fs::metadata(file)?.len() as f64 / 1e6) };
    Ok(format!("{:.0} + {:.0} MB", mb(&set.versions[0])?, mb(&set.versions[1])?))
}

/// Ours and its peers on one set; false when a bar is missed.
fn hold(onefold: &Onefold, place: &Path, set: &Set, contest: &Contest, rounds: usize, quick: bool) -> Result<bool> {
    let ours = score(onefold, place, set, contest.ours, rounds)?;
    show(contest.ours, &ours);
    let mut missed = Vec::new();
    for (what, (found, least)) in ["first", "second", "restore", "verified restore"].iter().zip(ours.cpu.iter().zip(contest.least)) {
        if *found < least {
            missed.push(format!("{what} {found:.0} MB per CPU second, asked {least:.0}"));
        }
    }
    if ours.repository_mb > contest.most_mb {
        missed.push(format!("repository {:.1} MB, asked {:.0}", ours.repository_mb, contest.most_mb));
    }
    for &(peer, times) in contest.peers {
        let name = if peer == Tool::Restic { "restic" } else { "borg" };
        if machine::find(name).is_none() {
            println!("{name:<14} NOT COMPARED: Debian's packages restic and borgbackup have it");
            continue;
        }
        let theirs = score(onefold, place, set, peer, rounds)?;
        show(peer, &theirs);
        for (what, n) in [("first", 0), ("second", 1), ("restore", 2)] {
            let ratio = ours.wall[n] / theirs.wall[n];
            if ratio < times {
                missed.push(format!("{what} {ratio:.1} times as fast as {name}, asked {times}"));
            }
        }
    }
    // A short run measures too little to be judged.
    if !quick {
        missed.iter().for_each(|what| println!("    MISSED: {what}"));
    }
    Ok(quick || missed.is_empty())
}

fn show(tool: Tool, score: &Score) {
    let name = match tool {
        Tool::Onefold(compression) => format!("onefold {compression}"),
        Tool::Restic => "restic".to_owned(),
        Tool::Borg(compression) => format!("borg {compression}"),
    };
    let number = |n: f64| if n.is_finite() { format!("{n:.0}") } else { "-".into() };
    let [c, w] = [score.cpu.map(number), score.wall.map(number)];
    println!(
        "{name:<14} {:>6} {:>6} {:>7} {:>6} {:>7} {:>6} {:>7} {:>6} {:>8.1}",
        c[0], c[1], c[2], c[3], w[0], w[1], w[2], w[3], score.repository_mb
    );
}

/// Medians of some rounds.
fn score(onefold: &Onefold, place: &Path, set: &Set, tool: Tool, rounds: usize) -> Result<Score> {
    let repository = place.join("repository");
    let (mut cpu, mut wall): ([Vec<f64>; 4], [Vec<f64>; 4]) = Default::default();
    let mut sizes = Vec::new();
    for _ in 0..rounds {
        let _ = fs::remove_dir_all(&repository);
        took(tool.create(onefold, &repository))?;
        for (n, version) in set.versions.iter().enumerate() {
            let spent = took(tool.put(onefold, &repository, version, n))?;
            record(&mut cpu[n], &mut wall[n], version, spent)?;
        }
        sizes.push(tool.stored(&repository)? as f64 / 1e6);
        let last = &set.versions[1];
        record(&mut cpu[2], &mut wall[2], last, took(tool.get(onefold, &repository, last, false))?)?;
        if let Tool::Onefold(_) = tool {
            record(&mut cpu[3], &mut wall[3], last, took(tool.get(onefold, &repository, last, true))?)?;
        }
    }
    let _ = fs::remove_dir_all(&repository);
    Ok(Score { cpu: cpu.map(|all| median(&all)), wall: wall.map(|all| median(&all)), repository_mb: median(&sizes) })
}

fn record(cpu: &mut Vec<f64>, wall: &mut Vec<f64>, version: &Path, spent: Took) -> Result<()> {
    let mb = fs::metadata(version)?.len() as f64 / 1e6;
    cpu.push(mb / spent.cpu);
    wall.push(mb / spent.wall);
    Ok(())
}

impl Tool {
    fn create(self, onefold: &Onefold, repository: &Path) -> Command {
        match self {
            Tool::Onefold(compression) => onefold.command(["archive", "create", path(repository), "--compress", compression]),
            Tool::Restic => restic(repository, &["init"]),
            Tool::Borg(_) => borg(&["init", "--encryption", "none", path(repository)]),
        }
    }

    fn put(self, onefold: &Onefold, repository: &Path, version: &Path, n: usize) -> Command {
        let name = format!("v{n}");
        match self {
            Tool::Onefold(_) => onefold.command(["put", path(repository), &name, path(version)]),
            Tool::Restic => restic(repository, &["backup", path(version)]),
            Tool::Borg("none") => {
                // Chunks of 8 KiB, as ours.
                borg(&[
                    "create",
                    "--compression",
                    "none",
                    "--chunker-params",
                    "11,16,13,4095",
                    &format!("{}::{name}", path(repository)),
                    path(version),
                ])
            }
            Tool::Borg(compression) => {
                borg(&["create", "--compression", compression, &format!("{}::{name}", path(repository)), path(version)])
            }
        }
    }

    fn get(self, onefold: &Onefold, repository: &Path, version: &Path, verify: bool) -> Command {
        match self {
            Tool::Onefold(_) => {
                let mut command = onefold.command(["get", path(repository), "v1"]);
                command.args(verify.then_some("--verify"));
                command
            }
            Tool::Restic => restic(repository, &["dump", "latest", path(version)]),
            Tool::Borg(_) => borg(&["extract", "--stdout", &format!("{}::v1", path(repository))]),
        }
    }

    /// Bytes that the repository takes, without a reserve.
    fn stored(self, repository: &Path) -> Result<u64> {
        let all = taken(repository)?;
        Ok(if let Tool::Onefold(_) = self { all.saturating_sub(RESERVE_BYTES) } else { all })
    }
}

/// Bytes of the file system below a directory.
fn taken(directory: &Path) -> Result<u64> {
    let mut all = 0;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        all += if metadata.is_dir() { taken(&entry.path())? } else { metadata.blocks() * 512 };
    }
    Ok(all)
}

fn restic(repository: &Path, arguments: &[&str]) -> Command {
    let mut command = program("restic");
    command.env("RESTIC_PASSWORD", "bench").args(["--quiet", "--no-cache", "--repo", path(repository)]).args(arguments);
    command
}

fn borg(arguments: &[&str]) -> Command {
    let mut command = program("borg");
    command.env("BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK", "yes").env("BORG_RELOCATED_REPO_ACCESS_IS_OK", "yes").args(arguments);
    command
}

/// Runs a command to its end; what it prints on standard output is read by nobody.
fn took(mut command: Command) -> Result<Took> {
    let (before, begun) = (children_cpu()?, Instant::now());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let what = crate::program::describe(&command);
    let status = spawn(&mut command)?.wait(LIMIT)?;
    ensure!(status.is_some_and(|status| status.success()), "{what} failed");
    Ok(Took { wall: begun.elapsed().as_secs_f64(), cpu: children_cpu()? - before })
}

/// Seconds of processor time of all children that ended.
fn children_cpu() -> Result<f64> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    // Behind the name in parentheses: user and system time of children are the 14th and 15th.
    let fields: Vec<&str> = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
    let ticks = |n: usize| fields.get(n).and_then(|field| field.parse::<f64>().ok()).context("/proc/self/stat");
    Ok((ticks(13)? + ticks(14)?) / rustix::param::clock_ticks_per_second() as f64)
}

/// Two generations of a stream: of the first 32.5 % repeat what came before in it, of the second 97.6 % are of the first (dedupv1, section 4.1).
/// The lengths of the runs are a choice: the report's came from a trace that is not public.
fn make_stream(place: &Path, bytes: usize) -> Result<[PathBuf; 2]> {
    const RUN: f64 = 1048576.0;
    const UNIQUE_RUN: f64 = 32768.0;
    const INTERNAL: f64 = 0.325;
    const TEMPORAL: f64 = 0.976;
    let mut noise = Noise(976);
    let mut first: Vec<u8> = Vec::with_capacity(bytes + (64 << 20));
    while first.len() < bytes {
        let n = noise.run(RUN);
        noise.fill(&mut first, n);
        let n = noise.run(RUN * INTERNAL / (1.0 - INTERNAL));
        if n < first.len() {
            let from = noise.below(first.len() - n);
            first.extend_from_within(from..from + n);
        }
    }
    first.truncate(bytes);
    let (mut second, mut at) = (Vec::with_capacity(bytes + (64 << 20)), 0);
    while at < bytes {
        let n = noise.run(UNIQUE_RUN * TEMPORAL / (1.0 - TEMPORAL));
        second.extend_from_slice(&first[at..bytes.min(at + n)]);
        let fresh = noise.run(UNIQUE_RUN);
        noise.fill(&mut second, fresh);
        at += n + noise.below(2 * fresh + 1);
    }
    second.truncate(bytes);
    let files = [place.join("stream-1"), place.join("stream-2")];
    for (file, data) in files.iter().zip([first, second]) {
        let mut out = BufWriter::new(File::create(file)?);
        out.write_all(&data)?;
        out.flush()?;
    }
    Ok(files)
}

/// Numbers by chance, the same each time.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// An exponential length.
    fn run(&mut self, mean: f64) -> usize {
        let part = ((self.next() >> 11) as f64 + 1.0) / (1u64 << 53) as f64;
        (-part.ln() * mean) as usize + 1
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    fn fill(&mut self, into: &mut Vec<u8>, bytes: usize) {
        let end = into.len() + bytes;
        while into.len() < end {
            into.extend_from_slice(&self.next().to_le_bytes());
        }
        into.truncate(end);
    }
}
