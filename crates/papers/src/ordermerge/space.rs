//! Sections 4.4 and 4.5: space, and energy.

use onefold_block::Persistence;

use super::{bars, judged, recorded, volume_case};
use crate::{
    case::{Case, Load, System},
    item::{Extent, Item, Judgement, Look, no_figure, nothing},
};
use onefold_lab::report::Figure;

/// Space and energy.
pub(super) const ITEMS: [Item; 2] = [
    Item {
        id: "space",
        name: "Section 4.4: space",
        says: "up to 56 % of the space saved, metadata counted",
        band: "live physical blocks and metadata beside live logical blocks: srcver saves ≥ 50 %, \
               apt ≥ 11 %",
        fitted: false,
        calibrated: None,
        cases: |extent| recorded(extent).iter().flat_map(cases).collect(),
        judge: space,
        draw,
    },
    Item {
        id: "energy",
        name: "Section 4.5: energy",
        says: "11 % more on install, at most 2 % on the others, 3 % less on update",
        band: "none: it can't be measured here",
        fitted: false,
        calibrated: None,
        cases: nothing,
        judge: |_, _| Judgement { out_of_scope: true, ..Judgement::default() },
        draw: no_figure,
    },
];

/// The scheme of the paper, and the product.
const SYSTEMS: [System; 2] = [System::OrderMerge, System::ThinLog];

fn cases(load: &(String, Load)) -> Vec<Case> {
    SYSTEMS.map(|system| volume_case(load, Persistence::Weak, system)).to_vec()
}

/// Space saved, in per cent of the live logical blocks.
fn saved(look: &Look<'_>, load: &(String, Load), system: System) -> f64 {
    look.value(&volume_case(load, Persistence::Weak, system), |measured| {
        let stored = measured.outcome.stored_blocks.map_or(f64::NAN, |blocks| blocks as f64);
        100.0 - stored * 100.0 / measured.outcome.live_blocks.max(1) as f64
    })
}

fn space(extent: &Extent, look: &Look<'_>) -> Judgement {
    let mut judgement = Judgement::default();
    let traces = judged(extent);
    judgement.missing = traces.is_empty();
    for load in &traces {
        let found = saved(look, load, System::OrderMerge);
        let least = match load.0.as_str() {
            "srcver" if !extent.quick => 50.0,
            "apt" if !extent.quick => 11.0,
            _ => f64::NEG_INFINITY,
        };
        judgement.check(format!("{} {found:.1} %", load.0), found >= least);
    }
    let product: Vec<String> = traces
        .iter()
        .map(|load| format!("{} {:.1} %", load.0, saved(look, load, System::ThinLog)))
        .collect();
    if !product.is_empty() {
        judgement.remark = format!("thin, log: {}.", product.join(", "));
    }
    judgement
}

fn draw(extent: &Extent, look: &Look<'_>) -> Vec<Figure> {
    let traces = recorded(extent);
    if traces.is_empty() {
        return Vec::new();
    }
    let of = |load: &(String, Load), system| saved(look, load, system);
    vec![bars(
        look,
        "Space saved, metadata counted",
        "% of the live logical blocks",
        &traces,
        &SYSTEMS,
        of,
        None,
    )]
}
