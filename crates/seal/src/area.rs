//! The bytes of the key area, of which each store has two copies.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | `ONEFKEYS` |
//! | 8 | 4 | version, 1 |
//! | 12 | 1 | suite: 1 AES-256 (GCM-SIV, GCM, CTR), BLAKE3, Argon2id |
//! | 13 | 3 | zero |
//! | 16 | 16 | id of the store |
//! | 32 | 8 | sequence, from 1 on |
//! | 40 | 1 | 1 while the keys are being erased: the wrapped keys below are gone |
//! | 41 | 7 | zero |
//! | 48 | 60 | store key, wrapped by the root key |
//! | 108 | 60 | domain root, wrapped by the root key |
//! | 168 | 24 | zero |
//! | 192 | 160 each | 16 slots |
//! | 2752 | 148 each | 64 domains |
//! | 12224 | 4 | number of the next domain |
//! | 12228 | 20 | zero |
//! | 12248 | 32 | code: BLAKE3 of all before, keyed from the root key |
//! | 12280 | 8 | XXH3-64 of all before, seeded with the first 8 bytes of the id |

use onefold_core::{Error, Kind, Result, checksum};

use crate::{
    Secret,
    keys::{DOMAIN_BYTES, DOMAINS_MAX, Keys, SLOTS_MAX},
    random::Random,
    slot::{Argon, SLOT_BYTES, Slot, SlotSecret, WORK_KIB_MAX},
    uses::Use,
    wrap::{Name, WRAPPED_BYTES, Wrapped, unwrap_key, wrap},
};

/// Bytes of a copy: three blocks of a block store.
pub const AREA_BYTES: usize = 3 * 4096;

/// The only suite there is.
pub const SUITE: u8 = 1;

const MAGIC: &[u8; 8] = b"ONEFKEYS";
const VERSION: u32 = 1;
const ERASED_AT: usize = 40;
const STORE_AT: usize = 48;
const ROOT_AT: usize = STORE_AT + WRAPPED_BYTES;
const SLOTS_AT: usize = 192;
const DOMAINS_AT: usize = SLOTS_AT + SLOTS_MAX * SLOT_BYTES;
/// State, how often the key was changed, number, and what is wrapped.
const DOMAIN_ENTRY: usize = 8 + 12 + DOMAIN_BYTES + 16;
const DOMAINS_END: usize = DOMAINS_AT + DOMAINS_MAX * DOMAIN_ENTRY;
const NEXT_DOMAIN_AT: usize = DOMAINS_END;
const CODE_AT: usize = AREA_BYTES - 40;
const CHECKSUM_AT: usize = AREA_BYTES - 8;

const _: () = assert!(DOMAIN_ENTRY == 148 && DOMAINS_END == 12224 && DOMAINS_END <= CODE_AT);

/// A copy of the key area, as whoever has no key reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyArea {
    id: [u8; 16],
    sequence: u64,
    slots: Vec<Option<Slot>>,
    bytes: Vec<u8>,
}

/// The code over all that stands before it.
fn code(root: &Secret, bytes: &[u8]) -> [u8; 32] {
    *blake3::keyed_hash(root.derive(Use::KEY_AREA).expose(), &bytes[..CODE_AT]).as_bytes()
}

fn sum(id: &[u8; 16], bytes: &[u8]) -> [u8; 8] {
    let mut seed = [0; 8];
    seed.copy_from_slice(&id[..8]);
    checksum::fast(u64::from_le_bytes(seed), &bytes[..CHECKSUM_AT]).to_le_bytes()
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[at..at + N]);
    array
}

impl KeyArea {
    /// Reads a copy. What its slots and domains say is not proven before it is opened.
    ///
    /// # Errors
    /// `Corrupt`: it is damaged, or none. `Unsupported`: it is of a newer program.
    pub fn decode(bytes: &[u8]) -> Result<KeyArea> {
        let damaged = |why: &str| Error::new(Kind::Corrupt, format!("the key area {why}"));
        if bytes.len() != AREA_BYTES || !bytes.starts_with(MAGIC) {
            return Err(damaged("is not there"));
        }
        let id = array(bytes, 16);
        let (version, suite) = (u32::from_le_bytes(array(bytes, 8)), bytes[12]);
        if sum(&id, bytes) != bytes[CHECKSUM_AT..] {
            return Err(damaged("fails its checksum"));
        }
        if (version, suite) != (VERSION, SUITE) {
            return Err(Error::new(
                Kind::Unsupported,
                format!(
                    "the key area has version {version} and suite {suite}; this program knows {VERSION} and {SUITE}"
                ),
            ));
        }
        let sequence = u64::from_le_bytes(array(bytes, 32));
        if sequence == 0 || sequence >= 1 << 62 {
            return Err(damaged("has a number that can't be true"));
        }
        let slot = |number| Slot::decode(&array(bytes, SLOTS_AT + number * SLOT_BYTES));
        let slots = (0..SLOTS_MAX).map(slot).collect::<Result<Vec<_>>>()?;
        Ok(KeyArea { id, sequence, slots, bytes: bytes.to_vec() })
    }

    /// The id of the store.
    #[must_use]
    pub fn id(&self) -> &[u8; 16] {
        &self.id
    }

    /// The number of this key area.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// The slots that are in use, with their numbers.
    pub fn slots(&self) -> impl Iterator<Item = (usize, &Slot)> {
        self.slots.iter().enumerate().filter_map(|(number, slot)| Some((number, slot.as_ref()?)))
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The bytes of its slots: what a secret opens depends on these and the id alone.
    #[must_use]
    pub fn slot_bytes(&self) -> &[u8] {
        &self.bytes[SLOTS_AT..DOMAINS_AT]
    }

    /// True when it says that its keys are being erased. Only its code proves it.
    #[must_use]
    pub fn is_erased(&self) -> bool {
        self.bytes[ERASED_AT] != 0
    }

    /// The root key and the number of the slot that a secret opens; `None` when it opens none. Each
    /// slot with a passphrase takes about a second, within the memory that a machine with
    /// `memory_bytes` may give.
    ///
    /// # Errors
    /// `Corrupt`, `Memory`: a slot asks for more or less work than it may, and no other one opens.
    /// `Corrupt`: all slots of passphrases together ask for more work than 16 of the usual ones.
    pub fn root(&self, secret: &SlotSecret, memory_bytes: u64) -> Result<Option<(usize, Secret)>> {
        let mut refused = None;
        let asked = |(_, slot): (usize, &Slot)| slot.argon().map_or(0, Argon::work_kib);
        if matches!(secret, SlotSecret::Passphrase(_))
            && self.slots().map(asked).fold(0, u64::saturating_add)
                > SLOTS_MAX as u64 * WORK_KIB_MAX
        {
            return Err(Error::new(
                Kind::Corrupt,
                "the slots of passphrases ask for more work than all usual ones together",
            ));
        }
        // Cheap ones first: whoever can write the area, but has no key, adds dear ones.
        let mut slots: Vec<(usize, &Slot)> = self.slots().collect();
        slots.sort_by_key(|slot| asked(*slot));
        for (number, slot) in slots {
            match slot.root((&self.id, number), secret, memory_bytes) {
                Ok(Some(root)) => return Ok(Some((number, root))),
                Ok(None) => {}
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        refused.map_or(Ok(None), Err)
    }

    /// True when this is the root key of the area: its code agrees.
    #[must_use]
    pub fn is_of(&self, root: &Secret) -> bool {
        Secret::take(&mut code(root, &self.bytes)).equals(&array(&self.bytes, CODE_AT))
    }

    /// The keys, by the root key; `None` when somebody without it changed the area.
    ///
    /// # Errors
    /// `Corrupt`: what is wrapped does not open, or the keys are being destroyed.
    pub fn keys(&self, root: &Secret) -> Result<Option<Keys>> {
        self.open(root, true)
    }

    /// The keys, by the root key; `None` when the code says that somebody changed the area, or that
    /// this is no root key of it. The code is always compared; only simulators give `compares` as
    /// false.
    ///
    /// # Errors
    /// `Corrupt`: the code agrees and a wrap does not, or the keys were being erased; `Io`: the library of
    /// ciphers refuses.
    pub(crate) fn open(&self, root: &Secret, compares: bool) -> Result<Option<Keys>> {
        if compares && !self.is_of(root) {
            return Ok(None);
        }
        if self.is_erased() {
            return Err(Error::new(Kind::Corrupt, "its keys were destroyed: nobody can read it"));
        }
        let damaged = || Error::new(Kind::Corrupt, "a wrapped key of the key area is damaged");
        let inner = |what, at: usize| {
            let name = Name { id: &self.id, what, number: 0, more: &[] };
            unwrap_key(root, name, &self.bytes[at..at + WRAPPED_BYTES])?.ok_or_else(damaged)
        };
        let (store, domain_root) =
            (inner(Wrapped::Store, STORE_AT)?, inner(Wrapped::DomainRoot, ROOT_AT)?);
        let mut domains = Vec::new();
        for entry in self.bytes[DOMAINS_AT..DOMAINS_END].chunks_exact(DOMAIN_ENTRY) {
            if entry[0] == 1 {
                let number = u32::from_le_bytes(array(entry, 4));
                let of = (number, u32::from_le_bytes([entry[1], entry[2], entry[3], 0]));
                let domain = Keys::unwrap_domain(&self.id, of, &domain_root, &entry[8..])?;
                domains.push(domain.ok_or_else(damaged)?);
            }
        }
        Ok(Some(Keys {
            id: self.id,
            sequence: self.sequence,
            root: root.again(),
            store,
            domain_root,
            next_domain: u32::from_le_bytes(array(&self.bytes, NEXT_DOMAIN_AT)),
            domains,
            generation_seen: 0,
            slots: self.slots.clone(),
        }))
    }
}

impl Keys {
    /// The bytes of the next key area, which has the next number. They count once both copies are
    /// written and durable, one after the other.
    ///
    /// # Errors
    /// Those of the source of chance; `InvalidInput`: there is no slot.
    pub fn next_area(&mut self, random: &dyn Random) -> Result<KeyArea> {
        if self.slots().next().is_none() {
            return Err(Error::new(
                Kind::InvalidInput,
                "without a slot nobody could open the store",
            ));
        }
        let mut bytes = vec![0; AREA_BYTES];
        let sequence = self.sequence + 1;
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12] = SUITE;
        bytes[16..32].copy_from_slice(&self.id);
        bytes[32..40].copy_from_slice(&sequence.to_le_bytes());
        let inner = [
            (Wrapped::Store, &self.store, STORE_AT),
            (Wrapped::DomainRoot, &self.domain_root, ROOT_AT),
        ];
        for (what, key, at) in inner {
            let name = Name { id: &self.id, what, number: 0, more: &[] };
            let wrapped = wrap(&self.root, name, key.expose(), random)?;
            bytes[at..at + WRAPPED_BYTES].copy_from_slice(&wrapped);
        }
        for (number, slot) in self.slots() {
            let at = SLOTS_AT + number * SLOT_BYTES;
            bytes[at..at + SLOT_BYTES].copy_from_slice(&slot.encode());
        }
        let entries = bytes[DOMAINS_AT..DOMAINS_END].chunks_exact_mut(DOMAIN_ENTRY);
        for (entry, ((number, generation), wrapped)) in entries.zip(self.wrapped_domains(random)?) {
            entry[0] = 1;
            entry[1..4].copy_from_slice(&generation.to_le_bytes()[..3]);
            entry[4..8].copy_from_slice(&number.to_le_bytes());
            entry[8..].copy_from_slice(&wrapped);
        }
        let next_domain = self.next_domain().to_le_bytes();
        bytes[NEXT_DOMAIN_AT..NEXT_DOMAIN_AT + 4].copy_from_slice(&next_domain);
        self.sequence = sequence;
        self.proven(bytes)
    }

    /// The bytes of a key area that says that its keys are being erased. It has its slots, so that who
    /// has a secret finds this proven, and no key that they lead to. It is the first thing that an
    /// erasure writes: a crash after it does not bring the keys back.
    ///
    /// # Errors
    /// Those of [`next_area`](Self::next_area).
    pub fn erased_area(&mut self, random: &dyn Random) -> Result<KeyArea> {
        let mut bytes = self.next_area(random)?.bytes;
        bytes[ERASED_AT] = 1;
        random.fill(&mut bytes[STORE_AT..ROOT_AT + WRAPPED_BYTES])?;
        bytes[DOMAINS_AT..DOMAINS_END].fill(0);
        self.proven(bytes)
    }

    fn proven(&self, mut bytes: Vec<u8>) -> Result<KeyArea> {
        let code = code(&self.root, &bytes);
        bytes[CODE_AT..CHECKSUM_AT].copy_from_slice(&code);
        let sum = sum(&self.id, &bytes);
        bytes[CHECKSUM_AT..].copy_from_slice(&sum);
        KeyArea::decode(&bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::tests::{Seeded, add, keys, secret};

    #[test]
    fn rule_22_a_key_area_opens_as_it_was_written() {
        let mut keys = keys(1);
        add(&mut keys, 2);
        keys.add_domain("tenant", &Seeded::new(3)).unwrap();
        let area = keys.next_area(&Seeded::new(4)).unwrap();
        assert_eq!((area.sequence(), area.id()), (1, &[1; 16]));
        let (slot, root) = area.root(&secret(2), 0).unwrap().unwrap();
        assert_eq!(slot, 1);
        let opened = area.open(&root, true).unwrap().unwrap();
        assert!(opened.store.equals(keys.store.expose()));
        assert!(opened.domain_root.equals(keys.domain_root.expose()));
        assert_eq!(opened.domains().len(), 2);
        for (found, made) in opened.domains().iter().zip(keys.domains()) {
            assert_eq!((found.number(), found.name()), (made.number(), made.name()));
            let key = opened.domain(found.number()).unwrap();
            assert!(key.equals(keys.domain(made.number()).unwrap().expose()));
        }
        assert!(area.root(&secret(3), 0).unwrap().is_none());
        assert_eq!(keys.next_area(&Seeded::new(4)).unwrap().sequence(), 2);
    }

    #[test]
    fn rule_22_no_byte_of_a_key_area_can_be_changed() {
        let mut keys = keys(1);
        let area = keys.next_area(&Seeded::new(4)).unwrap();
        let root = keys.root();
        for at in (0..AREA_BYTES).step_by(7).chain(0..200).chain(CODE_AT..AREA_BYTES) {
            let mut bytes = area.bytes().to_vec();
            bytes[at] ^= 1;
            assert!(KeyArea::decode(&bytes).is_err(), "byte {at}");
            // Nor by who makes the checksum again.
            let id: [u8; 16] = array(&bytes, 16);
            let sum = sum(&id, &bytes);
            bytes[CHECKSUM_AT..].copy_from_slice(&sum);
            if bytes == area.bytes() {
                continue;
            }
            if let Ok(forged) = KeyArea::decode(&bytes) {
                assert!(forged.open(&root, true).unwrap().is_none(), "byte {at}");
            }
        }
    }

    #[test]
    fn rule_26_who_has_the_root_key_does_not_open_an_erased_domain() {
        let mut keys = keys(1);
        let domain = keys.add_domain("tenant", &Seeded::new(3)).unwrap();
        let before = keys.next_area(&Seeded::new(4)).unwrap();
        keys.erase_domain(domain, &Seeded::new(5)).unwrap();
        let after = keys.next_area(&Seeded::new(6)).unwrap();
        let opened = after.open(&keys.root(), true).unwrap().unwrap();
        assert!(opened.domain(domain).is_none() && opened.domain(0).is_some());
        // The key that wraps domains is another one: the new area opens no domain of the old one.
        let wrapped = &before.bytes[DOMAINS_AT + DOMAIN_ENTRY..][8..DOMAIN_ENTRY];
        let root = &opened.domain_root;
        let found = Keys::unwrap_domain(&[1; 16], (domain, 0), root, wrapped).unwrap();
        assert!(found.is_none());
    }

    #[test]
    fn rule_24_a_key_area_has_both_data_keys_of_a_domain_until_the_older_one_is_dropped() {
        let mut keys = keys(1);
        let tenant = keys.add_domain("tenant", &Seeded::new(3)).unwrap();
        keys.rotate_domain(tenant, &Seeded::new(4)).unwrap();
        let two = keys.next_area(&Seeded::new(5)).unwrap();
        let opened = two.open(&keys.root(), true).unwrap().unwrap();
        assert_eq!((opened.generation(tenant), opened.generation(0)), (Some(1), Some(0)));
        assert!(opened.older(tenant).unwrap().equals(keys.older(tenant).unwrap().expose()));
        assert!(opened.domain(tenant).unwrap().equals(keys.domain(tenant).unwrap().expose()));
        // The wrap proves how often the key was changed.
        let wrapped = &two.bytes[DOMAINS_AT + DOMAIN_ENTRY..][8..DOMAIN_ENTRY];
        for (generation, opens) in [(0, false), (1, true), (2, false)] {
            let of = (tenant, generation);
            let found = Keys::unwrap_domain(&[1; 16], of, &opened.domain_root, wrapped).unwrap();
            assert_eq!(found.is_some(), opens, "generation {generation}");
        }
        keys.drop_older(tenant, &Seeded::new(6)).unwrap();
        let one = keys.next_area(&Seeded::new(7)).unwrap();
        let opened = one.open(&keys.root(), true).unwrap().unwrap();
        assert!(opened.older(tenant).is_none() && opened.generation(tenant) == Some(1));
        // The key that wraps domains is another one: the new area does not open the old wrap.
        let root = &opened.domain_root;
        assert!(Keys::unwrap_domain(&[1; 16], (tenant, 1), root, wrapped).unwrap().is_none());
    }

    #[test]
    fn rule_24_after_an_older_area_was_accepted_generations_do_not_come_again() {
        let mut keys = keys(1);
        let old = keys.next_area(&Seeded::new(4)).unwrap();
        assert_eq!(keys.rotate_domain(0, &Seeded::new(5)).unwrap(), 1);
        let mut accepted = old.open(&keys.root(), true).unwrap().unwrap();
        accepted.saw_generation(1);
        assert_eq!(accepted.rotate_domain(0, &Seeded::new(5)).unwrap(), 2);
        assert!(!accepted.domain(0).unwrap().equals(keys.domain(0).unwrap().expose()));
    }

    #[test]
    fn rule_22_after_an_older_area_was_accepted_numbers_do_not_come_again() {
        let mut keys = keys(1);
        let old = keys.next_area(&Seeded::new(4)).unwrap();
        keys.next_area(&Seeded::new(5)).unwrap();
        let mut accepted = old.open(&keys.root(), true).unwrap().unwrap();
        accepted.saw(2);
        assert_eq!(accepted.next_area(&Seeded::new(6)).unwrap().sequence(), 3);
    }

    #[test]
    fn rule_25_the_number_of_an_erased_domain_does_not_come_again() {
        let mut keys = keys(1);
        let first = keys.add_domain("first", &Seeded::new(3)).unwrap();
        keys.erase_domain(first, &Seeded::new(4)).unwrap();
        let area = keys.next_area(&Seeded::new(5)).unwrap();
        let mut opened = area.open(&keys.root(), true).unwrap().unwrap();
        assert_eq!(opened.add_domain("second", &Seeded::new(6)).unwrap(), first + 1);
    }

    #[test]
    fn rule_26_an_area_that_is_being_erased_has_no_keys_and_proves_it() {
        let mut keys = keys(1);
        let area = keys.next_area(&Seeded::new(4)).unwrap();
        let erased = keys.erased_area(&Seeded::new(5)).unwrap();
        assert!(erased.is_erased() && !area.is_erased());
        assert!(erased.is_of(&keys.root()) && erased.sequence() > area.sequence());
        let error = erased.open(&keys.root(), true).err().unwrap();
        assert!(error.to_string().contains("destroyed"), "{error}");
        // Nor does the area without the mark open.
        let mut bytes = erased.bytes().to_vec();
        bytes[ERASED_AT] = 0;
        let unmarked = keys.proven(bytes).unwrap();
        assert_eq!(unmarked.open(&keys.root(), true).err().unwrap().kind(), Kind::Corrupt);
    }

    #[test]
    fn rule_23_slots_that_ask_for_hours_of_work_are_refused_before_any_of_it() {
        let mut keys = keys(1);
        let mut bytes = keys.next_area(&Seeded::new(4)).unwrap().bytes().to_vec();
        // 16 slots of a passphrase, each with the most that one may ask for.
        for number in 0..SLOTS_MAX {
            let at = SLOTS_AT + number * SLOT_BYTES;
            bytes[at..at + SLOT_BYTES].fill(0);
            bytes[at] = 1;
            bytes[at + 2..at + 4].copy_from_slice(&4u16.to_le_bytes());
            bytes[at + 4..at + 8].copy_from_slice(&16u32.to_le_bytes());
            bytes[at + 8..at + 12].copy_from_slice(&(4u32 << 20).to_le_bytes());
        }
        let hostile = keys.proven(bytes.clone()).unwrap();
        let words = SlotSecret::Passphrase(b"words".to_vec().into());
        assert_eq!(hostile.root(&words, u64::MAX).err().unwrap().kind(), Kind::Corrupt);
        // Two whose work is no number of 64 bits together.
        for number in 0..2 {
            let at = SLOTS_AT + number * SLOT_BYTES;
            bytes[at + 4..at + 12].fill(0xff);
        }
        let hostile = keys.proven(bytes).unwrap();
        assert_eq!(hostile.root(&words, u64::MAX).err().unwrap().kind(), Kind::Corrupt);
    }

    #[test]
    fn other_suites_and_versions_are_refused_as_such() {
        let area = keys(1).next_area(&Seeded::new(4)).unwrap();
        for at in [8, 12] {
            let mut bytes = area.bytes().to_vec();
            bytes[at] = 2;
            let sum = sum(&[1; 16], &bytes);
            bytes[CHECKSUM_AT..].copy_from_slice(&sum);
            assert_eq!(KeyArea::decode(&bytes).unwrap_err().kind(), Kind::Unsupported);
        }
        assert!(KeyArea::decode(&[0; AREA_BYTES]).is_err());
        assert!(KeyArea::decode(b"ONEFKEYS").is_err());
    }

    #[test]
    fn rule_22_two_areas_of_the_same_keys_share_no_wrapped_bytes() {
        let mut keys = keys(1);
        let (one, other) =
            (keys.next_area(&Seeded::new(4)).unwrap(), keys.next_area(&Seeded::new(5)).unwrap());
        let wraps = |area: &KeyArea| area.bytes[STORE_AT..ROOT_AT + WRAPPED_BYTES].to_vec();
        let (one, other) = (wraps(&one), wraps(&other));
        assert!(one.windows(8).all(|part| !other.windows(8).any(|it| it == part)));
    }
}
