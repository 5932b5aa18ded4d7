//! Streams: bytes under a name, put once and read often.

use std::io::{ErrorKind, Read, Write};

use onefold_archive::{Content, Gauge, Ingest, PutRequest, Reader, Shape, Verify, put_on};
use onefold_cluster::What;
use onefold_core::{Error, Kind, Result};

use crate::{
    parts::archive_dir::now,
    store::{Engine, OpenArchive, Store},
};

/// Zeroes that are written at once.
static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

/// A stream, as a listing shows it.
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("backups");
/// # onefold::create_archive(&path, &onefold::ArchiveFormat::default())?;
/// # let store = onefold::Store::open(&path)?;
/// store.put("a", &mut &b"abc"[..])?;
/// let streams: Vec<onefold::StreamInfo> = store.streams()?;
/// assert_eq!((&*streams[0].name, streams[0].bytes), ("a", 3));
/// # store.close()?;
/// # Ok::<(), onefold::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamInfo {
    /// Its name.
    pub name: String,
    /// Bytes of its content.
    pub bytes: u64,
    /// True for a directory tree, which the command stores and restores.
    pub is_tree: bool,
}

/// The outcome of a put.
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("backups");
/// # onefold::create_archive(&path, &onefold::ArchiveFormat::default())?;
/// # let store = onefold::Store::open(&path)?;
/// let first: onefold::Put = store.put("a", &mut &[7; 100_000][..])?;
/// let second = store.put("b", &mut &[7; 100_000][..])?;
/// assert!(second.new_bytes < Some(first.bytes));
/// # store.close()?;
/// # Ok::<(), onefold::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Put {
    /// Bytes of the stream.
    pub bytes: u64,
    /// Bytes of it that were not stored yet, before compression; `None` where deduplication comes
    /// later.
    pub new_bytes: Option<u64>,
}

impl Store {
    /// Its streams, sorted by name.
    ///
    /// # Errors
    /// `Unsupported`: a block store holds volumes only. `Corrupt`, `Io`: the listing can't be read.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("backups");
    /// # onefold::create_archive(&path, &onefold::ArchiveFormat::default())?;
    /// # let store = onefold::Store::open(&path)?;
    /// store.put("b", &mut &b"abc"[..])?;
    /// store.put("a", &mut &b"abcd"[..])?;
    /// let names: Vec<String> = store.streams()?.into_iter().map(|found| found.name).collect();
    /// assert_eq!(names, ["a", "b"]);
    /// # store.close()?;
    /// # Ok::<(), onefold::Error>(())
    /// ```
    pub fn streams(&self) -> Result<Vec<StreamInfo>> {
        match &self.engine {
            Engine::Block(_) => Err(self.unsupported("holds volumes only")),
            Engine::Archive(open) => {
                let tables = open.archive.refresh()?;
                let info = |(name, stream): (&String, &onefold_archive::Stream)| StreamInfo {
                    name: name.clone(),
                    bytes: stream.bytes,
                    is_tree: stream.shape == Shape::Tree,
                };
                Ok(tables.streams.iter().map(info).collect())
            }
            Engine::Cluster(open) => {
                let names = open.session.names()?.into_iter();
                let put = names.filter(|(_, named)| named.what == What::Put);
                Ok(put
                    .map(|(name, named)| StreamInfo { name, bytes: named.bytes, is_tree: false })
                    .collect())
            }
        }
    }

    /// Stores what `source` gives, to its end, as the stream `name`. On return the stream is whole
    /// and durable; before, nobody sees a part of it. An error of `source` ends the put: this is
    /// how to cancel one. A stream that has the name already stays as it is until then, and is
    /// replaced.
    ///
    /// # Errors
    /// `InvalidInput`: no stream can have the name, which has 1 to 4,096 bytes in an archive and 1
    /// to 255 in a cluster store, and no control characters. `Exists`: a volume of a cluster store
    /// has the name. `Busy`: another process puts. `Unsupported`: a block store holds volumes only.
    /// `NoSpace`: the disk is full. `Stopped`: an earlier failure, or another owner, ended all
    /// changes. `Io`: the disk failed. An error of `source` has the kind that the source's own
    /// kind means, mostly `Io`, and the source's error as its
    /// [`source`](std::error::Error::source).
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("disk");
    /// # onefold::create_block(&path, &onefold::BlockFormat::of_bytes(64 << 20))?;
    /// # let store = onefold::Store::open(&path)?;
    /// let refused = store.put("a", &mut &b"abc"[..]).unwrap_err();
    /// assert_eq!(refused.kind(), onefold::ErrorKind::Unsupported);
    /// # store.close()?;
    /// # Ok::<(), onefold::Error>(())
    /// ```
    pub fn put(&self, name: &str, source: &mut (dyn Read + Send)) -> Result<Put> {
        match &self.engine {
            Engine::Block(_) => Err(self.unsupported("holds volumes only")),
            Engine::Archive(open) => open.put(name, source),
            Engine::Cluster(open) => {
                let bytes = open.session.put(name, source)?;
                while open.session.delete_step()? {}
                Ok(Put { bytes, new_bytes: None })
            }
        }
    }

    /// Writes the stream `name` to `sink`, verified, and says how many bytes it has. After an error
    /// some of it may have been written.
    ///
    /// # Errors
    /// `NotFound`: there is none. `Corrupt`: data is damaged. `Unsupported`: a block store, or the
    /// stream is a directory tree. `Io`: the sink or the disk failed.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("cluster");
    /// # onefold::create_cluster(&path)?;
    /// # let store = onefold::Store::open(&path)?;
    /// store.put("a", &mut &b"abc"[..])?;
    /// let mut found = Vec::new();
    /// assert_eq!(store.get("a", &mut found)?, 3);
    /// assert_eq!(found, b"abc");
    /// # store.close()?;
    /// # Ok::<(), onefold::Error>(())
    /// ```
    pub fn get(&self, name: &str, sink: &mut dyn Write) -> Result<u64> {
        match &self.engine {
            Engine::Block(_) => Err(self.unsupported("holds volumes only")),
            Engine::Archive(open) => open.get(name, sink),
            Engine::Cluster(open) => open.session.get(name, sink),
        }
    }

    /// Removes the stream `name`, durably on return. An archive gives its space back with
    /// [`gc`](Store::gc).
    ///
    /// # Errors
    /// `NotFound`: there is none. `Unsupported`: a block store holds volumes only.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("backups");
    /// # onefold::create_archive(&path, &onefold::ArchiveFormat::default())?;
    /// # let store = onefold::Store::open(&path)?;
    /// store.put("a", &mut &b"abc"[..])?;
    /// store.remove("a")?;
    /// assert!(store.streams()?.is_empty());
    /// # store.close()?;
    /// # Ok::<(), onefold::Error>(())
    /// ```
    pub fn remove(&self, name: &str) -> Result<()> {
        match &self.engine {
            Engine::Block(_) => Err(self.unsupported("holds volumes only")),
            Engine::Archive(open) => open.archive.remove(name),
            Engine::Cluster(open) => open.delete(name, What::Put),
        }
    }

    /// Gives the stream `name` another name, durably on return.
    ///
    /// # Errors
    /// `NotFound`: there is none. `Exists`: the new name is taken. `Busy`: another process changed
    /// one of the names of a cluster store meanwhile. `Unsupported`: a block store holds volumes
    /// only.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("backups");
    /// # onefold::create_archive(&path, &onefold::ArchiveFormat::default())?;
    /// # let store = onefold::Store::open(&path)?;
    /// store.put("a", &mut &b"abc"[..])?;
    /// store.rename("a", "b")?;
    /// assert_eq!(store.streams()?[0].name, "b");
    /// # store.close()?;
    /// # Ok::<(), onefold::Error>(())
    /// ```
    pub fn rename(&self, name: &str, new_name: &str) -> Result<()> {
        match &self.engine {
            Engine::Block(_) => Err(self.unsupported("holds volumes only")),
            Engine::Archive(open) => open.archive.rename(name, new_name),
            Engine::Cluster(open) => open.session.rename(What::Put, name, new_name),
        }
    }
}

impl OpenArchive {
    fn put(&self, name: &str, source: &mut (dyn Read + Send)) -> Result<Put> {
        onefold_archive::valid_name(name)?;
        let ingest = match self.work.get() {
            Some(work) => work.volumes().ingest().clone(),
            None => Ingest::begin(&self.archive, false, false)?,
        };
        let request = PutRequest {
            domain: None,
            name: name.to_owned(),
            shape: Shape::Bytes,
            now: now(),
            wait: false,
        };
        let report = put_on(&ingest, request, &Gauge::default(), |feeder| {
            while feeder.fill(|room| read_some(source, room))? > 0 {}
            Ok(())
        })?;
        Ok(Put { bytes: report.stream.bytes, new_bytes: Some(report.new_bytes) })
    }

    fn get(&self, name: &str, sink: &mut dyn Write) -> Result<u64> {
        let mut reader = Reader::new(&self.archive)?;
        let stream = reader.stream(name)?;
        if stream.shape == Shape::Tree {
            let sentence = format!("'{name}' is a directory tree, which the command restores");
            return Err(Error::new(Kind::Unsupported, sentence));
        }
        let mut write =
            |bytes: &[u8]| sink.write_all(bytes).map_err(|e| Error::from_io("the sink", e));
        reader.read(&stream.recipe, Verify::Groups, &mut |content| match content {
            Content::Bytes(bytes) => write(bytes),
            Content::Zeroes(mut left) | Content::Hole(mut left) => {
                while left > 0 {
                    let now = left.min(ZEROES.len() as u64);
                    write(&ZEROES[..now as usize])?;
                    left -= now;
                }
                Ok(())
            }
        })?;
        Ok(stream.bytes)
    }
}

/// Reads once, whatever interrupts.
fn read_some(source: &mut (dyn Read + Send), room: &mut [u8]) -> Result<usize> {
    loop {
        match source.read(room) {
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            read => return read.map_err(|e| Error::from_io("the source", e)),
        }
    }
}
