//! The verbs, one file or folder each. A verb finds out which engine made the store, and refuses
//! what the engine lacks.

pub(crate) mod accept;
pub(crate) mod audit;
pub(crate) mod backup;
mod budget;
pub(crate) mod cat;
pub(crate) mod check;
pub(crate) mod cluster;
pub(crate) mod copied;
mod copies;
pub(crate) mod copy;
pub(crate) mod create;
pub(crate) mod diff;
pub(crate) mod domain;
pub(crate) mod estimate;
mod exclude;
pub(crate) mod find;
pub(crate) mod forget;
mod gathered;
pub(crate) mod gc;
pub(crate) mod get;
pub(crate) mod grow;
pub(crate) mod image;
pub(crate) mod index;
pub(crate) mod inspect;
mod keeping;
pub(crate) mod key;
pub(crate) mod ls;
pub(crate) mod mount;
pub(crate) mod mv;
mod named;
mod negotiate;
pub(crate) mod node;
mod patience;
mod portion;
pub(crate) mod put;
mod receiving;
pub(crate) mod repair;
pub(crate) mod replicate;
pub(crate) mod restore;
pub(crate) mod rm;
pub(crate) mod scrub;
pub(crate) mod serve;
pub(crate) mod snapshot;
pub(crate) mod snapshots;
pub(crate) mod status;
pub(crate) mod tls;
pub(crate) mod upgrade;
pub(crate) mod volume;
mod waiting;
pub(crate) mod worker;

use std::{
    path::Path,
    time::{Duration, Instant},
};

use onefold::StoreKind;
use onefold_console::failure::Failure;
use onefold_core::{Error, Kind, Result};

use onefold::parts::{Found, archive_dir::ArchiveDir, control::Client, store_file::StoreFile};

/// How long a verb waits for a server that is just coming up or going down.
const CHANGE_WAIT: Duration = Duration::from_secs(3);

/// Says which engine made a store, and why it refuses what was asked for.
fn refused(store: &Path, found: &Found, why: &str) -> Failure {
    let kind = match found.kind() {
        StoreKind::Block => "a block store",
        StoreKind::Archive => "an archive",
        _ => "a store of the cluster engine",
    };
    Failure::new(format!("{} is {kind}: {why}", store.display()))
}

/// The archive at a path, for verbs that no other engine has.
fn archive_at(store: &Path, why_not: &str) -> Result<ArchiveDir, Failure> {
    match Found::at(store)? {
        Found::Archive(directory) => Ok(directory),
        other => Err(refused(store, &other, why_not)),
    }
}

/// The block store at a path, for verbs about snapshots, which no other engine has.
fn block_store(store: &Path) -> Result<Box<StoreFile>, Failure> {
    block_store_or(store, "it has no snapshots of volumes")
}

/// The block store at a path, for verbs that no other engine has.
fn block_store_or(store: &Path, why_not: &str) -> Result<Box<StoreFile>, Failure> {
    match Found::at(store)? {
        Found::Block(file) => Ok(file),
        other => Err(refused(store, &other, why_not)),
    }
}

/// Says what is full, what is kept and what makes room, when a full disk ended what stores into an archive.
fn with_advice(error: Error, store: &Path) -> Error {
    if error.kind() != Kind::NoSpace {
        return error;
    }
    let store = store.display();
    let why = error.to_string();
    // The error of a server comes as its text. Other bounds are no full disk.
    let is_disk = ["No space left", "quota"].iter().any(|words| why.contains(words));
    let (why, also) = match is_disk {
        true => (
            format!(
                "the disk of {store} is full ({why}): the archive has all that it had before, and this is not \
                 in it"
            ),
            "; besides its data an archive takes 12 MiB, which it keeps for these verbs, and 16 MiB ahead \
             for its log",
        ),
        false => (why, ""),
    };
    let what = format!(
        "{why}; what makes room: `onefold forget` or `onefold rm`, and `onefold gc {store} --trash 0` after \
         it, or a larger disk{also}"
    );
    Error::new(Kind::NoSpace, what)
}

/// The path of an output, unless it is `-`, which stands for standard output.
fn output_path(output: Option<&Path>) -> Option<&Path> {
    output.filter(|path| *path != Path::new("-"))
}

/// Why a block store has no streams.
const VOLUMES_ONLY: &str = "it holds volumes only, which `onefold serve` offers over NBD";

/// Asks the server of the store when there is one, else does it here. A server that is just coming
/// or going is waited for.
fn served_or_not<T>(
    file: &StoreFile,
    mut ask: impl FnMut(&mut Client) -> Result<T>,
    mut here: impl FnMut() -> Result<T>,
) -> Result<T> {
    let begun = Instant::now();
    loop {
        match Client::connect(file) {
            Ok(mut server) => return ask(&mut server),
            Err(error) if error.kind() != Kind::NotFound => return Err(error),
            Err(_) => {}
        }
        match here() {
            Err(error) if error.kind() == Kind::Busy && begun.elapsed() < CHANGE_WAIT => {
                std::thread::sleep(Duration::from_millis(50))
            }
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_told_with_what_helps() {
        let told = |kind, why: &str| {
            with_advice(Error::new(kind, why.to_owned()), Path::new("/srv/a")).to_string()
        };
        assert!(told(Kind::NoSpace, "it failed").starts_with("it failed; "));
        let full = told(Kind::NoSpace, "x: No space left on device (os error 28)");
        assert!(full.starts_with("the disk of /srv/a is full (x: No space left"), "{full}");
        for says in ["has all that it had before", "`onefold gc /srv/a --trash 0`", "16 MiB ahead"]
        {
            assert!(full.contains(says), "{full}");
        }
        assert_eq!(told(Kind::Io, "No space left"), "No space left");
    }
}
