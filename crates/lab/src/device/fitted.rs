//! The two devices of ThinDedup's paper, as two or three constants each that were fitted to the
//! figures in its text.
//!
//! SSD: 0.02 ms for each block written, 3.9 ms for each flush. Hard disk: a batch of data takes
//! 10.3 ms and 0.357 ms for each block; a batch of n different pages of metadata takes 4.83·√n ms,
//! at least 10.3; the flush is included in both, and a batch is what lies between two flushes. Data
//! are taken as written in one run, as all schemes here do; metadata as scattered. The paper counts
//! no reads, and they are free.
//!
//! Absolute throughput on these models agrees with the paper by construction. Ratios between
//! schemes follow from what the schemes write.

use std::{collections::HashSet, time::Duration};

use onefold_core::{Pba, Run};

use super::{Model, is_metadata};

/// Time of a block on the SSD.
const SSD_BLOCK: Duration = Duration::from_micros(20);
/// Time of a flush of the SSD.
const SSD_FLUSH: Duration = Duration::from_micros(3900);

/// Least time of a batch on the hard disk.
const HDD_BATCH: Duration = Duration::from_micros(10_300);
/// Time of each block of data in it.
const HDD_BLOCK: Duration = Duration::from_micros(357);
/// Milliseconds of one page of metadata; n of them take as long as √n.
const HDD_PAGE_MS: f64 = 4.83;

/// The SSD.
pub(super) struct Ssd;

impl Ssd {
    fn blocks(runs: &[Run<'_>]) -> Duration {
        SSD_BLOCK * runs.iter().map(|run| run.blocks.len() as u32).sum()
    }
}

impl Model for Ssd {
    fn write(&mut self, _: Duration, runs: &[Run<'_>]) -> Duration {
        Ssd::blocks(runs)
    }

    fn write_durable(&mut self, _: Duration, run: &Run<'_>) -> Duration {
        Ssd::blocks(&[*run]) + SSD_FLUSH
    }

    fn flush(&mut self, _: Duration) -> Duration {
        SSD_FLUSH
    }

    fn read(&mut self, _: Duration, _: Pba, _: u64) -> Duration {
        Duration::ZERO
    }
}

/// The hard disk: what was written since the last flush.
#[derive(Default)]
pub(super) struct Hdd {
    batch: Batch,
}

#[derive(Default)]
struct Batch {
    data: u32,
    pages: HashSet<u64>,
}

impl Batch {
    fn add(&mut self, run: &Run<'_>) {
        for (at, block) in (run.at.0..).zip(run.blocks) {
            if is_metadata(block.class) {
                self.pages.insert(at);
            } else {
                self.data += 1;
            }
        }
    }

    fn time(&self) -> Duration {
        let data = if self.data > 0 { HDD_BATCH + HDD_BLOCK * self.data } else { Duration::ZERO };
        let seeks = Duration::from_secs_f64(HDD_PAGE_MS * (self.pages.len() as f64).sqrt() / 1e3);
        data + if self.pages.is_empty() { Duration::ZERO } else { HDD_BATCH.max(seeks) }
    }
}

impl Model for Hdd {
    fn write(&mut self, _: Duration, runs: &[Run<'_>]) -> Duration {
        runs.iter().for_each(|run| self.batch.add(run));
        Duration::ZERO
    }

    fn write_durable(&mut self, _: Duration, run: &Run<'_>) -> Duration {
        let mut alone = Batch::default();
        alone.add(run);
        alone.time()
    }

    fn flush(&mut self, _: Duration) -> Duration {
        std::mem::take(&mut self.batch).time()
    }

    fn read(&mut self, _: Duration, _: Pba, _: u64) -> Duration {
        Duration::ZERO
    }
}

#[cfg(test)]
mod tests {
    use onefold_core::{Class, Disk};

    use crate::device::{DeviceKind, tests::Bench};

    fn near(got: f64, wanted: f64) {
        assert!((got - wanted).abs() < 0.001, "{got} is not {wanted}");
    }

    #[test]
    fn the_ssd_takes_what_the_definition_says() {
        let bench = Bench::new(&DeviceKind::SsdP, 1000);
        bench.write_durable(Class::Data, 7, 4);
        near(bench.wait(), 3.98);
        // ThinDedup with a window of 8 and half duplicates: four blocks and one flush; text: about
        // 2000 blocks a second.
        near(8.0 / 3.98, 2.010);
        bench.write(Class::Data, &[(0, 8)]);
        bench.device.flush().unwrap();
        bench.write(Class::Table, &[(100, 1), (200, 1)]);
        bench.device.flush().unwrap();
        near(bench.wait(), 8.0 * 0.02 + 3.9 + 2.0 * 0.02 + 3.9);
    }

    #[test]
    fn the_hard_disk_prices_data_and_metadata_apart() {
        let bench = Bench::new(&DeviceKind::HddP, 100_000);
        bench.write(Class::Data, &[(0, 15)]);
        bench.write(Class::Carrier, &[(15, 1)]);
        near(bench.wait(), 0.0);
        bench.device.flush().unwrap();
        near(bench.wait(), 10.3 + 16.0 * 0.357);
        // Few pages cost a batch, many the root of their number; the same page twice is one.
        bench.write(Class::Table, &[(500, 1), (700, 1), (500, 1), (900, 1)]);
        bench.device.flush().unwrap();
        near(bench.wait(), 10.3);
        let pages: Vec<(u64, usize)> = (0..100).map(|n| (1000 + n * 7, 1)).collect();
        bench.write(Class::Table, &pages);
        bench.device.flush().unwrap();
        near(bench.wait(), 48.3);
        // A flush for both.
        bench.write(Class::Data, &[(0, 1)]);
        bench.write(Class::Super, &[(50, 1)]);
        bench.device.flush().unwrap();
        near(bench.wait(), 10.3 + 0.357 + 10.3);
    }

    #[test]
    fn a_durable_write_leaves_the_cache_as_it_is() {
        let bench = Bench::new(&DeviceKind::HddP, 1000);
        bench.write(Class::Data, &[(0, 10)]);
        bench.write_durable(Class::Carrier, 20, 2);
        near(bench.wait(), 10.3 + 2.0 * 0.357);
        bench.device.flush().unwrap();
        near(bench.wait(), 10.3 + 10.0 * 0.357);
    }
}
