//! The findings of a replay, as they are printed and put into reports.

use serde::{Deserialize, Serialize};

use crate::{device, subject::Tally};

/// Points of a distribution's curve.
const CURVE_POINTS: usize = 200;

/// The figures of one replay. Sums are over the whole trace, without what came before the end of
/// the warm-up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Blocks that clients wrote.
    pub client_blocks: u64,
    /// Blocks of 4 KiB written to the device, all of them, until the last record was in the
    /// tables.
    pub device_blocks: u64,
    /// Blocks whose content was not live when they were written: what a scheme without metadata
    /// would write.
    pub ideal_blocks: u64,
    /// Blocks on the device that hold nothing of a client.
    pub metadata_blocks: u64,
    /// Flushes of the device, and durable writes.
    pub flushes: u64,
    /// Windows.
    pub windows: u64,
    /// Blocks that the scheme found stored already.
    pub duplicate_blocks: u64,
    /// Records that were hidden beside compressed data.
    pub hidden_records: u64,
    /// Records in all.
    pub records: u64,
    /// Blocks written to carry records into the tables.
    pub checkpoint_blocks: u64,
    /// Virtual time until the last request was answered and everything was durable.
    pub virtual_seconds: f64,
    /// Virtual time that it then took to have the last record in the tables.
    pub settle_seconds: f64,
    /// Blocks of zeroes, which are stored nowhere.
    pub zero_blocks: u64,
    /// Addresses that hold something at the end.
    pub live_blocks: u64,
    /// Different contents among them.
    pub live_contents: u64,
    /// Blocks that the store then has in use, for contents and tables together.
    pub stored_blocks: Option<u64>,
    /// Blocks that were read at the end and had the right content.
    pub verified_blocks: u64,
    /// Real time that the replay took.
    pub wall_seconds: f64,
    /// The trace ended before it should, or its recording was not finished.
    pub cut_off: bool,
    /// The requests to the device, by class.
    pub device_counts: device::Counts,
    /// Zones of 4 MiB in which blocks of clients were written, the warm-up included.
    pub data_zones: u64,
    /// Zones among them with blocks in which records were hidden.
    pub carrier_zones: u64,
    /// The scheme's own counts.
    pub tally: Tally,
    /// Time from a write's coming to its answer.
    pub write_latency: Latency,
    /// Time from a flush's coming to its answer.
    pub flush_latency: Latency,
    /// The parts of the trace, if it has marks.
    pub phases: Vec<Phase>,
}

impl Outcome {
    /// Blocks written for each block that clients wrote.
    #[must_use]
    pub fn volume(&self) -> f64 {
        self.device_blocks as f64 / self.client_blocks.max(1) as f64
    }

    /// How much of the client's blocks was written more than the ideal, in points.
    #[must_use]
    pub fn points_above_ideal(&self) -> f64 {
        (self.device_blocks as f64 - self.ideal_blocks as f64) * 100.0
            / self.client_blocks.max(1) as f64
    }

    /// Blocks that clients wrote in a second of virtual time.
    #[must_use]
    pub fn throughput(&self) -> f64 {
        if self.virtual_seconds > 0.0 {
            self.client_blocks as f64 / self.virtual_seconds
        } else {
            0.0
        }
    }
}

/// A part of a trace. The requests before the first mark are a part without a name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// The mark's name.
    pub name: String,
    /// As in [`Outcome`].
    pub client_blocks: u64,
    /// As in [`Outcome`]; work for the tables counts where it happened.
    pub device_blocks: u64,
    /// As in [`Outcome`].
    pub ideal_blocks: u64,
    /// As in [`Outcome`].
    pub checkpoint_blocks: u64,
    /// As in [`Outcome`].
    pub flushes: u64,
    /// As in [`Outcome`].
    pub virtual_seconds: f64,
}

/// How long requests took, in milliseconds of virtual time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Requests.
    pub requests: u64,
    /// Their mean.
    pub mean_ms: f64,
    /// Half of them took no longer; and so on.
    pub p50_ms: f64,
    /// See there.
    pub p80_ms: f64,
    /// See there.
    pub p90_ms: f64,
    /// See there.
    pub p99_ms: f64,
    /// The longest.
    pub max_ms: f64,
    /// The distribution: milliseconds, and the share of requests that took no longer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub curve: Vec<(f64, f64)>,
}

impl Latency {
    /// Sums up nanoseconds.
    #[must_use]
    pub fn of(mut nanoseconds: Vec<u64>) -> Latency {
        nanoseconds.sort_unstable();
        let Some(&max) = nanoseconds.last() else { return Latency::default() };
        let n = nanoseconds.len();
        let ms = |ns: u64| ns as f64 / 1e6;
        // The least that this share of all does not exceed.
        let at = |share: f64| ms(nanoseconds[((n as f64 * share).ceil() as usize).clamp(1, n) - 1]);
        let mut curve: Vec<(f64, f64)> = Vec::new();
        for point in 1..=CURVE_POINTS.min(n) {
            let last = (n * point).div_ceil(CURVE_POINTS.min(n)).max(1);
            let value = ms(nanoseconds[last - 1]);
            match curve.last_mut() {
                Some(end) if end.0 == value => end.1 = last as f64 / n as f64,
                _ => curve.push((value, last as f64 / n as f64)),
            }
        }
        let sum: u128 = nanoseconds.iter().map(|&ns| u128::from(ns)).sum();
        Latency {
            requests: n as u64,
            mean_ms: sum as f64 / n as f64 / 1e6,
            p50_ms: at(0.5),
            p80_ms: at(0.8),
            p90_ms: at(0.9),
            p99_ms: at(0.99),
            max_ms: ms(max),
            curve,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_are_summed_up() {
        let latency = Latency::of((1..=1000).rev().map(|n| n * 1_000_000).collect());
        assert_eq!(
            (latency.p50_ms, latency.p80_ms, latency.p99_ms, latency.max_ms),
            (500.0, 800.0, 990.0, 1000.0)
        );
        assert_eq!(latency.mean_ms, 500.5);
        assert_eq!(
            (latency.curve.len(), latency.curve[99], latency.curve[199]),
            (200, (500.0, 0.5), (1000.0, 1.0))
        );
        let same = Latency::of(vec![7_000_000; 50]);
        assert_eq!(same.curve, [(7.0, 1.0)]);
        assert_eq!(Latency::of(Vec::new()), Latency::default());
    }
}
