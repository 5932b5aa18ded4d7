//! The file `claim` of a folder in which one process works: a disk of five blocks, of which block 4
//! has the claim, as in a block store.

use std::path::Path;

use onefold_core::{BLOCK_BYTES, Error, Kind, Result};

use crate::{
    beneath::{Beneath, Word},
    file_disk::{FileDisk, Io, Options},
    lock,
};

/// The name of the claim file.
pub const CLAIM: &str = "claim";

/// Blocks up to the claim and with it.
const BLOCKS: u64 = 5;

/// Opens the claim of a folder, and makes it when it is not there; locked as long as the disk is.
/// The folder must hold one of the files in `beside`, which make it what it was when it was looked
/// at: who can rename it, or a folder above it, may have put another one in its place.
///
/// # Errors
/// `Busy` while another process has it open, or when it was replaced, `Denied` for what is no file
/// of the user for whom we write, and those of the system.
pub fn claim_file(folder: &Path, word: Word, beside: &[&str]) -> Result<FileDisk> {
    let own = Beneath::open(folder, word)?;
    own.may_write()?;
    if !beside.iter().any(|name| own.file(name, false).is_ok()) {
        let why = format!("{} was replaced while it was being opened", folder.display());
        return Err(Error::new(Kind::NotFound, why));
    }
    let made = match own.file(CLAIM, true) {
        Err(error) if error.kind() == Kind::NotFound => own.create(CLAIM),
        found => found,
    };
    // Another process may have made it meanwhile.
    let file = match made {
        Err(error) if error.kind() == Kind::Exists => own.file(CLAIM, true),
        made => made,
    }?;
    let options = Options { io: Io::Syscalls, ..Options::default() };
    options.take(file, &folder.join(CLAIM), BLOCKS * BLOCK_BYTES as u64)
}

/// Whether a process works in a folder, by the lock on its claim; `None` where that can't be told, as on
/// a file system that other machines reach.
#[must_use]
pub fn claim_is_held(folder: &Path) -> Option<bool> {
    let file = Beneath::open(folder, Word::default()).and_then(|own| own.file(CLAIM, false));
    file.ok().and_then(|file| lock::is_held(&file))
}
