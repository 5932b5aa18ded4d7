//! Whose turn it is when an act and clients want the same room.
//!
//! An act (a snapshot, a rollback, the end of a receive) waits for entries of the table of discards, or
//! for blocks of the reserve. Clients that trim take both, and after each checkpoint one of them is
//! faster than who asks for the act. So who asks takes a *place*, and gives it back when it asks no more.
//! From the time when an act was refused for want of room until it is admitted or its place is given
//! back, clients leave that room alone: that is its *turn*. No turn outlives the place, so no change
//! waits for an act that nobody asks for.
//!
//! A turn ends earlier when a checkpoint found nothing to do, or when some checkpoints in a row applied
//! no range: what clients wait for then would not come. An act whose turn ended with nothing left that
//! could make room is told at its next asking that the store is full, whatever clients trimmed since. After a turn clients have the room for
//! themselves for some checkpoints: one after an act that was admitted, so that many acts starve no
//! client either; as many as the turn had when it ended in vain, as a store without room for the act
//! lives by its trims.

use std::collections::{BTreeMap, BTreeSet};

/// Checkpoints in a row that apply no range before a turn ends: fewer than a served store waits for until
/// it says that it is full.
const CHECKPOINTS: u64 = 8;

/// The room that an act waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// Entries of the table of discards.
    Ranges,
    /// So many blocks beyond what is promised to windows and checkpoints.
    Blocks(u64),
}

/// The number of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place(u64);

/// Checkpoints so far, and the leaves to which they applied ranges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    pub(crate) checkpoints: u64,
    pub(crate) leaves: u64,
}

/// Who asks for acts, and whose turn it is.
#[derive(Debug, Default)]
pub(crate) struct ActTurn {
    taken: u64,
    /// The places whose acts wait for room.
    waiting: BTreeMap<Place, Room>,
    /// Those of them whose turn ended when nothing was left that could make blocks free.
    in_vain: BTreeSet<Place>,
    /// The progress when the turn began, or when ranges were last seen applied in it.
    since: Option<Progress>,
    /// Checkpoints after which there may be a turn again.
    next: u64,
}

impl ActTurn {
    /// A new place, which waits for nothing yet.
    pub(crate) fn take(&mut self) -> Place {
        self.taken += 1;
        Place(self.taken)
    }

    /// How many acts wait for room.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Who had the place asks no more.
    pub(crate) fn give_back(&mut self, place: Place) {
        self.waits_no_more(place);
    }

    /// An act was refused for want of room.
    pub(crate) fn refused(&mut self, place: Place, room: Room, now: Progress) {
        self.waiting.insert(place, room);
        if self.since.is_none() && now.checkpoints >= self.next {
            self.since = Some(now);
        }
    }

    /// An act was admitted.
    pub(crate) fn admitted(&mut self, place: Place, now: Progress) {
        if self.waiting.contains_key(&place) {
            self.next = now.checkpoints + 1;
            self.since = None;
        }
        self.waits_no_more(place);
    }

    /// An act waits for something else than room, or is wrong.
    pub(crate) fn waits_no_more(&mut self, place: Place) {
        self.waiting.remove(&place);
        self.in_vain.remove(&place);
        if self.waiting.is_empty() {
            self.since = None;
        }
    }

    /// A checkpoint found nothing to do, and maybe another will: what was not written yet, or what
    /// readers hold, may make blocks free.
    pub(crate) fn nothing_to_do(&mut self, now: Progress, more_may_come: bool) {
        if self.since.take().is_some() {
            self.next = now.checkpoints + 1;
            if !more_may_come {
                self.in_vain.extend(self.waiting.keys());
            }
        }
    }

    /// True when the last turn of this place ended with nothing left that could make blocks free.
    pub(crate) fn was_in_vain(&self, place: Place) -> bool {
        self.in_vain.contains(&place)
    }

    /// The room that acts wait for, whosever turn it is.
    #[cfg(feature = "planted-bugs")]
    pub(crate) fn all(&self) -> impl Iterator<Item = Room> {
        self.waiting.values().copied()
    }

    /// The room that clients leave alone now.
    pub(crate) fn kept(&mut self, now: Progress) -> impl Iterator<Item = Room> {
        let on = self.is_on(now);
        self.waiting.values().copied().filter(move |_| on)
    }

    fn is_on(&mut self, now: Progress) -> bool {
        let Some(since) = self.since else { return false };
        if now.leaves > since.leaves {
            self.since = Some(now);
        } else if now.checkpoints >= since.checkpoints + CHECKPOINTS {
            (self.since, self.next) = (None, now.checkpoints + CHECKPOINTS);
            return false;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(checkpoints: u64, leaves: u64) -> Progress {
        Progress { checkpoints, leaves }
    }

    fn kept(turn: &mut ActTurn, now: Progress) -> Vec<Room> {
        turn.kept(now).collect()
    }

    #[test]
    fn a_turn_lasts_while_ranges_are_applied_and_clients_have_as_long_after_one_in_vain() {
        let mut turn = ActTurn::default();
        let place = turn.take();
        assert!(kept(&mut turn, at(0, 0)).is_empty());
        turn.refused(place, Room::Ranges, at(3, 10));
        for n in 3..30 {
            assert_eq!(kept(&mut turn, at(n, 10 + n)), [Room::Ranges]);
        }
        assert_eq!(kept(&mut turn, at(36, 39)), [Room::Ranges]);
        assert!(kept(&mut turn, at(37, 39)).is_empty());
        turn.refused(place, Room::Ranges, at(44, 39));
        assert!(kept(&mut turn, at(44, 39)).is_empty());
        turn.refused(place, Room::Blocks(9), at(45, 39));
        assert_eq!(kept(&mut turn, at(45, 39)), [Room::Blocks(9)]);
    }

    #[test]
    fn no_turn_outlives_its_place_or_its_act() {
        let mut turn = ActTurn::default();
        let (one, two) = (turn.take(), turn.take());
        turn.refused(one, Room::Ranges, at(1, 1));
        turn.refused(two, Room::Blocks(5), at(1, 1));
        assert_eq!(kept(&mut turn, at(1, 1)).len(), 2);
        turn.give_back(one);
        assert_eq!(kept(&mut turn, at(1, 1)), [Room::Blocks(5)]);
        turn.waits_no_more(two);
        assert!(kept(&mut turn, at(1, 1)).is_empty());
        // Clients have one checkpoint between two acts.
        let (one, two) = (turn.take(), turn.take());
        turn.refused(one, Room::Ranges, at(2, 1));
        turn.refused(two, Room::Ranges, at(2, 1));
        turn.admitted(one, at(2, 1));
        assert!(kept(&mut turn, at(2, 1)).is_empty());
        turn.refused(two, Room::Ranges, at(2, 1));
        assert!(kept(&mut turn, at(2, 1)).is_empty());
        turn.refused(two, Room::Ranges, at(3, 1));
        assert_eq!(kept(&mut turn, at(3, 1)), [Room::Ranges]);
        // Nor does one that waits for what no checkpoint makes.
        turn.nothing_to_do(at(3, 1), true);
        assert!(kept(&mut turn, at(3, 1)).is_empty());
        assert!(!turn.was_in_vain(two));
        turn.refused(two, Room::Blocks(7), at(4, 1));
        turn.nothing_to_do(at(4, 1), false);
        assert!(turn.was_in_vain(two));
        turn.waits_no_more(two);
        assert!(!turn.was_in_vain(two));
    }
}
