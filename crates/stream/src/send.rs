//! The form in which a sender's blocks go: as data, as a repetition of what went before, as zeroes, or as lost.
//!
//! Every block is read as a client reads it, and so verified. Damage ends the stream, or with
//! [`SendWhat::skip_damaged`] its blocks are sent as lost.

use std::{
    collections::HashMap,
    io::Write,
    ops::Range,
    sync::{
        Arc,
        mpsc::{Receiver, SyncSender, channel, sync_channel},
    },
    thread,
};

use onefold_core::{Block, BlockRead, Error, Kind, Lba, Result, Volume, checksum, key_memory::Key};

use crate::{
    Begin, DATA_BLOCKS_MAX, LOST_BLOCKS_MAX, Piece, PieceKind, StreamWriter, Token, is_damage,
};

/// Contents that are remembered in one of two halves, so that they are sent once: an entry takes 40
/// bytes, and a table of this many with its room 32 MiB at most.
const SENT_MAX: usize = 400_000;

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

/// Lets a stream begin where another one was cut off, if the sender is told so.
///
/// # Errors
/// `InvalidInput` for a token of another snapshot.
pub fn goes_on(what: &SendWhat, begin: &mut Begin) -> Result<()> {
    if let Some(token) = what.resume {
        let own = token.guid == begin.guid && token.base == begin.base;
        if !own || token.cursor > begin.blocks {
            let message = "the token is of another snapshot, or of another one that it was sent \
                           from, than those that are named";
            return Err(Error::new(Kind::InvalidInput, message));
        }
        begin.start = token.cursor;
    }
    Ok(())
}

/// Where a sender's pieces go: into the stream, or to the thread that writes it.
pub trait Sink {
    /// Blocks that hold nothing, or zeroes that were written.
    ///
    /// # Errors
    /// Those of the output.
    fn empty(&mut self, first: u64, blocks: u64, zeroes: bool) -> Result<()>;

    /// Blocks that could not be read, as many as there are.
    ///
    /// # Errors
    /// Those of the output.
    fn lost(&mut self, first: u64, blocks: u64) -> Result<()>;

    /// Blocks that begin at `first`, in runs of one form; gives a buffer for the next ones.
    ///
    /// # Errors
    /// Those of the output.
    fn runs(&mut self, first: u64, blocks: Vec<Block>, runs: Vec<Run>) -> Result<Vec<Block>>;
}

/// Blocks of a buffer that are sent in one form.
pub struct Run {
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
pub struct Parcels {
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
/// others are compressed, proven and passed on. Takes 4 MiB and two more for buffers. Ends with
/// the first error of either side.
///
/// # Errors
/// Those of `read`, and of the output.
pub fn read_ahead<W: Write>(
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

/// Sends pieces of a volume, each block in the form that costs least.
pub struct Sender<'a, S: Sink> {
    volume: &'a dyn Volume,
    /// Where they go.
    pub writer: S,
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
    /// One that remembers in `sent` what it sent, or sends each block for itself; with `skips` it sends blocks
    /// that can't be read as lost.
    pub fn of(volume: &'a dyn Volume, writer: S, sent: Option<Sent>, skips: bool) -> Sender<'a, S> {
        Sender { volume, writer, sent, buffer: Vec::new(), skipped: skips.then_some(0) }
    }

    /// Sends a piece; `missing` says of its blocks which the receiver does not have, and is empty when
    /// nobody asked.
    ///
    /// # Errors
    /// `Corrupt` when a block can't be read, and more than may be skipped; those of the output.
    pub fn piece(&mut self, piece: &Piece, missing: &[bool]) -> Result<()> {
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
pub struct Sent {
    secret: Arc<Key>,
    young: HashMap<[u8; 32], u64>,
    old: HashMap<[u8; 32], u64>,
}

impl Sent {
    /// None yet; contents are told apart by hashes with this key, which nobody outside knows.
    #[must_use]
    pub fn new(secret: Arc<Key>) -> Sent {
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
