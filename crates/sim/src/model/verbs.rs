//! Changes of the catalogue in the model: one at a time, in doubt until it is durable.

use std::collections::BTreeMap;

use onefold_core::{BLOCK_BYTES, VolumeId, VolumeInfo};

use super::{Key, Model, Volume};
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

type Listing = BTreeMap<String, u64>;

impl Model {
    /// `verb` begins: until [`commit`](Model::commit) it is in doubt.
    pub fn begin(&mut self, verb: Verb) {
        self.in_doubt = Some(verb);
    }

    /// The verb in doubt is durable; `id` is that of the new volume.
    ///
    /// # Errors
    /// The id was used before.
    pub fn commit(&mut self, id: Option<VolumeId>) -> Result<(), Failure> {
        let settles = self.settles;
        match self.in_doubt.take() {
            Some(Verb::Create(name, blocks)) => {
                let id = id.unwrap_or_default();
                if !self.used_ids.insert(id) {
                    return Err(Failure::new(Checker::Volumes, format!("the new volume '{name}' has the id {id}, which was used before")));
                }
                self.volumes.insert(self.next_key, Volume { id, name, blocks, cells: BTreeMap::new() });
                self.next_key += 1;
            }
            Some(Verb::Resize(key, blocks)) => {
                if let Some(volume) = self.volumes.get_mut(&key) {
                    volume.blocks = blocks;
                    volume.cells.range_mut(blocks..).for_each(|(_, cell)| cell.clear(settles));
                }
            }
            Some(Verb::Rename(key, name)) => {
                if let Some(volume) = self.volumes.get_mut(&key) {
                    volume.name = name;
                }
            }
            Some(Verb::Delete(key)) => {
                self.volumes.remove(&key);
            }
            None => {}
        }
        Ok(())
    }

    /// The verb in doubt did not happen, or not wholly: what it would have dropped may be gone.
    fn abandon(&mut self) {
        let (key, from) = match self.in_doubt.take() {
            Some(Verb::Resize(key, blocks)) => (key, blocks),
            Some(Verb::Delete(key)) => (key, 0),
            _ => return,
        };
        if let Some(volume) = self.volumes.get_mut(&key) {
            volume.cells.range_mut(from..).for_each(|(_, cell)| cell.may_be_clear());
        }
    }

    /// Compares the store's list of volumes with the model's, and so learns whether the verb in doubt happened.
    ///
    /// # Errors
    /// The list is neither that before nor that after the verb.
    pub fn resolve(&mut self, found: &[(VolumeId, VolumeInfo)]) -> Result<(), Failure> {
        let listing: Listing = found.iter().map(|(_, info)| (info.name.clone(), info.size)).collect();
        let before = self.listing(None);
        let after = self.listing(self.in_doubt.as_ref());
        if listing == before && listing != after {
            self.abandon();
        } else if listing == after {
            let new = match &self.in_doubt {
                Some(Verb::Create(name, _)) => found.iter().find(|(_, info)| info.name == *name).map(|(id, _)| *id),
                _ => None,
            };
            self.commit(new)?;
        } else {
            let message = format!("the store has the volumes {listing:?}; right is {before:?} or {after:?}");
            return Err(Failure::new(Checker::Volumes, message));
        }
        for volume in self.volumes.values() {
            if !found.iter().any(|(id, info)| *id == volume.id && info.name == volume.name) {
                return Err(Failure::new(Checker::Volumes, format!("volume '{}' no longer has the id {}", volume.name, volume.id)));
            }
        }
        Ok(())
    }

    /// Names and sizes in bytes, after `verb`.
    fn listing(&self, verb: Option<&Verb>) -> Listing {
        let bytes = |blocks: u64| blocks * BLOCK_BYTES as u64;
        let mut listing = Listing::new();
        for (key, volume) in &self.volumes {
            let (mut name, mut blocks) = (volume.name.clone(), volume.blocks);
            match verb {
                Some(Verb::Delete(deleted)) if deleted == key => continue,
                Some(Verb::Rename(renamed, to)) if renamed == key => name.clone_from(to),
                Some(Verb::Resize(resized, to)) if resized == key => blocks = *to,
                _ => {}
            }
            listing.insert(name, bytes(blocks));
        }
        if let Some(Verb::Create(name, blocks)) = verb {
            listing.insert(name.clone(), bytes(*blocks));
        }
        listing
    }
}
