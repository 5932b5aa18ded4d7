//! How long requests take, from when the server took one up to when its answer was ready.
//!
//! *Threads:* every connection counts in memory of its own, like its other
//! [statistics](super::statistics).

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

/// The kinds of requests, each with its number in the protocol.
const OPERATIONS: [(&str, u16); 7] = [
    ("read", 0),
    ("write", 1),
    ("flush", 3),
    ("trim", 4),
    ("cache", 5),
    ("write_zeroes", 6),
    ("block_status", 7),
];

/// The upper bounds of the buckets, in microseconds; one more has all that took longer.
const BOUNDS: [u64; 13] = [
    50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 50_000, 100_000, 500_000, 1_000_000, 10_000_000,
];

/// Requests of one kind by how long they took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Durations {
    buckets: [u64; BOUNDS.len() + 1],
    nanoseconds: u64,
}

impl Durations {
    /// All requests.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// The time that they took together.
    #[must_use]
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.nanoseconds)
    }

    /// Bounds, and how many requests took at most so long.
    pub fn up_to(&self) -> impl Iterator<Item = (Duration, u64)> {
        BOUNDS.iter().zip(&self.buckets).scan(0, |sum, (bound, count)| {
            *sum += count;
            Some((Duration::from_micros(*bound), *sum))
        })
    }
}

/// The requests of all kinds by how long they took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Operations([Durations; OPERATIONS.len()]);

impl Operations {
    /// The kinds by their names.
    pub fn by_name(&self) -> impl Iterator<Item = (&'static str, &Durations)> {
        OPERATIONS.iter().map(|(name, _)| *name).zip(&self.0)
    }
}

/// The same while requests come.
#[derive(Debug, Default)]
pub(crate) struct Counting([Cells; OPERATIONS.len()]);

#[derive(Debug, Default)]
struct Cells {
    buckets: [AtomicU64; BOUNDS.len() + 1],
    nanoseconds: AtomicU64,
}

impl Counting {
    fn count(&self, Took { operation, time }: Took) {
        let bucket = BOUNDS.partition_point(|bound| Duration::from_micros(*bound) < time);
        let cells = &self.0[operation];
        cells.buckets[bucket].fetch_add(1, Relaxed);
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        cells.nanoseconds.fetch_add(nanoseconds, Relaxed);
    }

    /// Adds these counts to `sum`.
    pub(crate) fn add_to(&self, sum: &mut Operations) {
        for (cells, sum) in self.0.iter().zip(&mut sum.0) {
            for (cell, sum) in cells.buckets.iter().zip(&mut sum.buckets) {
                *sum = sum.wrapping_add(cell.load(Relaxed));
            }
            sum.nanoseconds = sum.nanoseconds.wrapping_add(cells.nanoseconds.load(Relaxed));
        }
    }
}

/// The kind of a request, and when the server took it up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Begun {
    operation: usize,
    at: Instant,
}

impl Begun {
    /// Now; nothing for a command that the protocol does not have.
    pub(crate) fn now(command: u16) -> Option<Begun> {
        let operation = OPERATIONS.iter().position(|(_, number)| *number == command)?;
        Some(Begun { operation, at: Instant::now() })
    }
}

/// How long a request took.
#[derive(Clone, Copy)]
struct Took {
    operation: usize,
    time: Duration,
}

/// The times of requests that a batch of replies ends.
#[derive(Default)]
pub(crate) struct Ended(Vec<Took>);

impl Ended {
    /// The answer to a request is ready.
    pub(crate) fn push(&mut self, begun: Option<Begun>) {
        self.0.extend(begun.map(|Begun { operation, at }| Took { operation, time: at.elapsed() }));
    }

    /// Counts the times, and forgets them.
    pub(crate) fn count(&mut self, counting: &Counting) {
        self.0.drain(..).for_each(|took| counting.count(took));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_fall_into_buckets_and_sums_stay_together() {
        let counting = Counting::default();
        for micros in [10, 50, 51, 9_999_999, 10_000_001] {
            counting.count(Took { operation: 1, time: Duration::from_micros(micros) });
        }
        let mut sum = Operations::default();
        counting.add_to(&mut sum);
        counting.add_to(&mut sum);
        let (name, writes) = sum.by_name().nth(1).unwrap();
        assert_eq!((name, writes.count()), ("write", 10));
        assert_eq!(writes.sum(), Duration::from_micros(2 * 20_000_111));
        let up_to: Vec<u64> = writes.up_to().map(|(_, count)| count).collect();
        assert_eq!(up_to, [4, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 8]);
        assert!(sum.by_name().all(|(name, times)| name == "write" || times.count() == 0));
        assert_eq!(Begun::now(2), None);
        assert!(Begun::now(7).is_some_and(|begun| begun.operation == 6));
    }
}
