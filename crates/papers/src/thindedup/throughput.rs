//! Fig 3: throughput over windows.

use super::{SYSTEMS, WINDOWS, both, usual};
use crate::{
    case::{Case, Measured, System},
    item::{Extent, Item, Judgement, Look, least, over},
};
use onefold_lab::report::{Axis, Figure};

/// Fig 3.
pub(super) const ITEMS: [Item; 4] = [
    Item {
        id: "3a",
        name: "Fig 3a: random, hard disk",
        says: "thin/ordered 2.73 (32), about 3 (64), 2.88 (128), smaller at 256; thin at 32 about \
               2,000/s, as ordered at 256; Dmdedup lowest",
        band: "thin/ordered ≥ 2.5 at 32, 64, 128, lower at 256 than at 64; thin at 32 1,800 to \
               2,200/s; ideal ≥ thin > ordered > cow at every window",
        fitted: true,
        calibrated: Some("hdd-p's constants, to these ratios and speeds"),
        cases: |extent| panel_cases(extent, 0),
        judge: fig_3a,
        draw: |extent, look| draw_panel(extent, look, 0),
    },
    Item {
        id: "3b",
        name: "Fig 3b: sequential, hard disk",
        says: "thin at 32 and ordered at 64 about 2,000/s",
        band: "the two within 15 %; thin/ordered > 1.2 up to 64",
        fitted: true,
        calibrated: Some("hdd-p's constants, to these two speeds"),
        cases: |extent| panel_cases(extent, 1),
        judge: fig_3b,
        draw: |extent, look| draw_panel(extent, look, 1),
    },
    Item {
        id: "3c",
        name: "Fig 3c: random, SSD",
        says: "thin at 8 and ordered at 16 about 2,000/s; more than 95 % of metadata writes \
               avoided; thin close to ideal",
        band: "the two within 15 %; thin ≥ 0.95 of ideal; ≥ 95 % of records hidden at 8",
        fitted: true,
        calibrated: Some(
            "ssd-p's constants, to these two speeds; what is hidden, and thin beside ideal, are \
             not fitted",
        ),
        cases: |extent| panel_cases(extent, 2),
        judge: fig_3c,
        draw: |extent, look| draw_panel(extent, look, 2),
    },
    Item {
        id: "3d",
        name: "Fig 3d: sequential, SSD",
        says: "thin/ordered 1.9 (32), 1.77 (128)",
        band: "1.75 to 2.05, and 1.6 to 1.95",
        fitted: true,
        calibrated: Some("ssd-p's constants, to these two ratios"),
        cases: |extent| panel_cases(extent, 3),
        judge: fig_3d,
        draw: |extent, look| draw_panel(extent, look, 3),
    },
];

fn panel_cases(extent: &Extent, panel: usize) -> Vec<Case> {
    WINDOWS
        .iter()
        .flat_map(|&window| SYSTEMS.map(|system| usual(extent, panel, window, system)))
        .collect()
}

fn draw_panel(extent: &Extent, look: &Look<'_>, panel: usize) -> Vec<Figure> {
    let windows = WINDOWS.map(|window| window as f64);
    let x = || Axis::logarithmic("blocks of a window");
    let case = |window: f64, system| usual(extent, panel, window as usize, system);
    vec![
        over(
            look,
            "Throughput, checkpoints left out as in the paper",
            x(),
            &windows,
            &SYSTEMS,
            |measured| measured.throughput,
            case,
        ),
        over(
            look,
            "Throughput, checkpoints included",
            x(),
            &windows,
            &SYSTEMS,
            |measured| measured.throughput_with_checkpoints,
            case,
        ),
    ]
}

/// Thin over ordered at some windows.
fn advantage(extent: &Extent, look: &Look<'_>, panel: usize, window: usize) -> (f64, f64) {
    let of = |system| usual(extent, panel, window, system);
    look.ratio(&of(System::Thin), &of(System::Ordered))
}

fn apart(one: f64, other: f64) -> f64 {
    (one / other - 1.0).abs()
}

fn fig_3a(extent: &Extent, look: &Look<'_>) -> Judgement {
    let mut judgement = Judgement::default();
    for window in [32, 64, 128] {
        let ratio = advantage(extent, look, 0, window);
        judgement.check(format!("thin/ordered {} at {window}", both(ratio)), ratio.0 >= 2.5);
    }
    let (at_64, at_256) = (advantage(extent, look, 0, 64), advantage(extent, look, 0, 256));
    judgement.check(format!("{} at 256", both(at_256)), at_256.0 < at_64.0);
    let speed = |window, system| look.speed(&usual(extent, 0, window, system));
    let thin = speed(32, System::Thin);
    judgement.check(
        format!("thin {thin:.0}/s at 32, ordered {:.0}/s at 256", speed(256, System::Ordered)),
        (1800.0..=2200.0).contains(&thin),
    );
    for window in WINDOWS {
        let [ideal, thin, ordered, cow] =
            [System::Ideal, System::Thin, System::Ordered, System::Cow]
                .map(|system| speed(window, system));
        if !(ideal >= thin && thin > ordered && ordered > cow) {
            judgement.check(
                format!(
                    "at {window} ideal {ideal:.0}, thin {thin:.0}, ordered \
                                     {ordered:.0}, cow {cow:.0}/s"
                ),
                false,
            );
        }
    }
    judgement.check("order of the systems at every window", judgement.checks.len() == 5);
    judgement
}

fn fig_3b(extent: &Extent, look: &Look<'_>) -> Judgement {
    let mut judgement = Judgement::default();
    let thin = look.speed(&usual(extent, 1, 32, System::Thin));
    let ordered = look.speed(&usual(extent, 1, 64, System::Ordered));
    judgement.check(
        format!("thin {thin:.0}/s at 32, ordered {ordered:.0}/s at 64"),
        apart(thin, ordered) <= 0.15,
    );
    for window in [8, 16, 32, 64] {
        let ratio = advantage(extent, look, 1, window);
        judgement.check(format!("thin/ordered {} at {window}", both(ratio)), ratio.0 > 1.2);
    }
    judgement
}

fn fig_3c(extent: &Extent, look: &Look<'_>) -> Judgement {
    let mut judgement = Judgement::default();
    let thin = usual(extent, 2, 8, System::Thin);
    let (speed, ordered) = (look.speed(&thin), look.speed(&usual(extent, 2, 16, System::Ordered)));
    judgement.check(
        format!("thin {speed:.0}/s at 8, ordered {ordered:.0}/s at 16"),
        apart(speed, ordered) <= 0.15,
    );
    let shares = WINDOWS.map(|window| {
        let of = |system| look.speed(&usual(extent, 2, window, system));
        of(System::Thin) / of(System::Ideal)
    });
    let worst = least(&shares);
    judgement.check(format!("thin at least {worst:.3} of ideal"), worst >= 0.95);
    let hidden = look.value(&thin, Measured::hidden);
    judgement.check(format!("{:.1} % of the records hidden at 8", hidden * 100.0), hidden >= 0.95);
    judgement
}

fn fig_3d(extent: &Extent, look: &Look<'_>) -> Judgement {
    let mut judgement = Judgement::default();
    for (window, band) in [(32, 1.75..=2.05), (128, 1.6..=1.95)] {
        let ratio = advantage(extent, look, 3, window);
        judgement
            .check(format!("thin/ordered {} at {window}", both(ratio)), band.contains(&ratio.0));
    }
    judgement
}
