//! Whose turn it is when an act and clients' ranges want the same room.
//!
//! Trims take the room that an act (a snapshot, a rollback, the end of a receive) waits for: entries of
//! the table of discards, and the reserve. A checkpoint makes room, and clients that trim all the time
//! would be faster than who asks for the act, again and again. So ranges of clients wait while an act
//! does, as long as checkpoints work ranges off, and some checkpoints longer. Then clients have as many
//! checkpoints for themselves: a store that has no room for the act lives by its trims.

/// Checkpoints that work off no range before a turn ends, and then until the next one may begin: fewer
/// than a served store waits for until it says that it is full.
const CHECKPOINTS: u64 = 8;

/// The turn of an act that waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ActTurn {
    /// Checkpoints, and leaves to which they applied ranges, when one of these was seen last.
    since: Option<(u64, u64)>,
    /// Checkpoints after which an act has a turn again.
    next: u64,
}

impl ActTurn {
    /// An act waits; `checkpoints` and `leaves` are counts of all so far.
    pub(crate) fn act_waits(&mut self, checkpoints: u64, leaves: u64) {
        if self.since.is_none() && checkpoints >= self.next {
            self.since = Some((checkpoints, leaves));
        }
    }

    /// An act was admitted.
    pub(crate) fn act_admitted(&mut self) {
        self.since = None;
    }

    /// True when ranges of clients wait.
    pub(crate) fn ranges_wait(&mut self, checkpoints: u64, leaves: u64) -> bool {
        let Some((since, before)) = self.since else { return false };
        if leaves > before {
            self.since = Some((checkpoints, leaves));
        } else if checkpoints >= since + CHECKPOINTS {
            *self = ActTurn { since: None, next: checkpoints + CHECKPOINTS };
            return false;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_lasts_while_ranges_are_worked_off_and_clients_have_as_long() {
        let mut turn = ActTurn::default();
        assert!(!turn.ranges_wait(0, 0));
        turn.act_waits(3, 10);
        for checkpoint in 3..30 {
            assert!(turn.ranges_wait(checkpoint, 10 + checkpoint));
        }
        assert!(turn.ranges_wait(36, 39));
        assert!(!turn.ranges_wait(37, 39));
        turn.act_waits(44, 39);
        assert!(!turn.ranges_wait(44, 39));
        turn.act_waits(45, 39);
        assert!(turn.ranges_wait(45, 39));
        turn.act_admitted();
        assert!(!turn.ranges_wait(45, 39));
    }
}
