//! Makes changes in memory durable: chunks them, looks the chunks up and writes the new ones; then
//! one frame names all new mappings.
//!
//! | a crash after | leaves |
//! |---|---|
//! | containers were written | what was durable before; the containers are garbage behind the segment's durable end, or listed as unfinished |
//! | the containers were synced | the same |
//! | the frame was written, not synced | all of the write-back or nothing |
//! | the frame was synced | all of the write-back |
//!
//! A write-back that finds the disk full gives back what it wrote; its blocks stay in memory, below
//! what was written since, and zeroes are made durable without it. Any other failure ends all
//! writing. A block that was written in part, and whose rest can't be read, is lost with the
//! write-back that needed it: all who wait for that write-back hear of it, and the other blocks are
//! written back.
//!
//! A volume's blocks are stored in its own domain. What was written to a volume whose domain was erased is
//! dropped, as of a deleted one, and the other volumes are written back.

use std::{
    ops::Range,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use onefold_core::{Error, Fingerprint, Kind, Result, Ticket};

use super::{
    layer::{BLOCK, Have, Layer, Patch},
    mapped::{Mapped, chunks_of},
    mapper::{Expected, Mapper},
    volumes::{Lost, Volumes, readable},
};
use crate::{
    chunk_index::ByFingerprint,
    container::ChunkReader,
    format::{Address, domain::FIRST_DOMAIN, recipe::Part},
    operations_log::{Domain, domain_of, end_erasures, is_erased},
    rules::Rule,
    settings::FilterName,
    stream::{Batch, Cutting, Given, Remaps, Results, Session, Sink, Staged, StreamWriter, staged},
    tables::{Tables, Volume},
};

/// Chunks of mappings that are remembered for the block index filter: 16 blocks and more.
const PLACED_MAX: usize = 64 << 10;

/// From so many bytes on the stages of a write-back have threads of their own.
const THREADS_FROM: u64 = 4 << 20;

/// The layers that one write-back writes, by volume.
type Frozen = Vec<(u64, FrozenLayer)>;

impl Volumes {
    /// Makes all changes up to a ticket durable, for a client. Also returns the error of an
    /// earlier failed write-back that no client has got yet.
    pub(super) fn flush_to(&self, ticket: Ticket) -> Result<()> {
        let done = self.write_back_to(ticket);
        let mut state = self.state.lock();
        let untold = state.lost.as_mut().and_then(|lost| {
            (!std::mem::replace(&mut lost.told, true)).then(|| lost.error.clone())
        });
        done.and(untold.map_or(Ok(()), Err))
    }

    fn write_back_to(&self, ticket: Ticket) -> Result<()> {
        let mut tried = false;
        loop {
            {
                let state = self.state.lock();
                if state.written_back >= ticket.0 {
                    // Each caller that waited for the failed write-back gets its error.
                    let lost = state.lost.as_ref().filter(|lost| tried && lost.upto >= ticket.0);
                    return lost.map_or(Ok(()), |lost| Err(lost.error.clone()));
                }
                Volumes::going(&state)?;
            }
            let writing_back = self.writing_back.lock();
            tried = true;
            // Somebody else may have done it meanwhile.
            if self.state.lock().written_back < ticket.0 {
                self.write_back()?;
            }
            drop(writing_back);
        }
    }

    /// Makes all changes so far durable, in the background.
    pub(super) fn write_back_all(&self) -> Result<()> {
        let changes = self.state.lock().changes;
        self.write_back_to(Ticket(changes))
    }

    /// The same for a client.
    pub(super) fn flush_all(&self) -> Result<()> {
        let changes = self.state.lock().changes;
        self.flush_to(Ticket(changes))
    }

    /// Waits for the write-back under way, and writes back when that was not enough.
    pub(super) fn make_room(&self) -> Result<()> {
        let _writing_back = self.writing_back.lock();
        let full = {
            let state = self.state.lock();
            Volumes::going(&state)?;
            state.bytes + 2 * BLOCK as u64 > self.much()
        };
        if full { self.write_back() } else { Ok(()) }
    }

    /// Writes back all that is there. Held: `writing_back`.
    fn write_back(&self) -> Result<()> {
        let (frozen, upto) = {
            let mut state = self.state.lock();
            if state.volumes.values().any(|layers| layers.writing_back.is_some()) {
                // `writing_back` is held, so no other write-back runs: an earlier one panicked
                // before its changes were durable.
                state.stopped = Some(Error::new(Kind::Stopped, "a drain ended halfway"));
            }
            Volumes::going(&state)?;
            let layers = state.volumes.iter_mut().filter(|(_, layers)| !layers.upper.is_empty());
            let frozen: Frozen = layers
                .map(|(&id, layers)| {
                    let layer = Arc::new(std::mem::take(&mut layers.upper));
                    layers.writing_back = Some(layer.clone());
                    (id, layer)
                })
                .collect();
            (frozen, state.changes)
        };
        let done = match self.write_back_living(&frozen) {
            // A node that fails now does not count any more; there may be others.
            Err(error)
                if !matches!(error.kind(), Kind::NoSpace | Kind::Corrupt)
                    && self.archive.label().spread[0] > 1 =>
            {
                self.write_back_living(&frozen)
            }
            done => done,
        };
        let done = match done {
            // Zeroes need no room, and perhaps make some.
            Err(error) if error.kind() == Kind::NoSpace => {
                self.write_back_zeroes(&frozen).and(Err(error))
            }
            done => done,
        };
        let mut state = self.state.lock();
        match &done {
            Ok(lost) => {
                drop(frozen);
                state.volumes.values_mut().for_each(|layers| layers.writing_back = None);
                state.written_back = upto;
                if let Some(error) = lost {
                    state.lost = Some(Lost { upto, error: error.clone(), told: false });
                }
            }
            Err(error) => {
                let tables = self.archive.tables();
                drop(frozen);
                for (id, layers) in &mut state.volumes {
                    if let Some(below) = layers.writing_back.take() {
                        let below =
                            Arc::try_unwrap(below).unwrap_or_else(|shared| Layer::clone(&shared));
                        layers.upper.absorb(below, readable(&tables, *id).ok());
                    }
                }
                if error.kind() != Kind::NoSpace {
                    state.stopped = Some(error.clone());
                }
            }
        }
        let there = self.archive.tables();
        // Changes of a deleted volume are dropped with it, and those of an erased domain.
        state.volumes.retain(|id, layers| {
            readable(&there, *id).is_ok()
                && !(layers.upper.is_empty() && layers.writing_back.is_none())
        });
        state.bytes = state.volumes.values().map(|layers| layers.upper.memory()).sum();
        done.and_then(|lost| lost.map_or(Ok(()), Err))
    }

    /// The same as [`write_back_layers`](Self::write_back_layers), again when a domain was erased meanwhile. An
    /// erasure of which only the key area knows is ended first: whoever began it may be dead.
    fn write_back_living(&self, frozen: &Frozen) -> Result<Option<Error>> {
        loop {
            let before = self.archive.tables().domains.erased.len();
            let done = self.write_back_layers(frozen);
            if done.as_ref().is_err_and(|error| error.kind() == Kind::Denied) {
                end_erasures(&self.archive)?;
                if self.archive.refresh()?.domains.erased.len() > before {
                    continue;
                }
            }
            return done;
        }
    }

    /// Gives the error of blocks that were lost.
    fn write_back_layers(&self, frozen: &Frozen) -> Result<Option<Error>> {
        let mut session = Session::of_volumes(&self.ingest)?;
        let mut writer = StreamWriter::new(&session, self.now.load(Relaxed));
        let done = self.write_out(frozen, &mut session, &mut writer);
        if done.as_ref().is_err_and(|error| error.kind() == Kind::NoSpace) {
            writer.abandon();
        }
        let counts = session.counts();
        for (counter, more) in [
            (&self.counts.write_backs, 1),
            (&self.counts.chunks, counts.chunks),
            (&self.counts.duplicates, counts.duplicates),
            (&self.counts.page_reads, counts.page_reads),
            (&self.counts.metadata_reads, counts.metadata_reads),
            (&self.counts.new_bytes, session.new_bytes),
            (&self.counts.added_bytes, writer.added()),
        ] {
            counter.fetch_add(more, Relaxed);
        }
        done
    }

    fn write_out(
        &self,
        frozen: &Frozen,
        session: &mut Session,
        writer: &mut StreamWriter,
    ) -> Result<Option<Error>> {
        let tables = session.tables().clone();
        let mut lost = None;
        // Volumes of one domain one after the other, so that each begins containers once.
        let mut all: Vec<(&Volume, u64, &FrozenLayer)> = Vec::new();
        for (id, layer) in frozen {
            if let Ok(volume) = readable(&tables, *id) {
                all.push((volume, *id, layer));
            }
        }
        all.sort_by_key(|(volume, id, _)| (volume.domain, *id));
        let mut cut = |emit: &mut Emit<'_>| {
            for &(volume, id, layer) in &all {
                let (waiting, placed) = (Vec::new(), Vec::new());
                let number = match self.archive.keeps(Rule::VolumesInTheirDomain) {
                    true => volume.domain,
                    false => FIRST_DOMAIN,
                };
                let mut chunking = Chunking {
                    volumes: self,
                    tables: &tables,
                    volume,
                    domain: domain_of(&self.archive, number)?,
                    layer,
                    waiting,
                    placed,
                    lost: &mut lost,
                };
                chunking.blocks(emit)?;
                emit(Item::End { volume: id, zeroed: layer.zeroed.iter().collect() })?;
            }
            Ok(())
        };
        let mut placing = Placing::default();
        if frozen.iter().map(|(_, layer)| layer.memory()).sum::<u64>() < THREADS_FROM {
            let mut pack_and_write = |open| writer.pack_and_write(open);
            let one_by_one = |emit: &mut Emit<'_>| {
                cut(&mut |mut item: Item| {
                    if let Item::Batch { batch, domain, .. } = &mut item {
                        batch.fingerprint(domain);
                    }
                    emit(item)
                })
            };
            placing.all(session, &mut pack_and_write, one_by_one)?;
        } else {
            let source = move |out: Given<Item>| cut(&mut |item| out.send(item));
            let place = |mut items: Results<_>, sink: &mut Sink<'_>| {
                placing.all(session, sink, |emit| items.try_for_each(emit))
            };
            staged(&self.ingest, writer, source, place, |_| Ok(()))?;
        }
        writer.remap(&placing.done)?;
        Ok(lost)
    }

    /// Makes zeroes durable on a full disk.
    fn write_back_zeroes(&self, frozen: &Frozen) -> Result<()> {
        let all: Vec<Remaps> = frozen
            .iter()
            .map(|(id, layer)| Remaps {
                volume: *id,
                zeroed: layer.zeroed.iter().collect(),
                blocks: Vec::new(),
            })
            .filter(|remaps| !remaps.zeroed.is_empty())
            .collect();
        if all.is_empty() {
            return Ok(());
        }
        let session = Session::of_volumes(&self.ingest)?;
        StreamWriter::new(&session, self.now.load(Relaxed)).remap(&all).map(|_| ())
    }
}

/// A step of the blocks' way from chunking to placing.
enum Item {
    /// Chunks with their fingerprints.
    Batch {
        /// The blocks that begin in it.
        blocks: Vec<Expected>,
        /// The chunks that these blocks map now, with their addresses.
        placed: Vec<(Fingerprint, Address)>,
        batch: Batch,
        /// The domain of the volume.
        domain: Arc<Domain>,
    },
    /// No more of this volume.
    End { volume: u64, zeroed: Vec<Range<u64>> },
}

impl Staged for Item {
    fn batch(&mut self) -> Option<&mut Batch> {
        match self {
            Item::Batch { batch, .. } => Some(batch),
            Item::End { .. } => None,
        }
    }

    fn domain(&self) -> Option<Arc<Domain>> {
        match self {
            Item::Batch { domain, .. } => Some(domain.clone()),
            Item::End { .. } => None,
        }
    }
}

type Emit<'a> = dyn FnMut(Item) -> Result<()> + 'a;

/// The blocks of one volume on their way to chunks.
struct Chunking<'a> {
    volumes: &'a Volumes,
    tables: &'a Tables,
    volume: &'a Volume,
    domain: Arc<Domain>,
    layer: &'a Layer,
    /// For the next batch.
    waiting: Vec<Expected>,
    placed: Vec<(Fingerprint, Address)>,
    lost: &'a mut Option<Error>,
}

impl Chunking<'_> {
    /// Runs of neighbouring blocks, each chunked as one stream. Where part of a block was not written, and
    /// keeps its mapping, a stream ends and another begins.
    fn blocks(&mut self, emit: &mut Emit<'_>) -> Result<()> {
        let volume = self.volume;
        let mut cutting = Cutting::new(&*self.domain);
        let mut bytes = Vec::new();
        let mut next = 0;
        for (&block, patch) in
            self.layer.blocks.iter().filter(|(block, patch)| !volume.was_cut(**block, patch.since))
        {
            if block != next {
                cutting.border();
            }
            next = block + 1;
            let mapped = Mapped {
                tables: self.tables,
                container_reader: &self.volumes.container_reader,
                volume,
                block,
            };
            bytes.resize(BLOCK, 0);
            let read =
                self.volumes.with_reader(|reader| self.rest_of(reader, &mapped, patch, &mut bytes));
            let kept = match read {
                // Nothing of it is damaged: the other volumes go on without it.
                Err(_) if is_erased(&self.volumes.archive, volume.domain) => {
                    return Err(Error::new(Kind::Denied, "the domain of the volume was erased"));
                }
                Err(error) if error.kind() == Kind::Corrupt => {
                    self.lost.get_or_insert(error);
                    next = 0;
                    continue;
                }
                read => read?,
            };
            let have = if kept.is_empty() { &Have::ALL } else { &patch.have };
            self.waiting.push(Expected::new(block, patch.since, kept));
            for range in have.ranges() {
                if range.start > 0 {
                    cutting.border();
                }
                self.cut(&mut cutting, &bytes[range.clone()], emit)?;
                if range.end < BLOCK {
                    cutting.border();
                }
            }
        }
        self.emit(cutting.end(), emit)
    }

    fn cut(&mut self, cutting: &mut Cutting, mut rest: &[u8], emit: &mut Emit<'_>) -> Result<()> {
        while !rest.is_empty() {
            let room = cutting.room();
            let n = rest.len().min(room.len());
            room[..n].copy_from_slice(&rest[..n]);
            rest = &rest[n..];
            if let Some(batch) = cutting.advance(n) {
                self.emit(batch, emit)?;
            }
        }
        Ok(())
    }

    /// Fills `bytes` with what was written of a block. Gives the parts of the block's mapping that the rest
    /// keeps, and where they begin, in order: none when `bytes` has the rest too, which was read.
    ///
    /// The rest is not read when it is more than half of the block and few parts come of it: one for each
    /// stretch of chunks, and one for each end that was cut off.
    fn rest_of(
        &mut self,
        reader: &mut ChunkReader,
        mapped: &Mapped<'_>,
        patch: &Patch,
        bytes: &mut [u8],
    ) -> Result<Vec<(usize, Vec<Part>)>> {
        let whole = patch.have == Have::ALL;
        let compares = self.volumes.archive.settings.filters.contains(&FilterName::BlockIndex);
        let mut known = Have::default();
        patch.copy(&(0..BLOCK), bytes, &mut known);
        let parts = if whole && !compares { Ok(Vec::new()) } else { mapped.parts(reader) };
        // `placed` is only advice to the block index filter, so damage is passed over.
        if compares && let Ok(parts) = &parts {
            self.placed.extend(chunks_of(parts));
        }
        if whole {
            return match parts {
                Err(error) if error.kind() != Kind::Corrupt => Err(error),
                _ => Ok(Vec::new()),
            };
        }
        let (parts, written) = (parts?, patch.have.ranges());
        if 2 * patch.have.bytes() < BLOCK {
            let starts = std::iter::once(0).chain(written.iter().map(|range| range.end));
            let ends = written.iter().map(|range| range.start).chain([BLOCK]);
            let rest = starts.zip(ends).filter(|(start, end)| start < end);
            let kept: Vec<(usize, Vec<Part>)> = rest
                .map(|(start, end)| Ok((start, mapped.parts_of(reader, &parts, &(start..end))?)))
                .collect::<Result<_>>()?;
            let all: usize = kept.iter().map(|(_, parts)| parts.len() + 1).sum();
            if all <= self.volumes.archive.settings.patched_parts {
                return Ok(kept);
            }
        }
        mapped.read(reader, 0..BLOCK, bytes)?;
        patch.copy(&(0..BLOCK), bytes, &mut Have::default());
        Ok(Vec::new())
    }

    fn emit(&mut self, batch: Batch, emit: &mut Emit<'_>) -> Result<()> {
        emit(Item::Batch {
            blocks: std::mem::take(&mut self.waiting),
            placed: std::mem::take(&mut self.placed),
            batch,
            domain: self.domain.clone(),
        })
    }
}

/// Chunks on their way to mappings.
#[derive(Default)]
struct Placing {
    mapper: Mapper,
    /// The present chunks of the blocks that are written again.
    placed: ByFingerprint<Address>,
    done: Vec<Remaps>,
}

impl Placing {
    /// Places what `source` emits, to the end.
    fn all(
        &mut self,
        session: &mut Session,
        sink: &mut Sink<'_>,
        source: impl FnOnce(&mut Emit<'_>) -> Result<()>,
    ) -> Result<()> {
        source(&mut |item| self.take(item, session, sink))?;
        session.seal(sink)
    }

    fn take(&mut self, item: Item, session: &mut Session, sink: &mut Sink<'_>) -> Result<()> {
        match item {
            Item::Batch { blocks, placed, batch, domain } => {
                session.go_on_in(&domain, sink)?;
                blocks.into_iter().for_each(|block| self.mapper.expect(block));
                if self.placed.len() > PLACED_MAX {
                    self.placed.clear();
                }
                self.placed.extend(placed);
                session.place(&batch, &mut self.mapper, &self.placed, sink)
            }
            Item::End { volume, zeroed } => {
                let blocks = std::mem::take(&mut self.mapper).done();
                self.placed.clear();
                self.done.push(Remaps { volume, zeroed, blocks });
                Ok(())
            }
        }
    }
}

/// Keeps the layers that are written back alive for readers.
pub(super) type FrozenLayer = Arc<Layer>;
