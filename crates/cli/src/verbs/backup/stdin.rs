//! What a command writes, or what comes on standard input, as the only file of a snapshot.

use std::{
    ffi::OsString,
    io::Read,
    process::{Command, Stdio},
};

use onefold_archive::{Attributes, Event, FileMap, Stat, TreeEntry, TreeFeeder, TreeWhat};
use onefold_core::{Error, Kind, Result};

use super::walk::Counts;
use onefold::parts::archive_dir::now;

/// Tells of a directory with one file, the content of which comes from `command`.
///
/// # Errors
/// `InvalidInput` for the name and for a command that failed, and those of the system.
pub(super) fn tell(
    name: &str,
    command: &[OsString],
    feeder: &mut TreeFeeder<'_>,
    counts: &mut Counts,
) -> Result<()> {
    if name.is_empty() || name.contains('/') || matches!(name, "." | "..") || name.len() > 255 {
        return Err(Error::new(Kind::InvalidInput, format!("'{name}' can't be a file's name")));
    }
    let (root, mut known) = feeder.parents.take_root();
    known.extend(feeder.parents.enter(&root)?);
    let directory = entry(b"", TreeWhat::Directory(None), 0o700);
    feeder.event(Event::Enter(directory, Stat::default(), known))?;
    let before = feeder.parents.find(name.as_bytes())?;
    let known = feeder.parents.pages_of(&before)?;
    if !known.is_empty() {
        feeder.event(Event::Known(known))?;
    }
    let bytes = match command {
        [] => copy(&mut std::io::stdin().lock(), feeder)?,
        [program, arguments @ ..] => of_command(program, arguments, feeder)?,
    };
    (counts.read, counts.read_bytes, counts.entries, counts.bytes) = (1, bytes, 1, bytes);
    let file = entry(name.as_bytes(), TreeWhat::File(0, FileMap::default()), 0o600);
    feeder.event(Event::File(file, Stat::default(), None))?;
    feeder.event(Event::End(0))
}

fn entry(name: &[u8], what: TreeWhat, mode: u32) -> TreeEntry {
    TreeEntry {
        name: name.to_vec(),
        what,
        mode,
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        seconds: now() as i64,
        nanoseconds: 0,
        link: 0,
        is_in_part: false,
        attributes: Attributes::default(),
    }
}

/// Gives all that a command writes; an error when the command does not succeed.
fn of_command(
    program: &OsString,
    arguments: &[OsString],
    feeder: &mut TreeFeeder<'_>,
) -> Result<u64> {
    let shown = program.display().to_string();
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| Error::from_io(format_args!("{shown} can't be run"), error))?;
    let copied = match child.stdout.take() {
        Some(mut output) => copy(&mut output, feeder),
        None => Ok(0),
    };
    if copied.is_err() {
        // It writes to nobody any more.
        let _ = child.kill();
    }
    let status = child.wait().map_err(|error| {
        Error::from_io(format_args!("how {shown} ended can't be found out"), error)
    })?;
    let bytes = copied?;
    if status.success() {
        return Ok(bytes);
    }
    let what = format!("{shown} failed ({status}); no snapshot was made");
    Err(Error::new(Kind::InvalidInput, what))
}

fn copy(from: &mut impl Read, feeder: &mut TreeFeeder<'_>) -> Result<u64> {
    let mut bytes = 0;
    loop {
        let n = feeder.fill(|room| {
            loop {
                match from.read(room) {
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                    Err(error) => {
                        return Err(Error::from_io("what is to be stored can't be read", error));
                    }
                    Ok(n) => return Ok(n),
                }
            }
        })?;
        if n == 0 {
            return Ok(bytes);
        }
        bytes += n as u64;
    }
}
