//! Sparse files: where there is data, so that holes need not be read.
//!
//! A file that occupies all of its length is not looked through. A file that no other user may have open is
//! looked through by this process (`seeking`). For all other files `asking` decides how much waiting and
//! reading the owner has left, and `helper` has another process look, which a user can hold up without
//! harm (decisions 78 and 82). Only the command itself starts such processes: in another program that uses
//! the library, the process looks by itself.

mod asking;
mod helper;
mod seeking;

use std::{fs::File, io, path::Path};

use onefold_core::{Error, Kind, Result};
use rustix::{
    fs::{FileType, OFlags},
    io::Errno,
    ioctl::{Getter, Opcode, ioctl, opcode},
};

use crate::beneath;
use asking::{Shared, ask};
use seeking::Question;

pub use helper::is_done;

/// Opens the file or block device at a path for reading, following links. A pipe, socket or other device is
/// not opened: opening could wait for ever, or begin something.
///
/// # Errors
/// `InvalidInput` for a path that is neither, `Busy` while another process has a lease on the file, and the
/// errors of the system.
pub fn open(path: &Path) -> Result<File> {
    let wrong = |kind, why: &str| Error::new(kind, format!("{} {why}", path.display()));
    match beneath::file_or_block_device(path, OFlags::RDONLY) {
        Ok((file, _)) => Ok(file),
        Err(Errno::INVAL) => Err(wrong(Kind::InvalidInput, "is neither a file nor a block device")),
        Err(Errno::AGAIN) => Err(wrong(Kind::Busy, "is held by a lease of another process")),
        Err(errno) => Err(Error::from_io(path.display(), errno.into())),
    }
}

/// The first stretch of data at or after byte `from` that begins before `end`, as its first byte
/// and the one after its last, cut at `end`. `None` when the rest up to `end` is a hole. A file
/// system without holes reports the whole file as data, and so does one that somebody keeps locked. May
/// move the file's position.
///
/// # Errors
/// `Busy` when nobody can look for the holes of a large file, and the errors of the system.
pub fn next_data(file: &File, from: u64, end: u64) -> Result<Option<(u64, u64)>> {
    if from >= end {
        return Ok(None);
    }
    match known(file) {
        Known::Rest(bytes) => Ok((from < bytes).then_some((from, end.min(bytes)))),
        Known::All => Ok(Some((from, end))),
        Known::Nothing(shared) => ask(file, shared, Question { from, end: Some(end) }),
    }
}

/// The error of a file that ended at byte `at` while it was read, and had `end` bytes before.
#[must_use]
pub fn cut_off(at: u64, end: u64) -> Error {
    let why =
        format!("it was cut off while it was read: it ends at byte {at}, and had {end} bytes");
    Error::new(Kind::Io, why)
}

/// Makes sure that a file or device still has its first `end` bytes: a part that was cut off reads as a hole.
///
/// # Errors
/// `Io`, as [`cut_off`] words it, when bytes are missing, and the errors of the system.
pub fn still_has(file: &File, end: u64) -> Result<()> {
    let now = length(file).map_err(|e| Error::from_io("cannot look at its length", e))?;
    if now < end { Err(cut_off(now, end)) } else { Ok(()) }
}

/// Bytes of an open file or block device. Leaves the position alone: a seek waits for all other calls that
/// use or change the position of the same description.
///
/// # Errors
/// The errors of the system.
pub fn length(file: &File) -> io::Result<u64> {
    let stat = rustix::fs::fstat(file)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::BlockDevice => Ok(device_length(file)?),
        _ => Ok(stat.st_size as u64),
    }
}

#[allow(unsafe_code, reason = "the system tells the length of a device by this alone")]
fn device_length(file: &File) -> Result<u64, Errno> {
    // The system's `BLKGETSIZE64`, which is declared with `size_t` and writes 64 bits.
    const BYTES: Opcode = opcode::read::<usize>(0x12, 114);
    // SAFETY: this call writes a number of 64 bits, for which the getter has the room, and nothing else.
    unsafe { ioctl(file, Getter::<BYTES, u64>::new()) }
}

/// The first byte at or after `from` that a file has data for; `None` when there is none. Unlike
/// [`next_data`] it does not look for the end of that data, which costs as much as the rest of the file
/// has pieces. May move the file's position.
///
/// # Errors
/// As [`next_data`].
pub fn first_data(file: &File, from: u64) -> Result<Option<u64>> {
    match known(file) {
        Known::Rest(bytes) => Ok((from < bytes).then_some(from)),
        Known::All => Ok(Some(from)),
        Known::Nothing(shared) => {
            let found = ask(file, shared, Question { from, end: None })?;
            Ok(found.map(|(start, _)| start))
        }
    }
}

/// The holes of a file, as far as they are known without looking for them.
enum Known {
    /// The file has no hole, and so many bytes.
    Rest(u64),
    /// A device, which has no holes and does not tell its length.
    All,
    /// The file may have holes, and another user may have it open.
    Nothing(Option<Shared>),
}

/// Finds out from the file's length, blocks, owner and mode whether it may have holes. Most files occupy all
/// of their length, and have none.
fn known(file: &File) -> Known {
    let Ok(stat) = rustix::fs::fstat(file) else { return Known::All };
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Known::All;
    }
    let bytes = stat.st_size as u64;
    match stat.st_blocks as u64 >= bytes.div_ceil(512) {
        true => Known::Rest(bytes),
        false => {
            let own = rustix::process::geteuid().as_raw();
            let is_shared = stat.st_uid != own || stat.st_mode & 0o077 != 0;
            let holes = bytes - stat.st_blocks as u64 * 512;
            Known::Nothing(is_shared.then_some(Shared { owner: stat.st_uid, holes }))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs::OpenOptions, os::unix::fs::FileExt};

    use super::*;

    #[test]
    fn holes_are_skipped_and_ends_respected() {
        let path = std::env::temp_dir().join(format!("onefold-sparse-{}", std::process::id()));
        let file = OpenOptions::new()
            .create(true)
            .truncate(true)
            .read(true)
            .write(true)
            .open(&path)
            .unwrap();
        std::fs::remove_file(&path).unwrap();
        let mib = 1 << 20;
        file.set_len(16 * mib).unwrap();
        file.write_all_at(&[1; 4096], 4 * mib).unwrap();
        let found = next_data(&file, 0, 16 * mib).unwrap();
        // A file system without holes is allowed to say that all is data.
        if found != Some((0, 16 * mib)) {
            let (start, end) = found.unwrap();
            assert!(
                start <= 4 * mib && start > 2 * mib && end >= 4 * mib + 4096 && end < 8 * mib,
                "{start} {end}"
            );
            assert_eq!(next_data(&file, end, 16 * mib).unwrap(), None);
            assert_eq!(next_data(&file, 0, 2 * mib).unwrap(), None);
            assert_eq!(
                next_data(&file, 4 * mib, 4 * mib + 10).unwrap(),
                Some((4 * mib, 4 * mib + 10))
            );
        }
        for from in [0, mib, 4 * mib + 5, 12 * mib] {
            let found = next_data(&file, from, 16 * mib).unwrap().map(|(start, _)| start);
            assert_eq!(first_data(&file, from).unwrap(), found);
        }
        assert_eq!(first_data(&file, 16 * mib).unwrap(), None);
        assert_eq!(next_data(&file, 16 * mib, 16 * mib).unwrap(), None);
        assert_eq!(next_data(&file, u64::MAX - 1, 5).unwrap(), None);
    }
}
