//! `onefold cat`: one file of a snapshot, on standard output.

use std::{
    ffi::OsString,
    io::{ErrorKind, Write},
    os::unix::ffi::OsStrExt,
    path::PathBuf,
};

use clap::Args;
use onefold_archive::{Content, TreeReader, TreeWhat, Verify};
use onefold_core::{Error, Kind};

use super::{archive_at, gathered::Gathered, named, snapshots};
use onefold_console::{failure::Failure, size::Size};

/// Writes a file of a snapshot to standard output
///
/// Only the pages on the way to the file are read, and each chunk is compared with its fingerprint.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  onefold cat backups web1@2026-11-22 /etc/fstab")]
pub(crate) struct Options {
    /// The archive
    #[arg(value_name = "ARCHIVE")]
    store: PathBuf,

    /// The snapshot: SET, SET~N for the Nth before the newest, SET@DATE, or digits of its id
    snapshot: String,

    /// The path of the file. Names may be written as `ls` shows them, with \xff for a byte that is no text
    path: OsString,

    /// Memory for the archive's tables, besides an allowance that grows with the bytes that they
    /// occupy
    #[arg(long, default_value = "64M", value_name = "SIZE")]
    memory: Size,
}

/// Writes it.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let archive = archive_at(&options.store, snapshots::NONE)?.open_to_read(options.memory.0)?;
    let mut reader = TreeReader::new(&archive)?;
    let tables = reader.tables().clone();
    let snapshot = snapshots::named(&tables, &options.snapshot)?;
    let (_, entry) = named::find(&mut reader, snapshot, &options.path)?;
    let shown = named::shown(options.path.as_bytes());
    let TreeWhat::File(bytes, map) = &entry.what else {
        return Err(Failure::usage(format!("'{shown}' is no file")));
    };
    if entry.is_in_part {
        tracing::warn!("it could not be read to its end when it was stored");
    }
    let mut out = std::io::stdout().lock();
    let mut write = |bytes: &[u8]| out.write_all(bytes).map_err(|e| failed(&e));
    let mut gathered = Gathered::new(&mut write);
    let read = reader.read(*bytes, map, Verify::Chunks, &mut |content| match content {
        Content::Bytes(bytes) => gathered.bytes(bytes),
        Content::Zeroes(n) | Content::Hole(n) => gathered.zeroes(n),
    });
    // What came before damage goes out, too.
    let ended = gathered.end();
    match read.and(ended).and_then(|()| out.flush().map_err(|e| failed(&e))) {
        // The reader has seen enough.
        Err(error) if error.kind() == Kind::Stopped => Ok(()),
        done => Ok(done.map_err(|error| error.context(shown))?),
    }
}

fn failed(error: &std::io::Error) -> Error {
    match error.kind() {
        ErrorKind::BrokenPipe => Error::new(Kind::Stopped, "the reader is gone"),
        kind => Error::from_io("the output can't be written", std::io::Error::from(kind)),
    }
}
