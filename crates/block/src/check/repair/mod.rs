//! Restoring a store, as far as the truth follows with certainty from what is left.
//!
//! 1. *fixed places*: the damaged one of two superblocks, and of two copies of a page of the zone
//!    list, is written anew from the good one.
//! 2. *single bits*: a block that one flipped bit makes agree with its checksum again is set right
//!    in place. Only one sector changes, from damaged to whole, so that a crash leaves one or the
//!    other.
//! 3. *tables*: when they still disagree, the maps are the truth. A damaged page of a map gives way
//!    to one that says that its addresses are lost; its children, if it has any, are found again by
//!    their own headers where nothing else can be meant. Entries that name nothing possible become
//!    lost as well. Then references, fingerprints and the zone table are built anew from the maps:
//!    counts as they are, saturated ones too; leaked blocks become free. All of it is written to
//!    blocks that nothing uses, flushed, and becomes true with one superblock, as a checkpoint
//!    does: a crash before leaves the store as it was.
//! 4. *records*: a store that was not shut down cleanly is recovered, checkpointed and closed.
//!    Windows whose records are missing although they were durable are void; that is told.
//!
//! Where maps share pages, a shared page is mended once. No page borrows from another one
//! afterwards: every entry of a page counts, and pages that nothing but borrowers needed are free. A
//! page that is found by its header takes the place of a lost child only if no other map has a page
//! in that place that could be meant.
//!
//! With leaves in place (`ordermerge`) new leaves get a new life, counts include the fingerprint's
//! own reference, and step 4 counts all links, so that counts that a crash left too high fall.
//! Fingerprints that a crash took are computed again where tables are built anew.
//!
//! A repair never guesses. It makes no data readable that was not written there; a place that it
//! can't know reads as an error until it is written again. It does not mend damaged data (raw
//! blocks, the content of carriers), a catalogue or a table of discards with more than a
//! flipped bit, nor, after a crash, a page of the zone list of which both copies are gone; it says
//! so and leaves them.

mod build;
mod fixed;
mod maps;
mod named;
mod once;
mod outcome;
mod references;
mod restore;
mod room;
mod salvage;
mod tables;
mod zones;

use std::sync::Arc;

use onefold_core::{Clock, Disk, Result};

pub use self::outcome::{LOST_MAX, Repaired};
use super::{
    MEMORY, Phase, Progress, Report, check_by, leftover::rotten_pages, places,
    recovered::rotten_carriers, tables::Checker, walk::Walker,
};
use crate::{
    block_set::BlockSet,
    engine::{
        Engine,
        durable_states::durable_state,
        keys::{Access, unlock},
    },
    format::{Identity, superblock::Superblock},
    idleness::Idleness,
    settings::Settings,
};

/// Repairs a store that nobody serves. Durable on return; may be interrupted and run again at any
/// point.
///
/// Memory: as [`check`](super::check), and 16 bytes for each wrong entry of a map.
///
/// # Errors
/// `InvalidInput`, `Unsupported` or `Corrupt` when there is no superblock to begin with; `NoSpace`
/// when there is no room for new tables; `Io` when the disk can't be written. The store is then as
/// it was, or better.
pub fn repair(
    disk: &Arc<dyn Disk>,
    clock: Arc<dyn Clock>,
    settings: &Settings,
    progress: &mut dyn FnMut(Progress),
) -> Result<Repaired> {
    repair_within(disk, clock, settings, MEMORY, progress)
}

/// As [`repair`], with `memory` bytes instead of [`MEMORY`].
///
/// # Errors
/// As [`repair`].
pub fn repair_within(
    disk: &Arc<dyn Disk>,
    clock: Arc<dyn Clock>,
    settings: &Settings,
    memory: u64,
    progress: &mut dyn FnMut(Progress),
) -> Result<Repaired> {
    disk.flush()?;
    let mut repaired = Repaired::default();
    let sealing = unlock(&**disk, Access::Writes, settings)?;
    let superblock = fixed::superblocks(&**disk, sealing.as_deref(), &mut repaired)?;
    places::whole(&**disk, &superblock)?;
    let identity = superblock.fixed.identity(sealing.clone());
    fixed::zone_list(&**disk, &identity, &superblock, &mut repaired)?;
    let sound = repair_tables(&**disk, &superblock, &identity, memory, progress, &mut repaired)?;
    if (!superblock.state.clean || superblock.state.inexact) && sound {
        for (pba, bit, block) in rotten_carriers(&**disk, &superblock, &identity) {
            restore::write(&**disk, pba, &block)?;
            repaired.restored.push(format!("carrier at block {pba}: bit {bit} was flipped back"));
        }
        for (pba, bit, block) in rotten_pages(&**disk, &superblock, &identity) {
            restore::write(&**disk, pba, &block)?;
            repaired.restored.push(format!(
                "page of the leftover table at block {pba}: bit {bit} was flipped back"
            ));
        }
        disk.flush()?;
        progress(Progress { what: Phase::Recovery, done: 0, total: 0 });
        recover(disk, clock, settings, &mut repaired);
    }
    repaired.after = check_by(disk, &settings.keys, sealing, memory, progress)?;
    repaired.left.extend(repaired.after.problems.iter().map(ToString::to_string));
    Ok(repaired)
}

/// Steps 2 and 3. Returns whether the tables can be worked with.
fn repair_tables(
    disk: &dyn Disk,
    superblock: &Superblock,
    identity: &Identity,
    memory: u64,
    progress: &mut dyn FnMut(Progress),
    repaired: &mut Repaired,
) -> Result<bool> {
    let mut proven = BlockSet::new(superblock.fixed.geometry);
    let mut report = Report::default();
    let mut checker = Checker::new(disk, identity, superblock, &mut report, progress);
    checker.run(memory, &mut |pba| !proven.insert(pba));
    let (pages, carriers) = (checker.damaged_pages.clone(), checker.damaged_carriers.clone());
    let restored = restore::pages(Walker { disk, identity }, superblock, pages, repaired)?
        + restore::carriers(disk, identity, &carriers, repaired)?;
    if restored > 0 {
        disk.flush()?;
        report = Report::default();
        checker = Checker::new(disk, identity, superblock, &mut report, progress);
        checker.run(memory, &mut |pba| !carriers.contains(&pba) && proven.contains(pba));
    }
    if checker.catalogue_dark {
        let what = "the catalogue or the table of pending discards is damaged beyond repair: without them nobody can know what the maps mean";
        repaired.left.push(what.into());
        return Ok(false);
    }
    let damaged = checker.damaged_carriers.len() as u64;
    let inexact = superblock.state.inexact && superblock.state.shares_pages();
    let wrong =
        checker.report.problems_found > damaged || checker.report.saturated_blocks > 0 || inexact;
    if wrong {
        checker.stretches = checker.stretches_of_names(memory);
        tables::rebuild(&mut checker, superblock, repaired)?;
    }
    Ok(true)
}

/// Step 4.
fn recover(
    disk: &Arc<dyn Disk>,
    clock: Arc<dyn Clock>,
    settings: &Settings,
    repaired: &mut Repaired,
) {
    let accepting = Settings { accept_loss: true, ..settings.clone() };
    let closed = Engine::open(disk.clone(), clock, accepting).and_then(|engine| {
        repaired.lost_windows = engine.kernel.lost.lock().clone();
        // Counts that a crash left too high.
        while engine.scheme.idle(&engine.kernel, Idleness::None)?.advanced() {}
        engine.close()?;
        if let Some(opener) = settings.keys.of() {
            opener.saw_state(&engine.fixed().id, &durable_state(&engine)?);
        }
        Ok(())
    });
    match closed {
        Ok(()) => repaired.restored.push("the store was recovered and shut down cleanly".into()),
        Err(e) => repaired.left.push(format!("the store can't be recovered: {e}")),
    }
    for (first, last) in &repaired.lost_windows {
        repaired.left.push(format!("the records of windows {first} to {last} are lost: their addresses hold what was there before"));
    }
}
