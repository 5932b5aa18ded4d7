//! Ways to find FastCDC's cuts: the crate that the engine uses, and two that were tried. And reads from
//! the system's cache to different places in a page.
//!
//! usage: cuts (microseconds for each KiB of noise, medians of eleven rounds)
#![allow(clippy::expect_used, reason = "a bench panics where it fails")]

#[path = "../../core/benches/measure/mod.rs"]
mod measure;

use std::{
    fs::File,
    hint::black_box,
    io::{Seek, Write},
    os::unix::fs::FileExt,
};

use fastcdc::v2020::{FastCDC, Normalization, get_gear_with_seed, select_masks};
use measure::measure;

/// More than the caches hold.
const BYTES: usize = 64 << 20;

/// The engine's lengths for chunks of 8 KiB.
const LEAST: usize = 2 << 10;
const NORMAL: usize = 6 << 10;
const MOST: usize = 64 << 10;

/// Bytes of which several parts are scanned together.
const PART: usize = 256 << 10;

/// What cuts depend on besides the bytes.
struct Gear {
    words: [u64; 256],
    strict: u64,
    easy: u64,
}

impl Gear {
    fn word(&self, byte: u8) -> u64 {
        self.words[usize::from(byte)]
    }

    /// The length of the first chunk, with the words of four bytes added up before the hash is
    /// shifted.
    fn by_four(&self, bytes: &[u8]) -> usize {
        let tested = bytes.len().min(MOST) & !1;
        if tested <= LEAST {
            return bytes.len().min(MOST);
        }
        let normal = NORMAL.min(tested);
        match self.scan(&bytes[LEAST..normal], self.strict, 0) {
            Ok(at) => LEAST + at,
            Err(hash) => {
                let behind = self.scan(&bytes[normal..tested], self.easy, hash);
                behind.map_or(bytes.len().min(MOST), |at| normal + at)
            }
        }
    }

    #[inline(always)]
    fn scan(&self, bytes: &[u8], mask: u64, mut hash: u64) -> Result<usize, u64> {
        let (groups, rest) = bytes.as_chunks::<4>();
        let mut at = 0;
        for &[a, b, c, d] in groups {
            let (a, b) = (self.word(a), self.word(b));
            let two = (a << 1).wrapping_add(b);
            if (hash << 1).wrapping_add(a) & mask == 0 {
                return Ok(at);
            }
            let second = (hash << 2).wrapping_add(two);
            if second & mask == 0 {
                return Ok(at + 1);
            }
            let (c, d) = (self.word(c), self.word(d));
            if (second << 1).wrapping_add(c) & mask == 0 {
                return Ok(at + 2);
            }
            let last = (c << 1).wrapping_add(d);
            hash = (hash << 4).wrapping_add((two << 2).wrapping_add(last));
            if hash & mask == 0 {
                return Ok(at + 3);
            }
            at += 4;
        }
        for (n, &byte) in rest.iter().enumerate() {
            hash = (hash << 1).wrapping_add(self.word(byte));
            if hash & mask == 0 {
                return Ok(at + n);
            }
        }
        Err(hash)
    }

    /// Places where a cut may be, of `LANES` parts that are scanned together.
    #[allow(clippy::needless_range_loop, reason = "n is a place in each of the parts")]
    fn lanes<const LANES: usize>(&self, bytes: &[u8], found: &mut Vec<usize>) {
        let part = bytes.len() / LANES;
        let parts: [&[u8]; LANES] = std::array::from_fn(|lane| &bytes[lane * part..][..part]);
        let mut hashes = [0u64; LANES];
        for n in 0..part {
            for lane in 0..LANES {
                hashes[lane] = (hashes[lane] << 1).wrapping_add(self.word(parts[lane][n]));
                if hashes[lane] & self.easy == 0 {
                    found.push(lane * part + n);
                }
            }
        }
    }
}

/// The lengths of all chunks, by a way to find the first one.
fn chunks(mut rest: &[u8], cut: impl Fn(&[u8]) -> usize) -> Vec<usize> {
    let mut lengths = Vec::with_capacity(rest.len() / LEAST);
    while !rest.is_empty() {
        let n = cut(&rest[..rest.len().min(MOST)]).max(1);
        lengths.push(n);
        rest = &rest[n..];
    }
    lengths
}

fn main() {
    let mut state = 7u64;
    let mut bytes = vec![0; BYTES];
    for byte in &mut bytes {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        *byte = (state >> 56) as u8;
    }
    let (strict, easy) = select_masks(NORMAL, Normalization::Level1);
    let mut gear = Gear { words: [0; 256], strict, easy };
    gear.words.copy_from_slice(&get_gear_with_seed(0).0);
    let by_crate = |bytes: &[u8]| {
        FastCDC::with_level(bytes, LEAST, NORMAL, MOST, Normalization::Level1).cut(0, bytes.len()).1
    };
    assert!(
        chunks(&bytes, by_crate) == chunks(&bytes, |bytes| gear.by_four(bytes)),
        "two ways to cut differ"
    );
    let unit = "KiB";
    measure("cuts by the crate", unit, BYTES >> 10, || {
        black_box(chunks(&bytes, by_crate));
    });
    measure("cuts, four bytes at a time", unit, BYTES >> 10, || {
        black_box(chunks(&bytes, |bytes| gear.by_four(bytes)));
    });
    measure("places for cuts, two lanes", unit, BYTES >> 10, || {
        let mut found = Vec::with_capacity(BYTES >> 8);
        bytes.chunks(PART).for_each(|part| gear.lanes::<2>(part, &mut found));
        black_box(found);
    });
    measure("places for cuts, four lanes", unit, BYTES >> 10, || {
        let mut found = Vec::with_capacity(BYTES >> 8);
        bytes.chunks(PART).for_each(|part| gear.lanes::<4>(part, &mut found));
        black_box(found);
    });
    let mut file = tempfile::tempfile().expect("a file");
    file.write_all(&bytes).and_then(|()| file.rewind()).expect("room for the file");
    for behind in [0, 16, 2048] {
        let name = format!("reads from the cache, to {behind} bytes behind a page");
        let mut blocks = vec![vec![0; BLOCK + 2 * PAGE]; 16];
        measure(&name, unit, BYTES >> 10, || read(&file, &mut blocks, behind));
    }
}

/// Bytes that are read at once, as a put does, and of a page of memory.
const BLOCK: usize = 2 << 20;
const PAGE: usize = 4096;

/// Reads a file into blocks in turns, to so many bytes behind a page.
fn read(file: &File, blocks: &mut [Vec<u8>], behind: usize) {
    let count = blocks.len();
    for n in 0..BYTES / BLOCK {
        let block = &mut blocks[n % count];
        let from = block.as_ptr().align_offset(PAGE) + behind;
        file.read_exact_at(&mut block[from..from + BLOCK], (n * BLOCK) as u64).expect("the file");
    }
}
