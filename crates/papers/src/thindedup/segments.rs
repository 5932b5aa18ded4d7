//! Table I, Figs 9 and 10: segments of FIU's traces by their shapes, and recorded traces.

use super::{SYSTEMS, recorded, segment};
use crate::{
    case::{Case, Measured, System},
    item::{Extent, Item, Judgement, Look, least, most},
};
use onefold_lab::{
    device::DeviceKind,
    report::{Axis, Bars, Figure},
    workload::SEGMENTS,
};

/// Segments.
pub(super) const ITEMS: [Item; 2] = [
    Item {
        id: "9",
        name: "Table I, Fig 9: FIU segments, hard disk",
        says: "thin over ordered +19 % to +112 %, the least at Mail 16.08",
        band: "each ≥ +19 %, some ≥ +80 %, the least at Mail 16.08; thin > ordered on every \
               recorded trace",
        fitted: true,
        calibrated: None,
        cases: |extent| segment_cases(extent, &DeviceKind::HddP),
        judge: |extent, look| segments(extent, look, &DeviceKind::HddP, 19.0),
        draw: |extent, look| draw_segments(extent, look, &DeviceKind::HddP),
    },
    Item {
        id: "10",
        name: "Fig 10: FIU segments, SSD",
        says: "thin over ordered +7 % to +91 %",
        band: "each ≥ +7 %, some ≥ +80 %, the least at Mail 16.08",
        fitted: true,
        calibrated: None,
        cases: |extent| {
            segment_cases(&Extent { traces: Vec::new(), ..extent.clone() }, &DeviceKind::SsdP)
        },
        judge: |extent, look| {
            segments(&Extent { traces: Vec::new(), ..extent.clone() }, look, &DeviceKind::SsdP, 7.0)
        },
        draw: |extent, look| draw_segments(extent, look, &DeviceKind::SsdP),
    },
];

fn segment_cases(extent: &Extent, device: &DeviceKind) -> Vec<Case> {
    let generated = (0..SEGMENTS.len())
        .flat_map(|number| SYSTEMS.map(|system| segment(extent, number, device.clone(), system)));
    let of_traces = |path: &std::path::PathBuf| {
        TRACED.map(|system| recorded(extent, path, device.clone(), system))
    };
    generated.chain(extent.traces.iter().flat_map(of_traces)).collect()
}

/// Systems that run on recorded traces.
const TRACED: [System; 4] = [System::Thin, System::ThinLog, System::Ordered, System::Cow];

fn draw_segments(extent: &Extent, look: &Look<'_>, device: &DeviceKind) -> Vec<Figure> {
    let bars = |title: &str, of: fn(&Measured) -> f64| {
        let series = SYSTEMS.map(|system| {
            let heights = (0..SEGMENTS.len())
                .map(|number| look.at(&segment(extent, number, device.clone(), system)).map(of));
            (system.name().to_owned(), heights.collect())
        });
        Figure::Bars(Bars {
            title: title.to_owned(),
            y: Axis::linear("blocks a second"),
            groups: SEGMENTS.map(|(name, _, ratio)| format!("{name} {ratio}")).to_vec(),
            series: series.to_vec(),
            mark: None,
            note: "FIU's segments by their shapes and ratios, windows of 8.".to_owned(),
        })
    };
    vec![
        bars("Throughput, checkpoints left out", |measured| measured.throughput),
        bars("Throughput, checkpoints included", |measured| measured.throughput_with_checkpoints),
    ]
}

/// Figs 9 and 10.
fn segments(extent: &Extent, look: &Look<'_>, device: &DeviceKind, band: f64) -> Judgement {
    let mut judgement = Judgement::default();
    let gain = |number, system| {
        let of = |system| segment(extent, number, device.clone(), system);
        look.ratio(&of(system), &of(System::Ordered))
    };
    let gains: Vec<(f64, f64)> =
        (0..SEGMENTS.len()).map(|number| gain(number, System::Thin)).collect();
    let percent = |ratio: f64| (ratio - 1.0) * 100.0;
    let listed: Vec<String> = SEGMENTS
        .iter()
        .zip(&gains)
        .map(|((name, ..), gain)| format!("{name} {:+.0} %", percent(gain.0)))
        .collect();
    judgement.check(
        format!("thin over ordered: {}", listed.join(", ")),
        gains.iter().all(|gain| percent(gain.0) >= band),
    );
    let highest = percent(most(&gains.iter().map(|gain| gain.0).collect::<Vec<f64>>()));
    judgement.check(format!("the most {highest:+.0} %"), highest >= 80.0);
    let fewest = (0..gains.len()).min_by(|&a, &b| gains[a].0.total_cmp(&gains[b].0)).unwrap_or(0);
    judgement.check(
        format!("the least at {} ({})", SEGMENTS[fewest].0, SEGMENTS[fewest].2),
        SEGMENTS[fewest].0 == "mail-2",
    );
    for path in &extent.traces {
        let of = |system| recorded(extent, path, device.clone(), system);
        let ratio = look.ratio(&of(System::Thin), &of(System::Ordered));
        judgement.check(
            format!("recorded {}: {:+.0} %", of(System::Thin).name, percent(ratio.0)),
            ratio.0 > 1.0,
        );
    }
    let included: Vec<String> = SEGMENTS
        .iter()
        .zip(&gains)
        .map(|((name, ..), gain)| format!("{name} {:+.0} %", percent(gain.1)))
        .collect();
    let log = least(
        &(0..SEGMENTS.len())
            .map(|number| percent(gain(number, System::ThinLog).0))
            .collect::<Vec<f64>>(),
    );
    judgement.remark = format!(
        "With checkpoints: {}. With leftover = log the least is {log:+.0} %.",
        included.join(", ")
    );
    if extent.traces.is_empty() && *device == DeviceKind::HddP {
        judgement.remark.push_str(" No recorded traces were given (--traces).");
    }
    judgement
}
