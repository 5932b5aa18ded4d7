//! Generations put into the real engine, block after block, and what each block asked of it.
//!
//! Four clients write at the same time: the engine gets a block of 128 KiB of each in turn, as the
//! paper's daemon does. Everything is counted where it happens: lookups in the filter chain, reads
//! and writes at the files. The chunk index holds many other chunks before, so that it has a page
//! for each two or three chunks of a generation, and reads are as scattered as in the paper's,
//! which has one for each.

use std::{collections::BTreeMap, sync::Arc};

use onefold_archive::{
    Archive, Chunking, Compression, ContainerKind, Cutting, Ended, FilterName, Format,
    INDEX_PAGE_BYTES, Session, Settings, Shape, StreamWriter, Writing, rebuild_chunk_index,
};
use onefold_core::{Error, Kind, Result};
use onefold_testbed::SplitMix;
use parking_lot::Mutex;

use super::{
    files::{Asked, MemoryFiles},
    traffic::{self, Stream},
};

/// Bytes of a client's request, and of a block of a volume (dedupv1 4.1).
pub(super) const BLOCK_BYTES: usize = 128 << 10;

/// Clients that write a generation (dedupv1 4.1).
pub(super) const CLIENTS: usize = 4;

/// The part of the chunk index's pages that memory holds: of the paper's 8 GB some 5 are left
/// beside the auxiliary index and the block index, and the index has 32 GB.
pub(super) const CACHED_PART: u64 = 6;

/// Bytes of the small files that fill the index.
const FILLER_BYTES: usize = 16;

/// How a run is set up.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Setup {
    /// The filter chain, by the product's names.
    pub(super) filters: Vec<&'static str>,
    /// How streams are cut: `fastcdc:8K`.
    pub(super) chunking: &'static str,
    /// Entries of the auxiliary index, and bytes of containers after which they are listed; `None`
    /// holds the whole run.
    pub(super) auxiliary: Option<(usize, u64)>,
    /// Bytes of a generation, of all clients.
    pub(super) bytes: u64,
    /// Chunks that the index holds before.
    pub(super) filler: u64,
    /// Mean distance of repeated data in a client's stream, in KiB; the usual one when 0.
    pub(super) distance_kib: u32,
}

impl Setup {
    /// The paper's base configuration: the chunk index is the only filter, and the auxiliary index
    /// holds the whole run.
    pub(super) fn base(quick: bool) -> Setup {
        let bytes = if quick { 192 << 20 } else { 1 << 30 };
        let filler = if quick { 1_200_000 } else { 4_000_000 };
        Setup {
            filters: vec!["chunk-index"],
            chunking: "fastcdc:8K",
            auxiliary: None,
            bytes,
            filler,
            distance_kib: 0,
        }
    }
}

/// The work that a block of a client caused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cost {
    pub(super) client: u8,
    pub(super) bytes: u32,
    /// Bytes of chunks that were new.
    pub(super) new_bytes: u32,
    /// Chunks looked up.
    pub(super) chunks: u16,
    /// Pages of the chunk index read.
    pub(super) pages: u16,
    /// Metadata sections of containers read.
    pub(super) metadata: u16,
    /// Bytes of the index read and written in one go, when the auxiliary index was full.
    pub(super) spilled: u64,
}

/// The result of a generation.
#[derive(Clone, Debug, Default)]
pub(super) struct Ingested {
    pub(super) costs: Vec<Cost>,
    pub(super) chunks: u64,
    /// Of them found in the auxiliary index.
    pub(super) auxiliary: u64,
    pub(super) page_reads: u64,
    pub(super) metadata_reads: u64,
    pub(super) stale: u64,
    pub(super) bytes: u64,
    pub(super) new_bytes: u64,
    /// The files of the index while clients wrote, and after.
    pub(super) index: Asked,
    pub(super) index_after: Asked,
    /// Chunks that the index does not have yet when clients are done.
    pub(super) left: u64,
    /// Containers while clients wrote.
    pub(super) containers: Asked,
    /// Pages of the chunk index at the beginning.
    pub(super) pages: u64,
    /// Shares of bytes that repeat earlier ones of the generation, and those or the generation
    /// before.
    pub(super) redundancy: (f64, f64),
}

impl Ingested {
    /// The share of bytes found to be known.
    pub(super) fn found(&self) -> f64 {
        1.0 - self.new_bytes as f64 / self.bytes.max(1) as f64
    }

    /// Pages of the index read for each chunk.
    pub(super) fn reads_per_chunk(&self) -> f64 {
        self.page_reads as f64 / self.chunks.max(1) as f64
    }
}

/// Both generations of a set-up; each set-up is run once.
pub(super) fn generations(setup: &Setup) -> Result<Arc<[Ingested; 2]>> {
    static RUNS: Mutex<BTreeMap<Setup, Arc<[Ingested; 2]>>> = Mutex::new(BTreeMap::new());
    let mut runs = RUNS.lock();
    if let Some(found) = runs.get(setup) {
        return Ok(found.clone());
    }
    let run = Arc::new(ingest(setup)?);
    runs.insert(setup.clone(), run.clone());
    Ok(run)
}

fn ingest(setup: &Setup) -> Result<[Ingested; 2]> {
    let files = filled(setup.chunking, setup.filler)?;
    let mut shape = traffic::Shape::PAPER;
    if setup.distance_kib > 0 {
        shape.distance = f64::from(setup.distance_kib) * 1024.0;
    }
    let mut rng = SplitMix::new(976);
    let first = traffic::Generation::first(CLIENTS, setup.bytes / CLIENTS as u64, &shape, &mut rng);
    let second = first.next(&shape, &mut rng);
    let mut one = put(&files, setup, "first", &first.streams)?;
    one.redundancy = first.redundancy(None);
    let mut two = put(&files, setup, "second", &second.streams)?;
    two.redundancy = second.redundancy(Some(&first));
    Ok([one, two])
}

/// An archive whose chunk index holds so many chunks of small files; the same for all set-ups that
/// cut alike.
pub(super) fn filled(chunking: &'static str, chunks: u64) -> Result<MemoryFiles> {
    static FILLED: Mutex<Option<(&'static str, u64, MemoryFiles)>> = Mutex::new(None);
    let mut last = FILLED.lock();
    if let Some((_, _, files)) = last.as_ref().filter(|made| (made.0, made.1) == (chunking, chunks))
    {
        return Ok(files.fork());
    }
    let files = MemoryFiles::default();
    let format = Format {
        chunking: chunking.parse::<Chunking>()?,
        compression: Compression::None,
        segment_bytes: 64 << 20,
        reserve_bytes: 1 << 20,
        ..Format::new([1; 16], [2; 32], [3; 16])
    };
    Archive::create(&files, &format)?;
    let archive = Arc::new(Archive::open(
        Arc::new(files.clone()),
        true,
        settings(&[FilterName::Bloom, FilterName::ChunkIndex]),
    )?);
    let mut session = Session::begin(&archive, false)?;
    let mut writer = StreamWriter::new(&session, 0);
    let mut writing = Writing::default();
    let mut cutting = Cutting::new(format.chunking);
    let mut rng = SplitMix::new(7);
    for n in 0..chunks {
        for word in cutting.room()[..FILLER_BYTES].as_chunks_mut::<8>().0 {
            *word = rng.next().to_le_bytes();
        }
        cutting.advance(FILLER_BYTES);
        cutting.border();
        if n % 1024 == 1023 || n + 1 == chunks {
            take(&mut session, &mut writer, &mut writing, cutting.some())?;
        }
    }
    finish(&mut session, &mut writer, "filler", writing)?;
    writer.import(true)?;
    writer.close()?;
    drop((writer, session, archive));
    let forked = files.fork();
    *last = Some((chunking, chunks, files));
    Ok(forked)
}

fn settings(filters: &[FilterName]) -> Settings {
    Settings { filters: filters.to_vec(), auxiliary_entries: usize::MAX / 2, ..Settings::default() }
}

fn take(
    session: &mut Session,
    writer: &mut StreamWriter,
    writing: &mut Writing,
    mut batch: onefold_archive::Batch,
) -> Result<()> {
    batch.fingerprint(session.domain());
    session.add(&batch, writing, &mut |open| writer.pack_and_write(open))
}

/// Ends a stream: it is durable then.
fn finish(
    session: &mut Session,
    writer: &mut StreamWriter,
    name: &str,
    writing: Writing,
) -> Result<()> {
    let data = session.end_recipe(writing, &mut |open| writer.pack_and_write(open))?;
    session.seal(&mut |open| writer.pack_and_write(open))?;
    writer.commit(Ended {
        name: name.to_owned(),
        shape: Shape::Bytes,
        created: 0,
        data,
        listing: Vec::new(),
    })?;
    Ok(())
}

struct Client<'a> {
    stream: &'a Stream,
    at: u64,
    cutting: Cutting,
    writing: Writing,
}

/// A generation into the archive, which is opened for it: nothing is in memory before.
fn put(
    files: &MemoryFiles,
    setup: &Setup,
    generation: &str,
    streams: &[Stream],
) -> Result<Ingested> {
    let names =
        setup.filters.iter().map(|name| name.parse::<FilterName>()).collect::<Result<Vec<_>>>()?;
    let mut chosen = settings(&names);
    if let Some((entries, listed)) = setup.auxiliary {
        (chosen.auxiliary_entries, chosen.sync_bytes) = (entries, listed);
    }
    let pages = index_pages(files)?;
    chosen.page_cache_bytes = pages / CACHED_PART * INDEX_PAGE_BYTES as u64;
    // As scarce as memory is for pages.
    chosen.cached_containers = ((setup.bytes >> 22) / CACHED_PART).max(4) as usize;
    let archive = Arc::new(Archive::open(Arc::new(files.clone()), true, chosen)?);
    let mut session = Session::begin(&archive, false)?;
    let mut writer = StreamWriter::new(&session, 0);
    let mut done = Ingested { pages, ..Ingested::default() };
    let chunking = archive.label().chunking;
    let client = |stream| Client {
        stream,
        at: 0,
        cutting: Cutting::new(chunking),
        writing: Writing::default(),
    };
    let mut clients: Vec<Client<'_>> = streams.iter().map(client).collect();
    let (index, containers) = (files.asked("index"), files.asked("segment"));
    while clients.iter().any(|client| client.at < client.stream.bytes()) {
        for (number, client) in clients.iter_mut().enumerate() {
            let (before, new_before) = (session.counts(), session.new_bytes);
            let room = &mut client.cutting.room()[..BLOCK_BYTES];
            let n = client.stream.read(client.at, room);
            client.at += n as u64;
            client.cutting.advance(n);
            let last = client.at >= client.stream.bytes();
            let batch = if last { client.cutting.end() } else { client.cutting.some() };
            take(&mut session, &mut writer, &mut client.writing, batch)?;
            let spilling = files.asked("index");
            if writer.must_import() {
                writer.import(true)?;
            }
            let spilled = files.asked("index").since(&spilling);
            let after = session.counts();
            done.costs.push(Cost {
                client: number as u8,
                bytes: n as u32,
                new_bytes: (session.new_bytes - new_before) as u32,
                chunks: (after.chunks - before.chunks) as u16,
                pages: (after.page_reads - before.page_reads) as u16,
                metadata: (after.metadata_reads - before.metadata_reads) as u16,
                spilled: spilled.read_bytes + spilled.written_bytes,
            });
        }
    }
    for (number, client) in clients.into_iter().enumerate() {
        finish(&mut session, &mut writer, &format!("{generation}-{number}"), client.writing)?;
    }
    done.index = files.asked("index").since(&index);
    done.containers = files.asked("segment").since(&containers);
    let tables = archive.tables();
    for container in &tables.containers {
        let container = container?;
        if container.logged > tables.index.upto && container.stored.kind == ContainerKind::Data {
            done.left += u64::from(container.stored.chunks);
        }
    }
    let after = files.asked("index");
    writer.import(true)?;
    writer.close()?;
    done.index_after = files.asked("index").since(&after);
    let counts = session.counts();
    (done.chunks, done.auxiliary, done.stale) = (counts.chunks, counts.auxiliary, counts.stale);
    (done.page_reads, done.metadata_reads) = (counts.page_reads, counts.metadata_reads);
    (done.bytes, done.new_bytes) = (session.bytes, session.new_bytes);
    let wanted: u64 = streams.iter().map(Stream::bytes).sum();
    if done.bytes != wanted {
        return Err(Error::new(
            Kind::Corrupt,
            format!("{} bytes were written, and the engine took {}", wanted, done.bytes),
        ));
    }
    drop((writer, session));
    // Runs are merged into the index, so that the next generation finds one table, as in the paper.
    rebuild_chunk_index(&archive, &mut |_, _| {})?;
    Ok(done)
}

/// Pages of the chunk index.
pub(super) fn index_pages(files: &MemoryFiles) -> Result<u64> {
    let archive = Archive::open(Arc::new(files.clone()), false, Settings::default())?;
    let pages = archive.tables().index.files.iter().map(|file| u64::from(file.pages)).sum();
    Ok(pages)
}
