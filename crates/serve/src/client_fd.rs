//! Descriptors with which clients came, and those that they brought along.
//!
//! *Invariant.* Whatever a client did to one, a thread that receives from it or closes it goes on after a
//! moment.

use std::io::IoSliceMut;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, ReturnFlags, recv, recvmsg};

use crate::brief::{Within, briefly, within};
use crate::farewell::{self, Closes};
use crate::system;

/// A descriptor of a client's. Use it as the descriptor that it is, but receive by its methods.
pub(crate) struct ClientFd {
    descriptor: OwnedFd,
    kind: Kind,
    /// Set when the descriptor is to be closed, which happens before: fields go in their order.
    _closes: Closing,
}

/// What keeps a close from waiting.
enum Closing {
    Unaided,
    /// Another one has the last reference.
    Handed(#[allow(dead_code, reason = "its end is what tells")] Closes),
    /// It is interrupted.
    Watched(#[allow(dead_code, reason = "its end is what tells")] Option<Within>),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Nothing else can be closed with it, and that takes no time.
    Plain,
    /// A UNIX socket in which descriptors may wait to be received.
    Laden,
    /// Something that the client chose.
    Brought,
}

impl ClientFd {
    /// A socket by which a client came; over a network nobody sends descriptors.
    pub(crate) fn of_socket(socket: OwnedFd, of_network: bool) -> ClientFd {
        let laden = !of_network && system::may_have_descriptors(&socket);
        ClientFd::new(socket, if laden { Kind::Laden } else { Kind::Plain })
    }

    /// A descriptor that a client sent.
    pub(crate) fn brought(descriptor: OwnedFd) -> ClientFd {
        ClientFd::new(descriptor, Kind::Brought)
    }

    fn new(descriptor: OwnedFd, kind: Kind) -> ClientFd {
        ClientFd { descriptor, kind, _closes: Closing::Unaided }
    }

    /// The descriptor itself, of which its caller has found that closing it takes no time.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn harmless(mut self) -> rustix::io::Result<OwnedFd> {
        let own = rustix::io::fcntl_dupfd_cloexec(&self.descriptor, 0)?;
        self.kind = Kind::Plain;
        Ok(own)
    }

    /// Receives the bytes that have come, without waiting.
    ///
    /// # Errors
    /// `AGAIN` when there are none, and `PERM` when a descriptor came along.
    pub(crate) fn receive_now(&self, into: &mut [u8]) -> rustix::io::Result<usize> {
        if self.kind == Kind::Plain {
            return recv(&self.descriptor, into, RecvFlags::DONTWAIT).map(|(received, _)| received);
        }
        // A descriptor for which there is no room is closed.
        let mut nowhere = RecvAncillaryBuffer::default();
        let (mut slices, flags) = ([IoSliceMut::new(into)], RecvFlags::DONTWAIT);
        let received = briefly(|| recvmsg(&self.descriptor, &mut slices, &mut nowhere, flags))?;
        match received.flags.contains(ReturnFlags::CTRUNC) {
            true => Err(Errno::PERM),
            false => Ok(received.bytes),
        }
    }

    /// Receives bytes, and waits for them for as long as the socket's timeout allows.
    ///
    /// # Errors
    /// As [`receive_now`](ClientFd::receive_now).
    pub(crate) fn receive(&self, into: &mut [u8]) -> rustix::io::Result<usize> {
        if self.kind == Kind::Plain {
            return recv(&self.descriptor, into, RecvFlags::empty()).map(|(received, _)| received);
        }
        match self.wait()? {
            true => self.receive_now(into),
            false => Ok(0),
        }
    }

    /// Waits until there is something to receive, and leaves it there; false when nothing comes any
    /// more.
    ///
    /// # Errors
    /// As [`receive`](ClientFd::receive).
    pub(crate) fn wait(&self) -> rustix::io::Result<bool> {
        // Descriptors stay where they are, so that none is closed.
        recv(&self.descriptor, &mut [0; 1], RecvFlags::PEEK).map(|(received, _)| received > 0)
    }
}

impl Deref for ClientFd {
    type Target = OwnedFd;

    fn deref(&self) -> &OwnedFd {
        &self.descriptor
    }
}

impl AsFd for ClientFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Drop for ClientFd {
    fn drop(&mut self) {
        let handed = match self.kind {
            Kind::Plain => return,
            Kind::Laden => farewell::take_over(&self.descriptor),
            Kind::Brought => None,
        };
        self._closes = handed.map_or_else(|| Closing::Watched(within()), Closing::Handed);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{IoSlice, Write};
    use std::mem::MaybeUninit;
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;
    use std::time::{Duration, Instant};

    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg, sockopt};

    use super::*;

    /// A socket whose last close waits, and its peer.
    fn lingering() -> (OwnedFd, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (peer, _) = listener.accept().unwrap();
        socket.set_nonblocking(true).unwrap();
        while socket.write(&[0; 64 << 10]).is_ok() {}
        sockopt::set_socket_linger(&socket, Some(Duration::from_secs(600))).unwrap();
        (socket.into(), peer)
    }

    fn send(stream: &UnixStream, descriptor: OwnedFd) {
        let descriptors = [descriptor.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
        sendmsg(stream, &[IoSlice::new(b"x")], &mut control, SendFlags::empty()).unwrap();
    }

    #[test]
    fn rule_12_a_socket_with_a_descriptor_in_it_is_closed_at_once() {
        farewell::prepare();
        // So deep that a limit on sockets within sockets would show.
        for depth in 0..8 {
            let (mut inner, _peer) = lingering();
            for _ in 0..depth {
                let (near, far) = UnixStream::pair().unwrap();
                send(&near, inner);
                inner = far.into();
            }
            let (client, server) = UnixStream::pair().unwrap();
            send(&client, inner);
            let socket = ClientFd::of_socket(server.into(), false);
            assert!(socket.kind == Kind::Laden);
            let (began, other) = (Instant::now(), farewell::take_over(&socket));
            assert!(other.is_some(), "there is a thread that closes");
            drop(socket);
            drop(other);
            assert!(began.elapsed() < Duration::from_millis(45), "{:?}", began.elapsed());
        }
    }

    #[test]
    fn rule_12_what_cannot_be_handed_over_is_closed_after_a_moment() {
        let (socket, _peer) = lingering();
        let began = Instant::now();
        drop(ClientFd::brought(socket));
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    }

    #[test]
    fn rule_12_who_sends_a_descriptor_is_not_heard() {
        let (client, server) = UnixStream::pair().unwrap();
        let socket = ClientFd::of_socket(server.into(), false);
        let mut bytes = [0; 4];
        assert_eq!(socket.receive_now(&mut bytes), Err(Errno::AGAIN));
        (&client).write_all(b"ab").unwrap();
        assert!(socket.wait().unwrap());
        assert_eq!((socket.receive(&mut bytes), &bytes[..2]), (Ok(2), &b"ab"[..]));
        let (lingers, _peer) = lingering();
        send(&client, lingers);
        let began = Instant::now();
        assert_eq!(socket.receive(&mut bytes), Err(Errno::PERM));
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
        drop(client);
        assert_eq!((socket.receive(&mut bytes), socket.wait()), (Ok(0), Ok(false)));
    }
}
