//! `onefold get`: a stream out of an archive, to standard output, a file or a directory.

use std::{
    fs::File,
    io::{ErrorKind, Write},
    path::{Path, PathBuf},
};

use clap::Args;
use onefold_archive::{
    format::record::{Shape, Stream},
    get::{Content, Reader, Verify},
    listing::Listing,
};
use onefold_backend::{
    room::room,
    tree::{Restorer, write_part},
};
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

    /// Memory for an archive's tables, besides what goes with the bytes that they occupy
    #[arg(long, default_value = "64M", value_name = "SIZE")]
    memory: Size,

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
    let archive = ArchiveDir::look(&options.archive)?.open_to_read(options.memory.0)?;
    let mut reader = Reader::new(&archive)?;
    let stream = reader.stream(&options.name)?;
    let verify = if options.verify { Verify::Chunks } else { Verify::Groups };
    match (stream.shape, &options.directory, &options.output) {
        (Shape::Tree, Some(root), _) => tree(&mut reader, &stream, root, verify)?,
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
    fits(path, reader.sizes(&stream.recipe)?.1, 1)?;
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

/// Refuses what can't fit where it shall go.
fn fits(path: &Path, bytes: u64, files: u64) -> Result<()> {
    let room = room(path)?;
    let full = |what: String| Err(Error::new(Kind::NoSpace, format!("{}: {what}", path.display())));
    if bytes > room.bytes {
        return full(format!("{} are to be restored, and {} are free", Size(bytes), Size(room.bytes)));
    }
    match room.files {
        Some(free) if files > free => {
            full(format!("more than {free} files are to be restored, and its file system takes no more than these"))
        }
        _ => Ok(()),
    }
}

/// The file that content goes to now.
struct Target {
    listing: Listing,
    entry: Option<Entry>,
    file: Option<File>,
    /// The range of data, and how much of it is written.
    range: usize,
    written: u64,
}

/// Restores a tree. Its listing is read four times, so that none of it needs to be held: to see that all fits, for files, for links, and for what comes
/// last of each directory.
fn tree(reader: &mut Reader, stream: &Stream, root: &Path, verify: Verify) -> Result<()> {
    look(reader, stream, root)?;
    let mut restorer = Restorer::new(root)?;
    files(reader, stream, &mut restorer, verify)?;
    let mut links = Listing::of(reader, stream);
    while let Some(entry) = links.next()? {
        restorer.link(&entry)?;
    }
    finish(&mut Listing::of(reader, stream), &mut restorer)
}

/// Sees that listing and data agree and fit, before anything is made.
fn look(reader: &mut Reader, stream: &Stream, root: &Path) -> Result<()> {
    let (all, data) = reader.sizes(&stream.recipe)?;
    fits(root, data, 0)?;
    let (mut listing, mut entries, mut listed) = (Listing::of(reader, stream), 0, 0u64);
    let most = room(root)?.files.unwrap_or(u64::MAX);
    while let Some(entry) = listing.next()? {
        entries += 1;
        if let What::File { data, .. } = &entry.what {
            listed = data.iter().fold(listed, |listed, range| listed.saturating_add(range.1));
        }
        if listed > all {
            return Err(Error::new(Kind::Corrupt, "the tree has less data than its listing"));
        }
        if entries > most {
            return fits(root, data, entries);
        }
    }
    if listed < all { Err(Error::new(Kind::Corrupt, "the tree has more data than its listing")) } else { Ok(()) }
}

/// Makes directories, and files with their data.
fn files(reader: &mut Reader, stream: &Stream, restorer: &mut Restorer, verify: Verify) -> Result<()> {
    let (bar, mut done) = (Progress::new("restoring"), 0);
    let mut target = Target { listing: Listing::of(reader, stream), entry: None, file: None, range: 0, written: 0 };
    next_file(&mut target, restorer)?;
    reader.read(&stream.recipe, verify, &mut |content| {
        let (mut bytes, mut zeroes): (&[u8], u64) = match content {
            Content::Bytes(bytes) => (bytes, 0),
            Content::Zeroes(n) => (&[], n),
        };
        while !bytes.is_empty() || zeroes > 0 {
            let Some((start, length)) = range_of(&target) else {
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
                if range_of(&target).is_none() {
                    end_file(&mut target, restorer)?;
                    next_file(&mut target, restorer)?;
                }
            }
        }
        bar.set(done, stream.bytes);
        Ok(())
    })?;
    if target.entry.is_some() { Err(Error::new(Kind::Corrupt, "the tree has less data than its listing")) } else { Ok(()) }
}

fn range_of(target: &Target) -> Option<(u64, u64)> {
    match &target.entry.as_ref()?.what {
        What::File { data, .. } => data.get(target.range).copied(),
        _ => None,
    }
}

fn end_file(target: &mut Target, restorer: &Restorer) -> Result<()> {
    if let (Some(entry), Some(file)) = (target.entry.take(), target.file.take()) {
        restorer.finish_file(&entry, &file)?;
    }
    Ok(())
}

/// Makes directories and empty files up to the next file that has data.
fn next_file(target: &mut Target, restorer: &mut Restorer) -> Result<()> {
    (target.range, target.written) = (0, 0);
    loop {
        target.entry = target.listing.next()?;
        let Some(entry) = &target.entry else { return Ok(()) };
        target.file = restorer.make(entry)?;
        if target.file.is_some() {
            if range_of(target).is_some() {
                return Ok(());
            }
            end_file(target, restorer)?;
        }
    }
}

/// Gives everything its owner, attributes, mode and time; what is in a directory is done before it.
fn finish(listing: &mut Listing, restorer: &mut Restorer) -> Result<()> {
    // Directories around what comes next.
    let mut around: Vec<Entry> = Vec::new();
    let mut bytes = 0;
    loop {
        let entry = listing.next()?;
        while let Some(last) = around.pop_if(|last| entry.as_ref().is_none_or(|entry| !is_in(entry, last))) {
            bytes -= memory_of(&last);
            restorer.finish(&last)?;
        }
        let Some(entry) = entry else { return Ok(()) };
        if entry.what != What::Directory {
            restorer.finish(&entry)?;
            continue;
        }
        bytes += memory_of(&entry);
        if bytes > AROUND_BYTES {
            return Err(Error::new(Kind::Memory, "the directories around an entry of the listing have too many attributes"));
        }
        around.push(entry);
    }
}

/// Memory for directories that are around an entry.
const AROUND_BYTES: usize = 64 << 20;

fn memory_of(entry: &Entry) -> usize {
    let attributes = entry.attributes.iter().map(|(name, value)| name.len() + value.len() + size_of::<(Vec<u8>, Vec<u8>)>());
    size_of::<Entry>() + entry.path.len() + attributes.sum::<usize>()
}

fn is_in(entry: &Entry, directory: &Entry) -> bool {
    directory.path.is_empty() || entry.path.strip_prefix(&directory.path[..]).is_some_and(|rest| rest.starts_with(b"/"))
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
