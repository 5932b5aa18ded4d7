//! The bytes of a trace: its header and its records.

use onefold_core::{BLOCK_BYTES, Error, Kind, Lba, Result};

/// Bytes of the header, and of a record.
pub(super) const BYTES: usize = 32;

const MAGIC: &[u8; 8] = b"DTRC0001";

/// Number of records of a trace that was not finished.
pub(super) const UNFINISHED: u32 = u32::MAX;

/// Most blocks of a traced device: a record's address has 32 bits.
const DEVICE_BLOCKS_MAX: u64 = 1 << 32;

const FLAG_FUA: u8 = 1;
const FLAG_FIRST: u8 = 2;
const FLAG_UNALIGNED: u8 = 4;

/// The header of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) records: u32,
    pub(super) device_blocks: u64,
}

impl Header {
    pub(super) fn encode(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&(BLOCK_BYTES as u32).to_le_bytes());
        bytes[12..16].copy_from_slice(&self.records.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.device_blocks.to_le_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8; BYTES]) -> Result<Header> {
        let bad = |what: String| Err(Error::new(Kind::Corrupt, what));
        let [magic, sizes, device, rest] = bytes.as_chunks::<8>().0 else {
            return bad("the header is cut off".into());
        };
        if magic != MAGIC {
            return bad("it does not begin as a trace does".into());
        }
        let [block, records] = halves(*sizes);
        if block != BLOCK_BYTES as u32 {
            return bad(format!("its blocks have {block} bytes; only 4096 are known"));
        }
        let device_blocks = u64::from_le_bytes(*device);
        if device_blocks == 0 || device_blocks > DEVICE_BLOCKS_MAX || *rest != [0; 8] {
            return bad(format!("its header is damaged: a device of {device_blocks} blocks"));
        }
        Ok(Header { records, device_blocks })
    }
}

fn halves(bytes: [u8; 8]) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = bytes;
    [u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h])]
}

/// The operation that a record tells of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// One block was written.
    Write {
        /// Which.
        lba: Lba,
        /// Hash of what it holds now.
        hash: [u8; 16],
        /// The size to which LZ4 shrinks it, up to 4096.
        lz4: u16,
        /// The request asked to be answered when it is durable.
        fua: bool,
        /// This is the first block of its request.
        first: bool,
        /// The request covers the block in part.
        unaligned: bool,
    },
    /// A flush.
    Flush,
    /// Blocks were trimmed.
    Trim {
        /// The first.
        first: Lba,
        /// How many.
        blocks: u32,
    },
    /// Blocks were made zeroes.
    Zeroes {
        /// The first.
        first: Lba,
        /// How many.
        blocks: u32,
        /// The request asked to be answered when it is durable.
        fua: bool,
    },
    /// The workload's next part begins; at most 16 bytes of name.
    Phase(String),
}

/// A record, and when it was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Microseconds since the first record.
    pub microseconds: u64,
    /// The operation.
    pub op: Op,
}

impl Record {
    pub(super) fn encode(&self) -> [u8; BYTES] {
        let (mut lba, mut flags, mut lz4, mut tail) = (0, 0, 0, [0; 16]);
        let code = match &self.op {
            Op::Write { lba: at, hash, lz4: size, fua, first, unaligned } => {
                (lba, lz4, tail) = (at.0 as u32, *size, *hash);
                flags = if *fua { FLAG_FUA } else { 0 }
                    | if *first { FLAG_FIRST } else { 0 }
                    | if *unaligned { FLAG_UNALIGNED } else { 0 };
                0
            }
            Op::Flush => 1,
            Op::Trim { first, blocks } => {
                lba = first.0 as u32;
                tail[..4].copy_from_slice(&blocks.to_le_bytes());
                2
            }
            Op::Zeroes { first, blocks, fua } => {
                lba = first.0 as u32;
                tail[..4].copy_from_slice(&blocks.to_le_bytes());
                flags = if *fua { FLAG_FUA } else { 0 };
                3
            }
            Op::Phase(name) => {
                let mut end = name.len().min(16);
                while !name.is_char_boundary(end) {
                    end -= 1;
                }
                tail[..end].copy_from_slice(&name.as_bytes()[..end]);
                4
            }
        };
        let mut bytes = [0; BYTES];
        bytes[..8].copy_from_slice(&self.microseconds.to_le_bytes());
        bytes[8..12].copy_from_slice(&lba.to_le_bytes());
        (bytes[12], bytes[13]) = (code, flags);
        bytes[14..16].copy_from_slice(&lz4.to_le_bytes());
        bytes[16..].copy_from_slice(&tail);
        bytes
    }

    /// Takes any bytes; says what is wrong with them.
    pub(super) fn decode(bytes: &[u8; BYTES], device_blocks: u64) -> Result<Record, String> {
        let [time, mid, ..] = bytes.as_chunks::<8>().0 else { return Err("it is cut off".into()) };
        let mut tail = [0; 16];
        tail.copy_from_slice(&bytes[16..]);
        let microseconds = u64::from_le_bytes(*time);
        let [lba, _] = halves(*mid);
        let (lba, code, flags, lz4) =
            (u64::from(lba), mid[4], mid[5], u16::from_le_bytes([mid[6], mid[7]]));
        if flags & !(FLAG_FUA | FLAG_FIRST | FLAG_UNALIGNED) != 0 {
            return Err(format!("flags {flags:#x} are not known"));
        }
        let fua = flags & FLAG_FUA != 0;
        let range = || {
            let [a, b, c, d, rest @ ..] = tail;
            let blocks = u32::from_le_bytes([a, b, c, d]);
            if rest != [0; 12] || blocks == 0 || lba + u64::from(blocks) > device_blocks {
                return Err(format!(
                    "a range of {blocks} blocks at {lba} on a device of {device_blocks}"
                ));
            }
            Ok((Lba(lba), blocks))
        };
        let op = match code {
            0 if lba >= device_blocks => {
                return Err(format!("a write of block {lba} on a device of {device_blocks}"));
            }
            0 if lz4 == 0 || usize::from(lz4) > BLOCK_BYTES => {
                return Err(format!("an LZ4 size of {lz4}"));
            }
            0 => {
                let (first, unaligned) = (flags & FLAG_FIRST != 0, flags & FLAG_UNALIGNED != 0);
                Op::Write { lba: Lba(lba), hash: tail, lz4, fua, first, unaligned }
            }
            1 => Op::Flush,
            2 => range().map(|(first, blocks)| Op::Trim { first, blocks })?,
            3 => range().map(|(first, blocks)| Op::Zeroes { first, blocks, fua })?,
            4 => Op::Phase(String::from_utf8_lossy(&tail).trim_end_matches('\0').to_owned()),
            code => return Err(format!("kind {code} is not known")),
        };
        Ok(Record { microseconds, op })
    }
}
