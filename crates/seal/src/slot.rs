//! Slots: ways to the root key, each with a secret of its own.

use argon2::{Algorithm, Argon2, Block, Params, Version};
use onefold_core::{Error, Kind, Result};
use zeroize::{Zeroize, Zeroizing};

use crate::{
    Secret,
    random::{Random, drawn},
    uses::Use,
    wrap::{Name, WRAPPED_BYTES, Wrapped, unwrap_key, wrap},
};

/// Bytes of a slot.
pub(crate) const SLOT_BYTES: usize = 160;

/// Bytes of a slot before its wrapped key: kind, parameters, time, salt and name.
const OPEN_BYTES: usize = SLOT_BYTES - WRAPPED_BYTES;

/// Bytes of a slot's name at most.
pub const NAME_BYTES_MAX: usize = 47;

/// The kind of a slot's secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotKind {
    /// A person knows it.
    Passphrase,
    /// It is in a file.
    File,
    /// A program gives it.
    Command,
    /// The service manager gives it.
    Credential,
    /// It is on paper.
    Recovery,
}

impl SlotKind {
    /// All kinds, with the number that stands for each on disk, and its name.
    pub const ALL: [(SlotKind, u8, &'static str); 5] = [
        (SlotKind::Passphrase, 1, "passphrase"),
        (SlotKind::File, 2, "file"),
        (SlotKind::Command, 3, "command"),
        (SlotKind::Credential, 4, "credential"),
        (SlotKind::Recovery, 5, "recovery"),
    ];

    fn code(self) -> u8 {
        SlotKind::ALL.iter().find(|row| row.0 == self).map_or(0, |row| row.1)
    }

    /// What people call it.
    #[must_use]
    pub fn name(self) -> &'static str {
        SlotKind::ALL.iter().find(|row| row.0 == self).map_or("", |row| row.2)
    }
}

/// KiB of memory times passes of the usual choice on a large machine, about a second of work.
pub(crate) const WORK_KIB_MAX: u64 = 4 << 20;

/// How slow a passphrase is made (Argon2id, RFC 9106).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Argon {
    /// KiB of memory.
    pub memory_kib: u32,
    /// Passes over it.
    pub passes: u32,
    /// Lanes.
    pub lanes: u32,
}

impl Argon {
    /// The weakest that is taken: the second choice of RFC 9106.
    pub const LEAST: Argon = Argon { memory_kib: 64 << 10, passes: 3, lanes: 4 };

    /// Memory, passes and lanes beyond which a store is refused.
    const MOST: Argon = Argon { memory_kib: 4 << 20, passes: 16, lanes: 64 };

    /// The work that it asks for: KiB of memory times passes.
    pub(crate) fn work_kib(self) -> u64 {
        u64::from(self.memory_kib) * u64::from(self.passes)
    }

    /// The usual choice on a machine with so many bytes of memory: 1 GiB, or a quarter of it.
    #[must_use]
    pub fn usual(memory_bytes: u64) -> Argon {
        let quarter = u32::try_from((memory_bytes / 4) >> 10).unwrap_or(u32::MAX);
        let memory_kib = quarter.clamp(Argon::LEAST.memory_kib, 1 << 20);
        Argon { memory_kib, passes: 4, lanes: 4 }
    }

    /// Errors when it is weaker than [`LEAST`](Self::LEAST), or asks a machine with so many bytes of
    /// memory for more than half of them, or for more than 4 GiB. No memory was taken then.
    fn check(self, memory_bytes: u64) -> Result<()> {
        let (least, most) = (Argon::LEAST, Argon::MOST);
        if self.memory_kib < least.memory_kib
            || self.passes < least.passes
            || !(1..=most.lanes).contains(&self.lanes)
        {
            return Err(Error::new(
                Kind::Corrupt,
                "a passphrase's slot asks for less work than any slot does",
            ));
        }
        let asked = u64::from(self.memory_kib) << 10;
        if self.memory_kib > most.memory_kib
            || self.passes > most.passes
            || self.work_kib() > 2 * WORK_KIB_MAX
        {
            return Err(Error::new(
                Kind::Corrupt,
                "a passphrase's slot asks for more work than any slot does",
            ));
        }
        if asked > memory_bytes / 2 {
            return Err(Error::new(
                Kind::Memory,
                format!(
                    "the slot of the passphrase needs {} MiB of memory, which is more than half of this machine's; \
                     use another slot, or a machine with more",
                    asked >> 20
                ),
            ));
        }
        Ok(())
    }

    fn hash(self, passphrase: &[u8], salt: &[u8; 32], memory_bytes: u64) -> Result<Secret> {
        self.check(memory_bytes)?;
        let failed = |e: argon2::Error| Error::new(Kind::InvalidInput, format!("Argon2id: {e}"));
        let params = Params::new(self.memory_kib, self.passes, self.lanes, Some(32));
        let argon = Argon2::new(Algorithm::Argon2id, Version::V0x13, params.map_err(failed)?);
        let mut blocks = Vec::new();
        blocks.try_reserve_exact(argon.params().block_count()).map_err(|_| {
            Error::new(
                Kind::Memory,
                format!(
                    "the system gives no {} MiB of memory for the passphrase",
                    self.memory_kib >> 10
                ),
            )
        })?;
        blocks.resize(argon.params().block_count(), Block::default());
        let mut key = Zeroizing::new([0; 32]);
        let hashed =
            argon.hash_password_into_with_memory(passphrase, salt, &mut *key, &mut blocks[..]);
        blocks.iter_mut().for_each(Zeroize::zeroize);
        hashed.map_err(failed)?;
        Ok(Secret::take(&mut key))
    }
}

/// What opens a slot.
///
/// ```compile_fail
/// fn wants<T: std::fmt::Debug>() {}
/// wants::<onefold_seal::SlotSecret>();
/// ```
///
/// ```compile_fail
/// fn wants<T: Clone>() {}
/// wants::<onefold_seal::SlotSecret>();
/// ```
///
/// ```compile_fail
/// fn wants<T: serde::Serialize>() {}
/// wants::<onefold_seal::SlotSecret>();
/// ```
pub enum SlotSecret {
    /// What a person knows.
    Passphrase(Zeroizing<Vec<u8>>),
    /// 32 bytes from elsewhere.
    Key(Secret),
}

/// A slot: how its secret opens the root key. Nothing in it is secret, and its name is to be read by
/// whoever has the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    kind: SlotKind,
    argon: Option<Argon>,
    made: u64,
    salt: [u8; 32],
    name: String,
    wrapped: [u8; WRAPPED_BYTES],
}

/// What a slot is made of, beside its secret.
#[derive(Clone, Copy)]
pub(crate) struct Making<'a> {
    pub(crate) kind: SlotKind,
    pub(crate) name: &'a str,
    /// How slow a passphrase is made.
    pub(crate) argon: Argon,
    /// Seconds since 1970.
    pub(crate) made: u64,
    /// Bytes of this machine's memory.
    pub(crate) memory_bytes: u64,
}

impl Slot {
    pub(crate) fn new(
        (id, number): (&[u8; 16], usize),
        making: Making<'_>,
        secret: &SlotSecret,
        root: &Secret,
        random: &dyn Random,
    ) -> Result<Slot> {
        if making.name.len() > NAME_BYTES_MAX || making.name.chars().any(char::is_control) {
            return Err(Error::new(
                Kind::InvalidInput,
                format!(
                    "a slot's name has at most {NAME_BYTES_MAX} bytes and no control characters"
                ),
            ));
        }
        let argon = matches!(secret, SlotSecret::Passphrase(_)).then_some(making.argon);
        if argon.is_some() != (making.kind == SlotKind::Passphrase) {
            return Err(Error::new(Kind::InvalidInput, "a slot's secret is of another kind"));
        }
        let mut slot = Slot {
            kind: making.kind,
            argon,
            made: making.made,
            salt: drawn(random)?,
            name: making.name.to_owned(),
            wrapped: [0; WRAPPED_BYTES],
        };
        let key = slot.key(secret, making.memory_bytes)?;
        let key = key.ok_or_else(|| Error::new(Kind::InvalidInput, "a passphrase is empty"))?;
        let open = slot.open_fields();
        let name = Name { id, what: Wrapped::Root, number: number as u32, more: &open };
        slot.wrapped.copy_from_slice(&wrap(&key, name, root.expose(), random)?);
        Ok(slot)
    }

    /// The kind of its secret.
    #[must_use]
    pub fn kind(&self) -> SlotKind {
        self.kind
    }

    /// Its name; empty when it has none.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// When it was made, in seconds since 1970.
    #[must_use]
    pub fn made(&self) -> u64 {
        self.made
    }

    /// How slow its passphrase is made.
    #[must_use]
    pub fn argon(&self) -> Option<Argon> {
        self.argon
    }

    /// True when such a secret could be this slot's: it is of the slot's kind.
    #[must_use]
    pub fn takes(&self, secret: &SlotSecret) -> bool {
        matches!(secret, SlotSecret::Passphrase(_)) == (self.kind == SlotKind::Passphrase)
    }

    /// The root key, if this is the slot's secret. A passphrase takes about a second, and the memory
    /// that the slot says, within what a machine with `memory_bytes` may give.
    ///
    /// # Errors
    /// `Corrupt`: it asks for less or more work than any slot does; `Memory`: it asks for more than
    /// half of the machine's memory.
    pub(crate) fn root(
        &self,
        (id, number): (&[u8; 16], usize),
        secret: &SlotSecret,
        memory_bytes: u64,
    ) -> Result<Option<Secret>> {
        if !self.takes(secret) {
            return Ok(None);
        }
        let Some(key) = self.key(secret, memory_bytes)? else { return Ok(None) };
        let open = self.open_fields();
        let name = Name { id, what: Wrapped::Root, number: number as u32, more: &open };
        unwrap_key(&key, name, &self.wrapped)
    }

    /// The key that wraps the root key; none of an empty passphrase.
    fn key(&self, secret: &SlotSecret, memory_bytes: u64) -> Result<Option<Secret>> {
        Ok(match (secret, self.argon) {
            (SlotSecret::Passphrase(words), _) if words.is_empty() => None,
            (SlotSecret::Passphrase(words), Some(argon)) => {
                let hashed = argon.hash(words, &self.salt, memory_bytes)?;
                Some(hashed.derive_of(Use::SLOT, &self.salt))
            }
            (SlotSecret::Key(key), None) => Some(key.derive_of(Use::SLOT, &self.salt)),
            _ => None,
        })
    }

    /// All fields but the wrapped key, which proves them.
    fn open_fields(&self) -> [u8; OPEN_BYTES] {
        let mut bytes = [0; OPEN_BYTES];
        bytes[0] = self.kind.code();
        bytes[1] = self.name.len() as u8;
        if let Some(argon) = self.argon {
            bytes[2..4].copy_from_slice(&(argon.lanes as u16).to_le_bytes());
            bytes[4..8].copy_from_slice(&argon.passes.to_le_bytes());
            bytes[8..12].copy_from_slice(&argon.memory_kib.to_le_bytes());
        }
        bytes[12..20].copy_from_slice(&self.made.to_le_bytes());
        bytes[20..52].copy_from_slice(&self.salt);
        bytes[52..52 + self.name.len()].copy_from_slice(self.name.as_bytes());
        bytes
    }

    pub(crate) fn encode(&self) -> [u8; SLOT_BYTES] {
        let mut bytes = [0; SLOT_BYTES];
        bytes[..OPEN_BYTES].copy_from_slice(&self.open_fields());
        bytes[OPEN_BYTES..].copy_from_slice(&self.wrapped);
        bytes
    }

    /// The slot in these bytes; `None` where there is none.
    pub(crate) fn decode(bytes: &[u8; SLOT_BYTES]) -> Result<Option<Slot>> {
        let damaged = || Error::new(Kind::Corrupt, "a slot of the key area can't be true");
        if bytes[0] == 0 {
            return if bytes.iter().all(|&byte| byte == 0) { Ok(None) } else { Err(damaged()) };
        }
        let kind = SlotKind::ALL.iter().find(|row| row.1 == bytes[0]).ok_or_else(damaged)?.0;
        let number = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let argon = (kind == SlotKind::Passphrase).then(|| Argon {
            lanes: u32::from(u16::from_le_bytes([bytes[2], bytes[3]])),
            passes: number(4),
            memory_kib: number(8),
        });
        let length = usize::from(bytes[1]);
        let name = bytes.get(52..52 + length).filter(|_| length <= NAME_BYTES_MAX);
        let name = name.and_then(|name| std::str::from_utf8(name).ok());
        let name = name.filter(|name| !name.chars().any(char::is_control)).ok_or_else(damaged)?;
        let (mut salt, mut wrapped) = ([0; 32], [0; WRAPPED_BYTES]);
        salt.copy_from_slice(&bytes[20..52]);
        wrapped.copy_from_slice(&bytes[OPEN_BYTES..]);
        let made = u64::from(number(12)) | u64::from(number(16)) << 32;
        let slot = Slot { kind, argon, made, salt, name: name.to_owned(), wrapped };
        // Fields that nothing reads are zero.
        if slot.encode() == *bytes { Ok(Some(slot)) } else { Err(damaged()) }
    }
}

/// The key in a key file: 32 bytes, or 64 hexadecimal digits and perhaps the end of a line.
///
/// # Errors
/// `InvalidInput`: it is neither.
pub fn key_file(content: &[u8]) -> Result<Secret> {
    let mut key = Zeroizing::new([0; 32]);
    if content.len() == key.len() {
        key.copy_from_slice(content);
        return Ok(Secret::take(&mut key));
    }
    let digits = content.strip_suffix(b"\n").unwrap_or(content);
    let digits = digits.strip_suffix(b"\r").unwrap_or(digits);
    let value = |digit: u8| (digit as char).to_digit(16).map(|value| value as u8);
    let is_whole = digits.len() == 2 * key.len()
        && key.iter_mut().zip(digits.chunks_exact(2)).all(|(byte, pair)| {
            match (value(pair[0]), value(pair[1])) {
                (Some(high), Some(low)) => {
                    *byte = high << 4 | low;
                    true
                }
                _ => false,
            }
        });
    if !is_whole {
        return Err(Error::new(Kind::InvalidInput, "a key has 32 bytes, or 64 hexadecimal digits"));
    }
    Ok(Secret::take(&mut key))
}

/// The content of a new key file: 64 hexadecimal digits and the end of the line.
#[must_use]
pub fn key_file_text(key: &Secret) -> Zeroizing<String> {
    let mut text = Zeroizing::new(String::with_capacity(65));
    for byte in key.expose() {
        for digit in [byte >> 4, byte & 15] {
            text.push(char::from_digit(u32::from(digit), 16).unwrap_or('0'));
        }
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::tests::Seeded;

    const MEMORY: u64 = 8 << 30;

    fn making(kind: SlotKind) -> Making<'static> {
        Making {
            kind,
            name: "at home",
            argon: Argon::LEAST,
            made: 1_790_000_000,
            memory_bytes: MEMORY,
        }
    }

    fn passphrase(words: &str) -> SlotSecret {
        SlotSecret::Passphrase(Zeroizing::new(words.as_bytes().to_vec()))
    }

    #[test]
    fn rule_23_a_slot_opens_by_its_secret_and_by_no_other() {
        let root = Secret::take(&mut [9; 32]);
        let id = [1; 16];
        let of = (&id, 3);
        let key = SlotSecret::Key(Secret::take(&mut [4; 32]));
        let file = Slot::new(of, making(SlotKind::File), &key, &root, &Seeded::new(1)).unwrap();
        let asked = passphrase("correct horse");
        let words =
            Slot::new(of, making(SlotKind::Passphrase), &asked, &root, &Seeded::new(2)).unwrap();
        for slot in [&file, &words] {
            assert_eq!(Slot::decode(&slot.encode()).unwrap().as_ref(), Some(slot));
        }
        let opens = |slot: &Slot, of, secret: &SlotSecret| {
            slot.root(of, secret, MEMORY).unwrap().is_some_and(|found| found.equals(root.expose()))
        };
        assert!(opens(&file, of, &key));
        assert!(opens(&words, of, &asked));
        assert!(!opens(&file, (&id, 4), &key), "another slot's number");
        assert!(!opens(&file, (&[2; 16], 3), &key), "another store");
        assert!(!opens(&file, of, &SlotSecret::Key(Secret::take(&mut [5; 32]))));
        assert!(!opens(&file, of, &asked));
        assert!(!opens(&words, of, &passphrase("correct horsf")));
        assert!(!opens(&words, of, &passphrase("")));
        let other = Slot { made: 5, ..file.clone() };
        assert!(!opens(&other, of, &key), "a field was changed");
    }

    #[test]
    fn rule_23_a_slot_that_asks_for_too_much_or_too_little_is_refused_before_memory_is_taken() {
        let ask = |argon: Argon, memory: u64| {
            argon.hash(b"words", &[0; 32], memory).err().map(|error| error.kind())
        };
        assert_eq!(
            ask(Argon { memory_kib: (64 << 10) - 1, ..Argon::LEAST }, MEMORY),
            Some(Kind::Corrupt)
        );
        assert_eq!(ask(Argon { passes: 2, ..Argon::LEAST }, MEMORY), Some(Kind::Corrupt));
        assert_eq!(ask(Argon { lanes: 0, ..Argon::LEAST }, MEMORY), Some(Kind::Corrupt));
        assert_eq!(ask(Argon { lanes: 65, ..Argon::LEAST }, MEMORY), Some(Kind::Corrupt));
        assert_eq!(ask(Argon { passes: 65, ..Argon::LEAST }, MEMORY), Some(Kind::Corrupt));
        // More than two usual choices together: 3 passes over 4 GiB.
        let dear = Argon { memory_kib: 4 << 20, ..Argon::LEAST };
        assert_eq!(ask(dear, 64 << 30), Some(Kind::Corrupt));
        assert_eq!(
            ask(Argon { memory_kib: u32::MAX, ..Argon::LEAST }, u64::MAX),
            Some(Kind::Corrupt)
        );
        assert_eq!(ask(Argon { memory_kib: 2 << 20, ..Argon::LEAST }, 3 << 30), Some(Kind::Memory));
        assert_eq!(Argon::usual(64 << 30).memory_kib, 1 << 20);
        assert_eq!(Argon::usual(2 << 30).memory_kib, 512 << 10);
        assert_eq!(Argon::usual(1 << 20).memory_kib, 64 << 10);
    }

    #[test]
    fn a_slot_is_made_with_a_fitting_name_and_secret_only() {
        let root = Secret::take(&mut [9; 32]);
        let make = |kind, name: &str, secret: &SlotSecret| {
            Slot::new(
                (&[1; 16], 0),
                Making { name, ..making(kind) },
                secret,
                &root,
                &Seeded::new(1),
            )
            .is_ok()
        };
        let key = SlotSecret::Key(Secret::take(&mut [4; 32]));
        assert!(make(SlotKind::Recovery, &"n".repeat(47), &key));
        assert!(!make(SlotKind::Recovery, &"n".repeat(48), &key));
        assert!(!make(SlotKind::Recovery, "a\nb", &key));
        assert!(!make(SlotKind::Passphrase, "", &key));
        assert!(!make(SlotKind::File, "", &passphrase("words")));
        assert!(!make(SlotKind::Passphrase, "", &passphrase("")));
    }

    #[test]
    fn hostile_slots_are_refused() {
        let root = Secret::take(&mut [9; 32]);
        let key = SlotSecret::Key(Secret::take(&mut [4; 32]));
        let slot = Slot::new((&[1; 16], 0), making(SlotKind::File), &key, &root, &Seeded::new(1));
        let good = slot.unwrap().encode();
        assert!(Slot::decode(&[0; SLOT_BYTES]).unwrap().is_none());
        let with = |at: usize, byte: u8| {
            let mut bytes = good;
            bytes[at] = byte;
            Slot::decode(&bytes).is_err()
        };
        assert!(with(0, 0), "a free slot has no fields");
        assert!(with(0, 6), "an unknown kind");
        assert!(with(1, 48) && with(1, 255), "a name beyond its place");
        assert!(with(52, 0xff) && with(52, 10), "a name that is no text");
        assert!(with(2, 1) && with(70, 1), "a field that nothing reads");
    }

    #[test]
    fn key_files_hold_32_bytes_or_64_digits() {
        let key = Secret::take(&mut std::array::from_fn(|n| (n as u8).wrapping_mul(11)));
        let text = key_file_text(&key);
        assert_eq!(text.len(), 65);
        for content in [text.as_bytes(), text.trim_end().as_bytes(), &key.expose()[..]] {
            assert!(key_file(content).unwrap().equals(key.expose()));
        }
        assert!(key_file(format!("{}\r\n", text.trim_end()).as_bytes()).is_ok());
        assert!(key_file(text.to_uppercase().as_bytes()).unwrap().equals(key.expose()));
        for wrong in ["", "00", &"0".repeat(63), &"g".repeat(64), &"0".repeat(66)] {
            assert!(key_file(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }
}
