//! `cargo xtask soak`: everything that clients and operators do to a server, at full size and by
//! chance, and `check` in the end.
//!
//! One large volume has a model: what each of its blocks must hold. Kills come behind a flush, so
//! that the model is exact. Other volumes are made, renamed, resized, given a file system and
//! deleted beside it.

mod model;
mod site;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use self::{
    model::{BLOCK, Model},
    site::{Engine, Site},
};
use crate::{machine, nbd::Client};

const USAGE: &str = "cargo xtask soak [block|archive|cluster] [--minutes N] [--seed N]";

/// Minutes for each engine.
const MINUTES: u64 = 20;

/// Requests of a burst.
const BURST: u64 = 256;

/// Blocks of a write, at most.
const WRITE_BLOCKS: u64 = 64;

/// Runs it; `Ok(false)` when something was wrong.
pub(crate) fn run(arguments: &[String]) -> Result<bool> {
    let (mut engines, mut minutes, mut seed) = (Vec::new(), MINUTES, 1);
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let mut number = || {
            rest.next()
                .and_then(|text| text.parse::<u64>().ok())
                .with_context(|| format!("{argument} needs a number"))
        };
        match argument.as_str() {
            "--minutes" => minutes = number()?,
            "--seed" => seed = number()?,
            name => {
                engines.push(Engine::named(name).with_context(|| format!("'{name}'?\n\n{USAGE}"))?)
            }
        }
    }
    if engines.is_empty() {
        engines.extend(Engine::ALL);
    }
    let mut well = true;
    for engine in engines {
        let begun = Instant::now();
        let result =
            Soak::new(engine, seed).and_then(|soak| soak.run(Duration::from_secs(minutes * 60)));
        match result {
            Ok(said) => println!(
                "{}: {said}, {} s, seed {seed}: nothing wrong",
                engine.name(),
                begun.elapsed().as_secs()
            ),
            Err(error) => {
                println!(
                    "{}: FAILED after {} s, seed {seed}: {error:#}",
                    engine.name(),
                    begun.elapsed().as_secs()
                );
                well = false;
            }
        }
    }
    Ok(well)
}

/// The next thing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    Write,
    Checkerboard,
    TrimInPieces,
    TrimMuch,
    Zeroes,
    Flush,
    Read,
    Volumes,
    FileSystem,
    Kill,
    Restart,
    Status,
}

const VERBS: [(Verb, u64); 12] = [
    (Verb::Write, 60),
    (Verb::Checkerboard, 15),
    (Verb::TrimInPieces, 12),
    (Verb::TrimMuch, 3),
    (Verb::Zeroes, 8),
    (Verb::Flush, 15),
    (Verb::Read, 40),
    (Verb::Volumes, 4),
    (Verb::FileSystem, 1),
    (Verb::Kill, 1),
    (Verb::Restart, 1),
    (Verb::Status, 4),
];

struct Soak {
    site: Site,
    client: Client,
    model: Model,
    /// Requests that clients sent.
    requests: u64,
    done: [u64; VERBS.len()],
}

impl Soak {
    fn new(engine: Engine, seed: u64) -> Result<Soak> {
        let site = Site::new(engine)?;
        let client = site.connect()?;
        let model = Model::new(engine.bytes() / BLOCK as u64, seed);
        ensure!(client.size() == engine.bytes(), "the volume has {} bytes", client.size());
        Ok(Soak { site, client, model, requests: 0, done: [0; VERBS.len()] })
    }

    /// Goes on for so long, and verifies all; says what was done.
    fn run(mut self, time: Duration) -> Result<String> {
        let begun = Instant::now();
        let mut told = begun;
        while begun.elapsed() < time {
            let verb = self.next();
            self.carry_out(verb).with_context(|| format!("{verb:?}, after {}", self.said()))?;
            if told.elapsed() > Duration::from_secs(60) {
                println!("    {}", self.said());
                told = Instant::now();
            }
        }
        self.client.flush()?;
        self.site.restart()?;
        self.client = self.site.connect()?;
        self.verify_all()?;
        self.site.check()?;
        Ok(self.said())
    }

    fn said(&self) -> String {
        let verbs =
            VERBS.iter().zip(self.done).map(|((verb, _), times)| format!("{verb:?} {times}"));
        let verbs: Vec<String> = verbs.collect();
        format!(
            "{} requests, {} extents written; {}",
            self.requests,
            self.model.extents(),
            verbs.join(", ")
        )
    }

    fn next(&mut self) -> Verb {
        let all: u64 = VERBS.iter().map(|(_, weight)| weight).sum();
        let mut at = self.model.below(all);
        for (verb, weight) in VERBS {
            if at < weight {
                return verb;
            }
            at -= weight;
        }
        Verb::Flush
    }

    fn carry_out(&mut self, verb: Verb) -> Result<()> {
        if let Some(at) = VERBS.iter().position(|(other, _)| *other == verb) {
            self.done[at] += 1;
        }
        match verb {
            Verb::Write => self.write(),
            Verb::Checkerboard => self.checkerboard(),
            Verb::TrimInPieces => self.trim_in_pieces(),
            Verb::TrimMuch => self.trim_much(),
            Verb::Zeroes => self.zeroes(),
            Verb::Flush => self.client.flush(),
            Verb::Read => self.read(),
            Verb::Volumes => {
                let turn = self.model.below(1000);
                self.site.volumes(turn)
            }
            Verb::FileSystem if machine::is_root() => self.site.file_system(),
            Verb::FileSystem => Ok(()),
            Verb::Kill => {
                self.client.flush()?;
                self.site.kill()?;
                self.again()
            }
            Verb::Restart => {
                self.site.restart()?;
                self.again()
            }
            Verb::Status => self.site.status(),
        }
    }

    fn again(&mut self) -> Result<()> {
        self.client = self.site.connect()?;
        self.read()
    }

    /// Writes by chance, near one another or anywhere.
    fn write(&mut self) -> Result<()> {
        let mut places = Vec::new();
        for _ in 0..BURST {
            let blocks = 1 + self.model.below(WRITE_BLOCKS);
            let at = self.model.place(blocks);
            // Requests in flight together must not meet, since nobody says which comes last.
            if places.iter().all(|(other, count)| at + blocks <= *other || other + count <= at) {
                places.push((at, blocks));
            }
        }
        let pieces: Vec<(u64, Vec<u8>)> = places
            .into_iter()
            .map(|(at, blocks)| (at * BLOCK as u64, self.model.write(at, blocks)))
            .collect();
        self.requests += pieces.len() as u64;
        self.client.write_all(pieces.iter().map(|(at, bytes)| (*at, &bytes[..])))
    }

    /// Every second block of a stretch: as many extents as blocks.
    fn checkerboard(&mut self) -> Result<()> {
        let at = self.model.place(BURST * WRITE_BLOCKS);
        let pieces: Vec<(u64, Vec<u8>)> = (0..BURST)
            .map(|n| at + n * WRITE_BLOCKS)
            .map(|at| (at * BLOCK as u64, self.model.write_every_second(at, WRITE_BLOCKS)))
            .collect();
        self.requests += BURST;
        self.client.write_all(pieces.iter().map(|(at, bytes)| (*at, &bytes[..])))
    }

    /// As `blkdiscard --step` and `fstrim` of a fragmented file system do.
    fn trim_in_pieces(&mut self) -> Result<()> {
        let (step, blocks) = (2 + self.model.below(600), 1 + self.model.below(2));
        let at = self.model.place(BURST * 8 * step);
        let pieces: Vec<(u64, u64)> =
            (0..BURST * 8).map(|n| (at + n * step, blocks.min(step))).collect();
        self.requests += pieces.len() as u64;
        let wanted: Vec<(u64, u32)> = pieces
            .iter()
            .map(|(at, blocks)| (at * BLOCK as u64, (blocks * BLOCK as u64) as u32))
            .collect();
        pieces.into_iter().for_each(|(at, blocks)| self.model.zero(at, blocks));
        self.client.trim(wanted.into_iter())
    }

    fn trim_much(&mut self) -> Result<()> {
        let blocks = self.model.below((1 << 30) / BLOCK as u64) + 1;
        let blocks = blocks.min(self.model.blocks());
        let at = self.model.place(blocks);
        self.model.zero(at, blocks);
        self.requests += 1;
        self.client.trim([(at * BLOCK as u64, (blocks * BLOCK as u64) as u32)].into_iter())
    }

    fn zeroes(&mut self) -> Result<()> {
        let blocks = 1 + self.model.below(8192);
        let at = self.model.place(blocks);
        self.model.zero(at, blocks);
        self.requests += 1;
        self.client.zero(at * BLOCK as u64, (blocks * BLOCK as u64) as u32)
    }

    /// Reads some stretches and compares them.
    fn read(&mut self) -> Result<()> {
        for _ in 0..4 {
            let blocks = 2048.min(self.model.blocks());
            let at = self.model.place(blocks);
            self.verify(at, blocks)?;
        }
        Ok(())
    }

    fn verify(&mut self, at: u64, blocks: u64) -> Result<()> {
        self.verify_all_of(vec![(at, blocks)])
    }

    /// Reads all that was ever written to.
    fn verify_all(&mut self) -> Result<()> {
        self.verify_all_of(self.model.touched())
    }

    /// Reads stretches, given by first block and blocks, and compares them.
    fn verify_all_of(&mut self, stretches: Vec<(u64, u64)>) -> Result<()> {
        self.requests += stretches.iter().map(|(_, blocks)| blocks / 64).sum::<u64>();
        let model = &self.model;
        let look = |offset: u64, found: &[u8]| match model.differs(offset / BLOCK as u64, found) {
            Some(block) => bail!("block {block} does not hold what was written last"),
            None => Ok(()),
        };
        let bytes = |(at, blocks): (u64, u64)| (at * BLOCK as u64, blocks * BLOCK as u64);
        self.client.read_ranges(stretches.into_iter().map(bytes), look)
    }
}
