//! `onefold get`: a stream out of a store, to standard output, a file or a directory.

pub(super) mod listing;
pub(super) mod space;
mod tree;

use std::{
    io::{ErrorKind, Write},
    path::{Path, PathBuf},
};

use clap::Args;
use onefold_archive::{Content, Reader, Shape, Stream, Verify};
use onefold_backend::{
    new_file::NewFile,
    tree::{Choices, LeftOut},
};
use onefold_core::{Error, Kind, Result};
use serde_json::json;

use self::space::fits;
use super::{
    Found, VOLUMES_ONLY, cluster,
    gathered::{Gathered, Stretch},
    output_path, refused, snapshots,
};
use onefold::parts::operator::warn;
use onefold_console::{
    failure::Failure,
    output::{self, Answer},
    progress::Progress,
    size::{Size, counted},
};

/// Writes a stream to standard output or a file, or a directory below another one
///
/// The verb always verifies checksums. A directory is restored with modes, times, extended
/// attributes of users and ACLs, and for root with owners; what needs privileges is restored only
/// with --preserve-privileged. The verb leaves the directory below which it restores as it was,
/// writes nothing outside it, and goes through no symbolic link. When the command ends, files and
/// directories that it restored are durable.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
                  onefold get backups dump\n  \
                  onefold get backups vm1 --output vm1.raw\n  \
                  onefold get backups etc-monday -C restored")]
pub(crate) struct Options {
    /// The store: an archive, or a store of the cluster engine
    store: PathBuf,

    /// The name
    name: String,

    /// The directory below which a directory is restored
    #[arg(short = 'C', long, value_name = "DIR", conflicts_with = "output")]
    directory: Option<PathBuf>,

    /// Replaces files that have the name of a restored one, and restores into directories that
    /// exist. Without it, a name that exists is an error
    #[arg(long)]
    in_place: bool,

    /// Restores set-id bits, sticky bits of files, devices, and the attributes of the system (security.*,
    /// trusted.*) too
    #[arg(long)]
    preserve_privileged: bool,

    /// Writes a new file, with holes for zeroes, instead of standard output, for which - stands; the
    /// file gets its name when it is whole
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Compares each chunk with its fingerprint, too
    #[arg(long)]
    verify: bool,

    /// Memory for an archive's tables, besides an allowance that grows with the bytes that they
    /// occupy
    #[arg(long, default_value = "64M", value_name = "SIZE")]
    memory: Size,

    /// Prints JSON, whose keys are stable. Needs --output or --directory: standard output has the
    /// data otherwise
    #[arg(long)]
    json: bool,
}

/// Restores it.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let to = output_path(options.output.as_deref());
    if options.json && options.directory.is_none() && to.is_none() {
        return Err(Failure::usage(
            "standard output has the data: --json needs --output FILE or -C DIR",
        ));
    }
    if options.directory.is_none() && (options.in_place || options.preserve_privileged) {
        return Err(Failure::usage(
            "--in-place and --preserve-privileged are about a directory that is restored: give -C \
             DIR",
        ));
    }
    let directory = match Found::at(&options.store)? {
        Found::Archive(directory) => directory,
        Found::Cluster(url) if options.directory.is_none() => {
            let answer = Answer { json: options.json };
            return cluster::get(&url, &options.name, to, answer);
        }
        other @ Found::Block(_) => return Err(refused(&options.store, &other, VOLUMES_ONLY)),
        other => return Err(refused(&options.store, &other, "it holds no directories")),
    };
    let archive = directory.open_to_read(options.memory.0)?;
    let mut reader = Reader::new(&archive)?;
    let stream = reader.stream(&options.name).map_err(|error| {
        let (store, name) = (options.store.display(), options.name.escape_debug());
        let restore = format!("`onefold restore {store} {name} -C DIR` restores that");
        snapshots::hinted(error, &archive.tables(), &options.name, &restore)
    })?;
    let verify = if options.verify { Verify::Chunks } else { Verify::Groups };
    let mut report =
        json!({ "name": options.name, "bytes": stream.bytes, "chunks": stream.chunks });
    let mut in_part = 0;
    match (stream.shape, &options.directory, to) {
        (Shape::Tree, Some(root), _) => {
            if stream.is_incomplete() {
                tracing::warn!(
                    "'{}' is incomplete: a part of the directory could not be read when it was \
                     stored",
                    options.name
                );
            }
            let choices = Choices {
                in_place: options.in_place,
                privileged: options.preserve_privileged,
                spared: directory.identities(),
            };
            let missing = tree::restore(&archive, &mut reader, &stream, root, verify, choices)?;
            tell(&missing.left_out, options.preserve_privileged);
            in_part = missing.in_part;
            report["left_out"] = left_out(&missing.left_out);
            report["in_part"] = in_part.into();
        }
        (Shape::Tree, None, _) => {
            return Err(Failure::usage(format!(
                "'{}' is a directory: say where, with -C DIR",
                options.name
            )));
        }
        (Shape::Bytes, Some(_), _) => {
            return Err(Failure::usage(format!(
                "'{}' is no directory: leave out -C, or give --output FILE",
                options.name
            )));
        }
        (Shape::Bytes, None, Some(path)) => to_file(&mut reader, &stream, path, verify)?,
        (Shape::Bytes, None, None) => to_output(&mut reader, &stream, verify)?,
    }
    if options.json {
        output::json(&report)?;
    }
    match in_part {
        0 => Ok(()),
        n => Err(Failure::in_part(format!(
            "{} of '{}' restored in part only: more was not stored",
            counted(n, "file"),
            options.name
        ))),
    }
}

pub(super) fn left_out(counts: &LeftOut) -> serde_json::Value {
    json!({
        "owners": counts.owners,
        "special_bits": counts.special_bits,
        "devices": counts.devices,
        "sockets": counts.sockets,
        "attributes": counts.attributes,
    })
}

/// Says in one sentence what was not restored, and what would restore it beyond what was asked for.
pub(super) fn tell(counts: &LeftOut, is_privileged: bool) {
    let all = [
        (counts.owners, "owner"),
        (counts.special_bits, "set-id or sticky bit"),
        (counts.devices, "device"),
        (counts.sockets, "socket"),
        (counts.attributes, "attribute"),
    ];
    let words: Vec<String> =
        all.iter().filter(|(n, _)| *n > 0).map(|(n, what)| counted(*n, what)).collect();
    if !words.is_empty() {
        let why = match (is_privileged, rustix::process::geteuid().is_root()) {
            (true, _) => "this user may not set them, or the file system takes none",
            (false, true) => {
                "the same with --in-place --preserve-privileged restores what can be restored of them"
            }
            (false, false) => {
                "root restores owners; --preserve-privileged what else may be restored"
            }
        };
        warn(&format!("left out: {}; {why}", words.join(", ")));
    }
}

fn to_output(reader: &mut Reader, stream: &Stream, verify: Verify) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let mut write = |bytes: &[u8]| match out.write_all(bytes) {
        // The reader has seen enough.
        Err(e) if e.kind() == ErrorKind::BrokenPipe => {
            Err(Error::new(Kind::Stopped, "the reader is gone"))
        }
        written => written.map_err(|e| Error::from_io("the output can't be written", e)),
    };
    let mut gathered = Gathered::new(&mut write);
    let read = reader.read(&stream.recipe, verify, &mut |content| match content {
        Content::Bytes(bytes) => gathered.bytes(bytes),
        Content::Zeroes(n) | Content::Hole(n) => gathered.zeroes(n),
    });
    match read.and_then(|()| gathered.end()) {
        Err(error) if error.kind() == Kind::Stopped => Ok(()),
        written => written,
    }
}

fn to_file(reader: &mut Reader, stream: &Stream, path: &Path, verify: Verify) -> Result<()> {
    fits(path, reader.sizes(&stream.recipe)?.1, 1)?;
    let new = NewFile::create(path)?;
    new.file().set_len(stream.bytes).map_err(|e| {
        Error::from_io(format_args!("the length of {} can't be set", path.display()), e)
    })?;
    let (bar, mut at, mut stretch) = (Progress::new("restoring"), 0, Stretch::default());
    reader.read(&stream.recipe, verify, &mut |content| {
        match content {
            Content::Bytes(bytes) => {
                stretch.bytes(new.file(), at, bytes)?;
                at += bytes.len() as u64;
            }
            Content::Zeroes(n) | Content::Hole(n) => at += n,
        }
        bar.set(at, stream.bytes);
        Ok(())
    })?;
    stretch.end(new.file())?;
    new.publish()
}
