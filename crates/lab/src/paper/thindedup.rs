//! ThinDedup's experiments.
//!
//! Its setting: single blocks, windows committed one after the other, duplicates 2:1, four fifths of the contents compressible by 1.25. Devices
//! are `hdd-p` and `ssd-p`, which were fitted to this paper: absolute speeds agree because they were made to, ratios between systems are results.

use std::{path::Path, time::Instant};

use onefold_core::{
    BLOCK_BYTES, Block, Result,
    compress::{Lz4, WORST_BYTES, expand},
};

use super::{Case, Extent, Item, Judgement, Load, Look, Measured, Results, System, run as run_items};
use crate::{
    Content,
    device::DeviceKind,
    report::{Axis, Bars, Figure, Lines, Scale, Series, distribution},
    workload::{Pattern, SEGMENTS, Workload},
};

const WINDOWS: [usize; 6] = [8, 16, 32, 64, 128, 256];

/// Ratios of Fig 6, and of Fig 7, where each has its share of hidden records in a window of 8 by the binomial bound.
const RATIOS: [f64; 7] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0];
const RATIOS_QUICK: [f64; 4] = [1.0, 2.0, 4.0, 8.0];
const BOUND: [(f64, f64); 5] = [(1.6, 0.996), (2.0, 0.983), (5.43, 0.721), (9.73, 0.497), (16.08, 0.335)];

const COMPRESSIBLE: [f64; 6] = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0];

/// The four panels of Figs 3 and 6.
const PANELS: [(&str, Pattern, DeviceKind); 4] = [
    ("random", Pattern::Random, DeviceKind::HddP),
    ("sequential", Pattern::Sequential, DeviceKind::HddP),
    ("random", Pattern::Random, DeviceKind::SsdP),
    ("sequential", Pattern::Sequential, DeviceKind::SsdP),
];

/// A run of the paper's usual workload.
fn usual(extent: &Extent, panel: usize, window: usize, system: System) -> Case {
    let (name, pattern, device) = PANELS[panel].clone();
    // A window of 256 is filled often enough for its distribution, too.
    let blocks = if extent.quick { 2560 } else { 30_000 }.max(16 * window as u64);
    Case { name: name.to_owned(), load: Load::Generated(Workload::paper(pattern, blocks)), warm_up: 0, device, window, system }
}

fn with(case: Case, change: impl FnOnce(&mut Workload)) -> Case {
    let mut case = case;
    if let Load::Generated(workload) = &mut case.load {
        change(workload);
    }
    case
}

fn at_ratio(extent: &Extent, panel: usize, ratio: f64, window: usize, system: System) -> Case {
    with(usual(extent, panel, window, system), |workload| workload.ratio = ratio)
}

fn compressed(extent: &Extent, compressible: f64, window: usize) -> Case {
    with(usual(extent, 0, window, System::Thin), |workload| workload.compressible = compressible)
}

fn segment(extent: &Extent, number: usize, device: DeviceKind, system: System) -> Case {
    let (name, pattern, ratio) = SEGMENTS[number];
    let (warm_up, blocks) = if extent.quick { (500, 2500) } else { (10_000, 40_000) };
    let workload = Workload { ratio, ..Workload::paper(pattern, warm_up + blocks) };
    Case { name: name.to_owned(), load: Load::Generated(workload), warm_up, device, window: 8, system }
}

fn recorded(extent: &Extent, path: &Path, device: DeviceKind, system: System) -> Case {
    let records = if extent.quick { 4000 } else { 60_000 };
    let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().trim_end_matches(".dtrace.zst").to_owned());
    Case { name, load: Load::Recorded { path: path.to_owned(), records }, warm_up: 0, device, window: 8, system }
}

fn panel_cases(extent: &Extent, panel: usize) -> Vec<Case> {
    WINDOWS.iter().flat_map(|&window| System::ALL.map(|system| usual(extent, panel, window, system))).collect()
}

fn segment_cases(extent: &Extent, device: &DeviceKind) -> Vec<Case> {
    let generated = (0..SEGMENTS.len()).flat_map(|number| System::ALL.map(|system| segment(extent, number, device.clone(), system)));
    let of_traces = |path: &std::path::PathBuf| TRACED.map(|system| recorded(extent, path, device.clone(), system));
    generated.chain(extent.traces.iter().flat_map(of_traces)).collect()
}

/// Systems that run on recorded traces.
const TRACED: [System; 4] = [System::Thin, System::ThinLog, System::Ordered, System::Cow];

fn axis(label: &str, scale: Scale) -> Axis {
    Axis { label: label.to_owned(), scale }
}

/// A line for each system over an axis, checkpoints left out; or another number.
fn plot(title: String, x: Axis, y: Axis, series: Vec<Series>) -> Figure {
    Figure::Lines(Lines { title, x, y, series, steps: false, note: String::new() })
}

fn over<'a>(
    look: &Look<'_>,
    title: &str,
    x: Axis,
    xs: &'a [f64],
    of: fn(&Measured) -> f64,
    case: impl Fn(f64, System) -> Case + 'a,
) -> Figure {
    let series = System::ALL.map(|system| Series {
        name: system.name().to_owned(),
        points: xs.iter().map(|&at| (at, look.value(&case(at, system), of))).collect(),
    });
    plot(title.to_owned(), x, axis("blocks a second", Scale::Linear), series.to_vec())
}

fn draw_panel(extent: &Extent, look: &Look<'_>, panel: usize) -> Vec<Figure> {
    let windows = WINDOWS.map(|window| window as f64);
    let x = || axis("blocks of a window", Scale::Logarithmic);
    let case = |window: f64, system| usual(extent, panel, window as usize, system);
    vec![
        over(look, "Throughput, checkpoints left out as in the paper", x(), &windows, |measured| measured.throughput, case),
        over(look, "Throughput, checkpoints included", x(), &windows, |measured| measured.throughput_with_checkpoints, case),
    ]
}

/// Latencies of some cases.
fn draw_latency(look: &Look<'_>, title: &str, cases: &[Case]) -> Option<Figure> {
    let found: Vec<&Measured> = cases.iter().filter_map(|case| look.at(case)).collect();
    let named = |measured: &&Measured| format!("{}, window {}", measured.system.name(), measured.setting.window_blocks);
    distribution(title, found.iter().map(|measured| (named(measured), &measured.outcome.write_latency)))
}

fn draw_segments(extent: &Extent, look: &Look<'_>, device: &DeviceKind) -> Vec<Figure> {
    let bars = |title: &str, of: fn(&Measured) -> f64| {
        let series = System::ALL.map(|system| {
            let heights = (0..SEGMENTS.len()).map(|number| look.at(&segment(extent, number, device.clone(), system)).map(of));
            (system.name().to_owned(), heights.collect())
        });
        Figure::Bars(Bars {
            title: title.to_owned(),
            y: axis("blocks a second", Scale::Linear),
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

/// A ratio as it is printed: checkpoints left out, and included.
fn both((without, included): (f64, f64)) -> String {
    format!("{without:.2} ({included:.2} with checkpoints)")
}

/// Thin over ordered at some windows.
fn advantage(extent: &Extent, look: &Look<'_>, panel: usize, window: usize) -> (f64, f64) {
    let of = |system| usual(extent, panel, window, system);
    look.ratio(&of(System::Thin), &of(System::Ordered))
}

/// The least; not a number when one of them is none.
fn least(values: &[f64]) -> f64 {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    if values.iter().any(|value| value.is_nan()) { f64::NAN } else { least }
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
    judgement
        .check(format!("thin {thin:.0}/s at 32, ordered {:.0}/s at 256", speed(256, System::Ordered)), (1800.0..=2200.0).contains(&thin));
    for window in WINDOWS {
        let [ideal, thin, ordered, cow] = [System::Ideal, System::Thin, System::Ordered, System::Cow].map(|system| speed(window, system));
        if !(ideal >= thin && thin > ordered && ordered > cow) {
            judgement.check(format!("at {window} ideal {ideal:.0}, thin {thin:.0}, ordered {ordered:.0}, cow {cow:.0}/s"), false);
        }
    }
    judgement.check("order of the systems at every window", judgement.checks.len() == 5);
    judgement
}

fn fig_3b(extent: &Extent, look: &Look<'_>) -> Judgement {
    let mut judgement = Judgement::default();
    let thin = look.speed(&usual(extent, 1, 32, System::Thin));
    let ordered = look.speed(&usual(extent, 1, 64, System::Ordered));
    judgement.check(format!("thin {thin:.0}/s at 32, ordered {ordered:.0}/s at 64"), apart(thin, ordered) <= 0.15);
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
    judgement.check(format!("thin {speed:.0}/s at 8, ordered {ordered:.0}/s at 16"), apart(speed, ordered) <= 0.15);
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
        judgement.check(format!("thin/ordered {} at {window}", both(ratio)), band.contains(&ratio.0));
    }
    judgement
}

fn fig_4_cases(extent: &Extent) -> [Vec<Case>; 2] {
    let of = |panel, windows: [usize; 2]| {
        windows.iter().flat_map(|&window| [System::Thin, System::Ordered].map(|system| usual(extent, panel, window, system))).collect()
    };
    [of(0, [32, 256]), of(1, [32, 64])]
}

fn fig_4(extent: &Extent, look: &Look<'_>) -> Judgement {
    let mut judgement = Judgement::default();
    let p80 = |panel, window, system| look.value(&usual(extent, panel, window, system), |measured| measured.outcome.write_latency.p80_ms);
    for (system, band) in [(System::Thin, 3.0..=4.0), (System::Ordered, 2.7..=3.7)] {
        let ratio = p80(0, 256, system) / p80(0, 32, system);
        judgement.check(format!("random: {} p80 at 256 over 32 {ratio:.2}", system.name()), band.contains(&ratio));
    }
    let ratio = p80(1, 32, System::Thin) / p80(1, 64, System::Ordered);
    judgement.check(format!("sequential: p80 of thin at 32 over ordered at 64 {ratio:.2}"), ratio < 0.7);
    judgement
}

fn fig_5_cases(extent: &Extent) -> Vec<Case> {
    [8, 16].iter().flat_map(|&window| [System::Thin, System::Ordered].map(|system| usual(extent, 2, window, system))).collect()
}

fn fig_5(extent: &Extent, look: &Look<'_>) -> Judgement {
    let mut judgement = Judgement::default();
    let p50 = |window, system| look.value(&usual(extent, 2, window, system), |measured| measured.outcome.write_latency.p50_ms);
    for system in [System::Thin, System::Ordered] {
        let ratio = p50(16, system) / p50(8, system);
        judgement.check(format!("{}: p50 at 16 over 8 {ratio:.3}", system.name()), (ratio - 1.0).abs() <= 0.15);
    }
    for window in [8, 16] {
        let ratio = p50(window, System::Thin) / p50(window, System::Ordered);
        judgement.check(format!("p50 of thin over ordered {ratio:.2} at {window}"), ratio <= 0.6);
    }
    judgement
}

fn cut_cases(extent: &Extent) -> Vec<Case> {
    let systems = [System::Thin, System::Ordered, System::Cow];
    let mut cases: Vec<Case> = Vec::new();
    for panel in [0, 1] {
        cases.extend(WINDOWS.iter().flat_map(|&window| systems.map(|system| usual(extent, panel, window, system))));
        cases.extend(ratios(extent).iter().flat_map(|&ratio| systems.map(|system| at_ratio(extent, panel, ratio, 8, system))));
    }
    cases.extend((0..SEGMENTS.len()).flat_map(|number| systems.map(|system| segment(extent, number, DeviceKind::HddP, system))));
    cases.extend(extent.traces.iter().flat_map(|path| systems.map(|system| recorded(extent, path, DeviceKind::HddP, system))));
    // The same disk's mechanics, which are not fitted: whether the miss is the fitted model's.
    let mechanical = |window| systems.map(|system| Case { device: DeviceKind::HddM, ..usual(extent, 0, window, system) });
    cases.extend([8, 32, 128].into_iter().flat_map(mechanical));
    cases
}

fn described(case: &Case) -> String {
    let ratio = if let Load::Generated(workload) = &case.load { format!(", ratio {}", workload.ratio) } else { String::new() };
    format!("{}{ratio}, window {}, {}", case.name, case.window, case.device)
}

fn cut(extent: &Extent, look: &Look<'_>) -> Judgement {
    let p50 = |case: &Case| look.value(case, |measured| measured.outcome.write_latency.p50_ms);
    let all = cut_cases(extent);
    let best = |against, device: DeviceKind| {
        let thin = all.iter().filter(|case| case.system == System::Thin && case.device == device);
        let ratios = thin.map(|case| (p50(case) / p50(&Case { system: against, ..case.clone() }), case));
        ratios.min_by(|a, b| a.0.total_cmp(&b.0))
    };
    let mut judgement = Judgement::default();
    let Some((ratio, case)) = best(System::Cow, DeviceKind::HddP) else { return judgement };
    judgement.check(format!("p50 of thin {ratio:.3} of Dmdedup's at best: {}", described(case)), ratio <= 0.12);
    judgement.remark = format!("That cuts {:.0} %.", (1.0 - ratio) * 100.0);
    if ratio > 0.12 {
        let cow = Case { system: System::Cow, ..case.clone() };
        let each = |what: fn(&Measured) -> u64| look.value(&cow, |measured| what(measured) as f64 / measured.outcome.windows.max(1) as f64);
        judgement.remark.push_str(&format!(
            " There thin takes {:.1} ms and cow {:.1} ms; for each window cow writes {:.1} pages of metadata and flushes {:.2} times. For 88 % it would have to \
             take {:.0} ms.",
            p50(case),
            p50(&cow),
            each(|measured| measured.outcome.metadata_blocks),
            each(|measured| measured.outcome.flushes),
            p50(case) / 0.12
        ));
    }
    for (against, device) in [(System::Ordered, DeviceKind::HddP), (System::Ordered, DeviceKind::HddM), (System::Cow, DeviceKind::HddM)] {
        if let Some((ratio, case)) = best(against, device) {
            let text = format!(" Against {} it cuts up to {:.0} %: {}.", against.name(), (1.0 - ratio) * 100.0, described(case));
            judgement.remark.push_str(&text);
        }
    }
    judgement
}

fn ratios(extent: &Extent) -> &'static [f64] {
    if extent.quick { &RATIOS_QUICK } else { &RATIOS }
}

fn fig_6_cases(extent: &Extent) -> Vec<Case> {
    let of = |panel| ratios(extent).iter().flat_map(move |&ratio| System::ALL.map(|system| at_ratio(extent, panel, ratio, 8, system)));
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
    if judgement.checks.iter().any(|check| !check.1) {
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
        let x = axis("blocks written for each different one", Scale::Linear);
        let case = move |ratio, system| at_ratio(extent, panel, ratio, 8, system);
        over(look, &format!("Throughput, {name}, {device}, window 8"), x, ratios(extent), |measured| measured.throughput, case)
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
    let x = axis("blocks written for each different one", Scale::Linear);
    vec![plot("Records written explicitly".to_owned(), x, axis("% of all records", Scale::Linear), FIG_7_WINDOWS.map(line).to_vec())]
}

const FIG_8_WINDOWS: [usize; 3] = [8, 16, 32];

fn fig_8_cases(extent: &Extent) -> Vec<Case> {
    COMPRESSIBLE.iter().flat_map(|&share| FIG_8_WINDOWS.map(|window| compressed(extent, share, window))).collect()
}

fn fig_8(extent: &Extent, look: &Look<'_>) -> Judgement {
    let mut judgement = Judgement::default();
    for window in [16, 32] {
        let ratio = look.speed(&compressed(extent, 0.4, window)) / look.speed(&compressed(extent, 0.8, window));
        let hidden = look.value(&compressed(extent, 0.4, window), Measured::hidden);
        let text = format!("window {window}: speed at 40 % is {ratio:.3} of that at 80 %, {:.1} % hidden", hidden * 100.0);
        judgement.check(text, ratio >= 0.95);
    }
    if judgement.checks.iter().any(|check| !check.1) {
        let case = compressed(extent, 0.4, 16);
        let share = look.value(&case, |measured| {
            let outcome = &measured.outcome;
            outcome.tally.leftover_blocks as f64 / outcome.windows.max(1) as f64
        });
        judgement.remark = format!(
            "At 40 % and 16, thin writes {share:.2} pages of tables for each window. On hdd-p even one such page costs another flush of 10.3 ms or more, so \
             the few windows without a compressible block cost more than their share of records."
        );
    }
    judgement
}

fn draw_fig_8(extent: &Extent, look: &Look<'_>) -> Vec<Figure> {
    let line = |window| Series {
        name: format!("thin, window {window}"),
        points: COMPRESSIBLE.iter().map(|&share| (share * 100.0, look.speed(&compressed(extent, share, window)))).collect(),
    };
    let x = axis("% of contents that compress", Scale::Linear);
    vec![plot("Throughput, random, hdd-p".to_owned(), x, axis("blocks a second", Scale::Linear), FIG_8_WINDOWS.map(line).to_vec())]
}

fn text_case(extent: &Extent) -> Case {
    with(usual(extent, 0, 32, System::Thin), |workload| {
        workload.compression = 1.5;
        // Some ten zones of data, so that their share can be told.
        workload.blocks = if extent.quick { 30_000 } else { 150_000 };
        // A denser volume keeps the tables small; neither share hangs on addresses.
        workload.volume_blocks = 1 << 20;
    })
}

fn text(extent: &Extent, look: &Look<'_>) -> Judgement {
    let mut judgement = Judgement::default();
    let case = text_case(extent);
    let carriers = look.value(&case, |measured| {
        let counts = &measured.outcome.device_counts;
        counts.carrier_blocks as f64 / (counts.data_blocks + counts.carrier_blocks).max(1) as f64
    });
    judgement.check(format!("{:.1} % of the data blocks compressed", carriers * 100.0), carriers <= 0.12);
    let zones = look.value(&case, |measured| measured.outcome.carrier_zones as f64 / measured.outcome.data_zones.max(1) as f64);
    let counts = look.at(&case).map_or((0, 0), |measured| (measured.outcome.carrier_zones, measured.outcome.data_zones));
    judgement.check(format!("{} of {} zones hold such blocks, {:.1} %", counts.0, counts.1, zones * 100.0), zones <= 0.15);
    judgement
}

/// Figs 9 and 10.
fn segments(extent: &Extent, look: &Look<'_>, device: &DeviceKind, least: f64) -> Judgement {
    let mut judgement = Judgement::default();
    let gain = |number, system| {
        let of = |system| segment(extent, number, device.clone(), system);
        look.ratio(&of(system), &of(System::Ordered))
    };
    let gains: Vec<(f64, f64)> = (0..SEGMENTS.len()).map(|number| gain(number, System::Thin)).collect();
    let percent = |ratio: f64| (ratio - 1.0) * 100.0;
    let listed: Vec<String> = SEGMENTS.iter().zip(&gains).map(|((name, ..), gain)| format!("{name} {:+.0} %", percent(gain.0))).collect();
    judgement.check(format!("thin over ordered: {}", listed.join(", ")), gains.iter().all(|gain| percent(gain.0) >= least));
    let most = gains.iter().map(|gain| gain.0).fold(f64::NAN, f64::max);
    judgement.check(format!("the most {:+.0} %", percent(most)), percent(most) >= 80.0);
    let fewest = (0..gains.len()).min_by(|&a, &b| gains[a].0.total_cmp(&gains[b].0)).unwrap_or(0);
    judgement.check(format!("the least at {} ({})", SEGMENTS[fewest].0, SEGMENTS[fewest].2), SEGMENTS[fewest].0 == "mail-2");
    for path in &extent.traces {
        let of = |system| recorded(extent, path, device.clone(), system);
        let ratio = look.ratio(&of(System::Thin), &of(System::Ordered));
        judgement.check(format!("recorded {}: {:+.0} %", of(System::Thin).name, percent(ratio.0)), ratio.0 > 1.0);
    }
    let included: Vec<String> = SEGMENTS.iter().zip(&gains).map(|((name, ..), gain)| format!("{name} {:+.0} %", percent(gain.1))).collect();
    let log = (0..SEGMENTS.len()).map(|number| percent(gain(number, System::ThinLog).0)).fold(f64::INFINITY, f64::min);
    judgement.remark = format!("With checkpoints: {}. With leftover = log the least is {log:+.0} %.", included.join(", "));
    if extent.traces.is_empty() && *device == DeviceKind::HddP {
        judgement.remark.push_str(" No recorded traces were given (--traces).");
    }
    judgement
}

/// Speed of LZ4 on this machine: real time, not virtual.
fn setup(_: &Extent, _: &Look<'_>) -> Judgement {
    let mut lz4 = Lz4::default();
    let mut blocks = Block::zeroed_vec(256);
    for (number, block) in (0..).zip(&mut blocks) {
        Content::numbered(1, number, (BLOCK_BYTES as f64 / 1.25) as u16).fill(block);
    }
    let mut packed: Vec<Vec<u8>> = Vec::new();
    let begun = Instant::now();
    for block in blocks.iter().cycle().take(8192) {
        let bytes = lz4.compress(block, WORST_BYTES).unwrap_or(&[]);
        if packed.len() < blocks.len() {
            packed.push(bytes.to_vec());
        }
    }
    let speed = |since: Instant| 8192.0 * BLOCK_BYTES as f64 / 1e6 / since.elapsed().as_secs_f64();
    let compressing = speed(begun);
    let begun = Instant::now();
    let mut into = Block::zeroed_vec(1);
    let right = packed.iter().cycle().take(8192).all(|bytes| expand(bytes, &mut into[0]).is_ok());
    let expanding = speed(begun);
    let mut judgement = Judgement { out_of_scope: true, ..Judgement::default() };
    judgement.check(format!("{compressing:.0} MB/s in, {expanding:.0} MB/s out, one thread, real time"), right);
    judgement.remark = "Nothing is asked for; recorded.".to_owned();
    judgement
}

fn recovery(_: &Extent, _: &Look<'_>) -> Judgement {
    let mut judgement = Judgement { out_of_scope: true, ..Judgement::default() };
    judgement.check("not run here", true);
    judgement.remark =
        "Crashes are the simulator's: cargo xtask sim cuts the power at every write and checks what was acknowledged.".to_owned();
    judgement
}

fn nothing(_: &Extent) -> Vec<Case> {
    Vec::new()
}

fn no_figure(_: &Extent, _: &Look<'_>) -> Vec<Figure> {
    Vec::new()
}

/// What the paper states, in its order.
const ITEMS: [Item; 15] = [
    Item {
        id: "setup",
        name: "Setup: LZ4",
        says: "LZ4 of 4 KiB: 700 MB/s in, 2.45 GB/s out",
        band: "none",
        fitted: false,
        cases: nothing,
        judge: setup,
        draw: no_figure,
    },
    Item {
        id: "3a",
        name: "Fig 3a: random, hard disk",
        says: "thin/ordered 2.73 (32), about 3 (64), 2.88 (128), smaller at 256; thin at 32 about 2,000/s, as ordered at 256; Dmdedup lowest",
        band: "thin/ordered ≥ 2.5 at 32, 64, 128, lower at 256 than at 64; thin at 32 1,800 to 2,200/s; ideal ≥ thin > ordered > cow at every window",
        fitted: true,
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
        cases: |extent| panel_cases(extent, 1),
        judge: fig_3b,
        draw: |extent, look| draw_panel(extent, look, 1),
    },
    Item {
        id: "3c",
        name: "Fig 3c: random, SSD",
        says: "thin at 8 and ordered at 16 about 2,000/s; more than 95 % of metadata writes avoided; thin close to ideal",
        band: "the two within 15 %; thin ≥ 0.95 of ideal; ≥ 95 % of records hidden at 8",
        fitted: true,
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
        cases: |extent| panel_cases(extent, 3),
        judge: fig_3d,
        draw: |extent, look| draw_panel(extent, look, 3),
    },
    Item {
        id: "4",
        name: "Fig 4: latency, hard disk",
        says: "p80 at 256 over 32: thin 3.5, ordered 3.2; sequential thin at 32 is faster than ordered at 64 at equal throughput",
        band: "thin 3.0 to 4.0, ordered 2.7 to 3.7; p80 of thin at 32 < 0.7 of ordered at 64",
        fitted: true,
        cases: |extent| fig_4_cases(extent).concat(),
        judge: fig_4,
        draw: |extent, look| {
            let titles = ["Latency, random, hdd-p", "Latency, sequential, hdd-p"];
            titles.iter().zip(fig_4_cases(extent)).filter_map(|(title, cases)| draw_latency(look, title, &cases)).collect()
        },
    },
    Item {
        id: "5",
        name: "Fig 5: latency, SSD",
        says: "the window hardly matters; thin well below ordered",
        band: "p50 at 16 within 15 % of that at 8; thin ≤ 0.6 of ordered",
        fitted: true,
        cases: fig_5_cases,
        judge: fig_5,
        draw: |extent, look| draw_latency(look, "Latency, random, ssd-p", &fig_5_cases(extent)).into_iter().collect(),
    },
    Item {
        id: "abstract",
        name: "Abstract: latency cut",
        says: "latency cut by up to 88 %; of which system at which window is not said",
        band: "p50 of thin ≤ 0.12 of Dmdedup's in some case",
        fitted: true,
        cases: cut_cases,
        judge: cut,
        draw: no_figure,
    },
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
    Item {
        id: "8",
        name: "Fig 8: compressibility",
        says: "full benefit from 40 % on at windows of 16 or 32",
        band: "speed at 40 % ≥ 0.95 of that at 80 % for 16 and 32",
        fitted: true,
        cases: fig_8_cases,
        judge: fig_8,
        draw: draw_fig_8,
    },
    Item {
        id: "text",
        name: "Text, III-B: compressed blocks",
        says: "about 10 % of the data blocks are compressed, about 10 % of the zones are C-zones",
        band: "≤ 12 % of the data blocks, ≤ 15 % of the zones",
        fitted: false,
        cases: |extent| vec![text_case(extent)],
        judge: text,
        draw: no_figure,
    },
    Item {
        id: "9",
        name: "Table I, Fig 9: FIU segments, hard disk",
        says: "thin over ordered +19 % to +112 %, the least at Mail 16.08",
        band: "each ≥ +19 %, some ≥ +80 %, the least at Mail 16.08; thin > ordered on every recorded trace",
        fitted: true,
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
        cases: |extent| segment_cases(&Extent { traces: Vec::new(), ..extent.clone() }, &DeviceKind::SsdP),
        judge: |extent, look| segments(&Extent { traces: Vec::new(), ..extent.clone() }, look, &DeviceKind::SsdP, 7.0),
        draw: |extent, look| draw_segments(extent, look, &DeviceKind::SsdP),
    },
    Item {
        id: "recovery",
        name: "Recovery",
        says: "only uncommitted C-zones are scanned; a mapping whose data is missing is found by its fingerprint",
        band: "at every cut acknowledged writes are readable, and no wrong data",
        fitted: false,
        cases: nothing,
        judge: recovery,
        draw: no_figure,
    },
];

/// Names by which items are chosen.
pub const NAMES: [&str; 15] = ["setup", "3a", "3b", "3c", "3d", "4", "5", "abstract", "6", "7", "8", "text", "9", "10", "recovery"];

/// Runs the items named, or all of them when there are no names. `progress` hears of the blocks written and of how many there will be.
///
/// # Errors
/// The first of any replay; `Corrupt` when a block reads back wrong.
pub fn run(names: &[String], extent: &Extent, progress: &mut dyn FnMut(u64, u64)) -> Result<Results> {
    let items: Vec<Item> = ITEMS.into_iter().filter(|item| names.is_empty() || names.iter().any(|name| name == item.id)).collect();
    let about = [
        "Every figure is a run of the real engine, with real fingerprints, LZ4 and tables, on a device model in virtual time. The devices hdd-p and ssd-p \
         are fitted to this paper's text: absolute speeds agree because they were made to; ratios between systems are results."
            .to_owned(),
        "Systems: ideal writes no metadata; thin as in the paper (split zones, leftover = table); thin, log as in the product (leftover = log); ordered; cow \
         is Dmdedup. As in the paper, speeds leave out the writing of records into tables afterwards; each is given with it, too. What cow's trees write \
         is how it commits, and always counts."
            .to_owned(),
    ];
    run_items("ThinDedup, measured", &about, &items, extent, progress)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_known_by_their_names() {
        assert_eq!(ITEMS.map(|item| item.id), NAMES);
    }

    #[test]
    fn a_figure_is_measured_and_judged() {
        let extent = Extent { quick: true, traces: Vec::new() };
        let mut last = (0, 0);
        let results = run(&["3d".to_owned()], &extent, &mut |done, total| last = (done, total)).unwrap();
        assert_eq!((results.statements.len(), results.possible, results.points.len()), (1, 1, 30));
        assert!(last.0 == last.1 && results.points.iter().all(|point| point.outcome.verified_blocks > 0 && point.items == ["3d"]));
        let statement = &results.statements[0];
        assert!(statement.fitted && statement.blocks >= 30 * 2560 && statement.found.contains("with checkpoints"), "{statement:?}");
        assert_eq!(results.reproduced, 1, "{statement:?}");
        assert_eq!(results.report.sections[0].figures.len(), 3);
    }
}
