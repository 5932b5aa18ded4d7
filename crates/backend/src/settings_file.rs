//! Files that say what a program does, and that nobody else may change.

use std::{
    fs::OpenOptions,
    io::Read,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::Path,
};

use onefold_core::{Error, Kind, Result};

/// The text of a file of at most so many bytes, which only root and this process's user may write to.
///
/// # Errors
/// `Denied`: somebody else may change the file. `InvalidInput`: the file is no regular one, or no UTF-8, or longer.
/// Errors of the system. None of them names the file.
pub fn settings_file(path: &Path, bytes_max: u64) -> Result<String> {
    let wrong = |kind, why: &str| Error::new(kind, why);
    let failed = |e| Error::from_io("it can't be read", e);
    // A pipe would have the process wait for its other end.
    let calm = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
    let opened = OpenOptions::new().read(true).custom_flags(calm.bits() as i32).open(path);
    let file = opened.map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(wrong(Kind::InvalidInput, "it is no regular file"));
    }
    if ![rustix::process::geteuid().as_raw(), 0].contains(&metadata.uid()) {
        return Err(wrong(Kind::Denied, "it belongs to another user, who may change it"));
    }
    if metadata.mode() & 0o022 != 0 {
        return Err(wrong(Kind::Denied, "it can be changed by others: `chmod go-w` it"));
    }
    let mut bytes = Vec::new();
    file.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > bytes_max {
        return Err(Error::new(Kind::InvalidInput, format!("it has more than {bytes_max} bytes")));
    }
    String::from_utf8(bytes).map_err(|_| wrong(Kind::InvalidInput, "it is no UTF-8"))
}
