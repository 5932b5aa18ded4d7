//! Chance from a seed. Simulations and the laboratory have a generator each, because their seeds
//! and published figures depend on it.
//!
//! *Invariant:* the same seed gives the same numbers on every machine and in every version of the
//! toolchain, so a seed and a commit are one run.

/// The generator of simulations: xoshiro256**, seeded by splitmix64.
#[derive(Clone, Debug)]
pub struct Rng([u64; 4]);

impl Rng {
    /// The generator that belongs to `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Rng {
        let mut state = SplitMix::new(seed);
        Rng(std::array::from_fn(|_| state.next()))
    }

    /// A generator of its own for one purpose, so that more numbers drawn here change nothing
    /// there.
    #[must_use]
    pub fn fork(&mut self) -> Rng {
        Rng::new(self.next())
    }

    /// The next 64 bits.
    #[allow(clippy::should_implement_trait)] // never ends, so that an iterator would only add an Option
    pub fn next(&mut self) -> u64 {
        let [a, b, c, d] = &mut self.0;
        let result = b.wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let shifted = *b << 17;
        *c ^= *a;
        *d ^= *b;
        *b ^= *c;
        *a ^= *d;
        *c ^= shifted;
        *d = d.rotate_left(45);
        result
    }

    /// A number below `n`; 0 when `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }

    /// A number of `low..=high`.
    pub fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low).saturating_add(1))
    }

    /// True in `of` of 100 cases.
    pub fn percent(&mut self, of: u64) -> bool {
        self.below(100) < of
    }

    /// True once in `n` cases.
    pub fn once_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// One of `items`; `None` when there are none.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        items.get(self.below(items.len() as u64) as usize)
    }

    /// An index, each as likely as its weight says; 0 when all weights are 0.
    pub fn weighted(&mut self, weights: &[u32]) -> usize {
        let mut left = self.below(weights.iter().map(|&w| u64::from(w)).sum());
        for (index, &weight) in weights.iter().enumerate() {
            if left < u64::from(weight) {
                return index;
            }
            left -= u64::from(weight);
        }
        0
    }

    /// Fills `bytes` with noise.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for part in bytes.chunks_mut(8) {
            let noise = self.next().to_le_bytes();
            part.copy_from_slice(&noise[..part.len()]);
        }
    }
}

/// The laboratory's generator: splitmix64, whose whole state is one number, so that the noise of a
/// content is a function of its hash.
#[derive(Clone, Debug)]
pub struct SplitMix(u64);

impl SplitMix {
    /// The generator that belongs to `seed`.
    #[must_use]
    pub fn new(seed: u64) -> SplitMix {
        SplitMix(seed)
    }

    /// The next 64 bits.
    #[allow(clippy::should_implement_trait)] // never ends, so that an iterator would only add an Option
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `n`; 0 when `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }

    /// True with this probability.
    pub fn chance(&mut self, of: f64) -> bool {
        self.unit() < of
    }

    /// A number of `0.0..1.0`.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Spreads near numbers far apart; different numbers stay different.
#[must_use]
pub fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_numbers_for_ever() {
        let mut rng = Rng::new(1);
        assert_eq!(
            [rng.next(), rng.next(), rng.next()],
            [12966619160104079557, 9600361134598540522, 10590380919521690900]
        );
        let mut rng = SplitMix::new(0);
        assert_eq!([rng.next(), rng.next()], [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4]);
    }

    #[test]
    fn numbers_stay_in_their_range() {
        let mut rng = Rng::new(7);
        assert!((0..1000).all(|_| (3..=5).contains(&rng.within(3, 5)) && rng.below(2) < 2));
        assert!((0..100).all(|_| rng.weighted(&[0, 4, 0]) == 1));
        assert_eq!(rng.below(0), 0);
        let mut rng = SplitMix::new(0);
        assert!((0..1000).all(|_| rng.below(3) < 3 && rng.unit() < 1.0));
        assert_eq!(rng.below(0), 0);
        assert!(!rng.chance(0.0) && rng.chance(1.0));
    }
}
