//! The limits of a sealed store's domains, and the blocks that each of these stores: in the superblock.

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U32, U64},
};

use super::FIRST_DOMAIN;

/// Most blocks of a limit or a count: in bytes they are a number.
const BLOCKS_MAX: u64 = u64::MAX / 4096;

/// Domains that have limits at most: as many as a store has domains at a time.
pub const DOMAIN_ENTRIES: usize = 64;

/// The limits of a domain, in blocks; 0 for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct DomainLimits {
    /// So many blocks may be stored in it.
    pub quota: u64,
    /// So many blocks are kept for it.
    pub reserve: u64,
}

impl DomainLimits {
    /// True when there is neither a quota nor a reserve.
    #[must_use]
    pub fn are_none(&self) -> bool {
        *self == DomainLimits::default()
    }
}

/// A domain with limits, as of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct DomainEntry {
    /// Its number; the first domain has no limits.
    pub number: u32,
    /// Its limits.
    pub limits: DomainLimits,
    /// Blocks with references that its maps name; `None` when a page could not be read that has to be
    /// counted: until a repair nobody knows.
    pub stored: Option<u64>,
}

/// In [`RawDomain::stored`]: nobody knows.
const UNKNOWN: u64 = u64::MAX;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
pub(super) struct RawDomain {
    number: U32,
    reserved: [u8; 4],
    quota: U64,
    reserve: U64,
    stored: U64,
}

const _: () = assert!(size_of::<RawDomain>() == 32);

/// A place that no domain has.
pub(super) const FREE: RawDomain = RawDomain {
    number: U32::new(0),
    reserved: [0; 4],
    quota: U64::new(0),
    reserve: U64::new(0),
    stored: U64::new(0),
};

impl From<&DomainEntry> for RawDomain {
    fn from(entry: &DomainEntry) -> RawDomain {
        RawDomain {
            number: U32::new(entry.number),
            reserved: [0; 4],
            quota: U64::new(entry.limits.quota),
            reserve: U64::new(entry.limits.reserve),
            stored: U64::new(entry.stored.unwrap_or(UNKNOWN)),
        }
    }
}

impl RawDomain {
    fn entry(&self) -> Option<DomainEntry> {
        let blocks = |raw: U64| (raw.get() <= BLOCKS_MAX).then_some(raw.get());
        let limits = DomainLimits { quota: blocks(self.quota)?, reserve: blocks(self.reserve)? };
        let stored = match self.stored.get() {
            UNKNOWN => None,
            _ => Some(blocks(self.stored)?),
        };
        let entry = DomainEntry { number: self.number.get(), limits, stored };
        (entry.number != FIRST_DOMAIN && !limits.are_none()).then_some(entry)
    }
}

/// All entries as they are written.
pub(super) fn encode(entries: &[DomainEntry]) -> [RawDomain; DOMAIN_ENTRIES] {
    let mut raw = [FREE; DOMAIN_ENTRIES];
    for (raw, entry) in raw.iter_mut().zip(entries) {
        *raw = entry.into();
    }
    raw
}

/// The entries: their numbers rise, and behind them all is zero. `None` when they are not so.
pub(super) fn decode(raw: &[RawDomain; DOMAIN_ENTRIES]) -> Option<Vec<DomainEntry>> {
    let is_free = |raw: &&RawDomain| raw.as_bytes().iter().all(|&byte| byte == 0);
    let count = raw.iter().take_while(|raw| !is_free(raw)).count();
    let entries = raw[..count].iter().map(RawDomain::entry).collect::<Option<Vec<_>>>()?;
    let rise = entries.windows(2).all(|pair| pair[0].number < pair[1].number);
    (rise && raw[count..].iter().all(|raw| is_free(&raw))).then_some(entries)
}
