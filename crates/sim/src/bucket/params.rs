//! The parameters of a run. Its seed decides them before it begins; a run that fails prints them.

use std::time::Duration;

use onefold_bucket::{Rule, Settings};
use onefold_testbed::Rng;

/// All parameters of a run.
#[derive(Clone, Debug)]
pub struct Params {
    /// The seed.
    pub seed: u64,
    /// Actors that write, one process after the other.
    pub writers: usize,
    /// Actors that read.
    pub readers: usize,
    /// Processes of each actor.
    pub processes: u64,
    /// Most commits of a process.
    pub commits: u64,
    /// Processes that collect, in percent.
    pub collects: u64,
    /// Requests whose reply is lost, in thousandths.
    pub unknown: u64,
    /// Requests that come a second time, late, in thousandths.
    pub doubled: u64,
    /// Requests that are refused, in thousandths.
    pub refused: u64,
    /// Bodies that are short or changed, in thousandths.
    pub bodies: u64,
    /// Listings that lag, in thousandths.
    pub lags: u64,
    /// Requests at which a process is killed, in thousandths.
    pub kills: u64,
    /// Requests before which a process is asleep, in thousandths.
    pub asleep: u64,
    /// Most minutes for which it is.
    pub asleep_minutes: u64,
    /// Processes whose clock is wrong, in percent.
    pub wrong_clocks: u64,
    /// Seconds for which a process waits for another one that is at work.
    pub wait: u64,
    /// Most seconds between two things that a process does.
    pub idle_seconds: u64,
    /// Seconds for which stays what was dropped.
    pub trash: u64,
    /// Frames after which there is a table.
    pub table_every: u64,
    /// Frames after which there is one amid the writing.
    pub frames_max: u64,
    /// Bytes of short writes that stand in a frame.
    pub inline_max: usize,
    /// The store goes back in the end.
    pub goes_back: bool,
    /// The planted bug, by its index.
    pub bug: Option<usize>,
}

impl Params {
    /// The parameters of a seed.
    #[must_use]
    pub fn draw(seed: u64) -> Params {
        let mut rng = Rng::new(seed ^ 0xb0c4_e700);
        let quiet = rng.percent(10);
        let mut rate = |most: u64| if quiet { 0 } else { rng.below(most + 1) };
        let (unknown, doubled, refused) = (rate(150), rate(60), rate(80));
        let (bodies, lags) = (rate(60), rate(200));
        let (kills, asleep) = (rate(25), rate(25));
        Params {
            seed,
            writers: rng.within(1, 4) as usize,
            readers: rng.below(3) as usize,
            processes: rng.within(1, 6),
            commits: rng.within(1, 8),
            collects: rng.within(0, 80),
            unknown,
            doubled,
            refused,
            bodies,
            lags,
            kills,
            asleep,
            asleep_minutes: rng.pick(&[2, 60, 60, 3000]).copied().unwrap_or(60),
            wrong_clocks: rng.pick(&[0, 20, 60]).copied().unwrap_or(0),
            idle_seconds: rng.pick(&[1, 60, 4000, 20_000]).copied().unwrap_or(60),
            wait: if seed % 3 == 2 { 1800 } else { 0 },
            trash: 24 * 3600,
            table_every: rng.within(1, 12),
            inline_max: rng.pick(&[0, 60, 4000]).copied().unwrap_or(60),
            goes_back: rng.percent(20),
            frames_max: rng.pick(&[3, 20, 512]).copied().unwrap_or(512),
            bug: None,
        }
    }

    /// Parameters that are smaller than these in one respect each.
    #[must_use]
    pub fn smaller(&self) -> Vec<Params> {
        let mut all = Vec::new();
        let mut with = |change: &dyn Fn(&mut Params) -> bool| {
            let mut params = self.clone();
            if change(&mut params) {
                all.push(params);
            }
        };
        with(&|params| less_size(&mut params.writers, 1));
        with(&|params| less_size(&mut params.readers, 0));
        with(&|params| less(&mut params.processes, 1));
        with(&|params| less(&mut params.commits, 1));
        with(&|params| zero(&mut params.collects));
        with(&|params| zero(&mut params.unknown));
        with(&|params| zero(&mut params.doubled));
        with(&|params| zero(&mut params.refused));
        with(&|params| zero(&mut params.bodies));
        with(&|params| zero(&mut params.lags));
        with(&|params| zero(&mut params.kills));
        with(&|params| zero(&mut params.asleep));
        with(&|params| zero(&mut params.wrong_clocks));
        with(&|params| zero(&mut params.wait));
        with(&|params| less(&mut params.idle_seconds, 1));
        all
    }

    /// The settings of processes.
    #[must_use]
    pub fn settings(&self) -> Settings {
        Settings {
            threads: 0,
            patience: Duration::from_secs(600),
            wait: Duration::from_secs(self.wait),
            settle: Duration::from_secs(900),
            table_every: self.table_every,
            frames_max: self.frames_max,
            cache_bytes: 1 << 20,
            block_bytes: 64,
            large: 150,
            small_max: 400,
            inline_max: self.inline_max,
            trash: self.trash,
            broken: self.bug.and_then(|bug| Rule::BUGS.get(bug)).map(|(_, rule)| *rule),
            ..Settings::default()
        }
    }
}

fn less(value: &mut u64, least: u64) -> bool {
    let before = *value;
    *value = least.max(*value / 2);
    *value < before
}

fn less_size(value: &mut usize, least: usize) -> bool {
    let before = *value;
    *value = least.max(*value - usize::from(*value > least));
    *value < before
}

fn zero(value: &mut u64) -> bool {
    std::mem::take(value) > 0
}
