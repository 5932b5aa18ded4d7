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
//! Volumes are written back together. Where the disk has no room for all of them, each is tried by
//! itself, the one that is flushed first, so that nobody waits for room that another volume lacks. A
//! volume that finds none gives back what it wrote; its blocks stay in memory, below what was written
//! since, and zeroes are made durable without it. From then on it is written back by itself. Any other
//! failure ends all writing.
//!
//! A block that was written in part, and whose rest can't be read, is lost with the write-back that
//! needed it, and all other blocks are written back. Each who holds the volume is told once by a flush
//! and once by a wait, and whoever waits for a change of that write-back is always told; nobody hears of
//! another volume's loss. An answer may not arrive where a connection ends. Whoever opens the volume is told
//! therefore until somebody who was told flushed or waited again. The server's log gets each loss by
//! [`Volumes::take_losses`].
//!
//! A volume's blocks are stored in its own domain. What was written to a volume whose domain was erased is
//! dropped, as of a deleted one, and the other volumes are written back.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use onefold_core::{Error, Fingerprint, Kind, Result, Ticket};
use parking_lot::MutexGuard;

use super::{
    layer::{BLOCK, Have, Layer, Patch},
    mapped::{Mapped, chunks_of},
    mapper::{Expected, Mapper},
    volumes::{Heard, Layers, Loss, Lost, State, Volumes, readable},
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

/// The losses of a write-back, one for each volume.
type Losses = Vec<Loss>;

/// The result of a write-back of layers.
struct Written {
    done: Result<Losses>,
    /// The zeroes are durable, also where the rest found no room.
    has_zeroes: bool,
}

impl Written {
    fn error(&self) -> Option<&Error> {
        self.done.as_ref().err()
    }
}

impl Volumes {
    /// Makes all changes of a volume so far durable. Gives the last loss of the volume that whoever holds it
    /// had not heard of from a flush when this one began, and that counted when they opened the volume.
    pub(super) fn flush(&self, id: u64, heard: &Heard) -> Result<()> {
        let before = heard.by_flush.load(Relaxed);
        self.goes_on(id, before);
        self.write_back_so_far(id)?;
        self.tell(id, |lost| lost.number > before, &heard.by_flush)
    }

    /// Makes the changes of a volume up to a ticket durable. Gives the last loss of the volume when its
    /// write-back took changes up to the ticket or beyond it, or when whoever holds the volume has not
    /// heard of it. A flush is told as well.
    pub(super) fn wait(&self, id: u64, ticket: Ticket, heard: &Heard) -> Result<()> {
        let before = heard.by_wait.load(Relaxed);
        self.goes_on(id, before);
        self.write_back_to(id, ticket)?;
        self.tell(id, |lost| lost.upto >= ticket.0 || lost.number > before, &heard.by_wait)
    }

    /// The last loss of a volume, if it is one to be told.
    fn tell(&self, id: u64, is_due: impl Fn(&Lost) -> bool, told: &AtomicU64) -> Result<()> {
        let mut state = self.state.lock();
        let Some(lost) = lost_of(self, &mut state, id).filter(|lost| is_due(lost)) else {
            return Ok(());
        };
        told.fetch_max(lost.number, Relaxed);
        lost.told = true;
        lost.is_over |= !self.archive.keeps(Rule::LossesToldAgain);
        Err(lost.error.clone())
    }

    /// Whoever was told of losses up to a number asks for more: the answer arrived.
    fn goes_on(&self, id: u64, told: u64) {
        if let Some(lost) = self.state.lock().lost.get_mut(&id) {
            lost.is_over |= lost.number <= told;
        }
    }

    /// The losses that whoever opens a volume now need not hear of.
    pub(super) fn heard_before(&self, id: u64) -> Heard {
        let state = self.state.lock();
        let over = state.lost.get(&id).filter(|lost| lost.is_over).map_or(0, |lost| lost.number);
        Heard { by_flush: over.into(), by_wait: over.into() }
    }

    /// Makes all changes of a volume so far durable.
    pub(super) fn write_back_so_far(&self, id: u64) -> Result<()> {
        let changes = self.state.lock().changes;
        self.write_back_to(id, Ticket(changes))
    }

    fn write_back_to(&self, id: u64, ticket: Ticket) -> Result<()> {
        let waits = || -> Result<bool> {
            let state = self.state.lock();
            let waits = state.waits(id, ticket);
            if waits { Volumes::going(&state).map(|()| true) } else { Ok(false) }
        };
        while waits()? {
            let writing_back = self.write_back();
            // Somebody else may have done it meanwhile.
            if waits()? {
                writing_back.volume(id)?;
            }
        }
        Ok(())
    }

    /// Waits for the write-back under way, and keeps others from beginning one.
    pub(super) fn write_back(&self) -> WriteBack<'_> {
        WriteBack { volumes: self, _held: self.writing_back.lock() }
    }
}

/// The losses of a volume.
fn lost_of<'a>(volumes: &Volumes, state: &'a mut State, id: u64) -> Option<&'a mut Lost> {
    if volumes.archive.keeps(Rule::LossesOfTheirVolume) {
        state.lost.get_mut(&id)
    } else {
        state.lost.values_mut().filter(|lost| !lost.told).max_by_key(|lost| lost.number)
    }
}

/// Whoever holds this writes back, and nobody else.
pub(super) struct WriteBack<'a> {
    volumes: &'a Volumes,
    _held: MutexGuard<'a, ()>,
}

impl WriteBack<'_> {
    /// Makes all changes of a volume durable, with those of the volumes that are written back together
    /// with it.
    pub(super) fn volume(&self, id: u64) -> Result<()> {
        self.group(Some(id))
    }

    /// Makes all changes so far durable but those of volumes for which the disk had no room.
    pub(super) fn what_finds_room(&self) -> Result<()> {
        self.group(None)
    }

    /// The same for the volumes for which the disk had no room, each by itself.
    pub(super) fn what_found_none(&self) -> Result<()> {
        let lacking: Vec<u64> = {
            let state = self.volumes.state.lock();
            state
                .volumes
                .iter()
                .filter(|(_, layers)| layers.lacks_room)
                .map(|(id, _)| *id)
                .collect()
        };
        let done = lacking.into_iter().map(|id| self.volume(id));
        done.fold(Ok(()), Result::and)
    }

    /// Writes back when there is much.
    pub(super) fn if_much(&self) -> Result<()> {
        let much = {
            let state = self.volumes.state.lock();
            Volumes::going(&state)?;
            state.is_much(self.volumes.share())
        };
        if much { self.what_finds_room() } else { Ok(()) }
    }

    /// Makes room in memory for a write of so many bytes to a volume.
    ///
    /// # Errors
    /// `NoSpace` when the disk has no room for what the volume holds in memory, or when that of the
    /// other volumes leaves it no share.
    pub(super) fn make_room(&self, id: u64, bytes: u64) -> Result<()> {
        let admits = |lacking: bool| -> Result<bool> {
            let state = self.volumes.state.lock();
            Volumes::going(&state)?;
            let own = state.volumes.get(&id).filter(|layers| !lacking || layers.lacks_room);
            let total = if lacking { state.lacking() } else { state.bytes };
            Ok(self.volumes.share().admits(total, own.map_or(0, Layers::memory), bytes))
        };
        if admits(false)? {
            return Ok(());
        }
        let own = self.volume(id);
        if admits(false)? {
            return Ok(());
        }
        // Of the others some may find room, and no failure of theirs is this volume's.
        let _ = self.what_finds_room();
        if admits(false)? {
            return Ok(());
        }
        own?;
        if admits(true)? {
            // Somebody else took the room.
            return Ok(());
        }
        let why = "the disk has no room, and memory has none until there is";
        Err(Error::new(Kind::NoSpace, why))
    }

    /// Writes back a volume for which the disk had no room by itself; else, and without a volume, all
    /// for which it had. When these find none together, each of them is tried by itself, this one
    /// first. Gives the error of this volume, or the first one.
    fn group(&self, of: Option<u64>) -> Result<()> {
        let (mut frozen, upto) = self.freeze(of)?;
        if frozen.is_empty() {
            return Ok(());
        }
        let is_asked = |id: u64| of.is_none_or(|of| of == id);
        let done = self.try_to_write(&frozen);
        let apart = done.error().is_some_and(|error| error.kind() == Kind::NoSpace)
            && frozen.len() > 1
            && self.volumes.archive.keeps(Rule::FullDiskOfItsVolume);
        if !apart {
            let asked = frozen.iter().any(|(id, _)| is_asked(*id));
            let stopping = done.error().is_some_and(|error| error.kind() != Kind::NoSpace);
            let done = self.settle(frozen, upto, done);
            let all = !self.volumes.archive.keeps(Rule::FullDiskOfItsVolume);
            return if asked || stopping || all { done } else { Ok(()) };
        }
        frozen.sort_by_key(|(id, _)| !is_asked(*id));
        let (mut told, mut stopped) = (Ok(()), None::<Error>);
        for (id, layer) in frozen {
            let one = vec![(id, layer)];
            let done = match &stopped {
                Some(error) => Written { done: Err(error.clone()), has_zeroes: false },
                None => self.try_to_write(&one),
            };
            let done = self.settle(one, upto, done);
            stopped = stopped.or(done.clone().err().filter(|error| error.kind() != Kind::NoSpace));
            if is_asked(id) {
                told = told.and(done);
            }
        }
        stopped.map_or(told, Err)
    }

    /// Takes the layers that are written back together, and the changes so far.
    fn freeze(&self, of: Option<u64>) -> Result<(Frozen, u64)> {
        let mut state = self.volumes.state.lock();
        if state.volumes.values().any(|layers| layers.writing_back.is_some()) {
            // `writing_back` is held, so no other write-back runs: an earlier one panicked
            // before its changes were durable.
            state.stopped = Some(Error::new(Kind::Stopped, "a drain ended halfway"));
        }
        if state.is_clean() {
            return Ok((Frozen::new(), state.changes));
        }
        Volumes::going(&state)?;
        let alone = of.filter(|of| state.volumes.get(of).is_some_and(|layers| layers.lacks_room));
        let together = |id: u64, layers: &Layers| match alone {
            Some(alone) => id == alone,
            None => !layers.lacks_room,
        };
        let layers = state.volumes.iter_mut();
        let layers =
            layers.filter(|(id, layers)| !layers.upper.is_empty() && together(**id, layers));
        let frozen = layers
            .map(|(&id, layers)| {
                let layer = Arc::new(std::mem::take(&mut layers.upper));
                layers.writing_back = Some(layer.clone());
                layers.writing_back_since = std::mem::take(&mut layers.since);
                (id, layer)
            })
            .collect();
        Ok((frozen, state.changes))
    }

    /// Writes layers, all of them or none but for zeroes.
    fn try_to_write(&self, frozen: &Frozen) -> Written {
        let done = match self.write_back_living(frozen) {
            // A node that fails now does not count any more; there may be others.
            Err(error)
                if !matches!(error.kind(), Kind::NoSpace | Kind::Corrupt)
                    && self.volumes.archive.label().spread[0] > 1 =>
            {
                self.write_back_living(frozen)
            }
            done => done,
        };
        match done {
            // Zeroes need no room, and perhaps make some.
            Err(error) if error.kind() == Kind::NoSpace => {
                let zeroes = self.write_back_zeroes(frozen);
                Written { has_zeroes: zeroes.is_ok(), done: zeroes.and(Err(error)) }
            }
            done => Written { has_zeroes: done.is_ok(), done },
        }
    }

    /// Layers that were written leave memory; the others are there as before, below what was written since.
    fn settle(&self, frozen: Frozen, upto: u64, written: Written) -> Result<()> {
        let Written { done, has_zeroes } = written;
        let ids: Vec<u64> = frozen.iter().map(|(id, _)| *id).collect();
        drop(frozen);
        let mut state = self.volumes.state.lock();
        let tables = self.volumes.archive.tables();
        let state = &mut *state;
        let lacks_room = self.volumes.archive.keeps(Rule::FullDiskOfItsVolume) && done.is_err();
        for id in ids {
            let Some(layers) = state.volumes.get_mut(&id) else { continue };
            layers.lacks_room = lacks_room;
            let below = layers.writing_back.take();
            if let Some(below) = below.filter(|_| done.is_err()) {
                let below = Arc::try_unwrap(below).unwrap_or_else(|shared| Layer::clone(&shared));
                layers.upper.absorb(below, has_zeroes, readable(&tables, id).ok());
                layers.since = layers.writing_back_since;
            }
        }
        let done = match done {
            Ok(losses) => {
                losses.into_iter().for_each(|loss| state.note_loss(loss, upto));
                Ok(())
            }
            Err(error) => {
                if error.kind() != Kind::NoSpace {
                    state.stopped = Some(error.clone());
                }
                Err(error)
            }
        };
        // Changes of a deleted volume are dropped with it, and those of an erased domain.
        state.volumes.retain(|id, layers| {
            readable(&tables, *id).is_ok()
                && !(layers.upper.is_empty() && layers.writing_back.is_none())
        });
        state.lost.retain(|id, _| readable(&tables, *id).is_ok());
        state.bytes = state.volumes.values().map(Layers::memory).sum();
        done
    }

    /// The same as [`write_back_layers`](Self::write_back_layers), again when a domain was erased meanwhile. An
    /// erasure of which only the key area knows is ended first: whoever began it may be dead.
    fn write_back_living(&self, frozen: &Frozen) -> Result<Losses> {
        loop {
            let before = self.volumes.archive.tables().domains.erased.len();
            let done = self.write_back_layers(frozen);
            if done.as_ref().is_err_and(|error| error.kind() == Kind::Denied) {
                end_erasures(&self.volumes.archive)?;
                if self.volumes.archive.refresh()?.domains.erased.len() > before {
                    continue;
                }
            }
            return done;
        }
    }

    /// Gives what was lost, of each volume once.
    fn write_back_layers(&self, frozen: &Frozen) -> Result<Losses> {
        let mut session = Session::of_volumes(&self.volumes.ingest)?;
        let mut writer = StreamWriter::new(&session, self.volumes.now.load(Relaxed));
        let done = self.write_out(frozen, &mut session, &mut writer);
        if done.as_ref().is_err_and(|error| error.kind() == Kind::NoSpace) {
            writer.abandon();
        }
        let counts = session.counts();
        for (counter, more) in [
            (&self.volumes.counts.write_backs, 1),
            (&self.volumes.counts.chunks, counts.chunks),
            (&self.volumes.counts.duplicates, counts.duplicates),
            (&self.volumes.counts.page_reads, counts.page_reads),
            (&self.volumes.counts.metadata_reads, counts.metadata_reads),
            (&self.volumes.counts.new_bytes, session.new_bytes),
            (&self.volumes.counts.added_bytes, writer.added()),
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
    ) -> Result<Losses> {
        let tables = session.tables().clone();
        let mut losses = Losses::new();
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
                let number = match self.volumes.archive.keeps(Rule::VolumesInTheirDomain) {
                    true => volume.domain,
                    false => FIRST_DOMAIN,
                };
                let mut chunking = Chunking {
                    volumes: self.volumes,
                    tables: &tables,
                    volume,
                    domain: domain_of(&self.volumes.archive, number)?,
                    layer,
                    waiting,
                    placed,
                    lost: None,
                };
                chunking.blocks(emit)?;
                losses.extend(chunking.loss(id));
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
            staged(&self.volumes.ingest, writer, source, place, |_| Ok(()))?;
        }
        writer.remap(&placing.done)?;
        Ok(losses)
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
        let session = Session::of_volumes(&self.volumes.ingest)?;
        StreamWriter::new(&session, self.volumes.now.load(Relaxed)).remap(&all).map(|_| ())
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
    /// The first block that was lost, and how many were.
    lost: Option<(Error, u64)>,
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
                    self.lost.get_or_insert((error, 0)).1 += 1;
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

    fn loss(self, volume: u64) -> Option<Loss> {
        let (error, blocks) = self.lost?;
        let error = match blocks {
            1 => error,
            _ => {
                error.context(format_args!("{blocks} blocks were lost, of which this is the first"))
            }
        };
        Some(Loss { volume, error })
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
