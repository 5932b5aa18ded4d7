//! A snapshot on its way in: a walk gives events and bytes on one thread; chunks are placed, packed
//! and written on others, as for a put.
//!
//! Now and then what there is so far becomes a *checkpoint*: a tree of its own, durable, that no
//! list shows. A backup that was killed is repeated with it as a parent, and reads the rest only.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use onefold_core::{Fingerprint, Result};
use parking_lot::Mutex;

use super::{
    builder::{Built, Event, TreeBuilder},
    compare::Comparison,
    foreign::Judge,
    parent::{Found, Parents},
    shrunk::is_halved,
};
use crate::{
    chunk_index::ByFingerprint,
    format::{
        backup::{Completeness, Origin, Snapshot, SnapshotId},
        domain::FIRST_DOMAIN,
        tree_node::{FileMap, Stat, TreeEntry},
    },
    memory::BufferPool,
    operations_log::{Archive, admits, domain_of, is_put},
    stream::{
        Batch, Block, Blocks, Cutting, Filling, Gauge, Given, Growth, Ingest, Item, Presence,
        Results, Session, Sink, StoredChunk, StreamWriter, Trial, buffers, cut_beside, staged,
    },
    tables::Tables,
};

/// Bytes of memory of events that wait for chunks to go with them, at most, and the last one more. Those
/// with known pages are large.
const EVENTS_BYTES: u64 = 4 << 20;

/// The arguments of a backup.
#[derive(Clone, Debug, Default)]
pub struct BackupRequest {
    /// The id of the snapshot, drawn by chance.
    pub id: SnapshotId,
    /// Its set.
    pub set: String,
    /// The number of its domain; without one that of its set, or the first one.
    pub domain: Option<u32>,
    /// The name of the host.
    pub host: String,
    /// The id of the machine; zero for none.
    pub machine: [u8; 16],
    /// The directories and files that were asked for.
    pub paths: Vec<Vec<u8>>,
    /// Words by which it is found.
    pub tags: Vec<String>,
    /// When it begins, in seconds since 1970.
    pub now: u64,
    /// Tells the time when it ends; without one it ends when it began.
    pub clock: Option<fn() -> u64>,
    /// The snapshot from which unchanged pages are taken over.
    pub parent: Option<SnapshotId>,
    /// A checkpoint of a backup that was killed: what it has is taken over first.
    pub checkpoint: Option<SnapshotId>,
    /// The set is as small as it is on purpose: it is not called shrunk.
    pub accept: bool,
    /// It is a copy of a snapshot of another archive, and says of itself what that one says.
    pub copied: Option<CopiedFrom>,
}

/// What a copy of a snapshot of another archive says of itself as the other one does.
#[derive(Clone, Copy, Debug)]
pub struct CopiedFrom {
    /// The fingerprint of its root there: it stands for all that the snapshot has.
    pub root: Fingerprint,
    /// When that was committed, in seconds since 1970.
    pub ended: u64,
    /// How much it has.
    pub completeness: Completeness,
    /// How much of it could not be read and was left out.
    pub left_out: u64,
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

/// Takes in another process what a walk finds.
pub trait TreeSink {
    /// Content.
    ///
    /// # Errors
    /// The other process is gone.
    fn bytes(&mut self, bytes: &[u8]) -> Result<()>;

    /// A hole of the file at hand.
    ///
    /// # Errors
    /// As [`bytes`](Self::bytes).
    fn hole(&mut self, bytes: u64) -> Result<()>;

    /// An event.
    ///
    /// # Errors
    /// As [`bytes`](Self::bytes).
    fn event(&mut self, event: &Event) -> Result<()>;
}

/// Where what was found goes.
enum Out<'a> {
    /// To the threads of this process.
    Here(Blocks<Event>),
    /// To another process.
    Elsewhere(&'a mut dyn TreeSink),
    /// Nowhere: it is only compared with the parents.
    Nowhere,
    /// Nowhere, but it is known what it would add.
    Trial(Box<(Cutting, Trial, TreeBuilder)>),
}

/// Where a walk gives what it finds.
pub struct TreeFeeder<'a> {
    filling: Filling<Event>,
    /// Bytes of memory of the events that go with the block that is filled.
    events_bytes: u64,
    out: Out<'a>,
    gauge: &'a Gauge,
    /// Looks at what other processes tell, from the first event of one on.
    judge: Option<Judge>,
    /// The number of the domain that it goes to.
    domain: u32,
    /// The archive, and its tables when the walk began.
    begun: (Arc<Archive>, Arc<Tables>),
    /// What the parent of this number has of the file that is read.
    comparison: Option<(usize, Comparison)>,
    /// Content that is given is compared only, and stored nowhere.
    only_compares: bool,
    /// Bytes that were compared only, of the file at hand.
    compared: u64,
    /// Looks for chunks by their fingerprints alone, where the walk goes to the threads of this process.
    presence: Option<Presence>,
    /// The trees of the checkpoint and of the parent, beside the walk.
    pub parents: Parents,
}

impl<'a> TreeFeeder<'a> {
    /// For a walk that is no writer's.
    fn beside(
        archive: &Arc<Archive>,
        parents: &[&Snapshot],
        gauge: &'a Gauge,
        out: Out<'a>,
        buffers: Arc<BufferPool>,
    ) -> Result<TreeFeeder<'a>> {
        Ok(TreeFeeder {
            filling: Filling::new(archive.label().chunking, buffers),
            events_bytes: 0,
            out,
            gauge,
            judge: None,
            domain: FIRST_DOMAIN,
            begun: (archive.clone(), archive.tables()),
            comparison: None,
            only_compares: false,
            compared: 0,
            presence: None,
            parents: Parents::new(archive, parents)?,
        })
    }
}

impl TreeFeeder<'_> {
    /// Lets `read` fill a buffer with content, which says how many bytes it was; 0 is the end.
    ///
    /// # Errors
    /// The errors of `read`, and `Stopped` when a later stage failed.
    pub fn fill(&mut self, read: impl FnOnce(&mut [u8]) -> Result<usize>) -> Result<usize> {
        let n = read(self.filling.room())?;
        self.gauge.read.fetch_add(n as u64, Relaxed);
        if let Some((parent, comparison)) = &mut self.comparison
            && let Some(reader) = self.parents.reader(*parent)
        {
            comparison.bytes(reader, &self.filling.room()[..n])?;
        }
        if self.only_compares {
            self.compared += n as u64;
            return Ok(n);
        }
        match &mut self.out {
            Out::Elsewhere(sink) => sink.bytes(&self.filling.room()[..n]).map(|()| n),
            Out::Nowhere => Ok(n),
            Out::Here(_) | Out::Trial(_) => {
                let block = self.filling.advance(n);
                self.send(block).map(|()| n)
            }
        }
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
        if let Some((parent, comparison)) = &mut self.comparison
            && let Some(reader) = self.parents.reader(*parent)
        {
            comparison.zeroes(reader, bytes)?;
        }
        if self.only_compares {
            self.compared += bytes;
            return Ok(());
        }
        match &mut self.out {
            Out::Elsewhere(sink) => sink.hole(bytes),
            Out::Nowhere => Ok(()),
            Out::Here(_) | Out::Trial(_) => {
                let block = self.filling.hole(bytes);
                self.send(block)
            }
        }
    }

    /// Zeroes of the file at hand that nobody has to read.
    ///
    /// # Errors
    /// `Stopped` when a later stage failed.
    pub fn zeroes(&mut self, bytes: u64) -> Result<()> {
        match &mut self.out {
            Out::Here(_) | Out::Trial(_) => {
                self.gauge.read.fetch_add(bytes, Relaxed);
                let block = self.filling.zeroes(bytes);
                self.send(block)
            }
            Out::Elsewhere(_) | Out::Nowhere => self.hole(bytes),
        }
    }

    /// Where the archive has chunks, by their fingerprints alone, and their bytes: neither condemned nor damaged, and not
    /// freed before the walk ends. An [event](Event::Chunks) names them. Nothing is found where bytes count
    /// too, and where the walk goes elsewhere.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn stored(&mut self, of: &[Fingerprint]) -> Result<Vec<Option<StoredChunk>>> {
        match &self.presence {
            Some(presence) => presence.find(of),
            None => Ok(vec![None; of.len()]),
        }
    }

    /// Compares the content that comes now with that of the first of the parents' entries that `is` the
    /// same, until [`differed`](Self::differed) is asked. Nothing stored is read but where chunks end. Content of
    /// this file that was compared before comes again, and the gauge counts it once.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn compare(
        &mut self,
        found: &[Found],
        is: impl Fn(&TreeEntry, &Stat) -> bool,
    ) -> Result<()> {
        self.gauge.read.fetch_sub(std::mem::take(&mut self.compared), Relaxed);
        self.comparison = self.parents.comparison(found, is)?;
        Ok(())
    }

    /// Behind [`compare`](Self::compare). True when what is stored of this file was stored before the data key was
    /// changed, so that the same content would be stored again. Then the content that comes now is compared and goes
    /// nowhere, until [`same`](Self::same) is asked.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn only_compares(&mut self) -> Result<bool> {
        if let Some((parent, comparison)) = &mut self.comparison {
            self.only_compares = self.parents.is_found_no_more(*parent, comparison)?;
        }
        Ok(self.only_compares)
    }

    /// The map of the file as it is stored, when its content was only compared and is the same.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn same(&mut self) -> Result<Option<FileMap>> {
        self.only_compares = false;
        let Some((parent, comparison)) = self.comparison.take() else { return Ok(None) };
        match self.parents.reader(parent) {
            Some(reader) => comparison.all_equal(reader),
            None => Ok(None),
        }
    }

    /// True when the content since [`compare`](Self::compare) is known to be another one. It has to have
    /// the same length.
    pub fn differed(&mut self) -> bool {
        self.comparison.take().is_some_and(|(_, comparison)| comparison.differs())
    }

    /// Content of a file that is taken over unread.
    pub fn skip(&self, bytes: u64) {
        self.gauge.read.fetch_add(bytes, Relaxed);
    }

    /// An event, behind the content that was given so far.
    ///
    /// # Errors
    /// `Stopped` when a later stage failed.
    pub fn event(&mut self, event: Event) -> Result<()> {
        self.compared = 0;
        match &mut self.out {
            Out::Here(_) | Out::Trial(_) => {
                self.events_bytes += event.memory();
                self.filling.tell(event);
            }
            Out::Elsewhere(sink) => return sink.event(&event),
            Out::Nowhere => return Ok(()),
        }
        let mut block = self.filling.mark();
        if self.events_bytes > EVENTS_BYTES {
            block = block.or_else(|| Some(self.filling.some()));
        }
        self.send(block)
    }

    /// An event of a walk in another process: what it names of the archive must be there.
    ///
    /// # Errors
    /// As [`event`](Self::event), and `InvalidInput` when something is not there.
    pub fn event_of_another(&mut self, event: Event) -> Result<()> {
        let (archive, tables) = &self.begun;
        let judge = || Judge::new(archive, tables, self.domain);
        self.judge.get_or_insert_with(judge).look(&event)?;
        match event {
            Event::Checkpoint(id) => self.checkpoint(id),
            event => self.event(event),
        }
    }

    /// Between two entries: makes what there is so far a checkpoint of this id.
    ///
    /// # Errors
    /// `Stopped` when a later stage failed.
    pub fn checkpoint(&mut self, id: SnapshotId) -> Result<()> {
        self.event(Event::Checkpoint(id))?;
        // The event does not wait until the block is full.
        let block = self.filling.some();
        self.send(Some(block))
    }

    fn end(&mut self) -> Result<()> {
        let block = self.filling.end();
        self.send(Some(block))
    }

    fn send(&mut self, block: Option<Block<Event>>) -> Result<()> {
        let Some(block) = block else { return Ok(()) };
        self.events_bytes = 0;
        match &mut self.out {
            Out::Here(out) => out.send(Some(block)),
            Out::Trial(trial) => {
                let (cutting, trial, builder) = &mut **trial;
                let (mut batch, events) = cutting.block(block);
                events.into_iter().for_each(|event| builder.expect(event));
                trial.place(&mut batch, builder)?;
                self.gauge.new.store(trial.new_bytes(), Relaxed);
                Ok(())
            }
            Out::Elsewhere(_) | Out::Nowhere => Ok(()),
        }
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
    admits(&ingest.archive, &request.host, &request.set)?;
    let domain = request.domain_in(&ingest.archive.tables())?;
    let mut session = Session::in_domain(ingest, domain)?;
    let mut writer = StreamWriter::new(&session, request.now);
    let of = |id: Option<SnapshotId>| session.tables().snapshots.get(id?).ok();
    let parents = [request.checkpoint, request.parent].into_iter().filter_map(of);
    // A put key can't open them: all is read.
    let parents: Vec<_> = parents.filter(|_| !is_put(&ingest.archive)).collect();
    // Opened by the session's epoch: what the parents name is not freed before the session ends.
    let parents = Parents::new(&ingest.archive, &parents)?;
    let (archive, tables) = (&*ingest.archive, session.tables().clone());
    let in_domain = session.domain.clone();
    let presence = Presence::of(&session);
    let feed = |out: Given<_>| {
        cut_beside((archive, &in_domain), &out, |filling, blocks| {
            let mut feeder = TreeFeeder {
                filling,
                events_bytes: 0,
                out: Out::Here(blocks),
                gauge,
                judge: None,
                domain,
                begun: (ingest.archive.clone(), tables),
                comparison: None,
                only_compares: false,
                compared: 0,
                presence,
                parents,
            };
            source(&mut feeder)?;
            feeder.end()
        })
    };
    let (so_far, mut written) = (SoFar::default(), 0);
    let built = staged(
        ingest,
        &mut writer,
        feed,
        |items, sink| place(&mut session, items, sink, gauge, &so_far),
        |writer| {
            written += 1;
            so_far.commit(written, writer, request)
        },
    );
    match built.and_then(|built| Ok((writer.commit_snapshot(request, &built)?, built))) {
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

/// Lets `source` compare what it finds with the parents, for an archive that another process writes;
/// without a sink nothing is stored. No lock of a writer is taken. What the parents name is not
/// freed before this returns.
///
/// # Errors
/// The errors of the source, of the sink, and of the system.
pub fn backup_elsewhere<'a>(
    archive: &'a Arc<Archive>,
    parents: &[&Snapshot],
    gauge: &'a Gauge,
    sink: Option<&'a mut dyn TreeSink>,
    source: impl FnOnce(&mut TreeFeeder<'_>) -> Result<()>,
) -> Result<()> {
    let out = sink.map_or(Out::Nowhere, Out::Elsewhere);
    source(&mut TreeFeeder::beside(archive, parents, gauge, out, buffers())?)
}

/// Tells by how much the archive would grow if what `source` gives were stored, and stores nothing.
/// No lock of a writer is taken. Chunks are looked up and packed on this thread.
///
/// # Errors
/// The errors of the source, and of the system.
pub fn backup_trial(
    archive: &Arc<Archive>,
    request: &BackupRequest,
    parents: &[&Snapshot],
    gauge: &Gauge,
    source: impl FnOnce(&mut TreeFeeder<'_>) -> Result<()>,
) -> Result<Growth> {
    admits(archive, &request.host, &request.set)?;
    let buffers = buffers();
    let domain = &domain_of(archive, request.domain_in(&archive.tables())?)?;
    let cutting = Cutting::of_blocks(&**domain, buffers.clone());
    let builder = TreeBuilder::new(archive, domain);
    let trial = Box::new((cutting, Trial::new(archive, domain)?, builder));
    let mut feeder = TreeFeeder::beside(archive, parents, gauge, Out::Trial(trial), buffers)?;
    source(&mut feeder)?;
    feeder.end()?;
    match feeder.out {
        Out::Trial(trial) => trial.1.end(),
        _ => Ok(Growth::default()),
    }
}

/// A checkpoint on its way: it is committed by the thread that writes, once it has written all
/// containers that were sealed for it.
#[derive(Default)]
struct SoFar(Mutex<Option<(u64, SnapshotId, Built)>>);

impl SoFar {
    fn commit(
        &self,
        written: u64,
        writer: &mut StreamWriter,
        request: &BackupRequest,
    ) -> Result<()> {
        let is_written = |(sealed, ..): &mut (u64, SnapshotId, Built)| *sealed <= written;
        let Some((_, id, so_far)) = self.0.lock().take_if(is_written) else { return Ok(()) };
        writer.commit_checkpoint(request, id, &so_far).map(|_| ())
    }
}

fn place(
    session: &mut Session,
    items: Results<Item<Event>>,
    sink: &mut Sink<'_>,
    gauge: &Gauge,
    so_far: &SoFar,
) -> Result<Built> {
    let mut builder = TreeBuilder::new(&session.ingest.archive, &session.domain);
    let mut sealed = 0;
    for item in items {
        let mut counted = |open| {
            sealed += 1;
            sink(open)
        };
        let is_checkpoint = |event: &Event| matches!(event, Event::Checkpoint(_));
        let ends = item.told.iter().any(is_checkpoint);
        item.told.into_iter().for_each(|event| builder.expect(event));
        session.add_to(&item.batch, &mut builder, &mut counted)?;
        if ends {
            session.place_rest(&mut builder, &mut counted)?;
        }
        gauge.new.store(session.new_bytes, Relaxed);
        if let Some((id, built)) = builder.take_checkpoint() {
            // Said before the last container is on its way: its writer looks here.
            *so_far.0.lock() = Some((sealed + session.open_containers(), id, built));
            session.seal(&mut |open| {
                sealed += 1;
                sink(open)
            })?;
        }
    }
    session.place_rest(&mut builder, sink)?;
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

    /// Places all chunks that wait, and tells the builder: the tree ends, or becomes a checkpoint.
    /// Nothing waits but in archives that [gather](crate::Rad::gathers).
    ///
    /// # Errors
    /// As [`add_to`](Self::add_to).
    pub fn place_rest(&mut self, builder: &mut TreeBuilder, sink: &mut Sink<'_>) -> Result<()> {
        self.place_gathered(builder, sink)
    }
}

impl BackupRequest {
    /// The last whole snapshot of the same set.
    pub(super) fn last_whole<'a>(&self, tables: &'a Tables) -> Option<&'a Snapshot> {
        let mut earlier = tables
            .snapshots
            .listed()
            .rev()
            .filter(|earlier| earlier.set == self.set && earlier.host == self.host);
        earlier.find(|earlier| earlier.completeness == Completeness::Whole)
    }

    /// The snapshot of a finished tree, beside those that are there; `of_holes` is an earlier one of
    /// which it lacks many bytes, but no data.
    pub(crate) fn snapshot(
        &self,
        built: &Built,
        added: u64,
        tables: &Tables,
        of_holes: Option<SnapshotId>,
    ) -> Snapshot {
        let shrunk = self.last_whole(tables).is_some_and(|last| {
            let lost_bytes = is_halved(built.bytes, last.bytes) && of_holes != Some(last.id);
            is_halved(built.entries, last.entries) || lost_bytes
        });
        let completeness = match (shrunk, built.left_out > 0) {
            (true, _) if !self.accept => Completeness::Shrunk,
            (_, true) => Completeness::Partial,
            (_, false) => Completeness::Whole,
        };
        let ended = self.clock.map_or(self.now, |clock| clock().max(self.now));
        let (ended, completeness) = match &self.copied {
            // Less than was there is never whole.
            Some(copied) if built.left_out > copied.left_out => {
                (copied.ended, Completeness::Partial)
            }
            Some(copied) => (copied.ended, copied.completeness),
            None => (ended, completeness),
        };
        Snapshot {
            id: self.id,
            set: self.set.clone(),
            // The stream that commits it knows better.
            domain: FIRST_DOMAIN,
            host: self.host.clone(),
            machine: self.machine,
            paths: self.paths.clone(),
            tags: self.tags.clone(),
            began: self.now,
            ended,
            origin: self
                .copied
                .map_or(Origin::Read(self.parent), |copied| Origin::Copied(copied.root)),
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
