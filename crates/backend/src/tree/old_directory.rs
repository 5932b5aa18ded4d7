//! Directories that are there already where a tree is restored in place.
//!
//! Their owner may open them to anybody at any moment, and their modes and lists let others in. So one is
//! compared with the stored one before anything goes into it. What its rightful owner, or root, opened is
//! closed again. Where another user made it first, root takes it over. Nobody else can: then nothing is
//! restored there.

use std::os::fd::OwnedFd;

use onefold_core::{Error, Kind, Result, tree::Entry};
use rustix::{
    fs::{AtFlags, Dir, Gid, Mode, Stat, Uid},
    io::Errno,
};

use super::{
    attributes::{ACCESS_LIST, DEFAULT_LIST, PLAIN_BITS, STICKY, drop_list, drop_lists},
    shared::{Shared, last_part, owner_of_new},
    shown,
};

const SPECIAL_BITS: u32 = 0o7000;
const GROUP_BITS: u32 = 0o070;

/// Names of a directory that are shown, at most.
const NAMES_SHOWN: usize = 8;

/// Names of a directory that are counted, at most.
const NAMES_COUNTED: usize = 10_000;

/// The largest list of access rights.
const LIST_BYTES: usize = 64 << 10;

/// Errors for a directory that only leads to what is restored, if neither its stored owner nor root nor this
/// user owns it.
///
/// # Errors
/// `Denied`.
pub(super) fn may_lead(shared: &Shared, entry: &Entry, at: &OwnedFd, stat: &Stat) -> Result<()> {
    let leads = [entry.uid, 0, shared.user.0].contains(&stat.st_uid);
    if leads || has_no_owners(shared, at, stat) {
        Ok(())
    } else {
        Err(refused(shared, entry, stat))
    }
}

/// The next step with an old directory.
pub(super) enum Old {
    /// The directory is ready to be filled.
    Ready,
    /// The directory was empty, and another user's. It was removed.
    Gone,
}

/// Makes an old directory one that can be filled: it gives nobody more than the stored one does, and none but
/// its stored owner, root and this user own it. With `removes`, an empty one of another user is removed.
///
/// # Errors
/// `Denied` where another user owns it who can't be kept out, and those of the system.
pub(super) fn prepare(
    shared: &Shared,
    above: &OwnedFd,
    entry: &Entry,
    (at, stat): (&OwnedFd, &Stat),
    removes: bool,
) -> Result<Old> {
    let wrong = |errno| shared.wrong(&entry.path, errno);
    let owner = if shared.is_root { entry.uid } else { shared.user.0 };
    if stat.st_uid == owner {
        return close(shared, entry, at, stat).map_err(wrong).map(|()| Old::Ready);
    }
    if has_no_owners(shared, at, stat) {
        return Ok(Old::Ready);
    }
    if !shared.is_root {
        // Nobody else can change it: its owner's, or root's, stays as that one likes.
        let is_owners = stat.st_uid == entry.uid || stat.st_uid == 0;
        return if is_owners { Ok(Old::Ready) } else { Err(refused(shared, entry, stat)) };
    }
    let is_strangers = stat.st_uid != 0 && stat.st_uid != shared.user.0;
    // A user who has the directory open would go on to see its names after it changed hands.
    if is_strangers
        && removes
        && rustix::fs::unlinkat(above, last_part(&entry.path), AtFlags::REMOVEDIR).is_ok()
    {
        return Ok(Old::Gone);
    }
    let (user, group) = (Uid::from_raw(shared.user.0), Gid::from_raw(shared.user.1));
    let shut = rustix::fs::fchown(at, Some(user), Some(group))
        .and_then(|()| rustix::fs::fchmod(at, Mode::RWXU))
        .and_then(|()| drop_lists(at));
    match shut {
        Err(errno) if has_no_modes(errno) => {
            if is_strangers {
                return Err(refused(shared, entry, stat));
            }
        }
        shut => shut.map_err(wrong)?,
    }
    if is_strangers {
        tell(shared, entry, at, stat.st_uid);
    }
    Ok(Old::Ready)
}

/// Takes what the stored directory does not give. The rest comes when it is finished.
fn close(shared: &Shared, entry: &Entry, at: &OwnedFd, stat: &Stat) -> Result<(), Errno> {
    let stored = |list: &str| entry.attributes.iter().find(|(name, _)| name == list.as_bytes());
    let has = |list: &str| read_list(at, list);
    let (access, default) = (has(ACCESS_LIST)?, has(DEFAULT_LIST)?);
    let is_stored = |there: &Option<Vec<u8>>, list: &str| match there {
        None => true,
        Some(there) => stored(list).is_some_and(|(_, stored)| stored == there),
    };
    // A directory of the user himself has the group that he likes.
    let is_group = !shared.is_root || stat.st_gid == entry.gid;
    let (keeps_access, keeps_default) =
        (is_stored(&access, ACCESS_LIST), is_stored(&default, DEFAULT_LIST));
    let mut rights = stat.st_mode & entry.mode & PLAIN_BITS;
    // The group may have what the stored list does not give it.
    if !is_group || !keeps_access || access.is_none() && stored(ACCESS_LIST).is_some() {
        rights &= !GROUP_BITS;
    }
    let mode = rights | stat.st_mode & SPECIAL_BITS | entry.mode & STICKY;
    let closed = match mode == stat.st_mode & (SPECIAL_BITS | PLAIN_BITS) {
        true => Ok(()),
        false => rustix::fs::fchmod(at, Mode::from_raw_mode(mode)),
    };
    let drop = |keeps: bool, list: &str| if keeps { Ok(()) } else { drop_list(at, list) };
    let closed = closed
        .and_then(|()| drop(keeps_access, ACCESS_LIST))
        .and_then(|()| drop(keeps_default, DEFAULT_LIST));
    match closed {
        // The directory still belongs to its owner.
        Err(errno) if has_no_modes(errno) => Ok(()),
        closed => closed,
    }
}

/// True for the errors by which a file system says that it has no such owners and modes, or that this user is
/// nobody there: FAT has none, and one over a network, or of a program, answers as its other side likes.
fn has_no_modes(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::PERM
            | Errno::ACCESS
            | Errno::INVAL
            | Errno::OPNOTSUPP
            | Errno::NOSYS
            | Errno::OVERFLOW
    )
}

fn read_list(at: &OwnedFd, list: &str) -> Result<Option<Vec<u8>>, Errno> {
    let mut value = vec![0; LIST_BYTES];
    match rustix::fs::fgetxattr(at, list, &mut value[..]) {
        Ok(bytes) => {
            value.truncate(bytes);
            Ok(Some(value))
        }
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// True where a file system gives what this user makes in a directory of somebody else to that one: it has no
/// owners.
fn has_no_owners(shared: &Shared, at: &OwnedFd, stat: &Stat) -> bool {
    stat.st_uid != shared.user.0 && owner_of_new(at) == Some(stat.st_uid)
}

fn refused(shared: &Shared, entry: &Entry, stat: &Stat) -> Error {
    let shown = shown(&shared.shown, &entry.path);
    let (owner, stored) = (stat.st_uid, entry.uid);
    let why = format!(
        "{shown}: this directory belongs to user {owner} and not to user {stored}, as it was stored, and \
         nothing is restored into it: rename or remove it, or give it to its owner"
    );
    Error::new(Kind::Denied, why)
}

/// Names what was in a directory that root took over.
fn tell(shared: &Shared, entry: &Entry, at: &OwnedFd, user: u32) {
    let Ok(names) = Dir::read_from(at) else { return };
    let (mut named, mut count) = (Vec::new(), 0);
    for name in names.flatten().take(NAMES_COUNTED) {
        let name = name.file_name().to_bytes();
        if matches!(name, b"." | b"..") {
            continue;
        }
        count += 1;
        if named.len() < NAMES_SHOWN {
            named.push(String::from_utf8_lossy(name).escape_debug().to_string());
        }
    }
    if count == 0 {
        return;
    }
    let more = match count - named.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    tracing::warn!(
        "'{}' belonged to user {user} and not to user {}: it was taken over; what was in it stays, unless the \
         tree has something of that name: {}{more}",
        shown(&shared.shown, &entry.path).escape_debug(),
        entry.uid,
        named.join(", ")
    );
}
