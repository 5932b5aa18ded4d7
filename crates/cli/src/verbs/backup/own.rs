//! The snapshots that this user made here in an archive that is served with `--append-only`.
//!
//! Others may add snapshots of the same set and host there, and what they say of a file that did not
//! change is theirs: a backup takes over only from snapshots that a file of this user names, each with
//! the fingerprint of its root. Without that file all is read, and stored once as ever.
//!
//! The file lies in `$CACHE_DIRECTORY`, `$XDG_CACHE_HOME/onefold` or `~/.cache/onefold`.

use std::{
    collections::HashSet,
    fs::{self, DirBuilder, File, OpenOptions},
    io::{Read, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::PathBuf,
};

use onefold::parts::user_directory::user_directory;
use onefold_archive::{Snapshot, SnapshotId};
use onefold_core::{Error, Kind, Result};
use rustix::{fs::OFlags, process::geteuid};

/// Snapshots that are remembered: the newest ones.
const LINES_MAX: usize = 1000;

/// Bytes of a line at most: two numbers of 32 digits.
const LINE_BYTES: usize = 66;

/// What was made here, by ids and roots.
pub(super) struct Own {
    file: Option<PathBuf>,
    lines: Vec<String>,
    known: HashSet<String>,
}

impl Own {
    /// Of the archive with this id.
    pub(super) fn of(archive: [u8; 16]) -> Own {
        let file = directory().map(|at| at.join(format!("made-{}", SnapshotId(archive))));
        let lines = file.as_ref().and_then(read).unwrap_or_default();
        let known = lines.iter().cloned().collect();
        Own { file, lines, known }
    }

    /// True for a snapshot that was made here.
    pub(super) fn has(&self, snapshot: &Snapshot) -> bool {
        self.known.contains(&line(snapshot))
    }

    /// Notes a snapshot that was made here.
    ///
    /// # Errors
    /// Those of the system; then the next backup reads all.
    pub(super) fn note(&mut self, snapshot: &Snapshot) -> Result<()> {
        self.lines.push(line(snapshot));
        let Some(file) = &self.file else {
            let message = "there is no directory to note it in: neither $CACHE_DIRECTORY nor \
                           $XDG_CACHE_HOME nor $HOME names one of this user";
            return Err(Error::new(Kind::NotFound, message));
        };
        let failed = |e| Error::from_io(format_args!("{} can't be written", file.display()), e);
        if let Some(at) = file.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(at).map_err(failed)?;
        }
        let next = file.with_extension(format!("{}", std::process::id()));
        let first = self.lines.len().saturating_sub(LINES_MAX);
        let text: String = self.lines[first..].iter().map(|line| format!("{line}\n")).collect();
        let made =
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(&next).and_then(
                |mut made| made.write_all(text.as_bytes()).and_then(|()| made.sync_all()),
            );
        made.and_then(|()| fs::rename(&next, file)).map_err(|e| {
            let _ = fs::remove_file(&next);
            failed(e)
        })
    }
}

fn line(snapshot: &Snapshot) -> String {
    format!("{} {}", snapshot.id, SnapshotId(snapshot.root.fingerprint.0))
}

/// The directory for such files.
fn directory() -> Option<PathBuf> {
    let places =
        [("CACHE_DIRECTORY", ""), ("XDG_CACHE_HOME", "onefold"), ("HOME", ".cache/onefold")];
    user_directory(&places)
}

/// The lines of a file that is this user's own.
fn read(file: &PathBuf) -> Option<Vec<String>> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(file).ok()?;
    let found = opened.metadata().ok()?;
    let is_own = found.is_file() && found.uid() == geteuid().as_raw() && found.mode() & 0o022 == 0;
    if !is_own {
        tracing::warn!("{}: it is not this user's own file, and is not believed", file.display());
        return None;
    }
    let mut text = String::new();
    let most = (LINES_MAX * LINE_BYTES) as u64;
    File::take(opened, most).read_to_string(&mut text).ok()?;
    Some(text.lines().map(str::to_owned).collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use onefold::parts::user_directory::is_own;

    use super::*;

    #[test]
    #[ignore = "needs root"]
    #[allow(clippy::disallowed_methods, reason = "nobody else is in the directory of a test")]
    fn rule_21_what_is_noted_goes_into_no_directory_of_another_user() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().join("home");
        fs::create_dir(&home).unwrap();
        assert!(is_own(&home) && is_own(&home.join(".cache/onefold")));
        // Another user's link leads to root's own directory, and one of root's own leads on.
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&home, &link).unwrap();
        assert!(is_own(&link));
        std::os::unix::fs::lchown(&link, Some(61_234), None).unwrap();
        assert!(!is_own(&link) && !is_own(&link.join("onefold")));
        // In `/tmp` another user may be there first.
        let open = fs::Permissions::from_mode(0o1777);
        File::open(&home).unwrap().set_permissions(open).unwrap();
        assert!(!is_own(&home) && !is_own(&home.join("onefold")));
        let closed = fs::Permissions::from_mode(0o700);
        File::open(&home).unwrap().set_permissions(closed).unwrap();
        std::os::unix::fs::fchown(File::open(&home).unwrap(), Some(61_234), None).unwrap();
        assert!(!is_own(&home) && !is_own(&home.join(".cache/onefold")));
    }
}
