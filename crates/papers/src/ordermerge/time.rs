//! Figs 2B and 3B: how long it takes.

use onefold_block::Persistence;

use super::{SYSTEMS, bars, beginnings, judged, loads, phase, recorded, time_case, trace, whole};
use crate::{
    case::{Case, Load, Measured, System},
    item::{Extent, Item, Judgement, Look},
};
use onefold_lab::report::Figure;

/// Fig 2B.
pub(super) const WEAK: [Item; 1] = [Item {
    id: "2b",
    name: "Fig 2B: time, weak persistence",
    says: "11 to 15 % more on install, less than 5 % on the others, 1 to 6 % less on some; Dmdedup \
           1.2 times on update, 1.8 on install",
    band: "≤ 1.15 of original on every trace, ≤ 1.05 on update and srcver; cow slower than ours on \
           install",
    fitted: true,
    calibrated: None,
    cases: |extent| cases(extent, Persistence::Weak),
    judge: weak,
    draw: |extent, look| draw(extent, look, Persistence::Weak),
}];

/// Fig 3B.
pub(super) const STRONG: [Item; 1] = [Item {
    id: "3b",
    name: "Fig 3B: time, strong persistence",
    says: "37 to 42 % more on install, less than 4 % on the others; Dmdedup 4 to 24 times on \
           update, install and YCSB",
    band: "≤ 1.42 of original on install, ≤ 1.04 on srcver; cow ≥ 4 on a trace with dense flushes, \
           or the reason why not",
    fitted: true,
    calibrated: None,
    cases: strong_cases,
    judge: strong,
    draw: |extent, look| draw(extent, look, Persistence::Strong),
}];

fn cases(extent: &Extent, persistence: Persistence) -> Vec<Case> {
    loads(extent)
        .iter()
        .flat_map(|load| SYSTEMS.map(|system| time_case(load, persistence, system)))
        .collect()
}

fn strong_cases(extent: &Extent) -> Vec<Case> {
    let single = |load: &(String, Load)| {
        [System::Original, System::CowSingle]
            .map(|system| time_case(load, Persistence::Strong, system))
    };
    [cases(extent, Persistence::Strong), beginnings(extent).iter().flat_map(single).collect()]
        .concat()
}

/// Virtual seconds over those of the original: of all, or of a part of the trace.
fn slower(
    look: &Look<'_>,
    load: &(String, Load),
    persistence: Persistence,
    system: System,
    part: Option<&str>,
) -> f64 {
    let seconds = |measured: &Measured| match part {
        None => measured.outcome.virtual_seconds,
        Some(part) => phase(measured, part, |phase| phase.virtual_seconds),
    };
    let of = |system| look.value(&time_case(load, persistence, system), seconds);
    of(system) / of(System::Original)
}

fn weak(extent: &Extent, look: &Look<'_>) -> Judgement {
    let mut judgement = Judgement::default();
    let traces = judged(extent);
    judgement.missing = traces.is_empty();
    let of = |load: &(String, Load), system, part: Option<&str>| {
        slower(look, load, Persistence::Weak, system, part)
    };
    for load in &whole(extent) {
        let band = if load.0 == "srcver" { 1.05 } else { 1.15 };
        let ratio = of(load, System::OrderMerge, None);
        judgement.check(format!("{} {ratio:.3}", load.0), ratio <= band);
    }
    if let Some(apt) = trace(extent, "apt") {
        if !extent.quick {
            let update = of(&apt, System::OrderMerge, Some("update"));
            judgement.check(format!("apt update {update:.3}"), update <= 1.05);
        }
        let [ours, cow] =
            [System::OrderMerge, System::Cow].map(|system| of(&apt, system, Some("install")));
        judgement.check(format!("apt install: ours {ours:.2}, cow {cow:.2}"), cow > ours);
        if extent.quick {
            // The beginning of the trace is all that is there to be judged.
            judgement.check(format!("apt install {ours:.2}"), ours <= 1.15);
        }
    }
    judgement.remark =
        format!("{} {}", flushes(look, &traces), remark(extent, look, Persistence::Weak));
    judgement
}

/// Flushes beside the original's: what takes the time on ssd-p.
fn flushes(look: &Look<'_>, traces: &[(String, Load)]) -> String {
    let ratio = |load: &(String, Load)| {
        let of = |system| {
            look.value(&time_case(load, Persistence::Weak, system), |measured| {
                measured.outcome.flushes as f64
            })
        };
        format!("{} {:.2}", load.0, of(System::OrderMerge) / of(System::Original))
    };
    let all: Vec<String> = traces.iter().map(ratio).collect();
    format!(
        "Flushes, times the original's: {}; one takes 3.9 ms, and whoever waits for one waits for \
         both.",
        all.join(", ")
    )
}

fn strong(extent: &Extent, look: &Look<'_>) -> Judgement {
    let mut judgement = Judgement::default();
    let traces = judged(extent);
    judgement.missing = traces.is_empty();
    let of = |load: &(String, Load), system, part: Option<&str>| {
        slower(look, load, Persistence::Strong, system, part)
    };
    let (mut cow, mut slowest) = (Vec::new(), 0.0_f64);
    if let Some(apt) = trace(extent, "apt") {
        let ratio = of(&apt, System::OrderMerge, Some("install"));
        judgement.check(format!("apt install {ratio:.3}"), ratio <= 1.42);
    }
    if let Some(load) = trace(extent, "srcver") {
        let ratio = of(&load, System::OrderMerge, None);
        judgement.check(format!("srcver {ratio:.3}"), ratio <= 1.04);
    }
    for (load, beginning) in traces.iter().zip(beginnings(extent)) {
        let [requests, blocks] =
            [of(load, System::Cow, None), of(&beginning, System::CowSingle, None)];
        slowest = slowest.max(requests).max(blocks);
        cow.push(format!("{} {requests:.2} ({blocks:.2})", load.0));
    }
    judgement.check(
        format!(
            "cow, a transaction for each request (for each block of the beginning): {}",
            cow.join(", ")
        ),
        slowest >= 4.0,
    );
    judgement.remark = remark(extent, look, Persistence::Strong);
    judgement
}

/// The systems that the paper doesn't have.
fn remark(extent: &Extent, look: &Look<'_>, persistence: Persistence) -> String {
    let of = |load: &(String, Load)| {
        let of = |system| slower(look, load, persistence, system, None);
        format!(
            "{}: thin, log {:.3}, ordered {:.3}, cow {:.3}",
            load.0,
            of(System::ThinLog),
            of(System::Ordered),
            of(System::Cow)
        )
    };
    let all: Vec<String> = recorded(extent).iter().map(of).collect();
    if all.is_empty() {
        "No recorded traces were given (--traces).".to_owned()
    } else {
        format!("Times the original: {}.", all.join("; "))
    }
}

fn draw(extent: &Extent, look: &Look<'_>, persistence: Persistence) -> Vec<Figure> {
    let six: Vec<(String, Load)> =
        loads(extent).into_iter().filter(|(_, load)| matches!(load, Load::Generated(_))).collect();
    let mut figures = Vec::new();
    for (what, loads) in [("six workloads", six), ("recorded traces", recorded(extent))] {
        if !loads.is_empty() {
            let ratio =
                |load: &(String, Load), system| slower(look, load, persistence, system, None);
            figures.push(bars(
                look,
                &format!("Time, {what}, ssd-p"),
                "times the original",
                &loads,
                &SYSTEMS,
                ratio,
                None,
            ));
        }
    }
    figures
}
