//! Contents of blocks as small numbers, so that the model compares numbers and the oracle compares
//! bytes exactly.

use std::{collections::BTreeMap, sync::Arc};

use onefold_core::{BLOCK_BYTES, checksum};

use crate::{Rng, disk::Bytes};

/// Names a content. Equal numbers, equal bytes, and the other way round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Content(pub u32);

/// The block of zeroes.
pub const ZEROES: Content = Content(0);

/// All contents of a run.
#[derive(Clone)]
pub struct Contents {
    blocks: Vec<Bytes>,
    by_hash: BTreeMap<u64, Content>,
}

impl Default for Contents {
    fn default() -> Contents {
        let mut contents = Contents { blocks: Vec::new(), by_hash: BTreeMap::new() };
        contents.intern(&[0; BLOCK_BYTES]);
        contents
    }
}

impl Contents {
    /// The number of these bytes, a new one when they are.
    ///
    /// # Panics
    /// When two of the run's blocks have one 64-bit hash; then another seed is needed.
    pub fn intern(&mut self, bytes: &[u8; BLOCK_BYTES]) -> Content {
        let blocks = &mut self.blocks;
        let content = *self.by_hash.entry(checksum::fast(1, bytes)).or_insert_with(|| {
            blocks.push(Arc::new(*bytes));
            Content(blocks.len() as u32 - 1)
        });
        assert!(self.blocks[content.0 as usize][..] == bytes[..], "two blocks of one hash");
        content
    }

    /// The number of these bytes when the run has used them.
    #[must_use]
    pub fn find(&self, bytes: &[u8; BLOCK_BYTES]) -> Option<Content> {
        self.by_hash
            .get(&checksum::fast(1, bytes))
            .copied()
            .filter(|content| self.is(*content, bytes))
    }

    /// True when `bytes` are those of `content`.
    #[must_use]
    pub fn is(&self, content: Content, bytes: &[u8; BLOCK_BYTES]) -> bool {
        self.bytes(content)[..] == bytes[..]
    }

    /// The bytes of `content`.
    #[must_use]
    pub fn bytes(&self, content: Content) -> &Bytes {
        &self.blocks[content.0 as usize]
    }

    /// Any content used before, recent ones more often.
    pub fn any(&self, rng: &mut Rng) -> Content {
        let n = self.blocks.len() as u64;
        Content(if rng.percent(50) { n - 1 - rng.below(n.min(16)) } else { rng.below(n) } as u32)
    }
}

/// How the contents of a workload are made, in percent of the blocks.
#[derive(Clone, Copy, Debug)]
pub struct Palette {
    /// Blocks that were written before.
    pub duplicates: u64,
    /// Blocks of zeroes.
    pub zeroes: u64,
    /// Blocks that compress.
    pub compressible: u64,
    /// Blocks that differ from an earlier one in one sector: a torn overwrite looks like neither.
    pub siblings: u64,
}

impl Palette {
    /// Draws the next content.
    pub fn draw(&self, contents: &mut Contents, rng: &mut Rng) -> Content {
        if rng.percent(self.zeroes) {
            return ZEROES;
        }
        if rng.percent(self.duplicates) {
            return contents.any(rng);
        }
        let mut bytes = [0; BLOCK_BYTES];
        if rng.percent(self.siblings) {
            bytes = **contents.bytes(contents.any(rng));
            let at = rng.below(BLOCK_BYTES as u64 - 8) as usize;
            rng.fill(&mut bytes[at..at + 8]);
            return contents.intern(&bytes);
        }
        let noise = if rng.percent(self.compressible) {
            [16, 512, 2048, 3276, 3700, 3950].get(rng.below(6) as usize).copied().unwrap_or(16)
        } else {
            BLOCK_BYTES
        };
        rng.fill(&mut bytes[..noise]);
        bytes[noise..].fill(0x5a);
        contents.intern(&bytes)
    }
}
