//! The volumes of a store, and the verbs that change them. Changes are records in the one order of
//! all changes.

use std::collections::BTreeMap;

use onefold_core::{Error, Kind, Result, Ticket, VolumeId, VolumeLimits};

use super::{
    Engine, State,
    admission::{Purpose, wait},
};
use crate::{
    coverage::Mark,
    format::{
        catalogue::{CatalogueChange, NoDedup, VOLUME_BLOCKS_MAX, Volume, check_name},
        superblock::Root,
    },
    overlay::created,
    scheme::Records,
    settings::PlantedBug,
};

/// A volume as clients see it now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeState {
    /// Its name.
    pub name: String,
    /// Its size in blocks.
    pub blocks: u64,
    /// What of it is not deduplicated.
    pub no_dedup: NoDedup,
    /// How fast clients may use it; servers see to that.
    pub limits: VolumeLimits,
}

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

impl Engine {
    /// The volumes and their numbers.
    #[must_use]
    pub fn volumes(&self) -> Vec<(VolumeId, VolumeState)> {
        self.state.lock().volumes.iter().map(|(&id, volume)| (id, volume.clone())).collect()
    }

    /// The number of a volume.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn find_volume(&self, name: &str) -> Result<VolumeId> {
        self.state
            .lock()
            .named(name)
            .ok_or_else(|| Error::new(Kind::NotFound, format!("there is no volume '{name}'")))
    }

    /// One volume as it is now.
    ///
    /// # Errors
    /// `NotFound` when it was deleted.
    pub fn volume(&self, id: VolumeId) -> Result<VolumeState> {
        self.state.lock().volume(id).cloned()
    }

    /// Makes a volume. It exists for good when the ticket is durable.
    ///
    /// # Errors
    /// `Exists`, `InvalidInput`, `Busy` (run steps, then ask again), `NoSpace`.
    pub fn create_volume(&self, name: &str, blocks: u64) -> Result<(VolumeId, Ticket)> {
        self.create_volume_with(name, blocks, NoDedup::default())
    }

    /// As [`create_volume`](Self::create_volume), with ranges that are not deduplicated.
    ///
    /// # Errors
    /// As there.
    pub fn create_volume_with(
        &self,
        name: &str,
        blocks: u64,
        no_dedup: NoDedup,
    ) -> Result<(VolumeId, Ticket)> {
        self.create_volume_limited(name, blocks, no_dedup, VolumeLimits::default())
    }

    /// As [`create_volume_with`](Self::create_volume_with), with limits for its clients.
    ///
    /// # Errors
    /// As there.
    pub fn create_volume_limited(
        &self,
        name: &str,
        blocks: u64,
        no_dedup: NoDedup,
        limits: VolumeLimits,
    ) -> Result<(VolumeId, Ticket)> {
        let mut state = self.state.lock();
        state.check_new_name(name)?;
        state.check_size(blocks, None)?;
        let most = self.settings.limits;
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
        self.admit_known(&mut state, Purpose::Known)?;
        // Deleted volumes stay in the table until their blocks are free.
        let checkpoints = self.scheme.records() != Records::Nowhere;
        if checkpoints
            && state.volumes_ahead() >= most.volumes
            && !self.settings.has(PlantedBug::VolumesUnlimited)
        {
            self.coverage.hit(Mark::CatalogueFull);
            state.checkpoint_wanted = true;
            return Err(wait());
        }
        let id = VolumeId(state.next_volume);
        state.next_volume += 1;
        state.volumes.insert(
            id,
            VolumeState { name: name.to_owned(), blocks, no_dedup: no_dedup.clone(), limits },
        );
        let ticket = self.record(
            &mut state,
            CatalogueChange::Create { id, name: name.to_owned(), blocks, no_dedup, limits },
        );
        self.end_change(&mut state);
        Ok((id, ticket))
    }

    /// Changes the size of a volume; shrinking drops what lies beyond.
    ///
    /// # Errors
    /// As [`create_volume`](Self::create_volume).
    pub fn resize_volume(&self, id: VolumeId, blocks: u64) -> Result<Ticket> {
        let mut state = self.state.lock();
        let before = state.volume(id)?.blocks;
        state.check_size(blocks, Some(id))?;
        self.admit_known(
            &mut state,
            if blocks < before { Purpose::FreesSpace } else { Purpose::Known },
        )?;
        if blocks < before {
            self.admit_range(&mut state)?;
        }
        if let Some(volume) = state.volumes.get_mut(&id) {
            volume.blocks = blocks;
        }
        let ticket = self.record(&mut state, CatalogueChange::Resize { id, blocks });
        if blocks < before {
            state.punch(id, blocks, before, false);
        }
        self.end_change(&mut state);
        Ok(ticket)
    }

    /// Gives a volume another name.
    ///
    /// # Errors
    /// As [`create_volume`](Self::create_volume).
    pub fn rename_volume(&self, id: VolumeId, name: &str) -> Result<Ticket> {
        let mut state = self.state.lock();
        if state.volume(id)?.name == name {
            return Ok(Ticket(state.newest().0));
        }
        state.check_new_name(name)?;
        self.admit_known(&mut state, Purpose::Known)?;
        if let Some(volume) = state.volumes.get_mut(&id) {
            volume.name = name.to_owned();
        }
        let ticket = self.record(&mut state, CatalogueChange::Rename { id, name: name.to_owned() });
        self.end_change(&mut state);
        Ok(ticket)
    }

    /// Gives a volume other critical ranges. Blocks that were written before stay shared, or alone,
    /// until they are written again.
    ///
    /// # Errors
    /// As [`create_volume`](Self::create_volume).
    pub fn set_no_dedup(&self, id: VolumeId, no_dedup: NoDedup) -> Result<Ticket> {
        self.change_settings(id, |volume| volume.no_dedup = no_dedup.clone())
    }

    /// Gives a volume other limits for its clients.
    ///
    /// # Errors
    /// As [`create_volume`](Self::create_volume).
    pub fn set_limits(&self, id: VolumeId, limits: VolumeLimits) -> Result<Ticket> {
        self.change_settings(id, |volume| volume.limits = limits)
    }

    fn change_settings(
        &self,
        id: VolumeId,
        change: impl FnOnce(&mut VolumeState),
    ) -> Result<Ticket> {
        let mut state = self.state.lock();
        let mut volume = state.volume(id)?.clone();
        self.admit_known(&mut state, Purpose::Known)?;
        change(&mut volume);
        let recorded = CatalogueChange::Settings {
            id,
            no_dedup: volume.no_dedup.clone(),
            limits: volume.limits,
        };
        state.volumes.insert(id, volume);
        let ticket = self.record(&mut state, recorded);
        // Blocks that were written before are not written into any more: other ranges may be
        // critical now.
        state.close();
        Ok(ticket)
    }

    /// Deletes a volume; its blocks become free in the background.
    ///
    /// # Errors
    /// `NotFound`, `Busy`.
    pub fn delete_volume(&self, id: VolumeId) -> Result<Ticket> {
        let mut state = self.state.lock();
        let blocks = state.volume(id)?.blocks;
        self.admit_known(&mut state, Purpose::FreesSpace)?;
        self.admit_range(&mut state)?;
        state.volumes.remove(&id);
        let ticket = self.record(&mut state, CatalogueChange::Delete { id });
        state.punch(id, 0, blocks, false);
        self.end_change(&mut state);
        Ok(ticket)
    }

    /// With leaves in place, what comes after a change of the catalogue needs the checkpoint that
    /// carries it out: it goes into the next window.
    fn end_change(&self, state: &mut State) {
        if self.in_place() {
            state.close();
        }
    }

    /// Puts a change into the open window. A window holds few changes of the catalogue: each takes
    /// a carrier of its own.
    fn record(&self, state: &mut State, change: CatalogueChange) -> Ticket {
        const PER_WINDOW: usize = 8;
        if state.open.catalogue.len() >= PER_WINDOW {
            state.close();
        }
        self.make_room(state);
        state.open.catalogue.push(change);
        state.unplaced += 1;
        self.opened(state);
        Ticket(state.open.number.0)
    }
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
