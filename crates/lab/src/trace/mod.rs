//! Recorded traces: block requests with a hash of each block instead of its data.
//!
//! `.dtrace.zst` is a zstd stream (window at most 8 MiB) of a header of 32 bytes and records of 32
//! bytes, little-endian:
//!
//! | header | | | record | | |
//! |---|---|---|---|---|---|
//! | 0 | 8 bytes | `DTRC0001` | 0 | u64 | microseconds since the first record |
//! | 8 | u32 | block size, 4096 | 8 | u32 | logical block |
//! | 12 | u32 | number of records | 12 | u8 | 0 write of a block, 1 flush, 2 trim, 3 write zeroes, 4 phase mark |
//! | 16 | u64 | blocks of the device | 13 | u8 | flags: 1 FUA, 2 first block of its request, 4 the request was not aligned |
//! | 24 | u64 | zero | 14 | u16 | LZ4 size of the block, 4096 when it does not shrink |
//! | | | | 16 | 16 bytes | BLAKE2b-128 of the block; trim, write zeroes: u32 number of blocks, zeroes; phase mark: its name, filled with zeroes |
//!
//! A request of n blocks is n records, the first with flag 2. The number of records is
//! `0xffff_ffff` in a trace whose recording was not finished: what is there is valid.

mod blkparse;
mod reader;
mod record;
mod writer;

use std::{
    fmt,
    fs::File,
    io::{self, BufRead, BufReader, Cursor},
    path::{Path, PathBuf},
    sync::Arc,
};

use onefold_core::{Error, Result};

pub use blkparse::Assumed;
pub(crate) use blkparse::blake2b_128;
pub use reader::Reader;
pub use record::{Op, Record};
pub use writer::Writer;

use crate::request::Source;

/// Opens a trace of either kind: `.dtrace.zst`, or FIU's `blkparse` text, plain or compressed.
/// `assumed` says what the latter does not.
///
/// # Errors
/// The system's; `Corrupt` for a file of neither form.
pub fn open(path: &Path, assumed: Assumed) -> Result<Source> {
    source(Input::File(path.to_owned()), assumed)
}

/// As [`open`], of a trace in memory.
///
/// # Errors
/// As [`open`].
pub fn of_bytes(bytes: Arc<[u8]>, assumed: Assumed) -> Result<Source> {
    source(Input::Memory(bytes), assumed)
}

fn source(input: Input, assumed: Assumed) -> Result<Source> {
    if reader::is_dtrace(&input)? {
        reader::source(input)
    } else {
        blkparse::source(&input, assumed)
    }
}

/// Where a trace is; it can be read several times.
#[derive(Clone)]
enum Input {
    File(PathBuf),
    Memory(Arc<[u8]>),
}

impl Input {
    fn open(&self) -> Result<Box<dyn BufRead>> {
        Ok(match self {
            Input::File(path) => {
                Box::new(BufReader::new(File::open(path).map_err(|error| self.failed(error))?))
            }
            Input::Memory(bytes) => Box::new(Cursor::new(bytes.clone())),
        })
    }

    fn failed(&self, error: io::Error) -> Error {
        Error::from_io(format!("trace {self}"), error)
    }
}

impl fmt::Display for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Input::File(path) => path.display().fmt(f),
            Input::Memory(_) => f.write_str("in memory"),
        }
    }
}
