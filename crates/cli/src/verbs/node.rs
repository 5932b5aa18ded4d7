//! `onefold node`: the nodes of an archive that has several.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use clap::{Args, Subcommand};
use onefold_archive::{
    Archive, Nodes, Rebuilt, Replacement, Settings, repair_units, replace_nodes,
};
use onefold_backend::random::random_bytes;
use serde::Serialize;
use serde_json::json;

use super::archive_at;
use onefold::parts::archive_dir::{ArchiveDir, node_to_fill};
use onefold_console::{
    failure::Failure,
    output::{self, Answer},
    progress::Progress,
    size::{counted, grouped},
};

/// Attaches, rebuilds and replaces the nodes of an archive on several nodes
#[derive(Debug, Args)]
#[command(disable_help_subcommand = true)]
#[command(
    after_help = "Examples:\n  onefold node rebuild safe\n  onefold node replace safe 2 /mnt/new"
)]
pub(crate) struct Options {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Makes the archive's own directory again, which says where its nodes are
    #[command(after_help = "Examples:\n  onefold node attach safe --nodes /mnt/a,/mnt/b,/mnt/c")]
    Attach {
        /// The directory, new or empty
        store: PathBuf,
        /// The directories of all nodes, or their addresses on other hosts, node 0 first; any name stands for
        /// a lost one
        #[arg(long, value_delimiter = ',', num_args = 1.., required = true, value_name = "DIRS")]
        nodes: Vec<PathBuf>,
        #[command(flatten)]
        answer: Answer,
    },
    /// Reads each shard on the nodes that are present, and makes bad and missing ones anew
    #[command(after_help = "Examples:\n  onefold node rebuild safe")]
    Rebuild {
        /// The archive
        #[arg(value_name = "ARCHIVE")]
        store: PathBuf,
        #[command(flatten)]
        answer: Answer,
    },
    /// Fills a directory with the content of an absent node; puts and gc wait meanwhile
    #[command(after_help = "Examples:\n  onefold node replace safe 2 /mnt/new")]
    Replace {
        /// The archive
        #[arg(value_name = "ARCHIVE")]
        store: PathBuf,
        /// The number of the node that is absent
        number: usize,
        /// An empty directory, or the node's own directory, which missed changes; on another host:
        /// ssh://user@host/directory
        directory: PathBuf,
        #[command(flatten)]
        answer: Answer,
    },
}

/// Does what was asked for, and says so.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    match &options.verb {
        Verb::Attach { store, nodes, answer } => {
            let directory = ArchiveDir::attach(store, nodes)?;
            directory.open_to_read(onefold_archive::READER_BYTES)?;
            answer.tell(
                &json!({ "store": store.display().to_string(), "nodes": nodes.len() }),
                format_args!("attached {}", store.display()),
            )
        }
        Verb::Rebuild { store, answer } => rebuild(store, &[], answer.json),
        Verb::Replace { store, number, directory, answer } => {
            rebuild(store, &[(*number, directory.clone())], answer.json)
        }
    }
}

/// The outcome.
#[derive(Debug, Serialize)]
struct Done {
    replaced_nodes: u64,
    /// Units of 4 KiB looked at or written.
    units: u64,
    bad_units: u64,
    repaired_units: u64,
    lost_containers: u64,
}

/// Makes lost shards anew on the nodes that are there, or fills directories that take the place of
/// nodes.
fn rebuild(path: &Path, replace: &[(usize, PathBuf)], json: bool) -> Result<(), Failure> {
    let mut directory = archive_at(path, "it has no nodes")?;
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
        let replacement =
            Replacement { number: *number, files: node_to_fill(to)?, id: random_bytes()? };
        let done =
            replace_nodes(&archive, &nodes, &replacement, &mut |done, total| bar.set(done, total))?;
        directory.move_node(&nodes, *number, to)?;
        all.nodes += done.nodes;
        all.units.units += done.units.units;
    }
    if replace.is_empty() {
        let (archive, nodes) = several(&directory)?;
        all = repair_units(&archive, &nodes, true, &mut |done, total| bar.set(done, total))?;
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
