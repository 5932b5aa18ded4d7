//! Power failures for the statements about crashes: short workloads, cut at every point.

use onefold_block::Persistence;
use onefold_core::Kind;

use super::{
    case::{Load, System},
    item::{Extent, Judgement},
};
use onefold_lab::{
    crash::{Outcome, crash},
    report::{Figure, Table, number},
    subject::Choice,
    workload::{Pattern, Workload},
};

/// Blocks of a window, so that a short workload has many.
const WINDOW: usize = 8;

/// Addresses of the generated workload: few, so that blocks are overwritten and reused.
const ADDRESSES: u64 = 700;

/// How often each point is tried with parts of what was not flushed.
const TORN: usize = 2;

/// The workloads: generated, and the beginning of each trace.
fn loads(extent: &Extent) -> Vec<(String, Load)> {
    let (blocks, records) = if extent.quick { (400, 400) } else { (2500, 1500) };
    let generated =
        Workload { volume_blocks: ADDRESSES, ..Workload::paper(Pattern::Random, blocks) };
    let recorded = |path: &std::path::PathBuf| {
        (
            Load::name_of(path),
            Load::Recorded { path: path.clone(), from: None, records: Some(records) },
        )
    };
    [("random".to_owned(), Load::Generated(generated))]
        .into_iter()
        .chain(extent.traces.iter().map(recorded))
        .collect()
}

/// Lets the power fail at every point of the workloads on each system.
pub(super) fn crashes(
    extent: &Extent,
    systems: &[(System, Persistence)],
) -> (Judgement, Vec<Outcome>) {
    let mut judgement = Judgement::default();
    let (mut outcomes, mut rows) = (Vec::new(), Vec::new());
    for (name, load) in loads(extent) {
        for &(system, persistence) in systems {
            let choice = Choice { window_blocks: Some(WINDOW), ..system.choice(persistence) };
            match load.source().and_then(|source| crash(source, &choice, TORN, 1, &mut |_, _| {})) {
                Ok(outcome) => {
                    rows.push(row(&name, system, persistence, &outcome));
                    judgement.blocks += outcome.client_blocks;
                    if let Some(failure) = outcome.failures.first() {
                        judgement.check(format!("{name} on {}: {failure}", system.name()), false);
                    }
                    outcomes.push(outcome);
                }
                Err(error) if error.kind() == Kind::Unsupported => judgement.missing = true,
                Err(error) => {
                    judgement.check(format!("{name} on {}: {error}", system.name()), false)
                }
            }
        }
    }
    let sum = |of: fn(&Outcome) -> u64| outcomes.iter().map(of).sum::<u64>();
    let [lost, wrong, broken] =
        [sum(|outcome| outcome.lost), sum(|outcome| outcome.wrong), sum(|outcome| outcome.broken)];
    judgement.check(
        format!(
            "power failed at all {} points of {} workloads, {} stores opened, {} blocks compared: \
             {lost} lost, {wrong} wrong, {broken} stores with damaged metadata",
            number(sum(|outcome| outcome.cuts) as f64),
            outcomes.len(),
            number(sum(|outcome| outcome.openings) as f64),
            number(sum(|outcome| outcome.compared) as f64),
        ),
        !outcomes.is_empty() && lost + wrong + broken == 0,
    );
    judgement.figures.push(Figure::Table(Table {
        title: "Power failures".to_owned(),
        columns: COLUMNS.map(str::to_owned).to_vec(),
        rows,
    }));
    (judgement, outcomes)
}

const COLUMNS: [&str; 15] = [
    "workload",
    "system",
    "persistence",
    "blocks",
    "points",
    "openings",
    "compared",
    "lost",
    "wrong",
    "damaged",
    "checkpoints",
    "zones scanned, at most",
    "marked, at most",
    "zones written",
    "newer records believed / refused",
];

fn row(name: &str, system: System, persistence: Persistence, outcome: &Outcome) -> Vec<String> {
    let mut row =
        vec![name.to_owned(), system.name().to_owned(), persistence_name(persistence).to_owned()];
    let Outcome { client_blocks, cuts, openings, compared, lost, wrong, broken, .. } = *outcome;
    let Outcome { checkpoints, zones_scanned, zones_marked, zones_written, .. } = *outcome;
    let counts = [
        client_blocks,
        cuts,
        openings,
        compared,
        lost,
        wrong,
        broken,
        checkpoints,
        zones_scanned,
        zones_marked,
        zones_written,
    ];
    row.extend(counts.map(|n| number(n as f64)));
    row.push(format!("{} / {}", number(outcome.believed as f64), number(outcome.refused as f64)));
    row
}

/// `weak` or `strong`.
pub(super) fn persistence_name(persistence: Persistence) -> &'static str {
    if persistence == Persistence::Weak { "weak" } else { "strong" }
}
