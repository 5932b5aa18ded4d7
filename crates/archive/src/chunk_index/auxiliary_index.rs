//! The auxiliary index: chunks whose containers are not listed yet, and those that are not imported
//! yet.
//!
//! *Invariant:* an entry of a container that is not listed is never dropped and never written to
//! the disk.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    hash::{BuildHasherDefault, Hasher},
};

use onefold_core::Fingerprint;

use super::file::Entry;
use crate::format::{Address, ContainerId};

/// Other addresses that are kept of a chunk. Those beyond it cost a duplicate at most.
const OTHERS_MAX: usize = 8;

/// A fingerprint is a hash already.
#[derive(Default)]
pub(crate) struct Prefix(u64);

impl Hasher for Prefix {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        // The array's length comes as a number of its own, which changes nothing.
        if let Some(first) = bytes.first_chunk::<8>() {
            self.0 ^= u64::from_le_bytes(*first);
        }
    }

    fn write_usize(&mut self, _: usize) {}
}

/// A map from fingerprints.
pub(crate) type ByFingerprint<T> = HashMap<Fingerprint, T, BuildHasherDefault<Prefix>>;

/// The index in memory.
#[derive(Default)]
pub(crate) struct Auxiliary {
    entries: ByFingerprint<Address>,
    /// Other addresses of the same chunks: two sessions stored one at a time, neither knowing of the
    /// other. Either may be given up, and they are listed by different frames.
    twice: ByFingerprint<Vec<Address>>,
    /// Containers that are listed, and by which frame.
    listed: BTreeMap<ContainerId, u64>,
    /// Entries of listed containers.
    listed_entries: usize,
    /// The containers of sessions that go on.
    making: HashMap<ContainerId, Making>,
}

/// A container of a session that goes on.
struct Making {
    session: u64,
    /// The next commit of any session makes it durable.
    written: bool,
    /// Another session took duplicates from it.
    named: bool,
}

impl Auxiliary {
    /// The address of a chunk, and whether it is certain for this session. Chunks that another
    /// session has not written yet are not found.
    #[must_use]
    pub(crate) fn find(&self, fingerprint: &Fingerprint, session: u64) -> Option<(Address, bool)> {
        let address = *self.entries.get(fingerprint)?;
        match self.making.get(&address.container) {
            None => Some((address, false)),
            Some(making) if making.session == session => Some((address, true)),
            // Once it is listed it may be condemned.
            Some(making) => {
                making.written.then(|| (address, !self.listed.contains_key(&address.container)))
            }
        }
    }

    /// True when the session made the container, and goes on.
    #[must_use]
    pub(crate) fn is_own(&self, container: ContainerId, session: u64) -> bool {
        self.making.get(&container).is_some_and(|making| making.session == session)
    }

    /// True when the container is listed.
    #[must_use]
    pub(crate) fn is_listed(&self, container: ContainerId) -> bool {
        self.listed.contains_key(&container)
    }

    /// Learns a new chunk of a session.
    pub(crate) fn insert(&mut self, fingerprint: Fingerprint, address: Address, session: u64) {
        self.making.entry(address.container).or_insert(Making {
            session,
            written: false,
            named: false,
        });
        let before = self.entries.insert(fingerprint, address);
        self.keep_other(fingerprint, before, address);
    }

    /// Keeps the address that a chunk had before, unless that was in the same container.
    fn keep_other(&mut self, fingerprint: Fingerprint, before: Option<Address>, now: Address) {
        let Some(before) = before.filter(|before| before.container != now.container) else {
            return;
        };
        let others = self.twice.entry(fingerprint).or_default();
        others.retain(|other| other.container != now.container);
        // A stranger's archive may have one chunk in each of its containers.
        if others.len() == OTHERS_MAX {
            others.remove(0);
        }
        others.push(before);
    }

    /// The container is written.
    pub(crate) fn written(&mut self, container: ContainerId) {
        if let Some(making) = self.making.get_mut(&container) {
            making.written = true;
        }
    }

    /// The session names a chunk of the container.
    pub(crate) fn name(&mut self, container: ContainerId, session: u64) {
        if let Some(making) = self.making.get_mut(&container) {
            making.named |= making.session != session;
        }
    }

    /// Ends a session: forgets the containers that it did not write.
    pub(crate) fn end(&mut self, session: u64) {
        let own = |making: &Making| making.session == session;
        let gone: BTreeSet<_> = self
            .making
            .iter()
            .filter(|(_, making)| own(making) && !making.written)
            .map(|(&id, _)| id)
            .collect();
        self.making.retain(|_, making| !own(making));
        if !gone.is_empty() {
            self.forget(&gone);
        }
    }

    /// A session gives up its containers: nobody finds their chunks any more. Returns those that
    /// other sessions took duplicates from, which stay.
    pub(crate) fn abandon(&mut self, session: u64) -> Vec<ContainerId> {
        let own = |making: &Making| making.session == session;
        let named = self
            .making
            .iter()
            .filter(|(_, making)| own(making) && making.named)
            .map(|(&id, _)| id)
            .collect();
        let gone: Vec<ContainerId> = self
            .making
            .iter()
            .filter(|(_, making)| own(making) && !making.named)
            .map(|(&id, _)| id)
            .collect();
        self.forget(&gone.into_iter().collect());
        named
    }

    /// Forgets the containers that are not listed.
    pub(crate) fn lose(&mut self) {
        let gone = self.making.keys().filter(|id| !self.listed.contains_key(id)).copied().collect();
        self.forget(&gone);
    }

    fn forget(&mut self, gone: &BTreeSet<ContainerId>) {
        self.twice.retain(|_, others| {
            others.retain(|other| !gone.contains(&other.container));
            !others.is_empty()
        });
        let twice = &mut self.twice;
        self.entries.retain(|fingerprint, address| {
            if gone.contains(&address.container) {
                let other = twice.get_mut(fingerprint).and_then(Vec::pop);
                return other.map(|other| *address = other).is_some();
            }
            true
        });
        self.listed.retain(|id, _| !gone.contains(id));
        self.listed_entries = self
            .entries
            .values()
            .filter(|address| self.listed.contains_key(&address.container))
            .count();
    }

    /// Takes in a container that an earlier session listed.
    pub(crate) fn load(
        &mut self,
        container: ContainerId,
        logged: u64,
        entries: impl Iterator<Item = Entry>,
    ) {
        for (fingerprint, address) in entries {
            let before = self.entries.insert(fingerprint, address);
            let was_listed = before.is_some_and(|before| self.is_listed(before.container));
            self.listed_entries += usize::from(!was_listed);
            self.keep_other(fingerprint, before, address);
            // After a merge the addresses are those of several containers.
            self.listed.insert(address.container, logged);
        }
        self.listed.insert(container, logged);
    }

    /// The containers are listed, by the frame `sequence`.
    pub(crate) fn list(
        &mut self,
        containers: impl Iterator<Item = (ContainerId, u32)>,
        sequence: u64,
    ) {
        for (id, chunks) in containers {
            self.listed.insert(id, sequence);
            self.listed_entries += chunks as usize;
        }
    }

    /// Entries that may be written.
    #[must_use]
    pub(crate) fn listed_len(&self) -> usize {
        self.listed_entries
    }

    /// The entries that may be written, and the place in the log up to which they are all.
    pub(crate) fn listed(&self) -> (Vec<Entry>, u64) {
        let upto = self.listed.values().copied().max().unwrap_or(0);
        (self.listed_upto(upto), upto)
    }

    /// The frames that list a chunk up to this one, with its address in the container that each lists.
    fn frames_of<'a>(
        &'a self,
        fingerprint: &Fingerprint,
        address: &'a Address,
        upto: u64,
    ) -> impl Iterator<Item = (u64, Address)> + use<'a> {
        let others = self.twice.get(fingerprint).into_iter().flatten();
        let listed = |at: &Address| Some((*self.listed.get(&at.container)?, *at));
        others.chain([address]).filter_map(listed).filter(move |(frame, _)| *frame <= upto)
    }

    /// Each chunk that a container has which the log lists up to this frame, with its newest address there. What
    /// is imported up to a frame has all that the log lists up to there.
    fn listed_upto(&self, upto: u64) -> Vec<Entry> {
        let newest = |(fingerprint, address)| {
            let frames = self.frames_of(fingerprint, address, upto);
            frames.max_by_key(|(frame, _)| *frame).map(|(_, newest)| (*fingerprint, newest))
        };
        self.entries.iter().filter_map(newest).collect()
    }

    /// The oldest entries that may be written: those of the first frames of the log that list `most`
    /// of them together. With the last of these frames; `None` when they are all.
    pub(crate) fn oldest_listed(&self, most: usize) -> (Vec<Entry>, Option<u64>) {
        let mut of_frames: BTreeMap<u64, usize> = BTreeMap::new();
        for (fingerprint, address) in &self.entries {
            let frames = self.frames_of(fingerprint, address, u64::MAX);
            if let Some(first) = frames.map(|(frame, _)| frame).min() {
                *of_frames.entry(first).or_default() += 1;
            }
        }
        let (mut count, mut last, mut all) = (0, None, true);
        for (at, entries) in of_frames {
            if count >= most {
                all = false;
                break;
            }
            (count, last) = (count + entries, Some(at));
        }
        (last.map_or_else(Vec::new, |last| self.listed_upto(last)), last.filter(|_| !all))
    }

    /// Drops entries that the log lists up to this place.
    pub(crate) fn forget_listed(&mut self, upto: u64) {
        let gone = self.listed.iter().filter(|(_, at)| **at <= upto).map(|(&id, _)| id).collect();
        self.forget(&gone);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two sessions store a chunk at a time. The container of the first is listed and imported while the
    /// other one is still at work: the import has the chunk, also when the other one then gives up.
    #[test]
    fn a_chunk_that_two_sessions_stored_is_imported_with_the_first() {
        for portions in [false, true] {
            let chunk = Fingerprint([7; 16]);
            let mut auxiliary = Auxiliary::default();
            for session in [1, 2] {
                let address = Address { container: ContainerId(session), slot: 0 };
                auxiliary.insert(chunk, address, session);
                auxiliary.written(ContainerId(session));
            }
            auxiliary.list([(ContainerId(1), 1)].into_iter(), 9);
            auxiliary.end(1);
            let entries =
                if portions { auxiliary.oldest_listed(1).0 } else { auxiliary.listed().0 };
            assert_eq!(entries, [(chunk, Address { container: ContainerId(1), slot: 0 })]);
            auxiliary.forget_listed(9);
            assert!(auxiliary.find(&chunk, 2).is_some());
            assert!(auxiliary.abandon(2).is_empty());
            assert!(auxiliary.entries.is_empty() && auxiliary.twice.is_empty());
        }
    }

    /// Of two listed containers with a chunk, an import has the newest that the log lists up to its place.
    #[test]
    fn an_import_has_the_newest_address_up_to_its_place() {
        let (chunk, at) =
            (Fingerprint([7; 16]), |id| Address { container: ContainerId(id), slot: 0 });
        let mut auxiliary = Auxiliary::default();
        for (id, frame) in [(1, 9), (2, 12)] {
            auxiliary.load(ContainerId(id), frame, [(chunk, at(id))].into_iter());
        }
        auxiliary.load(ContainerId(3), 10, [(Fingerprint([8; 16]), at(3))].into_iter());
        assert!(auxiliary.listed().0.contains(&(chunk, at(2))));
        assert_eq!(auxiliary.oldest_listed(1), (vec![(chunk, at(1))], Some(9)));
        auxiliary.forget_listed(9);
        assert!(auxiliary.oldest_listed(9).0.contains(&(chunk, at(2))));
    }

    /// Two sessions store a chunk at a time; whichever is given up, the other one's is found.
    #[test]
    fn a_chunk_that_two_sessions_stored_outlives_either() {
        for given_up in [1, 2] {
            let chunk = Fingerprint([7; 16]);
            let mut auxiliary = Auxiliary::default();
            for session in [1, 2] {
                let address = Address { container: ContainerId(session), slot: 0 };
                auxiliary.insert(chunk, address, session);
                auxiliary.written(ContainerId(session));
            }
            assert!(auxiliary.abandon(given_up).is_empty());
            let left = ContainerId(3 - given_up);
            auxiliary.list([(left, 1)].into_iter(), 9);
            auxiliary.end(3 - given_up);
            let (entries, upto) = auxiliary.listed();
            assert_eq!((entries.len(), entries[0].1.container, upto), (1, left, 9));
            auxiliary.forget_listed(9);
            assert!(auxiliary.entries.is_empty() && auxiliary.twice.is_empty());
        }
    }
}
