//! Counters of each connection, and their sum for whoever looks.
//!
//! *Threads:* every connection counts in memory of its own, so that counting costs nothing; reading
//! adds them up.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::durations::{Counting, Operations};

macro_rules! statistics {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Counts of the work of the server since its start. Sums are made while connections are
        /// busy, so they may be off by the requests in flight.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Statistics {
            /// Connections that are open, those in their handshake included.
            pub connections: u64,
            /// Connections that have a working place; the others wait for their clients, or for a
            /// place.
            pub working: u64,
            /// Connections accepted since the start.
            pub accepted: u64,
            /// Connections closed at once because the limit was reached, and handshakes that gave
            /// way to a newcomer.
            pub refused: u64,
            /// Sessions that ended by a panic in the server; always zero, or a bug.
            pub panics: u64,
            /// How long requests took.
            pub durations: Operations,
            $($(#[$doc])* pub $name: u64,)*
        }

        /// The counters of one connection.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            pub(crate) durations: Counting,
            $(pub(crate) $name: AtomicU64,)*
        }

        impl Counters {
            /// Adds these counters to `sum`.
            pub(crate) fn add_to(&self, sum: &mut Statistics) {
                self.durations.add_to(&mut sum.durations);
                $(sum.$name = sum.$name.wrapping_add(self.$name.load(Relaxed));)*
            }
        }
    };
}

statistics! {
    /// Requests received and not yet answered.
    in_flight,
    /// READ requests.
    reads,
    /// WRITE requests.
    writes,
    /// FLUSH requests.
    flushes,
    /// TRIM requests.
    trims,
    /// WRITE_ZEROES requests.
    zeroes,
    /// CACHE requests.
    caches,
    /// BLOCK_STATUS requests.
    statuses,
    /// Requests answered with an error.
    errors,
    /// Bytes read from volumes for clients.
    read_bytes,
    /// Bytes that clients wrote to volumes.
    written_bytes,
}

/// Adds `n` to a counter.
pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Relaxed);
}

/// Takes `n` from a counter.
pub(crate) fn sub(counter: &AtomicU64, n: u64) {
    counter.fetch_sub(n, Relaxed);
}
