//! Changes of the catalogue in the model: one at a time, in doubt until it is durable.

use std::collections::{BTreeMap, BTreeSet};

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
    /// A quota in blocks, or none with 0.
    Quota(Key, u64),
    /// No longer there.
    Delete(Key),
    /// Snapshots of volumes, of one moment.
    Snapshot(Vec<(Key, String)>),
    /// A new volume that holds what a volume or a snapshot holds.
    Clone(Key, String),
    /// A volume holds what its snapshot holds; a snapshot of this name gets what it held.
    Rollback(Key, Key, Option<String>),
    /// A snapshot was received as one of a replica, with this name, and the replica holds it.
    Received {
        /// The snapshot that was sent.
        of: Key,
        /// The replica, or the name of the one that is made.
        into: Result<Key, String>,
        /// The name of the snapshot that was received.
        name: String,
        /// Its blocks that are lost.
        lost: BTreeSet<u64>,
        /// Its blocks of which nobody can tell whether they are.
        unsure: BTreeSet<u64>,
    },
}

impl Verb {
    /// True for what happens to whole maps at a moment.
    #[must_use]
    pub fn is_act(&self) -> bool {
        match self {
            Verb::Snapshot(_) | Verb::Clone(..) | Verb::Rollback(..) | Verb::Received { .. } => {
                true
            }
            Verb::Create(..)
            | Verb::Resize(..)
            | Verb::Rename(..)
            | Verb::Quota(..)
            | Verb::Delete(_) => false,
        }
    }
}

/// What a verb copies: blocks and cells as of the moment at which it was asked for.
pub(super) type Copied = Vec<(u64, BTreeMap<u64, Cell>)>;

/// How to take back a change that was taken and then lost in a crash.
#[derive(Clone)]
pub(super) enum Undo {
    Create(Key),
    Resize(Key, u64),
    Rename(Key, String),
    Quota(Key, u64),
    Delete(Key, Volume),
    /// An act, which is durable when it is answered.
    Act,
}

/// The one change that may have happened or not.
#[derive(Clone, Default)]
pub(super) enum Doubt {
    /// There is none.
    #[default]
    Clear,
    /// The verb was not answered: the model does not show it.
    Asked(Verb, Copied),
    /// The verb was taken with this ticket, which is not durable: the model shows it.
    Taken(u64, Undo),
}

type Listing = BTreeMap<String, u64>;

impl Model {
    /// `verb` is asked for.
    pub fn begin(&mut self, verb: Verb) {
        let copied = match &verb {
            Verb::Snapshot(wanted) => wanted.iter().map(|(of, _)| self.copy(*of)).collect(),
            Verb::Clone(of, _) => vec![self.copy(*of)],
            Verb::Rollback(volume, to, _) => vec![self.copy(*to), self.copy(*volume)],
            Verb::Received { of, lost, unsure, .. } => {
                let copied = self.copy_with_losses(*of, lost, unsure);
                vec![copied.clone(), copied]
            }
            _ => Vec::new(),
        };
        self.doubt = Doubt::Asked(verb, copied);
    }

    fn copy(&self, of: Key) -> (u64, BTreeMap<u64, Cell>) {
        let Some(volume) = self.volumes.get(&of) else { return (0, BTreeMap::new()) };
        let cells = volume.cells.iter().map(|(&lba, cell)| (lba, cell.copied(self.settles)));
        (volume.blocks, cells.collect())
    }

    fn copy_with_losses(
        &self,
        of: Key,
        lost: &BTreeSet<u64>,
        unsure: &BTreeSet<u64>,
    ) -> (u64, BTreeMap<u64, Cell>) {
        let (blocks, mut cells) = self.copy(of);
        for &lba in lost.range(..blocks) {
            cells.entry(lba).or_default().lose(self.settles);
        }
        for &lba in unsure.range(..blocks) {
            cells.entry(lba).or_default().may_be_lost();
        }
        (blocks, cells)
    }

    /// The verb that was asked for is refused: nothing happens.
    pub fn refused(&mut self) {
        self.doubt = Doubt::Clear;
    }

    /// The acts that were asked for are durable; `ids` are those of what they made.
    ///
    /// # Errors
    /// An id was used before.
    pub fn performed(&mut self, ids: &[VolumeId]) -> Result<(), Failure> {
        match std::mem::take(&mut self.doubt) {
            Doubt::Asked(verb, copied) => self.apply(verb, copied, ids).map(drop),
            other => {
                self.doubt = other;
                Ok(())
            }
        }
    }

    /// The name of a volume, or of a snapshot with its volume's.
    fn full_name(&self, volume: &Volume) -> String {
        match volume.of {
            None => volume.name.clone(),
            Some(of) => {
                let origin = self.volumes.get(&of).map_or("?", |origin| &origin.name);
                format!("{origin}@{}", volume.name)
            }
        }
    }

    /// The names of what a verb makes, in the order of their ids.
    fn makes(&self, verb: &Verb) -> Vec<String> {
        let snapshot = |of: &Key, name: &String| {
            format!("{}@{name}", self.volumes.get(of).map_or("?", |origin| &origin.name))
        };
        match verb {
            Verb::Create(name, _) | Verb::Clone(_, name) => vec![name.clone()],
            Verb::Snapshot(wanted) => wanted.iter().map(|(of, name)| snapshot(of, name)).collect(),
            Verb::Rollback(volume, _, Some(name)) => vec![snapshot(volume, name)],
            Verb::Received { into: Ok(into), name, .. } => vec![snapshot(into, name)],
            Verb::Received { into: Err(volume), name, .. } => {
                vec![format!("{volume}@{name}"), volume.clone()]
            }
            _ => Vec::new(),
        }
    }

    /// Adds a volume or a snapshot.
    fn add(&mut self, volume: Volume) -> Result<Key, Failure> {
        // Of a volume whose record was damaged the store knows nothing, its number neither.
        if !self.used_ids.insert(volume.id) && self.damage == 0 {
            let (name, id) = (&volume.name, volume.id);
            return Err(Failure::new(
                Checker::Volumes,
                format!("the new volume '{name}' has the id {id}, which was used before"),
            ));
        }
        let key = self.next_key;
        self.next_key += 1;
        self.volumes.insert(key, volume);
        Ok(key)
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
        let Doubt::Asked(verb, copied) = std::mem::take(&mut self.doubt) else { return Ok(()) };
        let undo = self.apply(verb, copied, &[id])?;
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
    fn apply(&mut self, verb: Verb, copied: Copied, ids: &[VolumeId]) -> Result<Undo, Failure> {
        let id = ids.first().copied().unwrap_or_default();
        let mut copied = copied.into_iter();
        let mut next = || copied.next().unwrap_or_default();
        let gone = |key: Key| {
            Failure::new(Checker::Volumes, format!("the simulation has no volume {key}"))
        };
        Ok(match verb {
            Verb::Create(name, blocks) => Undo::Create(self.add(Volume {
                id,
                name,
                blocks,
                of: None,
                replica: false,
                quota: 0,
                cells: BTreeMap::new(),
            })?),
            Verb::Snapshot(wanted) => {
                for ((of, name), &id) in wanted.into_iter().zip(ids) {
                    let (blocks, cells) = next();
                    let quota = self.quota(of);
                    let of = Some(of);
                    self.add(Volume { id, name, blocks, of, replica: false, quota, cells })?;
                }
                Undo::Act
            }
            Verb::Clone(of, name) => {
                let (blocks, cells) = next();
                let quota = self.quota(of);
                self.add(Volume { id, name, blocks, of: None, replica: false, quota, cells })?;
                Undo::Act
            }
            Verb::Rollback(key, _, keep) => {
                let (new, old) = (next(), next());
                let volume = self.volumes.get_mut(&key).ok_or_else(|| gone(key))?;
                (volume.blocks, volume.cells) = new;
                self.rollbacks += 1;
                if let Some(name) = keep {
                    let (blocks, cells) = old;
                    let quota = self.quota(key);
                    let of = Some(key);
                    self.add(Volume { id, name, blocks, of, replica: false, quota, cells })?;
                }
                Undo::Act
            }
            Verb::Received { into, name, .. } => {
                let (snapshot, now) = (next(), next());
                let into = match into {
                    Ok(into) => {
                        let volume = self.volumes.get_mut(&into).ok_or_else(|| gone(into))?;
                        (volume.blocks, volume.cells) = now;
                        into
                    }
                    Err(name) => {
                        let id = ids.get(1).copied().unwrap_or_default();
                        let (blocks, cells) = now;
                        let of = None;
                        self.add(Volume { id, name, blocks, of, replica: true, quota: 0, cells })?
                    }
                };
                let (blocks, cells) = snapshot;
                let of = Some(into);
                self.add(Volume { id, name, blocks, of, replica: false, quota: 0, cells })?;
                Undo::Act
            }
            Verb::Resize(key, blocks) => {
                let volume = self.volumes.get_mut(&key).ok_or_else(|| gone(key))?;
                Undo::Resize(key, std::mem::replace(&mut volume.blocks, blocks))
            }
            Verb::Rename(key, name) => {
                let volume = self.volumes.get_mut(&key).ok_or_else(|| gone(key))?;
                Undo::Rename(key, std::mem::replace(&mut volume.name, name))
            }
            Verb::Quota(key, quota) => {
                let volume = self.volumes.get_mut(&key).ok_or_else(|| gone(key))?;
                Undo::Quota(key, std::mem::replace(&mut volume.quota, quota))
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
            Undo::Quota(key, quota) => {
                if let Some(volume) = self.volumes.get_mut(&key) {
                    volume.quota = quota;
                }
            }
            Undo::Act => {}
            Undo::Delete(key, mut volume) => {
                volume.cells.values_mut().for_each(Cell::may_be_clear);
                self.volumes.insert(key, volume);
            }
        }
    }

    /// The verb that was asked for did not happen, or not wholly: what it would have dropped may be
    /// gone.
    fn abandon(&mut self, verb: &Verb, copied: Copied) {
        // Without a name that tells of it, it may have happened.
        if let (Verb::Rollback(key, _, None), Some((_, cells))) = (verb, copied.into_iter().next())
        {
            if let Some(volume) = self.volumes.get_mut(key) {
                for (&lba, cell) in &mut volume.cells {
                    cell.or(cells.get(&lba).unwrap_or(&Cell::default()));
                }
                for (lba, cell) in cells {
                    let zeroes = Cell::default();
                    volume.cells.entry(lba).or_insert_with(|| cell.clone()).or(&zeroes);
                }
            }
            return;
        }
        let (key, from) = match verb {
            Verb::Resize(key, blocks) => (key, *blocks),
            Verb::Delete(key) => (key, 0),
            _ => return,
        };
        if let Some(volume) = self.volumes.get_mut(key) {
            volume.cells.range_mut(from..).for_each(|(_, cell)| cell.may_be_clear());
        }
    }

    /// The quota of a volume or a snapshot.
    #[must_use]
    pub fn quota(&self, key: Key) -> u64 {
        self.volumes.get(&key).map_or(0, |volume| volume.quota)
    }

    /// Compares the quotas of volumes with the store's, and so learns whether a change of one that is in
    /// doubt happened.
    ///
    /// # Errors
    /// A quota is neither that before nor that after the change.
    pub fn resolve_quotas(&mut self, quota_of: impl Fn(VolumeId) -> u64) -> Result<(), Failure> {
        let found = |model: &Model, key: &Key| model.volumes.get(key).map(|one| quota_of(one.id));
        match std::mem::take(&mut self.doubt) {
            Doubt::Asked(Verb::Quota(key, quota), copied) => {
                if found(self, &key) == Some(quota) {
                    self.apply(Verb::Quota(key, quota), copied, &[])?;
                }
            }
            Doubt::Taken(_, undo @ Undo::Quota(key, before)) => {
                if found(self, &key) == Some(before) {
                    self.undo(undo);
                }
            }
            other => self.doubt = other,
        }
        let skipped = match &self.doubt {
            Doubt::Asked(Verb::Delete(key), _) | Doubt::Taken(_, Undo::Create(key)) => Some(*key),
            _ => None,
        };
        for (key, volume) in &self.volumes {
            let (found, right) = (quota_of(volume.id), volume.quota);
            if found != right && volume.of.is_none() && Some(*key) != skipped {
                let name = &volume.name;
                let what =
                    format!("volume '{name}' has a quota of {found} blocks; right is {right}");
                return Err(Failure::new(Checker::Quota, what));
            }
        }
        Ok(())
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
            Doubt::Asked(verb, copied) if shown => self.abandon(&verb, copied),
            Doubt::Taken(_, undo) if shown => self.happened(&undo),
            Doubt::Clear => return Err(wrong_volumes(&listing, &self.listing(), None)),
            Doubt::Asked(verb, copied) => {
                let id = |name: &String| {
                    found
                        .iter()
                        .find(|(_, info)| info.name == *name)
                        .map_or(VolumeId(u32::MAX), |(id, _)| *id)
                };
                let ids: Vec<VolumeId> = self.makes(&verb).iter().map(id).collect();
                let sizes = copied.iter().map(|&(blocks, _)| (blocks, BTreeMap::new())).collect();
                other.apply(verb.clone(), sizes, &ids)?;
                if listing != other.listing() {
                    return Err(wrong_volumes(&listing, &self.listing(), Some(&other.listing())));
                }
                let undo = self.apply(verb, copied, &ids)?;
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
            let name = self.full_name(volume);
            if !found.iter().any(|(id, info)| *id == volume.id && info.name == name) {
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
            of: volume.of,
            replica: volume.replica,
            quota: volume.quota,
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
            .map(|volume| (self.full_name(volume), volume.blocks * BLOCK_BYTES as u64))
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
