//! The side where the files are not: a call is a request, and waits for its answer.
//!
//! Any number of threads call at once; one thread takes answers and wakes who waits for them.

use std::{
    collections::HashMap,
    io::{self, Read, Write},
    sync::{
        Arc, Weak,
        atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
        mpsc,
    },
    time::{Duration, Instant},
};

use onefold_core::{Error, File, Files, Hold, Kind, Lock, PendingSync, Result};
use parking_lot::Mutex;

use crate::wire::{self, DATA_MAX, Greeting, Handle, Request};

/// How often a side that has nothing to ask says that it is there.
const ALIVE_EVERY: Duration = Duration::from_secs(5 * 60);

/// How long an answer may take. A sync of what the memory of a large host holds takes many minutes on a slow disk.
pub const PATIENCE: Duration = Duration::from_secs(30 * 60);

type Answer = Result<Body>;

/// The bytes that were asked for, behind the head of their frame.
struct Body(Vec<u8>);

impl std::ops::Deref for Body {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0[wire::ANSWER_HEAD..]
    }
}

/// The calls that have no answer yet.
#[derive(Default)]
struct Calls {
    waiting: HashMap<u64, Waiting>,
    /// Why the connection ended.
    ended: Option<Error>,
}

/// A call that has no answer yet.
struct Waiting {
    tell: mpsc::Sender<Answer>,
    /// `None` when the answer may take any time, as that for a lock that another process has.
    since: Option<Instant>,
}

struct Connection {
    /// What the far side is called in errors.
    name: String,
    /// `None` when this side has ended the connection.
    output: Mutex<Option<Box<dyn Write + Send>>>,
    calls: Arc<Mutex<Calls>>,
    next_call: AtomicU64,
    next_handle: AtomicU32,
    /// True for names that the directory's owner can have made: others are not told.
    is_own: fn(&str) -> bool,
    /// True for the names of locks that others may have any time.
    may_last: fn(&str) -> bool,
    /// Dropped to end the thread that says that this side is there.
    _quiet: mpsc::Sender<()>,
}

/// The files of a directory at the far end of a connection.
#[derive(Clone)]
pub struct RemoteFiles(Arc<Connection>);

/// Takes the greeting of the far side, and has its files. `name` is what the far side is called in
/// errors. A list of names gives those for which `is_own` is true: the far side may send any, and each
/// takes memory.
///
/// # Errors
/// `NotFound` when nobody answers, `Unsupported` when something else does, why the far side refuses
/// everything, and those of the streams.
pub fn connect(
    input: Box<dyn Read + Send>,
    output: Box<dyn Write + Send>,
    name: &str,
    is_own: fn(&str) -> bool,
) -> Result<(RemoteFiles, Greeting)> {
    connect_for(input, output, name, is_own, (PATIENCE, Box::new(|| ()), |_| true))
}

/// The same with the time that an answer may take, what ends the streams after that, when the connection is over, and for
/// which locks others may make this side wait any time.
///
/// # Errors
/// As [`connect`].
pub fn connect_for(
    mut input: Box<dyn Read + Send>,
    output: Box<dyn Write + Send>,
    name: &str,
    is_own: fn(&str) -> bool,
    (patience, give_up, may_last): (Duration, Box<dyn Fn() + Send>, fn(&str) -> bool),
) -> Result<(RemoteFiles, Greeting)> {
    let greeting = Greeting::receive(&mut *input)?;
    let calls = Arc::new(Mutex::new(Calls::default()));
    let (quiet, ended) = mpsc::channel();
    let connection = Arc::new(Connection {
        name: name.to_owned(),
        output: Mutex::new(Some(output)),
        calls: calls.clone(),
        next_call: AtomicU64::new(1),
        next_handle: AtomicU32::new(1),
        is_own,
        may_last,
        _quiet: quiet,
    });
    let failed = |e| Error::from_io("can't take answers", e);
    let name = name.to_owned();
    let take = move || {
        let end = take_answers(&mut *input, &calls, &name);
        calls.lock().end(end);
    };
    std::thread::Builder::new().name("answers".into()).spawn(take).map_err(failed)?;
    let weak = Arc::downgrade(&connection);
    let alive = move || say_alive(&weak, &ended, patience, &*give_up);
    std::thread::Builder::new().name("alive".into()).spawn(alive).map_err(failed)?;
    Ok((RemoteFiles(connection), greeting))
}

/// Gives answers to who waits for them; returns why there are no more.
fn take_answers(input: &mut dyn Read, calls: &Mutex<Calls>, name: &str) -> Error {
    let ended = |why: &str| {
        Error::new(
            Kind::Io,
            format!(
                "the connection to {name} ended{why}: what had no answer may not have been done"
            ),
        )
    };
    loop {
        let frame = match wire::answer_frame(input) {
            Ok(Some(frame)) => frame,
            Ok(None) => return ended(""),
            Err(error) => return ended(&format!(" ({error})")),
        };
        let Some((id, answer)) = wire::answer(&frame) else {
            return ended(" by an answer that is none");
        };
        let answer = answer.map(|_| ()).map_err(|error| error.context(name));
        let Some(waiting) = calls.lock().waiting.remove(&id) else {
            return ended(" by an answer that nobody waits for");
        };
        // Who gave up waiting needs none.
        let _ = waiting.tell.send(answer.map(|()| Body(frame)));
    }
}

/// Says that this side is there until the connection is over, and ends it when the far side does not answer: it may
/// be there and never answer, and who has other nodes goes on without it.
fn say_alive(
    connection: &Weak<Connection>,
    ended: &mpsc::Receiver<()>,
    patience: Duration,
    give_up: &dyn Fn(),
) {
    let pause = ALIVE_EVERY.min(patience);
    while ended.recv_timeout(pause) == Err(mpsc::RecvTimeoutError::Timeout) {
        let Some(connection) = connection.upgrade() else { return };
        if connection.calls.lock().have_waited(patience) {
            let (name, seconds) = (&connection.name, patience.as_secs());
            let why = format!(
                "{name} has not answered for {seconds} seconds: what had no answer may not have been done"
            );
            connection.calls.lock().end(Error::new(Kind::Io, why));
            // The far side may take nothing either: a thread that sends waits until the stream ends.
            give_up();
            if let Some(mut output) = connection.output.try_lock() {
                drop(output.take());
            }
            return;
        }
        // A thread that sends holds up this one, and says as much.
        if let Some(mut output) = connection.output.try_lock()
            && let Some(output) = output.as_mut()
        {
            // When that fails the connection is over, which ends it as well.
            let _ = Request::Alive.send(&mut **output, 0, &[]);
        }
    }
}

impl Calls {
    /// No call gets an answer any more. What is known first counts.
    fn end(&mut self, why: Error) {
        self.ended.get_or_insert(why);
        self.waiting.clear();
    }

    /// True when a call has waited so long.
    fn have_waited(&self, patience: Duration) -> bool {
        let is_long = |since: Instant| since.elapsed() >= patience;
        self.waiting.values().any(|waiting| waiting.since.is_some_and(is_long))
    }
}

/// An answer that will come.
struct Coming {
    answer: mpsc::Receiver<Answer>,
    calls: Arc<Mutex<Calls>>,
}

impl Coming {
    fn wait(self) -> Answer {
        self.answer.recv().unwrap_or_else(|_| Err(why_ended(&self.calls)))
    }
}

fn why_ended(calls: &Mutex<Calls>) -> Error {
    let ended = calls.lock().ended.clone();
    ended.unwrap_or_else(|| Error::new(Kind::Io, "the connection ended"))
}

impl Connection {
    fn handle(&self) -> Handle {
        self.next_handle.fetch_add(1, Relaxed)
    }

    /// Sends a request, whose answer will come.
    fn begin(&self, request: &Request<'_>, parts: &[&[u8]]) -> Result<Coming> {
        let id = self.next_call.fetch_add(1, Relaxed);
        let (send, answer) = mpsc::channel();
        {
            let mut calls = self.calls.lock();
            if let Some(error) = &calls.ended {
                return Err(error.clone());
            }
            let may_last =
                matches!(request, Request::Lock { wait: true, name, .. } if (self.may_last)(name));
            let since = (!may_last).then(Instant::now);
            calls.waiting.insert(id, Waiting { tell: send, since });
        }
        if let Err(error) = self.send(request, id, parts) {
            self.calls.lock().waiting.remove(&id);
            // The thread that takes answers soon knows more.
            return Err(Error::from_io(format!("the connection to {} failed", self.name), error));
        }
        Ok(Coming { answer, calls: self.calls.clone() })
    }

    fn send(&self, request: &Request<'_>, id: u64, parts: &[&[u8]]) -> io::Result<()> {
        let mut output = self.output.lock();
        let output = output.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        request.send(&mut **output, id, parts)
    }

    fn call(&self, request: &Request<'_>, parts: &[&[u8]]) -> Answer {
        self.begin(request, parts)?.wait()
    }

    /// A call that is answered by nothing but that it was done.
    fn ask(&self, request: &Request<'_>) -> Result<()> {
        self.call(request, &[]).map(|_| ())
    }

    /// A call that is answered by a number.
    fn number(&self, request: &Request<'_>) -> Result<u64> {
        let answer = self.call(request, &[])?;
        (*answer).try_into().map(u64::from_le_bytes).map_err(|_| strange())
    }

    /// Sends what has no answer. When that fails the connection is over, which ends it as well.
    fn tell(&self, request: &Request<'_>) {
        let _ = self.send(request, 0, &[]);
    }

    fn open(
        self: &Arc<Connection>,
        handle: Handle,
        request: &Request<'_>,
    ) -> Result<Arc<dyn File>> {
        self.ask(request)?;
        Ok(Arc::new(RemoteFile { connection: self.clone(), handle }))
    }
}

/// The far side answered something else than was asked.
fn strange() -> Error {
    Error::new(Kind::Io, "the far side gave an answer that can't be one")
}

impl RemoteFiles {
    /// Free bytes of the far side's file system.
    ///
    /// # Errors
    /// The errors of the system there and of the connection.
    pub fn free_bytes(&self) -> Result<u64> {
        self.0.number(&Request::Free)
    }

    /// True when the connection has ended: every call fails.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.0.calls.lock().ended.is_some()
    }

    /// Requests that were sent so far and were, or are to be, answered.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.0.next_call.load(Relaxed) - 1
    }

    /// Ends the connection, also for files and locks that are open: the far side's locks end when it
    /// has done what was asked.
    pub fn hang_up(&self) {
        drop(self.0.output.lock().take());
    }
}

impl Files for RemoteFiles {
    fn names(&self) -> Result<Vec<String>> {
        let answer = self.0.call(&Request::Names, &[])?;
        wire::names(&answer, self.0.is_own).ok_or_else(strange)
    }

    fn create(&self, name: &str) -> Result<Arc<dyn File>> {
        let handle = self.0.handle();
        self.0.open(handle, &Request::Create { handle, name })
    }

    fn open(&self, name: &str) -> Result<Arc<dyn File>> {
        let handle = self.0.handle();
        self.0.open(handle, &Request::Open { handle, name, large: false })
    }

    fn open_large(&self, name: &str) -> Result<Arc<dyn File>> {
        let handle = self.0.handle();
        self.0.open(handle, &Request::Open { handle, name, large: true })
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.0.ask(&Request::Remove { name })
    }

    fn sync_names(&self) -> Result<()> {
        self.0.ask(&Request::SyncNames)
    }

    fn lock(&self, name: &str, hold: Hold, wait: bool) -> Result<Box<dyn Lock>> {
        let handle = self.0.handle();
        self.0.ask(&Request::Lock { handle, name, hold, wait })?;
        Ok(Box::new(RemoteLock { connection: self.0.clone(), handle }))
    }
}

struct RemoteLock {
    connection: Arc<Connection>,
    handle: Handle,
}

impl Lock for RemoteLock {}

impl Drop for RemoteLock {
    fn drop(&mut self) {
        self.connection.tell(&Request::Unlock { handle: self.handle });
    }
}

struct RemoteFile {
    connection: Arc<Connection>,
    handle: Handle,
}

impl Drop for RemoteFile {
    fn drop(&mut self) {
        self.connection.tell(&Request::Close { handle: self.handle });
    }
}

impl RemoteFile {
    fn read(&self, at: u64, into: &mut [u8], from_medium: bool) -> Result<usize> {
        let mut done = 0;
        for piece in into.chunks_mut(DATA_MAX) {
            let (handle, bytes) = (self.handle, piece.len() as u32);
            let at = at + done as u64;
            let answer =
                self.connection.call(&Request::Read { handle, at, bytes, from_medium }, &[])?;
            piece.get_mut(..answer.len()).ok_or_else(strange)?.copy_from_slice(&answer);
            done += answer.len();
            if answer.len() < piece.len() {
                break;
            }
        }
        Ok(done)
    }
}

/// A sync that was asked for.
struct PendingRemote {
    coming: Coming,
    /// It stays open until then.
    _file: Arc<RemoteFile>,
    come: Mutex<Option<Answer>>,
}

impl PendingSync for PendingRemote {
    fn is_over(&self) -> bool {
        let mut come = self.come.lock();
        if come.is_none() {
            *come = match self.coming.answer.try_recv() {
                Ok(answer) => Some(answer),
                Err(mpsc::TryRecvError::Empty) => None,
                Err(mpsc::TryRecvError::Disconnected) => Some(Err(why_ended(&self.coming.calls))),
            };
        }
        come.is_some()
    }

    fn wait(self: Box<Self>) -> Result<()> {
        let PendingRemote { coming, come, .. } = *self;
        come.into_inner().unwrap_or_else(|| coming.wait()).map(|_| ())
    }
}

/// A sync that could not be asked for.
struct Unasked(Error);

impl PendingSync for Unasked {
    fn is_over(&self) -> bool {
        true
    }

    fn wait(self: Box<Self>) -> Result<()> {
        Err(self.0)
    }
}

impl File for RemoteFile {
    fn bytes(&self) -> Result<u64> {
        self.connection.number(&Request::Bytes { handle: self.handle })
    }

    fn occupied(&self) -> Result<u64> {
        self.connection.number(&Request::Occupied { handle: self.handle })
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> Result<usize> {
        self.read(at, into, false)
    }

    fn write_at(&self, at: u64, data: &[u8]) -> Result<()> {
        self.write_parts(at, &[data])
    }

    fn write_parts(&self, mut at: u64, parts: &[&[u8]]) -> Result<()> {
        let handle = self.handle;
        let mut parts = parts.to_vec();
        let mut first = 0;
        while first < parts.len() {
            // As many parts as one request may have, and a piece of the one behind them.
            let (mut some, mut bytes) = (Vec::new(), 0);
            while first < parts.len() && bytes < DATA_MAX {
                let (piece, rest) = parts[first].split_at(parts[first].len().min(DATA_MAX - bytes));
                some.push(piece);
                bytes += piece.len();
                match rest.is_empty() {
                    true => first += 1,
                    false => parts[first] = rest,
                }
            }
            self.connection.call(&Request::Write { handle, at, data: &[] }, &some)?;
            at += bytes as u64;
        }
        Ok(())
    }

    fn read_from_medium(&self, at: u64, into: &mut [u8]) -> Result<usize> {
        self.read(at, into, true)
    }

    fn keeps(&self, mut at: u64, bytes: &[u8]) -> Result<bool> {
        // Without bytes it is asked once.
        let mut pieces: Vec<&[u8]> = bytes.chunks(DATA_MAX).collect();
        if pieces.is_empty() {
            pieces.push(&[]);
        }
        for piece in pieces {
            let request = Request::Keeps { handle: self.handle, at, data: &[] };
            match &*self.connection.call(&request, &[piece])? {
                [1] => at += piece.len() as u64,
                [0] => return Ok(false),
                _ => return Err(strange()),
            }
        }
        Ok(true)
    }

    fn sync(&self) -> Result<()> {
        self.connection.ask(&Request::Sync { handle: self.handle })
    }

    fn begin_sync(self: Arc<Self>) -> Box<dyn PendingSync> {
        match self.connection.begin(&Request::Sync { handle: self.handle }, &[]) {
            Ok(coming) => Box::new(PendingRemote { coming, _file: self, come: Mutex::new(None) }),
            Err(error) => Box::new(Unasked(error)),
        }
    }

    fn set_bytes(&self, bytes: u64) -> Result<()> {
        self.connection.ask(&Request::SetBytes { handle: self.handle, bytes })
    }

    fn reserve(&self, at: u64, bytes: u64) -> Result<()> {
        self.connection.ask(&Request::Reserve { handle: self.handle, at, bytes })
    }

    fn punch(&self, at: u64, bytes: u64) -> Result<()> {
        self.connection.ask(&Request::Punch { handle: self.handle, at, bytes })
    }
}
