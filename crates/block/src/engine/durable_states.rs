//! Which durable state a store is in, for whoever keeps that outside the store and compares it when the
//! store is opened again.
//!
//! *Crash argument:* a state is told only when a superblock that bears its number is durable, so that no
//! crash leaves a store that is older than what was told of it. A checkpoint writes the superblock of
//! number n − 1, flushes, and then writes its twin, of number n: what is told is n − 1, since the twin
//! may be lost. The tag of n − 1 is compared only while no higher number is there. An opening that finds
//! one superblock damaged writes it anew, from the other one and with its own numbers, and that one
//! bears the higher number.

use onefold_core::Result;
use onefold_seal::DurableState;

use super::{Engine, checkpoint, freshness::tag};
use crate::{kernel::named_superblock, rules::Rule};

/// The newest state of a store that is durable. Whoever opens the store may compare it the next time
/// ([`Opener::states_seen`](onefold_seal::Opener::states_seen)).
///
/// # Errors
/// `Io`: the library of ciphers refuses.
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

/// Asks for a checkpoint, if one would carry anything into the tables: then there is a newer state to tell.
pub fn want_checkpoint(engine: &Engine) {
    if checkpoint::checkpoint_needed(&engine.kernel, &*engine.scheme) {
        engine.kernel.state.lock().checkpoint_wanted = true;
    }
}
