//! How the hot parts are measured, in the benches of the core and of the engine.

use std::time::Instant;

/// Prints microseconds for each of `count` units, the median of eleven rounds.
pub(crate) fn measure(name: &str, unit: &str, count: usize, mut work: impl FnMut()) {
    let mut rounds: Vec<f64> = (0..11)
        .map(|_| {
            let begun = Instant::now();
            work();
            begun.elapsed().as_secs_f64() * 1e6 / count as f64
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    println!("{name:<60} {:.2} µs a {unit}", rounds[5]);
}
