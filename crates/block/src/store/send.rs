//! Sending: a snapshot, or what changed between two, as a stream; an export, as a stream of raw data.
//!
//! Every block is read as a client reads it, and so verified. Damage ends the stream, or with
//! [`SendWhat::skip_damaged`] its blocks are sent as lost.

use std::{
    collections::HashMap,
    io::{Read, Write},
};

use onefold_core::{
    Algorithm, Block, BlockRead, Error, Kind, Lba, Result, Volume, VolumeId, checksum,
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
        let mut sender = Sender::of(&pair.volume, writer, Some(self.memory()), skips);
        self.all(&pair, skips, |piece| sender.piece(&piece, &[]))?;
        sender.writer.end(pair.begin.blocks)
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
    pub(super) fn fingerprints_by(&self) -> ([u8; 32], Algorithm) {
        let kernel = &self.0.engine.kernel;
        (kernel.identity.secret, kernel.fixed.algorithm)
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
        Sent::new(self.0.engine.kernel.identity.secret)
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
        let mut sender = Sender::of(&volume, writer, None, false);
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
        sender.writer.end(of.blocks)
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
    sender: Sender<'a, W>,
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

struct Sender<'a, W: Write> {
    volume: &'a BlockVolume,
    writer: StreamWriter<W>,
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

impl<'a, W: Write> Sender<'a, W> {
    fn of(
        volume: &'a BlockVolume,
        writer: StreamWriter<W>,
        sent: Option<Sent>,
        skips: bool,
    ) -> Sender<'a, W> {
        Sender { volume, writer, sent, buffer: Vec::new(), skipped: skips.then_some(0) }
    }

    /// Sends a piece; `missing` says of its blocks which the receiver does not have, and is empty when
    /// nobody asked.
    fn piece(&mut self, piece: &Piece, missing: &[bool]) -> Result<()> {
        match piece.kind {
            PieceKind::Hole => self.writer.empty(piece.first, piece.blocks, false),
            PieceKind::Zeroes => self.writer.empty(piece.first, piece.blocks, true),
            PieceKind::Hidden => self.lost(piece.first, piece.blocks),
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
        let mut run: Option<(usize, As)> = None;
        for n in 0..count as usize {
            let now = match missing.get(n) {
                _ if lost.get(n) == Some(&true) => As::Lost,
                Some(false) => As::Held,
                _ => self.how(&blocks[n], first + n as u64),
            };
            let goes_on = match (run, now) {
                (Some((begun, As::Repeat(x))), As::Repeat(now)) => x + (n - begun) as u64 == now,
                (Some((_, before)), now) => before == now,
                (None, _) => false,
            };
            if !goes_on {
                self.run(first, &blocks, run, n)?;
                run = Some((n, now));
            }
        }
        self.run(first, &blocks, run, count as usize)?;
        self.buffer = blocks;
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

    /// Writes that blocks could not be read.
    fn lost(&mut self, first: u64, blocks: u64) -> Result<()> {
        let skipped = self.skipped.unwrap_or(0) + blocks;
        if skipped > SKIPPED_MAX {
            let message =
                "more than 64 GiB of the snapshot can't be read: that is too much to skip";
            return Err(Error::new(Kind::Corrupt, message));
        }
        self.skipped = Some(skipped);
        let (mut at, end) = (first, first + blocks);
        while at < end {
            let count = (end - at).min(LOST_BLOCKS_MAX);
            self.writer.lost(at, count)?;
            at += count;
        }
        Ok(())
    }

    fn how(&mut self, block: &Block, at: u64) -> As {
        if block.0.iter().all(|&byte| byte == 0) {
            return As::Zeroes;
        }
        self.sent.as_mut().and_then(|sent| sent.before(block, at)).map_or(As::Data, As::Repeat)
    }

    /// Writes the blocks of a run that ends before block `end`.
    fn run(
        &mut self,
        first: u64,
        blocks: &[Block],
        run: Option<(usize, As)>,
        end: usize,
    ) -> Result<()> {
        let Some((begun, how)) = run else { return Ok(()) };
        let (at, count) = (first + begun as u64, (end - begun) as u64);
        match how {
            As::Lost => self.lost(at, count),
            As::Zeroes => self.writer.empty(at, count, true),
            As::Data => self.writer.data(at, &blocks[begun..end]),
            As::Repeat(as_at) => self.writer.repeat(at, count, as_at),
            As::Held => self.writer.held(at, &blocks[begun..end]),
        }
    }
}

/// Where contents were sent, as far as memory goes.
struct Sent {
    secret: [u8; 32],
    young: HashMap<[u8; 32], u64>,
    old: HashMap<[u8; 32], u64>,
}

impl Sent {
    fn new(secret: [u8; 32]) -> Sent {
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
