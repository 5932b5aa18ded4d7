//! Where the volume is that is recorded: an NBD URI, or a socket.

use std::{fmt, path::PathBuf, str::FromStr};

use onefold_core::{Error, Kind, Result};

/// NBD's port.
const PORT: u16 = 10809;

/// How a server is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A UNIX socket.
    Unix(PathBuf),
    /// A host and its port.
    Tcp(String, u16),
}

/// A volume of an NBD server: `nbd+unix:///volume?socket=PATH`, `nbd://host:port/volume`,
/// `unix:PATH`, or the path of a socket alone, which stands for the server's default volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Its server.
    pub place: Place,
    /// Its name; empty for the default.
    pub volume: String,
}

impl FromStr for Address {
    type Err = Error;

    fn from_str(text: &str) -> Result<Address> {
        let wrong = || {
            let known =
                "nbd+unix:///VOLUME?socket=PATH, nbd://HOST:PORT/VOLUME, or the path of a socket";
            Error::new(
                Kind::InvalidInput,
                format!("'{text}' is no NBD volume; it looks like {known}"),
            )
        };
        if let Some(rest) = text.strip_prefix("nbd+unix://") {
            let (path, query) = rest.split_once('?').ok_or_else(wrong)?;
            let socket = query
                .split('&')
                .find_map(|pair| pair.strip_prefix("socket="))
                .filter(|path| !path.is_empty())
                .ok_or_else(wrong)?;
            let volume = path.strip_prefix('/').ok_or_else(wrong)?;
            let place = Place::Unix(plain(socket).ok_or_else(wrong)?.into());
            return Ok(Address { place, volume: plain(volume).ok_or_else(wrong)? });
        }
        if let Some(rest) = text.strip_prefix("nbd://") {
            let (authority, volume) = rest.split_once('/').unwrap_or((rest, ""));
            // An IPv6 address stands in brackets.
            let end = authority.rfind(']').map_or(0, |end| end + 1);
            let (host, port) = match authority[end..].rsplit_once(':') {
                Some((before, port)) => {
                    (&authority[..end + before.len()], port.parse().map_err(|_| wrong())?)
                }
                None => (authority, PORT),
            };
            let host = host.trim_start_matches('[').trim_end_matches(']');
            if host.is_empty() || volume.contains('?') {
                return Err(wrong());
            }
            return Ok(Address {
                place: Place::Tcp(host.to_owned(), port),
                volume: plain(volume).ok_or_else(wrong)?,
            });
        }
        let path = text.strip_prefix("unix:").unwrap_or(text);
        if path.is_empty() || path.contains("://") {
            return Err(wrong());
        }
        Ok(Address { place: Place::Unix(path.into()), volume: String::new() })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::Unix(path) => write!(f, "volume '{}' at {}", self.volume, path.display()),
            Place::Tcp(host, port) => write!(f, "volume '{}' at {host}:{port}", self.volume),
        }
    }
}

/// Text whose `%XX` are bytes again.
fn plain(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&first, others)) = rest.split_first() {
        rest = others;
        if first != b'%' {
            bytes.push(first);
            continue;
        }
        let (digits, others) = others.split_at_checked(2)?;
        let digits = std::str::from_utf8(digits)
            .ok()
            .filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = others;
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_are_named_as_people_do() {
        let unix = |path: &str, volume: &str| Address {
            place: Place::Unix(path.into()),
            volume: volume.into(),
        };
        let tcp = |host: &str, port, volume: &str| Address {
            place: Place::Tcp(host.into(), port),
            volume: volume.into(),
        };
        for (text, address) in [
            ("nbd+unix:///vm1?socket=/run/a.sock", unix("/run/a.sock", "vm1")),
            ("nbd+unix:///a%20b%2Fc?socket=/run/x%20y", unix("/run/x y", "a b/c")),
            ("nbd+unix:///?socket=a", unix("a", "")),
            ("nbd://localhost/v", tcp("localhost", 10809, "v")),
            ("nbd://127.0.0.1:7", tcp("127.0.0.1", 7, "")),
            ("nbd://[::1]:7/v/w", tcp("::1", 7, "v/w")),
            ("nbd://[::1]/", tcp("::1", 10809, "")),
            ("unix:/run/a.sock", unix("/run/a.sock", "")),
            ("a.sock", unix("a.sock", "")),
        ] {
            assert_eq!(text.parse::<Address>().unwrap(), address, "{text}");
        }
        for wrong in [
            "",
            "unix:",
            "nbd+unix:///v",
            "nbd+unix:///v?socket=",
            "nbd+unix:///%zz?socket=a",
            "nbd://",
            "nbd://a:b/v",
            "nbds://a/v",
        ] {
            assert!(wrong.parse::<Address>().is_err(), "{wrong}");
        }
    }
}
