//! Power failures: the real engine over a disk whose unflushed writes can be cut, at every point of
//! a workload.
//!
//! A workload runs once, and the disk remembers each write and each flush. Then, for every prefix
//! of those, the store is opened from what a power failure would leave: nothing of what no flush
//! covered, all of it, and parts of it down to sectors. Every address must hold what was
//! acknowledged last, or something newer; never anything else. The whole of a store's metadata is
//! checked, too.

mod disk;

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use onefold_block::{
    MEMORY_MIN,
    check::check,
    format::{Identity, geometry::Geometry, zone_list::Page},
};
use onefold_core::{Block, Clock, Disk, Error, Kind, Lba, Read, Result};
use onefold_testbed::{SplitMix, VirtualClock};
use serde::{Deserialize, Serialize};

use self::disk::{Journal, Left, Medium, Step};
use crate::{
    Content,
    request::{Source, What},
    subject::{Choice, Recovered, Store, Subject},
};

/// Blocks of a zone: small ones, so that a short workload fills many.
const ZONE_BLOCKS: u32 = 64;

/// Blocks of the disk besides those of the volume and its overwritten versions.
const SPARE_BLOCKS: u64 = 4096;

/// Windows between two idle moments, in which everything is carried into the tables.
const BUSY_WINDOWS: u64 = 24;

/// How long clients count as quiet in one: the product carries everything into the tables.
const PAUSE: Duration = Duration::from_secs(5);

/// Time that passes with each window, so that what is delayed comes due, and after a recovery, so
/// that the rest of its work is completed.
const WINDOW_TIME: Duration = Duration::from_secs(1);
const IDLE_TIME: Duration = Duration::from_secs(120);

/// Times that a store is used a little and idle after its recovery, before its metadata is checked:
/// garbage is found in one and given back in the next.
const IDLE_ROUNDS: u32 = 2;

/// Failures that are told.
const TOLD: usize = 3;

/// The outcome of all power failures of a workload.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Blocks written by the client.
    pub client_blocks: u64,
    /// Points at which the power failed: after every write and every flush of the disk.
    pub cuts: u64,
    /// Stores opened: several for a point at which writes were not flushed.
    pub openings: u64,
    /// Blocks read and compared.
    pub compared: u64,
    /// Blocks that were acknowledged, and are older than that.
    pub lost: u64,
    /// Blocks with a content that was never written there.
    pub wrong: u64,
    /// Stores that did not open, or in whose metadata the check found a problem.
    pub broken: u64,
    /// The first failures of these three kinds, each a sentence.
    pub failures: Vec<String>,
    /// Newer records that recovery believed, and those whose block was not there.
    pub believed: u64,
    /// See there.
    pub refused: u64,
    /// Most zones that a recovery scanned, and most that the medium marked as uncommitted then. A
    /// zone loses its mark with the next write of its list page after the checkpoint, and gets
    /// it ahead of its first block.
    pub zones_scanned: u64,
    /// See there.
    pub zones_marked: u64,
    /// Openings that scanned more zones than that.
    pub scanned_too_many: u64,
    /// Zones that were written.
    pub zones_written: u64,
    /// Checkpoints within the workload.
    pub checkpoints: u64,
    /// Blocks that the check found in use and that nothing names, at most.
    pub leaked: u64,
    /// Real seconds.
    pub wall_seconds: f64,
}

/// A content that an address got.
#[derive(Clone, Copy)]
struct Version {
    content: Content,
    /// Steps of the disk before it was taken, and before it was acknowledged as durable.
    taken: usize,
    durable: usize,
}

/// The contents that each address got, one after the other.
#[derive(Default)]
struct History {
    of: Vec<Vec<Version>>,
    pending: Vec<usize>,
}

impl History {
    fn write(&mut self, at: usize, content: Content, taken: usize) {
        if self.of.len() <= at {
            self.of.resize_with(at + 1, Vec::new);
        }
        self.of[at].push(Version { content, taken, durable: usize::MAX });
        self.pending.push(at);
    }

    /// All that was taken is durable.
    fn acknowledge(&mut self, steps: usize) {
        for at in self.pending.drain(..) {
            self.of[at]
                .iter_mut()
                .filter(|version| version.durable == usize::MAX)
                .for_each(|version| version.durable = steps);
        }
    }
}

/// The verdict on the content of one address after a power failure.
enum Held {
    Right,
    Lost,
    Wrong,
}

/// Judges a block by its history up to a step.
fn judge(versions: &[Version], block: &Block, step: usize) -> Held {
    let known = versions.iter().take_while(|version| version.taken <= step).count();
    let least = versions[..known].iter().rposition(|version| version.durable <= step);
    let holds = |version: &Version| version.content.is_in(block);
    if versions[least.unwrap_or(0)..known].iter().any(holds) || least.is_none() && block.is_zero() {
        Held::Right
    } else if versions[..least.unwrap_or(0)].iter().any(holds) || block.is_zero() {
        Held::Lost
    } else {
        Held::Wrong
    }
}

/// A run of the workload.
struct Life {
    clock: Arc<VirtualClock>,
    journal: Arc<Journal>,
    history: History,
    geometry: Geometry,
    identity: Identity,
    begun: usize,
    blocks: u64,
    checkpoints: u64,
}

/// Writes the requests of a source; addresses are numbered in the order in which they come, so that
/// the store is small.
fn live(source: Source, choice: &Choice) -> Result<Life> {
    let requests: Vec<What> =
        source.requests.map(|item| item.map(|(_, request)| request.what)).collect::<Result<_>>()?;
    let mut numbers: HashMap<u64, u64> = HashMap::new();
    let written = || {
        requests.iter().filter_map(|what| {
            if let What::Write { first, blocks, .. } = what {
                Some((first.0, blocks))
            } else {
                None
            }
        })
    };
    for at in written().flat_map(|(first, blocks)| first..first + blocks.len() as u64) {
        let next = numbers.len() as u64;
        numbers.entry(at).or_insert(next);
    }
    let blocks: u64 = written().map(|(_, blocks)| blocks.len() as u64).sum();
    let volume_blocks = numbers.len().max(1) as u64;
    let device_blocks =
        (volume_blocks + blocks + SPARE_BLOCKS).next_multiple_of(u64::from(ZONE_BLOCKS));
    let journal = Arc::new(Journal::new(device_blocks, HashMap::new()));
    let clock = Arc::<VirtualClock>::default();
    let store = Store::make(choice, volume_blocks, device_blocks, journal.clone(), clock.clone())?;
    let before = store.tally().checkpoints;
    let mut life = Life {
        clock,
        begun: journal.len(),
        history: History::default(),
        geometry: store.geometry(),
        identity: store.identity(),
        blocks,
        journal,
        checkpoints: 0,
    };
    let window = store.window_blocks();
    let (mut gathered, mut windows, mut block) = (0, 0u64, Block::zeroed_vec(1));
    for what in &requests {
        let flush = match what {
            What::Write { first, blocks, .. } => {
                for (at, content) in (first.0..).zip(blocks) {
                    let number = numbers[&at];
                    content.fill(&mut block[0]);
                    life.history.write(number as usize, *content, life.journal.len());
                    let mut taken = 0;
                    while let Err(error) = store.write(Lba(number), &block, &mut taken) {
                        if error.kind() != Kind::Busy {
                            return Err(error);
                        }
                        store.make_room()?;
                    }
                    gathered += 1;
                    if gathered >= window {
                        life.commit(&store, &mut gathered, &mut windows)?;
                    }
                }
                false
            }
            What::Flush => gathered > 0,
            What::Trim { .. } | What::Zeroes { .. } | What::Phase(_) => false,
        };
        if flush {
            life.commit(&store, &mut gathered, &mut windows)?;
        }
    }
    life.commit(&store, &mut gathered, &mut windows)?;
    life.checkpoints = store.tally().checkpoints - before;
    Ok(life)
}

impl Life {
    fn commit(&mut self, store: &Store, gathered: &mut usize, windows: &mut u64) -> Result<()> {
        store.commit()?;
        self.history.acknowledge(self.journal.len());
        *gathered = 0;
        *windows += 1;
        self.clock.advance_to(self.clock.now() + WINDOW_TIME);
        store.work_after(if windows.is_multiple_of(BUSY_WINDOWS) { PAUSE } else { Duration::ZERO })
    }

    /// Zones that the medium marks as uncommitted: in either copy of a page of the zone list.
    fn marked(&self, disk: &dyn Disk) -> u64 {
        let mut zones = HashSet::new();
        let mut block = Block::zeroed_vec(1);
        for (page, at) in (0..self.geometry.list_pages)
            .flat_map(|page| self.geometry.list_page(page).map(|at| (page, at)))
        {
            disk.read(&mut [Read::new(at, &mut block)]);
            let page = Page::decode(&self.identity, &block[0], page, at.0);
            zones.extend(
                page.iter().flat_map(|page| &page.entries).flatten().map(|entry| entry.zone),
            );
        }
        zones.len() as u64
    }
}

/// Runs a workload on a store, and lets the power fail at every point of it; `torn` times with
/// parts of what was not flushed, by chance from `seed`. `progress` hears of the points done and
/// how many there are.
///
/// # Errors
/// `Unsupported` for a choice that the engine does not have; the engine's while nothing fails. The
/// effects of a power failure are in the outcome.
pub fn crash(
    source: Source,
    choice: &Choice,
    torn: usize,
    seed: u64,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Outcome> {
    let begun = Instant::now();
    let choice = Choice { zone_blocks: ZONE_BLOCKS, memory_bytes: MEMORY_MIN, ..choice.clone() };
    let life = live(source, &choice)?;
    let mut outcome = cut_everywhere(&life, &life.journal.take(), &choice, torn, seed, progress);
    outcome.wall_seconds = begun.elapsed().as_secs_f64();
    Ok(outcome)
}

fn cut_everywhere(
    life: &Life,
    steps: &[Step],
    choice: &Choice,
    torn: usize,
    seed: u64,
    progress: &mut dyn FnMut(u64, u64),
) -> Outcome {
    let mut outcome =
        Outcome { client_blocks: life.blocks, checkpoints: life.checkpoints, ..Outcome::default() };
    let mut medium = Medium::default();
    let mut rng = SplitMix::new(seed);
    let mut zones = HashSet::new();
    for (number, step) in steps.iter().enumerate() {
        medium.step(step);
        let done = number + 1;
        if done < life.begun {
            continue;
        }
        if let Step::Write(written) = step {
            zones.extend(written.iter().map(|(at, _)| at / u64::from(ZONE_BLOCKS)));
        }
        outcome.cuts += 1;
        let all =
            [Left::Nothing, Left::All].into_iter().chain(std::iter::repeat_n(Left::Torn, torn));
        for left in all.take(if medium.is_open() { usize::MAX } else { 1 }) {
            let image = medium.cut(left, &mut rng);
            outcome.open(
                life,
                choice,
                &Arc::new(Journal::new(life.journal.blocks(), image)),
                done,
                left,
            );
        }
        progress(done as u64, steps.len() as u64);
    }
    outcome.zones_written = zones.len() as u64;
    outcome
}

impl Outcome {
    /// True when nothing was lost, wrong or broken.
    #[must_use]
    pub fn is_well(&self) -> bool {
        self.lost + self.wrong + self.broken + self.scanned_too_many == 0
    }

    /// Opens what is left, compares everything, and checks the store as it is afterwards.
    fn open(&mut self, life: &Life, choice: &Choice, disk: &Arc<Journal>, step: usize, left: Left) {
        self.openings += 1;
        if let Err(failure) = self.recover(life, choice, disk, step)
            && self.failures.len() < TOLD
        {
            self.failures.push(format!("after step {step}, {left:?}: {failure}"));
        }
    }

    /// The store is used a little, and has time: what recovery finds to be garbage is given back
    /// with the checkpoints that follow.
    fn go_on(&self, store: &Store, clock: &VirtualClock) -> Result<()> {
        for (round, number) in (1..=IDLE_ROUNDS).zip(0..) {
            let mut block = Block::zeroed_vec(1);
            Content::numbered(u64::MAX, number, 4096).fill(&mut block[0]);
            store.write(Lba(0), &block, &mut 0)?;
            store.commit()?;
            clock.advance_to(IDLE_TIME * round);
            store.work_after(PAUSE)?;
            store.finish()?;
        }
        Ok(())
    }

    fn recover(
        &mut self,
        life: &Life,
        choice: &Choice,
        disk: &Arc<Journal>,
        step: usize,
    ) -> Result<(), String> {
        let marked = life.marked(&**disk);
        let clock = Arc::<VirtualClock>::default();
        let broken = |outcome: &mut Outcome, error: Error| {
            outcome.broken += 1;
            error.to_string()
        };
        let Recovered { store, zones, believed, refused } =
            Store::open(choice, disk.clone(), clock.clone())
                .map_err(|error| broken(self, error))?;
        self.believed += believed;
        self.refused += refused;
        self.zones_scanned = self.zones_scanned.max(zones);
        self.zones_marked = self.zones_marked.max(marked);
        if zones > marked {
            self.scanned_too_many += 1;
            return Err(format!("{zones} zones scanned, {marked} are marked as uncommitted"));
        }
        let mut blocks = Block::zeroed_vec(life.history.of.len());
        store.read(Lba(0), &mut blocks).map_err(|error| broken(self, error))?;
        for (at, (versions, block)) in life.history.of.iter().zip(&blocks).enumerate() {
            self.compared += 1;
            match judge(versions, block, step) {
                Held::Right => {}
                Held::Lost => {
                    self.lost += 1;
                    return Err(format!("block {at} is older than what was acknowledged"));
                }
                Held::Wrong => {
                    self.wrong += 1;
                    return Err(format!("block {at} holds what was never written there"));
                }
            }
        }
        self.go_on(&store, &clock)
            .and_then(|()| store.close())
            .map_err(|error| broken(self, error))?;
        drop(store);
        let disk: Arc<dyn Disk> = disk.clone();
        let report = check(&disk, &mut |_| {}).map_err(|error| broken(self, error))?;
        self.leaked = self.leaked.max(report.leaked_blocks);
        if let Some(problem) = report.problems.first() {
            self.broken += 1;
            return Err(format!("{:?}: {}", problem.place, problem.what));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use onefold_block::{
        Persistence,
        format::superblock::{Layout, Leftover},
    };

    use super::*;
    use crate::{
        subject::Scheme,
        workload::{Pattern, Workload},
    };

    fn source(blocks: u64) -> Source {
        Workload { volume_blocks: 300, ..Workload::paper(Pattern::Random, blocks) }.source()
    }

    #[test]
    fn nothing_is_lost_at_any_point() {
        let thin =
            Choice { window_blocks: Some(8), ..Choice::new(Scheme::Thin, Persistence::Strong) };
        let paper = Choice { leftover: Leftover::Table, layout: Layout::Split, ..thin.clone() };
        for choice in [thin, paper] {
            let outcome = crash(source(400), &choice, 1, 7, &mut |_, _| {}).unwrap();
            assert!(outcome.is_well(), "{outcome:?}");
            assert!(
                outcome.cuts > 100
                    && outcome.openings > outcome.cuts
                    && outcome.refused > 0
                    && outcome.checkpoints > 0,
                "{outcome:?}"
            );
        }
    }

    #[test]
    fn a_disk_that_flushes_nothing_is_found_out() {
        let choice = Choice {
            window_blocks: Some(8),
            zone_blocks: ZONE_BLOCKS,
            ..Choice::new(Scheme::Thin, Persistence::Strong)
        };
        let life = live(source(200), &choice).unwrap();
        let mut steps = life.journal.take();
        steps
            .iter_mut()
            .skip(life.begun)
            .filter(|step| !matches!(step, Step::Write(_)))
            .for_each(|step| *step = Step::Write(Vec::new()));
        let outcome = cut_everywhere(&life, &steps, &choice, 1, 7, &mut |_, _| {});
        assert!(
            outcome.lost > 0 && !outcome.is_well() && !outcome.failures.is_empty(),
            "{outcome:?}"
        );
    }

    #[test]
    fn what_is_lost_or_wrong_is_told() {
        let content = |n| Content::numbered(1, n, 4096);
        let held = |content: Content| {
            let mut block = Block::zeroed();
            content.fill(&mut block);
            block
        };
        let versions = [(1, 5, 7), (2, 8, 12), (3, 13, usize::MAX)]
            .map(|(n, taken, durable)| Version { content: content(n), taken, durable });
        let judged = |n: Option<u64>, step| match judge(
            &versions,
            &n.map_or_else(Block::zeroed, |n| held(content(n))),
            step,
        ) {
            Held::Right => "right",
            Held::Lost => "lost",
            Held::Wrong => "wrong",
        };
        assert_eq!(
            [judged(None, 6), judged(Some(1), 6), judged(Some(2), 6)],
            ["right", "right", "wrong"]
        );
        assert_eq!(
            [judged(None, 7), judged(Some(1), 7), judged(Some(2), 9)],
            ["lost", "right", "right"]
        );
        assert_eq!(
            [judged(Some(1), 12), judged(Some(2), 20), judged(Some(3), 20)],
            ["lost", "right", "right"]
        );
        assert_eq!(judged(Some(4), 20), "wrong");
    }
}
