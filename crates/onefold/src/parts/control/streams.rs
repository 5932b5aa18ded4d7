//! Streams through the control socket: how many there may be, and which of them gives way.
//!
//! *Invariant:* a stream keeps its place while the server works for it, and while its other end goes on. One
//! whose other end is silent is ended after an hour, and after a minute when all places are taken and another one
//! comes.

use std::{
    io::{Read, Write},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use onefold_core::{Error, Kind, Result};
use parking_lot::Mutex;

/// Streams in and out at once, which may take hours.
pub(super) const STREAMS_MAX: usize = 12;

/// How long the other end of a stream may be silent. A backup that nobody goes on with would keep
/// collections from freeing space.
pub(super) const SILENT_MOST: Duration = Duration::from_secs(3600);

/// A stream whose other end was silent for so long gives way to a new one when all places are taken.
pub(super) const GIVES_WAY: Duration = Duration::from_secs(60);

/// How long a new stream waits for a place that another one gives.
const PLACE_WAIT: Duration = Duration::from_secs(5);

/// Time between two looks whether the server is stopping, while a stream is waited for.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The server does its own part of a stream, however long that takes.
const AT_WORK: u64 = u64::MAX;

/// The streams of a server.
pub(super) struct Streams {
    begun: Instant,
    /// [`SILENT_MOST`] and [`GIVES_WAY`], less in tests.
    silent_most: Duration,
    gives_way: Duration,
    all: Mutex<Vec<Arc<Silence>>>,
}

/// Whether the server waits for the other end of a stream.
struct Silence {
    /// Since when, in milliseconds since the server began; [`AT_WORK`] while it does not wait.
    since: AtomicU64,
    /// Another stream needs its place.
    is_over: AtomicBool,
}

impl Streams {
    pub(super) fn new(silent_most: Duration, gives_way: Duration) -> Streams {
        Streams { begun: Instant::now(), silent_most, gives_way, all: Mutex::default() }
    }

    /// A place for one more. When all are taken, the stream that was silent longest gives its own.
    ///
    /// # Errors
    /// `Busy` when no stream was silent for long enough.
    pub(super) fn place<'a>(&'a self, stopping: &'a AtomicBool) -> Result<StreamPlace<'a>> {
        let since = AtomicU64::new(AT_WORK);
        let silence = Arc::new(Silence { since, is_over: AtomicBool::new(false) });
        let begun = Instant::now();
        loop {
            let mut all = self.all.lock();
            if all.len() < STREAMS_MAX {
                all.push(silence.clone());
                return Ok(StreamPlace { streams: self, stopping, silence });
            }
            let first = all.iter().min_by_key(|one| one.since.load(Ordering::SeqCst));
            let silent = first.filter(|one| {
                let since = one.since.load(Ordering::SeqCst);
                Duration::from_millis(self.now().saturating_sub(since)) >= self.gives_way
            });
            let Some(silent) = silent.filter(|_| begun.elapsed() < PLACE_WAIT) else {
                let message =
                    format!("the server takes and gives {STREAMS_MAX} streams already; try again");
                return Err(Error::new(Kind::Busy, message));
            };
            silent.is_over.store(true, Ordering::SeqCst);
            drop(all);
            std::thread::sleep(LOOK_EVERY / 10);
        }
    }

    /// Milliseconds since the server began.
    fn now(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(AT_WORK - 1)
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.all.lock().len()
    }
}

/// A place among the streams, given back when it is dropped.
pub(super) struct StreamPlace<'a> {
    streams: &'a Streams,
    stopping: &'a AtomicBool,
    silence: Arc<Silence>,
}

impl StreamPlace<'_> {
    /// One direction of the stream; its socket has timeouts of [`LOOK_EVERY`].
    pub(super) fn patient<S>(&self, socket: S) -> Patient<'_, S> {
        Patient { socket, place: self }
    }
}

impl Drop for StreamPlace<'_> {
    fn drop(&mut self) {
        self.streams.all.lock().retain(|one| !Arc::ptr_eq(one, &self.silence));
    }
}

/// Waits for a client as long as the server runs, and as it is not silent for too long.
pub(super) struct Patient<'a, S> {
    socket: S,
    place: &'a StreamPlace<'a>,
}

impl<S> Patient<'_, S> {
    fn wait(
        &mut self,
        mut step: impl FnMut(&mut S) -> std::io::Result<usize>,
    ) -> std::io::Result<usize> {
        use std::io::ErrorKind::{TimedOut, WouldBlock};
        let StreamPlace { streams, stopping, silence } = self.place;
        let (begun, since) = (Instant::now(), streams.now());
        let note = |was, is| {
            let _ = silence.since.compare_exchange(was, is, Ordering::SeqCst, Ordering::SeqCst);
        };
        loop {
            match step(&mut self.socket) {
                Err(e) if matches!(e.kind(), WouldBlock | TimedOut) => {
                    // The other direction of a talk may have noted its own silence, or ended it.
                    note(AT_WORK, since);
                    let why = if stopping.load(Ordering::SeqCst) {
                        "the server is stopping"
                    } else if silence.is_over.load(Ordering::SeqCst) {
                        "the other side was silent, and another stream needed its place"
                    } else if begun.elapsed() >= streams.silent_most {
                        "the other side was silent for an hour"
                    } else {
                        continue;
                    };
                    return Err(std::io::Error::other(why));
                }
                done => {
                    silence.since.store(AT_WORK, Ordering::SeqCst);
                    silence.is_over.store(false, Ordering::SeqCst);
                    return done;
                }
            }
        }
    }
}

impl<S: Read> Read for Patient<'_, S> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        self.wait(|socket| socket.read(into))
    }
}

impl<S: Write> Write for Patient<'_, S> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.place.stopping.load(Ordering::SeqCst) {
            return Err(std::io::Error::other("the server is stopping"));
        }
        self.wait(|socket| socket.write(bytes))
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.socket.flush()
    }
}
