//! Turns of handshakes: what they compute is computed one at a time.
//!
//! *Invariants.* No peer's turns keep another peer waiting for more than one of them for each peer that waits. Those
//! whose handshake was answered go first, since only a client who reads comes so far; but every
//! [`ANSWERED_IN_A_ROW`] turns of theirs somebody has one who only begins.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use parking_lot::{Condvar, Mutex};

use crate::nbd::Peer;

/// Turns of answered handshakes before one of those that only begin.
const ANSWERED_IN_A_ROW: usize = 3;

/// Peers whose last turns are remembered.
const REMEMBERED: usize = 128;

/// Time between two looks of a handshake whether its client still waits.
const LOOK: Duration = Duration::from_millis(10);

#[derive(Default)]
pub(super) struct Turns(Mutex<State>);

#[derive(Default)]
struct State {
    /// Somebody has a turn.
    is_taken: bool,
    /// In order of arrival.
    waiting: VecDeque<Waiting>,
    arrived: u64,
    answered_in_a_row: usize,
    /// The peers that had the last turns, the last one behind.
    served: VecDeque<Peer>,
}

struct Waiting {
    number: u64,
    peer: Peer,
    was_answered: bool,
    wakes: Arc<Condvar>,
}

/// A turn, until it is dropped.
pub(super) struct Turn<'a>(&'a Turns);

impl Turns {
    /// Waits for a turn; `None` when the client does not wait any more.
    pub(super) fn take(
        &self,
        peer: Peer,
        was_answered: bool,
        waits: impl Fn() -> bool,
    ) -> Option<Turn<'_>> {
        let wakes = Arc::new(Condvar::new());
        let mut state = self.0.lock();
        let number = state.arrived;
        state.arrived += 1;
        state.waiting.push_back(Waiting { number, peer, was_answered, wakes: wakes.clone() });
        loop {
            if !waits() {
                state.waiting.retain(|one| one.number != number);
                state.wake_next();
                return None;
            }
            if !state.is_taken && state.next().is_some_and(|one| one.number == number) {
                state.begin(number, peer, was_answered);
                return Some(Turn(self));
            }
            wakes.wait_for(&mut state, LOOK);
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.0.0.lock();
        state.is_taken = false;
        state.wake_next();
    }
}

impl State {
    /// Whose turn is next: of those that go first, one of the peer whose last turn was longest ago.
    fn next(&self) -> Option<&Waiting> {
        let has = |answered| self.waiting.iter().any(|one| one.was_answered == answered);
        let is_theirs = self.answered_in_a_row < ANSWERED_IN_A_ROW || !has(false);
        let answered = has(true) && is_theirs;
        let last_turn = |peer| self.served.iter().rposition(|&served| served == peer);
        let such = self.waiting.iter().filter(|one| one.was_answered == answered);
        such.min_by_key(|one| (last_turn(one.peer), one.number))
    }

    fn begin(&mut self, number: u64, peer: Peer, was_answered: bool) {
        self.waiting.retain(|one| one.number != number);
        self.is_taken = true;
        self.answered_in_a_row = if was_answered { self.answered_in_a_row + 1 } else { 0 };
        self.served.retain(|&served| served != peer);
        self.served.push_back(peer);
        if self.served.len() > REMEMBERED {
            self.served.pop_front();
        }
    }

    fn wake_next(&self) {
        if let Some(next) = self.next().filter(|_| !self.is_taken) {
            next.wakes.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who waits, and the order in which they have their turns.
    fn order(waiting: &[(u32, bool)]) -> Vec<(u32, bool)> {
        let mut state = State::default();
        for (number, &(user, was_answered)) in (0..).zip(waiting) {
            let (peer, wakes) = (Peer::User(user), Arc::default());
            state.waiting.push_back(Waiting { number, peer, was_answered, wakes });
        }
        std::iter::from_fn(|| {
            let next = state.next()?;
            let (number, peer, was_answered) = (next.number, next.peer, next.was_answered);
            state.begin(number, peer, was_answered);
            let Peer::User(user) = peer else { return None };
            Some((user, was_answered))
        })
        .collect()
    }

    #[test]
    fn peers_take_turns() {
        let waiting = [(1, false), (1, false), (1, false), (2, false), (3, false), (2, false)];
        let users: Vec<u32> = order(&waiting).into_iter().map(|(user, _)| user).collect();
        assert_eq!(users, [1, 2, 3, 1, 2, 1]);
    }

    #[test]
    fn who_was_answered_goes_first_and_who_begins_has_every_fourth_turn() {
        let mut waiting = vec![(1, true); 9];
        waiting.extend([(2, false), (3, false)]);
        let first: Vec<u32> = order(&waiting).into_iter().map(|(user, _)| user).collect();
        assert_eq!(first, [1, 1, 1, 2, 1, 1, 1, 3, 1, 1, 1]);
    }

    #[test]
    fn a_turn_ends_with_who_had_it_and_who_went_away_gets_none() {
        let turns = Turns::default();
        let turn = turns.take(Peer::User(1), false, || true);
        assert!(turns.take(Peer::User(2), true, || false).is_none());
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| turns.take(Peer::User(3), false, || true).is_some());
            drop(turn);
            assert!(waits.join().is_ok_and(|had_one| had_one));
        });
        assert!(turns.take(Peer::User(1), true, || true).is_some());
    }
}
