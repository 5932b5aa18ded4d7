//! A small NBD client, so that the demonstration needs nothing installed: newstyle handshake, GO,
//! simple replies, several requests in flight. Written from the protocol document, not from our
//! server.

use std::{
    collections::HashMap,
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};

const READ: u16 = 0;
const WRITE: u16 = 1;
const DISCONNECT: u16 = 2;
const FLUSH: u16 = 3;
const TRIM: u16 = 4;
const WRITE_ZEROES: u16 = 6;

const OPTION_GO: u32 = 7;
const INFO_EXPORT: u16 = 0;

/// Bytes of one request.
pub(crate) const REQUEST_BYTES: usize = 256 << 10;

/// Requests in flight.
const DEPTH: usize = 16;

/// Longest that an answer may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// A connection to one volume.
pub(crate) struct Client {
    stream: UnixStream,
    size: u64,
    cookie: u64,
}

impl Client {
    /// Connects to the volume `name` behind a UNIX socket.
    pub(crate) fn connect(socket: &Path, name: &str) -> Result<Client> {
        let stream = UnixStream::connect(socket)
            .with_context(|| format!("connecting to {}", socket.display()))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut client = Client { stream, size: 0, cookie: 0 };
        client.handshake(name)?;
        Ok(client)
    }

    /// Size of the volume in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    fn handshake(&mut self, name: &str) -> Result<()> {
        let greeting: [u8; 18] = self.take()?;
        ensure!(&greeting[..16] == b"NBDMAGICIHAVEOPT", "not an NBD server");
        // Fixed newstyle, no zeroes.
        self.stream.write_all(&3u32.to_be_bytes())?;
        let mut data = (name.len() as u32).to_be_bytes().to_vec();
        data.extend_from_slice(name.as_bytes());
        data.extend_from_slice(&0u16.to_be_bytes());
        let mut option = b"IHAVEOPT".to_vec();
        option.extend_from_slice(&OPTION_GO.to_be_bytes());
        option.extend_from_slice(&(data.len() as u32).to_be_bytes());
        option.extend_from_slice(&data);
        self.stream.write_all(&option)?;
        loop {
            let head: [u8; 20] = self.take()?;
            let kind = u32::from_be_bytes(part(&head, 12));
            let mut payload = vec![0; u32::from_be_bytes(part(&head, 16)).min(1 << 16) as usize];
            self.stream.read_exact(&mut payload)?;
            match kind {
                1 => return Ok(()),
                3 if payload.len() >= 12
                    && u16::from_be_bytes(part(&payload, 0)) == INFO_EXPORT =>
                {
                    self.size = u64::from_be_bytes(part(&payload, 2));
                }
                3 => {}
                _ => bail!(
                    "the server refuses the volume '{name}': {}",
                    String::from_utf8_lossy(&payload)
                ),
            }
        }
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.stream.read_exact(&mut bytes).context("the server hung up")?;
        Ok(bytes)
    }

    fn send(&mut self, command: u16, offset: u64, length: usize, data: &[u8]) -> Result<u64> {
        self.cookie += 1;
        let mut request = Vec::with_capacity(28 + data.len());
        request.extend_from_slice(&0x2560_9513u32.to_be_bytes());
        request.extend_from_slice(&0u16.to_be_bytes());
        request.extend_from_slice(&command.to_be_bytes());
        request.extend_from_slice(&self.cookie.to_be_bytes());
        request.extend_from_slice(&offset.to_be_bytes());
        request.extend_from_slice(&(length as u32).to_be_bytes());
        request.extend_from_slice(data);
        self.stream.write_all(&request).context("the server hung up")?;
        Ok(self.cookie)
    }

    /// The cookie of the next answer, which must not be an error.
    fn answer(&mut self) -> Result<u64> {
        let reply: [u8; 16] = self.take()?;
        ensure!(
            u32::from_be_bytes(part(&reply, 0)) == 0x6744_6698,
            "the server sent no simple reply"
        );
        match u32::from_be_bytes(part(&reply, 4)) {
            0 => Ok(u64::from_be_bytes(part(&reply, 8))),
            28 => bail!("the store is full (ENOSPC)"),
            errno => bail!("the server answered with error {errno}"),
        }
    }

    /// Writes pieces at their offsets, several in flight. Returns when all are answered; durable
    /// after [`flush`](Self::flush).
    pub(crate) fn write_all<'a>(
        &mut self,
        pieces: impl Iterator<Item = (u64, &'a [u8])>,
    ) -> Result<()> {
        let mut flying = 0;
        for (offset, data) in pieces {
            if flying == DEPTH {
                self.answer()?;
                flying -= 1;
            }
            self.send(WRITE, offset, data.len(), data)?;
            flying += 1;
        }
        for _ in 0..flying {
            self.answer()?;
        }
        Ok(())
    }

    /// Makes durable what was answered.
    pub(crate) fn flush(&mut self) -> Result<()> {
        self.send(FLUSH, 0, 0, &[])?;
        self.answer().map(|_| ())
    }

    /// Trims ranges, several requests in flight.
    pub(crate) fn trim(&mut self, ranges: impl Iterator<Item = (u64, u32)>) -> Result<()> {
        let mut flying = 0;
        for (offset, length) in ranges {
            if flying == DEPTH {
                self.answer()?;
                flying -= 1;
            }
            self.send(TRIM, offset, length as usize, &[])?;
            flying += 1;
        }
        (0..flying).try_for_each(|_| self.answer().map(|_| ()))
    }

    /// Writes zeroes.
    pub(crate) fn zero(&mut self, offset: u64, length: u32) -> Result<()> {
        self.send(WRITE_ZEROES, offset, length as usize, &[])?;
        self.answer().map(|_| ())
    }

    /// Reads `bytes` bytes from the start, several requests in flight, and gives each piece to
    /// `look`.
    pub(crate) fn read_all(
        &mut self,
        bytes: u64,
        look: impl FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        self.read_range(0, bytes, look)
    }

    /// The same for `bytes` bytes from `first` on.
    pub(crate) fn read_range(
        &mut self,
        first: u64,
        bytes: u64,
        look: impl FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        self.read_ranges([(first, bytes)].into_iter(), look)
    }

    /// The same for ranges, given by first byte and bytes; requests of several are in flight.
    pub(crate) fn read_ranges(
        &mut self,
        ranges: impl Iterator<Item = (u64, u64)>,
        mut look: impl FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut pieces = ranges.flat_map(|(first, bytes)| {
            let end = first + bytes;
            (first..end)
                .step_by(REQUEST_BYTES)
                .map(move |at| (at, REQUEST_BYTES.min((end - at) as usize)))
        });
        let mut flying: HashMap<u64, (u64, usize)> = HashMap::new();
        let mut buffer = vec![0; REQUEST_BYTES];
        loop {
            while flying.len() < DEPTH
                && let Some((at, length)) = pieces.next()
            {
                let cookie = self.send(READ, at, length, &[])?;
                flying.insert(cookie, (at, length));
            }
            if flying.is_empty() {
                return Ok(());
            }
            let cookie = self.answer()?;
            let (offset, length) =
                flying.remove(&cookie).context("the server answered what was not asked")?;
            self.stream.read_exact(&mut buffer[..length])?;
            look(offset, &buffer[..length])?;
        }
    }

    /// Says good-bye.
    pub(crate) fn disconnect(mut self) -> Result<()> {
        self.send(DISCONNECT, 0, 0, &[]).map(|_| ())
    }
}

/// `N` bytes of a longer slice.
fn part<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut part = [0; N];
    part.copy_from_slice(&bytes[at..at + N]);
    part
}
