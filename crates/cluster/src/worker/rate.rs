//! Rate control (the paper's 4.4.2): below the low mark no limit, between the marks one operation of deduplication for 100 of clients, above the high one
//! for 500. The marks are for the whole store: servers publish what they did, workers add it up.

use std::{collections::BTreeMap, time::Duration};

use onefold_core::object::{Change, ObjectName, Refusal, Write};

use crate::session::Session;

/// Client operations for one of deduplication, between the marks and above the high one.
const BETWEEN: u64 = 100;
const ABOVE: u64 = 500;

/// Operations that may be saved up: what one second gave.
const SAVED: Duration = Duration::from_secs(1);

/// A worker that published nothing for so long is gone: as long as its leases last.
const SILENT: Duration = Duration::from_secs(30);

/// One that was never seen to publish is gone after this: it may have died long ago.
const UNSEEN: Duration = Duration::from_secs(5);

/// The object in which servers publish their load, a key each.
const SERVERS: &str = "servers";

/// Watermarks on operations and on bytes a second; `u64::MAX` for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marks {
    /// Operations a second, low and high.
    pub operations: (u64, u64),
    /// Bytes a second, low and high.
    pub bytes: (u64, u64),
}

impl Default for Marks {
    fn default() -> Marks {
        Marks { operations: (500, 5_000), bytes: (16 << 20, 256 << 20) }
    }
}

impl Marks {
    /// No limit at any load.
    pub const NONE: Marks = Marks { operations: (u64::MAX, u64::MAX), bytes: (u64::MAX, u64::MAX) };

    /// Client operations for one of deduplication; `None` for no limit.
    #[must_use]
    pub fn ratio(&self, operations: u64, bytes: u64) -> Option<u64> {
        if operations > self.operations.1 || bytes > self.bytes.1 {
            Some(ABOVE)
        } else if operations > self.operations.0 || bytes > self.bytes.0 {
            Some(BETWEEN)
        } else {
            None
        }
    }
}

/// What a session did since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Client operations.
    pub operations: u64,
    /// Their bytes.
    pub bytes: u64,
    /// True for one that deduplicates.
    pub works: bool,
    /// How often it published: that it goes on.
    pub beat: u64,
    /// Operations whose reply was lost.
    pub unknown: u64,
}

impl Load {
    fn encode(self) -> Vec<u8> {
        let mut value = vec![u8::from(self.works)];
        value.extend(self.operations.to_le_bytes());
        [self.bytes, self.beat, self.unknown].iter().for_each(|number| value.extend(number.to_le_bytes()));
        value
    }

    fn decode(value: &[u8]) -> Option<Load> {
        let number = |at: usize| Some(u64::from_le_bytes(value.get(at..at + 8)?.try_into().ok()?));
        // What older sessions published ends here.
        let later = |at: usize| number(at).unwrap_or(0);
        Some(Load { operations: number(1)?, bytes: number(9)?, works: *value.first()? != 0, beat: later(17), unknown: later(25) })
    }
}

/// How fast a worker may go.
pub struct Rate {
    marks: Marks,
    /// What was seen last of each session, and until when it is taken for alive.
    seen: BTreeMap<Vec<u8>, (Load, Duration)>,
    looked: Option<Duration>,
    ratio: Option<u64>,
    /// Operations that may be done, in thousandths; spent ones that were not there are owed.
    tokens: i64,
    /// The most that may be saved up.
    most: i64,
    /// Living workers, this one among them.
    workers: u64,
}

impl Rate {
    /// Without a look at the load there is no limit.
    #[must_use]
    pub fn new(marks: Marks) -> Rate {
        Rate { marks, seen: BTreeMap::new(), looked: None, ratio: None, tokens: 0, most: 0, workers: 1 }
    }

    /// Takes in what the sessions did, and says how many operations may be done now.
    pub fn allowance(&mut self, now: Duration, loads: &BTreeMap<Vec<u8>, Load>) -> u64 {
        let (mut operations, mut bytes, mut workers) = (0, 0, 0);
        for (session, load) in loads {
            let (before, until) = self.seen.get(session).copied().unwrap_or((*load, now + UNSEEN));
            operations += load.operations.saturating_sub(before.operations);
            bytes += load.bytes.saturating_sub(before.bytes);
            let until = if *load == before { until } else { now + SILENT };
            workers += u64::from(load.works && now < until);
            self.seen.insert(session.clone(), (*load, until));
        }
        self.workers = workers.max(1);
        self.seen.retain(|session, _| loads.contains_key(session));
        if let Some(looked) = self.looked {
            let passed = now.saturating_sub(looked).max(Duration::from_millis(1));
            let a_second = |count: u64| (count as f64 / passed.as_secs_f64()) as u64;
            self.ratio = self.marks.ratio(a_second(operations), a_second(bytes));
            if let Some(ratio) = self.ratio {
                let given = (operations * 1000 / ratio / workers.max(1)) as i64;
                self.most = (given as f64 * (SAVED.as_secs_f64() / passed.as_secs_f64()).max(1.0)) as i64;
                self.tokens = (self.tokens + given).min(self.most.max(1000));
            }
        }
        self.looked = Some(now);
        match self.ratio {
            None => {
                self.tokens = self.tokens.max(0);
                u64::MAX
            }
            Some(_) => (self.tokens.max(0) / 1000) as u64,
        }
    }

    /// Workers that are alive, as far as the last look told.
    #[must_use]
    pub fn workers(&self) -> u64 {
        self.workers
    }

    /// True while there is a limit.
    #[must_use]
    pub fn is_limited(&self) -> bool {
        self.ratio.is_some()
    }

    /// Takes note of operations that were done.
    pub fn spent(&mut self, operations: u64) {
        if self.ratio.is_some() {
            self.tokens -= operations as i64 * 1000;
        }
    }
}

impl Session {
    /// Publishes what this session did.
    ///
    /// # Errors
    /// The store's.
    pub fn publish(&self, works: bool) -> Result<(), Refusal> {
        use std::sync::atomic::Ordering::Relaxed;
        let counts = &self.counts;
        let load = Load {
            operations: counts.foreground.load(Relaxed),
            bytes: counts.foreground_bytes.load(Relaxed),
            works,
            beat: counts.published.fetch_add(1, Relaxed) + 1,
            unknown: counts.unknown.load(Relaxed),
        };
        self.publish_as(Change::SetOmap(vec![(self.load_key(), load.encode())]))
    }

    /// Takes back what was published.
    ///
    /// # Errors
    /// The store's.
    pub fn unpublish(&self) -> Result<(), Refusal> {
        self.publish_as(Change::DropOmap(vec![self.load_key()]))
    }

    fn publish_as(&self, change: Change) -> Result<(), Refusal> {
        self.write_one(&Write { object: ObjectName::metadata(SERVERS), guards: Vec::new(), changes: vec![change] }).map(|_| ())
    }

    fn load_key(&self) -> Vec<u8> {
        crate::format::key::numbered(b's', self.number())
    }

    /// What all sessions did.
    pub(crate) fn loads(&self) -> Result<BTreeMap<Vec<u8>, Load>, Refusal> {
        let keys = self.all_keys(&ObjectName::metadata(SERVERS), Vec::new())?;
        Ok(keys.into_iter().filter_map(|(key, value)| Some((key, Load::decode(&value)?))).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loads(operations: u64, workers: u64) -> BTreeMap<Vec<u8>, Load> {
        let server = (vec![0], Load { operations, ..Load::default() });
        (1..=workers).map(|n| (vec![n as u8], Load { works: true, ..Load::default() })).chain([server]).collect()
    }

    #[test]
    fn the_marks_decide_the_ratio() {
        let marks = Marks { operations: (100, 1000), bytes: (10_000, u64::MAX) };
        assert_eq!(marks.ratio(100, 10_000), None);
        assert_eq!(marks.ratio(101, 0), Some(100));
        assert_eq!(marks.ratio(0, 10_001), Some(100));
        assert_eq!(marks.ratio(1001, 0), Some(500));
        assert_eq!(Marks::NONE.ratio(u64::MAX, u64::MAX), None);
    }

    #[test]
    fn workers_share_what_the_load_gives() {
        for (operations, expected) in [(2_000, 10), (20_000, 20)] {
            let marks = Marks { operations: (1_000, 10_000), ..Marks::NONE };
            let mut total = 0;
            for _ in 0..2 {
                let mut rate = Rate::new(marks);
                let second = Duration::from_secs;
                assert_eq!(rate.allowance(second(0), &loads(0, 2)), u64::MAX);
                total += rate.allowance(second(1), &loads(operations, 2));
                rate.spent(1000);
                assert_eq!(rate.allowance(second(2), &loads(2 * operations, 2)), 0);
                assert_eq!(rate.allowance(second(3), &loads(2 * operations, 2)), u64::MAX);
            }
            assert_eq!(total, 2 * expected);
        }
    }

    #[test]
    fn the_dead_lose_their_share_and_the_living_keep_it() {
        let (mut rate, mut shares) = (Rate::new(Marks { operations: (1, u64::MAX), ..Marks::NONE }), Vec::new());
        for second in 0..120 {
            let mut loads = loads(20_000 * second, 3);
            // One publishes all the time, one until a minute is over, one never did since we began.
            let beats = [second, second.min(60), 7];
            loads.values_mut().skip(1).zip(beats).for_each(|(load, beat)| load.beat = beat);
            rate.allowance(Duration::from_secs(second), &loads);
            shares.push(rate.workers());
        }
        let at = |second: usize| shares[second];
        assert_eq!([at(1), at(4), at(5), at(60), at(89), at(90), at(119)], [3, 3, 2, 2, 2, 1, 1]);
    }

    #[test]
    fn a_load_comes_back_also_an_older_one() {
        let load = Load { operations: 1, bytes: 2, works: true, beat: 3, unknown: 4 };
        let value = load.encode();
        assert_eq!(Load::decode(&value), Some(load));
        assert_eq!(Load::decode(&value[..17]), Some(Load { beat: 0, unknown: 0, ..load }));
        assert_eq!(Load::decode(&value[..16]), None);
    }
}
