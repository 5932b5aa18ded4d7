//! Which stores this user made or opened by a key. Whoever can write a medium can put a plain store in
//! place of an encrypted one, with the same id; somebody who gives no key then would write to it in
//! plain. So a plain store is refused where an encrypted one was, and under its id.
//!
//! Of an encrypted block store its newest durable state is noted too: who puts back an older image of the
//! disk is noticed where the store was worked on.
//!
//! Each such store is a file of `$STATE_DIRECTORY`, `$XDG_STATE_HOME/onefold` or
//! `~/.local/state/onefold`, in `encrypted`. Its name has a hash of the store's path and the store's
//! id; it holds the path, and a line with the state's number. Where there is no such directory, or it takes no file, nothing is remembered,
//! and no opening fails for that.

use std::{
    fs::{self, DirBuilder},
    io::{Read, Write},
    os::unix::{ffi::OsStrExt, fs::DirBuilderExt},
    path::{Path, PathBuf},
};

use onefold_backend::new_file::{NewFile, replace};
use onefold_core::{Error, Kind, Result, checksum};

use super::{far::is_address, user_directory::user_directory};

/// What stands before a state's number.
const STATE: &str = "state ";

/// Bytes of a note at most: a path, and a number.
const NOTE_MAX: u64 = 64 << 10;

/// Stores that are looked through at most.
const STORES_MAX: usize = 10_000;

fn directory() -> Option<PathBuf> {
    let places =
        [("STATE_DIRECTORY", ""), ("XDG_STATE_HOME", "onefold"), ("HOME", ".local/state/onefold")];
    user_directory(&places).map(|at| at.join("encrypted"))
}

/// What stands for a path, whichever links lead there.
fn of_path(path: &Path) -> String {
    let whole = match is_address(path) {
        true => Ok(path.to_owned()),
        false => fs::canonicalize(path).or_else(|_| std::path::absolute(path)),
    };
    let whole = whole.unwrap_or_else(|_| path.to_owned());
    let hash = checksum::forgery_proof(&[0; 32], whole.as_os_str().as_bytes());
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn digits(id: &[u8; 16]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The files that were noted, of those with names that are wanted.
fn noted(directory: &Path, wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten().take(STORES_MAX);
    let named = entries.filter(|entry| entry.file_name().to_str().is_some_and(&wanted));
    named.map(|entry| entry.path()).collect()
}

/// Notes that a store was made or opened by a key.
pub(super) fn note(path: &Path, id: &[u8; 16]) {
    let Some(directory) = directory() else { return };
    let file = directory.join(format!("{}-{}", of_path(path), digits(id)));
    if file.exists() {
        return;
    }
    let made = || -> Result<()> {
        let failed = |e| Error::from_io(directory.display(), e);
        DirBuilder::new().recursive(true).mode(0o700).create(&directory).map_err(failed)?;
        let new = NewFile::create(&file)?;
        new.file().write_all(format!("{}\n", path.display()).as_bytes()).map_err(failed)?;
        new.publish()
    };
    match made() {
        Err(error) if error.kind() != Kind::Exists => {
            tracing::debug!("it is not remembered that {} is encrypted: {error}", path.display());
        }
        _ => {}
    }
}

fn file_of(path: &Path, id: &[u8; 16]) -> Option<PathBuf> {
    directory().map(|directory| directory.join(format!("{}-{}", of_path(path), digits(id))))
}

/// Notes the newest durable state of a store that is worked on.
pub(super) fn note_state(path: &Path, id: &[u8; 16], state: u64) {
    let Some(file) = file_of(path, id).filter(|file| file.exists()) else { return };
    let text = format!("{}\n{STATE}{state}\n", path.display());
    if let Err(error) = replace(&file, text.as_bytes()) {
        tracing::debug!("the state of {} is not remembered: {error}", path.display());
    }
}

/// The newest durable state that was noted of the store at this path with this id.
pub(super) fn state(path: &Path, id: &[u8; 16]) -> Option<u64> {
    let mut text = String::new();
    let file = fs::File::open(file_of(path, id)?).ok()?;
    file.take(NOTE_MAX).read_to_string(&mut text).ok()?;
    text.lines().last()?.strip_prefix(STATE)?.parse().ok()
}

/// A store was made here by the operator: what was here before counts no more. With an id it is
/// encrypted.
pub fn made(path: &Path, encrypted: Option<&[u8; 16]>) {
    if let Some(directory) = directory() {
        let path = format!("{}-", of_path(path));
        for file in noted(&directory, |name| name.starts_with(&path)) {
            let _ = fs::remove_file(file);
        }
    }
    if let Some(id) = encrypted {
        note(path, id);
    }
}

/// Errors when the store at this path is plain, and an encrypted one was there before, or had this id.
///
/// # Errors
/// `Denied`: it says which file is to be removed when the operator did it.
pub(super) fn refuse_plain(path: &Path, id: &[u8; 16]) -> Result<()> {
    let Some(directory) = directory() else { return Ok(()) };
    let (here, own) = (format!("{}-", of_path(path)), format!("-{}", digits(id)));
    let before = noted(&directory, |name| name.starts_with(&here) || name.ends_with(&own));
    let Some(file) = before.first() else { return Ok(()) };
    let why = format!(
        "{} is not encrypted, and an encrypted store was here, or had its id, when you opened it \
         before: somebody may have replaced it; if you did, remove {}",
        path.display(),
        file.display()
    );
    Err(Error::new(Kind::Denied, why))
}
