//! The hot parts of the core: fingerprints and compression of single blocks.
//!
//! usage: hot (prints microseconds for each block, medians of eleven rounds)

#![allow(clippy::unwrap_used)]

mod measure;

use std::hint::black_box;

use measure::measure;
use onefold_core::{Algorithm, Block, Fingerprinter, compress::Lz4};

fn blocks(n: usize, random_bytes: usize) -> Vec<Block> {
    let mut blocks = Block::zeroed_vec(n);
    let mut state = 1u64;
    for block in &mut blocks {
        for byte in &mut block.0[..random_bytes] {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *byte = (state >> 56) as u8;
        }
    }
    blocks
}

fn main() {
    // More than the caches hold, so that memory counts.
    let count = 16 << 10;
    let data = blocks(count, 4096);
    for (algorithm, ..) in Algorithm::ALL {
        let printer = Fingerprinter::new(algorithm, &[7; 32]);
        measure(&format!("{algorithm}, one by one"), "block", count, || {
            data.iter().for_each(|block| {
                black_box(printer.one(block));
            });
        });
        for batch in [1, 4, 8, 16, 32] {
            measure(&format!("{algorithm}, {batch} together"), "block", count, || {
                for batch in data.chunks(batch) {
                    let refs: Vec<&Block> = batch.iter().collect();
                    black_box(printer.many(&refs));
                }
            });
        }
    }
    let mut lz4 = Lz4::default();
    for random in [4096, 3277, 1000] {
        let data = blocks(1000, random);
        measure(&format!("LZ4 of blocks with {random} random bytes"), "block", 1000, || {
            data.iter().for_each(|block| {
                black_box(lz4.compress(block, 4096).is_some());
            });
        });
    }
}
