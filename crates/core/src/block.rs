//! The 4 KiB block, aligned for direct I/O.

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// Bytes of a block: the unit of deduplication, mapping and disk I/O.
pub const BLOCK_BYTES: usize = 4096;

/// One block of 4096 bytes, aligned to 4096 so that direct I/O takes it as it is.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(4096))]
pub struct Block(pub [u8; BLOCK_BYTES]);

impl std::ops::Deref for Block {
    type Target = [u8; BLOCK_BYTES];

    fn deref(&self) -> &[u8; BLOCK_BYTES] {
        &self.0
    }
}

impl std::ops::DerefMut for Block {
    fn deref_mut(&mut self) -> &mut [u8; BLOCK_BYTES] {
        &mut self.0
    }
}

impl Block {
    /// A block of zeroes on the heap.
    ///
    /// # Panics
    /// Only when the allocator has no memory left.
    #[must_use]
    pub fn zeroed() -> Box<Block> {
        match Block::new_box_zeroed() {
            Ok(block) => block,
            Err(_) => std::alloc::handle_alloc_error(std::alloc::Layout::new::<Block>()),
        }
    }

    /// `n` blocks of zeroes, contiguous and aligned.
    #[must_use]
    pub fn zeroed_vec(n: usize) -> Vec<Block> {
        match Block::new_vec_zeroed(n) {
            Ok(blocks) => blocks,
            Err(_) => std::alloc::handle_alloc_error(std::alloc::Layout::new::<Block>()),
        }
    }

    /// True when every byte is zero.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        is_zero(&self.0)
    }
}

impl std::fmt::Debug for Block {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Block({:02x?}…)", &self.0[..8])
    }
}

/// The bytes of `blocks`, without copying.
#[must_use]
pub fn bytes(blocks: &[Block]) -> &[u8] {
    blocks.as_bytes()
}

/// The bytes of `blocks`, writable, without copying.
pub fn bytes_mut(blocks: &mut [Block]) -> &mut [u8] {
    blocks.as_mut_bytes()
}

/// True when every byte of `bytes` is zero.
#[must_use]
pub fn is_zero(bytes: &[u8]) -> bool {
    // Most data shows a non-zero byte at once; the rest is compared by whole lines, which the
    // compiler vectorises.
    let (head, lines) = bytes.split_at(bytes.len() % 64);
    head.iter().all(|&b| b == 0)
        && lines.chunks_exact(64).all(|line| line.iter().fold(0, |all, &b| all | b) == 0)
}
