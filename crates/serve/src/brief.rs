//! Calls of the system that take a moment, unless a client sees to it that they do not.
//!
//! A client can bring a descriptor whose last close waits, or an event on which writing waits, for as
//! long as it likes. Such a wait ends when the thread gets a signal. So each thread says here when it
//! is within such a call, and one that watches sends a signal to whoever is there for too long.
//!
//! *Invariants.* A signal comes while its thread is within [`briefly`], and at no other time: nothing
//! else has to expect that it is interrupted. *Threads:* all that serve, and one that watches. That one
//! sleeps while nobody says anything.

use std::sync::atomic::{
    AtomicU8, AtomicU64,
    Ordering::{Acquire, SeqCst},
};
use std::sync::{Arc, LazyLock};
use std::thread::Thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::system;

/// How long a call may take before it is interrupted.
const MOST: Duration = Duration::from_millis(50);
/// How often the watching thread looks.
const TICK: Duration = Duration::from_millis(20);
/// How many times it sees that nobody said anything before it sleeps.
const QUIET_TICKS: u32 = 100;

/// The watching thread sleeps; it looks, and nobody said anything since; or somebody did.
const ASLEEP: u8 = 0;
const AWAKE: u8 = 1;
const USED: u8 = 2;

/// A thread is in no call.
const OUTSIDE: u64 = 0;
/// A signal is being sent to the thread, which has to wait for that.
const SENDING: u64 = u64::MAX;
/// Beside the time: a signal was sent.
const SENT: u64 = 1;

static WATCH: LazyLock<Watch> = LazyLock::new(|| Watch {
    began: Instant::now(),
    slots: Mutex::default(),
    state: AtomicU8::new(ASLEEP),
    thread: Mutex::new(None),
});

struct Watch {
    /// The start of its times.
    began: Instant,
    slots: Mutex<Vec<Arc<Slot>>>,
    state: AtomicU8,
    thread: Mutex<Option<Thread>>,
}

/// What a thread says.
struct Slot {
    thread: libc::pid_t,
    /// Twice the time at which it began the call that it is in, or one of the numbers above.
    since: AtomicU64,
}

/// A thread's slot, for as long as the thread is there.
struct Mine(Arc<Slot>);

thread_local! {
    static MINE: Mine = Mine::new();
}

/// The thread is within a call, until this is dropped by the same thread.
pub(crate) struct Within(Arc<Slot>);

/// Makes a call of the system that takes a moment. If it waits for longer, it is interrupted: it fails
/// with `EINTR` then, or returns what it has done.
pub(crate) fn briefly<T>(call: impl FnOnce() -> T) -> T {
    let _within = within();
    call()
}

/// Says that this thread is within such a call; nothing when it has said so already, or ends.
pub(crate) fn within() -> Option<Within> {
    let slot = MINE.try_with(|mine| mine.0.clone()).ok()?;
    if slot.since.load(Acquire) != OUTSIDE {
        return None;
    }
    slot.since.store(WATCH.time() << 1, SeqCst);
    WATCH.look_out();
    Some(Within(slot))
}

impl Drop for Within {
    fn drop(&mut self) {
        let mut since = self.0.since.load(Acquire);
        loop {
            if since == SENDING {
                std::thread::yield_now();
                since = self.0.since.load(Acquire);
                continue;
            }
            match self.0.since.compare_exchange(since, OUTSIDE, SeqCst, Acquire) {
                Ok(_) => break,
                Err(now) => since = now,
            }
        }
        if since & SENT != 0 {
            // The signal has been sent; if it has not come yet, it comes before this call returns.
            std::thread::yield_now();
        }
    }
}

impl Mine {
    fn new() -> Mine {
        system::catch_interrupts();
        let since = AtomicU64::new(OUTSIDE);
        let slot = Arc::new(Slot { thread: system::this_thread(), since });
        WATCH.slots.lock().push(slot.clone());
        Mine(slot)
    }
}

impl Drop for Mine {
    fn drop(&mut self) {
        let mut slots = WATCH.slots.lock();
        if let Some(at) = slots.iter().position(|slot| Arc::ptr_eq(slot, &self.0)) {
            slots.swap_remove(at);
        }
    }
}

impl Slot {
    /// Interrupts the thread if it is within a call for too long at `now`; false when it is in none.
    fn look(&self, now: u64) -> bool {
        let since = self.since.load(SeqCst);
        if since == OUTSIDE {
            return false;
        }
        let long = now.saturating_sub(since >> 1) >= MOST.as_millis() as u64;
        if long && self.since.compare_exchange(since, SENDING, SeqCst, Acquire).is_ok() {
            system::interrupt(self.thread);
            // It may have come just before the wait began: then there is another one.
            self.since.store(since | SENT, SeqCst);
        }
        true
    }
}

impl Watch {
    /// Milliseconds, from 1 on.
    fn time(&self) -> u64 {
        self.began.elapsed().as_millis() as u64 + 1
    }

    /// Sees to it that somebody watches.
    fn look_out(&'static self) {
        // The time was stored before: a thread that watches sees it, or goes on since we say so.
        match self.state.load(SeqCst) {
            USED => {}
            AWAKE if self.state.compare_exchange(AWAKE, USED, SeqCst, SeqCst).is_ok() => {}
            _ => self.wake(),
        }
    }

    fn wake(&'static self) {
        if self.state.swap(USED, SeqCst) != ASLEEP {
            return;
        }
        let mut thread = self.thread.lock();
        match &*thread {
            Some(thread) => thread.unpark(),
            None => match std::thread::Builder::new().name("watch".into()).spawn(|| self.watch()) {
                Ok(watches) => *thread = Some(watches.thread().clone()),
                // The next call tries again.
                Err(_) => self.state.store(ASLEEP, SeqCst),
            },
        }
    }

    fn watch(&self) {
        let mut quiet = 0;
        loop {
            std::thread::sleep(TICK);
            let now = self.time();
            let within = self.slots.lock().iter().filter(|slot| slot.look(now)).count() > 0;
            let used = self.state.compare_exchange(USED, AWAKE, SeqCst, SeqCst).is_ok();
            quiet = if used || within { 0 } else { quiet + 1 };
            if quiet >= QUIET_TICKS
                && self.state.compare_exchange(AWAKE, ASLEEP, SeqCst, SeqCst).is_ok()
            {
                while self.state.load(SeqCst) == ASLEEP {
                    std::thread::park();
                }
                quiet = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use rustix::event::{EventfdFlags, eventfd};
    use rustix::io::{Errno, read, write};

    use super::*;

    /// An event on which writing waits.
    fn full() -> OwnedFd {
        let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        write(&event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        event
    }

    #[test]
    fn a_call_that_waits_is_interrupted_and_no_other() {
        let event = full();
        for _ in 0..3 {
            let began = Instant::now();
            assert_eq!(briefly(|| write(&event, &1u64.to_ne_bytes())), Err(Errno::INTR));
            assert!(began.elapsed() >= MOST && began.elapsed() < 20 * MOST);
            // What waits outside of such a call is left alone, also just after one.
            let (waits, wakes) = (eventfd(0, EventfdFlags::CLOEXEC).unwrap(), event.try_clone());
            let own = waits.try_clone().unwrap();
            let later = std::thread::spawn(move || {
                std::thread::sleep(3 * MOST);
                write(own, &1u64.to_ne_bytes()).unwrap();
                drop(wakes);
            });
            assert_eq!(read(&waits, &mut [0; 8]), Ok(8));
            later.join().unwrap();
        }
    }

    #[test]
    fn somebody_watches_again_after_all_was_quiet() {
        briefly(|| ());
        let began = Instant::now();
        // Other tests may keep it awake.
        while WATCH.state.load(SeqCst) != ASLEEP && began.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(TICK);
        }
        let event = full();
        assert_eq!(briefly(|| write(&event, &1u64.to_ne_bytes())), Err(Errno::INTR));
    }

    #[test]
    fn signals_come_while_threads_come_and_go() {
        let threads: Vec<_> = (0..16)
            .map(|_| {
                std::thread::spawn(|| {
                    let event = full();
                    for _ in 0..4 {
                        let written = briefly(|| write(&event, &1u64.to_ne_bytes()));
                        assert_eq!(written, Err(Errno::INTR));
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}
