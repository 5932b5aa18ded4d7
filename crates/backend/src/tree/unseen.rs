//! Links that root makes in directories of others.
//!
//! A link belongs to root until it is given to its owner. Who may rename in its directory could take it
//! away before, and keep a link of root with a target of his choice: programs that follow links of root
//! would go there. So such a link is made in a directory that is root's alone, below the one where it
//! shall be, finished there, and then renamed. The owner of the directory may rename or remove that one
//! too, but he can't enter it, and knows no name in it.

use std::os::fd::OwnedFd;

use onefold_core::{Result, tree::Entry};
use rustix::{
    fs::{AtFlags, Mode, RenameFlags},
    io::Errno,
};

use super::{
    Identity,
    attributes::{chown_place, drop_lists, touch_place},
    shared::{Filling, Shared, is_empty, last_part, open_directory, open_path, owner_of_new},
    stamp::Stamp,
};
use crate::random::random_bytes;

const OTHERS: u32 = 0o077;

/// How often a directory is made anew that somebody removed.
const TRIES: usize = 16;

/// A directory for its user alone. It goes with this, if its name still stands for it.
pub(super) struct Unseen {
    above: OwnedFd,
    name: String,
    /// The directory that it lies in: what is made in it gets labels and quotas from there.
    of: Identity,
    opened: OwnedFd,
}

impl Drop for Unseen {
    fn drop(&mut self) {
        let _ = rustix::fs::unlinkat(&self.above, &self.name, AtFlags::REMOVEDIR);
    }
}

fn random_name() -> Result<String, Errno> {
    let bytes = random_bytes().map_err(|_| Errno::IO)?;
    Ok(format!(".onefold-{:016x}", u64::from_le_bytes(bytes)))
}

impl Unseen {
    /// `STALE` when somebody put something else in its place; `OPNOTSUPP` where the file system keeps no modes: it
    /// keeps nobody out, and gives links to nobody.
    fn below(above: &OwnedFd, of: Identity, user: u32) -> Result<Unseen, Errno> {
        let name = random_name()?;
        let again = rustix::io::fcntl_dupfd_cloexec(above, 0)?;
        rustix::fs::mkdirat(above, &name, Mode::RWXU)?;
        let (opened, stat) = open_directory(above, name.as_bytes()).map_err(|errno| {
            let _ = rustix::fs::unlinkat(above, &name, AtFlags::REMOVEDIR);
            if errno == Errno::XDEV { Errno::STALE } else { errno }
        })?;
        let unseen = Unseen { above: again, name, of, opened };
        let is_ours = match stat.st_uid == user {
            // The directory is this user's, so nobody else opened its mode.
            true if stat.st_mode & OTHERS != 0 => {
                let _ = rustix::fs::fchmod(&unseen.opened, Mode::RWXU);
                if rustix::fs::fstat(&unseen.opened)?.st_mode & OTHERS != 0 {
                    return Err(Errno::OPNOTSUPP);
                }
                true
            }
            true => true,
            false => owner_of_new(above) == Some(stat.st_uid),
        };
        if !is_ours || !is_empty(&unseen.opened) {
            return Err(Errno::STALE);
        }
        drop_lists(&unseen.opened)?;
        Ok(unseen)
    }

    /// Makes the link of an entry, finished, in a directory.
    fn link(
        &self,
        shared: &Shared,
        at: (&OwnedFd, &Filling),
        entry: &Entry,
        target: &[u8],
    ) -> Result<(), Errno> {
        let name = random_name()?;
        rustix::fs::symlinkat(target, &self.opened, &name)?;
        let finished = self.finish(shared, at, entry, &name);
        if finished.is_err() {
            let _ = rustix::fs::unlinkat(&self.opened, &name, AtFlags::empty());
        }
        finished
    }

    fn finish(
        &self,
        shared: &Shared,
        at: (&OwnedFd, &Filling),
        entry: &Entry,
        name: &str,
    ) -> Result<(), Errno> {
        let (place, stat) = open_path(&self.opened, name.as_bytes())?;
        if shared.owners(entry) {
            shared.owned(chown_place(&place, entry))?;
        }
        shared.set_on_place(&place, entry)?;
        touch_place(&place, entry)?;
        let last = last_part(&entry.path);
        match rustix::fs::renameat_with(&self.opened, name, at.0, last, RenameFlags::NOREPLACE) {
            // A file system without that way. A further name replaces nothing either.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                rustix::fs::linkat(&self.opened, name, at.0, last, AtFlags::empty())?;
                rustix::fs::unlinkat(&self.opened, name, AtFlags::empty())?;
            }
            renamed => renamed?,
        }
        shared.note(at, entry, Stamp::of_new(&place, &stat));
        Ok(())
    }
}

/// Makes the link of an entry in a directory of others, where nothing has its name. `unseen` is kept for the
/// next one. False, and nothing is made, where the file system keeps no modes.
///
/// # Errors
/// `Exists` when there is something of this name, `Busy` when somebody replaced what was made for it, and
/// those of the system.
pub(super) fn link(
    shared: &Shared,
    unseen: &mut Option<Unseen>,
    at: (&OwnedFd, &Filling),
    entry: &Entry,
    target: &[u8],
) -> Result<bool> {
    let mut made = try_link(shared, unseen, at, entry, target);
    for _ in 0..TRIES {
        // The owner of the directory above may have removed this one: then it is made once more.
        if made != Err(Errno::NOENT) {
            break;
        }
        *unseen = None;
        made = try_link(shared, unseen, at, entry, target);
    }
    if made == Err(Errno::OPNOTSUPP) && unseen.is_none() {
        return Ok(false);
    }
    made.map(|()| true).map_err(|errno| match errno {
        Errno::STALE => shared.replaced(&entry.path),
        errno => shared.not_made(at.0, entry, errno),
    })
}

fn try_link(
    shared: &Shared,
    unseen: &mut Option<Unseen>,
    at: (&OwnedFd, &Filling),
    entry: &Entry,
    target: &[u8],
) -> Result<(), Errno> {
    let of = Identity::of(&rustix::fs::fstat(at.0)?);
    if unseen.as_ref().is_some_and(|unseen| unseen.of != of) {
        *unseen = None;
    }
    let unseen = match unseen {
        Some(unseen) => unseen,
        None => unseen.insert(Unseen::below(at.0, of, shared.user.0)?),
    };
    unseen.link(shared, at, entry, target)
}
