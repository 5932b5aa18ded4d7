//! Places for which connections wait in turn: places to work at all, places for requests that cost
//! much, and places for writing.
//!
//! [`Shares`] decides which connection is next. *Threads:* all connections; a waiting thread sleeps
//! until it gets the place.

use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};
use std::thread::Thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::shares::{Holder, Shares};

/// The cost of a request beside its bytes.
pub(crate) const REQUEST_COST: u64 = 4096;
/// How often a waiting thread calls `look`.
const LOOK: Duration = Duration::from_millis(100);

/// Places, and the threads that wait for one.
pub(crate) struct Turns {
    shares: Mutex<Shares<Arc<Waiting>>>,
    /// The number of waiting threads, readable without the lock.
    waiting: AtomicUsize,
    /// True when only one volume of one peer is connected; readable without the lock.
    alone: AtomicBool,
}

/// A thread that waits for a place.
struct Waiting {
    thread: Thread,
    granted: AtomicBool,
}

/// A place, until it is dropped.
pub(crate) struct Turn<'a> {
    of: &'a Turns,
    holder: Holder,
    /// The cost of the work.
    pub(crate) cost: u64,
}

/// Counts a connection as present, until it is dropped.
pub(crate) struct Presence<'a> {
    of: &'a Turns,
    holder: Holder,
}

impl Turns {
    /// `places`, each of which costs `quantum` at first.
    pub(crate) fn new(places: usize, quantum: u32) -> Turns {
        Turns {
            shares: Mutex::new(Shares::new(places, quantum)),
            waiting: AtomicUsize::new(0),
            alone: AtomicBool::new(true),
        }
    }

    /// Counts a connection among those that share the places.
    pub(crate) fn join(&self, holder: Holder) -> Presence<'_> {
        let mut shares = self.shares.lock();
        shares.join(holder);
        self.alone.store(shares.alone(), Relaxed);
        drop(shares);
        Presence { of: self, holder }
    }

    /// A place, when one is free and nobody waits.
    pub(crate) fn take_at_once(&self, holder: Holder) -> Option<Turn<'_>> {
        let held = self.shares.lock().hold_at_once(holder);
        held.then(|| Turn { of: self, holder, cost: 0 })
    }

    /// Waits for a place until `gives_up`, which is called now and then with the time waited so
    /// far.
    pub(crate) fn take_unless(
        &self,
        holder: Holder,
        gives_up: impl FnMut(Duration) -> bool,
    ) -> Option<Turn<'_>> {
        self.wait(holder, gives_up).then(|| Turn { of: self, holder, cost: 0 })
    }

    /// Waits until the thread has a place; false when it gave up.
    fn wait(&self, holder: Holder, mut gives_up: impl FnMut(Duration) -> bool) -> bool {
        if self.shares.lock().hold_at_once(holder) {
            return true;
        }
        let me =
            Arc::new(Waiting { thread: std::thread::current(), granted: AtomicBool::new(false) });
        self.waiting.fetch_add(1, Relaxed);
        {
            let mut shares = self.shares.lock();
            shares.wait(holder, me.clone());
            grant(&mut shares);
        }
        let began = Instant::now();
        while !me.granted.load(Acquire) {
            std::thread::park_timeout(LOOK);
            if began.elapsed() >= LOOK && gives_up(began.elapsed()) {
                self.waiting.fetch_sub(1, Relaxed);
                let mut shares = self.shares.lock();
                if !shares.wait_no_more(holder, |one| Arc::ptr_eq(one, &me)) {
                    // It was granted meanwhile.
                    shares.give_back(holder, 0);
                    grant(&mut shares);
                }
                return false;
            }
        }
        self.waiting.fetch_sub(1, Relaxed);
        true
    }

    /// True when a connection's peer or volume holds more than its share.
    pub(crate) fn holds_too_many(&self, holder: Holder) -> bool {
        self.shares.lock().holds_too_many(holder)
    }

    /// True when another holder has a place.
    pub(crate) fn others_hold(&self, holder: Holder) -> bool {
        !self.alone() && self.shares.lock().others_hold(holder)
    }

    /// True when somebody has a place.
    pub(crate) fn is_held(&self) -> bool {
        self.shares.lock().is_held()
    }

    /// True when only one volume of one peer is connected.
    pub(crate) fn alone(&self) -> bool {
        self.alone.load(Relaxed)
    }
}

impl Turn<'_> {
    /// True when a waiting thread would get this place.
    pub(crate) fn is_wanted(&self) -> bool {
        self.of.waiting.load(Relaxed) > 0 && self.of.shares.lock().is_wanted(self.holder)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut shares = self.of.shares.lock();
        shares.give_back(self.holder, self.cost);
        grant(&mut shares);
    }
}

impl Drop for Presence<'_> {
    fn drop(&mut self) {
        let mut shares = self.of.shares.lock();
        shares.leave(self.holder);
        self.of.alone.store(shares.alone(), Relaxed);
        // With one peer less another one may hold more.
        grant(&mut shares);
    }
}

/// Wakes every thread that can have a place.
fn grant(shares: &mut Shares<Arc<Waiting>>) {
    while let Some(one) = shares.grant() {
        one.granted.store(true, Release);
        one.thread.unpark();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nbd::rights::Peer;

    #[test]
    fn everybody_has_a_turn() {
        let turns = Turns::new(2, 1);
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for n in 0..16 {
                let (turns, now, most) = (&turns, &now, &most);
                scope.spawn(move || {
                    let holder = Holder { peer: Peer::User(n % 3), volume: u64::from(n % 2) };
                    let _presence = turns.join(holder);
                    for _ in 0..20 {
                        let _turn = turns.take_unless(holder, |_| false);
                        most.fetch_max(now.fetch_add(1, Relaxed) + 1, Relaxed);
                        std::thread::yield_now();
                        now.fetch_sub(1, Relaxed);
                    }
                });
            }
        });
        assert!((1..=2).contains(&most.into_inner()));
        assert!(turns.alone() && turns.waiting.into_inner() == 0);
    }
}
