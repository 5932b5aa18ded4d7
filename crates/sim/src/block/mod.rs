//! The block engine under simulation: clients and the engine's steps in any order, over a disk that
//! crashes.
//!
//! The [model] knows what every block may hold. [`subject`] is the seam: what the engine under
//! simulation must offer; [`engine`] is the one behind it. [`exhaust`](mod@exhaust) tries every
//! crash of a small case, and [`checks::verifier`] reads what is left of a store by the document of
//! its format alone.

mod actors;
pub mod checks;
pub mod engine;
pub mod exhaust;
mod keys;
mod live;
pub mod model;
pub mod params;
mod run;
pub mod subject;

use std::{marker::PhantomData, time::Instant};

use onefold_testbed::{Fault, Reach};

use self::{
    exhaust::{exhaust, small, small_merging},
    params::{Params, Profile},
    run::Sim,
    subject::{StoreOptions, Subject},
};
use crate::front::{Config, Outcome, Simulator, guarded, position};

/// The simulator of the block engine, or of what else stands behind [`Subject`].
pub struct Block<S> {
    /// The scheme of all stores, by its index; else the seed draws one.
    scheme: Option<usize>,
    /// The product's schedule decides the steps.
    scheduled: bool,
    store: PhantomData<fn() -> S>,
}

impl<S> Default for Block<S> {
    fn default() -> Block<S> {
        Block { scheme: None, scheduled: false, store: PhantomData }
    }
}

impl<S: Subject> Simulator for Block<S> {
    type Params = Params;

    const TITLE: &'static str = "\
Deterministic crash and fault simulation. Without arguments: kept seeds, 2,000 seeds, and the exhaustive small case.";

    const OPTIONS: &'static str = "  --exhaust         tries every crash of a small case
  --scheme NAME     every store has this scheme; --bugs plants those that break a rule of it
  --scheduled       the product's schedule decides the engine's steps, not the seed
";

    const COMMAND: &'static str = "onefold-sim";

    const SEEDS: u64 = 2_000;
    const KEPT: &'static str = include_str!("../../seeds/block.txt");
    const FOUND: &'static str = include_str!("../../seeds/block-bugs.txt");

    fn option(
        &mut self,
        name: &str,
        value: &mut dyn FnMut() -> Result<String, String>,
    ) -> Result<bool, String> {
        match name {
            "--scheme" => self.scheme = Some(position("scheme", &value()?, S::SCHEMES)?),
            "--scheduled" => self.scheduled = true,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn bugs(&self) -> Vec<&'static str> {
        S::BUGS.to_vec()
    }

    fn has_rule_of(&self, bug: usize) -> bool {
        self.scheme.is_none_or(|scheme| S::applies(bug, scheme))
    }

    fn draw(&self, seed: u64, bug: Option<usize>) -> Params {
        let mut params = Params::draw(seed, self.scheme);
        if !S::COPIES_MAPS {
            params.options.snapshots = None;
        }
        params.options.grows &= S::GROWS;
        params.options.quotas &= S::HAS_QUOTAS;
        params.options.bug = bug;
        params.scheduled = self.scheduled;
        params
    }

    fn smaller(&self, params: &Params) -> Vec<Params> {
        params.smaller()
    }

    fn run(&self, params: Params, loud: bool) -> Outcome<Params> {
        let mut sim = Sim::<S>::new(params.clone(), loud);
        let spared = !S::NOTICES_DAMAGE && params.profile == Profile::Damage;
        let failure = guarded(|| if spared { Ok(()) } else { sim.run() }).err();
        let mut reach = std::mem::take(&mut sim.reach);
        reach.merge(&sim.disk.reach());
        Outcome { seed: params.seed, params, failure, trace: sim.disk.trace(), reach }
    }

    fn marks(&self) -> Vec<&'static str> {
        // A run of one scheme leaves these, and the small cases, to the ordinary run.
        if self.scheme.is_some() {
            return Vec::new();
        }
        let faults = Fault::ALL.iter().map(|fault| fault.name());
        S::branches().into_iter().chain(faults).collect()
    }

    fn after_seeds(&self, reach: Option<&Reach>, config: &Config) -> bool {
        let cases = [
            ("", small(false)),
            (", tables in place", small(true)),
            (", tables in place, ordered", small_merging()),
        ];
        reach.is_some() && self.scheme.is_some()
            || cases.into_iter().all(|(what, options)| small_case::<S>(config, what, options))
    }
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
