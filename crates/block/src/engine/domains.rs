//! The domains of a sealed store: what is deduplicated together, each with a key of its own.
//!
//! A volume names its domain, in the catalogue and in the change that makes it; snapshots and clones
//! belong to that of their origin. Neither references nor mappings nor the index name it: a fingerprint
//! is made by its domain's key, so a lookup finds nothing of another one. Tables, carriers and lists are
//! sealed by the store key, so that the store opens, recovers and frees space without the key of a
//! domain that was erased.
//!
//! *Limits* are in the superblock (`domain_limits.rs`).
//!
//! *Making one* is a change of keys. With the first, superblocks get the feature `DOMAINS` after the key
//! area is durable, and before a volume can be in it; also by whoever opens the store next, when a crash
//! was between.
//!
//! *Erasing one* needs a store that was closed in order: recovery judges records by the content of their
//! blocks, and could take good ones for torn without the key. Then the key area is written without the
//! key, and with a new key that wraps the others, both copies one after the other.
//!
//! | a crash | leaves |
//! |---|---|
//! | while the store is opened and closed before | the domain as it was; the next one recovers it |
//! | before the first copy of the key area is durable | the same; that copy is written again |
//! | later | the domain erased; whoever opens the store to write writes the other copy, and superblocks that bear the new number |

use std::sync::Arc;

use onefold_core::{Clock, Disk, Error, Kind, Result};
use onefold_seal::{Domain, Keys};

use super::{
    Engine, domain_limits,
    key_changes::{change_keys, plain},
};
use crate::{
    format::{FIRST_DOMAIN, domain_entry::DomainLimits},
    settings::Settings,
};

/// A domain, as lists show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainListed {
    /// Its number.
    pub number: u32,
    /// Its name, which is empty for the first one; `None` when it was erased.
    pub name: Option<String>,
    /// How often its data key was changed.
    pub generation: u32,
    /// It still has the data key of before the last change.
    pub has_older: bool,
}

/// All domains that were ever made, by the open keys of a store.
#[must_use]
pub fn domains_of(keys: &Keys) -> Vec<DomainListed> {
    let listed = |number: u32| {
        let found = keys.domains().iter().find(|domain| domain.number() == number);
        DomainListed {
            number,
            name: found.map(|domain| domain.name().to_owned()),
            generation: found.map_or(0, Domain::generation),
            has_older: found.is_some_and(Domain::has_older),
        }
    };
    (0..keys.next_domain()).map(listed).collect()
}

/// All domains that were ever made in an open store.
#[must_use]
pub fn domains(engine: &Engine) -> Vec<DomainListed> {
    let sealing = engine.kernel.identity.sealing.as_ref();
    let numbers = 0..sealing.map_or(1, |sealing| sealing.next_domain());
    let identity = &engine.kernel.identity;
    let listed = |number| DomainListed {
        number,
        name: engine.kernel.domain_name(number),
        generation: identity.generation_of(number),
        has_older: identity.older_fingerprinter_of(number).is_some(),
    };
    numbers.map(listed).collect()
}

/// The number of the domain of an open store that has a name.
///
/// # Errors
/// `NotFound`; `InvalidInput`: the store is plain.
pub fn domain_called(engine: &Engine, name: &str) -> Result<u32> {
    let sealing = engine.kernel.identity.sealing.as_ref().ok_or_else(plain)?;
    sealing.domain_called(name).ok_or_else(|| no_domain(name))
}

fn no_domain(name: &str) -> Error {
    let why =
        format!("there is no domain '{}'; onefold domain list shows all", name.escape_debug());
    Error::new(Kind::NotFound, why)
}

pub(super) fn no_such_domain(number: u32) -> Error {
    Error::new(Kind::NotFound, format!("there is no domain with number {number}"))
}

/// Gives a domain of an open store other limits, which are in force at once. They are durable once
/// [`domain_limits_durable`] has reached the number that is returned: checkpoints lead there.
///
/// # Errors
/// `InvalidInput`: it is the first domain, the limits can't be, or all reserves together do not fit into
/// the store; `NoSpace`: less is free than a reserve misses; `NotFound`; `Unsupported`: the scheme does not
/// count; `Corrupt`: a repair must count first; `Busy`: run steps, then ask again.
pub fn set_domain_limits(engine: &Engine, number: u32, limits: DomainLimits) -> Result<u64> {
    engine.kernel.identity.sealing.as_ref().ok_or_else(plain)?;
    domain_limits::set(&engine.kernel, &*engine.scheme, number, limits)
}

/// Fails unless a domain that is about to be made may have these limits.
///
/// # Errors
/// As [`set_domain_limits`].
pub fn check_domain_limits(engine: &Engine, limits: DomainLimits) -> Result<()> {
    engine.kernel.identity.sealing.as_ref().ok_or_else(plain)?;
    domain_limits::check_new(&engine.kernel, &*engine.scheme, limits)
}

/// The number of the last change of limits that is durable.
#[must_use]
pub fn domain_limits_durable(engine: &Engine) -> u64 {
    engine.kernel.state.lock().domains.durable()
}

/// Makes a domain in a sealed store that nobody works on; returns its number. Durable on return.
///
/// # Errors
/// As [`change_keys`]; `Exists`, `InvalidInput`, `NoSpace`: the name is taken or does not fit, or there
/// are as many as there can be.
pub fn create_domain(disk: &dyn Disk, settings: &Settings, name: &str) -> Result<u32> {
    let mut number = FIRST_DOMAIN;
    change_keys(disk, settings, |keys, random| {
        number = keys.add_domain(name, random)?;
        Ok(())
    })?;
    Ok(number)
}

/// Destroys the key of a domain of a sealed store that nobody works on: nobody reads its volumes and
/// snapshots any more, and deleting them frees their space. Durable on return.
///
/// # Errors
/// As opening the store, and [`change_keys`]; `NotFound`; `InvalidInput`: it is the first one.
pub fn erase_domain(
    disk: &Arc<dyn Disk>,
    clock: Arc<dyn Clock>,
    settings: &Settings,
    number: u32,
) -> Result<()> {
    if number == FIRST_DOMAIN {
        let why = "this is the domain that each store begins with: onefold key erase destroys the keys of all";
        return Err(Error::new(Kind::InvalidInput, why));
    }
    // With its key, recovery knows which records count.
    Engine::open(disk.clone(), clock, settings.clone())?.close()?;
    change_keys(&**disk, settings, |keys, random| keys.erase_domain(number, random))
}
