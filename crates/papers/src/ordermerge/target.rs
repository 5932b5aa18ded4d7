//! Two measurements that neither paper has: metadata hidden in data where flushes are dense, and
//! the product's default beside the better of both schemes.

use super::{BOTH, judged, time_case};
use crate::{
    case::{Case, Load, Measured, System},
    crashes::persistence_name,
    item::{Extent, Item, Judgement, Look, no_figure},
};

/// The target.
pub(super) const ITEMS: [Item; 1] = [Item {
    id: "target",
    name: "Our target: dense flushes",
    says: "nothing: where flushes are dense, separate metadata eats what is saved",
    band: "on every recorded trace, weak and strong, thin, log writes at most ideal + 3 points, \
           checkpoints included, and is within 0.5 points of volume and 2 % of time of the better \
           of itself and ordermerge, or better",
    fitted: true,
    calibrated: None,
    cases: |extent| judged(extent).iter().flat_map(cases).collect(),
    judge: target,
    draw: no_figure,
}];

fn cases(load: &(String, Load)) -> Vec<Case> {
    BOTH.iter()
        .flat_map(|&persistence| {
            [System::ThinLog, System::OrderMerge].map(|system| time_case(load, persistence, system))
        })
        .collect()
}

fn target(extent: &Extent, look: &Look<'_>) -> Judgement {
    let mut judgement = Judgement::default();
    let traces = judged(extent);
    judgement.missing = traces.is_empty();
    for load in &traces {
        for persistence in BOTH {
            let of = |system, what: fn(&Measured) -> f64| {
                look.value(&time_case(load, persistence, system), what)
            };
            let name = format!("{} {}", load.0, persistence_name(persistence));
            judge(&mut judgement, &name, of);
        }
    }
    judgement
}

fn judge(judgement: &mut Judgement, name: &str, of: impl Fn(System, fn(&Measured) -> f64) -> f64) {
    let above = of(System::ThinLog, |measured| measured.outcome.points_above_ideal());
    let volume = |system| of(system, |measured| measured.volume_with_checkpoints() * 100.0);
    let seconds = |system| of(system, |measured| measured.outcome.virtual_seconds);
    let (more, slower) = (
        volume(System::ThinLog) - volume(System::OrderMerge),
        seconds(System::ThinLog) / seconds(System::OrderMerge),
    );
    let text = format!(
        "{name}: {above:+.2} points above ideal, {more:+.1} points and {slower:.3} of the time of \
         ordermerge"
    );
    judgement.check(text, above <= 3.0 && more <= 0.5 && slower <= 1.02);
}
