//! Changes of the catalogue in the model: one at a time, in doubt until it is durable.

use std::collections::BTreeMap;

use onefold_core::{BLOCK_BYTES, VolumeId, VolumeInfo};

use super::{Key, Model, Outcome, Volume, cell::Cell};
use crate::checker::{Checker, Failure};

/// A change of the catalogue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verb {
    /// A new volume of so many blocks.
    Create(String, u64),
    /// Another size in blocks.
    Resize(Key, u64),
    /// Another name.
    Rename(Key, String),
    /// No longer there.
    Delete(Key),
}

/// How to take back a change that was taken and then lost in a crash.
#[derive(Clone)]
pub(super) enum Undo {
    Create(Key),
    Resize(Key, u64),
    Rename(Key, String),
    Delete(Key, Volume),
}

/// The one change that may have happened or not.
#[derive(Clone, Default)]
pub(super) enum Doubt {
    /// There is none.
    #[default]
    Clear,
    /// The verb was not answered: the model does not show it.
    Asked(Verb),
    /// The verb was taken with this ticket, which is not durable: the model shows it.
    Taken(u64, Undo),
}

type Listing = BTreeMap<String, u64>;

impl Model {
    /// `verb` is asked for.
    pub fn begin(&mut self, verb: Verb) {
        self.doubt = Doubt::Asked(verb);
    }

    /// The ticket that the last verb waits for.
    #[must_use]
    pub fn pending_verb(&self) -> Option<u64> {
        match self.doubt {
            Doubt::Taken(ticket, _) => Some(ticket),
            _ => None,
        }
    }

    /// The verb that was asked for was taken: with a ticket, or durably. `id` is that of the
    /// volume.
    ///
    /// # Errors
    /// The id of a new volume was used before.
    pub fn taken(&mut self, id: VolumeId, ticket: Option<u64>) -> Result<(), Failure> {
        let Doubt::Asked(verb) = std::mem::take(&mut self.doubt) else { return Ok(()) };
        let undo = self.apply(verb, id)?;
        if let (Undo::Resize(key, _), Some(ticket)) = (&undo, ticket) {
            let blocks = self.volumes.get(key).map_or(0, |volume| volume.blocks);
            self.clear(*key, blocks, u64::MAX, Outcome::Taken(ticket));
        }
        match ticket {
            Some(ticket) => {
                self.highest = self.highest.max(ticket);
                self.doubt = Doubt::Taken(ticket, undo);
            }
            None => self.happened(&undo),
        }
        Ok(())
    }

    /// Shows `verb`, and says how to take it back.
    fn apply(&mut self, verb: Verb, id: VolumeId) -> Result<Undo, Failure> {
        let gone = |key: Key| {
            Failure::new(Checker::Volumes, format!("the simulation has no volume {key}"))
        };
        Ok(match verb {
            Verb::Create(name, blocks) => {
                if !self.used_ids.insert(id) {
                    return Err(Failure::new(
                        Checker::Volumes,
                        format!("the new volume '{name}' has the id {id}, which was used before"),
                    ));
                }
                let key = self.next_key;
                self.next_key += 1;
                self.volumes.insert(key, Volume { id, name, blocks, cells: BTreeMap::new() });
                Undo::Create(key)
            }
            Verb::Resize(key, blocks) => {
                let volume = self.volumes.get_mut(&key).ok_or_else(|| gone(key))?;
                Undo::Resize(key, std::mem::replace(&mut volume.blocks, blocks))
            }
            Verb::Rename(key, name) => {
                let volume = self.volumes.get_mut(&key).ok_or_else(|| gone(key))?;
                Undo::Rename(key, std::mem::replace(&mut volume.name, name))
            }
            Verb::Delete(key) => {
                Undo::Delete(key, self.volumes.remove(&key).ok_or_else(|| gone(key))?)
            }
        })
    }

    /// Makes the change that the model shows durable.
    fn happened(&mut self, undo: &Undo) {
        let settles = self.settles;
        if let Undo::Resize(key, _) = undo
            && let Some(volume) = self.volumes.get_mut(key)
        {
            volume.cells.range_mut(volume.blocks..).for_each(|(_, cell)| cell.clear(settles));
        }
    }

    /// The verb that was taken is durable when its ticket is.
    pub(super) fn settle_verb(&mut self, ticket: u64) {
        match std::mem::take(&mut self.doubt) {
            Doubt::Taken(needs, undo) if needs <= ticket => self.happened(&undo),
            other => self.doubt = other,
        }
    }

    /// The volume that a verb in doubt has deleted.
    pub(super) fn deleted_in_doubt(&mut self, key: Key) -> Option<&mut Volume> {
        match &mut self.doubt {
            Doubt::Taken(_, Undo::Delete(deleted, volume)) if *deleted == key => Some(volume),
            _ => None,
        }
    }

    /// The verb that was taken is lost; of what it would have dropped, any part may be gone.
    fn undo(&mut self, undo: Undo) {
        match undo {
            Undo::Create(key) => {
                if let Some(volume) = self.volumes.remove(&key) {
                    self.used_ids.remove(&volume.id);
                }
            }
            Undo::Resize(key, blocks) => {
                if let Some(volume) = self.volumes.get_mut(&key) {
                    volume.blocks = blocks;
                }
            }
            Undo::Rename(key, name) => {
                if let Some(volume) = self.volumes.get_mut(&key) {
                    volume.name = name;
                }
            }
            Undo::Delete(key, mut volume) => {
                volume.cells.values_mut().for_each(Cell::may_be_clear);
                self.volumes.insert(key, volume);
            }
        }
    }

    /// The verb that was asked for did not happen, or not wholly: what it would have dropped may be
    /// gone.
    fn abandon(&mut self, verb: &Verb) {
        let (key, from) = match verb {
            Verb::Resize(key, blocks) => (key, *blocks),
            Verb::Delete(key) => (key, 0),
            _ => return,
        };
        if let Some(volume) = self.volumes.get_mut(key) {
            volume.cells.range_mut(from..).for_each(|(_, cell)| cell.may_be_clear());
        }
    }

    /// Compares the store's list of volumes with the model's while no answer is open.
    ///
    /// # Errors
    /// They differ.
    pub fn compare(&self, found: &[(VolumeId, VolumeInfo)]) -> Result<(), Failure> {
        let listing: Listing =
            found.iter().map(|(_, info)| (info.name.clone(), info.size)).collect();
        if listing == self.listing() {
            Ok(())
        } else {
            Err(wrong_volumes(&listing, &self.listing(), None))
        }
    }

    /// Compares the store's list of volumes with the model's after a recovery, or after a verb
    /// failed, and so learns whether the verb in doubt happened.
    ///
    /// # Errors
    /// The list is neither that before nor that after the verb.
    pub fn resolve(&mut self, found: &[(VolumeId, VolumeInfo)]) -> Result<(), Failure> {
        let listing: Listing =
            found.iter().map(|(_, info)| (info.name.clone(), info.size)).collect();
        let shown = listing == self.listing();
        let mut other = self.clone_catalogue();
        match std::mem::take(&mut self.doubt) {
            Doubt::Clear if shown => {}
            Doubt::Asked(verb) if shown => self.abandon(&verb),
            Doubt::Taken(_, undo) if shown => self.happened(&undo),
            Doubt::Clear => return Err(wrong_volumes(&listing, &self.listing(), None)),
            Doubt::Asked(verb) => {
                let id = |name: &String| {
                    found
                        .iter()
                        .find(|(_, info)| info.name == *name)
                        .map_or(VolumeId(u32::MAX), |(id, _)| *id)
                };
                let id =
                    if let Verb::Create(name, _) = &verb { id(name) } else { VolumeId::default() };
                other.apply(verb.clone(), id)?;
                if listing != other.listing() {
                    return Err(wrong_volumes(&listing, &self.listing(), Some(&other.listing())));
                }
                let undo = self.apply(verb, id)?;
                self.happened(&undo);
            }
            Doubt::Taken(_, undo) => {
                other.undo(undo.clone());
                if listing != other.listing() {
                    return Err(wrong_volumes(&listing, &self.listing(), Some(&other.listing())));
                }
                self.undo(undo);
            }
        }
        for volume in self.volumes.values() {
            if !found.iter().any(|(id, info)| *id == volume.id && info.name == volume.name) {
                return Err(Failure::new(
                    Checker::Volumes,
                    format!("volume '{}' no longer has the id {}", volume.name, volume.id),
                ));
            }
        }
        Ok(())
    }

    /// A model with the same volumes and no contents, to try a change on.
    fn clone_catalogue(&self) -> Model {
        let bare = |volume: &Volume| Volume {
            id: volume.id,
            name: volume.name.clone(),
            blocks: volume.blocks,
            cells: BTreeMap::new(),
        };
        Model {
            volumes: self.volumes.iter().map(|(key, volume)| (*key, bare(volume))).collect(),
            used_ids: self.used_ids.clone(),
            next_key: self.next_key,
            ..Model::default()
        }
    }

    /// Names and sizes in bytes.
    fn listing(&self) -> Listing {
        self.volumes
            .values()
            .map(|volume| (volume.name.clone(), volume.blocks * BLOCK_BYTES as u64))
            .collect()
    }
}

fn wrong_volumes(found: &Listing, right: &Listing, or: Option<&Listing>) -> Failure {
    let or = or.map_or(String::new(), |or| format!(" or {or:?}"));
    Failure::new(
        Checker::Volumes,
        format!("the store has the volumes {found:?}; right is {right:?}{or}"),
    )
}
