//! The key area of a sealed store: two copies, each the data of an object of its own, whose names have
//! the store's id.
//!
//! A change of keys takes a lock, writes one copy and then the other one, each comparing the version that
//! it was decided from; an operation that is acknowledged is durable. Then the catalogue bears the number
//! of the new key area, so that an older one that somebody puts back is noticed. What a crash leaves, and
//! which copy counts, is told in `onefold_seal`. Sessions at work have the keys of values and data in
//! memory, and a change of slots or of the root key leaves those as they are: no session notices it.

use std::{sync::Arc, time::Duration};

use onefold_core::{
    Error, Kind, Result, hex_digits,
    object::{Change, Guard, ObjectName, ObjectStore, Read, ReadPart, Refusal, Version, Write},
};
use onefold_seal::{
    AREA_BYTES, Care, Judged, KeyArea, Keys, Opener, Random, is_being_erased, judge,
};

use super::Sealing;
use crate::{
    format::catalogue::{CATALOGUE, Format},
    replies::{failed, first_value, read_format, until_answered},
    settings::Settings,
};

/// The key of the catalogue with the number of the key area that the store has seen.
const KEYS: &[u8] = b"keys";

/// The lock on the catalogue that a change of keys holds, and for how long at most.
const LOCK: &str = "keys";
const LEASE: Duration = Duration::from_secs(60);

/// What a session that reads the key area does with a copy that is not like the one that counts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Nothing: the store is only looked at.
    Reads,
    /// It is written again before anything else happens.
    Writes,
}

pub(crate) fn no_key() -> Error {
    Error::new(Kind::Denied, "the store is encrypted: say where its key is with --key")
}

fn plain() -> Error {
    let why = "the store is not encrypted, and a store can't become so: make another one";
    Error::new(Kind::InvalidInput, why)
}

/// The object with a copy.
fn copy_name(id: &[u8; 16], copy: usize) -> ObjectName {
    let id = hex_digits(id);
    ObjectName::metadata(format!("k.{id}.{copy}"))
}

/// A copy as it was found.
struct Copy {
    bytes: Vec<u8>,
    version: Option<Version>,
}

fn read_copy(store: &dyn ObjectStore, id: &[u8; 16], copy: usize, tries: u32) -> Result<Copy> {
    let read =
        Read { object: copy_name(id, copy), parts: vec![ReadPart::Data(0, AREA_BYTES as u64 + 1)] };
    match until_answered(tries, || store.read(std::slice::from_ref(&read)).remove(0)) {
        Ok(answer) => Ok(Copy { bytes: answer.data(0).to_vec(), version: Some(answer.version) }),
        Err(Refusal::Missing) => Ok(Copy { bytes: Vec::new(), version: None }),
        // The other copy may do.
        Err(Refusal::Failed(_)) => Ok(Copy { bytes: Vec::new(), version: None }),
        Err(refusal) => Err(failed("the key area can't be read", refusal)),
    }
}

/// Writes a copy in the place of the one that was found. Durable on return.
fn write_copy(
    store: &dyn ObjectStore,
    (id, copy): (&[u8; 16], usize),
    found: &Copy,
    bytes: &[u8],
    tries: u32,
) -> Result<()> {
    let op = Write {
        object: copy_name(id, copy),
        guards: vec![found.version.map_or(Guard::Absent, Guard::Version)],
        changes: vec![Change::Overwrite(bytes.to_vec())],
    };
    let say = |refusal| failed("the key area can't be written", refusal);
    match until_answered(tries, || store.write(std::slice::from_ref(&op)).remove(0)) {
        Ok(_) => Ok(()),
        // A try whose reply was lost may have been applied.
        Err(Refusal::Mismatch | Refusal::Exists)
            if read_copy(store, id, copy, tries)?.bytes == bytes =>
        {
            Ok(())
        }
        Err(Refusal::Mismatch | Refusal::Exists) => {
            Err(Error::new(Kind::Busy, "somebody else changes the keys of the store"))
        }
        Err(refusal) => Err(say(refusal)),
    }
}

/// The number of the key area that the catalogue bears, and the value as it stands there.
fn seen_number(store: &dyn ObjectStore, sealing: &Sealing, tries: u32) -> Result<(u64, Vec<u8>)> {
    let read = Read {
        object: ObjectName::metadata(CATALOGUE),
        parts: vec![ReadPart::Keys(vec![KEYS.to_vec()])],
    };
    let answer = until_answered(tries, || store.read(std::slice::from_ref(&read)).remove(0));
    let raw = first_value(&answer.map_err(|why| failed("the catalogue can't be read", why))?);
    let value = sealing.open_value(CATALOGUE, KEYS, &raw)?;
    let damaged = || crate::format::corrupt("the catalogue is damaged, or somebody changed it");
    let number = value.as_slice().try_into().map_err(|_| damaged())?;
    Ok((u64::from_le_bytes(number), raw))
}

/// The keys that count, as they were found.
pub(crate) struct Opened {
    pub(crate) keys: Keys,
    pub(crate) sealing: Sealing,
    copies: [Copy; 2],
    seen: (u64, Vec<u8>),
}

/// Overwrites both copies: the second one first, since the first one says that they are being erased.
/// Each is durable before the next.
fn overwrite(
    store: &dyn ObjectStore,
    id: &[u8; 16],
    random: &dyn Random,
    tries: u32,
) -> Result<()> {
    for copy in [1, 0] {
        let mut noise = vec![0; AREA_BYTES];
        random.fill(&mut noise)?;
        let before = read_copy(store, id, copy, tries)?;
        write_copy(store, (id, copy), &before, &noise, tries)?;
    }
    Ok(())
}

/// Ends an erasure of the keys that was cut off. True when there was one.
fn end_erasure(
    store: &dyn ObjectStore,
    id: &[u8; 16],
    opener: &dyn Opener,
    tries: u32,
) -> Result<bool> {
    let copies = [read_copy(store, id, 0, tries)?, read_copy(store, id, 1, tries)?];
    let copies = [&copies[0].bytes[..], &copies[1].bytes[..]];
    if !is_being_erased(copies, id, &mut |area| opener.root(area)) {
        return Ok(false);
    }
    overwrite(store, id, &*opener.random(), tries)?;
    Ok(true)
}

/// Opens the keys of a sealed store.
fn opened(
    store: &dyn ObjectStore,
    format: &Format,
    (settings, access): (&Settings, Access),
    opener: &dyn Opener,
) -> Result<Opened> {
    let (id, tries) = (&format.id, settings.tries);
    let mut copies = [read_copy(store, id, 0, tries)?, read_copy(store, id, 1, tries)?];
    let bytes = [&copies[0].bytes[..], &copies[1].bytes[..]];
    if access == Access::Writes && is_being_erased(bytes, id, &mut |area| opener.root(area)) {
        overwrite(store, id, &*opener.random(), tries)?;
        return Err(Error::new(Kind::Corrupt, "its keys were destroyed: nobody can read it"));
    }
    let word = (0, opener.accepts_older());
    let Judged { keys, area, differs } =
        judge(bytes, id, word, &mut |area| opener.root(area), Care::default())?;
    let sealing = Sealing::new(&keys, settings)?;
    let mut seen = seen_number(store, &sealing, tries)?;
    let number = keys.sequence();
    if seen.0 > number && !opener.accepts_older() {
        let seen = seen.0;
        return Err(Error::new(
            Kind::Denied,
            format!(
                "the key area is an older one ({number}, and the store has seen {seen}): slots that were \
                 removed would be back; --accept-older takes it"
            ),
        ));
    }
    if access == Access::Writes {
        for copy in (0..2).filter(|copy| differs[*copy]) {
            // Somebody who changes keys writes both copies too: then it is as good.
            match write_copy(store, (id, copy), &copies[copy], area.bytes(), tries) {
                Ok(()) => copies[copy] = read_copy(store, id, copy, tries)?,
                Err(error) if error.kind() == Kind::Busy => {}
                Err(error) => return Err(error),
            }
        }
        if seen.0 < number {
            bear(store, &sealing, &seen.1, number, tries)?;
            seen = seen_number(store, &sealing, tries)?;
        }
    }
    Ok(Opened { keys, sealing, copies, seen })
}

/// Records in the catalogue that the store has seen this number, where it still bears `before`.
fn bear(
    store: &dyn ObjectStore,
    sealing: &Sealing,
    before: &[u8],
    number: u64,
    tries: u32,
) -> Result<()> {
    let value = sealing.seal_value(CATALOGUE, KEYS, &number.to_le_bytes())?;
    let op = Write {
        object: ObjectName::metadata(CATALOGUE),
        guards: vec![Guard::Omap(KEYS.to_vec(), before.to_vec())],
        changes: vec![Change::SetOmap(vec![(KEYS.to_vec(), value)])],
    };
    match until_answered(tries, || store.write(std::slice::from_ref(&op)).remove(0)) {
        // Somebody else recorded it, or our own try did whose reply was lost.
        Ok(_) | Err(Refusal::Mismatch) => Ok(()),
        Err(refusal) => Err(failed("the catalogue can't be changed", refusal)),
    }
}

/// The working keys of a store with this format, by the key that its opener is asked for; `None` of a plain one.
///
/// # Errors
/// `Denied`: there is no key, or it opens no slot, or a key was named and the store is plain; `Corrupt`:
/// no copy of the key area is whole, or somebody changed it, or the catalogue.
pub(crate) fn unlock(
    store: &dyn ObjectStore,
    format: &Format,
    settings: &Settings,
    access: Access,
) -> Result<Option<Arc<Sealing>>> {
    let opener = settings.keys.of();
    if !format.sealed {
        if opener.is_some_and(Opener::refuses_plain) {
            let why =
                "a key was named, and the store is not encrypted: it is not the one that you mean";
            return Err(Error::new(Kind::Denied, why));
        }
        return Ok(None);
    }
    let opener = opener.ok_or_else(no_key)?;
    Ok(Some(Arc::new(opened(store, format, (settings, access), opener)?.sealing)))
}

/// Writes the key area of a new store, whose catalogue is not there yet; returns what seals it, and
/// what the catalogue bears.
pub(crate) fn create(
    store: &dyn ObjectStore,
    id: &[u8; 16],
    keys: &mut Keys,
    random: &dyn Random,
) -> Result<(Sealing, (Vec<u8>, Vec<u8>))> {
    let settings = Settings::default();
    let area = keys.next_area(random)?;
    for copy in 0..2 {
        let found = read_copy(store, id, copy, settings.tries)?;
        write_copy(store, (id, copy), &found, area.bytes(), settings.tries)?;
    }
    let sealing = Sealing::new(keys, &settings)?;
    let value = sealing.seal_value(CATALOGUE, KEYS, &area.sequence().to_le_bytes())?;
    Ok((sealing, (KEYS.to_vec(), value)))
}

/// The id of a sealed store and the copies of its key area, for who lists its slots without a key;
/// `None` of a plain one. What they say is not proven.
///
/// # Errors
/// `NotFound`: there is no store; those of the object store.
pub fn key_areas(
    store: &dyn ObjectStore,
    settings: &Settings,
) -> Result<Option<([u8; 16], Vec<Result<KeyArea>>)>> {
    let format = read_format(store, settings.tries)?;
    if !format.sealed {
        return Ok(None);
    }
    let copies = (0..2).map(|copy| {
        read_copy(store, &format.id, copy, settings.tries)
            .and_then(|copy| KeyArea::decode(&copy.bytes))
    });
    Ok(Some((format.id, copies.collect())))
}

/// The open keys of a sealed store, by the key that its opener is asked for.
///
/// # Errors
/// As opening the store; `InvalidInput`: it is plain.
pub fn open_keys(store: &dyn ObjectStore, settings: &Settings) -> Result<Keys> {
    let format = read_format(store, settings.tries)?;
    if !format.sealed {
        return Err(plain());
    }
    let opener = settings.keys.of().ok_or_else(no_key)?;
    Ok(opened(store, &format, (settings, Access::Reads), opener)?.keys)
}

/// Does `work` under the lock of changes of keys.
fn locked<T>(
    store: &dyn ObjectStore,
    settings: &Settings,
    work: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let catalogue = ObjectName::metadata(CATALOGUE);
    let lock = || store.lock(&catalogue, LOCK, LOCK, Some(LEASE));
    match until_answered(settings.tries, lock) {
        Ok(()) => {}
        Err(Refusal::Busy) => {
            return Err(Error::new(Kind::Busy, "somebody else changes the keys of the store"));
        }
        Err(refusal) => return Err(failed("the catalogue can't be locked", refusal)),
    }
    let done = work();
    // If this fails, the lock ends with its lease.
    let _ = store.unlock(&catalogue, LOCK, LOCK);
    done
}

/// Changes the keys of a sealed store, by the key that its opener is asked for: `change` gets them as
/// they are. Durable on return. Servers and workers go on meanwhile, and data stay sealed as they are.
///
/// # Errors
/// The errors of `change`, after which nothing was changed; `InvalidInput`: the store is plain; `Busy`:
/// somebody else changes them. Errors of the object store: the keys are the old ones or the new ones.
pub fn change_keys(
    store: &dyn ObjectStore,
    settings: &Settings,
    change: impl FnOnce(&mut Keys, &dyn Random) -> Result<()>,
) -> Result<()> {
    let format = read_format(store, settings.tries)?;
    if !format.sealed {
        return Err(plain());
    }
    let opener = settings.keys.of().ok_or_else(no_key)?;
    locked(store, settings, || {
        let mut found = opened(store, &format, (settings, Access::Writes), opener)?;
        found.keys.saw(found.seen.0);
        let random = opener.random();
        change(&mut found.keys, &*random)?;
        let area = found.keys.next_area(&*random)?;
        for (copy, before) in found.copies.iter().enumerate() {
            write_copy(store, (&format.id, copy), before, area.bytes(), settings.tries)?;
        }
        bear(store, &found.sealing, &found.seen.1, area.sequence(), settings.tries)
    })
}

/// Destroys the keys of a sealed store that nobody serves: a copy of its key area is written that says so
/// and has no keys, then both are overwritten; each step is durable before the next. Nobody opens the
/// store by them any more, nor after a crash in between once the first step was durable: whoever opens the
/// store to write by one of its secrets ends the erasure then.
///
/// # Errors
/// As [`change_keys`].
pub fn erase_keys(store: &dyn ObjectStore, settings: &Settings) -> Result<()> {
    let format = read_format(store, settings.tries)?;
    if !format.sealed {
        return Err(plain());
    }
    // By its key: who lacks it may not destroy what others need.
    let opener = settings.keys.of().ok_or_else(no_key)?;
    locked(store, settings, || {
        let (id, tries, random) = (&format.id, settings.tries, opener.random());
        if end_erasure(store, id, opener, tries)? {
            return Ok(());
        }
        let mut found = opened(store, &format, (settings, Access::Writes), opener)?;
        found.keys.saw(found.seen.0);
        let erased = found.keys.erased_area(&*random)?;
        write_copy(store, (id, 0), &found.copies[0], erased.bytes(), tries)?;
        overwrite(store, id, &*random, tries)
    })
}
