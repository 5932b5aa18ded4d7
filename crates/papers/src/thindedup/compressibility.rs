//! Fig 8, and what the text says of compressed blocks and of LZ4.

use std::time::Instant;

use onefold_core::{
    BLOCK_BYTES, Block,
    compress::{Lz4, WORST_BYTES, expand},
};

use super::{usual, with};
use crate::{
    case::{Case, Measured, System},
    item::{Extent, Item, Judgement, Look, no_figure, nothing, plot},
};
use onefold_lab::{
    Content,
    report::{Axis, Figure, Series},
};

/// LZ4 on this machine.
pub(super) const SETUP: [Item; 1] = [Item {
    id: "setup",
    name: "Setup: LZ4",
    says: "LZ4 of 4 KiB: 700 MB/s in, 2.45 GB/s out",
    band: "none",
    fitted: false,
    calibrated: None,
    cases: nothing,
    judge: setup,
    draw: no_figure,
}];

/// Compressibility.
pub(super) const ITEMS: [Item; 2] = [
    Item {
        id: "8",
        name: "Fig 8: compressibility",
        says: "full benefit from 40 % on at windows of 16 or 32",
        band: "speed at 40 % ≥ 0.95 of that at 80 % for 16 and 32",
        fitted: true,
        calibrated: None,
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
        calibrated: None,
        cases: |extent| vec![text_case(extent)],
        judge: text,
        draw: no_figure,
    },
];

const COMPRESSIBLE: [f64; 6] = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0];

fn compressed(extent: &Extent, compressible: f64, window: usize) -> Case {
    with(usual(extent, 0, window, System::Thin), |workload| workload.compressible = compressible)
}

const FIG_8_WINDOWS: [usize; 3] = [8, 16, 32];

fn fig_8_cases(extent: &Extent) -> Vec<Case> {
    COMPRESSIBLE
        .iter()
        .flat_map(|&share| FIG_8_WINDOWS.map(|window| compressed(extent, share, window)))
        .collect()
}

fn fig_8(extent: &Extent, look: &Look<'_>) -> Judgement {
    let mut judgement = Judgement::default();
    for window in [16, 32] {
        let ratio = look.speed(&compressed(extent, 0.4, window))
            / look.speed(&compressed(extent, 0.8, window));
        let hidden = look.value(&compressed(extent, 0.4, window), Measured::hidden);
        let text = format!(
            "window {window}: speed at 40 % is {ratio:.3} of that at 80 %, {:.1} % hidden",
            hidden * 100.0
        );
        judgement.check(text, ratio >= 0.95);
    }
    if judgement.missed() {
        let case = compressed(extent, 0.4, 16);
        let share = look.value(&case, |measured| {
            let outcome = &measured.outcome;
            outcome.tally.leftover_blocks as f64 / outcome.windows.max(1) as f64
        });
        judgement.remark = format!(
            "At 40 % and 16, thin writes {share:.2} pages of tables for each window. On hdd-p even \
             one such page costs another flush of 10.3 ms or more, so the few windows without a \
             compressible block cost more than their share of records."
        );
    }
    judgement
}

fn draw_fig_8(extent: &Extent, look: &Look<'_>) -> Vec<Figure> {
    let line = |window| Series {
        name: format!("thin, window {window}"),
        points: COMPRESSIBLE
            .iter()
            .map(|&share| (share * 100.0, look.speed(&compressed(extent, share, window))))
            .collect(),
    };
    let x = Axis::linear("% of contents that compress");
    vec![plot(
        "Throughput, random, hdd-p",
        x,
        Axis::linear("blocks a second"),
        FIG_8_WINDOWS.map(line).to_vec(),
    )]
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
    judgement.check(
        format!("{:.1} % of the data blocks compressed", carriers * 100.0),
        carriers <= 0.12,
    );
    let zones = look.value(&case, |measured| {
        measured.outcome.carrier_zones as f64 / measured.outcome.data_zones.max(1) as f64
    });
    let counts = look
        .at(&case)
        .map_or((0, 0), |measured| (measured.outcome.carrier_zones, measured.outcome.data_zones));
    judgement.check(
        format!("{} of {} zones hold such blocks, {:.1} %", counts.0, counts.1, zones * 100.0),
        zones <= 0.15,
    );
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
    judgement.check(
        format!("{compressing:.0} MB/s in, {expanding:.0} MB/s out, one thread, real time"),
        right,
    );
    judgement.remark = "Nothing is asked for; recorded.".to_owned();
    judgement
}
