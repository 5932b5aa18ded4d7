//! The bytes of hot chunks that a session may keep, over all its volumes.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::kernel::Kernel;

/// Bytes of clean chunks that a session may keep in metadata objects, and does.
pub(crate) struct CacheBudget {
    kept: AtomicU64,
    /// Servers that share the cache.
    servers: AtomicU64,
}

impl Default for CacheBudget {
    fn default() -> CacheBudget {
        CacheBudget { kept: AtomicU64::new(0), servers: AtomicU64::new(1) }
    }
}

impl CacheBudget {
    /// Bytes that the volumes of this session keep.
    pub(crate) fn kept(&self) -> u64 {
        self.kept.load(Relaxed)
    }

    /// Bytes that this session may keep: its share of the store's cache.
    pub(crate) fn share(&self, kernel: &Kernel) -> u64 {
        kernel.settings().cache_bytes / self.servers.load(Relaxed).max(1)
    }

    pub(crate) fn share_with(&self, servers: u64) {
        self.servers.store(servers.max(1), Relaxed);
    }

    pub(crate) fn keep(&self, bytes: u64) {
        self.kept.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn give_back(&self, bytes: u64) {
        self.kept.fetch_sub(bytes, Relaxed);
    }
}
