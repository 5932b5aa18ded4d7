//! An NBD client that does what it is told, right or wrong. Written from the protocol document and
//! not from the server's code.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]
#![allow(dead_code, reason = "each test uses a part of it")]

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

pub(crate) const READ: u16 = 0;
pub(crate) const WRITE: u16 = 1;
pub(crate) const DISC: u16 = 2;
pub(crate) const FLUSH: u16 = 3;
pub(crate) const TRIM: u16 = 4;
pub(crate) const CACHE: u16 = 5;
pub(crate) const WRITE_ZEROES: u16 = 6;
pub(crate) const BLOCK_STATUS: u16 = 7;

pub(crate) const FUA: u16 = 1;
pub(crate) const NO_HOLE: u16 = 2;
pub(crate) const DF: u16 = 4;
pub(crate) const REQ_ONE: u16 = 8;
pub(crate) const FAST_ZERO: u16 = 16;
pub(crate) const PAYLOAD_LEN: u16 = 32;

pub(crate) const ACK: u32 = 1;
pub(crate) const ERR_UNSUP: u32 = 0x8000_0001;
pub(crate) const ERR_INVALID: u32 = 0x8000_0003;
pub(crate) const ERR_UNKNOWN: u32 = 0x8000_0006;
pub(crate) const ERR_TOO_BIG: u32 = 0x8000_0009;
pub(crate) const ERR_EXT_HEADER_REQD: u32 = 0x8000_000a;

/// The way of talking after the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Simple,
    Structured,
    Extended,
}

pub(crate) const MODES: [Mode; 3] = [Mode::Simple, Mode::Structured, Mode::Extended];

/// A chunk of a reply; a simple reply is one chunk that is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) cookie: u64,
    pub(crate) done: bool,
    pub(crate) content: Content,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    None,
    Data(u64, Vec<u8>),
    Hole(u64, u32),
    /// Lengths and states.
    Status(Vec<(u64, u64)>),
    /// Number, message, place.
    Error(u32, String, Option<u64>),
}

/// A connection.
pub(crate) struct Raw {
    pub(crate) stream: UnixStream,
    pub(crate) mode: Mode,
    cookie: u64,
}

pub(crate) fn be16(bytes: &[u8]) -> u16 {
    u16::from_be_bytes(bytes[..2].try_into().unwrap())
}

pub(crate) fn be32(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes[..4].try_into().unwrap())
}

pub(crate) fn be64(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes[..8].try_into().unwrap())
}

/// The data of INFO and GO.
pub(crate) fn info_data(name: &str, items: &[u16]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend_from_slice(name.as_bytes());
    data.extend_from_slice(&(items.len() as u16).to_be_bytes());
    items.iter().for_each(|item| data.extend_from_slice(&item.to_be_bytes()));
    data
}

/// The data of LIST_META_CONTEXT and SET_META_CONTEXT.
pub(crate) fn meta_data(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend_from_slice(name.as_bytes());
    data.extend_from_slice(&(queries.len() as u32).to_be_bytes());
    for query in queries {
        data.extend_from_slice(&(query.len() as u32).to_be_bytes());
        data.extend_from_slice(query.as_bytes());
    }
    data
}

/// An option as it goes over the wire.
pub(crate) fn option_bytes(option: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"IHAVEOPT".to_vec();
    bytes.extend_from_slice(&option.to_be_bytes());
    bytes.extend_from_slice(&(data.len() as u32).to_be_bytes());
    bytes.extend_from_slice(data);
    bytes
}

/// A request as it goes over the wire, without payload.
pub(crate) fn request_bytes(
    mode: Mode,
    flags: u16,
    command: u16,
    cookie: u64,
    offset: u64,
    length: u64,
) -> Vec<u8> {
    let magic: u32 = if mode == Mode::Extended { 0x21e4_1c71 } else { 0x2560_9513 };
    let mut bytes = magic.to_be_bytes().to_vec();
    bytes.extend_from_slice(&flags.to_be_bytes());
    bytes.extend_from_slice(&command.to_be_bytes());
    bytes.extend_from_slice(&cookie.to_be_bytes());
    bytes.extend_from_slice(&offset.to_be_bytes());
    match mode {
        Mode::Extended => bytes.extend_from_slice(&length.to_be_bytes()),
        _ => bytes.extend_from_slice(&(length as u32).to_be_bytes()),
    }
    bytes
}

impl Raw {
    /// Connects and reads the greeting. Waiting for anything longer than 20 s fails the test.
    pub(crate) fn connect(socket: &Path) -> io::Result<Raw> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        stream.set_write_timeout(Some(Duration::from_secs(20)))?;
        let mut raw = Raw { stream, mode: Mode::Simple, cookie: 100 };
        let greeting = raw.take(18)?;
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        assert_eq!(be16(&greeting[16..]), 3);
        Ok(raw)
    }

    /// Connects, and goes for the volume `disk`, with `base:allocation` where the mode allows.
    pub(crate) fn go(socket: &Path, mode: Mode) -> Raw {
        Raw::go_to(socket, mode, "disk")
    }

    /// As [`go`](Raw::go), for a volume of another name.
    pub(crate) fn go_to(socket: &Path, mode: Mode, volume: &str) -> Raw {
        Raw::connect(socket).unwrap().goes_to(mode, volume)
    }

    /// A connection that goes for a volume.
    pub(crate) fn goes_to(self, mode: Mode, volume: &str) -> Raw {
        let mut raw = self;
        raw.send(&3u32.to_be_bytes());
        raw.negotiate(mode);
        if mode != Mode::Simple {
            let replies = raw.option(10, &meta_data(volume, &["base:allocation"]));
            assert_eq!(replies, [(4, b"\0\0\0\x01base:allocation".to_vec()), (ACK, vec![])]);
        }
        assert_eq!(raw.option(7, &info_data(volume, &[])).last().unwrap().0, ACK);
        raw
    }

    /// Negotiates structured replies or extended headers.
    pub(crate) fn negotiate(&mut self, mode: Mode) {
        match mode {
            Mode::Simple => {}
            Mode::Structured => assert_eq!(self.option(8, &[]), [(ACK, vec![])]),
            Mode::Extended => assert_eq!(self.option(11, &[]), [(ACK, vec![])]),
        }
        self.mode = mode;
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    pub(crate) fn take(&mut self, n: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; n];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// True when the server closes without another byte.
    pub(crate) fn closed(&mut self) -> bool {
        match self.stream.read(&mut [0]) {
            Ok(n) => n == 0,
            Err(e) => e.kind() == io::ErrorKind::ConnectionReset,
        }
    }

    /// True when the server has closed by now.
    pub(crate) fn is_closed_now(&mut self) -> bool {
        self.stream.set_nonblocking(true).unwrap();
        let closed = self.closed();
        self.stream.set_nonblocking(false).unwrap();
        closed
    }

    /// Sends an option and returns its replies, up to the one that ends them.
    pub(crate) fn option(&mut self, option: u32, data: &[u8]) -> Vec<(u32, Vec<u8>)> {
        self.send(&option_bytes(option, data));
        let mut replies = Vec::new();
        loop {
            let header = self.take(20).unwrap();
            assert_eq!(be64(&header), 0x0003_e889_0455_65a9);
            assert_eq!(be32(&header[8..]), option);
            let kind = be32(&header[12..]);
            let data = self.take(be32(&header[16..]) as usize).unwrap();
            replies.push((kind, data));
            if kind == ACK || kind >= 0x8000_0000 {
                return replies;
            }
        }
    }

    /// The kind of the last reply to an option.
    pub(crate) fn option_end(&mut self, option: u32, data: &[u8]) -> u32 {
        self.option(option, data).pop().unwrap().0
    }

    /// Sends a request; returns its cookie.
    pub(crate) fn request(
        &mut self,
        flags: u16,
        command: u16,
        offset: u64,
        length: u64,
        payload: &[u8],
    ) -> u64 {
        self.cookie += 1;
        let mut bytes = request_bytes(self.mode, flags, command, self.cookie, offset, length);
        bytes.extend_from_slice(payload);
        self.send(&bytes);
        self.cookie
    }

    /// Reads a chunk, or a simple reply that is followed by `data` bytes when it is no error.
    pub(crate) fn chunk(&mut self, data: usize) -> io::Result<Chunk> {
        let magic = be32(&self.take(4)?);
        match (self.mode, magic) {
            (Mode::Simple | Mode::Structured, 0x6744_6698) => {
                let fields = self.take(12)?;
                let (code, cookie) = (be32(&fields), be64(&fields[4..]));
                let content = match code {
                    0 if self.mode == Mode::Simple && data > 0 => {
                        Content::Data(u64::MAX, self.take(data)?)
                    }
                    0 => Content::None,
                    code => Content::Error(code, String::new(), None),
                };
                Ok(Chunk { cookie, done: true, content })
            }
            (Mode::Structured, 0x668e_33ef) => {
                let fields = self.take(16)?;
                self.content(
                    be16(&fields),
                    be16(&fields[2..]),
                    be64(&fields[4..]),
                    u64::from(be32(&fields[12..])),
                )
            }
            (Mode::Extended, 0x6e8a_278c) => {
                let fields = self.take(28)?;
                self.content(
                    be16(&fields),
                    be16(&fields[2..]),
                    be64(&fields[4..]),
                    be64(&fields[20..]),
                )
            }
            other => panic!("a reply starts with {other:x?}"),
        }
    }

    fn content(&mut self, flags: u16, kind: u16, cookie: u64, length: u64) -> io::Result<Chunk> {
        let bytes = self.take(length as usize)?;
        let content = match kind {
            0 if bytes.is_empty() => Content::None,
            1 => Content::Data(be64(&bytes), bytes[8..].to_vec()),
            2 if bytes.len() == 12 => Content::Hole(be64(&bytes), be32(&bytes[8..])),
            5 if self.mode == Mode::Structured && be32(&bytes) == 1 => Content::Status(
                bytes[4..]
                    .chunks(8)
                    .map(|e| (u64::from(be32(e)), u64::from(be32(&e[4..]))))
                    .collect(),
            ),
            6 if self.mode == Mode::Extended && be32(&bytes) == 1 => {
                assert_eq!(be32(&bytes[4..]) as usize, (bytes.len() - 8) / 16);
                Content::Status(bytes[8..].chunks(16).map(|e| (be64(e), be64(&e[8..]))).collect())
            }
            0x8001 | 0x8002 => {
                let end = 6 + be16(&bytes[4..]) as usize;
                let message = String::from_utf8(bytes[6..end].to_vec()).unwrap();
                Content::Error(be32(&bytes), message, (kind == 0x8002).then(|| be64(&bytes[end..])))
            }
            other => panic!("a chunk of kind {other:#x} with {} bytes", bytes.len()),
        };
        Ok(Chunk { cookie, done: flags & 1 != 0, content })
    }

    /// All chunks that answer `cookie`; nothing else may come in between.
    pub(crate) fn reply(&mut self, cookie: u64, data: usize) -> Vec<Content> {
        let mut contents = Vec::new();
        loop {
            let chunk = self.chunk(data).unwrap();
            assert_eq!(chunk.cookie, cookie);
            contents.push(chunk.content);
            if chunk.done {
                return contents;
            }
        }
    }

    /// Reads a range, whatever chunks it comes in; or the error number.
    pub(crate) fn read(&mut self, flags: u16, offset: u64, length: usize) -> Result<Vec<u8>, u32> {
        let cookie = self.request(flags, READ, offset, length as u64, &[]);
        let mut bytes = vec![0xee; length];
        let mut seen = 0;
        for content in self.reply(cookie, length) {
            match content {
                Content::Data(at, data) => {
                    let at = if at == u64::MAX { 0 } else { (at - offset) as usize };
                    bytes[at..at + data.len()].copy_from_slice(&data);
                    seen += data.len();
                }
                Content::Hole(at, n) => {
                    let at = (at - offset) as usize;
                    bytes[at..at + n as usize].fill(0);
                    seen += n as usize;
                }
                Content::None => {}
                Content::Error(code, _, _) => return Err(code),
                other => panic!("{other:?} answers a read"),
            }
        }
        assert_eq!(seen, length, "a read is answered once and whole");
        Ok(bytes)
    }

    /// Sends a request that has no content in its reply; returns the error number, or 0.
    pub(crate) fn act(
        &mut self,
        flags: u16,
        command: u16,
        offset: u64,
        length: u64,
        payload: &[u8],
    ) -> u32 {
        let cookie = self.request(flags, command, offset, length, payload);
        match &self.reply(cookie, 0)[..] {
            [Content::None] => 0,
            [Content::Error(code, message, _)] => {
                assert_eq!(message.is_empty(), self.mode == Mode::Simple);
                *code
            }
            other => panic!("{other:?} answers command {command}"),
        }
    }

    /// Writes, with the flag that extended headers want.
    pub(crate) fn write(&mut self, flags: u16, offset: u64, data: &[u8]) -> u32 {
        let flags = if self.mode == Mode::Extended { flags | PAYLOAD_LEN } else { flags };
        self.act(flags, WRITE, offset, data.len() as u64, data)
    }
}
