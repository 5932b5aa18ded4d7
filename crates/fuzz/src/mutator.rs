//! Mutations by a seed: the same seed gives the same inputs, on every machine.

/// A small generator of pseudo-random numbers (xorshift64*).
#[derive(Clone)]
pub(crate) struct Random(u64);

impl Random {
    /// The generator of a seed.
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x2545_f491_4f6c_dd1d | 1)
    }

    /// The next number.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `bound`; 0 when that is 0.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        if bound == 0 { 0 } else { (self.next() % bound as u64) as usize }
    }
}

/// Numbers at which decoders go wrong.
const EDGES: [u64; 16] = [
    0,
    1,
    2,
    255,
    4095,
    4096,
    65_535,
    65_536,
    (1 << 31) - 1,
    1 << 31,
    u32::MAX as u64,
    (1 << 40) - 1,
    1 << 48,
    (1 << 63) - 1,
    u64::MAX - 1,
    u64::MAX,
];

/// Longest input.
const BYTES_MAX: usize = 64 << 10;

/// Changes an input in a few places; `other` is another input to take parts from.
pub(crate) fn mutate(random: &mut Random, input: &mut Vec<u8>, other: &[u8]) {
    for _ in 0..1 + random.below(6) {
        let at = random.below(input.len());
        match random.below(9) {
            0 if !input.is_empty() => input[at] ^= 1 << random.below(8),
            1 if !input.is_empty() => input[at] = random.next() as u8,
            2 => edge(random, input, at, true),
            3 => edge(random, input, at, false),
            4 => {
                let end = (at + 1 + random.below(64)).min(input.len());
                input.drain(at..end);
            }
            5 => {
                let part: Vec<u8> =
                    (0..1 + random.below(16)).map(|_| random.next() as u8).collect();
                input.splice(at..at, part);
            }
            6 if !input.is_empty() => {
                let end = (at + 1 + random.below(256)).min(input.len());
                let part = input[at..end].to_vec();
                let to = random.below(input.len());
                input.splice(to..to, part);
            }
            7 if !other.is_empty() => {
                let from = random.below(other.len());
                let part = &other[from..(from + 1 + random.below(512)).min(other.len())];
                let end = (at + part.len()).min(input.len());
                input.splice(at..end, part.iter().copied());
            }
            _ if !input.is_empty() => {
                let end = (at + 1 + random.below(32)).min(input.len());
                input[at..end].fill(if random.below(2) == 0 { 0 } else { 0xff });
            }
            _ => input.push(random.next() as u8),
        }
    }
    input.truncate(BYTES_MAX);
}

/// Puts a dangerous number of some width somewhere.
fn edge(random: &mut Random, input: &mut [u8], at: usize, little: bool) {
    let value = EDGES[random.below(EDGES.len())];
    let width = [1, 2, 4, 8][random.below(4)];
    let bytes = value.to_le_bytes();
    for n in 0..width {
        if let Some(byte) = input.get_mut(at + n) {
            *byte = bytes[if little { n } else { width - 1 - n }];
        }
    }
}
