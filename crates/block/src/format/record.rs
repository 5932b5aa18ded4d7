//! A record: what one logical change says, 40 bytes (ThinDedup III-A).

use onefold_core::{Fingerprint, Lba, Pba, Timestamp, VolumeId};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, little_endian::U64};

/// Bytes of a record on disk.
pub const BYTES: usize = 40;

/// Bits of a timestamp that number the records inside one window; the rest is the window's number.
const WINDOW_SHIFT: u32 = 20;

/// Most records of one window.
pub const PER_WINDOW_MAX: u64 = 1 << WINDOW_SHIFT;

/// Number of a window; windows become durable and are acknowledged in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct WindowNumber(pub u64);

impl WindowNumber {
    /// Largest number, beyond what any store reaches; larger ones are damage.
    pub const MAX: WindowNumber = WindowNumber((1 << (64 - WINDOW_SHIFT)) - 2);

    /// The timestamp of the window's record number `n`.
    #[must_use]
    pub fn timestamp(self, n: u64) -> Timestamp {
        Timestamp(self.0 << WINDOW_SHIFT | n)
    }

    /// The window after this one.
    #[must_use]
    pub fn next(self) -> WindowNumber {
        WindowNumber(self.0 + 1)
    }

    /// The window that gave `timestamp`.
    #[must_use]
    pub fn of(timestamp: Timestamp) -> WindowNumber {
        WindowNumber(timestamp.0 >> WINDOW_SHIFT)
    }
}

impl std::fmt::Display for WindowNumber {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// The change of a logical address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The address maps to the physical block `pba`, raw or in a carrier, whose content has this
    /// fingerprint.
    Block {
        /// Where the block is.
        pba: Pba,
        /// True when it is compressed in a carrier.
        carried: bool,
        /// Of its content.
        fingerprint: Fingerprint,
    },
    /// `blocks` addresses from there on read as zeroes.
    Range {
        /// Length of the range.
        blocks: u64,
        /// True for zeroes that were written, false for a hole.
        keep: bool,
    },
    /// The catalogue changes as the content of the carrier at `pba` says.
    Catalogue {
        /// The carrier.
        pba: Pba,
        /// Of its content.
        fingerprint: Fingerprint,
    },
}

/// One logical change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The volume that changes.
    pub volume: VolumeId,
    /// The (first) address that changes.
    pub lba: Lba,
    /// Its change.
    pub change: Change,
    /// Its place in the order of all changes.
    pub timestamp: Timestamp,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct Raw {
    lba: [u8; 6],
    volume: [u8; 4],
    pba: [u8; 5],
    kind: u8,
    fingerprint: [u8; 16],
    timestamp: U64,
}

const _: () = assert!(size_of::<Raw>() == BYTES);

const RAW: u8 = 1;
const CARRIED: u8 = 2;
const ZERO: u8 = 3;
const HOLE_RANGE: u8 = 4;
const ZERO_RANGE: u8 = 5;
const CATALOGUE: u8 = 6;

impl Record {
    /// Its 40 bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; BYTES] {
        let (kind, pba, fingerprint) = match self.change {
            Change::Block { pba, carried, fingerprint } => {
                (if carried { CARRIED } else { RAW }, pba, fingerprint.0)
            }
            Change::Range { blocks: 1, keep: true } => (ZERO, Pba(0), [0; 16]),
            Change::Range { blocks, keep } => {
                let mut length = [0; 16];
                length[..8].copy_from_slice(&blocks.to_le_bytes());
                (if keep { ZERO_RANGE } else { HOLE_RANGE }, Pba(0), length)
            }
            Change::Catalogue { pba, fingerprint } => (CATALOGUE, pba, fingerprint.0),
        };
        let raw = Raw {
            lba: low_bytes(self.lba.0),
            volume: self.volume.0.to_le_bytes(),
            pba: low_bytes(pba.0),
            kind,
            fingerprint,
            timestamp: U64::new(self.timestamp.0),
        };
        zerocopy::transmute!(raw)
    }

    /// The record in 40 bytes, when they are one.
    #[must_use]
    pub fn decode(bytes: &[u8; BYTES]) -> Option<Record> {
        let raw: Raw = zerocopy::transmute!(*bytes);
        let lba = Lba(from_low_bytes(&raw.lba));
        let pba = Pba(from_low_bytes(&raw.pba));
        let fingerprint = Fingerprint(raw.fingerprint);
        let range = |keep| {
            let blocks = fingerprint.prefix();
            let end = lba.0.checked_add(blocks)?;
            (blocks > 0 && end <= Lba::MAX.0 + 1).then_some(Change::Range { blocks, keep })
        };
        let change = match raw.kind {
            RAW => Change::Block { pba, carried: false, fingerprint },
            CARRIED => Change::Block { pba, carried: true, fingerprint },
            ZERO => Change::Range { blocks: 1, keep: true },
            HOLE_RANGE => range(false)?,
            ZERO_RANGE => range(true)?,
            CATALOGUE => Change::Catalogue { pba, fingerprint },
            _ => return None,
        };
        Some(Record {
            volume: VolumeId(u32::from_le_bytes(raw.volume)),
            lba,
            change,
            timestamp: Timestamp(raw.timestamp.get()),
        })
    }
}

/// The low `N` bytes of a number, little-endian.
pub(crate) fn low_bytes<const N: usize>(value: u64) -> [u8; N] {
    let mut low = [0; N];
    low.copy_from_slice(&value.to_le_bytes()[..N]);
    low
}

/// The number in up to eight little-endian bytes.
pub(crate) fn from_low_bytes(low: &[u8]) -> u64 {
    low.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_survive_their_encoding() {
        let fingerprint = Fingerprint(*b"0123456789abcdef");
        let changes = [
            Change::Block { pba: Pba::MAX, carried: true, fingerprint },
            Change::Block { pba: Pba(77), carried: false, fingerprint },
            Change::Range { blocks: 1, keep: true },
            Change::Range { blocks: 1, keep: false },
            Change::Range { blocks: 1 << 40, keep: true },
            Change::Catalogue { pba: Pba(5), fingerprint },
        ];
        for change in changes {
            let record = Record {
                volume: VolumeId(u32::MAX),
                lba: Lba(1 << 47),
                change,
                timestamp: WindowNumber(9).timestamp(3),
            };
            assert_eq!(Record::decode(&record.encode()), Some(record));
        }
    }

    #[test]
    fn unknown_kinds_and_wrapping_ranges_are_refused() {
        let good = Record {
            volume: VolumeId(1),
            lba: Lba::MAX,
            change: Change::Range { blocks: 1, keep: false },
            timestamp: Timestamp(1),
        };
        assert!(Record::decode(&good.encode()).is_some());
        let wraps = Record { change: Change::Range { blocks: u64::MAX, keep: false }, ..good };
        assert_eq!(Record::decode(&wraps.encode()), None);
        let mut unknown = good.encode();
        unknown[15] = 99;
        assert_eq!(Record::decode(&unknown), None);
    }
}
