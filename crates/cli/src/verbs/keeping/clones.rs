//! Read-only clones of volumes as the snapshots that they are: those that are called VOLUME@WORD make
//! the set VOLUME, in the order in which they were made.
//!
//! No host made them, and their sets are apart from those of directories. A clone that a policy does
//! not keep is deleted, as by `volume delete`: clones have no trash.

use onefold_archive::{
    Address, Completeness, ContainerId, Origin, Snapshot, SnapshotId, Tables, TreeNodeRef,
    VOLUME_BLOCK_BYTES,
};
use onefold_core::Fingerprint;

/// A read-only clone of a volume.
#[derive(Clone, Debug)]
pub(in crate::verbs) struct CloneOfVolume {
    /// Its name.
    pub(in crate::verbs) name: String,
    /// The clone as policies see it. Its id tells it from others, and names nothing.
    pub(in crate::verbs) snapshot: Snapshot,
}

/// The read-only clones of an archive that belong to a set, the oldest first.
pub(in crate::verbs) fn clones(tables: &Tables) -> Vec<CloneOfVolume> {
    let mut clones = Vec::new();
    for (number, volume) in tables.volumes.all().iter().filter(|(_, volume)| volume.read_only) {
        let Some((set, word)) = volume.name.rsplit_once('@') else { continue };
        if set.is_empty() || word.is_empty() {
            continue;
        }
        let mut id = [0; 16];
        id[8..].copy_from_slice(&number.to_be_bytes());
        let address = Address { container: ContainerId(0), slot: 0 };
        let snapshot = Snapshot {
            id: SnapshotId(id),
            set: set.to_owned(),
            domain: 0,
            host: String::new(),
            machine: [0; 16],
            paths: Vec::new(),
            tags: Vec::new(),
            began: volume.created,
            ended: volume.created,
            origin: Origin::Read(None),
            root: TreeNodeRef { address, fingerprint: Fingerprint([0; 16]) },
            stats: None,
            entries: 1,
            bytes: volume.block_index.used() * VOLUME_BLOCK_BYTES,
            added: 0,
            left_out: 0,
            completeness: Completeness::Whole,
            forgotten: None,
        };
        clones.push(CloneOfVolume { name: volume.name.clone(), snapshot });
    }
    // Numbers are given as volumes are made, so they order what a clock does not.
    clones.sort_by_key(|clone| clone.snapshot.id);
    clones
}
