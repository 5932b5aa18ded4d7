//! Time and chance, as the crate sees them.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Time and chance. The simulator has its own.
pub trait Pace: Send + Sync {
    /// Time since an arbitrary start; never goes back.
    fn now(&self) -> Duration;

    /// Seconds since 1970, by a clock that may be wrong. Nothing is decided by it.
    fn wall(&self) -> u64;

    /// Lets time pass.
    fn sleep(&self, time: Duration);

    /// Bytes by chance, which nobody draws twice.
    fn nonce(&self) -> [u8; 16];
}

/// The system's clocks and chance.
pub struct SystemPace {
    begun: Instant,
    chance: fn() -> [u8; 16],
}

impl SystemPace {
    /// The system's clocks, and chance from this function.
    #[must_use]
    pub fn new(chance: fn() -> [u8; 16]) -> SystemPace {
        SystemPace { begun: Instant::now(), chance }
    }
}

impl Pace for SystemPace {
    fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    fn wall(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
    }

    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }

    fn nonce(&self) -> [u8; 16] {
        (self.chance)()
    }
}
