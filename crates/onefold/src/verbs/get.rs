//! `onefold get`: a stream out of an archive, to standard output, a file or a directory.

use std::{
    fs::File,
    io::{ErrorKind, Write},
    path::{Path, PathBuf},
    sync::Arc,
};

use clap::Args;
use onefold_archive::{
    Archive,
    format::{
        listing,
        record::{Shape, Stream},
    },
    get::{Content, Reader, Verify},
};
use onefold_backend::tree::{Restorer, write_part};
use onefold_core::{
    Error, Kind, Result,
    tree::{Entry, What},
};
use serde_json::json;

use crate::{archive_dir::ArchiveDir, failure::Failure, output, progress::Progress, size::Size};

/// Writes a stream to standard output or a file, or a directory below another one
///
/// Checksums are verified always. Restoring a directory replaces files of the same names, follows no links, and writes nothing outside.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  onefold get backups dump\n  onefold get backups vm1 --output vm1.raw\n  onefold get backups etc-monday -C restored"
)]
pub(crate) struct Options {
    /// The archive
    archive: PathBuf,

    /// The name
    name: String,

    /// The directory below which a directory is restored
    #[arg(short = 'C', long, value_name = "DIR", conflicts_with = "output")]
    directory: Option<PathBuf>,

    /// A new file, with holes for zeroes, instead of standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Compares each chunk with its fingerprint too
    #[arg(long)]
    verify: bool,

    /// Prints JSON, whose keys are stable, when data goes elsewhere than to standard output
    #[arg(long)]
    json: bool,
}

/// Bytes written to a pipe at once.
const OUT_BYTES: usize = 256 << 10;

/// Restores it.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    if options.json && options.directory.is_none() && options.output.is_none() {
        return Err(Failure::usage("standard output has the data: --json needs --output FILE or -C DIR"));
    }
    let archive = ArchiveDir::look(&options.archive)?.open_to_read()?;
    let mut reader = Reader::new(&archive)?;
    let stream = reader.stream(&options.name)?;
    let verify = if options.verify { Verify::Chunks } else { Verify::Groups };
    match (stream.shape, &options.directory, &options.output) {
        (Shape::Tree, Some(root), _) => tree(&archive, &mut reader, &stream, root, verify)?,
        (Shape::Tree, None, _) => return Err(Failure::usage(format!("'{}' is a directory: say where, with -C DIR", options.name))),
        (Shape::Bytes, Some(_), _) => {
            return Err(Failure::usage(format!("'{}' is no directory: leave out -C, or give --output FILE", options.name)));
        }
        (Shape::Bytes, None, Some(path)) => to_file(&mut reader, &stream, path, verify)?,
        (Shape::Bytes, None, None) => to_output(&mut reader, &stream, verify)?,
    }
    match options.json {
        true => output::json(&json!({ "name": options.name, "bytes": stream.bytes, "chunks": stream.chunks })),
        false => Ok(()),
    }
}

fn to_output(reader: &mut Reader, stream: &Stream, verify: Verify) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let zeroes = vec![0; OUT_BYTES];
    let mut held: Vec<u8> = Vec::with_capacity(OUT_BYTES * 2);
    let mut gone = false;
    let mut write = |bytes: &[u8]| match out.write_all(bytes) {
        // Who reads has seen enough.
        Err(e) if e.kind() == ErrorKind::BrokenPipe => Err(Error::new(Kind::Stopped, "the reader is gone")),
        written => written.map_err(|e| Error::from_io("the output can't be written", e)),
    };
    let mut read = reader.read(&stream.recipe, verify, &mut |content| {
        match content {
            Content::Bytes(bytes) => held.extend_from_slice(bytes),
            Content::Zeroes(mut n) => {
                write(&held)?;
                held.clear();
                while n > 0 {
                    let part = n.min(zeroes.len() as u64);
                    write(&zeroes[..part as usize])?;
                    n -= part;
                }
            }
        }
        if held.len() >= OUT_BYTES {
            write(&held)?;
            held.clear();
        }
        Ok(())
    });
    if read.is_ok() {
        read = write(&held);
    }
    gone |= read.as_ref().is_err_and(|error| error.kind() == Kind::Stopped);
    if gone { Ok(()) } else { read }
}

fn to_file(reader: &mut Reader, stream: &Stream, path: &Path, verify: Verify) -> Result<()> {
    let wrong = |e| Error::from_io(path.display(), e);
    let file = File::options().write(true).create_new(true).open(path).map_err(wrong)?;
    file.set_len(stream.bytes).map_err(wrong)?;
    let (bar, mut at) = (Progress::new("restoring"), 0);
    reader.read(&stream.recipe, verify, &mut |content| {
        match content {
            Content::Bytes(bytes) => {
                write_part(&file, at, bytes)?;
                at += bytes.len() as u64;
            }
            Content::Zeroes(n) => at += n,
        }
        bar.set(at, stream.bytes);
        Ok(())
    })
}

/// The file that content goes to now.
struct Target {
    /// Its entry.
    entry: usize,
    file: Option<File>,
    /// The range of data, and how much of it is written.
    range: usize,
    written: u64,
}

fn tree(archive: &Arc<Archive>, reader: &mut Reader, stream: &Stream, root: &Path, verify: Verify) -> Result<()> {
    let entries = entries(archive, reader, stream)?;
    let mut restorer = Restorer::new(root)?;
    let (bar, mut done) = (Progress::new("restoring"), 0);
    let mut target = Target { entry: 0, file: None, range: 0, written: 0 };
    next_file(&entries, &mut target, &mut restorer)?;
    reader.read(&stream.recipe, verify, &mut |content| {
        let (mut bytes, mut zeroes): (&[u8], u64) = match content {
            Content::Bytes(bytes) => (bytes, 0),
            Content::Zeroes(n) => (&[], n),
        };
        while !bytes.is_empty() || zeroes > 0 {
            let Some((start, length)) = range_of(&entries, &target) else {
                return Err(Error::new(Kind::Corrupt, "the tree has more data than its listing"));
            };
            let room = length - target.written;
            let n = room.min(if zeroes > 0 { zeroes } else { bytes.len() as u64 });
            if zeroes > 0 {
                // The file has a hole there already.
                zeroes -= n;
            } else {
                if let Some(file) = &target.file {
                    write_part(file, start + target.written, &bytes[..n as usize])?;
                }
                bytes = &bytes[n as usize..];
            }
            (target.written, done) = (target.written + n, done + n);
            if target.written == length {
                (target.range, target.written) = (target.range + 1, 0);
                if range_of(&entries, &target).is_none() {
                    end_file(&entries, &mut target, &restorer)?;
                    next_file(&entries, &mut target, &mut restorer)?;
                }
            }
        }
        bar.set(done, stream.bytes);
        Ok(())
    })?;
    if target.entry < entries.len() {
        return Err(Error::new(Kind::Corrupt, "the tree has less data than its listing"));
    }
    entries.iter().try_for_each(|entry| restorer.link(entry))?;
    // What is in a directory is done before it.
    entries.iter().rev().try_for_each(|entry| restorer.finish(entry))
}

fn range_of(entries: &[Entry], target: &Target) -> Option<(u64, u64)> {
    match &entries.get(target.entry)?.what {
        What::File { data, .. } => data.get(target.range).copied(),
        _ => None,
    }
}

fn end_file(entries: &[Entry], target: &mut Target, restorer: &Restorer) -> Result<()> {
    if let (Some(entry), Some(file)) = (entries.get(target.entry), target.file.take()) {
        restorer.finish_file(entry, &file)?;
        target.entry += 1;
    }
    Ok(())
}

/// Makes directories and empty files up to the next file that has data.
fn next_file(entries: &[Entry], target: &mut Target, restorer: &mut Restorer) -> Result<()> {
    (target.range, target.written) = (0, 0);
    while let Some(entry) = entries.get(target.entry) {
        target.file = restorer.make(entry)?;
        if target.file.is_some() {
            if range_of(entries, target).is_some() {
                return Ok(());
            }
            end_file(entries, target, restorer)?;
        } else {
            target.entry += 1;
        }
    }
    Ok(())
}

/// The listing of a tree.
pub(crate) fn entries(_archive: &Arc<Archive>, reader: &mut Reader, stream: &Stream) -> Result<Vec<Entry>> {
    let (mut held, mut entries) = (Vec::new(), Vec::new());
    reader.read(&stream.listing, Verify::Groups, &mut |content| {
        match content {
            Content::Bytes(bytes) => held.extend_from_slice(bytes),
            Content::Zeroes(n) => {
                let n = usize::try_from(n).ok().filter(|&n| n <= listing::ENTRY_BYTES_MAX);
                let n = n.ok_or_else(|| Error::new(Kind::Corrupt, "the listing of a tree can't be zeroes"))?;
                held.resize(held.len() + n, 0);
            }
        }
        listing::decode(&mut held, &mut |entry| {
            entries.push(entry);
            Ok(())
        })
    })?;
    if held.is_empty() { Ok(entries) } else { Err(Error::new(Kind::Corrupt, "the listing of a tree ends too early")) }
}

/// What a tree holds, as `ls` shows it.
pub(crate) fn show(entry: &Entry) {
    let (kind, bytes, target) = match &entry.what {
        What::Directory => ('d', 0, None),
        What::File { bytes, .. } => ('-', *bytes, None),
        What::Symlink { target } => ('l', 0, Some(target)),
        What::HardLink { target } => ('h', 0, Some(target)),
        What::Fifo => ('p', 0, None),
        What::Socket => ('s', 0, None),
        What::CharacterDevice(_) => ('c', 0, None),
        What::BlockDevice(_) => ('b', 0, None),
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).escape_debug().to_string();
    let path = if entry.path.is_empty() { ".".to_owned() } else { text(&entry.path) };
    let target = target.map_or_else(String::new, |target| format!(" -> {}", text(target)));
    output::line(format_args!("{kind}{:04o} {:>6} {:>6} {:>9}  {path}{target}", entry.mode, entry.uid, entry.gid, Size(bytes).to_string()));
}
