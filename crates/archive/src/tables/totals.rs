//! Sums over the containers of each class, kept while containers come and go, so that figures need no
//! look at all of them.

use std::collections::BTreeMap;

use onefold_core::Result;

use crate::format::{
    bytes::{Reader, Writer, corrupt},
    class::Class,
    record::Stored,
};

/// Sums over containers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// How many.
    pub containers: u64,
    /// Their bytes, without parity and copies.
    pub bytes: u64,
    /// With parity and copies, in whole units.
    pub written_bytes: u64,
    /// Their chunks.
    pub chunks: u64,
    /// Bytes of their chunks, before compression.
    pub raw_bytes: u64,
}

impl Totals {
    pub(super) fn of(stored: &Stored, written_bytes: u64) -> Totals {
        Totals {
            containers: 1,
            bytes: u64::from(stored.place.bytes),
            written_bytes,
            chunks: u64::from(stored.chunks),
            raw_bytes: u64::from(stored.raw_bytes),
        }
    }

    /// The sums of both.
    pub(super) fn with(self, other: Totals, add: impl Fn(u64, u64) -> u64) -> Totals {
        Totals {
            containers: add(self.containers, other.containers),
            bytes: add(self.bytes, other.bytes),
            written_bytes: add(self.written_bytes, other.written_bytes),
            chunks: add(self.chunks, other.chunks),
            raw_bytes: add(self.raw_bytes, other.raw_bytes),
        }
    }
}

/// The sums of each class.
pub(super) type ByClass = BTreeMap<Class, Totals>;

/// Writes the sums of each class.
pub(super) fn encode(totals: &ByClass, w: &mut Writer) {
    w.u8(totals.len() as u8);
    for (class, totals) in totals {
        let Totals { containers, bytes, written_bytes, chunks, raw_bytes } = *totals;
        w.u8(class.code());
        [containers, bytes, written_bytes, chunks, raw_bytes].into_iter().for_each(|figure| {
            w.u64(figure);
        });
    }
}

/// Reads the sums of each class.
pub(super) fn decode(r: &mut Reader<'_>) -> Result<ByClass> {
    let mut all = ByClass::new();
    for _ in 0..r.u8()? {
        let class = Class::from_code(r.u8()?).ok_or_else(|| corrupt("an unknown class"))?;
        let totals = Totals {
            containers: r.u64()?,
            bytes: r.u64()?,
            written_bytes: r.u64()?,
            chunks: r.u64()?,
            raw_bytes: r.u64()?,
        };
        all.insert(class, totals);
    }
    Ok(all)
}
