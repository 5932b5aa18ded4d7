//! Snapshots of directories: their records, applied, and their part of the tables' bytes.

use onefold_core::Result;

use super::state::{Difference, Tables};
use crate::format::{
    backup::{Snapshot, SnapshotId},
    bytes::{Reader, Writer, corrupt},
    record::{Record, addresses, addresses_of},
};

/// Memory that a snapshot takes without its texts.
const SNAPSHOT_MEMORY: usize = 512;

/// Bytes of a snapshot at least.
const SNAPSHOT_BYTES: usize = 147;

impl Tables {
    pub(super) fn snapshot_made(&mut self, snapshot: Snapshot) -> Result<()> {
        if !self.trees {
            return Err(corrupt("the log has a snapshot, and the archive has none"));
        }
        if self.snapshots.values().any(|known| known.id == snapshot.id) {
            return Err(corrupt(format!("the log makes snapshot {} twice", snapshot.id)));
        }
        self.difference(true, &snapshot);
        self.snapshots.insert(self.next_snapshot, snapshot);
        self.next_snapshot = self.next_snapshot.saturating_add(1);
        Ok(())
    }

    fn difference(&mut self, added: bool, snapshot: &Snapshot) {
        let (recipe, at) = (snapshot.roots(), self.versions);
        self.differences.push(Difference { added, recipe, at, nodes: true });
    }

    pub(super) fn apply_snapshot(&mut self, record: Record) -> Result<()> {
        match record {
            Record::Forgotten { ids, at } => self.change_all(&ids, |snapshot| {
                snapshot.forgotten = snapshot.forgotten.or(Some((at, None)));
            }),
            Record::Undeleted { ids } => {
                self.change_all(&ids, |snapshot| snapshot.forgotten = None)
            }
            Record::ForgottenSeen { ids, at } => self.change_all(&ids, |snapshot| {
                if let Some((_, seen @ None)) = &mut snapshot.forgotten {
                    *seen = Some(at);
                }
            }),
            Record::Expired { ids } => ids.iter().try_for_each(|&id| {
                let number = self.number(id)?;
                let gone = self.snapshots.remove(&number);
                gone.iter().for_each(|gone| self.difference(false, gone));
                Ok(())
            }),
            Record::CountsDue { nodes } => {
                self.counts_due = Default::default();
                self.counts_due.extend(nodes.into_iter().map(|node| (node, ())));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn number(&self, id: SnapshotId) -> Result<u64> {
        self.snapshot(id)
            .map(|(number, _)| number)
            .map_err(|_| corrupt(format!("the log changes snapshot {id}, which is not there")))
    }

    fn change_all(
        &mut self,
        ids: &[SnapshotId],
        mut change: impl FnMut(&mut Snapshot),
    ) -> Result<()> {
        ids.iter().try_for_each(|&id| {
            let number = self.number(id)?;
            self.snapshots.get_mut(&number).map(&mut change);
            Ok(())
        })
    }

    pub(super) fn encode_snapshots(&self, w: &mut Writer) {
        if !self.trees {
            return;
        }
        w.u64(self.next_snapshot).u32(self.snapshots.len() as u32);
        for (&number, snapshot) in &self.snapshots {
            snapshot.encode(w.u64(number));
        }
        let due: Vec<_> = self.counts_due.keys().copied().collect();
        addresses(w, &due);
    }

    pub(super) fn decode_snapshots(&mut self, r: &mut Reader<'_>) -> Result<()> {
        if !self.trees {
            return Ok(());
        }
        self.next_snapshot = r.counter()?;
        for _ in 0..r.count(SNAPSHOT_BYTES, SNAPSHOT_MEMORY)? {
            let number = r.counter()?;
            self.snapshots.insert(number, Snapshot::decode(r)?);
        }
        self.counts_due.extend(addresses_of(r)?.into_iter().map(|node| (node, ())));
        Ok(())
    }
}
