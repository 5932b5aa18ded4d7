//! A stream that goes through the control socket, into a served archive, or into or out of a served
//! block store: pieces behind their kinds, until the end is said.
//!
//! | kind | what follows |
//! |---|---|
//! | 1 | bytes: how many (4), and they |
//! | 2 | zeroes: how many (8) |
//! | 3 | the next byte begins a chunk |
//! | 4 | the recipe ends, and another one begins |
//! | 5 | the end; without it nothing is stored |
//! | 6 | something of the tree could not be read |
//! | 7 | of a snapshot: a hole: how many bytes (8) |
//! | 8 | of a snapshot: an event of the walk: bytes (4), and they |
//!
//! Into and out of a block store go 1 and 5 alone. Behind the end of a stream that comes out follows
//! the answer, which says whether the stream is whole.

use std::io::{BufWriter, Read, Write};

use onefold_archive::{Event, Feeder, TreeFeeder, TreeSink};
use onefold_core::{Error, Kind, Result};

/// Bytes of a piece at most.
const PIECE_BYTES: usize = 256 << 10;

/// Bytes of a page of memory.
const PAGE_BYTES: usize = 4096;

const BYTES: u8 = 1;
const ZEROES: u8 = 2;
const BORDER: u8 = 3;
const RECIPE: u8 = 4;
const END: u8 = 5;
const INCOMPLETE: u8 = 6;
const HOLE: u8 = 7;
const EVENT: u8 = 8;

/// Bytes of an event at most: it has the pages of a large file, 23 bytes each, of two parents.
const EVENT_BYTES: usize = 8 << 20;

/// How the error begins that says so.
pub(super) const GONE: &str = "the server of the archive went away";

/// How the error begins of a stream of a block store that can't be passed on.
pub const UNWRITTEN: &str = "the stream can't be written";

/// Where a source gives its bytes: to the engine, or to the server of the archive.
pub trait Intake {
    /// Lets `read` fill a buffer, which says how many bytes it was; `0` is the end.
    fn fill(&mut self, read: &mut dyn FnMut(&mut [u8]) -> Result<usize>) -> Result<usize>;

    /// Zeroes that nobody has to read: a hole.
    fn zeroes(&mut self, bytes: u64) -> Result<()>;

    /// The next bytes begin a chunk: a file begins.
    fn border(&mut self) -> Result<()>;

    /// Ends a recipe: another one follows.
    fn end_recipe(&mut self) -> Result<()>;

    /// Something of the tree could not be read.
    fn incomplete(&mut self) -> Result<()>;
}

impl Intake for Feeder<'_> {
    fn fill(&mut self, read: &mut dyn FnMut(&mut [u8]) -> Result<usize>) -> Result<usize> {
        Feeder::fill(self, |room| read(room))
    }

    fn zeroes(&mut self, bytes: u64) -> Result<()> {
        Feeder::zeroes(self, bytes)
    }

    fn border(&mut self) -> Result<()> {
        Feeder::border(self)
    }

    fn end_recipe(&mut self) -> Result<()> {
        Feeder::end_recipe(self)
    }

    fn incomplete(&mut self) -> Result<()> {
        Feeder::incomplete(self);
        Ok(())
    }
}

/// The client's side.
pub struct Outlet<W: Write> {
    out: BufWriter<W>,
    buffer: Vec<u8>,
    /// Where in it a page begins: copies from the system's cache to a few bytes behind one are slow.
    page: usize,
}

impl<W: Write> Outlet<W> {
    pub fn new(out: W) -> Outlet<W> {
        let buffer = vec![0; PIECE_BYTES + PAGE_BYTES];
        let page = buffer.as_ptr().align_offset(PAGE_BYTES).min(PAGE_BYTES);
        Outlet { out: BufWriter::with_capacity(PIECE_BYTES + 16, out), buffer, page }
    }

    /// The end of the stream, which makes it count.
    ///
    /// # Errors
    /// When the server is gone.
    pub fn end(mut self) -> Result<()> {
        self.out.write_all(&[END]).and_then(|()| self.out.flush()).map_err(gone)
    }
}

impl<W: Write> Write for Outlet<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let piece = &bytes[..bytes.len().min(PIECE_BYTES)];
        if !piece.is_empty() {
            self.out.write_all(&[BYTES])?;
            self.out.write_all(&(piece.len() as u32).to_le_bytes())?;
            self.out.write_all(piece)?;
        }
        Ok(piece.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.out.flush()
    }
}

/// The bytes of a stream that comes in pieces, up to its end.
pub struct Pieces<R: Read> {
    input: R,
    left: usize,
    ended: bool,
}

impl<R: Read> Pieces<R> {
    pub fn new(input: R) -> Pieces<R> {
        Pieces { input, left: 0, ended: false }
    }

    /// True when the end was said.
    pub fn has_ended(&self) -> bool {
        self.ended
    }
}

impl<R: Read> Read for Pieces<R> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        while self.left == 0 && !self.ended && !into.is_empty() {
            let mut kind = [0];
            self.input.read_exact(&mut kind)?;
            match kind[0] {
                BYTES => {
                    let mut length = [0; 4];
                    self.input.read_exact(&mut length)?;
                    self.left = u32::from_le_bytes(length) as usize;
                }
                END => self.ended = true,
                _ => return Err(std::io::Error::other("it is of another version")),
            }
        }
        let most = into.len().min(self.left);
        let n = if most == 0 { 0 } else { self.input.read(&mut into[..most])? };
        if n == 0 && most > 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        self.left -= n;
        Ok(n)
    }
}

impl<W: Write> Intake for Outlet<W> {
    fn fill(&mut self, read: &mut dyn FnMut(&mut [u8]) -> Result<usize>) -> Result<usize> {
        let room = self.page..self.page + PIECE_BYTES;
        let n = read(&mut self.buffer[room.clone()])?;
        if n > 0 {
            let length = (n as u32).to_le_bytes();
            let written = self.out.write_all(&[BYTES]).and_then(|()| self.out.write_all(&length));
            written.and_then(|()| self.out.write_all(&self.buffer[room][..n])).map_err(gone)?;
        }
        Ok(n)
    }

    fn zeroes(&mut self, bytes: u64) -> Result<()> {
        self.out
            .write_all(&[ZEROES])
            .and_then(|()| self.out.write_all(&bytes.to_le_bytes()))
            .map_err(gone)
    }

    fn border(&mut self) -> Result<()> {
        self.out.write_all(&[BORDER]).map_err(gone)
    }

    fn end_recipe(&mut self) -> Result<()> {
        self.out.write_all(&[RECIPE]).map_err(gone)
    }

    fn incomplete(&mut self) -> Result<()> {
        self.out.write_all(&[INCOMPLETE]).map_err(gone)
    }
}

impl<W: Write> TreeSink for Outlet<W> {
    fn bytes(&mut self, bytes: &[u8]) -> Result<()> {
        bytes.chunks(PIECE_BYTES).try_for_each(|piece| self.piece(BYTES, piece))
    }

    fn hole(&mut self, bytes: u64) -> Result<()> {
        let written = self.out.write_all(&[HOLE]);
        written.and_then(|()| self.out.write_all(&bytes.to_le_bytes())).map_err(gone)
    }

    fn event(&mut self, event: &Event) -> Result<()> {
        self.piece(EVENT, &event.encode())
    }
}

impl<W: Write> Outlet<W> {
    fn piece(&mut self, kind: u8, bytes: &[u8]) -> Result<()> {
        let head = self.out.write_all(&[kind]);
        let length = (bytes.len() as u32).to_le_bytes();
        let head = head.and_then(|()| self.out.write_all(&length));
        head.and_then(|()| self.out.write_all(bytes)).map_err(gone)
    }
}

fn gone(error: std::io::Error) -> Error {
    Error::from_io(GONE, error)
}

/// The server's side: takes all pieces in; `look` is asked after each whether to go on.
///
/// # Errors
/// `Io` when the client goes away before the end, and those of the engine.
pub fn take(
    input: &mut dyn Read,
    feeder: &mut Feeder<'_>,
    look: &mut dyn FnMut() -> Result<()>,
) -> Result<()> {
    loop {
        look()?;
        let mut kind = [0];
        input.read_exact(&mut kind).map_err(went)?;
        match kind[0] {
            BYTES => {
                let mut left = length(input, PIECE_BYTES)?;
                while left > 0 {
                    left -= Feeder::fill(feeder, |room| {
                        let n = room.len().min(left);
                        input.read_exact(&mut room[..n]).map_err(went)?;
                        Ok(n)
                    })?;
                }
            }
            ZEROES => {
                let mut bytes = [0; 8];
                input.read_exact(&mut bytes).map_err(went)?;
                feeder.zeroes(u64::from_le_bytes(bytes))?;
            }
            BORDER => feeder.border()?,
            RECIPE => feeder.end_recipe()?,
            INCOMPLETE => feeder.incomplete(),
            END => return Ok(()),
            _ => return Err(strange()),
        }
    }
}

/// The same for a snapshot of directories.
///
/// # Errors
/// As [`take`].
pub fn take_tree(
    input: &mut dyn Read,
    feeder: &mut TreeFeeder<'_>,
    look: &mut dyn FnMut() -> Result<()>,
) -> Result<()> {
    loop {
        look()?;
        let mut kind = [0];
        input.read_exact(&mut kind).map_err(went)?;
        match kind[0] {
            BYTES => {
                let mut left = length(input, PIECE_BYTES)?;
                while left > 0 {
                    left -= feeder.fill(|room| {
                        let n = room.len().min(left);
                        input.read_exact(&mut room[..n]).map_err(went)?;
                        Ok(n)
                    })?;
                }
            }
            HOLE => {
                let mut bytes = [0; 8];
                input.read_exact(&mut bytes).map_err(went)?;
                feeder.hole(u64::from_le_bytes(bytes))?;
            }
            EVENT => {
                let length = length(input, EVENT_BYTES)?;
                // Memory follows what comes, not what is promised.
                let mut bytes = Vec::new();
                let came = input.take(length as u64).read_to_end(&mut bytes).map_err(went)?;
                if came < length {
                    return Err(went(std::io::ErrorKind::UnexpectedEof.into()));
                }
                feeder.event_of_another(Event::decode(&bytes)?)?;
            }
            END => return Ok(()),
            _ => return Err(strange()),
        }
    }
}

/// The length of what follows.
fn length(input: &mut dyn Read, most: usize) -> Result<usize> {
    let mut length = [0; 4];
    input.read_exact(&mut length).map_err(went)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > most { Err(strange()) } else { Ok(length) }
}

fn went(error: std::io::Error) -> Error {
    match error.kind() {
        std::io::ErrorKind::UnexpectedEof => {
            Error::new(Kind::Io, "the client went away before the end of the stream")
        }
        _ => Error::from_io("the stream can't be read on", error),
    }
}

fn strange() -> Error {
    Error::new(
        Kind::Unsupported,
        "the client is of another version: its stream can't be understood",
    )
}
