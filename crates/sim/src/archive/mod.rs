//! The archive engine under simulation: puts, readers, collection and removals, each a process of
//! its own, step by step over files that crash.
//!
//! A model knows the streams. Acknowledged streams must be there, byte for byte, after any crash.
//! A change that was under way may be there or not, and once it was seen it stays.

mod actors;
mod checks;
mod model;
pub mod params;
mod run;

use onefold_archive::Rule;

use self::{
    params::Params,
    run::{Actors, Sim},
};
use crate::front::{Outcome, Simulator, guarded};

/// The coverage marks that an ordinary run must reach.
const MARKS: [&str; 126] = [
    "a backup killed",
    "a backup met a full disk",
    "a backup was there without its acknowledgement",
    "a change of a data key was refused beside others",
    "a change of a read-only volume was refused",
    "a checkpoint of a backup",
    "a checkpoint was read after a crash",
    "a client that came seldom found its head",
    "a collector killed",
    "a container of more than eight steps had one of few lengths",
    "a copy of a leaf was written again",
    "a damaged archive was looked at",
    "a damaged container stayed",
    "a data key was changed",
    "a domain was erased",
    "a drain lost a damaged block",
    "a client that was told of a loss went on",
    "a forged key area was refused",
    "a forgotten snapshot expired",
    "a fork of the archive was refused",
    "a log of rubbish was refused",
    "a lost frame of counts came back",
    "a lost index was made anew",
    "a node that came back was outdated",
    "a node was lost",
    "a node was replaced",
    "a put into a served archive",
    "a put killed",
    "a put met a full disk",
    "a put waits for a backup",
    "a put was there without its acknowledgement",
    "a reader looked after a failed sync",
    "a reader read what it had opened",
    "a reader showed a change that nobody vouched for",
    "a restore in place kept what was there",
    "a restore lost a file",
    "a restore was killed",
    "a second ingesting process was sent away",
    "a sealed archive had a disk of its index",
    "a server killed",
    "a server waits for a put",
    "a slot was added",
    "a slot was removed",
    "a snapshot of the tables was written anew",
    "a snapshot was undeleted",
    "a stream of an erased domain was removed",
    "a third data key was refused",
    "a volume of a domain names containers of the domain",
    "a volume of an erased domain was deleted",
    "a volume of an erased domain was refused",
    "a volume met a full disk by itself",
    "a volume was cloned",
    "all references were counted anew",
    "all unflushed writes were there",
    "an empty disk of the index",
    "an empty mount point",
    "an erasure of a domain that was cut off was ended",
    "an old key area was refused",
    "an older archive was refused",
    "an older data key was erased",
    "an older disk of the index",
    "an open process was told of an upgrade",
    "an upgrade met a full disk",
    "an upgrade was cut off",
    "an upgrade was refused",
    "as many trimmed ranges wait as may",
    "checked after a crash",
    "chunks encoded at once",
    "chunks encoded at once by their counts",
    "collection waits for older puts",
    "container numbers ran out",
    "containers dropped",
    "containers merged",
    "containers settled",
    "crash: a sync was under way",
    "crash: in a change",
    "crash: in a sync",
    "crash: in recovery",
    "damage of a snapshot was told",
    "damage of metadata cost nothing",
    "damage of metadata was told",
    "damage was noted of what is whole",
    "damage was told",
    "everything was collected",
    "fault: a sector can't be read",
    "fault: a sync dropped data",
    "fault: a write was lost",
    "fault: a write was misdirected",
    "fault: rot",
    "fault: rot of metadata",
    "imported at the end",
    "imported under way",
    "leaves were read on demand",
    "lost chunks were healed",
    "no file showed what was stored",
    "other usage counts were refused",
    "others went on after a failed sync",
    "pages of a parent were taken over",
    "places held back by readers",
    "processes killed, power stays",
    "replay: a checkpoint",
    "replay: counted",
    "replay: gave way",
    "replay: imported",
    "replay: leaves ahead of a checkpoint",
    "replay: made a lost index anew",
    "replay: merged runs",
    "replay: nothing was left",
    "rot was mended",
    "the disk of the index took no writes",
    "the disk of the index was full",
    "the disk of the index went",
    "too many nodes were lost",
    "unflushed writes were lost",
    "upgraded",
    "usage counts compared with the roots",
    "usage counts in pages compared with the roots",
    "volumes flushed",
    "leaves of maps made a checkpoint due",
    "volumes met a full disk",
    "what was on its way into an erased domain was refused",
    "what was under an older data key was written again",
    "what was condemned was spared before a recount",
    "what was lost was put again",
    "what was noted was whole",
    "who held a volume of an erased domain was refused",
];

/// The simulator of the archive engine.
pub struct Archive;

impl Simulator for Archive {
    type Params = Params;

    const TITLE: &'static str = "\
Crash and fault simulation of the archive engine. Without arguments: kept seeds and 1,000 seeds.";

    const COMMAND: &'static str = "onefold-sim archive";

    const SEEDS: u64 = 1_000;
    const KEPT: &'static str = include_str!("../../seeds/archive.txt");
    const FOUND: &'static str = include_str!("../../seeds/archive-bugs.txt");

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
        let mut sim = Sim::new(params.clone(), loud);
        let failure = guarded(|| sim.run()).err();
        sim.actors = Actors::default();
        let mut reach = std::mem::take(&mut sim.reach);
        reach.merge(&sim.files.reach());
        Outcome { seed: params.seed, params, failure, trace: sim.files.trace(), reach }
    }

    fn marks(&self) -> Vec<&'static str> {
        MARKS.to_vec()
    }
}
