//! [`Counted`]: a disk over a place for blocks, which checks ranges and counts requests. Durable
//! writes, flushes and allocations are the same for every place that ends with the process.

use std::sync::atomic::{AtomicU64, Ordering};

use onefold_core::{Disk, Pba, Read, Result, Run};

use crate::{Counters, range};

/// A place for blocks that ends with the process.
pub trait Place: Send + Sync {
    /// The name of the disk in errors.
    const NAME: &str;

    /// Reads blocks that are in range.
    ///
    /// # Errors
    /// The place's own.
    fn load(&self, read: &mut Read<'_>) -> Result<()>;

    /// Writes blocks that are in range.
    ///
    /// # Errors
    /// The place's own.
    fn store(&self, run: &Run<'_>) -> Result<()>;
}

/// A disk over a [`Place`].
#[derive(Debug)]
pub struct Counted<P> {
    pub(crate) place: P,
    blocks: AtomicU64,
    counters: Counters,
}

impl<P: Place> Counted<P> {
    pub(crate) fn over(place: P, blocks: u64) -> Counted<P> {
        Counted { place, blocks: AtomicU64::new(blocks), counters: Counters::default() }
    }

    /// Counters of the requests so far.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    fn check(&self, at: Pba, blocks: u64) -> Result<()> {
        range::offset(P::NAME, self.blocks(), at, blocks).map(|_| ())
    }
}

impl<P: Place> Disk for Counted<P> {
    fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Acquire)
    }

    fn extend(&self, _: Pba, blocks: Option<u64>, _: bool) -> Result<u64> {
        self.blocks.fetch_max(blocks.unwrap_or(0), Ordering::AcqRel);
        Ok(self.blocks())
    }

    fn read(&self, reads: &mut [Read<'_>]) {
        for read in reads {
            read.result = self.check(read.at, read.into.len() as u64).and_then(|()| {
                self.counters.read(read.into.len());
                self.place.load(read)
            });
        }
    }

    fn write(&self, runs: &[Run<'_>]) -> Result<()> {
        runs.iter().try_for_each(|run| self.check(run.at, run.blocks.len() as u64))?;
        runs.iter().try_for_each(|run| {
            self.counters.write(run.blocks);
            self.place.store(run)
        })
    }

    fn write_durable(&self, run: &Run<'_>) -> Result<()> {
        self.check(run.at, run.blocks.len() as u64)?;
        self.counters.durable_write(run.blocks);
        self.place.store(run)
    }

    fn flush(&self) -> Result<()> {
        self.counters.flush();
        Ok(())
    }

    fn allocate(&self, at: Pba, blocks: u64) -> Result<()> {
        self.check(at, blocks)
    }
}
