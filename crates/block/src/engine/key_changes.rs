//! The keys of a sealed store changed, and destroyed; and who looks at its blocks by them.

use onefold_core::{BlockRef, Class, Disk, Error, Kind, Result, Run};
use onefold_seal::{Domain, Keys, Random};

use super::{
    Engine,
    freshness::{Whole, whole_superblocks},
    keys::{
        Access, end_erasure, judged, no_key, overwrite, sealed_id, unlock_to_look, write_copies,
    },
    opening::read_superblock,
};
use crate::{
    format::{
        Identity,
        geometry::SUPERBLOCKS,
        sealing::{Flaws, Sealing},
        superblock::{DATA_KEYS, State, Superblock},
    },
    rules::Rule,
    settings::{KeySource, Settings},
};

/// The superblock that counts, and what makes the store's blocks differ from those of others, for who
/// looks at blocks.
///
/// # Errors
/// As opening the store.
pub fn identified(disk: &dyn Disk, keys: &KeySource) -> Result<(Superblock, Identity)> {
    let sealing = unlock_to_look(disk, keys)?;
    let superblock = read_superblock(disk, sealing.as_deref())?;
    let identity = superblock.fixed.identity(sealing);
    Ok((superblock, identity))
}

/// True when the store is sealed at rest.
#[must_use]
pub fn is_sealed(engine: &Engine) -> bool {
    engine.kernel.identity.sealing.is_some()
}

/// Destroys the keys of a sealed store that nobody works on: a copy of its key area is written that
/// says so and has no keys, then both are overwritten; each step is durable before the next. Nobody
/// opens the store by them any more, nor after a crash in between once the first step was durable:
/// whoever opens the store to write ends the erasure, and so does this call once more.
///
/// # Errors
/// As opening the store; `InvalidInput`: it is plain.
pub fn erase_keys(disk: &dyn Disk, settings: &Settings, random: &dyn Random) -> Result<()> {
    // By its key: who lacks it may not destroy what others need.
    let id = sealed_id(disk).ok_or_else(plain)?;
    let opener = settings.keys.of().ok_or_else(no_key)?;
    if end_erasure(disk, &id, settings, opener)? {
        return Ok(());
    }
    let mut keys = judged(disk, &id, Access::Writes, settings, opener)?.keys;
    keys.saw(read_superblock(disk, Some(&Sealing::new(&keys, Flaws::default())?))?.state.keys);
    write_copies(disk, keys.erased_area(random)?.bytes(), [true, false])?;
    overwrite(disk, random)
}

pub(super) fn plain() -> Error {
    let why = "the store is not encrypted, and a store can't become so: make another one";
    Error::new(Kind::InvalidInput, why)
}

/// Changes the keys of a sealed store that nobody works on, by the key that its opener is asked for:
/// `change` gets them as they are. Durable on return. Data stay sealed as they are.
///
/// # Errors
/// Those of `change`, after which nothing was changed; `InvalidInput`: the store is plain. Errors of
/// the disk: the keys are the old ones or the new ones.
pub fn change_keys(
    disk: &dyn Disk,
    settings: &Settings,
    change: impl FnOnce(&mut Keys, &dyn Random) -> Result<()>,
) -> Result<()> {
    change_keys_with(disk, settings, 0, change)
}

/// True when a store was closed in order: both superblocks are whole, name the same tables, and no record is newer.
pub(super) fn is_closed(disk: &dyn Disk, sealing: Option<&Sealing>) -> bool {
    let whole = whole_superblocks(disk, sealing);
    let tables = |state: &State| State { sequence: 0, ..state.clone() };
    let is_clean = |one: &Whole| one.state.clean && one.state.committed == one.state.last_window;
    let [one, other] = &whole[..] else { return false };
    is_clean(one) && is_clean(other) && tables(&one.state) == tables(&other.state)
}

pub(super) fn not_closed() -> Error {
    let why = "the store was not shut down in order, or one of its superblocks is damaged: serve it, end its server, and try again";
    Error::new(Kind::Busy, why)
}

/// As [`change_keys`]; both superblocks have these features before the keys are changed, so that no program that
/// does not know them meets the new keys.
pub(super) fn change_keys_with(
    disk: &dyn Disk,
    settings: &Settings,
    features: u64,
    change: impl FnOnce(&mut Keys, &dyn Random) -> Result<()>,
) -> Result<()> {
    disk.flush()?;
    let id = sealed_id(disk).ok_or_else(plain)?;
    let opener = settings.keys.of().ok_or_else(no_key)?;
    let mut keys = judged(disk, &id, Access::Writes, settings, opener)?.keys;
    let sealing = Sealing::new(&keys, Flaws::default())?;
    let mut superblock = read_superblock(disk, Some(&sealing))?;
    keys.saw(superblock.state.keys);
    let needs_closed = features & DATA_KEYS != 0 && settings.keeps(Rule::ClosedBeforeNewKey);
    if needs_closed && !is_closed(disk, Some(&sealing)) {
        return Err(not_closed());
    }
    let random = opener.random();
    change(&mut keys, &*random)?;
    if superblock.state.features & features != features {
        superblock.state.features |= features;
        write_both(disk, &mut superblock, &sealing)?;
    }
    superblock.state.saw_domains(keys.next_domain());
    let generations = keys.domains().iter().map(Domain::generation);
    superblock.state.saw_data_keys(generations.max().unwrap_or(0));
    let area = keys.next_area(&*random)?;
    write_copies(disk, area.bytes(), [true, settings.keeps(Rule::BothKeyAreasWritten)])?;
    superblock.state.keys = area.sequence();
    write_both(disk, &mut superblock, &sealing)?;
    let whole = whole_superblocks(disk, Some(&sealing));
    if let Some(newest) = whole.iter().max_by_key(|one| one.state.sequence) {
        opener.saw_state(&id, &newest.named());
    }
    Ok(())
}

/// Writes the next two versions of a superblock, each to the place of the older one, with a flush. The store
/// key stays the same with all changes of keys.
fn write_both(disk: &dyn Disk, superblock: &mut Superblock, sealing: &Sealing) -> Result<()> {
    let State { sequence, .. } = superblock.state;
    for sequence in [sequence + 1, sequence + 2] {
        superblock.state.sequence = sequence;
        let place = (sequence % 2) as u32;
        let block = superblock.written(place, Some(sealing))?;
        let refs = [BlockRef { block: &block, class: Class::Super }];
        disk.write(&[Run { at: SUPERBLOCKS[place as usize], blocks: &refs }])?;
        disk.flush()?;
    }
    Ok(())
}
