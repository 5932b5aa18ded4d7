//! Reading `.dtrace.zst`. Takes hostile bytes: every record is checked, and memory is bounded
//! whatever the file says.

use std::{
    cell::Cell,
    io::{BufRead, ErrorKind, Read},
    path::Path,
    rc::Rc,
    time::Duration,
};

use onefold_core::{Error, Kind, Result};
use zstd::stream::read::Decoder;

use super::{
    Input,
    record::{BYTES, Header, Op, Record, UNFINISHED},
};
use crate::{
    Content,
    request::{Request, Source, What},
};

/// Largest window of a zstd stream, as a power of two: what the format says, and a bound of our
/// memory.
pub(super) const WINDOW_LOG_MAX: u32 = 23;

/// Most blocks of a request that are kept together: 16 MiB, more than any recorder's.
const REQUEST_BLOCKS_MAX: usize = 4096;

/// First bytes of a zstd frame.
pub(super) const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Reads the records of a trace.
pub struct Reader {
    input: Input,
    stream: Decoder<'static, Box<dyn BufRead>>,
    header: Header,
    read: u64,
    last: u64,
    /// The trace ends before its time, or badly; nothing comes any more.
    ended: bool,
    cut: bool,
}

impl Reader {
    /// Opens a trace.
    ///
    /// # Errors
    /// `Corrupt` when it is none, and those of the system.
    pub fn open(path: &Path) -> Result<Reader> {
        Reader::of(Input::File(path.to_owned()))
    }

    pub(super) fn of(input: Input) -> Result<Reader> {
        let failed = |error| input.failed(error);
        let mut stream = Decoder::with_buffer(input.open()?).map_err(failed)?;
        stream.window_log_max(WINDOW_LOG_MAX).map_err(failed)?;
        let mut bytes = [0; BYTES];
        let header = match stream.read_exact(&mut bytes) {
            Ok(()) => Header::decode(&bytes),
            Err(error) => Err(Error::new(Kind::Corrupt, format!("it can't be expanded: {error}"))),
        };
        let header = header.map_err(|error| error.context(format!("{input} is no trace")))?;
        Ok(Reader { input, stream, header, read: 0, last: 0, ended: false, cut: false })
    }

    /// Blocks of the device that was recorded.
    #[must_use]
    pub fn device_blocks(&self) -> u64 {
        self.header.device_blocks
    }

    /// Records that the header promises; none for a recording that was not finished.
    #[must_use]
    pub fn records(&self) -> Option<u64> {
        (self.header.records != UNFINISHED).then(|| u64::from(self.header.records))
    }

    /// After the last record: true when the trace ended before the header said, or was not
    /// finished.
    #[must_use]
    pub fn was_cut(&self) -> bool {
        self.cut
    }

    fn corrupt(&mut self, what: &str) -> Error {
        self.ended = true;
        Error::new(Kind::Corrupt, format!("trace {}, record {}: {what}", self.input, self.read))
    }

    /// The next 32 bytes; none at the end, where that may be.
    fn bytes(&mut self) -> Result<Option<[u8; BYTES]>> {
        let mut bytes = [0; BYTES];
        let mut have = 0;
        while have < BYTES {
            match self.stream.read(&mut bytes[have..]) {
                Ok(0) => break,
                Ok(n) => have += n,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // A frame without its end is how a file that was cut off looks.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => break,
                Err(error) => return Err(self.corrupt(&format!("it can't be expanded: {error}"))),
            }
        }
        if have == BYTES && Some(self.read) == self.records() {
            return Err(self.corrupt("there are more records than the header says"));
        }
        if have < BYTES {
            self.ended = true;
            self.cut = have > 0 || Some(self.read) != self.records();
            return Ok(None);
        }
        Ok(Some(bytes))
    }
}

impl Iterator for Reader {
    type Item = Result<Record>;

    fn next(&mut self) -> Option<Result<Record>> {
        if self.ended {
            return None;
        }
        let bytes = match self.bytes() {
            Ok(bytes) => bytes?,
            Err(error) => return Some(Err(error)),
        };
        let record = match Record::decode(&bytes, self.header.device_blocks) {
            Ok(record) if record.microseconds < self.last => {
                return Some(Err(self.corrupt("its time is before that of the record before")));
            }
            Ok(record) => record,
            Err(what) => return Some(Err(self.corrupt(&what))),
        };
        self.last = record.microseconds;
        self.read += 1;
        Some(Ok(record))
    }
}

/// True when it begins as a `.dtrace.zst` does.
pub(super) fn is_dtrace(input: &Input) -> Result<bool> {
    let mut stream = input.open()?;
    if !stream.fill_buf().map_err(|error| input.failed(error))?.starts_with(&ZSTD_MAGIC) {
        return Ok(false);
    }
    let mut magic = [0; 8];
    let mut stream = Decoder::with_buffer(stream).map_err(|error| input.failed(error))?;
    // A stream that can't be expanded is no such trace here; reading it reports the error.
    Ok(stream.window_log_max(WINDOW_LOG_MAX).is_ok()
        && stream.read_exact(&mut magic).is_ok()
        && magic.starts_with(b"DTRC"))
}

/// The requests of a trace.
pub(super) fn source(input: Input) -> Result<Source> {
    let reader = Reader::of(input)?;
    let volume_blocks = reader.device_blocks();
    let steps = reader.records().unwrap_or(0);
    let cut = Rc::new(Cell::new(false));
    let requests = Requests { reader, done: 0, ahead: None, cut: cut.clone() };
    Ok(Source { volume_blocks, steps, requests: Box::new(requests), cut })
}

/// Puts the blocks of each request together again.
struct Requests {
    reader: Reader,
    done: u64,
    ahead: Option<Record>,
    cut: Rc<Cell<bool>>,
}

impl Requests {
    fn next_record(&mut self) -> Result<Option<Record>> {
        self.ahead.take().map_or_else(|| self.reader.next().transpose(), |record| Ok(Some(record)))
    }

    fn request(&mut self) -> Result<Option<(u64, Request)>> {
        let Some(record) = self.next_record()? else {
            self.cut.set(self.reader.was_cut());
            return Ok(None);
        };
        self.done += 1;
        let what = match record.op {
            Op::Write { lba, hash, lz4, mut fua, .. } => {
                let mut blocks = vec![Content { hash, lz4 }];
                while let Some(next) = self.next_record()? {
                    match next.op {
                        Op::Write { lba: at, hash, lz4, fua: also, first: false, .. }
                            if at == lba.plus(blocks.len() as u64)
                                && blocks.len() < REQUEST_BLOCKS_MAX =>
                        {
                            blocks.push(Content { hash, lz4 });
                            fua |= also;
                            self.done += 1;
                        }
                        _ => {
                            self.ahead = Some(next);
                            break;
                        }
                    }
                }
                What::Write { first: lba, blocks, fua }
            }
            Op::Flush => What::Flush,
            Op::Trim { first, blocks } => What::Trim { first, blocks: u64::from(blocks) },
            Op::Zeroes { first, blocks, .. } => What::Zeroes { first, blocks: u64::from(blocks) },
            Op::Phase(name) => What::Phase(name),
        };
        Ok(Some((self.done, Request { at: Duration::from_micros(record.microseconds), what })))
    }
}

impl Iterator for Requests {
    type Item = Result<(u64, Request)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.request().transpose()
    }
}
