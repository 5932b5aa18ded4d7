//! Whether a new store is encrypted, and with which keys.

use std::path::Path;

use onefold_backend::secrets::{SystemRandom, machine_memory};
use onefold_seal::{Argon, Keys, SlotKind, SlotSecret};
use zeroize::Zeroizing;

use crate::key;
use onefold::parts::{
    archive_dir::now,
    keys::{self, Whence},
};
use onefold_console::{failure::Failure, output};

/// What is said of every store that is not encrypted.
pub(super) const NOT_ENCRYPTED: &str =
    "it is not encrypted: everybody who can read its file, device or objects can read its data";

/// New keys of a store.
pub(super) struct NewKeys {
    pub(super) keys: Keys,
    /// Which kind of secret opens it.
    by: &'static str,
    /// The recovery key, as it is written down.
    pub(super) recovery: Zeroizing<String>,
}

impl NewKeys {
    pub(super) fn told(&self) -> String {
        format!(
            "it is encrypted, which is experimental, and opens by its {}\n\
             recovery key, which is shown this once; keep it where nobody finds it, and not in this store:\n{}",
            self.by,
            self.recovery.as_str()
        )
    }

    /// Fails when nobody can have read the recovery key.
    pub(super) fn arrived(keys: Option<&NewKeys>) -> Result<(), Failure> {
        let Some(keys) = keys else { return Ok(()) };
        let more = format!(
            "the store is there and opens by its {}, but nobody has its recovery key, slot 1: \
             `onefold key change STORE 1 --new recovery` makes another",
            keys.by
        );
        output::shown_once().map_err(|failure| failure.and(more))
    }
}

/// The keys of a new store with this id at this path, if it is to be encrypted: when a key is named, or somebody at a
/// terminal gives a passphrase. `plain` says why such a store can't be encrypted.
pub(super) fn new_keys(
    no_encryption: bool,
    plain: Option<&str>,
    (id, store): (&[u8; 16], &Path),
) -> Result<Option<NewKeys>, Failure> {
    let named = keys::asker().and_then(|asker| asker.named());
    if named.is_none() && key::given().is_some() {
        let why = "a passphrase that is given makes no store encrypted by itself: say --key passphrase \
                   beside --passphrase-fd";
        return Err(Failure::usage(why));
    }
    let new = match (named, plain) {
        (Some(_), _) if no_encryption => {
            return Err(Failure::usage("--key encrypts, and --no-encryption does not: say one"));
        }
        (Some(_), Some(why)) => return Err(Failure::new(why)),
        (Some(Whence::Recovery), None) => {
            let why = "a recovery key is made in any case: name another key with --key";
            return Err(Failure::usage(why));
        }
        (Some(whence), None) => (whence.kind(), key::new_secret(whence, key::given(), id, store)?),
        (None, plain) if no_encryption || plain.is_some() || !key::has_terminal() => {
            return Ok(None);
        }
        (None, _) => match key::asked_anew(store)? {
            Some(words) => {
                let secret = SlotSecret::Passphrase(words);
                (SlotKind::Passphrase, key::New { secret, words: None })
            }
            None => return Ok(None),
        },
    };
    let (kind, new) = new;
    let (random, memory) = (SystemRandom, machine_memory());
    let mut keys = Keys::create(*id, &random)?;
    let when = (now(), memory);
    keys.add_slot((kind, ""), &new.secret, Argon::usual(memory), when, &random)?;
    let recovery = key::New::recovery()?;
    let on_paper = (SlotKind::Recovery, "made with the store");
    keys.add_slot(on_paper, &recovery.secret, Argon::LEAST, when, &random)?;
    let words = recovery.words.unwrap_or_default();
    Ok(Some(NewKeys { keys, by: kind.name(), recovery: words }))
}
