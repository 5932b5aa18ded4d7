//! The kernel: the store, the format, a session's number, stamps that are never used again, and the
//! requests from which every step of the engine is made.
//!
//! | module | what |
//! |---|---|
//! | this one | what a session owns: store, format, settings, number, stamps, counters |
//! | [`catalogue`] | the object that says what the store is, and gives numbers |
//! | [`requests`] | reads and writes, alone and in batches; those that may be sent twice |
//! | [`operation`] | changes that are decided from what was read, and resolved by reading again |

pub(crate) mod catalogue;
mod operation;
pub(crate) mod requests;

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use onefold_core::{Error, Kind, Result, object::ObjectStore};

pub use catalogue::{create, create_sealed, is_made};
pub(crate) use operation::{Fate, Operation, Outcome};

use crate::{
    format::{Stamp, catalogue::Format},
    rules::Rule,
    sealing::hashing::Hashing,
    settings::Settings,
};

/// Above this counter a session begins no new change. The rest of the counter is left for the
/// operations that are already under way.
const STAMPS_MAX: u64 = (1 << Stamp::COUNTER_BITS) - (1 << 32);

/// Counters of the work of a process's sessions.
#[derive(Debug, Default)]
pub struct Counts {
    /// Operations of clients.
    pub foreground: AtomicU64,
    /// Bytes that clients wrote and read.
    pub foreground_bytes: AtomicU64,
    /// Operations of deduplication.
    pub background: AtomicU64,
    /// Chunks that were created.
    pub chunks_new: AtomicU64,
    /// Chunks that were already in the pool.
    pub chunks_found: AtomicU64,
    /// Flips that were refused because the entry had changed.
    pub flips_failed: AtomicU64,
    /// Chunks that were removed.
    pub collected: AtomicU64,
    /// Chunks that were promoted.
    pub promoted: AtomicU64,
    /// Operations whose reply was lost.
    pub unknown: AtomicU64,
}

/// The state of a session that every part of the engine borrows. All methods may be called from
/// many threads at once.
pub(crate) struct Kernel {
    store: Arc<dyn ObjectStore>,
    format: Format,
    settings: Settings,
    counts: Counts,
    number: u64,
    counter: AtomicU64,
    hashing: Hashing,
}

impl Kernel {
    pub(crate) fn store(&self) -> &dyn ObjectStore {
        &*self.store
    }

    pub(crate) fn format(&self) -> &Format {
        &self.format
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(crate) fn counts(&self) -> &Counts {
        &self.counts
    }

    /// The number of this session; higher ones began later.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// The cookie under which this session holds its locks.
    pub(crate) fn cookie(&self) -> String {
        format!("session {}", self.number)
    }

    /// A new stamp; no session has used it before, and none will again.
    pub(crate) fn stamp(&self) -> Stamp {
        let step = u64::from(self.keeps(Rule::StampsUnique));
        Stamp(self.number << Stamp::COUNTER_BITS | self.counter.fetch_add(step, Relaxed))
    }

    /// Refuses a new change when few stamps are left. A stamp that came a second time would let in
    /// a late copy of an operation.
    pub(crate) fn has_stamps(&self) -> Result<()> {
        if self.counter.load(Relaxed) < STAMPS_MAX {
            return Ok(());
        }
        Err(Error::new(
            Kind::Unsupported,
            "this process made all the changes that it can make: start it again, and it goes on",
        ))
    }

    /// True when an object with so many pending drops may be left with so many more.
    pub(crate) fn may_leave_drops(&self, pending: usize, more: usize) -> bool {
        pending + more <= self.settings.pending_max || !self.keeps(Rule::PendingDropsLimited)
    }

    /// True when the store is sealed at rest: then only whole blocks are written to metadata objects,
    /// at multiples of 4 KiB, each with its sum in the map entry that the same operation sets.
    pub(crate) fn is_sealed(&self) -> bool {
        self.hashing.is_sealed()
    }

    /// The keyed hashes of the store.
    pub(crate) fn hashing(&self) -> &Hashing {
        &self.hashing
    }

    /// True when the steps keep this rule; the constant `true` in a product.
    pub(crate) fn keeps(&self, rule: Rule) -> bool {
        self.settings.keeps(rule)
    }
}

#[cfg(test)]
mod tests {
    use onefold_core::object::PoolKind;
    use onefold_testbed::MemoryObjects;

    use super::*;
    use crate::{Mode, Session};

    #[test]
    fn rule_00_a_session_without_stamps_refuses_before_they_come_again() {
        let store = MemoryObjects::new(PoolKind::Replicated);
        create(&store, &Format::new([1; 16], [2; 32], PoolKind::Replicated)).unwrap();
        let session =
            Arc::new(Session::open(Arc::new(store.session("who")), Settings::default()).unwrap());
        session.create_volume("v", 1 << 20).unwrap();
        let volume = crate::Volume::attach(&session, "v", Mode::Own).unwrap();
        volume.write_at(0, &[1; 4096]).unwrap();
        session.kernel().counter.store(STAMPS_MAX, Relaxed);
        assert_eq!(volume.write_at(0, &[2; 4096]).unwrap_err().kind(), Kind::Unsupported);
        assert_eq!(volume.discard(0, 4096).unwrap_err().kind(), Kind::Unsupported);
        let mut bytes = [0; 4096];
        volume.read_at(0, &mut bytes).unwrap();
        assert_eq!(bytes, [1; 4096]);
        volume.detach().unwrap();
    }
}
