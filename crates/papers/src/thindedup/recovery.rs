//! Recovery (II-A and II-B): only zones that wait for a checkpoint are scanned, and fingerprints
//! tell which records count.

use onefold_block::Persistence;

use crate::{
    case::System,
    crashes::crashes,
    item::{Extent, Item, Judgement, Look, no_figure, nothing},
};

/// Recovery.
pub(super) const ITEMS: [Item; 1] = [Item {
    id: "recovery",
    name: "Recovery",
    says: "only uncommitted C-zones are scanned; a mapping whose data is missing is found by its \
           fingerprint",
    band: "at every cut point of a trace acknowledged writes are readable, no wrong data, zones \
           scanned ≤ uncommitted zones",
    fitted: false,
    calibrated: None,
    cases: nothing,
    judge: recovery,
    draw: no_figure,
}];

fn recovery(extent: &Extent, _: &Look<'_>) -> Judgement {
    let (mut judgement, outcomes) = crashes(
        extent,
        &[(System::Thin, Persistence::Strong), (System::ThinLog, Persistence::Weak)],
    );
    let most =
        |of: fn(&onefold_lab::crash::Outcome) -> u64| outcomes.iter().map(of).max().unwrap_or(0);
    let too_many: u64 = outcomes.iter().map(|outcome| outcome.scanned_too_many).sum();
    let scanned = format!(
        "at most {} zones scanned, of {} written, and never more than were marked as uncommitted",
        most(|outcome| outcome.zones_scanned),
        most(|outcome| outcome.zones_written)
    );
    judgement.check(scanned, too_many == 0);
    let refused: u64 = outcomes.iter().map(|outcome| outcome.refused).sum();
    judgement.check(
        format!("{refused} newer records refused because the block that they name was not there"),
        refused > 0,
    );
    judgement.remark = "Zones have 64 blocks, so that a short workload fills many. After every \
                        write and every flush of the device the store is opened from what a power \
                        failure leaves: nothing of what was not flushed, all of it, and parts of \
                        it down to sectors. A zone is marked ahead of its first block, and loses \
                        the mark with the next write of its list page after a checkpoint has its \
                        records."
        .to_owned();
    judgement
}
