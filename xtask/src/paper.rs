//! `cargo xtask paper`: the papers' experiments by `onefold-lab paper`, with the recorded traces of
//! this repository.

use std::{fs, path::PathBuf, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::{
    ceph, machine,
    product::{Build, Onefold, path},
    program::{finish, show},
    test::Tally,
};

const USAGE: &str = "\
cargo xtask paper thindedup|ordermerge|global|dedupv1|rad [--quick]
                                    the experiments of a paper, on device models in virtual time";

/// Longest that they may take, in short and in full.
const QUICK_LIMIT: Duration = Duration::from_secs(480);
const LIMIT: Duration = Duration::from_secs(3600);

/// A paper: what is replayed, and its statements that are known not to count, for which
/// docs/laboratory.md says why.
struct Paper {
    name: &'static str,
    replayed: &'static [&'static str],
    /// How many statements there are: none may vanish.
    statements: usize,
    /// Calibrated, or out of scope, whatever the form.
    apart: &'static [&'static str],
    quick: Known,
    full: Known,
}

/// Statements of one form that are known to be missed, and not to be run. A full run does not
/// excuse what a quick one excuses.
struct Known {
    missed: &'static [&'static str],
    not_run: &'static [&'static str],
}

/// Recorded block traces.
const TRACES: &[&str] = &["apt.dtrace.zst", "pgbench.dtrace.zst", "srcver.dtrace.zst"];

/// The same, and clones of a virtual machine.
const TRACES_AND_CLONES: &[&str] =
    &["apt.dtrace.zst", "pgbench.dtrace.zst", "srcver.dtrace.zst", "vmclones.dtrace.zst"];

/// Manifests of releases.
const MANIFESTS: &[&str] = &[
    "rad/rocksdb-far.manifest.zst",
    "rad/rocksdb.manifest.zst",
    "rad/spdk.manifest.zst",
    "rad/archives.manifest.zst",
];

const PAPERS: [Paper; 5] = [
    Paper {
        name: "thindedup",
        replayed: TRACES,
        statements: 15,
        apart: &[
            "Setup: LZ4",
            "Fig 3a: random, hard disk",
            "Fig 3b: sequential, hard disk",
            "Fig 3c: random, SSD",
            "Fig 3d: sequential, SSD",
            "Fig 4: latency, hard disk",
        ],
        quick: Known { missed: &["Abstract: latency cut", "Fig 6: duplicates"], not_run: &[] },
        full: Known { missed: &["Abstract: latency cut", "Fig 6: duplicates"], not_run: &[] },
    },
    Paper {
        name: "ordermerge",
        replayed: TRACES,
        statements: 9,
        apart: &["Section 4.5: energy"],
        quick: Known { missed: &["Fig 2B: time, weak persistence"], not_run: &[] },
        full: Known {
            missed: &[
                "Fig 2A: write volume, weak persistence",
                "Fig 2B: time, weak persistence",
                "Fig 3A: write volume, strong persistence",
            ],
            not_run: &[],
        },
    },
    Paper {
        name: "global",
        replayed: TRACES_AND_CLONES,
        statements: 14,
        apart: &[],
        // In the six seconds that a short run looks at, one step of a worker more or less is a
        // fifth of what it may do.
        quick: Known {
            missed: &[
                "Figure 5a: 16 KiB writes into chunks of 32 KiB",
                "Fig 5b and 14: deduplication beside foreground load",
                "Table 3: recovery",
            ],
            not_run: &[
                "On Ceph: volumes beside the plain pool",
                "On Ceph: foreground beside workers",
            ],
        },
        full: Known {
            missed: &[
                "Figure 5a: 16 KiB writes into chunks of 32 KiB",
                "Table 3: recovery",
                "On Ceph: foreground beside workers",
            ],
            not_run: &[],
        },
    },
    Paper {
        name: "dedupv1",
        replayed: &[],
        statements: 19,
        // Fig 4.6 is missed by a quick run, and calibrated in a full one.
        apart: &[
            "Fig 4.3: SSDs and disks",
            "Fig 4.3: four, two and one SSD",
            "Fig 4.3: the second generation on SSDs",
            "Fig 4.3: the index in memory",
            "Fig 4.5: clients",
            "Fig 4.6: throughput with chunks of 16 KiB",
            "Section 4.4: redundancy found with chunks of 8 KiB",
        ],
        quick: Known {
            missed: &[
                "Section 4.3: one client with fewer SSDs, predicted",
                "Fig 4.6: throughput with chunks of 16 KiB",
                "Fig 4.7: a small auxiliary index, afterwards",
            ],
            not_run: &[],
        },
        full: Known {
            missed: &["Section 4.3: one client with fewer SSDs, predicted", "Fig 4.5: clients"],
            not_run: &[],
        },
    },
    Paper {
        name: "rad",
        replayed: MANIFESTS,
        statements: 7,
        apart: &[],
        quick: Known { missed: &[], not_run: &[] },
        full: Known { missed: &[], not_run: &[] },
    },
];

/// Runs a paper's experiments; `Ok(false)` when a statement counts no more that used to.
pub(crate) fn run(arguments: &[String]) -> Result<bool> {
    let (paper, quick) = match arguments {
        [paper] => (paper, false),
        [paper, quick] if quick == "--quick" => (paper, true),
        _ => bail!("which?\n\n{USAGE}"),
    };
    let Some(paper) = PAPERS.iter().find(|known| known.name == paper) else {
        bail!("there is no paper '{paper}'\n\n{USAGE}")
    };
    Ok(experiments(&Onefold::laboratory(Build::Release)?, paper, quick)?.failed == 0)
}

/// The step of CI: the short form of each paper, as many at a time as there are processors: their
/// time is virtual.
pub(crate) fn short() -> Result<Tally> {
    let laboratory = Onefold::laboratory(Build::Test)?;
    let mut all = Tally::default();
    for tally in machine::side_by_side(&PAPERS, |paper| experiments(&laboratory, paper, true)) {
        let Tally { passed, failed, note } = tally?;
        all = Tally {
            passed: all.passed + passed,
            failed: all.failed + failed,
            note: [all.note, note].join(" ").trim().to_owned(),
        };
    }
    Ok(all)
}

/// Where the page and the figures of a paper go.
pub(crate) fn directory(paper: &str) -> PathBuf {
    machine::root().join("target").join("paper").join(paper)
}

/// The papers' names.
pub(crate) fn names() -> [&'static str; 5] {
    PAPERS.each_ref().map(|paper| paper.name)
}

/// Runs one paper's experiments. A statement fails that neither counts nor is known not to.
fn experiments(laboratory: &Onefold, known: &Paper, quick: bool) -> Result<Tally> {
    let Paper { name: paper, replayed, .. } = *known;
    let out = directory(paper);
    let data = machine::root().join("crates").join("lab").join("data");
    let traces =
        replayed.iter().map(|name| path(&data.join(name)).to_owned()).collect::<Vec<_>>().join(",");
    let mut arguments = vec!["paper", paper, "--out", path(&out)];
    if !replayed.is_empty() {
        arguments.extend(["--traces", &traces]);
    }
    // Some statements need a real cluster; without one they are not run, and say so.
    let cluster = if quick || paper != "global" {
        None
    } else {
        ceph::ForPaper::start().map_err(|error| println!("no cluster: {error:#}")).ok()
    };
    let configuration = cluster.as_ref().map(ceph::ForPaper::configuration);
    if let Some(configuration) = &configuration {
        arguments.extend(["--cluster", path(configuration)]);
    }
    if quick {
        arguments.push("--quick");
    }
    let laboratory = cluster.as_ref().map_or_else(
        || laboratory.clone(),
        |_| {
            let (variable, user) = ceph::ForPaper::user();
            laboratory.with(variable, &user)
        },
    );
    let ended = if quick {
        // Short ones run beside each other, and are told one after the other.
        let ended = finish(laboratory.command(arguments), QUICK_LIMIT, false)?;
        print!("{}", ended.output);
        ended
    } else {
        show(laboratory.command(arguments), LIMIT)?
    };
    if let Some(cluster) = &cluster {
        cluster.show_own_deduplication();
    }
    ensure!(ended.status.success(), "the experiments failed ({})", ended.status);
    let name = format!("{paper}.json");
    let figures: Value =
        serde_json::from_slice(&fs::read(out.join(&name))?).with_context(|| name.clone())?;
    let statements =
        figures["statements"].as_array().with_context(|| format!("{name} has no statements"))?;
    let verdicts: Vec<(&str, &str)> = statements
        .iter()
        .filter_map(|statement| Some((statement["item"].as_str()?, statement["verdict"].as_str()?)))
        .collect();
    ensure!(
        verdicts.len() == known.statements,
        "{name} has {} statements with a verdict, of {}",
        verdicts.len(),
        known.statements
    );
    let (fallen, risen) = (fallen(known, quick, &verdicts), risen(known, quick, &verdicts));
    let count = |verdict: &str| verdicts.iter().filter(|statement| statement.1 == verdict).count();
    let [reproduced, better] = ["Reproduced", "Better"].map(count);
    let note = format!("{paper}: {reproduced} reproduced, {better} better, of {}.", verdicts.len());
    println!("{note}");
    fallen.iter().for_each(|text| println!("counted before, and does not now: {text}"));
    risen
        .iter()
        .for_each(|item| println!("counts, though it is listed as missed or not run: {item}"));
    Ok(Tally { passed: verdicts.len() - fallen.len(), failed: fallen.len(), note })
}

/// Statements that neither count nor are known not to, each with its verdict.
fn fallen(paper: &Paper, quick: bool, verdicts: &[(&str, &str)]) -> Vec<String> {
    let known = if quick { &paper.quick } else { &paper.full };
    let excused = |item: &str, verdict: &str| match verdict {
        "Reproduced" | "Better" => true,
        "Missed" => known.missed.contains(&item),
        "NotRun" => known.not_run.contains(&item),
        _ => paper.apart.contains(&item),
    };
    verdicts
        .iter()
        .filter(|(item, verdict)| !excused(item, verdict))
        .map(|(item, verdict)| format!("{item} ({verdict})"))
        .collect()
}

/// Statements that count and are listed as if they did not.
fn risen<'a>(paper: &Paper, quick: bool, verdicts: &[(&'a str, &str)]) -> Vec<&'a str> {
    let known = if quick { &paper.quick } else { &paper.full };
    let listed = |item: &&str| known.missed.contains(item) || known.not_run.contains(item);
    let counts = verdicts.iter().filter(|statement| matches!(statement.1, "Reproduced" | "Better"));
    counts.map(|statement| statement.0).filter(listed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAPER: Paper = Paper {
        name: "paper",
        replayed: &[],
        statements: 2,
        apart: &["fitted"],
        quick: Known { missed: &["short"], not_run: &["real"] },
        full: Known { missed: &["missed"], not_run: &[] },
    };

    #[test]
    fn what_is_not_run_any_more_fails() {
        assert_eq!(
            fallen(&PAPER, false, &[("real", "NotRun"), ("one", "NotRun")]),
            ["real (NotRun)", "one (NotRun)"]
        );
        assert_eq!(
            fallen(&PAPER, true, &[("real", "NotRun"), ("one", "NotRun")]),
            ["one (NotRun)"]
        );
    }

    #[test]
    fn what_a_quick_run_misses_a_full_one_may_not() {
        let verdicts =
            [("short", "Missed"), ("missed", "Missed"), ("one", "Better"), ("two", "Reproduced")];
        assert_eq!(fallen(&PAPER, false, &verdicts), ["short (Missed)"]);
        assert_eq!(fallen(&PAPER, true, &verdicts), ["missed (Missed)"]);
    }

    #[test]
    fn what_is_fitted_now_and_was_not_before_fails() {
        assert_eq!(
            fallen(
                &PAPER,
                true,
                &[("fitted", "Calibrated"), ("one", "Calibrated"), ("two", "OutOfScope")]
            )
            .len(),
            2
        );
        assert_eq!(risen(&PAPER, true, &[("short", "Reproduced"), ("one", "Better")]), ["short"]);
    }
}
