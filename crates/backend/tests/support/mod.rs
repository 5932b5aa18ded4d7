//! Shared by the tests of this crate: blocks that tell where they belong, and files that vanish.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::path::{Path, PathBuf};

use onefold_core::{Block, BlockRef, Class, Disk, Pba, Read, Result, Run};

/// A block filled with `seed`, so that no two seeds below 2^32 look alike.
pub(crate) fn block(seed: u32) -> Block {
    let mut block = Block::zeroed();
    for (i, word) in block.0.chunks_exact_mut(4).enumerate() {
        word.copy_from_slice(&(seed.wrapping_mul(2_654_435_761) ^ i as u32).to_le_bytes());
    }
    *block
}

/// Blocks of seeds `first..first + n`.
pub(crate) fn blocks(first: u32, n: u32) -> Vec<Block> {
    (first..first + n).map(block).collect()
}

/// References to `blocks` as one class.
pub(crate) fn refs(blocks: &[Block], class: Class) -> Vec<BlockRef<'_>> {
    blocks.iter().map(|block| BlockRef { block, class }).collect()
}

/// Writes `blocks` as one run of tables.
pub(crate) fn write(disk: &dyn Disk, at: u64, blocks: &[Block]) -> Result<()> {
    disk.write(&[Run { at: Pba(at), blocks: &refs(blocks, Class::Table) }])
}

/// Reads `n` blocks as a batch of one.
pub(crate) fn read(disk: &dyn Disk, at: u64, n: usize) -> Result<Vec<Block>> {
    let mut into = vec![block(u32::MAX); n];
    let mut reads = [Read::new(Pba(at), &mut into)];
    disk.read(&mut reads);
    let [read] = reads;
    read.result?;
    Ok(into)
}

/// Asserts that two lists of blocks are equal without printing megabytes when they are not.
#[track_caller]
pub(crate) fn assert_same(got: &[Block], expected: &[Block]) {
    assert_eq!(got.len(), expected.len());
    for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert!(got.0 == expected.0, "block {i}: {got:?}, expected {expected:?}");
    }
}

/// A path in cargo's own directory for test files, on a real disk; the file goes when this does.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Scratch {
        let path =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        Scratch(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
