//! The stream of a snapshot or a volume: what `send` writes and `receive` reads.
//!
//! The stream begins with [`MAGIC`], which ends in the version. Then come frames. Each has a header
//! of 32 bytes, a payload of at most 1 MiB, and 32 bytes that prove it and all before it: keyed
//! BLAKE3 of header and payload, whose key is the proof of the frame before, and at first
//! [`MAGIC`] twice.
//!
//! | offset | bytes | header of a frame |
//! |---|---|---|
//! | 0 | 1 | kind: 1 begin, 2 hole, 3 zeroes, 4 data, 5 repeat, 6 end |
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

use std::io::{ErrorKind, Read, Write};

use onefold_core::{BLOCK_BYTES, Block, Error, Kind, Result, checksum};

use super::{
    catalogue::{NAME_MAX, NO_DEDUP_MAX, NoDedup, VOLUME_BLOCKS_MAX},
    record::from_low_bytes,
};

/// The beginning of every stream; its end is the version.
pub(crate) const MAGIC: [u8; 16] = *b"onefold stream\0\x01";

/// Blocks of a frame of data at most: 1 MiB.
pub(crate) const DATA_BLOCKS_MAX: u64 = 256;

const HEADER_BYTES: usize = 32;
const PROOF_BYTES: usize = 32;
const PAYLOAD_MAX: usize = DATA_BLOCKS_MAX as usize * BLOCK_BYTES;
const COMPRESSED: u8 = 1;

/// The level at which data is compressed: faster than most networks.
const LEVEL: i32 = 1;

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

#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    Begin = 1,
    Hole = 2,
    Zeroes = 3,
    Data = 4,
    Repeat = 5,
    End = 6,
}

impl Of {
    fn decode(byte: u8) -> Option<Of> {
        [Of::Begin, Of::Hole, Of::Zeroes, Of::Data, Of::Repeat, Of::End]
            .into_iter()
            .find(|&kind| kind as u8 == byte)
    }
}

/// The proof before the first frame.
fn first_proof() -> [u8; PROOF_BYTES] {
    let mut proof = [0; PROOF_BYTES];
    proof[..16].copy_from_slice(&MAGIC);
    proof[16..].copy_from_slice(&MAGIC);
    proof
}

/// Writes a stream.
pub struct StreamWriter<W: Write> {
    out: W,
    proof: [u8; PROOF_BYTES],
    sequence: u64,
    compressor: Option<zstd::bulk::Compressor<'static>>,
    totals: Totals,
    buffer: Vec<u8>,
}

impl<W: Write> StreamWriter<W> {
    /// One that begins; with `compress`, data is compressed.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn begin(out: W, begin: &Begin, compress: bool) -> Result<StreamWriter<W>> {
        let compressor = if compress {
            let made = zstd::bulk::Compressor::new(LEVEL);
            Some(made.map_err(|e| Error::from_io("zstd can't be begun", e))?)
        } else {
            None
        };
        let mut writer = StreamWriter {
            out,
            proof: first_proof(),
            sequence: 0,
            compressor,
            totals: Totals::default(),
            buffer: Vec::new(),
        };
        writer.out.write_all(&MAGIC).map_err(unwritten)?;
        let payload = begin.encode();
        writer.put(Of::Begin, 0, begin.start, begin.blocks, &payload)?;
        Ok(writer)
    }

    /// Writes blocks that hold nothing, or zeroes that were written.
    ///
    /// # Errors
    /// Those of the output.
    pub fn empty(&mut self, first: u64, blocks: u64, zeroes: bool) -> Result<()> {
        let (kind, total) = if zeroes {
            (Of::Zeroes, &mut self.totals.zeroes)
        } else {
            (Of::Hole, &mut self.totals.holes)
        };
        *total += blocks;
        self.put(kind, 0, first, blocks, &[])
    }

    /// Writes blocks with their data, at most [`DATA_BLOCKS_MAX`].
    ///
    /// # Errors
    /// Those of the output.
    pub fn data(&mut self, first: u64, data: &[Block]) -> Result<()> {
        let blocks = data.len() as u64;
        self.totals.data += blocks;
        let mut plain = Vec::with_capacity(data.len() * BLOCK_BYTES);
        data.iter().for_each(|block| plain.extend_from_slice(&block.0));
        if let Some(compressor) = &mut self.compressor
            && let Ok(small) = compressor.compress(&plain)
            && small.len() < plain.len()
        {
            return self.put(Of::Data, COMPRESSED, first, blocks, &small);
        }
        self.put(Of::Data, 0, first, blocks, &plain)
    }

    /// Writes blocks that hold what was sent for those from `as_at` on, at most [`DATA_BLOCKS_MAX`].
    ///
    /// # Errors
    /// Those of the output.
    pub fn repeat(&mut self, first: u64, blocks: u64, as_at: u64) -> Result<()> {
        self.totals.repeats += blocks;
        self.put(Of::Repeat, 0, first, blocks, &as_at.to_le_bytes())
    }

    /// Ends the stream of so many blocks, and gives what it held.
    ///
    /// # Errors
    /// Those of the output.
    pub fn end(mut self, blocks: u64) -> Result<Totals> {
        let payload = self.totals.encode();
        self.put(Of::End, 0, 0, blocks, &payload)?;
        self.out.flush().map_err(unwritten)?;
        Ok(self.totals)
    }

    fn put(&mut self, kind: Of, flags: u8, first: u64, blocks: u64, payload: &[u8]) -> Result<()> {
        self.buffer.clear();
        self.buffer.extend_from_slice(&[kind as u8, flags, 0, 0]);
        self.buffer.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        for number in [self.sequence, first, blocks] {
            self.buffer.extend_from_slice(&number.to_le_bytes());
        }
        self.buffer.extend_from_slice(payload);
        self.proof = checksum::chunk_name(&self.proof, &self.buffer);
        self.buffer.extend_from_slice(&self.proof);
        self.sequence += 1;
        self.out.write_all(&self.buffer).map_err(unwritten)
    }
}

fn unwritten(error: std::io::Error) -> Error {
    Error::from_io("the stream can't be written", error)
}

/// Reads a stream from somebody who is not trusted: every frame is proven before it is looked at,
/// and costs at most 2 MiB.
pub struct StreamReader<R: Read> {
    input: R,
    proof: [u8; PROOF_BYTES],
    sequence: u64,
    begin: Begin,
    /// The end of the last frame, in blocks.
    at: u64,
    totals: Totals,
    unpacker: zstd::bulk::Decompressor<'static>,
    keeps_order: bool,
}

/// The next of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// A frame.
    Frame(Frame),
    /// The end, with the size in blocks.
    End(u64),
}

impl<R: Read> StreamReader<R> {
    /// Reads the beginning of a stream.
    ///
    /// # Errors
    /// `Corrupt` for what is no stream, `Unsupported` for one of a newer version, `Io`.
    pub fn begin(mut input: R) -> Result<StreamReader<R>> {
        let mut magic = [0; MAGIC.len()];
        fill(&mut input, &mut magic)?;
        if magic != MAGIC {
            let newer = magic[..15] == MAGIC[..15];
            return Err(if newer {
                Error::new(Kind::Unsupported, "the stream is of a newer version of onefold send")
            } else {
                Error::new(Kind::Corrupt, "this is no stream of onefold send")
            });
        }
        let unpacker = zstd::bulk::Decompressor::new();
        let mut reader = StreamReader {
            input,
            proof: first_proof(),
            sequence: 0,
            begin: Begin::default(),
            at: 0,
            totals: Totals::default(),
            unpacker: unpacker.map_err(|e| Error::from_io("zstd can't be begun", e))?,
            keeps_order: true,
        };
        let (header, payload) = reader.raw()?;
        let begin = Begin::decode(&header, &payload);
        reader.begin =
            begin.filter(|_| header.kind == Of::Begin).ok_or_else(|| bad("beginning"))?;
        reader.at = reader.begin.start;
        Ok(reader)
    }

    /// A planted bug: frames are taken in any order, and not missed.
    #[cfg(feature = "planted-bugs")]
    pub fn in_any_order(&mut self) {
        self.keeps_order = false;
    }

    /// The beginning of the stream: its snapshot and size.
    #[must_use]
    pub fn about(&self) -> &Begin {
        &self.begin
    }

    /// The sums of the blocks that came so far.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// The next frame, or the end.
    ///
    /// # Errors
    /// `Corrupt` for a frame that is damaged, out of order, or cut off.
    pub fn next_frame(&mut self) -> Result<Next> {
        let (header, payload) = self.raw()?;
        if header.kind == Of::End {
            let size = [0, header.blocks].contains(&self.begin.blocks);
            let whole = header.blocks >= self.at && header.blocks <= VOLUME_BLOCKS_MAX && size;
            let missed = Totals::decode(&payload) != Some(self.totals) && self.keeps_order;
            if !whole || header.first != 0 || missed {
                return Err(bad("end"));
            }
            return Ok(Next::End(header.blocks));
        }
        let end = header.first.checked_add(header.blocks).filter(|&end| end <= self.most());
        let end = end.filter(|_| header.blocks > 0).ok_or_else(|| bad("range"))?;
        if self.keeps_order && header.first < self.at {
            return Err(bad("order of frames"));
        }
        let content = self.content(&header, payload)?;
        self.at = end;
        Ok(Next::Frame(Frame { first: header.first, blocks: header.blocks, content }))
    }

    /// The size as far as it is known.
    fn most(&self) -> u64 {
        if self.begin.blocks == 0 { VOLUME_BLOCKS_MAX } else { self.begin.blocks }
    }

    fn content(&mut self, header: &Header, payload: Vec<u8>) -> Result<Content> {
        let bytes =
            usize::try_from(header.blocks).unwrap_or(usize::MAX).saturating_mul(BLOCK_BYTES);
        let (content, total) = match header.kind {
            Of::Hole if payload.is_empty() => (Content::Hole, &mut self.totals.holes),
            Of::Zeroes if payload.is_empty() => (Content::Zeroes, &mut self.totals.zeroes),
            Of::Data if header.blocks <= DATA_BLOCKS_MAX => {
                let data = if header.flags == COMPRESSED {
                    let unpacked = self.unpacker.decompress(&payload, bytes);
                    unpacked.map_err(|e| bad("compressed data").caused_by(e))?
                } else {
                    payload
                };
                if data.len() != bytes {
                    return Err(bad("data"));
                }
                (Content::Data(data), &mut self.totals.data)
            }
            Of::Repeat if payload.len() == 8 && header.blocks <= DATA_BLOCKS_MAX => {
                let as_at: u64 = from_low_bytes(&payload);
                let end = as_at.checked_add(header.blocks);
                // Blocks before the start were sent by the stream that this one goes on with.
                if end.is_none_or(|end| end > self.at.min(header.first)) {
                    return Err(bad("repeat"));
                }
                (Content::Repeat(as_at), &mut self.totals.repeats)
            }
            _ => return Err(bad("kind of frame")),
        };
        *total = total.checked_add(header.blocks).ok_or_else(|| bad("range"))?;
        Ok(content)
    }

    /// A header and its payload, proven.
    fn raw(&mut self) -> Result<(Header, Vec<u8>)> {
        let mut bytes = vec![0; HEADER_BYTES];
        fill(&mut self.input, &mut bytes)?;
        let header = Header::decode(&bytes).ok_or_else(|| bad("header of a frame"))?;
        bytes.resize(HEADER_BYTES + header.payload, 0);
        fill(&mut self.input, &mut bytes[HEADER_BYTES..])?;
        let mut proof = [0; PROOF_BYTES];
        fill(&mut self.input, &mut proof)?;
        let right = checksum::chunk_name(&self.proof, &bytes);
        if proof != right && self.keeps_order {
            return Err(bad("checksum of a frame"));
        }
        if header.sequence != self.sequence && self.keeps_order {
            return Err(bad("number of a frame"));
        }
        self.proof = right;
        self.sequence += 1;
        Ok((header, bytes.split_off(HEADER_BYTES)))
    }
}

fn bad(what: &str) -> Error {
    Error::new(Kind::Corrupt, format!("the stream is damaged: a wrong {what}"))
}

fn fill(input: &mut impl Read, into: &mut [u8]) -> Result<()> {
    input.read_exact(into).map_err(|e| match e.kind() {
        ErrorKind::UnexpectedEof => Error::new(Kind::Io, "the stream ends before its end"),
        _ => Error::from_io("the stream can't be read", e),
    })
}

struct Header {
    kind: Of,
    flags: u8,
    payload: usize,
    sequence: u64,
    first: u64,
    blocks: u64,
}

impl Header {
    fn decode(bytes: &[u8]) -> Option<Header> {
        let number = |at: usize| from_low_bytes(&bytes[at..at + 8]);
        let header = Header {
            kind: Of::decode(bytes[0])?,
            flags: bytes[1],
            payload: from_low_bytes(&bytes[4..8]) as usize,
            sequence: number(8),
            first: number(16),
            blocks: number(24),
        };
        let flags = header.flags == 0 || header.flags == COMPRESSED && header.kind == Of::Data;
        (flags && bytes[2..4] == [0, 0] && header.payload <= PAYLOAD_MAX).then_some(header)
    }
}

impl Totals {
    fn encode(&self) -> Vec<u8> {
        let Totals { data, repeats, zeroes, holes } = *self;
        [data, repeats, zeroes, holes].iter().flat_map(|number| number.to_le_bytes()).collect()
    }

    fn decode(bytes: &[u8]) -> Option<Totals> {
        let number = |n: usize| from_low_bytes(&bytes[8 * n..8 * n + 8]);
        (bytes.len() == 32).then(|| Totals {
            data: number(0),
            repeats: number(1),
            zeroes: number(2),
            holes: number(3),
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

    fn decode(header: &Header, bytes: &[u8]) -> Option<Begin> {
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
        let fits = header.blocks <= VOLUME_BLOCKS_MAX && header.first <= header.blocks;
        (rest.is_empty() && fits && no_dedup.ranges() == ranges).then_some(Begin {
            guid,
            base,
            made_ms,
            volume,
            snapshot,
            blocks: header.blocks,
            start: header.first,
            no_dedup,
        })
    }
}

#[cfg(test)]
#[path = "stream_tests.rs"]
mod tests;
