//! Figs 4 and 5, and the abstract: latency.

use super::{
    PANELS, WINDOWS, at_ratio, duplicates::spread, ratios, recorded, segment, usual, with,
};
use crate::{
    case::{Case, Load, Measured, System},
    item::{Extent, Item, Judgement, Look, no_figure},
};
use onefold_lab::{
    device::DeviceKind,
    report::{Figure, distribution},
    workload::{SEGMENTS, Workload},
};

/// Latency.
pub(super) const ITEMS: [Item; 3] = [
    Item {
        id: "4",
        name: "Fig 4: latency, hard disk",
        says: "p80 at 256 over 32: thin 3.5, ordered 3.2; sequential thin at 32 is faster than \
               ordered at 64 at equal throughput",
        band: "thin 3.0 to 4.0, ordered 2.7 to 3.7; p80 of thin at 32 < 0.7 of ordered at 64",
        fitted: true,
        calibrated: Some("hdd-p's constants, to these two ratios of windows"),
        cases: |extent| fig_4_cases(extent).concat(),
        judge: fig_4,
        draw: |extent, look| {
            let titles = ["Latency, random, hdd-p", "Latency, sequential, hdd-p"];
            titles
                .iter()
                .zip(fig_4_cases(extent))
                .filter_map(|(title, cases)| draw_latency(look, title, &cases))
                .collect()
        },
    },
    Item {
        id: "5",
        name: "Fig 5: latency, SSD",
        says: "the window hardly matters; thin well below ordered",
        band: "p50 at 16 within 15 % of that at 8; thin ≤ 0.6 of ordered",
        fitted: true,
        calibrated: None,
        cases: fig_5_cases,
        judge: fig_5,
        draw: |extent, look| {
            draw_latency(look, "Latency, random, ssd-p", &fig_5_cases(extent)).into_iter().collect()
        },
    },
    Item {
        id: "abstract",
        name: "Abstract: latency cut",
        says: "latency cut by up to 88 %; of which system at which window is not said",
        band: "p50 of thin ≤ 0.12 of Dmdedup's in some setting of the paper's own: Figs 3 to 6, \
               Table I, III-B",
        fitted: true,
        calibrated: None,
        cases: |extent| [own_cases(extent), added_cases(extent)].concat(),
        judge: cut,
        draw: no_figure,
    },
];

/// Latencies of some cases.
fn draw_latency(look: &Look<'_>, title: &str, cases: &[Case]) -> Option<Figure> {
    let found: Vec<&Measured> = cases.iter().filter_map(|case| look.at(case)).collect();
    let named = |measured: &&Measured| {
        format!("{}, window {}", measured.system.name(), measured.setting.window_blocks)
    };
    distribution(
        title,
        found.iter().map(|measured| (named(measured), &measured.outcome.write_latency)),
    )
}

fn fig_4_cases(extent: &Extent) -> [Vec<Case>; 2] {
    let of = |panel, windows: [usize; 2]| {
        windows
            .iter()
            .flat_map(|&window| {
                [System::Thin, System::Ordered].map(|system| usual(extent, panel, window, system))
            })
            .collect()
    };
    [of(0, [32, 256]), of(1, [32, 64])]
}

fn fig_4(extent: &Extent, look: &Look<'_>) -> Judgement {
    let mut judgement = Judgement::default();
    let p80 = |panel, window, system| {
        look.value(&usual(extent, panel, window, system), |measured| {
            measured.outcome.write_latency.p80_ms
        })
    };
    for (system, band) in [(System::Thin, 3.0..=4.0), (System::Ordered, 2.7..=3.7)] {
        let ratio = p80(0, 256, system) / p80(0, 32, system);
        judgement.check(
            format!("random: {} p80 at 256 over 32 {ratio:.2}", system.name()),
            band.contains(&ratio),
        );
    }
    let ratio = p80(1, 32, System::Thin) / p80(1, 64, System::Ordered);
    judgement
        .check(format!("sequential: p80 of thin at 32 over ordered at 64 {ratio:.2}"), ratio < 0.7);
    judgement
}

fn fig_5_cases(extent: &Extent) -> Vec<Case> {
    [8, 16]
        .iter()
        .flat_map(|&window| {
            [System::Thin, System::Ordered].map(|system| usual(extent, 2, window, system))
        })
        .collect()
}

fn fig_5(extent: &Extent, look: &Look<'_>) -> Judgement {
    let mut judgement = Judgement::default();
    let p50 = |window, system| {
        look.value(&usual(extent, 2, window, system), |measured| {
            measured.outcome.write_latency.p50_ms
        })
    };
    for system in [System::Thin, System::Ordered] {
        let ratio = p50(16, system) / p50(8, system);
        judgement.check(
            format!("{}: p50 at 16 over 8 {ratio:.3}", system.name()),
            (ratio - 1.0).abs() <= 0.15,
        );
    }
    for window in [8, 16] {
        let ratio = p50(window, System::Thin) / p50(window, System::Ordered);
        judgement.check(format!("p50 of thin over ordered {ratio:.2} at {window}"), ratio <= 0.6);
    }
    judgement
}

/// The settings that the paper gives: its windows, its ratios of duplicates with windows of 8, its
/// segments, and III-B's compression ratio.
fn own_cases(extent: &Extent) -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for panel in 0..PANELS.len() {
        cases.extend(
            WINDOWS
                .iter()
                .flat_map(|&window| CUT_SYSTEMS.map(|system| usual(extent, panel, window, system))),
        );
        for even in [true, false] {
            cases.extend(ratios(extent).iter().flat_map(|&ratio| {
                CUT_SYSTEMS.map(|system| spread(extent, panel, even, ratio, system))
            }));
        }
    }
    let devices = [DeviceKind::HddP, DeviceKind::SsdP];
    let days = devices
        .iter()
        .flat_map(|device| (0..SEGMENTS.len()).map(move |number| (number, device.clone())));
    cases.extend(days.flat_map(|(number, device)| {
        CUT_SYSTEMS.map(|system| segment(extent, number, device.clone(), system))
    }));
    cases.extend(
        CUT_SYSTEMS.map(|system| {
            with(usual(extent, 0, 32, system), |workload| workload.compression = 1.5)
        }),
    );
    cases
}

/// Settings of our own, which are shown and do not count: large windows, in which Dmdedup changes
/// many pages, and so many duplicates that little else is written; recorded traces; and the
/// mechanics of such a disk, which are not fitted.
const CUT_WINDOWS: [usize; 3] = [64, 128, 256];
const CUT_RATIOS: [f64; 3] = [8.0, 12.0, 16.08];
const CUT_COMPRESSIONS: [f64; 2] = [1.25, 1.5];

const CUT_SYSTEMS: [System; 3] = [System::Thin, System::Ordered, System::Cow];

fn added_cases(extent: &Extent) -> Vec<Case> {
    let recorded = |path: &std::path::PathBuf| {
        CUT_SYSTEMS.map(|system| recorded(extent, path, DeviceKind::HddP, system))
    };
    let mut cases: Vec<Case> = extent.traces.iter().flat_map(recorded).collect();
    for (window, ratio) in
        CUT_WINDOWS.into_iter().flat_map(|window| CUT_RATIOS.map(|ratio| (window, ratio)))
    {
        for compression in CUT_COMPRESSIONS {
            let shrunk = |workload: &mut Workload| workload.compression = compression;
            cases.extend(
                CUT_SYSTEMS.map(|system| with(at_ratio(extent, 0, ratio, window, system), shrunk)),
            );
        }
    }
    let mechanical = |window| {
        CUT_SYSTEMS
            .map(|system| Case { device: DeviceKind::HddM, ..usual(extent, 0, window, system) })
    };
    cases.extend([8, 32, 128].into_iter().flat_map(mechanical));
    cases
}

fn described(case: &Case) -> String {
    let parameters = match &case.load {
        Load::Generated(workload) => {
            let how = if workload.even { " evenly" } else { "" };
            format!(", ratio {}{how}, compression {}", workload.ratio, workload.compression)
        }
        Load::Recorded { .. } => String::new(),
    };
    format!("{}{parameters}, {}, {}", case.name, case.pace, case.device)
}

fn cut(extent: &Extent, look: &Look<'_>) -> Judgement {
    let p50 = |case: &Case| look.value(case, |measured| measured.outcome.write_latency.p50_ms);
    let (own, added) = (own_cases(extent), added_cases(extent));
    let best = |of: &[Case], against| {
        let thin = of.iter().filter(|case| case.system == System::Thin);
        let ratios = thin.map(|case| (p50(case) / p50(&case.on(against)), case.clone()));
        ratios.min_by(|a, b| a.0.total_cmp(&b.0))
    };
    let mut judgement = Judgement::default();
    let Some((ratio, case)) = best(&own, System::Cow) else { return judgement };
    judgement.check(
        format!("p50 of thin {ratio:.3} of Dmdedup's at best: {}", described(&case)),
        ratio <= 0.12,
    );
    let cow = case.on(System::Cow);
    let each = |what: fn(&Measured) -> u64| {
        look.value(&cow, |measured| what(measured) as f64 / measured.outcome.windows.max(1) as f64)
    };
    judgement.remark = format!(
        "It cuts {:.1} %: thin takes {:.1} ms and cow {:.1} ms, which writes {:.1} pages of \
         metadata for each window and flushes {:.2} times.",
        (1.0 - ratio) * 100.0,
        p50(&case),
        p50(&cow),
        each(|measured| measured.outcome.metadata_blocks),
        each(|measured| measured.outcome.flushes)
    );
    for (place, of, against) in [
        ("in the paper's settings", &own, System::Ordered),
        ("in settings of ours, which do not count,", &added, System::Cow),
    ] {
        if let Some((ratio, case)) = best(of, against) {
            let text = format!(
                " Beside {} {place} it cuts up to {:.1} %: {}.",
                against.name(),
                (1.0 - ratio) * 100.0,
                described(&case)
            );
            judgement.remark.push_str(&text);
        }
    }
    judgement
}
