//! How many stripes break, by arithmetic (RAD, section III.D).
//!
//! The paper's equation (1) is the probability that *no* stripe breaks; with it nearly all stripes
//! are expected to break. This module has the expectation itself: a stripe breaks unless its `k`
//! chunks are all unique or all duplicates.

use onefold_testbed::SplitMix;

/// Stripes of `k` chunks, filled by chance from `unique` and `duplicates`, of which the expected
/// number holds some of both.
#[must_use]
pub fn broken(unique: u64, duplicates: u64, k: u64) -> f64 {
    let all = unique + duplicates;
    // The chance that k chunks drawn from `of` come out of all.
    let only = |of: u64| {
        (0..k)
            .map(|n| of.saturating_sub(n) as f64 / (all - n.min(all.saturating_sub(1))) as f64)
            .product::<f64>()
    };
    (all / k) as f64 * (1.0 - only(unique) - only(duplicates))
}

/// The same by drawing, the mean of `rounds`.
#[must_use]
pub fn drawn(unique: u64, duplicates: u64, k: u64, rounds: u64, seed: u64) -> f64 {
    let mut rng = SplitMix::new(seed);
    let mut chunks: Vec<bool> = (0..unique + duplicates).map(|n| n < unique).collect();
    let mut found = 0;
    for _ in 0..rounds {
        for last in (1..chunks.len()).rev() {
            let other = rng.below(last as u64 + 1) as usize;
            chunks.swap(last, other);
        }
        let stripes = chunks.chunks_exact(k as usize);
        found += stripes.filter(|stripe| stripe.iter().any(|&unique| unique != stripe[0])).count();
    }
    found as f64 / rounds.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_and_drawing_agree() {
        for (unique, duplicates, k) in [(600, 600, 12), (1000, 200, 12), (60, 60, 4), (2, 2, 2)] {
            let (by_formula, by_chance) =
                (broken(unique, duplicates, k), drawn(unique, duplicates, k, 4000, 7));
            assert!(
                (by_formula - by_chance).abs() <= by_formula * 0.02,
                "{unique} {duplicates} {k}: {by_formula} {by_chance}"
            );
        }
        // Two pairs: of the three ways to pair them two break both stripes.
        assert!((broken(2, 2, 2) - 4.0 / 3.0).abs() < 1e-12);
    }
}
