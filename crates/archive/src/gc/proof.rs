//! What put keys stored, read by manage before anything is made of it.
//!
//! A container is true when each of its chunks has the fingerprint under which it is found. Until then only
//! the key that listed it takes its chunks for duplicates. A snapshot is true when its root is one, when all
//! that its tree names is there, with its fingerprint, and when its totals are those of the tree. Until then
//! nothing is counted for it: it could name what somebody else stores later, and take that along when it goes.

use onefold_core::{Error, Kind, Result};

use super::collection::Collection;
use crate::{
    container::ChunkReader,
    format::{Address, backup::SnapshotId, domain::FIRST_DOMAIN, record::Record},
    operations_log::domain_of,
    stream::Ingest,
    tables::{Container, Tables},
    tree::{is_untrue, untrue as untrue_snapshot},
};

/// Snapshots that one frame tells of at most.
const SNAPSHOTS_MAX: usize = 1 << 16;

impl Collection {
    /// Reads what put keys stored since it was last read, and makes known what of it is true.
    pub(super) fn prove(&mut self) -> Result<()> {
        self.proofs += 1;
        let tables = self.archive.refresh()?;
        let Some(roles) = &tables.roles else { return Ok(()) };
        let mut reader = ChunkReader::default();
        reader.domain = Some(FIRST_DOMAIN);
        let (upto, mut untrue, mut read) = (tables.sequence, Vec::new(), 0);
        for id in roles.unread() {
            let container = match tables.containers.get(&id) {
                // Nobody can read it, so nobody says that it is true.
                Err(error) if is_untrue(&error) => {
                    untrue.push(id);
                    continue;
                }
                found => found?,
            };
            let Some(container) = container.filter(|found| found.logged > roles.proven) else {
                continue;
            };
            if self.is_true(&mut reader, &tables, &container)? {
                read += 1;
            } else {
                untrue.push(id);
            }
        }
        let (mut whole, mut others) = (Vec::new(), Vec::new());
        for (id, _) in roles.unproven.iter().take(SNAPSHOTS_MAX) {
            let Ok(snapshot) = tables.snapshots.get(id) else { continue };
            let containers = &self.rewriter.container_reader;
            match untrue_snapshot(&self.archive, &tables, containers, &mut self.whole, snapshot)? {
                None => whole.push(id),
                Some(why) => others.push((id, why)),
            }
        }
        self.done.proven += read;
        self.done.untrue += untrue.len() as u64;
        if read > 0 || !untrue.is_empty() || !whole.is_empty() {
            self.archive
                .commit(true, |_| Ok(vec![Record::Proven { upto, untrue, snapshots: whole }]))?;
            self.import_proven()?;
        }
        self.drop_others(&tables, &others)
    }

    /// Snapshots that are not true go by the operator's word.
    fn drop_others(&mut self, tables: &Tables, others: &[(SnapshotId, Error)]) -> Result<()> {
        let Some((id, why)) = others.first() else { return Ok(()) };
        if self.drops_untrue {
            let ids: Vec<SnapshotId> = others.iter().map(|(id, _)| *id).collect();
            self.done.untrue_snapshots += ids.len() as u64;
            // A backup may have dropped a checkpoint meanwhile.
            let drops = |now: &Tables| {
                let is_there = |id: &SnapshotId| now.snapshots.get(*id).is_ok();
                let ids: Vec<_> = ids.into_iter().filter(is_there).collect();
                Ok(if ids.is_empty() { Vec::new() } else { vec![Record::Expired { ids }] })
            };
            return self.archive.commit(true, drops).map(drop);
        }
        let owner = tables.roles.as_ref().and_then(|roles| {
            let number = roles.unproven.maker(*id)?;
            Some(format!("put key {number} ('{}')", roles.keys.get(&number)?.name.escape_debug()))
        });
        let set = tables.snapshots.get(*id).map_or("", |snapshot| &snapshot.set);
        Err(Error::new(
            Kind::Denied,
            format!(
                "snapshot {id} of set '{}', made by {}, names what is not there or can't be read ({why}): \
                 nothing is collected before somebody has looked; gc --drop-untrue drops such snapshots",
                set.escape_debug(),
                owner.as_deref().unwrap_or("a put key"),
            ),
        ))
    }

    /// Carries the proven containers into the chunk index, which put keys don't write. Somebody who stores
    /// just now does that later.
    fn import_proven(&self) -> Result<()> {
        match Ingest::begin(&self.archive, false, false) {
            Err(error) if error.kind() == Kind::Busy => Ok(()),
            begun => match begun?.import(true) {
                // Chunks are found in memory as before.
                Err(error) if error.kind() == Kind::NoSpace => Ok(()),
                imported => imported.map(drop),
            },
        }
    }

    /// True when a container is what it says: its chunks have their own addresses, one behind the other, and
    /// the fingerprints under which they are found.
    fn is_true(
        &mut self,
        reader: &mut ChunkReader,
        tables: &Tables,
        container: &Container,
    ) -> Result<bool> {
        let (id, containers) = (container.stored.id, &self.rewriter.container_reader);
        let domain = domain_of(&self.archive, FIRST_DOMAIN)?;
        let judged = containers.metadata(container).and_then(|metadata| {
            let own = |n: usize| u16::try_from(n).map(|slot| Address { container: id, slot });
            let mut chunks = metadata.chunks.iter().enumerate();
            if metadata.kind != container.stored.kind
                || !chunks.all(|(n, chunk)| own(n) == Ok(chunk.first))
            {
                return Ok(false);
            }
            let (first, mut is_true) = (Address { container: id, slot: 0 }, true);
            reader.run(tables, containers, first, metadata.chunks.len(), &mut |chunk, bytes| {
                is_true &= domain.fingerprinter.bytes(bytes) == chunk.fingerprint;
                Ok(())
            })?;
            Ok(is_true)
        });
        match judged {
            Err(error) if is_untrue(&error) => Ok(false),
            judged => judged,
        }
    }
}
