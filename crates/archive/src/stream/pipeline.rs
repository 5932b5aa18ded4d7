//! The stages of a put on threads: read and cut; fingerprint; look up and place; pack; write.
//!
//! Reading and cutting are one stage, and fingerprints the next: these three together took twice as
//! long as all others, so that a put of one stream left one of two cores idle half the time.
//!
//! Queues are bounded, so that memory is: a batch or a container each way. The first failure stops
//! all stages. Containers are written in the order in which they are packed, which is of no
//! account.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
    mpsc::{Receiver, SyncSender, sync_channel},
};

use onefold_core::{Error, Kind, Result};
use parking_lot::Mutex;

use super::{
    batch::{Batch, Cutting},
    ingest::Ingest,
    session::{Session, Sink, Writing},
    stream_writer::{Ended, StreamWriter},
};
use crate::{
    container::pack,
    filter_chain::Counts,
    format::{
        container::{OpenContainer, Packed, Packer},
        parameters::Compression,
        recipe::End,
        record::{Pieces, Shape, Stream},
    },
    operations_log::Archive,
    tables::valid_name,
};

/// Batches and containers that wait between two stages.
const QUEUE: usize = 2;

/// How far a put is.
#[derive(Debug, Default)]
pub struct Gauge {
    /// Bytes read, holes included.
    pub read: AtomicU64,
    /// Bytes of new chunks.
    pub new: AtomicU64,
}

/// The arguments of a put.
pub struct Request {
    /// The stream's name.
    pub name: String,
    /// Bytes or a tree.
    pub shape: Shape,
    /// Seconds since 1970.
    pub now: u64,
    /// Waits for another ingesting process.
    pub wait: bool,
}

/// The result of a put.
#[derive(Clone, Debug)]
pub struct Report {
    /// The stream as the catalogue has it.
    pub stream: Stream,
    /// Bytes of chunks that were new, before compression.
    pub new_bytes: u64,
    /// Counts of the filters' checks.
    pub counts: Counts,
}

enum Item {
    Batch(Batch),
    EndRecipe,
    Incomplete,
}

/// The recipes of a stream, and whether its source said that something is missing.
type Recipes = (Vec<(Vec<Pieces>, End)>, bool);

/// Where a source gives its bytes.
pub struct Feeder<'a> {
    cutting: Cutting,
    out: SyncSender<Item>,
    gauge: &'a Gauge,
}

impl Feeder<'_> {
    /// Lets `read` fill a buffer, which says how many bytes it was; `0` is the end.
    ///
    /// # Errors
    /// The errors of `read`, and `Stopped` when a later stage failed.
    pub fn fill(&mut self, read: impl FnOnce(&mut [u8]) -> Result<usize>) -> Result<usize> {
        let n = read(self.cutting.room())?;
        self.gauge.read.fetch_add(n as u64, Relaxed);
        let batch = self.cutting.advance(n);
        self.send(batch).map(|()| n)
    }

    /// Bytes from memory.
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

    /// Zeroes that nobody has to read: a hole.
    ///
    /// # Errors
    /// `Stopped` when a later stage failed.
    pub fn zeroes(&mut self, bytes: u64) -> Result<()> {
        self.gauge.read.fetch_add(bytes, Relaxed);
        let batch = self.cutting.zeroes(bytes);
        self.send(batch)
    }

    /// The next bytes begin a chunk: a file begins.
    pub fn border(&mut self) {
        self.cutting.border();
    }

    /// Ends the recipe: the chunks after it belong to another one.
    ///
    /// # Errors
    /// `Stopped` when a later stage failed.
    pub fn end_recipe(&mut self) -> Result<()> {
        let batch = self.cutting.end();
        self.send(Some(batch))?;
        self.out.send(Item::EndRecipe).map_err(|_| stopped())
    }

    /// Something of the tree could not be read: the stream is marked.
    ///
    /// # Errors
    /// `Stopped` when a later stage failed.
    pub fn incomplete(&mut self) -> Result<()> {
        self.out.send(Item::Incomplete).map_err(|_| stopped())
    }

    fn send(&mut self, batch: Option<Batch>) -> Result<()> {
        let Some(batch) = batch else { return Ok(()) };
        self.out.send(Item::Batch(batch)).map_err(|_| stopped())
    }
}

/// Said by a stage whose successor is gone; the successor's reason is the one to tell.
pub(crate) fn stopped() -> Error {
    Error::new(Kind::Stopped, "a later stage of the put failed")
}

/// Stores what `source` gives as one stream, which is there, durably, when this returns.
///
/// # Errors
/// The errors of the source; `Busy`, `InvalidInput`, `NoSpace`, and errors of the system.
pub fn put(
    archive: &Arc<Archive>,
    request: Request,
    gauge: &Gauge,
    source: impl FnOnce(&mut Feeder<'_>) -> Result<()> + Send,
) -> Result<Report> {
    valid_name(&request.name)?;
    let ingest = Ingest::begin(archive, request.wait, false)?;
    put_on(&ingest, request, gauge, source)
}

/// The same as one of several streams of the ingesting process.
///
/// # Errors
/// As [`put`].
pub fn put_on(
    ingest: &Arc<Ingest>,
    request: Request,
    gauge: &Gauge,
    source: impl FnOnce(&mut Feeder<'_>) -> Result<()> + Send,
) -> Result<Report> {
    valid_name(&request.name)?;
    let mut session = Session::on(ingest)?;
    let mut writer = StreamWriter::new(&session, request.now);
    let recipes = run(ingest, &mut session, &mut writer, gauge, source);
    let done = recipes.and_then(|(mut recipes, incomplete)| {
        if recipes.is_empty() {
            return Err(Error::new(Kind::InvalidInput, "the stream has no recipe"));
        }
        let data = recipes.remove(0);
        let mut listing = recipes.pop().map(|(pieces, _)| pieces).unwrap_or_default();
        if incomplete {
            Stream::mark_incomplete(&mut listing);
        }
        writer.commit(Ended {
            name: request.name,
            shape: request.shape,
            created: request.now,
            data,
            listing,
        })
    });
    match done {
        Ok(stream) => {
            writer.close()?;
            ingest.import(false)?;
            Ok(Report { stream, new_bytes: session.new_bytes, counts: session.counts() })
        }
        Err(error) => {
            if error.kind() == Kind::NoSpace {
                writer.abandon();
            }
            Err(error)
        }
    }
}

/// Runs all stages to the end of the source; gives the recipes.
fn run(
    ingest: &Arc<Ingest>,
    session: &mut Session,
    writer: &mut StreamWriter,
    gauge: &Gauge,
    source: impl FnOnce(&mut Feeder<'_>) -> Result<()> + Send,
) -> Result<Recipes> {
    let archive = &*ingest.archive;
    let feed = |out| {
        let cutting = Cutting::new(archive.label().chunking);
        let mut feeder = Feeder { cutting, out, gauge };
        source(&mut feeder)?;
        feeder.end_recipe()
    };
    let nothing = |_: &mut StreamWriter| Ok(());
    staged(ingest, writer, feed, |items, sink| place(session, items, sink, gauge), nothing)
}

/// The content that a source gives.
pub(crate) trait Staged: Send {
    /// The chunks in it, whose fingerprints are still to be computed.
    fn batch(&mut self) -> Option<&mut Batch>;
}

impl Staged for Item {
    fn batch(&mut self) -> Option<&mut Batch> {
        match self {
            Item::Batch(batch) => Some(batch),
            Item::EndRecipe | Item::Incomplete => None,
        }
    }
}

/// Runs `source` on a thread, which gives items; another computes their fingerprints; `place` on
/// this one makes containers of them; packing and writing on others, with `written` after each
/// container. To the end.
pub(crate) fn staged<I: Staged, T>(
    ingest: &Arc<Ingest>,
    writer: &mut StreamWriter,
    source: impl FnOnce(SyncSender<I>) -> Result<()> + Send,
    place: impl FnOnce(Receiver<I>, &mut Sink<'_>) -> Result<T>,
    mut written: impl FnMut(&mut StreamWriter) -> Result<()> + Send,
) -> Result<T> {
    let archive = &ingest.archive;
    let (cut_in, cut) = sync_channel::<I>(QUEUE);
    let (items_in, items) = sync_channel(QUEUE);
    let (opens_in, opens) = sync_channel::<OpenContainer>(QUEUE);
    let (packed_in, packed) = sync_channel::<Packed>(QUEUE);
    let opens = Arc::new(Mutex::new(opens));
    std::thread::scope(|scope| {
        let reading = scope.spawn(move || source(cut_in));
        scope.spawn(move || fingerprint_all(archive, cut, &items_in));
        // Without compression one thread packs as fast as two.
        let packers = if archive.label().compression == Compression::None { 1 } else { 2 };
        for _ in 0..packers {
            let (opens, packed_in) = (opens.clone(), packed_in.clone());
            scope.spawn(move || pack_all(archive, &opens, &packed_in));
        }
        drop((opens, packed_in));
        let writing = scope.spawn(move || {
            for packed in packed {
                writer.write(&packed)?;
                packed.give_back(&archive.buffers);
                written(writer)?;
                if ingest.must_import() {
                    ingest.import(true)?;
                }
            }
            Ok(())
        });
        let placed = place(items, &mut |open| opens_in.send(open).map_err(|_| stopped()));
        drop(opens_in);
        let (read, wrote) = (joined(reading.join()), joined(writing.join()));
        let all = [wrote.as_ref().err(), placed.as_ref().err(), read.as_ref().err()];
        // A stage that only says that its successor is gone does not know the reason.
        let reason = all
            .into_iter()
            .flatten()
            .find(|error| error.kind() != Kind::Stopped)
            .or(all.into_iter().flatten().next());
        reason.cloned().map_or(placed, Err)
    })
}

fn joined(result: std::thread::Result<Result<()>>) -> Result<()> {
    result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn fingerprint_all<I: Staged>(archive: &Archive, cut: Receiver<I>, out: &SyncSender<I>) {
    for mut item in cut {
        if let Some(batch) = item.batch() {
            batch.fingerprint(archive);
        }
        if out.send(item).is_err() {
            return;
        }
    }
}

fn pack_all(archive: &Archive, opens: &Mutex<Receiver<OpenContainer>>, out: &SyncSender<Packed>) {
    let mut packer = Packer::new(archive.settings.level);
    loop {
        let Ok(open) = opens.lock().recv() else { return };
        if out.send(pack(archive, open, &mut packer)).is_err() {
            return;
        }
    }
}

fn place(
    session: &mut Session,
    items: Receiver<Item>,
    sink: &mut Sink<'_>,
    gauge: &Gauge,
) -> Result<Recipes> {
    let (mut recipes, mut writing, mut incomplete) = (Vec::new(), Writing::default(), false);
    for item in items {
        match item {
            Item::Batch(batch) => {
                session.add(&batch, &mut writing, sink)?;
                gauge.new.store(session.new_bytes, Relaxed);
            }
            Item::EndRecipe => {
                recipes.push(session.end_recipe(std::mem::take(&mut writing), sink)?)
            }
            Item::Incomplete => incomplete = true,
        }
    }
    session.seal(sink)?;
    Ok((recipes, incomplete))
}
