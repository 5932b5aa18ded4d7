//! One connection of TLS: bytes of records in, content out, and back. It knows no sockets.
//!
//! *Invariant:* what it holds is bounded, whatever the client sends: a record that is not whole yet,
//! and the content of one.

use std::{
    io::{self, IoSlice, Read, Write},
    sync::Arc,
    time::{Duration, Instant},
};

use rustls::{ServerConnection, pki_types::CertificateDer};

use super::{
    credentials::{Credentials, Loaded},
    identity::Identity,
};

/// Bytes of content that are encrypted at once.
pub(crate) const SEAL_BYTES: usize = 32 << 10;
/// Records without content that a client may send in a row: an update of keys, an alert.
const EMPTY_MAX: u32 = 16;
/// How often it may send one more.
const EMPTY_EVERY: Duration = Duration::from_secs(1);
/// Bytes before the content of a record: its type, its version, its length.
const HEADER: usize = 5;
/// Slices that are encrypted at once.
const SLICES: usize = 64;

/// The certificates by which a client proved who it is.
pub(crate) struct Proof {
    chain: Vec<CertificateDer<'static>>,
    /// The files of the server by which it was believed.
    by: Arc<Loaded>,
    pub(crate) identity: Identity,
}

impl Proof {
    /// The name of the certificate.
    pub(crate) fn name(&self) -> String {
        self.chain.first().map(Identity::name_of).unwrap_or_default()
    }

    /// True when the files as they were read last let the client in.
    pub(crate) fn still_holds(&self, credentials: &Credentials) -> bool {
        let now = credentials.now();
        Arc::ptr_eq(&now, &self.by) || now.accepts(&self.chain)
    }
}

/// The server's side of a connection.
pub(crate) struct TlsSession {
    connection: ServerConnection,
    by: Arc<Loaded>,
    record: Record,
    /// Records without content that the client may still send, and since when.
    empty: (u32, Instant),
}

/// How much of the record at hand has come.
#[derive(Default)]
struct Record {
    header: [u8; HEADER],
    /// Bytes of the header that have come.
    begun: usize,
    /// Bytes behind the header that have not.
    left: usize,
}

impl Record {
    /// How many of these bytes belong to the record at hand, and whether it ends with them.
    fn part(&mut self, bytes: &[u8]) -> (usize, bool) {
        let head = (HEADER - self.begun).min(bytes.len());
        self.header[self.begun..self.begun + head].copy_from_slice(&bytes[..head]);
        if self.begun < HEADER && self.begun + head == HEADER {
            self.left = usize::from(u16::from_be_bytes([self.header[3], self.header[4]]));
        }
        self.begun += head;
        let body = if self.begun == HEADER { self.left.min(bytes.len() - head) } else { 0 };
        self.left -= body;
        let ends = self.begun == HEADER && self.left == 0;
        if ends {
            *self = Record::default();
        }
        (head + body, ends)
    }
}

fn broken(error: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

impl TlsSession {
    /// A connection that has not begun.
    ///
    /// # Errors
    /// Those of the library.
    pub(crate) fn new(credentials: &Credentials) -> io::Result<TlsSession> {
        let by = credentials.now();
        let mut connection = ServerConnection::new(by.config.clone()).map_err(broken)?;
        // Nothing is sealed but what is sent at once; the caller sees to it.
        connection.set_buffer_limit(None);
        let empty = (EMPTY_MAX, Instant::now());
        Ok(TlsSession { connection, by, record: Record::default(), empty })
    }

    /// True until both sides have proved who they are.
    pub(crate) fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    /// Who the client is; nothing before the end of the handshake.
    pub(crate) fn proof(&self) -> Option<Proof> {
        let chain: Vec<_> = self
            .connection
            .peer_certificates()
            .filter(|_| !self.is_handshaking())?
            .iter()
            .map(|certificate| certificate.clone().into_owned())
            .collect();
        let identity = Identity::of(chain.first()?);
        Some(Proof { chain, by: self.by.clone(), identity })
    }

    /// Takes some of the bytes that the client sent, at most one record, and tells how many. What it
    /// holds must have been taken out before.
    ///
    /// # Errors
    /// `InvalidData` when it is no TLS, or not by its rules; what is [`unsent`](TlsSession::unsent) then
    /// tells the client why.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let (fed, ends) = self.record.part(bytes);
        let mut left = &bytes[..fed];
        let mut content = 0;
        while !left.is_empty() {
            self.connection.read_tls(&mut left)?;
            content =
                self.connection.process_new_packets().map_err(broken)?.plaintext_bytes_to_read();
        }
        if ends && content == 0 && !self.connection.is_handshaking() {
            self.pay_for_nothing()?;
        }
        Ok(fed)
    }

    /// A record without content costs the client a little patience: else it could have the server
    /// make new keys all day.
    fn pay_for_nothing(&mut self) -> io::Result<()> {
        let (left, since) = &mut self.empty;
        let earned = since.elapsed().as_secs() / EMPTY_EVERY.as_secs();
        if earned > 0 {
            *left = left.saturating_add(u32::try_from(earned).unwrap_or(EMPTY_MAX)).min(EMPTY_MAX);
            *since = Instant::now();
        }
        match left.checked_sub(1) {
            Some(less) => {
                *left = less;
                Ok(())
            }
            None => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the client sends records without content",
            )),
        }
    }

    /// Takes out what the client said; `None` when there is nothing yet, and 0 when it said that it
    /// says no more.
    ///
    /// # Errors
    /// Those of the library.
    pub(crate) fn take(&mut self, into: &mut [u8]) -> io::Result<Option<usize>> {
        match self.connection.reader().read(into) {
            Ok(taken) => Ok(Some(taken)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Encrypts the first bytes of some content behind `into`, and tells how many: at most
    /// [`SEAL_BYTES`].
    ///
    /// # Errors
    /// Those of the library.
    pub(crate) fn seal(
        &mut self,
        content: &[IoSlice<'_>],
        into: &mut Vec<u8>,
    ) -> io::Result<usize> {
        let mut slices = [IoSlice::new(&[]); SLICES];
        let (mut filled, mut left) = (0, SEAL_BYTES);
        for (slice, part) in slices.iter_mut().zip(content) {
            let part = &part[..part.len().min(left)];
            *slice = IoSlice::new(part);
            left -= part.len();
            filled += 1;
        }
        // Records are a little longer than their content.
        into.reserve(SEAL_BYTES - left + SEAL_BYTES / 64);
        let sealed = self.connection.writer().write_vectored(&slices[..filled])?;
        self.unsent(into)?;
        Ok(sealed)
    }

    /// Moves what is to be sent behind `into`.
    ///
    /// # Errors
    /// Those of the library.
    pub(crate) fn unsent(&mut self, into: &mut Vec<u8>) -> io::Result<()> {
        while self.connection.wants_write() {
            self.connection.write_tls(into)?;
        }
        Ok(())
    }

    /// Says that nothing more comes.
    pub(crate) fn close(&mut self) {
        self.connection.send_close_notify();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_told_apart_however_their_bytes_come() {
        let mut sent = Vec::new();
        for length in [0_usize, 1, 300, 16_384] {
            sent.extend_from_slice(&[23, 3, 3]);
            sent.extend_from_slice(&(length as u16).to_be_bytes());
            sent.extend(std::iter::repeat_n(7, length));
        }
        for size in [1, 3, 5, 6, 17, 40_000] {
            let (mut record, mut ends, mut at) = (Record::default(), Vec::new(), 0);
            while at < sent.len() {
                let (part, end) = record.part(&sent[at..(at + size).min(sent.len())]);
                assert!(part > 0);
                at += part;
                if end {
                    ends.push(at);
                }
            }
            assert_eq!(ends, [5, 11, 316, 16_705]);
        }
    }
}
