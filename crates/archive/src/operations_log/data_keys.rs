//! A domain gets another data key, and loses the older one when nothing is under it any more.
//!
//! Nobody stores, collects or imports while a data key is changed, so nobody has a number for a container that
//! is not written yet. The frame comes first: from it on, what is new must be under the new key, which the key
//! area gets then. A second frame has the kept keys of the older one, sealed by the new one. An erasure goes the
//! other way: the key area first, then the frame. It waits for that second frame, without which nobody could
//! prove any more what was stored.
//!
//! | a crash of a change | leaves |
//! |---|---|
//! | before the frame is durable | one data key |
//! | later, before the first copy of the key area is | a log that asks for a data key that is not there: nothing can be stored in the domain, and what is there is read. Whoever opens the archive to write makes the key |
//! | between the copies | both data keys; whoever opens the archive to write writes the other copy, and the second frame |
//! | before the second frame is durable | both data keys, which both open by the key area; whoever opens the archive to write, or erases the older one, writes that frame |
//!
//! | a crash of the erasure of the older one | leaves |
//! |---|---|
//! | before the first copy of the key area is durable | both data keys |
//! | later, before both are | one data key; whoever opens the archive to write writes the other copy, and the frame |
//! | before the frame that says it | the same, with both copies written |

use onefold_core::{Error, Kind, Result};

use super::{
    archive::Archive,
    domains::{renew, renew_durable, sealing_of},
    key_changes::{change_and_append, change_keys},
    upgrade::{upgrade_to, without_writers},
};
use crate::{
    format::{ContainerId, damage::is_damage, data_keys::Rotation, label::Kinds, record::Record},
    rules::Rule,
    tables::{CHANGES_MAX, Tables, domain_has_older, is_under_older, with_older},
};

/// Lets the data keys of an archive be changed, and gives it all features that an upgrade gives: programs from
/// before refuse it then. False when they could be changed before. Durable on return. This value changes and
/// shows nothing more: the archive must be opened again.
///
/// # Errors
/// `InvalidInput`: the archive is plain, encodes chunks late, or its keys have roles. Those of
/// [`upgrade`](super::upgrade()).
pub fn allow_data_keys(archive: &Archive) -> Result<bool> {
    let refused = |why: &str| Err(Error::new(Kind::InvalidInput, why));
    if archive.identity.sealing().is_none() {
        return refused("the archive is not encrypted, and has no data key that could be changed");
    }
    if archive.label.late.is_some() {
        return refused("the archive encodes chunks late, and its data key can't be changed");
    }
    if archive.label.roles {
        return refused(
            "the archive has keys with roles, whose files have what is made of its data key: it can't be changed",
        );
    }
    if archive.label.data_keys {
        return Ok(false);
    }
    let kinds = Kinds { data_keys: true, ..archive.label.kinds().upgraded(true) };
    upgrade_to(archive, kinds, &mut |_, _| ())
}

/// Gives a domain another data key. All that is stored from now on is under it. What was stored stays under the
/// older one until [`Collection::reseal`](crate::Collection::reseal) has written it again. Durable on return.
/// Gives the generation of the new key.
///
/// # Errors
/// `Busy`: somebody stores, serves, collects or imports. `InvalidInput`: something is left under an older key of
/// the domain, its data key was changed 1,024 times, or the data keys can't be changed before
/// [`allow_data_keys`]. `Denied`: the domain was erased, also meanwhile, there is none of this number, or the key area and the log are not of one time. Errors of the system, after which the key is changed or not.
pub fn rotate_data_key(archive: &Archive, domain: u32) -> Result<u32> {
    if !archive.label.data_keys {
        let why = "the archive is from before data keys could be changed: `onefold key rotate --data` upgrades it";
        return Err(Error::new(Kind::InvalidInput, why));
    }
    let sealing = sealing_of(archive)?;
    let _locks = match archive.keeps(Rule::DataKeyChangedAlone) {
        true => without_writers(archive, "another data key")?,
        false => Vec::new(),
    };
    // Of a domain that another process made, too.
    archive.refresh()?;
    renew(archive, sealing)?;
    let mut made = 0;
    archive.commit(true, |tables| {
        let newest = tables.data_keys.newest(domain);
        if newest.is_some_and(|(_, erased)| !erased) {
            let why = "the domain has two data keys, and something is left under the older one: `onefold gc \
                       --reseal` writes it again";
            return Err(Error::new(Kind::InvalidInput, why));
        }
        let said = newest.map_or(0, |(newest, _)| newest.generation);
        // Otherwise one of the two was put back, and the change would make a key that nobody finds.
        sealing.agreed_upon(domain, said)?;
        made = said + 1;
        if made > CHANGES_MAX {
            let why = format!("the data key of the domain was changed {CHANGES_MAX} times, and no more are kept: \
                               store what is in it in another domain or archive");
            return Err(Error::new(Kind::InvalidInput, why));
        }
        Ok(vec![Record::DataKeyRotated(Rotation {
            domain,
            generation: made,
            from: ContainerId(tables.next_id),
            index: tables.index.named_upto(),
        })])
    })?;
    make_keys(archive)?;
    write_kept_keys(archive)?;
    // Another process may have erased the domain behind the frame of the change.
    archive.refresh()?;
    sealing.domain(domain)?;
    Ok(made)
}

/// Writes the kept keys of data keys that another one took the place of to the log, where it does not have them yet.
fn write_kept_keys(archive: &Archive) -> Result<()> {
    let sealing = sealing_of(archive)?;
    let unsaid = |tables: &Tables| -> Result<Vec<Record>> {
        let mut unsaid = Vec::new();
        for change in tables.data_keys.changes().filter(|change| change.kept.is_none()) {
            let Rotation { domain, generation, .. } = change.rotation;
            if sealing.is_erased(domain) {
                continue;
            }
            // A key area without the newer one is refused elsewhere.
            if let Some(kept) = sealing.keep(domain, generation)? {
                unsaid.push(Record::DataKeyKept { domain, generation, kept: Box::new(kept) });
            }
        }
        Ok(unsaid)
    };
    if unsaid(&archive.tables())?.is_empty() {
        return Ok(());
    }
    let durable = |tables: &Tables| {
        renew_durable(archive, sealing)?;
        unsaid(tables)
    };
    archive.commit(true, durable).map(drop)
}

/// Makes the data keys that the log asks for and the key area does not have.
fn make_keys(archive: &Archive) -> Result<()> {
    let sealing = sealing_of(archive)?;
    let lacking = lacking(archive, &archive.tables())?;
    if !lacking.is_empty() {
        change_keys(archive, |keys, random| {
            for (domain, generation) in &lacking {
                // Another process may have made it meanwhile. A key area that lags by more is an older one.
                if keys.generation(*domain).is_some_and(|found| found + 1 == *generation) {
                    keys.rotate_domain(*domain, random)?;
                }
            }
            Ok(())
        })?;
        renew(archive, sealing)?;
    }
    Ok(())
}

/// The domains whose newest data key the key area does not have, and its generation. Where something is under
/// that key, or was sealed by it, or the key area lags by more than this one change, it is an older one, and no
/// other key takes its place.
fn lacking(archive: &Archive, tables: &Tables) -> Result<Vec<(u32, u32)>> {
    let sealing = sealing_of(archive)?;
    let mut lacking = Vec::new();
    for change in tables.data_keys.changes().filter(|change| change.kept.is_none()) {
        let rotation = &change.rotation;
        let Ok(known) = sealing.domain(rotation.domain) else { continue };
        if known.generation() + 1 == rotation.generation && !is_used(tables, rotation)? {
            lacking.push((rotation.domain, rotation.generation));
        }
    }
    Ok(lacking)
}

fn is_used(tables: &Tables, rotation: &Rotation) -> Result<bool> {
    for container in &tables.containers {
        let stored = match container {
            // It may be one of those: repair looks first.
            Err(error) if is_damage(&error) => return Ok(true),
            found => found?.stored,
        };
        if stored.domain == rotation.domain && stored.id >= rotation.from {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Refuses an archive whose key area is newer than its log, or older by more than one change that was cut off:
/// one of the two was put back. Others may change both meanwhile, the log first.
fn are_of_one_time(archive: &Archive) -> Result<()> {
    let Some(sealing) = archive.identity.sealing().filter(|_| !archive.label.roles) else {
        return Ok(());
    };
    let differ = |tables: &Tables| -> Result<()> {
        let there = sealing.numbers().into_iter();
        for number in there.filter(|number| !tables.domains.erased.contains_key(number)) {
            let said = tables.data_keys.newest(number).map_or(0, |(newest, _)| newest.generation);
            match sealing.agreed_upon(number, said) {
                Err(error) if error.kind() == Kind::Stopped => {}
                other => other?,
            }
        }
        Ok(())
    };
    if differ(&archive.tables()).is_ok() {
        return Ok(());
    }
    renew(archive, sealing)?;
    differ(&*archive.refresh()?)
}

/// Ends changes and erasures of data keys that a crash cut off. The archive was opened to write.
pub(super) fn end_changes(archive: &Archive) -> Result<()> {
    are_of_one_time(archive)?;
    if !archive.label.data_keys || with_older(&archive.tables()).next().is_none() {
        return Ok(());
    }
    renew(archive, sealing_of(archive)?)?;
    if archive.keeps(Rule::DataKeyChangeEnded) {
        make_keys(archive)?;
    }
    write_kept_keys(archive)?;
    let sealing = sealing_of(archive)?;
    let is_gone = |rotation: &&Rotation| {
        let known = sealing.domain_by_key_area(rotation.domain);
        known.is_ok_and(|known| known.generation() == rotation.generation)
            && !sealing.has_older(rotation.domain)
    };
    if !with_older(&archive.tables()).any(|rotation| is_gone(&rotation)) {
        return Ok(());
    }
    let erased = |tables: &Tables| -> Result<Vec<Record>> {
        renew_durable(archive, sealing)?;
        let mut erased = Vec::new();
        for Rotation { domain, generation, .. } in with_older(tables).filter(is_gone) {
            if is_erasable(tables, *domain)? {
                erased.push(Record::DataKeyErased { domain: *domain, generation: *generation });
            }
        }
        Ok(erased)
    };
    archive.commit(true, erased).map(drop)
}

/// True when the older data key of a domain, which the key area does not have, was erased since nothing was under
/// it any more; false when a damaged part of the container table leaves that open.
///
/// # Errors
/// `Denied`: the log is from before that, and was put back.
fn is_erasable(tables: &Tables, domain: u32) -> Result<bool> {
    let older = || {
        let why = format!(
            "`keys` has not the older data key of domain {domain}, which the log still needs: the archive is older \
             than its file `keys`; put back the `keys` that it had at that time"
        );
        Err(Error::new(Kind::Denied, why))
    };
    // An erasure waits until the log has the kept keys.
    if tables.data_keys.newest_change(domain).is_some_and(|change| change.kept.is_none()) {
        return older();
    }
    let mut is_whole = true;
    for container in &tables.containers {
        match container {
            Err(error) if is_damage(&error) => is_whole = false,
            Ok(found) if found.stored.domain == domain && is_under_older(tables, &found) => {
                return older();
            }
            found => drop(found?),
        }
    }
    Ok(is_whole)
}

/// Erases the older data key of a domain, under which nothing is any more: it is dropped, the key that wraps
/// domains is renewed, and both copies of the key area are overwritten, each durable before the next; then a
/// frame says so. False when the whole domain was erased meanwhile. The caller holds the collector's lock.
///
/// # Errors
/// Errors of the system, after which it is erased or not.
pub(crate) fn erase_older_data_key(
    archive: &Archive,
    domain: u32,
    generation: u32,
) -> Result<bool> {
    // The process that changed the key may have been killed before.
    renew(archive, sealing_of(archive)?)?;
    write_kept_keys(archive)?;
    let tables = archive.tables();
    let sealing = sealing_of(archive)?;
    if sealing.is_erased(domain) {
        return Ok(false);
    }
    // A change may have been cut off before there was a newer one.
    sealing.agreed_upon(domain, generation)?;
    let newest = tables.data_keys.newest_change(domain);
    if !newest.is_some_and(|it| it.rotation.generation == generation && it.kept.is_some()) {
        let why = format!("the key area lacks the data key of domain {domain} that the log says");
        return Err(Error::new(Kind::Denied, why));
    }
    let both = archive.keeps(Rule::ErasedInBothCopies);
    let records = vec![Record::DataKeyErased { domain, generation }];
    change_and_append(archive, records, both, |keys, random| {
        match keys.generation(domain) == Some(generation) {
            true if keys.older(domain).is_some() => {
                sealing.opens_kept(keys, domain)?;
                keys.drop_older(domain, random)
            }
            true => Ok(()),
            false => {
                let why = format!(
                    "the key area has another data key of domain {domain} than the log says"
                );
                Err(Error::new(Kind::Denied, why))
            }
        }
    })?;
    renew(archive, sealing_of(archive)?)?;
    Ok(true)
}

/// A data key of a domain, and what is left under the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataKeyListed {
    /// The number of the domain.
    pub domain: u32,
    /// How often its data key was changed.
    pub generation: u32,
    /// It has two: the one before is there as long as something is under it.
    pub has_older: bool,
    /// Containers that are under the one before.
    pub containers: u64,
    /// Bytes that they take.
    pub bytes: u64,
}

/// The data keys that took the place of older ones, the newest one of each domain, in the order of domains. The
/// container table is read where a domain has two.
///
/// # Errors
/// Errors of the system.
pub fn data_keys(tables: &Tables) -> Result<Vec<DataKeyListed>> {
    let mut all: Vec<DataKeyListed> = Vec::new();
    for (rotation, _) in tables.data_keys.all() {
        let Rotation { domain, generation, .. } = *rotation;
        all.retain(|listed| listed.domain != domain);
        if !tables.domains.erased.contains_key(&domain) {
            let has_older = domain_has_older(tables, domain);
            all.push(DataKeyListed { domain, generation, has_older, containers: 0, bytes: 0 });
        }
    }
    if all.iter().any(|listed| listed.has_older) {
        for container in &tables.containers {
            let container = container?;
            if is_under_older(tables, &container) {
                let stored = &container.stored;
                let of = all.iter_mut().find(|listed| listed.domain == stored.domain);
                if let Some(of) = of {
                    of.containers += 1;
                    of.bytes += tables.taken(&stored.place);
                }
            }
        }
    }
    Ok(all)
}
