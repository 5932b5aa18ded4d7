//! The file of `serve --access FILE`: which peers may use which volumes (rule 13 of SECURITY.md).
//!
//! A line is a peer, a right and volumes: `user:libvirt-qemu write vm-*`. The most that any line
//! gives a peer counts. `client:prometheus pages` lets a certificate see the pages of the server.

use std::{
    collections::HashMap,
    net::IpAddr,
    path::{Path, PathBuf},
    str::FromStr,
};

use onefold_backend::{accounts, peer::own_uid, settings_file};
use onefold_core::{Error, Kind, Result};
use onefold_serve::{
    nbd::{Peer, Right, Rights},
    tls::{CLIENT, Identity},
};
use parking_lot::RwLock;

/// Lines at most: more is no list that a person keeps.
const LINES_MAX: usize = 65_536;

/// Bytes of the file at most.
const FILE_BYTES_MAX: u64 = 32 << 20;

/// Lines with patterns for one peer at most: each name that it asks for is compared with each.
const PATTERNS_MAX: usize = 1024;

/// The file, which may be read again while the server works.
pub struct Access {
    path: PathBuf,
    lines: RwLock<Lines>,
}

/// The content of the file, by peer.
#[derive(Debug, Default)]
pub struct Lines(HashMap<Peer, Given>);

/// The rights that the lines of one peer give it.
#[derive(Debug, Default)]
struct Given {
    /// Volumes by their names.
    named: HashMap<String, Right>,
    /// Names with `*` or `?`.
    patterns: Vec<(String, Right)>,
    /// The pages of the server.
    pages: bool,
}

struct Line {
    peer: Peer,
    gives: Gives,
}

enum Gives {
    Volumes(Right, String),
    Pages,
}

/// Without a file: the user of the server and root may do everything, and so may everybody who
/// reaches a TCP address that was insisted on.
pub struct Usual {
    own_uid: u32,
}

impl Default for Usual {
    fn default() -> Usual {
        Usual { own_uid: own_uid() }
    }
}

impl Rights for Usual {
    fn right(&self, peer: Peer, _: &str) -> Right {
        match peer {
            Peer::User(0) | Peer::Address(_) => Right::Write,
            Peer::User(user) if user == self.own_uid => Right::Write,
            _ => Right::Nothing,
        }
    }

    fn knows(&self, peer: Peer) -> bool {
        self.right(peer, "") > Right::Nothing
    }
}

impl Access {
    /// Reads the file.
    ///
    /// # Errors
    /// `Io`, and `InvalidInput` with the number of a line that makes no sense.
    pub fn read(path: &Path) -> Result<Access> {
        let lines = RwLock::new(Lines::read(path)?);
        Ok(Access { path: path.to_owned(), lines })
    }

    /// The content of the file as it is now.
    ///
    /// # Errors
    /// As [`read`](Access::read).
    pub fn read_again(&self) -> Result<Lines> {
        Lines::read(&self.path)
    }

    /// From now on these lines count.
    pub fn replace(&self, lines: Lines) {
        *self.lines.write() = lines;
    }
}

impl Lines {
    fn read(path: &Path) -> Result<Lines> {
        let text =
            settings_file(path, FILE_BYTES_MAX).map_err(|error| error.context(path.display()))?;
        text.parse().map_err(|error: Error| error.context(path.display()))
    }
}

impl FromStr for Lines {
    type Err = Error;

    fn from_str(text: &str) -> Result<Lines> {
        let lines = text
            .lines()
            .enumerate()
            .filter(|(_, line)| !line.trim().is_empty() && !line.trim_start().starts_with('#'));
        let mut access = Lines::default();
        for (count, (n, line)) in lines.enumerate() {
            let wrong = |error: Error| error.context(format!("line {}", n + 1));
            if count == LINES_MAX {
                return Err(wrong(Error::new(
                    Kind::InvalidInput,
                    format!("there are more than {LINES_MAX} lines"),
                )));
            }
            access.give(Line::read(line).map_err(wrong)?).map_err(wrong)?;
        }
        Ok(access)
    }
}

impl Lines {
    fn give(&mut self, Line { peer, gives }: Line) -> Result<()> {
        let given = self.0.entry(peer).or_default();
        let (right, volumes) = match gives {
            Gives::Volumes(right, volumes) => (right, volumes),
            Gives::Pages => {
                given.pages = true;
                return Ok(());
            }
        };
        if !volumes.contains(['*', '?']) {
            let named = given.named.entry(volumes).or_insert(right);
            *named = right.max(*named);
        } else if given.patterns.len() < PATTERNS_MAX {
            given.patterns.push((volumes, right));
        } else {
            return Err(Error::new(
                Kind::InvalidInput,
                format!("a peer has {PATTERNS_MAX} patterns at most"),
            ));
        }
        Ok(())
    }
}

impl Line {
    fn read(line: &str) -> Result<Line> {
        let wrong = |text: String| Error::new(Kind::InvalidInput, text);
        let words: Vec<&str> = line.split_whitespace().collect();
        let (peer, right, volumes) = match words[..] {
            [peer, "pages"] => {
                let peer = peer_of(peer)?;
                return match peer {
                    Peer::Certificate(_) => Ok(Line { peer, gives: Gives::Pages }),
                    _ => Err(wrong(
                        "'pages' is a right of certificates; a socket shows pages to whom its mode \
                         lets in"
                            .to_owned(),
                    )),
                };
            }
            [peer, right, volumes] => (peer, right, volumes),
            _ => {
                return Err(wrong(
                    "a line is a peer, a right and volumes, like 'user:libvirt-qemu write vm-*', or \
                     a certificate that may see the pages, like 'client:prometheus pages'"
                        .to_owned(),
                ));
            }
        };
        let right = match right {
            "read" => Right::Read,
            "write" => Right::Write,
            other => {
                return Err(wrong(format!("'{other}' is no right; they are 'read' and 'write'")));
            }
        };
        Ok(Line { peer: peer_of(peer)?, gives: Gives::Volumes(right, volumes.to_owned()) })
    }
}

fn peer_of(text: &str) -> Result<Peer> {
    let wrong = || {
        Error::new(
            Kind::InvalidInput,
            format!(
                "'{text}' is no peer; a peer is user:NAME, uid:NUMBER, addr:ADDRESS, client:NAME, \
                 dns:NAME or sha256:DIGITS of a certificate"
            ),
        )
    };
    match text.split_once(':') {
        Some(("uid", number)) => number.parse().map(Peer::User).map_err(|_| wrong()),
        Some(("user", name)) => {
            let missing = || {
                Error::new(Kind::InvalidInput, format!("there is no user '{name}' on this machine"))
            };
            accounts::user(name)?.map(Peer::User).ok_or_else(missing)
        }
        Some(("addr", address)) => address.parse::<IpAddr>().map(Peer::at).map_err(|_| wrong()),
        Some(("client", name)) if !name.is_empty() => {
            Ok(Peer::Certificate(Identity::named(&[CLIENT, name].concat())))
        }
        Some(("dns", name)) if !name.is_empty() => {
            Ok(Peer::Certificate(Identity::named(&format!("dns:{}", name.to_ascii_lowercase()))))
        }
        Some(("sha256", digits)) => {
            // As `openssl x509 -fingerprint` shows them, with colons, or without.
            let digits = digits.replace(':', "").to_ascii_lowercase();
            match digits.len() == 64 && digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                true => Ok(Peer::Certificate(Identity::named(&format!("sha256:{digits}")))),
                false => Err(wrong()),
            }
        }
        _ => Err(wrong()),
    }
}

impl Rights for Access {
    fn right(&self, peer: Peer, volume: &str) -> Right {
        self.lines.read().right(peer, volume)
    }

    fn knows(&self, peer: Peer) -> bool {
        self.lines.read().knows(peer)
    }

    fn sees_pages(&self, peer: Peer) -> bool {
        self.lines.read().0.get(&peer).is_some_and(|given| given.pages)
    }
}

impl Lines {
    /// The most that any line gives a peer on a volume.
    #[must_use]
    pub fn right(&self, peer: Peer, volume: &str) -> Right {
        let Some(given) = self.0.get(&peer) else { return Right::Nothing };
        let patterns = given
            .patterns
            .iter()
            .filter(|(pattern, _)| matches(pattern.as_bytes(), volume.as_bytes()));
        patterns
            .map(|(_, right)| *right)
            .chain(given.named.get(volume).copied())
            .max()
            .unwrap_or(Right::Nothing)
    }

    /// True when a line names the peer.
    #[must_use]
    pub fn knows(&self, peer: Peer) -> bool {
        self.0.contains_key(&peer)
    }
}

/// Whether a name is one of a pattern, in which `*` stands for any bytes and `?` for one.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    // Where the last star was, and the name behind what it stands for; when what follows does not
    // fit, it stands for one byte more.
    let (mut p, mut n, mut star) = (0, 0, None);
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(&byte) if byte == b'?' || byte == name[n] => (p, n) = (p + 1, n + 1),
            _ => match star {
                Some((at, behind)) => {
                    star = Some((at, behind + 1));
                    (p, n) = (at + 1, behind + 1);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_13_peers_have_what_the_lines_give_them() {
        let text = "# who\n\nuid:61234 write vm-*\nuid:61234 read *\n user:root write \
                    a?c\naddr:10.0.0.1 read backup\naddr:2001:db8::1 write x\n";
        let access: Lines = text.parse().unwrap();
        let right = |peer, volume| access.right(peer, volume);
        assert_eq!(right(Peer::User(61_234), "vm-1"), Right::Write);
        assert_eq!(right(Peer::User(61_234), "other"), Right::Read);
        assert_eq!(
            (right(Peer::User(0), "abc"), right(Peer::User(0), "ac")),
            (Right::Write, Right::Nothing)
        );
        let at = |text: &str| Peer::at(text.parse().unwrap());
        assert_eq!(
            (right(at("10.0.0.1"), "backup"), right(at("10.0.0.2"), "backup")),
            (Right::Read, Right::Nothing)
        );
        assert_eq!(right(at("2001:db8::9"), "x"), Right::Write);
        assert_eq!(right(Peer::Unknown, "vm-1"), Right::Nothing);
        assert!(
            access.knows(Peer::User(0))
                && !access.knows(Peer::User(4))
                && !access.knows(at("10.0.0.2"))
        );
        for (wrong, why) in [
            ("uid:1 write", "line 1"),
            ("\nuid:x write *", "line 2"),
            ("uid:1 own *", "'own' is no right"),
            ("user:no-such-user read *", "no user"),
            ("group:kvm read *", "is no peer"),
            ("addr:host read *", "is no peer"),
            ("client: read *", "is no peer"),
            ("sha256:12 read *", "is no peer"),
            ("uid:1 pages", "'pages' is a right of certificates"),
        ] {
            let error = wrong.parse::<Lines>().unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn rule_39_certificates_are_named_by_their_kind() {
        let digits = "AB:".repeat(31) + "AB";
        let text = format!(
            "client:vm-host write vm-*\ndns:Backup.Example read *\nsha256:{digits} read \
             x\nclient:prometheus pages\n"
        );
        let lines = RwLock::new(text.parse().unwrap());
        let access = Access { path: PathBuf::new(), lines };
        let named = |name: &str| Peer::Certificate(Identity::named(name));
        let right = |name: &str, volume| access.right(named(name), volume);
        assert_eq!(right("onefold:client/vm-host", "vm-1"), Right::Write);
        assert_eq!(right("dns:vm-host", "vm-1"), Right::Nothing);
        assert_eq!(right("dns:backup.example", "vm-1"), Right::Read);
        assert_eq!(right(&format!("sha256:{}", "ab".repeat(32)), "x"), Right::Read);
        assert_eq!(right("onefold:client/prometheus", "x"), Right::Nothing);
        let sees = |name: &str| access.sees_pages(named(name));
        assert!(sees("onefold:client/prometheus") && !sees("onefold:client/vm-host"));
    }

    #[test]
    fn rule_13_without_a_file_the_servers_user_and_root_have_everything() {
        let usual = Usual { own_uid: 1000 };
        let right = |peer| usual.right(peer, "any");
        assert!(
            [Peer::User(0), Peer::User(1000), Peer::at("::1".parse().unwrap())]
                .map(right)
                .iter()
                .all(|right| *right == Right::Write)
        );
        assert!(
            [Peer::User(61_234), Peer::Unknown]
                .map(right)
                .iter()
                .all(|right| *right == Right::Nothing)
        );
    }

    #[test]
    fn patterns_match_whole_names() {
        for (pattern, name) in [
            ("*", ""),
            ("*", "a"),
            ("a*c*", "abcbc"),
            ("?", "x"),
            ("*a*b", "aab"),
            ("vm", "vm"),
            ("**", "z"),
        ] {
            assert!(matches(pattern.as_bytes(), name.as_bytes()), "{pattern} {name}");
        }
        for (pattern, name) in
            [("", "a"), ("?", ""), ("vm", "vm1"), ("vm-*", "vm"), ("*a", "ab"), ("a?", "a")]
        {
            assert!(!matches(pattern.as_bytes(), name.as_bytes()), "{pattern} {name}");
        }
    }
}
