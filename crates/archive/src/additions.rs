//! The files of an archive for a client that may only add: one that has a put key, on another host.
//!
//! A client that can write a directory can also remove and overwrite what is in it. So another process stands
//! between, which has no key, and lets through what an honest process with a put key does to files, and nothing else:
//!
//! - *Segments:* it makes new ones, and appends to those that it made last. What was written stays as it is, also
//!   before it is durable: another connection may have listed it. Segments are known by the file that was made, not
//!   by the name, which may be another file's later.
//! - *The log:* it appends frames behind the last one, each with a header that follows the one before, while it
//!   holds the commit lock alone.
//! - *Everything else* is read. Nothing is removed.
//!
//! *Invariant:* no byte changes that was written, but behind the last frame of the log, and no name goes. All who
//! store into such an archive make the files of their segments anew, so none of them is a client's.
//!
//! *Not judged,* as that needs keys: what a frame says, and whether anybody can open it. Readers judge that by
//! signatures. Two frames that nobody can open make all refuse the archive, until manage gives them up
//! ([`GiveUp`](crate::GiveUp)).

use std::{collections::VecDeque, sync::Arc};

use onefold_core::{Error, File, Files, Hold, Kind, Lock, Result};
use parking_lot::{Mutex, MutexGuard};

use crate::format::{
    frame::{FRAME_ALIGN, FRAME_HEADER_BYTES, Header, PUT_FRAME_MAX},
    label::look_for_label,
    log_reader::PUT_LOG_BYTES,
    names::{COMMIT, EPOCHS, WRITER, log_name, segment_number},
};

/// Segments that a client appends to at most: those that it made last.
const SEGMENTS_MAX: usize = 8;

/// Bytes of a log that a client has appended to at most. Whoever manages the archive has room behind that.
const LOG_MAX: u64 = PUT_LOG_BYTES + PUT_FRAME_MAX;

/// Bytes of a log that are read at once.
const PIECE_BYTES: usize = 1 << 20;

/// How an error begins that refuses what a client may not do.
pub const MAY_ADD_ONLY: &str = "this connection may add, and ";

/// The files of an archive, of which a client may only add to the content.
pub struct Additions {
    files: Arc<dyn Files>,
    /// The segments that the client made last.
    made: Mutex<VecDeque<Arc<Segment>>>,
    log: Arc<Mutex<Option<HeldLog>>>,
}

impl Additions {
    /// Of these files, for one connection.
    #[must_use]
    pub fn new(files: Arc<dyn Files>) -> Additions {
        Additions { files, made: Mutex::default(), log: Arc::default() }
    }

    /// The log that counts, if the client may append to it.
    fn current_log(&self) -> Result<Option<HeldLog>> {
        let (label, is_damaged) = look_for_label(&*self.files, true)?;
        let next = match self.files.open(&log_name(label.snapshot + 1)) {
            Err(error) if error.kind() == Kind::NotFound => 0,
            opened => opened?.bytes()?,
        };
        // Another label may have counted, whose log goes on: manage writes it again.
        if is_damaged || next > 0 {
            return Ok(None);
        }
        let name = log_name(label.snapshot);
        Ok(Some(HeldLog { file: self.files.open(&name)?, name, end: None }))
    }
}

/// A segment that the client made.
struct Segment {
    name: String,
    file: Arc<dyn File>,
    /// The client wrote what is before this, and it stays.
    end: Mutex<u64>,
}

/// The log, while the client holds the commit lock alone.
struct HeldLog {
    name: String,
    /// Opened under the lock: a handle of the client may be of another file that had the name.
    file: Arc<dyn File>,
    /// Looked for at the first write.
    end: Option<LogEnd>,
}

/// Where a log ends, by the headers of its frames.
struct LogEnd {
    /// Behind the last frame.
    at: u64,
    last: Option<Header>,
    /// The frame that is being written, and how many of its bytes are there.
    begun: Option<(Header, u64)>,
}

fn denied(why: &str) -> Error {
    Error::new(Kind::Denied, format!("{MAY_ADD_ONLY}{why}"))
}

fn takes_nothing_away() -> Error {
    denied("take nothing away")
}

fn appended(segment: Arc<Segment>) -> Arc<dyn File> {
    Arc::new(Addition { inner: segment.file.clone(), adds: Adds::Segment(segment) })
}

impl Files for Additions {
    fn names(&self) -> Result<Vec<String>> {
        self.files.names()
    }

    fn create(&self, name: &str) -> Result<Arc<dyn File>> {
        if segment_number(name).is_none() {
            return Err(denied("make segments, and no other files"));
        }
        let file = self.files.create(name)?;
        let segment = Arc::new(Segment { name: name.to_owned(), file, end: Mutex::new(0) });
        let mut made = self.made.lock();
        made.truncate(SEGMENTS_MAX - 1);
        made.push_front(segment.clone());
        Ok(appended(segment))
    }

    fn open(&self, name: &str) -> Result<Arc<dyn File>> {
        if let Some(segment) = self.made.lock().iter().find(|segment| segment.name == name) {
            return Ok(appended(segment.clone()));
        }
        let adds = match name.starts_with("log-") {
            true => Adds::Log(name.to_owned(), self.log.clone()),
            false => Adds::Nothing,
        };
        Ok(Arc::new(Addition { inner: self.files.open(name)?, adds }))
    }

    fn open_large(&self, name: &str) -> Result<Arc<dyn File>> {
        // Zeroes may follow a large write: those are bytes, too.
        self.open(name)
    }

    fn remove(&self, _: &str) -> Result<()> {
        Err(takes_nothing_away())
    }

    fn sync_names(&self) -> Result<()> {
        self.files.sync_names()
    }

    fn lock(&self, name: &str, hold: Hold, wait: bool) -> Result<Box<dyn Lock>> {
        let may_hold = match hold {
            Hold::Alone => name == COMMIT || name == WRITER,
            Hold::Shared => name == COMMIT || EPOCHS.contains(&name),
        };
        if !may_hold {
            return Err(denied("adding needs no such lock"));
        }
        let lock = self.files.lock(name, hold, wait)?;
        if name != COMMIT || hold != Hold::Alone {
            return Ok(lock);
        }
        *self.log.lock() = self.current_log()?;
        Ok(Box::new(CommitLock { log: self.log.clone(), _lock: lock }))
    }
}

struct CommitLock {
    log: Arc<Mutex<Option<HeldLog>>>,
    _lock: Box<dyn Lock>,
}

impl Lock for CommitLock {}

impl Drop for CommitLock {
    fn drop(&mut self) {
        // A write that is under way ends before.
        *self.log.lock() = None;
    }
}

impl HeldLog {
    fn write(&mut self, at: u64, data: &[u8]) -> Result<()> {
        let end = match &mut self.end {
            Some(end) => end,
            None => self.end.insert(LogEnd::find(&*self.file)?),
        };
        end.admit(at, data)?;
        self.file.write_at(at, data)?;
        if let Some((_, there)) = &mut end.begun {
            *there += data.len() as u64;
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        self.file.sync()?;
        let Some(end) = &mut self.end else { return Ok(()) };
        if let Some((header, _)) = end.begun.take_if(|(header, there)| *there == header.bytes()) {
            (end.at, end.last) = (end.at + header.bytes(), Some(header));
        }
        Ok(())
    }
}

impl LogEnd {
    fn find(file: &dyn File) -> Result<LogEnd> {
        let bytes = file.bytes()?;
        let mut headers = Headers { file, from: 0, held: Vec::new() };
        let (mut at, mut last) = (0, None);
        while let Some(header) = headers.at(at)? {
            let follows = last.is_none_or(|before| header.follows(&before));
            if !follows || at + header.bytes() > bytes {
                break;
            }
            (last, at) = (Some(header), at + header.bytes());
        }
        // A crash leaves a part of a frame without a header within. Behind a header that rotted are changes.
        let mut behind = at + FRAME_ALIGN;
        while behind < bytes {
            if headers
                .at(behind)?
                .is_some_and(|header| last.is_none_or(|last| header.is_later(&last)))
            {
                return Err(denied(
                    "the operations log is damaged: who manages the archive has to look at it",
                ));
            }
            behind += FRAME_ALIGN;
        }
        Ok(LogEnd { at, last, begun: None })
    }

    /// Errors unless these bytes belong here.
    fn admit(&mut self, at: u64, data: &[u8]) -> Result<()> {
        let out_of_place = || {
            denied(
                "change nothing in the operations log: if a crash left bytes behind its last change, a change by who \
                 manages the archive ends that, as `onefold gc`",
            )
        };
        let begins = at == self.at;
        if begins {
            let header = Header::decode(data).ok_or_else(out_of_place)?;
            let follows = self.last.is_none_or(|before| header.follows(&before));
            if !follows || header.bytes() > PUT_FRAME_MAX || at + header.bytes() > LOG_MAX {
                return Err(out_of_place());
            }
            self.begun = Some((header, 0));
        }
        let (header, there) = self.begun.as_ref().ok_or_else(out_of_place)?;
        let fits = there.checked_add(data.len() as u64).is_some_and(|end| end <= header.bytes());
        // Readers take a header that stands inside a torn frame for that of a later one. In what a cipher
        // gives there is none, but once in millions of frames.
        let are_blocks = (at | data.len() as u64).is_multiple_of(FRAME_ALIGN);
        let mut inside = data.chunks(FRAME_ALIGN as usize).skip(usize::from(begins));
        let has_others = inside.any(|block| Header::decode(block).is_some());
        match at == self.at + *there && fits && are_blocks && !has_others {
            true => Ok(()),
            false => Err(out_of_place()),
        }
    }
}

/// The headers in a log, which is read in pieces.
struct Headers<'a> {
    file: &'a dyn File,
    from: u64,
    held: Vec<u8>,
}

impl Headers<'_> {
    /// The header at a byte of the log, if there is one.
    fn at(&mut self, at: u64) -> Result<Option<Header>> {
        let is_held = |held: &[u8], from: u64| {
            at >= from && at + FRAME_HEADER_BYTES as u64 <= from + held.len() as u64
        };
        if !is_held(&self.held, self.from) {
            self.held.resize(PIECE_BYTES, 0);
            let n = self.file.read_at(at, &mut self.held)?;
            self.held.truncate(n);
            self.from = at;
        }
        Ok(Header::decode(&self.held[(at - self.from) as usize..]))
    }
}

/// The ways in which a client may add to a file.
enum Adds {
    Nothing,
    Segment(Arc<Segment>),
    Log(String, Arc<Mutex<Option<HeldLog>>>),
}

struct Addition {
    inner: Arc<dyn File>,
    adds: Adds,
}

impl Addition {
    /// The end of a segment that the client made, unless something before it is to change.
    fn end(&self, from: u64) -> Result<MutexGuard<'_, u64>> {
        if let Adds::Segment(segment) = &self.adds {
            let end = segment.end.lock();
            if *end <= from {
                return Ok(end);
            }
        }
        Err(takes_nothing_away())
    }

    /// Does something with the log that this file is called like, if the client may append to it now; `None`
    /// where it may not.
    fn with_log<T>(&self, does: impl FnOnce(&mut HeldLog) -> Result<T>) -> Option<Result<T>> {
        let Adds::Log(name, log) = &self.adds else { return None };
        let mut log = log.lock();
        log.as_mut().filter(|held| held.name == *name).map(does)
    }
}

impl File for Addition {
    fn bytes(&self) -> Result<u64> {
        self.inner.bytes()
    }

    fn occupied(&self) -> Result<u64> {
        self.inner.occupied()
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> Result<usize> {
        self.inner.read_at(at, into)
    }

    fn write_at(&self, at: u64, data: &[u8]) -> Result<()> {
        if matches!(self.adds, Adds::Log(..)) {
            let why =
                "append to the last log, while it holds the commit lock and the label is whole";
            return self.with_log(|log| log.write(at, data)).unwrap_or_else(|| Err(denied(why)));
        }
        let mut end = self.end(at)?;
        *end = at.saturating_add(data.len() as u64);
        self.inner.write_at(at, data)
    }

    fn read_from_medium(&self, at: u64, into: &mut [u8]) -> Result<usize> {
        self.inner.read_from_medium(at, into)
    }

    fn keeps(&self, at: u64, bytes: &[u8]) -> Result<bool> {
        self.inner.keeps(at, bytes)
    }

    fn sync(&self) -> Result<()> {
        self.with_log(HeldLog::sync).unwrap_or_else(|| self.inner.sync())
    }

    fn set_bytes(&self, bytes: u64) -> Result<()> {
        let _end = self.end(bytes)?;
        self.inner.set_bytes(bytes)
    }

    fn reserve(&self, at: u64, bytes: u64) -> Result<()> {
        if let Adds::Segment(_) = &self.adds {
            return self.inner.reserve(at, bytes);
        }
        match at.checked_add(bytes) {
            Some(end) if end <= LOG_MAX => self
                .with_log(|log| log.file.reserve(at, bytes))
                .unwrap_or_else(|| Err(takes_nothing_away())),
            _ => Err(takes_nothing_away()),
        }
    }

    fn punch(&self, at: u64, bytes: u64) -> Result<()> {
        let _end = self.end(at)?;
        self.inner.punch(at, bytes)
    }
}
