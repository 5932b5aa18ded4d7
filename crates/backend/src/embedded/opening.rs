//! Opening the file of `redb`, whoever wrote it.
//!
//! A file that was not closed is repaired: `redb` reads all trees of its newest commit, and of the
//! one before when a page of the newest does not have the checksum that is named for it. A power
//! failure leaves such a commit, whose pages may be those of older trees, and these have no place
//! in the newer ones. So the commit before is tried when a page has no place, first in memory.

use std::{fs::File, io, os::unix::fs::FileExt, sync::Arc};

use onefold_core::{Error, Kind, Result};
use redb::{Builder, Database, StorageBackend};

use super::{
    guard::{failed, guarded},
    look::Look,
    own::Own,
    trees::Trees,
};
use crate::file_disk::standing::Standing;

/// How a file of `redb` begins.
const MAGIC: &[u8; 4] = b"redb";

/// Bytes of its head.
const HEAD_BYTES: usize = 320;

/// Where it says whether it was closed, and the bit that it was not.
const STATE_AT: usize = 9;
const NOT_CLOSED: u8 = 2;

/// The bit that the last commit was durable before it was named: then the one before counts no
/// more.
const NAMED_LATER: u8 = 4;

/// The bit that tells which commit counts.
const SECOND_COUNTS: u8 = 1;

/// Where the two commits stand in the head; in each of them, where its number is and where its
/// checksum.
const COMMITS: [usize; 2] = [64, 192];
const NUMBER_AT: usize = 104;
const CHECKSUM_AT: usize = 112;
const CHECKSUM_BYTES: usize = 16;

/// Memory for pages.
const CACHE_BYTES: usize = 64 << 20;

/// Opens the database in a file that we have locked. Nothing reaches the file but of its `owner`,
/// who knows how long it must be.
///
/// # Errors
/// `Corrupt`, and those of the system.
pub(super) fn database(file: &File, owner: Option<&Arc<Standing>>) -> Result<Database> {
    let head = head_of(file)?;
    if head[STATE_AT] & NOT_CLOSED == 0 {
        return Checked::of(file, &head, owner)?.open();
    }
    let newest = Checked::of(file, &head, owner)?;
    let error = match newest.repair() {
        Ok(database) => return Ok(database),
        Err(error) if newest.trees.has_refused() => error,
        Err(error) => return Err(error),
    };
    // `redb` may have written the head anew.
    let head = head_of(file)?;
    let Some(checksum) = without_newest(&head) else { return Err(error) };
    let in_memory = Checked::of(file, &head, None)?;
    in_memory.write(checksum.at, &checksum.wrong).map_err(lost)?;
    let before = in_memory.repair().map_err(|_| error)?;
    if owner.is_none() {
        return Ok(before);
    }
    drop(before);
    file.write_all_at(&checksum.wrong, checksum.at)
        .and_then(|()| file.sync_data())
        .map_err(lost)?;
    Checked::of(file, &head, owner)?.repair()
}

fn head_of(file: &File) -> Result<[u8; HEAD_BYTES]> {
    let mut head = [0; HEAD_BYTES];
    // `redb` would make a database of a file that is not one.
    if file.read_exact_at(&mut head, 0).is_err() || !head.starts_with(MAGIC) {
        return Err(Error::new(Kind::Corrupt, "the tables of the store are no database"));
    }
    Ok(head)
}

fn lost(error: io::Error) -> Error {
    Error::from_io("the tables of the store", error)
}

/// A checksum with which a commit does not count.
struct Checksum {
    at: u64,
    wrong: [u8; CHECKSUM_BYTES],
}

/// The bytes that take the newest commit out of the head; `None` when the one before may not count.
fn without_newest(head: &[u8; HEAD_BYTES]) -> Option<Checksum> {
    if head[STATE_AT] & NAMED_LATER != 0 {
        return None;
    }
    let number = |at: usize| -> Option<u64> {
        Some(u64::from_le_bytes(head.get(at + NUMBER_AT..at + NUMBER_AT + 8)?.try_into().ok()?))
    };
    let [first, second] = COMMITS;
    let counts = usize::from(head[STATE_AT] & SECOND_COUNTS);
    let newest = match number(first)?.cmp(&number(second)?) {
        std::cmp::Ordering::Greater => first,
        std::cmp::Ordering::Less => second,
        std::cmp::Ordering::Equal => COMMITS[counts],
    };
    let at = newest + CHECKSUM_AT;
    let mut wrong: [u8; CHECKSUM_BYTES] = head.get(at..at + CHECKSUM_BYTES)?.try_into().ok()?;
    wrong.iter_mut().for_each(|byte| *byte = !*byte);
    Some(Checksum { at: at as u64, wrong })
}

/// The file as `redb` gets it, which may open it twice.
#[derive(Clone, Debug)]
struct Checked {
    file: Arc<dyn StorageBackend>,
    trees: Arc<Trees>,
}

impl Checked {
    fn of(file: &File, head: &[u8], owner: Option<&Arc<Standing>>) -> Result<Checked> {
        let trees = Arc::new(Trees::of(file, head)?);
        let own = file.try_clone().map_err(lost)?;
        let file: Arc<dyn StorageBackend> = match owner {
            Some(standing) => Arc::new(Own::at(own, trees.clone(), standing.clone())),
            None => Arc::new(Look::at(own, trees.clone()).map_err(lost)?),
        };
        Ok(Checked { file, trees })
    }

    /// Repairs it, and opens it then. While it is repaired `redb` remembers no page, so that each
    /// one that it reads is drawn from what it may read.
    fn repair(&self) -> Result<Database> {
        let repaired = || {
            drop(
                Builder::new()
                    .set_cache_size(0)
                    .create_with_backend(self.clone())
                    .map_err(failed)?,
            );
            Ok(())
        };
        guarded(repaired)?;
        self.open()
    }

    fn open(&self) -> Result<Database> {
        let opened = || {
            let mut builder = Builder::new();
            builder.set_cache_size(CACHE_BYTES).create_with_backend(self.clone()).map_err(failed)
        };
        let database = guarded(opened)?;
        self.trees.opened();
        Ok(database)
    }
}

impl StorageBackend for Checked {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        self.file.read(offset, len)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn sync_data(&self, eventual: bool) -> io::Result<()> {
        self.file.sync_data(eventual)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write(offset, data)
    }
}
