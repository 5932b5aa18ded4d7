//! How long a sealed container is. Whoever holds the files sees that, and nothing else of what is in it.
//!
//! Every container fills whole steps of 4 KiB. An archive that *pads* takes Padmé's numbers of steps (Nikitin and
//! others, "Reducing Metadata Leakage from Encrypted Files and Communication with PURBs", 2019): those whose binary
//! digits behind the first few are zero. So a number of *n* steps tells about log log *n* bits, and grows by an eighth
//! at most. Padmé's unit is the step: counted in bytes it would change nothing below 256 KiB, where the steps are
//! longer than what it rounds to.

/// A sealed container's metadata, and all of it, take a multiple of this.
pub(crate) const STEP_BYTES: usize = 4096;

/// The bytes that a sealed container takes whose groups end at `end`, counted from the container's first byte.
#[must_use]
pub(crate) fn container_bytes(end: usize, pads: bool) -> usize {
    let steps = end.div_ceil(STEP_BYTES);
    STEP_BYTES * if pads { padme(steps) } else { steps }
}

/// True when a sealed container whose groups end at `end` may take `bytes`, in an archive that pads or in another.
#[must_use]
pub(crate) fn may_take(end: usize, bytes: usize) -> bool {
    [false, true].iter().any(|pads| container_bytes(end, *pads) == bytes)
}

/// The smallest of Padmé's numbers that is not below `n`: of those with E + 1 binary digits the first S after the
/// leading one count, where S is the number of binary digits of E, and the others are zero.
fn padme(n: usize) -> usize {
    let Some(exponent) = n.checked_ilog2() else { return 0 };
    let counting = exponent.checked_ilog2().map_or(0, |log| log + 1);
    n.next_multiple_of(1 << exponent.saturating_sub(counting))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_34_numbers_of_steps_are_padme_s() {
        // The first ones by hand, and others by the formula of the paper.
        let first: Vec<usize> = (0..20).map(padme).collect();
        assert_eq!(first, [0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 10, 12, 12, 14, 14, 16, 16, 18, 18, 20]);
        for n in 2..70_000_usize {
            // E and S of the paper, and a mask of E - S ones.
            let e = usize::BITS - 1 - n.leading_zeros();
            let s = u32::BITS - e.leading_zeros();
            let mask = (1_usize << (e - s.min(e))) - 1;
            assert_eq!(padme(n), (n + mask) & !mask, "{n}");
            let more = padme(n) - n;
            assert!(more * 8 < n + 8 && padme(padme(n)) == padme(n), "{n}");
        }
        let sizes =
            |steps: usize| (1..=steps).map(padme).collect::<std::collections::BTreeSet<_>>();
        assert_eq!(sizes(2048).len(), 92);
    }

    #[test]
    fn rule_34_a_container_takes_whole_steps_or_padme_s_number_of_them() {
        assert_eq!(container_bytes(8 * 4096 + 1, false), 9 * 4096);
        assert_eq!(container_bytes(8 * 4096 + 1, true), 10 * 4096);
        for (bytes, may) in [(8, false), (9, true), (10, true), (11, false), (12, false)] {
            assert_eq!(may_take(8 * 4096 + 1, bytes * 4096), may, "{bytes}");
            assert!(!may_take(8 * 4096 + 1, bytes * 4096 + 1));
        }
    }
}
