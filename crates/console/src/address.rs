//! Where clients connect: as it is written in options, and as clients type it.

use std::{
    fmt,
    net::{SocketAddr, TcpListener},
    os::{fd::OwnedFd, unix::net::UnixListener},
    path::{Path, PathBuf},
    str::FromStr,
};

use onefold_backend::{accounts, systemd::Socket};
use onefold_core::{Error, Kind};
use onefold_serve::nbd::Reach;

use crate::failure::Failure;

/// An address to listen on; shown as the URI that clients type, without a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A UNIX socket, and who can connect to it.
    Unix(PathBuf, Door),
    /// A TCP port.
    Tcp(SocketAddr),
}

/// The users who can connect to a UNIX socket, as written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Door {
    mode: Option<u32>,
    group: Option<String>,
}

impl Door {
    /// The same with the number of the group.
    ///
    /// # Errors
    /// `InvalidInput` when there is no such group.
    pub fn reach(&self) -> Result<Reach, Error> {
        let number = |name: &String| {
            let missing = || {
                Error::new(
                    Kind::InvalidInput,
                    format!("there is no group '{name}' on this machine"),
                )
            };
            accounts::group(name)?.ok_or_else(missing)
        };
        Ok(Reach {
            mode: self.mode.unwrap_or(Reach::default().mode),
            group: self.group.as_ref().map(number).transpose()?,
        })
    }
}

impl FromStr for Address {
    type Err = Error;

    fn from_str(text: &str) -> Result<Address, Error> {
        let wrong = || {
            let text = "an address is unix:PATH, unix:PATH,mode=0660,group=kvm or \
                        tcp:ADDRESS:PORT, like tcp:127.0.0.1:10809";
            Error::new(Kind::InvalidInput, text)
        };
        match text.split_once(':') {
            Some(("unix", text)) => match with_door(text)? {
                (path, door) if !path.is_empty() => Ok(Address::Unix(path.into(), door)),
                _ => Err(wrong()),
            },
            Some(("tcp", address)) => {
                let numeric = address.replacen("localhost:", "127.0.0.1:", 1);
                numeric.parse().map(Address::Tcp).map_err(|_| wrong())
            }
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path, _) => {
                write!(f, "nbd+unix:///?socket={}", escaped(&path.to_string_lossy(), true))
            }
            Address::Tcp(address) => write!(f, "nbd://{address}/"),
        }
    }
}

/// A path, and behind it who can connect.
fn with_door(text: &str) -> Result<(&str, Door), Error> {
    let (mut path, mut door) = (text, Door::default());
    while let Some((before, last)) = path.rsplit_once(',') {
        let wrong = || {
            Error::new(
                Kind::InvalidInput,
                format!("'{last}' is no mode of a socket, like mode=0660"),
            )
        };
        match last.split_once('=') {
            Some(("mode", octal)) => {
                let mode = u32::from_str_radix(octal, 8).ok().filter(|mode| *mode <= 0o777);
                door.mode = Some(mode.ok_or_else(wrong)?);
            }
            Some(("group", name)) => door.group = Some(name.to_owned()),
            _ => break,
        }
        path = before;
    }
    Ok((path, door))
}

/// Refuses addresses that are not UNIX sockets, unless they are `guarded` or it is insisted on: any
/// user of this machine reaches even those of the loopback interface. `how` says what there is to do.
pub fn let_in(
    addresses: &[Address],
    sockets: &[Socket],
    guarded: bool,
    how: &str,
) -> Result<(), Failure> {
    if guarded || !are_of_network(addresses, sockets) {
        return Ok(());
    }
    let of_option = addresses.iter().find_map(|address| match address {
        Address::Unix(..) => None,
        Address::Tcp(address) => Some(format!("tcp:{address}")),
    });
    let handed_over = || {
        sockets
            .iter()
            .find(|socket| socket.is_of_network())
            .map(|socket| format!("the socket {}", of_socket(&socket.fd)))
    };
    match of_option.or_else(handed_over) {
        None => Ok(()),
        Some(open) => {
            Err(Failure::usage(format!("{open} lets in everybody who can reach it: {how}")))
        }
    }
}

/// True when any of these is no UNIX socket.
pub fn are_of_network(addresses: &[Address], sockets: &[Socket]) -> bool {
    addresses.iter().any(|address| matches!(address, Address::Tcp(_)))
        || sockets.iter().any(Socket::is_of_network)
}

/// The URI of a listener, by TLS if it is of a network and has it.
pub fn by_tls(listener: &str, tls: bool) -> String {
    match listener.strip_prefix("nbd://") {
        Some(rest) if tls => format!("nbds://{rest}"),
        _ => listener.to_owned(),
    }
}

/// The URI of a volume at a listener's URI.
pub fn uri(listener: &str, volume: &str) -> String {
    let volume = escaped(volume, false);
    match listener.split_once('?') {
        Some((before, socket)) => format!("{before}{volume}?{socket}"),
        None => format!("{listener}{volume}"),
    }
}

/// Text as it may stand in a URI; slashes are kept in paths.
fn escaped(text: &str, path: bool) -> String {
    let plain = |byte: u8| {
        byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || (path && byte == b'/')
    };
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

/// The address of a socket that listens already.
pub fn of_socket(socket: &OwnedFd) -> String {
    let of_unix = || {
        UnixListener::from(socket.try_clone().ok()?)
            .local_addr()
            .ok()?
            .as_pathname()
            .map(Path::to_owned)
    };
    let of_tcp = || TcpListener::from(socket.try_clone().ok()?).local_addr().ok();
    let address = of_unix()
        .map(|path| Address::Unix(path, Door::default()))
        .or_else(|| of_tcp().map(Address::Tcp));
    address
        .map_or_else(|| "a socket of the service manager".to_owned(), |address| address.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_written_and_shown() {
        let shown = |text: &str| text.parse::<Address>().map(|address| address.to_string());
        assert_eq!(shown("unix:/run/a b.sock").unwrap(), "nbd+unix:///?socket=/run/a%20b.sock");
        assert_eq!(shown("tcp:127.0.0.1:10809").unwrap(), "nbd://127.0.0.1:10809/");
        assert_eq!(shown("tcp:localhost:1").unwrap(), "nbd://127.0.0.1:1/");
        assert_eq!(shown("tcp:[::1]:10809").unwrap(), "nbd://[::1]:10809/");
        assert_eq!(
            shown("unix:/run/a,b.sock,group=0,mode=0660").unwrap(),
            "nbd+unix:///?socket=/run/a%2Cb.sock"
        );
        let reach = |text: &str| match text.parse() {
            Ok(Address::Unix(_, door)) => door.reach().map_err(|error| error.to_string()),
            other => panic!("{other:?}"),
        };
        assert_eq!(reach("unix:a,mode=0660,group=root"), Ok(Reach { mode: 0o660, group: Some(0) }));
        assert_eq!(reach("unix:a"), Ok(Reach { mode: 0o600, group: None }));
        assert!(reach("unix:a,group=nobody has it").is_err());
        for wrong in [
            "unix:a,mode=1777",
            "unix:a,mode=rw",
            "unix:,mode=0600",
            "",
            "unix:",
            "tcp:",
            "tcp:10809",
            "tcp:host:1",
            "/run/a.sock",
            "udp:127.0.0.1:1",
            "tcp:127.0.0.1:70000",
        ] {
            assert!(shown(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn volumes_stand_in_uris() {
        assert_eq!(
            uri("nbd+unix:///?socket=/run/a.sock", "vm 1/ä"),
            "nbd+unix:///vm%201%2F%C3%A4?socket=/run/a.sock"
        );
        assert_eq!(uri("nbd://127.0.0.1:10809/", "vm1"), "nbd://127.0.0.1:10809/vm1");
    }
}
