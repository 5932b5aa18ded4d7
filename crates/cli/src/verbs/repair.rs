//! `onefold repair`: the only verb that mends a store.

use std::path::PathBuf;

use clap::Args;

use super::{
    Found,
    check::{COMPARING_BYTES, archive, block_repair, cluster, found_for},
};
use onefold::parts::archive_care::{Depth, Extent};
use onefold_console::{failure::Failure, output::Answer, size::Size};

/// Restores what can be restored of a store, and tells what is lost
///
/// A block store gets back what follows with certainty from what is left, and nothing else; what is
/// lost reads as errors until it is written; it may not be served. Of an archive all data is read:
/// chunks come back from other copies, shards from parity, and the chunk index is made anew. In a
/// store of the cluster engine maps and references are brought to agree, and all chunks are read.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  onefold repair disk.onefold\n  onefold repair backups --only monday\n  onefold repair pool --json"
)]
pub(crate) struct Options {
    /// The store, an archive's directory, or a store of the cluster engine
    store: PathBuf,

    /// Memory for comparing blocks (256M): with too little for all of them the maps are read
    /// several times. Of an archive: for its tables (64M), and more for what they occupy
    #[arg(long, value_name = "SIZE")]
    memory: Option<Size>,

    /// Only this stream or volume of an archive, and the containers that it needs
    #[arg(long, value_name = "NAME")]
    only: Option<String>,

    #[command(flatten)]
    answer: Answer,
}

/// Repairs, and tells what was done and what is left.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let only = options.only.as_deref();
    match found_for(&options.store, only)? {
        Found::Block(file) => {
            let memory = options.memory.map_or(COMPARING_BYTES, |memory| memory.0);
            block_repair::run(&file, memory, options.answer)
        }
        Found::Archive(directory) => {
            let memory = options.memory.map_or(onefold_archive::READER_BYTES, |memory| memory.0);
            let extent = Extent { depth: Depth::Repair, only, memory };
            archive::run(&directory, extent, options.answer.json)
        }
        Found::Cluster(url) => cluster::repair(&url, options.answer),
    }
}
