//! The stages of a put on threads: read; cut; fingerprint; look up and place; pack; write.
//!
//! Each stage has a thread of its own, so that one stream uses as many processors as its slowest stage
//! lets it. Where one thread would be the slowest by far there are several, whose results go on in the
//! order of the stream: fingerprints by SHA-256, and packing with compression. Containers are written
//! in the order in which they were sealed: a checkpoint counts on it.
//!
//! Queues are bounded, so that memory is: a few blocks, batches or containers each way. The first
//! failure stops all stages.

use std::{
    num::NonZero,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc::{SyncSender, sync_channel},
    },
    thread::{Scope, available_parallelism},
};

use onefold_core::{Algorithm, Error, Kind, Result};

use super::{
    batch::{Batch, Cutting, KEPT_MAX},
    filling::{Block, Filling},
    in_order::{Given, Results, Taken, in_order, stopped},
    ingest::Ingest,
    session::{Session, Sink, Writing},
    stream_writer::{Ended, StreamWriter},
};
use crate::{
    container::pack,
    filter_chain::Counts,
    format::{
        container::{OpenContainer, Packer},
        domain::FIRST_DOMAIN,
        parameters::Compression,
        recipe::End,
        record::{Pieces, Shape, Stream},
    },
    memory::BufferPool,
    operations_log::{Archive, Domain, domain_of},
    tables::valid_name,
};

/// Blocks, batches and containers that wait between two stages.
const QUEUE: usize = 2;

/// Threads of one stage at most: each that packs has up to two containers in memory.
const THREADS_MAX: usize = 6;

/// Processors that this process may use.
static PROCESSORS: LazyLock<usize> =
    LazyLock::new(|| available_parallelism().map_or(1, NonZero::get));

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
    /// The number of its domain; without one that of the stream that it replaces, or the first one.
    pub domain: Option<u32>,
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

/// Said by the source of a put of its recipes.
enum Said {
    EndRecipe,
    Incomplete,
}

/// Chunks of a stream whose fingerprints are still to be computed, and what was told along.
pub(crate) struct Item<T> {
    pub(crate) batch: Batch,
    pub(crate) told: Vec<T>,
}

/// The recipes of a stream, and whether its source said that something is missing.
type Recipes = (Vec<(Vec<Pieces>, End)>, bool);

/// Where a source gives its bytes.
pub struct Feeder<'a> {
    filling: Filling<Said>,
    out: Blocks<Said>,
    gauge: &'a Gauge,
    /// Recipes that may still be ended.
    recipes_left: usize,
    /// The stream is marked already.
    is_incomplete: bool,
}

impl Feeder<'_> {
    /// Lets `read` fill a buffer, which says how many bytes it was; `0` is the end.
    ///
    /// # Errors
    /// The errors of `read`, and `Stopped` when a later stage failed.
    pub fn fill(&mut self, read: impl FnOnce(&mut [u8]) -> Result<usize>) -> Result<usize> {
        let n = read(self.filling.room())?;
        self.gauge.read.fetch_add(n as u64, Relaxed);
        let block = self.filling.advance(n);
        self.out.send(block).map(|()| n)
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
        let block = self.filling.zeroes(bytes);
        self.out.send(block)
    }

    /// The next bytes begin a chunk: a file begins.
    ///
    /// # Errors
    /// `Stopped` when a later stage failed.
    pub fn border(&mut self) -> Result<()> {
        let block = self.filling.border();
        self.out.send(block)
    }

    /// Ends the recipe: the chunks after it belong to another one.
    ///
    /// # Errors
    /// `InvalidInput` for more recipes than a stream of this shape has; `Stopped` when a later stage
    /// failed.
    pub fn end_recipe(&mut self) -> Result<()> {
        // A piece that nobody names would lie there for others to be named.
        self.recipes_left = self.recipes_left.checked_sub(1).ok_or_else(|| {
            Error::new(Kind::InvalidInput, "the stream has more recipes than its shape has")
        })?;
        self.filling.tell(Said::EndRecipe);
        let block = self.filling.end();
        self.out.send(Some(block))
    }

    /// Something of the tree could not be read: the stream is marked.
    pub fn incomplete(&mut self) {
        if !std::mem::replace(&mut self.is_incomplete, true) {
            self.filling.tell(Said::Incomplete);
        }
    }
}

/// Where blocks go that are filled: to the thread that cuts them.
pub(crate) struct Blocks<T>(SyncSender<Block<T>>);

impl<T> Blocks<T> {
    /// Gives a block away, when there is one.
    ///
    /// # Errors
    /// `Stopped` when a later stage failed.
    pub(crate) fn send(&self, block: Option<Block<T>>) -> Result<()> {
        block.map_or(Ok(()), |block| self.0.send(block).map_err(|_| stopped()))
    }
}

/// Buffers for the blocks of one stream.
pub(crate) fn buffers() -> Arc<BufferPool> {
    Arc::new(BufferPool::keeping(KEPT_MAX))
}

/// Runs `source` on a thread, which fills blocks ahead; this one cuts them. The source's error comes
/// first: the cutter only knows that a later stage is gone.
pub(crate) fn cut_beside<T: Send>(
    (archive, domain): (&Archive, &Domain),
    out: &Given<Item<T>>,
    source: impl FnOnce(Filling<T>, Blocks<T>) -> Result<()> + Send,
) -> Result<()> {
    let buffers = buffers();
    let filling = Filling::new(archive.label().chunking, buffers.clone());
    let (blocks, filled) = sync_channel(QUEUE);
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| source(filling, Blocks(blocks)));
        let mut cutting = Cutting::of_blocks(domain, buffers);
        // The source hears of a failure when the queue is dropped with this.
        let cut = filled.into_iter().try_for_each(|block| {
            let (batch, told) = cutting.block(block);
            out.send(Item { batch, told })
        });
        joined(reading.join()).and(cut)
    })
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
    let before = ingest.archive.tables().streams.get(&request.name).map(|before| before.domain);
    let domain = request.domain.or(before).unwrap_or(FIRST_DOMAIN);
    let mut session = Session::in_domain(ingest, domain)?;
    let mut writer = StreamWriter::new(&session, request.now);
    let most = if request.shape == Shape::Tree { 2 } else { 1 };
    let recipes = run(ingest, &mut session, &mut writer, (gauge, most), source);
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
    (gauge, recipes_left): (&Gauge, usize),
    source: impl FnOnce(&mut Feeder<'_>) -> Result<()> + Send,
) -> Result<Recipes> {
    let (archive, domain) = (&*ingest.archive, session.domain.clone());
    let feed = |out: Given<_>| {
        cut_beside((archive, &domain), &out, |filling, out| {
            let mut feeder = Feeder { filling, out, gauge, recipes_left, is_incomplete: false };
            source(&mut feeder)?;
            feeder.end_recipe()
        })
    };
    let nothing = |_: &mut StreamWriter| Ok(());
    staged(ingest, writer, feed, |items, sink| place(session, items, sink, gauge), nothing)
}

/// The content that a source gives.
pub(crate) trait Staged: Send {
    /// The chunks in it, whose fingerprints are still to be computed.
    fn batch(&mut self) -> Option<&mut Batch>;

    /// The domain of the chunks, where it is another one than what the session began in.
    fn domain(&self) -> Option<Arc<Domain>> {
        None
    }
}

impl<T: Send> Staged for Item<T> {
    fn batch(&mut self) -> Option<&mut Batch> {
        Some(&mut self.batch)
    }
}

/// Runs `source` on a thread, which gives items; others compute their fingerprints; `place` on
/// this one makes containers of them; packing and writing on others, with `written` after each
/// container, in the order in which `place` made them. To the end.
pub(crate) fn staged<I: Staged, T>(
    ingest: &Arc<Ingest>,
    writer: &mut StreamWriter,
    source: impl FnOnce(Given<I>) -> Result<()> + Send,
    place: impl FnOnce(Results<I>, &mut Sink<'_>) -> Result<T>,
    mut written: impl FnMut(&mut StreamWriter) -> Result<()> + Send,
) -> Result<T> {
    let archive = &*ingest.archive;
    let domain = &*domain_of(archive, writer.domain())?;
    let (fingerprinters, packers) = threads(archive);
    let (cut, cuts, items) = in_order(QUEUE + fingerprinters);
    let (opens, opened, packed) = in_order(QUEUE + packers);
    std::thread::scope(|scope| {
        let reading = scope.spawn(move || source(cut));
        let fingerprint = || {
            |mut item: I| {
                let own = item.domain();
                if let Some(batch) = item.batch() {
                    batch.fingerprint(own.as_deref().unwrap_or(domain));
                }
                item
            }
        };
        spawn(scope, fingerprinters, cuts, fingerprint);
        let packing = || {
            let mut packer = Packer::new(archive.settings.level);
            move |open: OpenContainer| pack(archive, open, &mut packer)
        };
        spawn(scope, packers, opened, packing);
        let writing = scope.spawn(move || {
            for packed in packed {
                let packed = packed?;
                writer.write(&packed)?;
                packed.give_back(&archive.buffers);
                written(writer)?;
                if ingest.must_import() {
                    ingest.import(true)?;
                }
            }
            Ok(())
        });
        let placed = place(items, &mut |open| opens.send(open));
        drop(opens);
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

/// How many threads compute fingerprints, and how many pack.
fn threads(archive: &Archive) -> (usize, usize) {
    let many = (*PROCESSORS).clamp(2, THREADS_MAX);
    // BLAKE3 takes less time than cutting does, and SHA-256 more.
    let fingerprinters = if archive.label().fingerprint == Algorithm::Blake3 { 1 } else { many };
    // Without compression one thread packs as fast as two.
    let packers = if archive.label().compression == Compression::None { 1 } else { many };
    (fingerprinters, packers)
}

/// Starts threads that do work until no more is given, each by a function of its own.
fn spawn<'scope, W: Send + 'scope, R: Send + 'scope, F: FnMut(W) -> R + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    threads: usize,
    work: Taken<W, R>,
    act: impl Fn() -> F + Clone + Send + 'scope,
) {
    let work = Arc::new(work);
    for _ in 0..threads {
        let (work, act) = (work.clone(), act.clone());
        scope.spawn(move || work.all(act()));
    }
}

fn joined(result: std::thread::Result<Result<()>>) -> Result<()> {
    result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn place(
    session: &mut Session,
    items: Results<Item<Said>>,
    sink: &mut Sink<'_>,
    gauge: &Gauge,
) -> Result<Recipes> {
    let (mut recipes, mut writing, mut incomplete) = (Vec::new(), Writing::default(), false);
    for Item { batch, told } in items {
        session.add(&batch, &mut writing, sink)?;
        gauge.new.store(session.new_bytes, Relaxed);
        for said in told {
            match said {
                Said::EndRecipe => {
                    recipes.push(session.end_recipe(std::mem::take(&mut writing), sink)?);
                }
                Said::Incomplete => incomplete = true,
            }
        }
    }
    session.seal(sink)?;
    Ok((recipes, incomplete))
}
