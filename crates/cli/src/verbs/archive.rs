//! `onefold archive`: makes archives, and what is rarely done to them.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use clap::{Args, Subcommand};
use onefold_archive::{
    Archive, Chunking, Compression, Format, Nodes, Rebuilt, Replacement, Settings, Spread,
    repair_units, replace_nodes,
};
use onefold_backend::{Directory, random::random_bytes};
use onefold_core::{Files, Result};
use serde::Serialize;
use serde_json::json;

use super::{
    archive_placement::{self, code},
    archive_volume,
};
use crate::verbs::NOT_ENCRYPTED;
use onefold::parts::{
    archive_dir::{ArchiveDir, name_archive},
    operator::{warn, word},
};
use onefold_console::{
    failure::Failure,
    output::{self, Answer},
    progress::Progress,
    size::{counted, grouped},
};

/// Makes archives: streams and directories, cut by their content, each chunk stored once
///
/// An archive is a directory, or several of them with parity. Any number of readers, one `put` and
/// one `gc` work on it at the same time, and a kill at any point loses nothing that was
/// acknowledged.
#[derive(Debug, Args)]
#[command(disable_help_subcommand = true)]
#[command(
    after_help = "Examples:\n  onefold archive create backups\n  onefold archive rename backups monday tuesday\n  onefold archive volume create backups disk1 --size 1T"
)]
pub(crate) struct Options {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Makes an empty archive in a new or empty directory
    ///
    /// With --nodes containers are cut into shards with parity, and log and tables have copies, on
    /// nodes of which N-K may be lost; the archive's own directory only tells where they are.
    #[command(
        after_help = "Examples:\n  onefold archive create backups\n  onefold archive create images --chunking static:4K --compress lz4\n  onefold archive create safe --nodes /mnt/a,/mnt/b,/mnt/c --code 3,2\n  onefold archive create far --nodes n0,n1,n2,n3,n4,n5 --code 6,4 --placement rad --class-codes 6,4:5,3:4,2"
    )]
    Create {
        /// The directory
        archive: PathBuf,
        /// How streams are cut, and the mean size of a chunk: fastcdc:8K, rabin:8K or static:4K;
        /// any power of two from 1K to 256K
        #[arg(long, default_value = "fastcdc:8K", value_name = "KIND:SIZE")]
        chunking: Chunking,
        /// How chunks are compressed: zstd, lz4 or none
        #[arg(long, default_value = "zstd", value_name = "KIND")]
        compress: Compression,
        /// New or empty directories that each may be lost, on disks of their own
        #[arg(long, value_delimiter = ',', num_args = 1.., value_name = "DIRS", requires = "code")]
        nodes: Vec<PathBuf>,
        /// Shards of a container with and without parity: N-K nodes may be lost
        #[arg(long, value_name = "N,K", value_parser = code, requires = "nodes")]
        code: Option<(usize, usize)>,
        #[command(flatten)]
        placement: archive_placement::Options,
        #[command(flatten)]
        answer: Answer,
    },
    /// Makes the directory of an archive again that tells where its nodes are
    #[command(after_help = "Examples:\n  onefold archive attach safe --nodes /mnt/a,/mnt/b,/mnt/c")]
    Attach {
        /// The directory, new or empty
        archive: PathBuf,
        /// All nodes, node 0 first; of one that is lost any name
        #[arg(long, value_delimiter = ',', num_args = 1.., required = true, value_name = "DIRS")]
        nodes: Vec<PathBuf>,
        #[command(flatten)]
        answer: Answer,
    },
    /// Makes lost shards anew: on nodes that are there, or on a directory that takes the place of
    /// one
    ///
    /// Without --replace every shard is looked at, and bad ones are mended. With it the directory
    /// is filled with all that the node must have; puts and gc wait meanwhile.
    #[command(
        after_help = "Examples:\n  onefold archive rebuild safe\n  onefold archive rebuild safe --replace 2=/mnt/new"
    )]
    Rebuild {
        /// The archive
        archive: PathBuf,
        /// The number of a node that is absent, and an empty directory, or its own that missed
        /// changes
        #[arg(long, value_name = "NUMBER=DIR", value_parser = replacement)]
        replace: Vec<(usize, PathBuf)>,
        #[command(flatten)]
        answer: Answer,
    },
    /// Creates, lists, resizes, renames and deletes backup volumes
    Volume(archive_volume::Options),
    /// Gives a stream another name
    #[command(after_help = "Examples:\n  onefold archive rename backups monday tuesday")]
    Rename {
        /// The archive
        archive: PathBuf,
        /// The stream
        name: String,
        /// Its new name
        new_name: String,
        #[command(flatten)]
        answer: Answer,
    },
}

fn replacement(text: &str) -> Result<(usize, PathBuf), String> {
    let parts = text
        .split_once('=')
        .and_then(|(number, path)| Some((number.parse().ok()?, PathBuf::from(path))));
    parts.ok_or_else(|| "a replacement is NUMBER=DIR".to_owned())
}

/// Does what was asked for, and says so.
pub(crate) fn run(options: Options) -> Result<(), Failure> {
    match options.verb {
        Verb::Create { archive, chunking, compress, nodes, code, placement, answer } => {
            let late = placement.late(nodes.len(), code)?;
            let format = Format {
                chunking,
                compression: compress,
                late,
                ..Format::new(random_bytes()?, random_bytes()?, random_bytes()?)
            };
            let made = match code {
                Some(code) => create_on(&archive, &nodes, code, &format)?,
                None => {
                    let files = Directory::create_as(&archive, word())?;
                    files.exposed().iter().for_each(|sentence| warn(sentence));
                    Archive::create(&files, &format).map_err(|e| name_archive(&archive, e))?;
                    String::new()
                }
            };
            let report = json!({
                "archive": archive.display().to_string(), "chunking": chunking.to_string(), "compression": compress.to_string(),
                "nodes": nodes.iter().map(|node| node.display().to_string()).collect::<Vec<_>>(), "code": code, "encrypted": false,
            });
            let words = format_args!(
                "created {}: chunks by {chunking}, compressed by {compress}{made}\n{NOT_ENCRYPTED}",
                archive.display()
            );
            answer.tell(&report, words)
        }
        Verb::Attach { archive, nodes, answer } => {
            let directory = ArchiveDir::create(&archive, &nodes)?;
            directory.open_to_read(onefold_archive::READER_BYTES)?;
            answer.tell(
                &json!({ "archive": archive.display().to_string(), "nodes": nodes.len() }),
                format_args!("attached {}", archive.display()),
            )
        }
        Verb::Rebuild { archive, replace, answer } => rebuild(&archive, &replace, answer.json),
        Verb::Volume(options) => archive_volume::run(options),
        Verb::Rename { archive, name, new_name, answer } => {
            ArchiveDir::look(&archive)?.open(Settings::default())?.rename(&name, &new_name)?;
            answer.tell(
                &json!({ "renamed": name, "to": new_name }),
                format_args!("renamed {name:?} to {new_name:?}"),
            )
        }
    }
}

/// Makes an archive on several nodes; says how.
fn create_on(
    archive: &Path,
    nodes: &[PathBuf],
    (n, k): (usize, usize),
    format: &Format,
) -> Result<String, Failure> {
    let directories = nodes
        .iter()
        .map(|node| Ok(Arc::new(Directory::create_as(node, word())?) as Arc<dyn Files>))
        .collect::<Result<Vec<_>>>()?;
    let ids = nodes.iter().map(|_| random_bytes()).collect::<Result<_>>()?;
    // Its own directory comes first: what fails below it leaves nothing that looks like an archive.
    ArchiveDir::create(archive, nodes)?;
    let files = Nodes::create(directories, &Spread { n, k, ids }, format.id, format.secret)?;
    Archive::create(&files, format).map_err(|e| name_archive(archive, e))?;
    Ok(format!(", on {} of which {} may be lost", counted(nodes.len() as u64, "node"), n - k))
}

/// What was done.
#[derive(Debug, Serialize)]
struct Done {
    replaced_nodes: u64,
    /// Units of 4 KiB looked at or written.
    units: u64,
    bad_units: u64,
    repaired_units: u64,
    lost_containers: u64,
}

fn rebuild(path: &Path, replace: &[(usize, PathBuf)], json: bool) -> Result<(), Failure> {
    let mut directory = ArchiveDir::look(path)?;
    // Filling waits for who stores, and a server stores as long as it runs.
    if !replace.is_empty()
        && let Some(mut server) = directory.server()?
    {
        let pid = server.pid()?;
        return Err(Failure::new(format!(
            "{} is served by process {pid}; stop it first",
            path.display()
        )));
    }
    let mut all = Rebuilt::default();
    let bar = Progress::of("rebuilding", "containers");
    for (number, to) in replace {
        let (archive, nodes) = several(&directory)?;
        let files: Arc<dyn Files> = match Directory::create_as(to, word()) {
            Ok(files) => Arc::new(files),
            // The engine looks what is in it.
            Err(_) => Arc::new(Directory::open_as(to, true, word())?),
        };
        let replacement = Replacement { number: *number, files, id: random_bytes()? };
        let done =
            replace_nodes(&archive, &nodes, &replacement, &mut |done, total| bar.set(done, total))?;
        directory.move_node(*number, to)?;
        all.nodes += done.nodes;
        all.units.units += done.units.units;
    }
    if replace.is_empty() {
        let (archive, nodes) = several(&directory)?;
        all = repair_units(&archive, &nodes, &mut |done, total| bar.set(done, total))?;
    }
    drop(bar);
    tell(path, &all, json)
}

fn several(directory: &ArchiveDir) -> Result<(Arc<Archive>, Arc<Nodes>), Failure> {
    match directory.open_nodes(Settings::default(), true)? {
        (archive, Some(nodes)) => Ok((archive, nodes)),
        (_, None) => Err(Failure::new(format!(
            "{} has one node, and nothing to rebuild it from",
            directory.path().display()
        ))),
    }
}

fn tell(path: &Path, all: &Rebuilt, json: bool) -> Result<(), Failure> {
    let units = all.units;
    if json {
        let done = Done {
            replaced_nodes: all.nodes,
            units: units.units,
            bad_units: units.bad_units,
            repaired_units: units.repaired_units,
            lost_containers: all.lost_containers,
        };
        output::json(&done)?;
    } else if all.nodes > 0 {
        output::line(format_args!(
            "filled {} with {} units of 4 KiB",
            counted(all.nodes, "node"),
            grouped(units.units)
        ));
    } else {
        let (bad, mended) = (grouped(units.bad_units), grouped(units.repaired_units));
        output::line(format_args!(
            "{} units of 4 KiB: {bad} bad, {mended} made anew",
            grouped(units.units)
        ));
    }
    if all.lost_containers > 0 {
        let lost = counted(all.lost_containers, "container");
        return Err(Failure::new(format!(
            "{} lost data in {lost}; `onefold scrub` tells which streams it hits",
            path.display()
        )));
    }
    Ok(())
}
