//! `onefold archive volume`: the backup volumes of an archive, served or not.
//!
//! A verb takes the commit lock, and is done in milliseconds, beside a server and beside puts.
//! Where the archive is served its server does it, so that it knows at once.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use onefold_archive::{Archive, Settings};
use onefold_core::{Error, Kind, Result};
use serde::Serialize;

use crate::verbs::volume::{done, said};
use onefold::parts::{
    archive_dir::{ArchiveDir, now},
    control::{Request, Speed},
};
use onefold_console::{
    failure::Failure,
    output::{self, Answer},
    size::Size,
};

/// Creates, lists, resizes, renames and deletes backup volumes, also while the archive is served
///
/// A volume is what a backup program writes as a disk: `onefold serve ARCHIVE` offers it over NBD.
/// Its blocks of 128 KiB share chunks with each other and with all streams of the archive.
#[derive(Debug, Args)]
#[command(disable_help_subcommand = true)]
#[command(
    after_help = "Examples:\n  onefold archive volume create backups disk1 --size 1T\n  onefold archive volume list backups"
)]
pub(crate) struct Options {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Creates an empty volume; it takes no space before it is written
    #[command(after_help = "Examples:\n  onefold archive volume create backups disk1 --size 1T")]
    Create {
        /// The archive
        archive: PathBuf,
        /// Its name
        name: String,
        /// Its size, rounded up to 128 KiB
        #[arg(long)]
        size: Option<Size>,
        #[command(flatten)]
        answer: Answer,
    },
    /// Lists all volumes with their sizes
    #[command(
        after_help = "Examples:\n  onefold archive volume list backups\n  onefold archive volume list backups --json"
    )]
    List {
        /// The archive
        archive: PathBuf,
        #[command(flatten)]
        answer: Answer,
    },
    /// Changes the size of a volume; what lies beyond a smaller size is lost, and `onefold gc`
    /// frees it
    #[command(after_help = "Examples:\n  onefold archive volume resize backups disk1 --size 2T")]
    Resize {
        /// The archive
        archive: PathBuf,
        /// The volume
        name: String,
        /// Its new size, rounded up to 128 KiB
        #[arg(long)]
        size: Option<Size>,
        #[command(flatten)]
        answer: Answer,
    },
    /// Gives a volume another name
    #[command(after_help = "Examples:\n  onefold archive volume rename backups disk1 system")]
    Rename {
        /// The archive
        archive: PathBuf,
        /// The volume
        name: String,
        /// Its new name
        new_name: String,
        #[command(flatten)]
        answer: Answer,
    },
    /// Deletes a volume; `onefold gc` frees what only it holds
    #[command(after_help = "Examples:\n  onefold archive volume delete backups disk1")]
    Delete {
        /// The archive
        archive: PathBuf,
        /// The volume
        name: String,
        #[command(flatten)]
        answer: Answer,
    },
}

/// A volume, as lists show it.
#[derive(Debug, Serialize)]
pub(super) struct Line {
    pub(super) name: String,
    pub(super) bytes: u64,
    /// Bytes of its blocks that are no zeroes.
    pub(super) mapped_bytes: u64,
    /// Seconds since 1970.
    pub(super) created: u64,
}

/// The volumes of an archive by their names.
pub(super) fn lines(archive: &Archive) -> Vec<Line> {
    let tables = archive.tables();
    let line = |volume: &onefold_archive::Volume| Line {
        name: volume.name.clone(),
        bytes: volume.bytes,
        mapped_bytes: volume.block_index.used() * onefold_archive::VOLUME_BLOCK_BYTES,
        created: volume.created,
    };
    let mut lines: Vec<Line> = tables.volumes.values().map(line).collect();
    lines.sort_by(|a, b| a.name.cmp(&b.name));
    lines
}

/// Does what was asked for, and says so.
pub(super) fn run(options: Options) -> Result<(), Failure> {
    let (archive, answer, request) = match options.verb {
        Verb::List { archive, answer } => return list(&archive, answer),
        Verb::Create { archive, name, size, answer } => (
            archive,
            answer,
            Request::VolumeCreate {
                name,
                bytes: needed(size)?,
                critical: Vec::new(),
                limits: Speed::default(),
            },
        ),
        Verb::Resize { archive, name, size, answer } => {
            (archive, answer, Request::VolumeResize { name, bytes: needed(size)? })
        }
        Verb::Rename { archive, name, new_name, answer } => {
            (archive, answer, Request::VolumeRename { name, new_name })
        }
        Verb::Delete { archive, name, answer } => (archive, answer, Request::VolumeDelete { name }),
    };
    let directory = ArchiveDir::look(&archive)?;
    match directory.server()? {
        Some(mut server) => server.ask::<serde_json::Value>(&request).map(|_| ())?,
        None => apply(&*directory.open(Settings::default())?, &request)?,
    }
    answer.tell(&done(&request), said(&request))
}

/// The size as whole blocks.
fn needed(size: Option<Size>) -> Result<u64, Failure> {
    let Some(Size(bytes)) = size else {
        return Err(Failure::usage("a volume needs a size, like --size 1T"));
    };
    Ok(onefold_archive::volume_bytes(bytes)?)
}

/// Changes the catalogue; durable on return.
pub(super) fn apply(archive: &Archive, request: &Request) -> Result<()> {
    match request {
        Request::VolumeCreate { name, bytes, .. } => archive.create_volume(name, *bytes, now()),
        Request::VolumeResize { name, bytes } => archive.resize_volume(name, *bytes),
        Request::VolumeRename { name, new_name } => archive.rename_volume(name, new_name),
        Request::VolumeDelete { name } => archive.delete_volume(name),
        _ => Err(Error::new(Kind::Unsupported, "the server of an archive does not do this")),
    }
}

fn list(path: &Path, answer: Answer) -> Result<(), Failure> {
    let lines = lines(&*ArchiveDir::look(path)?.open_to_read(onefold_archive::READER_BYTES)?);
    if answer.json {
        output::json(&lines)?;
    } else if lines.is_empty() {
        output::line("no volumes");
    } else {
        for line in lines {
            let (bytes, mapped) =
                (Size(line.bytes).to_string(), Size(line.mapped_bytes).to_string());
            output::line(format_args!(
                "{bytes:>9}  {mapped:>9} written  {}",
                line.name.escape_debug()
            ));
        }
    }
    Ok(())
}
