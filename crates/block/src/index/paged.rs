//! The index on disk: a hash table whose pages are the leaves of a shadow-paged tree.
//!
//! An entry lies in the page that the first bits of its hash name. Pages are written for two thirds
//! full on average, so that none overflows; one that does loses entries, which costs duplicates,
//! nothing else.

use onefold_core::{Block, Pba};

use super::{Entry, HASH_BITS};
use crate::format::{
    page::{BODY_BYTES, body, body_mut},
    record::{from_low_bytes, low_bytes},
};

/// Bytes of an entry: 40 bits of hash (36 used), 40 of address.
pub(crate) const ENTRY_BYTES: usize = 10;

/// Entries of a page; the first two bytes of the body count them.
pub(crate) const PER_PAGE: usize = (BODY_BYTES - 2) / ENTRY_BYTES;

/// Entries of a page on average when the table is written.
const FILL: u64 = PER_PAGE as u64 * 2 / 3;

/// How many first bits of the hash name the page, for a table of `entries`.
pub(crate) fn bits_for(entries: u64) -> u32 {
    entries.div_ceil(FILL).next_power_of_two().trailing_zeros().min(HASH_BITS)
}

/// The page of a hash.
pub(crate) fn page_of(hash: u64, bits: u32) -> u64 {
    // Hashes from a damaged page may have more bits.
    hash >> (HASH_BITS - bits)
}

/// The entries of a page, sorted.
pub(crate) fn entries(page: &crate::format::page::Page) -> impl Iterator<Item = Entry> + '_ {
    let count = usize::from(u16::from_le_bytes([body(page)[0], body(page)[1]])).min(PER_PAGE);
    body(page)[2..].chunks_exact(ENTRY_BYTES).take(count).map(|bytes| Entry {
        hash: from_low_bytes(&bytes[..5]),
        pba: Pba(from_low_bytes(&bytes[5..])),
    })
}

/// Fills a page with sorted entries; those that do not fit are left out.
pub(crate) fn fill(page: &mut Block, entries: &[Entry]) {
    let entries = &entries[..entries.len().min(PER_PAGE)];
    let body = body_mut(page);
    body.fill(0);
    body[..2].copy_from_slice(&(entries.len() as u16).to_le_bytes());
    for (entry, bytes) in entries.iter().zip(body[2..].chunks_exact_mut(ENTRY_BYTES)) {
        bytes[..5].copy_from_slice(&low_bytes::<5>(entry.hash));
        bytes[5..].copy_from_slice(&low_bytes::<5>(entry.pba.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_give_back_their_entries() {
        let mut page = Block::zeroed();
        let some: Vec<Entry> =
            (0..300).map(|n| Entry { hash: n << 20, pba: Pba(n + (1 << 39)) }).collect();
        fill(&mut page, &some);
        assert_eq!(entries(&page).collect::<Vec<_>>(), some);
        assert_eq!(bits_for(1), 0);
        assert_eq!(page_of((1 << HASH_BITS) - 1, bits_for(100_000)), (1 << bits_for(100_000)) - 1);
    }
}
