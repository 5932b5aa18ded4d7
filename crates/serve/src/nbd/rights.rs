//! The identity of a connection's peer, and the volumes that this peer may use (rules 12 and 13 of
//! SECURITY.md).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use onefold_core::{Error, Exports, Kind, Result, Volume, VolumeInfo};
use rustix::net::{AddressFamily, sockopt};

use crate::tls::Identity;

/// The user as whom every user of another user namespace appears.
const OVERFLOW_UID: u32 = 65_534;

/// The peer at the other end of a connection, as far as the system knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Peer {
    /// A user of this machine, over a UNIX socket.
    User(u32),
    /// A machine, over TCP. Of an IPv6 address these are the first 64 bits: the rest, its user
    /// chooses. All loopback addresses are one.
    Address(IpAddr),
    /// Whoever has the key of a certificate, over TLS.
    Certificate(Identity),
    /// Somebody whom the system does not know.
    Unknown,
}

impl Peer {
    /// The peer of a connected socket.
    pub(crate) fn of(socket: &OwnedFd) -> Peer {
        if sockopt::socket_domain(socket) != Ok(AddressFamily::UNIX) {
            let address = rustix::net::getpeername(socket).ok().flatten();
            let address = address.and_then(|address| SocketAddr::try_from(address).ok());
            return address.map_or(Peer::Unknown, |address| Peer::at(address.ip()));
        }
        match sockopt::socket_peercred(socket).map(|credentials| credentials.uid.as_raw()) {
            Ok(uid) if uid != OVERFLOW_UID => Peer::User(uid),
            _ => Peer::Unknown,
        }
    }

    /// The peer at an address.
    #[must_use]
    pub fn at(address: IpAddr) -> Peer {
        match address.to_canonical() {
            // Any user of this machine may choose among these.
            address if address.is_loopback() => Peer::Address(Ipv4Addr::LOCALHOST.into()),
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                Peer::Address(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into())
            }
            address => Peer::Address(address),
        }
    }
}

/// The right of a peer to a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Right {
    /// Nothing: the peer does not learn that the volume exists.
    Nothing,
    /// Read it.
    Read,
    /// Read and change it.
    Write,
}

/// Decides what peers may do.
pub trait Rights: Send + Sync {
    /// The right of `peer` to the volume called `volume`, whether that volume exists or not.
    fn right(&self, peer: Peer, volume: &str) -> Right;

    /// False when no volume, whatever its name, is the peer's.
    fn knows(&self, _: Peer) -> bool {
        true
    }

    /// Whether a peer that showed a certificate may see the pages of the server, with all that the
    /// store holds.
    fn sees_pages(&self, _: Peer) -> bool {
        false
    }
}

/// Every client that reaches the server may do everything.
pub(crate) struct Everything;

impl Rights for Everything {
    fn right(&self, _: Peer, _: &str) -> Right {
        Right::Write
    }
}

/// The volumes, as one peer sees them.
#[derive(Clone, Copy)]
pub(crate) struct Offer<'a> {
    pub(crate) exports: &'a dyn Exports,
    pub(crate) rights: &'a dyn Rights,
    pub(crate) peer: Peer,
    /// Hears the name of each volume that the peer asked for and did not get.
    pub(crate) refused: &'a dyn Fn(&str),
}

impl Offer<'_> {
    /// The volumes that the peer may open.
    pub(crate) fn list(&self) -> Vec<VolumeInfo> {
        if !self.rights.knows(self.peer) {
            return Vec::new();
        }
        let mut all = self.exports.list();
        all.retain(|volume| self.rights.right(self.peer, &volume.name) > Right::Nothing);
        all
    }

    /// A volume, and whether the peer may change it. One that the peer has no right to answers as
    /// one that is not there.
    pub(crate) fn open(&self, name: &str) -> Result<(Arc<dyn Volume>, bool)> {
        let missing = || {
            Error::new(
                Kind::NotFound,
                format!("there is no volume '{}' for you", name.escape_debug()),
            )
        };
        let right = self.rights.right(self.peer, name);
        let opened = match right {
            Right::Nothing => Err(missing()),
            _ => match self.exports.open(name) {
                Err(error) if error.kind() == Kind::NotFound => Err(missing()),
                opened => opened.map(|volume| (volume, right == Right::Write)),
            },
        };
        if opened.is_err() {
            (self.refused)(name);
        }
        opened
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_12_addresses_of_one_network_are_one_peer() {
        let at = |text: &str| Peer::at(text.parse().unwrap());
        assert_eq!(at("2001:db8:1:2:3:4:5:6"), at("2001:db8:1:2::9"));
        assert_ne!(at("2001:db8:1:2::9"), at("2001:db8:1:3::9"));
        assert_eq!(at("::ffff:10.0.0.1"), at("10.0.0.1"));
        assert_ne!(at("10.0.0.1"), at("10.0.0.2"));
        assert_eq!((at("127.0.0.1"), at("127.0.0.1")), (at("127.77.0.9"), at("::1")));
    }

    #[test]
    fn peers_are_known_by_their_sockets() {
        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert_eq!(Peer::of(&one.into()), Peer::User(rustix::process::geteuid().as_raw()));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert_eq!(Peer::of(&client.into()), Peer::Address("127.0.0.1".parse().unwrap()));
    }
}
