//! `cargo xtask paper`: a paper's experiments by `onefold lab paper`, with the recorded traces of this repository.

use std::{fs, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::{
    machine,
    product::{Build, Onefold, path},
    program::show,
};

const USAGE: &str = "cargo xtask paper thindedup [--quick]   the experiments of a paper, on device models in virtual time";

/// Longest that they may take, in short and in full.
const QUICK_LIMIT: Duration = Duration::from_secs(60);
const LIMIT: Duration = Duration::from_secs(600);

/// Statements that are known not to be reproduced; docs/laboratory.md says why.
const MISSED: [&str; 2] = ["Abstract: latency cut", "Fig 6: duplicates"];

/// Traces that are replayed, too.
const TRACES: [&str; 3] = ["apt", "pgbench", "srcver"];

/// Runs a paper's experiments; `Ok(false)` when a statement is missed that used to be reproduced.
pub(crate) fn run(arguments: &[String]) -> Result<bool> {
    let quick = match arguments {
        [paper] if paper == "thindedup" => false,
        [paper, quick] if paper == "thindedup" && quick == "--quick" => true,
        _ => bail!("which?\n\n{USAGE}"),
    };
    let onefold = Onefold::build(Build::Release)?;
    let out = machine::root().join("target").join("paper").join("thindedup");
    let data = machine::root().join("crates").join("lab").join("data");
    let traces = TRACES.map(|name| path(&data.join(format!("{name}.dtrace.zst"))).to_owned()).join(",");
    let mut arguments = vec!["lab", "paper", "thindedup", "--out", path(&out), "--traces", &traces];
    if quick {
        arguments.push("--quick");
    }
    let ended = show(onefold.command(arguments), if quick { QUICK_LIMIT } else { LIMIT })?;
    ensure!(ended.status.success(), "the experiments failed ({})", ended.status);
    let figures: Value = serde_json::from_slice(&fs::read(out.join("thindedup.json"))?).context("thindedup.json")?;
    let statements = figures["statements"].as_array().context("thindedup.json has no statements")?;
    let missed =
        statements.iter().filter(|statement| statement["verdict"] == "NotReproduced").filter_map(|statement| statement["item"].as_str());
    let (known, new): (Vec<&str>, Vec<&str>) = missed.partition(|item| MISSED.contains(item));
    let number = |key: &str| figures[key].as_f64().with_context(|| format!("thindedup.json has no {key}"));
    let (reproduced, possible) = (number("reproduced")?, number("possible")?);
    println!("{:.1} % of the statements are reproduced; known to be missed: {}", reproduced * 100.0 / possible, known.join(", "));
    if !new.is_empty() {
        println!("missed, and reproduced before: {}", new.join(", "));
    }
    Ok(new.is_empty())
}
