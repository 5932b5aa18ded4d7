//! Snapshots of put keys that manage has not looked through.

use super::persistent::Map;
use crate::format::backup::SnapshotId;

/// Snapshots of one put key that manage has not looked through, at most: each costs every reader something,
/// and `gc` a walk. A frame that adds one more counts for nothing.
pub(crate) const UNPROVEN_MAX: u64 = 4096;

/// Snapshots of put keys that manage has not looked through, checkpoints too, and who made each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unproven {
    made_by: Map<SnapshotId, u32>,
    /// How many each put key has, none of them 0. It follows from the map before.
    counts: Map<u32, u64>,
}

impl Unproven {
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.made_by.len()
    }

    /// True when there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.made_by.is_empty()
    }

    /// The number of the put key that made a snapshot; `None` for one that manage made, or has looked
    /// through.
    #[must_use]
    pub fn maker(&self, id: SnapshotId) -> Option<u32> {
        self.made_by.get(&id).copied()
    }

    /// How many the put key of this number has.
    #[must_use]
    pub fn of(&self, number: u32) -> u64 {
        self.counts.get(&number).copied().unwrap_or(0)
    }

    /// All of them, and who made each.
    pub fn iter(&self) -> impl Iterator<Item = (SnapshotId, u32)> {
        self.made_by.iter().map(|(&id, &number)| (id, number))
    }

    pub(super) fn insert(&mut self, id: SnapshotId, number: u32) {
        self.remove(id);
        self.made_by.insert(id, number);
        self.counts.change(number, |count| *count += 1);
    }

    /// True when it was there.
    pub(super) fn remove(&mut self, id: SnapshotId) -> bool {
        let Some(number) = self.made_by.remove(&id) else { return false };
        match self.of(number) {
            0 | 1 => drop(self.counts.remove(&number)),
            more => drop(self.counts.insert(number, more - 1)),
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_45_unproven_snapshots_are_counted_for_who_made_them() {
        let mut unproven = Unproven::default();
        let id = |n: u8| SnapshotId([n; 16]);
        for (n, of) in [(1, 1), (2, 1), (3, 2), (2, 2)] {
            unproven.insert(id(n), of);
        }
        assert_eq!((unproven.of(1), unproven.of(2), unproven.of(3)), (1, 2, 0));
        assert!(unproven.remove(id(1)) && !unproven.remove(id(1)) && !unproven.remove(id(9)));
        assert_eq!((unproven.of(1), unproven.len(), unproven.maker(id(2))), (0, 2, Some(2)));
        let mut other = Unproven::default();
        other.insert(id(3), 2);
        other.insert(id(2), 2);
        assert_eq!(unproven, other);
    }
}
