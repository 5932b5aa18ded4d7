//! Encryption at rest, without I/O: keys, the area of a store that keeps them, and ciphers.
//!
//! A *slot* secret, which is a passphrase or 32 bytes from elsewhere, opens the *root key*. The root
//! key opens the *store key* and the *domain root*, and the domain root opens the key of each
//! *domain*. All are drawn by chance, and each is wrapped by the one above. What seals bytes are
//! *working keys*, derived from the store key or from a domain's, one for each [`Use`].
//!
//! | module | what |
//! |---|---|
//! | `random`, `opener`, `secret` | chance, and who is asked for a key, as parameters; 32 bytes that nobody prints, copies or stores by accident |
//! | `cipher`, `observer` | AES-256-GCM-SIV, GCM and CTR; what a simulator sees of them |
//! | `public` | Ed25519, which signs, and X25519, which seals for somebody else |
//! | `wrap`, `uses` | keys sealed by keys; what working keys are for |
//! | `slot`, `recovery` | ways to the root key; the one that is printed on paper |
//! | `keys` | the open keys of a store, and what is done to them |
//! | `role` | keys that open a part of a store |
//! | `area`, `copies` | the bytes of the key area; which of its two copies counts |
//! | `head` | where the history of an archive has come to, as clients remember and compare it |
//!
//! *Invariant:* no file, terminal, clock or chance but as a parameter.
//!
//! *Invariant:* no key has `Debug`, `Clone` or `Serialize`, and each is overwritten when it is dropped.
//!
//! *Invariant:* a nonce never comes from a counter of the store: it comes from what is sealed, or from
//! chance hashed together with it, or the cipher is GCM-SIV, which only tells by an equal nonce that
//! equal bytes are at the same place. Crashes, copies and clones of a store repeat its counters.

mod area;
mod cipher;
mod copies;
mod gear;
mod head;
mod keys;
#[cfg(feature = "observer")]
pub mod observer;
mod opener;
mod public;
mod random;
mod recovery;
mod role;
mod secret;
mod slot;
mod uses;
mod wrap;

pub use crate::{
    area::{AREA_BYTES, KeyArea, SUITE},
    cipher::{CtrKey, GcmKey, Place, SivKey, TAG_BYTES, block_counter, content_nonce, digest},
    copies::{Care, Judged, is_being_erased, judge},
    gear::Gear,
    head::{Head, Mark},
    keys::{DOMAINS_MAX, Domain, Keys, SLOTS_MAX, valid_domain_name},
    opener::{DurableState, Opener, StateSeen},
    public::{AgreementKey, PUBLIC_BYTES, SIGNATURE_BYTES, SigningKey, is_signed},
    random::Random,
    recovery::{from_words, to_words},
    role::{RoleKey, RoleSecret, Shared, valid_role_name},
    secret::Secret,
    slot::{Argon, NAME_BYTES_MAX, Slot, SlotKind, SlotSecret, key_file, key_file_text},
    uses::Use,
};
