//! The files of an archive for a client that may only add: one that has a put key, on another host.
//!
//! Who can write a directory can also remove and overwrite what is in it. So another process stands between, which
//! has no key, and lets through what an honest process with a put key does to files, and nothing else:
//!
//! - *Segments:* it makes new ones. What it synced in one that it made stays as it is; no other segment is
//!   written to.
//! - *The log:* it appends frames behind the last one, each with a header that follows the one before, while it
//!   holds the commit lock alone.
//! - *Everything else* is read. Nothing is removed.
//!
//! *Invariant:* no byte changes that a process had made durable, and no name goes.
//!
//! *Not judged,* as that needs keys: what a frame says, and whether anybody can open it. Readers judge that by
//! signatures. Two frames that nobody can open make all refuse the archive, until manage gives them up
//! ([`give_up_unreadable`](crate::Settings::give_up_unreadable)).

use std::{collections::HashMap, sync::Arc};

use onefold_core::{Error, File, Files, Hold, Kind, Lock, Result};
use parking_lot::{Mutex, MutexGuard};

use crate::format::{
    frame::{FRAME_ALIGN, FRAME_HEADER_BYTES, Header, PUT_FRAME_MAX},
    label::find_label,
    names::{COMMIT, EPOCHS, WRITER, is_segment, log_name},
};

/// Segments that one connection makes at most.
const SEGMENTS_MAX: usize = 65_536;

/// The files of an archive, of which a client may only add to the content.
pub struct Additions {
    files: Arc<dyn Files>,
    /// Segments that the client made.
    made: Mutex<HashMap<String, Arc<Segment>>>,
    log: Arc<Mutex<Log>>,
}

impl Additions {
    /// Of these files, for one connection.
    #[must_use]
    pub fn new(files: Arc<dyn Files>) -> Additions {
        Additions { files, made: Mutex::default(), log: Arc::default() }
    }

    fn opened(&self, name: &str, inner: Arc<dyn File>) -> Arc<dyn File> {
        let adds = if let Some(segment) = self.made.lock().get(name) {
            Adds::Segment(segment.clone())
        } else if name.starts_with("log-") {
            Adds::Log(name.to_owned(), self.log.clone())
        } else {
            Adds::Nothing
        };
        Arc::new(Addition { inner, adds })
    }
}

/// What was done to a segment.
#[derive(Default)]
struct Segment(Mutex<Ends>);

#[derive(Clone, Copy, Default)]
struct Ends {
    written: u64,
    /// What is before this is durable, and stays.
    synced: u64,
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
        let mut made = self.made.lock();
        if made.len() >= SEGMENTS_MAX {
            return Err(denied("this connection made too many segments"));
        }
        let inner = self.files.create(name)?;
        made.insert(name.to_owned(), Arc::default());
        drop(made);
        Ok(self.opened(name, inner))
    }

    fn open(&self, name: &str) -> Result<Arc<dyn File>> {
        Ok(self.opened(name, self.files.open(name)?))
    }

    fn open_large(&self, name: &str) -> Result<Arc<dyn File>> {
        // Zeroes may follow a large write: those are bytes, too.
        let is_made = self.made.lock().contains_key(name);
        let inner = if is_made { self.files.open_large(name)? } else { self.files.open(name)? };
        Ok(self.opened(name, inner))
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
    /// The ends of a segment that the client made, unless something before `from` is to change that is durable.
    fn ends(&self, from: u64) -> Result<MutexGuard<'_, Ends>> {
        if let Adds::Segment(segment) = &self.adds {
            let ends = segment.0.lock();
            if ends.synced <= from {
                return Ok(ends);
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
            let mut ends = self.ends(at)?;
            ends.written = ends.written.max(at.saturating_add(data.len() as u64));
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
            Adds::Nothing => self.inner.sync(),
            Adds::Segment(segment) => {
                let written = segment.0.lock().written;
                self.inner.sync()?;
                let mut ends = segment.0.lock();
                ends.synced = ends.synced.max(written);
                Ok(())
            }
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
        let mut ends = self.ends(bytes)?;
        ends.written = ends.written.min(bytes);
        self.inner.set_bytes(bytes)
    }

    fn reserve(&self, at: u64, bytes: u64) -> Result<()> {
        match &self.adds {
            Adds::Nothing => Err(takes_nothing_away()),
            _ => self.inner.reserve(at, bytes),
        }
    }

    fn punch(&self, at: u64, bytes: u64) -> Result<()> {
        let _ends = self.ends(at)?;
        self.inner.punch(at, bytes)
    }
}
