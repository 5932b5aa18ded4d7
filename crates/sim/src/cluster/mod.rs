//! Clients and workers of the cluster engine, interleaved over a simulated object store.
//!
//! A seed gives the parameters, what clients do, which operation is applied next, which replies are
//! lost or late, who is killed, stopped and continued. After every operation that is applied,
//! [`checks`] looks whether a map names a chunk without a reference; once all have calmed down,
//! everything is compared with the [`model`].
//!
//! *Invariant:* nobody runs but who has the baton; nothing depends on the wall clock, on the order
//! of a hash map, or on chance from outside.

mod actors;
mod checks;
mod model;
pub mod params;
mod run;
mod sealed;
mod store;
mod told;
mod world;

use onefold_cluster::Rule;
use onefold_testbed::Reach;

use self::params::Params;
use crate::front::{Config, Outcome, Simulator};

/// The coverage marks that an ordinary run must reach.
const MARKS: [&str; 58] = [
    "a worker backs off",
    "a sealed store is looked at by its host",
    "the host of a sealed store changes it",
    "orderly: references made by workers",
    "a client deduplicates inline",
    "a client flushes through",
    "a fenced session is refused",
    "a late copy applies",
    "a late copy is refused",
    "a metadata object is lost",
    "a read comes between writes that wait",
    "a reply comes after the takeover",
    "a session is fenced",
    "a copy comes when all is clean",
    "a volume is deleted",
    "a volume is resized",
    "a scrub goes on elsewhere",
    "a page has all names",
    "an actor is killed",
    "an actor is stopped",
    "a chunk can't be read",
    "a chunk rots",
    "a clock is set back",
    "a read fails for a bad chunk",
    "a new name is taken",
    "an object is deleted",
    "as many bytes wait as may",
    "as many long trims as there may be",
    "as many pending drops as there may be",
    "applied, and the reply is lost",
    "scrub: orphans",
    "scrub: stale references",
    "something can't be renamed",
    "something is renamed",
    "the store is full",
    "a snapshot is taken",
    "a snapshot is taken of a volume in use",
    "a volume in use is cloned",
    "a snapshot is read",
    "a snapshot is deleted",
    "snapshots are deleted together",
    "a snapshot is cloned",
    "a snapshot is received",
    "changes are received",
    "a receive goes on",
    "a receive is given up",
    "a replica is promoted",
    "a volume is rolled back",
    "a volume is cloned",
    "a clone is used",
    "a standby takes over",
    "a standby waits for a volume's lock",
    "a standby waits after a failure",
    "a takeover fails",
    "a client gets what was read ahead",
    "a server finds that it was replaced",
    "a server gives up",
    "a server's clock is set",
];

/// The simulator of the cluster engine.
pub struct Cluster;

impl Simulator for Cluster {
    type Params = Params;

    const TITLE: &'static str = "\
Simulation of the cluster engine. Without arguments: kept seeds and 1,000 seeds.";

    const COMMAND: &'static str = "onefold-sim cluster";

    const SEEDS: u64 = 1_000;
    const KEPT: &'static str = include_str!("../../seeds/cluster.txt");
    const FOUND: &'static str = include_str!("../../seeds/cluster-bugs.txt");

    fn bugs(&self) -> Vec<&'static str> {
        Rule::BUGS.iter().map(|(name, _)| *name).collect()
    }

    fn draw(&self, seed: u64, bug: Option<usize>) -> Params {
        Params { bug, ..Params::draw(seed) }
    }

    fn smaller(&self, params: &Params) -> Vec<Params> {
        params.smaller()
    }

    fn run(&self, params: Params, loud: bool) -> Outcome<Params> {
        run::run(params, loud)
    }

    fn marks(&self) -> Vec<&'static str> {
        MARKS.to_vec()
    }

    /// In orderly runs leases keep workers apart.
    fn after_seeds(&self, reach: Option<&Reach>, _: &Config) -> bool {
        let count = |mark| reach.map_or(0, |reach| reach.count(mark));
        let (made, twice) =
            (count("orderly: references made by workers"), count("orderly: made by two workers"));
        println!("double work where nobody is away: {twice} of {made} references");
        let rare = twice * 100 < made;
        if !rare {
            println!("leases do not keep workers apart: double work is to be less than 1 %");
        }
        rare
    }
}
