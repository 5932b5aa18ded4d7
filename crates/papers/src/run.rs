//! All items of a paper: cases are run, statements judged, and the page is put together.

use std::time::Instant;

use onefold_core::{Kind, Result};
use serde::{Deserialize, Serialize};

use super::{
    case::{Case, Measured},
    item::{Extent, Item, Judgement, Look},
};
use onefold_lab::{
    report::{Figure, Report, Score, Section, Statement, Table, Verdict, number},
    workload::Workload,
};

/// Everything that came out of a paper's experiments.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Results {
    /// The paper.
    pub(crate) paper: String,
    /// The short form was run.
    pub(crate) quick: bool,
    /// How many statements came to which verdict.
    #[serde(flatten)]
    pub(crate) score: Score,
    /// Each statement beside what was found.
    pub(crate) statements: Vec<Statement>,
    /// Every run.
    pub(crate) points: Vec<Measured>,
    /// The page, as data.
    pub(crate) report: Report,
    /// Real seconds that all of it took.
    pub(crate) wall_seconds: f64,
}

/// Runs the items named, or all of them when there are no names. `progress` hears of the blocks
/// written and how many there will be.
///
/// # Errors
/// The first of any replay; `Corrupt` when a block reads back wrong.
pub(super) fn run(
    paper: &str,
    about: &[String],
    groups: &[&'static [Item]],
    names: &[String],
    extent: &Extent,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Results> {
    let begun = Instant::now();
    let wanted = |item: &&Item| names.is_empty() || names.iter().any(|name| name == item.id);
    let items: Vec<&Item> = groups.iter().copied().flatten().filter(wanted).collect();
    let measured = measure(&items, extent, progress)?;
    let (mut statements, mut sections) = (Vec::new(), Vec::new());
    let mut items_of: Vec<Vec<String>> = vec![Vec::new(); measured.len()];
    for item in &items {
        let look = Look::new(&measured);
        let began = Instant::now();
        let mut judgement = (item.judge)(extent, &look);
        let mut figures = (item.draw)(extent, &look);
        judgement.missing |= look.missing.get();
        let used = look.used.into_inner();
        used.iter().for_each(|&place| items_of[place].push(item.id.to_owned()));
        let looked_at: Vec<&Measured> =
            used.iter().filter_map(|&place| measured[place].1.as_ref()).collect();
        figures.append(&mut judgement.figures);
        if !looked_at.is_empty() {
            figures.push(Figure::Table(table(&looked_at)));
        }
        let statement = stated(item, judgement, &looked_at, began.elapsed().as_secs_f64());
        let line = format!(
            "The paper: {} — Here: {} — Band: {} — {}.",
            statement.says,
            statement.found,
            statement.band,
            statement.verdict.word()
        );
        sections.push(Section {
            title: item.name.to_owned(),
            about: [line, statement.remark.clone()]
                .into_iter()
                .filter(|text| !text.is_empty())
                .collect(),
            figures,
        });
        statements.push(statement);
    }
    let points = measured
        .into_iter()
        .zip(items_of)
        .filter_map(|((_, measured), items)| Some(Measured { items, ..measured? }))
        .collect();
    let report = Report {
        title: format!("{paper}, measured"),
        about: about.to_vec(),
        statements: statements.clone(),
        sections,
    };
    let score = report.score();
    let wall_seconds = begun.elapsed().as_secs_f64();
    Ok(Results {
        paper: paper.to_owned(),
        quick: extent.quick,
        score,
        statements,
        points,
        report,
        wall_seconds,
    })
}

/// The names of a paper's items.
#[cfg(test)]
pub(super) fn names(groups: &[&'static [Item]]) -> Vec<&'static str> {
    groups.iter().copied().flatten().map(|item| item.id).collect()
}

/// Runs every case once. A case whose system the engine does not have stays without figures.
fn measure(
    items: &[&Item],
    extent: &Extent,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Vec<(Case, Option<Measured>)>> {
    let mut cases: Vec<(Case, u64)> = Vec::new();
    for case in items.iter().flat_map(|item| (item.cases)(extent)) {
        if cases.iter().all(|(known, _)| *known != case) {
            let steps = case.steps()?;
            cases.push((case, steps));
        }
    }
    let total: u64 = cases.iter().map(|(_, steps)| steps).sum();
    let mut before = 0;
    let mut measured = Vec::with_capacity(cases.len());
    for (case, steps) in cases {
        let outcome = match case.run(&mut |steps| progress(before + steps, total)) {
            Err(error) if error.kind() == Kind::Unsupported => None,
            outcome => Some(outcome?),
        };
        before += steps;
        measured.push((case, outcome));
    }
    Ok(measured)
}

fn stated(item: &Item, judgement: Judgement, used: &[&Measured], own: f64) -> Statement {
    let missed: Vec<&str> =
        judgement.checks.iter().filter(|check| !check.1).map(|check| check.0.as_str()).collect();
    let verdict = match missed.len() {
        _ if judgement.out_of_scope => Verdict::OutOfScope,
        _ if judgement.missing => Verdict::NotRun,
        1.. => Verdict::Missed,
        0 if item.calibrated.is_some() => Verdict::Calibrated,
        0 if judgement.better => Verdict::Better,
        0 => Verdict::Reproduced,
    };
    let mut remark = match verdict {
        Verdict::Missed => format!("Missed: {}. ", missed.join("; ")),
        Verdict::Calibrated => {
            format!("Fitted to the same figures: {}. ", item.calibrated.unwrap_or_default())
        }
        Verdict::NotRun if judgement.remark.is_empty() => {
            "The engine does not have one of the systems. ".to_owned()
        }
        _ => String::new(),
    };
    remark.push_str(&judgement.remark);
    let found = if verdict == Verdict::NotRun {
        "not run".to_owned()
    } else {
        judgement.checks.into_iter().map(|check| check.0).collect::<Vec<_>>().join("; ")
    };
    Statement {
        item: item.name.to_owned(),
        says: item.says.to_owned(),
        found,
        band: item.band.to_owned(),
        verdict,
        remark: remark.trim_end().to_owned(),
        fitted: item.fitted,
        blocks: judgement.blocks
            + used.iter().map(|measured| measured.blocks_with_warm_up).sum::<u64>(),
        wall_seconds: own + used.iter().map(|measured| measured.outcome.wall_seconds).sum::<f64>(),
    }
}

fn table(of: &[&Measured]) -> Table {
    let columns = [
        "workload",
        "device",
        "window",
        "persistence",
        "dup ratio",
        "comp %",
        "system",
        "blocks/s",
        "with checkpoints",
        "p50 ms",
        "p80 ms",
        "seconds",
        "flushes",
        "ideal blocks",
        "to device",
        "with checkpoints",
        "hidden %",
        "blocks",
        "wall s",
    ];
    let row = |measured: &&Measured| {
        let Measured { outcome, setting, workload, .. } = measured;
        let of_workload = |of: fn(&Workload) -> f64| {
            workload.as_ref().map_or("recorded".to_owned(), |workload| number(of(workload)))
        };
        vec![
            setting.source.clone(),
            setting.device.clone(),
            setting.window_blocks.to_string(),
            setting.persistence.clone(),
            of_workload(|workload| workload.ratio),
            of_workload(|workload| workload.compressible * 100.0),
            measured.system.name().to_owned(),
            number(measured.throughput),
            number(measured.throughput_with_checkpoints),
            format!("{:.2}", outcome.write_latency.p50_ms),
            format!("{:.2}", outcome.write_latency.p80_ms),
            format!("{:.2}", outcome.virtual_seconds),
            number(outcome.flushes as f64),
            number(outcome.ideal_blocks as f64),
            number((outcome.device_blocks - measured.left_out()) as f64),
            number(outcome.device_blocks as f64),
            format!("{:.1}", measured.hidden() * 100.0),
            number(measured.blocks_with_warm_up as f64),
            format!("{:.2}", outcome.wall_seconds),
        ]
    };
    Table {
        title: "In numbers".to_owned(),
        columns: columns.map(str::to_owned).to_vec(),
        rows: of.iter().map(row).collect(),
    }
}
