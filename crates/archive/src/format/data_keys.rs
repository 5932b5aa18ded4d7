//! Data keys that took the place of older ones: which containers are under which of them, and the kept keys of an
//! older one.
//!
//! The key of a domain has a *generation*: how often it was changed. A container is of the generation whose
//! beginning its number is not below, since a change waits until nobody has a number for a container that is
//! not written yet. The header of a container says the same, and its tag proves it.
//!
//! Stored content keeps the fingerprints by which recipes and tree nodes name it, and tree nodes keep ending
//! where they end. So the key of fingerprints and the seed of these ends stay when the data key goes. They open
//! no container, and no data key follows from them. But they confirm guesses of what was stored, so they are
//! sealed by a key that is derived from the next data key, together with the key that seals the kept keys of the
//! data key before. So the newest data key opens all of this chain, one after the other, and the store key
//! opens none of it. When the domain is erased, nobody opens it any more.

use onefold_core::Result;
use onefold_seal::TAG_BYTES;

use super::{
    bytes::{Reader, Writer, corrupt},
    container_id::ContainerId,
    domain::DOMAINS_END,
};

/// Bytes of the kept keys of an older data key, before they are sealed: the key of its fingerprints, the key that
/// opens the kept keys of the one before, and the seed of the checksums by which tree nodes end.
pub(crate) const KEPT_BYTES: usize = 32 + 32 + 8;

/// The kept keys of an older data key, sealed, with their tag behind them.
pub(crate) type Kept = [u8; KEPT_BYTES + TAG_BYTES];

/// A domain got another data key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rotation {
    /// The number of the domain.
    pub domain: u32,
    /// The generation that began, from 1 on.
    pub generation: u32,
    /// Containers of the domain with this number or a higher one are under the new key.
    pub from: ContainerId,
    /// Files of the chunk index with a higher number are under the new key, if this is the first domain.
    pub index: u64,
}

impl Rotation {
    /// Bytes of its encoding.
    pub(crate) const BYTES: usize = 4 + 4 + 8 + 8;

    pub(crate) fn encode(&self, w: &mut Writer) {
        w.u32(self.domain).u32(self.generation).u64(self.from.0).u64(self.index);
    }

    pub(crate) fn decode(r: &mut Reader<'_>) -> Result<Rotation> {
        let (domain, generation) = generation_of(r)?;
        let from = ContainerId(r.counter()?);
        if from > ContainerId(ContainerId::END) {
            return Err(corrupt("a container's number is too large"));
        }
        Ok(Rotation { domain, generation, from, index: r.counter()? })
    }
}

/// A domain, and a generation of its data key that is not the first one.
pub(crate) fn generation_of(r: &mut Reader<'_>) -> Result<(u32, u32)> {
    let (domain, generation) = (r.u32()?, r.u32()?);
    if domain >= DOMAINS_END || generation == 0 {
        return Err(corrupt("the generation of a data key can't be true"));
    }
    Ok((domain, generation))
}
