//! The bytes of a connection: as they are, or by TLS once the client has asked for it.
//!
//! rustls has one state for both directions, so one lock guards it. A thread that sends holds the
//! outbox, then [`Tls::sealed`], then the session, for as long as it encrypts; it sends with the
//! session free, and so records leave in the order in which they were made. The thread that receives
//! holds no lock while it waits for bytes; it takes the session to decrypt, and never waits for
//! `sealed` while it holds it.

use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::{SendFlags, send};

use crate::tls::{Credentials, Proof, TlsSession};

/// Bytes that a connection receives at once while it waits for its client, and while it works.
const RECEIVED_IDLE: usize = 4 << 10;
const RECEIVED_WORKING: usize = 32 << 10;

/// Does some computing of a handshake when it is the connection's turn, or not at all when that comes
/// too late.
pub(crate) type InTurn<'a> = dyn Fn(&mut dyn FnMut()) + 'a;

/// Whether the bytes of a connection are encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Secrecy {
    /// No, and nobody asks for it.
    Plain,
    /// Not yet, and before that the client gets nothing.
    Owed,
    /// Yes.
    Given,
}

/// The state that the threads of a connection share to understand its bytes.
#[derive(Default)]
pub(crate) struct Line {
    /// The files by which clients have to prove who they are; nothing on a line that stays plain.
    credentials: Option<Arc<Credentials>>,
    tls: OnceLock<Box<Tls>>,
}

pub(crate) struct Tls {
    session: Mutex<TlsSession>,
    /// Bytes that were encrypted and not sent yet. The thread that holds the lock sends.
    sealed: Mutex<Vec<u8>>,
}

impl Line {
    /// A line on which clients have to ask for TLS.
    pub(crate) fn secured_by(credentials: Arc<Credentials>) -> Line {
        Line { credentials: Some(credentials), tls: OnceLock::new() }
    }

    pub(crate) fn secrecy(&self) -> Secrecy {
        match (&self.credentials, self.tls.get()) {
            (None, _) => Secrecy::Plain,
            (Some(_), None) => Secrecy::Owed,
            (Some(_), Some(_)) => Secrecy::Given,
        }
    }

    pub(crate) fn tls(&self) -> Option<&Tls> {
        self.tls.get().map(|tls| &**tls)
    }

    /// Shakes hands with a client that asked for TLS; `receive` gives its bytes, and what it takes to
    /// understand them happens within `in_turn`. From then on the line is encrypted.
    ///
    /// # Errors
    /// Those of the connection, and `InvalidData` when the client does not prove who it is; it was
    /// told why then.
    pub(crate) fn start_tls(
        &self,
        socket: &OwnedFd,
        received: &mut Received,
        mut receive: impl FnMut(&mut [u8]) -> io::Result<usize>,
        in_turn: &InTurn<'_>,
    ) -> io::Result<Proof> {
        let credentials = self.credentials.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        let (mut session, mut unsent) = (TlsSession::new(credentials)?, Vec::new());
        received.resize(RECEIVED_IDLE);
        let mut fed = Ok(0);
        loop {
            session.unsent(&mut unsent)?;
            // A flight of the handshake fits into the buffer of a socket to which nothing was sent.
            if send_at_once(socket, &mut unsent).is_err() || !unsent.is_empty() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            received.consume(fed?);
            if !session.is_handshaking() {
                break;
            }
            if received.unread().is_empty() && received.fill(&mut receive)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            fed = Err(io::ErrorKind::TimedOut.into());
            in_turn(&mut || fed = session.feed(received.unread()));
        }
        let proof = session.proof().ok_or(io::ErrorKind::InvalidData)?;
        let tls = Tls { session: Mutex::new(session), sealed: Mutex::default() };
        // It is set once: the next handshake finds the line encrypted.
        let _ = self.tls.set(Box::new(tls));
        Ok(proof)
    }
}

impl Tls {
    /// Encrypts the first bytes of some content, and has `send` send them all; tells how many they
    /// were.
    ///
    /// # Errors
    /// Those of `send`; the connection is lost then.
    pub(crate) fn send(
        &self,
        content: &[IoSlice<'_>],
        mut send: impl FnMut(&[u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let mut sealed = self.sealed.lock();
        let taken = self.session.lock().seal(content, &mut sealed)?;
        let mut sent = 0;
        while sent < sealed.len() {
            match send(&sealed[sent..]) {
                Ok(more) => sent += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    sealed.clear();
                    return Err(error);
                }
            }
        }
        sealed.clear();
        Ok(taken)
    }

    /// Gives the memory back that sending took.
    pub(crate) fn rest(&self) {
        let mut sealed = self.sealed.lock();
        if sealed.is_empty() {
            *sealed = Vec::new();
        }
    }

    /// Decrypts what was received, as much as `buffer` takes; `None` when nothing of it is whole yet,
    /// and 0 when the client closed.
    ///
    /// # Errors
    /// `InvalidData` when the client does not keep to the rules; it was told why then, if that was
    /// possible at once.
    pub(crate) fn open(
        &self,
        socket: &OwnedFd,
        received: &mut Received,
        buffer: &mut [u8],
    ) -> io::Result<Option<usize>> {
        let opened = self.open_records(received, buffer);
        if opened.is_err() {
            self.tell(socket);
        }
        opened
    }

    fn open_records(
        &self,
        received: &mut Received,
        buffer: &mut [u8],
    ) -> io::Result<Option<usize>> {
        let mut session = self.session.lock();
        let mut taken = 0;
        while taken < buffer.len() {
            match session.take(&mut buffer[taken..])? {
                Some(0) => return Ok(Some(taken)),
                Some(more) => taken += more,
                None if received.unread().is_empty() => break,
                None => {
                    let fed = session.feed(received.unread())?;
                    received.consume(fed);
                }
            }
        }
        Ok((taken > 0).then_some(taken))
    }

    /// Sends what the session has to say, if nobody else is sending and the client takes it at once.
    fn tell(&self, socket: &OwnedFd) {
        if let Some(mut sealed) = self.sealed.try_lock() {
            // What can't be encrypted or sent, the client learns by the end of the connection.
            if self.session.lock().unsent(&mut sealed).is_ok() {
                let _ = send_at_once(socket, &mut sealed);
            }
        }
    }
}

/// Sends what the client takes without being waited for, and removes it from `bytes`.
fn send_at_once(socket: &OwnedFd, bytes: &mut Vec<u8>) -> io::Result<()> {
    while !bytes.is_empty() {
        match send(socket, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Ok(sent) => drop(bytes.drain(..sent)),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Encrypted bytes that were received and not decrypted yet.
#[derive(Default)]
pub(crate) struct Received {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Received {
    fn unread(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    fn consume(&mut self, bytes: usize) {
        self.start += bytes;
    }

    /// Receives more, when all is consumed.
    pub(crate) fn fill(
        &mut self,
        receive: &mut impl FnMut(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        (self.start, self.end) = (0, 0);
        self.end = receive(&mut self.bytes)?;
        Ok(self.end)
    }

    /// Receives as much at once as a connection does that works, or that does not.
    pub(crate) fn works(&mut self, works: bool) {
        self.resize(if works { RECEIVED_WORKING } else { RECEIVED_IDLE });
    }

    fn resize(&mut self, bytes: usize) {
        if self.bytes.len() == bytes.max(self.end - self.start) {
            return;
        }
        let mut resized = vec![0; bytes.max(self.end - self.start)];
        resized[..self.end - self.start].copy_from_slice(self.unread());
        (self.bytes, self.start, self.end) = (resized, 0, self.end - self.start);
    }
}
