//! Snapshots that a put key made, before manage has said that they are true.
//!
//! Such a snapshot is whole when its root is one, when all that its tree names is there with its fingerprint, when
//! its pages are those that a backup makes, and when its totals are those of the tree. Then a check finds nothing
//! to say of it either. What it lacks is no damage: a put key may say what it likes.

use std::sync::Arc;

use onefold_core::{Error, Fingerprint, Kind, Result};

use super::judged::{TreeSource, Trees};
use crate::{
    container::{ChunkReader, ContainerReader},
    format::{
        Address, ContainerId,
        backup::Snapshot,
        bytes::corrupt,
        container::ContainerKind,
        domain::FIRST_DOMAIN,
        tree_node::{TreeNode, TreeNodeRef},
    },
    operations_log::{Archive, domain_of},
    tables::Tables,
};

/// Looks through the tree of a snapshot: `None` when it is whole, else what it lacks. `whole` has the nodes that
/// were found whole before, which are not looked at again.
///
/// # Errors
/// Those of the system: a disk that fails to read now may read later, which is no verdict.
pub(crate) fn untrue(
    archive: &Arc<Archive>,
    tables: &Tables,
    containers: &ContainerReader,
    whole: &mut Trees,
    snapshot: &Snapshot,
) -> Result<Option<Error>> {
    let mut reader = ChunkReader::default();
    reader.domain = Some(FIRST_DOMAIN);
    let mut strict = Strict { archive, tables, containers, reader };
    let looked = whole.look(&mut strict, snapshot.root).and_then(|root| {
        root.is_root_of(snapshot)?;
        match snapshot.stats {
            Some(stats) => whole.look(&mut strict, stats.node)?.is_stats(stats.levels),
            None => Ok(()),
        }
    });
    match looked {
        Err(error) if is_untrue(&error) => Ok(Some(error)),
        looked => looked.map(|()| None),
    }
}

/// True for the errors of bytes that somebody wrote so. A disk that fails to read now may read later: its
/// error is no verdict.
pub(crate) fn is_untrue(error: &Error) -> bool {
    match error.kind() {
        Kind::Corrupt | Kind::NotFound | Kind::Unsupported => true,
        // The system lets this process not read a file: that says nothing of what is in it.
        Kind::Denied => std::error::Error::source(error).is_none(),
        _ => false,
    }
}

/// Reads nodes, and errors with the first that is not there as it is named.
struct Strict<'a> {
    archive: &'a Archive,
    tables: &'a Tables,
    containers: &'a ContainerReader,
    reader: ChunkReader,
}

impl Strict<'_> {
    fn is_there(&mut self, at: Address, of: &Fingerprint, kind: ContainerKind) -> Result<()> {
        let found = self.reader.find(self.tables, self.containers, at)?;
        let is = found.is_some_and(|(container, metadata, n)| {
            container.stored.kind == kind
                && metadata.chunks.get(n).is_some_and(|chunk| chunk.fingerprint == *of)
        });
        if is { Ok(()) } else { Err(missing(at)) }
    }
}

impl TreeSource for Strict<'_> {
    fn node(&mut self, at: &TreeNodeRef) -> Result<Option<(TreeNode, bool)>> {
        self.is_there(at.address, &at.fingerprint, ContainerKind::Recipes)?;
        let domain = domain_of(self.archive, FIRST_DOMAIN)?;
        let bytes = self.reader.chunk(self.tables, self.containers, at.address)?;
        if !domain.is_of(bytes, &at.fingerprint) {
            return Err(missing(at.address));
        }
        Ok(Some((TreeNode::decode(bytes)?, true)))
    }

    fn has(&mut self, at: Address, of: &Fingerprint) -> Result<bool> {
        self.is_there(at, of, ContainerKind::Data).map(|()| true)
    }

    fn borders(&self) -> Result<u64> {
        Ok(domain_of(self.archive, FIRST_DOMAIN)?.borders)
    }
}

fn missing(at: Address) -> Error {
    let Address { container: ContainerId(id), slot } = at;
    corrupt(format!("chunk {slot} of container {id} is not there as it is named"))
}
