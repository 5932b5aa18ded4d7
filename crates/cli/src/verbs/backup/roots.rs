//! The directories and files of a backup, in the order of a walk through the whole system, with the
//! directories on the way to them.

use std::{
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
};

use onefold_archive::{Attributes, TreeEntry, TreeWhat};
use onefold_console::failure::Failure;
use onefold_core::{Error, Result, tree::ACCESS_LIST};

/// Paths from the root of the system, without those that lie below others, in the order of their
/// parts.
pub(super) fn sorted(paths: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    let mut all = Vec::new();
    for path in paths {
        let whole = std::path::absolute(path).map_err(|e| Error::from_io(path.display(), e))?;
        let mut plain = PathBuf::from("/");
        for part in whole.components().skip(1) {
            match part {
                std::path::Component::ParentDir => drop(plain.pop()),
                std::path::Component::Normal(name) => plain.push(name),
                _ => {}
            }
        }
        // A missing root is no snapshot.
        std::fs::symlink_metadata(&plain).map_err(|e| Error::from_io(plain.display(), e))?;
        all.push(plain);
    }
    all.sort_by(|one, other| parts(one).cmp(parts(other)));
    all.dedup_by(|later, before| later.starts_with(before));
    Ok(all)
}

fn parts(path: &Path) -> impl Iterator<Item = &[u8]> {
    path.iter().map(|part| part.as_bytes())
}

/// The entry of a directory on the way to a root: only what leads there is in it.
pub(super) fn on_the_way(path: &Path) -> Result<TreeEntry> {
    let wrong = |e| Error::from_io(path.display(), e);
    let metadata = std::fs::metadata(path).map_err(wrong)?;
    Ok(TreeEntry {
        name: path.file_name().map(|name| name.as_bytes().to_vec()).unwrap_or_default(),
        what: TreeWhat::Directory(None),
        mode: metadata.mode() & 0o7777,
        uid: metadata.uid(),
        gid: metadata.gid(),
        seconds: metadata.mtime(),
        nanoseconds: metadata.mtime_nsec() as u32,
        link: 0,
        is_in_part: true,
        attributes: Attributes::Inline(lists(path)),
    })
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
        assert_eq!(sorted(&given).unwrap(), [at("a"), at("a-b")]);
        assert!(sorted(&[at("none")]).is_err());
    }
}
