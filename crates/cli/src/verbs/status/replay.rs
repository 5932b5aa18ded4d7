//! What waits for a background replay of an archive, as `status` shows it.

use onefold_archive::ReplayDue;
use onefold_console::size::{Size, counted, duration};
use serde::Serialize;

use crate::report::archive::ArchiveServer;

/// What waits to be carried from the operations log into index, counts and tables.
#[derive(Debug, Serialize)]
pub(super) struct DueLine {
    /// Containers that are not in the chunk index.
    import_containers: u64,
    /// Streams, snapshots and mappings that came or went, and nodes of trees.
    count_changes: u64,
    count_nodes: u64,
    /// Files of the chunk index that are worth merging.
    merge_files: u64,
    /// Bytes of the log since the last checkpoint of the tables; nothing while it is written.
    log_bytes: Option<u64>,
}

impl From<ReplayDue> for DueLine {
    fn from(due: ReplayDue) -> DueLine {
        DueLine {
            import_containers: due.containers,
            count_changes: due.differences,
            count_nodes: due.nodes,
            merge_files: due.files,
            log_bytes: due.log_bytes,
        }
    }
}

impl DueLine {
    /// What waits, and whether a server is at it.
    pub(super) fn told(&self, server: Option<&ArchiveServer>) -> String {
        let waits = format!(
            "{} to import into the chunk index, {} to count, {} of the index to merge, {} of log",
            counted(self.import_containers, "container"),
            counted(self.count_changes + self.count_nodes, "change"),
            counted(self.merge_files, "file"),
            self.log_bytes.map_or_else(|| "some".to_owned(), |bytes| Size(bytes).to_string())
        );
        match server.and_then(|server| server.replay.as_ref()) {
            None => format!("{waits}; puts, backups and gc do it"),
            Some(replay) => {
                let does = replay.doing.clone().unwrap_or_else(|| {
                    format!("it goes on after {} without clients", duration(replay.idle_seconds))
                });
                format!("{waits}; {does}")
            }
        }
    }
}
