//! When a writer may begin.

use std::time::Duration;

use onefold_core::Block;

use super::Times;
use crate::format::claim::{Claim, Claimant, SECTOR, State};

/// Attempts after which a medium counts as too slow.
const ATTEMPTS: u32 = 5;

/// The taker's knowledge of the medium. It has won the locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// A regular file on a local file system: other machines do not reach it.
    LocalFile,
    /// Others may reach it: a device, a file system of the network.
    Shared,
}

/// An event that the taker is told.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// The taker begins, or has waited as long as it wanted.
    Awake,
    /// The claim that it read. `asked` is the time before the read began.
    Seen {
        /// Before the read.
        asked: Duration,
        /// The block.
        block: &'a Block,
    },
    /// The claim that it wrote has reached the medium.
    Written,
}

/// The taker's next action.
#[derive(Clone, Debug)]
pub enum Action {
    /// The taker reads the claim.
    Look,
    /// The taker writes this block.
    Write(Box<Block>),
    /// The taker waits.
    Wait(Duration),
    /// The claim is its own; it holds it, having looked at this time.
    Won {
        /// When it last looked, before it wrote.
        looked: Duration,
    },
    /// Somebody else has it; `None` is a writer that is not known.
    Busy(Option<Claim>),
    /// The medium takes longer than the rule allows, again and again.
    Slow,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Beginning,
    Watching { sector: Box<[u8]>, until: Duration },
    Writing { looked: Duration, state: State, wait: Duration },
    Confirming { until: Duration },
    Over,
}

/// A writer on its way to a claim.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Taker {
    own: Claim,
    place: Place,
    phase: Phase,
    /// This taker may have written over somebody's claim: claims of this boot then count no more
    /// than those of another.
    late: bool,
    attempts: u32,
}

impl Taker {
    /// A taker of a store; `token` are its random bytes.
    #[must_use]
    pub fn new(store: [u8; 16], claimant: Claimant, token: [u8; 16], place: Place) -> Taker {
        let own = Claim { store, token, claimant, state: State::Held };
        Taker { own, place, phase: Phase::Beginning, late: false, attempts: 0 }
    }

    /// The claim that it has written when it won.
    #[must_use]
    pub fn claim(&self) -> &Claim {
        &self.own
    }

    /// Goes on at `now`, with what has happened since.
    pub fn step(&mut self, times: &Times, now: Duration, event: Event<'_>) -> Action {
        match event {
            Event::Awake => Action::Look,
            Event::Seen { asked, block } => self.seen(times, now, asked, block),
            Event::Written => self.written(times, now),
        }
    }

    fn seen(&mut self, times: &Times, now: Duration, asked: Duration, block: &Block) -> Action {
        let sector = &block.0[..SECTOR];
        match &self.phase {
            Phase::Watching { sector: before, until } if **before == *sector => {
                if asked < *until {
                    return Action::Wait(times.glance.min(*until - asked));
                }
                self.write(asked, State::Wanted, times.confirm)
            }
            // Freed in order while it watched: as if it had come a little later.
            Phase::Watching { .. } => match self.theirs(block) {
                Some(claim) if claim.state == State::Free => self.begin(times, now, asked, block),
                claim => self.busy(claim),
            },
            Phase::Confirming { until } if self.is_own(sector) => {
                if asked < *until {
                    return Action::Wait(*until - asked);
                }
                self.write(asked, State::Held, Duration::ZERO)
            }
            Phase::Confirming { .. } => self.busy(self.theirs(block)),
            _ => self.begin(times, now, asked, block),
        }
    }

    /// The first look.
    fn begin(&mut self, times: &Times, now: Duration, asked: Duration, block: &Block) -> Action {
        let found = self.theirs(block);
        if self.at_once(found.as_ref()) {
            return self.write(asked, State::Held, Duration::ZERO);
        }
        if !self.late && found.is_none_or(|claim| claim.state == State::Free) {
            return self.write(asked, State::Wanted, times.settle);
        }
        self.phase = Phase::Watching { sector: block.0[..SECTOR].into(), until: now + times.watch };
        Action::Wait(times.glance)
    }

    /// The claim of this store that is there.
    fn theirs(&self, block: &Block) -> Option<Claim> {
        Claim::decode(block).filter(|claim| claim.store == self.own.store)
    }

    /// True when the locks that it won keep everybody else out.
    fn at_once(&self, found: Option<&Claim>) -> bool {
        let own = &self.own.claimant;
        let Some(claim) = found else { return self.place == Place::LocalFile };
        let their = &claim.claimant;
        let known = |id: &[u8; 16]| *id != [0; 16];
        let same_place = known(&own.boot)
            && (own.boot, own.device, own.inode) == (their.boot, their.device, their.inode);
        let this_machine = known(&own.machine) && own.machine == their.machine;
        match (claim.state, self.place) {
            (State::Free, Place::LocalFile) => true,
            (State::Wanted, Place::Shared) => false,
            (_, Place::LocalFile) => {
                same_place || (this_machine && known(&their.boot) && own.boot != their.boot)
            }
            (_, Place::Shared) => same_place && !self.late,
        }
    }

    fn write(&mut self, looked: Duration, state: State, wait: Duration) -> Action {
        self.own.state = state;
        self.phase = Phase::Writing { looked, state, wait };
        Action::Write(self.own.encode())
    }

    fn written(&mut self, times: &Times, now: Duration) -> Action {
        let Phase::Writing { looked, state, wait } = self.phase else { return Action::Look };
        // A clock that went back says nothing.
        if now.checked_sub(looked).is_none_or(|took| took > times.swift) {
            return self.again();
        }
        if state == State::Held {
            self.phase = Phase::Over;
            return Action::Won { looked };
        }
        self.phase = Phase::Confirming { until: now + wait };
        Action::Wait(wait)
    }

    /// Somebody may have taken the claim between look and write.
    fn again(&mut self) -> Action {
        self.phase = Phase::Beginning;
        self.late = self.place == Place::Shared;
        self.attempts += 1;
        if self.attempts < ATTEMPTS { Action::Look } else { Action::Slow }
    }

    fn is_own(&self, sector: &[u8]) -> bool {
        self.own.encode().0[..SECTOR] == *sector
    }

    fn busy(&mut self, claim: Option<Claim>) -> Action {
        self.phase = Phase::Over;
        Action::Busy(claim)
    }
}
