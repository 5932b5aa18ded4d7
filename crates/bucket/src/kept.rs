//! Bytes of objects that a host keeps beside the store, so that its next process does not ask for them again.
//!
//! *Invariant:* what is kept is never believed against the store. It is found by the BLAKE3 that the log gives for
//! a pack or a table, and has a hash of its own, which also covers that one and the place in the object. The log itself
//! is not kept: which frames there are only the store says. Nor are packs with keys, which must be nowhere when they
//! were replaced.

use std::sync::Arc;

use onefold_core::hex_digits;

/// Most bytes that are kept together: those of a table.
const KEPT_MAX: u64 = 64 << 20;

/// Bytes of the hash at the front.
const HASH: usize = 32;

/// A place on this host for bytes by names of hexadecimal digits, such as a directory. It may lose or
/// change them at any time, and tells of no failure.
pub trait Keep: Send + Sync {
    /// The bytes of a name, if it has them.
    fn load(&self, name: &str) -> Option<Vec<u8>>;

    /// Takes bytes for a name.
    fn store(&self, name: &str, bytes: &[u8]);
}

/// A part of an object, or all of it.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    /// The hash of the whole object.
    pub(crate) of: [u8; 32],
    pub(crate) from: u64,
    pub(crate) bytes: u64,
}

impl Part {
    fn name(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.of).update(&self.from.to_le_bytes()).update(&self.bytes.to_le_bytes());
        hex_digits(&hasher.finalize().as_bytes()[..16])
    }

    fn hash(&self, bytes: &[u8]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_derive_key("onefold kept part of an object");
        hasher.update(&self.of).update(&self.from.to_le_bytes()).update(&self.bytes.to_le_bytes());
        hasher.update(bytes).finalize()
    }

    /// Its bytes, if they are kept on this host.
    ///
    /// Simulations leave the hash out.
    pub(crate) fn load(&self, keep: Option<&Arc<dyn Keep>>, hashed: bool) -> Option<Vec<u8>> {
        let mut bytes = keep.filter(|_| self.may_be())?.load(&self.name())?;
        let content = bytes.split_off(bytes.len().min(HASH));
        let is_it = content.len() as u64 == self.bytes
            && (self.hash(&content) == <[u8; HASH]>::try_from(bytes).ok()? || !hashed);
        is_it.then_some(content)
    }

    /// Keeps its bytes.
    pub(crate) fn store(&self, keep: Option<&Arc<dyn Keep>>, content: &[u8]) {
        if let Some(keep) = keep.filter(|_| self.may_be()) {
            keep.store(&self.name(), &[self.hash(content).as_bytes(), content].concat());
        }
    }

    fn may_be(&self) -> bool {
        (1..=KEPT_MAX).contains(&self.bytes)
    }
}
