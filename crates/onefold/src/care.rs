//! Care of an open store: what it saves, whether its data is whole, and space that it gives back.

use onefold_archive::{
    Collection, CollectionOptions, Format, VOLUME_BLOCK_BYTES, check, record_damage,
};
use onefold_block::check::scrub_open;
use onefold_cluster::{Report, Scrub};
use onefold_core::{BLOCK_BYTES, Result};

use crate::{
    parts::archive_dir::now,
    store::{Engine, OpenArchive, OpenCluster, Store},
};

/// Seconds that forgotten snapshots are kept.
const TRASH: u64 = 7 * 86_400;

/// Seconds for which chunks of puts that ended early are kept, so that a repeat finds them: those
/// of the command.
const KEEP_PARTIAL: u64 = 24 * 3600;

/// The content of a store, and the space that it takes.
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("backups");
/// # onefold::create_archive(&path, &onefold::ArchiveFormat::default())?;
/// # let store = onefold::Store::open(&path)?;
/// store.put("monday", &mut &[7; 100_000][..])?;
/// store.put("tuesday", &mut &[7; 100_000][..])?;
/// let onefold::Usage { content_bytes, stored_bytes } = store.usage()?;
/// assert_eq!(content_bytes, 200_000);
/// assert!(stored_bytes < content_bytes / 2);
/// # store.close()?;
/// # Ok::<(), onefold::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of all volumes and streams, without zeroes that take no space.
    pub content_bytes: u64,
    /// Bytes that are stored for them, each piece once, compressed where the engine compresses;
    /// tables are not counted.
    pub stored_bytes: u64,
}

/// The findings of a scrub.
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("backups");
/// # onefold::create_archive(&path, &onefold::ArchiveFormat::default())?;
/// # let store = onefold::Store::open(&path)?;
/// let findings: onefold::Findings = store.scrub()?;
/// for problem in &findings.problems {
///     eprintln!("damage: {problem}");
/// }
/// assert_eq!(findings.is_well(), findings.found == 0);
/// # store.close()?;
/// # Ok::<(), onefold::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// The first problems, at most a thousand or a few more, each a sentence.
    pub problems: Vec<String>,
    /// How many there are.
    pub found: u64,
}

impl Findings {
    /// True when all data is whole.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("backups");
    /// # onefold::create_archive(&path, &onefold::ArchiveFormat::default())?;
    /// let store = onefold::Store::open(&path)?;
    /// store.put("letter", &mut &b"to be kept"[..])?;
    /// assert!(store.scrub()?.is_well());
    /// # store.close()?;
    /// # Ok::<(), onefold::Error>(())
    /// ```
    #[must_use]
    pub fn is_well(&self) -> bool {
        self.found == 0
    }
}

impl Store {
    /// The content of the store and the space that it takes. A block store counts as of its last
    /// checkpoint.
    ///
    /// # Errors
    /// `Corrupt`, `Io`: an archive's log or a cluster's maps can't be read.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("cluster");
    /// # onefold::create_cluster(&path)?;
    /// # let store = onefold::Store::open(&path)?;
    /// store.put("image", &mut &[7; 100_000][..])?;
    /// assert_eq!(store.usage()?.content_bytes, 100_000);
    /// # store.close()?;
    /// # Ok::<(), onefold::Error>(())
    /// ```
    pub fn usage(&self) -> Result<Usage> {
        match &self.engine {
            Engine::Block(store) => {
                let status = store.store().status();
                let bytes = |blocks: u64| blocks.saturating_mul(BLOCK_BYTES as u64);
                Ok(Usage {
                    content_bytes: bytes(status.mapped_blocks),
                    stored_bytes: bytes(status.live_blocks),
                })
            }
            Engine::Archive(open) => open.usage(),
            Engine::Cluster(open) => {
                let status = open.session.status()?;
                Ok(Usage {
                    content_bytes: status.logical_bytes,
                    stored_bytes: status.cached_bytes + status.chunk_bytes,
                })
            }
        }
    }

    /// Reads all data and compares it with its fingerprints; it may take as long as the disk needs
    /// to read everything. Reads and writes go on meanwhile. Nothing is mended, but an archive
    /// records which chunks are damaged, so that the same content is stored anew when it is put
    /// again. Of a block store the data of its last checkpoint is read.
    ///
    /// # Errors
    /// `Io`: the system failed. Damage is no error: it is in the findings.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("disk");
    /// # onefold::create_block(&path, &onefold::BlockFormat::of_bytes(64 << 20))?;
    /// # let store = onefold::Store::open(&path)?;
    /// store.create_volume("vm1", 1 << 20)?;
    /// store.volume("vm1")?.write_at(0, &[7; 8192])?;
    /// let findings = store.scrub()?;
    /// assert!(findings.is_well(), "{:?}", findings.problems);
    /// # store.close()?;
    /// # Ok::<(), onefold::Error>(())
    /// ```
    pub fn scrub(&self) -> Result<Findings> {
        match &self.engine {
            Engine::Block(store) => {
                let report = scrub_open(store.store().engine(), &mut |_| {}, &mut || false);
                let found = report.bad_found + report.unread.len() as u64;
                let bad = report.bad.into_iter().map(|bad| {
                    if bad.whole {
                        return format!("block {} {}", bad.pba.0, bad.what);
                    }
                    let hit = bad.names.iter().map(|(volume, lba)| {
                        format!("{} at byte {}", volume.escape_debug(), lba.0 * BLOCK_BYTES as u64)
                    });
                    let hit: Vec<String> = hit.collect();
                    format!("block {} {}; it is in {}", bad.pba.0, bad.what, hit.join(", "))
                });
                Ok(Findings { problems: bad.chain(report.unread).collect(), found })
            }
            Engine::Archive(open) => open.scrub(),
            Engine::Cluster(open) => open.scrub(),
        }
    }

    /// Gives back the space of removed streams and of blocks that were overwritten, and says how
    /// many bytes of an archive's containers that were. Space that a put or reader may still need
    /// is left to the next call. A cluster store ends its deletions, which its workers count.
    ///
    /// # Errors
    /// `Busy`: another process collects. `Unsupported`: a block store, whose space becomes free
    /// with its next checkpoint by itself. `NoSpace`, `Io`: the disk is full or failed.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("backups");
    /// # onefold::create_archive(&path, &onefold::ArchiveFormat::default())?;
    /// # let store = onefold::Store::open(&path)?;
    /// store.put("monday", &mut &b"no longer needed"[..])?;
    /// store.remove("monday")?;
    /// assert!(store.gc()? > 0);
    /// # store.close()?;
    /// # Ok::<(), onefold::Error>(())
    /// ```
    pub fn gc(&self) -> Result<u64> {
        match &self.engine {
            Engine::Block(_) => Err(self.unsupported("frees space by itself, and needs no gc")),
            Engine::Archive(open) => open.gc(),
            Engine::Cluster(open) => {
                while open.session.delete_step()? {}
                Ok(0)
            }
        }
    }
}

impl OpenArchive {
    fn usage(&self) -> Result<Usage> {
        let tables = self.archive.refresh()?;
        let streams: u64 = tables.streams.values().map(|stream| stream.bytes).sum();
        let blocks: u64 =
            tables.volumes.all().values().map(|volume| volume.block_index.used()).sum();
        Ok(Usage {
            content_bytes: streams + blocks * VOLUME_BLOCK_BYTES,
            stored_bytes: tables.sums().all().bytes,
        })
    }

    fn scrub(&self) -> Result<Findings> {
        let report = check(&self.archive, true, &mut |_, _, _| {})?;
        if !report.rotten.is_empty() {
            record_damage(&self.archive, &report.rotten)?;
        }
        Ok(Findings { problems: report.problems, found: report.problems_found })
    }

    fn gc(&self) -> Result<u64> {
        let options = CollectionOptions {
            now: now(),
            keep_partial: KEEP_PARTIAL,
            trash: TRASH,
            wait: false,
            reserve_bytes: Format::new([0; 16], [0; 32], [0; 16]).reserve_bytes,
            encode_all: false,
            doubts_clock: true,
        };
        Ok(Collection::begin(&self.archive, options)?.run(&mut |_| {})?.freed_bytes)
    }
}

impl OpenCluster {
    fn scrub(&self) -> Result<Findings> {
        let mut scrub = Scrub::look(self.session.clone(), true)?;
        while scrub.step()? {}
        Ok(cluster_findings(scrub.report()))
    }
}

/// The damage that a look at a cluster store found.
pub(crate) fn cluster_findings(report: &Report) -> Findings {
    let lacking = [
        (report.added, "missing references"),
        (report.restored, "missing chunks whose objects still have the content"),
    ];
    let lacking = lacking.into_iter().filter(|(count, _)| *count > 0);
    let mut problems: Vec<String> =
        lacking.map(|(count, what)| format!("{count} {what}")).collect();
    problems.extend(report.damage.iter().cloned());
    let found = report.added + report.restored + report.damage.len() as u64;
    Findings { problems, found }
}
