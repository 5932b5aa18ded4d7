//! The data key of a domain changes: it gets a second one, by which all that comes later is sealed and
//! fingerprinted, so that nothing of it is shared with what was there. Moving writes the rest again
//! (`moving/resealing.rs`). Then what is free is overwritten (`free_blocks.rs`), and the older key is erased. A domain
//! has two at most.
//!
//! Nothing that lies on the disk says by which key it was sealed. Who reads compares a fingerprint in any case:
//! that tells the key. Only leaves of maps say when nothing that they name is under the older key any more.
//!
//! *A change* needs a store that was closed in order: recovery judges records by the content of their blocks,
//! and knows blocks of the newest key alone. Both superblocks have the feature `DATA_KEYS` before the key area
//! has two keys, since a program that does not know them would take for damage what is under the older one.
//!
//! | a crash of a change before | leaves |
//! |---|---|
//! | the store is closed | the domain with one key; the next one recovers it |
//! | the first copy of the key area is durable | the same, and perhaps a feature that means nothing yet |
//! | the second copy and both superblocks are durable | two keys; whoever opens the store to write writes the other copy, and superblocks that bear the new number |
//!
//! | a crash of the end of a change before | leaves |
//! |---|---|
//! | the store is closed | two keys, and the copies that checkpoints have put |
//! | what is free is overwritten | two keys, and nothing under the older one; some of what is free holds what it held |
//! | the first copy of the key area without the older key is durable | two keys, and nothing under the older one |
//! | the second copy and both superblocks are durable | one key; whoever opens the store to write writes the rest |

use std::sync::Arc;

use onefold_core::{Clock, Disk, Error, Kind, Result, VolumeId};

use super::{
    Engine,
    checkpoint::{checkpoint_due, checkpoint_needed, checkpoint_to_end, checkpoint_useful},
    domains::no_such_domain,
    free_blocks,
    idle::idle_step,
    key_changes::{change_keys_with, is_closed, not_closed, plain},
    moving::{UnderOlder, under_older},
};
use crate::{
    format::{catalogue::Volume, superblock::DATA_KEYS},
    idleness::Idleness,
    kernel::{Kernel, Reason, Resealing},
    moving::Hindered,
    rules::Rule,
    settings::{Settings, Tidying},
};

/// Gives a domain of a sealed store that nobody works on another data key beside the one that it has. Returns
/// the generation of the new one. Durable on return.
///
/// # Errors
/// The errors of opening the store, and of [`change_keys`](super::key_changes::change_keys). `InvalidInput`: the
/// domain has two keys already. `NotFound`: there is no such domain. `Unsupported`: the scheme of the store does not move blocks.
pub fn rotate_data_key(
    disk: &Arc<dyn Disk>,
    clock: Arc<dyn Clock>,
    settings: &Settings,
    number: u32,
) -> Result<u32> {
    if settings.keeps(Rule::ClosedBeforeNewKey) {
        let engine = Engine::open(disk.clone(), clock, settings.clone())?;
        let possible = has_two_keys(&engine, number);
        engine.close()?;
        if possible? {
            let why = format!(
                "domain {number} has two data keys already: `onefold key rotate --data --finish` ends that first"
            );
            return Err(Error::new(Kind::InvalidInput, why));
        }
    }
    let mut generation = 0;
    change_keys_with(&**disk, settings, DATA_KEYS, |keys, random| {
        generation = keys.rotate_domain(number, random)?;
        Ok(())
    })?;
    Ok(generation)
}

/// Whether a domain of an open store has two data keys.
fn has_two_keys(engine: &Engine, number: u32) -> Result<bool> {
    let identity = &engine.kernel.identity;
    if identity.sealing.is_none() {
        return Err(plain());
    }
    if !identity.has_domain(number) {
        return Err(no_such_domain(number));
    }
    if engine.scheme.begin_moment().is_err() {
        let why = "stores of this scheme do not move blocks, so that nothing would ever come under another key";
        return Err(Error::new(Kind::Unsupported, why));
    }
    Ok(identity.older_fingerprinter_of(number).is_some())
}

/// The reasons for which the older data key of a domain is still needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StillOlder {
    /// Leaves of maps that may name something under it: each is a MiB of a volume or a snapshot.
    pub leaves: u64,
    /// Leaves among them that are being received.
    pub receiving: u64,
    /// Maps and pages that are being taken apart.
    pub leaving: u64,
    /// The causes that kept moving from leaves.
    pub hindered: Hindered,
}

/// Writes again what is left under the older data key of a domain of a sealed store that nobody works on,
/// overwrites what is free in the store, and then erases that key. `None` when it is erased; else what keeps it.
/// Reads all that is under the older key, and all that is free below the highest zone that was ever used; writes
/// as much as holds something. Durable on return. It may be killed at any time, and called again.
///
/// # Errors
/// As [`rotate_data_key`]; `InvalidInput`: the domain has one data key. `Corrupt`: pages of tables can't be read.
/// Errors of the disk: the key is there or erased; call it again.
pub fn finish_data_key(
    disk: &Arc<dyn Disk>,
    clock: Arc<dyn Clock>,
    settings: &Settings,
    number: u32,
) -> Result<Option<StillOlder>> {
    let moving = Settings { tidying: Tidying::Moves, ..settings.clone() };
    let engine = Engine::open(disk.clone(), clock, moving)?;
    if !has_two_keys(&engine, number)? {
        engine.close()?;
        let why = format!("domain {number} has one data key: there is nothing to end");
        return Err(Error::new(Kind::InvalidInput, why));
    }
    let kernel = &engine.kernel;
    let is_asked = settings.keeps(Rule::OlderKeyKeptWhileNeeded);
    let (mut left, mut hindered) = (None, Hindered::default());
    if is_asked {
        hindered = reseal(&engine, number)?;
        left = still_older(kernel, number, hindered)?;
    }
    while left.is_none() {
        if !free_blocks::clear_fingerprints(kernel, &*engine.scheme)? {
            let hindered = Hindered { by_room: true, ..hindered };
            left = Some(StillOlder { hindered, ..StillOlder::default() });
        } else if checkpoint_needed(kernel, &*engine.scheme) {
            // Trims that it carries free more blocks.
            checkpoint_to_end(kernel, &*engine.scheme, Reason::Changes)?;
        } else {
            break;
        }
    }
    engine.close()?;
    if is_asked && left.is_none() {
        // Closing changes maps, too.
        left = still_older(kernel, number, hindered)?;
    }
    if left.is_some() {
        return Ok(left);
    }
    if settings.keeps(Rule::OverwrittenBeforeErased) {
        overwrite_free(&**disk, kernel)?;
    }
    change_keys_with(&**disk, settings, DATA_KEYS, |keys, random| keys.drop_older(number, random))?;
    Ok(None)
}

/// Overwrites what is free in a store that was closed just now.
fn overwrite_free(disk: &dyn Disk, kernel: &Kernel) -> Result<()> {
    // What only the older one of two different superblocks names would be lost with it.
    if !is_closed(disk, kernel.identity.sealing.as_deref()) {
        return Err(not_closed());
    }
    free_blocks::overwrite(kernel)
}

/// What may still need the older data key of a domain; `None` when nothing does.
fn still_older(kernel: &Kernel, number: u32, hindered: Hindered) -> Result<Option<StillOlder>> {
    let checkpointer = kernel.checkpointing.lock();
    let orphans = checkpointer.orphans.as_deref().unwrap_or_default();
    let UnderOlder { leaves, receiving, leaving } =
        under_older(kernel, &kernel.tables(), orphans, number)?;
    let left = StillOlder { leaves, receiving, leaving, hindered };
    // Blocks that are held for used though nobody names them are neither moved nor free.
    let by_counts = kernel.tables().state.inexact;
    let left = StillOlder { hindered: Hindered { by_counts, ..left.hindered }, ..left };
    Ok((leaves + leaving > 0 || by_counts).then_some(left))
}

/// Moves what is under the older data key of a domain, and nothing else, until nothing more can be done. Returns
/// what hindered the last walk.
fn reseal(engine: &Engine, number: u32) -> Result<Hindered> {
    let (kernel, scheme) = (&engine.kernel, &*engine.scheme);
    kernel.checkpointing.lock().mover.reseals_alone = Some(number);
    // It finds out what deleted maps left behind.
    checkpoint_to_end(kernel, scheme, Reason::Forced)?;
    loop {
        // What stood in the way may be gone since the last checkpoint.
        kernel.checkpointing.lock().mover.resealing = Resealing::default();
        while idle_step(kernel, scheme, Idleness::Long)? {}
        let (has_moved, hindered) = {
            let checkpointer = kernel.checkpointing.lock();
            let Resealing { hindered, hindered_before, .. } = &checkpointer.mover.resealing;
            (!checkpointer.moves.is_empty(), hindered.and(*hindered_before))
        };
        if !checkpoint_due(kernel, scheme) && !checkpoint_useful(kernel, scheme) && !has_moved {
            return Ok(hindered);
        }
        let before = waiting(kernel);
        checkpoint_to_end(kernel, scheme, Reason::Changes)?;
        if !has_moved && waiting(kernel) == before {
            return Ok(hindered);
        }
    }
}

/// What checkpoints without moves make less: trims that wait, and the maps and pages that are taken apart.
fn waiting(kernel: &Kernel) -> (Vec<(VolumeId, u64, u64)>, Vec<Volume>, u64) {
    let tables = kernel.tables();
    let trims = tables.discards.iter().map(|(id, start, span)| (id, start, span.end));
    let leaving = tables.volumes.values().filter(|volume| volume.is_leaving()).cloned();
    (trims.collect(), leaving.collect(), kernel.state.lock().orphans)
}
