//! The parameters of a run. Its seed decides them before it begins; a run that fails prints them.

use onefold_archive::{Rule, Settings};
use onefold_testbed::Rng;

use super::BUGS;

/// All parameters of a run.
#[derive(Clone, Debug)]
pub struct Params {
    /// The seed.
    pub seed: u64,
    /// Things that happen.
    pub moves: u64,
    /// Both archives have one secret.
    pub shares: bool,
    /// The source holds rubbish, and rots.
    pub rots: bool,
    /// Copies in which a process ends, in percent.
    pub ends: u64,
    /// Entries of a copy at which something else happens, in percent.
    pub beside: u64,
    /// Things that happen and that another archive does, which has other content under the ids of the source, in percent.
    pub impostor: u64,
    /// Bytes of chunks of a container.
    pub container_bytes: usize,
    /// The planted bug, by its index.
    pub bug: Option<usize>,
}

impl Params {
    /// The parameters of a seed.
    #[must_use]
    pub fn draw(seed: u64) -> Params {
        let mut rng = Rng::new(seed ^ 0xc0b1_e500);
        Params {
            seed,
            moves: rng.within(10, 60),
            shares: rng.percent(60),
            rots: rng.percent(30),
            ends: rng.pick(&[0, 30, 60]).copied().unwrap_or(0),
            beside: rng.pick(&[0, 30, 80]).copied().unwrap_or(0),
            container_bytes: rng.pick(&[4 << 10, 16 << 10]).copied().unwrap_or(4 << 10),
            impostor: rng.pick(&[0, 0, 15]).copied().unwrap_or(0),
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
        with(&|params| {
            params.moves = params.moves.saturating_sub(1 + params.moves / 4);
            true
        });
        with(&|params| std::mem::take(&mut params.ends) > 0);
        with(&|params| std::mem::take(&mut params.beside) > 0);
        with(&|params| std::mem::take(&mut params.impostor) > 0);
        with(&|params| std::mem::take(&mut params.rots));
        all.retain(|params| params.moves > 0);
        all
    }

    /// What processes are told.
    #[must_use]
    pub fn settings(&self) -> Settings {
        Settings {
            auxiliary_entries: 30,
            cached_containers: 4,
            page_cache_bytes: 0,
            sync_bytes: 8 << 10,
            unsynced_bytes: 64 << 10,
            list_bytes: 16 << 10,
            container_bytes: self.container_bytes,
            log_bytes: 16 << 10,
            log_ahead_bytes: 128 << 10,
            count_slots: 20,
            ahead_bytes: 16 << 10,
            broken: self.broken(),
            ..Settings::default()
        }
    }

    /// The rule that the planted bug breaks.
    #[must_use]
    pub fn broken(&self) -> Option<Rule> {
        self.bug.and_then(|bug| BUGS.get(bug)).map(|(_, rule)| *rule)
    }
}
