//! ThinDedup's experiments.
//!
//! Its setting: single blocks, windows committed one after the other, duplicates 2:1, four fifths
//! of the contents compressible by 1.25. Devices are `hdd-p` and `ssd-p`, which were fitted to this
//! paper: absolute speeds agree because they were made to, ratios between systems are results.

mod compressibility;
mod duplicates;
mod latency;
mod recovery;
mod segments;
mod throughput;

use std::path::Path;

use onefold_core::Result;

use super::{
    case::{Case, Load, Pace, System},
    item::{Extent, Item},
    run::{self, Results},
};
use onefold_lab::{
    device::DeviceKind,
    workload::{Pattern, SEGMENTS, Workload},
};

/// The systems of the paper, and thin as the product has it.
const SYSTEMS: [System; 5] =
    [System::Ideal, System::Thin, System::ThinLog, System::Ordered, System::Cow];

const WINDOWS: [usize; 6] = [8, 16, 32, 64, 128, 256];

/// Ratios of Fig 6.
const RATIOS: [f64; 7] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0];
const RATIOS_QUICK: [f64; 4] = [1.0, 2.0, 4.0, 8.0];

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
    let load = Load::Generated(Workload::paper(pattern, blocks));
    Case { name: name.to_owned(), load, warm_up: 0, device, pace: Pace::Windows(window), system }
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

fn segment(extent: &Extent, number: usize, device: DeviceKind, system: System) -> Case {
    let (name, pattern, ratio) = SEGMENTS[number];
    let (warm_up, blocks) = if extent.quick { (500, 2500) } else { (10_000, 40_000) };
    let workload = Workload { ratio, ..Workload::paper(pattern, warm_up + blocks) };
    Case {
        name: name.to_owned(),
        load: Load::Generated(workload),
        warm_up,
        device,
        pace: Pace::Windows(8),
        system,
    }
}

fn recorded(extent: &Extent, path: &Path, device: DeviceKind, system: System) -> Case {
    let records = if extent.quick { 4000 } else { 60_000 };
    let load = Load::Recorded { path: path.to_owned(), from: None, records: Some(records) };
    Case { name: Load::name_of(path), load, warm_up: 0, device, pace: Pace::Windows(8), system }
}

fn ratios(extent: &Extent) -> &'static [f64] {
    if extent.quick { &RATIOS_QUICK } else { &RATIOS }
}

/// A ratio as it is printed: checkpoints left out, and included.
fn both((without, included): (f64, f64)) -> String {
    format!("{without:.2} ({included:.2} with checkpoints)")
}

/// The paper's statements, in its order.
const GROUPS: [&[Item]; 7] = [
    &compressibility::SETUP,
    &throughput::ITEMS,
    &latency::ITEMS,
    &duplicates::ITEMS,
    &compressibility::ITEMS,
    &segments::ITEMS,
    &recovery::ITEMS,
];

/// Names by which items are chosen.
pub(crate) const NAMES: [&str; 15] = [
    "setup", "3a", "3b", "3c", "3d", "4", "5", "abstract", "6", "7", "8", "text", "9", "10",
    "recovery",
];

/// Runs the items named, or all of them when there are no names. `progress` hears of the blocks
/// written and of how many there will be.
///
/// # Errors
/// The first of any replay; `Corrupt` when a block reads back wrong.
pub(crate) fn run(
    names: &[String],
    extent: &Extent,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Results> {
    let about = [
        "Every figure is a run of the real engine, with real fingerprints, LZ4 and tables, on a \
         device model in virtual time. The devices hdd-p and ssd-p are fitted to this paper's \
         text: absolute speeds agree because they were made to, and so do the ratios of Figs 3a, 3d and 4, \
         which are marked as calibrated; other ratios between systems are results."
            .to_owned(),
        "Systems: ideal writes no metadata; thin as in the paper (split zones, leftover = table); \
         thin, log as in the product (leftover = log); ordered; cow is Dmdedup. As in the paper, \
         speeds leave out the writing of records into tables afterwards; each is given with it, \
         too. What cow's trees write is how it commits, and always counts."
            .to_owned(),
    ];
    run::run("ThinDedup", &about, &GROUPS, names, extent, progress)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_known_by_their_names() {
        assert_eq!(run::names(&GROUPS), NAMES);
    }

    #[test]
    fn a_figure_is_measured_and_judged() {
        let extent = Extent { quick: true, traces: Vec::new(), cluster: None };
        let mut last = (0, 0);
        let results =
            run(&["3d".to_owned()], &extent, &mut |done, total| last = (done, total)).unwrap();
        assert_eq!(
            (results.statements.len(), results.score.possible, results.points.len()),
            (1, 1, 30)
        );
        assert!(
            last.0 == last.1
                && results
                    .points
                    .iter()
                    .all(|point| point.outcome.verified_blocks > 0 && point.items == ["3d"])
        );
        let statement = &results.statements[0];
        assert!(
            statement.fitted
                && statement.blocks >= 30 * 2560
                && statement.found.contains("with checkpoints"),
            "{statement:?}"
        );
        assert_eq!((results.score.calibrated, results.score.reproduced), (1, 0), "{statement:?}");
        assert_eq!(results.report.sections[0].figures.len(), 3);
    }
}
