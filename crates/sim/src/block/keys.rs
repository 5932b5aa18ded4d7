//! Keys of simulated stores that are sealed. All that draws chance draws the same numbers whenever it
//! begins, as in clones of a machine.

use std::sync::Arc;

use onefold_block::{KeySource, format::Identity};
use onefold_core::{Error, Kind, Pba, Result};
use onefold_seal::{
    Argon, DurableState, KeyArea, Keys, Opener, Random, Secret, SlotKind, SlotSecret, StateSeen,
};
use onefold_testbed::{Rng, disk::Image};
use parking_lot::Mutex;

use crate::block::{
    checks::verifier::Sealed,
    subject::{Generations, StoreOptions},
};

/// The secret that is never removed.
pub(super) const OWNER: u8 = 1;

/// Chance that is the same in each process.
struct Repeated(Mutex<Rng>);

impl Random for Repeated {
    fn fill(&self, into: &mut [u8]) -> Result<()> {
        self.0.lock().fill(into);
        Ok(())
    }
}

pub(super) fn repeated() -> Arc<dyn Random> {
    Arc::new(Repeated(Mutex::new(Rng::new(11))))
}

/// Who knows a secret, and may have seen a state of the store.
struct Holder(u8, Option<DurableState>);

impl Opener for Holder {
    fn root(&self, area: &KeyArea) -> Result<Secret> {
        let found = area.root(&secret(self.0), 0)?;
        found.map(|(_, root)| root).ok_or_else(|| Error::new(Kind::Denied, "no slot opens"))
    }

    fn states_seen(&self, _id: &[u8; 16]) -> Result<Vec<StateSeen>> {
        let seen = |DurableState { sequence, tag }| StateSeen {
            by: "the holder",
            sequence,
            tag: Some(tag),
        };
        Ok(self.1.map(seen).into_iter().collect())
    }

    fn refuses_plain(&self) -> bool {
        true
    }

    fn random(&self) -> Arc<dyn Random> {
        repeated()
    }
}

pub(super) fn secret(byte: u8) -> SlotSecret {
    SlotSecret::Key(Secret::take(&mut [byte; 32]))
}

/// Adds the slot that a secret opens.
pub(super) fn add(keys: &mut Keys, byte: u8, random: &dyn Random) -> Result<()> {
    let made = keys.add_slot((SlotKind::File, ""), &secret(byte), Argon::LEAST, (0, 0), random);
    made.map(drop)
}

/// The keys of a new store.
pub(super) fn of(options: &StoreOptions) -> Result<Keys> {
    let random = repeated();
    let mut keys = Keys::create(options.id, &*random)?;
    add(&mut keys, OWNER, &*random)?;
    Ok(keys)
}

/// True when the copy of the key area that begins at this block is whole.
pub(super) fn area_is_whole(view: &Image, first: Pba) -> bool {
    let block = |at| view.get(at).map_or([0; 4096], |bytes| **bytes);
    let bytes: Vec<u8> = (first.0..first.0 + 3).flat_map(block).collect();
    KeyArea::decode(&bytes).is_ok()
}

/// Who is asked for the key: nobody, for a plain store.
pub(super) fn source(options: &StoreOptions) -> KeySource {
    if options.sealed { by(OWNER, None) } else { KeySource::default() }
}

/// Somebody who knows this secret, and may have seen a state of the store.
pub(super) fn by(byte: u8, seen: Option<DurableState>) -> KeySource {
    KeySource::new(Arc::new(Holder(byte, seen)))
}

/// The name of the domain that gets this number.
pub(super) fn domain_name(number: u32) -> String {
    format!("tenant {number}")
}

/// The keys that a key area has.
pub(super) fn keys_in(area: &[u8]) -> Result<Keys> {
    let area = KeyArea::decode(area)?;
    let opened = area.root(&secret(OWNER), 0)?;
    let (_, root) = opened.ok_or_else(|| Error::new(Kind::Denied, "no slot opens"))?;
    let keys = area.keys(&root)?;
    keys.ok_or_else(|| Error::new(Kind::Corrupt, "the key area is not proven"))
}

/// The numbers of the domains that a key area has.
pub(super) fn domains_in(area: &[u8]) -> Result<Vec<u32>> {
    Ok(keys_in(area)?.domains().iter().map(onefold_seal::Domain::number).collect())
}

/// The identity of the store.
pub(super) fn identity(options: &StoreOptions) -> Identity {
    let plain = || Identity::new(options.id, options.secret, options.fingerprint);
    let keys = if options.sealed { of(options).ok() } else { None };
    let sealed = keys.and_then(|keys| Identity::by_keys(&keys, options.fingerprint).ok());
    sealed.unwrap_or_else(plain)
}

/// What the second reading opens the store by; `None` for a plain one.
pub(super) fn sealed(options: &StoreOptions) -> Option<Sealed> {
    let mut keys = of(options).ok().filter(|_| options.sealed)?;
    // Each of them begins to draw chance anew, as the process that makes a domain does. What was erased
    // is known here all the same: what lies on the disk must be right.
    for number in 1..=options.domains {
        keys.add_domain(&domain_name(number), &*repeated()).ok()?;
    }
    // So does each process that changes a data key.
    // No two domains have one generation after 0.
    let of = |(&number, of): (&u32, &Generations)| {
        of.all.iter().map(move |&generation| (generation, number)).collect::<Vec<_>>()
    };
    let mut all: Vec<(u32, u32)> = options.generations.iter().flat_map(of).collect();
    all.sort_unstable();
    for (generation, number) in all {
        if keys.older(number).is_some() {
            keys.drop_older(number, &*repeated()).ok()?;
        }
        keys.saw_generation(generation - 1);
        keys.rotate_domain(number, &*repeated()).ok()?;
    }
    for (&number, _) in options.generations.iter().filter(|(_, of)| !of.has_older) {
        keys.drop_older(number, &*repeated()).ok()?;
    }
    Sealed::new(&keys).ok()
}
