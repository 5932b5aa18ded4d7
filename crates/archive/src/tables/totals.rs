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

/// The sums over the containers of each class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sums(BTreeMap<Class, Totals>);

impl Sums {
    /// Over all containers.
    #[must_use]
    pub fn all(&self) -> Totals {
        let all = self.0.values();
        all.fold(Totals::default(), |sum, totals| sum.with(*totals, u64::saturating_add))
    }

    /// Over the containers of a class.
    #[must_use]
    pub fn of(&self, class: Class) -> Totals {
        self.0.get(&class).copied().unwrap_or_default()
    }

    /// Bytes that stand replicated, and the containers.
    #[must_use]
    pub fn replicated(&self) -> (u64, u64) {
        let totals = self.of(Class::Replicated);
        (totals.written_bytes, totals.containers)
    }

    /// A container came.
    pub(super) fn add(&mut self, class: Class, more: Totals) {
        let totals = self.0.entry(class).or_default();
        *totals = totals.with(more, u64::saturating_add);
    }

    /// A container went.
    pub(super) fn take_away(&mut self, class: Class, less: Totals) {
        let totals = self.0.entry(class).or_default();
        *totals = totals.with(less, u64::saturating_sub);
    }

    pub(super) fn encode(&self, w: &mut Writer) {
        w.u8(self.0.len() as u8);
        for (class, totals) in &self.0 {
            let Totals { containers, bytes, written_bytes, chunks, raw_bytes } = *totals;
            w.u8(class.code());
            [containers, bytes, written_bytes, chunks, raw_bytes].into_iter().for_each(|figure| {
                w.u64(figure);
            });
        }
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Sums> {
        let mut sums = Sums::default();
        for _ in 0..r.u8()? {
            let class = Class::from_code(r.u8()?).ok_or_else(|| corrupt("an unknown class"))?;
            let totals = Totals {
                containers: r.u64()?,
                bytes: r.u64()?,
                written_bytes: r.u64()?,
                chunks: r.u64()?,
                raw_bytes: r.u64()?,
            };
            sums.0.insert(class, totals);
        }
        Ok(sums)
    }
}
