//! An NVMe drive for data centres, with power-loss protection: what is acknowledged is durable, and
//! a flush is a question.
//!
//! The constants are those that data sheets and reviews of such drives with PCIe 4 agree on: a 4
//! KiB write is acknowledged from the protected cache in about 15 µs, commands that are sent
//! together overlap until the drive does half a million a second, 2.5 GB are written in a second; a
//! flush costs the round trip of a command; a read of 4 KiB takes 80 µs from the flash, with 6 GB a
//! second. Here a flush is nearly free: the figures of a scheme that saves flushes show what it is
//! worth where they cost nothing, and so do the blocks that it writes.

use std::time::Duration;

use onefold_core::{Pba, Run};

use super::Model;

/// First command of a batch: from the call to its acknowledgement.
const WRITE: Duration = Duration::from_micros(15);
/// Each further command of the same batch.
const COMMAND: Duration = Duration::from_micros(2);
/// A block at 2.5 GB/s.
const WRITE_BLOCK: Duration = Duration::from_nanos(1638);
/// A command that does nothing.
const FLUSH: Duration = Duration::from_micros(6);
/// First block of a read.
const READ: Duration = Duration::from_micros(80);
/// A block at 6 GB/s.
const READ_BLOCK: Duration = Duration::from_nanos(683);

/// The drive.
pub(super) struct Nvme;

impl Model for Nvme {
    fn write(&mut self, _: Duration, runs: &[Run<'_>]) -> Duration {
        let Some(further) = (runs.len() as u32).checked_sub(1) else { return Duration::ZERO };
        WRITE
            + COMMAND * further
            + WRITE_BLOCK * runs.iter().map(|run| run.blocks.len() as u32).sum()
    }

    fn write_durable(&mut self, begin: Duration, run: &Run<'_>) -> Duration {
        self.write(begin, &[*run])
    }

    fn flush(&mut self, _: Duration) -> Duration {
        FLUSH
    }

    fn read(&mut self, _: Duration, _: Pba, blocks: u64) -> Duration {
        READ + READ_BLOCK * blocks as u32
    }
}

#[cfg(test)]
mod tests {
    use onefold_core::{Class, Disk};

    use crate::device::{DeviceKind, tests::Bench};

    #[test]
    fn runs_sent_together_overlap() {
        let bench = Bench::new(&DeviceKind::NvmePlp, 1000);
        bench.write(Class::Data, &[(0, 16)]);
        bench.device.flush().unwrap();
        assert!((bench.wait() * 1e3 - (15.0 + 16.0 * 1.638 + 6.0)).abs() < 0.01);
        let scattered: Vec<(u64, usize)> = (0..16).map(|n| (n * 10, 1)).collect();
        bench.write(Class::Data, &scattered);
        assert!((bench.wait() * 1e3 - (15.0 + 15.0 * 2.0 + 16.0 * 1.638)).abs() < 0.01);
        bench.write_durable(Class::Carrier, 5, 1);
        assert!((bench.wait() * 1e3 - (15.0 + 1.638)).abs() < 0.01);
    }
}
