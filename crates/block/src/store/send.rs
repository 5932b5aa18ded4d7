//! Sending: a snapshot, or what changed between two, as a stream; an export, as a stream of raw data.
//!
//! Every block is read as a client reads it, and so verified. Damage ends the stream, or with
//! [`SendWhat::skip_damaged`] its blocks are sent as lost.

use std::{
    collections::HashMap,
    io::{Read, Write},
    ops::Range,
    sync::{
        Arc,
        mpsc::{Receiver, SyncSender, channel, sync_channel},
    },
    thread,
};

use onefold_core::{
    Algorithm, Block, BlockRead, Error, Kind, Lba, Result, Volume, VolumeId, checksum,
    key_memory::Key,
};

use super::{BlockVolume, Copies};
use crate::{
    Begin, Offer, Piece, PieceKind, StreamWriter, Token, Totals, Transfers, VolumeState,
    format::stream::{
        DATA_BLOCKS_MAX, LOST_BLOCKS_MAX,
        negotiation::Asking,
        offer::{OFFER_BLOCKS_MAX, OFFER_RUNS_MAX},
    },
    transfer::is_damage,
};

/// Contents that are remembered in one of two halves, so that they are sent once: an entry takes 40
/// bytes, and a table of this many with its room 32 MiB at most.
const SENT_MAX: usize = 400_000;

/// Blocks whose fingerprints are looked up at once.
const LOOK_BLOCKS: u64 = 4096;

/// Blocks that a sender skips at most: 64 GiB. With more damage a stream is worth nothing, and each
/// takes a place in the receiver's map.
const SKIPPED_MAX: u64 = 1 << 24;

/// Parcels that are read ahead of what is written, each of a MiB at most.
const AHEAD: usize = 4;

/// The choices of a sender.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct SendWhat {
    /// The snapshot, like `vm1@monday`.
    pub snapshot: String,
    /// The snapshot that the other side has: only what changed since is sent.
    pub from: Option<String>,
    /// Where a stream goes on that was cut off.
    pub resume: Option<Token>,
    /// Data is not compressed.
    pub plain: bool,
    /// Blocks that can't be read are sent as lost, and read as errors where they are received. Without
    /// it they end the stream.
    pub skip_damaged: bool,
}

impl Copies<'_> {
    /// Sends a snapshot.
    ///
    /// # Errors
    /// `NotFound`; `InvalidInput` for a token of another snapshot; `Corrupt` when data is damaged;
    /// `Stopped` when a snapshot is deleted meanwhile; those of `out`.
    pub fn send(&self, what: &SendWhat, out: &mut dyn Write) -> Result<Totals> {
        let pair = self.pair(what)?;
        let skips = what.skip_damaged;
        let writer = StreamWriter::begin_as(out, skips, &pair.begin, !what.plain)?;
        let writer = read_ahead(writer, |parcels| {
            let mut sender = Sender::of(&pair.volume, parcels, Some(self.memory()), skips);
            self.all(&pair, skips, |piece| sender.piece(&piece, &[]))
        })?;
        writer.end(pair.begin.blocks)
    }

    /// Sends to a receiver whose answers say which blocks it has: only the others go out. `nonce` is
    /// random. On return the snapshot is durable there.
    ///
    /// # Errors
    /// As [`send`](Self::send); `InvalidInput` when the other store has another secret; `Unsupported` in
    /// a store that compares bytes; `Corrupt` for answers without sense; `Io` when no answer comes.
    pub fn negotiate(
        &self,
        what: &SendWhat,
        nonce: &[u8; 32],
        mut out: &mut dyn Write,
        answers: impl Read,
    ) -> Result<Totals> {
        self.must_trust_fingerprints()?;
        let pair = self.pair(what)?;
        let (secret, algorithm) = self.fingerprints_by();
        let skips = what.skip_damaged;
        let (mut asking, key) = Asking::begin(&mut out, answers, &secret, algorithm, nonce, skips)?;
        let writer = StreamWriter::begin_negotiated(out, key, skips, &pair.begin, !what.plain)?;
        let sender = Sender::of(&pair.volume, writer, Some(self.memory()), skips);
        let mut queue = Queue { sender, pieces: Vec::new(), blocks: 0 };
        let mut settle = |queue: &mut Queue<'_, _>| {
            let Some(offer) = self.offer(pair.volume.id(), &queue.pieces)? else {
                return queue.settle(&[]);
            };
            queue.sender.writer.offer(&offer)?;
            queue.settle(&asking.missing(offer.fingerprints.len())?)
        };
        self.all(&pair, skips, |piece| {
            let mut rest = piece;
            while rest.blocks > 0 {
                queue.take(&mut rest);
                if queue.is_full() {
                    settle(&mut queue)?;
                }
            }
            Ok(())
        })?;
        settle(&mut queue)?;
        let totals = queue.sender.writer.end(pair.begin.blocks)?;
        asking.done()?;
        Ok(totals)
    }

    /// The snapshots that a stream is made of, held until it ends, and its beginning.
    fn pair(&self, what: &SendWhat) -> Result<Pair> {
        self.0.find_snapshot(&what.snapshot)?;
        let volume = BlockVolume::open(self.0, &what.snapshot)?;
        // Nobody deletes it meanwhile, unless by force.
        let base = what.from.as_ref().map(|from| {
            self.0.find_snapshot(from)?;
            BlockVolume::open(self.0, from)
        });
        let base = base.transpose()?;
        let of = self.0.engine.volume(volume.id())?;
        let mut begin = self.about(&of)?;
        if let Some(base) = &base {
            begin.base = guid(&self.0.engine.volume(base.id())?);
        }
        if let Some(token) = what.resume {
            let own = token.guid == begin.guid && token.base == begin.base;
            if !own || token.cursor > begin.blocks {
                let message = "the token is of another snapshot, or of another one that it was sent \
                               from, than those that are named";
                return Err(Error::new(Kind::InvalidInput, message));
            }
            begin.start = token.cursor;
        }
        Ok(Pair { volume, base, begin })
    }

    /// Visits all pieces that are to be sent, in steps that hold no version of the tables.
    fn all(
        &self,
        pair: &Pair,
        skips: bool,
        mut visit: impl FnMut(Piece) -> Result<()>,
    ) -> Result<()> {
        let (blocks, mut at) = (pair.begin.blocks, pair.begin.start);
        while at < blocks {
            pair.base.as_ref().map_or(Ok(()), BlockVolume::check)?;
            pair.volume.check()?;
            let base = pair.base.as_ref().map(BlockVolume::id);
            let (transfers, of) = (Transfers::of(&self.0.engine), pair.volume.id());
            let found = if skips {
                transfers.pieces_past_damage(base, of, at)?
            } else {
                transfers.pieces(base, of, at)?
            };
            found.pieces.into_iter().try_for_each(&mut visit)?;
            at = found.next.max(at + 1);
        }
        Ok(())
    }

    /// The fingerprints of what some pieces hold; none when that is nothing.
    fn offer(&self, of: VolumeId, pieces: &[Piece]) -> Result<Option<Offer>> {
        let mut offer = Offer::default();
        for piece in pieces.iter().filter(|piece| piece.kind == PieceKind::Data) {
            offer.runs.push((piece.first, piece.blocks));
            let (mut at, end) = (piece.first, piece.first + piece.blocks);
            while at < end {
                let count = (end - at).min(LOOK_BLOCKS);
                let found = Transfers::of(&self.0.engine).fingerprints(of, at, count)?;
                offer.fingerprints.extend(found.into_iter().map(Option::unwrap_or_default));
                at += count;
            }
        }
        Ok((!offer.runs.is_empty()).then_some(offer))
    }

    /// What fingerprints are made by.
    pub(super) fn fingerprints_by(&self) -> (Arc<Key>, Algorithm) {
        let kernel = &self.0.engine.kernel;
        (kernel.identity.secret.clone(), kernel.fixed.algorithm)
    }

    /// Refuses to tell or take fingerprints where they alone name no content.
    pub(super) fn must_trust_fingerprints(&self) -> Result<()> {
        if !self.0.engine.kernel.fixed.compares_bytes() {
            return Ok(());
        }
        let message = "this store compares the bytes of duplicates (--verify bytes), so a fingerprint \
                       does not say which block is meant: send without --negotiate";
        Err(Error::new(Kind::Unsupported, message))
    }

    fn memory(&self) -> Sent {
        Sent::new(self.0.engine.kernel.identity.secret.clone())
    }

    /// Writes what a volume, or a snapshot like `vm1@monday`, holds as a stream of raw data. A volume
    /// that is written meanwhile comes as no single moment had it.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn export(&self, name: &str, out: &mut dyn Write) -> Result<Totals> {
        let volume = BlockVolume::open(self.0, name)?;
        let of = self.0.engine.volume(volume.id())?;
        let begin = Begin { blocks: of.blocks, ..Begin::default() };
        let writer = StreamWriter::begin(out, &begin, false)?;
        let writer = read_ahead(writer, |parcels| {
            let mut sender = Sender::of(&volume, parcels, None, false);
            let mut at = 0;
            while at < of.blocks {
                volume.check()?;
                let found = Transfers::of(&self.0.engine).pieces(None, volume.id(), at)?;
                for piece in found.pieces {
                    // The volume may have grown since the export began.
                    let blocks = piece.blocks.min(of.blocks.saturating_sub(piece.first));
                    if blocks > 0 {
                        sender.piece(&Piece { blocks, ..piece }, &[])?;
                    }
                }
                at = found.next.max(at + 1);
            }
            Ok(())
        })?;
        writer.end(of.blocks)
    }

    /// The beginning of a stream of a snapshot.
    fn about(&self, of: &VolumeState) -> Result<Begin> {
        let origin = of.snapshot.ok_or_else(|| Error::new(Kind::InvalidInput, "no snapshot"))?;
        Ok(Begin {
            guid: origin.guid,
            base: [0; 16],
            made_ms: origin.made_ms,
            volume: self.0.engine.volume(origin.volume)?.name,
            snapshot: of.name.clone(),
            blocks: of.blocks,
            start: 0,
            no_dedup: of.no_dedup.clone(),
        })
    }
}

/// The number that tells a snapshot from any other.
pub(super) fn guid(snapshot: &VolumeState) -> [u8; 16] {
    snapshot.snapshot.map_or([0; 16], |origin| origin.guid)
}

/// Who is sent.
struct Pair {
    volume: BlockVolume,
    base: Option<BlockVolume>,
    begin: Begin,
}

/// Pieces of which the receiver is asked together.
struct Queue<'a, W: Write> {
    sender: Sender<'a, StreamWriter<W>>,
    pieces: Vec<Piece>,
    /// Blocks of data among them.
    blocks: u64,
}

impl<W: Write> Queue<'_, W> {
    /// Takes of a piece what has room.
    fn take(&mut self, rest: &mut Piece) {
        let room = match rest.kind {
            PieceKind::Data => OFFER_BLOCKS_MAX - self.blocks,
            _ => rest.blocks,
        };
        let taken = Piece { blocks: rest.blocks.min(room), ..*rest };
        if taken.kind == PieceKind::Data {
            self.blocks += taken.blocks;
        }
        (rest.first, rest.blocks) = (rest.first + taken.blocks, rest.blocks - taken.blocks);
        self.pieces.push(taken);
    }

    fn is_full(&self) -> bool {
        self.blocks >= OFFER_BLOCKS_MAX || self.pieces.len() >= OFFER_RUNS_MAX
    }

    /// Sends them; of their data in order it is known whether it is missing.
    fn settle(&mut self, missing: &[bool]) -> Result<()> {
        let mut rest = missing;
        for piece in std::mem::take(&mut self.pieces) {
            let of = if piece.kind == PieceKind::Data { piece.blocks as usize } else { 0 };
            let (these, others) = rest.split_at(of);
            rest = others;
            self.sender.piece(&piece, these)?;
        }
        self.blocks = 0;
        Ok(())
    }
}

/// Where a sender's pieces go: into the stream, or to the thread that writes it.
trait Sink {
    fn empty(&mut self, first: u64, blocks: u64, zeroes: bool) -> Result<()>;

    fn lost(&mut self, first: u64, blocks: u64) -> Result<()>;

    /// Blocks that begin at `first`, in runs of one form; gives a buffer for the next ones.
    fn runs(&mut self, first: u64, blocks: Vec<Block>, runs: Vec<Run>) -> Result<Vec<Block>>;
}

/// Blocks of a buffer that are sent in one form.
struct Run {
    of: Range<usize>,
    how: As,
}

impl<W: Write> Sink for StreamWriter<W> {
    fn empty(&mut self, first: u64, blocks: u64, zeroes: bool) -> Result<()> {
        StreamWriter::empty(self, first, blocks, zeroes)
    }

    fn lost(&mut self, first: u64, blocks: u64) -> Result<()> {
        let (mut at, end) = (first, first + blocks);
        while at < end {
            let count = (end - at).min(LOST_BLOCKS_MAX);
            StreamWriter::lost(self, at, count)?;
            at += count;
        }
        Ok(())
    }

    fn runs(&mut self, first: u64, blocks: Vec<Block>, runs: Vec<Run>) -> Result<Vec<Block>> {
        for Run { of, how } in runs {
            let (at, count) = (first + of.start as u64, of.len() as u64);
            match how {
                As::Lost => Sink::lost(self, at, count)?,
                As::Zeroes => self.empty(at, count, true)?,
                As::Data => self.data(at, &blocks[of])?,
                As::Repeat(as_at) => self.repeat(at, count, as_at)?,
                As::Held => self.held(at, &blocks[of])?,
            }
        }
        Ok(blocks)
    }
}

/// A piece of the stream, from the thread that reads to the one that writes.
enum Parcel {
    Empty { first: u64, blocks: u64, zeroes: bool },
    Lost { first: u64, blocks: u64 },
    Runs { first: u64, blocks: Vec<Block>, runs: Vec<Run> },
}

/// The reading thread's end: parcels to the writing one, and buffers back.
struct Parcels {
    to: SyncSender<Parcel>,
    back: Receiver<Vec<Block>>,
}

impl Parcels {
    fn give(&self, parcel: Parcel) -> Result<()> {
        // Nobody hears of this: the thread that writes has failed, and says why.
        self.to.send(parcel).map_err(|_| Error::new(Kind::Io, "nobody writes the stream any more"))
    }
}

impl Sink for Parcels {
    fn empty(&mut self, first: u64, blocks: u64, zeroes: bool) -> Result<()> {
        self.give(Parcel::Empty { first, blocks, zeroes })
    }

    fn lost(&mut self, first: u64, blocks: u64) -> Result<()> {
        self.give(Parcel::Lost { first, blocks })
    }

    fn runs(&mut self, first: u64, blocks: Vec<Block>, runs: Vec<Run>) -> Result<Vec<Block>> {
        self.give(Parcel::Runs { first, blocks, runs })?;
        Ok(self.back.try_recv().unwrap_or_default())
    }
}

/// Runs `read` in a thread of its own, and writes its parcels here: blocks are read and verified while
/// others are compressed, proven and passed on. Takes [`AHEAD`] MiB and two more for buffers. Ends with
/// the first error of either side.
fn read_ahead<W: Write>(
    mut writer: StreamWriter<W>,
    read: impl FnOnce(Parcels) -> Result<()> + Send,
) -> Result<StreamWriter<W>> {
    let (to, parcels) = sync_channel(AHEAD);
    let (give_back, back) = channel();
    thread::scope(|scope| {
        let reading = scope.spawn(move || read(Parcels { to, back }));
        for parcel in parcels {
            match parcel {
                Parcel::Empty { first, blocks, zeroes } => writer.empty(first, blocks, zeroes)?,
                Parcel::Lost { first, blocks } => Sink::lost(&mut writer, first, blocks)?,
                Parcel::Runs { first, blocks, runs } => {
                    // The reader may have ended.
                    let _ = give_back.send(writer.runs(first, blocks, runs)?);
                }
            }
        }
        reading.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })?;
    Ok(writer)
}

struct Sender<'a, S: Sink> {
    volume: &'a BlockVolume,
    writer: S,
    /// The contents that were sent; `None` where each block is sent for itself.
    sent: Option<Sent>,
    buffer: Vec<Block>,
    /// Blocks that can't be read are sent as lost: so many were.
    skipped: Option<u64>,
}

/// The form in which a block is sent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum As {
    Lost,
    Zeroes,
    Data,
    Repeat(u64),
    Held,
}

impl<'a, S: Sink> Sender<'a, S> {
    fn of(volume: &'a BlockVolume, writer: S, sent: Option<Sent>, skips: bool) -> Sender<'a, S> {
        Sender { volume, writer, sent, buffer: Vec::new(), skipped: skips.then_some(0) }
    }

    /// Sends a piece; `missing` says of its blocks which the receiver does not have, and is empty when
    /// nobody asked.
    fn piece(&mut self, piece: &Piece, missing: &[bool]) -> Result<()> {
        match piece.kind {
            PieceKind::Hole => self.writer.empty(piece.first, piece.blocks, false),
            PieceKind::Zeroes => self.writer.empty(piece.first, piece.blocks, true),
            PieceKind::Hidden => {
                self.skip(piece.blocks)?;
                self.writer.lost(piece.first, piece.blocks)
            }
            PieceKind::Data => {
                let (mut at, end) = (piece.first, piece.first + piece.blocks);
                while at < end {
                    let count = (end - at).min(DATA_BLOCKS_MAX);
                    let these = missing.get((at - piece.first) as usize..).unwrap_or_default();
                    self.data(at, count, these)?;
                    at += count;
                }
                Ok(())
            }
        }
    }

    fn data(&mut self, first: u64, count: u64, missing: &[bool]) -> Result<()> {
        let mut blocks = std::mem::take(&mut self.buffer);
        if blocks.len() < count as usize {
            blocks = Block::zeroed_vec(DATA_BLOCKS_MAX as usize);
        }
        let mut reads =
            [BlockRead { first: Lba(first), into: &mut blocks[..count as usize], result: Ok(()) }];
        self.volume.read(&mut reads);
        let [BlockRead { result, .. }] = reads;
        let mut lost = Vec::new();
        match result {
            Err(error) if self.skipped.is_some() && is_damage(&error) => {
                lost = self.read_each(first, &mut blocks[..count as usize])?;
            }
            result => result?,
        }
        let mut runs: Vec<Run> = Vec::new();
        for (n, block) in blocks[..count as usize].iter().enumerate() {
            let now = match missing.get(n) {
                _ if lost.get(n) == Some(&true) => As::Lost,
                Some(false) => As::Held,
                _ => self.how(block, first + n as u64),
            };
            match runs.last_mut() {
                Some(Run { of, how }) if now == how.behind(of.len()) => of.end = n + 1,
                _ => runs.push(Run { of: n..n + 1, how: now }),
            }
        }
        let lost =
            runs.iter().filter(|run| run.how == As::Lost).map(|run| run.of.len() as u64).sum();
        self.skip(lost)?;
        self.buffer = self.writer.runs(first, blocks, runs)?;
        Ok(())
    }

    /// Reads blocks each by itself; gives which of them can't be read.
    fn read_each(&self, first: u64, blocks: &mut [Block]) -> Result<Vec<bool>> {
        let mut each: Vec<BlockRead<'_>> = (first..)
            .map(Lba)
            .zip(blocks.chunks_mut(1))
            .map(|(first, into)| BlockRead { first, into, result: Ok(()) })
            .collect();
        self.volume.read(&mut each);
        let is_lost = |read: BlockRead<'_>| match read.result {
            Err(error) if is_damage(&error) => Ok(true),
            result => result.map(|()| false),
        };
        each.into_iter().map(is_lost).collect()
    }

    /// Counts blocks that could not be read.
    fn skip(&mut self, blocks: u64) -> Result<()> {
        let Some(skipped) = &mut self.skipped else { return Ok(()) };
        *skipped += blocks;
        if *skipped > SKIPPED_MAX {
            let message =
                "more than 64 GiB of the snapshot can't be read: that is too much to skip";
            return Err(Error::new(Kind::Corrupt, message));
        }
        Ok(())
    }

    fn how(&mut self, block: &Block, at: u64) -> As {
        if block.0.iter().all(|&byte| byte == 0) {
            return As::Zeroes;
        }
        self.sent.as_mut().and_then(|sent| sent.before(block, at)).map_or(As::Data, As::Repeat)
    }
}

impl As {
    /// The form of the block so many behind the first one of a run.
    fn behind(self, blocks: usize) -> As {
        match self {
            As::Repeat(at) => As::Repeat(at + blocks as u64),
            other => other,
        }
    }
}

/// Where contents were sent, as far as memory goes.
struct Sent {
    secret: Arc<Key>,
    young: HashMap<[u8; 32], u64>,
    old: HashMap<[u8; 32], u64>,
}

impl Sent {
    fn new(secret: Arc<Key>) -> Sent {
        Sent { secret, young: HashMap::new(), old: HashMap::new() }
    }

    /// The block that the same content was sent for before; else it is for `at`.
    fn before(&mut self, block: &Block, at: u64) -> Option<u64> {
        // A whole hash with a key that nobody outside knows: contents need not be compared.
        let name = checksum::chunk_name(&self.secret, &block.0);
        if let Some(&at) = self.young.get(&name).or_else(|| self.old.get(&name)) {
            return Some(at);
        }
        if self.young.len() >= SENT_MAX {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(name, at);
        None
    }
}
