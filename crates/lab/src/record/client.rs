//! A small NBD client: one connection, one request at a time.
//!
//! A recorder wants one at a time: the order in which the server sees changes is then known, and it
//! is the order of the trace. The client speaks the fixed newstyle handshake with GO, and simple
//! replies.
//!
//! *Invariant:* nothing that the server says makes it take more memory than the caller's buffers
//! and 64 KiB.

use std::{
    io::{Read, Write},
    net::TcpStream,
    os::unix::net::UnixStream,
    time::Duration,
};

use onefold_core::{Error, Kind, Result};

use super::address::{Address, Place};

/// How long the handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Largest request that is sent in one piece; servers take at least this much.
const PIECE_BYTES: usize = 1 << 20;

/// Longest reply to an option, and most of them.
const REPLY_BYTES_MAX: u32 = 64 << 10;
const REPLIES_MAX: usize = 64;

const GREETING: u64 = 0x4e42_444d_4147_4943;
const OPTION: u64 = 0x4948_4156_454f_5054;
const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
const REQUEST: u32 = 0x2560_9513;
const SIMPLE_REPLY: u32 = 0x6744_6698;

const FIXED_NEWSTYLE: u16 = 1;
const NO_ZEROES: u16 = 2;
const OPTION_GO: u32 = 7;
const ANSWER_ACK: u32 = 1;
const ANSWER_INFO: u32 = 3;
const INFO_EXPORT: u16 = 0;

const READ_ONLY: u16 = 1 << 1;
const SEND_FLUSH: u16 = 1 << 2;
const SEND_TRIM: u16 = 1 << 5;
const SEND_WRITE_ZEROES: u16 = 1 << 6;

const NO_HOLE: u16 = 1 << 1;

#[derive(Clone, Copy)]
enum Command {
    Read = 0,
    Write = 1,
    Disconnect = 2,
    Flush = 3,
    Trim = 4,
    WriteZeroes = 6,
}

trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

/// A connection to a volume.
pub(super) struct Client {
    stream: Box<dyn Stream>,
    /// The owner of the volume, for messages.
    name: String,
    size: u64,
    flags: u16,
    cookie: u64,
    /// The first failure of the connection; nothing is sent after it.
    broken: Option<Error>,
}

impl Client {
    /// Connects to a volume.
    ///
    /// # Errors
    /// The system's and the server's; `Unsupported` when it can't be written.
    pub(super) fn connect(address: &Address) -> Result<Client> {
        let failed = |error| Error::from_io(format!("can't connect to {address}"), error);
        match &address.place {
            Place::Unix(path) => {
                let stream = UnixStream::connect(path).map_err(failed)?;
                stream.set_read_timeout(Some(HANDSHAKE)).map_err(failed)?;
                let (size, flags) =
                    handshake(&mut &stream, &address.volume).map_err(|e| e.context(address))?;
                stream.set_read_timeout(None).map_err(failed)?;
                Client::new(Box::new(stream), address, size, flags)
            }
            Place::Tcp(host, port) => {
                let stream = TcpStream::connect((host.as_str(), *port)).map_err(failed)?;
                stream
                    .set_nodelay(true)
                    .and_then(|()| stream.set_read_timeout(Some(HANDSHAKE)))
                    .map_err(failed)?;
                let (size, flags) =
                    handshake(&mut &stream, &address.volume).map_err(|e| e.context(address))?;
                stream.set_read_timeout(None).map_err(failed)?;
                Client::new(Box::new(stream), address, size, flags)
            }
        }
    }

    fn new(stream: Box<dyn Stream>, address: &Address, size: u64, flags: u16) -> Result<Client> {
        let name = address.to_string();
        if flags & READ_ONLY != 0 {
            return Err(Error::new(Kind::Unsupported, format!("{name} can only be read")));
        }
        Ok(Client { stream, name, size, flags, cookie: 0, broken: None })
    }

    /// Bytes of the volume.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    pub(super) fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<()> {
        let mut at = offset;
        for piece in into.chunks_mut(PIECE_BYTES) {
            self.ask(Command::Read, 0, at, piece.len() as u32, &[], piece)?;
            at += piece.len() as u64;
        }
        Ok(())
    }

    pub(super) fn write(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        let mut at = offset;
        for piece in data.chunks(PIECE_BYTES) {
            self.ask(Command::Write, 0, at, piece.len() as u32, piece, &mut [])?;
            at += piece.len() as u64;
        }
        Ok(())
    }

    /// Does nothing on a server that knows no trim: it is advice.
    pub(super) fn trim(&mut self, offset: u64, bytes: u64) -> Result<()> {
        if self.flags & SEND_TRIM == 0 {
            Ok(())
        } else {
            self.range(Command::Trim, 0, offset, bytes)
        }
    }

    pub(super) fn write_zeroes(&mut self, offset: u64, bytes: u64, keep: bool) -> Result<()> {
        if self.flags & SEND_WRITE_ZEROES != 0 {
            return self.range(Command::WriteZeroes, if keep { NO_HOLE } else { 0 }, offset, bytes);
        }
        let zeroes = vec![0; PIECE_BYTES.min(usize::try_from(bytes).unwrap_or(PIECE_BYTES))];
        let mut done = 0;
        while done < bytes {
            let part = (bytes - done).min(PIECE_BYTES as u64);
            self.write(offset + done, &zeroes[..part as usize])?;
            done += part;
        }
        Ok(())
    }

    /// Does nothing on a server without a cache.
    pub(super) fn flush(&mut self) -> Result<()> {
        if self.flags & SEND_FLUSH == 0 {
            Ok(())
        } else {
            self.ask(Command::Flush, 0, 0, 0, &[], &mut [])
        }
    }

    /// A command for a range that may be longer than a request can say.
    fn range(&mut self, command: Command, flags: u16, offset: u64, bytes: u64) -> Result<()> {
        let mut done = 0;
        while done < bytes {
            let part = (bytes - done).min(1 << 30);
            self.ask(command, flags, offset + done, part as u32, &[], &mut [])?;
            done += part;
        }
        Ok(())
    }

    /// One request and its answer.
    fn ask(
        &mut self,
        command: Command,
        flags: u16,
        offset: u64,
        length: u32,
        data: &[u8],
        into: &mut [u8],
    ) -> Result<()> {
        if let Some(broken) = &self.broken {
            return Err(broken.clone());
        }
        self.cookie += 1;
        let error = match self.exchange(command, flags, offset, length, data, into) {
            Ok(0) => return Ok(()),
            Ok(error) => error,
            Err(error) => {
                let broken =
                    Error::from_io(format!("the connection to {} is broken", self.name), error);
                self.broken = Some(broken.clone());
                return Err(broken);
            }
        };
        let kind = match error {
            1 => Kind::Denied,
            22 | 75 => Kind::InvalidInput,
            28 => Kind::NoSpace,
            95 => Kind::Unsupported,
            _ => Kind::Io,
        };
        Err(Error::new(kind, format!("{} answers with error {error}", self.name)))
    }

    fn exchange(
        &mut self,
        command: Command,
        flags: u16,
        offset: u64,
        length: u32,
        data: &[u8],
        into: &mut [u8],
    ) -> std::io::Result<u32> {
        self.stream.write_all(&self.request(command, flags, offset, length))?;
        self.stream.write_all(data)?;
        self.stream.flush()?;
        let mut reply = [0; 16];
        self.stream.read_exact(&mut reply)?;
        let [a, b, c, d, e, f, g, h, cookie @ ..] = reply;
        if u32::from_be_bytes([a, b, c, d]) != SIMPLE_REPLY
            || u64::from_be_bytes(cookie) != self.cookie
        {
            return Err(std::io::Error::other("it answers something that was not asked"));
        }
        let error = u32::from_be_bytes([e, f, g, h]);
        if error == 0 {
            self.stream.read_exact(into)?;
        }
        Ok(error)
    }

    fn request(&self, command: Command, flags: u16, offset: u64, length: u32) -> Vec<u8> {
        let mut request = REQUEST.to_be_bytes().to_vec();
        request.extend(flags.to_be_bytes());
        request.extend((command as u16).to_be_bytes());
        request.extend(self.cookie.to_be_bytes());
        request.extend(offset.to_be_bytes());
        request.extend(length.to_be_bytes());
        request
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if self.broken.is_none() {
            let request = self.request(Command::Disconnect, 0, 0, 0);
            // There is no answer to it.
            let _ = self.stream.write_all(&request).and_then(|()| self.stream.flush());
        }
    }
}

/// Agrees with the server on a volume; gives its size and flags.
fn handshake<S>(stream: &mut S, volume: &str) -> Result<(u64, u16)>
where
    S: Read + Write,
{
    let failed = |error| Error::from_io("the handshake failed", error);
    let strange = |what: &str| Error::new(Kind::Unsupported, format!("the server {what}"));
    let take = |stream: &mut S, n: usize| -> Result<Vec<u8>> {
        let mut bytes = vec![0; n];
        stream.read_exact(&mut bytes).map_err(failed)?;
        Ok(bytes)
    };
    let greeting = take(stream, 18)?;
    let number =
        |bytes: &[u8]| bytes.iter().fold(0u64, |number, &byte| number << 8 | u64::from(byte));
    if number(&greeting[..8]) != GREETING || number(&greeting[8..16]) != OPTION {
        return Err(strange("does not speak NBD as it is spoken today"));
    }
    let offered = number(&greeting[16..]) as u16;
    if offered & FIXED_NEWSTYLE == 0 {
        return Err(strange("does not know the fixed newstyle handshake"));
    }
    let mut hello = u32::from(FIXED_NEWSTYLE | offered & NO_ZEROES).to_be_bytes().to_vec();
    let name = volume.as_bytes();
    hello.extend(OPTION.to_be_bytes());
    hello.extend(OPTION_GO.to_be_bytes());
    hello.extend((name.len() as u32 + 6).to_be_bytes());
    hello.extend((name.len() as u32).to_be_bytes());
    hello.extend(name);
    hello.extend(0u16.to_be_bytes());
    stream.write_all(&hello).and_then(|()| stream.flush()).map_err(failed)?;
    let mut export = None;
    for _ in 0..REPLIES_MAX {
        let head = take(stream, 20)?;
        let (answer, length) = (number(&head[12..16]) as u32, number(&head[16..20]) as u32);
        if number(&head[..8]) != OPTION_REPLY
            || number(&head[8..12]) as u32 != OPTION_GO
            || length > REPLY_BYTES_MAX
        {
            return Err(strange("answers something that was not asked"));
        }
        let text = take(stream, length as usize)?;
        match answer {
            ANSWER_ACK => {
                return export.ok_or_else(|| strange("does not tell the size of its volume"));
            }
            ANSWER_INFO if text.len() == 12 && number(&text[..2]) as u16 == INFO_EXPORT => {
                export = Some((number(&text[2..10]), number(&text[10..]) as u16));
            }
            ANSWER_INFO => {}
            _ => {
                let said = String::from_utf8_lossy(&text).into_owned();
                return Err(Error::new(
                    Kind::NotFound,
                    format!("the server refuses ({:#x}): {said}", answer & !(1 << 31)),
                ));
            }
        }
    }
    Err(strange("does not come to an end with its answers"))
}
