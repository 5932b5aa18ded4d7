//! Space and reliability of RAD's codes (section V), with the two misprints corrected: the second
//! term of equation (4) is `alpha (C-2)/C`, and that of equation (6) carries the factor `alpha`.
//!
//! The paper averages the *shares* of user data and the *times* until data is lost. Averages that
//! add up physically are those of raw bytes for each byte of users, and of loss rates; both are
//! given. Equation (2) is for one group of as many disks as the stripe is long, not for a system of
//! more.

use onefold_core::{Error, Kind, Result};
use serde::Serialize;

/// Parity of every code.
const PARITY: u32 = 2;

/// Longest stripe.
const LENGTH_MAX: u32 = 255;

/// Lengths of stripes: of cold chunks, of the baseline, of hot chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Codes {
    /// Of chunks with few references.
    pub cold: u32,
    /// Of all, without RAD.
    pub baseline: u32,
    /// Of chunks with many references.
    pub hot: u32,
}

/// Hours until a disk fails, and until it is repaired.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Disks {
    /// Mean time to failure.
    pub mttf_hours: f64,
    /// Mean time to repair.
    pub mttr_hours: f64,
}

/// The paper's.
impl Default for Disks {
    fn default() -> Disks {
        Disks { mttf_hours: 500_000.0, mttr_hours: 17.8 }
    }
}

/// Space and time to data loss of a tuple of codes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tuple {
    /// Lengths of stripes.
    #[serde(flatten)]
    pub codes: Codes,
    /// The baseline's share of user data, equation (3).
    pub baseline_storage: f64,
    /// The baseline's mean time to data loss, equation (5).
    pub baseline_mttdl_hours: f64,
    /// From this share of hot chunks on RAD loses data later; `null` where it is never better in
    /// both.
    pub alpha_low: Option<f64>,
    /// Up to here it takes less space.
    pub alpha_high: Option<f64>,
    /// The same by loss rates.
    pub physical_alpha_low: Option<f64>,
    /// The same by raw bytes.
    pub physical_alpha_high: Option<f64>,
    /// Where each of the four begins, also when no range is left; for the table.
    #[serde(skip)]
    pub crossings: [f64; 4],
}

/// Mean time to data loss of a group of `length` disks, two of which may fail: equation (2), in
/// hours.
#[must_use]
pub fn mttdl_hours(length: u32, disks: Disks) -> f64 {
    let n = f64::from(length);
    disks.mttf_hours.powi(3) / (n * (n - 1.0) * (n - 2.0) * disks.mttr_hours.powi(2))
}

/// The share of user data: equation (3).
#[must_use]
pub fn storage(length: u32) -> f64 {
    f64::from(length - PARITY) / f64::from(length)
}

impl Codes {
    /// RAD's share of user data when a share of `alpha` of the chunks is hot: equation (4).
    #[must_use]
    pub fn storage(self, alpha: f64) -> f64 {
        (1.0 - alpha) * storage(self.cold) + alpha * storage(self.hot)
    }

    /// RAD's mean time to data loss: equation (6), in hours.
    #[must_use]
    pub fn mttdl_hours(self, alpha: f64, disks: Disks) -> f64 {
        (1.0 - alpha) * mttdl_hours(self.cold, disks) + alpha * mttdl_hours(self.hot, disks)
    }

    /// Where RAD is better than the baseline.
    ///
    /// # Errors
    /// `InvalidInput` for lengths or times that make no sense.
    pub fn compare(self, disks: Disks) -> Result<Tuple> {
        let Codes { cold, baseline, hot } = self;
        if !(PARITY < hot && hot < baseline && baseline < cold && cold <= LENGTH_MAX) {
            let why = format!(
                "codes are three lengths A,B,C of stripes with {LENGTH_MAX} >= A > B > C > \
                 {PARITY}: cold, baseline, hot"
            );
            return Err(Error::new(Kind::InvalidInput, why));
        }
        let sane = |hours: f64| hours.is_finite() && hours > 0.0;
        if !sane(disks.mttf_hours) || !sane(disks.mttr_hours) {
            return Err(Error::new(
                Kind::InvalidInput,
                "times to failure and repair are hours above 0",
            ));
        }
        // The share of the second at which the average of two reaches a third.
        let crossing = |of: &dyn Fn(u32) -> f64| (of(baseline) - of(cold)) / (of(hot) - of(cold));
        let (low, high) = (crossing(&|n| mttdl_hours(n, disks)), crossing(&storage));
        let (loss, raw) =
            (crossing(&|n| 1.0 / mttdl_hours(n, disks)), crossing(&|n| 1.0 / storage(n)));
        let range =
            |low: f64, high: f64| if low < high { (Some(low), Some(high)) } else { (None, None) };
        let ((alpha_low, alpha_high), (physical_alpha_low, physical_alpha_high)) =
            (range(low, high), range(loss, raw));
        Ok(Tuple {
            codes: self,
            baseline_storage: storage(baseline),
            baseline_mttdl_hours: mttdl_hours(baseline, disks),
            alpha_low,
            alpha_high,
            physical_alpha_low,
            physical_alpha_high,
            crossings: [low, high, loss, raw],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_tuple_gives_the_papers_numbers() {
        let tuple = Codes { cold: 14, baseline: 10, hot: 6 }.compare(Disks::default()).unwrap();
        let near = |found: f64, expected: f64| (found / expected - 1.0).abs() < 0.005;
        assert!(near(tuple.baseline_storage, 0.8) && near(tuple.baseline_mttdl_hours, 5.48e11));
        assert!(near(tuple.alpha_low.unwrap(), 0.118) && near(tuple.alpha_high.unwrap(), 0.300));
        assert_eq!((tuple.physical_alpha_low, tuple.physical_alpha_high), (None, None));
        assert!(near(tuple.crossings[2], 0.709) && near(tuple.crossings[3], 0.250));
    }

    #[test]
    fn at_the_crossings_both_are_equal() {
        let (codes, disks) =
            (Codes { cold: 20, baseline: 12, hot: 5 }, Disks { mttf_hours: 1e6, mttr_hours: 5.0 });
        let tuple = codes.compare(disks).unwrap();
        let (low, high) = (tuple.alpha_low.unwrap(), tuple.alpha_high.unwrap());
        assert!((codes.mttdl_hours(low, disks) / tuple.baseline_mttdl_hours - 1.0).abs() < 1e-9);
        assert!((codes.storage(high) - tuple.baseline_storage).abs() < 1e-12);
    }

    #[test]
    fn lengths_that_make_no_sense_are_refused() {
        for (cold, baseline, hot) in [(10, 10, 6), (14, 10, 2), (6, 10, 14), (300, 10, 6)] {
            assert!(Codes { cold, baseline, hot }.compare(Disks::default()).is_err());
        }
        assert!(
            Codes { cold: 14, baseline: 10, hot: 6 }
                .compare(Disks { mttf_hours: 0.0, mttr_hours: 1.0 })
                .is_err()
        );
    }
}
