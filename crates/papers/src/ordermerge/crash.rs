//! Section 2.1: what a crash may leave.

use super::BOTH;
use crate::{
    case::System,
    crashes::crashes,
    item::{Extent, Item, Judgement, Look, no_figure, nothing},
};

/// Crashes.
pub(super) const ITEMS: [Item; 1] = [Item {
    id: "crash",
    name: "Section 2.1: crashes",
    says: "a failure leaves nothing but garbage: counts that are too high, never too low",
    band: "at every write boundary no acknowledged block is lost, no count is too low, and garbage \
           can be reclaimed",
    fitted: false,
    calibrated: None,
    cases: nothing,
    judge: crash,
    draw: no_figure,
}];

fn crash(extent: &Extent, _: &Look<'_>) -> Judgement {
    let (mut judgement, outcomes) =
        crashes(extent, &BOTH.map(|persistence| (System::OrderMerge, persistence)));
    let leaked = outcomes.iter().map(|outcome| outcome.leaked).max().unwrap_or(0);
    judgement.check(
        format!("at most {leaked} blocks in use without a name, once the store has settled"),
        leaked == 0,
    );
    judgement.remark =
        "After every write and every flush of the device the store is opened from what a power \
         failure leaves; everything is read and compared, and then the whole of the metadata is \
         checked, every count beside what is mapped."
            .to_owned();
    judgement
}
