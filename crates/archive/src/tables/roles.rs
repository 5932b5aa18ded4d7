//! Put keys: who they are, what they listed, and how far manage has proven it.

use onefold_core::Result;

use super::{persistent::Map, unproven::Unproven};
use crate::format::{
    ContainerId,
    backup::SnapshotId,
    bytes::{Reader, Writer},
    record::{ENTRY_MEMORY, ID_MEMORY, id},
};

/// The number by which manage signs.
pub(crate) const MANAGE: u32 = 0;

/// The number of nobody: the containers that manage found untrue are nobody's.
pub(super) const NOBODY: u32 = u32::MAX;

/// Ranges of container numbers that a put key keeps: it lists no container of older ones.
pub(super) const RANGES_KEPT: usize = 8;

/// Sets of a put key at most.
pub(crate) const SETS_MAX: usize = 256;

/// Put keys of an archive at most, removed ones too.
pub(crate) const PUT_KEYS_MAX: usize = 4096;

/// A put key, as the archive knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutKey {
    /// The public key that verifies its signatures.
    pub public: [u8; 32],
    /// The name that manage gave it, for people.
    pub name: String,
    /// The sets that it may add snapshots to.
    pub sets: Vec<String>,
    /// True once manage removed the key: nothing that it signs counts any more.
    pub is_removed: bool,
    /// Frames with its signature that readers passed over: they do more than the key may, or do not fit the
    /// tables.
    pub refused: u64,
    /// The newest ranges of container numbers that the key took: the first number of each, and the end.
    pub(super) ranges: Vec<(u64, u64)>,
}

/// What the log knows of put keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roles {
    /// The put keys by their numbers, from 1 on. A number never comes again.
    pub keys: Map<u32, PutKey>,
    /// Frames that nobody signed who is known.
    pub refused: u64,
    /// Manage has read all containers that frames up to this one list. Those that it found untrue are in
    /// `listed`, as nobody's.
    pub proven: u64,
    /// Who listed containers that are not proven, or that no snapshot names yet.
    pub(super) listed: Map<ContainerId, u32>,
    /// Which put key took a segment. All others are manage's.
    pub(super) segments: Map<u32, u32>,
    /// Snapshots that manage has not looked through, and who made them.
    pub unproven: Unproven,
}

impl Roles {
    /// The next number of a put key.
    #[must_use]
    pub fn next_key(&self) -> u32 {
        self.keys.keys().last().map_or(1, |last| last.saturating_add(1))
    }

    /// The put key that counts under this number.
    pub(crate) fn key(&self, number: u32) -> Option<&PutKey> {
        self.keys.get(&number).filter(|key| !key.is_removed)
    }

    /// True when whoever has this number may take chunks of a container for its own: it listed the container
    /// itself, or manage did, or manage has proven it.
    pub(crate) fn may_share(&self, number: u32, container: ContainerId, logged: u64) -> bool {
        match self.listed.get(&container) {
            None => true,
            Some(&NOBODY) => false,
            Some(&owner) => owner == number || logged <= self.proven,
        }
    }

    /// The number of the only key that appends to a segment: of the put key that took it, or manage's.
    pub(crate) fn owner_of_segment(&self, segment: u32) -> u32 {
        self.segments.get(&segment).copied().unwrap_or(MANAGE)
    }

    /// The containers of put keys that manage has not read, and those that it has read and that no snapshot
    /// names yet: only the container table says which frame listed each.
    pub(crate) fn unread(&self) -> impl Iterator<Item = ContainerId> {
        self.listed.iter().filter(|(_, owner)| **owner != NOBODY).map(|(&id, _)| id)
    }

    pub(super) fn encode(&self, w: &mut Writer) {
        w.u64(self.refused).u64(self.proven).u32(self.keys.len() as u32);
        for (number, key) in &self.keys {
            w.u32(*number).raw(&key.public).u8(u8::from(key.is_removed)).u64(key.refused);
            w.bytes(key.name.as_bytes()).u32(key.sets.len() as u32);
            key.sets.iter().for_each(|set| {
                w.bytes(set.as_bytes());
            });
            w.u32(key.ranges.len() as u32);
            key.ranges.iter().for_each(|(first, end)| {
                w.u64(*first).u64(*end);
            });
        }
        w.u32(self.listed.len() as u32);
        for (id, owner) in &self.listed {
            w.u64(id.0).u32(*owner);
        }
        w.u32(self.segments.len() as u32);
        for (segment, owner) in &self.segments {
            w.u32(*segment).u32(*owner);
        }
        w.u32(self.unproven.len() as u32);
        for (id, owner) in self.unproven.iter() {
            w.raw(&id.0).u32(owner);
        }
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Roles> {
        let mut roles = Roles { refused: r.u64()?, proven: r.u64()?, ..Roles::default() };
        for _ in 0..r.count(57, 2 * ENTRY_MEMORY)? {
            let (number, public, is_removed, refused) =
                (r.u32()?, r.array()?, r.u8()? != 0, r.u64()?);
            let name = r.text()?;
            let sets = (0..r.count(4, ENTRY_MEMORY)?).map(|_| r.text()).collect::<Result<_>>()?;
            let ranges = (0..r.count(16, 16)?)
                .map(|_| Ok((r.u64()?, r.u64()?)))
                .collect::<Result<Vec<_>>>()?;
            let key = PutKey { public, name, sets, is_removed, refused, ranges };
            roles.keys.insert(number, key);
        }
        for _ in 0..r.count(12, ID_MEMORY)? {
            roles.listed.insert(id(r)?, r.u32()?);
        }
        for _ in 0..r.count(8, ID_MEMORY)? {
            roles.segments.insert(r.u32()?, r.u32()?);
        }
        for _ in 0..r.count(20, ID_MEMORY)? {
            roles.unproven.insert(SnapshotId(r.array()?), r.u32()?);
        }
        Ok(roles)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_45_put_keys_are_read_as_they_were_written() {
        let key = |n: u8| PutKey {
            public: [n; 32],
            name: format!("host {n}"),
            sets: vec!["a".into(), "b".into()],
            is_removed: n == 2,
            refused: 7,
            ranges: vec![(1, 1025), (2049, 3073)],
        };
        let mut roles = Roles { refused: 3, proven: 99, ..Roles::default() };
        roles.keys.extend([(1, key(1)), (2, key(2))]);
        roles.listed.extend([(ContainerId(5), 1), (ContainerId(9), NOBODY)]);
        roles.segments.extend([(4, 1), (7, 2)]);
        roles.unproven.insert(SnapshotId([4; 16]), 1);
        let mut w = Writer::default();
        roles.encode(&mut w);
        let r = &mut Reader(&w.0, None);
        assert_eq!(Roles::decode(r).unwrap(), roles);
        r.end().unwrap();
        for end in 0..w.0.len() {
            assert!(Roles::decode(&mut Reader(&w.0[..end], None)).is_err(), "{end} bytes");
        }
        assert!(roles.key(1).is_some() && roles.key(2).is_none() && roles.key(3).is_none());
        assert_eq!(roles.next_key(), 3);
    }

    #[test]
    fn rule_45_chunks_are_shared_by_who_listed_them_and_once_they_are_proven() {
        let mut roles = Roles { proven: 10, ..Roles::default() };
        roles.listed.extend([(ContainerId(1), 1), (ContainerId(2), 2), (ContainerId(3), NOBODY)]);
        let shares = |number, id, logged| roles.may_share(number, ContainerId(id), logged);
        assert!(shares(1, 1, 11) && !shares(2, 1, 11) && !shares(MANAGE, 1, 11));
        assert!(shares(2, 1, 10) && shares(MANAGE, 1, 10));
        assert!(!shares(1, 3, 5) && !shares(MANAGE, 3, 5), "what is untrue is nobody's");
        assert!(shares(1, 4, 99), "manage's own");
    }
}
