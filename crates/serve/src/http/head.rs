//! The head of a request: its method, its path and the name by which the client calls the server.
//!
//! *Invariant:* parsing takes no memory, and any bytes give a head or a refusal.

use std::net::{Ipv4Addr, Ipv6Addr};

/// Bytes of a head at most.
pub const HEAD_BYTES: usize = 8 << 10;

/// The end of a head.
const END: &[u8] = b"\r\n\r\n";

/// A request without its body, which no request here needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head<'a> {
    /// The client wants the headers of the answer alone.
    pub only_headers: bool,
    /// The path, without a query.
    pub path: &'a str,
    /// The name by which the client calls the server.
    pub host: Option<&'a str>,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The bytes are no request of HTTP/1.0 or HTTP/1.1.
    Malformed,
    /// Neither GET nor HEAD.
    NotAllowed,
    /// The head is longer than [`HEAD_BYTES`].
    TooLong,
}

impl<'a> Head<'a> {
    /// The head at the start of `bytes`; `None` when its end has not arrived.
    ///
    /// # Errors
    /// Any bytes that are no head of GET or HEAD.
    pub fn parse(bytes: &'a [u8]) -> Result<Option<Head<'a>>, Refusal> {
        let within = &bytes[..bytes.len().min(HEAD_BYTES)];
        match within.windows(END.len()).position(|window| window == END) {
            Some(end) => Head::of(&bytes[..end]).map(Some),
            None if bytes.len() >= HEAD_BYTES => Err(Refusal::TooLong),
            None => Ok(None),
        }
    }

    fn of(text: &'a [u8]) -> Result<Head<'a>, Refusal> {
        // Header values may have bytes beyond ASCII; nothing here asks for such a value.
        let mut lines = Lines(Some(text));
        let first = lines.next().and_then(ascii).ok_or(Refusal::Malformed)?;
        let mut words = first.split(' ');
        let (Some(method), Some(target), Some(version), None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err(Refusal::Malformed);
        };
        if !is_token(method.as_bytes()) || !["HTTP/1.0", "HTTP/1.1"].contains(&version) {
            return Err(Refusal::Malformed);
        }
        let mut host = None;
        for line in lines {
            if let Some(named) = host_of(line)?
                && host.replace(named).is_some()
            {
                return Err(Refusal::Malformed);
            }
        }
        if host.is_none() && version == "HTTP/1.1" {
            return Err(Refusal::Malformed);
        }
        if !["GET", "HEAD"].contains(&method) {
            return Err(Refusal::NotAllowed);
        }
        if !target.starts_with('/') {
            return Err(Refusal::Malformed);
        }
        let path = target.split(['?', '#']).next().unwrap_or(target);
        Ok(Head { only_headers: method == "HEAD", path, host })
    }

    /// Whether the client calls the server by a name that could be another site's: a page of that
    /// site, once its name leads to this server, would read the answers (DNS rebinding). Addresses,
    /// names without a dot and those of `ours` belong to no stranger.
    #[must_use]
    pub fn may_be_a_foreign_page(&self, ours: &[String]) -> bool {
        let Some(host) = self.host else { return false };
        if let Some(rest) = host.strip_prefix('[') {
            let address = rest.split_once(']').map_or(rest, |(address, _)| address);
            return address.parse::<Ipv6Addr>().is_err();
        }
        let name = host.split(':').next().unwrap_or(host);
        // Browsers and name servers take more characters for a name than DNS has, and no `%`, by which
        // clients of a UNIX socket write its path.
        name.contains('.')
            && !name.contains('%')
            && name.parse::<Ipv4Addr>().is_err()
            && !ours.iter().any(|ours| ours.eq_ignore_ascii_case(name))
    }
}

/// Lines that end with CR and LF.
struct Lines<'a>(Option<&'a [u8]>);

impl<'a> Iterator for Lines<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let text = self.0?;
        let end = text.windows(2).position(|pair| pair == b"\r\n");
        self.0 = end.map(|end| &text[end + 2..]);
        Some(end.map_or(text, |end| &text[..end]))
    }
}

/// The value of a header `Host`; nothing for other headers.
fn host_of(line: &[u8]) -> Result<Option<&str>, Refusal> {
    let colon = line.iter().position(|byte| *byte == b':').ok_or(Refusal::Malformed)?;
    let (name, value) = (&line[..colon], &line[colon + 1..]);
    let plain = |byte: &u8| *byte == b'\t' || (*byte >= b' ' && *byte != 0x7f);
    if !is_token(name) || !value.iter().all(plain) {
        return Err(Refusal::Malformed);
    }
    if !name.eq_ignore_ascii_case(b"host") {
        return Ok(None);
    }
    ascii(value.trim_ascii()).map(Some).ok_or(Refusal::Malformed)
}

/// The bytes as text, when all of them can be seen or are spaces.
fn ascii(bytes: &[u8]) -> Option<&str> {
    let seen = |byte: &u8| (b' '..=b'~').contains(byte);
    if bytes.iter().all(seen) { std::str::from_utf8(bytes).ok() } else { None }
}

/// A name as HTTP has them.
fn is_token(bytes: &[u8]) -> bool {
    let of_token = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    !bytes.is_empty() && bytes.iter().all(of_token)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn path(text: &str) -> Result<Option<&str>, Refusal> {
        Head::parse(text.as_bytes()).map(|head| head.map(|head| head.path))
    }

    #[test]
    fn heads_are_parsed() {
        assert_eq!(path("GET / HTTP/1.1\r\nHost: a\r\n\r\n"), Ok(Some("/")));
        assert_eq!(path("GET /metrics?x=1 HTTP/1.0\r\n\r\nbody"), Ok(Some("/metrics")));
        assert_eq!(path("GET / HTTP/1.1\r\nHost: a\r\n"), Ok(None));
        assert_eq!(path(""), Ok(None));
        let head = Head::parse(b"HEAD /a HTTP/1.1\r\nAccept: \xff\r\nhOsT: \t b:1 \r\n\r\n");
        let expected = Head { only_headers: true, path: "/a", host: Some("b:1") };
        assert_eq!(head, Ok(Some(expected)));
    }

    #[test]
    fn what_is_no_head_of_get_is_refused() {
        for text in [
            "\r\n\r\n",
            "GET /\r\n\r\n",
            "GET / HTTP/2.0\r\n\r\n",
            "GET / HTTP/1.1\r\n\r\n",
            "GET  / HTTP/1.0\r\n\r\n",
            "GET / HTTP/1.0 \r\n\r\n",
            "GET http://a/ HTTP/1.0\r\n\r\n",
            "GET metrics HTTP/1.0\r\n\r\n",
            "GET /\u{e4} HTTP/1.0\r\n\r\n",
            "GET /\0 HTTP/1.0\r\n\r\n",
            "GET / HTTP/1.0\r\nno header\r\n\r\n",
            "GET / HTTP/1.0\r\nA: b\r\n folded\r\n\r\n",
            "GET / HTTP/1.0\r\nA : b\r\n\r\n",
            "GET / HTTP/1.0\r\n: b\r\n\r\n",
            "GET / HTTP/1.0\r\nA: b\nC: d\r\n\r\n",
            "GET / HTTP/1.0\r\nA: \0\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
            "\x16\x03\x01 / HTTP/1.0\r\n\r\n",
        ] {
            assert_eq!(path(text), Err(Refusal::Malformed), "{text:?}");
        }
        for method in ["POST", "DELETE", "OPTIONS", "get"] {
            let text = format!("{method} / HTTP/1.0\r\n\r\n");
            assert_eq!(path(&text), Err(Refusal::NotAllowed), "{method}");
        }
        let head = |bytes: usize| format!("GET /{} HTTP/1.0\r\n\r\n", "a".repeat(bytes - 18));
        assert!(path(&head(HEAD_BYTES)).is_ok_and(|path| path.is_some()));
        assert_eq!(path(&head(HEAD_BYTES + 1)), Err(Refusal::TooLong));
    }

    #[test]
    fn rule_14_names_of_other_sites_are_told_from_ours() {
        let named = ["NAS.lan".to_owned()];
        let foreign =
            |host| Head { only_headers: false, path: "/", host }.may_be_a_foreign_page(&named);
        for ours in [
            "localhost",
            "localhost:9400",
            "127.0.0.1:9400",
            "10.0.0.1",
            "[::1]:9400",
            "[::ffff:127.0.0.1]",
            "nas",
            "%2Frun%2Fhttp.sock",
            "nas.lan:9400",
        ] {
            assert!(!foreign(Some(ours)), "{ours}");
        }
        for other in [
            "evil.example",
            "evil.example:9400",
            "127.0.0.1.evil.example",
            "a.",
            "a!b.evil.example",
            "a(b.evil.example:9400",
            "evil.example:80:90",
            "[evil.example]",
            "nas.lan.evil.example",
        ] {
            assert!(foreign(Some(other)), "{other}");
        }
        assert!(!foreign(None));
    }

    proptest! {
        #[test]
        fn any_bytes_give_a_head_or_a_refusal(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Head::parse(&bytes);
            let headers = [b"GET / HTTP/1.1\r\n", &bytes[..], END].concat();
            if let Ok(head) = Head::parse(&headers) {
                prop_assert!(head.is_some());
            }
        }
    }
}
