//! Writing `.dtrace.zst` so that it can be read at any moment.
//!
//! The header is a zstd frame of its own, stored and not compressed, so that the number of records
//! can be filled in at the end. Records follow in frames of their own: a file that is cut off
//! anywhere is readable up to its last whole frame.

use std::{
    fs::File,
    io::Write,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use onefold_core::{Error, Kind, Result};

use super::{
    reader::ZSTD_MAGIC,
    record::{BYTES, Header, Record, UNFINISHED},
};

/// Records of a frame: as many bytes as compress about as well as one large frame.
const FRAME_RECORDS: usize = 32_768;

/// Good compression at a speed that no recorder feels.
const LEVEL: i32 = 6;

/// Where the header's bytes are in the file: behind the frame's magic, its header, and that of its
/// only block.
const HEADER_AT: u64 = 9;

/// Writes a trace.
pub struct Writer {
    path: PathBuf,
    file: File,
    device_blocks: u64,
    buffer: Vec<u8>,
    records: u32,
}

impl Writer {
    /// Begins a new trace of a device of `device_blocks` blocks.
    ///
    /// # Errors
    /// `Exists`, and those of the system. `InvalidInput` for a device beyond 16 TiB, whose blocks
    /// have no number in a record.
    pub fn create(path: &Path, device_blocks: u64) -> Result<Writer> {
        if device_blocks == 0 || device_blocks > 1 << 32 {
            return Err(Error::new(
                Kind::InvalidInput,
                "a trace can be made of a device of one block to 16 TiB",
            ));
        }
        let failed = |error| Error::from_io(format!("trace {}", path.display()), error);
        // A trace tells what clients wrote, so its file can be read by its owner alone.
        let mut made = File::options();
        let mut file =
            made.read(true).write(true).create_new(true).mode(0o600).open(path).map_err(failed)?;
        let header = Header { records: UNFINISHED, device_blocks };
        file.write_all(&stored_frame(&header.encode())).map_err(failed)?;
        Ok(Writer { path: path.to_owned(), file, device_blocks, buffer: Vec::new(), records: 0 })
    }

    /// Records so far.
    #[must_use]
    pub fn records(&self) -> u32 {
        self.records
    }

    /// Adds a record, which reaches the file with its frame.
    ///
    /// # Errors
    /// The system's; `Unsupported` after four thousand million records.
    pub fn push(&mut self, record: &Record) -> Result<()> {
        if self.records == UNFINISHED - 1 {
            return Err(Error::new(
                Kind::Unsupported,
                format!(
                    "trace {}: it has as many records as a trace can have",
                    self.path.display()
                ),
            ));
        }
        self.buffer.extend_from_slice(&record.encode());
        self.records += 1;
        if self.buffer.len() >= FRAME_RECORDS * BYTES { self.write_out() } else { Ok(()) }
    }

    /// Ends the frame: what was added so far can be read.
    ///
    /// # Errors
    /// The system's.
    pub fn write_out(&mut self) -> Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let frame = zstd::bulk::compress(&self.buffer, LEVEL);
        let path = &self.path;
        frame
            .and_then(|frame| self.file.write_all(&frame))
            .map_err(|error| Error::from_io(format!("trace {}", path.display()), error))?;
        self.buffer.clear();
        Ok(())
    }

    /// Ends the trace; durable on return.
    ///
    /// # Errors
    /// The system's.
    pub fn finish(mut self) -> Result<()> {
        self.write_out()?;
        let header = Header { records: self.records, device_blocks: self.device_blocks };
        let written =
            self.file.write_all_at(&header.encode(), HEADER_AT).and_then(|()| self.file.sync_all());
        written.map_err(|error| Error::from_io(format!("trace {}", self.path.display()), error))
    }
}

/// A zstd frame that holds these bytes as they are (RFC 8878, 3.1.1).
fn stored_frame(bytes: &[u8; BYTES]) -> Vec<u8> {
    let mut frame = ZSTD_MAGIC.to_vec();
    // One segment, without checksum, its size in one byte.
    frame.extend([0x20, BYTES as u8]);
    // The last block, raw.
    let block = 1 | (BYTES as u32) << 3;
    frame.extend(&block.to_le_bytes()[..3]);
    frame.extend(bytes);
    frame
}
