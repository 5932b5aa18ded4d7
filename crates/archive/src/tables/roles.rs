//! Put keys: who they are, what they listed, and how far manage has proven it.
//!
//! A frame that a put key signed is judged before it is applied. One that does more than a put key may is
//! passed over by everybody: its place in the order of changes is taken, and nothing in it counts. So a put
//! key that somebody else got hold of makes no archive unreadable for others.

use onefold_core::{Error, Kind, Result};

use super::{
    persistent::{List, Map},
    snapshots::roots,
    state::{PLACE_ALIGN, Tables},
};
use crate::{
    format::{
        ContainerId,
        backup::{Completeness, Snapshot, SnapshotId, TEXTS_IN_ALL},
        bytes::{Reader, Writer, corrupt},
        class::Class,
        domain::FIRST_DOMAIN,
        record::{ENTRY_MEMORY, ID_MEMORY, Owner, Record, Stored, id},
    },
    settings::ID_RANGE,
};

/// The number by which manage signs.
pub(crate) const MANAGE: u32 = 0;

/// The number of nobody: the containers that manage found untrue are nobody's.
const NOBODY: u32 = u32::MAX;

/// Ranges of container numbers that a put key keeps: it lists no container of older ones.
const RANGES_KEPT: usize = 8;

/// Sets of a put key at most.
pub(crate) const SETS_MAX: usize = 256;

/// Put keys of an archive at most, removed ones too.
pub(crate) const PUT_KEYS_MAX: usize = 4096;

/// A put key, as the archive knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutKey {
    /// The key by which its signatures are told.
    pub public: [u8; 32],
    /// What people call it.
    pub name: String,
    /// The sets that it may add snapshots to.
    pub sets: Vec<String>,
    /// Nothing that it signs counts any more.
    pub is_removed: bool,
    /// Frames that it signed and that did more than it may, or what can't be.
    pub refused: u64,
    /// The newest ranges of container numbers that it took: the first one, and the end.
    ranges: Vec<(u64, u64)>,
}

/// What the log knows of put keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roles {
    /// The put keys by their numbers, from 1 on. A number never comes again.
    pub keys: Map<u32, PutKey>,
    /// Frames of nobody who is known.
    pub refused: u64,
    /// All containers that were listed up to here were read by manage. Those that were found untrue are in
    /// `listed`, as nobody's.
    pub proven: u64,
    /// Who listed containers that are not proven, or that no snapshot names yet.
    listed: Map<ContainerId, u32>,
    /// Snapshots that manage has not looked through, and who made them.
    pub unproven: Map<SnapshotId, u32>,
}

/// Why a frame of a put key counts for nothing.
pub(crate) type Refusal = &'static str;

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

    /// Who listed a container that is not proven or not finished; `None` of all others, which are manage's
    /// or proven.
    #[cfg(test)]
    pub(crate) fn owner(&self, container: ContainerId) -> Option<u32> {
        self.listed.get(&container).copied()
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

    /// The containers of put keys that manage has not read, with the frames that listed them unknown.
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
        w.u32(self.unproven.len() as u32);
        for (id, owner) in &self.unproven {
            w.raw(&id.0).u32(*owner);
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
        for _ in 0..r.count(20, ID_MEMORY)? {
            roles.unproven.insert(SnapshotId(r.array()?), r.u32()?);
        }
        Ok(roles)
    }
}

/// What the records of a put key leave to be noted, once they are applied.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    ranges: Vec<(u64, u64)>,
    listed: Vec<ContainerId>,
    snapshots: Vec<SnapshotId>,
}

impl Tables {
    /// The kinds of these tables as one number, which is signed with them.
    pub(crate) fn kind_bits(&self) -> u64 {
        let all = [
            self.late,
            self.trees,
            self.leaves,
            self.on_demand,
            self.clones,
            self.has_domains,
            self.heads,
            self.roles.is_some(),
        ];
        all.into_iter().rev().fold(0, |bits, is| bits << 1 | u64::from(is))
    }

    /// Judges the records of a put key: says what is to be noted of them, or why none of them counts. What
    /// is left to the tables is whether they fit together.
    pub(crate) fn judge_put(
        &self,
        number: u32,
        records: &[Record],
    ) -> std::result::Result<Notes, Refusal> {
        let roles = self.roles.as_ref().ok_or("the archive has no roles")?;
        let key = roles.key(number).ok_or("no put key has this number")?;
        let mut judge = Judging {
            tables: self,
            roles,
            key,
            number,
            notes: Notes::default(),
            places: Vec::new(),
            next_id: self.next_id,
            next_segment: self.next_segment,
        };
        records.iter().try_for_each(|record| judge.record(record))?;
        judge.places()?;
        Ok(judge.notes)
    }

    /// Notes what a put key did by records that were applied.
    pub(crate) fn note_put(&mut self, number: u32, notes: Notes) {
        let Some(roles) = &mut self.roles else { return };
        for id in notes.listed {
            roles.listed.insert(id, number);
        }
        for id in notes.snapshots {
            roles.unproven.insert(id, number);
        }
        if let Some(key) = roles.keys.get_mut(&number) {
            key.ranges.extend(notes.ranges);
            let old = key.ranges.len().saturating_sub(RANGES_KEPT);
            key.ranges.drain(..old);
        }
    }

    /// A frame counts for nothing: its place in the order of changes is taken.
    pub(crate) fn pass_over(&mut self, sequence: u64, number: u32) {
        self.sequence = sequence;
        let Some(roles) = &mut self.roles else { return };
        match roles.keys.get_mut(&number) {
            Some(key) => key.refused = key.refused.saturating_add(1),
            None => roles.refused = roles.refused.saturating_add(1),
        }
    }

    /// Applies a record of put keys, which manage alone signs.
    pub(super) fn apply_roles(&mut self, record: Record) -> Result<()> {
        let none = || corrupt("the log changes put keys, and the archive has none");
        let roles = self.roles.as_mut().ok_or_else(none)?;
        match record {
            Record::PutKeyAdded { number, public, name, sets } => {
                if number != roles.next_key() || sets.len() > SETS_MAX {
                    return Err(corrupt("the log adds a put key that can't be"));
                }
                let (is_removed, refused, ranges) = (false, 0, Vec::new());
                roles
                    .keys
                    .insert(number, PutKey { public, name, sets, is_removed, refused, ranges });
            }
            Record::PutKeyRemoved { number } => {
                let gone = || corrupt("the log removes a put key that is not there");
                roles.keys.get_mut(&number).ok_or_else(gone)?.is_removed = true;
            }
            Record::Proven { upto, untrue, snapshots } => {
                roles.proven = roles.proven.max(upto);
                for id in untrue {
                    roles.listed.insert(id, NOBODY);
                }
                for id in snapshots {
                    roles.unproven.remove(&id);
                }
                let mut done = Vec::new();
                for (id, owner) in &roles.listed {
                    let logged = self.containers.get(id)?.map(|container| container.logged);
                    let is_there = logged.is_some();
                    let is_proven = logged.is_none_or(|logged| logged <= roles.proven);
                    let is_kept = *owner == NOBODY || self.unfinished.contains_key(id);
                    if !is_there || is_proven && !is_kept {
                        done.push(*id);
                    }
                }
                done.iter().for_each(|id| {
                    roles.listed.remove(id);
                });
            }
            _ => {}
        }
        Ok(())
    }

    /// True when a snapshot that is gone was counted, so that its references are to be taken away. One that
    /// nobody had looked through was not: what is to be counted for it goes with it.
    pub(super) fn was_counted(&mut self, gone: &Snapshot) -> bool {
        let Some(roles) = &mut self.roles else { return true };
        if roles.unproven.remove(&gone.id).is_none() {
            return true;
        }
        let (of, mut is_left) = (roots(gone), true);
        let mut left = List::default();
        left.extend(
            self.differences
                .iter()
                .filter(|one| {
                    let is_it = is_left && one.added && one.nodes && one.recipe == of;
                    is_left &= !is_it;
                    !is_it
                })
                .cloned(),
        );
        self.differences = left;
        false
    }
}

/// Looks at the records of one frame, in their order.
struct Judging<'a> {
    tables: &'a Tables,
    roles: &'a Roles,
    key: &'a PutKey,
    number: u32,
    notes: Notes,
    /// Where the containers of this frame lie: segment, first byte and end.
    places: Vec<(u32, u64, u64)>,
    next_id: u64,
    next_segment: u32,
}

impl Judging<'_> {
    fn record(&mut self, record: &Record) -> std::result::Result<(), Refusal> {
        match record {
            Record::Reserved { owner: Owner::Ingest, first, count, segment, class } => {
                // Not more than others do, and where everybody goes on.
                if class.0 != Class::Plain || first.0 != self.next_id || *count > ID_RANGE {
                    return Err("it takes numbers that are not the next ones");
                }
                self.next_id = first.0.saturating_add(*count);
                if let Some(segment) = segment {
                    if *segment != self.next_segment {
                        return Err("it takes a segment that is not the next one");
                    }
                    self.next_segment = segment.saturating_add(1);
                }
                if *count > 0 {
                    self.notes.ranges.push((first.0, self.next_id));
                }
                Ok(())
            }
            Record::Unfinished { containers, .. } => self.containers(containers),
            Record::Abandoned { containers } => {
                containers.iter().try_for_each(|id| self.own_unfinished(*id))
            }
            Record::SnapshotMade { snapshot, containers, finished } => {
                self.snapshot(snapshot)?;
                finished.iter().try_for_each(|id| self.own_unfinished(*id))?;
                self.notes.snapshots.push(snapshot.id);
                self.containers(containers)
            }
            _ => Err("a put key may add snapshots, and nothing else"),
        }
    }

    fn containers(&mut self, containers: &[Stored]) -> std::result::Result<(), Refusal> {
        containers.iter().try_for_each(|stored| self.container(stored))
    }

    /// A new container: of a number that this key took, behind all others of its segment.
    fn container(&mut self, stored: &Stored) -> std::result::Result<(), Refusal> {
        let new = &self.notes.ranges;
        let mut ranges = self.key.ranges.iter().chain(new);
        if !ranges.any(|(first, end)| (*first..*end).contains(&stored.id.0)) {
            return Err("it lists a container of a number that it did not take");
        }
        if stored.domain != FIRST_DOMAIN {
            return Err("it lists a container of another domain");
        }
        let place = &stored.place;
        if !place.at.is_multiple_of(PLACE_ALIGN) || place.bytes == 0 {
            return Err("it lists a container that lies nowhere");
        }
        let end = place.at.saturating_add(self.tables.taken(place));
        self.places.push((place.segment, place.at, end));
        self.notes.listed.push(stored.id);
        Ok(())
    }

    /// The containers of the frame lie behind all others of their segments, and none over another one.
    /// Otherwise its place would be freed one day, with what others have there.
    fn places(&mut self) -> std::result::Result<(), Refusal> {
        self.places.sort_unstable();
        let mut last = None;
        for &(segment, at, end) in &self.places {
            let from = match (last, self.tables.segments.get(&segment)) {
                (Some((same, end)), _) if same == segment => end,
                (_, Some(known)) if known.owner == Owner::Ingest => known.end,
                // One that this frame takes.
                (_, None) if (self.tables.next_segment..self.next_segment).contains(&segment) => 0,
                _ => return Err("it lists a container in a segment of somebody else"),
            };
            if at < from {
                return Err("it lists a container where others lie");
            }
            last = Some((segment, end));
        }
        Ok(())
    }

    fn own_unfinished(&self, id: ContainerId) -> std::result::Result<(), Refusal> {
        let is_own = self.roles.listed.get(&id) == Some(&self.number)
            && self.tables.unfinished.contains_key(&id);
        if is_own { Ok(()) } else { Err("it names a container of somebody else as its own") }
    }

    fn snapshot(&self, snapshot: &Snapshot) -> std::result::Result<(), Refusal> {
        if !self.key.sets.contains(&snapshot.set) {
            return Err("it adds a snapshot to a set of somebody else");
        }
        // Checkpoints are out of lists from the beginning.
        let is_checkpoint = snapshot.completeness == Completeness::Checkpoint;
        if snapshot.domain != FIRST_DOMAIN || snapshot.forgotten.is_some() != is_checkpoint {
            return Err("it adds a snapshot that is gone");
        }
        let of_set = self.tables.snapshots.listed().filter(|one| one.set == snapshot.set);
        if of_set.map(|one| one.ended).max().is_some_and(|last| snapshot.ended < last) {
            // What retention keeps of a period that is over stays what it was.
            return Err("it adds a snapshot before the last one of its set");
        }
        let own = snapshot.long_texts();
        let all = || self.tables.snapshots.values().map(Snapshot::long_texts).sum::<u64>();
        if own > 0 && all().saturating_add(own) > TEXTS_IN_ALL {
            return Err("it adds a snapshot with more paths and tags than there is memory for");
        }
        Ok(())
    }
}

/// The error of a put key that is refused.
pub(crate) fn refused(why: Refusal) -> Error {
    Error::new(
        Kind::Denied,
        format!(
            "this is a put key, which may add snapshots to its own sets and nothing else: {why}"
        ),
    )
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
        roles.unproven.extend([(SnapshotId([4; 16]), 1)]);
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
        assert_eq!(roles.owner(ContainerId(2)), Some(2));
    }
}
