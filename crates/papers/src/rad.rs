//! RAD's experiments (Liu et al.), on manifests of successive releases.
//!
//! Directories are manifests of source trees; a manifest whose name begins with `archives` has
//! compressed files. The paper's datasets are not available: the bands are stated for these.

mod engine;

use onefold_core::Result;

use super::{
    item::{Extent, Item, Judgement, Look, no_figure, nothing},
    run::{self, Results},
};
use onefold_lab::{
    rad::{
        Options, Outcome, Placement, expected,
        manifest::{Version, read},
        reliability::{Codes, Disks},
        replay,
    },
    report::{Axis, Bars, Figure, Table},
};

/// Versions placed together: the paper does not say how many; one gains least.
const BATCHES: [usize; 3] = [1, 2, 5];

/// The paper's statements, in its order.
const ITEMS: [Item; 7] = [
    Item {
        id: "table1",
        name: "Table I: similarity",
        says: "consecutive versions of source trees are 14 to 36 % alike, compressed archives 14 \
               to 15 %",
        band: "ours, told: the share of chunks found in the version before, and of both versions' \
               chunks the share that is in both; trees above archives",
        fitted: false,
        calibrated: None,
        cases: nothing,
        judge: similarity,
        draw: no_figure,
    },
    Item {
        id: "5",
        name: "Figure 5: stripes that break",
        says: "with round-robin nearly all stripes of a file are expected to break",
        band: "arithmetic and simulation within 2 %; above 95 % of the stripes of 12 chunks when \
               half of the chunks are shared",
        fitted: false,
        calibrated: None,
        cases: nothing,
        judge: stripes,
        draw: no_figure,
    },
    Item {
        id: "7",
        name: "Figure 7: collection of directories",
        says: "deletions take up to 24.8 % less time with RAD, some versions gain nothing",
        band: "batches of two versions: at least 20 % fewer chunks encoded again on every tree, \
               some version at least 8 % faster; batches of five: 90 % fewer",
        fitted: false,
        calibrated: None,
        cases: nothing,
        judge: directories,
        draw: no_figure,
    },
    Item {
        id: "8",
        name: "Figure 8: collection of archives",
        says: "on compressed files RAD takes slightly longer",
        band: "RAD takes at most 10 % longer, and is never more than 5 % faster",
        fitted: false,
        calibrated: None,
        cases: nothing,
        judge: archives,
        draw: no_figure,
    },
    Item {
        id: "10",
        name: "Figures 9 and 10: space and reliability",
        says: "(14, 10, 6): the baseline uses 80 % and loses data after 5.48e11 hours; RAD is \
               better in space below alpha 0.30, in reliability above 0.13; other tuples lie \
               inside (0.05, 0.65)",
        band: "0.800; 5.48e11 within 0.5 %; 0.295 to 0.305; 0.11 to 0.14",
        fitted: false,
        calibrated: None,
        cases: nothing,
        judge: reliability,
        draw: no_figure,
    },
    Item {
        id: "alpha",
        name: "Section V: alpha of real data",
        says: "0.14 to 0.36 of the chunks have more than one reference",
        band: "trees: 0.10 to 0.50, and for each of them a tuple of codes is better in space and \
               reliability by the paper's averages",
        fitted: false,
        calibrated: None,
        cases: nothing,
        judge: alpha,
        draw: no_figure,
    },
    Item {
        id: "engine",
        name: "Algorithm 1 in the archive engine",
        says: "chunks of a batch are sorted by their counts in it, and encoded in this order",
        band: "the engine and the simulation within 2 %: chunks of each class, stripes, and what \
               the deletion of each version breaks; space with containers of 4 MiB",
        fitted: false,
        calibrated: None,
        cases: nothing,
        judge: engine::judge,
        draw: no_figure,
    },
];

/// Names by which items are chosen.
pub(crate) const NAMES: [&str; 7] = ["table1", "5", "7", "8", "10", "alpha", "engine"];

/// Runs the items named, or all of them when there are no names.
///
/// # Errors
/// None; a manifest that can't be read misses its statement.
pub(crate) fn run(
    names: &[String],
    extent: &Extent,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Results> {
    let about = [
        "Five releases are uploaded one after the other and deleted in the same order, on 16 nodes \
         with the code (14, 12) and chunks of 4 KiB. Chunks encoded again are counted exactly; \
         seconds are those of a model: a node reads or writes 100 MB/s, encoding takes 1 ns a \
         byte, a comparison 20 ns, a count 1 µs."
            .to_owned(),
        "Round-robin encodes in the order of arrival, RAD in the order of reference counts inside \
         a batch; what a deletion leaves of broken stripes is encoded again in the same way."
            .to_owned(),
        "Encoding late, when counts stood still for a version, saves what batches of all versions \
         save, and writes every chunk three times more: it is an option, not the default."
            .to_owned(),
    ];
    run::run("RAD", &about, &[&ITEMS], names, extent, progress)
}

/// The manifests of trees, or of archives; what can't be read is a check that failed.
fn manifests(
    extent: &Extent,
    archives: bool,
    judgement: &mut Judgement,
) -> Vec<(String, Vec<Version>)> {
    let mut found = Vec::new();
    for path in &extent.traces {
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .trim_end_matches(".manifest.zst")
            .to_owned();
        if name.starts_with("archives") != archives {
            continue;
        }
        match read(path) {
            Ok(versions) => found.push((name, versions)),
            Err(error) => judgement.check(error.to_string(), false),
        }
    }
    judgement.missing |= found.is_empty();
    judgement.blocks += found
        .iter()
        .flat_map(|(_, versions)| versions)
        .map(|version| version.chunks.len() as u64)
        .sum::<u64>();
    found
}

/// The paper's setting.
fn outcome(
    versions: &[Version],
    batch: usize,
    placement: Placement,
    judgement: &mut Judgement,
) -> Option<Outcome> {
    let found = replay(
        versions,
        &Options { n: 14, k: 12, nodes: 16, batch, delay: 0, placement, by_class: false },
    );
    found.map_err(|error| judgement.check(error.to_string(), false)).ok()
}

fn table(title: &str, columns: &[&str], rows: Vec<Vec<String>>) -> Figure {
    Figure::Table(Table {
        title: title.to_owned(),
        columns: columns.iter().map(|&name| name.to_owned()).collect(),
        rows,
    })
}

fn similarity(extent: &Extent, _: &Look<'_>) -> Judgement {
    let (mut judgement, mut rows) = (Judgement::default(), Vec::new());
    let mut means = [Vec::new(), Vec::new()];
    for (archives, means) in [false, true].into_iter().zip(&mut means) {
        for (name, versions) in manifests(extent, archives, &mut judgement) {
            let (mut found, mut both) = (Vec::new(), Vec::new());
            for two in versions.windows(2) {
                let set = |version: &Version| {
                    version.chunks.iter().copied().collect::<std::collections::HashSet<u64>>()
                };
                let (old, new) = (set(&two[0]), set(&two[1]));
                let common = new.intersection(&old).count() as f64;
                found.push(
                    two[1].chunks.iter().filter(|hash| old.contains(hash)).count() as f64
                        / two[1].chunks.len().max(1) as f64,
                );
                both.push(common / (old.len() + new.len()) as f64 * 2.0);
            }
            let mean = |all: &[f64]| all.iter().sum::<f64>() / all.len().max(1) as f64;
            means.push(mean(&found));
            rows.push(vec![name, format!("{:.3}", mean(&found)), format!("{:.3}", mean(&both))]);
        }
    }
    let least = |all: &[f64]| all.iter().copied().fold(f64::NAN, f64::min);
    let [trees, archives] = [least(&means[0]), means[1].iter().copied().fold(f64::NAN, f64::max)];
    judgement
        .check(format!("trees from {trees:.3} on, archives up to {archives:.3}"), trees > archives);
    judgement.figures.push(table(
        "Similarity",
        &["manifest", "found in the version before", "in both"],
        rows,
    ));
    judgement
}

fn stripes(extent: &Extent, _: &Look<'_>) -> Judgement {
    let (mut judgement, mut rows) = (Judgement::default(), Vec::new());
    let rounds = if extent.quick { 300 } else { 3000 };
    let mut worst: f64 = 0.0;
    for k in [4u64, 12] {
        for shared in [1u64, 2, 3, 6] {
            let all = 1200;
            let duplicates = all * shared / 12;
            let (formula, drawn) = (
                expected::broken(all - duplicates, duplicates, k),
                expected::drawn(all - duplicates, duplicates, k, rounds, 5),
            );
            worst = worst.max((formula / drawn - 1.0).abs());
            rows.push(vec![
                k.to_string(),
                format!("{:.2}", shared as f64 / 12.0),
                (all / k).to_string(),
                format!("{formula:.1}"),
                format!("{drawn:.1}"),
            ]);
        }
    }
    judgement.check(
        format!("arithmetic and simulation differ by at most {:.2} %", worst * 100.0),
        worst <= 0.02,
    );
    let half = expected::broken(600, 600, 12) / 100.0;
    judgement
        .check(format!("half shared, stripes of 12: {:.2} % break", half * 100.0), half > 0.95);
    judgement.remark =
        "The paper's equation (1) is the probability that no stripe breaks at all; here is the \
         expectation itself, which is lower where few chunks are shared."
            .to_owned();
    judgement.figures.push(table(
        "Stripes expected to break",
        &["k", "share of duplicates", "stripes", "arithmetic", "drawn"],
        rows,
    ));
    judgement
}

fn directories(extent: &Extent, _: &Look<'_>) -> Judgement {
    let (mut judgement, mut rows, mut bars) = (Judgement::default(), Vec::new(), Vec::new());
    let trees = manifests(extent, false, &mut judgement);
    for batch in BATCHES {
        let (mut gains, mut fastest, mut heights): (Vec<String>, f64, _) =
            (Vec::new(), 0.0, Vec::new());
        let mut least = f64::INFINITY;
        for (name, versions) in &trees {
            let both = [Placement::RoundRobin, Placement::Rad]
                .map(|placement| outcome(versions, batch, placement, &mut judgement));
            let [Some(robin), Some(rad)] = both else { continue };
            let gain = |robin: f64, rad: f64| (1.0 - rad / robin.max(f64::MIN_POSITIVE)) * 100.0;
            let fewer = gain(robin.reencoded_chunks as f64, rad.reencoded_chunks as f64);
            least = least.min(fewer);
            gains.push(format!("{name} {fewer:.1} %"));
            heights.push(Some(fewer));
            for (one, other) in robin.deletions.iter().zip(&rad.deletions) {
                let faster = gain(one.virtual_seconds, other.virtual_seconds);
                fastest = fastest.max(faster);
                let counts = [one.reencoded_chunks, other.reencoded_chunks].map(|n| n.to_string());
                let seconds =
                    [one.virtual_seconds, other.virtual_seconds].map(|s| format!("{s:.3}"));
                let row = [
                    vec![name.clone(), batch.to_string(), one.version.clone()],
                    counts.to_vec(),
                    seconds.to_vec(),
                    vec![format!("{faster:.1}")],
                ];
                rows.push(row.concat());
            }
        }
        let asked = match batch {
            1 => f64::NEG_INFINITY,
            2 => 20.0,
            _ => 90.0,
        };
        judgement.check(
            format!("batches of {batch}: {} fewer chunks encoded again", gains.join(", ")),
            least >= asked && !trees.is_empty(),
        );
        if batch == 2 {
            judgement.check(format!("some version {fastest:.1} % faster"), fastest >= 8.0);
        }
        bars.push((format!("batches of {batch}"), heights));
    }
    judgement.figures.push(Figure::Bars(Bars {
        title: "Fewer chunks encoded again with RAD".to_owned(),
        y: Axis::linear("% of round-robin's"),
        groups: trees.iter().map(|(name, _)| name.clone()).collect(),
        series: bars,
        mark: None,
        note: String::new(),
    }));
    let columns = [
        "manifest",
        "batch",
        "deleted",
        "round-robin: chunks",
        "RAD: chunks",
        "round-robin: seconds",
        "RAD: seconds",
        "faster by %",
    ];
    judgement.figures.push(table("Each deletion", &columns, rows));
    judgement.remark =
        "With batches of one version counts inside the batch say next to nothing; what is gained \
         comes from sorting what is encoded again."
            .to_owned();
    judgement
}

fn archives(extent: &Extent, _: &Look<'_>) -> Judgement {
    let (mut judgement, mut rows) = (Judgement::default(), Vec::new());
    for (name, versions) in manifests(extent, true, &mut judgement) {
        for batch in BATCHES {
            let both = [Placement::RoundRobin, Placement::Rad]
                .map(|placement| outcome(&versions, batch, placement, &mut judgement));
            let [Some(robin), Some(rad)] = both else { continue };
            let longer = (rad.virtual_seconds / robin.virtual_seconds - 1.0) * 100.0;
            judgement.check(
                format!("batches of {batch}: {longer:+.2} %"),
                (-5.0..=10.0).contains(&longer),
            );
            let chunks = [robin.reencoded_chunks, rad.reencoded_chunks].map(|n| n.to_string());
            rows.push(
                [
                    vec![name.clone(), batch.to_string()],
                    chunks.to_vec(),
                    vec![format!("{longer:+.2}")],
                ]
                .concat(),
            );
        }
    }
    judgement.figures.push(table(
        "Archives",
        &["manifest", "batch", "round-robin: chunks", "RAD: chunks", "longer by %"],
        rows,
    ));
    judgement
}

fn reliability(_: &Extent, _: &Look<'_>) -> Judgement {
    let (mut judgement, mut rows) = (Judgement::default(), Vec::new());
    for (cold, baseline, hot) in [(14, 10, 6), (16, 12, 8), (12, 9, 6), (18, 10, 6), (20, 12, 5)] {
        let tuple = match (Codes { cold, baseline, hot }).compare(Disks::default()) {
            Ok(tuple) => tuple,
            Err(error) => {
                judgement.check(error.to_string(), false);
                continue;
            }
        };
        let [low, high, loss, raw] = tuple.crossings;
        if (cold, baseline, hot) == (14, 10, 6) {
            judgement.check(
                format!("storage {:.3}", tuple.baseline_storage),
                (tuple.baseline_storage - 0.8).abs() < 1e-9,
            );
            let hours = tuple.baseline_mttdl_hours;
            judgement.check(format!("{hours:.3e} hours"), (hours / 5.48e11 - 1.0).abs() < 0.005);
            judgement
                .check(format!("space below alpha {high:.3}"), (0.295..=0.305).contains(&high));
            judgement.check(format!("reliability above {low:.3}"), (0.11..=0.14).contains(&low));
        }
        let numbers = [low, high, raw, loss].map(|n| format!("{n:.3}")).to_vec();
        rows.push(
            [
                vec![format!("{cold}, {baseline}, {hot}")],
                numbers,
                vec![if loss < raw { "some" } else { "none" }.to_owned()],
            ]
            .concat(),
        );
    }
    let columns = [
        "codes",
        "later loss above",
        "less space below",
        "fewer raw bytes below",
        "lower loss rate above",
        "physical range",
    ];
    judgement.figures.push(table("Shares of hot chunks", &columns, rows));
    judgement.remark =
        "By raw bytes for each byte of users, and by loss rates, which are what adds up \
         physically, no tuple is better in both."
            .to_owned();
    judgement
}

fn alpha(extent: &Extent, _: &Look<'_>) -> Judgement {
    let (mut judgement, mut rows) = (Judgement::default(), Vec::new());
    for (name, versions) in manifests(extent, false, &mut judgement) {
        let Some(found) = outcome(&versions, 1, Placement::RoundRobin, &mut judgement) else {
            continue;
        };
        let fits = (7u32..=20).flat_map(|cold| {
            (5..cold).flat_map(move |baseline| {
                (3..baseline).map(move |hot| Codes { cold, baseline, hot })
            })
        });
        let fits = fits.filter(|codes| {
            let tuple = codes.compare(Disks::default()).ok();
            tuple.and_then(|tuple| {
                Some(tuple.alpha_low? < found.alpha && found.alpha < tuple.alpha_high?)
            }) == Some(true)
        });
        let fits = fits.count();
        judgement.check(
            format!("{name} {:.3}, {fits} tuples", found.alpha),
            (0.10..=0.50).contains(&found.alpha) && fits > 0,
        );
        rows.push(vec![name, format!("{:.3}", found.alpha), fits.to_string()]);
    }
    judgement.figures.push(table(
        "Chunks with more than one reference",
        &["manifest", "alpha", "tuples up to 20 that are better in both"],
        rows,
    ));
    judgement
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_statements_are_reproduced_on_the_manifests_of_the_repository() {
        assert_eq!(run::names(&[&ITEMS]), NAMES);
        let data = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../lab/data/rad");
        let traces = ["rocksdb-far", "rocksdb", "spdk", "archives"]
            .map(|name| data.join(format!("{name}.manifest.zst")))
            .to_vec();
        let results =
            run(&[], &Extent { quick: true, traces, cluster: None }, &mut |_, _| {}).unwrap();
        assert_eq!(
            (results.score.reproduced, results.score.possible),
            (7, 7),
            "{:#?}",
            results.statements
        );
    }

    #[test]
    fn without_manifests_their_statements_are_not_run() {
        let results =
            run(&[], &Extent { quick: true, traces: Vec::new(), cluster: None }, &mut |_, _| {})
                .unwrap();
        assert_eq!(
            (results.score.reproduced, results.score.possible),
            (2, 2),
            "{:#?}",
            results.statements
        );
    }
}
