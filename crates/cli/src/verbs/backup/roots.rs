//! The directories and files of a backup, in the order of a walk through the whole system, with the
//! directories on the way to them.

use std::{
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use onefold_archive::{Attributes, TreeEntry, TreeWhat};
use onefold_backend::tree::Place;
use onefold_console::failure::Failure;
use onefold_core::{Error, Kind, Result, tree::ACCESS_LIST};
use rustix::fs::{AtFlags, StatxAttributes, StatxFlags};

use crate::verbs::exclude::{given, given_file};

/// Bytes of a list of paths at most.
const LISTED_BYTES: u64 = 1 << 20;

/// A directory or file of a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Root {
    /// Its path from the root of the system.
    pub(super) at: PathBuf,
    /// The path under which it is stored.
    pub(super) stored_as: PathBuf,
    /// Paths below it that were given, too: file systems that are mounted there are entered.
    pub(super) below: Vec<PathBuf>,
}

impl Root {
    /// True for the whole system.
    pub(super) fn is_all(&self) -> bool {
        self.stored_as == Path::new("/")
    }

    /// Makes sure that a walk which stays on one file system comes to the paths below this root that were
    /// given.
    ///
    /// # Errors
    /// Another file system, which was not given, lies on the way to one of them.
    fn reaches_all_below(&self) -> Result<(), Failure> {
        for path in &self.below {
            let way = path.ancestors().skip(1).take_while(|above| **above != self.at);
            for above in way.filter(|above| !self.below.iter().any(|given| given == above)) {
                if is_mount_point(above) {
                    return Err(Failure::new(format!(
                        "{} lies on the file system that is mounted on {}, which --one-file-system \
                         leaves out of {}; name that one, too, or make two backups",
                        path.display(),
                        above.display(),
                        self.at.display()
                    )));
                }
            }
        }
        Ok(())
    }

    /// The paths that were given below it, seen from it.
    pub(super) fn entered(&self) -> Vec<Vec<u8>> {
        let below = self.below.iter().filter_map(|path| path.strip_prefix(&self.at).ok());
        below.map(|path| path.as_os_str().as_bytes().to_vec()).collect()
    }

    /// True for a directory of one of these devices and inodes.
    pub(super) fn is_one_of(&self, all: &[(u64, u64)]) -> bool {
        let found = Place::of(&self.at, false);
        found.is_ok_and(|found| found.is_ok_and(|found| all.contains(&found.identity())))
    }
}

/// The end of a path in a list of paths.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Ends {
    /// The end of a line; empty lines and those that begin with `#` are no paths.
    Line,
    /// A zero byte, which no path has.
    Zero,
}

/// Reads the paths that a file lists, as they stand there; `-` is standard input.
///
/// # Errors
/// The file can't be read, has more than 1 MiB, or lists no path.
pub(super) fn listed(file: &Path, ends: Ends) -> Result<Vec<PathBuf>, Failure> {
    let text = match file == Path::new("-") {
        true => given(Ok(std::io::stdin().lock()), file, LISTED_BYTES, "paths")?,
        false => given_file(file, LISTED_BYTES, "paths")?,
    };
    let (end, is_remark): (u8, fn(&[u8]) -> bool) = match ends {
        Ends::Line => (b'\n', |line| line.starts_with(b"#")),
        Ends::Zero => (0, |_| false),
    };
    let listed = text.split(|&byte| byte == end);
    let listed = listed.filter(|path| !path.is_empty() && !is_remark(path));
    let paths: Vec<PathBuf> = listed.map(|path| OsStr::from_bytes(path).into()).collect();
    match paths.is_empty() {
        true => Err(Failure::usage(format!("{} lists no path", file.display()))),
        false => Ok(paths),
    }
}

/// Makes roots of the paths of a backup, in the order of their parts. A path below another one is no root of
/// its own, and is noted with that one.
///
/// # Errors
/// A path is missing, and no other user could have removed it; another user bars the way to all paths;
/// several paths, with `stored_as`; with `one_file_system` a path to which a walk from the root above it
/// does not come.
pub(super) fn sorted(
    paths: &[PathBuf],
    stored_as: Option<&Path>,
    one_file_system: bool,
) -> Result<Vec<Root>, Failure> {
    let (mut all, mut barred): (Vec<Root>, Vec<(PathBuf, Error)>) = (Vec::new(), Vec::new());
    for path in paths {
        let at = plain(path)?;
        // A missing root ends the backup. A root that another user may have removed, or put something
        // over, is left out: otherwise that user could keep all other roots from being stored.
        barred.extend(Place::of(&at, false)?.err().map(|error| (at.clone(), error)));
        all.push(Root { stored_as: at.clone(), at, below: Vec::new() });
    }
    if barred.len() == paths.len()
        && let Some((_, error)) = barred.pop()
    {
        return Err(error.into());
    }
    all.sort_by(|one, other| parts(&one.at).cmp(parts(&other.at)));
    all.dedup_by(|later, before| {
        let is_below = later.at.starts_with(&before.at);
        let is_barred = barred.iter().any(|(at, _)| *at == later.at);
        if is_below && later.at != before.at && !is_barred {
            before.below.push(later.at.clone());
        }
        is_below
    });
    if one_file_system {
        all.iter().try_for_each(Root::reaches_all_below)?;
    }
    if let Some(path) = stored_as {
        let [root] = &mut all[..] else {
            return Err(Failure::usage("--as is about one path"));
        };
        root.stored_as = plain(path)?;
        let is_file = !Place::of(&root.at, true)??.is_directory();
        if root.stored_as == Path::new("/") && is_file {
            return Err(Failure::usage("a file is stored under a name: --as PATH"));
        }
    }
    Ok(all)
}

/// True when something is mounted on a path, and not by another user. The file systems that are mounted there
/// or on the way are not asked.
fn is_mount_point(path: &Path) -> bool {
    let Ok(Ok(place)) = Place::of(path, false) else { return false };
    let unasked = AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    let told = rustix::fs::statx(rustix::fs::CWD, place.path(), unasked, StatxFlags::empty());
    told.is_ok_and(|told| told.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

/// The error of a path of which the system says nothing.
pub(super) fn unseen(path: &Path, error: std::io::Error) -> Error {
    let path = path.display();
    match error.kind() {
        std::io::ErrorKind::NotFound => {
            let what = format!("there is nothing at {path}");
            Error::new(Kind::NotFound, what).caused_by(error)
        }
        _ => Error::from_io(format_args!("{path} can't be looked at"), error),
    }
}

/// A path from the root of the system, without `.` and `..`.
fn plain(path: &Path) -> Result<PathBuf, Error> {
    let whole = std::path::absolute(path).map_err(|e| {
        Error::from_io(format_args!("the whole path of {} can't be found", path.display()), e)
    })?;
    let mut plain = PathBuf::from("/");
    for part in whole.components().skip(1) {
        match part {
            std::path::Component::ParentDir => drop(plain.pop()),
            std::path::Component::Normal(name) => plain.push(name),
            _ => {}
        }
    }
    Ok(plain)
}

fn parts(path: &Path) -> impl Iterator<Item = &[u8]> {
    path.iter().map(|part| part.as_bytes())
}

/// The entry of a directory on the way to a root; the snapshot has in it only what leads to roots. A
/// directory that this system does not have, as on the way to a root that is stored under another path,
/// belongs to root with mode 0755. One that can't be looked at gets mode 0700, since nobody knows whom it
/// let in.
pub(super) fn on_the_way(path: &Path) -> TreeEntry {
    let mut entry = TreeEntry {
        name: path.file_name().map(|name| name.as_bytes().to_vec()).unwrap_or_default(),
        what: TreeWhat::Directory(None),
        mode: 0o755,
        uid: 0,
        gid: 0,
        seconds: 0,
        nanoseconds: 0,
        link: 0,
        is_in_part: true,
        attributes: Attributes::Inline(Vec::new()),
    };
    match Place::of(path, true).and_then(|followed| followed) {
        Ok(place) if place.is_directory() => {
            let stat = place.stat();
            entry.mode = stat.st_mode & 0o7777;
            (entry.uid, entry.gid) = (stat.st_uid, stat.st_gid);
            (entry.seconds, entry.nanoseconds) = (stat.st_mtime, stat.st_mtime_nsec as u32);
            entry.attributes = Attributes::Inline(lists(&place.path()));
        }
        Ok(_) => {}
        Err(error) if error.kind() == Kind::NotFound => {}
        Err(_) => entry.mode = 0o700,
    }
    entry
}

/// The lists of access rights of a directory: without them its mode gives more.
fn lists(path: &Path) -> Vec<(Vec<u8>, Vec<u8>)> {
    let names: [&[u8]; 2] = [ACCESS_LIST, b"system.posix_acl_default"];
    let read = |name: &[u8]| {
        let mut room = vec![0; 64 << 10];
        let bytes = rustix::fs::getxattr(path, name, &mut room).ok()?;
        Some((name.to_vec(), room[..bytes].to_vec()))
    };
    names.into_iter().filter_map(read).filter(|(_, list)| list.len() <= 512).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_below_another_path_is_no_root_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in ["a", "a/b", "a-b"] {
            std::fs::create_dir(at(name)).unwrap();
        }
        let given = [at("a-b"), at("a/b"), at("a"), at("a/b/.."), at("a")];
        // '-' comes before '/', and what is in a directory directly behind it.
        let root = |name: &str, below: &[&str]| Root {
            at: at(name),
            stored_as: at(name),
            below: below.iter().map(|name| at(name)).collect(),
        };
        assert_eq!(sorted(&given, None, true).unwrap(), [root("a", &["a/b"]), root("a-b", &[])]);
        assert_eq!(root("a", &["a/b"]).entered(), [b"b"]);
        assert!(sorted(&[at("none")], None, false).is_err());
        let one = sorted(&[at("a")], Some(Path::new("/srv/./x/../y")), false).unwrap();
        assert_eq!(one, [Root { at: at("a"), stored_as: "/srv/y".into(), below: Vec::new() }]);
        assert!(sorted(&given, Some(Path::new("/srv")), false).is_err());
    }
}
