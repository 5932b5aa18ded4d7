//! The volumes as clients see them.
//!
//! *Invariants*, which only this file can break, since all fields of [`Volumes`] are private: no
//! two volumes have one name, no two snapshots of a volume have one, and no number is given twice.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound::{Excluded, Unbounded},
};

use onefold_core::{Error, Kind, Lba, Result, VolumeId, VolumeLimits};

use crate::format::{
    catalogue::{
        CatalogueChange, MapKind, NoDedup, Sharing, VOLUME_BLOCKS_MAX, Volume, check_name,
    },
    sealing::erased,
    superblock::Root,
};
use crate::{moments::Act, window::Kept};

/// A volume as clients see it now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeState {
    /// Its name.
    pub name: String,
    /// Its size in blocks.
    pub blocks: u64,
    /// Its blocks that are not deduplicated.
    pub no_dedup: NoDedup,
    /// How fast clients may use it; servers see to that.
    pub limits: VolumeLimits,
    /// Blocks that clients may map in it; 0 for any number.
    pub quota: u64,
    /// The domain that it belongs to: its data is shared within that, and sealed by its key.
    pub domain: u32,
    /// Of a snapshot: what it is a snapshot of, and since when. It can only be read.
    pub snapshot: Option<SnapshotOf>,
    /// Of a snapshot that is being received: how far it is. No name leads to it.
    pub receiving: Option<Receiving>,
    /// Of a volume: the snapshot that it holds, if only a receive changes it.
    pub replica_of: Option<VolumeId>,
}

/// The origin of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotOf {
    /// The volume.
    pub volume: VolumeId,
    /// When it was made, in milliseconds since 1970.
    pub made_ms: u64,
    /// Tells it from any other snapshot, also of another store that it was received from.
    pub guid: [u8; 16],
}

/// A snapshot that is being received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receiving {
    /// The sender's number for the snapshot.
    pub guid: [u8; 16],
    /// The snapshot here that it is based on.
    pub base: Option<VolumeId>,
    /// All blocks before this one are there.
    pub cursor: u64,
    /// When it began, or its cursor rose last, in milliseconds since 1970.
    pub heard_ms: u64,
}

/// In [`Volumes::names`]: below this number are the snapshots that are being received. It is no
/// volume's.
const RECEIVING: u32 = u32::MAX;

/// The volumes that clients see, and the number of the next one.
///
/// Clients ask for names, and how long that takes must not go with how many there are.
pub(crate) struct Volumes {
    volumes: BTreeMap<VolumeId, VolumeState>,
    /// Of each: the number of its volume if it is a snapshot, [`RECEIVING`] if it is being received,
    /// else 0; its name; its number.
    names: BTreeSet<(u32, String, VolumeId)>,
    next: u32,
    /// What acts that are not durable yet will make, and which volumes they roll back.
    expected: BTreeMap<VolumeId, VolumeState>,
    rolled_back: BTreeSet<VolumeId>,
    /// The domains that were not erased.
    living: Vec<u32>,
    /// A volume has, or had, a quota.
    quotas: bool,
}

impl Volumes {
    /// Those of a catalogue; the next one gets the number `next`, or a higher one. `living` are the domains
    /// that were not erased.
    ///
    /// # Errors
    /// `Corrupt`: no program made this catalogue.
    pub(crate) fn of(
        catalogue: &BTreeMap<VolumeId, Volume>,
        next: u32,
        living: Vec<u32>,
    ) -> Result<Volumes> {
        let next =
            catalogue.keys().map(|id| id.0.saturating_add(1)).chain([next]).max().unwrap_or(1);
        let mut volumes = Volumes {
            volumes: BTreeMap::new(),
            names: BTreeSet::new(),
            next,
            expected: BTreeMap::new(),
            rolled_back: BTreeSet::new(),
            living,
            quotas: false,
        };
        let mut blocks = 0_u64;
        for (&id, volume) in catalogue {
            let Some(volume) = shown(volume) else { continue };
            if volume.is_any_volume() {
                blocks = blocks.saturating_add(volume.blocks);
            }
            if let Some(wrong) = volumes.what_is_wrong(id, &volume) {
                let what = format!("the catalogue is damaged: volume {id} {wrong}");
                return Err(Error::new(Kind::Corrupt, what));
            }
            volumes.insert(id, volume);
        }
        if blocks > VOLUME_BLOCKS_MAX {
            let what = "the catalogue is damaged: all volumes together are larger than 1 EiB";
            return Err(Error::new(Kind::Corrupt, what));
        }
        Ok(volumes)
    }

    /// Why what a catalogue has beside these can't be true.
    fn what_is_wrong(&self, id: VolumeId, volume: &VolumeState) -> Option<&'static str> {
        let (below, name, _) = volume.key(id);
        let of_none = volume.snapshot.is_some_and(|of| matches!(of.volume.0, 0 | RECEIVING));
        if matches!(id.0, 0 | RECEIVING) {
            Some("has a number that none has")
        } else if of_none {
            Some("is a snapshot of none")
        } else if volume.is_any_volume() && volume.blocks == 0 {
            Some("has no blocks")
        } else if volume.receiving.is_none() && self.find(below, &name).is_some() {
            Some("has the name of another one")
        } else {
            None
        }
    }

    fn insert(&mut self, id: VolumeId, volume: VolumeState) {
        self.quotas |= volume.quota > 0;
        self.names.insert(volume.key(id));
        self.volumes.insert(id, volume);
    }

    /// The one of a name, below a volume or, with 0, among the volumes.
    fn find(&self, below: u32, name: &str) -> Option<VolumeId> {
        let from = (below, name.to_owned(), VolumeId(0));
        let (parent, found, id) = self.names.range(from..).next()?;
        (*parent == below && found == name).then_some(*id)
    }

    /// A volume gets a quota: the next checkpoint makes the catalogue one of maps that share pages, where the
    /// counts are.
    pub(crate) fn expect_quotas(&mut self) {
        self.quotas = true;
    }

    /// True when a volume has, or had, a quota since the store was opened.
    pub(crate) fn have_quotas(&self) -> bool {
        self.quotas
    }

    /// The number of the next volume.
    pub(crate) fn next(&self) -> u32 {
        self.next
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.volumes.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&VolumeId, &VolumeState)> {
        self.volumes.iter()
    }

    /// The names and sizes in blocks of the next volumes behind a name, or of the first ones; in the
    /// order of names, `most` at most.
    pub(crate) fn names_behind(&self, name: Option<&str>, most: usize) -> Vec<(String, u64)> {
        let from = match name {
            Some(name) => (0, name.to_owned(), VolumeId(u32::MAX)),
            None => (0, String::new(), VolumeId(0)),
        };
        self.names
            .range((Excluded(from), Unbounded))
            .take_while(|(below, ..)| *below == 0)
            .take(most)
            .map(|(_, name, id)| (name.clone(), self.volumes.get(id).map_or(0, |one| one.blocks)))
            .collect()
    }

    /// The volume, if it exists.
    pub(crate) fn get(&self, id: VolumeId) -> Result<&VolumeState> {
        self.volumes
            .get(&id)
            .ok_or_else(|| Error::new(Kind::NotFound, "the volume does not exist any more"))
    }

    /// The number of a volume, or of a snapshot as in `vm1@monday`. A volume's whole name wins: older
    /// programs gave names with `@`.
    pub(crate) fn named(&self, name: &str) -> Option<VolumeId> {
        self.find(0, name).or_else(|| {
            let (of, snapshot) = name.rsplit_once('@')?;
            self.find(self.find(0, of)?.0, snapshot)
        })
    }

    /// The snapshots of a volume, by name.
    pub(crate) fn snapshots(&self, of: VolumeId) -> impl Iterator<Item = (VolumeId, &VolumeState)> {
        let from = (of.0, String::new(), VolumeId(0));
        let theirs = self.names.range(from..).take_while(move |(parent, ..)| *parent == of.0);
        theirs.filter_map(|(.., id)| Some((*id, self.volumes.get(id)?)))
    }

    /// Snapshots of a volume that acts will make.
    fn expected_of(&self, of: VolumeId) -> impl Iterator<Item = &VolumeState> {
        let all = self.expected.values();
        all.filter(move |one| one.snapshot.is_some_and(|origin| origin.volume == of))
    }

    /// True when a volume has a snapshot of this name, or will have.
    pub(crate) fn snapshot_expected(&self, of: VolumeId, name: &str) -> bool {
        self.find(of.0, name).is_some()
            || self.expected_of(of).any(|one| one.name == name)
            || self.receives(of).any(|receive| receive.received_name().1 == name)
    }

    /// What is being received, or will be, to become a snapshot of a volume that is there.
    fn receives(&self, into: VolumeId) -> impl Iterator<Item = &VolumeState> {
        self.all_receives().filter(move |receive| self.receives_into(receive) == Some(into))
    }

    fn all_receives(&self) -> impl Iterator<Item = &VolumeState> {
        let coming = self.expected.values().filter(|volume| volume.receiving.is_some());
        self.receiving().map(|(_, receive)| receive).chain(coming)
    }

    /// The volume that will get what is being received, if it is there.
    pub(crate) fn receives_into(&self, receive: &VolumeState) -> Option<VolumeId> {
        let base = receive.receiving?.base?;
        Some(self.volumes.get(&base)?.snapshot?.volume)
    }

    /// True when something is being received that needs a volume or a snapshot.
    pub(crate) fn received_for(&self, id: VolumeId) -> bool {
        self.all_receives().any(|receive| {
            receive.receiving.is_some_and(|receiving| receiving.base == Some(id))
                || self.receives_into(receive) == Some(id)
        })
    }

    /// The snapshots that are being received.
    pub(crate) fn receiving(&self) -> impl Iterator<Item = (VolumeId, &VolumeState)> {
        let from = (RECEIVING, String::new(), VolumeId(0));
        let all = self.names.range(from..);
        all.filter_map(|(.., id)| Some((*id, self.volumes.get(id)?)))
    }

    /// How many snapshots of a volume there are, or will be.
    pub(crate) fn snapshots_ahead(&self, of: VolumeId) -> usize {
        self.snapshots(of).count() + self.expected_of(of).count()
    }

    /// The domains that were not erased.
    pub(crate) fn living(&self) -> &[u32] {
        &self.living
    }

    /// Fails unless a domain is there for new data.
    pub(crate) fn check_domain(&self, domain: u32) -> Result<()> {
        if self.living.contains(&domain) {
            return Ok(());
        }
        Err(Error::new(Kind::NotFound, format!("there is no domain with number {domain}")))
    }

    /// The volume, if its domain was not erased.
    ///
    /// # Errors
    /// `NotFound`; `Corrupt`: it was.
    pub(crate) fn alive(&self, id: VolumeId) -> Result<&VolumeState> {
        let volume = self.get(id)?;
        if self.living.contains(&volume.domain) {
            return Ok(volume);
        }
        Err(erased(volume.domain).context(format!("volume '{}'", volume.name)))
    }

    /// How a block is stored that is written now.
    pub(crate) fn kept(&self, id: VolumeId, lba: Lba) -> Kept {
        self.volumes.get(&id).map_or(Kept::default(), |volume| Kept {
            domain: volume.domain,
            no_dedup: volume.no_dedup.holds(lba),
        })
    }

    /// The volume, if clients may change it now.
    ///
    /// # Errors
    /// `NotFound`; `Denied` for a snapshot; `Busy` while it is rolled back; `Corrupt`: its domain was
    /// erased.
    pub(crate) fn check_writable(&self, id: VolumeId) -> Result<()> {
        self.alive(id)?;
        if self.get(id)?.snapshot.is_some() {
            return Err(Error::new(Kind::Denied, "a snapshot can only be read"));
        }
        if self.rolled_back.contains(&id) {
            return Err(Error::new(Kind::Busy, "the volume is being rolled back"));
        }
        if self.get(id)?.replica_of.is_some() {
            return Err(Error::new(
                Kind::Denied,
                "the volume is a replica, which only `onefold receive` changes: `onefold volume \
                 promote` makes it an ordinary one",
            ));
        }
        Ok(())
    }

    /// Gives a number, which is used for what no client sees, or not yet.
    pub(crate) fn give_number(&mut self) -> VolumeId {
        let id = VolumeId(self.next);
        self.next = self.next.saturating_add(1);
        id
    }

    /// An act will make this.
    pub(crate) fn expect(&mut self, id: VolumeId, volume: VolumeState) {
        self.expected.insert(id, volume);
    }

    /// A planted bug: clients see what is expected.
    pub(crate) fn show_expected(&mut self) {
        for (id, volume) in self.expected.clone() {
            self.insert(id, volume);
        }
    }

    /// A volume is being rolled back.
    pub(crate) fn roll_back(&mut self, id: VolumeId) {
        self.rolled_back.insert(id);
    }

    /// An act is durable: `made` is what it made, as the catalogue has it.
    pub(crate) fn performed(&mut self, act: &Act, catalogue: &BTreeMap<VolumeId, Volume>) {
        match act {
            Act::Rollback { volume, .. } | Act::Promote { id: volume } => {
                self.rolled_back.remove(volume);
                if let Some((now, volume)) =
                    self.volumes.get_mut(volume).zip(catalogue.get(volume).and_then(shown))
                {
                    (now.blocks, now.no_dedup) = (volume.blocks, volume.no_dedup);
                    now.replica_of = volume.replica_of;
                }
                return;
            }
            Act::Cursor { id, .. } | Act::Received { id, .. } => {
                if let Some(made) = catalogue.get(id).and_then(shown) {
                    self.change(*id, |now| *now = made);
                }
                return;
            }
            Act::Lose { .. } => return,
            Act::Snapshot { .. } | Act::Clone { .. } | Act::Receive { .. } => {}
        }
        let expected = self.expected.remove(&act.id());
        let made = catalogue.get(&act.id()).and_then(shown);
        if let Some(made) = made.filter(|_| expected.is_some()) {
            self.insert(act.id(), made);
        }
    }

    /// Fails unless a volume may have this name.
    pub(crate) fn check_new_name(&self, name: &str) -> Result<()> {
        check_name(name)?;
        if name.contains('@') {
            return Err(Error::new(
                Kind::InvalidInput,
                format!("the name '{name}' has an '@', which stands before the name of a snapshot"),
            ));
        }
        let expected = || {
            self.expected.values().any(|volume| volume.is_volume(name))
                || self.all_receives().any(|receive| {
                    let to_be_made = self.receives_into(receive).is_none();
                    to_be_made && receive.received_name().0 == name
                })
        };
        match self.named(name).map(drop).or_else(|| expected().then_some(())) {
            Some(()) => {
                Err(Error::new(Kind::Exists, format!("there is a volume '{name}' already")))
            }
            None => Ok(()),
        }
    }

    /// Fails unless a volume may have this size, in the place of another or beside all: all sizes
    /// together stay within 1 EiB.
    pub(crate) fn check_size(&self, blocks: u64, replacing: Option<VolumeId>) -> Result<()> {
        if blocks == 0 {
            return Err(Error::new(
                Kind::InvalidInput,
                "a volume needs at least one block of 4096 bytes",
            ));
        }
        let all = self.volumes.iter().chain(&self.expected);
        let others =
            all.filter(|(id, volume)| Some(**id) != replacing && volume.snapshot.is_none());
        let sum = others.fold(blocks, |sum, (_, volume)| sum.saturating_add(volume.blocks));
        if sum > VOLUME_BLOCKS_MAX {
            return Err(Error::new(
                Kind::InvalidInput,
                "all volumes together can't be larger than 1 EiB",
            ));
        }
        Ok(())
    }

    /// Adds a volume whose name and size were checked.
    pub(crate) fn create(&mut self, volume: VolumeState) -> VolumeId {
        let id = self.give_number();
        self.insert(id, volume);
        id
    }

    /// Changes a volume, if it exists.
    pub(crate) fn change(&mut self, id: VolumeId, change: impl FnOnce(&mut VolumeState)) {
        let Some(volume) = self.volumes.get_mut(&id) else { return };
        self.names.remove(&volume.key(id));
        change(volume);
        self.quotas |= volume.quota > 0;
        self.names.insert(volume.key(id));
    }

    /// Removes a volume.
    pub(crate) fn remove(&mut self, id: VolumeId) {
        if let Some(volume) = self.volumes.remove(&id) {
            self.names.remove(&volume.key(id));
        }
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
            CatalogueChange::Create { id, name, blocks, no_dedup, limits, quota, domain } => {
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
                        quota: *quota,
                        domain: *domain,
                        sharing: Sharing::default(),
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
            CatalogueChange::Settings { id, no_dedup, limits, quota } => {
                if let Some(volume) = volumes.get_mut(id) {
                    volume.no_dedup.clone_from(no_dedup);
                    (volume.limits, volume.quota) = (*limits, *quota);
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

/// A volume or snapshot as clients see it; `None` once it is deleted.
fn shown(volume: &Volume) -> Option<VolumeState> {
    let origin = || SnapshotOf {
        volume: VolumeId(volume.sharing.parent),
        made_ms: volume.sharing.made_ms,
        guid: volume.sharing.guid,
    };
    let parent = (volume.sharing.parent != 0).then_some(VolumeId(volume.sharing.parent));
    let receiving = Receiving {
        guid: volume.sharing.guid,
        base: parent,
        cursor: volume.sharing.cursor,
        heard_ms: volume.sharing.made_ms,
    };
    (!volume.name.is_empty()).then(|| VolumeState {
        name: volume.name.clone(),
        blocks: volume.blocks,
        no_dedup: volume.no_dedup.clone(),
        limits: volume.limits,
        quota: volume.quota,
        domain: volume.domain,
        snapshot: volume.is_snapshot().then(origin),
        receiving: (volume.sharing.kind == MapKind::Receiving).then_some(receiving),
        replica_of: parent.filter(|_| volume.sharing.replica),
    })
}

impl VolumeState {
    /// Where its name is found.
    fn key(&self, id: VolumeId) -> (u32, String, VolumeId) {
        let below = self.snapshot.map_or(0, |origin| origin.volume.0);
        let below = if self.receiving.is_some() { RECEIVING } else { below };
        (below, self.name.clone(), id)
    }

    /// An ordinary volume with what another one, or a snapshot, holds.
    pub(crate) fn volume(name: &str, origin: VolumeState) -> VolumeState {
        VolumeState {
            name: name.to_owned(),
            snapshot: None,
            receiving: None,
            replica_of: None,
            ..origin
        }
    }

    /// True for a volume, and neither a snapshot nor something that is being received.
    pub(crate) fn is_any_volume(&self) -> bool {
        self.snapshot.is_none() && self.receiving.is_none()
    }

    /// True for a volume of this name.
    fn is_volume(&self, name: &str) -> bool {
        self.is_any_volume() && self.name == name
    }

    /// Of what is being received: the names that the volume and the snapshot will have. The volume
    /// may have another one by now, if it was there before.
    #[must_use]
    pub fn received_name(&self) -> (&str, &str) {
        self.name.rsplit_once('@').unwrap_or((&self.name, ""))
    }
}
