//! Counters of a disk's requests: requests, blocks by class, flushes.
//!
//! A request is counted when it is made, whether it then succeeds or not. Threads: plain atomics
//! without order between them; a snapshot during a request may hold its count without its blocks.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use onefold_core::{BlockRef, Class};

/// Number of classes of blocks.
const CLASSES: usize = 4;

fn slot(class: Class) -> usize {
    match class {
        Class::Data => 0,
        Class::Carrier => 1,
        Class::Table => 2,
        Class::Super => 3,
    }
}

/// Running counts of one disk.
#[derive(Debug, Default)]
pub struct Counters {
    reads: AtomicU64,
    blocks_read: AtomicU64,
    writes: AtomicU64,
    durable_writes: AtomicU64,
    blocks_written: [AtomicU64; CLASSES],
    flushes: AtomicU64,
}

/// The counts at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Reads, each of consecutive blocks.
    pub reads: u64,
    /// Blocks read.
    pub blocks_read: u64,
    /// Runs written, durable ones among them.
    pub writes: u64,
    /// Runs written durably, without a flush.
    pub durable_writes: u64,
    /// Flushes of the whole disk.
    pub flushes: u64,
    blocks_written: [u64; CLASSES],
}

impl Counters {
    /// The counts now.
    #[must_use]
    pub fn now(&self) -> Counts {
        Counts {
            reads: self.reads.load(Relaxed),
            blocks_read: self.blocks_read.load(Relaxed),
            writes: self.writes.load(Relaxed),
            durable_writes: self.durable_writes.load(Relaxed),
            flushes: self.flushes.load(Relaxed),
            blocks_written: std::array::from_fn(|i| self.blocks_written[i].load(Relaxed)),
        }
    }

    pub(crate) fn read(&self, blocks: usize) {
        self.reads.fetch_add(1, Relaxed);
        self.blocks_read.fetch_add(blocks as u64, Relaxed);
    }

    pub(crate) fn write(&self, blocks: &[BlockRef<'_>]) {
        self.writes.fetch_add(1, Relaxed);
        let mut by_class = [0; CLASSES];
        blocks.iter().for_each(|b| by_class[slot(b.class)] += 1);
        for (counter, n) in self.blocks_written.iter().zip(by_class).filter(|(_, n)| *n > 0) {
            counter.fetch_add(n, Relaxed);
        }
    }

    pub(crate) fn durable_write(&self, blocks: &[BlockRef<'_>]) {
        self.write(blocks);
        self.durable_writes.fetch_add(1, Relaxed);
    }

    pub(crate) fn flush(&self) {
        self.flushes.fetch_add(1, Relaxed);
    }
}

impl Counts {
    /// Blocks of `class` written.
    #[must_use]
    pub fn written(&self, class: Class) -> u64 {
        self.blocks_written[slot(class)]
    }

    /// Blocks of all classes written.
    #[must_use]
    pub fn blocks_written(&self) -> u64 {
        self.blocks_written.iter().sum()
    }

    /// The requests after `earlier` was taken from the same disk.
    #[must_use]
    pub fn since(&self, earlier: &Counts) -> Counts {
        Counts {
            reads: self.reads - earlier.reads,
            blocks_read: self.blocks_read - earlier.blocks_read,
            writes: self.writes - earlier.writes,
            durable_writes: self.durable_writes - earlier.durable_writes,
            flushes: self.flushes - earlier.flushes,
            blocks_written: std::array::from_fn(|i| {
                self.blocks_written[i] - earlier.blocks_written[i]
            }),
        }
    }
}
