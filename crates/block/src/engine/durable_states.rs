//! The durable state of a store, for a witness or a user's notes: they keep it outside the store, and compare
//! it when the store is opened again.
//!
//! *Crash argument:* a state is told only when a superblock with its number is durable, so no crash leaves a
//! store that is older than the state that was told. A checkpoint writes the superblock of number n − 1,
//! flushes, and then writes its twin, of number n. The engine tells n − 1, since a crash may take the twin.
//! The tag of n − 1 is compared only while no superblock has a higher number. An opening that finds one
//! superblock damaged writes it anew from the other one, with the number before that of the other one: so the
//! other one has the higher number, and the bytes that were written anew are compared with no tag.

use onefold_core::Result;
use onefold_seal::DurableState;

use super::{Engine, checkpoint, freshness::tag};
use crate::{kernel::named_superblock, rules::Rule};

/// The newest durable state of a store. The next opening may compare it
/// ([`Opener::states_seen`](onefold_seal::Opener::states_seen)).
///
/// # Errors
/// `Io`: the library of ciphers refuses to seal the superblock from which the tag comes.
pub fn durable_state(engine: &Engine) -> Result<DurableState> {
    let kernel = &engine.kernel;
    let (tables, geometry) = {
        let state = kernel.state.lock();
        (state.overlays.tables().clone(), kernel.geometry())
    };
    // The twin of a superblock, which has the next number, may not be durable yet.
    let before = u64::from(kernel.keeps(Rule::StatesToldWhenDurable)).min(tables.state.sequence);
    let (superblock, block) = named_superblock(kernel, geometry, &tables, before)?;
    Ok(DurableState { sequence: superblock.state.sequence, tag: tag(&block.0) })
}

/// Asks for a checkpoint, if one would carry anything into the tables: after it there is a newer state to
/// tell. Returns before the checkpoint.
pub fn want_checkpoint(engine: &Engine) {
    if checkpoint::checkpoint_needed(&engine.kernel, &*engine.scheme) {
        engine.kernel.state.lock().checkpoint_wanted = true;
    }
}
