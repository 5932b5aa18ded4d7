//! Notes of the stores that this user made or opened by a key. An attacker who can write a medium can put a
//! plain store in place of an encrypted one, with the same id; a user who then gives no key would write to it
//! in plain. So a plain store is refused where an encrypted one was, and under its id.
//!
//! The notes of an encrypted block store also have its newest durable state, so that the user who worked
//! on the store notices an older image of the disk. A state counts for the store's id, whatever path
//! leads to the store: by links, mounts and other names of a file there are more paths than anybody
//! remembers.
//!
//! Each note is a file in `encrypted` below `$STATE_DIRECTORY`, `$XDG_STATE_HOME/onefold` or
//! `~/.local/state/onefold`. The file's name has a hash of the store's path and the store's id; the file
//! holds the path, and a line with the state's number. A store that was reached by way of a link has
//! several notes, of the path that was given and of the place to which the link led. Where there is no
//! such directory, or it takes no file, nothing is remembered, and no opening fails for that.

use std::{
    fs::{self, DirBuilder},
    io::{Read, Write},
    os::unix::{ffi::OsStrExt, fs::DirBuilderExt},
    path::{Path, PathBuf},
};

use onefold_backend::new_file::{NewFile, replace};
use onefold_core::{Error, Kind, Result, checksum, hex_digits};

use super::{
    address::{Address, is_away, is_bucket},
    user_directory::user_directory,
};

/// The word before a state's number.
const STATE: &str = "state ";

/// Bytes of a note at most: a path, and a number.
const NOTE_MAX: u64 = 64 << 10;

/// Notes of one store that are taken at most.
const NOTES_MAX: usize = 10_000;

/// The directory of the notes, which may not be there yet; `None` when no directory of this user is named.
pub(super) fn directory() -> Option<PathBuf> {
    let places =
        [("STATE_DIRECTORY", ""), ("XDG_STATE_HOME", "onefold"), ("HOME", ".local/state/onefold")];
    user_directory(&places).map(|at| at.join("encrypted"))
}

/// Makes the directory of the notes, and those above it, for this user alone.
///
/// # Errors
/// The errors of the system.
pub(super) fn make(directory: &Path) -> Result<()> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(directory);
    made.map_err(|e| Error::from_io(directory.display(), e))
}

/// The text of a note without its last line's end, of `bytes_max` bytes at most; `None` when it can't be
/// read.
pub(super) fn text_of(file: &Path, bytes_max: u64) -> Option<String> {
    let mut text = String::new();
    fs::File::open(file).ok()?.take(bytes_max).read_to_string(&mut text).ok()?;
    Some(text.trim_end_matches('\n').to_owned())
}

/// Hashes that stand for a path: of the place to which it leads, of the path as it was given, and of its name
/// in the directory to which the rest of it leads, where these differ. Somebody who changes a link, or puts
/// one in the place of a store, changes one of them only.
fn of_path(path: &Path) -> Vec<String> {
    let mut places = Vec::new();
    if let Some(address) = Some(path).filter(|path| is_bucket(path)).map(Address::of) {
        places.push(address.map_or_else(|_| path.to_owned(), |address| address.key().into()));
    } else if is_away(path) {
        places.push(path.to_owned());
    } else {
        let given = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let parent = given.parent().and_then(|parent| fs::canonicalize(parent).ok());
        let named = parent.zip(given.file_name()).map(|(parent, name)| parent.join(name));
        let all = [fs::canonicalize(path).ok(), Some(given), named];
        for place in all.into_iter().flatten() {
            if !places.contains(&place) {
                places.push(place);
            }
        }
    }
    places.iter().map(|place| hash(place)).collect()
}

fn hash(path: &Path) -> String {
    let hash = checksum::forgery_proof(&[0; 32], path.as_os_str().as_bytes());
    hex_digits(hash)
}

/// The files that were noted, of those with names that are wanted.
fn noted(directory: &Path, wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let named = entries.filter(|entry| entry.file_name().to_str().is_some_and(&wanted));
    named.take(NOTES_MAX).map(|entry| entry.path()).collect()
}

/// Notes that a store was made or opened by a key.
pub(super) fn note(path: &Path, id: &[u8; 16]) {
    let known = files_of(path, id);
    // A path that is new for a store begins with the newest state that the others have.
    let state = state(id);
    for file in known.iter().filter(|file| !file.exists()) {
        let Some(directory) = file.parent() else { continue };
        let made = || -> Result<()> {
            make(directory)?;
            let new = NewFile::create(file)?;
            let text = text(&path.display().to_string(), state);
            let written = new.file().write_all(text.as_bytes());
            written.map_err(|e| Error::from_io(directory.display(), e))?;
            new.publish()
        };
        match made() {
            Err(error) if error.kind() != Kind::Exists => {
                let path = path.display();
                tracing::debug!("it is not remembered that {path} is encrypted: {error}");
            }
            _ => {}
        }
    }
}

/// The content of a note.
fn text(path: &str, state: Option<u64>) -> String {
    let state = state.map_or_else(String::new, |state| format!("{STATE}{state}\n"));
    format!("{path}\n{state}")
}

/// The notes of a store, whether they are there or not.
fn files_of(path: &Path, id: &[u8; 16]) -> Vec<PathBuf> {
    let Some(directory) = directory() else { return Vec::new() };
    let name = |place: String| directory.join(format!("{place}-{}", hex_digits(id)));
    of_path(path).into_iter().map(name).collect()
}

/// Notes the newest durable state of a store that is worked on, in all of its notes: the operator may have
/// taken an older one, and then that counts.
pub(super) fn note_state(id: &[u8; 16], state: u64) {
    for file in notes_of(id) {
        let Some((path, _)) = read_note(&file) else { continue };
        if let Err(error) = replace(&file, text(&path, Some(state)).as_bytes()) {
            tracing::debug!("the state of {} is not remembered: {error}", hex_digits(id));
        }
    }
}

/// The newest durable state that was noted of the store with this id, by whatever path.
pub(super) fn state(id: &[u8; 16]) -> Option<u64> {
    notes_of(id).iter().filter_map(|file| read_note(file)?.1).max()
}

/// The notes of a store that are there, of all paths.
fn notes_of(id: &[u8; 16]) -> Vec<PathBuf> {
    let own = format!("-{}", hex_digits(id));
    // A name that begins with a dot is that of a note which was being written.
    let is_own = |name: &str| name.ends_with(&own) && !name.starts_with('.');
    directory().map_or_else(Vec::new, |at| noted(&at, is_own))
}

/// The path that a note holds, and the state.
fn read_note(file: &Path) -> Option<(String, Option<u64>)> {
    let text = text_of(file, NOTE_MAX)?;
    let stated = text
        .rsplit_once('\n')
        .and_then(|(path, last)| Some((path, last.strip_prefix(STATE)?.parse().ok()?)));
    Some(
        stated.map_or_else(|| (text.clone(), None), |(path, state)| (path.to_owned(), Some(state))),
    )
}

/// True for the name of a note of one of these places.
fn is_of(name: &str, places: &[String]) -> bool {
    name.split_once('-').is_some_and(|(place, _)| places.iter().any(|one| one == place))
}

/// Notes that the operator made a store here: notes of stores that were here before are removed. With an id
/// the new store is encrypted.
pub fn made(path: &Path, encrypted: Option<&[u8; 16]>) {
    if let Some(directory) = directory() {
        let places = of_path(path);
        for file in noted(&directory, |name| is_of(name, &places)) {
            let _ = fs::remove_file(file);
        }
    }
    if let Some(id) = encrypted {
        note(path, id);
    }
}

/// Refuses a plain store where an encrypted one was before, at this path or with this id.
///
/// # Errors
/// `Denied`: the error names the files that an operator who made the plain store removes.
pub(super) fn refuse_plain(path: &Path, id: &[u8; 16]) -> Result<()> {
    let Some(directory) = directory() else { return Ok(()) };
    let (places, own) = (of_path(path), format!("-{}", hex_digits(id)));
    let before = noted(&directory, |name| is_of(name, &places) || name.ends_with(&own));
    if before.is_empty() {
        return Ok(());
    }
    let files: Vec<_> = before.iter().map(|file| file.display().to_string()).collect();
    let why = format!(
        "{} is not encrypted, and an encrypted store was here, or had its id, when you opened it \
         before: somebody may have replaced it; if you did, remove {}",
        path.display(),
        files.join(" and ")
    );
    Err(Error::new(Kind::Denied, why))
}
