//! Rabin's fingerprint of a sliding window: the remainder of the window, seen as a polynomial over
//! GF(2), by one that can't be divided.

/// Bytes of the window.
const WINDOW: usize = 48;

/// Of degree 53, irreducible: LBFS's.
const POLYNOMIAL: u64 = 0x3D_A335_8B4D_C173;

const DEGREE: u32 = 53;

/// Tables for one polynomial.
pub(crate) struct Rabin {
    /// For the byte that is shifted out on the left of the hash: its remainder, and the shifted
    /// byte itself, so that XOR clears it.
    enter: [u64; 256],
    /// For the byte that leaves the window: the hash of it and the zeroes behind it.
    leave: [u64; 256],
}

impl Rabin {
    pub(super) fn new() -> Rabin {
        let mut rabin = Rabin { enter: [0; 256], leave: [0; 256] };
        for byte in 0..256u64 {
            rabin.enter[byte as usize] = remainder(byte << DEGREE) | byte << DEGREE;
        }
        for byte in 0..256usize {
            let mut hash = rabin.append(0, byte as u8);
            for _ in 0..WINDOW - 1 {
                hash = rabin.append(hash, 0);
            }
            rabin.leave[byte] = hash;
        }
        rabin
    }

    #[inline]
    fn append(&self, hash: u64, byte: u8) -> u64 {
        let high = hash >> (DEGREE - 8);
        (hash << 8 | u64::from(byte)) ^ self.enter[(high & 0xff) as usize]
    }

    /// The length of the chunk that `bytes` begin with: at least `least` where there are so many; a
    /// cut comes once in `mean` places.
    pub(super) fn cut(&self, bytes: &[u8], least: usize, mean: usize) -> usize {
        if bytes.len() <= least {
            return bytes.len();
        }
        let mask = mean as u64 - 1;
        let begin = least.saturating_sub(WINDOW);
        let mut hash = bytes[begin..least].iter().fold(0, |hash, &byte| self.append(hash, byte));
        let old = &bytes[begin..];
        for (n, (&enters, &leaves)) in bytes[least..].iter().zip(old).enumerate() {
            if hash & mask == mask {
                return least + n;
            }
            hash = self.append(hash ^ self.leave[usize::from(leaves)], enters);
        }
        bytes.len()
    }
}

/// The remainder of a polynomial of degree below 61 by [`POLYNOMIAL`].
fn remainder(mut value: u64) -> u64 {
    while value >> DEGREE != 0 {
        value ^= POLYNOMIAL << (63 - value.leading_zeros() - DEGREE);
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_knows_only_the_window() {
        let rabin = Rabin::new();
        let bytes: Vec<u8> = (0..500u32).map(|n| ((n * n) >> 3) as u8).collect();
        let mut rolling = bytes[..WINDOW].iter().fold(0, |hash, &byte| rabin.append(hash, byte));
        for at in WINDOW..bytes.len() {
            rolling =
                rabin.append(rolling ^ rabin.leave[usize::from(bytes[at - WINDOW])], bytes[at]);
            let fresh =
                bytes[at + 1 - WINDOW..=at].iter().fold(0, |hash, &byte| rabin.append(hash, byte));
            assert_eq!(rolling, fresh);
            assert!(rolling >> DEGREE == 0);
        }
    }
}
