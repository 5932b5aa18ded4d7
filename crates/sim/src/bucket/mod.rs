//! Processes that write, read and collect files in an object store that fails them: it applies what it was asked
//! without a reply, late, twice, or never, and gives bodies that are short or changed. Processes are killed, and
//! asleep for hours; their clocks are wrong by years.
//!
//! A seed gives the parameters, what processes do, how long each request takes, and the faults. Every state that
//! somebody sees is compared with the [`model`]: it is that of one commit, and has all that was acknowledged.
//!
//! *Invariant:* nobody runs but who has the baton; nothing depends on the wall clock, on the order of a hash map, or
//! on chance from outside.

mod actors;
mod model;
pub mod params;
mod run;
mod world;

use onefold_bucket::Rule;

use self::params::Params;
use crate::front::{Outcome, Simulator};

/// The coverage marks that an ordinary run must reach.
const MARKS: [&str; 21] = [
    "a body is changed",
    "a body is short",
    "a clock jumps",
    "a collection deletes",
    "a collection finds orphans",
    "a collection writes again",
    "a creation comes late",
    "a creation is refused late",
    "a frame comes late",
    "a listing lags",
    "a process is asleep",
    "a process is killed",
    "a process is shut out",
    "a process waits for another one",
    "a reader reads after hours",
    "a request is refused",
    "a table is made",
    "a writer is shut out by its successor",
    "applied, and the reply is lost",
    "frames are committed",
    "the store goes back",
];

/// The simulator of buckets.
pub struct Bucket;

impl Simulator for Bucket {
    type Params = Params;

    const TITLE: &'static str = "\
Simulation of archives' files in an object store. Without arguments: kept seeds and 1,000 seeds.";

    const COMMAND: &'static str = "onefold-sim bucket";

    const SEEDS: u64 = 1_000;
    const KEPT: &'static str = include_str!("../../seeds/bucket.txt");
    const FOUND: &'static str = include_str!("../../seeds/bucket-bugs.txt");

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
}
