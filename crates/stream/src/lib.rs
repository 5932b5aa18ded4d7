//! The stream of a snapshot or a volume: what `send` writes and `receive` reads, for all engines that
//! have volumes.
//!
//! [`StreamWriter`] and [`StreamReader`] are its bytes, which `docs/format.md` describes. [`Sender`] decides in
//! which form blocks are sent, and [`Cursor`] when a receiver's place becomes durable. Which blocks are sent, and
//! where they go, is the engines' own.
//!
//! The stream begins with 16 bytes, of which the last one is the version ([`Form`]). Then come frames.
//! Each has a header of 32 bytes, a payload of at most 1 MiB, and 32 bytes that prove it and all before
//! it: keyed BLAKE3 of header and payload, whose key is the proof of the frame before, and at first the
//! 16 bytes of the beginning twice.
//!
//! | offset | bytes | header of a frame |
//! |---|---|---|
//! | 0 | 1 | kind: 1 begin, 2 hole, 3 zeroes, 4 data, 5 repeat, 6 end; negotiated: 7 offer, 8 held, 9 missing, 10 done; of a sender that skips damage: 11 lost |
//! | 1 | 1 | 1 when the payload is compressed by zstd, which only data is |
//! | 2 | 2 | zero |
//! | 4 | 4 | bytes of the payload |
//! | 8 | 8 | number of the frame, from 0 on |
//! | 16 | 8 | first block; of a begin the block where the stream goes on, 0 for a whole one |
//! | 24 | 8 | blocks; of a begin and an end the size, 0 in a begin that does not know it yet |
//!
//! Frames rise and do not meet; what lies between is as in the base, or a hole without one. A
//! repeat has the number of the first block that the same content was sent for, 8 bytes. The payload
//! of an end is its [`Totals`], 8 bytes each; that of a begin is a [`Begin`].
//!
//! A *negotiated* stream has version 2: [`negotiation`] says how it begins, and what else is in it.
//!
//! Versions 3 and 4 are as 1 and 2, of a sender that skips damage: blocks that it can't read are *lost*,
//! and read as errors where the stream is received. A receiver that does not know them refuses the
//! stream before it takes anything of it.

mod cursor;
mod frames;
pub mod negotiation;
mod no_dedup;
mod offer;
mod piece;
mod read;
mod send;
mod token;
mod write;

pub use cursor::{CURSOR_BLOCKS, Cursor};
pub use no_dedup::{NO_DEDUP_MAX, NoDedup};
pub use offer::{HeldProof, OFFER_BLOCKS_MAX, OFFER_RUNS_MAX, Offer};
pub use piece::{Piece, PieceKind, Pieces, is_damage};
pub use read::{Next, StreamReader};
pub use send::{Parcels, Run, SendWhat, Sender, Sent, Sink, goes_on, read_ahead};
pub use token::Token;
pub use write::StreamWriter;

use std::io::Read;

use onefold_core::{Error, Lba, Result};

/// Longest name of a volume in bytes.
pub const NAME_MAX: usize = 255;

/// Largest volume of any engine: 1 EiB, in blocks.
pub const VOLUME_BLOCKS_MAX: u64 = Lba::MAX.0 + 1;

/// Bytes of the beginning of every stream.
pub const MAGIC_BYTES: usize = 16;

/// The form of a stream, which its version tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Form {
    /// The sender asks what is missing, and waits for answers.
    pub negotiated: bool,
    /// The sender skips damage: the stream may have lost blocks.
    pub skips: bool,
}

impl Form {
    /// The beginning of a stream of this form; its last byte is the version.
    pub fn magic(self) -> [u8; MAGIC_BYTES] {
        let mut magic = *b"onefold stream\0\x01";
        magic[15] += u8::from(self.negotiated) + 2 * u8::from(self.skips);
        magic
    }

    /// The form of a stream that begins like this; none for what is no stream, or of a newer version.
    pub fn of(magic: &[u8; MAGIC_BYTES]) -> Option<Form> {
        let all = [(false, false), (true, false), (false, true), (true, true)];
        let mut all = all.into_iter().map(|(negotiated, skips)| Form { negotiated, skips });
        all.find(|form| form.magic() == *magic)
    }
}

/// True when a stream that begins with these bytes is of a sender that asks what is missing, and waits
/// for answers.
#[must_use]
pub fn negotiates(begins: &[u8; 16]) -> bool {
    Form::of(begins).is_some_and(|form| form.negotiated)
}

/// Blocks of a frame of data at most: 1 MiB.
pub const DATA_BLOCKS_MAX: u64 = 256;

/// Lost blocks of a frame at most: a receiver notes each.
pub const LOST_BLOCKS_MAX: u64 = 8192;

/// The description of what a stream holds.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Begin {
    /// Tells the snapshot from any other; zero for a stream of raw data.
    pub guid: [u8; 16],
    /// The snapshot that the stream is to be applied to; zero for none.
    pub base: [u8; 16],
    /// When the snapshot was made, in milliseconds since 1970.
    pub made_ms: u64,
    /// The name of the volume.
    pub volume: String,
    /// The name of the snapshot, without its volume's.
    pub snapshot: String,
    /// The size in blocks; 0 when the sender does not know it yet.
    pub blocks: u64,
    /// The block where it goes on.
    pub start: u64,
    /// The blocks that are not deduplicated.
    pub no_dedup: NoDedup,
}

/// The sums at the end of a stream, in blocks; a stream that goes on counts from where it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Totals {
    /// Blocks that came as data.
    pub data: u64,
    /// Blocks that had come before.
    pub repeats: u64,
    /// Zeroes.
    pub zeroes: u64,
    /// Holes that were sent.
    pub holes: u64,
    /// Blocks that the receiver had, of a sender that asked.
    pub held: u64,
    /// Blocks that the sender could not read, and skipped.
    pub lost: u64,
}

/// The number in up to eight little-endian bytes.
fn from_low_bytes(low: &[u8]) -> u64 {
    low.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte))
}

/// Reads until the buffer is full or the input ends; gives how much came.
///
/// # Errors
/// `Io`.
pub fn read_up_to(input: &mut impl Read, into: &mut [u8]) -> Result<usize> {
    let mut came = 0;
    while came < into.len() {
        match input.read(&mut into[came..]) {
            Ok(0) => break,
            Ok(n) => came += n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(Error::from_io("the stream can't be read", e)),
        }
    }
    Ok(came)
}

/// The content of a frame, besides its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Nothing is stored.
    Hole,
    /// Zeroes that were written.
    Zeroes,
    /// These bytes.
    Data(Vec<u8>),
    /// The content of the blocks from here on.
    Repeat(u64),
    /// What was offered, and the receiver has.
    Held(HeldProof),
    /// The sender could not read them.
    Lost,
}

/// A frame between begin and end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The first block.
    pub first: u64,
    /// How many.
    pub blocks: u64,
    /// What they hold.
    pub content: Content,
}

impl Totals {
    fn encode(&self, form: Form) -> Vec<u8> {
        let Totals { data, repeats, zeroes, holes, held, lost } = *self;
        let all = [data, repeats, zeroes, holes].into_iter();
        let all = all.chain(form.negotiated.then_some(held)).chain(form.skips.then_some(lost));
        all.flat_map(u64::to_le_bytes).collect()
    }
}

impl Begin {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&self.guid);
        bytes.extend_from_slice(&self.base);
        bytes.extend_from_slice(&self.made_ms.to_le_bytes());
        for name in [&self.volume, &self.snapshot] {
            bytes.extend_from_slice(&(name.len() as u16).to_le_bytes());
            bytes.extend_from_slice(name.as_bytes());
        }
        bytes.push(self.no_dedup.ranges().len() as u8);
        for range in self.no_dedup.ranges() {
            bytes.extend_from_slice(&range.start.to_le_bytes());
            bytes.extend_from_slice(&range.end.to_le_bytes());
        }
        bytes
    }

    fn decode(start: u64, blocks: u64, bytes: &[u8]) -> Option<Begin> {
        let mut rest = bytes;
        let mut take = |n: usize| {
            let (taken, left) = rest.split_at_checked(n)?;
            rest = left;
            Some(taken)
        };
        let guid = take(16)?.try_into().ok()?;
        let base = take(16)?.try_into().ok()?;
        let made_ms = from_low_bytes(take(8)?);
        let mut names = Vec::new();
        for _ in 0..2 {
            let length = from_low_bytes(take(2)?) as usize;
            let name = take(length)?;
            let name = std::str::from_utf8(name).ok().filter(|name| name.len() <= NAME_MAX)?;
            names.push(name.to_owned());
        }
        let count = usize::from(take(1)?[0]);
        if count > NO_DEDUP_MAX {
            return None;
        }
        let mut ranges = Vec::new();
        for _ in 0..count {
            ranges.push(from_low_bytes(take(8)?)..from_low_bytes(take(8)?));
        }
        let no_dedup = NoDedup::new(ranges.clone()).ok()?;
        let snapshot = names.pop()?;
        let volume = names.pop()?;
        let fits = blocks <= VOLUME_BLOCKS_MAX && start <= blocks;
        (rest.is_empty() && fits && no_dedup.ranges() == ranges).then_some(Begin {
            guid,
            base,
            made_ms,
            volume,
            snapshot,
            blocks,
            start,
            no_dedup,
        })
    }
}

#[cfg(test)]
mod tests;
