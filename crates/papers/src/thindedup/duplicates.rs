//! Figs 6 and 7: the ratio of duplicates.

use super::{PANELS, SYSTEMS, at_ratio, ratios, with};
use crate::{
    case::{Case, Measured, System},
    item::{Extent, Item, Judgement, Look, least, most, over, plot},
};
use onefold_lab::{
    device::DeviceKind,
    report::{Axis, Figure, Series},
};

/// The ratio of duplicates.
pub(super) const ITEMS: [Item; 2] = [
    Item {
        id: "6",
        name: "Fig 6: duplicates",
        says: "ideal rises with the ratio, ordered and Dmdedup are flat; thin is above both; on \
               the SSD close to ideal",
        band: "ordered varies < 15 % over ratios 1 to 8 (hard disk), whether duplicates come \
               evenly or by chance; thin > ordered everywhere; on the SSD thin ≥ 0.9 of ideal up \
               to 2",
        fitted: true,
        calibrated: None,
        cases: fig_6_cases,
        judge: fig_6,
        draw: draw_fig_6,
    },
    Item {
        id: "7",
        name: "Fig 7: metadata written explicitly",
        says: "near 0 around ratio 2 or with large windows; 27.8 % avoided at 16.08 and window 8 \
               (trace)",
        band: "hidden within 5 points of the binomial bound at window 8",
        fitted: false,
        calibrated: None,
        cases: fig_7_cases,
        judge: fig_7,
        draw: draw_fig_7,
    },
];

const BOUND: [(f64, f64); 5] =
    [(1.6, 0.996), (2.0, 0.983), (5.43, 0.721), (9.73, 0.497), (16.08, 0.335)];

/// A run of Fig 6: with duplicates that come evenly, or by chance. The paper doesn't say how its
/// traces have them.
pub(super) fn spread(
    extent: &Extent,
    panel: usize,
    even: bool,
    ratio: f64,
    system: System,
) -> Case {
    with(at_ratio(extent, panel, ratio, 8, system), |workload| workload.even = even)
}

fn fig_6_cases(extent: &Extent) -> Vec<Case> {
    let of = |panel, even| {
        ratios(extent).iter().flat_map(move |&ratio| {
            SYSTEMS.map(|system| spread(extent, panel, even, ratio, system))
        })
    };
    (0..PANELS.len()).flat_map(|panel| of(panel, true).chain(of(panel, false))).collect()
}

fn fig_6(extent: &Extent, look: &Look<'_>) -> Judgement {
    let mut judgement = Judgement::default();
    let speeds = |panel, even, system| -> Vec<f64> {
        ratios(extent)
            .iter()
            .map(|&ratio| look.speed(&spread(extent, panel, even, ratio, system)))
            .collect()
    };
    let varies = |panel, even| {
        let all = speeds(panel, even, System::Ordered);
        (least(&all), most(&all), (most(&all) / least(&all) - 1.0) * 100.0)
    };
    for (panel, even, how) in
        [(0, true, "evenly"), (1, true, "evenly"), (0, false, "by chance"), (1, false, "by chance")]
    {
        let (least, most, percent) = varies(panel, even);
        let line = format!(
            "hdd-p {}, duplicates {how}: ordered {least:.0} to {most:.0}/s, {percent:.0} %",
            PANELS[panel].0
        );
        judgement.check(line, percent < 15.0);
    }
    let both = (0..PANELS.len()).flat_map(|panel| [(panel, true), (panel, false)]);
    let ratio = |(panel, even), over, under| -> Vec<f64> {
        speeds(panel, even, over)
            .iter()
            .zip(speeds(panel, even, under))
            .map(|(over, under)| over / under)
            .collect()
    };
    let above = least(
        &both
            .clone()
            .flat_map(|which| ratio(which, System::Thin, System::Ordered))
            .collect::<Vec<f64>>(),
    );
    judgement.check(format!("thin/ordered at least {above:.2}, evenly and by chance"), above > 1.0);
    let small = ratios(extent).iter().filter(|&&ratio| ratio <= 2.0).count();
    let on_ssd = both.filter(|&(panel, _)| PANELS[panel].2 == DeviceKind::SsdP);
    let near = least(
        &on_ssd
            .flat_map(|which| ratio(which, System::Thin, System::Ideal)[..small].to_vec())
            .collect::<Vec<f64>>(),
    );
    judgement.check(format!("ssd-p: thin at least {near:.3} of ideal up to ratio 2"), near >= 0.9);
    let flushes = |panel, even, ratio| {
        look.value(&spread(extent, panel, even, ratio, System::Ordered), |measured| {
            measured.outcome.flushes as f64 / measured.outcome.windows.max(1) as f64
        })
    };
    judgement.remark = format!(
        "How the paper's duplicates are spread is not said. When they come by chance, at ratio 8 \
         every third window of 8 is stored already, has no data to be written first, and goes \
         without that flush ({:.2} flushes for each window at ratio 8, {:.2} when they come \
         evenly, {:.2} at ratio 1); hdd-p takes at least 10.3 ms for it.",
        flushes(0, false, 8.0),
        flushes(0, true, 8.0),
        flushes(0, false, 1.0)
    );
    judgement
}

fn draw_fig_6(extent: &Extent, look: &Look<'_>) -> Vec<Figure> {
    let panels = PANELS.iter().enumerate().flat_map(|(panel, (name, _, device))| {
        [(true, "evenly"), (false, "by chance")].map(|(even, how)| {
            let x = Axis::linear("blocks written for each different one");
            let case = move |ratio, system| spread(extent, panel, even, ratio, system);
            let title = format!("Throughput, {name}, {device}, window 8, duplicates {how}");
            over(look, &title, x, ratios(extent), &SYSTEMS, |measured| measured.throughput, case)
        })
    });
    panels.collect()
}

const FIG_7_WINDOWS: [usize; 4] = [8, 16, 32, 64];

fn fig_7_cases(extent: &Extent) -> Vec<Case> {
    let of =
        |(ratio, _)| FIG_7_WINDOWS.map(|window| at_ratio(extent, 0, ratio, window, System::Thin));
    BOUND.into_iter().flat_map(of).collect()
}

fn fig_7(extent: &Extent, look: &Look<'_>) -> Judgement {
    let mut judgement = Judgement::default();
    for (ratio, bound) in BOUND {
        let hidden = look.value(&at_ratio(extent, 0, ratio, 8, System::Thin), Measured::hidden);
        let text =
            format!("ratio {ratio}: {:.1} % hidden, bound {:.1} %", hidden * 100.0, bound * 100.0);
        judgement.check(text, (hidden - bound).abs() <= 0.05);
    }
    judgement
}

fn draw_fig_7(extent: &Extent, look: &Look<'_>) -> Vec<Figure> {
    let explicit = |ratio, window| {
        100.0
            - look.value(&at_ratio(extent, 0, ratio, window, System::Thin), Measured::hidden)
                * 100.0
    };
    let line = |window| Series {
        name: format!("window {window}"),
        points: BOUND.iter().map(|&(ratio, _)| (ratio, explicit(ratio, window))).collect(),
    };
    let x = Axis::linear("blocks written for each different one");
    vec![plot(
        "Records written explicitly",
        x,
        Axis::linear("% of all records"),
        FIG_7_WINDOWS.map(line).to_vec(),
    )]
}
