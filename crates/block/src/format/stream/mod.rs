//! The stream of a snapshot or a volume: what `send` writes and `receive` reads.
//!
//! The stream begins with [`MAGIC`], which ends in the version. Then come frames. Each has a header
//! of 32 bytes, a payload of at most 1 MiB, and 32 bytes that prove it and all before it: keyed
//! BLAKE3 of header and payload, whose key is the proof of the frame before, and at first
//! [`MAGIC`] twice.
//!
//! | offset | bytes | header of a frame |
//! |---|---|---|
//! | 0 | 1 | kind: 1 begin, 2 hole, 3 zeroes, 4 data, 5 repeat, 6 end; negotiated: 7 offer, 8 held, 9 missing, 10 done |
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

mod frames;
pub(crate) mod negotiation;
pub(crate) mod offer;
mod read;
mod write;

pub use offer::{HeldProof, Offer};
pub use read::{Next, StreamReader};
pub use write::StreamWriter;

use super::{
    catalogue::{NAME_MAX, NO_DEDUP_MAX, NoDedup, VOLUME_BLOCKS_MAX},
    record::from_low_bytes,
};

/// The beginning of every stream; its end is the version.
pub(crate) const MAGIC: [u8; 16] = *b"onefold stream\0\x01";

/// The beginning of a stream whose sender asks what is missing.
pub(crate) const MAGIC_NEGOTIATED: [u8; 16] = *b"onefold stream\0\x02";

/// True when a stream that begins with these bytes is of a sender that asks what is missing, and waits
/// for answers.
#[must_use]
pub fn negotiates(begins: &[u8; 16]) -> bool {
    *begins == MAGIC_NEGOTIATED
}

/// Blocks of a frame of data at most: 1 MiB.
pub(crate) const DATA_BLOCKS_MAX: u64 = 256;

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
    fn encode(&self, negotiated: bool) -> Vec<u8> {
        let Totals { data, repeats, zeroes, holes, held } = *self;
        let all = [data, repeats, zeroes, holes].into_iter().chain(negotiated.then_some(held));
        all.flat_map(u64::to_le_bytes).collect()
    }

    fn decode(bytes: &[u8], negotiated: bool) -> Option<Totals> {
        let number = |n: usize| from_low_bytes(&bytes[8 * n..8 * n + 8]);
        (bytes.len() == if negotiated { 40 } else { 32 }).then(|| Totals {
            data: number(0),
            repeats: number(1),
            zeroes: number(2),
            holes: number(3),
            held: if negotiated { number(4) } else { 0 },
        })
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
