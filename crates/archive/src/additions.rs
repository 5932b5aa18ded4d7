//! The files of an archive for a client that may only add: one that has a put key, on another host.
//!
//! Who can write a directory can also remove and overwrite what is in it. So another process stands between, which
//! has no key, and lets through what an honest process with a put key does to files, and nothing else:
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
//! ([`give_up_unreadable`](crate::Settings::give_up_unreadable)).

use std::{collections::VecDeque, sync::Arc};

use onefold_core::{Error, File, Files, Hold, Kind, Lock, Result};
use parking_lot::{Mutex, MutexGuard};

use crate::format::{
    frame::{FRAME_ALIGN, FRAME_HEADER_BYTES, Header, PUT_FRAME_MAX},
    label::find_label,
    log_reader::LOG_BYTES_MAX,
    names::{COMMIT, EPOCHS, WRITER, is_segment, log_name},
};

/// Segments that a client appends to at most: those that it made last.
const SEGMENTS_MAX: usize = 8;

/// The files of an archive, of which a client may only add to the content.
pub struct Additions {
    files: Arc<dyn Files>,
    /// The segments that the client made last.
    made: Mutex<VecDeque<Arc<Segment>>>,
    log: Arc<Mutex<Log>>,
}

impl Additions {
    /// Of these files, for one connection.
    #[must_use]
    pub fn new(files: Arc<dyn Files>) -> Additions {
        Additions { files, made: Mutex::default(), log: Arc::default() }
    }
}

/// A segment that the client made.
struct Segment {
    name: String,
    file: Arc<dyn File>,
    /// What is before this was written, and stays.
    end: Mutex<u64>,
}

fn appended(segment: Arc<Segment>) -> Arc<dyn File> {
    Arc::new(Addition { inner: segment.file.clone(), adds: Adds::Segment(segment) })
}

/// The log that the client appends to.
#[derive(Default)]
struct Log {
    /// Its name, while the client holds the commit lock alone.
    current: Option<String>,
    end: Option<LogEnd>,
}

/// Where the log ends, by the headers of its frames.
struct LogEnd {
    name: String,
    /// Behind the last frame.
    at: u64,
    /// The last frame and where it begins; `None` when there is none.
    last: Option<(u64, Header)>,
    /// The frame that is being written, and how many of its bytes are there.
    begun: Option<(Header, u64)>,
}

fn denied(why: impl Into<String>) -> Error {
    Error::new(Kind::Denied, why)
}

fn takes_nothing_away() -> Error {
    denied("this connection may add, and take nothing away")
}

impl Files for Additions {
    fn names(&self) -> Result<Vec<String>> {
        self.files.names()
    }

    fn create(&self, name: &str) -> Result<Arc<dyn File>> {
        if !is_segment(name) {
            return Err(denied("this connection may make segments, and no other files"));
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
            return Err(denied("this connection may add, and adding needs no such lock"));
        }
        let lock = self.files.lock(name, hold, wait)?;
        if name != COMMIT || hold != Hold::Alone {
            return Ok(lock);
        }
        let current = log_name(find_label(&*self.files)?.snapshot);
        let mut log = self.log.lock();
        // Others may have appended since, or begun another log.
        if let Some(end) = &mut log.end {
            end.begun = None;
        }
        log.current = Some(current);
        Ok(Box::new(CommitLock { log: self.log.clone(), _lock: lock }))
    }
}

struct CommitLock {
    log: Arc<Mutex<Log>>,
    _lock: Box<dyn Lock>,
}

impl Lock for CommitLock {}

impl Drop for CommitLock {
    fn drop(&mut self) {
        // A write that is under way ends before.
        self.log.lock().current = None;
    }
}

impl LogEnd {
    /// The end of a log, from this frame on, or from its beginning.
    fn find(name: &str, file: &dyn File, from: Option<(u64, Header)>) -> Result<LogEnd> {
        let bytes = file.bytes()?;
        let mut at = from.as_ref().map_or(0, |(at, header)| at + header.bytes());
        let mut last = from;
        while let Some(header) = read_header(file, at)? {
            let follows = last.as_ref().is_none_or(|(_, before)| header.follows(before));
            if !follows || at + header.bytes() > bytes {
                break;
            }
            (last, at) = (Some((at, header)), at + header.bytes());
        }
        Ok(LogEnd { name: name.to_owned(), at, last, begun: None })
    }

    /// The end as it is now, where this was the end earlier: others only append, but for a frame that nobody
    /// can open.
    fn go_on(self, file: &dyn File) -> Result<LogEnd> {
        let last = match self.last {
            Some((at, header)) if read_header(file, at)? == Some(header) => Some((at, header)),
            _ => None,
        };
        LogEnd::find(&self.name, file, last)
    }

    /// Errors unless these bytes belong here.
    fn admit(&mut self, at: u64, data: &[u8]) -> Result<()> {
        let out_of_place = || {
            denied(
                "this connection may append to the operations log, and change nothing in it: if a crash left \
                 bytes behind its last change, a change by who manages the archive ends that, as `onefold gc`",
            )
        };
        if at == self.at {
            let header = Header::decode(data).ok_or_else(out_of_place)?;
            let follows = self.last.as_ref().is_none_or(|(_, before)| header.follows(before));
            if !follows || header.bytes() > PUT_FRAME_MAX {
                return Err(out_of_place());
            }
            self.begun = Some((header, 0));
        }
        let (header, there) = self.begun.as_mut().ok_or_else(out_of_place)?;
        let fits = there.checked_add(data.len() as u64).is_some_and(|end| end <= header.bytes());
        if at != self.at + *there || !fits {
            return Err(out_of_place());
        }
        // Readers take a header that stands inside a torn frame for that of a later one. In what a cipher
        // gives there is none, but once in a million frames.
        let (from, begins) = (*there, at == self.at);
        let skipped = (FRAME_ALIGN - from % FRAME_ALIGN) % FRAME_ALIGN;
        let first = if begins { FRAME_ALIGN } else { skipped };
        let inside = data.get(first as usize..).unwrap_or_default();
        if from % FRAME_ALIGN != 0
            || inside.chunks(FRAME_ALIGN as usize).any(|b| Header::decode(b).is_some())
        {
            return Err(denied("this looks like several changes at once"));
        }
        Ok(())
    }

    /// The bytes that were admitted are written.
    fn wrote(&mut self, bytes: u64) {
        if let Some((_, there)) = &mut self.begun {
            *there += bytes;
        }
    }

    /// All bytes that are written are durable.
    fn synced(&mut self) {
        if let Some((header, _)) = self.begun.take_if(|(header, there)| *there == header.bytes()) {
            let at = self.at;
            self.at += header.bytes();
            self.last = Some((at, header));
        }
    }
}

fn read_header(file: &dyn File, at: u64) -> Result<Option<Header>> {
    let mut bytes = [0; FRAME_HEADER_BYTES];
    let n = file.read_at(at, &mut bytes)?;
    Ok(Header::decode(&bytes[..n]))
}

/// What may be added to a file.
enum Adds {
    Nothing,
    Segment(Arc<Segment>),
    Log(String, Arc<Mutex<Log>>),
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
        let Adds::Log(name, log) = &self.adds else {
            let mut end = self.end(at)?;
            *end = at.saturating_add(data.len() as u64);
            return self.inner.write_at(at, data);
        };
        let mut log = log.lock();
        if log.current.as_ref() != Some(name) {
            return Err(denied("this connection appends to the last log, while it holds its lock"));
        }
        let mut end = match log.end.take() {
            Some(end) if end.name == *name && end.begun.is_some() => end,
            Some(end) if end.name == *name => end.go_on(&*self.inner)?,
            _ => LogEnd::find(name, &*self.inner, None)?,
        };
        let admitted = end.admit(at, data);
        let end = log.end.insert(end);
        admitted?;
        self.inner.write_at(at, data)?;
        end.wrote(data.len() as u64);
        Ok(())
    }

    fn read_from_medium(&self, at: u64, into: &mut [u8]) -> Result<usize> {
        self.inner.read_from_medium(at, into)
    }

    fn keeps(&self, at: u64, bytes: &[u8]) -> Result<bool> {
        self.inner.keeps(at, bytes)
    }

    fn sync(&self) -> Result<()> {
        match &self.adds {
            Adds::Nothing | Adds::Segment(_) => self.inner.sync(),
            Adds::Log(name, log) => {
                let mut log = log.lock();
                self.inner.sync()?;
                if let Some(end) = log.end.as_mut().filter(|end| end.name == *name) {
                    end.synced();
                }
                Ok(())
            }
        }
    }

    fn set_bytes(&self, bytes: u64) -> Result<()> {
        let _end = self.end(bytes)?;
        self.inner.set_bytes(bytes)
    }

    fn reserve(&self, at: u64, bytes: u64) -> Result<()> {
        let is_own = match &self.adds {
            Adds::Nothing => false,
            Adds::Segment(_) => true,
            Adds::Log(name, log) => {
                let end = at.checked_add(bytes).is_some_and(|end| end <= LOG_BYTES_MAX);
                end && log.lock().current.as_ref() == Some(name)
            }
        };
        if !is_own {
            return Err(takes_nothing_away());
        }
        self.inner.reserve(at, bytes)
    }

    fn punch(&self, at: u64, bytes: u64) -> Result<()> {
        let _end = self.end(at)?;
        self.inner.punch(at, bytes)
    }
}
