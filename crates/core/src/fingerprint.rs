//! Fingerprints of blocks: 128 bits everywhere.

use std::{fmt, str::FromStr, sync::Arc};

use blake3::{IncrementCounter, platform::Platform};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use zeroize::Zeroizing;

use crate::{BLOCK_BYTES, Block, Error, Kind, Result, key_memory::Key};

/// 128 bits that stand for the content of a block.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Fingerprint(pub [u8; 16]);

impl Fingerprint {
    /// The first eight bytes as a number, evenly distributed: for hash tables and for the share of
    /// the fingerprint kept in map entries.
    #[must_use]
    pub fn prefix(&self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        u64::from_le_bytes([a, b, c, d, e, f, g, h])
    }

    /// The fingerprint with all bits inverted: the mark of content that must not be shared. A
    /// search for the content does not find it.
    #[must_use]
    pub fn unshared(&self) -> Fingerprint {
        Fingerprint(self.0.map(|byte| !byte))
    }

    /// True when `kept` stands for the content that has this fingerprint, shared or not.
    #[must_use]
    pub fn agrees(&self, kept: &Fingerprint) -> bool {
        self == kept || self.unshared() == *kept
    }

    /// True when the prefix that is kept in a map entry is that of content with this fingerprint,
    /// shared or not.
    #[must_use]
    pub fn has_prefix(&self, prefix: u64) -> bool {
        self.prefix() == prefix || self.prefix() == !prefix
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({self})")
    }
}

/// How fingerprints are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// BLAKE3 keyed with the store's secret: a client can't make collisions, even if BLAKE3 should
    /// weaken.
    Blake3,
    /// SHA-256 cut to 128 bits, of stores that older programs made: with 2^64 blocks somebody finds
    /// two of one fingerprint. Only with comparison of bytes.
    Sha256,
    /// SHA-1 cut to 128 bits, OrderMergeDedup's. Broken: only with comparison of bytes.
    Sha1,
    /// MD5, ThinDedup's. Broken: only with comparison of bytes.
    Md5,
    /// HMAC-SHA-256 keyed with the store's secret, cut to 128 bits.
    HmacSha256,
}

impl Algorithm {
    /// All of them, with the number that stands for each on disk.
    pub const ALL: [(Algorithm, u8, &'static str); 5] = [
        (Algorithm::Blake3, 1, "blake3"),
        (Algorithm::Sha256, 2, "sha256"),
        (Algorithm::Sha1, 3, "sha1"),
        (Algorithm::Md5, 4, "md5"),
        (Algorithm::HmacSha256, 5, "hmac-sha256"),
    ];

    /// True when whoever chooses blocks can choose two of one fingerprint, as without a key, so
    /// that a duplicate is one only when its bytes agree.
    #[must_use]
    pub fn needs_bytes(self) -> bool {
        matches!(self, Algorithm::Sha256 | Algorithm::Sha1 | Algorithm::Md5)
    }

    /// The number that stands for it on disk.
    #[must_use]
    pub fn code(self) -> u8 {
        Algorithm::ALL.iter().find(|row| row.0 == self).map_or(0, |row| row.1)
    }

    /// The algorithm that `code` stands for.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Algorithm> {
        Algorithm::ALL.iter().find(|row| row.1 == code).map(|row| row.0)
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Algorithm::ALL.iter().find(|row| row.0 == *self).map_or("", |row| row.2))
    }
}

impl FromStr for Algorithm {
    type Err = Error;

    fn from_str(name: &str) -> Result<Algorithm> {
        Algorithm::ALL.iter().find(|row| row.2 == name).map(|row| row.0).ok_or_else(|| {
            Error::new(
                Kind::InvalidInput,
                format!("no fingerprint '{name}': one of blake3, hmac-sha256, sha256, sha1, md5"),
            )
        })
    }
}

/// Computes fingerprints of one store.
#[derive(Clone)]
pub struct Fingerprinter {
    algorithm: Algorithm,
    key: Arc<Key>,
    /// The state of keyed SHA-256 after the key.
    hmac: Hmac<Sha256>,
    platform: Platform,
    bits: u32,
}

/// Blocks hashed together: enough for the widest vector unit, few enough for the stack.
const BATCH: usize = 16;
/// Fewer blocks are hashed one by one, each with all vector lanes: measured, 2.1 µs a block,
/// against 5.6 for one in a batch and 1.5 for four.
const BATCH_MIN: usize = 4;
const CHUNK: usize = 1024;
const CHUNKS: usize = BLOCK_BYTES / CHUNK;

// The flags of the BLAKE3 specification, section 2.1.
const CHUNK_START: u8 = 1;
const CHUNK_END: u8 = 2;
const PARENT: u8 = 4;
const ROOT: u8 = 8;
const KEYED_HASH: u8 = 16;

impl Fingerprinter {
    /// Fingerprints by `algorithm`; `key` is the store's secret, which the keyed ones use.
    #[must_use]
    pub fn new(algorithm: Algorithm, key: &[u8; 32]) -> Fingerprinter {
        // A key is filled with zeroes to a block of the hash: so says the standard, and this way it
        // has the right length by its type.
        let mut block = Zeroizing::new([0; 64]);
        block[..32].copy_from_slice(key);
        Fingerprinter {
            algorithm,
            key: Arc::new(Key::of(key)),
            hmac: Hmac::new((&*block).into()),
            platform: Platform::detect(),
            bits: 128,
        }
    }

    /// The same, with all but the highest `bits` bits (at most 64) of each fingerprint's prefix
    /// zero: collisions on demand, for tests of the comparison of bytes.
    #[must_use]
    pub fn shortened(self, bits: u32) -> Fingerprinter {
        Fingerprinter { bits, ..self }
    }

    /// The algorithm.
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The fingerprint of one block.
    #[must_use]
    pub fn one(&self, block: &Block) -> Fingerprint {
        self.bytes(&block.0)
    }

    /// The fingerprints of many blocks, in their order; the same as [`one`](Self::one) of each,
    /// about twice as fast with BLAKE3.
    #[must_use]
    pub fn many(&self, blocks: &[&Block]) -> Vec<Fingerprint> {
        if self.algorithm != Algorithm::Blake3 {
            return blocks.iter().map(|block| self.one(block)).collect();
        }
        let mut all = Vec::with_capacity(blocks.len());
        for batch in blocks.chunks(BATCH) {
            if batch.len() < BATCH_MIN {
                all.extend(batch.iter().map(|block| self.one(block)));
            } else {
                self.blake3_batch(batch, &mut all);
            }
        }
        all
    }

    /// Keyed BLAKE3 of up to [`BATCH`] blocks, each vector lane working on another block: the four
    /// chunks, the two parents, the root.
    fn blake3_batch(&self, blocks: &[&Block], all: &mut Vec<Fingerprint>) {
        let n = blocks.len();
        let key = blake3::platform::words_from_le_bytes_32(&self.key);
        let mut chunk_values = [[0u8; 32 * BATCH]; CHUNKS];
        for (c, values) in chunk_values.iter_mut().enumerate() {
            let inputs: [&[u8; CHUNK]; BATCH] = std::array::from_fn(|b| {
                let (chunks, _) = blocks[b.min(n - 1)].0.as_chunks::<CHUNK>();
                &chunks[c]
            });
            self.platform.hash_many(
                &inputs[..n],
                &key,
                c as u64,
                IncrementCounter::No,
                KEYED_HASH,
                CHUNK_START,
                CHUNK_END,
                values,
            );
        }
        let [one, two, three, four] = &chunk_values;
        let left = self.parents(&key, one, two, n, 0);
        let right = self.parents(&key, three, four, n, 0);
        let roots = self.parents(&key, &left, &right, n, ROOT);
        all.extend(roots.chunks_exact(32).take(n).map(|root| self.short(root)));
    }

    /// The fingerprint of bytes of any length.
    #[must_use]
    pub fn bytes(&self, bytes: &[u8]) -> Fingerprint {
        use sha2::Digest;
        match self.algorithm {
            Algorithm::Blake3 => self.short(blake3::keyed_hash(&self.key, bytes).as_bytes()),
            Algorithm::Sha256 => self.short(&Sha256::digest(bytes)),
            Algorithm::Sha1 => self.short(&sha1::Sha1::digest(bytes)),
            Algorithm::Md5 => self.short(&md5::Md5::digest(bytes)),
            Algorithm::HmacSha256 => {
                self.short(&self.hmac.clone().chain_update(bytes).finalize().into_bytes())
            }
        }
    }

    /// The fingerprints of many chunks, in their order; the same as [`bytes`](Self::bytes) of each.
    /// Each vector lane works on another chunk, leaf by leaf.
    #[must_use]
    pub fn chunks(&self, chunks: &[&[u8]]) -> Vec<Fingerprint> {
        if self.algorithm != Algorithm::Blake3 || chunks.len() < BATCH_MIN {
            return chunks.iter().map(|chunk| self.bytes(chunk)).collect();
        }
        let mut all = vec![Fingerprint::default(); chunks.len()];
        // Chunks of like length keep the lanes full.
        let mut order: Vec<usize> =
            (0..chunks.len()).filter(|&n| chunks[n].len() > CHUNK).collect();
        order.sort_unstable_by_key(|&n| chunks[n].len());
        for (n, chunk) in chunks.iter().enumerate().filter(|(_, chunk)| chunk.len() <= CHUNK) {
            all[n] = self.bytes(chunk);
        }
        let key = blake3::platform::words_from_le_bytes_32(&self.key);
        let mut values: Vec<Vec<[u8; 32]>> = vec![Vec::new(); BATCH];
        for lane_chunks in order.chunks(BATCH) {
            let longest = lane_chunks.last().map_or(0, |&n| chunks[n].len());
            for (values, &n) in values.iter_mut().zip(lane_chunks) {
                values.clear();
                values.resize(chunks[n].len().div_ceil(CHUNK), [0; 32]);
            }
            for leaf in 0..longest.div_ceil(CHUNK) {
                self.leaves(&key, leaf, lane_chunks, chunks, &mut values);
            }
            self.trees(&key, lane_chunks, &mut values, &mut all);
        }
        all
    }

    /// The chaining values of leaf number `leaf` of each chunk that has it.
    fn leaves(
        &self,
        key: &[u32; 8],
        leaf: usize,
        lanes: &[usize],
        chunks: &[&[u8]],
        values: &mut [Vec<[u8; 32]>],
    ) {
        const EMPTY: &[u8; CHUNK] = &[0; CHUNK];
        let (mut inputs, mut which, mut n) = ([EMPTY; BATCH], [0; BATCH], 0);
        for (lane, &chunk) in lanes.iter().enumerate() {
            let bytes = chunks[chunk];
            if let Some(Ok(whole)) =
                bytes.get(leaf * CHUNK..(leaf + 1) * CHUNK).map(<&[u8; CHUNK]>::try_from)
            {
                (inputs[n], which[n]) = (whole, lane);
                n += 1;
            } else if leaf * CHUNK < bytes.len() {
                values[lane][leaf] = self.last_leaf(key, leaf, &bytes[leaf * CHUNK..]);
            }
        }
        let mut out = [0u8; 32 * BATCH];
        self.platform.hash_many(
            &inputs[..n],
            key,
            leaf as u64,
            IncrementCounter::No,
            KEYED_HASH,
            CHUNK_START,
            CHUNK_END,
            &mut out,
        );
        for (value, &lane) in out.as_chunks::<32>().0.iter().zip(&which[..n]) {
            values[lane][leaf] = *value;
        }
    }

    /// The chaining value of a leaf that is not whole.
    fn last_leaf(&self, key: &[u32; 8], leaf: usize, bytes: &[u8]) -> [u8; 32] {
        let mut value = *key;
        let blocks = bytes.len().div_ceil(64);
        for (n, part) in bytes.chunks(64).enumerate() {
            let mut block = [0; 64];
            block[..part.len()].copy_from_slice(part);
            let start = if n == 0 { CHUNK_START } else { 0 };
            let end = if n + 1 == blocks { CHUNK_END } else { 0 };
            self.platform.compress_in_place(
                &mut value,
                &block,
                part.len() as u8,
                leaf as u64,
                KEYED_HASH | start | end,
            );
        }
        blake3::platform::le_bytes_from_words_32(&value)
    }

    /// Joins the leaves of each lane, level by level; an odd one goes up as it is.
    fn trees(
        &self,
        key: &[u32; 8],
        lanes: &[usize],
        values: &mut [Vec<[u8; 32]>],
        all: &mut [Fingerprint],
    ) {
        let mut pairs: Vec<([u8; 64], usize, usize)> = Vec::new();
        while values[..lanes.len()].iter().any(|values| values.len() > 1) {
            // Roots have a flag of their own, so they are hashed apart.
            for root in [false, true] {
                pairs.clear();
                for (lane, values) in values[..lanes.len()]
                    .iter()
                    .enumerate()
                    .filter(|(_, v)| v.len() > 1 && (v.len() == 2) == root)
                {
                    pairs.extend(values.as_chunks::<2>().0.iter().enumerate().map(
                        |(n, [left, right])| {
                            let mut pair = [0; 64];
                            pair[..32].copy_from_slice(left);
                            pair[32..].copy_from_slice(right);
                            (pair, lane, n)
                        },
                    ));
                }
                for batch in pairs.chunks(BATCH) {
                    let inputs: [&[u8; 64]; BATCH] =
                        std::array::from_fn(|b| &batch[b.min(batch.len() - 1)].0);
                    let mut out = [0u8; 32 * BATCH];
                    let flags = KEYED_HASH | PARENT | if root { ROOT } else { 0 };
                    self.platform.hash_many(
                        &inputs[..batch.len()],
                        key,
                        0,
                        IncrementCounter::No,
                        flags,
                        0,
                        0,
                        &mut out,
                    );
                    for (value, &(_, lane, n)) in out.as_chunks::<32>().0.iter().zip(batch) {
                        if root {
                            all[lanes[lane]] = self.short(value);
                        } else {
                            values[lane][n] = *value;
                        }
                    }
                }
                for values in values[..lanes.len()]
                    .iter_mut()
                    .filter(|v| v.len() > 1 && (v.len() == 2) == root)
                {
                    let half = values.len() / 2;
                    if !values.len().is_multiple_of(2) {
                        values[half] = values[values.len() - 1];
                    }
                    values.truncate(values.len().div_ceil(2));
                }
            }
        }
    }

    /// The parents of `n` pairs of chaining values.
    fn parents(
        &self,
        key: &[u32; 8],
        left: &[u8; 32 * BATCH],
        right: &[u8; 32 * BATCH],
        n: usize,
        root: u8,
    ) -> [u8; 32 * BATCH] {
        let mut pairs = [[0u8; 64]; BATCH];
        for (b, pair) in pairs.iter_mut().enumerate().take(n) {
            pair[..32].copy_from_slice(&left[b * 32..][..32]);
            pair[32..].copy_from_slice(&right[b * 32..][..32]);
        }
        let inputs: [&[u8; 64]; BATCH] = std::array::from_fn(|b| &pairs[b]);
        let mut values = [0u8; 32 * BATCH];
        self.platform.hash_many(
            &inputs[..n],
            key,
            0,
            IncrementCounter::No,
            KEYED_HASH | PARENT | root,
            0,
            0,
            &mut values,
        );
        values
    }

    /// The first 128 bits of a digest, or what is asked for of them.
    fn short(&self, digest: &[u8]) -> Fingerprint {
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&digest[..16]);
        let fingerprint = Fingerprint(bytes);
        if self.bits == 128 {
            return fingerprint;
        }
        let prefix =
            fingerprint.prefix() & u64::MAX.checked_shl(64 - self.bits.min(64)).unwrap_or(0);
        bytes = [0; 16];
        bytes[..8].copy_from_slice(&prefix.to_le_bytes());
        Fingerprint(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(n: usize) -> Vec<Block> {
        let mut blocks = Block::zeroed_vec(n);
        let mut state = 1u64;
        for byte in crate::block::bytes_mut(&mut blocks) {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *byte = (state >> 56) as u8;
        }
        blocks
    }

    #[test]
    fn batches_give_the_same_digests_as_single_blocks() {
        for n in [0, 1, 2, 7, 15, 16, 17, 40] {
            let blocks = blocks(n);
            let refs: Vec<&Block> = blocks.iter().collect();
            for (algorithm, ..) in Algorithm::ALL {
                let printer = Fingerprinter::new(algorithm, &[7; 32]);
                let singly: Vec<_> = refs.iter().map(|block| printer.one(block)).collect();
                assert_eq!(printer.many(&refs), singly, "{algorithm}, {n} blocks");
            }
        }
    }

    #[test]
    fn batches_of_chunks_give_the_same_digests_as_single_ones() {
        let bytes = blocks(40);
        let bytes = crate::block::bytes(&bytes);
        for (algorithm, ..) in Algorithm::ALL {
            let printer = Fingerprinter::new(algorithm, &[7; 32]);
            for lengths in [
                vec![1; 5],
                vec![
                    0, 1, 1023, 1024, 1025, 2048, 2049, 3072, 4096, 5000, 65_536, 7, 9_000, 12_345,
                    16_384, 16_385, 30_000, 31,
                ],
            ] {
                let chunks: Vec<&[u8]> = lengths
                    .iter()
                    .enumerate()
                    .map(|(n, &length)| &bytes[n * 13..n * 13 + length])
                    .collect();
                let singly: Vec<_> = chunks.iter().map(|chunk| printer.bytes(chunk)).collect();
                assert_eq!(printer.chunks(&chunks), singly, "{algorithm}");
            }
        }
    }

    /// Case 1 of RFC 4231, whose key of 20 bytes is one of 32 that ends in zeroes.
    #[test]
    fn rule_18_keyed_sha256_is_that_of_the_standard() {
        let mut key = [0; 32];
        key[..20].fill(0x0b);
        let found = Fingerprinter::new(Algorithm::HmacSha256, &key).bytes(b"Hi There");
        assert_eq!(found.to_string(), "b0344c61d8db38535ca8afceaf0bf12b");
    }

    #[test]
    fn rule_18_what_decides_alone_depends_on_the_secret() {
        for (algorithm, ..) in Algorithm::ALL {
            let [one, other] =
                [1, 2].map(|key| Fingerprinter::new(algorithm, &[key; 32]).bytes(b"a block"));
            assert_eq!(one == other, algorithm.needs_bytes(), "{algorithm}");
        }
    }

    #[test]
    fn shortened_fingerprints_are_parts_of_the_whole_ones() {
        let blocks = blocks(20);
        let refs: Vec<&Block> = blocks.iter().collect();
        let whole = Fingerprinter::new(Algorithm::Blake3, &[7; 32]);
        let short = whole.clone().shortened(3);
        assert_eq!(
            short.many(&refs),
            refs.iter().map(|block| short.one(block)).collect::<Vec<_>>()
        );
        assert!(
            blocks
                .iter()
                .all(|block| short.one(block).prefix() == whole.one(block).prefix() >> 61 << 61)
        );
    }

    #[test]
    fn algorithms_have_names_and_codes() {
        for (algorithm, code, name) in Algorithm::ALL {
            assert_eq!(name.parse::<Algorithm>().unwrap(), algorithm);
            assert_eq!(Algorithm::from_code(code), Some(algorithm));
            assert_eq!(algorithm.to_string(), name);
        }
        assert!("crc".parse::<Algorithm>().is_err());
    }
}
