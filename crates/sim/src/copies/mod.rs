//! Two archives, of which the second one gets copies of the first one's snapshots: processes that are killed, power
//! that fails, damage at the source, snapshots that go and collections on both sides, also in the middle of a copy.
//!
//! A model knows the files of each snapshot. Whatever happened, a snapshot that the second archive lists has them, byte
//! for byte; what was copied stays; what was forgotten there does not come back by itself.

pub mod params;
mod run;
mod storing;

use onefold_archive::Rule;

use self::params::Params;
use crate::front::{Outcome, Simulator};

/// The bugs that the seeds must find: each with the rule that it breaks.
const BUGS: [(&str, Rule); 8] = [
    ("copied-chunk-not-verified", Rule::CopiedVerified),
    ("copy-listed-before-its-chunks", Rule::ContainersBeforeRecord),
    ("copy-names-condemned-chunks", Rule::CondemnedNotReferenced),
    ("copy-unseen-by-collection", Rule::CondemnedRechecked),
    ("source-freed-under-copy", Rule::FreedAfterReaders),
    ("forgotten-copied-again", Rule::ForgottenNotCopied),
    ("checkpoint-of-another-copy", Rule::CheckpointsOfTheirCopy),
    ("another-root-believed", Rule::CopiesOfOneRoot),
];

/// The coverage marks that an ordinary run must reach.
const MARKS: [&str; 16] = [
    "a checkpoint of a copy",
    "a collection ran beside a copy",
    "a copy took a checkpoint over",
    "a copy was killed",
    "a snapshot was copied",
    "another archive was faster",
    "another archive was faster, and was killed",
    "a snapshot was copied by its name",
    "a snapshot that can't be read was left out",
    "a snapshot was gone before it was copied",
    "a snapshot was forgotten in the middle of a copy",
    "chunks were named and not read",
    "files were taken over",
    "the power failed in a copy",
    "the source was collected beside a copy",
    "what was forgotten stayed away",
];

/// The simulator of copies.
pub struct Copies;

impl Simulator for Copies {
    type Params = Params;

    const TITLE: &'static str = "\
Simulation of an archive that gets copies of another one's snapshots. Without arguments: kept seeds and 1,000 seeds.";

    const COMMAND: &'static str = "onefold-sim copies";

    const SEEDS: u64 = 1_000;
    const KEPT: &'static str = include_str!("../../seeds/copies.txt");
    const FOUND: &'static str = include_str!("../../seeds/copies-bugs.txt");

    fn bugs(&self) -> Vec<&'static str> {
        BUGS.iter().map(|(name, _)| *name).collect()
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
