//! Which kind of store a path means.

use std::{fmt, path::Path};

use onefold_core::Result;

use crate::parts::{
    archive_dir::ArchiveDir,
    cluster_store::{Url, store_at},
    store_file::StoreFile,
};

/// The engine that made a store.
///
/// ```
/// assert_eq!(onefold::StoreKind::Archive.to_string(), "archive");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreKind {
    /// Inline deduplication of 4 KiB blocks, in a file or on a device.
    Block,
    /// Content-defined chunks in containers, in one or several directories.
    Archive,
    /// Deduplication in the background, in a folder or on Ceph.
    Cluster,
}

impl fmt::Display for StoreKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            StoreKind::Block => "block",
            StoreKind::Archive => "archive",
            StoreKind::Cluster => "cluster",
        })
    }
}

/// A store as it was found.
pub(crate) enum Found {
    Block(Box<StoreFile>),
    Archive(ArchiveDir),
    Cluster(Url),
}

impl Found {
    /// Looks at what is at `path`, and opens nothing.
    pub(crate) fn at(path: &Path) -> Result<Found> {
        if let Some(url) = store_at(path) {
            return Ok(Found::Cluster(url));
        }
        if ArchiveDir::is_there(path) {
            return ArchiveDir::look(path).map(Found::Archive);
        }
        StoreFile::look(path).map(|file| Found::Block(Box::new(file)))
    }

    pub(crate) fn kind(&self) -> StoreKind {
        match self {
            Found::Block(_) => StoreKind::Block,
            Found::Archive(_) => StoreKind::Archive,
            Found::Cluster(_) => StoreKind::Cluster,
        }
    }
}

/// Says which engine made the store at `path`, without opening it; it may be served meanwhile. A
/// path that begins with `rados:` means a store on Ceph, which is not looked for.
///
/// # Errors
/// `NotFound`: nothing is there, or a directory without a store. `InvalidInput`: a file that is no
/// store. `Unsupported`: a newer format. `Corrupt`: label or superblock is damaged. `Denied`, `Io`:
/// the system refused.
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("disk");
/// onefold::create_block(&path, &onefold::BlockFormat::of_bytes(64 << 20))?;
/// assert_eq!(onefold::locate(&path)?, onefold::StoreKind::Block);
/// # Ok::<(), onefold::Error>(())
/// ```
pub fn locate(path: impl AsRef<Path>) -> Result<StoreKind> {
    Found::at(path.as_ref()).map(|found| found.kind())
}
