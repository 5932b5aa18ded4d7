//! Replies: collected for a whole batch of requests, and sent at once.
//!
//! *Threads:* a connection's own thread and its waiting helper both send. The thread that holds the
//! [`Outbox`] sends whole replies before another one does. After a failed send nothing more is
//! sent, because the client could not tell where the next reply starts.

use std::io::{self, IoSlice, Write};
use std::ops::Range;
use std::sync::Arc;

use onefold_core::{Error, Kind, Replaced};
use parking_lot::{Mutex, MutexGuard};

use super::durations::{Begun, Ended};
use super::socket::hang_up;
use super::statistics::Counters;
use super::wire::{
    CHUNK_DONE, Dialect, EXTENDED_REPLY, Put, Request, SIMPLE_REPLY, STRUCTURED_REPLY, chunk,
};
use crate::client_fd::ClientFd;

/// The protocol's error numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Code {
    NotPermitted = 1,
    Io = 5,
    Invalid = 22,
    NoSpace = 28,
    TooLarge = 75,
    NotSupported = 95,
    ShuttingDown = 108,
}

/// Why a request is answered with an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) code: Code,
    pub(crate) message: String,
    /// The connection ends instead of an answer: the client is to ask another server.
    pub(crate) hangs_up: bool,
}

impl Refusal {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Refusal {
        Refusal { code, message: message.into(), hangs_up: false }
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Refusal {
        let code = match error.kind() {
            Kind::InvalidInput | Kind::Exists => Code::Invalid,
            Kind::NoSpace => Code::NoSpace,
            Kind::Unsupported => Code::NotSupported,
            Kind::Denied => Code::NotPermitted,
            // The volume was deleted: there is nothing more to be had on this connection.
            Kind::NotFound => Code::ShuttingDown,
            // A stopped store still answers reads, so the connection goes on.
            Kind::Stopped | Kind::Busy | Kind::Corrupt | Kind::Io | Kind::Memory => Code::Io,
        };
        Refusal { code, message: error.to_string(), hangs_up: Replaced::caused(&error) }
    }
}

/// The request that a reply answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Of {
    pub(crate) cookie: u64,
    /// The request's offset, which extended replies repeat.
    pub(crate) offset: u64,
    /// When the request was taken up.
    pub(crate) begun: Option<Begun>,
}

impl From<&Request> for Of {
    fn from(request: &Request) -> Of {
        Of { cookie: request.cookie, offset: request.offset, begun: request.begun }
    }
}

/// The longest error message sent: the protocol's limit for strings.
const MESSAGE_BYTES: usize = 4096;

/// As much of a message as may be sent, in whole characters.
fn cut(message: &str) -> &str {
    let mut end = message.len().min(MESSAGE_BYTES);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    &message[..end]
}

#[derive(Clone, Copy)]
enum Source {
    /// Headers, and everything else that is small.
    Small,
    /// Data of reads, which is sent from where the volume put it.
    Data,
}

struct Part {
    source: Source,
    range: Range<usize>,
}

/// Replies of a batch, in the order in which they will be sent.
pub(crate) struct Replies {
    dialect: Dialect,
    small: Vec<u8>,
    parts: Vec<Part>,
    answered: u64,
    errors: u64,
    ended: Ended,
    /// A request can't be answered here any more.
    hangs_up: bool,
}

impl Replies {
    pub(crate) fn new(dialect: Dialect) -> Replies {
        Replies {
            dialect,
            small: Vec::new(),
            parts: Vec::new(),
            answered: 0,
            errors: 0,
            ended: Ended::default(),
            hangs_up: false,
        }
    }

    pub(crate) fn dialect(&self) -> Dialect {
        self.dialect
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Gives the memory back until it is needed again; nothing is collected.
    pub(crate) fn release(&mut self) {
        (self.small, self.parts) = (Vec::new(), Vec::new());
        self.ended = Ended::default();
    }

    /// Bytes of all but the data.
    pub(crate) fn small_bytes(&self) -> usize {
        self.small.len()
    }

    /// How many requests these replies end, and how many of them with an error.
    pub(crate) fn answered(&self) -> (u64, u64) {
        (self.answered, self.errors)
    }

    /// Counts how long the requests took that these replies end.
    pub(crate) fn count_durations(&mut self, counters: &Counters) {
        self.ended.count(&counters.durations);
    }

    fn end(&mut self, of: Of) {
        self.answered += 1;
        self.ended.push(of.begun);
    }

    /// Success, for a request that asks for no content.
    pub(crate) fn done(&mut self, of: Of) {
        self.end(of);
        let start = self.small.len();
        if self.dialect == Dialect::Extended {
            self.chunk_header(of, chunk::NONE, true, 0);
        } else {
            self.simple_header(of, 0);
        }
        self.end_small(start);
    }

    /// The end of a read of nothing.
    pub(crate) fn nothing_read(&mut self, of: Of) {
        self.end(of);
        let start = self.small.len();
        if self.dialect == Dialect::Simple {
            self.simple_header(of, 0);
        } else {
            self.chunk_header(of, chunk::NONE, true, 0);
        }
        self.end_small(start);
    }

    /// Failure; with `at`, the place of it.
    pub(crate) fn error(&mut self, of: Of, refusal: &Refusal, at: Option<u64>) {
        self.end(of);
        self.errors += 1;
        self.hangs_up |= refusal.hangs_up;
        let start = self.small.len();
        if self.dialect == Dialect::Simple {
            self.simple_header(of, refusal.code as u32);
        } else {
            let message = cut(&refusal.message).as_bytes();
            let kind = if at.is_some() { chunk::ERROR_OFFSET } else { chunk::ERROR };
            let place = if at.is_some() { 8 } else { 0 };
            self.chunk_header(of, kind, true, 4 + 2 + message.len() as u64 + place);
            self.small.put32(refusal.code as u32);
            self.small.put16(message.len() as u16);
            self.small.extend_from_slice(message);
            if let Some(at) = at {
                self.small.put64(at);
            }
        }
        self.end_small(start);
    }

    /// Bytes that were read from `offset` on; `data` is where they lie in the data given to
    /// [`send`](Replies::send).
    pub(crate) fn data(&mut self, of: Of, offset: u64, data: Range<usize>, last: bool) {
        self.data_header(of, offset, data.len() as u64, last);
        self.data_part(data);
    }

    /// Announces `length` bytes that were read from `offset` on.
    pub(crate) fn data_header(&mut self, of: Of, offset: u64, length: u64, last: bool) {
        if last {
            self.end(of);
        }
        let start = self.small.len();
        if self.dialect == Dialect::Simple {
            self.simple_header(of, 0);
        } else {
            self.chunk_header(of, chunk::OFFSET_DATA, last, 8 + length);
            self.small.put64(offset);
        }
        self.end_small(start);
    }

    /// Adds a part of the announced data; `data` is its range in the data given to
    /// [`send`](Replies::send).
    pub(crate) fn data_part(&mut self, data: Range<usize>) {
        self.parts.push(Part { source: Source::Data, range: data });
    }

    /// Zeroes that were read; not in the simple dialect.
    pub(crate) fn hole(&mut self, of: Of, offset: u64, bytes: u32, last: bool) {
        if last {
            self.end(of);
        }
        let start = self.small.len();
        self.chunk_header(of, chunk::OFFSET_HOLE, last, 8 + 4);
        self.small.put64(offset);
        self.small.put32(bytes);
        self.end_small(start);
    }

    /// The extents of a range, as lengths and states of the context `context`; not in the simple
    /// dialect.
    pub(crate) fn status(
        &mut self,
        of: Of,
        context: u32,
        extents: impl ExactSizeIterator<Item = (u64, u32)>,
    ) {
        self.end(of);
        let start = self.small.len();
        let count = extents.len();
        if self.dialect == Dialect::Extended {
            self.chunk_header(of, chunk::BLOCK_STATUS_EXT, true, 8 + 16 * count as u64);
            self.small.put32(context);
            self.small.put32(count as u32);
            for (bytes, state) in extents {
                self.small.put64(bytes);
                self.small.put64(u64::from(state));
            }
        } else {
            self.chunk_header(of, chunk::BLOCK_STATUS, true, 4 + 8 * count as u64);
            self.small.put32(context);
            for (bytes, state) in extents {
                // A 32-bit request asks for no more than 32 bits, and extents are cut to the
                // request.
                self.small.put32(u32::try_from(bytes).unwrap_or(u32::MAX));
                self.small.put32(state);
            }
        }
        self.end_small(start);
    }

    fn simple_header(&mut self, of: Of, code: u32) {
        self.small.put32(SIMPLE_REPLY);
        self.small.put32(code);
        self.small.put64(of.cookie);
    }

    fn chunk_header(&mut self, of: Of, kind: u16, last: bool, bytes: u64) {
        let extended = self.dialect == Dialect::Extended;
        self.small.put32(if extended { EXTENDED_REPLY } else { STRUCTURED_REPLY });
        self.small.put16(if last { CHUNK_DONE } else { 0 });
        self.small.put16(kind);
        self.small.put64(of.cookie);
        if extended {
            self.small.put64(of.offset);
            self.small.put64(bytes);
        } else {
            // At most a payload and a few fields: `Limits::payload_bytes` has 32 bits.
            self.small.put32(bytes as u32);
        }
    }

    fn end_small(&mut self, start: usize) {
        let range = start..self.small.len();
        match self.parts.last_mut() {
            Some(Part { source: Source::Small, range: last }) => last.end = range.end,
            _ => self.parts.push(Part { source: Source::Small, range }),
        }
    }

    /// Sends all replies, and empties the list. `data` holds the bytes that the ranges of
    /// [`data`](Replies::data) refer to.
    ///
    /// # Errors
    /// The errors of the connection; the replies are lost then.
    pub(crate) fn send<W: Write>(&mut self, outbox: &Outbox<W>, data: &[u8]) -> io::Result<()> {
        if self.is_empty() { Ok(()) } else { self.send_held(&mut outbox.hold(), data) }
    }

    /// As [`send`](Replies::send), while the caller holds the outbox.
    ///
    /// # Errors
    /// As [`send`](Replies::send).
    pub(crate) fn send_held<W: Write>(
        &mut self,
        held: &mut Held<'_, W>,
        data: &[u8],
    ) -> io::Result<()> {
        if self.hangs_up {
            // What was done is done again elsewhere: a client asks again for all that had no answer.
            held.hang_up();
        }
        let parts = self.parts.iter().map(|part| match part.source {
            Source::Small => &self.small[part.range.clone()],
            Source::Data => &data[part.range.clone()],
        });
        let sent = held.send(parts);
        self.small.clear();
        self.parts.clear();
        (self.answered, self.errors) = (0, 0);
        sent
    }
}

/// The sending half of a connection, shared by its threads.
pub(crate) struct Outbox<W>(Mutex<Sender<W>>);

struct Sender<W> {
    writer: W,
    broken: bool,
    /// Shut down where a request can't be answered here any more.
    socket: Option<Arc<ClientFd>>,
}

/// Slices given to the system at once; enough for 64 reads.
const SLICES: usize = 128;

/// The outbox, locked by one thread.
pub(crate) struct Held<'a, W>(MutexGuard<'a, Sender<W>>);

impl<W: Write> Outbox<W> {
    pub(crate) fn new(writer: W) -> Outbox<W> {
        Outbox(Mutex::new(Sender { writer, broken: false, socket: None }))
    }

    /// Names the socket that is shut down where a request can't be answered here any more, so that all
    /// threads of the connection end.
    pub(crate) fn hangs_up(&self, socket: Arc<ClientFd>) {
        self.0.lock().socket = Some(socket);
    }

    /// Keeps others from sending, until the result is dropped.
    pub(crate) fn hold(&self) -> Held<'_, W> {
        Held(self.0.lock())
    }
}

impl<W: Write> Held<'_, W> {
    /// Sends the parts one after the other.
    ///
    /// # Errors
    /// The errors of the connection, also of an earlier failure.
    pub(crate) fn send<'a>(&mut self, parts: impl Iterator<Item = &'a [u8]>) -> io::Result<()> {
        if self.0.broken {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let sent = send_parts(&mut self.0.writer, parts);
        self.0.broken = sent.is_err();
        sent
    }

    /// Ends the connection without an answer.
    fn hang_up(&mut self) {
        self.0.broken = true;
        if let Some(socket) = &self.0.socket {
            hang_up(socket);
        }
    }

    /// Stops sending: a reply that has begun can't be completed.
    pub(crate) fn give_up(&mut self) {
        self.0.broken = true;
    }
}

fn send_parts<'a>(
    writer: &mut impl Write,
    mut parts: impl Iterator<Item = &'a [u8]>,
) -> io::Result<()> {
    loop {
        let mut slices = [IoSlice::new(&[]); SLICES];
        let mut filled = 0;
        for (slice, part) in slices.iter_mut().zip(&mut parts) {
            *slice = IoSlice::new(part);
            filled += 1;
        }
        if filled == 0 {
            return writer.flush();
        }
        let mut left = &mut slices[..filled];
        while !left.is_empty() {
            match writer.write_vectored(left) {
                Ok(0) if left.iter().any(|slice| !slice.is_empty()) => {
                    return Err(io::ErrorKind::WriteZero.into());
                }
                Ok(n) => IoSlice::advance_slices(&mut left, n),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_was_replaced_hangs_up_instead_of_answering() {
        let of = Of { cookie: 1, offset: 0, begun: None };
        for (error, hangs_up) in [
            (Error::new(Kind::Stopped, "the store stopped"), false),
            (Error::new(Kind::Stopped, "another server").caused_by(Replaced), true),
        ] {
            let mut sent = Vec::new();
            let outbox = Outbox::new(&mut sent);
            let mut replies = Replies::new(Dialect::Simple);
            replies.done(of);
            replies.error(of, &Refusal::from(error.context("volume 'v'")), None);
            assert_eq!(replies.send(&outbox, &[]).is_err(), hangs_up);
            drop(outbox);
            assert_eq!(sent.is_empty(), hangs_up);
        }
    }
}
