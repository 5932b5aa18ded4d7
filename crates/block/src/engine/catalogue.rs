//! The volumes of a store, and the verbs that change them. Changes are records in the one order of
//! all changes.

use std::collections::BTreeMap;

use onefold_core::{Error, Kind, Result, Ticket, VolumeId, VolumeLimits};

use super::admission::{Purpose, wait};
use crate::{
    coverage::Mark,
    engine::{
        admission::admit_range,
        gather::{admit_known, make_room, opened},
    },
    format::{
        catalogue::{CatalogueChange, NoDedup, VOLUME_BLOCKS_MAX, Volume, check_name},
        superblock::Root,
    },
    kernel::{Kernel, State, VolumeState},
    overlay::created,
    scheme::{Records, ordermerge::in_place},
    settings::PlantedBug,
};

impl State {
    /// The volume, if it exists.
    pub(crate) fn volume(&self, id: VolumeId) -> Result<&VolumeState> {
        self.volumes
            .get(&id)
            .ok_or_else(|| Error::new(Kind::NotFound, "the volume does not exist any more"))
    }

    fn named(&self, name: &str) -> Option<VolumeId> {
        self.volumes.iter().find(|(_, volume)| volume.name == name).map(|(&id, _)| id)
    }

    fn check_new_name(&self, name: &str) -> Result<()> {
        check_name(name)?;
        match self.named(name) {
            Some(_) => Err(Error::new(Kind::Exists, format!("there is a volume '{name}' already"))),
            None => Ok(()),
        }
    }

    /// Entries that the catalogue has at most after the checkpoints of all that was gathered so
    /// far.
    fn volumes_ahead(&self) -> u64 {
        let published =
            self.active.created + self.frozen.as_ref().map_or(0, |frozen| frozen.created);
        let windows = self.closed_windows.iter().map(|closed| &*closed.window).chain([&self.open]);
        self.snapshot.volumes.len() as u64
            + published
            + windows.map(|window| created(&window.catalogue)).sum::<u64>()
    }

    /// All sizes together stay within 1 EiB.
    fn check_size(&self, blocks: u64, replacing: Option<VolumeId>) -> Result<()> {
        if blocks == 0 {
            return Err(Error::new(
                Kind::InvalidInput,
                "a volume needs at least one block of 4096 bytes",
            ));
        }
        let others: u64 = self
            .volumes
            .iter()
            .filter(|(id, _)| Some(**id) != replacing)
            .map(|(_, volume)| volume.blocks)
            .sum();
        if others.checked_add(blocks).is_none_or(|sum| sum > VOLUME_BLOCKS_MAX) {
            return Err(Error::new(
                Kind::InvalidInput,
                "all volumes together can't be larger than 1 EiB",
            ));
        }
        Ok(())
    }
}

/// The volumes and their numbers.
pub(crate) fn volumes(kernel: &Kernel) -> Vec<(VolumeId, VolumeState)> {
    kernel.state.lock().volumes.iter().map(|(&id, volume)| (id, volume.clone())).collect()
}

/// The number of a volume.
///
/// # Errors
/// `NotFound`.
pub(crate) fn find_volume(kernel: &Kernel, name: &str) -> Result<VolumeId> {
    kernel
        .state
        .lock()
        .named(name)
        .ok_or_else(|| Error::new(Kind::NotFound, format!("there is no volume '{name}'")))
}

/// One volume as it is now.
///
/// # Errors
/// `NotFound` when it was deleted.
pub(crate) fn volume(kernel: &Kernel, id: VolumeId) -> Result<VolumeState> {
    kernel.state.lock().volume(id).cloned()
}

/// Makes a volume. It exists for good when the ticket is durable.
///
/// # Errors
/// `Exists`, `InvalidInput`, `Busy` (run steps, then ask again), `NoSpace`.
pub(crate) fn create_volume(
    kernel: &Kernel,
    name: &str,
    blocks: u64,
) -> Result<(VolumeId, Ticket)> {
    create_volume_with(kernel, name, blocks, NoDedup::default())
}

/// As [`create_volume`](Self::create_volume), with ranges that are not deduplicated.
///
/// # Errors
/// As there.
pub(crate) fn create_volume_with(
    kernel: &Kernel,
    name: &str,
    blocks: u64,
    no_dedup: NoDedup,
) -> Result<(VolumeId, Ticket)> {
    create_volume_limited(kernel, name, blocks, no_dedup, VolumeLimits::default())
}

/// As [`create_volume_with`](Self::create_volume_with), with limits for its clients.
///
/// # Errors
/// As there.
pub(crate) fn create_volume_limited(
    kernel: &Kernel,
    name: &str,
    blocks: u64,
    no_dedup: NoDedup,
    limits: VolumeLimits,
) -> Result<(VolumeId, Ticket)> {
    let mut state = kernel.state.lock();
    state.check_new_name(name)?;
    state.check_size(blocks, None)?;
    let most = kernel.settings.limits;
    if state.volumes.len() as u64 >= most.volumes / 2 {
        return Err(Error::new(
            Kind::InvalidInput,
            format!("a store holds at most {} volumes", most.volumes / 2),
        ));
    }
    if state.next_volume > most.volume_number {
        let message = format!(
            "this store has given all numbers of volumes, {}, and makes no more volumes",
            most.volume_number
        );
        return Err(Error::new(Kind::InvalidInput, message));
    }
    admit_known(kernel, &mut state, Purpose::Known)?;
    // Deleted volumes stay in the table until their blocks are free.
    let checkpoints = kernel.scheme.records() != Records::Nowhere;
    if checkpoints
        && state.volumes_ahead() >= most.volumes
        && !kernel.settings.has(PlantedBug::VolumesUnlimited)
    {
        kernel.coverage.hit(Mark::CatalogueFull);
        state.checkpoint_wanted = true;
        return Err(wait());
    }
    let id = VolumeId(state.next_volume);
    state.next_volume += 1;
    state.volumes.insert(
        id,
        VolumeState { name: name.to_owned(), blocks, no_dedup: no_dedup.clone(), limits },
    );
    let ticket = record(
        kernel,
        &mut state,
        CatalogueChange::Create { id, name: name.to_owned(), blocks, no_dedup, limits },
    );
    end_change(kernel, &mut state);
    Ok((id, ticket))
}

/// Changes the size of a volume; shrinking drops what lies beyond.
///
/// # Errors
/// As [`create_volume`](Self::create_volume).
pub(crate) fn resize_volume(kernel: &Kernel, id: VolumeId, blocks: u64) -> Result<Ticket> {
    let mut state = kernel.state.lock();
    let before = state.volume(id)?.blocks;
    state.check_size(blocks, Some(id))?;
    admit_known(
        kernel,
        &mut state,
        if blocks < before { Purpose::FreesSpace } else { Purpose::Known },
    )?;
    if blocks < before {
        admit_range(kernel, &mut state)?;
    }
    if let Some(volume) = state.volumes.get_mut(&id) {
        volume.blocks = blocks;
    }
    let ticket = record(kernel, &mut state, CatalogueChange::Resize { id, blocks });
    if blocks < before {
        state.punch(id, blocks, before, false);
    }
    end_change(kernel, &mut state);
    Ok(ticket)
}

/// Gives a volume another name.
///
/// # Errors
/// As [`create_volume`](Self::create_volume).
pub(crate) fn rename_volume(kernel: &Kernel, id: VolumeId, name: &str) -> Result<Ticket> {
    let mut state = kernel.state.lock();
    if state.volume(id)?.name == name {
        return Ok(Ticket(state.newest().0));
    }
    state.check_new_name(name)?;
    admit_known(kernel, &mut state, Purpose::Known)?;
    if let Some(volume) = state.volumes.get_mut(&id) {
        volume.name = name.to_owned();
    }
    let ticket = record(kernel, &mut state, CatalogueChange::Rename { id, name: name.to_owned() });
    end_change(kernel, &mut state);
    Ok(ticket)
}

/// Gives a volume other critical ranges. Blocks that were written before stay shared, or alone,
/// until they are written again.
///
/// # Errors
/// As [`create_volume`](Self::create_volume).
pub(crate) fn set_no_dedup(kernel: &Kernel, id: VolumeId, no_dedup: NoDedup) -> Result<Ticket> {
    change_settings(kernel, id, |volume| volume.no_dedup = no_dedup.clone())
}

/// Gives a volume other limits for its clients.
///
/// # Errors
/// As [`create_volume`](Self::create_volume).
pub(crate) fn set_limits(kernel: &Kernel, id: VolumeId, limits: VolumeLimits) -> Result<Ticket> {
    change_settings(kernel, id, |volume| volume.limits = limits)
}

fn change_settings(
    kernel: &Kernel,
    id: VolumeId,
    change: impl FnOnce(&mut VolumeState),
) -> Result<Ticket> {
    let mut state = kernel.state.lock();
    let mut volume = state.volume(id)?.clone();
    admit_known(kernel, &mut state, Purpose::Known)?;
    change(&mut volume);
    let recorded =
        CatalogueChange::Settings { id, no_dedup: volume.no_dedup.clone(), limits: volume.limits };
    state.volumes.insert(id, volume);
    let ticket = record(kernel, &mut state, recorded);
    // Blocks that were written before are not written into any more: other ranges may be
    // critical now.
    state.close();
    Ok(ticket)
}

/// Deletes a volume; its blocks become free in the background.
///
/// # Errors
/// `NotFound`, `Busy`.
pub(crate) fn delete_volume(kernel: &Kernel, id: VolumeId) -> Result<Ticket> {
    let mut state = kernel.state.lock();
    let blocks = state.volume(id)?.blocks;
    admit_known(kernel, &mut state, Purpose::FreesSpace)?;
    admit_range(kernel, &mut state)?;
    state.volumes.remove(&id);
    let ticket = record(kernel, &mut state, CatalogueChange::Delete { id });
    state.punch(id, 0, blocks, false);
    end_change(kernel, &mut state);
    Ok(ticket)
}

/// With leaves in place, what comes after a change of the catalogue needs the checkpoint that
/// carries it out: it goes into the next window.
fn end_change(kernel: &Kernel, state: &mut State) {
    if in_place(kernel) {
        state.close();
    }
}

/// Puts a change into the open window. A window holds few changes of the catalogue: each takes
/// a carrier of its own.
fn record(kernel: &Kernel, state: &mut State, change: CatalogueChange) -> Ticket {
    const PER_WINDOW: usize = 8;
    if state.open.catalogue.len() >= PER_WINDOW {
        state.close();
    }
    make_room(kernel, state);
    state.open.catalogue.push(change);
    state.unplaced += 1;
    opened(kernel, state);
    Ticket(state.open.number.0)
}

/// Applies changes of the catalogue in their order. A deleted volume keeps its map, without a name,
/// until its blocks are free.
pub(crate) fn apply_catalogue(
    volumes: &mut BTreeMap<VolumeId, Volume>,
    changes: &[CatalogueChange],
) {
    for change in changes {
        match change {
            CatalogueChange::Create { id, name, blocks, no_dedup, limits } => {
                let (name, no_dedup) = (name.clone(), no_dedup.clone());
                volumes.insert(
                    *id,
                    Volume {
                        id: *id,
                        name,
                        blocks: *blocks,
                        map: Root::default(),
                        no_dedup,
                        limits: *limits,
                    },
                );
            }
            CatalogueChange::Resize { id, blocks } => {
                if let Some(volume) = volumes.get_mut(id) {
                    volume.blocks = *blocks;
                }
            }
            CatalogueChange::Rename { id, name } => {
                if let Some(volume) = volumes.get_mut(id) {
                    volume.name.clone_from(name);
                }
            }
            CatalogueChange::Settings { id, no_dedup, limits } => {
                if let Some(volume) = volumes.get_mut(id) {
                    volume.no_dedup.clone_from(no_dedup);
                    volume.limits = *limits;
                }
            }
            CatalogueChange::Delete { id } => {
                if let Some(volume) = volumes.get_mut(id) {
                    volume.name.clear();
                }
            }
        }
    }
}

/// Volumes that clients see.
pub(super) fn visible(volumes: &BTreeMap<VolumeId, Volume>) -> BTreeMap<VolumeId, VolumeState> {
    volumes
        .values()
        .filter(|volume| !volume.name.is_empty())
        .map(|volume| {
            let (name, no_dedup) = (volume.name.clone(), volume.no_dedup.clone());
            (
                volume.id,
                VolumeState { name, blocks: volume.blocks, no_dedup, limits: volume.limits },
            )
        })
        .collect()
}
