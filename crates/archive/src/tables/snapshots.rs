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
pub(super) const SNAPSHOT_MEMORY: usize = 704;

/// The first bytes of an id, by whose digits lists show a snapshot and people call it.
pub(super) const DIGITS: usize = 4;

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
    /// When each listed snapshot ended, with its number, in the series that it belongs to. It follows from
    /// `all`, so it is the same whether a process replayed the log or loaded a snapshot of the tables.
    ends: Map<(Series, u64, u64), ()>,
    /// Bytes of the long texts of all; it follows from `all` too.
    long_texts: u64,
}

/// The snapshots of one set of one host, one after the other: a hash of both names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Series([u8; 32]);

impl Series {
    fn of(host: &str, set: &str) -> Series {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&(host.len() as u64).to_le_bytes());
        hasher.update(host.as_bytes()).update(set.as_bytes());
        Series(*hasher.finalize().as_bytes())
    }
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
        self.all.values().inspect(|_| work::looked())
    }

    /// The snapshots that lists show, the oldest first.
    pub fn listed(&self) -> impl DoubleEndedIterator<Item = &Snapshot> {
        self.values().filter(|snapshot| snapshot.forgotten.is_none())
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

    /// When the last of the listed snapshots of this set of this host ended, in seconds since 1970; `None`
    /// when there is none.
    pub(crate) fn last_ended(&self, host: &str, set: &str) -> Option<u64> {
        let series = Series::of(host, set);
        let last = self.ends.at_most(&(series, u64::MAX, u64::MAX));
        last.map(|((of, ended, _), ())| (*of, *ended))
            .filter(|(of, _)| *of == series)
            .map(|it| it.1)
    }

    /// True when another snapshot, forgotten or listed, has the digits by which people call the one of this id.
    #[must_use]
    pub fn has_digits_of(&self, id: SnapshotId) -> bool {
        let mut last = SnapshotId([u8::MAX; 16]);
        last.0[..DIGITS].copy_from_slice(&id.0[..DIGITS]);
        let found = self.numbers.at_most(&last);
        found.is_some_and(|(other, _)| other.0[..DIGITS] == id.0[..DIGITS])
    }

    /// Bytes that the texts of all snapshots have beyond those that any may have.
    pub(crate) fn long_texts(&self) -> u64 {
        self.long_texts
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
        if let Some(before) = self.all.remove(&self.next) {
            self.numbers.remove(&before.id);
            self.went(self.next, &before);
        }
        self.came(self.next, &snapshot);
        self.all.insert(self.next, snapshot);
        self.numbers.insert(id, self.next);
        self.next = self.next.saturating_add(1);
        Ok(())
    }

    /// A snapshot joins those that there are.
    fn came(&mut self, number: u64, snapshot: &Snapshot) {
        self.long_texts = self.long_texts.saturating_add(snapshot.long_texts());
        if snapshot.forgotten.is_none() {
            self.ends.insert(end_of(number, snapshot), ());
        }
    }

    /// A snapshot is gone.
    fn went(&mut self, number: u64, snapshot: &Snapshot) {
        self.long_texts = self.long_texts.saturating_sub(snapshot.long_texts());
        self.ends.remove(&end_of(number, snapshot));
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
                    if let Some(one) = self.all.remove(&number) {
                        self.went(number, &one);
                        gone.push(one);
                    }
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
            if let Some(snapshot) = self.all.get_mut(&number) {
                change(snapshot);
                let end = end_of(number, snapshot);
                match snapshot.forgotten {
                    None => drop(self.ends.insert(end, ())),
                    Some(_) => drop(self.ends.remove(&end)),
                }
            }
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
        let mut snapshots = Snapshots { all, numbers, next, ..Snapshots::default() };
        let all = snapshots.all.clone();
        all.iter().for_each(|(&number, snapshot)| snapshots.came(number, snapshot));
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

fn end_of(number: u64, snapshot: &Snapshot) -> (Series, u64, u64) {
    (Series::of(&snapshot.host, &snapshot.set), snapshot.ended, number)
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

/// Counts how many snapshots were looked at one after the other; in tests alone.
mod work {
    #[cfg(test)]
    thread_local! {
        pub(super) static LOOKED: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
    }

    #[cfg(test)]
    pub(super) fn looked() {
        LOOKED.set(LOOKED.get() + 1);
    }

    #[cfg(not(test))]
    pub(super) fn looked() {}
}

/// How many snapshots this thread has looked at one after the other.
#[cfg(test)]
pub(super) fn looked_at() -> u64 {
    work::LOOKED.get()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
pub(super) mod tests {
    use super::*;
    use crate::format::ContainerId;

    /// A snapshot that ended at second 1,000.
    pub(in crate::tables) fn snapshot(id: [u8; 16], host: &str, set: &str) -> Snapshot {
        let address = Address { container: ContainerId(1), slot: 0 };
        Snapshot {
            id: SnapshotId(id),
            set: set.into(),
            domain: 0,
            host: host.into(),
            machine: [0; 16],
            paths: Vec::new(),
            tags: Vec::new(),
            began: 1_000,
            ended: 1_000,
            origin: crate::format::backup::Origin::Read(None),
            root: TreeNodeRef { address, fingerprint: onefold_core::Fingerprint([0; 16]) },
            stats: None,
            entries: 1,
            bytes: 1,
            added: 1,
            left_out: 0,
            completeness: Completeness::Whole,
            forgotten: None,
        }
    }

    /// What is kept beside the snapshots is what a look at all of them tells, however it came about.
    fn is_exact(snapshots: &Snapshots) {
        for (host, set) in [("a", "s"), ("a", "t"), ("b", "s"), ("", "as"), ("as", "")] {
            let of = snapshots.listed().filter(|one| one.host == host && one.set == set);
            assert_eq!(snapshots.last_ended(host, set), of.map(|one| one.ended).max());
        }
        let texts = snapshots.values().map(Snapshot::long_texts).sum::<u64>();
        assert_eq!(snapshots.long_texts(), texts);
        let mut w = Writer::default();
        snapshots.encode(&mut w, false);
        assert_eq!(&Snapshots::decode(&mut Reader(&w.0, None), None).unwrap(), snapshots);
    }

    #[test]
    fn rule_45_digits_are_taken_by_any_other_snapshot() {
        let mut snapshots = Snapshots::default();
        let id = |first: u8, last: u8| {
            let mut id = [7; 16];
            (id[3], id[15]) = (first, last);
            id
        };
        for (first, last) in [(0, 9), (5, 0), (5, 255), (255, 1)] {
            snapshots.made(snapshot(id(first, last), "a", "s")).unwrap();
        }
        let has = |first, last| snapshots.has_digits_of(SnapshotId(id(first, last)));
        for last in [0, 9, 255] {
            assert!(has(0, last) && has(5, last) && has(255, last));
            assert!(!has(1, last) && !has(4, last) && !has(6, last) && !has(254, last));
        }
        assert!(!Snapshots::default().has_digits_of(SnapshotId::default()));
    }

    #[test]
    fn rule_45_the_last_of_a_series_is_that_of_the_snapshots_that_are_listed_now() {
        let mut snapshots = Snapshots::default();
        is_exact(&snapshots);
        for (n, (host, set)) in
            (1..).zip([("a", "s"), ("b", "s"), ("a", "t"), ("a", "s"), ("a", "s")])
        {
            let long = vec![vec![b'p'; 1000 * usize::from(n)]; 3];
            let (ended, made) = (100 + u64::from(n), snapshot([n; 16], host, set));
            snapshots.made(Snapshot { ended, paths: long, ..made }).unwrap();
            is_exact(&snapshots);
        }
        let id = |n: u8| SnapshotId([n; 16]);
        assert_eq!(snapshots.last_ended("a", "s"), Some(105));
        for (record, last) in [
            (Record::Forgotten { ids: vec![id(5)], at: 1 }, Some(104)),
            (Record::ForgottenSeen { ids: vec![id(5)], at: 2 }, Some(104)),
            (Record::Forgotten { ids: vec![id(5), id(1)], at: 3 }, Some(104)),
            (Record::Expired { ids: vec![id(4)] }, None),
            (Record::Undeleted { ids: vec![id(1)] }, Some(101)),
            (Record::Undeleted { ids: vec![id(5)] }, Some(105)),
            (Record::Expired { ids: vec![id(5), id(1), id(2)] }, None),
        ] {
            snapshots.apply(record).unwrap();
            assert_eq!(snapshots.last_ended("a", "s"), last);
            is_exact(&snapshots);
        }
    }
}
