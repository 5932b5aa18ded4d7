//! The auxiliary index: chunks whose containers are not listed yet, and those that are not imported yet.
//!
//! *Invariant:* an entry of a container that is not listed is never dropped and never written to the disk.

use std::{
    collections::{BTreeMap, HashMap},
    hash::{BuildHasherDefault, Hasher},
};

use onefold_core::Fingerprint;

use super::file::Entry;
use crate::format::{Address, ContainerId};

/// A fingerprint is a hash already.
#[derive(Default)]
pub struct Prefix(u64);

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
pub type ByFingerprint<T> = HashMap<Fingerprint, T, BuildHasherDefault<Prefix>>;

/// The index in memory.
#[derive(Default)]
pub struct Auxiliary {
    entries: ByFingerprint<Address>,
    /// Containers that are listed, and by which frame.
    listed: BTreeMap<ContainerId, u64>,
    /// Entries of listed containers.
    listed_entries: usize,
    /// From this container on they are this session's own, and need no look.
    own_from: Option<ContainerId>,
}

impl Auxiliary {
    /// The address of a chunk, and whether it is certain.
    #[must_use]
    pub fn find(&self, fingerprint: &Fingerprint) -> Option<(Address, bool)> {
        let address = *self.entries.get(fingerprint)?;
        Some((address, self.is_own(address.container)))
    }

    /// True when this session made the container.
    #[must_use]
    pub fn is_own(&self, container: ContainerId) -> bool {
        self.own_from.is_some_and(|first| container >= first)
    }

    /// True when the container is listed.
    #[must_use]
    pub fn is_listed(&self, container: ContainerId) -> bool {
        self.listed.contains_key(&container)
    }

    /// Learns a new chunk.
    pub fn insert(&mut self, fingerprint: Fingerprint, address: Address) {
        self.own_from.get_or_insert(address.container);
        self.entries.insert(fingerprint, address);
    }

    /// Takes in what an earlier session listed.
    pub(crate) fn load(&mut self, container: ContainerId, logged: u64, entries: impl Iterator<Item = Entry>) {
        for (fingerprint, address) in entries {
            self.entries.insert(fingerprint, address);
            self.listed_entries += 1;
            // After a merge the addresses are those of several containers.
            self.listed.insert(address.container, logged);
        }
        self.listed.insert(container, logged);
    }

    /// The containers are listed, by the frame `sequence`.
    pub(crate) fn list(&mut self, containers: impl Iterator<Item = (ContainerId, u32)>, sequence: u64) {
        for (id, chunks) in containers {
            self.listed.insert(id, sequence);
            self.listed_entries += chunks as usize;
        }
    }

    /// Entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True when it holds nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Entries that may be written.
    #[must_use]
    pub fn listed_len(&self) -> usize {
        self.listed_entries
    }

    /// The entries that may be written, and the place in the log up to which they are all.
    pub(crate) fn listed(&self) -> (Vec<Entry>, u64) {
        let upto = self.listed.values().copied().max().unwrap_or(0);
        let entries = self.entries.iter().filter(|(_, address)| self.listed.contains_key(&address.container));
        (entries.map(|(&fingerprint, &address)| (fingerprint, address)).collect(), upto)
    }

    /// Drops what was written up to this place.
    pub(crate) fn forget_listed(&mut self, upto: u64) {
        let gone: BTreeMap<ContainerId, u64> = self.listed.iter().filter(|(_, at)| **at <= upto).map(|(&id, &at)| (id, at)).collect();
        self.entries.retain(|_, address| !gone.contains_key(&address.container));
        self.listed.retain(|id, _| !gone.contains_key(id));
        self.listed_entries = self.entries.values().filter(|address| self.listed.contains_key(&address.container)).count();
    }
}
