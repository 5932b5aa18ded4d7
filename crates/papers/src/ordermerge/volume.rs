//! Figs 2A and 3A: how much is written.

use onefold_block::{Persistence, format::page::Table as Tree};

use super::{
    STEPS, SYSTEMS, bars, beginnings, judged, loads, phase, recorded, trace, volume_case, whole,
};
use crate::{
    case::{Case, Load, Measured, System},
    item::{Extent, Item, Judgement, Look},
};
use onefold_lab::{
    replay::Outcome,
    report::{Figure, Table},
};

/// Fig 2A.
pub(super) const WEAK: [Item; 1] = [Item {
    id: "2a",
    name: "Fig 2A: write volume, weak persistence",
    says: "ordering saves 17 to 59 %, delay up to 2 points more (BBench 8), anticipation up to 6: \
           18 to 63 % in all, close to ideal; Dmdedup saves 7 to 33 %, and adds 7 % to BBench",
    band: "update and srcver within 2 points of ideal; no step worse than the one before by more \
           than 0.5 points; cow writes more than any step in every trace; apt saves ≥ 10 of its \
           16.4 points, pgbench ≥ 14 of 37.8",
    fitted: false,
    calibrated: None,
    cases: |extent| cases(extent, Persistence::Weak),
    judge: weak,
    draw: |extent, look| draw(extent, look, Persistence::Weak),
}];

/// Fig 3A.
pub(super) const STRONG: [Item; 1] = [Item {
    id: "3a",
    name: "Fig 3A: write volume, strong persistence",
    says: "Dmdedup writes 5 to 12 times as much; ordering saves 5 to 18 % (update, install, \
           vehicle), and adds 5 % (BBench), 41 to 71 % (Hadoop, YCSB); delay up to 3 points \
           (BBench 11), anticipation up to 63; 15 to 51 % saved in all",
    band: "anticipation is the largest step on a recorded trace with dense flushes (apt, pgbench), \
           with clients that wait and as many requests under way for every step; less than \
           original in the end on apt, pgbench and srcver",
    fitted: false,
    calibrated: None,
    cases: strong_cases,
    judge: strong,
    draw: |extent, look| draw(extent, look, Persistence::Strong),
}];

fn cases(extent: &Extent, persistence: Persistence) -> Vec<Case> {
    loads(extent)
        .iter()
        .flat_map(|load| SYSTEMS.map(|system| volume_case(load, persistence, system)))
        .collect()
}

fn strong_cases(extent: &Extent) -> Vec<Case> {
    let single = |load: &(String, Load)| volume_case(load, Persistence::Strong, System::CowSingle);
    [cases(extent, Persistence::Strong), beginnings(extent).iter().map(single).collect()].concat()
}

/// Blocks written for each block of a client, in per cent.
fn volume(look: &Look<'_>, load: &(String, Load), persistence: Persistence, system: System) -> f64 {
    look.value(&volume_case(load, persistence, system), Measured::volume) * 100.0
}

fn weak(extent: &Extent, look: &Look<'_>) -> Judgement {
    let mut judgement = Judgement::default();
    let traces = judged(extent);
    judgement.missing = traces.is_empty();
    let of = |load: &(String, Load), system| volume(look, load, Persistence::Weak, system);
    let close = |judgement: &mut Judgement, name: &str, above: f64| {
        judgement.check(format!("{name} {above:+.2} points above ideal"), above <= 2.0);
    };
    if let Some(load) = trace(extent, "srcver") {
        let above = look
            .value(&volume_case(&load, Persistence::Weak, System::OrderMerge), |measured| {
                measured.volume() * 100.0 - ideal(measured)
            });
        close(&mut judgement, "srcver", above);
    }
    if let Some(load) = trace(extent, "apt").filter(|_| !extent.quick) {
        let above =
            look.value(&volume_case(&load, Persistence::Weak, System::OrderMerge), |measured| {
                phase(measured, "update", |phase| {
                    let written = phase.device_blocks - phase.checkpoint_blocks;
                    (written as f64 - phase.ideal_blocks as f64) * 100.0
                        / phase.client_blocks.max(1) as f64
                })
            });
        close(&mut judgement, "apt update", above);
    }
    for load in &traces {
        let steps = STEPS.map(|system| of(load, system));
        let never_worse = steps.windows(2).all(|two| two[1] <= two[0] + 0.5);
        judgement.check(format!("{}: {}", load.0, listed(&steps)), never_worse);
        let cow = of(load, System::Cow);
        let worst = steps.iter().all(|&step| step < cow);
        judgement.check(format!("cow {cow:.1} %"), worst);
    }
    // The short form does not come far enough in a trace.
    for (name, least) in [("apt", 10.0), ("pgbench", 14.0)] {
        let Some(load) = trace(extent, name).filter(|_| !extent.quick) else { continue };
        let saved = 100.0 - of(&load, System::OrderMerge);
        judgement.check(format!("{name} saves {saved:.1} points"), saved >= least);
    }
    judgement.remark =
        format!("{} {}", in_place(look, &traces), remark(extent, look, Persistence::Weak));
    judgement
}

/// A remark on the leaves that ordering writes in place.
fn in_place(look: &Look<'_>, traces: &[(String, Load)]) -> String {
    let share = |load: &(String, Load)| {
        let in_place =
            look.value(&volume_case(load, Persistence::Weak, System::OrderMerge), |measured| {
                measured.outcome.tally.in_place_blocks as f64 * 100.0
                    / measured.outcome.client_blocks.max(1) as f64
            });
        format!("{} {in_place:.2}", load.0)
    };
    format!(
        "Leaves written in place for each 100 blocks: {}; a leaf has {} map entries and {} \
         fingerprints, where the paper's map entries of 8 bytes make 512.",
        traces.iter().map(share).collect::<Vec<_>>().join(", "),
        Tree::Map.per_leaf(),
        Tree::Fingerprints.per_leaf()
    )
}

fn strong(extent: &Extent, look: &Look<'_>) -> Judgement {
    let mut judgement = Judgement::default();
    let traces = judged(extent);
    judgement.missing = traces.is_empty();
    let of = |load: &(String, Load), system| volume(look, load, Persistence::Strong, system);
    let whole = whole(extent);
    for load in &traces {
        let steps = STEPS.map(|system| of(load, system));
        judgement.check(
            format!("{}: {}", load.0, listed(&steps)),
            steps[2] < 100.0 || !whole.contains(load),
        );
    }
    let largest = |among: &[(String, Load)]| {
        let found = among.iter().filter(|load| {
            let steps = STEPS.map(|system| of(load, system));
            steps[1] - steps[2] > (steps[0] - steps[1]).max(0.0)
        });
        let names: Vec<&str> = found.map(|(name, _)| name.as_str()).collect();
        if names.is_empty() { "none".to_owned() } else { names.join(", ") }
    };
    let dense: Vec<(String, Load)> =
        traces.iter().filter(|(name, _)| name != "srcver").cloned().collect();
    let found = largest(&dense);
    judgement.check(format!("anticipation is the largest step on: {found}"), found != "none");
    let generated: Vec<(String, Load)> =
        loads(extent).into_iter().filter(|(_, load)| matches!(load, Load::Generated(_))).collect();
    let both = traces.iter().zip(beginnings(extent)).map(|(load, beginning)| {
        let [requests, blocks] = [of(load, System::Cow), of(&beginning, System::CowSingle)];
        format!("{} {:.2} ({:.2})", load.0, requests / 100.0, blocks / 100.0)
    });
    let cow: Vec<String> = both.collect();
    judgement.remark = format!(
        "Of the generated bursts, which do not count, it is the largest step on: {}. cow writes, \
         times the original, with a transaction for each request (and for each block of 4 KiB, of \
         the beginning of the trace): {}. {}",
        largest(&generated),
        cow.join(", "),
        remark(extent, look, Persistence::Strong)
    );
    judgement
}

fn ideal(measured: &Measured) -> f64 {
    measured.outcome.ideal_blocks as f64 * 100.0 / measured.outcome.client_blocks.max(1) as f64
}

/// The paper's steps, one after the other.
fn listed(steps: &[f64]) -> String {
    STEPS
        .iter()
        .zip(steps)
        .map(|(system, volume)| format!("{} {volume:.1} %", system.name()))
        .collect::<Vec<_>>()
        .join(", ")
}

/// The systems that the paper doesn't have, and checkpoints.
fn remark(extent: &Extent, look: &Look<'_>, persistence: Persistence) -> String {
    let of = |load: &(String, Load)| {
        let with = |system| {
            look.value(&volume_case(load, persistence, system), |measured| {
                measured.volume_with_checkpoints() * 100.0
            })
        };
        let ideal = look.value(&volume_case(load, persistence, System::Original), ideal);
        format!(
            "{}: ideal {ideal:.1}, thin, log {:.1}, ordered {:.1}",
            load.0,
            with(System::ThinLog),
            with(System::Ordered)
        )
    };
    let all: Vec<String> = recorded(extent).iter().map(of).collect();
    if all.is_empty() {
        return "No recorded traces were given (--traces).".to_owned();
    }
    format!("In % of the original, checkpoints included: {}.", all.join("; "))
}

fn draw(extent: &Extent, look: &Look<'_>, persistence: Persistence) -> Vec<Figure> {
    let six: Vec<(String, Load)> =
        loads(extent).into_iter().filter(|(_, load)| matches!(load, Load::Generated(_))).collect();
    let mut figures = Vec::new();
    for (what, loads) in [("six workloads", six), ("recorded traces", recorded(extent))] {
        if loads.is_empty() {
            continue;
        }
        let value = |load: &(String, Load), system, of: fn(&Measured) -> f64| {
            look.value(&volume_case(load, persistence, system), |measured| of(measured) * 100.0)
        };
        let marks = loads
            .iter()
            .map(|load| look.value(&volume_case(load, persistence, System::Original), ideal))
            .collect();
        let marks = Some(("ideal: no metadata at all".to_owned(), marks));
        let label = "% of the blocks that clients wrote";
        let volume = |load: &(String, Load), system| value(load, system, Measured::volume);
        figures.push(bars(
            look,
            &format!("Write volume, {what}, checkpoints left out"),
            label,
            &loads,
            &SYSTEMS,
            volume,
            marks.clone(),
        ));
        let included =
            |load: &(String, Load), system| value(load, system, Measured::volume_with_checkpoints);
        figures.push(bars(
            look,
            &format!("Write volume, {what}, checkpoints included"),
            label,
            &loads,
            &SYSTEMS,
            included,
            marks,
        ));
        let metadata = |load: &(String, Load), system| {
            value(load, system, |measured| {
                measured.outcome.metadata_blocks as f64
                    / measured.outcome.client_blocks.max(1) as f64
            })
        };
        figures.push(bars(
            look,
            &format!("Metadata written, {what}"),
            label,
            &loads,
            &SYSTEMS,
            metadata,
            None,
        ));
    }
    figures.push(Figure::Table(split(extent, look, persistence)));
    figures
}

/// The metadata of each system by kind, in blocks for each hundred that clients wrote.
fn split(extent: &Extent, look: &Look<'_>, persistence: Persistence) -> Table {
    let all = loads(extent);
    let found = all
        .iter()
        .flat_map(|load| SYSTEMS.map(|system| look.at(&volume_case(load, persistence, system))))
        .flatten();
    let row = |measured: &Measured| {
        let Outcome { client_blocks, metadata_blocks, checkpoint_blocks, tally, flushes, .. } =
            &measured.outcome;
        let share =
            |blocks: u64| format!("{:.2}", blocks as f64 * 100.0 / (*client_blocks).max(1) as f64);
        let in_place = tally.in_place_blocks + tally.leftover_blocks;
        vec![
            measured.setting.source.clone(),
            measured.system.name().to_owned(),
            share(*metadata_blocks),
            share(in_place.saturating_sub(tally.delayed_blocks)),
            share(tally.delayed_blocks),
            share(tally.record_blocks),
            share(*checkpoint_blocks),
            share(*flushes),
        ]
    };
    let columns = [
        "workload",
        "system",
        "all",
        "in place, waited for",
        "in place, delayed",
        "blocks of records",
        "checkpoints",
        "flushes",
    ];
    Table {
        title: "Metadata by what it is, for each 100 blocks that clients wrote".to_owned(),
        columns: columns.map(str::to_owned).to_vec(),
        rows: found.map(row).collect(),
    }
}
