//! Which state a store that is opened is in, and the comparison with what somebody knows of it. What is
//! told of a store is in `durable_states`.

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

/// The block of a superblock, if it can be read.
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
