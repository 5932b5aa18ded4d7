//! "Design of Global Data Deduplication for a Scale-out Distributed Storage System" (ICDCS '18).
//!
//! Effects of placement are simulated; the engine's writes and reads are counted on the real
//! engine over an object store in memory; its speed is that of the paper's cluster in virtual time
//! ([`clock`]). [`real`] asks a real cluster, where there is one.

mod clock;
mod clones;
mod counted;
mod database;
mod placement;
mod processor;
mod real;
mod recovery;
mod site;
mod space;
mod speed;
mod traffic;

use onefold_core::Result;

use super::{
    item::{Extent, Item},
    run::{self, Results},
};

/// The paper's statements, in its order.
const GROUPS: [&[Item]; 7] = [
    &placement::ITEMS,
    &traffic::ITEMS,
    &space::ITEMS,
    &recovery::ITEMS,
    &speed::ITEMS,
    &database::ITEMS,
    &real::ITEMS,
];

/// Names by which items are chosen.
pub(crate) const NAMES: [&str; 14] = [
    "table1", "3", "5a", "entry", "table2", "13", "table3", "5b", "10", "11", "marks", "12",
    "plain", "beside",
];

/// Runs the items named, or all of them when there are no names.
///
/// # Errors
/// The first of any run.
pub(crate) fn run(
    names: &[String],
    extent: &Extent,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Results> {
    let about = [
        "Placement is simulated: an object of 4 MiB goes to a node by chance, a chunk to the one \
         that its name decides."
            .to_owned(),
        "Bytes and operations are counted on the real engine, with real chunks, maps, references, \
         LZ4 and workers, over an object store in memory; copies and parity are added by \
         arithmetic. Each object of the store is taken for 512 bytes of its own, as the paper does."
            .to_owned(),
        "Speed is that of the paper's cluster in virtual time: what the real engine sends goes \
         through queues of links, processors and disks. Three constants are fitted to the paper's \
         original, none to its own system. The paper's consistency, a crash at each of its steps 1 \
         to 5, is out of scope of these pages: the simulator judges it, cargo xtask sim cluster."
            .to_owned(),
    ];
    run::run("Global deduplication", &about, &GROUPS, names, extent, progress)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_known_by_their_names() {
        assert_eq!(run::names(&GROUPS), NAMES);
    }

    #[test]
    fn what_needs_a_trace_is_not_run_without() {
        let extent = Extent { quick: true, traces: Vec::new(), cluster: None };
        let results =
            run(&["3", "13", "12", "plain"].map(String::from), &extent, &mut |_, _| {}).unwrap();
        assert_eq!(
            (results.score.not_run, results.score.possible),
            (4, 0),
            "{:#?}",
            results.statements
        );
    }

    #[test]
    fn what_is_counted_is_reproduced() {
        let results = run(
            &["table1", "entry", "table2"].map(String::from),
            &Extent { quick: true, traces: Vec::new(), cluster: None },
            &mut |_, _| {},
        )
        .unwrap();
        assert_eq!(
            (results.score.reproduced, results.score.possible),
            (3, 3),
            "{:#?}",
            results.statements
        );
    }
}
