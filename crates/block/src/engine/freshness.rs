//! Which durable state a store is in, for whoever keeps that outside the store, and the comparison when
//! it is opened again.
//!
//! *Crash argument:* a state is told only when a superblock that bears its number is durable, so that no
//! crash leaves a store that is older than what was told of it. A checkpoint writes the superblock of
//! number n − 1, flushes, and then writes its twin, of number n: what is told is n − 1, since the twin
//! may be lost. The tag of n − 1 is compared only while no higher number is there. An opening that finds
//! one superblock damaged writes it anew, from the other one and with its own numbers, and that one
//! bears the higher number.

use onefold_core::{Disk, Error, Kind, Result, checksum};
use onefold_seal::{DurableState, Opener};

use super::{Engine, keys::read_superblock_block};
use crate::{
    format::{
        geometry::SUPERBLOCKS,
        sealing::Sealing,
        superblock::{Found, State, Superblock},
    },
    kernel::named_superblock,
    rules::Rule,
    settings::Settings,
};

/// The newest state of a store that is durable. Whoever opens the store may compare it the next time
/// ([`Opener::states_seen`]).
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

/// The tag of a state, from the block of its superblock.
fn tag(block: &[u8]) -> [u8; 16] {
    checksum::forgery_proof(&[0; 32], block)
}

/// What was found in a whole superblock of a store.
pub(super) struct Whole {
    pub(super) id: [u8; 16],
    pub(super) state: State,
    tag: [u8; 16],
}

impl Whole {
    /// The state as it is told, of a superblock that is durable.
    pub(super) fn named(&self) -> DurableState {
        DurableState { sequence: self.state.sequence, tag: self.tag }
    }
}

/// The whole superblocks of a disk; those of a sealed store by its key.
pub(super) fn whole_superblocks(disk: &dyn Disk, sealing: Option<&Sealing>) -> Vec<Whole> {
    let whole = (0..).zip(SUPERBLOCKS).filter_map(|(place, at)| {
        let block = read_superblock_block(disk, at)?;
        match Superblock::open(&block, place, sealing) {
            Found::Good(found) => {
                Some(Whole { id: found.fixed.id, state: found.state, tag: tag(&block.0) })
            }
            _ => None,
        }
    });
    whole.collect()
}

/// Errors when the store is in an older state than somebody knows, or in one of another history. One
/// without a whole superblock opens in no case.
pub(super) fn refuse_older(
    whole: &[Whole],
    settings: &Settings,
    opener: &dyn Opener,
) -> Result<()> {
    let Some(newest) = whole.iter().max_by_key(|one| one.state.sequence) else { return Ok(()) };
    if opener.accepts_older() || !settings.keeps(Rule::OlderStateRefused) {
        return Ok(());
    }
    let found = newest.state.sequence;
    for seen in opener.states_seen(&newest.id)? {
        let (by, known) = (seen.by, seen.sequence);
        let why = if found < known {
            format!(
                "it is in an older state ({found}) than {by} knows ({known}): somebody put back an \
                 older image, and what was written since is missing; --accept-older takes it"
            )
        } else if found == known && seen.tag.is_some_and(|tag| tag != newest.tag) {
            format!(
                "its state {found} is not the one that {by} knows: somebody went on with an older \
                 image, and what was written here since is missing; --accept-older takes it"
            )
        } else {
            continue;
        };
        return Err(Error::new(Kind::Denied, why));
    }
    Ok(())
}
