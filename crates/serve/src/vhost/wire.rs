//! Messages of the vhost-user protocol on their socket: a header of 12 bytes, a body of a few hundred
//! bytes, and descriptors that come with the header.
//!
//! *Invariants.* At most [`BODY_BYTES`] and [`FILES`] descriptors are taken for a message. Each
//! descriptor that came is closed unless the message has a use for it. No message is sent to a
//! client's other socket if that would wait.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::brief::briefly;
use crate::client_fd::ClientFd;

/// Bytes of a body: the largest, of the memory table, has less than half of them.
const BODY_BYTES: u32 = 4096;
/// Descriptors with one message: one for each region of memory, of which clients have at most eight.
const FILES: usize = 32;
pub(crate) const HEADER_BYTES: usize = 12;

/// The version of the protocol, in a header's flags.
const VERSION: u32 = 1;
const VERSION_MASK: u32 = 3;
const REPLY: u32 = 4;
const WANTS_REPLY: u32 = 8;

/// What a client asks for, as the protocol numbers it.
pub(crate) mod request {
    pub(crate) const GET_FEATURES: u32 = 1;
    pub(crate) const SET_FEATURES: u32 = 2;
    pub(crate) const SET_OWNER: u32 = 3;
    pub(crate) const RESET_OWNER: u32 = 4;
    pub(crate) const SET_MEM_TABLE: u32 = 5;
    pub(crate) const SET_VRING_NUM: u32 = 8;
    pub(crate) const SET_VRING_ADDR: u32 = 9;
    pub(crate) const SET_VRING_BASE: u32 = 10;
    pub(crate) const GET_VRING_BASE: u32 = 11;
    pub(crate) const SET_VRING_KICK: u32 = 12;
    pub(crate) const SET_VRING_CALL: u32 = 13;
    pub(crate) const SET_VRING_ERR: u32 = 14;
    pub(crate) const GET_PROTOCOL_FEATURES: u32 = 15;
    pub(crate) const SET_PROTOCOL_FEATURES: u32 = 16;
    pub(crate) const GET_QUEUE_NUM: u32 = 17;
    pub(crate) const SET_VRING_ENABLE: u32 = 18;
    pub(crate) const SET_BACKEND_REQ_FD: u32 = 21;
    pub(crate) const GET_CONFIG: u32 = 24;
    pub(crate) const SET_CONFIG: u32 = 25;
    pub(crate) const GET_INFLIGHT_FD: u32 = 31;
    pub(crate) const SET_INFLIGHT_FD: u32 = 32;
    pub(crate) const RESET_DEVICE: u32 = 34;
}

/// What a server tells on the client's other socket: the configuration has changed.
const CONFIG_CHANGE: u32 = 2;

/// A message of the client.
pub(crate) struct Message {
    pub(crate) request: u32,
    /// The client wants to hear whether it succeeded, if that was negotiated.
    pub(crate) wants_reply: bool,
    body: Vec<u8>,
    pub(crate) files: Vec<ClientFd>,
}

impl Message {
    /// The body, when it has just so many bytes.
    pub(crate) fn exactly<const N: usize>(&self) -> Result<&[u8; N], &'static str> {
        self.body.as_slice().try_into().map_err(|_| "a message of another length than it has")
    }

    pub(crate) fn body(&self) -> &[u8] {
        &self.body
    }

    /// The number that is the whole body.
    pub(crate) fn number(&self) -> Result<u64, &'static str> {
        self.exactly().map(|bytes| u64::from_le_bytes(*bytes))
    }

    /// The number of a queue and another number, which are the whole body.
    pub(crate) fn state(&self) -> Result<(u32, u32), &'static str> {
        let body: &[u8; 8] = self.exactly()?;
        Ok((u32_at(body, 0), u32_at(body, 4)))
    }

    /// The only descriptor that came.
    pub(crate) fn file(&mut self) -> Result<ClientFd, &'static str> {
        match (self.files.pop(), self.files.is_empty()) {
            (Some(file), true) => Ok(file),
            _ => Err("a message without its descriptor, or with several"),
        }
    }
}

/// The bytes of `N` at `at`; zeroes where there are none.
fn at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
}

/// The number of two bytes at `offset`.
pub(crate) fn u16_at(bytes: &[u8], offset: usize) -> u16 {
    u16::from_le_bytes(at(bytes, offset))
}

/// The number of four bytes at `offset`.
pub(crate) fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(at(bytes, offset))
}

/// The number of eight bytes at `offset`.
pub(crate) fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(at(bytes, offset))
}

fn broken(how: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, how)
}

/// Waits for the next message; `None` when the client has left between two.
pub(crate) fn receive(socket: &ClientFd) -> io::Result<Option<Message>> {
    let mut header = [0; HEADER_BYTES];
    let mut files = Vec::new();
    if !fill(socket, &mut header, &mut files)? {
        return Ok(None);
    }
    let (request, flags, bytes) = (u32_at(&header, 0), u32_at(&header, 4), u32_at(&header, 8));
    if flags & VERSION_MASK != VERSION || flags & REPLY != 0 || bytes > BODY_BYTES {
        return Err(broken("no message where one should start"));
    }
    let mut body = vec![0; bytes as usize];
    if bytes > 0 && !fill(socket, &mut body, &mut Vec::new())? {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(Some(Message { request, wants_reply: flags & WANTS_REPLY != 0, body, files }))
}

/// Receives all of `into`; false when the client left before the first byte.
fn fill(socket: &ClientFd, into: &mut [u8], files: &mut Vec<ClientFd>) -> io::Result<bool> {
    let mut filled = 0;
    while filled < into.len() {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut slices = [IoSliceMut::new(&mut into[filled..])];
        // Descriptors that come are taken in one step, which closes those for which there is no room.
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let mut receive = || briefly(|| recvmsg(socket, &mut slices, &mut control, flags));
        let received = match socket.wait().and_then(|_| receive()) {
            Err(rustix::io::Errno::INTR) => continue,
            received => received?.bytes,
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(came) = message {
                files.extend(came.map(ClientFd::brought));
            }
        }
        match received {
            0 if filled == 0 => return Ok(false),
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            received => filled += received,
        }
    }
    if files.len() > FILES {
        return Err(broken("a message with too many descriptors"));
    }
    Ok(true)
}

/// Answers a request, which may take as long as the socket's timeout allows.
pub(crate) fn answer(
    socket: &OwnedFd,
    request: u32,
    body: &[u8],
    file: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let message = [&header(request, VERSION | REPLY, body.len())[..], body].concat();
    send(socket, &message, file.as_slice(), SendFlags::NOSIGNAL)
}

/// Sends a message, with descriptors.
pub(crate) fn send(
    socket: &OwnedFd,
    message: &[u8],
    files: &[impl AsFd],
    flags: SendFlags,
) -> io::Result<()> {
    let mut sent = 0;
    while sent < message.len() {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let files: Vec<BorrowedFd<'_>> =
            files.iter().filter(|_| sent == 0).map(AsFd::as_fd).collect();
        if !files.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&files));
        }
        let slices = [IoSlice::new(&message[sent..])];
        match sendmsg(socket, &slices, &mut control, flags) {
            Err(rustix::io::Errno::INTR) => {}
            done => sent += done?,
        }
    }
    Ok(())
}

/// Says on the client's other socket that the configuration has changed. False when the client does
/// not take it now.
pub(crate) fn tell_of_change(socket: impl AsFd) -> bool {
    let message = header(CONFIG_CHANGE, VERSION, 0);
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::send(socket, &message, flags) == Ok(message.len())
}

fn header(request: u32, flags: u32, bytes: usize) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..4].copy_from_slice(&request.to_le_bytes());
    header[4..8].copy_from_slice(&flags.to_le_bytes());
    header[8..].copy_from_slice(&(bytes as u32).to_le_bytes());
    header
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn client_fd(socket: UnixStream) -> ClientFd {
        ClientFd::of_socket(socket.into(), false)
    }

    fn received(bytes: &[u8]) -> io::Result<Option<Message>> {
        let (mut client, server) = UnixStream::pair().unwrap();
        client.write_all(bytes).unwrap();
        drop(client);
        receive(&client_fd(server))
    }

    #[test]
    fn messages_are_taken_whole_or_refused() {
        assert!(received(&[]).unwrap().is_none());
        assert!(received(&[1; 11]).is_err(), "half a header");
        assert!(received(&header(1, VERSION | REPLY, 0)).is_err(), "an answer");
        assert!(received(&header(1, 2, 0)).is_err(), "another version");
        assert!(received(&header(1, VERSION, 5000)).is_err(), "too long");
        assert!(received(&header(1, VERSION, 8)).is_err(), "no body");
        let whole = [&header(10, VERSION | WANTS_REPLY, 8)[..], &[1, 0, 0, 0, 7, 0, 0, 0]].concat();
        let message = received(&whole).unwrap().unwrap();
        assert_eq!((message.request, message.wants_reply), (10, true));
        assert_eq!(message.state(), Ok((1, 7)));
        assert!(message.exactly::<12>().is_err() && message.number().is_ok());
    }

    #[test]
    fn descriptors_come_with_the_header() {
        let (client, server) = UnixStream::pair().unwrap();
        answer(&client.into(), 32, &[7; 20], Some(server.as_fd())).unwrap();
        // An answer is no message of a client; its descriptor came all the same, and was closed.
        assert!(receive(&client_fd(server)).is_err());
    }

    #[test]
    fn a_client_that_takes_nothing_is_not_waited_for() {
        let (client, server) = UnixStream::pair().unwrap();
        let server = OwnedFd::from(server);
        assert!(tell_of_change(&server));
        while tell_of_change(&server) {}
        drop(client);
        assert!(!tell_of_change(&server));
    }
}
