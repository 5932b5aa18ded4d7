//! The sentence about encryption when a store is made.

/// True of every store, until stores can be encrypted.
pub(super) const NOT_ENCRYPTED: &str =
    "it is not encrypted: everybody who can read its file, device or objects can read its data";
