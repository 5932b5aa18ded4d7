//! What a simulator sees of GCM and CTR: no counter block of a key may ever meet a second content. Nor does a
//! key seal anything, in whichever mode, after it was retired.
//!
//! The record belongs to the thread, since one seed is one thread; threads of one seed join one record.
//! It lives on across crashes and copies of a simulated store, because the keys of the store do.

use std::{
    cell::RefCell,
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
};

use crate::Secret;

thread_local! {
    static SEEN: RefCell<Record> = RefCell::new(Record::default());
}

/// What threads of one seed saw together.
#[derive(Clone, Default)]
pub struct Record(Arc<Mutex<Seen>>);

/// (key, counter block) → what it sealed.
#[derive(Default)]
struct Seen {
    contents: HashMap<([u8; 16], [u8; 16]), [u8; 16]>,
    /// Keys that seal nothing any more.
    retired: HashSet<[u8; 16]>,
    broken: Option<String>,
    sealed: u64,
}

/// A key by a digest of its own.
pub(crate) struct Watched([u8; 16]);

impl Watched {
    pub(crate) fn of(key: &Secret) -> Watched {
        Watched(short(key.expose()))
    }

    /// GCM: the nonce stands for all counters below it, since their number is the content's length.
    pub(crate) fn gcm(&self, nonce: [u8; 12], associated: &[u8], bytes: &[u8]) {
        let mut counter = [0; 16];
        counter[..12].copy_from_slice(&nonce);
        let mut content = (associated.len() as u64).to_le_bytes().to_vec();
        content.extend_from_slice(associated);
        content.extend_from_slice(bytes);
        self.note(counter, &content);
    }

    pub(crate) fn ctr(&self, first: [u8; 16], bytes: &[u8]) {
        let first = u128::from_be_bytes(first);
        for (number, block) in bytes.chunks(16).enumerate() {
            self.note(first.wrapping_add(number as u128).to_be_bytes(), block);
        }
    }

    fn note(&self, counter: [u8; 16], content: &[u8]) {
        with(|seen| {
            seen.sealed += 1;
            let content = short(content);
            let before = seen.contents.insert((self.0, counter), content);
            if before.is_some_and(|before| before != content) {
                seen.broken = Some(format!("two contents under counter {counter:02x?} of one key"));
            }
        });
        self.seals();
    }

    /// Something is sealed.
    pub(crate) fn seals(&self) {
        with(|seen| {
            if seen.retired.contains(&self.0) {
                seen.broken = Some("something was sealed by a key that was changed".to_owned());
            }
        });
    }
}

fn short(bytes: &[u8]) -> [u8; 16] {
    let mut short = [0; 16];
    short.copy_from_slice(&blake3::hash(bytes).as_bytes()[..16]);
    short
}

fn with<T>(does: impl FnOnce(&mut Seen) -> T) -> T {
    SEEN.with_borrow(|record| does(&mut record.0.lock().unwrap_or_else(PoisonError::into_inner)))
}

/// Begins a new record for this thread.
pub fn begin() {
    SEEN.set(Record::default());
}

/// From now on nothing may be sealed by this key.
pub fn retire(key: &Secret) {
    with(|seen| seen.retired.insert(Watched::of(key).0));
}

/// The record of this thread.
#[must_use]
pub fn record() -> Record {
    SEEN.with_borrow(Clone::clone)
}

/// From now on this thread notes in another one's record.
pub fn join(record: &Record) {
    SEEN.set(record.clone());
}

/// How much this thread sealed with GCM and CTR, in nonces and counter blocks; or the sentence about a
/// counter block that met a second content, or about a key that sealed after it was retired.
///
/// # Errors
/// The sentence.
pub fn seen() -> Result<u64, String> {
    with(|seen| seen.broken.clone().map_or(Ok(seen.sealed), Err))
}
