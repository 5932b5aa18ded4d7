//! The bytes that the two sides send: a greeting, then frames of requests, and of answers to them.
//!
//! All numbers are little-endian. The far side begins:
//!
//! ```text
//! 16  "onefold files 1\n"
//!  4  bytes that follow, at most 16 KiB
//!  1  right: 0 read, 1 put, 2 manage, 255 none
//!     why there is no more right, or nothing; who serves the archive there, or nothing: texts of
//!     2 bytes of length and UTF-8
//!     without a right: 1 kind of an error, then its sentence
//! ```
//!
//! A request: 4 bytes of length of what follows, 8 of its number, 1 of what is asked, then what that
//! needs. An answer: 4 bytes of length, 8 of the request's number, 1 that is 0 when it was done; then
//! what was asked for, or the kind of an error and its sentence. Requests are answered in any order.

use std::io::{self, IoSlice, Read, Write};

use onefold_core::{Error, Hold, Kind, Result};

use crate::rights::Right;

pub(crate) const MAGIC: [u8; 16] = *b"onefold files 1\n";

/// Most bytes of a file in one request or answer; larger reads and writes are cut.
pub(crate) const DATA_MAX: usize = 8 << 20;

/// Bytes of an answer before what was asked for: the request's number and a zero.
pub(crate) const ANSWER_HEAD: usize = 9;

/// Most bytes of a request.
const REQUEST_MAX: usize = DATA_MAX + 64;

/// Most bytes of a list of names: of an archive of 200 TiB.
pub(crate) const NAMES_MAX: usize = 64 << 20;

/// Most bytes of a greeting.
const GREETING_MAX: usize = 16 << 10;

/// Most bytes of a name.
const NAME_MAX: usize = 255;

/// Most bytes of a sentence of an error.
const TEXT_MAX: usize = 4096;

/// The number that names an open file or a lock; the near side chooses it.
pub(crate) type Handle = u32;

/// A request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Request<'a> {
    Names,
    Create {
        handle: Handle,
        name: &'a str,
    },
    Open {
        handle: Handle,
        name: &'a str,
        large: bool,
    },
    /// No answer follows.
    Close {
        handle: Handle,
    },
    Remove {
        name: &'a str,
    },
    SyncNames,
    Lock {
        handle: Handle,
        name: &'a str,
        hold: Hold,
        wait: bool,
    },
    /// No answer follows.
    Unlock {
        handle: Handle,
    },
    Bytes {
        handle: Handle,
    },
    Occupied {
        handle: Handle,
    },
    Read {
        handle: Handle,
        at: u64,
        bytes: u32,
        from_medium: bool,
    },
    Write {
        handle: Handle,
        at: u64,
        data: &'a [u8],
    },
    Keeps {
        handle: Handle,
        at: u64,
        data: &'a [u8],
    },
    Sync {
        handle: Handle,
    },
    SetBytes {
        handle: Handle,
        bytes: u64,
    },
    Reserve {
        handle: Handle,
        at: u64,
        bytes: u64,
    },
    Punch {
        handle: Handle,
        at: u64,
        bytes: u64,
    },
    /// The near side is there, and has nothing to ask. No answer follows.
    Alive,
    /// Free bytes of the file system.
    Free,
}

impl Request<'_> {
    /// The kind of the request, and the name in it, which may be any text.
    pub(crate) fn shown(&self) -> (&'static str, Option<&str>) {
        match *self {
            Request::Create { name, .. } => ("create", Some(name)),
            Request::Remove { name } => ("remove", Some(name)),
            Request::Lock { name, .. } => ("lock", Some(name)),
            Request::Open { name, .. } => ("open", Some(name)),
            Request::Write { .. } => ("write", None),
            Request::SetBytes { .. } => ("resize", None),
            Request::Reserve { .. } => ("reserve", None),
            Request::Punch { .. } => ("punch", None),
            Request::Names
            | Request::Close { .. }
            | Request::SyncNames
            | Request::Unlock { .. }
            | Request::Bytes { .. }
            | Request::Occupied { .. }
            | Request::Read { .. }
            | Request::Keeps { .. }
            | Request::Sync { .. }
            | Request::Free
            | Request::Alive => ("look", None),
        }
    }
}

impl Request<'_> {
    /// The request without its data, and the number of what is asked in front.
    fn head(&self) -> Vec<u8> {
        let mut head = Vec::with_capacity(32);
        let put = |head: &mut Vec<u8>, what: u8, handle: Handle| {
            head.push(what);
            head.extend(handle.to_le_bytes());
        };
        let range = |head: &mut Vec<u8>, at: u64, bytes: u64| {
            head.extend(at.to_le_bytes());
            head.extend(bytes.to_le_bytes());
        };
        match *self {
            Request::Names => head.push(0),
            Request::Create { handle, name } => {
                put(&mut head, 1, handle);
                head.extend(name.as_bytes());
            }
            Request::Open { handle, name, large } => {
                put(&mut head, 2, handle);
                head.push(large.into());
                head.extend(name.as_bytes());
            }
            Request::Close { handle } => put(&mut head, 3, handle),
            Request::Remove { name } => {
                head.push(4);
                head.extend(name.as_bytes());
            }
            Request::SyncNames => head.push(5),
            Request::Lock { handle, name, hold, wait } => {
                put(&mut head, 6, handle);
                head.push(u8::from(hold == Hold::Alone) | u8::from(wait) << 1);
                head.extend(name.as_bytes());
            }
            Request::Unlock { handle } => put(&mut head, 7, handle),
            Request::Bytes { handle } => put(&mut head, 8, handle),
            Request::Occupied { handle } => put(&mut head, 9, handle),
            Request::Read { handle, at, bytes, from_medium } => {
                put(&mut head, 10, handle);
                head.extend(at.to_le_bytes());
                head.extend(bytes.to_le_bytes());
                head.push(from_medium.into());
            }
            Request::Write { handle, at, .. } => {
                put(&mut head, 11, handle);
                head.extend(at.to_le_bytes());
            }
            Request::Keeps { handle, at, .. } => {
                put(&mut head, 12, handle);
                head.extend(at.to_le_bytes());
            }
            Request::Sync { handle } => put(&mut head, 13, handle),
            Request::SetBytes { handle, bytes } => {
                put(&mut head, 14, handle);
                head.extend(bytes.to_le_bytes());
            }
            Request::Reserve { handle, at, bytes } => {
                put(&mut head, 15, handle);
                range(&mut head, at, bytes);
            }
            Request::Punch { handle, at, bytes } => {
                put(&mut head, 16, handle);
                range(&mut head, at, bytes);
            }
            Request::Alive => head.push(17),
            Request::Free => head.push(18),
        }
        head
    }

    /// Sends the request with this number. Data of a write are `parts`, one behind the other.
    pub(crate) fn send(&self, to: &mut dyn Write, id: u64, parts: &[&[u8]]) -> io::Result<()> {
        let head = self.head();
        let data: usize = parts.iter().map(|part| part.len()).sum();
        let mut frame = Vec::with_capacity(12 + head.len());
        frame.extend(((8 + head.len() + data) as u32).to_le_bytes());
        frame.extend(id.to_le_bytes());
        frame.extend(&head);
        let mut slices = vec![IoSlice::new(&frame)];
        slices.extend(parts.iter().map(|part| IoSlice::new(part)));
        write_all(to, &mut slices)?;
        to.flush()
    }
}

/// Writes all slices.
fn write_all(to: &mut dyn Write, mut slices: &mut [IoSlice<'_>]) -> io::Result<()> {
    // Drops empty slices.
    IoSlice::advance_slices(&mut slices, 0);
    while !slices.is_empty() {
        match to.write_vectored(slices) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => IoSlice::advance_slices(&mut slices, n),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Takes bytes from the front of a frame.
struct Take<'a>(&'a [u8]);

impl<'a> Take<'a> {
    fn some(&mut self, n: usize) -> Option<&'a [u8]> {
        let (some, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(some)
    }

    fn byte(&mut self) -> Option<u8> {
        self.some(1).map(|some| some[0])
    }

    fn flag(&mut self) -> Option<bool> {
        self.byte().filter(|byte| *byte < 2).map(|byte| byte == 1)
    }

    fn word(&mut self) -> Option<u32> {
        self.some(4)?.try_into().ok().map(u32::from_le_bytes)
    }

    fn long(&mut self) -> Option<u64> {
        self.some(8)?.try_into().ok().map(u64::from_le_bytes)
    }

    fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    /// The rest, as the name of a file in a flat directory.
    fn name(&mut self) -> Option<&'a str> {
        let name = std::str::from_utf8(self.rest()).ok()?;
        let is_one = !name.is_empty() && name.len() <= NAME_MAX && !name.contains(['/', '\0']);
        (is_one && name != "." && name != "..").then_some(name)
    }

    /// A text with its length in front.
    fn text(&mut self) -> Option<&'a str> {
        let bytes = u16::from_le_bytes(self.some(2)?.try_into().ok()?);
        std::str::from_utf8(self.some(bytes.into())?).ok()
    }

    /// `value`, when nothing is left.
    fn done<T>(&self, value: T) -> Option<T> {
        self.0.is_empty().then_some(value)
    }
}

/// A frame without its length, as its number and what is asked.
pub(crate) fn request(frame: &[u8]) -> Option<(u64, Request<'_>)> {
    let mut take = Take(frame);
    let (id, what) = (take.long()?, take.byte()?);
    let handle = match what {
        0 | 4 | 5 | 17 | 18 => 0,
        _ => take.word()?,
    };
    let request = match what {
        0 => Request::Names,
        1 => Request::Create { handle, name: take.name()? },
        2 => Request::Open { handle, large: take.flag()?, name: take.name()? },
        3 => Request::Close { handle },
        4 => Request::Remove { name: take.name()? },
        5 => Request::SyncNames,
        6 => {
            let bits = take.byte().filter(|bits| *bits < 4)?;
            let hold = if bits & 1 == 1 { Hold::Alone } else { Hold::Shared };
            Request::Lock { handle, hold, wait: bits & 2 == 2, name: take.name()? }
        }
        7 => Request::Unlock { handle },
        8 => Request::Bytes { handle },
        9 => Request::Occupied { handle },
        10 => {
            let (at, bytes) = (take.long()?, take.word()?);
            let bytes = (bytes as usize <= DATA_MAX).then_some(bytes)?;
            Request::Read { handle, at, bytes, from_medium: take.flag()? }
        }
        11 => Request::Write { handle, at: take.long()?, data: take.rest() },
        12 => Request::Keeps { handle, at: take.long()?, data: take.rest() },
        13 => Request::Sync { handle },
        14 => Request::SetBytes { handle, bytes: take.long()? },
        15 => Request::Reserve { handle, at: take.long()?, bytes: take.long()? },
        16 => Request::Punch { handle, at: take.long()?, bytes: take.long()? },
        17 => Request::Alive,
        18 => Request::Free,
        _ => return None,
    };
    let is_whole = match request {
        Request::Write { at, data, .. } | Request::Keeps { at, data, .. } => {
            data.len() <= DATA_MAX && at.checked_add(data.len() as u64).is_some_and(fits)
        }
        Request::Read { at, bytes, .. } => at.checked_add(bytes.into()).is_some_and(fits),
        Request::SetBytes { bytes, .. } => fits(bytes),
        Request::Reserve { at, bytes, .. } | Request::Punch { at, bytes, .. } => {
            at.checked_add(bytes).is_some_and(fits)
        }
        _ => true,
    };
    take.done((id, request)).filter(|_| is_whole)
}

/// True for lengths that files have.
fn fits(bytes: u64) -> bool {
    i64::try_from(bytes).is_ok()
}

/// The next frame of a stream, without its length; `None` at its end. No frame has more than `most`
/// bytes.
fn frame(from: &mut dyn Read, most: usize) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; 4];
    let mut there = 0;
    while there < 4 {
        match from.read(&mut length[there..]) {
            Ok(0) if there == 0 => return Ok(None),
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => there += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let length = u32::from_le_bytes(length) as usize;
    if length > most {
        return Err(io::Error::other(format!("a message of {length} bytes, and {most} may be")));
    }
    // Memory is taken as bytes come.
    let mut bytes = Vec::with_capacity(length.min(64 << 10));
    from.take(length as u64).read_to_end(&mut bytes)?;
    match bytes.len() == length {
        true => Ok(Some(bytes)),
        false => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// The next request's frame; `None` at the end.
pub(crate) fn request_frame(from: &mut dyn Read) -> io::Result<Option<Vec<u8>>> {
    frame(from, REQUEST_MAX)
}

/// The next answer's frame; `None` at the end.
pub(crate) fn answer_frame(from: &mut dyn Read) -> io::Result<Option<Vec<u8>>> {
    frame(from, NAMES_MAX + 16)
}

/// An answer's frame as the number of its request, and the result of the request.
pub(crate) fn answer(frame: &[u8]) -> Option<(u64, Result<&[u8]>)> {
    let mut take = Take(frame);
    let id = take.long()?;
    Some(match take.byte()? {
        0 => (id, Ok(take.rest())),
        1 => {
            let kind = kind(take.byte()?)?;
            let text = std::str::from_utf8(take.rest()).ok()?;
            (id, Err(Error::new(kind, shown(text))))
        }
        _ => return None,
    })
}

/// Sends the answer to the request with this number.
pub(crate) fn send_answer(
    to: &mut dyn Write,
    id: u64,
    answer: std::result::Result<&[u8], &Error>,
) -> io::Result<()> {
    let text = answer.err().map(ToString::to_string).unwrap_or_default();
    let (head, body) = match answer {
        Ok(body) => (vec![0], body),
        Err(error) => {
            let end = text.floor_char_boundary_at(TEXT_MAX);
            (vec![1, code(error.kind())], &text.as_bytes()[..end])
        }
    };
    let length = ((8 + head.len() + body.len()) as u32).to_le_bytes();
    let head = [&length[..], &id.to_le_bytes(), &head].concat();
    write_all(to, &mut [IoSlice::new(&head), IoSlice::new(body)])?;
    to.flush()
}

trait CharBoundary {
    fn floor_char_boundary_at(&self, at: usize) -> usize;
}

impl CharBoundary for str {
    /// The last boundary of characters that is not behind `at`.
    fn floor_char_boundary_at(&self, at: usize) -> usize {
        (0..=at.min(self.len())).rev().find(|end| self.is_char_boundary(*end)).unwrap_or(0)
    }
}

/// A text of the other side for a terminal.
fn shown(text: &str) -> String {
    let plain = |c: char| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
    text.chars().take(TEXT_MAX).map(plain).collect()
}

/// The names of a directory as bytes: each with a zero behind it.
pub(crate) fn encode_names(names: &[String]) -> Vec<u8> {
    names.iter().flat_map(|name| name.bytes().chain([0])).collect()
}

/// The names of a directory that are wanted, when these are such bytes: sorted, each once. A name takes a
/// multiple of its bytes: memory is taken for those that are wanted alone.
pub(crate) fn names(bytes: &[u8], is_wanted: fn(&str) -> bool) -> Option<Vec<String>> {
    let each = || {
        let ended = bytes.split_inclusive(|byte| *byte == 0);
        ended.map(|name| Take(name.strip_suffix(&[0])?).name())
    };
    let (mut last, mut wanted) = ("", 0);
    for name in each() {
        let name = name.filter(|name| last < *name)?;
        wanted += usize::from(is_wanted(name));
        last = name;
    }
    let mut names = Vec::with_capacity(wanted);
    names.extend(each().flatten().filter(|name| is_wanted(name)).map(str::to_owned));
    Some(names)
}

/// The number of a kind of errors.
fn code(kind: Kind) -> u8 {
    match kind {
        Kind::InvalidInput => 0,
        Kind::NotFound => 1,
        Kind::Exists => 2,
        Kind::NoSpace => 3,
        Kind::Busy => 4,
        Kind::Corrupt => 5,
        Kind::Stopped => 6,
        Kind::Unsupported => 7,
        Kind::Denied => 8,
        Kind::Io => 9,
        Kind::Memory => 10,
    }
}

fn kind(code: u8) -> Option<Kind> {
    const KINDS: [Kind; 11] = [
        Kind::InvalidInput,
        Kind::NotFound,
        Kind::Exists,
        Kind::NoSpace,
        Kind::Busy,
        Kind::Corrupt,
        Kind::Stopped,
        Kind::Unsupported,
        Kind::Denied,
        Kind::Io,
        Kind::Memory,
    ];
    KINDS.get(usize::from(code)).copied()
}

/// The right of a greeting that refuses.
const NO_RIGHT: u8 = 255;

/// The far side's words on itself and on the directory, before anything is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// The requests that are allowed.
    pub right: Right,
    /// Why it is not more than that, in a sentence.
    pub bar: Option<String>,
    /// A sentence about who serves the archive there.
    pub server: Option<String>,
}

/// Sends a greeting that refuses everything, for this reason.
///
/// # Errors
/// The errors of the stream.
pub fn refuse(to: &mut dyn Write, error: &Error) -> io::Result<()> {
    let text = error.to_string();
    let end = text.floor_char_boundary_at(TEXT_MAX);
    let head = [NO_RIGHT, code(error.kind())];
    send_greeting(to, &[&head, &text.as_bytes()[..end]].concat())
}

fn send_greeting(to: &mut dyn Write, body: &[u8]) -> io::Result<()> {
    let length = (body.len() as u32).to_le_bytes();
    to.write_all(&[&MAGIC[..], &length, body].concat())?;
    to.flush()
}

impl Greeting {
    /// A greeting that tells of this right and of nothing else.
    #[must_use]
    pub fn of(right: Right) -> Greeting {
        Greeting { right, bar: None, server: None }
    }

    pub(crate) fn send(&self, to: &mut dyn Write) -> io::Result<()> {
        let mut body = vec![self.right as u8];
        for text in [&self.bar, &self.server] {
            let text = text.as_deref().unwrap_or_default();
            let text = &text[..text.floor_char_boundary_at(TEXT_MAX)];
            body.extend((text.len() as u16).to_le_bytes());
            body.extend(text.as_bytes());
        }
        send_greeting(to, &body)
    }

    fn decode(body: &[u8]) -> Option<Result<Greeting>> {
        let mut take = Take(body);
        let right = match take.byte()? {
            0 => Right::Read,
            1 => Right::Put,
            2 => Right::Manage,
            NO_RIGHT => {
                let kind = kind(take.byte()?)?;
                let text = std::str::from_utf8(take.rest()).ok()?;
                return Some(Err(Error::new(kind, shown(text))));
            }
            _ => return None,
        };
        let mut text = || Some(Some(shown(take.text()?)).filter(|text| !text.is_empty()));
        let (bar, server) = (text()?, text()?);
        take.done(Ok(Greeting { right, bar, server }))
    }

    /// Reads the greeting of the far side.
    ///
    /// # Errors
    /// `NotFound` when the stream ends before it began, `Unsupported` when something else speaks
    /// there, why the far side refuses everything, and those of the system.
    pub(crate) fn receive(from: &mut dyn Read) -> Result<Greeting> {
        let mut magic = Vec::new();
        let wrong = |e| Error::from_io("the connection failed", e);
        from.take(MAGIC.len() as u64).read_to_end(&mut magic).map_err(wrong)?;
        if magic.is_empty() {
            return Err(Error::new(Kind::NotFound, "nobody answers"));
        }
        let strange = |said: &[u8]| {
            let said = shown(&String::from_utf8_lossy(said));
            let why = format!("what answers there does not speak Onefold's protocol: '{said}'");
            Error::new(Kind::Unsupported, why)
        };
        if magic != MAGIC {
            return Err(strange(&magic));
        }
        let body = frame(from, GREETING_MAX).map_err(wrong)?;
        Greeting::decode(&body.unwrap_or_default()).ok_or_else(|| strange(b""))?
    }
}

/// For fuzz targets, which attack the decoders.
pub mod decoders {
    use onefold_core::{Error, Kind, Result};

    /// Decodes a request's frame, without its length, and encodes the request again; false when the bytes
    /// differ.
    ///
    /// # Errors
    /// `InvalidInput` for bytes that are no request.
    pub fn request(frame: &[u8]) -> Result<bool> {
        let none = || Error::new(Kind::InvalidInput, "no request");
        let (id, request) = super::request(frame).ok_or_else(none)?;
        let data = match request {
            super::Request::Write { data, .. } | super::Request::Keeps { data, .. } => data,
            _ => &[],
        };
        let mut again = Vec::new();
        let sent = request.send(&mut again, id, &[data]);
        Ok(sent.is_ok() && again[4..] == *frame)
    }

    /// Decodes what the far side may send: a greeting, names, or the frame of an answer.
    ///
    /// # Errors
    /// Why it is no greeting, when it is none of them.
    pub fn answer(bytes: &[u8]) -> Result<()> {
        if super::names(bytes, |_| true).is_some() || super::answer(bytes).is_some() {
            return Ok(());
        }
        super::Greeting::receive(&mut &*bytes).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_come_back_as_they_were() {
        let all = [
            Request::Names,
            Request::Create { handle: 1, name: "a" },
            Request::Open { handle: 2, name: "label", large: true },
            Request::Close { handle: 3 },
            Request::Remove { name: "b" },
            Request::SyncNames,
            Request::Lock { handle: 4, name: "lock-a", hold: Hold::Alone, wait: false },
            Request::Lock { handle: 4, name: "lock-a", hold: Hold::Shared, wait: true },
            Request::Unlock { handle: 4 },
            Request::Bytes { handle: 5 },
            Request::Occupied { handle: 5 },
            Request::Read { handle: 5, at: 1 << 40, bytes: 4096, from_medium: true },
            Request::Write { handle: 5, at: 7, data: b"data" },
            Request::Keeps { handle: 5, at: 7, data: b"" },
            Request::Sync { handle: 5 },
            Request::SetBytes { handle: 5, bytes: 9 },
            Request::Reserve { handle: 5, at: 1, bytes: 2 },
            Request::Punch { handle: 5, at: 3, bytes: 4 },
            Request::Alive,
            Request::Free,
        ];
        for sent in all {
            let data: &[u8] = match sent {
                Request::Write { data, .. } | Request::Keeps { data, .. } => data,
                _ => &[],
            };
            let mut bytes = Vec::new();
            let (one, other) = data.split_at(data.len() / 2);
            sent.send(&mut bytes, 77, &[one, other]).unwrap();
            let frame = request_frame(&mut &*bytes).unwrap().unwrap();
            assert_eq!(request(&frame), Some((77, sent)));
            assert!(decoders::request(&frame).unwrap());
            // A longer one is none, but for names and data.
            let cut = request(&frame[..frame.len() - 1]);
            assert!(cut.is_none() || decoders::request(&frame[..frame.len() - 1]).unwrap());
        }
    }

    #[test]
    fn rule_46_names_of_requests_are_single_names() {
        for name in ["", ".", "..", "a/b", "/etc/passwd", "a\0b", &"x".repeat(256)] {
            let mut bytes = Vec::new();
            Request::Remove { name }.send(&mut bytes, 1, &[]).unwrap();
            assert_eq!(request(&bytes[4..]), None, "{name:?}");
        }
        let far = Request::SetBytes { handle: 1, bytes: u64::MAX };
        let mut bytes = Vec::new();
        far.send(&mut bytes, 1, &[]).unwrap();
        assert_eq!(request(&bytes[4..]), None);
    }

    #[test]
    fn greetings_and_errors_come_back_without_what_terminals_obey() {
        let greeting = Greeting {
            bar: Some("it is read only".to_owned()),
            server: Some("a\u{1b}[2Jb".to_owned()),
            ..Greeting::of(Right::Read)
        };
        let mut bytes = Vec::new();
        greeting.send(&mut bytes).unwrap();
        let found = Greeting::receive(&mut &*bytes).unwrap();
        assert_eq!(found, Greeting { server: Some("a\u{fffd}[2Jb".to_owned()), ..greeting });
        let mut bytes = Vec::new();
        refuse(&mut bytes, &Error::new(Kind::Exists, "it is\nnot empty")).unwrap();
        let error = Greeting::receive(&mut &*bytes).unwrap_err();
        assert_eq!((error.kind(), &*error.to_string()), (Kind::Exists, "it is\u{fffd}not empty"));
        let error = Greeting::receive(&mut &b"Welcome to host\x07!"[..]).unwrap_err();
        assert!(error.to_string().contains("'Welcome to host\u{fffd}'"), "{error}");
        assert_eq!(Greeting::receive(&mut &b""[..]).unwrap_err().kind(), Kind::NotFound);

        let mut bytes = Vec::new();
        send_answer(&mut bytes, 3, Err(&Error::new(Kind::NoSpace, "full\n"))).unwrap();
        let frame = answer_frame(&mut &*bytes).unwrap().unwrap();
        let (id, said) = answer(&frame).unwrap();
        let error = said.unwrap_err();
        assert_eq!((id, error.kind(), &*error.to_string()), (3, Kind::NoSpace, "full\u{fffd}"));
        for number in 0..11 {
            assert_eq!(code(kind(number).unwrap()), number);
        }
    }

    #[test]
    fn names_are_sorted_and_there_once() {
        let all = ["a", "b"].map(str::to_owned);
        assert_eq!(names(&encode_names(&all), |_| true).unwrap(), all);
        assert_eq!(names(b"", |_| true).unwrap(), Vec::<String>::new());
        for wrong in [&b"b\0a\0"[..], b"a\0a\0", b"a", b"../x\0", b"\0"] {
            assert_eq!(names(wrong, |_| true), None);
        }
    }

    #[test]
    fn rule_46_names_that_nobody_wants_take_no_memory() {
        let all: Vec<String> = (100..1000).map(|n: u32| n.to_string()).collect();
        let wanted = names(&encode_names(&all), |name| name.ends_with("00")).unwrap();
        assert_eq!((wanted.len(), wanted.capacity()), (9, 9));
        assert_eq!(names(&encode_names(&all), |_| false).unwrap().capacity(), 0);
        // Also these are sorted.
        assert_eq!(names(b"b\0a\0", |_| false), None);
    }

    #[test]
    fn no_length_takes_memory_before_its_bytes_come() {
        let mut bytes = (REQUEST_MAX as u32 + 1).to_le_bytes().to_vec();
        assert!(request_frame(&mut &*bytes).is_err());
        bytes[..4].copy_from_slice(&(REQUEST_MAX as u32).to_le_bytes());
        let error = request_frame(&mut &*bytes).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
