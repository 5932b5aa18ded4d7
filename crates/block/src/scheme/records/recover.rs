//! Opening a store, after a clean shutdown or a crash (ThinDedup II-B, with the rules that make it
//! safe).
//!
//! 1. *flush*: what is read from here on is on the medium. A superblock that is damaged is written
//!    anew, as the twin of the one that is not; *flush*.
//! 2. Superblock, zone list, the carriers in the listed zones, and the leftover table. Copies of
//!    list pages are brought level; *flush*, if one was written.
//! 3. Records up to the durable window are believed. A newer one is believed only if the block that
//!    it names hashes to its fingerprint; otherwise the mapping before it stands, whose block was
//!    never reused, since reuse needs a checkpoint that holds a newer record.
//! 4. Believed newer records are appended again, in their order, in windows of the next epoch;
//!    *flush*.
//! 5. *superblock* with the next epoch and the cut: nothing newer than the durable window is looked
//!    at again; *flush*; its twin; *flush*.
//! 6. The records stay in the active overlay; the store serves.
//!
//! | crash after | what is found |
//! |---|---|
//! | 1–3 | the same as before |
//! | 4 | the old superblock: carriers of the next epoch are ignored, and the old ones are all still there, since nothing they name is free |
//! | 5 | the new superblock: the appended windows are durable and complete |

use onefold_core::Result;

use super::{
    append::{adopt_changes, append_again, publish_recovered},
    leftover::read_leftover,
    loss::{self, clip, judge_missing},
    replay::Replay,
    scan::{Found, note_in_index, scan},
    space::{overlay_of, recover_space},
    verify::{self, Domains, verify_newer, whole_story},
};
use crate::{
    coverage::Mark,
    format::{
        record::{Record, WindowNumber},
        superblock::Cut,
    },
    kernel::{Kernel, write_next_epoch},
    overlay::Tables,
    rules::Rule,
    scheme::verbs::{FoundAtOpening, Progress},
};

/// Records whose publishing takes longer than to start a thread for it.
const RECORDS_WORTH_A_THREAD: usize = 10_000;

/// Steps 3 to 6. `Commit` when a checkpoint must do the last of them.
pub(crate) fn recover(
    kernel: &Kernel,
    replay: &Replay<'_>,
    found: FoundAtOpening,
) -> Result<Progress> {
    let FoundAtOpening { tables, pages, entries } = found;
    let told = pages.iter().map(|page| page.durable).max().unwrap_or_default();
    kernel.coverage.add(Mark::ZoneScanned, entries.len());
    let (void, mut carriers): (Vec<Found>, Vec<Found>) =
        scan(kernel, &entries, &tables.state)?.into_iter().partition(|found| found.void);
    // Whichever thread found them; their records are in order then.
    carriers.sort_by_key(|found| (found.header.window, found.header.position));

    kernel.coverage.add(Mark::VoidCarrier, void.len());
    let leftover = read_leftover(kernel, &tables.state)?;
    let mut known = tables.state.clone();
    if !kernel.keeps(Rule::LeftoverOfVoidIgnored) {
        known.cuts.clear();
    }
    kernel
        .coverage
        .add(Mark::LeftoverRecord, usize::from(leftover.records(&known).next().is_some()));

    let committed = tables.state.committed;
    let told = told.max(leftover.durable(&known.cuts));
    let durable = carriers
        .iter()
        .map(|found| found.header.durable)
        .chain([told, tables.state.durable])
        .max()
        .unwrap_or_default();
    // Void carriers count here: those of a recovery that crashed bear the epoch that this one
    // will bring, so its windows must be others.
    let windows = carriers.iter().chain(&void).map(|found| found.header.window);
    let seen = windows
        .chain([durable, tables.state.last_window, leftover.seen()])
        .max()
        .unwrap_or_default();
    let lost = judge_missing(
        kernel,
        &mut carriers,
        &tables.state,
        durable,
        &leftover.carriers(&known.cuts, durable),
    )?;
    let with_carriers =
        carriers.iter().map(|found| found.header.window).filter(|&window| window <= durable);
    replay.records.recovered(with_carriers.max().unwrap_or_default(), |table| {
        leftover.hand_over(&known, durable, kernel.settings.accept_loss, table)
    })?;

    let mut records: Vec<Record> =
        carriers.iter().flat_map(|found| found.records.iter().copied()).collect();
    let in_carriers = records.len();
    records.extend(
        leftover
            .records(&known)
            .filter(|record| !loss::among(&lost, WindowNumber::of(record.timestamp))),
    );
    note_in_index(kernel, records[in_carriers..].iter());
    records.sort_by_key(|record| record.timestamp);
    // Both places of a leftover page may hold a record.
    records.dedup_by_key(|record| record.timestamp);
    let newer = records
        .split_off(records.partition_point(|record| WindowNumber::of(record.timestamp) <= durable));
    let newer = if kernel.keeps(Rule::NewerRecordsVerified) {
        let domains = Domains::told(kernel, &tables, &[&records, &newer])?;
        verify_newer(kernel, newer, &domains)?
    } else {
        newer
    };
    let verified = whole_story(kernel, &tables, &records, newer)?;
    let heard = verified.len();
    let mut verified = verify::newest_alone(verified);
    kernel.coverage.add(Mark::Superseded, heard - verified.len());
    if !lost.is_empty() {
        clip(kernel, &tables, &mut records, &mut verified)?;
    }

    // The published changes and the space in use have nothing to do with each other.
    let space = || {
        recover_space(
            kernel,
            replay.lists_zones,
            FoundAtOpening { tables: tables.clone(), pages, entries },
            &carriers,
            &records,
            &verified,
        )
    };
    let (pins, mut overlay) = if records.len() < RECORDS_WORTH_A_THREAD {
        (space()?, overlay_of(&records, &verified))
    } else {
        std::thread::scope(|scope| {
            let overlay = scope.spawn(|| overlay_of(&records, &verified));
            Ok((space()?, overlay.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))))
        })?
    };
    overlay.pin(pins);
    overlay.publish_own(WindowNumber::default(), carriers.len(), &[]);
    kernel.state.lock().overlays.recovered(overlay);
    adopt_changes(kernel, &tables, &records)?;
    {
        let mut state = kernel.state.lock();
        state.windows.recovered(seen, seen.max(committed));
    }
    let mut cuts = tables.state.cuts.clone();
    // Without carriers of this epoch, and no window beyond the durable one, there is nothing to
    // void.
    let of_this_epoch = carriers.iter().any(|found| found.header.epoch == tables.state.epoch);
    if (of_this_epoch || seen != durable) && kernel.keeps(Rule::DroppedRecordsVoid) {
        cuts.push(Cut { epoch: tables.state.epoch, window: durable, resume: seen.next() });
    }
    // A crash before the end of that checkpoint leaves the superblock as it is, however often
    // it happens.
    if cuts.len() > kernel.settings.limits.cuts && kernel.keeps(Rule::CutsLimited) {
        kernel.coverage.hit(Mark::CutsFull);
        return publish_again(kernel, &tables, &verified);
    }
    if !append_again(kernel, replay, &verified)? {
        kernel.coverage.hit(Mark::NoRoomToAppend);
        return publish_again(kernel, &tables, &verified);
    }
    write_next_epoch(kernel, &tables, cuts)?;
    Ok(Progress::Advanced)
}

/// Steps 4 and 5 when no block is left to append to, or the superblock has no room for another
/// cut: a checkpoint takes the records, and its superblock is that of the next epoch.
fn publish_again(kernel: &Kernel, tables: &Tables, verified: &[Record]) -> Result<Progress> {
    let number = kernel.state.lock().windows.open().number;
    let records: Vec<Record> = verified
        .iter()
        .zip(0..)
        .map(|(record, n)| Record { timestamp: number.timestamp(n), ..*record })
        .collect();
    publish_recovered(kernel, tables, &records)?;
    {
        let mut state = kernel.state.lock();
        state.windows.recovered(number, number);
        state.overlays.active_mut().publish_own(number, 0, &[]);
        state.epoch += 1;
    }
    Ok(Progress::Commit)
}
