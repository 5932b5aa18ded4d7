//! A snapshot on its way in: a walk gives events and bytes on one thread; chunks are placed, packed
//! and written on others, as for a put.

use std::sync::{
    Arc,
    atomic::Ordering::Relaxed,
    mpsc::{Receiver, SyncSender},
};

use onefold_core::Result;

use super::{
    builder::{Built, Event, TreeBuilder},
    parent::Parent,
};
use crate::{
    chunk_index::ByFingerprint,
    format::backup::{Completeness, Snapshot, SnapshotId},
    operations_log::Archive,
    stream::{Batch, Cutting, Gauge, Ingest, Session, Sink, StreamWriter, staged, stopped},
    tables::Tables,
};

/// The arguments of a backup.
#[derive(Clone, Debug, Default)]
pub struct BackupRequest {
    /// The id of the snapshot, drawn by chance.
    pub id: SnapshotId,
    /// Its set.
    pub set: String,
    /// The name of the host.
    pub host: String,
    /// The id of the machine; zero for none.
    pub machine: [u8; 16],
    /// The directories and files that were asked for.
    pub paths: Vec<Vec<u8>>,
    /// Words by which it is found.
    pub tags: Vec<String>,
    /// Seconds since 1970.
    pub now: u64,
    /// The snapshot from which unchanged pages are taken over.
    pub parent: Option<SnapshotId>,
}

/// The result of a backup.
#[derive(Clone, Debug)]
pub struct BackupReport {
    /// The snapshot as the catalogue has it.
    pub snapshot: Snapshot,
    /// Bytes of chunks that were new, before compression.
    pub new_bytes: u64,
    /// Pages of its tree that were written, and those that the parent had.
    pub pages: (u64, u64),
}

enum Item {
    Batch(Batch),
    Event(Box<Event>),
}

/// Where a walk gives what it finds.
pub struct TreeFeeder<'a> {
    archive: &'a Archive,
    cutting: Cutting,
    out: SyncSender<Item>,
    gauge: &'a Gauge,
    /// The parent's tree beside the walk.
    pub parent: Parent,
}

impl TreeFeeder<'_> {
    /// Lets `read` fill a buffer with content, which says how many bytes it was; 0 is the end.
    ///
    /// # Errors
    /// The errors of `read`, and `Stopped` when a later stage failed.
    pub fn fill(&mut self, read: impl FnOnce(&mut [u8]) -> Result<usize>) -> Result<usize> {
        let n = read(self.cutting.room())?;
        self.gauge.read.fetch_add(n as u64, Relaxed);
        let batch = self.cutting.advance(n);
        self.send(batch).map(|()| n)
    }

    /// Content from memory.
    ///
    /// # Errors
    /// `Stopped` when a later stage failed.
    pub fn bytes(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let n = self.fill(|room| {
                let n = room.len().min(bytes.len());
                room[..n].copy_from_slice(&bytes[..n]);
                Ok(n)
            })?;
            bytes = &bytes[n..];
        }
        Ok(())
    }

    /// A hole of the file at hand.
    ///
    /// # Errors
    /// `Stopped` when a later stage failed.
    pub fn hole(&mut self, bytes: u64) -> Result<()> {
        self.gauge.read.fetch_add(bytes, Relaxed);
        let batch = self.cutting.hole(bytes);
        self.send(batch)
    }

    /// An event, behind the content that was given so far.
    ///
    /// # Errors
    /// `Stopped` when a later stage failed.
    pub fn event(&mut self, event: Event) -> Result<()> {
        self.out.send(Item::Event(Box::new(event))).map_err(|_| stopped())?;
        let batch = self.cutting.mark();
        self.send(batch)
    }

    fn end(&mut self) -> Result<()> {
        let batch = self.cutting.end();
        self.send(Some(batch))
    }

    fn send(&mut self, batch: Option<Batch>) -> Result<()> {
        let Some(mut batch) = batch else { return Ok(()) };
        batch.fingerprint(self.archive);
        self.out.send(Item::Batch(batch)).map_err(|_| stopped())
    }
}

/// Stores what `source` gives as a snapshot, which is there, durably, when this returns.
///
/// # Errors
/// The errors of the source; `Busy`, `InvalidInput`, `NoSpace`; `Unsupported` when the archive
/// can't have snapshots; errors of the system.
pub fn backup(
    archive: &Arc<Archive>,
    request: &BackupRequest,
    wait: bool,
    gauge: &Gauge,
    source: impl FnOnce(&mut TreeFeeder<'_>) -> Result<()> + Send,
) -> Result<BackupReport> {
    let ingest = Ingest::begin(archive, wait, false)?;
    backup_on(&ingest, request, gauge, source)
}

/// The same beside other streams of the ingesting process.
///
/// # Errors
/// As [`backup`].
pub fn backup_on(
    ingest: &Arc<Ingest>,
    request: &BackupRequest,
    gauge: &Gauge,
    source: impl FnOnce(&mut TreeFeeder<'_>) -> Result<()> + Send,
) -> Result<BackupReport> {
    let mut session = Session::on(ingest)?;
    let mut writer = StreamWriter::new(&session, request.now);
    let parent = request.parent.and_then(|id| session.tables().snapshots.get(id).ok());
    let parent = parent.cloned();
    // Opened by the session's epoch: what the parent names is not freed before the session ends.
    let parent = Parent::new(&ingest.archive, parent.as_ref())?;
    let archive = &*ingest.archive;
    let feed = |out| {
        let cutting = Cutting::new(archive.label().chunking);
        let mut feeder = TreeFeeder { archive, cutting, out, gauge, parent };
        source(&mut feeder)?;
        feeder.end()
    };
    let built =
        staged(ingest, &mut writer, feed, |items, sink| place(&mut session, items, sink, gauge));
    match built.and_then(|built| writer.commit_snapshot(request, &built)) {
        Ok((snapshot, built)) => {
            writer.close()?;
            ingest.import(false)?;
            let pages = (built.pages, built.pages_taken);
            Ok(BackupReport { snapshot, new_bytes: session.new_bytes, pages })
        }
        Err(error) => {
            if error.kind() == onefold_core::Kind::NoSpace {
                writer.abandon();
            }
            Err(error)
        }
    }
}

fn place(
    session: &mut Session,
    items: Receiver<Item>,
    sink: &mut Sink<'_>,
    gauge: &Gauge,
) -> Result<Built> {
    let mut builder = TreeBuilder::new(&session.ingest.archive.clone());
    for item in items {
        match item {
            Item::Event(event) => builder.expect(*event),
            Item::Batch(batch) => {
                session.add_to(&batch, &mut builder, sink)?;
                gauge.new.store(session.new_bytes, Relaxed);
            }
        }
    }
    session.seal(sink)?;
    builder.built()
}

impl Session {
    /// Looks up a batch, places what is new, and tells the builder of a tree.
    ///
    /// # Errors
    /// Errors of the sink and of the system; `InvalidInput` for events out of order.
    pub fn add_to(
        &mut self,
        batch: &Batch,
        builder: &mut TreeBuilder,
        sink: &mut Sink<'_>,
    ) -> Result<()> {
        self.place(batch, builder, &ByFingerprint::default(), sink)
    }
}

impl BackupRequest {
    /// The snapshot of a finished tree, beside those that are there.
    pub(crate) fn snapshot(&self, built: &Built, added: u64, tables: &Tables) -> Snapshot {
        let mut earlier = tables
            .snapshots
            .listed()
            .rev()
            .filter(|earlier| earlier.set == self.set && earlier.host == self.host);
        let last = earlier.find(|earlier| earlier.completeness == Completeness::Whole);
        let halved = |now: u64, before: u64| now < before.div_ceil(2);
        let shrunk = last.is_some_and(|last| {
            halved(built.entries, last.entries) || halved(built.bytes, last.bytes)
        });
        let completeness = match (shrunk, built.left_out > 0) {
            (true, _) => Completeness::Shrunk,
            (false, true) => Completeness::Partial,
            (false, false) => Completeness::Whole,
        };
        Snapshot {
            id: self.id,
            set: self.set.clone(),
            host: self.host.clone(),
            machine: self.machine,
            paths: self.paths.clone(),
            tags: self.tags.clone(),
            began: self.now,
            ended: self.now,
            parent: self.parent,
            root: built.root,
            stats: built.stats,
            entries: built.entries,
            bytes: built.bytes,
            added,
            left_out: built.left_out,
            completeness,
            forgotten: None,
        }
    }
}
