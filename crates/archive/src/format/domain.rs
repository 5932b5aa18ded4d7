//! The numbers of domains: what has another one than the first says so by a mark, with the number behind
//! it, so that all else has the bytes of archives from before domains.

use onefold_core::Result;

use super::bytes::corrupt;

/// The domain that each archive begins with. It can't be erased by itself: its key seals the chunk index,
/// too, which has the fingerprints of all domains.
pub(crate) const FIRST_DOMAIN: u32 = 0;

/// Numbers of domains are less than this: a container in the tables has two bytes for one.
pub(crate) const DOMAINS_END: u32 = 1 << 16;

/// Marks what has the number of a domain behind it: all but what is in the first one.
pub(crate) const OF_DOMAIN: u8 = 0x80;

/// The number of a domain that is not the first one.
pub(crate) fn other_domain(number: u32) -> Result<u32> {
    match number {
        FIRST_DOMAIN => Err(corrupt("the number of a domain can't be true")),
        number if number >= DOMAINS_END => Err(corrupt("the number of a domain is too large")),
        number => Ok(number),
    }
}
