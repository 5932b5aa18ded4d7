//! Files without a name, for what is too large for memory.

use std::{fs::File, path::PathBuf};

use onefold_core::{Error, Result};
use rustix::{
    fs::{Mode, OFlags},
    io::Errno,
};

use crate::random::random_bytes;

/// The directory for large files that nobody keeps, unless `TMPDIR` names another one.
const SCRATCH: &str = "/var/tmp";

/// An empty file without a name, to be written and read by this process alone; its space is free
/// again when it is closed. It lies in the directory that `TMPDIR` names, else in `/var/tmp`.
///
/// # Errors
/// Those of the system, with the directory.
pub fn scratch() -> Result<File> {
    let place = std::env::var_os("TMPDIR").filter(|place| !place.is_empty());
    let place = place.map_or_else(|| PathBuf::from(SCRATCH), PathBuf::from);
    let wrong = |errno: Errno| Error::from_io(place.display(), errno.into());
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    match rustix::fs::open(&place, flags | OFlags::TMPFILE, Mode::RUSR | Mode::WUSR) {
        Ok(file) => Ok(File::from(file)),
        // The file system knows no files without names.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
            let name = place.join(format!(".onefold-{:016x}", u64::from_le_bytes(random_bytes()?)));
            let new = flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
            let file = rustix::fs::open(&name, new, Mode::RUSR | Mode::WUSR).map_err(wrong)?;
            rustix::fs::unlink(&name).map_err(wrong)?;
            Ok(File::from(file))
        }
        Err(errno) => Err(wrong(errno)),
    }
}
