//! A store that is open for work.

use std::{
    path::Path,
    sync::{Arc, OnceLock},
};

use onefold_archive::{Archive, Ingest, READER_BYTES, Settings as Archiving};
use onefold_backend::rados::TIMEOUT;
use onefold_block::{MEMORY_MIN, Settings as Blocks, StoreExports};
use onefold_cluster::{Mode, Session, Settings as Clustering, What};
use onefold_core::{Error, Exports, Kind, Result, VolumeInfo};
use parking_lot::Mutex;

use crate::{
    locate::{Found, StoreKind},
    parts::{
        archive_dir::{ArchiveDir, now},
        archive_work::ArchiveWork,
        cluster_store::{Backing, Url},
        cluster_work::ClusterWork,
        keeper::Keeper,
        store_file::WorkingStore,
    },
    volume::Volume,
};

/// How a store is opened.
///
/// ```
/// let options = onefold::OpenOptions { memory: 256 << 20, ..Default::default() };
/// assert!(options.memory > onefold::OpenOptions::default().memory / 2);
/// ```
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Bytes of memory, 32 MiB at least: for tables and caches of a block store, for the tables of
    /// an archive, for the cache of a cluster store.
    pub memory: u64,
}

impl Default for OpenOptions {
    /// 128 MiB.
    fn default() -> OpenOptions {
        OpenOptions { memory: 128 << 20 }
    }
}

/// An open store. One process at a time works on it; the threads that it needs run until
/// [`close`](Store::close), or until it is dropped, which leaves it as after a crash: nothing that
/// was flushed is lost.
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("disk");
/// onefold::create_block(&path, &onefold::BlockFormat::of_bytes(64 << 20))?;
/// let store = onefold::Store::open(&path)?;
/// store.create_volume("vm1", 1 << 40)?;
/// assert_eq!(store.volumes()?[0].name, "vm1");
/// store.close()?;
/// # Ok::<(), onefold::Error>(())
/// ```
pub struct Store {
    pub(crate) engine: Engine,
    name: String,
}

/// The parts that are at work.
pub(crate) enum Engine {
    Block(Box<WorkingStore>),
    Archive(OpenArchive),
    Cluster(OpenCluster),
}

/// An archive. Its volumes are put to work when one is asked for, since from then on it is the
/// only process that puts.
pub(crate) struct OpenArchive {
    pub(crate) archive: Arc<Archive>,
    pub(crate) work: OnceLock<ArchiveWork>,
    /// Held while the volumes are put to work.
    starting: Mutex<()>,
    /// Given up last, when nobody writes any more.
    _keeper: Keeper,
}

/// A cluster store. The session goes before what it is on.
pub(crate) struct OpenCluster {
    work: ClusterWork,
    pub(crate) session: Arc<Session>,
    _backing: Backing,
}

impl Store {
    /// Opens the store at `path` for work, and recovers what a crash left. A path that begins with
    /// `rados:` means a store on Ceph.
    ///
    /// # Errors
    /// `NotFound`: no store is there. `Busy`: another process works on it, and which. `Corrupt`: it
    /// is damaged. `Unsupported`: a newer format. `Denied`, `Io`: the system refused.
    ///
    /// ```
    /// let missing = onefold::Store::open("/nowhere/at/all");
    /// assert_eq!(missing.err().unwrap().kind(), onefold::ErrorKind::NotFound);
    /// ```
    pub fn open(path: impl AsRef<Path>) -> Result<Store> {
        Store::open_with(path, &OpenOptions::default())
    }

    /// As [`open`](Store::open), with options.
    ///
    /// # Errors
    /// As [`open`](Store::open), and `InvalidInput` when the memory is too little.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("disk");
    /// # onefold::create_block(&path, &onefold::BlockFormat::of_bytes(64 << 20))?;
    /// let options = onefold::OpenOptions { memory: 64 << 20 };
    /// onefold::Store::open_with(&path, &options)?.close()?;
    /// # Ok::<(), onefold::Error>(())
    /// ```
    pub fn open_with(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Store> {
        let path = path.as_ref();
        if options.memory < MEMORY_MIN {
            let least = format!("a store needs at least {MEMORY_MIN} bytes of memory");
            return Err(Error::new(Kind::InvalidInput, least));
        }
        let engine = match Found::at(path)? {
            Found::Block(file) => {
                Engine::Block(Box::new(file.work(Blocks::for_memory(options.memory))?))
            }
            Found::Archive(directory) => Engine::Archive(OpenArchive::open(&directory)?),
            Found::Cluster(url) => Engine::Cluster(OpenCluster::open(&url, options)?),
        };
        Ok(Store { engine, name: path.display().to_string() })
    }

    /// The engine that made it.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("cluster");
    /// onefold::create_cluster(&path)?;
    /// let store = onefold::Store::open(&path)?;
    /// assert_eq!(store.kind(), onefold::StoreKind::Cluster);
    /// store.close()?;
    /// # Ok::<(), onefold::Error>(())
    /// ```
    #[must_use]
    pub fn kind(&self) -> StoreKind {
        match &self.engine {
            Engine::Block(_) => StoreKind::Block,
            Engine::Archive(_) => StoreKind::Archive,
            Engine::Cluster(_) => StoreKind::Cluster,
        }
    }

    /// Its volumes, sorted by name.
    ///
    /// # Errors
    /// `Busy`: another process puts into the archive. `Io`: the cluster does not answer.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("backups");
    /// # onefold::create_archive(&path, &onefold::ArchiveFormat::default())?;
    /// # let store = onefold::Store::open(&path)?;
    /// assert!(store.volumes()?.is_empty());
    /// # store.close()?;
    /// # Ok::<(), onefold::Error>(())
    /// ```
    pub fn volumes(&self) -> Result<Vec<VolumeInfo>> {
        match &self.engine {
            Engine::Cluster(cluster) => {
                let volumes = cluster.session.volumes()?.into_iter();
                Ok(volumes.map(|(name, named)| VolumeInfo { name, size: named.bytes }).collect())
            }
            Engine::Block(_) | Engine::Archive(_) => Ok(self.exports()?.list()),
        }
    }

    /// The volume called `name`.
    ///
    /// # Errors
    /// `NotFound`: there is none. Else as [`volumes`](Store::volumes).
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("backups");
    /// # onefold::create_archive(&path, &onefold::ArchiveFormat::default())?;
    /// # let store = onefold::Store::open(&path)?;
    /// store.create_volume("disk1", 1 << 30)?;
    /// assert_eq!(store.volume("disk1")?.size(), 1 << 30);
    /// assert!(store.volume("disk2").is_err());
    /// # store.close()?;
    /// # Ok::<(), onefold::Error>(())
    /// ```
    pub fn volume(&self, name: &str) -> Result<Volume> {
        self.exports()?.open(name).map(Volume::new)
    }

    /// Makes an empty volume of `bytes` bytes, rounded up to whole blocks (128 KiB in an archive,
    /// else 4 KiB); it takes no space until it is written. Durable on return.
    ///
    /// # Errors
    /// `Exists`: the name is taken. `InvalidInput`: a bad name or size. `NoSpace`: the store is
    /// full.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("disk");
    /// # onefold::create_block(&path, &onefold::BlockFormat::of_bytes(64 << 20))?;
    /// # let store = onefold::Store::open(&path)?;
    /// store.create_volume("vm1", 1 << 30)?;
    /// assert_eq!(store.create_volume("vm1", 1).unwrap_err().kind(), onefold::ErrorKind::Exists);
    /// # store.close()?;
    /// # Ok::<(), onefold::Error>(())
    /// ```
    pub fn create_volume(&self, name: &str, bytes: u64) -> Result<()> {
        match &self.engine {
            Engine::Block(store) => {
                store.store().create_volume(name, whole_blocks(bytes)?).map(drop)
            }
            Engine::Archive(open) => {
                open.archive.create_volume(name, onefold_archive::volume_bytes(bytes)?, now())
            }
            Engine::Cluster(open) => open.session.create_volume(name, whole_blocks(bytes)?),
        }
    }

    /// Changes the size of a volume, rounded up as by [`create_volume`](Store::create_volume). Data
    /// beyond a smaller size is lost. Durable on return.
    ///
    /// # Errors
    /// `NotFound`: there is none. `InvalidInput`: a bad size.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("disk");
    /// # onefold::create_block(&path, &onefold::BlockFormat::of_bytes(64 << 20))?;
    /// # let store = onefold::Store::open(&path)?;
    /// store.create_volume("vm1", 1 << 30)?;
    /// store.resize_volume("vm1", 1 << 31)?;
    /// assert_eq!(store.volume("vm1")?.size(), 1 << 31);
    /// # store.close()?;
    /// # Ok::<(), onefold::Error>(())
    /// ```
    pub fn resize_volume(&self, name: &str, bytes: u64) -> Result<()> {
        match &self.engine {
            Engine::Block(store) => store.store().resize_volume(name, whole_blocks(bytes)?),
            Engine::Archive(open) => {
                open.archive.resize_volume(name, onefold_archive::volume_bytes(bytes)?)
            }
            Engine::Cluster(open) => open.session.resize_volume(name, whole_blocks(bytes)?),
        }
    }

    /// Makes a block store `bytes` bytes large, rounded down to whole zones of 4 MiB; without, as
    /// large as its device is by now, or its file, if that was made longer. Who uses its volumes goes
    /// on meanwhile. Durable on return. Returns the size of the store.
    ///
    /// # Errors
    /// `InvalidInput`: smaller than the store, larger than its device or than 4 PiB, or so little
    /// more that nothing is gained. `NoSpace`: the host is full, and nothing has changed.
    /// `Unsupported`: an archive or a store of the cluster engine, which have no size. `Stopped`,
    /// `Io`: its disk failed.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("disk");
    /// # onefold::create_block(&path, &onefold::BlockFormat::of_bytes(64 << 20))?;
    /// # let store = onefold::Store::open(&path)?;
    /// assert_eq!(store.grow(Some(128 << 20))?, 128 << 20);
    /// # store.close()?;
    /// # Ok::<(), onefold::Error>(())
    /// ```
    pub fn grow(&self, bytes: Option<u64>) -> Result<u64> {
        match &self.engine {
            Engine::Block(store) => store.store().grow(bytes),
            Engine::Archive(_) | Engine::Cluster(_) => Err(self
                .unsupported("takes room from its host as it needs it, and has no size to grow")),
        }
    }

    /// Gives a volume another name; clients that have it open go on. Durable on return.
    ///
    /// # Errors
    /// `NotFound`: there is none. `Exists`: the new name is taken. `Busy`: another process changed
    /// one of the names of a cluster store meanwhile.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("disk");
    /// # onefold::create_block(&path, &onefold::BlockFormat::of_bytes(64 << 20))?;
    /// # let store = onefold::Store::open(&path)?;
    /// store.create_volume("vm1", 1 << 30)?;
    /// store.rename_volume("vm1", "vm2")?;
    /// assert_eq!(store.volumes()?[0].name, "vm2");
    /// # store.close()?;
    /// # Ok::<(), onefold::Error>(())
    /// ```
    pub fn rename_volume(&self, name: &str, new_name: &str) -> Result<()> {
        match &self.engine {
            Engine::Block(store) => store.store().rename_volume(name, new_name),
            Engine::Archive(open) => open.archive.rename_volume(name, new_name),
            Engine::Cluster(open) => open.session.rename(What::Volume, name, new_name),
        }
    }

    /// Deletes a volume; a handle that has it open gets `NotFound`. An archive gives its space back
    /// with [`gc`](Store::gc). Durable on return.
    ///
    /// # Errors
    /// `NotFound`: there is none. `Busy`: another session has the cluster volume open.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("disk");
    /// # onefold::create_block(&path, &onefold::BlockFormat::of_bytes(64 << 20))?;
    /// # let store = onefold::Store::open(&path)?;
    /// store.create_volume("vm1", 1 << 30)?;
    /// store.delete_volume("vm1")?;
    /// assert!(store.volumes()?.is_empty());
    /// # store.close()?;
    /// # Ok::<(), onefold::Error>(())
    /// ```
    pub fn delete_volume(&self, name: &str) -> Result<()> {
        match &self.engine {
            Engine::Block(store) => store.store().delete_volume(name),
            Engine::Archive(open) => open.archive.delete_volume(name),
            Engine::Cluster(open) => open.delete(name, What::Volume),
        }
    }

    /// Makes everything durable, ends the threads and gives the store up. Drop every volume and stop
    /// every server first: a volume that is still held keeps the store claimed, so that opening it
    /// again is `Busy`; changes through it fail.
    ///
    /// # Errors
    /// `Busy`: a volume of a cluster store is still held; the store is given up all the same.
    /// Otherwise why something could not be made durable.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("disk");
    /// # onefold::create_block(&path, &onefold::BlockFormat::of_bytes(64 << 20))?;
    /// onefold::Store::open(&path)?.close()?;
    /// onefold::Store::open(&path)?.close()?;
    /// # Ok::<(), onefold::Error>(())
    /// ```
    pub fn close(self) -> Result<()> {
        let closed = match self.engine {
            Engine::Block(store) => store.close(),
            Engine::Archive(open) => open.work.into_inner().map_or(Ok(()), ArchiveWork::close),
            Engine::Cluster(open) => open.work.close(),
        };
        closed.map_err(|error| error.context(self.name))
    }

    /// The volumes for a server, put to work.
    pub(crate) fn exports(&self) -> Result<Arc<dyn Exports>> {
        Ok(match &self.engine {
            Engine::Block(store) => Arc::new(StoreExports(store.store().clone())),
            Engine::Archive(open) => open.work()?.exports().clone(),
            Engine::Cluster(open) => open.work.exports().clone(),
        })
    }

    /// An error that says what this engine lacks.
    pub(crate) fn unsupported(&self, what: &str) -> Error {
        let sentence = format!("{}: a store of the {} engine {what}", self.name, self.kind());
        Error::new(Kind::Unsupported, sentence)
    }
}

fn whole_blocks(bytes: u64) -> Result<u64> {
    let whole = bytes.checked_next_multiple_of(4096);
    whole.ok_or_else(|| Error::new(Kind::InvalidInput, "a volume can't be larger than 1 EiB"))
}

impl OpenArchive {
    fn open(directory: &ArchiveDir) -> Result<OpenArchive> {
        let keeper = directory.claim()?;
        let settings = Archiving { memory: READER_BYTES, ..Archiving::default() };
        let (archive, _) = directory.open_while(settings, false, Some(&keeper.stands()))?;
        Ok(OpenArchive {
            archive,
            work: OnceLock::new(),
            starting: Mutex::new(()),
            _keeper: keeper,
        })
    }

    /// The volumes at work.
    fn work(&self) -> Result<&ArchiveWork> {
        let _starting = self.starting.lock();
        if let Some(work) = self.work.get() {
            return Ok(work);
        }
        let work = ArchiveWork::start(&Ingest::begin(&self.archive, false, true)?)?;
        Ok(self.work.get_or_init(|| work))
    }
}

impl OpenCluster {
    fn open(url: &Url, options: &OpenOptions) -> Result<OpenCluster> {
        let backing = Backing::open(url, TIMEOUT)?;
        let settings = Clustering { cache_bytes: options.memory, ..Clustering::default() };
        let session = Arc::new(backing.session(settings).map_err(|e| e.context(url))?);
        let work = ClusterWork::start(session.clone(), Mode::Own, |error| {
            tracing::error!("{error}; the store takes nothing more from this process");
        })?;
        Ok(OpenCluster { work, session, _backing: backing })
    }

    pub(crate) fn delete(&self, name: &str, what: What) -> Result<()> {
        self.session.delete(name, what)?;
        while self.session.delete_step()? {}
        Ok(())
    }
}
