//! Fingerprints of the containers that were found lately.

use std::collections::{HashMap, VecDeque};

use onefold_core::Fingerprint;

use crate::{
    chunk_index::ByFingerprint,
    format::{Address, ContainerId, container::Metadata, damage::is_condemned},
    tables::Map,
};

/// Chunks of 8 KiB in a container.
const CHUNKS_USUAL: usize = 512;

/// Fingerprints of the containers read last.
pub(crate) struct ContainerCache {
    most: usize,
    /// Fingerprints in it: as many as containers of usual chunks have, so that small chunks take
    /// no more memory.
    chunks: usize,
    /// The containers' chunks that can be taken, by their addresses.
    containers: HashMap<ContainerId, Vec<(Address, Fingerprint)>>,
    /// The container that showed a fingerprint last, and the address in it.
    by_fingerprint: ByFingerprint<(ContainerId, Address)>,
    /// The oldest first; one that is used again stands at the end too.
    order: VecDeque<ContainerId>,
    uses: HashMap<ContainerId, u32>,
}

impl ContainerCache {
    /// A cache for `most` containers.
    #[must_use]
    pub(crate) fn new(most: usize) -> ContainerCache {
        ContainerCache {
            most: most.max(1),
            chunks: 0,
            containers: HashMap::new(),
            by_fingerprint: ByFingerprint::default(),
            order: VecDeque::new(),
            uses: HashMap::new(),
        }
    }

    pub(super) fn holds(&self, container: ContainerId) -> bool {
        self.containers.contains_key(&container)
    }

    /// Takes in the chunks of a container that are not `closed` to puts: maps with a bit for each
    /// chunk.
    pub(super) fn insert(
        &mut self,
        metadata: Metadata,
        closed: &[Option<&Map<ContainerId, Vec<u8>>>],
    ) {
        let more = metadata.chunks.len();
        while self.containers.len() >= self.most
            || (self.chunks + more > self.most * CHUNKS_USUAL && self.chunks > 0)
        {
            self.evict();
        }
        let id = metadata.id;
        let bits: Vec<&Vec<u8>> =
            closed.iter().flatten().filter_map(|closed| closed.get(&id)).collect();
        let open = metadata
            .chunks
            .iter()
            .enumerate()
            .filter(|(n, _)| !bits.iter().any(|bits| is_condemned(bits, *n)));
        let chunks: Vec<(Address, Fingerprint)> =
            open.map(|(_, chunk)| (chunk.first, chunk.fingerprint)).collect();
        for &(address, fingerprint) in &chunks {
            self.by_fingerprint.insert(fingerprint, (id, address));
        }
        self.chunks += chunks.len();
        if let Some(before) = self.containers.insert(id, chunks) {
            self.chunks -= before.len();
        }
        self.touch(id);
    }

    fn touch(&mut self, id: ContainerId) {
        if self.order.back() != Some(&id) {
            self.order.push_back(id);
            *self.uses.entry(id).or_default() += 1;
        }
        // Containers that are used over and over leave old entries behind in `order`.
        while self.order.len() > 4 * self.most {
            self.drop_oldest_use();
        }
    }

    fn drop_oldest_use(&mut self) -> Option<ContainerId> {
        let id = self.order.pop_front()?;
        let uses = self.uses.get_mut(&id)?;
        *uses -= 1;
        if *uses > 0 {
            return None;
        }
        self.uses.remove(&id);
        let gone = self.containers.remove(&id).unwrap_or_default();
        self.chunks -= gone.len();
        for (_, fingerprint) in gone {
            if self.by_fingerprint.get(&fingerprint).is_some_and(|(container, _)| *container == id)
            {
                self.by_fingerprint.remove(&fingerprint);
            }
        }
        Some(id)
    }

    fn evict(&mut self) {
        while !self.order.is_empty() && self.drop_oldest_use().is_none() {}
    }

    /// True when the container shows the fingerprint at the address, and the chunk may be taken.
    pub(super) fn shows(
        &self,
        home: ContainerId,
        fingerprint: &Fingerprint,
        address: Address,
    ) -> bool {
        let Some(chunks) = self.containers.get(&home) else { return false };
        chunks
            .binary_search_by_key(&address, |chunk| chunk.0)
            .is_ok_and(|n| chunks[n].1 == *fingerprint)
    }

    pub(super) fn find(&mut self, fingerprint: &Fingerprint) -> Option<Address> {
        let &(container, address) = self.by_fingerprint.get(fingerprint)?;
        self.touch(container);
        Some(address)
    }
}
