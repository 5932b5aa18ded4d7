//! Steps of checkpoints and of idle work.

use std::time::Duration;

use super::{
    CHECKPOINT_AFTER, COMPACT_AFTER, IDLE_AFTER, Next, PAUSE_AFTER, SHARE_WAITS, SHARED_FLUSH_WAIT,
};
use crate::{engine::CheckpointStep, idleness::Idleness};

/// The engine and its clients at this moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Facts {
    /// A client waits for room.
    pub pressure: bool,
    /// A limit is three quarters full, or somebody waits for a checkpoint.
    pub checkpoint_due: bool,
    /// A checkpoint would change something.
    pub checkpoint_useful: bool,
    /// A checkpoint has begun and is not at its end.
    pub checkpoint_running: bool,
    /// Blocks may be moved while requests flow: checkpoints move them, and the store is no more than
    /// nine tenths full.
    pub may_share: bool,
}

/// One step of the background's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Make everything durable that was gathered.
    Flush,
    /// Make one step of a checkpoint.
    Checkpoint,
    /// Flush the device for the checkpoint.
    FlushForCheckpoint,
    /// Make one step of idle work.
    Idle(Idleness),
}

/// An event since the last decision.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// A client asked for something.
    Request,
    /// Time passed in which others may have flushed, read to the end, or made idle work.
    Elapsed,
    /// Everything gathered was flushed.
    Flushed,
    /// A step of a checkpoint did this.
    Checkpoint(CheckpointStep),
    /// A step of idle work was made for this idleness; there may be more.
    Idle(Idleness, bool),
}

/// The event that a checkpoint waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaitsFor {
    Flush { since: Duration },
    Readers,
}

/// Decides the steps of checkpoints and of idle work.
#[derive(Clone, Copy, Debug, Default)]
pub struct Background {
    /// When a client asked for something last.
    request: Duration,
    /// The event that the running checkpoint waits for, and whether it may have come.
    waits_for: Option<WaitsFor>,
    may_have_come: bool,
    /// The changes that were gathered when room became short are flushed.
    flushed_for_room: bool,
    /// A checkpoint had nothing to do, and nothing happened since.
    nothing_to_checkpoint: bool,
    /// The idleness for which no idle work was left, until something happens.
    idle_work_done: Option<Idleness>,
    /// Before this moment idle work has had its share of the time beside requests.
    share_from: Duration,
}

impl Background {
    /// Tells the schedule what happened.
    pub fn happened(&mut self, now: Duration, event: Event) {
        match event {
            Event::Request => {
                self.request = now;
                // Idle work makes way until the next look.
                self.idle_work_done = Some(Idleness::None);
            }
            Event::Elapsed => {
                (self.may_have_come, self.nothing_to_checkpoint) = (true, false);
                (self.flushed_for_room, self.idle_work_done) = (false, None);
            }
            Event::Flushed => (self.may_have_come, self.flushed_for_room) = (true, true),
            Event::Checkpoint(step) => self.checkpoint_made(now, step),
            Event::Idle(idleness, more) => self.idle_work_done = (!more).then_some(idleness),
        }
    }

    /// Tells the schedule that a step of idle work for this idleness ended now, and how long it took; `more`
    /// when there may be more to do.
    pub fn idle_worked(&mut self, now: Duration, took: Duration, idleness: Idleness, more: bool) {
        // A step that may not move anything takes nothing of the share.
        if idleness >= Idleness::Share {
            let least = if more { Duration::ZERO } else { PAUSE_AFTER };
            self.share_from = self.share_from.max(now + (took * SHARE_WAITS).max(least));
        }
    }

    fn checkpoint_made(&mut self, now: Duration, step: CheckpointStep) {
        self.may_have_come = false;
        self.waits_for = match step {
            CheckpointStep::Idle | CheckpointStep::Advanced => None,
            CheckpointStep::NeedsReaders => Some(WaitsFor::Readers),
            CheckpointStep::NeedsFlush => match self.waits_for {
                Some(WaitsFor::Flush { since }) => Some(WaitsFor::Flush { since }),
                _ => Some(WaitsFor::Flush { since: now }),
            },
        };
        self.nothing_to_checkpoint = step == CheckpointStep::Idle;
        // Changes that are gathered from here on are not in this checkpoint.
        self.flushed_for_room = false;
    }

    /// The next step, or how long to wait.
    #[must_use]
    pub fn next(&self, now: Duration, facts: &Facts) -> Next<Step> {
        let quiet = now.saturating_sub(self.request);
        let wanted = facts.checkpoint_due || facts.checkpoint_useful && quiet >= CHECKPOINT_AFTER;
        if facts.checkpoint_running || wanted && !self.nothing_to_checkpoint {
            return self.next_of_checkpoint(now, facts);
        }
        let idleness = match self.idleness(now) {
            Idleness::None if facts.may_share && now >= self.share_from => Idleness::Share,
            idleness => idleness,
        };
        if self.idle_work_done != Some(idleness) {
            return Next::Run(Step::Idle(idleness));
        }
        let moments = [PAUSE_AFTER, IDLE_AFTER, CHECKPOINT_AFTER, COMPACT_AFTER]
            .map(|after| self.request + after);
        let share = Some(self.share_from).filter(|_| facts.may_share && quiet < PAUSE_AFTER);
        let ahead = moments.into_iter().chain(share).filter(|&at| at > now);
        ahead.min().map_or(Next::WaitForEvent, Next::WaitUntil)
    }

    fn next_of_checkpoint(&self, now: Duration, facts: &Facts) -> Next<Step> {
        // Nobody's flush is disturbed, or somebody waits for the room that the checkpoint makes.
        let alone = facts.pressure || self.idleness(now) >= Idleness::Short;
        match self.waits_for {
            // Only the changes that are gathered now may make room.
            None if facts.pressure
                && facts.checkpoint_due
                && !facts.checkpoint_running
                && !self.flushed_for_room =>
            {
                Next::Run(Step::Flush)
            }
            None => Next::Run(Step::Checkpoint),
            Some(_) if self.may_have_come => Next::Run(Step::Checkpoint),
            Some(WaitsFor::Flush { since }) if alone || now >= since + SHARED_FLUSH_WAIT => {
                Next::Run(Step::FlushForCheckpoint)
            }
            Some(WaitsFor::Flush { since }) => Next::WaitUntil(since + SHARED_FLUSH_WAIT),
            Some(WaitsFor::Readers) => Next::WaitForEvent,
        }
    }

    /// How long no client asked for anything.
    fn idleness(&self, now: Duration) -> Idleness {
        match now.saturating_sub(self.request) {
            quiet if quiet >= COMPACT_AFTER => Idleness::Long,
            quiet if quiet >= IDLE_AFTER => Idleness::Short,
            quiet if quiet >= PAUSE_AFTER => Idleness::Pause,
            _ => Idleness::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    const BUSY: Facts = Facts {
        pressure: false,
        checkpoint_due: false,
        checkpoint_useful: true,
        checkpoint_running: false,
        may_share: false,
    };

    const DUE: Facts = Facts { checkpoint_due: true, ..BUSY };
    const RUNNING: Facts = Facts { checkpoint_running: true, ..DUE };

    fn after(events: &[Event]) -> Background {
        let mut background = Background::default();
        events.iter().for_each(|&event| background.happened(MS * 100, event));
        background
    }

    #[test]
    fn a_checkpoint_shares_a_flush_and_waits_for_it_only_so_long() {
        let asked = after(&[Event::Request, Event::Checkpoint(CheckpointStep::NeedsFlush)]);
        assert_eq!(asked.next(MS * 110, &RUNNING), Next::WaitUntil(MS * 300));
        assert_eq!(asked.next(MS * 300, &RUNNING), Next::Run(Step::FlushForCheckpoint));
        let pressed = Facts { pressure: true, ..RUNNING };
        assert_eq!(asked.next(MS * 110, &pressed), Next::Run(Step::FlushForCheckpoint));
        let mut asked = asked;
        asked.happened(MS * 120, Event::Elapsed);
        assert_eq!(asked.next(MS * 120, &RUNNING), Next::Run(Step::Checkpoint));
        // The flush had not come: the wait goes on from where it began.
        asked.happened(MS * 120, Event::Checkpoint(CheckpointStep::NeedsFlush));
        assert_eq!(asked.next(MS * 130, &RUNNING), Next::WaitUntil(MS * 300));
    }

    #[test]
    fn what_is_gathered_is_flushed_first_when_room_is_short() {
        let short = Facts { pressure: true, ..DUE };
        let mut background = after(&[Event::Request]);
        assert_eq!(background.next(MS * 100, &short), Next::Run(Step::Flush));
        background.happened(MS * 100, Event::Flushed);
        assert_eq!(background.next(MS * 100, &short), Next::Run(Step::Checkpoint));
        // A checkpoint that finds nothing to do is not tried again at once.
        background.happened(MS * 100, Event::Checkpoint(CheckpointStep::Idle));
        assert_eq!(background.next(MS * 100, &short), Next::WaitUntil(MS * 150));
        background.happened(MS * 150, Event::Elapsed);
        assert_eq!(background.next(MS * 150, &short), Next::Run(Step::Flush));
    }

    #[test]
    fn an_idle_store_works_more_the_longer_it_is_idle() {
        let mut background = after(&[Event::Request]);
        let idle = |background: &mut Background, at: Duration, idleness| {
            assert_eq!(
                background.next(at, &Facts::default()),
                Next::Run(Step::Idle(idleness)),
                "at {at:?}"
            );
            background.happened(at, Event::Idle(idleness, false));
        };
        assert_eq!(background.next(MS * 100, &BUSY), Next::WaitUntil(MS * 150));
        idle(&mut background, MS * 150, Idleness::Pause);
        assert_eq!(background.next(MS * 150, &BUSY), Next::WaitUntil(MS * 600));
        idle(&mut background, MS * 600, Idleness::Short);
        assert_eq!(background.next(MS * 600, &BUSY), Next::WaitUntil(MS * 5100));
        assert_eq!(background.next(MS * 5100, &BUSY), Next::Run(Step::Checkpoint));
        assert_eq!(background.next(MS * 5100, &Facts::default()), Next::WaitUntil(MS * 30_100));
        idle(&mut background, MS * 30_100, Idleness::Long);
        assert_eq!(background.next(MS * 30_100, &Facts::default()), Next::WaitForEvent);
    }

    #[test]
    fn rule_20_beside_requests_moving_has_a_twentieth_of_the_time() {
        let facts = Facts { may_share: true, ..Facts::default() };
        let step = Duration::from_micros(1500);
        let (mut now, mut worked) = (MS * 1000, Duration::ZERO);
        let mut background = Background::default();
        while now < MS * 3000 {
            // A request every millisecond, and a look after each.
            background.happened(now, Event::Request);
            background.happened(now, Event::Elapsed);
            while let Next::Run(Step::Idle(idleness)) = background.next(now, &facts) {
                let shares = idleness == Idleness::Share;
                // A step that moves nothing is short.
                let took = if shares { step } else { Duration::from_micros(2) };
                now += took;
                worked += if shares { step } else { Duration::ZERO };
                background.idle_worked(now, took, idleness, shares);
                background.happened(now, Event::Idle(idleness, shares));
            }
            now += MS;
        }
        let share = worked.as_micros() * 20;
        let whole = (now - MS * 1000).as_micros();
        assert!(share <= whole + 20 * step.as_micros() && share * 2 > whole, "{share} of {whole}");
    }

    #[test]
    fn rule_20_a_store_above_nine_tenths_moves_nothing_beside_requests() {
        let mut background = after(&[Event::Request, Event::Elapsed]);
        let full = Facts::default();
        assert_eq!(background.next(MS * 110, &full), Next::Run(Step::Idle(Idleness::None)));
        background.happened(MS * 110, Event::Idle(Idleness::None, false));
        assert_eq!(background.next(MS * 110, &full), Next::WaitUntil(MS * 150));
        let less = Facts { may_share: true, ..full };
        assert_eq!(background.next(MS * 110, &less), Next::Run(Step::Idle(Idleness::Share)));
        // With nothing to move it looks again as seldom as the thread itself.
        background.idle_worked(MS * 110, Duration::ZERO, Idleness::Share, false);
        background.happened(MS * 110, Event::Idle(Idleness::None, false));
        assert_eq!(background.next(MS * 111, &less), Next::WaitUntil(MS * 150));
    }
}
