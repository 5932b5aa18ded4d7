//! Blocks of a disk, sparse, and cheap to copy: copies share what none of them has changed since.

use std::{collections::BTreeMap, sync::Arc};

use onefold_core::BLOCK_BYTES;

/// The bytes of a block, shared. (Not [`Block`](onefold_core::Block): its alignment would double
/// the size of the shared allocation.)
pub type Bytes = Arc<[u8; BLOCK_BYTES]>;

/// Sectors of a block: the unit that a disk writes as a whole.
pub const SECTORS: usize = 8;

/// Bytes of a sector.
pub const SECTOR_BYTES: usize = BLOCK_BYTES / SECTORS;

/// Blocks of a shared piece: small enough to be copied for one changed block, large enough to keep
/// the tree shallow.
const PIECE: u64 = 32;

/// The blocks of a disk. Those that were never written read as zeroes.
#[derive(Clone, Default)]
pub struct Image(BTreeMap<u64, Arc<[Option<Bytes>; PIECE as usize]>>);

impl Image {
    /// The block at `at`, when it was ever written.
    #[must_use]
    pub fn get(&self, at: u64) -> Option<&Bytes> {
        self.0.get(&(at / PIECE))?[(at % PIECE) as usize].as_ref()
    }

    /// Puts a block to `at`.
    pub fn set(&mut self, at: u64, bytes: Bytes) {
        let piece =
            self.0.entry(at / PIECE).or_insert_with(|| Arc::new(std::array::from_fn(|_| None)));
        Arc::make_mut(piece)[(at % PIECE) as usize] = Some(bytes);
    }

    /// Puts back what `from` has at `at`, also when that is nothing.
    pub fn restore(&mut self, at: u64, from: &Image) {
        match from.get(at) {
            Some(bytes) => self.set(at, bytes.clone()),
            None if self.get(at).is_some() => {
                if let Some(piece) = self.0.get_mut(&(at / PIECE)) {
                    Arc::make_mut(piece)[(at % PIECE) as usize] = None;
                }
            }
            None => {}
        }
    }

    /// Copies the sectors that `mask` names (bit 0 is the first) from `new` to the block at `at`.
    pub fn merge(&mut self, at: u64, new: &Bytes, mask: u8) {
        match mask {
            0 => {}
            u8::MAX => self.set(at, new.clone()),
            _ => {
                let torn = torn(self.get(at), new, mask);
                self.set(at, torn);
            }
        }
    }

    /// The addresses of all blocks that were ever written, in order.
    pub fn written(&self) -> impl Iterator<Item = u64> + '_ {
        self.0.iter().flat_map(|(piece, blocks)| {
            blocks
                .iter()
                .enumerate()
                .filter(|(_, block)| block.is_some())
                .map(move |(index, _)| piece * PIECE + index as u64)
        })
    }
}

/// The block `old` after the sectors that `mask` names were written from `new`.
#[must_use]
pub(super) fn torn(old: Option<&Bytes>, new: &Bytes, mask: u8) -> Bytes {
    let mut bytes = old.map_or([0; BLOCK_BYTES], |old| **old);
    for sector in (0..SECTORS).filter(|sector| mask & (1 << sector) != 0) {
        let range = sector * SECTOR_BYTES..(sector + 1) * SECTOR_BYTES;
        bytes[range.clone()].copy_from_slice(&new[range]);
    }
    Arc::new(bytes)
}
