//! `cargo xtask paper`: the papers' experiments by `onefold lab paper`, with the recorded traces of this repository.

use std::{fs, path::PathBuf, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::{
    ceph, machine,
    product::{Build, Onefold, path},
    program::show,
    test::Tally,
};

const USAGE: &str = "\
cargo xtask paper thindedup|ordermerge|global|dedupv1|rad [--quick]
                                    the experiments of a paper, on device models in virtual time";

/// Longest that they may take, in short and in full.
const QUICK_LIMIT: Duration = Duration::from_secs(240);
const LIMIT: Duration = Duration::from_secs(3600);

/// A paper, the statements of it that are known not to be reproduced, for which docs/laboratory.md says why, and what is replayed, too.
type Paper = (&'static str, &'static [&'static str], &'static [&'static str]);

/// Recorded block traces.
const TRACES: &[&str] = &["apt.dtrace.zst", "pgbench.dtrace.zst", "srcver.dtrace.zst"];

/// Manifests of releases.
const MANIFESTS: &[&str] =
    &["rad/rocksdb-far.manifest.zst", "rad/rocksdb.manifest.zst", "rad/spdk.manifest.zst", "rad/archives.manifest.zst"];

const PAPERS: [Paper; 5] = [
    ("thindedup", &[], TRACES),
    ("ordermerge", &["Fig 2B: time, weak persistence"], TRACES),
    ("global", &["Table 3: recovery"], TRACES),
    ("dedupv1", &["Fig 4.5: clients", "Fig 4.6: throughput with chunks of 16 KiB", "Fig 4.7: a small auxiliary index, afterwards"], &[]),
    ("rad", &[], MANIFESTS),
];

/// Runs a paper's experiments; `Ok(false)` when a statement is missed that used to be reproduced.
pub(crate) fn run(arguments: &[String]) -> Result<bool> {
    let (paper, quick) = match arguments {
        [paper] => (paper, false),
        [paper, quick] if quick == "--quick" => (paper, true),
        _ => bail!("which?\n\n{USAGE}"),
    };
    let Some(paper) = PAPERS.into_iter().find(|(name, ..)| name == paper) else { bail!("there is no paper '{paper}'\n\n{USAGE}") };
    Ok(experiments(&Onefold::build(Build::Release)?, paper, quick)?.failed == 0)
}

/// What CI does: the short form of each paper.
pub(crate) fn short() -> Result<Tally> {
    let onefold = Onefold::build(Build::Test)?;
    let mut all = Tally::default();
    for paper in PAPERS {
        let Tally { passed, failed, note } = experiments(&onefold, paper, true)?;
        all = Tally { passed: all.passed + passed, failed: all.failed + failed, note: [all.note, note].join(" ").trim().to_owned() };
    }
    Ok(all)
}

/// Where the page and the figures of a paper go.
pub(crate) fn directory(paper: &str) -> PathBuf {
    machine::root().join("target").join("paper").join(paper)
}

/// The papers' names.
pub(crate) fn names() -> [&'static str; 5] {
    PAPERS.map(|(name, ..)| name)
}

/// Runs one paper's experiments. A statement fails that is missed and not known to be.
fn experiments(onefold: &Onefold, (paper, known, replayed): Paper, quick: bool) -> Result<Tally> {
    let out = directory(paper);
    let data = machine::root().join("crates").join("lab").join("data");
    let traces = replayed.iter().map(|name| path(&data.join(name)).to_owned()).collect::<Vec<_>>().join(",");
    let mut arguments = vec!["lab", "paper", paper, "--out", path(&out)];
    if !replayed.is_empty() {
        arguments.extend(["--traces", &traces]);
    }
    // What is asked of a real cluster needs one; without it these statements are not run, and say so.
    let cluster =
        if quick || paper != "global" { None } else { ceph::ForPaper::start().map_err(|error| println!("no cluster: {error:#}")).ok() };
    let configuration = cluster.as_ref().map(ceph::ForPaper::configuration);
    if let Some(configuration) = &configuration {
        arguments.extend(["--cluster", path(configuration)]);
    }
    if quick {
        arguments.push("--quick");
    }
    let onefold = cluster.as_ref().map_or_else(
        || onefold.clone(),
        |_| {
            let (variable, user) = ceph::ForPaper::user();
            onefold.with(variable, &user)
        },
    );
    let ended = show(onefold.command(arguments), if quick { QUICK_LIMIT } else { LIMIT })?;
    if let Some(cluster) = &cluster {
        cluster.show_own_deduplication();
    }
    ensure!(ended.status.success(), "the experiments failed ({})", ended.status);
    let name = format!("{paper}.json");
    let figures: Value = serde_json::from_slice(&fs::read(out.join(&name))?).with_context(|| name.clone())?;
    let statements = figures["statements"].as_array().with_context(|| format!("{name} has no statements"))?;
    let of = |verdict: &'static str| {
        let these = statements.iter().filter(move |statement| statement["verdict"] == verdict);
        these.filter_map(|statement| statement["item"].as_str()).collect::<Vec<&str>>()
    };
    let (missed, not_run) = (of("NotReproduced"), of("NotRun"));
    let reproduced = of("Reproduced").len() + of("Better").len();
    let possible = reproduced + missed.len();
    let (_, new): (Vec<&str>, Vec<&str>) = missed.iter().partition(|item| known.contains(item));
    println!("{paper}: {reproduced} of {possible} statements are reproduced ({:.1} %)", reproduced as f64 * 100.0 / possible.max(1) as f64);
    for (what, items) in [("missed", &missed), ("missed, and reproduced before", &new), ("not run", &not_run)] {
        if !items.is_empty() {
            println!("{what}: {}", items.join("; "));
        }
    }
    Ok(Tally { passed: reproduced, failed: new.len(), note: format!("{paper}: {reproduced} of {possible}.") })
}
