//! The log: finding its end, reading a frame, and appending one until it is known whose it is.
//!
//! *Invariant:* a frame is never deleted and never written twice. So a creation that comes late finds its name
//! taken, or is the next frame.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use onefold_core::{Error, Kind, Result};
use parking_lot::Mutex;

use crate::{
    format::{FRAME_MAX, Frame, LOG, damaged, frame_name, frame_of},
    objects::{Body, Created, Listed, Objects},
    pace::Pace,
    rules::Rule,
    settings::Settings,
};

/// Frames that are remembered, and the most bytes of one.
const READ: usize = 32;
const READ_BYTES: usize = 128 << 10;

/// Bytes that are read of a frame at first.
const FIRST: u64 = 64 << 10;

/// How often a request that failed is sent, when the store has answered before.
const TRIES: u32 = 10;

/// How often it is sent to a store that has not: perhaps the address is wrong.
const FIRST_TRIES: u32 = 4;

/// The pause before the first of these times; each next one is twice as long.
const PAUSE: Duration = Duration::from_millis(200);

/// How long a request is sent again, if that was done three times at least. A process that was asleep tries again.
const ANSWER: Duration = Duration::from_secs(180);

/// Times after which only the time counts.
const LEAST: u32 = 3;

/// How long one waits in silence.
const SILENT: Duration = Duration::from_secs(5);

/// Between two sentences about waiting.
pub(crate) const TELL_EVERY: Duration = Duration::from_secs(60);

/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(20);

/// The store, with what is asked of it until it answers.
#[derive(Clone)]
pub struct Log {
    pub(crate) objects: Arc<dyn Objects>,
    pub(crate) pace: Arc<dyn Pace>,
    pub(crate) settings: Settings,
    /// The store has answered.
    met: Arc<AtomicBool>,
    /// When somebody was told of waiting, in milliseconds and one more; 0 when nobody waits.
    told: Arc<AtomicU64>,
    /// The frames that were read last, with their objects' bytes. None of them changes.
    read: Arc<Mutex<VecDeque<(Frame, Arc<[u8]>)>>>,
}

/// Whose frame it is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Appended {
    Ours,
    Others,
}

/// True for failures that may pass.
fn may_pass(error: &Error) -> bool {
    matches!(error.kind(), Kind::Io | Kind::Busy)
}

impl Log {
    /// The log in a store.
    #[must_use]
    pub fn new(objects: Arc<dyn Objects>, pace: Arc<dyn Pace>, settings: Settings) -> Log {
        Log {
            objects,
            pace,
            settings,
            met: Arc::default(),
            told: Arc::default(),
            read: Arc::default(),
        }
    }

    /// The same log at a later time. The last frame that was read is read again: the store may have gone back.
    pub(crate) fn for_later(&self, settings: Settings) -> Log {
        let log = Log { settings, ..self.clone() };
        let mut read = log.read.lock();
        let last = read.iter().map(|(frame, _)| frame.number).max();
        read.retain(|(frame, _)| Some(frame.number) != last);
        drop(read);
        log
    }

    /// Asks again while failures may pass, and tells that it does when that takes long.
    ///
    /// # Errors
    /// The last one, after [`TRIES`] times or [`ANSWER`].
    pub(crate) fn ask<T>(&self, what: &mut dyn FnMut() -> Result<T>) -> Result<T> {
        let (begun, mut pause) = (self.pace.now(), PAUSE);
        let tries = if self.met.load(Relaxed) { TRIES } else { FIRST_TRIES };
        for done in 1.. {
            let error = match what() {
                Err(error) if may_pass(&error) => error,
                known => {
                    self.answered();
                    return known;
                }
            };
            let waited = self.pace.now().saturating_sub(begun);
            if done >= tries || done >= LEAST && waited >= ANSWER {
                return Err(error);
            }
            self.tell_of_waiting(waited, ANSWER, &error);
            self.pace.sleep(pause);
            pause = (pause * 2).min(PAUSE_MAX);
        }
        Err(Error::new(Kind::Io, "no answer"))
    }

    /// The store has answered: who was told of waiting is told of that.
    fn answered(&self) {
        self.met.store(true, Relaxed);
        if self.told.load(Relaxed) > 0 && self.told.swap(0, Relaxed) > 0 {
            (self.settings.tell)("the object store answers again");
        }
    }

    /// Tells that the store does not answer, and until when it is asked again.
    fn tell_of_waiting(&self, waited: Duration, most: Duration, error: &Error) {
        // All threads together once a minute.
        let now = self.pace.now();
        let before = self.told.load(Relaxed);
        let is_due = before == 0 || now >= TELL_EVERY + Duration::from_millis(before - 1);
        let mark = now.as_millis() as u64 + 1;
        if waited >= SILENT
            && is_due
            && self.told.compare_exchange(before, mark, Relaxed, Relaxed).is_ok()
        {
            let (waited, left) = (waited.as_secs(), most.saturating_sub(waited).as_secs().max(1));
            (self.settings.tell)(&format!(
                "the object store has not answered for {waited} s: {error}; trying again for at most {left} s"
            ));
        }
    }

    /// A range of an object that is as long as the object is there; of an object with `total` bytes, if
    /// that is known.
    ///
    /// # Errors
    /// `NotFound`, `Corrupt` when the object has another length, and those of the store.
    pub(crate) fn get(&self, name: &str, at: u64, bytes: u64, total: Option<u64>) -> Result<Body> {
        self.ask(&mut || {
            let body = self.objects.get(name, at, bytes)?;
            let there = body.total.saturating_sub(at).min(bytes);
            let is_whole = body.bytes.len() as u64 == there;
            if !is_whole && self.settings.keeps(Rule::BodiesWhole) {
                let why = format!("{name} came with {} bytes of {there}", body.bytes.len());
                return Err(Error::new(Kind::Io, why));
            }
            match total {
                Some(total) if total != body.total && is_whole => {
                    let why = format!("{name} has {} bytes, and {total} were stored", body.total);
                    Err(Error::new(Kind::Corrupt, why))
                }
                _ => Ok(body),
            }
        })
    }

    /// A whole object of at most `most` bytes.
    pub(crate) fn whole(&self, name: &str, most: u64) -> Result<Vec<u8>> {
        let first = self.get(name, 0, FIRST, None)?;
        if first.total > most {
            return Err(damaged(&format!("{name} has {} bytes", first.total)));
        }
        let mut bytes = first.bytes;
        if first.total > FIRST {
            let rest = self.get(name, FIRST, first.total - FIRST, Some(first.total))?;
            bytes.extend(rest.bytes);
        }
        Ok(bytes)
    }

    /// The frame of a number.
    ///
    /// # Errors
    /// `NotFound` when there is none yet, `Corrupt`, and those of the store.
    pub fn frame(&self, number: u64) -> Result<Frame> {
        self.frame_and_bytes(number).map(|(frame, _)| frame)
    }

    /// The same, with the bytes of its object.
    pub(crate) fn frame_and_bytes(&self, number: u64) -> Result<(Frame, Arc<[u8]>)> {
        if let Some(read) = self.read.lock().iter().find(|(frame, _)| frame.number == number) {
            return Ok(read.clone());
        }
        let name = frame_name(number);
        let mut last = None;
        // A body that was mixed up on its way may be right the next time.
        for _ in 0..3 {
            let bytes = self.whole(&name, FRAME_MAX)?;
            match Frame::decode_checked(&bytes, number, self.settings.keeps(Rule::BodiesHashed)) {
                Ok(frame) => {
                    let read = (frame, Arc::from(bytes));
                    self.remember(&read);
                    return Ok(read);
                }
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| damaged("it can't be read")).context(name))
    }

    fn remember(&self, read: &(Frame, Arc<[u8]>)) {
        if read.1.len() > READ_BYTES {
            return;
        }
        let mut all = self.read.lock();
        all.push_back(read.clone());
        if all.len() > READ {
            all.pop_front();
        }
    }

    /// True when the frame is there.
    fn has(&self, number: u64) -> Result<bool> {
        match self.get(&frame_name(number), 0, 1, None) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == Kind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The number of the last frame, at least `from`; 0 for no frame. All before it are there.
    ///
    /// # Errors
    /// `Corrupt` for a log without an end, and those of the store.
    pub fn end(&self, from: u64) -> Result<u64> {
        let endless = || damaged("the log has no end");
        let (mut low, mut step) = (from, 1_u64);
        while self.has(low.checked_add(step).ok_or_else(endless)?)? {
            low += step;
            step = step.checked_mul(2).ok_or_else(endless)?;
        }
        // `low` is there, and `low + step` is not.
        while step > 1 {
            step /= 2;
            if self.has(low + step)? {
                low += step;
            }
        }
        Ok(low)
    }

    /// A frame that lies behind one that is not there: the store lost that one.
    ///
    /// # Errors
    /// The store's.
    pub(crate) fn beyond(&self, last: u64) -> Result<Option<String>> {
        let mut beyond = None;
        self.list(LOG, &frame_name(last), &mut |one| {
            beyond = frame_of(&one.name).filter(|number| *number > last).map(frame_name);
            beyond.is_some()
        })?;
        Ok(beyond)
    }

    /// Gives `take` the objects of a folder behind a name, in order, until it returns true. Names may be of any
    /// form, and lie in a folder of the folder.
    ///
    /// # Errors
    /// `Unsupported` for more than [`Settings::names_max`] names, and those of the store.
    pub(crate) fn list(
        &self,
        folder: &str,
        after: &str,
        take: &mut dyn FnMut(Listed) -> bool,
    ) -> Result<()> {
        let (mut after, mut names) = (after.to_owned(), 0);
        loop {
            let some = self.ask(&mut || self.objects.list(folder, &after))?;
            let Some(last) = some.last().map(|last| last.name.clone()) else { return Ok(()) };
            if last <= after {
                return Ok(());
            }
            names += some.len();
            if names > self.settings.names_max {
                let why = format!(
                    "the object store lists more than {} names in {folder}: no archive has so many. \
                     Something else writes there, or it is no true listing",
                    self.settings.names_max
                );
                return Err(Error::new(Kind::Unsupported, why));
            }
            after = last;
            for one in some {
                if take(one) {
                    return Ok(());
                }
            }
        }
    }

    /// Appends a frame: sends the same bytes to the same name until it is known whose frame that is.
    ///
    /// # Errors
    /// `Io` when that was not known in time: the frame may be there, come later, or never.
    pub(crate) fn append(&self, number: u64, bytes: &[u8]) -> Result<Appended> {
        let name = frame_name(number);
        let is_ours = || self.has_bytes(&name, bytes, FRAME_MAX);
        self.settle(&name, bytes, &|| {
            if !self.settings.keeps(Rule::UnknownIsSentAgain) {
                return Ok(false);
            }
            is_ours()
        })
        .map(|ours| if ours { Appended::Ours } else { Appended::Others })
    }

    /// True when the object has these bytes. It is read again when not: a body may be mixed up on its way.
    fn has_bytes(&self, name: &str, bytes: &[u8], most: u64) -> Result<bool> {
        for _ in 0..3 {
            if self.whole(name, most)? == bytes {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Creates an object that nobody else may create.
    ///
    /// # Errors
    /// `Io` when it is not known in time that it is there, `Corrupt` when another one is.
    pub(crate) fn create_own(&self, name: &str, bytes: &[u8], most: u64) -> Result<()> {
        let is_ours = || self.has_bytes(name, bytes, most);
        match self.settle(name, bytes, &is_ours)? {
            true => Ok(()),
            false => {
                let why = format!(
                    "{name} is there already, with other bytes: two processes write as one"
                );
                Err(Error::new(Kind::Corrupt, why))
            }
        }
    }

    /// Sends the bytes until they are there, or something else is; true when they are.
    fn settle(&self, name: &str, bytes: &[u8], is_ours: &dyn Fn() -> Result<bool>) -> Result<bool> {
        let (begun, mut pause) = (self.pace.now(), PAUSE);
        loop {
            let error = match self.objects.create(name, bytes) {
                Created::New => {
                    self.answered();
                    return Ok(true);
                }
                Created::Exists => match is_ours() {
                    // A listing that lags, or a store that lost it just now.
                    Err(error) if may_pass(&error) || error.kind() == Kind::NotFound => error,
                    known => return known,
                },
                Created::Unknown(_) if !self.settings.keeps(Rule::UnknownIsNoSuccess) => {
                    return Ok(true);
                }
                // It was refused for good: the store says so.
                Created::Unknown(error) if !may_pass(&error) => return Err(error),
                Created::Unknown(error) => error,
            };
            let waited = self.pace.now().saturating_sub(begun);
            if waited > self.settings.settle {
                let why = format!("nobody knows whether {name} was created");
                return Err(Error::new(Kind::Io, format!("{why}: {error}")));
            }
            self.tell_of_waiting(waited, self.settings.settle, &error);
            self.pace.sleep(pause);
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }
}
