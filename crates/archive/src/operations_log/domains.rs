//! Which domains an archive has, and the keys of those that other processes made or erased meanwhile.

use std::sync::Arc;

use onefold_core::{Error, Kind, Result};

use super::{
    archive::Archive,
    domain::Domain,
    key_area::{judged, no_key, open_file},
};
use crate::{
    format::{
        domain::FIRST_DOMAIN,
        sealing::{KeyChanged, Sealing, erased},
    },
    tables::Tables,
};

/// A domain of an archive, by its newest data key. One that another process made since is found, too, and so is
/// another data key.
///
/// # Errors
/// `Denied`: it was erased, or its key is not there. Those of reading the key area.
pub(crate) fn domain_of(archive: &Archive, number: u32) -> Result<Arc<Domain>> {
    if number == FIRST_DOMAIN && !archive.label.data_keys {
        return Ok(archive.first.clone());
    }
    let sealing = sealing_of(archive)?;
    let keys = sealing.domain(number).or_else(|refused| {
        if sealing.is_erased(number) {
            return Err(refused);
        }
        renew(archive, sealing)?;
        sealing.domain(number)
    });
    // Whoever changed the data key said so in the log first.
    let keys = match keys {
        Ok(_) if sealing.may_be_newer(number) => {
            renew(archive, sealing)?;
            sealing.domain(number)
        }
        keys => keys,
    };
    let mut others = archive.others.lock();
    match keys {
        Ok(keys) => {
            let mut older = 0;
            sealing.older_fingerprints(number, &mut |_| older += 1);
            let known = others.get(&number);
            if let Some(known) = known.filter(|it| it.versions() == (keys.generation(), older)) {
                return Ok(known.clone());
            }
            let opened = Domain::of(&archive.label, &archive.identity, (sealing, &keys));
            let opened = Arc::new(opened);
            others.insert(number, opened.clone());
            Ok(opened)
        }
        Err(error) => {
            others.remove(&number);
            Err(error)
        }
    }
}

pub(super) fn sealing_of(archive: &Archive) -> Result<&Sealing> {
    let none = || Error::new(Kind::Denied, "an archive without encryption has one domain");
    archive.identity.sealing().map(|sealing| &**sealing).ok_or_else(none)
}

/// Looks whether the key area has a data key that this process does not know yet. Where it has not, whoever opens by that
/// key says so.
///
/// # Errors
/// The errors of reading the key area.
pub(crate) fn look_for_data_key(archive: &Archive, number: u32, generation: u32) -> Result<()> {
    let sealing = sealing_of(archive)?;
    match sealing.domain_at(number, generation) {
        Ok(_) => Ok(()),
        Err(_) if archive.label.roles || sealing.is_erased(number) => Ok(()),
        Err(_) => renew(archive, sealing),
    }
}

/// Reads the keys of domains that other processes made.
pub(super) fn renew(archive: &Archive, sealing: &Sealing) -> Result<()> {
    let news = sealing.news();
    let opener = archive.settings.opener.of().ok_or_else(no_key)?;
    let file = open_file(&*archive.files)?;
    let judged = judged(&*file, &archive.label, false, &archive.settings, opener)?;
    sealing.renew_domains(&judged.keys, news)
}

/// The same, when both copies of the key area are equal and durable: a process that was killed may have left them
/// otherwise. The caller holds the commit lock, and a frame that it appends may say what the key area has.
pub(super) fn renew_durable(archive: &Archive, sealing: &Sealing) -> Result<()> {
    let news = sealing.news();
    let opener = archive.settings.opener.of().ok_or_else(no_key)?;
    let file = open_file(&*archive.files)?;
    file.sync()?;
    let judged = judged(&*file, &archive.label, true, &archive.settings, opener)?;
    archive.files.confirm()?;
    sealing.renew_domains(&judged.keys, news)
}

/// True when a domain was erased: nothing in it can be read.
#[must_use]
pub fn is_erased(archive: &Archive, number: u32) -> bool {
    archive.identity.sealing().is_some_and(|sealing| sealing.is_erased(number))
}

/// Forgets the keys of the domains that the log says are erased.
pub(super) fn forget_erased(archive: &Archive, tables: &Tables) {
    if let Some(sealing) = archive.identity.sealing() {
        for number in tables.domains.erased.keys() {
            sealing.erase(*number);
            archive.others.lock().remove(number);
        }
    }
}

/// Takes over what the log says of data keys.
///
/// # Errors
/// `Corrupt`.
pub(super) fn follow_data_keys(archive: &Archive, tables: &Tables) -> Result<()> {
    match archive.identity.sealing().filter(|_| archive.label.data_keys) {
        Some(sealing) => sealing.follow(tables.data_keys.changes().map(|change| KeyChanged {
            rotation: &change.rotation,
            kept: change.kept.as_deref(),
            erased: change.erased,
        })),
        None => Ok(()),
    }
}

/// Refuses what would put something into a domain that was erased.
pub(crate) fn is_there(tables: &Tables, number: u32) -> Result<()> {
    match tables.domains.erased.contains_key(&number) {
        true => Err(erased(number)),
        false => Ok(()),
    }
}

/// A domain, as lists show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainListed {
    /// Its number.
    pub number: u32,
    /// Its name; empty for the one that each archive begins with, and `None` for one that was erased.
    pub name: Option<String>,
}

/// The number of a domain by its name.
///
/// # Errors
/// `NotFound`: no domain has it. As [`domains`].
pub fn domain_called(archive: &Archive, name: &str) -> Result<u32> {
    let all = domains(archive)?;
    let called = all.iter().find(|domain| !name.is_empty() && domain.name.as_deref() == Some(name));
    called.map(|domain| domain.number).ok_or_else(|| {
        let why = format!("there is no domain '{}'", name.escape_debug());
        Error::new(
            Kind::NotFound,
            format!("{why}; `onefold domain list` shows those that there are"),
        )
    })
}

/// The domains of an archive, those that were erased too, in the order of their numbers.
///
/// # Errors
/// `InvalidInput`: the archive is plain. Those of reading the key area.
pub fn domains(archive: &Archive) -> Result<Vec<DomainListed>> {
    if archive.identity.sealing().is_none() {
        return Err(plain());
    }
    let opener = archive.settings.opener.of().ok_or_else(no_key)?;
    let file = open_file(&*archive.files)?;
    let keys = judged(&*file, &archive.label, false, &archive.settings, opener)?.keys;
    let tables = archive.tables();
    let mut all: Vec<DomainListed> = keys
        .domains()
        .iter()
        .filter(|domain| !tables.domains.erased.contains_key(&domain.number()))
        .map(|one| DomainListed { number: one.number(), name: Some(one.name().to_owned()) })
        .collect();
    let mut gone: Vec<u32> = keys.erased_domains().collect();
    gone.extend(tables.domains.erased.keys());
    all.extend(gone.into_iter().map(|number| DomainListed { number, name: None }));
    all.sort_by_key(|domain| domain.number);
    all.dedup_by_key(|domain| domain.number);
    Ok(all)
}

pub(super) fn plain() -> Error {
    let why =
        "the archive is not encrypted, and domains are what keys separate: make an encrypted one";
    Error::new(Kind::InvalidInput, why)
}
