//! Which kind of store a path means.

use std::{fmt, path::Path};

use onefold_core::{Error, Kind, Result};

use crate::parts::{
    address::is_away,
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
pub enum Found {
    /// A file or device of the block engine, whose superblock was read.
    Block(Box<StoreFile>),
    /// An archive's directory.
    Archive(ArchiveDir),
    /// A folder of the cluster engine, or a store on Ceph, which was not looked for.
    Cluster(Url),
}

impl Found {
    /// Looks at what is at `path`, and opens nothing.
    ///
    /// # Errors
    /// As [`locate`].
    pub fn at(path: &Path) -> Result<Found> {
        if let Some(url) = store_at(path) {
            return Ok(Found::Cluster(url));
        }
        if ArchiveDir::is_there(path) {
            return ArchiveDir::look(path).map(Found::Archive);
        }
        let looked = StoreFile::look(path).map(|file| Found::Block(Box::new(file)));
        looked.map_err(|error| match error.kind() {
            Kind::NotFound => foreign(path).unwrap_or(error),
            _ => error,
        })
    }

    /// The engine that made it.
    #[must_use]
    pub fn kind(&self) -> StoreKind {
        match self {
            Found::Block(_) => StoreKind::Block,
            Found::Archive(_) => StoreKind::Archive,
            Found::Cluster(_) => StoreKind::Cluster,
        }
    }
}

/// Beginnings of addresses of other tools.
const FOREIGN: [&str; 8] = ["sftp:", "rest:", "s3:", "b2:", "azure:", "gs:", "swift:", "rclone:"];

/// Why there is no store at a path that is written as other tools write theirs.
pub fn foreign(path: &Path) -> Option<Error> {
    let text = path.to_str().filter(|_| !is_away(path))?;
    let shown = text.escape_debug();
    let why = if let Some(scheme) = FOREIGN.into_iter().find(|scheme| text.starts_with(scheme)) {
        format!("it begins with {scheme}, which means no store here")
    } else if text.contains("::") {
        let words =
            "an archive and its snapshot are two words, as in `onefold restore ARCHIVE SNAPSHOT`";
        return Some(Error::new(Kind::NotFound, format!("there is nothing at {shown}: {words}")));
    } else if text.split_once(':').is_some_and(|(host, _)| !host.contains('/')) {
        "there is nothing of that name here (./NAME may have any letters)".to_owned()
    } else {
        return None;
    };
    let on_hosts = "an archive on another host is called ssh://USER@HOST/PATH, one in a bucket s3://BUCKET/PREFIX";
    Some(Error::new(Kind::NotFound, format!("{shown}: {why}; {on_hosts}")))
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
