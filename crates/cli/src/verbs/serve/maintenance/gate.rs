//! When work in the background may go on: while nobody asked for anything for a time, and within a
//! limit of bytes a second.
//!
//! The work asks before each read and write. While clients are at work it waits: they share the disk
//! with one read that had begun before, of a few MiB.

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

/// Between two looks at what clients do, also while the work goes on.
const LOOK: Duration = Duration::from_millis(25);

/// How much of the limit may be used at once, as time.
const BURST: Duration = Duration::from_millis(100);

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
    limit: u64,
    ends: AtomicBool,
    /// When clients were looked at last, and until when the limit is used up.
    looked: Mutex<(Option<Instant>, Instant)>,
}

impl Gate {
    /// Work goes on when nobody asked for anything for `idle`, and with `limit` bytes a second; zero
    /// is no limit.
    pub(in crate::verbs::serve) fn new(
        activity: Arc<Activity>,
        idle: Duration,
        limit: u64,
    ) -> Gate {
        let now = Instant::now();
        Gate {
            activity,
            idle,
            limit,
            ends: AtomicBool::new(false),
            looked: Mutex::new((None, now)),
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

    /// True when work may go on at once.
    pub(super) fn is_open(&self) -> bool {
        self.idle.is_zero() || self.activity.idle() >= self.idle
    }

    /// Returns when so many bytes may be read or written.
    ///
    /// # Errors
    /// `Stopped`: the server stops.
    pub(super) fn pass(&self, bytes: u64) -> Result<()> {
        self.pass_within(bytes, Duration::MAX)
    }

    /// The same for work that holds what others may need: it does not wait for long.
    ///
    /// # Errors
    /// `Stopped`, and `Busy`: clients were at work for so long.
    pub(super) fn pass_within(&self, bytes: u64, patience: Duration) -> Result<()> {
        let begun = Instant::now();
        loop {
            if self.has_ended() {
                return Err(Error::new(Kind::Stopped, "the server is stopping"));
            }
            let (now, mut looked) = (Instant::now(), self.looked.lock());
            if looked.0.is_none_or(|before| now.duration_since(before) >= LOOK) {
                if !self.is_open() {
                    drop(looked);
                    if begun.elapsed() >= patience {
                        return Err(gives_way());
                    }
                    std::thread::sleep(LOOK);
                    continue;
                }
                looked.0 = Some(now);
            }
            if looked.1 <= now + BURST {
                let takes = match self.limit {
                    0 => Duration::ZERO,
                    limit => Duration::from_secs_f64(bytes as f64 / limit as f64),
                };
                looked.1 = looked.1.max(now) + takes;
                return Ok(());
            }
            drop(looked);
            std::thread::sleep(LOOK);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_waits_for_commands_and_for_clients_of_volumes() {
        let requests = Arc::new(AtomicU64::new(0));
        let counted = requests.clone();
        let activity = Activity::new(move || counted.load(SeqCst));
        let gate = Arc::new(Gate::new(activity.clone(), Duration::from_millis(200), 0));
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
        let gate = Gate::new(activity.clone(), Duration::from_secs(3600), 0);
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
        let gate = Gate::new(activity.clone(), Duration::from_millis(10), 0);
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
        let begun = gate.looked.lock().0.unwrap();
        while gate.pass_within(1, Duration::ZERO).is_ok() {
            assert_eq!(gate.looked.lock().0, Some(begun), "it looked, and went on");
        }
    }

    #[test]
    fn a_limit_is_kept_and_the_end_ends_who_waits() {
        let gate = Gate::new(Activity::new(|| 0), Duration::ZERO, 10 << 20);
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
