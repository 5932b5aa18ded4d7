//! "Design of Global Data Deduplication for a Scale-out Distributed Storage System" (ICDCS '18).
//!
//! What placement decides is simulated; what the engine writes and reads is counted on the real engine over an object store in memory. What hangs on the speed of a
//! cluster needs one.

mod counted;
mod placement;
mod site;
mod space;
mod traffic;

use onefold_core::Result;

use super::{
    item::{Extent, Item, Judgement, no_figure, nothing},
    run::{self, Results},
};

/// What the paper states, in its order.
const GROUPS: [&[Item]; 4] = [&placement::ITEMS, &traffic::ITEMS, &space::ITEMS, &SPEED];

/// Names by which items are chosen.
pub const NAMES: [&str; 10] = ["table1", "3", "5a", "entry", "table2", "13", "table3", "5b", "10", "11"];

/// A statement about speed, which is not judged here.
const fn speed(id: &'static str, name: &'static str, says: &'static str, band: &'static str) -> Item {
    let judge = |_: &Extent, _: &super::item::Look<'_>| Judgement {
        missing: true,
        remark: "It hangs on the speed of a cluster, and is not run here.".to_owned(),
        ..Judgement::default()
    };
    Item { id, name, says, band, fitted: false, cases: nothing, judge, draw: no_figure }
}

/// What needs a cluster with the processors of more than one machine.
const SPEED: [Item; 3] = [
    speed(
        "5b",
        "Fig 5b and 14: deduplication beside foreground load",
        "background deduplication takes 500-600 MB/s to 200; with rate control 400-500",
        "without control ≤ 45 % of no deduplication; with control 70-95 %",
    ),
    speed(
        "10",
        "Fig 10: latency of 8 KiB random I/O",
        "write latency up to 20 % more; flush-through worst",
        "write ≤ 25 % more, cached read and write ≤ 10 %",
    ),
    speed(
        "11",
        "Fig 11: sequential throughput",
        "small uncached reads about half of the original, close at 128 KiB; writes slightly below",
        "read at 32 KiB 0.4-0.7 of the original, at 128 KiB ≥ 0.75; write ≥ 0.85",
    ),
];

/// Runs the items named, or all of them when there are no names.
///
/// # Errors
/// The first of any run.
pub fn run(names: &[String], extent: &Extent, progress: &mut dyn FnMut(u64, u64)) -> Result<Results> {
    let about = [
        "Placement is simulated: an object of 4 MiB goes to a node by chance, a chunk to the one that its name decides.".to_owned(),
        "Bytes and operations are counted on the real engine, with real chunks, maps, references, LZ4 and workers, over an object store in memory; copies and parity are \
         added by arithmetic. Each object of the store is taken for 512 bytes of its own, as the paper does."
            .to_owned(),
        "Crashes are the simulator's business: cargo xtask sim cluster. What hangs on speed is not run here.".to_owned(),
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
    fn what_is_counted_is_reproduced() {
        let results = run(&[], &Extent { quick: true, traces: Vec::new() }, &mut |_, _| {}).unwrap();
        assert_eq!((results.reproduced, results.possible), (6, 6), "{:#?}", results.statements);
    }
}
