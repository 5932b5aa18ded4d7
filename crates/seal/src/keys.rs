//! The open keys of a store, and what is done to them. Nothing of it is durable before the key area is
//! written again.

use onefold_core::{Error, Kind, Result};
use zeroize::{Zeroize, Zeroizing};

use crate::{
    Secret,
    random::Random,
    slot::{Argon, Making, Slot, SlotKind, SlotSecret},
    uses::Use,
    wrap::{Name, Wrapped, unwrap, wrap},
};

/// Slots of a store.
pub const SLOTS_MAX: usize = 16;

/// Domains of a store.
pub const DOMAINS_MAX: usize = 64;

/// The key of a domain is changed so often at most: three bytes of the key area say how often.
const GENERATION_MAX: u32 = (1 << 24) - 1;

/// Bytes of a domain's name at most.
const DOMAIN_NAME_MAX: usize = 30;

/// Bytes of a domain that are wrapped.
pub(crate) const DOMAIN_BYTES: usize = 32 + 32 + 1 + 1 + DOMAIN_NAME_MAX + 8 + 8;

/// A name that a domain can have.
///
/// # Errors
/// `InvalidInput`.
pub fn valid_domain_name(name: &str) -> Result<()> {
    if name.is_empty() || name.len() > DOMAIN_NAME_MAX || name.chars().any(char::is_control) {
        let why =
            format!("a domain's name has 1 to {DOMAIN_NAME_MAX} bytes and no control characters");
        return Err(Error::new(Kind::InvalidInput, why));
    }
    Ok(())
}

/// A domain: what is deduplicated together, with a key of its own.
pub struct Domain {
    number: u32,
    name: String,
    key: Secret,
    /// How often the key was changed.
    generation: u32,
    /// The key of what was written before the key was changed last, as long as something of it is left.
    older: Option<Secret>,
    /// Bytes that its data may take, and that are kept for it; 0 for no limit.
    limits: [u64; 2],
}

impl Domain {
    /// Its number.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Its name; empty for the one that each store begins with.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How often its key was changed: the generation of what is written now.
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// True while there is the key of what was written before the key was changed last.
    #[must_use]
    pub fn has_older(&self) -> bool {
        self.older.is_some()
    }

    fn encode(&self) -> Zeroizing<Vec<u8>> {
        let mut bytes = Zeroizing::new(Vec::with_capacity(DOMAIN_BYTES));
        bytes.extend_from_slice(self.key.expose());
        bytes.extend_from_slice(self.older.as_ref().map_or(&[0; 32], |key| key.expose()));
        bytes.push(u8::from(self.older.is_some()));
        bytes.push(self.name.len() as u8);
        bytes.extend_from_slice(self.name.as_bytes());
        bytes.resize(32 + 32 + 2 + DOMAIN_NAME_MAX, 0);
        self.limits.iter().for_each(|limit| bytes.extend_from_slice(&limit.to_le_bytes()));
        bytes
    }

    fn decode((number, generation): (u32, u32), bytes: &[u8]) -> Option<Domain> {
        let (keys, rest) = bytes.split_at_checked(64)?;
        let (has_older, length) = (*rest.first()?, usize::from(*rest.get(1)?));
        let name = rest.get(2..2 + length).filter(|_| length <= DOMAIN_NAME_MAX)?;
        let limits = rest.get(2 + DOMAIN_NAME_MAX..)?;
        let limit = |at: usize| {
            limits.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes)
        };
        let key = |at: usize| {
            let mut key = Zeroizing::new([0; 32]);
            key.copy_from_slice(&keys[at..at + 32]);
            Secret::take(&mut key)
        };
        Some(Domain {
            number,
            name: String::from_utf8(name.to_vec()).ok()?,
            key: key(0),
            generation,
            older: (has_older == 1).then(|| key(32)),
            limits: [limit(0)?, limit(8)?],
        })
    }
}

/// The open keys of a store.
///
/// ```compile_fail
/// fn wants<T: std::fmt::Debug>() {}
/// wants::<onefold_seal::Keys>();
/// ```
///
/// ```compile_fail
/// fn wants<T: Clone>() {}
/// wants::<onefold_seal::Keys>();
/// ```
///
/// ```compile_fail
/// fn wants<T: serde::Serialize>() {}
/// wants::<onefold_seal::Keys>();
/// ```
pub struct Keys {
    pub(crate) id: [u8; 16],
    pub(crate) sequence: u64,
    pub(crate) root: Secret,
    pub(crate) store: Secret,
    pub(crate) domain_root: Secret,
    pub(crate) domains: Vec<Domain>,
    /// The number of the next domain, as the key area had it.
    pub(crate) next_domain: u32,
    /// The highest generation of a data key that something of the store bears.
    pub(crate) generation_seen: u32,
    pub(crate) slots: Vec<Option<Slot>>,
}

impl Keys {
    /// New keys of the store with this id: no slot, and the domain 0.
    ///
    /// # Errors
    /// Those of the source of chance.
    pub fn create(id: [u8; 16], random: &dyn Random) -> Result<Keys> {
        let first = Domain {
            number: 0,
            name: String::new(),
            key: Secret::drawn(random)?,
            generation: 0,
            older: None,
            limits: [0; 2],
        };
        Ok(Keys {
            id,
            sequence: 0,
            root: Secret::drawn(random)?,
            store: Secret::drawn(random)?,
            domain_root: Secret::drawn(random)?,
            domains: vec![first],
            next_domain: 1,
            generation_seen: 0,
            slots: vec![None; SLOTS_MAX],
        })
    }

    /// The id of the store.
    #[must_use]
    pub fn id(&self) -> &[u8; 16] {
        &self.id
    }

    /// The number of the key area that has them; each written one has the next.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// The root key once more: whoever keeps it opens later key areas of the store by it, until it is
    /// rotated.
    #[must_use]
    pub fn root(&self) -> Secret {
        self.root.again()
    }

    /// The store's working key for one use.
    #[must_use]
    pub fn store_key(&self, purpose: Use) -> Secret {
        self.store.derive(purpose)
    }

    /// A domain's key, from which its working keys are derived; `None` when the domain was erased.
    #[must_use]
    pub fn domain(&self, number: u32) -> Option<&Secret> {
        self.domains.iter().find(|domain| domain.number == number).map(|domain| &domain.key)
    }

    /// The key of what was written in a domain before its key was changed last; `None` when there is none, or
    /// none any more.
    #[must_use]
    pub fn older(&self, number: u32) -> Option<&Secret> {
        let domain = self.domains.iter().find(|domain| domain.number == number)?;
        domain.older.as_ref()
    }

    /// How often a domain's key was changed; `None` when there is no such domain.
    #[must_use]
    pub fn generation(&self, number: u32) -> Option<u32> {
        let domain = self.domains.iter().find(|domain| domain.number == number)?;
        Some(domain.generation)
    }

    /// All domains.
    #[must_use]
    pub fn domains(&self) -> &[Domain] {
        &self.domains
    }

    /// The numbers of the domains that were erased, in their order.
    pub fn erased_domains(&self) -> impl Iterator<Item = u32> {
        (0..self.next_domain()).filter(|number| self.domain(*number).is_none())
    }

    /// Something of the store bears this number of a domain: the next one gets a higher number, also after
    /// an older copy of the key area was accepted.
    pub fn saw_domain(&mut self, number: u32) {
        self.next_domain = self.next_domain.max(number.saturating_add(1));
    }

    /// Something of the store bears this generation of a data key: those that come later have higher ones, also
    /// after an older copy of the key area was accepted. Otherwise two keys would have one generation.
    pub fn saw_generation(&mut self, generation: u32) {
        self.generation_seen = self.generation_seen.max(generation);
    }

    /// The slots that are in use, with their numbers.
    pub fn slots(&self) -> impl Iterator<Item = (usize, &Slot)> {
        self.slots.iter().enumerate().filter_map(|(number, slot)| Some((number, slot.as_ref()?)))
    }

    /// The number of the next domain. The number of one that was erased does not come again.
    #[must_use]
    pub fn next_domain(&self) -> u32 {
        let last = self.domains.iter().map(|domain| domain.number).max();
        self.next_domain.max(last.map_or(0, |last| last.saturating_add(1)))
    }

    /// Other metadata of the store bear this number of a key area: the next one has a higher number,
    /// also after an older copy was accepted. Otherwise two key areas would have one number.
    pub fn saw(&mut self, number: u64) {
        self.sequence = self.sequence.max(number);
    }

    /// Adds a slot; returns its number. `made` is in seconds since 1970, and `memory_bytes` is this
    /// machine's memory.
    ///
    /// # Errors
    /// `NoSpace`: all slots are in use. `InvalidInput`: the name does not fit, the passphrase is
    /// empty. `Memory`: `argon` asks for too much.
    pub fn add_slot(
        &mut self,
        (kind, name): (SlotKind, &str),
        secret: &SlotSecret,
        argon: Argon,
        (made, memory_bytes): (u64, u64),
        random: &dyn Random,
    ) -> Result<usize> {
        let free = self.slots.iter().position(Option::is_none);
        let number = free.ok_or_else(|| {
            Error::new(Kind::NoSpace, format!("all {SLOTS_MAX} slots are in use: remove one"))
        })?;
        let making = Making { kind, name, argon, made, memory_bytes };
        self.slots[number] =
            Some(Slot::new((&self.id, number), making, secret, &self.root, random)?);
        Ok(number)
    }

    /// Removes a slot. Whoever knows its secret and has an older copy of the key area still opens the
    /// store by that copy.
    ///
    /// # Errors
    /// `NotFound`: it is not in use. `InvalidInput`: it is the last one.
    pub fn remove_slot(&mut self, number: usize) -> Result<()> {
        if self.slots.get(number).is_none_or(Option::is_none) {
            return Err(Error::new(Kind::NotFound, format!("there is no slot {number}")));
        }
        if self.slots().count() == 1 {
            let why = "this is the last slot: without it nobody could open the store";
            return Err(Error::new(Kind::InvalidInput, why));
        }
        self.slots[number] = None;
        Ok(())
    }

    /// The number of the slot that a secret opens; `None` when it opens none.
    ///
    /// # Errors
    /// Those of opening a slot.
    pub fn slot_of(&self, secret: &SlotSecret, memory_bytes: u64) -> Result<Option<usize>> {
        for (number, slot) in self.slots() {
            if slot.root((&self.id, number), secret, memory_bytes)?.is_some() {
                return Ok(Some(number));
            }
        }
        Ok(None)
    }

    /// A new root key, which the slots whose secrets are given open from now on, and a new key that wraps
    /// domains: whoever had the keys before unwraps none that comes later. The other slots are dropped. Data
    /// stays sealed as it is.
    ///
    /// # Errors
    /// `NotFound`, `Denied`: a slot is not in use, or its secret is another one. `InvalidInput`: none
    /// is given.
    pub fn rotate(
        &mut self,
        kept: &[(usize, SlotSecret)],
        memory_bytes: u64,
        random: &dyn Random,
    ) -> Result<()> {
        if kept.is_empty() {
            return Err(Error::new(Kind::InvalidInput, "no slot would be left"));
        }
        let root = Secret::drawn(random)?;
        let mut slots = vec![None; SLOTS_MAX];
        for (number, secret) in kept {
            let slot = self.slots.get(*number).and_then(Option::as_ref);
            let slot = slot
                .ok_or_else(|| Error::new(Kind::NotFound, format!("there is no slot {number}")))?;
            if slot.root((&self.id, *number), secret, memory_bytes)?.is_none() {
                let why = format!("this does not open slot {number}");
                return Err(Error::new(Kind::Denied, why));
            }
            let making = Making {
                kind: slot.kind(),
                name: slot.name(),
                argon: slot.argon().unwrap_or(Argon::LEAST),
                made: slot.made(),
                memory_bytes,
            };
            slots[*number] = Some(Slot::new((&self.id, *number), making, secret, &root, random)?);
        }
        // Another one than before, also where chance repeats itself.
        let of = [&self.sequence.to_le_bytes()[..], b"rotated"].concat();
        self.domain_root = Secret::drawn(random)?.derive_of(Use::DOMAIN, &of);
        (self.root, self.slots) = (root, slots);
        Ok(())
    }

    /// Adds a domain with a new key; returns its number.
    ///
    /// # Errors
    /// `NoSpace`: there are 64. `Exists`, `InvalidInput`: the name is taken or does not fit.
    pub fn add_domain(&mut self, name: &str, random: &dyn Random) -> Result<u32> {
        valid_domain_name(name)?;
        if self.domains.iter().any(|domain| domain.name == name) {
            return Err(Error::new(Kind::Exists, format!("there is a domain '{name}' already")));
        }
        if self.domains.len() == DOMAINS_MAX {
            return Err(Error::new(Kind::NoSpace, format!("there are {DOMAINS_MAX} domains")));
        }
        let number = self.next_domain();
        let next = number.checked_add(1);
        self.next_domain =
            next.ok_or_else(|| Error::new(Kind::NoSpace, "all numbers of domains were used"))?;
        // Two machines that repeat their chance make two domains all the same.
        let key = Secret::drawn(random)?.derive_of(Use::DOMAIN, &number.to_le_bytes());
        self.domains.push(Domain {
            number,
            name: name.to_owned(),
            key,
            generation: 0,
            older: None,
            limits: [0; 2],
        });
        Ok(number)
    }

    /// Drops a domain's key, and renews the key that wraps the others: once both copies of the key
    /// area are written again, nobody opens the domain's data by this store.
    ///
    /// # Errors
    /// `NotFound`; those of the source of chance.
    pub fn erase_domain(&mut self, number: u32, random: &dyn Random) -> Result<()> {
        let found = self.domains.iter().position(|domain| domain.number == number);
        let at = found.ok_or_else(|| {
            Error::new(Kind::NotFound, format!("there is no domain with number {number}"))
        })?;
        // Another one than before, also where chance repeats itself.
        self.domain_root = Secret::drawn(random)?.derive_of(Use::DOMAIN, &number.to_le_bytes());
        self.domains.remove(at);
        Ok(())
    }

    /// Gives a domain a new key beside the one that it has, which stays for what was written by it, and renews
    /// the key that wraps domains: whoever had that one does not unwrap the new key. Gives the new generation, which is
    /// the next one, or higher after [`saw_generation`](Self::saw_generation).
    ///
    /// # Errors
    /// `NotFound`: there is no such domain. `InvalidInput`: it has two keys already. `NoSpace`: its key was
    /// changed too often. Those of the source of chance.
    pub fn rotate_domain(&mut self, number: u32, random: &dyn Random) -> Result<u32> {
        let (drawn, drawn_root) = (Secret::drawn(random)?, Secret::drawn(random)?);
        let seen = self.generation_seen;
        let domain = self.of_number(number)?;
        if domain.older.is_some() {
            let why = format!("domain {number} has two data keys already");
            return Err(Error::new(Kind::InvalidInput, why));
        }
        let before = domain.generation.max(seen);
        if before >= GENERATION_MAX {
            let why = format!("the data key of domain {number} was changed too often");
            return Err(Error::new(Kind::NoSpace, why));
        }
        domain.generation = before + 1;
        // Another one than all before, also where chance repeats itself.
        let key = drawn.derive_of(Use::DOMAIN, &of_generation(domain, b"key"));
        domain.older = Some(std::mem::replace(&mut domain.key, key));
        let root = drawn_root.derive_of(Use::DOMAIN, &of_generation(domain, b"root of both"));
        let generation = domain.generation;
        self.domain_root = root;
        Ok(generation)
    }

    /// Drops the key of what was written in a domain before its key was changed, and renews the key that wraps
    /// domains: once both copies of the key area are written again, nobody opens what is under the older key
    /// by this store.
    ///
    /// # Errors
    /// `NotFound`: there is no such domain, or it has one key; those of the source of chance.
    pub fn drop_older(&mut self, number: u32, random: &dyn Random) -> Result<()> {
        let drawn = Secret::drawn(random)?;
        let domain = self.of_number(number)?;
        if domain.older.take().is_none() {
            return Err(Error::new(Kind::NotFound, format!("domain {number} has one data key")));
        }
        let root = drawn.derive_of(Use::DOMAIN, &of_generation(domain, b"root"));
        self.domain_root = root;
        Ok(())
    }

    fn of_number(&mut self, number: u32) -> Result<&mut Domain> {
        let found = self.domains.iter_mut().find(|domain| domain.number == number);
        found.ok_or_else(|| {
            Error::new(Kind::NotFound, format!("there is no domain with number {number}"))
        })
    }

    /// The name of a domain's wrap, which proves the generation, too.
    fn domain_name<'a>(id: &'a [u8; 16], number: u32, generation: &'a [u8; 4]) -> Name<'a> {
        // Key areas from before the first change have none.
        let more = if generation == &[0; 4] { &[][..] } else { generation };
        Name { id, what: Wrapped::Domain, number, more }
    }

    /// Each domain, with its number, its generation, and what is wrapped.
    pub(crate) fn wrapped_domains(
        &self,
        random: &dyn Random,
    ) -> Result<Vec<((u32, u32), Vec<u8>)>> {
        let wrapped = |domain: &Domain| {
            let generation = domain.generation.to_le_bytes();
            let name = Keys::domain_name(&self.id, domain.number, &generation);
            let wrapped = wrap(&self.domain_root, name, &domain.encode(), random)?;
            Ok(((domain.number, domain.generation), wrapped))
        };
        self.domains.iter().map(wrapped).collect()
    }

    /// The domain that was wrapped so.
    pub(crate) fn unwrap_domain(
        id: &[u8; 16],
        (number, generation): (u32, u32),
        root: &Secret,
        wrapped: &[u8],
    ) -> Result<Option<Domain>> {
        let name = (number, generation.to_le_bytes());
        let bytes = unwrap(root, Keys::domain_name(id, name.0, &name.1), wrapped)?;
        Ok(bytes.and_then(|bytes| Domain::decode((number, generation), &bytes)))
    }
}

/// The salt that tells a key which is made for a generation of a domain from all others.
fn of_generation(domain: &Domain, what: &[u8]) -> Vec<u8> {
    [&domain.number.to_le_bytes(), &domain.generation.to_le_bytes(), what].concat()
}

impl Drop for Keys {
    fn drop(&mut self) {
        self.domains.iter_mut().for_each(|domain| domain.name.zeroize());
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Mutex;

    use onefold_testbed::Rng;

    use super::*;

    /// Chance from a seed.
    pub(crate) struct Seeded(Mutex<Rng>);

    impl Seeded {
        pub(crate) fn new(seed: u64) -> Seeded {
            Seeded(Mutex::new(Rng::new(seed)))
        }
    }

    impl Random for Seeded {
        fn fill(&self, into: &mut [u8]) -> Result<()> {
            let mut rng = self.0.lock().unwrap();
            into.iter_mut().for_each(|byte| *byte = rng.next() as u8);
            Ok(())
        }
    }

    pub(crate) fn secret(byte: u8) -> SlotSecret {
        SlotSecret::Key(Secret::take(&mut [byte; 32]))
    }

    /// Keys with a slot for a file, whose secret is 32 times this byte.
    pub(crate) fn keys(byte: u8) -> Keys {
        let random = Seeded::new(u64::from(byte));
        let mut keys = Keys::create([byte; 16], &random).unwrap();
        add(&mut keys, byte);
        keys
    }

    pub(crate) fn add(keys: &mut Keys, byte: u8) -> usize {
        let random = Seeded::new(u64::from(byte) + 1000);
        let as_file = (SlotKind::File, "a file");
        keys.add_slot(as_file, &secret(byte), Argon::LEAST, (5, 8 << 30), &random).unwrap()
    }

    #[test]
    fn rule_24_slots_come_and_go_but_for_the_last_one() {
        let mut keys = keys(1);
        assert_eq!(keys.remove_slot(0).unwrap_err().kind(), Kind::InvalidInput);
        for byte in 2..=16 {
            assert_eq!(add(&mut keys, byte), usize::from(byte) - 1);
        }
        let full =
            keys.add_slot((SlotKind::File, ""), &secret(17), Argon::LEAST, (0, 0), &Seeded::new(1));
        assert_eq!(full.unwrap_err().kind(), Kind::NoSpace);
        keys.remove_slot(3).unwrap();
        assert_eq!(keys.remove_slot(3).unwrap_err().kind(), Kind::NotFound);
        assert_eq!(keys.slots().count(), 15);
        assert_eq!(add(&mut keys, 40), 3);
    }

    #[test]
    fn rule_24_rotation_keeps_the_slots_whose_secrets_are_given() {
        let mut keys = keys(1);
        add(&mut keys, 2);
        add(&mut keys, 3);
        let before = keys.root();
        let wrong = keys.rotate(&[(1, secret(9))], 0, &Seeded::new(5));
        assert_eq!(wrong.unwrap_err().kind(), Kind::Denied);
        assert!(keys.rotate(&[], 0, &Seeded::new(5)).is_err());
        assert!(keys.rotate(&[(7, secret(2))], 0, &Seeded::new(5)).is_err());
        assert!(keys.root().equals(before.expose()), "a failure changes nothing");
        keys.rotate(&[(1, secret(2))], 0, &Seeded::new(5)).unwrap();
        assert!(!keys.root().equals(before.expose()));
        let slots: Vec<usize> = keys.slots().map(|(number, _)| number).collect();
        assert_eq!(slots, [1]);
    }

    #[test]
    fn rule_24_a_domain_has_at_most_two_data_keys() {
        let (mut keys, random) = (keys(1), Seeded::new(8));
        let first = *keys.domain(0).unwrap().expose();
        assert!(keys.older(0).is_none() && keys.generation(0) == Some(0));
        assert_eq!(keys.drop_older(0, &random).unwrap_err().kind(), Kind::NotFound);
        assert_eq!(keys.rotate_domain(0, &random).unwrap(), 1);
        assert!(keys.older(0).unwrap().equals(&first) && !keys.domain(0).unwrap().equals(&first));
        assert_eq!(keys.rotate_domain(0, &random).unwrap_err().kind(), Kind::InvalidInput);
        assert_eq!(keys.rotate_domain(7, &random).unwrap_err().kind(), Kind::NotFound);
        let (second, root) = (*keys.domain(0).unwrap().expose(), keys.domain_root.again());
        keys.drop_older(0, &random).unwrap();
        assert!(keys.older(0).is_none() && keys.domain(0).unwrap().equals(&second));
        assert!(!keys.domain_root.equals(root.expose()), "what wraps domains is another key");
        assert_eq!(keys.rotate_domain(0, &random).unwrap(), 2);
    }

    #[test]
    fn rule_24_chance_that_repeats_itself_gives_no_data_key_twice() {
        let mut keys = keys(1);
        let mut seen = vec![*keys.domain(0).unwrap().expose()];
        for _ in 0..3 {
            keys.rotate_domain(0, &Seeded::new(8)).unwrap();
            seen.push(*keys.domain(0).unwrap().expose());
            seen.push(*keys.domain_root.expose());
            keys.drop_older(0, &Seeded::new(8)).unwrap();
            seen.push(*keys.domain_root.expose());
        }
        let all: std::collections::BTreeSet<_> = seen.iter().collect();
        assert_eq!(all.len(), seen.len());
    }

    /// True when a key unwraps a domain, as the key area has it.
    fn unwraps(keys: &Keys, root: &Secret) -> bool {
        let wrapped = keys.wrapped_domains(&Seeded::new(9)).unwrap();
        wrapped.iter().any(|(name, wrapped)| {
            Keys::unwrap_domain(&keys.id, *name, root, wrapped).unwrap().is_some()
        })
    }

    #[test]
    fn rule_24_who_had_the_keys_before_unwraps_no_domain_that_comes_later() {
        let (mut keys, random) = (keys(1), Seeded::new(8));
        let before = keys.domain_root.again();
        assert!(unwraps(&keys, &before));
        keys.rotate(&[(0, secret(1))], 0, &random).unwrap();
        assert!(!unwraps(&keys, &before), "after the root key was renewed");
        keys.add_domain("later", &random).unwrap();
        let rotated = keys.domain_root.again();
        keys.rotate_domain(0, &random).unwrap();
        assert!(!unwraps(&keys, &before), "beside the older key");
        assert!(!unwraps(&keys, &rotated), "the other change renews it, too");
        keys.drop_older(0, &random).unwrap();
        assert!(!unwraps(&keys, &before));
    }

    #[test]
    fn rule_24_a_data_key_alone_renews_what_wraps_it() {
        let (mut keys, random) = (keys(1), Seeded::new(8));
        let before = keys.domain_root.again();
        keys.rotate_domain(0, &random).unwrap();
        assert!(!unwraps(&keys, &before) && unwraps(&keys, &keys.domain_root));
    }

    #[test]
    fn rule_25_domains_have_keys_of_their_own() {
        let mut keys = keys(1);
        let random = Seeded::new(8);
        assert_eq!(keys.add_domain("tenant", &random).unwrap(), 1);
        assert_eq!(keys.add_domain("tenant", &random).unwrap_err().kind(), Kind::Exists);
        assert!(keys.add_domain("", &random).is_err());
        let first = *keys.domain(0).unwrap().expose();
        assert!(!keys.domain(1).unwrap().equals(&first));
        keys.erase_domain(0, &random).unwrap();
        assert!(keys.domain(0).is_none());
        assert_eq!(keys.erase_domain(0, &random).unwrap_err().kind(), Kind::NotFound);
        assert_eq!(keys.add_domain("later", &random).unwrap(), 2, "no number comes again");
        for number in 3..=64 {
            keys.add_domain(&format!("tenant {number}"), &random).unwrap();
        }
        assert_eq!(keys.add_domain("one more", &random).unwrap_err().kind(), Kind::NoSpace);
    }
}
