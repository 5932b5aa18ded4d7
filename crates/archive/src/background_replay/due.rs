//! The work that waits for a background replay.

use onefold_core::Result;

use crate::{
    chunk_index::first_to_merge,
    operations_log::{Archive, log_bytes_at_once},
    tables::Tables,
};

/// What a process that opens an archive, or the next put, collection or commit, would have to do,
/// and a background replay does before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplayDue {
    /// Containers that are not imported into the chunk index.
    pub containers: u64,
    /// Streams, snapshots and mappings that came or went and are not counted.
    pub differences: u64,
    /// Nodes of trees that are not counted: a portion had no room for them, or they are damaged.
    pub nodes: u64,
    /// Files of the chunk index that are worth merging.
    pub files: u64,
    /// Bytes of the operations log; `None` while somebody writes it just now.
    pub log_bytes: Option<u64>,
}

/// The work that waits in an archive with these `tables`.
///
/// # Errors
/// Where an older index took the place of a lost one, all containers are looked at: as
/// [`Containers::get`](crate::Containers::get).
pub fn replay_due(archive: &Archive, tables: &Tables) -> Result<ReplayDue> {
    let files = &tables.index.files;
    Ok(ReplayDue {
        containers: tables.not_imported()?.len() as u64,
        differences: tables.differences.len() as u64,
        nodes: tables.snapshots.due().count() as u64,
        files: first_to_merge(files).map_or(0, |first| (files.len() - first) as u64),
        log_bytes: log_bytes_at_once(archive).map(|(bytes, _)| bytes),
    })
}
