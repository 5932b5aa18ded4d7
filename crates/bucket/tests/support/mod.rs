//! Shared by the tests: time that passes at once, and the contract of object stores.
#![allow(dead_code, clippy::unwrap_used, reason = "each test binary uses its own part")]

pub(crate) mod contract;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use onefold_bucket::{Bucket, Objects, Pace, Settings, Who};

/// Time that passes when somebody sleeps, and chance that counts.
pub(crate) struct Quick {
    pub(crate) now: AtomicU64,
    chance: AtomicU64,
}

pub(crate) fn quick(seed: u64) -> Arc<Quick> {
    Arc::new(Quick { now: AtomicU64::new(0), chance: AtomicU64::new(seed << 32) })
}

impl Pace for Quick {
    fn now(&self) -> Duration {
        Duration::from_millis(self.now.load(Relaxed))
    }

    fn wall(&self) -> u64 {
        1_900_000_000 + self.now.load(Relaxed) / 1000
    }

    fn sleep(&self, time: Duration) {
        self.now.fetch_add(time.as_millis() as u64, Relaxed);
    }

    fn nonce(&self) -> [u8; 16] {
        let n = self.chance.fetch_add(1, Relaxed);
        let mut nonce = [7; 16];
        nonce[..8].copy_from_slice(&n.to_le_bytes());
        nonce
    }
}

/// Settings of a writer of this name.
pub(crate) fn settings(name: &str) -> Settings {
    let who = Who { told: name.into(), mark: name.into() };
    Settings { who, threads: 2, ..Settings::default() }
}

/// The next writer of a bucket.
pub(crate) fn writer(objects: &Arc<dyn Objects>, seed: u64) -> onefold_core::Result<Bucket> {
    Bucket::make(objects.clone(), quick(seed), settings(&format!("writer {seed}")))
}

/// Bytes that no compression makes smaller.
pub(crate) fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut into = vec![0; bytes];
    onefold_testbed::Rng::new(seed).fill(&mut into);
    into
}
