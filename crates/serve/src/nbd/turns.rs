//! Turns at work that one request can ask much of: the status of ranges.
//!
//! Such work is done in few places, and a free place goes to the peer that was at work least of those who wait, counted in time at work. So a peer that
//! asks on many connections gets no more of it than one that asks on one (rule 12 of SECURITY.md).

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::rights::Peer;

/// The places, and who waits for one.
pub(crate) struct Turns {
    places: usize,
    line: Mutex<Line>,
    freed: Condvar,
}

#[derive(Default)]
struct Line {
    working: usize,
    /// Requests that wait.
    waiting: HashMap<Peer, usize>,
    /// Time at work, of those who waited since nobody did.
    worked: HashMap<Peer, Duration>,
    /// Time at work of whom the last place was given to: who comes anew does not make up for the time before.
    now: Duration,
}

/// A place, until it is dropped.
pub(crate) struct Turn<'a> {
    of: &'a Turns,
    peer: Peer,
    began: Instant,
}

impl Turns {
    pub(crate) fn new(places: usize) -> Turns {
        Turns { places: places.max(1), line: Mutex::default(), freed: Condvar::new() }
    }

    /// Waits for a place.
    pub(crate) fn take(&self, peer: Peer) -> Turn<'_> {
        let mut line = self.line.lock();
        line.arrive(peer);
        while line.working >= self.places || line.next() != Some(peer) {
            self.freed.wait(&mut line);
        }
        line.begin(peer);
        if line.working < self.places {
            self.freed.notify_all();
        }
        Turn { of: self, peer, began: Instant::now() }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut line = self.of.line.lock();
        line.end(self.peer, self.began.elapsed());
        self.of.freed.notify_all();
    }
}

impl Line {
    fn arrive(&mut self, peer: Peer) {
        *self.waiting.entry(peer).or_default() += 1;
        let worked = self.worked.entry(peer).or_default();
        *worked = (*worked).max(self.now);
    }

    /// Who of those that wait was at work least.
    fn next(&self) -> Option<Peer> {
        let worked = |peer: &Peer| self.worked.get(peer).copied().unwrap_or_default();
        self.waiting.keys().min_by_key(|peer| worked(peer)).copied()
    }

    fn begin(&mut self, peer: Peer) {
        self.now = self.worked.get(&peer).copied().unwrap_or_default();
        if let Some(waiting) = self.waiting.get_mut(&peer) {
            *waiting -= 1;
            if *waiting == 0 {
                self.waiting.remove(&peer);
            }
        }
        self.working += 1;
    }

    fn end(&mut self, peer: Peer, took: Duration) {
        self.working -= 1;
        *self.worked.entry(peer).or_default() += took;
        if self.working == 0 && self.waiting.is_empty() {
            *self = Line::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_12_a_peer_with_many_requests_has_no_more_turns_than_one_with_few() {
        let (flood, other) = (Peer::User(1), Peer::User(2));
        let mut line = Line::default();
        (0..30).for_each(|_| line.arrive(flood));
        let step = Duration::from_millis(1);
        for _ in 0..10 {
            line.begin(line.next().unwrap());
            line.end(flood, step);
        }
        (0..3).for_each(|_| line.arrive(other));
        // It does not make up for what it did not ask for before, and then they take turns.
        let turns: Vec<Peer> = (0..6)
            .map(|_| {
                let next = line.next().unwrap();
                line.begin(next);
                line.end(next, step);
                next
            })
            .collect();
        assert_eq!(turns.iter().filter(|peer| **peer == other).count(), 3, "{turns:?}");
        assert_eq!(line.next(), Some(flood));
    }

    #[test]
    fn everybody_has_a_turn() {
        let turns = Turns::new(2);
        let most = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for n in 0..16 {
                let (turns, most) = (&turns, &most);
                scope.spawn(move || {
                    for _ in 0..20 {
                        let _turn = turns.take(Peer::User(n % 3));
                        most.fetch_max(turns.line.lock().working, std::sync::atomic::Ordering::Relaxed);
                    }
                });
            }
        });
        assert!((1..=2).contains(&most.into_inner()));
        assert!(turns.line.lock().worked.is_empty());
    }
}
