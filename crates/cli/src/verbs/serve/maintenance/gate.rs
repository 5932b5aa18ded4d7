//! When work in the background may go on: while nobody asked for anything for a time, and within a
//! limit of bytes a second.
//!
//! The work asks before each read and write. While clients are at work it waits: they share the disk
//! with one read that had begun before, of a few MiB. Clients that leave no pause for very long stop no
//! work for ever: the work then goes on beside them, in a small share of the time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use onefold_archive::gives_way;
use onefold_core::{Error, Kind, Result};
use parking_lot::Mutex;

use crate::verbs::keeping::file::LoadRule;

/// Between two looks at what clients do, also while the work goes on.
const LOOK: Duration = Duration::from_millis(25);

/// How much of the limit may be used at once, as time.
const BURST: Duration = Duration::from_millis(100);

/// Beside clients that leave no pause, work rests so many times as long as each step took, and no longer than
/// this.
const RESTS: u32 = 19;
const REST_MAX: Duration = Duration::from_secs(20);

/// Counts that move when clients of volumes are at work.
type Moves = dyn Fn() -> u64 + Send + Sync;

/// What clients do.
pub(in crate::verbs::serve) struct Activity {
    begun: Instant,
    /// Commands that send streams just now.
    busy: AtomicUsize,
    /// Milliseconds since the beginning when somebody was last seen at work.
    last: AtomicU64,
    moves: Box<Moves>,
    seen: AtomicU64,
}

/// A command at work; it has ended when this is dropped.
pub(in crate::verbs::serve) struct Working(Arc<Activity>);

impl Drop for Working {
    fn drop(&mut self) {
        self.0.touch();
        self.0.busy.fetch_sub(1, SeqCst);
    }
}

impl Activity {
    pub(in crate::verbs::serve) fn new(
        moves: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Arc<Activity> {
        Arc::new(Activity {
            begun: Instant::now(),
            busy: AtomicUsize::new(0),
            last: AtomicU64::new(0),
            seen: AtomicU64::new(moves()),
            moves: Box::new(moves),
        })
    }

    /// A command begins.
    pub(in crate::verbs::serve) fn work(self: &Arc<Activity>) -> Working {
        self.busy.fetch_add(1, SeqCst);
        Working(self.clone())
    }

    fn touch(&self) {
        self.last.store(self.begun.elapsed().as_millis() as u64, SeqCst);
    }

    /// How long nobody has asked for anything.
    fn idle(&self) -> Duration {
        let moves = (self.moves)();
        if self.seen.swap(moves, SeqCst) != moves || self.busy.load(SeqCst) > 0 {
            self.touch();
            // However late this thread goes on: somebody was at work just now.
            return Duration::ZERO;
        }
        let last = Duration::from_millis(self.last.load(SeqCst));
        self.begun.elapsed().saturating_sub(last)
    }
}

/// Lets work in the background through.
pub(in crate::verbs::serve) struct Gate {
    activity: Arc<Activity>,
    idle: Duration,
    /// How long clients that leave no pause are waited for.
    longest: Duration,
    limit: u64,
    ends: AtomicBool,
    seen: Mutex<Seen>,
}

/// Observations of clients and of the work.
struct Seen {
    /// When clients were last looked at, and had been idle for long enough.
    looked: Option<Instant>,
    /// Until when the limit is used up.
    used: Instant,
    /// Since when they were not.
    closed: Option<Instant>,
    /// When the last step beside clients began.
    step: Option<Instant>,
    /// When the next one may.
    next: Instant,
}

impl Seen {
    /// The last step beside clients is over.
    fn rest(&mut self, now: Instant) {
        if let Some(step) = self.step.take() {
            self.next = now + (now.duration_since(step) * RESTS).clamp(LOOK, REST_MAX);
        }
    }
}

impl Gate {
    /// Work goes on as the rule says.
    pub(in crate::verbs::serve) fn new(activity: Arc<Activity>, load: &LoadRule) -> Gate {
        let now = Instant::now();
        let seen = Seen { looked: None, used: now, closed: None, step: None, next: now };
        Gate {
            activity,
            idle: load.idle,
            longest: match load.longest {
                Duration::ZERO => Duration::MAX,
                longest => longest.max(load.idle),
            },
            limit: load.limit,
            ends: AtomicBool::new(false),
            seen: Mutex::new(seen),
        }
    }

    /// After how many seconds without clients work begins.
    pub(super) fn idle_seconds(&self) -> u64 {
        self.idle.as_secs()
    }

    /// All work ends at its next question.
    pub(super) fn end(&self) {
        self.ends.store(true, SeqCst);
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ends.load(SeqCst)
    }

    /// True when work may go on at once. Beside clients that is a step, up to the next question of this kind or
    /// of [`pass`](Self::pass).
    pub(super) fn is_open(&self) -> bool {
        let now = Instant::now();
        let mut seen = self.seen.lock();
        seen.rest(now);
        let is_open = self.look(&mut seen, now);
        seen.step = (is_open && seen.closed.is_some()).then_some(now);
        is_open
    }

    /// Looks at what clients do; true when a step may begin.
    fn look(&self, seen: &mut Seen, now: Instant) -> bool {
        if self.idle.is_zero() || self.activity.idle() >= self.idle {
            (seen.looked, seen.closed) = (Some(now), None);
            return true;
        }
        seen.looked = None;
        let closed = *seen.closed.get_or_insert(now);
        now.duration_since(closed) >= self.longest && now >= seen.next
    }

    /// Returns when so many bytes may be read or written.
    ///
    /// # Errors
    /// `Stopped`: the server stops.
    pub(super) fn pass(&self, bytes: u64) -> Result<()> {
        self.pass_within(bytes, Duration::MAX)
    }

    /// The same for work that holds what others may need: it does not wait for long. Within a step beside
    /// clients it does not rest, so that it holds it no longer than the work takes.
    ///
    /// # Errors
    /// `Stopped`, and `Busy`: clients were at work for so long.
    pub(super) fn pass_within(&self, bytes: u64, patience: Duration) -> Result<()> {
        let (begun, rests) = (Instant::now(), patience == Duration::MAX);
        loop {
            if self.has_ended() {
                return Err(Error::new(Kind::Stopped, "the server is stopping"));
            }
            let (now, mut seen) = (Instant::now(), self.seen.lock());
            if rests {
                seen.rest(now);
            }
            let is_due = seen.looked.is_none_or(|before| now.duration_since(before) >= LOOK);
            if is_due && !self.look(&mut seen, now) && seen.step.is_none() {
                drop(seen);
                if begun.elapsed() >= patience {
                    return Err(gives_way());
                }
                std::thread::sleep(LOOK);
                continue;
            }
            if seen.used <= now + BURST {
                let takes = match self.limit {
                    0 => Duration::ZERO,
                    limit => Duration::from_secs_f64(bytes as f64 / limit as f64),
                };
                seen.used = seen.used.max(now) + takes;
                if seen.closed.is_some() {
                    seen.step.get_or_insert(now);
                }
                return Ok(());
            }
            drop(seen);
            std::thread::sleep(LOOK);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate(activity: Arc<Activity>, idle: Duration, limit: u64) -> Gate {
        Gate::new(activity, &LoadRule { idle, limit, ..LoadRule::default() })
    }

    #[test]
    fn clients_that_leave_no_pause_stop_no_work_for_ever() {
        let activity = Activity::new(|| 0);
        let (idle, longest) = (Duration::from_millis(200), Duration::from_millis(300));
        let gate = Gate::new(activity.clone(), &LoadRule { idle, longest, limit: 0 });
        let _working = activity.work();
        let begun = Instant::now();
        let opens = || {
            while !gate.is_open() {
                assert!(begun.elapsed() < Duration::from_secs(60));
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        opens();
        assert!(begun.elapsed() >= longest);
        // Work that holds something goes on to the end of its step: of 20 ms, with a rest of nineteen times that.
        std::thread::sleep(Duration::from_millis(20));
        gate.pass_within(1, Duration::ZERO).unwrap();
        let ended = Instant::now();
        assert!(!gate.is_open());
        assert_eq!(gate.pass_within(1, Duration::ZERO).unwrap_err().kind(), Kind::Busy);
        opens();
        assert!(ended.elapsed() >= Duration::from_millis(19 * 20));
    }

    #[test]
    fn work_waits_for_commands_and_for_clients_of_volumes() {
        let requests = Arc::new(AtomicU64::new(0));
        let counted = requests.clone();
        let activity = Activity::new(move || counted.load(SeqCst));
        let gate = Arc::new(gate(activity.clone(), Duration::from_millis(200), 0));
        let working = activity.work();
        let passing = {
            let gate = gate.clone();
            std::thread::spawn(move || {
                gate.pass(1).unwrap();
                Instant::now()
            })
        };
        std::thread::sleep(Duration::from_millis(300));
        assert!(!passing.is_finished());
        let ended = Instant::now();
        drop(working);
        assert!(passing.join().unwrap().duration_since(ended) >= Duration::from_millis(150));
        // One request of a client closes it within the time between two looks.
        assert!(gate.is_open());
        requests.fetch_add(1, SeqCst);
        std::thread::sleep(LOOK);
        let asked = Instant::now();
        gate.pass(1).unwrap();
        assert!(asked.elapsed() >= Duration::from_millis(150));
    }

    #[test]
    fn who_holds_something_gives_up_when_clients_stay_at_work() {
        let activity = Activity::new(|| 0);
        let gate = gate(activity.clone(), Duration::from_secs(3600), 0);
        let _working = activity.work();
        let given_up = gate.pass_within(1, Duration::from_millis(50)).unwrap_err();
        assert_eq!(given_up.kind(), Kind::Busy);
    }

    #[test]
    fn rule_31_work_that_has_begun_gives_way_at_its_next_step_after_a_look() {
        // A step that comes right behind a look is the last one that a client waits for.
        const { assert!(2 * LOOK.as_millis() <= 100) };
        let requests = Arc::new(AtomicU64::new(0));
        let counted = requests.clone();
        let activity = Activity::new(move || counted.load(SeqCst));
        let gate = gate(activity.clone(), Duration::from_millis(10), 0);
        // Steps of the work until it has to wait, so many at most. Each takes as long as between
        // two looks.
        let steps = |most: usize| {
            let step = || {
                std::thread::sleep(LOOK);
                gate.pass_within(1, Duration::ZERO)
            };
            (0..most).map(|_| step()).take_while(Result::is_ok).count()
        };
        for _ in 0..3 {
            gate.pass(1).unwrap();
            assert_eq!(steps(4), 4);
            let client = activity.work();
            assert_eq!(steps(4), 0);
            // However long the client is at work.
            assert_eq!(steps(4), 0);
            drop(client);
            gate.pass(1).unwrap();
            assert_eq!(steps(4), 4);
            // A request of a volume's client is over when it is seen.
            requests.fetch_add(1, SeqCst);
            assert_eq!(steps(4), 0);
        }
        // Steps that take no time are let through until the next look, and no longer.
        gate.pass(1).unwrap();
        let _client = activity.work();
        let begun = gate.seen.lock().looked.unwrap();
        while gate.pass_within(1, Duration::ZERO).is_ok() {
            assert_eq!(gate.seen.lock().looked, Some(begun), "it looked, and went on");
        }
    }

    #[test]
    fn a_limit_is_kept_and_the_end_ends_who_waits() {
        let gate = gate(Activity::new(|| 0), Duration::ZERO, 10 << 20);
        let begun = Instant::now();
        for _ in 0..8 {
            gate.pass(1 << 20).unwrap();
        }
        // Eight tenths of a second, but for what may be used at once.
        assert!(begun.elapsed() >= Duration::from_millis(450), "{:?}", begun.elapsed());
        gate.end();
        assert_eq!(gate.pass(1).unwrap_err().kind(), Kind::Stopped);
    }
}
