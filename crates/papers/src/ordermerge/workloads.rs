//! Section 4.1: the six workloads, by their shapes, and their shares of duplicates.

use onefold_block::Persistence;

use super::{loads, volume_case};
use crate::{
    case::{Case, Load, System},
    item::{Extent, Item, Judgement, Look, no_figure},
};
use onefold_lab::{
    report::{Figure, Table, number},
    workload::{Pattern, Workload},
};

/// Shares of duplicates.
pub(super) const ITEMS: [Item; 1] = [Item {
    id: "shares",
    name: "Section 4.1: duplicates of the six workloads",
    says: "update 23 %, install 30 %, BBench 73 %, vehicle 27 %, Hadoop 55 %, YCSB 24 % of the \
           blocks written are duplicates",
    band: "the share of the generated ones within 1 point",
    fitted: false,
    calibrated: None,
    cases: |extent| loads(extent).iter().map(original).collect(),
    judge: shares,
    draw: no_figure,
}];

/// A workload: the paper's figures for it, and the generator's parameters.
pub(super) struct Shape {
    pub(super) name: &'static str,
    /// Duplicates, in per cent.
    share: f64,
    sequential: f64,
    again: f64,
    request_blocks: u64,
    flush_every: u64,
    gap_microseconds: u64,
    burst: u64,
    volume_blocks: u64,
}

/// The paper's machines and programs are not to be had. The paper tells their share of duplicates;
/// requests, flushes and gaps are ours, after what such programs do.
pub(super) const SIX: [Shape; 6] = [
    // Lists of packages, written one after the other.
    Shape {
        name: "update",
        share: 23.0,
        sequential: 0.9,
        again: 0.3,
        request_blocks: 32,
        flush_every: 200,
        gap_microseconds: 5000,
        burst: 32,
        volume_blocks: 1 << 18,
    },
    // Small files and a database of packages, each synced.
    Shape {
        name: "install",
        share: 30.0,
        sequential: 0.5,
        again: 0.5,
        request_blocks: 8,
        flush_every: 3,
        gap_microseconds: 2000,
        burst: 3,
        volume_blocks: 1 << 19,
    },
    // A browser's cache and its small databases.
    Shape {
        name: "bbench",
        share: 73.0,
        sequential: 0.3,
        again: 0.8,
        request_blocks: 4,
        flush_every: 10,
        gap_microseconds: 6000,
        burst: 10,
        volume_blocks: 1 << 17,
    },
    // A picture of 100 KB ten times a second.
    Shape {
        name: "vehicle",
        share: 27.0,
        sequential: 0.95,
        again: 0.1,
        request_blocks: 25,
        flush_every: 50,
        gap_microseconds: 100_000,
        burst: 1,
        volume_blocks: 1 << 18,
    },
    // Temporary files of a map-reduce job.
    Shape {
        name: "hadoop",
        share: 55.0,
        sequential: 0.8,
        again: 0.4,
        request_blocks: 16,
        flush_every: 25,
        gap_microseconds: 3000,
        burst: 25,
        volume_blocks: 1 << 18,
    },
    // Documents of 8 KB in a database with a journal.
    Shape {
        name: "ycsb",
        share: 24.0,
        sequential: 0.2,
        again: 0.8,
        request_blocks: 3,
        flush_every: 8,
        gap_microseconds: 1500,
        burst: 8,
        volume_blocks: 1 << 18,
    },
];

impl Shape {
    /// The workload that it stands for.
    pub(super) fn load(&self, extent: &Extent) -> Load {
        let Shape {
            share,
            sequential,
            again,
            request_blocks,
            flush_every,
            gap_microseconds,
            burst,
            volume_blocks,
            ..
        } = *self;
        let blocks = if extent.quick { 6000 } else { 30_000 };
        let ratio = 100.0 / (100.0 - share);
        let pattern = Pattern::Runs { sequential, again };
        let usual = Workload::paper(pattern, blocks);
        Load::Generated(Workload {
            volume_blocks,
            request_blocks,
            flush_every,
            gap_microseconds,
            burst,
            ratio,
            ..usual
        })
    }
}

fn original(load: &(String, Load)) -> Case {
    volume_case(load, Persistence::Weak, System::Original)
}

fn shares(extent: &Extent, look: &Look<'_>) -> Judgement {
    let mut judgement = Judgement::default();
    let share = |load: &(String, Load)| {
        look.value(&original(load), |measured| {
            100.0
                - measured.outcome.ideal_blocks as f64 * 100.0
                    / measured.outcome.client_blocks.max(1) as f64
        })
    };
    let all = loads(extent);
    for shape in &SIX {
        let Some(load) = all.iter().find(|(name, _)| name == shape.name) else { continue };
        let found = share(load);
        judgement.check(format!("{} {found:.1} %", shape.name), (found - shape.share).abs() <= 1.0);
    }
    let recorded: Vec<String> = all
        .iter()
        .filter(|(_, load)| matches!(load, Load::Recorded { .. }))
        .map(|load| format!("{} {:.1} %", load.0, share(load)))
        .collect();
    judgement.remark = if recorded.is_empty() {
        "No recorded traces were given (--traces).".to_owned()
    } else {
        format!("Recorded traces, among the contents that are live: {}.", recorded.join(", "))
    };
    let row = |shape: &Shape| {
        let numbers = [
            shape.share,
            shape.sequential * 100.0,
            shape.again * 100.0,
            shape.request_blocks as f64,
            shape.flush_every as f64,
            shape.gap_microseconds as f64 / 1e3,
            shape.burst as f64,
            shape.volume_blocks as f64 * 4096.0 / 1e6,
        ];
        [shape.name.to_owned()].into_iter().chain(numbers.map(number)).collect()
    };
    let columns = [
        "workload",
        "duplicates %",
        "requests that follow on the one before %",
        "jumps to where was written %",
        "blocks of a request",
        "requests between flushes",
        "gap ms",
        "requests of a burst",
        "volume MB",
    ];
    let title =
        "The six, as they are generated; four fifths of the contents shrink by a fifth".to_owned();
    let columns = columns.map(str::to_owned).to_vec();
    judgement.figures.push(Figure::Table(Table {
        title,
        columns,
        rows: SIX.iter().map(row).collect(),
    }));
    judgement
}
