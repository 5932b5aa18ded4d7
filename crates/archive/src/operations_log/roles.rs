//! Keys with roles: what a process may do by its own, and how put keys come and go.
//!
//! Who opens an archive by a slot manages it. A role key lies in a file of its own, with the archive's id and
//! all public keys: nothing that lies in the archive says whom to believe. A frame is signed behind the head
//! of all changes before it, and a snapshot of the tables is signed by manage, so all that tables say comes
//! from signatures. Snapshots of directories name their content by fingerprints, from the root down.
//!
//! *Crash argument:* that of a frame. A put key counts from the frame that adds it, and its file is written
//! before that: a crash in between leaves a file by which nothing counts.

use onefold_core::{Error, Kind, Result};
use onefold_seal::{Keys, RoleKey};

use super::{
    archive::Archive,
    key_area::{judged, no_key, open_file},
};
use crate::{
    format::{ContainerId, record::Record, sealing::Role},
    rules::Rule,
    tables::{PUT_KEYS_MAX, SETS_MAX, Tables},
};

/// True for a process that has a put key.
pub(crate) fn is_put(archive: &Archive) -> bool {
    matches!(archive.role(), Some(Role::Put(_)))
}

/// Errors, before anything is read, when a process has a put key that can't add a snapshot of this set of this
/// host.
pub(crate) fn admits(archive: &Archive, host: &str, set: &str) -> Result<()> {
    match archive.role() {
        Some(Role::Put(number)) if archive.keeps(Rule::PutJudgesItself) => {
            archive.tables().admits(number, host, set)
        }
        _ => Ok(()),
    }
}

impl Archive {
    /// The role of the key that it was opened by; `None` where keys have none.
    #[must_use]
    pub fn role(&self) -> Option<Role> {
        self.identity.sealing()?.role()
    }

    /// True when a segment was taken by the key that this process has: nobody else appends to it.
    pub(crate) fn took(&self, tables: &Tables, segment: u32) -> bool {
        let roles = self.identity.sealing().and_then(|sealing| sealing.roles());
        match (roles, &tables.roles) {
            (Some(own), Some(known)) => own.number() == known.owner_of_segment(segment),
            _ => true,
        }
    }

    /// True when this process may take the chunks of a container for duplicates of its own: it listed the
    /// container itself, or manage did, or manage has proven it.
    pub(crate) fn may_share(&self, tables: &Tables, container: ContainerId, logged: u64) -> bool {
        let roles = self.identity.sealing().and_then(|sealing| sealing.roles());
        let (Some(roles), Some(known)) = (roles, &tables.roles) else { return true };
        !self.keeps(Rule::DuplicatesProven) || known.may_share(roles.number(), container, logged)
    }
}

/// Refuses what no archive with roles has: named streams and volumes, whose content nothing that is signed
/// names by its fingerprint.
pub(super) fn fit_roles(archive: &Archive, records: &[Record]) -> Result<()> {
    let is_other = |record: &Record| {
        !matches!(
            record,
            Record::Reserved { .. }
                | Record::Unfinished { .. }
                | Record::CareNoted(_)
                | Record::Abandoned { .. }
                | Record::Imported { .. }
                | Record::Counted { .. }
                | Record::Condemned { .. }
                | Record::Damaged { .. }
                | Record::Dropped { .. }
                | Record::Merged { .. }
                | Record::Freed { .. }
                | Record::EpochAdvanced
                | Record::SnapshotMade { .. }
                | Record::Forgotten { .. }
                | Record::Undeleted { .. }
                | Record::ForgottenSeen { .. }
                | Record::Expired { .. }
                | Record::CountsDue { .. }
                | Record::PutKeyAdded { .. }
                | Record::PutKeyRemoved { .. }
                | Record::Proven { .. }
        )
    };
    if archive.label.roles && records.iter().any(is_other) {
        let why = "an archive whose keys have roles holds snapshots of directories, and no named streams and \
                   volumes: use `onefold backup`";
        return Err(Error::new(Kind::InvalidInput, why));
    }
    Ok(())
}

fn needs_roles(archive: &Archive) -> Result<()> {
    match archive.role() {
        Some(Role::Manage) => Ok(()),
        Some(_) => Err(Error::new(
            Kind::Denied,
            "this is a role key: only who opens the archive by a slot gives keys and takes them away",
        )),
        None => Err(Error::new(
            Kind::InvalidInput,
            "the keys of this archive have no roles: `onefold create archive --roles` makes one where they have",
        )),
    }
}

/// The open keys of the archive.
fn keys_of(archive: &Archive) -> Result<Keys> {
    needs_roles(archive)?;
    let opener = archive.settings.opener.of().ok_or_else(no_key)?;
    let file = open_file(&*archive.files)?;
    Ok(judged(&*file, &archive.label, false, &archive.settings, opener)?.keys)
}

/// A read key of the archive, under a name for people. The archive does not know who has one.
///
/// # Errors
/// `InvalidInput`: the keys of the archive have no roles, or the name does not fit. `Denied`: the archive
/// was opened by a role key.
pub fn read_key(archive: &Archive, name: &str) -> Result<RoleKey> {
    keys_of(archive)?.read_key(name)
}

/// Adds a put key, which may add snapshots to these sets; `keep` gets it before it counts, to write it to
/// its file. Durable on return. Gives its number.
///
/// # Errors
/// As [`read_key`]; `Exists`: a put key has this name. `NoSpace`: there are too many. Those of `keep`, after
/// which nothing was changed; errors of the system.
pub fn add_put_key(
    archive: &Archive,
    name: &str,
    sets: &[String],
    keep: impl FnOnce(&RoleKey) -> Result<()>,
) -> Result<u32> {
    let keys = keys_of(archive)?;
    let wrong = |why: &str| Err(Error::new(Kind::InvalidInput, why));
    if sets.is_empty() || sets.len() > SETS_MAX {
        return wrong("a put key has 1 to 256 sets that it may add snapshots to");
    }
    let fits = |set: &String| (1..=4096).contains(&set.len()) && !set.chars().any(char::is_control);
    if !sets.iter().all(fits) {
        return wrong("a set has 1 to 4096 bytes and no control characters");
    }
    let random = archive.settings.opener.of().ok_or_else(no_key)?.random();
    let (mut number, mut keep) = (0, Some(keep));
    archive.commit(false, |tables| {
        let roles = tables.roles.as_ref();
        let roles = roles.ok_or_else(|| Error::new(Kind::InvalidInput, "there are no roles"))?;
        if roles.keys.len() >= PUT_KEYS_MAX {
            return Err(Error::new(Kind::NoSpace, "the archive had too many put keys"));
        }
        if roles.keys.values().any(|key| !key.is_removed && key.name == name) {
            let why = format!("there is a put key '{}' already", name.escape_debug());
            return Err(Error::new(Kind::Exists, why));
        }
        number = roles.next_key();
        let (key, public) = keys.put_key((number, name), &*random)?;
        if let Some(keep) = keep.take() {
            keep(&key)?;
        }
        let (name, sets) = (name.to_owned(), sets.to_vec());
        Ok(vec![Record::PutKeyAdded { number, public, name, sets }])
    })?;
    Ok(number)
}

/// Removes a put key: nothing that it signs counts from now on, and what it stored stays. Durable on return.
///
/// # Errors
/// As [`read_key`]; `NotFound`; errors of the system.
pub fn remove_put_key(archive: &Archive, number: u32) -> Result<()> {
    needs_roles(archive)?;
    archive
        .commit(true, |tables| {
            let key = tables.roles.as_ref().and_then(|roles| roles.key(number));
            match key {
                Some(_) => Ok(vec![Record::PutKeyRemoved { number }]),
                None => Err(Error::new(Kind::NotFound, format!("there is no put key {number}"))),
            }
        })
        .map(|_| ())
}
