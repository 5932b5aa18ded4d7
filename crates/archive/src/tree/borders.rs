//! Where pages end: at what lies in them, so that a change moves no border but its own.
//!
//! A page ends behind an entry whose keyed hash has its low bits zero: of the name in a directory,
//! of the chunk's fingerprint in a file map. Index pages look at the next bits of the hash of what
//! comes first in a page. Since the hashes are keyed, nobody who lacks the archive's secret chooses
//! names that make pages of one entry, or none that end.

use onefold_core::Fingerprint;

use crate::format::tree_node::NODE_BYTES;

/// Bits of a hash that are zero at a border: pages have 128 entries in the mean.
const BITS: u32 = 7;

/// Levels above which hashes have no bits left: pages end when they are full.
const LEVELS: u8 = 8;

/// The hash of a name in a directory, by the seed of its domain.
pub(crate) fn of_name(seed: u64, name: &[u8]) -> u64 {
    onefold_core::checksum::fast_of(seed, &[b"name", name])
}

/// The hash of a chunk in a file: its fingerprint is keyed already. The index is ordered by the
/// other half.
pub(super) fn of_chunk(fingerprint: &Fingerprint) -> u64 {
    let [_, _, _, _, _, _, _, _, a, b, c, d, e, f, g, h] = fingerprint.0;
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

/// True when a page ends behind an entry with this hash, or an index page of a level behind a page
/// that begins with it.
pub(super) fn ends(hash: u64, level: u8) -> bool {
    level < LEVELS && (hash >> (u32::from(level) * BITS)) & ((1 << BITS) - 1) == 0
}

/// True when a page ends behind an entry with this hash.
pub(crate) fn ends_page(hash: u64) -> bool {
    ends(hash, 0)
}

/// True when a page of so many bytes has no room for so many more.
pub(super) fn is_full(bytes: usize, more: usize) -> bool {
    bytes + more > NODE_BYTES
}
