//! Roles: keys that open a part of a store. Who opens a slot *manages* a store. A *put* key adds to it and
//! can't open content, and a *read* key opens content and adds nothing.
//!
//! All three share a key of metadata, and one of the first domain, which are derived from those that manage
//! has: nobody comes from the derived ones to the others. What only manage may do is done by keys that are
//! derived from the store key itself.

use onefold_core::{Error, Kind, Result};
use zeroize::{Zeroize, Zeroizing};

use crate::{
    Secret,
    keys::Keys,
    public::{AgreementKey, PUBLIC_BYTES, SigningKey},
    random::Random,
    uses::Use,
};

/// Bytes of the name of a role key at most.
pub(crate) const ROLE_NAME_MAX: usize = 64;

/// What the text of a role key begins with.
const WORDS: &str = "onefold-role-key-1 ";

/// The bytes that are hashed before those of a role key, for the sum by which a slip is noticed.
const SUM: &[u8] = b"onefold 2026-11-29 sum of a role key, 1";

const SUM_BYTES: usize = 8;

/// The keys of a store with roles that all roles have.
pub struct Shared {
    /// The id of the store.
    pub id: [u8; 16],
    /// In place of the store key.
    pub store: Secret,
    /// In place of the key of the first domain.
    pub domain: Secret,
    /// The public key that verifies what manage signed.
    pub managing: [u8; PUBLIC_BYTES],
    /// The public key for whose owner all writers seal content.
    pub reading: [u8; PUBLIC_BYTES],
}

impl Shared {
    fn again(&self) -> Shared {
        Shared { store: self.store.again(), domain: self.domain.again(), ..*self }
    }
}

/// The secret of one role key alone.
pub enum RoleSecret {
    /// The seed of its own signing key, and the number under which the store knows its public half.
    Put(u32, Secret),
    /// The secret half of the key that content is sealed for.
    Read(Secret),
}

/// A role key, as it lies in a file of its own.
pub struct RoleKey {
    /// The name that manage gave it, for people. The store knows that of a put key, and none of a read key.
    pub name: String,
    /// The keys that all roles have.
    pub shared: Shared,
    /// The secret of this key alone.
    pub secret: RoleSecret,
}

impl Keys {
    /// The keys that all roles of this store have.
    ///
    /// # Errors
    /// `Denied`: the first domain was erased. `Io`: the library of ciphers refuses.
    pub fn shared(&self) -> Result<Shared> {
        let erased = || Error::new(Kind::Denied, "the first domain of the store was erased");
        Ok(Shared {
            id: self.id,
            store: self.store_key(Use::ROLES_STORE),
            domain: self.domain(0).ok_or_else(erased)?.derive(Use::ROLES_DOMAIN),
            managing: self.managing()?.public(),
            reading: self.reading()?.public()?,
        })
    }

    /// The key that signs what manage does.
    ///
    /// # Errors
    /// `Io`: the library of ciphers refuses.
    pub fn managing(&self) -> Result<SigningKey> {
        SigningKey::new(&self.store_key(Use::ROLES_MANAGING))
    }

    /// The key that content is sealed for.
    ///
    /// # Errors
    /// `Io`: the library of ciphers refuses.
    pub fn reading(&self) -> Result<AgreementKey> {
        AgreementKey::new(&self.store_key(Use::ROLES_READING))
    }

    /// A read key.
    ///
    /// # Errors
    /// `InvalidInput` for the name; as [`shared`](Self::shared).
    pub fn read_key(&self, name: &str) -> Result<RoleKey> {
        valid_role_name(name)?;
        let secret = RoleSecret::Read(self.store_key(Use::ROLES_READING));
        Ok(RoleKey { name: name.to_owned(), shared: self.shared()?, secret })
    }

    /// A new put key, which the store will know by this number; with the public half of its signing key.
    ///
    /// # Errors
    /// `InvalidInput` for the name; those of the source of chance; as [`shared`](Self::shared).
    pub fn put_key(
        &self,
        (number, name): (u32, &str),
        random: &dyn Random,
    ) -> Result<(RoleKey, [u8; PUBLIC_BYTES])> {
        valid_role_name(name)?;
        // Two machines that repeat their chance make two keys all the same.
        let seed = Secret::drawn(random)?.derive_of(Use::ROLES_PUTTING, &number.to_le_bytes());
        let public = SigningKey::new(&seed)?.public();
        let secret = RoleSecret::Put(number, seed);
        Ok((RoleKey { name: name.to_owned(), shared: self.shared()?, secret }, public))
    }
}

/// A name that a role key can have.
///
/// # Errors
/// `InvalidInput`.
pub fn valid_role_name(name: &str) -> Result<()> {
    if name.is_empty() || name.len() > ROLE_NAME_MAX || name.chars().any(char::is_control) {
        let why = format!("a key's name has 1 to {ROLE_NAME_MAX} bytes and no control characters");
        return Err(Error::new(Kind::InvalidInput, why));
    }
    Ok(())
}

impl RoleKey {
    /// The same key once more, where two owners need it.
    #[must_use]
    pub fn again(&self) -> RoleKey {
        RoleKey {
            name: self.name.clone(),
            shared: self.shared.again(),
            secret: match &self.secret {
                RoleSecret::Put(number, seed) => RoleSecret::Put(*number, seed.again()),
                RoleSecret::Read(secret) => RoleSecret::Read(secret.again()),
            },
        }
    }

    /// The content of its file: a line.
    #[must_use]
    pub fn text(&self) -> Zeroizing<String> {
        let (role, number, secret) = match &self.secret {
            RoleSecret::Put(number, seed) => (1, *number, seed),
            RoleSecret::Read(secret) => (2, 0, secret),
        };
        let mut bytes = Zeroizing::new(Vec::with_capacity(FIXED + self.name.len() + SUM_BYTES));
        bytes.push(role);
        bytes.extend_from_slice(&number.to_le_bytes());
        bytes.extend_from_slice(&self.shared.id);
        let Shared { store, domain, managing, reading, .. } = &self.shared;
        for part in [store.expose(), domain.expose(), managing, reading, secret.expose()] {
            bytes.extend_from_slice(part);
        }
        bytes.extend_from_slice(self.name.as_bytes());
        let sum = sum(&bytes);
        bytes.extend_from_slice(&sum);
        let mut text = Zeroizing::new(String::with_capacity(WORDS.len() + 2 * bytes.len() + 1));
        text.push_str(WORDS);
        for byte in bytes.iter() {
            for digit in [byte >> 4, byte & 15] {
                text.push(char::from_digit(u32::from(digit), 16).unwrap_or('0'));
            }
        }
        text.push('\n');
        text
    }

    /// The role key that a file has; `None` of a file that has something else.
    ///
    /// # Errors
    /// `InvalidInput`: a role key that was changed or cut off.
    pub fn from_text(content: &[u8]) -> Result<Option<RoleKey>> {
        let Some(digits) = content.strip_prefix(WORDS.as_bytes()) else { return Ok(None) };
        let damaged = || Error::new(Kind::InvalidInput, "the role key was changed or cut off");
        let digits = digits.trim_ascii_end();
        let value = |digit: u8| (digit as char).to_digit(16).map(|value| value as u8);
        let (pairs, rest) = digits.as_chunks::<2>();
        let byte = |pair: &[u8; 2]| Some(value(pair[0])? << 4 | value(pair[1])?);
        // All of its room at once: a vector that grows leaves copies of secrets behind.
        let mut bytes = Zeroizing::new(Vec::with_capacity(pairs.len()));
        for pair in pairs {
            bytes.push(byte(pair).ok_or_else(damaged)?);
        }
        if !rest.is_empty() {
            return Err(damaged());
        }
        let (all, told) = bytes.split_last_chunk::<SUM_BYTES>().ok_or_else(damaged)?;
        let (fixed, name) = all.split_first_chunk::<FIXED>().ok_or_else(damaged)?;
        if sum(all) != *told {
            return Err(damaged());
        }
        let name = std::str::from_utf8(name).map_err(|_| damaged())?;
        valid_role_name(name)?;
        let part = |n: usize, into: &mut [u8; 32]| {
            into.copy_from_slice(&fixed[21 + n * 32..21 + (n + 1) * 32]);
        };
        let secret = |n: usize| {
            let mut bytes = Zeroizing::new([0_u8; 32]);
            part(n, &mut bytes);
            Secret::take(&mut bytes)
        };
        let mut id = [0; 16];
        id.copy_from_slice(&fixed[5..21]);
        let number = u32::from_le_bytes([fixed[1], fixed[2], fixed[3], fixed[4]]);
        let own = match (fixed[0], number) {
            (1, 1..) => RoleSecret::Put(number, secret(4)),
            (2, 0) => RoleSecret::Read(secret(4)),
            _ => return Err(damaged()),
        };
        let [mut managing, mut reading] = [[0; PUBLIC_BYTES]; 2];
        part(2, &mut managing);
        part(3, &mut reading);
        let shared = Shared { id, store: secret(0), domain: secret(1), managing, reading };
        Ok(Some(RoleKey { name: name.to_owned(), shared, secret: own }))
    }
}

/// Bytes of a role key before its name.
const FIXED: usize = 1 + 4 + 16 + 5 * 32;

fn sum(bytes: &[u8]) -> [u8; SUM_BYTES] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(SUM).update(bytes);
    let mut sum = [0; SUM_BYTES];
    sum.copy_from_slice(&hasher.finalize().as_bytes()[..SUM_BYTES]);
    hasher.zeroize();
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{is_signed, keys::tests::Seeded};

    fn keys() -> Keys {
        Keys::create([1; 16], &Seeded::new(7)).unwrap()
    }

    #[test]
    fn rule_45_a_role_key_is_read_as_it_was_written() {
        let keys = keys();
        let (put, public) = keys.put_key((3, "web1"), &Seeded::new(8)).unwrap();
        let read = keys.read_key("the vault").unwrap();
        for key in [&put, &read] {
            let text = key.text();
            assert!(text.len() < 512, "{}", text.len());
            let again = RoleKey::from_text(text.as_bytes()).unwrap().unwrap();
            assert_eq!(*again.text(), *text);
            assert_eq!(again.name, key.name);
            for at in WORDS.len()..text.len() - 1 {
                let mut turned = text.as_bytes().to_vec();
                turned[at] = if turned[at] == b'0' { b'1' } else { b'0' };
                assert!(RoleKey::from_text(&turned).is_err(), "digit {at}");
                assert!(RoleKey::from_text(&text.as_bytes()[..at]).is_err(), "{at} digits");
            }
        }
        let RoleSecret::Put(3, seed) = &put.secret else { panic!("another role") };
        let signing = SigningKey::new(seed).unwrap();
        assert_eq!(signing.public(), public);
        let signature = signing.sign(b"a frame").unwrap();
        assert!(is_signed(&public, b"a frame", &signature));
        assert!(!is_signed(&put.shared.managing, b"a frame", &signature));
        assert!(RoleKey::from_text(&[b'0'; 64]).unwrap().is_none());
    }

    #[test]
    fn rule_45_what_roles_share_gives_nobody_what_manage_has() {
        let keys = keys();
        let shared = keys.shared().unwrap();
        for own in [Use::ARCHIVE, Use::ROLES_MANAGING, Use::ROLES_READING, Use::ROLES_STORE] {
            assert!(!shared.store.derive(own).equals(keys.store_key(own).expose()));
        }
        assert!(!shared.store.equals(keys.store.expose()));
        assert!(!shared.domain.equals(keys.domain(0).unwrap().expose()));
        let RoleSecret::Read(reading) = keys.read_key("r").unwrap().secret else { panic!() };
        assert_eq!(AgreementKey::new(&reading).unwrap().public().unwrap(), shared.reading);
    }
}
