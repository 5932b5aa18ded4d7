//! The receive buffer: one system call takes in all that the client sent, up to the buffer's size.

use std::io::{self, Read};

use super::line::Secrecy;
use super::rights::Peer;

/// Where a client's bytes come from.
pub(crate) trait Source: Read {
    /// From now on a read may fail with `WouldBlock` after [`LOOK`](super::limits::LOOK), when
    /// `looks`, so that the reader can look around; else it waits as long as the client may be
    /// silent.
    fn looks_around(&mut self, looks: bool);

    /// Says whether the next bytes begin a request, or belong to one that has begun.
    fn between(&mut self, between: bool);

    /// Whether the bytes are encrypted.
    fn secrecy(&self) -> Secrecy {
        Secrecy::Plain
    }

    /// The client's next bytes begin a handshake of TLS, and all behind it is encrypted; tells who the
    /// client is.
    ///
    /// # Errors
    /// Those of the connection, also when the client does not prove who it is.
    fn start_tls(&mut self) -> io::Result<Peer> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Bytes that come without being waited for.
pub(crate) struct Plain<R>(pub(crate) R);

impl<R: Read> Read for Plain<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into)
    }
}

impl<R: Read> Source for Plain<R> {
    fn looks_around(&mut self, _: bool) {}

    fn between(&mut self, _: bool) {}
}

/// Bytes received and not yet used.
pub(crate) struct Inbox<R> {
    reader: R,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl<R: Read> Inbox<R> {
    pub(crate) fn new(reader: R, bytes: usize) -> Inbox<R> {
        Inbox { reader, buffer: vec![0; bytes], start: 0, end: 0 }
    }

    /// Makes room for so many bytes, or for those that are unread.
    pub(crate) fn resize(&mut self, bytes: usize) {
        let mut buffer = vec![0; bytes.max(self.end - self.start)];
        buffer[..self.end - self.start].copy_from_slice(&self.buffer[self.start..self.end]);
        (self.buffer, self.start, self.end) = (buffer, 0, self.end - self.start);
    }

    /// The source of the bytes.
    pub(crate) fn reader(&mut self) -> &mut R {
        &mut self.reader
    }

    /// The largest number of bytes that can be unread at once.
    pub(crate) fn capacity(&self) -> usize {
        self.buffer.len()
    }

    /// The bytes that were received and not yet used.
    pub(crate) fn unread(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Marks the first `n` unread bytes as used.
    pub(crate) fn consume(&mut self, n: usize) {
        assert!(n <= self.end - self.start, "only what was received can be used");
        self.start += n;
    }

    /// Receives once, at most `most` bytes, and waits when there is nothing. Zero bytes mean that
    /// the client has closed.
    ///
    /// # Errors
    /// The errors of the connection; `WouldBlock` when it is time to look around, and when the
    /// buffer is full of unread bytes.
    pub(crate) fn receive(&mut self, most: usize) -> io::Result<usize> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start > 0 && self.buffer.len() - self.end < self.buffer.len() / 2 {
            // The bytes that are moved are a part of one request.
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.end == self.buffer.len() {
            return Err(io::Error::other("the receive buffer is full"));
        }
        let end = self.buffer.len().min(self.end.saturating_add(most.max(1)));
        let received = loop {
            match self.reader.read(&mut self.buffer[self.end..end]) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                other => break other?,
            }
        };
        self.end += received;
        Ok(received)
    }

    /// Receives until at least `n` bytes are unread.
    ///
    /// # Errors
    /// `UnexpectedEof` when the client closes before; those of the connection.
    pub(crate) fn need(&mut self, n: usize) -> io::Result<()> {
        while self.end - self.start < n {
            match self.receive(usize::MAX) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_out_in_order_whatever_the_buffer_size() {
        let sent: Vec<u8> = (0..=255).cycle().take(10_000).collect();
        for size in [7, 64, 20_000] {
            let mut inbox = Inbox::new(&sent[..], size);
            let mut got = Vec::new();
            while got.len() < sent.len() {
                let n = (got.len() % 7 + 1).min(sent.len() - got.len());
                inbox.need(n).unwrap();
                got.extend_from_slice(&inbox.unread()[..n]);
                inbox.consume(n);
                if got.len() == 5_000 {
                    inbox.resize(size + 13);
                    inbox.need(5).unwrap();
                    inbox.consume(5);
                    got.extend_from_slice(&sent[5_000..5_005]);
                }
            }
            assert_eq!(got, sent);
            assert_eq!(inbox.need(1).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        }
    }
}
