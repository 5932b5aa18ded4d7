//! New stores.

use std::path::Path;

use onefold_archive::{Archive, Format as Archived};
use onefold_backend::{EmbeddedStore, FileDisk, Preallocate, new_file::Spot, random::random_bytes};
use onefold_block::{Engine, Format};
use onefold_core::{BLOCK_BYTES, Error, Kind, Result, object::PoolKind};

use crate::parts::{
    archive_dir::{make_directory, name_archive},
    operator::word,
    sealed_before,
};

/// How a new block store is.
///
/// ```
/// let format = onefold::BlockFormat { reserve: false, ..onefold::BlockFormat::of_bytes(1 << 30) };
/// assert_eq!(format.bytes, 1 << 30);
/// ```
#[derive(Clone, Debug)]
pub struct BlockFormat {
    /// Bytes of the file, metadata included; a whole number of 4 KiB blocks counts.
    pub bytes: u64,
    /// The file system gives all space now; else the file grows as it is needed.
    pub reserve: bool,
}

impl BlockFormat {
    /// A store of so many bytes, with all space reserved.
    ///
    /// ```
    /// assert!(onefold::BlockFormat::of_bytes(1 << 30).reserve);
    /// ```
    #[must_use]
    pub fn of_bytes(bytes: u64) -> BlockFormat {
        BlockFormat { bytes, reserve: true }
    }
}

/// Makes an empty block store in the new file `path`, which only its owner may read. Durable on
/// return. After an error nothing is left.
///
/// # Errors
/// `Exists`: something is there. `InvalidInput`: too small or too large. `NoSpace`, `Denied`, `Io`:
/// the system refused.
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("disk");
/// onefold::create_block(&path, &onefold::BlockFormat::of_bytes(64 << 20))?;
/// let again = onefold::create_block(&path, &onefold::BlockFormat::of_bytes(64 << 20));
/// assert_eq!(again.unwrap_err().kind(), onefold::ErrorKind::Exists);
/// # Ok::<(), onefold::Error>(())
/// ```
pub fn create_block(path: impl AsRef<Path>, format: &BlockFormat) -> Result<()> {
    let path = path.as_ref();
    if path.exists() {
        return Err(Error::new(Kind::Exists, format!("{} is there already", path.display())));
    }
    let blocks = format.bytes / BLOCK_BYTES as u64;
    let spot = Spot::of(path)?;
    let preallocate = if format.reserve { Preallocate::Reserve } else { Preallocate::None };
    let disk = FileDisk::create(path, Some(blocks), preallocate, &mut |_, _| {})?;
    let format =
        Format { grow: !format.reserve, ..Format::new(random_bytes()?, random_bytes()?, blocks) };
    Engine::format(&disk, &format).map_err(|error| {
        // The disk still holds the lock, so nobody else took the file meanwhile.
        spot.take_back(false);
        error.context(path.display())
    })?;
    sealed_before::made(path, None);
    Ok(())
}

/// How a new archive is: the default cuts streams into chunks of 8 KiB on average and compresses
/// with Zstandard.
///
/// ```
/// let format = onefold::ArchiveFormat::default();
/// assert!(format.compress);
/// ```
#[derive(Clone, Debug)]
pub struct ArchiveFormat {
    /// New chunks are compressed with Zstandard.
    pub compress: bool,
}

impl Default for ArchiveFormat {
    fn default() -> ArchiveFormat {
        ArchiveFormat { compress: true }
    }
}

/// Makes an empty archive in the directory `path`, which is new or empty and becomes its owner's
/// alone. Durable on return.
///
/// # Errors
/// `Exists`: something is in it. `NoSpace`, `Denied`, `Io`: the system refused.
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("backups");
/// onefold::create_archive(&path, &onefold::ArchiveFormat::default())?;
/// assert_eq!(onefold::locate(&path)?, onefold::StoreKind::Archive);
/// # Ok::<(), onefold::Error>(())
/// ```
pub fn create_archive(path: impl AsRef<Path>, format: &ArchiveFormat) -> Result<()> {
    let path = path.as_ref();
    let made = Archived::new(random_bytes()?, random_bytes()?, random_bytes()?);
    let mut made = made.with_features();
    if !format.compress {
        made.compression = onefold_archive::Compression::None;
    }
    let (files, _making) = make_directory(path)?;
    Archive::create(&*files, &made).map_err(|error| name_archive(path, error))?;
    sealed_before::made(path, None);
    Ok(())
}

/// Makes an empty cluster store in the folder `path`, which is new or empty and becomes its
/// owner's alone. One process at a time has it open. Stores on Ceph are made by the command.
///
/// # Errors
/// `Exists`: something is in it. `NoSpace`, `Denied`, `Io`: the system refused.
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("cluster");
/// onefold::create_cluster(&path)?;
/// assert_eq!(onefold::locate(&path)?, onefold::StoreKind::Cluster);
/// # Ok::<(), onefold::Error>(())
/// ```
pub fn create_cluster(path: impl AsRef<Path>) -> Result<()> {
    let store = EmbeddedStore::create_as(path.as_ref(), PoolKind::Replicated, word())?;
    let format =
        onefold_cluster::Format::new(random_bytes()?, random_bytes()?, PoolKind::Replicated);
    onefold_cluster::create(&store.session(), &format)
}
