//! Chunks looked up by their fingerprints alone, beside the session that places a stream: what the archive
//! has need not be read where it comes from.
//!
//! An answer is what the session itself would find: a chunk that its container shows, neither condemned nor
//! damaged. It holds until the session ends, as that is in its epoch, and a collection looks again at what
//! was named before it drops anything.

use std::sync::Arc;

use onefold_core::{Fingerprint, Result};

use super::{ingest::Ingest, session::Session};
use crate::{
    chunk_index::ByFingerprint,
    filter_chain::{Answer, BATCH_CHUNKS, Query, address_of},
    format::Address,
};

/// Looks for chunks on behalf of a session.
pub(crate) struct Presence {
    ingest: Arc<Ingest>,
    session: u64,
}

impl Presence {
    /// `None` where bytes are compared, or where new chunks wait until they are sorted.
    pub(crate) fn of(session: &Session) -> Option<Presence> {
        let is_by_fingerprint = !session.compares && session.gathered.is_none();
        is_by_fingerprint
            .then(|| Presence { ingest: session.ingest.clone(), session: session.number })
    }

    /// Where each chunk is; nothing where it is not.
    pub(crate) fn find(&self, fingerprints: &[Fingerprint]) -> Result<Vec<Option<Address>>> {
        find(&self.ingest, self.session, fingerprints)
    }
}

impl Session {
    /// Where the archive has chunks, by their fingerprints alone: neither condemned nor damaged, and not
    /// freed before the session ends. Nothing is found where bytes count too.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn stored(&self, of: &[Fingerprint]) -> Result<Vec<Option<Address>>> {
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
