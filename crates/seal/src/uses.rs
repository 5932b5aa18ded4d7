//! What working keys are for.

/// The use of a working key. Each has a constant sentence with the version of its format, which no
/// other use has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use(&'static str);

impl Use {
    /// Keys that are wrapped by this one.
    pub const WRAPPING: Use = Use("onefold 2026-11-26 keys wrapped by a key, 1");
    /// A key of a domain and a domain root, from what was drawn for it, each with the number of the domain.
    pub const DOMAIN: Use = Use("onefold 2026-11-27 keys drawn for a domain, 1");
    /// The code that proves a key area, from the root key.
    pub const KEY_AREA: Use = Use("onefold 2026-11-26 code of a key area, 1");
    /// A slot's key, from its secret.
    pub const SLOT: Use = Use("onefold 2026-11-26 key of a slot, 1");

    /// Fingerprints, from a domain's key.
    pub const FINGERPRINTS: Use = Use("onefold 2026-11-26 fingerprints, 1");
    /// Where streams are cut, from a domain's key.
    pub const CUTS: Use = Use("onefold 2026-11-26 cuts of streams, 1");
    /// Where pages of trees end, from a domain's key.
    pub const BORDERS: Use = Use("onefold 2026-11-26 borders of tree nodes, 1");

    /// What an archive says of itself: frames, snapshots, labels, leaves, maps and counts; from the
    /// store key.
    pub const ARCHIVE: Use = Use("onefold 2026-11-26 metadata of an archive, 1");
    /// Metadata of containers and pages of the chunk index, from a domain's key.
    pub const ARCHIVE_DOMAIN: Use = Use("onefold 2026-11-26 metadata of chunks of an archive, 1");
    /// Keys of containers, each with its salt, from a domain's key.
    pub const CONTAINERS: Use = Use("onefold 2026-11-26 key of a container, 1");
    /// The kept keys of the key that a domain's key took the place of, from the domain's key.
    pub const KEPT: Use = Use("onefold 2026-11-30 what stays of an older data key, 1");
    /// Salts of containers, from a domain's key.
    pub const SALTS: Use = Use("onefold 2026-11-26 salt of a container, 1");
    /// Checksums of an archive, which tell rot from all else, from the store key.
    pub const ARCHIVE_CHECKSUMS: Use = Use("onefold 2026-11-26 checksums of an archive, 1");

    /// In place of the store key, for what all roles of a store do; from the store key.
    pub const ROLES_STORE: Use = Use("onefold 2026-11-29 store key that roles share, 1");
    /// In place of the key of the first domain, likewise; from that key.
    pub const ROLES_DOMAIN: Use = Use("onefold 2026-11-29 domain key that roles share, 1");
    /// The seed by which manage signs, from the store key.
    pub const ROLES_MANAGING: Use = Use("onefold 2026-11-29 signing key of manage, 1");
    /// The secret half of the key that content is sealed for, from the store key.
    pub const ROLES_READING: Use = Use("onefold 2026-11-29 key that content is sealed for, 1");
    /// The seed by which a put key signs, from what was drawn for it, each with its number.
    pub const ROLES_PUTTING: Use = Use("onefold 2026-11-29 signing key of a put key, 1");
    /// Keys of containers of an archive with roles, each from what two keys agree on, from the key of
    /// containers of a domain.
    pub const ROLES_CONTAINERS: Use = Use("onefold 2026-11-29 key of a container for a reader, 1");

    /// Raw blocks of a block store, from a domain's key.
    pub const BLOCKS: Use = Use("onefold 2026-11-26 raw blocks, 1");
    /// Carried payloads and fragments of a block store, from a domain's key.
    pub const PAYLOADS: Use = Use("onefold 2026-11-26 carried payloads, 1");
    /// Superblock, carriers, pages and lists of a block store, from the store key.
    pub const BLOCK_STORE: Use = Use("onefold 2026-11-26 metadata of a block store, 1");

    /// Numbers by which a block store tells its own from others, from the store key.
    pub const BLOCK_NUMBERS: Use = Use("onefold 2026-11-27 numbers of a block store, 1");

    /// Values of a cluster store, and what the catalogue says of it, from the store key.
    pub const CLUSTER_VALUES: Use = Use("onefold 2026-11-27 values of a cluster store, 1");

    /// Names and references in keys, and names of chunk objects, from the store key.
    pub const CLUSTER_NAMES: Use = Use("onefold 2026-11-27 names of a cluster store, 1");

    /// Nonces of values and names of a cluster store, and shards of names, from the store key.
    pub const CLUSTER_NONCES: Use = Use("onefold 2026-11-27 nonces of a cluster store, 1");

    /// Keys of chunk objects, each with its chunk's name, from a domain's key.
    pub const CLUSTER_CHUNKS: Use = Use("onefold 2026-11-27 key of a chunk object, 1");

    /// Nonces of chunk objects, from a domain's key.
    pub const CLUSTER_CHUNK_NONCES: Use = Use("onefold 2026-11-27 nonces of chunk objects, 1");

    /// Keys of the blocks that stand in a metadata object, each with the object, from a domain's key.
    pub const CLUSTER_BLOCKS: Use = Use("onefold 2026-11-27 blocks in a metadata object, 1");

    /// Sums of the blocks that stand in metadata objects, from a domain's key.
    pub const CLUSTER_SUMS: Use = Use("onefold 2026-11-27 sums of blocks in metadata objects, 1");

    /// The sentence.
    pub(crate) fn context(self) -> &'static str {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::Use;
    use crate::Secret;

    #[test]
    fn rule_21_no_two_uses_have_one_key() {
        let all = [
            Use::WRAPPING,
            Use::DOMAIN,
            Use::KEY_AREA,
            Use::SLOT,
            Use::FINGERPRINTS,
            Use::CUTS,
            Use::BORDERS,
            Use::ARCHIVE,
            Use::ARCHIVE_DOMAIN,
            Use::CONTAINERS,
            Use::KEPT,
            Use::SALTS,
            Use::ARCHIVE_CHECKSUMS,
            Use::ROLES_STORE,
            Use::ROLES_DOMAIN,
            Use::ROLES_MANAGING,
            Use::ROLES_READING,
            Use::ROLES_PUTTING,
            Use::ROLES_CONTAINERS,
            Use::BLOCKS,
            Use::PAYLOADS,
            Use::BLOCK_STORE,
            Use::BLOCK_NUMBERS,
            Use::CLUSTER_VALUES,
            Use::CLUSTER_NAMES,
            Use::CLUSTER_NONCES,
            Use::CLUSTER_CHUNKS,
            Use::CLUSTER_CHUNK_NONCES,
            Use::CLUSTER_BLOCKS,
            Use::CLUSTER_SUMS,
        ];
        let from = Secret::take(&mut [7; 32]);
        let keys: BTreeSet<_> = all.iter().map(|&one| *from.derive(one).expose()).collect();
        assert_eq!(keys.len(), all.len());
        let of: BTreeSet<_> =
            (0..9u8).map(|n| *from.derive_of(Use::CONTAINERS, &[n]).expose()).collect();
        assert_eq!(of.len(), 9);
    }
}
