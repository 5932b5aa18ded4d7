//! OrderMergeDedup's experiments.
//!
//! Recorded traces, by which statements are judged, and its six workloads, by their shapes, which
//! are shown beside: how much is written, and how long it takes, with weak and with strong
//! persistence. Merges are counted on a device that is hardly ever busy (`nvme-plp`), so that they
//! are the scheme's; times are those of `ssd-p`, which was fitted to the other paper.

mod crash;
mod space;
mod target;
mod time;
mod volume;
mod workloads;

use onefold_block::Persistence;
use onefold_core::Result;

use self::workloads::SIX;
use super::{
    case::{Case, Load, Measured, Pace, System},
    item::{Extent, Item, Look},
    run::{self, Results},
};
use onefold_lab::{
    device::DeviceKind,
    report::{Axis, Bars, Figure},
};

/// The systems that are compared: the paper's, the order of writes that ThinDedup measured, and the
/// product.
const SYSTEMS: [System; 7] = [
    System::Original,
    System::Cow,
    System::Ordered,
    System::Soft,
    System::SoftDelayed,
    System::OrderMerge,
    System::ThinLog,
];

/// The paper's steps, each on top of the one before.
const STEPS: [System; 3] = [System::Soft, System::SoftDelayed, System::OrderMerge];

/// Both models of persistence.
const BOTH: [Persistence; 2] = [Persistence::Weak, Persistence::Strong];

/// Traces whose figures the bands are for.
const JUDGED: [&str; 3] = ["apt", "pgbench", "srcver"];

/// Records of a trace in the short form: its beginning, and of `apt` that of the installation,
/// which flushes often.
const QUICK_RECORDS: u64 = 25_000;

/// The workloads with their names: the six, and the traces.
fn loads(extent: &Extent) -> Vec<(String, Load)> {
    let six = SIX.iter().map(|shape| (shape.name.to_owned(), shape.load(extent)));
    six.chain(recorded(extent)).collect()
}

/// The traces.
fn recorded(extent: &Extent) -> Vec<(String, Load)> {
    let load = |path: &std::path::PathBuf| {
        let name = Load::name_of(path);
        let from = (extent.quick && name == "apt").then_some("install");
        (
            name,
            Load::Recorded {
                path: path.clone(),
                from,
                records: extent.quick.then_some(QUICK_RECORDS),
            },
        )
    };
    extent.traces.iter().map(load).collect()
}

/// The traces that the statements are judged by; the others are shown only.
fn judged(extent: &Extent) -> Vec<(String, Load)> {
    recorded(extent).into_iter().filter(|(name, _)| JUDGED.contains(&name.as_str())).collect()
}

/// Judged traces of which enough is replayed for bands of the whole: short runs leave `apt` out,
/// since they have its installation alone, which has next to no duplicates.
fn whole(extent: &Extent) -> Vec<(String, Load)> {
    judged(extent).into_iter().filter(|(name, _)| !(extent.quick && name == "apt")).collect()
}

/// So much of the traces as is replayed block by block.
fn beginnings(extent: &Extent) -> Vec<(String, Load)> {
    let few = if extent.quick { 3000 } else { 40_000 };
    let cut = |(name, load)| match load {
        Load::Recorded { path, from, .. } => {
            (name, Load::Recorded { path, from, records: Some(few) })
        }
        generated => (name, generated),
    };
    judged(extent).into_iter().map(cut).collect()
}

/// A trace of this name.
fn trace(extent: &Extent, name: &str) -> Option<(String, Load)> {
    recorded(extent).into_iter().find(|(known, _)| known == name)
}

fn case(load: &(String, Load), device: DeviceKind, pace: Pace, system: System) -> Case {
    Case { name: load.0.clone(), load: load.1.clone(), warm_up: 0, device, pace, system }
}

/// A run for what is written. The clients of recorded traces wait for their flushes, as they did;
/// what is generated comes in its bursts, whatever a flush does.
fn volume_case(load: &(String, Load), persistence: Persistence, system: System) -> Case {
    let pace = match load.1 {
        Load::Recorded { .. } => Pace::Timed(persistence),
        Load::Generated(_) => Pace::Open(persistence),
    };
    case(load, DeviceKind::NvmePlp, pace, system)
}

/// A run for how long it takes.
fn time_case(load: &(String, Load), persistence: Persistence, system: System) -> Case {
    case(load, DeviceKind::SsdP, Pace::Timed(persistence), system)
}

/// A part of a trace, as a number of it.
fn phase(measured: &Measured, name: &str, of: impl Fn(&onefold_lab::replay::Phase) -> f64) -> f64 {
    measured.outcome.phases.iter().find(|phase| phase.name == name).map_or(f64::NAN, of)
}

/// Bars of each system over the workloads.
fn bars(
    look: &Look<'_>,
    title: &str,
    label: &str,
    loads: &[(String, Load)],
    systems: &[System],
    of: impl Fn(&(String, Load), System) -> f64,
    mark: Option<(String, Vec<f64>)>,
) -> Figure {
    let height =
        |load: &(String, Load), system| Some(of(load, system)).filter(|height| height.is_finite());
    let series = systems.iter().map(|&system| {
        (
            system.name().to_owned(),
            loads.iter().map(|load| height(load, system)).collect::<Vec<_>>(),
        )
    });
    let series = series.filter(|(_, heights)| heights.iter().any(Option::is_some)).collect();
    let note = if look.missing.get() {
        "Systems that the engine does not have are left out.".to_owned()
    } else {
        String::new()
    };
    let groups = loads.iter().map(|(name, _)| name.clone()).collect();
    Figure::Bars(Bars {
        title: title.to_owned(),
        y: Axis::linear(label),
        groups,
        series,
        mark,
        note,
    })
}

/// The paper's statements, in its order.
const GROUPS: [&[Item]; 8] = [
    &workloads::ITEMS,
    &volume::WEAK,
    &time::WEAK,
    &volume::STRONG,
    &time::STRONG,
    &space::ITEMS,
    &crash::ITEMS,
    &target::ITEMS,
];

/// Names by which items are chosen.
pub(crate) const NAMES: [&str; 9] =
    ["shares", "2a", "2b", "3a", "3b", "space", "energy", "crash", "target"];

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
         device model in virtual time. Write volume is counted on nvme-plp, which is hardly ever \
         busy. Clients of recorded traces, by which everything is judged, wait for their flushes; \
         the generated workloads, which are shown beside, come in bursts. Times are those of \
         ssd-p, which is fitted to ThinDedup's text."
            .to_owned(),
        "Systems: original has no deduplication; cow is Dmdedup, a transaction for each flush \
         (weak) or each request (strong, and where it is said each block of 4 KiB); ordered is the \
         order of writes that ThinDedup measured (data, flush, records); ordering, + delay and + \
         anticipation are OrderMergeDedup's steps; thin, log is the product's default. Up to 128 \
         requests are under way with every step, and what comes while a commit is under way is \
         gathered; cow alone, which is Dmdedup's transaction of a single request, has one."
            .to_owned(),
        "Write volume leaves out the writing of records into tables by checkpoints, which the \
         paper's linear tables do not have; it is given with it, too."
            .to_owned(),
    ];
    run::run("OrderMergeDedup", &about, &GROUPS, names, extent, progress)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_known_by_their_names() {
        assert_eq!(run::names(&GROUPS), NAMES);
    }

    #[test]
    fn the_six_workloads_have_their_shares() {
        let extent = Extent { quick: true, traces: Vec::new(), cluster: None };
        let results = run(&["shares".to_owned()], &extent, &mut |_, _| {}).unwrap();
        assert_eq!(
            (results.score.reproduced, results.score.possible, results.points.len()),
            (1, 1, 6),
            "{:?}",
            results.statements
        );
    }
}
