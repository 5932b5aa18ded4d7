//! A volume of any engine, read and written at bytes.

use std::sync::Arc;

use onefold_core::{BLOCK_BYTES, Block, BlockRead, Error, Extent, Kind, Lba, Result, Ticket};

/// Blocks that are read at once.
const READ_BLOCKS: usize = 256;

/// Extents that are asked for at once.
const EXTENTS: usize = 1024;

/// A virtual disk. All methods may be called from many threads at once; a change that returned is
/// seen by every later read.
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("disk");
/// # onefold::create_block(&path, &onefold::BlockFormat::of_bytes(64 << 20))?;
/// # let store = onefold::Store::open(&path)?;
/// store.create_volume("vm1", 1 << 30)?;
/// let volume = store.volume("vm1")?;
/// volume.write_at(5000, b"some bytes")?;
/// volume.flush()?;
/// let mut found = [0; 10];
/// volume.read_at(5000, &mut found)?;
/// assert_eq!(&found, b"some bytes");
/// # drop(volume);
/// # store.close()?;
/// # Ok::<(), onefold::Error>(())
/// ```
#[derive(Clone)]
pub struct Volume {
    inner: Arc<dyn onefold_core::Volume>,
}

impl Volume {
    pub(crate) fn new(inner: Arc<dyn onefold_core::Volume>) -> Volume {
        Volume { inner }
    }

    /// Size in bytes: a multiple of 4096. A resize changes it.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("disk");
    /// # onefold::create_block(&path, &onefold::BlockFormat::of_bytes(64 << 20))?;
    /// # let store = onefold::Store::open(&path)?;
    /// # store.create_volume("vm1", 1 << 20)?;
    /// # let volume = store.volume("vm1")?;
    /// assert_eq!(volume.size(), 1 << 20);
    /// # drop(volume);
    /// # store.close()?;
    /// # Ok::<(), onefold::Error>(())
    /// ```
    #[must_use]
    pub fn size(&self) -> u64 {
        self.inner.size()
    }

    /// Fills `into` with the bytes at `offset`.
    ///
    /// # Errors
    /// `InvalidInput`: beyond the end. `Corrupt`: the data is damaged. `NotFound`: the volume was
    /// deleted. `Io`: the disk failed.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("disk");
    /// # onefold::create_block(&path, &onefold::BlockFormat::of_bytes(64 << 20))?;
    /// # let store = onefold::Store::open(&path)?;
    /// # store.create_volume("vm1", 1 << 20)?;
    /// # let volume = store.volume("vm1")?;
    /// let mut found = [7; 100];
    /// volume.read_at(0, &mut found)?;
    /// assert_eq!(found, [0; 100]);
    /// assert!(volume.read_at(1 << 20, &mut found).is_err());
    /// # drop(volume);
    /// # store.close()?;
    /// # Ok::<(), onefold::Error>(())
    /// ```
    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let end = offset.checked_add(into.len() as u64).filter(|&end| end <= self.size());
        if end.is_none() {
            return Err(Error::new(Kind::InvalidInput, "beyond the end of the volume"));
        }
        let (mut at, mut rest) = (offset, into);
        while !rest.is_empty() {
            let skip = at as usize % BLOCK_BYTES;
            let bytes = rest.len().min(READ_BLOCKS * BLOCK_BYTES - skip);
            let (now, later) = rest.split_at_mut(bytes);
            let mut blocks = Block::zeroed_vec((skip + bytes).div_ceil(BLOCK_BYTES));
            let first = Lba(at / BLOCK_BYTES as u64);
            let mut reads = [BlockRead { first, into: &mut blocks, result: Ok(()) }];
            self.inner.read(&mut reads);
            let [BlockRead { result, .. }] = reads;
            result?;
            let found = blocks.iter().flat_map(|block| block.0.iter()).skip(skip);
            now.iter_mut().zip(found).for_each(|(to, from)| *to = *from);
            (at, rest) = (at + bytes as u64, later);
        }
        Ok(())
    }

    /// Writes `data` at `offset`, of any alignment and length; durable after
    /// [`flush`](Self::flush).
    ///
    /// # Errors
    /// `InvalidInput`: beyond the end. `NoSpace`: the store is full. `Stopped`: an earlier failure
    /// ended all writes.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("disk");
    /// # onefold::create_block(&path, &onefold::BlockFormat::of_bytes(64 << 20))?;
    /// # let store = onefold::Store::open(&path)?;
    /// # store.create_volume("vm1", 1 << 20)?;
    /// # let volume = store.volume("vm1")?;
    /// volume.write_at(4000, &[1; 200])?;
    /// let mut found = [0; 2];
    /// volume.read_at(4199, &mut found)?;
    /// assert_eq!(found, [1, 0]);
    /// # drop(volume);
    /// # store.close()?;
    /// # Ok::<(), onefold::Error>(())
    /// ```
    pub fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.made(self.inner.write(offset, data)?)
    }

    /// Waits until a change counts as made.
    fn made(&self, ticket: Ticket) -> Result<()> {
        if self.inner.acknowledges_late() { self.inner.wait(ticket) } else { Ok(()) }
    }

    /// Drops the whole blocks within `bytes` bytes at `offset`: they read as zeroes, and their
    /// space becomes free.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at); a full store still takes it.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("disk");
    /// # onefold::create_block(&path, &onefold::BlockFormat::of_bytes(64 << 20))?;
    /// # let store = onefold::Store::open(&path)?;
    /// # store.create_volume("vm1", 1 << 20)?;
    /// # let volume = store.volume("vm1")?;
    /// volume.write_at(0, &[1; 8192])?;
    /// volume.trim(0, 8192)?;
    /// let mut found = [1; 1];
    /// volume.read_at(4096, &mut found)?;
    /// assert_eq!(found, [0]);
    /// # drop(volume);
    /// # store.close()?;
    /// # Ok::<(), onefold::Error>(())
    /// ```
    pub fn trim(&self, offset: u64, bytes: u64) -> Result<()> {
        self.made(self.inner.trim(offset, bytes)?)
    }

    /// Makes `bytes` bytes at `offset` read as zeroes.
    ///
    /// # Errors
    /// As [`trim`](Self::trim).
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("disk");
    /// # onefold::create_block(&path, &onefold::BlockFormat::of_bytes(64 << 20))?;
    /// # let store = onefold::Store::open(&path)?;
    /// # store.create_volume("vm1", 1 << 20)?;
    /// # let volume = store.volume("vm1")?;
    /// volume.write_at(0, &[1; 8192])?;
    /// volume.write_zeroes(1, 2)?;
    /// let mut found = [7; 4];
    /// volume.read_at(0, &mut found)?;
    /// assert_eq!(found, [1, 0, 0, 1]);
    /// # drop(volume);
    /// # store.close()?;
    /// # Ok::<(), onefold::Error>(())
    /// ```
    pub fn write_zeroes(&self, offset: u64, bytes: u64) -> Result<()> {
        self.made(self.inner.write_zeroes(offset, bytes, false)?)
    }

    /// Makes each change that completed before this call durable.
    ///
    /// # Errors
    /// `Stopped`: they can't be made durable, and why.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("disk");
    /// # onefold::create_block(&path, &onefold::BlockFormat::of_bytes(64 << 20))?;
    /// # let store = onefold::Store::open(&path)?;
    /// # store.create_volume("vm1", 1 << 20)?;
    /// # let volume = store.volume("vm1")?;
    /// volume.write_at(0, b"kept")?;
    /// volume.flush()?;
    /// // These bytes are there from now on, also after a crash.
    /// # drop(volume);
    /// # store.close()?;
    /// # Ok::<(), onefold::Error>(())
    /// ```
    pub fn flush(&self) -> Result<()> {
        self.inner.flush()
    }

    /// The content of a range: data, zeroes or holes, from `offset` on. The answer may cover less
    /// than `bytes`; ask again from its end.
    ///
    /// # Errors
    /// `InvalidInput`: beyond the end. `Corrupt`, `Io`: the map can't be read.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("disk");
    /// # onefold::create_block(&path, &onefold::BlockFormat::of_bytes(64 << 20))?;
    /// # let store = onefold::Store::open(&path)?;
    /// # store.create_volume("vm1", 1 << 20)?;
    /// # let volume = store.volume("vm1")?;
    /// volume.write_at(8192, &[1; 4096])?;
    /// let found = volume.extents(0, 1 << 20)?;
    /// assert_eq!(found[0].kind, onefold::ExtentKind::Hole);
    /// assert_eq!((found[1].kind, found[1].bytes), (onefold::ExtentKind::Data, 4096));
    /// # drop(volume);
    /// # store.close()?;
    /// # Ok::<(), onefold::Error>(())
    /// ```
    pub fn extents(&self, offset: u64, bytes: u64) -> Result<Vec<Extent>> {
        self.inner.extents(offset, bytes, EXTENTS)
    }
}
