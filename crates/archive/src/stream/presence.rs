//! Chunks looked up by their fingerprints alone, beside the session that places a stream: what the archive
//! has need not be read where it comes from.
//!
//! An answer is what the session itself would find: a chunk that its container shows, neither condemned nor
//! damaged. It holds until the session ends, as that is in its epoch, and a collection looks again at what
//! was named before it drops anything. How long a chunk is comes from the metadata of its container here,
//! never from whoever asks: a map that says another length would have other bytes than its chunks.

use std::sync::Arc;

use onefold_core::{Fingerprint, Result};
use parking_lot::Mutex;

use super::{ingest::Ingest, session::Session};
use crate::{
    chunk_index::ByFingerprint,
    container::{ChunkReader, ContainerReader},
    filter_chain::{Answer, BATCH_CHUNKS, Query, address_of},
    format::{Address, damage::is_damage},
};

/// Where the archive has a chunk, and its bytes, as its container there says.
pub type StoredChunk = (Address, u32);

/// Looks for chunks on behalf of a session.
pub(crate) struct Presence {
    ingest: Arc<Ingest>,
    session: u64,
    /// Metadata that was read, and who reads it.
    containers: Mutex<(ChunkReader, ContainerReader)>,
}

impl Presence {
    /// `None` where bytes are compared, or where new chunks wait until they are sorted.
    pub(crate) fn of(session: &Session) -> Option<Presence> {
        let is_by_fingerprint = !session.compares && session.gathered.is_none();
        is_by_fingerprint.then(|| {
            let mut chunks = ChunkReader::default();
            chunks.domain = Some(session.domain.number());
            let containers = ContainerReader::new(session.ingest.archive.clone());
            Presence {
                ingest: session.ingest.clone(),
                session: session.number,
                containers: Mutex::new((chunks, containers)),
            }
        })
    }

    /// Where each chunk is, and its bytes; nothing where it is not, and where its container is not in the log
    /// yet, so that its length is not known.
    pub(crate) fn find(&self, fingerprints: &[Fingerprint]) -> Result<Vec<Option<StoredChunk>>> {
        let found = find(&self.ingest, self.session, fingerprints)?;
        let (chunks, containers) = &mut *self.containers.lock();
        let tables = self.ingest.archive.tables();
        let mut with_bytes = |(at, of): (Option<Address>, &Fingerprint)| {
            let Some(at) = at else { return Ok(None) };
            match chunks.find(&tables, containers, at) {
                Ok(Some((_, metadata, n))) => {
                    let chunk = metadata.chunks.get(n).filter(|chunk| chunk.fingerprint == *of);
                    Ok(chunk.map(|chunk| (at, chunk.bytes)))
                }
                Ok(None) => Ok(None),
                Err(error) if is_damage(&error) => Ok(None),
                Err(error) => Err(error),
            }
        };
        found.into_iter().zip(fingerprints).map(&mut with_bytes).collect()
    }
}

impl Session {
    /// Where the archive has chunks, by their fingerprints alone, and their bytes: neither condemned nor damaged,
    /// and not freed before the session ends. Nothing is found where bytes count too, and what is not in the
    /// log yet.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn stored(&self, of: &[Fingerprint]) -> Result<Vec<Option<StoredChunk>>> {
        Presence::of(self).map_or_else(|| Ok(vec![None; of.len()]), |presence| presence.find(of))
    }
}

fn find(
    ingest: &Ingest,
    session: u64,
    fingerprints: &[Fingerprint],
) -> Result<Vec<Option<Address>>> {
    let mut found = Vec::with_capacity(fingerprints.len());
    for part in fingerprints.chunks(BATCH_CHUNKS) {
        let lookup = &mut *ingest.lookup.lock();
        ingest.renew(lookup)?;
        let query = |&fingerprint| Query {
            fingerprint,
            bytes: &[],
            answer: Answer::WeakMaybe,
            certain: false,
        };
        let mut queries: Vec<Query<'_>> = part.iter().map(query).collect();
        lookup.chain.look_up(&mut queries, &[], session, &ByFingerprint::default())?;
        let mut auxiliary = ingest.auxiliary.lock();
        for query in &queries {
            let address = address_of(query.answer);
            if let Some(address) = address {
                auxiliary.name(address.container, session);
            }
            found.push(address);
        }
    }
    Ok(found)
}
