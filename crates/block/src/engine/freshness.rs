//! The state of a store that is being opened, compared with the states that a witness and the user's notes
//! know of it. `durable_states` has the states that they are told.

use onefold_core::{Block, Disk, Error, Kind, Pba, Read, Result, checksum};
use onefold_seal::{DurableState, Opener};

use crate::{
    format::{
        geometry::SUPERBLOCKS,
        sealing::Sealing,
        superblock::{Found, State, Superblock},
    },
    rules::Rule,
    settings::Settings,
};

/// The tag of a state, from the block of its superblock.
pub(super) fn tag(block: &[u8]) -> [u8; 16] {
    checksum::forgery_proof(&[0; 32], block)
}

/// A whole superblock of a store, as far as states are compared.
pub(super) struct Whole {
    pub(super) id: [u8; 16],
    pub(super) state: State,
    tag: [u8; 16],
}

impl Whole {
    /// The state as a witness is told it. The superblock has to be durable.
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

/// Refuses a store that is in an older state than its opener knows, or in a state of another history. A store
/// without a whole superblock passes here: no later step opens it.
///
/// # Errors
/// `Denied`: the state is older, or another one; those of the opener, which may have asked a witness.
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

/// Reads the block of a superblock; `None` when it lies beyond the disk or can't be read.
pub(super) fn read_superblock_block(disk: &dyn Disk, at: Pba) -> Option<Box<Block>> {
    if at.0 >= disk.blocks() {
        return None;
    }
    let mut block = Block::zeroed();
    let mut read = [Read::new(at, std::slice::from_mut(&mut *block))];
    disk.read(&mut read);
    let [read] = read;
    read.result.ok().map(|()| block)
}
