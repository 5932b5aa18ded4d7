//! Figs 6 and 7: the ratio of duplicates.

use super::{PANELS, SYSTEMS, at_ratio, ratios};
use crate::{
    paper::{
        case::{Case, Measured, System},
        item::{Extent, Item, Judgement, Look, least, over, plot},
    },
    report::{Axis, Figure, Series},
};

/// The ratio of duplicates.
pub(super) const ITEMS: [Item; 2] = [
    Item {
        id: "6",
        name: "Fig 6: duplicates",
        says: "ideal rises with the ratio, ordered and Dmdedup are flat; thin is above both; on the SSD close to ideal",
        band: "ordered varies < 15 % over ratios 1 to 8 (hard disk); thin > ordered everywhere; on the SSD thin ≥ 0.9 of ideal up to 2",
        fitted: true,
        cases: fig_6_cases,
        judge: fig_6,
        draw: draw_fig_6,
    },
    Item {
        id: "7",
        name: "Fig 7: metadata written explicitly",
        says: "near 0 around ratio 2 or with large windows; 27.8 % avoided at 16.08 and window 8 (trace)",
        band: "hidden within 5 points of the binomial bound at window 8",
        fitted: false,
        cases: fig_7_cases,
        judge: fig_7,
        draw: draw_fig_7,
    },
];

const BOUND: [(f64, f64); 5] = [(1.6, 0.996), (2.0, 0.983), (5.43, 0.721), (9.73, 0.497), (16.08, 0.335)];

fn fig_6_cases(extent: &Extent) -> Vec<Case> {
    let of = |panel| ratios(extent).iter().flat_map(move |&ratio| SYSTEMS.map(|system| at_ratio(extent, panel, ratio, 8, system)));
    (0..PANELS.len()).flat_map(of).collect()
}

fn fig_6(extent: &Extent, look: &Look<'_>) -> Judgement {
    let mut judgement = Judgement::default();
    let speeds = |panel, system| -> Vec<f64> {
        ratios(extent).iter().map(|&ratio| look.speed(&at_ratio(extent, panel, ratio, 8, system))).collect()
    };
    for panel in [0, 1] {
        let all = speeds(panel, System::Ordered);
        let (least, most) = all.iter().fold((f64::INFINITY, 0.0_f64), |(least, most), &speed| (least.min(speed), most.max(speed)));
        let line = format!("hdd-p {}: ordered {least:.0} to {most:.0}/s, {:.0} %", PANELS[panel].0, (most / least - 1.0) * 100.0);
        judgement.check(line, most / least < 1.15);
    }
    let mut above = Vec::new();
    for panel in 0..PANELS.len() {
        let (thin, ordered) = (speeds(panel, System::Thin), speeds(panel, System::Ordered));
        above.extend(thin.iter().zip(&ordered).map(|(thin, ordered)| thin / ordered));
    }
    judgement.check(format!("thin/ordered at least {:.2}", least(&above)), above.iter().all(|&ratio| ratio > 1.0));
    let near = [2, 3].into_iter().flat_map(|panel| {
        let (thin, ideal) = (speeds(panel, System::Thin), speeds(panel, System::Ideal));
        ratios(extent)
            .iter()
            .zip(thin.into_iter().zip(ideal))
            .filter(|(ratio, _)| **ratio <= 2.0)
            .map(|(_, (thin, ideal))| thin / ideal)
            .collect::<Vec<_>>()
    });
    let near: Vec<f64> = near.collect();
    judgement.check(format!("ssd-p: thin at least {:.3} of ideal up to ratio 2", least(&near)), near.iter().all(|&ratio| ratio >= 0.9));
    if judgement.missed() {
        let of = |panel, ratio, what: fn(&Measured) -> f64| look.value(&at_ratio(extent, panel, ratio, 8, System::Ordered), what);
        let flushes: fn(&Measured) -> f64 = |measured| measured.outcome.flushes as f64 / measured.outcome.windows.max(1) as f64;
        let slow: fn(&Measured) -> f64 = |measured| measured.outcome.write_latency.p90_ms;
        let panels = [0, 1].map(|panel| {
            format!(
                "{}: {:.2} flushes for each window at ratio 1, {:.2} at 8; the 90th percentile, of windows with new data, is {:.1} and {:.1} ms ({:.0} %)",
                PANELS[panel].0,
                of(panel, 1.0, flushes),
                of(panel, 8.0, flushes),
                of(panel, 1.0, slow),
                of(panel, 8.0, slow),
                (of(panel, 1.0, slow) / of(panel, 8.0, slow) - 1.0) * 100.0
            )
        });
        judgement.remark = format!(
            "The engine's ordered scheme writes no data and flushes once when all of a window is stored already, and hdd-p takes at least 10.3 ms for each batch that \
             is left out: with many duplicates it gets faster than a system that flushes twice for every window. {}.",
            panels.join(". ")
        );
    }
    judgement
}

fn draw_fig_6(extent: &Extent, look: &Look<'_>) -> Vec<Figure> {
    let panels = PANELS.iter().enumerate().map(|(panel, (name, _, device))| {
        let x = Axis::linear("blocks written for each different one");
        let case = move |ratio, system| at_ratio(extent, panel, ratio, 8, system);
        over(look, &format!("Throughput, {name}, {device}, window 8"), x, ratios(extent), &SYSTEMS, |measured| measured.throughput, case)
    });
    panels.collect()
}

const FIG_7_WINDOWS: [usize; 4] = [8, 16, 32, 64];

fn fig_7_cases(extent: &Extent) -> Vec<Case> {
    let of = |(ratio, _)| FIG_7_WINDOWS.map(|window| at_ratio(extent, 0, ratio, window, System::Thin));
    BOUND.into_iter().flat_map(of).collect()
}

fn fig_7(extent: &Extent, look: &Look<'_>) -> Judgement {
    let mut judgement = Judgement::default();
    for (ratio, bound) in BOUND {
        let hidden = look.value(&at_ratio(extent, 0, ratio, 8, System::Thin), Measured::hidden);
        let text = format!("ratio {ratio}: {:.1} % hidden, bound {:.1} %", hidden * 100.0, bound * 100.0);
        judgement.check(text, (hidden - bound).abs() <= 0.05);
    }
    judgement
}

fn draw_fig_7(extent: &Extent, look: &Look<'_>) -> Vec<Figure> {
    let explicit = |ratio, window| 100.0 - look.value(&at_ratio(extent, 0, ratio, window, System::Thin), Measured::hidden) * 100.0;
    let line = |window| Series {
        name: format!("window {window}"),
        points: BOUND.iter().map(|&(ratio, _)| (ratio, explicit(ratio, window))).collect(),
    };
    let x = Axis::linear("blocks written for each different one");
    vec![plot("Records written explicitly", x, Axis::linear("% of all records"), FIG_7_WINDOWS.map(line).to_vec())]
}
