//! The snapshots of directories, and the records that change them.

use onefold_core::{Error, Kind, Result};

use super::persistent::Map;
use crate::format::{
    Address,
    backup::{Completeness, Snapshot, SnapshotId},
    bytes::{Reader, Writer, corrupt},
    record::{Pieces, Record, addresses, addresses_of},
    tree_node::TreeNodeRef,
};

/// Memory that a snapshot takes without its texts.
pub(super) const SNAPSHOT_MEMORY: usize = 576;

/// Bytes of a snapshot at least.
pub(super) const SNAPSHOT_BYTES: usize = 147;

/// The snapshots of an archive, in the order in which they were made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshots {
    pub(super) all: Map<u64, Snapshot>,
    /// The number of each by its id: a log may make, forget and bring back as many as it has room for.
    numbers: Map<SnapshotId, u64>,
    next: u64,
    /// Nodes that are named, and whose children are not counted: they were damaged.
    due: Map<Address, ()>,
}

impl Snapshots {
    /// True when there are none, listed or forgotten.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// How many there are, forgotten ones too.
    #[must_use]
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// All of them, forgotten ones too, the oldest first.
    pub fn values(&self) -> impl DoubleEndedIterator<Item = &Snapshot> {
        self.all.values()
    }

    /// The snapshots that lists show, the oldest first.
    pub fn listed(&self) -> impl DoubleEndedIterator<Item = &Snapshot> {
        self.all.values().filter(|snapshot| snapshot.forgotten.is_none())
    }

    /// The snapshots that were forgotten and are not gone yet, the oldest first.
    pub fn forgotten(&self) -> impl DoubleEndedIterator<Item = &Snapshot> {
        self.all
            .values()
            .filter(|snapshot| snapshot.forgotten.is_some() && !is_checkpoint(snapshot))
    }

    /// The checkpoints of backups that did not end, the oldest first.
    pub fn checkpoints(&self) -> impl DoubleEndedIterator<Item = &Snapshot> {
        self.all.values().filter(|snapshot| is_checkpoint(snapshot))
    }

    /// The one with this id.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn get(&self, id: SnapshotId) -> Result<&Snapshot> {
        let found = self.numbers.get(&id).and_then(|number| self.all.get(number));
        found.ok_or_else(|| Error::new(Kind::NotFound, format!("there is no snapshot {id}")))
    }

    /// Nodes whose children are to be counted when they are whole.
    pub(crate) fn due(&self) -> impl Iterator<Item = &Address> {
        self.due.keys()
    }

    pub(super) fn made(&mut self, snapshot: Snapshot) -> Result<()> {
        if self.numbers.contains_key(&snapshot.id) {
            return Err(corrupt(format!("the log makes snapshot {} twice", snapshot.id)));
        }
        let id = snapshot.id;
        // A snapshot of tables may say that the next one has a number which is taken.
        if let Some(before) = self.all.insert(self.next, snapshot) {
            self.numbers.remove(&before.id);
        }
        self.numbers.insert(id, self.next);
        self.next = self.next.saturating_add(1);
        Ok(())
    }

    /// Applies a record; gives the snapshots that are gone.
    pub(super) fn apply(&mut self, record: Record) -> Result<Vec<Snapshot>> {
        let mut gone = Vec::new();
        match record {
            Record::Forgotten { ids, at } => self.change_all(&ids, |snapshot| {
                snapshot.forgotten = snapshot.forgotten.or(Some((at, None)));
            })?,
            Record::Undeleted { ids } => self.change_all(&ids, |snapshot| {
                snapshot.forgotten = snapshot.forgotten.filter(|_| is_checkpoint(snapshot));
            })?,
            Record::ForgottenSeen { ids, at } => self.change_all(&ids, |snapshot| {
                if let Some((_, seen @ None)) = &mut snapshot.forgotten {
                    *seen = Some(at);
                }
            })?,
            Record::Expired { ids } => {
                for id in ids {
                    let number = self.number(id)?;
                    self.numbers.remove(&id);
                    gone.extend(self.all.remove(&number));
                }
            }
            Record::CountsDue { nodes } => {
                self.due = Map::default();
                self.due.extend(nodes.into_iter().map(|node| (node, ())));
            }
            _ => {}
        }
        Ok(gone)
    }

    fn number(&self, id: SnapshotId) -> Result<u64> {
        let found = self.numbers.get(&id).copied();
        found.ok_or_else(|| corrupt(format!("the log changes snapshot {id}, which is not there")))
    }

    fn change_all(
        &mut self,
        ids: &[SnapshotId],
        mut change: impl FnMut(&mut Snapshot),
    ) -> Result<()> {
        ids.iter().try_for_each(|&id| {
            let number = self.number(id)?;
            self.all.get_mut(&number).map(&mut change);
            Ok(())
        })
    }

    /// With `leaves` the snapshots themselves are elsewhere.
    pub(super) fn encode(&self, w: &mut Writer, leaves: bool) {
        w.u64(self.next);
        if !leaves {
            w.u32(self.all.len() as u32);
            self.all.iter().for_each(|(number, snapshot)| encode_one(w, number, snapshot));
        }
        let due: Vec<_> = self.due.keys().copied().collect();
        addresses(w, &due);
    }

    /// With the snapshots that were found elsewhere.
    pub(super) fn decode(
        r: &mut Reader<'_>,
        found: Option<Map<u64, Snapshot>>,
    ) -> Result<Snapshots> {
        let next = r.counter()?;
        let all = match found {
            Some(all) => all,
            None => {
                let mut all = Map::default();
                for _ in 0..r.count(SNAPSHOT_BYTES, SNAPSHOT_MEMORY)? {
                    let (number, snapshot) = decode_one(r)?;
                    all.insert(number, snapshot);
                }
                all
            }
        };
        let mut numbers = Map::default();
        numbers.extend(all.iter().map(|(&number, snapshot)| (snapshot.id, number)));
        if numbers.len() < all.len() {
            return Err(corrupt("two snapshots have one id"));
        }
        let mut snapshots = Snapshots { all, numbers, next, due: Map::default() };
        snapshots.due.extend(addresses_of(r)?.into_iter().map(|node| (node, ())));
        Ok(snapshots)
    }
}

/// Writes a snapshot behind its number.
pub(super) fn encode_one(w: &mut Writer, &number: &u64, snapshot: &Snapshot) {
    snapshot.encode(w.u64(number));
}

/// Reads a snapshot behind its number.
pub(super) fn decode_one(r: &mut Reader<'_>) -> Result<(u64, Snapshot)> {
    Ok((r.counter()?, Snapshot::decode(r)?))
}

fn is_checkpoint(snapshot: &Snapshot) -> bool {
    snapshot.completeness == Completeness::Checkpoint
}

/// The nodes that a snapshot names, as a recipe of one piece each.
pub(crate) fn roots(snapshot: &Snapshot) -> Vec<Pieces> {
    let piece = |node: &TreeNodeRef| Pieces {
        container: node.address.container,
        first: node.address.slot,
        count: 1,
    };
    let stats = snapshot.stats.map(|top| piece(&top.node));
    [piece(&snapshot.root)].into_iter().chain(stats).collect()
}
