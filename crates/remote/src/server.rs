//! The side where the files are.
//!
//! One thread reads requests, [`WORKERS`] do them, and each wait for a lock has its own. What a
//! connection may hold is bounded: open files, locks, and bytes of requests under way.

use std::{
    collections::HashMap,
    io::{self, Read, Write},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc,
    },
    time::{Duration, Instant},
};

use onefold_core::{Error, File, Files, Hold, Kind, Lock, Result};
use parking_lot::{Condvar, Mutex};

use crate::{
    rights::{Right, Stay},
    wire::{self, DATA_MAX, Greeting, Handle, Request},
};

/// Requests that are done at once.
const WORKERS: usize = 8;

/// Most bytes of requests and answers under way, but for one.
const UNDER_WAY_MAX: usize = 8 * DATA_MAX;

/// Bytes of [`UNDER_WAY_MAX`] that a request takes at least: while it waits it costs more than its bytes.
const REQUEST_LEAST: usize = 4 << 10;

/// Most files that a connection has open.
const FILES_MAX: usize = 4096;

/// Most locks that a connection holds or waits for.
const LOCKS_MAX: usize = 64;

/// How long a lock is waited for within one turn.
const IN_TURN: Duration = Duration::from_secs(10);

/// How often it is asked for meanwhile.
const PAUSE: Duration = Duration::from_millis(5);

/// How long a turn outlasts its lock: by then a writer that waits has the lock.
const AFTER_TURN: Duration = Duration::from_millis(50);

/// Turns that outlast their locks at most; further locks wait.
const TURNS_MAX: usize = 32;

/// When something was heard of the other side, and since when it holds locks. The thread that answers shares
/// this with the one that looks for silent connections.
#[derive(Clone)]
pub struct Pulse(Arc<Mutex<Signs>>);

struct Signs {
    heard: Instant,
    /// By the number of the lock: its name, and since when the other side has that name's lock.
    locked: HashMap<Handle, (String, Instant)>,
    /// The other side kept a lock for which writers wait.
    is_over: bool,
}

impl Default for Pulse {
    fn default() -> Pulse {
        let (heard, locked) = (Instant::now(), HashMap::new());
        Pulse(Arc::new(Mutex::new(Signs { heard, locked, is_over: false })))
    }
}

impl Pulse {
    /// How long the other side has been silent. If it holds locks and may not do everything, only requests
    /// count, and not the word that it is still there.
    #[must_use]
    pub fn silence(&self) -> Duration {
        self.0.lock().heard.elapsed()
    }

    /// How long the other side has held the lock that it has held longest. A lock that it took again before
    /// it gave it back counts from the first time.
    #[must_use]
    pub fn longest_lock(&self) -> Duration {
        let signs = self.0.lock();
        signs.locked.values().map(|(_, since)| since.elapsed()).max().unwrap_or_default()
    }

    /// True when the other side kept a lock for which writers wait, and lost it: it gets no more answers,
    /// and the connection is to end.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.0.lock().is_over
    }

    fn beat(&self, is_progress: bool) {
        let mut signs = self.0.lock();
        if is_progress || signs.locked.is_empty() {
            signs.heard = Instant::now();
        }
    }

    fn locked(&self, handle: Handle, name: &str) {
        let locked = &mut self.0.lock().locked;
        let earlier = locked.values().filter(|(other, _)| other == name).map(|(_, since)| *since);
        let since = earlier.min().unwrap_or_else(Instant::now);
        locked.insert(handle, (name.to_owned(), since));
    }

    fn unlocked(&self, handle: Handle) {
        self.0.lock().locked.remove(&handle);
    }
}

/// The files that the other side may use.
pub struct Offer {
    /// The files.
    pub files: Arc<dyn Files>,
    /// True for names that the other side may use; all others are not there for it.
    pub is_own: fn(&str) -> bool,
    /// The locks that the other side may ask for, not alone, when it may only read; how long it may have each, also
    /// alone, when it may add.
    pub reader_lock: fn(&str) -> Option<Stay>,
    /// How long the other side may hold a lock that is [`Stay::Brief`].
    pub brief: Duration,
    /// Waits for the turn in which such a lock may be held. A connection that has the turn keeps later ones
    /// waiting, so that there are moments in which no connection holds the lock.
    pub turn: Box<dyn Fn() -> Result<Box<dyn Lock>> + Send + Sync>,
    /// Free bytes of the file system.
    pub free_bytes: Box<dyn Fn() -> Result<u64> + Send + Sync>,
    /// Is told of each act that was done or refused, before the other side has its answer; the workers
    /// call it, several at a time.
    pub heard: Box<dyn Fn(Act<'_>) + Send + Sync>,
}

/// An act of the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act<'a> {
    /// Made a file with this name.
    Created(&'a str),
    /// Removed the file with this name.
    Removed(&'a str),
    /// Read so many bytes.
    Read(u64),
    /// Wrote so many bytes.
    Wrote(u64),
    /// Punched a hole of so many bytes into a file.
    Freed(u64),
    /// Gave a file another length.
    Resized,
    /// Was refused this request, with this name, which may be any text.
    Refused(&'static str, Option<&'a str>),
}

/// All that the threads of a connection share.
struct House {
    offer: Offer,
    right: Right,
    pulse: Pulse,
    open: Mutex<HashMap<Handle, Arc<dyn File>>>,
    locks: Mutex<Locks>,
    /// A lock that is brief was taken or given back, or a turn ended.
    turns: Condvar,
    output: Mutex<Box<dyn Write + Send>>,
    /// The other side takes no answers any more.
    is_deaf: AtomicBool,
    under_way: Mutex<usize>,
    less: Condvar,
}

#[derive(Default)]
struct Locks {
    seats: HashMap<Handle, Seat>,
    /// Turns whose locks were given back, and when they end.
    after: Vec<(Instant, Box<dyn Lock>)>,
    /// The connection ends.
    is_closing: bool,
}

/// A lock, or the place of one that is waited for.
enum Seat {
    Waits,
    Holds(#[expect(dead_code, reason = "the lock ends with it")] Box<dyn Lock>, Option<Turn>),
}

/// When a lock that is brief has to be given back, and its turn.
type Turn = (Instant, Box<dyn Lock>);

impl Locks {
    /// Ends locks; their turns end a moment later.
    fn end(&mut self, ends: impl Fn(Handle, Option<Instant>) -> bool) {
        let until = Instant::now() + AFTER_TURN;
        let after = &mut self.after;
        self.seats.retain(|handle, seat| {
            let Seat::Holds(_, turn) = seat else { return true };
            let is_kept = !ends(*handle, turn.as_ref().map(|(until, _)| *until));
            if !is_kept && let Some((_, turn)) = turn.take() {
                after.push((until, turn));
            }
            is_kept
        });
    }

    /// When the next lock has to be given back, or the next turn ends.
    fn next(&self) -> Option<Instant> {
        let held = self.seats.values().filter_map(|seat| match seat {
            Seat::Holds(_, Some((until, _))) => Some(*until),
            _ => None,
        });
        held.chain(self.after.iter().map(|(until, _)| *until)).min()
    }
}

/// The result of a request.
enum Done {
    Nothing,
    Bytes(Vec<u8>),
}

type Job = Box<dyn FnOnce(&House) + Send>;

/// Greets, then does what the other side asks until it ends its stream. Then all requests that had
/// arrived are done, and after that the locks of the other side end.
///
/// # Errors
/// `InvalidInput` when the other side does not keep to the protocol, and those of the streams.
pub fn answer(
    offer: Offer,
    greeting: &Greeting,
    mut input: impl Read,
    mut output: Box<dyn Write + Send>,
    pulse: &Pulse,
) -> Result<()> {
    let failed = |e: io::Error| Error::from_io("the connection failed", e);
    greeting.send(&mut *output).map_err(failed)?;
    let house = Arc::new(House {
        offer,
        right: greeting.right,
        pulse: pulse.clone(),
        open: Mutex::default(),
        locks: Mutex::default(),
        turns: Condvar::new(),
        output: Mutex::new(output),
        is_deaf: AtomicBool::new(false),
        under_way: Mutex::new(0),
        less: Condvar::new(),
    });
    let (send, jobs) = mpsc::channel::<Job>();
    let jobs = Mutex::new(jobs);
    // A thread of its own watches, also while a worker can't get rid of an answer.
    let of_thread = house.clone();
    let watch = (house.right < Right::Manage).then(|| {
        std::thread::Builder::new().name("turns".into()).spawn(move || of_thread.watch_turns())
    });
    let watch = watch.transpose().map_err(|e| Error::from_io("can't watch locks", e))?;
    let end = std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                while let Ok(job) = { jobs.lock().recv() } {
                    job(&house);
                }
            });
        }
        let end = loop {
            if house.is_deaf.load(Relaxed) {
                break Ok(());
            }
            let frame = match wire::request_frame(&mut input) {
                Ok(Some(frame)) => frame,
                Ok(None) => break Ok(()),
                Err(error) => break Err(failed(error)),
            };
            if let Err(error) = take(&house, frame, &send) {
                break Err(error);
            }
        };
        drop(send);
        end
    });
    house.locks.lock().is_closing = true;
    house.turns.notify_all();
    // It panics no more than they do.
    let _ = watch.map(std::thread::JoinHandle::join);
    end
}

/// Takes one request, and has it done.
fn take(house: &Arc<House>, frame: Vec<u8>, jobs: &mpsc::Sender<Job>) -> Result<()> {
    let strange = || Error::new(Kind::InvalidInput, "the other side sent what is no request");
    let (id, request) = wire::request(&frame).ok_or_else(strange)?;
    if house.is_deaf.load(Relaxed) {
        return Ok(());
    }
    house.pulse.beat(request != Request::Alive || house.right == Right::Manage);
    if let Err(error) = house.right.allows(&request, house.offer.reader_lock) {
        let (asked, name) = request.shown();
        (house.offer.heard)(Act::Refused(asked, name));
        house.say(id, Err(error));
        return Ok(());
    }
    match request {
        Request::Alive => return Ok(()),
        Request::Close { handle } => {
            house.open.lock().remove(&handle);
            return Ok(());
        }
        Request::Unlock { handle } => {
            // A lock that is still waited for keeps its place: nobody can end that wait.
            let mut locks = house.locks.lock();
            if matches!(locks.seats.get(&handle), Some(Seat::Holds(..))) {
                locks.end(|other, _| other == handle);
                house.pulse.unlocked(handle);
                house.turns.notify_all();
            }
            return Ok(());
        }
        Request::Lock { handle, .. } => {
            wait_for_lock(house, id, handle, frame);
            return Ok(());
        }
        _ => {}
    }
    let bytes = match &request {
        Request::Read { bytes, .. } => *bytes as usize,
        _ => frame.len(),
    };
    let bytes = bytes.max(REQUEST_LEAST);
    // The file is looked up now, since a later request may close it.
    let file = match request {
        Request::Bytes { handle }
        | Request::Occupied { handle }
        | Request::Read { handle, .. }
        | Request::Write { handle, .. }
        | Request::Keeps { handle, .. }
        | Request::Sync { handle }
        | Request::SetBytes { handle, .. }
        | Request::Reserve { handle, .. }
        | Request::Punch { handle, .. } => match house.open.lock().get(&handle).cloned() {
            None => return Err(strange()),
            file => file,
        },
        _ => None,
    };
    house.enter(bytes);
    let job = move |house: &House| {
        let done = wire::request(&frame)
            .ok_or_else(strange)
            .and_then(|(_, request)| house.do_one(&request, file.as_deref()));
        drop(frame);
        house.say(id, done);
        house.leave(bytes);
    };
    // The workers end after the sender.
    let _ = jobs.send(Box::new(job));
    Ok(())
}

/// Waits for a lock, on a thread of its own.
fn wait_for_lock(house: &Arc<House>, id: u64, handle: Handle, frame: Vec<u8>) {
    let wait = move |house: &House| {
        let Some((_, Request::Lock { name, hold, wait, .. })) = wire::request(&frame) else {
            return;
        };
        let locked = house.lock(name, hold, wait);
        let mut locks = house.locks.lock();
        locks.seats.remove(&handle);
        // Nobody would end this lock in time.
        if house.is_deaf.load(Relaxed) {
            return;
        }
        let said = locked.map(|(lock, turn)| {
            let turn = turn.map(|turn| (Instant::now() + house.offer.brief, turn));
            locks.seats.insert(handle, Seat::Holds(lock, turn));
            house.pulse.locked(handle, name);
            house.turns.notify_all();
            Done::Nothing
        });
        drop(locks);
        house.say(id, said);
    };
    let full = |why| Err(Error::new(Kind::InvalidInput, why));
    {
        let mut locks = house.locks.lock();
        let is_full =
            |locks: &mut Locks| locks.after.len() >= TURNS_MAX && !house.is_deaf.load(Relaxed);
        house.turns.wait_while(&mut locks, is_full);
        if locks.seats.contains_key(&handle) {
            drop(locks);
            return house.say(id, full("a lock has this number"));
        }
        if locks.seats.len() >= LOCKS_MAX {
            drop(locks);
            return house.say(id, full("too many locks"));
        }
        locks.seats.insert(handle, Seat::Waits);
    }
    let of_thread = house.clone();
    // A thread that still waits when the connection ends goes with the process.
    let thread = std::thread::Builder::new().name("lock".into()).spawn(move || wait(&of_thread));
    if let Err(error) = thread {
        house.locks.lock().seats.remove(&handle);
        house.say(id, Err(Error::from_io("can't wait for a lock", error)));
    }
}

impl House {
    /// Waits until there is room for so many bytes of requests and answers.
    fn enter(&self, bytes: usize) {
        let mut under_way = self.under_way.lock();
        self.less.wait_while(&mut under_way, |all| *all > 0 && *all + bytes > UNDER_WAY_MAX);
        *under_way += bytes;
    }

    fn leave(&self, bytes: usize) {
        *self.under_way.lock() -= bytes;
        self.less.notify_all();
    }

    /// Takes a lock, in its turn if it is brief.
    fn lock(
        &self,
        name: &str,
        hold: Hold,
        wait: bool,
    ) -> Result<(Box<dyn Lock>, Option<Box<dyn Lock>>)> {
        self.own(name)?;
        let is_brief =
            self.right < Right::Manage && (self.offer.reader_lock)(name) == Some(Stay::Brief);
        if !is_brief {
            return Ok((self.offer.files.lock(name, hold, wait)?, None));
        }
        // Waiting within a turn is bounded, so that a turn is: later ones wait for it.
        loop {
            let turn = (self.offer.turn)()?;
            let until = Instant::now() + IN_TURN.min(self.offer.brief);
            loop {
                match self.offer.files.lock(name, hold, false) {
                    Err(error) if wait && error.kind() == Kind::Busy => {}
                    locked => return Ok((locked?, Some(turn))),
                }
                if Instant::now() >= until {
                    break;
                }
                std::thread::sleep(PAUSE);
            }
            if self.is_deaf.load(Relaxed) || self.locks.lock().is_closing {
                return Err(Error::new(Kind::Stopped, "the connection ends"));
            }
        }
    }

    /// Ends turns a moment after their locks, until the connection ends. If the other side keeps a lock for
    /// which writers wait, it loses the lock and gets no more answers, since it does not know of the loss.
    fn watch_turns(&self) {
        let mut locks = self.locks.lock();
        loop {
            let now = Instant::now();
            locks.after.retain(|(until, _)| *until > now);
            self.turns.notify_all();
            let is_late = |until: Option<Instant>| until.is_some_and(|until| until <= now);
            let has_late = locks.next().is_some_and(|next| is_late(Some(next)));
            if has_late || locks.is_closing {
                self.is_deaf.store(true, Relaxed);
                locks.end(|_, until| until.is_some());
                if !locks.after.is_empty() {
                    std::thread::sleep(AFTER_TURN);
                    locks.after.clear();
                }
                self.turns.notify_all();
                self.pulse.0.lock().is_over = has_late;
                return;
            }
            match locks.next() {
                Some(next) => drop(self.turns.wait_until(&mut locks, next)),
                None => self.turns.wait(&mut locks),
            }
        }
    }

    fn say(&self, id: u64, done: Result<Done>) {
        let answer = match &done {
            Ok(Done::Nothing) => Ok(&[][..]),
            Ok(Done::Bytes(bytes)) => Ok(&bytes[..]),
            Err(error) => Err(error),
        };
        let mut output = self.output.lock();
        if self.is_deaf.load(Relaxed) {
            return;
        }
        if wire::send_answer(&mut **output, id, answer).is_err() {
            self.is_deaf.store(true, Relaxed);
        }
    }

    fn keep(&self, handle: Handle, open: impl FnOnce() -> Result<Arc<dyn File>>) -> Result<Done> {
        let full = |why| Err(Error::new(Kind::InvalidInput, why));
        {
            let files = self.open.lock();
            if files.contains_key(&handle) {
                return full("an open file has this number");
            }
            if files.len() >= FILES_MAX {
                return full("too many open files");
            }
        }
        let file = open()?;
        self.open.lock().insert(handle, file);
        Ok(Done::Nothing)
    }

    /// Makes sure that the other side may use a name.
    ///
    /// # Errors
    /// `Denied`.
    fn own(&self, name: &str) -> Result<()> {
        if (self.offer.is_own)(name) {
            return Ok(());
        }
        (self.offer.heard)(Act::Refused("name", Some(name)));
        let why = format!("{} is no file of an archive", name.escape_debug());
        Err(Error::new(Kind::Denied, why))
    }

    fn do_one(&self, request: &Request<'_>, file: Option<&dyn File>) -> Result<Done> {
        let none = || Error::new(Kind::InvalidInput, "no file has this number");
        let file = || file.ok_or_else(none);
        match *request {
            Request::Names => {
                let mut names = self.offer.files.names()?;
                names.retain(|name| (self.offer.is_own)(name));
                let names = wire::encode_names(&names);
                match names.len() <= wire::NAMES_MAX {
                    true => return Ok(Done::Bytes(names)),
                    false => return Err(Error::new(Kind::Memory, "too many files")),
                }
            }
            Request::Create { handle, name } => {
                self.own(name)?;
                let done = self.keep(handle, || self.offer.files.create(name))?;
                (self.offer.heard)(Act::Created(name));
                return Ok(done);
            }
            Request::Open { handle, name, large } => {
                self.own(name)?;
                return self.keep(handle, || match large {
                    true => self.offer.files.open_large(name),
                    false => self.offer.files.open(name),
                });
            }
            Request::Remove { name } => {
                self.own(name)?;
                self.offer.files.remove(name)?;
                (self.offer.heard)(Act::Removed(name));
            }
            Request::SyncNames => self.offer.files.sync_names()?,
            Request::Free => {
                return Ok(Done::Bytes((self.offer.free_bytes)()?.to_le_bytes().into()));
            }
            Request::Bytes { .. } => {
                return Ok(Done::Bytes(file()?.bytes()?.to_le_bytes().into()));
            }
            Request::Occupied { .. } => {
                return Ok(Done::Bytes(file()?.occupied()?.to_le_bytes().into()));
            }
            Request::Read { at, bytes, from_medium, .. } => {
                let mut into = vec![0; bytes as usize];
                let n = match from_medium {
                    true => file()?.read_from_medium(at, &mut into)?,
                    false => file()?.read_at(at, &mut into)?,
                };
                into.truncate(n);
                (self.offer.heard)(Act::Read(n as u64));
                return Ok(Done::Bytes(into));
            }
            Request::Write { at, data, .. } => {
                file()?.write_at(at, data)?;
                (self.offer.heard)(Act::Wrote(data.len() as u64));
            }
            Request::Keeps { at, data, .. } => {
                return Ok(Done::Bytes(vec![file()?.keeps(at, data)?.into()]));
            }
            Request::Sync { .. } => file()?.sync()?,
            Request::SetBytes { bytes, .. } => {
                file()?.set_bytes(bytes)?;
                (self.offer.heard)(Act::Resized);
            }
            Request::Reserve { at, bytes, .. } => file()?.reserve(at, bytes)?,
            Request::Punch { at, bytes, .. } => {
                file()?.punch(at, bytes)?;
                (self.offer.heard)(Act::Freed(bytes));
            }
            Request::Lock { .. }
            | Request::Close { .. }
            | Request::Unlock { .. }
            | Request::Alive => {}
        }
        Ok(Done::Nothing)
    }
}
