//! The ciphers of a sealed archive. Whoever holds its directory learns neither content nor names from it, and changes
//! nothing unnoticed but what SECURITY.md names.
//!
//! Where a plain archive has a checksum of 8 bytes, a sealed one has the first half of a tag, and the
//! second half stands behind what is sealed. Container metadata have their whole tag in the header, and
//! a group has it behind itself. Sealed bytes are bound to what they are and to where they stand. The
//! nonce is this place: the cipher, AES-256-GCM-SIV, allows other bytes under the same nonce, which
//! crashes, copies and clones of an archive bring about. A group is sealed by AES-256-GCM with a key of
//! its container, which is made of chance and of all that the container holds.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use onefold_core::{Error, Kind, Result};
use onefold_seal::{GcmKey, Keys, Place, Random, Secret, SivKey, TAG_BYTES, Use, digest};

/// The domain that all chunks of an archive belong to.
pub(crate) const DOMAIN: u32 = 0;

/// Bytes of a salt.
pub(crate) const SALT_BYTES: usize = 32;

/// The kind of what is sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// A place of the label.
    Label,
    /// A frame of the log.
    Frame,
    /// The tables of a snapshot.
    Snapshot,
    /// A part of a snapshot: figures of writing, or of the archive's care.
    SnapshotPart,
    /// A leaf of the tables.
    Leaf,
    /// A page of the maps of volumes.
    MapPage,
    /// A block of usage counts in a list.
    Counts,
    /// The metadata of a container.
    Metadata,
    /// A page of the chunk index.
    IndexPage,
    /// A page of usage counts.
    CountsPage,
    /// The directory of usage counts in pages.
    CountsDirectory,
    /// The header, which says where that directory lies.
    CountsHeader,
}

impl What {
    fn code(self) -> u8 {
        match self {
            What::Label => 1,
            What::Frame => 2,
            What::Snapshot => 3,
            What::SnapshotPart => 4,
            What::Leaf => 5,
            What::MapPage => 6,
            What::Counts => 7,
            What::Metadata => 8,
            What::IndexPage => 9,
            What::CountsPage => 10,
            What::CountsDirectory => 11,
            What::CountsHeader => 12,
        }
    }

    /// True when the key comes from the domain of the chunks.
    fn is_of_domain(self) -> bool {
        matches!(self, What::Metadata | What::IndexPage)
    }
}

/// What an archive that breaks its rules leaves out; only simulators set any.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Flaws {
    /// Salts come from chance alone.
    pub(crate) salt_by_chance: bool,
    /// Groups are written as they are.
    pub(crate) plain_groups: bool,
}

/// The working keys of an archive.
pub(crate) struct Sealing {
    archive: SivKey,
    domain: SivKey,
    containers: Secret,
    salts: Secret,
    fingerprints: Secret,
    cuts: Secret,
    random: Arc<dyn Random>,
    flaws: Flaws,
    /// The highest number of a key area that this process knows of.
    keys: AtomicU64,
    /// Seeds the checksums.
    checksums: u64,
}

impl Sealing {
    /// By the open keys of the archive.
    pub(crate) fn new(keys: &Keys, random: Arc<dyn Random>, flaws: Flaws) -> Result<Sealing> {
        let domain = keys.domain(DOMAIN).ok_or_else(|| {
            let why = "the domain of the archive was erased: nothing in it can be read any more";
            Error::new(Kind::Denied, why)
        })?;
        let mut seed = [0; 8];
        seed.copy_from_slice(&keys.store_key(Use::ARCHIVE_CHECKSUMS).expose()[..8]);
        Ok(Sealing {
            archive: SivKey::new(&keys.store_key(Use::ARCHIVE))?,
            domain: SivKey::new(&domain.derive(Use::ARCHIVE_DOMAIN))?,
            containers: domain.derive(Use::CONTAINERS),
            salts: domain.derive(Use::SALTS),
            fingerprints: domain.derive(Use::FINGERPRINTS),
            cuts: domain.derive(Use::CUTS),
            random,
            flaws,
            keys: AtomicU64::new(keys.sequence()),
            checksums: u64::from_le_bytes(seed),
        })
    }

    /// The key of fingerprints.
    pub(crate) fn fingerprints(&self) -> &Secret {
        &self.fingerprints
    }

    /// The key of where streams are cut.
    pub(crate) fn cuts(&self) -> &Secret {
        &self.cuts
    }

    /// The highest number of a key area that this process knows of.
    pub(crate) fn keys(&self) -> u64 {
        self.keys.load(Relaxed)
    }

    /// A frame or a label bears this number of a key area.
    pub(crate) fn saw_keys(&self, number: u64) {
        self.keys.fetch_max(number, Relaxed);
    }

    /// A new salt for a container, from chance and from all that tells it from others: where chance
    /// repeats itself, another content still has another salt.
    pub(crate) fn salt(&self, of: &[&[u8]]) -> Result<[u8; SALT_BYTES]> {
        let mut chance = [0; SALT_BYTES];
        self.random.fill(&mut chance)?;
        let of = if self.flaws.salt_by_chance { &[] } else { of };
        let parts: Vec<&[u8]> = std::iter::once(&chance[..]).chain(of.iter().copied()).collect();
        Ok(digest(&self.salts, &parts))
    }

    /// What seals the groups of the container with this salt.
    pub(crate) fn container(
        &self,
        archive: [u8; 16],
        id: u64,
        kind: u8,
        salt: [u8; SALT_BYTES],
    ) -> Result<ContainerSeal> {
        let key = self.containers.derive_of(Use::CONTAINERS, &salt);
        let mut place = archive.to_vec();
        place.extend_from_slice(&id.to_le_bytes());
        place.push(kind);
        let mut proof = [0; 16];
        proof.copy_from_slice(&digest(&key, &[b"proof"])[..16]);
        let is_plain = self.flaws.plain_groups;
        Ok(ContainerSeal { key: GcmKey::new(&key)?, salt, proof, place, is_plain })
    }

    /// The seed of checksums.
    pub(crate) fn checksums(&self) -> u64 {
        self.checksums
    }

    /// Seals bytes for their place; gives their tag, which proves `beside`, too.
    pub(crate) fn seal(
        &self,
        what: What,
        (file, number): (u64, u64),
        beside: &[u8],
        bytes: &mut [u8],
    ) -> Result<[u8; TAG_BYTES]> {
        self.key(what).seal(Place { kind: what.code(), file, number }, beside, bytes)
    }

    /// Opens bytes that were sealed so; false when they are others, and then of no use.
    pub(crate) fn open(
        &self,
        what: What,
        (file, number): (u64, u64),
        beside: &[u8],
        bytes: &mut [u8],
        tag: &[u8; TAG_BYTES],
    ) -> bool {
        self.key(what).open(Place { kind: what.code(), file, number }, beside, bytes, tag)
    }

    fn key(&self, what: What) -> &SivKey {
        if what.is_of_domain() { &self.domain } else { &self.archive }
    }
}

/// What seals the groups of a container.
pub(crate) struct ContainerSeal {
    key: GcmKey,
    salt: [u8; SALT_BYTES],
    proof: [u8; 16],
    /// Archive, container and kind.
    place: Vec<u8>,
    is_plain: bool,
}

impl ContainerSeal {
    pub(crate) fn salt(&self) -> &[u8; SALT_BYTES] {
        &self.salt
    }

    /// Tells whether a key is the container's.
    pub(crate) fn proof(&self) -> [u8; 16] {
        self.proof
    }

    /// The group's number, and what the tag proves beside its bytes: where it is, and its lengths.
    fn of_group(&self, group: usize, stored: usize, raw: u32) -> ([u8; 12], Vec<u8>) {
        let mut nonce = [0; 12];
        nonce[..8].copy_from_slice(&(group as u64).to_le_bytes());
        let mut beside = self.place.clone();
        beside.extend_from_slice(&(group as u32).to_le_bytes());
        beside.extend_from_slice(&(stored as u32).to_le_bytes());
        beside.extend_from_slice(&raw.to_le_bytes());
        (nonce, beside)
    }

    /// Seals a group of so many expanded bytes, as it is stored; its tag comes behind it.
    pub(crate) fn seal(&self, group: usize, raw: u32, bytes: &mut [u8]) -> Result<[u8; TAG_BYTES]> {
        let (nonce, beside) = self.of_group(group, bytes.len(), raw);
        if self.is_plain {
            return Ok([0; TAG_BYTES]);
        }
        self.key.seal(nonce, &beside, bytes)
    }

    /// Opens a group with its tag; `None` when it is not what was sealed.
    pub(crate) fn open<'a>(
        &self,
        group: usize,
        raw: u32,
        stored: &'a mut [u8],
    ) -> Option<&'a mut [u8]> {
        let (bytes, tag) = stored.split_last_chunk_mut::<TAG_BYTES>()?;
        let (nonce, beside) = self.of_group(group, bytes.len(), raw);
        (self.is_plain || self.key.open(nonce, &beside, bytes, tag)).then_some(bytes)
    }
}

impl fmt::Debug for ContainerSeal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ContainerSeal")
    }
}

impl PartialEq for ContainerSeal {
    fn eq(&self, other: &ContainerSeal) -> bool {
        self.salt == other.salt && self.place == other.place
    }
}

impl Eq for ContainerSeal {}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use onefold_testbed::Rng;

    use super::*;

    /// Chance that repeats itself in each clone of a machine.
    struct Repeated(Mutex<Rng>);

    impl Random for Repeated {
        fn fill(&self, into: &mut [u8]) -> Result<()> {
            self.0.lock().unwrap().fill(into);
            Ok(())
        }
    }

    fn repeated() -> Arc<dyn Random> {
        Arc::new(Repeated(Mutex::new(Rng::new(5))))
    }

    fn sealing() -> Sealing {
        let keys = Keys::create([1; 16], &*repeated()).unwrap();
        Sealing::new(&keys, repeated(), Flaws::default()).unwrap()
    }

    const KINDS: [What; 12] = [
        What::Label,
        What::Frame,
        What::Snapshot,
        What::SnapshotPart,
        What::Leaf,
        What::MapPage,
        What::Counts,
        What::Metadata,
        What::IndexPage,
        What::CountsPage,
        What::CountsDirectory,
        What::CountsHeader,
    ];

    #[test]
    fn rule_29_nothing_of_an_archive_opens_as_another_kind_or_in_another_place() {
        let sealing = sealing();
        for what in KINDS {
            let mut bytes = *b"what only one place has";
            let tag = sealing.seal(what, (3, 4), b"beside", &mut bytes).unwrap();
            let opens = |what: What, place: (u64, u64), beside: &[u8]| {
                let mut copy = bytes;
                sealing.open(what, place, beside, &mut copy, &tag)
            };
            assert!(opens(what, (3, 4), b"beside"));
            for other in KINDS.into_iter().filter(|other| *other != what) {
                assert!(!opens(other, (3, 4), b"beside"), "{what:?} as {other:?}");
            }
            for place in [(4, 3), (3, 5), (2, 4), (3 | 1 << 40, 4), (3, 4 | 1 << 48)] {
                assert!(!opens(what, place, b"beside"), "{what:?} at {place:?}");
            }
            assert!(!opens(what, (3, 4), b"besides"), "{what:?}");
        }
    }

    #[test]
    fn rule_29_a_group_opens_in_its_place_of_its_container_only() {
        let sealing = sealing();
        let seal = |archive, id, kind, salt| sealing.container([archive; 16], id, kind, [salt; 32]);
        let mut stored = b"a group of a container".to_vec();
        let tag = seal(1, 2, 1, 3).unwrap().seal(4, 100, &mut stored).unwrap();
        stored.extend_from_slice(&tag);
        let opens = |by: Result<ContainerSeal>, group, raw, stored: &[u8]| {
            by.unwrap().open(group, raw, &mut stored.to_vec()).is_some()
        };
        assert!(opens(seal(1, 2, 1, 3), 4, 100, &stored));
        for other in [seal(2, 2, 1, 3), seal(1, 3, 1, 3), seal(1, 2, 2, 3), seal(1, 2, 1, 4)] {
            assert!(!opens(other, 4, 100, &stored));
        }
        assert!(!opens(seal(1, 2, 1, 3), 5, 100, &stored), "another group");
        assert!(!opens(seal(1, 2, 1, 3), 4, 101, &stored), "another length");
        assert!(!opens(seal(1, 2, 1, 3), 4, 100, &stored[1..]), "a byte less");
        for bit in 0..stored.len() * 8 {
            let mut turned = stored.clone();
            turned[bit / 8] ^= 1 << (bit % 8);
            assert!(!opens(seal(1, 2, 1, 3), 4, 100, &turned), "bit {bit}");
        }
    }

    #[test]
    fn rule_29_no_two_containers_have_one_salt_though_chance_repeats_itself() {
        let salt = |of: &[&[u8]]| sealing().salt(of).unwrap();
        assert_eq!(salt(&[b"one", b"content"]), salt(&[b"one", b"content"]));
        assert_ne!(salt(&[b"one", b"content"]), salt(&[b"another", b"content"]));
        assert_ne!(salt(&[b"one", b"content"]), salt(&[b"onec", b"ontent"]));
        let sealing = sealing();
        let one = sealing.salt(&[b"one"]).unwrap();
        assert_ne!(one, sealing.salt(&[b"one"]).unwrap(), "chance has its part, too");
    }
}
