//! Sending: a snapshot, or what changed between two, as a stream; an export, as a stream of raw data.
//!
//! Every block is read as a client reads it, and so verified; damage ends the stream.

use std::{collections::HashMap, io::Write};

use onefold_core::{Block, BlockRead, Error, ExtentKind, Kind, Lba, Result, Volume, checksum};

use super::{BlockVolume, Copies};
use crate::{
    Begin, Piece, StreamWriter, Token, Totals, Transfers, VolumeState,
    format::stream::DATA_BLOCKS_MAX,
};

/// Contents that are remembered in one of two halves, so that they are sent once: an entry takes 40
/// bytes, and a table of this many with its room 32 MiB at most.
const SENT_MAX: usize = 400_000;

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
}

impl Copies<'_> {
    /// Sends a snapshot.
    ///
    /// # Errors
    /// `NotFound`; `InvalidInput` for a token of another snapshot; `Corrupt` when data is damaged;
    /// `Stopped` when a snapshot is deleted meanwhile; those of `out`.
    pub fn send(&self, what: &SendWhat, out: &mut dyn Write) -> Result<Totals> {
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
        let (blocks, mut at) = (begin.blocks, begin.start);
        let mut sender = Sender {
            volume: &volume,
            writer: StreamWriter::begin(out, &begin, !what.plain)?,
            sent: Some(Sent::new(self.0.engine.kernel.identity.secret)),
            buffer: Vec::new(),
        };
        while at < blocks {
            base.as_ref().map_or(Ok(()), BlockVolume::check)?;
            volume.check()?;
            let base = base.as_ref().map(BlockVolume::id);
            let found = Transfers::of(&self.0.engine).pieces(base, volume.id(), at)?;
            found.pieces.iter().try_for_each(|piece| sender.piece(piece))?;
            at = found.next.max(at + 1);
        }
        sender.writer.end(blocks)
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
        let mut sender = Sender { volume: &volume, writer, sent: None, buffer: Vec::new() };
        let mut at = 0;
        while at < of.blocks {
            volume.check()?;
            let found = Transfers::of(&self.0.engine).pieces(None, volume.id(), at)?;
            for piece in found.pieces {
                // The volume may have grown since the export began.
                let blocks = piece.blocks.min(of.blocks.saturating_sub(piece.first));
                if blocks > 0 {
                    sender.piece(&Piece { blocks, ..piece })?;
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

struct Sender<'a, W: Write> {
    volume: &'a BlockVolume,
    writer: StreamWriter<W>,
    /// The contents that were sent; `None` where each block is sent for itself.
    sent: Option<Sent>,
    buffer: Vec<Block>,
}

/// The form in which a block is sent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum As {
    Zeroes,
    Data,
    Repeat(u64),
}

impl<W: Write> Sender<'_, W> {
    fn piece(&mut self, piece: &Piece) -> Result<()> {
        match piece.kind {
            ExtentKind::Hole => self.writer.empty(piece.first, piece.blocks, false),
            ExtentKind::Zero => self.writer.empty(piece.first, piece.blocks, true),
            ExtentKind::Data => {
                let (mut at, end) = (piece.first, piece.first + piece.blocks);
                while at < end {
                    let count = (end - at).min(DATA_BLOCKS_MAX);
                    self.data(at, count)?;
                    at += count;
                }
                Ok(())
            }
        }
    }

    fn data(&mut self, first: u64, count: u64) -> Result<()> {
        let mut blocks = std::mem::take(&mut self.buffer);
        if blocks.len() < count as usize {
            blocks = Block::zeroed_vec(DATA_BLOCKS_MAX as usize);
        }
        let mut reads =
            [BlockRead { first: Lba(first), into: &mut blocks[..count as usize], result: Ok(()) }];
        self.volume.read(&mut reads);
        let [BlockRead { result, .. }] = reads;
        result?;
        let mut run: Option<(usize, As)> = None;
        for n in 0..count as usize {
            let now = self.how(&blocks[n], first + n as u64);
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
            As::Zeroes => self.writer.empty(at, count, true),
            As::Data => self.writer.data(at, &blocks[begun..end]),
            As::Repeat(as_at) => self.writer.repeat(at, count, as_at),
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
