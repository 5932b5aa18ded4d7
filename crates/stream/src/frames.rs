//! Frames: a header, a payload, and the proof of both and all before.

use std::io::{ErrorKind, Read, Write};

use onefold_core::{BLOCK_BYTES, Error, Kind, Result, checksum};

use crate::from_low_bytes;
use crate::{DATA_BLOCKS_MAX, MAGIC_BYTES, offer::OFFER_BYTES_MAX};

pub(crate) const HEADER_BYTES: usize = 32;
pub(crate) const PROOF_BYTES: usize = 32;
const PAYLOAD_MAX: usize = DATA_BLOCKS_MAX as usize * BLOCK_BYTES;
pub(crate) const COMPRESSED: u8 = 1;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Of {
    Begin = 1,
    Hole = 2,
    Zeroes = 3,
    Data = 4,
    Repeat = 5,
    End = 6,
    Offer = 7,
    Held = 8,
    Missing = 9,
    Done = 10,
    Lost = 11,
}

impl Of {
    const ALL: [Of; 11] = [
        Of::Begin,
        Of::Hole,
        Of::Zeroes,
        Of::Data,
        Of::Repeat,
        Of::End,
        Of::Offer,
        Of::Held,
        Of::Missing,
        Of::Done,
        Of::Lost,
    ];

    fn decode(byte: u8) -> Option<Of> {
        Of::ALL.into_iter().find(|&kind| kind as u8 == byte)
    }
}

/// The proof before the first frame of a stream that begins like this.
pub(crate) fn first_proof(magic: &[u8; MAGIC_BYTES]) -> [u8; PROOF_BYTES] {
    let mut proof = [0; PROOF_BYTES];
    proof[..MAGIC_BYTES].copy_from_slice(magic);
    proof[MAGIC_BYTES..].copy_from_slice(magic);
    proof
}

/// Writes frames.
pub(crate) struct FrameWriter<W: Write> {
    pub(crate) out: W,
    /// The proof of the last frame.
    pub(crate) proof: [u8; PROOF_BYTES],
    sequence: u64,
    buffer: Vec<u8>,
}

impl<W: Write> FrameWriter<W> {
    /// Of frames whose first one is proven with this key.
    pub(crate) fn new(out: W, key: [u8; PROOF_BYTES]) -> FrameWriter<W> {
        FrameWriter { out, proof: key, sequence: 0, buffer: Vec::new() }
    }

    pub(crate) fn put(
        &mut self,
        kind: Of,
        flags: u8,
        first: u64,
        blocks: u64,
        payload: &[u8],
    ) -> Result<()> {
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

    pub(crate) fn flush(&mut self) -> Result<()> {
        self.out.flush().map_err(unwritten)
    }
}

pub(crate) fn unwritten(error: std::io::Error) -> Error {
    Error::from_io("the stream can't be written", error)
}

/// Reads frames from somebody who is not trusted: each is proven before it is looked at, and costs at
/// most 2 MiB.
pub(crate) struct FrameReader<R: Read> {
    pub(crate) input: R,
    /// The proof of the last frame.
    pub(crate) proof: [u8; PROOF_BYTES],
    sequence: u64,
    pub(crate) keeps_order: bool,
}

impl<R: Read> FrameReader<R> {
    /// Of frames whose first one is proven with this key.
    pub(crate) fn new(input: R, key: [u8; PROOF_BYTES]) -> FrameReader<R> {
        FrameReader { input, proof: key, sequence: 0, keeps_order: true }
    }

    /// A header and its payload, proven.
    pub(crate) fn raw(&mut self) -> Result<(Header, Vec<u8>)> {
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

pub(crate) fn bad(what: &str) -> Error {
    Error::new(Kind::Corrupt, format!("the stream is damaged: a wrong {what}"))
}

pub(crate) fn fill(input: &mut impl Read, into: &mut [u8]) -> Result<()> {
    input.read_exact(into).map_err(|e| match e.kind() {
        ErrorKind::UnexpectedEof => Error::new(Kind::Io, "the stream ends before its end"),
        _ => Error::from_io("the stream can't be read", e),
    })
}

pub(crate) struct Header {
    pub(crate) kind: Of,
    pub(crate) flags: u8,
    payload: usize,
    sequence: u64,
    pub(crate) first: u64,
    pub(crate) blocks: u64,
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
        let most = if header.kind == Of::Offer { OFFER_BYTES_MAX } else { PAYLOAD_MAX };
        (flags && bytes[2..4] == [0, 0] && header.payload <= most).then_some(header)
    }
}
