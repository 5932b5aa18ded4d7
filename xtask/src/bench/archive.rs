//! The archive beside restic, rustic and borg: megabytes for each second of processor time and of
//! wall time, and what the repository takes.
//!
//! Sources and repositories lie in memory where there is enough of it, so that no disk is measured.
//! All tools take turns in each round. Every restore verifies what it reads: restic, rustic and
//! borg do so by themselves, ours is `get --verify`; ours without it is shown beside, and judged by
//! nobody. A repository counts with all that its files take, also what ours holds in reserve.

pub(super) mod data;
mod tool;

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail};

use self::tool::{Ours, Tool};
use super::{
    cost::{self, Cost, Place, taken},
    machine_facts, median,
};
use crate::{
    product::{Build, Onefold},
    program::{program, run as run_program},
};

const USAGE: &str = "cargo xtask bench archive [--quick] [--only stream|tree|image] [--stream \
                     OLD,NEW] [--tree OLD.tar,NEW.tar] [--image OLD,NEW]
                                                  put and get beside restic, rustic and borg";

/// Rounds, of which medians are taken.
const ROUNDS: usize = 5;

/// Longest that one command may take.
const LIMIT: Duration = Duration::from_secs(600);

/// Two versions of some data.
struct Set {
    name: &'static str,
    versions: [PathBuf; 2],
    /// Tools of ours, and with whom each is compared.
    contests: &'static [Contest],
}

/// A tool of ours and those that it is compared with.
struct Contest {
    ours: Tool,
    /// MB for each CPU second that we must reach: first version, second, restore, restore with
    /// every chunk verified.
    least: [f64; 4],
    /// The peers, and how many times as fast as they we must be by wall time: first version,
    /// second, verified restore.
    peers: &'static [(Tool, f64)],
}

const NONE: f64 = 0.0;

/// How it is set unless told: zstd at level 1, chunks of 8 KiB.
const ZSTD: Ours = Ours { compress: "zstd", level: "1", chunking: "fastcdc:8K" };

/// As near to restic as it gets: its zstd level, and our largest chunks; its own are 1 MiB.
const COARSE: Ours = Ours { compress: "zstd", level: "3", chunking: "fastcdc:256K" };

const LZ4: Ours = Ours { compress: "lz4", ..ZSTD };
const PLAIN: Ours = Ours { compress: "none", ..ZSTD };

/// Borg's default chunks are 2 MiB; with these parameters they are 8 KiB, as ours.
const FINE: &str = "11,16,13,4095";
const ITS_OWN: &str = "buzhash,19,23,21,4095";

const STREAM: &[Contest] = &[Contest {
    ours: Tool::Onefold(PLAIN),
    least: [600.0, 700.0, 1000.0, 700.0],
    peers: &[
        (Tool::Restic { compression: "off" }, 3.0),
        (Tool::Rustic { level: "0" }, NONE),
        (Tool::Borg { compression: "none", chunks: FINE }, 2.0),
        (Tool::Borg { compression: "none", chunks: ITS_OWN }, NONE),
    ],
}];

const TREE: &[Contest] = &[
    Contest {
        ours: Tool::Onefold(ZSTD),
        least: [210.0, 210.0, NONE, NONE],
        peers: &[(Tool::Restic { compression: "auto" }, 3.0), (Tool::Rustic { level: "3" }, NONE)],
    },
    Contest { ours: Tool::Onefold(COARSE), least: [NONE; 4], peers: &[] },
    Contest {
        ours: Tool::Onefold(LZ4),
        least: [300.0, 300.0, NONE, NONE],
        peers: &[
            (Tool::Borg { compression: "lz4", chunks: ITS_OWN }, 2.0),
            (Tool::Borg { compression: "lz4", chunks: FINE }, NONE),
        ],
    },
];

const IMAGE: &[Contest] = &[
    Contest {
        ours: Tool::Onefold(ZSTD),
        least: [NONE; 4],
        peers: &[(Tool::Restic { compression: "auto" }, 2.0), (Tool::Rustic { level: "3" }, NONE)],
    },
    Contest { ours: Tool::Onefold(COARSE), least: [NONE; 4], peers: &[] },
    Contest {
        ours: Tool::Onefold(LZ4),
        least: [NONE; 4],
        peers: &[
            (Tool::Borg { compression: "lz4", chunks: ITS_OWN }, 1.3),
            (Tool::Borg { compression: "lz4", chunks: FINE }, NONE),
        ],
    },
];

/// The figures of a tool with a set, for each round: first version, second, restore, verified
/// restore.
#[derive(Default)]
struct Score {
    /// MB for each CPU second.
    cpu: [Vec<f64>; 4],
    /// MB for each second.
    wall: [Vec<f64>; 4],
    repository_mb: Vec<f64>,
}

/// The command line.
#[derive(Default)]
struct Wanted {
    quick: bool,
    only: Option<String>,
    stream: Option<[PathBuf; 2]>,
    tree: Option<[PathBuf; 2]>,
    image: Option<[PathBuf; 2]>,
}

/// Runs it; `Ok(false)` when a bar is missed.
pub(super) fn run(arguments: &[String]) -> Result<bool> {
    let wanted = Wanted::parse(arguments)?;
    let onefold = Onefold::build(Build::Release)?;
    let place = Place::new(8 << 30)?;
    println!("{}", machine_facts(&place.path, &["borg", "rustic"]));
    println!("restic: {}", first_line("restic", "version"));
    let mut reached = true;
    for set in wanted.sets(&place.path)? {
        println!("\n{}: {}", set.name, sizes(&set)?);
        println!(
            "{:<34} {:>28} {:>29} {:>11}",
            "", "MB per CPU second", "MB per second", "repository"
        );
        println!(
            "{:<34} {:>6} {:>6} {:>7} {:>6} {:>7} {:>6} {:>7} {:>6} {:>8}",
            "",
            "first",
            "second",
            "restore",
            "verify",
            "first",
            "second",
            "restore",
            "verify",
            "MB"
        );
        reached &= hold(&onefold, &place.path, &set, wanted.quick)?;
        set.versions
            .iter()
            .filter(|version| version.starts_with(&place.path))
            .try_for_each(fs::remove_file)?;
    }
    Ok(reached)
}

impl Wanted {
    fn parse(arguments: &[String]) -> Result<Wanted> {
        let mut wanted = Wanted::default();
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            let mut next = || rest.next().with_context(|| format!("{argument} needs a value"));
            match argument.as_str() {
                "--quick" => wanted.quick = true,
                "--only" => wanted.only = Some(next()?.clone()),
                "--stream" => wanted.stream = Some(two(next()?)?),
                "--tree" => wanted.tree = Some(two(next()?)?),
                "--image" => wanted.image = Some(two(next()?)?),
                _ => bail!("which?\n\n{USAGE}"),
            }
        }
        Ok(wanted)
    }

    /// The sets that are wanted; what is not given is made. A short run makes the stream alone.
    fn sets(&self, place: &Path) -> Result<Vec<Set>> {
        type Make = fn(&Path, bool) -> Result<[PathBuf; 2]>;
        let all: [(_, _, _, Make); 3] = [
            ("stream", &self.stream, STREAM, data::stream),
            ("tree", &self.tree, TREE, data::tree),
            ("image", &self.image, IMAGE, data::image),
        ];
        let mut sets = Vec::new();
        for (name, given, contests, make) in all {
            let unasked = given.is_some() || !self.quick || name == "stream";
            if self.only.as_ref().map_or(unasked, |only| only == name) {
                let versions = given.clone().map_or_else(|| make(place, self.quick), Ok)?;
                sets.push(Set { name, versions, contests });
            }
        }
        Ok(sets)
    }
}

/// Two files as OLD,NEW.
fn two(text: &str) -> Result<[PathBuf; 2]> {
    let (old, new) = text.split_once(',').with_context(|| format!("'{text}' is not OLD,NEW"))?;
    let whole = |name: &str| fs::canonicalize(name).with_context(|| name.to_owned());
    Ok([whole(old)?, whole(new)?])
}

fn first_line(name: &str, argument: &str) -> String {
    let mut command = program(name);
    command.arg(argument);
    run_program(command, LIMIT).map_or("not installed".into(), |output| {
        output.lines().next().unwrap_or_default().to_owned()
    })
}

fn sizes(set: &Set) -> Result<String> {
    let mb = |file: &PathBuf| -> Result<f64> { Ok(fs::metadata(file)?.len() as f64 / 1e6) };
    Ok(format!("{:.0} + {:.0} MB", mb(&set.versions[0])?, mb(&set.versions[1])?))
}

/// All tools on one set, in turns; false when a bar is missed.
fn hold(onefold: &Onefold, place: &Path, set: &Set, quick: bool) -> Result<bool> {
    let mut tools: Vec<(Tool, Score)> = Vec::new();
    for tool in set.contests.iter().flat_map(|contest| {
        std::iter::once(contest.ours).chain(contest.peers.iter().map(|(peer, _)| *peer))
    }) {
        if tool.is_here() {
            tools.push((tool, Score::default()));
        } else {
            println!("{:<34} NOT COMPARED: {}", tool.to_string(), tool.whence());
        }
    }
    for round in 0..if quick { 1 } else { ROUNDS } {
        let first = round % tools.len();
        tools.rotate_left(first);
        for (tool, score) in &mut tools {
            score.add(onefold, place, set, *tool)?;
        }
        tools.rotate_right(first);
    }
    tools.iter().for_each(|(tool, score)| score.show(*tool));
    let score_of =
        |tool: Tool| tools.iter().find(|(other, _)| *other == tool).map(|(_, score)| score);
    let missed: Vec<String> =
        set.contests.iter().flat_map(|contest| contest.missed(&score_of)).collect();
    // A short run measures too little to be judged.
    if !quick {
        missed.iter().for_each(|what| println!("    MISSED: {what}"));
    }
    Ok(quick || missed.is_empty())
}

impl Contest {
    /// The bars that are missed, in words.
    fn missed<'a>(&self, score_of: &impl Fn(Tool) -> Option<&'a Score>) -> Vec<String> {
        let Some(ours) = score_of(self.ours) else { return Vec::new() };
        let mut missed = Vec::new();
        for (n, what) in ["first", "second", "restore", "verified restore"].iter().enumerate() {
            let (found, least) = (median(&ours.cpu[n]), self.least[n]);
            if found < least {
                missed.push(format!(
                    "{}: {what} {found:.0} MB per CPU second, asked {least:.0}",
                    self.ours
                ));
            }
        }
        for (peer, times) in self.peers {
            let Some(theirs) = score_of(*peer) else { continue };
            for (what, n) in [("first", 0), ("second", 1), ("verified restore", 3)] {
                let ratio = median(&ours.wall[n]) / median(&theirs.wall[n]);
                if ratio < *times {
                    missed.push(format!(
                        "{}: {what} {ratio:.1} times as fast as {peer}, asked {times}",
                        self.ours
                    ));
                }
            }
        }
        missed
    }
}

impl Score {
    /// One round.
    fn add(&mut self, onefold: &Onefold, place: &Path, set: &Set, tool: Tool) -> Result<()> {
        let repository = place.join("repository");
        let _ = fs::remove_dir_all(&repository);
        cost::of(tool.create(onefold, &repository), LIMIT)?;
        for (n, version) in set.versions.iter().enumerate() {
            let spent = cost::of(tool.put(onefold, &repository, version, n), LIMIT)?;
            self.record(n, version, spent)?;
        }
        self.repository_mb.push(taken(&repository)? as f64 / 1e6);
        let last = &set.versions[1];
        if let Tool::Onefold(_) = tool {
            self.record(2, last, cost::of(tool.get(onefold, &repository, last, false), LIMIT)?)?;
        }
        self.record(3, last, cost::of(tool.get(onefold, &repository, last, true), LIMIT)?)?;
        fs::remove_dir_all(&repository).context("removing the repository")
    }

    fn record(&mut self, n: usize, version: &Path, spent: Cost) -> Result<()> {
        let mb = fs::metadata(version)?.len() as f64 / 1e6;
        self.cpu[n].push(mb / spent.cpu);
        self.wall[n].push(mb / spent.wall);
        Ok(())
    }

    fn show(&self, tool: Tool) {
        let number = |all: &Vec<f64>| {
            if all.is_empty() { "-".into() } else { format!("{:.0}", median(all)) }
        };
        let ([c, w], mb) = (
            [self.cpu.each_ref().map(number), self.wall.each_ref().map(number)],
            median(&self.repository_mb),
        );
        let name = tool.to_string();
        println!(
            "{name:<34} {:>6} {:>6} {:>7} {:>6} {:>7} {:>6} {:>7} {:>6} {mb:>8.1}",
            c[0], c[1], c[2], c[3], w[0], w[1], w[2], w[3]
        );
    }
}
